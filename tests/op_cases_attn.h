/* Cases of attention: every mask, grouped heads, stored weights, one token at a time (rows of op_cases.h). */
#ifndef TESTS_OP_CASES_ATTN_H
#define TESTS_OP_CASES_ATTN_H

#include "op_case.h"

static inline const int32_t *case_ints_of(const Tensor *t) { return t ? t->data : NULL; }

static inline MathAttn case_attn_shape(const OpCase *c)
{
    int            fwd = c->kind == OP_ATTN_FWD;
    const AttnFwd *f   = &c->args.attn_fwd;
    const AttnBwd *b   = &c->args.attn_bwd;
    const Tensor  *qkv = fwd ? f->qkv : b->qkv;
    MathAttn       s   = math_packed(qkv->dim[0], qkv->dim[1], fwd ? &f->shape : &b->shape);
    s.doc              = case_ints_of(fwd ? f->doc : b->doc);
    s.prefix           = case_ints_of(fwd ? f->prefix : b->prefix);
    s.first            = case_ints_of(fwd ? f->first : b->first);
    s.last             = case_ints_of(fwd ? f->last : b->last);
    return s;
}

static inline MathAttn case_cross_shape(const OpCase *c)
{
    int                 fwd = c->kind == OP_CROSS_ATTN_FWD;
    const CrossAttnFwd *f   = &c->args.cross_attn_fwd;
    const CrossAttnBwd *b   = &c->args.cross_attn_bwd;
    const Tensor       *q = fwd ? f->q : b->q, *kv = fwd ? f->kv : b->kv;
    MathAttn            s = math_cross(q->dim[0], q->dim[1], kv->dim[1], fwd ? &f->shape : &b->shape);
    s.first               = case_ints_of(fwd ? f->first : b->first);
    s.last                = case_ints_of(fwd ? f->last : b->last);
    s.len                 = case_ints_of(fwd ? f->len : b->len);
    return s;
}

/* Ways to fill first and last. */
typedef enum {
    RANGE_PACKED, /* sequences of random lengths side by side, each sees itself whole */
    RANGE_WINDOW, /* causal, and no further back than T/5 */
    RANGE_PREFIX, /* causal, and a prefix that all see */
    RANGE_VALID,  /* all see the first keys; the queries behind those see nothing */
    RANGE_ANY,    /* any two integers, some outside, some the wrong way round */
    RANGE_COUNT
} RangeWay;

static inline void case_range_row(OpCase *c, RangeWay way, int64_t t, int64_t T, int64_t S, int32_t *first,
                                  int32_t *last)
{
    int64_t most = T * 2 / 3;
    switch (way) {
    case RANGE_WINDOW:
        *first = (int32_t)(t - T / 5);
        *last  = (int32_t)t;
        break;
    case RANGE_PREFIX:
        *first = 0;
        *last  = (int32_t)MAX(t, T / 3);
        break;
    case RANGE_VALID:
        *first = 0;
        *last  = (int32_t)(t < most ? MIN(most, S) - 1 : -1);
        break;
    default:
        *first = (int32_t)(case_pick(c, S + 10) - 5);
        *last  = (int32_t)(case_pick(c, S + 10) - 5);
        break;
    }
}

/* Arguments at and at + 1. */
static inline void case_ranges(OpCase *c, int at, int64_t B, int64_t T, int64_t S, RangeWay way)
{
    const Tensor *first = case_ints(c, at, B, T, 0, 1), *last = case_ints(c, at + 1, B, T, 0, 1);
    for (int64_t i = 0; i < B * T; i++) {
        if (way == RANGE_PACKED) continue;
        case_range_row(c, way, i % T, T, S, case_int(first, i), case_int(last, i));
    }
    for (int64_t i = 0; way == RANGE_PACKED && i < B * T;) {
        int64_t t = i % T, n = 1 + case_pick(c, T / 2 + 1);
        n = MIN(n, T - t);
        for (int64_t k = 0; k < n; k++) {
            *case_int(first, i + k) = (int32_t)(t * S / T);
            *case_int(last, i + k)  = (int32_t)((t + n) * S / T - 1);
        }
        i += n;
    }
}

