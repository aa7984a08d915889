#!/usr/bin/env bash
# Images, clips and latents beside PyTorch on this machine's GPU, case by case: a ratio is of one run.
# Usage: peer_suite.sh BUILD_FOLDER OUT_FOLDER PART ...
#   warm     compiles the peers once, three at a time; what they keep on disk makes the other parts shorter.
#            Runs beside anything that is not timed (4 min). torch_ppo.py, too, if PEERS has it. WARM: a part
#            of the name of those that are wanted.
#   images   vit-b16, vit-l16, vit-1b, video-l16: rate, ratio, share of the card's limit, power (6 min)
#   latents  the 8B shape with and without a teacher, with short prompts, as published, as the guide starts;
#            the Qwen2.5-1.5B shape at 256 and 64 samples a step (8 min)
#   jpeg     vit-l16 and vit-b16 from 20,000 JPEG files, cut from the photographs in folder PHOTOS (3 min)
#   files    only makes these files
#   clips    video-l16 from the album of clips CLIPS (brim data clips ... --frames 32 --size 256; 1 min)
#   ladders  from the guides' starts of video (of CLIPS, if set) and latents to the whole (3 min)
# tools/fetch_pictures.sh photos PHOTOS (and clips CLIPS) fetches these on a machine with a network. Parts
# jpeg and clips also measure the loader alone: rate x headroom of a bench should be that, within 20 %.
# PEERS: folder of torch_vit.py and torch_latent.py, for images and latents; without it Brim runs alone.
# MORE: keys for every bench, to try the script on a CPU. Each bench and each peer has LIMIT_S (default 200).
# DATA_S: seconds of each bench of parts jpeg and clips (default 10).
# Lines of `brim bench --json` go to OUT_FOLDER/bench.jsonl, a peer's own words to OUT_FOLDER/peers.txt.
set -uo pipefail
here=$(cd "$(dirname "$0")/.." && pwd); build=$(realpath "$1"); out=$(realpath -m "$2"); shift 2
mkdir -p "$out"; cd "$here" || exit 1
work=${TMPDIR:-/tmp}/peer_suite; mkdir -p "$work/runs"
export BRIM_RUNS=$work/runs BRIM_TUNE_CACHE=${BRIM_TUNE_CACHE:-$work/tune.txt}
limit=${LIMIT_S:-200}; read -ra more <<<"${MORE:-}"

declare -A noise # samples/s of a recipe without data
# One bench and, if there is one, a peer's rate: a row of the table.
row() { # name, peer's samples/s or nothing, recipe, keys ...
    local name=$1 peer=$2 recipe=$3
    shift 3
    timeout "$limit" "$build/brim" bench "recipes/$recipe.yaml" --json "$@" "${more[@]}" >"$work/bench" \
        2>"$work/log" || { echo "$name: FAILED: $(tail -n 1 "$work/log")"; rm "$work/bench"; return; }
    tail -n 1 "$work/bench" >>"$out/bench.jsonl"
    [[ " $*" == *" data.train="* ]] ||
        noise[$recipe]=$(tail -n 1 "$work/bench" | sed -nE 's/.*"per_s": ([0-9.e+]+).*/\1/p')
    table_row "$name" "$peer"
}

# The last bench beside another peer's rate.
table_row() { # name, peer's samples/s or nothing
    [ -s "$work/bench" ] || return
    tail -n 1 "$work/bench" | python3 -c 'import json, sys
b, name, peer = json.load(sys.stdin), sys.argv[1], float(sys.argv[2] or 0)
show = lambda key, form, by=1: form % (by * b[key]) if b.get(key) is not None else "-"
print("%-34s %9.1f %9s %6s %7s %6s %6s %6s %6s %7s" % (name, b["per_s"], "%.1f" % peer if peer else "-",
    "%.3f" % (b["per_s"] / peer) if peer else "-", show("step_ms", "%.1f"), show("mfu", "%.1f", 100),
    show("limit_share", "%.3f"), show("power_w", "%.0f"), show("utilisation", "%.0f", 100),
    show("loader_headroom", "%.1f")), flush=True)' "$1" "$2"
}

