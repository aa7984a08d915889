#!/usr/bin/env bash
# Task image on real pictures: trains, evaluates, is killed and goes on bit for bit, predicts, skips damaged
# samples up to the limit, refuses wrong recipes. Fashion-MNIST from its Debian package.
# shellcheck source=tests/shell_lib.sh
. "$(dirname "$0")/shell_lib.sh"
unset RANK WORLD_SIZE LOCAL_RANK BRIM_FAULT
brim=$build/brim
set=/usr/share/datasets/fashion-mnist
export BRIM_RUNS=$dir/runs
[ -r $set/t10k-images-idx3-ubyte.gz ] || { echo "skip: dataset-fashion-mnist is not installed"; exit 0; }
cat >tiny.yaml <<END
task: image
steps: 60
step_samples: 32
threads: 1
device: cpu
model: {layers: 2, width: 64, heads: 4, bias: true}
image: {size: 32, patch: 8, mean: [0.286, 0.286, 0.286], std: [0.353, 0.353, 0.353]}
optim: {lr: 3e-3, warmup: 10}
data:
  train: $set/t10k-images-idx3-ubyte.gz
  val_fraction: 0.2
  augment: [flip]
  crop_fraction: 1
eval: {every: 20, samples: 500}
checkpoint: {every: 10, keep: 9}
END

train() { # name, overrides
    local name=$1
    shift
    timeout -k 5 100 "$brim" train tiny.yaml "run=$name" "$@" >"$name.log" 2>&1 </dev/null
}

train plain watch.samples=2
verdict "a small transformer trains on pictures" $? "$(tail -n 2 plain.log)"
is "$(last plain val_top1)" '>' 0.35
verdict "it learns: top-1 $(last plain val_top1), of ten classes" $?
is "$(last plain val_top5)" '>' "$(last plain val_top1)"
verdict "metrics have top-5" $? "$(tail -n 1 runs/plain/metrics.jsonl)"
grep -q 'loader: a sample: read' plain.log
verdict "the log says where the time of a sample went" $? "$(tail -n 1 plain.log)"
grep -q 'classes: 10' runs/plain/recipe.yaml
verdict "the run's recipe has the number of classes" $?

