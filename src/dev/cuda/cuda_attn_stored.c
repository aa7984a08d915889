/* Attention that stores its weights: batched products of cuBLASLt and a pass over the rows between them.
 *
 *     forward   S = Q K^T,  P = softmax(scale S),  O = P V
 *     backward  dP = dO V^T,  dS = scale P (dP - rowsum(P dP)),  dV = P^T dO,  dQ = dS K,  dK = dS^T Q
 *
 * 1. The loop runs over query heads; one product is batched over the sequences, whose rows of the packed qkv
 *    are T*ld apart. Grouped heads need no special case: the later heads of a group add to the group's dK and
 *    dV.
 * 2. S and dP are f32 in ws, for one head at a time; P and dS have the dtype of qkv, since a product takes
 *    one type. dS stands behind dP, the library's own workspace behind both.
 * 3. A plan is shared by all products with the same key; its algorithm is the library's first proposal
 *    that sums in f32 in a fixed order. This form is for comparison, so nothing is timed. */
#include "dev/cuda/cuda_attn_stored.h"

#include "base/err.h"
#include "dev/cuda/cuda_gemm_plan.h"

#include <stdlib.h>
#include <string.h>

/* A batch of row-major matrices: element (b, r, c) is at p + (b*stride + r*ld + c) elements. */
typedef struct {
    char   *p;
    DType   dtype;
    int64_t ld, stride;
    int64_t head;       /* elements from one head's p to the next one's; 0: no heads */
    int     transposed; /* read with rows and columns swapped */
} Batch;

/* Compared bytewise: no padding, and zeroed before it is filled. */
typedef struct {
    int64_t n_batch, m, n, k, ld[3], stride[3], ws_bytes; /* of c, x, y */
    int32_t tx, ty, in, out, beta, align;
} StoredKey;

typedef struct {
    StoredKey              key;
    cublasLtMatmulDesc_t   op;
    cublasLtMatrixLayout_t lc, lx, ly;
    cublasLtMatmulAlgo_t   algo;
} StoredPlan;

struct CudaStored {
    StoredPlan **plan;
    int          n_plan, cap;
};

/* ---- plans --------------------------------------------------------------------------------------------- */

static cudaDataType_t lt_type(int32_t dtype)
{
    return dtype == DT_F32 ? CUDA_R_32F : dtype == DT_BF16 ? CUDA_R_16BF : CUDA_R_16F;
}

static int lt_failed(const char *what, cublasStatus_t s)
{
    return err_set("stored attention: cuBLASLt %s: %s", what, cublasLtGetStatusString(s));
}

/* Row-major rows x cols is cuBLASLt's column-major cols x rows. */
static void layout_create(cublasStatus_t *s, cublasLtMatrixLayout_t *l, const StoredKey *k, int which,
                          int64_t rows, int64_t cols)
{
    int32_t n    = (int32_t)k->n_batch;
    int32_t type = which == 0 ? k->out : k->in;
    if (!*s) *s = cublasLtMatrixLayoutCreate(l, lt_type(type), (uint64_t)cols, (uint64_t)rows, k->ld[which]);
    if (!*s) *s = cublasLtMatrixLayoutSetAttribute(*l, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &n, sizeof n);
    if (!*s) {
        *s = cublasLtMatrixLayoutSetAttribute(*l, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                              &k->stride[which], sizeof k->stride[which]);
    }
}

/* c = x y in rows is c^T = y^T x^T in columns: y comes first. */
static cublasStatus_t plan_describe(CudaDev *d, StoredPlan *p)
{
    const StoredKey    *k       = &p->key;
    cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
    cublasOperation_t   tx = k->tx ? CUBLAS_OP_T : CUBLAS_OP_N, ty = k->ty ? CUBLAS_OP_T : CUBLAS_OP_N;
    if (k->in == DT_F32 && d->base.opt.tf32) compute = CUBLAS_COMPUTE_32F_FAST_TF32;
    cublasStatus_t s = cublasLtMatmulDescCreate(&p->op, compute, CUDA_R_32F);
    if (!s) s = cublasLtMatmulDescSetAttribute(p->op, CUBLASLT_MATMUL_DESC_TRANSA, &ty, sizeof ty);
    if (!s) s = cublasLtMatmulDescSetAttribute(p->op, CUBLASLT_MATMUL_DESC_TRANSB, &tx, sizeof tx);
    layout_create(&s, &p->lc, k, 0, k->m, k->n);
    layout_create(&s, &p->lx, k, 1, k->tx ? k->k : k->m, k->tx ? k->m : k->k);
    layout_create(&s, &p->ly, k, 2, k->ty ? k->n : k->k, k->ty ? k->k : k->n);
    return s;
}

static cublasStatus_t plan_choose(CudaDev *d, StoredPlan *p, int *found)
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
        s = cublasLtMatmulAlgoGetHeuristic(d->gemm->lt, p->op, p->ly, p->lx, p->lc, p->lc, f, 1, &h, found);
    *found = !s && *found && h.state == CUBLAS_STATUS_SUCCESS;
    if (*found) p->algo = h.algo;
    if (f) cublasLtMatmulPreferenceDestroy(f);
    return s;
}

