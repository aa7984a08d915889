/* Attention forward in tiles: 64 queries stay with a warpgroup while keys and values pass; the maximum and the sum of each row
 * run along.
 *
 * 1. There are four warpgroups, so that some make weights of scores while others multiply.
 * 2. What was summed before is scaled down only when a row's maximum grows, which is rare after the first tiles. Not scaling is
 *    the same as scaling by 1, so the bits do not depend on it.
 * Bytes    q, k, v, o once (tiles that pass come from L2 but for the first time). */
#include "dev/cuda/k_attn_tile.cuh"

using FwdRoom = Room<4, 1, 6, 0, 1>; /* q; k, v; o */

enum { REGS_MULTIPLY = 112, REGS_LOAD = 32 }; /* a thread; together all that a multiprocessor has */

static __device__ unsigned forward_next;

__device__ __forceinline__ void forward_load(const AttnMaps &m, const AttnArgs &g, uint32_t smem)
{
    using R = FwdRoom;
    Ring r  = { 0, 0 };
    load_blocks<R>(blocks_of<R>(g, g.n_batch * g.heads), smem, &forward_next,
                   [&](int head, int i, uint32_t come) {
                       int h = head % g.heads, hk = h / (g.heads / g.kv_heads), row0 = head / g.heads * g.T;
                       int block = query_block<R>(g, i);
                       for (int wg = 0; wg < R::WGS; wg++)
                           tma_load(still_tile<R>(smem, wg, 0), &m.qkv, q_col(h),
                                    row0 + block * R::ROWS + wg * TILE, come);
                       for (int j = 0, n_tile = key_tiles<R>(g, block); j < n_tile; j++, ring_next<R>(r)) {
                           uint32_t full = ring_take<R>(smem, r);
                           tma_load(ring_tile<R>(smem, r, 0), &m.qkv, k_col(g, hk), row0 + j * TILE, full);
                           tma_load(ring_tile<R>(smem, r, 1), &m.qkv, v_col(g, hk), row0 + j * TILE, full);
                       }
                   });
}

/* A warpgroup's 64 queries, so far: sums of weighted values, and of weights (this thread's columns), relative to the maximum. */
typedef struct {
    float o[N_ACC], sum[2], max[2];
} Rows;

/* The rows' maxima with these scores. */
__device__ __forceinline__ void rows_top(const Rows &a, const float (&s)[N_ACC], float (&top)[2])
{
    for (int j = 0; j < 2; j++) top[j] = a.max[j];
#pragma unroll
    for (int i = 0; i < N_ACC; i++) top[i % 4 / 2] = fmaxf(top[i % 4 / 2], s[i]);
#pragma unroll
    for (int j = 0; j < 2; j++) {
        top[j] = fmaxf(top[j], __shfl_xor_sync(FULL_WARP, top[j], 1));
        top[j] = fmaxf(top[j], __shfl_xor_sync(FULL_WARP, top[j], 2));
    }
}

/* Scales what was summed when a maximum grew. */
__device__ __forceinline__ void rows_raise(Rows &a, const float (&top)[2], float c)
{
    if (!__any_sync(FULL_WARP, top[0] > a.max[0] || top[1] > a.max[1])) return;
    float down[2];
#pragma unroll
    for (int j = 0; j < 2; j++) {
        down[j]  = ptx_ex2((a.max[j] - top[j]) * c);
        a.max[j] = top[j];
        a.sum[j] *= down[j];
    }
#pragma unroll
    for (int i = 0; i < N_ACC; i++) a.o[i] *= down[i % 4 / 2];
}

/* The scores as weights: summed as they are, rounded for the product. */
__device__ __forceinline__ void rows_weigh(Rows &a, float (&s)[N_ACC], float c, uint32_t (&p)[N_WORD])
{
    float low[2] = { a.max[0] * c, a.max[1] * c };
#pragma unroll
    for (int i = 0; i < N_ACC; i++) {
        s[i] = ptx_ex2(fmaf(s[i], c, -low[i % 4 / 2]));
        a.sum[i % 4 / 2] += s[i];
    }
    tile_round(p, s);
}

__device__ __forceinline__ void scores_begin(float (&s)[N_ACC], uint32_t q, uint32_t smem, Ring r)
{
    ring_wait<FwdRoom>(smem, r);
    wgmma_begin();
    tile_multiply_rows(s, q, ring_tile<FwdRoom>(smem, r, 0));
    wgmma_commit();
}

/* The rows' results: o into shared memory, lse into memory. */
__device__ __forceinline__ void rows_finish(const Rows &a, const AttnArgs &g, int64_t row0, uint32_t out,
                                            int wg)
{
    float over[2];
#pragma unroll
    for (int j = 0; j < 2; j++) {
        float sum = row_sum(a.sum[j]);
        over[j]   = 1.0f / sum;
        if (threadIdx.x % 4 == 0) g.lse[row0 + tile_row() + 8 * j] = a.max[j] * g.scale + logf(sum);
    }
    place_begin(wg);
    tile_place(a.o, over[0], over[1], out);
}

