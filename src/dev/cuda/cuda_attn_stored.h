/* Attention that stores its weights (opt.flash off): cuda_attn_stored.c, and its passes over rows,
 * k_softmax.cu. */
#ifndef DEV_CUDA_CUDA_ATTN_STORED_H
#define DEV_CUDA_CUDA_ATTN_STORED_H

#include "dev/cuda/cuda_dev.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Slots for ops whose p is there; op_workspace_bytes() of ws are needed. */
int cuda_stored_fwd(Dev *dev, const AttnFwd *a);
int cuda_stored_bwd(Dev *dev, const AttnBwd *a);

/* Builds the plans of one such op; 0 for any other. */
int cuda_stored_prepare(CudaDev *d, const Op *op);

/* One head of all sequences: rows (b, t) of T numbers. s and dp are dense f32[B,T,T]; rows of p are
 * p_stride elements apart from sequence to sequence, those of lse lse_stride. */
typedef struct {
    int64_t    B, T, p_stride, lse_stride;
    DType      dtype; /* of p and ds */
    Mask       mask;
    float      scale;
    const int *doc, *prefix, *first, *last; /* [B,T], [B], [B,T], [B,T]; NULL unless the mask needs them */
} StoredRows;

/* p = softmax(scale s) over the keys a query sees, 0 elsewhere; lse = log sum exp. */
int cuda_softmax_rows(Dev *dev, const StoredRows *r, void *p, float *lse, const float *s);
/* ds[B,T,T] = scale p (dp - sum over keys of p dp), rounded to the dtype. */
int cuda_softmax_grad(Dev *dev, const StoredRows *r, void *ds, const void *p, const float *dp);

#ifdef __cplusplus
}
#endif
#endif
