#!/usr/bin/env bash
# precision: fp8 as a user meets it, on the CPU: a run that goes on gives the same bits, scales are in the
# checkpoint, and what a device cannot do is refused.
# shellcheck source=tests/shell_lib.sh
. "$(dirname "$0")/shell_lib.sh"

cat >r.yaml <<EOF
steps: 8
step_tokens: 256
device: cpu
threads: 2
precision: fp8
model: {layers: 1, width: 32, heads: 2, vocab: 256, context: 32, act: swiglu, norm: rmsnorm, pos: rope}
optim: {lr: 3e-3}
data: {kind: text, train: $here/recipes/data/tinyshakespeare.txt}
eval: {every: 4, sequences: 4}
checkpoint: {every: 4, keep: 9}
watch: {report: false, sample: false}
EOF
"$brim" train r.yaml run=whole >whole.log 2>&1; verdict "fp8 trains" $? "$(tail -n 2 whole.log)"
grep -q "fp8, as asked" whole.log; verdict "the precision is said" $? "$(cat whole.log)"
"$brim" train r.yaml run=part steps=4 optim.schedule=constant >part.log 2>&1
"$brim" train r.yaml run=one optim.schedule=constant >one.log 2>&1
"$brim" train r.yaml run=part optim.schedule=constant >>part.log 2>&1
for f in model optim; do
    cmp -s runs/{one,part}/checkpoints/step-00000008/$f.safetensors
    verdict "a run that went on has the same $f" $? "$(ls runs/*/checkpoints; tail -n 2 part.log)"
done
grep -q "state.fp8" runs/one/checkpoints/step-00000008/optim.safetensors
verdict "scales are in the checkpoint" $? "$(ls runs/one/checkpoints)"
"$brim" train r.yaml run=none eval.every=0 checkpoint.every=0 >none.log 2>&1
cmp -s runs/{none,whole}/checkpoints/step-00000008/model.safetensors
verdict "evaluations change no scale" $? "$(tail -n 2 none.log)"

# Frozen weights are quantised once more where a run goes on: no trace of that stays. r.yaml has one block.
for run in "ice 8" "cube 4" "cube 8"; do
    "$brim" train r.yaml "run=${run% *}" "steps=${run#* }" freeze=block.0 optim.schedule=constant \
        >ice.log 2>&1
done
cmp -s runs/{ice,cube}/checkpoints/step-00000008/optim.safetensors
verdict "a run with frozen weights that went on has the same optim" $? "$(tail -n 2 ice.log)"

# A run goes on in another precision: scales in fp8 begin anew.
"$brim" train r.yaml run=turn steps=4 precision=fp32 >turn.log 2>&1
brim train r.yaml run=turn steps=6
[ $rc -eq 0 ] && says "resuming after step 4: .*precision fp32 -> fp8"
verdict "from fp32 to fp8" $? "$(seen)"
brim train r.yaml run=turn precision=fp32
[ $rc -eq 0 ] && says "resuming after step 6: .*precision fp8 -> fp32"; verdict "and back" $? "$(seen)"

# Weights of others are larger than the initial values that scales were first taken from: whether they train
# or not, the loss begins and goes on as in fp32.
first() { sed -n 's/.*"step": 1,.*"loss": \([0-9.]*\).*/\1/p' "runs/$1/metrics.jsonl"; }
near() { awk "BEGIN { d = ${1:-0} / ${2:-1}; exit !(d > 0.98 && d < 1.02) }"; }
"$brim" train r.yaml run=grown steps=60 precision=fp32 model.init_std=0.002 optim.lr=1e-2 eval.every=0 \
    checkpoint.every=0 >grown.log 2>&1 && "$brim" export runs/grown hf >>grown.log 2>&1
for freeze in "" block.0; do
    for p in fp32 fp8; do
        "$brim" train r.yaml "run=taken-$p" --fresh init=hf model.init_std=0.002 "precision=$p" \
            "freeze=$freeze" optim.lr=1e-4 >taken.log 2>&1
    done
    near "$(first taken-fp8)" "$(first taken-fp32)" &&
        near "$(last taken-fp8 val_loss)" "$(last taken-fp32 val_loss)"
    verdict "weights of a folder in fp8${freeze:+, frozen}" $? "$(tail -n 2 grown.log taken.log)" \
        "$(first taken-fp8) $(first taken-fp32) $(last taken-fp8 val_loss) $(last taken-fp32 val_loss)"
done

