/* Attention of one new token per sequence against the key/value cache; also appends the token's k and v.
 *
 *     o[b,h] = softmax(scale q[b,h] . k[b,0..n]) v[b,0..n],  n = len[0]
 *
 * Layout: qkv[B,(H+2K)*D]; caches [B,Tmax,K,D].
 * Grid: one block per (b, h). The first query head of a group writes the cache; every block takes the new row
 *     from qkv, so no block waits for another.
 * Block: 8 warps; warp w takes keys 4w.., stepping by 32; a lane holds every 32nd element of the head. Each
 *     warp runs an online softmax, and the eight are merged in shared memory in a fixed order.
 * Bytes: the caches once per query head (a group's heads find them in L2). */
#include "dev/cuda/cuda_attn.h"

#include "dev/cuda/cuda_check.h"
#include "dev/cuda/cuda_types.cuh"

enum { WARPS = 8, THREADS = 32 * WARPS, KEYS = 4 };

struct DecodeShape {
    int     H, K, D, max_len;
    int64_t ld_qkv, ld_o;
    int64_t cache_batch, cache_row; /* elements between sequences and between positions */
    float   scale;
};

/* acc[e] holds element lane + 32e of a head; E = ceil(D / 32). */
template <typename T, int E>
__device__ __forceinline__ void load_row(float (&x)[E], const T *row, int D, float mul)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int e = 0; e < E; e++) x[e] = lane + 32 * e < D ? to_f32(row[lane + 32 * e]) * mul : 0.0f;
}

__device__ __forceinline__ float warp_sum(float v)
{
#pragma unroll
    for (int d = 16; d > 0; d /= 2) v += __shfl_xor_sync(0xffffffffu, v, d);
    return v;
}

template <typename T, int E>
__global__ void __launch_bounds__(THREADS)
    decode_kernel(T *o, T *kcache, T *vcache, const T *qkv, const int *len, DecodeShape sh)
{
    __shared__ float warp_m[WARPS], warp_l[WARPS], warp_acc[WARPS][32 * E];
    int              b = blockIdx.x / sh.H, h = blockIdx.x % sh.H, group = sh.H / sh.K, kv = h / group;
    int      n = min(max(len[0], 0), sh.max_len - 1), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const T *row = qkv + b * sh.ld_qkv, *k_new = row + (int64_t)(sh.H + kv) * sh.D,
            *v_new = k_new + (int64_t)sh.K * sh.D;
    T *kc          = kcache + b * sh.cache_batch + (int64_t)kv * sh.D,
      *vc          = vcache + b * sh.cache_batch + (int64_t)kv * sh.D;
    if (h % group == 0) {
        for (int c = threadIdx.x; c < sh.D; c += THREADS) {
            kc[n * sh.cache_row + c] = k_new[c];
            vc[n * sh.cache_row + c] = v_new[c];
        }
    }
    float q[E], acc[E], m = -INFINITY, l = 0.0f;
    load_row<T, E>(q, row + (int64_t)h * sh.D, sh.D, sh.scale);
#pragma unroll
    for (int e = 0; e < E; e++) acc[e] = 0.0f;
    for (int j0 = warp * KEYS; j0 <= n; j0 += WARPS * KEYS) {
        float s[KEYS], m_new = m;
#pragma unroll
        for (int u = 0; u < KEYS; u++) {
            int   j = j0 + u;
            float x[E], dot = 0.0f;
            load_row<T, E>(x, j < n ? kc + j * sh.cache_row : k_new, sh.D, 1.0f);
#pragma unroll
            for (int e = 0; e < E; e++) dot = fmaf(q[e], x[e], dot);
            s[u]  = warp_sum(dot);
            s[u]  = j <= n ? s[u] : -INFINITY;
            m_new = fmaxf(m_new, s[u]);
        }
        float keep = expf(m - m_new); /* key j0 is in range, so m_new is finite */
        m          = m_new;
        l *= keep;
#pragma unroll
        for (int e = 0; e < E; e++) acc[e] *= keep;
#pragma unroll
        for (int u = 0; u < KEYS; u++) {
            float x[E], p = expf(s[u] - m);
            load_row<T, E>(x, j0 + u < n ? vc + (j0 + u) * sh.cache_row : v_new, sh.D, 1.0f);
            l += p;
#pragma unroll
            for (int e = 0; e < E; e++) acc[e] = fmaf(p, x[e], acc[e]);
        }
    }
    if (lane == 0) {
        warp_m[warp] = m;
        warp_l[warp] = l;
    }
#pragma unroll
    for (int e = 0; e < E; e++) warp_acc[warp][lane + 32 * e] = acc[e];
    __syncthreads();
    float top = warp_m[0]; /* warp 0 has key 0 */
    for (int w = 1; w < WARPS; w++) top = fmaxf(top, warp_m[w]);
    for (int c = threadIdx.x; c < sh.D; c += THREADS) {
        float sum = 0.0f, total = 0.0f;
        for (int w = 0; w < WARPS; w++) {
            float weight = expf(warp_m[w] - top);
            sum          = fmaf(warp_acc[w][c], weight, sum);
            total        = fmaf(warp_l[w], weight, total);
        }
        o[b * sh.ld_o + (int64_t)h * sh.D + c] = from_f32<T>(sum / total);
    }
}

template <typename T, int E> static int decode_launch(Dev *dev, const AttnDecode *a, const DecodeShape &sh)
{
    unsigned grid = (unsigned)(tensor_rows(a->qkv) * sh.H);
    decode_kernel<T, E><<<grid, THREADS, 0, cuda_stream(dev)>>>((T *)a->o->data, (T *)a->kcache->data,
                                                                (T *)a->vcache->data, (const T *)a->qkv->data,
                                                                (const int *)a->len->data, sh);
    return cuda_launched("attn_decode");
}

int cuda_attn_decode(Dev *dev, const AttnDecode *a)
{
    DType dtype = a->qkv->dtype;
    if (a->o->dtype != dtype || a->kcache->dtype != dtype || a->vcache->dtype != dtype) {
        return err_set("attn_decode: qkv, o and the caches differ in dtype");
    }
    if (a->kcache->ndim != 4 || a->vcache->ndim != 4) {
        return err_set("attn_decode: the caches need [B,Tmax,K,D]");
    }
    if (!tensor_is_contiguous(a->kcache) || !tensor_is_contiguous(a->vcache)) {
        return err_set("attn_decode: the caches must be contiguous");
    }
    if (a->head_dim < 1 || a->head_dim > 256) {
        return err_set("attn_decode: head size %d is not in 1..256", a->head_dim);
    }
    DecodeShape sh = {};
    sh.H           = a->heads;
    sh.K           = a->kv_heads;
    sh.D           = a->head_dim;
    sh.max_len     = (int)a->kcache->dim[1];
    sh.ld_qkv      = tensor_ld(a->qkv);
    sh.ld_o        = tensor_ld(a->o);
    sh.cache_row   = (int64_t)a->kv_heads * a->head_dim;
    sh.cache_batch = sh.cache_row * sh.max_len;
    sh.scale       = a->scale;
    return cuda_dispatch(dtype, "attn_decode", [&](auto zero) {
        using T = decltype(zero);
        if (sh.D <= 64) return decode_launch<T, 2>(dev, a, sh);
        if (sh.D <= 128) return decode_launch<T, 4>(dev, a, sh);
        return decode_launch<T, 8>(dev, a, sh);
    });
}
