#!/usr/bin/env bash
# Packs what tests and measurements on a GPU need, for a machine without compiler and packages: the programs
# of BUILD_FOLDER without debug symbols, PyTorch's programs (the folder PEERS, if set), and MuJoCo with its
# humanoid, if installed here.
# Usage: gpu_pack.sh BUILD_FOLDER FILE.tar.xz. First: make ARCH=x86-64-v4 all gpu-tests
# build/tests/test_latent bench-env, and bench-cpu where OpenBLAS is.
# There:  tar xJf FILE.tar.xz -C FOLDER; FOLDER/install_mujoco.sh; tools/test_gpu.sh FOLDER
set -euo pipefail
build=$(realpath "$1") file=$(realpath -m "$2") peers=${PEERS:+$(realpath "$PEERS")}
cd "$(dirname "$0")/.."
stage=$(mktemp -d); trap 'rm -rf "$stage"' EXIT
mkdir -p "$stage/tests/gpu" "$stage/tests/toy" "$stage/mujoco"

pack() { [ ! -f "$build/$1" ] || strip -o "$stage/$1" "$build/$1"; }
for name in brim libbrim_cuda.so bench_env bench_cpu_ops tests/test_latent tests/toy/toy tests/verify_ckpt \
    tests/verify_hf tests/verify_events; do
    pack "$name"
done
for t in "$build"/tests/gpu/test_*; do
    [[ $t = *.d ]] || pack "tests/gpu/$(basename "$t")"
done
# Tests look for the CUDA half beside themselves.
ln -s ../libbrim_cuda.so "$stage/tests/"
for d in gpu toy; do ln -s ../../libbrim_cuda.so "$stage/tests/$d/"; done
${CC:-gcc} -O2 -shared -fPIC -Isrc/env -o "$stage/wide.so" tests/env/wide.c
[ -z "$peers" ] || cp -r "$peers" "$stage/peers"

# MuJoCo's library and those of its own that a bare system lacks.
mujoco=$(ldconfig -p | sed -n 's/.*libmujoco\.so\.[0-9.]* .* => //p' | head -n 1)
if [ -n "$mujoco" ] && [ -d /usr/share/mujoco/model/humanoid ]; then
    needs='/[^ ]*lib(ccd|lodepng|qhull_r|tinyxml2)\.so[^ ]*'
    for l in "$mujoco" $(ldd "$mujoco" | grep -oE "$needs"); do cp -L "$l" "$stage/mujoco/"; done
    cp -r /usr/share/mujoco/model/humanoid "$stage/mujoco/"
fi
cat >"$stage/install_mujoco.sh" <<'END'
#!/bin/sh
# Puts MuJoCo where programs look for it (as root); does nothing where it is installed.
cd "$(dirname "$0")/mujoco" || exit 1
! ldconfig -p | grep -q libmujoco || exit 0
mkdir -p /usr/share/mujoco/model
cp lib* /usr/local/lib/ && cp -rn humanoid /usr/share/mujoco/model/ && ldconfig
END
chmod +x "$stage/install_mujoco.sh"
tar -C "$stage" -c . | xz -T0 -6 >"$file"
echo "$file: $(($(stat -c %s "$file") >> 20)) MiB, $(git describe --always --dirty)"
