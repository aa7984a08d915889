/* Norm, forward: NORM_FWD and ADD_NORM_FWD are one kernel with an optional second input.
 *
 * Maths    s = a (+ b, rounded to storage);  mean = sum s / C;  var = sum (s - mean)^2 / C;  rstd =
 *          1/sqrt(var + eps); y = (s - mean)*rstd*gamma + beta.  RMS: mean = 0, var = sum s^2 / C, no beta.
 * Layout   rows x cols with a row stride each; gamma, beta f32[C]; mean, rstd f32[N].
 * Grid     a warp a row, eight rows a block; wider rows one block each (k_rows.cuh). The row stays in
 *          registers between the passes: two passes in registers cost nothing beside memory and do not cancel
 *          as sum of squares minus square of sum would.
 *          Rows too wide for registers: one block a row, three passes over memory.
 * Bytes    2*C*size a row (read, write); with b 4*C*size. */
#include "dev/cuda/k_rows.cuh"

enum { NORM_MAX_NV = 4, NORM_THREADS = 256, NORM_MAX_THREADS = 512 };

template <typename T> struct NormFwdP {
    T           *y, *sum; /* sum: NULL without b */
    float       *mean, *rstd;
    const T     *a, *b;
    const float *gamma, *beta;
    int64_t      ld_y, ld_sum, ld_a, ld_b, rows;
    int          cols;
    float        eps;
};

/* a + b as ADD would store it. */
template <typename T> __device__ __forceinline__ Pack<T> pack_add(const Pack<T> &a, const Pack<T> &b)
{
    float fa[Pack<T>::N], fb[Pack<T>::N];
    vec_unpack(a, fa);
    vec_unpack(b, fb);
#pragma unroll
    for (int i = 0; i < Pack<T>::N; i++) fa[i] = __fadd_rn(fa[i], fb[i]);
    return vec_pack<T>(fa);
}

template <typename T> __device__ __forceinline__ float pack_sum(const Pack<T> &x)
{
    float f[Pack<T>::N], s = 0.0f;
    vec_unpack(x, f);
#pragma unroll
    for (int i = 0; i < Pack<T>::N; i++) s = __fadd_rn(s, f[i]);
    return s;
}

/* Sum of (x - mean)^2 over the n elements inside the row. */
template <typename T> __device__ __forceinline__ float pack_square(const Pack<T> &x, float mean, int n)
{
    float f[Pack<T>::N], s = 0.0f;
    vec_unpack(x, f);
#pragma unroll
    for (int i = 0; i < Pack<T>::N; i++) {
        float d = i < n ? __fsub_rn(f[i], mean) : 0.0f;
        s       = fmaf(d, d, s);
    }
    return s;
}

template <typename T, bool AL>
__device__ __forceinline__ void norm_apply(const NormFwdP<T> &p, int64_t row, int col, const Pack<T> &x,
                                           float mean, float rstd)
{
    constexpr int N = Pack<T>::N;
    int           n = p.cols - col;
    float         f[N], g[N], b[N];
    vec_unpack(x, f);
    table_load<N, AL>(p.gamma + col, n, g);
    if (p.beta) {
        table_load<N, AL>(p.beta + col, n, b);
#pragma unroll
        for (int i = 0; i < N; i++) f[i] = fmaf(__fmul_rn(__fsub_rn(f[i], mean), rstd), g[i], b[i]);
    } else {
#pragma unroll
        for (int i = 0; i < N; i++) f[i] = __fmul_rn(__fmul_rn(__fsub_rn(f[i], mean), rstd), g[i]);
    }
    vec_store<T, AL>(p.y + row * p.ld_y + col, vec_pack<T>(f), n);
}

template <typename T, int NV, bool AL, bool ONE>
__global__ void __launch_bounds__(NORM_MAX_THREADS) norm_fwd_kernel(NormFwdP<T> p, int warps)
{
    constexpr int     N = Pack<T>::N;
    __shared__ float2 slot[2][WARP];
    RowThread         r   = row_thread<ONE>(warps);
    int64_t           row = (int64_t)blockIdx.x * r.n_group + r.group;
    if (row >= p.rows) return; /* only where a row is one warp: no barrier follows */

    Pack<T> x[NV]; /* row[t + v*stride] */
#pragma unroll
    for (int v = 0; v < NV; v++) {
        int col = (r.t + v * r.stride) * N;
        x[v]    = vec_load<T, AL>(p.a + row * p.ld_a + col, p.cols - col);
    }
    if (p.b) {
        Pack<T> b[NV];
#pragma unroll
        for (int v = 0; v < NV; v++) {
            int col = (r.t + v * r.stride) * N;
            b[v]    = vec_load<T, AL>(p.b + row * p.ld_b + col, p.cols - col);
        }
#pragma unroll
        for (int v = 0; v < NV; v++) {
            int col = (r.t + v * r.stride) * N;
            x[v]    = pack_add(x[v], b[v]);
            vec_store<T, AL>(p.sum + row * p.ld_sum + col, x[v], p.cols - col);
        }
    }
    float mean = 0.0f;
    if (p.mean) {
        float s = 0.0f;
#pragma unroll
        for (int v = 0; v < NV; v++) s = __fadd_rn(s, pack_sum(x[v]));
        mean = group_sum2(make_float2(s, 0.0f), r, slot[0]).x / (float)p.cols;
    }
    float s = 0.0f;
#pragma unroll
    for (int v = 0; v < NV; v++) s = __fadd_rn(s, pack_square(x[v], mean, p.cols - (r.t + v * r.stride) * N));
    float var  = group_sum2(make_float2(s, 0.0f), r, slot[1]).x / (float)p.cols;
    float rstd = 1.0f / sqrtf(var + p.eps);
    if (r.t == 0) {
        if (p.mean) p.mean[row] = mean;
        p.rstd[row] = rstd;
    }
#pragma unroll
    for (int v = 0; v < NV; v++) norm_apply<T, AL>(p, row, (r.t + v * r.stride) * N, x[v], mean, rstd);
}

