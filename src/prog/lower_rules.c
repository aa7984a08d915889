/* The variants of lowering: which ops one fused op replaces, and when.
 *
 * A match function gets op i of the variant's anchor kind. It fills *out, lists in used[] the other ops that
 * the fused op replaces, and returns how many; -1: the variant does not apply. */
#include "prog/lower.h"

#include "base/err.h"
#include "dev/glu.h"

#include <stddef.h>

static int match_add_norm(const Lower *l, int i, OpArgs *out, int *used)
{
    const Add *add = &l->p->op[i].args.add;
    int        j   = lower_find_reader(l, add->y, OP_NORM_FWD);
    if (j < 0 || l->p->op[j].args.norm_fwd.x != add->y || l->p->op[j].recompute != l->p->op[i].recompute)
        return -1;
    const NormFwd *n  = &l->p->op[j].args.norm_fwd;
    out->add_norm_fwd = (AddNormFwd){ .y     = n->y,
                                      .sum   = add->y,
                                      .mean  = n->mean,
                                      .rstd  = n->rstd,
                                      .a     = add->a,
                                      .b     = add->b,
                                      .gamma = n->gamma,
                                      .beta  = n->beta,
                                      .eps   = n->eps };
    used[0]           = j;
    return 1;
}

static int match_norm_bwd(const Lower *l, int i, OpArgs *out, int *used)
{
    const NormDx *dx = &l->p->op[i].args.norm_dx;
    int j = lower_find_reader(l, dx->dy, OP_NORM_DW), k = lower_find_reader(l, dx->dx, OP_ADD), n = 0;
    /* Two norms may share x and dy: their outputs are added. The statistics tell them apart. */
    if (j >= 0 && (l->p->op[j].args.norm_dw.x != dx->x || l->p->op[j].args.norm_dw.rstd != dx->rstd)) j = -1;
    if (k >= 0 && !lower_only_use(l, dx->dx, 1)) k = -1;
    if (j < 0 && k < 0) return -1;
    out->norm_bwd = (NormBwd){
        .dx = dx->dx, .dy = dx->dy, .x = dx->x, .gamma = dx->gamma, .mean = dx->mean, .rstd = dx->rstd
    };
    if (j >= 0) { /* a frozen norm has no gradient of its own */
        out->norm_bwd.dgamma = l->p->op[j].args.norm_dw.dgamma;
        out->norm_bwd.dbeta  = l->p->op[j].args.norm_dw.dbeta;
        used[n++]            = j;
    }
    if (k >= 0) {
        const Add *add     = &l->p->op[k].args.add;
        out->norm_bwd.dres = add->a == dx->dx ? add->b : add->a;
        out->norm_bwd.dx   = add->y;
        used[n++]          = k;
    }
    return n;
}

/* The linear layer before a residual gets the residual's gradient, so the layer's bias gradient is the column
 * sums of this dx. */
static int match_norm_bias(const Lower *l, int i, OpArgs *out, int *used)
{
    const NormBwd *n = &l->p->op[i].args.norm_bwd;
    int            j = lower_find_reader(l, n->dx, OP_BIAS_DW);
    if (j < 0) return -1;
    out->norm_bwd       = *n;
    out->norm_bwd.dbias = l->p->op[j].args.bias_dw.db;
    used[0]             = j;
    return 1;
}

static int match_xent(const Lower *l, int i, OpArgs *out, int *used)
{
    const XentFwd *f = &l->p->op[i].args.xent_fwd;
    /* By lse, which is its own: several losses may read the same logits. */
    int j = lower_find_reader(l, f->lse, OP_XENT_DX);
    if (j < 0 || !lower_only_use(l, f->lse, 1) || f->hits || f->target2 || f->smooth > 0) return -1;
    const XentDx *dx = &l->p->op[j].args.xent_dx;
    out->xent        = (Xent){ .loss    = f->loss,
                               .dlogits = dx->dlogits,
                               .logits  = f->logits,
                               .target  = f->target,
                               .state   = dx->state,
                               .n_class = f->n_class,
                               .slot    = f->slot };
    used[0]          = j;
    return 1;
}

