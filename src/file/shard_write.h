/* Shard writer: tokens in, one complete shard out, or nothing.
 *
 * 1. The file appears under its name only in shard_write_publish(), complete and on disk; until then it is a
 *    temporary file beside it. A crash leaves the old file, if there was one.
 * 2. Ids take 2 bytes for a vocabulary of up to 65536, else 4. */
#ifndef FILE_SHARD_WRITE_H
#define FILE_SHARD_WRITE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ShardWriter ShardWriter;

/* Begins a shard whose ids are below vocab. NULL after err_set()/err_user(). */
ShardWriter *shard_write_begin(const char *path, int64_t vocab);

/* Appends n ids. Negative after err_user() (an id outside the vocabulary) or err_sys(). */
int shard_write_add(ShardWriter *w, const int32_t *tok, int64_t n);

/* Completes the file and gives it its name. Frees *w, also on failure, and sets it to NULL. Negative after
 * err_sys(). */
int shard_write_publish(ShardWriter **w);

/* Throws away what was written; no-op for NULL. Frees *w and sets it to NULL. */
void shard_write_discard(ShardWriter **w);

#ifdef __cplusplus
}
#endif
#endif
