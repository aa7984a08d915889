/* The own matrix product: out = epilogue(a b).
 *
 * A cluster of two blocks computes 256 rows x 192 columns at a time, a block 128 rows. Who does what in a block:
 *   load       one thread keeps a ring of K steps of 64 full; each block of the pair loads half of b's tile for both
 *   multiply   two warpgroups of 64 rows each accumulate in 96 registers a thread, round the tile to bf16, put it into
 *              shared memory in chunks of 64 x 64, and go on to the next tile
 *   finish     six warps, one for each chunk of a tile: the activation or its derivative, from shared memory to the output
 * Blocks are persistent: they walk over tiles in an order that keeps a and b in L2.
 *
 * 1. Nobody who multiplies ever computes an activation or waits for memory: done by the multiplying threads, even spread out
 *    between their steps, GELU kept the tensor cores waiting for a quarter of the time and its derivative for three
 *    quarters. cuBLASLt's GELU epilogue costs 30 %. docs/performance.md has the figures.
 * 2. Rows and columns outside the matrices are read as 0 and not written.
 * 3. p is rounded to bf16 before the activation sees it: the same roundings as the product and the activation run apart. All
 *    sums have an order of their own, fixed by the shape.
 * Bytes    a, b, inputs and outputs once each from and to memory (b and a from L2 for every tile). */
#include "dev/cuda/k_gemm.h"

#include "dev/cuda/k_actmath.cuh"
#include "dev/cuda/k_colsum.cuh"
#include "dev/cuda/k_wgmma.cuh"

enum { BM = 128, BN = 192, BK = 64, MULTIPLIERS = 2, CLUSTER = 2, N_ACC = BN / 2, RASTER = 16 };
enum { CHUNK = 64, N_CHUNK = BN / CHUNK, SLOTS = N_CHUNK * MULTIPLIERS, CHUNK_PIECES = CHUNK / 16 };
enum {
    A_BYTES    = BM * BK * 2,
    B_BYTES    = BN * BK * 2,
    STEP_BYTES = A_BYTES + B_BYTES,
    B_PARTS    = 6,
    PART       = B_BYTES / B_PARTS
};
enum { STEPS = 4, BUF_BYTES = 64 * CHUNK * 2, AT_P = STEPS * STEP_BYTES, AT_BARS = AT_P + SLOTS * BUF_BYTES };
enum { SMEM_BYTES = AT_BARS + 8 * (2 * STEPS + 2 * SLOTS), THREADS = (2 + MULTIPLIERS) * WG_THREADS };
enum { REGS_MULTIPLY = 136, REGS_OTHERS = 120 }; /* a thread; together all that a multiprocessor has */

typedef struct {
    CUtensorMap a, b[2];
} OwnMaps;

typedef struct {
    int         k_steps, pairs, col_tiles; /* pairs: of row tiles, a cluster's */
    int         rows, cols, tile_cols;     /* tile_cols: columns of the output a tile has, BN or BN/2 */
    const bf16 *in[2];
    bf16       *out[3];
    int64_t     ld_out[3], ld_in[2];
    float      *sums;
} OwnArgs;

/* What a block has in shared memory. */
typedef struct {
    uint32_t  base;
    uint64_t *full, *empty;     /* of the ring's steps */
    uint64_t *p_full, *p_empty; /* of the chunks' slots */
} Room;

/* The tile that comes n-th: RASTER pairs of row tiles share each column tile before the next one is taken. */
__device__ __forceinline__ void tile_at(const OwnArgs &g, int n, int *pair, int *col)
{
    int group = n / (RASTER * g.col_tiles), first = group * RASTER, high = min(RASTER, g.pairs - first);
    int in = n - first * g.col_tiles;
    *pair  = first + in % high;
    *col   = in / high;
}

/* ---- load ---------------------------------------------------------------------------------------------- */

/* How b lies in memory: columns operands have a row for each k. */
template <OwnKind KIND> struct Operand {
    static constexpr int BY_K = KIND != OWN_GLU;
};

/* This block's half of b's tile, for both blocks, in parts of 32 rows. A columns operand is three blocks of 64 columns and BK
 * rows. With OWN_GLU the tile's columns are 32 of the first half of b, 32 of the second, and so on. */
