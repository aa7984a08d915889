/* Shard writer: tokens in, one complete shard out, or nothing.
 *
 * 1. The file appears under its name only in shard_write_publish(), complete and on disk; until then it is a
 *    temporary file beside it. A crash leaves the old file, if there was one.
 * 2. Ids take 2 bytes for a vocabulary of up to 65536, else 4.
 * 3. A shard with documents gets an index. Then every token belongs to a document: the last call before
 *    shard_write_publish() is shard_write_end_document(). */
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

/* The tokens that begin and end each document, for readers; -1: none. Before the first document. */
void shard_write_marks(ShardWriter *w, int64_t begin_token, int64_t end_token);

/* The tokens added since the document before, at least one, are a document made of so many bytes of text.
 * Negative after err_sys(). */
int shard_write_end_document(ShardWriter *w, int64_t text_bytes);

int64_t shard_write_len(const ShardWriter *w); /* tokens so far */

/* Completes the file and gives it its name. Frees *w, also on failure, and sets it to NULL. Negative after
 * err_sys(). */
int shard_write_publish(ShardWriter **w);

/* Throws away what was written; no-op for NULL. Frees *w and sets it to NULL. */
void shard_write_discard(ShardWriter **w);

#ifdef __cplusplus
}
#endif
#endif
