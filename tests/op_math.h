/* The mathematics of the ops in double, written as plainly as possible. The backends are compared with it,
 * and it shares no code with them. Matrices are contiguous rows x cols. */
#ifndef TESTS_OP_MATH_H
#define TESTS_OP_MATH_H

#include "base/err.h"
#include "dev/op.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static inline double *dbl_new(int64_t n)
{
    double *p = calloc((size_t)(n > 0 ? n : 1), sizeof *p);
    CHECK(p, "out of memory");
    return p;
}

/* ---- Norms: one row ------------------------------------------------------------------------------------ */

static inline void math_stats(const double *x, int64_t n, int center, double eps, double *mean, double *rstd)
{
    double m = 0, v = 0;
    for (int64_t i = 0; i < n && center; i++) m += x[i] / (double)n;
    for (int64_t i = 0; i < n; i++) v += (x[i] - m) * (x[i] - m) / (double)n;
    *mean = m;
    *rstd = 1 / sqrt(v + eps);
}

static inline void math_norm(double *y, const double *x, const double *gamma, const double *beta, int64_t n,
                             int center, double eps)
{
    double mean, rstd;
    math_stats(x, n, center, eps, &mean, &rstd);
    for (int64_t i = 0; i < n; i++) y[i] = (x[i] - mean) * rstd * gamma[i] + (beta ? beta[i] : 0);
}

/* ---- Products: c[m,n] = sum over k of a b, with strides ------------------------------------------------ */

typedef struct {
    const double *p;
    int64_t       row, col;
} Strided;

static inline void math_product(double *c, Strided a, Strided b, int64_t m, int64_t n, int64_t k)
{
    for (int64_t i = 0; i < m; i++) {
        for (int64_t j = 0; j < n; j++) {
            double s = 0;
            for (int64_t l = 0; l < k; l++) s += a.p[i * a.row + l * a.col] * b.p[l * b.row + j * b.col];
            c[i * n + j] = s;
        }
    }
}

/* ---- Activations --------------------------------------------------------------------------------------- */

static inline double math_act(double x, Act act)
{
    switch (act) {
    case ACT_GELU: return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case ACT_SILU: return x / (1 + exp(-x));
    case ACT_RELU2: return x > 0 ? x * x : 0;
    case ACT_TANH: return tanh(x);
    case ACT_SIGMOID: return 1 / (1 + exp(-x));
    case ACT_GELU_ERF: return x * erfc(-x / sqrt(2)) / 2;
    case ACT_SLOPE: return x * x / 2; /* whose slope is x */
    default: return x > 0 ? x : 0;
    }
}

/* A gated output. With ACT_SLOPE, that whose slopes are gate and up. */
static inline double math_glu(double gate, double up, Act act)
{
    return act == ACT_SLOPE ? math_act(gate, act) + math_act(up, act) : math_act(gate, act) * up;
}

static inline double math_slope(double x, Act act)
{
    double u, t, s;
    switch (act) {
    case ACT_GELU:
        u = sqrt(2 / M_PI) * (x + 0.044715 * x * x * x);
        t = tanh(u);
        return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
    case ACT_SILU: s = 1 / (1 + exp(-x)); return s + x * s * (1 - s);
    case ACT_RELU2: return x > 0 ? 2 * x : 0;
    case ACT_TANH: return 1 - tanh(x) * tanh(x);
    case ACT_SIGMOID: s = 1 / (1 + exp(-x)); return s * (1 - s);
    case ACT_GELU_ERF: return erfc(-x / sqrt(2)) / 2 + x * exp(-x * x / 2) / sqrt(2 * M_PI);
    case ACT_SLOPE: return x;
    default: return x > 0;
    }
}

/* ---- Attention: one query ------------------------------------------------------------------------------ */

typedef struct {
    int64_t        B, T, S, H, K, D; /* T queries, S keys */
    int64_t        W, W_kv;          /* widths of a row with queries, and of one with keys and values */
    int64_t        at_k, at_v;       /* columns of the first key and value head */
    Mask           mask;
    double         scale;
    const int32_t *doc, *prefix, *first, *last, *len;
} MathAttn;

/* Packed: q and kv are the same rows. */
static inline MathAttn math_packed(int64_t B, int64_t T, const AttnShape *a)
{
    MathAttn s = { .B = B, .T = T, .S = T, .H = a->heads, .K = a->kv_heads, .D = a->head_dim };
    s.W = s.W_kv = (s.H + 2 * s.K) * s.D;
    s.at_k       = s.H * s.D;
    s.at_v       = s.at_k + s.K * s.D;
    s.mask       = a->mask;
    s.scale      = (double)a->scale;
    return s;
}

static inline MathAttn math_cross(int64_t B, int64_t T, int64_t S, const AttnShape *a)
{
    MathAttn s = math_packed(B, T, a);
    s.S        = S;
    s.W        = s.H * s.D;
    s.W_kv     = 2 * s.K * s.D;
    s.at_k     = 0;
    s.at_v     = s.K * s.D;
    return s;
}