template <OwnKind KIND>
__device__ __forceinline__ void load_b(const OwnMaps &m, uint32_t b, int rank, int col0, int k0, uint32_t bar)
{
    constexpr uint16_t BOTH = (1 << CLUSTER) - 1;
    constexpr int      MINE = B_PARTS / CLUSTER;
#pragma unroll
    for (int h = 0; h < MINE; h++) {
        int i = rank * MINE + h;
        if (Operand<KIND>::BY_K) {
            tma_load_all(b + i * PART, &m.b[0], col0 + i / 2 * 64, k0 + i % 2 * (BK / 2), bar, BOTH);
        } else {
            tma_load_all(b + i * PART, &m.b[i % 2], k0, col0 + i / 2 * 32, bar, BOTH);
        }
    }
}

template <OwnKind KIND>
__device__ __forceinline__ void load(const OwnMaps &m, const OwnArgs &g, const Room &r)
{
    int rank = ptx_cluster_rank(), n_tile = g.pairs * g.col_tiles, s = 0, phase = 1;
    for (int n = blockIdx.x / CLUSTER; n < n_tile; n += gridDim.x / CLUSTER) {
        int pair, col;
        tile_at(g, n, &pair, &col);
        for (int k = 0; k < g.k_steps; k++) {
            uint32_t a = r.base + s * STEP_BYTES, bar = ptx_smem_addr(&r.full[s]);
            ptx_mbar_wait(&r.empty[s], phase);
            ptx_mbar_expect(&r.full[s], STEP_BYTES);
            tma_load(a, &m.a, k * BK, (pair * CLUSTER + rank) * BM, bar);
            load_b<KIND>(m, a + A_BYTES, rank, col * g.tile_cols, k * BK, bar);
            if (++s == STEPS) {
                s = 0;
                phase ^= 1;
            }
        }
    }
}

/* ---- multiply ------------------------------------------------------------------------------------------ */

/* A multiplying warpgroup's place. */
typedef struct {
    uint32_t there;    /* `empty` of the block this thread tells, in the cluster's addresses */
    int      tells;    /* thread r of the warpgroup tells block r that a step has been read */
    int      wg, t;    /* which of the two; thread of it */
    int      s, phase; /* of the ring */
} Multiplier;

/* acc = this warpgroup's 64 rows of the tile. */
template <OwnKind KIND>
__device__ __forceinline__ void tile_multiply(float (&acc)[N_ACC], int k_steps, const Room &r, Multiplier &m)
{
    constexpr int BY_K   = Operand<KIND>::BY_K;
    int           before = 0;
    for (int k = 0; k < k_steps; k++) {
        uint32_t at = r.base + m.s * STEP_BYTES;
        uint64_t a  = wgmma_desc_rows(at + m.wg * (64 * BK * 2));
        uint64_t b =
            BY_K ? wgmma_desc_cols(at + A_BYTES, BK * TILE_ROW_BYTES) : wgmma_desc_rows(at + A_BYTES);
        ptx_mbar_wait(&r.full[m.s], m.phase);
        wgmma_begin();
#pragma unroll
        for (int i = 0; i < BK / 16; i++) {
            wgmma_192<0, BY_K>(acc, a + i * WGMMA_STEP_ROWS,
                               b + i * (BY_K ? WGMMA_STEP_COLS : WGMMA_STEP_ROWS), k > 0 || i > 0);
        }
        wgmma_commit();
        wgmma_wait<1>(); /* the step before has been read */
        if (k > 0 && m.tells) cluster_arrive(m.there + 8 * before);
        before = m.s;
        if (++m.s == STEPS) {
            m.s = 0;
            m.phase ^= 1;
        }
    }
    wgmma_wait<0>();
    wgmma_settle(acc);
    if (m.tells) cluster_arrive(m.there + 8 * before);
}

