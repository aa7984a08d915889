/* Policies: sampling actions, and PPO's loss and gradients. A row is a sample, and rows are independent.
 *
 *   categorical   p = softmax over a segment's classes that are not hidden
 *                 logp = x[a] - lse;  entropy = sum of p (lse - x)
 *                 d logp/d x = [k = a] - p;  d entropy/d x = -p (x - lse + entropy)
 *   normal        z = (a - mean)/std
 *                 logp = -z^2/2 - log_std - log(2 pi)/2;  entropy = log_std + log(2 pi e)/2
 *                 d logp/d mean = z/std;  d logp/d log_std = z^2 - 1;  d entropy/d log_std = 1 */
#include "base/err.h"
#include "base/rng.h"
#include "dev/cpu/cpu.h"
#include "dev/op_math.h"

#include <math.h>
#include <string.h>

#define HALF_LOG_2PI  0.918938533f
#define HALF_LOG_2PIE 1.418938533f

/* ---- Categorical --------------------------------------------------------------------------------------- */

/* One segment of a row. */
typedef struct {
    const float   *x;
    const uint8_t *mask; /* NULL: nothing is hidden */
    int64_t        n;
    float          lse, entropy;
} Choice;

static int   may(const Choice *c, int64_t k) { return !c->mask || c->mask[k]; }
static float chance(const Choice *c, int64_t k) { return may(c, k) ? expf(c->x[k] - c->lse) : 0.0f; }

static Choice choice_of(const float *x, const uint8_t *mask, int64_t n)
{
    Choice c   = { .x = x, .mask = mask, .n = n };
    int    any = 0;
    for (int64_t k = 0; k < n && mask; k++) any |= mask[k];
    if (!any) c.mask = NULL;
    float top = -INFINITY, sum = 0;
    for (int64_t k = 0; k < n; k++) top = may(&c, k) && x[k] > top ? x[k] : top;
    for (int64_t k = 0; k < n; k++) sum += may(&c, k) ? expf(x[k] - top) : 0.0f;
    c.lse = top + logf(sum);
    for (int64_t k = 0; k < n; k++) c.entropy += chance(&c, k) * (c.lse - x[k]);
    return c;
}

/* Segments of the rows of logits. */
typedef struct {
    Mat            x;
    const uint8_t *mask;
    const int32_t *seg; /* NULL: one of all columns */
    int64_t        n_seg;
} Choices;

static Choices choices_of(const Tensor *logits, const Tensor *mask, const Tensor *seg)
{
    return (Choices){ cpu_mat(logits), mask ? mask->data : NULL, seg ? seg->data : NULL,
                      seg ? tensor_numel(seg) - 1 : 1 };
}

/* Segment s of row n; *first is its first column. */
static Choice choice_at(const Choices *c, int64_t n, int64_t s, int64_t *first)
{
    int64_t begin = c->seg ? c->seg[s] : 0, end = c->seg ? c->seg[s + 1] : c->x.cols;
    CHECK(begin >= 0 && begin < end && end <= c->x.cols, "segment %lld to %lld of %lld", (long long)begin,
          (long long)end, (long long)c->x.cols);
    *first = begin;
    return choice_of(mat_row(c->x, n) + begin, c->mask ? c->mask + n * c->x.cols + begin : NULL, end - begin);
}

/* The first class whose running sum exceeds u, or the last that is not hidden. */
static int64_t choose(const Choice *c, float u)
{
    float   sum  = 0;
    int64_t last = 0;
    for (int64_t k = 0; k < c->n; k++) {
        if (!may(c, k)) continue;
        sum += chance(c, k);
        last = k;
        if (sum > u) break;
    }
    return last;
}

static int64_t most_likely(const Choice *c)
{
    int64_t best = -1;
    for (int64_t k = 0; k < c->n; k++) {
        if (may(c, k) && (best < 0 || c->x[k] > c->x[best])) best = k;
    }
    return best;
}

