/* Attention backward: scores are computed again from q, k and lse; T x S is never stored.
 *
 * One item of work is a sequence and a key/value head with all query heads that read it. So one thread sums
 * dk and dv, in one order. For each query head and block of queries, with delta = sum over d of dout * o, per
 * block of keys:
 *   P  = exp(K Q^T - lse)    dP = V dO^T    dS = P (dP - delta)     tiles [keys][queries], Q already scaled
 *   dV += P dO               dK += dS Q     dQ += dS^T K            rows of D floats, padded to whole vectors
 * dq = scale dQ. */
#include "dev/cpu/cpu_attn.h"

#include "base/err.h"
#include "dev/cpu/cpu_gemm.h"

#include <math.h>
#include <omp.h>
#include <string.h>

typedef struct {
    int64_t   pad;             /* attn_pad(D) */
    float    *k, *v, *dk, *dv; /* [S][pad], of one key/value head */
    float    *qt, *dot;        /* [D][ATTN_Q] */
    float    *q, *dout, *dq;   /* [ATTN_Q][pad] */
    float    *p, *ds;          /* [ATTN_K][ATTN_Q] */
    float     lse[ATTN_Q], delta[ATTN_Q];
    AttnAhead ahead;
} BwdTile;

static size_t bwd_floats(int64_t S, int64_t D)
{
    return (size_t)(4 * S * attn_pad(D) + 2 * D * ATTN_Q + 3 * ATTN_Q * attn_pad(D) + 2 * ATTN_K * ATTN_Q);
}

size_t cpu_attn_bwd_scratch(const AttnBwd *a, int threads)
{
    if (a->p) return cpu_attn_stored_bwd_scratch(a);
    return (size_t)threads * bwd_floats(a->qkv->dim[1], a->shape.head_dim) * sizeof(float);
}

size_t cpu_cross_attn_bwd_scratch(const CrossAttnBwd *a, int threads)
{
    return (size_t)threads * bwd_floats(a->kv->dim[1], a->shape.head_dim) * sizeof(float);
}

static void tile_init(BwdTile *t, float *p, int64_t S, int64_t D)
{
    t->pad         = attn_pad(D);
    float **part[] = {
        &t->k, &t->v, &t->dk, &t->dv, &t->qt, &t->dot, &t->q, &t->dout, &t->dq, &t->p, &t->ds
    };
    int64_t tall = S * t->pad, flat = D * ATTN_Q, wide = ATTN_Q * t->pad, tile = ATTN_K * ATTN_Q;
    int64_t n[] = { tall, tall, tall, tall, flat, flat, wide, wide, wide, tile, tile };
    for (int i = 0; i < ARRAY_LEN(part); i++) {
        *part[i] = p;
        p += n[i];
    }
}

/* y = x * scale; the rows of x are pad floats apart. */
static void write_rows(Mat y, const float *x, int64_t pad, float scale)
{
    for (int64_t r = 0; r < y.rows; r++) {
        for (int64_t d = 0; d < y.cols; d += VL)
            vf_put(mat_row(y, r) + d, y.cols - d, vf_load(x + r * pad + d) * scale);
    }
}

/* p becomes the weights, ds (which holds dP) the gradient of the scores. */
static void tile_softmax(BwdTile *t, const Span *span, int64_t k0, int64_t k1)
{
    int whole = span_whole(span, k0, k1);
    for (int64_t k = k0; k < k1; k++) {
        for (int v = 0; v < ATTN_QV; v++) {
            int64_t at = (k - k0) * ATTN_Q + v * VL;
            vf      p  = vf_exp(vf_load(t->p + at) - vf_load(t->lse + v * VL));
            if (!whole) p = (vf)((vi)p & span_sees(span, v, k));
            vf_store(t->p + at, p);
            vf_store(t->ds + at, p * (vf_load(t->ds + at) - vf_load(t->delta + v * VL)));
            ahead_step(&t->ahead);
        }
    }
}

