#!/usr/bin/env bash
# Two processes train one model, and the data of one cannot be read: both save what was done, name rank and
# file, and end with 1.
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
exit $failed
