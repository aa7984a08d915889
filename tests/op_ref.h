/* What each op must give, row by row of a table: the definitions in double that the CPU and CUDA are compared
 * with. */
#ifndef TESTS_OP_REF_H
#define TESTS_OP_REF_H

#include "op_ref_attn.h"
#include "op_ref_fp8.h"
#include "op_ref_image.h"
#include "op_ref_loss.h"
#include "op_ref_muon.h"
#include "op_ref_rl.h"
#include "op_ref_rows.h"

/* An error in the last bit of z, which the logistic is taken of, is one of |z| last bits of exp(z): z is x,
 * or for GELU a cubic in x that grows faster, or for its exact form x^2 / 2. */
static inline double ref_act_price(double x, Act act)
{
    if (act == ACT_GELU_ERF) return 1 + x * x / 2;
    return 1 + fabs(act == ACT_GELU ? 1.5957691216057308 * (x + 0.044715 * x * x * x) : x);
}

/* ---- Embeddings ---------------------------------------------------------------------------------------- */

static inline void ref_embed_fwd(const OpCase *c, OpRef *r)
{
    const EmbedFwd *a = &c->args.embed_fwd;
    int64_t         C = tensor_cols(a->y), T = tensor_cols(a->tok);
    for (int64_t i = 0; i < tensor_numel(a->y); i++) {
        double w = *case_at(a->wte, *case_int(a->tok, i / C) * C + i % C);
        double p = a->wpe ? *case_at(a->wpe, (ref_start(a->pos0, i / C / T) + i / C % T) * C + i % C) : 0;
        ref_put(r, 0, i, w + p, fabs(w) + fabs(p));
    }
}

static inline void ref_embed_dw(const OpCase *c, OpRef *r)
{
    const EmbedDw *a = &c->args.embed_dw;
    int64_t        C = tensor_cols(a->dy), N = tensor_rows(a->dy);
    r->terms[0] = (double)N;
    for (int64_t i = 0; i < tensor_numel(a->dwte); i++)
        ref_put(r, 0, i, *case_at(a->dwte, i), fabsf(*case_at(a->dwte, i)));
    for (int64_t i = 0; i < N * C; i++) {
        int64_t at = *case_int(a->tok, i / C) * C + i % C;
        if (*case_int(a->tok, i / C) < 0) continue;
        r->want[0][at] += *case_at(a->dy, i);
        r->mag[0][at] += fabsf(*case_at(a->dy, i));
    }
}

static inline void ref_pos_dw(const OpCase *c, OpRef *r)
{
    const PosDw *a = &c->args.pos_dw;
    int64_t      C = tensor_cols(a->dy), T = a->dy->dim[1];
    r->terms[0] = (double)a->dy->dim[0];
    for (int64_t i = 0; i < tensor_numel(a->dwpe); i++)
        ref_put(r, 0, i, *case_at(a->dwpe, i), fabsf(*case_at(a->dwpe, i)));
    for (int64_t i = 0; i < tensor_numel(a->dy); i++) {
        int64_t at = i / C % T * C + i % C;
        r->want[0][at] += *case_at(a->dy, i);
        r->mag[0][at] += fabsf(*case_at(a->dy, i));
    }
}

/* ---- Column sums --------------------------------------------------------------------------------------- */

/* Column sums of dx (or dy) into argument `out`. */
static inline void ref_column_sums(const OpCase *c, OpRef *r, int out, const double *v, int64_t N, int64_t C)
{
    for (int64_t k = 0; k < C; k++) {
        double b = *case_at(c->args.t[out], k), size = fabs(b);
        for (int64_t i = 0; i < N; i++) {
            b += v[i * C + k];
            size += fabs(v[i * C + k]);
        }
        ref_put(r, out, k, b, size);
    }
    r->terms[out] = (double)N;
}

/* The same over the op's own dx, argument 0. The errors of the terms are independent and add in quadrature;
 * each is its own tolerance, (4 + 4 sqrt(terms of dx)) U mag, where the sum's tolerance has sqrt(N) in place
 * of the terms of dx. */
static inline void ref_rounded_sums(const OpCase *c, OpRef *r, int out, int64_t N, int64_t C)
{
    double share = fmax(1, (1 + sqrt(r->terms[0])) / (1 + sqrt((double)N)));
    ref_column_sums(c, r, out, r->want[0], N, C);
    for (int64_t k = 0; k < C; k++) {
        double s = 0;
        for (int64_t i = 0; i < N; i++) s += r->mag[0][i * C + k] * r->mag[0][i * C + k];
        r->mag[out][k] += share * sqrt(s);
    }
}

/* ---- Norms --------------------------------------------------------------------------------------------- */

typedef struct {
    int           y, mean, rstd; /* argument numbers, mean -1 for RMSNorm */
    const Tensor *gamma, *beta;
    double        eps;
} NormSlots;

