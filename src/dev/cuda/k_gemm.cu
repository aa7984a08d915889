/* The own matrix product: out = epilogue(a b).
 *
 * A cluster of two blocks computes 256 rows x 192 columns at a time, each block 128 rows. OWN_DW may take 128
 * rows x 384 columns instead, where this wastes less. At the matrix's right edge OWN_FWD, OWN_DX and OWN_DW
 * take only 64 or 128 columns if there are no more. With 192 columns everywhere, a fifteenth of the work
 * would be wasted for 896 columns, a ninth for 1024. The roles in a block:
 *   load       one thread keeps a ring of K steps of 64 full; each block of the pair loads half of what both
 *              need, b's tile or a's
 *   multiply   two warpgroups take turns: while one sums a tile in 192 registers a thread, the other finishes
 *              its own tile (k_gemm_finish.cuh)
 * Blocks are persistent: they walk over tiles in an order that keeps a and b in L2.
 *
 * 1. The tensor cores always have the steps of the next tile: the ring goes on beyond the end of a tile. The
 *    next warpgroup has finished its last tile by then, as long as finishing takes less time than summing.
 * 2. Rows and columns outside the matrices are read as 0 and not written.
 * 3. p is rounded to bf16 before the activation reads it, as if product and activation ran separately. The
 *    shape fixes the order of all sums, except for OWN_DW in several slices.
 * Bytes    a, b, inputs and outputs once each from and to memory (b and a from L2 for every tile). */
#include "dev/cuda/k_gemm_finish.cuh"

#include "dev/cuda/k_colsum.cuh"

enum { THREADS = (1 + MULTIPLIERS) * WG_THREADS, BOTH = (1 << CLUSTER) - 1 }; /* BOTH blocks of a cluster */
enum { REGS_MULTIPLY = 232, REGS_LOAD = 40 }; /* a thread; together all that a multiprocessor has */

/* A place in the ring of steps; round: parity of the rounds made. */
typedef struct {
    uint32_t step, round;
} Ring;

template <OwnKind KIND> __device__ __forceinline__ Ring ring_at(uint32_t pos)
{
    return { pos % Form<KIND>::STEPS, pos / Form<KIND>::STEPS & 1 };
}
template <OwnKind KIND> __device__ __forceinline__ void ring_next(Ring &r)
{
    r.step++;
    if (r.step == Form<KIND>::STEPS) r = { 0, r.round ^ 1 };
}

/* ---- load ---------------------------------------------------------------------------------------------- */

/* This block's half of b's tile, for both blocks, in parts of 32 rows; the first n_part of them. A columns
 * operand is three blocks of 64 columns and BK rows. Of a gate the tile is 96 rows of the first half of b and
 * 96 of the second. */
template <OwnKind KIND>
__device__ __forceinline__ void load_b(const OwnMaps &m, uint32_t b, int rank, int n_part, int col0, int k0,
                                       uint32_t bar)
{
    constexpr int MINE = B_PARTS / CLUSTER;
#pragma unroll
    for (int h = 0; h < MINE; h++) {
        int i = rank * MINE + h;
        if (i >= n_part) return;
        if (Form<KIND>::B_COLS) {
            tma_load_all(b + i * PART, &m.b[0], col0 + i / 2 * 64, k0 + i % 2 * (BK / 2), bar, BOTH);
        } else if (Form<KIND>::GLU) {
            tma_load_all(b + i * PART, &m.b[i / 3], k0, col0 + i % 3 * 32, bar, BOTH);
        } else {
            tma_load_all(b + i * PART, &m.b[0], k0, col0 + i * 32, bar, BOTH);
        }
    }
}

/* This block's own tile of a. */
template <OwnKind KIND>
__device__ __forceinline__ void load_a(const OwnMaps &m, uint32_t a, int row0, int k0, uint32_t bar)
{
    if constexpr (Form<KIND>::A_COLS) {
        for (int h = 0; h < HALVES; h++) tma_load(a + h * A_HALF, &m.a, row0 + h * 64, k0, bar);
    } else {
        tma_load(a, &m.a, k0, row0, bar);
    }
}

