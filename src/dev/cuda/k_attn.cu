/* Flash attention for what tiles and cuDNN refuse: any length, head size up to 256, every mask, grouped
 * heads, f32/bf16/f16; of a sequence with itself, with another one (cross-attention), and of new tokens with
 * their caches (a prompt).
 *
 *     s = scale q k^T, masked;  lse = log sum exp s;  p = exp(s - lse);  o = p v
 *     rowsum = sum_d dout * o; ds = p * (dout v^T - rowsum) * scale; dq = ds k, dk = ds^T q, dv = p^T dout
 *
 * Layout: rows of q heads, one per (b, t), and rows of k and of v heads, one per (b, key); lse and rowsum
 *     f32[B,H,T].
 * Grid: forward and dq one block per (b, h, query tile); dk and dv one block per (b, key head, key tile),
 *     which walks over the query heads of its group. Nothing is added across blocks, so there are no atomics
 *     and the bits are the same every time.
 * Block: 256 threads as 16 x 16 (ty, tx). A thread owns R = TILE/16 rows ty*R.. and, of a score tile, columns
 *     tx + 16j; of an output tile, columns tx*4 + 64j .. +3. All sums in f32 by fused multiply-add; tiles are
 *     f32 in shared memory with rows padded by 4 floats, which makes the 16-byte reads free of bank
 *     conflicts.
 * Bytes: q, o and the like once; k and v once per query tile (from L2 for most of it). Arithmetic bound:
 *     about a third of the f32 FMA rate is what this shape can reach; the tensor cores are left to the
 *     others. */
#include "dev/cuda/cuda_attn.h"

#include "dev/cuda/k_common.cuh"

enum { THREADS = 256, PAD = 4, MAX_HEAD_DIM = 256 };

/* What every kernel here needs to know of the problem. */
struct FlashArgs {
    int         T, S, H, K, D; /* T queries, S keys */
    Mask        mask;
    float       scale;
    const void *q, *k, *v, *dout, *o_saved; /* head 0 of sequence 0 */
    void       *o, *dq, *dk, *dv;
    float      *lse, *rowsum;                            /* forward: lse may be NULL */
    int64_t     ld_q, ld_k, ld_o, ld_dout, ld_dq, ld_dk; /* elements between rows; ld_k, ld_dk: of k and v */
    int         q_tiles, k_tiles;
    int         wide; /* rows can be read in 16-byte packs */
    const int  *doc, *prefix, *first, *last,
        *len;             /* NULL unless the mask needs them; len: keys of each sequence, or NULL */
    const int *start;     /* causal: query 0 stands at key start[b]; NULL: at key 0 */
    int        one_start; /* start[0] is every sequence's */
    int        window;    /* causal: the newest keys that a query sees; 0: all */
};

/* Keys [lo, hi) that a query sees; none: [S, 0). */
struct Seen {
    int lo, hi;
};

__device__ __forceinline__ Seen row_seen(const FlashArgs &s, int b, int i)
{
    int64_t row = (int64_t)b * s.T + i;
    int     lo = 0, hi = i + 1;
    if (i >= s.T) return { s.S, 0 };
    switch (s.mask) {
    case MASK_FULL: hi = s.S; break;
    case MASK_PREFIX: hi = max(hi, s.prefix[b]); break;
    case MASK_DOCUMENT: lo = s.doc[row]; break;
    case MASK_RANGE:
        lo = max(s.first[row], 0);
        hi = min(s.last[row], s.S - 1) + 1;
        break;
    default:
        hi += s.start ? s.start[s.one_start ? 0 : b] : 0;
        if (s.window > 0) lo = max(hi - s.window, 0);
        break;
    }
    hi = min(hi, s.S);
    if (s.len) hi = min(hi, s.len[b]);
    if (hi <= lo) return { s.S, 0 };
    return { lo, hi };
}