static inline void ref_norm_rows(OpRef *r, const NormSlots *s, const double *x, int64_t N, int64_t C)
{
    for (int64_t i = 0; i < N; i++) {
        double mean, rstd, top = 0;
        for (int64_t k = 0; k < C; k++) top = fmax(top, fabs(x[i * C + k]));
        math_stats(x + i * C, C, s->mean >= 0, s->eps, &mean, &rstd);
        /* A row of equal numbers has no variance: rounding of x then shows in full, scaled by rstd. */
        if (s->mean >= 0) ref_put(r, s->mean, i, mean, top);
        ref_put(r, s->rstd, i, rstd, rstd * (1 + rstd * rstd * top * top * 0x1p-20));
        for (int64_t k = 0; k < C; k++) {
            double g = *case_at(s->gamma, k), b = s->beta ? *case_at(s->beta, k) : 0,
                   xhat = (x[i * C + k] - mean) * rstd;
            ref_put(r, s->y, i * C + k, xhat * g + b,
                    (fabs(xhat) + (s->mean >= 0 ? top * rstd : 0)) * fabs(g) + fabs(b));
        }
    }
    r->terms[s->y] = r->terms[s->rstd] = (double)C;
    if (s->mean >= 0) r->terms[s->mean] = (double)C;
}

static inline void ref_norm_fwd(const OpCase *c, OpRef *r)
{
    const NormFwd *a = &c->args.norm_fwd;
    double        *x = case_doubles(a->x);
    NormSlots      s = { 0, a->mean ? 1 : -1, 2, a->gamma, a->beta, (double)a->eps };
    ref_norm_rows(r, &s, x, tensor_rows(a->x), tensor_cols(a->x));
    free(x);
}

static inline void ref_add_norm_fwd(const OpCase *c, OpRef *r)
{
    const AddNormFwd *a = &c->args.add_norm_fwd;
    double           *x = case_doubles(a->a);
    for (int64_t i = 0; i < tensor_numel(a->a); i++) {
        float sum = *case_at(a->a, i) + *case_at(a->b, i); /* rounded to f32, as the op says */
        x[i]      = sum;
        ref_put(r, 1, i, sum, 0);
    }
    NormSlots s = { 0, a->mean ? 2 : -1, 3, a->gamma, a->beta, (double)a->eps };
    ref_norm_rows(r, &s, x, tensor_rows(a->a), tensor_cols(a->a));
    free(x);
}

/* dx into argument `out` (-1: none), dgamma and dbeta into the next ones given. */
typedef struct {
    const Tensor *dy, *x, *gamma, *mean, *rstd, *dres;
    int           dx, dgamma, dbeta;
} NormGrad;

static inline void ref_norm_grad(const OpCase *c, OpRef *r, const NormGrad *n)
{
    int64_t N = tensor_rows(n->x), C = tensor_cols(n->x);
    for (int64_t k = 0; k < C && n->dgamma >= 0; k++) {
        double g = *case_at(c->args.t[n->dgamma], k);
        ref_put(r, n->dgamma, k, g, fabs(g));
        if (n->dbeta >= 0)
            ref_put(r, n->dbeta, k, *case_at(c->args.t[n->dbeta], k),
                    fabsf(*case_at(c->args.t[n->dbeta], k)));
    }
    for (int64_t i = 0; i < N; i++) {
        double rstd = *case_at(n->rstd, i), mean = n->mean ? *case_at(n->mean, i) : 0;
        double sg = 0, sgx = 0, ag = 0, agx = 0;
        for (int64_t k = 0; k < C; k++) {
            double dy = *case_at(n->dy, i * C + k), xhat = (*case_at(n->x, i * C + k) - mean) * rstd;
            double g = n->gamma ? dy * *case_at(n->gamma, k) : 0;
            sg += g / (double)C;
            sgx += g * xhat / (double)C;
            ag += fabs(g) / (double)C;
            agx += fabs(g * xhat) / (double)C;
            if (n->dgamma >= 0) {
                r->want[n->dgamma][k] += dy * xhat;
                r->mag[n->dgamma][k] += fabs(dy) * (fabs(xhat) + fabs(mean * rstd));
            }
            if (n->dbeta >= 0) {
                r->want[n->dbeta][k] += dy;
                r->mag[n->dbeta][k] += fabs(dy);
            }
        }
        for (int64_t k = 0; k < C && n->dx >= 0; k++) {
            double x = *case_at(n->x, i * C + k), xhat = (x - mean) * rstd,
                   res  = n->dres ? *case_at(n->dres, i * C + k) : 0;
            double g    = *case_at(n->dy, i * C + k) * *case_at(n->gamma, k);
            double v    = rstd * (g - (n->mean ? sg : 0) - xhat * sgx);
            double size = rstd * (fabs(g) + ag + (fabs(xhat) + fabs(mean * rstd)) * agx);
            ref_put(r, n->dx, i * C + k, res + v, fabs(res) + size);
        }
    }
    if (n->dx >= 0) r->terms[n->dx] = (double)C;
    if (n->dgamma >= 0) r->terms[n->dgamma] = (double)N;
    if (n->dbeta >= 0) r->terms[n->dbeta] = (double)N;
}

static inline void ref_norm_dx(const OpCase *c, OpRef *r)
{
    const NormDx *a = &c->args.norm_dx;
    ref_norm_grad(c, r, &(NormGrad){ a->dy, a->x, a->gamma, a->mean, a->rstd, NULL, 0, -1, -1 });
}

static inline void ref_norm_dw(const OpCase *c, OpRef *r)
{
    const NormDw *a = &c->args.norm_dw;
    ref_norm_grad(c, r, &(NormGrad){ a->dy, a->x, NULL, a->mean, a->rstd, NULL, -1, 0, a->dbeta ? 1 : -1 });
}

