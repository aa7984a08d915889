/* Attention through cuDNN's composite graph: matmul, scale, mask, softmax, matmul, recognised and fused by
 * its run-time compiled engine.
 *
 * 1. q, k, v and their gradients are views of the packed rows [q heads | k heads | v heads]; K (and V in
 *    backward) are described as transposed views, so nothing is copied.
 * 2. lse is cuDNN's "stats": log sum exp of the scaled, masked scores, f32[B,H,T]. The own kernels write the
 *    same, so forward and backward may come from different kernels.
 * 3. Backward scratch, within op_workspace_bytes(): row sums f32[B,H,T], then the dQ accumulator f32[B,H,T,D]
 *    (not when deterministic: there dQ is written directly), then the plan's own workspace.
 * 4. What cuDNN does not do, or does wrong in some version, goes to k_attn.cu: f32, lengths that are no
 *    multiple of 128, prefix and document masks, odd head sizes, and every shape whose plan does not build or
 *    run. The choice is made once per shape and said once.
 * 5. cuDNN proposes several engines; its first guess is not always the fastest, so all are timed once and the choice is kept in
 *    the tune cache. */
#include "dev/cuda/cuda_attn.h"

#include "dev/cpu/cpu_cast.h"
#include "dev/cuda/cuda_attn_stored.h"
#include "dev/cuda/cuda_check.h"
#include "dev/cuda/cuda_cudnn.h"
#include "dev/cuda/cuda_move.h"
#include "dev/cuda/cuda_tune.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Compared bytewise: no padding, and zeroed before it is filled. */
typedef struct {
    int64_t B, T, H, K, D;
    int64_t ld_qkv, ld_o, ld_dout, ld_dqkv, ws_bytes;
    int32_t bwd, dtype, mask, deterministic;
} AttnKey;

typedef struct {
    AttnKey    key;
    CudnnGraph graph;
    CudnnDesc  plan;    /* NULL: refused, the own kernel runs */
    int64_t    plan_ws; /* bytes of its workspace */
} AttnPlan;

struct CudaAttn {
    CudnnLib      lib;
    cudnnHandle_t handle; /* NULL: no cuDNN */
    cudaStream_t  stream; /* the handle's */
    size_t        version;
    AttnPlan    **plan;
    int           n_plan, cap;
};

/* Addresses of one launch. */
typedef struct {
    char *qkv, *o, *lse, *dout, *dqkv, *ws;
    float scale;
} AttnData;

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

/* ---- running ------------------------------------------------------------------------------------------- */

static int64_t round_up(int64_t n) { return (int64_t)tensor_align_up((size_t)n); }

static int64_t rowsum_bytes(const AttnKey *k) { return round_up(k->B * k->H * k->T * 4); }

static int64_t acc_bytes(const AttnKey *k)
{
    return k->deterministic ? 0 : round_up(k->B * k->H * k->T * k->D * 4);
}

/* NULL, or why it did not run. */
static const char *run_plan(CudaDev *d, AttnPlan *p, const AttnData *x)
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

/* Scratch tensors of the key's sizes: random, with zeros where only the result's size matters. 1 when there is no room. */
static int rehearsal(CudaDev *d, const AttnKey *k, AttnData *x)
{
    int64_t row     = k->B * k->T;
    int64_t part[6] = { row * k->ld_qkv * 2,  row * k->ld_o * 2,    k->B * k->H * k->T * 4,
                        row * k->ld_dout * 2, row * k->ld_dqkv * 2, k->ws_bytes };
    char   *at[6];
    int64_t total = 0;
    for (int i = 0; i < 6; i++) total += round_up(part[i]);
    char *base = cuda_scratch(d, (size_t)total);
    if (!base) return 1;
    CUDA_TRY(cudaMemsetAsync(base, 0, (size_t)total, cuda_stream(&d->base)));
    for (int i = 0; i < 6; i++) {
        at[i] = base;
        base += round_up(part[i]);
    }
    *x = (AttnData){ at[0], at[1], at[2], at[3], at[4], at[5], 0.125f };
    if (k->dtype != DT_BF16) return 0;
    TRY(cuda_fill_random(&d->base, x->qkv, DT_BF16, row * k->ld_qkv, 1));
    return k->bwd ? cuda_fill_random(&d->base, x->dout, DT_BF16, row * k->ld_dout, 2) : 0;
}

