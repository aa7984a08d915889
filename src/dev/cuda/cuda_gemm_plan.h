/* Plans of matrix products: shared between the slots (cuda_gemm.c), the plans (cuda_gemm_plan.c) and their
 * timing (cuda_gemm_time.c).
 *
 * 1. A plan is shared by all products with the same GemmKey; it holds descriptors and the chosen algorithm.
 *    Pointers are arguments of a launch, never part of a plan. */
#ifndef DEV_CUDA_CUDA_GEMM_PLAN_H
#define DEV_CUDA_CUDA_GEMM_PLAN_H

#include "dev/cuda/cuda_dev.h"

/* The header declares functions without prototypes. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wstrict-prototypes"
#include <cublasLt.h>
#pragma GCC diagnostic pop

enum { GEMM_PROPOSALS = 32 }; /* algorithms asked for */

typedef enum { EPI_NONE, EPI_BIAS, EPI_GELU, EPI_GELU_BIAS } GemmEpi;

/* Compared bytewise: no padding, and zeroed before it is filled. */
typedef struct {
    int64_t m, n, k, lda, ldb, ldd, ld_aux, ws_bytes;
    int32_t ta, tb;                    /* 1: transposed */
    int32_t a, b, d, bias;             /* DType */
    int32_t epi, beta;                 /* GemmEpi; 0 or 1 */
    int32_t align_a, align_b, align_d; /* bytes, a power of two up to 256 */
    int32_t fast;                      /* fp8: sums with fewer bits */
} GemmKey;

typedef struct {
    GemmKey     key;
    const void *a, *b, *bias;
    const void *a_inv, *b_inv; /* fp8: device addresses of what the factors are multiplied by */
    void       *d, *aux, *ws;
} GemmCall;

typedef struct {
    GemmKey                key;
    cublasLtMatmulDesc_t   op;
    cublasLtMatrixLayout_t la, lb, ld;
    cublasLtMatmulAlgo_t   algo;
    int                    split_bias;  /* run the plain product, then cuda_bias_add */
    int                    unsupported; /* cuBLASLt proposes nothing for this epilogue */
} GemmPlan;

typedef cublasLtMatmulHeuristicResult_t Proposal;

struct CudaGemm {
    cublasLtHandle_t lt;
    GemmPlan       **plan;
    int              n_plan, cap;
    int              told_untimed; /* the missing memory was mentioned */
};

/* Finds the plan or builds it: cached choice, timing, or the library's first proposal. -1 after err_set(). */
int gemm_plan_get(CudaDev *d, const GemmKey *key, GemmPlan **out);
/* Launches the product as the plan says. -1 after err_set(). */
int gemm_plan_launch(CudaDev *d, GemmPlan *p, const GemmCall *c);

/* The key of the same product without an epilogue. */
GemmKey gemm_plain_key(const GemmKey *k);
/* One launch with a given algorithm; no err_set(), since a refusal while timing is no error. */
cublasStatus_t gemm_launch_algo(CudaDev *d, GemmPlan *p, const cublasLtMatmulAlgo_t *algo, const GemmCall *c);
/* The plain product, then the bias in a pass of its own. -1 after err_set(). */
int gemm_launch_split(CudaDev *d, GemmPlan *plain, const GemmCall *c);

/* Sets the plan's choice from the tune cache: 1 if it had one that this library still accepts. */
int gemm_plan_recall(CudaDev *d, GemmPlan *p);
/* Sets the plan's choice by timing n proposals, and remembers it. 1 when nothing could be timed, -1 after
 * err_set(). */
int gemm_plan_time(CudaDev *d, GemmPlan *p, const Proposal *h, int n);

/* "gemm TN bf16 ...": what a line of the tune cache is found by. Writes into buf and returns it. */
const char *gemm_key_text(const CudaDev *d, const GemmKey *k, char *buf, size_t n);

#endif
