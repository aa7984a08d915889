/* The gradient of cross-entropy, element by element, for every kernel that makes it. */
#ifndef DEV_CUDA_K_XENTMATH_CUH
#define DEV_CUDA_K_XENTMATH_CUH

#include "dev/cuda/k_actmath.cuh"

/* The gradient of an element that is not the target's is 2^(x*log2(e) + shift): the scale costs nothing. */
__device__ __forceinline__ float xent_shift(float lse, float log2_scale)
{
    return fmaf(-lse, LOG2E, log2_scale);
}

/* The target's own element: scale*(p - 1). Where p is near 1 the difference must not see the scale's
 * rounding, so p is computed without. */
__device__ __forceinline__ float xent_hit_dx(float x, float lse, float scale)
{
    float p = ptx_ex2(fmaf(x, LOG2E, -__fmul_rn(lse, LOG2E)));
    return __fmul_rn(__fsub_rn(p, 1.0f), scale);
}

#endif
