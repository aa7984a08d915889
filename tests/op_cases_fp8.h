/* Cases of the fp8 ops. Products have rows of whole 16 bytes, because GPUs take no others, and small numbers:
 * every sum is exact in 14 bits, so a GPU that adds up with few bits must give the same numbers. */
#ifndef TESTS_OP_CASES_FP8_H
#define TESTS_OP_CASES_FP8_H

#include "op_case.h"

static inline float *case_site(OpCase *c, int i, float scale, float amax)
{
    Tensor *t    = case_vec(c, i, FP8_SITE);
    float  *site = t->data;
    for (int k = 0; k < FP8_SITE; k++) site[k] = fabsf(case_uniform(c, 4));
    site[FP8_SITE_SCALE]  = scale;
    site[FP8_SITE_INV]    = scale > 0 ? 1 / scale : 0;
    site[FP8_SITE_AMAX]   = amax;
    site[FP8_SITE_CURSOR] = 3;
    return site;
}

/* Case i = 35 shape + 7 outputs + from; of seven the last is plain E5M2. */
static inline int case_quant(OpCase *c, int i)
{
    static const int64_t shape[][3] = {
        { 1, 1, 0 }, { 3, 7, 0 }, { 130, 65, 3 }, { 64, 48, 16 }, { 257, 136, 8 }
    };
    static const Act acts[] = { ACT_SILU, ACT_GELU, ACT_RELU2, ACT_RELU };
    if (i >= 35 * 5) return 0;
    const int64_t *s    = shape[i / 35];
    int            kind = i % 7, outputs = i / 7 % 5, from = kind == 6 ? QUANT_PLAIN : kind;
    int            dx = from == QUANT_ACT_DX || from == QUANT_GLU_DX, e5 = dx || kind >= 5;
    int64_t        N = s[0], C = from == QUANT_GLU_DX ? 2 * s[1] : s[1];
    Quant         *a = &c->args.quant;
    a->q_dtype       = e5 ? DT_E5M2 : DT_E4M3;
    a->from          = (QuantFrom)from;
    a->act           = acts[i / 9 % 4];
    a->dynamic       = outputs == 3;
    CASE_NAME("%s %dx%d pad%d from %d act %d outputs %d", dtype_name(a->q_dtype), (int)N, (int)C, (int)s[2],
              from, (int)a->act, outputs);
    if (outputs != 1) case_tensor(c, 0, a->q_dtype, s[2], 2, (int64_t[]){ N, C });
    if (outputs != 2) case_tensor(c, 1, a->q_dtype, 0, 2, (int64_t[]){ C, N });
    case_site(c, 2, outputs == 4 ? 0 : 1.75f, outputs == 4 ? 0 : i % 3 ? 0.5f : 900.0f);
    if ((dx || kind == 6) && outputs % 2 == 0) case_vec(c, 3, C);
    Tensor *x = case_act(c, 5, N, from == QUANT_GLU ? 2 * C : C, s[2]);
    for (int64_t k = 0; k < tensor_numel(x); k++) {
        float size     = from == QUANT_PLAIN ? exp2f(case_uniform(c, 12)) : 3;
        *case_at(x, k) = case_uniform(c, 1) * size;
    }
    if (from == QUANT_XENT_DX) {
        a->n_class = MAX((int64_t)1, C - 2);
        a->slot    = 2;
        case_vec(c, 7, N);
        case_randomize(c, a->lse, 1);
        for (int64_t k = 0; k < N; k++) *case_at(a->lse, k) += 4;
        case_tensor(c, 8, DT_I32, 0, 1, &N);
        for (int64_t k = 0; k < N; k++) *case_int(a->target, k) = (int32_t)case_pick(c, a->n_class + 1) - 1;
        case_state(c, 9);
    }
    if (dx) {
        Tensor *dy = case_act(c, 6, N, s[1], s[2]);
        for (int64_t k = 0; k < tensor_numel(dy); k++)
            *case_at(dy, k) = case_uniform(c, 1) * exp2f(case_uniform(c, 8));
    }
    return 1;
}

