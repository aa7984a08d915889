#!/usr/bin/env bash
# Two processes train one model, and the data of one cannot be read: both save what was done, name rank and
# file, and end with 1. Then brim itself starts the two (gpus=2).
set -uo pipefail
# shellcheck source=tests/durable_lib.sh
. "$(dirname "$0")/durable_lib.sh"
# shellcheck source=tests/ranks_lib.sh
. "$here/tests/ranks_lib.sh"
unset RANK WORLD_SIZE LOCAL_RANK

faulty_rank() {
    BRIM_FAULT=${fault[RANK]} timeout -s KILL 30 "$brim" train tiny.yaml opt.prefetch=false micro_batch=4 "$@"
}
# name, fault of rank 0, of rank 1, then overrides: trains runs/NAME on two ranks. 30 s without an end are a
# hang, and 137.
train_two() {
    local fault=("$2" "$3")
    two_ranks "$1" faulty_rank "run=$1" "${@:4}"
} 2>/dev/null

train_two two "" ""
[ $rc0 -eq 0 ] && [ $rc1 -eq 0 ] && out=$(all_whole two) &&
    within "$(last_of two val_loss)" "$(last_of ref val_loss)" 0.001
verdict "two ranks train as one does" $? "exit codes $rc0 and $rc1: $out $(tail -n 2 two.0.log)"

