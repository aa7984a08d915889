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
#include "prog/lower.h"

#include "base/err.h"
#include "dev/glu.h"

#include <string.h>

static void lower_scan(Lower *l)
{
    Prog *p = l->p;
    int   n = prog_id_count(p), n_reader = 0;
    l->writer = ARENA_ARRAY(&p->arena, int, n);
    l->head   = ARENA_ARRAY(&p->arena, int, n);
    l->n_use  = ARENA_ARRAY(&p->arena, int, n);
    l->reader = ARENA_ARRAY(&p->arena, LowerReader, p->n_op * OP_MAX_TENSOR);
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
            l->reader[n_reader] = (LowerReader){ i, l->head[t->id] };
            l->head[t->id]      = n_reader++;
            l->n_use[t->root->id]++;
        }
    }
}

int lower_find_reader(const Lower *l, const Tensor *t, OpKind kind)
{
    for (int r = l->head[t->id]; r >= 0; r = l->reader[r].next) {
        int i = l->reader[r].op;
        if (!l->dead[i] && l->p->op[i].kind == kind) return i;
    }
    return -1;
}

int lower_only_use(const Lower *l, const Tensor *t, int n)
{
    return t->slab == SLAB_ACT && l->n_use[t->root->id] == n;
}

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

static void lower_apply(Lower *l, const LowerVariant *v, int i)
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
        if (!lower_only_use(l, pre, 1)) continue;
        if (gated) {
            p->op[i].args.linear_glu_fwd.slope = GLU_SLOPE;
            bwd->linear_glu_bwd.act            = ACT_SLOPE;
        } else {
            p->op[i].args.linear_act_fwd.slope = 1;
            bwd->linear_act_bwd.act            = ACT_SLOPE;
        }
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
    for (int v = 0; v < lower_n_variant; v++) {
        const LowerVariant *variant = &lower_variants[v];
        int                 on;
        memcpy(&on, (const char *)opt + variant->option, sizeof on);
        if (!on || !dev_has(vt, variant->result) || (variant->fuse & ~vt->fuses)) continue;
        for (int i = 0; i < p->n_op; i++) {
            if (!l.dead[i] && p->op[i].kind == variant->anchor) lower_apply(&l, variant, i);
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
