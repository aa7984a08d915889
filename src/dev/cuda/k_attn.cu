/* Flash attention for what cuDNN refuses: any length, head size up to 256, every mask, grouped heads,
 * f32/bf16/f16.
 *
 *     s = scale q k^T, masked;  lse = log sum exp s;  p = exp(s - lse);  o = p v
 *     rowsum = sum_d dout * o; ds = p * (dout v^T - rowsum) * scale; dq = ds k, dk = ds^T q, dv = p^T dout
 *
 * Layout: packed rows [q heads | k heads | v heads], one row per (b, t); lse and rowsum f32[B,H,T].
 * Grid: forward and dq one block per (b, h, query tile); dk and dv one block per (b, key head, key tile),
 *     which walks over the query heads of its group. Nothing is added across blocks, so there are no atomics
 *     and the bits are the same every time.
 * Block: 256 threads as 16 x 16 (ty, tx). A thread owns R = TILE/16 rows ty*R.. and, of a score tile, columns
 *     tx + 16j; of an output tile, columns tx*4 + 64j .. +3. All sums in f32 by fused multiply-add; tiles are
 *     f32 in shared memory with rows padded by 4 floats, which makes the 16-byte reads free of bank
 *     conflicts.
 * Bytes: q, o and the like once; k and v once per query tile (from L2 for most of it). Arithmetic bound:
 *     about a third of the f32 FMA rate is what this shape can reach; the tensor cores are left to cuDNN. */
#include "dev/cuda/cuda_attn.h"

#include "dev/cuda/cuda_check.h"
#include "dev/cuda/cuda_types.cuh"

enum { THREADS = 256, PAD = 4, MAX_HEAD_DIM = 256 };

/* What every kernel here needs to know of the problem. */
struct AttnShape {
    int        T, H, K, D;
    Mask       mask;
    float      scale;
    int64_t    ld_qkv, ld_o, ld_dout, ld_dqkv; /* elements between rows */
    int        n_tile;                         /* tiles along T */
    int        wide;                           /* rows can be read in 16-byte packs */
    const int *doc, *prefix;                   /* [B,T], [B]; NULL unless the mask needs them */
};

__device__ __forceinline__ bool key_allowed(Mask mask, int i, int j, int first, int prefix)
{
    switch (mask) {
    case MASK_FULL: return true;
    case MASK_PREFIX: return j <= i || j < prefix;
    case MASK_DOCUMENT: return j <= i && j >= first;
    default: return j <= i;
    }
}

/* First key a query row may see. */
__device__ __forceinline__ int row_first(const AttnShape &s, int b, int i)
{
    return s.mask == MASK_DOCUMENT && i < s.T ? s.doc[(int64_t)b * s.T + i] : 0;
}

__device__ __forceinline__ int prefix_of(const AttnShape &s, int b)
{
    return s.mask == MASK_PREFIX ? s.prefix[b] : 0;
}

/* First key that some query of rows [i0, i0 + tile) may see. Every warp finds it for itself. */
__device__ __forceinline__ int tile_first(const AttnShape &s, int b, int i0, int tile)
{
    if (s.mask != MASK_DOCUMENT) return 0;
    int lo = s.T;
    for (int r = threadIdx.x % 32; r < tile && i0 + r < s.T; r += 32) lo = min(lo, row_first(s, b, i0 + r));
#pragma unroll
    for (int d = 16; d > 0; d /= 2) lo = min(lo, __shfl_xor_sync(0xffffffffu, lo, d));
    return lo;
}

/* Keys [*begin, *end) that some query of rows [i0, i0 + tile) may see; *begin is a multiple of tile. */
__device__ __forceinline__ void key_range(const AttnShape &s, int b, int i0, int tile, int *begin, int *end)
{
    int last = min(i0 + tile, s.T);
    *begin   = tile_first(s, b, i0, tile) / tile * tile;
    *end     = s.mask == MASK_FULL ? s.T : max(last, min(prefix_of(s, b), s.T));
}

/* ---- tiles --------------------------------------------------------------------------------------------- */

