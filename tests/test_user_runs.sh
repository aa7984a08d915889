#!/usr/bin/env bash
# What a user does to runs, and what the program says then: a run that diverges, other data, a full disk, a
# wrong step.
[ -w /dev/shm ] && export TMPDIR=/dev/shm # not a disk that others keep busy
# shellcheck source=tests/shell_lib.sh
. "$(dirname "$0")/shell_lib.sh"
export BRIM_RUNS=$dir/runs
unset BRIM_FAULT

tiny_recipe 40000 12 8
cat >>tiny.yaml <<END
optim: {lr: 3e-3, warmup: 1}
checkpoint: {every: 5, keep: 2}
END

# ---- numbers that are not finite ---------------------------------------------------------------------------

wild=(optim.lr=100 optim.weight_decay=10 spike_factor=0 max_skips=1000 optim.schedule=constant)
brim train tiny.yaml run=wild "${wild[@]}"
[ $rc -eq 1 ] && says \
    '^brim: training has diverged: the validation of step 12 is not finite; the checkpoint of step 5 stays' &&
    [ "$(ls runs/wild/checkpoints | xargs)" = "step-00000005" ] && ! says 'loss -?nan$|-> -?nan'
verdict "a run that ends in numbers that are not finite fails, and its last good checkpoint stays" $? \
    "$(seen) $(ls runs/wild/checkpoints | xargs)"
brim train tiny.yaml run=blind "${wild[@]}" data.val_fraction=0
[ $rc -eq 1 ] &&
    says '^brim: training has diverged: the loss of step 12 is not finite; the checkpoint of step 5 stays'
verdict "also without validation" $? "$(seen)"
brim train tiny.yaml run=huge "${wild[@]}" data.val_fraction=0 steps=6
[ $rc -eq 0 ]; brim eval huge data.val=text.txt
[ $rc -eq 1 ] && says '^brim: huge: the loss of step 6 is not finite: training had diverged' && ! says nan
verdict "an evaluation that is not finite is an error" $? "$(seen)"
brim sample huge --tokens 5
[ $rc -eq 1 ] && says "^brim: the model's output is not finite"
verdict "and so is a sample" $? "$(seen)"

brim train tiny.yaml run=lost "${wild[@]:0:3}" max_skips=9 steps=60 checkpoint.every=0 data.val_fraction=0
[ $rc -eq 1 ] && ! says '-nan' && says ': not finite .*; 1 update skipped so far$' && says \
    "^brim: 9 steps in a row skipped and there is no checkpoint to go back to .what may help: a lower optim"
verdict "a run that diverges before its first checkpoint says what may help" $? "$(seen)"
brim train tiny.yaml run=lost steps=6
[ $rc -eq 0 ] && says 'warning: .*runs/lost had come to step [0-9]+ without a checkpoint: beginning anew'
verdict "and the next start that it begins anew" $? "$(seen)"
brim train tiny.yaml run=lost steps=9
[ $rc -eq 0 ] && ! says 'beginning anew' && says 'resuming after step 6: steps 6 -> 9$' &&
    says 'the schedule ends at step 9 now, not 6: optim.lr is 0.000[0-9]+ in step 6, 0.000[0-9]+ in step 7$'
verdict "more steps say what becomes of the learning rate" $? "$(seen)"
brim train lost steps=10 optim.schedule=constant
[ $rc -eq 0 ] && ! says 'the schedule ends'; verdict "which a constant one keeps" $? "$(seen)"
brim train lost steps=14 optim.schedule=cosine optim.lr=1e-5 optim.min_lr=0
[ $rc -eq 0 ] && says 'the schedule ends at step 14 now, not 10: optim.lr is [0-9.e-]+ in step 11$'
verdict "what it was is not said of another schedule" $? "$(seen)"
brim train lost; ! says 'to train on'; verdict "nothing to do says nothing about data" $? "$(seen)"

# ---- how much data -----------------------------------------------------------------------------------------

# what is said, then overrides
while IFS=: read -r line more; do
    brim train tiny.yaml run=data --fresh $more
    [ $rc -eq 0 ] && says "\\] $line\$" && ! says 'sees each|too little'
    verdict "a run says: $line" $? "$(seen)"
