#!/usr/bin/env python3
"""Loads folders that `brim export` wrote into transformers, for tests/gpu/test_gpu_transformers.sh.
Each line of standard input names a folder, a file of ids, and Brim's logits of these ids (.npy, fp32). Two
more files may follow: the ids of a prompt, and those of Brim's greedy sample. Before these two may stand a
text and the ids Brim makes of the text. Prints "ok NAME: ..." or "not ok NAME: ..."."""
import os
import sys

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

LIMIT = 1e-4  # of logits in fp32, as the bars say


def ids_of(path):
    return [int(x) for x in open(path).read().split()]


def verdict(name, good, text):
    print(f"{'ok' if good else 'not ok'} {name}: {text}", flush=True)


def same_logits(name, model, ids, path):
    with torch.no_grad():
        theirs = model(torch.tensor([ids_of(ids)])).logits[0].numpy()
    own = np.load(path)
    worst = np.abs(theirs[-len(own):, :own.shape[1]] - own).max()
    verdict(f"{name}: {type(model).__name__} computes the logits", worst <= LIMIT, f"{worst:.2e} apart")


def same_tokens(name, folder, text, ids):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    want = ids_of(ids)
    got = tokenizer(open(text, encoding="utf-8").read())["input_ids"]
    back = tokenizer.decode(got) == open(text, encoding="utf-8").read()
    verdict(f"{name}: the tokenizer's ids and text", got == want and back, f"{len(got)} ids, {got[:6]}")


def same_greedy(name, model, prompt, ids):
    """Equal; or the first id that differs stands where the two best logits lie within LIMIT."""
    begin, want = ids_of(prompt), ids_of(ids)
    got = model.generate(torch.tensor([begin]), max_new_tokens=len(want), do_sample=False,
                         eos_token_id=None, pad_token_id=0)[0, len(begin):].tolist()
    first = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), None)
    gap = 0.0
    if first is not None:
        with torch.no_grad():
            best = model(torch.tensor([begin + want[:first]])).logits[0, -1].topk(2).values
        gap = float(best[0] - best[1])
    verdict(f"{name}: generate gives Brim's greedy tokens", len(got) == len(want) and gap <= LIMIT,
            f"{len(got)} tokens" if first is None else f"they differ at {first}, the best two by {gap:.2e}")


for line in sys.stdin:
    folder, ids, logits, *more = line.split()
    name = os.path.basename(folder)
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        same_logits(name, model, ids, logits)
        if len(more) == 4:
            same_tokens(name, folder, more[0], more[1])
        if more:
            same_greedy(name, model, more[-2], more[-1])
    except Exception as e:  # whatever transformers says about a folder is this test's result
        verdict(f"{name}: transformers loads the folder", False, repr(e)[:300])
