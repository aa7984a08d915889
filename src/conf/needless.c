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
    { "gpus,num_gpus,n_gpus,devices,num_devices,world_size,nproc_per_node,strategy,ddp",
      "the launcher says it: torchrun, mpirun or srun (docs/from-pytorch.md)" },
    { "resume,auto_resume,resume_from_checkpoint,resume_from", "the same command goes on with a run" },
};

const char *needless_why(const char *name)
{
    const char *dot = strrchr(name, '.'), *leaf = dot ? dot + 1 : name;
    for (int i = 0; i < ARRAY_LEN(needless); i++)
        if (str_list_has(needless[i].names, leaf)) return needless[i].why;
    return NULL;
}
