#!/usr/bin/env bash
# Two programs train five models on this machine's GPU with `deterministic: true`: every checkpoint tensor
# must have the same bits. Usage: gpu_bits.sh OLD_BUILD NEW_BUILD [STEPS]. Needs no source of the older
# program. Prints "ok NAME" or "not ok NAME" for each file of each model.
set -uo pipefail
old=$(realpath "$1"); new=$(realpath "$2"); steps=${3:-30}
here=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
models() {
    echo "quickstart"
    echo "llama model.norm=rmsnorm model.pos=rope model.act=swiglu model.kv_heads=2 model.tied=false" \
        "model.layers=3 micro_batch=4 recompute=cheap"
    echo "qwen3 model.qk_norm=true model.kv_heads=2 model.head_dim=64 model.layers=3 recompute=block"
    echo "documents model.dropout=0.1 model.mask=document data.document_token=10 model.layers=3 micro_batch=4"
    echo "gpt2 model.width=768 model.heads=12 model.layers=4 model.context=1024 step_tokens=32768"
}
sed '/^watch:/,$d' "$here/recipes/quickstart.yaml" >"$work/quickstart.yaml" # an older program has no `watch`
train() { # build, runs, name, keys
    local build=$1 runs=$2 name=$3; shift 3
    BRIM_RUNS=$runs BRIM_TUNE_CACHE=$runs.tune "$build/brim" train "$work/quickstart.yaml" \
        run="$name" device=cuda:0 precision=bf16 deterministic=true opt.tune=false seed=7 steps="$steps" \
        optim.warmup=5 eval.every=0 checkpoint.every=0 \
        data.train="$here/recipes/data/tinyshakespeare.txt" "$@" >"$runs.$name.log" 2>&1
}
rc=0
while read -r name keys; do
    # shellcheck disable=SC2086 # keys are words
    train "$old" "$work/old" "$name" $keys & first=$!
    # shellcheck disable=SC2086
    train "$new" "$work/new" "$name" $keys || tail -n 1 "$work/new.$name.log"
    wait $first || tail -n 1 "$work/old.$name.log"
    last=$(printf 'step-%08d' "$steps")
    for f in model optim; do
        if cmp -s "$work"/{old,new}/"$name/checkpoints/$last/$f.safetensors"; then
            echo "ok $name $f"
        else
            echo "not ok $name $f: tensors differ or are missing"; rc=1
        fi
    done
done < <(models)
exit $rc
