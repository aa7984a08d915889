#!/usr/bin/env bash
# What can be wrong with a GPU: another program has half of its memory, no cuDNN, no driver, no such card, an
# error in the middle of a run. Each time the program prints a clear line, and the run works or ends with exit
# code 1 or 2. Nothing hangs.
# Usage: test_gpu_faults.sh [build folder]
set -uo pipefail
here=$(cd "$(dirname "$0")/../.." && pwd)
build=$(realpath "${1:-$here/build}"); brim=$build/brim
cd "$here" || exit 1
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
export BRIM_RUNS=$work/runs; mkdir "$BRIM_RUNS"
small=(recipes/quickstart.yaml steps=30 optim.warmup=2 eval.sequences=4 checkpoint.every=10 log_every=1)
failed=0
say() { # rc, name
    if [ "$1" -eq 0 ]; then echo "ok $2"; else echo "not ok $2"; tail -n 5 "$work/log"; failed=1; fi
}
run() { # expected exit code, pattern that its output must have ("": none), arguments of brim
    local want=$1 pattern=$2; shift 2
    timeout 120 "$brim" "$@" >"$work/log" 2>&1; local rc=$?
    [ $rc -eq "$want" ] || { echo "exit code $rc, expected $want"; return 1; }
    [ -z "$pattern" ] || grep -Eiq "$pattern" "$work/log" || { echo "no line like: $pattern"; return 1; }
}
slabs() { awk '$1 == "total" { print $2; exit }' "$work/log"; } # planned bytes, of brim plan

# A recipe that takes more than half of the card when it can: it must be planned into what is left, and train
# there.
big=(recipes/gpt2-350m.yaml device=cuda:0 step_tokens=524288 opt.tune=false)
run 0 "" plan "${big[@]}";  say $? "a plan for the whole card"
whole=$(slabs)
mkfifo "$work/stop"
"$build/tests/gpu/hold_memory" 0.5 <"$work/stop" >"$work/held" 2>&1 & holder=$!
exec 3>"$work/stop"
for _ in $(seq 100); do [ -s "$work/held" ] && break; sleep 0.2; done
run 0 "" plan "${big[@]}"
left=$(slabs)
held=$(cat "$work/held")
[ "${left:-0}" -gt 0 ] && [ "$left" -lt "$held" ]
say $? "half of the memory held: planned $whole bytes before, $left beside another program's $held"
run 0 "" train "${big[@]}" run=half steps=2 optim.warmup=1 eval.sequences=1
say $? "half of the memory held: it trains"
exec 3>&-; wait $holder;  say $? "the other program ends"
rm -rf "$BRIM_RUNS/half"

# A library that cannot be opened is as good as none.
mkdir "$work/no_cudnn" "$work/no_driver"
: >"$work/no_cudnn/libcudnn.so.9"; : >"$work/no_driver/libcuda.so.1"
LD_LIBRARY_PATH=$work/no_cudnn run 0 "cudnn.*(too short|not used|missing|cannot)" info
say $? "no cuDNN: info says so"
LD_LIBRARY_PATH=$work/no_cudnn run 0 "" train "${small[@]}" run=no_cudnn device=cuda:0 precision=bf16
say $? "no cuDNN: it trains"
LD_LIBRARY_PATH=$work/no_driver run 0 "no CUDA device" train "${small[@]}" run=no_driver device=auto
say $? "no driver: device auto trains on the CPU"
LD_LIBRARY_PATH=$work/no_driver run 2 "no CUDA device" train "${small[@]}" run=no_driver2 device=cuda:0
say $? "no driver: device cuda:0 is refused"
run 2 "cuda:0" train "${small[@]}" run=wrong device=cuda:77
say $? "no such card: refused, with the cards there are"

BRIM_FAULT=device:25 run 1 "" train "${small[@]}" run=broken device=cuda:0 precision=bf16
say $? "an error on the card ends the run with exit code 1"
grep -Ei "cuda|gpu|device|kernel" "$work/log" | tail -n 1
run 0 "" train "${small[@]}" run=broken device=cuda:0 precision=bf16
say $? "the same command goes on from the last checkpoint"
exit $failed
