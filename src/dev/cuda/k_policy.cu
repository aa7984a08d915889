/* Policies: SAMPLE_CAT, SAMPLE_GAUSS, PPO_CAT_FWD, PPO_CAT_DX, PPO_GAUSS_FWD, PPO_GAUSS_DX.
 *
 * Maths    as in cpu/cpu_policy.c; what does not depend on the dtype is shared (dev/op_math.h).
 * Layout   logits, mean, log_std, value rows x cols with a row stride; actions, masks and the numbers of a
 *          rollout contiguous.
 * Order    every sum is a row's own, by one thread in increasing column.
 * Grid     a thread a row: a row has few columns (18 buttons, 17 joints), and a minibatch tens of thousands
 *          of rows.
 * Bytes    a row's logits are read up to four times, all but the first from the cache. */
#include "base/rng.h"
#include "dev/cuda/k_common.cuh"
#include "dev/op_math.h"

enum { POLICY_THREADS = 128 };

#define HALF_LOG_2PI  0.9189385332046727f
#define HALF_LOG_2PIE 1.4189385332046727f

__device__ __forceinline__ int64_t policy_row() { return (int64_t)blockIdx.x * POLICY_THREADS + threadIdx.x; }
static inline dim3 policy_grid(int64_t rows) { return dim3((unsigned)ceil_div(rows, POLICY_THREADS)); }

/* ---- Categorical ------------------------------------------------------------------------------------- */

template <typename T> struct CatP {
    const T       *logits;
    const uint8_t *mask;
    const int32_t *seg;
    int64_t        ld, rows;
    int            cols, n_seg;
};

template <typename T> static CatP<T> cat_args(const Tensor *logits, const Tensor *mask, const Tensor *seg)
{
    CatP<T> p = { t_data<T>(logits),
                  t_data<uint8_t>(mask),
                  t_data<int32_t>(seg),
                  t_ld(logits),
                  tensor_rows(logits),
                  (int)tensor_cols(logits),
                  seg ? (int)tensor_numel(seg) - 1 : 1 };
    return p;
}

/* One segment of a row. */
template <typename T> struct Choice {
    const T       *x;
    const uint8_t *mask; /* NULL: nothing is hidden */
    int            first, n;
    float          lse, entropy;

    __device__ __forceinline__ bool  may(int k) const { return !mask || mask[k]; }
    __device__ __forceinline__ float at(int k) const { return to_f32(x[k]); }
    __device__ __forceinline__ float chance(int k) const { return may(k) ? expf(at(k) - lse) : 0.0f; }
};

template <typename T> __device__ Choice<T> choice_at(const CatP<T> &p, int64_t row, int s)
{
    Choice<T> c;
    int       end = p.seg ? p.seg[s + 1] : p.cols, any = 0;
    c.first = p.seg ? p.seg[s] : 0;
    c.n     = end - c.first;
    c.x     = p.logits + row * p.ld + c.first;
    c.mask  = p.mask ? p.mask + row * p.cols + c.first : nullptr;
    for (int k = 0; k < c.n && c.mask; k++) any |= c.mask[k];
    if (!any) c.mask = nullptr;
    float top = -INFINITY, sum = 0.0f;
    for (int k = 0; k < c.n; k++) top = c.may(k) ? fmaxf(top, c.at(k)) : top;
    for (int k = 0; k < c.n; k++) sum += c.may(k) ? expf(c.at(k) - top) : 0.0f;
    c.lse     = top + logf(sum);
    c.entropy = 0.0f;
    for (int k = 0; k < c.n; k++) c.entropy += c.chance(k) * (c.lse - c.at(k));
    return c;
}

/* Where draws come from. */
struct DrawP {
    const StepState *state;
    const int64_t   *sample0;
    const int32_t   *t;
    uint32_t         site;
    int              greedy;

    __device__ __forceinline__ int64_t sample(int64_t row) const { return *sample0 + row; }
    __device__ __forceinline__ int64_t element(int64_t per, int64_t k) const
    {
        return (t ? *t : 0) * per + k;
    }
};

