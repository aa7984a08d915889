/* Cases of every op: odd shapes, row strides, absent arguments, all masks. No test library is needed, so that
 * tests/gpu can use them too: mirror the tensors of a case into device memory (those with act[i] in the
 * compute dtype), run both backends, compare.
 *
 *     for (int i = 0; op_case_create(&c, kind, i); i++) { ...dev_run_op...; op_case_destroy(&c); }
 *
 * Statistics (mean, rstd, lse, o) are those of the inputs, from double. */
#ifndef TESTS_OP_CASES_H
#define TESTS_OP_CASES_H

#include "op_case.h"
#include "op_cases_attn.h"
#include "op_cases_fp8.h"
#include "op_cases_image.h"
#include "op_cases_loss.h"
#include "op_cases_muon.h"
#include "op_cases_rl.h"
#include "op_cases_rows.h"
#include "tensor/number.h"

/* ---- One builder per family: fills c for case i, or returns 0 when there is none ----------------------- */

static inline int case_embed(OpCase *c, int i)
{
    /* B, T, V, C, pad, flags: 1 position table, 2 offset, 4 an offset for each sequence */
    static const int64_t s[][6] = { { 1, 1, 1, 1, 0, 0 },     { 1, 3, 5, 127, 3, 1 },
                                    { 3, 127, 11, 16, 0, 1 }, { 2, 9, 300, 33, 1, 3 },
                                    { 4, 64, 7, 130, 0, 0 },  { 4, 64, 256, 96, 0, 3 },
                                    { 3, 5, 9, 24, 0, 5 } };
    if (i >= (int)(sizeof s / sizeof s[0])) return 0;
    int64_t B = s[i][0], T = s[i][1], V = s[i][2], C = s[i][3], pad = s[i][4], N = B * T;
    CASE_NAME("B%d T%d V%d C%d pad%d flags%d", (int)B, (int)T, (int)V, (int)C, (int)pad, (int)s[i][5]);
    switch (c->kind) {
    case OP_EMBED_FWD:
        case_act3(c, 0, B, T, C, pad);
        case_ints(c, 1, B, T, 0, V);
        case_act(c, 2, V, C, 0);
        if (s[i][5] & 1) case_act(c, 3, T + 4, C, 0);
        if (s[i][5] & 2) case_int1(c, 4, 3);
        if (s[i][5] & 4) case_ints(c, 4, 1, B, 0, 5);
        return 1;
    case OP_EMBED_DW:
        case_f32(c, 0, V, C, 0);
        case_act(c, 2, N, C, pad);
        case_ints(c, 3, B, T, -(i % 2), V); /* -1: left out */
        return 1;
    default: /* OP_POS_DW */
        case_f32(c, 0, T + (i % 2), C, 0);
        case_act3(c, 1, B, T, C, pad);
        return 1;
    }
}

/* RMS norm of a single number bends too sharply near 0, where eps counts, for a difference quotient. */
static inline void case_not_small(const Tensor *x, int64_t width)
{
    for (int64_t k = 0; k < tensor_numel(x) && width == 1; k++) {
        if (fabsf(*case_at(x, k)) < 0.5f) *case_at(x, k) = 0.5f;
    }
}

/* mean (if any) and rstd of x, eps 1e-5 */
static inline void case_stats(const Tensor *x, const Tensor *mean, const Tensor *rstd)
{
    case_not_small(x, tensor_cols(x));
    double *v = case_doubles(x), m, s;
    for (int64_t r = 0; r < tensor_rows(x); r++) {
        math_stats(v + r * tensor_cols(x), tensor_cols(x), mean != NULL, 1e-5, &m, &s);
        if (mean) *case_at(mean, r) = (float)m;
        *case_at(rstd, r) = (float)s;
    }
    free(v);
}

/* Case i = 3 shape + kind of norm: 0 LayerNorm, 1 LayerNorm without beta, 2 RMSNorm. */
static inline int case_norm_fwd(OpCase *c, int i)
{
    if (i >= 3 * CASE_SHAPES) return 0;
    const int64_t *s = case_shape[i / 3];
    int64_t        N = s[0], C = s[1], pad = s[2];
    int            form = i % 3, fused = c->kind == OP_ADD_NORM_FWD, at = 1;
    CASE_NAME("%dx%d pad%d form%d", (int)N, (int)C, (int)pad, form);
    case_act(c, 0, N, C, pad);
    if (fused) case_act(c, at++, N, C, pad);
    if (form < 2) case_vec(c, at, N);
    at++;
    case_vec(c, at++, N);
    case_randomize(c, case_act(c, at++, N, C, pad), 2);
    if (fused) case_act(c, at++, N, C, 0);
    case_vec(c, at++, C);
    if (form == 0) case_vec(c, at, C);
    if (fused) {
        c->args.add_norm_fwd.eps = 1e-5f;
    } else {
        c->args.norm_fwd.eps = 1e-5f;
    }
    return 1;
}

