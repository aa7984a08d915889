#!/usr/bin/env python3
"""Writes tests/golden/latent.safetensors: PyTorch on a byte encoder in front of a frozen Llama.

Every sample is computed alone, without padding, in float64. So there is no mask here that could be wrong.
The file holds

    w0.NAME     weights: llm.*, encoder.*, pool.*
    g.NAME      gradients of the weighted sum of the four losses, of encoder and pooler
    latents     f32 [B*M, width]
    losses      f64 [4]: answer, first token, first K tokens, distance to the teacher; means over targets
    losses11    the same, with one pass of the language model for each token (as the public code has it)
    bytes, n_bytes, text, n_text, anchor, answer, n_answer   the samples, i32

and the recipe in __metadata__.

    tools/golden_latent.py [FOLDER]
"""
import math
import pathlib
import sys

import numpy as np
import torch
import torch.nn.functional as F

from golden import MODELS, attention, declare, f32, ffn, initial, norm, write_safetensors

S, P, A, L, K, M = 20, 8, 2, 5, 3, 3
N_BYTES, N_TEXT, N_ANSWER = [20, 7, 13, 1], [8, 3, 5, 1], [5, 2, 4, 1]
WIDTH, LAYERS, HEADS, TAU = 16, 2, 2, 2.0
WEIGHT = [1.0, 0.5, 1.0, 1.0]
B = len(N_BYTES)


def llm(m, w, x):
    for i in range(m["layers"]):
        b = f"block.{i}."
        x = x + attention(m, w, b, norm(m, w, b + "norm1", x))
        x = x + ffn(m, w, b, norm(m, w, b + "norm2", x))
    return F.linear(norm(m, w, "norm", x), w["embed.weight" if m["tied"] else "head.weight"])


def full_attention(q, k, v, heads):
    q, k, v = (t.view(t.shape[0], heads, -1).transpose(0, 1) for t in (q, k, v))
    o = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).softmax(-1) @ v
    return o.transpose(0, 1).flatten(1)


def layer_norm(w, name, x):
    return F.layer_norm(x, x.shape[-1:], w[name + ".weight"], w[name + ".bias"], 1e-5)


def linear(w, name, x):
    return F.linear(x, w[name + ".weight"], w[name + ".bias"])


def gelu(x):
    return F.gelu(x, approximate="tanh")


def encode(e, p, byt):
    x = F.embedding(byt, e["embed.weight"]) + e["pos.weight"][: len(byt)]
    for i in range(LAYERS):
        b = f"block.{i}."
        q, k, v = linear(e, b + "qkv", layer_norm(e, b + "norm1", x)).chunk(3, -1)
        x = x + linear(e, b + "proj", full_attention(q, k, v, HEADS))
        x = x + linear(e, b + "down", gelu(linear(e, b + "up", layer_norm(e, b + "norm2", x))))
    h = layer_norm(e, "norm", x)
    q = p["query.weight"]
    k, v = linear(p, "kv", h).chunk(2, -1)
    o = linear(p, "proj", full_attention(linear(p, "q", layer_norm(p, "norm_q", q)), k, v, HEADS))
    z = q + o * torch.sigmoid(linear(p, "gate", o))
    z = z + linear(p, "down", gelu(linear(p, "up", layer_norm(p, "norm", z))))
    z = linear(p, "adapt_down", gelu(linear(p, "adapt_up", layer_norm(p, "adapt_norm", z))))
    return z * torch.rsqrt(z.pow(2).mean(-1, keepdim=True) + 1e-5) * p["out.weight"]


def pool_shapes(out):
    d, shape = WIDTH, {"query.weight": (M, WIDTH)}
    for name in ("norm_q", "norm", "adapt_norm"):
        shape[name + ".weight"] = shape[name + ".bias"] = (d,)
    for name, o, i in (("q", d, d), ("kv", 2 * d, d), ("proj", d, d), ("gate", d, d), ("up", 2 * d, d),
                       ("down", d, 2 * d), ("adapt_up", 2 * d, d), ("adapt_down", out, 2 * d)):
        shape[name + ".weight"], shape[name + ".bias"] = (o, i), (o,)
    shape["out.weight"] = (out,)
    return shape


def initial_pool(out, gen):
    w = {}
    for name, shape in pool_shapes(out).items():
        x = torch.randn(shape, generator=gen, dtype=torch.float64)
        x = x * (1.5 / math.sqrt(shape[-1])) if len(shape) == 2 else x * 0.2 + name.endswith("weight")
        if name == "out.weight":
            x = x * 0.3
        w[name] = x.float().double().requires_grad_()
    return w


