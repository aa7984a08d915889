#!/usr/bin/env bash
# Trains the quickstart recipe and prints a sample of what it learned. `make run` calls this.
#
# The demonstration always begins anew (a plain `brim train` would find all its steps done). --fresh moves an
# earlier run aside, deletes nothing, and leaves a run that still trains alone.
set -euo pipefail
brim=${1:-build/brim}
run=${BRIM_RUNS:-runs}/quickstart

# Ctrl-C reaches this script as well as brim, which saves and leaves: there is nothing to sample then.
interrupted=
trap interrupted=1 INT
rc=0
"$brim" train recipes/quickstart.yaml "${@:2}" --fresh || rc=$?
trap - INT
# 0 although Brim was interrupted: the signal reached Brim alone.
if [ $rc -eq 0 ] && grep -qsE 'received: (saving and )?leaving' "$run/log.txt"; then interrupted=1; fi
if [ -n "$interrupted" ] || [ $rc -gt 128 ]; then
    echo "Interrupted: no sample. $brim train recipes/quickstart.yaml goes on with $run;" \
        "make run begins anew." >&2
    exit 130
fi
[ $rc -eq 0 ] || exit $rc

n_old=$(find "${run%/*}" -maxdepth 1 -name 'quickstart.old-*' | wc -l)
if [ "$n_old" -gt 0 ]; then
    echo "Earlier demonstrations: $n_old in $run.old-*, which you may delete."
fi
echo
echo "A sample from the trained model:"
echo
"$brim" sample "$run" --prompt "ROMEO:" --tokens 400
