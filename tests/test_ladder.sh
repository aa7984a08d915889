#!/usr/bin/env bash
# The ladder of a tiny recipe on the CPU: measured rungs, refused rungs, the top is the plain recipe, any rung
# can be repeated.
. "$(dirname "$0")/shell_lib.sh"

cat >tiny.yaml <<'END'
step_tokens: 512
model: {layers: 1, width: 32, heads: 2, vocab: 256, context: 32}
data: {kind: random}
END

"$brim" bench tiny.yaml device=cpu --ladder --seconds 1 --json --picture \
    pictures/tiny.svg >out 2>err </dev/null; rc=$?
verdict "the ladder runs" $rc "exit code $rc: $(tail -n 3 err)"

grep '^|' out | tail -n +3 | cut -d'|' -f2 | sed 's/^ *//;s/ *$//' | tr '\n' ';' >names
[ "$(cat names)" = \
    "fp32, stored attention;TF32;bf16;larger batch;flash attention;fused;tuned products;graphs;prefetch;" ]
verdict "the table has all rungs" $? "$(cat names)"

[ "$(grep -c '^| [^|]*| refused: ' out)" -eq 4 ] &&
    grep -q '^| TF32 *| refused: precision: tf32 needs a GPU' out &&
    grep -q '^| graphs *| refused: not on the cpu backend' out
verdict "refused rungs say why" $? "$(grep refused out)"

grep -q '^| prefetch *|  *[0-9.]*[kM]* *|' out && grep -qx -- '- prefetch: none, the recipe as it is' out &&
    grep '"rung": "prefetch"' out | grep -q '"keys": \[\]'
verdict "the top has no override left" $? "$(grep '^| prefetch' out)"

[ "$(grep -c '^{.*}$' out)" -eq 9 ]
verdict "one JSON object a rung" $? "$(grep -c '^{' out) objects"

[ "$(grep -c 'rung [0-9] of 9: ' err)" -eq 9 ]
verdict "progress is shown" $? "$(cat err)"

[ "$(grep '^|' out | wc -L)" -le 130 ]
verdict "the table fits a terminal" $? "$(grep '^|' out | wc -L) columns"

[ -s pictures/tiny.svg ] && [ "$(head -c 4 pictures/tiny.svg)" = '<svg' ] &&
    [ "$(tail -n 1 pictures/tiny.svg)" = '</svg>' ]
verdict "the picture is there" $? "$(ls -l pictures)"

# What was measured is shown even if the picture cannot be written in the end. It goes where runs go.
BRIM_RUNS=$dir/elsewhere BRIM_FAULT=rename:1 "$brim" bench tiny.yaml device=cpu threads=1 \
    --ladder --from torch --seconds 1 --json >late 2>err </dev/null
rc=$?
[ $rc -eq 1 ] && [ "$(grep -c '^| ' late)" -eq 8 ] && [ "$(tail -n 7 late | grep -c '^{.*}$')" -eq 7 ] &&
    ! grep -q '^picture' late &&
    tail -n 1 err | grep -q "$dir/elsewhere/tiny.ladder-from-torch.svg: rename"
verdict "no picture, yet the table" $? "exit code $rc: $(cat late) $(tail -n 2 err)"
grep -qE "^tiny on .*, 1 thread$" late; verdict "the threads that ran are named" $? "$(head -n 1 late)"
[ -z "$(ls elsewhere)" ] && [ ! -e runs ]
verdict "no file is left behind" $? "$(ls . elsewhere)"

# A rung's keys on the command line give its plan: the bytes the ladder printed.
keys=$(grep '^- fp32' out | grep -o '`.*`' | tr -d '`')
want=$(grep '"rung": "fp32, stored attention"' out | grep -o '"planned_bytes": [0-9]*' | grep -o '[0-9]*$')
# shellcheck disable=SC2086
"$brim" plan tiny.yaml device=cpu $keys >plan 2>&1
grep -q "^  total  *$want " plan
verdict "the bottom's keys repeat it" $? "keys $keys, $want bytes: $(grep total plan)"

refused() { # name, pattern of the only line, options: at once, nothing measured
    local name=$1 pattern=$2; shift 2
    "$brim" bench tiny.yaml device=cpu "$@" >out 2>err </dev/null; rc=$?
    [ $rc -eq 2 ] && [ "$(wc -l <err)" -eq 1 ] && [ ! -s out ] && grep -qE -- "$pattern" err
    verdict "$name" $? "exit code $rc: $(head -c 500 err)"
}
long=$(printf '%0300d' 0)
refused "--from alone"              '--from: belongs to --ladder'             --from torch
refused "--ops with the ladder"     '--ops: not together with --ladder'       --ladder --ops
refused "--no-limit with it"        '--no-limit: not together with --ladder'  --ladder --no-limit
refused "no time at all"           "--seconds: '0' is not a whole number"     --ladder --seconds 0
refused "a batch that does not fit" '--batch: 12 does not divide the step.s 16 samples' --ladder --batch 12
refused "a picture inside a file"   'picture.*tiny.yaml: Not a directory'     --ladder --picture \
    tiny.yaml/x.svg
refused "a picture that's a folder" "picture.*'pictures' is not the name of"  --ladder --picture pictures
refused "a picture without a name"  "picture.*'new/' is not the name of"      --ladder --picture new/
mkfifo pipe
refused "a picture in no folder"    "^command line: --picture: $dir/none/deep: no such folder$" --ladder \
    --picture "$dir/none/deep/x.svg"
[ ! -e none ]; verdict "and none is made" $? "$(ls)"
refused "a picture that is a pipe"  'picture.*pipe: not a regular file'       --ladder --picture pipe
refused "a picture's name too long" 'picture.*File name too long'             --ladder --picture "$long.svg"
BRIM_RUNS=tiny.yaml refused "runs that cannot be written" 'picture.*tiny.yaml: Not a directory' --ladder
exit $failed
