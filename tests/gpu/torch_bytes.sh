#!/usr/bin/env bash
# Brim against PyTorch on real text, same weights and batches, 300 steps in bf16.
# Usage: torch_bytes.sh BUILD_FOLDER
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd); bin=$(cd "$1" && pwd)
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
export BRIM_RUNS=$work
# With next to no learning rate the checkpoint of step 1 holds the initial weights.
"$bin/brim" train "$here/bytes.yaml" run=init steps=1 optim.lr=1e-12 optim.min_lr=0 optim.warmup=0 \
    2>"$work/init.log"
"$bin/brim" train "$here/bytes.yaml" run=bytes 2>"$work/train.log"
"$bin/tests/gpu/dump_batches" "$here/bytes.yaml" $((300 * 256)) "$work/batches.bin"
python3 "$here/torch_bytes.py" "$work/init/checkpoints/step-00000001" "$work/batches.bin" \
    "$work/bytes/metrics.jsonl"
