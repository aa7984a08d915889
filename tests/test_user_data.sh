#!/usr/bin/env bash
# A user's own data through the program: what is checked before a run, what a prompt is, which windows are
# evaluated.
. "$(dirname "$0")/shell_lib.sh"

# name, then overrides: trains runs/NAME; the log goes to NAME.log.
train() {
    local name=$1
    shift
    timeout -k 5 60 "$brim" train tiny.yaml "run=$name" "$@" >"$name.log" 2>&1 </dev/null
}

tiny_recipe 20000 4 7

# ---- evaluation --------------------------------------------------------------------------------------------

train text; rc=$?
trained=$(sed -nE 's/.*step 4: validation loss ([0-9.]+),.*/\1/p' text.log)
"$brim" eval text eval.sequences=7 >some 2>err && "$brim" eval text >all 2>>err &&
    "$brim" eval text eval.sequences=100000 >most 2>>err
rc2=$?
[ $rc -eq 0 ] && [ $rc2 -eq 0 ] && [ -n "$trained" ] &&
    grep -q "^step 4: validation loss $trained over 112 tokens (7 of 125 windows, evenly spread), " some
verdict "eval.sequences on eval's command line takes the windows that training takes" $? \
    "exit codes $rc $rc2: '$trained' $(cat some err)"
grep -q '^step 4: validation loss [0-9.]* over 1999 tokens (the whole validation set), perplexity' all &&
    cmp -s <(head -n 1 all) <(head -n 1 most) && grep -qE '^[0-9.]+[kM]? tokens/s$' all &&
    ! grep -q "loss $trained" all
verdict "eval takes the whole validation set otherwise" $? "$(cat all most)"
# ---- bad shards --------------------------------------------------------------------------------------------

# An llm.c shard of 2-byte ids read from standard input.
shard() { # file
    cat >payload
    { printf '\x88\xd8\x34\x01\x01\0\0\0'; printf \
        "$(printf '%08x' $(($(stat -c %s payload) / 2)) | sed -E 's/(..)(..)(..)(..)/\\x\4\\x\3\\x\2\\x\1/')"
      head -c 1012 /dev/zero; cat payload; } >"$1"
}
# file, token, id
poke() {
    printf "$(printf '\\x%02x\\x%02x' $(($3 % 256)) $(($3 / 256)))" |
        dd of="$1" bs=1 seek=$((1024 + 2 * $2)) conv=notrunc status=none
}
head -c 3000 text.txt | iconv -f latin1 -t UTF-16LE | shard good.bin
cp good.bin bad.bin; poke bad.bin 2000 256; poke bad.bin 2500 299
tokens=(data.kind=tokens model.vocab=256)

train good "${tokens[@]}" data.train=good.bin; rc=$?
[ $rc -eq 0 ] && grep -q '] data.train: good.bin: 5.86 KiB of tokens checked' good.log &&
    [ "$(grep -c 'tokens checked' good.log)" -eq 1 ]
verdict "good shards are said to be checked, once" $? "exit code $rc: $(cat good.log)"
blame='command line: data.train:'
train new "${tokens[@]}" data.train=bad.bin; rc=$?
[ $rc -eq 2 ] && [ "$(wc -l <new.log)" -eq 1 ] &&
    grep -q "^$blame bad.bin: token 2000 is 256, but model.vocab is 256: 300 or more would do$" new.log &&
    [ ! -e runs/new ]
verdict "an id outside the vocabulary is refused before the run begins" $? "exit code $rc: $(cat new.log)"
train new "${tokens[@]}" data.train=good.bin data.val=bad.bin; rc=$?
[ $rc -eq 2 ] && grep -q '^command line: data.val: bad.bin: token 2000 ' new.log && [ ! -e runs/new ]
verdict "in data.val too" $? "exit code $rc: $(cat new.log)"
# Of 168 windows 8 a step: by step 21 each was seen once.
train late "${tokens[@]}" data.train=bad.bin data.verify=false steps=30 checkpoint.every=0; rc=$?
at=$(find runs/late/checkpoints -name 'step-*' | sed 's/.*step-0*//')
[ $rc -eq 1 ] && grep -q 'not checked: data.verify is false' late.log &&
    tail -n 1 late.log | grep -q '^brim: bad.bin: token 2000 is 256' && [ "${at:-0}" -gt 0 ] &&
    [ "${at:-0}" -lt 21 ]
