#include "data/fields.h"

#include "base/err.h"

#include <string.h>

void fields_init(Fields *f, const FieldRow *row, int n, int64_t B)
{
    CHECK(n >= 0 && n <= FIELDS_MAX && B > 0, "%d fields of %lld samples", n, (long long)B);
    memset(f, 0, sizeof *f);
    f->n           = n;
    f->B           = B;
    f->block_bytes = FIELDS_HEAD;
    for (int i = 0; i < n; i++) {
        int64_t elems = 1;
        f->row[i]     = row[i];
        for (int k = 0; k < row[i].ndim; k++) elems *= row[i].dim[k];
        f->sample_bytes[i] = (size_t)elems * dtype_bytes(row[i].dtype);
        f->offset[i]       = f->block_bytes;
        f->block_bytes += (size_t)round_up((int64_t)f->sample_bytes[i] * B, FIELDS_ALIGN);
    }
}

int64_t fields_sample0(const void *block)
{
    int64_t sample0;
    memcpy(&sample0, block, sizeof sample0);
    return sample0;
}

void fields_set_sample0(void *block, int64_t sample0)
{
    memset(block, 0, FIELDS_HEAD);
    memcpy(block, &sample0, sizeof sample0);
}

void *fields_at(const Fields *f, void *block, int i, int64_t b)
{
    return (char *)block + f->offset[i] + (size_t)b * f->sample_bytes[i];
}
