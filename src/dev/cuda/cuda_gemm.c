/* Matrix products through cuBLASLt.
 *
 * A row-major [R,C] matrix is cuBLASLt's column-major C x R one with the same leading dimension, so
 *     y[N,M]  = x w^T      is  D(MxN) = A^T B,  A = w, B = x      "TN"
 *     dx[N,K] = dy w       is  D(KxN) = A   B,  A = w, B = dy     "NN"
 *     dw[M,K] += dy^T x    is  D(KxM) = A B^T,  A = x, B = dy     "NT", D f32, beta 1
 *
 * 1. A plan is shared by all products with the same GemmKey; it holds descriptors and the chosen algorithm. Pointers
 *    are arguments of a launch, never part of a plan.
 * 2. Sums are f32 always: reduction in a 16-bit output type is masked out. f32 inputs are multiplied in f32 unless the
 *    tf32 option is on.
 * 3. Choice: cached, else timed (best of the proposals, with the real beta and random data), else the library's first
 *    proposal. `deterministic` never times, since timing noise would change the order of sums from run to run.
 * 4. A bias is either cuBLASLt's epilogue (one rounding, as the CPU has it) or, where that is measured faster or not
 *    supported, a pass of its own over y (two roundings).
 * 5. The GELU epilogue applies GELU to the f32 accumulator, while ACT_FWD applies it to `pre` as stored: the two
 *    differ by the rounding of pre. Measured on an H200 (3072x32768x768, bf16): epilogue 591 TFLOP/s, plain 821. */
#include "dev/cuda/cuda_gemm.h"

#include "dev/cuda/cuda_check.h"
#include "dev/cuda/cuda_move.h"
#include "dev/cuda/cuda_tune.h"
#include "dev/cuda/kernels.h"

/* The header declares functions without prototypes. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wstrict-prototypes"
#include <cublasLt.h>
#pragma GCC diagnostic pop

#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PROPOSALS = 32, FINALISTS = 6, ROUNDS = 5 };

typedef enum { EPI_NONE, EPI_BIAS, EPI_GELU, EPI_GELU_BIAS } GemmEpi;

static const struct {
    const char       *name;
    cublasLtEpilogue_t lt;
    int                has_bias, has_aux;
} epi_row[] = {
    [EPI_NONE]      = { "none", CUBLASLT_EPILOGUE_DEFAULT, 0, 0 },
    [EPI_BIAS]      = { "bias", CUBLASLT_EPILOGUE_BIAS, 1, 0 },
    [EPI_GELU]      = { "gelu_aux", CUBLASLT_EPILOGUE_GELU_AUX, 0, 1 },
    [EPI_GELU_BIAS] = { "gelu_aux_bias", CUBLASLT_EPILOGUE_GELU_AUX_BIAS, 1, 1 },
};

/* Compared bytewise: no padding, and zeroed before it is filled. */
typedef struct {
    int64_t m, n, k, lda, ldb, ldd, ld_aux, ws_bytes;
    int32_t ta, tb;                    /* 1: transposed */
    int32_t a, b, d, bias;             /* DType */
    int32_t epi, beta;                 /* GemmEpi; 0 or 1 */
    int32_t align_a, align_b, align_d; /* bytes, a power of two up to 256 */
    int32_t reserved;
} GemmKey;

