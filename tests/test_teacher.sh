#!/usr/bin/env bash
# A cached teacher from the command line: the file is made whole or not at all; with all logits a run is that
# of the text teacher, with few nearly so; ranks, threads and a resumed run see the same rows; another file is
# refused by what differs; evaluation, answers, plan and bench need no file.
# shellcheck source=tests/shell_lib.sh
. "$(dirname "$0")/shell_lib.sh"
unset RANK WORLD_SIZE LOCAL_RANK BRIM_FAULT
export BRIM_RUNS=$dir/runs
device=${LATENT_DEVICE:-cpu}
most_s=100; case $build in *asan*) most_s=500 ;; esac
recipe=$here/recipes/latent-tiny.yaml
head -c 5000 "$here/recipes/data/tinyshakespeare.txt" >text.txt
small="data.train=text.txt steps=12 optim.warmup=2 step_samples=8 eval.every=6 eval.samples=8 threads=1"
small="$small checkpoint.every=4 optim.schedule=cosine watch.sample=false watch.report=false"
small="$small deterministic=true precision=fp32 device=$device"

train() { # name, overrides
    local name=$1
    shift
    # shellcheck disable=SC2086
    timeout -k 5 $most_s "$brim" train "$recipe" "run=$name" $small "$@" >"$name.log" 2>&1 </dev/null
}
refused() { # name, pattern, overrides: exit code 2, one line like that, no run
    local name=$1 pattern=$2
    shift 2
    # shellcheck disable=SC2086
    brim train "$recipe" run=x $small latent.teacher=cached "$@"
    [ $rc -eq 2 ] && [ "$(grep -vc '^\[' said)" -eq 1 ] && says "$pattern" && [ ! -e runs/x ]
    verdict "$name" $? "$(seen)"
}
near() { # a, b, share of b that they may differ
    awk -v a="$1" -v b="$2" -v m="$3" 'BEGIN { d = a - b; exit !(a > 0 && d <= m * b && -d <= m * b) }'
}
weights() { cat "runs/$1/checkpoints/step-00000012/model.safetensors"; }

refused "without the file, the command that makes it" \
    "latent.teacher: cached needs text.txt.teacher, which is not there: brim data teacher .*latent-tiny.yaml"
# shellcheck disable=SC2086
brim data teacher "$recipe" $small
[ $rc -eq 0 ] && says "text.txt.teacher: [0-9]+ samples, 64 of 256 logits for each of 4 tokens" &&
    says "samples/s" && [ "$(ls text.txt*)" = "text.txt
text.txt.teacher" ]
verdict "brim data teacher" $? "$(seen)"
# shellcheck disable=SC2086
brim data teacher "$recipe" $small threads=2 micro_batch=2 --out again.teacher
rc1=$rc
# shellcheck disable=SC2086
brim data teacher "$recipe" $small latent.teacher_file=all.teacher --top 256
[ $rc1 -eq 0 ] && [ $rc -eq 0 ] && [ "$(stat -c %s again.teacher)" = "$(stat -c %s text.txt.teacher)" ] &&
    cmp -n 128 again.teacher text.txt.teacher
verdict "--out, --top, threads and micro-batches" $? "$(seen)"

train text latent.teacher=text && train all latent.teacher=cached latent.teacher_file=all.teacher \
    latent.teacher_top=256 && train top latent.teacher=cached
verdict "cached runs" $? "$(tail -n 2 text.log all.log top.log)"
for key in loss kl grad_norm val_loss; do
    near "$(last all $key)" "$(last text $key)" 1e-5 || echo "$key: $(last all $key), $(last text $key)"
done >differ
[ ! -s differ ]
verdict "with all logits: the text teacher's losses, gradients and validation, to 1e-5" $? "$(cat differ)"
near "$(last top kl)" "$(last text kl)" 5e-3
verdict "with 64 of 256 logits: nearly the same distance" $? "$(last top kl), $(last text kl)"
# shellcheck disable=SC2086
brim data teacher "$recipe" $small latent.teacher_file=few.teacher --top 16
train few latent.teacher=cached latent.teacher_file=few.teacher latent.teacher_top=16 &&
    is "$(last few kl)" '<' "$(last text kl)" && near "$(last few kl)" "$(last text kl)" 0.1
verdict "with 16: a little less, since all others are compared as one" $? "$(last few kl), $(last text kl)"
brim plan "$recipe" latent.teacher=cached latent.teacher_file=nowhere --list
[ $rc -eq 0 ] && says "cached teacher" && ! says "teacher head"
verdict "brim plan: no pass of the teacher, and no file" $? "$(seen)"

# Killed after step 4, and gone on with.
# shellcheck disable=SC2086
"$brim" train "$recipe" run=part $small latent.teacher=cached >part.log 2>&1 </dev/null &
pid=$!
for _ in $(seq 400); do [ -d runs/part/checkpoints/step-00000004 ] && break; sleep 0.05; done
kill -9 $pid 2>/dev/null
wait $pid 2>/dev/null
train part latent.teacher=cached && cmp <(weights top) <(weights part)
verdict "killed and gone on with, bit for bit" $? "$(tail -n 2 part.log)"
train threads latent.teacher=cached data.threads=3 && cmp <(weights top) <(weights threads)
verdict "with three loader threads, bit for bit" $? "$(tail -n 2 threads.log)"
port=$((20000 + RANDOM % 12000))
export NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 NCCL_P2P_DISABLE=1
for r in 0 1; do
    # shellcheck disable=SC2086
    NCCL_HOSTID=teacher-$r RANK=$r WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port \
        BRIM_COMM_TIMEOUT=20 timeout -s KILL 60 \
        "$brim" train "$recipe" run=two $small latent.teacher=cached micro_batch=2 >two.$r.log \
        2>&1 </dev/null &
    pids[r]=$!
done
wait "${pids[0]}" "${pids[1]}"
near "$(last two kl)" "$(last top kl)" 1e-4
verdict "two ranks have the distance of one" $? "$(last two kl), $(last top kl); $(tail -n 2 two.1.log)"

# Other files.
refused "another K" "latent.first: is 2, text.txt.teacher was made with 4" latent.first=2
refused "another k" "latent.teacher_top: is 32, text.txt.teacher was made with 64" latent.teacher_top=32
refused "another seed" "seed: is 7, and texts are cut by it" seed=7
refused "another prompt" "latent.prompt: is 32, text.txt.teacher was made with 64" latent.prompt=32
refused "other samples" "was made from [0-9]+ other samples" latent.least_bytes=40
head -c 6000 "$here/recipes/data/tinyshakespeare.txt" >longer.txt
refused "other data" "data.train: longer.txt has another content" data.train=longer.txt \
    latent.teacher_file=text.txt.teacher
cp "$here/recipes/data/latent-lm.safetensors" other.safetensors
printf '\x41' | dd of=other.safetensors bs=1 seek=200000 conv=notrunc status=none
refused "another language model" "latent.llm: .*/text.txt.teacher was made with another language model" \
    latent.llm=other.safetensors
brim plan "$recipe" latent.teacher=cached latent.teacher_top=300
[ $rc -eq 2 ] && says "latent.teacher_top: is 300, the language model has 256 tokens"
verdict "more logits than tokens" $? "$(seen)"
head -c 100000 text.txt.teacher >short.teacher
refused "a file that is cut short" "short.teacher: truncated" latent.teacher_file=short.teacher
cp text.txt.teacher bad.teacher
printf '\x41' | dd of=bad.teacher bs=1 seek=200000 conv=notrunc status=none
refused "a flipped byte" "bad.teacher: sample [0-9]+ is damaged" latent.teacher_file=bad.teacher
refused "a file of something else" "text.txt: not a file of a teacher" latent.teacher_file=text.txt

# What needs no file.
mv text.txt.teacher away
brim eval runs/top eval.samples=8 threads=1 "device=$device" && says "whole text"
verdict "brim eval" $? "$(seen)"
brim sample runs/top --prompt "First Citizen: Before we proceed" --temperature 0
[ $rc -eq 0 ]
verdict "brim sample" $? "$(seen)"
mv away text.txt.teacher
brim bench "$recipe" latent.pairs=random latent.llm= data.train= latent.teacher=cached step_samples=8 \
    threads=1 --seconds 1 --no-limit "device=$device"
[ $rc -eq 0 ] && says "samples/s"
verdict "brim bench has noise" $? "$(seen)"
train squad latent.pairs=squad latent.teacher=none data.train="$dir/nothing"
echo '{"data": [{"paragraphs": [{"context": "Paris is the capital of France.", "qas": [{"question": "Which?",
    "answers": [{"text": "Paris", "answer_start": 0}, {"text": "France"}]}]}]}]}' >squad.json
