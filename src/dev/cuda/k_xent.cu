/* Cross-entropy: XENT_FWD, XENT_DX and XENT (both, one read and one write of the logits). Soft targets and
 * hits: k_loss.cu.
 *
 * Maths    m = max x, s = sum exp(x - m) over classes < n_class;  lse = m + log s;  loss = lse - x[target];
 *          dx = (exp(x - lse) - [c = target])*inv[slot]*loss_scale. target -1: loss 0, dx 0. Padding
 *          classes: dx 0. Sums are kept in powers of two, y = x*log2(e): an exponential is then one
 *          multiply-add and one ex2.
 * Layout   logits, dlogits [N,V] with a row stride, maybe the same storage; loss, lse f32[N]; target i32[N].
 * Order    A row is cut into `parts` equal parts; the packs of a part go round robin to XENT_THREADS threads;
 *          each keeps a running (max, sum), brought up to date once per XENT_GROUP packs, or once per pack
 *          where fewer are left; threads, then parts, are merged in a fixed order. All three ops use this
 *          cut, whatever the alignment, so XENT gives the bits of XENT_FWD followed by XENT_DX.
 * Grid     XENT: persistent; a cluster of `parts` blocks holds a row in shared memory, one part a block.
 *          `parts` is the smallest power of two for which two blocks fit a multiprocessor. A part is cut into
 *          segments, one group of packs of every thread each, and the copy engine fetches the next row's as
 *          soon as every warp has read the last of this row's segment for its gradient: reading one row and
 *          writing the one before overlap without a second buffer. The blocks of a cluster send each other
 *          their part's (max, sum) and wait for nothing else.
 *          Where a row does not fit eight blocks, is not aligned to 16 bytes, or the device has no clusters:
 *          one block a row that reads it twice.
 * Units    An element costs two exponentials. At 1.4 GHz, where the power cap holds an H200 in a training
 *          step, they alone keep the special-function units busy for half of the time (counted in SASS). So
 *          no thread computes exponentials of packs outside the row. Work that can be done once a row is not
 *          done once an element: the gradient's scale is part of the exponent.
 * Bytes    XENT 2*V*size a row; XENT_FWD V*size; XENT_DX 2*V*size. XENT does not read rows with target -1. */
#include "dev/cuda/k_actmath.cuh"
#include "dev/cuda/k_xentmath.cuh"
#include "dev/op_math.h"

enum { XENT_THREADS = 512, XENT_WARPS = XENT_THREADS / WARP, XENT_MAX_PARTS = 8, XENT_GROUP = 4 };
/* 40 registers: three blocks of 75 KB, the parts of 151936 classes, run on a multiprocessor. */
enum { XENT_BLOCKS_PER_SM = 3 };
/* What XENT has at the head of a block's shared memory: three blocks of 151936 classes still fit a
 * multiprocessor. */
enum { XENT_HEAD_BYTES = 640, XENT_MAX_SEGMENTS = 8 };

/* Below every logit, and 2^(XENT_FLOOR - y) is 0 without being NaN. */
#define XENT_FLOOR (-1e30f)
#define LN2        0.6931471805599453f

template <typename T> struct XentP {
    float           *loss, *lse; /* lse: XENT_FWD writes, XENT_DX reads, XENT has none */
    T               *dlogits;
    const T         *logits;
    const int32_t   *target;
    const StepState *state;
    int64_t          ld_d, ld_x;
    int              rows, cols, n_class, slot;
    int              parts, part_cols; /* part_cols is a multiple of the pack */
};

/* What a block's threads share, and the other blocks write. Two of a kind are used by turns: a block that is
 * a row ahead does not disturb blocks that still read, and no block can be two rows ahead. */
struct XentShared {
    uint64_t full[XENT_MAX_SEGMENTS], empty[XENT_MAX_SEGMENTS]; /* by segment; empty counts warps */
    uint64_t met[2];                                            /* all parts' pairs are there */
    float2   warp[2][XENT_WARPS];
    float2   part[2][XENT_MAX_PARTS];
    float    target_dx;         /* the thread that wants it has no register to spare */
    float    scale, log2_scale; /* the gradient's; read from global memory, they would hold up every row */
};
static_assert(sizeof(XentShared) <= XENT_HEAD_BYTES, "the head is too small");