typedef struct {
    GemmKey     key;
    const void *a, *b, *bias;
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

struct CudaGemm {
    cublasLtHandle_t lt;
    GemmPlan       **plan;
    int              n_plan, cap;
    int              told_untimed;
};

typedef cublasLtMatmulHeuristicResult_t Proposal;

static int plan_get(CudaDev *d, const GemmKey *key, GemmPlan **out);

/* ---- keys and calls ------------------------------------------------------------------------------------------ */

static int32_t alignment(const void *p)
{
    int32_t a = 256;
    while ((uintptr_t)p % (uintptr_t)a) a /= 2;
    return a;
}

static void call_init(GemmCall *c, int ta, int tb, const Tensor *a, const Tensor *b, const Tensor *d, const Tensor *ws)
{
    memset(c, 0, sizeof *c);
    c->a           = a->data;
    c->b           = b->data;
    c->d           = d->data;
    c->ws          = ws ? ws->data : NULL;
    c->key.ta      = ta;
    c->key.tb      = tb;
    c->key.a       = (int32_t)a->dtype;
    c->key.b       = (int32_t)b->dtype;
    c->key.d       = (int32_t)d->dtype;
    c->key.m       = tensor_cols(d);
    c->key.n       = tensor_rows(d);
    c->key.k       = ta ? tensor_cols(a) : tensor_rows(a);
    c->key.lda     = tensor_ld(a);
    c->key.ldb     = tensor_ld(b);
    c->key.ldd     = tensor_ld(d);
    c->key.ws_bytes = ws ? (int64_t)tensor_bytes(ws) : 0;
    c->key.align_a = alignment(c->a);
    c->key.align_b = alignment(c->b);
    c->key.align_d = alignment(c->d);
}

static void call_add_bias(GemmCall *c, const Tensor *bias)
{
    if (!bias) return;
    c->bias     = bias->data;
    c->key.bias = (int32_t)bias->dtype;
    c->key.epi  = c->key.epi == EPI_GELU ? EPI_GELU_BIAS : EPI_BIAS;
}

static void call_fwd(GemmCall *c, const LinearFwd *a)
{
    call_init(c, 1, 0, a->w, a->x, a->y, a->ws);
    call_add_bias(c, a->bias);
}

static void call_dx(GemmCall *c, const LinearDx *a) { call_init(c, 0, 0, a->w, a->dy, a->dx, a->ws); }

static void call_dw(GemmCall *c, const LinearDw *a)
{
    call_init(c, 0, 1, a->x, a->dy, a->dw, a->ws);
    c->key.beta = 1;
}

static void call_act(GemmCall *c, const LinearActFwd *a)
{
    call_init(c, 1, 0, a->w, a->x, a->y, a->ws);
    c->aux         = a->pre->data;
    c->key.epi     = EPI_GELU;
    c->key.ld_aux  = tensor_ld(a->pre);
    c->key.align_d = MIN(c->key.align_d, alignment(c->aux));
    call_add_bias(c, a->bias);
}

/* What a line of the tune cache is found by. */
static const char *key_text(const CudaDev *d, const GemmKey *k, char *buf, size_t n)
{
    snprintf(buf, n, "gemm %c%c %s %s %s %lld %lld %lld %lld %lld %lld %d %s:%lld %lld%s align %d %d %d", k->ta ? 'T' : 'N',
             k->tb ? 'T' : 'N', dtype_name((DType)k->a), dtype_name((DType)k->b), dtype_name((DType)k->d),
             (long long)k->m, (long long)k->n, (long long)k->k, (long long)k->lda, (long long)k->ldb,
             (long long)k->ldd, k->beta, epi_row[k->epi].name, (long long)k->ld_aux, (long long)k->ws_bytes,
             d->base.opt.tf32 && k->a == DT_F32 ? " tf32" : "", k->align_a, k->align_b, k->align_d);
    return buf;
}

/* ---- descriptors --------------------------------------------------------------------------------------------- */

static int lt_type(int32_t dtype, cudaDataType_t *out)
{
    switch ((DType)dtype) {
    case DT_F32: *out = CUDA_R_32F; return 0;
    case DT_BF16: *out = CUDA_R_16BF; return 0;
    case DT_F16: *out = CUDA_R_16F; return 0;
    default: return err_set("no matrix product for %s", dtype_name((DType)dtype));
    }
}

static int lt_failed(const char *what, cublasStatus_t s)
{
    return err_set("cuBLASLt %s: %s", what, cublasLtGetStatusString(s));
}

/* Column-major layout of a row-major matrix whose op() gives rows x cols. */
static cublasStatus_t layout_create(cublasLtMatrixLayout_t *l, cudaDataType_t type, int transposed, int64_t rows,
                                    int64_t cols, int64_t ld)
{
    int64_t r = transposed ? cols : rows, c = transposed ? rows : cols;
    return cublasLtMatrixLayoutCreate(l, type, (uint64_t)r, (uint64_t)c, ld);
}

static cublasStatus_t op_attributes(cublasLtMatmulDesc_t op, const GemmKey *k, cudaDataType_t d_type)
{
    cublasOperation_t  ta = k->ta ? CUBLAS_OP_T : CUBLAS_OP_N, tb = k->tb ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasLtEpilogue_t epi = epi_row[k->epi].lt;
    int32_t            type = (int32_t)d_type;
    cublasStatus_t     s = cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_TRANSA, &ta, sizeof ta);
    if (!s) s = cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_TRANSB, &tb, sizeof tb);
    if (!s) s = cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_EPILOGUE, &epi, sizeof epi);
    if (!s && epi_row[k->epi].has_bias) {
        s = cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type, sizeof type);
    }
    if (!s && epi_row[k->epi].has_aux) {
        s = cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &k->ld_aux, sizeof k->ld_aux);
        if (!s) s = cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, &type, sizeof type);
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
    if (a != b) return err_set("matrix product of %s and %s", dtype_name((DType)k->a), dtype_name((DType)k->b));
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

