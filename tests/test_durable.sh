#!/usr/bin/env bash
# A run survives what happens to processes: kill -9, signals, a second start, damaged files, bad steps,
# another plan.
# KILLS: how many kill -9, SIGTERM and SIGHUP in random order (default 20, or 5 in a slow build).
# SEED: of their moments.
# DURABLE_LONG=1: all of it (minutes); without it the signals and a case or two of the rest.
set -uo pipefail
[ -w /dev/shm ] && [ -z "${DURABLE_LONG:-}" ] && export TMPDIR=/dev/shm # not a disk that others keep busy
# shellcheck source=tests/durable_lib.sh
. "$(dirname "$0")/durable_lib.sh"
RANDOM=${SEED:-$$}
seed="seed ${SEED:-$$}"

# ---- kill -9, SIGTERM, SIGHUP ------------------------------------------------------------------------------

train again; out=$(same ref again); verdict "the same run twice gives the same bits" $? "$out"

case $build in *-asan) kills=${KILLS:-5} ;; *) kills=${KILLS:-20} ;; esac
landed=0 writing=0 tries=0 bad="" sent=""
while [ "$landed" -lt "$kills" ] && [ "$tries" -lt $((4 * kills)) ] && [ -z "$bad" ]; do
    tries=$((tries + 1)); rm -rf runs/killed
    for ((again = RANDOM % 3; again >= 0; again--)); do # up to three kills before the run may end
        from=$(last_step killed)
        start killed checkpoint.best=true
        # One in four while it starts, the others anywhere between here and its end.
        if [ $((RANDOM % 4)) -gt 0 ]; then wait_step killed $((from + 1 + RANDOM % (steps - from + 1))); fi
        sleep "0.0$((RANDOM % 50 + 10))"
        sig=(KILL TERM HUP); sig=${sig[RANDOM % 3]}
        # No such process: it was done already.
        kill "-$sig" "$pid" 2>/dev/null && { landed=$((landed + 1)); sent="$sent $sig"; }
        reap; rc=$?
        # A signal that comes before the program listens ends it as any program.
        if [ $sig != KILL ] && [ $rc -ne 0 ] && [ -s killed.log ]; then
            bad="try $tries, $seed: SIG$sig, exit code $rc: $(tail -n 2 killed.log)"
        fi
        compgen -G 'runs/killed/checkpoints/.tmp-*' >/dev/null && writing=$((writing + 1))
        if compgen -G 'runs/killed/checkpoints/step-*' >/dev/null; then
            "$verify" runs/killed/checkpoints/step-* >seen 2>&1 || bad="try $tries, $seed: $(cat seen)"
        fi
    done
    train killed checkpoint.best=true || bad="try $tries, $seed: $(tail -n 3 killed.log)"
    out=$(all_whole killed && same ref killed) || bad="try $tries, $seed: $out"
done
[ -z "$bad" ] && [ "$landed" -ge "$kills" ]
verdict "kill -9, SIGTERM and SIGHUP at $kills random moments change no bit" $? "$landed landed:$sent; $bad"
[ "$writing" -gt 0 ] || [ "$kills" -lt 100 ]
verdict "some of them while a checkpoint was written" $? "none of $landed, $seed"

# ---- damaged checkpoints -----------------------------------------------------------------------------------

start cut; wait_step cut 60; kill -TERM "$pid"; reap
damages=("flip optim.safetensors" "truncate model.safetensors" "truncate state.json" "flip DONE"
    "remove DONE")
[ -n "${DURABLE_LONG:-}" ] || damages=("${damages[0]}")
for what in "${damages[@]}"; do
    rm -rf runs/damaged; cp -r runs/cut runs/damaged
    last=$(last_ckpt damaged); file=$last/${what#* }
    before=$(ls runs/damaged/checkpoints | head -n 1)
    case $what in
        truncate*) truncate -s $(($(stat -c %s "$file") / 2)) "$file" ;;
        remove*) rm "$file" ;;
        flip*)
            at=$(($(stat -c %s "$file") * 2 / 3))
            byte=$(od -An -tu1 -j $at -N 1 "$file")
            printf "$(printf '\\x%02x' $((byte ^ 4)))" |
                dd of="$file" bs=1 seek=$at conv=notrunc status=none ;;
    esac
    train damaged; rc=$?
    [ $rc -eq 0 ] && grep -q "warning: checkpoint of step .*${what#* }" damaged.log &&
        grep -q "resuming after step $((10#${before#step-}))" damaged.log &&
        out=$(all_whole damaged && same ref damaged)
    verdict "$what: named, the one before is used" $? "exit code $rc: $(head -n 4 damaged.log) $out"
