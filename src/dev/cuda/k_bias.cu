/* Bias gradients: BIAS_DW, and ACT_BIAS_BWD which computes the activation's gradient on the way.
 *
 * Maths    BIAS_DW  db[c] += sum over rows of dy[r][c];  ACT_BIAS_BWD  dx = dy*act'(x) rounded to storage,
 *          then the same sum over the rounded dx.
 * Layout   rows x cols with a row stride each; db f32[cols].
 * Grid     k_colsum.cuh: 32 packs of columns by every so many rows a block.
 * Bytes    BIAS_DW cols*size a row; ACT_BIAS_BWD 3*cols*size a row. */
#include "dev/cuda/k_actmath.cuh"
#include "dev/cuda/k_colsum.cuh"

template <typename T, bool AL, Act ACT> struct ActBiasOp {
    static constexpr int SUMS = 1, BATCHES = 1;
    struct In {
        Pack<T> dy, x;
    };
    T       *dx;
    const T *dy, *x;
    int      ld_dx, ld_dy, ld_x;

    __device__ __forceinline__ In load(int row, int col, int n) const
    {
        In in;
        in.dy = vec_load<T, AL>(row_at(dy, row, ld_dy) + col, n);
        in.x  = vec_load<T, AL>(row_at(x, row, ld_x) + col, n);
        return in;
    }
    __device__ __forceinline__ void add(const In &in, int row, int col, int n,
                                        float (&sum)[1][Pack<T>::N]) const
    {
        float d[Pack<T>::N], fx[Pack<T>::N];
        vec_unpack(in.dy, d);
        vec_unpack(in.x, fx);
#pragma unroll
        for (int i = 0; i < Pack<T>::N; i++) d[i] = __fmul_rn(d[i], act_slope<ACT>(fx[i]));
        Pack<T> out = vec_pack<T>(d);
        vec_store<T, AL>(row_at(dx, row, ld_dx) + col, out, n);
        vec_unpack(out, d);
#pragma unroll
        for (int i = 0; i < Pack<T>::N; i++) sum[0][i] = __fadd_rn(sum[0][i], d[i]);
    }
};

extern "C" int cuda_bias_dw(Dev *dev, const BiasDw *a)
{
    const char *name = "bias_dw";
    TRY(k_need_dtype(name, a->db, DT_F32));
    return k_dispatch_half(a->dy->dtype, name, [&](auto zero) {
        using T = decltype(zero);
        return k_flag(cuda_packable(a->dy), [&](auto al) {
            BiasDwOp<T, decltype(al)::value> op = { t_data<T>(a->dy), t_ld32(a->dy) };
            return colsum_launch<T>(dev, name, op, tensor_rows(a->dy), tensor_cols(a->dy), a->ws,
                                    ColDst{ { t_data<float>(a->db) } });
        });
    });
}

extern "C" int cuda_act_bias_bwd(Dev *dev, const ActBiasBwd *a)
{
    const char *name = "act_bias_bwd";
    TRY(k_need_dtype(name, a->db, DT_F32));
    TRY(k_need_dtype(name, a->dx, a->dy->dtype));
    TRY(k_need_dtype(name, a->x, a->dy->dtype));
    int aligned = cuda_packable(a->dx) && cuda_packable(a->dy) && cuda_packable(a->x);
    return any_dispatch(a->act, name, [&](auto act) {
        return k_dispatch_half(a->dy->dtype, name, [&](auto zero) {
            using T = decltype(zero);
            return k_flag(aligned, [&](auto al) {
                ActBiasOp<T, decltype(al)::value, decltype(act)::value> op;
                op.dx    = t_data<T>(a->dx);
                op.dy    = t_data<T>(a->dy);
                op.x     = t_data<T>(a->x);
                op.ld_dx = t_ld32(a->dx);
                op.ld_dy = t_ld32(a->dy);
                op.ld_x  = t_ld32(a->x);
                return colsum_launch<T>(dev, name, op, tensor_rows(a->dy), tensor_cols(a->dy), a->ws,
                                        ColDst{ { t_data<float>(a->db) } });
            });
        });
    });
}
