/* How a row is spread over threads by the norm kernels.
 *
 * 1. A row belongs to a group of `warps` warps (a power of two). Thread t of the group holds packs t, t +
 *    32*warps, ...: `nv` of them, in registers. A block holds several groups.
 * 2. The plan depends on the width and the dtype only, so fused and separate kernels sum in the same order.
 * 3. group_sum2 may be called once per slot parity between two other calls: the barrier of the next call is
 *    what frees the slots of this one. */
#ifndef DEV_CUDA_K_ROWS_CUH
#define DEV_CUDA_K_ROWS_CUH

#include "dev/cuda/k_common.cuh"

typedef struct {
    int warps; /* per row */
    int nv;    /* packs a thread; 0: the row is too wide for registers */
} RowPlan;

static inline RowPlan row_plan(int64_t cols, int pack, int max_nv, int max_warps)
{
    int64_t n_pack = ceil_div(cols, pack);
    RowPlan p      = { 1, 0 };
    while (p.warps < max_warps && ceil_div(n_pack, (int64_t)WARP * p.warps) > max_nv) p.warps *= 2;
    int64_t nv = ceil_div(n_pack, (int64_t)WARP * p.warps);
    p.nv       = nv <= max_nv ? (int)nv : 0;
    return p;
}

/* Where a thread stands. */
struct RowThread {
    int warps; /* per row */
    int group; /* of the block */
    int n_group;
    int t;      /* within the group */
    int stride; /* threads of the group */
};

/* ONE: a row is one warp, known to the compiler: offsets become constants and the barrier disappears. */
template <bool ONE> __device__ __forceinline__ RowThread row_thread(int warps)
{
    RowThread r;
    if (ONE) warps = 1;
    r.warps   = warps;
    r.stride  = warps * WARP;
    r.group   = threadIdx.x / r.stride;
    r.n_group = blockDim.x / r.stride;
    r.t       = threadIdx.x % r.stride;
    return r;
}

/* Both sums over the group, the same bits in each of its threads. slot: one float2 per warp of the block. A
 * group of several warps has its own block: a named barrier would reserve all sixteen barriers of the block,
 * and fewer blocks would fit. */
__device__ __forceinline__ float2 group_sum2(float2 v, const RowThread &r, float2 *slot)
{
    v.x = warp_sum(v.x);
    v.y = warp_sum(v.y);
    if (r.warps == 1) return v;
    float2 *mine = slot + r.group * r.warps;
    if (r.t % WARP == 0) mine[r.t / WARP] = v;
    __syncthreads();
    v = mine[0];
    for (int w = 1; w < r.warps; w++) {
        v.x += mine[w].x;
        v.y += mine[w].y;
    }
    return v;
}

#endif
