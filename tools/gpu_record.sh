#!/usr/bin/env bash
# The figures of docs/performance.md, measured anew on this machine's GPU.
# Usage: gpu_record.sh BUILD_FOLDER OUT_FOLDER PART ...
#   start    command to first finished step of gpt2-124m: cold tune cache, then warm (0.5 min)
#   cpu      the byte model on 2 and 16 threads, in turn with OpenBLAS if BUILD_FOLDER has bench_cpu_ops, and
#            with the command PEER_CPU if set (2.5 min). PEER_CPU gets the number of threads and prints a line
#            after every step of 4,096 tokens.
#   check    compute-sanitizer, six at a time, while the peers below compile (5 min)
#   bytes    300 steps of the byte model beside PyTorch (0.5 min)
#   recipes  bench and PyTorch's ratio of every recipe in RECIPES (default: five that gpu-suite has not;
#            1.5 min each). PEER names another command than tools/peer_torch.py. The command gets the recipe's
#            name, or the name, 0 and "compile".
#   suite    gpu-suite (6 min)
#   ladder   of gpt2-124m (1.5 min)
#   sample   tokens/s of gpt2-124m (1 and 64 prompts) and of llama-8b (0.2 min)
#   leaderboard  its model on the tokens of the folder SET (32,000 ids; tools/fetch_text.sh makes it) for
#            BUDGET_S seconds (default 240), in fp8 with Muon. The time begins with the program. LEADERBOARD:
#            other keys (4.5 min)
#   leaderboard_peer  the same by PyTorch with AdamW. The time begins when its compiler is done. PEER_KEYS:
#            other keys of tools/peer_leaderboard.py (6 min)
set -uo pipefail
here=$(cd "$(dirname "$0")/.." && pwd); build=$(realpath "$1"); out=$(realpath -m "$2"); shift 2
mkdir -p "$out"; cd "$here" || exit 1
brim=$build/brim; work=${TMPDIR:-/tmp}/gpu_record; mkdir -p "$work/runs"
export BRIM_RUNS=$work/runs BRIM_TUNE_CACHE=$work/tune.txt
read -ra peer <<<"${PEER:-python3 tools/peer_torch.py}"
read -ra recipes <<<"${RECIPES:-gpt2-1558m qwen2.5-1.5b llama-1b gpt2-774m gpt2-350m}"

first_step() { # name: seconds until the first step is in metrics.jsonl
    local begin pid
    rm -rf "$BRIM_RUNS/first"; begin=$(date +%s%N)
    "$brim" train recipes/gpt2-124m.yaml run=first steps=1 optim.warmup=1 eval.sequences=1 log_every=1 \
        >"$work/log" 2>&1 &
    pid=$!
    until grep -qs '"step": 1,' "$BRIM_RUNS/first/metrics.jsonl" || ! kill -0 $pid 2>/dev/null; do
        sleep 0.02
    done
    echo "start, $1: $((($(date +%s%N) - begin) / 1000000)) ms to the first finished step"
    wait $pid || tail -n 3 "$work/log"
    rm -rf "$BRIM_RUNS/first"
}

part_start() {
    "$brim" info >/dev/null; rm -f "$BRIM_TUNE_CACHE" # info brings the libraries into the page cache
    first_step cold; first_step warm; first_step "warm again"
}

part_cpu() {
    local threads blas=()
    [ ! -x "$build/bench_cpu_ops" ] || blas=(--sgemm "$build/bench_cpu_ops")
    for threads in 2 16; do
        # shellcheck disable=SC2086 # a command and its words
        python3 tools/cpu_turns.py "$brim" $threads $((threads > 2 ? 6 : 8)) $((threads > 2 ? 2 : 4)) \
            "${blas[@]}" ${PEER_CPU:-}
    done
}

# Compiling takes PyTorch minutes and the GPU nothing; what it keeps on disk serves the timed runs.
warm_peers() { local r; for r in "$@"; do timeout 200 "${peer[@]}" "$r" 0 compile >/dev/null 2>&1; done; }

