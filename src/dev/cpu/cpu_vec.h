/* Vectors of VL floats in the compiler's own notation (vector_size), so that one source fits AVX-512, AVX2,
 * SSE, NEON.
 *
 * 1. Sums are kept in explicit lanes and folded in a fixed order: the same row gives the same bits at any
 *    address. A compiler's own vectorised reduction does not promise that, because it may peel for alignment.
 * 2. vf_get / vf_put handle the last, partial vector of a row; lanes past the end read as 0 and are not
 *    written.
 * 3. vf_exp is accurate to 1 unit in the last place on [-87.33, 88.37] (0.69 measured). Below, the result is
 *    0; above, it is infinite; NaN stays NaN. */
#ifndef DEV_CPU_VEC_H
#define DEV_CPU_VEC_H

#include <stdint.h>

#if defined(__AVX512F__)
enum { VL = 16, VREGS = 32 };
#elif defined(__AVX__)
enum { VL = 8, VREGS = 16 };
#elif defined(__aarch64__)
enum { VL = 4, VREGS = 32 };
#else
enum { VL = 4, VREGS = 16 };
#endif

#define VEC_INLINE static inline __attribute__((always_inline))

/* Loops over tensors fetch this many floats ahead: the hardware's own prefetching stops at every page of 4
 * KiB. A core that waits there moves 14 GB/s instead of 21 (measured on activations' gradients). Past the end
 * it does no harm. */
enum { VEC_AHEAD = 1024 };
VEC_INLINE void vec_ahead(const float *p)
{
    __builtin_prefetch((void *)((uintptr_t)p + VEC_AHEAD * sizeof *p));
}

typedef float    vf __attribute__((vector_size(VL * 4)));
typedef int32_t  vi __attribute__((vector_size(VL * 4)));
typedef uint32_t vu __attribute__((vector_size(VL * 4)));
/* The same in memory, at any address a float may have. */
typedef float   vf_mem __attribute__((vector_size(VL * 4), aligned(4), may_alias));
typedef int32_t vi_mem __attribute__((vector_size(VL * 4), aligned(4), may_alias));

VEC_INLINE vf   vf_load(const float *p) { return *(const vf_mem *)p; }
VEC_INLINE void vf_store(float *p, vf v) { *(vf_mem *)p = v; }
VEC_INLINE vi   vi_load(const int32_t *p) { return *(const vi_mem *)p; }
VEC_INLINE vf   vf_set(float s) { return s - (vf){ 0 }; } /* minus, because 0 + -0 is not -0 */
VEC_INLINE vi   vi_set(int32_t s) { return s - (vi){ 0 }; }

/* mask ? a : b, lane by lane; a comparison of vectors gives such a mask. */
VEC_INLINE vf vf_where(vi mask, vf a, vf b) { return (vf)((mask & (vi)a) | (~mask & (vi)b)); }

/* vf_max and vf_min give their second operand when either is NaN. */
#if defined(__AVX512F__)
#include <immintrin.h>
VEC_INLINE __mmask16 vf_mask(int64_t left) { return (__mmask16)((1u << left) - 1); }
VEC_INLINE vf   vf_get_part(const float *p, int64_t left) { return _mm512_maskz_loadu_ps(vf_mask(left), p); }
VEC_INLINE void vf_put_part(float *p, int64_t left, vf v) { _mm512_mask_storeu_ps(p, vf_mask(left), v); }
VEC_INLINE vf   vf_max(vf a, vf b) { return _mm512_max_ps(a, b); }
VEC_INLINE vf   vf_min(vf a, vf b) { return _mm512_min_ps(a, b); }
VEC_INLINE vf   vf_sqrt(vf a) { return _mm512_sqrt_ps(a); }
#else
VEC_INLINE vf vf_get_part(const float *p, int64_t left)
{
    vf v = { 0 };
    for (int l = 0; l < VL; l++) v[l] = l < left ? p[l] : 0.0f;
    return v;
}
VEC_INLINE void vf_put_part(float *p, int64_t left, vf v)
{
    for (int l = 0; l < VL; l++) {
        if (l < left) p[l] = v[l];
    }
}
VEC_INLINE vf vf_max(vf a, vf b) { return vf_where(a > b, a, b); }
VEC_INLINE vf vf_min(vf a, vf b) { return vf_where(a < b, a, b); }
VEC_INLINE vf vf_sqrt(vf a)
{
    for (int l = 0; l < VL; l++) a[l] = __builtin_sqrtf(a[l]);
    return a;
}
#endif

VEC_INLINE vf vf_get(const float *p, int64_t left) { return left >= VL ? vf_load(p) : vf_get_part(p, left); }
VEC_INLINE void vf_put(float *p, int64_t left, vf v)
{
    if (left >= VL) {
        vf_store(p, v);
    } else {
        vf_put_part(p, left, v);
    }
}

/* v with the lanes from `left` on set to 0. */
VEC_INLINE vf vf_keep(vf v, int64_t left)
{
    vi lane;
    for (int l = 0; l < VL; l++) lane[l] = l;
    return left >= VL ? v : (vf)((vi)v & (lane < (int32_t)left));
}

