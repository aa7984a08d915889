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
