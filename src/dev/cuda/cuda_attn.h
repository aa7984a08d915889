/* Attention: own kernels in tiles or cuDNN where they can run, the simple kernel (k_attn.cu) for everything
 * else. */
#ifndef DEV_CUDA_CUDA_ATTN_H
#define DEV_CUDA_CUDA_ATTN_H

#include "dev/cuda/cuda_dev.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Creates d->attn and opens cuDNN if it is there; a machine without it is no error. -1 after err_set(). */
int  cuda_attn_open(CudaDev *d);
void cuda_attn_close(CudaDev *d);

/* "cuDNN 9.14.0", or "no cuDNN"; writes into buf and returns it. */
const char *cuda_attn_version(const CudaDev *d, char *buf, size_t n);

/* Builds and warms the plan of one op if it is attention; 0 for any other op. */
int cuda_attn_prepare(CudaDev *d, const Op *op);

int cuda_attn_fwd(Dev *dev, const AttnFwd *a);
int cuda_attn_bwd(Dev *dev, const AttnBwd *a);

/* cuda_attn_cross.c */
int cuda_cross_attn_fwd(Dev *dev, const CrossAttnFwd *a);
int cuda_cross_attn_bwd(Dev *dev, const CrossAttnBwd *a);

/* k_attn.cu: any head size up to 256, any length, every mask, f32/bf16/f16; bit-stable. */
int cuda_flash_fwd(Dev *dev, const AttnFwd *a);
int cuda_flash_bwd(Dev *dev, const AttnBwd *a); /* needs 4*B*H*T bytes of ws */
int cuda_flash_cross_fwd(Dev *dev, const CrossAttnFwd *a);
int cuda_flash_cross_bwd(Dev *dev, const CrossAttnBwd *a); /* needs 4*B*H*T bytes of ws */
int cuda_flash_decode(Dev              *dev,
                      const AttnDecode *a); /* several tokens a sequence, which are in the caches already */

/* k_attn_decode.cu */
int cuda_attn_decode(Dev *dev, const AttnDecode *a);

#ifdef __cplusplus
}
#endif
#endif
