/* Train: a byte-level BPE vocabulary from text.
 *
 * 1. Merges are those of the Hugging Face trainer: the most frequent pair first; among equal counts the pair
 *    of lower ids. That trainer does not reset the count of a merged pair; this one does not, either.
 * 2. Ids: special tokens, then 256 bytes in the order of their characters in the byte alphabet, then merges.
 * 3. Text is taken line by line (each with its line feed), as the Hugging Face trainer does, or file by file.
 * 4. The result does not depend on the number of threads. */
#ifndef TEXT_TRAIN_H
#define TEXT_TRAIN_H

#include "text/tokenizer.h"

typedef struct {
    const char *const *path; /* text files */
    int                n_path;
    int64_t            vocab;     /* ids in all */
    int64_t            min_count; /* pairs that are rarer are not merged */
    const char        *pattern;   /* known_pre_tokenizer(): gpt2, cl100k, llama3, qwen2, o200k */
    const char        *special;   /* names separated by commas */
    int                whole;     /* 1: a file is one text; 0: a line is */
    int                threads;
    /* Progress, by one thread at a time, which may be another than the caller's; NULL: nobody asks. */
    void (*note)(void *arg, const char *what, int64_t done, int64_t all);
    void *note_arg;
} TrainConfig;

/* Makes a tokenizer, to be saved with tokenizer_save(). Negative after err_user() or err_set(). */
int train_tokenizer(Tokenizer **t, const TrainConfig *c);

#endif
