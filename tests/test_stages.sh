#!/usr/bin/env bash
# Stages: pixels and frames that grow while a run trains. Each stage is planned before step 0, the loss goes
# on at a change, and a run that is killed in any stage goes on bit for bit. Two ranks do as one does. Long
# form: STAGES_LONG=1, 224 to 384 pixels, and real clips of 16 and 32 frames from the videos of opencv-doc.
# shellcheck source=tests/shell_lib.sh
. "$(dirname "$0")/shell_lib.sh"
# shellcheck source=tests/ranks_lib.sh
. "$here/tests/ranks_lib.sh"
unset RANK WORLD_SIZE LOCAL_RANK BRIM_FAULT
set=/usr/share/datasets/fashion-mnist
export BRIM_RUNS=$dir/runs
[ -r $set/t10k-images-idx3-ubyte.gz ] || { echo "skip: dataset-fashion-mnist is not installed"; exit 0; }
small="image: {size: 32, patch: 8}"
stages='[80:48,120:64]' first=80 second=120 steps=160
if [ "${STAGES_LONG:-}" ]; then
    small="image: {size: 224, patch: 16}"
    stages='[80:384]' second=
fi
cat >grow.yaml <<END
task: image
steps: $steps
stages: $stages
step_samples: 32
threads: 1
device: cpu
model: {layers: 2, width: 64, heads: 4, bias: true}
$small
optim: {lr: 1e-3, min_lr: 3e-4, warmup: 10}
data: {train: $set/t10k-images-idx3-ubyte.gz, val_fraction: 0.1, augment: [flip], crop_fraction: 1}
eval: {every: 0, samples: 100}
checkpoint: {every: 20, keep: 20}
END

mean() { # run, first step, one past the last
    awk -v a="$2" -v b="$3" 'match($0, /"step": [0-9]+/) && /"loss"/ {
        s = substr($0, RSTART + 8, RLENGTH - 8) + 0
        match($0, /"loss": [0-9.e+-]+/)
        if (s >= a && s < b) { sum += substr($0, RSTART + 8, RLENGTH - 8); n++ }
    } END { print n ? sum / n : "none" }' "runs/$1/metrics.jsonl"
}
goes_on() { # run, step of the change
    local before after
    before=$(mean "$1" $(($2 - 19)) $(($2 + 1))); after=$(mean "$1" $(($2 + 1)) $(($2 + 21)))
    awk "BEGIN { exit !($after <= 1.1 * $before) }"
    verdict "the loss goes on at step $2: $before before, $after after" $?
}

timeout -k 5 900 "$brim" train grow.yaml run=whole >whole.log 2>&1 </dev/null
verdict "a run in stages" $? "$(tail -n 2 whole.log)"
[ "$(grep -c 'stage from step .* planned' whole.log)" -eq "$(echo "$stages" | awk -F, '{ print NF + 1 }')" ]
verdict "every stage is planned before the first step" $? "$(head -n 4 whole.log)"
[ "$(grep -c 'samples to train on' whole.log)" -eq 1 ]
verdict "how much data there is, is said once" $? "$(grep 'to train on' whole.log)"
goes_on whole $first
[ -z "$second" ] || goes_on whole "$second"

# Killed in every stage, behind its first checkpoint.
for at in 20 $((first + 20)) ${second:+$((second + 20))}; do
    "$brim" train grow.yaml run=cut >cut.log 2>&1 </dev/null &
    pid=$!
    mark=runs/cut/checkpoints/step-$(printf %08d "$at")/DONE
    for _ in $(seq 4000); do [ -e "$mark" ] && break; sleep 0.05; done
    kill -9 $pid 2>/dev/null; wait $pid 2>/dev/null
done
timeout 900 "$brim" train grow.yaml run=cut >cut.log 2>&1 </dev/null
a=runs/whole/checkpoints/step-$(printf %08d $steps) b=runs/cut/checkpoints/step-$(printf %08d $steps)
cmp "$a/model.safetensors" "$b/model.safetensors" && cmp "$a/optim.safetensors" "$b/optim.safetensors"
verdict "killed in every stage and gone on: the same bits" $? "$(tail -n 2 cut.log)"
"$brim" train grow.yaml run=asked steps=4000 'stages=[4:48]' image.size=32 image.patch=8 checkpoint.every=2 \
    optim.warmup=0 >asked.log 2>&1 </dev/null &
