#!/usr/bin/env bash
# Builds this tree and an older commit and trains four models with both on the CPU: every checkpoint tensor
# must have the same bits. Usage: same_bits.sh COMMIT [STEPS]. ARCH: gcc -march of both (default x86-64-v3).
# Prints "ok NAME" or "not ok NAME" for each model, and the hash of this tree's tensors.
set -uo pipefail
cd "$(dirname "$0")/.."
commit=${1:?a commit is missing}; steps=${2:-100}; arch=${ARCH:-x86-64-v3}
work=$(mktemp -d); trap 'git worktree remove --force "$work/old" 2>/dev/null; rm -rf "$work"' EXIT
git worktree add -q --detach "$work/old" "$commit" || exit 1
make -s -C "$work/old" NVCC= ARCH="$arch" -j"$(nproc)" build/brim >/dev/null || exit 1
make -s NVCC= ARCH="$arch" BUILD="$work/new" -j"$(nproc)" "$work/new/brim" >/dev/null || exit 1

# The quickstart's recipe with other models; keys that both commits know.
models() {
    echo "quickstart"
    echo "llama model.norm=rmsnorm model.pos=rope model.act=swiglu model.kv_heads=2 model.tied=false" \
        "model.layers=3 micro_batch=4 recompute=cheap"
    echo "qwen3 model.qk_norm=true model.kv_heads=2 model.head_dim=48" \
        "model.layers=3 micro_batch=2 recompute=block"
    echo "documents model.dropout=0.1 model.mask=document data.document_token=10 model.layers=3 micro_batch=4"
}

train() { # program, folder, name, keys
    local brim=$1 runs=$2 name=$3; shift 3
    BRIM_RUNS=$runs "$brim" train recipes/quickstart.yaml run="$name" device=cpu threads=2 seed=7 \
        steps="$steps" optim.warmup=5 \
        eval.every=0 checkpoint.every=0 data.train=recipes/data/tinyshakespeare.txt \
        "$@" >"$runs.$name.log" 2>&1
}

rc=0
while read -r name keys; do
    # shellcheck disable=SC2086 # keys are words
    for which in old new; do
        brim=$work/new/brim; [ $which = new ] || brim=$work/old/build/brim
        train "$brim" "$work/runs-$which" "$name" $keys ||
            { echo "not ok $name: $(tail -n 1 "$work/runs-$which.$name.log")"; rc=1; continue 2; }
    done
    last=$(printf 'step-%08d' "$steps")
    for f in model optim; do
        a=$work/runs-old/$name/checkpoints/$last/$f.safetensors
        b=$work/runs-new/$name/checkpoints/$last/$f.safetensors
        if cmp -s "$a" "$b"; then
            echo "ok $name $f $(sha256sum <"$b" | cut -c1-16)"
        else
            echo "not ok $name $f: tensors differ"
            rc=1
        fi
    done
    # A checkpoint of the older commit goes on with this tree.
    cp -r "$work/runs-old/$name" "$work/runs-new/from-old-$name"
    if BRIM_RUNS=$work/runs-new "$work/new/brim" train recipes/quickstart.yaml run="from-old-$name" \
        device=cpu threads=2 seed=7 \
        steps=$((steps + 5)) optim.warmup=5 eval.every=0 checkpoint.every=0 \
        data.train=recipes/data/tinyshakespeare.txt $keys 2>&1 |
        grep -q "resuming after step $steps"; then echo "ok $name goes on from the older commit's checkpoint"
    else
        echo "not ok $name does not go on"; rc=1; fi
done < <(models)
exit $rc
