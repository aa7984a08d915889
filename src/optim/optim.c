#include "optim/optim.h"

#include "base/err.h"
#include "prog/record.h"

#include <math.h>

/* Elements of a batch of matrices, about: enough for batched products to fill a GPU, and little memory. */
enum { BATCH_ELEMS = 64 << 20 };

/* Random sites of AdamW's roundings, behind those of a net's dropout. */
enum { ADAM_SITE = 900000 };

/* Updates without overflow after which the loss scale is doubled. */
enum { SCALE_EVERY = 2000 };

/* What an update of Muon is multiplied by. An orthogonal R x C matrix has a root mean square of
 * 1/sqrt(max(R,C)). AdamW's updates have one of about 0.2 (Liu and others, "Muon is scalable for LLM
 * training", 2025). So one learning rate serves both. */
static float muon_scale(int64_t rows, int64_t cols) { return 0.2f * sqrtf((float)MAX(rows, cols)); }

/* ---- AdamW --------------------------------------------------------------------------------------------- */

static void record_adamw(const ParamTable *t, Prog *p, Tensor *state, const RecipeOptim *o)
{
    prog_at(p, -1, -1, "adamw");
    for (int i = 0; i < REGION_MUON; i++) {
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
                              .eps    = (float)o->eps,
                              .site   = t->site0 + ADAM_SITE + i });
    }
}

/* ---- Muon ---------------------------------------------------------------------------------------------- */

static int at_least_one(int world) { return MAX(world, 1); }

/* n matrices of a group's shape, in what Newton-Schulz computes in. */
static Tensor *batch(Prog *p, const char *name, const MuonGroup *g, int64_t n, const OptimOptions *opt)
{
    int64_t dim[3] = { n, g->rows, g->cols };
    return prog_tensor(p, name, opt->compute == DT_F32 ? DT_F32 : DT_BF16, 3, dim);
}

static Tensor *orthogonal(Prog *p, Tensor *x, const MuonGroup *g, const OptimOptions *opt)
{
    int64_t n = x->dim[0], share = n / at_least_one(opt->world);
    Tensor *y = batch(p, "orthogonal", g, n, opt);
    if (share == n) {
        rec_ortho(p, (Ortho){ .y = y, .x = x });
        return y;
    }
    int64_t size = g->rows * g->cols;
    Tensor *own  = batch(p, "own share", g, share, opt);
    rec_ortho(p, (Ortho){ .y = own, .x = prog_part(p, x, opt->rank * share * size, 3, own->dim) });
    rec_all_gather(p, (AllGather){ .y = y, .x = own });
    return y;
}

static void record_batch(const ParamTable *t, Prog *p, Tensor *state, const OptimOptions *opt,
                         const MuonGroup *g)
{
    int64_t n   = round_up(g->n, at_least_one(opt->world));
    Tensor *x   = batch(p, "momentum", g, n, opt);
    int64_t row = (int64_t)sizeof(Segment), bytes = g->n * row;
    Tensor *seg = prog_part(p, t->seg[REGION_MUON], g->first * row, 1, &bytes);
    rec_momentum(p, (Momentum){ .x        = x,
                                .m        = t->flat[COL_MOMENTUM][REGION_MUON],
                                .grad     = t->flat[COL_GRAD][REGION_MUON],
                                .state    = state,
                                .seg      = seg,
                                .momentum = (float)opt->optim->momentum,
                                .nesterov = opt->optim->nesterov });
    rec_muon(p, (Muon){ .master = t->flat[COL_WEIGHT][REGION_MUON],
                        .copy   = t->flat[COL_COPY][REGION_MUON],
                        .y      = orthogonal(p, x, g, opt),
                        .state  = state,
                        .seg    = seg,
                        .scale  = muon_scale(g->rows, g->cols) });
}

static void record_muon(const ParamTable *t, Prog *p, Tensor *state, const OptimOptions *opt)
{
    for (int i = 0; i < t->n_muon; i++) {
        const MuonGroup *g    = &t->muon[i];
        int64_t          most = MAX(at_least_one(opt->world), BATCH_ELEMS / (g->rows * g->cols));
        prog_at(p, -1, -1, "muon");
        for (int64_t first = 0; first < g->n; first += most) {
            MuonGroup part = *g;
            part.first     = g->first + (int)first;
            part.n         = (int)MIN(most, g->n - first);
            record_batch(t, p, state, opt, &part);
        }
    }
}

/* ---- fp8 ----------------------------------------------------------------------------------------------- */

/* The scales of the next step. All ranks take them from the largest numbers that any rank has seen, so ranks
 * agree, and a checkpoint of one rank serves all. */
static void record_scales(Prog *p, Tensor *sites, DType t, int world)
{
    Tensor *all    = NULL;
    int64_t dim[2] = { world * tensor_rows(sites), FP8_SITE };
    if (world > 1) {
        all = prog_tensor(p, "sites of all ranks", DT_F32, 2, dim);
        rec_all_gather(p, (AllGather){ .y = all, .x = sites });
    }
    rec_fp8_scale(p, (Fp8Scale){ .sites = sites, .all = all, .q_dtype = t });
}

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

/* ---- one update ---------------------------------------------------------------------------------------- */

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
                        .spike_factor = (float)opt->spike_factor,
                        .scale_every  = opt->scales ? SCALE_EVERY : 0 });
    for (int k = 0; k < n; k++) {
        record_adamw(table[k], p, state, o);
        record_muon(table[k], p, state, opt);
    }
    prog_at(p, -1, -1, "fp8 weights");
    for (int k = 0; k < n; k++) {
        const ParamTable *t = table[k];
        if (t->sites && !opt->dynamic) {
            record_scales(p, t->sites, DT_E4M3, opt->world);
            record_scales(p, t->grad_sites, DT_E5M2, opt->world);
        }
        record_fp8(t, p, 0, opt->dynamic);
    }
}

void optim_record_copies(ParamTable *const *table, int n, Prog *p, int dynamic)
{
    prog_at(p, -1, -1, "weight copies");
    for (int k = 0; k < n; k++) {
        for (int r = 0; r < REGION_TRAINED; r++) {
            Tensor *copy = table[k]->flat[COL_COPY][r];
            if (copy) rec_cast(p, (Cast){ .y = copy, .x = table[k]->flat[COL_WEIGHT][r] });
        }
        record_fp8(table[k], p, 1, dynamic);
    }
}
