/* Attention in tiles on the tensor cores: what forward and backward share. A tile is 64 rows of a head. Its D
 * columns are cut into parts of 64, and each part is swizzled separately. Any number of rows and any head of
 * up to D columns will do: what is behind them in a tile reads as 0 and is not written.
 *
 * A thread block has several multiplying warpgroups. Each holds 64 rows of a head (queries, or keys), which
 * stay. The tiles of 64 rows of the other side pass by in a ring that one thread keeps full. Thread blocks
 * are persistent.
 *
 * 1. Rows that stay are operands in registers, or in shared memory where registers are too few. Tiles that
 *    pass are operands in shared memory, read either way (k_wgmma.cuh). A product's result, rounded, is the
 *    next product's operand without leaving the registers.
 * 2. Every mask lets query i see the keys from low(i) to high(i). Only tiles that are seen are visited, and
 *    only those at an edge look at the mask. SPANS: low and high come from memory (documents, prefixes,
 *    ranges); else they are 0 and i, or T - 1. With spans a small kernel runs first: spans_kernel writes for
 *    each tile of queries which keys they see. Backward, seen_kernel then writes for each tile of keys which
 *    tiles of queries see it.
 * 3. In the last tile, queries behind the sequence see something or nothing; nobody reads what they give.
 *    Backward their lse is infinite, so that their weights are 0. Keys behind the sequence are masked.
 * 4. FEW: every query sees every key, and the last tile that passes has at most 8 rows (196 = 3 * 64 + 4). It
 *    passes first, and its products are 8 columns wide instead of 64. They run beside those of the next tile.
 * 5. A warpgroup leaves a tile to the loader once all its warps have read it: every warp says so. */
#ifndef DEV_CUDA_K_ATTN_TILE_CUH
#define DEV_CUDA_K_ATTN_TILE_CUH

#include "dev/cuda/k_attn_tile.h"
#include "dev/cuda/k_common.cuh"
#include "dev/cuda/k_wgmma.cuh"
#include "dev/op_scratch.h"

enum { TILE = 64, PART = 64, PART_BYTES = TILE * PART * 2, FEW_ROWS = 8, FEW_ACC = 4 };
enum {
    N_ACC  = TILE * TILE / WG_THREADS,
    N_WORD = N_ACC / 2
}; /* a thread's, of 64 x 64: f32 sums; pairs of bf16 */

#define LOG2_E 1.4426950408889634f

typedef struct {
    CUtensorMap q, k, v, o, dout, dq, dk, dv; /* rows of all heads, from head 0 on */
} AttnMaps;

typedef struct {
    int          n_batch, T, S, heads, kv_heads, causal; /* T queries, S keys */
    int          q_tiles, k_tiles;                       /* of a sequence */
    float        scale;
    float       *lse;   /* [B,H,T] */
    float       *rows;  /* backward, [B,H,q_tiles,2,64]: -lse * log2(e), -sum of dout * o; see side_at() */
    const float *table; /* backward, [T,D]: cosines, then sines; or NULL */
    const int   *doc, *prefix, *first, *last, *len; /* len: keys of each sequence; NULL: S */
    unsigned    *next;      /* counters of load_blocks(), one a kernel; 0 when it begins */
    int4        *tile_sees; /* with spans, [B,q_tiles]: TileSpan */
    int2        *tile_seen; /* the same backward, [B,k_tiles]: first tile of queries that sees it, last + 1 */
} AttnArgs;

/* ---- shared memory ------------------------------------------------------------------------------------- */

/* D: size of a head; WGS: warpgroups that multiply; STILL: tiles that stay with each; BLOCKS of rows whose
 * tiles there is room for; STAGES of the ring; SIDE: bytes of numbers in each, beside two tiles; OUT:
 * separate room for tiles that a warpgroup writes; else the written tiles replace the tiles that stayed. */
