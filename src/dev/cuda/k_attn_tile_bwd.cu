/* Attention's gradient in tiles: two kernels. In each kernel one side stays.
 *
 *   queries   64 queries stay with a warpgroup while keys and values pass: dq += ds k
 *   keys      64 keys stay while the queries of all heads of their group pass: dv += p^T do, dk += ds^T q
 * with p = exp(scale q k^T - lse), ds = p (do v^T - sum of do * o). `queries` runs first and leaves lse and
 * that sum for `keys`.
 *
 * 1. There are seven products instead of five, since both kernels compute p and ds. In return nothing is
 *    added up in memory: no f32 dq to clear, add to and convert, no exchange of ds through shared memory, no
 *    barrier between warpgroups. Sums have one order.
 * 2. `keys` computes everything transposed (keys are rows). So p^T and ds^T leave the tensor cores in the
 *    layout in which they enter them again.
 * 3. While one warpgroup computes p and ds from scores, the others multiply. The scores of a tile begin right
 *    behind the last product of the tile before. Exponentials are computed until the tile's dp is ready, too;
 *    then both go on together: one waits for the exponential unit, the other fills the gaps. `keys` does so
 *    with heads of 64. Where `keys` skips tiles (spans), it first waits for the whole tile before.
 * Bytes    q, k, v, dout once for each kernel, o once, dqkv once (tiles that pass come from memory
 *          the first time, then from L2). */
#include "dev/cuda/k_attn_tile.cuh"

/* q, dout, o; k, v; dq. Heads of 64 have three warpgroups, for whom there are no registers for dout: it stays
 * in shared memory, and dq leaves from where o was. Four tiles of queries have two warpgroups: with
 * three, the fourth tile would have a thread block for itself. */
template <int D, int WGS>
struct QueryRoom : Room<D, WGS, 3, D == 64 ? 2 : 1,
                        D == 128   ? 3
                        : WGS == 2 ? 7
                                   : 5,
                        0, D == 64 ? 0 : 1> {
    static constexpr int N_SUM         = D / PART * N_ACC;
    using Query                        = Words<D / PART * N_WORD>;
    using Dout                         = typename std::conditional<D == 64, uint32_t, Query>::type;
    static constexpr int REGS_MULTIPLY = D == 128 ? 240 : WGS == 2 ? 224 : 160; /* a thread */
    static constexpr int REGS_LOAD     = D == 128 ? 24 : WGS == 2 ? 56 : 32;
};

/* k, v; q, dout; dk, dv. With heads of 128 there are no registers for k and v: they stay in shared memory,
 * and dk and dv leave from there. */
template <int D>
struct KeyRoom : Room<D, 2, 2, 1, D == 64 ? 8 : 4, TILE *(int)sizeof(float2), D == 64 ? 2 : 0> {
    static constexpr int N_SUM = D / PART * N_ACC, REGS_MULTIPLY = D == 64 ? 224 : 240,
                         REGS_LOAD = D == 64 ? 56 : 24;
    using Still                    = typename std::conditional<D == 64, Words<N_WORD>, uint32_t>::type;
    static_assert(KeyRoom::WGS == 2, "Walk.skips: at most one tile of a head");
    static_assert(KeyRoom::STAGES >= 4, "the tile before, this one, one skipped, the next");
};

/* d = a b^T, b: tile i of the stage of the ring: scores, or dout v^T, or their transposes. */
template <typename R, typename A>
__device__ __forceinline__ void product_begin(float (&d)[N_ACC], const A &a, uint32_t smem, Ring r, int i)
{
    wgmma_begin();
    tile_multiply_rows<R>(d, a, ring_tile<R>(smem, r, i));
    wgmma_commit();
}

/* A gradient of q or k, scaled and rounded; rotated back and rounded again if there is a table. t: position
 * of this thread's first row. A pair of columns half a head apart is in one thread. Rows behind the sequence
 * take the last row's angles. */
