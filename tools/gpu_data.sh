#!/usr/bin/env bash
# Fetches what measurements on a GPU read, for a machine without a network; tools/measure.sh unpacks it there.
# Usage: gpu_data.sh OUT (build/brim or $BRIM cuts clips and trains a tokenizer). What is there already stays.
#   OUT/text.tar.xz      documents of fetch_text.sh, GPT-2's tokenizer, one of 32,000 ids: 18 MiB
#   OUT/pictures.tar.xz  photographs and an album of clips of fetch_pictures.sh: 30 MiB
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd); to=$(realpath -m "${1:?folder}"); mkdir -p "$to"
export BRIM; BRIM=$(realpath "${BRIM:-$here/../build/brim}")
work=$to/work
if [ ! -s "$to/text.tar.xz" ]; then
    "$here/fetch_text.sh" "$work/text" >/dev/null
    "$here/fetch_tokenizers.sh" "$work/tokenizers" >/dev/null
    mkdir -p "$work/text/gpt2"
    cp "$work"/tokenizers/gpt2/models/tokenizer*.json "$work/text/gpt2/"
    tar -C "$work/text" --exclude=./set -c . | xz -T0 -9e >"$to/text.tmp"
    mv "$to/text.tmp" "$to/text.tar.xz"
fi
if [ ! -s "$to/pictures.tar.xz" ]; then
    "$here/fetch_pictures.sh" photos "$work/photos"
    "$here/fetch_pictures.sh" clips "$work/clips"
    tar -C "$work" -c photos clips | xz -T0 -1 >"$to/pictures.tmp"
    mv "$to/pictures.tmp" "$to/pictures.tar.xz"
fi
ls -l "$to"/*.tar.xz
