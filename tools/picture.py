#!/usr/bin/env python3
"""Draws docs/run.svg: the terminal of a run and its loss curve. Usage: picture.py LOG METRICS_JSONL OUT.svg
LOG is `$ make run` and what that printed (2>&1); empty lines are left out, long lines and a long sample cut.
Only the standard library is used."""
import json
import sys
from html import escape


def curve(rows, key, box, color, width):
    x0, y0, w, h, steps, low, high = box
    points = " ".join(f"{x0 + w * s / steps:.1f},{y0 + h - h * (v - low) / (high - low):.1f}"
                      for s, v in rows[key])
    return f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="{width}"/>'


def main(log, metrics, out):
    most, width = 32, 96
    lines = [line.rstrip("\n") for line in open(log) if line.strip()][:most]
    lines = [line if len(line) <= width else line[: width - 3] + "..." for line in lines]
    rows = {"loss": [], "val_loss": []}
    for line in open(metrics):
        row = json.loads(line)
        for key in rows:
            if key in row:
                rows[key].append((row["step"], row[key]))
    steps = max(s for s, _ in rows["loss"])
    low, high = 1.0, max(v for _, v in rows["loss"]) + 0.2
    height = 36 + 17 * len(lines) + 14
    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" width="1120" height="{height}" '
           'font-family="monospace" font-size="12.5">',
           f'<rect width="1120" height="{height}" rx="8" fill="#16181d"/>']
    for i, line in enumerate(lines):
        color = "#8fd18f" if line.startswith("$") else "#e8e6df" if not line.startswith("[") else "#b9bec8"
        svg.append(
            f'<text x="18" y="{32 + 17 * i}" fill="{color}" xml:space="preserve">{escape(line)}</text>')
    x0, y0, w, h = 800, 60, 290, 200
    box = (x0, y0, w, h, steps, low, high)
    svg.append(f'<path d="M{x0},{y0} V{y0 + h} H{x0 + w}" fill="none" stroke="#5b616e"/>')
    for v in range(2, int(high) + 1):
        y = y0 + h - h * (v - low) / (high - low)
        svg.append(
            f'<text x="{x0 - 16}" y="{y + 4:.0f}" fill="#8a909c">{v}</text>'
            f'<path d="M{x0},{y:.1f} h{w}" stroke="#2a2e36"/>')
    svg += [curve(rows, "loss", box, "#6fb3e0", 1.5), curve(rows, "val_loss", box, "#e0a96f", 2.5),
            f'<text x="{x0 + 8}" y="{y0 - 12}" fill="#6fb3e0">loss</text>',
            f'<text x="{x0 + 60}" y="{y0 - 12}" fill="#e0a96f">validation loss</text>',
            f'<text x="{x0 + w - 70}" y="{y0 + h + 18}" fill="#8a909c">step {steps}</text>', "</svg>"]
    open(out, "w").write("\n".join(svg) + "\n")


main(*sys.argv[1:4])