/* dst f32[ROWS][DP + PAD] = rows [0, n_rows) of src, D columns; the rest is zero. */
template <typename T, int ROWS, int DP>
__device__ void load_tile(float *dst, const T *src, int64_t ld, int n_rows, int D, int wide)
{
    constexpr int LD = DP + PAD;
    if (wide) {
        constexpr int N = Pack<T>::N, PER_ROW = DP / N;
        for (int i = threadIdx.x; i < ROWS * PER_ROW; i += THREADS) {
            int    r = i / PER_ROW, c = i % PER_ROW * N;
            float *to = dst + r * LD + c;
            if (r < n_rows && c < D) {
                Pack<T> p = pack_load(src + r * ld + c);
#pragma unroll
                for (int e = 0; e < N; e++) to[e] = to_f32(p.v[e]);
            } else {
#pragma unroll
                for (int e = 0; e < N; e++) to[e] = 0.0f;
            }
        }
        return;
    }
    for (int i = threadIdx.x; i < ROWS * DP; i += THREADS) {
        int r = i / DP, c = i % DP;
        dst[r * LD + c] = r < n_rows && c < D ? to_f32(src[r * ld + c]) : 0.0f;
    }
}

/* s[i][j] = a[ty*R + i][:] . b[tx + 16j][:], both tiles f32[][DP + PAD] */
template <int R, int DP>
__device__ __forceinline__ void tile_dot(const float *a, const float *b, float (&s)[R][R])
{
    constexpr int LD = DP + PAD;
    int           tx = threadIdx.x % 16, ty = threadIdx.x / 16;
#pragma unroll
    for (int i = 0; i < R; i++) {
#pragma unroll
        for (int j = 0; j < R; j++) s[i][j] = 0.0f;
    }
#pragma unroll 4
    for (int c = 0; c < DP; c += 4) {
        float4 va[R], vb[R];
#pragma unroll
        for (int i = 0; i < R; i++) va[i] = *reinterpret_cast<const float4 *>(a + (ty * R + i) * LD + c);
#pragma unroll
        for (int j = 0; j < R; j++) vb[j] = *reinterpret_cast<const float4 *>(b + (tx + 16 * j) * LD + c);
#pragma unroll
        for (int i = 0; i < R; i++) {
#pragma unroll
            for (int j = 0; j < R; j++) {
                s[i][j] = fmaf(va[i].x, vb[j].x, s[i][j]);
                s[i][j] = fmaf(va[i].y, vb[j].y, s[i][j]);
                s[i][j] = fmaf(va[i].z, vb[j].z, s[i][j]);
                s[i][j] = fmaf(va[i].w, vb[j].w, s[i][j]);
            }
        }
    }
}

/* acc[i][4j + e] += sum_k p[ty*R + i][k] v[k][tx*4 + 64j + e]; p f32[TILE][TILE + PAD], v f32[TILE][DP +
 * PAD].
 * BY_COLUMN: the transposed product, p[k][ty*R + i]. */
template <int R, int DP, bool BY_COLUMN>
__device__ __forceinline__ void tile_accumulate(const float *p, const float *v, float (&acc)[R][DP / 16])
{
    constexpr int TILE = 16 * R, LDP = TILE + PAD, LDV = DP + PAD;
    int           tx = threadIdx.x % 16, ty = threadIdx.x / 16;
#pragma unroll 4
    for (int k = 0; k < TILE; k++) {
        float w[R];
#pragma unroll
        for (int i = 0; i < R; i++) w[i] = BY_COLUMN ? p[k * LDP + ty * R + i] : p[(ty * R + i) * LDP + k];
#pragma unroll
        for (int j = 0; j < DP / 64; j++) {
            float4 x = *reinterpret_cast<const float4 *>(v + k * LDV + tx * 4 + 64 * j);
#pragma unroll
            for (int i = 0; i < R; i++) {
                acc[i][4 * j + 0] = fmaf(w[i], x.x, acc[i][4 * j + 0]);
                acc[i][4 * j + 1] = fmaf(w[i], x.y, acc[i][4 * j + 1]);
                acc[i][4 * j + 2] = fmaf(w[i], x.z, acc[i][4 * j + 2]);
                acc[i][4 * j + 3] = fmaf(w[i], x.w, acc[i][4 * j + 3]);
            }
        }
    }
}

template <int R, int DP> __device__ __forceinline__ void tile_clear(float (&acc)[R][DP / 16])
{
#pragma unroll
    for (int i = 0; i < R; i++) {
#pragma unroll
        for (int c = 0; c < DP / 16; c++) acc[i][c] = 0.0f;
    }
}

