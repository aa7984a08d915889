/* Activations and their derivatives in f32, written once for every kernel that needs them.
 *
 * 1. GELU is the tanh form in its logistic shape: 0.5*(1 + tanh(u)) = 1/(1 + exp(-2u)). With tanh itself, 1 +
 *    tanh would cancel for negative x and cost more. This form keeps a relative error of a few 1e-7.
 * 2. Factors are folded, so that an element costs as few instructions as possible: these instructions limit
 *    the kernels that apply an activation while the tensor cores work. For z below -88, exp(-z) is infinite
 *    and the logistic 0, as it should be. */
#ifndef DEV_CUDA_K_ACTMATH_CUH
#define DEV_CUDA_K_ACTMATH_CUH

#include "dev/cuda/k_common.cuh"

#define LOG2E 1.4426950408889634f

/* 1/(1 + 2^y): the logistic of z for y = -z*log2(e) */
__device__ __forceinline__ float act_logistic(float y) { return ptx_rcp(__fadd_rn(1.0f, ptx_ex2(y))); }

/* GELU = x*logistic(z) with z = 2*sqrt(2/pi)*(x + 0.044715*x^3): -z*log2(e), and dz/dx */
#define GELU_A 1.5957691216057308f
#define GELU_B (GELU_A * 0.044715f)
__device__ __forceinline__ float act_gelu_y(float x)
{
    return __fmul_rn(x, fmaf(__fmul_rn(x, x), -LOG2E * GELU_B, -LOG2E * GELU_A));
}
__device__ __forceinline__ float act_gelu_dz(float x) { return fmaf(__fmul_rn(x, x), 3.0f * GELU_B, GELU_A); }

/* Distribution function of the normal distribution. */
__device__ __forceinline__ float act_normal(float x)
{
    return __fmul_rn(0.5f, erfcf(__fmul_rn(x, -0.7071067811865476f)));
}

/* act(x) */
template <Act ACT> __device__ __forceinline__ float act_value(float x)
{
    if (ACT == ACT_GELU) return __fmul_rn(x, act_logistic(act_gelu_y(x)));
    if (ACT == ACT_SILU) return __fmul_rn(x, act_logistic(__fmul_rn(x, -LOG2E)));
    if (ACT == ACT_TANH) return tanhf(x);
    if (ACT == ACT_SIGMOID) return act_logistic(__fmul_rn(x, -LOG2E));
    if (ACT == ACT_GELU_ERF) return __fmul_rn(x, act_normal(x));
    /* Written so that NaN stays NaN. */
    float r = x < 0.0f ? 0.0f : x;
    return ACT == ACT_RELU2 ? __fmul_rn(r, r) : r;
}

/* act'(x) */
template <Act ACT> __device__ __forceinline__ float act_slope(float x)
{
    if (ACT == ACT_GELU) {
        float s = act_logistic(act_gelu_y(x));
        return fmaf(__fmul_rn(x, act_gelu_dz(x)), fmaf(-s, s, s), s);
    }
    if (ACT == ACT_SILU) {
        float s = act_logistic(__fmul_rn(x, -LOG2E));
        return fmaf(x, fmaf(-s, s, s), s);
    }
    if (ACT == ACT_RELU2) return __fmul_rn(2.0f, x < 0.0f ? 0.0f : x);
    if (ACT == ACT_TANH || ACT == ACT_SIGMOID) {
        float f = ACT == ACT_TANH ? 2.0f : 1.0f; /* from e^-|z|, so that small slopes are precise */
        float e = ptx_ex2(__fmul_rn(fabsf(x), -LOG2E * f)), r = ptx_rcp(__fadd_rn(1.0f, e));
        return __fmul_rn(__fmul_rn(__fmul_rn(f * f, e), r), r);
    }
    if (ACT == ACT_GELU_ERF) {
        float density = __fmul_rn(0.3989422804014327f, ptx_ex2(__fmul_rn(__fmul_rn(x, x), -0.5f * LOG2E)));
        return fmaf(x, density, act_normal(x));
    }
    if (ACT == ACT_SLOPE) return x;
    return x > 0.0f ? 1.0f : 0.0f;
}

/* Both, at the price of one logistic. */
typedef struct {
    float value, slope;
} ActBoth;

template <Act ACT> __device__ __forceinline__ ActBoth act_both(float x)
{
    if (ACT == ACT_GELU || ACT == ACT_SILU) {
        float s  = act_logistic(ACT == ACT_GELU ? act_gelu_y(x) : __fmul_rn(x, -LOG2E));
        float dz = ACT == ACT_GELU ? __fmul_rn(x, act_gelu_dz(x)) : x;
        return { __fmul_rn(x, s), fmaf(dz, fmaf(-s, s, s), s) };
    }
    return { act_value<ACT>(x), act_slope<ACT>(x) };
}

/* A gated output, and what its gradient multiplies by: act'(gate) * up and act(gate). */
typedef struct {
    float y, slope, value;
} GluBoth;

template <Act ACT> __device__ __forceinline__ GluBoth glu_both(float gate, float up)
{
    ActBoth a = act_both<ACT>(gate);
    return { __fmul_rn(a.value, up), __fmul_rn(a.slope, up), a.value };
}

/* Gradients of act(gate) * up. With ACT_SLOPE, gate and up are what to multiply by already. */
typedef struct {
    float gate, up;
} GluGrad;

template <Act ACT> __device__ __forceinline__ GluGrad glu_grad(float d, float gate, float up)
{
    if (ACT == ACT_SLOPE) return { __fmul_rn(d, gate), __fmul_rn(d, up) };
    ActBoth a = act_both<ACT>(gate);
    return { __fmul_rn(__fmul_rn(d, up), a.slope), __fmul_rn(d, a.value) };
}

/* Calls f with an activation that products fuse as a compile-time value. */
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

/* The same for gradients, which also know ACT_SLOPE. */
template <typename F> static int slope_dispatch(Act act, const char *op, F f)
{
    if (act == ACT_SLOPE) return f(std::integral_constant<Act, ACT_SLOPE>());
    return act_dispatch(act, op, f);
}

/* Calls f with any activation, or ACT_SLOPE: for elementwise kernels. */
template <typename F> static int any_dispatch(Act act, const char *op, F f)
{
    switch (act) {
    case ACT_TANH: return f(std::integral_constant<Act, ACT_TANH>());
    case ACT_SIGMOID: return f(std::integral_constant<Act, ACT_SIGMOID>());
    case ACT_GELU_ERF: return f(std::integral_constant<Act, ACT_GELU_ERF>());
    default: return slope_dispatch(act, op, f);
    }
}

#endif