static inline int case_norm_dx(OpCase *c, int i)
{
    if (i >= 2 * CASE_SHAPES) return 0;
    const int64_t *s = case_shape[i / 2];
    CASE_NAME("%dx%d pad%d %s", (int)s[0], (int)s[1], (int)s[2], i % 2 ? "rms" : "layer");
    case_act(c, 0, s[0], s[1], s[2]);
    case_act(c, 1, s[0], s[1], s[2]);
    Tensor *x = case_act(c, 2, s[0], s[1], 0);
    case_randomize(c, x, 2);
    case_vec(c, 3, s[1]);
    if (i % 2 == 0) case_vec(c, 4, s[0]);
    case_vec(c, 5, s[0]);
    case_stats(x, c->args.norm_dx.mean, c->args.norm_dx.rstd);
    return 1;
}

static inline int case_norm_dw(OpCase *c, int i)
{
    if (i >= 2 * CASE_SHAPES) return 0;
    const int64_t *s = case_shape[i / 2];
    CASE_NAME("%dx%d pad%d %s", (int)s[0], (int)s[1], (int)s[2], i % 2 ? "rms" : "layer");
    case_vec(c, 0, s[1]);
    if (i % 2 == 0) case_vec(c, 1, s[1]);
    case_act(c, 3, s[0], s[1], s[2]);
    Tensor *x = case_act(c, 4, s[0], s[1], s[2]);
    case_randomize(c, x, 2);
    if (i % 2 == 0) case_vec(c, 5, s[0]);
    case_vec(c, 6, s[0]);
    case_stats(x, c->args.norm_dw.mean, c->args.norm_dw.rstd);
    return 1;
}

/* Case i = 8 shape + 4 rms + 2 bias gradient + residual gradient; then frozen ones, which have no dgamma */
static inline int case_norm_bwd(OpCase *c, int i)
{
    /* More rows than CUDA's multiprocessors take at a time, in teams of several warps. */
    static const int64_t many[3] = { 2200, 1032, 0 };
    int                  frozen = i - 8 * CASE_SHAPES - 2, rms = i / 4 % 2, bias = i / 2 % 2, res = i % 2;
    if (frozen >= 4 * CASE_SHAPES) return 0;
    const int64_t *s = i < 8 * CASE_SHAPES ? case_shape[i / 8] : frozen < 0 ? many : case_shape[frozen / 4];
    CASE_NAME("%dx%d pad%d %s%s%s%s", (int)s[0], (int)s[1], (int)s[2], rms ? "rms" : "layer",
              bias ? " +dbias" : "", res ? " +dres" : "", frozen < 0 ? "" : " frozen");
    case_act(c, 0, s[0], s[1], s[2]);
    if (frozen < 0) case_vec(c, 1, s[1]);
    if (frozen < 0 && !rms) case_vec(c, 2, s[1]);
    if (bias) case_vec(c, 3, s[1]);
    case_act(c, 5, s[0], s[1], s[2]);
    Tensor *x = case_act(c, 6, s[0], s[1], 0);
    case_randomize(c, x, 2);
    case_vec(c, 7, s[1]);
    if (!rms) case_vec(c, 8, s[0]);
    case_vec(c, 9, s[0]);
    if (res) case_act(c, 10, s[0], s[1], s[2]);
    case_stats(x, c->args.norm_bwd.mean, c->args.norm_bwd.rstd);
    return 1;
}

/* N, K, M, padding; the later ones reach several packed depths, edge tiles, several threads, so many columns
 * that a product is cut, and more rows and columns than the CPU finishes at a time */
static const int64_t case_product[][4] = {
    { 1, 1, 1, 0 },     { 3, 7, 5, 3 },     { 4, 127, 48, 0 },   { 5, 33, 17, 1 },     { 127, 127, 127, 0 },
    { 13, 400, 40, 0 }, { 64, 384, 96, 8 }, { 100, 800, 70, 2 }, { 900, 65, 130, 0 },  { 257, 96, 31, 5 },
    { 7, 3, 11000, 0 }, { 7, 11000, 3, 0 }, { 1100, 40, 33, 3 }, { 300, 264, 200, 8 },
};
#define CASE_PRODUCTS ((int)(sizeof case_product / sizeof case_product[0]))