done <<END
36.0k tokens to train on, 4.00k for validation, 128 of them taken; 12 steps. 0.043 epochs:
36.0k tokens to train on, 4.00k for validation; 12 steps. 0.043 epochs:eval.sequences=999
40.0k tokens to train on, no validation; 313 steps. 1.00 epochs:data.val_fraction=0 steps=313
END
brim train tiny.yaml run=data --fresh data.kind=random steps=1
[ $rc -eq 0 ] && ! says 'to train on'; verdict "but nothing of noise" $? "$(seen)"
head -c 150 text.txt >few.txt
brim train tiny.yaml run=data --fresh data.train=few.txt steps=1 step_tokens=512
[ $rc -eq 0 ] && says 'few.txt: 7 samples, and a step takes 32: it sees each 4.6 times' &&
    says ' .once with step_tokens=112.$' &&
    says 'warning: 15 tokens for validation: too little to tell a good model from a bad one'
verdict "a step of several epochs and little validation are warnings" $? "$(seen)"
brim train tiny.yaml run=warm steps=12 optim.warmup=12
[ $rc -eq 0 ] && says 'warning: optim.warmup: all 12 steps are warm-up'
verdict "a run that only warms up is told so" $? "$(seen)"
sed 's/warmup: 1/warmup: 12/' tiny.yaml >warm.yaml; brim train warm.yaml run=warm2 steps=12
[ $rc -eq 0 ] && says 'optim.warmup: cut from 12 to 1, a tenth of the 12 steps'
verdict "the warm-up of a recipe is cut where steps are no more" $? "$(seen)"

# ---- other data --------------------------------------------------------------------------------------------

tr a-z b-za <text.txt >other.txt
head -c 30000 text.txt >short.txt
brim train tiny.yaml run=mine data.train=other.txt model.layers=2 steps=2
brim train tiny.yaml run=mine steps=3
[ $rc -eq 0 ] && ! says warning && says "data.train=$dir/other.txt, as in the run so far" &&
    says 'model.layers=2, as' && says '^.*1 step .3 in all. done' &&
    grep -q "train: \"$dir/other.txt\"" runs/mine/recipe.yaml
verdict "data and model of the first command line need not be typed again" $? "$(seen)"
brim train tiny.yaml run=mine steps=4
[ $rc -eq 0 ] && says "data.train=$dir/other.txt, as in the run so far"
verdict "nor for the third start" $? "$(seen)"
for other in data.train=text.txt data.train=short.txt data.val_fraction=0.2 data.val=short.txt; do
    cp -r runs/mine kept; brim train tiny.yaml run=mine steps=5 $other
    [ $rc -eq 2 ] && says \
        "^command line: ${other%%=*}: is .*, but .*runs/mine was trained with .* .--change-data goes on" &&
        diff -r kept runs/mine >/dev/null
    verdict "$other instead is refused, and nothing changes" $? "$(seen)"
    rm -r kept
done
cp -r runs/mine kept; brim train "$here/recipes/cartpole.yaml" run=mine steps=1
[ $rc -eq 2 ] && [ "$(wc -l <said)" -eq 1 ] && diff -r kept runs/mine >/dev/null && says \
    '^command line: run: .*runs/mine is a run of task lm, this recipe is of task ppo .run=NAME makes another'
verdict "a recipe of another task is refused, and nothing changes" $? "$(seen)"; rm -r kept
mv other.txt gone; brim train tiny.yaml run=mine steps=5; mv gone other.txt
[ $rc -eq 2 ] && [ "$(wc -l <said)" -eq 1 ] && says '^command line: data.train: .*/other.txt: no such file'
verdict "what is inherited is not said of a start that is refused" $? "$(seen)"
brim train tiny.yaml run=mine steps=5 data.train=text.txt --change-data
changed='as many tokens, other content'
[ $rc -eq 0 ] && says "warning: data.train: .*text.txt: changed since step 4: $changed"
verdict "--change-data goes on with it, and says so" $? "$(seen)"
sed 's/text.txt/short.txt/' tiny.yaml >tiny2.yaml
brim train tiny2.yaml run=plain steps=2; sed -i 's/short.txt/text.txt/' tiny2.yaml
brim train tiny2.yaml run=plain steps=3
[ $rc -eq 2 ] &&
    says '^tiny2.yaml:[0-9]+: data.train: is .*text.txt.*, but .*runs/plain was trained with .*short.txt'
