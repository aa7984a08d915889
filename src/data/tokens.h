/* Tokens: a sequence of token ids of known length.
 *
 * 1. data.kind says where the ids come from.
 *      text    the bytes of a file, ids 0 to 255. With data.tokenizer any text, through the shards of
 *              data/text_cache.h
 *      tokens  shards: one file, or the *.bin files of a folder in the order of their names (strcmp), read as
 *              one sequence. Or a set: a folder with folders train and val
 *      uint16  the same without headers
 *      random  uniform ids from Philox, the same for the same seed
 * 2. Without data.val the validation part is the folder val of a set, else the last data.val_fraction of
 *    data.train; the two parts never overlap. If both are missing, there is no validation part.
 * 3. A Tokens does not change after it was opened; any number of threads may read it.
 * 4. Every id that tokens_read() returns is below the recipe's vocabulary; anything else is an error that
 *    names the file and the token. */
#ifndef DATA_TOKENS_H
#define DATA_TOKENS_H

#include "conf/recipe.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct Tokens Tokens;

/* Length of a random source: no run uses it up. */
#define TOKENS_RANDOM_LEN (INT64_C(1) << 40)

/* Opens the training part (validation 0) or the validation part (1) of a recipe's data. The part has at least
 * one window. The caller closes it. Negative after err_user()/err_set(). */
int tokens_open(Tokens **out, const Recipe *r, int validation);

/* 0: the recipe keeps nothing for validation (files only; noise has always some). */
int tokens_has_val(const Recipe *r);

/* All tokens of a text file, a shard or a folder of shards, without a recipe. Otherwise the same. */
int tokens_open_path(Tokens **out, DataKind kind, const char *path, int64_t vocab);

void tokens_close(Tokens *s); /* NULL is allowed */

/* 1: a validation part with files of its own, not a share of data.train. */
int tokens_is_separate(const Tokens *s);

int64_t     tokens_len(const Tokens *s);
const char *tokens_name(const Tokens *s); /* "data.train: FILE", for messages */

/* Copies the ids [first, first+n), which lie inside the source, to out. Negative after
 * err_set()/err_user(). */
int tokens_read(const Tokens *s, int64_t first, int64_t n, int32_t *out);

/* Documents that lie wholly inside the part; 0: the files have no index of documents. They are neighbours:
 * each begins where the one before ends. */
int64_t tokens_documents(const Tokens *s);
/* Writes n+1 numbers of tokens: where document `first` begins, and where each of the n documents from there
 * on ends. Negative after err_set()/err_user(). */
int tokens_read_bounds(const Tokens *s, int64_t first, int64_t n, int64_t *bound);
/* The token that ends (or begins) each document, as the files say it; -1: none, or they do not agree. */
int64_t tokens_end_token(const Tokens *s);
int64_t tokens_begin_token(const Tokens *s);

/* A hash of the part, its files' sizes and blocks spread evenly over them: other data have another one. Names
 * do not count. A block that cannot be read is left out: whoever trains on it will say so. 0 for random. */
uint64_t tokens_fingerprint(const Tokens *s);

/* Bytes of tokens in its files: of all of them, also where the source is a part. 0 for random. */
int64_t tokens_bytes(const Tokens *s);

/* Reads these once: checksums of shards, and every id is below both vocabularies. Nothing to do for other
 * kinds. Negative after err_user()/err_set(). */
int tokens_verify(const Tokens *s);

#ifdef __cplusplus
}
#endif
#endif