int cpu_sample_cat(Dev *dev, const SampleCat *a)
{
    Choices          c      = choices_of(a->logits, a->mask, a->seg);
    const StepState *state  = a->state->data;
    int32_t         *action = a->action->data;
    int64_t sample0 = *(const int64_t *)a->sample0->data, t = a->t ? *(const int32_t *)a->t->data : 0;
#pragma omp parallel for num_threads(cpu_threads(dev))                                                       \
    schedule(static) if (c.x.rows * c.x.cols >= CPU_PARALLEL_MIN / 16)
    for (int64_t n = 0; n < c.x.rows; n++) {
        float logp = 0, entropy = 0;
        for (int64_t s = 0; s < c.n_seg; s++) {
            int64_t  first;
            Choice   one = choice_at(&c, n, s, &first);
            uint32_t draw =
                rng_draw(state->in.seed, (uint32_t)a->site, state->in.step, sample0 + n, t * c.n_seg + s);
            int64_t k               = a->greedy ? most_likely(&one) : choose(&one, rng_uniform(draw));
            action[n * c.n_seg + s] = (int32_t)k;
            logp += one.x[k] - one.lse;
            entropy += one.entropy;
        }
        cpu_f32(a->logp)[n] = logp;
        if (a->entropy) cpu_f32(a->entropy)[n] = entropy;
    }
    return 0;
}

/* ---- Normal -------------------------------------------------------------------------------------------- */

/* log_std of dimension k of row n. */
static float log_std_at(Mat m, int64_t n, int64_t k) { return mat_row(m, m.rows == 1 ? 0 : n)[k]; }

/* A normal number from two words. */
static float normal_of(const uint32_t word[4])
{
    float u = ((float)(word[0] >> 8) + 1.0f) * (1.0f / 16777216.0f);
    return sqrtf(-2.0f * logf(u)) * cosf(6.28318531f * rng_uniform(word[1]));
}

int cpu_sample_gauss(Dev *dev, const SampleGauss *a)
{
    Mat              mean = cpu_mat(a->mean), log_std = cpu_mat(a->log_std), action = cpu_mat(a->action);
    const StepState *state = a->state->data;
    int64_t sample0 = *(const int64_t *)a->sample0->data, t = a->t ? *(const int32_t *)a->t->data : 0;
#pragma omp parallel for num_threads(cpu_threads(dev))                                                       \
    schedule(static) if (mean.rows * mean.cols >= CPU_PARALLEL_MIN / 16)
    for (int64_t n = 0; n < mean.rows; n++) {
        float logp = 0, entropy = 0;
        for (int64_t k = 0; k < mean.cols; k++) {
            uint32_t word[4];
            rng_draw4(word, state->in.seed, (uint32_t)a->site, state->in.step, sample0 + n,
                      4 * (t * mean.cols + k));
            float ls = log_std_at(log_std, n, k), z = a->greedy ? 0.0f : normal_of(word);
            mat_row(action, n)[k] = mat_row(mean, n)[k] + expf(ls) * z;
            logp += -0.5f * z * z - ls - HALF_LOG_2PI;
            entropy += ls + HALF_LOG_2PIE;
        }
        cpu_f32(a->logp)[n] = logp;
        if (a->entropy) cpu_f32(a->entropy)[n] = entropy;
    }
    return 0;
}

/* ---- PPO ----------------------------------------------------------------------------------------------- */

/* What both kinds of policy have in common. */
typedef struct {
    const float   *old_logp, *adv, *ret, *old_value, *norm;
    Mat            value;
    const int32_t *valid;
    PpoCoef        coef;
} Ppo;

static Ppo ppo_of(const Tensor *value, const Tensor *old_logp, const Tensor *adv, const Tensor *ret,
                  const Tensor *old_value, const Tensor *norm)
{
    return (Ppo){ .old_logp  = cpu_f32(old_logp),
                  .adv       = cpu_f32(adv),
                  .ret       = cpu_f32(ret),
                  .old_value = cpu_f32(old_value),
                  .norm      = cpu_f32(norm),
                  .value     = cpu_mat(value) };
}

static void ppo_rest(Ppo *p, const Tensor *valid, const Tensor *coef)
{
    p->valid = valid ? valid->data : NULL;
    memcpy(&p->coef, coef->data, sizeof p->coef);
}

/* One row: losses and their derivatives by logp and by the value. */
typedef struct {
    PpoPolicy policy;
    MseTerm   value;
    float     log_ratio, ratio;
} PpoRow;