verdict "a recipe that was edited is refused with its line" $? "$(seen)"
cp short.txt copy.txt; sed -i 's/text.txt/copy.txt/' tiny2.yaml; brim train tiny2.yaml run=plain steps=3
[ $rc -eq 0 ] && ! says warning; verdict "the same content under another name is the same" $? "$(seen)"
tr a-z b-za <short.txt >copy.txt; brim train tiny2.yaml run=plain steps=4
[ $rc -eq 0 ] && says "warning: data.train: .*copy.txt: changed since step 3: $changed"
verdict "another content of the same length is noticed, and the file named" $? "$(seen)"

# ---- another init ------------------------------------------------------------------------------------------

for k in 1 2; do brim train tiny.yaml run=from$k seed=$k steps=1; brim export from$k hf$k; done
brim train tiny.yaml run=tuned init=hf1 steps=2
# that of the run so far
refuses_init() {
    cp -r runs/tuned kept; brim train tuned init=hf2 steps=9
    [ $rc -eq 2 ] && says "init is .$dir/hf2. in the recipe, but .$1. in the run so far, which has its own" &&
        says 'run=NAME makes another run, --fresh begins this one anew' && diff -r kept runs/tuned >/dev/null
    verdict "another init than '${1##*/}' is refused, and nothing changes" $? "$(seen)"
    rm -r kept
}
refuses_init "$dir/hf1"
brim train tiny.yaml run=tuned init=hf1 steps=3
[ $rc -eq 0 ] && says 'resuming after step 2: steps 2 -> 3$'; verdict "the same init goes on" $? "$(seen)"
rm -r hf1; brim train tuned init= steps=4
[ $rc -eq 0 ] && says 'resuming after step 3: .*init .*hf1. -> ""'; verdict "and so does none" $? "$(seen)"
refuses_init ""

# ---- a run by its name -------------------------------------------------------------------------------------

brim train tiny.yaml run=named data.train=other.txt steps=2
for target in named runs/named "$dir/runs/named"; do
    steps=$(($(grep -c '"loss"' runs/named/metrics.jsonl) + 1))
    brim train "$target" steps=$steps
    [ $rc -eq 0 ] && says "resuming after step $((steps - 1))" && ! says warning &&
        grep -q "^# from the command line: .*data.train" runs/named/recipe.yaml
    verdict "brim train ${target#"$dir"} goes on with that run" $? "$(seen)"
done
for target in "$dir/runs/named" ../runs/named named; do
    cp -r runs/named kept; mkdir away; where=away; [ "$target" = named ] && where=runs
    (cd $where && BRIM_RUNS=none brim train "$target" steps=6 && echo $rc >"$dir/rc" && mv said "$dir/said")
    [ "$(cat rc)" -eq 0 ] && says 'resuming after step 5' && [ -e runs/named/checkpoints/step-00000006 ] &&
        [ -z "$(ls away)" ] && [ ! -e runs/none ]
    verdict "train ${target#"$dir"} from another folder goes on there" $? "$(seen) $(ls away)"
    rm -rf runs/named away; mv kept runs/named
done
mkdir -p own; cp tiny.yaml own/recipe.yaml; brim train own
[ $rc -eq 2 ] && says '^own: is a directory, not a recipe$'
verdict "a folder with a recipe.yaml is no run yet" $? "$(seen)"
brim train named; [ $rc -eq 0 ] && says 'runs/named has its 5 steps: nothing to do'
verdict "which knows its steps" $? "$(seen)"
cp tiny.yaml named; brim train named run=first steps=1
[ $rc -eq 0 ] && [ -e runs/first ] && grep -q '/text.txt' runs/first/recipe.yaml
verdict "a recipe of that name comes first" $? "$(seen)"
rm named; mkdir recipes; cp tiny.yaml recipes/quickstart.yaml # a shipped one
# command, target, what it says
while read -r command target answer; do
    brim $command $target
    [ $rc -eq 2 ] && [ "$(wc -l <said)" -eq 1 ] && says "^command line: $target: $answer\$"
    verdict "$command $target is refused, and what is near is named" $? "$(seen)"
