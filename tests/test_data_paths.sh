#!/usr/bin/env bash
# Where data lies, and the messages about it: deep folders, dead links, validation on the training data.
. "$(dirname "$0")/shell_lib.sh"
export BRIM_RUNS=$dir/runs
few="steps=1 device=cpu threads=1 eval.sequences=4 step_tokens=128"
few+=" model.layers=1 model.width=32 model.context=32"
name=$(printf 'n%.0s' $(seq 120))
deep=$dir/$name/$name/$name
mkdir -p "$deep"
head -c 20000 "$here/recipes/data/tinyshakespeare.txt" >"$deep/text.txt"
cp "$here/recipes/quickstart.yaml" "$deep/r.yaml"

(cd "$deep" && "$brim" train r.yaml run=deep data.train=text.txt $few) >seen 2>&1
verdict "a run in a folder of ${#deep} bytes" $? "$(tail -n 1 seen)"
"$brim" eval deep >seen 2>&1; verdict "evaluates from elsewhere" $? "$(tail -n 1 seen)"
"$brim" train "$deep/r.yaml" run=far data.train="$deep/text.txt" $few >seen 2>&1
verdict "data under a long path" $? "$(tail -n 1 seen)"
grep -q "optim.warmup: cut from 40 to 0" seen
verdict "the warm-up of a short try is cut, with a word" $? "$(head -n 2 seen)"
"$brim" train "$deep/r.yaml" run=far data.train="$deep/text.txt" $few optim.warmup=3 >seen 2>&1
[ $? -eq 2 ]; verdict "a warm-up that was asked for is not" $? "$(tail -n 1 seen)"

ln -s "$dir/gone.txt" text.txt
"$brim" train quickstart run=link data.train=text.txt $few >seen 2>&1
[ $? -eq 2 ] && grep -q "text.txt is a link to $dir/gone.txt, which is not there" seen
verdict "a link to nothing" $? "$(tail -n 1 seen)"

cp "$deep/text.txt" mine.txt; ln -s mine.txt same.txt
"$brim" train quickstart run=same data.train=mine.txt data.val=same.txt $few >seen 2>&1
grep -q "warning: data.val: same.txt is also data.train" seen
verdict "validation on the training data" $? "$(head -n 3 seen)"
"$brim" train quickstart run=other data.train=mine.txt data.val="$deep/text.txt" $few >seen 2>&1
! grep -q "also data.train" seen; verdict "validation on a copy elsewhere" $? "$(head -n 3 seen)"
exit $failed