static inline void ref_norm_bwd(const OpCase *c, OpRef *r)
{
    const NormBwd *a = &c->args.norm_bwd;
    ref_norm_grad(c, r,
                  &(NormGrad){ a->dy, a->x, a->gamma, a->mean, a->rstd, a->dres, 0, a->dgamma ? 1 : -1,
                               a->dbeta ? 2 : -1 });
    if (a->dbias) ref_rounded_sums(c, r, 3, tensor_rows(a->x), tensor_cols(a->x));
}

/* ---- Linear -------------------------------------------------------------------------------------------- */

/* want[out][m,n] = add + a b, with mag from the absolute values. */
static inline void ref_product(OpRef *r, int out, Strided a, Strided b, int64_t m, int64_t n, int64_t k)
{
    for (int64_t i = 0; i < m * n; i++) {
        double s = 0, size = 0;
        for (int64_t l = 0; l < k; l++) {
            double v = a.p[i / n * a.row + l * a.col] * b.p[l * b.row + i % n * b.col];
            s += v;
            size += fabs(v);
        }
        ref_put(r, out, i, s, size);
    }
    r->terms[out] = (double)k;
}

static inline void ref_linear(OpRef *r, int out, const Tensor *x, const Tensor *w, const Tensor *bias)
{
    double *xd = case_doubles(x), *wd = case_doubles(w);
    int64_t N = tensor_rows(x), K = tensor_cols(x), M = tensor_rows(w);
    ref_product(r, out, (Strided){ xd, K, 1 }, (Strided){ wd, 1, K }, N, M, K);
    for (int64_t i = 0; i < N * M && bias; i++) {
        r->want[out][i] += *case_at(bias, i % M);
        r->mag[out][i] += fabsf(*case_at(bias, i % M));
    }
    free(xd);
    free(wd);
}

static inline void ref_linear_fwd(const OpCase *c, OpRef *r)
{
    const LinearFwd *a = &c->args.linear_fwd;
    ref_linear(r, 0, a->x, a->w, a->bias);
}

/* An error of `size` before the activation shows multiplied by its slope, at most 2 for GELU and SILU, 2|x|
 * for RELU2; in the slope by at most 2, beside the slope's own (ref_act_grad). */
static inline void ref_linear_act_fwd(const OpCase *c, OpRef *r)
{
    const LinearActFwd *a = &c->args.linear_act_fwd;
    ref_linear(r, 1, a->x, a->w, a->bias);
    for (int64_t i = 0; i < tensor_numel(a->y); i++) {
        double x = r->want[1][i];
        ref_put(r, 0, i, math_act(x, a->act), r->mag[1][i] * (2 + (a->act == ACT_RELU2 ? 2 * fabs(x) : 0)));
        if (a->slope) ref_put(r, 1, i, math_slope(x, a->act), 2 * r->mag[1][i] + 1 + 2 * fabs(x));
    }
    r->terms[0] = r->terms[1];
}

/* dy w, into the first numbers of argument 0 */
static inline void ref_linear_grad(OpRef *r, const Tensor *dy_tensor, const Tensor *w_tensor)
{
    double *dy = case_doubles(dy_tensor), *w = case_doubles(w_tensor);
    int64_t N = tensor_rows(dy_tensor), K = tensor_cols(w_tensor), M = tensor_cols(dy_tensor);
    ref_product(r, 0, (Strided){ dy, M, 1 }, (Strided){ w, K, 1 }, N, K, M);
    free(dy);
    free(w);
}

static inline void ref_linear_dx(const OpCase *c, OpRef *r)
{
    ref_linear_grad(r, c->args.linear_dx.dy, c->args.linear_dx.w);
}

/* The product's error goes through the slope, at most 1 + 2|pre|; the slope's own is that of ref_act_grad. */
static inline void ref_linear_act_bwd(const OpCase *c, OpRef *r)
{
    const LinearActBwd *a = &c->args.linear_act_bwd;
    ref_linear_grad(r, a->dy, a->w);
    for (int64_t i = 0; i < tensor_numel(a->pre); i++) {
        double v = *case_at(a->pre, i);
        ref_put(r, 0, i, r->want[0][i] * math_slope(v, a->act), r->mag[0][i] * (1 + 2 * fabs(v)));
    }
    r->terms[0] += 4;
    if (a->db) ref_rounded_sums(c, r, 1, tensor_rows(a->pre), tensor_cols(a->pre));
}

/* [act'(gate) * up | act(gate)] in the place of what they come from: errors as in ref_linear_act_fwd, each
 * times the other factor. */
static inline void ref_glu_slope(OpRef *r, const LinearGluFwd *a, int64_t at, int64_t F)
{
    double gate = r->want[1][at], up = r->want[1][at + F], m_gate = r->mag[1][at], m_up = r->mag[1][at + F];
    double slope = math_slope(gate, a->act), value = math_act(gate, a->act);
    ref_put(r, 1, at, slope * up, fabs(up) * (2 * m_gate + 1 + 2 * fabs(gate)) + fabs(slope) * m_up);
    ref_put(r, 1, at + F, value,
            m_gate * (2 + (a->act == ACT_RELU2 ? 2 * fabs(gate) : 0)) +
                fabs(value) * ref_act_price(gate, a->act));
}

