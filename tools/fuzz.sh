#!/usr/bin/env bash
# Builds each tests/fuzz/fuzz_NAME.c with libFuzzer, ASan and UBSan and runs it for $2 seconds from
# tests/fuzz/corpus/NAME.
# Prints "ok fuzz NAME" or "not ok fuzz NAME". Needs clang; without clang the fuzzers are skipped, and a
# message says so.
set -uo pipefail
build=${1:-build}; seconds=${2:-10}
clang=$(command -v clang || command -v clang-14 || true)
[ -n "$clang" ] || { echo "skip: clang is not installed"; exit 0; }
mkdir -p "$build/fuzz"
read_by="src/base src/conf src/tensor src/file src/ckpt src/data src/text src/env src/watch"
rc=0
for f in tests/fuzz/fuzz_*.c; do
    name=$(basename "$f" .c); name=${name#fuzz_}
    exe="$build/fuzz/$name"
    if [ ! -x "$exe" ] || [ -n "$(find $read_by "$f" -newer "$exe" -print -quit)" ]; then
        need=$(awk '/ sources: / { on = 1; sub(/.* sources: /, "") }
            on { sub(/^ \* /, ""); ends = sub(/ *\*\/.*/, ""); print; if (ends) exit }' "$f")
        $clang -std=gnu11 -g -O1 -fsanitize=fuzzer,address,undefined -Isrc -o "$exe" "$f" $need \
            -l:libyaml.a -l:libjansson.a -l:libxxhash.a -l:libpcre2-8.a -l:libutf8proc.a -l:libjpeg.a \
            -l:libpng.a -l:libz.a -l:libzstd.a -lm -lpthread ||
            { echo "not ok fuzz $name: does not build"; rc=1; continue; }
    fi
    work=$(mktemp -d)
    if timeout $((seconds + 60)) "$exe" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 \
        -verbosity=0 \
        -artifact_prefix="$work/" "$work" "tests/fuzz/corpus/$name" >"$work/log" 2>&1; then
        echo "ok fuzz $name"
    else
        echo "not ok fuzz $name"; tail -n 25 "$work/log"; rc=1
    fi
    rm -rf "$work"
done
exit $rc
