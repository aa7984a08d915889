/* Conversions between number formats, and fp8 quantisation.
 *
 * The CPU keeps fp8 values as f32 numbers that fp8 can hold: only the values matter, not the bytes. */
#include "tensor/number.h"

#include "base/err.h"
#include "dev/cpu/cpu.h"

#include <math.h>

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

typedef struct {
    int   mantissa;     /* bits */
    int   min_exponent; /* of a normal number */
    float max;
} Fp8;

/* Nearest number of the grid: a multiple of 2^(exponent - mantissa), the exponent clamped at the smallest
 * normal one. */
static float fp8_round(float x, const Fp8 *f)
{
    if (isnan(x)) return x;
    if (fabsf(x) >= f->max) return copysignf(f->max, x);
    int exponent;
    frexpf(x, &exponent); /* |x| = [0.5, 1) 2^exponent */
    float step = ldexpf(1.0f, MAX(exponent - 1, f->min_exponent) - f->mantissa);
    float y    = rintf(x / step) * step;
    return fabsf(y) > f->max ? copysignf(f->max, y) : y;
}

int cpu_quant(Dev *dev, const Quant *a)
{
    static const Fp8 e4m3 = { 3, -6, 448.0f }, e5m2 = { 2, -14, 57344.0f };
    CHECK(a->q_dtype == DT_E4M3 || a->q_dtype == DT_E5M2, "quantisation to %s", dtype_name(a->q_dtype));
    const Fp8 *f = a->q_dtype == DT_E4M3 ? &e4m3 : &e5m2;
    Mat        q = cpu_mat(a->q), qt = cpu_mat(a->qt), x = cpu_mat(a->x);
    float      scale = cpu_f32(a->scale)[0], top = 0;
#pragma omp parallel for num_threads(cpu_threads(dev)) schedule(static)                                      \
    reduction(max                                                                                            \
              : top) if (x.rows * x.cols >= CPU_PARALLEL_MIN)
    for (int64_t r = 0; r < x.rows; r++) {
        for (int64_t c = 0; c < x.cols; c++) {
            float v = mat_row(x, r)[c], y = fp8_round(v * scale, f);
            mat_row(q, r)[c] = y;
            if (qt.p) mat_row(qt, c)[r] = y;
            top = fabsf(v) > top ? fabsf(v) : top;
        }
    }
    float *amax = cpu_f32(a->amax);
    if (amax) amax[0] = top > amax[0] ? top : amax[0];
    return 0;
}
