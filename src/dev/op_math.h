/* Formulas that every backend shares, so that host and device give the same integers and the same factors. */
#ifndef DEV_OP_MATH_H
#define DEV_OP_MATH_H

#include "base/rng.h"
#include "dev/op.h"

/* What the gradient of a loss in `slot` is multiplied by. */
static inline BRIM_HD float step_scale(const StepState *s, int slot)
{
    (void)slot;
    return s->in.inv_targets * s->in.loss_scale;
}

#endif