/* The 64 queries from row0 of a head see the tiles of keys up to `last`. */
__device__ __forceinline__ void rows_sum(Rows &a, const AttnArgs &g, uint32_t smem, uint32_t q, Ring &r,
                                         int last)
{
    using R = FwdRoom;
    float    s[N_ACC], top[2], c = g.scale * LOG2_E;
    uint32_t p[N_WORD];
    scores_begin(s, q, smem, r);
#pragma unroll 1
    for (int j = 0;; j++) {
        Ring at = r;
        wgmma_wait<0>();
        wgmma_settle(s);
        wgmma_settle(a.o);
        if (j > 0) ring_free<R>(smem, ring_before<R>(at));
        if (g.causal && j == last) tile_mask<true>(s);
        rows_top(a, s, top);
        rows_raise(a, top, c);
        rows_weigh(a, s, c, p);
        wgmma_begin();
        tile_multiply_cols(a.o, p, ring_tile<R>(smem, at, 1));
        wgmma_commit();
        ring_next<R>(r);
        if (j == last) break;
        scores_begin(s, q, smem, r);
    }
    wgmma_wait<0>();
    wgmma_settle(a.o);
    ring_free<R>(smem, ring_before<R>(r));
}

__device__ __forceinline__ void forward_multiply(const AttnMaps &m, const AttnArgs &g, uint32_t smem, int wg)
{
    using R      = FwdRoom;
    uint32_t out = smem + R::AT_OUT + wg * TILE_BYTES;
    Ring     r   = { 0, 0 };
    multiply_blocks<R>(blocks_of<R>(g, g.n_batch * g.heads), smem, [&](int head, int i) {
        int block = query_block<R>(g, i), row0 = block * R::ROWS + wg * TILE, n_tile = key_tiles<R>(g, block),
            tiles = n_tile;
        bool some = row0 < g.T; /* else the last block of the head has no rows for this warpgroup */
        if (some && g.causal) tiles = row0 / TILE + 1;
        if (some) {
            Rows a;
            tile_clear(a.o);
            for (int j = 0; j < 2; j++) {
                a.sum[j] = 0.0f;
                a.max[j] = -INFINITY;
            }
            wgmma_settle(a.o);
            rows_sum(a, g, smem, still_tile<R>(smem, wg, 0), r, tiles - 1);
            rows_finish(a, g, (int64_t)head * g.T + row0, out, wg);
            if (place_end(wg)) {
                tma_store(&m.o, q_col(head % g.heads), head / g.heads * g.T + row0, out);
                tma_store_commit();
            }
        }
        still_free<R>(smem);
        for (int j = some ? tiles : 0; j < n_tile; j++) ring_skip<R>(smem, r);
    });
    if (threadIdx.x % WG_THREADS == 0) tma_store_wait();
}

__global__ void __launch_bounds__(FwdRoom::THREADS, 1)
    attn_fwd_kernel(const __grid_constant__ AttnMaps m, const __grid_constant__ AttnArgs g)
{
    extern __shared__ __align__(1024) char shared[];
    uint32_t                               smem = ptx_smem_addr(shared);
    int wg = __shfl_sync(FULL_WARP, threadIdx.x / WG_THREADS, 0); /* known to be the same in a warp */
    room_open<FwdRoom>(smem);
    if (wg < FwdRoom::WGS) {
        regs_grow<REGS_MULTIPLY>();
        forward_multiply(m, g, smem, wg);
    } else {
        regs_shrink<REGS_LOAD>();
        if (threadIdx.x == FwdRoom::LOADER) forward_load(m, g, smem);
    }
}

/* ---- launching ---------------------------------------------------------------------------------------------- */

int64_t tile_attn_ws(const TileAttn *a) { return a->B * a->heads * a->T * (int64_t)sizeof(float2); }

static int unaligned(const void *p, int64_t ld) { return (uintptr_t)p % 16 != 0 || ld % 8 != 0; }

const char *tile_attn_refuses(const TileAttn *a)
{
    if (a->head_dim != TILE) return "heads are not of 64";
    if (a->mask != MASK_CAUSAL && a->mask != MASK_FULL) return "it has no such mask";
    if (a->T % 128 != 0) return "the length is no multiple of 128";
    if (unaligned(a->qkv, a->ld_qkv) || unaligned(a->o, a->ld_o) || unaligned(a->dout, a->ld_dout) ||
        unaligned(a->dqkv, a->ld_dqkv) || (uintptr_t)a->ws % 16 != 0)
        return "rows are not aligned to 16 bytes";
    if (a->B * a->T > INT32_MAX / 2 || a->B * a->heads > INT32_MAX / 2 / a->T) return "it is too large";
    return NULL;
}

int tile_attn_fwd(const TileAttn *a, TmaEncode encode, int n_sm, cudaStream_t stream)
{
    AttnMaps m = {};
    AttnArgs g = attn_args(a);
    TRY(attn_maps(encode, a, &m));
    return attn_launch<FwdRoom>(attn_fwd_kernel, m, g, g.n_batch * g.heads, n_sm, stream);
}