/* Where the blocks of a cluster have their rows in common (OwnArgs.by_cols): half of a's tile for both, and
 * this block's own of b. */
__device__ __forceinline__ void load_by_cols(const OwnMaps &m, uint32_t a, int rank, const Item &it, int k0,
                                             uint32_t bar)
{
    tma_load_all(a + rank * A_HALF, &m.a, it.row0 + rank * 64, k0, bar, BOTH);
    for (int i = 0; i < it.width / 32; i++)
        tma_load(a + A_BYTES + i * PART, &m.b[0], it.col0 + i / 2 * 64, k0 + i % 2 * (BK / 2), bar);
}

template <OwnKind KIND>
__device__ __forceinline__ void load(const OwnMaps &m, const OwnArgs &g, uint32_t smem)
{
    using F   = Form<KIND>;
    int  rank = ptx_cluster_rank(), n_item = item_count(g);
    Ring r = { 0, 0 };
    for (int n = item_first(); n < n_item; n += item_stride()) {
        Item it     = item_at<KIND>(g, n);
        int  n_part = it.width / 32;
        for (int k = it.k0; k < it.k1; k++, ring_next<KIND>(r)) {
            uint32_t a = smem + r.step * STEP_BYTES, bar = smem + F::AT_FULL + 8 * r.step;
            bar_wait(smem + F::AT_EMPTY + 8 * r.step, r.round ^ 1);
            bar_expect(bar, (uint32_t)(A_BYTES + n_part * PART));
            if (F::DW && g.by_cols) {
                load_by_cols(m, a, rank, it, k * BK, bar);
                continue;
            }
            load_a<KIND>(m, a, it.row0, k * BK, bar);
            load_b<KIND>(m, a + A_BYTES, rank, n_part, it.col0, k * BK, bar);
        }
    }
}

/* ---- multiply ------------------------------------------------------------------------------------------ */

/* A multiplying thread. Thread r of the warpgroup tells block r that a step has been read. */
typedef struct {
    uint32_t there; /* `empty` of that block, in the cluster's addresses */
    int      tells, wg;
    uint32_t n_item; /* multiplied so far */
} Multiplier;

/* One step of the ring: the first WIDTH columns of acc = its products, or += unless FIRST. SUMS: sum = a's
 * sums over k, by a product with ones. */
template <OwnKind KIND, int WIDTH, int SUMS, int FIRST>
__device__ __forceinline__ void step_multiply(float (&acc)[HALVES][WIDTH / 2], float (&sum)[HALVES][4],
                                              uint32_t smem, Ring r)
{
    using F          = Form<KIND>;
    constexpr int AC = F::A_COLS, BC = F::B_COLS;
    constexpr int A_STEP = AC ? WGMMA_STEP_COLS : WGMMA_STEP_ROWS,
                  B_STEP = BC ? WGMMA_STEP_COLS : WGMMA_STEP_ROWS;
    uint32_t at          = smem + r.step * STEP_BYTES;
    uint32_t a           = AC ? wgmma_low_cols(at, A_HALF) : wgmma_low_rows(at);
    uint32_t b    = BC ? wgmma_low_cols(at + A_BYTES, BK * TILE_ROW_BYTES) : wgmma_low_rows(at + A_BYTES);
    uint64_t ones = wgmma_desc(wgmma_low_rows(smem + F::AT_SIDE));
    bar_wait(smem + F::AT_FULL + 8 * r.step, r.round);
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < BK / 16; i++) {
#pragma unroll
        for (int h = 0; h < HALVES; h++) {
            uint64_t half  = wgmma_desc(a + h * (A_HALF >> 4) + i * A_STEP),
                     other = wgmma_desc(b + i * B_STEP);
            if (FIRST && i == 0) {
                wgmma_shared<AC, BC, 0>(acc[h], half, other);
                if constexpr (SUMS) wgmma_8<AC, 0>(sum[h], half, ones);
            } else {
                wgmma_shared<AC, BC, 1>(acc[h], half, other);
                if constexpr (SUMS) wgmma_8<AC, 1>(sum[h], half, ones);
            }
        }
    }
    wgmma_commit();
}

