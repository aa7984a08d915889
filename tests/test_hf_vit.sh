#!/usr/bin/env bash
# Vision models of Hugging Face: two that transformers saved (tests/golden/hf_vit.tar.xz, made by
# tools/golden_hf_vit.py), with pictures and the logits that transformers computed from them in fp32; exports
# of imports and of own runs; fine-tuning; refusals.
# shellcheck source=tests/hf_lib.sh
. "$(dirname "$0")/hf_lib.sh"
hf_golden hf_vit

# ---- as transformers computes ------------------------------------------------------------------------------

for m in vit vit-tanh; do
    brim import "$m" "run=$m"
    verdict "import $m" "$rc" "$(seen)"
    brim predict "$m" "$m/pictures" "${cpu[@]}" --show 1 --logits out.npy
    "$verify" logits out.npy "$m/logits.f32" >cmp.txt 2>&1
    verdict "$m: logits to 1e-4" $? "$(seen) $(cat cmp.txt)"
    grep -q "thing" said; verdict "$m: names of classes" $? "$(seen)"
    brim export "$m" "x-$m" && "$verify" same "$m" "x-$m" >cmp.txt 2>&1 &&
        cmp -s "$m/preprocessor_config.json" "x-$m/preprocessor_config.json"
    verdict "$m: export(import(x)) is x" $? "$(seen) $(cat cmp.txt)"
done
brim export vit x-half --dtype bfloat16
[ "$rc" -eq 0 ] && grep -q '"bfloat16"' x-half/config.json
verdict "export as bfloat16" $? "$(seen)"
brim predict vit vit/pictures "${cpu[@]}" --show 1 image.size=48
verdict "another size: positions are resampled" "$rc" "$(seen)"

# ---- own runs ----------------------------------------------------------------------------------------------

mkdir -p data/a data/b
for i in 0 1 2; do cp "vit/pictures/$i.png" data/a/; cp "vit/pictures/$((i + 3)).png" data/b/; done
cat >own.yaml <<END
task: image
steps: 6
step_samples: 4
device: cpu
threads: 1
model: {layers: 2, width: 32, heads: 2, act: gelu_erf, norm: layernorm, bias: true}
image: {size: 32, patch: 8, pool: class}
optim: {lr: 1e-2}
data: {train: data, val_fraction: 0, crop_fraction: 1}
eval: {every: 0}
watch: {report: false}
END
for ema in 0 0.5; do
    brim train own.yaml "run=own$ema" "image.ema=$ema"
    verdict "a run with image.ema $ema trains" "$rc" "$(seen)"
    brim export "own$ema" "x$ema"
    [ "$rc" -eq 0 ] && [ -s "x$ema/preprocessor_config.json" ] &&
        brim import "x$ema" "run=again$ema" && [ "$rc" -eq 0 ]
    verdict "image.ema $ema: export and import again" $? "$(seen)"
    brim predict "own$ema" vit/pictures --logits a.npy; brim predict "again$ema" vit/pictures --logits b.npy
    [ -s a.npy ] && cmp -s a.npy b.npy
    verdict "image.ema $ema: the same answers" $? "$(seen)"
    rm -f a.npy b.npy
done
cmp -s x0/model.safetensors x0.5/model.safetensors
verdict "the mean of weights is not the weights" $((!$?)) "equal files"
sed '/^model:/d; /^image:/d; s/^optim.*/init: x0\nimage: {ema: 0.5}\noptim: {lr: 1e-12}/' own.yaml >init.yaml
brim train init.yaml run=tuned image.mean=[0.485,0.456,0.406]
verdict "a run begins with a folder's weights" "$rc" "$(seen)"
brim predict own0 vit/pictures --logits a.npy; brim predict tuned vit/pictures --logits b.npy
tail -c $((6 * 2 * 4)) a.npy >want.f32
"$verify" logits b.npy want.f32 >cmp.txt 2>&1
verdict "at a rate of almost 0 the mean of weights answers as the folder's" $? "$(seen) $(cat cmp.txt)"

# ---- refusals ----------------------------------------------------------------------------------------------

edited() { # folder, sed script for config.json
    rm -rf "$1"; cp -r vit "$1"; sed -i "$2" "$1/config.json"
}
edited odd 's/"num_hidden_layers"/"num_hidden_leyers"/'
refused "an unknown key" "num_hidden_leyers" import odd run=odd
edited odd 's/"hidden_act": "gelu"/"hidden_act": "relu"/'
refused "another activation" "hidden_act" import odd run=odd
edited odd 's/"image_size": 32/"image_size": 36/'
refused "a size that patches do not divide" "patch_size" import odd run=odd
edited odd 's/"image_size": 32/"image_size": 40/'
refused "positions of another size" "position_embeddings" import odd run=odd
edited odd 's/"num_hidden_layers": 3/"num_hidden_layers": 2/'
refused "a tensor too many" "encoder.layer.2" import odd run=odd
edited odd 's/"2": "thing 2"/"9": "thing 2"/'
refused "a class without a label" "id2label" import odd run=odd
rm -rf odd; cp -r vit odd; sed -i 's/"image_std": \[/"image_std": [0, /' odd/preprocessor_config.json
refused "four numbers for three channels" "image_std" import odd run=odd
refused "a vision model for task lm" "task image" train "$here/recipes/quickstart.yaml" init=vit
sed 's/pool: class/pool: mean/' own.yaml >mean.yaml
brim train mean.yaml run=mean
refused "a mean of tokens cannot be written" "image.pool" export mean x-mean
brim train own.yaml run=registers image.registers=2
refused "registers cannot be written" "image.registers" export registers x-registers
refused "nor come from a folder" "image.registers: is 2, but x0 has 0" train init.yaml run=no \
    image.registers=2
exit "$failed"
