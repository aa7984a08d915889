/* Element types of kernels: conversion to and from f32, 16-byte packs, and choosing a template by dtype.
 *
 * 1. Kernels compute in f32; only loads and stores know the storage type. Stores round to nearest even.
 * 2. A Pack moves 16 bytes at once; use it only where base address and row stride are multiples of 16 bytes
 *    (cuda_packable says so for a tensor). */
#ifndef DEV_CUDA_CUDA_TYPES_CUH
#define DEV_CUDA_CUDA_TYPES_CUH

#include "base/err.h"
#include "dev/cuda/k_ptx.cuh"
#include "tensor/tensor.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <stdint.h>

__device__ __forceinline__ float to_f32(float v) { return v; }
__device__ __forceinline__ float to_f32(__nv_bfloat16 v) { return __bfloat162float(v); }
__device__ __forceinline__ float to_f32(__half v) { return __half2float(v); }

template <typename T> __device__ __forceinline__ T   from_f32(float v);
template <> __device__ __forceinline__ float         from_f32<float>(float v) { return v; }
template <> __device__ __forceinline__ __nv_bfloat16 from_f32<__nv_bfloat16>(float v)
{
    return __float2bfloat16_rn(v);
}
template <> __device__ __forceinline__ __half from_f32<__half>(float v) { return __float2half_rn(v); }

/* 16 bytes of T. */
template <typename T> struct alignas(16) Pack {
    static constexpr int N = 16 / (int)sizeof(T);
    T                    v[N];
};

/* Through uint4: assigned as a struct, a pack of eight bf16 becomes eight accesses of two bytes (seen in PTX,
 * CUDA 13.0). */
template <typename T> __device__ __forceinline__ Pack<T> pack_load(const T *p)
{
    Pack<T> v;
    *reinterpret_cast<uint4 *>(&v) = *reinterpret_cast<const uint4 *>(p);
    return v;
}
/* To global memory. */
template <typename T> __device__ __forceinline__ void pack_store(T *p, const Pack<T> &v)
{
    ptx_store(p, *reinterpret_cast<const uint4 *>(&v));
}

/* 1 if every row of t can be read in 16-byte packs. An absent tensor does not stand in the way. */
static inline int cuda_packable(const Tensor *t)
{
    if (!t) return 1;
    size_t size = dtype_bytes(t->dtype);
    return (uintptr_t)t->data % 16 == 0 && (size_t)tensor_cols(t) * size % 16 == 0 &&
           (tensor_rows(t) == 1 || (size_t)tensor_ld(t) * size % 16 == 0);
}

/* Calls f with a value of the C++ type of dtype (float, __nv_bfloat16 or __half) and returns f's int:
 *     return cuda_dispatch(a->x->dtype, "norm_fwd", [&](auto zero) { using T = decltype(zero); ... }); */
template <typename F> static int cuda_dispatch(DType dtype, const char *op, F f)
{
    switch (dtype) {
    case DT_F32: return f(float());
    case DT_BF16: return f(__nv_bfloat16());
    case DT_F16: return f(__half());
    default: return err_set("%s: no CUDA kernel for %s", op, dtype_name(dtype));
    }
}

#endif
