/* Attention forward in tiles: 64 queries stay with a warpgroup while keys and values pass. The maximum and
 * the sum of each row are kept up to date.
 *
 * 1. Heads of 64 have four warpgroups, so that some compute weights from scores while others multiply: both
 *    take equally long. With heads of 128 multiplying takes twice as long, and two warpgroups are enough.
 * 2. Weights are relative to a maximum that may be a little too small. The sums are scaled down only when a
 *    row's maximum has grown by a factor of 256, which is rare after the first tile. Weights of up to 256 are
 *    as exact as those up to 1.
 * 3. Only the last tile of a row needs the mask, unless low and high come from memory.
 * Bytes    q, k, v, o once (tiles that pass come from memory the first time, then from L2). */
#include "dev/cuda/k_attn_tile.cuh"

/* q; k, v; o. Heads of 64 leave no registers for q: it stays in shared memory, beside the next block's. */
template <int D> struct ForwardRoom : Room<D, D == 64 ? 4 : 2, 1, D == 64 ? 2 : 1, D == 64 ? 6 : 4, 0, 1> {
    static constexpr int  N_SUM   = D / PART * N_ACC;
    static constexpr bool IN_REGS = D != 64; /* q */
    using Still = typename std::conditional<IN_REGS, Words<D / PART * N_WORD>, uint32_t>::type;
    static constexpr int REGS_MULTIPLY = D == 64 ? 112 : 224, REGS_LOAD = D == 64 ? 32 : 56; /* a thread */
};

template <typename R, bool SPANS, bool FEW>
__device__ __forceinline__ void forward_load(const AttnMaps &m, const AttnArgs &g, uint32_t smem)
{
    Ring r = { 0, 0 };
    load_blocks<R>(
        blocks_of<R>(g.n_batch * g.heads, g.T), smem, g.next,
        [&](int head, int i, uint32_t slot, uint32_t come) {
            int b = head / g.heads, h = head % g.heads, hk = h / (g.heads / g.kv_heads),
                row0 = query_block<R>(g, i);
            for (int wg = 0; wg < R::WGS; wg++)
                tile_load<R>(still_tile<R>(smem, slot, wg, 0), &m.q, { h, row0 + wg * TILE, b }, come);
            Tiles seen = tiles_seen<SPANS>(g, b, max(row0, 0), row0 + R::ROWS - 1);
            for (int j = seen.first; j < seen.end; j++, ring_next<R>(r)) {
                uint32_t full = ring_take<R>(smem, r);
                int      k0   = tile_passing<FEW>(j, g.k_tiles) * TILE;
                tile_load<R>(ring_tile<R>(smem, r, 0), &m.k, { hk, k0, b }, full);
                tile_load<R>(ring_tile<R>(smem, r, 1), &m.v, { hk, k0, b }, full);
            }
        });
}

/* A warpgroup's 64 queries, so far: sums of weighted values, and of weights (this thread's columns), relative
 * to exp(scale * base); base is a score seen, little less than the largest. */
template <int N> struct Rows {
    float o[N], sum[2], base[2];
};

/* The rows' maxima with these scores. */
template <int N>
__device__ __forceinline__ void rows_top(const Rows<N> &a, const float (&s)[N_ACC], float (&top)[2])
{
    float other[2] = { s[4], s[6] }; /* two chains a row */
    for (int j = 0; j < 2; j++) top[j] = a.base[j];
#pragma unroll
    for (int i = 0; i < N_ACC; i++) {
        float &t = i % 8 < 4 ? top[i % 4 / 2] : other[i % 4 / 2];
        t        = fmaxf(t, s[i]);
    }
#pragma unroll
    for (int j = 0; j < 2; j++) {
        top[j] = fmaxf(top[j], other[j]);
        top[j] = fmaxf(top[j], __shfl_xor_sync(FULL_WARP, top[j], 1));
        top[j] = fmaxf(top[j], __shfl_xor_sync(FULL_WARP, top[j], 2));
    }
}

/* A maximum to subtract: a row may have seen no key yet. */
template <bool SPANS> __device__ __forceinline__ float finite(float max)
{
    return SPANS && max == -INFINITY ? 0.0f : max;
}

#define SLACK_LOG2 8.0f /* 256 */