done
rm -rf runs/damaged; cp -r runs/cut runs/damaged; rm runs/damaged/checkpoints/*/DONE
train damaged; rc=$?
[ $rc -eq 1 ] && tail -n 1 damaged.log | grep -q 'none of its 2 checkpoints can be used'
verdict "nothing but damaged ones is an error, not a fresh start" $? "exit code $rc: $(tail -n 1 damaged.log)"

# ---- signals -----------------------------------------------------------------------------------------------

for sig in INT TERM USR1 HUP; do
    for try in 1 2 3 4 5; do # the run may end before the signal comes
        rm -rf runs/sig$sig
        start sig$sig; wait_step sig$sig 5; kill -$sig "$pid"; reap; rc=$?
        at=$(sed -nE 's/.*\] ([0-9]+) steps? done in.*/\1/p' sig$sig.log)
        [ "${at:-$steps}" -ge "$steps" ] || break
    done
    [ $rc -eq 0 ] && grep -qE "SIG$sig received: (saving and )?leaving" sig$sig.log &&
        [ "${at:-$steps}" -lt "$steps" ] &&
        out=$(all_whole sig$sig) && train sig$sig && grep -q "resuming after step $at\$" sig$sig.log &&
        out=$(same ref sig$sig)
    verdict "SIG$sig saves and leaves with 0, and the run goes on bit for bit" $? \
        "exit code $rc, step $at: $out $(tail -n 2 sig$sig.log)"
done

start away; wait_step away 20; kill -9 "$pid"; reap; hup=ignore start away
wait_step away 40; kill -HUP "$pid"; reap; rc=$?
[ $rc -eq 0 ] && ! grep -q 'received' away.log && out=$(all_whole away && same ref away)
verdict "with SIGHUP ignored, as under nohup, the run goes on to its end" $? \
    "exit code $rc: $out $(tail -n 2 away.log)"

BRIM_FAULT=nan:30-34 train back max_skips=5; rc=$?
[ $rc -eq 0 ] && grep -q 'rolled back to step 25; the 80 samples' back.log &&
    within "$(last_of back val_loss)" "$(last_of ref val_loss)" 0.02 &&
    [ "$(grep -c '"loss"' runs/back/metrics.jsonl)" -eq "$steps" ] && all_whole back >seen
verdict "five bad steps in a row go back to the last checkpoint" $? \
    "exit code $rc, $(last_of back val_loss) for $(last_of ref val_loss): $(cat seen)"

[ -n "${DURABLE_LONG:-}" ] || exit $failed

# Steps of a second or more, so that the second signal comes before the end of one. The first of them must be
# over: while there is nothing to save the first signal is enough.
case $build in *-asan) big=65536 ;; *) big=524288 ;; esac
start twice; wait_step twice 30; kill -TERM "$pid"; reap; at=$(last_step twice)
for first in INT TERM; do
    start twice step_tokens=$big checkpoint.every=0
    wait_log twice 'everything else in'; wait_step twice $((at + 1)) # the last start's lines are gone by then
    kill "-$first" "$pid"; sleep 0.1; kill -0 "$pid"; alive=$?; kill -INT "$pid"; reap; rc=$?
    [ $alive -eq 0 ] && [ $rc -eq 130 ] && [ "$(grep -c 'stopping after this step' twice.log)" -eq 1 ] &&
        "$verify" runs/twice/checkpoints/step-* >seen 2>&1
    verdict "SIG$first, then SIGINT: leaves at once, the last checkpoint intact" $? \
        "exit code $rc: $(cat seen) $(tail -n 2 twice.log)"
done
train twice && out=$(all_whole twice && same ref twice)
verdict "and the run goes on bit for bit after that" $? "$out"

