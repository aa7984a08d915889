/* What planning and measuring know about each backend. The hints are in this file, because a plan for a card
 * that is not in this computer needs them, too. */
#include "dev/dev.h"

/* clang-format off */
/* The CPU's; the late device computes on the CPU. A few thousand rows fill every core; more only leave the
 * caches. A chunk stays in cache. The CPU shares its memory with everybody. */
#define CPU_HINTS                      \
    .dtypes       = 1u << DT_F32,      \
    .slope_dtypes = 1u << DT_F32,      \
    .most_rows    = 8192,              \
    .chunk_bytes  = 4e6,               \
    .margin_part  = 5,                 \
    .held_s       = 0.3,               \
    .gemm_side    = 2048,              \
    .copy_bytes   = 64 << 20,          \
    .op_passes    = 1,                 \
    .flops_unit   = 1e9,               \
    .flops_name   = "GFLOP/s"

/* CUDA's; the null device plans as CUDA does. chunk_bytes keeps the product near its full rate and leaves
 * memory to the micro-batch. margin_bytes is for what loads late; context, modules and handles are there
 * before memory is read. After settle_s the power limit has settled the clocks; before, a GPU is faster. */
#define GPU_HINTS                                                    \
    .dtypes       = 1u << DT_F32 | 1u << DT_BF16 | 1u << DT_F16,     \
    .is_late      = 1,                                               \
    .times        = 1,                                               \
    .captures     = 1,                                               \
    .most_rows    = 262144,                                          \
    .chunk_bytes  = 1.1e9,                                           \
    .grows_chunks = 1,                                               \
    .margin_bytes = 192u << 20,                                      \
    .settle_s     = 1.25,                                            \
    .held_s       = 2.5,                                             \
    .gemm_side    = 8192,                                            \
    .copy_bytes   = 1 << 30,                                         \
    .op_passes    = 3,                                               \
    .flops_unit   = 1e12,                                            \
    .flops_name   = "TFLOP/s"
/* clang-format on */

const DevHints dev_hints_cpu  = { CPU_HINTS };
const DevHints dev_hints_late = { CPU_HINTS, .is_late = 1 };

/* slope_dtypes: what own products store. */
const DevHints dev_hints_cuda = { GPU_HINTS, .slope_dtypes = 1u << DT_BF16, .has_workspaces = 1 };
/* Slopes in any dtype, and no workspaces: they would be most of a small program. */
const DevHints dev_hints_null = { GPU_HINTS, .slope_dtypes = ~0u };
