/* Attention through cuDNN's composite graph: matmul, scale, mask, softmax, matmul. cuDNN's run-time compiled
 * engine recognises and fuses the graph.
 *
 * 1. q, k, v and their gradients are views of the packed rows [q heads | k heads | v heads]; K (and V in
 *    backward) are described as transposed views, so nothing is copied.
 * 2. lse is cuDNN's "stats": log sum exp of the scaled, masked scores, f32[B,H,T].
 * 3. Backward scratch, within op_workspace_bytes(): row sums f32[B,H,T], then the dQ accumulator f32[B,H,T,D]
 *    (not when deterministic: there dQ is written directly), then the plan's own workspace. */
#include "dev/cuda/cuda_attn_impl.h"

#include <float.h>
#include <math.h>

enum { U_Q = 1, U_K, U_V, U_O, U_LSE, U_DO, U_DQ, U_DK, U_DV, U_ROWSUM, U_DQ_ACC, U_MASKED, U_SCALE, U_ONE };

static const cudnnDataType_t F32 = CUDNN_DATA_FLOAT;

/* ---- graph --------------------------------------------------------------------------------------------- */

static cudnnDataType_t key_type(const AttnKey *k)
{
    return k->dtype == DT_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF;
}

/* h heads of packed rows: [B,h,T,D], or [B,h,D,T] when transposed. */
static CudnnDesc heads(CudnnGraph *g, const AttnKey *k, int64_t uid, int64_t h, int64_t ld, int transposed)
{
    const int64_t dim[4]    = { k->B, h, transposed ? k->D : k->T, transposed ? k->T : k->D };
    const int64_t stride[4] = { k->T * ld, k->D, transposed ? 1 : ld, transposed ? ld : 1 };
    return cudnn_graph_tensor(g, uid ? CUDNN_REAL : CUDNN_VIRTUAL, uid, key_type(k), dim, stride);
}

/* Contiguous [B,H,rows,cols]. */
static CudnnDesc dense(CudnnGraph *g, const AttnKey *k, int64_t uid, cudnnDataType_t type, int64_t rows,
                       int64_t cols)
{
    const int64_t dim[4]    = { k->B, k->H, rows, cols };
    const int64_t stride[4] = { k->H * rows * cols, rows * cols, cols, 1 };
    return cudnn_graph_tensor(g, uid ? CUDNN_REAL : CUDNN_VIRTUAL, uid, type, dim, stride);
}

static CudnnDesc scores(CudnnGraph *g, const AttnKey *k, cudnnDataType_t type)
{
    return dense(g, k, 0, type, k->T, k->T);
}

static CudnnDesc column(CudnnGraph *g, const AttnKey *k, int64_t uid)
{
    return dense(g, k, uid, F32, k->T, 1);
}

/* Scores with the last two axes swapped in memory: what a product with the transposed matrix reads. */
static CudnnDesc transposed_scores(CudnnGraph *g, const AttnKey *k, CudnnDesc x)
{
    const int64_t dim[4]    = { k->B, k->H, k->T, k->T };
    const int64_t stride[4] = { k->H * k->T * k->T, k->T * k->T, 1, k->T };
    CudnnDesc     y         = cudnn_graph_tensor(g, CUDNN_VIRTUAL, 0, key_type(k), dim, stride);
    cudnn_graph_reshape(g, x, y);
    return y;
}

static CudnnDesc scalar(CudnnGraph *g, int64_t uid)
{
    const int64_t one[4] = { 1, 1, 1, 1 };
    return cudnn_graph_tensor(g, CUDNN_BY_VALUE, uid, F32, one, one);
}

static CudnnDesc masked(CudnnGraph *g, const AttnKey *k, CudnnDesc x)
{
    if (k->mask == MASK_FULL) return x;
    CudnnDesc row = scores(g, k, CUDNN_DATA_INT32), col = scores(g, k, CUDNN_DATA_INT32);
    CudnnDesc keep = scores(g, k, CUDNN_DATA_BOOLEAN), y = scores(g, k, F32);
    cudnn_graph_index(g, 2, x, row);
    cudnn_graph_index(g, 3, x, col);
    cudnn_graph_pointwise(g, CUDNN_POINTWISE_CMP_GE, row, col, NULL, keep);
    cudnn_graph_pointwise(g, CUDNN_POINTWISE_BINARY_SELECT, x, scalar(g, U_MASKED), keep, y);
    return y;
}

