# What the tests of a run's durability share. Sourced with the build folder in $1; leaves the caller in a
# folder of its own with tiny.yaml, text.txt and runs/ref, a run without any disturbance.
build=$(cd "${1:-build}" && pwd)
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
brim=$build/brim
verify=$build/tests/verify_ckpt
[ -x "$brim" ] && [ -x "$verify" ] || { echo "not ok brim and verify_ckpt are built"; exit 1; }
dir=$(mktemp -d)
cd "$dir" || exit 1
export BRIM_RUNS=$dir/runs
unset BRIM_FAULT
export ASAN_OPTIONS=detect_leaks=1:exitcode=77 # not 1, which a run that fails may end with
export UBSAN_OPTIONS=print_stacktrace=1:exitcode=77
failed=0 out=""; : >seen
steps=${STEPS:-120}

# Ends what is still running and removes the folder; for a trap on EXIT.
cleanup() {
    local p
    for p in $(jobs -p); do kill -9 "$p" 2>/dev/null; done
    wait 2>/dev/null
    umount -l "$dir/disk" "$dir/mount" 2>/dev/null
    cd / && rm -rf "$dir"
}
trap cleanup EXIT

verdict() { # name, exit code of the condition, what was seen ...
    if [ "$2" -eq 0 ]; then echo "ok $1"; else echo "not ok $1: ${*:3}"; failed=1; fi
}

head -c 100000 "$here/recipes/data/tinyshakespeare.txt" >text.txt
cat >tiny.yaml <<END
run: ref
steps: $steps
step_tokens: 512
device: cpu
threads: 1
model: {layers: 2, width: 32, heads: 2, vocab: 256, context: 32}
optim: {lr: 3e-3, warmup: 5}
data: {kind: text, train: text.txt}
eval: {every: 40, sequences: 32}
checkpoint: {every: 5, keep: 2, best: false}
END

# name, then overrides: trains runs/NAME to its end; the log goes to NAME.log. A minute is a hang.
train() {
    local name=$1
    shift
    timeout -k 5 60 "$brim" train tiny.yaml "run=$name" "$@" >"$name.log" 2>&1 </dev/null
}

# The same in the background: $pid is the program's own.
start() {
    local name=$1
    shift
    : >"$name.log"
    # hup=ignore: as nohup starts a program. Else its default, which a test under nohup would not have.
    env "--${hup:-default}-signal=HUP" "$brim" train tiny.yaml "run=$name" "$@" >"$name.log" 2>&1 </dev/null &
    pid=$!
}

# Waits for the run in the background and returns its exit code; a minute without an end is a hang, and 137.
reap() {
    local i
    for ((i = 0; i < 1200; i++)); do
        kill -0 "$pid" 2>/dev/null || break
        sleep 0.05
    done
    kill -9 "$pid"
    wait "$pid"
} 2>/dev/null # the shell's word on jobs that were killed

last_step() {
    local last
    last=$(sed -nE '$s/^\{"step": ([0-9]+),.*/\1/p' "runs/$1/metrics.jsonl" 2>/dev/null)
    echo "${last:-0}"
}

# name, step: waits until that step is in the metrics, or the run is over.
wait_step() {
    local i
    for ((i = 0; i < 3000; i++)); do
        [ "$(last_step "$1")" -ge "$2" ] && return 0
        kill -0 "$pid" 2>/dev/null || return 1
        sleep 0.01
    done
    return 1
}

# name, pattern: waits until the log has it, or the run is over.
wait_log() {
    local i
    for ((i = 0; i < 3000; i++)); do
        grep -qE -- "$2" "$1.log" && return 0
        kill -0 "$pid" 2>/dev/null || break
        sleep 0.01
    done
    grep -qE -- "$2" "$1.log"
}

# What the metrics say about training, without times.
bits() {
    local times='per_s|mfu|time_s|data_wait_s|watch_first|watch_last|[a-z_]*bytes[a-z_]*'
    times+='|data_fill_s|eval_s|save_s|cpu|own_cpu|energy_j|power_w|j_per_unit|kwh'
    sed -E "s/, \"($times)\": [^,}]*//g" "runs/$1/metrics.jsonl"
}

last_ckpt() { ls -d "runs/$1"/checkpoints/step-* 2>/dev/null | tail -n 1; }

# All checkpoints of a run verify and nothing else lies there.
all_whole() {
    local other
    other=$(find "runs/$1" -name '*.tmp-*' -o -name '.tmp-*' -o -name lock)
    [ -z "$other" ] || { echo "left over: $other"; return 1; }
    "$verify" "runs/$1"/checkpoints/step-* 2>&1
}

# name, other: both ended with the same bits in weights, moments and metrics.
same() {
    local a b f
    a=$(last_ckpt "$1"); b=$(last_ckpt "$2")
    [ -n "$a" ] && [ "$(basename "$a")" = "$(basename "$b")" ] ||
        { echo "last checkpoints: $a, $b"; return 1; }
    for f in model optim; do cmp "$a/$f.safetensors" "$b/$f.safetensors" || return 1; done
    diff <(bits "$1") <(bits "$2") | head -n 6
    diff -q <(bits "$1") <(bits "$2") >/dev/null
}

# $1, a number from the metrics' last line that has it: loss or val_loss.
last_of() { sed -nE "s/.*\"$2\": ([0-9.e+-]+)[,}].*/\1/p" "runs/$1/metrics.jsonl" | tail -n 1; }

within() {
    awk -v a="$1" -v b="$2" -v share="$3" \
        'BEGIN { d = a - b; if (d < 0) d = -d; exit !(a != "" && b > 0 && d <= share * b) }'
}

train ref; rc=$?
[ $rc -eq 0 ] || { echo "not ok a run that nobody disturbs: exit code $rc: $(tail -n 3 ref.log)"; exit 1; }