/* NULL, or why the plan did not run. Whatever the library does at first use has happened then. */
static const char *run_once(CudaDev *d, AttnPlan *p, const AttnData *x)
{
    const char *why = run_plan(d, p, x);
    if (why) return why;
    cudaError_t e = cudaStreamSynchronize(cuda_stream(&d->base));
    return e == cudaSuccess ? NULL : cudaGetErrorString(e);
}

/* The best of several rounds, in microseconds; -1 when it does not run. */
static float time_plan(CudaDev *d, AttnPlan *p, const AttnData *x)
{
    enum { ROUNDS = 5, RUNS = 3, SPIN_US = 300 };
    cudaStream_t st   = cuda_stream(&d->base);
    float        best = -1;
    if (run_once(d, p, x)) return -1;
    for (int round = 0; round < ROUNDS; round++) {
        float ms = 0;
        if (cuda_spin(&d->base, SPIN_US) < 0)
            return -1; /* so that the host's part of a launch is not counted */
        if (cudaEventRecord(d->time_event[0], st) != cudaSuccess) return -1;
        for (int i = 0; i < RUNS; i++) {
            if (run_plan(d, p, x)) return -1;
        }
        if (cudaEventRecord(d->time_event[1], st) != cudaSuccess) return -1;
        if (cudaEventSynchronize(d->time_event[1]) != cudaSuccess) return -1;
        if (cudaEventElapsedTime(&ms, d->time_event[0], d->time_event[1]) != cudaSuccess) return -1;
        if (best < 0 || 1e3f * ms / RUNS < best) best = 1e3f * ms / RUNS;
    }
    return best;
}

/* ---- plans --------------------------------------------------------------------------------------------- */

/* NULL, or why cuDNN is not asked at all. */
static const char *key_refused(const AttnKey *k)
{
    if (k->mask != MASK_CAUSAL && k->mask != MASK_FULL) return "cuDNN's graph has no such mask";
    if (k->T % 128 != 0) return "the length is no multiple of 128";
    if (k->D % 8 != 0 || k->D > 256) return "the head size is no multiple of 8 up to 256";
    if (k->ld_qkv % 8 != 0 || k->ld_o % 8 != 0 || k->ld_dout % 8 != 0 || k->ld_dqkv % 8 != 0) {
        return "rows are not aligned to 16 bytes";
    }
    if (k->bwd && k->ws_bytes < rowsum_bytes(k) + acc_bytes(k)) return "the workspace is too small";
    return NULL;
}

static void key_text(const CudaDev *d, const AttnKey *k, char *buf, size_t n)
{
    snprintf(buf, n,
             "attention %s %lld %lld heads %lld %lld %lld ld %lld %lld %lld %lld mask %d dtype %d ws %lld "
             "cuDNN %zu",
             k->bwd ? "bwd" : "fwd", (long long)k->B, (long long)k->T, (long long)k->H, (long long)k->K,
             (long long)k->D, (long long)k->ld_qkv, (long long)k->ld_o, (long long)k->ld_dout,
             (long long)k->ld_dqkv, (int)k->mask, (int)k->dtype, (long long)k->ws_bytes, d->attn->version);
}

/* Proposal i as the plan: 0, or 1 when it cannot be or wants more workspace than there is. */
static int plan_take(CudaDev *d, AttnPlan *p, int i)
{
    const AttnKey *k    = &p->key;
    int64_t        room = k->bwd ? k->ws_bytes - rowsum_bytes(k) - acc_bytes(k) : k->ws_bytes;
    CudnnDesc      plan = NULL;
    int            rc   = cudnn_graph_plan(&p->graph, d->attn->handle, i, &plan, &p->plan_ws);
    p->plan             = rc == 0 && p->plan_ws <= room ? plan : NULL;
    return p->plan == NULL;
}

