#!/usr/bin/env bash
# PPO from the command line: CartPole is solved, runs go on bit for bit, a truncation is no termination,
# environments that fail are named, episodes can be looked at.
# shellcheck source=tests/shell_lib.sh
. "$(dirname "$0")/shell_lib.sh"
unset RANK WORLD_SIZE LOCAL_RANK BRIM_FAULT
export BRIM_RUNS=$dir/runs
quick=(watch.sample=false watch.report=false device=cpu threads=1)
so() { # name, flags
    ${CC:-gcc} -O1 -w "${@:2}" -shared -fPIC -I"$here/src/env" -o "$1.so" "$here/tests/env/$1.c" -lm
}

train() { # name, recipe, overrides
    local name=$1 recipe=$2
    shift 2
    timeout -k 5 120 "$brim" train "$here/recipes/$recipe.yaml" "run=$name" "${quick[@]}" "$@" \
        >"$name.log" 2>&1 </dev/null
}

same() { # name, other, step
    local f s
    s=$(printf 'step-%08d' "$3")
    for f in model optim; do
        cmp "runs/$1/checkpoints/$s/$f.safetensors" "runs/$2/checkpoints/$s/$f.safetensors" || return 1
    done
}

train solved cartpole; rc=$?
[ $rc -eq 0 ] && grep -q 'target reached: validation return' solved.log &&
    grep -q 'cartpole is solved: mean return .* over 100 greedy episodes, 475 is enough' solved.log &&
    grep -qE 'alone .*, with inference .*, with training .*20 epochs, no tokens, .*MFU' solved.log
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
# 100 episodes of 500 steps: far more than 1,000 steps/s, even on a busy machine.
"$brim" eval solved "${quick[@]}" --json >eval.out 2>&1
is "$(sed -n 's/.*"per_s": \([0-9.]*\).*/\1/p' eval.out)" '>' 1000
verdict "eval counts the steps of episodes" $? "$(cat eval.out)"

# The exported header plays CartPole without Brim.
"$brim" export solved out >export.out 2>&1; rc=$?
cat >plays.c <<'END'
#include "env/cartpole.h"
#include "out/policy.h"
#include <stdio.h>
int main(void)
{
    int all = 0;
    for (int e = 0; e < 20; e++) {
        CartPole s;
        float    obs[4], out[2], value, reward;
        int      t = 0;
        for (cartpole_reset(&s, 77 + e); t < 500; t++) {
            cartpole_observe(&s, obs);
            policy_run(obs, out, &value);
            int32_t act = out[1] > out[0];
            if (cartpole_step(&s, &act, NULL, &reward)) break;
        }
        all += t;
    }
    printf("%d\n", all / 20);
    return 0;
}
END
${CC:-gcc} -O2 -w -I"$here/src" -I. -o plays plays.c -lm 2>cc.out && mean=$(./plays) && [ $rc -eq 0 ] &&
    is "$mean" '>=' 475 && [ -s out/policy.safetensors ]
verdict "the exported header plays without Brim" $? "exit code $rc: $(cat export.out cc.out) ${mean:-}"

