/* From the final list to offsets: lifetimes, sharing at last use, placement, and the proof that it is right. */
#include "prog/prog.h"

#include "base/err.h"
#include "plan/place.h"
#include "prog/prog_impl.h"

typedef struct {
    int first, last; /* op indices; first > last: never touched */
} Life;

/* By root id. A tensor used on a lane other than compute lives to the end: the compute lane has surely waited by then. */
static Life *scan_lives(const Prog *p, Arena *arena)
{
    int   n    = prog_id_count(p);
    Life *life = ARENA_ARRAY(arena, Life, n);
    for (int i = 0; i < n; i++) life[i] = (Life){ p->n_op, -1 };
    for (int i = 0; i < p->n_op; i++) {
        const Op *op = &p->op[i];
        for (int a = 0; a < op_table[op->kind].n_tensor; a++) {
            const Tensor *t = op->args.t[a];
            if (!t || t->slab != SLAB_ACT) continue;
            Life *l  = &life[t->root->id];
            l->first = MIN(l->first, i);
            l->last  = MAX(l->last, op->lane == LANE_COMPUTE ? i : p->n_op - 1);
        }
    }
    return life;
}

static int is_whole_root(const Tensor *t)
{
    return t->slab == SLAB_ACT && t->offset_bytes == 0 && tensor_bytes(t) == tensor_bytes(t->root);
}

static int times_used(const Op *op, const Tensor *root)
{
    int n = 0;
    for (int a = 0; a < op_table[op->kind].n_tensor; a++) n += op->args.t[a] && op->args.t[a]->root == root;
    return n;
}

/* The input may give its bytes to the output: both whole roots, the input dies here, the output is born here. */
static int may_share(const Op *op, int i, const signed char *pair, const Life *life)
{
    const Tensor *out = op->args.t[pair[0]], *in = op->args.t[pair[1]];
    if (!out || !in || !is_whole_root(out) || !is_whole_root(in) || out->root == in->root) return 0;
    if (tensor_bytes(out) > tensor_bytes(in)) return 0;
    if (life[out->root->id].first != i || life[in->root->id].last != i) return 0;
    return times_used(op, in->root) == 1 && times_used(op, out->root) == 1;
}

/* share[id]: the root whose bytes this root uses (itself when none). */
static int *choose_sharing(const Prog *p, Arena *arena, const Life *life)
{
    int  n     = prog_id_count(p);
    int *share = ARENA_ARRAY(arena, int, n);
    for (int i = 0; i < n; i++) share[i] = i;
    for (int i = 0; i < p->n_op; i++) {
        const Op    *op  = &p->op[i];
        const OpRow *row = &op_table[op->kind];
        for (int k = 0; k < 4 && (row->alias[k][0] || row->alias[k][1]); k++) {
            if (!may_share(op, i, row->alias[k], life)) continue;
            share[op->args.t[row->alias[k][0]]->root->id] = share[op->args.t[row->alias[k][1]]->root->id];
            break;
        }
    }
    return share;
}

void prog_plan(Prog *p)
{
    Arena scratch;
    arena_init(&scratch);
    int       n      = prog_id_count(p);
    Life     *life   = scan_lives(p, &scratch);
    int      *share  = choose_sharing(p, &scratch, life);
    int      *slot   = ARENA_ARRAY(&scratch, int, n); /* item of a root that owns bytes */
    PlanItem *item   = ARENA_ARRAY(&scratch, PlanItem, n);
    int       n_item = 0;
    for (int i = 0; i < p->n_tensor; i++) {
        Tensor *t = p->tensor[i];
        if (t->root != t || t->slab != SLAB_ACT || life[t->id].last < 0) continue;
        if (share[t->id] == t->id) {
            slot[t->id]    = n_item;
            item[n_item++] = (PlanItem){ tensor_root_bytes(t), life[t->id].first, life[t->id].last, 0 };
        }
    }
    for (int i = 0; i < p->n_tensor; i++) {
        Tensor *t = p->tensor[i];
        if (t->root != t || t->slab != SLAB_ACT || life[t->id].last < 0) continue;
        PlanItem *it = &item[slot[share[t->id]]];
        it->first    = MIN(it->first, life[t->id].first);
        it->last     = MAX(it->last, life[t->id].last);
    }
    p->act_bytes       = plan_place(item, n_item);
    p->act_lower_bound = plan_lower_bound(item, n_item);
    for (int i = 0; i < p->n_tensor; i++) {
        Tensor *t = p->tensor[i];
        if (t->root != t || t->slab != SLAB_ACT || life[t->id].last < 0) continue;
        t->slab_offset = item[slot[share[t->id]]].offset;
    }
    arena_deinit(&scratch);
}

static int pair_allowed(const Op *op, const Tensor *out, const Tensor *in)
{
    const OpRow *row = &op_table[op->kind];
    for (int k = 0; k < 4 && (row->alias[k][0] || row->alias[k][1]); k++) {
        const Tensor *o = op->args.t[row->alias[k][0]], *x = op->args.t[row->alias[k][1]];
        if (o && x && o->root == out && x->root == in) return 1;
    }
    return 0;
}

int prog_verify(const Prog *p)
{
    Arena scratch;
    arena_init(&scratch);
    Life *life = scan_lives(p, &scratch);
    int   rc   = 0;
    for (int i = 0; i < p->n_tensor && rc == 0; i++) {
        const Tensor *a = p->tensor[i];
        if (a->root != a || a->slab != SLAB_ACT || life[a->id].last < 0) continue;
        if (a->slab_offset + tensor_root_bytes(a) > p->act_bytes)
            rc = err_set("%s lies outside the slab", a->name);
        for (int j = i + 1; j < p->n_tensor && rc == 0; j++) {
            const Tensor *b = p->tensor[j];
            if (b->root != b || b->slab != SLAB_ACT || life[b->id].last < 0) continue;
            if (a->slab_offset >= b->slab_offset + tensor_root_bytes(b)) continue;
            if (b->slab_offset >= a->slab_offset + tensor_root_bytes(a)) continue;
            const Life *la = &life[a->id], *lb = &life[b->id];
            if (la->last < lb->first || lb->last < la->first) continue;
            /* They meet. Allowed only at one op, where one ends, the other begins, and the row says so. */
            if (la->last == lb->first && pair_allowed(&p->op[la->last], b, a)) continue;
            if (lb->last == la->first && pair_allowed(&p->op[lb->last], a, b)) continue;
            rc = err_set("%s: %s [%d,%d] and %s [%d,%d] overlap", p->name, a->name, la->first, la->last,
                         b->name, lb->first, lb->last);
        }
    }
    arena_deinit(&scratch);
    return rc;
}
