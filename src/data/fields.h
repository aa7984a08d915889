/* Fields: what a sample is. One row says name, dtype and shape of a field of one sample.
 *
 * 1. From the rows come the host slot, the device tensors and the upload: one layout, one contiguous block.
 * 2. A block begins with a head of FIELDS_HEAD bytes: int64 sample0, the number of the first row's sample.
 *    Field i follows at offset[i], a multiple of FIELDS_ALIGN, as an array of B samples.
 * 3. A ragged field has a count beside it: an ordinary field of one i32 per sample. */
#ifndef DATA_FIELDS_H
#define DATA_FIELDS_H

#include "tensor/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { FIELDS_MAX = 16, FIELDS_HEAD = 64, FIELDS_ALIGN = 64 };

typedef struct {
    const char *name;
    DType       dtype;
    int         ndim;   /* of one sample; 0: one number */
    int64_t     dim[3]; /* of one sample */
} FieldRow;

typedef struct {
    FieldRow row[FIELDS_MAX];
    int      n;
    int64_t  B; /* samples in a block */
    size_t   sample_bytes[FIELDS_MAX];
    size_t   offset[FIELDS_MAX]; /* bytes from the block's begin */
    size_t   block_bytes;        /* a multiple of FIELDS_ALIGN */
} Fields;

void fields_init(Fields *f, const FieldRow *row, int n, int64_t B);

int64_t fields_sample0(const void *block);
void    fields_set_sample0(void *block, int64_t sample0);

/* Field i of sample b of a block in host memory. */
void *fields_at(const Fields *f, void *block, int i, int64_t b);

#ifdef __cplusplus
}
#endif
#endif
