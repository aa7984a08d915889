/* Losses over rows besides plain cross-entropy: XENT_FWD and XENT_DX with soft targets or hits, MSE_FWD,
 * MSE_DX, KL_FWD, KL_DX, KL_TEACHER.
 *
 * Maths    as in cpu/cpu_xent.c and cpu/cpu_loss.c.
 * Layout   logits, x [N,C] with a row stride; targets i32[N]; losses, lse f32[N]; MSE's target and old are
 *          f32.
 * Order    thread t of a block takes columns t, t + LOSS_THREADS, ...; threads are added as a butterfly
 *          within a warp, then warps in order: it depends on the width alone.
 * Grid     a block a row (MSE_FWD: a warp a row; MSE_DX: a thread an element).
 * Bytes    XENT_FWD 2*V*size a row (the second time from the cache), XENT_DX 2*V*size;
 *          KL_FWD 2*V*size, KL_DX 3*V*size, KL_TEACHER V*size + 16*V. */
#include "dev/cuda/k_common.cuh"
#include "dev/op_math.h"

enum { LOSS_THREADS = 256, LOSS_WARPS = LOSS_THREADS / WARP };

#define LOSS_FLOOR (-1e30f) /* below every logit */

/* The sum (or the largest) over the block, the same bits in every thread. */
__device__ __forceinline__ float block_all_sum(float v, float *slot)
{
    v = warp_sum(v);
    __syncthreads();
    if (threadIdx.x % WARP == 0) slot[threadIdx.x / WARP] = v;
    __syncthreads();
    float sum = slot[0];
    for (int w = 1; w < LOSS_WARPS; w++) sum = __fadd_rn(sum, slot[w]);
    return sum;
}
__device__ __forceinline__ float block_all_max(float v, float *slot)
{
    v = warp_max(v);
    __syncthreads();
    if (threadIdx.x % WARP == 0) slot[threadIdx.x / WARP] = v;
    __syncthreads();
    float top = slot[0];
    for (int w = 1; w < LOSS_WARPS; w++) top = fmaxf(top, slot[w]);
    return top;
}

/* ---- Cross-entropy with soft targets ------------------------------------------------------------------ */

template <typename T> struct SoftP {
    float           *loss, *lse;
    float           *hits;
    T               *dlogits;
    const T         *logits;
    const int32_t   *target, *target2;
    const float     *lambda;
    const StepState *state;
    int64_t          ld_x, ld_d;
    int              cols, n_class, slot;
    float            smooth;
};

template <typename T> __global__ void __launch_bounds__(LOSS_THREADS) xent_soft_kernel(SoftP<T> p)
{
    __shared__ float slot[LOSS_WARPS];
    int64_t          row    = blockIdx.x;
    const T         *x      = p.logits + row * p.ld_x;
    int              target = p.target[row], other = p.target2 ? p.target2[row] : target;
    float            hit = to_f32(x[MAX(target, 0)]), top = LOSS_FLOOR, sum = 0, all = 0, before = 0;
    for (int c = threadIdx.x; c < p.n_class; c += LOSS_THREADS) top = fmaxf(top, to_f32(x[c]));
    top = block_all_max(top, slot);
    for (int c = threadIdx.x; c < p.n_class; c += LOSS_THREADS) {
        float v = to_f32(x[c]);
        sum += expf(v - top);
        all += v;
        before += v > hit || (v == hit && c < target) ? 1.0f : 0.0f;
    }
    sum    = block_all_sum(sum, slot);
    all    = block_all_sum(all, slot);
    before = block_all_sum(before, slot);
    if (threadIdx.x != 0) return;
    float lse = top + logf(sum), lambda = p.lambda ? p.lambda[row] : 1.0f;
    float hard  = fmaf(lambda, hit, (1.0f - lambda) * to_f32(x[other < 0 ? 0 : other]));
    p.lse[row]  = lse;
    p.loss[row] = target < 0 ? 0.0f : lse - (1.0f - p.smooth) * hard - p.smooth * (all / (float)p.n_class);
    /* Integers: the order of the additions does not matter. */
    if (p.hits && target >= 0 && before < 1.0f)
        atomicAdd(&p.hits[0], 1.0f); /* whole numbers: any order gives the same */
    if (p.hits && target >= 0 && before < 5.0f) atomicAdd(&p.hits[1], 1.0f);
}

