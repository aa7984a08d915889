#!/usr/bin/env bash
# What a newcomer sees: lines that fit on a screen, keys that do what they say, names of one's own classes,
# and messages that say what to do next.
. "$(dirname "$0")/shell_lib.sh"
export BRIM_RUNS=$dir/runs
# name, pattern of the one line, then the command
refused() {
    local name=$1 pattern=$2
    shift 2
    brim "$@"
    [ $rc -eq 2 ] && [ "$(wc -l <said)" -eq 1 ] && says "$pattern"
    verdict "$name" $? "$(seen)"
}

tiny_recipe 40000 4 8
brim_recipe="$here/recipes/cartpole.yaml"

# ---- help --------------------------------------------------------------------------------------------------

"$brim" help >said 2>&1
[ "$(wc -l <said)" -le 120 ] && grep -qE '^  model +layers width heads ' said &&
    grep -qE '^ +run task steps ' said
verdict "help lists commands and keys on two screens" $? "$(wc -l <said) lines: $(tail -n 30 said)"
n=$("$brim" help keys | grep -c '; default ')
[ "$n" -gt 200 ] && [ "$n" -le "$(sed -n '/^recipe keys/,$p' said | wc -w)" ]
verdict "help keys explains all of them" $? "$n"
{
    "$brim" help; "$brim" help keys; "$brim" data --help
    for c in sample env doctor; do "$brim" $c --help; done
} >said 2>&1
wide=$(awk 'length > 100' said | head -n 2)
[ -z "$wide" ] && [ "$(awk 'length > 80' said | wc -l)" -le 2 ]
verdict "help fits on a screen" $? "$wide"
grep -A 3 '^require$' said | grep -q '^    the model; the run does not start otherwise$'
verdict "and goes on below where it began" $? "$(grep -A 3 '^require$' said)"

# ---- text --------------------------------------------------------------------------------------------------

brim data tokenizer train text.txt --vocab 100000 --out tok
[ $rc -eq 0 ] && says 'warning: --vocab 100000: the text gives only [0-9]+ tokens$' &&
    says 'vocabulary [0-9]+/[0-9]+'
verdict "a vocabulary that the text cannot fill is said" $? "$(seen)"
brim data tokenizer train text.txt --vocab 300 --out tok2; [ $rc -eq 0 ] && ! says warning
verdict "one that it fills is not" $? "$(seen)"
brim train tiny.yaml run=tr trace=3
[ $rc -eq 0 ] && says 'warning: no trace: it would end with step 9, and the run with step 4'
verdict "a trace that the run is too short for is said" $? "$(seen)"
brim train tiny.yaml run=tr2 trace=2 trace_skip=1
[ $rc -eq 0 ] && ! says 'no trace' && [ -e runs/tr2/trace.json ]
verdict "one that it is long enough for is made" $? "$(seen)"
refused "a slip in the name of a weight" 'freeze: no weight is named blok.0 \(did you mean block.0\?\)$' \
    train tiny.yaml run=no 'freeze=[blok.0]'
refused "a time with its unit" "budget_s: expected a number, got '10m' \(seconds: 600 would do\)$" \
    train tiny.yaml run=no budget_s=10m
refused "a time that is none" "budget_s: expected a number, got '10x'$" train tiny.yaml run=no budget_s=10x
tar xf "$here/tests/golden/hf.tar.xz" llama
refused "a model key beside init" \
    'model.layers: is 1, but .*llama has 2 \(what the folder gives may be left out\)$' \
    train tiny.yaml run=no init=llama
brim import llama run=base
refused "an import has nothing to compare yet" '^command line: base: this run has no steps yet$' compare base
mkdir bad; : >bad/tokenizer.json
refused "an empty tokenizer.json" '^bad/tokenizer.json:1: ' data tokenizer show bad
brim train tiny.yaml run=one steps=1; ! says '1 steps'
verdict "one step is not many" $? "$(seen)"

if command -v script >/dev/null; then
    TERM=xterm script -qc "'$brim' train tiny.yaml run=tty" said >/dev/null 2>&1 </dev/null
    grep -q $'preparing [0-9.]* [KM]iB of memory and weights\r\033\\[K' said &&
        ! grep -q preparing runs/tty/log.txt
    verdict "on a terminal a wait for memory is said, and gone afterwards" $? "$(head -n 3 said | cat -v)"
    TERM=xterm script -qc "'$brim' bench tiny.yaml --seconds 1" said >/dev/null 2>&1 </dev/null
    grep -q $'measuring: 0 steps done\r\033\\[K' said && grep -q $'copies can reach\r\033\\[K' said
    verdict "on a terminal bench says what it measures" $? "$(head -n 3 said | cat -v)"
fi

