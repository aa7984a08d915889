/* ORTHO: Newton-Schulz steps as batched products. */
#ifndef DEV_CUDA_CUDA_ORTHO_H
#define DEV_CUDA_CUDA_ORTHO_H

#include "dev/cuda/cuda_dev.h"

#ifdef __cplusplus
extern "C" {
#endif

int cuda_ortho(Dev *dev, const Ortho *a);

/* Builds the plans of one such op; 0 for any other. */
int cuda_ortho_prepare(CudaDev *d, const Op *op);

#ifdef __cplusplus
}
#endif
#endif