/* Hands the tile to `finish`, rounded. n: tiles handed over before. */
__device__ __forceinline__ void tile_hand_over(const float (&acc)[N_ACC], const Room &r, const Multiplier &m,
                                               int n)
{
    int      lane = m.t % 32, row = m.t / 32 * 16 + lane % 8 + (lane / 8 & 1) * 8;
    uint32_t line = r.base + AT_P + m.wg * BUF_BYTES + row * TILE_ROW_BYTES;
#pragma unroll
    for (int c = 0; c < N_CHUNK; c++) {
        int slot = c * MULTIPLIERS + m.wg;
        ptx_mbar_wait(&r.p_empty[slot], (n & 1) ^ 1);
#pragma unroll
        for (int p = 0; p < CHUNK_PIECES; p++) {
            uint32_t v[4];
#pragma unroll
            for (int q = 0; q < 4; q++) {
                const float *d = acc + c * (CHUNK / 2) + p * 8 + q * 2;
                v[q]           = bf16_pair(d[0], d[1]);
            }
            smem_store_frags(line + c * (MULTIPLIERS * BUF_BYTES) + ((2 * p + lane / 16) ^ (lane % 8)) * 16,
                             v);
        }
        __syncwarp();
        if (lane == 0) ptx_mbar_arrive(&r.p_full[slot]);
    }
}

template <OwnKind KIND> __device__ __forceinline__ void multiply(const OwnArgs &g, const Room &r, int wg)
{
    int        t = threadIdx.x % WG_THREADS, n_tile = g.pairs * g.col_tiles, done = 0;
    Multiplier m = { cluster_addr(ptx_smem_addr(r.empty), t % CLUSTER), t < CLUSTER, wg, t, 0, 0 };
    float      acc[N_ACC];
    for (int n = blockIdx.x / CLUSTER; n < n_tile; n += gridDim.x / CLUSTER) {
        tile_multiply<KIND>(acc, g.k_steps, r, m);
        tile_hand_over(acc, r, m, done++);
    }
}

/* ---- finish -------------------------------------------------------------------------------------------- */

/* A chunk of 64 x 64 is taken in rows of 8 packs (16 bytes, 8 columns): lane l has pack l%8 of rows l/8 + 4i, so that a warp
 * reads and writes whole lines of memory. */
enum { CHUNK_ROWS = 64, LANE_ROWS = 16 };

/* A warp's chunk. */
typedef struct {
    uint32_t p;                /* shared address of this lane's first pack */
    int      row0, col0, slab; /* slab: its row of column sums */
    int      row, col;         /* of this lane's first pack */
    int      rows; /* of this lane's rows, how many are inside the matrix; 0 when its columns are not */
} Chunk;

template <Act ACT> __device__ __forceinline__ uint4 pack_slope(uint4 p, uint4 x, float (&sum)[8])
{
    uint32_t *w = &p.x, *v = &x.x;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        w[i] = bf16_pair(__fmul_rn(bf16_low(w[i]), act_slope<ACT>(bf16_low(v[i]))),
                         __fmul_rn(bf16_high(w[i]), act_slope<ACT>(bf16_high(v[i]))));
        sum[2 * i] += bf16_low(w[i]);
        sum[2 * i + 1] += bf16_high(w[i]);
    }
    return p;
}

template <Act ACT> __device__ __forceinline__ uint4 pack_glu(uint4 gate, uint4 up)
{
    uint32_t *w = &gate.x, *u = &up.x;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        w[i] = bf16_pair(__fmul_rn(act_value<ACT>(bf16_low(w[i])), bf16_low(u[i])),
                         __fmul_rn(act_value<ACT>(bf16_high(w[i])), bf16_high(u[i])));
    }
    return gate;
}

/* *p, the gradient of the output, becomes the gate's; *up becomes its own gradient. */
template <Act ACT> __device__ __forceinline__ void pack_dglu(uint4 *p, uint4 gate, uint4 *up)
{
    uint32_t *d = &p->x, *g = &gate.x, *u = &up->x;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float d0 = bf16_low(d[i]), d1 = bf16_high(d[i]), g0 = bf16_low(g[i]), g1 = bf16_high(g[i]);
        float u0 = bf16_low(u[i]), u1 = bf16_high(u[i]);
        u[i] = bf16_pair(__fmul_rn(d0, act_value<ACT>(g0)), __fmul_rn(d1, act_value<ACT>(g1)));
        d[i] = bf16_pair(__fmul_rn(__fmul_rn(d0, u0), act_slope<ACT>(g0)),
                         __fmul_rn(__fmul_rn(d1, u1), act_slope<ACT>(g1)));
    }
}

