/* What every kernel file shares: 16-byte packs with a slow path for odd shapes, sums across a warp,
 * launching.
 *
 * 1. A row is cut into packs of Pack<T>::N elements; pack k belongs to the same thread whether it is moved as
 *    one 16-byte access (AL = true) or element by element (AL = false, odd widths, strides or addresses). So
 *    a value never depends on alignment, only speed does.
 * 2. `n` is how many elements of a pack lie inside the row; it may be zero or negative. Elements outside read
 *    as 0.
 * 3. Sums across a warp are butterflies: every lane ends with the same bits.
 * 4. Products that feed sums are written with __fmul_rn/__fadd_rn/fmaf, so that the compiler contracts the
 *    same way in every kernel that repeats the formula: a fused slot must give the bits of its parts.
 * 5. Element offsets are int64_t; a column index fits an int. row_at() is the only way to index a row by an
 *    int. */
#ifndef DEV_CUDA_K_COMMON_CUH
#define DEV_CUDA_K_COMMON_CUH

#include "dev/cuda/cuda_check.h"
#include "dev/cuda/cuda_dev.h"
#include "dev/cuda/cuda_types.cuh"
#include "dev/cuda/k_ptx.cuh"
#include "dev/cuda/kernels.h"

#include <stdint.h>
#include <type_traits>

enum { WARP = 32 };
#define FULL_WARP 0xffffffffu

typedef __nv_bfloat16 bf16;

__host__ __device__ constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* The position of row (b, t) of rows [B,T]: t behind pos0[b], or behind pos0[0] if it is every sequence's. */
__device__ __forceinline__ int64_t k_position(const int32_t *pos0, int one_pos, int64_t row, int T_len)
{
    return (pos0 ? pos0[one_pos ? 0 : row / T_len] : 0) + row % T_len;
}

/* ---- Packs ------------------------------------------------------------------------------------------- */

template <typename T> __device__ __forceinline__ Pack<T> pack_zero()
{
    Pack<T> v;
    *reinterpret_cast<uint4 *>(&v) = make_uint4(0, 0, 0, 0);
    return v;
}

/* A pack is handled as four 32-bit words: split into 16-bit elements it would fill eight registers while it
 * waits (seen in PTX, CUDA 13.0). */
template <typename T> __device__ __forceinline__ uint32_t *pack_words(Pack<T> &v)
{
    return reinterpret_cast<uint32_t *>(&v);
}
template <typename T> __device__ __forceinline__ const uint32_t *pack_words(const Pack<T> &v)
{
    return reinterpret_cast<const uint32_t *>(&v);
}

/* Read once and not again: evict first, so that small tables stay in the L1 cache. */
template <typename T, bool AL> __device__ __forceinline__ Pack<T> vec_load(const T *p, int64_t n)
{
    Pack<T>   v = pack_zero<T>();
    uint32_t *w = pack_words(v);
    if (AL) {
        *reinterpret_cast<uint4 *>(&v) = ptx_load_stream(p, n > 0);
    } else if (sizeof(T) == 4) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (i < n) w[i] = reinterpret_cast<const uint32_t *>(p)[i];
        }
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            if (i < n) w[i / 2] |= (uint32_t) reinterpret_cast<const uint16_t *>(p)[i] << (i % 2 * 16);
        }
    }
    return v;
}

template <typename T, bool AL> __device__ __forceinline__ void vec_store(T *p, const Pack<T> &v, int64_t n)
{
    const uint32_t *w = pack_words(v);
    if (AL) {
        if (n > 0) pack_store(p, v);
    } else if (sizeof(T) == 4) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (i < n) reinterpret_cast<uint32_t *>(p)[i] = w[i];
        }
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            if (i < n) reinterpret_cast<uint16_t *>(p)[i] = (uint16_t)(w[i / 2] >> (i % 2 * 16));
        }
    }
}

/* See ptx_forget. */
template <typename T> __device__ __forceinline__ void vec_forget(Pack<T> &v)
{
    ptx_forget(reinterpret_cast<uint4 *>(&v));
}

__device__ __forceinline__ void vec_unpack(const Pack<float> &v, float *f)
{
#pragma unroll
    for (int i = 0; i < 4; i++) f[i] = __uint_as_float(pack_words(v)[i]);
}
/* A bf16 is the upper half of the f32 of the same value. */
__device__ __forceinline__ void vec_unpack(const Pack<bf16> &v, float *f)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t w   = pack_words(v)[i];
        f[2 * i]     = __uint_as_float(w << 16);
        f[2 * i + 1] = __uint_as_float(w & 0xffff0000u);
    }
}

__device__ __forceinline__ void vec_unpack(const Pack<__half> &v, float *f)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t w   = pack_words(v)[i];
        float2   two = __half22float2(*reinterpret_cast<__half2 *>(&w));
        f[2 * i]     = two.x;
        f[2 * i + 1] = two.y;
    }
}

