#include "net/vit.h"

#include "base/err.h"
#include "conf/relate_image.h"
#include "prog/record.h"

#include <math.h>
#include <string.h>

/* ---- shapes ------------------------------------------------------------------------------------------- */

static int64_t grid_tokens(ImageGrid g) { return g.t * g.y * g.x; }

static int has_class(const Vit *v) { return v->image.pool == POOL_CLASS; }

int64_t vit_tokens(const RecipeImage *m)
{
    return grid_tokens(relate_grid(m, m->seen_size, m->seen_frames)) + (m->pool == POOL_CLASS);
}

int64_t vit_patch_numbers(const RecipeImage *m)
{
    return (m->frames > 0 ? m->tubelet : 1) * m->patch * m->patch * 3;
}

/* ---- declaring ---------------------------------------------------------------------------------------- */

static void declare_rows(Net *net, const char *name, int64_t rows, double std)
{
    Param p = { .ndim   = 2,
                .rows   = rows,
                .cols   = net->model.width,
                .init   = INIT_NORMAL,
                .std    = (float)std,
                .region = REGION_COPY };
    param_name(p.name, "%s", name);
    param_declare(&net->table, &p);
}

/* None for a net without classes. Begins at zero, so every class is as likely as the others. */
static void declare_head(Vit *v)
{
    Param p = { .name        = "head.weight",
                .ndim        = 2,
                .rows        = v->image.classes,
                .cols        = v->net.model.width,
                .rows_stored = v->stored_class,
                .init        = INIT_ZERO,
                .decay       = 1,
                .region      = REGION_COPY };
    if (v->image.classes == 0) return;
    param_declare(&v->net.table, &p);
    p = (Param){ .name        = "head.bias",
                 .ndim        = 1,
                 .rows        = v->image.classes,
                 .cols        = 1,
                 .rows_stored = v->stored_class,
                 .init        = INIT_ZERO,
                 .region      = REGION_COPY };
    param_declare(&v->net.table, &p);
}

static void declare_constants(Vit *v, Store *store, int64_t B)
{
    int64_t C = v->net.model.width, n = B * v->some, all = B * v->read, wide[2] = { v->T, C };
    int64_t table[2] = { v->T, grid_tokens(v->pos_grid) + has_class(v) };
    DType   type     = v->net.compute;
    if (v->image.pos == GRID_SINCOS) {
        v->sincos = store_tensor(store, SLAB_STATE, "positions", type, 2, wide);
    } else if (memcmp(&v->grid, &v->pos_grid, sizeof v->grid) != 0) {
        v->resample = store_tensor(store, SLAB_STATE, "resampling", type, 2, table);
    }
    if (v->image.registers > 0) {
        v->before = store_tensor(store, SLAB_STATE, "rows of tokens", DT_I32, 1, &all);
        v->extra  = store_tensor(store, SLAB_STATE, "rows of registers", DT_I32, 1, &all);
        v->len    = store_tensor(store, SLAB_STATE, "tokens before registers", DT_I32, 1, &B);
    }
    if (!has_class(v)) return;
    v->spread = store_tensor(store, SLAB_STATE, "rows of patches", DT_I32, 1, &n);
    v->put    = store_tensor(store, SLAB_STATE, "rows of class tokens", DT_I32, 1, &n);
    v->pick   = store_tensor(store, SLAB_STATE, "class tokens", DT_I32, 1, &B);
}

void vit_declare(Vit *v, Store *store, const Recipe *r, const ParamOptions *opt, const NetPlace *place,
                 int64_t B)
{
    memset(v, 0, sizeof *v);
    net_begin(&v->net, &r->model, opt, place);
    v->image        = r->image;
    v->grid         = relate_grid(&v->image, v->image.seen_size, v->image.seen_frames);
    v->pos_grid     = relate_grid(&v->image, v->image.pos_size, v->image.pos_frames);
    v->T            = vit_tokens(&v->image);
    v->some         = v->image.seen_patches > 0 ? has_class(v) + v->image.seen_patches : v->T;
    v->read         = v->some + v->image.registers;
    v->stored_class = round_up(v->image.classes, VIT_CLASS_ALIGN);
    int rc          = relate_floats(v->image.mean, 3, v->mean);
    if (rc == 0) rc = relate_floats(v->image.std, 3, v->std);
    CHECK(rc == 0, "mean and std were verified on load");
    double  std = r->model.init_std;
    int64_t K   = vit_patch_numbers(&v->image);
    net_declare_linear(&v->net, "patch", r->model.width, K, 1.0 / sqrt((double)K), 1);
    if (has_class(v)) declare_rows(&v->net, "class.weight", 1, std);
    if (v->image.pos == GRID_LEARNED)
        declare_rows(&v->net, "pos.weight", grid_tokens(v->pos_grid) + has_class(v), std);
    if (v->image.registers > 0) declare_rows(&v->net, "register.weight", v->image.registers, std);
    net_declare_blocks(&v->net);
    net_declare_norm(&v->net, "norm", r->model.width, r->model.norm == NORM_LAYER);
    declare_head(v);
    param_layout(&v->net.table, store, opt);
    declare_constants(v, store, B);
}