# The exported header answers as Brim does, whatever the observation and the action are. recorder.c writes
# down what the policy was shown and what Brim answered.
cat >answers.c <<'END'
#include "policy.h"
#include <stdio.h>
int main(int argc, char **argv)
{
    float  obs[POLICY_OBS], want[POLICY_ACT];
    int    n     = 0;
    double worst = 0, z = 0;
    FILE  *f = fopen(argv[1], "r");
    for (;;) {
        for (int i = 0; i < POLICY_OBS; i++)
            if (fscanf(f, "%a", &obs[i]) != 1) goto end;
        for (int i = 0; i < POLICY_ACT; i++)
            if (fscanf(f, "%a", &want[i]) != 1) goto end;
        n++;
#ifdef RANGE
        float got[POLICY_ACT], mean[POLICY_ACT], log_std[POLICY_ACT], value;
        policy_act(obs, got);
        policy_run(obs, mean, log_std, &value);
        z += pow((want[1] - mean[1]) / exp(log_std[1]), 2);
#else
        unsigned char mask[POLICY_OUT];
        int           got[POLICY_ACT];
        for (int i = 0; i < POLICY_OUT; i++) mask[i] = i != 2 + (int)obs[0] % 3;
        policy_act(obs, mask, got);
#endif
        for (int i = 0; i < POLICY_ACT; i++) worst = fmax(worst, fabs(got[i] - want[i]));
    }
end:
    printf("%d %g %g\n", n, worst, n ? z / n : 0);
    return 0;
}
END
tiny=(total_steps=0 steps=3 eval.target=0 eval.every=0 eval.samples=1 env=./recorder.so)
header() { # name, act, overrides: trains, plays into name.txt, compiles name.exe
    local name=$1 act=$2
    shift 2
    train "$name" cartpole "${tiny[@]}" "env_options=[act=$act]" "$@" &&
        "$brim" play "$name" --episodes 2 "env_options=[act=$act,record=$name.txt]" "${quick[@]}" \
            >"$name.log" 2>&1 && "$brim" export "$name" "$name.out" >"$name.log" 2>&1 &&
        ${CC:-gcc} -std=c99 -Wall -Wextra -Werror -Wno-unused-parameter -O2 "-D${act^^}" -I"$name.out" \
            -o "$name.exe" answers.c -lm 2>"$name.log"
}
so recorder || { echo "not ok recorder.c compiles"; exit 1; }
answers() { # title, name, act, overrides. Numbers differ by the order of sums alone.
    local title=$1 name=$2 seen
    shift
    header "$@" && seen=$("./$name.exe" "$name.txt") &&
        awk '{ exit !($1 == 128 && $2 < 1e-5) }' <<<"$seen"
    verdict "exported: $title" $? "${seen:-} $(tail -n 2 "$name.log")"
}
answers "several heads, a mask, blocks with a scale" heads heads
answers "normalised observations" heads_norm heads ppo.obs_norm=true policy.act=relu policy.shared=true
answers "numbers inside their range" range range policy.act=silu optim.lr=0.05
answers "numbers, normalised" range_norm range ppo.obs_norm=true ppo.obs_clip=1.5 policy.act=gelu \
    policy.critic_width=16
# The deviation is a head, or a weight. The rollout of a run that goes on is drawn by the policy that was
# exported: its answers are normal numbers around the exported mean, in units of the exported deviation.
for how in false true; do
    seen=
    header std_$how range policy.state_std=$how policy.log_std=-1 optim.schedule=constant &&
        train std_$how cartpole "${tiny[@]}" steps=4 "env_options=[act=range,record=drawn_$how.txt]" \
            optim.schedule=constant && head -n 256 drawn_$how.txt >drawn.txt &&
        seen=$(./std_$how.exe drawn.txt) && awk '{ exit !($1 == 256 && $3 > 0.75 && $3 < 1.3) }' <<<"$seen"
    verdict "exported: the deviation, state_std $how" $? "$seen $(tail -n 2 std_$how.log)"
done

# The host answers one observation at a time: the same rollout, to rounding.
short=(total_steps=0 optim.schedule=constant eval.target=0 checkpoint.every=4)
train by_host cartpole "${short[@]}" steps=3 ppo.answer=host && train by_device cartpole "${short[@]}" steps=3
a=$(last by_host losses/loss) b=$(last by_device losses/loss)
is "${a:-0}-${b:-9}" '<' 1e-3 && is "${b:-0}-${a:-9}" '<' 1e-3 && grep -q '2.0 transfers a step' by_host.log
verdict "the host answers as the device does" $? "$a and $b: $(tail -n 2 by_host.log)"
# Brim looks at the third update's kernels by itself; the recipe's own trace comes first.
train traced cartpole "${short[@]}" steps=8 ppo.answer=host trace=3 trace_skip=1 trace_warmup=1 &&
    "$brim" trace summarize traced >trace.out 2>&1 && grep -q linear_fwd trace.out
verdict "a trace that the recipe asks for is not cut short" $? "$(cat trace.out traced.log)"
# Weights in bf16 have 8 bits: the answers differ, by little.
train by_half cartpole "${short[@]}" steps=3 ppo.answer=host ppo.answer_bf16=true &&
    c=$(last by_half losses/loss)
is "($b-${c:-9})^2" '<' 0.04 && [ "$b" != "$c" ]
verdict "the host answers with weights in bf16" $? "$b and ${c:-none}: $(tail -n 2 by_half.log)"
for frozen in actor.0 value critic; do
    train host_frozen cartpole "${short[@]}" steps=3 ppo.answer=host "freeze=[$frozen]"; rc=$?
    train device_frozen cartpole "${short[@]}" steps=3 "freeze=[$frozen]"
    a=$(last host_frozen losses/loss) b=$(last device_frozen losses/loss)
    [ $rc -eq 0 ] && is "${a:-0}-${b:-9}" '<' 1e-3 && is "${b:-0}-${a:-9}" '<' 1e-3
    verdict "so it does where $frozen is frozen" $? "$a and $b, exit code $rc: $(tail -n 2 host_frozen.log)"
    rm -rf runs/{host,device}_frozen
