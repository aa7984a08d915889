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
cp -r vit comma && sed -i '0,/"[^"]*thing[^"]*"/s//"tench, Tinca: \\"x\\""/' comma/config.json
brim import comma run=comma && brim predict comma comma/pictures "${cpu[@]}" --show 9 --top 9
grep -q 'tench, Tinca: "x" [0-9]' said && brim export comma x-comma &&
    grep -q '"0": "tench, Tinca: \\"x\\""' x-comma/config.json
verdict "a label with a comma comes and goes whole" $? "$(seen)"
brim export vit x-half --dtype bfloat16
[ "$rc" -eq 0 ] && grep -q '"bfloat16"' x-half/config.json
verdict "export as bfloat16" $? "$(seen)"
brim predict vit vit/pictures "${cpu[@]}" --show 1 image.size=48
verdict "another size: positions are resampled" "$rc" "$(seen)"

# ---- pictures that are no squares --------------------------------------------------------------------------

processed() { # folder, sed script for preprocessor_config.json
    rm -rf "$1"; cp -r vit "$1"; sed -i "$2" "$1/preprocessor_config.json"
}
# What Pillow makes of them, as the processors of transformers call it: squeezed, or the middle of a resize.
python=
for p in python3 /usr/bin/python3; do "$p" -c 'import PIL' 2>/dev/null && { python=$p; break; }; done
if [ -z "$python" ]; then
    echo "skip: python3-pil is not installed: nothing to compare shapes with"
else
    "$python" - <<'END'
import os, random
from PIL import Image
random.seed(1)
for d in ("wide", "squeezed", "cubic", "middle"): os.makedirs(d, exist_ok=True)
for i, (w, h) in enumerate(((90, 41), (33, 70), (64, 64))):
    im = Image.frombytes("RGB", (w // 8 + 1, h // 8 + 1), random.randbytes((w // 8 + 1) * (h // 8 + 1) * 3))
    im = im.resize((w, h), Image.BICUBIC)
    im.save(f"wide/{i}.png")
    im.resize((32, 32), Image.BILINEAR).save(f"squeezed/{i}.png")
    im.resize((32, 32), Image.BICUBIC).save(f"cubic/{i}.png")
    short, long = 36, int(36 * max(w, h) / min(w, h))
    size = (long, short) if w > h else (short, long)
    left, top = round((size[0] - 32) / 2), round((size[1] - 32) / 2)
    im.resize(size, Image.BICUBIC).crop((left, top, left + 32, top + 32)).save(f"middle/{i}.png")
END
    alike() { # name, folder of the model, what Pillow made
        brim import "$2" run=shape --fresh && brim predict shape wide "${cpu[@]}" --logits a.npy &&
            brim predict shape "$3" "${cpu[@]}" --logits b.npy image.fit=squeeze && cmp -s a.npy b.npy
        verdict "$1" $? "$(seen)"
        rm -f a.npy b.npy
    }
    alike "a picture is squeezed as Pillow does" vit squeezed
    processed bicubic 's/"resample": 2/"resample": 3/'
    alike "the same by the bicubic filter" bicubic cubic
    processed centre 's/"resample": 2/"resample": 3, "do_center_crop": true, "crop_size": 32/
        s/"height": 32,/"shortest_edge": 36/; /"width": 32/d; s/ViTImage/BitImage/'
    alike "the middle of a picture, of a short side of 36" centre middle
    brim export shape x-shape && "$python" -c '
import json
a = json.load(open("x-shape/preprocessor_config.json"))
assert a["size"] == {"shortest_edge": 36} and a["crop_size"] in (32, {"height": 32, "width": 32}), a
assert a["do_center_crop"] and a["resample"] == 3, a'
    verdict "an export says how a picture becomes a square" $? "$(seen)"
fi

# ---- logits that are no numbers ----------------------------------------------------------------------------

mkdir -p "things/thing 0" "things/thing 5"
cp vit/pictures/[012].png "things/thing 0"; cp vit/pictures/[345].png "things/thing 5"
cp -r vit loud # a head of weights of 3e38
begin=$(grep -ao '"classifier.weight":{[^}]*' vit/model.safetensors | sed 's/.*\[\([0-9]*\),.*/\1/')
for ((i = 0; i < 7 * 48; i++)); do printf '\346\261\141\177'; done |
    dd of=loud/model.safetensors bs=4096 oflag=seek_bytes conv=notrunc status=none \
        seek=$((8 + $(od -An -tu8 -N8 vit/model.safetensors) + begin))
brim import loud run=loud; brim eval loud "${cpu[@]}" data.train=things data.val=things
[ "$rc" -eq 1 ] && grep -q 'top1 of step 0 is not finite' said
verdict "they are no hits" $? "$rc $(seen)"

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
rm odd/preprocessor_config.json
refused "positions of another size" "position_embeddings" import odd run=odd
edited odd 's/"num_hidden_layers": 3/"num_hidden_layers": 2/'
refused "a tensor too many" "encoder.layer.2" import odd run=odd
edited odd 's/"2": "thing 2"/"9": "thing 2"/'
refused "a class without a label" "id2label" import odd run=odd
rm -rf odd; cp -r vit odd; sed -i 's/"image_std": \[/"image_std": [0, /' odd/preprocessor_config.json
refused "four numbers for three channels" "image_std" import odd run=odd
processed odd 's/"resample": 2/"resample": 1/'
refused "a filter that Brim has not" "Brim has 2 (bilinear) and 3 (bicubic), not 1" import odd run=odd
processed odd 's/"do_resize": true/"do_resize": true, "do_pad": true/'
refused "a key that may change pixels" "do_pad: Brim does not know what this key changes" import odd run=odd
processed odd 's/"height": 32/"height": 48/'
refused "a size that is no square" "size: Brim needs a square of image_size, 32" import odd run=odd
processed odd 's/"height": 32,/"shortest_edge": 36/; /"width": 32/d'
refused "a short side without a crop" "crop_size: with shortest_edge Brim needs do_center_crop" \
    import odd run=odd
refused "a vision model for task lm" "task image" train "$here/recipes/quickstart.yaml" init=vit
sed 's/pool: class/pool: mean/' own.yaml >mean.yaml
brim train mean.yaml run=mean
refused "a mean of tokens cannot be written" "image.pool" export mean x-mean
brim train mean.yaml run=sines image.pos=sincos
refused "all that stands against it is said at once" \
    "image.pool, image.pos: no Hugging Face ViT has a mean of tokens, nor positions by sines" \
    export sines x-sines
brim train own.yaml run=registers image.registers=2
refused "registers cannot be written" "image.registers" export registers x-registers
refused "nor come from a folder" "image.registers: is 2, but x0 has 0" train init.yaml run=no \
    image.registers=2
exit "$failed"
