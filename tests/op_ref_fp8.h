/* What the fp8 ops must give. */
#ifndef TESTS_OP_REF_FP8_H
#define TESTS_OP_REF_FP8_H

#include "op_ref_base.h"

/* Decoded by the formats' definition: sign, exponent with bias, mantissa. */
static inline double ref_fp8_value(uint8_t b, DType t)
{
    int    mantissa = t == DT_E4M3 ? 3 : 2, bias = t == DT_E4M3 ? 7 : 15;
    int    e = (b & 0x7F) >> mantissa, m = b & ((1 << mantissa) - 1);
    double v = e ? ldexp(1 + ldexp(m, -mantissa), e - bias) : ldexp(m, 1 - bias - mantissa);
    return b & 0x80 ? -v : v;
}

/* The nearest code, ties to even: all finite codes are looked at. */
static inline uint8_t ref_fp8_code(double v, DType t)
{
    int most = t == DT_E4M3 ? 0x7E : 0x7B, best = 0;
    for (int b = 0; b <= most; b++) {
        double d = fabs(fabs(v) - ref_fp8_value((uint8_t)b, t)),
               e = fabs(fabs(v) - ref_fp8_value((uint8_t)best, t));
        if (d < e || (d == e && b % 2 == 0)) best = b;
    }
    return (uint8_t)(best | (signbit(v) ? 0x80 : 0));
}

/* v of QUANT: element e of its N x C result, and the size of the numbers behind it. */
static inline double ref_quant_value(const Quant *a, int64_t r, int64_t c, double *mag)
{
    int64_t X = tensor_cols(a->x), half = X / 2, F = a->from == QUANT_GLU_DX ? half : X;
    double  x = *case_at(a->x, r * X + c), v, d;
    switch (a->from) {
    case QUANT_ACT: v = math_act(x, a->act); break;
    case QUANT_GLU: v = math_glu(x, *case_at(a->x, r * X + half + c), a->act); break;
    case QUANT_ACT_DX: v = *case_at(a->dy, r * F + c) * math_slope(x, a->act); break;
    case QUANT_GLU_DX:
        d = *case_at(a->dy, r * F + c % half);
        v = c < half ? d * *case_at(a->x, r * X + half + c) * math_slope(x, a->act)
                     : d * math_act(*case_at(a->x, r * X + c - half), a->act);
        break;
    case QUANT_XENT_DX: {
        const StepState *s      = a->state->data;
        int              target = *case_int(a->target, r);
        v = (exp(x - *case_at(a->lse, r)) - (c == target)) * (double)s->in.inv[a->slot] *
            (double)s->in.loss_scale;
        if (target < 0 || c >= a->n_class) v = 0;
        break;
    }
    default: v = x;
    }
    *mag = 4 * fabs(v) + (a->dy ? fabs((double)*case_at(a->dy, r * F + c % F)) : 0);
    return (double)(float)v;
}

static inline double ref_fp8_scale(double amax, DType t)
{
    double top = t == DT_E4M3 ? 448 : 57344;
    return amax > 0 && isfinite(amax) ? exp2(fmax(-100, fmin(100, floor(log2(top / amax))))) : 0;
}

static inline void ref_quant(const OpCase *c, OpRef *r)
{
    const Quant *a = &c->args.quant;
    int64_t      N = tensor_rows(a->x), C = tensor_cols(a->x) / (a->from == QUANT_GLU ? 2 : 1);
    double      *v = dbl_new(N * C), top = a->dynamic ? 0 : *case_at(a->site, FP8_SITE_AMAX), mag;
    double       scale = *case_at(a->site, FP8_SITE_SCALE);
    for (int64_t i = 0; i < N * C; i++) {
        v[i] = ref_quant_value(a, i / C, i % C, &mag);
        top  = fmax(top, fabs(v[i]));
    }
    for (int k = 0; k < FP8_SITE; k++) ref_put(r, 2, k, *case_at(a->site, k), 0);
    ref_put(r, 2, FP8_SITE_AMAX, top, a->from == QUANT_PLAIN ? 0 : 16 * top);
    if (scale == 0 || a->dynamic) {
        scale = ref_fp8_scale(top, a->q_dtype);
        ref_put(r, 2, FP8_SITE_SCALE, scale, 0);
        ref_put(r, 2, FP8_SITE_INV, scale > 0 ? 1 / scale : 1, 0);
        if (scale == 0) scale = 1;
    }
    for (int64_t i = 0; i < N * C; i++) {
        uint8_t code = ref_fp8_code((float)v[i] * (float)scale, a->q_dtype);
        if (a->q) r->bytes[0][i] = (char)code;
        if (a->qt) r->bytes[1][i % C * N + i / C] = (char)code;
        if (!a->db) continue;
        ref_quant_value(a, i / C, i % C, &mag);
        r->want[3][i % C] += v[i];
        r->mag[3][i % C] += 4 * mag;
    }
    for (int64_t k = 0; a->db && k < C; k++) {
        r->want[3][k] += *case_at(a->db, k);
        r->mag[3][k] += fabs((double)*case_at(a->db, k));
    }
    r->terms[3] = (double)N;
    free(v);
}

