/* Shape and dtype rules of every op, one place for recording, tests and the null backend. */
#include "dev/op.h"

#include "base/err.h"

#include <stdio.h>

typedef struct {
    OpKind      kind;
    const char *bad; /* first broken rule */
} V;

static void need(V *v, int ok, const char *rule)
{
    if (!ok && !v->bad) v->bad = rule;
}

static int is_vec(const Tensor *t, int64_t n)
{
    return !t || (tensor_numel(t) == n && tensor_is_contiguous(t));
}

static void check_linear(V *v, const Tensor *y, const Tensor *x, const Tensor *w, const Tensor *bias)
{
    need(v, tensor_rows(y) == tensor_rows(x), "y and x need the same rows");
    need(v, tensor_cols(x) == tensor_cols(w), "x and w need the same columns");
    need(v, tensor_cols(y) == tensor_rows(w), "y needs as many columns as w has rows");
    need(v, is_vec(bias, tensor_cols(y)), "bias needs one number per column of y");
}

static void need_one_dtype(V *v, const Tensor *a, const Tensor *b, const Tensor *c)
{
    need(v, a->dtype == b->dtype && b->dtype == c->dtype, "its activations need one dtype");
}

/* ACT_SLOPE is for gradients. */
static void need_act(V *v, Act act) { need(v, act < ACT_COUNT, "act is no activation"); }
static void need_act_or_slope(V *v, Act act) { need(v, act <= ACT_SLOPE, "act is no activation"); }

static void check_linear_act_fwd(V *v, const LinearActFwd *f)
{
    check_linear(v, f->pre, f->x, f->w, f->bias);
    need(v, tensor_same_shape(f->y, f->pre), "y and pre differ");
    need_act(v, f->act);
    need_one_dtype(v, f->y, f->pre, f->x);
}

static void check_linear_act_bwd(V *v, const LinearActBwd *b)
{
    check_linear(v, b->dy, b->dpre, b->w, NULL);
    need(v, tensor_same_shape(b->dpre, b->pre), "dpre and pre differ");
    need(v, is_vec(b->db, tensor_cols(b->dpre)), "db needs one number per column");
    need_act_or_slope(v, b->act);
    need_one_dtype(v, b->dpre, b->dy, b->pre);
}

static void check_linear_glu_fwd(V *v, const LinearGluFwd *f)
{
    check_linear(v, f->pre, f->x, f->w, NULL);
    need(v, tensor_rows(f->y) == tensor_rows(f->pre), "y and pre need the same rows");
    need(v, 2 * tensor_cols(f->y) == tensor_cols(f->pre), "pre must be twice as wide as y");
    need_act(v, f->act);
    need_one_dtype(v, f->y, f->pre, f->x);
}

static void check_linear_glu_bwd(V *v, const LinearGluBwd *b)
{
    need(v, tensor_same_shape(b->dpre, b->pre), "dpre and pre differ");
    need(v, tensor_rows(b->dy) == tensor_rows(b->pre), "dy and pre need the same rows");
    need(v, tensor_cols(b->dy) == tensor_rows(b->w), "dy needs as many columns as w has rows");
    need(v, 2 * tensor_cols(b->w) == tensor_cols(b->pre), "pre must be twice as wide as w");
    need_act_or_slope(v, b->act);
    need_one_dtype(v, b->dpre, b->dy, b->pre);
}

static void check_linears(V *v, const OpArgs *a)
{
    switch (v->kind) {
    case OP_LINEAR_FWD:
        check_linear(v, a->linear_fwd.y, a->linear_fwd.x, a->linear_fwd.w, a->linear_fwd.bias);
        break;
    case OP_LINEAR_DX: check_linear(v, a->linear_dx.dy, a->linear_dx.dx, a->linear_dx.w, NULL); break;
    case OP_LINEAR_DW:
        check_linear(v, a->linear_dw.dy, a->linear_dw.x, a->linear_dw.dw, a->linear_dw.db);
        break;
    case OP_LINEAR_ACT_FWD: check_linear_act_fwd(v, &a->linear_act_fwd); break;
    case OP_LINEAR_ACT_BWD: check_linear_act_bwd(v, &a->linear_act_bwd); break;
    case OP_LINEAR_GLU_FWD: check_linear_glu_fwd(v, &a->linear_glu_fwd); break;
    default: /* OP_LINEAR_GLU_BWD */ check_linear_glu_bwd(v, &a->linear_glu_bwd); break;
    }
}

