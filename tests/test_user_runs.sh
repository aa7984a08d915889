#!/usr/bin/env bash
# What a user does to runs, and what the program says then: a run that diverges, other data, a full disk, a wrong step.
# shellcheck source=tests/shell_lib.sh
. "$(dirname "$0")/shell_lib.sh"
export BRIM_RUNS=$dir/runs
unset BRIM_FAULT

head -c 40000 "$here/recipes/data/tinyshakespeare.txt" >text.txt
cat >tiny.yaml <<END
steps: 12
step_tokens: 128
device: cpu
threads: 1
model: {layers: 1, width: 16, heads: 2, vocab: 256, context: 16}
optim: {lr: 3e-3, warmup: 1}
data: {kind: text, train: text.txt}
eval: {every: 0, sequences: 8}
checkpoint: {every: 5, keep: 2}
END

# Runs brim; all it says goes to `said`, its exit code to $rc.
brim() { timeout -k 5 60 "$brim" "$@" >said 2>&1 </dev/null; rc=$?; }
says() { grep -qE -- "$1" said; }
seen() { echo "exit code $rc: $(tail -n 4 said)"; }

# ---- numbers that are not finite -------------------------------------------------------------------------------------

wild=(optim.lr=100 optim.weight_decay=10 spike_factor=0 max_skips=1000 optim.schedule=constant)
brim train tiny.yaml run=wild "${wild[@]}"
[ $rc -eq 1 ] && says '^brim: training has diverged: the validation of step 12 is not finite; the checkpoint of step 5 stays' &&
    [ "$(ls runs/wild/checkpoints | xargs)" = "step-00000005" ] && ! says 'loss -?nan$|-> -?nan'
verdict "a run that ends in numbers that are not finite fails, and its last good checkpoint stays" $? "$(seen) $(ls runs/wild/checkpoints | xargs)"
brim train tiny.yaml run=blind "${wild[@]}" data.val_fraction=0
[ $rc -eq 1 ] && says '^brim: training has diverged: the loss of step 12 is not finite; the checkpoint of step 5 stays'
verdict "also without validation" $? "$(seen)"
brim train tiny.yaml run=huge "${wild[@]}" data.val_fraction=0 steps=6
[ $rc -eq 0 ]; brim eval huge data.val=text.txt
[ $rc -eq 1 ] && says '^brim: huge: the loss of step 6 is not finite: training had diverged' && ! says nan
verdict "an evaluation that is not finite is an error" $? "$(seen)"
brim sample huge --tokens 5
[ $rc -eq 1 ] && says "^brim: the model's output is not finite"
verdict "and so is a sample" $? "$(seen)"

exit $failed