static inline int case_linear(OpCase *c, int i)
{
    int slope = c->kind == OP_LINEAR_ACT_FWD && i >= CASE_PRODUCTS; /* all again, for linear_act_fwd */
    i -= slope * CASE_PRODUCTS;
    if (i >= CASE_PRODUCTS) return 0;
    const int64_t *s = case_product[i];
    int64_t        N = s[0], K = s[1], M = s[2], pad = s[3];
    CASE_NAME("N%d K%d M%d pad%d%s", (int)N, (int)K, (int)M, (int)pad, slope ? " slope" : "");
    switch (c->kind) {
    case OP_LINEAR_FWD:
        case_act(c, 0, N, M, pad);
        case_act(c, 2, N, K, pad);
        case_act(c, 3, M, K, pad);
        if (i % 2) c->act[4] = (char)(case_vec(c, 4, M) != NULL);
        return 1;
    case OP_LINEAR_ACT_FWD:
        case_act(c, 0, N, M, pad);
        case_act(c, 1, N, M, 0);
        case_act(c, 3, N, K, pad);
        case_act(c, 4, M, K, pad);
        if (i % 2 == 0) c->act[5] = (char)(case_vec(c, 5, M) != NULL);
        c->args.linear_act_fwd.act   = (Act)(i % ACT_COUNT);
        c->args.linear_act_fwd.slope = slope;
        return 1;
    case OP_LINEAR_DX:
        case_act(c, 0, N, K, pad);
        case_act(c, 2, N, M, pad);
        case_act(c, 3, M, K, pad);
        return 1;
    default: /* OP_LINEAR_DW */
        case_f32(c, 0, M, K, 0);
        if (i % 2) case_vec(c, 1, M);
        case_act(c, 3, N, M, pad);
        case_act(c, 4, N, K, pad);
        return 1;
    }
}

/* Both flat ends and the middle, but not so close to 0 that a difference quotient meets the kink of RELU. */
static inline void case_before_act(OpCase *c, const Tensor *x)
{
    case_randomize(c, x, 6);
    for (int64_t k = 0; k < tensor_numel(x); k++) {
        if (fabsf(*case_at(x, k)) < 0.01f) *case_at(x, k) = 0.01f;
    }
}

/* Activations that the op knows. */
static inline int case_acts(const OpCase *c)
{
    int slope = c->kind == OP_LINEAR_ACT_BWD || c->kind == OP_ACT_DX || c->kind == OP_ACT_BIAS_BWD ||
                c->kind == OP_LINEAR_GLU_BWD || c->kind == OP_GLU_DX;
    return ACT_COUNT + slope;
}

/* linear_act_bwd, linear_glu_fwd, linear_glu_bwd; case i = 2 product + form for the first two, whose second
 * form has a bias gradient or leaves the slope, i = product for the last */
static inline int case_linear_fused(OpCase *c, int i)
{
    int forms = c->kind == OP_LINEAR_GLU_BWD ? 1 : 2, glu_fwd = c->kind == OP_LINEAR_GLU_FWD;
    if (i >= forms * CASE_PRODUCTS) return 0;
    const int64_t *s = case_product[i / forms];
    int64_t        N = s[0], K = s[1], M = s[2], pad = s[3];
    Act            act = (Act)(i / forms % case_acts(c));
    CASE_NAME("N%d K%d M%d pad%d act%d%s", (int)N, (int)K, (int)M, (int)pad, (int)act,
              i % forms == 0 ? ""
              : glu_fwd      ? " slope"
                             : " +db");
    switch (c->kind) {
    case OP_LINEAR_ACT_BWD:
        case_act(c, 0, N, K, pad);
        if (i % forms) case_vec(c, 1, K);
        case_act(c, 3, N, M, pad);
        case_act(c, 4, M, K, pad);
        case_before_act(c, case_act(c, 5, N, K, pad));
        c->args.linear_act_bwd.act = act;
        return 1;
    case OP_LINEAR_GLU_FWD:
        case_act(c, 0, N, M, pad);
        case_act(c, 1, N, 2 * M, 0);
        case_act(c, 3, N, K, pad);
        case_act(c, 4, 2 * M, K, pad);
        c->args.linear_glu_fwd.act   = act;
        c->args.linear_glu_fwd.slope = i % forms;
        return 1;
    default: /* OP_LINEAR_GLU_BWD */
        case_act(c, 0, N, 2 * K, pad);
        case_act(c, 2, N, M, pad);
        case_act(c, 3, M, K, pad);
        case_before_act(c, case_act(c, 4, N, 2 * K, pad));
        c->args.linear_glu_bwd.act = act;
        return 1;
    }
}

