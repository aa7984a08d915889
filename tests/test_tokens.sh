#!/usr/bin/env bash
# From text to a trained model: brim data tokens, inspect and verify, training on a set and on text with a
# tokenizer, packed documents, bits per byte, killed and resumed runs of 1, 2 and 4 ranks, a set of 100 GB.
# shellcheck source=tests/shell_lib.sh
. "$(dirname "$0")/shell_lib.sh"
verify=$build/tests/verify_tokens
export BRIM_RUNS=$dir/runs
unset RANK WORLD_SIZE LOCAL_RANK

says() { # name, a part of the line on stderr, then arguments
    local name=$1 line=$2
    shift 2
    timeout 60 "$brim" "$@" >out 2>err </dev/null; rc=$?
    [ $rc -eq 2 ] && grep -qF -- "$line" err && [ "$(grep -vc warning err)" -eq 1 ]
    verdict "$name" $? "exit code $rc: $(cat out err)"
}

# ---- text to shards ----
shakespeare=$here/recipes/data/tinyshakespeare.txt
"$brim" data tokenizer train "$shakespeare" --vocab 1000 --out tok >out 2>&1 || cat out
mkdir -p text/more
head -c 300000 "$shakespeare" >most.txt; split -n l/12 most.txt text/part-
gzip -c text/part-aa >text/more/packed.gz
awk 'NR <= 400 && length > 3 { gsub(/["\\]/, ""); print "{\"id\": " NR ", \"body\": \"" $0 "\"}" }' \
    "$shakespeare" >text/lines.jsonl
gzip -c "$shakespeare" | "$brim" data tokenizer train - --vocab 1000 --out tok2 >out 2>&1 &&
    cmp -s tok/tokenizer.json tok2/tokenizer.json && [ "$(ls tok2 | wc -l)" -eq 2 ]
verdict "a tokenizer from packed text is that of the file" $? "$(cat out)"
"$brim" data tokens text --tokenizer tok --out set --field body --val 0.2 >out 2>err; rc=$?
[ $rc -eq 0 ] && [ -s set/train/00000.bin ] && [ -s set/val/00000.bin ] && [ -s set/tokenizer.json ] &&
    grep -q '14 files in' out
verdict "a folder of text, JSON lines and gzip" $? "exit code $rc: $(cat out err)"

mkdir manyjson
for i in 1 2 3 4 5; do echo "{\"a\": $i}" >manyjson/$i.json; done
"$brim" data tokens manyjson --tokenizer tok --out manyjson-shards >out 2>err
[ $? -eq 0 ] && [ "$(cat out err | grep -c 'plain text')" -eq 1 ] &&
    cat out err | grep -q 'json/1.json and 4 other \*.json: read as plain text: JSON lines have the name'
verdict "many JSON files that are no JSON lines: one warning" $? "$(cat out err)"
"$brim" data tokens - --tokenizer tok --out piped --split '\n\n' --shard 2000 <text/part-ab >out 2>err
rc=$?
[ $rc -eq 0 ] && [ -s piped/train/00002.bin ]
verdict "standard input, cut at blank lines, several shards" $? "exit code $rc: $(cat out err)"
"$brim" data inspect set --json >out 2>err &&
    grep -q '"text_bytes": [0-9]*, "begin_token": -1, "end_token": 0' out
verdict "inspect --json" $? "$(cat out err)"
"$brim" data verify set piped >out 2>err && [ "$(grep -c ': sound$' out)" -ge 5 ]
verdict "verify" $? "$(cat out err)"
says "a folder that has tokens" "set/train: is there already; name another folder, or remove it" data tokens \
    text --tokenizer tok --out set
says "a field that is not there" \
    'text/lines.jsonl:1: there is no text in the field "text" (--field body would do)' data tokens text \
    --tokenizer tok --out x
says "text that is not there" "none: no such file or folder" data tokens none --tokenizer tok --out x
head -c 1000 text/more/packed.gz >cut.gz
says "packed text that is cut" "cut.gz: damaged gzip data before byte 1000: it ends too early" data tokens \
    cut.gz --tokenizer tok --out x
[ ! -e x ]; verdict "refused text leaves no folder" $? "$(ls -A x 2>&1)"
bad=""
for i in 1 2 3 4 5 6; do # hashes choose about half of them for validation
    echo "text $i" >single.txt; rm -rf single
    "$brim" data tokens single.txt --tokenizer tok --out single --val 0.5 >out 2>err &&
        "$brim" data verify single >out 2>&1 && [ -s single/train/00000.bin ] && [ ! -e single/val ] &&
        grep -q 'no validation part' err || bad="$i: $(cat out err)"
