/* What happens to packed query and key heads before attention: rotary embedding and RMS norm per head.
 *
 * A packed row is [q heads | k heads | v heads], D floats a head. */
#include "base/err.h"
#include "dev/cpu/cpu.h"
#include "dev/cpu/cpu_row.h"
#include "dev/cpu/cpu_vec.h"

#include <math.h>
#include <string.h>

/* Halves of one head by the angle whose cosines and sines are in cs[D]; sign -1 rotates back. y may be x. */
static void rotate_head(float *y, const float *x, const float *cs, int64_t D, float sign)
{
    int64_t half = D / 2;
    for (int64_t i = 0; i < half; i += VL) {
        vf c = vf_get(cs + i, half - i), s = vf_get(cs + half + i, half - i) * sign;
        vf a = vf_get(x + i, half - i), b = vf_get(x + half + i, half - i);
        vf_put(y + i, half - i, a * c - b * s);
        vf_put(y + half + i, half - i, b * c + a * s);
    }
}

int cpu_rope(Dev *dev, const Rope *a)
{
    Mat     y = cpu_mat(a->y), x = cpu_mat(a->x), table = cpu_mat(a->table);
    int64_t T = a->x->dim[1], D = a->head_dim, used = a->n_head * D;
    float   sign = a->inverse ? -1.0f : 1.0f;
    for (int64_t b = 0; b < x.rows / T; b++) {
        int64_t pos0 = cpu_start(a->pos0, b);
        CHECK(pos0 >= 0 && pos0 + T <= table.rows, "position %lld of a table of %lld",
              (long long)(pos0 + T - 1), (long long)table.rows);
    }
#pragma omp parallel for num_threads(cpu_threads(dev))                                                       \
    schedule(static) if (x.rows * x.cols >= CPU_PARALLEL_MIN)
    for (int64_t r = 0; r < x.rows; r++) {
        float       *yr = mat_row(y, r);
        const float *xr = mat_row(x, r), *cs = mat_row(table, cpu_start(a->pos0, r / T) + r % T);
        for (int64_t at = 0; at < used; at += D) rotate_head(yr + at, xr + at, cs, D, sign);
        if (yr != xr) memcpy(yr + used, xr + used, (size_t)(x.cols - used) * sizeof(float));
    }
    return 0;
}

/* ---- Norm of query and key heads: y = x rstd gamma ----------------------------------------------------- */

static float row_dot(const float *x, const float *y, int64_t n)
{
    vf s = { 0 };
    for (int64_t i = 0; i < n; i += VL) s += vf_get(x + i, n - i) * vf_get(y + i, n - i);
    return vf_sum(s);
}

int cpu_qknorm_fwd(Dev *dev, const QkNormFwd *a)
{
    Mat          y = cpu_mat(a->y), x = cpu_mat(a->x);
    float       *rstd = cpu_f32(a->rstd);
    const float *gq = cpu_f32(a->gq), *gk = cpu_f32(a->gk);
    int64_t      D = a->head_dim, n_head = a->heads + a->kv_heads, used = n_head * D;
#pragma omp parallel for num_threads(cpu_threads(dev))                                                       \
    schedule(static) if (x.rows * x.cols >= CPU_PARALLEL_MIN)
    for (int64_t r = 0; r < x.rows; r++) {
        for (int64_t h = 0; h < n_head; h++) {
            const float *xh = mat_row(x, r) + h * D, *g = h < a->heads ? gq : gk;
            float       *yh      = mat_row(y, r) + h * D;
            float        s       = 1.0f / sqrtf(row_dot(xh, xh, D) / (float)D + a->eps);
            rstd[r * n_head + h] = s;
            for (int64_t i = 0; i < D; i += VL) {
                vf_put(yh + i, D - i, vf_get(xh + i, D - i) * s * vf_get(g + i, D - i));
            }
        }
        if (y.p != x.p)
            memcpy(mat_row(y, r) + used, mat_row(x, r) + used, (size_t)(x.cols - used) * sizeof(float));
    }
    return 0;
}

/* dx = rstd (g - xhat sum(g xhat)/D), g = dy gamma, xhat = x rstd. dx may be dy. */
static void head_dx(float *dx, const float *dy, const float *x, const float *gamma, int64_t D, float rstd)
{
    vf sum = { 0 };
    for (int64_t i = 0; i < D; i += VL) {
        sum += vf_get(dy + i, D - i) * vf_get(gamma + i, D - i) * (vf_get(x + i, D - i) * rstd);
    }
    float mean = vf_sum(sum) / (float)D;
    for (int64_t i = 0; i < D; i += VL) {
        vf g = vf_get(dy + i, D - i) * vf_get(gamma + i, D - i);
        vf_put(dx + i, D - i, rstd * (g - vf_get(x + i, D - i) * rstd * mean));
    }
}

int cpu_qknorm_dx(Dev *dev, const QkNormDx *a)
{
    Mat          dx = cpu_mat(a->dx), dy = cpu_mat(a->dy), x = cpu_mat(a->x);
    const float *gq = cpu_f32(a->gq), *gk = cpu_f32(a->gk), *rstd = cpu_f32(a->rstd);
    int64_t      D = a->head_dim, n_head = a->heads + a->kv_heads, used = n_head * D;
#pragma omp parallel for num_threads(cpu_threads(dev))                                                       \
    schedule(static) if (x.rows * x.cols >= CPU_PARALLEL_MIN)
    for (int64_t r = 0; r < x.rows; r++) {
        float       *out = mat_row(dx, r);
        const float *dyr = mat_row(dy, r), *xr = mat_row(x, r);
        for (int64_t h = 0; h < n_head; h++) {
            head_dx(out + h * D, dyr + h * D, xr + h * D, h < a->heads ? gq : gk, D, rstd[r * n_head + h]);
        }
        if (out != dyr) memcpy(out + used, dyr + used, (size_t)(x.cols - used) * sizeof(float));
    }
    return 0;
}

typedef struct {
    Mat          dy, x;
    const float *rstd;
    int64_t      heads, kv_heads, D;
} QkChunk;

static void qk_chunk(const void *ctx, int64_t r0, int64_t r1, float *sum, float *tmp)
{
    const QkChunk *c      = ctx;
    int64_t        n_head = c->heads + c->kv_heads, D = c->D;
    for (int64_t r = r0; r < r1; r++) {
        for (int64_t h = 0; h < n_head; h++) {
            const float *dy = mat_row(c->dy, r) + h * D, *x = mat_row(c->x, r) + h * D;
            float       *out = h < c->heads ? sum : sum + D, s = c->rstd[r * n_head + h];
            for (int64_t i = 0; i < D; i += VL) {
                vf v = vf_get(out + i, D - i) + vf_get(dy + i, D - i) * (vf_get(x + i, D - i) * s);
                vf_put(out + i, D - i, v);
            }
        }
    }
}

int cpu_qknorm_dw(Dev *dev, const QkNormDw *a)
{
    QkChunk c = { cpu_mat(a->dy), cpu_mat(a->x), cpu_f32(a->rstd), a->heads, a->kv_heads, a->head_dim };
    Colsum  s = { .rows = c.x.rows, .cols = a->head_dim, .n_out = 2, .chunk = qk_chunk, .ctx = &c };
    s.out[0]  = cpu_f32(a->dgq);
    s.out[1]  = cpu_f32(a->dgk);
    return colsum_run(dev, &s);
}