/* bias_dw, act_fwd, act_dx, act_bias_bwd, glu_fwd, glu_dx; every shape with every activation */
static inline int case_act_family(OpCase *c, int i)
{
    int acts = case_acts(c);
    if (i >= acts * CASE_SHAPES) return 0;
    const int64_t *s   = case_shape[i / acts];
    Act            act = (Act)(i % acts);
    int64_t        N = s[0], C = s[1], pad = s[2];
    CASE_NAME("%dx%d pad%d act%d", (int)N, (int)C, (int)pad, (int)act);
    Tensor *x = NULL;
    switch (c->kind) {
    case OP_BIAS_DW:
        case_vec(c, 0, C);
        case_act(c, 2, N, C, pad);
        return 1;
    case OP_ACT_FWD:
        case_act(c, 0, N, C, pad);
        x                   = case_act(c, 1, N, C, pad);
        c->args.act_fwd.act = act;
        break;
    case OP_ACT_DX:
        case_act(c, 0, N, C, pad);
        case_act(c, 1, N, C, pad);
        x                  = case_act(c, 2, N, C, pad);
        c->args.act_dx.act = act;
        break;
    case OP_ACT_BIAS_BWD:
        case_act(c, 0, N, C, pad);
        case_vec(c, 1, C);
        case_act(c, 3, N, C, pad);
        x                        = case_act(c, 4, N, C, pad);
        c->args.act_bias_bwd.act = act;
        break;
    case OP_GLU_FWD:
        case_act(c, 0, N, C, pad);
        x                   = case_act(c, 1, N, 2 * C, pad);
        c->args.glu_fwd.act = act;
        break;
    default: /* OP_GLU_DX */
        case_act(c, 0, N, 2 * C, pad);
        case_act(c, 1, N, C, 0);
        x                  = case_act(c, 2, N, 2 * C, pad);
        c->args.glu_dx.act = act;
        break;
    }
    case_before_act(c, x);
    return 1;
}

/* A factor a column, and its gradient. */
static inline int case_scale(OpCase *c, int i)
{
    if (i >= CASE_SHAPES) return 0;
    int64_t N = case_shape[i][0], C = case_shape[i][1], pad = case_shape[i][2];
    CASE_NAME("%dx%d pad%d", (int)N, (int)C, (int)pad);
    if (c->kind == OP_SCALE) {
        case_act(c, 0, N, C, pad);
        case_act(c, 1, N, C, pad);
        case_vec(c, 2, C);
    } else {
        case_vec(c, 0, C);
        case_act(c, 2, N, C, pad);
        case_act(c, 3, N, C, pad);
    }
    return 1;
}

static inline int case_rope(OpCase *c, int i)
{
    /* B, T, heads, extra columns, D, padding, offset (-1: none, -2: one for each sequence) */
    static const int64_t s[][7] = { { 1, 1, 1, 0, 2, 0, -1 },       { 2, 3, 3, 5, 6, 3, -1 },
                                    { 1, 127, 2, 64, 64, 0, -1 },   { 2, 9, 4, 160, 80, 0, 5 },
                                    { 2, 40, 16, 256, 128, 0, -1 }, { 3, 4, 2, 32, 32, 0, -2 } };
    int                  n      = (int)(sizeof s / sizeof s[0]);
    if (i >= 2 * n) return 0;
    const int64_t *k = s[i % n];
    int64_t        B = k[0], T = k[1], H = k[2], D = k[4], W = H * D + k[3], pad = k[5];
    CASE_NAME("B%d T%d H%d D%d W%d%s", (int)B, (int)T, (int)H, (int)D, (int)W, i < n ? "" : " inverse");
    case_act3(c, 0, B, T, W, pad);
    case_act3(c, 1, B, T, W, pad);
    case_rotations(c, 2, T + 8, D);
    if (k[6] >= 0) case_int1(c, 3, (int32_t)k[6]);
    if (k[6] == -2) case_ints(c, 3, 1, B, 0, 9);
    c->args.rope.n_head   = (int)H;
    c->args.rope.head_dim = (int)D;
    c->args.rope.inverse  = i >= n;
    return 1;
}