static void build_fwd(CudnnGraph *g, const AttnKey *k)
{
    CudnnDesc q = heads(g, k, U_Q, k->H, k->ld_qkv, 0), kt = heads(g, k, U_K, k->K, k->ld_qkv, 1);
    CudnnDesc v = heads(g, k, U_V, k->K, k->ld_qkv, 0), o = heads(g, k, U_O, k->H, k->ld_o, 0);
    CudnnDesc lse = column(g, k, U_LSE);
    CudnnDesc s = scores(g, k, F32), scaled = scores(g, k, F32);
    cudnn_graph_matmul(g, q, kt, s);
    cudnn_graph_pointwise(g, CUDNN_POINTWISE_MUL, s, scalar(g, U_SCALE), NULL, scaled);
    CudnnDesc x   = masked(g, k, scaled);
    CudnnDesc max = column(g, k, 0), low = scores(g, k, F32), e = scores(g, k, F32), sum = column(g, k, 0);
    CudnnDesc lg = column(g, k, 0), p = scores(g, k, key_type(k));
    cudnn_graph_reduce(g, CUDNN_REDUCE_TENSOR_MAX, x, max);
    cudnn_graph_pointwise(g, CUDNN_POINTWISE_SUB, x, max, NULL, low);
    cudnn_graph_pointwise(g, CUDNN_POINTWISE_EXP, low, NULL, NULL, e);
    cudnn_graph_reduce(g, CUDNN_REDUCE_TENSOR_ADD, e, sum);
    cudnn_graph_pointwise(g, CUDNN_POINTWISE_LOG, sum, NULL, NULL, lg);
    cudnn_graph_pointwise(g, CUDNN_POINTWISE_ADD, max, lg, NULL, lse);
    cudnn_graph_pointwise(g, CUDNN_POINTWISE_DIV, e, sum, NULL, p);
    cudnn_graph_matmul(g, p, v, o);
}

/* y = a b summed over the query heads of each key head. */
static void matmul_to_kv(CudnnGraph *g, const AttnKey *k, CudnnDesc a, CudnnDesc b, CudnnDesc y)
{
    if (k->H == k->K) {
        cudnn_graph_matmul(g, a, b, y);
        return;
    }
    CudnnDesc full = dense(g, k, 0, key_type(k), k->T, k->D);
    cudnn_graph_matmul(g, a, b, full);
    cudnn_graph_reduce(g, CUDNN_REDUCE_TENSOR_ADD, full, y);
}

static void build_bwd(CudnnGraph *g, const AttnKey *k)
{
    CudnnDesc q = heads(g, k, U_Q, k->H, k->ld_qkv, 0), kt = heads(g, k, U_K, k->K, k->ld_qkv, 1);
    CudnnDesc vt = heads(g, k, U_V, k->K, k->ld_qkv, 1), o = heads(g, k, U_O, k->H, k->ld_o, 0);
    CudnnDesc lse = column(g, k, U_LSE), dout = heads(g, k, U_DO, k->H, k->ld_dout, 0);
    CudnnDesc dq = heads(g, k, U_DQ, k->H, k->ld_dqkv, 0), dk = heads(g, k, U_DK, k->K, k->ld_dqkv, 0);
    CudnnDesc dv = heads(g, k, U_DV, k->K, k->ld_dqkv, 0), scale = scalar(g, U_SCALE);
    /* rowsum = sum over d of dout * o */
    CudnnDesc prod = dense(g, k, 0, F32, k->T, k->D), sum = column(g, k, 0), rowsum = column(g, k, U_ROWSUM);
    cudnn_graph_pointwise(g, CUDNN_POINTWISE_MUL, dout, o, NULL, prod);
    cudnn_graph_reduce(g, CUDNN_REDUCE_TENSOR_ADD, prod, sum);
    cudnn_graph_pointwise(g, CUDNN_POINTWISE_MUL, sum, scalar(g, U_ONE), NULL, rowsum);
    /* p = exp(scale q k^T - lse) */
    CudnnDesc s = scores(g, k, F32), scaled = scores(g, k, F32), low = scores(g, k, F32),
              p = scores(g, k, F32);
    cudnn_graph_matmul(g, q, kt, s);
    cudnn_graph_pointwise(g, CUDNN_POINTWISE_MUL, s, scale, NULL, scaled);
    cudnn_graph_pointwise(g, CUDNN_POINTWISE_SUB, scaled, lse, NULL, low);
    cudnn_graph_pointwise(g, CUDNN_POINTWISE_EXP, masked(g, k, low), NULL, NULL, p);
    matmul_to_kv(g, k, transposed_scores(g, k, p), dout, dv);
    /* ds = scale p (dout v^T - rowsum) */
    CudnnDesc dp = scores(g, k, F32), diff = scores(g, k, F32), pd = scores(g, k, F32),
              ds = scores(g, k, F32);
    cudnn_graph_matmul(g, dout, vt, dp);
    cudnn_graph_pointwise(g, CUDNN_POINTWISE_SUB, dp, rowsum, NULL, diff);
    cudnn_graph_pointwise(g, CUDNN_POINTWISE_MUL, diff, p, NULL, pd);
    cudnn_graph_pointwise(g, CUDNN_POINTWISE_MUL, pd, scale, NULL, ds);
    matmul_to_kv(g, k, transposed_scores(g, k, ds), q, dk);
    CudnnDesc kr = heads(g, k, 0, k->K, k->ld_qkv, 0);
    cudnn_graph_reshape(g, kt, kr);
    if (k->deterministic) {
        cudnn_graph_matmul(g, ds, kr, dq);
        return;
    }
    CudnnDesc acc = dense(g, k, U_DQ_ACC, F32, k->T, k->D);
    cudnn_graph_matmul(g, ds, kr, acc);
    cudnn_graph_pointwise(g, CUDNN_POINTWISE_IDENTITY, acc, NULL, NULL, dq);
}

