#!/usr/bin/env bash
# Fetches other programs' writers of Parquet from npm into folder $1, versions pinned: Rust's arrow, compiled
# to WebAssembly, and hyparquet-writer; with --all DuckDB as well, which is 70 MB. A folder that is complete
# stays. Exit code 1 when anything is missing.
set -uo pipefail
to=${1:?folder}; all=${2:-}
wanted=(parquet-wasm@0.8.0 apache-arrow@21.2.0 hyparquet-writer@0.17.0)
[ "$all" = --all ] && wanted+=(@duckdb/node-api@1.5.6-r.1)
mark=$to/.complete${all:+-all}
[ -e "$mark" ] && exit 0
command -v npm >/dev/null || { echo "fetch: npm is not installed" >&2; exit 1; }
mkdir -p "$to" || exit 1
echo '{ "private": true }' >"$to/package.json"
if (cd "$to" && npm install --silent --no-audit --no-fund --ignore-scripts "${wanted[@]}" >/dev/null 2>&1)
then
    touch "$mark"
else
    echo "fetch: ${wanted[*]} could not be fetched" >&2; exit 1
fi