/* Adds the sums of the lanes with the same columns; each keeps two of the eight and writes them. */
__device__ __forceinline__ void warp_sums(float (&s)[8], float *to, int inside)
{
    int lane = threadIdx.x % 32, high = lane & 16, mid = lane & 8;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float give = high ? s[i] : s[i + 4];
        s[i]       = (high ? s[i + 4] : s[i]) + __shfl_xor_sync(FULL_WARP, give, 16);
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float give = mid ? s[i] : s[i + 2];
        s[i]       = (mid ? s[i + 2] : s[i]) + __shfl_xor_sync(FULL_WARP, give, 8);
    }
    if (inside) *reinterpret_cast<float2 *>(to + (high ? 4 : 0) + (mid ? 2 : 0)) = make_float2(s[0], s[1]);
}

__device__ __forceinline__ uint4 input_load(const OwnArgs &g, int n, const Chunk &c, int i)
{
    return ptx_load_stream(g.in[n] + (int64_t)(c.row + 4 * i) * g.ld_in[n] + c.col, i < c.rows);
}

__device__ __forceinline__ void output_store(const OwnArgs &g, int n, const Chunk &c, int i, uint4 v)
{
    if (i < c.rows) ptx_store(g.out[n] + (int64_t)(c.row + 4 * i) * g.ld_out[n] + c.col, v);
}

/* The packs of N of this lane's rows, beginning with row i0. */
template <int N> __device__ __forceinline__ void batch_take(const Chunk &c, int i0, uint4 (&d)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        d[i] = smem_load((c.p + (i0 + i) * (4 * TILE_ROW_BYTES)) ^ ((i0 + i) % 2 * 64));
}

/* Says that the chunk has been read. */
__device__ __forceinline__ void chunk_free(uint64_t *p_empty)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx_mbar_arrive(p_empty);
}

/* Of each input, this lane's packs of N rows, beginning with row i0. */
template <int N>
__device__ __forceinline__ void inputs_take(const OwnArgs &g, int n, const Chunk &c, int i0, uint4 (&x)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++) x[i] = input_load(g, n, c, i0 + i);
}

template <int N>
__device__ __forceinline__ void outputs_put(const OwnArgs &g, int n, const Chunk &c, int i0,
                                            const uint4 (&x)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++) output_store(g, n, c, i0 + i, x[i]);
}

/* Inputs are on their way a batch ahead, the first before the product is there. A batch is computed as a whole between its
 * loads and its stores, so that the instructions of its elements interleave. */
template <Act ACT>
__device__ __forceinline__ void finish_slope(const OwnArgs &g, const Chunk &c, uint64_t *p_full, int turn,
                                             uint64_t *p_empty)
{
    constexpr int N = 4;
    uint4         x[2][N], d[N];
    float         s[8] = { 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f };
    inputs_take<N>(g, 0, c, 0, x[0]);
    ptx_mbar_wait(p_full, turn);
#pragma unroll
    for (int b = 0; b < LANE_ROWS; b += N) {
        if (b + N < LANE_ROWS) inputs_take<N>(g, 0, c, b + N, x[b / N % 2 ^ 1]);
        batch_take<N>(c, b, d);
        if (b + N == LANE_ROWS) chunk_free(p_empty);
#pragma unroll
        for (int i = 0; i < N; i++) d[i] = pack_slope<ACT>(d[i], x[b / N % 2][i], s);
        outputs_put<N>(g, 0, c, b, d);
    }
    if (g.sums) warp_sums(s, g.sums + (int64_t)c.slab * g.cols + c.col, c.col < g.cols);
}

template <Act ACT>
__device__ __forceinline__ void finish_dglu(const OwnArgs &g, const Chunk &c, uint64_t *p_full, int turn,
                                            uint64_t *p_empty)
{
    constexpr int N = 2;
    uint4         gate[2][N], up[2][N], d[N];
    inputs_take<N>(g, 0, c, 0, gate[0]);
    inputs_take<N>(g, 1, c, 0, up[0]);
    ptx_mbar_wait(p_full, turn);
#pragma unroll
    for (int b = 0; b < LANE_ROWS; b += N) {
        int now = b / N % 2;
        if (b + N < LANE_ROWS) {
            inputs_take<N>(g, 0, c, b + N, gate[now ^ 1]);
            inputs_take<N>(g, 1, c, b + N, up[now ^ 1]);
        }
        batch_take<N>(c, b, d);
        if (b + N == LANE_ROWS) chunk_free(p_empty);
#pragma unroll
        for (int i = 0; i < N; i++) pack_dglu<ACT>(&d[i], gate[now][i], &up[now][i]);
        outputs_put<N>(g, 0, c, b, d);
        outputs_put<N>(g, 1, c, b, up[now]);
    }
}

