/* Merges: which pairs of symbols a trainer joins, from words and their counts. train.h says in what order. */
#ifndef TEXT_MERGES_H
#define TEXT_MERGES_H

#include "text/buffer.h"
#include "text/strmap.h"
#include "text/words.h"

typedef struct {
    int32_t left, right, id;
} Merge;

typedef struct {
    Merge   *merge;
    int64_t  n_merge;
    StrSpan *token; /* bytes of each symbol, the 256 first ones included */
    Buffer   pool;
    int32_t  n_token;
} Merges;

typedef struct {
    const Words *words;
    int32_t      most;      /* symbols in all */
    int64_t      min_count; /* of a pair */
    int32_t      byte_symbol[256];
    void (*note)(void *arg, const char *what, int64_t done, int64_t all);
    void *note_arg;
} MergesConfig;

/* Symbols 0 to 255 are bytes (byte_symbol), the others joined pairs. Negative after err_set(). */
int  merges_find(Merges *m, const MergesConfig *c);
void merges_deinit(Merges *m);

#endif