template <int D_, int WGS_, int STILL_, int BLOCKS_, int STAGES_, int SIDE_, int OUT_> struct Room {
    static constexpr int D = D_, WGS = WGS_, STILL = STILL_, BLOCKS = BLOCKS_, STAGES = STAGES_, PASS = 2,
                         SIDE = SIDE_, OUT = OUT_;
    static constexpr int TILE_BYTES = D / PART * PART_BYTES;
    static constexpr int ROWS = WGS * TILE, LOADER = WGS * WG_THREADS, THREADS = LOADER + WG_THREADS;
    static constexpr int WARPS = LOADER / WARP; /* that multiply */
    static __host__ __device__ constexpr int blocks(int T) { return (T + ROWS - 1) / ROWS; }

    static constexpr int AT_RING  = 0;
    static constexpr int AT_STILL = AT_RING + STAGES * PASS * TILE_BYTES;
    static constexpr int AT_OUT   = AT_STILL + BLOCKS * WGS * STILL * TILE_BYTES;
    static constexpr int AT_SIDE  = AT_OUT + WGS * OUT * TILE_BYTES;
    static constexpr int AT_FULL  = AT_SIDE + STAGES * SIDE;
    static constexpr int AT_EMPTY = AT_FULL + STAGES * 8;
    static constexpr int AT_COME  = AT_EMPTY + STAGES * 8; /* the tiles that stay are there */
    static constexpr int AT_GONE  = AT_COME + BLOCKS * 8;  /* and have been read */
    static constexpr int AT_ITEM  = AT_GONE + BLOCKS * 8;  /* which block they are of */
    static constexpr int AT_NOTES = AT_ITEM + BLOCKS * 8;  /* the loader's, 8 bytes a stage */
    static constexpr int BYTES    = AT_NOTES + STAGES * 8;
};

/* ---- who does what ------------------------------------------------------------------------------------- */

/* Where block i of a head's queries begins. The block that sees the most keys is the first. If the queries do
 * not fill all blocks, the last block, which sees the fewest keys, begins before the sequence. */
template <typename R> __device__ __forceinline__ int query_block(const AttnArgs &g, int i)
{
    return g.q_tiles * TILE - (i + 1) * R::ROWS;
}

/* What says which keys the queries of sequence b see. */
typedef struct {
    const int *first, *last; /* of the sequence; first: or where documents begin; or NULL */
    int        prefix, T, S, causal;
} Spans;

__device__ __forceinline__ Spans spans_of(const AttnArgs &g, int b)
{
    int64_t    row   = (int64_t)b * g.T;
    const int *first = g.doc ? g.doc : g.first;
    return { first ? first + row : NULL,
             g.last ? g.last + row : NULL,
             g.prefix ? min(__ldg(g.prefix + b), g.S) : 0,
             g.T,
             g.len ? min(__ldg(g.len + b), g.S) : g.S,
             g.causal && !g.last };
}

/* Keys from low to high; none: low is above every key. */
typedef struct {
    int low, high;
} Seen;

enum { NO_KEY = INT32_MAX };

/* What query `row` sees, of the numbers that stand in memory for it. A document begins no later than the row.
 * */
__device__ __forceinline__ Seen seen_of(const Spans &s, int row, int first, int last)
{
    if (row >= s.T) return { NO_KEY, -1 };
    if (s.causal) return { s.first ? max(0, min(first, row)) : 0, max(row, s.prefix - 1) };
    Seen v = { max(first, 0), s.last ? min(last, s.S - 1) : s.S - 1 };
    return v.low <= v.high ? v : Seen{ NO_KEY, -1 };
}
__device__ __forceinline__ Seen query_sees(const Spans &s, int row)
{
    bool here = row < s.T;
    return seen_of(s, row, s.first && here ? __ldg(s.first + row) : 0,
                   s.last && here ? __ldg(s.last + row) : 0);
}

/* Of 64 queries: keys that some of them see, and keys that all of them see. */
typedef struct {
    int low, high, clear_low, clear_high;
} TileSpan;

__device__ __forceinline__ TileSpan tile_span(const AttnArgs &g, int b, int tile)
{
    int4 v = __ldg(g.tile_sees + (int64_t)b * g.q_tiles + tile);
    return { v.x, v.y, v.z, v.w };
}

typedef struct {
    int first, end;
} Tiles;

/* Tiles of keys that some of the queries from row0 to the last see; at least one. */
template <bool SPANS>
__device__ __forceinline__ Tiles tiles_seen(const AttnArgs &g, int b, int row0, int last)
{
    last = min(last, g.T - 1);
    if (!SPANS) return { 0, (g.causal ? last : g.S - 1) / TILE + 1 };
    int low = NO_KEY, high = -1;
#pragma unroll 1
    for (int i = row0 / TILE; i <= last / TILE; i++) {
        TileSpan t = tile_span(g, b, i);
        low        = min(low, t.low);
        high       = max(high, t.high);
    }
    return low <= high ? Tiles{ low / TILE, high / TILE + 1 } : Tiles{ 0, 1 };
}

