/* Muon: momentum, the start of Newton-Schulz, the update.
 *
 * Maths    MOMENTUM and MUON as in op.h. ORTHO begins with X = x/(ORTHO_MARGIN |x| + ORTHO_EPS); its products
 *          are in cuda_ortho.c.
 * Layout   batches [n,R,C] without gaps; the segment table says where a matrix lies in the flat ranges.
 * Order    |x|^2: ORTHO_PARTS ranges of a matrix, each summed by a block in double, then the parts in a
 *          butterfly. Both follow from the shape alone.
 * Grid     x: a chunk of the matrix (muon_chunk), or a part; y: the matrix.
 * Bytes    MOMENTUM 16 an element and one of x; MUON 8 and one of y, 2 more with the copy; the norm reads x
 *          twice and writes X once. */
#include "dev/cuda/k_common.cuh"
#include "dev/op_math.h"
#include "dev/op_scratch.h"

enum { MUON_THREADS = 256, MUON_TURNS = 4 };

/* Elements that a block does; a thread does a pack of T at a time. */
template <typename T> constexpr int muon_chunk() { return MUON_THREADS * MUON_TURNS * Pack<T>::N; }

/* N numbers of any type; those from n on are 0, or not stored. AL: they are all there, and aligned. */
template <int N, bool AL, typename S>
__device__ __forceinline__ void some_load(const S *p, int64_t n, float *f)
{
#pragma unroll
    for (int k = 0; k < N; k += Pack<S>::N) vec_unpack(vec_load<S, AL>(p + k, n - k), f + k);
}
template <int N, bool AL, typename S>
__device__ __forceinline__ void some_store(S *p, int64_t n, const float *f)
{
#pragma unroll
    for (int k = 0; k < N; k += Pack<S>::N) vec_store<S, AL>(p + k, vec_pack<S>(f + k), n - k);
}

/* ---- Momentum ---------------------------------------------------------------------------------------- */

struct MomentumP {
    float           *m, *g;
    const StepState *state;
    const Segment   *seg;
    int64_t          n; /* elements of a matrix */
    int              n_seg, nesterov;
    float            momentum;
};

template <typename T, bool AL>
__device__ __forceinline__ void momentum_pack(const MomentumP &p, T *x, int64_t begin, int64_t i, float clip)
{
    constexpr int N = Pack<T>::N;
    float         g[N], m[N], u[N], zero[N], rest = 1.0f - p.momentum;
    int64_t       n = p.n - i;
    some_load<N, AL>(p.g + begin + i, n, g);
    some_load<N, AL>(p.m + begin + i, n, m);
#pragma unroll
    for (int k = 0; k < N; k++) {
        float part = __fmul_rn(rest, __fmul_rn(g[k], clip));
        m[k]       = fmaf(p.momentum, m[k], part);
        u[k]       = p.nesterov ? fmaf(p.momentum, m[k], part) : m[k];
        zero[k]    = 0.0f;
    }
    some_store<N, AL>(p.m + begin + i, n, m);
    some_store<N, AL>(p.g + begin + i, n, zero);
    some_store<N, AL>(x + i, n, u);
}

/* No matrix, or a skipped step. */
template <typename T>
__device__ __forceinline__ void momentum_clear(const MomentumP &p, T *x, int64_t begin, int64_t i,
                                               int is_there)
{
    constexpr int N       = Pack<T>::N;
    float         zero[N] = { 0.0f };
    some_store<N, false>(x + i, p.n - i, zero);
    if (is_there) some_store<N, false>(p.g + begin + i, p.n - i, zero);
}

template <typename T, bool AL>
__global__ void __launch_bounds__(MUON_THREADS) momentum_kernel(MomentumP p, T *x)
{
    constexpr int N = Pack<T>::N;
    int           s = blockIdx.y, is_there = s < p.n_seg, skip = p.state->out.skip;
    int64_t       begin  = is_there ? p.seg[s].begin : 0;
    float         clip   = p.state->out.clip;
    bool          packed = AL && begin % N == 0;
    T            *out    = x + (int64_t)s * p.n;
    for (int turn = 0; turn < MUON_TURNS; turn++) {
        int64_t i = ((int64_t)blockIdx.x * MUON_TURNS + turn) * MUON_THREADS * N + (int)threadIdx.x * N;
        if (i >= p.n) break;
        if (!is_there || skip) {
            momentum_clear(p, out, begin, i, is_there);
        } else if (packed) {
            momentum_pack<T, AL>(p, out, begin, i, clip);
        } else {
            momentum_pack<T, false>(p, out, begin, i, clip);
        }
    }
}