/* acc = the item's sum. pos: of its first step in the ring's count. A multiplier begins when the other
 * multiplier has seen all its steps full. A barrier's parity tells only whether it is in this phase or the
 * next, not how many rounds of the ring are still to come. */
template <OwnKind KIND, int WIDTH, int SUMS>
__device__ __forceinline__ void tile_multiply(float (&acc)[HALVES][WIDTH / 2], float (&sum)[HALVES][4],
                                              int n_step, uint32_t smem, Multiplier &me, uint32_t pos)
{
    Ring     r    = ring_at<KIND>(pos);
    uint32_t last = me.there + 8 * r.step; /* where the step before is told of */
    bar_wait(smem + Form<KIND>::AT_TURN + 8 * me.wg, (me.n_item++ & 1) ^ (me.wg == 0));
    step_multiply<KIND, WIDTH, SUMS, 1>(acc, sum, smem, r);
    for (int k = 1; k < n_step; k++) {
        ring_next<KIND>(r);
        step_multiply<KIND, WIDTH, SUMS, 0>(acc, sum, smem, r);
        wgmma_wait<1>(); /* the step before has been read */
        if (me.tells) cluster_arrive(last);
        last = me.there + 8 * r.step;
    }
    bar_arrive(smem + Form<KIND>::AT_TURN +
               8 * (me.wg ^ 1)); /* every thread: a slow warp must not miss its turn */
    wgmma_wait<0>();
#pragma unroll
    for (int h = 0; h < HALVES; h++) {
        wgmma_settle(acc[h]);
        if constexpr (SUMS) wgmma_settle(sum[h]);
    }
    if (me.tells) cluster_arrive(last);
}

/* Adds the rows' sums; all eight columns are the same. */
__device__ __forceinline__ void row_sums_add(const OwnArgs &g, const float (&sum)[HALVES][4], int row0, int t)
{
    int row = row0 + t / 32 * 16 + t % 32 / 4;
#pragma unroll
    for (int i = 0; i < 2 * HALVES; i++) {
        int r = row + i / 2 * 64 + i % 2 * 8;
        if (t % 4 == 0 && r < g.rows) atomicAdd(g.row_sums + r, sum[i / 2][i % 2 * 2]);
    }
}

/* An item of WIDTH columns from its first step to its stores: each width has registers of its own. */
template <OwnKind KIND, Act ACT, int WIDTH, int SUMS>
__device__ __forceinline__ void item_do(const OwnMaps &m, const OwnArgs &g, Desk &d, Multiplier &me,
                                        const Item &it, uint32_t pos)
{
    float acc[HALVES][WIDTH / 2], sum[HALVES][4]; /* the first product sets them */
    tile_multiply<KIND, WIDTH, SUMS>(acc, sum, it.k1 - it.k0, d.smem, me, pos);
    if constexpr (SUMS) row_sums_add(g, sum, it.row0, d.t);
    slots_await<KIND>(d);
    tile_finish<KIND, ACT, WIDTH>(m, g, d, acc, it);
}