static void check_attn(V *v, const Tensor *qkv, const Tensor *o, int H, int K, int D)
{
    need(v, qkv->ndim == 3, "qkv needs [B,T,W]");
    need(v, K >= 1 && H % K == 0, "heads must be a multiple of kv_heads");
    need(v, tensor_cols(qkv) == (int64_t)(H + 2 * K) * D, "qkv width must be (H+2K)*D");
    need(v, tensor_cols(o) == (int64_t)H * D && tensor_rows(o) == tensor_rows(qkv), "o must be [B,T,H*D]");
}

/* A table of rotations, if there is one. */
static void check_table(V *v, const Tensor *table, int64_t T, int head_dim)
{
    if (!table) return;
    need(v, head_dim % 2 == 0, "head size must be even");
    need(v, tensor_cols(table) == head_dim && tensor_rows(table) >= T, "table needs [T,D]");
}

static void check_weights(V *v, const Tensor *p, const Tensor *qkv, int H)
{
    if (!p) return;
    int64_t B = qkv->dim[0], T = qkv->dim[1];
    need(v, p->ndim == 4 && p->dim[0] == B && p->dim[1] == H && p->dim[2] == T && p->dim[3] == T,
         "p must be [B,H,T,T]");
    need(v, tensor_is_contiguous(p) && p->dtype == qkv->dtype, "p must be contiguous, in the dtype of qkv");
}

static void check_norm(V *v, const Tensor *x, const Tensor *gamma, const Tensor *mean, const Tensor *rstd)
{
    if (gamma) need(v, is_vec(gamma, tensor_cols(x)), "gamma needs one number per column");
    need(v, is_vec(mean, tensor_rows(x)) && is_vec(rstd, tensor_rows(x)),
         "statistics need one number per row");
}

static void check_norms(V *v, const OpArgs *a)
{
    switch (v->kind) {
    case OP_NORM_FWD:
        need(v, tensor_same_shape(a->norm_fwd.y, a->norm_fwd.x), "y and x differ");
        check_norm(v, a->norm_fwd.x, a->norm_fwd.gamma, a->norm_fwd.mean, a->norm_fwd.rstd);
        break;
    case OP_ADD_NORM_FWD:
        need(v, tensor_same_shape(a->add_norm_fwd.a, a->add_norm_fwd.b), "a and b differ");
        need(v, tensor_same_shape(a->add_norm_fwd.a, a->add_norm_fwd.y), "y and a differ");
        check_norm(v, a->add_norm_fwd.a, a->add_norm_fwd.gamma, a->add_norm_fwd.mean, a->add_norm_fwd.rstd);
        break;
    case OP_NORM_DX:
        need(v, tensor_same_shape(a->norm_dx.dx, a->norm_dx.x), "dx and x differ");
        check_norm(v, a->norm_dx.x, a->norm_dx.gamma, a->norm_dx.mean, a->norm_dx.rstd);
        break;
    case OP_NORM_DW:
        need(v, tensor_same_shape(a->norm_dw.dy, a->norm_dw.x), "dy and x differ");
        check_norm(v, a->norm_dw.x, a->norm_dw.dgamma, a->norm_dw.mean, a->norm_dw.rstd);
        break;
    default: /* OP_NORM_BWD */
        need(v, tensor_same_shape(a->norm_bwd.dx, a->norm_bwd.x), "dx and x differ");
        check_norm(v, a->norm_bwd.x, a->norm_bwd.gamma, a->norm_bwd.mean, a->norm_bwd.rstd);
        need(v, is_vec(a->norm_bwd.dbias, tensor_cols(a->norm_bwd.x)), "dbias needs one number per column");
        break;
    }
}

