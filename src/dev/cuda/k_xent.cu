/* Cross-entropy: XENT_FWD, XENT_DX and XENT (both, one read and one write of the logits).
 *
 * Maths    m = max x, s = sum exp(x - m) over classes < n_class;  lse = m + log s;  loss = lse - x[target];
 *          dx = (exp(x - lse) - [c = target])*inv_targets*loss_scale. target -1: loss 0, dx 0. Padding
 *          classes: dx 0.
 * Layout   logits, dlogits [N,V] with a row stride, maybe the same storage; loss, lse f32[N]; target i32[N].
 * Order    A row is cut into `parts` equal parts; the packs of a part go round robin to XENT_THREADS threads,
 *          each keeps a running (max, sum); threads, then parts, are merged in a fixed order. All three ops
 *          use this cut, whatever the alignment, so XENT gives the bits of XENT_FWD followed by XENT_DX.
 * Grid     XENT: persistent; a cluster of `parts` blocks holds a row in shared memory, one part a block, two
 *          rows deep: the copy engine fetches the next row while this one is reduced and its gradient is
 *          written. `parts` is the smallest power of two for which two parts fit. Where a row does not fit
 *          eight blocks, is not aligned to 16 bytes, or the device has no clusters: one block a row that
 *          reads it twice.
 * Bytes    XENT 2*V*size a row; XENT_FWD V*size; XENT_DX 2*V*size. XENT does not read rows with target -1. */
#include "dev/cuda/k_actmath.cuh"

enum { XENT_THREADS = 1024, XENT_WARPS = XENT_THREADS / WARP, XENT_MAX_PARTS = 8, XENT_DX_THREADS = 256 };
/* Head of the shared memory of a block: two barriers, warp slots and part slots by row parity. */
enum { XENT_HEAD_BYTES = 1024 };

/* Below every logit, and exp(XENT_FLOOR - x) is 0 without being NaN. */
#define XENT_FLOOR (-1e30f)

template <typename T> struct XentP {
    float           *loss, *lse; /* lse: XENT_FWD writes, XENT_DX reads, XENT has none */
    T               *dlogits;
    const T         *logits;
    const int32_t   *target;
    const StepState *state;
    int64_t          ld_d, ld_x, rows;
    int              cols, n_class;
    int              parts, part_cols; /* part_cols is a multiple of the pack */
};

/* What a part's threads share, by row parity. */
struct XentSlots {
    float2 warp[2][XENT_WARPS];
    float2 part[2];
};

__device__ __forceinline__ float xent_exp(float x) { return ptx_ex2(__fmul_rn(x, LOG2E)); }

/* Adds n values to the running max a.x and sum a.y = sum exp(x - max). */
template <int N> __device__ __forceinline__ void soft_add(float2 &a, const float *f, int n)
{
    float top = f[0], e[N];
    if (n <= 0) return;
#pragma unroll
    for (int i = 1; i < N; i++) top = i < n ? fmaxf(top, f[i]) : top;
    if (top > a.x) { /* rare after the first packs */
        a.y = __fmul_rn(a.y, xent_exp(__fsub_rn(a.x, top)));
        a.x = top;
    }
#pragma unroll
    for (int i = 0; i < N; i++) e[i] = i < n ? xent_exp(__fsub_rn(f[i], a.x)) : 0.0f;
#pragma unroll
    for (int d = N / 2; d > 0; d /= 2) {
#pragma unroll
        for (int i = 0; i < d; i++) e[i] = __fadd_rn(e[i], e[i + d]);
    }
    a.y = __fadd_rn(a.y, e[0]);
}

/* Merges the warp's running pairs; the same bits in every lane. */
__device__ __forceinline__ float2 soft_warp(float2 a)
{
    float top = warp_max(a.x);
    float sum = warp_sum(__fmul_rn(a.y, xent_exp(__fsub_rn(a.x, top))));
    return make_float2(top, sum);
}