template <int N> __device__ __forceinline__ void gradient_turn(float (&d)[N], const AttnArgs &g, int t)
{
    constexpr int D = 2 * N;
#pragma unroll
    for (int i = 0; i < N; i++) d[i] *= g.scale;
    if (!g.table) return;
#pragma unroll
    for (int i = 0; i < N / 2; i += 2) { /* two columns */
        const float *at = g.table + (int64_t)min(t + i % 4 / 2 * 8, g.T - 1) * D + i / 4 * 8 + tile_col();
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

/* ---- queries stay -------------------------------------------------------------------------------------- */

template <typename R, bool SPANS, bool FEW>
__device__ __forceinline__ void queries_load(const AttnMaps &m, const AttnArgs &g, uint32_t smem)
{
    Ring r = { 0, 0 };
    load_blocks<R>(blocks_of<R>(g.n_batch * g.heads, g.T), smem, g.next,
                   [&](int head, int i, uint32_t slot, uint32_t come) {
                       int b = head / g.heads, h = head % g.heads, hk = h / (g.heads / g.kv_heads),
                           row0 = query_block<R>(g, i);
                       for (int wg = 0; wg < R::WGS; wg++) {
                           HeadBox at = { h, row0 + wg * TILE, b };
                           tile_load<R>(still_tile<R>(smem, slot, wg, 0), &m.q, at, come);
                           tile_load<R>(still_tile<R>(smem, slot, wg, 1), &m.dout, at, come);
                           tile_load<R>(still_tile<R>(smem, slot, wg, 2), &m.o, at, come);
                       }
                       Tiles seen = tiles_seen<SPANS>(g, b, max(row0, 0), row0 + R::ROWS - 1);
                       for (int j = seen.first; j < seen.end; j++, ring_next<R>(r)) {
                           uint32_t full = ring_take<R>(smem, r);
                           int      k0   = tile_passing<FEW>(j, g.k_tiles) * TILE;
                           tile_load<R>(ring_tile<R>(smem, r, 0), &m.k, { hk, k0, b }, full);
                           tile_load<R>(ring_tile<R>(smem, r, 1), &m.v, { hk, k0, b }, full);
                       }
                   });
}

/* What the kernels need of each query: lse, times log2(e) once side_finish() was there, and the sum of dout *
 * o. */
typedef struct {
    float lse, sum;
} Side;

/* A warpgroup's 64 queries and what stays with them. */
template <typename R> struct Queries {
    typename R::Query q;
    typename R::Dout  dout;
    Side              side[2]; /* of this thread's two rows */
    Clear             clear;
    int               q0;
};

__device__ __forceinline__ void                  tile_keep(uint32_t &a, uint32_t tile) { a = tile; }
template <int N> __device__ __forceinline__ void tile_keep(Words<N> &a, uint32_t tile) { tile_read(a, tile); }

/* The queries' operands, and their sums of dout * o as far as this thread has them. tile: the first of three;
 * row: this thread's first of the head. */
template <typename R>
__device__ __forceinline__ void queries_begin(Queries<R> &a, const AttnArgs &g, uint32_t tile, int head,
                                              int row)
{
    typename R::Query dout, o;
    const float      *lse = g.lse + (int64_t)head * g.T;
    for (int j = 0; j < 2; j++) a.side[j] = { row + 8 * j < g.T ? __ldg(lse + row + 8 * j) : INFINITY, 0.0f };
    tile_read(a.q, tile);
    tile_read(dout, tile + R::TILE_BYTES);
    tile_read(o, tile + 2 * R::TILE_BYTES);
    tile_keep(a.dout, tile + R::TILE_BYTES);
#pragma unroll
    for (int i = 0; i < R::D / PART * N_WORD; i++) {
        float &sum = a.side[i % 2].sum;
        sum        = fmaf(bf16_low(dout.w[i]), bf16_low(o.w[i]), sum);
        sum        = fmaf(bf16_high(dout.w[i]), bf16_high(o.w[i]), sum);
    }
}

/* `keys` finds both with negated signs: for 64 queries first all of lse, then all sums. They stand in the
 * order in which a thread reads four at a time: those of its two columns in two blocks of eight. */
__device__ __forceinline__ int64_t side_at(int64_t row)
{
    int q = (int)(row % TILE);
    return row / TILE * (2 * TILE) + q / 16 * 16 + q % 8 / 2 * 4 + q / 8 % 2 * 2 + q % 2;
}

/* Finishes them, and leaves them for `keys`. */
__device__ __forceinline__ void side_finish(const AttnArgs &g, int64_t row, Side (&side)[2])
{
#pragma unroll
    for (int j = 0; j < 2; j++) {
        side[j] = { side[j].lse * LOG2_E, row_sum(side[j].sum) };
        if (threadIdx.x % 4 == 0) {
            float *at = g.rows + side_at(row + 8 * j);
            at[0]     = -side[j].lse;
            at[TILE]  = -side[j].sum;
        }
    }
}

/* p of scores [FROM, TO) of a thread, in place. */
template <int FROM, int TO>
__device__ __forceinline__ void queries_weights(float (&s)[N_ACC], float c, const Side (&side)[2])
{
#pragma unroll
    for (int i = FROM; i < TO; i++) s[i] = ptx_ex2(fmaf(s[i], c, -side[i % 4 / 2].lse));
}

/* dq += what tile j of keys gives, whose scores s and dp have begun. */
template <typename R, bool SPANS>
__device__ __forceinline__ void queries_add(float (&dq)[R::N_SUM], float (&s)[N_ACC], float (&dp)[N_ACC],
                                            Words<N_WORD> &ds, const Queries<R> &a, const AttnArgs &g,
                                            uint32_t smem, Ring r, int j)
{
    float c = g.scale * LOG2_E;
    wgmma_wait<1>(); /* the scores are there */
    wgmma_settle(s);
    tile_mask_keys<SPANS>(s, g, a.clear, a.q0, j * TILE);
    queries_weights<0, N_ACC / 4>(s, c, a.side);
    wgmma_wait<0>(); /* dp is there, and goes between the other exponentials */
    wgmma_settle(dp);
    queries_weights<N_ACC / 4, N_ACC>(s, c, a.side);
#pragma unroll
    for (int i = 0; i < N_ACC; i++) dp[i] = s[i] * (dp[i] - a.side[i % 4 / 2].sum);
    tile_round(ds, dp);
    wgmma_begin();
    tile_multiply_cols(dq, ds, ring_tile<R>(smem, r, 0));
    wgmma_commit();
}

/* Begins a tile's scores and dp. */
template <typename R>
__device__ __forceinline__ void queries_products(float (&s)[N_ACC], float (&dp)[N_ACC], const Queries<R> &a,
                                                 uint32_t smem, Ring r)
{
    ring_wait<R>(smem, r);
    product_begin<R>(s, a.q, smem, r, 0);
    product_begin<R>(dp, a.dout, smem, r, 1);
}

/* dq += what the few keys give, which come first. Begins the products of the next tile, too. */
template <typename R>
__device__ __forceinline__ void queries_few(float (&dq)[R::N_SUM], float (&s)[N_ACC], float (&dp)[N_ACC],
                                            Words<N_WORD> &ds, Queries<R> &a, const AttnArgs &g,
                                            uint32_t smem, int64_t row, Ring &r)
{
    float few[FEW_ACC], dfew[FEW_ACC];
    Ring  at = r;
    ring_wait<R>(smem, at);
    wgmma_begin();
    few_multiply_rows<R>(few, a.q, ring_tile<R>(smem, at, 0));
    few_multiply_rows<R>(dfew, a.dout, ring_tile<R>(smem, at, 1));
    wgmma_commit();
    ring_next<R>(r);
    queries_products<R>(s, dp, a, smem, r);
    side_finish(g, row, a.side);
    wgmma_wait<2>(); /* the few are there */
    wgmma_settle(few);
    wgmma_settle(dfew);
    few_mask_end(few, g.S - (g.k_tiles - 1) * TILE);
#pragma unroll
    for (int i = 0; i < FEW_ACC; i++)
        dfew[i] = ptx_ex2(fmaf(few[i], g.scale * LOG2_E, -a.side[i / 2].lse)) * (dfew[i] - a.side[i / 2].sum);
    few_round(ds, dfew);
    wgmma_begin();
    few_multiply_cols(dq, ds, ring_tile<R>(smem, at, 0));
    wgmma_commit();
}

/* dq of the 64 queries, which see these tiles of keys. */
template <typename R, bool SPANS, bool FEW>
__device__ __forceinline__ void queries_sum(float (&dq)[R::N_SUM], Queries<R> &a, const AttnArgs &g,
                                            uint32_t smem, int64_t row, Ring &r, Tiles seen)
{
    float         s[N_ACC], dp[N_ACC];
    Words<N_WORD> ds;
    tile_clear(dq);
    wgmma_settle(dq);
    if constexpr (FEW) {
        queries_few<R>(dq, s, dp, ds, a, g, smem, row, r);
    } else {
        queries_products<R>(s, dp, a, smem, r);
        side_finish(g, row, a.side);
    }
#pragma unroll 1
    for (int j = seen.first + FEW;; j++) {
        Ring at = r;
        queries_add<R, SPANS>(dq, s, dp, ds, a, g, smem, at, j - FEW);
        if (FEW && j == seen.first + 1) ring_free<R>(smem, ring_before<R>(at)); /* waited for with dp */
        ring_next<R>(r);
        if (j + 1 == seen.end) break;
        queries_products<R>(s, dp, a, smem, r);
        wgmma_wait<2>();
        ring_free<R>(smem, at);
    }
    wgmma_wait<0>();
    wgmma_settle(dq);
    ring_free<R>(smem, ring_before<R>(r));
}

/* dq of a warpgroup's 64 queries from row0 of a head on, which see these of the block's tiles of keys. */
template <typename R, bool SPANS, bool FEW>
__device__ __forceinline__ void queries_rows(const AttnMaps &m, const AttnArgs &g, uint32_t smem,
                                             uint32_t slot, int wg, int head, int row0, Ring &r, Tiles seen,
                                             Tiles all)
{
    constexpr bool OVER = R::OUT == 0; /* dq leaves from where o was */
    float          dq[R::N_SUM];
    int64_t        row  = ((int64_t)head * g.q_tiles) * TILE + row0 + tile_row(); /* of side_at() */
    uint32_t       tile = still_tile<R>(smem, slot, wg, 0);
    uint32_t       out  = OVER ? tile + 2 * R::TILE_BYTES : smem + R::AT_OUT + wg * R::TILE_BYTES;
    int            b    = head / g.heads;
    Queries<R>     a    = { {}, {}, {}, clear_of<SPANS>(g, b, row0), row0 };
    queries_begin<R>(a, g, tile, head, row0 + tile_row());
    if (!OVER) still_free<R>(smem, slot);
    for (int j = all.first; j < seen.first; j++) ring_skip<R>(smem, r);
    queries_sum<R, SPANS, FEW>(dq, a, g, smem, row, r, seen);
    for (int j = seen.end; j < all.end; j++) ring_skip<R>(smem, r);
    gradient_turn(dq, g, row0 + tile_row());
    place_begin(wg);
    tile_place(dq, 1.0f, 1.0f, out);
    if (place_end(wg)) {
        tile_store<R>(&m.dq, { head % g.heads, row0, b }, out);
        tma_store_commit();
        if (OVER) tma_store_wait_read<0>();
    }
    if (OVER) still_free<R>(smem, slot);
}

template <typename R, bool SPANS, bool FEW>
__device__ __forceinline__ void queries_multiply(const AttnMaps &m, const AttnArgs &g, uint32_t smem, int wg)
{
    Ring r = { 0, 0 };
    multiply_blocks<R>(blocks_of<R>(g.n_batch * g.heads, g.T), smem, [&](int head, int i, uint32_t slot) {
        int   b = head / g.heads, block = query_block<R>(g, i), row0 = block + wg * TILE;
        Tiles all = tiles_seen<SPANS>(g, b, max(block, 0), block + R::ROWS - 1);
        if (row0 >= 0) {
            Tiles seen = tiles_within(tiles_seen<SPANS>(g, b, row0, row0 + TILE - 1), all);
            queries_rows<R, SPANS, FEW>(m, g, smem, slot, wg, head, row0, r, seen, all);
        } else { /* this warpgroup has no rows */
            still_free<R>(smem, slot);
            for (int j = all.first; j < all.end; j++) ring_skip<R>(smem, r);
        }
    });
    if (threadIdx.x % WG_THREADS == 0) tma_store_wait();
}

/* ---- keys stay ----------------------------------------------------------------------------------------- */

/* What the loader says of a tile of queries: which it is, which warpgroups' keys it sees, for which of those
 * some of it do not see some of the keys, and whether it is the block's last. */
enum { NOTE_LAST = 1, NOTE_SEES = 2, NOTE_EDGE = 4, NOTE_BITS = 2 /* a warpgroup, from NOTE_SEES on */ };
typedef struct {
    int i;
    int note;
} Passing;

template <typename R> __device__ __forceinline__ uint32_t passing_at(uint32_t smem, Ring r)
{
    return smem + R::AT_NOTES + r.stage * (uint32_t)sizeof(Passing);
}
template <typename R> __device__ __forceinline__ void passing_write(uint32_t smem, Ring r, const Passing &p)
{
    uint32_t at = passing_at<R>(smem, r);
    smem_store_word(at, (uint32_t)p.i);
    smem_store_word(at + 4, (uint32_t)p.note);
}
template <typename R> __device__ __forceinline__ Passing passing_read(uint32_t smem, Ring r)
{
    uint32_t at = passing_at<R>(smem, r);
    return { (int)smem_share_word(at), (int)smem_share_word(at + 4) };
}

/* What tile i of queries is to a block of keys from k0 on. */
template <typename R> __device__ __forceinline__ int passing_note(const AttnArgs &g, int b, int i, int k0)
{
    TileSpan t    = tile_span(g, b, i);
    int      note = 0;
#pragma unroll 1
    for (int wg = 0; wg < R::WGS; wg++) {
        int first = k0 + wg * TILE, last = first + TILE - 1;
        if (t.low > last || t.high < first) continue;
        note |= (NOTE_SEES | (t.clear_low > first || t.clear_high < last ? NOTE_EDGE : 0))
                << (NOTE_BITS * wg);
    }
    return note;
}

template <typename R>
__device__ __forceinline__ void query_load(const AttnMaps &m, const AttnArgs &g, uint32_t smem, Ring r, int b,
                                           int h, int i)
{
    uint32_t     full = smem + R::AT_FULL + 8 * r.stage;
    const float *side = g.rows + side_at((((int64_t)b * g.heads + h) * g.q_tiles + i) * TILE);
    tile_load<R>(ring_tile<R>(smem, r, 0), &m.q, { h, i * TILE, b }, full);
    tile_load<R>(ring_tile<R>(smem, r, 1), &m.dout, { h, i * TILE, b }, full);
    tma_load_bytes(ring_side<R>(smem, r), side, R::SIDE, full);
}

/* The tiles of a head's queries that see keys [k0, k0 + ROWS), without spans. */
template <typename R, bool FEW>
__device__ __forceinline__ void head_load(const AttnMaps &m, const AttnArgs &g, uint32_t smem, Ring &r, int b,
                                          int h, int k0)
{
#pragma unroll 1
    for (int i = g.causal ? k0 / TILE : 0; i < g.q_tiles; i++, ring_next<R>(r)) {
        ring_take<R>(smem, r);
        query_load<R>(m, g, smem, r, b, h, tile_passing<FEW>(i, g.q_tiles));
    }
}

/* With spans. last_head: of those that share the keys; its last tile says that it is. If nobody sees the
 * keys, it is some tile. */
template <typename R>
__device__ __forceinline__ void head_load_seen(const AttnMaps &m, const AttnArgs &g, uint32_t smem, Ring &r,
                                               int b, int h, int k0, bool last_head)
{
    int   n_tile = g.k_tiles;
    Tiles seen   = { g.q_tiles, 0 };
#pragma unroll 1
    for (int k = k0 / TILE; k < min(n_tile, (k0 + R::ROWS) / TILE); k++) {
        int2 v = __ldg(g.tile_seen + (int64_t)b * n_tile + k);
        seen   = { min(seen.first, v.x), max(seen.end, v.y) };
    }
    if (seen.first >= seen.end) seen = last_head ? Tiles{ 0, 1 } : Tiles{ 0, 0 };
#pragma unroll 1
    for (int i = seen.first; i < seen.end; i++) {
        int note = passing_note<R>(g, b, i, k0), last = last_head && i + 1 == seen.end;
        if (!note && !last) continue;
        bar_wait(smem + R::AT_EMPTY + 8 * r.stage, r.round ^ 1);
        passing_write<R>(smem, r, { i, note | (last ? NOTE_LAST : 0) });
        bar_expect(smem + R::AT_FULL + 8 * r.stage, R::PASS * R::TILE_BYTES + R::SIDE);
        query_load<R>(m, g, smem, r, b, h, i);
        ring_next<R>(r);
    }
}

template <typename R, bool SPANS, bool FEW>
__device__ __forceinline__ void keys_load(const AttnMaps &m, const AttnArgs &g, uint32_t smem)
{
    Ring   r     = { 0, 0 };
    int    group = g.heads / g.kv_heads;
    Blocks all   = blocks_of<R>(g.n_batch * g.kv_heads, g.S);
    load_blocks<R>(all, smem, g.next + 1, [&](int head, int block, uint32_t slot, uint32_t come) {
        int b = head / g.kv_heads, hk = head % g.kv_heads, k0 = block * R::ROWS;
        for (int wg = 0; wg < R::WGS; wg++) {
            HeadBox at = { hk, k0 + wg * TILE, b };
            tile_load<R>(still_tile<R>(smem, slot, wg, 0), &m.k, at, come);
            tile_load<R>(still_tile<R>(smem, slot, wg, 1), &m.v, at, come);
        }
        for (int h = hk * group; h < (hk + 1) * group; h++) {
            if constexpr (SPANS) {
                head_load_seen<R>(m, g, smem, r, b, h, k0, h + 1 == (hk + 1) * group);
            } else {
                head_load<R, FEW>(m, g, smem, r, b, h, k0);
            }
        }
    });
}

/* This thread's queries in blocks 2 i and 2 i + 1 of eight columns: lse, or the sums. */
__device__ __forceinline__ float4 side_four(uint32_t side, int i, int sums)
{
    return smem_load_four(side + sums * TILE * 4 + i * 64 + threadIdx.x % 4 * 16);
}

/* Of those four the one for a thread's sum i. */
__device__ __forceinline__ float side_of(const float4 &v, int i)
{
    return i % 8 < 4 ? (i % 2 ? v.y : v.x) : (i % 2 ? v.w : v.z);
}

/* p^T of scores in blocks [FROM, TO) of eight columns, in place; side: of the tile's queries. */
template <int FROM, int TO>
__device__ __forceinline__ void keys_weights(float (&s)[N_ACC], float c, uint32_t side)
{
#pragma unroll
    for (int b = FROM / 2; b < TO / 2; b++) {
        float4 lse = side_four(side, b, 0);
#pragma unroll
        for (int i = 8 * b; i < 8 * b + 8; i++) s[i] = ptx_ex2(fmaf(s[i], c, side_of(lse, i)));
    }
}

/* The sums of the tile's queries, which dp^T's product is added to. */
template <typename R> __device__ __forceinline__ void dp_set(float (&dp)[N_ACC], uint32_t smem, Ring r)
{
#pragma unroll
    for (int b = 0; b < N_ACC / 8; b++) {
        float4 sum = side_four(ring_side<R>(smem, r), b, 1);
#pragma unroll
        for (int i = 8 * b; i < 8 * b + 8; i++) dp[i] = side_of(sum, i);
    }
    wgmma_settle(dp); /* or they would be set after the product began */
}
template <typename R>
__device__ __forceinline__ void dp_begin(float (&dp)[N_ACC], const typename R::Still &v, uint32_t smem,
                                         Ring r)
{
    wgmma_begin();
    tile_multiply_rows<R, 1>(dp, v, ring_tile<R>(smem, r, 1));
    wgmma_commit();
}

/* A tile of queries: its stage, which it is, and whether some of it do not see some of the keys. */
typedef struct {
    Ring r;
    int  i;
    bool edge;
} Spot;

/* A warpgroup's walk over the tiles of queries that pass by its block: those that see its 64 keys, from k0
 * on. Without spans they are counted; with spans each says what it is. */
template <typename R, bool SPANS> struct Walk {
    Ring    r;
    int     k0, first, i, heads; /* without spans: the tile it is, heads left */
    bool    skips; /* the first tile of each head, which only the other warpgroup's keys are seen by */
    int     shift; /* of this warpgroup's bits */
    Passing p;

    /* To the next tile that is needed, from the one r stands at; false when there is none. */
    __device__ __forceinline__ bool settle(uint32_t smem)
    {
        for (;;) {
            ring_wait<R>(smem, r);
            p = passing_read<R>(smem, r);
            if (p.note >> shift & NOTE_SEES) return true;
            __syncwarp();
            ring_free<R>(smem, r);
            ring_next<R>(r);
            if (p.note & NOTE_LAST) return false;
        }
    }
    /* To the first tile for warpgroup wg's keys, from key on; false if no query sees them. */
    __device__ __forceinline__ bool begin(const AttnArgs &g, uint32_t smem, int key, int wg)
    {
        k0    = key;
        first = i = g.causal ? k0 / TILE : 0;
        heads     = g.heads / g.kv_heads;
        skips     = g.causal && wg > 0;
        shift     = NOTE_BITS * wg;
        if constexpr (SPANS) {
            return settle(smem);
        } else {
            if (skips) ring_skip<R>(smem, r);
            if (first < g.q_tiles) return true;
            /* These keys lie behind the sequence: each head has the one tile that was skipped. */
            while (--heads > 0) ring_skip<R>(smem, r);
            return false;
        }
    }
    __device__ __forceinline__ bool next(const AttnArgs &g, uint32_t smem)
    {
        ring_next<R>(r);
        if constexpr (SPANS) {
            return !(p.note & NOTE_LAST) && settle(smem);
        } else {
            if (++i < g.q_tiles) return true;
            if (--heads == 0) return false;
            i = first;
            if (skips) ring_skip<R>(smem, r);
            return true;
        }
    }
    /* Where it stands. */
    __device__ __forceinline__ Spot spot() const
    {
        return SPANS ? Spot{ r, p.i, (p.note >> shift & NOTE_EDGE) != 0 } : Spot{ r, i, i == first };
    }
};

template <bool SPANS>
__device__ __forceinline__ void keys_mask(float (&s)[N_ACC], const AttnArgs &g, const Spot &at, int b, int k0)
{
    if constexpr (SPANS) {
        if (at.edge) tile_mask_spans_turned(s, spans_of(g, b), at.i * TILE, k0);
    } else {
        if (g.causal && at.edge) tile_mask<false>(s);
    }
}

/* A warpgroup's 64 keys, their gradients, and what it has of the tile of queries at hand. */
template <typename R> struct Keys {
    typename R::Still k, v;
    int               b, k0;
    float             dk[R::N_SUM], dv[R::N_SUM], dp[N_ACC];
    Words<N_WORD>     p, ds; /* ds: with heads of 64; with others only for few queries */
};

/* p^T and ds^T of a tile of queries, whose scores s and dp have begun, and with them dk and dv. */
template <typename R>
__device__ __forceinline__ void keys_products(Keys<R> &a, float (&s)[N_ACC], float c, uint32_t smem, Ring r)
{
    uint32_t side = ring_side<R>(smem, r);
    keys_weights<0, 2>(s, c, side);
    wgmma_wait<0>(); /* dp is there, and goes between the other exponentials */
    wgmma_settle(a.dp);
    keys_weights<2, 8>(s, c, side);
#pragma unroll
    for (int i = 0; i < N_ACC; i++) a.dp[i] *= s[i];
    tile_round(a.p, s);
    tile_round(a.ds, a.dp);
    wgmma_begin();
    tile_multiply_cols(a.dv, a.p, ring_tile<R>(smem, r, 1));
    tile_multiply_cols(a.dk, a.ds, ring_tile<R>(smem, r, 0));
    wgmma_commit();
}

/* The same with one set of registers for p and ds, one after the other. */
template <typename R>
__device__ __forceinline__ void keys_products_few(Keys<R> &a, float (&s)[N_ACC], float c, uint32_t smem,
                                                  Ring r)
{
    keys_weights<0, 8>(s, c, ring_side<R>(smem, r));
    tile_round(a.p, s);
    wgmma_begin();
    tile_multiply_cols(a.dv, a.p, ring_tile<R>(smem, r, 1));
    wgmma_commit();
    wgmma_wait<1>(); /* dp is there */
    wgmma_settle(a.dp);
#pragma unroll
    for (int i = 0; i < N_ACC; i++) a.dp[i] *= s[i];
    wgmma_wait<0>(); /* p has been read */
    tile_round(a.p, a.dp);
    wgmma_begin();
    tile_multiply_cols(a.dk, a.p, ring_tile<R>(smem, r, 0));
    wgmma_commit();
}

/* dk, dv += what the tile of queries at `at` gives. before: the stage of the tile before. */
template <typename R, bool SPANS>
__device__ __forceinline__ void keys_add(Keys<R> &a, float (&s)[N_ACC], const AttnArgs &g, uint32_t smem,
                                         const Spot &at, Ring before, bool first)
{
    float c = g.scale * LOG2_E;
    wgmma_wait<1>(); /* the scores are there; the tile before is done with */
    wgmma_settle(s);
    if (!SPANS) ring_free<R>(smem, before, first);
    keys_mask<SPANS>(s, g, at, a.b, a.k0);
    if constexpr (R::D == 64) {
        keys_products<R>(a, s, c, smem, at.r);
    } else {
        keys_products_few<R>(a, s, c, smem, at.r);
    }
}

/* Begins a tile's scores and dp. */
template <typename R>
__device__ __forceinline__ void keys_begin(Keys<R> &a, float (&s)[N_ACC], uint32_t smem, Ring r)
{
    ring_wait<R>(smem, r);
    dp_set<R>(a.dp, smem, r);
    product_begin<R>(s, a.k, smem, r, 0);
    dp_begin<R>(a.dp, a.v, smem, r);
}

/* dk, dv += what the few queries at r give, which come first. There are no registers for the next tile's
 * products beside them, nor for these products beside the loop. */
template <typename R>
__device__ __forceinline__ void keys_few(Keys<R> &a, const AttnArgs &g, uint32_t smem, Ring r)
{
    float few[FEW_ACC], dfew[FEW_ACC];
    ring_wait<R>(smem, r);
    float4 lse = side_four(ring_side<R>(smem, r), 0, 0), sum = side_four(ring_side<R>(smem, r), 0, 1);
#pragma unroll
    for (int i = 0; i < FEW_ACC; i++) dfew[i] = side_of(sum, i);
    wgmma_settle(dfew);
    wgmma_begin();
    few_multiply_rows<R>(few, a.k, ring_tile<R>(smem, r, 0));
    few_multiply_rows<R, 1>(dfew, a.v, ring_tile<R>(smem, r, 1));
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_settle(few);
    wgmma_settle(dfew);
#pragma unroll
    for (int i = 0; i < FEW_ACC; i++) {
        few[i] = ptx_ex2(fmaf(few[i], g.scale * LOG2_E, side_of(lse, i)));
        dfew[i] *= few[i];
    }
    few_round(a.p, few);
    few_round(a.ds, dfew);
    wgmma_begin();
    few_multiply_cols(a.dv, a.p, ring_tile<R>(smem, r, 1));
    few_multiply_cols(a.dk, a.ds, ring_tile<R>(smem, r, 0));
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_settle(a.dv);
    wgmma_settle(a.dk);
    ring_free<R>(smem, r);
}

/* The tiles of queries by which the keys are seen. With spans the next one may be further on than the ring
 * reaches while this one is kept. */
template <typename R, bool SPANS, bool FEW>
__device__ __forceinline__ void keys_sum(Keys<R> &a, const AttnArgs &g, uint32_t smem, Walk<R, SPANS> &w)
{
    float s[N_ACC];
    Spot  at = w.spot();
    if constexpr (FEW) {
        keys_few(a, g, smem, at.r);
        w.next(g, smem);
        at = w.spot();
    }
    Ring before = at.r;
    keys_begin(a, s, smem, w.r);
#pragma unroll 1
    for (bool first = true;; first = false) {
        keys_add<R, SPANS>(a, s, g, smem, at, before, first);
        if (SPANS) {
            wgmma_wait<0>();
            ring_free<R>(smem, at.r);
        }
        if (!w.next(g, smem)) break;
        before = at.r;
        at     = w.spot();
        keys_begin(a, s, smem, w.r);
    }
    wgmma_wait<0>();
    if (!SPANS) ring_free<R>(smem, at.r);
}

/* dk and dv of a warpgroup's 64 keys, for which w has begun, or found that nobody sees them; head: of keys.
 * */
template <typename R, bool SPANS, bool FEW>
__device__ __forceinline__ void keys_rows(const AttnMaps &m, const AttnArgs &g, uint32_t smem, uint32_t slot,
                                          int wg, int head, Walk<R, SPANS> &w, bool seen)
{
    constexpr bool OVER   = R::OUT == 0; /* dk and dv leave from where k and v were */
    uint32_t       k_tile = still_tile<R>(smem, slot, wg, 0), v_tile = still_tile<R>(smem, slot, wg, 1);
    uint32_t       out = OVER ? k_tile : smem + R::AT_OUT + wg * R::OUT * R::TILE_BYTES;
    HeadBox        at  = { head % g.kv_heads, w.k0, head / g.kv_heads };
    Keys<R>        a;
    tile_keep(a.k, k_tile);
    tile_keep(a.v, v_tile);
    if (!OVER) still_free<R>(smem, slot);
    a.b  = at.batch;
    a.k0 = w.k0;
    tile_clear(a.dk);
    tile_clear(a.dv);
    wgmma_settle(a.dk);
    wgmma_settle(a.dv);
    if (seen) keys_sum<R, SPANS, FEW>(a, g, smem, w);
    wgmma_settle(a.dk);
    wgmma_settle(a.dv);
    gradient_turn(a.dk, g, w.k0 + tile_row());
    place_begin(wg);
    tile_place(a.dk, 1.0f, 1.0f, out);
    tile_place(a.dv, 1.0f, 1.0f, out + R::TILE_BYTES);
    if (place_end(wg)) {
        tile_store<R>(&m.dk, at, out);
        tile_store<R>(&m.dv, at, out + R::TILE_BYTES);
        tma_store_commit();
        if (OVER) tma_store_wait_read<0>();
    }
    if (OVER) still_free<R>(smem, slot);
}

template <typename R, bool SPANS, bool FEW>
__device__ __forceinline__ void keys_multiply(const AttnMaps &m, const AttnArgs &g, uint32_t smem, int wg)
{
    Walk<R, SPANS> w = {};
    multiply_blocks<R>(blocks_of<R>(g.n_batch * g.kv_heads, g.S), smem,
                       [&](int head, int block, uint32_t slot) {
                           bool seen = w.begin(g, smem, block * R::ROWS + wg * TILE, wg);
                           keys_rows<R, SPANS, FEW>(m, g, smem, slot, wg, head, w, seen);
                       });
    if (threadIdx.x % WG_THREADS == 0) tma_store_wait();
}

/* ---- the kernels --------------------------------------------------------------------------------------- */

template <typename R, bool KEYS, bool SPANS, bool FEW>
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
            keys_multiply<R, SPANS, FEW>(m, g, smem, wg);
        } else {
            queries_multiply<R, SPANS, FEW>(m, g, smem, wg);
        }
    } else {
        regs_shrink<R::REGS_LOAD>();
        if (threadIdx.x == R::LOADER) {
            if constexpr (KEYS) {
                keys_load<R, SPANS, FEW>(m, g, smem);
            } else {
                queries_load<R, SPANS, FEW>(m, g, smem);
            }
        }
    }
}

