/* The gradient of each op kind, recorded as more ops. The order within a rule helps lowering: norm_dx,
 * norm_dw and the residual add stand together; bias_dw follows the activation gradient that feeds it. A kind
 * without a rule is either not differentiable or a leaf (LOSS_ADD, FILL, collectives). */
#include "prog/differentiate.h"

#include "base/err.h"
#include "prog/record.h"

static void grad_embed_fwd(Diff *d, const Op *op)
{
    const EmbedFwd *a  = &op->args.embed_fwd;
    Tensor         *dy = diff_out(d, a->y), *dwte = diff_weight(d, a->wte), *dwpe = diff_weight(d, a->wpe);
    if (!dy) return;
    if (dwte) rec_embed_dw(d->p, (EmbedDw){ .dwte = dwte, .dy = dy, .tok = a->tok });
    if (dwpe) rec_pos_dw(d->p, (PosDw){ .dwpe = dwpe, .dy = dy });
}

static void grad_norm_fwd(Diff *d, const Op *op)
{
    const NormFwd *a = &op->args.norm_fwd;
    Tensor *dy = diff_out(d, a->y), *dgamma = diff_weight(d, a->gamma), *dbeta = diff_weight(d, a->beta);
    if (!dy) return;
    Tensor *x = diff_saved(d, a->x), *mean = diff_saved(d, a->mean), *rstd = diff_saved(d, a->rstd);
    Tensor *dx = diff_begin(d, a->x);
    if (dx) {
        rec_norm_dx(d->p,
                    (NormDx){ .dx = dx, .dy = dy, .x = x, .gamma = a->gamma, .mean = mean, .rstd = rstd });
    }
    if (dgamma) {
        rec_norm_dw(
            d->p, (NormDw){ .dgamma = dgamma, .dbeta = dbeta, .dy = dy, .x = x, .mean = mean, .rstd = rstd });
    } else if (dbeta) {
        rec_bias_dw(d->p, (BiasDw){ .db = dbeta, .dy = dy });
    }
    diff_end(d, a->x, dx);
}

static void grad_linear_fwd(Diff *d, const Op *op)
{
    const LinearFwd *a  = &op->args.linear_fwd;
    Tensor          *dy = diff_out(d, a->y), *dw = diff_weight(d, a->w), *db = diff_weight(d, a->bias);
    if (!dy) return;
    if (db) rec_bias_dw(d->p, (BiasDw){ .db = db, .dy = dy });
    if (dw) rec_linear_dw(d->p, (LinearDw){ .dw = dw, .dy = dy, .x = diff_saved(d, a->x) });
    Tensor *dx = diff_begin(d, a->x);
    if (dx) rec_linear_dx(d->p, (LinearDx){ .dx = dx, .dy = dy, .w = a->w });
    diff_end(d, a->x, dx);
}

static void grad_act_fwd(Diff *d, const Op *op)
{
    const ActFwd *a  = &op->args.act_fwd;
    Tensor       *dy = diff_out(d, a->y);
    if (!dy) return;
    Tensor *x = diff_saved(d, a->x), *dx = diff_begin(d, a->x);
    if (dx) rec_act_dx(d->p, (ActDx){ .dx = dx, .dy = dy, .x = x, .act = a->act });
    diff_end(d, a->x, dx);
}

static void grad_glu_fwd(Diff *d, const Op *op)
{
    const GluFwd *a  = &op->args.glu_fwd;
    Tensor       *dy = diff_out(d, a->y);
    if (!dy) return;
    Tensor *x = diff_saved(d, a->x), *dx = diff_begin(d, a->x);
    if (dx) rec_glu_dx(d->p, (GluDx){ .dx = dx, .dy = dy, .x = x, .act = a->act });
    diff_end(d, a->x, dx);
}

static void grad_add(Diff *d, const Op *op)
{
    const Add *a  = &op->args.add;
    Tensor    *dy = diff_out(d, a->y);
    if (!dy) return;
    diff_pass(d, a->a, dy);
    diff_pass(d, a->b, dy);
}