/* dst rows ty*R + i = acc[i][:] * mul[i], where inside [n_rows, D] */
template <typename T, int R, int DP>
__device__ __forceinline__ void tile_store(T *dst, int64_t            ld, const float (&acc)[R][DP / 16],
                                           const float (&mul)[R], int n_rows, int D)
{
    int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
#pragma unroll
    for (int i = 0; i < R; i++) {
        int r = ty * R + i;
        if (r >= n_rows) continue;
#pragma unroll
        for (int c = 0; c < DP / 16; c++) {
            int col = tx * 4 + c / 4 * 64 + c % 4;
            if (col < D) dst[r * ld + col] = from_f32<T>(acc[i][c] * mul[i]);
        }
    }
}

/* Over the 16 threads that share a row; all end with the same bits. */
__device__ __forceinline__ float row_max(float v)
{
#pragma unroll
    for (int d = 8; d > 0; d /= 2) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, d));
    return v;
}
__device__ __forceinline__ float row_sum(float v)
{
#pragma unroll
    for (int d = 8; d > 0; d /= 2) v += __shfl_xor_sync(0xffffffffu, v, d);
    return v;
}

/* ---- forward ------------------------------------------------------------------------------------------- */

/* One online-softmax step: masks and scales s, writes p = exp(s - m) to the shared tile, rescales acc. */
template <int R, int DP>
__device__ __forceinline__ void softmax_step(const AttnShape &sh, const int (&first)[R], int prefix, int i0,
                                             int j0, float (&s)[R][R], float (&m)[R], float (&l)[R],
                                             float (&acc)[R][DP / 16], float *p)
{
    int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
#pragma unroll
    for (int i = 0; i < R; i++) {
        int   row = i0 + ty * R + i;
        float top = -INFINITY;
#pragma unroll
        for (int j = 0; j < R; j++) {
            int  col = j0 + tx + 16 * j;
            bool ok  = row < sh.T && col < sh.T && key_allowed(sh.mask, row, col, first[i], prefix);
            s[i][j]  = ok ? s[i][j] * sh.scale : -INFINITY;
            top      = fmaxf(top, s[i][j]);
        }
        float m_new = fmaxf(m[i], row_max(top));
        /* A row that has seen no key yet keeps m = -inf; subtracting 0 instead leaves exp(-inf) = 0. */
        float base = m_new == -INFINITY ? 0.0f : m_new;
        float keep = expf(m[i] - base), sum = 0.0f;
#pragma unroll
        for (int j = 0; j < R; j++) {
            float e = expf(s[i][j] - base);
            sum += e;
            p[(ty * R + i) * (16 * R + PAD) + tx + 16 * j] = e;
        }
        l[i] = l[i] * keep + row_sum(sum);
        m[i] = m_new;
#pragma unroll
        for (int c = 0; c < DP / 16; c++) acc[i][c] *= keep;
    }
}

template <typename T, int DP, int R>
__global__ void __launch_bounds__(THREADS) flash_fwd_kernel(T *o, float *lse, const T *qkv, AttnShape sh)
{
    constexpr int            TILE = 16 * R;
    extern __shared__ float4 smem4[];
    float                   *q_tile  = reinterpret_cast<float *>(smem4);
    float                   *kv_tile = q_tile + TILE * (DP + PAD), *p_tile = kv_tile + TILE * (DP + PAD);
    /* Long rows first: the last tiles of a causal mask have the most keys. */
    int      tile = sh.n_tile - 1 - (int)(blockIdx.x % sh.n_tile), bh = (int)(blockIdx.x / sh.n_tile);
    int      b = bh / sh.H, h = bh % sh.H, kv = h / (sh.H / sh.K), i0 = tile * TILE;
    const T *base = qkv + (int64_t)b * sh.T * sh.ld_qkv;
    const T *q = base + (int64_t)h * sh.D + i0 * sh.ld_qkv, *k = base + (int64_t)(sh.H + kv) * sh.D;
    const T *v  = k + (int64_t)sh.K * sh.D;
    int      tx = threadIdx.x % 16, ty = threadIdx.x / 16, prefix = prefix_of(sh, b), first[R], begin, end;
    float    m[R], l[R], acc[R][DP / 16];
#pragma unroll
    for (int i = 0; i < R; i++) {
        first[i] = row_first(sh, b, i0 + ty * R + i);
        m[i]     = -INFINITY;
        l[i]     = 0.0f;
    }
    tile_clear<R, DP>(acc);
    load_tile<T, TILE, DP>(q_tile, q, sh.ld_qkv, sh.T - i0, sh.D, sh.wide);
    key_range(sh, b, i0, TILE, &begin, &end);
    for (int j0 = begin; j0 < end; j0 += TILE) {
        float s[R][R];
        __syncthreads(); /* the last step's v and p are no longer read */
        load_tile<T, TILE, DP>(kv_tile, k + j0 * sh.ld_qkv, sh.ld_qkv, sh.T - j0, sh.D, sh.wide);
        __syncthreads();
        tile_dot<R, DP>(q_tile, kv_tile, s);
        softmax_step<R, DP>(sh, first, prefix, i0, j0, s, m, l, acc, p_tile);
        __syncthreads(); /* p is written, k is no longer read */
        load_tile<T, TILE, DP>(kv_tile, v + j0 * sh.ld_qkv, sh.ld_qkv, sh.T - j0, sh.D, sh.wide);
        __syncthreads();
        tile_accumulate<R, DP, false>(p_tile, kv_tile, acc);
    }
    float inv[R];
#pragma unroll
    for (int i = 0; i < R; i++) {
        int row = i0 + ty * R + i;
        inv[i]  = l[i] > 0.0f ? 1.0f / l[i] : 0.0f;
        if (tx == 0 && row < sh.T) {
            lse[(int64_t)bh * sh.T + row] = l[i] > 0.0f ? m[i] + logf(l[i]) : -INFINITY;
        }
    }
    tile_store<T, R, DP>(o + ((int64_t)b * sh.T + i0) * sh.ld_o + (int64_t)h * sh.D, sh.ld_o, acc, inv,
                         sh.T - i0, sh.D);
}

