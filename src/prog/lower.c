/* Lowering: replaces runs of ops by fused ops, from one table.
 *
 * 1. A variant has an anchor kind. Its match function starts at the anchor and follows the data flow to the
 *    ops that read the anchor's outputs. The function fills the fused op, or answers that the variant does
 *    not apply.
 * 2. The fused op takes the anchor's place; the other ops are removed. So everything the fused op reads must
 *    be written before the anchor. The engine checks this rule, not the variants.
 * 3. A fused op gives the same bits as its parts (tests/test_op_*), so switching a variant off changes speed,
 *    not results. The exception is CUDA's products fused with an activation or a gate: another kernel sums in
 *    another order, LINEAR_ACT_FWD rounds in another place, and stored slopes are rounded. So these products
 *    and stored slopes are off in deterministic runs.
 * 4. A variant is used only if its option is on and the backend has the op. If the variant has a FUSE_* bit,
 *    the backend must also say that the fused op is not slower than its parts. */
#include "prog/prog.h"

#include "base/err.h"
#include "dev/glu.h"
#include "prog/prog_impl.h"

#include <stddef.h>
#include <string.h>

typedef struct {
    int op, next; /* reader list entry */
} Reader;

typedef struct {
    Prog          *p;
    int           *writer; /* by tensor id: op that writes it, -1 outside */
    int           *head;   /* by tensor id: first entry of its readers in increasing op order, -1 */
    int           *n_use;  /* by root id: reads by ops still alive */
    Reader        *reader;
    unsigned char *dead; /* by op */
} Lower;

static void lower_scan(Lower *l)
{
    Prog *p = l->p;
    int   n = prog_id_count(p), n_reader = 0;
    l->writer = ARENA_ARRAY(&p->arena, int, n);
    l->head   = ARENA_ARRAY(&p->arena, int, n);
    l->n_use  = ARENA_ARRAY(&p->arena, int, n);
    l->reader = ARENA_ARRAY(&p->arena, Reader, p->n_op * OP_MAX_TENSOR);
    l->dead   = ARENA_ARRAY(&p->arena, unsigned char, p->n_op);
    for (int i = 0; i < n; i++) l->writer[i] = l->head[i] = -1;
    for (int i = p->n_op - 1; i >= 0; i--) {
        const OpRow *row = &op_table[p->op[i].kind];
        p->recorded[p->op[i].kind]++;
        for (int a = 0; a < row->n_tensor; a++) {
            const Tensor *t = p->op[i].args.t[a];
            if (!t) continue;
            if (row->arg[a].access & ARG_WRITE) l->writer[t->id] = i;
            if (!(row->arg[a].access & ARG_READ)) continue;
            l->reader[n_reader] = (Reader){ i, l->head[t->id] };
            l->head[t->id]      = n_reader++;
            l->n_use[t->root->id]++;
        }
    }
}

/* The first op of that kind that reads t, or -1. */
static int find_reader(const Lower *l, const Tensor *t, OpKind kind)
{
    for (int r = l->head[t->id]; r >= 0; r = l->reader[r].next) {
        int i = l->reader[r].op;
        if (!l->dead[i] && l->p->op[i].kind == kind) return i;
    }
    return -1;
}

static int only_use(const Lower *l, const Tensor *t, int n)
{
    return t->slab == SLAB_ACT && l->n_use[t->root->id] == n;
}

/* ---- the variants -----------------------------------------------------------------------------------------
 *
 * Each fills *out, lists the other ops it consumes in used[] and returns how many; -1: does not apply. */

static int match_add_norm(const Lower *l, int i, OpArgs *out, int *used)
{
    const Add *add = &l->p->op[i].args.add;
    int        j   = find_reader(l, add->y, OP_NORM_FWD);
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
    int           j = find_reader(l, dx->dy, OP_NORM_DW), k = find_reader(l, dx->dx, OP_ADD), n = 0;
    /* Two norms may share x and dy: their outputs are added. The statistics tell them apart. */
    if (j >= 0 && (l->p->op[j].args.norm_dw.x != dx->x || l->p->op[j].args.norm_dw.rstd != dx->rstd)) j = -1;
    if (k >= 0 && !only_use(l, dx->dx, 1)) k = -1;
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
    int            j = find_reader(l, n->dx, OP_BIAS_DW);
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
    int j = find_reader(l, f->lse, OP_XENT_DX);
    if (j < 0 || !only_use(l, f->lse, 1) || f->hits || f->target2 || f->smooth > 0) return -1;
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
    int          j  = find_reader(l, dx->dx, OP_BIAS_DW);
    if (j < 0) return -1;
    Tensor *db        = l->p->op[j].args.bias_dw.db;
    out->act_bias_bwd = (ActBiasBwd){ .dx = dx->dx, .db = db, .dy = dx->dy, .x = dx->x, .act = dx->act };
    used[0]           = j;
    return 1;
}

