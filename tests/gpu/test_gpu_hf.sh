#!/usr/bin/env bash
# The models of tests/golden/hf.tar.xz and those of tests/verify_rope.c on a GPU, in fp32: logits to 1e-4 of
# transformers' or the reference's, greedy samples equal or first different where the two best logits lie
# within 1e-4, also in a batch.
# shellcheck source=tests/shell_lib.sh
. "$(dirname "$0")/../shell_lib.sh"
here=$(cd "$here/.." && pwd) # this file lies one folder deeper
export BRIM_RUNS=$dir/runs
verify=$build/tests/verify_hf
tar xJf "$here/tests/golden/hf.tar.xz" -C "$dir" || { echo "skip: xz is not installed"; exit 0; }
gpu=(device=cuda precision=fp32)
compare() { # folder, greedy tokens, length of a second prompt, keys of the import ...
    "$brim" import "$1" "run=$1" "${@:4}" >said 2>&1
    verdict "import $1" $? "$(tail -n 2 said)"
    "$brim" eval "$1" "${gpu[@]}" --ids "$1/ids.txt" --logits out.npy >said 2>&1 &&
        "$verify" logits out.npy "$1/logits.f32" >cmp.txt 2>&1
    verdict "$1: logits to 1e-4" $? "$(tail -n 2 said) $(cat cmp.txt)"
    cut -d' ' -f1-16 "$1/ids.txt" >prompts.txt
    cut -d' ' -f1-"$3" "$1/ids.txt" >>prompts.txt
    "$brim" sample "$1" "${gpu[@]}" --prompt-file prompts.txt --tokens "$2" --temperature 0 --ids 2>said |
        tail -n 2 | head -n 1 >ids.txt
    awk 'NR == FNR { split($0, want, " "); next } FILENAME ~ /gap/ { split($0, gap, " "); next }
         { split($0, got, " ") }
         END { for (i in want) if (got[i] != want[i] && (!first || i + 0 < first)) first = i + 0
               exit first && gap[first] > 1e-4 }' "$1/greedy.txt" "$1/gap.txt" ids.txt
    verdict "$1: $2 greedy tokens" $? "$(cat ids.txt)"
}
for m in gpt2 llama llama31 llama-linear mistral qwen2 qwen3; do compare "$m" 200 40; done
# YaRN, longrope and Phi-3 against the tests' own reference. A run of longrope ends at its first context.
for m in $("$build/tests/verify_rope" list); do
    "$build/tests/verify_rope" make "$m" "$m" || failed=1
    keys=(); [ "$m" != phi3-long ] || keys=(model.context=64)
    compare "$m" 40 20 "${keys[@]}"
done
exit "$failed"