[ "$(grep -c '"text": "this is [0-9]: ' runs/plain/samples.jsonl)" -eq 8 ] &&
    [ -s runs/plain/samples/00000060-1.jpeg ]
verdict "two validation pictures are shown after each evaluation" $? "$(tail -n 2 runs/plain/samples.jsonl)"
train dark
cmp runs/{plain,dark}/checkpoints/step-00000060/model.safetensors
verdict "showing them changes no bit of the run" $?

# Everything that draws, and the mean of weights; killed after a checkpoint, then on with other threads.
all=(data.augment=crop,flip,jitter,rand,erase,mixup,cutmix model.drop_path=0.2 model.layer_scale=0.1
    model.dropout=0.1 image.ema=0.95 image.pool=class image.smooth=0.1 steps=40 eval.every=20)
train whole "${all[@]}" data.threads=1
verdict "all augmentations, drop path, layer scale, class token, mean of weights" $? "$(tail -n 2 whole.log)"
"$brim" train tiny.yaml run=cut "${all[@]}" data.threads=3 >cut.log 2>&1 </dev/null &
pid=$!
for _ in $(seq 600); do [ -e runs/cut/checkpoints/step-00000020/DONE ] && break; sleep 0.05; done
kill -9 $pid 2>/dev/null; wait $pid 2>/dev/null
[ -e runs/cut/checkpoints/step-00000020/DONE ] && [ ! -e runs/cut/checkpoints/step-00000040 ]
verdict "the kill came between two checkpoints" $? "$(ls runs/cut/checkpoints)"
train cut "${all[@]}" data.threads=7
a=runs/whole/checkpoints/step-00000040 b=runs/cut/checkpoints/step-00000040
cmp $a/model.safetensors $b/model.safetensors && cmp $a/optim.safetensors $b/optim.safetensors
verdict "killed and gone on, with 1, 3 and 7 loader threads: the same bits" $? "$(tail -n 2 cut.log)"

out=$("$brim" eval plain 2>&1)
echo "$out" | grep -qE 'top-1 [0-9.]+ %, top-5 [0-9.]+ %, loss [0-9.]+ over 2000 samples'
verdict "eval says top-1 and top-5" $? "$out"
out=$("$brim" predict plain $set/t10k-images-idx3-ubyte.gz --show 3 --picture p.svg 2>&1)
[ "$(echo "$out" | grep -c ': image [0-9]* is ')" -eq 3 ] &&
    echo "$out" | grep -q '10000 labelled samples: top-1' && echo "$out" | grep -q 'is . was called' &&
    grep -q '<image' p.svg
verdict "predict names classes, counts confusions and draws" $? "$out"
out=$("$brim" eval plain image.size=64 2>&1)
echo "$out" | grep -q 'top-1'
verdict "a net is evaluated at another size, its positions resampled" $? "$out"

refused() { # name, pattern, command...: exit code 2 and one line like that
    local name=$1 pattern=$2 out rc
    shift 2
    out=$("$@" 2>&1 </dev/null); rc=$?
    [ $rc -eq 2 ] && echo "$out" | grep -v '^\[' | grep -qE -- "$pattern"
    verdict "$name" $? "exit code $rc: $out"
}
refused "a size that patches do not cover" 'image.size: 30 is no multiple of image.patch \(8\): 24 or 32' \
    "$brim" train tiny.yaml image.size=30
refused "a mix of an odd step" 'step_samples: 33 is no multiple of data.mix_group' \
    "$brim" train tiny.yaml data.augment=mixup step_samples=33
refused "a key of another task" 'model.vocab: task image has no such key' \
    "$brim" train tiny.yaml model.vocab=9
refused "data that are not there" 'data.train: nothing: no such file' \
    "$brim" train tiny.yaml data.train=nothing
refused "fewer classes than the data have" 'has 10 classes, image.classes is 5' \
    "$brim" train tiny.yaml run=few image.classes=5
refused "predictions of a file that is none" 'tiny.yaml: neither a folder' "$brim" predict plain tiny.yaml

# 1,200 small PNGs in two classes; some of them cut short.
command -v python3 >/dev/null || { echo "skip: no python3 for damaged pictures"; exit $failed; }
python3 - <<'END'
import os, struct, zlib
def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
def png(colour):
    rows = b"".join(b"\0" + bytes(colour) * 8 for _ in range(8))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 8, 8, 8, 2, 0, 0, 0)) +
            chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))
for name, bad in (("half", 6), ("two", 24)):
    for i in range(1200):
        folder = f"{name}/{'dark' if i % 2 else 'light'}"
        os.makedirs(folder, exist_ok=True)
        data = png((20 + i % 30,) * 3 if i % 2 else (200 + i % 50,) * 3)
        if i * bad // 1200 != (i + 1) * bad // 1200:
            data = data[:50]
        open(f"{folder}/{i:04}.png", "wb").write(data)
END
train half data.train=half data.val_fraction=0.02 steps=80 eval.every=0
rc=$?
[ $rc -eq 0 ] && grep -q 'half/.*png: skipped: PNG' half.log && grep -qE '; [0-9]+ of [0-9]+ skipped' half.log
verdict "0.5 % damaged pictures: skipped with a reason, and training goes on" $? "$rc: $(tail -n 2 half.log)"
again=$(sed -n 's/.*warning: \(half.*png\): skipped.*/\1/p' half.log | sort | uniq -d)
[ -z "$again" ]; verdict "each is named once, however often it is drawn" $? "$again"