done
train host_std pendulum "${short[@]}" steps=2 ppo.answer=host "freeze=[log_std]"
verdict "the host answers where log_std is frozen" $? "$(tail -n 2 host_std.log)"
# Many observations and a wide net: the device answers faster. Last observations of cut episodes then reach
# the device as they do without ppo.answer: the environment is cut after five steps.
so constant || { echo "not ok constant.c compiles"; exit 1; }
cuts=("${short[@]}" env=./constant.so steps=2 ppo.envs=64 ppo.rollout=16 ppo.minibatch=1024 ppo.epochs=1
    policy.width=512 eval.samples=1 eval.every=0)
train auto cartpole "${cuts[@]}" ppo.answer=auto; rc=$?
train never cartpole "${cuts[@]}"
if [ $rc -eq 0 ] && grep -q 'the CPU answers' auto.log; then
    echo "skip: the CPU answers faster here: $(grep 'observations answered' auto.log)"
else
    [ $rc -eq 0 ] && same auto never 2
    verdict "ppo.answer auto, the device answers: the same bits" $? "exit code $rc: $(tail -n 2 auto.log)"
fi
# steps on the command line counts more than total_steps of the recipe; both there are a contradiction.
train by_steps cartpole steps=2 eval.target=0 eval.every=0 eval.samples=1 &&
    grep -q "2 steps done" by_steps.log
verdict "steps instead of total_steps" $? "$(tail -n 2 by_steps.log)"
train both cartpole steps=2 total_steps=1024; rc=$?
[ $rc -eq 2 ] && grep -q 'command line: steps: not together with total_steps' both.log
verdict "steps and total_steps contradict" $? "exit code $rc: $(tail -n 2 both.log)"
# The CPU's net may be deep.
train deep_host cartpole "${short[@]}" steps=1 ppo.answer=host policy.layers=70 &&
    train deep_device cartpole "${short[@]}" steps=1 policy.layers=70 &&
    a=$(last deep_host losses/loss) && b=$(last deep_device losses/loss)
is "${a:-0}-${b:-9}" '<' 1e-3 && is "${b:-0}-${a:-9}" '<' 1e-3
verdict "the host answers with a deep net" $? "$a and $b: $(tail -n 2 deep_host.log)"
for flash in true false; do "$brim" plan tmaze opt.flash=$flash | grep activations >flash.$flash; done
[ -s flash.true ] && ! cmp -s flash.true flash.false
verdict "attention without opt.flash stores its weights" $? "$(cat flash.true flash.false)"
train meteor meteor steps=20 && r=$(last meteor val_return)
is "${r:-0}" '>=' 1; verdict "meteor learns to catch gems" $? "return ${r:-none}"
maze=(steps=60 eval.every=0)
train remembers tmaze "${maze[@]}" && r=$(last remembers val_return)
is "${r:-0}" '>=' 0.9; verdict "a transformer remembers the T-maze's first cell" $? "return ${r:-none}"
train forgets tmaze "${maze[@]}" policy.kind=mlp policy.context=1 && r=$(last forgets val_return)
is "${r:-9}" '<=' 0.2; verdict "an mlp cannot" $? "return ${r:-none}"

# Four buses that share a crossing. Untrained: 0. Those that do not see each other crash, or wait for ever.
busy=(steps=100 total_steps=0 eval.every=0)
train crossing crossing "${busy[@]}" && r=$(last crossing val_return)
is "${r:-0}" '>=' 3.5; verdict "four agents give way to each other" $? "return ${r:-none}"
train blind crossing "${busy[@]}" "env_options=[blind=1]" && r=$(last blind val_return)
is "${r:-9}" '<=' 2.5; verdict "agents that do not see each other cannot" $? "return ${r:-none}"
team=("${busy[@]}" steps=1 ppo.envs=6 ppo.rollout=8 ppo.minibatch=0)
train team crossing "${team[@]}" micro_batch=96; rc=$?
[ $rc -eq 0 ] && train uneven crossing "${team[@]}" micro_batch=36
[ $? -eq 2 ] && grep -q 'micro_batch (36) must divide ppo.minibatch (192)' uneven.log
verdict "a micro-batch divides the minibatch of all agents" $? "exit code $rc: $(cat team.log uneven.log)"
"$brim" play crossing --episodes 3 --out crossing.gif "${quick[@]}" >play.out 2>&1; rc=$?
m=$(sed -n 's/^mean return \([^,]*\),.*/\1/p' play.out)
[ $rc -eq 0 ] && [ "$(head -c 6 crossing.gif)" = GIF89a ] && is "${m:-0}" '>=' 3 &&
    grep -q '^a return is the mean of 4 agents; their sum is' play.out
