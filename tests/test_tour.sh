#!/usr/bin/env bash
# Every file that docs/tour.md names exists, and every `name` in it stands somewhere in the source as a word.
set -uo pipefail
fail=0
named=$(grep -oE '\b(src|tests|docs|recipes)/[A-Za-z0-9_./-]+' docs/tour.md | sed 's/[.,:]*$//' | sort -u)
for f in $named; do
    if [ -e "$f" ]; then echo "ok file $f"; else echo "not ok file $f"; fail=1; fi
done
for n in $(grep -oE '`[A-Za-z_][A-Za-z0-9_]*`' docs/tour.md | tr -d '`' | sort -u); do
    if grep -rqw -- "$n" src; then echo "ok name $n"; else echo "not ok name $n"; fail=1; fi
done
exit $fail
