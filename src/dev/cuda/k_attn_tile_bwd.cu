/* Attention's gradient in tiles: two kernels, in each of which one side stays.
 *
 *   queries   64 queries stay with a warpgroup while keys and values pass: dq += ds k
 *   keys      64 keys stay while the queries of all heads of their group pass: dv += p^T do, dk += ds^T q
 * with p = exp(scale q k^T - lse), ds = p (do v^T - sum of do * o). `queries` runs first and leaves lse and that sum for `keys`.
 *
 * 1. Seven products instead of five, since both kernels compute p and ds; in return nothing is ever added up in memory: no f32 dq to
 *    clear, add to and convert, no exchange of ds through shared memory, no barrier between warpgroups, and one order of sums.
 * 2. `keys` computes everything transposed (keys are rows), so that p^T and ds^T come out of the tensor cores as they go in again.
 * 3. While one warpgroup makes p and ds of scores, the other multiplies. The next tile's scores begin right behind the last product of
 *    this one.
 * Bytes    q, k, v, dout once for each kernel, o once, dqkv once (tiles that pass come from L2 but for the first time). */
#include "dev/cuda/k_attn_tile.cuh"

/* q, dout, o; k, v; dq */
template <int D> struct QueryRoom : Room<D, 2, 3, D == 64 ? 8 : 3, 0, 1> {
    static constexpr int N_SUM         = D / PART * N_ACC;
    using Still                        = Words<D / PART * N_WORD>;
    static constexpr int REGS_MULTIPLY = D == 64 ? 224 : 240, REGS_LOAD = D == 64 ? 56 : 24; /* a thread */
};

/* k, v; q, dout; dk, dv. Heads of 128 leave no registers for k and v: they stay in shared memory, and dk and dv leave from there. */
template <int D> struct KeyRoom : Room<D, 2, 2, D == 64 ? 8 : 4, TILE *(int)sizeof(float2), D == 64 ? 2 : 0> {
    static constexpr int N_SUM         = D / PART * N_ACC;
    using Still                        = typename std::conditional<D == 64, Words<N_WORD>, uint32_t>::type;
    static constexpr int REGS_MULTIPLY = D == 64 ? 224 : 240, REGS_LOAD = D == 64 ? 56 : 24;
};

static __device__ unsigned queries_next, keys_next; /* load_blocks() */

/* s = scores, dp = dout v^T of the tile that comes next, or both transposed. */
template <typename R>
__device__ __forceinline__ void scores_begin(float (&s)[N_ACC], float (&dp)[N_ACC],
                                             const typename R::Still &a, const typename R::Still &b,
                                             uint32_t smem, Ring r)
{
    ring_wait<R>(smem, r);
    wgmma_begin();
    tile_multiply_rows<R>(s, a, ring_tile<R>(smem, r, 0));
    wgmma_commit();
    tile_multiply_rows<R>(dp, b, ring_tile<R>(smem, r, 1));
    wgmma_commit();
}

/* A gradient of q or k, scaled and rounded; rotated back and rounded again if there is a table. t: position of this thread's first row.
 * A pair of columns half a head apart is in one thread. */
template <int N> __device__ __forceinline__ void gradient_turn(float (&d)[N], const AttnArgs &g, int t)
{
    constexpr int D = 2 * N;
#pragma unroll
    for (int i = 0; i < N; i++) d[i] *= g.scale;
    if (!g.table) return;
#pragma unroll
    for (int i = 0; i < N / 2; i += 2) { /* two columns */
        const float *at = g.table + (int64_t)(t + i % 4 / 2 * 8) * D + i / 4 * 8 + tile_col();
        float2       c  = __ldg(reinterpret_cast<const float2 *>(at));
        float2       s  = __ldg(reinterpret_cast<const float2 *>(at + D / 2));
        uint32_t     lo = bf16_pair(d[i], d[i + 1]), hi = bf16_pair(d[i + N / 2], d[i + N / 2 + 1]);
        float        u0 = bf16_low(lo), u1 = bf16_high(lo), v0 = bf16_low(hi), v1 = bf16_high(hi);
        d[i]             = fmaf(u0, c.x, -__fmul_rn(v0, -s.x)); /* as in k_rope.cu, with the sine negated */
        d[i + 1]         = fmaf(u1, c.y, -__fmul_rn(v1, -s.y));
        d[i + N / 2]     = fmaf(v0, c.x, __fmul_rn(u0, -s.x));
        d[i + N / 2 + 1] = fmaf(v1, c.y, __fmul_rn(u1, -s.y));
    }
}

