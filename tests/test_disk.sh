#!/usr/bin/env bash
# A run survives what happens to its disk: full, gone and back, read-only, the directory removed or replaced.
set -uo pipefail
case ${1:-build} in *-asan) STEPS=120 ;; *) STEPS=500 ;; esac # long enough for what happens meanwhile
# shellcheck source=tests/durable_lib.sh
. "$(dirname "$0")/durable_lib.sh"

# name: a run directory on the small disk.
place() { mkdir -p "disk/$1" && ln -sfn "$dir/disk/$1" "runs/$1"; }

fill() { dd if=/dev/zero of=disk/fill bs=4k oflag=append conv=notrunc status=none 2>/dev/null; }

# name: fills the disk until a save has failed. What a failed save gives back is filled too.
fill_until_failed() {
    local i
    for ((i = 0; i < 1000; i++)); do
        fill
        grep -q 'CHECKPOINT NOT SAVED' "$1.log" && break
        kill -0 "$pid" 2>/dev/null || return 1
        sleep 0.01
    done
    fill
}

test_full() {
    place full; start full; wait_step full 20
    fill_until_failed full
    local at; at=$(sed -nE 's/.*NOT SAVED: checkpoint of step ([0-9]+) failed.*/\1/p' full.log | head -n 1)
    [ -n "$at" ] && grep -q 'CHECKPOINT NOT SAVED: .*runs/full.*No space left on device' full.log
    verdict "full disk: the failed save is said, with its cause" $? \
        "$(grep -m 1 NOT full.log || tail -n 2 full.log)"
    sleep 0.3; "$verify" runs/full/checkpoints/step-* >seen 2>&1 && kill -0 "$pid"
    verdict "full disk: the run goes on and the old checkpoint verifies" $? \
        "$(cat seen) $(tail -n 1 full.log)"
    rm disk/fill; reap; local rc=$?
    [ $rc -eq 0 ] && sed '1,/NOT SAVED/d' full.log | grep '\] checkpoint of step' >/dev/null &&
        out=$(all_whole full && same ref full)
    verdict "full disk: with room again saves succeed, and no bit or line is missing" $? "exit code $rc: $out"
    cmp <(tail -n +2 runs/full/log.txt) full.log >seen
    verdict "full disk: log.txt has what the terminal showed, in order" $? \
        "$(diff <(tail -n +2 runs/full/log.txt) full.log | head -n 4)"
    # Tried again after 1, 2, 4 steps, then with every fifth step, which is saved anyway.
    local n last; n=$(grep -c 'NOT SAVED' full.log)
    last=$(sed -nE 's/.*NOT SAVED: checkpoint of step ([0-9]+) failed.*/\1/p' full.log | tail -n 1)
    [ "$n" -le $(((last - at) / 4 + 5)) ]
    verdict "full disk: not every step tries again" $? "$n failed saves from step $at to $last"
}

# name: no line after the last step says that training goes on, and none that a step after it will try again.
true_at_end() {
    ! sed '1,/\] train '"$steps\/$steps"'/d' "$1.log" | grep 'CHECKPOINT.*goes on' &&
        ! sed -nE 's/.*trying again after step ([0-9]+).*/\1/p' "$1.log" | awk -v last="$steps" '$1 >= last' |
        grep .
} >seen

test_full_at_end() { # name, what to do about it
    place "$1"; start "$1"; wait_step "$1" 20; fill_until_failed "$1"
    wait_log "$1" 'TRYING TO SAVE FOR ANOTHER'
    verdict "full disk at the end ($1): the run waits" $? "$(tail -n 2 "$1.log")"
    true_at_end "$1"
    verdict "full disk at the end ($1): training is not said to go on" $? "$(tail -n 2 "$1.log")"
    if [ "$1" = freed ]; then rm disk/fill; else kill -TERM "$pid"; fi
    reap; local rc=$?
    ! grep -q 'stopping after this step' "$1.log"
    verdict "full disk at the end ($1): no step is said to go on" $? "$(grep -n stopping "$1.log")"
    return $rc
}

# The disk is a bind mount, so that what comes back is what went away.
test_gone() {
    place gone; start gone; wait_step gone 20
    umount -l disk
    wait_log gone 'CHECKPOINT NOT SAVED: .*runs/gone'
    verdict "vanished mount: said" $? "$(tail -n 2 gone.log)"
    sleep 0.2; kill -0 "$pid"; verdict "vanished mount: the run goes on" $? "$(tail -n 2 gone.log)"
    mount --bind mount disk; reap; local rc=$?
    [ $rc -eq 0 ] && out=$(all_whole gone && same ref gone)
    verdict "vanished mount: back again, nothing is missing" $? "exit code $rc: $out"
}