/* Ops on rows of [B,T,C] and rows by number. */
static void check_rows(V *v, const OpArgs *a)
{
    switch (v->kind) {
    case OP_ROWS_FWD:
        need(v, tensor_cols(a->rows_fwd.y) == tensor_cols(a->rows_fwd.x), "y and x differ in width");
        need(v, a->rows_fwd.y->dtype == a->rows_fwd.x->dtype, "y and x differ in dtype");
        need(v, tensor_numel(a->rows_fwd.index) % tensor_rows(a->rows_fwd.y) == 0, "one index per row of y");
        need(v, a->rows_fwd.at || tensor_numel(a->rows_fwd.index) == tensor_rows(a->rows_fwd.y),
             "one index per row of y");
        break;
    case OP_ROWS_DX:
        need(v, tensor_cols(a->rows_dx.dx) == tensor_cols(a->rows_dx.dy), "dx and dy differ in width");
        need(v, tensor_numel(a->rows_dx.index) == tensor_rows(a->rows_dx.dy), "one index per row of dy");
        break;
    case OP_MEAN_ROWS_FWD:
        need(v, a->mean_rows_fwd.x->ndim == 3, "x needs [B,T,C]");
        need(v, tensor_rows(a->mean_rows_fwd.y) == a->mean_rows_fwd.x->dim[0], "one row of y per sample");
        need(v, tensor_cols(a->mean_rows_fwd.y) == tensor_cols(a->mean_rows_fwd.x),
             "y and x differ in width");
        need(v, is_vec(a->mean_rows_fwd.len, a->mean_rows_fwd.x->dim[0]), "one length per sample");
        break;
    case OP_MEAN_ROWS_DX:
        need(v, a->mean_rows_dx.dx->ndim == 3, "dx needs [B,T,C]");
        need(v, tensor_rows(a->mean_rows_dx.dy) == a->mean_rows_dx.dx->dim[0], "one row of dy per sample");
        need(v, tensor_cols(a->mean_rows_dx.dy) == tensor_cols(a->mean_rows_dx.dx),
             "dy and dx differ in width");
        need(v, is_vec(a->mean_rows_dx.len, a->mean_rows_dx.dx->dim[0]), "one length per sample");
        break;
    default: /* OP_ADD_POS */
        need(v, tensor_same_shape(a->add_pos.y, a->add_pos.x), "y and x differ");
        need(v, a->add_pos.x->ndim == 3, "x needs [B,T,C]");
        need(v, tensor_cols(a->add_pos.pos) == tensor_cols(a->add_pos.x), "pos and x differ in width");
        need(v, tensor_rows(a->add_pos.pos) >= a->add_pos.x->dim[a->add_pos.x->ndim - 2],
             "too few positions");
        break;
    }
}

static void check_patches(V *v, const Patches *a)
{
    int64_t image = (int64_t)a->frames * a->src_height * a->src_width * 3, B = tensor_numel(a->img) / image;
    need(v, a->patch >= 1 && a->tubelet >= 1 && a->frames % a->tubelet == 0,
         "frames must be a multiple of tubelet");
    need(v, a->height % a->patch == 0 && a->width % a->patch == 0,
         "height and width must be multiples of patch");
    need(v, a->height <= a->src_height && a->width <= a->src_width, "the window is larger than the image");
    if (v->bad) return;
    int64_t n = (int64_t)(a->frames / a->tubelet) * (a->height / a->patch) * (a->width / a->patch);
    need(v, a->img->dtype == DT_U8 && tensor_is_contiguous(a->img), "img must be contiguous bytes");
    need(v, B * image == tensor_numel(a->img), "img is not a whole number of samples");
    need(v, tensor_rows(a->y) == B * n, "y needs one row per patch");
    need(v, tensor_cols(a->y) == (int64_t)a->tubelet * a->patch * a->patch * 3,
         "y needs one column per byte of a patch");
    need(v, is_vec(a->crop, 3 * B) && is_vec(a->box, 4 * B), "crop needs [B,3], box [B,4]");
    need(v, is_vec(a->partner, B) && is_vec(a->lambda, B), "one partner and lambda per sample");
    need(v, a->partner || (!a->lambda && !a->box), "lambda and box need a partner");
}

/* n_class of the columns are classes, one target a row. */
static void check_classes(V *v, const Tensor *logits, const Tensor *target, int64_t n_class)
{
    need(v, n_class <= tensor_cols(logits), "more classes than logits");
    need(v, !target || tensor_numel(target) == tensor_rows(logits), "one target per row");
}