/* Multiplier wg takes every second of the block's items. */
template <OwnKind KIND, Act ACT>
__device__ __forceinline__ void multiply(const OwnMaps &m, const OwnArgs &g, uint32_t smem, int wg)
{
    using F      = Form<KIND>;
    int        t = threadIdx.x % WG_THREADS, n_item = item_count(g), stride = item_stride(), n = item_first();
    Multiplier me  = { cluster_addr(smem + F::AT_EMPTY, t % CLUSTER), t < CLUSTER, wg, 0 };
    Desk       d   = { smem, wg, t, F::DW ? lane_part_f32(t) : lane_part<F::ROW>(t), 0 };
    uint32_t   pos = 0;
    for (int i = 0; n < n_item; n += stride, i++) {
        Item it = item_at<KIND>(g, n);
        if (i % MULTIPLIERS == wg) {
            if (F::BIAS) bias_stage<KIND>(g, d, it.col0);
            if (F::SHARED) d.q = (uint32_t)(i * F::CHUNKS);
            if (F::DW && g.row_sums && it.col0 == 0) {
                item_do<KIND, ACT, BN, F::DW>(m, g, d, me, it, pos);
            } else if (!F::NARROWS || it.width == BN) {
                item_do<KIND, ACT, BN, 0>(m, g, d, me, it, pos);
            } else if (it.width == 128) {
                item_do<KIND, ACT, F::NARROWS ? 128 : BN, 0>(m, g, d, me, it, pos);
            } else {
                item_do<KIND, ACT, F::NARROWS ? 64 : BN, 0>(m, g, d, me, it, pos);
            }
        }
        pos += it.k1 - it.k0;
    }
    if (t == 0) tma_store_wait();
}

/* ---- the kernel ---------------------------------------------------------------------------------------- */

template <OwnKind KIND, Act ACT>
__global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1)
    own_gemm_kernel(const __grid_constant__ OwnMaps m, const __grid_constant__ OwnArgs g)
{
    extern __shared__ __align__(1024) char shared[];
    uint32_t                               smem = ptx_smem_addr(shared);
    int wg = __shfl_sync(FULL_WARP, threadIdx.x / WG_THREADS, 0); /* known to be the same in a warp */
    if (threadIdx.x == 0) {
        for (int s = 0; s < Form<KIND>::STEPS; s++) {
            bar_init(smem + Form<KIND>::AT_FULL + 8 * s, 1);
            bar_init(smem + Form<KIND>::AT_EMPTY + 8 * s, CLUSTER);
        }
        for (int s = 0; s < SLOTS_MAX; s++) {
            bar_init(smem + Form<KIND>::AT_IN + 8 * s, 1);
            bar_init(smem + Form<KIND>::AT_GONE + 8 * s, 1);
        }
        for (int w = 0; w < MULTIPLIERS; w++) {
            bar_init(smem + Form<KIND>::AT_TURN + 8 * w, WG_THREADS);
            bar_init(smem + Form<KIND>::AT_HAND + 8 * w, 1);
        }
        ptx_mbar_init_fence();
    }
    if (Form<KIND>::DW && threadIdx.x < SWIZZLE_ATOM / 8) { /* ones, for the rows' sums */
        smem_store_pair(smem + Form<KIND>::AT_SIDE + 8 * threadIdx.x, __uint_as_float(0x3f803f80),
                        __uint_as_float(0x3f803f80));
        ptx_fence_async();
    }
    __syncthreads();
    ptx_cluster_sync();
    if (wg < MULTIPLIERS) {
        regs_grow<REGS_MULTIPLY>();
        multiply<KIND, ACT>(m, g, smem, wg);
    } else {
        regs_shrink<REGS_LOAD>();
        int warp = threadIdx.x / 32 - MULTIPLIERS * (WG_THREADS / 32);
        if (threadIdx.x % 32 == 0) {
            if (warp == 0) load<KIND>(m, g, smem);
            if (warp == 1 && Form<KIND>::N_IN) inputs_load<KIND>(m, g, smem);
        }
    }
    __syncthreads();
    ptx_cluster_sync(); /* the other block may still signal this one's barriers */
}

/* ---- launching ----------------------------------------------------------------------------------------- */

int64_t own_gemm_sum_rows(int64_t rows) { return ceil_div(rows, BM * CLUSTER) * CLUSTER; }

static int unaligned(const void *p, int64_t ld) { return (uintptr_t)p % 16 != 0 || ld % 8 != 0; }

