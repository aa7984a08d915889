#!/usr/bin/env bash
# PPO on two ranks of one card: the losses of the first ten updates must be those of one rank with all of the
# environments. Environments on the host, on the GPU, and with statistics of observations and rewards.
# Usage: two_ranks_ppo.sh [build folder] [device]. For NCCL the two processes are two machines (see
# test_two_ranks.c).
set -uo pipefail
cd "$(dirname "$0")/../.."
brim=$(realpath "${1:-build}")/brim
device=${2:-cuda:0}
export BRIM_RUNS; BRIM_RUNS=$(mktemp -d); trap 'rm -rf "$BRIM_RUNS"' EXIT
failed=0
train() { # run, keys
    timeout -s KILL 120 "$brim" train recipes/cartpole.yaml run="$1" device="$device" watch.sample=false \
        watch.report=false log_every=1 ppo.envs=16 ppo.minibatch=512 ppo.epochs=1 steps=10 total_steps=0 \
        eval.target=0 eval.samples=2 eval.every=0 "${@:2}" </dev/null >"$BRIM_RUNS/log.$1.${RANK:-0}" 2>&1
}
rank() { # rank, port, arguments
    RANK=$1 LOCAL_RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$2 NCCL_HOSTID=brim-rank-$1 \
        NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 NCCL_P2P_DISABLE=1 BRIM_COMM_TIMEOUT=60 train "${@:3}"
}
losses() { sed -nE 's#.*"losses/loss": ([^,]+),.*#\1#p' "$BRIM_RUNS/$1/metrics.jsonl"; }
both() { # name, keys
    local name=$1 port=$((20000 + RANDOM % 12000)) pid rc0 rc1
    shift
    train "$name-one" "$@"
    rank 1 $port "$name-two" "$@" & pid=$!
    rank 0 $port "$name-two" "$@"; rc0=$?
    wait $pid; rc1=$?
    if [ $rc0 -eq 0 ] && [ $rc1 -eq 0 ] && paste <(losses "$name-one") <(losses "$name-two") |
        awk -v name="$name" '{ d = ($1 - $2) / ($1 ? $1 : 1); if (d < 0) d = -d; if (d > worst) worst = d }
            END { printf "%s: %d updates, worst difference %.1e\n", name, NR, worst
                  exit !(NR == 10 && worst <= 1e-4) }'; then
        echo "ok two ranks, $name"
    else
        echo "not ok two ranks, $name: exit codes $rc0, $rc1"; tail -n 2 "$BRIM_RUNS/log.$name"-*
        failed=1
    fi
}
both host ppo.place=host
[ "$device" = cpu ] || both device ppo.place=device
both statistics ppo.place=host ppo.obs_norm=true ppo.reward_norm=true
exit $failed
