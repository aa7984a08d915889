/* Descriptors, the choice of an algorithm, launching.
 *
 * 1. Sums are f32 always: reduction in a 16-bit output type is masked out. f32 inputs are multiplied in f32
 *    unless the tf32 option is on.
 * 2. The choice comes from the tune cache, else from timing, else it is the library's first proposal.
 *    `deterministic` never times, since timing noise would change the order of sums from run to run.
 * 3. A bias is cuBLASLt's epilogue (one rounding, as on the CPU). If a separate pass over y is measured
 *    faster, or the epilogue is not supported, the bias is a separate pass (two roundings). */
#include "dev/cuda/cuda_gemm_plan.h"

#include "dev/cuda/cuda_check.h"
#include "dev/cuda/cuda_gemm.h"
#include "dev/cuda/cuda_move.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char        *name;
    cublasLtEpilogue_t lt;
    int                has_bias, has_aux;
} epi_row[] = {
    [EPI_NONE]      = { "none", CUBLASLT_EPILOGUE_DEFAULT, 0, 0 },
    [EPI_BIAS]      = { "bias", CUBLASLT_EPILOGUE_BIAS, 1, 0 },
    [EPI_GELU]      = { "gelu_aux", CUBLASLT_EPILOGUE_GELU_AUX, 0, 1 },
    [EPI_GELU_BIAS] = { "gelu_aux_bias", CUBLASLT_EPILOGUE_GELU_AUX_BIAS, 1, 1 },
};

static int key_is_fp8(const GemmKey *k) { return k->a == DT_E4M3 || k->a == DT_E5M2; }

const char *gemm_key_text(const CudaDev *d, const GemmKey *k, char *buf, size_t n)
{
    snprintf(buf, n, "gemm %c%c %s %s %s %lld %lld %lld %lld %lld %lld %d %s:%lld %lld%s%s align %d %d %d",
             k->ta ? 'T' : 'N', k->tb ? 'T' : 'N', dtype_name((DType)k->a), dtype_name((DType)k->b),
             dtype_name((DType)k->d), (long long)k->m, (long long)k->n, (long long)k->k, (long long)k->lda,
             (long long)k->ldb, (long long)k->ldd, k->beta, epi_row[k->epi].name, (long long)k->ld_aux,
             (long long)k->ws_bytes, d->base.opt.tf32 && k->a == DT_F32 ? " tf32" : "",
             k->fast ? " fast" : "", k->align_a, k->align_b, k->align_d);
    return buf;
}

/* ---- descriptors --------------------------------------------------------------------------------------- */

static int lt_type(int32_t dtype, cudaDataType_t *out)
{
    switch ((DType)dtype) {
    case DT_F32: *out = CUDA_R_32F; return 0;
    case DT_BF16: *out = CUDA_R_16BF; return 0;
    case DT_F16: *out = CUDA_R_16F; return 0;
    case DT_E4M3: *out = CUDA_R_8F_E4M3; return 0;
    case DT_E5M2: *out = CUDA_R_8F_E5M2; return 0;
    default: return err_set("no matrix product for %s", dtype_name((DType)dtype));
    }
}

static int lt_failed(const char *what, cublasStatus_t s)
{
    return err_set("cuBLASLt %s: %s", what, cublasLtGetStatusString(s));
}

/* Column-major layout of a row-major matrix whose op() gives rows x cols. */
static cublasStatus_t layout_create(cublasLtMatrixLayout_t *l, cudaDataType_t type, int transposed,
                                    int64_t rows, int64_t cols, int64_t ld)
{
    int64_t r = transposed ? cols : rows, c = transposed ? rows : cols;
    return cublasLtMatrixLayoutCreate(l, type, (uint64_t)r, (uint64_t)c, ld);
}

/* Keeps the first failure in *s. */
static void op_set(cublasStatus_t *s, cublasLtMatmulDesc_t op, cublasLtMatmulDescAttributes_t name,
                   const void *v, size_t n)
{
    if (!*s) *s = cublasLtMatmulDescSetAttribute(op, name, v, n);
}

static cublasStatus_t op_attributes(cublasLtMatmulDesc_t op, const GemmKey *k, cudaDataType_t d_type)
{
    cublasOperation_t  ta = k->ta ? CUBLAS_OP_T : CUBLAS_OP_N, tb = k->tb ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasLtEpilogue_t epi  = epi_row[k->epi].lt;
    int32_t            type = (int32_t)d_type;
    cublasStatus_t     s    = CUBLAS_STATUS_SUCCESS;
    op_set(&s, op, CUBLASLT_MATMUL_DESC_TRANSA, &ta, sizeof ta);
    op_set(&s, op, CUBLASLT_MATMUL_DESC_TRANSB, &tb, sizeof tb);
    op_set(&s, op, CUBLASLT_MATMUL_DESC_EPILOGUE, &epi, sizeof epi);
    /* The heuristic refuses epilogues whose pointers are not set; every launch sets the real ones. */
    void *some = (void *)(uintptr_t)4096;
    if (key_is_fp8(k)) {
        int8_t fast = (int8_t)k->fast;
        op_set(&s, op, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof fast);
        op_set(&s, op, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &some, sizeof some);
        op_set(&s, op, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &some, sizeof some);
    }
    if (epi_row[k->epi].has_bias) {
        op_set(&s, op, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type, sizeof type);
        op_set(&s, op, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &some, sizeof some);
    }
    if (epi_row[k->epi].has_aux) {
        op_set(&s, op, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &k->ld_aux, sizeof k->ld_aux);
        op_set(&s, op, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, &type, sizeof type);
        op_set(&s, op, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &some, sizeof some);
    }
    return s;
}

