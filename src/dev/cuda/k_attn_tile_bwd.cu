/* Attention's gradient in tiles: two kernels, in each of which one side stays.
 *
 *   queries   64 queries stay with a warpgroup while keys and values pass: dq += ds k
 *   keys      64 keys stay while the queries of all heads of their group pass: dv += p^T do, dk += ds^T q
 * with p = exp(scale q k^T - lse), ds = p (do v^T - sum of do * o). `queries` runs first and leaves lse and that sum for `keys`.
 *
 * 1. Seven products instead of five, since both kernels compute p and ds; in return nothing is ever added up in memory: no f32 dq to
 *    clear, add to and convert, no exchange of ds through shared memory, no barrier between warpgroups, and one order of sums.
 * 2. `keys` computes everything transposed (keys are rows), so that p^T and ds^T come out of the tensor cores as they go in again.
 * 3. While one warpgroup makes p and ds of scores, the other multiplies. With heads of 64 a tile's scores begin before the tile before is
 *    done (AHEAD): a whole tile earlier in `queries`, half of one in `keys`. So neither waits for the tensor cores; that takes registers
 *    for the scores of two tiles. With heads of 128, and in `keys` where tiles are skipped, they begin behind its last product.
 * Bytes    q, k, v, dout once for each kernel, o once, dqkv once (tiles that pass come from L2 but for the first time). */
#include "dev/cuda/k_attn_tile.cuh"

/* q, dout, o; k, v; dq */
template <int D> struct QueryRoom : Room<D, 2, 3, 1, D == 64 ? 8 : 3, 0, 1> {
    static constexpr bool AHEAD        = D == 64;
    static constexpr int  N_SUM        = D / PART * N_ACC;
    using Still                        = Words<D / PART * N_WORD>;
    static constexpr int REGS_MULTIPLY = D == 64 ? 224 : 240, REGS_LOAD = D == 64 ? 56 : 24; /* a thread */
};

/* k, v; q, dout; dk, dv. There are no registers for k and v: they stay in shared memory. Those of the next block of keys come beside them;
 * with heads of 128 there is no room, and dk and dv leave from where k and v were. */
template <int D>
struct KeyRoom : Room<D, 2, 2, D == 64 ? 2 : 1, D == 64 ? 6 : 4, TILE *(int)sizeof(float2), D == 64 ? 2 : 0> {
    static constexpr bool AHEAD = D == 64;
    static constexpr int  N_SUM = D / PART * N_ACC, REGS_MULTIPLY = 240, REGS_LOAD = 24;
};

static __device__ unsigned queries_next, keys_next; /* load_blocks() */

/* For at most AHEAD_MORE unfinished groups, or AHEAD_LAST without more; without AHEAD, for at most REST. */
template <bool AHEAD, int AHEAD_MORE, int AHEAD_LAST, int REST>
__device__ __forceinline__ void wgmma_wait_either(bool more)
{
    if (!AHEAD) {
        wgmma_wait<REST>();
    } else if (more) {
        wgmma_wait<AHEAD_MORE>();
    } else {
        wgmma_wait<AHEAD_LAST>();
    }
}

