#include "net/mae.h"

#include "base/err.h"
#include "prog/record.h"

#include <math.h>
#include <string.h>

/* ---- declaring ---------------------------------------------------------------------------------------- */

/* The decoder's blocks are as the trunk's, without what regularises those. */
static RecipeModel decoder_model(const Recipe *r)
{
    RecipeModel m = r->model;
    m.layers      = r->mae.layers;
    m.width       = r->mae.width;
    m.heads       = r->mae.heads;
    m.kv_heads    = m.heads;
    m.head_dim    = m.width / m.heads;
    m.ffn         = 4 * m.width;
    m.dropout     = 0;
    m.drop_path   = 0;
    m.layer_scale = 0;
    return m;
}

static void declare_decoder(Mae *m, Store *store, const Recipe *r, const ParamOptions *opt)
{
    RecipeModel model = decoder_model(r);
    int64_t     C = r->model.width, D = model.width;
    NetPlace    place = { .prefix = "decoder.", .index = 1, .block0 = (int)r->model.layers };
    Param       mask  = { .name   = "mask.weight",
                          .ndim   = 2,
                          .rows   = 1,
                          .cols   = D,
                          .init   = INIT_NORMAL,
                          .std    = (float)model.init_std,
                          .region = REGION_COPY };
    net_begin(&m->decoder, &model, opt, &place);
    net_declare_linear(&m->decoder, "embed", D, C, 1.0 / sqrt((double)C), 1);
    param_declare(&m->decoder.table, &mask);
    net_declare_blocks(&m->decoder);
    net_declare_norm(&m->decoder, "norm", D, model.norm == NORM_LAYER);
    net_declare_linear(&m->decoder, "pixels", m->numbers, D, model.init_std, 0);
    param_layout(&m->decoder.table, store, opt);
}

void mae_declare(Mae *m, Store *store, const Recipe *r, const ParamOptions *opt, int64_t B)
{
    memset(m, 0, sizeof *m);
    vit_declare(&m->vit, store, r, opt, &(NetPlace){ 0 }, B);
    const ImageGrid *g = &m->vit.grid;
    m->n               = g->t * g->y * g->x;
    m->hidden          = m->n - r->image.seen_patches;
    m->numbers         = vit_patch_numbers(&r->image);
    declare_decoder(m, store, r, opt);
    int64_t dim[2] = { m->n, r->mae.width };
    m->pos         = store_tensor(store, SLAB_STATE, "decoder positions", opt->compute, 2, dim);
    m->unit        = store_tensor(store, SLAB_STATE, "unit of pixels", DT_F32, 1, &m->numbers);
}

void mae_deinit(Mae *m)
{
    vit_deinit(&m->vit);
    net_deinit(&m->decoder);
}

void mae_fill_pos(const Mae *m, float *out) { vit_fill_grid(&m->vit, m->decoder.model.width, out); }

void mae_fill_unit(const Mae *m, float *out)
{
    for (int64_t i = 0; i < m->numbers; i++) out[i] = (float)sqrt(2.0 / (double)m->numbers);
}

/* ---- recording ---------------------------------------------------------------------------------------- */

static Tensor *weight(const Mae *m, const char *name)
{
    Param *p = param_find(&m->decoder.table, name);
    CHECK(p, "no weight %s", name);
    return p->w;
}

