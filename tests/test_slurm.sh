#!/usr/bin/env bash
# brim slurm, with a real SLURM on this machine: a job of two ranks is told that its time is up, saves, is
# queued again and goes on bit for bit. A job that is cancelled stays so.
set -uo pipefail
# shellcheck source=tests/durable_lib.sh
. "$(dirname "$0")/durable_lib.sh"
unset RANK WORLD_SIZE LOCAL_RANK

brim() { timeout -k 5 60 "$brim" "$@" >said 2>&1 </dev/null; rc=$?; }
refuses() { # name, pattern, arguments
    brim slurm tiny.yaml "${@:3}"
    [ $rc -eq 2 ] && [ "$(wc -l <said)" -eq 1 ] && grep -q -e "$2" said
    verdict "refused: $1" $? "exit code $rc: $(cat said)"
}
refuses "ranks that cannot share a step" 'step_tokens: 16 samples cannot be shared by 3 ranks' --gpus 3
refuses "a time" '^command line: --time: .soon. is no time such as' --time soon
refuses "a time of five parts" '^command line: --time: .1:2:3:4. is no time such as' --time 1:2:3:4
refuses "a save before the start" \
    '^command line: --before: 180 seconds .* (--before 60 would do)$' --time 3:00
refuses "a time of seconds" '^command line: --time: 0:30 leaves no time to train' --time 0:30
refuses "a partition" '^command line: --partition: .a b. is no such name' --partition 'a b'
refuses "a folder that is not there" '--out: no: no such folder' --out no/job.sh
brim slurm tiny.yaml "run=it's" --gpus 2 --nodes 4 --cpus 6 --time 0-0:10 --account me --out job.sh
[ $rc -eq 0 ] && bash -n job.sh && [ -x job.sh ] &&
    grep -qF "train 'tiny.yaml' 'run=it'\''s'" job.sh &&
    grep -q '^#SBATCH --job-name=brim$' job.sh && grep -q '^srun .*--cpus-per-task=6 ' job.sh &&
    grep -q '^#SBATCH --gpus-per-node=2$' job.sh && grep -q '^#SBATCH --nodes=4$' job.sh
verdict "a script" $? "exit code $rc: $(cat said job.sh)"

