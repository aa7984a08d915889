#!/usr/bin/env bash
# brim eval and sample beside a run that saves at every step and keeps one checkpoint: a reader always gets a
# complete checkpoint.
. "$(dirname "$0")/shell_lib.sh"
readers=${READERS:-40}
head -c 20000 "$here/recipes/data/tinyshakespeare.txt" >text.txt
cat >tiny.yaml <<END
run: r
steps: 100000
step_tokens: 32
device: cpu
threads: 1
model: {layers: 1, width: 8, heads: 1, vocab: 256, context: 16}
optim: {lr: 1e-3, warmup: 0}
data: {kind: text, train: $dir/text.txt}
eval: {every: 100000, sequences: 2}
checkpoint: {every: 1, keep: 1}
END
"$brim" train tiny.yaml >train.log 2>&1 &
trainer=$!
trap 'kill -9 $trainer 2>/dev/null; wait 2>/dev/null; rm -rf "$dir"' EXIT
for _ in $(seq 200); do
    [ -d runs/r/checkpoints ] && ls runs/r/checkpoints | grep -q ^step && break
    sleep 0.05
done
bad=0
: >bad.log
for i in $(seq "$readers"); do
    if [ $((i % 2)) -eq 0 ]; then "$brim" eval r >seen 2>&1; else "$brim" sample r --tokens 1 >seen 2>&1; fi
    [ $? -eq 0 ] || { bad=$((bad + 1)); tail -n 1 seen >>bad.log; }
done
kill -0 $trainer 2>/dev/null; verdict "the run still goes on" $? "$(tail -n 1 train.log)"
kill -9 $trainer; wait $trainer 2>/dev/null
verdict "$readers readers beside it" $((bad > 0)) "$bad failed: $(head -n 1 bad.log)"
exit $failed