part_check() {
    local half=$(((${#recipes[@]} + 1) / 2)) pids=()
    warm_peers gpt2-124m qwen2.5-0.5b & pids+=($!) # gpu-suite's
    warm_peers "${recipes[@]:0:half}" & pids+=($!)
    warm_peers "${recipes[@]:half}" & pids+=($!)
    tools/sanitize_gpu.sh "$build" >"$work/sanitize" 2>&1 & pids+=($!)
    wait "${pids[@]}"; tee "$out/sanitize.txt" <"$work/sanitize"
}

part_bytes() { bash tests/gpu/torch_bytes.sh "$build"; }

part_recipes() {
    local r
    for r in "${recipes[@]}"; do
        "$brim" bench "recipes/$r.yaml" --json >"$work/bench" 2>"$work/log" || tail -n 3 "$work/log"
        head -n -1 "$work/bench"; tail -n 1 "$work/bench" >>"$out/bench.jsonl"
        "${peer[@]}" "$r" 2>/dev/null | tail -n 1 | tee -a "$out/bench.jsonl"
    done
}

part_suite() { tools/gpu_suite.sh "$build" "$out/suite.jsonl" | tee "$out/suite.txt"; }

part_ladder() {
    "$brim" bench recipes/gpt2-124m.yaml --ladder step_tokens=131072 --picture "$out/ladder.svg" |
        tee "$out/ladder.txt"
}

part_sample() {
    local ids i
    ids=$(seq -s, 7 100 1507)
    for i in {1..64}; do seq -s' ' "$i" 90 $((i + 1350)); done >"$work/prompts"
    rate() { # recipe, then options
        "$brim" sample "recipes/$1.yaml" "${@:2}" --untrained --rate --ids --temperature 0 2>&1 >/dev/null |
            grep tokens/s
    }
    for i in 1 2; do
        echo "llama-8b, 1 prompt: $(rate llama-8b --prompt-ids "$ids" --tokens 200)"
        echo "gpt2-124m, 1 prompt: $(rate gpt2-124m --prompt-ids "$ids" --tokens 256)"
        echo "gpt2-124m, 64 prompts: $(rate gpt2-124m --prompt-file "$work/prompts" --tokens 256)"
    done | tee "$out/sample.txt"
}

part_leaderboard() {
    local s=${BUDGET_S:-240} keys
    read -ra keys <<<"${LEADERBOARD:-optim.weight_decay=0.5}" # 30M tokens are read many times
    "$brim" train recipes/leaderboard.yaml --fresh run=lb "budget_s=$s" data.kind=tokens \
        "data.train=${SET:?}" step_tokens=65536 steps=100000 optim.warmup=100 eval.every=50 \
        eval.sequences=100000 checkpoint.every=0 checkpoint.best=false watch.report=false \
        watch.sample=false "${keys[@]}" >"$out/leaderboard.log" 2>&1 || tail -n 3 "$out/leaderboard.log"
    cp "$BRIM_RUNS/lb/metrics.jsonl" "$out/leaderboard.jsonl"
    tail -n 2 "$out/leaderboard.log"
    sed -n 's/.*"val_loss": \([0-9.]*\),.*/\1/p' "$out/leaderboard.jsonl" | sort -n |
        sed 's/^/brim, best validation loss: /;q'
}

part_leaderboard_peer() {
    local keys
    read -ra keys <<<"${PEER_KEYS:-}"
    python3 tools/peer_leaderboard.py "${SET:?}" "${BUDGET_S:-240}" step_tokens=65536 micro=128 lr=1.2e-3 \
        warmup=100 every=50 "${keys[@]}" >"$out/leaderboard_peer.log" 2>&1
    tail -n 1 "$out/leaderboard_peer.log"
}

for part in "$@"; do
    case $part in
        start | cpu | check | bytes | recipes | suite | ladder | sample | leaderboard | leaderboard_peer) ;;
        *) echo "gpu_record.sh: no part $part"; exit 2 ;;
    esac
    begin=$SECONDS; echo "== $part"; "part_$part"; echo "== $part: $((SECONDS - begin)) s"
done
cp "$BRIM_TUNE_CACHE" "$out/" 2>/dev/null