static int counts(const Ppo *p, int64_t n) { return !p->valid || p->valid[n]; }

/* Where a row does not count, its ratio may be too large for a number, and 0 times that is not 0. */
static PpoRow ppo_row(const Ppo *p, int64_t n, float logp)
{
    PpoRow r = { .log_ratio = counts(p, n) ? logp - p->old_logp[n] : 0.0f };
    r.ratio  = expf(r.log_ratio);
    r.policy = ppo_policy(r.ratio, ppo_advantage(p->adv[n], p->norm), p->coef.clip);
    if (p->value.p)
        r.value = ppo_value(*mat_row(p->value, n), p->ret[n], p->old_value[n], p->coef.clip_value);
    return r;
}

/* What is written for each of N rows. */
typedef struct {
    float  *loss, *parts; /* [N]; [PPO_PARTS,N] or NULL */
    int64_t N;
} PpoLosses;

static void ppo_put(const PpoLosses *out, const Ppo *p, int64_t n, float logp, float entropy)
{
    PpoRow r     = ppo_row(p, n, logp);
    float  v     = 0.5f * r.value.error * r.value.error;
    int    live  = counts(p, n);
    out->loss[n] = live ? r.policy.loss - p->coef.entropy_weight * entropy + p->coef.value_weight * v : 0.0f;
    if (!out->parts) return;
    const float part[PPO_PARTS] = { r.policy.loss,   v, entropy, -r.log_ratio, (r.ratio - 1.0f) - r.log_ratio,
                                    r.policy.clipped };
    for (int k = 0; k < PPO_PARTS; k++) out->parts[k * out->N + n] = live ? part[k] : 0.0f;
}

static void ppo_put_dvalue(const Ppo *p, Mat dvalue, int64_t n, const PpoRow *r, float scale)
{
    if (dvalue.p) *mat_row(dvalue, n) = p->coef.value_weight * r->value.error * r->value.slope * scale;
}

static float cat_logp(const Choices *c, const int32_t *action, int64_t n, float *entropy)
{
    float logp = 0;
    *entropy   = 0;
    for (int64_t s = 0; s < c->n_seg; s++) {
        int64_t first, k = action[n * c->n_seg + s];
        Choice  one = choice_at(c, n, s, &first);
        CHECK(k >= 0 && k < one.n, "action %lld of %lld", (long long)k, (long long)one.n);
        logp += one.x[k] - one.lse;
        *entropy += one.entropy;
    }
    return logp;
}

int cpu_ppo_cat_fwd(Dev *dev, const PpoCatFwd *a)
{
    Choices c = choices_of(a->logits, a->mask, a->seg);
    Ppo     p = ppo_of(a->value, a->old_logp, a->adv, a->ret, a->old_value, a->norm);
    ppo_rest(&p, a->valid, a->coef);
    PpoLosses out = { cpu_f32(a->loss), cpu_f32(a->parts), c.x.rows };
#pragma omp parallel for num_threads(cpu_threads(dev))                                                       \
    schedule(static) if (c.x.rows * c.x.cols >= CPU_PARALLEL_MIN / 16)
    for (int64_t n = 0; n < c.x.rows; n++) {
        float entropy, logp = cat_logp(&c, a->action->data, n, &entropy);
        ppo_put(&out, &p, n, logp, entropy);
    }
    return 0;
}

/* Gradient of a row's logits; dx may be the row itself. */
static void cat_dx(float *dx, const Choices *c, const int32_t *action, int64_t n, float dlogp, float dentropy)
{
    int64_t done = 0;
    for (int64_t s = 0; s < c->n_seg; s++) {
        int64_t first;
        Choice  one = choice_at(c, n, s, &first);
        for (; done < first; done++) dx[done] = 0;
        for (int64_t k = 0; k < one.n; k++, done++) {
            float p = chance(&one, k), hit = k == action[n * c->n_seg + s];
            float d  = dlogp * (hit - p) - dentropy * p * (one.x[k] - one.lse + one.entropy);
            dx[done] = may(&one, k) ? d : 0.0f;
        }
    }
    for (; done < c->x.cols; done++) dx[done] = 0;
}