verdict "one that is met later ends the run as a failure, after a save" $? \
    "exit code $rc, step '$at': $(tail -n 3 late.log)"

# 1.1 GiB, nearly all of it a hole.
n=$((560 << 20))
{ printf '\x88\xd8\x34\x01\x01\0\0\0'; printf '\0\0\0\x23'; head -c 1012 /dev/zero; } >big.bin
truncate -s $((1024 + 2 * n)) big.bin; poke big.bin $((n - 9)) 300
train big "${tokens[@]}" data.train=big.bin data.val=good.bin steps=1; rc=$?
[ $rc -eq 0 ] &&
    grep -q 'big.bin: 1.09 GiB of tokens are not checked before the run.*data.verify=true' big.log &&
    grep -q 'data.val: good.bin: .*checked' big.log
verdict "large shards are not read unless asked, which is said" $? "exit code $rc: $(cat big.log)"
train new "${tokens[@]}" data.train=big.bin data.val=good.bin data.verify=true; rc=$?
[ $rc -eq 2 ] && tail -n 1 new.log |
    grep -q "^$blame big.bin: token $((n - 9)) is 300, but model.vocab is 256: 301 or more would do$" &&
    [ ! -e runs/new ]
verdict "data.verify=true reads them" $? "exit code $rc: $(cat new.log)"
rm big.bin

for magic in '\x88\xd8\x34\x01' BRIMTOK1; do
    { printf "$magic"; cat text.txt; } >shard.bin
    train new data.train=shard.bin; rc=$?
    [ $rc -eq 2 ] && [ "$(wc -l <new.log)" -eq 1 ] &&
        grep \
        -q '^command line: data.train: shard.bin: is a token shard, not text: data.kind=tokens reads it$' \
        new.log && [ ! -e runs/new ]
    verdict "a shard that is called text is refused: $magic" $? "exit code $rc: $(cat new.log)"
done

# ---- docs/formats.md ---------------------------------------------------------------------------------------

if command -v python3 >/dev/null; then
    mkdir docs
    head -c 3000 text.txt >docs/a.txt; tail -c 900 text.txt >docs/b.txt
    sed -n '/^```python$/,/^```$/p' "$here/docs/formats.md" | sed '1d;$d' >docs/write.py
    (cd docs && python3 write.py) >out 2>&1; rc=$?
    train docs "${tokens[@]}" data.train=docs/shards data.document_token=256 model.vocab=257; rc2=$?
    [ $rc -eq 0 ] && [ $rc2 -eq 0 ] && [ "$(ls docs/shards | xargs)" = "00000.bin 00001.bin" ] &&
        grep -q 'docs/shards: 7.62 KiB of tokens checked' docs.log
    verdict "the shards that docs/formats.md writes are read" $? \
        "exit codes $rc $rc2: $(cat out) $(tail -n 2 docs.log)"
    cmp -s <(tail -c +1025 docs/shards/00001.bin | head -c 1800) <(iconv -f latin1 -t UTF-16LE docs/b.txt)
    verdict "and hold what it read" $? "$(tail -c +1025 docs/shards/00001.bin | od -An -tu2 | head -n 2)"
    train new "${tokens[@]}" data.train=docs/shards data.document_token=255; rc=$?
    [ $rc -eq 2 ] && grep -q '^command line: data.train: docs/shards/00000.bin: token 3000 is 256' new.log
    verdict "their last id too is checked" $? "exit code $rc: $(cat new.log)"