/* Some of all: those that see nothing have to wait for one of the others'. */
__device__ __forceinline__ Tiles tiles_within(Tiles t, Tiles all)
{
    if (t.first < all.first || t.end > all.end) return { all.first, all.first + 1 };
    return t;
}

/* ---- the ring and the rest of the room ----------------------------------------------------------------- */

typedef struct {
    uint32_t stage, round;
} Ring;

template <typename R> __device__ __forceinline__ void ring_next(Ring &r)
{
    r.stage++;
    if (r.stage == R::STAGES) r = { 0, r.round ^ 1 };
}

template <typename R> __device__ __forceinline__ Ring ring_before(Ring r)
{
    return r.stage ? Ring{ r.stage - 1, r.round } : Ring{ R::STAGES - 1, r.round ^ 1 };
}

template <typename R> __device__ __forceinline__ uint32_t ring_tile(uint32_t smem, Ring r, int i)
{
    return smem + R::AT_RING + (r.stage * R::PASS + i) * R::TILE_BYTES;
}
template <typename R> __device__ __forceinline__ uint32_t ring_side(uint32_t smem, Ring r)
{
    return smem + R::AT_SIDE + r.stage * R::SIDE;
}
template <typename R> __device__ __forceinline__ void ring_wait(uint32_t smem, Ring r)
{
    bar_wait(smem + R::AT_FULL + 8 * r.stage, r.round);
}
/* For the whole warp. The first thread reads. The same thread says when others may write there again
 * (bar_arrive_first): racecheck follows threads, not warps. */
__device__ __forceinline__ uint32_t smem_share_word(uint32_t addr)
{
    uint32_t v = 0;
    if (threadIdx.x % WARP == 0) v = smem_load_word(addr);
    return __shfl_sync(FULL_WARP, v, 0);
}

/* This warp has read it: all of it has waited for the products that did, and what it loaded itself went into
 * products since. Not if `except`. */
template <typename R> __device__ __forceinline__ void ring_free(uint32_t smem, Ring r, bool except = false)
{
    bar_arrive_first(smem + R::AT_EMPTY + 8 * r.stage, except);
}
/* A tile that this warpgroup has no use for. It waits: a second arrival in a round would count for the other
 * warpgroup. */
template <typename R> __device__ __forceinline__ void ring_skip(uint32_t smem, Ring &r)
{
    ring_wait<R>(smem, r);
    __syncwarp();
    ring_free<R>(smem, r);
    ring_next<R>(r);
}
/* The loader's: a stage to fill; returns its barrier. */
template <typename R> __device__ __forceinline__ uint32_t ring_take(uint32_t smem, Ring r)
{
    uint32_t full = smem + R::AT_FULL + 8 * r.stage;
    bar_wait(smem + R::AT_EMPTY + 8 * r.stage, r.round ^ 1);
    bar_expect(full, R::PASS * R::TILE_BYTES + R::SIDE);
    return full;
}
/* Tile i of a warpgroup's that stay. */
template <typename R>
__device__ __forceinline__ uint32_t still_tile(uint32_t smem, uint32_t slot, int wg, int i)
{
    return smem + R::AT_STILL + ((slot * R::WGS + wg) * R::STILL + i) * R::TILE_BYTES;
}

template <typename R> __device__ __forceinline__ void room_open(uint32_t smem)
{
    if (threadIdx.x == 0) {
        for (int s = 0; s < R::STAGES; s++) {
            bar_init(smem + R::AT_FULL + 8 * s, 1);
            bar_init(smem + R::AT_EMPTY + 8 * s, R::WARPS);
        }
        for (int s = 0; s < R::BLOCKS; s++) {
            bar_init(smem + R::AT_COME + 8 * s, 1);
            bar_init(smem + R::AT_GONE + 8 * s, R::WARPS);
        }
        ptx_mbar_init_fence();
    }
    __syncthreads();
}

/* ---- blocks of rows ------------------------------------------------------------------------------------ */

/* Thread blocks ask for blocks of rows. These are handed out head by head, so that the other side comes from
 * L2. Within a head the blocks with the most tiles come first: the last ones are small, and all thread blocks
 * end at about the same time. */