static void check_soft(V *v, const Tensor *logits, const Tensor *target2, const Tensor *lambda, float smooth)
{
    need(v, !target2 == !lambda, "target2 and lambda come together");
    need(v, is_vec(target2, tensor_rows(logits)) && is_vec(lambda, tensor_rows(logits)),
         "one target2 and lambda per row");
    need(v, smooth >= 0 && smooth < 1, "smooth must be in [0, 1)");
}

static void check_mse(V *v, const Tensor *x, const Tensor *target, const Tensor *old, const Tensor *clip)
{
    need(v, tensor_same_shape(x, target), "x and target differ");
    need(v, !old == !clip, "old and clip come together");
    need(v, !old || tensor_same_shape(x, old), "x and old differ");
}

static void check_losses(V *v, const OpArgs *a)
{
    switch (v->kind) {
    case OP_XENT_FWD:
        check_classes(v, a->xent_fwd.logits, a->xent_fwd.target, a->xent_fwd.n_class);
        check_soft(v, a->xent_fwd.logits, a->xent_fwd.target2, a->xent_fwd.lambda, a->xent_fwd.smooth);
        need(v, is_vec(a->xent_fwd.hits, 2), "hits needs two numbers");
        break;
    case OP_XENT_DX:
        check_classes(v, a->xent_dx.logits, a->xent_dx.target, a->xent_dx.n_class);
        check_soft(v, a->xent_dx.logits, a->xent_dx.target2, a->xent_dx.lambda, a->xent_dx.smooth);
        break;
    case OP_XENT: check_classes(v, a->xent.logits, a->xent.target, a->xent.n_class); break;
    case OP_MSE_FWD:
        check_mse(v, a->mse_fwd.x, a->mse_fwd.target, a->mse_fwd.old, a->mse_fwd.clip);
        need(v, is_vec(a->mse_fwd.loss, tensor_rows(a->mse_fwd.x)), "one loss per row");
        break;
    case OP_MSE_DX:
        check_mse(v, a->mse_dx.x, a->mse_dx.target, a->mse_dx.old, a->mse_dx.clip);
        need(v, tensor_same_shape(a->mse_dx.dx, a->mse_dx.x), "dx and x differ");
        break;
    case OP_KL_FWD:
        check_classes(v, a->kl_fwd.logits, a->kl_fwd.target, a->kl_fwd.n_class);
        check_classes(v, a->kl_fwd.teacher, a->kl_fwd.target, a->kl_fwd.n_class);
        need(v, tensor_rows(a->kl_fwd.logits) == tensor_rows(a->kl_fwd.teacher),
             "logits and teacher differ in rows");
        break;
    default: /* OP_KL_DX */
        check_classes(v, a->kl_dx.logits, a->kl_dx.target, a->kl_dx.n_class);
        check_classes(v, a->kl_dx.teacher, a->kl_dx.target, a->kl_dx.n_class);
        need(v, tensor_same_shape(a->kl_dx.dlogits, a->kl_dx.logits), "dlogits and logits differ");
        break;
    }
}

/* What both kinds of policy have in common. */
typedef struct {
    const Tensor *policy, *value, *old_logp, *adv, *ret, *old_value, *valid, *coef;
} PpoShape;

static void check_ppo(V *v, PpoShape s)
{
    int64_t N = tensor_rows(s.policy);
    need(v, is_vec(s.old_logp, N) && is_vec(s.adv, N) && is_vec(s.valid, N),
         "one old_logp, adv and valid per row");
    need(v, !s.value == !s.ret && !s.value == !s.old_value, "value, ret and old_value come together");
    need(v, !s.value || (tensor_numel(s.value) == N && tensor_rows(s.value) == N), "value needs [N,1]");
    need(v, is_vec(s.ret, N) && is_vec(s.old_value, N), "one ret and old_value per row");
    need(v, tensor_numel(s.coef) == 4, "coef needs four numbers");
}

/* One action a segment. */
static void check_segments(V *v, const Tensor *logits, const Tensor *action, const Tensor *mask,
                           const Tensor *seg)
{
    int64_t S = seg ? tensor_numel(seg) - 1 : 1;
    need(v, is_vec(action, tensor_rows(logits) * S), "action needs [N,S]");
    need(v, is_vec(mask, tensor_numel(logits)), "mask needs [N,A]");
}

