#!/usr/bin/env python3
"""Says of each claim about a GPU whether the measurements in a folder hold it (tools/measure.sh).

verdict.py OUT: for each claim whose part ran a row: what was wanted, what was measured, and "holds", "FALLS
SHORT" or "not measured". Exit code 1 if any row falls short. Rows also go to OUT/verdict.json.
"""
import json
import re
import sys
from pathlib import Path

out = Path(sys.argv[1])


def text(name):
    path = out / f"{name}.txt"
    return path.read_text(errors="replace") if path.exists() else None


def number(word):
    try:
        return float(word.replace(",", ""))
    except ValueError:
        return None


def find(name, pattern, which=0):
    """The number that a pattern's group has in a part's words; None: it is not there."""
    found = re.findall(pattern, text(name) or "", re.M)
    return number(found[which]) if found else None


def ratio(a, b):
    return a / b if a is not None and b else None


rows = []


def claim(part, what, measured, least=None, most=None, unit="x"):
    if text(part) is None:
        return
    wanted = f"at least {least:g}" if least is not None else f"at most {most:g}"
    if measured is None:
        verdict = "not measured"
    else:
        short = measured < least if least is not None else measured > most
        verdict = "FALLS SHORT" if short else "holds"
    shown = "-" if measured is None else f"{measured:.4g}"
    rows.append((part, what, f"{wanted} {unit}", f"{shown} {unit}", verdict))


def checks(part, least):
    """A part that prints "ok NAME" and "not ok NAME"."""
    said = text(part)
    if said is None:
        return
    good, bad = [len(re.findall(p, said, re.M)) for p in (r"^ok ", r"^not ok ")]
    counted = re.findall(r"(\d+) passed, (\d+) failed", said)
    if counted:
        good, bad = int(counted[-1][0]), int(counted[-1][1])
    rows.append((part, "checks", f"{least} ok", f"{good} ok, {bad} not",
                 "FALLS SHORT" if bad else "holds" if good >= least else "not measured"))


def policies():
    case = lambda title: rf"^{re.escape(title)} .* ([0-9.]+)x +\S+(?: %)?$"
    rate = lambda title: rf"^{re.escape(title)} +\S+ +\S+ +([0-9,]+) "
    claim("ppo", "256 x 1,024, transformer, beside PyTorch", find("ppo", case("256 x 1024, transformer")), 3)
    claim("ppo", "4,096 x 64, transformer, beside PyTorch", find("ppo", case("4096 x 64, transformer")), 2)
    for place, least in ("CPU", 10), ("GPU", 40):
        title = f"4096 x 64, mlp, environments on the {place}"
        claim("ppo", title, ratio(find("ppo", rate(title)), 1e6), least, unit="M steps/s")
    claim("ppo", "CartPole, one core", find("ppo", r"cartpole, one core.*?([0-9.]+) ?M"), 8, unit="M steps/s")
    answer = r"answered in ([0-9.]+) us on the CPU \(99 %: ([0-9.]+) us\)"
    both = re.findall(answer, text("ppo") or "")
    claim("ppo", "an answer, median", number(both[0][0]) if both else None, most=20, unit="us")
    claim("ppo", "an answer, 99 %", number(both[0][1]) if both else None, most=50, unit="us")
    claim("ppo", "hybrid, an update", find("ppo", r"updating ([0-9.]+)"), most=0.5, unit="s")
    claim("ppo", "hybrid, transfers", find("ppo", r"; ([0-9.]+) transfers a step"), most=2, unit="")
    claim("ppo", "hybrid, kernels at work", find("ppo", r"kernels at work ([0-9.]+) %"), 70, unit="%")
    claim("ppo", "the suite", find("ppo", r"^(\d+) s$", -1), most=540, unit="s")
    checks("ppo-ranks", 3)
    claim("mujoco", "beside a bare loop of mj_step", find("mujoco", r"clock: bare.*: ([0-9.]+) %"), 90,
          unit="%")
    returns = [number(x) for x in re.findall(r"mean return (-?[0-9.]+) over", text("humanoid") or "")]
    claim("humanoid", "return, trained for 8 minutes, beside untrained",
          ratio(returns[-1], returns[0]) if len(returns) > 1 else None, 3)
    checks("doctor", 9)
    checks("watch", 8)


