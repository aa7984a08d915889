/* Learning-rate schedules: pure functions of progress. */
#ifndef OPTIM_SCHEDULE_H
#define OPTIM_SCHEDULE_H

#include "conf/recipe.h"

/* Learning rate of update `step` (0-based) of a run of `steps`. */
double schedule_lr(const RecipeOptim *o, int64_t step, int64_t steps);

#endif