const char *own_gemm_refuses(const OwnGemm *g)
{
    if (unaligned(g->a, g->lda) || unaligned(g->b, g->ldb) || unaligned(g->b2, 0) || unaligned(g->bias, 0))
        return "an operand is not aligned to 16 bytes";
    for (int i = 0; i < 3; i++) {
        if (unaligned(g->out[i], g->ld_out[i])) return "an output is not aligned to 16 bytes";
    }
    for (int i = 0; i < 2; i++) {
        if (unaligned(g->in[i], g->ld_in[i])) return "an input is not aligned to 16 bytes";
    }
    if (g->cols % 8 != 0 || (g->kind != OWN_DW && g->k % 8 != 0)) return "columns are no multiple of 8";
    if (g->rows > INT32_MAX / 2 || g->cols > INT32_MAX / 2 || g->k > INT32_MAX / 2) return "it is too large";
    return NULL;
}

template <OwnKind KIND> static int maps_encode(TmaEncode encode, const OwnGemm *g, OwnMaps *m)
{
    using F         = Form<KIND>;
    const auto BF16 = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    TmaBox     part = { BF16, 2, 64, BK / 2 }, a_box = { BF16, 2, 64, F::A_COLS ? BK : BM };
    TmaBox  chunk  = { F::DW ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32 : BF16, F::DW ? 4u : 2u, F::COLS, CHUNK_ROWS };
    int64_t b_rows = F::B_COLS ? g->k : g->cols, b_cols = F::B_COLS ? g->cols : g->k;
    TRY(tma_map(encode, &m->a, g->a, F::A_COLS ? g->k : g->rows, F::A_COLS ? g->rows : g->k, g->lda, a_box));
    TRY(tma_map(encode, &m->b[0], g->b, b_rows, b_cols, g->ldb, part));
    TRY(tma_map(encode, &m->b[1], g->b2, b_rows, b_cols, g->ldb, part));
    for (int i = 0; i < F::N_IN; i++)
        TRY(tma_map(encode, &m->in[i], g->in[i], g->rows, g->cols, g->ld_in[i], chunk));
    for (int i = 0; i < F::N_OUT; i++) {
        TRY(tma_map(encode, &m->out[i], g->out[i], g->rows, g->cols, g->ld_out[i], chunk));
    }
    return 0;
}

/* Slices of k so that all clusters are busy to the end: the fewest steps one after another, with a few for
 * the end of each. */
static int slices_for(int n_tile, int k_steps, int clusters)
{
    enum { MAX_SLICES = 32, LEAST_STEPS = 16, END_STEPS = 4 };
    int best = 1, best_cost = INT32_MAX;
    for (int s = 1; s <= MAX_SLICES && (s == 1 || k_steps / s >= LEAST_STEPS); s++) {
        int cost = (int)(ceil_div((int64_t)n_tile * s, clusters) * (ceil_div(k_steps, s) + END_STEPS));
        if (cost < best_cost) {
            best      = s;
            best_cost = cost;
        }
    }
    return best;
}

/* Columns multiplied by a cluster for all tiles: whether its two blocks better share columns or rows. Of 896
 * rows seven tiles are no pairs. */
static int by_cols_is_less(int64_t rows, int64_t cols)
{
    int64_t wide = CLUSTER * BN, edge = MIN((int64_t)BN, ceil_div(cols % wide, 64) * 64);
    return ceil_div(rows, BM) * (cols / wide * BN + edge) <
           ceil_div(rows, BM * CLUSTER) * ceil_div(cols, 64) * 64;
}