template <typename T>
__global__ void __launch_bounds__(POLICY_THREADS)
    sample_cat_kernel(CatP<T> p, DrawP d, int32_t *action, float *logp, float *entropy)
{
    int64_t row = policy_row();
    if (row >= p.rows) return;
    float lp = 0.0f, h = 0.0f;
    for (int s = 0; s < p.n_seg; s++) {
        Choice<T> c = choice_at(p, row, s);
        float     u = rng_uniform(
                rng_draw(d.state->in.seed, d.site, d.state->in.step, d.sample(row), d.element(p.n_seg, s)));
        float sum  = 0.0f;
        int   pick = -1;
        for (int k = 0; k < c.n; k++) {
            if (!c.may(k)) continue;
            if (d.greedy) {
                if (pick < 0 || c.at(k) > c.at(pick)) pick = k;
            } else {
                sum += c.chance(k);
                pick = k;
                if (sum > u) break;
            }
        }
        action[row * p.n_seg + s] = pick;
        lp += c.at(pick) - c.lse;
        h += c.entropy;
    }
    logp[row] = lp;
    if (entropy) entropy[row] = h;
}

extern "C" int cuda_sample_cat(Dev *dev, const SampleCat *a)
{
    const char *op = "sample_cat";
    TRY(k_need_dtype(op, a->action, DT_I32));
    TRY(k_need_dtype(op, a->seg, DT_I32));
    TRY(k_need_dtype(op, a->mask, DT_U8));
    TRY(k_need_dtype(op, a->sample0, DT_I64));
    return k_dispatch(a->logits->dtype, op, [&](auto zero) {
        using T   = decltype(zero);
        CatP<T> p = cat_args<T>(a->logits, a->mask, a->seg);
        DrawP   d = { t_data<StepState>(a->state), t_data<int64_t>(a->sample0), t_data<int32_t>(a->t),
                      (uint32_t)a->site, a->greedy };
        return k_launch(op, sample_cat_kernel<T>, policy_grid(p.rows), POLICY_THREADS, 0, cuda_stream(dev), p,
                        d, t_data<int32_t>(a->action), t_data<float>(a->logp), t_data<float>(a->entropy));
    });
}

/* ---- Normal ------------------------------------------------------------------------------------------ */

/* T: of the mean; U: of log_std. */
template <typename T, typename U> struct GaussP {
    const T     *mean;
    const U     *log_std;
    const float *action;
    int64_t      ld, ld_std, ld_action, rows; /* ld_std 0: one for all rows */
    int          cols;

    __device__ __forceinline__ float std_at(int64_t row, int k) const
    {
        return to_f32(log_std[row * ld_std + k]);
    }
    __device__ __forceinline__ float mean_at(int64_t row, int k) const { return to_f32(mean[row * ld + k]); }
};

template <typename T, typename U>
static GaussP<T, U> gauss_args(const Tensor *mean, const Tensor *log_std, const Tensor *action)
{
    GaussP<T, U> p = { t_data<T>(mean),
                       t_data<U>(log_std),
                       t_data<float>(action),
                       t_ld(mean),
                       tensor_rows(log_std) == 1 ? 0 : t_ld(log_std),
                       t_ld(action),
                       tensor_rows(mean),
                       (int)tensor_cols(mean) };
    return p;
}

template <typename T, typename U>
__global__ void __launch_bounds__(POLICY_THREADS)
    sample_gauss_kernel(GaussP<T, U> p, DrawP d, float *action, float *logp, float *entropy)
{
    int64_t row = policy_row();
    if (row >= p.rows) return;
    float lp = 0.0f, h = 0.0f;
    for (int k = 0; k < p.cols; k++) {
        uint32_t w[4];
        rng_draw4(w, d.state->in.seed, d.site, d.state->in.step, d.sample(row), 4 * d.element(p.cols, k));
        float u = ((float)(w[0] >> 8) + 1.0f) * (1.0f / 16777216.0f);
        float z = d.greedy ? 0.0f : sqrtf(-2.0f * logf(u)) * cospif(2.0f * rng_uniform(w[1]));
        float s = p.std_at(row, k);
        action[row * p.ld_action + k] = p.mean_at(row, k) + expf(s) * z;
        lp += -0.5f * z * z - s - HALF_LOG_2PI;
        h += s + HALF_LOG_2PIE;
    }
    logp[row] = lp;
    if (entropy) entropy[row] = h;
}

/* Calls f with the types of mean and log_std. */
template <typename F>
static int gauss_dispatch(const Tensor *mean, const Tensor *log_std, const char *op, F f)
{
    return k_dispatch(mean->dtype, op, [&](auto zero) {
        return k_dispatch(log_std->dtype, op, [&](auto nil) { return f(zero, nil); });
    });
}