# Two ranks: they agree on the scales, so the checkpoint of one lets both go on with the same bits.
two() { # run, overrides; again if somebody has the port
    local r rc pids=() port=$((20000 + RANDOM % 12000))
    for r in 0 1; do
        RANK=$r WORLD_SIZE=2 LOCAL_RANK=$r MASTER_ADDR=127.0.0.1 MASTER_PORT=$port timeout -s KILL 60 \
            "$brim" train r.yaml "run=$1" threads=1 optim.schedule=constant micro_batch=2 "${@:2}" \
            >"$1.$r.log" 2>&1 &
        pids+=($!)
    done
    wait "${pids[0]}" && wait "${pids[1]}"; rc=$?
    if grep -q "port .* in use" "$1.0.log"; then two "$@"; else return $rc; fi
}
two two-one && two two-part steps=4 && two two-part; rc=$?
for f in model optim; do
    [ $rc -eq 0 ] && grep -q "resuming after step 4" two-part.0.log &&
        cmp -s runs/two-{one,part}/checkpoints/step-00000008/$f.safetensors
    verdict "two ranks that went on have the same $f" $? "exit $rc: $(tail -n 2 two-*.[01].log)"
done

# Another task: a frozen language model in fp8, its encoder as it was.
"$brim" train "$here/recipes/latent-tiny.yaml" run=latent device=cpu threads=1 precision=fp8 \
    fp8.wide=encoder \
    steps=2 step_samples=4 eval.every=0 eval.samples=4 checkpoint.every=0 watch.report=false \
    watch.sample=false >latent.log 2>&1
verdict "a frozen net in fp8" $? "$(tail -n 2 latent.log)"

# The mean of an image net's weights only evaluates, in bf16: it has no copies in fp8.
copies() {
    "$brim" plan "$here/recipes/vit-l16.yaml" --gpu h200 precision=fp8 micro_batch=64 "image.ema=$1" |
        sed -n 's/.*compute copies *\([0-9]*\) .*/\1/p'
}
none=$(copies 0); mean=$(copies 0.9999)
[ -n "$none" ] && [ "$none" = "$mean" ]; verdict "the mean of weights has no copies in fp8" $? "$none $mean"

refused() { # name, pattern, arguments
    "$brim" "${@:3}" >seen 2>&1; local rc=$?
    [ $rc -eq 2 ] && grep -q "$2" seen; verdict "$1" $? "exit $rc: $(cat seen)"
}
refused "the CPU gains nothing by fp8" "require: fp8 is refused: the CPU gains nothing" train r.yaml \
    require=fp8
refused "a weight that is none" "fp8.wide: no weight is named blok.0" plan r.yaml fp8.wide=blok.0
refused "a card without fp8" "precision: compute capability 8.0 has no fp8" plan r.yaml --gpu a100 device=auto
refused "fp8 required where it is off" "require: require lists fp8, but precision is bf16" plan r.yaml \
    --gpu h200 device=auto precision=bf16 require=fp8
refused "fp8 required of products that cannot be in fp8" "require: fp8 is not used: no product of the step" \
    plan r.yaml --gpu h200 device=auto require=fp8 model.width=40 model.heads=5 model.ffn=120
refused "a required optimisation that a card's plan lacks" "require: linear_glu_fwd is not used" \
    plan r.yaml --gpu h200 device=auto require=linear_glu_fwd model.act=gelu
brim plan r.yaml model.context=63 step_tokens=504
[ $rc -eq 0 ] && says "warning: precision: fp8: only 0 % of the step's products are in fp8"
verdict "fp8 that no product uses is said" $? "$(seen)"
brim plan r.yaml && ! says "warning: precision"; verdict "fp8 that most products use is not" $? "$(seen)"
# Muon's own products are the optimizer's: they do not count.
brim plan r.yaml optim.kind=muon step_tokens=32 && ! says "warning: precision"
verdict "nor with Muon" $? "$(seen)"
brim plan r.yaml fp8.wide=block.0 && says "warning: precision: fp8: only .*fp8.wide and fp8.head leave some"
verdict "what the recipe leaves out is said" $? "$(seen)"
brim plan cartpole precision=fp8 && says "warning: precision: fp8: only 0 %"
verdict "fp8 in a task that has none is said" $? "$(seen)"
"$brim" plan r.yaml --gpu h200 device=auto require=fp8 >seen 2>&1
verdict "fp8 is planned for an H200" $? "$(cat seen)"
exit $failed
