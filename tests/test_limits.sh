#!/usr/bin/env bash
# A run stays within its limits: a real control group of 150 MB where this machine allows one, a control group
# of version 2 as a tree of files, ulimit -v. The run trains or is refused in one line; it is never killed.
. "$(dirname "$0")/shell_lib.sh"
recipe="$here/recipes/quickstart.yaml"
few="steps=2 optim.warmup=0 device=cpu eval.sequences=32"

judge() { # name, exit code
    [ "$2" -eq 0 ] || { [ "$2" -eq 2 ] && [ "$(grep -vc '^\[' seen)" -eq 1 ]; }
    verdict "$1" $? "exit code $2: $(tail -n 1 seen)"
}

# AddressSanitizer takes memory that no plan knows of, terabytes of address space, and ten times as long.
asan=; most_s=30
case $build in *asan*) asan=1; most_s=300 ;; esac

group=$(find /sys/fs/cgroup/memory -maxdepth 0 2>/dev/null)/brim-test-$$
if [ -z "$asan" ] && mkdir "$group" 2>/dev/null && echo 150M >"$group/memory.limit_in_bytes" 2>/dev/null; then
    (echo "$BASHPID" >"$group/cgroup.procs" && exec "$brim" train "$recipe" run=group $few) >seen 2>&1
    judge "a control group of 150 MB" $?
    echo 15M >"$group/memory.limit_in_bytes"
    (echo "$BASHPID" >"$group/cgroup.procs" && exec "$brim" train "$recipe" run=tight $few) >seen 2>&1
    judge "a control group of 15 MB" $?
    rmdir "$group"
else
    rmdir "$group" 2>/dev/null
    echo "skip: no control group of version 1 can be made here${asan:+, and none for a sanitizer}"
fi

if [ -z "$asan" ]; then
    for kb in 400000 200000 100000; do
        (ulimit -v $kb && exec "$brim" train "$recipe" run=v$kb $few threads=2) >seen 2>&1
        judge "ulimit -v $kb" $?
    done
fi

mkdir -p tree/proc/self tree/sys/fs/cgroup/job/step
echo 0::/job/step >tree/proc/self/cgroup
echo 157286400 >tree/sys/fs/cgroup/job/memory.max; echo 20000000 >tree/sys/fs/cgroup/job/memory.current
echo "50000 100000" >tree/sys/fs/cgroup/job/cpu.max
BRIM_CGROUP=$dir/tree "$brim" plan "$recipe" device=cpu >seen 2>&1
grep -q "^memory *150 MiB" seen
verdict "a nested group of version 2 is the plan's memory" $? "$(grep ^memory seen)"
grep -q "^device.*1 thread$" seen; verdict "its quota is the plan's threads" $? "$(grep ^device seen)"

begin=$SECONDS
"$brim" train "$recipe" run=many $few threads=4096 >seen 2>&1; rc=$?
grep -q "threads: 4096, but there are .* threads are used" seen && [ $rc -eq 0 ] &&
    [ $((SECONDS - begin)) -lt $most_s ]
verdict "4096 threads become those that pay" $? \
    "exit code $rc after $((SECONDS - begin)) s: $(grep -i threads seen)"
exit $failed