/* The library's proposals within the workspace bound, best guess first. */
static int plan_propose(CudaDev *d, GemmPlan *p, Proposal h[MAX_PROPOSALS], int *n)
{
    const GemmKey *k    = &p->key;
    uint64_t       ws   = (uint64_t)k->ws_bytes;
    uint32_t       mask = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, al_a = (uint32_t)k->align_a;
    uint32_t       al_b = (uint32_t)k->align_b, al_d = (uint32_t)k->align_d;
    /* In place means adding up in the output type, in an order that counters fix: good enough when that is f32. */
    if (k->d == DT_F32 && !d->base.opt.deterministic) mask |= CUBLASLT_REDUCTION_SCHEME_INPLACE;
    cublasLtMatmulPreference_t f = NULL;
    cublasStatus_t             s = cublasLtMatmulPreferenceCreate(&f);
    if (!s) s = cublasLtMatmulPreferenceSetAttribute(f, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &ws, sizeof ws);
    if (!s) s = cublasLtMatmulPreferenceSetAttribute(f, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &mask, sizeof mask);
    if (!s) s = cublasLtMatmulPreferenceSetAttribute(f, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &al_a, sizeof al_a);
    if (!s) s = cublasLtMatmulPreferenceSetAttribute(f, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &al_b, sizeof al_b);
    if (!s) s = cublasLtMatmulPreferenceSetAttribute(f, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &al_d, sizeof al_d);
    if (!s) s = cublasLtMatmulPreferenceSetAttribute(f, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &al_d, sizeof al_d);
    int found = 0;
    *n        = 0;
    if (!s) {
        cublasStatus_t hs = cublasLtMatmulAlgoGetHeuristic(d->gemm->lt, p->op, p->la, p->lb, p->ld, p->ld, f,
                                                           MAX_PROPOSALS, h, &found);
        if (hs) found = 0; /* NOT_SUPPORTED: no proposals */
    }
    if (f) cublasLtMatmulPreferenceDestroy(f);
    if (s) return lt_failed("preference", s);
    for (int i = 0; i < found; i++) {
        if (h[i].state == CUBLAS_STATUS_SUCCESS) h[(*n)++] = h[i];
    }
    return 0;
}

/* ---- launching ----------------------------------------------------------------------------------------------- */

static cublasStatus_t launch_algo(CudaDev *d, GemmPlan *p, const cublasLtMatmulAlgo_t *algo, const GemmCall *c)
{
    float          alpha = 1.0f, beta = (float)p->key.beta;
    cublasStatus_t s = CUBLAS_STATUS_SUCCESS;
    if (epi_row[p->key.epi].has_bias) {
        s = cublasLtMatmulDescSetAttribute(p->op, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &c->bias, sizeof c->bias);
    }
    if (!s && epi_row[p->key.epi].has_aux) {
        s = cublasLtMatmulDescSetAttribute(p->op, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &c->aux, sizeof c->aux);
    }
    if (s) return s;
    return cublasLtMatmul(d->gemm->lt, p->op, &alpha, c->a, p->la, c->b, p->lb, &beta, c->d, p->ld, c->d, p->ld, algo,
                          c->ws, (size_t)p->key.ws_bytes, cuda_stream(&d->base));
}

static GemmKey plain_key(const GemmKey *k)
{
    GemmKey plain = *k;
    plain.epi     = EPI_NONE;
    plain.bias    = 0;
    return plain;
}

static int launch_split(CudaDev *d, GemmPlan *plain, const GemmCall *c)
{
    CudaMat        y = { c->d, (DType)c->key.d, c->key.n, c->key.m, c->key.ldd };
    cublasStatus_t s = launch_algo(d, plain, &plain->algo, c);
    if (s) return lt_failed("matmul", s);
    return cuda_bias_add(&d->base, &y, c->bias, (DType)c->key.bias);
}

static int launch_plan(CudaDev *d, GemmPlan *p, const GemmCall *c)
{
    if (p->split_bias) {
        GemmPlan *plain = NULL;
        GemmKey   key   = plain_key(&p->key);
        TRY(plan_get(d, &key, &plain));
        return launch_split(d, plain, c);
    }
    cublasStatus_t s = launch_algo(d, p, &p->algo, c);
    return s ? lt_failed("matmul", s) : 0;
}

