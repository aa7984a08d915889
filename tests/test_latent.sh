#!/usr/bin/env bash
# Task latent from the command line: trains, is killed and goes on bit for bit, evaluates, answers; refuses a
# language model that is another, cut short or lacks a tensor; skips and names broken lines of JSONL.
# LATENT_DEVICE=cuda runs the same on a GPU. LATENT_LONG=1 also trains latent-tiny to its end.
# shellcheck source=tests/shell_lib.sh
. "$(dirname "$0")/shell_lib.sh"
unset RANK WORLD_SIZE LOCAL_RANK BRIM_FAULT
export BRIM_RUNS=$dir/runs
device=${LATENT_DEVICE:-cpu}
most_s=100; case $build in *asan*) most_s=500 ;; esac
recipe=$here/recipes/latent-tiny.yaml
small="steps=12 optim.warmup=2 step_samples=8 eval.every=6 eval.samples=8 checkpoint.every=4 threads=1"
small="$small latent.teacher=text optim.schedule=cosine watch.sample=false watch.report=false"
small="$small deterministic=true precision=fp32 device=$device"

train() { # name, overrides
    local name=$1
    shift
    # shellcheck disable=SC2086
    timeout -k 5 $most_s "$brim" train "$recipe" "run=$name" $small "$@" >"$name.log" 2>&1 </dev/null
}

bits() { sed -E 's/, "(per_s|mfu|time_s|data_wait_s)": [^,}]*//g' "runs/$1/metrics.jsonl"; }
refused() { # name, pattern, command...: exit code 2 and one line like that
    local name=$1 pattern=$2 out rc
    shift 2
    out=$("$@" 2>&1 </dev/null); rc=$?
    [ $rc -eq 2 ] && [ "$(echo "$out" | grep -vc '^\[')" -eq 1 ] &&
        echo "$out" | grep -v '^\[' | grep -qE -- "$pattern"
    verdict "$name" $? "exit code $rc: $out"
}

train whole
verdict "latent-tiny trains" $? "$(tail -n 3 whole.log)"
[ -n "$(last whole val_em)" ] && [ -n "$(last whole val_loss_full)" ] && [ -n "$(last whole val_rank)" ] &&
    [ -n "$(last whole kl)" ]
verdict "metrics have losses, baselines, exact match and rank" $? "$(tail -n 1 runs/whole/metrics.jsonl)"

