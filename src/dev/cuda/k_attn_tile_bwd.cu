/* Attention's gradient in tiles: two kernels, in each of which one side stays.
 *
 *   queries   64 queries stay with a warpgroup while keys and values pass: dq += ds k
 *   keys      64 keys stay while the queries of all heads of their group pass: dv += p^T do, dk += ds^T q
 * with p = exp(scale q k^T - lse), ds = p (do v^T - sum of do * o). `queries` runs first and leaves lse and that sum for `keys`.
 *
 * 1. Seven products instead of five, since both kernels compute p and ds; in return nothing is ever added up in memory: no f32 dq to
 *    clear, add to and convert, no exchange of ds through shared memory, no barrier between warpgroups, and one order of sums.
 * 2. `keys` computes everything transposed (keys are rows), so that p^T and ds^T come out of the tensor cores as they go in again.
 * Bytes    q, k, v, dout once for each kernel, o once, dqkv once (tiles that pass come from L2 but for the first time). */
#include "dev/cuda/k_attn_tile.cuh"

using QueryRoom = Room<2, 3, 8, 0, 1>;                         /* q, dout, o; k, v; dq */
using KeyRoom   = Room<2, 2, 8, TILE *(int)sizeof(float2), 2>; /* k, v; q, dout; dk, dv */

enum { REGS_MULTIPLY = 224, REGS_LOAD = 56 }; /* a thread; together all that a multiprocessor has */

/* ---- queries stay ------------------------------------------------------------------------------------------- */

static __device__ unsigned queries_next, keys_next; /* load_blocks() */

__device__ __forceinline__ void queries_load(const AttnMaps &m, const AttnArgs &g, uint32_t smem)
{
    using R = QueryRoom;
    Ring r  = { 0, 0 };
    load_blocks<R>(blocks_of<R>(g, g.n_batch * g.heads), smem, &queries_next,
                   [&](int head, int i, uint32_t come) {
                       int h = head % g.heads, hk = h / (g.heads / g.kv_heads), row0 = head / g.heads * g.T;
                       int block = query_block<R>(g, i);
                       for (int wg = 0; wg < R::WGS; wg++) {
                           int row = row0 + block * R::ROWS + wg * TILE;
                           tma_load(still_tile<R>(smem, wg, 0), &m.qkv, q_col(h), row, come);
                           tma_load(still_tile<R>(smem, wg, 1), &m.dout, q_col(h), row, come);
                           tma_load(still_tile<R>(smem, wg, 2), &m.o, q_col(h), row, come);
                       }
                       for (int j = 0, n_tile = key_tiles<R>(g, block); j < n_tile; j++, ring_next<R>(r)) {
                           uint32_t full = ring_take<R>(smem, r);
                           tma_load(ring_tile<R>(smem, r, 0), &m.qkv, k_col(g, hk), row0 + j * TILE, full);
                           tma_load(ring_tile<R>(smem, r, 1), &m.qkv, v_col(g, hk), row0 + j * TILE, full);
                       }
                   });
}

/* What the kernels need of each query: lse * log2(e), and the sum of dout * o. */
typedef struct {
    float lse, sum;
} Side;

/* The queries' operands; side: of this thread's two rows, the first of which is `row`. */
__device__ __forceinline__ void queries_begin(const AttnArgs &g, uint32_t smem, int wg, int64_t row,
                                              uint32_t (&q)[N_WORD], uint32_t (&dout)[N_WORD],
                                              Side (&side)[2])
{
    using R = QueryRoom;
    uint32_t o[N_WORD];
    for (int j = 0; j < 2; j++) side[j] = { __ldg(g.lse + row + 8 * j), 0.0f };
    tile_read(q, still_tile<R>(smem, wg, 0));
    tile_read(dout, still_tile<R>(smem, wg, 1));
    tile_read(o, still_tile<R>(smem, wg, 2));
    still_free<R>(smem);
#pragma unroll
    for (int i = 0; i < N_WORD; i++) {
        float &sum = side[i % 2].sum;
        sum        = fmaf(bf16_low(dout[i]), bf16_low(o[i]), sum);
        sum        = fmaf(bf16_high(dout[i]), bf16_high(o[i]), sum);
    }
}