else
    echo "skip: no python3 to run what docs/formats.md shows"
fi

# ---- few windows -------------------------------------------------------------------------------------------

head -c 100 text.txt >short.txt
train short data.train=short.txt steps=1; rc=$?
[ $rc -eq 0 ] &&
    grep -q 'warning: data.train: short.txt: 4 samples, and a step takes 8: ' short.log &&
    grep -q ' takes 8: it sees each 2.0 times .once with step_tokens=64.$' short.log
verdict "fewer windows than a step takes are a warning" $? "exit code $rc: $(cat short.log)"
train enough data.train=short.txt steps=1 step_tokens=64; rc=$?
[ $rc -eq 0 ] && ! grep -q 'it sees each' enough.log
verdict "as many are none" $? "exit code $rc: $(cat enough.log)"

# ---- short files and no validation -------------------------------------------------------------------------

# name, pattern of the one line, then overrides
refused() {
    local name=$1 pattern=$2
    shift 2
    train new "$@"; rc=$?
    [ $rc -eq 2 ] && [ "$(wc -l <new.log)" -eq 1 ] && grep -qE -- "$pattern" new.log && [ ! -e runs/new ]
    verdict "$name" $? "exit code $rc: $(cat new.log)"
}
: >empty.txt; printf x >one.txt; head -c 18 text.txt >eighteen.txt; head -c 20 text.txt >twenty.txt
cp text.txt secret.txt; chmod 000 secret.txt
refused "an empty file" '^command line: data.train: empty.txt: is empty$' data.train=empty.txt
refused "a file of one byte" \
    '^command line: data.train: one.txt: 1 token is too few: model.context 16 needs 17 at least$' \
    data.train=one.txt
refused "a file too short for a window" \
    '^command line: data.train: eighteen.txt: 18 tokens are too few: model.context 16 needs 19 at least$' \
    data.train=eighteen.txt
refused "a validation file of one byte" \
    '^command line: data.val: one.txt: 1 token is too few: .* needs 2 at least$' data.val=one.txt
few='1e-05 of the 20000 tokens of text.txt leaves 0 for validation: 0.000125 or more would do, or 0 for none'
refused "a share too small" "^command line: data.val_fraction: $few\$" data.val_fraction=1e-5
few='0.5 of the 20 tokens of .* leaves 10 for training: 0.125 or less would do'
refused "a share too large" "^command line: data.val_fraction: $few" data.train=twenty.txt \
    data.val_fraction=0.5
[ -r secret.txt ] ||
    refused "a file that may not be read" '^command line: data.train: secret.txt: Permission denied$' \
    data.train=secret.txt
sed 's/text.txt/one.txt/' tiny.yaml >short.yaml
"$brim" train short.yaml run=one >out 2>err; rc=$?
[ $rc -eq 2 ] && grep -q '^short.yaml:6: data.train: one.txt: 1 token is too few' err
verdict "it has the recipe's line" $? "exit code $rc: $(cat out err)"

# The share that is advised does.
head -c 123457 "$here/recipes/data/tinyshakespeare.txt" >odd.txt
head -c 19 text.txt >nineteen.txt
for case in "odd.txt 66667 0.45999" "nineteen.txt 16 0.1316"; do
    read -r file context share <<<"$case"
    refused "a share of $file too large" ": $share or less would do, or 0 for none\$" "data.train=$file" \
        "model.context=$context" "step_tokens=$context" data.val_fraction=0.5
    # Refused all the same, but for its memory: a step of 66667 tokens would take long.
    refused "$share of it is not" '^this model does not fit' "data.train=$file" "model.context=$context" \
        "step_tokens=$context" "data.val_fraction=$share" memory_limit=1K
done
refused "a file too short for both parts" 'leaves 9 for training: too few for both, 0 for none would do$' \
    data.train=eighteen.txt data.val_fraction=0.5
