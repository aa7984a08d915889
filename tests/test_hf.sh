#!/usr/bin/env bash
# Hugging Face folders: seven models that transformers saved (tests/golden/hf.tar.xz), with the logits and the
# greedy samples that transformers computed from them in fp32; exports; refusals; continuing to train.
# shellcheck source=tests/hf_lib.sh
. "$(dirname "$0")/hf_lib.sh"
hf_golden hf

# ---- as transformers computes ------------------------------------------------------------------------------

for m in gpt2 llama llama31 llama-linear mistral qwen2 qwen3; do as_reference "$m" 200; done
grep -qx 'step_tokens: 65536' runs/llama/recipe.yaml
verdict "a step of an imported run is one of fine-tuning" $? "$(grep step_tokens runs/llama/recipe.yaml)"
"$brim" sample llama "${cpu[@]}" --prompt-ids 1,2,3 --tokens 40 --rate >said 2>&1
tail -n 1 said | grep -qE '^40 new tokens in .* tokens/s$'
verdict "the rate stands behind the text" $? "$(cat said)"
# Several files: the same tensors, an index that an import reads, and no mixture with an earlier export.
brim export gpt2 x-parts --shard 30K
n=$(ls x-parts/model-*-of-*.safetensors | wc -l)
[ "$rc" -eq 0 ] && [ "$n" -ge 3 ] && [ -s "x-parts/model-0000$n-of-0000$n.safetensors" ] &&
    "$verify" same gpt2 x-parts >cmp.txt 2>&1
verdict "an export in $n files has the tensors of x" $? "$(seen) $(cat cmp.txt)"
brim import x-parts run=parts && brim export parts x-whole && "$verify" same gpt2 x-whole >cmp.txt 2>&1
verdict "and is imported again" $? "$(seen) $(cat cmp.txt)"
refused "one file beside those of another export" "has other weights already (model-00001" export gpt2 x-parts
refused "several files beside one" "has other weights already (model.safetensors)" export gpt2 x-gpt2 \
    --shard 30K
mkdir tok && echo '{}' >tok/tokenizer.json && mkdir set && echo '{}' >set/tokens.json
refused "a folder with a tokenizer" "tok: is no earlier export (it has tokenizer.json, but no weights)" \
    export gpt2 tok
refused "a folder of shards" "it has tokens.json, but no weights" export gpt2 set
[ "$(cat tok/tokenizer.json)" = '{}' ] && [ "$(ls tok set | wc -l)" -eq 5 ]
verdict "neither was touched" $? "$(ls tok set)"
refused "a size that is none" "--shard: 'many' is not a size" export gpt2 x-no --shard many
brim export gpt2 x-parts --shard 30K
verdict "the same export again" "$rc" "$(seen)"
# The folder's own type: no f32 copy, no moments.
size=$(stat -c %s runs/llama/checkpoints/step-00000000/model.safetensors)
theirs=$(stat -c %s llama/model.safetensors)
moments=$(stat -c %s runs/llama/checkpoints/step-00000000/optim.safetensors)
[ "$size" -lt $((theirs + 4096)) ] && [ "$moments" -lt 64 ]
verdict "an import keeps the type and has no moments" $? "$size bytes, theirs $theirs"

# ---- batches -----------------------------------------------------------------------------------------------

ids=$(cat llama31/ids.txt)
for n in 1 5 40 17; do cut -d' ' -f1-$n <<<"$ids"; done >prompts.txt
while read -r line; do
    "$brim" sample llama31 "${cpu[@]}" --prompt-ids "$line" --tokens 30 --temperature 0 --ids | tail -n 1
done <prompts.txt >one.txt 2>/dev/null
"$brim" sample llama31 "${cpu[@]}" --prompt-file prompts.txt --tokens 30 --temperature 0 --ids 2>/dev/null |
    tail -n 4 >batch.txt
cmp -s one.txt batch.txt
verdict "prompts of several lengths at once" $? "$(diff one.txt batch.txt | head -n 4)"
"$brim" sample llama31 "${cpu[@]}" --prompt-file prompts.txt --batch 3 --tokens 30 --temperature 0 --ids \
    2>/dev/null | tail -n 4 >batch.txt
