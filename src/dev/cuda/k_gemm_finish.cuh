/* The epilogue of the own product (k_gemm.cu): what happens to a tile after the sum.
 *
 * A multiplying warpgroup finishes its tile in three passes of 64 columns (a gate: 32 of each half; narrow
 * tiles: one or two), a pass in chunks of 64 rows. A chunk has a slot in shared memory. TMA brings the inputs
 * into the slot, the outputs replace the inputs, and TMA writes the outputs to memory.
 *
 * 1. The other warpgroup multiplies meanwhile, so only the time to finish a tile counts.
 * 2. Both warpgroups share one ring of slots, in the order of tiles. Only one warpgroup finishes at a time,
 *    as long as finishing takes less time than summing. So most inputs of a tile arrive while the tile is
 *    summed. The next inputs of a slot are requested as soon as its outputs have been read. Plain products,
 *    whose finishing is short, have slots of their own in each warpgroup.
 * 3. A tile is rounded first, to words of two columns: half the registers. A pass works on the first words
 *    and then moves the others down: one copy of the code for all passes.
 * 4. Rows and columns outside the matrices come as 0 and are not written: TMA knows the matrices' sizes. */
#ifndef DEV_CUDA_K_GEMM_FINISH_CUH
#define DEV_CUDA_K_GEMM_FINISH_CUH

#include "dev/cuda/k_gemm.h"
#include "dev/cuda/k_actmath.cuh"
#include "dev/cuda/k_wgmma.cuh"

enum { BM = 128, BN = 192, BK = 64, MULTIPLIERS = 2, CLUSTER = 2, HALVES = 2, N_ACC = BN / 2, RASTER = 16 };
enum { PASSES = 3, CHUNK_ROWS = 64, SLOTS_MAX = 8 };
enum {
    A_BYTES = BM * BK * 2,
    A_HALF  = A_BYTES / HALVES,
    B_BYTES = BN * BK * 2,
    B_PARTS = 6,
    PART    = B_BYTES / B_PARTS
};
enum { STEP_BYTES = A_BYTES + B_BYTES, SIDE_BYTES = 4 * 64 * 4 };

/* What a kind needs, and where it is in a block's shared memory: the ring's steps, the multipliers' slots,
 * and their sides (biases, column sums, or ones). Then the barriers: of full steps, of empty steps, of slots
 * with inputs, of slots whose outputs are gone, of the multipliers' turns, and of slots given to the
 * multipliers. */
template <OwnKind KIND> struct Form {
    static constexpr int PLAIN  = KIND == OWN_FWD || KIND == OWN_DX;
    static constexpr int GLU    = KIND == OWN_GLU || KIND == OWN_GLU_BOTH || KIND == OWN_GLU_ONLY;
    static constexpr int ACTS   = KIND == OWN_ACT || KIND == OWN_BOTH;
    static constexpr int DW     = KIND == OWN_DW;
    static constexpr int A_COLS = DW; /* columns operands */
    static constexpr int B_COLS = KIND != OWN_FWD && !ACTS && !GLU;
    static constexpr int BIAS   = KIND == OWN_FWD || ACTS;
    static constexpr int N_IN   = KIND == OWN_DACT ? 1 : KIND == OWN_DGLU ? 2 : 0;
    static constexpr int N_OUT  = KIND == OWN_GLU_ONLY ? 1 : GLU ? 3 : ACTS || KIND == OWN_DGLU ? 2 : 1;

    /* Memory for a fifth step, or for wide chunks and inputs on their way. */
    static constexpr int STEPS   = PLAIN || GLU ? 5 : 4;
    static constexpr int ROOM    = PLAIN || GLU ? 12288 : 32768; /* a multiplier's */
    static constexpr int COLS    = PLAIN || GLU || DW ? 32 : 64; /* of a chunk */
    static constexpr int ROW     = COLS * (DW ? 4 : 2);          /* bytes */
    static constexpr int BUF     = CHUNK_ROWS * ROW;
    static constexpr int SLOT    = N_OUT * BUF;
    static constexpr int SHARED  = !PLAIN && !DW; /* slots, by the multipliers */
    static constexpr int NARROWS = !SHARED;       /* at the matrix's edge */
    static constexpr int N_SLOT  = (SHARED ? MULTIPLIERS : 1) * ROOM / SLOT;
    static constexpr int PASS    = GLU ? 32 : 64;            /* output columns a pass */
    static constexpr int BLOCKS  = PASS / COLS;              /* chunks across a pass */
    static constexpr int CHUNKS  = PASSES * BLOCKS * HALVES; /* a tile */
    /* The other multiplier may be two rounds of the ring of slots behind, which a parity cannot tell from
     * none: it says when it is not. */
    static constexpr int HANDS_ON = SHARED && CHUNKS >= 2 * N_SLOT;

    static constexpr int AT_ROOM  = STEPS * STEP_BYTES;
    static constexpr int AT_SIDE  = AT_ROOM + MULTIPLIERS * ROOM;
    static constexpr int AT_FULL  = AT_SIDE + MULTIPLIERS * SIDE_BYTES;
    static constexpr int AT_EMPTY = AT_FULL + 8 * STEPS;
    static constexpr int AT_IN    = AT_EMPTY + 8 * STEPS;
    static constexpr int AT_GONE  = AT_IN + 8 * SLOTS_MAX;
    static constexpr int AT_TURN  = AT_GONE + 8 * SLOTS_MAX;
    static constexpr int AT_HAND  = AT_TURN + 8 * MULTIPLIERS;
    static constexpr int BYTES    = AT_HAND + 8 * MULTIPLIERS;
    static_assert(N_SLOT >= 2 && (!SHARED || N_SLOT <= SLOTS_MAX), "slots");
};

