/* Sample: tokens from a model, one at a time through the decode program.
 *
 * 1. A model of text (data.kind text, or noise of 256 ids) reads and writes bytes. Any other speaks in token ids, separated by
 *    spaces: what its ids stand for is known to its tokenizer alone.
 * 2. With model.mask document nothing that lies before the end of a document has any influence on what comes after the first
 *    token of the next, in the prompt as in what is generated. A model with the full mask is refused. */
#ifndef RUN_SAMPLE_H
#define RUN_SAMPLE_H

#include "run/build.h"

typedef struct {
    const char
            *prompt; /* NULL: a line break for bytes; for ids data.document_token, or 0 where there is none */
    int64_t  n_token;
    double   temperature; /* 0: the most likely token */
    int64_t  top_k;       /* 0: all */
    uint64_t seed;
} SampleOptions;

/* Writes prompt and continuation to out. Negative after err_user() (the prompt, the mask) or err_set(). */
int sample_text(Build *b, const SampleOptions *opt, FILE *out);

#endif