/* ---- Running pairs (max, sum of 2^(y - max)), max in powers of two ------------------------------------ */

/* Largest element of packs. */
template <int M> __device__ __forceinline__ float pack_top(const Pack<float> (&v)[M])
{
    float top = XENT_FLOOR;
#pragma unroll
    for (int k = 0; k < 4 * M; k++) top = fmaxf(top, __uint_as_float(pack_words(v[k / 4])[k % 4]));
    return top;
}
/* Two at a time. A NaN is passed over here and shows in the sum. */
template <int M> __device__ __forceinline__ float pack_top(const Pack<bf16> (&v)[M])
{
    __nv_bfloat162 top;
#pragma unroll
    for (int k = 0; k < 4 * M; k++) {
        uint32_t       w = pack_words(v[k / 4])[k % 4];
        __nv_bfloat162 h = *reinterpret_cast<__nv_bfloat162 *>(&w);
        top              = k ? __hmax2(top, h) : h;
    }
    return fmaxf(fmaxf(__low2float(top), __high2float(top)), XENT_FLOOR);
}

template <int M> __device__ __forceinline__ float pack_top(const Pack<__half> (&v)[M])
{
    __half2 top;
#pragma unroll
    for (int k = 0; k < 4 * M; k++) {
        uint32_t w = pack_words(v[k / 4])[k % 4];
        __half2  h = *reinterpret_cast<__half2 *>(&w);
        top        = k ? __hmax2(top, h) : h;
    }
    return fmaxf(fmaxf(__low2float(top), __high2float(top)), XENT_FLOOR);
}

/* Adds M packs to the running pair. */
template <typename T, int M> __device__ __forceinline__ void soft_add(float2 &a, const Pack<T> (&v)[M])
{
    constexpr int N   = Pack<T>::N;
    float         top = fmaxf(a.x, __fmul_rn(pack_top(v), LOG2E)), sum;
#pragma unroll
    for (int k = 0; k < M; k++) {
        float e[N];
        vec_unpack(v[k], e);
#pragma unroll
        for (int i = 0; i < N; i++) e[i] = ptx_ex2(fmaf(e[i], LOG2E, -top));
#pragma unroll
        for (int d = N / 2; d > 0; d /= 2) {
#pragma unroll
            for (int i = 0; i < d; i++) e[i] = __fadd_rn(e[i], e[i + d]);
        }
        sum = k ? __fadd_rn(sum, e[0]) : e[0];
    }
    a.y = fmaf(a.y, ptx_ex2(__fsub_rn(a.x, top)), sum);
    a.x = top;
}

/* Largest of a warp's maxima (no NaN is among them), in one instruction for integers: these are ordered as
 * the floats are. */
__device__ __forceinline__ float soft_top(float a)
{
    int i = __float_as_int(a);
    i     = __reduce_max_sync(FULL_WARP, i ^ (i >> 31 & INT32_MAX));
    return __int_as_float(i ^ (i >> 31 & INT32_MAX));
}

/* Merges the running pairs of `lanes` lanes (a power of two), where the others have the same once more; the
 * same bits in every lane. */
__device__ __forceinline__ float2 soft_lanes(float2 a, int lanes)
{
    float top = soft_top(a.x);
    float sum = __fmul_rn(a.y, ptx_ex2(__fsub_rn(a.x, top)));
    for (int d = lanes / 2; d > 0; d /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(FULL_WARP, sum, d));
    return make_float2(top, sum);
}

/* Merges the block's, of XENT_THREADS threads, in every warp that `wants` it. One barrier; the block needs
 * another before the slots are used again. */
__device__ __forceinline__ float2 soft_block(float2 a, float2 *slot, bool wants)
{
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    a = soft_lanes(a, WARP);
    if (lane == 0) slot[warp] = a;
    ptx_bar_sync(1, XENT_THREADS);
    return wants ? soft_lanes(slot[lane % XENT_WARPS], XENT_WARPS) : a;
}

/* log sum exp of all that went into the pair */
__device__ __forceinline__ float soft_lse(float2 a) { return __fmul_rn(__fadd_rn(a.x, log2f(a.y)), LN2); }

