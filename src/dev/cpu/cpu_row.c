#include "dev/cpu/cpu_row.h"

#include "base/err.h"
#include "dev/cpu/cpu_vec.h"

#include <omp.h>
#include <string.h>

CPU_ONCE void row_add(float *y, const float *a, const float *b, int64_t n)
{
    for (int64_t i = 0; i < n; i += VL) {
        vec_ahead(y + i);
        vec_ahead(a + i);
        vec_ahead(b + i);
        vf_put(y + i, n - i, vf_get(a + i, n - i) + vf_get(b + i, n - i));
    }
}

CPU_ONCE void row_add_near(float *y, const float *a, const float *near, int64_t n)
{
    for (int64_t i = 0; i < n; i += VL) {
        vec_ahead(y + i);
        vec_ahead(a + i);
        vf_put(y + i, n - i, vf_get(a + i, n - i) + vf_get(near + i, n - i));
    }
}

CPU_ONCE void row_sum_into(float *sum, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i += VL) {
        vec_ahead(x + i);
        vf_put(sum + i, n - i, vf_get(sum + i, n - i) + vf_get(x + i, n - i));
    }
}

/* ---- Column sums --------------------------------------------------------------------------------------- */

static int64_t n_chunk(int64_t rows)
{
    int64_t n = (rows + COLSUM_MIN_ROWS - 1) / COLSUM_MIN_ROWS;
    return n < COLSUM_CHUNKS ? n : COLSUM_CHUNKS;
}

/* Rows of scratch start on a cache line, so that threads do not share one. */
static int64_t pad_line(int64_t n) { return (n + 15) / 16 * 16; }

size_t colsum_scratch(const Colsum *c, int threads)
{
    return sizeof(float) *
           (size_t)(n_chunk(c->rows) * pad_line(c->n_out * c->cols) + threads * pad_line(c->tmp_cols));
}

/* out[c] += part[0][c] + part[1][c] + ... for columns [c0, c1). */
static void add_parts(float *out, const float *part, int64_t part_row, int64_t n_part, int64_t c0, int64_t c1)
{
    for (int64_t c = c0; c < c1; c += VL) {
        vf sum = { 0 };
        for (int64_t i = 0; i < n_part; i++) sum += vf_get(part + i * part_row + c, c1 - c);
        vf_put(out + c, c1 - c, vf_get(out + c, c1 - c) + sum);
    }
}

int colsum_run(Dev *dev, const Colsum *c)
{
    int    threads = c->rows * c->cols < CPU_PARALLEL_MIN ? 1 : cpu_threads(dev);
    float *part    = cpu_scratch(dev, colsum_scratch(c, cpu_threads(dev)));
    if (!part) return -1;
    int64_t parts = n_chunk(c->rows), part_row = pad_line(c->n_out * c->cols),
            tmp_row = pad_line(c->tmp_cols);
    float *tmp      = part + parts * part_row;
    /* Columns of the second stage are dealt in lines of 16. */
    int64_t n_line = (c->cols + 15) / 16;
#pragma omp parallel num_threads(threads)
    {
        float *own = tmp + omp_get_thread_num() * tmp_row;
#pragma omp for schedule(static)
        for (int64_t i = 0; i < parts; i++) {
            float *sum = part + i * part_row;
            memset(sum, 0, (size_t)(c->n_out * c->cols) * sizeof(float));
            c->chunk(c->ctx, row_cut(c->rows, parts, i), row_cut(c->rows, parts, i + 1), sum, own);
        }
#pragma omp for schedule(static)
        for (int64_t i = 0; i < n_line * c->n_out; i++) {
            int64_t o = i / n_line, c0 = i % n_line * 16, c1 = MIN(c0 + 16, c->cols);
            if (c->out[o]) add_parts(c->out[o], part + o * c->cols, part_row, parts, c0, c1);
        }
    }
    return 0;
}
