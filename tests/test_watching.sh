#!/usr/bin/env bash
# The files that a run writes for people who watch it, and the commands that show them.
. "$(dirname "$0")/shell_lib.sh"

cat >tiny.yaml <<'END'
step_tokens: 512
steps: 60
model: {layers: 1, width: 32, heads: 2, vocab: 256, context: 32}
data: {kind: random}
eval: {every: 20, sequences: 16}
checkpoint: {every: 20}
END
for i in $(seq 200); do printf 'The quick brown fox jumps over the lazy dog %d times. ' "$i"; done >text.txt
text="data.kind=text data.train=text.txt"

"$brim" train tiny.yaml $text device=cpu run=one watch.tensorboard=true steps=40 >out 2>&1; rc=$?
[ $rc -eq 0 ] && grep -q '"data_wait_s"' runs/one/metrics.jsonl
verdict "a run with event files" $? "exit code $rc: $(tail -n 3 out)"
grep -q '"unit": "token", "units": "tokens".*"steps": 40, "units_per_step": 512' runs/one/watch.json
verdict "watch.json says what is counted" $? "$(cat runs/one/watch.json)"
! grep -q 'gpu_\|tensor_active\|sm_mhz' runs/one/metrics.jsonl
verdict "without a GPU no figure of one" $? "$(tail -n 1 runs/one/metrics.jsonl)"

# Goes on after step 40 from its checkpoint, then from an older one: each step is there once.
"$brim" train tiny.yaml $text device=cpu run=one watch.tensorboard=true >out 2>&1
rm -rf runs/one/checkpoints/step-00000060
"$brim" train tiny.yaml $text device=cpu run=one watch.tensorboard=true >out 2>&1; rc=$?
"$build/tests/verify_events" runs/one >events 2>err
[ $rc -eq 0 ] && [ ! -s err ] && [ "$(grep -c ' train/loss ' events)" -eq 60 ] &&
    [ "$(grep ' train/loss ' events | cut -d' ' -f1 | sort -un | wc -l)" -eq 60 ]
verdict "event files after two resumes: every step once" $? \
    "exit code $rc: $(grep -c ' train/loss ' events) $(cat err) $(tail -n 2 out)"
[ "$(grep -c ' train/time_s ' events)" -eq 60 ]
verdict "and the time of each step once, though evaluations have one, too" $? \
    "$(grep -c ' train/time_s ' events): $(grep '^60 train/time_s' events | xargs)"
want=$(sed -n 's/^{"step": 60, "loss": \([0-9.]*\),.*/\1/p' runs/one/metrics.jsonl)
got=$(sed -n 's/^60 train\/loss //p' events)
[ -n "$want" ] && awk -v a="$want" -v b="$got" 'BEGIN { exit !(a - b < 1e-6 && b - a < 1e-6) }'
verdict "and the same loss as metrics.jsonl" $? "$want, $got"
grep -q '^60 eval/val_loss ' events
verdict "evaluations are there, too" $? "$(tail -n 3 events)"

[ -s runs/one/report.html ] && grep -q '<svg' runs/one/report.html &&
    grep -q 'did its 60 steps' runs/one/report.html && ! grep -q 'https\?:' runs/one/report.html
verdict "report.html at the end of a run" $? "$(head -c 300 runs/one/report.html)"
"$brim" report one --out mine.html >out 2>err && [ -s mine.html ] && [ "$(cat out)" = mine.html ]
verdict "brim report --out" $? "$(cat out err)"

"$brim" train tiny.yaml $text device=cpu run=two watch.sample=false watch.report=false optim.lr=1e-3 >out 2>&1
rc=$?
[ $rc -eq 0 ] && ! grep -q '"cpu"\|watch_last' runs/two/metrics.jsonl && [ ! -e runs/two/report.html ] &&
    ! ls runs/two/events* >/dev/null 2>&1
verdict "all of it can be switched off" $? "exit code $rc: $(ls runs/two) $(tail -n 1 runs/two/metrics.jsonl)"

"$brim" compare one runs/two/ >out 2>err; rc=$?
[ $rc -eq 0 ] && grep -q '^step  *60 / 60  *60 / 60$' out && grep -q '^optim.lr  *0.0006  *0.001$' out &&
    ! grep -q '^steps ' out
verdict "brim compare" $? "exit code $rc: $(cat out err)"
"$brim" compare one tow >out 2>err; rc=$?
[ $rc -eq 2 ] && [ "$(cat err)" = "command line: tow: no such run (did you mean two?)" ]
verdict "compare of a mistyped run" $? "exit code $rc: $(cat err)"
"$brim" top --once --size 100x30 >out 2>err; rc=$?
[ $rc -eq 0 ] && [ "$(wc -l <out)" -eq 30 ] && grep -q 'one .*done .*60/60' out && grep -q '^no GPU: ' out
verdict "brim top --once" $? "exit code $rc: $(cat out err)"
for flags in "--once --port 99" "--size 90x30" "--once --size 80x24zzz" "--web --once"; do
    brim top $flags; [ $rc -eq 2 ] && [ "$(wc -l <said)" -eq 1 ] && says '^command line: --'
    verdict "brim top $flags is refused" $? "$(seen)"
