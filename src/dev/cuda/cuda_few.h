/* Products with few rows (k_few.cu): memory-bound, so each weight is read once and nothing else matters. */
#ifndef DEV_CUDA_CUDA_FEW_H
#define DEV_CUDA_CUDA_FEW_H

#include "dev/dev.h"

#ifdef __cplusplus
extern "C" {
#endif

/* 1: the op is a product with few rows that these kernels run. */
int cuda_few_takes(OpKind kind, const OpArgs *args);
int cuda_few_run(Dev *dev, OpKind kind, const OpArgs *args);

/* The kernels themselves: any number of rows, aligned or not. */
int cuda_few_linear_fwd(Dev *dev, const LinearFwd *a);
int cuda_few_linear_act_fwd(Dev *dev, const LinearActFwd *a);
int cuda_few_linear_glu_fwd(Dev *dev, const LinearGluFwd *a);

#ifdef __cplusplus
}
#endif
#endif
