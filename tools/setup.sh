#!/usr/bin/env bash
# Installs the Debian/Ubuntu packages that Brim's build and tests need, if any is missing.
set -euo pipefail
need=(gcc make libyaml-dev libjansson-dev libxxhash-dev libopenblas-openmp-dev libcmocka-dev)
missing=()
for p in "${need[@]}"; do
    dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'install ok installed' || missing+=("$p")
done
[ ${#missing[@]} -eq 0 ] && exit 0
echo "setup: installing ${missing[*]}"
if [ "$(id -u)" -eq 0 ]; then sudo=(); elif sudo -n true 2>/dev/null; then sudo=(sudo); else
    echo "setup: these packages are missing and this user may not install them. Please run:" >&2
    echo "    sudo apt-get install -y ${missing[*]}" >&2
    exit 1
fi
"${sudo[@]}" apt-get update -qq
DEBIAN_FRONTEND=noninteractive "${sudo[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