cmp -s one.txt batch.txt
verdict "more prompts than rows" $? "$(diff one.txt batch.txt | head -n 4)"

# ---- what ends a sample, and what is drawn -----------------------------------------------------------------

first=$(head -n 1 one.txt) # what follows one token
third=$(cut -d' ' -f3 <<<"$first")
new() {
    "$brim" sample llama31 "${cpu[@]}" --prompt-ids "$(head -n 1 prompts.txt)" --ids "$@" 2>said | tail -n 1
}
got=$(new --tokens 30 --temperature 0 "sample.eos=[$third]")
want=$(awk -v e="$third" '{ for (i = 1; i <= NF; i++) {
    printf "%s%s", (i > 1 ? " " : ""), $i; if ($i == e) exit } }' <<<"$first")
[ "$got" = "$want" ]; verdict "an end-of-text id ends a sample" $? "$got, not $want"
got=$(new --tokens 30 --temperature 0 --ignore-eos "sample.eos=[$third]")
[ "$got" = "$first" ]; verdict "--ignore-eos" $? "$got"
got=$(new --tokens 30 --temperature 1 --top-k 1)
[ "$got" = "$first" ]; verdict "--top-k 1 is greedy" $? "$got"
got=$(new --tokens 30 --temperature 1 --top-p 0.001)
[ "$got" = "$first" ]; verdict "a small --top-p is greedy" $? "$got"
a=$(new --tokens 30 --temperature 1 --seed 5) b=$(new --tokens 30 --temperature 1 --seed 5)
c=$(new --tokens 30 --temperature 1 --seed 6)
[ "$a" = "$b" ] && [ "$a" != "$c" ]; verdict "the seed decides" $? "$a / $c"
got=$(new --tokens 40 --temperature 0 --repetition-penalty 50)
[ "$(tr ' ' '\n' <<<"$got" | sort | uniq -d | wc -l)" -eq 0 ]
verdict "a repetition penalty of 50 repeats nothing" $? "$got"

# ---- text through a tokenizer ------------------------------------------------------------------------------

