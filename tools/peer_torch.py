#!/usr/bin/env python3
"""The step of a recipe as a good PyTorch user would write it: compiled, bf16 autocast, SDPA, fused AdamW,
clipping. tools/gpu_suite.sh runs it beside Brim on one card and prints the ratio.
Usage: peer_torch.py RECIPE_NAME [MICRO_BATCH [compile]]; MICRO_BATCH 0: the best.
The last line is one JSON object. With "compile" nothing is timed; only the compiler's files on disk are
made."""
import json
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

#         layers width heads kv   ffn   vocab  context tokens a step, best micro-batch
SHAPES = {
    "gpt2-124m": (12, 768, 12, 12, 3072, 50304, 1024, 524288, 64),
    "gpt2-350m": (24, 1024, 16, 16, 4096, 50304, 1024, 262144, 32),
    "gpt2-774m": (36, 1280, 20, 20, 5120, 50304, 1024, 131072, 32),
    "gpt2-1558m": (48, 1600, 25, 25, 6400, 50304, 1024, 131072, 16),
    "qwen2.5-0.5b": (24, 896, 14, 2, 4864, 151936, 1024, 524288, 32),
    "qwen2.5-1.5b": (28, 1536, 12, 2, 8960, 151936, 1024, 131072, 16),
    "llama-1b": (16, 2048, 32, 8, 8192, 128256, 4096, 131072, 8),
}


class Block(nn.Module):
    def __init__(self, width, heads, kv, ffn, gpt2):
        super().__init__()
        self.heads, self.kv, self.dim, self.gpt2 = heads, kv, width // heads, gpt2
        norm = nn.LayerNorm if gpt2 else nn.RMSNorm
        self.norm1, self.norm2 = norm(width), norm(width)
        self.qkv = nn.Linear(width, (heads + 2 * kv) * self.dim, bias=gpt2)
        self.proj = nn.Linear(width, width, bias=gpt2)
        self.up = nn.Linear(width, ffn if gpt2 else 2 * ffn, bias=gpt2)
        self.down = nn.Linear(ffn, width, bias=gpt2)

    def rotate(self, x, cos, sin):
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)

    def forward(self, x, cos, sin):
        batch, time_, width = x.shape
        parts = self.qkv(self.norm1(x)).split([n * self.dim for n in (self.heads, self.kv, self.kv)], -1)
        q, k, v = (p.view(batch, time_, -1, self.dim).transpose(1, 2) for p in parts)
        if not self.gpt2:
            q, k = self.rotate(q, cos, sin), self.rotate(k, cos, sin)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.heads != self.kv)
        x = x + self.proj(a.transpose(1, 2).reshape(batch, time_, width))
        u = self.up(self.norm2(x))
        if self.gpt2:
            return x + self.down(F.gelu(u, approximate="tanh"))
        gate, up = u.chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Model(nn.Module):
    def __init__(self, layers, width, heads, kv, ffn, vocab, context, gpt2):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.pos = nn.Embedding(context, width) if gpt2 else None
        self.blocks = nn.ModuleList(Block(width, heads, kv, ffn, gpt2) for _ in range(layers))
        self.norm = nn.LayerNorm(width) if gpt2 else nn.RMSNorm(width)
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02)
        half = width // heads // 2
        angle = torch.outer(torch.arange(context).float(), 5e5 ** (-torch.arange(half).float() / half))
        self.register_buffer("cos", angle.cos(), False)
        self.register_buffer("sin", angle.sin(), False)

    def forward(self, tok, target):
        x = self.embed(tok)
        if self.pos is not None:
            x = x + self.pos.weight
        x = x.to(torch.bfloat16)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        logits = F.linear(self.norm(x), self.embed.weight)
        return F.cross_entropy(logits.view(-1, logits.size(-1)).float(), target.view(-1))


def main(name, micro=0, only=None):
    layers, width, heads, kv, ffn, vocab, context, step_tokens, best = SHAPES[name]
    micro = int(micro) or best
    torch.set_float32_matmul_precision("high")
    model = Model(layers, width, heads, kv, ffn, vocab, context, name.startswith("gpt2")).cuda()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    compiled = torch.compile(model)
    accum = step_tokens // (micro * context)
    data = torch.randint(0, vocab, (4, micro, context + 1), device="cuda")

    def step():
        for i in range(accum):
            batch = data[i % 4]
            with torch.autocast("cuda", torch.bfloat16):
                loss = compiled(batch[:, :-1].contiguous(), batch[:, 1:].contiguous())
            (loss / accum).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)

    if only == "compile":
        accum = 1
        return step()
    for _ in range(2):
        step()
    times, total = [], 0.0
    torch.cuda.synchronize()
    while len(times) < 5 or total < 3:
        begin = time.time()
        step()
        torch.cuda.synchronize()
        times.append(time.time() - begin)
        total += times[-1]
    median = sorted(times)[len(times) // 2]
    print(json.dumps({"peer": "torch " + torch.__version__, "recipe": name, "micro_batch": micro,
        "per_s": step_tokens / median,
                      "step_ms": 1e3 * median, "peak_bytes": torch.cuda.max_memory_allocated()}))


main(*sys.argv[1:])
