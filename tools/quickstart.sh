#!/usr/bin/env bash
# Trains the quickstart recipe and prints a sample of what it learned. `make run` calls this.
set -euo pipefail
brim=${1:-build/brim}
# The demonstration always starts anew; a run of your own resumes instead.
rm -rf "${BRIM_RUNS:-runs}/quickstart"
"$brim" train recipes/quickstart.yaml "${@:2}"
echo
echo "A sample from the trained model:"
echo
"$brim" sample "${BRIM_RUNS:-runs}/quickstart" --prompt "ROMEO:" --tokens 400