/* ---- backward ------------------------------------------------------------------------------------------ */

/* rowsum[b,h,t] = sum_d dout * o; one warp per (b, t, h). */
template <typename T>
__global__ void flash_rowsum_kernel(float *rowsum, const T *dout, const T *o, AttnShape sh, int64_t n_row)
{
    int64_t w    = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / 32;
    int     lane = threadIdx.x % 32;
    if (w >= n_row) return;
    int64_t  bt = w / sh.H, h = w % sh.H, b = bt / sh.T, t = bt % sh.T;
    const T *x = dout + bt * sh.ld_dout + h * sh.D, *y = o + bt * sh.ld_o + h * sh.D;
    float    sum = 0.0f;
    for (int c = lane; c < sh.D; c += 32) sum = fmaf(to_f32(x[c]), to_f32(y[c]), sum);
#pragma unroll
    for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, d);
    if (lane == 0) rowsum[(b * sh.H + h) * sh.T + t] = sum;
}

/* p and ds of the score tile at (i0, j0), from q, dout, k, v tiles; p_tile NULL where only ds is wanted. */
template <int R, int DP>
__device__ __forceinline__ void gradient_tile(const AttnShape &sh, int b, int64_t stat_row, int i0, int j0,
                                              const float *lse, const float *rowsum, const float *q_tile,
                                              const float *do_tile, const float *k_tile, const float *v_tile,
                                              float *p_tile, float *ds_tile)
{
    constexpr int LDP = 16 * R + PAD;
    int           tx = threadIdx.x % 16, ty = threadIdx.x / 16, prefix = prefix_of(sh, b);
    float         s[R][R], dp[R][R];
    tile_dot<R, DP>(q_tile, k_tile, s);
    tile_dot<R, DP>(do_tile, v_tile, dp);
#pragma unroll
    for (int i = 0; i < R; i++) {
        int   row = i0 + ty * R + i, first = row_first(sh, b, row);
        float row_lse = row < sh.T ? lse[stat_row + row] : 0.0f,
              row_d   = row < sh.T ? rowsum[stat_row + row] : 0.0f;
#pragma unroll
        for (int j = 0; j < R; j++) {
            int   col = j0 + tx + 16 * j;
            bool  ok  = row < sh.T && col < sh.T && key_allowed(sh.mask, row, col, first, prefix);
            float p   = ok ? expf(s[i][j] * sh.scale - row_lse) : 0.0f;
            int   at  = (ty * R + i) * LDP + tx + 16 * j;
            if (p_tile) p_tile[at] = p;
            ds_tile[at] = p * (dp[i][j] - row_d) * sh.scale;
        }
    }
}