verdict "play shows all agents" $? "exit code $rc: $(tail -n 3 play.out)"
"$brim" eval crossing "${quick[@]}" >eval.out 2>&1; m=$(sed -n 's/^.*mean return \([^ ]*\) .*/\1/p' eval.out)
is "${m:-0}" '>=' 3.5
verdict "eval has the mean over agents" $? "$(cat eval.out)"

# An arm whose target is drawn per episode: it must look at the target. Untrained: -65.
if "$brim" env check mujoco:arm26.xml --seconds 0 >mujoco.out 2>&1; then
    train reach reach total_steps=0 steps=60 eval.every=0 && r=$(last reach val_return)
    is "${r:--99}" '>=' -30; verdict "an arm reaches for its target" $? "return ${r:-none}"
else
    echo "skip: $(tail -n 1 mujoco.out)"
fi

# Two ranks with half of the environments each. One minibatch has all samples, so both runs have the same one.
losses() { sed -nE 's#.*"losses/loss": ([^,]+),.*#\1#p' "runs/$1/metrics.jsonl"; }
ranks() { # title, overrides
    local title=$1 tries port r pids rc0 rc1
    shift
    local keys=(ppo.envs=16 ppo.minibatch=512 ppo.epochs=1 steps=10 total_steps=0 eval.target=0 eval.samples=2
        eval.every=0 "$@")
    rm -rf runs/alone16 runs/pair
    train alone16 cartpole "${keys[@]}"
    for ((tries = 0; tries < 5; tries++)); do
        port=$((20000 + RANDOM % 12000)) pids=()
        for r in 0 1; do
            RANK=$r WORLD_SIZE=2 LOCAL_RANK=$r MASTER_PORT=$port timeout -s KILL 60 \
                "$brim" train "$here/recipes/cartpole.yaml" run=pair "${quick[@]}" "${keys[@]}" \
                >"pair.$r.log" 2>&1 </dev/null &
            pids+=($!)
        done
        wait "${pids[0]}"; rc0=$?
        wait "${pids[1]}"; rc1=$?
        grep -q 'port .* in use' pair.0.log || break
    done
    [ $rc0 -eq 0 ] && [ $rc1 -eq 0 ] && [ "$(losses pair | wc -l)" -eq 10 ] &&
        paste <(losses alone16) <(losses pair) |
        awk '{ d = $1 - $2; if (d * d > 1e-8) bad = 1 } END { exit bad }'
    verdict "$title" $? "exit codes $rc0, $rc1: $(tail -n 1 pair.0.log)"
    [ "$(last pair charts/global_step)" = "${all_steps:-5120}" ]
    verdict "$title: steps are those of both" $? "$(last pair charts/global_step)"
}
export MASTER_ADDR=127.0.0.1 BRIM_COMM_TIMEOUT=20
ranks "two ranks have the losses of one"
ranks "two ranks share the statistics of observations and rewards" ppo.obs_norm=true ppo.reward_norm=true
all_steps=20480 ranks "two ranks divide environments of four agents" env=crossing ppo.minibatch=2048 \
    ppo.obs_norm=true ppo.reward_norm=true

# One seed here, five in make test-long.
train parity cartpole-cleanrl log_every=976; rc=$?
mean=$(last parity charts/episodic_return)
[ $rc -eq 0 ] && is "${mean:-0}" '>=' 450
verdict "CleanRL's defaults: mean return of the last 100 episodes" $? "exit code $rc: $mean"
if [ -n "${PPO_LONG:-}" ]; then
    long() { # environment, bound of the mean, bound of each seed
        local s m all=0 bad=
        for s in 1 2 3 4 5; do
            train "$1-$s" cartpole-cleanrl "env=$1" "seed=$s" log_every=976
            m=$(last "$1-$s" charts/episodic_return)
            all=$all+${m:-0}
            is "${m:-0}" '>=' "$3" || bad="$bad seed $s: ${m:-none}"
        done
        is "($all)/5" '>=' "$2" && [ -z "$bad" ]
        verdict "CleanRL's defaults on $1, five seeds" $? "$all$bad"
    }
    long cartpole 475 450
    long acrobot -100 -100
    greedy() { # recipe, bound
        train "$1" "$1" eval.every=0 && m=$(last "$1" val_return)
        is "${m:--9999}" '>=' "$2"
        verdict "$1: greedy, 100 episodes" $? "${m:-none}"
    }
    greedy pendulum -200
    greedy mountaincar-continuous 88
    sorted=$(for s in 1 2 3 4 5; do
        begin=$(date +%s.%N)
        timeout 100 "$brim" train "$here/recipes/cartpole.yaml" "run=time-$s" "seed=$s" \
            >time.log 2>&1 </dev/null &&
            echo "$(date +%s.%N) $begin" | awk '{ print $1 - $2 }'
    done | sort -n)
    is "$(echo "$sorted" | sed -n 3p)" '<' 20 && is "$(echo "$sorted" | sed -n 5p)" '<' 40
    verdict "cartpole is solved in 20 s, the median of five seeds" $? "$sorted"
