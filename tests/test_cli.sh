#!/usr/bin/env bash
# What the program says about itself, and that it notices when its output cannot be written.
. "$(dirname "$0")/shell_lib.sh"

for c in train plan bench eval sample data env top compare report info version help; do
    "$brim" $c --help >a 2>err; rc=$?
    "$brim" help $c >b 2>>err
    [ $rc -eq 0 ] && [ ! -s err ] && grep -q "^brim $c" a && [ "$(head -n "$(wc -l <a)" b)" = "$(cat a)" ]
    verdict "$c --help and help $c" $? "exit code $rc: $(cat a b err)"
done
while read -r noun verb; do # each part of data, and what follows its usage in the whole
    "$brim" data $noun $verb --help >a 2>err && "$brim" help data $noun $verb >b 2>>err; rc=$?
    [ $rc -eq 0 ] && [ ! -s err ] && cmp -s a b && [ "$(grep -c '^brim ' a)" -eq 1 ] &&
        grep -q "^brim data $noun${verb:+ $verb} " a && grep -q '^  --' a
    verdict "data $noun $verb --help is about that alone" $? "exit code $rc: $(head -n 3 a b) $(cat err)"
done <<<"$("$brim" data --help | sed -nE 's/^brim data (tokenizer [a-z]+|[a-z]+) .*/\1/p')"
"$brim" data tokenizer --help >a; [ "$(grep -c '^brim data tokenizer ' a)" -eq 4 ]
verdict "data tokenizer --help has all of its parts" $? "$(cat a)"
for c in "data shwo --help" "help data shwo"; do
    "$brim" $c >a 2>err; rc=$?
    [ $rc -eq 2 ] && [ ! -s a ] &&
        grep -q "^command line: data: shwo: no such command (did you mean show?)$" err
    verdict "$c" $? "exit code $rc: $(cat a err)"
done
"$brim" sample --help | grep -q '^  --temperature  *0: '
verdict "--help lists options" $? "$("$brim" sample --help)"
"$brim" help eval | grep '^eval.every$' >/dev/null
verdict "help eval names the section's keys too" $? "$("$brim" help eval)"

"$brim" help | grep '^exit code: 0 .*; 1 .*; 2 .*; 130 ' >/dev/null
verdict "help says what exit codes mean" $? "$("$brim" help | grep exit)"

"$brim" version >a 2>err && "$brim" --version >b 2>>err && "$brim" -v >c 2>>err; rc=$?
want=$(sed -n 's/^VERSION := //p' "$here/Makefile")
[ $rc -eq 0 ] && [ ! -s err ] && [ -n "$want" ] && [ "$(head -n 1 a)" = "brim $want" ] && cmp -s a b &&
    cmp -s a c && grep -q '^compiler  *[^ ]* .*[0-9]' a && grep -qE '^CUDA +(yes$|no: .)' a
verdict "version and --version" $? "exit code $rc, wanted $want: $(cat a b err)"

"$brim" help >/dev/full 2>err; rc=$?
[ $rc -eq 1 ] && grep -q '^brim: standard output' err
verdict "full standard output is a failure" $? "exit code $rc: $(cat err)"

cat >tiny.yaml <<'END'
step_tokens: 512
steps: 100000
model: {layers: 1, width: 32, heads: 2, vocab: 256, context: 32}
data: {kind: random}
END
mkdir -p tree/build tree/recipes && cp "$brim" tree/build/ && echo 'seeed: 1' >tree/recipes/wrong.yaml
tree/build/brim plan wrong >out 2>err; rc=$?
[ $rc -eq 2 ] && grep -q "^$dir/tree/recipes/wrong.yaml:1: seeed: " err
verdict "messages show the plain path of a shipped recipe" $? "exit code $rc: $(cat err)"
for n in 1 2048; do
    "$brim" plan tiny.yaml device=cpu threads=$n >out 2>err; rc=$?
    [ $rc -eq 0 ] && [ "$(grep -c 'warning: threads: 2048, but there are [0-9]* CPUs' err)" -eq $((n > 1)) ]
    verdict "threads=$n: a warning where there are too many" $? "exit code $rc: $(cat err)"
done
threads() { env "$@" "$brim" info | sed -n 's/^cpu .*, \([0-9]* thread\).*/\1/p'; }
[ -n "$(threads A=1)" ] && [ "$(threads A=1)" = "$(threads OMP_PROC_BIND=true)" ]
verdict "bound threads have all CPUs" $? "$(threads A=1), bound $(threads OMP_PROC_BIND=true)"