/* Documents of random lengths: each row names its document's first row. Many rows are a short document and a
 * long one, which tiles of keys at its beginning have to wait for. */
static inline void case_documents(OpCase *c, const Tensor *doc, int64_t B, int64_t T)
{
    for (int64_t b = 0; b < B; b++) {
        int32_t start = 0;
        for (int64_t t = 0; t < T; t++) {
            if (t > 0 && (T < 512 ? case_pick(c, 20) == 0 : t == 64)) start = (int32_t)t;
            *case_int(doc, b * T + t) = start;
        }
    }
}

/* A table of rotations as argument `arg`. */
static inline Tensor *case_rotations(OpCase *c, int arg, int64_t T, int64_t D)
{
    Tensor *table = case_f32(c, arg, T, D, 0);
    for (int64_t i = 0; i < T * D / 2; i++) {
        int64_t t = i / (D / 2), d = i % (D / 2);
        double  angle                      = (double)t * pow(10000, -2.0 * (double)d / (double)D);
        *case_at(table, t * D + d)         = (float)cos(angle);
        *case_at(table, t * D + D / 2 + d) = (float)sin(angle);
    }
    return table;
}

/* What the forward op left: o, lse and, if it stored them, the weights. */
static inline void case_fill_forward(MathAttn s, Tensor *o, Tensor *lse, Tensor *p, const Tensor *q,
                                     const Tensor *kv)
{
    double *x = case_doubles(q), *y = case_doubles(kv), *od = dbl_new(tensor_numel(o)),
           *ld = dbl_new(tensor_numel(lse));
    math_attn(od, ld, &s, x, y);
    if (p) {
        double *w = dbl_new(tensor_numel(p));
        math_attn_weights(w, &s, x, y);
        case_from_doubles(p, w);
        free(w);
    }
    case_from_doubles(o, od);
    case_from_doubles(lse, ld);
    free(x);
    free(y);
    free(od);
    free(ld);
}

