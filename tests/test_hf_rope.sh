#!/usr/bin/env bash
# YaRN, longrope and Phi-3: folders with random weights against a reference in double precision that
# tests/verify_rope.c computes; exports; training; refusals.
# shellcheck source=tests/hf_lib.sh
. "$(dirname "$0")/hf_lib.sh"
make_folder=$build/tests/verify_rope
context() { [ "$1" = phi3-long ] && echo model.context=64; } # its config.json says 256, and original 64

# ---- as the reference computes -----------------------------------------------------------------------------

for m in $("$make_folder" list); do
    "$make_folder" make "$m" "$m" || failed=1
    # shellcheck disable=SC2046
    as_reference "$m" 40 $(context "$m")
done
grep -q '"long_factor"' x-phi3-long/config.json &&
    grep -q '"max_position_embeddings": 256' x-phi3-long/config.json
verdict "an export has the imported config.json" $? "$(cat x-phi3-long/config.json)"
refused "longrope beyond the first context" \
    "model.context (256) is above model.rope_original (64)" import phi3-long run=no
[ ! -e runs/no ]; verdict "and no run is left" $? "$(ls runs)"
positions() { # run, words
    "$brim" plan "runs/$1/recipe.yaml" device=cpu run=plan >plan.txt 2>&1
    [ "$(sed -n 's/^positions   //p' plan.txt)" = "$2" ]
}
positions yarn-llama 'yarn: stretched by 4 from 32 tokens, queries and keys x 1.13863' && positions phi3 '' &&
    positions phi3-long 'longrope: the short list, up to 64 tokens; queries and keys x 1.1547'
verdict "a plan says how positions are stretched" $? "$(head -n 9 plan.txt)"

# ---- training ----------------------------------------------------------------------------------------------

# The ids again and again, as numbers of two bytes.
for _ in $(seq 40); do cat phi3/ids.txt; done | tr ' ' '\n' | awk '{ printf "\\%03o\\000", $1 }' >ids.octal
# shellcheck disable=SC2059
printf "$(cat ids.octal)" >ids.bin
learns() { # run, further words ...
    brim train "$@" data.kind=uint16 data.train=ids.bin "${cpu[@]}" steps=25 step_tokens=512 optim.lr=3e-3 \
        eval.every=0 eval.sequences=4 watch.report=false
    [ "$rc" -eq 0 ] && awk '/validation loss/ { sub(/.*validation loss /, ""); at[n++] = $1 }
        END { exit !(n >= 2 && at[n - 1] < at[0] - 1) }' said
    verdict "$1 learns a text by heart" $? "$(seen)"
}
learns phi3-long
brim import yarn-qwen3 run=tune model.context=64; learns tune

# ---- runs that Brim began ----------------------------------------------------------------------------------

cat >tiny.yaml <<END
steps: 2
step_tokens: 256
device: cpu
threads: 1
model: {layers: 2, width: 64, heads: 4, vocab: 64, context: 64, norm: rmsnorm, pos: rope, act: swiglu}
data: {kind: random}
eval: {every: 0}
watch: {report: false}
END
rope_keys() { grep '  rope_' "runs/$1/recipe.yaml" | grep -v rope_long; } # which an export needs, a run not
round_trip() { # name, what config.json says, overrides ...
    brim train tiny.yaml "run=$1" "${@:3}" && brim export "$1" "x-$1" &&
        brim import "x-$1" "run=$1-again" model.context=64 && brim export "$1-again" "x-$1-again"
    for run in "$1" "$1-again"; do
        [ "$rc" -eq 0 ] && brim eval "$run" "${cpu[@]}" precision=fp32 --ids phi3/ids.txt
        cp said "$run.said"
    done
    [ "$rc" -eq 0 ] && grep -q "$2" "x-$1/config.json" && cmp -s "$1.said" "$1-again.said" &&
        "$verify" same "x-$1" "x-$1-again" >cmp.txt &&
        cmp -s <(rope_keys "$1") <(rope_keys "$1-again")
    verdict "$1: a run is exported and imported again" $? "$(seen) $(cat "x-$1/config.json" cmp.txt)"
}
yarn=(model.rope_scaling=yarn model.rope_factor=4 model.rope_original=16)
round_trip yarn '"LlamaForCausalLM".*"rope_type": "yarn"' "${yarn[@]}"
round_trip whole '"Qwen3ForCausalLM".*"truncate": false, "attention_factor": 1.3' "${yarn[@]}" \
    model.qk_norm=true model.rope_fast=4 model.rope_slow=0.25 model.rope_truncate=false \
    model.rope_attention=1.3
round_trip bias '"Qwen2ForCausalLM".*"beta_fast": 4' "${yarn[@]}" model.qkv_bias=true model.rope_fast=4
round_trip window '"MistralForCausalLM".*"max_position_embeddings": 128.*"rope_type": "yarn"' "${yarn[@]}" \
    model.window=20 model.rope_original=32