static void grad_mul(Diff *d, const Op *op)
{
    const Mul *a  = &op->args.mul;
    Tensor    *dy = diff_out(d, a->y);
    if (!dy) return;
    Tensor *va = diff_saved(d, a->a), *vb = diff_saved(d, a->b);
    Tensor *da = diff_begin(d, a->a);
    if (da) rec_mul(d->p, (Mul){ .y = da, .a = dy, .b = vb });
    diff_end(d, a->a, da);
    Tensor *db = diff_begin(d, a->b);
    if (db) rec_mul(d->p, (Mul){ .y = db, .a = dy, .b = va });
    diff_end(d, a->b, db);
}

static void grad_scale(Diff *d, const Op *op)
{
    const Scale *a  = &op->args.scale;
    Tensor      *dy = diff_out(d, a->y), *dgamma = diff_weight(d, a->gamma);
    if (!dy) return;
    if (dgamma) rec_scale_dw(d->p, (ScaleDw){ .dgamma = dgamma, .dy = dy, .x = diff_saved(d, a->x) });
    Tensor *dx = diff_begin(d, a->x);
    if (dx) rec_scale(d->p, (Scale){ .y = dx, .x = dy, .gamma = a->gamma });
    diff_end(d, a->x, dx);
}

/* Rows of a weight: the gradient of a table that was looked up. */
static void grad_rows_fwd(Diff *d, const Op *op)
{
    const RowsFwd *a  = &op->args.rows_fwd;
    Tensor        *dy = diff_out(d, a->y), *dw = diff_weight(d, a->x);
    if (!dy) return;
    if (dw) {
        CHECK(!a->at, "%s: rows of a part of the index have no gradient", op->label);
        rec_embed_dw(d->p, (EmbedDw){ .dwte = dw, .dy = dy, .tok = a->index });
        return;
    }
    Tensor *dx = diff_begin(d, a->x);
    if (dx) {
        CHECK(!a->at, "%s: rows of a part of the index have no gradient", op->label);
        rec_rows_dx(d->p, (RowsDx){ .dx = dx, .dy = dy, .index = a->index });
    }
    diff_end(d, a->x, dx);
}

static void grad_mean_rows_fwd(Diff *d, const Op *op)
{
    const MeanRowsFwd *a  = &op->args.mean_rows_fwd;
    Tensor            *dy = diff_out(d, a->y);
    if (!dy) return;
    Tensor *dx = diff_begin(d, a->x);
    if (dx) rec_mean_rows_dx(d->p, (MeanRowsDx){ .dx = dx, .dy = dy, .len = a->len });
    diff_end(d, a->x, dx);
}

static void grad_add_pos(Diff *d, const Op *op)
{
    const AddPos *a  = &op->args.add_pos;
    Tensor       *dy = diff_out(d, a->y), *dpos = diff_weight(d, a->pos);
    if (!dy) return;
    if (dpos) rec_pos_dw(d->p, (PosDw){ .dwpe = dpos, .dy = dy });
    Tensor *computed = dpos ? NULL : diff_begin(d, a->pos);
    if (computed) {
        /* A table that was computed: its gradient is summed in f32 first. */
        Tensor *sum = prog_tensor(d->p, "d positions", DT_F32, computed->ndim, computed->dim);
        rec_fill(d->p, (Fill){ .y = sum });
        rec_pos_dw(d->p, (PosDw){ .dwpe = sum, .dy = dy });
        rec_cast(d->p, (Cast){ .y = computed, .x = sum });
    }
    diff_end(d, a->pos, computed);
    diff_pass(d, a->x, dy);
}

/* As a product of its own: dx = dy w, where dy is a constant or an activation. */
static void grad_linear_dx(Diff *d, const Op *op)
{
    const LinearDx *a    = &op->args.linear_dx;
    Tensor         *dout = diff_out(d, a->dx), *dw = diff_weight(d, a->w);
    if (!dout) return;
    if (dw) rec_linear_dw(d->p, (LinearDw){ .dw = dw, .dy = diff_saved(d, a->dy), .x = dout });
    Tensor *ddy = diff_begin(d, a->dy);
    if (ddy) rec_linear_fwd(d->p, (LinearFwd){ .y = ddy, .x = dout, .w = a->w });
    diff_end(d, a->dy, ddy);
}

