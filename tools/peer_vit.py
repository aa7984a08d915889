#!/usr/bin/env python3
"""recipes/vit-tiny.yaml once more, in PyTorch: the same shape, data, schedule and steps; other draws.
Prints the accuracy on the validation images, to compare with `brim eval`.

    tools/peer_vit.py [--steps N] [--samples N] [--seed N] [--threads N] [--device cpu|cuda]
"""
import argparse
import gzip
import math
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

SET = "/usr/share/datasets/fashion-mnist/"


def read(name):
    raw = gzip.open(SET + name + "-images-idx3-ubyte.gz").read()
    x = torch.from_numpy(np.frombuffer(raw, np.uint8, offset=16).reshape(-1, 1, 28, 28).copy()).float()
    raw = gzip.open(SET + name + "-labels-idx1-ubyte.gz").read()
    x = F.interpolate(x, size=32, mode="bilinear", align_corners=False).round().clamp(0, 255)
    y = torch.from_numpy(np.frombuffer(raw, np.uint8, offset=8).astype(np.int64))
    return (x / 255 - 0.286) / 0.353, y


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
    def __init__(s, layers=6, d=128, h=4, patch=4):
        super().__init__()
        s.patch = nn.Conv2d(3, d, patch, patch)
        s.pos = nn.Parameter(torch.randn(1, (32 // patch) ** 2, d) * 0.02)
        s.blocks = nn.ModuleList(Block(d, h) for _ in range(layers))
        s.norm, s.head = nn.LayerNorm(d, eps=1e-5), nn.Linear(d, 10)
        for name, p in s.named_parameters():
            if p.dim() == 2:
                into = name.endswith(("o.weight", "down.weight"))
                nn.init.normal_(p, std=0.02 / (math.sqrt(2 * layers) if into else 1))
            elif name.endswith("bias"):
                nn.init.zeros_(p)
        nn.init.normal_(s.patch.weight, std=1 / math.sqrt(3 * patch * patch))
        nn.init.zeros_(s.head.weight)

    def forward(s, x):
        x = s.patch(x.expand(-1, 3, -1, -1)).flatten(2).transpose(1, 2) + s.pos
        for b in s.blocks:
            x = b(x)
        return s.head(s.norm(x).mean(1))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=450)
    ap.add_argument("--samples", type=int, default=128)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--warmup", type=int, default=50)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--device", default="cpu")
    a = ap.parse_args()
    torch.manual_seed(a.seed)
    torch.set_num_threads(a.threads)
    (x, y), (vx, vy) = (tuple(t.to(a.device) for t in read(n)) for n in ("train", "t10k"))
    m = ViT().to(a.device)
    groups = [{"params": [p for n, p in m.named_parameters() if p.dim() in (2, 4)], "weight_decay": 0.05},
              {"params": [p for n, p in m.named_parameters() if p.dim() not in (2, 4)], "weight_decay": 0}]
    opt = torch.optim.AdamW(groups, lr=a.lr, betas=(0.9, 0.99), eps=1e-8)
    order, begin = torch.randperm(len(x)), time.time()
    for step in range(a.steps):
        lr = a.lr * (step + 1) / a.warmup if step < a.warmup else 2e-5 + (a.lr - 2e-5) * 0.5 * (
            1 + math.cos(math.pi * (step - a.warmup) / (a.steps - a.warmup)))
        for g in opt.param_groups:
            g["lr"] = lr
        at = (step * a.samples) % (len(x) - a.samples + 1)
        i = order[at:at + a.samples]
        b = x[i]
        flip = (torch.rand(len(b)) < 0.5).to(a.device)
        b = torch.where(flip[:, None, None, None], b.flip(3), b)
        loss = F.cross_entropy(m(b), y[i], label_smoothing=0.1)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(m.parameters(), 1.0)
        opt.step()
    took = time.time() - begin
    with torch.no_grad():
        parts = ((vx[k:k + 500], vy[k:k + 500]) for k in range(0, len(vx), 500))
        right = sum((m(p).argmax(1) == q).sum().item() for p, q in parts)
    print(f"PyTorch: {a.steps} steps of {a.samples}, seed {a.seed}: loss {loss.item():.4f}, "
          f"top-1 {100 * right / len(vx):.2f} % in {took:.0f} s")


main()