static int match_act_bias(const Lower *l, int i, OpArgs *out, int *used)
{
    const ActDx *dx = &l->p->op[i].args.act_dx;
    int          j  = lower_find_reader(l, dx->dx, OP_BIAS_DW);
    if (j < 0) return -1;
    Tensor *db        = l->p->op[j].args.bias_dw.db;
    out->act_bias_bwd = (ActBiasBwd){ .dx = dx->dx, .db = db, .dy = dx->dy, .x = dx->x, .act = dx->act };
    used[0]           = j;
    return 1;
}

static int match_linear_act(const Lower *l, int i, OpArgs *out, int *used)
{
    const LinearFwd *f = &l->p->op[i].args.linear_fwd;
    int              j = lower_find_reader(l, f->y, OP_ACT_FWD);
    if (j < 0 || l->p->op[j].recompute != l->p->op[i].recompute) return -1;
    const ActFwd *act = &l->p->op[j].args.act_fwd;
    out->linear_act_fwd =
        (LinearActFwd){ .y = act->y, .pre = f->y, .x = f->x, .w = f->w, .bias = f->bias, .act = act->act };
    used[0] = j;
    return 1;
}

/* The activation's gradient may have taken the bias gradient already, or leaves it to this one. */
static int match_linear_act_bwd(const Lower *l, int i, OpArgs *out, int *used)
{
    const LinearDx *dx = &l->p->op[i].args.linear_dx;
    int             j = lower_find_reader(l, dx->dx, OP_ACT_BIAS_BWD), n = 1;
    ActBiasBwd      act;
    if (j >= 0) {
        act = l->p->op[j].args.act_bias_bwd;
    } else {
        j = lower_find_reader(l, dx->dx, OP_ACT_DX);
        if (j < 0) return -1;
        const ActDx *alone = &l->p->op[j].args.act_dx;
        act = (ActBiasBwd){ .dx = alone->dx, .dy = alone->dy, .x = alone->x, .act = alone->act };
    }
    if (act.dy != dx->dx || !lower_only_use(l, dx->dx, 1)) return -1;
    used[0] = j;
    int k   = act.db ? -1 : lower_find_reader(l, act.dx, OP_BIAS_DW);
    if (k >= 0) {
        act.db    = l->p->op[k].args.bias_dw.db;
        used[n++] = k;
    }
    out->linear_act_bwd = (LinearActBwd){
        .dpre = act.dx, .db = act.db, .dy = dx->dy, .w = dx->w, .pre = act.x, .act = act.act
    };
    return n;
}

static int match_linear_glu_fwd(const Lower *l, int i, OpArgs *out, int *used)
{
    const LinearFwd *f = &l->p->op[i].args.linear_fwd;
    int              j = lower_find_reader(l, f->y, OP_GLU_FWD);
    if (j < 0 || f->bias || l->p->op[j].recompute != l->p->op[i].recompute) return -1;
    const GluFwd *glu   = &l->p->op[j].args.glu_fwd;
    out->linear_glu_fwd = (LinearGluFwd){ .y = glu->y, .pre = f->y, .x = f->x, .w = f->w, .act = glu->act };
    out->linear_glu_fwd.slope = lower_only_use(l, f->y, 1) ? GLU_UNREAD : GLU_PRE;
    used[0]                   = j;
    return 1;
}

static int match_linear_glu_bwd(const Lower *l, int i, OpArgs *out, int *used)
{
    const LinearDx *dx = &l->p->op[i].args.linear_dx;
    int             j  = lower_find_reader(l, dx->dx, OP_GLU_DX);
    if (j < 0 || !lower_only_use(l, dx->dx, 1) || l->p->op[j].args.glu_dx.dy != dx->dx) return -1;
    const GluDx *glu = &l->p->op[j].args.glu_dx;
    out->linear_glu_bwd =
        (LinearGluBwd){ .dpre = glu->dx, .dy = dx->dy, .w = dx->w, .pre = glu->x, .act = glu->act };
    used[0] = j;
    return 1;
}

