/* Tensor maps: how the copy engine finds its boxes in a matrix. */
#ifndef DEV_CUDA_CUDA_TMA_H
#define DEV_CUDA_CUDA_TMA_H

#include <cuda.h>
#include <cuda_runtime.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The driver's cuTensorMapEncodeTiled. */
typedef CUresult (*TmaEncode)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                              const cuuint64_t *, const cuuint32_t *, const cuuint32_t *,
                              CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                              CUtensorMapFloatOOBfill);

/* NULL when the driver has none. */
TmaEncode tma_encoder(void);

typedef struct {
    CUtensorMapDataType type;
    unsigned            bytes;      /* of an element */
    unsigned            cols, rows; /* of a box; its rows of 64 or 128 bytes are swizzled as wholes */
} TmaBox;

/* The map of a row-major matrix whose rows are ld elements apart; nothing for p = NULL. 0, or -1 after
 * err_set(). */
int tma_map(TmaEncode encode, CUtensorMap *map, const void *p, int64_t rows, int64_t cols, int64_t ld,
            TmaBox b);

#ifdef __cplusplus
}
#endif
#endif
