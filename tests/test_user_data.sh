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
exit $failed