/* A chunk is 32 columns of the gate and 32 of the other half: lane l has pack l%4 of both, of rows l/4 + 8i. */
template <Act ACT>
__device__ __forceinline__ void finish_glu(const OwnArgs &g, const Chunk &c, uint32_t p, uint64_t *p_full,
                                           int turn, uint64_t *p_empty)
{
    constexpr int N    = 4;
    int           lane = threadIdx.x % 32, row = lane / 4, col = c.col0 + lane % 4 * 8;
    ptx_mbar_wait(p_full, turn);
#pragma unroll
    for (int b = 0; b < 8; b += N) {
        uint4 gate[N], up[N], y[N];
#pragma unroll
        for (int i = 0; i < N; i++) {
            uint32_t at = p + (row + 8 * (b + i)) * TILE_ROW_BYTES;
            gate[i]     = smem_load(at + ((lane % 4) ^ row) * 16);
            up[i]       = smem_load(at + ((lane % 4 + 4) ^ row) * 16);
        }
        if (b + N == 8) chunk_free(p_empty);
#pragma unroll
        for (int i = 0; i < N; i++) y[i] = pack_glu<ACT>(gate[i], up[i]);
#pragma unroll
        for (int i = 0; i < N; i++) {
            int64_t line = c.row0 + row + 8 * (b + i);
            if (line >= g.rows || col >= g.cols) continue;
            ptx_store(g.out[0] + line * g.ld_out[0] + col, gate[i]);
            ptx_store(g.out[1] + line * g.ld_out[1] + col, up[i]);
            ptx_store(g.out[2] + line * g.ld_out[2] + col, y[i]);
        }
    }
}

/* Asks for the chunk's inputs as far as L2, two rows a lane. */
template <OwnKind KIND> __device__ __forceinline__ void prefetch(const OwnArgs &g, int row0, int col0)
{
    int row = row0 + threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < (KIND == OWN_DGLU ? 2 : 1) * 2; i++) {
        int y = row + i % 2 * 32;
        if (y < g.rows && col0 < g.cols) ptx_prefetch(g.in[i / 2] + (int64_t)y * g.ld_in[i / 2] + col0);
    }
}

/* The n-th tile's chunk of a warp: column chunk slot/2 of multiplier slot%2. */
__device__ __forceinline__ Chunk chunk_at(const OwnArgs &g, const Room &r, int n, int slot)
{
    int lane = threadIdx.x % 32, pair, tile_col;
    tile_at(g, n, &pair, &tile_col);
    int   slab = (pair * CLUSTER + ptx_cluster_rank()) * MULTIPLIERS + slot % MULTIPLIERS;
    int   col0 = tile_col * g.tile_cols + slot / MULTIPLIERS * (g.tile_cols / N_CHUNK);
    Chunk c    = { r.base + AT_P + slot * BUF_BYTES, slab * CHUNK_ROWS, col0, slab, 0, 0, 0 };
    c.p += lane / 8 * TILE_ROW_BYTES + ((lane % 8) ^ (lane / 8)) * 16;
    c.row = c.row0 + lane / 8;
    c.col = c.col0 + lane % 8 * 8;
    if (c.col < g.cols) c.rows = (g.rows - c.row + 3) / 4;
    return c;
}