template <typename T, int DP, int R>
__global__ void __launch_bounds__(THREADS) flash_dkv_kernel(T *dqkv, const T *dout, const float *lse,
                                                            const float *rowsum, const T *qkv, AttnShape sh)
{
    constexpr int            TILE = 16 * R, AREA = TILE * (DP + PAD);
    extern __shared__ float4 smem4[];
    float   *k_tile = reinterpret_cast<float *>(smem4), *v_tile = k_tile + AREA, *q_tile = v_tile + AREA;
    float   *do_tile = q_tile + AREA, *p_tile = do_tile + AREA, *ds_tile = p_tile + TILE * (TILE + PAD);
    int      tile = (int)(blockIdx.x % sh.n_tile), bk = (int)(blockIdx.x / sh.n_tile);
    int      b = bk / sh.K, kv = bk % sh.K, group = sh.H / sh.K, j0 = tile * TILE;
    const T *base = qkv + (int64_t)b * sh.T * sh.ld_qkv;
    const T *k = base + (int64_t)(sh.H + kv) * sh.D + j0 * sh.ld_qkv, *v = k + (int64_t)sh.K * sh.D;
    float    dk[R][DP / 16], dv[R][DP / 16], one[R];
    tile_clear<R, DP>(dk);
    tile_clear<R, DP>(dv);
    load_tile<T, TILE, DP>(k_tile, k, sh.ld_qkv, sh.T - j0, sh.D, sh.wide);
    load_tile<T, TILE, DP>(v_tile, v, sh.ld_qkv, sh.T - j0, sh.D, sh.wide);
    int begin = sh.mask == MASK_FULL || (sh.mask == MASK_PREFIX && j0 < prefix_of(sh, b)) ? 0 : j0;
    for (int h = kv * group; h < (kv + 1) * group; h++) {
        for (int i0 = begin; i0 < sh.T; i0 += TILE) {
            if (tile_first(sh, b, i0, TILE) >= j0 + TILE) continue; /* all in documents that begin later */
            int64_t row = (int64_t)b * sh.T + i0;
            __syncthreads(); /* the last step's tiles are no longer read */
            load_tile<T, TILE, DP>(q_tile, qkv + row * sh.ld_qkv + (int64_t)h * sh.D, sh.ld_qkv, sh.T - i0,
                                   sh.D, sh.wide);
            load_tile<T, TILE, DP>(do_tile, dout + row * sh.ld_dout + (int64_t)h * sh.D, sh.ld_dout,
                                   sh.T - i0, sh.D, sh.wide);
            __syncthreads();
            gradient_tile<R, DP>(sh, b, ((int64_t)b * sh.H + h) * sh.T, i0, j0, lse, rowsum, q_tile, do_tile,
                                 k_tile, v_tile, p_tile, ds_tile);
            __syncthreads();
            tile_accumulate<R, DP, true>(p_tile, do_tile, dv);
            tile_accumulate<R, DP, true>(ds_tile, q_tile, dk);
        }
    }
#pragma unroll
    for (int i = 0; i < R; i++) one[i] = 1.0f;
    T *out = dqkv + ((int64_t)b * sh.T + j0) * sh.ld_dqkv + (int64_t)(sh.H + kv) * sh.D;
    tile_store<T, R, DP>(out, sh.ld_dqkv, dk, one, sh.T - j0, sh.D);
    tile_store<T, R, DP>(out + (int64_t)sh.K * sh.D, sh.ld_dqkv, dv, one, sh.T - j0, sh.D);
}

