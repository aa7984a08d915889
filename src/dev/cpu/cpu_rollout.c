/* Rollouts: advantages, statistics, normalised observations, rows of a rollout, counters,
 * permutations and packing.
 *
 * Sums are in double and in a fixed order: statistics cut the elements into STAT_PARTS parts that follow from
 * their number. */
#include "base/err.h"
#include "dev/cpu/cpu.h"
#include "dev/cpu/cpu_row.h"
#include "dev/op_math.h"

#include <math.h>
#include <string.h>

int cpu_gae(Dev *dev, const Gae *a)
{
    int64_t      N = tensor_cols(a->reward), T = tensor_rows(a->reward);
    float       *adv = cpu_f32(a->adv), *ret = cpu_f32(a->ret);
    const float *reward = cpu_f32(a->reward), *value = cpu_f32(a->value), *last = cpu_f32(a->last_value),
                *final        = cpu_f32(a->final_value);
    const uint8_t *terminated = a->terminated->data, *truncated = a->truncated->data;
#pragma omp parallel for num_threads(cpu_threads(dev)) schedule(static) if (N * T >= CPU_PARALLEL_MIN)
    for (int64_t n = 0; n < N; n++) {
        float later = 0;
        for (int64_t t = T - 1; t >= 0; t--) {
            int64_t i    = t * N + n;
            float   next = t + 1 < T ? value[i + N] : last[n];
            if (truncated[i]) next = final ? final[i] : 0.0f;
            if (terminated[i]) next = 0;
            if (terminated[i] || truncated[i]) later = 0;
            later  = reward[i] + a->gamma * next - value[i] + a->gamma * a->lambda * later;
            adv[i] = later;
            ret[i] = later + value[i];
        }
    }
    return 0;
}

/* ---- Statistics ---------------------------------------------------------------------------------------- */

enum { STAT_PARTS = 64 };

typedef struct {
    const float   *x;
    const int32_t *valid;
    int64_t        n;
} Numbers;

/* Adds up x - mean (power 1) or its square (power 2); *count gets the number of elements that count. */
static double add_up(Dev *dev, const Numbers *v, double mean, int power, int64_t *count)
{
    double  part[STAT_PARTS], sum = 0;
    int64_t some[STAT_PARTS];
#pragma omp parallel for num_threads(cpu_threads(dev)) schedule(static) if (v->n >= CPU_PARALLEL_MIN)
    for (int p = 0; p < STAT_PARTS; p++) {
        part[p] = 0;
        some[p] = 0;
        for (int64_t i = row_cut(v->n, STAT_PARTS, p); i < row_cut(v->n, STAT_PARTS, p + 1); i++) {
            if (v->valid && !v->valid[i]) continue;
            double d = (double)v->x[i] - mean;
            part[p] += power == 2 ? d * d : d;
            some[p]++;
        }
    }
    *count = 0;
    for (int p = 0; p < STAT_PARTS; p++) {
        sum += part[p];
        *count += some[p];
    }
    return sum;
}

int cpu_stats(Dev *dev, const Stats *a)
{
    Numbers v = { cpu_f32(a->x), a->valid ? a->valid->data : NULL, tensor_numel(a->x) };
    int64_t n;
    double  sum = add_up(dev, &v, 0, 1, &n), mean = n ? sum / (double)n : 0;
    double  square = add_up(dev, &v, mean, 2, &n);
    double  over   = (double)(a->unbiased ? n - 1 : n);
    float  *out    = cpu_f32(a->out);
    out[0]         = (float)mean;
    out[1]         = n < 2 ? 0.0f : (float)sqrt(square / over);
    out[2]         = (float)n;
    return 0;
}

/* Batch statistics of each column, merged into the running ones (Chan, Golub and LeVeque). */
int cpu_obs_stats(Dev *dev, const ObsStats *a)
{
    Mat            x     = cpu_mat(a->x);
    const int32_t *valid = a->valid ? a->valid->data : NULL;
    double        *run = a->run->data, *mean = run + 1, *square = mean + x.cols, old = run[0], some = 0;
    for (int64_t r = 0; r < x.rows; r++) some += !valid || valid[r];
    if (some == 0) return 0;
#pragma omp parallel for num_threads(cpu_threads(dev))                                                       \
    schedule(static) if (x.rows * x.cols >= CPU_PARALLEL_MIN)
    for (int64_t c = 0; c < x.cols; c++) {
        double m = 0, s = 0;
        for (int64_t r = 0; r < x.rows; r++) m += !valid || valid[r] ? (double)mat_row(x, r)[c] : 0;
        m /= some;
        for (int64_t r = 0; r < x.rows; r++) {
            double d = (double)mat_row(x, r)[c] - m;
            s += !valid || valid[r] ? d * d : 0;
        }
        double gap = m - mean[c];
        mean[c] += gap * some / (old + some);
        square[c] += s + gap * gap * old * some / (old + some);
    }
    run[0] = old + some;
    return 0;
}

