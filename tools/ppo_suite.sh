#!/usr/bin/env bash
# PPO on a GPU beside PyTorch, in one run: steps per second of environments alone, with inference, with
# training, and the ratio to PyTorch. One line for each case.
#     tools/ppo_suite.sh BUILD [PEER.py]     PEER.py: what PyTorch's users have; left out, Brim runs alone
# PPO_ONLY=massive,mlp,hybrid,core,more picks parts. About five minutes with the peer, two without.
set -uo pipefail
build=$(cd "${1:-build}" && pwd)
here=$(cd "$(dirname "$0")/.." && pwd)
peer=${2:-}
only=${PPO_ONLY:-massive,mlp,hybrid,core,more}
dir=$(mktemp -d); trap 'rm -rf "$dir"' EXIT
export BRIM_RUNS=$dir/runs
wants() { case ",$only," in *",$1,"*) return 0 ;; esac; return 1; }

# The rate of the steps after the first two, which warm up.
report() { # title, run, peer's rate or nothing
    python3 - "$1" "$dir/runs/$2/metrics.jsonl" "$dir/$2.log" "${3:-}" <<'END'
import json, sys
title, path, log, peer = sys.argv[1:]
try:
    rows = [json.loads(x) for x in open(path)]
except OSError:
    rows = []
rows = [x for x in rows if "per_s" in x]
if len(rows) < 2:
    print(f"{title:46s} FAILED: {open(log).read().strip().splitlines()[-1:]}")
    sys.exit()
first = rows[min(1, len(rows) - 2)]
last = rows[-1]
steps = last["charts/global_step"] - first["charts/global_step"]
rate = steps / (last["time_s"] - first["time_s"])
show = lambda x: f"{x:13,.0f}" if x else f"{'-':>13s}"
mfu = f'{100 * last["mfu"]:.1f} %' if last.get("mfu") else "-"
peer = float(peer or 0)
ratio = f"{rate / peer:.2f}x" if peer else "-"
print(f'{title:46s} {show(last.get("rates/environment"))} {show(last.get("rates/inference"))} {show(rate)}'
      f' {show(peer)} {ratio:>7s} {mfu:>7s}', flush=True)
END
}

brim() { # run, recipe, overrides
    local run=$1 recipe=$2
    shift 2
    timeout 60 "$build/brim" train "$here/recipes/$recipe.yaml" "run=$run" device=cuda watch.sample=false \
        watch.report=false eval.samples=1 eval.every=0 "$@" >"$dir/$run.log" 2>&1 </dev/null
}

# The peer's line goes to a file: rates of one and of four epochs come from it.
torch() { # name, arguments
    local name=$1 begin=$SECONDS
    shift
    [ -n "$peer" ] || return 0
    timeout 150 python3 "$peer" "$@" >"$dir/$name.peer" 2>&1 </dev/null
    echo "peer: $(tail -n 1 "$dir/$name.peer") ($((SECONDS - begin)) s)"
}
peer_rate() { # name, epochs
    sed -nE "s/.* $2 epochs? ([0-9,]+) steps.*/\1/p" "$dir/$1.peer" 2>/dev/null | tail -n 1 | tr -d ,
}

massive() {
    torch small --envs 256 --rollout 1024
    brim m256 ppo-massive steps=8
    report '256 x 1024, transformer' m256 "$(peer_rate small 1)"
    brim m256gpu ppo-massive ppo.place=device steps=8
    report '256 x 1024, the same, environments on the GPU' m256gpu "$(peer_rate small 1)"
    torch large --envs 4096 --rollout 64
    brim m4096 ppo-massive ppo.envs=4096 ppo.rollout=64 steps=12
    report '4096 x 64, transformer' m4096 "$(peer_rate large 1)"
}

# What is reported beside: the peer's rate of four epochs is in the line of massive.
more() {
    brim m4 ppo-massive ppo.envs=4096 ppo.rollout=64 ppo.epochs=4 steps=5
    report '4096 x 64, transformer, 4 epochs' m4 "$(peer_rate large 4)"
    brim m8192 ppo-massive ppo.rollout=8192 steps=3
    report '256 x 8192, transformer' m8192
    brim m128 ppo-massive policy.context=128 steps=4
    report '256 x 1024, transformer, context 128' m128
}

mlp() {
    torch mlp --envs 4096 --rollout 64 --mlp 64
    brim p_host mlp-massive ppo.place=host steps=60
    report '4096 x 64, mlp, environments on the CPU' p_host "$(peer_rate mlp 1)"
    brim p_gpu mlp-massive ppo.place=device steps=100
    report '4096 x 64, mlp, environments on the GPU' p_gpu "$(peer_rate mlp 1)"
}

# One observation through PyTorch's actor and critic on one core: as written, and traced and frozen.
answer_torch() {
    taskset -c 1 python3 - <<'END'
import time, torch, torch.nn as nn
torch.set_num_threads(1)
def body(width, out):
    hidden = [nn.Linear(64, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh()]
    return nn.Sequential(*hidden, nn.Linear(width, out))
class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor, self.critic = body(128, 4), body(256, 1)
    def forward(self, x):
        return self.actor(x), self.critic(x)
net, x = Both().eval(), torch.randn(1, 64)
with torch.inference_mode():
    frozen = torch.jit.optimize_for_inference(torch.jit.freeze(torch.jit.trace(net, x)))
    for name, f in ("as written", net), ("traced and frozen", frozen):
        times = []
        for _ in range(3000):
            begin = time.perf_counter()
            f(x)
            times.append((time.perf_counter() - begin) * 1e6)
        times = sorted(times[500:])
        print(f"PyTorch, one core, {name}: {times[len(times) // 2]:.1f} us"
              f" (99 %: {times[len(times) * 99 // 100]:.1f} us)")
END
}

hybrid() {
    local wide=$build/wide.so
    [ -f "$wide" ] || wide=$dir/wide.so
    if [ ! -f "$wide" ] &&
        ! ${CC:-gcc} -O2 -shared -fPIC -I"$here/src/env" -o "$wide" "$here/tests/env/wide.c"; then
        echo "hybrid: no compiler for tests/env/wide.c"
        return
    fi
    brim hybrid ppo-hybrid "env=$wide" steps=6
    report '1 x 62000, hybrid, 10 epochs' hybrid
    grep -hoE '[0-9]+ observations? answered.*|seconds a step.*|update of step.*' "$dir/hybrid.log"
    [ -n "$peer" ] && answer_torch
}

core() { "$build/brim" env check cartpole --seconds 1 | sed -n 's/^ok speed/cartpole, one core/p'; }

printf '%-46s %13s %13s %13s %13s %7s %7s\n' case environments +inference +training PyTorch ratio MFU
for part in massive mlp hybrid core more; do
    if wants $part; then $part; fi
done
echo "$SECONDS s"