typedef struct {
    int n_item, n_block;
} Blocks;

/* Of n_head heads with n_row rows each. */
template <typename R> __device__ __forceinline__ Blocks blocks_of(int n_head, int n_row)
{
    int n_block = R::blocks(n_row);
    return { n_head * n_block, n_block };
}

/* The loader's: f(head, i, slot, barrier of the tiles that stay) for block i of the head, one after the
 * other. `next` counts the blocks of this launch from 0 on. */
template <typename R, typename F>
__device__ __forceinline__ void load_blocks(Blocks b, uint32_t smem, unsigned *next, F &&f)
{
    for (uint32_t n = 0;; n++) {
        int      item = (int)atomicAdd(next, 1u);
        uint32_t slot = n % R::BLOCKS, come = smem + R::AT_COME + 8 * slot;
        bar_wait(smem + R::AT_GONE + 8 * slot, (n / R::BLOCKS & 1) ^ 1);
        smem_store_word(smem + R::AT_ITEM + 8 * slot, (uint32_t)item);
        if (item >= b.n_item) {
            bar_arrive(come);
            return;
        }
        bar_expect(come, R::WGS * R::STILL * R::TILE_BYTES);
        f(item / b.n_block, item % b.n_block, slot, come);
    }
}

/* The multipliers': f(head, i, slot), which calls still_free(). */
template <typename R, typename F>
__device__ __forceinline__ void multiply_blocks(Blocks b, uint32_t smem, F &&f)
{
    for (uint32_t n = 0;; n++) {
        uint32_t slot = n % R::BLOCKS;
        bar_wait(smem + R::AT_COME + 8 * slot, n / R::BLOCKS & 1);
        int item = (int)smem_share_word(smem + R::AT_ITEM + 8 * slot);
        if (item >= b.n_item) return;
        f(item / b.n_block, item % b.n_block, slot);
    }
}

/* This warp has read the tiles that stay. */
template <typename R> __device__ __forceinline__ void still_free(uint32_t smem, uint32_t slot)
{
    __syncwarp();
    bar_arrive_first(smem + R::AT_GONE + 8 * slot, false);
}

/* ---- tiles --------------------------------------------------------------------------------------------- */

template <typename R>
__device__ __forceinline__ void tile_load(uint32_t tile, const CUtensorMap *map, HeadBox at, uint32_t bar)
{
#pragma unroll
    for (int p = 0; p < R::D / PART; p++) tma_load_head(tile + p * PART_BYTES, map, p * PART, at, bar);
}
template <typename R>
__device__ __forceinline__ void tile_store(const CUtensorMap *map, HeadBox at, uint32_t tile)
{
#pragma unroll
    for (int p = 0; p < R::D / PART; p++) tma_store_head(map, p * PART, at, tile + p * PART_BYTES);
}

/* A tile as an operand in registers: N_WORD words a part. */
template <int N> struct Words {
    uint32_t w[N];
};
template <int N> __device__ __forceinline__ void tile_read(Words<N> &a, uint32_t tile)
{
    uint32_t at = tile + lane_part<TILE_ROW_BYTES>(threadIdx.x % WG_THREADS);
#pragma unroll
    for (int i = 0; i < N / 4; i++) smem_load_frags((at ^ 32 * (i % 4)) + i / 4 * PART_BYTES, a.w + 4 * i);
}

/* Steps of 16 columns in a rows operand. */
__device__ __forceinline__ uint64_t rows_step(uint32_t low, int i)
{
    return wgmma_desc(low + i / 4 * (PART_BYTES >> 4) + i % 4 * WGMMA_STEP_ROWS);
}

/* d = a b^T, or += if ADD; b: a tile in shared memory whose rows are d's columns. */
template <typename R, int ADD = 0, int N>
__device__ __forceinline__ void tile_multiply_rows(float (&d)[N_ACC], const Words<N> &a, uint32_t b_tile)
{
    uint32_t b = wgmma_low_rows(b_tile);
    wgmma_64<0, ADD>(d, a.w, rows_step(b, 0));
#pragma unroll
    for (int i = 1; i < R::D / 16; i++) wgmma_64<0, 1>(d, a.w + 4 * i, rows_step(b, i));
}
/* The same with a in shared memory, too. */
template <typename R, int ADD = 0>
__device__ __forceinline__ void tile_multiply_rows(float (&d)[N_ACC], uint32_t a_tile, uint32_t b_tile)
{
    uint32_t a = wgmma_low_rows(a_tile), b = wgmma_low_rows(b_tile);
    wgmma_64<0, ADD>(d, rows_step(a, 0), rows_step(b, 0));
#pragma unroll
    for (int i = 1; i < R::D / 16; i++) wgmma_64<0, 1>(d, rows_step(a, i), rows_step(b, i));
}

