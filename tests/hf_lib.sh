#!/usr/bin/env bash
# What tests of Hugging Face folders share: `hf_golden NAME` unpacks tests/golden/NAME.tar.xz.
[ -w /dev/shm ] && export TMPDIR=/dev/shm # not a disk that others keep busy
# shellcheck source=tests/shell_lib.sh
. "$(dirname "$0")/shell_lib.sh"
export BRIM_RUNS=$dir/runs
unset BRIM_FAULT
verify=$build/tests/verify_hf
cpu=(device=cpu threads=1)
hf_golden() { # name
    tar xJf "$here/tests/golden/$1.tar.xz" -C "$dir" || { echo "skip: xz is not installed"; exit 0; }
}

brim() { timeout -k 5 60 "$brim" "$@" >said 2>&1 </dev/null; rc=$?; }
seen() { echo "exit code $rc: $(tail -n 4 said)"; }
# Exit code 2 and one line that has the words.
refused() { # name, words, command ...
    brim "${@:3}"
    [ "$rc" -eq 2 ] && [ "$(wc -l <said)" -eq 1 ] && grep -qF -- "$2" said
    verdict "$1" $? "$(seen)"
}

# Equal ids; or the first that differs stands where the two best logits lie within 1e-4.
same_greedy() { # ids, folder
    awk 'NR == FNR { split($0, want, " "); next } FNR == 1 && FILENAME ~ /gap/ { split($0, gap, " "); next }
         { split($0, got, " ") }
         END { for (i in want) if (got[i] != want[i] && (!first || i + 0 < first)) first = i + 0
               exit first && gap[first] > 1e-4 }' "$2/greedy.txt" "$2/gap.txt" "$1"
}

# Imports a folder with ids, logits and greedy tokens of somebody else's program, and compares.
as_reference() { # folder, greedy tokens, keys of the import ...
    brim import "$1" "run=$1" "${@:3}"
    verdict "import $1" "$rc" "$(seen)"
    brim eval "$1" "${cpu[@]}" --ids "$1/ids.txt" --logits out.npy
    "$verify" logits out.npy "$1/logits.f32" >cmp.txt 2>&1
    verdict "$1: logits to 1e-4" $? "$(seen) $(cat cmp.txt)"
    "$brim" sample "$1" "${cpu[@]}" --prompt-ids "$(cut -d' ' -f1-16 "$1/ids.txt")" --tokens "$2" \
        --temperature 0 --ids 2>said | tail -n 1 >ids.txt
    same_greedy ids.txt "$1"
    verdict "$1: $2 greedy tokens" $? "$(cat ids.txt)"
    brim export "$1" "x-$1" && "$verify" same "$1" "x-$1" >cmp.txt 2>&1
    verdict "$1: export(import(x)) is x" $? "$(seen) $(cat cmp.txt)"
}
