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

/* Runs the steps on text; *out is the result: text itself, or the contents of a or b. Negative after
 * err_set(). */
int normal_run(const Normal *m, RegexScratch *rs, Buffer *a, Buffer *b, const unsigned char *text, size_t n,
               const unsigned char **out, size_t *out_len);

#endif
