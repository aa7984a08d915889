#!/usr/bin/env python3
"""Brim's byte model (tests/gpu/bytes.yaml, f32, 4,096 tokens a step) on the CPU beside another program that prints a line after every such
step: the two by turns of some seconds on the same CPUs, one stopped while the other runs, so that a machine shared with others is as
noisy for both. Tokens/s over all turns, and peak memory. Usage: cpu_turns.py BRIM THREADS TURNS [SECONDS_A_TURN [PEER ...]]"""
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

TOKENS, WARM_STEPS, SECONDS = 4096, 2, 4.0


class Program:
    def __init__(self, name, command, env, out, lines):
        self.name, self.lines, self.mark, self.active_s = name, lines, '"loss"' if name == "brim" else "", 0.0
        self.child = subprocess.Popen(command, env=env, stdout=open(out, "w"), stderr=subprocess.DEVNULL, start_new_session=True)

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

    def end(self):
        os.killpg(self.child.pid, signal.SIGKILL)
        return os.wait4(self.child.pid, 0)[2].ru_maxrss / 1024


def main(brim, threads, turns, seconds=SECONDS, *peer):
    recipe = pathlib.Path(__file__).resolve().parent.parent / "tests/gpu/bytes.yaml"
    with tempfile.TemporaryDirectory() as work:
        command = [brim, "train", recipe, "run=x", "device=cpu", "precision=fp32", f"step_tokens={TOKENS}", "threads=" + threads, "log_every=1",
                   "steps=100000", "optim.warmup=2", "eval.sequences=1", "eval.every=0", "checkpoint.every=0"]
        both = [Program("brim", command, dict(os.environ, BRIM_RUNS=work), work + "/brim", work + "/x/metrics.jsonl")]
        both[0].turn(0, WARM_STEPS)
        if peer:
            both.append(Program("peer", [*peer, threads], dict(os.environ, PYTHONUNBUFFERED="1"), work + "/peer", work + "/peer"))
            both[1].turn(0, WARM_STEPS)
        first = [p.steps() for p in both]
        for p in both:
            p.active_s = 0.0
        for turn in range(int(turns)):
            for p in both:
                p.turn(float(seconds), turn + 1 == int(turns))
        rates = [(p.steps() - n) * TOKENS / p.active_s for p, n in zip(both, first)]
        for p, rate in zip(both, rates):
            print(f"{p.name}, {threads} threads: {rate:,.0f} tokens/s in {p.active_s:.0f} s, {p.end():.0f} MiB")
        if peer:
            print(f"ratio {rates[0] / rates[1]:.3f}")


main(*sys.argv[1:])
