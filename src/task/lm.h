/* The language model: a decoder transformer on tokens. */
#ifndef TASK_LM_H
#define TASK_LM_H

#include "net/net.h"
#include "task/job.h"

extern const Task task_lm;

/* Job.own of a language model. */
typedef struct {
    Net       net;
    NetBatch  batch;
    NetDecode decode, prefill; /* with JOB_SAMPLE */
    int       prog_decode, prog_prefill;
} Lm;

static inline Lm *lm_of(const Job *j) { return (Lm *)j->own; }

/* Writes prompts and continuations to out, one prompt as it comes, several when each has ended. A model with
 * a tokenizer (data/vocab.h) reads and writes text through it. A model of bytes (data.kind text, or noise of
 * 256 ids) reads and writes bytes. Any other speaks in token ids, separated by spaces.
 *
 * With model.mask document nothing that lies before the end of a document has any influence on what comes
 * after the first token of the next. A model with the full mask is refused. Negative after err_user()
 * (prompt, mask) or err_set(). */
int lm_sample(Job *j, const TaskSample *opt, FILE *out);
/* A checkpoint as a Hugging Face folder. */
int lm_export(const Recipe *r, const TaskExport *opt);
/* brim eval --ids: loss and logits of a file of ids. */
int lm_ask_score(Recipe *r, const TaskScore *opt);
int lm_score_file(Job *j, const TaskScore *opt, FILE *out);
/* Task.ask of a language model. */
int lm_ask(Recipe *r, const TaskSample *opt);

/* Logits of every token of one sequence, through caches: rows arrive in order, n of them from row `first` on,
 * model.vocab numbers in each. The job was made with ask.all. */
typedef int (*LmRows)(void *ctx, int64_t first, int64_t n, const float *logits, int64_t stride);
int lm_score(Job *j, const int32_t *tok, int64_t n, LmRows put, void *ctx);

#endif