done
[ -z "$bad" ]; verdict "a single document is for training, whatever its hash" $? "$bad"
printf '\xef\xbb\xbf{"text": "one"}\r\n{"text": "two"}\r\n' >marked.jsonl
"$brim" data tokens marked.jsonl --tokenizer tok --out marked --val 0 >out 2>err && grep -q '2 documents' out
verdict "JSON lines with a byte order mark" $? "$(cat out err)"
mkdir -p loop/a; echo one >loop/one.txt; echo two >loop/a/two.txt
ln -s . loop/here; ln -s . loop/again; ln -s .. loop/a/up
timeout 20 "$brim" data tokens loop --tokenizer tok --out looped --val 0 >out 2>err; rc=$?
[ $rc -eq 0 ] && grep -q '^2 files in' out && [ "$(grep -c 'a link to a folder that it lies in' err)" -eq 3 ]
verdict "links back to a folder make no text twice" $? "exit code $rc: $(cat out err)"
touch file
says "a file for the result" "file: is not a folder: name another one" data tokens text --tokenizer tok \
    --out file --field body
says "a folder that cannot be" "/proc/x" data tokens text --tokenizer tok --out /proc/x --field body
dead=$(sh -c 'echo $$')
mkdir -p "swept/.tmp-tokens-$dead/train" "swept/.tmp-tokens-$$"
"$brim" data tokens text/part-aa --tokenizer tok --out swept >out 2>&1 &&
    [ ! -e "swept/.tmp-tokens-$dead" ] && [ -e "swept/.tmp-tokens-$$" ]
verdict "what a killed command left is removed, what another one writes is not" $? "$(cat out; ls -A swept)"
cp set/train/00000.bin bad.bin; printf '\377\003' | dd of=bad.bin bs=1 seek=900 conv=notrunc 2>/dev/null
says "a damaged shard" "bad.bin: damaged" data verify bad.bin
head -c 5000 set/train/00000.bin >short.bin
says "a shard that is cut" "short.bin: truncated" data verify short.bin
tail -c +65 piped/train/00000.bin | head -c 3000 >plain.bin
says "a shard that is not there" "none.bin: no such file" data inspect none.bin
says "ids without a header" "plain.bin: not a token shard" data inspect plain.bin
"$brim" data inspect plain.bin --raw | grep -q 'plain.bin: uint16, '; verdict "inspect --raw" $? "nothing"

# Texts of which nothing is a token, by a tokenizer that puts nothing around a text.
cat >bare.json <<'END'
{"added_tokens": [], "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": null,
 "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]}}
END
printf 'ccc|abab|ddd|aab|ccc' >strange.txt
"$brim" data tokens strange.txt --tokenizer bare.json --document-token none --split '|' --out strange \
    >out 2>err; rc=$?
[ $rc -eq 0 ] && "$brim" data inspect strange --json | grep -q '"documents": 2, ' &&
    "$brim" data verify strange >>out
verdict "a text without tokens is no document" $? "exit code $rc: $(cat out err)"
echo ccc >nothing.txt
says "texts without any token" "nothing.txt: there is no text" \
    data tokens nothing.txt --tokenizer bare.json --document-token none --out nothing
[ ! -e nothing ]; verdict "and leave nothing" $? "there is a folder"

# Each call fails in turn: exit code 1 or 2 with a message, and nothing is left; or the set is whole.
mkdir few; cp text/part-aa text/more/packed.gz few/
bad="" hits=0
for op in malloc open read write fsync rename thread; do
    case $op in fsync | rename) some=$(seq 80) ;; *) some="1 2 3 4 5 7 9 12 16" ;; esac # 80: all of them
    for n in $some; do
        rm -rf broken
        BRIM_FAULT=$op:$n timeout 60 "$brim" data tokens few --tokenizer tok --out broken --val 0.5 \
            --split '\n\n' --shard 3000 >out 2>err; rc=$?
        grep -q "BRIM_FAULT: $op $n fails" err || break
        hits=$((hits + 1))
        case $rc in
            0) "$brim" data verify broken >out 2>&1 || bad="$op:$n: $(cat out)" ;;
            1 | 2) [ "$(grep -vc BRIM_FAULT err)" -ge 1 ] && [ ! -e broken ] ||
                bad="$op:$n: exit code $rc: $(cat err; ls -A broken)" ;;
            *) bad="$op:$n: exit code $rc: $(tail -n 5 err)" ;;
        esac
    done