static void plan_destroy(StoredPlan *p)
{
    if (p->ly) cublasLtMatrixLayoutDestroy(p->ly);
    if (p->lx) cublasLtMatrixLayoutDestroy(p->lx);
    if (p->lc) cublasLtMatrixLayoutDestroy(p->lc);
    if (p->op) cublasLtMatmulDescDestroy(p->op);
    free(p);
}

static int plan_get(CudaDev *d, const StoredKey *key, StoredPlan **out)
{
    CudaStored *c = d->stored;
    if (!c) c = d->stored = calloc(1, sizeof *c);
    CHECK(c, "out of host memory");
    for (int i = 0; i < c->n_plan; i++) {
        *out = c->plan[i];
        if (memcmp(&c->plan[i]->key, key, sizeof *key) == 0) return 0;
    }
    StoredPlan *p = calloc(1, sizeof *p);
    CHECK(p, "out of host memory");
    p->key           = *key;
    int            n = 0;
    cublasStatus_t s = plan_describe(d, p);
    if (!s) s = plan_choose(d, p, &n);
    if (s || n == 0) {
        plan_destroy(p);
        return s ? lt_failed("plan", s) : err_set("stored attention: cuBLASLt proposes nothing");
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

void cuda_stored_close(CudaDev *d)
{
    if (!d->stored) return;
    for (int i = 0; i < d->stored->n_plan; i++) plan_destroy(d->stored->plan[i]);
    free(d->stored->plan);
    free(d->stored);
    d->stored = NULL;
}

/* ---- products ------------------------------------------------------------------------------------------ */

/* What all products of one op share. Only plans are built while `dry`. */
typedef struct {
    CudaDev *d;
    int64_t  B, T;
    char    *ws;
    size_t   ws_bytes;
    int      dry;
} Products;

/* The largest power of two up to 16 that divides the address of every matrix of the batch, whichever head
 * it starts at. */
static int32_t batch_align(const Batch *x)
{
    size_t    size = dtype_bytes(x->dtype);
    uintptr_t all =
        (uintptr_t)x->p | (uintptr_t)((size_t)x->stride * size) | (uintptr_t)((size_t)x->head * size) | 16;
    return (int32_t)(all & -all);
}

/* c[m,n] (+)= x[m,k] y[k,n] for every sequence. */
static int product(const Products *w, const Batch *c, const Batch *x, const Batch *y, const int64_t mnk[3],
                   int add)
{
    StoredKey key;
    memset(&key, 0, sizeof key);
    const Batch *of[3] = { c, x, y };
    key.n_batch        = w->B;
    key.m              = mnk[0];
    key.n              = mnk[1];
    key.k              = mnk[2];
    key.align          = 16;
    for (int i = 0; i < 3; i++) {
        key.ld[i]     = of[i]->ld;
        key.stride[i] = of[i]->stride;
        key.align     = MIN(key.align, batch_align(of[i]));
    }
    key.ws_bytes  = (int64_t)w->ws_bytes;
    key.tx        = x->transposed;
    key.ty        = y->transposed;
    key.in        = (int32_t)x->dtype;
    key.out       = (int32_t)c->dtype;
    key.beta      = add;
    StoredPlan *p = NULL;
    TRY(plan_get(w->d, &key, &p));
    if (w->dry) return 0;
    float          alpha = 1.0f, beta = add ? 1.0f : 0.0f;
    cublasStatus_t s =
        cublasLtMatmul(w->d->gemm->lt, p->op, &alpha, y->p, p->ly, x->p, p->lx, &beta, c->p, p->lc, c->p,
                       p->lc, &p->algo, w->ws, w->ws_bytes, cuda_stream(&w->d->base));
    return s ? lt_failed("matmul", s) : 0;
}

/* Head number h (of the packed heads) of a tensor [B,T,W]. */
static Batch head_of(const Tensor *t, int64_t h, int64_t D)
{
    return (Batch){ .p      = (char *)t->data + (size_t)(h * D) * dtype_bytes(t->dtype),
                    .dtype  = t->dtype,
                    .ld     = tensor_ld(t),
                    .stride = t->dim[1] * tensor_ld(t),
                    .head   = D };
}

/* Head h of weights [B,H,T,T]. */
static Batch weights_of(const Tensor *p, int64_t h)
{
    int64_t T = p->dim[3];
    return (Batch){ .p      = (char *)p->data + (size_t)(h * T * T) * dtype_bytes(p->dtype),
                    .dtype  = p->dtype,
                    .ld     = T,
                    .stride = p->dim[1] * T * T,
                    .head   = T * T };
}

static Batch dense(char *p, DType dtype, int64_t T)
{
    return (Batch){ .p = p, .dtype = dtype, .ld = T, .stride = T * T };
}

static Batch swapped(Batch x)
{
    x.transposed = 1;
    return x;
}

/* Takes n bytes from the front of the workspace. */
static char *take(Products *w, size_t n)
{
    char *p = w->ws;
    n       = tensor_align_up(n);
    CHECK(w->ws_bytes >= n, "the workspace is too small");
    w->ws += n;
    w->ws_bytes -= n;
    return p;
}

static int products_init(Products *w, CudaDev *d, const Tensor *qkv, const Tensor *ws, int dry)
{
    DType t = qkv->dtype;
    if (t != DT_F32 && t != DT_BF16 && t != DT_F16) return err_set("stored attention: no %s", dtype_name(t));
    if (!ws) return err_set("stored attention: the workspace is missing");
    *w = (Products){
        .d = d, .B = qkv->dim[0], .T = qkv->dim[1], .ws = ws->data, .ws_bytes = tensor_bytes(ws), .dry = dry
    };
    return 0;
}

/* ---- slots --------------------------------------------------------------------------------------------- */

static int stored_fwd(CudaDev *d, const AttnFwd *a, int dry)
{
    Products w = { 0 };
    TRY(products_init(&w, d, a->qkv, a->ws, dry));
    int64_t    T = w.T, D = a->shape.head_dim, H = a->shape.heads, K = a->shape.kv_heads, group = H / K;
    float     *s    = (float *)take(&w, (size_t)(w.B * T * T) * 4);
    StoredRows rows = { .B          = w.B,
                        .T          = T,
                        .p_stride   = H * T * T,
                        .lse_stride = H * T,
                        .dtype      = a->p->dtype,
                        .mask       = a->shape.mask,
                        .scale      = a->shape.scale,
                        .doc        = a->doc ? a->doc->data : NULL,
                        .prefix     = a->prefix ? a->prefix->data : NULL,
                        .first      = a->first ? a->first->data : NULL,
                        .last       = a->last ? a->last->data : NULL };
    for (int64_t h = 0; h < (dry ? 1 : H); h++) {
        int64_t g = h / group;
        Batch   q = head_of(a->qkv, h, D), k = swapped(head_of(a->qkv, H + g, D));
        Batch   v = head_of(a->qkv, H + K + g, D), o = head_of(a->o, h, D);
        Batch   score = dense((char *)s, DT_F32, T), p = weights_of(a->p, h);
        TRY(product(&w, &score, &q, &k, (int64_t[]){ T, T, D }, 0));
        if (!dry) TRY(cuda_softmax_rows(&d->base, &rows, p.p, (float *)a->lse->data + h * T, s));
        TRY(product(&w, &o, &p, &v, (int64_t[]){ T, D, T }, 0));
    }
    return 0;
}

static int stored_bwd(CudaDev *d, const AttnBwd *a, int dry)
{
    Products w = { 0 };
    TRY(products_init(&w, d, a->qkv, a->ws, dry));
    int64_t    T = w.T, D = a->shape.head_dim, H = a->shape.heads, K = a->shape.kv_heads, group = H / K;
    float     *dp   = (float *)take(&w, (size_t)(w.B * T * T) * 4);
    char      *ds   = take(&w, (size_t)(w.B * T * T) * dtype_bytes(a->p->dtype));
    StoredRows rows = {
        .B = w.B, .T = T, .p_stride = H * T * T, .dtype = a->p->dtype, .scale = a->shape.scale
    };
    /* Two heads of a group show every kind of product: the first overwrites, the second adds. */
    for (int64_t h = 0; h < (dry ? MIN(group, 2) : H); h++) {
        int64_t g   = h / group;
        int     add = h % group != 0;
        Batch   q = head_of(a->qkv, h, D), k = head_of(a->qkv, H + g, D),
              v    = swapped(head_of(a->qkv, H + K + g, D));
        Batch dout = head_of(a->dout, h, D), dq = head_of(a->dqkv, h, D);
        Batch dk = head_of(a->dqkv, H + g, D), dv = head_of(a->dqkv, H + K + g, D);
        Batch grad = dense((char *)dp, DT_F32, T), p = weights_of(a->p, h), s = dense(ds, a->p->dtype, T);
        Batch pt = swapped(p), st = swapped(s);
        TRY(product(&w, &grad, &dout, &v, (int64_t[]){ T, T, D }, 0));
        if (!dry) TRY(cuda_softmax_grad(&d->base, &rows, ds, p.p, dp));
        TRY(product(&w, &dv, &pt, &dout, (int64_t[]){ T, D, T }, add));
        TRY(product(&w, &dq, &s, &k, (int64_t[]){ T, D, T }, 0));
        TRY(product(&w, &dk, &st, &q, (int64_t[]){ T, D, T }, add));
    }
    return 0;
}

int cuda_stored_fwd(Dev *dev, const AttnFwd *a) { return stored_fwd((CudaDev *)dev, a, 0); }

int cuda_stored_bwd(Dev *dev, const AttnBwd *a) { return stored_bwd((CudaDev *)dev, a, 0); }

int cuda_stored_prepare(CudaDev *d, const Op *op)
{
    if (op->kind == OP_ATTN_FWD && op->args.attn_fwd.p) return stored_fwd(d, &op->args.attn_fwd, 1);
    if (op->kind == OP_ATTN_BWD && op->args.attn_bwd.p) return stored_bwd(d, &op->args.attn_bwd, 1);
    return 0;
}
