#!/usr/bin/env bash
# Tests, op table and two peer ratios on this machine's GPU in under 8 minutes; writes JSON lines to $2
# (default gpu-suite.jsonl).
# Usage: gpu_suite.sh BUILD_FOLDER [OUT]. The peer needs PyTorch unless PEER names another command. Without a
# peer the ratios are left out, and a message says so.
set -uo pipefail
build=${1:-build}; out=${2:-gpu-suite.jsonl}
here=$(cd "$(dirname "$0")/.." && pwd)
: >"$out"
"$here/tools/test_gpu.sh" "$build" | tee /tmp/gpu_suite.$$; rc=${PIPESTATUS[0]}
echo "{\"tests\": \"$(tail -n 1 /tmp/gpu_suite.$$)\"}" >>"$out"; rm -f /tmp/gpu_suite.$$
for recipe in gpt2-124m qwen2.5-0.5b; do
    "$build/brim" bench "$here/recipes/$recipe.yaml" --ops --json >"$out.tmp" || rc=1
    head -n -1 "$out.tmp"; tail -n 1 "$out.tmp" >>"$out"
    if [ -n "${PEER:-}" ] || python3 -c 'import torch' 2>/dev/null; then
        ${PEER:-python3 "$here/tools/peer_torch.py"} "$recipe" 2>/dev/null | tail -n 1 | tee -a "$out"
    else
        echo "no PyTorch here: the ratio of $recipe is left out"
    fi
done
rm -f "$out.tmp"
python3 - "$out" <<'PY'
import json, sys
rate = {}
for line in open(sys.argv[1]):
    row = json.loads(line)
    if "per_s" in row:
        rate[row["recipe"], "peer" in row] = row["per_s"]
for (recipe, peer), value in list(rate.items()):
    if not peer and (recipe, True) in rate:
        print(f"{recipe}: {value:,.0f} tokens/s, {value / rate[recipe, True]:.3f}x of PyTorch")
PY
exit "$rc"
