#!/usr/bin/env bash
# Runs every test program in $1/tests and every tests/*.sh, and closes with "N passed, N failed". C tests are
# cmocka programs; shell tests print one "ok NAME" or "not ok NAME" line per case and get $1 as argument. A
# test that cannot run on this machine prints "skip: why". The line is shown and counts neither as passed nor
# as failed.
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
show() { # those side by side that have ended since the last time
    local name
    for name in "${many[@]##*/}"; do
        [ -e "$logs/$name.rc" ] && [ ! -e "$logs/$name.shown" ] || continue
        count "$name"
        : >"$logs/$name.shown"
    done
}
# Side by side: programs, and the scripts that no clock is asked in. The longest first: no CPU waits long for
# the last. The others, which measure something or need a CPU for themselves, come one by one.
long="test_op_cpu test_plain_kernels test_attn_tiles test_own_gemm test_op_gradients"
together="bad_recipes cuda_half data_paths durable env fp8 hf images late latent ppo ranks slurm stages"
together=" $(printf 'test_%s.sh ' $together tokens tour toy user_data vision)"
many=(); alone=()
for t in "$build"/tests/test_* tests/test_*.sh; do
    [ -f "$t" ] || continue
    case "$t" in *.d) continue ;; *.sh) ;; *) [ -x "$t" ] || continue ;; esac
    case " $long $together alone:test_give_way " in
        *" alone:$(basename "$t") "*) alone+=("$t") ;;
        *" $(basename "$t") "*) many=("$t" "${many[@]}") ;;
        *) case "$t" in *.sh) alone+=("$t") ;; *) many+=("$t") ;; esac ;;
    esac
done
start() { # path
    case "$1" in *.sh) run "$(basename "$1")" bash "$1" "$build" ;; *) run "$(basename "$1")" "$1" ;; esac
}
for t in "${many[@]}"; do
    while [ "$(jobs -rp | wc -l)" -ge "$(nproc)" ]; do wait -n; show; done
    start "$t" &
done
wait
show
for t in "${alone[@]}"; do
    start "$t"
    count "$(basename "$t")"
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
