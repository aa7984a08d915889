#!/usr/bin/env python3
"""Writes tests/golden/*.safetensors: what PyTorch computes for four small models, for tests/test_golden.c.

Each model is written down here a second time, independently of src/net, from torch functions and autograd.
All is computed in float64, so the reference is closer to the mathematics than any f32 program can be.
A file holds, all f32 unless said:

    w0.NAME   weights before the first step       (f32 numbers exactly: PyTorch starts from the rounded ones)
    g.NAME    gradient of the mean loss of batch 0 at w0, not clipped
    w.NAME    weights after STEPS updates
    tok, target   i32 [STEPS, B, T]; target -1 = ignored
    loss, norm    f64 [STEPS]: mean loss over valid targets and gradient norm before clipping, at each step

and the recipe (its keys and values as strings) in __metadata__. Names and layouts are Brim's
(src/net/net.h): a matrix is [outputs, inputs], qkv is [q heads | k heads | v heads], up is [gate | up].
Only torch (1.13 and newer) and numpy are needed. The files are committed, so neither tests nor users need
Python.

    tools/golden.py [FOLDER]
"""
import json
import math
import pathlib
import struct
import sys

import numpy as np
import torch
import torch.nn.functional as F

STEPS, BATCH, LR, BETAS, EPS, DECAY, CLIP = 10, 4, 3e-3, (0.9, 0.95), 1e-8, 0.1, 1.0

BASE = dict(layers=2, width=32, heads=4, kv_heads=2, head_dim=8, ffn=40, vocab=90, context=16, norm="rmsnorm",
            norm_eps=1e-6, pos="rope", rope_theta=1e6, act="swiglu", bias=False, qkv_bias=False, tied=True,
            qk_norm=False)
# Sizes differ where they can (head_dim * heads != width, vocabularies that are no multiple of anything), so
# that a swapped dimension cannot go unnoticed.
#
# A weight whose gradient happens to be as small as its rounding error takes a full AdamW step in either
# direction. The seeds are those of 0..7 for which that happens least: moving every initial weight by 3e-7 of
# itself (five times f32 rounding) moves no weight after ten steps by more than 2e-5 of its tensor's maximum.
# Other seeds reach 9e-3.
SEEDS = {"gpt2": 3, "llama": 6, "qwen2": 7, "qwen3": 1}
MODELS = {
    "gpt2": dict(BASE, layers=3, kv_heads=4, ffn=64, norm="layernorm", norm_eps=1e-5, pos="learned",
                 act="gelu",
                 bias=True, qkv_bias=True, context=24),
    "llama": dict(BASE, width=48, head_dim=12, norm_eps=1e-5, rope_theta=5e5, vocab=91, tied=False),
    # Small heads: with theta 1e6 the slow pairs of larger ones hardly turn in 20 tokens, so the gradient of a
    # key's bias would be rounding noise, which AdamW blows up to full steps.
    "qwen2": dict(BASE, heads=8, head_dim=4, ffn=56, vocab=93, qkv_bias=True, context=20),
    "qwen3": dict(BASE, head_dim=12, vocab=94, qk_norm=True),
}


def declare(m):
    """Name -> shape of every weight."""
    C, D, H, K, Fw = m["width"], m["head_dim"], m["heads"], m["kv_heads"], m["ffn"]
    shape = {"embed.weight": (m["vocab"], C)}

    def norm(name, n):
        shape[name + ".weight"] = (n,)
        if m["norm"] == "layernorm":
            shape[name + ".bias"] = (n,)

    def linear(name, n_out, n_in, bias):
        shape[name + ".weight"] = (n_out, n_in)
        if bias:
            shape[name + ".bias"] = (n_out,)

    if m["pos"] == "learned":
        shape["pos.weight"] = (m["context"], C)
    for i in range(m["layers"]):
        b = f"block.{i}."
        norm(b + "norm1", C)
        linear(b + "qkv", (H + 2 * K) * D, C, m["bias"] or m["qkv_bias"])
        if m["qk_norm"]:
            shape[b + "q_norm.weight"] = shape[b + "k_norm.weight"] = (D,)
        linear(b + "proj", C, H * D, m["bias"])
        norm(b + "norm2", C)
        linear(b + "up", 2 * Fw if m["act"] == "swiglu" else Fw, C, m["bias"])
        linear(b + "down", C, Fw, m["bias"])
    norm("norm", C)
    if not m["tied"]:
        shape["head.weight"] = (m["vocab"], C)
    return shape