# What the loader alone feeds, with the threads of the last bench, beside what that bench says of it; and that
# bench's rate beside noise.
loader_row() { # name, recipe, keys ...
    local name=$1 recipe=$2 threads rate key keys=()
    shift 2
    [ -s "$work/bench" ] || return
    for key in "$@" "${more[@]}"; do [[ $key != *=* ]] || keys+=("$key"); done
    threads=$(tail -n 1 "$work/bench" | sed -nE 's/.*"loader_threads": ([0-9]+).*/\1/p')
    rate=$("$build/brim" data show "recipes/$recipe.yaml" --measure 5 --threads "${threads:-1}" \
        "${keys[@]}" 2>"$work/log" | sed -nE 's/^([0-9]+) samples\/s with .*/\1/p')
    [ -n "$rate" ] || { echo "$name, loader alone: FAILED: $(tail -n 1 "$work/log")"; return; }
    tail -n 1 "$work/bench" | python3 -c 'import json, sys
b, name, alone, noise = json.load(sys.stdin), sys.argv[1], float(sys.argv[2]), float(sys.argv[3] or 0)
said = b["per_s"] * (b["loader_headroom"] or 0)
of = "; the run has %.3f of its rate on noise" % (b["per_s"] / noise) if noise else ""
print("%-34s %9.1f alone, %d threads; rate x headroom says %.1f: %.3f of it%s" % (name + ", loader", alone,
    b["loader_threads"], said, said / alone, of), flush=True)' "$name" "$rate" "${noise[$recipe]:-}" |
        tee -a "$out/loader.txt"
}

# Samples/s that a peer prints last; nothing without PEERS.
peer() { # program, arguments ...
    [ -n "${PEERS:-}" ] || return 0
    timeout "$limit" python3 "$PEERS/$1" "${@:2}" >"$work/peer" 2>"$work/peer.log" ||
        tail -n 1 "$work/peer.log" >>"$out/peers.txt"
    cat "$work/peer" >>"$out/peers.txt"
    sed -nE 's/.* ([0-9,.]+) samples\/s.*/\1/p' "$work/peer" | tr -d , | sort -n | tail -n 1
}

# A peer's first seconds, for its compiler's sake. Three chains, so that their memory fits side by side.
warm() { # program, arguments ...
    local begin=$SECONDS said
    [[ -f $PEERS/$1 && $1 = *${WARM:-}* ]] || return 0
    said=$(timeout 280 python3 "$PEERS/$1" "${@:2}" 2>&1 | tail -n 1)
    echo "$((SECONDS - begin)) s: $* -> ${said:0:100}"
}
part_warm() {
    local once=(--steps 1) pids=()
    {
        warm torch_vit.py --model vit-b16 --bs 256,512 "${once[@]}"
        warm torch_vit.py --model vit-l16 --bs 256 "${once[@]}"
        warm torch_ppo.py --envs 256 --rollout 128
    } & pids+=($!)
    {
        warm torch_vit.py --model vit-1b --bs 128 "${once[@]}"
        warm torch_vit.py --model vit-l16 --frames 32 --bs 16 "${once[@]}"
        warm torch_ppo.py --envs 4096 --rollout 16
        warm torch_ppo.py --envs 4096 --rollout 16 --mlp 64
    } & pids+=($!)
    {
        warm torch_latent.py --llm llama-8b --bs 64 "${once[@]}"
        warm torch_latent.py --llm llama-8b --bs 16 --as-published "${once[@]}"
        warm torch_latent.py --llm qwen2.5-1.5b --bs 256 "${once[@]}"
        warm torch_latent.py --llm qwen2.5-1.5b --bs 64 "${once[@]}"
    } & pids+=($!)
    wait "${pids[@]}"
}

part_images() {
    local of
    # The peer takes batches that it can hold; the better rate counts.
    of=$(peer torch_vit.py --model vit-b16 --bs 256,512); row "vit-b16" "$of" vit-b16 step_samples=1024
    of=$(peer torch_vit.py --model vit-l16 --bs 256); row "vit-l16" "$of" vit-l16 step_samples=512
    of=$(peer torch_vit.py --model vit-1b --bs 128); row "vit-1b" "$of" vit-1b step_samples=256
    of=$(peer torch_vit.py --model vit-l16 --frames 32 --bs 16)
    row "video-l16, 32 frames" "$of" video-l16 step_samples=32
}

