#!/usr/bin/env bash
# Builds each tests/fuzz/fuzz_NAME.c with libFuzzer, ASan and UBSan and runs it for $2 seconds (0: only builds
# it) from tests/fuzz/corpus/NAME, as many at a time as there are CPUs. Sources that several of them need are
# compiled once, and again when they or their headers change. Prints "ok fuzz NAME" or "not ok fuzz NAME".
# Needs clang; without clang the fuzzers are skipped, and a message says so.
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

newer() { # object: than the source and headers it was made from
    local f
    [ -e "${1%.o}.d" ] || return 1
    for f in $(sed 's/^[^:]*://; s/\\$//' "${1%.o}.d"); do [ "$1" -nt "$f" ] || return 1; done
}

compile() { # source
    local obj
    obj=$build/fuzz/obj/${1//\//_}.o
    newer "$obj" ||
        $clang -std=gnu11 -g -O1 -fsanitize=fuzzer-no-link,address,undefined \
            -fno-sanitize-recover=undefined -Isrc -MMD -c -o "$obj" "$1"
}

link() { # name
    local f=tests/fuzz/fuzz_$1.c exe=$build/fuzz/$1 s o obj=() old=
    for s in $f $(sources "$f"); do obj+=("$build/fuzz/obj/${s//\//_}.o"); done
    for o in "${obj[@]}"; do [ "$exe" -nt "$o" ] || old=1; done
    [ -n "$old" ] || return 0
    $clang -fsanitize=fuzzer,address,undefined -o "$exe" "${obj[@]}" -l:libyaml.a -l:libjansson.a \
        -l:libxxhash.a -l:libpcre2-8.a -l:libutf8proc.a -l:libjpeg.a -l:libpng.a -l:libz.a -l:libzstd.a \
        -lm -lpthread
}

run() { # name
    local exe=$build/fuzz/$1 work
    link "$1" || { echo "not ok fuzz $1: does not build"; return 1; }
    [ "$seconds" -gt 0 ] || return 0
    work=$(mktemp -d)
    if timeout $((seconds + 60)) "$exe" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 \
        -verbosity=0 -artifact_prefix="$work/" "$work" "tests/fuzz/corpus/$1" >"$work/log" 2>&1; then
        echo "ok fuzz $1"; rm -rf "$work"
    else
        echo "not ok fuzz $1"; tail -n 25 "$work/log"; rm -rf "$work"; return 1
    fi
}
export -f compile link newer run sources
export build seconds clang

for f in tests/fuzz/fuzz_*.c; do echo "$f"; sources "$f"; done | sort -u |
    xargs -P "$(nproc)" -I{} bash -c 'compile {}'
printf '%s\n' tests/fuzz/fuzz_*.c | sed 's,.*/fuzz_,,; s,\.c$,,' | xargs -P "$(nproc)" -I{} bash -c 'run {}'