__device__ __forceinline__ Pack<float> vec_round(const float *f, float)
{
    Pack<float> v;
#pragma unroll
    for (int i = 0; i < 4; i++) pack_words(v)[i] = __float_as_uint(f[i]);
    return v;
}
/* Two at a time: one conversion instruction instead of two and a merge. */
__device__ __forceinline__ Pack<bf16> vec_round(const float *f, bf16)
{
    Pack<bf16> v;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        __nv_bfloat162 h = __floats2bfloat162_rn(f[2 * i], f[2 * i + 1]);
        pack_words(v)[i] = *reinterpret_cast<uint32_t *>(&h);
    }
    return v;
}
/* What does not fit becomes infinite: that is how an overflow is found. */
__device__ __forceinline__ Pack<__half> vec_round(const float *f, __half)
{
    Pack<__half> v;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        __half2 h        = __floats2half2_rn(f[2 * i], f[2 * i + 1]);
        pack_words(v)[i] = *reinterpret_cast<uint32_t *>(&h);
    }
    return v;
}
template <typename T> __device__ __forceinline__ Pack<T> vec_pack(const float *f)
{
    return vec_round(f, T());
}

/* N floats of a small f32 table (gamma, beta, cos); kept in the L1 cache. */
template <int N, bool AL> __device__ __forceinline__ void table_load(const float *p, int64_t n, float *f)
{
#pragma unroll
    for (int i = 0; i < N; i++) f[i] = 0.0f;
    if (AL) {
        if (n > 0) {
#pragma unroll
            for (int i = 0; i < N; i += 4) {
                float4 q = ptx_table_load(p + i);
                f[i]     = q.x;
                f[i + 1] = q.y;
                f[i + 2] = q.z;
                f[i + 3] = q.w;
            }
        }
    } else {
#pragma unroll
        for (int i = 0; i < N; i++) {
            if (i < n) f[i] = __ldg(p + i);
        }
    }
}

template <typename T> __device__ __forceinline__ T *row_at(T *p, int row, int ld)
{
    return p + ptx_mul_wide(row, ld);
}

/* ---- Sums across threads ----------------------------------------------------------------------------- */

template <typename S> __device__ __forceinline__ S warp_sum(S v)
{
#pragma unroll
    for (int d = WARP / 2; d > 0; d /= 2) v += __shfl_xor_sync(FULL_WARP, v, d);
    return v;
}

__device__ __forceinline__ float warp_max(float v)
{
#pragma unroll
    for (int d = WARP / 2; d > 0; d /= 2) v = fmaxf(v, __shfl_xor_sync(FULL_WARP, v, d));
    return v;
}

/* Sum over the block, valid in thread 0. slot has room for one S per warp; the block must not reuse it before
 * a __syncthreads() of its own. */
template <typename S> __device__ __forceinline__ S block_sum(S v, S *slot)
{
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, n_warp = blockDim.x / WARP;
    v = warp_sum(v);
    if (lane == 0) slot[warp] = v;
    __syncthreads();
    v = threadIdx.x < n_warp ? slot[lane] : S(0);
    return warp == 0 ? warp_sum(v) : S(0);
}

/* ---- Launching --------------------------------------------------------------------------------------- */

template <typename... P, typename... A>
static int k_launch(const char *op, void (*kernel)(P...), dim3 grid, int threads, size_t smem,
                    cudaStream_t stream, A... a)
{
    kernel<<<grid, threads, smem, stream>>>(static_cast<P>(a)...);
    return cuda_launched(op);
}

/* Calls f with a value of the C++ type of an activation dtype and returns f's int. */
template <typename F> static int k_dispatch(DType dtype, const char *op, F f)
{
    if (dtype == DT_F32) return f(float());
    if (dtype == DT_BF16) return f(bf16());
    return err_set("%s: no CUDA kernel for %s", op, dtype_name(dtype));
}

/* The same for ops of language models, which run in f16 as well. */
template <typename F> static int k_dispatch_half(DType dtype, const char *op, F f)
{
    return dtype == DT_F16 ? f(__half()) : k_dispatch(dtype, op, f);
}

/* Calls f with a compile-time true or false. */
template <typename F> static int k_flag(int flag, F f)
{
    return flag ? f(std::true_type()) : f(std::false_type());
}

/* Calls f with a compile-time count 1..4. */
template <typename F> static int k_count(int n, F f)
{
    switch (n) {
    case 1: return f(std::integral_constant<int, 1>());
    case 2: return f(std::integral_constant<int, 2>());
    case 3: return f(std::integral_constant<int, 3>());
    default: return f(std::integral_constant<int, 4>());
    }
}

template <typename T> static T *t_data(const Tensor *t) { return t ? static_cast<T *>(t->data) : nullptr; }
static inline int64_t           t_ld(const Tensor *t) { return t ? tensor_ld(t) : 0; }

/* A row stride for kernels that count rows in 32 bits: row*ld is then one instruction, not four. */
static inline int t_ld32(const Tensor *t)
{
    CHECK(t_ld(t) <= INT32_MAX, "row stride of %s", t->name);
    return (int)t_ld(t);
}

/* Negative after err_set() unless t (when present) has the dtype. */
static inline int k_need_dtype(const char *op, const Tensor *t, DType dtype)
{
    if (!t || t->dtype == dtype) return 0;
    return err_set("%s: %s is %s, the kernel needs %s", op, t->name, dtype_name(t->dtype), dtype_name(dtype));
}

/* Negative after err_set() unless ws has at least n bytes. */
static inline int k_need_ws(const char *op, const Tensor *ws, size_t n)
{
    if (n == 0 || (ws && tensor_bytes(ws) >= n)) return 0;
    return err_set("%s: workspace of %zu bytes, needs %zu", op, ws ? tensor_bytes(ws) : (size_t)0, n);
}

#endif
