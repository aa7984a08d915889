#!/usr/bin/env bash
# PPO on a GPU beside PyTorch, in one run: steps per second of environments alone, with inference, with
# training. One line for each case.
#     tools/ppo_suite.sh BUILD [PEER.py]     PEER.py: what PyTorch's users have; left out, Brim runs alone
# PPO_ONLY=massive,mlp,hybrid picks parts; massive4 are two of massive, without the peer.
set -uo pipefail
build=$(cd "${1:-build}" && pwd)
here=$(cd "$(dirname "$0")/.." && pwd)
peer=${2:-}
only=${PPO_ONLY:-massive,mlp,hybrid}
dir=$(mktemp -d); trap 'rm -rf "$dir"' EXIT
export BRIM_RUNS=$dir/runs
wants() { case ",$only," in *",$1,"*) return 0 ;; esac; return 1; }

# The rate of the steps after the first two, which warm up.
report() { # title, run, log
    python3 - "$1" "$dir/runs/$2/metrics.jsonl" "$dir/$2.log" <<'END'
import json, re, sys
title, path, log = sys.argv[1:]
try:
    rows = [json.loads(x) for x in open(path)]
except OSError:
    rows = []
rows = [x for x in rows if "per_s" in x]
if len(rows) < 2:
    print(f"{title:44s} FAILED: {open(log).read().strip().splitlines()[-1:]}")
    sys.exit()
first = rows[min(1, len(rows) - 2)]
last = rows[-1]
steps = last["charts/global_step"] - first["charts/global_step"]
rate = steps / (last["time_s"] - first["time_s"])
env = f'{last["rates/environment"]:13,.0f}' if last.get("rates/environment") else "            -"
inf = f'{last["rates/inference"]:13,.0f}' if last.get("rates/inference") else "            -"
mfu = f'{100 * last["mfu"]:.1f}' if last.get("mfu") else "-"
end = last.get("charts/episodic_return")
print(f"{title:44s} {env} {inf} {rate:13,.0f} steps/s, MFU {mfu} %, return {end}")
END
}

brim() { # title, run, recipe, overrides
    local title=$1 run=$2 recipe=$3
    shift 3
    timeout 120 "$build/brim" train "$here/recipes/$recipe.yaml" "run=$run" device=cuda watch.sample=false \
        watch.report=false eval.samples=1 "$@" >"$dir/$run.log" 2>&1 </dev/null
    report "$title" "$run"
}

torch() { # title, arguments
    local title=$1
    shift
    [ -n "$peer" ] || return 0
    printf '%-44s ' "$title"
    timeout 150 python3 "$peer" "$@" 2>&1 | tail -n 1
}

printf '%-44s %13s %13s %13s\n' case environments +inference +training
if wants massive4; then # the two that count, without the peer
    brim 'brim 256 x 1024, transformer' m256 ppo-massive steps=8
    brim 'brim 4096 x 64, transformer' m4096 ppo-massive ppo.envs=4096 ppo.rollout=64 steps=8
fi
if wants massive; then
    brim 'brim 256 x 1024, transformer' m256 ppo-massive steps=8
    torch 'torch 256 x 1024, transformer' --envs 256 --rollout 1024
    brim 'brim 4096 x 64, transformer' m4096 ppo-massive ppo.envs=4096 ppo.rollout=64 steps=8
    torch 'torch 4096 x 64, transformer' --envs 4096 --rollout 64
    brim 'brim 4096 x 64, transformer, 4 epochs' m4 ppo-massive ppo.envs=4096 ppo.rollout=64 ppo.epochs=4 \
        steps=4
    brim 'brim 256 x 8192, transformer' m8192 ppo-massive ppo.rollout=8192 steps=2
fi
if wants mlp; then
    brim 'brim 4096 x 64, mlp, environments on the CPU' p_host mlp-massive ppo.place=host steps=60
    brim 'brim 4096 x 64, mlp, environments on the GPU' p_gpu mlp-massive ppo.place=device steps=100
    torch 'torch 4096 x 64, mlp' --envs 4096 --rollout 64 --mlp 64
fi
if wants hybrid; then
    wide=$dir/wide.so
    if ${CC:-gcc} -O2 -shared -fPIC -I"$here/src/env" -o "$wide" "$here/tests/env/wide.c"; then
        brim 'brim 1 x 62000, hybrid, 10 epochs' hybrid ppo-hybrid "env=$wide" steps=5
        grep -hoE '[0-9]+ observations? answered.*|seconds a step.*|update of step.*' "$dir/hybrid.log"
    else
        echo "hybrid: no compiler for tests/env/wide.c"
    fi
fi
