/* Cases of attention: every mask, grouped heads, stored weights, one token at a time (rows of op_cases.h). */
#ifndef TESTS_OP_CASES_ATTN_H
#define TESTS_OP_CASES_ATTN_H

#include "op_case.h"

static inline AttnShape case_attn_shape(const OpCase *c)
{
    int            fwd = c->kind == OP_ATTN_FWD;
    const AttnFwd *f   = &c->args.attn_fwd;
    const AttnBwd *b   = &c->args.attn_bwd;
    const Tensor  *qkv = fwd ? f->qkv : b->qkv, *doc = fwd ? f->doc : b->doc,
                 *prefix = fwd ? f->prefix : b->prefix;
    AttnShape s          = { .B = qkv->dim[0], .T = qkv->dim[1], .W = qkv->dim[2] };
    s.H                  = fwd ? f->heads : b->heads;
    s.K                  = fwd ? f->kv_heads : b->kv_heads;
    s.D                  = fwd ? f->head_dim : b->head_dim;
    s.mask               = fwd ? f->mask : b->mask;
    s.scale              = (double)(fwd ? f->scale : b->scale);
    s.doc                = doc ? doc->data : NULL;
    s.prefix             = prefix ? prefix->data : NULL;
    return s;
}

/* Documents of random lengths: each row names its document's first row. Many rows are a short document and a long one, which
 * tiles of keys at its beginning have to wait for. */
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

static inline int case_attn(OpCase *c, int i)
{
    /* B, T, H, K, D, padding of rows, more of it for rows like o's; every shape with every mask, then all again with stored
     * weights, and the gradient once more for rotated q and k. Lengths of 128s are those that CUDA has fast kernels for. In the
     * last one the CPU's products of dout, whose rows are far apart, pack more than those of qkv. */
    static const int64_t s[][7] = {
        { 2, 1, 1, 1, 1, 0, 0 },     { 1, 127, 2, 2, 64, 0, 0 },  { 2, 65, 14, 2, 64, 0, 0 },
        { 1, 127, 4, 2, 80, 0, 0 },  { 1, 70, 3, 1, 128, 4, 0 },  { 2, 33, 3, 3, 1, 0, 0 },
        { 1, 40, 2, 1, 7, 3, 0 },    { 1, 200, 2, 1, 16, 0, 0 },  { 3, 64, 2, 2, 32, 0, 0 },
        { 1, 128, 2, 1, 128, 0, 0 }, { 2, 128, 3, 1, 64, 8, 8 },  { 1, 384, 2, 2, 64, 0, 0 },
        { 1, 768, 2, 1, 64, 0, 0 },  { 1, 512, 1, 1, 128, 0, 0 }, { 2, 61, 2, 1, 100, 0, 600 }
    };
    int n = (int)(sizeof s / sizeof s[0]) * MASK_COUNT, stored = i / n == 1;
    int fwd = c->kind == OP_ATTN_FWD, at = fwd ? 5 : 6;
    if (i >= (fwd ? 2 : 3) * n) return 0;
    const int64_t *k = s[i % n / MASK_COUNT];
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
    Tensor *p = stored ? case_act4(c, fwd ? 2 : 8, B, H, T, T) : NULL;
    if (fwd) {
        case_act3(c, 0, B, T, H * D, far);
        case_tensor(c, 1, DT_F32, 0, 3, (int64_t[]){ B, H, T });
        case_randomize(c, case_act3(c, 4, B, T, W, pad), 2);
        AttnFwd *a  = &c->args.attn_fwd;
        a->heads    = (int)H;
        a->kv_heads = (int)K;
        a->head_dim = (int)D;
        a->mask     = mask;
        a->scale    = scale;
        return 1;
    }
    case_act3(c, 0, B, T, W, pad);
    case_act3(c, 2, B, T, H * D, far);
    Tensor *o   = case_act3(c, 3, B, T, H * D, 0),
           *lse = case_tensor(c, 4, DT_F32, 0, 3, (int64_t[]){ B, H, T });
    Tensor *qkv = case_act3(c, 5, B, T, W, pad);
    case_randomize(c, qkv, 2);
    if (turned) case_rotations(c, 9, T + 3, D);
    AttnBwd *a      = &c->args.attn_bwd;
    a->heads        = (int)H;
    a->kv_heads     = (int)K;
    a->head_dim     = (int)D;
    a->mask         = mask;
    a->scale        = scale;
    AttnShape shape = case_attn_shape(c);
    double   *v = case_doubles(qkv), *od = dbl_new(B * T * H * D), *ld = dbl_new(B * H * T);
    math_attn(od, ld, &shape, v);
    if (p) {
        double *w = dbl_new(B * H * T * T);
        math_attn_weights(w, &shape, v);
        case_from_doubles(p, w);
        free(w);
    }
    case_from_doubles(o, od);
    case_from_doubles(lse, ld);
    free(v);
    free(od);
    free(ld);
    return 1;
}

static inline int case_decode(OpCase *c, int i)
{
    /* B, T_max, H, K, D, len */
    static const int64_t s[][6] = { { 1, 1, 1, 1, 1, 0 },
                                    { 2, 9, 3, 1, 7, 0 },
                                    { 1, 127, 14, 2, 64, 126 },
                                    { 3, 40, 4, 2, 80, 17 },
                                    { 2, 33, 2, 2, 128, 31 } };
    if (i >= (int)(sizeof s / sizeof s[0])) return 0;
    int64_t B = s[i][0], T = s[i][1], H = s[i][2], K = s[i][3], D = s[i][4];
    CASE_NAME("B%d Tmax%d H%d/%d D%d len%d", (int)B, (int)T, (int)H, (int)K, (int)D, (int)s[i][5]);
    case_act(c, 0, B, H * D, 0);
    for (int k = 1; k < 3; k++) {
        case_tensor(c, k, DT_F32, 0, 4, (int64_t[]){ B, T, K, D });
        c->act[k] = 1;
    }
    case_randomize(c, case_act(c, 3, B, (H + 2 * K) * D, 0), 2);
    case_int1(c, 4, (int32_t)s[i][5]);
    AttnDecode *a = &c->args.attn_decode;
    a->heads      = (int)H;
    a->kv_heads   = (int)K;
    a->head_dim   = (int)D;
    a->scale      = (float)(1 / sqrt((double)D));
    return 1;
}

#endif