extern "C" int cuda_sample_gauss(Dev *dev, const SampleGauss *a)
{
    const char *op = "sample_gauss";
    TRY(k_need_dtype(op, a->action, DT_F32));
    TRY(k_need_dtype(op, a->sample0, DT_I64));
    return gauss_dispatch(a->mean, a->log_std, op, [&](auto zero, auto nil) {
        using T = decltype(zero);
        using U = decltype(nil);
        auto  p = gauss_args<T, U>(a->mean, a->log_std, a->action);
        DrawP d = { t_data<StepState>(a->state), t_data<int64_t>(a->sample0), t_data<int32_t>(a->t),
                    (uint32_t)a->site, a->greedy };
        return k_launch(op, sample_gauss_kernel<T, U>, policy_grid(p.rows), POLICY_THREADS, 0,
                        cuda_stream(dev), p, d, t_data<float>(a->action), t_data<float>(a->logp),
                        t_data<float>(a->entropy));
    });
}

/* ---- PPO --------------------------------------------------------------------------------------------- */

/* What both kinds of policy have in common. */
template <typename T> struct PpoP {
    const T         *value;
    const float     *old_logp, *adv, *ret, *old_value, *norm;
    const int32_t   *valid;
    const PpoCoef   *coef;
    const StepState *state;
    float           *loss, *parts;
    T               *dvalue;
    int64_t          ld_value, ld_dvalue, rows;
    int              slot;
};

struct PpoRow {
    PpoPolicy policy;
    MseTerm   value;
    float     log_ratio, ratio;
};

/* Where a row does not count, its ratio may be too large for a number, and 0 times that is not 0. */
template <typename T> __device__ __forceinline__ PpoRow ppo_row(const PpoP<T> &p, int64_t row, float logp)
{
    PpoRow r;
    r.log_ratio = !p.valid || p.valid[row] ? logp - p.old_logp[row] : 0.0f;
    r.ratio     = expf(r.log_ratio);
    r.policy    = ppo_policy(r.ratio, ppo_advantage(p.adv[row], p.norm), p.coef->clip);
    r.value     = { 0.0f, 0.0f };
    if (p.value)
        r.value =
            ppo_value(to_f32(p.value[row * p.ld_value]), p.ret[row], p.old_value[row], p.coef->clip_value);
    return r;
}

template <typename T>
__device__ __forceinline__ void ppo_put(const PpoP<T> &p, int64_t row, float logp, float entropy)
{
    PpoRow r    = ppo_row(p, row, logp);
    float  v    = 0.5f * r.value.error * r.value.error;
    bool   live = !p.valid || p.valid[row];
    p.loss[row] = live ? r.policy.loss - p.coef->entropy_weight * entropy + p.coef->value_weight * v : 0.0f;
    if (!p.parts) return;
    const float part[PPO_PARTS] = { r.policy.loss,   v, entropy, -r.log_ratio, (r.ratio - 1.0f) - r.log_ratio,
                                    r.policy.clipped };
#pragma unroll
    for (int k = 0; k < PPO_PARTS; k++) p.parts[k * p.rows + row] = live ? part[k] : 0.0f;
}

/* Writes the gradient of the value; returns what those of the policy are multiplied by. */
template <typename T>
__device__ __forceinline__ float ppo_put_dvalue(const PpoP<T> &p, int64_t row, const PpoRow &r)
{
    float scale = !p.valid || p.valid[row] ? step_scale(p.state, p.slot) : 0.0f;
    if (p.dvalue)
        p.dvalue[row * p.ld_dvalue] =
            from_f32<T>(p.coef->value_weight * r.value.error * r.value.slope * scale);
    return scale;
}

template <typename T>
__device__ float cat_logp(const CatP<T> &c, const int32_t *action, int64_t row, float *entropy)
{
    float logp = 0.0f;
    *entropy   = 0.0f;
    for (int s = 0; s < c.n_seg; s++) {
        Choice<T> one = choice_at(c, row, s);
        logp += one.at(action[row * c.n_seg + s]) - one.lse;
        *entropy += one.entropy;
    }
    return logp;
}

template <typename T>
__global__ void __launch_bounds__(POLICY_THREADS) ppo_cat_kernel(PpoP<T> p, CatP<T> c, const int32_t *action)
{
    int64_t row = policy_row();
    if (row >= p.rows) return;
    float entropy, logp = cat_logp(c, action, row, &entropy);
    ppo_put(p, row, logp, entropy);
}

