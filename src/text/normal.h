/* Normal: the normalizers of tokenizer.json.
 *
 * 1. Steps run in the file's order, each over the whole text. Malformed bytes pass through unchanged.
 * 2. Normal forms are those of Unicode 9 (unicode.h). Text without marks and decomposable characters is only
 *    copied.
 * 3. Constant once built. */
#ifndef TEXT_NORMAL_H
#define TEXT_NORMAL_H

#include "text/buffer.h"
#include "text/regex.h"

typedef enum {
    NORMAL_NFC,
    NORMAL_NFD,
    NORMAL_NFKC,
    NORMAL_NFKD,
    NORMAL_PREPEND,
    NORMAL_REPLACE,
    NORMAL_STRIP
} NormalKind;

typedef struct {
    NormalKind  kind;
    const char *content; /* prepended, or put in place of a match; borrowed */
    size_t      content_len;
    Regex      *regex;       /* of REPLACE; owned by the tokenizer */
    int         left, right; /* of STRIP */
} NormalStep;

enum { NORMAL_MAX = 16 };

typedef struct {
    NormalStep step[NORMAL_MAX];
    int        n;
} Normal;

typedef struct {
    RegexScratch *regex; /* borrowed */
    Buffer        a, b;
} NormalScratch;

void normal_scratch_deinit(NormalScratch *s);

/* Runs the steps on the n bytes at *p. Afterwards *p and *n are the result, which s holds until the next run
 * when there is a step. Replacements of replacements can make any text too long: more than `most` bytes are
 * refused. Negative after err_user() or err_set(). */
int normal_run(const Normal *m, NormalScratch *s, size_t most, const unsigned char **p, size_t *n);

#endif