typedef struct {
    CudnnDesc plan;
    int64_t   ws;
    float     us;
    int       i; /* of the proposals; -1: none */
} TimedPlan;

static void plan_set(AttnPlan *p, const TimedPlan *t)
{
    p->plan    = t->plan;
    p->plan_ws = t->ws;
}

/* Forgets why a proposal did not run; the next may. */
static void forget_failure(AttnPlan *p)
{
    p->graph.error[0] = 0;
    cudaGetLastError();
    err_clear();
}

/* 1 if the last rows of two plans' output are the same but for the order of sums: a wrong engine would not stay unseen. Forward only. */
static int same_output(CudaDev *d, AttnPlan *p, const TimedPlan *a, const TimedPlan *b, const AttnData *x)
{
    enum { N = 32768 };
    static uint16_t  got[2][N];
    const TimedPlan *t[2] = { a, b };
    size_t           all = (size_t)(p->key.B * p->key.T * p->key.ld_o), n = MIN(all, (size_t)N);
    if (p->key.bwd || p->key.dtype != DT_BF16 || a->i == b->i) return 1;
    for (int i = 0; i < 2; i++) {
        plan_set(p, t[i]);
        if (run_once(d, p, x)) return 0;
        if (cudaMemcpy(got[i], x->o + (all - n) * 2, n * 2, cudaMemcpyDeviceToHost) != cudaSuccess) return 0;
    }
    for (size_t i = 0; i < n; i++) {
        float u = f32_from_bf16(got[0][i]), v = f32_from_bf16(got[1][i]);
        if (!(fabsf(u - v) <= 0x1p-6f * fmaxf(fabsf(u), 0x1p-4f))) return 0;
    }
    return 1;
}

/* Times every proposal that can be had. best: the fastest, of those with the first's results. */
static void plans_time(CudaDev *d, AttnPlan *p, int n, const AttnData *x, TimedPlan *best)
{
    TimedPlan first = { .i = -1 };
    for (int i = 0; i < n; i++) {
        if (plan_take(d, p, i)) continue;
        TimedPlan t = { p->plan, p->plan_ws, time_plan(d, p, x), i };
        if (t.us < 0) forget_failure(p);
        if (t.us < 0) continue;
        if (first.i < 0) first = *best = t;
        if (t.us < best->us && same_output(d, p, &first, &t, x)) *best = t;
    }
}

/* The proposal that the cache names, or else the fastest on this card, or, where timing is not wanted or there is no room, the first
 * that runs. */
static const char *plan_choose(CudaDev *d, AttnPlan *p, int n)
{
    AttnData  x;
    TimedPlan best = { .i = -1 };
    char      key[256], value[16], note[64];
    int       room = rehearsal(d, &p->key, &x) == 0;
    if (!room) forget_failure(p);
    key_text(d, &p->key, key, sizeof key);
    if (room && d->base.opt.tune && !d->base.opt.deterministic && !p->key.deterministic) {
        const char *known = cuda_tune_find(d->tune, key);
        int         i     = known ? atoi(known) : -1;
        if (i >= 0 && i < n && plan_take(d, p, i) == 0) {
            if (!run_once(d, p, &x)) return NULL;
            forget_failure(p);
        }
        plans_time(d, p, n, &x, &best);
        if (best.i < 0) return "cuDNN has no engine for it that runs in the planned workspace";
        plan_set(p, &best);
        snprintf(value, sizeof value, "%d", best.i);
        snprintf(note, sizeof note, "%.1f us, proposal %d of %d", (double)best.us, best.i, n);
        cuda_tune_put(d->tune, key, value, note);
        return NULL;
    }
    for (int i = 0; i < n; i++) {
        if (plan_take(d, p, i)) continue;
        if (!room || !run_once(d, p, &x)) return NULL;
        forget_failure(p);
    }
    return p->graph.error[0] ? p->graph.error
                             : "cuDNN has no engine for it that runs in the planned workspace";
}