static void grad_rope(Diff *d, const Op *op)
{
    const Rope *a  = &op->args.rope;
    Tensor     *dy = diff_out(d, a->y);
    if (!dy) return;
    Tensor *dx = diff_begin(d, a->x);
    if (dx) {
        rec_rope(d->p, (Rope){ .y        = dx,
                               .x        = dy,
                               .table    = a->table,
                               .pos0     = a->pos0,
                               .n_head   = a->n_head,
                               .head_dim = a->head_dim,
                               .inverse  = !a->inverse });
    }
    diff_end(d, a->x, dx);
}

/* Where an op adds up the gradient of a frozen weight beside one that is wanted: a sum that no op reads. */
static Tensor *unread_sum(Diff *d, const Tensor *like)
{
    Tensor *sum = prog_like(d->p, "frozen", like);
    rec_fill(d->p, (Fill){ .y = sum });
    return sum;
}

static void grad_qknorm_fwd(Diff *d, const Op *op)
{
    const QkNormFwd *a  = &op->args.qknorm_fwd;
    Tensor          *dy = diff_out(d, a->y), *dgq = diff_weight(d, a->gq), *dgk = diff_weight(d, a->gk);
    if (!dy) return;
    Tensor *x = diff_saved(d, a->x), *rstd = diff_saved(d, a->rstd), *dx = diff_begin(d, a->x);
    if (dgq || dgk) {
        rec_qknorm_dw(d->p, (QkNormDw){ .dgq      = dgq ? dgq : unread_sum(d, dgk),
                                        .dgk      = dgk ? dgk : unread_sum(d, dgq),
                                        .dy       = dy,
                                        .x        = x,
                                        .rstd     = rstd,
                                        .heads    = a->heads,
                                        .kv_heads = a->kv_heads,
                                        .head_dim = a->head_dim });
    }
    if (dx) {
        rec_qknorm_dx(d->p, (QkNormDx){ .dx       = dx,
                                        .dy       = dy,
                                        .x        = x,
                                        .gq       = a->gq,
                                        .gk       = a->gk,
                                        .rstd     = rstd,
                                        .heads    = a->heads,
                                        .kv_heads = a->kv_heads,
                                        .head_dim = a->head_dim });
    }
    diff_end(d, a->x, dx);
}

static void grad_attn_fwd(Diff *d, const Op *op)
{
    const AttnFwd *a    = &op->args.attn_fwd;
    Tensor        *dout = diff_out(d, a->o);
    if (!dout) return;
    Tensor *qkv = diff_saved(d, a->qkv), *o = diff_saved(d, a->o), *lse = diff_saved(d, a->lse);
    Tensor *p = diff_saved(d, a->p), *dqkv = diff_begin(d, a->qkv);
    if (dqkv) {
        rec_attn_bwd(d->p, (AttnBwd){ .dqkv   = dqkv,
                                      .dout   = dout,
                                      .o      = o,
                                      .lse    = lse,
                                      .qkv    = qkv,
                                      .doc    = a->doc,
                                      .prefix = a->prefix,
                                      .first  = a->first,
                                      .last   = a->last,
                                      .p      = p,
                                      .shape  = a->shape });
    }
    diff_end(d, a->qkv, dqkv);
}

