/* Whatif: how long a step would take if the recipe said something else. Nothing runs: the recipe is planned
 * as `brim plan` does, for the machine that the run had. */
#ifndef WATCH_WHATIF_H
#define WATCH_WHATIF_H

#include "run/choose.h"
#include "watch/divide.h"
#include "watch/facts.h"

/* Where a recipe comes from. */
typedef struct {
    const Task       *task;
    const RecipeTask *extra; /* of a task that is not shipped; NULL: none */
    const char       *path;
    char *const      *override; /* the user's own, borrowed */
    int               n_override;
} RecipeFrom;

typedef struct {
    double    step_s, repeat_s;
    double    work_s; /* the step without the fixed cost of each op */
    double    total_bytes;
    Divide    divide; /* of a CPU; n_op 0: a GPU's */
    JobChoice choice;
} WhatIf;

enum { WHATIF_KEYS = 24, WHATIF_KEY = 96 };

/* The user's overrides, then n more keys. The caller frees the recipe. NULL after err_user(). */
Recipe *whatif_recipe(const RecipeFrom *from, const char (*key)[WHATIF_KEY], int n);
/* Plans the recipe with n more keys ("precision=auto"). room_bytes 0: what the run had. Negative after
 * err_user()/err_set(): no such plan. */
int whatif_plan(WhatIf *out, const RecipeFrom *from, const RunFacts *f, const char (*key)[WHATIF_KEY], int n,
                double room_bytes);

#endif