head -c 60000 "$here/recipes/data/tinyshakespeare.txt" >text.txt
rm -r tok; brim data tokenizer train text.txt --vocab 300 --out tok
cat >tiny.yaml <<END
steps: 8
step_tokens: 512
device: cpu
threads: 1
model: {layers: 2, width: 32, heads: 4, vocab: 320, context: 64, norm: rmsnorm, pos: rope, act: swiglu}
optim: {lr: 3e-3}
data: {kind: text, train: text.txt, tokenizer: tok}
eval: {every: 0, sequences: 8}
watch: {report: false}
END
brim train tiny.yaml
verdict "a model of a tokenizer's tokens trains" "$rc" "$(seen)"
"$brim" sample tiny --prompt "What is" --tokens 60 --temperature 0 2>/dev/null >plain.txt
head -c 7 plain.txt | grep -q "What is"; verdict "text in, text out" $? "$(head -c 80 plain.txt)"
stop=$(tail -c +12 plain.txt | head -c 2)
"$brim" sample tiny --prompt "What is" --tokens 60 --temperature 0 --stop "$stop" 2>/dev/null >stopped.txt
text=$(cat plain.txt) part=$(cat stopped.txt); rest=${text#What is}
[ "$part" = "What is${rest%%"$stop"*}" ]
verdict "a stop text ends a sample" $? "'$part' of '$text' at '$stop'"
brim export tiny x-tiny --dtype bfloat16
[ "$rc" -eq 0 ] && [ -s x-tiny/tokenizer.json ] && grep -q '"bfloat16"' x-tiny/config.json
verdict "export with tokenizer, as bfloat16" $? "$(seen)"
brim export tiny x-short --dtype bf16
[ "$rc" -eq 0 ] && "$verify" same x-tiny x-short >cmp.txt && cmp -s x-tiny/config.json x-short/config.json
verdict "export takes a type as precision spells it" $? "$(seen) $(cat cmp.txt)"
brim export tiny x-wide
sed -i 's/"float32"/"bfloat16"/' x-wide/config.json; echo '{{ x }}' >x-wide/chat_template.jinja
brim import x-wide run=wide && brim export wide x-wide-again
[ "$rc" -eq 0 ] && "$verify" same x-wide x-wide-again >cmp.txt &&
    grep -q '"float32"' x-wide-again/config.json &&
    cmp -s x-wide/chat_template.jinja x-wide-again/chat_template.jinja
verdict "an export has the types of the imported files, whatever config.json says, and the chat template" $? \
    "$(seen) $(cat cmp.txt)"
brim train wide "${cpu[@]}" data.kind=text data.train=text.txt steps=1 step_tokens=64 eval.every=0 &&
    brim export wide x-wide-on
[ "$rc" -eq 0 ] && grep -q float32 said; verdict "also after training" $? "$(seen)"

# A squared ReLU is Arcee's, the exact GELU one of GPT-2's.
round_trip() { # name, what config.json says, overrides ...
    brim train tiny.yaml "run=$1" steps=2 "${@:3}" && brim export "$1" "x-$1" &&
        brim import "x-$1" "run=$1-again" && brim export "$1-again" "x-$1-again"
    for run in "$1" "$1-again"; do
        [ "$rc" -eq 0 ] && brim eval "$run" "${cpu[@]}" precision=fp32 --ids few.txt && cp said "$run.said"
    done
    [ "$rc" -eq 0 ] && grep -q "$2" "x-$1/config.json" && cmp -s "$1.said" "$1-again.said" &&
        "$verify" same "x-$1" "x-$1-again" >cmp.txt
    verdict "$1: a run is exported and imported again" $? "$(seen) $(cat "x-$1/config.json")"
}
cut -d' ' -f1-60 llama/ids.txt >few.txt
round_trip arcee '"ArceeForCausalLM".*"hidden_act": "relu2"' model.act=relu2
grep -aq 'layers.0.mlp.up_proj.weight' x-arcee/model.safetensors &&
    ! grep -aq gate_proj x-arcee/model.safetensors
verdict "an Arcee model has no gate" $? ""
round_trip exact '"gpt2".*"activation_function": "gelu"' model.act=gelu_erf model.norm=layernorm \
    model.pos=learned
brim train tiny.yaml run=mixed steps=1 model.norm=layernorm model.pos=learned
refused "a gate beside LayerNorm" "model.act: no Hugging Face model that Brim writes has this activation" \
    export mixed x-mixed

# ---- what ends a document, and whose tokens they are -------------------------------------------------------

ids_of() { "$brim" sample "$@" --ids 2>said | tail -n 1; } # run, options
brim data tokenizer train text.txt --vocab 300 --special '<doc>,<|endoftext|>' --out doctok
brim data tokens text.txt --tokenizer doctok --document-token '<doc>' --split '\n' --out docset
doc=(data.kind=tokens data.train=docset data.tokenizer= steps=100 optim.lr=1e-2)
brim train tiny.yaml run=doc "${doc[@]}"
[ "$rc" -eq 0 ] && grep -q 'document_token: 0$' runs/doc/recipe.yaml &&
    grep -q 'tokenizer: .*/docset/tokenizer.json' runs/doc/recipe.yaml
verdict "a run keeps the document token and the tokenizer of its shards" $? "$(seen)"
got=$(ids_of doc --prompt "The" --tokens 300)
[ "${got##* }" = 0 ] && [ "$(tr ' ' '\n' <<<"$got" | grep -cx 0)" -eq 1 ]
verdict "the shards' document token ends a sample" $? "$got"
sed -i 's/document_token: 0$/document_token: -1/' runs/doc/recipe.yaml # as an earlier version left it
[ "$(ids_of doc --prompt "The" --tokens 300)" = "$got" ] && brim train tiny.yaml run=doc "${doc[@]}" steps=101
verdict "a run of an earlier version finds it, and goes on" "$rc" "$(seen)"
drawn() { # prompt, override
    ids_of masked --prompt-ids "$1" --temperature 1 --seed 3 --ignore-eos --tokens 30 "${@:2}"
}
for i in 1 2; do # masked: what a sample sees does not depend on who names the token
    [ $i -eq 2 ] && sed -i 's/document_token: 0$/document_token: -1/' runs/masked/recipe.yaml
    [ $i -eq 1 ] && brim train tiny.yaml run=masked "${doc[@]}" model.mask=document
    drawn "70 71 72 0 80 81" >masked.$i
done
drawn "80 81" >masked.3
drawn "70 71 72 0 80 81" data.document_token=299 >masked.4
[ "$rc" -eq 0 ] && cmp -s masked.1 masked.2 && cmp -s masked.1 masked.3 && ! cmp -s masked.1 masked.4
verdict "a masked sample sees its own document" $? "$(seen) $(cat masked.*)"
brim export doc x-doc
[ "$rc" -eq 0 ] && grep -q '"eos_token_id": 0[,}]' x-doc/config.json && cmp -s docset/tokenizer.json \
    x-doc/tokenizer.json && grep -q '"eos_token_id": 0[,}]' x-doc/generation_config.json &&
    grep -q '"eos_token": "<doc>"' x-doc/tokenizer_config.json
verdict "an export says what ends a text" $? "$(seen) $(cat x-doc/*config.json)"
"$brim" data tokenizer show x-doc --json | grep -q '"eos": 0'
verdict "and its tokenizer, too" $? "$("$brim" data tokenizer show x-doc --json)"
mkdir pair
sed -n '/"vocab": {/,/^ *}/p' tok/tokenizer.json | sed '1s/.*/{/; $s/.*/}/' >pair/vocab.json
sed -n 's/^ *\["\(.*\)", "\(.*\)"\],*$/\1 \2/p' tok/tokenizer.json | sed 's/\\\(.\)/\1/g' >pair/merges.txt
brim train tiny.yaml run=pair data.tokenizer=pair steps=1 && brim export pair x-pair
[ "$rc" -eq 0 ] && cmp -s <("$brim" data tokenizer encode x-pair text.txt) \
    <("$brim" data tokenizer encode pair text.txt)
verdict "an export of vocab.json and merges.txt has a tokenizer.json" $? "$(seen) $(ls x-pair)"

text=(data.kind=text data.train=text.txt data.tokenizer=)
brim train tiny.yaml run=go init=x-doc "${text[@]}" steps=1
[ "$rc" -eq 0 ] && grep -q 'tokenizer: .*/x-doc"*$' runs/go/recipe.yaml && awk '/step 0: validation loss/ {
    sub(/.*loss /, ""); low = $1 < 5 } END { exit !low }' said
