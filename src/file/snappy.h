/* Snappy: unpacks one block of Google's format, raw, without framing: what Parquet calls SNAPPY.
 *
 * 1. A block says how long its text is. A copy of 3 bytes makes 64 bytes at most, so a block cannot unpack to
 *    more than SNAPPY_RATIO times its size. */
#ifndef FILE_SNAPPY_H
#define FILE_SNAPPY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { SNAPPY_RATIO = 22 };

/* Unpacks n bytes at p into exactly n_out bytes. NULL, or what is wrong with the block. */
const char *snappy_unpack(const uint8_t *p, size_t n, uint8_t *out, size_t n_out);

#ifdef __cplusplus
}
#endif
#endif