/* d += a b; a of 64 x 64, b: a tile whose columns are d's. */
template <int N>
__device__ __forceinline__ void tile_multiply_cols(float (&d)[N], const Words<N_WORD> &a, uint32_t b_tile)
{
    uint32_t b = wgmma_low_cols(b_tile, PART_BYTES);
#pragma unroll
    for (int i = 0; i < TILE / 16; i++) {
        uint64_t step = wgmma_desc(b + i * WGMMA_STEP_COLS);
        if constexpr (N == N_ACC) {
            wgmma_64<1, 1>(d, a.w + 4 * i, step);
        } else {
            wgmma_128<1>(d, a.w + 4 * i, step);
        }
    }
}

/* ---- the last tile, if it has few rows ----------------------------------------------------------------- */

/* Which tile passes as number j of n. */
template <bool FEW> __device__ __forceinline__ int tile_passing(int j, int n)
{
    if (!FEW) return j;
    return j == 0 ? n - 1 : j - 1;
}

/* d[64 x 8] = a b^T, or += if ADD; b: the first rows of a tile in shared memory. */
template <typename R, int ADD = 0, int N>
__device__ __forceinline__ void few_multiply_rows(float (&d)[FEW_ACC], const Words<N> &a, uint32_t b_tile)
{
    uint32_t b = wgmma_low_rows(b_tile);
    wgmma_8_regs<ADD>(d, a.w, rows_step(b, 0));
#pragma unroll
    for (int i = 1; i < R::D / 16; i++) wgmma_8_regs<1>(d, a.w + 4 * i, rows_step(b, i));
}
template <typename R, int ADD = 0>
__device__ __forceinline__ void few_multiply_rows(float (&d)[FEW_ACC], uint32_t a_tile, uint32_t b_tile)
{
    uint32_t a = wgmma_low_rows(a_tile), b = wgmma_low_rows(b_tile);
    wgmma_8<0, ADD>(d, rows_step(a, 0), rows_step(b, 0));
#pragma unroll
    for (int i = 1; i < R::D / 16; i++) wgmma_8<0, 1>(d, rows_step(a, i), rows_step(b, i));
}

/* d += a b; a of 64 x 8, as few_round() leaves it in the first words, b: the first 16 rows of a tile. */
template <int N>
__device__ __forceinline__ void few_multiply_cols(float (&d)[N], const Words<N_WORD> &a, uint32_t b_tile)
{
    uint64_t step = wgmma_desc(wgmma_low_cols(b_tile, PART_BYTES));
    if constexpr (N == N_ACC) {
        wgmma_64<1, 1>(d, a.w, step);
    } else {
        wgmma_128<1>(d, a.w, step);
    }
}
/* Rounded, and filled up to 16 columns with zeros. */
__device__ __forceinline__ void few_round(Words<N_WORD> &a, const float (&d)[FEW_ACC])
{
    a.w[0] = bf16_pair(d[0], d[1]);
    a.w[1] = bf16_pair(d[2], d[3]);
    a.w[2] = a.w[3] = 0;
}

template <int N> __device__ __forceinline__ void tile_clear(float (&d)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++) d[i] = 0.0f;
}

/* This thread's row of its warpgroup's 64, and the one 8 rows on; its first column of every 8. */
__device__ __forceinline__ int tile_row()
{
    return threadIdx.x % WG_THREADS / 32 * 16 + threadIdx.x % 32 / 4;
}
__device__ __forceinline__ int tile_col() { return threadIdx.x % 4 * 2; }

/* Makes -inf of what lies above the diagonal (columns after the row), or, if not ABOVE, below it. */
template <bool ABOVE> __device__ __forceinline__ void tile_mask(float (&d)[N_ACC])
{
    int row = tile_row(), col = tile_col();
#pragma unroll
    for (int i = 0; i < N_ACC; i++) {
        int r = row + i % 4 / 2 * 8, c = col + i / 4 * 8 + i % 2;
        if (ABOVE ? c > r : c < r) d[i] = -INFINITY;
    }
}