template <typename T> __global__ void __launch_bounds__(LOSS_THREADS) xent_soft_dx_kernel(SoftP<T> p)
{
    int64_t  row    = blockIdx.x;
    const T *x      = p.logits + row * p.ld_x;
    T       *dx     = p.dlogits + row * p.ld_d;
    int      target = p.target[row], other = p.target2 ? p.target2[row] : target;
    float    lse = p.lse[row], lambda = p.lambda ? p.lambda[row] : 1.0f, scale = step_scale(p.state, p.slot);
    float    even = p.smooth / (float)p.n_class, one = (1.0f - p.smooth) * lambda,
          two = (1.0f - p.smooth) * (1.0f - lambda);
    for (int c = threadIdx.x; c < p.cols; c += LOSS_THREADS) {
        float q = even + (c == target ? one : 0.0f) + (c == other ? two : 0.0f);
        float d = target >= 0 && c < p.n_class ? (expf(to_f32(x[c]) - lse) - q) * scale : 0.0f;
        dx[c]   = from_f32<T>(d);
    }
}

extern "C" int cuda_xent_soft_fwd(Dev *dev, const XentFwd *a)
{
    const char *op = "xent_fwd";
    TRY(k_need_dtype(op, a->target, DT_I32));
    TRY(k_need_dtype(op, a->target2, DT_I32));
    TRY(k_need_dtype(op, a->hits, DT_F32));
    return k_dispatch_half(a->logits->dtype, op, [&](auto zero) {
        using T    = decltype(zero);
        SoftP<T> p = {};
        p.loss     = t_data<float>(a->loss);
        p.lse      = t_data<float>(a->lse);
        p.hits     = t_data<float>(a->hits);
        p.logits   = t_data<T>(a->logits);
        p.target   = t_data<int32_t>(a->target);
        p.target2  = t_data<int32_t>(a->target2);
        p.lambda   = t_data<float>(a->lambda);
        p.ld_x     = t_ld(a->logits);
        p.n_class  = (int)a->n_class;
        p.smooth   = a->smooth;
        return k_launch(op, xent_soft_kernel<T>, dim3((unsigned)tensor_rows(a->logits)), LOSS_THREADS, 0,
                        cuda_stream(dev), p);
    });
}

extern "C" int cuda_xent_soft_dx(Dev *dev, const XentDx *a)
{
    const char *op = "xent_dx";
    TRY(k_need_dtype(op, a->target, DT_I32));
    TRY(k_need_dtype(op, a->target2, DT_I32));
    TRY(k_need_dtype(op, a->dlogits, a->logits->dtype));
    return k_dispatch_half(a->logits->dtype, op, [&](auto zero) {
        using T    = decltype(zero);
        SoftP<T> p = {};
        p.lse      = t_data<float>(a->lse);
        p.dlogits  = t_data<T>(a->dlogits);
        p.logits   = t_data<T>(a->logits);
        p.target   = t_data<int32_t>(a->target);
        p.target2  = t_data<int32_t>(a->target2);
        p.lambda   = t_data<float>(a->lambda);
        p.state    = t_data<StepState>(a->state);
        p.ld_x     = t_ld(a->logits);
        p.ld_d     = t_ld(a->dlogits);
        p.cols     = (int)tensor_cols(a->logits);
        p.n_class  = (int)a->n_class;
        p.slot     = a->slot;
        p.smooth   = a->smooth;
        return k_launch(op, xent_soft_dx_kernel<T>, dim3((unsigned)tensor_rows(a->logits)), LOSS_THREADS, 0,
                        cuda_stream(dev), p);
    });
}

/* ---- Mean squared error -------------------------------------------------------------------------------- */

template <typename T> struct MseP {
    float           *loss;
    T               *dx;
    const T         *x;
    const float     *target, *old, *clip;
    const StepState *state;
    int64_t          ld_x, ld_dx, ld_target, ld_old, rows;
    int              cols, slot;
};

template <typename T> __device__ __forceinline__ MseTerm mse_term(const MseP<T> &p, int64_t row, int col)
{
    float x = to_f32(p.x[row * p.ld_x + col]), target = p.target[row * p.ld_target + col];
    return p.old ? mse_clipped(x, target, p.old[row * p.ld_old + col], *p.clip) : mse_plain(x, target);
}

template <typename T> __global__ void __launch_bounds__(LOSS_THREADS) mse_kernel(MseP<T> p)
{
    int64_t row = (int64_t)blockIdx.x * LOSS_WARPS + threadIdx.x / WARP;
    if (row >= p.rows) return;
    float sum = 0.0f;
    for (int c = threadIdx.x % WARP; c < p.cols; c += WARP) {
        MseTerm e = mse_term(p, row, c);
        sum       = fmaf(0.5f * e.error, e.error, sum);
    }
    sum = warp_sum(sum);
    if (threadIdx.x % WARP == 0) p.loss[row] = sum;
}