/* Errors before the gate show as in ref_linear_act_fwd, each times the other factor. */
static inline void ref_linear_glu_fwd(const OpCase *c, OpRef *r)
{
    const LinearGluFwd *a = &c->args.linear_glu_fwd;
    int64_t             F = tensor_cols(a->y);
    ref_linear(r, 1, a->x, a->w, NULL);
    for (int64_t i = 0; i < tensor_numel(a->y); i++) {
        int64_t at   = i / F * 2 * F + i % F;
        double  gate = r->want[1][at], up = r->want[1][at + F], value = math_act(gate, a->act);
        double  slope = 2 + (a->act == ACT_RELU2 ? 2 * fabs(gate) : 0);
        ref_put(r, 0, i, value * up,
                r->mag[1][at] * slope * fabs(up) +
                    fabs(value) * (r->mag[1][at + F] + fabs(up) * ref_act_price(gate, a->act)));
        if (a->slope) ref_glu_slope(r, a, at, F);
    }
    r->terms[0] = r->terms[1];
}

/* Gradients of a gate at `at` of output 0 for d, whose error's size is mag. */
static inline void ref_glu_grad(OpRef *r, int64_t at, int64_t F, const Tensor *x, Act act, double d,
                                double mag)
{
    double gate = *case_at(x, at), up = *case_at(x, at + F), value = math_act(gate, act);
    if (act == ACT_SLOPE) {
        ref_put(r, 0, at, d * gate, mag * fabs(gate));
        ref_put(r, 0, at + F, d * up, mag * fabs(up));
        return;
    }
    ref_put(r, 0, at, d * up * math_slope(gate, act), mag * fabs(up) * (1 + 2 * fabs(gate)));
    ref_put(r, 0, at + F, d * value, mag * fabs(value) * ref_act_price(gate, act));
}

static inline void ref_linear_glu_bwd(const OpCase *c, OpRef *r)
{
    const LinearGluBwd *a = &c->args.linear_glu_bwd;
    int64_t             F = tensor_cols(a->w), n = tensor_rows(a->dy) * F;
    ref_linear_grad(r, a->dy, a->w);
    double *d = dbl_new(n), *mag = dbl_new(n);
    memcpy(d, r->want[0], sizeof *d * (size_t)n);
    memcpy(mag, r->mag[0], sizeof *mag * (size_t)n);
    for (int64_t i = 0; i < n; i++) ref_glu_grad(r, i / F * 2 * F + i % F, F, a->pre, a->act, d[i], mag[i]);
    r->terms[0] += 4;
    free(d);
    free(mag);
}

static inline void ref_linear_dw(const OpCase *c, OpRef *r)
{
    const LinearDw *a  = &c->args.linear_dw;
    double         *dy = case_doubles(a->dy), *x = case_doubles(a->x);
    int64_t         N = tensor_rows(a->x), K = tensor_cols(a->x), M = tensor_cols(a->dy);
    ref_product(r, 0, (Strided){ dy, 1, M }, (Strided){ x, K, 1 }, M, K, N);
    for (int64_t i = 0; i < M * K; i++) {
        r->want[0][i] += *case_at(a->dw, i);
        r->mag[0][i] += fabsf(*case_at(a->dw, i));
    }
    if (a->db) ref_column_sums(c, r, 1, dy, N, M);
    free(dy);
    free(x);
}

static inline void ref_bias_dw(const OpCase *c, OpRef *r)
{
    double *dy = case_doubles(c->args.bias_dw.dy);
    ref_column_sums(c, r, 0, dy, tensor_rows(c->args.bias_dw.dy), tensor_cols(c->args.bias_dw.dy));
    free(dy);
}

static inline void ref_scale_fwd(const OpCase *c, OpRef *r)
{
    int64_t C = tensor_cols(c->args.scale.x);
    for (int64_t i = 0; i < tensor_numel(c->args.scale.y); i++) {
        double y = (double)*case_at(c->args.scale.x, i) * *case_at(c->args.scale.gamma, i % C);
        ref_put(r, 0, i, y, fabs(y));
    }
}

static inline void ref_scale_dw(const OpCase *c, OpRef *r)
{
    double *v = case_doubles(c->args.scale_dw.dy);
    for (int64_t i = 0; i < tensor_numel(c->args.scale_dw.x); i++) v[i] *= *case_at(c->args.scale_dw.x, i);
    ref_column_sums(c, r, 0, v, tensor_rows(c->args.scale_dw.dy), tensor_cols(c->args.scale_dw.dy));
    free(v);
}

/* ---- Activations --------------------------------------------------------------------------------------- */

static inline void ref_act_fwd(const OpCase *c, OpRef *r)
{
    const ActFwd *a = &c->args.act_fwd;
    for (int64_t i = 0; i < tensor_numel(a->x); i++) {
        double x = *case_at(a->x, i);
        ref_put(r, 0, i, math_act(x, a->act), fabs(math_act(x, a->act)) * ref_act_price(x, a->act));
    }
    r->terms[0] = 4;
}

static inline void ref_act_grad(OpRef *r, int out, const Tensor *dy, const Tensor *x, Act act)
{
    for (int64_t i = 0; i < tensor_numel(x); i++) {
        double v = *case_at(x, i), d = *case_at(dy, i);
        ref_put(r, out, i, d * math_slope(v, act), fabs(d) * (1 + 2 * fabs(v)));
    }
    r->terms[out] = 4;
}

static inline void ref_act_dx(const OpCase *c, OpRef *r)
{
    ref_act_grad(r, 0, c->args.act_dx.dy, c->args.act_dx.x, c->args.act_dx.act);
}

static inline void ref_act_bias_bwd(const OpCase *c, OpRef *r)
{
    const ActBiasBwd *a = &c->args.act_bias_bwd;
    ref_act_grad(r, 0, a->dy, a->x, a->act);
    ref_rounded_sums(c, r, 1, tensor_rows(a->x), tensor_cols(a->x));
}