template <int D, bool SPANS, bool FEW>
static int launch_queries(const AttnMaps &m, const AttnArgs &g, int n_sm, cudaStream_t stream)
{
    using Q   = QueryRoom<D, D == 64 ? 3 : 2>;
    using Two = QueryRoom<D, 2>;
    if constexpr (D == 64 && !SPANS) {
        if (g.q_tiles == 4)
            return attn_launch<Two>(attn_bwd_kernel<Two, false, SPANS, FEW>, m, g,
                                    g.n_batch * g.heads * Two::blocks(g.T), n_sm, stream);
    }
    return attn_launch<Q>(attn_bwd_kernel<Q, false, SPANS, FEW>, m, g, g.n_batch * g.heads * Q::blocks(g.T),
                          n_sm, stream);
}

template <int D, bool SPANS, bool FEW>
static int launch_keys(const AttnMaps &m, const AttnArgs &g, int n_sm, cudaStream_t stream)
{
    using K = KeyRoom<D>;
    return attn_launch<K>(attn_bwd_kernel<K, true, SPANS, FEW>, m, g, g.n_batch * g.kv_heads * K::blocks(g.S),
                          n_sm, stream);
}

/* Without spans. Tiles of several heads' queries pass by the keys of a group: there few queries would come in
 * between. */