# Beside others threads wait for each other briefly: a second team, named as its owner, keeps libgomp to it
# (src/dev/cpu/cpu_wait.h).
busy=()
for _ in $(seq "$(env -u OMP_NUM_THREADS nproc)"); do
    (while kill -0 $$; do :; done 2>/dev/null) &
    busy+=($!)
done
for own in A=1 OMP_WAIT_POLICY=active; do
    env -u GOMP_SPINCOUNT -u OMP_WAIT_POLICY "$own" "$brim" train tiny.yaml device=cpu threads=2 run=waits \
        >out 2>err &
    pid=$!
    sleep 3
    n=$(cat "/proc/$pid/task/"*/comm | grep -c '^waits$')
    kill -0 $pid && if [ "$own" = A=1 ]; then [ "$n" -gt 1 ]; else [ "$n" -eq 0 ]; fi
    verdict "beside others: $own" $? "$n threads: $(cat out err)"
    kill $pid; wait $pid
done
kill "${busy[@]}"; wait "${busy[@]}"

"$brim" bench tiny.yaml device=cpu --ops --no-limit >out 2>err; rc=$?
[ $rc -eq 2 ] && grep -q '^command line: --ops: ' err
verdict "--ops needs the rates" $? "exit code $rc: $(cat out err)"
"$brim" bench tiny.yaml device=cpu --json --no-limit --seconds 1 >out 2>err; rc=$?
name=$(sed -n 's/^tiny on \(.*\): micro-batch.*/\1/p' out)
[ -n "$name" ] && tail -n 1 out | grep -qF "\"device\": \"$name\", \"precision\": \"fp32\", "
verdict "bench --json names device and precision that were used" $? "'$name' $(tail -n 1 out)"
tail -n 1 out | grep -qE '"step_tokens": 512, "micro_batch": [0-9]+, "recompute": "none", '
verdict "bench --json says how the step was cut" $? "$(tail -n 1 out)"
grep -qE '^slabs [^,]*, as planned; the process [0-9.]+ MiB, with the program and its libraries$' out
verdict "bench says what the process holds beside the slabs" $? "$(cat out)"
[ $rc -eq 0 ] && ! grep -q 'MFU\|limit share' out && grep -q '"mfu": null, "limit_share": null' out
verdict "bench leaves out what it does not know" $? "exit code $rc: $(cat out err)"

# Both backends' products take the bias gradient of qkv along (FUSE_CUDA); switched off it is an op of its
# own.
n_bias() { grep -cE '^ *[0-9]+ bias_dw +block 0 qkv' "$1"; }
"$brim" plan tiny.yaml model.bias=true --gpu h200 --list >a 2>err &&
    "$brim" plan tiny.yaml model.bias=true opt.linear_dw_bias=false --gpu h200 --list >b 2>>err
rc=$?
[ $rc -eq 0 ] && [ "$(n_bias a)" -eq 0 ] && [ "$(n_bias b)" -eq 1 ] && grep -q ' linear_act_bwd ' a
verdict "plan --gpu fuses what the CUDA backend fuses" $? \
    "exit code $rc: $(n_bias a) $(n_bias b) $(grep -E '^ *[0-9]+ (bias_dw|linear_act_bwd)' b) $(cat err)"

for where in device=cpu --gpu=h200; do
    "$brim" plan tiny.yaml $where >out 2>err; rc=$?
    [ $rc -eq 0 ] && grep -qE '^a step +[0-9.e-]+ TFLOP, .* GB moved' out &&
        grep -qE '^predicted +[0-9.]+ ms a step, .* tokens/s' out
    verdict "plan $where predicts a step" $? "exit code $rc: $(cat out err)"
done

for seqs in 10:1,2,5,10, 12:1,2,4,6,12, 13:1,13, 1:1,; do
    "$brim" plan tiny.yaml device=cpu step_tokens=$((${seqs%:*} * 32)) >out 2>err; rc=$?
    got=$(sed -n '/micro-batch  recompute/,/^$/s/^[-> ]* \([0-9]*\)  none .*/\1/p' out | tr '\n' ,)
    [ $rc -eq 0 ] && [ "$got" = "${seqs#*:}" ]
    verdict "plan tries divisors of ${seqs%:*} sequences, each about twice the one before" $? \
        "exit code $rc: $got $(cat err)"
done

# A card that the default build has no kernels for: its own capability, and how to build for it.
"$brim" plan tiny.yaml --gpu a100 >out 2>err; rc=$?
[ $rc -eq 0 ] && grep -q 'compute capability 8.0 has bf16' out && ! grep -q '9\.0' out &&
    [ "$(grep -c '^build .*8\.0: .*not supported' out)" -eq 1 ] &&
    ! "$brim" plan tiny.yaml --gpu h100 | grep -q '^build '