/* Merges the block's. One barrier; the slots are free again after the next barrier of the same kind. */
__device__ __forceinline__ float2 soft_block(float2 a, float2 *slot)
{
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    a = soft_warp(a);
    if (lane == 0) slot[warp] = a;
    __syncthreads();
    return soft_warp(slot[lane]); /* XENT_WARPS = WARP */
}

/* log sum exp of the parts, merged in order. */
__device__ __forceinline__ float soft_lse(const float2 (&part)[XENT_MAX_PARTS], int parts)
{
    float top = part[0].x, sum = 0.0f;
#pragma unroll
    for (int k = 1; k < XENT_MAX_PARTS; k++) top = k < parts ? fmaxf(top, part[k].x) : top;
#pragma unroll
    for (int k = 0; k < XENT_MAX_PARTS; k++) {
        if (k < parts) sum = fmaf(part[k].y, xent_exp(__fsub_rn(part[k].x, top)), sum);
    }
    return __fadd_rn(top, logf(sum));
}

enum { FROM_GLOBAL, FROM_GLOBAL_ODD, FROM_SHARED };

template <typename T, int FROM> __device__ __forceinline__ Pack<T> xent_load(const T *p, int n)
{
    if (FROM == FROM_SHARED) return pack_load(p);
    return vec_load<T, FROM == FROM_GLOBAL>(p, n);
}

/* Running pair over this thread's packs of part [begin, end) of a row; x is where column `begin` lies. */
template <typename T, int FROM>
__device__ __forceinline__ float2 soft_part(const T *x, int begin, int end, int n_class)
{
    constexpr int N    = Pack<T>::N;
    float2        a    = make_float2(XENT_FLOOR, 0.0f);
    int           stop = MIN(end, n_class);
#pragma unroll 4
    for (int col = begin + (int)threadIdx.x * N; col < stop; col += XENT_THREADS * N) {
        float f[N];
        vec_unpack(xent_load<T, FROM>(x + (col - begin), stop - col), f);
        soft_add<N>(a, f, stop - col);
    }
    return a;
}

/* The gradient of one pack. */
template <typename T>
__device__ __forceinline__ Pack<T> xent_pack_dx(const Pack<T> &x, int col, int n_class, int target, float lse,
                                                float scale)
{
    constexpr int N = Pack<T>::N;
    float         f[N];
    vec_unpack(x, f);
#pragma unroll
    for (int i = 0; i < N; i++) f[i] = __fmul_rn(xent_exp(__fsub_rn(f[i], lse)), scale);
    if (col <= target && target < col + N) {
        float g[N];
        vec_unpack(x, g);
#pragma unroll
        for (int i = 0; i < N; i++) {
            if (col + i == target) f[i] = __fmul_rn(__fsub_rn(xent_exp(__fsub_rn(g[i], lse)), 1.0f), scale);
        }
    }
    if (col + N > n_class) {
#pragma unroll
        for (int i = 0; i < N; i++) f[i] = col + i < n_class ? f[i] : 0.0f;
    }
    return vec_pack<T>(f);
}

template <typename T> __device__ __forceinline__ float xent_scale(const XentP<T> &p)
{
    return __fmul_rn(p.state->in.inv_targets, p.state->in.loss_scale);
}

/* ---- One read, one write: the row in shared memory --------------------------------------------------- */

/* Asks the copy engine for this block's part of a row. One thread. */
template <typename T>
__device__ __forceinline__ void xent_fetch(const XentP<T> &p, int64_t row, int begin, int end, T *buf,
                                           uint64_t *bar)
{
    uint32_t n_bytes = (uint32_t)(end - begin) * (uint32_t)sizeof(T);
    ptx_fence_async();
    ptx_mbar_expect(bar, n_bytes);
    if (n_bytes) ptx_bulk_load(buf, p.logits + row * p.ld_x + begin, n_bytes, bar);
}

