/* Token and position embeddings.
 *
 * dwte collects rows by token: each thread takes a slice of columns and walks all rows in order. So every sum
 * runs in increasing n, for any number of threads and any distribution of tokens. */
#include "base/err.h"
#include "dev/cpu/cpu.h"
#include "dev/cpu/cpu_row.h"

#include <string.h>

static int64_t checked(int32_t token, int64_t V)
{
    CHECK(token >= 0 && token < V, "token %d of a vocabulary of %lld", token, (long long)V);
    return token;
}

int cpu_embed_fwd(Dev *dev, const EmbedFwd *a)
{
    Mat            y = cpu_mat(a->y), wte = cpu_mat(a->wte), wpe = cpu_mat(a->wpe);
    const int32_t *tok = a->tok->data;
    int64_t        T   = tensor_cols(a->tok);
    for (int64_t b = 0; wpe.p && b < y.rows / T; b++) {
        int64_t pos0 = cpu_start(a->pos0, b);
        CHECK(pos0 >= 0 && pos0 + T <= wpe.rows, "position %lld of %lld", (long long)(pos0 + T - 1),
              (long long)wpe.rows);
    }
#pragma omp parallel for num_threads(cpu_threads(dev))                                                       \
    schedule(static) if (y.rows * y.cols >= CPU_PARALLEL_MIN)
    for (int64_t n = 0; n < y.rows; n++) {
        const float *row = mat_row(wte, checked(tok[n], wte.rows));
        if (wpe.p) {
            row_add(mat_row(y, n), row, mat_row(wpe, cpu_start(a->pos0, n / T) + n % T), y.cols);
        } else {
            memcpy(mat_row(y, n), row, (size_t)y.cols * sizeof(float));
        }
    }
    return 0;
}

int cpu_embed_dw(Dev *dev, const EmbedDw *a)
{
    Mat            dw = cpu_mat(a->dwte), dy = cpu_mat(a->dy);
    const int32_t *tok     = a->tok->data;
    int            threads = dy.rows * dy.cols < CPU_PARALLEL_MIN ? 1 : cpu_threads(dev);
    int64_t        n_line = (dy.cols + 15) / 16, n_slice = MIN(threads, n_line);
#pragma omp parallel for num_threads(threads) schedule(static, 1)
    for (int64_t s = 0; s < n_slice; s++) {
        int64_t c0 = row_cut(n_line, n_slice, s) * 16,
                c1 = MIN(row_cut(n_line, n_slice, s + 1) * 16, dy.cols);
        for (int64_t n = 0; n < dy.rows; n++) {
            if (tok[n] == -1) continue;
            row_sum_into(mat_row(dw, checked(tok[n], dw.rows)) + c0, mat_row(dy, n) + c0, c1 - c0);
        }
    }
    return 0;
}

int cpu_pos_dw(Dev *dev, const PosDw *a)
{
    Mat     dw = cpu_mat(a->dwpe), dy = cpu_mat(a->dy);
    int64_t B = a->dy->dim[0], T = a->dy->dim[1];
#pragma omp parallel for num_threads(cpu_threads(dev))                                                       \
    schedule(static) if (dy.rows * dy.cols >= CPU_PARALLEL_MIN)
    for (int64_t t = 0; t < T; t++) {
        for (int64_t b = 0; b < B; b++) row_sum_into(mat_row(dw, t), mat_row(dy, b * T + t), dy.cols);
    }
    return 0;
}
