/* Cross-entropy over rows of logits.
 *
 *   lse  = max + log sum exp(logit - max) over the first n_class columns
 *   loss = lse - sum of q logit, q = onehot(target)                0 where target is -1
 *   dlogits = (exp(logit - lse) - q) step_scale                    0 where target is -1, and in padding
 *
 * Soft targets: q = (1 - smooth) (lambda onehot(target) + (1 - lambda) onehot(target2)) + smooth / n_class.
 * lse is rounded to f32 in both forms, so the fused one gives the bits of the pair. */
#include "base/err.h"
#include "dev/cpu/cpu.h"
#include "dev/cpu/cpu_row.h"
#include "dev/cpu/cpu_vec.h"
#include "dev/op_math.h"

#include <math.h>
#include <string.h>

static CPU_ONCE float row_lse(const float *x, int64_t n)
{
    vf top4[4], s[4] = { 0 };
    for (int u = 0; u < 4; u++) top4[u] = vf_set(x[0]);
    int64_t i = 0;
    for (; i + 4 * VL <= n; i += 4 * VL) {
        for (int u = 0; u < 4; u++) top4[u] = vf_max(top4[u], vf_load(x + i + u * VL));
    }
    float top = vf_top(vf_max(vf_max(top4[0], top4[1]), vf_max(top4[2], top4[3])));
    for (; i < n; i++) top = x[i] > top ? x[i] : top;
    vf m = vf_set(top);
    for (i = 0; i + 4 * VL <= n; i += 4 * VL) {
        for (int u = 0; u < 4; u++) s[u] += vf_exp(vf_load(x + i + u * VL) - m);
    }
    for (; i < n; i += VL) s[0] += vf_keep(vf_exp(vf_get(x + i, n - i) - m), n - i);
    return top + logf(vf_sum((s[0] + s[1]) + (s[2] + s[3])));
}

static float row_loss(const float *x, float lse, int32_t target, int64_t n_class)
{
    CHECK(target >= -1 && target < n_class, "target %d of %lld classes", target, (long long)n_class);
    return target < 0 ? 0.0f : lse - x[target];
}

CPU_ONCE void row_xent_dx(float *dx, const float *x, float lse, int64_t target, float factor, int64_t n)
{
    int   is_here = target >= 0 && target < n;
    float hit     = is_here ? (vf_exp(vf_set(x[target] - lse))[0] - 1.0f) * factor : 0.0f;
    for (int64_t i = 0; i < n; i += VL) {
        vf_put(dx + i, n - i, vf_exp(vf_get(x + i, n - i) - lse) * factor);
    }
    if (is_here) dx[target] = hit;
}

/* dx may be x. */
static void row_dx(float *dx, const float *x, float lse, int32_t target, float factor, int64_t n_class)
{
    if (target < 0) {
        memset(dx, 0, (size_t)n_class * sizeof(float));
    } else {
        row_xent_dx(dx, x, lse, target, factor, n_class);
    }
}

static void row_pad(float *dx, int64_t n_class, int64_t cols)
{
    memset(dx + n_class, 0, (size_t)(cols - n_class) * sizeof(float));
}

/* ---- Soft targets -------------------------------------------------------------------------------------- */

typedef struct {
    int32_t target, target2; /* target2 is target when there is no other */
    float   lambda, smooth;
} Soft;

static Soft soft_of(const int32_t *target, const Tensor *target2, const Tensor *lambda, float smooth,
                    int64_t r)
{
    Soft s = { target[r], target[r], 1.0f, smooth };
    if (!target2) return s;
    s.target2 = ((const int32_t *)target2->data)[r];
    s.lambda  = cpu_f32(lambda)[r];
    return s;
}

static int is_soft(const Tensor *target2, float smooth) { return target2 != NULL || smooth > 0; }

static float soft_loss(const float *x, float lse, const Soft *s, int64_t n_class)
{
    if (s->target < 0) return 0.0f;
    CHECK(s->target2 >= 0 && s->target2 < n_class, "second target %d of %lld classes", s->target2,
          (long long)n_class);
    double mean = 0;
    for (int64_t i = 0; i < n_class && s->smooth > 0; i++) mean += x[i];
    mean /= (double)n_class;
    double hard = (double)s->lambda * x[s->target] + (1 - (double)s->lambda) * x[s->target2];
    return (float)((double)lse - (1 - (double)s->smooth) * hard - (double)s->smooth * mean);
}

