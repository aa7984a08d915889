/* What attention must give (rows of op_ref.h).
 *
 * A score is a sum of D products of size up to big^2, of either sign: its partial sums are about sqrt(D)
 * big^2, and so is its error in units of U. It moves every weight by that factor, so outputs get 1 + scale
 * sqrt(D) big^2 times the plain size; the sums over keys have T terms. */
#ifndef TESTS_OP_REF_ATTN_H
#define TESTS_OP_REF_ATTN_H

#include "op_ref_base.h"

static inline double ref_largest(const double *x, int64_t n)
{
    double big = 0;
    for (int64_t i = 0; i < n; i++) big = fabs(x[i]) > big ? fabs(x[i]) : big;
    return big;
}

static inline double ref_spread_of(const MathAttn *s, double big)
{
    return 1 + s->scale * sqrt((double)s->D) * big * big;
}

static inline double ref_attn_spread(const MathAttn *s, const double *q, const double *kv)
{
    return ref_spread_of(s, fmax(ref_largest(q, s->B * s->T * s->W), ref_largest(kv, s->B * s->S * s->W_kv)));
}

/* o and lse, which are outputs 0 and 1. */
static inline void ref_attn(OpRef *r, const MathAttn *s, const double *q, const double *kv)
{
    double spread = ref_attn_spread(s, q, kv), big = 2;
    math_attn(r->want[0], r->want[1], s, q, kv);
    for (int64_t i = 0; i < s->B * s->T * s->H * s->D; i++) r->mag[0][i] = big * spread;
    for (int64_t i = 0; i < s->B * s->H * s->T; i++) r->mag[1][i] = spread + fabs(r->want[1][i]);
    r->terms[0] = r->terms[1] = (double)s->S;
}

/* dP is a sum of D terms below 2 of either sign; weights sum to 1, so a gradient is of that size; keys and
 * values collect the query heads of their group, whose errors add in quadrature. */
static inline double ref_attn_size(const MathAttn *s, const double *q, const double *kv)
{
    return ref_attn_spread(s, q, kv) * (2 + sqrt((double)s->D) / 4) * sqrt((double)(s->H / s->K));
}

static inline void ref_attn_fwd(const OpCase *c, OpRef *r)
{
    const AttnFwd *a   = &c->args.attn_fwd;
    MathAttn       s   = case_attn_shape(c);
    double        *qkv = case_doubles(a->qkv), spread = ref_attn_spread(&s, qkv, qkv);
    ref_attn(r, &s, qkv, qkv);
    if (a->p) math_attn_weights(r->want[2], &s, qkv, qkv);
    for (int64_t i = 0; a->p && i < tensor_numel(a->p); i++) r->mag[2][i] = spread * r->want[2][i];
    r->terms[2] = (double)s.T;
    free(qkv);
}

/* The gradients of q and k rotated back; an error of either of a pair reaches both. */
static inline void ref_turn_back(OpRef *r, const MathAttn *s, const Tensor *table)
{
    int64_t half = s->D / 2;
    for (int64_t i = 0; i < s->B * s->T * s->W; i++) {
        int64_t col = i % s->W, t = i / s->W % s->T, d = col % s->D;
        if (col >= (s->H + s->K) * s->D || d >= half) continue;
        double cs = *case_at(table, t * s->D + d), sn = *case_at(table, t * s->D + half + d);
        double u = r->want[0][i], v = r->want[0][i + half];
        r->want[0][i]        = u * cs + v * sn;
        r->want[0][i + half] = v * cs - u * sn;
        r->mag[0][i] = r->mag[0][i + half] = r->mag[0][i] + r->mag[0][i + half];
    }
}

static inline void ref_attn_bwd(const OpCase *c, OpRef *r)
{
    const AttnBwd *a = &c->args.attn_bwd;
    MathAttn       s = case_attn_shape(c);
    double *qkv = case_doubles(a->qkv), *dout = case_doubles(a->dout), size = ref_attn_size(&s, qkv, qkv);
    memset(r->want[0], 0, (size_t)tensor_numel(a->dqkv) * sizeof(double));
    math_attn_bwd(r->want[0], r->want[0], &s, qkv, qkv, dout);
    for (int64_t i = 0; i < tensor_numel(a->dqkv); i++) r->mag[0][i] = size + fabs(r->want[0][i]);
    if (a->table) ref_turn_back(r, &s, a->table);
    r->terms[0] = (double)s.T;
    free(qkv);
    free(dout);
}