template <int D> static int launch_bwd(const AttnMaps &m, const AttnArgs &g, int n_sm, cudaStream_t stream)
{
    int few_keys    = !g.causal && tiles_end_few(g.S);
    int few_queries = !g.causal && tiles_end_few(g.T) && g.heads == g.kv_heads;
    TRY((few_keys ? launch_queries<D, false, true>(m, g, n_sm, stream)
                  : launch_queries<D, false, false>(m, g, n_sm, stream)));
    return few_queries ? launch_keys<D, false, true>(m, g, n_sm, stream)
                       : launch_keys<D, false, false>(m, g, n_sm, stream);
}

template <int D>
static int launch_masked(const AttnMaps &m, const AttnArgs &g, int spans, int n_sm, cudaStream_t stream)
{
    if (!spans) return launch_bwd<D>(m, g, n_sm, stream);
    TRY((launch_queries<D, true, false>(m, g, n_sm, stream)));
    return launch_keys<D, true, false>(m, g, n_sm, stream);
}

/* For each query lse and the sum of dout * o; then what both halves keep. */
static int64_t rows_ws(const TileAttn *a)
{
    return a->B * a->shape.heads * tiles_in(a->T) * TILE * (int64_t)sizeof(float2);
}

int64_t tile_attn_bwd_ws(const TileAttn *a) { return rows_ws(a) + attn_common_ws(a); }

int tile_attn_bwd(const TileAttn *a, TmaEncode encode, int n_sm, cudaStream_t stream)
{
    AttnMaps m = {};
    AttnArgs g = attn_args(a, (char *)a->ws + rows_ws(a));
    g.rows     = (float *)a->ws;
    TRY(attn_maps(encode, a, &m));
    TRY(attn_begin(a, g, true, stream));
    int spans = attn_has_spans(a);
    return a->shape.head_dim <= 64 ? launch_masked<64>(m, g, spans, n_sm, stream)
                                   : launch_masked<128>(m, g, spans, n_sm, stream);
}