# name, rank, fault, step: the step whose samples that rank cannot read, counted from 0; what follows is bit
# for bit what was to be.
check() {
    local begin=$SECONDS fault=("" "") text at
    fault[$2]=$3
    train_two "$1" "${fault[@]}"
    text="brim: rank $2: text.txt: reading at byte [0-9]*: Input/output error"
    at=$(last_ckpt "$1"); at=$((10#${at##*step-}))
    [ $rc0 -eq 1 ] && [ $rc1 -eq 1 ] && [ $((SECONDS - begin)) -lt 20 ] && [ "$at" -eq "$4" ] &&
        tail -n 1 "$1.0.log" | grep -q "^$text\$" && tail -n 1 "$1.1.log" | grep -q "^$text\$" &&
        grep -q "error: rank $2: text.txt: reading" "runs/$1/log.txt" && out=$(all_whole "$1")
    verdict "$1: both save, name rank and file, and end" $? \
        "exit codes $rc0 and $rc1 after $((SECONDS - begin)) s, step $at: $out" \
        "$(tail -n 1 "$1.0.log") $(tail -n 1 "$1.1.log")"
    train_two "$1" "" ""
    [ $rc0 -eq 0 ] && [ $rc1 -eq 0 ] && grep -q "resuming after step $4" "$1.0.log" && out=$(same two "$1")
    verdict "$1: and go on bit for bit" $? "exit codes $rc0 and $rc1: $out $(tail -n 2 "$1.0.log")"
}

# 4 reads of the recipe, which is loaded twice, and a look whether the file is text; then of each rank 16 in
# the evaluation before step 0 and 8 a step, in micro-batches of 4.
check first 1 read:$((5 + 16 + 8 * 22 + 1)) 22
check last 1 read:$((5 + 16 + 8 * 22 + 8)) 22
check hub 0 read:$((5 + 16 + 8 * 33 + 3)) 33
check evaluation 1 read:$((5 + 16 + 8 * 40 + 9)) 40

# With threads that read ahead, where it happens is theirs to say.
train_two ahead "" read:300-301 opt.prefetch=true
at=$(last_ckpt ahead)
[ $rc0 -eq 1 ] && [ $rc1 -eq 1 ] && [ $((10#${at##*step-})) -gt 10 ] &&
    tail -n 1 ahead.0.log | grep -q '^brim: rank 1: text.txt: reading' && out=$(all_whole ahead)
verdict "with prefetching likewise" $? "exit codes $rc0 and $rc1, $at: $out $(tail -n 1 ahead.0.log)"

# ---- gpus: brim itself starts the ranks

train launched gpus=2 micro_batch=4 opt.prefetch=false; rc=$?
[ $rc -eq 0 ] && out=$(same two launched) && [ "$(grep -c 'everything else in' launched.log)" -eq 1 ] &&
    grep -q '= 2 ranks x' launched.log
verdict "gpus=2: the bits of two ranks, and one of them speaks" $? \
    "exit code $rc: $out $(tail -n 2 launched.log)"

# What is started in the background, and the processes that it starts: the launcher first, then by rank.
launch() { # name
    start "$1" gpus=2 micro_batch=4 steps=100000 optim.warmup=5
    for ((i = 0; i < 100; i++)); do
        grep -q '"loss"' "runs/$1/metrics.jsonl" 2>/dev/null && break
        sleep 0.1
    done
    rank=($(pgrep -P "$pid"))
}
launch asked; kill -TERM "$pid"; wait "$pid"; rc=$?
[ $rc -eq 0 ] && grep -q 'checkpoint of step' asked.log && out=$(all_whole asked)
verdict "gpus=2: SIGTERM to the launcher saves and stops" $? "exit code $rc: $out $(tail -n 2 asked.log)"

launch lost; kill -9 "${rank[1]}"; wait "$pid"; rc=$?
[ $rc -eq 1 ] && grep -q '^brim: rank 0: rank 1 has left' lost.log &&
    grep -q '^rank 1 was ended by signal 9' lost.log && ! pgrep -P "$pid" >/dev/null
verdict "gpus=2: a rank that is killed is named" $? "exit code $rc: $(tail -n 2 lost.log)"

# A rank's environments may write to standard error for days.
launch first_lost; said=/proc/${rank[1]}/fd/2
head -c 8000000 /dev/zero | tr '\0' '\n' >>"$said"; sleep 0.5; blocks=$(stat -L -c %b "$said")
[ "${blocks:-9999}" -lt 4096 ]
verdict "gpus=2: of what a rank says the newest is kept" $? "$blocks blocks of 512 bytes"
kill -9 "${rank[0]}"; wait "$pid"; rc=$?
[ $rc -eq 137 ] && grep -q '^rank 0 was ended by signal 9' first_lost.log
verdict "gpus=2: rank 0 is named when it is killed" $? "exit code $rc: $(tail -n 2 first_lost.log)"

launch orphan; kill -9 "$pid"; wait "$pid" 2>/dev/null
for ((i = 0; i < 100; i++)); do kill -0 "${rank[@]}" 2>/dev/null || break; sleep 0.1; done
! kill -0 "${rank[0]}" 2>/dev/null && ! kill -0 "${rank[1]}" 2>/dev/null && out=$(all_whole orphan)
verdict "gpus=2: ranks whose launcher is killed save and end" $? "$out $(tail -n 2 orphan.log)"

refused() { # name, pattern, overrides
    train refused "${@:3}"; rc=$?
    [ $rc -eq 2 ] && [ "$(wc -l <refused.log)" -eq 1 ] && grep -q "$2" refused.log && [ ! -e runs/refused ]
    verdict "gpus: $1" $? "exit code $rc: $(cat refused.log)"
}
refused "a step that ranks cannot share" \
    'step_tokens: 16 samples cannot be shared by 3 ranks .* (step_tokens=[0-9]* would do, or 2 ranks)$' gpus=3
refused "one GPU by name" '^command line: gpus: 2, but device cuda:0 names a single GPU$' gpus=2 device=cuda:0
if ${CC:-gcc} -shared -fPIC -o nvml.so "$here/tests/fake_nvml.c" 2>/dev/null; then
    export BRIM_NVML=$dir/nvml.so
    refused "more than there are" '^command line: gpus: 4, but there are 2 here$' gpus=4 device=auto
    export CUDA_VISIBLE_DEVICES=1
    refused "more than are visible" '^command line: gpus: 2, but there is 1 here$' gpus=2 device=auto
fi
exit $failed
