#!/usr/bin/env bash
# PPO from the command line: CartPole is solved, runs go on bit for bit, a truncation is no termination,
# environments that fail are named, episodes can be looked at.
# PPO_DEVICE=cuda runs the same on a GPU.
# shellcheck source=tests/shell_lib.sh
. "$(dirname "$0")/shell_lib.sh"
unset RANK WORLD_SIZE LOCAL_RANK BRIM_FAULT
export BRIM_RUNS=$dir/runs
device=${PPO_DEVICE:-cpu}
quick=(watch.sample=false watch.report=false "device=$device" threads=1)
so() { ${CC:-gcc} -O1 -w -shared -fPIC -I"$here/src/env" -o "$1.so" "$here/tests/env/$1.c" -lm; }

train() { # name, recipe, overrides
    local name=$1 recipe=$2
    shift 2
    timeout -k 5 120 "$brim" train "$here/recipes/$recipe.yaml" "run=$name" "${quick[@]}" "$@" \
        >"$name.log" 2>&1 </dev/null
}

last() { sed -nE "s#.*\"$2\": (-?[0-9.e+-]+)[,}].*#\1#p" "runs/$1/metrics.jsonl" | tail -n 1; }
is() { awk "BEGIN { exit !($1 $2 $3) }"; }
same() { # name, other, step
    local f s
    s=$(printf 'step-%08d' "$3")
    for f in model optim; do
        cmp "runs/$1/checkpoints/$s/$f.safetensors" "runs/$2/checkpoints/$s/$f.safetensors" || return 1
    done
}

train solved cartpole; rc=$?
[ $rc -eq 0 ] && grep -q 'target reached: validation return' solved.log &&
    grep -qE 'steps/s: environments alone .*, with inference .*, with training' solved.log
verdict "cartpole is solved, ends and says three rates" $? "exit code $rc: $(tail -n 3 solved.log)"
grep -q '"charts/episodic_return"' runs/solved/metrics.jsonl &&
    grep -q '"losses/approx_kl"' runs/solved/metrics.jsonl
verdict "metrics have CleanRL's names" $?

"$brim" play solved --episodes 2 --out play.gif "${quick[@]}" >play.out 2>&1; rc=$?
[ $rc -eq 0 ] && [ "$(head -c 6 play.gif)" = GIF89a ] && grep -q 'mean return 500' play.out
verdict "play writes a picture of a solved run" $? "exit code $rc: $(tail -n 3 play.out)"
"$brim" eval solved "${quick[@]}" >eval.out 2>&1; rc=$?
[ $rc -eq 0 ] && grep -q 'greedy episodes' eval.out
verdict "eval plays greedy episodes" $? "exit code $rc: $(cat eval.out)"

# One seed here, five in make test-long.
train parity cartpole-cleanrl log_every=976; rc=$?
mean=$(last parity charts/episodic_return)
[ $rc -eq 0 ] && is "${mean:-0}" '>=' 450
verdict "CleanRL's defaults: mean return of the last 100 episodes" $? "exit code $rc: $mean"

short=(total_steps=0 optim.schedule=constant eval.target=0 checkpoint.every=4)
train whole cartpole "${short[@]}" steps=10 && train parts cartpole "${short[@]}" steps=6 &&
    train parts cartpole "${short[@]}" steps=10 && grep -q 'resuming after step 6' parts.log &&
    same whole parts 10
verdict "a run that goes on has the same bits" $? "$(tail -n 2 parts.log)"
# Rows of a minibatch are summed in another order, so the first losses agree to the last digits.
train two cartpole "${short[@]}" steps=1 ppo.groups=2 ppo.epochs=1 &&
    train one cartpole "${short[@]}" steps=1 ppo.epochs=1
a=$(last one losses/loss) b=$(last two losses/loss)
is "${a:-0}-${b:-9}" '<' 1e-5 && is "${b:-0}-${a:-9}" '<' 1e-5
verdict "two groups are the same rollout" $? "$a and $b"

so constant && so faulty || { echo "not ok test environments compile"; exit 1; }
value=(env=./constant.so ppo.gamma=0.9 total_steps=0 steps=150 eval.target=0 eval.samples=1 ppo.epochs=4
    optim.lr=3e-3 eval.every=0)
train exact cartpole "${value[@]}"; rc=$?; v=$(last exact charts/value)
[ $rc -eq 0 ] && is "${v:-0}" '>' 9.8 && is "${v:-0}" '<' 10.2
verdict "reward 1, discount 0.9, cut after 5 steps: the value is 10" $? "exit code $rc: $v"
train cut cartpole "${value[@]}" ppo.truncation=false; rc=$?; v=$(last cut charts/value)
[ $rc -eq 0 ] && is "${v:-0}" '<' 5
verdict "and is not when a truncation counts as a termination" $? "exit code $rc: $v"

# Faults: named, exit code 1, and what was saved stays.
faulty=(env=./faulty.so total_steps=0 eval.target=0 eval.samples=1 eval.every=0 checkpoint.every=1 steps=200)
train good cartpole "${faulty[@]}" steps=2; rc=$?
verdict "an environment of somebody else" $rc "$(tail -n 2 good.log)"
for f in nan:'element 1 of observation block x is' crash:'crashed' hang:'hangs'; do
    case "$build-${f%%:*}" in *asan*-crash) continue ;; esac
    name=bad-${f%%:*}
    train "$name" cartpole "${faulty[@]}" steps=2 &&
        train "$name" cartpole "${faulty[@]}" "env_options=[fault=${f%%:*},at=18]" ppo.timeout_s=0.5; rc=$?
    [ $rc -eq 1 ] && grep -q "environment ./faulty.so number.*${f#*:}" "$name.log" &&
        train "$name" cartpole "${faulty[@]}" steps=4 && grep -q 'resuming after step 2' "$name.log"
    verdict "${f%%:*} is named, exit code 1, the checkpoint is whole" $? "$rc: $(tail -n 2 "$name.log")"
done
train alone cartpole "${faulty[@]}" steps=2 &&
    train alone cartpole "${faulty[@]}" "env_options=[fault=crash,at=7,marker=$dir/marker]" isolate=process \
        ppo.workers=2 steps=4 ppo.timeout_s=10; rc=$?
[ $rc -eq 0 ] && [ "$(last alone charts/restarts)" = 1 ]
verdict "isolate: process restarts a crashed environment and counts it" $? "$rc: $(tail -n 3 alone.log)"

refused() { # name, pattern, overrides
    local name=$1 pattern=$2 out rc
    shift 2
    out=$("$brim" train "$here/recipes/cartpole.yaml" run=no "$@" 2>&1 </dev/null); rc=$?
    [ $rc -eq 2 ] && echo "$out" | grep -qE -- "$pattern"
    verdict "$name" $? "exit code $rc: $out"
}
refused "a slip in the environment's name" 'did you mean cartpole' env=cartpol
refused "a minibatch that does not divide" 'must divide.*256 would do' ppo.minibatch=255
refused "an mlp has no context" 'policy.context needs policy.kind trunk' policy.context=8
refused "keys of a language model" 'task ppo has no such key' model.width=64
exit $failed