# Only encoder and pooler are saved; the language model is named with its hash.
step=runs/whole/checkpoints/step-00000012
size=$(stat -c %s "$step/model.safetensors")
! grep -q 'llm\.' "$step/model.safetensors" && grep -q 'latent-lm.safetensors' "$step"/*.json
verdict "checkpoints hold what is trained, and name the language model" $? "$size bytes"

# Killed after step 4, and gone on with.
# shellcheck disable=SC2086
"$brim" train "$recipe" run=part $small >part.log 2>&1 </dev/null &
pid=$!
for _ in $(seq 400); do [ -d runs/part/checkpoints/step-00000004 ] && break; sleep 0.05; done
kill -9 $pid 2>/dev/null
wait $pid 2>/dev/null
train part && cmp runs/whole/checkpoints/step-00000012/model.safetensors \
    runs/part/checkpoints/step-00000012/model.safetensors &&
    [ "$(bits whole | tail -n 1)" = "$(bits part | tail -n 1)" ]
verdict "killed and gone on with, bit for bit" $? "$(tail -n 2 part.log)"

out=$("$brim" eval runs/whole eval.samples=8 "device=$device" threads=1 2>&1)
echo "$out" | grep -q "whole text .* no prompt" && echo "$out" | grep -q "exact match"
verdict "brim eval says loss, baselines and exact match" $? "$out"

refused "brim eval: no such file" "command line: data.val: nothing: no such file" \
    "$brim" eval runs/whole data.val=nothing

answer() {
    "$brim" sample runs/whole --prompt "First Citizen: Before we" --temperature 0 "device=$device" 2>&1
}
one=$(answer) two=$(answer)
[ ${#one} -gt 0 ] && [ "$one" = "$two" ]
verdict "brim sample answers through the latents" $? "$one, $two"

long=$(head -c 100 "$here/recipes/data/tinyshakespeare.txt")
through() { "$brim" sample runs/whole --prompt "$1" --temperature 0 "device=$device" 2>>said; }
brim sample runs/whole --prompt "$long" --temperature 0 "device=$device"
[ $rc -eq 0 ] && says "warning: --prompt: the encoder reads the last 64 bytes of it" &&
    [ "$(through "$long")" = "$(through "${long: -65}")" ] && [ "$(grep -c "reads the last" said)" -eq 2 ]
verdict "a prompt that is cut is said" $? "$(seen)"

for flag in --ids --rate --ignore-eos "--stop x" "--prompt-file f" "--prompt-ids 1"; do
    # shellcheck disable=SC2086
    refused "sample: ${flag% *}" "command line: ${flag% *}: task latent has no such option" \
        "$brim" sample runs/whole --prompt x $flag
done
refused "sample: more tokens than an answer has" "--tokens: 100: an answer has at most latent.answer tok" \
    "$brim" sample runs/whole --prompt x --tokens 100
grep -q "parameters (1.19M frozen), AdamW, " whole.log
verdict "the log says what is frozen, and the optimizer" $? "$(grep parameters whole.log)"

brim plan "$recipe" latent.teacher=text --list && says "teacher head" &&
    brim plan "$recipe" latent.teacher=text latent.kl_weight=0 --list && ! says "teacher head"
verdict "no teacher without a weight for it" $? "$(seen)"
brim plan "$recipe" latent.prompt=5000
[ $rc -eq 0 ] && says "latent.prompt: prompt and answer have 5008 tokens, the language model was trained on"
verdict "more text than the language model was trained on is said" $? "$(seen)"

# Two ranks share a step. On one GPU they pass for two hosts: NCCL wants a GPU of its own for each rank of a
# host.
port=$((20000 + RANDOM % 12000))
export NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 NCCL_P2P_DISABLE=1
for r in 0 1; do
    # shellcheck disable=SC2086
    NCCL_HOSTID=latent-$r RANK=$r WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port \
        BRIM_COMM_TIMEOUT=20 timeout -s KILL 60 \
        "$brim" train "$recipe" run=two $small micro_batch=2 >two.$r.log 2>&1 </dev/null &
    pids[r]=$!
done
wait "${pids[0]}" "${pids[1]}"
awk -v a="$(last two loss)" -v b="$(last whole loss)" \
    'BEGIN { d = a - b; exit !(a > 0 && d < 1e-4 * b && -d < 1e-4 * b) }'
verdict "two ranks have the losses of one" $? "$(last two loss), $(last whole loss); $(tail -n 2 two.1.log)"

# Other language models.
lm=$here/recipes/data/latent-lm.safetensors
head -c 100000 "$lm" >short.safetensors
refused "a language model that is cut short" "latent.llm: .*short.safetensors" \
    "$brim" train "$recipe" run=x latent.llm=short.safetensors
cp "$lm" other.safetensors
printf '\x41' | dd of=other.safetensors bs=1 seek=200000 conv=notrunc status=none
# shellcheck disable=SC2086
refused "a changed language model" "(latent-lm|other).safetensors" \
    "$brim" train "$recipe" run=whole $small steps=14 latent.llm=other.safetensors
refused "a language model of another shape" "tensor block.4.norm1.weight is missing" \
    "$brim" train "$recipe" run=x model.layers=5
refused "no such language model" "nothing: no such file or folder" \
    "$brim" train "$recipe" run=x latent.llm=nothing
refused "no language model" "latent.llm: is missing" "$brim" train "$recipe" run=x latent.llm=

# Hugging Face folders: every family, and one that lacks a file.
tar xJf "$here/tests/golden/hf.tar.xz"
for d in yarn-qwen3 phi3-long; do "$build/tests/verify_rope" make "$d" "$d"; done
hf="latent.pairs=random model.vocab=64 latent.prompt=8 steps=2 optim.warmup=0"
for d in gpt2 llama mistral qwen2 qwen3 yarn-qwen3 phi3-long; do
    # shellcheck disable=SC2086
    train "hf-$d" $hf "latent.llm=$d" && grep -q "$d" "runs/hf-$d"/checkpoints/step-00000002/*.json &&
        ! grep -q 'llm\.' "runs/hf-$d/checkpoints/step-00000002/model.safetensors"
    verdict "a frozen $d" $? "$(tail -n 1 "hf-$d.log")"
done
# shellcheck disable=SC2086
refused "more tokens than the short list of longrope is for" "tokens, longrope is computed up to 64" \
    "$brim" train "$recipe" run=x $small $hf latent.llm=phi3-long latent.prompt=70
# shellcheck disable=SC2086
refused "bytes that the language model does not know" "kinds of tokens, the language model has 64" \
    "$brim" train "$recipe" run=x $small latent.llm= latent.pairs=random model.vocab=300 latent.llm=llama
# shellcheck disable=SC2086
refused "a folder without a tokenizer is not fed bytes" "latent.tokenizer: llama: no tokenizer in it" \
    "$brim" train "$recipe" run=x $small latent.llm=llama
# shellcheck disable=SC2086
refused "more text than gpt2 has positions" "latent.prompt: .* 309 tokens, the language model 256 positions" \
    "$brim" train "$recipe" run=x $small $hf latent.llm=gpt2 latent.prompt=300 latent.anchor_tokens=2
# shellcheck disable=SC2086
refused "more latents than gpt2 has positions" "encoder.latents: .* 309 tokens, the language model 256" \
    "$brim" train "$recipe" run=x $small $hf latent.llm=gpt2 encoder.latents=300 latent.anchor_tokens=2
[ ! -e runs/x ]
verdict "a recipe that is refused leaves no run" $? "$(ls runs)"
cp -r llama more && sed -i 's/"num_hidden_layers": [0-9]*/"num_hidden_layers": 9/' more/config.json
# shellcheck disable=SC2086
refused "a folder that lacks a tensor" "latent.llm: .*more.*model.layers.[0-9]" \
    "$brim" train "$recipe" run=x $small $hf latent.llm=more
