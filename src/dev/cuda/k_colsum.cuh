/* Sums over rows, in two stages and a fixed order.
 *
 * Stage 1  The rows are cut into slabs; block (x, y) sums columns [x*32 packs) of slab y into a partial row
 *          part[y][sum][cols]. Warp w of a block takes rows w, w + 8, ... of the slab, each thread one pack
 *          of columns; the eight warps are added in order. An Op loads a pack from each of its inputs, may
 *          store, and gives the values to be summed; loads of COLSUM_UNROLL rows are issued before the first
 *          store, which in-place outputs would otherwise forbid.
 * Stage 2  colsum_finish: dst[c] += sum over slabs of part[slab][c], eight interleaved chains added in order.
 * 1. The number of slabs depends on rows, cols, dtype and multiprocessors only, so every op that sums the
 *    same values gives the same bits.
 * 2. At most COLSUM_BLOCKS partial rows: the bound that op_cost.c gives the workspace. */
#ifndef DEV_CUDA_K_COLSUM_CUH
#define DEV_CUDA_K_COLSUM_CUH

#include "dev/cuda/k_common.cuh"

enum { COLSUM_BLOCKS = 264, COLSUM_THREADS = 256, COLSUM_WARPS = COLSUM_THREADS / WARP, COLSUM_UNROLL = 4 };
enum { COLSUM_BLOCKS_PER_SM = 4 };

/* Op: static constexpr int SUMS; struct In; load(row, col, n) -> In; apply(In, row, col, n, float
 * val[SUMS][N]). */
template <typename T, typename Op>
__global__ void __launch_bounds__(COLSUM_THREADS, COLSUM_BLOCKS_PER_SM)
    colsum_kernel(Op op, int64_t rows, int64_t slab_rows, int cols, float *part)
{
    constexpr int    N = Pack<T>::N, S = Op::SUMS, TILE = WARP * N;
    __shared__ float tile[COLSUM_WARPS][S][TILE]; /* per warp: its sums of the block's columns */
    int              lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    int              col0 = blockIdx.x * TILE, col = col0 + lane * N, n = cols - col;
    int64_t          begin = blockIdx.y * slab_rows, end = MIN(begin + slab_rows, rows);
    float            acc[S][N];
#pragma unroll
    for (int s = 0; s < S; s++) {
#pragma unroll
        for (int i = 0; i < N; i++) acc[s][i] = 0.0f;
    }
    for (int64_t r = begin + warp; r < end; r += COLSUM_WARPS * COLSUM_UNROLL) {
        typename Op::In in[COLSUM_UNROLL];
#pragma unroll
        for (int u = 0; u < COLSUM_UNROLL; u++) {
            int64_t row = r + u * COLSUM_WARPS;
            in[u]       = op.load(row < end ? row : r, col, n);
        }
#pragma unroll
        for (int u = 0; u < COLSUM_UNROLL; u++) {
            int64_t row = r + u * COLSUM_WARPS;
            if (row < end) {
                float val[S][N];
                op.apply(in[u], row, col, n, val);
#pragma unroll
                for (int s = 0; s < S; s++) {
#pragma unroll
                    for (int i = 0; i < N; i++) acc[s][i] = __fadd_rn(acc[s][i], val[s][i]);
                }
            }
        }
    }
#pragma unroll
    for (int s = 0; s < S; s++) {
#pragma unroll
        for (int i = 0; i < N; i++) tile[warp][s][lane * N + i] = acc[s][i];
    }
    __syncthreads();
    for (int e = threadIdx.x; e < S * TILE; e += COLSUM_THREADS) {
        int   s = e / TILE, c = e % TILE;
        float sum = tile[0][s][c];
        for (int w = 1; w < COLSUM_WARPS; w++) sum = __fadd_rn(sum, tile[w][s][c]);
        if (col0 + c < cols) part[((int64_t)blockIdx.y * S + s) * cols + col0 + c] = sum;
    }
}

/* Block (x, y): 32 columns of sum y. part[slab][gridDim.y][cols]; a NULL destination is left out. */
static __global__ void __launch_bounds__(COLSUM_THREADS)
    colsum_finish(const float *part, int n_slab, int cols, float *dst0, float *dst1)
{
    __shared__ float chain[COLSUM_WARPS][WARP];
    int              lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    int              col = blockIdx.x * WARP + lane, n_sum = gridDim.y;
    float           *dst = blockIdx.y ? dst1 : dst0;
    float            sum = 0.0f;
    if (col < cols) {
        const float *p = part + (int64_t)blockIdx.y * cols + col;
#pragma unroll 4
        for (int k = warp; k < n_slab; k += COLSUM_WARPS) sum += p[(int64_t)k * n_sum * cols];
    }
    chain[warp][lane] = sum;
    __syncthreads();
    if (warp != 0 || col >= cols || !dst) return;
    for (int w = 1; w < COLSUM_WARPS; w++) sum += chain[w][lane];
    dst[col] += sum;
}

static inline int colsum_finish_launch(const char *op, cudaStream_t stream, const float *part, int n_slab,
                                       int n_sum, int64_t cols, float *dst0, float *dst1)
{
    dim3 grid((unsigned)ceil_div(cols, WARP), (unsigned)n_sum);
    return k_launch(op, colsum_finish, grid, COLSUM_THREADS, 0, stream, part, n_slab, (int)cols, dst0, dst1);
}

/* Both stages: dst0[c] += sums of op's value 0, dst1[c] (if any) += those of value 1. */
template <typename T, typename Op>
static int colsum_launch(Dev *dev, const char *name, const Op &op, int64_t rows, int64_t cols,
                         const Tensor *ws, float *dst0, float *dst1)
{
    int64_t n_tile    = ceil_div(cols, WARP * Pack<T>::N);
    int64_t n_slab    = MAX((int64_t)cuda_sm_count(dev) * COLSUM_BLOCKS_PER_SM / n_tile, (int64_t)1);
    n_slab            = MIN(MIN(n_slab, (int64_t)COLSUM_BLOCKS), ceil_div(rows, COLSUM_WARPS));
    int64_t slab_rows = ceil_div(rows, n_slab);
    n_slab            = ceil_div(rows, slab_rows);
    TRY(k_need_ws(name, ws, (size_t)(n_slab * Op::SUMS * cols) * sizeof(float)));
    float *part = t_data<float>(ws);
    dim3   grid((unsigned)n_tile, (unsigned)n_slab);
    TRY(k_launch(name, colsum_kernel<T, Op>, grid, COLSUM_THREADS, 0, cuda_stream(dev), op, rows, slab_rows,
                 (int)cols, part));
    return colsum_finish_launch(name, cuda_stream(dev), part, (int)n_slab, Op::SUMS, cols, dst0, dst1);
}

#endif
