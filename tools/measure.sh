#!/usr/bin/env bash
# Measures what the docs claim of a GPU, in calls of less than ten minutes, and says of each claim whether it
# holds (tools/verdict.py). Figures of one call are of one machine in one state.
# Usage: measure.sh FILES OUT CALL
#   FILES     folder of programs.tar.xz (gpu_pack.sh with PEERS), text.tar.xz, pictures.tar.xz (gpu_data.sh)
#   OUT       folder for what is printed: a file a part, and the tune cache, which later calls use
#   policies  PPO beside PyTorch, two ranks, MuJoCo, the doctor
#   curves    losses in fp8 and bf16, Muon; humanoid trains for eight minutes on the CPU beside them
#   rates     fp8 beside bf16, the limit op by op, a frozen model in fp8; what watching costs
#   images    ViTs and clips beside PyTorch; tests of ops while PyTorch compiles
#   latents   latents beside PyTorch; tests of whole models while PyTorch compiles
#   files     JPEG files and clips from disk, both ladders
#   suite     every test, op tables and ratios of gpu_suite.sh
#   text      4 minutes of the leaderboard's model. peer: the same by PyTorch
#   turns     llama-1b by turns with an older program (old.tar.xz of gpu_pack.sh); then the longest racecheck
# No part begins after LIMIT_S seconds (default 570); a part that is still at work then is ended.
set -uo pipefail
files=$(realpath "${1:?FILES}"); out=$(realpath -m "${2:?OUT}"); call=${3:?CALL}
here=$(cd "$(dirname "$0")/.." && pwd); cd "$here" || exit 1
work=${TMPDIR:-/tmp}/measure; build=$work/programs; mkdir -p "$out" "$work"
export PEERS=$build/peers PHOTOS=$work/photos CLIPS=$work/clips SET=$work/text/set
export TRAIN=$work/text/gpt2-set/train VAL=$work/text/gpt2-set/val
export BRIM_TUNE_CACHE=$work/tune.txt
[ -s "$BRIM_TUNE_CACHE" ] || cp "$out/tune.txt" "$BRIM_TUNE_CACHE" 2>/dev/null

unpack() { # file, folder
    [ -e "$2/.unpacked" ] && return
    mkdir -p "$2" && tar xJf "$files/$1.tar.xz" -C "$2" && touch "$2/.unpacked" || exit 1
}

# A command whose words go to OUT/NAME.txt; its last lines stand here, too.
part() { # name, command ...
    local name=$1 begin=$SECONDS left=$((${LIMIT_S:-570} - SECONDS)) rc
    shift
    [ "$left" -gt 5 ] || { echo "== $name: no time is left"; return; }
    timeout -k 5 "$left" "$@" >"$out/$name.txt" 2>&1 </dev/null; rc=$?
    tail -n "${LINES_EACH:-12}" "$out/$name.txt" | cut -c1-160
    echo "== $name: $((SECONDS - begin)) s, exit code $rc"
}

tokens() { # GPT-2's and the leaderboard's, of the same documents
    unpack text "$work/text"
    local brim=$build/brim
    (
        cd "$work/text" || exit 1
        [ -e gpt2-set ] || "$brim" data tokens ./*.jsonl --tokenizer gpt2 --val 0.01 --out gpt2-set
        [ -e set ] || "$brim" data tokens ./*.jsonl --tokenizer tok --val 0.01 --out set
    ) >"$out/tokens.txt" 2>&1 || { tail -n 3 "$out/tokens.txt"; exit 1; }
}

humanoid() { # untrained, then trained for eight minutes
    export BRIM_RUNS=$work/humanoid
    local keys=(device=cpu threads=12 ppo.threads=12 watch.sample=false)
    "$build/brim" train humanoid "${keys[@]}" run=untrained steps=1 optim.warmup=0
    "$build/brim" eval untrained
    "$build/brim" train humanoid "${keys[@]}" run=trained "budget_s=${HUMANOID_S:-480}"
    "$build/brim" eval trained
}

call_policies() {
    "$build/install_mujoco.sh"
    part ppo tools/ppo_suite.sh "$build" "$PEERS/torch_ppo.py"
    part ppo-ranks bash tests/gpu/two_ranks_ppo.sh "$build"
    part mujoco "$build/bench_env" /usr/share/mujoco/model/humanoid/humanoid.xml "$(nproc)"
    part doctor bash tests/gpu/doctor_suite.sh "$build/brim"
}

call_curves() {
    "$build/install_mujoco.sh"
    humanoid >"$out/humanoid.txt" 2>&1 </dev/null & local pid=$!
    tokens
    part precision-small tools/precision_suite.sh "$build" "$out/small" small
    part precision-loss tools/precision_suite.sh "$build" "$out/loss" loss
    part precision-muon tools/precision_suite.sh "$build" "$out/muon" muon
    wait $pid
    tail -n 4 "$out/humanoid.txt"
}

call_rates() {
    part precision-rates tools/precision_suite.sh "$build" "$out/rates" rates
    part precision-frozen tools/precision_suite.sh "$build" "$out/frozen" frozen
    part precision-limit tools/precision_suite.sh "$build" "$out/limit" limit
    part watch env TRACE_PAIRS=2 bash tests/gpu/watch_suite.sh "$build/brim"
}

call_images() {
    WARM=vit part warm-images tools/peer_suite.sh "$build" "$out" warm & local pid=$!
    part ops tools/test_gpu.sh "$build"
    wait $pid
    part images tools/peer_suite.sh "$build" "$out/images" images
}

call_latents() {
    WARM=latent part warm-latents tools/peer_suite.sh "$build" "$out" warm & local pid=$!
    part latent-test bash tests/gpu/test_gpu_latent.sh "$build"
    part latent-ranks bash tests/gpu/two_ranks.sh "$build"
    wait $pid
    part latents tools/peer_suite.sh "$build" "$out/latents" latents
}

call_files() {
    unpack pictures "$work"
    part files tools/peer_suite.sh "$build" "$out/files" jpeg clips
    part ladders tools/peer_suite.sh "$build" "$out/ladders" ladders
}

call_suite() { part suite tools/gpu_suite.sh "$build" "$out/suite.jsonl"; }
call_turns() {
    unpack old "$work/old"
    part turns tools/gpu_turns.sh "$work/old" "$build" "${PAIRS:-8}" llama-1b=32768
    LIMIT_S=590 part racecheck tools/sanitize_gpu.sh "$build" cross_attn_bwd
}
call_text() { tokens; part leaderboard tools/gpu_record.sh "$build" "$out" leaderboard; }
call_peer() { tokens; part leaderboard-peer tools/gpu_record.sh "$build" "$out" leaderboard_peer; }

case $call in
policies | curves | rates | images | latents | files | suite | text | peer | turns) ;;
*) echo "measure.sh: no call $call"; exit 2 ;;
esac
unpack programs "$build"
nvidia-smi --query-gpu=name,driver_version,power.limit --format=csv,noheader
"call_$call"
cp "$BRIM_TUNE_CACHE" "$out/tune.txt" 2>/dev/null
echo "$call: $SECONDS s"
python3 tools/verdict.py "$out"
