#!/usr/bin/env bash
# Fuzzes each reader of files from the outside for FUZZ_S seconds (default 1) from the kept corpus. `make
# test-long` takes a minute for each.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
case ${1:-build} in *-asan) echo "skip: the fuzzers bring their own sanitizers"; exit 0 ;; esac
clang=$(command -v clang || command -v clang-14 || true)
[ -n "$clang" ] || { echo "skip: fuzzing needs clang"; exit 0; }
try=$(mktemp -d); trap 'rm -rf "$try"' EXIT
printf '%s\n' '#include <stddef.h>' \
    'int LLVMFuzzerTestOneInput(const unsigned char *p, size_t n) { return p == (void *)n; }' >"$try/try.c"
"$clang" -fsanitize=fuzzer,address,undefined -o "$try/try" "$try/try.c" 2>/dev/null ||
    { echo "skip: fuzzing needs clang's runtime libraries (libclang-rt-dev)"; exit 0; }
exec tools/fuzz.sh "${1:-build}" "${FUZZ_S:-1}"
