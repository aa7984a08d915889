#!/usr/bin/env python3
"""The leaderboard recipe's model as a good PyTorch user would train it: compiled, bf16 autocast, SDPA, fused
AdamW, clipping, warm-up and cosine over a wall-clock budget. It reads the same set (brim data tokens), takes
the same number of tokens a step, and evaluates the same validation windows as Brim does.
Usage: peer_leaderboard.py SET SECONDS [key=value ...]; keys: step_tokens, micro (sequences), lr, decay,
warmup, every, layers, width, heads, context, vocab, seed, device (cpu: to try the program). The clock starts
behind the compiler: its seconds are printed, and not counted. The last line is one JSON object."""
import glob
import json
import math
import struct
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

KEYS = dict(step_tokens=65536, micro=128, lr=6e-4, decay=0.1, warmup=100, every=50, layers=16, width=1024,
            heads=8, context=512, vocab=32000, seed=1, device="cuda")


def read_part(folder):
    """Ids of a part of Brim's set, which must be one shard (docs/formats.md)."""
    path, *more = sorted(glob.glob(f"{folder}/*.bin"))
    assert not more, f"{folder} has more than one shard (brim data tokens --shard)"
    with open(path, "rb") as f:
        head = f.read(64)
        assert head[:8] == b"BRIMTOK1", path
        size, count = struct.unpack("<IQ", head[12:24])
        data = f.read(count * size)
    return torch.frombuffer(bytearray(data), dtype=torch.uint16 if size == 2 else torch.int32).to(torch.int32)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.proj = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x, cos, sin):
        B, T, C = x.shape
        q, k, v = (y.view(B, T, self.heads, C // self.heads).transpose(1, 2)
                   for y in self.qkv(self.norm1(x)).split(C, -1))

        def rotate(y):
            a, b = y.chunk(2, -1)
            return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(v.dtype)

        y = F.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(B, T, C))
        return x + self.down(F.relu(self.up(self.norm2(x))).square())


class Model(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.embed = nn.Embedding(o["vocab"], o["width"])
        self.blocks = nn.ModuleList(Block(o["width"], o["heads"]) for _ in range(o["layers"]))
        self.norm = nn.RMSNorm(o["width"], eps=1e-5)
        self.head = nn.Linear(o["width"], o["vocab"], bias=False)
        dim = o["width"] // o["heads"]
        angle = torch.outer(torch.arange(o["context"]).float(),
                            10000.0 ** (-torch.arange(0, dim, 2).float() / dim))
        self.register_buffer("cos", angle.cos(), False)
        self.register_buffer("sin", angle.sin(), False)
        for name, p in self.named_parameters():
            if p.dim() > 1:
                into_stream = name.endswith("proj.weight") or name.endswith("down.weight")
                nn.init.normal_(p, std=0.02 / math.sqrt(2 * o["layers"]) if into_stream else 0.02)

    def forward(self, tok, target):
        x = self.embed(tok).to(torch.bfloat16)
        for b in self.blocks:
            x = b(x, self.cos, self.sin)
        logits = self.head(self.norm(x)).float()
        return F.cross_entropy(logits.view(-1, logits.size(-1)), target.view(-1), ignore_index=-1,
                               reduction="sum")


def main():
    o = dict(KEYS)
    for arg in sys.argv[3:]:
        key, value = arg.split("=")
        o[key] = value if key == "device" else type(KEYS[key])(float(value))
    folder, budget, T, device = sys.argv[1], float(sys.argv[2]), o["context"], o["device"]
    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
    torch.manual_seed(o["seed"])
    torch.set_float32_matmul_precision("high")
    train, val = (read_part(f"{folder}/{part}").to(device, torch.int64)
                  for part in ("train", "val"))
    n_val = (len(val) - 2) // T + 1
    val = F.pad(val, (0, n_val * T + 1 - len(val)), value=-1)
    model = Model(o).to(device)
    decay = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() <= 1]
    opt = torch.optim.AdamW([{"params": decay, "weight_decay": o["decay"]},
                             {"params": rest, "weight_decay": 0.0}],
                            lr=o["lr"], betas=(0.9, 0.95), eps=1e-8, fused=True)
    fast = torch.compile(model)
    micro, n_micro = o["micro"], o["step_tokens"] // T // o["micro"]
    n_window = (len(train) - 1) // T - 1

    def batches():
        """Every window once an epoch, in a random order, cut at another phase each epoch."""
        while True:
            order, phase = torch.randperm(n_window, device=device), int(torch.randint(T, (1,)))
            for i in range(0, n_window - micro + 1, micro):
                at = phase + order[i:i + micro, None] * T + torch.arange(T + 1, device=device)
                yield train[at]

    def loss_of(rows):
        with torch.autocast(device, torch.bfloat16):
            return fast(rows[:, :-1].clamp(min=0), rows[:, 1:].contiguous())

    @torch.no_grad()
    def evaluate():
        total = 0.0
        rows = torch.stack([val[i * T:i * T + T + 1] for i in range(n_val)])
        rows = F.pad(rows, (0, 0, 0, -n_val % micro), value=-1)
        for part in rows.split(micro):
            total += loss_of(part.contiguous()).item()
        return total / int((rows[:, 1:] >= 0).sum())

    def step(source):
        loss = 0
        for _ in range(n_micro):
            part = loss_of(next(source)) / (n_micro * micro * T)
            part.backward()
            loss += part.detach()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
        return loss

    begin = time.time()
    state = {k: v.clone() for k, v in model.state_dict().items()}
    for group in opt.param_groups:
        group["lr"] = 0.0
    source = batches()
    step(source), evaluate()
    model.load_state_dict(state)
    opt.state.clear()
    synchronize()
    compile_s = time.time() - begin
    print(f"compiled in {compile_s:.1f} s", flush=True)

    begin, n, best, last = time.time(), 0, evaluate(), float("nan")
    while (used := (time.time() - begin) / budget) < 1:
        warm = min(1.0, (n + 1) / max(o["warmup"], 1))
        for group in opt.param_groups:
            group["lr"] = o["lr"] * min(warm, 0.5 * (1 + math.cos(math.pi * used)))
        loss = step(source)
        n += 1
        if n % 4 == 0:
            synchronize()  # the clock must not run ahead of the device
        if n % o["every"] == 0:
            last = evaluate()
            best = min(best, last)
            print(f"{time.time() - begin:.1f} s, step {n}: loss {loss.item():.4f}, validation {last:.4f}",
                  flush=True)
    last = evaluate()
    best = min(best, last)
    took = time.time() - begin
    print(json.dumps({"peer": "torch", "steps": n, "tokens_per_s": n * o["step_tokens"] / took,
                      "time_s": took, "compile_s": compile_s, "val_loss": last, "best_val_loss": best,
                      "val_windows": n_val, **o}))


main()