done <<END
train nobody neither a run .in .*runs. nor a recipe
train nmaed neither a run nor a recipe .did you mean named\?.
train quickstrat neither a run nor a recipe .did you mean quickstart\?.
doctor nobody neither a run .in .*runs. nor a recipe
doctor runs/nmaed neither a run nor a recipe .did you mean named\?.
doctor quickstrat neither a run nor a recipe .did you mean quickstart\?.
eval nmaed no such run .did you mean named\?.
eval quickstart a recipe, but no run .brim train quickstart makes one.
sample tiny.yaml a recipe, but no run .brim train tiny.yaml makes one.
END
rm -r recipes

# ---- the best checkpoint -----------------------------------------------------------------------------------

# name: the step of the lowest val_loss after step 0.
lowest() {
    sed -nE 's/.*"step": ([0-9]+), "val_loss": ([0-9.e+-]+),.*/\2 \1/p' "runs/$1/metrics.jsonl" |
        grep -v ' 0$' | sort -g | sed -n '1s/.* //p'
}
worse=(eval.every=2 eval.sequences=8 checkpoint.keep=1 checkpoint.every=2 optim.lr=0.3
    optim.schedule=constant spike_factor=0 max_skips=1000)
for steps in 12 16; do
    brim train tiny.yaml run=best "${worse[@]}" steps=$steps
    best=$(lowest best)
    [ $rc -eq 0 ] && [ "$best" -lt 12 ] &&
        [ "$(readlink runs/best/checkpoints/best)" = "$(printf 'step-%08d' "$best")" ] &&
        [ "$(ls runs/best/checkpoints | xargs)" = "best $(printf 'step-%08d step-%08d' "$best" $steps)" ]
    verdict "after $steps steps the best checkpoint is there, beside the one that checkpoint.keep keeps" $? \
        "$(seen) $best: $(ls runs/best/checkpoints | xargs)"
done
# what --step says, the step that it is
for which in "best $best" "last 16" "16 16" "$best $best"; do
    brim eval best --step "${which% *}" eval.sequences=8
    [ $rc -eq 0 ] && says "^step ${which#* }: validation loss"
    verdict "eval --step ${which% *} takes step ${which#* }" $? "$(seen)"
done
brim eval best; [ $rc -eq 0 ] && says "^step 16: "; verdict "eval takes the last one otherwise" $? "$(seen)"
brim sample best --step best --tokens 20 --temperature 0 && cp said a &&
    brim sample best --step $best --tokens 20 --temperature 0 && cp said b &&
    brim sample best --tokens 20 --temperature 0
[ $rc -eq 0 ] && cmp -s a b; verdict "sample --step best takes the best" $? "$(cat a b)"
brim train tiny.yaml run=same eval.every=2 steps=4 optim.lr=1e-12 optim.min_lr=0
[ $rc -eq 0 ] && [ "$(readlink runs/same/checkpoints/best)" = step-00000002 ]
verdict "an untrained model is not the best one, though it is no worse" $? "$(seen)"
brim compare same --json; [ $rc -eq 0 ] && says '"best_step": 2,'
verdict "nor to compare" $? "$(seen)"
brim train tiny.yaml run=plain_keep checkpoint.best=false steps=2
for wrong in "best 7:there is no checkpoint of step 7 .kept: $best, 16.$" \
    "best -1:'-1' is none of best, last or the number of a step" "best first:'first' is none of" \
    "best 1.5:'1.5' is none of" "plain_keep best:.* has no best checkpoint"; do
    read -r run step <<<"${wrong%%:*}"
    for command in eval sample; do
        brim $command "$run" --step "$step"
        [ $rc -eq 2 ] && [ "$(wc -l <said)" -eq 1 ] && says "^command line: --step: ${wrong#*:}"
        verdict "$command $run --step $step is refused" $? "$(seen)"
    done
done

# A save that fails once is still named: after the last step, and where only the evaluation was missing.
BRIM_FAULT=fsync:12 brim train tiny.yaml run=retried checkpoint.every=0
[ $rc -eq 0 ] && says 'CHECKPOINT NOT SAVED' &&
    [ "$(readlink runs/retried/checkpoints/best)" = step-00000012 ]