static inline void ref_glu_fwd(const OpCase *c, OpRef *r)
{
    const GluFwd *a = &c->args.glu_fwd;
    int64_t       F = tensor_cols(a->y);
    for (int64_t i = 0; i < tensor_numel(a->y); i++) {
        double gate = *case_at(a->x, i / F * 2 * F + i % F), up = *case_at(a->x, i / F * 2 * F + F + i % F);
        double y = math_act(gate, a->act) * up;
        ref_put(r, 0, i, y, fabs(y) * ref_act_price(gate, a->act));
    }
    r->terms[0] = 4;
}

static inline void ref_glu_dx(const OpCase *c, OpRef *r)
{
    const GluDx *a = &c->args.glu_dx;
    int64_t      F = tensor_cols(a->dy);
    for (int64_t i = 0; i < tensor_numel(a->dy); i++) {
        double d = *case_at(a->dy, i);
        ref_glu_grad(r, i / F * 2 * F + i % F, F, a->x, a->act, d, fabs(d));
    }
    r->terms[0] = 4;
}

static inline void ref_rope(const OpCase *c, OpRef *r)
{
    const Rope *a = &c->args.rope;
    int64_t     W = tensor_cols(a->x), D = a->head_dim, half = D / 2, T = a->x->dim[1];
    for (int64_t i = 0; i < tensor_numel(a->x); i++) {
        int64_t col = i % W, t = ref_start(a->pos0, i / W / T) + i / W % T, d = col % D;
        double  x = *case_at(a->x, i);
        if (col >= a->n_head * D) {
            ref_put(r, 0, i, x, 0);
            continue;
        }
        double cs = *case_at(a->table, t * D + d % half), sn = *case_at(a->table, t * D + half + d % half);
        double other = *case_at(a->x, d < half ? i + half : i - half),
               sign  = (d < half ? -1 : 1) * (a->inverse ? -1 : 1);
        ref_put(r, 0, i, x * cs + sign * other * sn, fabs(x) + fabs(other));
    }
}

static inline void ref_qknorm_fwd(const OpCase *c, OpRef *r)
{
    const QkNormFwd *a = &c->args.qknorm_fwd;
    double          *x = case_doubles(a->x), mean, rstd;
    int64_t          W = tensor_cols(a->x), D = a->head_dim, n_head = a->heads + a->kv_heads;
    for (int64_t i = 0; i < tensor_numel(a->x); i++) {
        int64_t h = i % W / D, d = i % D;
        if (h >= n_head) {
            ref_put(r, 0, i, x[i], 0);
            continue;
        }
        math_stats(x + i - d, D, 0, (double)a->eps, &mean, &rstd);
        if (d == 0) ref_put(r, 1, i / W * n_head + h, rstd, rstd);
        double y = x[i] * rstd * *case_at(h < a->heads ? a->gq : a->gk, d);
        ref_put(r, 0, i, y, fabs(y));
    }
    r->terms[0] = r->terms[1] = (double)D;
    free(x);
}

static inline void ref_qknorm_dx(const OpCase *c, OpRef *r)
{
    const QkNormDx *a = &c->args.qknorm_dx;
    int64_t         W = tensor_cols(a->x), D = a->head_dim, n_head = a->heads + a->kv_heads;
    for (int64_t i = 0; i < tensor_numel(a->x); i++) {
        int64_t h = i % W / D, d = i % D;
        if (h >= n_head) {
            ref_put(r, 0, i, *case_at(a->dy, i), 0);
            continue;
        }
        const Tensor *gamma = h < a->heads ? a->gq : a->gk;
        double        rstd = *case_at(a->rstd, i / W * n_head + h), s = 0, size = 0;
        for (int64_t k = 0; k < D; k++) {
            double v = (double)*case_at(a->dy, i - d + k) * *case_at(gamma, k) * *case_at(a->x, i - d + k) *
                       rstd / (double)D;
            s += v;
            size += fabs(v);
        }
        double g = (double)*case_at(a->dy, i) * *case_at(gamma, d), xhat = *case_at(a->x, i) * rstd;
        ref_put(r, 0, i, rstd * (g - xhat * s), rstd * (fabs(g) + fabs(xhat) * size));
    }
    r->terms[0] = (double)D;
}

static inline void ref_qknorm_dw(const OpCase *c, OpRef *r)
{
    const QkNormDw *a = &c->args.qknorm_dw;
    int64_t         W = tensor_cols(a->x), D = a->head_dim, n_head = a->heads + a->kv_heads;
    for (int64_t d = 0; d < 2 * D; d++) {
        double g = *case_at(d < D ? a->dgq : a->dgk, d % D);
        ref_put(r, d < D ? 0 : 1, d % D, g, fabs(g));
    }
    for (int64_t i = 0; i < tensor_numel(a->x); i++) {
        int64_t h = i % W / D;
        if (h >= n_head) continue;
        int    out = h < a->heads ? 0 : 1;
        double v   = (double)*case_at(a->dy, i) * *case_at(a->x, i) * *case_at(a->rstd, i / W * n_head + h);
        r->want[out][i % D] += v;
        r->mag[out][i % D] += fabs(v);
    }
    r->terms[0] = r->terms[1] = (double)(tensor_rows(a->x) * n_head);
}

/* ---- Losses and the rest ------------------------------------------------------------------------------- */

