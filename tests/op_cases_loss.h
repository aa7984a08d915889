/* Cases of losses over rows. */
#ifndef TESTS_OP_CASES_LOSS_H
#define TESTS_OP_CASES_LOSS_H

#include "op_case.h"

/* Case i = 4 shape + form (xent has the first alone): 1 smooth, 2 two targets, 3 both and hits */
static inline int case_xent(OpCase *c, int i)
{
    /* rows, classes, columns, padding */
    static const int64_t s[][4] = { { 1, 1, 1, 0 },      { 3, 5, 8, 3 },        { 127, 127, 127, 0 },
                                    { 64, 256, 256, 0 }, { 70, 1000, 1024, 0 }, { 9, 50, 64, 1 } };
    int                  forms  = c->kind == OP_XENT ? 1 : 4;
    if (i >= forms * (int)(sizeof s / sizeof s[0])) return 0;
    const int64_t *k    = s[i / forms];
    int            form = i % forms;
    int64_t        N = k[0], n_class = k[1], V = k[2], pad = k[3];
    float          smooth = form % 2 ? 0.1f : 0;
    CASE_NAME("N%d classes%d cols%d pad%d form%d", (int)N, (int)n_class, (int)V, (int)pad, form);
    Tensor *logits, *lse = NULL, *lambda = NULL;
    if (c->kind == OP_XENT_FWD) {
        case_vec(c, 0, N);
        case_vec(c, 1, N);
        if (form == 3) {
            Tensor *hits = case_vec(c, 2, 2); /* counts: whole numbers */
            for (int64_t e = 0; e < 2; e++) *case_at(hits, e) = (float)case_pick(c, 100);
        }
        logits = case_act(c, 3, N, V, pad);
        case_ints(c, 4, 1, N, -1, n_class);
        if (form >= 2) case_ints(c, 5, 1, N, 0, n_class);
        if (form >= 2) lambda = case_vec(c, 6, N);
        c->args.xent_fwd.n_class = n_class;
        c->args.xent_fwd.smooth  = smooth;
    } else if (c->kind == OP_XENT_DX) {
        case_act(c, 0, N, V, pad);
        logits = case_act(c, 1, N, V, pad);
        lse    = case_vec(c, 2, N);
        case_ints(c, 3, 1, N, -1, n_class);
        if (form >= 2) case_ints(c, 4, 1, N, 0, n_class);
        if (form >= 2) lambda = case_vec(c, 5, N);
        case_state(c, 6);
        c->args.xent_dx.n_class = n_class;
        c->args.xent_dx.smooth  = smooth;
        c->args.xent_dx.slot    = i % 3;
    } else {
        case_vec(c, 0, N);
        case_act(c, 1, N, V, pad);
        logits = case_act(c, 2, N, V, pad);
        case_ints(c, 3, 1, N, -1, n_class);
        case_state(c, 4);
        c->args.xent.n_class = n_class;
        c->args.xent.slot    = i % 3;
    }
    case_randomize(c, logits, i / forms % 2 ? 3 : 20);
    for (int64_t r = 0; r < N && lambda; r++) *case_at(lambda, r) = fabsf(*case_at(lambda, r));
    double *v = case_doubles(logits);
    for (int64_t r = 0; r < N && lse; r++) *case_at(lse, r) = (float)math_lse(v + r * V, n_class);
    free(v);
    return 1;
}

/* Draws x again until a difference quotient meets no kink: the border of the clipping, and equal errors of
 * both forms. */
static inline void case_avoid_kinks(OpCase *c, const Tensor *x, const Tensor *target, const Tensor *old,
                                    float clip)
{
    for (int64_t k = 0; k < tensor_numel(x); k++) {
        float o = *case_at(old, k), t = *case_at(target, k);
        for (;;) {
            float v = *case_at(x, k), moved = fminf(fmaxf(v - o, -clip), clip) + o;
            if (fabsf(fabsf(v - o) - clip) > 0.02f && fabsf(v + moved - 2 * t) > 0.02f) break;
            *case_at(x, k) = case_uniform(c, 1);
        }
    }
}

