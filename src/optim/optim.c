#include "optim/optim.h"

#include "prog/record.h"

/* Weights in fp8, both ways. frozen: those too. */
static void record_fp8(const ParamTable *t, Prog *p, int frozen, int dynamic)
{
    for (int i = 0; i < t->n_param; i++) {
        const Param *row = &t->param[i];
        if (!row->fp8 || (row->frozen && !frozen)) continue;
        rec_quant(p, (Quant){ .q       = row->fp8->q,
                              .qt      = row->fp8->qt,
                              .site    = row->fp8->w_site,
                              .x       = row->w,
                              .q_dtype = DT_E4M3,
                              .dynamic = dynamic });
    }
}

void optim_record(ParamTable *const *table, int n, Prog *p, Tensor *state, const OptimOptions *opt)
{
    const RecipeOptim *o = opt->optim;
    prog_at(p, -1, -1, "gradient norm");
    for (int k = 0; k < n; k++) {
        for (int i = 0; i < REGION_TRAINED; i++) {
            Tensor *grad = table[k]->flat[COL_GRAD][i];
            if (grad) rec_sumsq(p, (Sumsq){ .state = state, .x = grad });
        }
    }
    prog_at(p, -1, -1, "clip");
    rec_clip(p, (Clip){ .state        = state,
                        .max_norm     = (float)o->clip,
                        .beta1        = (float)o->beta1,
                        .beta2        = (float)o->beta2,
                        .spike_factor = (float)opt->spike_factor });
    prog_at(p, -1, -1, "adamw");
    for (int k = 0; k < n; k++) {
        for (int i = 0; i < REGION_TRAINED; i++) {
            const ParamTable *t = table[k];
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
    prog_at(p, -1, -1, "fp8 weights");
    for (int k = 0; k < n; k++) {
        const ParamTable *t = table[k];
        if (t->sites && !opt->dynamic) {
            rec_fp8_scale(p, (Fp8Scale){ .sites = t->sites, .q_dtype = DT_E4M3 });
            rec_fp8_scale(p, (Fp8Scale){ .sites = t->grad_sites, .q_dtype = DT_E5M2 });
        }
        record_fp8(t, p, 0, opt->dynamic);
    }
}

void optim_record_copies(ParamTable *const *table, int n, Prog *p, int dynamic)
{
    prog_at(p, -1, -1, "weight copies");
    for (int k = 0; k < n; k++) {
        Tensor *copy = table[k]->flat[COL_COPY][REGION_COPY];
        if (copy) rec_cast(p, (Cast){ .y = copy, .x = table[k]->flat[COL_WEIGHT][REGION_COPY] });
        record_fp8(table[k], p, 1, dynamic);
    }
}
