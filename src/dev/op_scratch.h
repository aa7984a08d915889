/* Bounds that a workspace and its kernel must agree on: op_cost.c sizes workspaces by these bounds, and
 * dev/cuda stays within them. */
#ifndef DEV_OP_SCRATCH_H
#define DEV_OP_SCRATCH_H

enum {
    /* NVIDIA's recommendation for cuBLASLt on Hopper; algorithms that want more are not considered. */
    GEMM_WS_BYTES = 32 * 1024 * 1024,
    /* Column sums (norm, bias, qk-norm weight gradients) are two-stage: one f32 partial row per block, at
     * most this many. */
    COLSUM_BLOCKS = 264,
    /* SUMSQ: one double per block. */
    SUMSQ_BLOCKS = 2048,
    /* ORTHO: one double per part of a matrix. */
    ORTHO_PARTS = 64,
    /* STATS: three doubles per block. */
    STATS_BLOCKS = 256,
    /* QUANT works on tiles of so many rows. */
    QUANT_ROWS = 128,
    /* Attention in tiles: work counters, one a kernel. */
    ATTN_COUNTER_BYTES = 256,
    /* One new token: the keys of a sequence are cut into at most this many parts. */
    ATTN_DECODE_PARTS = 64,
};

#endif
