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

static inline uint16_t f16_from_f32(float x)
{
    _Float16 h = (_Float16)x;
    uint16_t u;
    memcpy(&u, &h, 2);
    return u;
}

static inline float f32_from_f16(uint16_t u)
{
    _Float16 h;
    memcpy(&h, &u, 2);
    return (float)h;
}

#endif
