#include "dev/cuda/cuda_batched.h"

#include "base/err.h"
#include "dev/cuda/cuda_gemm_plan.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    BatchedKey             key;
    cublasLtMatmulDesc_t   op;
    cublasLtMatrixLayout_t layout[3];
    cublasLtMatmulAlgo_t   algo;
} BatchedPlan;

struct CudaBatched {
    BatchedPlan **plan;
    int           n_plan, cap;
};

static cudaDataType_t lt_type(int32_t dtype)
{
    return dtype == DT_F32 ? CUDA_R_32F : dtype == DT_BF16 ? CUDA_R_16BF : CUDA_R_16F;
}

static int lt_failed(const char *what, cublasStatus_t s)
{
    return err_set("batched product: cuBLASLt %s: %s", what, cublasLtGetStatusString(s));
}

static cublasStatus_t layout_create(cublasLtMatrixLayout_t *l, const BatchedKey *k, int i)
{
    int32_t        n = (int32_t)k->n_batch;
    cublasStatus_t s = cublasLtMatrixLayoutCreate(l, lt_type(k->dtype[i]), (uint64_t)k->rows[i],
                                                  (uint64_t)k->cols[i], k->ld[i]);
    if (!s) s = cublasLtMatrixLayoutSetAttribute(*l, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &n, sizeof n);
    if (!s) {
        s = cublasLtMatrixLayoutSetAttribute(*l, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &k->stride[i],
                                             sizeof k->stride[i]);
    }
    return s;
}

static cublasStatus_t plan_describe(CudaDev *d, BatchedPlan *p)
{
    const BatchedKey   *k       = &p->key;
    cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
    cublasOperation_t   ta = k->ta ? CUBLAS_OP_T : CUBLAS_OP_N, tb = k->tb ? CUBLAS_OP_T : CUBLAS_OP_N;
    if (k->dtype[BATCHED_A] == DT_F32 && d->base.opt.tf32) compute = CUBLAS_COMPUTE_32F_FAST_TF32;
    cublasStatus_t s = cublasLtMatmulDescCreate(&p->op, compute, CUDA_R_32F);
    if (!s) s = cublasLtMatmulDescSetAttribute(p->op, CUBLASLT_MATMUL_DESC_TRANSA, &ta, sizeof ta);
    if (!s) s = cublasLtMatmulDescSetAttribute(p->op, CUBLASLT_MATMUL_DESC_TRANSB, &tb, sizeof tb);
    for (int i = 0; i < 3 && !s; i++) s = layout_create(&p->layout[i], k, i);
    return s;
}

static cublasStatus_t plan_choose(CudaDev *d, BatchedPlan *p, int *found)
{
    static const cublasLtMatmulPreferenceAttributes_t aligned[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES
    };
    uint64_t ws     = (uint64_t)p->key.ws_bytes;
    uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, align = (uint32_t)p->key.align;
    cublasLtMatmulPreference_t f = NULL;
    Proposal                   h;
    cublasStatus_t             s = cublasLtMatmulPreferenceCreate(&f);
    if (!s)
        s = cublasLtMatmulPreferenceSetAttribute(f, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &ws, sizeof ws);
    if (!s)
        s = cublasLtMatmulPreferenceSetAttribute(f, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &scheme,
                                                 sizeof scheme);
    for (int i = 0; i < ARRAY_LEN(aligned) && !s; i++) {
        s = cublasLtMatmulPreferenceSetAttribute(f, aligned[i], &align, sizeof align);
    }
    *found = 0;
    if (!s)
        s = cublasLtMatmulAlgoGetHeuristic(d->gemm->lt, p->op, p->layout[BATCHED_A], p->layout[BATCHED_B],
                                           p->layout[BATCHED_D], p->layout[BATCHED_D], f, 1, &h, found);
    *found = !s && *found && h.state == CUBLAS_STATUS_SUCCESS;
    if (*found) p->algo = h.algo;
    if (f) cublasLtMatmulPreferenceDestroy(f);
    return s;
}

static void plan_destroy(BatchedPlan *p)
{
    for (int i = 2; i >= 0; i--) {
        if (p->layout[i]) cublasLtMatrixLayoutDestroy(p->layout[i]);
    }
    if (p->op) cublasLtMatmulDescDestroy(p->op);
    free(p);
}

static int plan_get(CudaDev *d, const BatchedKey *key, BatchedPlan **out)
{
    CudaBatched *c = d->batched;
    if (!c) c = d->batched = calloc(1, sizeof *c);
    CHECK(c, "out of host memory");
    for (int i = 0; i < c->n_plan; i++) {
        *out = c->plan[i];
        if (memcmp(&c->plan[i]->key, key, sizeof *key) == 0) return 0;
    }
    BatchedPlan *p = calloc(1, sizeof *p);
    CHECK(p, "out of host memory");
    p->key           = *key;
    int            n = 0;
    cublasStatus_t s = plan_describe(d, p);
    if (!s) s = plan_choose(d, p, &n);
    if (s || n == 0) {
        plan_destroy(p);
        return s ? lt_failed("plan", s) : err_set("batched product: cuBLASLt proposes nothing");
    }
    if (c->n_plan == c->cap) {
        c->cap  = c->cap ? 2 * c->cap : 16;
        c->plan = realloc(c->plan, (size_t)c->cap * sizeof *c->plan);
        CHECK(c->plan, "out of host memory");
    }
    c->plan[c->n_plan++] = p;
    *out                 = p;
    return 0;
}

int cuda_batched_prepare(CudaDev *d, const BatchedKey *key)
{
    BatchedPlan *p = NULL;
    return plan_get(d, key, &p);
}

int cuda_batched_run(CudaDev *d, const BatchedKey *key, const BatchedCall *c)
{
    BatchedPlan *p = NULL;
    TRY(plan_get(d, key, &p));
    cublasLtMatrixLayout_t *l = p->layout;
    cublasStatus_t s = cublasLtMatmul(d->gemm->lt, p->op, &c->alpha, c->a, l[BATCHED_A], c->b, l[BATCHED_B],
                                      &c->beta, c->c, l[BATCHED_D], c->d, l[BATCHED_D], &p->algo, c->ws,
                                      (size_t)key->ws_bytes, cuda_stream(&d->base));
    return s ? lt_failed("matmul", s) : 0;
}

void cuda_batched_close(CudaDev *d)
{
    if (!d->batched) return;
    for (int i = 0; i < d->batched->n_plan; i++) plan_destroy(d->batched->plan[i]);
    free(d->batched->plan);
    free(d->batched);
    d->batched = NULL;
}