train all data.val_fraction=0 eval.every=2; rc=$?
[ $rc -eq 0 ] && grep -q ' tokens to train on, no validation; ' all.log &&
    ! grep -q 'validation loss' all.log && ! grep -q val_loss runs/all/metrics.jsonl
verdict "data.val_fraction=0 trains without validation" $? "exit code $rc: $(cat all.log)"
train all data.val_fraction=0 eval.every=2; rc=$?
[ $rc -eq 0 ] && ! grep -q 'validation loss' all.log
verdict "and is done when it is done" $? "exit code $rc: $(cat all.log)"
train one steps=1 data.val_fraction=0; rc=$?
[ $rc -eq 0 ] && grep -q '] 1 step done in' one.log && grep -q ' = 1 micro-batch of 8 x 16$' runs/one/plan.txt
verdict "one is not many" $? "exit code $rc: $(tail -n 1 one.log) $(grep '^step ' runs/one/plan.txt)"
train one steps=1 data.val_fraction=0; grep -q 'runs/one has its 1 step: nothing' one.log
verdict "nor when it is there" $? "$(tail -n 1 one.log)"
"$brim" eval all >out 2>err; rc=$?
[ $rc -eq 2 ] && [ "$(wc -l <err)" -eq 1 ] &&
    grep -q '^runs/all/recipe.yaml:[0-9]*: data.val_fraction: is 0, so there is no validation data' err &&
    grep -q ', so there is no validation data: name data.val$' err
verdict "eval of such a run says so" $? "exit code $rc: $(cat out err)"
"$brim" eval all data.val=text.txt >out 2>err; rc=$?
[ $rc -eq 0 ] && grep -q 'over 19999 tokens (the whole' out
verdict "and takes data.val" $? "exit code $rc: $(cat out err)"

# ---- a run without what it was trained on ------------------------------------------------------------------

cp text.txt gone.txt
train moved data.train=gone.txt; rc=$?
"$brim" sample moved --tokens 5 --seed 3 >before 2>err
rm gone.txt
"$brim" sample moved --tokens 5 --seed 3 >out 2>err; rc2=$?
[ $rc -eq 0 ] && [ $rc2 -eq 0 ] && [ -s out ] && cmp -s before out
verdict "a run is sampled without its data" $? "exit codes $rc $rc2: $(cat err)"
"$brim" eval moved data.val=text.txt >out 2>err; rc=$?
[ $rc -eq 0 ] && grep -q 'over 19999 tokens (the whole' out
verdict "and evaluated on other data" $? "exit code $rc: $(cat out err)"
"$brim" eval moved >out 2>err; rc=$?
[ $rc -eq 2 ] && [ "$(wc -l <err)" -eq 1 ] &&
    grep -q '^runs/moved/recipe.yaml:[0-9]*: data.train: .*/gone.txt: No such file' err
verdict "but not on data that are gone" $? "exit code $rc: $(cat out err)"

# ---- data that change between two starts -------------------------------------------------------------------

cp text.txt grows.txt
train grows data.train=grows.txt; rc=$?
train grows data.train=grows.txt steps=5; rc2=$?
[ $rc -eq 0 ] && [ $rc2 -eq 0 ] && ! grep -q warning: grows.log
verdict "the same data again are no warning" $? "exit codes $rc $rc2: $(cat grows.log)"
cat text.txt >>grows.txt
train grows data.train=grows.txt steps=6; rc=$?
[ $rc -eq 0 ] &&
    grep -q 'warning: data.train: .*grows.txt: changed since step 5: 18000 tokens are 36000 now' grows.log
verdict "a file that grew is" $? "exit code $rc: $(cat grows.log)"

# ---- prompts -----------------------------------------------------------------------------------------------

