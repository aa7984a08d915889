/* Check: finds faults in a recipe's data before a run begins.
 *
 * 1. Shards of up to DATA_CHECK_BYTES are read whole: the checksum of Brim's own format must be right, and
 *    every id must be below the vocabulary. Larger shards are read only for data.verify true, none for false.
 *    A line of the log says what was done.
 * 2. Text cannot be wrong: any byte is a token. What is hardly text is warned of. */
#ifndef DATA_CHECK_H
#define DATA_CHECK_H

#include "data/tokens.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A second or two: 0.5 s on one core from the page cache, else as long as the disk takes for it. */
#define DATA_CHECK_BYTES (INT64_C(1) << 30)

/* Checks the training part and the validation part, which may be NULL. Warns when both are the same file,
 * and of a file that is no text. Negative after err_user() (the data are bad) or err_set() (they cannot be
 * read). */
int data_check(const Recipe *r, const Tokens *train, const Tokens *val);

#ifdef __cplusplus
}
#endif
#endif
