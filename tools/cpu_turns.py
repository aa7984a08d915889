#!/usr/bin/env python3
"""Brim's byte model (tests/gpu/bytes.yaml, f32, 4,096 tokens a step) on the CPU, beside OpenBLAS
(bench_cpu_ops) and beside another program that prints a line after every such step.
The programs take turns of some seconds on the same CPUs; the others are stopped meanwhile. So other users of
the machine disturb all programs alike. Prints means over all turns, and peak memory.
Usage: cpu_turns.py BRIM THREADS TURNS SECONDS_A_TURN [--sgemm BENCH_CPU_OPS] [PEER ...]"""
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

TOKENS, STEP_GFLOP, WARM_STEPS = 4096, 277.8, 2  # of a step, as bench_cpu_ops counts it
SGEMM_GFLOP = 2 * 2048**3 * 1e-9  # a line of bench_cpu_ops


class Program:
    def __init__(self, name, command, lines, env=None, mark=""):
        self.name, self.lines, self.mark, self.active_s, self.first = name, lines, mark, 0.0, 0
        self.child = subprocess.Popen(command, env=dict(os.environ, PYTHONUNBUFFERED="1", **(env or {})),
                                      stdout=subprocess.DEVNULL if mark else open(lines, "w"),
                                      stderr=subprocess.DEVNULL, start_new_session=True)
        self.turn(0, WARM_STEPS)
        self.active_s, self.first = 0.0, self.steps()

    def steps(self):
        try:
            return sum(self.mark in line for line in open(self.lines))
        except FileNotFoundError:
            return 0

    def turn(self, seconds, more=0):
        """Runs for so long, and on until it has ended so many more steps; then stops within milliseconds."""
        begin = time.monotonic()
        os.killpg(self.child.pid, signal.SIGCONT)
        time.sleep(seconds)
        last = self.steps() + more
        while self.steps() < last:
            if self.child.poll() is not None:
                sys.exit(f"{self.name} ended before its turns did")
            time.sleep(0.002)
        os.killpg(self.child.pid, signal.SIGSTOP)
        self.active_s += time.monotonic() - begin

    def rate(self):
        return (self.steps() - self.first) / self.active_s

    def end(self):
        os.killpg(self.child.pid, signal.SIGKILL)
        return os.wait4(self.child.pid, 0)[2].ru_maxrss / 1024


def main(brim, threads, turns, seconds, *rest):
    sgemm, peer = (rest[1], rest[2:]) if rest[:1] == ("--sgemm",) else (None, rest)
    recipe = pathlib.Path(__file__).resolve().parent.parent / "tests/gpu/bytes.yaml"
    with tempfile.TemporaryDirectory() as work:
        command = [brim, "train", recipe, "run=x", "device=cpu", "precision=fp32", f"step_tokens={TOKENS}",
            "threads=" + threads, "log_every=1",
                   "steps=100000", "optim.warmup=2", "eval.sequences=1", "eval.every=0", "checkpoint.every=0"]
        run = {"brim": Program("brim", command, work + "/x/metrics.jsonl", {"BRIM_RUNS": work}, '"loss"')}
        if sgemm:
            run["sgemm"] = Program("sgemm", [sgemm, threads, "sgemm"], work + "/sgemm")
        if peer:
            run["peer"] = Program("peer", [*peer, threads], work + "/peer")
        for turn in range(int(turns)):
            for p in run.values():
                p.turn(float(seconds), turn + 1 == int(turns))
        rate = {name: p.rate() for name, p in run.items()}
        rss = {name: p.end() for name, p in run.items()}
        for name in rate:
            if name != "sgemm":
                print(f"{name}, {threads} threads: {rate[name] * TOKENS:,.0f} tokens/s "
                      f"in {run[name].active_s:.0f} s, {rss[name]:.0f} MiB")
        if peer:
            print(f"ratio {rate['brim'] / rate['peer']:.3f}")
        if sgemm:
            ours, theirs = rate["brim"] * STEP_GFLOP, rate["sgemm"] * SGEMM_GFLOP
            print(f"OpenBLAS, {threads} threads: {theirs:.1f} GFLOP/s, "
                  f"Brim's step {ours:.1f}, {100 * ours / theirs:.0f} % of it")


main(*sys.argv[1:])