done
[ -z "$bad" ] && [ $hits -ge 20 ]; verdict "$hits failures of data tokens leave nothing" $? "$bad"

# ---- training ----
cat >tiny.yaml <<END
steps: 24
step_tokens: 512
device: cpu
threads: 1
model: {layers: 1, width: 16, heads: 2, vocab: 1000, context: 32, mask: document}
data: {kind: tokens, train: set, pack: best_fit}
eval: {every: 12, sequences: 100000}
checkpoint: {every: 8}
watch: {sample: false, report: false}
END
train() { # name, then overrides
    local name=$1
    shift
    timeout -k 5 60 "$brim" train tiny.yaml "run=$name" "$@" >"$name.log" 2>&1 </dev/null
}
of() { sed -n "s/.*\"step\": $3,.*\"$2\": \([0-9.e-]*\).*/\1/p" "runs/$1/metrics.jsonl" | tail -n 1; }

train packed; rc=$?
[ $rc -eq 0 ] && grep -q 'documents are packed into .* windows of 32, 9[0-9.]* % full' packed.log &&
    grep -q 'can feed .* tokens/s, the CPU takes' packed.log
verdict "a set trains, packed" $? "exit code $rc: $(tail -n 3 packed.log)"
# All tokens of the validation part are targets, and its text is known: the end tokens have none.
text=$("$brim" data inspect set/val --json | sed 's/.*"text_bytes": \([0-9]*\).*/\1/')
ids=$("$brim" data inspect set/val --json | sed 's/.*"tokens": \([0-9]*\).*/\1/')
awk -v l="$(of packed val_loss 24)" -v b="$(of packed val_bits_per_byte 24)" -v n="$ids" -v t="$text" \
    'BEGIN { want = l * n / log(2) / t; exit !(b > 0 && (b - want) ^ 2 < 1e-10 * want ^ 2) }'
verdict "bits per byte count the text" $? "$(tail -n 1 runs/packed/metrics.jsonl), $ids tokens, $text bytes"

train fromtext data.kind=text data.train=text data.tokenizer=tok data.pack=concat steps=4 \
    data.val_fraction=0.2 model.mask=causal; rc=$?
says_field=$(grep -c 'there is no text in the field' fromtext.log)
rm text/lines.jsonl
train fromtext data.kind=text data.train=text data.tokenizer=tok steps=4 data.val_fraction=0.2; rc2=$?
train again data.kind=text data.train=text data.tokenizer=tok steps=4 data.val_fraction=0.2; rc3=$?
[ $rc -eq 2 ] && [ "$says_field" -eq 1 ] && [ $rc2 -eq 0 ] && [ $rc3 -eq 0 ] &&
    grep -q 'text becomes tokens in ' fromtext.log && ! grep -q 'text becomes tokens in ' again.log &&
    cmp -s <(cut -d, -f1-4 runs/fromtext/metrics.jsonl) <(cut -d, -f1-4 runs/again/metrics.jsonl)
verdict "text with a tokenizer becomes tokens once" $? "$rc $rc2 $rc3: $(tail -n 2 fromtext.log again.log)"
mkdir elsewhere
(cd elsewhere && timeout 60 "$brim" train ../tiny.yaml run=moved data.kind=text data.train=../text steps=1 \
    data.tokenizer=../tok data.val_fraction=0.2 >../moved.log 2>&1 </dev/null) &&
    ! grep -q 'text becomes tokens in ' moved.log
