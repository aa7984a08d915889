/* Number formats narrower than f32, as the host rounds them: to nearest, ties to even. */
#ifndef TENSOR_NUMBER_H
#define TENSOR_NUMBER_H

#include "tensor/tensor.h"

#include <stdint.h>
#include <string.h>

static inline uint16_t bf16_from_f32(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    if ((u & 0x7FFFFFFFu) > 0x7F800000u) return (uint16_t)((u >> 16) | 0x40u); /* NaN stays NaN */
    return (uint16_t)((u + 0x7FFFu + ((u >> 16) & 1u)) >> 16);
}

static inline float f32_from_bf16(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    float    x;
    memcpy(&x, &u, 4);
    return x;
}

/* By bits: not every compiler that builds this has _Float16. */
static inline uint16_t f16_from_f32(float x)
{
    uint32_t u, sign;
    memcpy(&u, &x, 4);
    sign = (u >> 16) & 0x8000u;
    u &= 0x7FFFFFFFu;
    if (u > 0x7F800000u) return (uint16_t)(sign | 0x7E00u | ((u >> 13) & 0x1FFu)); /* NaN stays NaN */
    if (u >= 0x477FF000u) return (uint16_t)(sign | 0x7C00u);                       /* 65520 and more */
    if (u < 0x38800000u) { /* below 2^-14: units of 2^-24, which are the last bits of a number near 0.5 */
        float near;
        memcpy(&near, &u, 4);
        near += 0.5f;
        memcpy(&u, &near, 4);
        return (uint16_t)(sign | (u - 0x3F000000u));
    }
    return (uint16_t)(sign | ((u - 0x38000000u + 0xFFFu + ((u >> 13) & 1u)) >> 13));
}

static inline float f32_from_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, e = (h >> 10) & 31u, m = h & 0x3FFu, u;
    float    x;
    u = e == 31 ? 0x7F800000u | (m << 13) | (m ? 0x400000u : 0) : ((e + 112) << 23) | (m << 13);
    if (e == 0) {
        x = (float)m * 0x1p-24f;
        memcpy(&u, &x, 4);
    }
    u |= sign;
    memcpy(&x, &u, 4);
    return x;
}

/* fp8 with `mantissa` bits and an exponent bias. What is too large becomes `most`, the code of the largest
 * number; NaN becomes 0x7F. */
static inline uint8_t fp8_from_f32(float x, int mantissa, int bias, uint8_t most)
{
    uint32_t u, sign, code;
    int      shift = 23 - mantissa;
    memcpy(&u, &x, 4);
    sign = (u >> 24) & 0x80u;
    u &= 0x7FFFFFFFu;
    if (u > 0x7F800000u) return 0x7F;
    if (u < (uint32_t)(128 - bias) << 23) { /* below the smallest normal number: a multiple of the last bit */
        float    small;
        uint32_t unit = (uint32_t)(127 + bias - 1 + mantissa) << 23;
        float    factor;
        memcpy(&small, &u, 4);
        memcpy(&factor, &unit, 4);
        small = small * factor + 0x1p23f; /* rounds to an integer */
        code  = (uint32_t)(small - 0x1p23f);
    } else {
        code = ((u + (1u << (shift - 1)) - 1 + ((u >> shift) & 1u)) >> shift) -
               ((uint32_t)(127 - bias) << mantissa);
    }
    return (uint8_t)(sign | (code > most ? most : code));
}

static inline uint8_t e4m3_from_f32(float x) { return fp8_from_f32(x, 3, 7, 0x7E); }
static inline uint8_t e5m2_from_f32(float x) { return fp8_from_f32(x, 2, 15, 0x7B); }

static inline float f32_from_e5m2(uint8_t b) { return f32_from_f16((uint16_t)((uint16_t)b << 8)); }

static inline float f32_from_e4m3(uint8_t b)
{
    uint32_t e = (b >> 3) & 15u, m = b & 7u, u = ((e + 120) << 23) | (m << 20);
    float    x = (float)m * 0x1p-9f;
    if ((b & 0x7F) == 0x7F) u = 0x7FC00000u;
    if (e != 0) memcpy(&x, &u, 4);
    return b & 0x80 ? -x : x;
}

/* ---- Arrays of f32, bf16 or f16, at any address -------------------------------------------------------- */

static inline float number_get(const void *array, DType t, int64_t i)
{
    uint16_t half;
    float    x;
    if (t == DT_F32) {
        memcpy(&x, (const char *)array + 4 * i, 4);
        return x;
    }
    memcpy(&half, (const char *)array + 2 * i, 2);
    return t == DT_BF16 ? f32_from_bf16(half) : f32_from_f16(half);
}

static inline void number_put(void *array, DType t, int64_t i, float x)
{
    if (t == DT_F32) {
        memcpy((char *)array + 4 * i, &x, 4);
        return;
    }
    uint16_t half = t == DT_BF16 ? bf16_from_f32(x) : f16_from_f32(x);
    memcpy((char *)array + 2 * i, &half, 2);
}

/* From the first to the last: out may be in where numbers become narrower. */
static inline void number_convert(DType to, void *out, DType from, const void *in, int64_t n)
{
    for (int64_t i = 0; i < n; i++) number_put(out, to, i, number_get(in, from, i));
}

#endif