/* The same of the parts, in shared memory: a lane for each. A thread that merged them all would take a
 * hundred instructions. */
__device__ __forceinline__ float soft_lse(const float2 *part, int parts)
{
    return soft_lse(soft_lanes(part[threadIdx.x & (parts - 1)], parts));
}

enum { FROM_GLOBAL, FROM_GLOBAL_ODD, FROM_SHARED };

template <typename T, int FROM> __device__ __forceinline__ Pack<T> xent_load(const T *p, int n)
{
    if (FROM == FROM_SHARED) return pack_load(p);
    return vec_load<T, FROM == FROM_GLOBAL>(p, n);
}

/* The bits of minus infinity. */
template <typename T> struct XentLow;
template <> struct XentLow<float> {
    static constexpr uint32_t BITS = 0xff800000u;
};
template <> struct XentLow<bf16> {
    static constexpr uint32_t BITS = 0xff80u;
};
template <> struct XentLow<__half> {
    static constexpr uint32_t BITS = 0xfc00u;
};

/* Elements from n on become minus infinity: they add 0. */
template <typename T> __device__ __forceinline__ void pack_cut(Pack<T> &v, int n)
{
    constexpr int N = Pack<T>::N;
#pragma unroll
    for (int i = 0; i < N; i++) {
        uint32_t  low = XentLow<T>::BITS, shift = i * sizeof(T) % 4 * 8;
        uint32_t  mask = sizeof(T) == 4 ? ~0u : 0xffffu << shift;
        uint32_t &w    = pack_words(v)[i * sizeof(T) / 4];
        if (i >= n) w = (w & ~mask) | low << shift;
    }
}

/* Running pair over this thread's packs of part [begin, end) of a row; x is where column `begin` lies.
 * ready(g) is called before group g of packs is read. */
template <typename T, int FROM, typename Ready>
__device__ __forceinline__ float2 soft_part(const T *x, int begin, int end, int n_class, Ready ready)
{
    constexpr int N = Pack<T>::N, STEP = XENT_THREADS * N;
    float2        a = make_float2(XENT_FLOOR, 0.0f);
    int           n = MIN(end, n_class) - begin, col = (int)threadIdx.x * N, g = 0;
    for (; col + (XENT_GROUP - 1) * STEP + N <= n; col += XENT_GROUP * STEP) {
        Pack<T> v[XENT_GROUP];
        ready(g++);
#pragma unroll
        for (int k = 0; k < XENT_GROUP; k++) v[k] = xent_load<T, FROM>(x + col + k * STEP, N);
        soft_add(a, v);
    }
    /* The rest, one pack at a time: a whole group would compute exponentials of columns that do not exist. Of
     * 151936 classes a thread has nine packs in a part, and one in four threads ten. */
    if (col < n) ready(g);
#pragma unroll 1
    for (; col < n; col += STEP) {
        Pack<T> u[1] = { xent_load<T, FROM>(x + col, n - col) };
        if (n - col < N) pack_cut(u[0], n - col);
        soft_add(a, u);
    }
    return a;
}

/* ---- Gradient --------------------------------------------------------------------------------------- */

/* What the gradient of every row needs. */
struct XentScale {
    float scale, log2; /* of the gradient; its logarithm to base 2 */
};

template <typename T> __device__ __forceinline__ XentScale xent_scale(const XentP<T> &p)
{
    float s = step_scale(p.state, p.slot);
    return { s, log2f(s) };
}

/* The gradient of one pack, of which the first n elements are classes, as if none were the target. */
template <typename T> __device__ __forceinline__ Pack<T> xent_pack_dx(const Pack<T> &x, int n, float shift)
{
    constexpr int N = Pack<T>::N;
    float         f[N];
    vec_unpack(x, f);
#pragma unroll
    for (int i = 0; i < N; i++) f[i] = ptx_ex2(fmaf(f[i], LOG2E, shift));
    if (n < N) {
#pragma unroll
        for (int i = 0; i < N; i++) f[i] = i < n ? f[i] : 0.0f;
    }
    return vec_pack<T>(f);
}

/* ---- One read, one write: the row in shared memory --------------------------------------------------- */

