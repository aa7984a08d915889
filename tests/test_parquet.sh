#!/usr/bin/env bash
# Parquet that other programs wrote (Rust's arrow, hyparquet-writer) against what they were given, in all
# encodings and codecs that they have. Then Parquet where Brim reads text: tokens, tokenizer, training and
# evaluation. PARQUET_LONG=1: DuckDB as well, and how fast each kind of file is read.
# shellcheck source=tests/shell_lib.sh
. "$(dirname "$0")/shell_lib.sh"
verify=$build/tests/verify_parquet
long=${PARQUET_LONG:-}
export BRIM_RUNS=$dir/runs

command -v node >/dev/null || { echo "skip: node is not installed: nothing here writes Parquet"; exit 0; }
packages=${PARQUET_FILES:-$here/build/parquet}
"$here/tools/fetch_parquet.sh" "$packages" ${long:+--all} 2>err ||
    { echo "skip: writers of Parquet could not be fetched: $(tr '\n' ' ' <err)"; exit 0; }

# ---- what other programs wrote ----
mkdir files
node "$here/tests/write_parquet.cjs" "$packages" files >err 2>&1
verdict "files are written" $? "$(tail -n 3 err)"
for writer in rust hyparquet ${long:+duckdb}; do
    n=0; bad=
    for f in files/"$writer"-*.parquet; do
        kind=$(cut -d- -f2 <<<"$f")
        "$verify" dump "$f" >docs 2>count && cmp -s docs "files/$kind.docs" &&
            cmp -s count "files/$kind.count" || bad="$f: $(cat count)"
        n=$((n + 1))
    done
    [ -z "$bad" ] && [ $n -ge 12 ]; verdict "$n files of $writer are what was written" $? "$bad"
done
for codec in brotli:BROTLI lz4:LZ4_RAW; do
    "$verify" dump "files/${codec%:*}.parquet" >docs 2>said; rc=$?
    [ $rc -eq 2 ] && says "packed by ${codec#*:}, which is not read \(uncompressed, snappy, gzip and zstd"
    verdict "${codec#*:} is refused by its name" $? "$(seen)"
done

# ---- as text ----
shakespeare=$here/recipes/data/tinyshakespeare.txt
mkdir plays words
node "$here/tests/write_parquet.cjs" "$packages" plays "$shakespeare" >err 2>&1 || cat err
mv plays/speed.txt plain.txt; mv plays/speed.jsonl lines.jsonl; mv plays/speed-snappy.parquet words/plays
rm plays/speed-{gzip,zstd}.parquet; mv plays/speed-uncompressed.parquet plays/a.parquet
brim data tokenizer train plays --vocab 600 --out tok
brim data tokenizer train lines.jsonl --vocab 600 --out tok2
[ $rc -eq 0 ] && cmp -s tok/tokenizer.json tok2/tokenizer.json
verdict "a tokenizer of a folder of Parquet is that of JSON lines" $? "$(seen)"
for what in words/plays plays lines.jsonl; do
    brim data tokens $what --tokenizer tok --out "set-${what%%[/.]*}" --val 0.1 --threads 2
    [ $rc -eq 0 ]; verdict "tokens of $what" $? "$(seen)"
done
for part in train val; do
    cmp -s set-words/$part/00000.bin set-lines/$part/00000.bin &&
        cmp -s set-plays/$part/00000.bin set-lines/$part/00000.bin
    verdict "the $part part is that of JSON lines" $? "$(ls -l set-*/$part 2>&1)"
done
brim data tokens files/rust-some-V2-PLAIN-SNAPPY.parquet --tokenizer tok --out set-nulls
[ $rc -eq 0 ] && says '^[0-9]{3} nulls left out'; verdict "nulls are counted" $? "$(seen)"
brim data tokens words/plays --tokenizer tok --out x --field body
[ $rc -eq 2 ] && says 'words/plays: there is no column "body" \(--field text would do\)' && [ ! -e x ]
verdict "a column that is not there" $? "$(seen)"
brim data tokens words/plays --tokenizer tok --out x --field id
[ $rc -eq 2 ] && says 'words/plays: the column "id" holds no text \(--field text would do\)'
verdict "a column of numbers" $? "$(seen)"
head -c 20000 words/plays >cut.parquet
brim data tokens cut.parquet --tokenizer tok --out x
[ $rc -eq 2 ] && says 'cut.parquet: no whole Parquet file: it does not end with PAR1' && [ ! -e x ]
verdict "half a file" $? "$(seen)"
timeout 60 "$brim" data tokens - --tokenizer tok --out x <words/plays >said 2>&1; rc=$?
[ $rc -eq 2 ] && says 'a Parquet file in a pipe, or packed once more'; verdict "a pipe" $? "$(seen)"

cat >small.yaml <<R
steps: 3
step_tokens: 128
device: cpu
threads: 1
model: {context: 32, vocab: 600, layers: 1, width: 16, heads: 2}
data: {kind: text, train: $dir/words/plays, tokenizer: $dir/tok}
eval: {every: 0}
checkpoint: {every: 3}
R
brim train small.yaml run=a; [ $rc -eq 0 ]; verdict "a run on Parquet" $? "$(seen)"
brim train small.yaml run=b data.train="$dir/lines.jsonl"
[ -s runs/a/metrics.jsonl ] && [ -n "$(last a loss)" ] && [ "$(last a loss)" = "$(last b loss)" ]
verdict "has the losses of JSON lines" $? "$(last a loss) $(last b loss)"
brim train small.yaml run=c; [ $rc -eq 0 ] && ! says 'text becomes tokens'
verdict "the next start finds the tokens" $? "$(seen)"
brim eval a data.val="$dir/plays/a.parquet"; cp said parquet.said
brim eval a data.val="$dir/lines.jsonl"
[ $rc -eq 0 ] && [ -n "$(grep -oE 'validation loss [0-9.]*' said)" ] &&
    [ "$(grep -oE 'validation loss [0-9.]*' said)" = \
        "$(grep -oE 'validation loss [0-9.]*' parquet.said)" ]
verdict "brim eval on Parquet" $? "$(seen) $(cat parquet.said)"
brim train small.yaml run=d data.field=body
[ $rc -eq 2 ] && says 'there is no column "body" \(data.field=text would do\)'
verdict "a run with a column that is not there" $? "$(seen)"
brim train small.yaml run=e data.tokenizer= model.vocab=256
[ $rc -eq 2 ] && says 'words/plays: is a Parquet file, whose text needs data.tokenizer'
verdict "the bytes of a Parquet file are no text" $? "$(seen)"

# ---- how fast ----
if [ -n "$long" ]; then
    for f in lines.jsonl plain.txt plays/a.parquet words/plays; do echo "# $f: $("$verify" speed $f)"; done
fi
exit $failed