fi

short=(total_steps=0 optim.schedule=constant eval.target=0 checkpoint.every=4)
train whole cartpole "${short[@]}" steps=10 && train parts cartpole "${short[@]}" steps=6 &&
    train parts cartpole "${short[@]}" steps=10 && grep -q 'resuming after step 6' parts.log &&
    same whole parts 10
verdict "a run that goes on has the same bits" $? "$(tail -n 2 parts.log)"
# A mask holds from the first turn on, on either side, and over a checkpoint.
so legal || { echo "not ok legal.c compiles"; exit 1; }
for how in host device; do
    masked=("${short[@]}" env=./legal.so "ppo.answer=$how" eval.samples=1 eval.every=0)
    train whole_$how cartpole "${masked[@]}" steps=6 && train parts_$how cartpole "${masked[@]}" steps=3 &&
        train parts_$how cartpole "${masked[@]}" steps=6 && grep -q 'resuming after step 3' parts_$how.log &&
        same whole_$how parts_$how 6
    verdict "masks, ppo.answer $how: a run that goes on has the same bits" $? "$(tail -n 2 parts_$how.log)"
done
# So it is with several agents, whoever answers, with memory or without.
agents=("${short[@]}" eval.samples=1 eval.every=0)
several() { # name, overrides
    local name=$1
    shift
    train whole_$name crossing "${agents[@]}" steps=6 "$@" &&
        train parts_$name crossing "${agents[@]}" steps=3 "$@" &&
        train parts_$name crossing "${agents[@]}" steps=6 "$@" &&
        grep -q 'resuming after step 3' parts_$name.log && ! grep -q 'new episodes' parts_$name.log &&
        same whole_$name parts_$name 6
    verdict "several agents, $name: a run that goes on has the same bits" $? "$(tail -n 2 parts_$name.log)"
}
several mlp
several by_host ppo.answer=host
several trunk policy.kind=trunk policy.context=16 policy.width=32
several norms ppo.obs_norm=true ppo.reward_norm=true ppo.groups=4
a=$(last whole_mlp losses/loss) b=$(last whole_by_host losses/loss)
is "${a:-0}-${b:-9}" '<' 1e-4 && is "${b:-0}-${a:-9}" '<' 1e-4
verdict "several agents: the host answers as the device does" $? "$a and $b"
is "$(last whole_mlp charts/alive)" '<' 1 && is "$(last whole_mlp charts/alive)" '>' 0.1 &&
    is "($(last whole_mlp charts/team_return)-4*$(last whole_mlp charts/episodic_return))^2" '<' 1e-6
verdict "metrics have the share that takes part, and the team's return" $? \
    "$(tail -n 1 runs/whole_mlp/metrics.jsonl)"
# An update sees what the policy saw, so the first one begins where the rollout was: memory of each agent.
train memory crossing "${agents[@]}" steps=1 ppo.minibatch=4096 ppo.epochs=1 ppo.max_steps=30 \
    policy.kind=trunk policy.context=32 policy.width=32 && r=$(last memory losses/approx_kl)
is "${r:-9}" '<' 1e-6 && is "${r:-9}" '>' -1e-6
verdict "several agents: an update sees each agent's memory" $? "${r:-} $(tail -n 2 memory.log)"
train here crossing "${agents[@]}" steps=2 ppo.threads=3 &&
    train apart crossing "${agents[@]}" steps=2 isolate=process ppo.workers=2 &&
    cmp runs/{here,apart}/checkpoints/step-00000002/model.safetensors
verdict "several agents in processes: the same bits" $? "$(tail -n 2 apart.log)"
# Other options or another seed: the saved episodes would be of the old ones, so new ones begin. Episodes of
# an untrained policy in a T-maze of length 1 take a few steps, in one of length 20 more than 21.
again=("${short[@]}" ppo.epochs=1 optim.lr=1e-9 eval.samples=1 eval.every=0)
train other tmaze "${again[@]}" steps=1 policy.kind=mlp policy.context=1 "env_options=[length=1]" &&
    train other tmaze "${again[@]}" steps=9 policy.kind=mlp policy.context=1 "env_options=[length=20]" &&
    grep -q 'are not the same any more: new episodes begin' other.log &&
    is "$(last other charts/episodic_length)" '>' 21
