#include "optim/optim.h"

#include "prog/record.h"

void optim_record(const ParamTable *t, Prog *p, Tensor *state, const Recipe *r)
{
    const RecipeOptim *o = &r->optim;
    prog_at(p, -1, -1, "gradient norm");
    for (int i = 0; i < REGION_TRAINED; i++) {
        if (t->flat[COL_GRAD][i]) rec_sumsq(p, (Sumsq){ .state = state, .x = t->flat[COL_GRAD][i] });
    }
    prog_at(p, -1, -1, "clip");
    rec_clip(p, (Clip){ .state        = state,
                        .max_norm     = (float)o->clip,
                        .beta1        = (float)o->beta1,
                        .beta2        = (float)o->beta2,
                        .spike_factor = (float)r->spike_factor });
    prog_at(p, -1, -1, "adamw");
    for (int i = 0; i < REGION_TRAINED; i++) {
        if (!t->flat[COL_GRAD][i]) continue;
        rec_adamw(p, (AdamW){ .master = t->flat[COL_WEIGHT][i],
                              .m      = t->flat[COL_M][i],
                              .v      = t->flat[COL_V][i],
                              .grad   = t->flat[COL_GRAD][i],
                              .copy   = t->flat[COL_COPY][i],
                              .state  = state,
                              .seg    = t->seg[i],
                              .beta1  = (float)o->beta1,
                              .beta2  = (float)o->beta2,
                              .eps    = (float)o->eps });
    }
}

void optim_record_copies(const ParamTable *t, Prog *p)
{
    prog_at(p, -1, -1, "weight copies");
    Tensor *copy = t->flat[COL_COPY][REGION_COPY];
    if (copy) rec_cast(p, (Cast){ .y = copy, .x = t->flat[COL_WEIGHT][REGION_COPY] });
}
