/* From the final list to offsets: lifetimes, sharing at last use, placement, and a check that the placement
 * is right. */
#include "prog/prog.h"

#include "base/err.h"
#include "plan/place.h"
#include "prog/prog_impl.h"

#include <string.h>

typedef struct {
    int first, last; /* op indices; first > last: never touched */
} Life;

/* By root id. A tensor used on a lane other than compute lives to the end of the list: by then the compute
 * lane has waited for the other lane. */
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

/* The output may take the bytes of the input if both are whole roots, this op is the input's last use, and
 * this op writes the output first. */
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

/* Ranges of bytes with their lifetimes. */
typedef struct {
    PlanItem *item;
    int       n_item;
    int      *of; /* by root id: the item that has its bytes; -1: none, it is never touched */
} Items;

static Items list_items(const Prog *p, Arena *arena)
{
    int   n     = prog_id_count(p);
    Life *life  = scan_lives(p, arena);
    int  *share = choose_sharing(p, arena, life);
    Items it    = { .item = ARENA_ARRAY(arena, PlanItem, n), .of = ARENA_ARRAY(arena, int, n) };
    for (int i = 0; i < n; i++) it.of[i] = -1;
    for (int i = 0; i < p->n_tensor; i++) {
        const Tensor *t = p->tensor[i];
        if (t->root != t || t->slab != SLAB_ACT || life[t->id].last < 0 || share[t->id] != t->id) continue;
        it.of[t->id]         = it.n_item;
        it.item[it.n_item++] = (PlanItem){ tensor_root_bytes(t), life[t->id].first, life[t->id].last, 0 };
    }
    for (int i = 0; i < p->n_tensor; i++) {
        const Tensor *t = p->tensor[i];
        if (t->root != t || t->slab != SLAB_ACT || life[t->id].last < 0) continue;
        it.of[t->id]   = it.of[share[t->id]];
        PlanItem *item = &it.item[it.of[t->id]];
        item->first    = MIN(item->first, life[t->id].first);
        item->last     = MAX(item->last, life[t->id].last);
    }
    return it;
}

void prog_plan(Prog *p)
{
    Arena scratch;
    arena_init(&scratch);
    Items it           = list_items(p, &scratch);
    p->act_bytes       = plan_place(it.item, it.n_item);
    p->act_lower_bound = plan_lower_bound(it.item, it.n_item);
    for (int i = 0; i < p->n_tensor; i++) {
        Tensor *t = p->tensor[i];
        if (t->root == t && it.of[t->id] >= 0) t->slab_offset = it.item[it.of[t->id]].offset;
    }
    arena_deinit(&scratch);
}