static inline int case_fp8_scale(OpCase *c, int i)
{
    if (i >= 7) return 0;
    int64_t n = i == 0 ? 1 : 5 * i, ranks = i < 4 ? 0 : i - 2;
    c->args.fp8_scale.q_dtype = i % 2 ? DT_E5M2 : DT_E4M3;
    CASE_NAME("%s %d sites, %d ranks", dtype_name(c->args.fp8_scale.q_dtype), (int)n, (int)ranks);
    Tensor *t = case_f32(c, 0, n, FP8_SITE, 0);
    for (int64_t r = 0; r < n; r++) {
        float *site = case_at(t, r * FP8_SITE);
        for (int k = 0; k < FP8_SITE; k++) site[k] = fabsf(case_uniform(c, 1)) * exp2f(case_uniform(c, 20));
        site[FP8_SITE_CURSOR] = (float)case_pick(c, FP8_HISTORY);
        if (r % 5 == 1) site[FP8_SITE_AMAX] = 0;
        if (r % 5 == 2) site[FP8_SITE_AMAX] = INFINITY;
        if (r % 5 == 3) site[FP8_SITE_AMAX] = 1e6f; /* an outlier */
        if (r % 5 == 4) site[FP8_SITE_AMAX] = 7;    /* 448/7 is a power of two */
    }
    if (ranks == 0) return 1;
    Tensor *all = case_f32(c, 1, ranks * n, FP8_SITE, 0);
    for (int64_t r = 0; r < ranks * n; r++) {
        float *amax = case_at(all, r * FP8_SITE + FP8_SITE_AMAX);
        *amax       = fabsf(case_uniform(c, 1)) * exp2f(case_uniform(c, 20));
        if (r % n % 5 == 1) *amax = 0; /* on no rank */
        if (r % n % 5 == 2 && r / n == 1) *amax = r % 2 ? INFINITY : NAN;
    }
    return 1;
}

/* Codes of 0, 0.5, 1, 1.5, 2 and 3 with a sign. */
static inline Tensor *case_codes(OpCase *c, int i, DType t, int64_t rows, int64_t cols, int64_t pad)
{
    static const uint8_t e4[] = { 0, 0x30, 0x38, 0x3C, 0x40, 0x44 },
                         e5[] = { 0, 0x38, 0x3C, 0x3E, 0x40, 0x42 };
    Tensor *x                 = case_tensor(c, i, t, pad, 2, (int64_t[]){ rows, cols });
    for (int64_t k = 0; k < rows * cols; k++) {
        int     pick = (int)case_pick(c, 12);
        uint8_t b    = (uint8_t)((t == DT_E4M3 ? e4 : e5)[pick % 6] | (pick < 6 ? 0 : 0x80));
        memcpy(case_at(x, k), &b, 1);
    }
    return x;
}

/* Case i = 4 shape + 2 gradient + bias */
static inline int case_fp8_linear(OpCase *c, int i)
{
    static const int64_t shape[][4] = {
        { 16, 16, 16, 0 }, { 48, 32, 80, 16 }, { 144, 272, 400, 0 }, { 256, 128, 1024, 32 }
    };
    if (i >= 16) return 0;
    const int64_t *s  = shape[i / 4];
    int            dw = c->kind == OP_FP8_LINEAR_DW, bias = i % 2 && !dw;
    DType          ta = i / 2 % 2 ? DT_E5M2 : DT_E4M3;
    CASE_NAME("%s %dx%dx%d pad%d%s", dtype_name(ta), (int)s[0], (int)s[1], (int)s[2], (int)s[3],
              bias ? " bias" : "");
    if (dw) {
        case_f32(c, 0, s[0], s[1], s[3]);
        c->args.fp8_linear_dw.fast = i % 2;
    } else {
        case_act(c, 0, s[0], s[1], s[3]);
        c->args.fp8_linear.fast = i / 2 % 2;
    }
    case_codes(c, 2, ta, s[0], s[2], s[3]);
    case_codes(c, 3, DT_E4M3, s[1], s[2], s[3]);
    case_site(c, 4, 0.25f, 0);
    case_site(c, 5, 8.0f, 0);
    if (bias) {
        c->act[6] = 1;
        case_vec(c, 6, s[1]);
    }
    return 1;
}

#endif
