/* Sums over rows, in two stages and a fixed order.
 *
 * Order    Rows are taken in batches of COLSUM_BATCH. `blocks` blocks have `chains` chains each; chain c of
 *          block b takes batches b + blocks*(c + chains*k), k = 0, 1, ... A batch's rows are added one after
 *          another, starting from 0, and the batch's sum is added to its chain; a block adds its chains in
 *          order into a partial row part[b][sum][cols]; colsum_finish adds those to dst, FINISH_WARPS
 *          interleaved chains added in order.
 * Grid     Stage 1: block (x, b) sums the columns of tile x, 32 packs wide; a warp is a chain. The next
 *          batch's row is loaded as soon as this one's has been used, so memory is never idle; a load follows
 *          the store before it, which in-place outputs need. Stage 2: 32 columns of one sum a block.
 * 1. ColPlan depends on rows, cols, dtype and multiprocessors only. BIAS_DW, ACT_BIAS_BWD, NORM_DW and
 *    NORM_BWD all follow it, because they must give the same bits.
 * 2. Rows past the end add +0, which changes no bit: sums start from +0, so they are never -0.
 * 3. At most COLSUM_BLOCKS partial rows: the bound that op_cost.c gives the workspace (dev/op_scratch.h). */
#ifndef DEV_CUDA_K_COLSUM_CUH
#define DEV_CUDA_K_COLSUM_CUH

#include "dev/cuda/k_common.cuh"
#include "dev/op_scratch.h"

enum { COLSUM_BATCH = 4, COLSUM_MAX_SUMS = 3 };
/* Teams are what NORM_BWD has room for on a multiprocessor: TEAM_WARPS warps, one for each tile of a row. */
enum { TEAM_WARPS = 16, TEAM_MAX = 8 };
enum { COLSUM_MAX_CHAINS = 2 * TEAM_MAX, FINISH_WARPS = 32 };

typedef struct {
    int tiles;  /* of 32 packs, across a row */
    int teams;  /* a block of NORM_BWD; 0: the row has too many tiles for one team */
    int chains; /* a block: two a team, so that 32 warps are busy where a warp is a chain */
    int blocks;
    int n_batch;
} ColPlan;

/* Where the sums go; NULL: not wanted. */
typedef struct {
    float *p[COLSUM_MAX_SUMS];
} ColDst;

/* Negative after err_set() when there are too many rows or columns to count in 32 bits. */
static inline int col_plan(Dev *dev, const char *op, int64_t rows, int64_t cols, int pack, ColPlan *plan)
{
    if (rows > INT32_MAX / 2 || cols > INT32_MAX / 2) {
        return err_set("%s: %lld x %lld is too large", op, (long long)rows, (long long)cols);
    }
    plan->tiles   = (int)ceil_div(cols, WARP * pack);
    plan->teams   = MIN(TEAM_WARPS / plan->tiles, (int)TEAM_MAX);
    plan->chains  = MAX(2 * plan->teams, 1);
    plan->n_batch = (int)ceil_div(rows, COLSUM_BATCH);
    plan->blocks  = MIN(MIN(cuda_sm_count(dev), (int)COLSUM_BLOCKS), plan->n_batch);
    return 0;
}

/* Adds a pack's worth of sums to a thread's own in shared memory: N/4 lines of float4, `line` apart. */
template <int N> __device__ __forceinline__ void acc_add(float4 *acc, int line, const float *sum)
{
#pragma unroll
    for (int h = 0; h < N / 4; h++) {
        float4 v      = acc[h * line];
        v.x           = __fadd_rn(v.x, sum[4 * h]);
        v.y           = __fadd_rn(v.y, sum[4 * h + 1]);
        v.z           = __fadd_rn(v.z, sum[4 * h + 2]);
        v.w           = __fadd_rn(v.w, sum[4 * h + 3]);
        acc[h * line] = v;
    }
}

/* Op: SUMS sums; BATCHES batches in flight; struct In; load(row, col, n) -> In, all zero for n <= 0;
 * add(In, row, col, n, float sum[SUMS][N]) adds the row's values and may store them where n > 0. Two blocks
 * of sixteen chains, or any other cut into at most 32 warps, fit a multiprocessor: at most 64 registers. */