mkdir mount disk
if mount -t tmpfs -o size=3m tmpfs mount 2>/dev/null && mount --bind mount disk 2>/dev/null; then
    test_full
    test_full_at_end freed; rc=$?
    [ $rc -eq 0 ] && out=$(all_whole freed && same ref freed)
    verdict "full disk at the end: saved once there is room" $? "exit code $rc: $out"
    test_full_at_end given_up; rc=$?
    [ $rc -eq 1 ] && tail -n 1 given_up.log | grep -q 'the last checkpoint could not be saved' &&
        "$verify" runs/given_up/checkpoints/step-* >seen 2>&1
    verdict "full disk at the end: a signal gives up, the old checkpoint verifies" $? \
        "exit code $rc: $(tail -n 1 given_up.log) $(cat seen)"
    rm -rf disk/fill disk/full disk/freed; train given_up; rc=$?
    [ $rc -eq 0 ] && out=$(all_whole given_up && same ref given_up)
    verdict "full disk at the end: and the run can be finished later" $? "exit code $rc: $out"
    mkdir -p "disk/none"; fill
    BRIM_RUNS=$dir/disk timeout 20 "$brim" train tiny.yaml run=none >none.log 2>&1; rc=$?
    [ $rc -eq 1 ] && tail -n 1 none.log | grep -q 'disk/none.*No space left on device'
    verdict "full disk at the start: an error that names the file" $? "exit code $rc: $(tail -n 1 none.log)"
    rm -f disk/fill; rm -r disk/*
    test_gone
    mount -o remount,bind,ro disk
    BRIM_RUNS=$dir/disk timeout 20 "$brim" train tiny.yaml run=none >none.log 2>&1; rc=$?
    [ $rc -eq 1 ] && [ "$(wc -l <none.log)" -eq 1 ] && grep -q 'Read-only file system' none.log
    verdict "read-only directory at the start: an error" $? "exit code $rc: $(cat none.log)"
else
    echo "skip: full and vanished disks need the right to mount a tmpfs"
fi

# ---- the directory -----------------------------------------------------------------------------------------

# Root may write anywhere, so the run is somebody else's.
if [ "$(id -u)" -eq 0 ]; then
    as=(setpriv --reuid=65534 --regid=65534 --clear-groups); chmod 755 "$dir"; mkdir -p runs/shut
    chown 65534:65534 runs/shut
else
    as=(); mkdir -p runs/shut
fi
if "${as[@]}" "$brim" help >/dev/null 2>&1; then
    "${as[@]}" "$brim" train tiny.yaml run=shut >shut.log 2>&1 </dev/null & pid=$!
    wait_step shut 20; chmod 555 runs/shut/checkpoints
    wait_log shut 'CHECKPOINT NOT SAVED: .*Permission denied'
    verdict "read-only directory: said" $? "$(tail -n 2 shut.log)"
    sleep 0.2; chmod 755 runs/shut/checkpoints; reap; rc=$?
    [ $rc -eq 0 ] && out=$(all_whole shut && same ref shut)
    verdict "read-only directory: writable again, nothing is missing" $? "exit code $rc: $out"
else
    echo "skip: nobody cannot run $brim, so a read-only directory was not tried"
fi

start removed; wait_step removed 20
kill -STOP "$pid"; rm -rf runs/removed; kill -CONT "$pid"; reap; rc=$?
[ $rc -eq 0 ] && grep -q 'runs/removed was removed or moved' removed.log && out=$(all_whole removed) &&
    cmp "$(last_ckpt ref)/model.safetensors" "$(last_ckpt removed)/model.safetensors" >seen &&
    "$brim" eval removed >seen 2>&1 &&
    [ "$(tail -n 1 runs/removed/metrics.jsonl | cut -c 1-12)" = "{\"step\": $steps" ]
verdict "removed directory: said, made anew, the result saved" $? \
    "exit code $rc: $out $(cat seen) $(tail -n 1 removed.log)"

start taken; first=$pid; wait_step taken 20; kill -STOP "$first"; mv runs/taken runs/moved
"$brim" train tiny.yaml run=taken >second.log 2>&1 </dev/null & second=$!
pid=$second; wait_step taken 1; kill -CONT "$first"
pid=$first; wait_log taken 'NOT SAVED: .*runs/taken is the directory of another run now'
verdict "replaced directory: said" $? "$(tail -n 2 taken.log)"
pid=$second; reap; rc=$?
[ $rc -eq 0 ] && out=$(all_whole taken && same ref taken)
verdict "replaced directory: the new run is not disturbed" $? "exit code $rc: $out"
pid=$first; reap; rc=$? # by itself
[ $rc -eq 1 ] && tail -n 1 taken.log |
    grep \
    -q "runs/taken is the directory of another run now: what was trained up to step $steps is not saved" &&
    ! grep -q 'TRYING TO SAVE' taken.log && true_at_end taken && out=$(same ref taken)
verdict "replaced directory: the old run ends with an error" $? "exit code $rc: $out $(tail -n 1 taken.log)"
exit $failed
