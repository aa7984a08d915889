/* Text cache: token shards of a recipe's text, made once.
 *
 * 1. The shards are in the folder for runs ($BRIM_RUNS, or runs), in .tokens/HASH. HASH follows from the list
 *    of files (names, inodes, sizes, times), the tokenizer, data.field, data.split and the share for
 *    validation.
 * 2. A lock lets one process at a time make a set. Others wait and then read it. The folder is safe to
 *    delete. */
#ifndef DATA_TEXT_CACHE_H
#define DATA_TEXT_CACHE_H

#include "conf/recipe.h"

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Writes the folder of the set into buf; makes the set if there is none. key: data.train or data.val, which
 * names text as brim data tokens takes it. val: share of the documents for validation. Negative after
 * err_user()/err_set(), with the key that is to blame unless it is this one. */
int text_cache(const Recipe *r, const char *key, double val, char *buf, size_t n);

#ifdef __cplusplus
}
#endif
#endif