verdict "a save that is tried again is named best, too" $? "$(seen) $(ls runs/retried/checkpoints | xargs)"
BRIM_FAULT=nan:13+ brim train tiny.yaml run=late steps=24 checkpoint.every=12 max_skips=2
BRIM_FAULT=fsync:12 brim train tiny.yaml run=late
[ $rc -eq 0 ] && says 'step 12: validation' && says 'CHECKPOINT NOT SAVED' &&
    [ "$(readlink runs/late/checkpoints/best)" = step-00000012 ]
verdict "also when there was nothing to do but evaluate" $? "$(seen) $(ls runs/late/checkpoints | xargs)"

# Step 10 is skipped, so its evaluation, the best so far, is not saved yet when the run goes back.
BRIM_SLOW=sleep:30000 BRIM_FAULT=nan:10-13 "$brim" train tiny.yaml run=back steps=40 max_skips=2 \
    eval.every=10 checkpoint.every=4 >said 2>&1 </dev/null & pid=$!
for ((i = 0; i < 1000; i++)); do
    says 'rolled back to step 4' && [ -e runs/back/checkpoints/step-00000008 ] && break
    kill -0 $pid 2>/dev/null || break
    sleep 0.02
done
kill -TERM $pid; wait $pid; rc=$?
best=$(readlink runs/back/checkpoints/best)
[ $rc -eq 0 ] && says 'rolled back to step 4' &&
    { [ -z "$best" ] || grep -q "\"step\": $((10#${best#step-})), \"val_" runs/back/metrics.jsonl; }
verdict "after a rollback no step is named best that was not evaluated" $? "$best: $(seen)"

# ---- a signal in an evaluation -----------------------------------------------------------------------------

for ((i = 0; i < 100; i++)); do cat text.txt; done >huge.txt
long=(run=long data.val=huge.txt model.layers=4 model.width=64 eval.sequences=1000000 log_every=1)
few=("${long[@]}" eval.sequences=8)

# pattern, file, what brim does: SIGTERM once the file has the pattern. 5 s without an end are too long.
interrupt() {
    local pattern=$1 file=$2 pid i
    shift 2
    "$brim" "$@" >said 2>&1 </dev/null & pid=$!
    for ((i = 0; i < 400; i++)); do
        grep -qE "$pattern" "$file" 2>/dev/null && break
        sleep 0.05
    done
    sleep 0.5; kill -TERM $pid
    for ((i = 0; i < 100; i++)); do
        kill -0 $pid 2>/dev/null || break
        sleep 0.05
    done
    kill -9 $pid 2>/dev/null; wait $pid 2>/dev/null; rc=$?
}
# step: stopped in its evaluation, but the step is saved.
left_out() {
    [ $rc -eq 0 ] && says "SIGTERM received: the evaluation of step $1 is left out" &&
        [ -e "$(printf 'runs/long/checkpoints/step-%08d/DONE' "$1")" ] &&
        ! grep -q "\"step\": $1, \"val_" runs/long/metrics.jsonl
}

brim train tiny.yaml "${few[@]}" steps=1
interrupt '"step": 3,' runs/long/metrics.jsonl train tiny.yaml "${long[@]}" steps=4 eval.every=3
left_out 3; verdict "a signal stops an evaluation, and the step is saved" $? "$(seen)"
brim train tiny.yaml "${few[@]}" steps=4 eval.every=3 optim.lr=0.3 optim.schedule=constant spike_factor=0
[ $rc -eq 0 ] && says 'step 3: validation loss' && says 'step 4: validation loss' &&
    [ "$(readlink runs/long/checkpoints/best)" = step-00000003 ]
verdict "the next start makes up for it, also in what the best checkpoint is" $? \
    "$(seen) best: $(readlink runs/long/checkpoints/best)"
for again in "the last evaluation of a run" "an evaluation that is all there is to do"; do
    interrupt '"step": 5,' runs/long/metrics.jsonl train tiny.yaml "${long[@]}" steps=5
    left_out 5; verdict "likewise in $again" $? "$(seen)"
done
interrupt . tiny.yaml eval long data.val=huge.txt
[ $rc -eq 1 ] && [ "$(grep -vc '^\[' said)" -eq 1 ] &&
    says '^brim: SIGTERM received: the evaluation was stopped'