head -c 5000 llama/model.safetensors >cut.bin && mv cut.bin llama/model.safetensors
# shellcheck disable=SC2086
refused "a folder whose file is cut short" "llama/model.safetensors" \
    "$brim" train "$recipe" run=x $small $hf latent.llm=llama

# JSONL.
mkdir tok-none
for i in $(seq 40); do
    echo "{\"q\": \"What is $i? It is the number $((i * 7 % 10)).\", \"a\": \"number $((i * 7 % 10))\"}"
done >pairs.jsonl
sed -i '3s/.*/{"q": "no end/; 7s/.*/{"q": "no answer"}/; 9s/.*/[1]/' pairs.jsonl
train json latent.pairs=jsonl latent.prompt_field=q latent.answer_field=a data.train=pairs.jsonl \
    "latent.anchor=A:" data.val_fraction=0.25 latent.prompt=4 latent.answer=6
rc=$?
[ $rc -eq 0 ] && grep -q "pairs.jsonl:3: skipped" json.log &&
    grep -q "pairs.jsonl:7: skipped: no text named a" json.log &&
    grep -q "3 lines" json.log && [ "$(grep -c 'pairs.jsonl:3: skipped' json.log)" -eq 1 ] &&
    grep -q "pairs.jsonl: 37 of 37 prompts cut to latent.prompt (4 tokens)" json.log &&
    grep -q "pairs.jsonl: 37 of 37 answers cut to latent.answer (6 tokens)" json.log
