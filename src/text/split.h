/* Split: the pre-tokenizers of tokenizer.json. They cut text into pieces. A merge never crosses the border of
 * a piece.
 *
 * 1. Stages run in the file's order; a stage sees each piece of the one before as a text of its own.
 * 2. Stretches of malformed bytes are pieces by themselves and meet no pattern.
 * 3. Constant once built; SplitScratch belongs to one thread. */
#ifndef TEXT_SPLIT_H
#define TEXT_SPLIT_H

#include "text/buffer.h"
#include "text/regex.h"

typedef enum { SPLIT_PATTERN, SPLIT_PREFIX_SPACE, SPLIT_METASPACE } SplitKind;
typedef enum { SPLIT_REMOVED, SPLIT_ISOLATED, SPLIT_PREVIOUS, SPLIT_NEXT, SPLIT_CONTIGUOUS } SplitBehavior;
typedef enum { SPLIT_ALWAYS, SPLIT_FIRST, SPLIT_NEVER } SplitScheme;

typedef struct {
    SplitKind     kind;
    Regex        *regex; /* of PATTERN; owned by the tokenizer */
    SplitBehavior behavior;
    int           invert;
    const char   *block; /* of METASPACE: what stands for a space */
    size_t        block_len;
    SplitScheme   scheme; /* where METASPACE puts one in front */
    int           cut;    /* METASPACE cuts before each */
} SplitStage;

enum { SPLIT_MAX = 12 };

typedef struct {
    SplitStage stage[SPLIT_MAX];
    int        n;
} Split;

typedef struct {
    RegexScratch *regex; /* borrowed */
    Buffer        copy[SPLIT_MAX];
} SplitScratch;

void split_scratch_deinit(SplitScratch *s);

typedef struct {
    int (*take)(void *arg, const unsigned char *p, size_t n);
    void *arg;
} SplitSink;

/* Gives every piece of the text to sink. at_start: the text begins the document. Negative when sink or a
 * pattern fails. */
int split_run(const Split *m, SplitScratch *s, const unsigned char *p, size_t n, int at_start,
              SplitSink sink);

#endif
