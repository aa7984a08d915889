#!/usr/bin/env bash
# Checks that every #include "folder/..." in src/ points to the includer's own folder or to one earlier in
# src/LAYERS, that each folder named there exists, and that foreign headers stay in their rooms (CUDA in
# dev/cuda and comm/nccl, MPI in comm). Also: folders above the tasks name no task, and folders above src/dev
# rarely ask for the kind of a device. Kernels keep nothing in device globals.
set -euo pipefail
cd "$(dirname "$0")/.."
grep -v '^#' src/LAYERS | while read -r d; do
    [ -d "src/$d" ] || { echo "src/LAYERS: there is no folder $d"; exit 1; }
done
awk '
    BEGIN { while ((getline line < "src/LAYERS") > 0) if (line !~ /^#/ && line != "") rank[line] = ++n }
    function folder(path) { sub(/^src\//, "", path); sub(/\/[^\/]*$/, "", path); return path }
    function room(d) { while (!(d in rank) && d ~ /\//) sub(/\/[^\/]*$/, "", d); return d }
    FNR == 1 {
        own = room(folder(FILENAME))
        if (!(own in rank)) { print FILENAME ": folder is not in src/LAYERS"; bad = 1 }
    }
    /^#include "/ {
        split($0, part, "\""); inc = part[2]
        if (inc !~ /\//) { print FILENAME ":" FNR ": include \"" inc "\" without its folder"; bad = 1; next }
        dir = inc; sub(/\/[^\/]*$/, "", dir); dir = room(dir)
        if (!(dir in rank)) { print FILENAME ":" FNR ": " inc " is in no layer"; bad = 1 }
        else if (rank[dir] > rank[own]) { print FILENAME ":" FNR ": " own " may not include " inc; bad = 1 }
    }
    /^#include <(cuda|cublas|cudnn|nccl|nvml|cupti|mma)/ && own != "dev/cuda" && FILENAME !~ /comm\/nccl/ {
        print FILENAME ":" FNR ": CUDA header outside dev/cuda"; bad = 1
    }
    /^#include <mpi/ && own != "comm" { print FILENAME ":" FNR ": MPI header outside comm"; bad = 1 }
    END { exit bad }
' $(find src -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh')
long=$(find src tests -name '*.[ch]' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' | xargs wc -l |
    awk '$2 != "total" && $1 > 900 { print $2 ": " $1 " lines, over 900" }')
[ -z "$long" ] || { echo "$long"; exit 1; }
# A folder that a person can know: each file has one reason.
n_run=$(ls src/run | wc -l)
[ "$n_run" -le 32 ] || { echo "src/run has $n_run files, more than 32"; exit 1; }

# What runs, saves, measures and watches a job serves every task: it knows no task by name and no task's unit.
# The secret that the web page asks visitors for is called a token by browsers and recipes (watch.token): its
# files are left out.
secret='^src/watch/((http|gate|runwatch)\.[ch]|page/page\.js|runs\.[ch]:[0-9]+:.*(token=|blotted))'
words='lm|task_(lm|image|latent|ppo)|(ppo|latent|image)\.[a-z_]+|[Tt]okens?|TOKENS?|model\.(context|vocab)'
named=$(grep -rnwE "$words" src/run src/ckpt src/bench src/watch | grep -vE "$secret" || true)
[ -z "$named" ] || { echo "$named"; echo "layers: these lines name one task; src/task alone may"; exit 1; }
# Two launches in flight would share a device global: what a kernel counts is in its workspace.
shared=$(grep -rnE '^ *(static |extern )*__device__ [^(]*(;|=)' src --include='*.cu' --include='*.cuh' |
    grep -vE '__device__ (const|constexpr) ' || true)
[ -z "$shared" ] || { echo "$shared"; echo "layers: a kernel keeps state in a device global"; exit 1; }
# A backend says what it is like in DevVt.hints. What asks its kind: ranks that must agree about it (comm.c).
above=$(awk '/^#/ || /^$/ { next } seen && !/^dev/ { print "src/" $1 } /^dev$/ { seen = 1 }' src/LAYERS)
asked=$(grep -rnE 'DEV_(CPU|CUDA|NULL)\b|\bDevKind\b|\bvt(->|\.)kind\b' $above || true)
[ "$(printf '%s' "$asked" | grep -c '')" -le 4 ] ||
    { echo "$asked"; echo "layers: more than 4 lines above src/dev ask the device's kind"; exit 1; }
echo "layers: ok"
