/* LayerNorm and RMSNorm, forward and backward, per row of C numbers.
 *
 *   xhat = (x - mean) rstd          mean = 0 for RMSNorm
 *   y    = xhat gamma + beta
 *   g    = dy gamma
 *   dx   = rstd (g - sum(g)/C - xhat sum(g xhat)/C)        without the middle term for RMSNorm
 *   dgamma += sum over rows of dy xhat,  dbeta += sum over rows of dy,  dbias += sum over rows of dx
 *
 * A row is read from memory once: the second and third pass find the row in L1. */
#include "dev/cpu/cpu.h"
#include "dev/cpu/cpu_row.h"
#include "dev/cpu/cpu_vec.h"

#include <math.h>

typedef struct {
    Mat          y, x;
    const float *gamma, *beta;
    float       *mean, *rstd;
    float        eps;
} Fwd;

/* sum (x - mean)^2 */
static float row_square_sum(const float *x, float mean, int64_t n)
{
    vf      s[4] = { 0 }, m = vf_set(mean);
    int64_t i = 0;
    for (; i + 4 * VL <= n; i += 4 * VL) {
        for (int u = 0; u < 4; u++) {
            vf d = vf_load(x + i + u * VL) - m;
            s[u] += d * d;
        }
    }
    for (; i < n; i += VL) {
        vf d = vf_keep(vf_get(x + i, n - i) - m, n - i);
        s[0] += d * d;
    }
    return vf_sum((s[0] + s[1]) + (s[2] + s[3]));
}

static float row_sum(const float *x, int64_t n)
{
    vf      s[4] = { 0 };
    int64_t i    = 0;
    for (; i + 4 * VL <= n; i += 4 * VL) {
        for (int u = 0; u < 4; u++) s[u] += vf_load(x + i + u * VL);
    }
    for (; i < n; i += VL) s[0] += vf_get(x + i, n - i);
    return vf_sum((s[0] + s[1]) + (s[2] + s[3]));
}

static CPU_ONCE void norm_row_fwd(const Fwd *f, int64_t r)
{
    const float *x    = mat_row(f->x, r);
    float       *y    = mat_row(f->y, r);
    int64_t      n    = f->x.cols;
    float        mean = f->mean ? row_sum(x, n) / (float)n : 0.0f;
    float        rstd = 1.0f / sqrtf(row_square_sum(x, mean, n) / (float)n + f->eps);
    if (f->mean) f->mean[r] = mean;
    f->rstd[r] = rstd;
    vf m = vf_set(mean), s = vf_set(rstd);
    for (int64_t i = 0; i < n; i += VL) {
        vf v = (vf_get(x + i, n - i) - m) * s * vf_get(f->gamma + i, n - i);
        if (f->beta) v += vf_get(f->beta + i, n - i);
        vec_ahead(y + i);
        vf_put(y + i, n - i, v);
    }
}

int cpu_norm_fwd(Dev *dev, const NormFwd *a)
{
    Fwd f = { cpu_mat(a->y),    cpu_mat(a->x), cpu_f32(a->gamma), cpu_f32(a->beta), cpu_f32(a->mean),
              cpu_f32(a->rstd), a->eps };
#pragma omp parallel for num_threads(cpu_threads(dev))                                                       \
    schedule(static) if (f.x.rows * f.x.cols >= CPU_PARALLEL_MIN)
    for (int64_t r = 0; r < f.x.rows; r++) norm_row_fwd(&f, r);
    return 0;
}

int cpu_add_norm_fwd(Dev *dev, const AddNormFwd *a)
{
    Mat sum = cpu_mat(a->sum), ma = cpu_mat(a->a), mb = cpu_mat(a->b);
    Fwd f = { cpu_mat(a->y),    sum,   cpu_f32(a->gamma), cpu_f32(a->beta), cpu_f32(a->mean),
              cpu_f32(a->rstd), a->eps };
#pragma omp parallel for num_threads(cpu_threads(dev))                                                       \
    schedule(static) if (sum.rows * sum.cols >= CPU_PARALLEL_MIN)
    for (int64_t r = 0; r < sum.rows; r++) {
        row_add(mat_row(sum, r), mat_row(ma, r), mat_row(mb, r), sum.cols);
        norm_row_fwd(&f, r);
    }
    return 0;
}

/* ---- Backward ------------------------------------------------------------------------------------------ */

typedef struct {
    Mat          dx, dy, x, dres;
    const float *gamma, *mean, *rstd;
} Bwd;

