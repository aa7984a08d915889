#!/usr/bin/env bash
# Real tokenizers against the reference implementation (Hugging Face's native one, under node): ids, decoded
# text, trained merges, speed; then the commands. Four of nine files get a few hundred kilobytes of text.
# TOKENIZER_LONG=1 takes all nine and 20 MB, and measures speed.
. "$(dirname "$0")/shell_lib.sh"
verify=$build/tests/verify_tokenizer; reference=$here/tests/reference_tokenizer.js
long=${TOKENIZER_LONG:-}
# One of each kind; plain: no normalizer, every byte comes back.
files=(gpt2 llama3_1 qwen3 gemma); plain=(gpt2 llama3_1); pairs=(gpt2)
if [ -n "$long" ]; then
    files=(gpt2 llama3 llama3_1 qwen2_5 qwen3 deepseek_v3 mistral_nemo gpt4o gemma)
    plain=(gpt2 llama3 llama3_1 deepseek_v3 mistral_nemo gpt4o); pairs=(gpt2 gpt4o)
fi
asan=; case $build in *-asan) asan=1 ;; esac

# ---- commands and what they refuse: no packages needed ----
says() { # name, the line on stderr, then arguments
    local name=$1 line=$2
    shift 2
    timeout 60 "$brim" "$@" >out 2>err </dev/null; rc=$?
    [ $rc -eq 2 ] && [ "$(cat err)" = "$line" ]
    verdict "$name" $? "exit code $rc: $(cat out err)"
}
says "data without a noun" "command line: data: what about it? (brim data --help lists what there is)" data
says "a mistyped noun" "command line: data: tokeniser: no such command (did you mean tokenizer?)" data \
    tokeniser show x
says "a mistyped verb" "command line: data tokenizer: encod: no such command (did you mean encode?)" data \
    tokenizer encod x
says "no such tokenizer" "none: no such file or folder" data tokenizer show none
mkdir empty
known="tokenizer.json, *.tiktoken, encoder.json with vocab.bpe, or vocab.json with merges.txt"
says "a folder without one" "empty: no tokenizer in it ($known)" data tokenizer show empty
echo '{"model":{"vocab":{"a":0' >cut.json
says "a file that ends early" "cut.json:2: the file ends too early (byte 25)" data tokenizer show cut.json
printf 'YQ== 0\n%%%%%% 1\n' >bad.tiktoken
says "ranks that are not base64" "bad.tiktoken:2: the token is not base64 of 1 to 768 bytes" data tokenizer \
    show bad.tiktoken
says "training without a size" "command line: --vocab is missing (for example --vocab 32768)" data tokenizer \
    train x --out y
says "training on nothing" "none.txt: no such file" data tokenizer train none.txt --vocab 300 --out y
head -c 100000 /dev/zero | tr '\0' '[' >deep.json; printf '{"model":' | cat - deep.json >bomb.json
says "a JSON bomb" "bomb.json:1: nested deeper than 64 (byte 73)" data tokenizer show bomb.json
awk 'BEGIN { printf "{\"model\":{\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":["
             for (i = 0; i < 8400000; i++) printf "\"a b\","
             print "\"a b\"]}}" }' >many.json
says "too many merges" "many.json: more than 8388608 merges" data tokenizer show many.json
rm -f many.json