static inline int case_qknorm(OpCase *c, int i)
{
    /* N, H, K, D, padding */
    static const int64_t s[][5] = {
        { 1, 1, 1, 1, 0 }, { 3, 3, 1, 7, 3 }, { 127, 14, 2, 64, 0 }, { 20, 2, 2, 80, 4 }, { 33, 4, 1, 128, 0 }
    };
    if (i >= (int)(sizeof s / sizeof s[0])) return 0;
    int64_t N = s[i][0], H = s[i][1], K = s[i][2], D = s[i][3], pad = s[i][4], W = (H + 2 * K) * D;
    CASE_NAME("N%d H%d K%d D%d pad%d", (int)N, (int)H, (int)K, (int)D, (int)pad);
    Tensor *x = NULL, *rstd = NULL;
    if (c->kind == OP_QKNORM_FWD) {
        case_act(c, 0, N, W, pad);
        case_f32(c, 1, N, H + K, 0);
        case_act(c, 2, N, W, pad);
        case_vec(c, 3, D);
        case_vec(c, 4, D);
        c->args.qknorm_fwd.heads    = (int)H;
        c->args.qknorm_fwd.kv_heads = (int)K;
        c->args.qknorm_fwd.head_dim = (int)D;
        c->args.qknorm_fwd.eps      = 1e-5f;
        return 1;
    }
    if (c->kind == OP_QKNORM_DX) {
        case_act(c, 0, N, W, pad);
        case_act(c, 1, N, W, pad);
        x = case_act(c, 2, N, W, pad);
        case_vec(c, 3, D);
        case_vec(c, 4, D);
        rstd                       = case_f32(c, 5, N, H + K, 0);
        c->args.qknorm_dx.heads    = (int)H;
        c->args.qknorm_dx.kv_heads = (int)K;
        c->args.qknorm_dx.head_dim = (int)D;
    } else {
        case_vec(c, 0, D);
        case_vec(c, 1, D);
        case_act(c, 3, N, W, pad);
        x                          = case_act(c, 4, N, W, pad);
        rstd                       = case_f32(c, 5, N, H + K, 0);
        c->args.qknorm_dw.heads    = (int)H;
        c->args.qknorm_dw.kv_heads = (int)K;
        c->args.qknorm_dw.head_dim = (int)D;
    }
    case_not_small(x, D);
    double *v = case_doubles(x), mean, r;
    for (int64_t k = 0; k < N * (H + K); k++) {
        math_stats(v + k / (H + K) * W + k % (H + K) * D, D, 0, 1e-5, &mean, &r);
        *case_at(rstd, k) = (float)r;
    }
    free(v);
    return 1;
}

static inline int case_dropout(OpCase *c, int i)
{
    /* samples, rows per sample, cols, padding; 100 p */
    static const int64_t s[][5] = { { 1, 1, 1, 0, 10 },
                                    { 2, 3, 7, 3, 50 },
                                    { 3, 5, 127, 0, 0 },
                                    { 4, 16, 384, 0, 10 },
                                    { 2, 9, 301, 2, 90 } };
    int                  n = (int)(sizeof s / sizeof s[0]), per_sample = i >= n;
    i -= per_sample * n; /* all again, one draw a sample */
    if (i >= n) return 0;
    int64_t rows = s[i][0] * s[i][1];
    CASE_NAME("%dx%d rows of %d pad%d p0.%02d%s", (int)s[i][0], (int)s[i][1], (int)s[i][2], (int)s[i][3],
              (int)s[i][4], per_sample ? " per sample" : "");
    c->args.dropout.per_sample = per_sample;
    case_act(c, 0, rows, s[i][2], s[i][3]);
    case_act(c, 1, rows, s[i][2], s[i][3]);
    case_state(c, 2);
    Tensor *sample0                 = case_tensor(c, 3, DT_I64, 0, 1, (int64_t[]){ 1 });
    *(int64_t *)sample0->data       = i % 2 ? 5 : (int64_t)1 << 33;
    c->args.dropout.p               = (float)s[i][4] / 100;
    c->args.dropout.site            = 3 + i;
    c->args.dropout.rows_per_sample = s[i][1];
    return 1;
}

static inline int case_loss_add(OpCase *c, int i)
{
    static const int64_t s[] = { 1, 3, 127, 5000, 3 * 701 };
    if (i >= 5) return 0;
    CASE_NAME("N%d", (int)s[i]);
    case_state(c, 0);
    case_vec(c, 1, s[i]);
    c->args.loss_add.slot   = i % 2 ? 2 : 0;
    c->args.loss_add.n_slot = i == 4 ? 3 : 0;
    return 1;
}

static inline int case_call_fn(const CallFn *a, void *stream)
{
    for (int64_t i = 0; i < tensor_numel(a->t[0]); i++)
        ((float *)a->t[0]->data)[i] += a->t[1] ? ((float *)a->t[1]->data)[i] : *(const float *)a->ctx;
    return 0;
}

static inline int case_call(OpCase *c, int i)
{
    static const int64_t s[] = { 1, 3, 127 };
    static const float   one = 1;
    if (i >= 3) return 0;
    CASE_NAME("N%d", (int)s[i]);
    case_vec(c, 0, s[i]);
    for (int k = 1; k < (i == 2 ? CALL_TENSORS : i + 1); k++) case_vec(c, k, s[i]);
    c->args.call.fn  = case_call_fn;
    c->args.call.ctx = &one;
    return 1;
}

static inline int case_halt(OpCase *c, int i)
{
    static const float limit[] = { 0, 0.374f, 0.375f, 1, -1 }; /* sum[2] * inv[2] is 0.375 */
    if (i >= 5) return 0;
    CASE_NAME("limit %g", (double)limit[i]);
    case_state(c, 0);
    c->args.halt.slot  = 2;
    c->args.halt.limit = limit[i];
    return 1;
}

