/* Norm, backward: NORM_DX, NORM_DW and NORM_BWD (both, and the residual's gradient added) are one kernel.
 *
 * Maths    xhat = (x - mean)*rstd, w = gamma*dy;  dx = rstd*(w - sum(w)/C - xhat*sum(w*xhat)/C);  RMS: no
 *          sum(w). dgamma += sum over rows of dy*xhat;  dbeta += sum over rows of dy;  with dres: dx = dres +
 *          dx, each rounded to storage as NORM_DX followed by ADD would.
 * Layout   rows x cols with a row stride each; gamma, dgamma, dbeta f32[C]; mean, rstd f32[N].
 * Grid     persistent, one block of 512 threads a multiprocessor; a row belongs to a group of warps
 *          (k_rows.cuh), groups take rows round robin. dgamma and dbeta live in registers across rows; at the
 *          end the block's groups are added in order into one partial row, and colsum_finish adds those. The
 *          grid is the same for NORM_DW and NORM_BWD, so their sums have the same bits. Rows too wide for
 *          registers: one block a row for dx, colsum for dw.
 * Bytes    NORM_BWD with dres 4*C*size a row (three reads, one write), without 3*C*size. */
#include "dev/cuda/k_colsum.cuh"
#include "dev/cuda/k_rows.cuh"

enum { NORM_BWD_THREADS = 512, NORM_DO_DX = 1, NORM_DO_DW = 2 };

/* Accumulators take 2*N*NV registers: three packs of eight, or four of four. */
template <typename T> struct NormBwdNv {
    static constexpr int MAX_NV = Pack<T>::N == 8 ? 3 : 4;
};

template <typename T> struct NormBwdP {
    T           *dx;
    float       *part; /* [block][2][cols] */
    const T     *dy, *x, *dres;
    const float *gamma, *mean, *rstd;
    int64_t      ld_dx, ld_dy, ld_x, ld_dres, rows;
    int          cols;
};

/* What a thread holds of one row. */
template <typename T, int NV> struct NormRow {
    Pack<T> dy[NV], x[NV], dres[NV];
    float   mean, rstd;
};

template <typename T, int NV, bool AL, int DO>
__device__ __forceinline__ void norm_row_load(const NormBwdP<T> &p, const RowThread &r, int64_t row,
                                              NormRow<T, NV> &f)
{
    constexpr int N = Pack<T>::N;
#pragma unroll
    for (int v = 0; v < NV; v++) {
        int col = (r.t + v * r.stride) * N;
        f.dy[v] = vec_load<T, AL>(p.dy + row * p.ld_dy + col, p.cols - col);
        f.x[v]  = vec_load<T, AL>(p.x + row * p.ld_x + col, p.cols - col);
    }
    if ((DO & NORM_DO_DX) && p.dres) {
#pragma unroll
        for (int v = 0; v < NV; v++) {
            int col   = (r.t + v * r.stride) * N;
            f.dres[v] = vec_load<T, AL>(p.dres + row * p.ld_dres + col, p.cols - col);
        }
    }
    f.mean = p.mean ? p.mean[row] : 0.0f;
    f.rstd = p.rstd[row];
}

__device__ __forceinline__ float norm_xhat(float x, float mean, float rstd)
{
    return __fmul_rn(__fsub_rn(x, mean), rstd);
}

/* One pack's part of the sums: over the row, sum(w) and sum(w*xhat) into c; over rows, dgamma and dbeta.
 * Elements outside the row have dy = 0 and add nothing. */
template <typename T, bool AL, int DO>
__device__ __forceinline__ void norm_pack_sums(const NormBwdP<T> &p, int col, const Pack<T> &dy,
                                               const Pack<T> &x, float mean, float rstd, float2 &c,
                                               float *dgamma, float *dbeta)
{
    constexpr int N = Pack<T>::N;
    float         fdy[N], fx[N], g[N];
    float2        s = make_float2(0.0f, 0.0f);
    vec_unpack(dy, fdy);
    vec_unpack(x, fx);
    if (DO & NORM_DO_DX) table_load<N, AL>(p.gamma + col, p.cols - col, g);
#pragma unroll
    for (int i = 0; i < N; i++) {
        float xhat = norm_xhat(fx[i], mean, rstd);
        if (DO & NORM_DO_DW) {
            dgamma[i] = fmaf(fdy[i], xhat, dgamma[i]);
            dbeta[i]  = __fadd_rn(dbeta[i], fdy[i]);
        }
        if (DO & NORM_DO_DX) {
            float w = __fmul_rn(fdy[i], g[i]);
            s.x     = __fadd_rn(s.x, w);
            s.y     = fmaf(w, xhat, s.y);
        }
    }
    c.x = __fadd_rn(c.x, s.x);
    c.y = __fadd_rn(c.y, s.y);
}