/* A block's part of every row that its cluster takes. */
template <typename T> struct XentPart {
    XentShared *shared;
    T          *buf;
    int         rank, begin, end; /* columns */
    int         first, stride;    /* rows */

    static constexpr int           SEGMENT = XENT_GROUP * XENT_THREADS * Pack<T>::N; /* columns */
    __device__ __forceinline__ int segments() const { return (end - begin + SEGMENT - 1) / SEGMENT; }
};

/* Asks the copy engine for segment g of the part of a row. One thread. */
template <typename T>
__device__ __forceinline__ void xent_fetch(const XentP<T> &p, const XentPart<T> &w, int row, int g)
{
    int      at = g * XentPart<T>::SEGMENT;
    uint32_t n  = (uint32_t)MIN((int)XentPart<T>::SEGMENT, w.end - w.begin - at) * (uint32_t)sizeof(T);
    ptx_fence_async();
    ptx_mbar_expect(&w.shared->full[g], n);
    ptx_bulk_load(w.buf + at, p.logits + (int64_t)row * p.ld_x + w.begin + at, n, &w.shared->full[g]);
}

/* The first row from `row` on that the cluster takes and that has a target. */
template <typename T>
__device__ __forceinline__ int xent_row_from(const XentP<T> &p, const XentPart<T> &w, int row)
{
    while (row < p.rows && p.target[row] < 0) row += w.stride;
    return row;
}

/* log sum exp of row n of those with a target, from every thread's running pair and every block's part. */
template <typename T>
__device__ __forceinline__ float xent_cluster_lse(float2 a, const XentPart<T> &w, uint32_t n, int parts)
{
    XentShared *s    = w.shared;
    int         turn = n & 1;
    if (parts == 1) return soft_lse(soft_block(a, s->warp[turn], true));
    if (threadIdx.x == 0) ptx_mbar_expect(&s->met[turn], (uint32_t)parts * sizeof(float2));
    a = soft_block(a, s->warp[turn], threadIdx.x < WARP); /* the warp that sends */
    if ((int)threadIdx.x < parts)
        ptx_cluster_send(&s->part[turn][w.rank], a, &s->met[turn], (int)threadIdx.x);
    ptx_mbar_wait_cluster(&s->met[turn], n >> 1 & 1);
    return soft_lse(s->part[turn], parts);
}

/* Writes the part's gradient from shared memory, as if the target were elsewhere; its first n_class columns
 * are classes. release(g) is called when this thread has read segment g, fetch(g) when it has written it: by
 * then the other warps have most likely read it, too, so no warp waits. soft_part has waited for what is all
 * classes. A thread holds two packs, not four: more would not fit 40 registers. */
template <typename T, typename Ready, typename Release, typename Fetch>
__device__ __forceinline__ void xent_part_dx(T *out, const XentPart<T> &w, int n_class, float shift,
                                             Ready ready, Release release, Fetch fetch)
{
    constexpr int N = Pack<T>::N, STEP = XENT_THREADS * N, SEGMENT = XentPart<T>::SEGMENT;
    const T      *buf = w.buf;
    int           n = w.end - w.begin, col = (int)threadIdx.x * N;
    int after = (((int)threadIdx.x | (WARP - 1)) + 1) * N; /* the warp's packs end here, and STEPs later */
    for (int g = 0; g < w.segments(); g++, col += SEGMENT) {
        if (g * SEGMENT + (XENT_GROUP - 1) * STEP + after <= n_class) {
#pragma unroll
            for (int k = 0; k < XENT_GROUP; k += 2) {
                Pack<T> v0 = pack_load(buf + col + k * STEP), v1 = pack_load(buf + col + (k + 1) * STEP);
                if (k + 2 == XENT_GROUP) release(g);
                pack_store(out + col + k * STEP, xent_pack_dx(v0, N, shift));
                pack_store(out + col + (k + 1) * STEP, xent_pack_dx(v1, N, shift));
            }
        } else {
            ready(g);
#pragma unroll 1
            for (int c = col; c < MIN(col + SEGMENT, n); c += STEP)
                pack_store(out + c, xent_pack_dx(pack_load(buf + c), n_class - c, shift));
            release(g);
        }
        fetch(g);
    }
}

