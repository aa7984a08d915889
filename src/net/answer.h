/* Answer: an mlp with heads on the CPU, for one observation at a time, in a few microseconds.
 *
 * 1. Weights are copied into one block in the order in which they are read: input by input, outputs side by
 *    side. A product is then a sum of rows, in vectors.
 * 2. One thread computes one answer; several threads may use one Answer, each with scratch of its own.
 * 3. The numbers are those of the recorded net, to rounding: sums run in another order. */
#ifndef NET_ANSWER_H
#define NET_ANSWER_H

#include "net/mlp.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct Answer Answer;

/* Hidden layers, those of the table's body body.name, then heads that read the last of them. */
typedef struct {
    Mlp         body;
    const char *head[4];
    int         n_head;
} AnswerNet;

/* Layout for the nets; weights come with answer_load(). is_bf16: weights are rounded to bf16, biases and sums
 * are not; half as many bytes are read. NULL after err_set(). */
Answer *answer_create(const ParamTable *t, const AnswerNet *net, int n_net, int is_bf16);
void    answer_destroy(Answer *a); /* NULL is allowed */

/* flat: the table's weights as the device has them, by region (ParamTable.flat[COL_WEIGHT]). */
void answer_load(Answer *a, const float *const flat[REGION_COUNT]);

size_t answer_scratch_bytes(const Answer *a);
/* out[k]: where head k of all nets, in order, writes its numbers. */
void answer_one(const Answer *a, const float *obs, float *const *out, void *scratch);

#ifdef __cplusplus
}
#endif
#endif