static void check_gauss(V *v, const Tensor *mean, const Tensor *log_std, const Tensor *action)
{
    need(v, tensor_cols(log_std) == tensor_cols(mean), "log_std and mean differ in width");
    need(v, tensor_rows(log_std) == 1 || tensor_rows(log_std) == tensor_rows(mean),
         "log_std needs [A] or [N,A]");
    need(v, is_vec(action, tensor_numel(mean)), "action needs [N,A]");
}

static void check_policies(V *v, const OpArgs *a)
{
    const PpoCatFwd   *cf = &a->ppo_cat_fwd;
    const PpoCatDx    *cd = &a->ppo_cat_dx;
    const PpoGaussFwd *gf = &a->ppo_gauss_fwd;
    const PpoGaussDx  *gd = &a->ppo_gauss_dx;
    switch (v->kind) {
    case OP_SAMPLE_CAT:
        check_segments(v, a->sample_cat.logits, a->sample_cat.action, a->sample_cat.mask, a->sample_cat.seg);
        break;
    case OP_SAMPLE_GAUSS:
        check_gauss(v, a->sample_gauss.mean, a->sample_gauss.log_std, a->sample_gauss.action);
        break;
    case OP_PPO_CAT_FWD:
        check_segments(v, cf->logits, cf->action, cf->mask, cf->seg);
        check_ppo(v, (PpoShape){ cf->logits, cf->value, cf->old_logp, cf->adv, cf->ret, cf->old_value,
                                 cf->valid, cf->coef });
        need(v, is_vec(cf->parts, PPO_PARTS * tensor_rows(cf->logits)), "parts needs [PPO_PARTS,N]");
        break;
    case OP_PPO_CAT_DX:
        check_segments(v, cd->logits, cd->action, cd->mask, cd->seg);
        check_ppo(v, (PpoShape){ cd->logits, cd->value, cd->old_logp, cd->adv, cd->ret, cd->old_value,
                                 cd->valid, cd->coef });
        need(v, !cd->dlogits || tensor_same_shape(cd->dlogits, cd->logits), "dlogits and logits differ");
        need(v, !cd->dvalue || (cd->value && tensor_same_shape(cd->dvalue, cd->value)),
             "dvalue and value differ");
        break;
    case OP_PPO_GAUSS_FWD:
        check_gauss(v, gf->mean, gf->log_std, gf->action);
        check_ppo(v, (PpoShape){ gf->mean, gf->value, gf->old_logp, gf->adv, gf->ret, gf->old_value,
                                 gf->valid, gf->coef });
        need(v, is_vec(gf->parts, PPO_PARTS * tensor_rows(gf->mean)), "parts needs [PPO_PARTS,N]");
        break;
    default: /* OP_PPO_GAUSS_DX */
        check_gauss(v, gd->mean, gd->log_std, gd->action);
        check_ppo(v, (PpoShape){ gd->mean, gd->value, gd->old_logp, gd->adv, gd->ret, gd->old_value,
                                 gd->valid, gd->coef });
        need(v, !gd->dmean || tensor_same_shape(gd->dmean, gd->mean), "dmean and mean differ");
        need(v, !gd->dlog_std || tensor_same_shape(gd->dlog_std, gd->mean), "dlog_std and mean differ");
        need(v, !gd->dvalue || (gd->value && tensor_same_shape(gd->dvalue, gd->value)),
             "dvalue and value differ");
        break;
    }
}