/* The sequence that the decoder reads: at each place what the trunk made of a patch, or the mask token. */
static Tensor *record_places(const Mae *m, Prog *p, const MaeBatch *b, Tensor *x)
{
    int64_t D = m->decoder.model.width, few[3] = { b->image.B, m->vit.read, D },
            all[3] = { b->image.B, m->n, D };
    DType   type   = m->decoder.compute;
    Tensor *y      = prog_tensor(p, "decoder embed", type, 3, few), *part[4];
    for (int i = 0; i < ARRAY_LEN(part); i++) part[i] = prog_tensor(p, "decoder places", type, 3, all);
    prog_at(p, -1, -1, "decoder embed");
    rec_linear_fwd(
        p, (LinearFwd){ .y = y, .x = x, .w = weight(m, "embed.weight"), .bias = weight(m, "embed.bias") });
    prog_at(p, -1, -1, "decoder places");
    rec_rows_fwd(p, (RowsFwd){ .y = part[0], .x = y, .index = b->slot });
    rec_rows_fwd(p, (RowsFwd){ .y = part[1], .x = weight(m, "mask.weight"), .index = b->hole });
    rec_add(p, (Add){ .y = part[2], .a = part[0], .b = part[1] });
    rec_add_pos(p, (AddPos){ .y = part[3], .x = part[2], .pos = m->pos });
    return part[3];
}

Tensor *mae_record(const Mae *m, Prog *p, const MaeBatch *b, Tensor *state, NetMode mode)
{
    int64_t B = b->image.B, rows[2] = { B * m->hidden, m->decoder.model.width },
            out[2] = { rows[0], m->numbers };
    NetBatch seen = { .B = B, .T = m->vit.read, .sample0 = b->image.sample0 }, all = seen;
    NetRun   run = { .p = p, .batch = &seen, .state = state, .mode = mode };
    all.T        = m->n;
    Tensor *x    = vit_record_blocks(&m->vit, &run, &b->image);
    x            = record_places(m, p, b, net_record_norm(&m->vit.net, &run, "norm", x));
    run.batch    = &all;
    x            = net_record_trunk(&m->decoder, &run, x);
    Tensor *h    = prog_tensor(p, "hidden rows", m->decoder.compute, 2, rows), *y[2];
    for (int i = 0; i < ARRAY_LEN(y); i++) y[i] = prog_tensor(p, "guesses", m->decoder.compute, 2, out);
    prog_at(p, -1, -1, "decoder pixels");
    rec_rows_fwd(p, (RowsFwd){ .y = h, .x = x, .index = b->hidden });
    rec_linear_fwd(p, (LinearFwd){ .y = y[0], .x = h, .w = weight(m, "pixels.weight") });
    rec_scale(p, (Scale){ .y = y[1], .x = y[0], .gamma = m->unit });
    return y[1];
}

/* Hidden patches, normalised, in f32: in bf16 the pixels of a flat patch would differ by rounding alone. They
 * are cut from the bytes again, because patches kept since the forward pass would take more memory. */
static Tensor *record_targets(const Mae *m, Prog *p, const MaeBatch *b)
{
    static const float EPS    = 1e-6f;
    int64_t            dim[2] = { b->image.B * m->hidden, m->numbers };
    Tensor            *x      = vit_record_patches(&m->vit, p, &b->image, DT_F32, 0);
    Tensor            *h = prog_tensor(p, "hidden patches", DT_F32, 2, dim), *y = prog_like(p, "targets", h);
    prog_at(p, -1, -1, "targets");
    rec_rows_fwd(p, (RowsFwd){ .y = h, .x = x, .index = b->hidden });
    rec_norm_fwd(p, (NormFwd){ .y     = y,
                               .mean  = prog_tensor(p, "mean", DT_F32, 1, dim),
                               .rstd  = prog_tensor(p, "rstd", DT_F32, 1, dim),
                               .x     = h,
                               .gamma = m->unit,
                               .eps   = EPS });
    return y;
}

void mae_record_loss(const Mae *m, Prog *p, const MaeBatch *b, Tensor *guess, Tensor *state)
{
    Tensor *target = record_targets(m, p, b), *loss = prog_tensor(p, "loss", DT_F32, 1, guess->dim);
    prog_at(p, -1, -1, "loss");
    rec_mse_fwd(p, (MseFwd){ .loss = loss, .x = guess, .target = target });
    rec_loss_add(p, (LossAdd){ .state = state, .loss = loss });
}
