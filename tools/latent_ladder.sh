#!/usr/bin/env bash
# The ladder of task latent: from where the guide starts (published losses, eager, batch 4 x 4) to the whole.
# tools/latent_ladder.sh BUILD RECIPE [key=value ...]; a rung keeps those before. Brim in these
# configurations; the program in PyTorch itself is another yardstick (docs/performance.md). Under the guide's
# name: the factor that the guide gives for a rung; -: it gives none.
set -uo pipefail
brim=$1/brim
recipe=$2
shift 2
passes="opt.add_norm=false opt.norm_bwd=false opt.xent=false opt.act_bias=false opt.linear_act=false
opt.linear_act_bwd=false opt.act_slope=false opt.linear_glu_fwd=false opt.linear_glu_bwd=false
opt.linear_dw_bias=false opt.attn_rope=false opt.chunk_head=false"
small="step_samples=16 micro_batch=4" few="step_samples=16" many="latent.one_pass=false"
stored="opt.flash=false" tune="opt.tune=false" graphs="opt.graphs=false opt.prefetch=false"
said=$(mktemp); trap 'rm -f "$said"' EXIT
first=""
last=""

rung() { # name, the guide's factor, keys ...
    local name=$1 guide=${2:--} rate
    shift 2
    rate=$("$brim" bench "$recipe" latent.baselines=false --no-limit --seconds 2 --json "$@" 2>"$said" |
        tail -n 1 | sed -nE 's/.*"per_s": ([0-9.e+]+).*/\1/p')
    [ -n "$rate" ] || { printf '| %s | failed | | | %s |\n' "$name" "$guide"; tail -n 1 "$said" >&2; return; }
    awk -v n="$name" -v r="$rate" -v f="${first:-$rate}" -v l="${last:-$rate}" -v g="$guide" \
        'BEGIN { printf "| %s | %.1f | %.2fx | %.1fx | %s |\n", n, r, r / l, r / f, g }'
    first=${first:-$rate}
    last=$rate
}

echo "| rung | samples/s | factor | so far | the guide |"
echo "|---|---|---|---|---|"
# shellcheck disable=SC2086
{
    rung "as published: eleven passes, 4 x 4 samples" "" $small $many $stored $passes $tune $graphs "$@"
    rung "16 samples at a time" "" $few $many $stored $passes $tune $graphs "$@"
    rung "one pass" "" $few $stored $passes $tune $graphs "$@"
    rung "64 samples a step" "" $stored $passes $tune $graphs "$@"
    rung "flash attention" "up to 3x" $passes $tune $graphs "$@"
    rung "fused passes" "" $tune $graphs "$@"
    rung "tuned products" "up to 1.2x" $graphs "$@"
    rung "graphs, prefetch: the whole" "8 to 12x so far" "$@"
    rung "prompts of 30 to 512 bytes, packed" "" latent.least_bytes=30 "$@"
}