start soon step_tokens=16777216 eval.every=0 # steps of half a minute
wait_log soon 'everything else in'; sleep 0.3
begin=${EPOCHREALTIME/./}; kill -INT "$pid"; reap; rc=$?; ms=$(( (${EPOCHREALTIME/./} - begin) / 1000 ))
[ $rc -eq 0 ] && [ $ms -lt 15000 ] && grep -q 'SIGINT received: leaving after step 0' soon.log &&
    [ -z "$(last_ckpt soon)" ] && train soon && out=$(all_whole soon && same ref soon)
verdict "a signal in the first step of a start does not wait for its end" $? \
    "exit code $rc after $ms ms: $(tail -n 2 soon.log) $out"

# ---- one run, one process ----------------------------------------------------------------------------------

start held; wait_step held 10; kill -STOP "$pid"
timeout 20 "$brim" train tiny.yaml run=held >second.log 2>&1; rc=$?
[ $rc -eq 2 ] && [ "$(wc -l <second.log)" -eq 1 ] &&
    grep -q "runs/held is in use by pid $pid (started" second.log
verdict "a second run into the directory is refused with the pid of the first" $? \
    "exit code $rc, pid $pid: $(cat second.log)"
timeout 20 "$brim" train tiny.yaml run=held --fresh >second.log 2>&1; rc=$?
[ $rc -eq 2 ] && grep -q "in use by pid $pid" second.log && [ -z "$(find runs -name 'held.old*')" ]
verdict "--fresh does not move a run that is going on" $? "exit code $rc: $(cat second.log)"
kill -CONT "$pid"; wait_step held 60; kill -9 "$pid"; reap
[ -e runs/held/lock ]; verdict "kill -9 leaves a lock file" $? "there is none"
train held && out=$(all_whole held && same ref held)
verdict "which is recognised as stale" $? "$(head -n 2 held.log) $out"

# ---- bad steps ---------------------------------------------------------------------------------------------

BRIM_FAULT=nan:30,spike:60 train bad; rc=$?
[ $rc -eq 0 ] && grep -q 'step 30 skipped: not finite' bad.log &&
    grep -q 'step 60 skipped: loss spike' bad.log &&
    grep -q '"step": 30,.*"skipped": "not finite"' runs/bad/metrics.jsonl &&
    within "$(last_of bad val_loss)" "$(last_of ref val_loss)" 0.02
verdict "a NaN and a spike are skipped and said" $? \
    "exit code $rc, $(last_of bad val_loss) for $(last_of ref val_loss)"

export BRIM_FAULT=nan:30-34; start back2 max_skips=5; unset BRIM_FAULT
wait_step back2 80; kill -9 "$pid"; reap
train back2 max_skips=5 && out=$(same back back2)
verdict "and a kill after that changes no bit" $? "$out $(head -n 3 back2.log)"

export BRIM_FAULT=nan:3-5; start back3 max_skips=3 checkpoint.every=2 step_tokens=$((big / 4)) eval.every=0
unset BRIM_FAULT
wait_log back3 'rolled back to step 2'; kill -TERM "$pid"; reap; rc=$?
[ $rc -eq 0 ] && grep -q '"skip": \[\[' "$(last_ckpt back3)/state.json"
verdict "a signal right after a rollback saves which samples are passed over" $? \
    "exit code $rc: $(tail -n 2 back3.log) $(grep -o '"skip".*' "$(last_ckpt back3)/state.json")"

BRIM_FAULT=nan:30-40 train older max_skips=5; rc=$? # the 35th is queued when the first row ends
[ $rc -eq 0 ] &&
    [ "$(grep -oE 'rolled back to step [0-9]+' older.log | tr -dc '0-9\n' | xargs)" = "25 20" ] &&
    grep -q 'warning: the same failure after going back to step 25: trying the checkpoint before it' \
        older.log &&
    within "$(last_of older val_loss)" "$(last_of ref val_loss)" 0.02 &&
    [ "$(grep -c '"loss"' runs/older/metrics.jsonl)" -eq "$steps" ] &&
    all_whole older >seen && [ "$(ls runs/older/checkpoints | wc -l)" -eq 2 ]
verdict "the same failure again goes back to the checkpoint before" $? \
    "exit code $rc, $(last_of older val_loss) for $(last_of ref val_loss):" \
    "$(grep -E 'rolled|same' older.log) $(cat seen)"

