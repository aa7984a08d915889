#!/usr/bin/env bash
# The models of tests/golden/hf.tar.xz on a GPU, in fp32: logits to 1e-4 of transformers', greedy samples
# equal or first different where the two best logits lie within 1e-4, also in a batch.
# shellcheck source=tests/shell_lib.sh
. "$(dirname "$0")/../shell_lib.sh"
here=$(cd "$here/.." && pwd) # this file lies one folder deeper
export BRIM_RUNS=$dir/runs
verify=$build/tests/verify_hf
tar xJf "$here/tests/golden/hf.tar.xz" -C "$dir" || { echo "skip: xz is not installed"; exit 0; }
gpu=(device=cuda precision=fp32)
for m in gpt2 llama llama31 llama-linear mistral qwen2 qwen3; do
    "$brim" import "$m" "run=$m" >said 2>&1
    verdict "import $m" $? "$(tail -n 2 said)"
    "$brim" eval "$m" "${gpu[@]}" --ids "$m/ids.txt" --logits out.npy >said 2>&1 &&
        "$verify" logits out.npy "$m/logits.f32" >cmp.txt 2>&1
    verdict "$m: logits to 1e-4" $? "$(tail -n 2 said) $(cat cmp.txt)"
    cut -d' ' -f1-16 "$m/ids.txt" >prompts.txt
    cut -d' ' -f1-40 "$m/ids.txt" >>prompts.txt
    "$brim" sample "$m" "${gpu[@]}" --prompt-file prompts.txt --tokens 200 --temperature 0 --ids 2>said |
        tail -n 2 | head -n 1 >ids.txt
    awk 'NR == FNR { split($0, want, " "); next } FILENAME ~ /gap/ { split($0, gap, " "); next }
         { split($0, got, " ") }
         END { for (i in want) if (got[i] != want[i] && (!first || i + 0 < first)) first = i + 0
               exit first && gap[first] > 1e-4 }' "$m/greedy.txt" "$m/gap.txt" ids.txt
    verdict "$m: 200 greedy tokens" $? "$(cat ids.txt)"
done
exit "$failed"
