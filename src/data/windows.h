/* Windows: samples of a language model, cut from a sequence of tokens.
 *
 * 1. A training sample g is the window that data/order.h names: T inputs and, one later, T targets. With
 *    data.pack best_fit it is a window of whole documents (data/pack.h), in the same kind of order.
 * 2. Validation windows tile the sequence in order; the last one may be cut short: its missing targets are
 *    -1. Packed ones are taken in the order of the documents.
 * 3. Fields, in this order: tok i32[T], target i32[T,1], and one more with some masks.
 *      document  doc i32[T]: where in the window the token's document begins
 *      prefix    prefix i32: tokens of the window's prefix
 * 4. mask prefix: the prefix ends with the window's first data.prefix_token. Tokens inside the prefix are no
 *    targets. A window without that token has no prefix. */
#ifndef DATA_WINDOWS_H
#define DATA_WINDOWS_H

#include "conf/recipe.h"
#include "data/fields.h"
#include "data/source.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { WINDOW_TOK, WINDOW_TARGET, WINDOW_EXTRA /* doc or prefix */ };

/* Writes the rows of a recipe's fields into row[3] and returns their number. */
int windows_fields(const Recipe *r, FieldRow *row);

/* Opens the training part of a recipe's data, after a check (data/check.h). Negative after
 * err_user()/err_set(). */
int windows_open_train(Source **out, const Recipe *r);
/* Opens the validation part. most > 0: only so many windows, spread evenly. train: the training part, if that
 * is open: files that both share were checked then. */
int windows_open_val(Source **out, const Recipe *r, int64_t most, const Source *train);

#ifdef __cplusplus
}
#endif
#endif