verdict "plan --gpu a100 says that the build is not for it" $? "exit code $rc: $(cat out err)"

# name, pattern of its line, then arguments of plan: what becomes of opt.NAME
becomes() {
    local name=$1 pattern=$2
    shift 2
    "$brim" plan tiny.yaml model.bias=true model.act=gelu "$@" >out 2>err; rc=$?
    [ $rc -eq 0 ] && grep -qE "^  opt.$name +$pattern" out
    verdict "plan $*: $name $pattern" $? "exit code $rc: $(grep "opt.$name " out) $(cat err)"
}
becomes linear_act     'on .*\(1 op\)$' device=cpu
becomes linear_act     'off .*[a-z]$' device=cpu opt.linear_act=false
becomes linear_act     'not used .*: this model has no act_fwd$' device=cpu model.act=swiglu
becomes linear_act     'not used .*: it would change bits, and the run is deterministic$' --gpu h200 \
    deterministic=true
becomes act_slope      'on .*\(1 op\)$' device=cpu
becomes act_slope      'not used .*: it needs linear_act, ' device=cpu opt.linear_act=false
becomes act_slope      'not used .*: it needs linear_act, ' device=cpu recompute=cheap
becomes act_slope      'not used .*: it would change bits, ' --gpu h200 deterministic=true
becomes act_slope      'not used .*: it needs linear_act, ' --gpu h200 precision=tf32
becomes act_slope      'on .*\(1 op\)$' --gpu h200 model.act=swiglu model.bias=false
becomes act_slope      'on .*\(1 op\)$' device=cpu model.act=swiglu model.bias=false
becomes act_slope      'not used .*: it needs .*linear_glu_bwd' device=cpu model.act=swiglu model.bias=false \
    opt.linear_glu_bwd=false
becomes act_slope      'not used .*: it would change bits, ' --gpu h200 model.act=swiglu model.bias=false \
    deterministic=true
becomes linear_glu_fwd 'not used .*: no linear_fwd and glu_fwd meet ' device=cpu model.act=swiglu
becomes linear_glu_fwd 'on .*\(1 op\)$' device=cpu model.act=swiglu model.bias=false
becomes act_bias       'not used .*: every act_dx is in another fused op$' device=cpu
becomes act_bias       'on .*\(1 op\)$' device=cpu opt.linear_act_bwd=false opt.linear_dw_bias=false
becomes linear_dw_bias 'on ' device=cpu
becomes linear_dw_bias 'not used .*: this model has no bias_dw$' device=cpu model.bias=false
becomes linear_dw_bias 'on .*\(2 ops\)$' --gpu h200
becomes attn_rope      'on .*\(1 op\)$' device=cpu model.pos=rope
becomes attn_rope      'off ' device=cpu model.pos=rope opt.attn_rope=false
becomes attn_rope      'not used .*: this model has no rope$' device=cpu
becomes chunk_head     'not used .*: one chunk ' device=cpu
becomes chunk_head     'on ' device=cpu model.vocab=60000
becomes flash          'on .*\(1 op\)$' device=cpu
becomes graphs         'refused .*: not on the cpu backend$' device=cpu
becomes tune           'on ' --gpu h200
becomes tune           'not used .*: a deterministic run ' --gpu h200 deterministic=true

# Sampling has no gradient, so no cross-entropy: what the training run required of its step stays true.
"$brim" train tiny.yaml device=cpu run=needs require=xent steps=2 >out 2>&1 &&
    "$brim" sample needs --tokens 1 >out 2>&1
rc=$?
verdict "require is about the training step" $rc "exit code $rc: $(cat out)"

"$brim" train tiny.yaml device=cpu steps=2 >out 2>&1 && timeout 10 "$brim" eval tiny >out 2>err; rc=$?
[ $rc -eq 2 ] && grep -q '^runs/tiny/recipe.yaml:[0-9]*: data.train: noise has nothing' err
verdict "noise is not evaluated" $? "exit code $rc: $(cat out err)"
grep -q 'data.kind random: noise, nothing will be learned' runs/tiny/log.txt
verdict "training on noise says so" $? "$(cat runs/tiny/log.txt)"
"$brim" train tiny.yaml device=cpu run=mute steps=3 <&- >&- 2>&-; rc=$?
[ $rc -eq 0 ] && [ "$(grep -c '^{"step"' runs/mute/metrics.jsonl)" -eq 3 ] &&
    ! grep -qv '^{"step"' runs/mute/metrics.jsonl
