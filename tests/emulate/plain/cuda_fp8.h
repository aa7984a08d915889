/* What k_quant.cu asks of CUDA's header of this name, on the CPU. */
#ifndef TESTS_EMULATE_PLAIN_CUDA_FP8_H
#define TESTS_EMULATE_PLAIN_CUDA_FP8_H

#include "tensor/number.h"

enum __nv_fp8_interpretation_t { __NV_E4M3, __NV_E5M2 };
enum { __NV_SATFINITE };

static inline uint16_t __nv_cvt_float2_to_fp8x2(float2 v, int, __nv_fp8_interpretation_t t)
{
    uint8_t x = t == __NV_E4M3 ? e4m3_from_f32(v.x) : e5m2_from_f32(v.x);
    uint8_t y = t == __NV_E4M3 ? e4m3_from_f32(v.y) : e5m2_from_f32(v.y);
    return (uint16_t)(x | y << 8);
}

#endif
