/* Rows by number, means over rows, position tables.
 *
 * Sums are in increasing row, whatever the number of threads: a thread takes columns or samples, never a part
 * of a sum. */
#include "base/err.h"
#include "dev/cpu/cpu.h"
#include "dev/cpu/cpu_row.h"

#include <string.h>

static int64_t checked(int32_t index, int64_t M)
{
    CHECK(index >= -1 && index < M, "row %d of %lld", index, (long long)M);
    return index;
}

int cpu_rows_fwd(Dev *dev, const RowsFwd *a)
{
    size_t  size = dtype_bytes(a->y->dtype), bytes = (size_t)tensor_cols(a->y) * size;
    int64_t N = tensor_rows(a->y), M = tensor_rows(a->x), at = a->at ? *(const int32_t *)a->at->data : 0;
    const int32_t *index = (const int32_t *)a->index->data + at * N;
    CHECK(at >= 0 && (at + 1) * N <= tensor_numel(a->index), "part %lld of %s", (long long)at,
          a->index->name);
#pragma omp parallel for num_threads(cpu_threads(dev))                                                       \
    schedule(static) if (tensor_numel(a->y) >= CPU_PARALLEL_MIN)
    for (int64_t n = 0; n < N; n++) {
        int64_t m = checked(index[n], M);
        char   *y = (char *)a->y->data + (size_t)(n * tensor_ld(a->y)) * size;
        if (m < 0) {
            memset(y, 0, bytes);
        } else {
            memcpy(y, (const char *)a->x->data + (size_t)(m * tensor_ld(a->x)) * size, bytes);
        }
    }
    return 0;
}

int cpu_rows_dx(Dev *dev, const RowsDx *a)
{
    Mat            dx = cpu_mat(a->dx), dy = cpu_mat(a->dy);
    const int32_t *index   = a->index->data;
    int            threads = dy.rows * dy.cols < CPU_PARALLEL_MIN ? 1 : cpu_threads(dev);
    int64_t        n_line = row_div_up(dy.cols, 16), n_slice = MIN(threads, n_line);
#pragma omp parallel for num_threads(threads) schedule(static, 1)
    for (int64_t s = 0; s < n_slice; s++) {
        int64_t c0 = row_cut(n_line, n_slice, s) * 16,
                c1 = MIN(row_cut(n_line, n_slice, s + 1) * 16, dy.cols);
        for (int64_t m = 0; m < dx.rows; m++)
            memset(mat_row(dx, m) + c0, 0, (size_t)(c1 - c0) * sizeof(float));
        for (int64_t n = 0; n < dy.rows; n++) {
            int64_t m = checked(index[n], dx.rows);
            if (m >= 0) row_sum_into(mat_row(dx, m) + c0, mat_row(dy, n) + c0, c1 - c0);
        }
    }
    return 0;
}

/* Rows of sample b that count. */
static int64_t length(const Tensor *len, int64_t b, int64_t T)
{
    int64_t n = len ? ((const int32_t *)len->data)[b] : T;
    CHECK(n >= 0 && n <= T, "%lld of %lld rows", (long long)n, (long long)T);
    return n;
}

int cpu_mean_rows_fwd(Dev *dev, const MeanRowsFwd *a)
{
    Mat     y = cpu_mat(a->y), x = cpu_mat(a->x);
    int64_t T = a->x->dim[1];
#pragma omp parallel for num_threads(cpu_threads(dev))                                                       \
    schedule(static) if (x.rows * x.cols >= CPU_PARALLEL_MIN)
    for (int64_t b = 0; b < y.rows; b++) {
        int64_t n   = length(a->len, b, T);
        float  *out = mat_row(y, b);
        memset(out, 0, (size_t)y.cols * sizeof(float));
        for (int64_t t = 0; t < n; t++) row_sum_into(out, mat_row(x, b * T + t), y.cols);
        float share = n > 0 ? 1.0f / (float)n : 0.0f;
        for (int64_t c = 0; c < y.cols; c++) out[c] *= share;
    }
    return 0;
}

int cpu_mean_rows_dx(Dev *dev, const MeanRowsDx *a)
{
    Mat     dx = cpu_mat(a->dx), dy = cpu_mat(a->dy);
    int64_t T = a->dx->dim[1];
#pragma omp parallel for num_threads(cpu_threads(dev))                                                       \
    schedule(static) if (dx.rows * dx.cols >= CPU_PARALLEL_MIN)
    for (int64_t r = 0; r < dx.rows; r++) {
        int64_t      n     = length(a->len, r / T, T);
        float        share = r % T < n ? 1.0f / (float)n : 0.0f, *out = mat_row(dx, r);
        const float *in = mat_row(dy, r / T);
        for (int64_t c = 0; c < dx.cols; c++) out[c] = r % T < n ? in[c] * share : 0.0f;
    }
    return 0;
}

int cpu_add_pos(Dev *dev, const AddPos *a)
{
    Mat     y = cpu_mat(a->y), x = cpu_mat(a->x), pos = cpu_mat(a->pos);
    int64_t T = a->x->dim[1];
#pragma omp parallel for num_threads(cpu_threads(dev))                                                       \
    schedule(static) if (y.rows * y.cols >= CPU_PARALLEL_MIN)
    for (int64_t r = 0; r < y.rows; r++) row_add(mat_row(y, r), mat_row(x, r), mat_row(pos, r % T), y.cols);
    return 0;
}
