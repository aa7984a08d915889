/* Conversions between number formats. */
#include "tensor/number.h"

#include "base/err.h"
#include "dev/cpu/cpu.h"

static float read_as_f32(const void *p, DType t, int64_t i)
{
    if (t == DT_F32) return ((const float *)p)[i];
    uint16_t u = ((const uint16_t *)p)[i];
    return t == DT_BF16 ? f32_from_bf16(u) : f32_from_f16(u);
}

static void write_f32_as(void *p, DType t, int64_t i, float x)
{
    if (t == DT_F32) {
        ((float *)p)[i] = x;
    } else {
        ((uint16_t *)p)[i] = t == DT_BF16 ? bf16_from_f32(x) : f16_from_f32(x);
    }
}

static int is_float(DType t) { return t == DT_F32 || t == DT_BF16 || t == DT_F16; }

int cpu_cast(Dev *dev, const Cast *a)
{
    CHECK(is_float(a->y->dtype) && is_float(a->x->dtype), "cast of %s to %s", dtype_name(a->x->dtype),
          dtype_name(a->y->dtype));
    int64_t cols = tensor_cols(a->x), n = tensor_numel(a->x), y_cols = tensor_cols(a->y);
    int64_t x_ld = tensor_ld(a->x), y_ld = tensor_ld(a->y);
    DType   from = a->x->dtype, to = a->y->dtype;
#pragma omp parallel for num_threads(cpu_threads(dev)) schedule(static) if (n >= CPU_PARALLEL_MIN)
    for (int64_t i = 0; i < n; i++) {
        float v = read_as_f32(a->x->data, from, i / cols * x_ld + i % cols);
        write_f32_as(a->y->data, to, i / y_cols * y_ld + i % y_cols, v);
    }
    return 0;
}