verdict "closed standard streams leave the run's files alone" $? \
    "exit code $rc: $(cat runs/mute/metrics.jsonl)"
for c in version --help; do
    "$brim" $c >&- 2>err; rc=$?
    [ $rc -eq 1 ] && grep -q '^brim: standard output could not be written$' err
    verdict "output of $c that nobody can get is a failure" $? "exit code $rc: $(cat err)"
done
for c in eval sample; do
    "$brim" $c tniy >out 2>err; rc=$?
    [ $rc -eq 2 ] && grep -q '^command line: tniy: no such run (did you mean tiny?)$' err
    verdict "$c of a mistyped run" $? "exit code $rc: $(cat err)"
done
"$brim" plan tiny.yaml device=cpu model.context=8192 step_tokens=8192 threads=4 memory_limit=25M >out 2>err
rc=$?
[ $rc -eq 2 ] && grep -q 'does not fit: .* fewer threads .*would help' err && grep -q '^  scratch ' out
verdict "what threads need for themselves is planned, too" $? "exit code $rc: $(cat out err)"
recipe=$here/recipes/llama-8b.yaml
"$brim" plan "$recipe" --gpu h100 --json >out 2>err; rc=$?
[ $rc -eq 2 ] && [ "$(wc -l <out)" -eq 1 ] && grep -q 'give_way: .moments, weights. fits in .*tokens/s' err &&
    grep -qE '^\{.*"fits": false, "needed_bytes": 14[0-9]{10}, "budget_bytes": 8[0-9]{10}, ' out &&
    grep -qE '"fits_with_give_way": "moments, weights", "why": "this model does not fit: [^"]*"\}$' out
verdict "plan --json of what does not fit is an object" $? "exit code $rc: $(cat out err)"
"$brim" plan "$recipe" --gpu h200 >out 2>err && "$brim" plan "$recipe" --gpu h200 --json >json 2>>err; rc=$?
[ $rc -eq 0 ] && grep -q '"fits": true' json && ! grep -q 'recompute  gives way' out &&
    grep -qE '^would help  give_way: \[moments, weights\].* 12.7k tokens/s in 110 GiB, recompute none$' out
verdict "a plan that recomputes says what would not" $? "exit code $rc: $(grep -A8 ^budget out) $(cat err)"
"$brim" plan "$recipe" --gpu h200 give_way=moments,weights >out 2>err; rc=$?
[ $rc -eq 0 ] && grep -qE '^ +1  none +- +4096 .* does not fit$' out && ! grep -q '^would help' out &&
    grep -qE '^-> +2  none +moments, weights +8192 ' out
verdict "each row of a plan says what gives way" $? "exit code $rc: $(grep -A20 ^budget out) $(cat err)"
# name, the line, then arguments
says() {
    local name=$1 line=$2
    shift 2
    "$brim" "$@" >out 2>err; rc=$?
    [ $rc -eq 2 ] && [ "$(cat err)" = "$line" ]
    verdict "$name" $? "exit code $rc: $(cat err)"
}
says "help of a mistyped command" "command line: traim: neither a command nor a key (did you mean train?)" \
    help traim
says "help of a mistyped key" "command line: stepz: unknown key (did you mean steps?)" help stepz
says "help of two words" "command line: plan: help takes one key or command" help train plan
says "a slip in the verb of trace" \
    "command line: trace: sumarize: no such command (did you mean summarize?)" trace sumarize tiny
says "an unknown pattern of words" \
    "command line: --pattern: 'gpt3' is none of gpt2, cl100k, llama3, qwen2, o200k" \
    data tokenizer train tiny.yaml --vocab 300 --out tok --pattern gpt3
for c in bench plan; do
    says "$c of a run's name" \
        "command line: tiny: a run, and $c takes a recipe (runs/tiny/recipe.yaml is that run's)" $c tiny
done
says "a run without episodes" "command line: tiny: a run of task lm has no episodes to play" play tiny
for c in "report tiny --out" "compare tiny --picture" "doctor tiny --apply --out" "play tiny --out" \
    "env show cartpole --out" "predict tiny tiny.yaml --picture"; do
    case $c in compare*) end=svg ;; *) end=gif ;; esac
    says "${c%% *}: a file in no folder" "command line: ${c##* }: $dir/nix: no such folder" \
        $c "$dir/nix/x.$end"
done
says "report: a folder as a file" "command line: --out: $dir: is a folder: name a file" \
    report tiny --out "$dir"
says "an option cut short" "command line: --temp: no such option (did you mean --temperature?)" sample tiny \
    --temp 0.5
says "and with its value" "command line: --temp: no such option (did you mean --temperature?)" sample tiny \
    --temp=0.5
