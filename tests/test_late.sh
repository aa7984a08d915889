#!/usr/bin/env bash
# Every task on the device `late` (src/dev/late/late.c), which does nothing before somebody waits for it and
# hides its memory from the host: the bits are those of the CPU. Seeds let lanes overtake each other.
# shellcheck source=tests/shell_lib.sh
. "$(dirname "$0")/shell_lib.sh"
quiet="threads=1 watch.sample=false watch.report=false eval.every=2 checkpoint.every=2"

hash_of() { cat runs/"$1"/checkpoints/step-*/{model,optim}.safetensors 2>/dev/null | sha256sum; }
losses() { sed -nE 's/.*(step [0-9]+: validation.*)/\1/p' "runs/$1/log.txt"; }

# name, recipe, keys ...: trains on the CPU and on three late devices.
same() {
    local name=$1 recipe=$2 d k bad=0 at=""
    shift 2
    for d in cpu late:0 late:1 late:2; do
        # shellcheck disable=SC2086 # keys are words
        brim train "$here/recipes/$recipe.yaml" "run=$name-$d" "device=$d" $quiet "$@"
        [ $rc -eq 0 ] || { bad=1; at="$d: $(seen)"; break; }
    done
    for k in 0 1 2; do
        [ $bad -eq 0 ] || break
        [ "$(hash_of "$name-cpu")" = "$(hash_of "$name-late:$k")" ] || { bad=1; at="late:$k: other weights"; }
        [ "$(losses "$name-cpu")" = "$(losses "$name-late:$k")" ] || { bad=1; at="late:$k: other losses"; }
    done
    verdict "$name: a late device trains as the CPU does" $bad "$at"
}

lm="steps=4 step_tokens=512 micro_batch=2 model.layers=2 model.width=32 model.context=64 eval.sequences=8"
# shellcheck disable=SC2086
{
    same lm quickstart $lm watch.samples=1
    same blocks quickstart $lm model.dropout=0.1 recompute=block 'freeze=[embed]'
    same fp8 quickstart $lm precision=fp8 optim.kind=muon
}
vit="steps=4 step_samples=8 micro_batch=4 model.layers=1 model.width=32 model.heads=2 eval.samples=16"
if [ -d /usr/share/datasets/fashion-mnist ]; then
    # shellcheck disable=SC2086
    same image vit-tiny $vit data.augment=crop,flip,mixup,cutmix data.mix_group=4 optim.kind=adamw \
        image.ema=0.9
    # shellcheck disable=SC2086
    same mae mae-tiny $vit mae.layers=1 image.registers=2 image.pool=class watch.samples=1
else
    echo "skip: dataset-fashion-mnist is not installed"
fi
same latent latent-tiny steps=4 step_samples=8 micro_batch=4 eval.samples=8 watch.samples=1
ppo="steps=4 total_steps=0 eval.target=0 eval.samples=4 ppo.place=host"
# shellcheck disable=SC2086
{
    same groups cartpole $ppo ppo.groups=2
    same hybrid cartpole $ppo ppo.answer=host
    same continuous pendulum $ppo steps=2 ppo.rollout=64 ppo.obs_norm=true
    same trunk tmaze $ppo steps=2 ppo.rollout=64 ppo.minibatch=256
    same agents crossing $ppo steps=3 ppo.groups=2 ppo.reward_norm=true ppo.obs_norm=true
    same hybrid_agents crossing $ppo steps=3 ppo.answer=host
    same trunk_agents crossing $ppo steps=2 policy.kind=trunk policy.context=16 policy.width=32
}

# ---- a run that goes on, and what reads a run ----

# shellcheck disable=SC2086
for k in 1 2; do
    brim train "$here/recipes/quickstart.yaml" run=half device=late:$k $quiet $lm steps=$((2 * k)) \
        optim.schedule=constant
done
# shellcheck disable=SC2086
brim train "$here/recipes/quickstart.yaml" run=whole device=cpu $quiet $lm optim.schedule=constant
[ $rc -eq 0 ] && [ "$(hash_of half)" = "$(hash_of whole)" ]
verdict "a run that goes on" $? "$(seen)"
brim eval runs/lm-cpu device=cpu; grep -a validation said >cpu.txt
brim eval runs/lm-cpu device=late:1
[ $rc -eq 0 ] && diff <(grep -a validation said) cpu.txt >/dev/null
verdict "eval" $? "$(seen)"
brim sample runs/lm-cpu --prompt "The " --tokens 40 --seed 3 device=cpu; cp said cpu.txt
brim sample runs/lm-cpu --prompt "The " --tokens 40 --seed 3 device=late:1
[ $rc -eq 0 ] && diff <(grep -av '^\[' said) <(grep -av '^\[' cpu.txt) >/dev/null
verdict "sample" $? "$(seen)"
brim play groups-cpu --episodes 2 device=late:1 --out g.gif
[ $rc -eq 0 ] && [ -s g.gif ]
verdict "play" $? "$(seen)"
# shellcheck disable=SC2086
brim bench "$here/recipes/quickstart.yaml" device=late:1 $lm --no-limit --json --seconds 1
[ $rc -eq 0 ] && tail -n 1 said | grep -q '"per_s"'
verdict "bench" $? "$(seen)"

exit $failed
