/* Convert: other files to token shards. */
#ifndef DATA_CONVERT_H
#define DATA_CONVERT_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Writes the bytes of a text file as a shard with a vocabulary of 256. *n_token, unless NULL, gets their
 * number. Negative after err_user() (the input) or err_set(); then out is as it was before. */
int data_convert_text(const char *in, const char *out, int64_t *n_token);

/* Rewrites a shard of any kind that can be read (llm.c's or Brim's), or a folder of shards, as one Brim shard
 * with a given vocabulary. Every id must be below the vocabulary. The rest as above. */
int data_convert_shard(const char *in, const char *out, int64_t vocab, int64_t *n_token);

#ifdef __cplusplus
}
#endif
#endif