says "one cut too short" "command line: --t: no such option" sample tiny --t 0.5
says "a key as an option" "command line: --steps: no option but a recipe key: steps=20" train tiny --steps 20
says "and with its value" "command line: --model.layers: no option but a recipe key: model.layers=2" \
    train tiny --model.layers=2
says "a key of another program as an option" \
    "command line: --batch-size: no option but a recipe key: step_tokens or step_samples or micro_batch" \
    train tiny --batch-size 8
says "a key as an option without its section" \
    "command line: --lr: no option but a recipe key: optim.lr=1e-3" train tiny --lr 1e-3
says "a slip in a key as an option" \
    "command line: --stepz: no such option (did you mean the key steps?)" train tiny --stepz 8
says "an option rather than a key" \
    "command line: --tokenz: no such option (did you mean --tokens?)" sample tiny --tokenz 8
says "a text without --prompt" \
    "command line: The king: expected key=value (a text goes behind --prompt)" sample tiny "The king"
"$brim" plan steps=7 tiny.yaml model.layers=2 >out 2>err; rc=$?
[ $rc -eq 0 ] && grep -q '^the run  *7 steps' out
verdict "a key before the recipe" $? "exit code $rc: $(cat out err)"
says "eval of a folder that is no run" \
    "command line: $dir/none: no such run (there is no recipe.yaml in it)" eval "$dir/none"
"$brim" plan tiny.yaml data.kind=text data.train=elsewhere/none.txt --gpu h200 >out 2>err; rc=$?
[ $rc -eq 0 ] && grep -q '^data  *elsewhere/none.txt is not here' out
verdict "a plan needs no data" $? "exit code $rc: $(cat err)"

(cd "$here" && BRIM_RUNS="$dir/elsewhere" tools/quickstart.sh "$brim" steps=2 optim.warmup=0 device=cpu) \
    >out 2>err
rc=$?
[ $rc -eq 0 ] && grep -q '^ROMEO:' out && [ -d elsewhere/quickstart/checkpoints ]
verdict "quickstart.sh with BRIM_RUNS" $? "exit code $rc: $(tail -n 1 err)"

BRIM_RUNS=/proc/none "$brim" train tiny.yaml device=cpu steps=2 >out 2>err; rc=$?
[ $rc -eq 1 ] && grep -q '^brim: /proc/none: .*(/proc/none is the folder for runs, from BRIM_RUNS)$' err
verdict "a folder for runs that cannot be made" $? "exit code $rc: $(tail -n 1 err)"

quickstart() {
    (cd "$here" && BRIM_RUNS="$dir/elsewhere" exec tools/quickstart.sh "$brim" optim.warmup=0 device=cpu "$@")
}
echo mine >elsewhere/quickstart/note
quickstart steps=2 >out 2>err; rc=$?
[ $rc -eq 0 ] && grep -q '^ROMEO:' out && [ "$(cat elsewhere/quickstart.old-*/note)" = mine ] &&
    grep -q '^Earlier demonstrations: 1 in .*/quickstart.old-\*' out &&
    grep -q 'the old .* is now .*/quickstart.old-' out err
verdict "quickstart.sh again: the earlier run is moved aside, and that is said" $? \
    "exit code $rc: $(ls elsewhere) $(tail -n 3 err)"
touch elsewhere/quickstart/lock
( flock -n 9 || exit 1; quickstart steps=2 ) 9>>elsewhere/quickstart/lock >out 2>err; rc=$?
[ $rc -eq 2 ] && grep -q 'is in use' err && ! grep -q '^ROMEO:' out &&
    [ "$(ls -d elsewhere/*.old-* | wc -l)" -eq 1 ]
verdict "quickstart.sh leaves a run that is in use alone" $? "exit code $rc: $(tail -n 3 err)"
(cd "$here" &&
    BRIM_RUNS="$dir/elsewhere" exec timeout 300 tools/quickstart.sh \
    "$brim" optim.warmup=0 device=cpu steps=100000) >out 2>err &
pid=$!
for _ in $(seq 1000); do
    [ -s elsewhere/quickstart/lock ] && [ -s elsewhere/quickstart/metrics.jsonl ] && break
    sleep 0.1
done
kill -TERM "$(sed -n 's/^pid \([0-9]*\).*/\1/p' elsewhere/quickstart/lock)"
wait $pid; rc=$?
[ $rc -eq 130 ] && grep -q '^Interrupted: no sample' err && ! grep -q 'sample from\|^ROMEO:' out
verdict "quickstart.sh that is interrupted prints no sample" $? "exit code $rc: $(tail -n 3 err)"
exit $failed