static inline int case_fill(OpCase *c, int i)
{
    static const DType dtype[] = { DT_F32, DT_I32, DT_BF16, DT_U8, DT_F16, DT_I64 };
    int                n       = (int)(sizeof dtype / sizeof dtype[0]);
    if (i >= n * CASE_SHAPES) return 0;
    const int64_t *s = case_shape[i / n];
    CASE_NAME("%s %dx%d pad%d", dtype_name(dtype[i % n]), (int)s[0], (int)s[1], (int)s[2]);
    case_tensor(c, 0, dtype[i % n], s[2], 2, s);
    c->args.fill.value = i % 2 ? 3 : 0;
    return 1;
}

/* copy and the collectives of one rank: strided rows only where the op may have them */
static inline int case_copy(OpCase *c, int i)
{
    if (i >= CASE_SHAPES) return 0;
    const int64_t *s   = case_shape[i];
    int64_t        pad = c->kind == OP_COPY ? s[2] : 0;
    CASE_NAME("%dx%d pad%d", (int)s[0], (int)s[1], (int)pad);
    case_act(c, 0, s[0], s[1], pad);
    case_act(c, 1, s[0], s[1], 0);
    return 1;
}

static inline int case_cast(OpCase *c, int i)
{
    static const DType dtype[] = { DT_F32, DT_BF16, DT_F16 };
    if (i >= 9 * CASE_SHAPES) return 0;
    const int64_t *s  = case_shape[i / 9];
    DType          to = dtype[i % 3], from = dtype[i / 3 % 3];
    CASE_NAME("%s to %s %dx%d pad%d", dtype_name(from), dtype_name(to), (int)s[0], (int)s[1], (int)s[2]);
    case_tensor(c, 0, to, s[2], 2, s);
    Tensor *x = case_tensor(c, 1, from, s[2], 2, s);
    for (int64_t k = 0; k < tensor_numel(x); k++) {
        float    v    = case_uniform(c, 3);
        uint32_t bits = 0;
        memcpy(&bits, &v, 4);
        _Float16 half = (_Float16)v;
        if (from == DT_F32) memcpy(case_at(x, k), &v, 4);
        if (from == DT_BF16)
            memcpy(case_at(x, k), (char *)&bits + 2, 2); /* the upper half of an f32 is a bf16 */
        if (from == DT_F16) memcpy(case_at(x, k), &half, 2);
    }
    return 1;
}

static inline int case_sumsq(OpCase *c, int i)
{
    static const int64_t s[] = { 1, 3, 127, 16384, 70001 };
    if (i >= 5) return 0;
    CASE_NAME("n%d", (int)s[i]);
    case_state(c, 0);
    case_vec(c, 2, s[i]);
    return 1;
}

static inline int case_clip(OpCase *c, int i)
{
    /* grad_sumsq, loss_sum, max_norm, spike_factor, n_update */
    static const double s[][5] = { { 4, 32, 1, 0, 0 },        { 1e-8, 32, 1, 2, 30 },
                                   { 64, 32, 0, 2, 19 },      { 64, 4000, 1, 2, 20 },
                                   { INFINITY, 32, 1, 0, 0 }, { NAN, 32, 1, 2, 100 },
                                   { 1, NAN, 1, 2, 100 },     { 1, INFINITY, 1, 2, 3 },
                                   { 64, 4000, 1, 2, 10 },    { 64, 64.5, 1, 1.01f, 500 },
                                   { 4, 32, 1, 0, 0 } };
    /* The same with a loss scale: exponent, updates since it changed. 2 x as many cases. */
    static const int scaled[][2] = { { 16, 0 }, { 16, 9 }, { 24, 9 }, { 10, 10 }, { 16, 3 }, { 1, 0 },
                                     { 8, 1 },  { 5, 9 },  { 7, 0 },  { 3, 9 },   { 16, 9 } };
    int              n = (int)(sizeof s / sizeof s[0]), scales = i >= n;
    if (i >= 2 * n) return 0;
    i %= n;
    CASE_NAME("%ssumsq %g loss %g max %g spike %g after %g", scales ? "scaled " : "", s[i][0], s[i][1],
              s[i][2], s[i][3], s[i][4]);
    StepState *state          = case_state(c, 0);
    state->out.grad_sumsq     = s[i][0];
    state->out.sum[0]         = s[i][1];
    state->out.stop           = i == 10; /* the last one comes after HALT */
    state->out.n_update       = (int32_t)s[i][4];
    state->out.n_skipped      = 2;
    state->out.n_skip_row     = 1;
    state->out.skip           = 1;
    c->args.clip.max_norm     = (float)s[i][2];
    c->args.clip.beta1        = 0.9f;
    c->args.clip.beta2        = 0.95f;
    c->args.clip.spike_factor = (float)s[i][3];
    c->args.clip.scale_every  = scales ? 10 : 0;
    state->out.scale_exp      = scales ? scaled[i][0] : 0;
    state->out.n_scaled       = scales ? scaled[i][1] : 0;
    return 1;
}

