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

for name in batch_size gradient_accumulation_steps num_workers persistent_workers prefetch_factor \
    pin_memory drop_last channels_last num_steps update_epochs minibatch_size gradient_checkpointing \
    max_autotune cudnn_benchmark manual_seed use_deterministic_algorithms bf16 fp16 half tf32 \
    allow_tf32 torch_dtype use_amp epochs num_train_epochs max_epochs max_train_steps warmup_ratio \
    lr_scheduler_type clip_grad_norm max_norm max_length max_seq_length output_dir ckpt_path \
    log_every_n_steps val_check_interval seed_everything attention_dropout hidden_dropout_prob \
    requires_grad wandb report_to shuffle fsdp deepspeed cpu_offload lora lora_r peft load_in_8bit \
    dataset eval_strategy dataloader_num_workers checkpoint_dir hflip label_smoothing; do
    "$brim" plan "$here/recipes/quickstart.yaml" "$name=1" >said 2>&1
    [ $? -eq 2 ] &&
        grep -qE "$name: (unknown key \((did you mean|.* a key of task)|there is no such key: \w)" said
    verdict "$name is answered" $? "$(cat said)"
done
exit "$failed"
