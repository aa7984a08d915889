/* The optimizer: ops over the parameter table. */
#ifndef OPTIM_OPTIM_H
#define OPTIM_OPTIM_H

#include "conf/recipe.h"
#include "net/param.h"
#include "prog/prog.h"

typedef struct {
    const RecipeOptim *optim;
    double             spike_factor; /* 0: a loss far above its mean is no failure */
    int                dynamic;      /* fp8: scales come from the tensors themselves */
} OptimOptions;

/* Records one update of n tables: gradient norm over all, the decision to clip or skip, AdamW over the flat
 * ranges, gradients back to zero. Then the scales of fp8 tensors and the weights in fp8. */
void optim_record(ParamTable *const *table, int n, Prog *p, Tensor *state, const OptimOptions *opt);

/* Records master weights -> compute copies, in fp8 too: after initialisation and after loading a
 * checkpoint. */
void optim_record_copies(ParamTable *const *table, int n, Prog *p, int dynamic);

#endif