/* As many clusters as fit at once: GPCs with an odd number of multiprocessors leave some out. */
template <OwnKind KIND, Act ACT>
static int launch_as(const OwnGemm *g, TmaEncode encode, int n_sm, cudaStream_t stream)
{
    auto              *kernel = own_gemm_kernel<KIND, ACT>;
    cudaLaunchConfig_t cfg    = {};
    OwnMaps            m      = {};
    OwnArgs            a      = {};
    int                fit    = 0;
    TRY(maps_encode<KIND>(encode, g, &m));
    CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Form<KIND>::BYTES));
    cfg.gridDim          = dim3((unsigned)(n_sm / CLUSTER * CLUSTER));
    cfg.blockDim         = dim3(THREADS);
    cfg.dynamicSmemBytes = Form<KIND>::BYTES;
    cfg.stream           = stream;
    CUDA_TRY(cudaOccupancyMaxActiveClusters(&fit, kernel, &cfg));
    if (fit < 1) return err_set("own product: no cluster fits");
    a.k_steps     = (int)ceil_div(g->k, BK);
    a.by_cols     = KIND == OWN_DW && by_cols_is_less(g->rows, g->cols);
    a.row_items   = (int)ceil_div(g->rows, BM * (a.by_cols ? 1 : CLUSTER));
    a.tile_cols   = Form<KIND>::GLU ? BN / 2 : BN;
    a.col_items   = (int)ceil_div(g->cols, a.tile_cols * (a.by_cols ? CLUSTER : 1));
    a.slices      = KIND == OWN_DW && !g->fixed ? slices_for(a.row_items * a.col_items, a.k_steps, fit) : 1;
    a.slice_steps = (int)ceil_div(a.k_steps, a.slices);
    a.slices      = (int)ceil_div(a.k_steps, a.slice_steps);
    a.cols        = (int)g->cols;
    a.rows        = (int)g->rows;
    a.row_sums    = KIND == OWN_DW ? g->db : NULL;
    a.bias        = (const bf16 *)g->bias;
    a.sums        = g->sums;
    cfg.gridDim   = dim3((unsigned)(MIN(fit, a.row_items * a.col_items * a.slices) * CLUSTER));
    CUDA_TRY(cudaLaunchKernelEx(&cfg, kernel, m, a));
    return 0;
}

static int launch_kind(const OwnGemm *g, TmaEncode encode, int n_sm, cudaStream_t st)
{
#define LAUNCH_ACT(KIND, DISPATCH, NAME)                                                                     \
    case KIND:                                                                                               \
        return DISPATCH(g->act, NAME, [&](auto act) { return launch_as<KIND, act()>(g, encode, n_sm, st); })
#define LAUNCH(KIND)                                                                                         \
    case KIND: return launch_as<KIND, ACT_RELU>(g, encode, n_sm, st)
    switch (g->kind) {
        LAUNCH(OWN_FWD);
        LAUNCH(OWN_DX);
        LAUNCH(OWN_DW);
        LAUNCH_ACT(OWN_ACT, act_dispatch, "linear_act_fwd");
        LAUNCH_ACT(OWN_BOTH, act_dispatch, "linear_act_fwd");
        LAUNCH_ACT(OWN_DACT, slope_dispatch, "linear_act_bwd");
        LAUNCH_ACT(OWN_GLU, act_dispatch, "linear_glu_fwd");
        LAUNCH_ACT(OWN_GLU_BOTH, act_dispatch, "linear_glu_fwd");
        LAUNCH_ACT(OWN_GLU_ONLY, act_dispatch, "linear_glu_fwd");
        LAUNCH_ACT(OWN_DGLU, slope_dispatch, "linear_glu_bwd");
    default: return err_set("own product: no kind %d", (int)g->kind);
    }
}

int own_gemm_launch(const OwnGemm *g, TmaEncode encode, int n_sm, cudaStream_t stream)
{
    TRY(launch_kind(g, encode, n_sm, stream));
    if (g->kind != OWN_DACT || !g->db) return 0;
    ColDst to = { { g->db, NULL, NULL } };
    return colsum_finish_launch("linear_act_bwd", stream, g->sums, (int)own_gemm_sum_rows(g->rows), 1,
                                g->cols, to);
}
