#!/usr/bin/env bash
# A deterministic bf16 run that is killed with -9 and resumed ends with the bits of an undisturbed run. The
# same run twice gives the same bits, too.
# Usage: test_resume.sh [build folder] [device] [precision]
set -uo pipefail
here=$(cd "$(dirname "$0")/../.." && pwd)
brim=$(realpath "${1:-$here/build}")/brim # as seen from the caller's folder: before the cd
cd "$here" || exit 1
device=${2:-cuda:0}
export BRIM_RUNS; BRIM_RUNS=$(mktemp -d); trap 'rm -rf "$BRIM_RUNS"' EXIT
common=(recipes/quickstart.yaml device="$device" precision="${3:-bf16}" deterministic=true
        steps=100 optim.warmup=5 log_every=1 eval.every=50 eval.sequences=32 checkpoint.every=20)
failed=0
say() { # rc, name
    if [ "$1" -eq 0 ]; then echo "ok $2"; else echo "not ok $2"; tail -n 5 "$BRIM_RUNS"/*.log; failed=1; fi
}
train() { timeout 300 "$brim" train "${common[@]}" run="$1" >>"$BRIM_RUNS/$1.log" 2>&1; }
bits() { cat "$BRIM_RUNS/$1"/checkpoints/step-00000100/*.safetensors | sha256sum; } # run: weights and moments
train one;  say $? "the run left alone"
train two;  say $? "the same run again"
[ "$(bits one)" = "$(bits two)" ];  say $? "both end with the same bits"
"$brim" train "${common[@]}" run=cut >"$BRIM_RUNS/cut.log" 2>&1 & pid=$!
# until the first checkpoint is written: steps do not wait for it, so their number does not tell
for _ in $(seq 12000); do
    [ -d "$BRIM_RUNS/cut/checkpoints/step-00000020" ] && break
    sleep 0.005
done
kill -9 "$pid"; wait "$pid" 2>/dev/null
[ ! -d "$BRIM_RUNS/cut/checkpoints/step-00000100" ];  say $? "the kill came in time"
train cut;  say $? "the killed run again"
# The bits alone do not tell: a deterministic run that starts over ends with the same ones.
grep -q 'resuming after step [1-9]' "$BRIM_RUNS/cut.log";  say $? "it went on from a checkpoint"
[ "$(bits one)" = "$(bits cut)" ];  say $? "killed and resumed: the same bits"
exit $failed