static int match_linear_act(const Lower *l, int i, OpArgs *out, int *used)
{
    const LinearFwd *f = &l->p->op[i].args.linear_fwd;
    int              j = find_reader(l, f->y, OP_ACT_FWD);
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
    int             j = find_reader(l, dx->dx, OP_ACT_BIAS_BWD), n = 1;
    ActBiasBwd      act;
    if (j >= 0) {
        act = l->p->op[j].args.act_bias_bwd;
    } else {
        j = find_reader(l, dx->dx, OP_ACT_DX);
        if (j < 0) return -1;
        const ActDx *alone = &l->p->op[j].args.act_dx;
        act = (ActBiasBwd){ .dx = alone->dx, .dy = alone->dy, .x = alone->x, .act = alone->act };
    }
    if (act.dy != dx->dx || !only_use(l, dx->dx, 1)) return -1;
    used[0] = j;
    int k   = act.db ? -1 : find_reader(l, act.dx, OP_BIAS_DW);
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
    int              j = find_reader(l, f->y, OP_GLU_FWD);
    if (j < 0 || f->bias || l->p->op[j].recompute != l->p->op[i].recompute) return -1;
    const GluFwd *glu   = &l->p->op[j].args.glu_fwd;
    out->linear_glu_fwd = (LinearGluFwd){ .y = glu->y, .pre = f->y, .x = f->x, .w = f->w, .act = glu->act };
    out->linear_glu_fwd.slope = only_use(l, f->y, 1) ? GLU_UNREAD : GLU_PRE;
    used[0]                   = j;
    return 1;
}

static int match_linear_glu_bwd(const Lower *l, int i, OpArgs *out, int *used)
{
    const LinearDx *dx = &l->p->op[i].args.linear_dx;
    int             j  = find_reader(l, dx->dx, OP_GLU_DX);
    if (j < 0 || !only_use(l, dx->dx, 1) || l->p->op[j].args.glu_dx.dy != dx->dx) return -1;
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
    int             j  = find_reader(l, dw->dy, OP_BIAS_DW);
    if (j < 0) return -1;
    out->linear_dw    = *dw;
    out->linear_dw.db = l->p->op[j].args.bias_dw.db;
    used[0]           = j;
    return 1;
}

static int match_attn_rope(const Lower *l, int i, OpArgs *out, int *used)
{
    const AttnBwd *b = &l->p->op[i].args.attn_bwd;
    int            j = find_reader(l, b->dqkv, OP_ROPE);
    if (j < 0 || !only_use(l, b->dqkv, 1)) return -1;
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
    int j = find_reader(l, v, OP_QUANT);
    if (j < 0 || !only_use(l, v, 1) || l->p->op[j].args.quant.dynamic) return -1;
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
    int           j = find_reader(l, b->dy, OP_QUANT);
    if (j < 0 || l->p->op[j].args.quant.db || l->p->op[j].args.quant.dynamic) return -1;
    out->quant    = l->p->op[j].args.quant;
    out->quant.db = b->db;
    used[0]       = j;
    return 1;
}

typedef struct {
    const char *name;
    size_t      option; /* offset of its switch in RecipeOpt */
    OpKind      anchor, result;
    int (*match)(const Lower *l, int i, OpArgs *out, int *used);
    unsigned fuse; /* FUSE_* bit that the backend must have, 0: none */
} Variant;