/* Finishes them, and leaves them for `keys`. */
__device__ __forceinline__ void side_finish(const AttnArgs &g, int64_t row, Side (&side)[2])
{
#pragma unroll
    for (int j = 0; j < 2; j++) {
        side[j] = { side[j].lse * LOG2_E, row_sum(side[j].sum) };
        if (threadIdx.x % 4 == 0) g.rows[row + 8 * j] = make_float2(side[j].lse, side[j].sum);
    }
}

/* s = scores, dp = dout v^T of the tile that comes next. */
template <typename R>
__device__ __forceinline__ void scores_begin(float (&s)[N_ACC], float (&dp)[N_ACC],
                                             const uint32_t (&a)[N_WORD], const uint32_t (&b)[N_WORD],
                                             uint32_t smem, Ring r)
{
    ring_wait<R>(smem, r);
    wgmma_begin();
    tile_multiply_rows<0>(s, a, ring_tile<R>(smem, r, 0));
    wgmma_commit();
    tile_multiply_rows<0>(dp, b, ring_tile<R>(smem, r, 1));
    wgmma_commit();
}

__device__ __forceinline__ void queries_multiply(const AttnMaps &m, const AttnArgs &g, uint32_t smem, int wg)
{
    using R      = QueryRoom;
    uint32_t out = smem + R::AT_OUT + wg * TILE_BYTES;
    float    c   = g.scale * LOG2_E;
    Ring     r   = { 0, 0 };
    multiply_blocks<R>(blocks_of<R>(g, g.n_batch * g.heads), smem, [&](int head, int i) {
        float    s[N_ACC], dp[N_ACC], dq[N_ACC];
        uint32_t q[N_WORD], dout[N_WORD], ds[N_WORD];
        Side     side[2];
        int block = query_block<R>(g, i), row0 = block * R::ROWS + wg * TILE, n_tile = key_tiles<R>(g, block);
        int last    = g.causal ? row0 / TILE : n_tile - 1;
        int64_t row = (int64_t)head * g.T + row0 + tile_row();
        queries_begin(g, smem, wg, row, q, dout, side);
        tile_clear(dq);
        scores_begin<R>(s, dp, q, dout, smem, r);
        side_finish(g, row, side);
#pragma unroll 1
        for (int j = 0;; j++) {
            Ring at = r;
            wgmma_wait<1>(); /* the scores are there, and so is dq of the tile before */
            wgmma_settle(s);
            if (g.causal && j == last) tile_mask<true>(s);
#pragma unroll
            for (int i = 0; i < N_ACC; i++) s[i] = ptx_ex2(fmaf(s[i], c, -side[i % 4 / 2].lse));
            wgmma_wait<0>();
            wgmma_settle(dp);
#pragma unroll
            for (int i = 0; i < N_ACC; i++) dp[i] = s[i] * (dp[i] - side[i % 4 / 2].sum);
            tile_round(ds, dp);
            wgmma_begin();
            tile_multiply_cols(dq, ds, ring_tile<R>(smem, at, 0));
            wgmma_commit();
            ring_next<R>(r);
            if (j == last) break;
            scores_begin<R>(s, dp, q, dout, smem, r);
            wgmma_wait<2>();
            ring_free<R>(smem, at);
        }
        wgmma_wait<0>();
        wgmma_settle(dq);
        ring_free<R>(smem, ring_before<R>(r));
        if (last < n_tile - 1) ring_skip<R>(smem, r);
        place_begin(wg);
        tile_place(dq, g.scale, g.scale, out);
        if (place_end(wg)) {
            tma_store(&m.dqkv, q_col(head % g.heads), head / g.heads * g.T + row0, out);
            tma_store_commit();
        }
    });
    if (threadIdx.x % WG_THREADS == 0) tma_store_wait();
}