static int run_call(CudaDev *d, const GemmCall *c)
{
    GemmPlan *p = NULL;
    TRY(plan_get(d, &c->key, &p));
    return launch_plan(d, p, c);
}

/* ---- timing -------------------------------------------------------------------------------------------------- */

static void *carve(char **at, size_t bytes)
{
    void *p = *at;
    *at += (bytes + 255) / 256 * 256;
    return p;
}

/* Fills *c with scratch of the real sizes, random inputs and a zero output. 1 when there is no memory for it. */
static int scratch_call(CudaDev *d, const GemmKey *k, GemmCall *c)
{
    int64_t n_a = (k->ta ? k->m : k->k) * k->lda, n_b = (k->tb ? k->k : k->n) * k->ldb;
    size_t  d_bytes   = (size_t)(k->n * k->ldd) * dtype_bytes((DType)k->d);
    size_t  aux_bytes = (size_t)(k->n * k->ld_aux) * dtype_bytes((DType)k->d);
    size_t  a_bytes = (size_t)n_a * dtype_bytes((DType)k->a), b_bytes = (size_t)n_b * dtype_bytes((DType)k->b);
    size_t  total = a_bytes + b_bytes + d_bytes + aux_bytes + (size_t)k->m * 4 + (size_t)k->ws_bytes + 8 * 256;
    char   *at    = cuda_scratch(d, total);
    if (!at) return 1;
    memset(c, 0, sizeof *c);
    c->key  = *k;
    c->a    = carve(&at, a_bytes);
    c->b    = carve(&at, b_bytes);
    c->bias = carve(&at, (size_t)k->m * 4);
    c->d    = carve(&at, d_bytes);
    c->aux  = carve(&at, aux_bytes);
    c->ws   = k->ws_bytes ? carve(&at, (size_t)k->ws_bytes) : NULL;
    TRY(cuda_fill_random(&d->base, (void *)c->a, (DType)k->a, n_a, 1));
    TRY(cuda_fill_random(&d->base, (void *)c->b, (DType)k->b, n_b, 2));
    CUDA_TRY(cudaMemsetAsync((void *)c->bias, 0, (size_t)k->m * 4, cuda_stream(&d->base)));
    CUDA_TRY(cudaMemsetAsync(c->d, 0, d_bytes, cuda_stream(&d->base)));
    return 0;
}

/* One way to compute the call: an algorithm, or (algo NULL) the plain product and the separate bias. */
typedef struct {
    GemmPlan                   *plan;
    const cublasLtMatmulAlgo_t *algo;
} Way;

/* Microseconds per run over reps runs; FLT_MAX if it does not run. -1 after err_set() when the device fails. */
static int time_way(CudaDev *d, const Way *w, const GemmCall *c, int reps, float *us)
{
    cudaStream_t st = cuda_stream(&d->base);
    float        ms = 0;
    *us             = FLT_MAX;
    CUDA_TRY(cudaEventRecord(d->time_event[0], st));
    for (int r = 0; r < reps; r++) {
        if (w->algo && launch_algo(d, w->plan, w->algo, c)) return 0;
        if (!w->algo) TRY(launch_split(d, w->plan, c));
    }
    CUDA_TRY(cudaEventRecord(d->time_event[1], st));
    CUDA_TRY(cudaEventSynchronize(d->time_event[1]));
    CUDA_TRY(cudaEventElapsedTime(&ms, d->time_event[0], d->time_event[1]));
    *us = 1e3f * ms / (float)reps;
    return 0;
}

/* Short products are repeated until the events' own cost is small. */
static int reps_for(float us) { return (int)MAX(2.0f, MIN(20.0f, 200.0f / MAX(us, 1.0f))); }