/* No target: no gradient. */
template <typename T>
__device__ __forceinline__ void xent_zero_row(const XentP<T> &p, const XentPart<T> &w, int row)
{
    constexpr int N   = Pack<T>::N;
    T            *out = p.dlogits + (int64_t)row * p.ld_d + w.begin;
    if (threadIdx.x == 0 && w.rank == 0) p.loss[row] = 0.0f;
    for (int col = (int)threadIdx.x * N; col < w.end - w.begin; col += XENT_THREADS * N) {
        pack_store(out + col, pack_zero<T>());
    }
}

/* One row with a target, the n-th. next: the target of the row after it. The part of the next row with a
 * target, `ahead`, is fetched behind the gradient's back. */
template <typename T>
__device__ __forceinline__ void xent_part_row(const XentP<T> &p, const XentPart<T> &w, int row, int target,
                                              int next, uint32_t n)
{
    XentShared *s     = w.shared;
    int         ahead = row + w.stride;
    auto        ready = [&](int g) { ptx_mbar_wait(&s->full[g], n & 1); };
    auto        fetch = [&](int g) {
        if (threadIdx.x != 0 || ahead >= p.rows) return;
        ptx_mbar_wait(&s->empty[g], n & 1);
        xent_fetch(p, w, ahead, g);
    };
    auto release = [&](int g) {
        __syncwarp();
        if (threadIdx.x % WARP == 0) ptx_mbar_tell(&s->empty[g]);
    };
    float2 a   = soft_part<T, FROM_SHARED>(w.buf, w.begin, w.end, p.n_class, ready);
    float  lse = xent_cluster_lse(a, w, n, p.parts);
    T     *out = p.dlogits + (int64_t)row * p.ld_d + w.begin;
    int    hit = w.begin <= target && target < w.end ? target - w.begin : -1;
    bool own = hit >= 0 && hit / Pack<T>::N % XENT_THREADS == (int)threadIdx.x; /* writes the target's pack */
    if (own) {
        ready(hit / XentPart<T>::SEGMENT);
        float x      = to_f32(w.buf[hit]);
        s->target_dx = xent_hit_dx(x, lse, s->scale);
        p.loss[row]  = __fsub_rn(lse, x);
    }
    if (threadIdx.x == 0 && next < 0) ahead = xent_row_from(p, w, ahead);
    xent_part_dx(out, w, MIN(w.end, p.n_class) - w.begin, xent_shift(lse, s->log2_scale), ready, release,
                 fetch);
    if (own) out[hit] = from_f32<T>(s->target_dx);
}

template <typename T> __device__ __forceinline__ void xent_part_rows(const XentP<T> &p, const XentPart<T> &w)
{
    uint32_t n    = 0; /* rows with a target so far */
    int      next = w.first < p.rows ? p.target[w.first] : -1;
    if (threadIdx.x == 0) {
        int row = xent_row_from(p, w, w.first);
        for (int g = 0; g < w.segments() && row < p.rows; g++) xent_fetch(p, w, row, g);
    }
    for (int row = w.first; row < p.rows; row += w.stride) {
        int target = next;
        next       = row + w.stride < p.rows ? p.target[row + w.stride] : -1; /* long before it is needed */
        if (target < 0) {
            xent_zero_row(p, w, row);
            continue;
        }
        xent_part_row(p, w, row, target, next, n++);
    }
}

template <typename T>
__global__ void __launch_bounds__(XENT_THREADS, XENT_BLOCKS_PER_SM) xent_cluster_kernel(XentP<T> p)
{
    extern __shared__ __align__(1024) unsigned char smem[];

    XentShared *s     = reinterpret_cast<XentShared *>(smem);
    int         rank  = p.parts > 1 ? ptx_cluster_rank() : 0;
    int         begin = MIN(rank * p.part_cols, p.cols), end = MIN(begin + p.part_cols, p.cols);
    XentPart<T> w = { s,
                      reinterpret_cast<T *>(smem + XENT_HEAD_BYTES),
                      rank,
                      begin,
                      end,
                      (int)blockIdx.x / p.parts,
                      (int)gridDim.x / p.parts };
    if (threadIdx.x == 0) {
        for (int g = 0; g < XENT_MAX_SEGMENTS; g++) {
            ptx_mbar_init(&s->full[g], 1);
            ptx_mbar_init(&s->empty[g], XENT_WARPS);
        }
        for (int t = 0; t < 2; t++) ptx_mbar_init(&s->met[t], 1);
        ptx_mbar_init_fence();
        XentScale q   = xent_scale(p);
        s->scale      = q.scale;
        s->log2_scale = q.log2;
    }
    __syncthreads();
    if (p.parts > 1) ptx_cluster_sync(); /* no block sends to barriers that do not exist yet */
    xent_part_rows(p, w);
    if (p.parts > 1) ptx_cluster_sync(); /* no block leaves while others may send to it */
}

