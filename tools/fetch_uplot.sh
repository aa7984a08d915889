#!/usr/bin/env bash
# Fetches uPlot, which draws the web page's plots, from npm into folder $1: uplot.js, uplot.css and its
# licence. A checksum makes sure that the files are those of one release. If npm is missing or gives something
# else, the files are empty, and a message says so. The page then draws with its own small plotter. To try
# again, remove the folder.
set -uo pipefail
out=${1:-build/page}
version=1.6.32
mkdir -p "$out"
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT

fetch() {
    command -v npm >/dev/null || { why="npm is not installed"; return 1; }
    why="npm could not fetch uplot $version"
    (cd "$work" && timeout 60 npm pack --silent "uplot@$version" >/dev/null 2>&1 && tar xzf uplot-*.tgz) ||
        return 1
    why="what npm fetched is not uplot $version"
    (cd "$work/package" && sha256sum --status -c) <<'END' || return 1
19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f  dist/uPlot.iife.min.js
df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04  dist/uPlot.min.css
8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd  LICENSE
END
    cp "$work/package/LICENSE" "$out/uplot.license.txt" &&
        cp "$work/package/dist/uPlot.min.css" "$out/uplot.css" &&
        cp "$work/package/dist/uPlot.iife.min.js" "$out/uplot.js"
}

why=
if fetch; then
    echo "page: uPlot $version from npm"
else
    echo "page: $why; plots are drawn by the page's own small plotter"
    : >"$out/uplot.license.txt"; : >"$out/uplot.css"; : >"$out/uplot.js"
fi
