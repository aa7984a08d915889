#!/usr/bin/env bash
# Every key in the right column of docs/from-pytorch.md is a key of Brim, every command one of its commands.
# Settings in the left column that recipes of other programs have are answered with Brim's name, or with why
# there is none.
# shellcheck source=tests/shell_lib.sh
. "$(dirname "$0")/shell_lib.sh"
doc=$here/docs/from-pytorch.md

# `key`, `key: value` and `brim command ...` of the last column.
right() { grep '^|' "$doc" | awk -F'|' '{ print $(NF - 1) }' | grep -oE '`[^`]+`' | tr -d '`' | sort -u; }
n=0
while read -r text; do
    case $text in
    torchrun | mpirun | srun | opt) continue ;;
    brim\ *) word=$(cut -d' ' -f2 <<<"$text") ;;
    *) word=${text%%:*} ;;
    esac
    "$brim" help "$word" >said 2>&1
    verdict "$text" $? "$(cat said)"
    n=$((n + 1))
done < <(right)
[ "$n" -ge 50 ]
verdict "the page names keys" $? "only $n were found"

for name in batch_size gradient_accumulation_steps num_workers persistent_workers prefetch_factor pin_memory \
    drop_last channels_last num_steps update_epochs minibatch_size gradient_checkpointing max_autotune \
    cudnn_benchmark manual_seed use_deterministic_algorithms; do
    "$brim" plan "$here/recipes/quickstart.yaml" "$name=1" >said 2>&1
    [ $? -eq 2 ] && grep -qE "$name: (unknown key \(did you mean|there is no such key: [a-z])" said
    verdict "$name is answered" $? "$(cat said)"
done
exit "$failed"
