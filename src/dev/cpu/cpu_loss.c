/* Losses over rows besides cross-entropy: mean squared error and Kullback-Leibler divergence.
 *
 *   MSE  loss = sum of e^2/2, e = x - target. With clipping, the larger of that and the error of
 *        old + clamp(x - old), column by column; where that one counts and x was clamped, the gradient is 0.
 *   KL   t = teacher/tau, s = logits/tau, p = exp(t - tlse), q = exp(s - lse);
 *        loss = tau^2 sum of p (t - s - tlse + lse), dlogits = tau (q - p) step_scale.
 *        Sums are in double, in the order of the classes.
 *   KL_TEACHER  y = x at ids; elsewhere logits + tau (rest - log of the sum of exp(logits/tau) there). */
#include "base/err.h"
#include "dev/cpu/cpu.h"
#include "dev/op_math.h"

#include <math.h>

/* ---- Mean squared error -------------------------------------------------------------------------------- */

/* old NULL: no clipping. */
static MseTerm mse_term(float x, float target, const float *old, float clip)
{
    return old ? mse_clipped(x, target, *old, clip) : mse_plain(x, target);
}

static const float *at(Mat m, int64_t r, int64_t c) { return m.p ? mat_row(m, r) + c : NULL; }

int cpu_mse_fwd(Dev *dev, const MseFwd *a)
{
    Mat    x = cpu_mat(a->x), target = cpu_mat(a->target), old = cpu_mat(a->old);
    float *loss = cpu_f32(a->loss), clip = a->clip ? *cpu_f32(a->clip) : 0.0f;
#pragma omp parallel for num_threads(cpu_threads(dev))                                                       \
    schedule(static) if (x.rows * x.cols >= CPU_PARALLEL_MIN)
    for (int64_t r = 0; r < x.rows; r++) {
        float sum = 0;
        for (int64_t c = 0; c < x.cols; c++) {
            MseTerm e = mse_term(*at(x, r, c), *at(target, r, c), at(old, r, c), clip);
            sum += 0.5f * e.error * e.error;
        }
        loss[r] = sum;
    }
    return 0;
}

int cpu_mse_dx(Dev *dev, const MseDx *a)
{
    Mat   dx = cpu_mat(a->dx), x = cpu_mat(a->x), target = cpu_mat(a->target), old = cpu_mat(a->old);
    float clip = a->clip ? *cpu_f32(a->clip) : 0.0f, scale = step_scale(a->state->data, a->slot);
#pragma omp parallel for num_threads(cpu_threads(dev))                                                       \
    schedule(static) if (x.rows * x.cols >= CPU_PARALLEL_MIN)
    for (int64_t r = 0; r < x.rows; r++) {
        for (int64_t c = 0; c < x.cols; c++) {
            MseTerm e         = mse_term(*at(x, r, c), *at(target, r, c), at(old, r, c), clip);
            mat_row(dx, r)[c] = e.error * e.slope * scale;
        }
    }
    return 0;
}

/* ---- Kullback-Leibler divergence ----------------------------------------------------------------------- */

#define LOSS_FLOOR (-1e30f) /* below every logit, and finite */

/* Log of the sum of exp(x/tau). */
static float row_lse(const float *x, int64_t n, float tau)
{
    float  top = x[0];
    double sum = 0;
    for (int64_t i = 1; i < n; i++) top = x[i] > top ? x[i] : top;
    for (int64_t i = 0; i < n; i++) sum += (double)expf((x[i] - top) / tau);
    return (float)((double)top / (double)tau + log(sum));
}

static int has_target(const Tensor *target, int64_t r)
{
    return !target || ((const int32_t *)target->data)[r] >= 0;
}

int cpu_kl_fwd(Dev *dev, const KlFwd *a)
{
    Mat    x = cpu_mat(a->logits), teacher = cpu_mat(a->teacher);
    float *loss = cpu_f32(a->loss), *lse = cpu_f32(a->lse), *tlse = cpu_f32(a->tlse), tau = a->tau;
#pragma omp parallel for num_threads(cpu_threads(dev))                                                       \
    schedule(static) if (x.rows * x.cols >= CPU_PARALLEL_MIN)
    for (int64_t r = 0; r < x.rows; r++) {
        const float *s = mat_row(x, r), *t = mat_row(teacher, r);
        double       sum = 0;
        lse[r]           = row_lse(s, a->n_class, tau);
        tlse[r]          = row_lse(t, a->n_class, tau);
        for (int64_t c = 0; c < a->n_class; c++)
            sum += (double)(expf(t[c] / tau - tlse[r]) * ((t[c] - s[c]) / tau));
        float total = (float)(sum - (double)tlse[r] + (double)lse[r]);
        loss[r]     = has_target(a->target, r) ? tau * tau * total : 0.0f;
    }
    return 0;
}

int cpu_kl_dx(Dev *dev, const KlDx *a)
{
    Mat          dx = cpu_mat(a->dlogits), x = cpu_mat(a->logits), teacher = cpu_mat(a->teacher);
    const float *lse = cpu_f32(a->lse), *tlse = cpu_f32(a->tlse);
    float        tau = a->tau, scale = tau * step_scale(a->state->data, a->slot);
#pragma omp parallel for num_threads(cpu_threads(dev))                                                       \
    schedule(static) if (x.rows * x.cols >= CPU_PARALLEL_MIN)
    for (int64_t r = 0; r < x.rows; r++) {
        const float *s = mat_row(x, r), *t = mat_row(teacher, r);
        float       *d    = mat_row(dx, r);
        int          live = has_target(a->target, r);
        for (int64_t c = 0; c < x.cols; c++) {
            int in = live && c < a->n_class;
            d[c]   = in ? (expf(s[c] / tau - lse[r]) - expf(t[c] / tau - tlse[r])) * scale : 0.0f;
        }
    }
    return 0;
}

static void kl_teacher_row(float *y, const float *logits, const float *x, const int32_t *id, int64_t n_id,
                           const KlTeacher *a, float rest)
{
    for (int64_t c = 0; c < a->n_class; c++) y[c] = logits[c];
    for (int64_t i = 0; i < n_id; i++) {
        CHECK(id[i] >= -1 && id[i] < a->n_class, "class %d of %lld", id[i], (long long)a->n_class);
        if (id[i] >= 0) y[id[i]] = LOSS_FLOOR;
    }
    float shift = a->tau * (rest - row_lse(y, a->n_class, a->tau));
    for (int64_t c = 0; c < a->n_class; c++) y[c] += shift;
    for (int64_t i = 0; i < n_id; i++) {
        if (id[i] >= 0) y[id[i]] = x[i];
    }
}

int cpu_kl_teacher(Dev *dev, const KlTeacher *a)
{
    Mat          y = cpu_mat(a->y), logits = cpu_mat(a->logits), x = cpu_mat(a->x);
    const float *rest = cpu_f32(a->rest);
#pragma omp parallel for num_threads(cpu_threads(dev))                                                       \
    schedule(static) if (y.rows * y.cols >= CPU_PARALLEL_MIN)
    for (int64_t r = 0; r < y.rows; r++) {
        const int32_t *id = (const int32_t *)a->id->data + r * tensor_ld(a->id);
        kl_teacher_row(mat_row(y, r), mat_row(logits, r), mat_row(x, r), id, x.cols, a, rest[r]);
        for (int64_t c = a->n_class; c < y.cols; c++) mat_row(y, r)[c] = 0;
    }
    return 0;
}
