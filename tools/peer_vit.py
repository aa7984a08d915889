#!/usr/bin/env python3
"""recipes/vit-tiny.yaml once more, in PyTorch: the same shape, data, schedule, optimizer and steps, read from
the recipe; other draws. Prints the accuracy on the validation images, to compare with `brim eval`.

    tools/peer_vit.py [key=value ...] [--seed N] [--threads N] [--device cpu|cuda]

Needs torch, numpy and yaml (Debian: python3-torch; with libopenblas0 it is ten times as fast). Keys that are
not used here are ignored; the augmentation is flip or none.
"""
import argparse
import gzip
import math
import os
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import yaml

RECIPE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "recipes", "vit-tiny.yaml")
DEFAULT = {  # what a recipe need not say
    "model.init_std": 0.02, "image.pos": "learned", "image.smooth": 0, "optim.kind": "adamw", "optim.clip": 1,
    "optim.schedule": "cosine", "optim.min_lr": 0, "optim.warmup": 0, "optim.beta1": 0.9, "optim.beta2": 0.95,
    "optim.weight_decay": 0.1, "optim.momentum": 0.95, "optim.muon_lr": 0, "data.augment": [],
}
# Five steps of Newton and Schulz, each with its own polynomial (src/dev/op_math.h has the same).
STEPS = [(8.28721201814563, -23.595886519098837, 17.300387312530933),
         (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
         (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
         (3.3184196573706015, -2.488488024314874, 0.51004894012372),
         (2.300652019954817, -1.6689039845747493, 0.4188073119525673)]
MARGIN = 1.01


class Settings(dict):
    """The recipe, one flat table: image.size and so on."""

    def __init__(s, overrides):
        super().__init__(DEFAULT)
        with open(RECIPE) as f:
            s.take("", yaml.safe_load(f))
        for word in overrides:
            key, value = word.split("=", 1)
            s.take("", {key: yaml.safe_load(value)})

    def take(s, prefix, tree):
        for key, value in tree.items():
            if isinstance(value, dict):
                s.take(prefix + key + ".", value)
            else:
                try:
                    s[prefix + key] = float(value) if isinstance(value, str) else value
                except ValueError:
                    s[prefix + key] = value


def read(path, s):
    raw = gzip.open(path).read()
    x = torch.from_numpy(np.frombuffer(raw, np.uint8, offset=16).reshape(-1, 1, 28, 28).copy()).float()
    raw = gzip.open(path.replace("images-idx3", "labels-idx1")).read()
    x = F.interpolate(x, size=s["image.size"], mode="bilinear", align_corners=False).round().clamp(0, 255)
    y = torch.from_numpy(np.frombuffer(raw, np.uint8, offset=8).astype(np.int64))
    return (x / 255 - float(s["image.mean"][0])) / float(s["image.std"][0]), y


def sincos(n, d):
    """Half of the channels for the row, half for the column; of each half sines, then cosines."""
    quarter = d // 4
    angle = torch.arange(n)[:, None] * 10000.0 ** (-torch.arange(quarter) / quarter)
    one = torch.cat([angle.sin(), angle.cos()], 1)
    return torch.cat([one[:, None].expand(n, n, -1), one[None].expand(n, n, -1)], 2).reshape(1, n * n, d)


class Block(nn.Module):
    def __init__(s, d, h):
        super().__init__()
        s.h = h
        s.n1, s.n2 = nn.LayerNorm(d, eps=1e-5), nn.LayerNorm(d, eps=1e-5)
        s.qkv, s.o = nn.Linear(d, 3 * d), nn.Linear(d, d)
        s.up, s.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(s, x):
        B, T, d = x.shape
        q, k, v = s.qkv(s.n1(x)).view(B, T, 3, s.h, d // s.h).permute(2, 0, 3, 1, 4)
        o = (q @ k.transpose(-1, -2) / math.sqrt(d // s.h)).softmax(-1) @ v
        x = x + s.o(o.transpose(1, 2).reshape(B, T, d))
        return x + s.down(F.gelu(s.up(s.n2(x)), approximate="tanh"))


class ViT(nn.Module):
    def __init__(s, c):
        super().__init__()
        d, layers, patch, std = c["model.width"], c["model.layers"], c["image.patch"], c["model.init_std"]
        n = c["image.size"] // patch
        s.patch = nn.Conv2d(3, d, patch, patch)
        if c["image.pos"] == "learned":
            s.pos = nn.Parameter(torch.randn(1, n * n, d) * std)
        else:
            s.register_buffer("pos", sincos(n, d))
        s.blocks = nn.ModuleList(Block(d, c["model.heads"]) for _ in range(layers))
        s.norm, s.head = nn.LayerNorm(d, eps=1e-5), nn.Linear(d, 10)
        for name, p in s.named_parameters():
            if p.dim() == 2:
                into = name.endswith(("o.weight", "down.weight"))
                nn.init.normal_(p, std=std / (math.sqrt(2 * layers) if into else 1))
            elif name.endswith("bias"):
                nn.init.zeros_(p)
        nn.init.normal_(s.patch.weight, std=1 / math.sqrt(3 * patch * patch))
        nn.init.zeros_(s.head.weight)

    def forward(s, x):
        x = s.patch(x.expand(-1, 3, -1, -1)).flatten(2).transpose(1, 2) + s.pos
        for b in s.blocks:
            x = b(x)
        return s.head(s.norm(x).mean(1))


class Muon:
    """Orthogonal updates of the matrices in the blocks; queries, keys, values are matrices of their own."""

    def __init__(s, params, c):
        s.params, s.mu, s.decay = params, c["optim.momentum"], c["optim.weight_decay"]
        s.lr_mul = (c["optim.muon_lr"] or c["optim.lr"]) / c["optim.lr"]
        s.m = [torch.zeros_like(p) for p in params]

    @staticmethod
    def orthogonal(x):
        tall = x.shape[0] > x.shape[1]
        x = x.T if tall else x
        x = x / (MARGIN * x.norm() + 1e-20)
        for a, b, c in STEPS:
            g = x @ x.T
            x = a / MARGIN * x + (b / MARGIN ** 3 * g + c / MARGIN ** 5 * g @ g) @ x
        return x.T if tall else x

    @torch.no_grad()
    def step(s, lr):
        lr = lr * s.lr_mul
        for p, m in zip(s.params, s.m):
            m.mul_(s.mu).add_(p.grad, alpha=1 - s.mu)
            x = m * s.mu + p.grad * (1 - s.mu)
            parts = 3 if p.shape[0] == 3 * p.shape[1] else 1
            y = torch.cat([s.orthogonal(part) for part in x.chunk(parts)])
            scale = 0.2 * math.sqrt(max(p.shape[0] // parts, p.shape[1]))
            p.sub_(lr * (scale * y + s.decay * p))
            p.grad = None


def rate(c, step):
    """As src/optim/schedule.c: warm-up, then a cosine or a line."""
    lr, low, warmup = c["optim.lr"], c["optim.min_lr"], c["optim.warmup"]
    if step < warmup:
        return lr * (step + 1) / warmup
    x = (step - warmup) / max(c["steps"] - warmup, 1)
    if c["optim.schedule"] == "linear":
        return lr + (low - lr) * x
    return low + (lr - low) * 0.5 * (1 + math.cos(math.pi * x))


def train(m, x, y, c):
    hidden = [p for n, p in m.named_parameters() if n.startswith("blocks") and p.dim() == 2]
    muon = Muon(hidden, c) if c["optim.kind"] == "muon" else None
    rest = [p for n, p in m.named_parameters() if not muon or not any(p is q for q in hidden)]
    groups = [{"params": [p for p in rest if p.dim() in (2, 4)], "weight_decay": c["optim.weight_decay"]},
              {"params": [p for p in rest if p.dim() not in (2, 4)], "weight_decay": 0}]
    opt = torch.optim.AdamW(groups, lr=c["optim.lr"], betas=(c["optim.beta1"], c["optim.beta2"]), eps=1e-8)
    n, order, at = c["step_samples"], torch.randperm(len(x)), 0
    for step in range(c["steps"]):
        for g in opt.param_groups:
            g["lr"] = rate(c, step)
        if at + n > len(x):
            order, at = torch.randperm(len(x)), 0
        i, at = order[at:at + n], at + n
        b = x[i]
        if "flip" in c["data.augment"]:
            flip = (torch.rand(len(b)) < 0.5).to(b.device)
            b = torch.where(flip[:, None, None, None], b.flip(3), b)
        loss = F.cross_entropy(m(b), y[i], label_smoothing=c["image.smooth"])
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(m.parameters(), c["optim.clip"])
        opt.step()
        if muon:
            muon.step(rate(c, step))
        if step % 100 == 99:
            print(f"step {step + 1}: loss {loss.item():.4f}", flush=True)
    return loss.item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("override", nargs="*")
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--device", default="cpu")
    a = ap.parse_args()
    c = Settings(a.override)
    torch.manual_seed(a.seed)
    torch.set_num_threads(a.threads)
    (x, y), (vx, vy) = (tuple(t.to(a.device) for t in read(c["data." + n], c)) for n in ("train", "val"))
    m = ViT(c).to(a.device)
    begin, cpu = time.time(), time.process_time()
    loss = train(m, x, y, c)
    took, cpu = time.time() - begin, time.process_time() - cpu
    with torch.no_grad():
        parts = ((vx[k:k + 500], vy[k:k + 500]) for k in range(0, len(vx), 500))
        right = sum((m(p).argmax(1) == q).sum().item() for p, q in parts)
    print(f"PyTorch: {c['steps']} steps of {c['step_samples']}, seed {a.seed}: loss {loss:.4f}, "
          f"top-1 {100 * right / len(vx):.2f} % in {took:.0f} s, {cpu:.0f} s of CPU time")


main()
