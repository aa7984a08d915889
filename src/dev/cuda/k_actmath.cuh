/* Activations and their derivatives in f32, written once for every kernel that needs them.
 *
 * 1. GELU is the tanh form in its logistic shape: 0.5*(1 + tanh(u)) = 1/(1 + exp(-2u)). tanh itself would
 *    cancel for negative x (1 + tanh) and cost more; this keeps a relative error of a few 1e-7.
 * 2. 1 - s is computed as e*s, not by subtraction; the exponent is clamped so that e stays finite. */
#ifndef DEV_CUDA_K_ACTMATH_CUH
#define DEV_CUDA_K_ACTMATH_CUH

#include "dev/cuda/k_common.cuh"

#define LOG2E 1.4426950408889634f

/* s = 1/(1 + exp(-z)), c = 1 - s */
__device__ __forceinline__ void act_logistic(float z, float *s, float *c)
{
    float e = ptx_ex2(fminf(__fmul_rn(z, -LOG2E), 125.0f));
    *s      = ptx_rcp(__fadd_rn(1.0f, e));
    *c      = __fmul_rn(e, *s);
}

/* z of GELU = x*logistic(z), and dz/dx: z = 2*sqrt(2/pi)*(x + 0.044715*x^3) */
__device__ __forceinline__ float act_gelu_z(float x)
{
    return __fmul_rn(x, fmaf(__fmul_rn(x, x), 1.5957691216057308f * 0.044715f, 1.5957691216057308f));
}
__device__ __forceinline__ float act_gelu_dz(float x)
{
    return fmaf(__fmul_rn(x, x), 3.0f * 1.5957691216057308f * 0.044715f, 1.5957691216057308f);
}

/* act(x) */
template <Act ACT> __device__ __forceinline__ float act_value(float x)
{
    float s, c;
    if (ACT == ACT_GELU) {
        act_logistic(act_gelu_z(x), &s, &c);
        return __fmul_rn(x, s);
    }
    if (ACT == ACT_SILU) {
        act_logistic(x, &s, &c);
        return __fmul_rn(x, s);
    }
    /* Written so that NaN stays NaN. */
    float r = x < 0.0f ? 0.0f : x;
    return ACT == ACT_RELU2 ? __fmul_rn(r, r) : r;
}

/* act'(x) */
template <Act ACT> __device__ __forceinline__ float act_slope(float x)
{
    float s, c;
    if (ACT == ACT_GELU) {
        act_logistic(act_gelu_z(x), &s, &c);
        return fmaf(__fmul_rn(__fmul_rn(x, act_gelu_dz(x)), s), c, s);
    }
    if (ACT == ACT_SILU) {
        act_logistic(x, &s, &c);
        return fmaf(__fmul_rn(x, s), c, s);
    }
    if (ACT == ACT_RELU2) return __fmul_rn(2.0f, x < 0.0f ? 0.0f : x);
    return x > 0.0f ? 1.0f : 0.0f;
}

/* Calls f with the activation as a compile-time value. */
template <typename F> static int act_dispatch(Act act, const char *op, F f)
{
    switch (act) {
    case ACT_GELU: return f(std::integral_constant<Act, ACT_GELU>());
    case ACT_RELU2: return f(std::integral_constant<Act, ACT_RELU2>());
    case ACT_SILU: return f(std::integral_constant<Act, ACT_SILU>());
    case ACT_RELU: return f(std::integral_constant<Act, ACT_RELU>());
    default: return err_set("%s: no CUDA kernel for activation %d", op, (int)act);
    }
}

#endif
