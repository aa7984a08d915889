#!/usr/bin/env bash
# Every file that docs/tour.md and docs/tenant.md name exists. Every `name` in them stands in the source as a
# word.
set -uo pipefail
fail=0
for f in $(grep -oE '\b(src|tests|docs|recipes)/[A-Za-z0-9_./-]+' docs/tour.md docs/tenant.md -h |
    sed 's/[.,:]*$//' | sort -u); do
    if [ -e "$f" ]; then echo "ok file $f"; else echo "not ok file $f"; fail=1; fi
done
for n in $(grep -oE '`[A-Za-z_][A-Za-z0-9_]*`' docs/tour.md docs/tenant.md -h | tr -d '`' | sort -u); do
    if grep -rqw -- "$n" src tests/toy; then echo "ok name $n"; else echo "not ok name $n"; fail=1; fi
done
exit $fail
