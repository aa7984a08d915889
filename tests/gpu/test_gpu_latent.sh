#!/usr/bin/env bash
# Task latent on the GPU: PyTorch's losses and gradients (tests/test_latent.c, if it is built and libcmocka is
# installed), then the command line, with two ranks on the one card (tests/test_latent.sh).
build=$(realpath "${1:-build}")
tests=$(cd "$(dirname "$0")/.." && pwd)
export LATENT_DEVICE=${LATENT_DEVICE:-cuda}
beside=$(mktemp -d); trap 'rm -rf "$beside"' EXIT
name="latents have PyTorch's losses and gradients"
failed=0
cp "$build/tests/test_latent" "$beside" 2>/dev/null
ln -s "$build/libbrim_cuda.so" "$beside" # a program looks for the CUDA half beside itself
if ! ldd "$beside/test_latent" 2>&1 | grep -q 'libcmocka.* => /'; then
    echo "skip: tests/test_latent is not built, or libcmocka is not installed"
elif (cd "$tests/.." && "$beside/test_latent") >"$beside/said" 2>&1; then
    echo "ok $name"
else
    echo "not ok $name: $(tail -n 3 "$beside/said" | tr '\n' ' ')"
    failed=1
fi
bash "$tests/test_latent.sh" "$build" && exit $failed