typedef struct {
    CUtensorMap a, b[2], in[2], out[3];
} OwnMaps;

typedef struct {
    int         k_steps;
    int         row_items, col_items; /* of a cluster: two tiles of rows, or of columns if by_cols */
    int         by_cols;              /* OWN_DW */
    int         slices, slice_steps;  /* OWN_DW: parts of k */
    int         cols, tile_cols;      /* tile_cols: columns of the output a tile has, BN or BN/2 */
    int         rows;
    const bf16 *bias;
    float      *sums, *row_sums; /* OWN_DACT's scratch; OWN_DW's db */
} OwnArgs;

/* The work that comes n-th: a tile of the output over steps k0 .. k1 of the sum. */
typedef struct {
    int row0, col0, k0, k1; /* row0: of this block */
    int width; /* columns that are multiplied: BN, or at the matrix's edge as many 64s as it has */
} Item;

/* RASTER items of rows share each one of columns before the next is taken; all tiles of a slice come before
 * the next. */
template <OwnKind KIND> __device__ __forceinline__ Item item_at(const OwnArgs &g, int n)
{
    int n_tile = g.row_items * g.col_items, slice = n / n_tile, rank = ptx_cluster_rank();
    n -= slice * n_tile;
    int group = n / (RASTER * g.col_items), first = group * RASTER, high = min(RASTER, g.row_items - first);
    int in = n - first * g.col_items, row = first + in % high, col = in / high, k0 = slice * g.slice_steps;
    if (Form<KIND>::DW && g.by_cols) {
        col = col * CLUSTER + rank;
    } else {
        row = row * CLUSTER + rank;
    }
    Item it        = { row * BM, col * g.tile_cols, k0, min(k0 + g.slice_steps, g.k_steps), BN };
    int  with_sums = g.row_sums && col == 0; /* they have one loop, of full width */
    if (Form<KIND>::NARROWS && !with_sums)
        it.width = max(64, min((int)BN, (g.cols - it.col0 + 63) / 64 * 64));
    return it;
}

__device__ __forceinline__ int item_count(const OwnArgs &g) { return g.row_items * g.col_items * g.slices; }
__device__ __forceinline__ int item_first() { return blockIdx.x / CLUSTER; }
__device__ __forceinline__ int item_stride() { return gridDim.x / CLUSTER; }

/* ---- slots --------------------------------------------------------------------------------------------- */

/* A multiplier's place among the slots. */
typedef struct {
    uint32_t smem; /* the block's shared memory */
    int      wg, t;
    uint32_t mine; /* where in a buffer this thread's part begins: lane_part(), lane_part_f32() */
    uint32_t q;    /* chunks before this one, in this multiplier's slots */
} Desk;

template <OwnKind KIND> __device__ __forceinline__ uint32_t desk_slot(const Desk &d, uint32_t slot)
{
    using F = Form<KIND>;
    return d.smem + F::AT_ROOM + (F::SHARED ? 0 : d.wg * F::ROOM) + slot * F::SLOT;
}
template <OwnKind KIND> __device__ __forceinline__ uint32_t desk_side(const Desk &d)
{
    return d.smem + Form<KIND>::AT_SIDE + d.wg * SIDE_BYTES;
}

