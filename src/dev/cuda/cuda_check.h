/* Checks of CUDA calls and launches. Every failure becomes an err_set() with the call and CUDA's own text. */
#ifndef DEV_CUDA_CUDA_CHECK_H
#define DEV_CUDA_CUDA_CHECK_H

#include "base/err.h"

#include <cuda_runtime.h>

#define CUDA_TRY(call)                                                                                       \
    do {                                                                                                     \
        cudaError_t cuda_err_ = (call);                                                                      \
        if (cuda_err_ != cudaSuccess) return err_set("%s: %s", #call, cudaGetErrorString(cuda_err_));        \
    } while (0)

/* After a launch: 0, or -1 after err_set() naming the op. Only launch errors show here (bad grid, no image).
 * Errors while the kernel runs come back from the device's sync. */
static inline int cuda_launched(const char *op)
{
    cudaError_t e = cudaGetLastError();
    if (e == cudaSuccess) return 0;
    return err_set("%s: launch failed: %s", op, cudaGetErrorString(e));
}

#endif
