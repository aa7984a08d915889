#!/usr/bin/env bash
# What `brim export` writes, loaded by transformers: the models of tests/golden/hf.tar.xz after an import,
# models of every family that Brim trained itself, and README's way from a folder of text to such a model.
# It needs Python with transformers. The GPU is hidden: starting CUDA 50 times would take longer than all
# else. CHECK_ONLY=1 makes the folders and stops before Python.
# shellcheck source=tests/shell_lib.sh
. "$(dirname "$0")/../shell_lib.sh"
here=$(cd "$here/.." && pwd) # this file lies one folder deeper
verify=$build/tests/verify_hf
export BRIM_RUNS=$dir/runs HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error CUDA_VISIBLE_DEVICES=
[ -n "${CHECK_ONLY:-}" ] || python3 -c 'import transformers' 2>/dev/null ||
    { echo "skip: there is no transformers"; exit 0; }
tar xJf "$here/tests/golden/hf.tar.xz" -C "$dir" || { echo "skip: xz is not installed"; exit 0; }
cpu=(device=cpu threads=2)
brim() { timeout -k 5 120 "$brim" "$@" >said 2>&1 </dev/null; rc=$?; }
made() { verdict "$1" "$rc" "$(tail -n 2 said)"; }

for m in gpt2 llama llama31 llama-linear mistral qwen2 qwen3; do
    brim import "$m" "run=$m" && brim export "$m" "x-$m"
    brim eval "$m" "${cpu[@]}" precision=fp32 --ids "$m/ids.txt" --logits "$m.npy"
    made "import and export $m"
    echo "x-$m $m/ids.txt $m.npy" >>folders
done
brim export gpt2 x-parts --shard 30K; made "an export in several files"
echo "x-parts gpt2/ids.txt gpt2.npy" >>folders

# ---- YaRN, longrope and Phi-3: folders of the tests' own (tests/verify_rope.c) ----
for m in $("$build/tests/verify_rope" list); do
    "$build/tests/verify_rope" make "$m" "$m" || failed=1
    keys=(); [ "$m" != phi3-long ] || keys=(model.context=64) # up to the original context
    cut -d' ' -f1-16 "$m/ids.txt" >"$m/prompt.ids"
    brim import "$m" "run=$m" "${keys[@]}" && brim export "$m" "x-$m" &&
        brim eval "$m" "${cpu[@]}" precision=fp32 --ids "$m/ids.txt" --logits "$m.npy"
    made "import and export $m"
    echo "x-$m $m/ids.txt $m.npy $m/prompt.ids $m/greedy.txt" >>folders
done

# ---- the same from transformers: its config classes, its weights, its logits ----
if [ -z "${CHECK_ONLY:-}" ]; then
    python3 "$here/tests/gpu/hf_make.py" . 2>err; verdict "transformers makes folders" $? "$(tail -n 3 err)"
fi
for m in made-*; do
    [ -d "$m" ] || continue
    # shellcheck disable=SC2046 # keys are words
    brim import "$m" "run=$m" $(cat "$m/keys.txt") &&
        brim eval "$m" "${cpu[@]}" precision=fp32 --ids "$m/ids.txt" --logits "$m.npy"
    made "import $m"
    "$verify" logits "$m.npy" "$m/logits.f32" >cmp.txt 2>&1
    verdict "$m: logits to 1e-4" $? "$(cat cmp.txt)"
    brim export "$m" "x-$m" && "$verify" same "$m" "x-$m" >cmp.txt 2>&1
    verdict "$m: export(import(x)) is x" $? "$(tail -n 2 said) $(cat cmp.txt)"
    "$brim" sample "$m" "${cpu[@]}" precision=fp32 --prompt-ids "$(tr ' ' , <"$m/prompt.ids")" --tokens 40 \
        --temperature 0 --ignore-eos --ids 2>/dev/null | tail -n 1 >"$m.greedy"
    echo "x-$m $m/ids.txt $m.npy $m/prompt.ids $m.greedy" >>folders
done

# ---- README: from a folder of text to a model that transformers loads ----
mkdir mytext; split -n l/9 "$here/recipes/data/tinyshakespeare.txt" mytext/part-
brim data tokenizer train mytext --vocab 4096 --out tok; made "README 1: a tokenizer"
brim data tokens mytext --tokenizer tok --out shards; made "README 2: shards"
brim train "$here/recipes/quickstart.yaml" run=own data.kind=tokens data.train=shards model.vocab=4096 \
    "steps=${STEPS:-60}"; made "README 3: training"
brim sample own --prompt "The king"; made "README 4: a sample"
brim export own out; made "README 5: an export"

# ---- every family, from weights that Brim trained ----
head -c 3000 "$here/recipes/data/tinyshakespeare.txt" >text.txt
"$brim" data tokenizer encode out text.txt >all.ids
cut -d' ' -f1-48 all.ids >ids.txt; cut -d' ' -f1-16 all.ids >prompt.ids
own() { # run, folder
    brim eval "$1" "${cpu[@]}" precision=fp32 --ids ids.txt --logits "$1.npy"; made "logits of $1"
    "$brim" sample "$1" "${cpu[@]}" precision=fp32 --prompt-ids "$(tr ' ' , <prompt.ids)" --tokens 60 \
        --temperature 0 --ignore-eos --ids 2>/dev/null | tail -n 1 >"$1.greedy"
    echo "$2 ids.txt $1.npy text.txt all.ids prompt.ids $1.greedy" >>folders
}
own own out
train() { # name, then model keys
    brim train "$here/recipes/quickstart.yaml" "run=own-$1" data.kind=tokens data.train=shards \
        model.vocab=4096 model.width=64 model.layers=2 steps=20 eval.every=0 "${cpu[@]}" watch.report=false \
        "${@:2}" &&
        brim export "own-$1" "x-own-$1"
    made "train and export $1"
    own "own-$1" "x-own-$1"
}
train gpt2 model.norm=layernorm model.pos=learned model.act=gelu model.bias=true
train llama
train mistral model.window=32
train qwen2 model.qkv_bias=true
train qwen3 model.qk_norm=true
train yarn model.rope_scaling=yarn model.rope_factor=4 model.rope_original=64 model.rope_fast=8
train yarn-qwen3 model.qk_norm=true model.rope_scaling=yarn model.rope_factor=4 model.rope_original=64 \
    model.rope_truncate=false model.rope_attention=1.3
train phi3 model.rope_scaling=longrope model.rope_factor=4 model.rope_original=256 model.window=32 \
    'model.rope_short=[1,1.02,1.05,1.1,1.3,1.7,2.1,2.5]' 'model.rope_long=[1,1.5,2,3,4,5,6.5,8]'
[ -z "${CHECK_ONLY:-}" ] || { cat folders; exit "$failed"; }
python3 "$here/tests/gpu/hf_peer.py" <folders 2>err | tee said
[ "${PIPESTATUS[0]}" -eq 0 ] && [ "$(grep -c '^ok ' said)" -ge 65 ] && ! grep -q '^not ok' said
verdict "all folders load" $? "$(tail -n 3 err)"
exit "$failed"