/* c: sum(w)/C and sum(w*xhat)/C. */
template <typename T, bool AL>
__device__ __forceinline__ void norm_pack_dx(const NormBwdP<T> &p, int64_t row, int col, const Pack<T> &dy,
                                             const Pack<T> &x, const Pack<T> &dres, float mean, float rstd,
                                             float2 c)
{
    constexpr int N = Pack<T>::N;
    float         fdy[N], fx[N], g[N];
    vec_unpack(dy, fdy);
    vec_unpack(x, fx);
    table_load<N, AL>(p.gamma + col, p.cols - col, g);
#pragma unroll
    for (int i = 0; i < N; i++) {
        float d = __fsub_rn(__fmul_rn(fdy[i], g[i]), c.x);
        fdy[i]  = __fmul_rn(rstd, fmaf(-norm_xhat(fx[i], mean, rstd), c.y, d));
    }
    Pack<T> out = vec_pack<T>(fdy);
    if (p.dres) {
        vec_unpack(out, fdy);
        vec_unpack(dres, fx);
#pragma unroll
        for (int i = 0; i < N; i++) fdy[i] = __fadd_rn(fx[i], fdy[i]);
        out = vec_pack<T>(fdy);
    }
    vec_store<T, AL>(p.dx + row * p.ld_dx + col, out, p.cols - col);
}

template <typename T, int NV> struct NormAcc {
    float dgamma[NV][Pack<T>::N], dbeta[NV][Pack<T>::N];
};

template <typename T, int NV, bool AL, int DO>
__device__ __forceinline__ void norm_row_process(const NormBwdP<T> &p, const RowThread &r, int64_t row,
                                                 NormRow<T, NV> &f, float2 *slot, NormAcc<T, NV> &acc)
{
    constexpr int N = Pack<T>::N;
    float2        c = make_float2(0.0f, 0.0f);
#pragma unroll
    for (int v = 0; v < NV; v++) {
        norm_pack_sums<T, AL, DO>(p, (r.t + v * r.stride) * N, f.dy[v], f.x[v], f.mean, f.rstd, c,
                                  acc.dgamma[v], acc.dbeta[v]);
    }
    if (!(DO & NORM_DO_DX)) return;
    c   = group_sum2<false>(c, r, slot);
    c.x = p.mean ? c.x / (float)p.cols : 0.0f;
    c.y = c.y / (float)p.cols;
#pragma unroll
    for (int v = 0; v < NV; v++) {
        vec_forget(f.dy[v]);
        vec_forget(f.x[v]);
        norm_pack_dx<T, AL>(p, row, (r.t + v * r.stride) * N, f.dy[v], f.x[v], f.dres[v], f.mean, f.rstd, c);
    }
}

/* Adds the block's groups in order and writes its partial row. */
template <typename T, int NV>
__device__ __forceinline__ void norm_acc_store(const NormBwdP<T> &p, const RowThread &r,
                                               const NormAcc<T, NV> &acc)
{
    constexpr int    N = Pack<T>::N;
    __shared__ float sums[2][NORM_BWD_THREADS * N]; /* [dgamma, dbeta][group][column of the slice] */
    int              slice = r.stride * N;
    float           *part  = p.part + (int64_t)blockIdx.x * 2 * p.cols;
#pragma unroll
    for (int v = 0; v < NV; v++) {
        __syncthreads();
#pragma unroll
        for (int i = 0; i < N; i++) {
            sums[0][threadIdx.x * N + i] = acc.dgamma[v][i];
            sums[1][threadIdx.x * N + i] = acc.dbeta[v][i];
        }
        __syncthreads();
        for (int e = threadIdx.x; e < 2 * slice; e += NORM_BWD_THREADS) {
            int          which = e >= slice, c = e - which * slice, col = v * slice + c;
            const float *s   = sums[which] + c;
            float        sum = s[0];
            for (int g = 1; g < r.n_group; g++) sum = __fadd_rn(sum, s[g * slice]);
            if (col < p.cols) part[which * p.cols + col] = sum;
        }
    }
}

