"""The byte model of bytes.yaml in PyTorch: same initial weights, same batches, bf16 autocast, fused AdamW.
Compares PyTorch's loss with Brim's at every 50th step. Prints ok / not ok lines.
Usage: python3 torch_bytes.py CHECKPOINT_DIR BATCHES METRICS_JSONL"""
import json, math, os, re, sys
import numpy as np, torch, torch.nn as nn, torch.nn.functional as F
from safetensors.torch import load_file

ckpt, batches, metrics = sys.argv[1:4]
L, C, H, T, V, B, STEPS = 6, 384, 6, 256, 256, 256, 300
w = {k: v.cuda().float() for k, v in load_file(ckpt + "/model.safetensors").items()}
P = {k: nn.Parameter(v.clone()) for k, v in w.items()}
x_all = torch.from_numpy(np.fromfile(batches, dtype=np.int32).reshape(-1, T + 1)).cuda().long()

def forward(tok, tgt):
    with torch.autocast("cuda", torch.bfloat16):
        x = (F.embedding(tok, P["embed.weight"]) + P["pos.weight"]).to(torch.bfloat16)
        for l in range(L):
            p = lambda n: P[f"block.{l}.{n}"]
            h = F.layer_norm(x, (C,), p("norm1.weight"), p("norm1.bias"), 1e-5).to(torch.bfloat16)
            q, k, v = F.linear(h, p("qkv.weight"), p("qkv.bias")).split(C, -1)
            q, k, v = (t.view(B, T, H, C // H).transpose(1, 2) for t in (q, k, v))
            a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, T, C)
            x = x + F.linear(a, p("proj.weight"), p("proj.bias"))
            h = F.layer_norm(x, (C,), p("norm2.weight"), p("norm2.bias"), 1e-5).to(torch.bfloat16)
            x = x + F.linear(F.gelu(F.linear(h, p("up.weight"), p("up.bias")), approximate="tanh"),
                p("down.weight"), p("down.bias"))
        h = F.layer_norm(x, (C,), P["norm.weight"], P["norm.bias"], 1e-5).to(torch.bfloat16)
        logits = F.linear(h, P["embed.weight"])
    return F.cross_entropy(logits.view(-1, V).float(), tgt.reshape(-1))

recipe = open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "bytes.yaml")).read()
base, low, warm = (float(x) for x in re.search(r"\blr: (\S+), min_lr: (\S+), warmup: (\d+)", recipe).groups())

def lr(s):
    return base * (s + 1) / warm if s < warm else low + 0.5 * (base - low) * (1
        + math.cos(math.pi * min(1.0, (s - warm) / (STEPS - warm))))

opt = torch.optim.AdamW([{"params": [v for k, v in P.items() if v.dim() == 2], "weight_decay": 0.1},
                         {"params": [v for k, v in P.items() if v.dim() == 1],
                             "weight_decay": 0.0}], lr=base, betas=(0.9, 0.95), eps=1e-8, fused=True)
losses = []
for s in range(STEPS):
    b = x_all[s * B:(s + 1) * B]
    loss = forward(b[:, :-1].contiguous(), b[:, 1:].contiguous())
    opt.zero_grad(); loss.backward()
    torch.nn.utils.clip_grad_norm_(P.values(), 1.0)
    for g in opt.param_groups: g["lr"] = lr(s)
    opt.step(); losses.append(loss.item())
mine = {}
for line in open(metrics):
    d = json.loads(line)
    if "loss" in d: mine[d["step"]] = d["loss"]
bad = 0
for s in [1] + list(range(50, STEPS + 1, 50)):
    r = abs(mine[s] - losses[s - 1]) / losses[s - 1]
    bad += r > 0.005
    print(f"{'not ok' if r > 0.005 else 'ok'} step {s}: brim {mine[s]:.4f} torch {losses[s-1]:.4f} "
          f"difference {100*r:.3f} %")
sys.exit(bad > 0)