verdict "other options begin new episodes" $? "$(tail -n 2 other.log) $(last other charts/episodic_length)"
train reseeded cartpole "${again[@]}" steps=1 && train reseeded cartpole "${again[@]}" steps=2 seed=9 &&
    grep -q 'are not the same any more: new episodes begin' reseeded.log
verdict "another seed begins new episodes" $? "$(tail -n 2 reseeded.log)"
# So do their discounted rewards: -1 a step, so a rollout of 32 steps leaves -32, 64 steps of one episode -64.
if command -v python3 >/dev/null; then
    cat >sums.py <<'END'
import json, struct, sys
path, n = sys.argv[1], int(sys.argv[2])
with open(path, "rb") as f:
    head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
    (at,) = [v["data_offsets"][0] for k, v in head.items() if k.endswith("environments")]
    f.seek(f.tell() + at + 8 * (100 + 100 + 2 + 3))  # PpoHost
    print(min(struct.unpack(f"{n}f", f.read(4 * n))))
END
    sums=("${again[@]}" env=acrobot ppo.gamma=1 ppo.reward_norm=true)
    kept() { python3 sums.py "runs/sums/checkpoints/step-0000000$1/optim.safetensors" 8; }
    train sums cartpole "${sums[@]}" steps=1 && train sums cartpole "${sums[@]}" steps=2 seed=9 &&
        [ "$(kept 1)" = -32.0 ] && [ "$(kept 2)" = -32.0 ]
    verdict "new episodes begin without rewards" $? "$(kept 1 2>&1) $(kept 2 2>&1) $(tail -n 2 sums.log)"
fi
# An environment that runs elsewhere now, or was built anew with another state, begins new episodes, too.
for change in "none process" "process none"; do
    read -r from to <<<"$change"
    train "moved_$from" cartpole "${again[@]}" steps=1 "isolate=$from" &&
        train "moved_$from" cartpole "${again[@]}" steps=2 "isolate=$to" &&
        grep -q 'new episodes begin' "moved_$from.log"
    verdict "isolate $from, then $to: new episodes begin" $? "$(tail -n 2 "moved_$from.log")"
done
for bytes in 4096 4; do
    so legal "-DSTATE_BYTES=$bytes" && train grown cartpole "${again[@]}" env=./legal.so \
        steps=$((bytes == 4 ? 3 : 2)) && { [ $bytes = 4096 ] || grep -q 'new episodes begin' grown.log; }
    verdict "a state of $bytes bytes after another one" $? "$(tail -n 2 grown.log)"
done
# Files are found beside the recipe, and the run goes on from any folder, also when its folder has moved.
mkdir -p proj elsewhere && cp legal.so proj/mine.so &&
    printf 'task: ppo\nenv: ./mine.so\ndevice: cpu\nthreads: 1\nsteps: 1\neval: {samples: 1}\n' >proj/r.yaml
alone=(watch.sample=false watch.report=false run=proj)
(cd elsewhere && "$brim" train ../proj/r.yaml "${alone[@]}") >proj.log 2>&1 </dev/null &&
    (cd / && "$brim" play "$dir/runs/proj") >>proj.log 2>&1 && mv proj moved &&
    (cd moved && "$brim" train r.yaml "${alone[@]}" steps=2) >>proj.log 2>&1 </dev/null &&
    grep -q 'resuming after step 1' proj.log && ! grep -q 'new episodes' proj.log
verdict "an environment beside the recipe" $? "$(tail -n 3 proj.log)"
# Neither threads nor slices are seen in a result.
many=("${short[@]}" ppo.envs=64 ppo.groups=4 steps=4)
train few cartpole "${many[@]}" ppo.threads=1 && train many cartpole "${many[@]}" ppo.threads=14 &&
    same few many 4
verdict "one thread and fourteen, four groups: the same bits" $? "$(tail -n 2 many.log)"
# Rows of a minibatch are summed in another order, so the first losses agree to the last digits.
train two cartpole "${short[@]}" steps=1 ppo.groups=2 ppo.epochs=1 &&
    train one cartpole "${short[@]}" steps=1 ppo.epochs=1
a=$(last one losses/loss) b=$(last two losses/loss)
is "${a:-0}-${b:-9}" '<' 1e-5 && is "${b:-0}-${a:-9}" '<' 1e-5
verdict "two groups are the same rollout" $? "$a and $b"