static inline void ref_fp8_scale_op(const OpCase *c, OpRef *r)
{
    const Fp8Scale *a = &c->args.fp8_scale;
    for (int64_t s = 0; s < tensor_rows(a->sites); s++) {
        double site[FP8_SITE], amax, top = 0;
        for (int k = 0; k < FP8_SITE; k++) site[k] = *case_at(a->sites, s * FP8_SITE + k);
        amax                = site[FP8_SITE_AMAX];
        site[FP8_SITE_AMAX] = 0;
        for (int64_t k = s; a->all && k < tensor_rows(a->all); k += tensor_rows(a->sites)) {
            double of_rank = *case_at(a->all, k * FP8_SITE + FP8_SITE_AMAX);
            amax           = k == s ? of_rank : isfinite(of_rank) ? fmax(amax, of_rank) : INFINITY;
        }
        if (amax > 0 && isfinite(amax)) {
            int at                      = (int)site[FP8_SITE_CURSOR];
            site[FP8_SITE_HISTORY + at] = amax;
            site[FP8_SITE_CURSOR]       = (at + 1) % FP8_HISTORY;
            for (int k = FP8_SITE_HISTORY; k < FP8_SITE; k++) top = fmax(top, site[k]);
            site[FP8_SITE_SCALE] = ref_fp8_scale(top, a->q_dtype);
            site[FP8_SITE_INV]   = 1 / site[FP8_SITE_SCALE];
        }
        for (int k = 0; k < FP8_SITE; k++) ref_put(r, 0, s * FP8_SITE + k, site[k], 0);
    }
}

/* The numbers behind codes, to be freed. */
static inline double *ref_fp8_numbers(const Tensor *t)
{
    double *x = dbl_new(tensor_numel(t));
    for (int64_t i = 0; i < tensor_numel(t); i++) {
        uint8_t code;
        memcpy(&code, case_at(t, i), 1);
        x[i] = ref_fp8_value(code, t->dtype);
    }
    return x;
}

static inline void ref_fp8_product(OpRef *r, const Tensor *y, const Tensor *a, const Tensor *b, double factor,
                                   const Tensor *plus)
{
    int64_t K = tensor_cols(a), M = tensor_cols(y);
    double *u = ref_fp8_numbers(a), *v = ref_fp8_numbers(b);
    for (int64_t i = 0; i < tensor_numel(y); i++) {
        double sum = 0, extra = 0;
        for (int64_t k = 0; k < K; k++) sum += u[i / M * K + k] * v[i % M * K + k];
        if (plus) extra = *case_at(plus, plus == y ? i : i % M);
        ref_put(r, 0, i, sum * factor + extra, fabs(sum * factor) + fabs(extra));
    }
    free(u);
    free(v);
}

static inline void ref_fp8_linear(const OpCase *c, OpRef *r)
{
    const Fp8Linear *a      = &c->args.fp8_linear;
    double           factor = (double)*case_at(a->a_site, FP8_SITE_INV) * *case_at(a->b_site, FP8_SITE_INV);
    ref_fp8_product(r, a->y, a->a, a->b, factor, a->bias);
}

static inline void ref_fp8_linear_dw(const OpCase *c, OpRef *r)
{
    const Fp8LinearDw *a      = &c->args.fp8_linear_dw;
    double             factor = (double)*case_at(a->a_site, FP8_SITE_INV) * *case_at(a->b_site, FP8_SITE_INV);
    ref_fp8_product(r, a->dw, a->a, a->b, factor, a->dw);
}

/* An activation in f32 may fall to the other side of a tie: then the code is the next one. Ties are 1/16 of
 * a number apart and an f32 activation is good to 2^-20, so few codes may. NULL when all is well. */
static inline const char *ref_check_codes(const OpCase *c, const OpRef *r, int i, char *buf, size_t n)
{
    const Tensor *t     = c->args.t[i];
    int64_t       moved = 0, size = tensor_numel(t);
    for (int64_t e = 0; e < size; e++) {
        uint8_t want = (uint8_t)r->bytes[i][e], got;
        memcpy(&got, case_at(t, e), 1);
        int far = abs((int)(got & 0x7F) - (int)(want & 0x7F));
        if ((want ^ got) & 0x80 && (want | got) & 0x7F) far = 2;
        moved += far == 1;
        if (far <= (c->args.quant.from != QUANT_PLAIN)) continue;
        snprintf(buf, n, "%s: %s code %lld is %02x, not %02x", c->name, t->name, (long long)e, got, want);
        return buf;
    }
    if (moved <= 1 + size / 2000) return NULL;
    snprintf(buf, n, "%s: %s: %lld of %lld codes are off by one", c->name, t->name, (long long)moved,
             (long long)size);
    return buf;
}

#endif