/* A thread of its own sends for the inputs of every chunk of the block, in order. */
template <OwnKind KIND>
__device__ __forceinline__ void inputs_load(const OwnMaps &m, const OwnArgs &g, uint32_t smem)
{
    using F         = Form<KIND>;
    int      n_item = item_count(g);
    Desk     d      = { smem, 0, 0, 0, 0 };
    uint32_t q      = 0;
    for (int n = item_first(); n < n_item; n += item_stride()) {
        Item it = item_at<KIND>(g, n);
        for (int c = 0; c < F::CHUNKS; c++, q++) {
            uint32_t slot = q % F::N_SLOT, at = desk_slot<KIND>(d, slot), full = smem + F::AT_IN + 8 * slot;
            int      row = it.row0 + c % HALVES * CHUNK_ROWS, col = it.col0 + c / HALVES * F::COLS;
            bar_wait(smem + F::AT_GONE + 8 * slot, (q / F::N_SLOT & 1) ^ 1);
            bar_expect(full, F::N_IN * F::BUF);
#pragma unroll
            for (int i = 0; i < F::N_IN; i++) tma_load(at + i * F::BUF, &m.in[i], col, row, full);
        }
    }
}

/* The slot of the next chunk, with its inputs, or free to be written. The chunk before it in the slot may
 * belong to the other multiplier, with inputs still on their way. That chunk must be gone first, or the
 * parity would be that of its inputs. */
template <OwnKind KIND> __device__ __forceinline__ uint32_t slot_take(const Desk &d)
{
    using F       = Form<KIND>;
    uint32_t slot = d.q % F::N_SLOT;
    if (F::SHARED) {
        uint32_t round = d.q / F::N_SLOT & 1;
        bar_wait(d.smem + F::AT_GONE + 8 * slot, round ^ 1);
        if (F::N_IN) bar_wait(d.smem + F::AT_IN + 8 * slot, round);
    }
    return desk_slot<KIND>(d, slot);
}

/* Before a tile's first chunk: what the other multiplier had in its slot is gone. From then on that one is
 * less than two rounds behind. */
template <OwnKind KIND> __device__ __forceinline__ void slots_await(const Desk &d)
{
    using F = Form<KIND>;
    if (F::HANDS_ON)
        bar_wait(d.smem + F::AT_HAND + 8 * d.wg, (d.q / F::CHUNKS / MULTIPLIERS & 1) ^ (d.wg == 0));
}

/* Says that the outputs of chunk q have been read. */
template <OwnKind KIND> __device__ __forceinline__ void slot_free(const Desk &d, uint32_t q)
{
    bar_arrive(d.smem + Form<KIND>::AT_GONE + 8 * (q % Form<KIND>::N_SLOT));
}

/* Writes the chunk at (row, col) to memory. If the multiplier has slots of its own, the barrier also says
 * that the next chunk's slot is free. In the shared ring one thread frees the slot of the chunk before. At a
 * tile's end it frees this chunk's slot, too, because the other multiplier waits for the slot. */
template <OwnKind KIND>
__device__ __forceinline__ void slot_give(const OwnMaps &m, Desk &d, uint32_t at, int row, int col)
{
    using F = Form<KIND>;
    ptx_fence_async();
    if (!F::SHARED && d.t == 0) tma_store_wait_read<F::N_SLOT - 2>();
    ptx_bar_sync(1 + d.wg, WG_THREADS);
    if (d.t == 0) {
#pragma unroll
        for (int i = 0; i < F::N_OUT; i++) {
            if (F::DW) {
                tma_add(&m.out[i], col, row, at + i * F::BUF);
            } else {
                tma_store(&m.out[i], col, row, at + i * F::BUF);
            }
        }
        tma_store_commit();
        if (F::SHARED) {
            int c = (int)(d.q % F::CHUNKS);
            tma_store_wait_read<1>();
            if (c > 0) slot_free<KIND>(d, d.q - 1);
            if (F::HANDS_ON && c == F::CHUNKS - F::N_SLOT + 1)
                bar_arrive(d.smem + F::AT_HAND + 8 * (d.wg ^ 1));
            if (c == F::CHUNKS - 1) {
                tma_store_wait_read<0>();
                slot_free<KIND>(d, d.q);
            }
        }
    }
    d.q++;
}