names_of() { tr '\n' ',' <"runs/$1/classes.txt"; }
[ "$(names_of half)" = dark,light, ] && grep -q 'names_file: .*/half/classes.txt' runs/half/recipe.yaml
verdict "a run keeps the names of its classes" $? "$(names_of half) $(grep names runs/half/recipe.yaml)"
for names in 'cat, dog' 'cat, dog, bird'; do
    sed "s/^image: {/&names: [$names], /" tiny.yaml >named.yaml
    "$brim" train named.yaml run=named data.train=half steps=1 --fresh >named.log 2>&1 </dev/null
    [ "$(names_of named)" = dark,light, ]
    verdict "names of a recipe's own data, $names, give way to those of other data" $? "$(names_of named)"
done
refused "more names than classes" 'image.names: has 3 names and no dark, but half has 2 classes' \
    "$brim" train tiny.yaml run=many data.train=half image.names=[cat,dog,bird]
refused "names that are too few for numbers" 'image.names: has 2 names for 10 classes' \
    "$brim" train tiny.yaml run=few image.names=[a,b]
sed 's/^image: {/&names: [T-shirt, b, c, d, e, f, g, h, i, j], /' tiny.yaml >named.yaml
"$brim" train named.yaml run=stale data.train=$set/train-images-idx3-ubyte.gz steps=1 >stale.log 2>&1 \
    </dev/null
[ "$(names_of stale)" = 0,1,2,3,4,5,6,7,8,9, ]
verdict "typed data without names: no names of the recipe's own data" $? "$(names_of stale)"
sed "s|^data:|&\n  val: $set/t10k-images-idx3-ubyte.gz|" tiny.yaml >val.yaml
"$brim" train val.yaml run=own-val data.train=half steps=1 >own-val.log 2>&1 </dev/null
grep -q 'data.val: .*t10k.* belongs to the data of val.yaml, not to half: left out' own-val.log &&
    grep -q '^  val: ""' runs/own-val/recipe.yaml &&
    "$brim" eval own-val 2>&1 | grep -q 'over 2[34][0-9] samples'
verdict "typed training data do not keep the recipe's validation data" $? "$(cat own-val.log)"
# A set that lacks the first class: numbers would be wrong, names are right.
mkdir -p only/light && cp half/light/0[12]*.png only/light/ && find only -size -60c -delete
out=$("$brim" predict half only --show 1 2>&1)
echo "$out" | grep -q ' is light: light' && echo "$out" | grep -q 'samples: top-1 100.00 %'
verdict "classes of a set are the run's by name" $? "$out"
mkdir -p other && cp -r only/light other/grey
# Names that no recipe can hold: any bytes, and more of them than a line has.
mkdir -p odd oddval
for name in 'a,b' '-dash' "it's [x]: {#}" $'line\nbreak' 'back\n'; do
    mkdir -p "odd/$name" && cp half/light/000[02].png "odd/$name/"
done
cp -r "odd/it's [x]: {#}" oddval/ && cp -r 'odd/back\n' oddval/
train odd data.train=odd data.val=oddval steps=1
rc=$?
out=$("$brim" predict odd oddval 2>&1)
[ $rc -eq 0 ] && echo "$out" | grep -qF "oddval/it's [x]: {#}/0000.png is it's [x]: {#}:" &&
    echo "$out" | grep -qF 'oddval/back\n/0000.png is back\n:'
verdict "names of any bytes are kept and matched" $? "$rc: $(tail -n 1 odd.log) $out"
mv runs/odd moved && mkdir runs/odd && echo wrong >runs/odd/classes.txt
"$brim" predict ./moved oddval 2>&1 | grep -qF "is it's [x]: {#}:"
verdict "a run that was moved has its names" $?
python3 -c '
import os, shutil
for i in range(1000):
    os.makedirs(f"many/n{i:08}")
    shutil.copy("half/light/0000.png", f"many/n{i:08}/a.png")'
mkdir -p manyval && cp -r many/n00000999 manyval/
train many data.train=many data.val=manyval steps=1
rc=$?
[ $rc -eq 0 ] && "$brim" predict many manyval 2>&1 | grep -q 'a.png is n00000999:'
verdict "the names of 1,000 classes are kept" $? "$rc: $(tail -n 1 many.log)"
refused "a class that the run does not know" 'data.val: other has a class grey, which is none of dark,light' \
    "$brim" eval half data.val=other