/* ---- plans --------------------------------------------------------------------------------------------- */

static int64_t align_up(int64_t n) { return (int64_t)tensor_align_up((size_t)n); }

static int64_t rowsum_bytes(const AttnKey *k) { return align_up(k->B * k->H * k->T * 4); }

static int64_t acc_bytes(const AttnKey *k)
{
    return k->deterministic ? 0 : align_up(k->B * k->H * k->T * k->D * 4);
}

const char *attn_graph_refuses(const AttnKey *k)
{
    if (k->mask != MASK_CAUSAL && k->mask != MASK_FULL) return "cuDNN's graph has no such mask";
    if (k->T % 128 != 0 && k->mask != MASK_FULL) return "the length is no multiple of 128";
    if (k->D % 8 != 0 || k->D > 256) return "the head size is no multiple of 8 up to 256";
    if (k->ld_qkv % 8 != 0 || k->ld_o % 8 != 0 || k->ld_dout % 8 != 0 || k->ld_dqkv % 8 != 0) {
        return "rows are not aligned to 16 bytes";
    }
    if (k->bwd && k->ws_bytes < rowsum_bytes(k) + acc_bytes(k)) return "the workspace is too small";
    return NULL;
}

int attn_graph_build(CudaAttn *c, AttnPlan *p)
{
    if (p->key.bwd) {
        build_bwd(&p->graph, &p->key);
    } else {
        build_fwd(&p->graph, &p->key);
    }
    return cudnn_graph_propose(&p->graph, c->handle);
}

int attn_graph_take(CudaAttn *c, AttnPlan *p, int i)
{
    const AttnKey *k    = &p->key;
    int64_t        room = k->bwd ? k->ws_bytes - rowsum_bytes(k) - acc_bytes(k) : k->ws_bytes;
    CudnnDesc      plan = NULL;
    int            rc   = cudnn_graph_plan(&p->graph, c->handle, i, &plan, &p->plan_ws);
    p->plan             = rc == 0 && p->plan_ws <= room ? plan : NULL;
    return p->plan == NULL;
}

/* ---- running ------------------------------------------------------------------------------------------- */

const char *attn_graph_run(CudaDev *d, AttnPlan *p, const AttnData *x)
{
    const AttnKey *k  = &p->key;
    CudaAttn      *c  = d->attn;
    int64_t        ko = k->H * k->D * 2, vo = (k->H + k->K) * k->D * 2; /* bytes; the dtype has two */
    /* Host values: cuDNN reads them during the call and bakes them into a captured launch. */
    float        minus = c->version >= 91000 ? -INFINITY : -FLT_MAX, scale = x->scale, one = 1.0f;
    int64_t      uid[16];
    void        *data[16];
    int          n      = 0;
    cudaStream_t stream = cuda_stream(&d->base);
    if (c->stream != stream) {
        cudnnStatus_t s = c->lib.set_stream(c->handle, stream);
        if (s) return c->lib.error_string(s);
        c->stream = stream;
    }
#define BIND(u, p) (uid[n] = (u), data[n] = (void *)(p), n++)
    BIND(U_Q, x->qkv);
    BIND(U_K, x->qkv + ko);
    BIND(U_V, x->qkv + vo);
    BIND(U_O, x->o);
    BIND(U_LSE, x->lse);
    BIND(U_SCALE, &scale);
    if (k->mask == MASK_CAUSAL) BIND(U_MASKED, &minus);
    if (!k->bwd) return cudnn_graph_run(&p->graph, c->handle, p->plan, n, uid, data, x->ws);
    BIND(U_DO, x->dout);
    BIND(U_DQ, x->dqkv);
    BIND(U_DK, x->dqkv + ko);
    BIND(U_DV, x->dqkv + vo);
    BIND(U_ROWSUM, x->ws);
    BIND(U_ONE, &one);
    if (!k->deterministic) BIND(U_DQ_ACC, x->ws + rowsum_bytes(k));
#undef BIND
    return cudnn_graph_run(&p->graph, c->handle, p->plan, n, uid, data,
                           x->ws + rowsum_bytes(k) + acc_bytes(k));
}