static inline int case_attn(OpCase *c, int i)
{
    /* B, T, H, K, D, padding of rows, more of it for rows like o's; every shape with every mask, then all
     * again with stored weights, and the gradient once more for rotated q and k. Lengths of 128s are those
     * that CUDA has fast kernels for. In the last one the CPU's products of dout, whose rows are far apart,
     * pack more than those of qkv. */
    static const int64_t s[][7] = { { 2, 1, 1, 1, 1, 0, 0 },    { 1, 127, 2, 2, 64, 0, 0 },
                                    { 2, 65, 14, 2, 64, 0, 0 }, { 1, 127, 4, 2, 80, 0, 0 },
                                    { 1, 70, 3, 1, 128, 4, 0 }, { 2, 33, 3, 3, 1, 0, 0 },
                                    { 1, 40, 2, 1, 7, 3, 0 },   { 1, 200, 2, 1, 16, 0, 0 },
                                    { 3, 64, 2, 2, 32, 0, 0 },  { 1, 128, 2, 1, 128, 0, 0 },
                                    { 2, 128, 3, 1, 64, 8, 8 }, { 1, 384, 2, 2, 64, 0, 0 },
                                    { 1, 768, 2, 1, 64, 0, 0 }, { 1, 512, 1, 1, 128, 0, 0 },
                                    { 1, 196, 2, 2, 64, 0, 0 }, { 2, 61, 2, 1, 100, 0, 600 } };
    int                  n = (int)(sizeof s / sizeof s[0]) * MASK_COUNT, stored = i / n == 1;
    int                  fwd = c->kind == OP_ATTN_FWD, at = fwd ? 5 : 6, shape_i = i % n / MASK_COUNT;
    if (i >= (fwd ? 2 : 3) * n) return 0;
    const int64_t *k = s[shape_i];
    int64_t        B = k[0], T = k[1], H = k[2], K = k[3], D = k[4], W = (H + 2 * K) * D, pad = k[5],
            far  = pad + k[6];
    Mask  mask   = (Mask)(i % MASK_COUNT);
    int   turned = i / n == 2 && D % 2 == 0;
    float scale  = (float)(1 / sqrt((double)D));
    CASE_NAME("B%d T%d H%d/%d D%d pad%d/%d mask%d%s", (int)B, (int)T, (int)H, (int)K, (int)D, (int)pad,
              (int)far, (int)mask,
              stored   ? " stored"
              : turned ? " turned"
                       : "");
    if (mask == MASK_DOCUMENT) case_documents(c, case_ints(c, at, B, T, 0, 1), B, T);
    if (mask == MASK_PREFIX) case_ints(c, at + 1, 1, B, 0, T + 1);
    if (mask == MASK_RANGE) case_ranges(c, at + 2, B, T, T, (RangeWay)((shape_i + i / n) % RANGE_COUNT));
    Tensor   *p     = stored ? case_act4(c, fwd ? 2 : 10, B, H, T, T) : NULL;
    AttnShape shape = {
        .heads = (int)H, .kv_heads = (int)K, .head_dim = (int)D, .mask = mask, .scale = scale
    };
    if (fwd) {
        case_act3(c, 0, B, T, H * D, far);
        case_tensor(c, 1, DT_F32, 0, 3, (int64_t[]){ B, H, T });
        case_randomize(c, case_act3(c, 4, B, T, W, pad), 2);
        c->args.attn_fwd.shape = shape;
        return 1;
    }
    case_act3(c, 0, B, T, W, pad);
    case_act3(c, 2, B, T, H * D, far);
    Tensor *o   = case_act3(c, 3, B, T, H * D, 0),
           *lse = case_tensor(c, 4, DT_F32, 0, 3, (int64_t[]){ B, H, T });
    Tensor *qkv = case_act3(c, 5, B, T, W, pad);
    case_randomize(c, qkv, 2);
    if (turned) case_rotations(c, 11, T + 3, D);
    c->args.attn_bwd.shape = shape;
    case_fill_forward(case_attn_shape(c), o, lse, p, qkv, qkv);
    return 1;
}

/* Queries of one sequence, keys of another. */
static inline int case_cross(OpCase *c, int i)
{
    /* B, T, S, H, K, D, padding of rows; every shape with every way to hide keys. CUDA has fast kernels for
     * the last two. */
    static const int64_t s[][7] = { { 1, 1, 1, 1, 1, 1, 0 },     { 2, 16, 300, 4, 2, 64, 0 },
                                    { 1, 33, 129, 3, 1, 32, 4 }, { 2, 64, 70, 2, 2, 128, 0 },
                                    { 1, 130, 40, 6, 3, 80, 0 }, { 3, 7, 513, 2, 1, 100, 4 },
                                    { 2, 64, 256, 4, 2, 64, 0 }, { 1, 128, 128, 2, 1, 128, 8 } };
    enum { WAYS = RANGE_COUNT + 2 }; /* all, valid lengths, ranges */
    if (i >= (int)(sizeof s / sizeof s[0]) * WAYS) return 0;
    const int64_t *k   = s[i / WAYS];
    int            way = i % WAYS, fwd = c->kind == OP_CROSS_ATTN_FWD, at = fwd ? 5 : 8;
    int64_t        B = k[0], T = k[1], S = k[2], H = k[3], K = k[4], D = k[5], pad = k[6];
    CASE_NAME("B%d T%d S%d H%d/%d D%d pad%d way%d", (int)B, (int)T, (int)S, (int)H, (int)K, (int)D, (int)pad,
              way);
    if (way == 1 || way == WAYS - 1) case_ints(c, at + 2, 1, B, 0, S + 2);
    if (way > 1) case_ranges(c, at, B, T, S, (RangeWay)(way - 2));
    AttnShape shape      = { .heads    = (int)H,
                             .kv_heads = (int)K,
                             .head_dim = (int)D,
                             .mask     = way > 1 ? MASK_RANGE : MASK_FULL,
                             .scale    = (float)(1 / sqrt((double)D)) };
    int64_t   lse_dim[3] = { B, H, T };
    if (fwd) {
        case_act3(c, 0, B, T, H * D, pad);
        case_tensor(c, 1, DT_F32, 0, 3, lse_dim);
        case_randomize(c, case_act3(c, 3, B, T, H * D, pad), 2);
        case_randomize(c, case_act3(c, 4, B, S, 2 * K * D, pad), 2);
        c->args.cross_attn_fwd.shape = shape;
        return 1;
    }
    case_act3(c, 0, B, T, H * D, pad);
    case_act3(c, 1, B, S, 2 * K * D, pad);
    case_act3(c, 3, B, T, H * D, pad);
    Tensor *o = case_act3(c, 4, B, T, H * D, 0), *lse = case_tensor(c, 5, DT_F32, 0, 3, lse_dim);
    Tensor *q = case_act3(c, 6, B, T, H * D, pad), *kv = case_act3(c, 7, B, S, 2 * K * D, pad);
    case_randomize(c, q, 2);
    case_randomize(c, kv, 2);
    c->args.cross_attn_bwd.shape = shape;
    case_fill_forward(case_cross_shape(c), o, lse, NULL, q, kv);
    return 1;
}