"$brim" train tiny.yaml run=ids data.kind=random model.vocab=1000 steps=2 >ids.log 2>&1; rc=$?
"$brim" sample ids --prompt " 1 2  999" --tokens 4 >out 2>err; rc2=$?
[ $rc -eq 0 ] && [ $rc2 -eq 0 ] && grep -qE '^1 2 999( [0-9]+){4} *$' out
verdict "a prompt of token ids is fed as these ids" $? "exit codes $rc $rc2: $(cat out err)"
"$brim" sample ids --tokens 2 >out 2>err && "$brim" sample ids data.document_token=77 --tokens 2 >>out 2>err
rc=$?
[ $rc -eq 0 ] && grep -qE '^0( [0-9]+){2} *$' out && grep -qE '^77( [0-9]+){2} *$' out
verdict "without one the document token begins, or 0" $? "exit code $rc: $(cat out err)"
for wrong in "Once" "1 -2" "1 2.5" "1000" "99999999999999999999" "0x10" "1 2 three"; do
    "$brim" sample ids --prompt "$wrong" >out 2>err; rc=$?
    [ $rc -eq 2 ] && [ ! -s out ] && [ "$(wc -l <err)" -eq 1 ] &&
        grep -q "^command line: --prompt: '.*' is not a token id: .* 0 to 999, separated by spaces" err
    verdict "a prompt of '${wrong//$'\n'/\\n}' is refused by a model of ids" $? \
        "exit code $rc: $(cat out err)"
done
for wrong in "" "   "; do
    n=$(wc -w <<<"$wrong") # not within the verdict's name, where it would change $?
    "$brim" sample ids --prompt "$wrong" >out 2>err; rc=$?
    [ $rc -eq 2 ] && [ "$(wc -l <err)" -eq 1 ] &&
        grep -qE "^command line: --prompt: (needs at least one token id$|17 tokens; at most 16 )" err
    verdict "and one of $n ids" $? "exit code $rc: $(cat out err)"
done
"$brim" sample ids --prompt "$(seq -s ' ' 1 16)" --tokens 20 >out 2>err; rc=$?
[ $rc -eq 0 ] && [ "$(wc -w <out)" -eq 36 ]
verdict "a prompt of 16 ids fills a context of 16" $? "exit code $rc: $(cat out err)"
"$brim" sample text --prompt "$(printf '%017d' 5)" >out 2>err; rc=$?
[ $rc -eq 0 ] && head -c 17 out | grep -q '^00000000000000005$' &&
    grep -q 'warning: --prompt: 17 tokens, and the model sees 16 ' err && [ "$(wc -l <err)" -eq 1 ]
verdict "of one of 17 characters the last 16 count, with a word" $? "exit code $rc: $(cat out err)"
train single model.context=1 steps=1; rc=$?
"$brim" sample single --tokens 5 >out 2>err; rc2=$?
[ $rc -eq 0 ] && [ $rc2 -eq 0 ] && [ "$(wc -c <out)" -eq 7 ]
verdict "a model of context 1 writes from the last token alone" $? "exit codes $rc $rc2: $(cat out err)"
train full model.mask=full steps=1; rc=$?
"$brim" sample full --tokens 4 >out 2>err; rc2=$?
[ $rc -eq 0 ] && [ $rc2 -eq 2 ] && [ ! -s out ] && [ "$(wc -l <err)" -eq 1 ] &&
    grep -q '^model.mask: .*both sides' err
verdict "a model that sees both sides of a token is not sampled" $? "exit codes $rc $rc2: $(cat out err)"
"$brim" sample text --prompt "1 2 3" --tokens 5 >out 2>err; rc=$?
[ $rc -eq 0 ] && [ "$(head -c 5 out)" = "1 2 3" ] && [ "$(wc -c <out)" -eq 11 ]
verdict "a model of text takes a prompt as text" $? "exit code $rc: $(cat out err)"
"$brim" sample --help >out 2>err
for has in '^brim sample RUN .*key=value' '^  --prompt .*ids' '^  --tokens .*default 256' \
    '^  --temperature .*default 0.8' '^  --top-k .*default 0)' '^  --seed .*default 1)'; do
    grep -q "$has" out; verdict "sample --help has '$has'" $? "$(cat out err)"
done
exit $failed
