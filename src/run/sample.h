/* Sample: text from a model, one token at a time through the decode program. */
#ifndef RUN_SAMPLE_H
#define RUN_SAMPLE_H

#include "run/build.h"

typedef struct {
    const char *prompt; /* bytes; at least one */
    int64_t     n_token;
    double      temperature; /* 0: the most likely token */
    int64_t     top_k;       /* 0: all */
    uint64_t    seed;
} SampleOptions;

/* Writes prompt and continuation to out: bytes for a vocabulary of 256, else token ids. */
int sample_text(Build *b, const SampleOptions *opt, FILE *out);

#endif