def precision():
    for recipe, least in ("gpt2-124m", 1.10), ("qwen2.5-0.5b", 1.18), ("qwen2.5-1.5b", 1.35), \
            ("llama-3b", 1.42), ("llama-8b", 1.45):
        rate = lambda form: find("precision-rates", rf"^{re.escape(recipe)} {form}: ([0-9]+)")
        claim("precision-rates", f"{recipe}, fp8 beside bf16", ratio(rate("fp8"), rate("bf16")), least)
    for recipe, least in ("qwen2.5-1.5b", 80), ("llama-3b", 84), ("llama-8b", 88):
        mfu = find("precision-rates", rf"^{re.escape(recipe)} fp8: .*MFU ([0-9.]+)")
        claim("precision-rates", f"{recipe}, MFU in fp8", mfu, least, unit="%")
    claim("precision-rates", "llama-8b, T 4,096", find("precision-rates", r"^llama-8b fp8: ([0-9]+)"), 18000,
          unit="tokens/s")
    rate = lambda form: find("precision-frozen", rf"^latent-llama-8b {form}: ([0-9.]+)")
    claim("precision-frozen", "a frozen 8B model in fp8", ratio(rate("fp8"), rate("bf16")), 1.5)
    share = find("precision-limit", r"limit share ([0-9.]+)")
    claim("precision-limit", "qwen2.5-1.5b in fp8, share of the limit", share, 0.87, unit="")
    last = lambda run, part: find(part, rf"^{run}: .*validation loss ([0-9.]+);$")
    claim("precision-loss", "fp8 beside bf16 after 500 steps",
          ratio(last("loss-fp8", "precision-loss"), last("loss-bf16", "precision-loss")), most=1.01)
    claim("precision-small", "fp16 beside bf16 after 200 steps",
          ratio(last("bytes-fp16", "precision-small"), last("bytes-bf16", "precision-small")), most=1.01)
    curves = text("precision-muon") or ""
    adamw = re.findall(r"^adamw-\S+: .*validation loss ([0-9.]+);$", curves, re.M)
    muon = " ".join(re.findall(r"^muon: .*", curves, re.M))
    muon = re.findall(r"step (\d+): validation loss ([0-9.]+)", muon)
    goal = min(map(float, adamw), default=0)
    there = [int(step) for step, loss in muon if float(loss) <= goal]
    claim("precision-muon", f"steps of Muon to AdamW's {goal:g} after 1,000", there[0] if there else None,
          most=750, unit="")
    rate = lambda kind: find("precision-muon", rf"^gpt2-124m {kind}: ([0-9]+)")
    claim("precision-muon", "a step of Muon beside AdamW's", ratio(rate("adamw"), rate("muon")), most=1.03)


def peers():
    def table(part, name, column):
        """Column of the row `name` of a table of peer_suite.sh, counted from its first number."""
        found = re.findall(rf"^{re.escape(name)} {{2,}}(.*)$", text(part) or "", re.M)
        words = found[-1].split() if found else []
        return number(words[column]) if len(words) > column else None

    for part, name, least in (
            ("images", "vit-b16", 1.20),
            ("images", "vit-l16", 1.15),
            ("images", "vit-1b", 1.10),
            ("images", "video-l16, 32 frames", 1.08),
            ("latents", "8B, teacher", 1.08),
            ("latents", "8B, no teacher", 1.12),
            ("latents", "8B, teacher, 30 to 512 bytes", 1.3),
            ("latents", "peer as published, batch 16", 4),
            ("latents", "peer as published, eager, 4 x 4", 20),
            ("latents", "Qwen2.5-1.5B, 256 samples", 1.25),
            ("latents", "Qwen2.5-1.5B, 64 samples", 1.25)):
        claim(part, f"{name}, beside PyTorch", table(part, name, 2), least)
    for name in "vit-b16", "vit-l16", "vit-1b", "video-l16, 32 frames":
        claim("images", f"{name}, share of the limit", table("images", name, 5), 0.88, unit="")
    claim("images", "vit-l16, power", table("images", "vit-l16", 6), 600, unit="W")
    claim("images", "vit-l16, utilisation", table("images", "vit-l16", 7), 98, unit="%")
    for data, noise, least in (
            ("vit-l16, JPEG files", "vit-l16, noise", 0.98),
            ("vit-b16, JPEG files", "vit-b16, noise", 0.95),
            ("video-l16, clips", "video-l16, noise", 0.98)):
        both = ratio(table("files", data, 0), table("files", noise, 0))
        claim("files", f"{data}, beside noise", both, least)
        off = find("files", rf"^{re.escape(data)}, loader .*: ([0-9.]+) of it")
        off = None if off is None else abs(off - 1)
        claim("files", f"{data}, headroom is true", off, most=0.2, unit="off")
    video = (text("ladders") or "").split("| samples/s | factor |")[0]
    so_far = re.findall(r"x \| +([0-9.]+)x \|", video)
    claim("ladders", "video, from the guide's start", number(so_far[-1]) if so_far else None, 20)


def texts():
    for part in "ops", "suite":
        checks(part, 300)
    checks("latent-test", 1)
    checks("latent-ranks", 6)
    for recipe in "gpt2-124m", "qwen2.5-0.5b":
        pattern = rf"^{re.escape(recipe)}: .* ([0-9.]+)x of PyTorch"
        claim("suite", f"{recipe}, beside PyTorch", find("suite", pattern), 1)
    claim("turns", "llama-1b, beside the older program", find("turns", r"new/old ([0-9.]+)"), 0.99)
    checks("racecheck", 1)
    ours = find("leaderboard", r"best validation loss: ([0-9.]+)")
    best = find("leaderboard-peer", r'"best_val_loss": ([0-9.]+)')
    claim("leaderboard-peer", "the leaderboard's loss beside PyTorch's", ratio(ours, best), most=1)


policies()
precision()
peers()
texts()
wide = [max([len(r[i]) for r in rows] + [0]) for i in range(4)]
for row in rows:
    print("  ".join(cell.ljust(n) for cell, n in zip(row, wide)) + "  " + row[4])
(out / "verdict.json").write_text(json.dumps(rows, indent=1))
sys.exit(any(row[4] == "FALLS SHORT" for row in rows))