/* dx may be the logits: a segment is read before it is written. */
template <typename T>
__global__ void __launch_bounds__(POLICY_THREADS)
    ppo_cat_dx_kernel(PpoP<T> p, CatP<T> c, const int32_t *action, T *dlogits, int64_t ld_dx)
{
    int64_t row = policy_row();
    if (row >= p.rows) return;
    float  entropy;
    PpoRow r     = ppo_row(p, row, cat_logp(c, action, row, &entropy));
    float  scale = ppo_put_dvalue(p, row, r);
    if (!dlogits) return;
    T    *dx    = dlogits + row * ld_dx;
    float dlogp = r.policy.dlogp * scale, weight = p.coef->entropy_weight * scale;
    int   done = 0;
    for (int s = 0; s < c.n_seg; s++) {
        Choice<T> one = choice_at(c, row, s);
        for (; done < one.first; done++) dx[done] = from_f32<T>(0.0f);
        for (int k = 0; k < one.n; k++, done++) {
            float q = one.chance(k), hit = k == action[row * c.n_seg + s] ? 1.0f : 0.0f;
            float d  = dlogp * (hit - q) + weight * q * (one.at(k) - one.lse + one.entropy);
            dx[done] = from_f32<T>(one.may(k) ? d : 0.0f);
        }
    }
    for (; done < c.cols; done++) dx[done] = from_f32<T>(0.0f);
}

template <typename T, typename U>
__device__ float gauss_logp(const GaussP<T, U> &g, int64_t row, float *entropy)
{
    float logp = 0.0f;
    *entropy   = 0.0f;
    for (int k = 0; k < g.cols; k++) {
        float s = g.std_at(row, k), z = (g.action[row * g.ld_action + k] - g.mean_at(row, k)) * expf(-s);
        logp += -0.5f * z * z - s - HALF_LOG_2PI;
        *entropy += s + HALF_LOG_2PIE;
    }
    return logp;
}

template <typename T, typename U>
__global__ void __launch_bounds__(POLICY_THREADS) ppo_gauss_kernel(PpoP<T> p, GaussP<T, U> g)
{
    int64_t row = policy_row();
    if (row >= p.rows) return;
    float entropy, logp = gauss_logp(g, row, &entropy);
    ppo_put(p, row, logp, entropy);
}

template <typename T> struct GaussDst {
    T      *dmean, *dlog_std;
    int64_t ld_mean, ld_std;
};

template <typename T, typename U>
__global__ void __launch_bounds__(POLICY_THREADS)
    ppo_gauss_dx_kernel(PpoP<T> p, GaussP<T, U> g, GaussDst<T> to)
{
    int64_t row = policy_row();
    if (row >= p.rows) return;
    float  entropy;
    PpoRow r     = ppo_row(p, row, gauss_logp(g, row, &entropy));
    float  scale = ppo_put_dvalue(p, row, r);
    for (int k = 0; k < g.cols; k++) {
        float inv = expf(-g.std_at(row, k)), z = (g.action[row * g.ld_action + k] - g.mean_at(row, k)) * inv;
        if (to.dmean) to.dmean[row * to.ld_mean + k] = from_f32<T>(r.policy.dlogp * z * inv * scale);
        if (to.dlog_std) {
            float d = (r.policy.dlogp * (z * z - 1.0f) - p.coef->entropy_weight) * scale;
            to.dlog_std[row * to.ld_std + k] = from_f32<T>(d);
        }
    }
}

/* The fields of an argument struct that all four have; A: the struct. */
template <typename T, typename A> static PpoP<T> ppo_args(const A *a, const Tensor *policy)
{
    PpoP<T> p   = {};
    p.value     = t_data<T>(a->value);
    p.old_logp  = t_data<float>(a->old_logp);
    p.adv       = t_data<float>(a->adv);
    p.ret       = t_data<float>(a->ret);
    p.old_value = t_data<float>(a->old_value);
    p.norm      = t_data<float>(a->norm);
    p.valid     = t_data<int32_t>(a->valid);
    p.coef      = t_data<PpoCoef>(a->coef);
    p.ld_value  = t_ld(a->value);
    p.rows      = tensor_rows(policy);
    p.slot      = a->slot;
    return p;
}

