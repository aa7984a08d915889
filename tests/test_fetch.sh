#!/usr/bin/env bash
# tools/fetch_text.sh without a network: an error, the second time, too, and nothing that passes for a text.
# shellcheck source=tests/shell_lib.sh
. "$(dirname "$0")/shell_lib.sh"

mkdir away; printf '#!/bin/sh\nexit 100\n' >away/apt-get; chmod +x away/apt-get; cp away/apt-get away/npm
for call in first second; do
    PATH=$dir/away:$PATH bash "$here/tools/fetch_text.sh" out >said 2>&1; rc=$?
    [ $rc -ne 0 ] && [ -z "$(ls out)" ]
    verdict "no package, $call call" $? "exit code $rc, $(ls out): $(tail -n 2 said)"
done
exit $failed
