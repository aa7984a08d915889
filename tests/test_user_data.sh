#!/usr/bin/env bash
# A user's own data through the program: what is checked before a run, what a prompt is, which windows are evaluated.
set -uo pipefail
build=$(cd "${1:-build}" && pwd)
here=$(cd "$(dirname "$0")/.." && pwd)
brim=$build/brim
dir=$(mktemp -d); trap 'rm -rf "$dir"' EXIT
cd "$dir" || exit 1
failed=0

verdict() { # name, condition's exit code, what was seen
    if [ "$2" -eq 0 ]; then echo "ok $1"; else echo "not ok $1: $3"; failed=1; fi
}

# name, then overrides: trains runs/NAME; the log goes to NAME.log.
train() {
    local name=$1
    shift
    timeout -k 5 60 "$brim" train tiny.yaml "run=$name" "$@" >"$name.log" 2>&1 </dev/null
}

head -c 20000 "$here/recipes/data/tinyshakespeare.txt" >text.txt
cat >tiny.yaml <<END
steps: 4
step_tokens: 128
device: cpu
threads: 1
model: {layers: 1, width: 16, heads: 2, vocab: 256, context: 16}
data: {kind: text, train: text.txt}
eval: {every: 0, sequences: 7}
END

# ---- evaluation ------------------------------------------------------------------------------------------------------

train text; rc=$?
trained=$(sed -nE 's/.*step 4: validation loss ([0-9.]+)$/\1/p' text.log)
"$brim" eval text eval.sequences=7 >some 2>err && "$brim" eval text >all 2>>err && "$brim" eval text eval.sequences=100000 >most 2>>err; rc2=$?
[ $rc -eq 0 ] && [ $rc2 -eq 0 ] && [ -n "$trained" ] && grep -q "^step 4: validation loss $trained over 112 tokens (7 of 125 windows, evenly spread), " some
verdict "eval.sequences on eval's command line takes the windows that training takes" $? "exit codes $rc $rc2: '$trained' $(cat some err)"
grep -q '^step 4: validation loss [0-9.]* over 1999 tokens (the whole validation set), perplexity' all && cmp -s all most && ! grep -q "loss $trained" all
verdict "eval takes the whole validation set otherwise" $? "$(cat all most)"
# ---- prompts ---------------------------------------------------------------------------------------------------------

"$brim" train tiny.yaml run=ids data.kind=random model.vocab=1000 steps=2 >ids.log 2>&1; rc=$?
"$brim" sample ids --prompt " 1 2  999" --tokens 4 >out 2>err; rc2=$?
[ $rc -eq 0 ] && [ $rc2 -eq 0 ] && grep -qE '^1 2 999( [0-9]+){4} *$' out
verdict "a prompt of token ids is fed as these ids" $? "exit codes $rc $rc2: $(cat out err)"
"$brim" sample ids --tokens 2 >out 2>err && "$brim" sample ids data.document_token=77 --tokens 2 >>out 2>err; rc=$?
[ $rc -eq 0 ] && grep -qE '^0( [0-9]+){2} *$' out && grep -qE '^77( [0-9]+){2} *$' out
verdict "without one the document token begins, or 0" $? "exit code $rc: $(cat out err)"
for wrong in "Once" "1,2" "1 -2" "1 2.5" "1000" "99999999999999999999" "0x10" "1 2 three" $'1\n2'; do
    "$brim" sample ids --prompt "$wrong" >out 2>err; rc=$?
    [ $rc -eq 2 ] && [ ! -s out ] && [ "$(wc -l <err)" -eq 1 ] && grep -q "^command line: --prompt: '.*' is not a token id: .* 0 to 999, separated by spaces" err
    verdict "a prompt of '${wrong//$'\n'/\\n}' is refused by a model of ids" $? "exit code $rc: $(cat out err)"
done
for wrong in "" "   " "$(seq -s ' ' 1 16)"; do
    "$brim" sample ids --prompt "$wrong" >out 2>err; rc=$?
    [ $rc -eq 2 ] && [ "$(wc -l <err)" -eq 1 ] && grep -qE "^command line: --prompt: (needs at least one token id|longer than)" err
    verdict "and one of $(wc -w <<<"$wrong") ids" $? "exit code $rc: $(cat out err)"
done
"$brim" sample text --prompt "1 2 3" --tokens 5 >out 2>err; rc=$?
[ $rc -eq 0 ] && [ "$(head -c 5 out)" = "1 2 3" ] && [ "$(wc -c <out)" -eq 11 ]
verdict "a model of text takes a prompt as text" $? "exit code $rc: $(cat out err)"
"$brim" sample --help >out 2>err
for has in '^brim sample RUN .*key=value' '^  --prompt .*ids' '^  --tokens .*default 256' '^  --temperature .*default 0.8' '^  --top-k .*default 0)' '^  --seed .*default 1)'; do
    grep -q "$has" out; verdict "sample --help has '$has'" $? "$(cat out err)"
done
exit $failed