template <typename T> __global__ void __launch_bounds__(LOSS_THREADS) mse_dx_kernel(MseP<T> p)
{
    int64_t i = (int64_t)blockIdx.x * LOSS_THREADS + threadIdx.x, row = i / p.cols;
    if (row >= p.rows) return;
    int     col               = (int)(i - row * p.cols);
    MseTerm e                 = mse_term(p, row, col);
    p.dx[row * p.ld_dx + col] = from_f32<T>(e.error * e.slope * step_scale(p.state, p.slot));
}

template <typename T>
static MseP<T> mse_args(const Tensor *x, const Tensor *target, const Tensor *old, const Tensor *clip)
{
    MseP<T> p   = {};
    p.x         = t_data<T>(x);
    p.target    = t_data<float>(target);
    p.old       = t_data<float>(old);
    p.clip      = t_data<float>(clip);
    p.ld_x      = t_ld(x);
    p.ld_target = t_ld(target);
    p.ld_old    = t_ld(old);
    p.rows      = tensor_rows(x);
    p.cols      = (int)tensor_cols(x);
    return p;
}

extern "C" int cuda_mse_fwd(Dev *dev, const MseFwd *a)
{
    TRY(k_need_dtype("mse_fwd", a->target, DT_F32));
    TRY(k_need_dtype("mse_fwd", a->old, DT_F32));
    return k_dispatch(a->x->dtype, "mse_fwd", [&](auto zero) {
        using T       = decltype(zero);
        MseP<T> p     = mse_args<T>(a->x, a->target, a->old, a->clip);
        p.loss        = t_data<float>(a->loss);
        unsigned grid = (unsigned)ceil_div(p.rows, LOSS_WARPS);
        return k_launch("mse_fwd", mse_kernel<T>, dim3(grid), LOSS_THREADS, 0, cuda_stream(dev), p);
    });
}

extern "C" int cuda_mse_dx(Dev *dev, const MseDx *a)
{
    TRY(k_need_dtype("mse_dx", a->target, DT_F32));
    TRY(k_need_dtype("mse_dx", a->old, DT_F32));
    TRY(k_need_dtype("mse_dx", a->dx, a->x->dtype));
    return k_dispatch(a->x->dtype, "mse_dx", [&](auto zero) {
        using T       = decltype(zero);
        MseP<T> p     = mse_args<T>(a->x, a->target, a->old, a->clip);
        p.dx          = t_data<T>(a->dx);
        p.ld_dx       = t_ld(a->dx);
        p.state       = t_data<StepState>(a->state);
        p.slot        = a->slot;
        unsigned grid = (unsigned)ceil_div(p.rows * p.cols, LOSS_THREADS);
        return k_launch("mse_dx", mse_dx_kernel<T>, dim3(grid), LOSS_THREADS, 0, cuda_stream(dev), p);
    });
}

/* ---- Kullback-Leibler divergence ----------------------------------------------------------------------- */

template <typename T, typename U> struct KlP {
    float           *loss, *lse, *tlse;
    T               *dlogits;
    const T         *logits;
    const U         *teacher;
    const int32_t   *target;
    const StepState *state;
    int64_t          ld_d, ld_x, ld_t;
    int              cols, n_class, slot;
    float            tau;
};

enum { KL_PACK = 8 }; /* columns a thread takes at a time */

/* Columns [0, KL_PACK) from p on; those from n on are LOSS_FLOOR. */
template <typename T, bool AL> __device__ __forceinline__ void kl_load(const T *p, int n, float *f)
{
#pragma unroll
    for (int i = 0; i < KL_PACK; i += Pack<T>::N) vec_unpack(vec_load<T, AL>(p + i, n - i), f + i);
#pragma unroll
    for (int i = 0; i < KL_PACK; i++) f[i] = i < n ? f[i] : LOSS_FLOOR;
}

