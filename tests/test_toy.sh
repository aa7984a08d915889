#!/usr/bin/env bash
# The toy tenant's program (docs/tenant.md): plans, trains, is killed and goes on bit for bit, evaluates,
# measures, refuses.
# TOY_DEVICE=cuda runs the same on a GPU.
# shellcheck source=tests/shell_lib.sh
. "$(dirname "$0")/shell_lib.sh"
# shellcheck source=tests/ranks_lib.sh
. "$here/tests/ranks_lib.sh"
unset RANK WORLD_SIZE LOCAL_RANK BRIM_FAULT
toy=$build/tests/toy/toy
[ -x "$toy" ] || { echo "not ok the toy tenant is built"; exit 1; }
export BRIM_RUNS=$dir/runs
device=${TOY_DEVICE:-cpu}
cat >toy.yaml <<END
task: toy
steps: 1500
step_samples: 16
device: $device
deterministic: true
threads: 1
optim: {lr: 2e-3, warmup: 5}
eval: {every: 300, samples: 40}
checkpoint: {every: 20, keep: 3}
toy: {teacher: teacher.safetensors}
END

train() { # name, overrides
    local name=$1
    shift
    timeout -k 5 60 "$toy" train toy.yaml "run=$name" "$@" >"$name.log" 2>&1 </dev/null
}

steps_done() {
    sed -nE '$s/^\{"step": ([0-9]+),.*/\1/p' "runs/$1/metrics.jsonl" 2>/dev/null | grep . || echo 0
}

bits() { sed -E 's/, "(per_s|mfu|time_s|data_wait_s)": [^,}]*//g' "runs/$1/metrics.jsonl"; }

# name, other, step: the same bits in weights, moments, device state, own state, metrics, and the same best
# checkpoint.
same() {
    local f a="runs/$1/checkpoints" b="runs/$2/checkpoints" s
    s=$(printf 'step-%08d' "$3")
    for f in model optim; do cmp "$a/$s/$f.safetensors" "$b/$s/$f.safetensors" || return 1; done
    [ "$(grep -o '"own": "[0-9a-f]*"' "$a/$s/state.json")" = \
        "$(grep -o '"own": "[0-9a-f]*"' "$b/$s/state.json")" ] || return 1
    [ "$(readlink "$a/best")" = "$(readlink "$b/best")" ] || { echo "best differs"; return 1; }
    diff <(bits "$1") <(bits "$2") | head -n 4
    diff -q <(bits "$1") <(bits "$2") >/dev/null
}

# name, pattern, command...: exit code 2 and one line like that.
refused() {
    local name=$1 pattern=$2 out rc
    shift 2
    out=$("$@" 2>&1 </dev/null); rc=$?
    [ $rc -eq 2 ] && [ "$(echo "$out" | grep -vc '^\[')" -eq 1 ] &&
        echo "$out" | grep -v '^\[' | grep -qE -- "$pattern"
    verdict "$name" $? "exit code $rc: $out"
}

# ---- plans ----

"$toy" teacher toy.yaml; verdict "a teacher is written" $? "$(ls)"
out=$("$toy" plan toy.yaml 2>&1) && grep -q 'push ' <<<"$out" && grep -q -- '->' <<<"$out"
verdict "plan" $? "$out"
mv teacher.safetensors away
out=$("$toy" plan toy.yaml --gpu h200 2>&1) && grep -q 'bf16' <<<"$out" && grep -q -- '->' <<<"$out"
verdict "plan for a card that is not here, without the teacher's file" $? "$out"
mv away teacher.safetensors

# ---- trains ----

train ref; rc=$?
[ $rc -eq 0 ] && [ "$(steps_done ref)" -eq 1500 ]; verdict "trains" $? "exit code $rc: $(tail -n 2 ref.log)"
grep -q '"val_agreement"' runs/ref/metrics.jsonl && ! grep -q '"val_loss"' runs/ref/metrics.jsonl &&
    grep -q '"distance": .*"repel": -' runs/ref/metrics.jsonl
verdict "both losses and both measures are in the metrics" $? "$(tail -n 2 runs/ref/metrics.jsonl)"
best=$(sed -nE 's/^\{"step": ([0-9]+), .*"val_agreement": ([^,}]*).*/\2 \1/p' runs/ref/metrics.jsonl |
    sort -g | tail -n 1 | cut -d' ' -f2)
[ "$(readlink runs/ref/checkpoints/best)" = "$(printf 'step-%08d' "$best")" ] &&
    [ -d "runs/ref/checkpoints/$(printf 'step-%08d' "$best")" ]