static int plan_describe(CudaDev *d, GemmPlan *p)
{
    const GemmKey      *k = &p->key;
    cudaDataType_t      a = CUDA_R_32F, b = CUDA_R_32F, c = CUDA_R_32F;
    cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
    TRY(lt_type(k->a, &a));
    TRY(lt_type(k->b, &b));
    TRY(lt_type(k->d, &c));
    if (a != b && !key_is_fp8(k)) {
        return err_set("matrix product of %s and %s", dtype_name((DType)k->a), dtype_name((DType)k->b));
    }
    if (a == CUDA_R_32F && d->base.opt.tf32) compute = CUBLAS_COMPUTE_32F_FAST_TF32;
    cublasStatus_t s = cublasLtMatmulDescCreate(&p->op, compute, CUDA_R_32F);
    if (!s) s = op_attributes(p->op, k, c);
    if (!s) s = layout_create(&p->la, a, k->ta, k->m, k->k, k->lda);
    if (!s) s = layout_create(&p->lb, b, k->tb, k->k, k->n, k->ldb);
    if (!s) s = layout_create(&p->ld, c, 0, k->m, k->n, k->ldd);
    return s ? lt_failed("descriptor", s) : 0;
}

static void plan_destroy(GemmPlan *p)
{
    if (p->ld) cublasLtMatrixLayoutDestroy(p->ld);
    if (p->lb) cublasLtMatrixLayoutDestroy(p->lb);
    if (p->la) cublasLtMatrixLayoutDestroy(p->la);
    if (p->op) cublasLtMatmulDescDestroy(p->op);
    free(p);
}

static void pref_set(cublasStatus_t *s, cublasLtMatmulPreference_t f,
                     cublasLtMatmulPreferenceAttributes_t name, const void *v, size_t n)
{
    if (!*s) *s = cublasLtMatmulPreferenceSetAttribute(f, name, v, n);
}

/* The library's proposals within the workspace bound, best guess first. */
static int plan_propose(CudaDev *d, GemmPlan *p, Proposal h[GEMM_PROPOSALS], int *n)
{
    const GemmKey *k    = &p->key;
    uint64_t       ws   = (uint64_t)k->ws_bytes;
    uint32_t       mask = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, al_a = (uint32_t)k->align_a;
    uint32_t       al_b = (uint32_t)k->align_b, al_d = (uint32_t)k->align_d;
    int            found = 0;
    /* In place means adding up in the output type, in an order that counters fix: good enough when that is
     * f32. */
    if (k->d == DT_F32 && !d->base.opt.deterministic) mask |= CUBLASLT_REDUCTION_SCHEME_INPLACE;
    cublasLtMatmulPreference_t f = NULL;
    cublasStatus_t             s = cublasLtMatmulPreferenceCreate(&f);
    pref_set(&s, f, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &ws, sizeof ws);
    pref_set(&s, f, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &mask, sizeof mask);
    pref_set(&s, f, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &al_a, sizeof al_a);
    pref_set(&s, f, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &al_b, sizeof al_b);
    pref_set(&s, f, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &al_d, sizeof al_d);
    pref_set(&s, f, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &al_d, sizeof al_d);
    *n = 0;
    if (!s) {
        cublasStatus_t hs = cublasLtMatmulAlgoGetHeuristic(d->gemm->lt, p->op, p->la, p->lb, p->ld, p->ld, f,
                                                           GEMM_PROPOSALS, h, &found);
        if (hs) found = 0; /* NOT_SUPPORTED: no proposals */
    }
    if (f) cublasLtMatmulPreferenceDestroy(f);
    if (s) return lt_failed("preference", s);
    for (int i = 0; i < found; i++) {
        if (h[i].state == CUBLAS_STATUS_SUCCESS) h[(*n)++] = h[i];
    }
    return 0;
}

/* ---- launching ----------------------------------------------------------------------------------------- */