"$brim" train tiny.yaml run=stopped steps=100000 eval.every=0 --fresh >said 2>&1 &
pid=$!
for ((i = 0; i < 500; i++)); do grep -q 'train 1/' said && break; sleep 0.02; done
kill -TERM $pid; wait $pid; rc=$?
[ $rc -eq 0 ] && says 'SIGTERM received: saving and leaving; brim train [^ ]*runs/stopped goes on from here$'
verdict "a run that is stopped says how it goes on, also where it began with --fresh" $? "$(cat said)"
brim train runs/stopped steps=1; says 'runs/stopped has its 1 step|resuming after step'
verdict "and so it does" $? "$(seen)"

# ---- noise -------------------------------------------------------------------------------------------------

sed 's/train: text.txt/kind: random/; s/kind: text, //' tiny.yaml >noise.yaml
brim train noise.yaml run=noise
[ $rc -eq 0 ] && says 'data.kind random: noise'
verdict "a recipe of noise measures" $? "$(seen)"
brim train noise.yaml run=heard data.train=text.txt
[ $rc -eq 0 ] && says 'data.kind: text, not random: it follows' && ! says 'noise' &&
    grep -q 'kind: text' runs/heard/recipe.yaml
verdict "one that is given data learns from them" $? "$(seen)"
brim train noise.yaml run=heard steps=6
[ $rc -eq 0 ] && says 'data.train=.*text.txt, as in the run so far' && ! says 'noise'
verdict "and goes on with them" $? "$(seen)"
brim eval noise data.train=text.txt; [ $rc -eq 0 ] && says 'validation loss'
verdict "a run of noise is evaluated on data" $? "$(seen)"
has_none='command line: data.train: has no effect while data.kind is random \(data.kind=text or '
for command in train plan bench eval; do
    target=noise.yaml; [ $command = eval ] && target=noise
    refused "$command: noise and data" "^$has_none" $command $target data.kind=random data.train=text.txt
done
mkdir -p set/train; : >set/train/a.bin; : >one.bin
for shards in set set/train one.bin; do
    brim train noise.yaml run=no data.train=$shards
    [ $rc -eq 2 ] && says "^command line: data.train: $shards.*: 0 bytes are no token shard$"
    verdict "$shards is of shards" $? "$(seen)"
done
refused "data that are not there" 'data.train: nope: no such file' train noise.yaml run=no data.train=nope
sed 's/vocab: 256/vocab: 300/' noise.yaml >wide.yaml
refused "text without a tokenizer" \
    'data.tokenizer: is missing: text without one is bytes, but model.vocab is 300' \
    train wide.yaml run=no data.train=text.txt

# ---- bytes -------------------------------------------------------------------------------------------------

head -c 5000 "$here/docs/page.png" >picture
brim train noise.yaml run=bytes data.train=picture
[ $rc -eq 0 ] && says 'warning: data.train: picture: is no text, it has a zero byte in its first 4096: '
verdict "a picture as text is said" $? "$(seen)"
brim train noise.yaml run=bytes2 data.train=text.txt data.val=picture
[ $rc -eq 0 ] && says 'warning: data.val: picture: is no text' && ! says 'text.txt: is no text'
verdict "one as validation data, too" $? "$(seen)"
refused "an option as a key" '^command line: top_k: no key but an option here: --top-k 5$' \
    sample heard top_k=5
refused "a switch as a key" '^command line: ids: no key but an option here: --ids$' sample heard ids=true

# ---- compare -----------------------------------------------------------------------------------------------

deep=a/folder/whose/name/is/so/long/that/no/column/of/a/table/would/ever/hold/the/whole/of/the/path
mkdir -p $deep && cp text.txt $deep/one.txt && head -c 30000 text.txt >$deep/two.txt
brim train tiny.yaml run=left data.train=$deep/one.txt
brim train tiny.yaml run=right data.train=$deep/two.txt
brim compare left right
[ $rc -eq 0 ] && says '^data.train +\.\.\.[^ ]*one.txt" +\.\.\.[^ ]*two.txt"$'
verdict "paths that differ at their end are told apart" $? "$(seen)"
[ "$(grep -E '^(state|data.train) ' said | sed -E 's/^([^ ]+ +[^ ]+ +).*/\1/' | awk '{ print length }' |
    sort -u | wc -l)" -eq 1 ]
verdict "and columns stay columns" $? "$(grep -E '^(state|data.train) ' said)"

brim train tiny.yaml run=left2 data.train=$deep/one.txt seed=2
brim compare left left2
[ $rc -eq 0 ] && ! says 'n/a' &&
    says '^loss of 2 seeds, mean \+- deviation: last [0-9.]+ \+- [0-9.]+, best [0-9.]+ \+- [0-9.]+$'
verdict "runs of two seeds have a mean" $? "$(seen)"
brim compare left right; [ $rc -eq 0 ] && ! says 'seeds'
verdict "and others have none" $? "$(seen)"
mkdir öö; cp text.txt öö/text.txt
brim train tiny.yaml run=umlaut data.train=öö/text.txt steps=1
brim compare umlaut left
LC_ALL=C awk '/^(state|data.train) / { gsub(/[\200-\277]/, ""); print match($0, / [^ ]+$/) }' said >at
[ $rc -eq 0 ] && [ "$(sort -u at | wc -l)" -eq 1 ]
verdict "columns count characters" $? "$(cat at) $(seen)"

