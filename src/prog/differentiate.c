/* Reverse-mode differentiation over the list, and recomputation.
 *
 * This file walks the forward ops backwards. The rule of each op kind (grad_rules.c) records the gradient of
 * its op. diff_begin() answers NULL for branches without trainable weights, so these branches drop out.
 *
 * Recomputation begins with a question of a rule: diff_saved(t). The answer is t itself, unless t was written
 * inside a block whose level repeats that op. Then a copy of the op is recorded at this place, and the answer
 * is the copy's output. The inputs of the copy are found in the same way. So only what the backward half
 * reads is repeated, with the same op, attributes and random site: the bits are the same. A tensor that no
 * rule asks for is freed after its last forward use. This is the whole gain. */
#include "prog/differentiate.h"

#include "base/err.h"
#include "prog/record.h"

#include <string.h>

static void diff_fit(Diff *d)
{
    int n = prog_id_count(d->p);
    if (n <= d->cap) return;
    int cap = MAX(2 * d->cap, n + 1024);
#define GROW(field, Type)                                                                                    \
    do {                                                                                                     \
        Type *grown = ARENA_ARRAY(&d->p->arena, Type, cap);                                                  \
        if (d->cap) memcpy(grown, d->field, sizeof(Type) * (size_t)d->cap);                                  \
        d->field = grown;                                                                                    \
    } while (0)
    GROW(grad, Tensor *);
    GROW(needs, unsigned char);
    GROW(producer, int);
    GROW(again, Tensor *);
#undef GROW
    for (int i = d->cap; i < cap; i++) d->producer[i] = -1;
    d->cap = cap;
}

static int is_output(const Op *op, int a) { return (op_table[op->kind].arg[a].access & ARG_WRITE) != 0; }

static void diff_scan_forward(Diff *d)
{
    for (int i = 0; i < d->n_fwd; i++) {
        const Op    *op    = &d->p->op[i];
        const OpRow *row   = &op_table[op->kind];
        int          needs = 0;
        for (int a = 0; a < row->n_tensor; a++) {
            const Tensor *t = op->args.t[a];
            if (!t || is_output(op, a)) continue;
            needs |= t->slab == SLAB_ACT ? d->needs[t->root->id] : store_grad(d->p->store, t) != NULL;
        }
        for (int a = 0; a < row->n_tensor; a++) {
            const Tensor *t = op->args.t[a];
            if (!t || !is_output(op, a) || t->slab != SLAB_ACT) continue;
            d->producer[t->id] = i;
            if (needs) d->needs[t->root->id] = NEEDS_GRADIENT;
        }
    }
}

Tensor *diff_out(Diff *d, Tensor *t) { return t ? d->grad[t->id] : NULL; }

Tensor *diff_weight(Diff *d, Tensor *w) { return w ? store_grad(d->p->store, w) : NULL; }

/* Only within the block now being differentiated: what crosses a block's border was kept. */
static int diff_repeats(const Diff *d, const Op *op)
{
    if (op->block < 0 || op->block >= d->n_block || op->block != d->p->block) return 0;
    RecomputeLevel level = d->level[op->block];
    return level == LEVEL_BLOCK || (level == LEVEL_CHEAP && op_table[op->kind].cheap);
}

Tensor *diff_saved(Diff *d, Tensor *t)
{
    if (!t || t->slab != SLAB_ACT) return t;
    int i = d->producer[t->id];
    if (i < 0 || !diff_repeats(d, &d->p->op[i])) return t;
    CHECK(t->root == t, "%s: a view inside a recomputed block", t->name);
    if (d->again[t->id]) return d->again[t->id];

    Op           twin = d->p->op[i];
    const OpRow *row  = &op_table[twin.kind];
    for (int a = 0; a < row->n_tensor; a++) {
        Tensor *u = twin.args.t[a];
        if (!u) continue;
        if (!is_output(&twin, a)) {
            twin.args.t[a] = diff_saved(d, u);
        } else if (u->slab == SLAB_ACT) {
            Tensor *v = prog_like(d->p, u->name, u);
            diff_fit(d);
            d->again[u->id] = v;
            twin.args.t[a]  = v;
        }
    }
    Prog       *p     = d->p;
    int         block = p->block, chunk = p->chunk;
    const char *label = p->label;
    p->block          = twin.block;
    p->chunk          = twin.chunk;
    p->label          = twin.label;
    p->recompute      = 1;
    prog_record(p, twin.kind, &twin.args, sizeof twin.args);
    p->recompute = 0;
    p->block     = block;
    p->chunk     = chunk;
    p->label     = label;
    return d->again[t->id];
}

/* ---- gradients of inputs ------------------------------------------------------------------------------- */

static const char *grad_name(Prog *p, const Tensor *t) { return arena_printf(&p->arena, "d %s", t->name); }

/* The gradient of a row view is the same view of the root's gradient. Views of one root must not overlap, and
 * together they must cover it: the head's chunks do. */
static Tensor *diff_view_grad(Diff *d, Tensor *t)
{
    Tensor *root = t->root, *g = d->grad[root->id];
    if (!g) {
        g = prog_like(d->p, grad_name(d->p, root), root);
        diff_fit(d);
        d->grad[root->id] = g;
        d->needs[root->id] |= NEEDS_BY_VIEWS;
    }
    CHECK(d->needs[root->id] & NEEDS_BY_VIEWS, "%s is consumed both whole and in views", root->name);
    CHECK(!d->grad[t->id], "%s: a view with two consumers", t->name);
    size_t  row_bytes = (size_t)tensor_ld(root) * dtype_bytes(root->dtype);
    Tensor *v         = prog_rows(d->p, g, (int64_t)(t->offset_bytes / row_bytes), tensor_rows(t));
    diff_fit(d);
    return v;
}

Tensor *diff_begin(Diff *d, Tensor *t)
{
    if (!t || t->slab != SLAB_ACT || !d->needs[t->root->id]) return NULL;
    if (t->root != t) return diff_view_grad(d, t);
    Tensor *g = prog_like(d->p, grad_name(d->p, t), t);
    diff_fit(d);
    return g;
}

void diff_end(Diff *d, Tensor *t, Tensor *g)
{
    if (!g) return;
    CHECK(t->root != t || !(d->needs[t->id] & NEEDS_BY_VIEWS), "%s is consumed both whole and in views",
          t->name);
    if (t->root != t || !d->grad[t->id]) {
        d->grad[t->id] = g;
        return;
    }
    Tensor *sum = prog_like(d->p, g->name, t);
    diff_fit(d);
    rec_add(d->p, (Add){ .y = sum, .a = d->grad[t->id], .b = g });
    d->grad[t->id] = sum;
}

void diff_pass(Diff *d, Tensor *t, Tensor *g)
{
    if (!t || t->slab != SLAB_ACT || !d->needs[t->root->id]) return;
    CHECK(t->root == t, "%s: a view cannot share a gradient", t->name);
    diff_end(d, t, g);
}

void prog_differentiate(Prog *p, const RecomputeLevel *level, int n_block, Tensor *state)
{
    Diff d = { .p = p, .state = state, .level = level, .n_block = n_block, .n_fwd = p->n_op };
    diff_fit(&d);
    diff_scan_forward(&d);
    p->backward = 1;
    for (int i = d.n_fwd - 1; i >= 0; i--) {
        Op op = p->op[i]; /* a copy: rules append to the array it lives in */
        if (!grad_rules[op.kind]) continue;
        p->block = op.block;
        p->chunk = op.chunk;
        p->label = op.label;
        grad_rules[op.kind](&d, &op);
    }
    p->backward = 0;
    p->block = p->chunk = -1;
}