cat "$here"/docs/*.md "$here"/README.md "$here"/src/base/*.c "$here"/src/text/*.c | head -c 300000 >own.txt
"$brim" data tokenizer train own.txt --vocab 2000 --out trained >out 2>err; rc=$?
[ $rc -eq 0 ] && grep -q '^trained/tokenizer.json: 2000 tokens, 1743 merges' out
verdict "train" $? "exit code $rc: $(cat out err)"
cp trained/tokenizer.json before.json
says "another tokenizer over one that is there" \
    "trained/tokenizer.json: is there already; name another folder, or remove it" \
    data tokenizer train own.txt --vocab 1000 --out trained
cmp -s before.json trained/tokenizer.json; verdict "and that one stays" $? "$(ls -l trained before.json)"
head -c 300000 "$brim" >binary
for how in "" --raw; do
    "$brim" data tokenizer encode trained binary $how >ids &&
        "$brim" data tokenizer decode trained ids $how >back && cmp -s binary back
    verdict "encode and decode any bytes ${how:-as text}" $? "$(ls -l binary back)"
done
echo 'a <|endoftext|>b' | "$brim" data tokenizer encode trained --literal | grep -qv '^[0-9]* 0 '
verdict "--literal takes special tokens as text" $? \
    "$(echo 'a <|endoftext|>b' | "$brim" data tokenizer encode trained --literal)"
"$brim" data tokenizer show trained --json | grep -q '"vocab": 2000.*"eos": 0'
verdict "show --json" $? "$("$brim" data tokenizer show trained --json)"
says "an id that does not exist" "trained/tokenizer.json: there is no token 2000 (0 to 1999)" data tokenizer \
    decode trained <(echo 1 2000)

# ---- against the reference ----
[ -n "$asan" ] && [ -z "$long" ] &&
    { echo "skip: the reference is compared in the plain build"; exit $failed; }
command -v node >/dev/null ||
    { echo "skip: node is not installed, nothing is compared with the reference tokenizer"; exit $failed; }
tok=${TOKENIZER_FILES:-$here/build/tokenizers}
"$here/tools/fetch_tokenizers.sh" "$tok" ${long:+--text} 2>err ||
    { echo "skip: real tokenizers could not be fetched: $(tr '\n' ' ' <err)"; exit $failed; }
export TOKENIZERS=$tok/reference
node -e 'require(process.env.TOKENIZERS)' 2>err ||
    { echo "skip: the reference tokenizer does not run here: $(grep -m1 Error err)"; exit $failed; }

if [ -n "$long" ]; then
    { head -c 12000000 "$tok/text/gcide.txt"; head -c 8000000 "$tok/text/wn.txt"; } |
        iconv -c -f utf-8 -t utf-8 >text
    adversarial=2000000; random=10000000; runs=200000
else
    # llama-tokenizer-js knows no special tokens, and trainers differ in them.
    sed 's/<|endoftext|>//g; s/<s>//g; s/<\/s>//g; s/<unk>//g' own.txt >text; adversarial=150000
    random=300000; runs=5000
fi
node "$reference" docs text text.docs 20000 && node "$reference" adversarial adversarial.docs $adversarial
node "$reference" runs runs.docs $runs
cat text.docs adversarial.docs runs.docs >all.docs
head -c $random /dev/urandom >random
node "$reference" llama "$tok/llama-js/llama-tokenizer.js" llama.json
cp "$tok/llama-js/llama-tokenizer.js" llama.mjs

compare() { # name, tokenizer.json: ids, then text
    node "$reference" both "$2" all.docs "$1.ref" "$1.text" &&
        "$verify" both "$2" all.docs "$1.own" "$1.back" &&
        cmp "$1.ref" "$1.own" && cmp "$1.text" "$1.back"
    echo $? >"$1.rc"
}
{
    for n in gemma "${files[@]/gemma/}"; do [ -n "$n" ] && echo "$n $tok/$n/models/tokenizer.json"; done
    echo "llama llama.json"; echo "trained trained/tokenizer.json"
} >jobs
work() { while read -r n f; do compare "$n" "$f" 2>"$n.err" >&2; done; }
awk 'NR % 2' jobs | work & awk 'NR % 2 == 0' jobs | work; wait $!
while read -r n _; do
    [ "$(cat "$n.rc")" = 0 ]
    verdict "$n: ids and text are the reference's" $? "$(tail -n 2 "$n.err")"
done <jobs

node "$reference" llamaEncode llama.mjs text.docs llama.js.ids &&
    "$verify" encode llama.json text.docs llama.own.ids && cmp -s llama.js.ids llama.own.ids
verdict "Llama: ids are llama-tokenizer-js's" $? "they differ"
for n in r50k ${long:+p50k} cl100k o200k; do
    node "$reference" plans "$tok/gpt-tokenizer/data/TestPlans.txt" ${n}_base plans.docs plans.ids &&
        [ -s plans.ids ] &&
        "$verify" encode "$tok/gpt-tokenizer/data/${n}_base.tiktoken" plans.docs plans.own &&
        cmp -s plans.ids plans.own
    verdict "$n ranks: ids are those of gpt-tokenizer's test plans" $? "they differ"
done
for pair in "$tok/gpt2-pair:gpt2" "$tok/gpt-tokenizer/data/r50k_base.tiktoken:gpt2" \
    "$tok/gpt-tokenizer/data/o200k_base.tiktoken:gpt4o"; do
    case " ${pairs[*]} " in *" ${pair##*:} "*) ;; *) continue ;; esac
    "$verify" encode "${pair%:*}" all.docs pair.own && cmp -s pair.own "${pair##*:}.own"
    verdict "$(basename "${pair%:*}") encodes as ${pair##*:}" $? "they differ"
done
for n in "${plain[@]}" trained; do
    f=$tok/$n/models; [ $n = trained ] && f=trained
    "$verify" round "$f" random >out 2>&1; verdict "$n gives back random bytes" $? "$(cat out)"
done

same_merges() { # two files: the merges of the first are the first merges of the second
    node -e 'const text = (m) => Array.isArray(m) ? m.join(" ") : m;
        const f = (p) => JSON.parse(require("fs").readFileSync(p)).model.merges.map(text);
        const [a, b] = process.argv.slice(1).map(f);
        process.exit(a.length > 100 && a.every((m, i) => m === b[i]) ? 0 : 1)' "$1" "$2"
}
for n in gpt2 ${long:+llama3}; do
    node "$reference" train text "ref.$n.json" "$tok/$n/models/tokenizer.json" >out 2>&1 &&
        "$brim" data tokenizer train text --pattern $n --vocab 30257 --out "own.$n" >out 2>&1 &&
        same_merges "ref.$n.json" "own.$n/tokenizer.json"
    verdict "training with $n's pattern: merges are the reference's" $? "$(tail -n 1 out)"
done

# ---- speed, by CPU time: the machine may be busy ----
[ -n "$long" ] || exit $failed
for n in gpt2 llama3 qwen3 deepseek_v3 gpt4o gemma; do
    f=$tok/$n/models/tokenizer.json
    ref=$(RAYON_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false node "$reference" bench "$f" text)
    own=$("$verify" bench "$f" text 1); many=$("$verify" bench "$f" text "$(nproc)")
    awk -v r="$ref" -v o="${own#* }" 'BEGIN { exit !(o >= 3 * r) }'
    verdict "$n: at least 3 times the reference's speed" $? "reference $ref MB/s, own $own"
    echo "# $n, MB/s by CPU time: reference $ref, own ${own#* };" \
        "by the clock: ${own% *}, $(nproc) threads ${many% *}"
done
# 30 s of two idle cores. On a busy machine all its CPU time within 30 s will do: the clock would say less.
head -c 40000000 "$tok/text/gcide.txt" >forty
TIMEFORMAT='%R %U'
took=$({ time "$brim" data tokenizer train forty --vocab 32768 --threads 2 --out forty.tok >out 2>err; } 2>&1)
[ -s forty.tok/tokenizer.json ] && awk '{ exit !($1 < 30 || $2 < 30) }' <<<"$took"
verdict "a vocabulary of 32768 from 40 MB in 30 s" $? "$took s: $(cat out err)"
echo "# a vocabulary of 32768 from 40 MB: $took s (clock, CPU)"
exit $failed