/* ---- queries stay ------------------------------------------------------------------------------------------- */

template <typename R>
__device__ __forceinline__ void queries_load(const AttnMaps &m, const AttnArgs &g, uint32_t smem)
{
    Ring r = { 0, 0 };
    load_blocks<R>(
        blocks_of<R>(g, g.n_batch * g.heads), smem, &queries_next, [&](int head, int i, uint32_t come) {
            int h = head % g.heads, hk = h / (g.heads / g.kv_heads), row0 = head / g.heads * g.T;
            int block = query_block<R>(g, i);
            for (int wg = 0; wg < R::WGS; wg++) {
                int row = row0 + block * R::ROWS + wg * TILE;
                tile_load<R>(still_tile<R>(smem, wg, 0), &m.qkv, q_col<R>(h), row, come);
                tile_load<R>(still_tile<R>(smem, wg, 1), &m.dout, q_col<R>(h), row, come);
                tile_load<R>(still_tile<R>(smem, wg, 2), &m.o, q_col<R>(h), row, come);
            }
            for (int j = 0, n_tile = key_tiles<R>(g, block); j < n_tile; j++, ring_next<R>(r)) {
                uint32_t full = ring_take<R>(smem, r);
                tile_load<R>(ring_tile<R>(smem, r, 0), &m.qkv, k_col<R>(g, hk), row0 + j * TILE, full);
                tile_load<R>(ring_tile<R>(smem, r, 1), &m.qkv, v_col<R>(g, hk), row0 + j * TILE, full);
            }
        });
}

/* What the kernels need of each query: lse * log2(e), and the sum of dout * o. */
typedef struct {
    float lse, sum;
} Side;