static void check_rollouts(V *v, const OpArgs *a)
{
    const Gae *g = &a->gae;
    switch (v->kind) {
    case OP_GAE: {
        int64_t n = tensor_numel(g->reward);
        need(v, is_vec(g->adv, n) && is_vec(g->ret, n) && is_vec(g->value, n) && is_vec(g->reward, n),
             "[T,N] differ");
        need(v, is_vec(g->terminated, n) && is_vec(g->truncated, n) && is_vec(g->final_value, n),
             "[T,N] differ");
        need(v, is_vec(g->last_value, tensor_cols(g->reward)), "last_value needs [N]");
        break;
    }
    case OP_STATS:
        need(v, tensor_numel(a->stats.out) == 3, "out needs three numbers");
        need(v, is_vec(a->stats.x, tensor_numel(a->stats.x)), "x must be contiguous");
        need(v, is_vec(a->stats.valid, tensor_numel(a->stats.x)), "x and valid differ");
        break;
    case OP_OBS_STATS:
        need(v, is_vec(a->obs_stats.run, 1 + 2 * tensor_cols(a->obs_stats.x)), "run needs [1 + 2D]");
        need(v, a->obs_stats.run->dtype == DT_F64, "run must be f64");
        need(v, is_vec(a->obs_stats.valid, tensor_rows(a->obs_stats.x)), "one valid per row");
        break;
    case OP_OBS_NORM:
        need(v, tensor_same_shape(a->obs_norm.y, a->obs_norm.x), "y and x differ");
        need(v, is_vec(a->obs_norm.run, 1 + 2 * tensor_cols(a->obs_norm.x)), "run needs [1 + 2D]");
        need(v, a->obs_norm.run->dtype == DT_F64, "run must be f64");
        break;
    case OP_PUT:
        need(v, a->put.y->dtype == a->put.x->dtype, "y and x differ in dtype");
        need(v, tensor_is_contiguous(a->put.y) && tensor_is_contiguous(a->put.x),
             "y and x must be contiguous");
        need(v, tensor_numel(a->put.y) % tensor_numel(a->put.x) == 0, "y is not a whole number of x");
        break;
    default: /* OP_TICK */ need(v, a->tick.modulo >= 1, "modulo must be at least 1"); break;
    }
}

static void check_attns(V *v, const OpArgs *a)
{
    if (v->kind == OP_ATTN_FWD) {
        check_attn(v, a->attn_fwd.qkv, a->attn_fwd.o, a->attn_fwd.heads, a->attn_fwd.kv_heads,
                   a->attn_fwd.head_dim);
        check_weights(v, a->attn_fwd.p, a->attn_fwd.qkv, a->attn_fwd.heads);
        return;
    }
    check_attn(v, a->attn_bwd.qkv, a->attn_bwd.o, a->attn_bwd.heads, a->attn_bwd.kv_heads,
               a->attn_bwd.head_dim);
    check_weights(v, a->attn_bwd.p, a->attn_bwd.qkv, a->attn_bwd.heads);
    check_table(v, a->attn_bwd.table, a->attn_bwd.qkv->dim[1], a->attn_bwd.head_dim);
}

static void check_acts(V *v, const OpArgs *a)
{
    switch (v->kind) {
    case OP_ACT_FWD:
        need(v, tensor_same_shape(a->act_fwd.y, a->act_fwd.x), "y and x differ");
        need_act(v, a->act_fwd.act);
        break;
    case OP_ACT_DX:
        need(v, tensor_same_shape(a->act_dx.dx, a->act_dx.x), "dx and x differ");
        need_act_or_slope(v, a->act_dx.act);
        break;
    case OP_GLU_FWD:
        need(v, 2 * tensor_cols(a->glu_fwd.y) == tensor_cols(a->glu_fwd.x), "x must be twice as wide as y");
        need_act(v, a->glu_fwd.act);
        break;
    default: /* OP_GLU_DX */
        need(v, 2 * tensor_cols(a->glu_dx.dy) == tensor_cols(a->glu_dx.x), "x must be twice as wide as dy");
        need_act_or_slope(v, a->glu_dx.act);
        break;
    }
}