static int compare_float(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* A first look at every way: one run to load it, one to judge it, more only if it is within 1.5x of the best. */
static int time_coarse(CudaDev *d, const Way *way, int n, const GemmCall *c, float *us)
{
    float best = FLT_MAX;
    for (int i = 0; i < n; i++) {
        TRY(time_way(d, &way[i], c, 1, &us[i]));
        if (us[i] == FLT_MAX) continue;
        TRY(time_way(d, &way[i], c, 1, &us[i]));
        if (us[i] <= 1.5f * best) TRY(time_way(d, &way[i], c, reps_for(us[i]), &us[i]));
        best = MIN(best, us[i]);
    }
    return 0;
}

/* The fastest of n ways: the best few of the coarse pass in turn, several rounds, medians; so a drifting clock meets
 * all of them alike. *pick is -1 when none runs. */
static int time_ways(CudaDev *d, const Way *way, int n, const GemmCall *c, int *pick, float *pick_us)
{
    float us[MAX_PROPOSALS], round[FINALISTS][ROUNDS];
    int   final[FINALISTS], n_final = 0;
    TRY(time_coarse(d, way, n, c, us));
    *pick    = -1;
    *pick_us = FLT_MAX;
    for (; n_final < FINALISTS; n_final++) {
        int best = -1;
        for (int i = 0; i < n; i++) {
            int taken = us[i] == FLT_MAX;
            for (int f = 0; f < n_final; f++) taken |= final[f] == i;
            if (!taken && (best < 0 || us[i] < us[best])) best = i;
        }
        if (best < 0) break;
        final[n_final] = best;
    }
    for (int r = 0; r < ROUNDS; r++) {
        for (int f = 0; f < n_final; f++) {
            TRY(time_way(d, &way[final[f]], c, reps_for(us[final[f]]), &round[f][r]));
        }
    }
    for (int f = 0; f < n_final; f++) {
        qsort(round[f], ROUNDS, sizeof(float), compare_float);
        if (round[f][ROUNDS / 2] < *pick_us) {
            *pick_us = round[f][ROUNDS / 2];
            *pick    = final[f];
        }
    }
    return 0;
}

/* ---- choosing ------------------------------------------------------------------------------------------------ */

static void remember(CudaDev *d, const GemmPlan *p, float us)
{
    char key[256], value[160], note[64];
    if (p->split_bias) {
        snprintf(value, sizeof value, "split");
    } else {
        int at = 0;
        for (int i = 0; i < ARRAY_LEN(p->algo.data); i++) {
            at += snprintf(value + at, sizeof value - (size_t)at, "%s%016llx", i ? " " : "",
                           (unsigned long long)p->algo.data[i]);
        }
    }
    double flops = 2.0 * (double)p->key.m * (double)p->key.n * (double)p->key.k;
    snprintf(note, sizeof note, "%.1f us %.1f TFLOP/s", (double)us, flops / (double)us * 1e-6);
    cuda_tune_put(d->tune, key_text(d, &p->key, key, sizeof key), value, note);
}

/* 1 if the cache had a choice that this library still accepts. */
static int recall(CudaDev *d, GemmPlan *p)
{
    char                 key[256];
    const char          *v = cuda_tune_find(d->tune, key_text(d, &p->key, key, sizeof key));
    cublasLtMatmulAlgo_t algo;
    Proposal             check;
    if (!v) return 0;
    if (strcmp(v, "split") == 0 && p->key.epi == EPI_BIAS) {
        p->split_bias = 1;
        return 1;
    }
    for (int i = 0; i < ARRAY_LEN(algo.data); i++) {
        char *end    = NULL;
        algo.data[i] = strtoull(v, &end, 16);
        if (end == v) return 0;
        v = end;
    }
    cublasStatus_t s = cublasLtMatmulAlgoCheck(d->gemm->lt, p->op, p->la, p->lb, p->ld, p->ld, &algo, &check);
    if (s || check.workspaceSize > (size_t)p->key.ws_bytes) return 0;
    p->algo = algo;
    return 1;
}

/* Times the proposals, and for a bias also the plain product with its own pass. 1 when nothing could be timed. */
static int plan_time(CudaDev *d, GemmPlan *p, const Proposal *h, int n)
{
    Way       way[MAX_PROPOSALS];
    GemmCall  c;
    GemmPlan *plain = NULL;
    GemmKey   key   = plain_key(&p->key);
    if (p->key.epi == EPI_BIAS) TRY(plan_get(d, &key, &plain)); /* before scratch is laid out: it uses scratch too */
    int rc = scratch_call(d, &p->key, &c);
    if (rc != 0) return rc;
    for (int i = 0; i < n; i++) way[i] = (Way){ p, &h[i].algo };
    if (plain) {
        n      = MIN(n, MAX_PROPOSALS - 1);
        way[n] = (Way){ plain, NULL };
        n++;
    }
    int   pick = -1;
    float us   = 0;
    TRY(time_ways(d, way, n, &c, &pick, &us));
    if (pick < 0) return 1;
    p->split_bias = way[pick].algo == NULL;
    if (!p->split_bias) p->algo = *way[pick].algo;
    remember(d, p, us);
    return 0;
}

static int plan_choose(CudaDev *d, GemmPlan *p)
{
    Proposal h[MAX_PROPOSALS];
    int      n = 0;
    /* The epilogue takes a bias of the output's type only. */
    int can = !epi_row[p->key.epi].has_bias || p->key.bias == p->key.d;
    if (can) TRY(plan_propose(d, p, h, &n));
    if (n == 0) {
        char key[256];
        p->split_bias  = p->key.epi == EPI_BIAS;
        p->unsupported = epi_row[p->key.epi].has_aux;
        if (p->split_bias || p->unsupported) return 0;
        return err_set("cuBLASLt proposes nothing for %s", key_text(d, &p->key, key, sizeof key));
    }
    p->algo = h[0].algo;
    if (!d->base.opt.tune || d->base.opt.deterministic) return 0;
    if (recall(d, p)) return 0;
    int rc = plan_time(d, p, h, n);
    if (rc > 0 && !d->gemm->told_untimed) {
        d->gemm->told_untimed = 1;
        cuda_note("no free memory to time matrix products in; using cuBLASLt's first proposals");
    }
    return rc < 0 ? -1 : 0;
}

/* ---- plans --------------------------------------------------------------------------------------------------- */

static int plan_get(CudaDev *d, const GemmKey *key, GemmPlan **out)
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

/* ---- slots --------------------------------------------------------------------------------------------------- */

int cuda_linear_fwd(Dev *dev, const LinearFwd *a)
{
    GemmCall c;
    call_fwd(&c, a);
    return run_call((CudaDev *)dev, &c);
}

int cuda_linear_dx(Dev *dev, const LinearDx *a)
{
    GemmCall c;
    call_dx(&c, a);
    return run_call((CudaDev *)dev, &c);
}

int cuda_linear_dw(Dev *dev, const LinearDw *a)
{
    GemmCall c;
    call_dw(&c, a);
    return run_call((CudaDev *)dev, &c);
}

/* The plan with the GELU epilogue, or NULL in *out when the product and the activation must run apart. */
static int act_plan(CudaDev *d, const LinearActFwd *a, GemmCall *c, GemmPlan **out)
{
    *out     = NULL;
    int wide = a->y->dtype == DT_F32 || a->pre->dtype != a->y->dtype;
    if (a->act != ACT_GELU || wide || tensor_ld(a->pre) % 8 != 0) return 0; /* aux rows are multiples of 8 */
    call_act(c, a);
    TRY(plan_get(d, &c->key, out));
    if ((*out)->unsupported) *out = NULL;
    return 0;
}

static LinearFwd act_linear(const LinearActFwd *a)
{
    return (LinearFwd){ .y = a->pre, .ws = a->ws, .x = a->x, .w = a->w, .bias = a->bias };
}

int cuda_linear_act_fwd(Dev *dev, const LinearActFwd *a)
{
    CudaDev  *d = (CudaDev *)dev;
    GemmCall  c;
    GemmPlan *p = NULL;
    TRY(act_plan(d, a, &c, &p));
    if (p) return launch_plan(d, p, &c);
    LinearFwd linear = act_linear(a);
    TRY(cuda_linear_fwd(dev, &linear));
    return cuda_act_fwd(dev, &(ActFwd){ .y = a->y, .x = a->pre, .act = a->act });
}

int cuda_gemm_prepare(CudaDev *d, const Op *op)
{
    GemmCall  c;
    GemmPlan *p = NULL;
    switch (op->kind) {
    case OP_LINEAR_FWD: call_fwd(&c, &op->args.linear_fwd); break;
    case OP_LINEAR_DX: call_dx(&c, &op->args.linear_dx); break;
    case OP_LINEAR_DW: call_dw(&c, &op->args.linear_dw); break;
    case OP_LINEAR_ACT_FWD: {
        TRY(act_plan(d, &op->args.linear_act_fwd, &c, &p));
        if (p) return 0;
        LinearFwd linear = act_linear(&op->args.linear_act_fwd);
        call_fwd(&c, &linear);
        break;
    }
    default: return 0;
    }
    TRY(plan_get(d, &c.key, &p));
    if (!p->split_bias) return 0;
    GemmKey plain = plain_key(&p->key);
    return plan_get(d, &plain, &p);
}
