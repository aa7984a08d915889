/* The optimizer: ops over the parameter table. */
#ifndef OPTIM_OPTIM_H
#define OPTIM_OPTIM_H

#include "conf/recipe.h"
#include "net/param.h"
#include "prog/prog.h"

/* Records one update: gradient norm, the decision to clip or skip, AdamW over the flat ranges, gradients back to zero. */
void optim_record(const ParamTable *t, Prog *p, Tensor *state, const Recipe *r);

/* Records master weights -> compute copies: after initialisation and after loading a checkpoint. */
void optim_record_copies(const ParamTable *t, Prog *p);

#endif