verdict "init brings its tokenizer for text" $? "$(seen)"
brim eval doc "${cpu[@]}" data.kind=text data.train=text.txt && grep -qE ' [0-5]\.[0-9]* bits per byte' said
verdict "a run brings its tokenizer for text" $? "$(seen)"
cp -r x-doc x-bare; rm x-bare/tokenizer*
refused "text for a model of tokens" \
    "data.tokenizer: is missing: text without one is bytes, but model.vocab is 320, not 256" \
    train tiny.yaml run=no init=x-bare "${text[@]}"
brim import x-bare run=bare
refused "text for a run of tokens" "data.tokenizer: is missing: text" eval bare "${cpu[@]}" "${text[@]}"
refused "shards of another tokenizer" \
    "data.tokenizer: tok did not make the tokens of docset; this one did: docset/tokenizer.json" \
    train tiny.yaml run=no "${doc[@]}" data.tokenizer=tok
cp -r doctok copied; rm copied/tokenizer_config.json
brim train tiny.yaml run=copied "${doc[@]}" data.tokenizer=copied steps=1
verdict "the tokenizer of the shards by another path" "$rc" "$(seen)"

# ---- what is asked for in a wrong or unusual way -----------------------------------------------------------

refused "an id that is none" "--prompt-ids: '9999' is not a token id from 0 to 319" sample tiny \
    --prompt-ids 3,9999
refused "a prompt file that is none" "--prompt-file: /dev/null: is not a regular file" sample tiny \
    --prompt-file /dev/null
echo 5 >one.txt
refused "one id has no loss" "one.txt: one id has no next one to predict" eval tiny --ids one.txt
refused "logits into no folder" "--logits: nowhere: no such folder" eval tiny --ids few.txt \
    --logits nowhere/x.npy