cp -r only/light other/
out=$("$brim" eval half data.val=other 2>&1)
echo "$out" | grep -q 'warning: other: the run has no class grey: classes are taken by number'
verdict "as many classes, but another name: by number, with a warning" $? "$out"
echo text >only/light/text.jpg
refused "nothing to predict" 'none of 1 samples could be used' "$brim" predict half only/light/text.jpg

train two data.train=two data.val_fraction=0.02 steps=45 eval.every=0
rc=$?
[ $rc -eq 1 ] && grep -q 'could not be used, more than data.skip_limit allows' two.log
verdict "2 % damaged pictures: the run ends with exit code 1" $? "$rc: $(tail -n 2 two.log)"
train two data.train=two data.val_fraction=0.02 steps=45 eval.every=0 data.skip_limit=0.05 \
    --fresh
verdict "a larger data.skip_limit lets it train" $? "$(tail -n 2 two.log)"
# An evaluation counts what it can use, as a prediction does.
mkdir -p bad/dark bad/light && cp half/dark/000?.png bad/dark/ && cp half/light/000?.png bad/light/
for i in 1 2 3; do echo text >"bad/light/z$i.png"; done
out=$("$brim" eval half data.val=bad 2>&1)
echo "$out" | grep -q 'top-1 100.00 %.* over 10 samples'
verdict "an evaluation leaves damaged samples out" $? "$out"
out=$("$brim" predict half half --show 2 2>&1)
echo "$out" | grep -q '^2 of 1200 samples are shown' && [ "$(echo "$out" | grep -c ': skipped: ')" -eq 6 ]
verdict "predict says how many samples it shows" $? "$out"
out=$("$brim" predict two two --show 2 2>&1)
[ "$(echo "$out" | grep -c ': skipped: ')" -eq 10 ] && echo "$out" | grep -q '^24 could not be used'
verdict "predict names ten damaged samples and counts the others" $? "$out"
find bad -name '0*' -delete
out=$("$brim" eval half data.val=bad 2>&1); rc=$?
[ $rc -eq 1 ] && echo "$out" | grep -q 'data.val: bad: none of the first 3 validation samples could be used'
verdict "an evaluation of nothing but damaged samples fails" $? "$rc: $out"
# Ten images, of which one is held back: it is the first.
mkdir -p ten/dark ten/light
cp half/dark/00[2-9]?.png ten/dark/ && cp half/light/00[2-9]?.png ten/light/ && touch ten/light/x.gif
cp "$(find half -size -51c | head -n 1)" ten/dark/0000.png
train ten data.train=ten data.val_fraction=0.02; rc=$?
[ $rc -eq 1 ] && [ "$(grep -c 'left out' ten.log)" -eq 1 ] &&
    grep -q 'warning: ten: 1 image is neither JPEG nor PNG and is left out$' ten.log &&
    grep -q '^brim: data.train: ten: the only validation sample could not be used$' ten.log
verdict "what is left out is said once, and which samples are damaged" $? "$rc: $(cat ten.log)"
rm ten/dark/0000.png; train ten data.train=ten data.val_fraction=0.02 steps=2 optim.warmup=0; rc=$?
[ $rc -eq 0 ] && grep -qE '[0-9] samples to train on, 1 for validation; 2 steps: [0-9.]+ epochs?$' ten.log &&
    grep -q 'warning: 1 sample for validation: too little to tell a good model' ten.log
verdict "a validation of one image is a warning" $? "$rc: $(cat ten.log)"
refused "a share of nothing" 'data.val_fraction: 0.1 of the 3 samples of bad is none: 0.34 or more' \
    "$brim" train tiny.yaml run=none data.train=bad data.val_fraction=0.1
refused "images for a net of clips" 'data.train: half has images, but image.frames is 2 ' \
    "$brim" train tiny.yaml run=clips data.train=half image.frames=2
exit $failed
