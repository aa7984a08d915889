/* One factor a column: SCALE y = x * gamma, SCALE_DW dgamma += sum over rows of dy * x.
 *
 * Layout   rows x cols with a row stride each; gamma, dgamma f32[cols].
 * Grid     SCALE: a block takes SCALE_ROWS rows, a thread packs of columns. SCALE_DW: k_colsum.cuh.
 * Bytes    2*cols*size a row each. */
#include "dev/cuda/k_colsum.cuh"

enum { SCALE_THREADS = 256, SCALE_ROWS = 8 };

template <typename T, bool AL>
__global__ void __launch_bounds__(SCALE_THREADS)
    scale_kernel(T *y, const T *x, const float *gamma, int rows, int cols, int ld_y, int ld_x)
{
    constexpr int N    = Pack<T>::N;
    int           row0 = blockIdx.x * SCALE_ROWS;
    for (int col = threadIdx.x * N; col < cols; col += SCALE_THREADS * N) {
        int   n = cols - col;
        float g[N], f[N];
#pragma unroll
        for (int i = 0; i < N; i++) g[i] = i < n ? gamma[col + i] : 0.0f;
        for (int row = row0; row < min(row0 + SCALE_ROWS, rows); row++) {
            vec_unpack(vec_load<T, AL>(row_at(x, row, ld_x) + col, n), f);
#pragma unroll
            for (int i = 0; i < N; i++) f[i] = __fmul_rn(f[i], g[i]);
            vec_store<T, AL>(row_at(y, row, ld_y) + col, vec_pack<T>(f), n);
        }
    }
}

extern "C" int cuda_scale(Dev *dev, const Scale *a)
{
    const char *name = "scale";
    TRY(k_need_dtype(name, a->gamma, DT_F32));
    TRY(k_need_dtype(name, a->y, a->x->dtype));
    return k_dispatch(a->x->dtype, name, [&](auto zero) {
        using T = decltype(zero);
        return k_flag(cuda_packable(a->y) && cuda_packable(a->x), [&](auto al) {
            int64_t rows = tensor_rows(a->x);
            return k_launch(name, scale_kernel<T, decltype(al)::value>,
                            dim3((unsigned)ceil_div(rows, SCALE_ROWS)), SCALE_THREADS, 0, cuda_stream(dev),
                            t_data<T>(a->y), t_data<T>(a->x), t_data<float>(a->gamma), (int)rows,
                            (int)tensor_cols(a->x), t_ld32(a->y), t_ld32(a->x));
        });
    });
}

template <typename T, bool AL> struct ScaleDwOp {
    static constexpr int SUMS = 1, BATCHES = 1;
    struct In {
        Pack<T> dy, x;
    };
    const T *dy, *x;
    int      ld_dy, ld_x;

    __device__ __forceinline__ In load(int row, int col, int n) const
    {
        In in;
        in.dy = vec_load<T, AL>(row_at(dy, row, ld_dy) + col, n);
        in.x  = vec_load<T, AL>(row_at(x, row, ld_x) + col, n);
        return in;
    }
    __device__ __forceinline__ void add(const In &in, int, int, int, float (&sum)[1][Pack<T>::N]) const
    {
        float d[Pack<T>::N], f[Pack<T>::N];
        vec_unpack(in.dy, d);
        vec_unpack(in.x, f);
#pragma unroll
        for (int i = 0; i < Pack<T>::N; i++) sum[0][i] = fmaf(d[i], f[i], sum[0][i]);
    }
};

extern "C" int cuda_scale_dw(Dev *dev, const ScaleDw *a)
{
    const char *name = "scale_dw";
    TRY(k_need_dtype(name, a->dgamma, DT_F32));
    TRY(k_need_dtype(name, a->x, a->dy->dtype));
    return k_dispatch(a->dy->dtype, name, [&](auto zero) {
        using T = decltype(zero);
        return k_flag(cuda_packable(a->dy) && cuda_packable(a->x), [&](auto al) {
            ScaleDwOp<T, decltype(al)::value> op = { t_data<T>(a->dy), t_data<T>(a->x), t_ld32(a->dy),
                                                     t_ld32(a->x) };
            return colsum_launch<T>(dev, name, op, tensor_rows(a->dy), tensor_cols(a->dy), a->ws,
                                    ColDst{ { t_data<float>(a->dgamma) } });
        });
    });
}
