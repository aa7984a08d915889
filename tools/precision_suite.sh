#!/usr/bin/env bash
# What fp8, fp16 and Muon are worth on this machine's GPU: the figures of docs/performance.md.
# Usage: precision_suite.sh BUILD_FOLDER OUT_FOLDER PART ...
#   rates    bf16 and fp8, one after the other, for each recipe in RECIPES (default: five; 4.5 min)
#   limit    the share of the card's limit in fp8, op by op: qwen2.5-1.5b (1 min)
#   frozen   latent-llama-8b with the frozen net in bf16 and in fp8 (1 min)
#   loss     qwen2.5-0.5b, 500 steps of 65,536 tokens in fp8 and in bf16 (5.5 min); needs TRAIN and VAL
#   small    bytes: bf16 against fp16 with a forced overflow, an outlier in fp8, five seeds in fp8 (1 min)
#   muon     gpt2-124m, 65,536 tokens a step: AdamW for 1,000 steps at the best of the three rates in
#            docs/performance.md, then Muon until it has AdamW's loss, 750 steps at most; a step of 524,288
#            tokens of each (3 min); needs TRAIN and VAL
# All parts in this order take 16 minutes on an H200 (from earlier rates and starts), with tune.txt of an
# earlier OUT_FOLDER as BRIM_TUNE_CACHE two less.
# TRAIN, VAL: shards of GPT-2 tokens (brim data tokens), some ten million and some hundred thousand;
# fetch_text.sh and fetch_tokenizers.sh have text and tokenizer. MORE: keys for every training run. FORMS:
# keys of precision for rates, forms between commas ("bf16,fp8,fp8 fp8.fast=all"). LRS: AdamW's rates for muon
# ("6e-4 1.2e-3 2.4e-3": 3.5 min more). Curves go to OUT_FOLDER as metrics.jsonl files, as they come.
set -uo pipefail
TRAIN=${TRAIN:+$(realpath "$TRAIN")}; VAL=${VAL:+$(realpath "$VAL")}
here=$(cd "$(dirname "$0")/.." && pwd); build=$(realpath "$1"); out=$(realpath -m "$2"); shift 2
work=${TMPDIR:-/tmp}/precision_suite; mkdir -p "$out" "$work/runs"
BRIM_TUNE_CACHE=$(realpath -m "${BRIM_TUNE_CACHE:-$work/tune.txt}")
export BRIM_RUNS=$work/runs BRIM_TUNE_CACHE
cd "$here" || exit 1
brim=$build/brim
read -ra more <<<"${MORE:-}"
IFS=, read -ra forms <<<"${FORMS:-bf16,fp8}"
read -ra recipes <<<"${RECIPES:-gpt2-124m qwen2.5-0.5b qwen2.5-1.5b llama-3b llama-8b}"
text=recipes/data/tinyshakespeare.txt

train() { # name, recipe, keys: trains, keeps the curve, prints the validation losses
    local n=$1 r=$2; shift 2
    "$brim" train "$r" "run=$n" checkpoint.every=0 checkpoint.best=false watch.report=false \
        watch.sample=false "$@" "${more[@]}" >"$out/$n.log" 2>&1
    echo "$n: exit $?, $(grep -c skipped "$out/$n.log") skips,$(sed -n \
        's/.*\(step [0-9]*: validation loss [0-9.]*\).*/ \1;/p' "$out/$n.log" | tr -d '\n')"
    cp "$BRIM_RUNS/$n/metrics.jsonl" "$out/$n.jsonl"; rm -rf "${BRIM_RUNS:?}/$n"
}

part_rates() {
    local r p keys
    for r in "${recipes[@]}"; do
        keys=(step_tokens=65536)
        [ "$r" != gpt2-124m ] || keys=(step_tokens=262144)
        [ "$r" != llama-8b ] || keys+=("give_way=moments,weights")
        for p in "${forms[@]}"; do
            # shellcheck disable=SC2086 # several keys
            rate "$r" "$p" "${keys[@]}" precision=$p
        done
    done
}

