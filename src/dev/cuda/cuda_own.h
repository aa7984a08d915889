/* Which products run on the own kernel (k_gemm.cu). Fused products run there if the kernel can do them,
 * unless timing found cuBLASLt's product with a separate pass faster. Plain products run there only if timing
 * found the own kernel faster. */
#ifndef DEV_CUDA_CUDA_OWN_H
#define DEV_CUDA_CUDA_OWN_H

#include "dev/cuda/cuda_dev.h"
#include "dev/cuda/k_gemm.h"

#ifdef __cplusplus
extern "C" {
#endif

void cuda_own_open(CudaDev *d); /* creates d->own */
void cuda_own_close(CudaDev *d);

/* The op as the kernel takes it: any product. 0 for any other op. */
int cuda_own_describe(OpKind kind, const OpArgs *args, OwnGemm *out);

/* 1 if the op runs on the own kernel. */
int cuda_own_takes(CudaDev *d, OpKind kind, const OpArgs *args, OwnGemm *out);

/* Launches it. -1 after err_set(). */
int cuda_own_run(CudaDev *d, const OwnGemm *g);

/* Measures both ways for an op that has both, once per shape, where timing is allowed. -1 after err_set(). */
int cuda_own_prepare(CudaDev *d, const Op *op);

#ifdef __cplusplus
}
#endif
#endif