/* log sum exp of the row, from every block's part. */
__device__ __forceinline__ float xent_cluster_lse(float2 a, XentSlots *slots, int parity, int parts)
{
    float2 part[XENT_MAX_PARTS] = { a };
    if (parts > 1) {
        if (threadIdx.x == 0) slots->part[parity] = a;
        ptx_cluster_sync();
#pragma unroll
        for (int k = 0; k < XENT_MAX_PARTS; k++) {
            if (k < parts) part[k] = ptx_cluster_load(&slots->part[parity], k);
        }
    }
    return soft_lse(part, parts);
}

template <typename T> __global__ void __launch_bounds__(XENT_THREADS, 1) xent_cluster_kernel(XentP<T> p)
{
    extern __shared__ __align__(1024) unsigned char smem[];

    constexpr int N     = Pack<T>::N;
    uint64_t     *bar   = reinterpret_cast<uint64_t *>(smem);
    XentSlots    *slots = reinterpret_cast<XentSlots *>(smem + 64);
    T            *buf0  = reinterpret_cast<T *>(smem + XENT_HEAD_BYTES);
    int           rank = p.parts > 1 ? ptx_cluster_rank() : 0, n_cluster = gridDim.x / p.parts;
    int           begin = MIN(rank * p.part_cols, p.cols), end = MIN(begin + p.part_cols, p.cols);
    float         scale  = xent_scale(p);
    uint32_t      filled = 0; /* bit b: parity that the barrier of buffer b completes next */
    if (threadIdx.x == 0) {
        ptx_mbar_init(&bar[0], 1);
        ptx_mbar_init(&bar[1], 1);
        ptx_mbar_init_fence();
    }
    __syncthreads();
    int64_t row    = blockIdx.x / p.parts;
    int     target = row < p.rows ? p.target[row] : -1;
    if (threadIdx.x == 0 && target >= 0) xent_fetch(p, row, begin, end, buf0, &bar[0]);

    /* Slots turn with the rows that use them: between two uses of one slot lies a cluster barrier, which a
     * row without target does not have. */
    int turn = 0;
    for (int which = 0; row < p.rows; which ^= 1) {
        int64_t next        = row + n_cluster;
        int     next_target = next < p.rows ? p.target[next] : -1;
        T      *buf         = buf0 + (size_t)which * p.part_cols;
        if (threadIdx.x == 0 && next_target >= 0) {
            xent_fetch(p, next, begin, end, buf0 + (size_t)(which ^ 1) * p.part_cols, &bar[which ^ 1]);
        }
        T *out = p.dlogits + row * p.ld_d;
        if (target >= 0) {
            ptx_mbar_wait(&bar[which], filled >> which & 1);
            filled ^= 1u << which;
            float2 a   = soft_block(soft_part<T, FROM_SHARED>(buf, begin, end, p.n_class), slots->warp[turn]);
            float  lse = xent_cluster_lse(a, slots, turn, p.parts);
            turn ^= 1;
            if (threadIdx.x == 0 && begin <= target && target < end) {
                p.loss[row] = __fsub_rn(lse, to_f32(buf[target - begin]));
            }
            for (int col = begin + (int)threadIdx.x * N; col < end; col += XENT_THREADS * N) {
                Pack<T> x = xent_load<T, FROM_SHARED>(buf + (col - begin), N);
                pack_store(out + col, xent_pack_dx(x, col, p.n_class, target, lse, scale));
            }
        } else {
            if (threadIdx.x == 0 && rank == 0) p.loss[row] = 0.0f;
            for (int col = begin + (int)threadIdx.x * N; col < end; col += XENT_THREADS * N) {
                pack_store(out + col, pack_zero<T>());
            }
        }
        __syncthreads(); /* the buffer has been read; it is filled again in the next turn */
        row    = next;
        target = next_target;
    }
    if (p.parts > 1) ptx_cluster_sync(); /* nobody leaves while its slots may be read */
}