static const char *plan_build(CudaDev *d, AttnPlan *p)
{
    const AttnKey *k   = &p->key;
    const char    *why = key_refused(k);
    if (why) return why;
    if (k->bwd) {
        build_bwd(&p->graph, k);
    } else {
        build_fwd(&p->graph, k);
    }
    int n = cudnn_graph_propose(&p->graph, d->attn->handle);
    return n < 0 ? p->graph.error : plan_choose(d, p, n);
}

static AttnPlan *plan_get(CudaDev *d, const AttnKey *key)
{
    CudaAttn *c = d->attn;
    for (int i = 0; i < c->n_plan; i++) {
        if (memcmp(&c->plan[i]->key, key, sizeof *key) == 0) return c->plan[i];
    }
    AttnPlan *p = calloc(1, sizeof *p);
    CHECK(p, "out of host memory");
    p->key = *key;
    cudnn_graph_init(&p->graph, &c->lib);
    const char *why = plan_build(d, p);
    if (why) {
        cuda_note("attention %s B%lld T%lld H%lld/%lld D%lld: own kernel, because %s",
                  key->bwd ? "backward" : "forward", (long long)key->B, (long long)key->T, (long long)key->H,
                  (long long)key->K, (long long)key->D, why);
        p->plan = NULL;
    }
    if (!d->building) cuda_scratch_drop(d);
    if (c->n_plan == c->cap) {
        c->cap  = c->cap ? 2 * c->cap : 16;
        c->plan = realloc(c->plan, (size_t)c->cap * sizeof *c->plan);
        CHECK(c->plan, "out of host memory");
    }
    c->plan[c->n_plan++] = p;
    return p;
}

static int aligned(const Tensor *t) { return (uintptr_t)t->data % 16 == 0; }

static int is_half(const Tensor *t) { return t->dtype == DT_BF16 || t->dtype == DT_F16; }

/* The plan of a forward op, or NULL for the own kernel. */
static AttnPlan *fwd_plan(CudaDev *d, const AttnFwd *a)
{
    if (!d->attn->handle || !is_half(a->qkv) || a->o->dtype != a->qkv->dtype) return NULL;
    if (!aligned(a->qkv) || !aligned(a->o)) return NULL;
    AttnKey k;
    memset(&k, 0, sizeof k);
    k.B         = a->qkv->dim[0];
    k.T         = a->qkv->dim[1];
    k.H         = a->heads;
    k.K         = a->kv_heads;
    k.D         = a->head_dim;
    k.ld_qkv    = tensor_ld(a->qkv);
    k.ld_o      = tensor_ld(a->o);
    k.ws_bytes  = a->ws ? (int64_t)tensor_bytes(a->ws) : 0;
    k.dtype     = (int32_t)a->qkv->dtype;
    k.mask      = (int32_t)a->mask;
    AttnPlan *p = plan_get(d, &k);
    return p->plan ? p : NULL;
}

static AttnPlan *bwd_plan(CudaDev *d, const AttnBwd *a)
{
    if (!d->attn->handle || !is_half(a->qkv) || a->o->dtype != a->qkv->dtype) return NULL;
    if (a->dout->dtype != a->qkv->dtype || a->dqkv->dtype != a->qkv->dtype) return NULL;
    if (!aligned(a->qkv) || !aligned(a->o) || !aligned(a->dout) || !aligned(a->dqkv)) return NULL;
    AttnKey k;
    memset(&k, 0, sizeof k);
    k.B             = a->qkv->dim[0];
    k.T             = a->qkv->dim[1];
    k.H             = a->heads;
    k.K             = a->kv_heads;
    k.D             = a->head_dim;
    k.ld_qkv        = tensor_ld(a->qkv);
    k.ld_o          = tensor_ld(a->o);
    k.ld_dout       = tensor_ld(a->dout);
    k.ld_dqkv       = tensor_ld(a->dqkv);
    k.ws_bytes      = a->ws ? (int64_t)tensor_bytes(a->ws) : 0;
    k.bwd           = 1;
    k.dtype         = (int32_t)a->qkv->dtype;
    k.mask          = (int32_t)a->mask;
    k.deterministic = a->deterministic || d->base.opt.deterministic;
    AttnPlan *p     = plan_get(d, &k);
    return p->plan ? p : NULL;
}

