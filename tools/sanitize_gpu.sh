#!/usr/bin/env bash
# compute-sanitizer on this machine's GPU: memcheck on a small model that trains, racecheck on Brim's kernels
# that use shared memory (kernels of libraries have hazards of their own).
# Usage: sanitize_gpu.sh BUILD_FOLDER [OP ...]. Attention runs only the cases of two lengths; all cases would
# take minutes. Closes with "N passed, N failed".
set -uo pipefail
build=$(realpath "${1:-build}"); here=$(cd "$(dirname "$0")/.." && pwd)
ops=("${@:2}")
[ ${#ops[@]} -gt 0 ] ||
    ops=(linear_act_fwd linear_act_bwd linear_glu_fwd linear_glu_bwd linear_dw norm_fwd norm_bwd xent
         embed_dw sumsq bias_dw attn_fwd attn_bwd cross_attn_fwd cross_attn_bwd)
tool=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
[ -x "$tool" ] || { echo "compute-sanitizer is not installed (CUDA's package has it)"; exit 2; }
export BRIM_RUNS; BRIM_RUNS=$(mktemp -d); trap 'rm -rf "$BRIM_RUNS"' EXIT; trap 'trap - TERM; kill 0' TERM INT
passed=0; failed=0
check() { # name, tool, command ...
    local name=$1; shift
    if timeout --foreground 300 "$tool" --error-exitcode 9 --tool "$@" >"$BRIM_RUNS/log" 2>&1; then
        passed=$((passed + 1))
        echo "ok $name: $(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' "$BRIM_RUNS/log" | sed 's/=* *//')"
    else
        failed=$((failed + 1)); echo "not ok $name"
        grep '=========' "$BRIM_RUNS/log" | sort | uniq -c | sort -rn | head -n 30
    fi
}
check "memcheck, a small model" memcheck "$build/brim" train "$here/recipes/quickstart.yaml" \
    device=cuda:0 precision=bf16 steps=3 step_tokens=4096 optim.warmup=1 eval.every=2 \
    eval.sequences=8 checkpoint.every=0
for op in "${ops[@]}"; do
    case $op in attn_*) parts=("T128 " "T384 ") ;; *) parts=("") ;; esac
    for part in "${parts[@]}"; do
        check "racecheck, $op${part:+, $part}" racecheck "$build/tests/gpu/test_gpu_ops" "$op" "$part" own
    done
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