static inline void ref_dropout(const OpCase *c, OpRef *r)
{
    const Dropout   *a = &c->args.dropout;
    const StepState *s = a->state->data;
    int64_t          C = tensor_cols(a->x), per = a->rows_per_sample;
    for (int64_t i = 0; i < tensor_numel(a->x); i++) {
        int64_t  sample = *(int64_t *)a->sample0->data + i / (C * per), e = a->per_sample ? 0 : i % (C * per);
        uint32_t draw = rng_draw(s->in.seed, (uint32_t)a->site, s->in.step, sample, e);
        double   y    = draw < rng_threshold(a->p) ? 0 : *case_at(a->x, i) / (1 - (double)a->p);
        ref_put(r, 0, i, y, 4 * fabs(y)); /* 1/(1-p) is rounded too */
    }
}

static inline void ref_loss_add(const OpCase *c, OpRef *r)
{
    const LossAdd *a = &c->args.loss_add;
    int64_t        n = tensor_numel(a->loss), rows = a->n_slot > 1 ? a->n_slot : 1;
    for (int64_t k = 0; k < rows; k++) {
        double sum = 0;
        for (int64_t i = 0; i < n / rows; i++) sum += *case_at(a->loss, k * (n / rows) + i);
        r->state.out.sum[a->slot + k] += sum;
    }
}

static inline void ref_call(const OpCase *c, OpRef *r)
{
    const CallFn *a = &c->args.call;
    for (int64_t i = 0; i < tensor_numel(a->t[0]); i++) {
        double x = *case_at(a->t[0], i), y = a->t[1] ? *case_at(a->t[1], i) : 1;
        ref_put(r, 0, i, x + y, fabs(x) + fabs(y));
        for (int k = 1; k < CALL_TENSORS && a->t[k]; k++) ref_put(r, k, i, *case_at(a->t[k], i), 0);
    }
}

static inline void ref_halt(const OpCase *c, OpRef *r)
{
    const Halt *a = &c->args.halt;
    if (r->state.out.sum[a->slot] * (double)r->state.in.inv[a->slot] > (double)a->limit)
        r->state.out.stop = 1;
}

static inline void ref_sumsq(const OpCase *c, OpRef *r)
{
    double sum = 0;
    for (int64_t i = 0; i < tensor_numel(c->args.sumsq.x); i++) sum += pow(*case_at(c->args.sumsq.x, i), 2);
    r->state.out.grad_sumsq += sum;
}

static inline void ref_clip(const OpCase *c, OpRef *r)
{
    const Clip   *a     = &c->args.clip;
    const StepIn *in    = &r->state.in;
    StepOut      *out   = &r->state.out;
    double        scale = (double)in->loss_scale * pow(2, out->scale_exp);
    double        norm = sqrt(out->grad_sumsq) / scale, loss = 0;
    for (int k = 0; k < LOSS_SLOTS; k++) {
        loss += out->sum[k] * (double)in->inv[k];
        out->report[k] += out->sum[k] * (double)in->inv[k];
        out->sum[k] = 0;
    }
    out->n_report++;
    int finite = isfinite(norm) && isfinite(loss);
    int spike  = a->spike_factor > 0 && out->n_update >= 20 && loss > (double)a->spike_factor * out->loss_ema;
    out->grad_norm  = (float)norm;
    out->loss       = (float)loss;
    out->grad_sumsq = 0;
    out->clip       = 0;
    out->skip       = out->stop ? 3 : !finite ? 1 : spike ? 2 : 0;
    if (out->stop) return;
    if (a->scale_every > 0 && out->scale_exp > 1 && isfinite(loss) && !isfinite(norm)) {
        out->skip = 4;
        out->n_overflow++;
        out->scale_exp--;
        out->n_scaled = 0;
        return;
    }
    out->n_skipped += out->skip != 0;
    out->n_skip_row = out->skip ? out->n_skip_row + 1 : 0;
    if (out->skip) return;
    out->n_update++;
    double most   = a->max_norm > 0 ? (double)a->max_norm / (norm + 1e-6) : 1;
    out->clip     = (float)((most < 1 ? most : 1) / scale);
    out->bias1    = (float)(1 / (1 - pow((double)a->beta1, out->n_update)));
    out->bias2    = (float)(1 / (1 - pow((double)a->beta2, out->n_update)));
    out->loss_ema = out->n_update == 1 ? loss : 0.95 * out->loss_ema + 0.05 * loss;
    if (a->scale_every == 0 || out->scale_exp == 0) return;
    int grows = ++out->n_scaled >= a->scale_every && out->scale_exp < 24;
    out->scale_exp += grows;
    if (grows) out->n_scaled = 0;
}

static inline void ref_fill(const OpCase *c, OpRef *r)
{
    const Fill *a = &c->args.fill;
    float       f = a->value;
    int32_t     i = (int32_t)f;
    int64_t     l = (int64_t)f;
    _Float16    h = (_Float16)f;
    uint8_t     u = (uint8_t)i;
    DType       t = a->y->dtype;
    /* 0 and 3 are exact in bf16: the upper half of the f32 */
    const void *v = t == DT_F32   ? (void *)&f
                    : t == DT_I32 ? (void *)&i
                    : t == DT_I64 ? (void *)&l
                    : t == DT_F16 ? (void *)&h
                    : t == DT_U8  ? (void *)&u
                                  : (void *)((char *)&f + 2);
    for (int64_t k = 0; k < tensor_numel(a->y); k++)
        memcpy(r->bytes[0] + (size_t)k * dtype_bytes(t), v, dtype_bytes(t));
}