/* a0 b0 a1 b1 ... of the lower, and of the upper halves. */
#if defined(__AVX512F__)
#define ZIP_LOW  0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define ZIP_HIGH 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#elif defined(__AVX__)
#define ZIP_LOW  0, 8, 1, 9, 2, 10, 3, 11
#define ZIP_HIGH 4, 12, 5, 13, 6, 14, 7, 15
#else
#define ZIP_LOW  0, 4, 1, 5
#define ZIP_HIGH 2, 6, 3, 7
#endif
VEC_INLINE vf vf_zip_low(vf a, vf b) { return __builtin_shufflevector(a, b, ZIP_LOW); }
VEC_INLINE vf vf_zip_high(vf a, vf b) { return __builtin_shufflevector(a, b, ZIP_HIGH); }

/* Sum of the lanes, halving: lane l + lane l+VL/2 first. */
VEC_INLINE float vf_sum(vf v)
{
    float lane[VL];
    vf_store(lane, v);
    for (int half = VL / 2; half >= 1; half /= 2) {
        for (int l = 0; l < half; l++) lane[l] += lane[l + half];
    }
    return lane[0];
}

VEC_INLINE float vf_top(vf v)
{
    float lane[VL];
    vf_store(lane, v);
    float top = lane[0];
    for (int l = 1; l < VL; l++) top = lane[l] > top ? lane[l] : top;
    return top;
}

/* e^x = 2^n e^r with n = round(x log2 e), |r| <= ln2/2; e^r = 1 + r + r^2 q(r), q of degree 4, minimax
 * (relative error 3e-9, so float rounding dominates). Adding 1.5 * 2^23 rounds to an integer and leaves n in
 * the low bits. */
VEC_INLINE vf vf_exp(vf x)
{
    const float lo = -87.33654f, hi = 89.0f; /* from 88.37 on n is 128 and the scale infinite */
    vf          c = vf_min(vf_set(hi), vf_max(vf_set(lo), x));
    vf          t = c * 1.44269504f + 12582912.0f;
    vf          n = t - 12582912.0f;
    vf r     = c - n * 0.693145752f; /* ln2 in two parts; the first has few bits, so n times it is exact */
    r        = r - n * 1.42860677e-6f;
    vf q     = r * 1.381454017e-03f + 8.368745109e-03f;
    q        = q * r + 4.166839078e-02f;
    q        = q * r + 1.666652040e-01f;
    q        = q * r + 4.999999343e-01f;
    vf p     = r + r * r * q + 1.0f;
    vf scale = (vf)(((vu)t << 23) + 0x3F800000u);
    return (vf)(~(x < vf_set(lo)) & (vi)(p * scale));
}

/* 1 / (1 + e^-x) */
VEC_INLINE vf vf_sigmoid(vf x) { return 1.0f / (1.0f + vf_exp(-x)); }

VEC_INLINE vf vf_abs(vf x) { return (vf)((vi)x & 0x7FFFFFFF); }

/* Below 0.6: x + x^3 p(x^2), p of degree 4 (relative error 1e-8). Above: (1 - e^-2|x|)/(1 + e^-2|x|). */
VEC_INLINE vf vf_tanh(vf x)
{
    vf s   = x * x;
    vf p   = s * -6.276389034e-03f + 2.111621513e-02f;
    p      = p * s - 5.387513851e-02f;
    p      = p * s + 1.333292401e-01f;
    p      = p * s - 3.333333043e-01f;
    vf e   = vf_exp(-2.0f * vf_abs(x));
    vf far = (1.0f - e) / (1.0f + e);
    far    = (vf)((vi)far | ((vi)x & INT32_MIN));
    return vf_where(vf_abs(x) < vf_set(0.6f), x + x * s * p, far);
}

/* Distribution function of the normal distribution: erfc(z)/2 for x < 0, else 1 - erfc(z)/2; z = |x|/sqrt(2).
 * erfc(z) = e^(-z^2) t q(u) with t = 1/(1 + z/2) and u = 2.38 t - 1.38. q has degree 10 and was fitted for
 * z <= 10.4 (relative error 6e-9); beyond, e^(-z^2) is 0. */
VEC_INLINE vf vf_normal(vf x)
{
    vf z    = vf_abs(x) * 0.707106781f;
    vf t    = 1.0f / (1.0f + 0.5f * z);
    vf u    = t * 2.384615385f - 1.384615385f;
    vf q    = u * 5.551475189e-06f + 6.565076380e-06f;
    q       = q * u - 6.983725856e-05f;
    q       = q * u + 8.802036921e-06f;
    q       = q * u + 6.192590803e-04f;
    q       = q * u - 6.639640181e-04f;
    q       = q * u - 6.293605278e-03f;
    q       = q * u + 6.240678651e-03f;
    q       = q * u + 1.032320858e-01f;
    q       = q * u + 3.270029069e-01f;
    q       = q * u + 5.699115596e-01f;
    vf half = 0.5f * (t * q) * vf_exp(-0.5f * (x * x));
    return vf_where(x < vf_set(0), half, 1.0f - half);
}

/* v[i][j] becomes v[j][i]: log2(VL) rounds that interleave row i with row i + VL/2. */
VEC_INLINE void vf_transpose(vf v[VL])
{
    for (int round = 1; round < VL; round *= 2) {
        vf w[VL];
        for (int i = 0; i < VL / 2; i++) {
            w[2 * i]     = vf_zip_low(v[i], v[i + VL / 2]);
            w[2 * i + 1] = vf_zip_high(v[i], v[i + VL / 2]);
        }
        for (int i = 0; i < VL; i++) v[i] = w[i];
    }
}

#endif
