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
    NetDecode decode; /* with JOB_SAMPLE */
    int       step1;  /* its program */
} Lm;

static inline Lm *lm_of(const Job *j) { return (Lm *)j->own; }

/* Writes prompt and continuation to out. A model of text (data.kind text, or noise of 256 ids) reads and
 * writes bytes; any other speaks in token ids, separated by spaces.
 *
 * With model.mask document nothing that lies before the end of a document has any influence on what comes
 * after the first token of the next. A model with the full mask is refused. Negative after err_user()
 * (prompt, mask) or err_set(). */
int lm_sample(Job *j, const TaskSample *opt, FILE *out);

#endif