/* Scales what was summed of a row whose maximum grew much. c: log2(e) times the scale of scores. */
template <bool SPANS, int N>
__device__ __forceinline__ void rows_raise(Rows<N> &a, const float (&top)[2], float c)
{
    bool much[2] = { (top[0] - a.base[0]) * c > SLACK_LOG2, (top[1] - a.base[1]) * c > SLACK_LOG2 };
    if (!__any_sync(FULL_WARP, much[0] || much[1])) return;
    float down[2];
#pragma unroll
    for (int j = 0; j < 2; j++) {
        float now = much[j] ? top[j] : a.base[j]; /* what a row is does not depend on its neighbours */
        down[j]   = ptx_ex2((a.base[j] - finite<SPANS>(now)) * c);
        down[j]   = much[j] ? down[j] : 1.0f;
        a.base[j] = now;
        a.sum[j] *= down[j];
    }
#pragma unroll
    for (int i = 0; i < N; i++) a.o[i] *= down[i % 4 / 2];
}

/* The scores as weights: summed as they are, rounded for the product. */
template <bool SPANS, int N>
__device__ __forceinline__ void rows_weigh(Rows<N> &a, float (&s)[N_ACC], float c, Words<N_WORD> &p)
{
    float low[2] = { finite<SPANS>(a.base[0]) * c, finite<SPANS>(a.base[1]) * c };
#pragma unroll
    for (int i = 0; i < N_ACC; i++) {
        s[i] = ptx_ex2(fmaf(s[i], c, -low[i % 4 / 2]));
        a.sum[i % 4 / 2] += s[i];
    }
    tile_round(p, s);
}

template <typename R>
__device__ __forceinline__ void scores_begin(float (&s)[N_ACC], const typename R::Still &q, uint32_t smem,
                                             Ring r)
{
    ring_wait<R>(smem, r);
    wgmma_begin();
    tile_multiply_rows<R>(s, q, ring_tile<R>(smem, r, 0));
    wgmma_commit();
}

/* Adds weighted values. */
template <typename R>
__device__ __forceinline__ void values_begin(Rows<R::N_SUM> &a, const Words<N_WORD> &p, uint32_t smem, Ring r)
{
    wgmma_begin();
    tile_multiply_cols(a.o, p, ring_tile<R>(smem, r, 1));
    wgmma_commit();
}

/* The weights of a tile of keys, whose scores are there. Those of the tile before are still being added until
 * the maxima are known. */
template <typename R, bool SPANS, bool LAST>
__device__ __forceinline__ void rows_weights(Rows<R::N_SUM> &a, Words<N_WORD> &p, float (&s)[N_ACC],
                                             const AttnArgs &g, const Clear &clear, int q0, int k0)
{
    float top[2], c = g.scale * LOG2_E;
    wgmma_settle(s);
    if (SPANS || LAST) tile_mask_keys<SPANS>(s, g, clear, q0, k0);
    rows_top(a, s, top);
    wgmma_wait<0>();
    wgmma_settle(a.o);
    rows_raise<SPANS>(a, top, c);
    rows_weigh<SPANS>(a, s, c, p);
}

template <int N> __device__ __forceinline__ void rows_begin(Rows<N> &a)
{
    tile_clear(a.o);
    for (int j = 0; j < 2; j++) {
        a.sum[j]  = 0.0f;
        a.base[j] = -INFINITY;
    }
    /* Else the zeros would be set after the first product began, and all products wait for each other. */
    wgmma_settle(a.o);
}

/* The weights of the few keys, which come first: n of them. */
template <int N>
__device__ __forceinline__ void rows_weigh_few(Rows<N> &a, float (&s)[FEW_ACC], float c, int n,
                                               Words<N_WORD> &p)
{
    few_mask_end(s, n);
#pragma unroll
    for (int j = 0; j < 2; j++) {
        float top = fmaxf(s[2 * j], s[2 * j + 1]);
        top       = fmaxf(top, __shfl_xor_sync(FULL_WARP, top, 1));
        a.base[j] = fmaxf(top, __shfl_xor_sync(FULL_WARP, top, 2));
    }
#pragma unroll
    for (int i = 0; i < FEW_ACC; i++) {
        s[i] = ptx_ex2(fmaf(s[i], c, -a.base[i / 2] * c));
        a.sum[i / 2] += s[i];
    }
    few_round(p, s);
}