part_latents() {
    local of k=(--no-limit latent.baselines=false memory_limit=80G)
    of=$(peer torch_latent.py --llm llama-8b --bs 64)
    row "8B, teacher" "$of" latent-llama-8b "${k[@]}"
    table_row "peer as published, batch 16" \
        "$(peer torch_latent.py --llm llama-8b --bs 16 --as-published)"
    table_row "peer as published, eager, 4 x 4" \
        "$(peer torch_latent.py --llm llama-8b --bs 4 --accum 4 --as-published --eager)"
    row "8B, teacher, 30 to 512 bytes" "$of" latent-llama-8b "${k[@]}" latent.least_bytes=30
    of=$(peer torch_latent.py --llm llama-8b --bs 64 --no-teacher)
    row "8B, no teacher" "$of" latent-llama-8b "${k[@]}" latent.teacher=none
    of=$(peer torch_latent.py --llm qwen2.5-1.5b --bs 256)
    row "Qwen2.5-1.5B, 256 samples" "$of" latent-qwen "${k[@]}" step_samples=256
    of=$(peer torch_latent.py --llm qwen2.5-1.5b --bs 64)
    row "Qwen2.5-1.5B, 64 samples" "$of" latent-qwen "${k[@]}"
}

# JPEG files of about 100 KB: crops of the photographs, each another one, in ten folders.
make_jpegs() { # folder of photographs, folder to write, files
    python3 - "$@" <<'END'
import multiprocessing, os, random, sys
from PIL import Image
photos, to, n = sys.argv[1], sys.argv[2], int(sys.argv[3])
names = sorted(os.path.join(d, f) for d, _, fs in os.walk(photos) for f in fs if f[0] != ".")

def write(k):
    dice = random.Random(k)
    image = Image.open(dice.choice(names)).convert("RGB")
    wide = min(dice.randint(480, 720), *image.size)
    x, y = dice.randint(0, image.width - wide), dice.randint(0, image.height - wide)
    image.crop((x, y, x + wide, y + wide)).save(f"{to}/{k % 10}/{k}.jpg", quality=92)

for c in range(10):
    os.makedirs(f"{to}/{c}", exist_ok=True)
with multiprocessing.Pool() as pool:
    pool.map(write, range(n), chunksize=64)
END
}

# Written once: a first call with part `files` may run beside other work.
part_files() {
    [ -d "$work/jpeg" ] && return
    rm -rf "$work/jpeg.part" # of a call that was ended
    make_jpegs "$PHOTOS" "$work/jpeg.part" "${FILES:-20000}" && mv "$work/jpeg.part" "$work/jpeg"
}

# Noise and files in turn and for equally long: a card at its power limit slows down in its first seconds, and
# headroom needs more batches than a bench of 3 s takes.
data_rows() { # name, recipe, samples of a step, data
    local k=(--no-limit "step_samples=$3" --seconds "${DATA_S:-10}")
    row "$2, noise" "" "$2" "${k[@]}"
    row "$1" "" "$2" "${k[@]}" "data.train=$4"
    loader_row "$1" "$2" "data.train=$4"
}

part_jpeg() {
    local set=$work/jpeg
    part_files || return
    echo "$(find "$set" -name '*.jpg' | wc -l) files, $(du -sm "$set" | cut -f1) MB"
    data_rows "vit-l16, JPEG files" vit-l16 512 "$set"
    data_rows "vit-b16, JPEG files" vit-b16 1024 "$set"
}

part_clips() { data_rows "video-l16, clips" video-l16 32 "$(realpath "$CLIPS")"; }

part_ladders() {
    # The guide's start reads its clips within the step: with CLIPS that is on the ladder, too.
    timeout 300 "$build/brim" bench recipes/video-before.yaml --ladder --from recipe step_samples=32 \
        ${CLIPS:+"data.train=$(realpath "$CLIPS")"} --picture "$out/video.svg" "${more[@]}" 2>&1 |
        tee "$out/video-ladder.txt"
    tools/latent_ladder.sh "$build" recipes/latent-qwen.yaml "${more[@]}" 2>&1 |
        tee "$out/latent-ladder.txt"
}

for part in "$@"; do
    case $part in
        images | latents | ladders) ;;
        warm) [ -d "${PEERS:-}" ] || { echo "warm: set PEERS to PyTorch's programs"; exit 2; } ;;
        jpeg | files)
            [ -d "${PHOTOS:-}" ] || { echo "$part: set PHOTOS to a folder of photographs"; exit 2; } ;;
        clips) [ -e "${CLIPS:-}" ] || { echo "clips: set CLIPS to an album of clips"; exit 2; } ;;
        *) echo "peer_suite.sh: no part $part"; exit 2 ;;
    esac
    begin=$SECONDS; echo "== $part"
    printf '%-34s %9s %9s %6s %7s %6s %6s %6s %6s %7s\n' case samples/s PyTorch ratio ms 'MFU %' limit W '%' \
        loader
    "part_$part"; echo "== $part: $((SECONDS - begin)) s"
done
cp "$BRIM_TUNE_CACHE" "$out/tune.txt" 2>/dev/null
exit 0