def kl(s, t):
    t = F.log_softmax(t / TAU, -1)
    return TAU ** 2 * (t.exp() * (t - F.log_softmax(s / TAU, -1))).sum(-1)


def losses(m, w, z, data, one_pass):
    """Means over targets of the four losses."""
    total, count = [0.0] * 4, [0] * 4
    embed = lambda ids: F.embedding(ids, w["embed.weight"])
    for b in range(B):
        text, anchor = data["text"][b][: N_TEXT[b]], data["anchor"][b]
        answer = data["answer"][b][: N_ANSWER[b]]
        n, k = len(answer), min(K, len(answer))

        def student(upto):  # logits that predict answer[:upto]
            x = torch.cat((z[b], embed(anchor), embed(answer[: upto - 1])))
            return llm(m, w, x[None])[0, M + A - 1:]

        with torch.no_grad():
            teacher = llm(m, w, torch.cat((embed(text), embed(anchor), embed(answer[: k - 1])))[None])[0, -k:]
        all_rows = student(n)
        rows = all_rows if one_pass else torch.stack([student(t + 1)[-1] for t in range(n)])
        ce = F.cross_entropy(rows, answer, reduction="none")
        parts = [F.cross_entropy(all_rows, answer, reduction="none"), ce[:1], ce[:k], kl(rows[:k], teacher)]
        for i, part in enumerate(parts):
            total[i] = total[i] + part.sum()
            count[i] += len(part)
    return [t / c for t, c in zip(total, count)]


def main():
    default = pathlib.Path(__file__).resolve().parent.parent / "tests/golden"
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default
    torch.set_num_threads(1)
    gen = torch.Generator().manual_seed(5)
    m = MODELS["llama"]
    enc = dict(m, layers=LAYERS, width=WIDTH, heads=HEADS, kv_heads=HEADS, head_dim=WIDTH // HEADS,
               ffn=4 * WIDTH, vocab=256, context=S, norm="layernorm", pos="learned", act="gelu", bias=True,
               tied=True)
    w, e, p = initial(declare(m), gen), initial(declare(enc), gen), initial_pool(m["width"], gen)
    assert set(e) == set(declare(enc))
    draw = lambda n, *shape: torch.randint(0, n, shape, generator=gen)
    data = {"bytes": draw(256, B, S), "text": draw(m["vocab"], B, P), "anchor": draw(m["vocab"], B, A),
            "answer": draw(m["vocab"], B, L)}
    z = torch.stack([encode(e, p, data["bytes"][b][: N_BYTES[b]]) for b in range(B)])
    one, many = losses(m, w, z, data, True), losses(m, w, z, data, False)
    for a, b in zip(one, many):
        assert abs(float(a) - float(b)) < 1e-9
    sum(x * y for x, y in zip(WEIGHT, one)).backward()
    out = {k: v.numpy().astype("<i4") for k, v in data.items()}
    out.update({"n_bytes": np.array(N_BYTES, "<i4"), "n_text": np.array(N_TEXT, "<i4"),
                "n_answer": np.array(N_ANSWER, "<i4"), "latents": f32(z.flatten(0, 1)),
                "losses": np.array([float(x) for x in one], "<f8"),
                "losses11": np.array([float(x) for x in many], "<f8")})
    for prefix, table in (("llm.", w), ("encoder.", e), ("pool.", p)):
        out.update({"w0." + prefix + k: f32(v) for k, v in table.items()})
        if prefix != "llm.":
            out.update({"g." + prefix + k: f32(v.grad) for k, v in table.items()})
    recipe = {"model." + k: v for k, v in m.items()}
    recipe.update({"run": "latent", "task": "latent", "steps": 1, "step_samples": B, "precision": "fp32",
                   "encoder.bytes": S, "encoder.width": WIDTH, "encoder.layers": LAYERS,
                   "encoder.heads": HEADS, "encoder.latents": M, "latent.pairs": "random", "latent.prompt": P,
                   "latent.anchor_tokens": A, "latent.answer": L, "latent.first": K, "latent.tau": TAU,
                   "latent.first_token_weight": WEIGHT[1], "latent.first_weight": WEIGHT[2],
                   "latent.kl_weight": WEIGHT[3]})
    meta = {k: str(v).lower() if isinstance(v, bool) else str(v) for k, v in recipe.items()}
    n = write_safetensors(folder / "latent.safetensors", out, meta)
    print(f"latent: {n} bytes, losses {out['losses']}, eleven passes {out['losses11']}")


main()
