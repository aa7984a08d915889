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
 * 3. This form is for comparison, so no algorithm is timed (cuda_batched.h). */
#include "dev/cuda/cuda_attn_stored.h"

#include "base/err.h"
#include "dev/cuda/cuda_batched.h"

#include <string.h>

/* A batch of row-major matrices: element (b, r, c) is at p + (b*stride + r*ld + c) elements. */
typedef struct {
    char   *p;
    DType   dtype;
    int64_t ld, stride;
    int64_t head;       /* elements from one head's p to the next one's; 0: no heads */
    int     transposed; /* read with rows and columns swapped */
} Batch;

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

/* Row-major rows x cols is cuBLASLt's column-major cols x rows. */
static void set_matrix(BatchedKey *k, int i, const Batch *x, int64_t rows, int64_t cols)
{
    k->rows[i]   = x->transposed ? rows : cols;
    k->cols[i]   = x->transposed ? cols : rows;
    k->ld[i]     = x->ld;
    k->stride[i] = x->stride;
    k->dtype[i]  = (int32_t)x->dtype;
    k->align     = MIN(k->align, batch_align(x));
}

/* c[m,n] (+)= x[m,k] y[k,n] for every sequence. In columns that is c^T = y^T x^T: y comes first. */
static int product(const Products *w, const Batch *c, const Batch *x, const Batch *y, const int64_t mnk[3],
                   int add)
{
    BatchedKey key;
    memset(&key, 0, sizeof key);
    key.n_batch  = w->B;
    key.ws_bytes = (int64_t)w->ws_bytes;
    key.ta       = y->transposed;
    key.tb       = x->transposed;
    key.align    = 16;
    set_matrix(&key, BATCHED_A, y, mnk[2], mnk[1]);
    set_matrix(&key, BATCHED_B, x, mnk[0], mnk[2]);
    set_matrix(&key, BATCHED_D, c, mnk[0], mnk[1]);
    if (w->dry) return cuda_batched_prepare(w->d, &key);
    return cuda_batched_run(w->d, &key,
                            &(BatchedCall){ y->p, x->p, c->p, c->p, w->ws, 1.0f, add ? 1.0f : 0.0f });
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
