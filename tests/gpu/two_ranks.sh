#!/usr/bin/env bash
# The whole program on two ranks of one card: the losses must be those of one rank, also after a resume.
# Usage: two_ranks.sh [build folder] [device]. For NCCL the two processes are two machines (see
# test_two_ranks.c).
set -uo pipefail
cd "$(dirname "$0")/../.."
brim=$(realpath "${1:-build}")/brim
device=${2:-cuda:0}
export BRIM_RUNS; BRIM_RUNS=$(mktemp -d); trap 'rm -rf "$BRIM_RUNS"' EXIT
common=(recipes/quickstart.yaml device="$device" precision=fp32 deterministic=true optim.warmup=2
        optim.schedule=constant log_every=1 eval.every=10 eval.sequences=32 checkpoint.every=5 micro_batch=8)
failed=0
say() { # rc, name
    if [ "$1" -eq 0 ]; then echo "ok $2"; else echo "not ok $2"; failed=1; fi
}
rank() { # rank, arguments
    local r=$1; shift
    RANK=$r LOCAL_RANK=$r WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29731 NCCL_HOSTID=brim-rank-$r \
        NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 NCCL_P2P_DISABLE=1 \
        timeout 300 "$brim" train "$@" >"$BRIM_RUNS/log.$r" 2>&1
}
two() { # arguments
    local rc0 rc1
    rank 1 "$@" & local pid=$!
    rank 0 "$@"; rc0=$?
    wait $pid; rc1=$?
    [ $rc0 -eq 0 ] && [ $rc1 -eq 0 ] || { cat "$BRIM_RUNS"/log.*; return 1; }
}
same() { # run, run: every loss and val_loss within 1e-4 of each other
    awk -v a="$1" -v b="$2" '
        function get(s, key) {
            if (!match(s, "\"" key "\": [-0-9.e]+")) return ""
            return substr(s, RSTART + length(key) + 4, RLENGTH - length(key) - 4) + 0
        }
        { step = get($0, "step"); kind = /val_loss/ ? "val_loss" : "loss"; v = get($0, kind)
          if (FNR == NR) { first[step kind] = v; n++ }
          else if (step kind in first) {
              d = v / first[step kind] - 1; if (d < 0) d = -d; if (d > worst) worst = d; m++ } }
        END { printf "%s and %s: %d of %d lines compared, worst difference %.2e\n", a, b, m, n, worst
              exit !(m == n && n > 0 && worst <= 1e-4) }
    ' "$BRIM_RUNS/$1/metrics.jsonl" "$BRIM_RUNS/$2/metrics.jsonl"
}
timeout 300 "$brim" train "${common[@]}" run=one steps=20 >"$BRIM_RUNS/log.one" 2>&1
say $? "one rank"
two "${common[@]}" run=two steps=20;     say $? "two ranks"
same one two;                            say $? "the same losses"
two "${common[@]}" run=again steps=10;   say $? "two ranks, first half"
two "${common[@]}" run=again steps=20;   say $? "two ranks, resumed"
same two again;                          say $? "the same losses after a resume"
exit $failed