long=(model.rope_scaling=longrope model.rope_factor=4 model.rope_original=64
    'model.rope_short=[1,1.02,1.5,1.5,2,2,3,4]')
round_trip short '"Phi3For.*"max_position_embeddings": 256.*"original_max_position_embeddings": 64, "rope' \
    "${long[@]}" 'model.rope_long=[1,2,3,4,5,6,7,8.5]'
grep -q '"pad_token_id": null' x-short/config.json && grep -aq 'qkv_proj.weight' x-short/model.safetensors &&
    ! grep -aq 'q_proj' x-short/model.safetensors
verdict "and is a Phi-3 as transformers has it" $? "$(cat x-short/config.json)"
round_trip norms '"Qwen3ForCausalLM".*"rope_type": "longrope"' "${long[@]}" model.qk_norm=true
brim train tiny.yaml run=begun init=phi3-long model.heads=4 steps=1 && brim export begun x-begun
[ "$rc" -eq 0 ] && grep -q '"Phi3For.*"long_factor": \[1, 1.5, 2, 3, 4, 5, 6.5, 8\]' x-begun/config.json
verdict "init keeps both lists for an export" $? "$(seen) $(cat x-begun/config.json)"

# ---- what is refused ---------------------------------------------------------------------------------------

try() { # name, folder, edit, words
    rm -rf bad; cp -r "$2" bad; sed -i "$3" bad/config.json
    refused "$1" "bad/config.json: $4" import bad run=bad
}
try "another stretch" yarn-llama 's/"yarn"/"dynamic"/' 'rope_scaling.rope_type: "dynamic", but Brim computes'
try "a Phi-3 with another stretch" phi3-long 's/"longrope"/"linear"/' \
    'rope_scaling.rope_type: "linear", but a phi3 has default and longrope'
try "a part of each head" phi3 's/"embd_pdrop"/"partial_rotary_factor": 0.75, "embd_pdrop"/' \
    'partial_rotary_factor: 0.75'
try "likewise in the map" yarn-llama 's/"factor": 4.0/"factor": 4.0, "partial_rotary_factor": 0.5/' \
    'partial_rotary_factor: 0.5, but Brim computes only 1'
try "a key of another stretch" yarn-llama 's/"factor": 4.0/"short_factor": [1], "factor": 4.0/' 'short_factor'
try "a key that nobody knows" yarn-llama 's/"factor": 4.0/"gamma": 1, "factor": 4.0/' 'gamma'
try "no number" yarn-all 's/"beta_fast": 4/"beta_fast": "4"/' 'beta_fast: "4", but Brim needs a positive'
try "a factor of 0" yarn-all 's/"factor": 2.5/"factor": 0/' 'factor: 0, but Brim needs a positive number'
try "a scale below 0" yarn-all 's/"mscale": 0.7/"mscale": -1/' 'mscale: -1'
try "no switch" yarn-all 's/"truncate": false/"truncate": null/' \
    'truncate: null, but Brim needs true or false'
try "bounds the wrong way round" yarn-all 's/"beta_fast": 4/"beta_fast": 0.1/' 'beta_fast: must not be below'
try "two original contexts" yarn-llama 's/{/{"original_max_position_embeddings": 16,/' \
    'original_max_position_embeddings: 16, but rope_scaling has another one'
try "half a token" yarn-llama 's/_embeddings": 32/_embeddings": 32.5/' \
    'original_max_position_embeddings: 32.5 is not whole'
try "too few numbers" phi3-long 's/"short_factor": \[1,/"short_factor": [/' \
    'short_factor: has 7 numbers, not one for each of 8 pairs'
try "no list" phi3-long 's/"long_factor"/"longer_factor"/' 'longer_factor'
try "a list without numbers" phi3-long 's/1.5, 2.0/1.5, null/' 'long_factor: null, but Brim needs'
try "a number below 0" phi3-long 's/1, 1.02/1, -1.02/' 'short_factor: -1.02'
try "biases" phi3 's/"attention_bias": false/"attention_bias": true/' 'attention_bias: true'
rm -rf bad; cp -r phi3-long bad; sed -i 's/, "long_factor": \[[^]]*\]//' bad/config.json
refused "a list that is missing" "bad/config.json: long_factor: missing, and longrope needs it" \
    import bad run=bad
rm -rf bad; cp -r phi3 bad; sed -i 's/"phi3"/"llama"/' bad/config.json
refused "a key of another family" "embd_pdrop: 0.0, but Brim does not know" import bad run=bad
rm -rf bad; cp -r phi3 bad; cp yarn-llama/model.safetensors bad/
refused "a Phi-3 with split weights" "no tensor model.layers.0.self_attn.qkv_proj.weight" import bad run=bad
[ ! -e runs/bad ]; verdict "a refused import leaves no run" $? "$(ls runs/bad 2>/dev/null)"
exit "$failed"
