#include "conf/needless.h"

#include "base/err.h"
#include "base/str.h"

#include <string.h>

static const struct {
    const char *names; /* comma list */
    const char *why;
} needless[] = {
    { "gradient_accumulation_steps,grad_accum_steps,accumulate_grad_batches,accumulation_steps,grad_accum",
      "it follows from step_tokens or step_samples, and micro_batch" },
    { "pin_memory,non_blocking", "batches are always pinned, and copied beside the step" },
    { "persistent_workers", "loader threads always stay" },
    { "drop_last", "every step has all of its samples" },
    { "compile,torch_compile,use_compile", "passes are always fused; keys of opt switch fusions off" },
    { "flash_attn,flash_attention,use_flash_attn,attn_implementation,sdpa", "opt.flash is on" },
    { "fused,fused_adam,fused_adamw,foreach", "the optimizer is always one pass" },
    { "cudnn_benchmark,max_autotune,autotune", "opt.tune is on" },
    { "cuda_graphs,use_cuda_graph,cuda_graph", "opt.graphs is on" },
    { "channels_last", "layouts are fixed" },
    { "strategy,ddp", "gpus: N, torchrun, mpirun or srun say it (docs/from-pytorch.md)" },
    { "resume,auto_resume,resume_from_checkpoint,resume_from,ckpt_path",
      "the same command goes on with a run" },
    { "epochs,epoch,n_epochs,num_epochs,max_epochs,num_train_epochs,train_epochs",
      "a run is as long as steps says: epochs x data.train / what a step takes" },
    { "warmup_ratio,warmup_fraction,warmup_epochs", "optim.warmup counts steps" },
    { "shuffle", "training data are always shuffled, by seed" },
    { "fsdp,fsdp_config,zero,zero_stage,zero_optimization,deepspeed,deepspeed_config,tensor_parallel,"
      "tensor_parallel_size,pipeline_parallel,pipeline_parallel_size",
      "each GPU holds the whole model: Brim has no sharded parameters yet" },
    { "cpu_offload,offload,offload_optimizer,offload_param",
      "nothing is moved to the host: recompute and give_way save memory" },
    { "lora,lora_r,lora_rank,lora_alpha,lora_dropout,use_lora,target_modules,peft,use_peft,peft_config,"
      "adapter",
      "Brim has no LoRA: a weight is trained whole or, by freeze, not at all" },
    { "load_in_8bit,load_in_4bit,quantization,quantization_config,quantize,qlora,bnb_4bit_quant_type",
      "Brim has no quantised weights; give_way: [weights] can keep them in bf16 alone" },
    { "wandb,use_wandb,wandb_project,report_to,logger,with_tracking",
      "metrics.jsonl has all values; watch.tensorboard and watch.web show them" },
};

const char *needless_why(const char *name)
{
    const char *dot = strrchr(name, '.'), *leaf = dot ? dot + 1 : name;
    for (int i = 0; i < ARRAY_LEN(needless); i++)
        if (str_list_has(needless[i].names, leaf)) return needless[i].why;
    return NULL;
}