/* d = a b^T, b: tile i of the stage of the ring: scores, or dout v^T, or their transposes. */
template <typename R, typename A>
__device__ __forceinline__ void product_begin(float (&d)[N_ACC], const A &a, uint32_t smem, Ring r, int i)
{
    wgmma_begin();
    tile_multiply_rows<R>(d, a, ring_tile<R>(smem, r, i));
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

template <typename R, bool SPANS>
__device__ __forceinline__ void queries_load(const AttnMaps &m, const AttnArgs &g, uint32_t smem)
{
    Ring r = { 0, 0 };
    load_blocks<R>(
        blocks_of<R>(g, g.n_batch * g.heads), smem, &queries_next,
        [&](int head, int i, uint32_t slot, uint32_t come) {
            int b = head / g.heads, h = head % g.heads, hk = h / (g.heads / g.kv_heads),
                row0 = query_block<R>(g, i) * R::ROWS;
            for (int wg = 0; wg < R::WGS; wg++) {
                int row = b * g.T + row0 + wg * TILE;
                tile_load<R>(still_tile<R>(smem, slot, wg, 0), &m.qkv, q_col<R>(h), row, come);
                tile_load<R>(still_tile<R>(smem, slot, wg, 1), &m.dout, q_col<R>(h), row, come);
                tile_load<R>(still_tile<R>(smem, slot, wg, 2), &m.o, q_col<R>(h), row, come);
            }
            Tiles seen = tiles_seen<SPANS>(g, b, row0, row0 + R::ROWS - 1);
            for (int j = seen.first; j < seen.end; j++, ring_next<R>(r)) {
                uint32_t full = ring_take<R>(smem, r);
                tile_load<R>(ring_tile<R>(smem, r, 0), &m.qkv, k_col<R>(g, hk), b * g.T + j * TILE, full);
                tile_load<R>(ring_tile<R>(smem, r, 1), &m.qkv, v_col<R>(g, hk), b * g.T + j * TILE, full);
            }
        });
}

/* What the kernels need of each query: lse * log2(e), and the sum of dout * o. */
typedef struct {
    float lse, sum;
} Side;

/* The queries' operands; side: of this thread's two rows, the first of which is `row`. */
template <typename R>
__device__ __forceinline__ void queries_begin(const AttnArgs &g, uint32_t smem, uint32_t slot, int wg,
                                              int64_t row, typename R::Still &q, typename R::Still &dout,
                                              Side (&side)[2])
{
    typename R::Still o;
    for (int j = 0; j < 2; j++) side[j] = { __ldg(g.lse + row + 8 * j), 0.0f };
    tile_read(q, still_tile<R>(smem, slot, wg, 0));
    tile_read(dout, still_tile<R>(smem, slot, wg, 1));
    tile_read(o, still_tile<R>(smem, slot, wg, 2));
    still_free<R>(smem, slot);
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

/* A warpgroup's 64 queries and what stays with them. */
template <typename R> struct Queries {
    typename R::Still q, dout;
    Side              side[2];
    Clear             clear;
    int               q0;
};

/* dq += what tile j of keys gives. Begun before: its scores s, the last tile's product with ds, dp. Begins the next one's scores, in
 * `ahead`, if there are more and with AHEAD. r: the next tile's stage. */
template <typename R, bool SPANS>
__device__ __forceinline__ void queries_add(float (&dq)[R::N_SUM], float (&s)[N_ACC], float (&ahead)[N_ACC],
                                            float (&dp)[N_ACC], Words<N_WORD> &ds, const Queries<R> &a,
                                            const AttnArgs &g, uint32_t smem, Ring r, int j, bool first,
                                            bool more)
{
    float c  = g.scale * LOG2_E;
    Ring  at = ring_before<R>(r);
    if (R::AHEAD && more) {
        ring_wait<R>(smem, r);
        product_begin<R>(ahead, a.q, smem, r, 0);
    }
    wgmma_wait_either<R::AHEAD, 3, 2, 1>(more); /* the scores are there */
    wgmma_settle(s);
    if (SPANS || !R::AHEAD || !more) tile_mask_keys<SPANS>(s, g, a.clear, a.q0, j * TILE);
#pragma unroll
    for (int i = 0; i < N_ACC; i++) s[i] = ptx_ex2(fmaf(s[i], c, -a.side[i % 4 / 2].lse));
    wgmma_wait_either<R::AHEAD, 1, 0, 0>(more); /* so is dp, and the last tile's product is done */
    wgmma_settle(dp);
    if (R::AHEAD && !first) ring_free<R>(smem, ring_before<R>(at));
#pragma unroll
    for (int i = 0; i < N_ACC; i++) dp[i] = s[i] * (dp[i] - a.side[i % 4 / 2].sum);
    tile_round(ds, dp);
    wgmma_begin();
    tile_multiply_cols(dq, ds, ring_tile<R>(smem, at, 0));
    wgmma_commit();
    if (R::AHEAD && more) product_begin<R>(dp, a.dout, smem, r, 1);
}

/* dq of the 64 queries from row q0 of a head on; they see these tiles of keys. */
template <typename R, bool SPANS>
__device__ __forceinline__ void queries_sum(float (&dq)[R::N_SUM], const AttnArgs &g, uint32_t smem,
                                            uint32_t slot, int wg, int head, int q0, Ring &r, Tiles seen)
{
    float         s[N_ACC], other[N_ACC], dp[N_ACC];
    Words<N_WORD> ds;
    Queries<R>    a   = { {}, {}, {}, clear_of<SPANS>(g, head / g.heads, q0), q0 };
    int64_t       row = (int64_t)head * g.T + q0 + tile_row();
    queries_begin<R>(g, smem, slot, wg, row, a.q, a.dout, a.side);
    tile_clear(dq);
    wgmma_settle(dq);
    ring_wait<R>(smem, r);
    product_begin<R>(s, a.q, smem, r, 0);
    if (R::AHEAD) wgmma_commit(); /* for the product before the first */
    product_begin<R>(dp, a.dout, smem, r, 1);
    side_finish(g, row, a.side);
    int  j    = seen.first;
    auto step = [&](float(&now)[N_ACC], float(&ahead)[N_ACC], bool first, bool more) {
        ring_next<R>(r);
        queries_add<R, SPANS>(dq, now, ahead, dp, ds, a, g, smem, r, j, first, more);
    };
#pragma unroll 1
    for (;; j++) {
        if constexpr (R::AHEAD) {
            if (j + 1 == seen.end) {
                step(s, s, j == seen.first, false);
                break;
            }
            step(s, other, j == seen.first, true);
            if (++j + 1 == seen.end) {
                step(other, other, false, false);
                break;
            }
            step(other, s, false, true);
        } else {
            step(s, s, true, false);
            if (j + 1 == seen.end) break;
            ring_wait<R>(smem, r);
            product_begin<R>(s, a.q, smem, r, 0);
            product_begin<R>(dp, a.dout, smem, r, 1);
            wgmma_wait<2>();
            ring_free<R>(smem, ring_before<R>(r));
        }
    }
    wgmma_wait<0>();
    wgmma_settle(dq);
    ring_free<R>(smem, ring_before<R>(r));
}

template <typename R, bool SPANS>
__device__ __forceinline__ void queries_multiply(const AttnMaps &m, const AttnArgs &g, uint32_t smem, int wg)
{
    uint32_t out = smem + R::AT_OUT + wg * R::TILE_BYTES;
    Ring     r   = { 0, 0 };
    multiply_blocks<R>(blocks_of<R>(g, g.n_batch * g.heads), smem, [&](int head, int i, uint32_t slot) {
        float dq[R::N_SUM];
        int   b = head / g.heads, block = query_block<R>(g, i) * R::ROWS, row0 = block + wg * TILE;
        Tiles all  = tiles_seen<SPANS>(g, b, block, block + R::ROWS - 1);
        Tiles seen = tiles_within(tiles_seen<SPANS>(g, b, row0, row0 + TILE - 1), all);
        for (int j = all.first; j < seen.first; j++) ring_skip<R>(smem, r);
        queries_sum<R, SPANS>(dq, g, smem, slot, wg, head, row0, r, seen);
        for (int j = seen.end; j < all.end; j++) ring_skip<R>(smem, r);
        gradient_turn(dq, g, row0 + tile_row());
        place_begin(wg);
        tile_place(dq, 1.0f, 1.0f, out);
        if (place_end(wg)) {
            tile_store<R>(&m.dqkv, q_col<R>(head % g.heads), b * g.T + row0, out);
            tma_store_commit();
        }
    });
    if (threadIdx.x % WG_THREADS == 0) tma_store_wait();
}

/* ---- keys stay ---------------------------------------------------------------------------------------------- */

/* The first tile of queries that sees keys from k0 on. */
template <bool SPANS> __device__ __forceinline__ int query_first(const AttnArgs &g, int b, int k0)
{
    if (!g.causal || (SPANS && k0 < spans_of(g, b).prefix)) return 0;
    return k0 / TILE;
}

/* What the loader says of a tile of queries: which it is, from where on the first and the last of them see keys, and whether it is the
 * block's last. */
typedef struct {
    int i, low, low_last, last;
} Passing;

template <typename R> __device__ __forceinline__ uint32_t passing_at(uint32_t smem, Ring r)
{
    return smem + R::AT_NOTES + r.stage * (uint32_t)sizeof(Passing);
}
template <typename R> __device__ __forceinline__ void passing_write(uint32_t smem, Ring r, const Passing &p)
{
    uint32_t at = passing_at<R>(smem, r);
    smem_store_word(at, (uint32_t)p.i);
    smem_store_word(at + 4, (uint32_t)p.low);
    smem_store_word(at + 8, (uint32_t)p.low_last);
    smem_store_word(at + 12, (uint32_t)p.last);
}
template <typename R> __device__ __forceinline__ Passing passing_read(uint32_t smem, Ring r)
{
    uint32_t at = passing_at<R>(smem, r);
    return { (int)smem_load_word(at), (int)smem_load_word(at + 4), (int)smem_load_word(at + 8),
             (int)smem_load_word(at + 12) };
}

template <typename R>
__device__ __forceinline__ void query_load(const AttnMaps &m, const AttnArgs &g, uint32_t smem, Ring r, int b,
                                           int h, int i)
{
    uint32_t      full = smem + R::AT_FULL + 8 * r.stage;
    const float2 *side = g.rows + ((int64_t)b * g.heads + h) * g.T + i * TILE;
    tile_load<R>(ring_tile<R>(smem, r, 0), &m.qkv, q_col<R>(h), b * g.T + i * TILE, full);
    tile_load<R>(ring_tile<R>(smem, r, 1), &m.dout, q_col<R>(h), b * g.T + i * TILE, full);
    tma_load_bytes(ring_side<R>(smem, r), side, R::SIDE, full);
}

template <typename R, bool SPANS>
__device__ __forceinline__ void keys_load(const AttnMaps &m, const AttnArgs &g, uint32_t smem)
{
    Ring r     = { 0, 0 };
    int  group = g.heads / g.kv_heads, n_tile = g.T / TILE;
    load_blocks<R>(blocks_of<R>(g, g.n_batch * g.kv_heads), smem, &keys_next,
                   [&](int head, int block, uint32_t slot, uint32_t come) {
                       int b = head / g.kv_heads, hk = head % g.kv_heads, k0 = block * R::ROWS,
                           first = query_first<SPANS>(g, b, k0);
                       for (int wg = 0; wg < R::WGS; wg++) {
                           int row = b * g.T + k0 + wg * TILE;
                           tile_load<R>(still_tile<R>(smem, slot, wg, 0), &m.qkv, k_col<R>(g, hk), row, come);
                           tile_load<R>(still_tile<R>(smem, slot, wg, 1), &m.qkv, v_col<R>(g, hk), row, come);
                       }
                       Spans s = SPANS ? spans_of(g, b) : Spans{ NULL, 0 };
                       for (int h = hk * group; h < (hk + 1) * group; h++) {
                           int low = SPANS ? span_low(s, first * TILE) : 0, next = 0;
                           for (int i = first; i < n_tile; i++, low = next, ring_next<R>(r)) {
                               if (SPANS && i + 1 < n_tile) next = span_low(s, (i + 1) * TILE);
                               bool last =
                                   i + 1 == n_tile ||
                                   next >= k0 + R::ROWS; /* all later ones see only keys after these */
                               bar_wait(smem + R::AT_EMPTY + 8 * r.stage, r.round ^ 1);
                               if (SPANS)
                                   passing_write<R>(smem, r,
                                                    { i, low, span_low(s, i * TILE + TILE - 1),
                                                      last && h + 1 == (hk + 1) * group });
                               bar_expect(smem + R::AT_FULL + 8 * r.stage, R::PASS * R::TILE_BYTES + R::SIDE);
                               query_load<R>(m, g, smem, r, b, h, i);
                               if (last) {
                                   ring_next<R>(r);
                                   break;
                               }
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

/* A tile of queries: its stage, which it is, and whether some of it do not see some of the keys. */
typedef struct {
    Ring r;
    int  i;
    bool edge;
} Spot;

/* A warpgroup's walk over the tiles of queries that pass by its block: those that see its 64 keys, from k0 on. Without spans they are
 * counted; with spans each says what it is. */
template <typename R, bool SPANS> struct Walk {
    Ring    r;
    int     k0, first, i, left; /* left, i: without spans */
    bool    skips; /* the first tile of each head, which only the other warpgroup's keys are seen by */
    Passing p;

    /* To the next tile that is needed, from the one r stands at; false when there is none. */
    __device__ __forceinline__ bool settle(uint32_t smem)
    {
        for (;;) {
            ring_wait<R>(smem, r);
            p = passing_read<R>(smem, r);
            if (p.i >= first && p.low < k0 + TILE) return true;
            __syncwarp();
            ring_free<R>(smem, r);
            ring_next<R>(r);
            if (p.last) return false;
        }
    }
    __device__ __forceinline__ void begin(uint32_t smem)
    {
        if constexpr (SPANS) {
            settle(smem);
        } else {
            if (skips) ring_skip<R>(smem, r);
        }
    }
    __device__ __forceinline__ bool next(const AttnArgs &g, uint32_t smem)
    {
        ring_next<R>(r);
        if constexpr (SPANS) {
            return !p.last && settle(smem);
        } else {
            if (--left == 0) return false;
            if (++i < g.T / TILE) return true;
            i = first;
            if (skips) ring_skip<R>(smem, r);
            return true;
        }
    }
    /* Where it stands. */
    __device__ __forceinline__ Spot spot() const
    {
        return SPANS ? Spot{ r, p.i, p.i * TILE < k0 + TILE || p.low_last > k0 } : Spot{ r, i, i == first };
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

/* A warpgroup's 64 keys and what stays with them. */
typedef struct {
    uint32_t k, v; /* tiles in shared memory */
    int      b, k0;
} Keys;

/* Not where tiles are skipped: see keys_sum(). */
template <typename R, bool SPANS> constexpr bool KEYS_AHEAD = R::AHEAD && !SPANS;

/* dk, dv += what a tile of queries gives. Begun before: its scores s, dp; with AHEAD, the last tile's product with ds between
 * them. Then the next one's scores begin as soon as these are weights. spot: of the last tile, this one, the next. */
template <typename R, bool SPANS>
__device__ __forceinline__ void keys_add(float (&dk)[R::N_SUM], float (&dv)[R::N_SUM], float (&s)[N_ACC],
                                         float (&ahead)[N_ACC], float (&dp)[N_ACC], Words<N_WORD> &p,
                                         Words<N_WORD> &ds, const Keys &a, const AttnArgs &g, uint32_t smem,
                                         const Spot (&spot)[3], bool first, bool more)
{
    constexpr bool AHEAD = KEYS_AHEAD<R, SPANS>;
    const Spot    &at = spot[1], &next = spot[2];
    uint32_t       side = ring_side<R>(smem, at.r);
    wgmma_wait<AHEAD ? 2 : 1>(); /* the scores are there; p is free */
    wgmma_settle(s);
    keys_mask<SPANS>(s, g, at, a.b, a.k0);
    keys_weights(s, g.scale * LOG2_E, side);
    tile_round(p, s);
    wgmma_begin();
    tile_multiply_cols(dv, p, ring_tile<R>(smem, at.r, 1));
    wgmma_commit();
    if (AHEAD && more) {
        ring_wait<R>(smem, next.r);
        product_begin<R>(ahead, a.k, smem, next.r, 0);
    }
    wgmma_wait_either<AHEAD, 2, 1, 1>(more); /* dp is there; the last tile is done with */
    wgmma_settle(dp);
    if (AHEAD && !first) ring_free<R>(smem, spot[0].r);
    keys_gradient(dp, s, side);
    if (!AHEAD) wgmma_wait<0>(); /* p's registers for ds */
    tile_round(ds, dp);
    wgmma_begin();
    tile_multiply_cols(dk, ds, ring_tile<R>(smem, at.r, 0));
    wgmma_commit();
    if (AHEAD && more) {
        product_begin<R>(dp, a.v, smem, next.r, 1);
        wgmma_wait<
            3>(); /* p's product: the compiler wants as many on their way here as before the first tile */
    }
}

/* To the next tile; false: there is none. */
template <typename R, bool SPANS>
__device__ __forceinline__ bool walk_on(Spot (&spot)[3], Walk<R, SPANS> &w, const AttnArgs &g, uint32_t smem)
{
    spot[0]   = spot[1];
    spot[1]   = spot[2];
    bool more = w.next(g, smem);
    spot[2]   = w.spot();
    return more;
}

/* dk and dv of the 64 keys that stay. */
template <typename R, bool SPANS>
__device__ __forceinline__ void keys_sum(float (&dk)[R::N_SUM], float (&dv)[R::N_SUM], const Keys &a,
                                         const AttnArgs &g, uint32_t smem, Walk<R, SPANS> &w)
{
    constexpr bool AHEAD = KEYS_AHEAD<R, SPANS>;
    float          s[N_ACC], other[N_ACC], dp[N_ACC];
    Words<N_WORD>  p, ds;
    Spot           spot[3];
    tile_clear(dk);
    tile_clear(dv);
    wgmma_settle(dk);
    wgmma_settle(dv);
    w.begin(smem);
    spot[2] = w.spot(); /* this one, once walk_on() */
    ring_wait<R>(smem, w.r);
    product_begin<R>(s, a.k, smem, w.r, 0);
    if (AHEAD) wgmma_commit(); /* for the product before the first */
    product_begin<R>(dp, a.v, smem, w.r, 1);
    auto step = [&](float(&now)[N_ACC], float(&ahead)[N_ACC], bool first, bool more) {
        keys_add<R, SPANS>(dk, dv, now, ahead, dp, p, ds, a, g, smem, spot, first, more);
    };
#pragma unroll 1
    for (bool first = true;; first = false) {
        /* With spans the next tile may be further on than the ring reaches while this one is kept. */
        if constexpr (SPANS) {
            spot[1] = w.spot();
            step(s, s, first, false);
            wgmma_wait<0>();
            ring_free<R>(smem, spot[1].r);
            if (!w.next(g, smem)) break;
            product_begin<R>(s, a.k, smem, w.r, 0);
            product_begin<R>(dp, a.v, smem, w.r, 1);
        } else if constexpr (AHEAD) {
            if (!walk_on(spot, w, g, smem)) {
                step(s, s, first, false);
                break;
            }
            step(s, other, first, true);
            if (!walk_on(spot, w, g, smem)) {
                step(other, other, false, false);
                break;
            }
            step(other, s, false, true);
        } else {
            bool more = walk_on(spot, w, g, smem);
            step(s, s, first, false);
            if (!more) break;
            ring_wait<R>(smem, spot[2].r);
            product_begin<R>(s, a.k, smem, spot[2].r, 0);
            product_begin<R>(dp, a.v, smem, spot[2].r, 1);
            wgmma_wait<2>();
            ring_free<R>(smem, spot[1].r);
        }
    }
    wgmma_wait<0>();
    wgmma_settle(dk);
    wgmma_settle(dv);
    if (!SPANS) ring_free<R>(smem, spot[1].r);
}

template <typename R, bool SPANS>
__device__ __forceinline__ void keys_multiply(const AttnMaps &m, const AttnArgs &g, uint32_t smem, int wg)
{
    constexpr bool OVER = R::OUT == 0; /* dk and dv leave from where k and v were */
    Walk<R, SPANS> w    = {};
    multiply_blocks<R>(
        blocks_of<R>(g, g.n_batch * g.kv_heads), smem, [&](int head, int block, uint32_t slot) {
            float    dk[R::N_SUM], dv[R::N_SUM];
            uint32_t k_tile = still_tile<R>(smem, slot, wg, 0), v_tile = still_tile<R>(smem, slot, wg, 1);
            uint32_t out = OVER ? k_tile : smem + R::AT_OUT + wg * R::OUT * R::TILE_BYTES;
            int      b = head / g.kv_heads, hk = head % g.kv_heads;
            Keys     a = { k_tile, v_tile, b, block * R::ROWS + wg * TILE };
            w.k0       = a.k0;
            w.first = w.i = query_first<SPANS>(g, b, w.k0);
            w.left        = g.heads / g.kv_heads * (g.T / TILE - w.first);
            w.skips       = g.causal && wg > 0;
            keys_sum<R, SPANS>(dk, dv, a, g, smem, w);
            if (!OVER) still_free<R>(smem, slot);
            gradient_turn(dk, g, w.k0 + tile_row());
            place_begin(wg);
            tile_place(dk, 1.0f, 1.0f, out);
            tile_place(dv, 1.0f, 1.0f, out + R::TILE_BYTES);
            if (place_end(wg)) {
                tile_store<R>(&m.dqkv, k_col<R>(g, hk), b * g.T + w.k0, out);
                tile_store<R>(&m.dqkv, v_col<R>(g, hk), b * g.T + w.k0, out + R::TILE_BYTES);
                tma_store_commit();
                if (OVER) tma_store_wait_read<0>();
            }
            if (OVER) still_free<R>(smem, slot);
        });
    if (threadIdx.x % WG_THREADS == 0) tma_store_wait();
}

/* ---- the kernels -------------------------------------------------------------------------------------------- */

template <typename R, bool KEYS, bool SPANS>
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
            keys_multiply<R, SPANS>(m, g, smem, wg);
        } else {
            queries_multiply<R, SPANS>(m, g, smem, wg);
        }
    } else {
        regs_shrink<R::REGS_LOAD>();
        if (threadIdx.x == R::LOADER) {
            if constexpr (KEYS) {
                keys_load<R, SPANS>(m, g, smem);
            } else {
                queries_load<R, SPANS>(m, g, smem);
            }
        }
    }
}

template <int D, bool SPANS>
static int launch_bwd(const AttnMaps &m, const AttnArgs &g, int n_sm, cudaStream_t stream)
{
    using Q = QueryRoom<D>;
    using K = KeyRoom<D>;
    TRY(attn_launch<Q>(attn_bwd_kernel<Q, false, SPANS>, m, g, g.n_batch * g.heads, n_sm, stream));
    return attn_launch<K>(attn_bwd_kernel<K, true, SPANS>, m, g, g.n_batch * g.kv_heads, n_sm, stream);
}

template <int D> static int launch_masked(const AttnMaps &m, const AttnArgs &g, int n_sm, cudaStream_t stream)
{
    return g.doc || g.prefix ? launch_bwd<D, true>(m, g, n_sm, stream)
                             : launch_bwd<D, false>(m, g, n_sm, stream);
}

int tile_attn_bwd(const TileAttn *a, TmaEncode encode, int n_sm, cudaStream_t stream)
{
    AttnMaps m = {};
    AttnArgs g = attn_args(a);
    TRY(attn_maps(encode, a, &m));
    return a->head_dim == 64 ? launch_masked<64>(m, g, n_sm, stream) : launch_masked<128>(m, g, n_sm, stream);
}
