/* Conversions between number formats. */
#include "tensor/number.h"

#include "base/err.h"
#include "dev/cpu/cpu.h"

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
        float v = number_get(a->x->data, from, i / cols * x_ld + i % cols);
        number_put(a->y->data, to, i / y_cols * y_ld + i % y_cols, v);
    }
    return 0;
}