/* Warp `slot` takes the same chunk of every tile. */
template <OwnKind KIND, Act ACT>
__device__ __forceinline__ void finish(const OwnArgs &g, const Room &r, int slot)
{
    int       n_tile = g.pairs * g.col_tiles, stride = gridDim.x / CLUSTER, turn = 0;
    uint64_t *full = &r.p_full[slot], *empty = &r.p_empty[slot];
    for (int n = blockIdx.x / CLUSTER; n < n_tile; n += stride, turn ^= 1) {
        Chunk c = chunk_at(g, r, n, slot);
        if (KIND != OWN_GLU && n + stride < n_tile) {
            Chunk next = chunk_at(g, r, n + stride, slot);
            prefetch<KIND>(g, next.row0, next.col0);
        }
        if (KIND == OWN_DACT) finish_slope<ACT>(g, c, full, turn, empty);
        if (KIND == OWN_DGLU) finish_dglu<ACT>(g, c, full, turn, empty);
        if (KIND == OWN_GLU) finish_glu<ACT>(g, c, r.base + AT_P + slot * BUF_BYTES, full, turn, empty);
    }
}

/* ---- the kernel ---------------------------------------------------------------------------------------- */

template <OwnKind KIND, Act ACT>
__global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1)
    own_gemm_kernel(const __grid_constant__ OwnMaps m, const __grid_constant__ OwnArgs g)
{
    extern __shared__ __align__(1024) char smem[];
    uint64_t                              *bars = reinterpret_cast<uint64_t *>(smem + AT_BARS);
    Room r  = { ptx_smem_addr(smem), bars, bars + STEPS, bars + 2 * STEPS, bars + 2 * STEPS + SLOTS };
    int  wg = threadIdx.x / WG_THREADS, warp = threadIdx.x / 32;
    if (threadIdx.x == 0) {
        for (int s = 0; s < STEPS; s++) {
            ptx_mbar_init(&r.full[s], 1);
            ptx_mbar_init(&r.empty[s], MULTIPLIERS * CLUSTER);
        }
        for (int s = 0; s < SLOTS; s++) {
            ptx_mbar_init(&r.p_full[s], WG_THREADS / 32);
            ptx_mbar_init(&r.p_empty[s], 1);
        }
        ptx_mbar_init_fence();
    }
    __syncthreads();
    ptx_cluster_sync();
    if (wg < MULTIPLIERS) {
        regs_grow<REGS_MULTIPLY>();
        multiply<KIND>(g, r, wg);
    } else {
        regs_shrink<REGS_OTHERS>();
        int other = warp - MULTIPLIERS * (WG_THREADS / 32);
        if (other < SLOTS) finish<KIND, ACT>(g, r, other);
        if (other == SLOTS && threadIdx.x % 32 == 0) load<KIND>(m, g, r);
    }
    __syncthreads();
    ptx_cluster_sync(); /* the other block may still signal this one's barriers */
}

/* ---- launching ----------------------------------------------------------------------------------------- */

TmaEncode own_gemm_encoder(void)
{
    void                           *f = NULL;
    cudaDriverEntryPointQueryResult got;
    cudaError_t                     e =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000, cudaEnableDefault, &got);
    return e == cudaSuccess && got == cudaDriverEntryPointSuccess ? (TmaEncode)f : NULL;
}

int64_t own_gemm_sum_rows(int64_t rows) { return ceil_div(rows, BM * CLUSTER) * CLUSTER * MULTIPLIERS; }

static int unaligned(const void *p, int64_t ld) { return (uintptr_t)p % 16 != 0 || ld % 8 != 0; }

const char *own_gemm_refuses(const OwnGemm *g)
{
    if (unaligned(g->a, g->lda) || unaligned(g->b, g->ldb) || unaligned(g->b2, 0))
        return "an operand is not aligned to 16 bytes";
    for (int i = 0; i < 3; i++) {
        if (unaligned(g->out[i], g->ld_out[i])) return "an output is not aligned to 16 bytes";
    }
    for (int i = 0; i < 2; i++) {
        if (unaligned(g->in[i], g->ld_in[i])) return "an input is not aligned to 16 bytes";
    }
    if (g->cols % 8 != 0 || g->k % 8 != 0) return "columns are no multiple of 8";
    if (g->rows > INT32_MAX / 2 || g->cols > INT32_MAX / 2 || g->k > INT32_MAX / 2) return "it is too large";
    return NULL;
}

