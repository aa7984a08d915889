/* Known: the pattern and the special tokens of well-known tokenizers. Rank files do not contain them. */
#ifndef TEXT_KNOWN_H
#define TEXT_KNOWN_H

#include <stdint.h>

typedef struct {
    const char *name;    /* "cl100k_base" */
    int64_t     n_rank;  /* by which a rank file is recognised */
    const char *pattern; /* a name for known_pre_tokenizer() */
    int32_t     first;   /* id of the first special token */
    const char
        *special; /* names separated by spaces; "-" leaves an id out; "*N" stands for N reserved ones */
} KnownRanks;

const KnownRanks *known_ranks(int64_t n_rank); /* NULL: none */
const char       *known_ranks_list(void);      /* for messages */

/* The pre_tokenizer (JSON) of gpt2, cl100k, llama3, qwen2, o200k. NULL: none of these. */
const char       *known_pre_tokenizer(const char *name);
const char       *known_pre_tokenizer_list(void);
extern const char known_decoder[];

#endif