int cpu_ppo_cat_dx(Dev *dev, const PpoCatDx *a)
{
    Choices c  = choices_of(a->logits, a->mask, a->seg);
    Ppo     p  = ppo_of(a->value, a->old_logp, a->adv, a->ret, a->old_value, a->norm);
    Mat     dx = cpu_mat(a->dlogits), dvalue = cpu_mat(a->dvalue);
    float   all = step_scale(a->state->data, a->slot);
    ppo_rest(&p, a->valid, a->coef);
#pragma omp parallel for num_threads(cpu_threads(dev))                                                       \
    schedule(static) if (c.x.rows * c.x.cols >= CPU_PARALLEL_MIN / 16)
    for (int64_t n = 0; n < c.x.rows; n++) {
        float  entropy, scale = counts(&p, n) ? all : 0.0f;
        PpoRow r = ppo_row(&p, n, cat_logp(&c, a->action->data, n, &entropy));
        ppo_put_dvalue(&p, dvalue, n, &r, scale);
        if (dx.p) {
            cat_dx(mat_row(dx, n), &c, a->action->data, n, r.policy.dlogp * scale,
                   -p.coef.entropy_weight * scale);
        }
    }
    return 0;
}

static float gauss_logp(Mat mean, Mat log_std, Mat action, int64_t n, float *entropy)
{
    float logp = 0;
    *entropy   = 0;
    for (int64_t k = 0; k < mean.cols; k++) {
        float ls = log_std_at(log_std, n, k), z = (mat_row(action, n)[k] - mat_row(mean, n)[k]) * expf(-ls);
        logp += -0.5f * z * z - ls - HALF_LOG_2PI;
        *entropy += ls + HALF_LOG_2PIE;
    }
    return logp;
}

int cpu_ppo_gauss_fwd(Dev *dev, const PpoGaussFwd *a)
{
    Mat mean = cpu_mat(a->mean), log_std = cpu_mat(a->log_std), action = cpu_mat(a->action);
    Ppo p = ppo_of(a->value, a->old_logp, a->adv, a->ret, a->old_value, a->norm);
    ppo_rest(&p, a->valid, a->coef);
    PpoLosses out = { cpu_f32(a->loss), cpu_f32(a->parts), mean.rows };
#pragma omp parallel for num_threads(cpu_threads(dev))                                                       \
    schedule(static) if (mean.rows * mean.cols >= CPU_PARALLEL_MIN / 16)
    for (int64_t n = 0; n < mean.rows; n++) {
        float entropy, logp = gauss_logp(mean, log_std, action, n, &entropy);
        ppo_put(&out, &p, n, logp, entropy);
    }
    return 0;
}

int cpu_ppo_gauss_dx(Dev *dev, const PpoGaussDx *a)
{
    Mat   mean = cpu_mat(a->mean), log_std = cpu_mat(a->log_std), action = cpu_mat(a->action);
    Mat   dmean = cpu_mat(a->dmean), dlog_std = cpu_mat(a->dlog_std), dvalue = cpu_mat(a->dvalue);
    Ppo   p   = ppo_of(a->value, a->old_logp, a->adv, a->ret, a->old_value, a->norm);
    float all = step_scale(a->state->data, a->slot);
    ppo_rest(&p, a->valid, a->coef);
#pragma omp parallel for num_threads(cpu_threads(dev))                                                       \
    schedule(static) if (mean.rows * mean.cols >= CPU_PARALLEL_MIN / 16)
    for (int64_t n = 0; n < mean.rows; n++) {
        float  entropy, scale = counts(&p, n) ? all : 0.0f;
        PpoRow r = ppo_row(&p, n, gauss_logp(mean, log_std, action, n, &entropy));
        ppo_put_dvalue(&p, dvalue, n, &r, scale);
        for (int64_t k = 0; k < mean.cols; k++) {
            float inv = expf(-log_std_at(log_std, n, k)),
                  z   = (mat_row(action, n)[k] - mat_row(mean, n)[k]) * inv;
            if (dmean.p) mat_row(dmean, n)[k] = r.policy.dlogp * z * inv * scale;
            if (dlog_std.p) {
                mat_row(dlog_std, n)[k] = (r.policy.dlogp * (z * z - 1.0f) - p.coef.entropy_weight) * scale;
            }
        }
    }
    return 0;
}
