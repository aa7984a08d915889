#include "optim/optim.h"

#include "prog/record.h"

void optim_record(const ParamTable *t, Prog *p, Tensor *state, const Recipe *r)
{
    const RecipeOptim *o = &r->optim;
    prog_at(p, -1, -1, "gradient norm");
    for (int i = 0; i < REGION_COUNT; i++) {
        if (t->grad[i]) rec_sumsq(p, (Sumsq){ .state = state, .x = t->grad[i] });
    }
    prog_at(p, -1, -1, "clip");
    rec_clip(p, (Clip){ .state        = state,
                        .max_norm     = (float)o->clip,
                        .beta1        = (float)o->beta1,
                        .beta2        = (float)o->beta2,
                        .spike_factor = (float)r->spike_factor });
    prog_at(p, -1, -1, "adamw");
    for (int i = 0; i < REGION_COUNT; i++) {
        if (!t->grad[i]) continue;
        rec_adamw(p, (AdamW){ .master = t->master[i],
                              .m      = t->m[i],
                              .v      = t->v[i],
                              .grad   = t->grad[i],
                              .copy   = i == REGION_COPY ? t->copy : NULL,
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
    if (t->copy) rec_cast(p, (Cast){ .y = t->copy, .x = t->master[REGION_COPY] });
}