pid=$!
for _ in $(seq 4000); do [ -e runs/asked/checkpoints/step-00000008/DONE ] && break; sleep 0.05; done
kill -TERM $pid; wait $pid; rc=$?
[ $rc -eq 0 ] && grep -q '^stopping after this step$' asked.log && grep -q 'SIGTERM received' asked.log
verdict "a signal in the second stage is answered at once" $? "$rc: $(tail -n 3 asked.log)"
out=$("$brim" eval whole 2>&1)
echo "$out" | grep -q 'top-1'
verdict "evaluated at the size of the last stage" $? "$out"

# Clips: frames grow. Noise, so only the bits count.
sed -e '/^data:/d' -e "s/^image:.*/image: {size: 16, patch: 8, frames: 4, classes: 3}/" \
    -e 's/^stages:.*/stages: [6:16x8]/' \
    -e 's/^steps:.*/steps: 12/' -e 's/every: 20/every: 2/' \
    -e 's/warmup: 10/schedule: constant/' grow.yaml >clips.yaml
timeout -k 5 100 "$brim" train clips.yaml run=clips >clips.log 2>&1 </dev/null
verdict "frames that grow" $? "$(tail -n 2 clips.log)"
timeout -k 5 100 "$brim" train clips.yaml run=again steps=8 >again.log 2>&1 </dev/null
timeout -k 5 100 "$brim" train clips.yaml run=again >again.log 2>&1 </dev/null
cmp runs/{clips,again}/checkpoints/step-00000012/model.safetensors
verdict "left in the second stage and gone on: the same bits" $? "$(tail -n 2 again.log)"
BRIM_FAULT=rename:6 timeout -k 5 100 "$brim" train clips.yaml run=full checkpoint.every=0 \
    >full.log 2>&1 </dev/null; rc=$?
[ $rc -eq 0 ] && grep -q 'NOT SAVED: .*the stage has ended at step 6, there is none yet' full.log
verdict "a failed save between stages does not say that training has ended" $? "$rc: $(grep NOT full.log)"
# Bad steps in the second stage, twice, and then in the first one, which the run goes back to.
export BRIM_FAULT=nan:7-12
timeout -k 5 100 "$brim" train clips.yaml run=back max_skips=2 >back.log 2>&1 </dev/null; rc=$?
unset BRIM_FAULT
[ $rc -eq 0 ] && [ "$(grep -oE 'rolled back to step [0-9]+' back.log | tr -dc '0-9\n' | xargs)" = "6 4 2" ] &&
    grep -q '"skip": \[\[128, 64\], \[192, 64\], \[256, 64\]\]' \
        runs/back/checkpoints/step-00000012/state.json
verdict "a rollback into an earlier stage keeps what is known of bad steps" $? \
    "exit code $rc: $(grep -oE 'rolled back to step [0-9]+' back.log | xargs)" \
    "$(grep -o '"skip": [^a-z]*' runs/back/checkpoints/step-00000012/state.json)"
# The signal comes in the step that leads back.
BRIM_FAULT=nan:7-10 "$brim" train clips.yaml run=left max_skips=2 step_samples=768 \
    >left.log 2>&1 </dev/null & pid=$!
for _ in $(seq 1000); do grep -q 'rolled back to step 6' left.log && break; sleep 0.01; done
sleep 0.1; kill -TERM $pid; wait $pid; rc=$?
[ $rc -eq 0 ] && grep -q 'rolled back to step 4' left.log && grep -q 'SIGTERM received' left.log &&
    grep -q '"skip": \[\[' "$(ls -d runs/left/checkpoints/step-* | tail -n 1)/state.json"
verdict "also when a signal ends the run just then" $? "exit code $rc: $(tail -n 4 left.log)"
videos=/usr/share/doc/opencv-doc/examples/data
if [ "${STAGES_LONG:-}" ] && [ -r $videos/vtest.avi ]; then
    for v in Megamind tree vtest; do mkdir -p "v/$v"; ln -s "$videos/$v.avi" "v/$v/"; done
    timeout 300 "$brim" data clips v/*/* --frames 32 --size 36 --out real >real.log 2>&1
    verdict "clips of three videos" $? "$(tail -n 2 real.log)"
    sed -e "s/^image:.*/image: {size: 32, patch: 8, frames: 16}/" -e 's/^stages:.*/stages: [80:32x32]/' \
        -e 's/step_samples: 32/step_samples: 8/' -e 's/^data:.*/data: {train: real, val_fraction: 0.1}/' \
        grow.yaml >real.yaml
    timeout -k 5 900 "$brim" train real.yaml run=real >real.log 2>&1 </dev/null
    verdict "frames that grow, real clips" $? "$(tail -n 2 real.log)"
    goes_on real 80