rate() { # recipe, name, keys: one line, and the whole in rates.jsonl
    "$brim" bench "recipes/$1.yaml" --no-limit --json "${@:3}" 2>"$work/log" | tail -n 1 |
        tee -a "$out/rates.jsonl" | python3 -c 'import json, sys
b = json.load(sys.stdin)
mfu = 100 * (b["mfu"] or 0)
print("%s %s: %.0f %s/s, MFU %.1f %%" % (b["recipe"], sys.argv[1], b["per_s"], b["unit"], mfu))
' "$2" 2>/dev/null || tail -n 3 "$work/log"
}

part_limit() {
    "$brim" bench recipes/qwen2.5-1.5b.yaml precision=fp8 step_tokens=65536 --ops | tee "$out/limit.txt"
}

part_frozen() {
    local k=(latent.baselines=false memory_limit=80G)
    rate latent-llama-8b bf16 "${k[@]}"
    rate latent-llama-8b fp8 "${k[@]}" precision=fp8 fp8.wide=encoder
}

part_loss() {
    local k=(steps=500 step_tokens=65536 data.kind=tokens "data.train=$TRAIN" "data.val=$VAL" optim.lr=6e-4
        optim.warmup=50 eval.every=100 eval.sequences=128 micro_batch=64)
    train loss-fp8 recipes/qwen2.5-0.5b.yaml "${k[@]}" precision=fp8
    train loss-bf16 recipes/qwen2.5-0.5b.yaml "${k[@]}" precision=bf16
}

part_small() {
    local s k=("data.train=$text" eval.every=100 eval.sequences=256)
    train bytes-bf16 tests/gpu/bytes.yaml "${k[@]}" steps=200 precision=bf16
    BRIM_FAULT=overflow:5 train bytes-fp16 tests/gpu/bytes.yaml "${k[@]}" steps=200 precision=fp16
    grep overflowed "$out/bytes-fp16.log"
    "$build/tests/gpu/test_gpu_fp8" "$text"
    train bytes-bf16-1 tests/gpu/bytes.yaml "${k[@]}" precision=bf16 seed=1 optim.lr=1e-3
    for s in 1 2 3 4 5; do
        train "bytes-fp8-$s" tests/gpu/bytes.yaml "${k[@]}" precision=fp8 "seed=$s" optim.lr=1e-3
    done
}

part_muon() {
    local lr kind best k=(step_tokens=65536 micro_batch=64 data.kind=tokens "data.train=$TRAIN"
        "data.val=$VAL" optim.min_lr=0 eval.every=50 eval.sequences=256)
    rm -f "$out"/adamw-*.jsonl
    for lr in ${LRS:-1.2e-3}; do
        train "adamw-$lr" recipes/gpt2-124m.yaml "${k[@]}" steps=1000 optim.warmup=100 "optim.lr=$lr"
    done
    best=$(for f in "$out"/adamw-*.jsonl; do
        sed -n 's/.*"val_loss": \([0-9.]*\).*/\1/p' "$f" | tail -n 1
    done | sort -g | head -n 1)
    train muon recipes/gpt2-124m.yaml "${k[@]}" steps=750 optim.warmup=75 optim.kind=muon optim.lr=1.5e-3 \
        optim.muon_lr=3e-3 "eval.target=${best:-0}"
    for kind in adamw muon; do rate gpt2-124m "$kind" step_tokens=524288 optim.kind=$kind; done
}

for part in "$@"; do
    case $part in
        rates | limit | frozen | small) ;;
        loss | muon) if [ -z "$TRAIN" ] || [ -z "$VAL" ]; then echo "$part: set TRAIN and VAL"; exit 2; fi ;;
        *) echo "precision_suite.sh: no part $part"; exit 2 ;;
    esac
    begin=$SECONDS; echo "== $part"; "part_$part"; echo "== $part: $((SECONDS - begin)) s"
done
cp "$BRIM_TUNE_CACHE" "$out/tune.txt" 2>/dev/null
