/* Bias gradients: BIAS_DW, and ACT_BIAS_BWD which computes the activation's gradient on the way.
 *
 * Maths    BIAS_DW  db[c] += sum over rows of dy[r][c];  ACT_BIAS_BWD  dx = dy*act'(x) rounded to storage,
 *          then the same sum over the rounded dx.
 * Layout   rows x cols with a row stride each; db f32[cols].
 * Grid     k_colsum.cuh: 32 packs of columns by a slab of rows a block.
 * Bytes    BIAS_DW cols*size a row; ACT_BIAS_BWD 3*cols*size a row. */
#include "dev/cuda/k_actmath.cuh"
#include "dev/cuda/k_colsum.cuh"

template <typename T, bool AL> struct BiasDwOp {
    static constexpr int SUMS = 1;
    struct In {
        Pack<T> dy;
    };
    const T *dy;
    int64_t  ld_dy;

    __device__ __forceinline__ In load(int64_t row, int col, int n) const
    {
        In in;
        in.dy = vec_load<T, AL>(dy + row * ld_dy + col, n);
        return in;
    }
    __device__ __forceinline__ void apply(const In &in, int64_t, int, int, float (&val)[1][Pack<T>::N]) const
    {
        vec_unpack(in.dy, val[0]);
    }
};

template <typename T, bool AL, Act ACT> struct ActBiasOp {
    static constexpr int SUMS = 1;
    struct In {
        Pack<T> dy, x;
    };
    T       *dx;
    const T *dy, *x;
    int64_t  ld_dx, ld_dy, ld_x;

    __device__ __forceinline__ In load(int64_t row, int col, int n) const
    {
        In in;
        in.dy = vec_load<T, AL>(dy + row * ld_dy + col, n);
        in.x  = vec_load<T, AL>(x + row * ld_x + col, n);
        return in;
    }
    __device__ __forceinline__ void apply(const In &in, int64_t row, int col, int n,
                                          float (&val)[1][Pack<T>::N]) const
    {
        float fx[Pack<T>::N];
        vec_unpack(in.dy, val[0]);
        vec_unpack(in.x, fx);
#pragma unroll
        for (int i = 0; i < Pack<T>::N; i++) val[0][i] = __fmul_rn(val[0][i], act_slope<ACT>(fx[i]));
        Pack<T> out = vec_pack<T>(val[0]);
        vec_store<T, AL>(dx + row * ld_dx + col, out, n);
        vec_unpack(out, val[0]);
    }
};

extern "C" int cuda_bias_dw(Dev *dev, const BiasDw *a)
{
    const char *name = "bias_dw";
    TRY(k_need_dtype(name, a->db, DT_F32));
    return k_dispatch(a->dy->dtype, name, [&](auto zero) {
        using T = decltype(zero);
        return k_flag(cuda_packable(a->dy), [&](auto al) {
            BiasDwOp<T, decltype(al)::value> op = { t_data<T>(a->dy), t_ld(a->dy) };
            return colsum_launch<T>(dev, name, op, tensor_rows(a->dy), tensor_cols(a->dy), a->ws,
                                    t_data<float>(a->db), nullptr);
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
    return act_dispatch(a->act, name, [&](auto act) {
        return k_dispatch(a->dy->dtype, name, [&](auto zero) {
            using T = decltype(zero);
            return k_flag(aligned, [&](auto al) {
                ActBiasOp<T, decltype(al)::value, decltype(act)::value> op;
                op.dx    = t_data<T>(a->dx);
                op.dy    = t_data<T>(a->dy);
                op.x     = t_data<T>(a->x);
                op.ld_dx = t_ld(a->dx);
                op.ld_dy = t_ld(a->dy);
                op.ld_x  = t_ld(a->x);
                return colsum_launch<T>(dev, name, op, tensor_rows(a->dy), tensor_cols(a->dy), a->ws,
                                        t_data<float>(a->db), nullptr);
            });
        });
    });
}