squad="latent.pairs=squad data.train=squad.json data.val=squad.json latent.anchor=A:"
# shellcheck disable=SC2086
brim data teacher "$recipe" $small $squad && train squad latent.teacher=cached $squad
verdict "SQuAD's other answers beside it" $? "$(seen) $(tail -n 2 squad.log)"

# Not made: refused, failed, stopped, killed.
for case in "random latent.pairs=random data.train=" "weight latent.kl_weight=0"; do
    # shellcheck disable=SC2086
    brim data teacher "$recipe" $small ${case#* } --out none.teacher
    [ $rc -eq 2 ] && [ "$(grep -vc '^\[' said)" -eq 1 ]
    verdict "brim data teacher refuses: ${case% *}" $? "$(seen)"
done
brim data teacher "$here/recipes/quickstart.yaml" --out none.teacher
[ $rc -eq 2 ] && says "task: lm has no teacher"
verdict "brim data teacher refuses another task" $? "$(seen)"
# shellcheck disable=SC2086
brim data teacher "$recipe" $small --out nowhere/none.teacher
[ $rc -eq 2 ] && says "nowhere: no such folder"
verdict "brim data teacher refuses a folder that is not there" $? "$(seen)"
# shellcheck disable=SC2086
BRIM_FAULT=write:20+ brim data teacher "$recipe" $small --out none.teacher
[ $rc -eq 1 ] && [ "$(find . -name 'none.teacher*' | wc -l)" -eq 0 ]
verdict "a disk that fails: nothing is left" $? "$(seen) $(ls)"
for signal in INT KILL; do
    "$brim" data teacher "$recipe" threads=1 "device=$device" --out none.teacher >stop.log 2>&1 </dev/null &
    pid=$!
    for _ in $(seq 400); do grep -q "samples/s" stop.log && break; sleep 0.05; done
    kill -$signal $pid
    wait $pid 2>/dev/null
    rc=$?
    left=$(find . -name 'none.teacher*' | wc -l)
    [ $rc -ne 0 ] && [ ! -e none.teacher ] && { [ $signal = KILL ] || [ "$left" -eq 0 ]; }
    verdict "stopped by $signal: no file" $? "exit code $rc: $(tail -n 1 stop.log)"
done
exit $failed
