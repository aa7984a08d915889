#!/usr/bin/env bash
# Two programs take turns on this machine's GPU: OLD NEW OLD NEW ..., so that clocks and temperature are the
# same for both.
# Usage: gpu_turns.sh OLD_BUILD NEW_BUILD [PAIRS] [RECIPE=STEP_TOKENS ...]. Prints the median rate of each,
# the median of the ratios new/old of neighbours, and the median of old/old, which shows what chance alone
# gives.
set -uo pipefail
old=$1; new=$2; pairs=${3:-8}; shift 3 || true
here=$(cd "$(dirname "$0")/.." && pwd)
[ $# -gt 0 ] || set -- gpt2-124m=524288 qwen2.5-0.5b=131072 llama-1b=65536
rate() { # build, recipe, tokens
    BRIM_TUNE_CACHE="${TMPDIR:-/tmp}/turns-$(basename "$1").txt" "$1/brim" bench \
        "$here/recipes/$2.yaml" data.kind=random "step_tokens=$3" --no-limit --json |
        tail -n 1 | python3 -c 'import json,sys; r=json.load(sys.stdin); print(r["per_s"], r["startup_s"])'
}
for item in "$@"; do
    recipe=${item%%=*}; tokens=${item#*=}; log=$(mktemp)
    # both have tuned now
    rate "$old" "$recipe" "$tokens" >/dev/null; rate "$new" "$recipe" "$tokens" >/dev/null
    for ((i = 0; i < pairs; i++)); do
        echo "$(rate "$old" "$recipe" "$tokens") $(rate "$new" "$recipe" "$tokens")" >>"$log"
    done
    python3 - "$recipe" "$log" <<'PY'
import statistics as s, sys
rows = [list(map(float, l.split())) for l in open(sys.argv[2]) if len(l.split()) == 4]
old, new = [r[0] for r in rows], [r[2] for r in rows]
same = [b / a for a, b in zip(old, old[1:])]
print(f"{sys.argv[1]}: old {s.median(old):,.0f}, new {s.median(new):,.0f} tokens/s, "
      f"new/old {s.median(b / a for a, b in zip(old, new)):.4f} "
      f"(old/old {s.median(same):.4f}, {min(same):.4f} to {max(same):.4f}), "
      f"first step after {s.median(r[1] for r in rows):.2f} and {s.median(r[3] for r in rows):.2f} s, "
      f"{len(rows)} pairs", flush=True)
PY
    rm -f "$log"
done