done
"$brim" top >out 2>err </dev/null; rc=$?
[ $rc -eq 2 ] && grep -q 'top needs a terminal\|built without' err
verdict "brim top without a terminal" $? "exit code $rc: $(cat err)"

# name, the line, then keys
refused() {
    local name=$1 line=$2
    shift 2
    "$brim" train tiny.yaml device=cpu run=never "$@" >out 2>err; rc=$?
    [ $rc -eq 2 ] && [ "$(cat err)" = "$line" ] && [ ! -e runs/never ]
    verdict "$name" $? "exit code $rc: $(cat err)"
}
refused "a public page without a token" \
    "command line: watch.bind: 0.0.0.0 can be reached from other machines: watch.token is missing" \
    watch.web=true watch.bind=0.0.0.0
refused "a token that is too short" "command line: watch.token: needs 16 to 200 letters, digits, - _ . ~" \
    watch.token=abc
refused "an address that is none" \
    'command line: watch.bind: "home" is not an address (for example 127.0.0.1, 0.0.0.0 or ::1)' \
    watch.bind=home
"$brim" top --web --port 0 --bind 0.0.0.0 >out 2>err; rc=$?
[ $rc -eq 2 ] && grep -q -- '--bind: 0.0.0.0 .* --token .* is missing\|built without' err
verdict "brim top --web on a public address without a token" $? "exit code $rc: $(cat err)"

word=AveryLongSecretWord123
"$brim" train tiny.yaml $text device=cpu run=hush steps=20 watch.token=$word >out 2>&1; rc=$?
[ $rc -eq 0 ] && ! grep -rq $word runs/hush out
verdict "the token is in no file of the run" $? "exit code $rc: $(grep -rl $word runs/hush)"

if "$brim" top --web --port 0 --bind 0.0.0.0 2>&1 | grep -q 'built without'; then
    echo "skip: this build has no web page (libmicrohttpd-dev is missing)"
elif ! command -v curl >/dev/null; then
    echo "skip: curl is not installed"
else
    "$brim" train tiny.yaml $text device=cpu run=served steps=1000000 watch.web=true watch.port=0 >out 2>&1 &
    pid=$!
    for _ in $(seq 100); do
        url=$(sed -n 's/.*the page is at \(http[^ ]*\)$/\1/p' out)
        [ -n "$url" ] && [ -s runs/served/metrics.jsonl ] && break
        sleep 0.1
    done
    sleep 1.5
    brim top --web --port "$(echo "$url" | tr -dc '0-9:' | sed 's/.*://')"
    [ $rc -eq 2 ] && says '^command line: --port: 127.0.0.1 port [0-9]*: .*0 for any that is free'
    verdict "a port that is in use" $? "$(seen)"
    curl -s "${url}api/runs" >page; rc=$?
    [ $rc -eq 0 ] && grep -q '"name": "served", "state": "training"' page
    verdict "a run serves its own page" $? "exit code $rc: $url $(head -c 300 page) $(tail -n 2 out)"
    curl -s "${url}metrics" >prom
    if command -v promtool >/dev/null; then
        promtool check metrics <prom >out2 2>&1; rc=$?
        [ $rc -eq 0 ] && [ ! -s out2 ] && grep -q '^brim_run_training{run="served"} 1' prom
        verdict "promtool check metrics" $? "exit code $rc: $(cat out2)"
    else
        echo "skip: promtool (Debian's prometheus) is not installed"
    fi
    kill $pid; wait $pid
    ! curl -s -m 2 "$url" >/dev/null
    verdict "the page ends with the run" $? "still there"
fi

# Killed in its last evaluation: every step was done, but the last ones are not saved.
for _ in $(seq 300); do cat text.txt; done >long.txt
"$brim" train tiny.yaml $text device=cpu run=killed steps=30 eval.every=1000 eval.sequences=1000000 \
    data.val=long.txt data.val_fraction=0 checkpoint.every=0 watch.sample=false >out 2>&1 &
pid=$!
for _ in $(seq 200); do
    grep -qs '"step": 30,' runs/killed/metrics.jsonl && break
    sleep 0.1
done
sleep 0.2
kill -9 $pid; wait $pid 2>/dev/null
brim top --once --size 120x40
says 'killed +stopped' && ! [ -d runs/killed/checkpoints/step-00000030 ]
verdict "a run that was killed before its last step was saved is not done" $? "$(grep killed said)"
exit $failed