cublasStatus_t gemm_launch_algo(CudaDev *d, GemmPlan *p, const cublasLtMatmulAlgo_t *algo, const GemmCall *c)
{
    float          alpha = 1.0f, beta = (float)p->key.beta;
    cublasStatus_t s = CUBLAS_STATUS_SUCCESS;
    if (epi_row[p->key.epi].has_bias) {
        s = cublasLtMatmulDescSetAttribute(p->op, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &c->bias,
                                           sizeof c->bias);
    }
    if (key_is_fp8(&p->key)) {
        op_set(&s, p->op, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &c->a_inv, sizeof c->a_inv);
        op_set(&s, p->op, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &c->b_inv, sizeof c->b_inv);
    }
    if (!s && epi_row[p->key.epi].has_aux) {
        s = cublasLtMatmulDescSetAttribute(p->op, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &c->aux,
                                           sizeof c->aux);
    }
    if (s) return s;
    return cublasLtMatmul(d->gemm->lt, p->op, &alpha, c->a, p->la, c->b, p->lb, &beta, c->d, p->ld, c->d,
                          p->ld, algo, c->ws, (size_t)p->key.ws_bytes, cuda_stream(&d->base));
}

GemmKey gemm_plain_key(const GemmKey *k)
{
    GemmKey plain = *k;
    plain.epi     = EPI_NONE;
    plain.bias    = 0;
    return plain;
}

int gemm_launch_split(CudaDev *d, GemmPlan *plain, const GemmCall *c)
{
    CudaMat        y = { c->d, (DType)c->key.d, c->key.n, c->key.m, c->key.ldd };
    cublasStatus_t s = gemm_launch_algo(d, plain, &plain->algo, c);
    if (s) return lt_failed("matmul", s);
    return cuda_bias_add(&d->base, &y, c->bias, (DType)c->key.bias);
}

int gemm_plan_launch(CudaDev *d, GemmPlan *p, const GemmCall *c)
{
    if (p->split_bias) {
        GemmPlan *plain = NULL;
        GemmKey   key   = gemm_plain_key(&p->key);
        TRY(gemm_plan_get(d, &key, &plain));
        return gemm_launch_split(d, plain, c);
    }
    cublasStatus_t s = gemm_launch_algo(d, p, &p->algo, c);
    return s ? lt_failed("matmul", s) : 0;
}

/* ---- choosing ------------------------------------------------------------------------------------------ */

static int plan_choose(CudaDev *d, GemmPlan *p)
{
    Proposal h[GEMM_PROPOSALS];
    int      n = 0;
    /* The epilogue takes a bias of the output's type only. */
    int can = !epi_row[p->key.epi].has_bias || p->key.bias == p->key.d;
    if (can) TRY(plan_propose(d, p, h, &n));
    if (n == 0) {
        char key[256];
        p->split_bias  = p->key.epi == EPI_BIAS;
        p->unsupported = epi_row[p->key.epi].has_aux;
        if (p->split_bias || p->unsupported) return 0;
        return err_set("cuBLASLt proposes nothing for %s", gemm_key_text(d, &p->key, key, sizeof key));
    }
    p->algo = h[0].algo;
    if (!d->base.opt.tune || d->base.opt.deterministic) return 0;
    if (gemm_plan_recall(d, p)) return 0;
    int rc = gemm_plan_time(d, p, h, n);
    if (rc > 0 && !d->gemm->told_untimed) {
        d->gemm->told_untimed = 1;
        cuda_note("no free memory to time matrix products in; using cuBLASLt's first proposals");
    }
    return rc < 0 ? -1 : 0;
}

/* ---- plans --------------------------------------------------------------------------------------------- */

int gemm_plan_get(CudaDev *d, const GemmKey *key, GemmPlan **out)
{
    CudaGemm *g = d->gemm;
    for (int i = 0; i < g->n_plan; i++) {
        if (memcmp(&g->plan[i]->key, key, sizeof *key) == 0) {
            *out = g->plan[i];
            return 0;
        }
    }
    GemmPlan *p = calloc(1, sizeof *p);
    CHECK(p, "out of host memory");
    p->key = *key;
    int rc = plan_describe(d, p);
    if (rc == 0) rc = plan_choose(d, p);
    if (!d->building) cuda_scratch_drop(d);
    if (rc < 0) {
        plan_destroy(p);
        return -1;
    }
    if (g->n_plan == g->cap) {
        g->cap  = g->cap ? 2 * g->cap : 64;
        g->plan = realloc(g->plan, (size_t)g->cap * sizeof *g->plan);
        CHECK(g->plan, "out of host memory");
    }
    g->plan[g->n_plan++] = p;
    *out                 = p;
    return 0;
}

size_t cuda_gemm_version(void) { return cublasLtGetVersion(); }

int cuda_gemm_open(CudaDev *d)
{
    d->gemm = calloc(1, sizeof *d->gemm);
    CHECK(d->gemm, "out of host memory");
    cublasStatus_t s = cublasLtCreate(&d->gemm->lt);
    return s ? lt_failed("create", s) : 0;
}

void cuda_gemm_close(CudaDev *d)
{
    if (!d->gemm) return;
    for (int i = 0; i < d->gemm->n_plan; i++) plan_destroy(d->gemm->plan[i]);
    if (d->gemm->lt) cublasLtDestroy(d->gemm->lt);
    free(d->gemm->plan);
    free(d->gemm);
    d->gemm = NULL;
}