/* Takes the bias gradients that no norm took: those of qkv and up. The activation's gradient already has more
 * work. */
static int match_linear_dw_bias(const Lower *l, int i, OpArgs *out, int *used)
{
    const LinearDw *dw = &l->p->op[i].args.linear_dw;
    int             j  = lower_find_reader(l, dw->dy, OP_BIAS_DW);
    if (j < 0) return -1;
    out->linear_dw    = *dw;
    out->linear_dw.db = l->p->op[j].args.bias_dw.db;
    used[0]           = j;
    return 1;
}

static int match_attn_rope(const Lower *l, int i, OpArgs *out, int *used)
{
    const AttnBwd *b = &l->p->op[i].args.attn_bwd;
    int            j = lower_find_reader(l, b->dqkv, OP_ROPE);
    if (j < 0 || !lower_only_use(l, b->dqkv, 1)) return -1;
    const Rope *r = &l->p->op[j].args.rope;
    if (!r->inverse || r->pos0 || r->n_head != b->shape.heads + b->shape.kv_heads ||
        r->head_dim != b->shape.head_dim)
        return -1;
    out->attn_bwd       = *b;
    out->attn_bwd.dqkv  = r->y;
    out->attn_bwd.table = r->table;
    used[0]             = j;
    return 1;
}

/* What only a QUANT reads is written in fp8 by the op that makes it. */
static int quant_alone(const Lower *l, const Tensor *v, Quant *out)
{
    int j = lower_find_reader(l, v, OP_QUANT);
    if (j < 0 || !lower_only_use(l, v, 1) || l->p->op[j].args.quant.dynamic) return -1;
    *out = l->p->op[j].args.quant;
    return j;
}

static int match_quant(const Lower *l, int i, OpArgs *out, int *used)
{
    const Op     *op = &l->p->op[i];
    const Tensor *v  = op->args.t[0];
    Quant         q;
    used[0] = quant_alone(l, v, &q);
    if (used[0] < 0) return -1;
    switch (op->kind) {
    case OP_ACT_FWD:
        q.from = QUANT_ACT;
        q.act  = op->args.act_fwd.act;
        q.x    = op->args.act_fwd.x;
        break;
    case OP_GLU_FWD:
        q.from = QUANT_GLU;
        q.act  = op->args.glu_fwd.act;
        q.x    = op->args.glu_fwd.x;
        break;
    case OP_ACT_DX:
        q.from = QUANT_ACT_DX;
        q.act  = op->args.act_dx.act;
        q.x    = op->args.act_dx.x;
        q.dy   = op->args.act_dx.dy;
        break;
    case OP_ACT_BIAS_BWD:
        q.from = QUANT_ACT_DX;
        q.act  = op->args.act_bias_bwd.act;
        q.x    = op->args.act_bias_bwd.x;
        q.dy   = op->args.act_bias_bwd.dy;
        q.db   = op->args.act_bias_bwd.db;
        break;
    case OP_XENT_DX:
        if (op->args.xent_dx.target2 || op->args.xent_dx.smooth > 0) return -1;
        q.from    = QUANT_XENT_DX;
        q.x       = op->args.xent_dx.logits;
        q.lse     = op->args.xent_dx.lse;
        q.target  = op->args.xent_dx.target;
        q.state   = op->args.xent_dx.state;
        q.n_class = op->args.xent_dx.n_class;
        q.slot    = op->args.xent_dx.slot;
        break;
    default:
        q.from = QUANT_GLU_DX;
        q.act  = op->args.glu_dx.act;
        q.x    = op->args.glu_dx.x;
        q.dy   = op->args.glu_dx.dy;
    }
    if (q.act >= ACT_FUSED) return -1;
    out->quant = q;
    return 1;
}