/* ---- Two reads: any shape, any device ---------------------------------------------------------------- */

/* Writes the row's gradient; a thread rewrites only elements that it alone reads. */
template <typename T, bool AL>
__device__ __forceinline__ void xent_row_dx(const XentP<T> &p, int64_t row, int target, float lse,
                                            float scale)
{
    constexpr int N   = Pack<T>::N;
    const T      *x   = p.logits + row * p.ld_x;
    T            *out = p.dlogits + row * p.ld_d;
    for (int col = (int)threadIdx.x * N; col < p.cols; col += blockDim.x * N) {
        int     n = p.cols - col;
        Pack<T> v = pack_zero<T>();
        if (target >= 0) v = xent_pack_dx(vec_load<T, AL>(x + col, n), col, p.n_class, target, lse, scale);
        vec_store<T, AL>(out + col, v, n);
    }
}

/* XENT_FWD, or XENT when dlogits is given. */
template <typename T, bool AL> __global__ void __launch_bounds__(XENT_THREADS, 1) xent_row_kernel(XentP<T> p)
{
    __shared__ XentSlots slots;
    for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
        const T *x      = p.logits + row * p.ld_x;
        int      target = p.target[row];
        float2   part[XENT_MAX_PARTS];
#pragma unroll
        for (int k = 0; k < XENT_MAX_PARTS; k++) {
            if (k < p.parts) {
                constexpr int FROM  = AL ? FROM_GLOBAL : FROM_GLOBAL_ODD;
                int           begin = MIN(k * p.part_cols, p.cols), end = MIN(begin + p.part_cols, p.cols);
                part[k] = soft_block(soft_part<T, FROM>(x + begin, begin, end, p.n_class), slots.warp[k & 1]);
            }
        }
        float lse = soft_lse(part, p.parts);
        if (threadIdx.x == 0) {
            p.loss[row] = target >= 0 ? __fsub_rn(lse, to_f32(x[target])) : 0.0f;
            if (p.lse) p.lse[row] = lse;
        }
        __syncthreads(); /* the target's logit has been read, the slots too */
        if (p.dlogits) xent_row_dx<T, AL>(p, row, target, lse, xent_scale(p));
    }
}

template <typename T, bool AL> __global__ void __launch_bounds__(XENT_DX_THREADS) xent_dx_kernel(XentP<T> p)
{
    int64_t row = blockIdx.x;
    xent_row_dx<T, AL>(p, row, p.target[row], p.lse[row], xent_scale(p));
}

/* ---- Host -------------------------------------------------------------------------------------------- */

/* Shared memory of a block that holds two of `parts` parts. */
static size_t xent_smem(int64_t part_cols, size_t size)
{
    return XENT_HEAD_BYTES + 2 * (size_t)part_cols * size;
}

/* Sets parts and part_cols, and *fits: the parts fit shared memory. Depends on width, dtype and device
 * only. */
template <typename T> static int xent_cut(const CudaDev *cu, XentP<T> *p, int *fits)
{
    constexpr int N = Pack<T>::N;
    int           most; /* bytes of shared memory that a block may ask for */
    CUDA_TRY(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, cu->index));
    for (p->parts = 1;; p->parts *= 2) {
        p->part_cols = (int)(ceil_div(ceil_div(p->cols, N), p->parts) * N);
        *fits        = xent_smem(p->part_cols, sizeof(T)) <= (size_t)most;
        if (*fits || p->parts == XENT_MAX_PARTS) return 0;
    }
}