verdict "the same text by another path is known" $? "$(tail -n 2 moved.log)"
for lock in runs/.tokens/*.lock; do ln -sf nowhere "$lock" && rm -rf "${lock%.lock}"; done
train locked data.kind=text data.train=text data.tokenizer=tok steps=1 data.val_fraction=0.2; rc=$?
[ $rc -eq 1 ] && tail -n 1 locked.log | grep -q '\.lock is a symbolic link' &&
    ! grep -q 'lock: .*lock' locked.log
verdict "a link in place of a lock" $? "exit code $rc: $(tail -n 2 locked.log)"
rm -r runs/.tokens
small="model.layers=1 model.width=16 model.heads=2 model.context=32 model.vocab=1000 step_tokens=512"
for recipe in leaderboard leaderboard-before; do
    # shellcheck disable=SC2086
    timeout 60 "$brim" train "$recipe" device=cpu threads=1 data.kind=text data.train=text \
        data.tokenizer=tok budget_s=50 steps=3 eval.sequences=4 $small >out 2>&1 </dev/null &&
        [ -n "$(of $recipe val_bits_per_byte 3)" ]
    verdict "$recipe takes text and a tokenizer" $? "$(tail -n 2 out)"
done
echo 'one more text, which was not there before' >text/new
train changed data.kind=text data.train=text data.tokenizer=tok steps=1 data.val_fraction=0.2 &&
    grep -q 'text becomes tokens in ' changed.log
verdict "changed text becomes tokens again" $? "$(tail -n 2 changed.log)"
timeout 60 "$brim" train tiny.yaml run=small model.vocab=999 >out 2>err </dev/null; rc=$?
[ $rc -eq 2 ] && grep -q 'made for a vocabulary of 1000, but model.vocab is 999: 1000 or more would do' err
verdict "a vocabulary that is too small" $? "exit code $rc: $(tail -n 1 err)"
train wide model.vocab=1300 steps=1
grep -q 'model.vocab is 1300, but the tokens of .* are of 1000: 300 rows are never trained' wide.log
verdict "a vocabulary that is too large is said" $? "$(tail -n 2 wide.log)"
train plain data.kind=uint16 data.train=plain.bin data.pack=concat data.document_token=0 steps=2; rc=$?
[ $rc -eq 0 ] && [ -n "$(of plain val_loss 2)" ]; verdict "uint16 ids train" $? "$rc: $(tail -n 1 plain.log)"

# ---- killed and resumed ----
ranks() { # world, name, seconds to the kill (or none), then overrides
    local world=$1 name=$2 kill=$3 port=$((20000 + RANDOM % 12000)) r pids=()
    shift 3
    for ((r = 0; r < world; r++)); do
        if [ "$world" -eq 1 ]; then unset RANK; else
            export RANK=$r WORLD_SIZE=$world LOCAL_RANK=$r MASTER_ADDR=127.0.0.1 MASTER_PORT=$port
        fi
        "$brim" train tiny.yaml "run=$name" checkpoint.every=1 checkpoint.keep=3 eval.every=0 micro_batch=2 \
            deterministic=true "$@" >>"$name.$r.log" 2>&1 </dev/null &
        pids+=($!)
    done
    unset RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT
    [ -z "$kill" ] || { sleep "$kill"; kill -9 "${pids[@]}"; }
    wait "${pids[@]}"
} 2>/dev/null
losses() {
    sed -n 's/.*"step": \([0-9]*\), "loss": \([^,]*\), .*"grad_norm": \([^,]*\),.*/\1 \2 \3/p' \
        "runs/$1/metrics.jsonl"
}
worlds="1 2 4"; case $build in *-asan) worlds=2 ;; esac # which is slow
for world in $worlds; do
    for pack in best_fit concat; do
        [ $world -eq 4 ] && [ $pack = concat ] && continue
        ranks $world "whole$world$pack" "" data.pack=$pack
        for ((try = 0; try < 12; try++)); do
            ranks $world "cut$world$pack" "0.$((RANDOM % 5 + 2))" data.pack=$pack
            [ "$(losses "cut$world$pack" 2>/dev/null | wc -l)" -ge 12 ] && break
        done
        ranks $world "cut$world$pack" "" data.pack=$pack
        [ "$(losses "whole$world$pack" | wc -l)" -eq 24 ] &&
            [ "$(losses "whole$world$pack")" = "$(losses "cut$world$pack")" ]
        verdict "$world rank(s), $pack: kill -9 and resume give the same steps bit for bit" $? \
            "$(losses "whole$world$pack" | wc -l) and $(losses "cut$world$pack" | wc -l) steps, \
$(tail -n 1 "cut$world$pack.0.log")"
    done
done

# ---- larger than memory ----
"$verify" sparse huge.bin 50000000000 100000
for pack in concat best_fit; do
    "$verify" feed 1 tiny.yaml data.train=huge.bin data.pack=$pack data.val_fraction=0 model.vocab=50257 \
        model.context=1024 step_tokens=1048576 >out 2>err; rc=$?
    read -r rate threads rss <out
    [ $rc -eq 0 ] && [ "$rss" -lt 1000 ]
    verdict "100 GB in less than 1 GB of memory, $pack" $? "exit code $rc: $(cat out err)"
    echo "# 100 GB, $pack: $rate M tokens/s, $threads thread(s), $rss MB resident"
done
exit $failed
