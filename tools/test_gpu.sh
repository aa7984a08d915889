#!/usr/bin/env bash
# Runs every program in $1/tests/gpu and every tests/gpu/test_*.sh; needs a GPU, nothing else installed.
# Closes with "N passed, N failed".
set -uo pipefail
build=${1:-build}
here=$(cd "$(dirname "$0")/.." && pwd)
passed=0; failed=0
log=$(mktemp); trap 'rm -f "$log"' EXIT
for t in "$build"/tests/gpu/test_* "$here"/tests/gpu/test_*.sh; do
    case "$t" in *.d) continue ;; esac
    [ -x "$t" ] || continue
    s=$SECONDS
    args=(); [ "${t%.sh}" = "$t" ] || args=("$build")
    timeout 300 "$t" "${args[@]}" >"$log" 2>&1; rc=$?
    p=$(grep -c '^ok ' "$log"); f=$(grep -c '^not ok ' "$log")
    [ "$f" -eq 0 ] || grep -E '^not ok ' "$log" | head -n 40
    if [ $rc -ne 0 ] && [ "$f" -eq 0 ]; then f=1; echo "$t: exit code $rc"; tail -n 20 "$log"; fi
    passed=$((passed + p)); failed=$((failed + f))
    printf '%-28s %4d passed, %d failed, %ds\n' "$(basename "$t")" "$p" "$f" $((SECONDS - s))
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