elif [ "${STAGES_LONG:-}" ]; then
    echo "skip: opencv-doc is not installed: no real clips"
fi
# Two ranks. A step of 32 images is 4 x 4 on each. They sum in another order than one rank: a relative
# distance of 1e-3 after 12 steps is far above rounding, and far below that of another sample.
few=(steps=12 'stages=[4:48,8:64]' micro_batch=4 checkpoint.every=2 eval.every=4 optim.warmup=0)
[ -z "${STAGES_LONG:-}" ] || few+=(image.size=32 image.patch=8)
train_two() { # name, overrides
    two_ranks "$1" timeout -s KILL 60 "$brim" train grow.yaml "run=$1" "${few[@]}" "${@:2}"
}
losses() { # run: step, loss or val_loss; one line each
    sed -nE 's/.*"step": ([0-9]+).*"((val_)?loss)": ([0-9.e+-]+).*/\1 \2 \4/p' "runs/$1/metrics.jsonl"
}
brim train grow.yaml run=one "${few[@]}"
train_two two
[ $rc0 -eq 0 ] && [ $rc1 -eq 0 ] && [ "$(losses one | wc -l)" -eq 16 ] &&
    paste <(losses one) <(losses two) |
    awk '$1 != $4 || $2 != $5 || ($3 / $6 - 1) ^ 2 > 1e-6 { bad = 1 } END { exit bad }'
verdict "two ranks in three stages: the losses of one" $? "exit codes $rc0 and $rc1: $(tail -n 2 two.0.log)"
[ "$(grep -c 'stage from step .* planned' two.0.log)" -eq 3 ] &&
    [ "$(grep -c '= 2 ranks x 4 x 4' two.0.log)" -eq 3 ]
verdict "two ranks plan their share of every stage" $? "$(head -n 6 two.0.log)"
# Ended within each stage, and where one ends.
bad=0
for at in 2 4 6 10 12; do
    train_two parts steps=$at optim.schedule=constant
    [ $rc0 -eq 0 ] && [ $rc1 -eq 0 ] || { bad=1; break; }
done
train_two same optim.schedule=constant
[ $bad -eq 0 ] && cmp runs/{same,parts}/checkpoints/step-00000012/model.safetensors &&
    cmp runs/{same,parts}/checkpoints/step-00000012/optim.safetensors
verdict "two ranks that go on in every stage: the same bits" $? "$rc0 and $rc1: $(tail -n 2 parts.0.log)"
train_two none memory_limit=3M
[ $rc0 -eq 2 ] && [ $rc1 -eq 2 ] && grep -q memory_limit none.0.log && [ ! -e runs/none ]
verdict "a stage that does not fit ends both before step 0" $? "$rc0 and $rc1: $(tail -n 2 none.0.log)"

out=$("$brim" train grow.yaml 'stages=[40:50]' 2>&1); rc=$?
[ $rc -eq 2 ] && echo "$out" | grep -q 'stages: 50 is no multiple of image.patch'
verdict "a stage that patches do not cover is refused" $? "$rc: $out"

brim train grow.yaml run=short steps=2 "stages=[5000:48]" optim.warmup=0
[ "$rc" -eq 0 ] && says 'stages: the run has 2 steps, so the stage of step 5000 is never reached'
verdict "a stage that is never reached is named" $? "$(seen)"
brim plan grow.yaml --gpu h200
[ "$rc" -eq 0 ] && [ "$(grep -c '^stage  ' said)" -eq "$(grep -c '^device  ' said)" ] &&
    says "^stage       steps $first to "
verdict "a plan has every stage" $? "$(seen)"
brim plan grow.yaml --gpu h200 --grow pixels --json
[ "$rc" -eq 2 ] && says '^command line: --grow: not together with --json'
verdict "--grow has no JSON" $? "$(seen)"
brim plan grow.yaml --gpu h200 --grow pixels memory_limit=1M
[ "$rc" -eq 2 ] && says 'memory_limit' && [ "$(wc -l <said)" -eq 1 ]
verdict "--grow says why not even the smallest fits" $? "$(seen)"
exit $failed
