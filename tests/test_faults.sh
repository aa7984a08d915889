#!/usr/bin/env bash
# The n-th call of each kind fails, for every n until a run is no longer hit. The program ends with 0, 1 or 2
# and a message, and every checkpoint in place is whole. The next run gives the same bits as an undisturbed
# run. Every n up to FAULTS_ALL is tried (default 5), then every FAULTS_BY-th from a random one on (default
# 29; 1: all), as many kinds at a time as there are CPUs.
set -uo pipefail
STEPS=12
[ -w /dev/shm ] && export TMPDIR=/dev/shm # not a disk that others keep busy
# shellcheck source=tests/durable_lib.sh
. "$(dirname "$0")/durable_lib.sh"
all=${FAULTS_ALL:-5} by=${FAULTS_BY:-29}

cat >tiny.yaml <<END
run: ref
steps: 12
step_tokens: 64
device: cpu
threads: 1
model: {layers: 1, width: 16, heads: 2, vocab: 256, context: 32}
optim: {lr: 3e-3, warmup: 5}
data: {kind: text, train: text.txt}
eval: {every: 5, sequences: 4}
checkpoint: {every: 4, keep: 2}
END
train ref --fresh && rm -rf runs/ref.old-*
# Half a run, with a checkpoint and metrics: after 2 reads of the recipe, 4 in each of the evaluations at 0
# and 5 and 2 a step the 23rd is that of a sample of step 7.
BRIM_FAULT=read:23 train half opt.prefetch=false; rc=$?
[ $rc -eq 1 ] && [ "$(ls runs/half/checkpoints | wc -l)" -ge 1 ]
verdict "half a run to go on with" $? "exit code $rc: $(tail -n 2 half.log)"
mv runs/half half

# op, n, then the scenario's overrides: one run with the fault and, when that failed, one without. Says what
# is wrong.
try() {
    local op=$1 n=$2 rc
    shift 2
    rm -rf runs/try runs/try.old-*; cp -r half runs/try
    BRIM_FAULT=$op:$n train try "$@"; rc=$?
    grep -q "^brim: BRIM_FAULT: $op $n fails" try.log || return 1 # the run has no n-th call
    hits=$((hits + 1))
    if grep -E 'Sanitizer|runtime error|brim: bug' try.log >seen; then
        bad="$op:$n $*: exit code $rc: $(cat seen)"
    fi
    case $rc in
        0) ;;
        1 | 2)
            stopped=$((stopped + 1))
            tail -n 1 try.log | grep -qvE 'BRIM_FAULT|^brim: $|^\[' ||
                { bad="$op:$n $*: exit code $rc without a message: $(tail -n 1 try.log)"; return 0; } ;;
        *) bad="$op:$n $*: exit code $rc: $(tail -n 20 try.log)"; return 0 ;;
    esac
    for ckpt in runs/try*/checkpoints/step-*; do
        [ ! -e "$ckpt" ] || "$verify" "$ckpt" >seen 2>&1 || bad="$op:$n $*: exit code $rc: $(cat seen)"
    done
    if [ $rc -ne 0 ]; then train try || bad="$op:$n $*: cannot go on: $(tail -n 2 try.log)"; fi
    out=$(all_whole try && same ref try) || bad="$op:$n $*: exit code $rc, then: $out"
    return 0
}

# op: both scenarios, in a folder of its own.
try_op() {
    local op=$1 n hits stopped bad over scenario
    mkdir -p "at-$op/runs" && cp -r runs/ref "at-$op/runs" || return 1
    cp -r half tiny.yaml text.txt "at-$op" || return 1
    cd "at-$op" && export BRIM_RUNS=$dir/at-$op/runs
    for scenario in resume --fresh; do
        n=0 hits=0 stopped=0 bad=""
        [ $scenario = resume ] && over=() || over=("$scenario")
        while [ -z "$bad" ]; do
            if [ $n -lt "$all" ]; then
                n=$((n + 1))
            elif [ $n -eq "$all" ]; then
                n=$((n + 1 + RANDOM % by))
            else
                n=$((n + by))
            fi
            try $op $n "${over[@]}" || break
        done
        # Nothing in a run maps a file today.
        [ -z "$bad" ] && { [ $hits -gt 0 ] || [ $op = mmap ]; }
        verdict "$op fails, $scenario: $hits of the calls up to $((n - 1)) tried, $stopped ended the run" $? \
            "$bad"
    done
}

# The kinds with the most calls first: no CPU waits long for the last.
for op in malloc write read open fsync rename thread mmap; do
    while [ "$(jobs -rp | wc -l)" -ge "$(nproc)" ]; do wait -n; done
    (trap - EXIT; try_op $op) >"$op.out" 2>&1 &
done
wait
for op in malloc open read write fsync rename mmap thread; do
    cat "$op.out"
    [ "$(grep -c '^ok ' "$op.out")" -eq 2 ] || failed=1
done
exit $failed