static int is_aligned(const void *p, size_t n) { return (uintptr_t)p % n == 0; }

extern "C" int cuda_momentum(Dev *dev, const Momentum *a)
{
    const char *op = "momentum";
    TRY(k_need_dtype(op, a->m, DT_F32));
    TRY(k_need_dtype(op, a->grad, DT_F32));
    MomentumP p;
    p.m        = t_data<float>(a->m);
    p.g        = t_data<float>(a->grad);
    p.state    = t_data<StepState>(a->state);
    p.seg      = t_data<Segment>(a->seg);
    p.n        = a->x->dim[1] * a->x->dim[2];
    p.n_seg    = (int)(tensor_bytes(a->seg) / sizeof(Segment));
    p.nesterov = a->nesterov;
    p.momentum = a->momentum;
    int al     = p.n % 8 == 0 && is_aligned(p.m, 16) && is_aligned(p.g, 16) && is_aligned(a->x->data, 16);
    return k_dispatch(a->x->dtype, op, [&](auto zero) {
        using T = decltype(zero);
        dim3 grid((unsigned)ceil_div(p.n, muon_chunk<T>()), (unsigned)a->x->dim[0]);
        return k_flag(al, [&](auto is_al) {
            return k_launch(op, momentum_kernel<T, decltype(is_al)::value>, grid, MUON_THREADS, 0,
                            cuda_stream(dev), p, t_data<T>(a->x));
        });
    });
}

/* ---- Update ------------------------------------------------------------------------------------------ */

struct MuonP {
    float           *w;
    void            *copy; /* of type C, or NULL */
    const StepState *state;
    const Segment   *seg;
    int64_t          n;
    float            scale;
};

template <typename T, typename C, bool AL>
__device__ __forceinline__ void muon_pack(const MuonP &p, const T *y, const Segment &seg, int64_t i, float lr)
{
    constexpr int N = Pack<T>::N;
    float         w[N], u[N];
    int64_t       n = p.n - i, at = seg.begin + i;
    some_load<N, AL>(p.w + at, n, w);
    some_load<N, AL>(y + i, n, u);
#pragma unroll
    for (int k = 0; k < N; k++) w[k] = fmaf(-lr, fmaf(seg.decay, w[k], __fmul_rn(p.scale, u[k])), w[k]);
    some_store<N, AL>(p.w + at, n, w);
    if (!p.copy) return;
    if (N == Pack<C>::N) {
        some_store<Pack<C>::N, AL>((C *)p.copy + at, n, w);
    } else {
        for (int k = 0; k < N && k < n; k++) ((C *)p.copy)[at + k] = from_f32<C>(w[k]);
    }
}

template <typename T, typename C, bool AL>
__global__ void __launch_bounds__(MUON_THREADS) muon_kernel(MuonP p, const T *y)
{
    constexpr int N = Pack<T>::N;
    if (p.state->out.skip) return;
    Segment  seg    = p.seg[blockIdx.y];
    float    lr     = __fmul_rn(p.state->in.lr, seg.lr_mul);
    bool     packed = AL && seg.begin % N == 0;
    const T *from   = y + (int64_t)blockIdx.y * p.n;
    for (int turn = 0; turn < MUON_TURNS; turn++) {
        int64_t i = ((int64_t)blockIdx.x * MUON_TURNS + turn) * MUON_THREADS * N + (int)threadIdx.x * N;
        if (i >= p.n) break;
        if (packed) {
            muon_pack<T, C, AL>(p, from, seg, i, lr);
        } else {
            muon_pack<T, C, false>(p, from, seg, i, lr);
        }
    }
}

