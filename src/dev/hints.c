/* What planning and measuring know about each backend. The hints are in this file, because a plan for a card
 * that is not in this computer needs them, too. */
#include "dev/dev.h"

const DevHints dev_hints_cpu = {
    .dtypes       = 1u << DT_F32,
    .slope_dtypes = 1u << DT_F32,
    .most_rows    = 8192, /* a few thousand rows fill every core; more only leave the caches */
    .chunk_bytes  = 4e6,  /* a chunk stays in cache */
    .margin_part  = 5,    /* the CPU shares its memory with everybody */
    .held_s       = 0.3,
    .gemm_side    = 2048,
    .copy_bytes   = 64 << 20,
    .op_passes    = 1,
    .flops_unit   = 1e9,
    .flops_name   = "GFLOP/s",
};

/* The CPU's, and late. */
const DevHints dev_hints_late = {
    .dtypes       = 1u << DT_F32,
    .slope_dtypes = 1u << DT_F32,
    .is_late      = 1,
    .most_rows    = 8192,
    .chunk_bytes  = 4e6,
    .margin_part  = 5,
    .held_s       = 0.3,
    .gemm_side    = 2048,
    .copy_bytes   = 64 << 20,
    .op_passes    = 1,
    .flops_unit   = 1e9,
    .flops_name   = "GFLOP/s",
};

const DevHints dev_hints_cuda = {
    .dtypes         = 1u << DT_F32 | 1u << DT_BF16 | 1u << DT_F16,
    .slope_dtypes   = 1u << DT_BF16, /* what own products store */
    .is_late        = 1,
    .times          = 1,
    .captures       = 1,
    .has_workspaces = 1,
    .most_rows      = 262144,
    .chunk_bytes    = 1.1e9, /* keeps the product near its full rate and leaves memory to the micro-batch */
    .grows_chunks   = 1,
    .margin_bytes =
        192u << 20, /* for what loads late; context, modules and handles are there before memory is read */
    .settle_s   = 1.25, /* until the power limit has settled the clocks; before, a GPU is faster */
    .held_s     = 2.5,
    .gemm_side  = 8192,
    .copy_bytes = 1 << 30,
    .op_passes  = 3,
    .flops_unit = 1e12,
    .flops_name = "TFLOP/s",
};

/* Plans as CUDA's, but slopes in any dtype, and no workspaces: they would be most of a small program. */
const DevHints dev_hints_null = {
    .dtypes       = 1u << DT_F32 | 1u << DT_BF16 | 1u << DT_F16,
    .slope_dtypes = ~0u,
    .is_late      = 1,
    .times        = 1,
    .captures     = 1,
    .most_rows    = 262144,
    .chunk_bytes  = 1.1e9,
    .grows_chunks = 1,
    .margin_bytes = 192u << 20,
    .settle_s     = 1.25,
    .held_s       = 2.5,
    .gemm_side    = 8192,
    .copy_bytes   = 1 << 30,
    .op_passes    = 3,
    .flops_unit   = 1e12,
    .flops_name   = "TFLOP/s",
};
