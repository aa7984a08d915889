/* Cases of rows by number, means over rows, position tables, and of elementwise ops that need no other
 * tensors. */
#ifndef TESTS_OP_CASES_ROWS_H
#define TESTS_OP_CASES_ROWS_H

#include "op_case.h"

/* rows, cols, padding of rows; the last ones are large enough to run on several threads */
static const int64_t case_shape[][3] = {
    { 1, 1, 0 },    { 1, 127, 0 },  { 3, 16, 0 },   { 3, 127, 5 },   { 127, 33, 0 },
    { 127, 80, 8 }, { 9, 1030, 2 }, { 777, 96, 0 }, { 301, 131, 3 },
};
#define CASE_SHAPES ((int)(sizeof case_shape / sizeof case_shape[0]))

/* add, mul */
static inline int case_add(OpCase *c, int i)
{
    if (i >= CASE_SHAPES) return 0;
    const int64_t *s = case_shape[i];
    CASE_NAME("%dx%d pad%d", (int)s[0], (int)s[1], (int)s[2]);
    for (int k = 0; k < 3; k++) case_act(c, k, s[0], s[1], s[2]);
    return 1;
}

/* Case i = 3 size + form: 0 plain, 1 skipped, 2 warm-up */
static inline int case_ema(OpCase *c, int i)
{
    static const int64_t size[] = { 1, 127, 40000 };
    if (i >= 9) return 0;
    CASE_NAME("n%d form%d", (int)size[i / 3], i % 3);
    case_vec(c, 0, size[i / 3]);
    case_vec(c, 1, size[i / 3]);
    StepState *s       = case_state(c, 2);
    s->out.skip        = i % 3 == 1;
    s->out.n_update    = 12;
    c->args.ema.decay  = 0.9f;
    c->args.ema.warmup = i % 3 == 2;
    return 1;
}

/* M rows of x, N of y, C, padding. Case i = 5 shape + dtype; the last two dtypes also read a part of a longer
 * index. */
static inline int case_rows_fwd(OpCase *c, int i)
{
    static const int64_t s[][4]  = { { 1, 1, 1, 0 },      { 5, 3, 127, 3 }, { 2, 300, 16, 0 },
                                     { 130, 127, 96, 8 }, { 7, 40, 33, 1 }, { 500, 400, 64, 0 } };
    static const DType   dtype[] = { DT_F32, DT_F32, DT_BF16, DT_I32, DT_U8 };
    if (i >= 5 * (int)(sizeof s / sizeof s[0])) return 0;
    const int64_t *k    = s[i / 5];
    int            part = i % 5 >= 3, parts = part ? 3 : 1;
    CASE_NAME("%d of %d rows of %d pad%d %s%s", (int)k[1], (int)k[0], (int)k[2], (int)k[3],
              dtype_name(dtype[i % 5]), part ? " at" : "");
    if (i % 5 == 0) {
        case_act(c, 0, k[1], k[2], k[3]);
        case_act(c, 1, k[0], k[2], 0);
    } else {
        /* Rows of bytes need padding that is a multiple of the guard's four. */
        case_tensor(c, 0, dtype[i % 5], k[3] * 4, 2, (int64_t[]){ k[1], k[2] });
        Tensor *x = case_tensor(c, 1, dtype[i % 5], k[3] * 4, 2, (int64_t[]){ k[0], k[2] });
        for (int64_t e = 0; e < tensor_numel(x); e++) {
            float v = case_uniform(c, 2); /* its upper bytes: a number in each of these formats */
            memcpy(case_at(x, e), (char *)&v + 4 - dtype_bytes(x->dtype), dtype_bytes(x->dtype));
        }
    }
    case_ints(c, 2, parts, k[1], -1, k[0]);
    if (part) case_int1(c, 3, 2);
    return 1;
}

static inline int case_rows_dx(OpCase *c, int i)
{
    /* M rows of dx, N of dy, C, padding; the third has long sums, the last many rows */
    static const int64_t s[][4] = { { 1, 1, 1, 0 },      { 5, 3, 127, 3 }, { 2, 300, 16, 0 },
                                    { 130, 127, 96, 8 }, { 40, 7, 33, 1 }, { 500, 900, 64, 0 } };
    if (i >= (int)(sizeof s / sizeof s[0])) return 0;
    CASE_NAME("%d to %d rows of %d pad%d", (int)s[i][1], (int)s[i][0], (int)s[i][2], (int)s[i][3]);
    case_act(c, 0, s[i][0], s[i][2], s[i][3]);
    case_act(c, 2, s[i][1], s[i][2], s[i][3]);
    case_ints(c, 3, 1, s[i][1], -1, s[i][0]);
    return 1;
}

/* B, T, C, padding; case i = 2 shape + whether lengths are given */
static inline int case_mean_rows(OpCase *c, int i)
{
    static const int64_t s[][4] = { { 1, 1, 1, 0 }, { 3, 5, 127, 3 }, { 4, 64, 48, 0 }, { 9, 33, 130, 2 } };
    if (i >= 2 * (int)(sizeof s / sizeof s[0])) return 0;
    const int64_t *k = s[i / 2];
    CASE_NAME("B%d T%d C%d pad%d%s", (int)k[0], (int)k[1], (int)k[2], (int)k[3], i % 2 ? " len" : "");
    if (c->kind == OP_MEAN_ROWS_FWD) {
        case_act(c, 0, k[0], k[2], k[3]);
        case_act3(c, 1, k[0], k[1], k[2], k[3]);
    } else {
        case_act3(c, 0, k[0], k[1], k[2], k[3]);
        case_act(c, 1, k[0], k[2], k[3]);
    }
    if (i % 2) *case_int(case_ints(c, 2, 1, k[0], 0, k[1] + 1), 0) = i == 3 ? 0 : 1;
    return 1;
}

static inline int case_add_pos(OpCase *c, int i)
{
    static const int64_t s[][4] = { { 1, 1, 1, 0 }, { 3, 5, 127, 3 }, { 4, 64, 48, 0 }, { 9, 33, 130, 2 } };
    if (i >= (int)(sizeof s / sizeof s[0])) return 0;
    CASE_NAME("B%d T%d C%d pad%d", (int)s[i][0], (int)s[i][1], (int)s[i][2], (int)s[i][3]);
    case_act3(c, 0, s[i][0], s[i][1], s[i][2], s[i][3]);
    case_act3(c, 1, s[i][0], s[i][1], s[i][2], s[i][3]);
    case_act(c, 2, s[i][1] + i % 2, s[i][2], 0);
    return 1;
}

#endif
