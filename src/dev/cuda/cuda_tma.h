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

/* Rows [batch, row, head, dim], ld elements apart. A box is of one head of one sequence: what lies behind the
 * head's last dimension or the sequence's last row reads as 0 and is not written. */
typedef struct {
    int64_t batch, rows, heads, dim, ld;
} TmaHeads;
int tma_map_heads(TmaEncode encode, CUtensorMap *map, const void *p, TmaHeads h, TmaBox b);

#ifdef __cplusplus
}
#endif
#endif
