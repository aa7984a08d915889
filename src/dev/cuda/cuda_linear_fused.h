/* Products fused with what follows them: LINEAR_ACT_BWD, LINEAR_GLU_FWD, LINEAR_GLU_BWD, LINEAR_DW with db. */
#ifndef DEV_CUDA_CUDA_LINEAR_FUSED_H
#define DEV_CUDA_CUDA_LINEAR_FUSED_H

#include "dev/dev.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The plain product that cuBLASLt runs for a fused op: fills *out, whose tensors may be *d, and returns 1; 0 when the op is
 * none of these. */
int cuda_fused_product(const Op *op, Op *out, Tensor *d);

/* LINEAR_ACT_BWD, LINEAR_GLU_FWD or LINEAR_GLU_BWD as that product and what follows it. */
int cuda_fused_parts(Dev *dev, OpKind kind, const OpArgs *args);

int cuda_linear_act_bwd(Dev *dev, const LinearActBwd *a);
int cuda_linear_glu_fwd(Dev *dev, const LinearGluFwd *a);
int cuda_linear_glu_bwd(Dev *dev, const LinearGluBwd *a);
int cuda_linear_dw_bias(Dev *dev, const LinearDw *a); /* the slot of LINEAR_DW, with and without db */

#ifdef __cplusplus
}
#endif
#endif