/* One read of both rows: a thread keeps the largest logits so far and sums about them. */
template <typename T, typename U, bool AL>
__global__ void __launch_bounds__(LOSS_THREADS) kl_kernel(KlP<T, U> p)
{
    __shared__ float slot[LOSS_WARPS];
    int64_t          row = blockIdx.x;
    float max_s = LOSS_FLOOR, max_t = LOSS_FLOOR, sum_s = 0, sum_t = 0, cross = 0, inv = 1.0f / p.tau;
    for (int c = (int)threadIdx.x * KL_PACK; c < p.n_class; c += LOSS_THREADS * KL_PACK) {
        float s[KL_PACK], t[KL_PACK], top_s = max_s, top_t = max_t;
        kl_load<T, AL>(p.logits + row * p.ld_x + c, p.n_class - c, s);
        kl_load<U, AL>(p.teacher + row * p.ld_t + c, p.n_class - c, t);
#pragma unroll
        for (int i = 0; i < KL_PACK; i++) {
            top_s = fmaxf(top_s, s[i]);
            top_t = fmaxf(top_t, t[i]);
        }
        float old_s = expf((max_s - top_s) * inv), old_t = expf((max_t - top_t) * inv);
        sum_s *= old_s;
        sum_t *= old_t;
        cross *= old_t;
#pragma unroll
        for (int i = 0; i < KL_PACK; i++) {
            float e = expf((t[i] - top_t) * inv);
            sum_s += expf((s[i] - top_s) * inv);
            sum_t += e;
            cross = fmaf(e, (t[i] - s[i]) * inv, cross);
        }
        max_s = top_s;
        max_t = top_t;
    }
    float top_s = block_all_max(max_s, slot), top_t = block_all_max(max_t, slot);
    float own = expf((max_t - top_t) * inv);
    sum_s     = block_all_sum(sum_s * expf((max_s - top_s) * inv), slot);
    sum_t     = block_all_sum(sum_t * own, slot);
    cross     = block_all_sum(cross * own, slot);
    if (threadIdx.x != 0) return;
    float lse = top_s / p.tau + logf(sum_s), tlse = top_t / p.tau + logf(sum_t);
    p.lse[row]  = lse;
    p.tlse[row] = tlse;
    p.loss[row] = p.target && p.target[row] < 0 ? 0.0f : p.tau * p.tau * (cross / sum_t - tlse + lse);
}

template <typename T, typename U, bool AL>
__global__ void __launch_bounds__(LOSS_THREADS) kl_dx_kernel(KlP<T, U> p)
{
    int64_t row   = blockIdx.x;
    bool    live  = !p.target || p.target[row] >= 0;
    float   scale = p.tau * step_scale(p.state, p.slot), lse = p.lse[row], tlse = p.tlse[row];
    for (int c = (int)threadIdx.x * KL_PACK; c < p.cols; c += LOSS_THREADS * KL_PACK) {
        float s[KL_PACK], t[KL_PACK];
        int   n = live ? p.n_class - c : 0;
        kl_load<T, AL>(p.logits + row * p.ld_x + c, n, s);
        kl_load<U, AL>(p.teacher + row * p.ld_t + c, n, t);
#pragma unroll
        for (int i = 0; i < KL_PACK; i++) {
            float d = (expf(s[i] / p.tau - lse) - expf(t[i] / p.tau - tlse)) * scale;
            s[i]    = i < n ? d : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < KL_PACK; i += Pack<T>::N) {
            vec_store<T, AL>(p.dlogits + row * p.ld_d + c + i, vec_pack<T>(s + i), p.cols - c - i);
        }
    }
}

template <typename T, typename U>
static KlP<T, U> kl_args(const Tensor *logits, const Tensor *teacher, const Tensor *lse, const Tensor *tlse,
                         const Tensor *target)
{
    KlP<T, U> p = {};
    p.lse       = t_data<float>(lse);
    p.tlse      = t_data<float>(tlse);
    p.logits    = t_data<T>(logits);
    p.teacher   = t_data<U>(teacher);
    p.target    = t_data<int32_t>(target);
    p.ld_x      = t_ld(logits);
    p.ld_t      = t_ld(teacher);
    p.cols      = (int)tensor_cols(logits);
    return p;
}

extern "C" int cuda_kl_fwd(Dev *dev, const KlFwd *a)
{
    TRY(k_need_dtype("kl_fwd", a->target, DT_I32));
    return k_dispatch(a->logits->dtype, "kl_fwd", [&](auto zero) {
        return k_dispatch(a->teacher->dtype, "kl_fwd", [&](auto nil) {
            using T     = decltype(zero);
            using U     = decltype(nil);
            KlP<T, U> p = kl_args<T, U>(a->logits, a->teacher, a->lse, a->tlse, a->target);
            p.loss      = t_data<float>(a->loss);
            p.n_class   = (int)a->n_class;
            p.tau       = a->tau;
            return k_flag(cuda_packable(a->logits) && cuda_packable(a->teacher), [&](auto al) {
                return k_launch("kl_fwd", kl_kernel<T, U, decltype(al)::value>,
                                dim3((unsigned)tensor_rows(a->logits)), LOSS_THREADS, 0, cuda_stream(dev), p);
            });
        });
    });
}

