/* Batched cuBLASLt products with kept plans, for ops whose products are not worth timing (cuda_ortho.c,
 * cuda_attn_stored.c).
 *
 * 1. A plan is shared by all products with the same BatchedKey. Pointers are arguments of a launch.
 * 2. The algorithm is the library's first proposal that sums in f32 in a fixed order. */
#ifndef DEV_CUDA_CUDA_BATCHED_H
#define DEV_CUDA_CUDA_BATCHED_H

#include "dev/cuda/cuda_dev.h"

enum { BATCHED_A, BATCHED_B, BATCHED_D };

/* d[i] = alpha op(a[i]) op(b[i]) + beta c[i] for n_batch column-major matrices, `stride` elements apart. c
 * has the layout of d. Compared bytewise: no padding, and zeroed before it is filled. */
typedef struct {
    int64_t n_batch, rows[3], cols[3], ld[3], stride[3], ws_bytes; /* of a, b, d as they are stored */
    int32_t dtype[3], ta, tb, align; /* 1: transposed; bytes that divide every matrix's address, up to 16 */
} BatchedKey;

typedef struct {
    const void *a, *b, *c;
    void       *d, *ws;
    float       alpha, beta;
} BatchedCall;

/* Builds the plan unless it is there. -1 after err_set(). */
int cuda_batched_prepare(CudaDev *d, const BatchedKey *key);
/* Launches the product on the stream of the op now being run. -1 after err_set(). */
int  cuda_batched_run(CudaDev *d, const BatchedKey *key, const BatchedCall *c);
void cuda_batched_close(CudaDev *d);

#endif
