/* Vocab: which tokenizer goes with a recipe's data, and how much text its tokens stand for. */
#ifndef DATA_VOCAB_H
#define DATA_VOCAB_H

#include "conf/recipe.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The path of the tokenizer: data.tokenizer, else tokenizer.json in the folder of the shards or above it. 1:
 * it is in buf; 0: there is none. */
int vocab_path(const Recipe *r, char *buf, size_t n);

/* Bytes of text of each id below n, 0 for special tokens and for ids that are no token; malloc'ed. 1: *out is
 * set; 0: the data have no tokenizer. Negative after err_user()/err_set(). */
int vocab_bytes(const Recipe *r, int64_t n, uint16_t **out);

#ifdef __cplusplus
}
#endif
#endif