template <typename T, typename Op>
__global__ void __launch_bounds__(COLSUM_MAX_CHAINS *WARP, 2)
    colsum_kernel(Op op, int rows, int n_batch, int cols, float *part)
{
    constexpr int            N = Pack<T>::N, S = Op::SUMS, B = Op::BATCHES, R = COLSUM_BATCH, TILE = WARP * N;
    extern __shared__ float4 tile[]; /* [chain][S][N/4][lane]: in registers the sums would leave no room */
    int             lane = threadIdx.x % WARP, chain = threadIdx.x / WARP, chains = blockDim.x / WARP;
    int             col0 = blockIdx.x * TILE, col = col0 + lane * N, n = cols - col;
    int             step = gridDim.y * chains, batch = blockIdx.y + gridDim.y * chain;
    float4         *acc = tile + chain * S * (TILE / 4);
    typename Op::In in[B][R];
#pragma unroll
    for (int i = 0; i < S * N / 4; i++) acc[i * WARP + lane] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (int u = 0; u < B * R; u++) {
        int row          = (batch + u / R * step) * R + u % R;
        in[u / R][u % R] = op.load(row, col, row < rows ? n : 0);
    }
    for (; batch < n_batch; batch += B * step) {
#pragma unroll
        for (int b = 0; b < B; b++) {
            float sum[S][N];
#pragma unroll
            for (int i = 0; i < S * N; i++) sum[i / N][i % N] = 0.0f;
#pragma unroll
            for (int u = 0; u < R; u++) {
                int row = (batch + b * step) * R + u, next = row + B * step * R;
                op.add(in[b][u], row, col, row < rows ? n : 0, sum);
                in[b][u] = op.load(next, col, next < rows ? n : 0);
            }
#pragma unroll
            for (int s = 0; s < S; s++) acc_add<N>(acc + s * (TILE / 4) + lane, WARP, sum[s]);
        }
    }
    __syncthreads();
    for (int e = threadIdx.x; e < S * TILE; e += blockDim.x) {
        int          s = e / TILE, c = e % TILE;
        const float *p =
            reinterpret_cast<const float *>(tile + s * (TILE / 4) + c % N / 4 * WARP + c / N) + c % 4;
        float sum = *p;
        for (int k = 1; k < chains; k++) sum = __fadd_rn(sum, p[k * S * TILE]);
        if (col0 + c < cols) part[((int64_t)blockIdx.y * S + s) * cols + col0 + c] = sum;
    }
}

/* Block (x, y): 32 columns of sum y. part[slab][gridDim.y][cols]. */
static __global__ void __launch_bounds__(FINISH_WARPS *WARP)
    colsum_finish(const float *part, int n_slab, int cols, ColDst to)
{
    __shared__ float chain[FINISH_WARPS][WARP];
    int              lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    int              col = blockIdx.x * WARP + lane, n_sum = gridDim.y;
    float           *dst = blockIdx.y == 0 ? to.p[0] : blockIdx.y == 1 ? to.p[1] : to.p[2];
    float            sum = 0.0f;
    if (!dst) return;
    if (col < cols) {
        const float *p = part + (int64_t)blockIdx.y * cols + col;
#pragma unroll 8
        for (int k = warp; k < n_slab; k += FINISH_WARPS) sum += p[(int64_t)k * n_sum * cols];
    }
    chain[warp][lane] = sum;
    __syncthreads();
    if (warp != 0 || col >= cols) return;
#pragma unroll
    for (int w = 1; w < FINISH_WARPS; w++) sum += chain[w][lane];
    dst[col] += sum;
}

static inline int colsum_finish_launch(const char *op, cudaStream_t stream, const float *part, int n_slab,
                                       int n_sum, int64_t cols, ColDst to)
{
    dim3 grid((unsigned)ceil_div(cols, WARP), (unsigned)n_sum);
    return k_launch(op, colsum_finish, grid, FINISH_WARPS * WARP, 0, stream, part, n_slab, (int)cols, to);
}

/* Both stages: to.p[s][c] += sums of op's value s. */
template <typename T, typename Op>
static int colsum_launch(Dev *dev, const char *name, const Op &op, int64_t rows, int64_t cols,
                         const Tensor *ws, ColDst to)
{
    constexpr int S = Op::SUMS, TILE = WARP * Pack<T>::N;
    ColPlan       plan = {};
    TRY(col_plan(dev, name, rows, cols, Pack<T>::N, &plan));
    TRY(k_need_ws(name, ws, (size_t)plan.blocks * S * (size_t)cols * sizeof(float)));
    float *part = t_data<float>(ws);
    dim3   grid((unsigned)plan.tiles, (unsigned)plan.blocks);
    size_t smem = (size_t)plan.chains * S * TILE * sizeof(float);
    TRY(k_launch(name, colsum_kernel<T, Op>, grid, plan.chains * WARP, smem, cuda_stream(dev), op, (int)rows,
                 plan.n_batch, (int)cols, part));
    return colsum_finish_launch(name, cuda_stream(dev), part, plan.blocks, S, cols, to);
}

/* Plain column sums: BIAS_DW, and NORM_BWD where it does not sum on the way. */
template <typename T, bool AL> struct BiasDwOp {
    static constexpr int SUMS = 1, BATCHES = 2;
    struct In {
        Pack<T> dy;
    };
    const T *dy;
    int      ld_dy;

    __device__ __forceinline__ In load(int row, int col, int n) const
    {
        In in;
        in.dy = vec_load<T, AL>(row_at(dy, row, ld_dy) + col, n);
        return in;
    }
    __device__ __forceinline__ void add(const In &in, int, int, int, float (&sum)[1][Pack<T>::N]) const
    {
        float f[Pack<T>::N];
        vec_unpack(in.dy, f);
#pragma unroll
        for (int i = 0; i < Pack<T>::N; i++) sum[0][i] = __fadd_rn(sum[0][i], f[i]);
    }
};

#endif