verdict "the checkpoint with the largest agreement is kept as best" $? "$best: $(ls -l runs/ref/checkpoints)"
! head -c 4000 runs/ref/checkpoints/step-00001500/model.safetensors | grep -aq teacher &&
    grep -q '"frozen": {"teacher.": {"path": "/.*teacher.safetensors", "xxh64"' \
        runs/ref/checkpoints/step-00001500/state.json
verdict "a checkpoint names the frozen weights' file instead of holding them" $? ""
size=$(stat -c %s teacher.safetensors)
[ "$size" -gt 1000 ] &&
    head -c 4000 runs/ref/checkpoints/step-00001500/optim.safetensors | grep -aq 'state.epoch'
verdict "and holds the state of the task" $? ""

# ---- is killed ----

for at in 30 333 1111; do
    rm -rf runs/killed
    out=""
    "$toy" train toy.yaml run=killed >killed.log 2>&1 </dev/null & pid=$!
    for ((i = 0; i < 3000; i++)); do
        [ "$(steps_done killed)" -ge $at ] && compgen -G 'runs/killed/checkpoints/step-*' >/dev/null && break
        kill -0 $pid 2>/dev/null || break
        sleep 0.005
    done
    { kill -9 $pid; wait $pid; } 2>/dev/null
    before=$(steps_done killed)
    train killed; rc=$?
    [ $rc -eq 0 ] && grep -q 'resuming after step' killed.log && out=$(same ref killed 1500)
    verdict "killed after step $at, goes on bit for bit" $? \
        "exit code $rc, killed at $before: $out $(tail -n 2 killed.log)"
done

cp teacher.safetensors good
"$toy" teacher toy.yaml seed=9
refused "a run does not go on with another teacher" \
    "frozen part teacher\.\* is not the one it was trained with" \
    "$toy" train toy.yaml run=ref steps=1510
cp good teacher.safetensors
train ref steps=1510 && grep -q 'resuming after step 1500' ref.log
verdict "but with its own, and with more steps" $? "$(tail -n 2 ref.log)"

# ---- evaluates ----

mkdir -p elsewhere
out=$(cd elsewhere && "$toy" eval "$dir/runs/killed" --step 1500 2>&1)
# Another micro-batch may be chosen, whose sums have another order; a GPU computes in bf16.
awk -v a="$(sed -nE 's/^step 1500: distance ([0-9.]+), .*/\1/p' <<<"$out")" \
    -v b="$(last killed val_distance)" -v share=$([ "$device" = cpu ] && echo 1e-4 || echo 1e-2) \
    'BEGIN { d = a - b; if (d < 0) d = -d; exit !(a > 0 && d <= share * b) }'
verdict "evaluates as in training, from any folder" $? "$out, not $(last killed val_distance)"
out=$("$toy" eval runs/killed --step best 2>&1) && grep -q "^step $best: " <<<"$out"
verdict "evaluates the best" $? "$out"

# ---- stops early ----

train target eval.every=10 eval.target=0.01; rc=$?
[ $rc -eq 0 ] && grep -q 'target reached: validation agreement 0\.0[1-9][0-9]* is at or above' target.log
verdict "a measure that grows reaches its target from below" $? "$(tail -n 2 target.log)"

# ---- skips ----

# Each bad step has seven bad updates, or fewer after a halt. Steps are what counts.
BRIM_FAULT=nan:31-32 train two_bad steps=60 max_skips=3; rc=$?
[ $rc -eq 0 ] && ! grep -q 'rolled back' two_bad.log &&
    [ "$(grep -c '"skipped": "not finite"' runs/two_bad/metrics.jsonl)" -eq 2 ]
verdict "two bad steps are skipped" $? "exit code $rc: $(grep -v train two_bad.log | tail -n 3)"
BRIM_FAULT=nan:31-33 train three_bad steps=60 max_skips=3; rc=$?
[ $rc -eq 0 ] &&
    grep -q 'rolled back to step 20; the 48 samples of the skipped steps are passed over' three_bad.log
verdict "three bad steps lead back, past their samples" $? \
    "exit code $rc: $(grep -v train three_bad.log | tail -n 3)"

# ---- two ranks ----

short=(eval.every=10 micro_batch=4 optim.schedule=constant optim.warmup=0)
# Two ranks share one card only when they look like two machines to NCCL (tests/gpu/test_two_ranks.c).
export NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 NCCL_P2P_DISABLE=1
[ "$device" = cpu ] || short+=(device=cuda:0 precision=fp32 deterministic=true)
toy_rank() { NCCL_HOSTID=toy-$RANK timeout -s KILL 30 "$toy" train toy.yaml "${short[@]}" "$@"; }
train_two() { two_ranks "$1" toy_rank "run=$1" "${@:2}"; } # name, overrides

