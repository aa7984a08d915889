/* Muon: momentum, Newton-Schulz steps and the update, over batches of matrices of one shape.
 *
 * 1. Matrices run one after the other, each product on all threads: bits do not depend on their number.
 * 2. Scratch of ORTHO: what a product needs comes first, because cpu_gemm() asks for the same range. Behind
 *    it are A, A A and one matrix. */
#include "dev/cpu/cpu_optim.h"

#include "base/err.h"
#include "dev/cpu/cpu.h"
#include "dev/cpu/cpu_gemm.h"
#include "dev/op_math.h"
#include "tensor/number.h"

#include <math.h>
#include <string.h>

static int64_t n_segment(const Tensor *seg) { return (int64_t)(tensor_bytes(seg) / sizeof(Segment)); }

/* ---- momentum and update ------------------------------------------------------------------------------- */

static void check_segment(const Segment *s, const Tensor *x, int64_t n_flat)
{
    int64_t n = x->dim[1] * x->dim[2];
    CHECK(s->end - s->begin == n && s->begin >= 0 && s->end <= n_flat,
          "a segment of %lld for matrices of %lld", (long long)(s->end - s->begin), (long long)n);
}

int cpu_momentum(Dev *dev, const Momentum *a)
{
    const StepState *st  = a->state->data;
    const Segment   *seg = a->seg->data;
    float           *x = cpu_f32(a->x), *m = cpu_f32(a->m), *grad = cpu_f32(a->grad);
    float            mu = a->momentum, rest = 1.0f - mu, clip = st->out.clip;
    int64_t          n = a->x->dim[1] * a->x->dim[2], n_seg = n_segment(a->seg);
    for (int64_t s = 0; s < a->x->dim[0]; s++) {
        float *out = x + s * n;
        if (s < n_seg) check_segment(&seg[s], a->x, tensor_numel(a->m));
        if (s >= n_seg || st->out.skip) memset(out, 0, sizeof *out * (size_t)n);
        if (s >= n_seg) continue;
        float *ms = m + seg[s].begin, *gs = grad + seg[s].begin;
#pragma omp parallel for num_threads(cpu_threads(dev)) schedule(static) if (n >= CPU_PARALLEL_MIN)
        for (int64_t i = 0; i < n; i++) {
            if (!st->out.skip) {
                float g = gs[i] * clip;
                ms[i]   = mu * ms[i] + rest * g;
                out[i]  = a->nesterov ? mu * ms[i] + rest * g : ms[i];
            }
            gs[i] = 0.0f;
        }
    }
    return 0;
}

int cpu_muon(Dev *dev, const Muon *a)
{
    const StepState *st  = a->state->data;
    const Segment   *seg = a->seg->data;
    float           *w = cpu_f32(a->master), *y = cpu_f32(a->y);
    uint16_t        *copy    = a->copy ? a->copy->data : NULL;
    int64_t          n       = a->y->dim[1] * a->y->dim[2];
    int              is_half = a->copy && a->copy->dtype == DT_F16;
    CHECK(!a->copy || is_half || a->copy->dtype == DT_BF16, "%s is %s, a copy is bf16 or f16", a->copy->name,
          dtype_name(a->copy->dtype));
    if (st->out.skip) return 0;
    for (int64_t s = 0; s < n_segment(a->seg); s++) {
        check_segment(&seg[s], a->y, tensor_numel(a->master));
        float        lr = st->in.lr * seg[s].lr_mul, decay = seg[s].decay, *ws = w + seg[s].begin;
        const float *ys = y + s * n;
#pragma omp parallel for num_threads(cpu_threads(dev)) schedule(static) if (n >= CPU_PARALLEL_MIN)
        for (int64_t i = 0; i < n; i++) {
            ws[i] = ws[i] - lr * (a->scale * ys[i] + decay * ws[i]);
            if (copy) copy[seg[s].begin + i] = is_half ? f16_from_f32(ws[i]) : bf16_from_f32(ws[i]);
        }
    }
    return 0;
}

/* ---- Newton-Schulz ------------------------------------------------------------------------------------- */

/* One matrix of R x C. */
typedef struct {
    Dev    *dev;
    int64_t R, C, side;
    float  *A, *AA;
} Matrix;