/* Case i = 2 shape + clipping */
static inline int case_mse(OpCase *c, int i)
{
    static const int64_t s[][3] = {
        { 1, 1, 0 }, { 300, 1, 0 }, { 3, 127, 5 }, { 127, 33, 0 }, { 40, 500, 4 }
    };
    if (i >= 2 * (int)(sizeof s / sizeof s[0])) return 0;
    const int64_t *k = s[i / 2];
    CASE_NAME("%dx%d pad%d%s", (int)k[0], (int)k[1], (int)k[2], i % 2 ? " clip" : "");
    Tensor *old = NULL;
    if (c->kind == OP_MSE_FWD) {
        case_vec(c, 0, k[0]);
    } else {
        case_act(c, 0, k[0], k[1], k[2]);
        case_state(c, 5);
        c->args.mse_dx.slot = i % 3;
    }
    Tensor *x = case_act(c, 1, k[0], k[1], k[2]), *target = case_f32(c, 2, k[0], k[1], k[2]);
    if (i % 2) {
        old                            = case_f32(c, 3, k[0], k[1], 0);
        *case_at(case_vec(c, 4, 1), 0) = 0.2f;
        case_avoid_kinks(c, x, target, old, 0.2f);
    }
    return 1;
}

/* Case i = 2 shape + whether there are targets */
static inline int case_kl(OpCase *c, int i)
{
    /* rows, classes, columns, padding; 100 tau */
    static const int64_t s[][5] = { { 1, 1, 1, 0, 100 },
                                    { 3, 5, 8, 3, 200 },
                                    { 127, 127, 127, 0, 100 },
                                    { 70, 1000, 1024, 0, 150 },
                                    { 9, 50, 64, 1, 50 } };
    if (i >= 2 * (int)(sizeof s / sizeof s[0])) return 0;
    const int64_t *k = s[i / 2];
    int64_t        N = k[0], n_class = k[1], V = k[2], pad = k[3];
    float          tau = (float)k[4] / 100;
    CASE_NAME("N%d classes%d cols%d pad%d tau%g%s", (int)N, (int)n_class, (int)V, (int)pad, (double)tau,
              i % 2 ? " targets" : "");
    int     fwd    = c->kind == OP_KL_FWD;
    Tensor *logits = NULL, *teacher = NULL, *lse[2] = { NULL, NULL };
    if (fwd) {
        for (int j = 0; j < 3; j++) case_vec(c, j, N);
        c->args.kl_fwd.n_class = n_class;
        c->args.kl_fwd.tau     = tau;
    } else {
        case_act(c, 0, N, V, pad);
        lse[0] = case_vec(c, 3, N);
        lse[1] = case_vec(c, 4, N);
        case_state(c, 6);
        c->args.kl_dx.n_class = n_class;
        c->args.kl_dx.tau     = tau;
        c->args.kl_dx.slot    = i % 3;
    }
    logits  = case_act(c, fwd ? 3 : 1, N, V, pad);
    teacher = case_act(c, fwd ? 4 : 2, N, V, 0);
    if (i % 2) case_ints(c, 5, 1, N, -1, n_class);
    case_randomize(c, logits, 4);
    case_randomize(c, teacher, 4);
    double *v = dbl_new(n_class);
    for (int64_t r = 0; r < 2 * N && lse[0]; r++) {
        const Tensor *from = r < N ? logits : teacher;
        for (int64_t j = 0; j < n_class; j++) v[j] = *case_at(from, r % N * V + j) / (double)tau;
        *case_at(lse[r / N], r % N) = (float)math_lse(v, n_class);
    }
    free(v);
    return 1;
}

/* Rows, classes, columns, ids, padding; 100 tau. The last has every class. Every fifth id is -1. */
static inline int case_kl_teacher(OpCase *c, int i)
{
    static const int64_t s[][6] = { { 1, 1, 1, 1, 0, 100 },
                                    { 5, 120, 127, 3, 3, 200 },
                                    { 3, 20011, 20024, 64, 0, 150 },
                                    { 40, 96, 96, 18, 5, 50 },
                                    { 2, 260, 264, 260, 0, 200 } };
    if (i >= (int)(sizeof s / sizeof s[0])) return 0;
    int64_t N = s[i][0], n_class = s[i][1], V = s[i][2], K = s[i][3], pad = s[i][4], per = n_class / K;
    c->args.kl_teacher.n_class = n_class;
    c->args.kl_teacher.tau     = (float)s[i][5] / 100;
    CASE_NAME("%d of %d in %d rows pad%d", (int)K, (int)n_class, (int)N, (int)pad);
    case_f32(c, 0, N, V, pad);
    case_randomize(c, case_act(c, 1, N, V, pad), 6);
    case_randomize(c, case_f32(c, 2, N, K, pad), 6);
    Tensor *id = case_tensor(c, 3, DT_I32, pad, 2, (int64_t[]){ N, K });
    for (int64_t e = 0; e < N * K; e++) {
        int none         = e % 5 == 4 && per > 1;
        *case_int(id, e) = none ? -1 : (int32_t)(e % K * per + case_pick(c, per));
    }
    case_randomize(c, case_vec(c, 4, N), 3);
    return 1;
}

#endif