static inline int math_sees(const MathAttn *s, int64_t b, int64_t q, int64_t k)
{
    if (s->len && k >= s->len[b]) return 0;
    switch (s->mask) {
    case MASK_FULL: return 1;
    case MASK_PREFIX: return k <= q || k < s->prefix[b];
    case MASK_DOCUMENT: return k <= q && k >= s->doc[b * s->T + q];
    case MASK_RANGE: return k >= s->first[b * s->T + q] && k <= s->last[b * s->T + q];
    default: return k <= q;
    }
}

/* Element 0 of query (part 0), key (1) or value (2) head h at (b, t); h counts query heads. */
static inline int64_t math_at(const MathAttn *s, int64_t b, int64_t t, int64_t h, int part)
{
    int64_t g = h / (s->H / s->K);
    if (part == 0) return (b * s->T + t) * s->W + h * s->D;
    return (b * s->S + t) * s->W_kv + (part == 1 ? s->at_k : s->at_v) + g * s->D;
}

static inline double math_dot(const double *x, const double *y, int64_t n)
{
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) sum += x[i] * y[i];
    return sum;
}

/* y += a*x */
static inline void math_add(double *y, double a, const double *x, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) y[i] += a * x[i];
}

/* Weights p[S] of query (b, h, i), and the log of the sum of exponentials; a query that sees nothing has
 * zeros. */
static inline double math_weights(double *p, const MathAttn *s, const double *q, const double *kv, int64_t b,
                                  int64_t h, int64_t i)
{
    double top = -INFINITY, sum = 0;
    for (int64_t k = 0; k < s->S; k++) {
        const double *x = q + math_at(s, b, i, h, 0), *y = kv + math_at(s, b, k, h, 1);
        p[k] = math_sees(s, b, i, k) ? math_dot(x, y, s->D) * s->scale : -INFINITY;
        top  = p[k] > top ? p[k] : top;
    }
    if (top == -INFINITY) {
        for (int64_t k = 0; k < s->S; k++) p[k] = 0;
        return 0;
    }
    for (int64_t k = 0; k < s->S; k++) {
        p[k] = exp(p[k] - top);
        sum += p[k];
    }
    for (int64_t k = 0; k < s->S; k++) p[k] /= sum;
    return top + log(sum);
}

/* All of them: p[B,H,T,S]. */
static inline void math_attn_weights(double *p, const MathAttn *s, const double *q, const double *kv)
{
#pragma omp parallel for
    for (int64_t i = 0; i < s->B * s->H * s->T; i++) {
        math_weights(p + i * s->S, s, q, kv, i / (s->H * s->T), i / s->T % s->H, i % s->T);
    }
}

static inline void math_attn(double *o, double *lse, const MathAttn *s, const double *q, const double *kv)
{
#pragma omp parallel for
    for (int64_t i = 0; i < s->B * s->H * s->T; i++) {
        int64_t b = i / (s->H * s->T), h = i / s->T % s->H, t = i % s->T;
        double *p = dbl_new(s->S), *out = o + ((b * s->T + t) * s->H + h) * s->D;
        double  l = math_weights(p, s, q, kv, b, h, t);
        if (lse) lse[i] = l;
        for (int64_t d = 0; d < s->D; d++) out[d] = 0;
        for (int64_t k = 0; k < s->S; k++) {
            if (math_sees(s, b, t, k)) math_add(out, p[k], kv + math_at(s, b, k, h, 2), s->D);
        }
        free(p);
    }
}

/* dq and dkv of sum(dout * o), added to what is there, by the chain rule over the whole weight matrix. */
static inline void math_attn_bwd(double *dq, double *dkv, const MathAttn *s, const double *q,
                                 const double *kv, const double *dout)
{
    double *p = dbl_new(s->S), *dp = dbl_new(s->S);
    for (int64_t i = 0; i < s->B * s->H * s->T; i++) {
        int64_t       b = i / (s->H * s->T), h = i / s->T % s->H, t = i % s->T;
        const double *g    = dout + ((b * s->T + t) * s->H + h) * s->D;
        double        mean = 0;
        math_weights(p, s, q, kv, b, h, t);
        int64_t at_q = math_at(s, b, t, h, 0);
        for (int64_t k = 0; k < s->S; k++) {
            int64_t at_v = math_at(s, b, k, h, 2);
            if (!math_sees(s, b, t, k)) continue;
            dp[k] = math_dot(g, kv + at_v, s->D);
            mean += p[k] * dp[k];
            math_add(dkv + at_v, p[k], g, s->D);
        }
        for (int64_t k = 0; k < s->S; k++) {
            int64_t at_k = math_at(s, b, k, h, 1);
            if (!math_sees(s, b, t, k)) continue;
            double ds = p[k] * (dp[k] - mean) * s->scale;
            math_add(dq + at_q, ds, kv + at_k, s->D);
            math_add(dkv + at_k, ds, q + at_q, s->D);
        }
    }
    free(p);
    free(dp);
}

/* ---- Cross-entropy: one row ---------------------------------------------------------------------------- */

static inline double math_lse(const double *x, int64_t n)
{
    double top = x[0], sum = 0;
    for (int64_t i = 1; i < n; i++) top = x[i] > top ? x[i] : top;
    for (int64_t i = 0; i < n; i++) sum += exp(x[i] - top);
    return top + log(sum);
}

#endif