/* Adds the few keys' weighted values, which are left to be waited for, and begins the next tile's scores. */
template <typename R>
__device__ __forceinline__ void rows_few(Rows<R::N_SUM> &a, Words<N_WORD> &p, float (&s)[N_ACC],
                                         const AttnArgs &g, uint32_t smem, const typename R::Still &q,
                                         Ring &r)
{
    float few[FEW_ACC];
    Ring  at = r;
    ring_wait<R>(smem, at);
    wgmma_begin();
    few_multiply_rows<R>(few, q, ring_tile<R>(smem, at, 0));
    wgmma_commit();
    ring_next<R>(r);
    scores_begin<R>(s, q, smem, r);
    wgmma_wait<1>(); /* the few scores are there */
    wgmma_settle(few);
    rows_weigh_few(a, few, g.scale * LOG2_E, g.S - (g.k_tiles - 1) * TILE, p);
    wgmma_begin();
    few_multiply_cols(a.o, p, ring_tile<R>(smem, at, 1));
    wgmma_commit();
    wgmma_wait<1>(); /* the scores are there */
}

/* The 64 queries of tile q, which begins at row q0 of sequence b, see these tiles of keys. */
template <typename R, bool SPANS, bool FEW>
__device__ __forceinline__ void rows_sum(Rows<R::N_SUM> &a, const AttnArgs &g, uint32_t smem, uint32_t slot,
                                         const typename R::Still &q, Ring &r, int b, int q0, Tiles seen)
{
    float         s[N_ACC];
    Words<N_WORD> p;
    Clear         clear = clear_of<SPANS>(g, b, q0);
    rows_begin(a);
    if constexpr (FEW) {
        rows_few<R>(a, p, s, g, smem, q, r);
    } else {
        scores_begin<R>(s, q, smem, r);
        wgmma_wait<0>();
    }
#pragma unroll 1
    for (int j = seen.first + FEW; j + 1 < seen.end; j++) {
        Ring at = r;
        rows_weights<R, SPANS, false>(a, p, s, g, clear, q0, j * TILE);
        if (j > seen.first) ring_free<R>(smem, ring_before<R>(at));
        ring_next<R>(r);
        scores_begin<R>(s, q, smem, r);
        values_begin<R>(a, p, smem, at);
        wgmma_wait<1>(); /* the scores are there */
    }
    rows_weights<R, SPANS, true>(a, p, s, g, clear, q0, (seen.end - 1 - FEW) * TILE);
    if (seen.first + 1 < seen.end) ring_free<R>(smem, ring_before<R>(r));
    if (!R::IN_REGS) still_free<R>(smem, slot); /* its last product with q is done */
    values_begin<R>(a, p, smem, r);
    wgmma_wait<0>();
    wgmma_settle(a.o);
    ring_free<R>(smem, r);
    ring_next<R>(r);
}

/* The rows' results, from row0 of a head on: o into shared memory, lse into memory; both are 0 for a query
 * that sees nothing. */
template <bool SPANS, int N>
__device__ __forceinline__ void rows_finish(const Rows<N> &a, const AttnArgs &g, int head, int row0,
                                            uint32_t out, int wg)
{
    float  over[2];
    float *lse = g.lse + (int64_t)head * g.T;
#pragma unroll
    for (int j = 0; j < 2; j++) {
        float sum  = row_sum(a.sum[j]);
        bool  none = SPANS && sum == 0.0f;
        over[j]    = none ? 0.0f : 1.0f / sum;
        int row    = row0 + tile_row() + 8 * j;
        if (threadIdx.x % 4 == 0 && row < g.T) {
            lse[row] = none ? 0.0f : a.base[j] * g.scale + logf(sum);
        }
    }
    place_begin(wg);
    tile_place(a.o, over[0], over[1], out);
}