/* ---- keys stay ---------------------------------------------------------------------------------------------- */

/* The first tile of queries that sees keys of a block, or of a warpgroup's half of it. */
__device__ __forceinline__ int query_first(const AttnArgs &g, int block, int wg)
{
    return g.causal ? block * KeyRoom::WGS + wg : 0;
}

__device__ __forceinline__ void keys_load(const AttnMaps &m, const AttnArgs &g, uint32_t smem)
{
    using R    = KeyRoom;
    Ring r     = { 0, 0 };
    int  group = g.heads / g.kv_heads, n_tile = g.T / TILE;
    load_blocks<R>(blocks_of<R>(g, g.n_batch * g.kv_heads), smem, &keys_next,
                   [&](int head, int block, uint32_t come) {
                       int b = head / g.kv_heads, hk = head % g.kv_heads, row0 = b * g.T;
                       for (int wg = 0; wg < R::WGS; wg++) {
                           int row = row0 + block * R::ROWS + wg * TILE;
                           tma_load(still_tile<R>(smem, wg, 0), &m.qkv, k_col(g, hk), row, come);
                           tma_load(still_tile<R>(smem, wg, 1), &m.qkv, v_col(g, hk), row, come);
                       }
                       for (int h = hk * group; h < (hk + 1) * group; h++) {
                           const float2 *side = g.rows + ((int64_t)b * g.heads + h) * g.T;
                           for (int i = query_first(g, block, 0); i < n_tile; i++, ring_next<R>(r)) {
                               uint32_t full = ring_take<R>(smem, r);
                               tma_load(ring_tile<R>(smem, r, 0), &m.qkv, q_col(h), row0 + i * TILE, full);
                               tma_load(ring_tile<R>(smem, r, 1), &m.dout, q_col(h), row0 + i * TILE, full);
                               tma_load_bytes(ring_side<R>(smem, r), side + i * TILE, R::SIDE, full);
                           }
                       }
                   });
}

/* p^T of scores, in place; side: of the tile's queries. */
__device__ __forceinline__ void keys_weights(float (&s)[N_ACC], float c, uint32_t side)
{
#pragma unroll
    for (int b = 0; b < 8; b++) {
        float4 v = smem_load_four(side + (b * 8 + tile_col()) * 8);
#pragma unroll
        for (int i = 4 * b; i < 4 * b + 4; i++) s[i] = ptx_ex2(fmaf(s[i], c, i % 2 ? -v.z : -v.x));
    }
}

/* ds^T, in place of dp^T. */
__device__ __forceinline__ void keys_gradient(float (&dp)[N_ACC], const float (&p)[N_ACC], uint32_t side)
{
#pragma unroll
    for (int b = 0; b < 8; b++) {
        float4 v = smem_load_four(side + (b * 8 + tile_col()) * 8);
#pragma unroll
        for (int i = 4 * b; i < 4 * b + 4; i++) dp[i] = p[i] * (dp[i] - (i % 2 ? v.w : v.y));
    }
}