/* Makes -inf of the columns from n on. */
__device__ __forceinline__ void tile_mask_end(float (&d)[N_ACC], int n)
{
    int col = tile_col();
#pragma unroll
    for (int i = 0; i < N_ACC; i++) {
        if (col + i / 4 * 8 + i % 2 >= n) d[i] = -INFINITY;
    }
}

/* The same of a tile with few rows. */
__device__ __forceinline__ void few_mask_end(float (&d)[FEW_ACC], int n)
{
    int col = tile_col();
#pragma unroll
    for (int i = 0; i < FEW_ACC; i++) {
        if (col + i % 2 >= n) d[i] = -INFINITY;
    }
}

/* Makes -inf of the keys from k0 on that queries, which are rows and begin at q0, do not see. */
__device__ __forceinline__ void tile_mask_spans(float (&d)[N_ACC], const Spans &s, int q0, int k0)
{
    Seen seen[2];
    int  col = k0 + tile_col();
#pragma unroll
    for (int j = 0; j < 2; j++) seen[j] = query_sees(s, q0 + tile_row() + 8 * j);
#pragma unroll
    for (int i = 0; i < N_ACC; i++) {
        int key = col + i / 4 * 8 + i % 2, j = i % 4 / 2;
        if (key < seen[j].low || key > seen[j].high) d[i] = -INFINITY;
    }
}

/* Numbers i and i + 1 of n; 0 for those behind the last. i is even, so that with an even n both are read at
 * once; p may be NULL. */
__device__ __forceinline__ int2 two_ints(const int *p, int i, int n)
{
    if (!p || i >= n) return make_int2(0, 0);
    if (n % 2 == 0) return __ldg(reinterpret_cast<const int2 *>(p + i));
    return make_int2(__ldg(p + i), i + 1 < n ? __ldg(p + i + 1) : 0);
}

/* The same where queries are columns and keys rows. */
__device__ __forceinline__ void tile_mask_spans_turned(float (&d)[N_ACC], const Spans &s, int q0, int k0)
{
    int row = k0 + tile_row(), col = q0 + tile_col();
#pragma unroll
    for (int b = 0; b < TILE / 8; b++) {
        int  query = col + 8 * b;
        int2 first = two_ints(s.first, query, s.T), last = two_ints(s.last, query, s.T);
        Seen seen[2] = { seen_of(s, query, first.x, last.x), seen_of(s, query + 1, first.y, last.y) };
#pragma unroll
        for (int i = 4 * b; i < 4 * b + 4; i++) {
            int key = row + i % 4 / 2 * 8;
            if (key < seen[i % 2].low || key > seen[i % 2].high) d[i] = -INFINITY;
        }
    }
}

/* Keys that all of 64 queries see. */
typedef struct {
    Spans spans;
    int   low, high;
} Clear;

template <bool SPANS> __device__ __forceinline__ Clear clear_of(const AttnArgs &g, int b, int q0)
{
    if (!SPANS) return {};
    TileSpan t = tile_span(g, b, q0 / TILE);
    return { spans_of(g, b), t.clear_low, t.clear_high };
}

/* Masks a tile of scores of queries that stay, where it must be. */
template <bool SPANS>
__device__ __forceinline__ void tile_mask_keys(float (&d)[N_ACC], const AttnArgs &g, const Clear &c, int q0,
                                               int k0)
{
    if constexpr (SPANS) {
        if (k0 < c.low || k0 + TILE - 1 > c.high) tile_mask_spans(d, c.spans, q0, k0);
    } else {
        if (g.causal && k0 == q0) tile_mask<true>(d);
        if (!g.causal && k0 + TILE > g.S) tile_mask_end(d, g.S - k0);
    }
}

__device__ __forceinline__ void tile_round(Words<N_WORD> &a, const float (&d)[N_ACC])
{
#pragma unroll
    for (int i = 0; i < N_WORD; i++) a.w[i] = bf16_pair(d[2 * i], d[2 * i + 1]);
}

/* Sum over the four lanes that share rows. */
__device__ __forceinline__ float row_sum(float x)
{
    x += __shfl_xor_sync(FULL_WARP, x, 1);
    return x + __shfl_xor_sync(FULL_WARP, x, 2);
}

