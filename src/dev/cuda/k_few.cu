/* Products with few rows: what decoding does. LINEAR_FWD, LINEAR_ACT_FWD and LINEAR_GLU_FWD.
 *
 * Maths    y[m][n] = x[m] . w[n] + bias[n];  then act, or act(gate) * up for rows n and N + n of w. The sum
 *          is f32, rounded to storage before the activation, as the separate ops do.
 * Layout   x[M,K], w[N,K], y[M,N], rows of a stride each.
 * Grid     x: WARPS warps a block, ROWS rows of w a warp; y: TILE rows of x.
 * Bytes    w once, which is all that counts: for one row of x a product is as fast as its weights are read.
 *          A lane has ROWS * AHEAD = 8 packs of 16 bytes in flight, 4 KiB a warp. x stays in the L1 cache.
 * Order    a lane sums packs lane, lane + 32, ...; then a butterfly: fixed by K alone. */
#include "dev/cuda/cuda_few.h"

#include "dev/cuda/k_actmath.cuh"

enum { WARPS = 4, MOST_ROWS = 4 /* of x; more are the library's */ };

struct FewArgs {
    const void *x, *w, *bias;
    void       *y, *pre; /* pre: before the activation; NULL: not kept */
    int64_t     ld_x, ld_w, ld_y, ld_pre;
    int         M, N, K; /* N: columns of y */
    int         gated;   /* w has 2N rows: gates, then what they gate */
    int         act;     /* Act; -1: none */
    int         slope;   /* pre gets what the gradient multiplies by instead */
};

__device__ __forceinline__ float act_any(int act, float x)
{
    switch (act) {
    case ACT_GELU: return act_value<ACT_GELU>(x);
    case ACT_SILU: return act_value<ACT_SILU>(x);
    case ACT_RELU2: return act_value<ACT_RELU2>(x);
    case ACT_TANH: return act_value<ACT_TANH>(x);
    case ACT_SIGMOID: return act_value<ACT_SIGMOID>(x);
    case ACT_GELU_ERF: return act_value<ACT_GELU_ERF>(x);
    default: return act_value<ACT_RELU>(x);
    }
}

__device__ __forceinline__ float slope_any(int act, float x)
{
    switch (act) {
    case ACT_GELU: return act_slope<ACT_GELU>(x);
    case ACT_SILU: return act_slope<ACT_SILU>(x);
    case ACT_RELU2: return act_slope<ACT_RELU2>(x);
    case ACT_TANH: return act_slope<ACT_TANH>(x);
    case ACT_SIGMOID: return act_slope<ACT_SIGMOID>(x);
    case ACT_GELU_ERF: return act_slope<ACT_GELU_ERF>(x);
    default: return act_slope<ACT_RELU>(x);
    }
}

/* Row of w that slot r of a warp reads; first: the warp's first column of y. */
template <int ROWS> __device__ __forceinline__ int few_row(const FewArgs &a, int first, int r)
{
    if (!a.gated) return MIN(first + r, a.N - 1);
    return r < ROWS / 2 ? MIN(first + r, a.N - 1) : a.N + MIN(first + r - ROWS / 2, a.N - 1);
}

/* acc += x[m0 ..] . w rows, this lane's share. */
template <typename T, bool AL, int TILE, int ROWS>
__device__ __forceinline__ void few_sum(const FewArgs &a, float (&acc)[ROWS][TILE], const T *const (&w)[ROWS],
                                        const T *x, int lane)
{
    constexpr int N = Pack<T>::N, AHEAD = 8 / ROWS, STEP = WARP * N;
    for (int k0 = 0; k0 < a.K; k0 += STEP * AHEAD) {
        Pack<T> pw[AHEAD][ROWS];
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            int k = k0 + u * STEP + lane * N;
#pragma unroll
            for (int r = 0; r < ROWS; r++) pw[u][r] = vec_load<T, AL>(w[r] + k, a.K - k);
        }
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            int k = k0 + u * STEP + lane * N;
            if (k >= a.K) continue;
#pragma unroll
            for (int m = 0; m < TILE; m++) {
                float    fx[N], fw[N];
                const T *at = x + m * a.ld_x + k;
                Pack<T>  px = AL ? pack_load(at) : vec_load<T, false>(at, a.K - k);
                vec_unpack(px, fx);
#pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    vec_unpack(pw[u][r], fw);
#pragma unroll
                    for (int e = 0; e < N; e++) acc[r][m] = fmaf(fw[e], fx[e], acc[r][m]);
                }
            }
        }
    }
}

