/* The part of k_colsum.cuh that the own product uses, on the host. The real second stage keeps an array of
 * its own in shared memory. */
#ifndef TESTS_EMULATE_K_COLSUM_CUH
#define TESTS_EMULATE_K_COLSUM_CUH

#include "hopper.h"

enum { COLSUM_MAX_SUMS = 3 };
typedef struct {
    float *p[COLSUM_MAX_SUMS];
} ColDst;

/* part[slab][sum][cols] */
static inline int colsum_finish_launch(const char *, cudaStream_t, const float *part, int n_slab, int n_sum,
                                       int64_t cols, ColDst to)
{
    for (int64_t i = 0; i < n_sum * cols; i++) {
        float sum = 0.0f;
        for (int k = 0; k < n_slab; k++) sum += part[k * n_sum * cols + i];
        if (to.p[i / cols]) to.p[i / cols][i % cols] += sum;
    }
    return 0;
}

#endif
