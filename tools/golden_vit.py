#!/usr/bin/env python3
"""Writes tests/golden/{vit,video}.safetensors: what PyTorch computes for two small vision transformers, for
tests/test_golden.c. tools/golden.py says what is in a file. Here the batches are

    pixels        u8  [STEPS, B, frames * size, size, 3]
    label, label2 i32 [STEPS, B]      the own label (-1: none) and the partner's
    share, blend  f32 [STEPS, B]      weight of the own label, weight of the own pixels
    partner       i32 [STEPS, B]      distance to the partner
    box           i32 [STEPS, B, 4]   first and end row, first and end column of the partner's box

Drop path draws from Brim's Philox streams (src/base/rng.h), written down a second time here. Everything else
is torch functions and autograd, in float64.

    tools/golden_vit.py [FOLDER]
"""
import math

import numpy as np
import torch
import torch.nn.functional as F

from golden import STEPS, initial, recipe_of, train, write_all

BATCH, SEED = 6, 12345
BASE = dict(layers=3, width=24, heads=3, ffn=40, norm="layernorm", norm_eps=1e-6, bias=True, drop_path=0.4,
            layer_scale=0.3)
SEEDS = {"vit": 1, "video": 2}
MODELS = {
    "vit": dict(BASE, act="gelu_erf", size=12, patch=4, frames=0, tubelet=2, classes=11, pool="class",
                smooth=0.1, pos_size=12, pos_frames=0),
    # The table of positions is for another grid: it is resampled.
    "video": dict(BASE, act="gelu", size=12, patch=4, frames=6, tubelet=2, classes=7, pool="mean", smooth=0.2,
                  pos_size=8, pos_frames=4),
}
MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)


def philox(ctr, key):
    c, k = list(ctr), list(key)
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k[0], p1 & 0xFFFFFFFF, (p0 >> 32) ^ c[3] ^ k[1], p0 & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def kept(site, step, p):
    """1/(1-p) for each sample that takes the branch, 0 for one that passes over it."""
    p = float(np.float32(p))
    draw = [philox((0, step * BATCH + b, 0, step), (SEED, site))[0] for b in range(BATCH)]
    return torch.tensor([0.0 if d < int(p * 2**32) else 1 / (1 - p) for d in draw], dtype=torch.float64)