template <typename T, int DP, int R>
__global__ void __launch_bounds__(THREADS)
    flash_dq_kernel(T *dqkv, const T *dout, const float *lse, const float *rowsum, const T *qkv, AttnShape sh)
{
    constexpr int            TILE = 16 * R, AREA = TILE * (DP + PAD);
    extern __shared__ float4 smem4[];
    float   *q_tile = reinterpret_cast<float *>(smem4), *do_tile = q_tile + AREA, *k_tile = do_tile + AREA;
    float   *v_tile = k_tile + AREA, *ds_tile = v_tile + AREA;
    int      tile = sh.n_tile - 1 - (int)(blockIdx.x % sh.n_tile), bh = (int)(blockIdx.x / sh.n_tile);
    int      b = bh / sh.H, h = bh % sh.H, kv = h / (sh.H / sh.K), i0 = tile * TILE, begin, end;
    const T *base = qkv + (int64_t)b * sh.T * sh.ld_qkv;
    const T *k = base + (int64_t)(sh.H + kv) * sh.D, *v = k + (int64_t)sh.K * sh.D;
    float    dq[R][DP / 16], one[R];
    tile_clear<R, DP>(dq);
    load_tile<T, TILE, DP>(q_tile, base + (int64_t)h * sh.D + i0 * sh.ld_qkv, sh.ld_qkv, sh.T - i0, sh.D,
                           sh.wide);
    load_tile<T, TILE, DP>(do_tile, dout + ((int64_t)b * sh.T + i0) * sh.ld_dout + (int64_t)h * sh.D,
                           sh.ld_dout, sh.T - i0, sh.D, sh.wide);
    key_range(sh, b, i0, TILE, &begin, &end);
    for (int j0 = begin; j0 < end; j0 += TILE) {
        __syncthreads(); /* the last step's tiles are no longer read */
        load_tile<T, TILE, DP>(k_tile, k + j0 * sh.ld_qkv, sh.ld_qkv, sh.T - j0, sh.D, sh.wide);
        load_tile<T, TILE, DP>(v_tile, v + j0 * sh.ld_qkv, sh.ld_qkv, sh.T - j0, sh.D, sh.wide);
        __syncthreads();
        gradient_tile<R, DP>(sh, b, (int64_t)bh * sh.T, i0, j0, lse, rowsum, q_tile, do_tile, k_tile, v_tile,
                             nullptr, ds_tile);
        __syncthreads();
        tile_accumulate<R, DP, false>(ds_tile, k_tile, dq);
    }
#pragma unroll
    for (int i = 0; i < R; i++) one[i] = 1.0f;
    T *out = dqkv + ((int64_t)b * sh.T + i0) * sh.ld_dqkv + (int64_t)h * sh.D;
    tile_store<T, R, DP>(out, sh.ld_dqkv, dq, one, sh.T - i0, sh.D);
}

/* ---- launching ----------------------------------------------------------------------------------------- */

