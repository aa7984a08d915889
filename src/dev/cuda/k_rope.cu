/* Rotary embedding: ROPE, and its gradient (inverse).
 *
 * Maths    for pair i of a head: (a, b) = (x[i], x[i + D/2]);  y[i] = a*cos - b*sin, y[i + D/2] = b*cos +
 *          a*sin with the angle of position pos0[b] + t; inverse: sin negated.
 * Layout   x, y [B,T,W] packed rows with a row stride; the first n_head heads of D columns are rotated, the
 *          rest copied. table f32[positions, D] = [cos | sin].
 * Grid     a warp a row; a lane takes a pack of the lower half and its partner pack of the upper half. In
 *          place the rest of the row is left alone.
 * Bytes    2*W*size a row (in place: 2*n_head*D*size); the table stays in cache. */
#include "dev/cuda/k_common.cuh"

enum { ROPE_THREADS = 256 };

template <typename T> struct RopeP {
    T             *y;
    const T       *x;
    const float   *table;
    const int32_t *pos0;
    int64_t        ld_y, ld_x, ld_table, rows;
    int            T_len, cols, n_head, head_dim, one_pos; /* one_pos: pos0[0] is every sequence's */
    float          sign;                                   /* of the sine */
};

template <typename T, bool AL>
__device__ __forceinline__ void rope_pack(const RopeP<T> &p, const T *x, T *y, const float *cs, int n)
{
    constexpr int N    = Pack<T>::N;
    int           half = p.head_dim / 2;
    float         a[N], b[N], c[N], s[N];
    vec_unpack(vec_load<T, AL>(x, n), a);
    vec_unpack(vec_load<T, AL>(x + half, n), b);
    table_load<N, AL>(cs, n, c);
    table_load<N, AL>(cs + half, n, s);
#pragma unroll
    for (int i = 0; i < N; i++) {
        float sin = __fmul_rn(s[i], p.sign), lower = a[i];
        a[i] = fmaf(lower, c[i], -__fmul_rn(b[i], sin));
        b[i] = fmaf(b[i], c[i], __fmul_rn(lower, sin));
    }
    vec_store<T, AL>(y, vec_pack<T>(a), n);
    vec_store<T, AL>(y + half, vec_pack<T>(b), n);
}

template <typename T, bool AL> __global__ void __launch_bounds__(ROPE_THREADS) rope_kernel(RopeP<T> p)
{
    constexpr int N   = Pack<T>::N;
    int64_t       row = (int64_t)blockIdx.x * (ROPE_THREADS / WARP) + threadIdx.x / WARP;
    if (row >= p.rows) return;
    int          lane = threadIdx.x % WARP, half = p.head_dim / 2;
    int          per_head = (half + N - 1) / N; /* packs of half a head */
    const T     *x        = p.x + row * p.ld_x;
    T           *y        = p.y + row * p.ld_y;
    const float *cs       = p.table + k_position(p.pos0, p.one_pos, row, p.T_len) * p.ld_table;
    for (int k = lane; k < p.n_head * per_head; k += WARP) {
        int head = k / per_head, i = (k - head * per_head) * N;
        rope_pack<T, AL>(p, x + head * p.head_dim + i, y + head * p.head_dim + i, cs + i, half - i);
    }
    if (x == y) return;
    for (int col = p.n_head * p.head_dim + lane * N; col < p.cols; col += WARP * N) {
        vec_store<T, AL>(y + col, vec_load<T, AL>(x + col, p.cols - col), p.cols - col);
    }
}

extern "C" int cuda_rope(Dev *dev, const Rope *a)
{
    const char *op = "rope";
    TRY(k_need_dtype(op, a->y, a->x->dtype));
    TRY(k_need_dtype(op, a->table, DT_F32));
    TRY(k_need_dtype(op, a->pos0, DT_I32));
    return k_dispatch_half(a->x->dtype, op, [&](auto zero) {
        using T = decltype(zero);
        RopeP<T> p;
        p.y         = t_data<T>(a->y);
        p.x         = t_data<T>(a->x);
        p.table     = t_data<float>(a->table);
        p.pos0      = t_data<int32_t>(a->pos0);
        p.ld_y      = t_ld(a->y);
        p.ld_x      = t_ld(a->x);
        p.ld_table  = t_ld(a->table);
        p.rows      = tensor_rows(a->x);
        p.one_pos   = !a->pos0 || tensor_numel(a->pos0) == 1;
        p.T_len     = (int)a->x->dim[a->x->ndim - 2];
        p.cols      = (int)tensor_cols(a->x);
        p.n_head    = a->n_head;
        p.head_dim  = a->head_dim;
        p.sign      = a->inverse ? -1.0f : 1.0f;
        int aligned = cuda_packable(a->x) && cuda_packable(a->y) && cuda_packable(a->table) &&
                      a->head_dim / 2 % Pack<T>::N == 0;
        unsigned grid = (unsigned)ceil_div(p.rows, ROPE_THREADS / WARP);
        return k_flag(aligned, [&](auto al) {
            return k_launch(op, rope_kernel<T, decltype(al)::value>, dim3(grid), ROPE_THREADS, 0,
                            cuda_stream(dev), p);
        });
    });
}