int cpu_obs_norm(Dev *dev, const ObsNorm *a)
{
    Mat           y = cpu_mat(a->y), x = cpu_mat(a->x);
    const double *run = a->run->data, *mean = run + 1, *square = mean + x.cols;
#pragma omp parallel for num_threads(cpu_threads(dev))                                                       \
    schedule(static) if (x.rows * x.cols >= CPU_PARALLEL_MIN)
    for (int64_t r = 0; r < x.rows; r++) {
        for (int64_t c = 0; c < x.cols; c++) {
            double variance = run[0] > 0 ? square[c] / run[0] : 1, center = run[0] > 0 ? mean[c] : 0;
            float  v         = (float)(((double)mat_row(x, r)[c] - center) / sqrt(variance + (double)a->eps));
            mat_row(y, r)[c] = fminf(fmaxf(v, -a->clip), a->clip);
        }
    }
    return 0;
}

/* ---- Rows, counters, permutations ---------------------------------------------------------------------- */

int cpu_put(Dev *dev, const Put *a)
{
    int64_t t = *(const int32_t *)a->t->data;
    for (int i = 0; i < PUT_PAIRS; i++) {
        const Tensor *y = a->y[i], *x = a->x[i];
        if (!y) continue;
        int64_t T = tensor_numel(y) / tensor_numel(x);
        CHECK(t >= 0 && t < T, "%s: row %lld of %lld", y->name, (long long)t, (long long)T);
        memcpy((char *)y->data + (size_t)t * tensor_bytes(x), x->data, tensor_bytes(x));
    }
    return 0;
}

int cpu_call(Dev *dev, const CallFn *a) { return a->fn(a, NULL); }

int cpu_tick(Dev *dev, const Tick *a)
{
    int32_t *t = a->t->data;
    *t         = (*t + 1) % a->modulo;
    return 0;
}

int cpu_perm(Dev *dev, const Perm *a)
{
    const StepState *s = a->state->data;
    int64_t          n = tensor_numel(a->index), epoch = a->epoch ? *(const int32_t *)a->epoch->data : 0;
    int32_t         *index = a->index->data;
    Shuffle          f     = shuffle_begin((uint32_t)n, s->in.seed, (uint32_t)a->site, s->in.step, epoch);
#pragma omp parallel for num_threads(cpu_threads(dev)) schedule(static) if (n >= CPU_PARALLEL_MIN / 16)
    for (int64_t i = 0; i < n; i++) index[i] = (int32_t)shuffle_at(&f, (uint32_t)i);
    return 0;
}

int cpu_pack_rows(Dev *dev, const PackRows *a)
{
    int32_t *index = a->index->data, *first = a->first->data, *last = a->last->data;
    int64_t  R = tensor_numel(a->index), B = tensor_numel(a->len), row = 0;
    for (int64_t b = 0; b < B; b++) {
        int64_t begin = round_up(row, a->align), n = ((const int32_t *)a->len->data)[b], end = begin + n;
        CHECK(n >= 0 && n <= a->stride && (n == 0 || end <= R),
              "%s: sequence %lld of %lld rows at %lld of %lld", a->index->name, (long long)b, (long long)n,
              (long long)begin, (long long)R);
        if (n == 0) end = begin = row;
        for (; row < end; row++) {
            int is_in  = row >= begin;
            index[row] = is_in ? (int32_t)(b * a->stride + row - begin) : -1;
            first[row] = is_in ? (int32_t)begin : 0;
            last[row]  = is_in ? (int32_t)(a->causal ? row : end - 1) : -1;
        }
        for (int64_t t = 0; t < a->n_tail; t++)
            ((int32_t *)a->tail->data)[b * a->n_tail + t] =
                (int32_t)(n < a->n_tail - t ? -1 : end - a->n_tail + t);
        for (int64_t t = 0; t < a->n_each; t++) {
            ((int32_t *)a->low->data)[b * a->n_each + t]  = n ? (int32_t)begin : 0;
            ((int32_t *)a->high->data)[b * a->n_each + t] = n ? (int32_t)(end - 1) : -1;
        }
    }
    for (; row < R; row++) {
        index[row] = last[row] = -1;
        first[row]             = 0;
    }
    return 0;
}
