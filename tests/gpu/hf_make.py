#!/usr/bin/env python3
"""Makes tiny folders with transformers' own classes, for tests/gpu/test_gpu_transformers.sh. The one argument
is the folder for them. Each has what save_pretrained writes, and ids.txt, logits.f32 (of these ids, fp32),
prompt.ids, and keys.txt: keys that the import needs."""
import os
import sys

import torch
from transformers import (AutoModelForCausalLM, LlamaConfig, MistralConfig, Phi3Config, Qwen2Config,
                          Qwen3Config)

COMMON = dict(vocab_size=64, hidden_size=64, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
              num_key_value_heads=2, initializer_range=0.3, bos_token_id=None, eos_token_id=None,
              pad_token_id=None, attention_dropout=0.0)
THETA = dict(rope_theta=10000.0)
LISTS = dict(short_factor=[1.0, 1.02, 1.05, 1.1, 1.3, 1.7, 2.1, 2.5],
             long_factor=[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.5, 8.0])


def yarn(**more):
    return dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32, **THETA, **more)


MODELS = {
    "made-yarn-llama": LlamaConfig(**COMMON, max_position_embeddings=128, rope_parameters=yarn()),
    "made-yarn-qwen2": Qwen2Config(**COMMON, max_position_embeddings=128,
                                   rope_parameters=yarn(mscale=0.7, mscale_all_dim=1.2)),
    "made-yarn-qwen3": Qwen3Config(**COMMON, head_dim=16, max_position_embeddings=128,
                                   rope_parameters=yarn(beta_fast=4.0, beta_slow=0.125, truncate=False)),
    "made-yarn-mistral": MistralConfig(**COMMON, max_position_embeddings=128, sliding_window=24,
                                       rope_parameters=yarn(attention_factor=1.3)),
    "made-phi3": Phi3Config(**COMMON, max_position_embeddings=128, original_max_position_embeddings=128,
                            sliding_window=20),
    "made-phi3-long": Phi3Config(**COMMON, max_position_embeddings=256, original_max_position_embeddings=64,
                                 rope_parameters=dict(rope_type="longrope", **THETA, **LISTS)),
    "made-llama-long": LlamaConfig(**COMMON, max_position_embeddings=64,
                                   rope_parameters=dict(rope_type="longrope", factor=8.0,
                                                        original_max_position_embeddings=64, **THETA,
                                                        **LISTS)),
}


def text(folder, name, words):
    with open(os.path.join(folder, name), "w") as f:
        f.write(" ".join(str(x) for x in words) + "\n")


for number, (name, config) in enumerate(MODELS.items()):
    folder = os.path.join(sys.argv[1], name)
    torch.manual_seed(number)
    model = AutoModelForCausalLM.from_config(config).float().eval()
    for key, weight in model.named_parameters():
        if key.endswith(".bias"):  # zero at first
            torch.nn.init.normal_(weight, std=0.3)
    model.save_pretrained(folder)
    ids = torch.randint(0, config.vocab_size, (1, 60))
    with torch.no_grad():
        logits = model(ids).logits[0].float().numpy()
    logits.tofile(os.path.join(folder, "logits.f32"))
    text(folder, "ids.txt", ids[0].tolist())
    text(folder, "prompt.ids", ids[0, :16].tolist())
    text(folder, "keys.txt", ["model.context=64"] if name == "made-phi3-long" else [])