/* The bias gradients that neither a norm nor an activation took: those of qkv. */
static int match_quant_bias(const Lower *l, int i, OpArgs *out, int *used)
{
    const BiasDw *b = &l->p->op[i].args.bias_dw;
    int           j = lower_find_reader(l, b->dy, OP_QUANT);
    if (j < 0 || l->p->op[j].args.quant.db || l->p->op[j].args.quant.dynamic) return -1;
    out->quant    = l->p->op[j].args.quant;
    out->quant.db = b->db;
    used[0]       = j;
    return 1;
}

const LowerVariant lower_variants[] = {
    { "residual add + norm", offsetof(RecipeOpt, add_norm), OP_ADD, OP_ADD_NORM_FWD, match_add_norm, 0 },
    { "norm backward + residual add", offsetof(RecipeOpt, norm_bwd), OP_NORM_DX, OP_NORM_BWD, match_norm_bwd,
      0 },
    { "norm backward + bias gradient", offsetof(RecipeOpt, norm_bwd), OP_NORM_BWD, OP_NORM_BWD,
      match_norm_bias, 0 },
    { "loss gradient in fp8", offsetof(RecipeOpt, quant), OP_XENT_DX, OP_QUANT, match_quant, 0 },
    { "cross-entropy in place", offsetof(RecipeOpt, xent), OP_XENT_FWD, OP_XENT, match_xent, 0 },
    { "weight + bias gradient", offsetof(RecipeOpt, linear_dw_bias), OP_LINEAR_DW, OP_LINEAR_DW,
      match_linear_dw_bias, FUSE_LINEAR_DW_BIAS },
    { "activation + bias gradient", offsetof(RecipeOpt, act_bias), OP_ACT_DX, OP_ACT_BIAS_BWD, match_act_bias,
      0 },
    { "linear + activation", offsetof(RecipeOpt, linear_act), OP_LINEAR_FWD, OP_LINEAR_ACT_FWD,
      match_linear_act, 0 },
    { "activation in the product's gradient", offsetof(RecipeOpt, linear_act_bwd), OP_LINEAR_DX,
      OP_LINEAR_ACT_BWD, match_linear_act_bwd, FUSE_LINEAR_ACT_BWD },
    { "linear + gate", offsetof(RecipeOpt, linear_glu_fwd), OP_LINEAR_FWD, OP_LINEAR_GLU_FWD,
      match_linear_glu_fwd, FUSE_LINEAR_GLU_FWD },
    { "gate in the product's gradient", offsetof(RecipeOpt, linear_glu_bwd), OP_LINEAR_DX, OP_LINEAR_GLU_BWD,
      match_linear_glu_bwd, FUSE_LINEAR_GLU_BWD },
    { "activation in fp8", offsetof(RecipeOpt, quant), OP_ACT_FWD, OP_QUANT, match_quant, 0 },
    { "gate in fp8", offsetof(RecipeOpt, quant), OP_GLU_FWD, OP_QUANT, match_quant, 0 },
    { "activation gradient in fp8", offsetof(RecipeOpt, quant), OP_ACT_DX, OP_QUANT, match_quant, 0 },
    { "activation and bias gradient in fp8", offsetof(RecipeOpt, quant), OP_ACT_BIAS_BWD, OP_QUANT,
      match_quant, 0 },
    { "gate's gradient in fp8", offsetof(RecipeOpt, quant), OP_GLU_DX, OP_QUANT, match_quant, 0 },
    { "bias gradient while quantising", offsetof(RecipeOpt, quant), OP_BIAS_DW, OP_QUANT, match_quant_bias,
      0 },
    { "attention backward + rotary positions", offsetof(RecipeOpt, attn_rope), OP_ATTN_BWD, OP_ATTN_BWD,
      match_attn_rope, 0 },
};

const int lower_n_variant = ARRAY_LEN(lower_variants);