template <typename T, int NV, bool AL, int DO, bool ONE>
__global__ void __launch_bounds__(NORM_BWD_THREADS, 1) norm_bwd_kernel(NormBwdP<T> p, int warps)
{
    /* The next row is on its way while this one is worked on, where registers allow. */
    constexpr bool    AHEAD = NV <= 2;
    __shared__ float2 slot[2][NORM_BWD_THREADS / WARP];
    RowThread         r    = row_thread<ONE>(warps);
    int64_t           step = (int64_t)gridDim.x * r.n_group, row = (int64_t)blockIdx.x * r.n_group + r.group;
    NormAcc<T, NV>    acc;
#pragma unroll
    for (int v = 0; v < NV; v++) {
#pragma unroll
        for (int i = 0; i < Pack<T>::N; i++) acc.dgamma[v][i] = acc.dbeta[v][i] = 0.0f;
    }
    NormRow<T, NV> now, next;
    int            parity = 0;
    if (AHEAD && row < p.rows) norm_row_load<T, NV, AL, DO>(p, r, row, now);
    for (; row < p.rows; row += step, parity ^= 1) {
        if (AHEAD) {
            if (row + step < p.rows) norm_row_load<T, NV, AL, DO>(p, r, row + step, next);
        } else {
            norm_row_load<T, NV, AL, DO>(p, r, row, now);
        }
        norm_row_process<T, NV, AL, DO>(p, r, row, now, slot[parity], acc);
        if (AHEAD) now = next;
    }
    if (DO & NORM_DO_DW) norm_acc_store<T, NV>(p, r, acc);
}

/* Wide rows: one block a row. */
template <typename T, bool AL>
__global__ void __launch_bounds__(NORM_BWD_THREADS) norm_dx_wide_kernel(NormBwdP<T> p)
{
    constexpr int     N = Pack<T>::N;
    __shared__ float2 slot[NORM_BWD_THREADS / WARP];
    RowThread         r   = row_thread<false>(NORM_BWD_THREADS / WARP);
    int64_t           row = blockIdx.x;
    const T          *dy = p.dy + row * p.ld_dy, *x = p.x + row * p.ld_x, *dres = p.dres + row * p.ld_dres;
    float             mean = p.mean ? p.mean[row] : 0.0f, rstd = p.rstd[row];
    float2            c = make_float2(0.0f, 0.0f);
    for (int col = r.t * N; col < p.cols; col += r.stride * N) {
        int n = p.cols - col;
        norm_pack_sums<T, AL, NORM_DO_DX>(p, col, vec_load<T, AL>(dy + col, n), vec_load<T, AL>(x + col, n),
                                          mean, rstd, c, nullptr, nullptr);
    }
    c   = group_sum2<true>(c, r, slot);
    c.x = p.mean ? c.x / (float)p.cols : 0.0f;
    c.y = c.y / (float)p.cols;
    for (int col = r.t * N; col < p.cols; col += r.stride * N) {
        int     n = p.cols - col;
        Pack<T> d = p.dres ? vec_load<T, AL>(dres + col, n) : pack_zero<T>();
        norm_pack_dx<T, AL>(p, row, col, vec_load<T, AL>(dy + col, n), vec_load<T, AL>(x + col, n), d, mean,
                            rstd, c);
    }
}

/* Wide rows: dgamma and dbeta as plain column sums. */
template <typename T, bool AL> struct NormDwOp {
    static constexpr int SUMS = 2;
    struct In {
        Pack<T> dy, x;
        float   mean, rstd;
    };
    NormBwdP<T> p;

    __device__ __forceinline__ In load(int64_t row, int col, int n) const
    {
        In in;
        in.dy   = vec_load<T, AL>(p.dy + row * p.ld_dy + col, n);
        in.x    = vec_load<T, AL>(p.x + row * p.ld_x + col, n);
        in.mean = p.mean ? p.mean[row] : 0.0f;
        in.rstd = p.rstd[row];
        return in;
    }
    __device__ __forceinline__ void apply(const In &in, int64_t, int, int, float (&val)[2][Pack<T>::N]) const
    {
        float x[Pack<T>::N];
        vec_unpack(in.dy, val[1]);
        vec_unpack(in.x, x);
#pragma unroll
        for (int i = 0; i < Pack<T>::N; i++) {
            val[0][i] = __fmul_rn(val[1][i], norm_xhat(x[i], in.mean, in.rstd));
        }
    }
};

template <typename T, bool AL>
static int norm_wide_launch(Dev *dev, const char *op, const NormBwdP<T> &p, const NormBwd *a)
{
    /* dx may share storage with dy: the sums over dy come first. */
    if (a->dgamma) {
        NormDwOp<T, AL> dw = { p };
        TRY((colsum_launch<T>(dev, op, dw, p.rows, p.cols, a->ws, t_data<float>(a->dgamma),
                              t_data<float>(a->dbeta))));
    }
    if (!a->dx) return 0;
    return k_launch(op, norm_dx_wide_kernel<T, AL>, dim3((unsigned)p.rows), NORM_BWD_THREADS, 0,
                    cuda_stream(dev), p);
}