__device__ __forceinline__ void keys_multiply(const AttnMaps &m, const AttnArgs &g, uint32_t smem, int wg)
{
    using R         = KeyRoom;
    uint32_t out    = smem + R::AT_OUT + wg * R::OUT * TILE_BYTES;
    float    c      = g.scale * LOG2_E;
    Ring     r      = { 0, 0 };
    int      n_tile = g.T / TILE;
    multiply_blocks<R>(blocks_of<R>(g, g.n_batch * g.kv_heads), smem, [&](int head, int block) {
        float    s[N_ACC], dp[N_ACC], dk[N_ACC], dv[N_ACC];
        uint32_t k[N_WORD], v[N_WORD], p[N_WORD], ds[N_WORD];
        int      first = query_first(g, block, wg), i = first, left = g.heads / g.kv_heads * (n_tile - first);
        bool     skips = first > query_first(g, block, 0);
        tile_read(k, still_tile<R>(smem, wg, 0));
        tile_read(v, still_tile<R>(smem, wg, 1));
        still_free<R>(smem);
        tile_clear(dk);
        tile_clear(dv);
        if (skips) ring_skip<R>(smem, r);
        scores_begin<R>(s, dp, k, v, smem, r);
#pragma unroll 1
        for (;;) {
            Ring     at   = r;
            uint32_t side = ring_side<R>(smem, at);
            wgmma_wait<1>(); /* the scores are there, and so are dk and dv of the tile before */
            wgmma_settle(s);
            if (g.causal && i == first) tile_mask<false>(s);
            keys_weights(s, c, side);
            tile_round(p, s);
            wgmma_begin();
            tile_multiply_cols(dv, p, ring_tile<R>(smem, at, 1));
            wgmma_commit();
            wgmma_wait<1>();
            wgmma_settle(dp);
            keys_gradient(dp, s, side);
            tile_round(ds, dp);
            wgmma_begin();
            tile_multiply_cols(dk, ds, ring_tile<R>(smem, at, 0));
            wgmma_commit();
            ring_next<R>(r);
            if (--left == 0) break;
            if (++i == n_tile) {
                i = first;
                if (skips) ring_skip<R>(smem, r);
            }
            scores_begin<R>(s, dp, k, v, smem, r);
            wgmma_wait<2>();
            ring_free<R>(smem, at);
        }
        wgmma_wait<0>();
        wgmma_settle(dk);
        wgmma_settle(dv);
        ring_free<R>(smem, ring_before<R>(r));
        place_begin(wg);
        tile_place(dk, g.scale, g.scale, out);
        tile_place(dv, 1.0f, 1.0f, out + TILE_BYTES);
        if (place_end(wg)) {
            int hk = head % g.kv_heads, row = head / g.kv_heads * g.T + block * R::ROWS + wg * TILE;
            tma_store(&m.dqkv, k_col(g, hk), row, out);
            tma_store(&m.dqkv, v_col(g, hk), row, out + TILE_BYTES);
            tma_store_commit();
        }
    });
    if (threadIdx.x % WG_THREADS == 0) tma_store_wait();
}

/* ---- the kernels -------------------------------------------------------------------------------------------- */

template <bool KEYS>
__global__ void __launch_bounds__(KEYS ? KeyRoom::THREADS : QueryRoom::THREADS, 1)
    attn_bwd_kernel(const __grid_constant__ AttnMaps m, const __grid_constant__ AttnArgs g)
{
    using R = typename std::conditional<KEYS, KeyRoom, QueryRoom>::type;
    extern __shared__ __align__(1024) char shared[];
    uint32_t                               smem = ptx_smem_addr(shared);
    int wg = __shfl_sync(FULL_WARP, threadIdx.x / WG_THREADS, 0); /* known to be the same in a warp */
    room_open<R>(smem);
    if (wg < R::WGS) {
        regs_grow<REGS_MULTIPLY>();
        if (KEYS) {
            keys_multiply(m, g, smem, wg);
        } else {
            queries_multiply(m, g, smem, wg);
        }
    } else {
        regs_shrink<REGS_LOAD>();
        if (threadIdx.x == R::LOADER) {
            if (KEYS) {
                keys_load(m, g, smem);
            } else {
                queries_load(m, g, smem);
            }
        }
    }
}

int tile_attn_bwd(const TileAttn *a, TmaEncode encode, int n_sm, cudaStream_t stream)
{
    AttnMaps m = {};
    AttnArgs g = attn_args(a);
    TRY(attn_maps(encode, a, &m));
    TRY(attn_launch<QueryRoom>(attn_bwd_kernel<false>, m, g, g.n_batch * g.heads, n_sm, stream));
    return attn_launch<KeyRoom>(attn_bwd_kernel<true>, m, g, g.n_batch * g.kv_heads, n_sm, stream);
}
