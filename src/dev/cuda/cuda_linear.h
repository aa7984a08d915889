/* The slots of products: LINEAR_FWD, LINEAR_DX, LINEAR_DW with and without db, and the products fused with
 * what follows them. */
#ifndef DEV_CUDA_CUDA_LINEAR_H
#define DEV_CUDA_CUDA_LINEAR_H

#include "dev/dev.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The plain product that cuBLASLt runs for a fused op: fills *out, whose tensors may be *d, and returns 1; 0
 * when the op is none of these. */
int cuda_fused_product(const Op *op, Op *out, Tensor *d);

/* A product's op without the own kernel: the library's product, and what follows it. */
int cuda_linear_parts(Dev *dev, OpKind kind, const OpArgs *args);

int cuda_linear_fwd(Dev *dev, const LinearFwd *a);
int cuda_linear_dx(Dev *dev, const LinearDx *a);
int cuda_linear_dw(Dev *dev, const LinearDw *a);
int cuda_linear_act_fwd(Dev *dev, const LinearActFwd *a);
int cuda_linear_act_bwd(Dev *dev, const LinearActBwd *a);
int cuda_linear_glu_fwd(Dev *dev, const LinearGluFwd *a);
int cuda_linear_glu_bwd(Dev *dev, const LinearGluBwd *a);

#ifdef __cplusplus
}
#endif
#endif