/* A vector in bf16, of random numbers; not negative: for a second moment. */
static inline void case_narrow(OpCase *c, int i, int64_t n, int not_negative)
{
    Tensor *t = case_tensor(c, i, DT_BF16, 0, 1, &n);
    for (int64_t k = 0; k < n; k++) {
        float    x = case_uniform(c, 1);
        uint16_t h = bf16_from_f32(not_negative ? fabsf(x) : x);
        memcpy(case_at(t, k), &h, 2);
    }
}

/* Case i = 2 size + skipped; from 8 on moments in bf16, from 16 on weights, too. */
static inline int case_adamw(OpCase *c, int i)
{
    static const int64_t size[] = { 1, 40, 127, 40000 };
    int                  narrow = i / 8;
    if (i >= 24) return 0;
    i %= 8;
    int64_t n = size[i / 2];
    CASE_NAME("n%d%s%s%s", (int)n, i / 2 % 2 && narrow < 2 ? " copy" : "", i % 2 ? " skip" : "",
              narrow == 2   ? " bf16"
              : narrow == 1 ? " bf16 moments"
                            : "");
    for (int k = 0; k < 4; k++) {
        if (k == 3 || narrow < (k == 0 ? 2 : 1)) {
            case_vec(c, k, n);
        } else {
            case_narrow(c, k, n, k == 2);
        }
    }
    for (int64_t k = 0; k < n && narrow == 0; k++)
        *case_at(c->args.adamw.v, k) = fabsf(*case_at(c->args.adamw.v, k));
    c->args.adamw.site = 5;
    if (i / 2 % 2 && narrow < 2) case_tensor(c, 4, i / 2 == 1 ? DT_BF16 : DT_F16, 0, 1, &n);
    case_state(c, 5)->out.skip = i % 2 ? 1 : 0;
    /* Two segments, a gap between them and one behind. */
    int64_t  n_seg = n >= 40 ? 2 : 1, bytes = n_seg * (int64_t)sizeof(Segment);
    Segment *seg = case_tensor(c, 6, DT_U8, 0, 1, &bytes)->data;
    seg[0]       = (Segment){ 0, n_seg == 1 ? n : n / 2 - 3, 0.1f, 1.0f };
    if (n_seg == 2) seg[1] = (Segment){ n / 2 + 1, n - 2, 0.0f, 0.5f };
    c->args.adamw.beta1 = 0.9f;
    c->args.adamw.beta2 = 0.95f;
    c->args.adamw.eps   = 1e-8f;
    return 1;
}

/* ---- The table: one row per op kind; a test fails for a kind without one ------------------------------- */

typedef int (*OpCaseFn)(OpCase *c, int i);