static inline void ref_copy(const OpCase *c, OpRef *r)
{
    for (int64_t i = 0; i < tensor_numel(c->args.copy.x); i++)
        ref_put(r, 0, i, *case_at(c->args.copy.x, i), 0);
}

/* The multiple of 2^-bits of x's binade (or of the smallest one) that is nearest, ties to even. */
static inline double ref_round(double x, int bits, int min_exponent)
{
    int e;
    frexp(x, &e);
    double step = ldexp(1, (e - 1 > min_exponent ? e - 1 : min_exponent) - bits);
    return nearbyint(x / step) * step;
}

static inline void ref_cast(const OpCase *c, OpRef *r)
{
    const Cast *a  = &c->args.cast;
    DType       to = a->y->dtype, from = a->x->dtype;
    for (int64_t i = 0; i < tensor_numel(a->x); i++) {
        uint32_t bits = 0;
        _Float16 h    = 0;
        float    x    = 0;
        if (from == DT_F32) x = *case_at(a->x, i);
        if (from == DT_BF16) {
            memcpy((char *)&bits + 2, case_at(a->x, i), 2);
            memcpy(&x, &bits, 4);
        }
        if (from == DT_F16) {
            memcpy(&h, case_at(a->x, i), 2);
            x = (float)h;
        }
        if (to == DT_F32) ref_put(r, 0, i, x, 0);
        if (to == DT_BF16) {
            x = (float)ref_round(x, 7, -126);
            memcpy(r->bytes[0] + 2 * i, (char *)&x + 2, 2);
        }
        if (to == DT_F16) {
            h = (_Float16)ref_round(x, 10, -14);
            memcpy(r->bytes[0] + 2 * i, &h, 2);
        }
    }
}

/* A number of AdamW's state, f32 or bf16. */
static inline double ref_state(const Tensor *t, int64_t i)
{
    uint16_t h;
    memcpy(&h, case_at(t, i), 2);
    return t->dtype == DT_BF16 ? (double)f32_from_bf16(h) : (double)*case_at(t, i);
}

static inline void ref_adamw(const OpCase *c, OpRef *r)
{
    const AdamW     *a   = &c->args.adamw;
    const StepState *s   = a->state->data;
    const Segment   *seg = a->seg->data;
    int64_t          n = tensor_numel(a->master), n_seg = (int64_t)(tensor_bytes(a->seg) / sizeof(Segment));
    for (int k = 0; k < 4; k++) {
        for (int64_t i = 0; i < n; i++) ref_put(r, k, i, ref_state(c->args.t[k], i), 0);
    }
    for (int64_t k = 0; k < n_seg; k++) {
        for (int64_t i = seg[k].begin; i < seg[k].end; i++) {
            double w = ref_state(a->master, i), m = ref_state(a->m, i), v = ref_state(a->v, i),
                   b1 = (double)a->beta1, b2 = (double)a->beta2;
            double g = *case_at(a->grad, i) * (double)s->out.clip;
            ref_put(r, 3, i, 0, 0);
            if (s->out.skip) continue;
            double m1 = b1 * m + (1 - b1) * g, v1 = b2 * v + (1 - b2) * g * g;
            double step = m1 * (double)s->out.bias1 / (sqrt(v1 * (double)s->out.bias2) + (double)a->eps);
            double lr   = (double)s->in.lr * (double)seg[k].lr_mul;
            /* 1 - beta is exact in f32 for these betas to 2^-24 of 1, that is 20 U of itself */
            ref_put(r, 0, i, w - lr * (step + (double)seg[k].decay * w), fabs(w) + 4 * lr * (fabs(step) + 1));
            ref_put(r, 1, i, m1, fabs(m) + 8 * fabs(g));
            ref_put(r, 2, i, v1, v + 8 * g * g);
        }
    }
}

/* ---- The table ----------------------------------------------------------------------------------------- */

typedef void (*OpRefFn)(const OpCase *c, OpRef *r);

