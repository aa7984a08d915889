/* Limit: what this device can do at best, measured in the same run, and what a list would cost at that rate.
 *
 * The rates are those of a large square matrix product, of the model's own attention alone and of a large copy, each held for
 * twice LIMIT_SETTLE_S on a GPU, never an op's own time.
 * limit_time() sums max(FLOPs/rate, bytes/bandwidth) over a list, so limit_share = limit_time / measured time says how
 * much of what is physically there a step uses. */
#ifndef RUN_LIMIT_H
#define RUN_LIMIT_H

#include "conf/recipe.h"
#include "dev/dev.h"
#include "plan/machine.h"
#include "prog/prog.h"

/* A GPU needs about this many seconds of load to settle where its power limit lets it; before it is faster. */
#define LIMIT_SETTLE_S 1.25

/* Rates in FLOP/s and bytes/s, by MachineUnit. Opens the device of the recipe for itself and closes it again. */
int limit_measure(double rate[UNIT_COUNT], const Recipe *r, DType compute, int64_t micro_batch);

MachineUnit limit_unit(OpKind k); /* which rate an op with FLOPs is measured by */

double limit_op_time(const Op *op, const double rate[UNIT_COUNT]);
double limit_time(const Prog *p, const double rate[UNIT_COUNT]);

#endif
