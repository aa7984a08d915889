#!/usr/bin/env python3
"""Brim's byte model (tests/gpu/bytes.yaml, f32, 4,096 tokens a step) on the CPU: tokens/s of all steps after the second, and peak memory.
Usage: cpu_steps.py BRIM THREADS STEPS"""
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile

TOKENS = 4096
brim, threads, steps = sys.argv[1:4]
recipe = pathlib.Path(__file__).resolve().parent.parent / "tests/gpu/bytes.yaml"
with tempfile.TemporaryDirectory() as runs:
    subprocess.run([brim, "train", recipe, "run=x", "device=cpu", "precision=fp32", f"step_tokens={TOKENS}", "threads=" + threads, "steps=" + steps,
                    "optim.warmup=2", "eval.sequences=1"], env=dict(os.environ, BRIM_RUNS=runs), stderr=subprocess.DEVNULL, check=True)
    lines = [json.loads(line) for line in open(runs + "/x/metrics.jsonl")]
done = [line["time_s"] for line in lines if "loss" in line][1:]
took = [b - a for a, b in zip(done, done[1:])]
rss = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
print(f"brim, {threads} threads: {TOKENS / statistics.mean(took):,.0f} tokens/s (median {TOKENS / statistics.median(took):,.0f}, "
      f"best {TOKENS / min(took):,.0f}), {rss:.0f} MiB")