extern "C" int cuda_muon(Dev *dev, const Muon *a)
{
    const char *op = "muon";
    TRY(k_need_dtype(op, a->master, DT_F32));
    MuonP p;
    p.w            = t_data<float>(a->master);
    p.copy         = t_data<bf16>(a->copy);
    p.state        = t_data<StepState>(a->state);
    p.seg          = t_data<Segment>(a->seg);
    p.n            = a->y->dim[1] * a->y->dim[2];
    p.scale        = a->scale;
    unsigned n_seg = (unsigned)(tensor_bytes(a->seg) / sizeof(Segment));
    int      al = p.n % 8 == 0 && is_aligned(p.w, 16) && is_aligned(p.copy, 16) && is_aligned(a->y->data, 16);
    return k_dispatch(a->y->dtype, op, [&](auto zero) {
        using T = decltype(zero);
        dim3 grid((unsigned)ceil_div(p.n, muon_chunk<T>()), n_seg);
        return k_flag(al, [&](auto is_al) {
            constexpr bool AL = decltype(is_al)::value;
            return k_dispatch_half(a->copy ? a->copy->dtype : DT_BF16, op, [&](auto c) {
                return k_launch(op, muon_kernel<T, decltype(c), AL>, grid, MUON_THREADS, 0, cuda_stream(dev),
                                p, (const T *)t_data<T>(a->y));
            });
        });
    });
}

/* ---- The start of Newton-Schulz ---------------------------------------------------------------------- */

/* Block (part, matrix): elements [part*len, (part+1)*len) of the matrix. */
template <typename T>
__global__ void __launch_bounds__(MUON_THREADS) ortho_sums(double *sums, const T *x, int64_t n, int64_t len)
{
    __shared__ double slot[MUON_THREADS / WARP];
    const T          *from  = x + (int64_t)blockIdx.y * n;
    int64_t           begin = (int64_t)blockIdx.x * len, end = MIN(begin + len, n);
    double            sum = 0.0;
    for (int64_t i = begin + threadIdx.x; i < end; i += MUON_THREADS) {
        double v = (double)to_f32(from[i]);
        sum += v * v;
    }
    sum = block_sum(sum, slot);
    if (threadIdx.x == 0) sums[(int64_t)blockIdx.y * ORTHO_PARTS + blockIdx.x] = sum;
}

template <typename T, bool AL>
__global__ void __launch_bounds__(MUON_THREADS) ortho_scale(T *X, const T *x, const double *sums, int64_t n)
{
    constexpr int     N = Pack<T>::N;
    __shared__ double slot[MUON_THREADS / WARP];
    __shared__ float  inv;
    double part = threadIdx.x < ORTHO_PARTS ? sums[(int64_t)blockIdx.y * ORTHO_PARTS + threadIdx.x] : 0.0;
    double sum  = block_sum(part, slot);
    if (threadIdx.x == 0) inv = 1.0f / (ORTHO_MARGIN * (float)sqrt(sum) + ORTHO_EPS);
    __syncthreads();
    const T *from = x + (int64_t)blockIdx.y * n;
    T       *to   = X + (int64_t)blockIdx.y * n;
    for (int turn = 0; turn < MUON_TURNS; turn++) {
        int64_t i = ((int64_t)blockIdx.x * MUON_TURNS + turn) * MUON_THREADS * N + (int)threadIdx.x * N;
        float   f[N];
        if (i >= n) break;
        some_load<N, AL>(from + i, n - i, f);
#pragma unroll
        for (int k = 0; k < N; k++) f[k] = __fmul_rn(f[k], inv);
        some_store<N, AL>(to + i, n - i, f);
    }
}

extern "C" int cuda_ortho_start(Dev *dev, void *X, const Tensor *x, double *sums)
{
    const char *op = "ortho";
    int64_t     n = x->dim[1] * x->dim[2], len = ceil_div(n, ORTHO_PARTS);
    dim3        parts(ORTHO_PARTS, (unsigned)x->dim[0]);
    int         al = n % 8 == 0 && is_aligned(x->data, 16) && is_aligned(X, 16);
    return k_dispatch(x->dtype, op, [&](auto zero) {
        using T = decltype(zero);
        dim3 grid((unsigned)ceil_div(n, muon_chunk<T>()), (unsigned)x->dim[0]);
        TRY(k_launch(op, ortho_sums<T>, parts, MUON_THREADS, 0, cuda_stream(dev), sums,
                     (const T *)t_data<T>(x), n, len));
        return k_flag(al, [&](auto is_al) {
            return k_launch(op, ortho_scale<T, decltype(is_al)::value>, grid, MUON_THREADS, 0,
                            cuda_stream(dev), (T *)X, (const T *)t_data<T>(x), (const double *)sums, n);
        });
    });
}
