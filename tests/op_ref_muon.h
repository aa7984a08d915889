/* Muon in double.
 *
 * Tolerance of ORTHO. Every number that is stored on the way (X, A, B) is rounded, and five steps make such
 * errors grow by as much as the matrix asks for. So the growth is measured: the reference runs once more with
 * every stored number multiplied by 1 + noise*u, u uniform in [-1, 1). For f32 noise is 2 sqrt(k) U, the
 * rounding of a sum of k terms, and four times the largest difference is allowed. For bf16 noise is 2^-9, and
 * test_gpu_ops.c allows twice the largest difference in norm of REF_DRAWS runs: in a matrix of a few numbers
 * nothing averages out. */
#ifndef TESTS_OP_REF_MUON_H
#define TESTS_OP_REF_MUON_H

#include "op_ref_base.h"

#include "base/rng.h"

static inline int64_t ref_n_segment(const Tensor *seg)
{
    return (int64_t)(tensor_bytes(seg) / sizeof(Segment));
}

static inline void ref_momentum(const OpCase *c, OpRef *r)
{
    const Momentum  *a   = &c->args.momentum;
    const StepState *s   = a->state->data;
    const Segment   *seg = a->seg->data;
    int64_t          n   = a->x->dim[1] * a->x->dim[2];
    double           mu = (double)a->momentum, rest = 1 - mu;
    for (int64_t i = 0; i < tensor_numel(a->x); i++) ref_put(r, 0, i, 0, 0);
    for (int64_t i = 0; i < tensor_numel(a->m); i++) {
        ref_put(r, 1, i, *case_at(a->m, i), 0);
        ref_put(r, 2, i, *case_at(a->grad, i), 0);
    }
    for (int64_t k = 0; k < ref_n_segment(a->seg); k++) {
        for (int64_t i = 0; i < n; i++) {
            int64_t at = seg[k].begin + i;
            double  g = *case_at(a->grad, at) * (double)s->out.clip, m = *case_at(a->m, at);
            double  m1 = mu * m + rest * g, u = a->nesterov ? mu * m1 + rest * g : m1;
            ref_put(r, 2, at, 0, 0);
            if (s->out.skip) continue;
            ref_put(r, 0, k * n + i, u, fabs(m) + 20 * fabs(g)); /* 1 - momentum is exact to 20 U of itself */
            ref_put(r, 1, at, m1, fabs(m) + 20 * fabs(g));
        }
    }
}

static inline void ref_muon(const OpCase *c, OpRef *r)
{
    const Muon      *a   = &c->args.muon;
    const StepState *s   = a->state->data;
    const Segment   *seg = a->seg->data;
    int64_t          n   = a->y->dim[1] * a->y->dim[2];
    for (int64_t i = 0; i < tensor_numel(a->master); i++) ref_put(r, 0, i, *case_at(a->master, i), 0);
    for (int64_t k = 0; k < ref_n_segment(a->seg) && !s->out.skip; k++) {
        for (int64_t i = 0; i < n; i++) {
            double w  = *case_at(a->master, seg[k].begin + i),
                   u  = (double)a->scale * *case_at(a->y, k * n + i);
            double lr = (double)s->in.lr * (double)seg[k].lr_mul;
            ref_put(r, 0, seg[k].begin + i, w - lr * (u + (double)seg[k].decay * w),
                    fabs(w) + 4 * lr * (fabs(u) + fabs(w)));
        }
    }
}

enum { REF_DRAWS = 16 };

/* ---- ORTHO --------------------------------------------------------------------------------------------- */

typedef struct {
    int64_t  R, C;
    double   noise;
    uint32_t seed;
    uint64_t n_draw;
} RefOrtho;

static inline double ref_noisy(RefOrtho *o, double v)
{
    uint32_t w[4];
    if (o->noise == 0) return v;
    rng_philox(w, o->seed, 79, 0, o->n_draw++);
    return v * (1 + o->noise * (double)(2 * rng_uniform(w[0]) - 1));
}

