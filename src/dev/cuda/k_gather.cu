/* Rows by number and over time: ROWS_FWD, MEAN_ROWS_FWD, MEAN_ROWS_DX, ADD_POS. (ROWS_DX sorts: k_embed.cu.)
 *
 * Maths    y[n] = x[index[n]], 0 for index -1;  y[b] = sum over t < len[b] of x[b][t] / len[b];  dx[b][t] =
 *          dy[b] / len[b]; y[b][t] = x[b][t] + pos[t].
 * Layout   rows x cols with a row stride; index, len i32. ROWS_FWD moves bytes in units of 16 where addresses
 *          allow it, else element by element.
 * Order    A mean is summed by one thread, in increasing t.
 * Grid     a thread a unit, or a pack of a row.
 * Bytes    ROWS_FWD 2*C*size a row; means C*size a row read or written; ADD_POS 2*C*size a row, pos. */
#include "dev/cuda/k_common.cuh"

enum { GATHER_THREADS = 256 };

template <typename U> struct RowsP {
    U             *y;
    const U       *x;
    const int32_t *index, *at;
    int64_t        ld_y, ld_x, rows;
    uint32_t       cols; /* units of a row */
};

template <typename U> __global__ void __launch_bounds__(GATHER_THREADS) rows_kernel(RowsP<U> p)
{
    int64_t i = (int64_t)blockIdx.x * GATHER_THREADS + threadIdx.x, row = i / p.cols, col = i - row * p.cols;
    if (row >= p.rows) return;
    int64_t from            = p.index[(p.at ? *p.at * p.rows : 0) + row];
    U       none            = {};
    p.y[row * p.ld_y + col] = from < 0 ? none : p.x[from * p.ld_x + col];
}

/* per: elements of a unit */
template <typename U> static int rows_launch(Dev *dev, const RowsFwd *a, int64_t per)
{
    RowsP<U> p    = { t_data<U>(a->y),           t_data<U>(a->x),
                      t_data<int32_t>(a->index), t_data<int32_t>(a->at),
                      t_ld(a->y) / per,          t_ld(a->x) / per,
                      tensor_rows(a->y),         (uint32_t)(tensor_cols(a->y) / per) };
    unsigned grid = (unsigned)ceil_div(p.rows * p.cols, GATHER_THREADS);
    return k_launch("rows_fwd", rows_kernel<U>, dim3(grid), GATHER_THREADS, 0, cuda_stream(dev), p);
}

extern "C" int cuda_rows_fwd(Dev *dev, const RowsFwd *a)
{
    TRY(k_need_dtype("rows_fwd", a->index, DT_I32));
    TRY(k_need_dtype("rows_fwd", a->at, DT_I32));
    TRY(k_need_dtype("rows_fwd", a->x, a->y->dtype));
    size_t size = dtype_bytes(a->y->dtype);
    /* A single row has any stride; its tensor's own must not be divided. */
    int packs = cuda_packable(a->y) && cuda_packable(a->x) && (size_t)t_ld(a->y) * size % 16 == 0 &&
                (size_t)t_ld(a->x) * size % 16 == 0;
    if (packs) return rows_launch<uint4>(dev, a, (int64_t)(16 / size));
    switch (size) {
    case 1: return rows_launch<uint8_t>(dev, a, 1);
    case 2: return rows_launch<uint16_t>(dev, a, 1);
    case 4: return rows_launch<uint32_t>(dev, a, 1);
    default: return rows_launch<uint64_t>(dev, a, 1);
    }
}

/* ---- Over time --------------------------------------------------------------------------------------- */

/* A mean has y [B,C] and x [B,T,C]; its gradient reads y and writes x. ADD_POS has y [B,T,C]. */
template <typename T> struct TimeP {
    T             *y, *x;
    const T       *pos;
    const int32_t *len;
    int64_t        ld_y, ld_x, ld_pos, rows; /* rows that are written */
    int            T_len, cols;
};

/* Where a thread writes: row and first column, n columns from there on. */
struct PackAt {
    int64_t row;
    int     col, n;
};

template <int N> __device__ __forceinline__ PackAt pack_at(int cols)
{
    int     per = (int)ceil_div(cols, N);
    int64_t i   = (int64_t)blockIdx.x * GATHER_THREADS + threadIdx.x;
    PackAt  at;
    at.row = i / per;
    at.col = (int)(i - at.row * per) * N;
    at.n   = cols - at.col;
    return at;
}