def initial(shapes, gen, layer_scale=None):
    """Weights large enough that softmax, norms and activations leave their linear range."""
    w = {}
    for name, shape in shapes.items():
        x = torch.randn(shape, generator=gen, dtype=torch.float64)
        if len(shape) == 2:
            x *= 1.5 / math.sqrt(shape[1]) if name.startswith("block") else 0.3
        elif "scale" in name:
            x = x * 0.1 + layer_scale
        else:
            x = x * 0.2 + (1.0 if name.endswith("weight") else 0.0)
        w[name] = x.float().double().requires_grad_()
    return w


def rms_norm(x, g, eps):
    y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * g
    if hasattr(F, "rms_norm"):
        assert torch.allclose(y, F.rms_norm(x, g.shape, g, eps), rtol=1e-12)
    return y


def norm(m, w, name, x):
    g = w[name + ".weight"]
    if m["norm"] == "layernorm":
        return F.layer_norm(x, g.shape, g, w[name + ".bias"], m["norm_eps"])
    return rms_norm(x, g, m["norm_eps"])


def rope(x, theta):
    """x [B, heads, T, D]: pair (i, i + D/2) turns by t * theta^(-2i/D)."""
    T, D = x.shape[-2:]
    angle = torch.outer(torch.arange(T).double(), theta ** (-torch.arange(0, D, 2).double() / D))
    cos, sin = angle.cos(), angle.sin()
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def attention(m, w, b, x):
    B, T, _ = x.shape
    H, K, D = m["heads"], m["kv_heads"], m["head_dim"]
    qkv = F.linear(x, w[b + "qkv.weight"], w.get(b + "qkv.bias"))
    q, k, v = (t.view(B, T, -1, D).transpose(1, 2) for t in qkv.split([H * D, K * D, K * D], -1))
    if m["qk_norm"]:
        q = rms_norm(q, w[b + "q_norm.weight"], m["norm_eps"])
        k = rms_norm(k, w[b + "k_norm.weight"], m["norm_eps"])
    if m["pos"] == "rope":
        q, k = rope(q, m["rope_theta"]), rope(k, m["rope_theta"])
    k, v = k.repeat_interleave(H // K, 1), v.repeat_interleave(H // K, 1)
    future = torch.ones(T, T, dtype=torch.bool).triu(1)
    score = (q @ k.transpose(-1, -2) / math.sqrt(D)).masked_fill(future, -math.inf)
    o = score.softmax(-1) @ v
    if hasattr(F, "scaled_dot_product_attention"):
        assert torch.allclose(o, F.scaled_dot_product_attention(q, k, v, is_causal=True), rtol=1e-9,
                              atol=1e-12)
    return F.linear(o.transpose(1, 2).reshape(B, T, H * D), w[b + "proj.weight"], w.get(b + "proj.bias"))


def ffn(m, w, b, x):
    u = F.linear(x, w[b + "up.weight"], w.get(b + "up.bias"))
    if m["act"] == "swiglu":
        gate, up = u.chunk(2, -1)
        u = F.silu(gate) * up
    else:
        u = F.gelu(u, approximate="tanh")
    return F.linear(u, w[b + "down.weight"], w.get(b + "down.bias"))


def loss_of(m, w, tok, target):
    x = F.embedding(tok, w["embed.weight"])
    if m["pos"] == "learned":
        x = x + w["pos.weight"][: tok.shape[1]]
    for i in range(m["layers"]):
        b = f"block.{i}."
        x = x + attention(m, w, b, norm(m, w, b + "norm1", x))
        x = x + ffn(m, w, b, norm(m, w, b + "norm2", x))
    logits = F.linear(norm(m, w, "norm", x), w["embed.weight" if m["tied"] else "head.weight"])
    return F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=-1)