void prog_live_bytes(const Prog *p, size_t *out)
{
    Arena scratch;
    arena_init(&scratch);
    Items it = list_items(p, &scratch);
    for (int i = 0; i < p->n_op; i++) out[i] = 0;
    for (int k = 0; k < it.n_item; k++)
        for (int i = it.item[k].first; i <= it.item[k].last; i++) out[i] += it.item[k].size_bytes;
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

/* ---- The proof ----------------------------------------------------------------------------------------- */

/* Walks the list once. `live` holds the tensors that live before and after the present op, sorted by offset.
 * They never overlap: an overlap is found where the second tensor is first written. So each birth is one
 * binary search. */
typedef struct {
    const Prog    *p;
    const Life    *life;
    const Tensor **live;
    int            n_live;
} Proof;

static size_t begin_of(const Tensor *t) { return t->slab_offset; }
static size_t end_of(const Tensor *t) { return t->slab_offset + tensor_root_bytes(t); }
static int    overlap(const Tensor *a, const Tensor *b)
{
    return begin_of(a) < end_of(b) && begin_of(b) < end_of(a);
}

/* The first one alive that ends behind `at`. */
static int live_find(const Proof *v, size_t at)
{
    int lo = 0, hi = v->n_live;
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (end_of(v->live[mid]) <= at) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo;
}

/* Two that overlap may meet at one op only, where one ends, the other begins, and the op's row says so. */
static int may_meet(const Proof *v, const Tensor *a, const Tensor *b)
{
    const Life *la = &v->life[a->id], *lb = &v->life[b->id];
    if (!overlap(a, b)) return 0;
    if (la->last == lb->first && pair_allowed(&v->p->op[la->last], b, a)) return 0;
    if (lb->last == la->first && pair_allowed(&v->p->op[lb->last], a, b)) return 0;
    return err_set("%s: %s [%d,%d] and %s [%d,%d] overlap", v->p->name, a->name, la->first, la->last, b->name,
                   lb->first, lb->last);
}

/* Those born at one op, against those alive and against each other. */
static int check_born(const Proof *v, const Tensor *const *born, int n)
{
    for (int k = 0; k < n; k++) {
        const Tensor *b = born[k];
        if (end_of(b) > v->p->act_bytes) return err_set("%s: %s lies outside the slab", v->p->name, b->name);
        for (int i = live_find(v, begin_of(b)); i < v->n_live && begin_of(v->live[i]) < end_of(b); i++)
            TRY(may_meet(v, v->live[i], b));
        for (int i = 0; i < k; i++) TRY(may_meet(v, born[i], b));
    }
    return 0;
}

static void live_add(Proof *v, const Tensor *t)
{
    int i = live_find(v, begin_of(t));
    memmove(v->live + i + 1, v->live + i, sizeof *v->live * (size_t)(v->n_live++ - i));
    v->live[i] = t;
}

static void live_drop(Proof *v, const Tensor *t)
{
    int i = live_find(v, begin_of(t));
    CHECK(i < v->n_live && v->live[i] == t, "%s is not alive", t->name);
    memmove(v->live + i, v->live + i + 1, sizeof *v->live * (size_t)(--v->n_live - i));
}

/* Roots by the op at `at` (first or last), one list an op: list[begin[i] .. begin[i+1]) belong to op i. */
typedef struct {
    const Tensor **list;
    int           *begin;
} ByOp;

static ByOp sort_by_op(const Prog *p, Arena *a, const Life *life, int by_last)
{
    ByOp s    = { ARENA_ARRAY(a, const Tensor *, p->n_tensor + 1), ARENA_ARRAY(a, int, p->n_op + 2) };
    int *fill = ARENA_ARRAY(a, int, p->n_op + 2);
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < p->n_tensor; i++) {
            const Tensor *t = p->tensor[i];
            if (t->root != t || t->slab != SLAB_ACT || life[t->id].last < 0 || tensor_root_bytes(t) == 0)
                continue;
            int op = by_last ? life[t->id].last : life[t->id].first;
            if (pass == 0) {
                s.begin[op + 1]++;
            } else {
                s.list[s.begin[op] + fill[op]++] = t;
            }
        }
        for (int i = 0; i < p->n_op && pass == 0; i++) s.begin[i + 1] += s.begin[i];
    }
    return s;
}

int prog_verify(const Prog *p)
{
    Arena scratch;
    arena_init(&scratch);
    Proof v    = { .p = p, .life = scan_lives(p, &scratch) };
    v.live     = ARENA_ARRAY(&scratch, const Tensor *, p->n_tensor + 1);
    ByOp first = sort_by_op(p, &scratch, v.life, 0), last = sort_by_op(p, &scratch, v.life, 1);
    int  rc = 0;
    for (int i = 0; i < p->n_op && rc == 0; i++) {
        const Tensor *const *born = first.list + first.begin[i];
        int                  n    = first.begin[i + 1] - first.begin[i];
        rc                        = check_born(&v, born, n);
        for (int k = last.begin[i]; k < last.begin[i + 1] && rc == 0; k++) {
            if (v.life[last.list[k]->id].first < i) live_drop(&v, last.list[k]);
        }
        for (int k = 0; k < n && rc == 0; k++) {
            if (v.life[born[k]->id].last > i) live_add(&v, born[k]);
        }
    }
    arena_deinit(&scratch);
    return rc;
}

int prog_verify_all(const Prog *const *list, int n)
{
    for (int i = 0; i < n; i++) {
        if (list[i]) TRY(prog_verify(list[i]));
    }
    return 0;
}