/* One number of y, from the sum of a row of w, or of a gate and what it gates. */
template <typename T>
__device__ __forceinline__ void few_put(const FewArgs &a, int m, int n, float sum, float up)
{
    T *y = (T *)a.y + m * a.ld_y, *pre = a.pre ? (T *)a.pre + m * a.ld_pre : nullptr;
    if (a.bias) sum = __fadd_rn(sum, to_f32(((const T *)a.bias)[n]));
    T     stored = from_f32<T>(sum), second = from_f32<T>(up);
    float gate = to_f32(stored), other = to_f32(second), value = a.act < 0 ? 0.0f : act_any(a.act, gate);
    if (pre && a.slope) {
        float slope = slope_any(a.act, gate);
        pre[n]      = from_f32<T>(a.gated ? __fmul_rn(slope, other) : slope);
        if (a.gated) pre[a.N + n] = from_f32<T>(value);
    } else if (pre) {
        pre[n] = stored;
        if (a.gated) pre[a.N + n] = second;
    }
    if (a.act < 0) {
        y[n] = stored;
    } else {
        y[n] = from_f32<T>(a.gated ? __fmul_rn(value, other) : value);
    }
}

template <typename T, bool AL, int TILE, int ROWS>
__global__ void __launch_bounds__(WARPS *WARP) few_kernel(const FewArgs a)
{
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    int wide = a.gated ? ROWS / 2 : ROWS, first = ((int)blockIdx.x * WARPS + warp) * wide;
    int m0 = (int)blockIdx.y * TILE;
    if (first >= a.N) return;
    const T *w[ROWS], *x = (const T *)a.x + m0 * a.ld_x;
    float    acc[ROWS][TILE];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        w[r] = (const T *)a.w + few_row<ROWS>(a, first, r) * a.ld_w;
#pragma unroll
        for (int m = 0; m < TILE; m++) acc[r][m] = 0.0f;
    }
    few_sum<T, AL, TILE, ROWS>(a, acc, w, x, lane);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
#pragma unroll
        for (int m = 0; m < TILE; m++) acc[r][m] = warp_sum(acc[r][m]);
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        if (r >= wide || first + r >= a.N) continue;
#pragma unroll
        for (int m = 0; m < TILE; m++) {
            if (lane == r * TILE + m)
                few_put<T>(a, m0 + m, first + r, acc[r][m], acc[(r + ROWS / 2) % ROWS][m]);
        }
    }
}

/* ---- launching ----------------------------------------------------------------------------------------- */

template <typename T, bool AL, int TILE, int ROWS> static int few_launch(Dev *dev, const FewArgs &a)
{
    int  wide = a.gated ? ROWS / 2 : ROWS;
    dim3 grid((unsigned)ceil_div(a.N, WARPS * wide), (unsigned)(a.M / TILE));
    return k_launch("linear", few_kernel<T, AL, TILE, ROWS>, grid, WARPS * WARP, 0, cuda_stream(dev), a);
}

/* Few outputs: a row of w a warp, so that more multiprocessors have work. */
template <typename T, bool AL, int TILE> static int few_rows(Dev *dev, const FewArgs &a)
{
    int64_t outputs = a.gated ? 2 * (int64_t)a.N : a.N, warps = 8 * (int64_t)cuda_sm_count(dev);
    if (outputs >= 4 * warps) return few_launch<T, AL, TILE, 4>(dev, a);
    if (outputs >= 2 * warps || a.gated) return few_launch<T, AL, TILE, 2>(dev, a);
    return few_launch<T, AL, TILE, 1>(dev, a);
}