/* Keys that some query of rows [i0, i0 + tile) sees. Every warp finds them for itself. */
__device__ __forceinline__ Seen tile_seen(const FlashArgs &s, int b, int i0, int tile)
{
    Seen all = { s.S, 0 };
    for (int r = threadIdx.x % 32; r < tile; r += 32) {
        Seen one = row_seen(s, b, i0 + r);
        all      = { min(all.lo, one.lo), max(all.hi, one.hi) };
    }
#pragma unroll
    for (int d = 16; d > 0; d /= 2) {
        all.lo = min(all.lo, __shfl_xor_sync(0xffffffffu, all.lo, d));
        all.hi = max(all.hi, __shfl_xor_sync(0xffffffffu, all.hi, d));
    }
    return all;
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
__device__ __forceinline__ void softmax_step(const FlashArgs &sh, const Seen (&seen)[R], int j0,
                                             float (&s)[R][R], float (&m)[R], float (&l)[R],
                                             float (&acc)[R][DP / 16], float *p)
{
    int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
#pragma unroll
    for (int i = 0; i < R; i++) {
        float top = -INFINITY;
#pragma unroll
        for (int j = 0; j < R; j++) {
            int  col = j0 + tx + 16 * j;
            bool ok  = col >= seen[i].lo && col < seen[i].hi;
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
__global__ void __launch_bounds__(THREADS) flash_fwd_kernel(const FlashArgs sh)
{
    constexpr int            TILE = 16 * R;
    extern __shared__ float4 smem4[];
    float                   *q_tile  = reinterpret_cast<float *>(smem4);
    float                   *kv_tile = q_tile + TILE * (DP + PAD), *p_tile = kv_tile + TILE * (DP + PAD);
    /* Long rows first: the last tiles of a causal mask have the most keys. */
    int      tile = sh.q_tiles - 1 - (int)(blockIdx.x % sh.q_tiles), bh = (int)(blockIdx.x / sh.q_tiles);
    int      b = bh / sh.H, h = bh % sh.H, kv = h / (sh.H / sh.K), i0 = tile * TILE;
    const T *q  = (const T *)sh.q + ((int64_t)b * sh.T + i0) * sh.ld_q + (int64_t)h * sh.D;
    const T *k  = (const T *)sh.k + (int64_t)b * sh.S * sh.ld_k + (int64_t)kv * sh.D;
    const T *v  = (const T *)sh.v + (int64_t)b * sh.S * sh.ld_k + (int64_t)kv * sh.D;
    int      tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    Seen     seen[R], all              = tile_seen(sh, b, i0, TILE);
    float    m[R], l[R], acc[R][DP / 16];
#pragma unroll
    for (int i = 0; i < R; i++) {
        seen[i] = row_seen(sh, b, i0 + ty * R + i);
        m[i]    = -INFINITY;
        l[i]    = 0.0f;
    }
    tile_clear<R, DP>(acc);
    load_tile<T, TILE, DP>(q_tile, q, sh.ld_q, sh.T - i0, sh.D, sh.wide);
    for (int j0 = all.lo / TILE * TILE; j0 < all.hi; j0 += TILE) {
        float s[R][R];
        __syncthreads(); /* the last step's v and p are no longer read */
        load_tile<T, TILE, DP>(kv_tile, k + j0 * sh.ld_k, sh.ld_k, sh.S - j0, sh.D, sh.wide);
        __syncthreads();
        tile_dot<R, DP>(q_tile, kv_tile, s);
        softmax_step<R, DP>(sh, seen, j0, s, m, l, acc, p_tile);
        __syncthreads(); /* p is written, k is no longer read */
        load_tile<T, TILE, DP>(kv_tile, v + j0 * sh.ld_k, sh.ld_k, sh.S - j0, sh.D, sh.wide);
        __syncthreads();
        tile_accumulate<R, DP, false>(p_tile, kv_tile, acc);
    }
    float inv[R];
#pragma unroll
    for (int i = 0; i < R; i++) {
        int row = i0 + ty * R + i;
        inv[i]  = l[i] > 0.0f ? 1.0f / l[i] : 0.0f;
        if (sh.lse && tx == 0 && row < sh.T) {
            sh.lse[(int64_t)bh * sh.T + row] = l[i] > 0.0f ? m[i] + logf(l[i]) : 0.0f;
        }
    }
    T *o = (T *)sh.o + ((int64_t)b * sh.T + i0) * sh.ld_o + (int64_t)h * sh.D;
    tile_store<T, R, DP>(o, sh.ld_o, acc, inv, sh.T - i0, sh.D);
}

/* ---- backward ------------------------------------------------------------------------------------------ */

/* rowsum[b,h,t] = sum_d dout * o; one warp per (b, t, h). */
template <typename T> __global__ void flash_rowsum_kernel(const FlashArgs sh, int64_t n_row)
{
    int64_t w    = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / 32;
    int     lane = threadIdx.x % 32;
    if (w >= n_row) return;
    int64_t  bt = w / sh.H, h = w % sh.H, b = bt / sh.T, t = bt % sh.T;
    const T *x   = (const T *)sh.dout + bt * sh.ld_dout + h * sh.D;
    const T *y   = (const T *)sh.o_saved + bt * sh.ld_o + h * sh.D;
    float    sum = 0.0f;
    for (int c = lane; c < sh.D; c += 32) sum = fmaf(to_f32(x[c]), to_f32(y[c]), sum);
#pragma unroll
    for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, d);
    if (lane == 0) sh.rowsum[(b * sh.H + h) * sh.T + t] = sum;
}

/* p and ds of the score tile at (i0, j0), from q, dout, k, v tiles; p_tile NULL where only ds is wanted. */
template <int R, int DP>
__device__ __forceinline__ void gradient_tile(const FlashArgs &sh, int b, int64_t stat_row, int i0, int j0,
                                              const float *q_tile, const float *do_tile, const float *k_tile,
                                              const float *v_tile, float *p_tile, float *ds_tile)
{
    constexpr int LDP = 16 * R + PAD;
    int           tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    float         s[R][R], dp[R][R];
    tile_dot<R, DP>(q_tile, k_tile, s);
    tile_dot<R, DP>(do_tile, v_tile, dp);
#pragma unroll
    for (int i = 0; i < R; i++) {
        int   row     = i0 + ty * R + i;
        Seen  seen    = row_seen(sh, b, row);
        float row_lse = row < sh.T ? sh.lse[stat_row + row] : 0.0f,
              row_d   = row < sh.T ? sh.rowsum[stat_row + row] : 0.0f;
#pragma unroll
        for (int j = 0; j < R; j++) {
            int   col = j0 + tx + 16 * j;
            bool  ok  = col >= seen.lo && col < seen.hi;
            float p   = ok ? expf(s[i][j] * sh.scale - row_lse) : 0.0f;
            int   at  = (ty * R + i) * LDP + tx + 16 * j;
            if (p_tile) p_tile[at] = p;
            ds_tile[at] = p * (dp[i][j] - row_d) * sh.scale;
        }
    }
}

template <typename T, int DP, int R>
__global__ void __launch_bounds__(THREADS) flash_dkv_kernel(const FlashArgs sh)
{
    constexpr int            TILE = 16 * R, AREA = TILE * (DP + PAD);
    extern __shared__ float4 smem4[];
    float  *k_tile = reinterpret_cast<float *>(smem4), *v_tile = k_tile + AREA, *q_tile = v_tile + AREA;
    float  *do_tile = q_tile + AREA, *p_tile = do_tile + AREA, *ds_tile = p_tile + TILE * (TILE + PAD);
    int     tile = (int)(blockIdx.x % sh.k_tiles), bk = (int)(blockIdx.x / sh.k_tiles);
    int     b = bk / sh.K, kv = bk % sh.K, group = sh.H / sh.K, j0 = tile * TILE;
    int64_t at = ((int64_t)b * sh.S + j0) * sh.ld_k + (int64_t)kv * sh.D;
    int64_t to = ((int64_t)b * sh.S + j0) * sh.ld_dk + (int64_t)kv * sh.D;
    float   dk[R][DP / 16], dv[R][DP / 16], one[R];
    tile_clear<R, DP>(dk);
    tile_clear<R, DP>(dv);
    load_tile<T, TILE, DP>(k_tile, (const T *)sh.k + at, sh.ld_k, sh.S - j0, sh.D, sh.wide);
    load_tile<T, TILE, DP>(v_tile, (const T *)sh.v + at, sh.ld_k, sh.S - j0, sh.D, sh.wide);
    int begin = sh.mask == MASK_CAUSAL || sh.mask == MASK_DOCUMENT ? j0 : 0;
    for (int h = kv * group; h < (kv + 1) * group; h++) {
        for (int i0 = begin; i0 < sh.T; i0 += TILE) {
            Seen seen = tile_seen(sh, b, i0, TILE);
            if (seen.lo >= j0 + TILE || seen.hi <= j0) continue;
            int64_t row = (int64_t)b * sh.T + i0, head = (int64_t)h * sh.D;
            __syncthreads(); /* the last step's tiles are no longer read */
            load_tile<T, TILE, DP>(q_tile, (const T *)sh.q + row * sh.ld_q + head, sh.ld_q, sh.T - i0, sh.D,
                                   sh.wide);
            load_tile<T, TILE, DP>(do_tile, (const T *)sh.dout + row * sh.ld_dout + head, sh.ld_dout,
                                   sh.T - i0, sh.D, sh.wide);
            __syncthreads();
            gradient_tile<R, DP>(sh, b, ((int64_t)b * sh.H + h) * sh.T, i0, j0, q_tile, do_tile, k_tile,
                                 v_tile, p_tile, ds_tile);
            __syncthreads();
            tile_accumulate<R, DP, true>(p_tile, do_tile, dv);
            tile_accumulate<R, DP, true>(ds_tile, q_tile, dk);
        }
    }
#pragma unroll
    for (int i = 0; i < R; i++) one[i] = 1.0f;
    tile_store<T, R, DP>((T *)sh.dk + to, sh.ld_dk, dk, one, sh.S - j0, sh.D);
    tile_store<T, R, DP>((T *)sh.dv + to, sh.ld_dk, dv, one, sh.S - j0, sh.D);
}

template <typename T, int DP, int R>
__global__ void __launch_bounds__(THREADS) flash_dq_kernel(const FlashArgs sh)
{
    constexpr int            TILE = 16 * R, AREA = TILE * (DP + PAD);
    extern __shared__ float4 smem4[];
    float   *q_tile = reinterpret_cast<float *>(smem4), *do_tile = q_tile + AREA, *k_tile = do_tile + AREA;
    float   *v_tile = k_tile + AREA, *ds_tile = v_tile + AREA;
    int      tile = sh.q_tiles - 1 - (int)(blockIdx.x % sh.q_tiles), bh = (int)(blockIdx.x / sh.q_tiles);
    int      b = bh / sh.H, h = bh % sh.H, kv = h / (sh.H / sh.K), i0 = tile * TILE;
    int64_t  row = (int64_t)b * sh.T + i0, head = (int64_t)h * sh.D;
    const T *k   = (const T *)sh.k + (int64_t)b * sh.S * sh.ld_k + (int64_t)kv * sh.D;
    const T *v   = (const T *)sh.v + (int64_t)b * sh.S * sh.ld_k + (int64_t)kv * sh.D;
    Seen     all = tile_seen(sh, b, i0, TILE);
    float    dq[R][DP / 16], one[R];
    tile_clear<R, DP>(dq);
    load_tile<T, TILE, DP>(q_tile, (const T *)sh.q + row * sh.ld_q + head, sh.ld_q, sh.T - i0, sh.D, sh.wide);
    load_tile<T, TILE, DP>(do_tile, (const T *)sh.dout + row * sh.ld_dout + head, sh.ld_dout, sh.T - i0, sh.D,
                           sh.wide);
    for (int j0 = all.lo / TILE * TILE; j0 < all.hi; j0 += TILE) {
        __syncthreads(); /* the last step's tiles are no longer read */
        load_tile<T, TILE, DP>(k_tile, k + j0 * sh.ld_k, sh.ld_k, sh.S - j0, sh.D, sh.wide);
        load_tile<T, TILE, DP>(v_tile, v + j0 * sh.ld_k, sh.ld_k, sh.S - j0, sh.D, sh.wide);
        __syncthreads();
        gradient_tile<R, DP>(sh, b, (int64_t)bh * sh.T, i0, j0, q_tile, do_tile, k_tile, v_tile, nullptr,
                             ds_tile);
        __syncthreads();
        tile_accumulate<R, DP, false>(ds_tile, k_tile, dq);
    }
#pragma unroll
    for (int i = 0; i < R; i++) one[i] = 1.0f;
    tile_store<T, R, DP>((T *)sh.dq + row * sh.ld_dq + head, sh.ld_dq, dq, one, sh.T - i0, sh.D);
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

static int check_args(const char *op, int64_t n_block, const FlashArgs &sh)
{
    int D = sh.D;
    if (D < 1 || D > MAX_HEAD_DIM) return err_set("%s: head size %d is not in 1..%d", op, D, MAX_HEAD_DIM);
    if ((sh.mask == MASK_DOCUMENT && !sh.doc) || (sh.mask == MASK_PREFIX && !sh.prefix) ||
        (sh.mask == MASK_RANGE && (!sh.first || !sh.last))) {
        return err_set("%s: the mask's tensor is missing", op);
    }
    if (n_block > INT32_MAX || sh.T > INT32_MAX / 2 || sh.S > INT32_MAX / 2)
        return err_set("%s: too many tiles", op);
    return 0;
}

template <typename T, int DP, int R> static int fwd_launch(Dev *dev, const char *op, int64_t B, FlashArgs sh)
{
    size_t smem = smem_bytes(DP, 16 * R, 2, 1);
    sh.q_tiles  = (sh.T + 16 * R - 1) / (16 * R);
    TRY(check_args(op, B * sh.H * sh.q_tiles, sh));
    TRY(allow_smem(flash_fwd_kernel<T, DP, R>, smem));
    return k_launch(op, flash_fwd_kernel<T, DP, R>, dim3((unsigned)(B * sh.H * sh.q_tiles)), THREADS, smem,
                    cuda_stream(dev), sh);
}

template <typename T, int DP, int R> static int bwd_launch(Dev *dev, const char *op, int64_t B, FlashArgs sh)
{
    int64_t n_row   = B * sh.T * sh.H;
    size_t  smem_kv = smem_bytes(DP, 16 * R, 4, 2), smem_q = smem_bytes(DP, 16 * R, 4, 1);
    sh.q_tiles = (sh.T + 16 * R - 1) / (16 * R);
    sh.k_tiles = (sh.S + 16 * R - 1) / (16 * R);
    TRY(check_args(op, MAX(n_row, B * sh.K * sh.k_tiles), sh));
    TRY(allow_smem(flash_dkv_kernel<T, DP, R>, smem_kv));
    TRY(allow_smem(flash_dq_kernel<T, DP, R>, smem_q));
    cudaStream_t st = cuda_stream(dev);
    TRY(k_launch(op, flash_rowsum_kernel<T>, dim3((unsigned)ceil_div(n_row * 32, THREADS)), THREADS, 0, st,
                 sh, n_row));
    TRY(k_launch(op, flash_dkv_kernel<T, DP, R>, dim3((unsigned)(B * sh.K * sh.k_tiles)), THREADS, smem_kv,
                 st, sh));
    return k_launch(op, flash_dq_kernel<T, DP, R>, dim3((unsigned)(B * sh.H * sh.q_tiles)), THREADS, smem_q,
                    st, sh);
}

static int run_fwd(Dev *dev, const char *op, DType dtype, int64_t B, const FlashArgs &sh)
{
    return cuda_dispatch(dtype, op, [&](auto zero) {
        using T = decltype(zero);
        if (sh.D <= 64) return fwd_launch<T, 64, 4>(dev, op, B, sh);
        if (sh.D <= 128) return fwd_launch<T, 128, 4>(dev, op, B, sh);
        return fwd_launch<T, 256, 4>(dev, op, B, sh);
    });
}

static int run_bwd(Dev *dev, const char *op, const Tensor *ws, DType dtype, int64_t B, FlashArgs &sh)
{
    size_t need = (size_t)B * (size_t)sh.T * (size_t)sh.H * sizeof(float);
    if (!ws || tensor_bytes(ws) < need) return err_set("%s: needs %zu bytes of workspace", op, need);
    sh.rowsum = (float *)ws->data;
    return cuda_dispatch(dtype, op, [&](auto zero) {
        using T = decltype(zero);
        if (sh.D <= 64) return bwd_launch<T, 64, 4>(dev, op, B, sh);
        if (sh.D <= 128) return bwd_launch<T, 128, 4>(dev, op, B, sh);
        return bwd_launch<T, 256, 2>(dev, op, B,
                                     sh); /* four 64-row tiles of 256 would not fit in shared memory */
    });
}

/* ---- slots --------------------------------------------------------------------------------------------- */

static const int *ints(const Tensor *t) { return t ? (const int *)t->data : NULL; }

/* Element `at` of a tensor. */
static void *head_at(const Tensor *t, int64_t at)
{
    return (char *)t->data + at * (int64_t)dtype_bytes(t->dtype);
}

static FlashArgs args_of(const AttnShape &s, int64_t T, int64_t S)
{
    FlashArgs sh = {};
    sh.T         = (int)T;
    sh.S         = (int)S;
    sh.H         = s.heads;
    sh.K         = s.kv_heads;
    sh.D         = s.head_dim;
    sh.mask      = s.mask;
    sh.scale     = s.scale;
    return sh;
}

static FlashArgs args_packed(const AttnShape &s, const Tensor *qkv)
{
    FlashArgs sh = args_of(s, qkv->dim[1], qkv->dim[1]);
    sh.q         = qkv->data;
    sh.k         = head_at(qkv, (int64_t)sh.H * sh.D);
    sh.v         = head_at(qkv, (int64_t)(sh.H + sh.K) * sh.D);
    sh.ld_q = sh.ld_k = tensor_ld(qkv);
    sh.wide           = cuda_packable(qkv) && (size_t)sh.D * dtype_bytes(qkv->dtype) % 16 == 0;
    return sh;
}

static FlashArgs args_cross(const AttnShape &s, const Tensor *q, const Tensor *kv)
{
    FlashArgs sh = args_of(s, q->dim[1], kv->dim[1]);
    sh.q         = q->data;
    sh.k         = kv->data;
    sh.v         = head_at(kv, (int64_t)sh.K * sh.D);
    sh.ld_q      = tensor_ld(q);
    sh.ld_k      = tensor_ld(kv);
    sh.wide      = cuda_packable(q) && cuda_packable(kv) && (size_t)sh.D * dtype_bytes(q->dtype) % 16 == 0;
    return sh;
}

int cuda_flash_fwd(Dev *dev, const AttnFwd *a)
{
    if (a->o->dtype != a->qkv->dtype) return err_set("attn_fwd: qkv and o differ in dtype");
    FlashArgs sh = args_packed(a->shape, a->qkv);
    sh.o         = a->o->data;
    sh.lse       = (float *)a->lse->data;
    sh.ld_o      = tensor_ld(a->o);
    sh.doc       = ints(a->doc);
    sh.prefix    = ints(a->prefix);
    sh.first     = ints(a->first);
    sh.last      = ints(a->last);
    return run_fwd(dev, "attn_fwd", a->qkv->dtype, a->qkv->dim[0], sh);
}

int cuda_flash_bwd(Dev *dev, const AttnBwd *a)
{
    DType t = a->qkv->dtype;
    if (a->dout->dtype != t || a->dqkv->dtype != t || a->o->dtype != t) {
        return err_set("attn_bwd: qkv, o, dout and dqkv differ in dtype");
    }
    FlashArgs sh = args_packed(a->shape, a->qkv);
    sh.dout      = a->dout->data;
    sh.o_saved   = a->o->data;
    sh.lse       = (float *)a->lse->data;
    sh.dq        = a->dqkv->data;
    sh.dk        = head_at(a->dqkv, (int64_t)sh.H * sh.D);
    sh.dv        = head_at(a->dqkv, (int64_t)(sh.H + sh.K) * sh.D);
    sh.ld_o      = tensor_ld(a->o);
    sh.ld_dout   = tensor_ld(a->dout);
    sh.ld_dq = sh.ld_dk = tensor_ld(a->dqkv);
    sh.wide             = sh.wide && cuda_packable(a->dout);
    sh.doc              = ints(a->doc);
    sh.prefix           = ints(a->prefix);
    sh.first            = ints(a->first);
    sh.last             = ints(a->last);
    return run_bwd(dev, "attn_bwd", a->ws, t, a->qkv->dim[0], sh);
}

int cuda_flash_cross_fwd(Dev *dev, const CrossAttnFwd *a)
{
    if (a->o->dtype != a->q->dtype || a->kv->dtype != a->q->dtype) {
        return err_set("cross_attn_fwd: q, kv and o differ in dtype");
    }
    FlashArgs sh = args_cross(a->shape, a->q, a->kv);
    sh.o         = a->o->data;
    sh.lse       = (float *)a->lse->data;
    sh.ld_o      = tensor_ld(a->o);
    sh.first     = ints(a->first);
    sh.last      = ints(a->last);
    sh.len       = ints(a->len);
    return run_fwd(dev, "cross_attn_fwd", a->q->dtype, a->q->dim[0], sh);
}

int cuda_flash_cross_bwd(Dev *dev, const CrossAttnBwd *a)
{
    DType t = a->q->dtype;
    if (a->kv->dtype != t || a->o->dtype != t || a->dout->dtype != t || a->dq->dtype != t ||
        a->dkv->dtype != t) {
        return err_set("cross_attn_bwd: its activations and gradients differ in dtype");
    }
    FlashArgs sh = args_cross(a->shape, a->q, a->kv);
    sh.dout      = a->dout->data;
    sh.o_saved   = a->o->data;
    sh.lse       = (float *)a->lse->data;
    sh.dq        = a->dq->data;
    sh.dk        = a->dkv->data;
    sh.dv        = head_at(a->dkv, (int64_t)sh.K * sh.D);
    sh.ld_o      = tensor_ld(a->o);
    sh.ld_dout   = tensor_ld(a->dout);
    sh.ld_dq     = tensor_ld(a->dq);
    sh.ld_dk     = tensor_ld(a->dkv);
    sh.wide      = sh.wide && cuda_packable(a->dout);
    sh.first     = ints(a->first);
    sh.last      = ints(a->last);
    sh.len       = ints(a->len);
    return run_bwd(dev, "cross_attn_bwd", a->ws, t, a->q->dim[0], sh);
}

int cuda_flash_decode(Dev *dev, const AttnDecode *a)
{
    const Tensor *qkv = a->qkv, *k = a->kcache;
    int64_t       B  = k->dim[0];
    FlashArgs     sh = args_of(a->shape, tensor_rows(qkv) / B, k->dim[1]);
    sh.mask          = MASK_CAUSAL;
    sh.q             = qkv->data;
    sh.k             = k->data;
    sh.v             = a->vcache->data;
    sh.o             = a->o->data;
    sh.ld_q          = tensor_ld(qkv);
    sh.ld_k          = (int64_t)sh.K * sh.D;
    sh.ld_o          = tensor_ld(a->o);
    sh.wide          = cuda_packable(qkv) && (uintptr_t)k->data % 16 == 0 && (uintptr_t)sh.v % 16 == 0 &&
              (size_t)sh.D * dtype_bytes(k->dtype) % 16 == 0;
    sh.window    = a->shape.window;
    sh.start     = ints(a->len);
    sh.one_start = tensor_numel(a->len) == 1;
    return run_fwd(dev, "attn_decode", qkv->dtype, B, sh);
}