template <typename T, bool AL> __global__ void __launch_bounds__(GATHER_THREADS) mean_rows_kernel(TimeP<T> p)
{
    constexpr int N  = Pack<T>::N;
    PackAt        at = pack_at<N>(p.cols);
    if (at.row >= p.rows) return;
    int   n      = p.len ? p.len[at.row] : p.T_len;
    float acc[N] = {};
#pragma unroll 4
    for (int t = 0; t < n; t++) {
        float f[N];
        vec_unpack(vec_load<T, AL>(p.x + (at.row * p.T_len + t) * p.ld_x + at.col, at.n), f);
#pragma unroll
        for (int k = 0; k < N; k++) acc[k] = __fadd_rn(acc[k], f[k]);
    }
    float share = n > 0 ? 1.0f / (float)n : 0.0f;
#pragma unroll
    for (int k = 0; k < N; k++) acc[k] = __fmul_rn(acc[k], share);
    vec_store<T, AL>(p.y + at.row * p.ld_y + at.col, vec_pack<T>(acc), at.n);
}

template <typename T, bool AL>
__global__ void __launch_bounds__(GATHER_THREADS) mean_rows_dx_kernel(TimeP<T> p)
{
    constexpr int N  = Pack<T>::N;
    PackAt        at = pack_at<N>(p.cols);
    if (at.row >= p.rows) return;
    int64_t b    = at.row / p.T_len;
    int     n    = p.len ? p.len[b] : p.T_len;
    float   f[N] = {};
    if (at.row - b * p.T_len < n) {
        float share = 1.0f / (float)n;
        vec_unpack(vec_load<T, AL>(p.y + b * p.ld_y + at.col, at.n), f);
#pragma unroll
        for (int k = 0; k < N; k++) f[k] = __fmul_rn(f[k], share);
    }
    vec_store<T, AL>(p.x + at.row * p.ld_x + at.col, vec_pack<T>(f), at.n);
}

template <typename T, bool AL> __global__ void __launch_bounds__(GATHER_THREADS) add_pos_kernel(TimeP<T> p)
{
    constexpr int N  = Pack<T>::N;
    PackAt        at = pack_at<N>(p.cols);
    if (at.row >= p.rows) return;
    float f[N], g[N];
    vec_unpack(vec_load<T, AL>(p.x + at.row * p.ld_x + at.col, at.n), f);
    vec_unpack(vec_load<T, AL>(p.pos + at.row % p.T_len * p.ld_pos + at.col, at.n), g);
#pragma unroll
    for (int k = 0; k < N; k++) f[k] = __fadd_rn(f[k], g[k]);
    vec_store<T, AL>(p.y + at.row * p.ld_y + at.col, vec_pack<T>(f), at.n);
}

/* kernel(is_al, T()) names the kernel. out: the tensor that is written. */
template <typename K>
static int time_run(Dev *dev, const char *op, const Tensor *out, const Tensor *y, const Tensor *x,
                    const Tensor *pos, const Tensor *len, K kernel)
{
    TRY(k_need_dtype(op, y, x->dtype));
    TRY(k_need_dtype(op, pos, x->dtype));
    TRY(k_need_dtype(op, len, DT_I32));
    int aligned = cuda_packable(y) && cuda_packable(x) && cuda_packable(pos);
    return k_dispatch(x->dtype, op, [&](auto zero) {
        using T    = decltype(zero);
        TimeP<T> p = {
            t_data<T>(y), t_data<T>(x), t_data<T>(pos),   t_data<int32_t>(len), t_ld(y),
            t_ld(x),      t_ld(pos),    tensor_rows(out), (int)x->dim[1],       (int)tensor_cols(x)
        };
        unsigned grid = (unsigned)ceil_div(p.rows * ceil_div(p.cols, Pack<T>::N), GATHER_THREADS);
        return k_flag(aligned, [&](auto al) {
            return k_launch(op, kernel(al, zero), dim3(grid), GATHER_THREADS, 0, cuda_stream(dev), p);
        });
    });
}

extern "C" int cuda_mean_rows_fwd(Dev *dev, const MeanRowsFwd *a)
{
    return time_run(dev, "mean_rows_fwd", a->y, a->y, a->x, nullptr, a->len,
                    [](auto al, auto zero) { return mean_rows_kernel<decltype(zero), decltype(al)::value>; });
}

extern "C" int cuda_mean_rows_dx(Dev *dev, const MeanRowsDx *a)
{
    return time_run(dev, "mean_rows_dx", a->dx, a->dy, a->dx, nullptr, a->len, [](auto al, auto zero) {
        return mean_rows_dx_kernel<decltype(zero), decltype(al)::value>;
    });
}

extern "C" int cuda_add_pos(Dev *dev, const AddPos *a)
{
    return time_run(dev, "add_pos", a->y, a->y, a->x, a->pos, nullptr,
                    [](auto al, auto zero) { return add_pos_kernel<decltype(zero), decltype(al)::value>; });
}