verdict "a signal stops brim eval, which says so" $? "$(seen)"
rm huge.txt

# ---- the disk ----------------------------------------------------------------------------------------------

mkdir small
if mount -t tmpfs -o size=500k none small 2>/dev/null; then
    trap 'umount -l "$dir/small"; rm -rf "$dir"' EXIT
    head -c 400000 /dev/zero >small/fill
    BRIM_RUNS=small brim train tiny.yaml run=full
    [ $rc -eq 1 ] && says \
        '^brim: small/full/checkpoints: a checkpoint takes [0-9.]+ KiB, and the disk has [0-9.]+ KiB free' &&
        [ ! -e small/full ]
    verdict "a disk without room for one checkpoint is refused before the first step" $? "$(seen) $(ls small)"
    head -c 100000 /dev/zero >small/fill
    BRIM_RUNS=small brim train tiny.yaml run=tight checkpoint.keep=20
    [ $rc -eq 0 ] && says 'warning: small/tight/checkpoints: 22 more checkpoints of .* saving may fail'
    verdict "one without room for all is a warning" $? "$(seen)"
    umount small; trap 'rm -rf "$dir"' EXIT
else
    echo "skip: no right to mount a tmpfs, so a small disk was not tried"
fi
brim train tiny.yaml run=roomy
[ $rc -eq 0 ] && says 'checkpoints: [0-9.]+ KiB each, at most 4 more, .* free on the disk'
verdict "one with room is said" $? "$(seen)"
brim train tiny.yaml run=roomy --fresh
[ $rc -eq 0 ] && says 'checkpoints: [0-9.]+ KiB each, at most 4 more, '
verdict "what a fresh start moves aside is no part of it" $? "$(seen)"

# The run loses its checkpoints while it trains.
brim train tiny.yaml run=loses steps=2
"$brim" train tiny.yaml run=loses steps=4000 checkpoint.every=100 >said 2>&1 </dev/null & pid=$!
for ((i = 0; i < 500; i++)); do grep -q 'checkpoint of step 100' said && break; sleep 0.02; done
mv runs/loses/checkpoints lost; wait $pid; rc=$?
[ $rc -eq 0 ] && says 'error: .*runs/loses/checkpoints was removed while this run was using it: made anew'
verdict "checkpoints that vanish are said" $? "$(seen)"

# ---- what is said ------------------------------------------------------------------------------------------

brim train tiny.yaml run=roomy steps=13
line=$(grep '"step": 13, "val_loss"' runs/roomy/metrics.jsonl)
[ $rc -eq 0 ] && says 'step 13: validation loss [0-9.]+, perplexity [0-9.]+, bits per byte [0-9.]+$' &&
    echo "$line" | sed -E \
        's/.*val_loss": ([0-9.]+), "val_perplexity": ([0-9.]+), "val_bits_per_byte": ([0-9.]+),.*/\1 \2 \3/' |
    awk '{ d = exp($1) / $2 - 1; e = $1 / log(2) / $3 - 1
        exit !(NF == 3 && d * d < 1e-12 && e * e < 1e-12) }'
verdict "an evaluation says perplexity and bits per byte" $? "$(seen) $line"
brim train tiny.yaml run=noise data.kind=random steps=1; ! says 'bits per'
verdict "bits per byte are for text alone" $? "$(seen)"

printf 'The\n\nWhat\n' >prompts.txt; brim sample roomy --prompt-file prompts.txt --tokens 2
[ $rc -eq 0 ] && [ "$(grep -c 'prompts.txt: 1 empty line is left out' said)" -eq 1 ]
verdict "an empty line of a prompt file is said once" $? "$(seen)"

brim plan tiny.yaml steps=3000000
[ $rc -eq 0 ] &&
    says '^the run +3000000 steps, about [0-9]+:[0-9:]+, evaluations and checkpoints not counted$'
