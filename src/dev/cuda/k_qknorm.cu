/* RMS norm of query and key heads: QKNORM_FWD, QKNORM_DX, QKNORM_DW.
 *
 * Maths    per row and head: rstd = 1/sqrt(sum x^2/D + eps), xhat = x*rstd, y = xhat*g with g = gq for query
 *          heads and gk for key heads;  w = g*dy, dx = rstd*(w - xhat*sum(w*xhat)/D);  dgq += sum over rows
 *          and query heads of dy*xhat, dgk likewise. Value heads are copied (dx = dy).
 * Layout   packed rows [q heads | k heads | v heads] of D columns with a row stride; rstd f32[N, H+K]; gq, gk
 *          f32[D].
 * Grid     a unit is one head of one row. `lanes` lanes (a power of two, at most a warp) work on a unit, each
 *          on NV packs; units are dealt round robin. QKNORM_DW keeps its sums in registers over all units of
 *          a group, once for queries and once for keys; the groups of a block are added in order, then the
 *          blocks (colsum_finish).
 * Bytes    FWD 2 rows, DX 3 rows, DW 2 rows without the value heads. */
#include "dev/cuda/k_colsum.cuh"

enum { QK_THREADS = 256, QK_MAX_NV = 4, QK_BLOCKS_PER_SM = 8 };

template <typename T> struct QkP {
    T           *out;    /* y or dx */
    const T     *x, *dy; /* dy: NULL forward */
    const float *gq, *gk;
    float       *rstd;
    float       *part; /* [block][2*D] */
    int64_t      ld_out, ld_x, ld_dy, rows;
    int          heads, kv_heads, head_dim, lanes;
    float        eps;
};

/* A walk over the units of `n_head` heads a row, `step` units at a time; divides once. */
struct Walk {
    int64_t row;
    int     head;
    int64_t step_row;
    int     step_head, n_head;

    __device__ __forceinline__ Walk(int64_t unit, int64_t step, int n)
        : row(unit / n), head((int)(unit % n)), step_row(step / n), step_head((int)(step % n)), n_head(n)
    {
    }
    __device__ __forceinline__ void next()
    {
        row += step_row;
        head += step_head;
        if (head >= n_head) {
            head -= n_head;
            row++;
        }
    }
};

/* Sum over the lanes of a group; every lane of the warp calls it. */
__device__ __forceinline__ float lanes_sum(float v, int lanes)
{
    for (int d = lanes / 2; d > 0; d /= 2) v += __shfl_xor_sync(FULL_WARP, v, d);
    return v;
}

/* One unit, forward (dy NULL) or backward. live: the unit exists; dead lanes only take part in the sum. */
template <typename T, int NV, bool AL, bool BWD>
__device__ __forceinline__ void qk_unit(const QkP<T> &p, bool live, int64_t row, int head, int lane)
{
    constexpr int N     = Pack<T>::N;
    int           D     = p.head_dim;
    bool          value = head >= p.heads + p.kv_heads;
    const float  *g     = head < p.heads ? p.gq : p.gk;
    int64_t       at    = row * (p.heads + p.kv_heads) + head;
    Pack<T>       x[NV], dy[NV];
    float         rstd = 0.0f, s = 0.0f;
    if (BWD && live && !value) rstd = p.rstd[at];
#pragma unroll
    for (int v = 0; v < NV; v++) {
        int   i = (lane + v * p.lanes) * N, n = live ? D - i : 0;
        float f[N], w[N], gi[N];
        x[v] = vec_load<T, AL>(p.x + row * p.ld_x + (int64_t)head * D + i, BWD && value ? 0 : n);
        if (BWD) dy[v] = vec_load<T, AL>(p.dy + row * p.ld_dy + (int64_t)head * D + i, n);
        vec_unpack(x[v], f);
        if (!BWD) {
#pragma unroll
            for (int k = 0; k < N; k++) s = fmaf(f[k], f[k], s);
        } else {
            vec_unpack(dy[v], w);
            table_load<N, AL>(g + i, n, gi);
#pragma unroll
            for (int k = 0; k < N; k++) s = fmaf(__fmul_rn(w[k], gi[k]), __fmul_rn(f[k], rstd), s);
        }
    }
    s = lanes_sum(s, p.lanes) / (float)D;
    if (!live) return;
    if (!BWD) {
        rstd = 1.0f / sqrtf(s + p.eps);
        if (!value && lane == 0) p.rstd[at] = rstd;
    }
#pragma unroll
    for (int v = 0; v < NV; v++) {
        int     i = (lane + v * p.lanes) * N, n = D - i;
        float   f[N], w[N], gi[N];
        Pack<T> out = BWD ? dy[v] : x[v];
        if (!value) {
            vec_unpack(x[v], f);
            table_load<N, AL>(g + i, n, gi);
            if (BWD) vec_unpack(dy[v], w);
#pragma unroll
            for (int k = 0; k < N; k++) {
                float xhat = __fmul_rn(f[k], rstd);
                f[k] = BWD ? __fmul_rn(rstd, fmaf(-xhat, s, __fmul_rn(w[k], gi[k]))) : __fmul_rn(xhat, gi[k]);
            }
            out = vec_pack<T>(f);
        }
        vec_store<T, AL>(p.out + row * p.ld_out + (int64_t)head * D + i, out, n);
    }
}