/* One block a row. Each thread rereads only values that it wrote itself, or that no thread writes. */
template <typename T, bool AL>
__global__ void __launch_bounds__(NORM_MAX_THREADS) norm_fwd_wide_kernel(NormFwdP<T> p)
{
    constexpr int     N = Pack<T>::N;
    __shared__ float2 slot[2][WARP];
    RowThread         r    = row_thread<false>(blockDim.x / WARP);
    int64_t           row  = blockIdx.x;
    int               step = r.stride * N;
    const T          *x    = p.b ? p.sum + row * p.ld_sum : p.a + row * p.ld_a;
    float             s = 0.0f, mean = 0.0f;
    if (p.b || p.mean) {
        for (int col = r.t * N; col < p.cols; col += step) {
            Pack<T> v = vec_load<T, AL>(p.a + row * p.ld_a + col, p.cols - col);
            if (p.b) {
                v = pack_add(v, vec_load<T, AL>(p.b + row * p.ld_b + col, p.cols - col));
                vec_store<T, AL>(p.sum + row * p.ld_sum + col, v, p.cols - col);
            }
            s = __fadd_rn(s, pack_sum(v));
        }
        if (p.mean) mean = group_sum2(make_float2(s, 0.0f), r, slot[0]).x / (float)p.cols;
    }
    s = 0.0f;
    for (int col = r.t * N; col < p.cols; col += step) {
        s = __fadd_rn(s, pack_square(vec_load<T, AL>(x + col, p.cols - col), mean, p.cols - col));
    }
    float var  = group_sum2(make_float2(s, 0.0f), r, slot[1]).x / (float)p.cols;
    float rstd = 1.0f / sqrtf(var + p.eps);
    if (r.t == 0) {
        if (p.mean) p.mean[row] = mean;
        p.rstd[row] = rstd;
    }
    for (int col = r.t * N; col < p.cols; col += step) {
        norm_apply<T, AL>(p, row, col, vec_load<T, AL>(x + col, p.cols - col), mean, rstd);
    }
}

template <typename T> static int norm_fwd_launch(Dev *dev, const char *op, const NormFwdP<T> &p, int aligned)
{
    RowPlan      plan   = row_plan(p.cols, Pack<T>::N, NORM_MAX_NV, NORM_MAX_THREADS / WARP);
    cudaStream_t stream = cuda_stream(dev);
    return k_flag(aligned, [&](auto al) {
        constexpr bool AL = decltype(al)::value;
        if (plan.nv == 0) {
            return k_launch(op, norm_fwd_wide_kernel<T, AL>, dim3((unsigned)p.rows), NORM_MAX_THREADS, 0,
                            stream, p);
        }
        int      threads = plan.warps == 1 ? (int)NORM_THREADS : plan.warps * WARP;
        unsigned grid    = (unsigned)ceil_div(p.rows, threads / (plan.warps * WARP));
        return k_count(plan.nv, [&](auto nv) {
            constexpr int NV = decltype(nv)::value;
            auto          kernel =
                plan.warps == 1 ? norm_fwd_kernel<T, NV, AL, true> : norm_fwd_kernel<T, NV, AL, false>;
            return k_launch(op, kernel, dim3(grid), threads, 0, stream, p, plan.warps);
        });
    });
}

extern "C" int cuda_add_norm_fwd(Dev *dev, const AddNormFwd *a)
{
    const char *op = a->b ? "add_norm_fwd" : "norm_fwd";
    DType       dt = a->a->dtype;
    TRY(k_need_dtype(op, a->y, dt));
    TRY(k_need_dtype(op, a->sum, dt));
    TRY(k_need_dtype(op, a->b, dt));
    TRY(k_need_dtype(op, a->gamma, DT_F32));
    TRY(k_need_dtype(op, a->beta, DT_F32));
    int al = cuda_packable(a->y) && cuda_packable(a->sum) && cuda_packable(a->a) && cuda_packable(a->b) &&
             (uintptr_t)a->gamma->data % 16 == 0 && (!a->beta || (uintptr_t)a->beta->data % 16 == 0);
    return k_dispatch_half(dt, op, [&](auto zero) {
        using T = decltype(zero);
        NormFwdP<T> p;
        p.y      = t_data<T>(a->y);
        p.sum    = t_data<T>(a->sum);
        p.mean   = t_data<float>(a->mean);
        p.rstd   = t_data<float>(a->rstd);
        p.a      = t_data<T>(a->a);
        p.b      = t_data<T>(a->b);
        p.gamma  = t_data<float>(a->gamma);
        p.beta   = t_data<float>(a->beta);
        p.ld_y   = t_ld(a->y);
        p.ld_sum = t_ld(a->sum);
        p.ld_a   = t_ld(a->a);
        p.ld_b   = t_ld(a->b);
        p.rows   = tensor_rows(a->a);
        p.cols   = (int)tensor_cols(a->a);
        p.eps    = a->eps;
        return norm_fwd_launch<T>(dev, op, p, al);
    });
}

extern "C" int cuda_norm_fwd(Dev *dev, const NormFwd *a)
{
    AddNormFwd f = {};
    f.y          = a->y;
    f.mean       = a->mean;
    f.rstd       = a->rstd;
    f.a          = a->x;
    f.gamma      = a->gamma;
    f.beta       = a->beta;
    f.eps        = a->eps;
    return cuda_add_norm_fwd(dev, &f);
}