/* One op gives both gradients; a gradient that is not wanted goes to a tensor that no op reads. */
static void grad_cross_attn_fwd(Diff *d, const Op *op)
{
    const CrossAttnFwd *a    = &op->args.cross_attn_fwd;
    Tensor             *dout = diff_out(d, a->o);
    if (!dout) return;
    Tensor *q = diff_saved(d, a->q), *kv = diff_saved(d, a->kv), *o = diff_saved(d, a->o),
           *lse = diff_saved(d, a->lse), *dq = diff_begin(d, a->q), *dkv = diff_begin(d, a->kv);
    if (dq || dkv) {
        rec_cross_attn_bwd(d->p, (CrossAttnBwd){ .dq    = dq ? dq : prog_like(d->p, "dq", q),
                                                 .dkv   = dkv ? dkv : prog_like(d->p, "dkv", kv),
                                                 .dout  = dout,
                                                 .o     = o,
                                                 .lse   = lse,
                                                 .q     = q,
                                                 .kv    = kv,
                                                 .first = a->first,
                                                 .last  = a->last,
                                                 .len   = a->len,
                                                 .shape = a->shape });
    }
    diff_end(d, a->q, dq);
    diff_end(d, a->kv, dkv);
}

static void grad_dropout(Diff *d, const Op *op)
{
    const Dropout *a  = &op->args.dropout;
    Tensor        *dy = diff_out(d, a->y);
    if (!dy) return;
    Tensor *dx = diff_begin(d, a->x);
    if (dx) {
        Dropout g = *a;
        g.y       = dx;
        g.x       = dy;
        rec_dropout(d->p, g);
    }
    diff_end(d, a->x, dx);
}

/* Losses are the sources of gradients: a loss itself has gradient 1, its scale is in the step state. */
static void grad_xent_fwd(Diff *d, const Op *op)
{
    const XentFwd *a       = &op->args.xent_fwd;
    Tensor        *dlogits = diff_begin(d, a->logits);
    if (dlogits) {
        rec_xent_dx(d->p, (XentDx){ .dlogits = dlogits,
                                    .logits  = diff_saved(d, a->logits),
                                    .lse     = diff_saved(d, a->lse),
                                    .target  = a->target,
                                    .target2 = a->target2,
                                    .lambda  = a->lambda,
                                    .state   = d->state,
                                    .n_class = a->n_class,
                                    .smooth  = a->smooth,
                                    .slot    = a->slot });
    }
    diff_end(d, a->logits, dlogits);
}

static void grad_mse_fwd(Diff *d, const Op *op)
{
    const MseFwd *a  = &op->args.mse_fwd;
    Tensor       *dx = diff_begin(d, a->x);
    if (dx) {
        rec_mse_dx(d->p, (MseDx){ .dx     = dx,
                                  .x      = diff_saved(d, a->x),
                                  .target = a->target,
                                  .old    = a->old,
                                  .clip   = a->clip,
                                  .state  = d->state,
                                  .slot   = a->slot });
    }
    diff_end(d, a->x, dx);
}

static void grad_kl_fwd(Diff *d, const Op *op)
{
    const KlFwd *a       = &op->args.kl_fwd;
    Tensor      *dlogits = diff_begin(d, a->logits);
    if (dlogits) {
        rec_kl_dx(d->p, (KlDx){ .dlogits = dlogits,
                                .logits  = diff_saved(d, a->logits),
                                .teacher = diff_saved(d, a->teacher),
                                .lse     = diff_saved(d, a->lse),
                                .tlse    = diff_saved(d, a->tlse),
                                .target  = a->target,
                                .state   = d->state,
                                .n_class = a->n_class,
                                .tau     = a->tau,
                                .slot    = a->slot });
    }
    diff_end(d, a->logits, dlogits);
}

static void grad_ppo_cat_fwd(Diff *d, const Op *op)
{
    const PpoCatFwd *a      = &op->args.ppo_cat_fwd;
    Tensor          *logits = diff_saved(d, a->logits), *value = diff_saved(d, a->value);
    Tensor          *dlogits = diff_begin(d, a->logits), *dvalue = diff_begin(d, a->value);
    if (dlogits || dvalue) {
        rec_ppo_cat_dx(d->p, (PpoCatDx){ .dlogits   = dlogits,
                                         .dvalue    = dvalue,
                                         .logits    = logits,
                                         .value     = value,
                                         .action    = a->action,
                                         .old_logp  = a->old_logp,
                                         .adv       = a->adv,
                                         .ret       = a->ret,
                                         .old_value = a->old_value,
                                         .norm      = diff_saved(d, a->norm),
                                         .mask      = a->mask,
                                         .seg       = a->seg,
                                         .valid     = a->valid,
                                         .coef      = a->coef,
                                         .state     = d->state,
                                         .slot      = a->slot });
    }
    diff_end(d, a->logits, dlogits);
    diff_end(d, a->value, dvalue);
}

