#!/usr/bin/env bash
# compute-sanitizer on this machine's GPU: memcheck on small models that train, racecheck on Brim's kernels
# that use shared memory (kernels of libraries have hazards of their own).
# Usage: sanitize_gpu.sh BUILD_FOLDER [OP ...]. With ops: only their racechecks. Attention runs only the cases
# of two lengths; all cases would take minutes. JOBS (default 6) checks run at a time, each for LIMIT_S
# (default 300) at most. Closes with "N passed, N failed".
set -uo pipefail
build=$(realpath "${1:-build}"); here=$(cd "$(dirname "$0")/.." && pwd)
ops=("${@:2}"); jobs=${JOBS:-6}
tool=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
[ -x "$tool" ] || { echo "compute-sanitizer is not installed (CUDA's package has it)"; exit 2; }
export BRIM_RUNS; BRIM_RUNS=$(mktemp -d); trap 'rm -rf "$BRIM_RUNS"' EXIT; trap 'trap - TERM; kill 0' TERM INT
check() { # name, tool, command ...
    local name=$1 log; log=$(mktemp -p "$BRIM_RUNS" log.XXXXXX); shift
    while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n; done
    (
        s=$SECONDS
        timeout --foreground "${LIMIT_S:-300}" "$tool" --error-exitcode 9 --tool "$@" >"$log" 2>&1; rc=$?
        if [ $rc -eq 0 ]; then
            echo "ok $name: $(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' "$log" | sed 's/=* *//')," \
                "$((SECONDS - s)) s"
        else
            echo "not ok $name: exit code $rc, $((SECONDS - s)) s"
            grep -E '=========|^brim|^not ok' "$log" | sort | uniq -c | sort -rn | head -n 30
        fi
    ) | tee -a "$BRIM_RUNS/said" &
}
train() { # name, recipe, keys ...
    local name=$1 recipe=$2; shift 2
    check "memcheck, $name" memcheck "$build/brim" train "$here/recipes/$recipe.yaml" run="${name// /-}" \
        device=cuda:0 watch.sample=false watch.report=false checkpoint.every=0 "$@"
}
if [ ${#ops[@]} -eq 0 ]; then
    small="steps=3 step_tokens=4096 optim.warmup=1 eval.every=2 eval.sequences=8"
    # shellcheck disable=SC2086 # keys are words
    train "a small model" quickstart precision=bf16 $small
    # shellcheck disable=SC2086
    train "in fp8 with Muon" quickstart precision=fp8 optim.kind=muon $small
    train "a policy" cartpole ppo.place=device steps=2
    train "images" vit-s16 model.layers=2 step_samples=16 steps=3 optim.warmup=1 eval.every=2 eval.samples=16
    ops=(linear_act_fwd linear_act_bwd linear_glu_fwd linear_glu_bwd linear_dw norm_fwd norm_bwd xent
         embed_dw sumsq bias_dw attn_fwd attn_bwd cross_attn_fwd cross_attn_bwd attn_decode qknorm_dw
         mse_fwd kl_fwd kl_dx ppo_cat_fwd ppo_gauss_fwd stats obs_stats loss_add clip ortho quant fp8_scale)
fi
for op in "${ops[@]}"; do
    case $op in attn_[fb]wd) parts=("T128 " "T384 ") ;; *) parts=("") ;; esac
    for part in "${parts[@]}"; do
        check "racecheck, $op${part:+, $part}" racecheck "$build/tests/gpu/test_gpu_ops" "$op" "$part" own
    done
done
wait
echo "$(grep -c '^ok ' "$BRIM_RUNS/said") passed, $(grep -c '^not ok ' "$BRIM_RUNS/said") failed"
! grep -q '^not ok ' "$BRIM_RUNS/said"