verdict "broken lines are skipped, counted, named once; what is cut is counted" $? \
    "exit code $rc: $(grep -v train json.log | tail -n 5)"
cp pairs.jsonl pairs.jsonl.gz
refused "a packed file" "data.train: pairs.jsonl.gz is packed" \
    "$brim" train "$recipe" run=x latent.pairs=jsonl data.train=pairs.jsonl.gz
refused "a folder" "data.train: tok-none is a folder; pairs are read from a file" \
    "$brim" train "$recipe" run=x latent.pairs=jsonl data.train=tok-none
refused "a file without pairs" "has no pair" \
    "$brim" train "$recipe" run=x latent.pairs=jsonl data.train=pairs.jsonl

# A language model with a tokenizer: found where its run says, counted by, and part of what a run is.
"$brim" data tokenizer train "$here/recipes/data/tinyshakespeare.txt" --vocab 512 --out tok >/dev/null 2>&1
"$brim" train "$here/recipes/quickstart.yaml" run=lm steps=2 optim.warmup=0 model.layers=1 model.width=32 \
    model.heads=2 model.vocab=512 data.train="$here/recipes/data/tinyshakespeare.txt" data.tokenizer=tok \
    "device=$device" watch.sample=false watch.report=false checkpoint.best=false >lm.log 2>&1 </dev/null
sed 's/"q"/"prompt"/; s/"a"/"answer"/; 3d; 7d; 9d' pairs.jsonl >good.jsonl
echo '{"data": [{"paragraphs": [{"context": "Paris is the capital of France.", "qas": [{"question": "Which?",
    "answers": [{"text": "Paris", "answer_start": 0}]}]}]}]}' >squad.json
of_run="latent.llm=runs/lm latent.answer=4 steps=4"
# shellcheck disable=SC2086
for kind in "text" "jsonl data.train=good.jsonl latent.anchor_tokens=0" \
    "squad data.train=squad.json data.val=squad.json"; do
    train "tok-${kind%% *}" $of_run latent.pairs=$kind &&
        grep -q 'tokenizer: .*tok' "runs/tok-${kind%% *}/recipe.yaml"
    verdict "pairs of ${kind%% *} with a run's tokenizer" $? "$(tail -n 2 "tok-${kind%% *}.log")"
done
sed 's/^  prompt: .*/&\n  anchor_tokens: 9/' "$recipe" >anchored.yaml
# shellcheck disable=SC2086
"$brim" train anchored.yaml run=anchored $small $of_run latent.pairs=jsonl data.train=good.jsonl \
    >anchored.log 2>&1 </dev/null
verdict "a recipe's anchor_tokens is for noise alone" $? "$(tail -n 2 anchored.log)"
# shellcheck disable=SC2086
refused "an anchor of another length" 'anchor_tokens: is 9, but latent.anchor "Answer: " has 7 tokens' \
    "$brim" train "$recipe" run=x $small $of_run latent.pairs=jsonl data.train=good.jsonl \
    latent.anchor_tokens=9
cp -r tok tok-was
"$brim" data tokenizer train "$here/recipes/data/tinyshakespeare.txt" --vocab 500 --out other >/dev/null 2>&1
cp other/tokenizer.json tok/
# shellcheck disable=SC2086
refused "a changed tokenizer: no further training" "frozen part tokenizer.* is not the one it was trained" \
    "$brim" train "$recipe" run=tok-jsonl $small $of_run latent.pairs=jsonl data.train=good.jsonl steps=8
refused "a changed tokenizer: no sample" "frozen part tokenizer.* is not the one it was trained with" \
    "$brim" sample runs/tok-jsonl --prompt "What is 3?"
cp tok-was/tokenizer.json tok/