template <typename R, bool SPANS, bool FEW>
__device__ __forceinline__ void forward_multiply(const AttnMaps &m, const AttnArgs &g, uint32_t smem, int wg)
{
    uint32_t out = smem + R::AT_OUT + wg * R::TILE_BYTES;
    Ring     r   = { 0, 0 };
    multiply_blocks<R>(blocks_of<R>(g.n_batch * g.heads, g.T), smem, [&](int head, int i, uint32_t slot) {
        int   b = head / g.heads, block = query_block<R>(g, i), row0 = block + wg * TILE;
        Tiles all = tiles_seen<SPANS>(g, b, max(block, 0), block + R::ROWS - 1), seen = { all.end, all.end };
        if (row0 >= 0) {
            seen = tiles_within(tiles_seen<SPANS>(g, b, row0, row0 + TILE - 1), all);
        } else {
            still_free<R>(smem, slot); /* this warpgroup has no rows */
        }
        for (int j = all.first; j < seen.first; j++) ring_skip<R>(smem, r);
        if (row0 >= 0) {
            Rows<R::N_SUM>    a;
            typename R::Still q;
            if constexpr (R::IN_REGS) {
                tile_read(q, still_tile<R>(smem, slot, wg, 0));
                still_free<R>(smem, slot);
            } else {
                q = still_tile<R>(smem, slot, wg, 0);
            }
            rows_sum<R, SPANS, FEW>(a, g, smem, slot, q, r, b, row0, seen);
            rows_finish<SPANS>(a, g, head, row0, out, wg);
            if (place_end(wg)) {
                tile_store<R>(&m.o, { head % g.heads, row0, b }, out);
                tma_store_commit();
            }
        }
        for (int j = seen.end; j < all.end; j++) ring_skip<R>(smem, r);
    });
    if (threadIdx.x % WG_THREADS == 0) tma_store_wait();
}

template <int D, bool SPANS, bool FEW>
__global__ void __launch_bounds__(ForwardRoom<D>::THREADS, 1)
    attn_fwd_kernel(const __grid_constant__ AttnMaps m, const __grid_constant__ AttnArgs g)
{
    using R = ForwardRoom<D>;
    extern __shared__ __align__(1024) char shared[];
    uint32_t                               smem = ptx_smem_addr(shared);
    int wg = __shfl_sync(FULL_WARP, threadIdx.x / WG_THREADS, 0); /* known to be the same in a warp */
    room_open<R>(smem);
    if (wg < R::WGS) {
        regs_grow<R::REGS_MULTIPLY>();
        forward_multiply<R, SPANS, FEW>(m, g, smem, wg);
    } else {
        regs_shrink<R::REGS_LOAD>();
        if (threadIdx.x == R::LOADER) forward_load<R, SPANS, FEW>(m, g, smem);
    }
}

/* ---- launching ----------------------------------------------------------------------------------------- */

int64_t tile_attn_fwd_ws(const TileAttn *a) { return attn_common_ws(a); }

static int unaligned(const void *p, int64_t ld) { return (uintptr_t)p % 16 != 0 || ld % 8 != 0; }

const char *tile_attn_refuses(const TileAttn *a)
{
    int64_t most = MAX(a->T, a->S);
    if (a->shape.head_dim % 8 != 0 || a->shape.head_dim > 128) return "heads are no multiple of 8 up to 128";
    if (a->S < 1 || a->T < 1) return "it is empty";
    if (unaligned(a->q, a->ld_q) || unaligned(a->k, a->ld_k) || unaligned(a->v, a->ld_k) ||
        unaligned(a->o, a->ld_o) || unaligned(a->dout, a->ld_dout) || unaligned(a->dq, a->ld_dq) ||
        unaligned(a->dk, a->ld_dk) || unaligned(a->dv, a->ld_dk) || (uintptr_t)a->ws % 16 != 0)
        return "rows are not aligned to 16 bytes";
    if (a->B * most > INT32_MAX / 2 || a->B * a->shape.heads > INT32_MAX / 2 / most) return "it is too large";
    return NULL;
}

template <int D>
static int launch_fwd(const AttnMaps &m, const AttnArgs &g, int spans, int n_sm, cudaStream_t stream)
{
    int   few    = !spans && !g.causal && tiles_end_few(g.S);
    auto *kernel = spans ? attn_fwd_kernel<D, true, false>
                   : few ? attn_fwd_kernel<D, false, true>
                         : attn_fwd_kernel<D, false, false>;
    return attn_launch<ForwardRoom<D>>(kernel, m, g, g.n_batch * g.heads * ForwardRoom<D>::blocks(g.T), n_sm,
                                       stream);
}

int tile_attn_fwd(const TileAttn *a, TmaEncode encode, int n_sm, cudaStream_t stream)
{
    AttnMaps m = {};
    AttnArgs g = attn_args(a, a->ws);
    TRY(attn_maps(encode, a, &m));
    TRY(attn_begin(a, g, false, stream));
    int spans = attn_has_spans(a);
    return a->shape.head_dim <= 64 ? launch_fwd<64>(m, g, spans, n_sm, stream)
                                   : launch_fwd<128>(m, g, spans, n_sm, stream);
}