/* The gradient of a log_std that all rows share is the sum over rows of theirs. */
static void grad_ppo_gauss_fwd(Diff *d, const Op *op)
{
    const PpoGaussFwd *a    = &op->args.ppo_gauss_fwd;
    Tensor            *mean = diff_saved(d, a->mean), *log_std = diff_saved(d, a->log_std),
           *value = diff_saved(d, a->value);
    Tensor *dmean = diff_begin(d, a->mean), *dvalue = diff_begin(d, a->value);
    Tensor *dweight = diff_weight(d, a->log_std), *dlog_std = diff_begin(d, a->log_std);
    Tensor *rows = dweight ? prog_like(d->p, "d log_std", a->mean) : dlog_std;
    if (dmean || dvalue || rows) {
        rec_ppo_gauss_dx(d->p, (PpoGaussDx){ .dmean     = dmean,
                                             .dlog_std  = rows,
                                             .dvalue    = dvalue,
                                             .mean      = mean,
                                             .log_std   = log_std,
                                             .value     = value,
                                             .action    = a->action,
                                             .old_logp  = a->old_logp,
                                             .adv       = a->adv,
                                             .ret       = a->ret,
                                             .old_value = a->old_value,
                                             .norm      = diff_saved(d, a->norm),
                                             .valid     = a->valid,
                                             .coef      = a->coef,
                                             .state     = d->state,
                                             .slot      = a->slot });
    }
    if (dweight) rec_bias_dw(d->p, (BiasDw){ .db = dweight, .dy = rows });
    diff_end(d, a->mean, dmean);
    diff_end(d, a->log_std, dlog_std);
    diff_end(d, a->value, dvalue);
}

static void grad_cast(Diff *d, const Op *op)
{
    const Cast *a  = &op->args.cast;
    Tensor     *dy = diff_out(d, a->y);
    if (!dy) return;
    Tensor *dx = diff_begin(d, a->x);
    if (dx) rec_cast(d->p, (Cast){ .y = dx, .x = dy });
    diff_end(d, a->x, dx);
}

/* clang-format off */
const GradRule grad_rules[OP_COUNT] = {
    [OP_EMBED_FWD]  = grad_embed_fwd,
    [OP_NORM_FWD]   = grad_norm_fwd,
    [OP_LINEAR_FWD] = grad_linear_fwd,
    [OP_LINEAR_DX]  = grad_linear_dx,
    [OP_ACT_FWD]    = grad_act_fwd,
    [OP_GLU_FWD]    = grad_glu_fwd,
    [OP_ADD]        = grad_add,
    [OP_MUL]        = grad_mul,
    [OP_SCALE]      = grad_scale,
    [OP_ROWS_FWD]       = grad_rows_fwd,
    [OP_MEAN_ROWS_FWD] = grad_mean_rows_fwd,
    [OP_ADD_POS]    = grad_add_pos,
    [OP_ROPE]       = grad_rope,
    [OP_QKNORM_FWD] = grad_qknorm_fwd,
    [OP_ATTN_FWD]   = grad_attn_fwd,
    [OP_CROSS_ATTN_FWD] = grad_cross_attn_fwd,
    [OP_DROPOUT]    = grad_dropout,
    [OP_XENT_FWD]   = grad_xent_fwd,
    [OP_MSE_FWD]    = grad_mse_fwd,
    [OP_KL_FWD]     = grad_kl_fwd,
    [OP_PPO_CAT_FWD] = grad_ppo_cat_fwd,
    [OP_PPO_GAUSS_FWD] = grad_ppo_gauss_fwd,
    [OP_CAST]       = grad_cast,
};
/* clang-format on */
