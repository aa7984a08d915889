/* The optimizer: ops over the parameter table.
 *
 * 1. AdamW walks the flat ranges of REGION_COPY and REGION_MASTER. Muon walks the matrices of REGION_MUON in
 *    batches of one shape: momentum, orthogonal matrices (ORTHO), update.
 * 2. Ranks share the orthogonal matrices: each makes a part of every batch, and all gather the whole. So all
 *    ranks have the same bits, whatever algorithms their products use. */
#ifndef OPTIM_OPTIM_H
#define OPTIM_OPTIM_H

#include "conf/recipe.h"
#include "net/param.h"
#include "prog/prog.h"

typedef struct {
    const RecipeOptim *optim;
    double             spike_factor; /* 0: a loss far above its mean is no failure */
    DType              compute;      /* Muon's products: f32 where that is f32, else bf16 */
    int                scales;       /* 1: gradients are computed at a scale that CLIP adapts */
    int                rank, world;  /* world 0 counts as 1 */
    int                dynamic;      /* fp8: scales come from the tensors themselves */
} OptimOptions;

/* Records one update of n tables: gradient norm over all, the decision to clip or skip, AdamW and Muon,
 * gradients back to zero. Then the scales of fp8 tensors and the weights in fp8. */
void optim_record(ParamTable *const *table, int n, Prog *p, Tensor *state, const OptimOptions *opt);

/* Records master weights -> compute copies, in fp8 too: after initialisation and after loading a
 * checkpoint. */
void optim_record_copies(ParamTable *const *table, int n, Prog *p, int dynamic);

#endif