/* ---- interface ----------------------------------------------------------------------------------------- */

int cuda_attn_open(CudaDev *d)
{
    char why[256] = "";
    d->attn       = calloc(1, sizeof *d->attn);
    CHECK(d->attn, "out of host memory");
    CudaAttn *c = d->attn;
    if (cudnn_lib_open(&c->lib, why, sizeof why) == 0) {
        c->version = c->lib.version();
        /* Before 9.6 the dQ accumulator had to be cleared first; 9.10.0 and 9.10.1 computed wrong attention.
         */
        if (c->version < 90600 || c->version == 91000 || c->version == 91001) {
            snprintf(why, sizeof why, "version %zu is not usable", c->version);
        } else {
            cudnnStatus_t s = c->lib.create(&c->handle);
            if (s) snprintf(why, sizeof why, "%s", c->lib.error_string(s));
            if (s) c->handle = NULL;
        }
    }
    if (!c->handle) cuda_note("no cuDNN (%s): attention runs on the own, slower kernel", why);
    return 0;
}

void cuda_attn_close(CudaDev *d)
{
    CudaAttn *c = d->attn;
    if (!c) return;
    for (int i = 0; i < c->n_plan; i++) {
        cudnn_graph_deinit(&c->plan[i]->graph);
        free(c->plan[i]);
    }
    /* The library stays loaded: it has threads and exit handlers of its own. */
    if (c->handle) c->lib.destroy(c->handle);
    free(c->plan);
    free(c);
    d->attn = NULL;
}

const char *cuda_attn_version(const CudaDev *d, char *buf, size_t n)
{
    size_t v = d->attn->version;
    if (!d->attn->handle) {
        snprintf(buf, n, "no cuDNN");
    } else {
        snprintf(buf, n, "cuDNN %zu.%zu.%zu", v / 10000, v / 100 % 100, v % 100);
    }
    return buf;
}

int cuda_attn_prepare(CudaDev *d, const Op *op)
{
    if ((op->kind == OP_ATTN_FWD && op->args.attn_fwd.p) ||
        (op->kind == OP_ATTN_BWD && op->args.attn_bwd.p)) {
        return cuda_stored_prepare(d, op);
    }
    if (op->kind == OP_ATTN_FWD) fwd_plan(d, &op->args.attn_fwd);
    if (op->kind == OP_ATTN_BWD) bwd_plan(d, &op->args.attn_bwd);
    return 0;
}

int cuda_attn_fwd(Dev *dev, const AttnFwd *a)
{
    if (a->p) return cuda_stored_fwd(dev, a);
    CudaDev  *d = (CudaDev *)dev;
    AttnPlan *p = fwd_plan(d, a);
    if (!p) return cuda_flash_fwd(dev, a);
    AttnData x = { .qkv = a->qkv->data, .o = a->o->data, .lse = a->lse->data, .scale = a->scale };
    if (a->ws) x.ws = a->ws->data;
    const char *why = run_plan(d, p, &x);
    return why ? err_set("attn_fwd: %s", why) : 0;
}

int cuda_attn_bwd(Dev *dev, const AttnBwd *a)
{
    if (a->p) return cuda_stored_bwd(dev, a);
    CudaDev  *d = (CudaDev *)dev;
    AttnPlan *p = bwd_plan(d, a);
    if (!p) return cuda_flash_bwd(dev, a);
    AttnData x = {
        a->qkv->data, a->o->data, a->lse->data, a->dout->data, a->dqkv->data, a->ws->data, a->scale
    };
    const char *why = run_plan(d, p, &x);
    return why ? err_set("attn_bwd: %s", why) : 0;
}
