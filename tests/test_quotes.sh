#!/usr/bin/env bash
# What the docs quote of `brim plan` is what it says today.
# shellcheck source=tests/shell_lib.sh
. "$(dirname "$0")/shell_lib.sh"

# A document, its words with RATE, BYTES or STEP in place of a figure, and a recipe with keys.
quoted() {
    local doc=$1 words=$2 recipe=$3
    shift 3
    "$brim" plan "$here/recipes/$recipe.yaml" "$@" --gpu h200 >out 2>err; rc=$?
    words=${words//RATE/$(sed -nE 's/^predicted .* a step, ([^ ]+) .*/\1/p' out)}
    words=${words//BYTES/$(sed -nE 's/^  total +[0-9]+  (.*)/\1/p' out)}
    words=${words//STEP/$(awk '/^predicted / { printf "%.0f ms", $2 }' out)}
    [ $rc -eq 0 ] && grep -qF -- "$words" "$here/$doc"
    verdict "$doc on $recipe $*" $? "exit code $rc, the plan says '$words': $(cat err)"
}
claims=docs/claims.md performance=docs/performance.md
quoted $claims '`brim plan leaderboard --gpu h200` predicts RATE in fp8' leaderboard
quoted $claims 'RATE in bf16 (leaderboard-before)' leaderboard-before
quoted $claims '`brim plan` predicts RATE with video-20m' video-20m
quoted $claims 'RATE with video-200m |' video-200m
quoted $performance '`brim plan` says RATE -> ' leaderboard precision=bf16
quoted $performance ' -> RATE; not measured' leaderboard
quoted $performance 'predicted without: RATE in BYTES |' llama-8b
quoted $performance '| STEP | 772 to 793 ms (four cards)' gpt2-124m

exit $failed