so faulty && so pairs || { echo "not ok test environments compile"; exit 1; }
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
for f in nan:'element 1 of observation block x is' shape:'shape has changed' crash:'crashed' hang:'hangs'; do
    case "$build-${f%%:*}" in *asan*-crash) continue ;; esac
    name=bad-${f%%:*} at=18 # steps of an episode
    if [ "$name" = bad-shape ]; then at=2; fi # resets
    train "$name" cartpole "${faulty[@]}" steps=2 &&
        train "$name" cartpole "${faulty[@]}" "env_options=[fault=${f%%:*},at=$at]" ppo.timeout_s=0.5; rc=$?
    [ $rc -eq 1 ] && grep -q "environment .*/faulty.so number.*${f#*:}" "$name.log" &&
        train "$name" cartpole "${faulty[@]}" steps=4 && grep -q 'resuming after step 2' "$name.log"
    verdict "${f%%:*} is named, exit code 1, the checkpoint is whole" $? "$rc: $(tail -n 2 "$name.log")"
    if [ "$name" = bad-crash ] || [ "$name" = bad-hang ]; then
        grep -q "environment .*${f#*:}" "runs/$name/log.txt"
        verdict "${f%%:*} is in log.txt, too" $? "$(tail -n 3 "runs/$name/log.txt")"
    fi
done
train alone cartpole "${faulty[@]}" steps=2 &&
    train alone cartpole "${faulty[@]}" "env_options=[fault=crash,at=7,marker=$dir/marker]" isolate=process \
        ppo.workers=2 steps=4 ppo.timeout_s=10; rc=$?
[ $rc -eq 0 ] && is "$(last alone charts/restarts)" ">=" 1 # both workers may crash before the marker is there
verdict "isolate: process restarts a crashed environment and counts it" $? "$rc: $(tail -n 3 alone.log)"

# More episodes may be cut than the limit cuts: here each worker crashes every 150 steps, at a limit of 1000.
train flaky cartpole "${faulty[@]}" "env_options=[fault=abort,every=150]" isolate=process ppo.workers=1 \
    steps=1 ppo.envs=4 ppo.rollout=2048 ppo.minibatch=2048 ppo.epochs=1 ppo.max_steps=1000; rc=$?
[ $rc -eq 0 ] && is "$(last flaky charts/restarts)" ">=" 10
verdict "restarts do not end the run" $? "$rc: $(tail -n 2 flaky.log)"
# One process to ask, one to train, one to evaluate.
if command -v python3 >/dev/null; then
    printf 'import sys\nsys.path.insert(0, "%s")\nfrom line import *\nopen("%s", "a").write("s")\n' \
        "$here/tests/env" "$dir/starts" >counted.py
    train asked cartpole env=gym:counted.py:Line total_steps=0 steps=2 eval.target=0 eval.samples=1 \
        ppo.workers=1; rc=$?
    [ $rc -eq 0 ] && [ "$(wc -c <starts)" -le 3 ]
    verdict "the environment is asked once what it is" $? "$rc: $(cat starts) $(tail -n 2 asked.log)"
fi
# A signal in a step that takes long: nothing is lost, so the run leaves at once.
leaves() { # title, overrides
    local title=$1 pid ms begin rc
    shift
    rm -rf runs/long
    "$brim" train "$here/recipes/cartpole.yaml" run=long "${quick[@]}" total_steps=0 steps=2 eval.target=0 \
        eval.every=0 eval.samples=1 ppo.envs=1 ppo.minibatch=4096 "$@" >long.log 2>&1 </dev/null & pid=$!
    sleep 1.5; begin=${EPOCHREALTIME/./}
    kill -TERM $pid; wait $pid; rc=$?; ms=$(((${EPOCHREALTIME/./} - begin) / 1000))
    [ $rc -eq 0 ] && [ $ms -lt 3000 ] && grep -q 'SIGTERM received: leaving after step 0' long.log
    verdict "SIGTERM in a long $title" $? "exit code $rc after $ms ms: $(tail -n 2 long.log)"
}
leaves rollout ppo.rollout=4194304
leaves "rollout by the host" ppo.rollout=4194304 ppo.answer=host
leaves update ppo.rollout=4096 ppo.epochs=1000 ppo.minibatch=1
leaves evaluation ppo.rollout=4096 eval.every=1 eval.samples=4194304