train one steps=20 "${short[@]}"
train_two two steps=20
[ $rc0 -eq 0 ] && [ $rc1 -eq 0 ] && awk -v a="$(last two val_distance)" -v b="$(last one val_distance)" \
    'BEGIN { d = a - b; exit !(a > 0 && d * d < 1e-6 * b * b) }'
verdict "two ranks train as one does" $? \
    "exit codes $rc0, $rc1: $(last two val_distance), $(last one val_distance) $(tail -n 2 two.0.log)"
train_two parts steps=10
train_two parts steps=20
[ $rc0 -eq 0 ] && [ $rc1 -eq 0 ] && grep -q 'resuming after step 10' parts.0.log &&
    out=$(same two parts 20)
verdict "and go on bit for bit" $? "exit codes $rc0, $rc1: $out $(tail -n 2 parts.0.log)"

# ---- is measured ----

out=$("$toy" bench toy.yaml --json --ops 2>&1); rc=$?
[ $rc -eq 0 ] && tail -n 1 <<<"$out" | grep -q '"unit": "pictures", "step_pictures": 16' &&
    grep -qE '^mean_rows_fwd +mean of patches' <<<"$out" && grep -qE '^halt ' <<<"$out"
verdict "bench --json --ops" $? "exit code $rc: $out"

if [ "$device" = cpu ]; then # minutes on a GPU
    out=$("$toy" bench toy.yaml --ladder --json 2>&1); rc=$?
    [ $rc -eq 0 ] && [ "$(grep -c '"unit": "pictures", "per_s": [0-9]' <<<"$out")" -ge 4 ]
    verdict "bench --ladder" $? "exit code $rc: $out"
fi

# ---- refuses ----

refused "a width that does not do" '^command line: toy.width: 12 is no multiple of 8: 16 would do$' \
    "$toy" train toy.yaml toy.width=12
refused "a key that is mistyped" '^command line: toy.widht: unknown key \(did you mean toy.width\?\)$' \
    "$toy" plan toy.yaml toy.widht=8
refused "a language model's key" '^command line: model.vocab: task toy has no such key$' \
    "$toy" plan toy.yaml model.vocab=100
refused "no teacher" '^command line: toy.teacher: is missing: name' "$toy" plan toy.yaml toy.teacher=
refused "a teacher that is not there" '^command line: toy.teacher: gone: no such file$' \
    "$toy" train toy.yaml toy.teacher=gone run=none
refused "a teacher of another width" \
    'toy.yaml:[0-9]+: toy.teacher: .*tensor up.weight has 768 numbers, toy.width and toy.out need 1152$' \
    "$toy" train toy.yaml toy.width=24 run=none
[ ! -e runs/none ]; verdict "and leaves no run behind" $? "$(ls runs/none 2>/dev/null)"
"$toy" teacher toy.yaml toy.teacher=narrow.safetensors toy.width=8
refused "a run of another width" \
    'is of another model: tensor up.weight is 16 x 48 there, 8 x 48 in the recipe' \
    "$toy" train toy.yaml run=ref steps=1520 toy.width=8 toy.teacher=narrow.safetensors
printf 'task: lm\ndata: {kind: random}\n' >lm.yaml
refused "a task that is not linked" '^lm.yaml:1: task: is lm; this program has only toy$' "$toy" plan lm.yaml
refused "a task that nobody knows" "^command line: task: 'tyo' is none of lm,.* toy \(did you mean toy\?\)$" \
    "$toy" plan toy.yaml task=tyo
# Whoever looks on knows nothing of the toy but what the task says.
timeout -k 5 60 "$toy" train toy.yaml run=seen steps=120 eval.every=60 trace=2 watch.samples=1 \
    watch.tensorboard=true --watch >seen.log 2>&1; rc=$?
[ $rc -eq 0 ] && grep -q '"unit": "picture", "units": "pictures"' runs/seen/watch.json &&
    grep -q '"name": "val_agreement", "larger": true' runs/seen/watch.json &&
    grep -q '"best": 1' runs/seen/watch.json
verdict "units and measures are the task's own" $? \
    "exit code $rc: $(cat runs/seen/watch.json) $(tail -n 2 seen.log)"
[ "$(ls runs/seen/samples | wc -l)" -eq 3 ] && grep -q '"text": "32 rows, .*"picture": "samples/' \
    runs/seen/samples.jsonl && grep -q 'data:image/jpeg;base64,' runs/seen/report.html
verdict "its samples have text and picture" $? "$(ls runs/seen runs/seen/samples) $(tail -n 2 seen.log)"
timeout 60 "$toy" doctor seen >out 2>err; rc=$?
[ $rc -eq 0 ] && grep -q 'pictures/s' out && grep -q 'together  *100.0 %' out && grep -q '^verdict: ' out
verdict "the doctor judges it" $? "exit code $rc: $(cat out err)"
exit $failed
