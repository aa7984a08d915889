#!/usr/bin/env bash
# Installs the Debian/Ubuntu packages that Brim needs, if any is missing: `setup.sh run` for building and
# running, `setup.sh test` (the default) for the tests as well. Some packages are optional. Without clang the
# fuzzers are skipped, without a browser the test of the page, without SLURM the test of its jobs, without
# Pillow or the pictures some tests of images. Without FFmpeg's headers videos cannot be read.
set -euo pipefail
need=(gcc make libyaml-dev libjansson-dev libxxhash-dev libpcre2-dev libutf8proc-dev
      libjpeg-dev libpng-dev zlib1g-dev libzstd-dev)
wish=(libmicrohttpd-dev libncurses-dev) # the web page and brim top; without them both say what is missing
if [ "${1:-test}" = test ]; then
    need+=(g++ libcmocka-dev xz-utils)
    wish+=(clang libclang-rt-dev python3-pil dataset-fashion-mnist opencv-doc
           libavformat-dev libavcodec-dev libswscale-dev
           libmujoco-dev libmujoco-samples python3 python3-numpy curl tmux prometheus chromium
           munge slurm-wlm)
    # The reference tokenizer runs under node, which need not come from Debian.
    command -v node >/dev/null && command -v npm >/dev/null || wish+=(nodejs npm)
fi

missing() {
    for p in "$@"; do
        dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'install ok installed' || echo "$p"
    done
}

install() {
    echo "setup: installing $*"
    DEBIAN_FRONTEND=noninteractive "${sudo[@]}" apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

mapfile -t need < <(missing "${need[@]}")
mapfile -t wish < <(missing ${wish[@]+"${wish[@]}"})
[ ${#need[@]} -eq 0 ] && [ ${#wish[@]} -eq 0 ] && exit 0
if [ "$(id -u)" -eq 0 ]; then sudo=(); elif sudo -n true 2>/dev/null; then sudo=(sudo); else
    [ ${#need[@]} -eq 0 ] && { echo "setup: going on without ${wish[*]}"; exit 0; }
    echo "setup: these packages are missing and this user may not install them. Please run:" >&2
    echo "    sudo apt-get install -y ${need[*]} ${wish[*]}" >&2
    exit 1
fi
"${sudo[@]}" apt-get update -qq
[ ${#need[@]} -eq 0 ] || install "${need[@]}"
# One at a time: releases differ in how they cut clang into packages.
for p in "${wish[@]}"; do install "$p" 2>/dev/null || echo "setup: going on without $p"; done