static inline int case_decode(OpCase *c, int i)
{
    /* B, T, T_max, H, K, D, len, window; len below 0: a random length for each sequence */
    static const int64_t s[][8] = {
        { 1, 1, 1, 1, 1, 1, 0 },         { 2, 1, 9, 3, 1, 7, 0 },          { 1, 1, 127, 14, 2, 64, 126 },
        { 3, 1, 40, 4, 2, 80, 17 },      { 2, 1, 33, 2, 2, 128, 31 },      { 4, 1, 50, 4, 1, 64, -1 },
        { 1, 1, 3000, 8, 2, 128, 2991 }, { 3, 1, 700, 4, 4, 32, -1 },      { 1, 5, 5, 2, 1, 16, 0 },
        { 2, 37, 90, 4, 2, 64, 11 },     { 3, 70, 200, 2, 1, 128, -1 },    { 2, 3, 300, 6, 2, 80, -1 },
        { 2, 128, 128, 2, 2, 64, 0 },    { 2, 1, 2100, 16, 1, 64, -1 },    { 3, 1, 700, 4, 2, 64, -1, 100 },
        { 2, 1, 60, 2, 2, 32, -1, 1 },   { 2, 37, 300, 4, 2, 64, -1, 20 }, { 1, 9, 50, 2, 1, 16, 3, 200 }
    };
    if (i >= (int)(sizeof s / sizeof s[0])) return 0;
    int64_t B = s[i][0], T = s[i][1], T_max = s[i][2], H = s[i][3], K = s[i][4], D = s[i][5], len = s[i][6];
    CASE_NAME("B%d T%d Tmax%d H%d/%d D%d len%d window%d", (int)B, (int)T, (int)T_max, (int)H, (int)K, (int)D,
              (int)len, (int)s[i][7]);
    case_act3(c, 0, B, T, H * D, 0);
    for (int k = 1; k < 3; k++) {
        case_tensor(c, k, DT_F32, 0, 4, (int64_t[]){ B, T_max, K, D });
        c->act[k] = 1;
    }
    case_randomize(c, case_act3(c, 4, B, T, (H + 2 * K) * D, 0), 2);
    if (len >= 0) {
        case_int1(c, 5, (int32_t)len);
    } else {
        case_ints(c, 5, 1, B, 0, T_max - T + 1);
    }
    c->args.attn_decode.shape = (AttnShape){ .heads    = (int)H,
                                             .kv_heads = (int)K,
                                             .head_dim = (int)D,
                                             .scale    = (float)(1 / sqrt((double)D)),
                                             .window   = (int)s[i][7] };
    return 1;
}

#endif