void vit_deinit(Vit *v) { net_deinit(&v->net); }

/* ---- recording ---------------------------------------------------------------------------------------- */

static Tensor *weight(const Vit *v, const char *name)
{
    Param *p = param_find(&v->net.table, name);
    CHECK(p, "no weight %s", name);
    return p->w;
}

Tensor *vit_record_patches(const Vit *v, Prog *p, const VitBatch *b, DType dtype, int mixes)
{
    const RecipeImage *m      = &v->image;
    int64_t            dim[3] = { b->B, grid_tokens(v->grid), vit_patch_numbers(m) };
    Tensor            *x      = prog_tensor(p, "patches", dtype, 3, dim);
    Patches            a      = { .y          = x,
                                  .img        = b->pixels,
                                  .partner    = mixes ? b->partner : NULL,
                                  .lambda     = mixes ? b->blend : NULL,
                                  .box        = mixes ? b->box : NULL,
                                  .frames     = (int)MAX(m->seen_frames, 1),
                                  .src_height = (int)m->seen_size,
                                  .src_width  = (int)m->seen_size,
                                  .height     = (int)m->seen_size,
                                  .width      = (int)m->seen_size,
                                  .tubelet    = m->frames > 0 ? (int)m->tubelet : 1,
                                  .patch      = (int)m->patch };
    memcpy(a.mean, v->mean, sizeof a.mean);
    memcpy(a.std, v->std, sizeof a.std);
    prog_at(p, -1, -1, "patches");
    rec_patches(p, a);
    return x;
}

/* Pixels to the tokens of all patches, or of those that are seen. */
static Tensor *record_tokens(const Vit *v, Prog *p, const VitBatch *b, NetMode mode)
{
    Tensor *x = vit_record_patches(v, p, b, v->net.compute, mode == NET_TRAIN && b->partner);
    if (b->seen) {
        int64_t dim[3] = { b->B, b->seen->dim[1], x->dim[2] };
        Tensor *few    = prog_tensor(p, "seen patches", v->net.compute, 3, dim);
        rec_rows_fwd(p, (RowsFwd){ .y = few, .x = x, .index = b->seen });
        x = few;
    }
    int64_t dim[3] = { b->B, x->dim[1], v->net.model.width };
    Tensor *y      = prog_tensor(p, "tokens", v->net.compute, 3, dim);
    prog_at(p, -1, -1, "patch");
    rec_linear_fwd(
        p, (LinearFwd){ .y = y, .x = x, .w = weight(v, "patch.weight"), .bias = weight(v, "patch.bias") });
    return y;
}

/* Rows of x and of a table [B,n,C] where their indices say. */
static Tensor *record_joined(Prog *p, const char *name, int64_t n, RowsFwd x, RowsFwd table)
{
    int64_t dim[3] = { x.x->dim[0], n, x.x->dim[2] };
    Tensor *y[3];
    for (int i = 0; i < 3; i++) y[i] = prog_tensor(p, name, x.x->dtype, 3, dim);
    x.y     = y[0];
    table.y = y[1];
    prog_at(p, -1, -1, name);
    rec_rows_fwd(p, x);
    rec_rows_fwd(p, table);
    rec_add(p, (Add){ .y = y[2], .a = y[0], .b = y[1] });
    return y[2];
}

/* [B,n,C] to [B,1+n,C]. */
static Tensor *record_class(const Vit *v, Prog *p, Tensor *x)
{
    return record_joined(p, "class token", v->some, (RowsFwd){ .x = x, .index = v->spread },
                         (RowsFwd){ .x = weight(v, "class.weight"), .index = v->put });
}

/* [B,some,C] to [B,read,C]. */
static Tensor *record_registers(const Vit *v, Prog *p, Tensor *x)
{
    return record_joined(p, "registers", v->read, (RowsFwd){ .x = x, .index = v->before },
                         (RowsFwd){ .x = weight(v, "register.weight"), .index = v->extra });
}