/* lane_part() for this lane's first pair of f32; 8*b columns on is at that ^ 32*b. */
__device__ __forceinline__ uint32_t lane_part_f32(int t)
{
    int lane = t % 32, row = t / 32 * 16 + lane / 4;
    return row * 128 + ((lane % 4 / 2) ^ (lane / 4)) * 16 + lane % 2 * 8;
}

/* ---- words: a tile's sums, rounded, two neighbouring columns each -------------------------------------- */

enum { N_WORD = N_ACC / 2 }; /* a thread's, of a half */

/* This tile's biases into shared memory: well before they are needed. */
template <OwnKind KIND> __device__ __forceinline__ void bias_stage(const OwnArgs &g, const Desk &d, int col0)
{
    int c = col0 + 2 * d.t;
    if (d.t < BN / 2) {
        uint32_t v = g.bias && c < g.cols ? __ldg(reinterpret_cast<const uint32_t *>(g.bias + c)) : 0;
        smem_store_word(desk_side<KIND>(d) + 4 * d.t, v);
    }
}

template <int N>
__device__ __forceinline__ void words_round(uint32_t (&w)[HALVES][N], const float (&acc)[HALVES][2 * N])
{
#pragma unroll
    for (int i = 0; i < HALVES * N; i++)
        w[i / N][i % N] = bf16_pair(acc[i / N][i % N * 2], acc[i / N][i % N * 2 + 1]);
}

template <OwnKind KIND, int N>
__device__ __forceinline__ void words_round_bias(uint32_t (&w)[HALVES][N], const float (&acc)[HALVES][2 * N],
                                                 const Desk &d)
{
    ptx_bar_sync(1 + d.wg, WG_THREADS);
#pragma unroll
    for (int b = 0; b < N / 2; b++) {
        uint32_t bias = smem_load_word(desk_side<KIND>(d) + 16 * b + d.t % 4 * 4);
        float    lo = bf16_low(bias), hi = bf16_high(bias);
#pragma unroll
        for (int h = 0; h < HALVES; h++) {
            const float *a  = acc[h] + 4 * b;
            w[h][2 * b]     = bf16_pair(a[0] + lo, a[1] + hi);
            w[h][2 * b + 1] = bf16_pair(a[2] + lo, a[3] + hi);
        }
    }
}

/* ---- passes: each finishes the first words of both halves ---------------------------------------------- */

template <OwnKind KIND, Act ACT, int N_WORDS>
__device__ __forceinline__ void pass_forward(const OwnMaps &m, Desk &d, const uint32_t (&w)[HALVES][N_WORDS],
                                             int row, int col)
{
    using F         = Form<KIND>;
    constexpr int N = F::COLS / 4; /* words of a chunk */
#pragma unroll
    for (int c = 0; c < F::BLOCKS * HALVES; c++) {
        uint32_t        at = slot_take<KIND>(d), to = at + d.mine;
        const uint32_t *v = w[c % HALVES] + c / HALVES * N;
        uint32_t        first[N], y[N]; /* y: with an activation */
#pragma unroll
        for (int i = 0; i < N; i++) {
            first[i] = v[i];
            if constexpr (KIND == OWN_ACT)
                y[i] = bf16_pair(act_value<ACT>(bf16_low(v[i])), act_value<ACT>(bf16_high(v[i])));
            if constexpr (KIND == OWN_BOTH) {
                ActBoth lo = act_both<ACT>(bf16_low(v[i])), hi = act_both<ACT>(bf16_high(v[i]));
                first[i] = bf16_pair(lo.slope, hi.slope);
                y[i]     = bf16_pair(lo.value, hi.value);
            }
        }
#pragma unroll
        for (int p = 0; p < N / 4; p++) {
            smem_store_frags(to ^ 32 * p, first + 4 * p);
            if constexpr (F::ACTS) smem_store_frags((to ^ 32 * p) + F::BUF, y + 4 * p);
        }
        slot_give<KIND>(m, d, at, row + c % HALVES * CHUNK_ROWS, col + c / HALVES * F::COLS);
    }
}

/* Lanes apart by BIT have the same columns: each keeps N of its 2N sums, with the other's added. */
template <int N, int BIT> __device__ __forceinline__ void sums_halve(float (&s)[16])
{
    bool upper = threadIdx.x & BIT;
#pragma unroll
    for (int i = 0; i < N; i++) {
        float give = upper ? s[i] : s[i + N];
        s[i]       = (upper ? s[i + N] : s[i]) + __shfl_xor_sync(FULL_WARP, give, BIT);
    }
}