template <typename T> static int xent_cluster_launch(Dev *dev, const XentP<T> &p)
{
    auto   kernel = xent_cluster_kernel<T>;
    size_t smem   = xent_smem(p.part_cols, sizeof(T));
    CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem));
    cudaLaunchAttribute attr = {};
    attr.id                  = cudaLaunchAttributeClusterDimension;
    attr.val.clusterDim.x    = (unsigned)p.parts;
    attr.val.clusterDim.y    = 1;
    attr.val.clusterDim.z    = 1;
    cudaLaunchConfig_t cfg   = {};
    cfg.gridDim              = dim3((unsigned)p.parts);
    cfg.blockDim             = dim3(XENT_THREADS);
    cfg.dynamicSmemBytes     = smem;
    cfg.stream               = cuda_stream(dev);
    cfg.attrs                = &attr;
    cfg.numAttrs             = 1;
    /* One block a multiprocessor; how many clusters fit depends on how multiprocessors are grouped on this
     * chip. */
    int n_cluster = cuda_sm_count(dev);
    if (p.parts > 1) CUDA_TRY(cudaOccupancyMaxActiveClusters(&n_cluster, kernel, &cfg));
    n_cluster   = (int)MIN((int64_t)MAX(n_cluster, 1), p.rows);
    cfg.gridDim = dim3((unsigned)(n_cluster * p.parts));
    CUDA_TRY(cudaLaunchKernelEx(&cfg, kernel, p));
    return 0;
}

/* XENT_FWD (dlogits NULL), XENT_DX (loss NULL) or XENT. */
static int xent_run(Dev *dev, const char *op, const Tensor *loss, const Tensor *lse, const Xent *a)
{
    const CudaDev *cu = (const CudaDev *)dev;
    TRY(k_need_dtype(op, a->target, DT_I32));
    TRY(k_need_dtype(op, a->dlogits, a->logits->dtype));
    int aligned = cuda_packable(a->logits) && cuda_packable(a->dlogits);
    return k_dispatch(a->logits->dtype, op, [&](auto zero) {
        using T    = decltype(zero);
        XentP<T> p = {};
        p.loss     = t_data<float>(loss);
        p.lse      = t_data<float>(lse);
        p.dlogits  = t_data<T>(a->dlogits);
        p.logits   = t_data<T>(a->logits);
        p.target   = t_data<int32_t>(a->target);
        p.state    = t_data<StepState>(a->state);
        p.ld_d     = t_ld(a->dlogits);
        p.ld_x     = t_ld(a->logits);
        p.rows     = tensor_rows(a->logits);
        p.cols     = (int)tensor_cols(a->logits);
        p.n_class  = (int)a->n_class;
        int fits   = 0;
        TRY(xent_cut(cu, &p, &fits));
        if (fits && aligned && cu->capability >= 90 && p.loss && p.dlogits) {
            return xent_cluster_launch(dev, p);
        }
        return k_flag(aligned, [&](auto is_al) {
            constexpr bool AL = decltype(is_al)::value;
            if (!p.loss) {
                return k_launch(op, xent_dx_kernel<T, AL>, dim3((unsigned)p.rows), XENT_DX_THREADS, 0,
                                cuda_stream(dev), p);
            }
            int64_t grid = MIN(p.rows, (int64_t)cuda_sm_count(dev) * 8);
            return k_launch(op, xent_row_kernel<T, AL>, dim3((unsigned)grid), XENT_THREADS, 0,
                            cuda_stream(dev), p);
        });
    });
}

extern "C" int cuda_xent(Dev *dev, const Xent *a) { return xent_run(dev, "xent", a->loss, nullptr, a); }

extern "C" int cuda_xent_fwd(Dev *dev, const XentFwd *a)
{
    Xent x    = {};
    x.logits  = a->logits;
    x.target  = a->target;
    x.n_class = a->n_class;
    return xent_run(dev, "xent_fwd", a->loss, a->lse, &x);
}

extern "C" int cuda_xent_dx(Dev *dev, const XentDx *a)
{
    Xent x    = {};
    x.dlogits = a->dlogits;
    x.logits  = a->logits;
    x.target  = a->target;
    x.state   = a->state;
    x.n_class = a->n_class;
    return xent_run(dev, "xent_dx", nullptr, a->lse, &x);
}