static Tensor *record_positions(const Vit *v, Prog *p, const VitBatch *b, Tensor *x)
{
    Tensor *pos = v->sincos ? v->sincos : weight(v, "pos.weight"), *y = prog_like(p, "positions", x);
    prog_at(p, -1, -1, "positions");
    if (v->resample) {
        int64_t dim[2] = { v->T, x->dim[2] };
        Tensor *table  = prog_tensor(p, "resampled", v->net.compute, 2, dim);
        rec_linear_dx(p, (LinearDx){ .dx = table, .dy = v->resample, .w = pos });
        pos = table;
    }
    if (b->place) {
        Tensor *some = prog_like(p, "seen positions", x);
        rec_rows_fwd(p, (RowsFwd){ .y = some, .x = pos, .index = b->place });
        rec_add(p, (Add){ .y = y, .a = x, .b = some });
    } else {
        rec_add_pos(p, (AddPos){ .y = y, .x = x, .pos = pos });
    }
    return y;
}

/* One row a sample, behind the last norm. */
static Tensor *record_pool(const Vit *v, const NetRun *run, Tensor *x)
{
    Prog   *p      = run->p;
    int64_t dim[2] = { x->dim[0], x->dim[2] };
    Tensor *y      = prog_tensor(p, "pooled", v->net.compute, 2, dim);
    if (!has_class(v)) {
        x = net_record_norm(&v->net, run, "norm", x);
        prog_at(p, -1, -1, "mean of tokens");
        rec_mean_rows_fwd(p, (MeanRowsFwd){ .y = y, .x = x, .len = v->len });
        return y;
    }
    /* A norm of rows: of the class tokens alone it is the same, and less work. */
    prog_at(p, -1, -1, "class token");
    rec_rows_fwd(p, (RowsFwd){ .y = y, .x = x, .index = v->pick });
    return net_record_norm(&v->net, run, "norm", y);
}

Tensor *vit_record_blocks(const Vit *v, const NetRun *run, const VitBatch *b)
{
    Tensor *x = record_tokens(v, run->p, b, run->mode);
    if (has_class(v)) x = record_class(v, run->p, x);
    x = record_positions(v, run->p, b, x);
    if (v->image.registers > 0) x = record_registers(v, run->p, x);
    return net_record_blocks(&v->net, run, x);
}

Tensor *vit_record(const Vit *v, Prog *p, const VitBatch *b, Tensor *state, NetMode mode)
{
    NetBatch batch  = { .B = b->B, .T = v->read, .sample0 = b->sample0 };
    NetRun   run    = { .p = p, .batch = &batch, .state = state, .mode = mode };
    Tensor  *x      = record_pool(v, &run, vit_record_blocks(v, &run, b));
    int64_t  dim[2] = { b->B, v->stored_class };
    Tensor  *logits = prog_tensor(p, "logits", v->net.compute, 2, dim);
    prog_at(p, -1, -1, "head");
    rec_linear_fwd(
        p, (LinearFwd){ .y = logits, .x = x, .w = weight(v, "head.weight"), .bias = weight(v, "head.bias") });
    return logits;
}

void vit_record_loss(const Vit *v, Prog *p, const VitBatch *b, Tensor *logits, Tensor *state, NetMode mode)
{
    int64_t two[2] = { 2, 1 };
    int     mixes  = mode == NET_TRAIN && b->label2;
    Tensor *loss = prog_tensor(p, "loss", DT_F32, 1, &b->B), *lse = prog_tensor(p, "lse", DT_F32, 1, &b->B);
    Tensor *hits = mode == NET_EVAL ? prog_tensor(p, "hits", DT_F32, 2, two) : NULL;
    prog_at(p, -1, -1, "loss");
    if (hits) rec_fill(p, (Fill){ .y = hits });
    rec_xent_fwd(p, (XentFwd){ .loss    = loss,
                               .lse     = lse,
                               .hits    = hits,
                               .logits  = logits,
                               .target  = b->label,
                               .target2 = mixes ? b->label2 : NULL,
                               .lambda  = mixes ? b->share : NULL,
                               .n_class = v->image.classes,
                               .smooth  = mode == NET_TRAIN ? (float)v->image.smooth : 0 });
    rec_loss_add(p, (LossAdd){ .state = state, .loss = loss });
    for (int k = 0; k < 2 && hits; k++)
        rec_loss_add(p, (LossAdd){ .state = state, .loss = prog_rows(p, hits, k, 1), .slot = 1 + k });
}
