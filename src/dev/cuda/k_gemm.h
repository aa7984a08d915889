/* Brim's own matrix product for Hopper, with epilogues that cuBLASLt does not have or that are slow there: an
 * activation, a gated activation, or the derivative of either. The epilogue is computed while the tensor
 * cores work on the next tile. bf16 in, f32 sums. */
#ifndef DEV_CUDA_K_GEMM_H
#define DEV_CUDA_K_GEMM_H

#include "dev/cuda/cuda_tma.h"
#include "dev/op.h"

#ifdef __cplusplus
extern "C" {
#endif

/* p is the product a b, rounded to bf16 after the bias is added. Matrices named here are [rows, cols]. */
typedef enum {
    OWN_FWD,      /* out[0] = p */
    OWN_DX,       /* out[0] = p, b as [k, cols] */
    OWN_ACT,      /* out[0] = p, out[1] = act(p) */
    OWN_BOTH,     /* out[0] = act'(p), out[1] = act(p) */
    OWN_DACT,     /* out[0] = p * act'(in[0]); db += column sums of out[0] */
    OWN_GLU,      /* p by the halves of b: out[0] = g, out[1] = u; out[2] = act(g) * u */
    OWN_GLU_BOTH, /* out[0] = act'(g) * u, out[1] = act(g), out[2] = act(g) * u for GLU's g and u */
    OWN_GLU_ONLY, /* out[0] = act(g) * u */
    OWN_DGLU,     /* out[0], out[1] = gradients of act(in[0]) * in[1] for the output gradient p */
    OWN_DW        /* out[0] += a^T b in f32, not rounded; a is [k, rows]; db += sums of a's columns */
} OwnKind;

/* An output may be an input: each element is read before it is written, by the same thread. */
typedef struct {
    OwnKind     kind;
    Act         act;
    int64_t     rows, cols, k; /* cols of p; with GLUs of each half */
    const void *a;             /* [rows, k]; OWN_DW: [k, rows] */
    const void *b;             /* FWD, ACT, BOTH, GLUs: [cols, k], of GLUs the first half; else [k, cols] */
    const void *b2;            /* GLUs: the second half, [cols, k] */
    const void *bias;          /* FWD, ACT, BOTH: [cols], or NULL */
    void       *out[3];
    const void *in[2];
    int64_t     lda, ldb, ld_out[3], ld_in[2];
    float      *db;    /* OWN_DACT: f32[cols], OWN_DW: f32[rows], or NULL */
    float      *sums;  /* OWN_DACT's scratch for it: f32[own_gemm_sum_rows(rows)][cols] */
    int         fixed; /* OWN_DW: sums in an order fixed by the shape */
} OwnGemm;

int64_t own_gemm_sum_rows(int64_t rows);

/* NULL, or why this product cannot run here: strides or addresses that are no multiples of 16 bytes. */
const char *own_gemm_refuses(const OwnGemm *g);

/* 0, or -1 after err_set(). */
int own_gemm_launch(const OwnGemm *g, TmaEncode encode, int n_sm, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
