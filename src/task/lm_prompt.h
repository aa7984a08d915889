/* What language models read and write: prompts as ids, and new ids as text. */
#ifndef TASK_LM_PROMPT_H
#define TASK_LM_PROMPT_H

#include "base/arena.h"
#include "data/vocab.h"
#include "task/task.h"
#include "text/tokenizer.h"

typedef enum { SPEAKS_BYTES, SPEAKS_IDS, SPEAKS_TOKENS /* text through a tokenizer */ } Speech;

typedef struct {
    Arena             arena;
    Speech            speech;
    Tokenizer        *tokenizer; /* NULL unless SPEAKS_TOKENS */
    TokenizerScratch *scratch;
    int32_t         **id; /* by prompt */
    int64_t          *n;
    int               n_prompt;
    int64_t           longest;
    const char       *stop[16]; /* texts that end a sample */
    int               n_stop;
    int32_t           eos[VOCAB_ENDS];
    int               n_eos;
} Prompts;

/* Reads the prompts that opt names. Negative after err_user()/err_set(). */
int  prompts_open(Prompts *p, const Recipe *r, const TaskSample *opt);
void prompts_close(Prompts *p);

int prompts_is_end(const Prompts *p, int32_t id);

/* One sequence as it is written. Text that may be the beginning of a stop text is held back. */
typedef struct {
    const Prompts  *p;
    FILE           *out;
    TokenizerStream stream;
    char           *held; /* malloc'ed */
    size_t          n_held, cap;
    int             stopped; /* a stop text was found */
} Speaker;

void speaker_init(Speaker *s, const Prompts *p, FILE *out);
/* Writes one id; is_new: it may complete a stop text. Negative after err_set(). */
int speaker_put(Speaker *s, int32_t id, int is_new);
/* Writes what is still held back. */
int speaker_end(Speaker *s);

#endif