static void soft_dx(float *dx, const float *x, float lse, const Soft *s, float factor, int64_t n_class)
{
    float even = s->smooth / (float)n_class, one = (1.0f - s->smooth) * s->lambda,
          two = (1.0f - s->smooth) * (1.0f - s->lambda);
    for (int64_t i = 0; i < n_class; i++) {
        float q = even + (i == s->target ? one : 0.0f) + (i == s->target2 ? two : 0.0f);
        dx[i]   = s->target < 0 ? 0.0f : (vf_exp(vf_set(x[i] - lse))[0] - q) * factor;
    }
}

/* Classes whose logit comes before the target's. */
static int64_t rank_of(const float *x, int32_t target, int64_t n_class)
{
    int64_t n = 0;
    for (int64_t i = 0; i < n_class; i++) n += x[i] > x[target] || (x[i] == x[target] && i < target);
    return n;
}

/* ---- Ops ----------------------------------------------------------------------------------------------- */

int cpu_xent_fwd(Dev *dev, const XentFwd *a)
{
    Mat            x      = cpu_mat(a->logits);
    const int32_t *target = a->target->data;
    float         *loss = cpu_f32(a->loss), *lse = cpu_f32(a->lse);
    int64_t        top1 = 0, top5 = 0;
#pragma omp parallel for num_threads(cpu_threads(dev)) schedule(static)                                      \
    reduction(+ : top1, top5) if (x.rows * x.cols >= CPU_PARALLEL_MIN)
    for (int64_t r = 0; r < x.rows; r++) {
        const float *row = mat_row(x, r);
        Soft         s   = soft_of(target, a->target2, a->lambda, a->smooth, r);
        lse[r]           = row_lse(row, a->n_class);
        loss[r]          = row_loss(row, lse[r], target[r], a->n_class);
        if (is_soft(a->target2, a->smooth)) loss[r] = soft_loss(row, lse[r], &s, a->n_class);
        if (!a->hits || target[r] < 0) continue;
        int64_t rank = rank_of(row, target[r], a->n_class);
        top1 += rank == 0;
        top5 += rank < 5;
    }
    if (a->hits) {
        cpu_f32(a->hits)[0] += (float)top1;
        cpu_f32(a->hits)[1] += (float)top5;
    }
    return 0;
}

int cpu_xent_dx(Dev *dev, const XentDx *a)
{
    Mat            x = cpu_mat(a->logits), dx = cpu_mat(a->dlogits);
    const int32_t *target = a->target->data;
    const float   *lse    = cpu_f32(a->lse);
    float          factor = step_scale(a->state->data, a->slot);
#pragma omp parallel for num_threads(cpu_threads(dev))                                                       \
    schedule(static) if (x.rows * x.cols >= CPU_PARALLEL_MIN)
    for (int64_t r = 0; r < x.rows; r++) {
        if (is_soft(a->target2, a->smooth)) {
            Soft s = soft_of(target, a->target2, a->lambda, a->smooth, r);
            soft_dx(mat_row(dx, r), mat_row(x, r), lse[r], &s, factor, a->n_class);
        } else {
            row_dx(mat_row(dx, r), mat_row(x, r), lse[r], target[r], factor, a->n_class);
        }
        row_pad(mat_row(dx, r), a->n_class, x.cols);
    }
    return 0;
}

int cpu_xent(Dev *dev, const Xent *a)
{
    Mat            x = cpu_mat(a->logits), dx = cpu_mat(a->dlogits);
    const int32_t *target = a->target->data;
    float         *loss = cpu_f32(a->loss), factor = step_scale(a->state->data, a->slot);
#pragma omp parallel for num_threads(cpu_threads(dev))                                                       \
    schedule(static) if (x.rows * x.cols >= CPU_PARALLEL_MIN)
    for (int64_t r = 0; r < x.rows; r++) {
        float lse = row_lse(mat_row(x, r), a->n_class);
        loss[r]   = row_loss(mat_row(x, r), lse, target[r], a->n_class);
        row_dx(mat_row(dx, r), mat_row(x, r), lse, target[r], factor, a->n_class);
        row_pad(mat_row(dx, r), a->n_class, x.cols);
    }
    return 0;
}

/* In double and in order: 4096 additions cost 5 us, and the sum does not depend on anything else. */
int cpu_loss_add(Dev *dev, const LossAdd *a)
{
    StepState   *state  = a->state->data;
    const float *loss   = cpu_f32(a->loss);
    int          n_slot = a->n_slot > 1 ? a->n_slot : 1;
    int64_t      n      = tensor_numel(a->loss) / n_slot;
    for (int k = 0; k < n_slot; k++) {
        double sum = 0;
        for (int64_t i = 0; i < n; i++) sum += loss[k * n + i];
        state->out.sum[a->slot + k] += sum;
    }
    return 0;
}