/* A = X X^T, or X^T X of a tall matrix. */
static Gemm gram_of(const Matrix *m, const float *X)
{
    int tall = m->R > m->C;
    return (Gemm){ .m     = m->side,
                   .n     = m->side,
                   .k     = tall ? m->R : m->C,
                   .a     = X,
                   .a_row = tall ? 1 : m->C,
                   .a_col = tall ? m->C : 1,
                   .b     = X,
                   .b_row = tall ? m->C : 1,
                   .b_col = tall ? 1 : m->C,
                   .c     = m->A,
                   .c_row = m->side };
}

static Gemm square_of(const Matrix *m)
{
    return (Gemm){ .m     = m->side,
                   .n     = m->side,
                   .k     = m->side,
                   .a     = m->A,
                   .a_row = m->side,
                   .a_col = 1,
                   .b     = m->A,
                   .b_row = m->side,
                   .b_col = 1,
                   .c     = m->AA,
                   .c_row = m->side };
}

/* out += B X, or X B of a tall matrix; B is where A A was. */
static Gemm step_of(const Matrix *m, const float *X, float *out)
{
    int tall = m->R > m->C;
    return (Gemm){ .m          = m->R,
                   .n          = m->C,
                   .k          = m->side,
                   .a          = tall ? X : m->AA,
                   .a_row      = m->side,
                   .a_col      = 1,
                   .b          = tall ? m->AA : X,
                   .b_row      = m->C,
                   .b_col      = 1,
                   .c          = out,
                   .c_row      = m->C,
                   .accumulate = 1 };
}

static int take_step(const Matrix *m, const float *X, float *out, OrthoStep s)
{
    Gemm    gram = gram_of(m, X), square = square_of(m), last = step_of(m, X, out);
    int64_t n = m->R * m->C, n_square = m->side * m->side;
    TRY(cpu_gemm(m->dev, &gram));
    TRY(cpu_gemm(m->dev, &square));
    for (int64_t i = 0; i < n_square; i++) m->AA[i] = s.b * m->A[i] + s.c * m->AA[i];
    for (int64_t i = 0; i < n; i++) out[i] = s.a * X[i];
    return cpu_gemm(m->dev, &last);
}

static size_t gemm_scratch(const Matrix *m)
{
    Gemm   gram = gram_of(m, NULL), square = square_of(m), last = step_of(m, NULL, NULL);
    size_t most = MAX(cpu_gemm_scratch(&gram), cpu_gemm_scratch(&square));
    return tensor_align_up(MAX(most, cpu_gemm_scratch(&last)));
}

static Matrix matrix_of(Dev *dev, const Tensor *x)
{
    return (Matrix){ .dev = dev, .R = x->dim[1], .C = x->dim[2], .side = MIN(x->dim[1], x->dim[2]) };
}

size_t cpu_ortho_scratch(const Tensor *x)
{
    Matrix m = matrix_of(NULL, x);
    return gemm_scratch(&m) + sizeof(float) * (size_t)(2 * m.side * m.side + m.R * m.C);
}

int cpu_ortho(Dev *dev, const Ortho *a)
{
    Matrix  m = matrix_of(dev, a->x);
    float  *x = cpu_f32(a->x), *y = cpu_f32(a->y);
    int64_t n   = m.R * m.C;
    char   *own = cpu_scratch(dev, cpu_ortho_scratch(a->x));
    if (!own) return -1;
    m.A        = (float *)(own + gemm_scratch(&m));
    m.AA       = m.A + m.side * m.side;
    float *buf = m.AA + m.side * m.side;
    for (int64_t k = 0; k < a->x->dim[0]; k++) {
        float *at[2] = { y + k * n, buf }, *from = at[ORTHO_STEPS % 2]; /* the last step writes y */
        double sum = 0;
        for (int64_t i = 0; i < n; i++) sum += (double)x[k * n + i] * (double)x[k * n + i];
        float inv = 1.0f / (ORTHO_MARGIN * (float)sqrt(sum) + ORTHO_EPS);
        for (int64_t i = 0; i < n; i++) from[i] = x[k * n + i] * inv;
        for (int i = 0; i < ORTHO_STEPS; i++) {
            int which = (ORTHO_STEPS - i) % 2;
            TRY(take_step(&m, at[which], at[1 - which], ortho_step(i)));
        }
    }
    return 0;
}