def batches(m, gen):
    """Sequences with something to learn. About one target in eight is ignored: counts differ per batch."""
    V, n = m["vocab"], m["context"] + 1
    seq = torch.randint(0, V, (STEPS, BATCH, n), generator=gen)
    chance = torch.rand(seq.shape, generator=gen)
    for t in range(1, n):
        seq[..., t] = torch.where(chance[..., t] < 0.7, (5 * seq[..., t - 1] + 3) % V, seq[..., t])
    target = seq[..., 1:].clone()
    target[torch.rand(target.shape, generator=gen) < 0.125] = -1
    return seq[..., :-1].contiguous(), target


def write_safetensors(path, tensors, metadata):
    """8 bytes of length, a JSON header {name: {dtype, shape, data_offsets}}, then the bytes."""
    dtype = {np.dtype("<f4"): "F32", np.dtype("<f8"): "F64", np.dtype("<i4"): "I32", np.dtype("u1"): "U8"}
    header, blob = {"__metadata__": metadata}, b""
    # Wider types first: every tensor starts at a multiple of its own size.
    for name, a in sorted(tensors.items(), key=lambda item: -item[1].dtype.itemsize):
        raw = np.ascontiguousarray(a).tobytes()
        at = [len(blob), len(blob) + len(raw)]
        header[name] = {"dtype": dtype[a.dtype], "shape": list(a.shape), "data_offsets": at}
        blob += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + blob)
    return 8 + len(text) + len(blob)


def f32(x):
    return x.detach().float().numpy().astype("<f4")


def train(w, decays, loss_at):
    """STEPS updates of the weights w. Returns the tensors of the file that do not depend on the model."""
    out = {"w0." + k: f32(v) for k, v in w.items()}
    opt = torch.optim.AdamW([{"params": [v for k, v in w.items() if decays(k)], "weight_decay": DECAY},
                             {"params": [v for k, v in w.items() if not decays(k)], "weight_decay": 0.0}],
                            lr=LR, betas=BETAS, eps=EPS)
    losses, norms = [], []
    for step in range(STEPS):
        opt.zero_grad()
        loss = loss_at(step)
        loss.backward()
        if step == 0:
            out.update({"g." + k: f32(v.grad) for k, v in w.items()})
        norms.append(float(torch.nn.utils.clip_grad_norm_(list(w.values()), CLIP)))
        losses.append(float(loss))
        opt.step()
    out.update({"w." + k: f32(v) for k, v in w.items()})
    out["loss"], out["norm"] = np.array(losses, "<f8"), np.array(norms, "<f8")
    return out


def recipe_of(name, keys):
    """The recipe as strings: what all models share, then the model's own keys."""
    keys = dict({"run": name, "steps": STEPS, "precision": "fp32", "optim.lr": LR,
                 "optim.schedule": "constant", "optim.beta1": BETAS[0], "optim.beta2": BETAS[1],
                 "optim.eps": EPS, "optim.weight_decay": DECAY, "optim.clip": CLIP}, **keys)
    return {k: str(v).lower() if isinstance(v, bool) else str(v) for k, v in keys.items()}


def golden(name, m, gen):
    w = initial(declare(m), gen)
    tok, target = batches(m, gen)
    out = {"tok": tok.numpy().astype("<i4"), "target": target.numpy().astype("<i4")}
    out.update(train(w, lambda k: w[k].dim() == 2, lambda step: loss_of(m, w, tok[step], target[step])))
    keys = {"model." + k: v for k, v in m.items()}
    keys.update({"step_tokens": BATCH * m["context"], "data.kind": "random"})
    return out, recipe_of(name, keys)


def write_all(models, seeds, golden):
    """Writes the file of every model: golden(name, model, generator) gives tensors and recipe."""
    default = pathlib.Path(__file__).resolve().parent.parent / "tests/golden"
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default
    torch.set_num_threads(1)
    for name, m in models.items():
        tensors, meta = golden(name, m, torch.Generator().manual_seed(seeds[name]))
        n = write_safetensors(folder / (name + ".safetensors"), tensors, meta)
        print(f"{name}: {n} bytes, loss {tensors['loss'][0]:.4f} -> {tensors['loss'][-1]:.4f}, "
              f"norm {tensors['norm'][0]:.3f} -> {tensors['norm'][-1]:.3f}")


if __name__ == "__main__":
    write_all(MODELS, SEEDS, golden)