template <typename T, int NV, bool AL, bool BWD>
__global__ void __launch_bounds__(QK_THREADS) qknorm_kernel(QkP<T> p, int n_head)
{
    int     lane = threadIdx.x % p.lanes, per_block = QK_THREADS / p.lanes;
    int64_t unit = (int64_t)blockIdx.x * per_block + threadIdx.x / p.lanes,
            step = (int64_t)gridDim.x * per_block;
    Walk w(unit, step, n_head);
    /* The loop's end is the warp's, not the group's: the sum needs all 32 lanes. */
    int64_t warp_unit = unit - threadIdx.x % WARP / p.lanes, n_unit = p.rows * n_head;
    for (; warp_unit < n_unit; warp_unit += step, unit += step, w.next()) {
        qk_unit<T, NV, AL, BWD>(p, unit < n_unit, w.row, w.head, lane);
    }
}

/* Adds dy*xhat over every unit of heads [head0, head0 + n_head) into acc. */
template <typename T, int NV, bool AL>
__device__ __forceinline__ void qk_sum(const QkP<T> &p, int head0, int n_head, int lane,
                                       float (&acc)[NV][Pack<T>::N])
{
    constexpr int N         = Pack<T>::N;
    int           per_block = QK_THREADS / p.lanes, D = p.head_dim;
    int64_t       unit = (int64_t)blockIdx.x * per_block + threadIdx.x / p.lanes,
            step       = (int64_t)gridDim.x * per_block;
#pragma unroll
    for (int v = 0; v < NV; v++) {
#pragma unroll
        for (int k = 0; k < N; k++) acc[v][k] = 0.0f;
    }
    Walk w(unit, step, n_head);
#pragma unroll 2
    for (; w.row < p.rows; w.next()) {
        int     head = head0 + w.head;
        float   rstd = p.rstd[w.row * (p.heads + p.kv_heads) + head];
        int64_t col  = (int64_t)head * D;
#pragma unroll
        for (int v = 0; v < NV; v++) {
            int   i = (lane + v * p.lanes) * N;
            float f[N], d[N];
            vec_unpack(vec_load<T, AL>(p.x + w.row * p.ld_x + col + i, D - i), f);
            vec_unpack(vec_load<T, AL>(p.dy + w.row * p.ld_dy + col + i, D - i), d);
#pragma unroll
            for (int k = 0; k < N; k++) acc[v][k] = fmaf(d[k], __fmul_rn(f[k], rstd), acc[v][k]);
        }
    }
}

template <typename T, int NV, bool AL>
__global__ void __launch_bounds__(QK_THREADS) qknorm_dw_kernel(QkP<T> p)
{
    constexpr int    N = Pack<T>::N;
    __shared__ float sums[QK_THREADS * N]; /* [group][column of the slice] */
    int   lane = threadIdx.x % p.lanes, n_group = QK_THREADS / p.lanes, slice = p.lanes * N, D = p.head_dim;
    float acc[NV][N];
#pragma unroll
    for (int which = 0; which < 2; which++) {
        qk_sum<T, NV, AL>(p, which ? p.heads : 0, which ? p.kv_heads : p.heads, lane, acc);
        float *part = p.part + (int64_t)blockIdx.x * 2 * D + which * D;
#pragma unroll
        for (int v = 0; v < NV; v++) {
            __syncthreads();
#pragma unroll
            for (int k = 0; k < N; k++) sums[threadIdx.x * N + k] = acc[v][k];
            __syncthreads();
            for (int c = threadIdx.x; c < slice; c += QK_THREADS) {
                float sum = sums[c];
                for (int g = 1; g < n_group; g++) sum = __fadd_rn(sum, sums[g * slice + c]);
                if (v * slice + c < D) part[v * slice + c] = sum;
            }
        }
    }
}

typedef struct {
    int lanes, nv, aligned;
} QkPlan;

/* aligned: what the tensors allow. */
static QkPlan qk_plan(int head_dim, int pack, int aligned)
{
    int    n_pack = (int)ceil_div(head_dim, pack);
    QkPlan q      = { 1, 0, aligned && head_dim % pack == 0 };
    while (q.lanes < WARP && q.lanes < n_pack) q.lanes *= 2;
    q.nv = (int)ceil_div(n_pack, q.lanes);
    return q;
}

/* Calls f with NV = 1, 2 or 4 and AL. */
template <typename F> static int qk_dispatch(const char *op, int nv, int aligned, F f)
{
    return k_flag(aligned, [&](auto al) {
        if (nv <= 1) return f(std::integral_constant<int, 1>(), al);
        if (nv <= 2) return f(std::integral_constant<int, 2>(), al);
        if (nv <= QK_MAX_NV) return f(std::integral_constant<int, 4>(), al);
        return err_set("%s: head size is too large", op);
    });
}