/* d, its two rows of a thread scaled, rounded, into shared memory. */
template <int N>
__device__ __forceinline__ void tile_place(const float (&d)[N], float scale0, float scale1, uint32_t tile)
{
    uint32_t at = tile + lane_part<TILE_ROW_BYTES>(threadIdx.x % WG_THREADS);
#pragma unroll
    for (int i = 0; i < N / 8; i++) {
        uint32_t w[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float scale = j % 2 ? scale1 : scale0;
            w[j]        = bf16_pair(d[8 * i + 2 * j] * scale, d[8 * i + 2 * j + 1] * scale);
        }
        smem_store_frags((at ^ 32 * (i % 4)) + i / 4 * PART_BYTES, w);
    }
}

/* Before tile_place(): the tiles placed for the block before are on their way. */
__device__ __forceinline__ void place_begin(int wg)
{
    if (threadIdx.x % WG_THREADS == 0) tma_store_wait_read<0>();
    ptx_bar_sync(1 + wg, WG_THREADS);
}
/* After it; then the first thread stores. */
__device__ __forceinline__ bool place_end(int wg)
{
    ptx_fence_async();
    ptx_bar_sync(1 + wg, WG_THREADS);
    return threadIdx.x % WG_THREADS == 0;
}

/* ---- launching ----------------------------------------------------------------------------------------- */

static inline int attn_maps(TmaEncode encode, const TileAttn *a, AttnMaps *m)
{
    struct {
        CUtensorMap *map;
        const void  *p;
        int64_t      ld;
        bool         keys; /* else of queries */
    } all[]    = { { &m->q, a->q, a->ld_q, false },          { &m->k, a->k, a->ld_k, true },
                   { &m->v, a->v, a->ld_k, true },           { &m->o, a->o, a->ld_o, false },
                   { &m->dout, a->dout, a->ld_dout, false }, { &m->dq, a->dq, a->ld_dq, false },
                   { &m->dk, a->dk, a->ld_dk, true },        { &m->dv, a->dv, a->ld_dk, true } };
    TmaBox box = { CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, PART, TILE };
    for (auto &x : all) {
        TmaHeads h = { a->B, x.keys ? a->S : a->T, x.keys ? a->shape.kv_heads : a->shape.heads,
                       a->shape.head_dim, x.ld };
        TRY(tma_map_heads(encode, x.map, x.p, h, box));
    }
    return 0;
}

static inline int64_t tiles_in(int64_t rows) { return (rows + TILE - 1) / TILE; }

/* 1: the last of several tiles has few rows. */
static inline int tiles_end_few(int64_t rows)
{
    return rows > TILE && rows % TILE > 0 && rows % TILE <= FEW_ROWS;
}

static inline int attn_has_spans(const TileAttn *a) { return a->shape.mask > MASK_FULL || a->len; }

/* What both halves keep in ws: counters and, with spans, the tables of tiles. */
static inline int64_t attn_common_ws(const TileAttn *a)
{
    int64_t tables = a->B * (tiles_in(a->T) * (int64_t)sizeof(int4) + tiles_in(a->S) * (int64_t)sizeof(int2));
    return ATTN_COUNTER_BYTES + (attn_has_spans(a) ? tables : 0);
}

/* ws: attn_common_ws() bytes. */
static inline AttnArgs attn_args(const TileAttn *a, void *ws)
{
    AttnArgs g  = {};
    Mask     m  = a->shape.mask;
    g.n_batch   = (int)a->B;
    g.T         = (int)a->T;
    g.S         = (int)a->S;
    g.q_tiles   = (int)tiles_in(a->T);
    g.k_tiles   = (int)tiles_in(a->S);
    g.heads     = a->shape.heads;
    g.kv_heads  = a->shape.kv_heads;
    g.causal    = m != MASK_FULL;
    g.scale     = a->shape.scale;
    g.lse       = (float *)a->lse;
    g.table     = a->table;
    g.doc       = m == MASK_DOCUMENT ? a->doc : NULL;
    g.prefix    = m == MASK_PREFIX ? a->prefix : NULL;
    g.first     = m == MASK_RANGE ? a->first : NULL;
    g.last      = m == MASK_RANGE ? a->last : NULL;
    g.len       = a->len;
    g.next      = (unsigned *)ws;
    g.tile_sees = (int4 *)((char *)ws + ATTN_COUNTER_BYTES);
    g.tile_seen = (int2 *)(g.tile_sees + a->B * g.q_tiles);
    return g;
}