/* Adds the sums of the lanes with the same columns, and writes the warp's 64 in order. */
__device__ __forceinline__ void warp_sums(float (&s)[16], uint32_t to)
{
    int lane = threadIdx.x % 32;
    sums_halve<8, 16>(s);
    sums_halve<4, 8>(s);
    sums_halve<2, 4>(s);
    /* s[2b + e] was column 8b + 2*(lane%4) + e; bits 16, 8 and 4 of the lane chose b. */
    smem_store_pair(to + 32 * (lane / 16 * 4 + lane / 8 % 2 * 2 + lane / 4 % 2) + lane % 4 * 8, s[0], s[1]);
}

template <Act ACT>
__device__ __forceinline__ void pass_slope(const OwnMaps &m, const OwnArgs &g, Desk &d,
                                           const uint32_t (&w)[HALVES][N_WORD], int row, int col)
{
    uint32_t in = desk_side<OWN_DACT>(d);
    float    s[16];
#pragma unroll
    for (int i = 0; i < 16; i++) s[i] = 0.0f;
#pragma unroll
    for (int h = 0; h < HALVES; h++) {
        uint32_t at = slot_take<OWN_DACT>(d), to = at + d.mine, x[16], v[16];
#pragma unroll
        for (int p = 0; p < 4; p++) smem_load_frags(to ^ 32 * p, x + 4 * p);
#pragma unroll
        for (int i = 0; i < 16; i++) {
            v[i] = bf16_pair(__fmul_rn(bf16_low(w[h][i]), act_slope<ACT>(bf16_low(x[i]))),
                             __fmul_rn(bf16_high(w[h][i]), act_slope<ACT>(bf16_high(x[i]))));
            s[i / 2 * 2] += bf16_low(v[i]);
            s[i / 2 * 2 + 1] += bf16_high(v[i]);
        }
#pragma unroll
        for (int p = 0; p < 4; p++) smem_store_frags(to ^ 32 * p, v + 4 * p);
        if (h == 1 && g.sums) warp_sums(s, in + d.t / 32 * 256);
        slot_give<OWN_DACT>(m, d, at, row + h * CHUNK_ROWS, col);
    }
    if (g.sums && d.t < 64 && col + d.t < g.cols) {
        uint32_t at  = in + 4 * d.t;
        float    sum = (smem_load_float(at) + smem_load_float(at + 256)) +
                    (smem_load_float(at + 512) + smem_load_float(at + 768));
        g.sums[(int64_t)(row / BM) * g.cols + col + d.t] = sum;
    }
}

template <OwnKind KIND, Act ACT>
__device__ __forceinline__ void pass_glu(const OwnMaps &m, Desk &d, const uint32_t (&w)[HALVES][N_WORD],
                                         int row, int col)
{
    using F = Form<KIND>;
#pragma unroll
    for (int h = 0; h < HALVES; h++) {
        uint32_t        at = slot_take<KIND>(d), to = at + d.mine, first[8], second[8], y[8];
        const uint32_t *gate = w[h], *up = w[h] + N_WORD / 2;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            GluBoth lo = glu_both<ACT>(bf16_low(gate[i]), bf16_low(up[i])),
                    hi = glu_both<ACT>(bf16_high(gate[i]), bf16_high(up[i]));
            first[i]   = KIND == OWN_GLU ? gate[i] : bf16_pair(lo.slope, hi.slope);
            second[i]  = KIND == OWN_GLU ? up[i] : bf16_pair(lo.value, hi.value);
            y[i]       = bf16_pair(lo.y, hi.y);
        }
#pragma unroll
        for (int p = 0; p < 2; p++) {
            if constexpr (KIND != OWN_GLU_ONLY) {
                smem_store_frags(to ^ 32 * p, first + 4 * p);
                smem_store_frags((to ^ 32 * p) + F::BUF, second + 4 * p);
            }
            smem_store_frags((to ^ 32 * p) + (F::N_OUT - 1) * F::BUF, y + 4 * p);
        }
        slot_give<KIND>(m, d, at, row + h * CHUNK_ROWS, col);
    }
}