/* A map of a row-major bf16 matrix, read in boxes of 64 columns. */
static int map_encode(TmaEncode encode, CUtensorMap *map, const void *p, int64_t rows, int64_t cols,
                      int64_t ld, unsigned box_rows)
{
    if (!p) return 0;
    cuuint64_t dim[2] = { (cuuint64_t)cols, (cuuint64_t)rows }, stride[1] = { (cuuint64_t)ld * 2 };
    cuuint32_t box[2] = { 64, box_rows }, one[2] = { 1, 1 };
    CUresult   r = encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, (void *)p, dim, stride, box, one,
                          CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                          CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return r == CUDA_SUCCESS ? 0 : err_set("cuTensorMapEncodeTiled: error %d", (int)r);
}

static int maps_encode(TmaEncode encode, const OwnGemm *g, OwnMaps *m)
{
    int     by_k   = g->kind != OWN_GLU;
    int64_t b_rows = by_k ? g->k : g->cols, b_cols = by_k ? g->cols : g->k;
    TRY(map_encode(encode, &m->a, g->a, g->rows, g->k, g->lda, BM));
    TRY(map_encode(encode, &m->b[0], g->b, b_rows, b_cols, g->ldb, BK / 2));
    return map_encode(encode, &m->b[1], g->b2, b_rows, b_cols, g->ldb, BK / 2);
}

/* As many clusters as fit at once: GPCs with an odd number of multiprocessors leave some out. */
template <OwnKind KIND, Act ACT>
static int launch_as(const OwnMaps *m, const OwnArgs *g, int n_sm, cudaStream_t stream)
{
    auto              *kernel = own_gemm_kernel<KIND, ACT>;
    cudaLaunchConfig_t cfg    = {};
    int                fit = 0, n_tile = g->pairs * g->col_tiles;
    CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM_BYTES));
    cfg.gridDim          = dim3((unsigned)(n_sm / CLUSTER * CLUSTER));
    cfg.blockDim         = dim3(THREADS);
    cfg.dynamicSmemBytes = SMEM_BYTES;
    cfg.stream           = stream;
    CUDA_TRY(cudaOccupancyMaxActiveClusters(&fit, kernel, &cfg));
    if (fit < 1) return err_set("own product: no cluster fits");
    cfg.gridDim = dim3((unsigned)(MIN(fit, n_tile) * CLUSTER));
    CUDA_TRY(cudaLaunchKernelEx(&cfg, kernel, *m, *g));
    return 0;
}

static int launch_kind(const OwnGemm *g, TmaEncode encode, int n_sm, cudaStream_t stream)
{
    OwnMaps m    = {};
    OwnArgs args = {};
    TRY(maps_encode(encode, g, &m));
    args.k_steps   = (int)ceil_div(g->k, BK);
    args.pairs     = (int)ceil_div(g->rows, BM * CLUSTER);
    args.tile_cols = g->kind == OWN_GLU ? BN / 2 : BN;
    args.col_tiles = (int)ceil_div(g->cols, args.tile_cols);
    args.rows      = (int)g->rows;
    args.cols      = (int)g->cols;
    args.sums      = g->sums;
    for (int i = 0; i < 3; i++) {
        args.out[i]    = (bf16 *)g->out[i];
        args.ld_out[i] = g->ld_out[i];
    }
    for (int i = 0; i < 2; i++) {
        args.in[i]    = (const bf16 *)g->in[i];
        args.ld_in[i] = g->ld_in[i];
    }
    switch (g->kind) {
    case OWN_DACT:
        return act_dispatch(g->act, "linear_act_bwd",
                            [&](auto act) { return launch_as<OWN_DACT, act()>(&m, &args, n_sm, stream); });
    case OWN_GLU:
        return act_dispatch(g->act, "linear_glu_fwd",
                            [&](auto act) { return launch_as<OWN_GLU, act()>(&m, &args, n_sm, stream); });
    case OWN_DGLU:
        return act_dispatch(g->act, "linear_glu_bwd",
                            [&](auto act) { return launch_as<OWN_DGLU, act()>(&m, &args, n_sm, stream); });
    default: return err_set("own product: no kind %d", (int)g->kind);
    }
}

int own_gemm_launch(const OwnGemm *g, TmaEncode encode, int n_sm, cudaStream_t stream)
{
    TRY(launch_kind(g, encode, n_sm, stream));
    if (!g->sums) return 0;
    ColDst to = { { g->db, NULL, NULL } };
    return colsum_finish_launch("linear_act_bwd", stream, g->sums, (int)own_gemm_sum_rows(g->rows), 1,
                                g->cols, to);
}
