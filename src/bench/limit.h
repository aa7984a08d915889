/* Limit: what this device can do at best, measured in the same run, and what a list would cost at that rate.
 *
 * 1. The rates are those of a large square matrix product, of the model's own attention alone and of a large
 *    copy. Each is held for seconds on a GPU (DevHints.held_s). None is an op's own time.
 * 2. limit_step_time() sums max(FLOPs/rate, bytes/bandwidth) over a step.
 * 3. limit_share is limit_step_time / measured time: how much of what the device can do a step uses. The
 *    copy is larger than any cache. So the share of a small model, whose tensors stay in caches, may be
 *    above 1. */
#ifndef BENCH_LIMIT_H
#define BENCH_LIMIT_H

#include "conf/recipe.h"
#include "dev/dev.h"
#include "plan/machine.h"
#include "task/job.h"

/* The attention that a step spends the most FLOPs on. T 0: it has none. S: keys of cross-attention; 0: the
 * queries have keys of their own. */
typedef struct {
    DType     dtype;
    int64_t   B, T, S;
    AttnShape shape;
    double    flops;
} LimitAttn;

/* What the rates of a job are measured with. */
typedef struct {
    DType     compute;
    LimitAttn fwd, bwd;
    int       fp8; /* 1: the step has products in fp8 */
} LimitShapes;

LimitShapes limit_shapes(const Job *j);

/* Rates in FLOP/s and bytes/s, by MachineUnit; 0: not measured, because the job has no such op. Opens the
 * device of the recipe for itself and closes it again. */
int limit_measure(double rate[UNIT_COUNT], const Recipe *r, const LimitShapes *shapes);

double limit_op_time(const Op *op, const double rate[UNIT_COUNT]);
/* Of one step: the sum over the rows of its schedule, without what is computed again. */
double limit_step_time(const Job *j, const double rate[UNIT_COUNT]);

#endif