template <typename T, bool AL>
static int norm_bwd_launch(Dev *dev, const char *op, const NormBwdP<T> &p, const NormBwd *a)
{
    RowPlan plan = row_plan(p.cols, Pack<T>::N, NormBwdNv<T>::MAX_NV, NORM_BWD_THREADS / WARP);
    if (plan.nv == 0) return norm_wide_launch<T, AL>(dev, op, p, a);
    int64_t n_group = NORM_BWD_THREADS / (plan.warps * WARP);
    int     grid = (int)MIN((int64_t)MIN(cuda_sm_count(dev), (int)COLSUM_BLOCKS), ceil_div(p.rows, n_group));
    if (a->dgamma) TRY(k_need_ws(op, a->ws, (size_t)grid * 2 * (size_t)p.cols * sizeof(float)));
    int rc = k_count(plan.nv, [&](auto nv) {
        return k_flag(plan.warps == 1, [&](auto one) {
            constexpr int  NV     = MIN(decltype(nv)::value, NormBwdNv<T>::MAX_NV);
            constexpr bool ONE    = decltype(one)::value;
            auto           kernel = !a->dgamma ? norm_bwd_kernel<T, NV, AL, NORM_DO_DX, ONE>
                                    : !a->dx   ? norm_bwd_kernel<T, NV, AL, NORM_DO_DW, ONE>
                                               : norm_bwd_kernel<T, NV, AL, NORM_DO_DX | NORM_DO_DW, ONE>;
            return k_launch(op, kernel, dim3((unsigned)grid), NORM_BWD_THREADS, 0, cuda_stream(dev), p,
                            plan.warps);
        });
    });
    if (rc < 0 || !a->dgamma) return rc;
    return colsum_finish_launch(op, cuda_stream(dev), p.part, grid, 2, p.cols, t_data<float>(a->dgamma),
                                t_data<float>(a->dbeta));
}

/* Any of dx and (dgamma, dbeta) may be absent here. */
static int norm_bwd_run(Dev *dev, const char *op, const NormBwd *a)
{
    DType dt = a->x->dtype;
    TRY(k_need_dtype(op, a->dx, dt));
    TRY(k_need_dtype(op, a->dy, dt));
    TRY(k_need_dtype(op, a->dres, dt));
    TRY(k_need_dtype(op, a->gamma, DT_F32));
    TRY(k_need_dtype(op, a->dgamma, DT_F32));
    TRY(k_need_dtype(op, a->dbeta, DT_F32));
    int al = cuda_packable(a->dx) && cuda_packable(a->dy) && cuda_packable(a->x) && cuda_packable(a->dres) &&
             (!a->gamma || (uintptr_t)a->gamma->data % 16 == 0);
    return k_dispatch(dt, op, [&](auto zero) {
        using T = decltype(zero);
        NormBwdP<T> p;
        p.dx      = t_data<T>(a->dx);
        p.part    = t_data<float>(a->ws);
        p.dy      = t_data<T>(a->dy);
        p.x       = t_data<T>(a->x);
        p.dres    = t_data<T>(a->dres);
        p.gamma   = t_data<float>(a->gamma);
        p.mean    = t_data<float>(a->mean);
        p.rstd    = t_data<float>(a->rstd);
        p.ld_dx   = t_ld(a->dx);
        p.ld_dy   = t_ld(a->dy);
        p.ld_x    = t_ld(a->x);
        p.ld_dres = t_ld(a->dres);
        p.rows    = tensor_rows(a->x);
        p.cols    = (int)tensor_cols(a->x);
        return k_flag(al, [&](auto f) { return norm_bwd_launch<T, decltype(f)::value>(dev, op, p, a); });
    });
}

extern "C" int cuda_norm_bwd(Dev *dev, const NormBwd *a) { return norm_bwd_run(dev, "norm_bwd", a); }

extern "C" int cuda_norm_dx(Dev *dev, const NormDx *a)
{
    NormBwd b = {};
    b.dx      = a->dx;
    b.dy      = a->dy;
    b.x       = a->x;
    b.gamma   = a->gamma;
    b.mean    = a->mean;
    b.rstd    = a->rstd;
    return norm_bwd_run(dev, "norm_dx", &b);
}

extern "C" int cuda_norm_dw(Dev *dev, const NormDw *a)
{
    NormBwd b = {};
    b.dgamma  = a->dgamma;
    b.dbeta   = a->dbeta;
    b.ws      = a->ws;
    b.dy      = a->dy;
    b.x       = a->x;
    b.mean    = a->mean;
    b.rstd    = a->rstd;
    return norm_bwd_run(dev, "norm_dw", &b);
}