/* The queries' operands; side: of this thread's two rows, the first of which is `row`. */
template <typename R>
__device__ __forceinline__ void queries_begin(const AttnArgs &g, uint32_t smem, int wg, int64_t row,
                                              typename R::Still &q, typename R::Still &dout, Side (&side)[2])
{
    typename R::Still o;
    for (int j = 0; j < 2; j++) side[j] = { __ldg(g.lse + row + 8 * j), 0.0f };
    tile_read(q, still_tile<R>(smem, wg, 0));
    tile_read(dout, still_tile<R>(smem, wg, 1));
    tile_read(o, still_tile<R>(smem, wg, 2));
    still_free<R>(smem);
#pragma unroll
    for (int i = 0; i < R::D / PART * N_WORD; i++) {
        float &sum = side[i % 2].sum;
        sum        = fmaf(bf16_low(dout.w[i]), bf16_low(o.w[i]), sum);
        sum        = fmaf(bf16_high(dout.w[i]), bf16_high(o.w[i]), sum);
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

/* dq of the 64 queries whose first row (of this thread) is `row`; they see the tiles of keys up to `last`. */
template <typename R>
__device__ __forceinline__ void queries_sum(float (&dq)[R::N_SUM], const AttnArgs &g, uint32_t smem, int wg,
                                            int64_t row, Ring &r, int last)
{
    float             s[N_ACC], dp[N_ACC], c = g.scale * LOG2_E;
    typename R::Still q, dout;
    Words<N_WORD>     ds;
    Side              side[2];
    queries_begin<R>(g, smem, wg, row, q, dout, side);
    tile_clear(dq);
    scores_begin<R>(s, dp, q, dout, smem, r);
    side_finish(g, row, side);
#pragma unroll 1
    for (int j = 0;; j++) {
        Ring at = r;
        wgmma_wait<1>(); /* the scores are there */
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
}

template <typename R>
__device__ __forceinline__ void queries_multiply(const AttnMaps &m, const AttnArgs &g, uint32_t smem, int wg)
{
    uint32_t out = smem + R::AT_OUT + wg * R::TILE_BYTES;
    Ring     r   = { 0, 0 };
    multiply_blocks<R>(blocks_of<R>(g, g.n_batch * g.heads), smem, [&](int head, int i) {
        float dq[R::N_SUM];
        int block = query_block<R>(g, i), row0 = block * R::ROWS + wg * TILE, n_tile = key_tiles<R>(g, block);
        int last = g.causal ? row0 / TILE : n_tile - 1;
        queries_sum<R>(dq, g, smem, wg, (int64_t)head * g.T + row0 + tile_row(), r, last);
        if (last < n_tile - 1) ring_skip<R>(smem, r);
        gradient_turn(dq, g, row0 + tile_row());
        place_begin(wg);
        tile_place(dq, 1.0f, 1.0f, out);
        if (place_end(wg)) {
            tile_store<R>(&m.dqkv, q_col<R>(head % g.heads), head / g.heads * g.T + row0, out);
            tma_store_commit();
        }
    });
    if (threadIdx.x % WG_THREADS == 0) tma_store_wait();
}

/* ---- keys stay ---------------------------------------------------------------------------------------------- */

/* The first tile of queries that sees keys of a block, or of a warpgroup's half of it. */
template <typename R> __device__ __forceinline__ int query_first(const AttnArgs &g, int block, int wg)
{
    return g.causal ? block * R::WGS + wg : 0;
}

template <typename R>
__device__ __forceinline__ void keys_load(const AttnMaps &m, const AttnArgs &g, uint32_t smem)
{
    Ring r     = { 0, 0 };
    int  group = g.heads / g.kv_heads, n_tile = g.T / TILE;
    load_blocks<R>(
        blocks_of<R>(g, g.n_batch * g.kv_heads), smem, &keys_next, [&](int head, int block, uint32_t come) {
            int b = head / g.kv_heads, hk = head % g.kv_heads, row0 = b * g.T;
            for (int wg = 0; wg < R::WGS; wg++) {
                int row = row0 + block * R::ROWS + wg * TILE;
                tile_load<R>(still_tile<R>(smem, wg, 0), &m.qkv, k_col<R>(g, hk), row, come);
                tile_load<R>(still_tile<R>(smem, wg, 1), &m.qkv, v_col<R>(g, hk), row, come);
            }
            for (int h = hk * group; h < (hk + 1) * group; h++) {
                const float2 *side = g.rows + ((int64_t)b * g.heads + h) * g.T;
                for (int i = query_first<R>(g, block, 0); i < n_tile; i++, ring_next<R>(r)) {
                    uint32_t full = ring_take<R>(smem, r);
                    tile_load<R>(ring_tile<R>(smem, r, 0), &m.qkv, q_col<R>(h), row0 + i * TILE, full);
                    tile_load<R>(ring_tile<R>(smem, r, 1), &m.dout, q_col<R>(h), row0 + i * TILE, full);
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

/* dk and dv of the 64 keys that stay; tiles from `first` to the last of each of n_head heads see them. skips: this warpgroup has no
 * use for the first tile of each head. */
template <typename R>
__device__ __forceinline__ void keys_sum(float (&dk)[R::N_SUM], float (&dv)[R::N_SUM],
                                         const typename R::Still &k, const typename R::Still &v,
                                         const AttnArgs &g, uint32_t smem, Ring &r, int first, bool skips)
{
    constexpr bool FEW = R::D != 64; /* registers */
    float          s[N_ACC], dp[N_ACC], c = g.scale * LOG2_E;
    Words<N_WORD>  p, ds;
    int            n_tile = g.T / TILE, i = first, left = g.heads / g.kv_heads * (n_tile - first);
    tile_clear(dk);
    tile_clear(dv);
    if (skips) ring_skip<R>(smem, r);
    scores_begin<R>(s, dp, k, v, smem, r);
#pragma unroll 1
    for (;;) {
        Ring     at   = r;
        uint32_t side = ring_side<R>(smem, at);
        wgmma_wait<1>(); /* the scores are there */
        wgmma_settle(s);
        if (g.causal && i == first) tile_mask<false>(s);
        keys_weights(s, c, side);
        tile_round(p, s);
        wgmma_begin();
        tile_multiply_cols(dv, p, ring_tile<R>(smem, at, 1));
        wgmma_commit();
        wgmma_wait<1>(); /* so is dp */
        wgmma_settle(dp);
        keys_gradient(dp, s, side);
        if (FEW) wgmma_wait<0>(); /* p's registers for ds */
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
}

template <typename R>
__device__ __forceinline__ void keys_multiply(const AttnMaps &m, const AttnArgs &g, uint32_t smem, int wg)
{
    constexpr bool IN_REGS = R::OUT > 0; /* k and v: their place is free as soon as they are read */
    Ring           r       = { 0, 0 };
    multiply_blocks<R>(blocks_of<R>(g, g.n_batch * g.kv_heads), smem, [&](int head, int block) {
        float             dk[R::N_SUM], dv[R::N_SUM];
        typename R::Still k, v;
        uint32_t          k_tile = still_tile<R>(smem, wg, 0), v_tile = still_tile<R>(smem, wg, 1);
        uint32_t          out   = IN_REGS ? smem + R::AT_OUT + wg * R::OUT * R::TILE_BYTES : k_tile;
        int               first = query_first<R>(g, block, wg);
        if constexpr (IN_REGS) {
            tile_read(k, k_tile);
            tile_read(v, v_tile);
            still_free<R>(smem);
        } else {
            k = k_tile;
            v = v_tile;
        }
        keys_sum<R>(dk, dv, k, v, g, smem, r, first, first > query_first<R>(g, block, 0));
        gradient_turn(dk, g, block * R::ROWS + wg * TILE + tile_row());
        place_begin(wg);
        tile_place(dk, 1.0f, 1.0f, out);
        tile_place(dv, 1.0f, 1.0f, out + R::TILE_BYTES);
        if (place_end(wg)) {
            int hk = head % g.kv_heads, row = head / g.kv_heads * g.T + block * R::ROWS + wg * TILE;
            tile_store<R>(&m.dqkv, k_col<R>(g, hk), row, out);
            tile_store<R>(&m.dqkv, v_col<R>(g, hk), row, out + R::TILE_BYTES);
            tma_store_commit();
            if (!IN_REGS) tma_store_wait_read<0>();
        }
        if (!IN_REGS) still_free<R>(smem);
    });
    if (threadIdx.x % WG_THREADS == 0) tma_store_wait();
}

/* ---- the kernels -------------------------------------------------------------------------------------------- */

template <typename R, bool KEYS>
__global__ void __launch_bounds__(R::THREADS, 1)
    attn_bwd_kernel(const __grid_constant__ AttnMaps m, const __grid_constant__ AttnArgs g)
{
    extern __shared__ __align__(1024) char shared[];
    uint32_t                               smem = ptx_smem_addr(shared);
    int wg = __shfl_sync(FULL_WARP, threadIdx.x / WG_THREADS, 0); /* known to be the same in a warp */
    room_open<R>(smem);
    if (wg < R::WGS) {
        regs_grow<R::REGS_MULTIPLY>();
        if constexpr (KEYS) {
            keys_multiply<R>(m, g, smem, wg);
        } else {
            queries_multiply<R>(m, g, smem, wg);
        }
    } else {
        regs_shrink<R::REGS_LOAD>();
        if (threadIdx.x == R::LOADER) {
            if constexpr (KEYS) {
                keys_load<R>(m, g, smem);
            } else {
                queries_load<R>(m, g, smem);
            }
        }
    }
}

template <int D> static int launch_bwd(const AttnMaps &m, const AttnArgs &g, int n_sm, cudaStream_t stream)
{
    using Q = QueryRoom<D>;
    using K = KeyRoom<D>;
    TRY(attn_launch<Q>(attn_bwd_kernel<Q, false>, m, g, g.n_batch * g.heads, n_sm, stream));
    return attn_launch<K>(attn_bwd_kernel<K, true>, m, g, g.n_batch * g.kv_heads, n_sm, stream);
}

int tile_attn_bwd(const TileAttn *a, TmaEncode encode, int n_sm, cudaStream_t stream)
{
    AttnMaps m = {};
    AttnArgs g = attn_args(a);
    TRY(attn_maps(encode, a, &m));
    return a->head_dim == 64 ? launch_bwd<64>(m, g, n_sm, stream) : launch_bwd<128>(m, g, n_sm, stream);
}
