/* Vocab: which tokenizer goes with a recipe's data, how much text its tokens stand for, and which tokens end
 * a document or a sample. */
#ifndef DATA_VOCAB_H
#define DATA_VOCAB_H

#include "conf/recipe.h"
#include "text/tokenizer.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { VOCAB_PATH = RECIPE_STR + 32, VOCAB_ENDS = 16 };

/* Sets what follows from the data and is not given: data.tokenizer, the file beside the shards, and
 * data.document_token. Refuses a data.tokenizer that did not make the shards. need_data 0: the data may be
 * elsewhere. Negative after recipe_blame(). */
int vocab_complete(Recipe *r, int need_data);

/* The path of the tokenizer into buf[VOCAB_PATH]: data.tokenizer, else tokenizer.json in the folder of the
 * shards or above it. 0: there is none. */
int vocab_path(const Recipe *r, char *buf);

/* The token that ends a document of text: data.document_token, else the tokenizer's own; -1: none. */
int32_t vocab_document_token(const Recipe *r, const Tokenizer *t);

/* Ids that end a sample into id[VOCAB_ENDS]: sample.eos, else the token that ends a document. t: NULL if
 * there is no tokenizer. Returns how many; negative after recipe_blame(). */
int vocab_ends(const Recipe *r, const Tokenizer *t, int32_t *id);

/* Bytes of text of each id below n, 0 for special tokens and for ids that are no token; malloc'ed. 1: *out is
 * set; 0: the data have no tokenizer. Negative after err_user()/err_set(). */
int vocab_bytes(const Recipe *r, int64_t n, uint16_t **out);

#ifdef __cplusplus
}
#endif
#endif