# ---- policies ----------------------------------------------------------------------------------------------

ppo=("$brim_recipe" threads=1 eval.samples=2)
brim train "${ppo[@]}" run=short steps=3 eval.target=0
says '[0-9] training episodes, which explore: mean return of the last [0-9]+: '
verdict "a mean of training episodes is not taken for one of the policy that is played" $? "$(seen)"
says '\] train 3/3  return [0-9.]+  ' && ! says '\] train .*loss'
verdict "a line of progress has the return of a policy, not its loss" $? "$(cat said)"
[ $rc -eq 0 ] && says '] 3 steps done' && grep -q '^total_steps: 0$' runs/short/recipe.yaml
verdict "steps on the command line counts, whatever total_steps the recipe has" $? "$(seen)"
refused "but not beside total_steps" 'steps: not together with total_steps: steps=3 are total_steps=768$' \
    train "${ppo[@]}" run=no steps=3 total_steps=5000
brim train "${ppo[@]}" run=goal eval.every=1 eval.target=1
[ $rc -eq 0 ] && says 'target reached' && "$brim" compare goal 2>&1 | grep -q '^state  *done$' &&
    "$brim" top --once 2>&1 | grep -q ' goal  *done '
verdict "a run that reached its target is done" $? "$(seen) $("$brim" compare goal 2>&1 | head -n 2)"
"$brim" compare short | grep -q '^state  *done$' # all its steps
verdict "and so is one that has its steps" $? "$("$brim" compare short 2>&1 | head -n 2)"
refused "a picture that moves is a GIF" '^command line: --out: a.png: ' play goal --out a.png
refused "also of an environment" '^command line: --out: a.png: ' env show cartpole --out a.png
refused "env new needs a name" '^command line: env new: a name for the new environment is missing$' env new

# ---- images ------------------------------------------------------------------------------------------------

command -v python3 >/dev/null || { echo "skip: no python3 to draw images with"; exit $failed; }
# folder, then colours: four pictures of each.
draw() {
    python3 - "$@" <<'E'
import os, random, struct, sys, zlib
random.seed(1)
colour = {"red": (200, 30, 30), "green": (30, 200, 30), "blue": (30, 30, 200)}
def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
for name in sys.argv[2:]:
    os.makedirs(sys.argv[1] + "/" + name, exist_ok=True)
    for i in range(4):
        raw = b"".join(b"\0" + bytes(min(255, v + random.randint(0, 40)) for x in range(16)
                                     for v in colour[name]) for y in range(16))
        head = struct.pack(">IIBBBBB", 16, 16, 8, 2, 0, 0, 0)
        open(f"{sys.argv[1]}/{name}/{i}.png", "wb").write(
            b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(raw)) +
            chunk(b"IEND", b""))
E
}
draw all red green blue; draw some red blue; draw other red green; mv other/green other/lime
cat >see.yaml <<E
task: image
steps: 40
step_samples: 12
device: cpu
threads: 1
image: {size: 16, patch: 8}
model: {layers: 1, width: 32, heads: 2}
optim: {lr: 1e-2, warmup: 0}
eval: {every: 0}
E
brim train see.yaml run=see data.train=all data.val=some
[ $rc -eq 0 ] && says 'step 40: validation top1 1.0000'
verdict "validation data without one of the classes have the right labels" $? "$(seen)"
brim predict see some --picture p.svg
[ $rc -eq 0 ] && says '^some/red/0.png is red: red ' && says '^8 labelled samples: top-1 100.00 %' &&
    says '^p.svg: ' && [ -s p.svg ]
verdict "and so has what is predicted" $? "$(seen)"
refused "a class that is not trained" "data.val: other has a class lime, which is none of blue,green,red$" \
    train see.yaml run=no data.train=all data.val=other
brim predict see other; [ $rc -eq 0 ] && says '^other/lime/0.png: green ' && says '^4 labelled samples'
verdict "is no label of a prediction" $? "$(seen)"
sed 's/patch: 8/patch: 8, names: [shirt, shoe, bag]/; s/^eval/data: {train: all}\neval/' see.yaml >named.yaml
brim train named.yaml run=own data.train=all steps=1
[ "$(tr '\n' , <runs/own/classes.txt)" = blue,green,red, ]
verdict "data of one's own have their own names" $? "$(seen) $(cat runs/own/classes.txt)"
brim train named.yaml run=theirs steps=1; grep -q 'names: \[shirt,shoe,bag\]' runs/theirs/recipe.yaml
verdict "those of the recipe the recipe's" $? "$(seen) $(grep names: runs/theirs/recipe.yaml)"
exit $failed
