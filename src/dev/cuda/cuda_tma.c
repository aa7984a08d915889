#include "dev/cuda/cuda_tma.h"

#include "base/err.h"

#include <stddef.h>

TmaEncode tma_encoder(void)
{
    void                                *f = NULL;
    enum cudaDriverEntryPointQueryResult got;
    cudaError_t                          e =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000, cudaEnableDefault, &got);
    return e == cudaSuccess && got == cudaDriverEntryPointSuccess ? (TmaEncode)f : NULL;
}

/* Encodes a map of n dimensions. */
static int encode_map(TmaEncode encode, CUtensorMap *map, const void *p, unsigned n, const cuuint64_t *dim,
                      const cuuint64_t *stride, const cuuint32_t *box, TmaBox b)
{
    const cuuint32_t   one[4] = { 1, 1, 1, 1 };
    CUtensorMapSwizzle swizzle =
        b.cols * b.bytes == 128 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B;
    CUresult r = encode(map, b.type, n, (void *)p, dim, stride, box, one, CU_TENSOR_MAP_INTERLEAVE_NONE,
                        swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return r == CUDA_SUCCESS ? 0 : err_set("cuTensorMapEncodeTiled: error %d", (int)r);
}

int tma_map(TmaEncode encode, CUtensorMap *map, const void *p, int64_t rows, int64_t cols, int64_t ld,
            TmaBox b)
{
    if (!p) return 0;
    cuuint64_t dim[2] = { (cuuint64_t)cols, (cuuint64_t)rows }, stride[1] = { (cuuint64_t)ld * b.bytes };
    cuuint32_t box[2] = { b.cols, b.rows };
    return encode_map(encode, map, p, 2, dim, stride, box, b);
}

int tma_map_heads(TmaEncode encode, CUtensorMap *map, const void *p, TmaHeads h, TmaBox b)
{
    if (!p) return 0;
    cuuint64_t row    = (cuuint64_t)h.ld * b.bytes;
    cuuint64_t dim[4] = { (cuuint64_t)h.dim, (cuuint64_t)h.heads, (cuuint64_t)h.rows, (cuuint64_t)h.batch };
    cuuint64_t stride[3] = { (cuuint64_t)h.dim * b.bytes, row, (cuuint64_t)h.rows * row };
    cuuint32_t box[4]    = { b.cols, 1, b.rows, 1 };
    return encode_map(encode, map, p, 4, dim, stride, box, b);
}
