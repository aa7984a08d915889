/* Softmax over stored attention scores, forward and backward.
 *
 *     p  = exp(scale s - lse) for the keys a query sees, 0 elsewhere;  lse = log sum exp(scale s)
 *     ds = scale p (dp - sum over keys of p dp)
 *
 * Layout: s, dp f32[B,T,T] and ds[B,T,T] are dense; p is one head of [B,H,T,T], so its sequences are
 *     p_stride apart.
 * Grid: one warp per row (b, t), eight rows a block; lane l takes keys l, l+32, ...
 * Bytes: s twice (the second time from the L1 or L2 cache) and p once; backward dp and p twice, ds once.
 *     Sums have a fixed order: maximum and sum run along one lane's keys, then a butterfly. */
#include "dev/cuda/cuda_attn_stored.h"

#include "dev/cuda/k_common.cuh"

enum { ROW_WARPS = 8 };

/* Keys [*lo, *hi) that query t of sequence b sees; none: [0, 0). */
__device__ __forceinline__ void key_span(const StoredRows &r, int64_t b, int64_t t, int *lo, int *hi)
{
    *lo = r.mask == MASK_DOCUMENT ? r.doc[b * r.T + t] : 0;
    *hi = r.mask == MASK_FULL ? (int)r.T : (int)t + 1;
    if (r.mask == MASK_PREFIX) *hi = min(max(*hi, r.prefix[b]), (int)r.T);
    if (r.mask == MASK_RANGE) {
        *lo = max(r.first[b * r.T + t], 0);
        *hi = min(r.last[b * r.T + t], (int)r.T - 1) + 1;
    }
    if (*hi <= *lo) *lo = *hi = 0;
}

template <typename T>
__global__ void softmax_rows_kernel(T *p, float *lse, const float *s, const StoredRows r)
{
    int     lane = threadIdx.x % WARP, lo, hi, n = (int)r.T;
    int64_t row = (int64_t)blockIdx.x * ROW_WARPS + threadIdx.x / WARP, b = row / r.T, t = row % r.T;
    if (b >= r.B) return;
    key_span(r, b, t, &lo, &hi);
    s += row * r.T;
    p += b * r.p_stride + t * r.T;
    float top = -INFINITY, sum = 0.0f;
    for (int k = lo + lane; k < hi; k += WARP) top = fmaxf(top, s[k]);
    top = warp_max(top);
    for (int k = lo + lane; k < hi; k += WARP) sum += expf((s[k] - top) * r.scale);
    sum       = warp_sum(sum);
    float inv = 1.0f / sum;
    for (int k = lane; k < n; k += WARP) {
        float w = k >= lo && k < hi ? expf((s[k] - top) * r.scale) * inv : 0.0f;
        p[k]    = from_f32<T>(w);
    }
    if (lane == 0) lse[b * r.lse_stride + t] = lo < hi ? top * r.scale + logf(sum) : 0.0f;
}

template <typename T>
__global__ void softmax_grad_kernel(T *ds, const T *p, const float *dp, const StoredRows r)
{
    int     lane = threadIdx.x % WARP, n = (int)r.T;
    int64_t row = (int64_t)blockIdx.x * ROW_WARPS + threadIdx.x / WARP, b = row / r.T, t = row % r.T;
    if (b >= r.B) return;
    dp += row * r.T;
    ds += row * r.T;
    p += b * r.p_stride + t * r.T;
    float sum = 0.0f;
    for (int k = lane; k < n; k += WARP) sum = fmaf(to_f32(p[k]), dp[k], sum);
    sum = warp_sum(sum);
    for (int k = lane; k < n; k += WARP) ds[k] = from_f32<T>(to_f32(p[k]) * (dp[k] - sum) * r.scale);
}

static unsigned row_blocks(const StoredRows *r) { return (unsigned)ceil_div(r->B * r->T, ROW_WARPS); }

int cuda_softmax_rows(Dev *dev, const StoredRows *r, void *p, float *lse, const float *s)
{
    return cuda_dispatch(r->dtype, "attn_fwd", [&](auto zero) {
        using T = decltype(zero);
        return k_launch("attn_fwd", softmax_rows_kernel<T>, row_blocks(r), ROW_WARPS * WARP, 0,
                        cuda_stream(dev), (T *)p, lse, s, *r);
    });
}

int cuda_softmax_grad(Dev *dev, const StoredRows *r, void *ds, const void *p, const float *dp)
{
    return cuda_dispatch(r->dtype, "attn_bwd", [&](auto zero) {
        using T = decltype(zero);
        return k_launch("attn_bwd", softmax_grad_kernel<T>, row_blocks(r), ROW_WARPS * WARP, 0,
                        cuda_stream(dev), (T *)ds, (const T *)p, dp, *r);
    });
}
