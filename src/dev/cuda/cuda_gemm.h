/* Matrix products through cuBLASLt: plans, the timed choice of an algorithm. */
#ifndef DEV_CUDA_CUDA_GEMM_H
#define DEV_CUDA_CUDA_GEMM_H

#include "dev/cuda/cuda_dev.h"

#ifdef __cplusplus
extern "C" {
#endif

int  cuda_gemm_open(CudaDev *d); /* creates d->gemm; -1 after err_set() */
void cuda_gemm_close(CudaDev *d);

/* cuBLASLt's version as it counts: 130100 for 13.1.0. */
size_t cuda_gemm_version(void);

/* Builds (and, where allowed, times) the plan of one op if it is a matrix product; 0 for any other op. */
int cuda_gemm_prepare(CudaDev *d, const Op *op);

/* Runs LINEAR_FWD, LINEAR_DX, LINEAR_DW (dw alone, not db) or LINEAR_ACT_FWD. */
int cuda_gemm_run(CudaDev *d, OpKind kind, const OpArgs *args);

/* Slots of fp8 products. */
int cuda_fp8_linear(Dev *dev, const Fp8Linear *a);
int cuda_fp8_linear_dw(Dev *dev, const Fp8LinearDw *a);

#ifdef __cplusplus
}
#endif
#endif
