/* QUANT: to fp8, as it is and transposed, with the largest magnitude, in one read.
 *
 * Maths    q = saturate(x*scale) in e4m3 or e5m2;  qt[c][r] = q[r][c];  amax = max(amax, max |x|).
 * Layout   x, q rows x cols with a row stride; qt [cols, rows] with a row stride; scale, amax f32[1].
 * Grid     a block a tile of 128 rows x 64 columns. A thread converts 4 rows x 8 columns; for each of the 8
 *          columns its four bytes make one word of the transposed tile in shared memory, [64 columns][32
 *          words], which the warps then write out, one column (128 bytes of a row of qt) a warp at a time.
 * Order    amax goes through an atomic maximum on the bits of a non-negative float: the order does not
 *          matter.
 * Bytes    size + 1 (+ 1 with qt) an element. */
#include "dev/cuda/k_common.cuh"

#include <cuda_fp8.h>

enum { Q_ROWS = 128, Q_COLS = 64, Q_THREADS = 256, Q_WORDS = Q_ROWS / 4 };

template <typename T> struct QuantP {
    uint8_t     *q, *qt;
    float       *amax;
    const T     *x;
    const float *scale;
    int64_t      ld_q, ld_qt, ld_x, rows, cols;
};

/* Eight elements of a row, whatever the pack; those outside read as 0. */
template <typename T, bool AL> __device__ __forceinline__ void quant_load(const T *p, int64_t n, float *f)
{
#pragma unroll
    for (int i = 0; i < 8; i += Pack<T>::N) vec_unpack(vec_load<T, AL>(p + i, n - i), f + i);
}

template <__nv_fp8_interpretation_t FP8>
__device__ __forceinline__ uint2 quant_round(const float *f, float scale)
{
    uint32_t w[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float2 v = make_float2(__fmul_rn(f[2 * i], scale), __fmul_rn(f[2 * i + 1], scale));
        w[i]     = __nv_cvt_float2_to_fp8x2(v, __NV_SATFINITE, FP8);
    }
    return make_uint2(w[0] | w[1] << 16, w[2] | w[3] << 16);
}

template <typename T, bool AL, __nv_fp8_interpretation_t FP8>
__global__ void __launch_bounds__(Q_THREADS) quant_kernel(QuantP<T> p)
{
    __shared__ uint32_t
        tile[Q_COLS][Q_WORDS + 1]; /* [column][four rows a word], padded against bank conflicts */
    __shared__ float slot[Q_THREADS / WARP];
    int     tx = threadIdx.x % 8, ty = threadIdx.x / 8, lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    int64_t row0 = (int64_t)blockIdx.y * Q_ROWS, col0 = (int64_t)blockIdx.x * Q_COLS;
    int64_t row = row0 + ty * 4, col = col0 + tx * 8, n = p.cols - col;
    float   f[4][8], top = 0.0f, scale = *p.scale;
    uint8_t byte[4][8];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        quant_load<T, AL>(p.x + (row + i) * p.ld_x + col, row + i < p.rows ? n : 0, f[i]);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int k = 0; k < 8; k++) top = fmaxf(top, fabsf(f[i][k]));
        uint2 v = quant_round<FP8>(f[i], scale);
#pragma unroll
        for (int k = 0; k < 8; k++) byte[i][k] = (uint8_t)((k < 4 ? v.x : v.y) >> (k % 4 * 8));
        uint8_t *q = p.q + (row + i) * p.ld_q + col;
        if (row + i < p.rows && n > 0) {
            if (AL) {
                *reinterpret_cast<uint2 *>(q) = v;
            } else {
#pragma unroll
                for (int k = 0; k < 8; k++) {
                    if (k < n) q[k] = byte[i][k];
                }
            }
        }
    }
    if (p.qt) {
#pragma unroll
        for (int k = 0; k < 8; k++) {
            tile[tx * 8 + k][ty] =
                byte[0][k] | byte[1][k] << 8 | byte[2][k] << 16 | (uint32_t)byte[3][k] << 24;
        }
    }
    top = warp_max(top);
    if (lane == 0) slot[warp] = top;
    __syncthreads();
    if (p.amax && warp == 0) {
        top = warp_max(lane < Q_THREADS / WARP ? slot[lane] : 0.0f);
        if (lane == 0) atomicMax(reinterpret_cast<int *>(p.amax), __float_as_int(top));
    }
    if (!p.qt) return;
    for (int c = warp; c < Q_COLS && col0 + c < p.cols; c += Q_THREADS / WARP) {
        int64_t  r  = row0 + lane * 4;
        uint32_t w  = tile[c][lane];
        uint8_t *qt = p.qt + (col0 + c) * p.ld_qt + r;
        if (AL) {
            if (r < p.rows) *reinterpret_cast<uint32_t *>(qt) = w;
        } else {
#pragma unroll
            for (int k = 0; k < 4; k++) {
                if (r + k < p.rows) qt[k] = (uint8_t)(w >> (k * 8));
            }
        }
    }
}

/* 8-byte stores of q, 4-byte stores of qt, 16-byte loads of x. */
static int quant_aligned(const Quant *a)
{
    int al = cuda_packable(a->x) && tensor_cols(a->x) % 8 == 0 && (uintptr_t)a->q->data % 8 == 0 &&
             tensor_ld(a->q) % 8 == 0;
    if (a->qt) {
        al = al && (uintptr_t)a->qt->data % 4 == 0 && tensor_ld(a->qt) % 4 == 0 && tensor_rows(a->x) % 4 == 0;
    }
    return al;
}

template <typename T, __nv_fp8_interpretation_t FP8> static int quant_launch(Dev *dev, const Quant *a)
{
    QuantP<T> p;
    p.q           = t_data<uint8_t>(a->q);
    p.qt          = t_data<uint8_t>(a->qt);
    p.amax        = t_data<float>(a->amax);
    p.x           = t_data<T>(a->x);
    p.scale       = t_data<float>(a->scale);
    p.ld_q        = t_ld(a->q);
    p.ld_qt       = t_ld(a->qt);
    p.ld_x        = t_ld(a->x);
    p.rows        = tensor_rows(a->x);
    p.cols        = tensor_cols(a->x);
    int64_t tiles = ceil_div(p.rows, Q_ROWS);
    if (tiles > 65535) return err_set("quant: %lld rows, at most %d", (long long)p.rows, 65535 * Q_ROWS);
    dim3 grid((unsigned)ceil_div(p.cols, Q_COLS), (unsigned)tiles);
    return k_flag(quant_aligned(a), [&](auto al) {
        return k_launch("quant", quant_kernel<T, decltype(al)::value, FP8>, grid, Q_THREADS, 0,
                        cuda_stream(dev), p);
    });
}

extern "C" int cuda_quant(Dev *dev, const Quant *a)
{
    const char *op = "quant";
    if (a->q_dtype != DT_E4M3 && a->q_dtype != DT_E5M2) {
        return err_set("quant: no CUDA kernel for %s", dtype_name(a->q_dtype));
    }
    TRY(k_need_dtype(op, a->q, a->q_dtype));
    TRY(k_need_dtype(op, a->qt, a->q_dtype));
    return k_dispatch(a->x->dtype, op, [&](auto zero) {
        using T = decltype(zero);
        return a->q_dtype == DT_E4M3 ? quant_launch<T, __NV_E4M3>(dev, a)
                                     : quant_launch<T, __NV_E5M2>(dev, a);
    });
}
