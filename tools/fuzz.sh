#!/usr/bin/env bash
# Builds each tests/fuzz/fuzz_NAME.c with libFuzzer, ASan and UBSan and runs it for $2 seconds from
# tests/fuzz/corpus/NAME, as many at a time as there are CPUs. Sources that several of them need are compiled
# once. Prints "ok fuzz NAME" or "not ok fuzz NAME". Needs clang; without clang the fuzzers are skipped, and a
# message says so.
set -uo pipefail
build=${1:-build}; seconds=${2:-10}
clang=$(command -v clang || command -v clang-14 || true)
[ -n "$clang" ] || { echo "skip: clang is not installed"; exit 0; }
mkdir -p "$build/fuzz/obj"

sources() { # of a target, as its head comment lists them; one a line
    # shellcheck disable=SC2046
    printf '%s\n' $(awk '/ sources: / { on = 1; sub(/.* sources: /, "") }
        on { sub(/^ \* /, ""); ends = sub(/ *\*\/.*/, ""); print; if (ends) exit }' "$1")
}

compile() { # source: its object, unless that is newer than all headers
    local obj
    obj=$build/fuzz/obj/$(tr / _ <<<"$1").o
    [ "$obj" -nt "$1" ] && [ -z "$(find src -name '*.h' -newer "$obj" -print -quit)" ] ||
        $clang -std=gnu11 -g -O1 -fsanitize=fuzzer-no-link,address,undefined -Isrc -c -o "$obj" "$1"
}

run() { # name
    local f=tests/fuzz/fuzz_$1.c exe=$build/fuzz/$1 work obj=()
    for s in $f $(sources "$f"); do obj+=("$build/fuzz/obj/$(tr / _ <<<"$s").o"); done
    $clang -fsanitize=fuzzer,address,undefined -o "$exe" "${obj[@]}" -l:libyaml.a -l:libjansson.a \
        -l:libxxhash.a -l:libpcre2-8.a -l:libutf8proc.a -l:libjpeg.a -l:libpng.a -l:libz.a -l:libzstd.a \
        -lm -lpthread || { echo "not ok fuzz $1: does not build"; return 1; }
    work=$(mktemp -d)
    if timeout $((seconds + 60)) "$exe" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 \
        -verbosity=0 -artifact_prefix="$work/" "$work" "tests/fuzz/corpus/$1" >"$work/log" 2>&1; then
        echo "ok fuzz $1"; rm -rf "$work"
    else
        echo "not ok fuzz $1"; tail -n 25 "$work/log"; rm -rf "$work"; return 1
    fi
}
export -f compile run sources
export build seconds clang

for f in tests/fuzz/fuzz_*.c; do echo "$f"; sources "$f"; done | sort -u |
    xargs -P "$(nproc)" -I{} bash -c 'compile {}'
printf '%s\n' tests/fuzz/fuzz_*.c | sed 's,.*/fuzz_,,; s,\.c$,,' | xargs -P "$(nproc)" -I{} bash -c 'run {}'
