#!/usr/bin/env python3
"""Makes the vision models of tests/golden/hf_vit.tar.xz: tiny ViTs of random weights as transformers saves
them, pictures of their size as PNG, and the logits that transformers computes from them in fp32.

    tools/golden_hf_vit.py OUT                  writes OUT/NAME for each model
    tools/golden_hf_vit.py --check DIR GOLDEN   prints the largest difference between the logits that
        transformers computes from DIR, which Brim exported, and GOLDEN/logits.f32
"""
import json
import os
import struct
import sys
import zlib

import numpy as np
import torch
from transformers import ViTConfig, ViTForImageClassification

N_IMAGE = 6
MODELS = {
    # image, patch, width, layers, heads, inner, classes, activation, eps, mean and std, type
    "vit": (32, 8, 48, 3, 4, 96, 7, "gelu", 1e-12, 0.5, "float32"),
    "vit-tanh": (28, 14, 64, 2, 2, 200, 12, "gelu_pytorch_tanh", 1e-6, 0.4, "bfloat16"),
}


def write_png(path, rgb):
    h, w, _ = rgb.shape
    rows = b"".join(b"\0" + rgb[y].tobytes() for y in range(h))

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    with open(path, "wb") as f:
        f.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", w, h, 8, 2, 0, 0, 0)))
        f.write(chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b""))


def logits(m, rgb, mean, std):
    x = torch.from_numpy(rgb).permute(0, 3, 1, 2).double() / 255
    mean, std = (torch.tensor(v, dtype=torch.float64).view(3, 1, 1) for v in (mean, std))
    with torch.no_grad():
        return m.float().eval()(((x - mean) / std).float()).logits.numpy().astype("<f4")


def make(out, name):
    size, patch, width, layers, heads, inner, classes, act, eps, mean, dtype = MODELS[name]
    torch.manual_seed(7)
    names = {i: f"thing {i}" for i in range(classes)}
    m = ViTForImageClassification(ViTConfig(
        image_size=size, patch_size=patch, hidden_size=width, num_hidden_layers=layers,
        num_attention_heads=heads, intermediate_size=inner, hidden_act=act, layer_norm_eps=eps,
        id2label=names, label2id={v: k for k, v in names.items()}))
    with torch.no_grad():  # biases and norms, too, are not what they begin as
        for p in m.parameters():
            p.add_(torch.randn_like(p) * 0.1)
    m = m.to(getattr(torch, dtype))
    folder = os.path.join(out, name)
    m.save_pretrained(folder)
    try:
        from transformers import ViTImageProcessor
        ViTImageProcessor(size={"height": size, "width": size}, image_mean=[mean] * 3,
                          image_std=[0.5] * 3).save_pretrained(folder)
    except Exception as e:  # the processor needs packages that the model does not
        print(f"{name}: no processor: {e}")
    rng = np.random.default_rng(7)
    rgb = rng.integers(0, 256, (N_IMAGE, size, size, 3), dtype=np.uint8)
    os.makedirs(os.path.join(folder, "pictures"), exist_ok=True)
    for i in range(N_IMAGE):
        write_png(os.path.join(folder, "pictures", f"{i}.png"), rgb[i])
    rgb.tofile(os.path.join(folder, "pictures.u8"))
    logits(m, rgb, [mean] * 3, [0.5] * 3).tofile(os.path.join(folder, "logits.f32"))
    print(f"{name}: {sum(p.numel() for p in m.parameters())} parameters, {sorted(os.listdir(folder))}")


def check(folder, golden):
    m = ViTForImageClassification.from_pretrained(folder, dtype=torch.float32)
    how = json.load(open(os.path.join(folder, "preprocessor_config.json")))
    size = m.config.image_size
    rgb = np.fromfile(os.path.join(golden, "pictures.u8"), np.uint8).reshape(-1, size, size, 3)
    want = np.fromfile(os.path.join(golden, "logits.f32"), "<f4")
    got = logits(m, rgb, how["image_mean"], how["image_std"]).ravel()
    print(f"{folder}: largest difference {np.abs(got - want).max():.3g}, "
          f"largest logit {np.abs(want).max():.3g}")


if sys.argv[1] == "--check":
    check(sys.argv[2], sys.argv[3])
else:
    for name in MODELS:
        make(sys.argv[1], name)
