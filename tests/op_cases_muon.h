/* Cases of Muon's ops: batches of matrices in a flat range with gaps, more room than matrices, skipped
 * steps; wide, tall and square matrices, one of them zero. */
#ifndef TESTS_OP_CASES_MUON_H
#define TESTS_OP_CASES_MUON_H

#include "op_case.h"

enum { MUON_GAP = 3 };

/* n, matrices, rows, columns */
static const int64_t muon_case[][4] = {
    { 1, 1, 1, 1 }, { 2, 2, 5, 7 }, { 4, 3, 8, 12 }, { 3, 3, 12, 4 }, { 2, 1, 130, 72 }
};

/* The segment table as argument i; returns the elements of the flat range. */
static inline int64_t case_matrices(OpCase *c, int i, const int64_t *s)
{
    int64_t  bytes = s[1] * (int64_t)sizeof(Segment), size = s[2] * s[3], at = 0;
    Segment *seg = case_tensor(c, i, DT_U8, 0, 1, &bytes)->data;
    for (int64_t k = 0; k < s[1]; k++) {
        /* The last one lies before the others: the order is that of the batch, not of the range. */
        int64_t begin = k + 1 == s[1] ? 0 : (k + 1) * (size + MUON_GAP + (s[2] == 8));
        seg[k]        = (Segment){ begin, begin + size, k % 2 ? 0.0f : 0.1f, k % 2 ? 0.5f : 1.0f };
        at            = MAX(at, begin + size);
    }
    return at + MUON_GAP;
}

/* Case i = 4 shape + 2 nesterov + skipped */
static inline int case_momentum(OpCase *c, int i)
{
    if (i >= 4 * ARRAY_LEN(muon_case)) return 0;
    const int64_t *s = muon_case[i / 4];
    CASE_NAME("%d of %d, %dx%d%s%s", (int)s[1], (int)s[0], (int)s[2], (int)s[3], i / 2 % 2 ? " nesterov" : "",
              i % 2 ? " skip" : "");
    case_act3(c, 0, s[0], s[2], s[3], 0);
    int64_t n = case_matrices(c, 4, s);
    case_vec(c, 1, n);
    case_vec(c, 2, n);
    case_state(c, 3)->out.skip = i % 2;
    c->args.momentum.momentum  = 0.95f;
    c->args.momentum.nesterov  = i / 2 % 2;
    return 1;
}

/* Case i = 4 shape + 2 copy + skipped */
static inline int case_muon(OpCase *c, int i)
{
    if (i >= 4 * ARRAY_LEN(muon_case)) return 0;
    const int64_t *s = muon_case[i / 4];
    CASE_NAME("%d of %d, %dx%d%s%s", (int)s[1], (int)s[0], (int)s[2], (int)s[3], i / 2 % 2 ? " copy" : "",
              i % 2 ? " skip" : "");
    int64_t n = case_matrices(c, 4, s);
    case_vec(c, 0, n);
    if (i / 2 % 2) case_tensor(c, 1, i / 4 % 2 ? DT_BF16 : DT_F16, 0, 1, &n);
    case_act3(c, 2, s[0], s[2], s[3], 0);
    case_state(c, 3)->out.skip = i % 2;
    c->args.muon.scale         = 0.7f;
    return 1;
}

static inline int case_ortho(OpCase *c, int i)
{
    static const int64_t s[][3] = { { 1, 1, 1 },   { 2, 5, 7 },   { 3, 8, 8 },   { 2, 24, 10 },
                                    { 2, 16, 40 }, { 1, 64, 64 }, { 3, 72, 136 } };
    if (i >= ARRAY_LEN(s)) return 0;
    CASE_NAME("%d of %dx%d", (int)s[i][0], (int)s[i][1], (int)s[i][2]);
    case_act3(c, 0, s[i][0], s[i][1], s[i][2], 0);
    Tensor *x    = case_act3(c, 2, s[i][0], s[i][1], s[i][2], 0);
    int64_t size = s[i][1] * s[i][2];
    /* Gradients are small numbers of any size; the third matrix is zero. */
    for (int64_t e = 0; e < tensor_numel(x); e++) *case_at(x, e) *= e / size == 2 ? 0.0f : 3e-4f;
    return 1;
}

#endif