template <Act ACT>
__device__ __forceinline__ void pass_dglu(const OwnMaps &m, Desk &d, const uint32_t (&w)[HALVES][N_WORD],
                                          int row, int col)
{
    using F         = Form<OWN_DGLU>;
    constexpr int N = F::COLS / 4; /* words of a chunk */
#pragma unroll
    for (int c = 0; c < F::BLOCKS * HALVES; c++) {
        uint32_t        at = slot_take<OWN_DGLU>(d), to = at + d.mine, gate[N], up[N];
        const uint32_t *v = w[c % HALVES] + c / HALVES * N;
#pragma unroll
        for (int p = 0; p < N / 4; p++) {
            smem_load_frags(to ^ 32 * p, gate + 4 * p);
            smem_load_frags((to ^ 32 * p) + F::BUF, up + 4 * p);
        }
#pragma unroll
        for (int i = 0; i < N; i++) {
            GluGrad lo = glu_grad<ACT>(bf16_low(v[i]), bf16_low(gate[i]), bf16_low(up[i])),
                    hi = glu_grad<ACT>(bf16_high(v[i]), bf16_high(gate[i]), bf16_high(up[i]));
            gate[i]    = bf16_pair(lo.gate, hi.gate);
            up[i]      = bf16_pair(lo.up, hi.up);
        }
#pragma unroll
        for (int p = 0; p < N / 4; p++) {
            smem_store_frags(to ^ 32 * p, gate + 4 * p);
            smem_store_frags((to ^ 32 * p) + F::BUF, up + 4 * p);
        }
        slot_give<OWN_DGLU>(m, d, at, row + c % HALVES * CHUNK_ROWS, col + c / HALVES * F::COLS);
    }
}

template <int N>
__device__ __forceinline__ void pass_dw(const OwnMaps &m, Desk &d, const float (&acc)[HALVES][N], int row,
                                        int col)
{
    using F = Form<OWN_DW>;
#pragma unroll
    for (int c = 0; c < F::BLOCKS * HALVES; c++) {
        uint32_t     at = slot_take<OWN_DW>(d), to = at + d.mine;
        const float *v = acc[c % HALVES] + c / HALVES * 16;
#pragma unroll
        for (int b = 0; b < 4; b++) {
            smem_store_pair(to ^ 32 * b, v[4 * b], v[4 * b + 1]);
            smem_store_pair((to ^ 32 * b) + 8 * F::ROW, v[4 * b + 2], v[4 * b + 3]);
        }
        slot_give<OWN_DW>(m, d, at, row + c % HALVES * CHUNK_ROWS, col + c / HALVES * F::COLS);
    }
}

/* ---- a tile -------------------------------------------------------------------------------------------- */

/* Moves each half's values down by STEP, within spans of SPAN. */
template <int SPAN, int STEP, typename T, int N> __device__ __forceinline__ void move_down(T (&v)[HALVES][N])
{
#pragma unroll
    for (int i = 0; i < HALVES * N; i++) {
        if (i % N % SPAN < SPAN - STEP) v[i / N][i % N] = v[i / N][i % N + STEP];
    }
}

/* Of WIDTH columns. */
template <OwnKind KIND, Act ACT, int WIDTH>
__device__ __forceinline__ void tile_finish(const OwnMaps &m, const OwnArgs &g, Desk &d,
                                            float (&acc)[HALVES][WIDTH / 2], const Item &it)
{
    using F         = Form<KIND>;
    constexpr int N = WIDTH / 4, SPAN = F::GLU ? N / 2 : N,
                  STEP = F::GLU ? 8 : 16; /* words of an output; of a pass */
    int      col       = it.col0;
    uint32_t w[HALVES][N];
    if constexpr (F::BIAS) words_round_bias<KIND>(w, acc, d);
    if constexpr (!F::BIAS && !F::DW) words_round(w, acc);
#pragma unroll 1
    for (int pass = 0; pass < WIDTH / 64; pass++, col += F::PASS) {
        if constexpr (F::PLAIN || F::ACTS) pass_forward<KIND, ACT>(m, d, w, it.row0, col);
        if constexpr (KIND == OWN_DACT) pass_slope<ACT>(m, g, d, w, it.row0, col);
        if constexpr (F::GLU) pass_glu<KIND, ACT>(m, d, w, it.row0, col);
        if constexpr (KIND == OWN_DGLU) pass_dglu<ACT>(m, d, w, it.row0, col);
        if constexpr (F::DW) {
            pass_dw(m, d, acc, it.row0, col);
            move_down<WIDTH / 2, 32>(acc);
        } else {
            move_down<SPAN, STEP>(w);
        }
    }
}

#endif