/* dx may be dy. */
static CPU_ONCE void norm_row_dx(const Bwd *w, int64_t r, float *dx)
{
    const float *dy = mat_row(w->dy, r), *x = mat_row(w->x, r), *gamma = w->gamma;
    int64_t      n = w->x.cols;
    vf           m = vf_set(w->mean ? w->mean[r] : 0.0f), s = vf_set(w->rstd[r]);
    vf           sum_g = { 0 }, sum_gx = { 0 };
    for (int64_t i = 0; i < n; i += VL) {
        vf g = vf_get(dy + i, n - i) * vf_get(gamma + i, n - i);
        sum_g += g;
        sum_gx += g * ((vf_get(x + i, n - i) - m) * s);
    }
    vf mean_g  = vf_set(w->mean ? vf_sum(sum_g) / (float)n : 0.0f);
    vf mean_gx = vf_set(vf_sum(sum_gx) / (float)n);
    for (int64_t i = 0; i < n; i += VL) {
        vf g    = vf_get(dy + i, n - i) * vf_get(gamma + i, n - i);
        vf xhat = (vf_get(x + i, n - i) - m) * s;
        vf_put(dx + i, n - i, s * (g - mean_g - xhat * mean_gx));
    }
}

/* sum_b NULL: dgamma alone. */
static CPU_ONCE void norm_row_dw(const Bwd *w, int64_t r, float *sum_g, float *sum_b)
{
    const float *dy = mat_row(w->dy, r), *x = mat_row(w->x, r);
    int64_t      n = w->x.cols;
    vf           m = vf_set(w->mean ? w->mean[r] : 0.0f), s = vf_set(w->rstd[r]);
    for (int64_t i = 0; i < n; i += VL) {
        vf d = vf_get(dy + i, n - i);
        vec_ahead(dy + i);
        vec_ahead(x + i);
        vf_put(sum_g + i, n - i, vf_get(sum_g + i, n - i) + d * ((vf_get(x + i, n - i) - m) * s));
        if (sum_b) vf_put(sum_b + i, n - i, vf_get(sum_b + i, n - i) + d);
    }
}

int cpu_norm_dx(Dev *dev, const NormDx *a)
{
    Bwd w   = { .dx = cpu_mat(a->dx), .dy = cpu_mat(a->dy), .x = cpu_mat(a->x) };
    w.gamma = cpu_f32(a->gamma);
    w.mean  = cpu_f32(a->mean);
    w.rstd  = cpu_f32(a->rstd);
#pragma omp parallel for num_threads(cpu_threads(dev))                                                       \
    schedule(static) if (w.x.rows * w.x.cols >= CPU_PARALLEL_MIN)
    for (int64_t r = 0; r < w.x.rows; r++) norm_row_dx(&w, r, mat_row(w.dx, r));
    return 0;
}

typedef struct {
    Bwd w;
    int want_gamma, want_beta, want_dx, want_bias;
} Chunk;

static void norm_chunk(const void *ctx, int64_t r0, int64_t r1, float *sum, float *tmp)
{
    const Chunk *c = ctx;
    const Bwd   *w = &c->w;
    int64_t      n = w->x.cols;
    for (int64_t r = r0; r < r1; r++) {
        if (c->want_gamma) norm_row_dw(w, r, sum, c->want_beta ? sum + n : NULL);
        if (!c->want_dx) continue;
        float *dx = mat_row(w->dx, r);
        norm_row_dx(w, r, w->dres.p ? tmp : dx);
        if (w->dres.p) row_add_near(dx, mat_row(w->dres, r), tmp, n);
        if (c->want_bias) row_sum_into(sum + 2 * n, dx, n);
    }
}

int cpu_norm_dw(Dev *dev, const NormDw *a)
{
    Chunk c  = { .w          = { .dy = cpu_mat(a->dy), .x = cpu_mat(a->x) },
                 .want_gamma = 1,
                 .want_beta  = a->dbeta != NULL };
    c.w.mean = cpu_f32(a->mean);
    c.w.rstd = cpu_f32(a->rstd);
    Colsum s = { .rows = c.w.x.rows, .cols = c.w.x.cols, .n_out = 2, .chunk = norm_chunk, .ctx = &c };
    s.out[0] = cpu_f32(a->dgamma);
    s.out[1] = cpu_f32(a->dbeta);
    return colsum_run(dev, &s);
}

int cpu_norm_bwd(Dev *dev, const NormBwd *a)
{
    Chunk c = { .w = { cpu_mat(a->dx), cpu_mat(a->dy), cpu_mat(a->x), cpu_mat(a->dres), NULL, NULL, NULL } };
    c.want_gamma = a->dgamma != NULL;
    c.want_beta  = a->dbeta != NULL;
    c.want_dx    = 1;
    c.want_bias  = a->dbias != NULL;
    c.w.gamma    = cpu_f32(a->gamma);
    c.w.mean     = cpu_f32(a->mean);
    c.w.rstd     = cpu_f32(a->rstd);
    Colsum s     = {
            .rows  = c.w.x.rows,
            .cols  = c.w.x.cols,
            .n_out = c.want_bias ? 3 : 2,
            .chunk = norm_chunk,
            .ctx   = &c,
    };
    s.tmp_cols = s.cols;
    s.out[0]   = cpu_f32(a->dgamma);
    s.out[1]   = cpu_f32(a->dbeta);
    s.out[2]   = cpu_f32(a->dbias);
    return colsum_run(dev, &s);
}