/* Ops of no family. */
static void check_rest(V *v, const OpArgs *a)
{
    switch (v->kind) {
    case OP_EMBED_FWD:
        need(v, tensor_numel(a->embed_fwd.tok) == tensor_rows(a->embed_fwd.y), "one token per row of y");
        need(v, tensor_cols(a->embed_fwd.wte) == tensor_cols(a->embed_fwd.y), "wte and y differ in width");
        break;
    case OP_EMBED_DW:
        need(v, tensor_numel(a->embed_dw.tok) == tensor_rows(a->embed_dw.dy), "one token per row of dy");
        need(v, tensor_cols(a->embed_dw.dwte) == tensor_cols(a->embed_dw.dy), "dwte and dy differ in width");
        break;
    case OP_BIAS_DW:
        need(v, is_vec(a->bias_dw.db, tensor_cols(a->bias_dw.dy)), "db needs one number per column");
        break;
    case OP_ADD:
        need(v, tensor_same_shape(a->add.a, a->add.b) && tensor_same_shape(a->add.y, a->add.a),
             "a, b and y differ");
        break;
    case OP_MUL:
        need(v, tensor_same_shape(a->mul.a, a->mul.b) && tensor_same_shape(a->mul.y, a->mul.a),
             "a, b and y differ");
        break;
    case OP_ROPE:
        need(v, tensor_cols(a->rope.x) >= (int64_t)a->rope.n_head * a->rope.head_dim,
             "row is narrower than the heads");
        need(v, a->rope.head_dim % 2 == 0, "head size must be even");
        need(v, a->rope.x->ndim == 3, "x needs [B,T,W]");
        break;
    case OP_AXPBY: need(v, tensor_same_shape(a->axpby.y, a->axpby.x), "y and x differ"); break;
    case OP_EMA: need(v, tensor_numel(a->ema.e) == tensor_numel(a->ema.w), "sizes differ"); break;
    case OP_PATCHES: check_patches(v, &a->patches); break;
    case OP_COPY: need(v, tensor_bytes(a->copy.y) == tensor_bytes(a->copy.x), "sizes differ"); break;
    case OP_CAST: need(v, tensor_numel(a->cast.y) == tensor_numel(a->cast.x), "sizes differ"); break;
    default: break;
    }
}

static void check_shapes(V *v, const OpArgs *a)
{
    switch (v->kind) {
    case OP_NORM_FWD:
    case OP_NORM_DX:
    case OP_NORM_DW:
    case OP_ADD_NORM_FWD:
    case OP_NORM_BWD: check_norms(v, a); break;
    case OP_LINEAR_FWD:
    case OP_LINEAR_DX:
    case OP_LINEAR_DW:
    case OP_LINEAR_ACT_FWD:
    case OP_LINEAR_ACT_BWD:
    case OP_LINEAR_GLU_FWD:
    case OP_LINEAR_GLU_BWD: check_linears(v, a); break;
    case OP_ACT_FWD:
    case OP_ACT_DX:
    case OP_GLU_FWD:
    case OP_GLU_DX: check_acts(v, a); break;
    case OP_ATTN_FWD:
    case OP_ATTN_BWD: check_attns(v, a); break;
    case OP_XENT_FWD:
    case OP_XENT_DX:
    case OP_XENT:
    case OP_MSE_FWD:
    case OP_MSE_DX:
    case OP_KL_FWD:
    case OP_KL_DX: check_losses(v, a); break;
    case OP_ROWS_FWD:
    case OP_ROWS_DX:
    case OP_MEAN_ROWS_FWD:
    case OP_MEAN_ROWS_DX:
    case OP_ADD_POS: check_rows(v, a); break;
    case OP_SAMPLE_CAT:
    case OP_SAMPLE_GAUSS:
    case OP_PPO_CAT_FWD:
    case OP_PPO_CAT_DX:
    case OP_PPO_GAUSS_FWD:
    case OP_PPO_GAUSS_DX: check_policies(v, a); break;
    case OP_GAE:
    case OP_STATS:
    case OP_OBS_STATS:
    case OP_OBS_NORM:
    case OP_PUT:
    case OP_TICK: check_rollouts(v, a); break;
    default: check_rest(v, a); break;
    }
}

const char *op_validate(OpKind kind, const OpArgs *args, char *buf, size_t n)
{
    const OpRow *row = &op_table[kind];
    for (int i = 0; i < row->n_tensor; i++) {
        if (!args->t[i] && !(row->arg[i].access & ARG_OPTIONAL)) {
            snprintf(buf, n, "%s: argument %s is missing", row->name, row->arg[i].name);
            return buf;
        }
    }
    V v = { kind, NULL };
    check_shapes(&v, args);
    if (!v.bad) return NULL;
    snprintf(buf, n, "%s: %s", row->name, v.bad);
    return buf;
}
