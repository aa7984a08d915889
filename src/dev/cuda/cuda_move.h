/* Fill, copy and cast, the separate bias addition, and small helpers of timing. */
#ifndef DEV_CUDA_CUDA_MOVE_H
#define DEV_CUDA_CUDA_MOVE_H

#include "dev/cuda/cuda_dev.h"

#ifdef __cplusplus
extern "C" {
#endif

int cuda_fill(Dev *dev, const Fill *a);
int cuda_copy(Dev *dev, const Copy *a);
int cuda_cast(Dev *dev, const Cast *a);

/* A matrix at plain addresses, for calls that have no Tensor (timing on scratch). */
typedef struct {
    void   *data;
    DType   dtype;
    int64_t rows, cols, ld;
} CudaMat;

/* y[r][c] += bias[c], rounded to y's type; bias f32, bf16 or f16, contiguous. */
int cuda_bias_add(Dev *dev, const CudaMat *y, const void *bias, DType bias_dtype);

/* Fills n elements with uniform numbers in [-1, 1): timing on zeros would measure a cooler, faster chip. */
int cuda_fill_random(Dev *dev, void *p, DType dtype, int64_t n_elem, uint32_t seed);

/* Keeps the current stream busy for about time_us, so that the host can queue timed work behind it. */
int cuda_spin(Dev *dev, int time_us);

/* 0 if this build's kernels can run on the current device; -1 after err_set(). */
int cuda_probe_image(void);

#ifdef __cplusplus
}
#endif
#endif
