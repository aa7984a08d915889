/* Newton-Schulz steps of a batch of matrices: three batched cuBLASLt products a step, no other pass.
 *
 *     A = X X^T,  B = c A A + b A,  X' = B X + a X          R <= C
 *     A = X^T X,  B = c A A + b A,  X' = X B + a X          R > C
 *
 * 1. The sums b A and a X are the product's own C operand, in another place than its output.
 * 2. A and B are symmetric, so row-major and column-major are the same; X is cuBLASLt's column-major C x R.
 * 3. Workspace: X between steps, A, B, partial sums, the library's own. The last step writes y.
 * 4. A plan is shared by all products with the same key. Its algorithm is the library's first proposal that
 *    sums in f32 in a fixed order: the steps take less than 1 % of a training step. */
#include "dev/cuda/cuda_ortho.h"

#include "base/err.h"
#include "dev/cuda/cuda_gemm_plan.h"
#include "dev/cuda/kernels.h"
#include "dev/op_math.h"
#include "dev/op_scratch.h"

#include <stdlib.h>
#include <string.h>

/* Products of a step. */
typedef enum { GRAM, SQUARE, STEP } Which;

/* Compared bytewise: no padding, and zeroed before it is filled. */
typedef struct {
    int64_t n, R, C;
    int32_t dtype, which;
} OrthoKey;

typedef struct {
    OrthoKey               key;
    cublasLtMatmulDesc_t   op;
    cublasLtMatrixLayout_t la, lb, ld;
    cublasLtMatmulAlgo_t   algo;
} OrthoPlan;

struct CudaOrtho {
    OrthoPlan **plan;
    int         n_plan, cap;
};

static int lt_failed(const char *what, cublasStatus_t s)
{
    return err_set("ortho: cuBLASLt %s: %s", what, cublasLtGetStatusString(s));
}

/* ---- plans --------------------------------------------------------------------------------------------- */

/* A batch of column-major rows x cols matrices, one behind the other. */
static void layout_create(cublasStatus_t *s, cublasLtMatrixLayout_t *l, const OrthoKey *k, int64_t rows,
                          int64_t cols)
{
    cudaDataType_t type   = k->dtype == DT_F32 ? CUDA_R_32F : CUDA_R_16BF;
    int32_t        n      = (int32_t)k->n;
    int64_t        stride = rows * cols;
    if (!*s) *s = cublasLtMatrixLayoutCreate(l, type, (uint64_t)rows, (uint64_t)cols, rows);
    if (!*s) *s = cublasLtMatrixLayoutSetAttribute(*l, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &n, sizeof n);
    if (!*s)
        *s = cublasLtMatrixLayoutSetAttribute(*l, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride,
                                              sizeof stride);
}

/* In columns: GRAM is X^T X of the C x R matrix (tall: X X^T), STEP is X B (tall: B X). */
static cublasStatus_t plan_describe(CudaDev *d, OrthoPlan *p)
{
    const OrthoKey     *k    = &p->key;
    int                 tall = k->R > k->C;
    int64_t             side = MIN(k->R, k->C);
    cublasComputeType_t compute =
        k->dtype == DT_F32 && d->base.opt.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    cublasOperation_t ta = k->which == GRAM && !tall ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t tb = k->which == GRAM && tall ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasStatus_t    s  = cublasLtMatmulDescCreate(&p->op, compute, CUDA_R_32F);
    if (!s) s = cublasLtMatmulDescSetAttribute(p->op, CUBLASLT_MATMUL_DESC_TRANSA, &ta, sizeof ta);
    if (!s) s = cublasLtMatmulDescSetAttribute(p->op, CUBLASLT_MATMUL_DESC_TRANSB, &tb, sizeof tb);
    int a_is_x = k->which == GRAM || (k->which == STEP && !tall);
    int b_is_x = k->which == GRAM || (k->which == STEP && tall);
    layout_create(&s, &p->la, k, a_is_x ? k->C : side, a_is_x ? k->R : side);
    layout_create(&s, &p->lb, k, b_is_x ? k->C : side, b_is_x ? k->R : side);
    layout_create(&s, &p->ld, k, k->which == STEP ? k->C : side, k->which == STEP ? k->R : side);
    return s;
}

static int32_t matrix_align(const OrthoKey *k)
{
    int64_t side = MIN(k->R, k->C);
    size_t  all  = ((size_t)(k->R * k->C) | (size_t)(side * side)) * dtype_bytes((DType)k->dtype) | 16;
    return (int32_t)(all & -all);
}

static cublasStatus_t plan_choose(CudaDev *d, OrthoPlan *p, int *found)
{
    static const cublasLtMatmulPreferenceAttributes_t aligned[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES
    };
    uint64_t                   ws     = GEMM_WS_BYTES;
    uint32_t                   scheme = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    uint32_t                   align  = (uint32_t)matrix_align(&p->key);
    cublasLtMatmulPreference_t f      = NULL;
    Proposal                   h;
    cublasStatus_t             s = cublasLtMatmulPreferenceCreate(&f);
    if (!s)
        s = cublasLtMatmulPreferenceSetAttribute(f, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &ws, sizeof ws);
    if (!s)
        s = cublasLtMatmulPreferenceSetAttribute(f, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &scheme,
                                                 sizeof scheme);
    for (int i = 0; i < ARRAY_LEN(aligned) && !s; i++)
        s = cublasLtMatmulPreferenceSetAttribute(f, aligned[i], &align, sizeof align);
    *found = 0;
    if (!s)
        s = cublasLtMatmulAlgoGetHeuristic(d->gemm->lt, p->op, p->la, p->lb, p->ld, p->ld, f, 1, &h, found);
    *found = !s && *found && h.state == CUBLAS_STATUS_SUCCESS;
    if (*found) p->algo = h.algo;
    if (f) cublasLtMatmulPreferenceDestroy(f);
    return s;
}