static const Variant variants[] = {
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

/* If only the backward product reads the pre-activation (or the gate's inputs), the forward product stores
 * the activation's slope instead. The backward pass then only multiplies. This is not a variant: two ops
 * change, none is removed. CUDA has a kernel that does both at once for bf16 only. */
static void lower_slopes(Lower *l, const DevVt *vt)
{
    Prog *p = l->p;
    for (int j = 0; j < p->n_op; j++) {
        OpArgs *bwd   = &p->op[j].args;
        int     gated = p->op[j].kind == OP_LINEAR_GLU_BWD;
        if (l->dead[j] || (!gated && p->op[j].kind != OP_LINEAR_ACT_BWD)) continue;
        const Tensor *pre = gated ? bwd->linear_glu_bwd.pre : bwd->linear_act_bwd.pre;
        if (!(vt->hints->slope_dtypes >> pre->dtype & 1)) continue;
        int i = l->writer[pre->id];
        if (i < 0 || p->op[i].kind != (gated ? OP_LINEAR_GLU_FWD : OP_LINEAR_ACT_FWD)) continue;
        if (!only_use(l, pre, 1)) continue;
        if (gated) {
            p->op[i].args.linear_glu_fwd.slope = GLU_SLOPE;
            bwd->linear_glu_bwd.act            = ACT_SLOPE;
        } else {
            p->op[i].args.linear_act_fwd.slope = 1;
            bwd->linear_act_bwd.act            = ACT_SLOPE;
        }
    }
}

/* ---- the engine ---------------------------------------------------------------------------------------- */

static int inputs_ready(const Lower *l, OpKind kind, const OpArgs *args, int i)
{
    const OpRow *row = &op_table[kind];
    for (int a = 0; a < row->n_tensor; a++) {
        const Tensor *t = args->t[a];
        if (!t || !(row->arg[a].access & ARG_READ) || t->slab != SLAB_ACT) continue;
        if (l->writer[t->id] > i) return 0;
    }
    return 1;
}

static void count_uses(Lower *l, const Op *op, int by)
{
    const OpRow *row = &op_table[op->kind];
    for (int a = 0; a < row->n_tensor; a++) {
        if (op->args.t[a] && (row->arg[a].access & ARG_READ)) l->n_use[op->args.t[a]->root->id] += by;
    }
}

static void lower_apply(Lower *l, const Variant *v, int i)
{
    Prog  *p = l->p;
    int    used[4];
    OpArgs out;
    memset(&out, 0, sizeof out);
    int n = v->match(l, i, &out, used);
    if (n < 0 || !inputs_ready(l, v->result, &out, i)) return;
    count_uses(l, &p->op[i], -1);
    for (int k = 0; k < n; k++) {
        CHECK(used[k] != i && !l->dead[used[k]], "%s used an op twice", v->name);
        count_uses(l, &p->op[used[k]], -1);
        l->dead[used[k]] = 1;
    }
    p->op[i].kind = v->result;
    p->op[i].args = out;
    count_uses(l, &p->op[i], +1);
    const OpRow *row = &op_table[v->result];
    for (int a = 0; a < row->n_tensor; a++) {
        if (out.t[a] && (row->arg[a].access & ARG_WRITE)) l->writer[out.t[a]->id] = i;
    }
}

static void lower_workspaces(Prog *p)
{
    for (int i = 0; i < p->n_op; i++) {
        const OpRow *row = &op_table[p->op[i].kind];
        for (int a = 0; a < row->n_tensor; a++) {
            if (!(row->arg[a].access & ARG_WS)) continue;
            int64_t n = (int64_t)op_workspace_bytes(p->op[i].kind, &p->op[i].args);
            if (n > 0) p->op[i].args.t[a] = prog_tensor(p, "workspace", DT_U8, 1, &n);
        }
    }
}

void prog_lower(Prog *p, const RecipeOpt *opt, const DevVt *vt)
{
    Lower l = { .p = p };
    lower_scan(&l);
    for (int v = 0; v < ARRAY_LEN(variants); v++) {
        int on;
        memcpy(&on, (const char *)opt + variants[v].option, sizeof on);
        if (!on || !dev_has(vt, variants[v].result) || (variants[v].fuse & ~vt->fuses)) continue;
        for (int i = 0; i < p->n_op; i++) {
            if (!l.dead[i] && p->op[i].kind == variants[v].anchor) lower_apply(&l, &variants[v], i);
        }
    }
    if (opt->act_slope && (vt->fuses & FUSE_ACT_SLOPE)) lower_slopes(&l, vt);
    int n = 0;
    for (int i = 0; i < p->n_op; i++) {
        if (!l.dead[i]) p->op[n++] = p->op[i];
    }
    p->n_op = n;
    if (vt->hints->has_workspaces) lower_workspaces(p);
}