refused() { # name, pattern, overrides
    local name=$1 pattern=$2 out rc
    shift 2
    out=$("$brim" train "$here/recipes/cartpole.yaml" run=no "$@" 2>&1 </dev/null); rc=$?
    [ $rc -eq 2 ] && echo "$out" | grep -qE -- "$pattern"
    verdict "$name" $? "exit code $rc: $out"
}
large="total_steps=0 ppo.rollout=65536 ppo.envs=64 ppo.minibatch=64 policy.width=1024 memory_limit=300M"
# shellcheck disable=SC2086 # keys are words
refused "what does not fit names what could give way" \
    'does not fit: .*\(state [0-9.]+ MiB\) .*a larger memory_limit or half of ppo.rollout would help' $large
# shellcheck disable=SC2086
brim plan "$here/recipes/cartpole.yaml" $large
[ $rc -eq 2 ] && says '^  activations ' &&
    [ "$(grep -cE '^half of (ppo.rollout|ppo.envs|policy.width) saves [0-9.]+ MiB$' said)" -eq 3 ]
verdict "brim plan has all that could give way" $? "exit code $rc: $(cat said)"
refused "a slip in the environment's name" 'did you mean cartpole' env=cartpol
refused "a minibatch that does not divide" 'must divide.*256 would do' ppo.minibatch=255
train all cartpole total_steps=0 steps=1 eval.target=0 eval.every=0 eval.samples=1 ppo.envs=100 \
    ppo.rollout=1000 ppo.minibatch=0 ppo.epochs=1
[ "$(sed -n 's/^ *minibatch: //p' runs/all/recipe.yaml)" = 50000 ]
verdict "a minibatch of 0 is at most 65,536 samples" $? "$(grep minibatch runs/all/recipe.yaml)"
refused "a rollout that has no equal parts" 'ppo.rollout: .*65537.*ppo.rollout 65536 would do' total_steps=0 \
    ppo.envs=1 ppo.rollout=65537 ppo.minibatch=0
refused "no rollout has equal parts" 'ppo.envs: .*8388736.*ppo.envs 65536 would do' total_steps=0 \
    ppo.envs=65537 ppo.rollout=128 ppo.minibatch=0
refused "an mlp has no context" 'policy.context needs policy.kind trunk' policy.context=8
for key in policy.heads=2 policy.ffn=64 policy.log_std=-1 policy.state_std=true ppo.answer_bf16=true \
    ppo.obs_clip=5 ppo.reward_clip=5 ppo.workers=2; do
    refused "a key that does nothing: $key" "command line: ${key%=*}: does nothing" $key
done
for answer in host auto; do
    refused "ppo.place device and ppo.answer $answer" 'ppo.(place|answer): .*the CPU answers on the host' \
        ppo.place=device ppo.answer=$answer
done
refused "groups of environments, where the host answers" 'command line: ppo.groups: does nothing' \
    ppo.answer=auto ppo.groups=2
out=$("$brim" plan mlp-massive --gpu h200 ppo.groups=2 2>&1); rc=$?
[ $rc -eq 2 ] && echo "$out" | grep -q 'command line: ppo.groups: does nothing'
verdict "groups of environments on the device" $? "exit code $rc: $out"
refused "a shared body has one width" 'policy.critic_width: does nothing' policy.shared=true \
    policy.critic_width=32
refused "a trunk has its own activation" 'policy.act: does nothing' policy.kind=trunk policy.act=relu
refused "parity contradicts truncation" 'ppo.truncation: parity cleanrl counts' parity=cleanrl \
    ppo.truncation=true
refused "CleanRL has one agent" "^command line: parity: CleanRL's ppo.py has one agent .* ./pairs.so has 2" \
    env=./pairs.so parity=cleanrl
refused "a minibatch of several agents" 'must divide ppo.envs x ppo.rollout x 2 agents .512.' env=./pairs.so \
    ppo.minibatch=96
out=$("$brim" plan crossing --gpu h200 ppo.place=device 2>&1); rc=$?
[ $rc -eq 2 ] && echo "$out" | grep -q 'command line: ppo.place: device steps environments of one agent only'
verdict "several agents on the device" $? "exit code $rc: $out"
# Two agents of somebody else, with two heads each. The second one always leaves after five steps and is still
# written rewards: if they counted, the return would come near 15.
train two_agents cartpole env=./pairs.so total_steps=0 steps=30 eval.target=0 eval.every=0 eval.samples=4 &&
    r=$(last two_agents val_return)
is "${r:-0}" '>=' 8 && is "${r:-99}" '<=' 12.5
verdict "two agents that somebody else wrote learn" $? "${r:-} $(tail -n 2 two_agents.log)"
refused "keys of a language model" 'task ppo has no such key' model.width=64
exit $failed