export BRIM_FAULT=nan:30-40; start older2 max_skips=5; unset BRIM_FAULT
wait_log older2 'rolled back to step 20'; kill -9 "$pid"; reap
train older2 max_skips=5; rc=$?
[ $rc -eq 0 ] && grep -qE "resuming after step (20|25|30|35)" older2.log &&
    [ "$(grep -c '"loss"' runs/older2/metrics.jsonl)" -eq "$steps" ] && all_whole older2 >seen
verdict "and a kill after that goes on from there" $? "exit code $rc: $(head -n 3 older2.log) $(cat seen)"

rm -rf runs/worse; cp -r runs/cut runs/worse
newest=$(last_ckpt worse); before=$(ls runs/worse/checkpoints | head -n 1); before=$((10#${before#step-}))
truncate -s 1000 "$newest/model.safetensors"
BRIM_FAULT=nan:1-3 train worse max_skips=3; rc=$? # before the damaged one is written anew
[ $rc -eq 0 ] &&
    [ "$(grep -c 'warning: checkpoint of step .* cannot be used: .*model.safetensors' worse.log)" -eq 2 ] &&
    grep -q "rolled back to step $before;" worse.log && out=$(all_whole worse)
verdict "a rollback passes a damaged checkpoint over" $? "exit code $rc: $out $(grep -E 'warning' worse.log)"

BRIM_FAULT=nan:30+ train lost max_skips=5; rc=$?
[ $rc -eq 1 ] &&
    [ "$(grep -oE 'rolled back to step [0-9]+' lost.log | tr -dc '0-9\n' | xargs)" = "25 20 20" ] &&
    tail -n 1 lost.log | grep -q 'giving up at step' && all_whole lost >seen &&
    [ "$(ls runs/lost/checkpoints | xargs)" = "abandoned-00000025 step-00000020" ]
verdict "steps that stay bad end the run" $? "exit code $rc: $(tail -n 2 lost.log)"
train lost max_skips=5 && out=$(same ref lost); verdict "which can go on once they are good" $? "$out"

BRIM_FAULT=nan:1+ train lost2 max_skips=5; rc=$?
[ $rc -eq 1 ] && tail -n 1 lost2.log | grep -q 'there is no checkpoint to go back to'
verdict "bad steps before the first checkpoint end the run" $? "exit code $rc: $(tail -n 1 lost2.log)"

# Step 62 stands between two checkpoints: what cannot be read after it must not cost the steps since the last
# one. (2 reads of the recipe, 32 in each of the evaluations at 0 and 40, 16 a step.)
BRIM_FAULT=read:1063 train unread opt.prefetch=false; rc=$?
at=$(last_ckpt unread); at=$((10#${at##*step-}))
[ $rc -eq 1 ] && tail -n 1 unread.log | grep -q 'text.txt: reading at byte' && [ $at -eq 62 ] &&
    out=$(all_whole unread) && train unread &&
    grep -q "resuming after step $at: opt.prefetch false -> true" unread.log && out=$(same ref unread)
verdict "data that cannot be read end the run after a save" $? \
    "exit code $rc, step $at: $out $(tail -n 2 unread.log)"

# After 2 + 32 + 16 x 120 reads come those of the last evaluation.
BRIM_FAULT=read:1970 train unseen eval.every=0 opt.prefetch=false; rc=$?
[ $rc -eq 1 ] && out=$(all_whole unseen) && train unseen eval.every=0 &&
    grep -q 'step 120: validation' unseen.log && train unseen eval.every=0 &&
    [ "$(grep -c '"step": 120, "val_loss"' runs/unseen/metrics.jsonl)" -eq 1 ] &&
    [ "$(last_of unseen val_loss)" = "$(last_of ref val_loss)" ]
verdict "a last evaluation that is missing is done when the run is opened again, once" $? \
    "exit code $rc: $out $(tail -n 2 unseen.log)"

# ---- log.txt -----------------------------------------------------------------------------------------------

# A save that fails, skips, a rollback and the end by a fault in one start; the next one goes on below it.
BRIM_FAULT=fsync:30-31,nan:30-34,spike:60,read:1463 train told max_skips=5 opt.prefetch=false; rc=$?
log=runs/told/log.txt bad=""
for line in \
    'start 20[0-9-]* [0-9:]*, brim [0-9.]* [(][0-9a-z-]*[)]: brim train tiny.yaml run=told max_skips=5 ' \
    'BRIM_FAULT: fsync 30 fails' \
    'error: CHECKPOINT NOT SAVED: .*Input/output error' 'warning: step 30 skipped: not finite' \
    'warning: rolled back to step' \
    'warning: step [0-9]+ skipped: loss spike' 'error: text.txt: reading at byte .*Input/output error'; do
    [ "$(grep -cE -- "\] $line" $log)" -ge 1 ] || bad="no '$line'"
done
[ $rc -eq 1 ] && [ -z "$bad" ]
verdict "log.txt has what went wrong" $? "exit code $rc: $bad: $(tail -n 3 $log)"
cp $log before; train told max_skips=5; rc=$?
[ $rc -eq 0 ] && head -c "$(stat -c %s before)" $log | cmp - before &&
    [ "$(grep -c '\] start ' $log)" -eq 2 ] &&
    [ "$(tail -n +$(($(wc -l <before) + 2)) $log)" = "$(cat told.log)" ]
verdict "the next start appends to it what the terminal shows" $? \
    "exit code $rc: $(diff <(tail -n +$(($(wc -l <before) + 2)) $log) told.log | head -n 3)"
grep -q 'NOT SAVED: .*, the last good one stays, ' $log
verdict "a failed save says what stays" $? "$(grep 'NOT SAVED' $log)"
BRIM_FAULT=fsync:10-14 train first steps=12 # of its first checkpoint
grep -q 'NOT SAVED: .*, there is none yet, ' first.log
verdict "and that there is none before the first" $? "$(grep 'NOT SAVED' first.log; tail -n 2 first.log)"
rm -rf runs/mute; mkdir -p runs/mute/log.txt
train mute; rc=$?
[ $rc -eq 0 ] && [ "$(grep -c 'warning: .*log.txt' mute.log)" -eq 1 ] && rmdir runs/mute/log.txt &&
    out=$(same ref mute)
verdict "a log that cannot be opened costs one warning" $? "exit code $rc: $out $(grep log.txt mute.log)"
rm -rf runs/mute; mkdir -p runs/mute; ln -s /dev/full runs/mute/log.txt
train mute; rc=$?
[ $rc -eq 0 ] && [ "$(grep -c 'warning: .*log.txt' mute.log)" -eq 1 ] && out=$(same ref mute)
verdict "and so does one that cannot be written" $? "exit code $rc: $out $(grep log.txt mute.log)"

# ---- evaluation --------------------------------------------------------------------------------------------

for mb in 1 4 16; do train eval$mb steps=6 eval.sequences=13 micro_batch=$mb; done
train eval_more steps=6 eval.sequences=16 micro_batch=1
untrained() { sed -nE 's/.*"step": 0, "val_loss": ([0-9.e+-]+)[,}].*/\1/p' "runs/$1/metrics.jsonl"; }
within "$(untrained eval4)" "$(untrained eval1)" 1e-6 &&
    within "$(untrained eval16)" "$(untrained eval1)" 1e-6 &&
    ! within "$(untrained eval_more)" "$(untrained eval1)" 1e-6
verdict "an evaluation has exactly eval.sequences windows, whatever the micro-batch" $? \
    "$(for e in 1 4 16 _more; do untrained eval$e; done | xargs)"

# ---- metrics -----------------------------------------------------------------------------------------------

# Read late, the steps before a save and the end would take no time at all.
train times steps=6 step_tokens=65536 eval.every=0 checkpoint.every=3 threads=2; rc=$?
[ $rc -eq 0 ] && sed -nE 's/.*"loss": .*"time_s": ([0-9.e+-]+)[,}].*/\1/p' runs/times/metrics.jsonl >seen &&
    awk 'NR > 1 { dt = $1 - before; if (NR == 2 || dt < least) least = dt; if (dt > most) most = dt }
        { before = $1 }
        END { exit !(NR == 6 && least > most / 50) }' seen
verdict "time_s is when a step ended" $? "exit code $rc: $(xargs <seen)"
[ "$(grep -c '"mfu": null' runs/times/metrics.jsonl)" -eq 6 ]
verdict "mfu is null where no peak is known" $? "$(tail -n 2 runs/times/metrics.jsonl)"
train all_threads steps=6 threads=0; rc=$?
[ $rc -eq 0 ] && grep -q '"threads": 2,' "$(last_ckpt times)/state.json" &&
    grep -qE '"threads": [1-9]' "$(last_ckpt all_threads)/state.json"
verdict "state.json has the threads that ran" $? \
    "exit code $rc: $(grep -h '"threads"' runs/*/checkpoints/*/state.json | cut -c 1-300 | tail -n 2)"

# ---- resuming as something else ----------------------------------------------------------------------------

for change in "micro_batch=4:micro_batch 0 -> 4.*(sums in another order)" "threads=2:threads 1 -> 2" \
    "recompute=block:recompute auto -> block"; do
    rm -rf runs/other; cp -r runs/cut runs/other
    train other "${change%%:*}"; rc=$?
    [ $rc -eq 0 ] && grep -q "resuming after step .*${change#*:}" other.log &&
        within "$(last_of other val_loss)" "$(last_of ref val_loss)" 0.001
    verdict "resuming with ${change%%:*} is allowed and said" $? \
        "exit code $rc: $(head -n 3 other.log); $(last_of other val_loss) for $(last_of ref val_loss)"
done
# 8192 rows of 256 logits are computed in chunks of 2816, or all at once without opt.chunk_head.
chunks=(step_tokens=8192 micro_batch=256 eval.every=0 optim.warmup=1)
train rows "${chunks[@]}" steps=2 && grep -q '"head_rows": 2816,' "$(last_ckpt rows)/state.json" &&
    train rows "${chunks[@]}" steps=4 opt.chunk_head=false
rc=$?
[ $rc -eq 0 ] &&
    grep -q 'resuming after step 2: .*planned head rows 2816 -> 8192 (sums in another order)$' rows.log &&
    ! grep -q 'planned micro-batch' rows.log
verdict "resuming with other chunks of the head is allowed and said" $? \
    "exit code $rc: $(head -n 3 rows.log)" \
    "$(grep -ho '"head_rows": [0-9]*' runs/rows/checkpoints/*/state.json)"
for change in "model.width=64:tensor embed.weight is 256 x 32 there, 256 x 64.*--fresh" \
    "model.layers=3:no tensor block.2" "model.heads=4:model.heads is 2 there, 4 in the recipe"; do
    rm -rf runs/other; cp -r runs/cut runs/other; cp -r runs/other kept
    train other "${change%%:*}"; rc=$?
    [ $rc -eq 2 ] && tail -n 1 other.log | grep -q "is of another model: .*${change#*:}" &&
        diff -r runs/other kept >seen
    verdict "${change%%:*} is refused, and nothing changes" $? \
        "exit code $rc: $(tail -n 1 other.log) $(cat seen)"
    rm -r kept
done
train ref; rc=$?
[ $rc -eq 0 ] && grep -q 'has its 120 steps: nothing to do' ref.log && out=$(same ref again)
verdict "a run that is complete stays as it is" $? "exit code $rc: $(tail -n 1 ref.log) $out"

rm -rf runs/other; cp -r runs/cut runs/other
train other --fresh data.val_fraction=0 model.vocab=300 eval.every=0 data.train=none.txt; rc=$?
[ $rc -eq 2 ] && diff -r runs/cut runs/other >seen && [ -z "$(find runs -name 'other.old*')" ]
verdict "--fresh with a wrong recipe moves nothing" $? \
    "exit code $rc: $(tail -n 1 other.log) $(head -n 3 seen)"
printf x >short.txt
for wrong in "memory_limit=400K:does not fit" "precision=bf16:needs a GPU" \
    "require=graphs:graphs is refused" "data.val=short.txt:too few" "data.val=.:is a folder"; do
    rm -rf runs/new runs/other*; cp -r runs/cut runs/other
    train other --fresh "${wrong%%:*}"; rc=$?
    [ $rc -eq 2 ] && tail -n 1 other.log | grep -q "${wrong#*:}" && diff -r runs/cut runs/other >seen &&
        [ -z "$(find runs -name 'other.old*')" ]
    verdict "--fresh with ${wrong%%:*} moves nothing" $? \
        "exit code $rc: $(tail -n 1 other.log) $(head -n 3 seen)"
    train new "${wrong%%:*}"; rc=$?
    [ $rc -eq 2 ] && [ ! -e runs/new ]
    verdict "a new run with ${wrong%%:*} leaves no directory" $? "exit code $rc: $(tail -n 1 new.log)"
done
rm -rf runs/new runs/other*; cp -r runs/cut runs/other
train other --fresh device=cuda:99; rc=$?
[ $rc -eq 2 ] &&
    tail -n 1 other.log | grep -q '^command line: device: cuda:99 is not usable: .*cpu and auto' &&
    diff -r runs/cut runs/other >seen && [ -z "$(find runs -name 'other.old*')" ]
verdict "--fresh on a device that is not there moves nothing" $? \
    "exit code $rc: $(tail -n 1 other.log) $(head -n 3 seen)"
train new device=cuda:99; rc=$?
[ $rc -eq 2 ] && [ ! -e runs/new ]
verdict "a new run on a device that is not there leaves no directory" $? \
    "exit code $rc: $(tail -n 1 other.log) $(head -n 3 seen)"
rm -rf runs/other*; cp -r runs/cut runs/other
train other --fresh; rc=$?
[ $rc -eq 0 ] && out=$(same ref other) && [ "$(find runs -maxdepth 1 -name 'other.old-*' | wc -l)" -eq 1 ] &&
    diff -r runs/cut runs/other.old-* >seen
verdict "--fresh moves the old run aside" $? "exit code $rc: $out $(cat seen)"

# ---- nothing to do -----------------------------------------------------------------------------------------

# name, text, then overrides: a start that says so in its last line and changes no file.
idle() {
    local name=$1 text=$2
    shift 2
    rm -rf kept; cp -r "runs/$name" kept
    train "$name" "$@" && tail -n 1 "$name.log" | grep -qE -- "$text" && diff -r kept "runs/$name" >seen
}
idle ref 'runs/ref has its 120 steps: nothing to do' eval.sequences=16
verdict "a complete run: no file changes" $? "$(tail -n 1 ref.log) $(head -n 3 seen)"
idle ref 'runs/ref has 120 steps, 7 asked: nothing to do' steps=7 data.kind=random
verdict "fewer steps than done: no file changes" $? "$(tail -n 1 ref.log) $(head -n 3 seen)"
cp -r runs/ref runs/swept # killed in the removal that follows the last save
cp -r "$(last_ckpt swept)" runs/swept/checkpoints/.tmp-remove-00000110-1; touch runs/swept/recipe.yaml.tmp-1-1
train swept && grep -q 'nothing to do' swept.log && diff -r runs/ref runs/swept >seen
verdict "a complete run: what a killed one left goes" $? "$(tail -n 1 swept.log) $(head -n 3 seen)"

goal=(eval.every=20 eval.target=4)
train goal "${goal[@]}"; rc=$?; at=$(last_ckpt goal); at=$((10#${at##*step-}))
[ $rc -eq 0 ] && [ $at -lt 120 ] && [ $at -gt 0 ] &&
    grep -q '"stopped": "target"' "$(last_ckpt goal)/state.json"
verdict "eval.target ends a run" $? "exit code $rc, step $at: $(tail -n 1 goal.log)"
idle goal "target reached at step $at, .*: nothing to do" "${goal[@]}"
verdict "the same command again has nothing to do" $? "$(tail -n 1 goal.log) $(head -n 3 seen)"
train goal eval.every=20 eval.target=0.1; rc=$?
[ $rc -eq 0 ] && grep -q "resuming after step $at: .*eval.target" goal.log && train no_goal eval.every=20 &&
    out=$(same no_goal goal) && grep -q '"stopped": ""' "$(last_ckpt goal)/state.json"
verdict "a lower eval.target goes on, bit for bit" $? "exit code $rc: $(tail -n 1 goal.log) $out"
tired=(eval.every=2 eval.patience=2 optim.lr=0.5 steps=60)
train early "${tired[@]}"; rc=$?; at=$(last_ckpt early); at=$((10#${at##*step-}))
[ $rc -eq 0 ] && [ $at -lt 60 ] &&
    idle early "stopped early at step $at .*: nothing to do .*eval.patience" "${tired[@]}"
verdict "a run that eval.patience ended has nothing to do" $? \
    "exit code $rc, step $at: $(tail -n 1 early.log) $(head -n 3 seen)"
train early "${tired[@]}" eval.patience=100; rc=$?
[ $rc -eq 0 ] && [ "$(last_step early)" -eq 60 ]
verdict "more patience goes on" $? "exit code $rc: $(tail -n 1 early.log)"

# An evaluation that could not be done in time, and then ends the run, leaves its reason too.
# After 2 + 32 + 16 x 20 reads comes the first of step 20's evaluation.
BRIM_FAULT=read:355 train late steps=60 eval.every=20 opt.prefetch=false; rc=$?
[ $rc -eq 1 ] && train late steps=60 eval.every=20 eval.target=5 && grep -q 'target reached' late.log &&
    idle late 'target reached at step 20' steps=60 eval.every=20 eval.target=5
verdict "an evaluation made up for can end a run for good" $? \
    "exit code $rc: $(tail -n 2 late.log) $(head -n 3 seen)"

# ---- budget ------------------------------------------------------------------------------------------------

budget=(steps=1000000 budget_s=2 eval.every=0 checkpoint.every=0)
rates() { sed -nE 's/.*"lr": ([0-9.e+-]+),.*/\1/p' "runs/$1/metrics.jsonl"; }
train spent "${budget[@]}"; rc=$?
[ $rc -eq 0 ] && grep -q 'time budget of 2 s used up' spent.log &&
    rates spent | tail -n 1 | awk '{ exit !($1 < 3e-3 / 20) }'
verdict "budget_s ends a run with its learning rate decayed" $? \
    "exit code $rc, lr $(rates spent | tail -n 1): $(tail -n 1 spent.log)"
grep -qE '\] train 1/1000000 .* 0:0[0-2] left' spent.log
verdict "the time left is that of the budget" $? "$(grep -m 1 left spent.log)"
idle spent 'runs/spent has used its 2 s: nothing to do .*budget_s' "${budget[@]}"
verdict "a spent budget leaves nothing to do" $? "$(tail -n 1 spent.log) $(head -n 3 seen)"
budget[1]=budget_s=12
start paused "${budget[@]}"; wait_step paused 1; sleep 6; kill -INT "$pid"; reap; rc=$?
before=$(rates paused | tail -n 1); n=$(rates paused | wc -l)
train paused "${budget[@]}" && rates paused | sed -n "$((n + 1)),$((n + 3))p" >next &&
    awk -v before="$before" '{ n++; if ($1 > 1.3 * before || $1 < 0.3 * before) bad = 1 }
        END { exit !(n == 3 && !bad && before < 2.5e-3) }' next
verdict "a resumed run's learning rate goes on from where it was" $? \
    "exit code $rc: $before, then $(xargs <next)"

# ---- the recipe in the run directory -----------------------------------------------------------------------

cp runs/ref/recipe.yaml resolved.yaml
(cd / && timeout 60 "$brim" train "$dir/resolved.yaml" run=copy >"$dir/copy.log" 2>&1); rc=$?
[ $rc -eq 0 ] && out=$(same ref copy)
verdict "the resolved recipe reproduces the run, from any folder" $? \
    "exit code $rc: $(tail -n 1 copy.log) $out"
# The same data from three places: nothing but steps has changed.
mkdir -p sub; train moved steps=10 data.train=sub/../text.txt
(cd / && timeout 60 "$brim" train "$dir/tiny.yaml" run=moved steps=20 >"$dir/moved.log" 2>&1 &&
    timeout 60 "$brim" train "$dir/runs/moved/recipe.yaml" steps=30 >>"$dir/moved.log" 2>&1); rc=$?
[ $rc -eq 0 ] && grep -q 'resuming after step 10: steps 10 -> 20$' moved.log &&
    grep -q 'resuming after step 20: steps 20 -> 30$' moved.log
verdict "the same data by another path is no change" $? \
    "exit code $rc: $(grep resuming moved.log) $(tail -n 1 moved.log)"
[ "$(grep -cE '\] 10 steps [(][23]0 in all[)] done in ' moved.log)" -eq 2 ]
verdict "the last line of a resumed run is about this start" $? "$(grep 'done in' moved.log)"
(cd / && timeout 60 "$brim" eval "$dir/runs/ref" >"$dir/eval.log" 2>&1); rc=$?
[ $rc -eq 0 ] &&
    grep -qE '^step 120: validation loss [0-9.]+ over [0-9]+ tokens [(]the whole validation set[)], ' eval.log
verdict "and the run can be evaluated from there" $? "exit code $rc: $(cat eval.log)"
exit $failed