brim eval tiny "${cpu[@]}" --ids few.txt --json &&
    grep -q '^{"loss": [0-9.]*, "perplexity": .*"targets": 59' said
verdict "a loss of ids as JSON" $? "$(seen)"
brim eval tiny "${cpu[@]}" && [ "$(grep -c 'tokens checked' said)" -eq 1 ]
verdict "an evaluation opens its data once" $? "$(seen)"
a=$(ids_of tiny --prompt "The" --temperature 0 --tokens 20)
b=$(ids_of tiny --prompt "The" --top-p 0 --tokens 20)
[ -n "$a" ] && [ "$a" = "$b" ]; verdict "--top-p 0 takes the most likely" $? "$a / $b"
printf 'The\r\n\r\nWhat\r\n' >crlf.txt; printf 'The\nWhat\n' >lf.txt
for f in crlf lf; do
    "$brim" sample tiny --prompt-file $f.txt --temperature 0 --tokens 9 --ids 2>$f.err | tail -n 2 >$f.out
done
cmp -s crlf.out lf.out && grep -q 'crlf.txt: 1 empty line is left out' crlf.err
verdict "lines of a prompt file may end in CRLF" $? "$(cat crlf.out lf.out crlf.err)"
"$brim" sample tiny --prompt "The" --tokens 200 --ignore-eos --stop '\n' 2>/dev/null >stopped.txt
[ "$(wc -l <stopped.txt)" -eq 1 ]; verdict "--stop takes a line break" $? "$(cat stopped.txt)"
limit=3000000; case $build in *asan*) limit=unlimited ;; esac # a sanitizer maps terabytes
(ulimit -v $limit; "$brim" sample doc --prompt "The" --tokens 1000000000 >out 2>&1)
verdict "memory grows with the text" $? "$(tail -n 1 out)"
brim train tiny.yaml run=no 'freeze=[block.0-9]'
[ "$rc" -eq 2 ] && grep -q 'freeze: no weight is named block.0-9 (did you mean block.0?)' said
verdict "a range of blocks that are not there" $? "$(seen)"
refused "a second tokenizer" "doctok: one tokenizer at a time" data tokenizer show tok doctok
refused "a folder for a file" "tok: is a folder: name a file" data tokenizer encode tok tok
brim import x-doc run=named && grep -q "^$BRIM_RUNS/named: llama" said
verdict "an import says where its run is" $? "$(seen)"
printf '{"body": "one"}\n' >body.jsonl
brim train tiny.yaml run=no data.train=body.jsonl; grep -q '"text" (data.field=body would do)' said
verdict "a field that is not there, in a recipe" $? "$(seen)"
for i in $(seq 400); do echo "{\"body\": \"$i and some more text\"}"; done >body.jsonl
brim train tiny.yaml run=field data.train=body.jsonl data.field=body steps=1 &&
    brim train tiny.yaml run=split 'data.split=\n' steps=1 && grep -q "in [0-9]\{4\} documents" said
verdict "data.field and data.split" $? "$(seen)"
refused "a tokenizer that is none" "command line: data.tokenizer: few.txt:" train tiny.yaml run=no \
    data.tokenizer=few.txt
refused "a vocabulary that is too small for text" "model.vocab: 299 is too small: " train tiny.yaml run=no \
    model.vocab=299 data.tokenizer=tok
printf 'GIF8\0\0' >a.gif
refused "a file that is not text" "a.gif: not text: it has a zero byte" data tokens a.gif \
    --tokenizer tok --out no
[ ! -e no ] && refused "text that is not there" "body" data tokenizer train body.jsonl --vocab 300 --out no
[ ! -e no ]; verdict "a refused tokenizer leaves no folder" $? "$(ls -A no 2>&1)"

# ---- fine-tuning -------------------------------------------------------------------------------------------

tail -c 60000 "$here/recipes/data/tinyshakespeare.txt" >other.txt
brim import x-tiny run=base
tune=(data.kind=text data.train=other.txt "${cpu[@]}" steps=60 step_tokens=512 optim.lr=1e-2 eval.every=0
    eval.sequences=8 watch.report=false)