static void key_block(const Attn *a, BwdTile *t, const Span *span, int64_t k0, int64_t k1)
{
    int64_t n = k1 - k0, pad = t->pad;
    float  *k = t->k + k0 * pad;
    Tile    s = {
           .k     = a->D,
           .a     = k,
           .a_row = pad,
           .a_col = 1,
           .b     = t->qt,
           .b_row = ATTN_Q,
           .c     = t->p,
           .c_row = ATTN_Q,
    };
    cpu_block(&s, n, ATTN_Q);
    Tile dp  = { .k = a->D, .a = t->v + k0 * pad, .a_row = pad, .a_col = 1, .b = t->dot, .b_row = ATTN_Q };
    dp.c     = t->ds;
    dp.c_row = ATTN_Q;
    cpu_block(&dp, n, ATTN_Q);
    tile_softmax(t, span, k0, k1);
    Tile dv  = { .k = ATTN_Q, .a = t->p, .a_row = ATTN_Q, .a_col = 1, .b = t->dout, .b_row = pad };
    dv.c     = t->dv + k0 * pad;
    dv.plus  = dv.c;
    dv.c_row = dv.plus_row = pad;
    cpu_block(&dv, n, pad);
    Tile dk  = { .k = ATTN_Q, .a = t->ds, .a_row = ATTN_Q, .a_col = 1, .b = t->q, .b_row = pad };
    dk.c     = t->dk + k0 * pad;
    dk.plus  = dk.c;
    dk.c_row = dk.plus_row = pad;
    cpu_block(&dk, n, pad);
    Tile dq = {
        .k = n, .a = t->ds, .a_row = 1, .a_col = ATTN_Q, .b = k, .b_row = pad, .c = t->dq, .c_row = pad
    };
    dq.plus     = t->dq;
    dq.plus_row = pad;
    cpu_block(&dq, ATTN_Q, pad);
}

typedef struct {
    Attn         a;
    Mat          dout, o;
    float       *dq, *dk, *dv; /* head 0 of sequence 0 */
    int64_t      ld_dq, ld_dk; /* floats between rows of dq, and of dk and dv */
    const float *lse;
} Bwd;

static void query_block(const Bwd *w, BwdTile *t, int64_t b, int64_t h, int64_t q0)
{
    const Attn  *a = &w->a;
    int64_t      n = MIN(ATTN_Q, a->T - q0), D = a->D, row = b * a->T + q0;
    const float *q = attn_q(a, b, h) + q0 * a->ld_q, *dout = mat_row(w->dout, row) + h * D;
    Span         span;
    attn_span(&span, a, b, q0, n);
    attn_transpose(t->qt, q, a->ld_q, n, D, a->scale);
    attn_transpose(t->dot, dout, w->dout.ld, n, D, 1.0f);
    attn_copy(t->q, &(AttnRows){ q, a->ld_q, n, ATTN_Q, D, a->scale });
    attn_copy(t->dout, &(AttnRows){ dout, w->dout.ld, n, ATTN_Q, D, 1.0f });
    memset(t->dq, 0, (size_t)(ATTN_Q * t->pad) * sizeof(float));
    for (int64_t i = 0; i < ATTN_Q; i++) {
        vf sum = { 0 };
        for (int64_t d = 0; i < n && d < D; d += VL) {
            sum += vf_load(t->dout + i * t->pad + d) * vf_get(mat_row(w->o, row + i) + h * D + d, D - d);
        }
        t->delta[i] = vf_sum(sum);
        t->lse[i]   = i < n ? w->lse[(b * a->H + h) * a->T + q0 + i] : INFINITY; /* weight 0 past the end */
    }
    for (int64_t k0 = span.min_lo / ATTN_K * ATTN_K; k0 < span.max_hi; k0 += ATTN_K) {
        key_block(a, t, &span, k0, MIN(k0 + ATTN_K, span.max_hi));
    }
    write_rows((Mat){ w->dq + row * w->ld_dq + h * D, n, D, w->ld_dq }, t->dq, t->pad, a->scale);
}