/* Forward with dy NULL, else backward. */
static int qknorm_run(Dev *dev, const char *op, const QkNormDx *a, Tensor *out, float eps)
{
    DType dt = a->x->dtype;
    TRY(k_need_dtype(op, out, dt));
    TRY(k_need_dtype(op, a->dy, dt));
    TRY(k_need_dtype(op, a->gq, DT_F32));
    TRY(k_need_dtype(op, a->gk, DT_F32));
    int aligned = cuda_packable(out) && cuda_packable(a->x) && cuda_packable(a->dy) &&
                  (uintptr_t)a->gq->data % 16 == 0 && (uintptr_t)a->gk->data % 16 == 0;
    return k_dispatch_half(dt, op, [&](auto zero) {
        using T    = decltype(zero);
        QkPlan q   = qk_plan(a->head_dim, Pack<T>::N, aligned);
        QkP<T> p   = {};
        p.out      = t_data<T>(out);
        p.x        = t_data<T>(a->x);
        p.dy       = t_data<T>(a->dy);
        p.gq       = t_data<float>(a->gq);
        p.gk       = t_data<float>(a->gk);
        p.rstd     = t_data<float>(a->rstd);
        p.ld_out   = t_ld(out);
        p.ld_x     = t_ld(a->x);
        p.ld_dy    = t_ld(a->dy);
        p.rows     = tensor_rows(a->x);
        p.heads    = a->heads;
        p.kv_heads = a->kv_heads;
        p.head_dim = a->head_dim;
        p.lanes    = q.lanes;
        p.eps      = eps;
        /* In place the value heads are already where they belong. */
        const Tensor *src    = a->dy ? a->dy : a->x;
        int           n_head = a->heads + (out->data == src->data ? 1 : 2) * a->kv_heads;
        int64_t       most   = (int64_t)cuda_sm_count(dev) * QK_BLOCKS_PER_SM;
        unsigned      grid   = (unsigned)MIN(ceil_div(p.rows * n_head, QK_THREADS / q.lanes), most);
        return qk_dispatch(op, q.nv, q.aligned, [&](auto nv, auto al) {
            constexpr int  NV     = decltype(nv)::value;
            constexpr bool AL     = decltype(al)::value;
            auto           kernel = a->dy ? qknorm_kernel<T, NV, AL, true> : qknorm_kernel<T, NV, AL, false>;
            return k_launch(op, kernel, dim3(grid), QK_THREADS, 0, cuda_stream(dev), p, n_head);
        });
    });
}

extern "C" int cuda_qknorm_fwd(Dev *dev, const QkNormFwd *a)
{
    QkNormDx f = { nullptr, nullptr, a->x, a->gq, a->gk, a->rstd, a->heads, a->kv_heads, a->head_dim };
    return qknorm_run(dev, "qknorm_fwd", &f, a->y, a->eps);
}

extern "C" int cuda_qknorm_dx(Dev *dev, const QkNormDx *a)
{
    return qknorm_run(dev, "qknorm_dx", a, a->dx, 0.0f);
}

extern "C" int cuda_qknorm_dw(Dev *dev, const QkNormDw *a)
{
    const char *op = "qknorm_dw";
    TRY(k_need_dtype(op, a->dy, a->x->dtype));
    TRY(k_need_dtype(op, a->dgq, DT_F32));
    TRY(k_need_dtype(op, a->dgk, DT_F32));
    int aligned = cuda_packable(a->x) && cuda_packable(a->dy);
    return k_dispatch_half(a->x->dtype, op, [&](auto zero) {
        using T    = decltype(zero);
        QkPlan q   = qk_plan(a->head_dim, Pack<T>::N, aligned);
        QkP<T> p   = {};
        p.x        = t_data<T>(a->x);
        p.dy       = t_data<T>(a->dy);
        p.rstd     = t_data<float>(a->rstd);
        p.part     = t_data<float>(a->ws);
        p.ld_x     = t_ld(a->x);
        p.ld_dy    = t_ld(a->dy);
        p.rows     = tensor_rows(a->x);
        p.heads    = a->heads;
        p.kv_heads = a->kv_heads;
        p.head_dim = a->head_dim;
        p.lanes    = q.lanes;
        int64_t D = a->head_dim, most = MIN((int64_t)cuda_sm_count(dev) * 2, (int64_t)COLSUM_BLOCKS);
        int     grid = (int)MIN(ceil_div(p.rows * a->heads, QK_THREADS / q.lanes), most);
        TRY(k_need_ws(op, a->ws, (size_t)grid * 2 * (size_t)D * sizeof(float)));
        TRY(qk_dispatch(op, q.nv, q.aligned, [&](auto nv, auto al) {
            auto kernel = qknorm_dw_kernel<T, decltype(nv)::value, decltype(al)::value>;
            return k_launch(op, kernel, dim3((unsigned)grid), QK_THREADS, 0, cuda_stream(dev), p);
        }));
        return colsum_finish_launch(op, cuda_stream(dev), p.part, grid, 2, D,
                                    ColDst{ { t_data<float>(a->dgq), t_data<float>(a->dgk) } });
    });
}