enum { SPAN_THREADS = 256, SPAN_WARPS = SPAN_THREADS / WARP };

__device__ __forceinline__ int warp_min(int v)
{
#pragma unroll
    for (int d = WARP / 2; d > 0; d /= 2) v = min(v, __shfl_xor_sync(FULL_WARP, v, d));
    return v;
}
__device__ __forceinline__ int warp_most(int v) { return -warp_min(-v); }

/* What the queries of each tile see: a warp a tile. */
static __global__ void __launch_bounds__(SPAN_THREADS) spans_kernel(const __grid_constant__ AttnArgs g)
{
    int n = blockIdx.x * SPAN_WARPS + threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (n >= g.n_batch * g.q_tiles) return;
    int   i = n % g.q_tiles * TILE + lane;
    Spans s = spans_of(g, n / g.q_tiles);
    Seen  u = query_sees(s, i), v = query_sees(s, i + WARP);
    int4  t = { warp_min(min(u.low, v.low)), warp_most(max(u.high, v.high)), warp_most(max(u.low, v.low)),
                warp_min(min(u.high, v.high)) };
    if (lane == 0) g.tile_sees[n] = t;
}

/* Which tiles of queries see each tile of keys: a warp a tile. The backward half reads it. */
static __global__ void __launch_bounds__(SPAN_THREADS) seen_kernel(const __grid_constant__ AttnArgs g)
{
    int n = blockIdx.x * SPAN_WARPS + threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (n >= g.n_batch * g.k_tiles) return;
    int         low = n % g.k_tiles * TILE, first = g.q_tiles, end = 0;
    const int4 *sees = g.tile_sees + (int64_t)(n / g.k_tiles) * g.q_tiles;
    for (int i = lane; i < g.q_tiles; i += WARP) {
        if (sees[i].x >= low + TILE || sees[i].y < low) continue;
        first = min(first, i);
        end   = i + 1;
    }
    first = warp_min(first);
    end   = warp_most(end);
    if (lane == 0) g.tile_seen[n] = make_int2(first, end);
}

static inline int spans_launch(void (*kernel)(const AttnArgs), const AttnArgs &g, int n_tile,
                               cudaStream_t stream)
{
    cudaLaunchConfig_t cfg = {};
    cfg.gridDim            = dim3{ (unsigned)((g.n_batch * n_tile + SPAN_WARPS - 1) / SPAN_WARPS) };
    cfg.blockDim           = dim3{ SPAN_THREADS };
    cfg.stream             = stream;
    CUDA_TRY(cudaLaunchKernelEx(&cfg, kernel, g));
    return 0;
}

/* What has to happen before a kernel of this attention runs. */
static inline int attn_begin(const TileAttn *a, const AttnArgs &g, bool backward, cudaStream_t stream)
{
    CUDA_TRY(cudaMemsetAsync(g.next, 0, ATTN_COUNTER_BYTES, stream));
    if (!attn_has_spans(a)) return 0;
    TRY(spans_launch(spans_kernel, g, g.q_tiles, stream));
    return backward ? spans_launch(seen_kernel, g, g.k_tiles, stream) : 0;
}

/* A thread block for each multiprocessor, or fewer for little work. */
template <typename R, typename K>
static int attn_launch(K *kernel, const AttnMaps &m, const AttnArgs &g, int n_block, int n_sm,
                       cudaStream_t stream)
{
    /* Warpgroups take registers from what the thread block started with; they would wait for ever for
     * more. */
    constexpr int START = 65536 / R::THREADS / 8 * 8;
    static_assert(R::WGS * R::REGS_MULTIPLY + R::REGS_LOAD <= (R::WGS + 1) * START, "registers");
    cudaLaunchConfig_t cfg = {};
    cfg.gridDim            = dim3{ (unsigned)MIN(n_sm, n_block) };
    cfg.blockDim           = dim3{ R::THREADS };
    cfg.dynamicSmemBytes   = R::BYTES;
    cfg.stream             = stream;
    CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, R::BYTES));
    CUDA_TRY(cudaLaunchKernelEx(&cfg, kernel, m, g));
    return 0;
}

#endif