static void bwd_item(const Bwd *w, BwdTile *t, int64_t b, int64_t g)
{
    const Attn *a = &w->a;
    attn_copy(t->k, &(AttnRows){ attn_k(a, b, g), a->ld_k, a->S, a->S, a->D, 1.0f });
    attn_copy(t->v, &(AttnRows){ attn_v(a, b, g), a->ld_k, a->S, a->S, a->D, 1.0f });
    memset(t->dk, 0, (size_t)(a->S * t->pad) * sizeof(float));
    memset(t->dv, 0, (size_t)(a->S * t->pad) * sizeof(float));
    int64_t group = a->H / a->K;
    for (int64_t h = g * group; h < (g + 1) * group; h++) {
        for (int64_t q0 = 0; q0 < a->T; q0 += ATTN_Q) query_block(w, t, b, h, q0);
    }
    int64_t at = b * a->S * w->ld_dk + g * a->D;
    write_rows((Mat){ w->dk + at, a->S, a->D, w->ld_dk }, t->dk, t->pad, 1.0f);
    write_rows((Mat){ w->dv + at, a->S, a->D, w->ld_dk }, t->dv, t->pad, 1.0f);
}

static int flash_bwd(Dev *dev, const Bwd *w)
{
    const Attn *a       = &w->a;
    int         threads = cpu_threads(dev);
    size_t      each    = bwd_floats(a->S, a->D);
    float      *scratch = cpu_scratch(dev, (size_t)threads * each * sizeof(float));
    if (!scratch) return -1;
    int64_t n_item = a->B * a->K;
#pragma omp parallel for num_threads(threads)                                                                \
    schedule(static) if (a->B * a->H * a->T * a->D >= CPU_PARALLEL_MIN)
    for (int64_t i = 0; i < n_item; i++) {
        BwdTile t = { .pad = 0 };
        if (i + 1 < n_item) {
            int64_t b = (i + 1) / a->K, g = (i + 1) % a->K;
            t.ahead.n_row = MIN(a->T, a->S);
            ahead_add_heads(&t.ahead, a, a->q, a->ld_q, b, g);
            ahead_add_keys(&t.ahead, a, a->k, a->ld_k, b, g);
            ahead_add_keys(&t.ahead, a, a->v, a->ld_k, b, g);
            ahead_add_heads(&t.ahead, a, w->dq, w->ld_dq, b, g);
            ahead_add_keys(&t.ahead, a, w->dk, w->ld_dk, b, g);
            ahead_add_keys(&t.ahead, a, w->dv, w->ld_dk, b, g);
            ahead_add_heads(&t.ahead, a, w->dout.p, w->dout.ld, b, g);
            ahead_add_heads(&t.ahead, a, w->o.p, w->o.ld, b, g);
        }
        tile_init(&t, scratch + (size_t)omp_get_thread_num() * each, a->S, a->D);
        bwd_item(w, &t, i / a->K, i % a->K);
    }
    return 0;
}

static int self_bwd(Dev *dev, const AttnBwd *args)
{
    Bwd w   = { .a = attn_of_bwd(args), .dout = cpu_mat(args->dout), .o = cpu_mat(args->o) };
    w.dq    = cpu_f32(args->dqkv);
    w.dk    = w.dq + w.a.H * w.a.D;
    w.dv    = w.dk + w.a.K * w.a.D;
    w.ld_dq = w.ld_dk = tensor_ld(args->dqkv);
    w.lse             = cpu_f32(args->lse);
    return flash_bwd(dev, &w);
}

int cpu_cross_attn_bwd(Dev *dev, const CrossAttnBwd *args)
{
    Bwd w   = { .a = attn_of_cross_bwd(args), .dout = cpu_mat(args->dout), .o = cpu_mat(args->o) };
    w.dq    = cpu_f32(args->dq);
    w.dk    = cpu_f32(args->dkv);
    w.dv    = w.dk + w.a.K * w.a.D;
    w.ld_dq = tensor_ld(args->dq);
    w.ld_dk = tensor_ld(args->dkv);
    w.lse   = cpu_f32(args->lse);
    return flash_bwd(dev, &w);
}

int cpu_attn_bwd(Dev *dev, const AttnBwd *a)
{
    TRY(a->p ? cpu_attn_stored_bwd(dev, a) : self_bwd(dev, a));
    if (!a->table) return 0;
    return cpu_rope(dev, &(Rope){ .y        = a->dqkv,
                                  .x        = a->dqkv,
                                  .table    = a->table,
                                  .n_head   = a->shape.heads + a->shape.kv_heads,
                                  .head_dim = a->shape.head_dim,
                                  .inverse  = 1 });
}