static const OpRefFn op_ref_table[OP_COUNT] = {
    [OP_EMBED_FWD]      = ref_embed_fwd,
    [OP_EMBED_DW]       = ref_embed_dw,
    [OP_POS_DW]         = ref_pos_dw,
    [OP_PATCHES]        = ref_patches,
    [OP_NORM_FWD]       = ref_norm_fwd,
    [OP_NORM_DX]        = ref_norm_dx,
    [OP_NORM_DW]        = ref_norm_dw,
    [OP_ADD_NORM_FWD]   = ref_add_norm_fwd,
    [OP_NORM_BWD]       = ref_norm_bwd,
    [OP_LINEAR_FWD]     = ref_linear_fwd,
    [OP_LINEAR_DX]      = ref_linear_dx,
    [OP_LINEAR_DW]      = ref_linear_dw,
    [OP_BIAS_DW]        = ref_bias_dw,
    [OP_LINEAR_ACT_FWD] = ref_linear_act_fwd,
    [OP_LINEAR_ACT_BWD] = ref_linear_act_bwd,
    [OP_LINEAR_GLU_FWD] = ref_linear_glu_fwd,
    [OP_LINEAR_GLU_BWD] = ref_linear_glu_bwd,
    [OP_ACT_FWD]        = ref_act_fwd,
    [OP_ACT_DX]         = ref_act_dx,
    [OP_ACT_BIAS_BWD]   = ref_act_bias_bwd,
    [OP_GLU_FWD]        = ref_glu_fwd,
    [OP_GLU_DX]         = ref_glu_dx,
    [OP_ADD]            = ref_add,
    [OP_MUL]            = ref_mul,
    [OP_SCALE]          = ref_scale_fwd,
    [OP_SCALE_DW]       = ref_scale_dw,
    [OP_ROWS_FWD]       = ref_rows_fwd,
    [OP_ROWS_DX]        = ref_rows_dx,
    [OP_MEAN_ROWS_FWD]  = ref_mean_rows_fwd,
    [OP_MEAN_ROWS_DX]   = ref_mean_rows_dx,
    [OP_ADD_POS]        = ref_add_pos,
    [OP_ROPE]           = ref_rope,
    [OP_QKNORM_FWD]     = ref_qknorm_fwd,
    [OP_QKNORM_DX]      = ref_qknorm_dx,
    [OP_QKNORM_DW]      = ref_qknorm_dw,
    [OP_ATTN_FWD]       = ref_attn_fwd,
    [OP_ATTN_BWD]       = ref_attn_bwd,
    [OP_ATTN_DECODE]    = ref_attn_decode,
    [OP_CROSS_ATTN_FWD] = ref_cross_attn_fwd,
    [OP_CROSS_ATTN_BWD] = ref_cross_attn_bwd,
    [OP_DROPOUT]        = ref_dropout,
    [OP_XENT_FWD]       = ref_xent_fwd,
    [OP_XENT_DX]        = ref_xent_dx,
    [OP_XENT]           = ref_xent,
    [OP_MSE_FWD]        = ref_mse_fwd,
    [OP_MSE_DX]         = ref_mse_dx,
    [OP_KL_FWD]         = ref_kl_fwd,
    [OP_KL_DX]          = ref_kl_dx,
    [OP_KL_TEACHER]     = ref_kl_teacher,
    [OP_SAMPLE_CAT]     = ref_sample_cat,
    [OP_SAMPLE_GAUSS]   = ref_sample_gauss,
    [OP_PPO_CAT_FWD]    = ref_ppo_fwd,
    [OP_PPO_CAT_DX]     = ref_ppo_cat_dx,
    [OP_PPO_GAUSS_FWD]  = ref_ppo_fwd,
    [OP_PPO_GAUSS_DX]   = ref_ppo_gauss_dx,
    [OP_GAE]            = ref_gae,
    [OP_STATS]          = ref_stats_op,
    [OP_OBS_STATS]      = ref_obs_stats,
    [OP_OBS_NORM]       = ref_obs_norm,
    [OP_PUT]            = ref_put_op,
    [OP_TICK]           = ref_tick,
    [OP_PERM]           = ref_perm,
    [OP_PACK_ROWS]      = ref_pack,
    [OP_CALL]           = ref_call,
    [OP_LOSS_ADD]       = ref_loss_add,
    [OP_HALT]           = ref_halt,
    [OP_FILL]           = ref_fill,
    [OP_COPY]           = ref_copy,
    [OP_CAST]           = ref_cast,
    [OP_QUANT]          = ref_quant,
    [OP_FP8_SCALE]      = ref_fp8_scale_op,
    [OP_FP8_LINEAR]     = ref_fp8_linear,
    [OP_FP8_LINEAR_DW]  = ref_fp8_linear_dw,
    [OP_SUMSQ]          = ref_sumsq,
    [OP_CLIP]           = ref_clip,
    [OP_ADAMW]          = ref_adamw,
    [OP_EMA]            = ref_ema,
    [OP_MOMENTUM]       = ref_momentum,
    [OP_ORTHO]          = ref_ortho,
    [OP_MUON]           = ref_muon,
    [OP_ALL_REDUCE]     = ref_copy,
    [OP_REDUCE_SCATTER] = ref_copy,
    [OP_ALL_GATHER]     = ref_copy,
};

/* Must be called before the op runs: it reads what the op accumulates into. */
static inline void op_ref_create(OpRef *r, const OpCase *c)
{
    memset(r, 0, sizeof *r);
    const OpRow *row = &op_table[c->kind];
    for (int i = 0; i < row->n_tensor; i++) {
        const Tensor *t = c->args.t[i];
        if (!t || !(row->arg[i].access & ARG_WRITE)) continue;
        if (t->dtype == DT_U8 && strcmp(row->arg[i].name, "state") == 0) {
            memcpy(&r->state, t->data, sizeof r->state);
            r->has_state = 1;
        } else if (t->dtype == DT_F64 || (t->dtype == DT_F32 && c->kind != OP_FILL) ||
                   (c->kind == OP_ADAMW && i < 3)) {
            r->want[i] = dbl_new(tensor_numel(t));
            r->mag[i]  = dbl_new(tensor_numel(t));
        } else if (c->kind != OP_ADAMW &&
                   c->kind != OP_MUON) { /* the copy is the new master rounded: op_harness.h looks at it */
            r->bytes[i] = calloc(1, tensor_bytes(t));
        }
    }
    CHECK(op_ref_table[c->kind], "%s has no reference", row->name);
    op_ref_table[c->kind](c, r);
}

static inline void op_ref_destroy(OpRef *r)
{
    for (int i = 0; i < OP_MAX_TENSOR; i++) {
        free(r->want[i]);
        free(r->mag[i]);
        free(r->bytes[i]);
    }
}

#endif