static const OpCaseFn op_case_table[OP_COUNT] = {
    [OP_EMBED_FWD]      = case_embed,
    [OP_EMBED_DW]       = case_embed,
    [OP_POS_DW]         = case_embed,
    [OP_PATCHES]        = case_patches,
    [OP_NORM_FWD]       = case_norm_fwd,
    [OP_NORM_DX]        = case_norm_dx,
    [OP_NORM_DW]        = case_norm_dw,
    [OP_ADD_NORM_FWD]   = case_norm_fwd,
    [OP_NORM_BWD]       = case_norm_bwd,
    [OP_LINEAR_FWD]     = case_linear,
    [OP_LINEAR_DX]      = case_linear,
    [OP_LINEAR_DW]      = case_linear,
    [OP_BIAS_DW]        = case_act_family,
    [OP_LINEAR_ACT_FWD] = case_linear,
    [OP_LINEAR_ACT_BWD] = case_linear_fused,
    [OP_LINEAR_GLU_FWD] = case_linear_fused,
    [OP_LINEAR_GLU_BWD] = case_linear_fused,
    [OP_ACT_FWD]        = case_act_family,
    [OP_ACT_DX]         = case_act_family,
    [OP_ACT_BIAS_BWD]   = case_act_family,
    [OP_GLU_FWD]        = case_act_family,
    [OP_GLU_DX]         = case_act_family,
    [OP_ADD]            = case_add,
    [OP_MUL]            = case_add,
    [OP_SCALE]          = case_scale,
    [OP_SCALE_DW]       = case_scale,
    [OP_ROWS_FWD]       = case_rows_fwd,
    [OP_ROWS_DX]        = case_rows_dx,
    [OP_MEAN_ROWS_FWD]  = case_mean_rows,
    [OP_MEAN_ROWS_DX]   = case_mean_rows,
    [OP_ADD_POS]        = case_add_pos,
    [OP_ROPE]           = case_rope,
    [OP_QKNORM_FWD]     = case_qknorm,
    [OP_QKNORM_DX]      = case_qknorm,
    [OP_QKNORM_DW]      = case_qknorm,
    [OP_ATTN_FWD]       = case_attn,
    [OP_ATTN_BWD]       = case_attn,
    [OP_ATTN_DECODE]    = case_decode,
    [OP_CROSS_ATTN_FWD] = case_cross,
    [OP_CROSS_ATTN_BWD] = case_cross,
    [OP_DROPOUT]        = case_dropout,
    [OP_XENT_FWD]       = case_xent,
    [OP_XENT_DX]        = case_xent,
    [OP_XENT]           = case_xent,
    [OP_MSE_FWD]        = case_mse,
    [OP_MSE_DX]         = case_mse,
    [OP_KL_FWD]         = case_kl,
    [OP_KL_DX]          = case_kl,
    [OP_KL_TEACHER]     = case_kl_teacher,
    [OP_SAMPLE_CAT]     = case_sample_cat,
    [OP_SAMPLE_GAUSS]   = case_sample_gauss,
    [OP_PPO_CAT_FWD]    = case_ppo,
    [OP_PPO_CAT_DX]     = case_ppo,
    [OP_PPO_GAUSS_FWD]  = case_ppo,
    [OP_PPO_GAUSS_DX]   = case_ppo,
    [OP_GAE]            = case_gae,
    [OP_STATS]          = case_stats_op,
    [OP_OBS_STATS]      = case_obs,
    [OP_OBS_NORM]       = case_obs,
    [OP_PUT]            = case_put,
    [OP_TICK]           = case_tick,
    [OP_PERM]           = case_perm,
    [OP_PACK_ROWS]      = case_pack,
    [OP_CALL]           = case_call,
    [OP_LOSS_ADD]       = case_loss_add,
    [OP_HALT]           = case_halt,
    [OP_FILL]           = case_fill,
    [OP_COPY]           = case_copy,
    [OP_CAST]           = case_cast,
    [OP_QUANT]          = case_quant,
    [OP_FP8_SCALE]      = case_fp8_scale,
    [OP_FP8_LINEAR]     = case_fp8_linear,
    [OP_FP8_LINEAR_DW]  = case_fp8_linear,
    [OP_SUMSQ]          = case_sumsq,
    [OP_CLIP]           = case_clip,
    [OP_ADAMW]          = case_adamw,
    [OP_EMA]            = case_ema,
    [OP_MOMENTUM]       = case_momentum,
    [OP_ORTHO]          = case_ortho,
    [OP_MUON]           = case_muon,
    [OP_ALL_REDUCE]     = case_copy,
    [OP_REDUCE_SCATTER] = case_copy,
    [OP_ALL_GATHER]     = case_copy,
};

/* Fills *c with case i of a kind and returns 1, or returns 0 when there are no more. */
static inline int op_case_create(OpCase *c, OpKind kind, int i)
{
    memset(c, 0, sizeof *c);
    c->kind = kind;
    c->seed = (uint64_t)i; /* and the name: another kind in the list changes no numbers */
    for (const char *s = op_table[kind].name; *s; s++) c->seed = c->seed * 1000003 + (uint64_t)*s;
    CHECK(op_case_table[kind], "%s has no cases", op_table[kind].name);
    return op_case_table[kind](c, i);
}

static inline void op_case_destroy(OpCase *c)
{
    for (int i = 0; i < OP_MAX_TENSOR; i++) free(c->block[i]);
}

/* NULL while every guard and gap is intact, else the name of the damaged argument. */
static inline const char *op_case_damage(const OpCase *c)
{
    uint32_t guard = CASE_GUARD;
    for (int i = 0; i < op_table[c->kind].n_tensor; i++) {
        if (!c->block[i]) continue;
        const Tensor *t    = &c->tensor[i];
        size_t        size = dtype_bytes(t->dtype), row = (size_t)tensor_cols(t) * size,
               ld  = (size_t)tensor_ld(t) * size;
        size_t end = (size_t)(tensor_rows(t) - 1) * ld + row;
        for (size_t k = 0; k < c->block_bytes[i]; k++) {
            size_t at     = k - CASE_GUARD_BYTES;
            int    inside = k >= CASE_GUARD_BYTES && at < end && at % ld < row;
            if (!inside && c->block[i][k] != ((char *)&guard)[k % 4]) return op_table[c->kind].arg[i].name;
        }
    }
    return NULL;
}

#endif