static int few_run(Dev *dev, const FewArgs &a, DType dtype, int aligned)
{
    return k_dispatch(dtype, "linear", [&](auto zero) {
        using T = decltype(zero);
        return k_flag(aligned, [&](auto al) {
            constexpr bool AL = decltype(al)::value;
            if (a.M % 4 == 0) return few_rows<T, AL, 4>(dev, a);
            if (a.M % 2 == 0) return few_rows<T, AL, 2>(dev, a);
            return few_rows<T, AL, 1>(dev, a);
        });
    });
}

static int few_aligned(const Tensor *x, const Tensor *w) { return cuda_packable(x) && cuda_packable(w); }

static FewArgs few_args(const Tensor *y, const Tensor *x, const Tensor *w, const Tensor *bias)
{
    FewArgs a = {};
    a.x       = x->data;
    a.w       = w->data;
    a.bias    = bias ? bias->data : nullptr;
    a.y       = y->data;
    a.ld_x    = tensor_ld(x);
    a.ld_w    = tensor_ld(w);
    a.ld_y    = tensor_ld(y);
    a.M       = (int)tensor_rows(x);
    a.N       = (int)tensor_cols(y);
    a.K       = (int)tensor_cols(x);
    a.act     = -1;
    return a;
}

extern "C" int cuda_few_linear_fwd(Dev *dev, const LinearFwd *f)
{
    FewArgs a = few_args(f->y, f->x, f->w, f->bias);
    return few_run(dev, a, f->x->dtype, few_aligned(f->x, f->w));
}

extern "C" int cuda_few_linear_act_fwd(Dev *dev, const LinearActFwd *f)
{
    FewArgs a = few_args(f->y, f->x, f->w, f->bias);
    a.pre     = f->pre->data;
    a.ld_pre  = tensor_ld(f->pre);
    a.act     = f->act;
    a.slope   = f->slope;
    return few_run(dev, a, f->x->dtype, few_aligned(f->x, f->w));
}

extern "C" int cuda_few_linear_glu_fwd(Dev *dev, const LinearGluFwd *f)
{
    FewArgs a = few_args(f->y, f->x, f->w, nullptr);
    a.pre     = f->pre->data;
    a.ld_pre  = tensor_ld(f->pre);
    a.act     = f->act;
    a.slope   = f->slope;
    a.gated   = 1;
    return few_run(dev, a, f->x->dtype, few_aligned(f->x, f->w));
}

static int few_fits(const Tensor *x, const Tensor *w, const Tensor *y, const Tensor *bias)
{
    DType t = x->dtype;
    return (t == DT_F32 || t == DT_BF16) && w->dtype == t && y->dtype == t && (!bias || bias->dtype == t) &&
           tensor_rows(x) <= MOST_ROWS && few_aligned(x, w);
}

extern "C" int cuda_few_takes(OpKind kind, const OpArgs *args)
{
    const LinearFwd    *f = &args->linear_fwd;
    const LinearActFwd *a = &args->linear_act_fwd;
    const LinearGluFwd *g = &args->linear_glu_fwd;
    switch (kind) {
    case OP_LINEAR_FWD: return few_fits(f->x, f->w, f->y, f->bias);
    case OP_LINEAR_ACT_FWD: return few_fits(a->x, a->w, a->y, a->bias);
    case OP_LINEAR_GLU_FWD: return few_fits(g->x, g->w, g->y, nullptr);
    default: return 0;
    }
}

extern "C" int cuda_few_run(Dev *dev, OpKind kind, const OpArgs *args)
{
    if (kind == OP_LINEAR_FWD) return cuda_few_linear_fwd(dev, &args->linear_fwd);
    if (kind == OP_LINEAR_ACT_FWD) return cuda_few_linear_act_fwd(dev, &args->linear_act_fwd);
    return cuda_few_linear_glu_fwd(dev, &args->linear_glu_fwd);
}