template <typename A> static int ppo_need(const char *op, const A *a, const Tensor *policy)
{
    const Tensor *f32[] = { a->old_logp, a->adv, a->ret, a->old_value, a->norm, a->coef };
    for (const Tensor *t : f32) TRY(k_need_dtype(op, t, DT_F32));
    TRY(k_need_dtype(op, a->valid, DT_I32));
    return k_need_dtype(op, a->value, policy->dtype);
}

extern "C" int cuda_ppo_cat_fwd(Dev *dev, const PpoCatFwd *a)
{
    const char *op = "ppo_cat_fwd";
    TRY(ppo_need(op, a, a->logits));
    return k_dispatch(a->logits->dtype, op, [&](auto zero) {
        using T   = decltype(zero);
        PpoP<T> p = ppo_args<T>(a, a->logits);
        p.loss    = t_data<float>(a->loss);
        p.parts   = t_data<float>(a->parts);
        return k_launch(op, ppo_cat_kernel<T>, policy_grid(p.rows), POLICY_THREADS, 0, cuda_stream(dev), p,
                        cat_args<T>(a->logits, a->mask, a->seg), t_data<int32_t>(a->action));
    });
}

extern "C" int cuda_ppo_cat_dx(Dev *dev, const PpoCatDx *a)
{
    const char *op = "ppo_cat_dx";
    TRY(ppo_need(op, a, a->logits));
    TRY(k_need_dtype(op, a->dlogits, a->logits->dtype));
    TRY(k_need_dtype(op, a->dvalue, a->logits->dtype));
    return k_dispatch(a->logits->dtype, op, [&](auto zero) {
        using T     = decltype(zero);
        PpoP<T> p   = ppo_args<T>(a, a->logits);
        p.state     = t_data<StepState>(a->state);
        p.dvalue    = t_data<T>(a->dvalue);
        p.ld_dvalue = t_ld(a->dvalue);
        return k_launch(op, ppo_cat_dx_kernel<T>, policy_grid(p.rows), POLICY_THREADS, 0, cuda_stream(dev), p,
                        cat_args<T>(a->logits, a->mask, a->seg), t_data<int32_t>(a->action),
                        t_data<T>(a->dlogits), t_ld(a->dlogits));
    });
}

extern "C" int cuda_ppo_gauss_fwd(Dev *dev, const PpoGaussFwd *a)
{
    const char *op = "ppo_gauss_fwd";
    TRY(ppo_need(op, a, a->mean));
    return gauss_dispatch(a->mean, a->log_std, op, [&](auto zero, auto nil) {
        using T   = decltype(zero);
        using U   = decltype(nil);
        PpoP<T> p = ppo_args<T>(a, a->mean);
        p.loss    = t_data<float>(a->loss);
        p.parts   = t_data<float>(a->parts);
        auto g    = gauss_args<T, U>(a->mean, a->log_std, a->action);
        return k_launch(op, ppo_gauss_kernel<T, U>, policy_grid(p.rows), POLICY_THREADS, 0, cuda_stream(dev),
                        p, g);
    });
}

extern "C" int cuda_ppo_gauss_dx(Dev *dev, const PpoGaussDx *a)
{
    const char *op = "ppo_gauss_dx";
    TRY(ppo_need(op, a, a->mean));
    TRY(k_need_dtype(op, a->dmean, a->mean->dtype));
    TRY(k_need_dtype(op, a->dlog_std, a->mean->dtype));
    TRY(k_need_dtype(op, a->dvalue, a->mean->dtype));
    return gauss_dispatch(a->mean, a->log_std, op, [&](auto zero, auto nil) {
        using T        = decltype(zero);
        using U        = decltype(nil);
        PpoP<T> p      = ppo_args<T>(a, a->mean);
        p.state        = t_data<StepState>(a->state);
        p.dvalue       = t_data<T>(a->dvalue);
        p.ld_dvalue    = t_ld(a->dvalue);
        auto        g  = gauss_args<T, U>(a->mean, a->log_std, a->action);
        GaussDst<T> to = { t_data<T>(a->dmean), t_data<T>(a->dlog_std), t_ld(a->dmean), t_ld(a->dlog_std) };
        return k_launch(op, ppo_gauss_dx_kernel<T, U>, policy_grid(p.rows), POLICY_THREADS, 0,
                        cuda_stream(dev), p, g, to);
    });
}
