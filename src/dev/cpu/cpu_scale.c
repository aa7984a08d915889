/* One factor a column (layer scale), and the gradient of the factors. */
#include "dev/cpu/cpu.h"
#include "dev/cpu/cpu_row.h"

int cpu_scale(Dev *dev, const Scale *a)
{
    Mat          y = cpu_mat(a->y), x = cpu_mat(a->x);
    const float *gamma = cpu_f32(a->gamma);
#pragma omp parallel for num_threads(cpu_threads(dev))                                                       \
    schedule(static) if (y.rows * y.cols >= CPU_PARALLEL_MIN)
    for (int64_t r = 0; r < y.rows; r++) {
        const float *in = mat_row(x, r);
        for (int64_t c = 0; c < y.cols; c++) mat_row(y, r)[c] = in[c] * gamma[c];
    }
    return 0;
}

typedef struct {
    Mat dy, x;
} ScaleChunk;

static void scale_chunk(const void *ctx, int64_t r0, int64_t r1, float *sum, float *tmp)
{
    const ScaleChunk *k = ctx;
    for (int64_t r = r0; r < r1; r++) {
        const float *dy = mat_row(k->dy, r), *x = mat_row(k->x, r);
        for (int64_t c = 0; c < k->dy.cols; c++) sum[c] += dy[c] * x[c];
    }
}

int cpu_scale_dw(Dev *dev, const ScaleDw *a)
{
    ScaleChunk k = { cpu_mat(a->dy), cpu_mat(a->x) };
    Colsum     s = { .rows = k.dy.rows, .cols = k.dy.cols, .n_out = 1, .chunk = scale_chunk, .ctx = &k };
    s.out[0]     = cpu_f32(a->dgamma);
    return colsum_run(dev, &s);
}
