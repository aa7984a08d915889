/* Number formats narrower than f32, as the host rounds them: to nearest, ties to even. */
#ifndef TENSOR_NUMBER_H
#define TENSOR_NUMBER_H

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

#endif