# The queries tied, so all latents of a sample are one: called a collapse within 200 steps. Three healthy runs
# are not.
watched() { # name, overrides
    local name=$1
    shift
    timeout -k 5 $most_s "$brim" train "$recipe" "run=$name" steps=200 step_samples=8 encoder.width=64 \
        encoder.heads=2 eval.every=100 eval.samples=32 latent.baselines=false checkpoint.every=0 threads=1 \
        watch.sample=false watch.report=false "device=$device" "$@" >"$name.log" 2>&1 </dev/null
}
watched tied encoder.tie_queries=true &
watched healthy1 &
wait
watched healthy2 seed=2 &
watched healthy3 seed=3 &
wait
[ -n "$(last tied val_alike)" ] && grep -q "COLLAPSE: the latents of a sample are all alike" tied.log
verdict "tied queries are called a collapse within 200 steps" $? "$(tail -n 2 tied.log)"
[ "$(cat healthy?.log | grep -c 'step 200: validation')" -eq 3 ] && ! grep -q COLLAPSE healthy?.log
verdict "three healthy runs are not" $? "$(grep -h -e COLLAPSE -e 'step 200: validation' healthy?.log)"
grep -q '"val_loss_full": null' runs/tied/metrics.jsonl && ! grep -q 'loss full' tied.log &&
    grep -q 'step 200: validation loss .*, em .*, f1 ' tied.log
verdict "baselines that are not measured are not 0" $? "$(tail -n 1 runs/tied/metrics.jsonl)"
brim eval runs/tied eval.samples=32 "device=$device" threads=1
[ $rc -eq 0 ] && says "COLLAPSE: the latents of a sample are all alike"
verdict "brim eval calls it a collapse" $? "$(seen)"
watched tied encoder.tie_queries=true steps=300
grep -q "resuming after step 200" tied.log && grep -q COLLAPSE tied.log
verdict "so does the first evaluation of a run that goes on" $? "$(tail -n 2 tied.log)"
for i in $(seq 400); do
    s=yes; [ $((i * 7 % 3)) = 0 ] && s=no
    echo "{\"prompt\": \"Number $i: $s.\", \"answer\": \"$s\"}"
done >yes.jsonl
watched yes latent.pairs=jsonl data.train=yes.jsonl "latent.anchor=A:" steps=60 optim.warmup=2 eval.every=30 \
    eval.samples=128 data.val=yes.jsonl
awk -v em="$(last yes val_em)" 'BEGIN { exit !(em > 0.9) }' && ! grep -q COLLAPSE yes.log
verdict "two answers to questions of yes or no are no collapse" $? "$(tail -n 4 yes.log)"
watched seldom eval.every=150 steps=201 eval.samples=1 step_samples=1
grep -q "warning: eval.every: 150: a collapse is looked for at evaluations" seldom.log
verdict "evaluations that are too rare for it are said" $? "$(head -n 4 seldom.log)"
[ "${LATENT_LONG:-0}" = 1 ] || exit $failed

# The real thing: latents are worth more than as many tokens of the prompt, and at least half as much as the
# whole prompt.
began=$(date +%s)
"$brim" train "$recipe" run=real watch.sample=false watch.report=false "device=$device" >real.log 2>&1 \
    </dev/null
l=$(last real val_loss) f=$(last real val_loss_full)
b=$(last real val_loss_budget) n=$(last real val_loss_none)
awk -v l="$l" -v b="$b" 'BEGIN { exit !(l > 0 && l < b) }'
verdict "latent-tiny: better than as many tokens" $? "$l; $b"
awk -v l="$l" -v f="$f" -v n="$n" 'BEGIN { share = (n - l) / (n - f)
    printf "latent-tiny: %.0f %% of the way from no prompt to the whole\n", 100 * share
    exit !(l > 0 && f < n && share >= 0.5) }'
verdict "latent-tiny: at least half way from no prompt to the whole" $? "$l; $f, $n"
echo "latent-tiny took $(($(date +%s) - began)) s"
! grep -q COLLAPSE real.log
verdict "latent-tiny is not called collapsed" $? "$(grep COLLAPSE real.log)"
exit $failed
