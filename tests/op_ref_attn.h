/* What attention must give (rows of op_ref.h).
 *
 * A score is a sum of D products of size up to big^2, of either sign: its partial sums are about sqrt(D) big^2, and so is
 * its error in units of U. It moves every weight by that factor, so outputs get 1 + scale sqrt(D) big^2 times the plain
 * size; the sums over keys have T terms. */
#ifndef TESTS_OP_REF_ATTN_H
#define TESTS_OP_REF_ATTN_H

#include "op_ref_base.h"

static inline double ref_attn_spread(const AttnShape *s, const double *qkv)
{
    double big = 0;
    for (int64_t i = 0; i < s->B * s->T * s->W; i++) big = fmax(big, fabs(qkv[i]));
    return 1 + s->scale * sqrt((double)s->D) * big * big;
}

static inline void ref_attn_fwd(const OpCase *c, OpRef *r)
{
    const AttnFwd *a   = &c->args.attn_fwd;
    AttnShape      s   = case_attn_shape(c);
    double        *qkv = case_doubles(a->qkv), spread = ref_attn_spread(&s, qkv), big = 2;
    math_attn(r->want[0], r->want[1], &s, qkv);
    for (int64_t i = 0; i < tensor_numel(a->o); i++) r->mag[0][i] = big * spread;
    for (int64_t i = 0; i < tensor_numel(a->lse); i++) r->mag[1][i] = spread + fabs(r->want[1][i]);
    if (a->p) math_attn_weights(r->want[2], &s, qkv);
    for (int64_t i = 0; a->p && i < tensor_numel(a->p); i++) r->mag[2][i] = spread * r->want[2][i];
    r->terms[0] = r->terms[1] = r->terms[2] = (double)s.T;
    free(qkv);
}

/* The gradients of q and k rotated back; an error of either of a pair reaches both. */
static inline void ref_turn_back(OpRef *r, const AttnShape *s, const Tensor *table)
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
    AttnShape      s = case_attn_shape(c);
    double *qkv = case_doubles(a->qkv), *dout = case_doubles(a->dout), spread = ref_attn_spread(&s, qkv);
    math_attn_bwd(r->want[0], &s, qkv, dout);
    /* dP is a sum of D terms below 2 of either sign; weights sum to 1, so a gradient is of that size; keys and values collect
     * the query heads of their group, whose errors add in quadrature. */
    double size = spread * (2 + sqrt((double)s.D) / 4) * sqrt((double)(s.H / s.K));
    for (int64_t i = 0; i < tensor_numel(a->dqkv); i++) r->mag[0][i] = size + fabs(r->want[0][i]);
    if (a->table) ref_turn_back(r, &s, a->table);
    r->terms[0] = (double)s.T;
    free(qkv);
    free(dout);
}

static inline void ref_attn_decode(const OpCase *c, OpRef *r)
{
    const AttnDecode *a = &c->args.attn_decode;
    int64_t B = tensor_rows(a->qkv), T = a->kcache->dim[1], H = a->heads, K = a->kv_heads, D = a->head_dim,
            W     = (H + 2 * K) * D;
    int64_t   len = *case_int(a->len, 0);
    AttnShape s   = {
          .B = 1, .T = len + 1, .H = H, .K = K, .D = D, .W = W, .mask = MASK_CAUSAL, .scale = (double)a->scale
    };
    for (int64_t i = 0; i < B * T * K * D; i++) {
        int64_t b = i / (T * K * D), t = i / (K * D) % T, at = b * W + H * D + i % (K * D);
        ref_put(r, 1, i, t == len ? *case_at(a->qkv, at) : *case_at(a->kcache, i), 0);
        ref_put(r, 2, i, t == len ? *case_at(a->qkv, at + K * D) : *case_at(a->vcache, i), 0);
    }
    double *qkv = dbl_new(s.T * W), *o = dbl_new(s.T * H * D);
    for (int64_t b = 0; b < B; b++) {
        for (int64_t i = 0; i < s.T * W; i++) {
            int64_t t = i / W, col = i % W, kv = b * T * K * D + t * K * D + (col - H * D) % (K * D);
            qkv[i] = col < H * D ? *case_at(a->qkv, b * W + col) : r->want[col < (H + K) * D ? 1 : 2][kv];
        }
        math_attn(o, NULL, &s, qkv);
        for (int64_t i = 0; i < H * D; i++)
            ref_put(r, 0, b * H * D + i, o[len * H * D + i], 2 * ref_attn_spread(&s, qkv));
    }
    r->terms[0] = (double)s.T;
    free(qkv);
    free(o);
}

#endif
