/* Picks a token from a row of logits. */
#ifndef TASK_PICK_H
#define TASK_PICK_H

#include "task/task.h"

typedef struct {
    int32_t id;
    float   p; /* not normalised */
} PickItem;

/* Draw i of sequence `row`. seen u8[V]: tokens that have occurred; logits are changed by the repetition
 * penalty. scratch: V items. */
typedef struct {
    int64_t              V, row, i;
    const unsigned char *seen;
    PickItem            *scratch;
} PickRow;

/* In this order, as transformers does: repetition penalty, temperature, the top_k most likely (and those as
 * likely as the last of them), the most likely that make up top_p, then one draw. -1: a logit is not
 * finite. */
int32_t pick_token(float *logits, const TaskSample *opt, const PickRow *row);
/* The k largest logits (of equal ones those with the smaller ids), sorted by id, into x, which has room for V
 * items. -1: a number is not finite. */
int pick_top(PickItem *x, const float *logits, int64_t V, int64_t k);
/* The most likely one; -1: a number is not finite. */
int32_t pick_best(const float *logits, int64_t V);

#endif