/* Above 48 KiB a kernel has to be told that it may have that much shared memory. */
template <typename F> static int allow_smem(F *kernel, size_t bytes)
{
    CUDA_TRY(
        cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
    return 0;
}

static size_t smem_bytes(int dp, int tile, int n_wide, int n_score)
{
    return sizeof(float) * ((size_t)n_wide * tile * (dp + PAD) + (size_t)n_score * tile * (tile + PAD));
}

static int check_shape(const char *op, const Tensor *qkv, const Tensor *o, int64_t n_block,
                       const AttnShape &sh)
{
    int D = sh.D;
    if (D < 1 || D > MAX_HEAD_DIM) return err_set("%s: head size %d is not in 1..%d", op, D, MAX_HEAD_DIM);
    if (qkv->dtype != o->dtype) return err_set("%s: qkv and o differ in dtype", op);
    if ((sh.mask == MASK_DOCUMENT && !sh.doc) || (sh.mask == MASK_PREFIX && !sh.prefix)) {
        return err_set("%s: the mask's tensor is missing", op);
    }
    if (n_block > INT32_MAX || qkv->dim[1] > INT32_MAX / 2) return err_set("%s: too many tiles", op);
    return 0;
}

template <typename T, int DP, int R> static int fwd_launch(Dev *dev, const AttnFwd *a, AttnShape sh)
{
    int64_t B    = a->qkv->dim[0];
    size_t  smem = smem_bytes(DP, 16 * R, 2, 1);
    sh.n_tile    = (sh.T + 16 * R - 1) / (16 * R);
    TRY(check_shape("attn_fwd", a->qkv, a->o, B * sh.H * sh.n_tile, sh));
    TRY(allow_smem(flash_fwd_kernel<T, DP, R>, smem));
    flash_fwd_kernel<T, DP, R><<<(unsigned)(B * sh.H * sh.n_tile), THREADS, smem, cuda_stream(dev)>>>(
        (T *)a->o->data, (float *)a->lse->data, (const T *)a->qkv->data, sh);
    return cuda_launched("attn_fwd");
}

template <typename T, int DP, int R> static int bwd_launch(Dev *dev, const AttnBwd *a, AttnShape sh)
{
    int64_t  B = a->qkv->dim[0], n_row = B * sh.T * sh.H;
    size_t   smem_kv = smem_bytes(DP, 16 * R, 4, 2), smem_q = smem_bytes(DP, 16 * R, 4, 1);
    float   *rowsum = (float *)a->ws->data, *lse = (float *)a->lse->data;
    T       *dqkv = (T *)a->dqkv->data;
    const T *dout = (const T *)a->dout->data, *qkv = (const T *)a->qkv->data;
    sh.n_tile = (sh.T + 16 * R - 1) / (16 * R);
    TRY(check_shape("attn_bwd", a->qkv, a->o, n_row, sh));
    TRY(allow_smem(flash_dkv_kernel<T, DP, R>, smem_kv));
    TRY(allow_smem(flash_dq_kernel<T, DP, R>, smem_q));
    cudaStream_t st = cuda_stream(dev);
    flash_rowsum_kernel<T><<<(unsigned)((n_row * 32 + THREADS - 1) / THREADS), THREADS, 0, st>>>(
        rowsum, dout, (const T *)a->o->data, sh, n_row);
    TRY(cuda_launched("attn_bwd"));
    flash_dkv_kernel<T, DP, R>
        <<<(unsigned)(B * sh.K * sh.n_tile), THREADS, smem_kv, st>>>(dqkv, dout, lse, rowsum, qkv, sh);
    TRY(cuda_launched("attn_bwd"));
    flash_dq_kernel<T, DP, R>
        <<<(unsigned)(B * sh.H * sh.n_tile), THREADS, smem_q, st>>>(dqkv, dout, lse, rowsum, qkv, sh);
    return cuda_launched("attn_bwd");
}

int cuda_flash_fwd(Dev *dev, const AttnFwd *a)
{
    AttnShape sh = {};
    sh.T         = (int)a->qkv->dim[1];
    sh.H         = a->heads;
    sh.K         = a->kv_heads;
    sh.D         = a->head_dim;
    sh.mask      = a->mask;
    sh.scale     = a->scale;
    sh.ld_qkv    = tensor_ld(a->qkv);
    sh.ld_o      = tensor_ld(a->o);
    sh.wide      = cuda_packable(a->qkv) && (size_t)a->head_dim * dtype_bytes(a->qkv->dtype) % 16 == 0;
    sh.doc       = a->doc ? (const int *)a->doc->data : NULL;
    sh.prefix    = a->prefix ? (const int *)a->prefix->data : NULL;
    return cuda_dispatch(a->qkv->dtype, "attn_fwd", [&](auto zero) {
        using T = decltype(zero);
        if (sh.D <= 64) return fwd_launch<T, 64, 4>(dev, a, sh);
        if (sh.D <= 128) return fwd_launch<T, 128, 4>(dev, a, sh);
        return fwd_launch<T, 256, 4>(dev, a, sh);
    });
}

int cuda_flash_bwd(Dev *dev, const AttnBwd *a)
{
    size_t need = (size_t)tensor_rows(a->qkv) * (size_t)a->heads * sizeof(float);
    if (!a->ws || tensor_bytes(a->ws) < need) return err_set("attn_bwd: needs %zu bytes of workspace", need);
    AttnShape sh = {};
    sh.T         = (int)a->qkv->dim[1];
    sh.H         = a->heads;
    sh.K         = a->kv_heads;
    sh.D         = a->head_dim;
    sh.mask      = a->mask;
    sh.scale     = a->scale;
    sh.ld_qkv    = tensor_ld(a->qkv);
    sh.ld_o      = tensor_ld(a->o);
    sh.ld_dout   = tensor_ld(a->dout);
    sh.ld_dqkv   = tensor_ld(a->dqkv);
    sh.wide      = cuda_packable(a->qkv) && cuda_packable(a->dout) &&
              (size_t)a->head_dim * dtype_bytes(a->qkv->dtype) % 16 == 0;
    sh.doc    = a->doc ? (const int *)a->doc->data : NULL;
    sh.prefix = a->prefix ? (const int *)a->prefix->data : NULL;
    if (a->dout->dtype != a->qkv->dtype || a->dqkv->dtype != a->qkv->dtype) {
        return err_set("attn_bwd: qkv, dout and dqkv differ in dtype");
    }
    return cuda_dispatch(a->qkv->dtype, "attn_bwd", [&](auto zero) {
        using T = decltype(zero);
        if (sh.D <= 64) return bwd_launch<T, 64, 4>(dev, a, sh);
        if (sh.D <= 128) return bwd_launch<T, 128, 4>(dev, a, sh);
        return bwd_launch<T, 256, 2>(dev, a,
                                     sh); /* four 64-row tiles of 256 would not fit in shared memory */
    });
}