extern "C" int cuda_kl_dx(Dev *dev, const KlDx *a)
{
    TRY(k_need_dtype("kl_dx", a->target, DT_I32));
    TRY(k_need_dtype("kl_dx", a->dlogits, a->logits->dtype));
    return k_dispatch(a->logits->dtype, "kl_dx", [&](auto zero) {
        return k_dispatch(a->teacher->dtype, "kl_dx", [&](auto nil) {
            using T     = decltype(zero);
            using U     = decltype(nil);
            KlP<T, U> p = kl_args<T, U>(a->logits, a->teacher, a->lse, a->tlse, a->target);
            p.dlogits   = t_data<T>(a->dlogits);
            p.ld_d      = t_ld(a->dlogits);
            p.state     = t_data<StepState>(a->state);
            p.n_class   = (int)a->n_class;
            p.slot      = a->slot;
            p.tau       = a->tau;
            int aligned = cuda_packable(a->logits) && cuda_packable(a->teacher) && cuda_packable(a->dlogits);
            return k_flag(aligned, [&](auto al) {
                return k_launch("kl_dx", kl_dx_kernel<T, U, decltype(al)::value>,
                                dim3((unsigned)tensor_rows(a->logits)), LOSS_THREADS, 0, cuda_stream(dev), p);
            });
        });
    });
}

template <typename T> struct KlTeacherP {
    float         *y;
    const T       *logits;
    const float   *x, *rest;
    const int32_t *id;
    int64_t        ld_y, ld_l, ld_x, ld_id;
    int            cols, n_class, n_id;
    float          tau;
};

/* A block a row. Barriers make the block's own stores to y visible to all of its threads. */
template <typename T> __global__ void __launch_bounds__(LOSS_THREADS) kl_teacher_kernel(KlTeacherP<T> p)
{
    __shared__ float slot[LOSS_WARPS];
    int64_t          row    = blockIdx.x;
    float           *y      = p.y + row * p.ld_y;
    const T         *logits = p.logits + row * p.ld_l;
    const int32_t   *id     = p.id + row * p.ld_id;
    float            top = LOSS_FLOOR, sum = 0, inv = 1.0f / p.tau;
    for (int c = threadIdx.x; c < p.cols; c += LOSS_THREADS) y[c] = c < p.n_class ? to_f32(logits[c]) : 0.0f;
    __syncthreads();
    for (int i = threadIdx.x; i < p.n_id; i += LOSS_THREADS) {
        if (id[i] >= 0) y[id[i]] = LOSS_FLOOR;
    }
    __syncthreads();
    for (int c = threadIdx.x; c < p.n_class; c += LOSS_THREADS) {
        float v = y[c], more = fmaxf(top, v);
        sum = fmaf(sum, expf((top - more) * inv), expf((v - more) * inv));
        top = more;
    }
    float all   = block_all_max(top, slot);
    sum         = block_all_sum(sum * expf((top - all) * inv), slot);
    float shift = p.tau * (p.rest[row] - (all / p.tau + logf(sum)));
    for (int c = threadIdx.x; c < p.n_class; c += LOSS_THREADS) y[c] += shift;
    __syncthreads();
    for (int i = threadIdx.x; i < p.n_id; i += LOSS_THREADS) {
        if (id[i] >= 0) y[id[i]] = p.x[row * p.ld_x + i];
    }
}

extern "C" int cuda_kl_teacher(Dev *dev, const KlTeacher *a)
{
    TRY(k_need_dtype("kl_teacher", a->y, DT_F32));
    TRY(k_need_dtype("kl_teacher", a->x, DT_F32));
    TRY(k_need_dtype("kl_teacher", a->id, DT_I32));
    return k_dispatch(a->logits->dtype, "kl_teacher", [&](auto zero) {
        using T         = decltype(zero);
        KlTeacherP<T> p = {};
        p.y             = t_data<float>(a->y);
        p.logits        = t_data<T>(a->logits);
        p.x             = t_data<float>(a->x);
        p.rest          = t_data<float>(a->rest);
        p.id            = t_data<int32_t>(a->id);
        p.ld_y          = t_ld(a->y);
        p.ld_l          = t_ld(a->logits);
        p.ld_x          = t_ld(a->x);
        p.ld_id         = t_ld(a->id);
        p.cols          = (int)tensor_cols(a->y);
        p.n_class       = (int)a->n_class;
        p.n_id          = (int)tensor_cols(a->x);
        p.tau           = a->tau;
        return k_launch("kl_teacher", kl_teacher_kernel<T>, dim3((unsigned)tensor_rows(a->y)), LOSS_THREADS,
                        0, cuda_stream(dev), p);
    });
}