/* ---- Two reads: any shape, any device ---------------------------------------------------------------- */

/* Writes the row's gradient; a thread rewrites only elements that it alone reads. */
template <typename T, bool AL>
__device__ __forceinline__ void xent_row_dx(const XentP<T> &p, int64_t row, int target, float lse)
{
    constexpr int N     = Pack<T>::N;
    const T      *x     = p.logits + row * p.ld_x;
    T            *out   = p.dlogits + row * p.ld_d;
    XentScale     q     = xent_scale(p);
    float         shift = xent_shift(lse, q.log2);
    for (int col = (int)threadIdx.x * N; col < p.cols; col += XENT_THREADS * N) {
        int     n = p.cols - col, hit = target - col;
        Pack<T> v = pack_zero<T>();
        T       own;
        if (target >= 0) {
            Pack<T> in = vec_load<T, AL>(x + col, n);
            v          = xent_pack_dx(in, p.n_class - col, shift);
            if (hit >= 0 && hit < N)
                own = from_f32<T>(
                    xent_hit_dx(to_f32(x[target]), lse, q.scale)); /* before the store: it may be in place */
        }
        vec_store<T, AL>(out + col, v, n);
        if (target >= 0 && hit >= 0 && hit < N) out[target] = own;
    }
}

/* XENT_FWD, or XENT when dlogits is given. */
template <typename T, bool AL> __global__ void __launch_bounds__(XENT_THREADS, 2) xent_row_kernel(XentP<T> p)
{
    __shared__ float2 slot[2][XENT_WARPS], part[XENT_MAX_PARTS];
    for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
        const T *x      = p.logits + row * p.ld_x;
        int      target = p.target[row];
        for (int k = 0; k < p.parts; k++) {
            constexpr int FROM  = AL ? FROM_GLOBAL : FROM_GLOBAL_ODD;
            int           begin = MIN(k * p.part_cols, p.cols), end = MIN(begin + p.part_cols, p.cols);
            float2        a = soft_part<T, FROM>(x + begin, begin, end, p.n_class, [](int) {});
            a               = soft_block(a, slot[k & 1], true);
            if (threadIdx.x == 0) part[k] = a;
        }
        __syncthreads();
        float lse = soft_lse(part, p.parts);
        if (threadIdx.x == 0) {
            p.loss[row] = target >= 0 ? __fsub_rn(lse, to_f32(x[target])) : 0.0f;
            if (p.lse) p.lse[row] = lse;
        }
        __syncthreads(); /* the target's logit has been read, the pairs too */
        if (p.dlogits) xent_row_dx<T, AL>(p, row, target, lse);
    }
}

template <typename T, bool AL> __global__ void __launch_bounds__(XENT_THREADS) xent_dx_kernel(XentP<T> p)
{
    int64_t row = blockIdx.x;
    xent_row_dx<T, AL>(p, row, p.target[row], p.lse[row]);
}

/* ---- Host ------------------------------------------------------------------------------------------- */

/* Shared memory of a block that holds one of `parts` parts. */
static size_t xent_smem(int64_t part_cols, size_t size) { return XENT_HEAD_BYTES + (size_t)part_cols * size; }

/* Sets parts and part_cols, and *fits: the parts fit shared memory. Depends on width, dtype and device
 * only. */