verdict "plan says how long the run will take" $? "$(seen)"
# what it is, the keys it must have, then the command
json() {
    local name=$1 keys=$2
    shift 2
    brim "$@"
    [ $rc -eq 0 ] && [ "$(wc -l <said)" -eq 1 ] && python3 -c 'import json, sys
d = json.load(open("said")); missing = [k for k in sys.argv[1].split() if k not in d]
print(missing); sys.exit(bool(missing))' "$keys" >why
    verdict "$name --json is one object" $? "$(seen) $(cat why)"
}
command -v python3 >/dev/null || json() { echo "skip: no python3 to read JSON with"; }
json plan "recipe device parameters micro_batch recompute planned_bytes step_ms per_s mfu steps run_s" \
    plan tiny.yaml --json
json "plan --gpu" "device step_ms mfu run_s" plan tiny.yaml --gpu h200 --json precision=auto device=auto
json eval "run step loss perplexity bits_per_byte targets samples per_s" eval roomy --json
json info "cpu cuda auto" info --json
json version "version commit compiler cuda why" version --json

# A step of seconds stands for one that hangs.
"$brim" train tiny.yaml run=hangs watchdog_s=0.5 step_tokens=$((1 << 21)) >said 2>&1 </dev/null & pid=$!
for ((i = 0; i < 600; i++)); do
    says 'NOTHING HAS' && break
    kill -0 $pid 2>/dev/null || break
    sleep 0.05
done
kill -9 $pid 2>/dev/null; wait $pid 2>/dev/null
says 'error: NOTHING HAS ENDED FOR 0:0[0-9]: step 1 is at work, or hangs'
verdict "a step that hangs is named after watchdog_s" $? "$(cat said)"
brim train tiny.yaml run=quick watchdog_s=0 steps=1; [ $rc -eq 0 ] && ! says NOTHING
verdict "watchdog_s 0 is silent" $? "$(seen)"

# ---- bench -------------------------------------------------------------------------------------------------

WORLD_SIZE=2 RANK=0 LOCAL_RANK=0 MASTER_ADDR=localhost MASTER_PORT=1 brim bench tiny.yaml --no-limit
[ $rc -eq 2 ] && [ "$(wc -l <said)" -eq 1 ] &&
    says '^command line: bench measures one process, and torchrun started 2'
verdict "bench under a launcher is refused" $? "$(seen)"
brim bench tiny.yaml --ops --seconds 1 model.width=64 step_tokens=64
[ $rc -eq 0 ] && says ' 100% \*$' && says '^\* faster than the measured rates' &&
    ! grep -qE ' (1[0-9][1-9]|1[1-9][0-9]|[2-9][0-9][0-9])%' said
verdict "no op of bench --ops is above its limit" $? "$(seen)"
brim bench tiny.yaml --no-limit --seconds 1
[ $rc -eq 0 ] && is "$(sed -n 's/^data: waited .* of \([0-9.]*\) s,.*/\1/p' said)" '>=' 1
verdict "bench takes the time that is asked for, however small the steps" $? "$(seen)"
# Steps of seconds: ended once the progress is said.
case $build in *asan*) long=$((1 << 18)) ;; *) long=$((1 << 21)) ;; esac
"$brim" bench tiny.yaml --no-limit step_tokens=$long >said 2>&1 </dev/null & pid=$!
for ((i = 0; i < 600; i++)); do
    says 'of at least 7 steps done' && break
    kill -0 $pid 2>/dev/null || break
    sleep 0.05
done
kill -9 $pid 2>/dev/null; wait $pid 2>/dev/null
says '[1-9] of at least 7 steps done, 0:[0-9]+ each'; verdict "bench shows progress" $? "$(cat said)"

# ---- a deep model ------------------------------------------------------------------------------------------

# Seconds of the processor, the best of three, so that others on this machine hardly count; a sanitizer may
# take ten times more.
case $build in *asan*) most=1000 ;; *) most=100 ;; esac
TIMEFORMAT='%U %S'
plan_deep() { "$brim" plan "$here/recipes/quickstart.yaml" device=cpu model.layers=1024 >said 2>&1; }
used=$(for _ in 1 2 3; do { time plan_deep; } 2>&1; done |
    awk '{ t = int(100 * ($1 + $2)); if (!n++ || t < best) best = t } END { print best }')
says '^model +218398848 parameters' && [ "$used" -lt $most ]
verdict "a plan of 1,024 layers takes less than a second" $? "$used hundredths: $(tail -n 2 said)"

exit $failed