/* X of R x C to the next X. The Gram matrix is always X X^T here: a tall one is turned first. */
static inline void ref_ortho_step(RefOrtho *o, double *X, const double coef[3])
{
    int64_t R = o->R, C = o->C;
    double *A = dbl_new(R * R), *B = dbl_new(R * R), *Y = dbl_new(R * C);
    math_product(A, (Strided){ X, C, 1 }, (Strided){ X, 1, C }, R, R, C);
    for (int64_t i = 0; i < R * R; i++) A[i] = ref_noisy(o, A[i]);
    math_product(B, (Strided){ A, R, 1 }, (Strided){ A, R, 1 }, R, R, R);
    for (int64_t i = 0; i < R * R; i++) B[i] = ref_noisy(o, coef[1] * A[i] + coef[2] * B[i]);
    math_product(Y, (Strided){ B, R, 1 }, (Strided){ X, C, 1 }, R, C, R);
    for (int64_t i = 0; i < R * C; i++) X[i] = ref_noisy(o, coef[0] * X[i] + Y[i]);
    free(A);
    free(B);
    free(Y);
}

/* All matrices of the case into out. */
static inline void ref_ortho_all(const OpCase *c, double noise, uint32_t seed, double *out)
{
    /* Polar Express, as its authors print it; all steps but the last of its table leave a margin of 1 %. */
    static const double coef[5][3] = { { 8.28721201814563, -23.595886519098837, 17.300387312530933 },
                                       { 4.107059111542203, -2.9478499167379106, 0.5448431082926601 },
                                       { 3.9486908534822946, -2.908902115962949, 0.5518191394370137 },
                                       { 3.3184196573706015, -2.488488024314874, 0.51004894012372 },
                                       { 2.300652019954817, -1.6689039845747493, 0.4188073119525673 } };
    const Tensor       *x          = c->args.ortho.x;
    int64_t             R = x->dim[1], C = x->dim[2], tall = R > C;
    RefOrtho            o = { .R = MIN(R, C), .C = MAX(R, C), .noise = noise, .seed = seed };
    double             *X = dbl_new(R * C);
    for (int64_t k = 0; k < x->dim[0]; k++) {
        double sum = 0;
        for (int64_t i = 0; i < R * C; i++) sum += pow(*case_at(x, k * R * C + i), 2);
        for (int64_t i = 0; i < R * C; i++) {
            double v                        = *case_at(x, k * R * C + i) / (1.01 * sqrt(sum) + 1e-20);
            X[tall ? i % C * R + i / C : i] = ref_noisy(&o, v);
        }
        for (int i = 0; i < 5; i++) {
            double s[3] = { coef[i][0] / 1.01, coef[i][1] / pow(1.01, 3), coef[i][2] / pow(1.01, 5) };
            ref_ortho_step(&o, X, s);
        }
        for (int64_t i = 0; i < R * C; i++) out[k * R * C + i] = X[tall ? i % C * R + i / C : i];
    }
    free(X);
}

/* What rounding every stored number to bf16 costs, as the square of a norm. */
static inline double ref_ortho_price(const OpCase *c, const OpRef *r)
{
    int64_t n   = tensor_numel(c->args.ortho.x);
    double *bad = dbl_new(n), most = 0;
    for (uint32_t draw = 0; draw < REF_DRAWS; draw++) {
        double sum = 0;
        ref_ortho_all(c, 0x1p-9, draw, bad);
        for (int64_t i = 0; i < n; i++) sum += pow(bad[i] - r->want[0][i], 2);
        most = MAX(most, sum);
    }
    free(bad);
    return most;
}

static inline void ref_ortho(const OpCase *c, OpRef *r)
{
    const Tensor *x = c->args.ortho.x;
    int64_t       n = tensor_numel(x), size = x->dim[1] * x->dim[2];
    double       *bad = dbl_new(n), *want = dbl_new(n);
    ref_ortho_all(c, 2 * sqrt((double)MAX(x->dim[1], x->dim[2])) * 0x1p-24, 1, bad);
    ref_ortho_all(c, 0, 0, want);
    for (int64_t k = 0; k < x->dim[0]; k++) {
        double most = 0;
        for (int64_t i = k * size; i < (k + 1) * size; i++) most = MAX(most, fabs(bad[i] - want[i]));
        for (int64_t i = k * size; i < (k + 1) * size; i++) ref_put(r, 0, i, want[i], most * 0x1p24);
    }
    free(bad);
    free(want);
}

#endif
