#!/usr/bin/env bash
# Runs every test program in $1/tests, as many at a time as there are CPUs, then every tests/*.sh, one by one.
# Closes with "N passed, N failed". C tests are cmocka programs; shell tests print one "ok NAME" or "not ok
# NAME" line per case and get $1 as argument. A test that cannot run on this machine prints "skip: why". The
# line is shown and counts neither as passed nor as failed.
set -uo pipefail
build=${1:-build}
passed=0; failed=0
logs=$(mktemp -d); trap 'rm -rf "$logs"' EXIT
count() { # name; its log, exit code and seconds are in $logs
    local p f log=$logs/$1 rc s
    read -r rc s <"$log.rc"
    [ "$rc" -eq 0 ] || grep -vE '^\[( RUN|       OK)|^ok ' "$log" | head -n 60
    p=$(grep -cE '^\[       OK \]|^ok ' "$log")
    # cmocka names a failed case twice, when it fails and in its summary
    f=$(( $(grep -E '^\[  FAILED  \] [^0-9 ]' "$log" | sort -u | wc -l) + $(grep -c '^not ok ' "$log") ))
    # a program that dies without a failed case still failed
    if [ "$rc" -ne 0 ] && [ "$f" -eq 0 ]; then f=1; echo "$1: exit code $rc"; tail -n 30 "$log"; fi
    grep '^skip' "$log"
    if [ "$rc" -eq 0 ] && [ "$p" -eq 0 ] && [ "$f" -eq 0 ] && ! grep -q '^skip' "$log"; then
        f=1
        echo "$1: ran no test"
    fi
    passed=$((passed + p)); failed=$((failed + f))
    printf '%-28s %4d passed, %d failed, %ds\n' "$1" "$p" "$f" "$s"
}
run() { # name, then the command
    local log=$logs/$1 s=$SECONDS
    "${@:2}" >"$log" 2>&1
    echo $? $((SECONDS - s)) >"$log.end" && mv "$log.end" "$log.rc"
}
show() { # programs that have ended since the last time
    local name
    for name in "${programs[@]##*/}"; do
        [ -e "$logs/$name.rc" ] && [ ! -e "$logs/$name.shown" ] || continue
        count "$name"
        : >"$logs/$name.shown"
    done
}
# The longest first: no CPU waits long for the last.
long="test_op_cpu test_plain_kernels test_attn_tiles test_own_gemm test_op_gradients"
programs=()
for t in "$build"/tests/test_*; do
    [ -x "$t" ] && [ -f "$t" ] || continue
    case "$t" in *.d) continue ;; esac
    case " $long " in *" $(basename "$t") "*) programs=("$t" "${programs[@]}") ;; *) programs+=("$t") ;; esac
done
for t in "${programs[@]}"; do
    while [ "$(jobs -rp | wc -l)" -ge "$(nproc)" ]; do wait -n; show; done
    run "$(basename "$t")" "$t" &
done
wait
show
for t in tests/test_*.sh; do
    [ -e "$t" ] || continue
    run "$(basename "$t")" bash "$t" "$build"
    count "$(basename "$t")"
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