static void plan_destroy(OrthoPlan *p)
{
    if (p->ld) cublasLtMatrixLayoutDestroy(p->ld);
    if (p->lb) cublasLtMatrixLayoutDestroy(p->lb);
    if (p->la) cublasLtMatrixLayoutDestroy(p->la);
    if (p->op) cublasLtMatmulDescDestroy(p->op);
    free(p);
}

static int plan_get(CudaDev *d, const Tensor *x, Which which, OrthoPlan **out)
{
    OrthoKey key;
    memset(&key, 0, sizeof key);
    key          = (OrthoKey){ x->dim[0], x->dim[1], x->dim[2], (int32_t)x->dtype, (int32_t)which };
    CudaOrtho *c = d->ortho;
    if (!c) c = d->ortho = calloc(1, sizeof *c);
    CHECK(c, "out of host memory");
    for (int i = 0; i < c->n_plan; i++) {
        *out = c->plan[i];
        if (memcmp(&c->plan[i]->key, &key, sizeof key) == 0) return 0;
    }
    OrthoPlan *p = calloc(1, sizeof *p);
    CHECK(p, "out of host memory");
    p->key           = key;
    int            n = 0;
    cublasStatus_t s = plan_describe(d, p);
    if (!s) s = plan_choose(d, p, &n);
    if (s || n == 0) {
        plan_destroy(p);
        return s ? lt_failed("plan", s) : err_set("ortho: cuBLASLt proposes nothing");
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

void cuda_ortho_close(CudaDev *d)
{
    if (!d->ortho) return;
    for (int i = 0; i < d->ortho->n_plan; i++) plan_destroy(d->ortho->plan[i]);
    free(d->ortho->plan);
    free(d->ortho);
    d->ortho = NULL;
}

/* ---- running ------------------------------------------------------------------------------------------- */

/* Where things are in the workspace. */
typedef struct {
    char   *X, *A, *B, *lt;
    double *sums;
} Space;

static int space_of(const Ortho *a, Space *out)
{
    const Tensor *x = a->x;
    size_t        n = (size_t)x->dim[0], side = (size_t)MIN(x->dim[1], x->dim[2]);
    size_t        square = tensor_align_up(n * side * side * dtype_bytes(x->dtype));
    size_t        sums   = tensor_align_up(n * ORTHO_PARTS * sizeof(double));
    size_t        all    = tensor_align_up(tensor_bytes(x)) + 2 * square + sums + GEMM_WS_BYTES;
    if (!a->ws || tensor_bytes(a->ws) < all)
        return err_set("ortho: workspace of %zu bytes, needs %zu", a->ws ? tensor_bytes(a->ws) : (size_t)0,
                       all);
    out->X    = a->ws->data;
    out->A    = out->X + tensor_align_up(tensor_bytes(x));
    out->B    = out->A + square;
    out->sums = (double *)(out->B + square);
    out->lt   = (char *)out->sums + sums;
    return 0;
}

/* d = alpha a b + beta c. */
typedef struct {
    const void *a, *b, *c;
    void       *d;
    float       alpha, beta;
} Product;

static int run_product(CudaDev *d, const Tensor *x, Which which, const Space *w, const Product *t)
{
    OrthoPlan *p = NULL;
    TRY(plan_get(d, x, which, &p));
    cublasStatus_t s =
        cublasLtMatmul(d->gemm->lt, p->op, &t->alpha, t->a, p->la, t->b, p->lb, &t->beta, t->c, p->ld, t->d,
                       p->ld, &p->algo, w->lt, GEMM_WS_BYTES, cuda_stream(&d->base));
    return s ? lt_failed("matmul", s) : 0;
}

static int take_step(CudaDev *d, const Tensor *x, const Space *w, const void *from, void *to, OrthoStep s)
{
    int     tall   = x->dim[1] > x->dim[2];
    Product gram   = { from, from, w->A, w->A, 1.0f, 0.0f };
    Product square = { w->A, w->A, w->A, w->B, s.c, s.b };
    Product step   = { tall ? w->B : from, tall ? from : w->B, from, to, 1.0f, s.a };
    TRY(run_product(d, x, GRAM, w, &gram));
    TRY(run_product(d, x, SQUARE, w, &square));
    return run_product(d, x, STEP, w, &step);
}

int cuda_ortho(Dev *dev, const Ortho *a)
{
    CudaDev *d = (CudaDev *)dev;
    Space    w = { 0 };
    TRY(space_of(a, &w));
    void *at[2] = { a->y->data, w.X }; /* the last step writes y */
    TRY(cuda_ortho_start(dev, at[ORTHO_STEPS % 2], a->x, w.sums));
    for (int i = 0; i < ORTHO_STEPS; i++) {
        int which = (ORTHO_STEPS - i) % 2;
        TRY(take_step(d, a->x, &w, at[which], at[1 - which], ortho_step(i)));
    }
    return 0;
}

int cuda_ortho_prepare(CudaDev *d, const Op *op)
{
    OrthoPlan *p = NULL;
    if (op->kind != OP_ORTHO) return 0;
    for (int which = GRAM; which <= STEP; which++) TRY(plan_get(d, op->args.ortho.x, (Which)which, &p));
    return 0;
}