static inline void ref_cross_attn_fwd(const OpCase *c, OpRef *r)
{
    MathAttn s = case_cross_shape(c);
    double  *q = case_doubles(c->args.cross_attn_fwd.q), *kv = case_doubles(c->args.cross_attn_fwd.kv);
    ref_attn(r, &s, q, kv);
    free(q);
    free(kv);
}

static inline void ref_cross_attn_bwd(const OpCase *c, OpRef *r)
{
    const CrossAttnBwd *a = &c->args.cross_attn_bwd;
    MathAttn            s = case_cross_shape(c);
    double             *q = case_doubles(a->q), *kv = case_doubles(a->kv), *dout = case_doubles(a->dout);
    double              size = ref_attn_size(&s, q, kv);
    int64_t             n[2] = { tensor_numel(a->q), tensor_numel(a->kv) };
    for (int i = 0; i < 2; i++) memset(r->want[i], 0, (size_t)n[i] * sizeof(double));
    math_attn_bwd(r->want[0], r->want[1], &s, q, kv, dout);
    for (int i = 0; i < 2; i++) {
        for (int64_t e = 0; e < n[i]; e++) r->mag[i][e] = size + fabs(r->want[i][e]);
    }
    r->terms[0] = (double)s.S;
    r->terms[1] = (double)s.T;
    free(q);
    free(kv);
    free(dout);
}

static inline int64_t ref_start(const Tensor *t, int64_t b)
{
    return t ? *case_int(t, tensor_numel(t) == 1 ? 0 : b) : 0;
}

/* The caches with the new rows, as outputs 1 and 2. */
static inline void ref_append(const OpCase *c, OpRef *r, int64_t T)
{
    const AttnDecode *a     = &c->args.attn_decode;
    int64_t           T_max = a->kcache->dim[1], row = (int64_t)a->shape.kv_heads * a->shape.head_dim,
            W = tensor_cols(a->qkv), at_k = W - 2 * row;
    for (int64_t i = 0; i < tensor_numel(a->kcache); i++) {
        int64_t b = i / (T_max * row), t = i / row % T_max - ref_start(a->len, b), fresh = t >= 0 && t < T;
        int64_t at = (b * T + t) * W + at_k + i % row;
        ref_put(r, 1, i, fresh ? *case_at(a->qkv, at) : *case_at(a->kcache, i), 0);
        ref_put(r, 2, i, fresh ? *case_at(a->qkv, at + row) : *case_at(a->vcache, i), 0);
    }
}

static inline void ref_attn_decode(const OpCase *c, OpRef *r)
{
    const AttnDecode *a = &c->args.attn_decode;
    int64_t           B = a->kcache->dim[0], T = tensor_rows(a->qkv) / B, T_max = a->kcache->dim[1];
    int64_t           H = a->shape.heads, K = a->shape.kv_heads, D = a->shape.head_dim, W = (H + 2 * K) * D;
    ref_append(c, r, T);
    r->terms[0] = (double)T_max;
    for (int64_t b = 0; b < B; b++) {
        int32_t  first[1] = { 0 }, last[1];
        MathAttn s        = math_cross(1, 1, T_max, &a->shape);
        s.mask            = MASK_RANGE;
        s.first           = first;
        s.last            = last;
        double *q = dbl_new(H * D), *kv = dbl_new(T_max * 2 * K * D), *o = dbl_new(H * D);
        for (int64_t i = 0; i < T_max * 2 * K * D; i++) {
            int64_t t = i / (2 * K * D), col = i % (2 * K * D);
            kv[i] = r->want[col < K * D ? 1 : 2][(b * T_max + t) * K * D + col % (K * D)];
        }
        double big = ref_largest(kv, T_max * 2 * K * D);
        for (int64_t t = 0; t < T; t++) {
            last[0] = (int32_t)(ref_start(a->len, b) + t);
            if (a->shape.window > 0) first[0] = last[0] + 1 - a->shape.window;
            for (int64_t i = 0; i < H * D; i++) q[i] = *case_at(a->qkv, (b * T + t) * W + i);
            math_attn(o, NULL, &s, q, kv);
            double spread = 2 * ref_spread_of(&s, fmax(big, ref_largest(q, H * D)));
            for (int64_t i = 0; i < H * D; i++) ref_put(r, 0, (b * T + t) * H * D + i, o[i], spread);
        }
        free(q);
        free(kv);
        free(o);
    }
}

#endif