def grid(m, size, frames):
    return (frames // m["tubelet"] if frames else 1, size // m["patch"], size // m["patch"])


def declare(m):
    C, K = m["width"], m["patch"] ** 2 * 3 * (m["tubelet"] if m["frames"] else 1)
    shape = {"patch.weight": (C, K), "patch.bias": (C,)}
    if m["pool"] == "class":
        shape["class.weight"] = (1, C)
    shape["pos.weight"] = (math.prod(grid(m, m["pos_size"], m["pos_frames"])) + (m["pool"] == "class"), C)
    for i in range(m["layers"]):
        b = f"block.{i}."
        shape.update({b + "norm1.weight": (C,), b + "norm1.bias": (C,), b + "qkv.weight": (3 * C, C),
                      b + "qkv.bias": (3 * C,), b + "proj.weight": (C, C), b + "proj.bias": (C,),
                      b + "scale1.weight": (C,), b + "norm2.weight": (C,), b + "norm2.bias": (C,),
                      b + "up.weight": (m["ffn"], C), b + "up.bias": (m["ffn"],),
                      b + "down.weight": (C, m["ffn"]), b + "down.bias": (C,), b + "scale2.weight": (C,)})
    shape.update({"norm.weight": (C,), "norm.bias": (C,), "head.weight": (m["classes"], C),
                  "head.bias": (m["classes"],)})
    return shape


def positions(m, w):
    old, new = grid(m, m["pos_size"], m["pos_frames"]), grid(m, m["size"], m["frames"])
    pos, n = w["pos.weight"], int(m["pool"] == "class")
    if old == new:
        return pos
    table = pos[n:].T.reshape(1, -1, *old)
    table = F.interpolate(table, size=new, mode="trilinear", align_corners=False)
    return torch.cat((pos[:n], table.reshape(pos.shape[1], -1).T))


def patches(m, pixels):
    """pixels [B, frames * size, size, 3], mixed and normalised -> [B, tokens, numbers of a patch]."""
    T, n, P = (m["tubelet"] if m["frames"] else 1), m["size"] // m["patch"], m["patch"]
    x = pixels.reshape(len(pixels), -1, T, n, P, n, P, 3)
    return x.permute(0, 1, 3, 5, 2, 4, 6, 7).reshape(len(pixels), -1, T * P * P * 3)


def mixed(m, d):
    x, S = d["pixels"].double(), m["size"]
    x = x.reshape(len(x), -1, S, S, 3)
    other = x[torch.arange(BATCH) + d["partner"]]
    out = []
    for b in range(BATCH):
        y = d["blend"][b] * x[b] + (1 - d["blend"][b]) * other[b]
        r0, r1, c0, c1 = d["box"][b].tolist()
        y[:, r0:r1, c0:c1] = other[b][:, r0:r1, c0:c1]
        out.append(y)
    y = (torch.stack(out) / 255 - torch.tensor(MEAN, dtype=torch.float64)) / torch.tensor(STD,
                                                                                         dtype=torch.float64)
    return y


def attention(m, w, b, x):
    B, T, C = x.shape
    q, k, v = (t.view(B, T, m["heads"], -1).transpose(1, 2)
               for t in F.linear(x, w[b + "qkv.weight"], w[b + "qkv.bias"]).chunk(3, -1))
    o = (q @ k.transpose(-1, -2) / math.sqrt(C // m["heads"])).softmax(-1) @ v
    return F.linear(o.transpose(1, 2).reshape(B, T, C), w[b + "proj.weight"], w[b + "proj.bias"])


def loss_of(m, w, d, step):
    C = (m["width"],)
    norm = lambda name, x: F.layer_norm(x, C, w[name + ".weight"], w[name + ".bias"], m["norm_eps"])
    x = F.linear(patches(m, mixed(m, d)), w["patch.weight"], w["patch.bias"])
    if m["pool"] == "class":
        x = torch.cat((w["class.weight"].expand(BATCH, 1, -1), x), 1)
    x = x + positions(m, w)
    for i in range(m["layers"]):
        b, p = f"block.{i}.", m["drop_path"] * i / (m["layers"] - 1)
        drop = lambda part, h: h * kept(1000 + 8 * (i + 1) + 3 + part, step, p)[:, None, None] if p > 0 else h
        x = x + drop(0, attention(m, w, b, norm(b + "norm1", x)) * w[b + "scale1.weight"])
        u = F.linear(norm(b + "norm2", x), w[b + "up.weight"], w[b + "up.bias"])
        u = F.gelu(u, approximate="tanh" if m["act"] == "gelu" else "none")
        u = F.linear(u, w[b + "down.weight"], w[b + "down.bias"])
        x = x + drop(1, u * w[b + "scale2.weight"])
    x = norm("norm", x)
    logits = F.linear(x[:, 0] if m["pool"] == "class" else x.mean(1), w["head.weight"], w["head.bias"])
    one, two = (F.cross_entropy(logits, t, ignore_index=-1, reduction="none", label_smoothing=m["smooth"])
                for t in (d["label"], d["label2"]))
    valid = d["label"] >= 0
    return ((d["share"] * one + (1 - d["share"]) * two) * valid).sum() / valid.sum()


def batches(m, gen):
    S, B, px = STEPS, BATCH, m["size"]
    out = dict(pixels=torch.randint(0, 256, (S, B, max(m["frames"], 1) * px, px, 3), generator=gen),
               label=torch.randint(-1, m["classes"], (S, B), generator=gen),
               label2=torch.randint(0, m["classes"], (S, B), generator=gen))
    out["label"][:, 0] = 0
    group = torch.arange(B).expand(S, B)
    out["partner"] = torch.where(group % 2 == 0, 1, -1)
    share = torch.rand((S, B), generator=gen).double().float().double()
    cut = group % 3 == 0
    first = torch.randint(0, px - 4, (S, B, 2), generator=gen)
    box = torch.stack((first[..., 0], first[..., 0] + 3, first[..., 1], first[..., 1] + 4), -1)
    out["box"] = torch.where(cut[..., None], box, torch.zeros_like(box))
    out["share"], out["blend"] = share, torch.where(cut, torch.ones_like(share), share)
    return out


def golden(name, m, gen):
    w, data = initial(declare(m), gen, m["layer_scale"]), batches(m, gen)
    type_of = dict(pixels="u1", share="<f4", blend="<f4")
    out = {k: v.numpy().astype(type_of.get(k, "<i4")) for k, v in data.items()}
    decays = lambda k: k.endswith("weight") and w[k].dim() == 2 and not k.startswith(("pos", "class"))
    out.update(train(w, decays, lambda step: loss_of(m, w, {k: v[step] for k, v in data.items()}, step)))
    of_image = ("size", "patch", "frames", "tubelet", "classes", "pool", "smooth", "pos_size", "pos_frames")
    keys = {("image." if k in of_image else "model.") + k: v for k, v in m.items()}
    keys.update({"task": "image", "step_samples": BATCH, "image.mean": ",".join(map(str, MEAN)),
                 "image.std": ",".join(map(str, STD)), "data.augment": "mixup,cutmix"})
    return out, recipe_of(name, keys)


write_all(MODELS, SEEDS, golden)