brim eval base "${cpu[@]}" data.kind=text data.train=other.txt
[ "$rc" -eq 0 ] && grep -q "bits per byte" said; verdict "an imported run evaluates text" $? "$(seen)"
brim eval base "${cpu[@]}" data.kind=text data.val=other.txt
[ "$rc" -eq 0 ] && grep -q "whole validation set" said && ! grep -q "data.train" said
verdict "and all of it with data.val alone" $? "$(seen)"
refused "an imported run has no data yet" "nothing to evaluate" eval base "${cpu[@]}"
brim train base "${tune[@]}" "freeze=[embed,block.0]"
before=$(sed -n 's/.*step 0: validation loss \([0-9.]*\).*/\1/p' said)
after=$(sed -n 's/.*step 60: validation loss \([0-9.]*\).*/\1/p' said)
awk -v a="${after:-9}" -v b="${before:-0}" 'BEGIN { exit !(a < b - 0.05) }'
verdict "continued on another text, the loss falls" $? "$before -> $after $(seen)"
brim export base x-base
"$verify" same x-tiny x-base >cmp.txt
! grep -qE "embed|layers.0" cmp.txt && grep -q "layers.1.mlp" cmp.txt
verdict "frozen weights keep their bits, the others move" $? "$(cat cmp.txt)"
brim train tiny.yaml run=begun init=x-tiny steps=3
[ "$rc" -eq 0 ]; verdict "init: begins with a folder's weights" $? "$(seen)"
refused "init of another width" "model.width: is 48" train tiny.yaml run=no init=x-tiny model.width=48
refused "init without a folder" "no folder with a config.json" train tiny.yaml run=no init=nowhere

# ---- what is refused ---------------------------------------------------------------------------------------

broken() { rm -rf bad; cp -r "${1:-llama}" bad; }
edit() { sed -i "$1" bad/config.json; }
try() { refused "$1" "$2" import bad run=bad; }
broken; edit 's/"hidden_act": "silu"/"hidden_act": "gelu"/'; try "another activation" "hidden_act"
broken; edit 's/"attention_bias": false/"attention_bias": true/'; try "biases" "attention_bias"
broken; edit 's/"model_type": "llama"/"model_type": "mamba"/'; try "another family" "model_type"
broken; edit 's/{/{"quantization_config": {"bits": 4},/'; try "a key that is not known" "quantization_config"
broken llama31; edit 's/"llama3"/"dynamic"/'; try "another stretch of positions" "rope_type"
broken; edit 's/"hidden_size": 32/"hidden_size": 64/'; try "another width" "embed.weight of shape"
broken; edit 's/"num_hidden_layers": 2/"num_hidden_layers": 3/'; try "a layer that is not there" "layers.2"
broken; edit 's/"num_hidden_layers": 2/"num_hidden_layers": 1/'; try "a layer too many" "layers.1"
broken; edit 's/"hidden_size": 32/"hidden_size": 99999999999999999999/'
try "a number too large" "config.json"
broken; head -c 20000 llama/model.safetensors >bad/model.safetensors; try "cut short" "model.safetensors"
broken; printf '\377\377\377\377\377\377\377\177' | dd of=bad/model.safetensors conv=notrunc 2>/dev/null
try "a header of 2^63 bytes" "model.safetensors"
broken; { printf '%0.s[' {1..5000}; } >bad/config.json; try "a JSON bomb" "config.json"
broken; { printf '%0.s[' {1..5000}; } >bad/generation_config.json
try "a second bomb" "generation_config.json:1"
broken; echo '[1]' >bad/generation_config.json
try "a list for a map" "generation_config.json: not a JSON map"
broken qwen2; sed -i 's#model-00001-of#../model-00001-of#' bad/model.safetensors.index.json
try "a path out of the folder" "weight_map"
broken qwen2; rm bad/model-00002*; try "a shard that is missing" "model-00002"
broken; mv bad/model.safetensors bad/pytorch_model.bin; try "PyTorch's own format" \
    "bad: has pytorch_model.bin, but no model.safetensors (save_pretrained of transformers writes it)"
refused "no folder" "config.json" import nowhere run=bad
[ ! -e runs/bad ]; verdict "a refused import leaves no run" $? "$(ls runs/bad 2>/dev/null)"
refused "a run that is there" "has checkpoints" import llama run=llama
exit "$failed"