template <typename T> static int xent_cut(const CudaDev *cu, XentP<T> *p, int *fits)
{
    constexpr int N = Pack<T>::N;
    int sm, own, most; /* bytes of a multiprocessor, what it keeps of each block's, a block may ask for */
    CUDA_TRY(cudaDeviceGetAttribute(&sm, cudaDevAttrMaxSharedMemoryPerMultiprocessor, cu->index));
    CUDA_TRY(cudaDeviceGetAttribute(&own, cudaDevAttrReservedSharedMemoryPerBlock, cu->index));
    CUDA_TRY(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, cu->index));
    for (p->parts = 1;; p->parts *= 2) {
        p->part_cols = (int)(ceil_div(ceil_div(p->cols, N), p->parts) * N);
        size_t smem  = xent_smem(p->part_cols, sizeof(T));
        *fits        = smem <= (size_t)(p->parts == XENT_MAX_PARTS ? most : MIN(sm / 2 - own, most));
        *fits        = *fits && p->part_cols <= XENT_MAX_SEGMENTS * XentPart<T>::SEGMENT;
        if (*fits || p->parts == XENT_MAX_PARTS) return 0;
    }
}

template <typename T> static int xent_cluster_launch(Dev *dev, const XentP<T> &p)
{
    auto   kernel = xent_cluster_kernel<T>;
    size_t smem   = xent_smem(p.part_cols, sizeof(T));
    CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem));
    CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                  cudaSharedmemCarveoutMaxShared));
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
    /* As many as run at once; for clusters that depends on how multiprocessors are grouped on this chip. */
    int n_cluster;
    if (p.parts > 1) {
        CUDA_TRY(cudaOccupancyMaxActiveClusters(&n_cluster, kernel, &cfg));
    } else {
        CUDA_TRY(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&n_cluster, kernel, XENT_THREADS, smem));
        n_cluster *= cuda_sm_count(dev);
    }
    n_cluster   = MIN(MAX(n_cluster, 1), p.rows);
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
    CHECK(tensor_rows(a->logits) <= INT32_MAX / 2, "rows of %s", a->logits->name);
    int aligned = cuda_packable(a->logits) && cuda_packable(a->dlogits);
    return k_dispatch_half(a->logits->dtype, op, [&](auto zero) {
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
        p.rows     = (int)tensor_rows(a->logits);
        p.cols     = (int)tensor_cols(a->logits);
        p.n_class  = (int)a->n_class;
        p.slot     = a->slot;
        int fits   = 0;
        TRY(xent_cut(cu, &p, &fits));
        if (fits && aligned && cu->capability >= 90 && p.loss && p.dlogits) {
            return xent_cluster_launch(dev, p);
        }
        return k_flag(aligned, [&](auto is_al) {
            constexpr bool AL = decltype(is_al)::value;
            if (!p.loss) {
                return k_launch(op, xent_dx_kernel<T, AL>, dim3((unsigned)p.rows), XENT_THREADS, 0,
                                cuda_stream(dev), p);
            }
            int grid = MIN(p.rows, cuda_sm_count(dev) * 8);
            return k_launch(op, xent_row_kernel<T, AL>, dim3((unsigned)grid), XENT_THREADS, 0,
                            cuda_stream(dev), p);
        });
    });
}

extern "C" int cuda_xent(Dev *dev, const Xent *a) { return xent_run(dev, "xent", a->loss, nullptr, a); }

extern "C" int cuda_xent_fwd(Dev *dev, const XentFwd *a)
{
    if (a->hits || a->target2 || a->smooth > 0) return cuda_xent_soft_fwd(dev, a);
    Xent x    = {};
    x.logits  = a->logits;
    x.target  = a->target;
    x.n_class = a->n_class;
    return xent_run(dev, "xent_fwd", a->loss, a->lse, &x);
}

extern "C" int cuda_xent_dx(Dev *dev, const XentDx *a)
{
    if (a->target2 || a->smooth > 0) return cuda_xent_soft_dx(dev, a);
    Xent x    = {};
    x.slot    = a->slot;
    x.dlogits = a->dlogits;
    x.logits  = a->logits;
    x.target  = a->target;
    x.state   = a->state;
    x.n_class = a->n_class;
    x.slot    = a->slot;
    return xent_run(dev, "xent_dx", nullptr, a->lse, &x);
}