# A start in which no step is done would be queued again for ever. srun and scontrol of this test alone.
start halted steps=100000 optim.warmup=5; wait_step halted 60; kill -TERM "$pid"; reap
mkdir stand_in
printf '#!/bin/bash\n[ $1 = requeue ] && echo queued || echo JobState=RUNNING\n' >stand_in/scontrol
printf '#!/bin/bash\n[ -n "$IDLE" ] && exit 0\nshift 2; timeout -s TERM 2 "$@"\nexit 0\n' >stand_in/srun
chmod +x stand_in/*
brim slurm tiny.yaml run=halted steps=100000 optim.warmup=5 --out halted.sh
job_says() { PATH=$dir/stand_in:$PATH SLURM_JOB_ID=7 IDLE=$1 bash halted.sh 2>&1; }
out=$(job_says 1); ! grep -q '^queued' <<<"$out" && grep -q '^not queued again: no step' <<<"$out"
verdict "a job that does no step is not queued again" $? "$out"
out=$(job_says ""); grep -q '^queued' <<<"$out"
verdict "a job that does some is" $? "$(tail -n 3 <<<"$out")"

brim slurm tiny.yaml gpus=2 --gpus 1 --out one.sh
[ $rc -eq 0 ] && grep -q "'gpus=2' gpus=1\$" one.sh && grep -q '^#SBATCH --ntasks-per-node=1$' one.sh
verdict "--gpus 1 goes before gpus of the recipe" $? "exit code $rc: $(cat said; grep srun one.sh)"

if ! command -v slurmctld munged slurmd >/dev/null || [ "$(id -u)" -ne 0 ]; then
    echo "skip: SLURM (packages slurm-wlm, munge) needs root"
    exit $failed
fi

# ---- a cluster of one machine, in this folder

port=$((20000 + RANDOM % 12000)) host=$(hostname -s)
mkdir slurm slurm/state slurm/spool
chmod 755 "$dir" slurm
head -c 1024 /dev/urandom >slurm/key; chmod 400 slurm/key
cat >slurm/slurm.conf <<END
ClusterName=brim
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
SlurmdPort=$((port + 1))
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$dir/slurm/munge
StateSaveLocation=$dir/slurm/state
SlurmdSpoolDir=$dir/slurm/spool
SlurmctldPidFile=$dir/slurm/slurmctld.pid
SlurmdPidFile=$dir/slurm/slurmd.pid
SlurmctldLogFile=$dir/slurm/slurmctld.log
SlurmdLogFile=$dir/slurm/slurmd.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
KillWait=5
NodeName=$host NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
END
export SLURM_CONF=$dir/slurm/slurm.conf
end_slurm() {
    local p
    scancel --quiet --full --signal=KILL "${job:-1}" 2>/dev/null
    for p in slurmd slurmctld munged; do
        p=$(cat slurm/$p.pid 2>/dev/null) && kill "$p" && for ((i = 0; i < 50; i++)); do
            kill -0 "$p" || break
            sleep 0.1
        done
    done 2>/dev/null
    cleanup
}
trap end_slurm EXIT
munged --force --key-file=slurm/key --socket="$dir/slurm/munge" --pid-file="$dir/slurm/munged.pid" \
    --log-file="$dir/slurm/munged.log" --seed-file="$dir/slurm/seed" && slurmctld -c && slurmd
for ((i = 0; i < 100; i++)); do sinfo -h -o %T 2>/dev/null | grep -q idle && break; sleep 0.2; done
sinfo -h -o %T | grep -q idle
verdict "a real SLURM is up" $? "$(tail -n 3 slurm/*.log)" || exit 1

until_is() { # a command, and what it must say, for 30 s
    for ((i = 0; i < 300; i++)); do [[ $(eval "$1" 2>/dev/null) == $2 ]] && return; sleep 0.1; done
    return 1
}
field() { scontrol show job "$job" | sed -nE "s/.*\\b$1=([^ ]*).*/\\1/p" | head -n 1; }
seen() { echo "$(field JobState), $(field Restarts) restarts; $(tail -n 3 "$1"-*.txt 2>&1)"; }
submit() { # run, keys
    brim slurm tiny.yaml run="$1" gpus=2 micro_batch=4 "${@:2}" --cpus 1 --time 10 --out "$1.sh"
    job=$(sbatch --parsable "$1.sh")
    until_is "tail -n 1 runs/$1/metrics.jsonl" '*"loss"*'
}

submit job opt.prefetch=false steps=3000; first=$?
scancel --signal=USR1 "$job" # as SLURM does some time before the end; to the ranks alone
until_is 'field Restarts' 1
[ $? -eq 0 ] && [ $first -eq 0 ] && out=$(all_whole job) && at=$(last_ckpt job) &&
    at=$((10#${at##*step-})) && [ "$at" -gt 0 ] && [ "$at" -lt 3000 ]
verdict "when the time is up the run saves, and the job is queued again" $? "$out step $at: $(seen job)"

# What is queued again waits for two minutes unless somebody asks.
until_is 'scontrol update job="$job" StartTime=now; field JobState' RUNNING &&
    until_is "cat job-$job.txt" "*resuming after step $at*"
verdict "the job goes on where the run was" $? "$(seen job)"

scancel "$job"; until_is 'field JobState' 'CANCELLED*' && sleep 1 && [ "$(field Restarts)" -eq 1 ] &&
    until_is 'pgrep -f "run=jo[b]"' ''
verdict "a job that is cancelled is not queued again" $? "$(seen job)"

submit short; until_is 'field JobState' COMPLETED && [ "$(field Restarts)" -eq 0 ] &&
    within "$(last_of short val_loss)" "$(last_of ref val_loss)" 0.001
verdict "a run that is done is not queued again" $? "$(seen short)"
exit $failed
