#!/usr/bin/env bash
# Every file that docs/tour.md and docs/tenant.md name exists. Every `name` in them stands in the source as a
# word. A name with its file beside it, as in `name` (src/x.c) or `name` in src/x.c, stands in that file. A
# name in a row of a table stands in one of the files of that row.
set -uo pipefail
fail=0
for f in $(grep -oE '\b(src|tests|docs|recipes)/[A-Za-z0-9_./-]+' docs/tour.md docs/tenant.md -h |
    sed 's/[.,:]*$//' | sort -u); do
    if [ -e "$f" ]; then echo "ok file $f"; else echo "not ok file $f"; fail=1; fi
done
for n in $(grep -oE '`[A-Za-z_][A-Za-z0-9_]*`' docs/tour.md docs/tenant.md -h | tr -d '`' | sort -u); do
    if grep -rqw -- "$n" src tests/toy; then echo "ok name $n"; else echo "not ok name $n"; fail=1; fi
done
while read -r n f; do
    if grep -qw -- "$n" "$f"; then echo "ok $n in $f"; else echo "not ok $n in $f"; fail=1; fi
done < <(cat docs/tour.md docs/tenant.md | tr -s ' \n' ' ' |
    grep -oE '`[A-Za-z_][A-Za-z0-9_]*` (\(|in )(src|tests)/[A-Za-z0-9_./-]+' |
    sed -E 's/`([^`]*)` (\(|in )/\1 /; s/[.,:]*$//' | sort -u)
while read -r row; do
    files=$(grep -oE '\bsrc/[A-Za-z0-9_./-]+\.[a-z]+' <<< "$row")
    [ -n "$files" ] || continue
    for n in $(grep -oE '`[A-Za-z_][A-Za-z0-9_]*`' <<< "$row" | tr -d '`'); do
        # shellcheck disable=SC2086 # names of files
        if grep -qw -- "$n" $files; then echo "ok row $n"; else echo "not ok row $n:" $files; fail=1; fi
    done
done < <(grep -h '^|' docs/tour.md docs/tenant.md)
exit $fail
