#!/usr/bin/env bash
# Runs every test program in $1/tests and every tests/*.sh, and closes with "N passed, N failed". C tests are
# cmocka programs; shell tests print one "ok NAME" or "not ok NAME" line per case and get $1 as argument. A
# test that cannot run on this machine prints "skip: why". The line is shown and counts neither as passed nor
# as failed.
set -uo pipefail
build=${1:-build}
passed=0; failed=0
log=$(mktemp); trap 'rm -f "$log"' EXIT
count() { # file, exit code, name
    local p f
    p=$(grep -cE '^\[       OK \]|^ok ' "$1")
    # cmocka names a failed case twice, when it fails and in its summary
    f=$(( $(grep -E '^\[  FAILED  \] [^0-9 ]' "$1" | sort -u | wc -l) + $(grep -c '^not ok ' "$1") ))
    # a program that dies without a failed case still failed
    if [ "$2" -ne 0 ] && [ "$f" -eq 0 ]; then f=1; echo "$3: exit code $2"; tail -n 30 "$1"; fi
    grep '^skip' "$1"
    if [ "$2" -eq 0 ] && [ "$p" -eq 0 ] && [ "$f" -eq 0 ] && ! grep -q '^skip' "$1"; then
        f=1
        echo "$3: ran no test"
    fi
    passed=$((passed + p)); failed=$((failed + f))
    printf '%-28s %4d passed, %d failed, %ds\n' "$3" "$p" "$f" "$4"
}
for t in "$build"/tests/test_*; do
    [ -x "$t" ] && [ -f "$t" ] || continue
    case "$t" in *.d) continue ;; esac
    s=$SECONDS
    "$t" >"$log" 2>&1; rc=$?
    [ $rc -eq 0 ] || grep -vE '^\[( RUN|       OK)' "$log" | head -n 60
    count "$log" $rc "$(basename "$t")" $((SECONDS - s))
done
for t in tests/test_*.sh; do
    [ -e "$t" ] || continue
    s=$SECONDS
    bash "$t" "$build" >"$log" 2>&1; rc=$?
    [ $rc -eq 0 ] || grep -vE '^ok ' "$log" | head -n 60
    count "$log" $rc "$(basename "$t")" $((SECONDS - s))
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
