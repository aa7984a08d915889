/* Places the largest item first. Each item goes to the lowest offset that is free during its lifetime. On the
 * lists of this program the result is within a few percent of the lower bound (tests/test_plan.c prints it).
 *
 * 1. Taken bytes are kept in a tree over time. A node stands for a span of instants and keeps two sets of
 *    ranges. `whole` has the bytes of items that live through all of the span and are not kept at a higher
 *    node. `any` has the bytes of all items kept at this node or below.
 * 2. The bytes taken during [first, last] are then the union of few sets: `any` of the spans that make up the
 *    lifetime, and `whole` of the nodes above them.
 * 3. Ranges that touch are joined. Stacked activations become one range, so that a plan of 30,000 items takes
 *    a tenth of a second instead of a second. */
#include "plan/place.h"

#include "base/err.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    size_t begin, end;
} Range;

/* Ranges in increasing order that neither overlap nor touch. */
typedef struct {
    Range *range;
    int    n, cap;
} RangeSet;

typedef struct {
    RangeSet whole, any;
} Node;

/* Node 1 is the root and stands for the instants [0, n_leaf), a power of two; the halves of node k are 2k and
 * 2k+1. */
typedef struct {
    Node *node;
    int   n_leaf;
} TimeTree;

typedef struct {
    int first, last;
} Span;

static int by_size(const void *pa, const void *pb)
{
    const PlanItem *a = *(PlanItem *const *)pa, *b = *(PlanItem *const *)pb;
    if (a->size_bytes != b->size_bytes) return a->size_bytes < b->size_bytes ? 1 : -1;
    if (a->first != b->first) return a->first < b->first ? -1 : 1;
    return a < b ? -1 : a > b; /* the caller's order: qsort itself is not stable */
}

/* ---- sets of ranges ------------------------------------------------------------------------------------ */

/* The first range that ends at or behind `at`. */
static int set_find(const RangeSet *s, size_t at)
{
    int lo = 0, hi = s->n;
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (s->range[mid].end < at) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo;
}

static void set_add(RangeSet *s, Range r)
{
    int i = set_find(s, r.begin), j = i;
    for (; j < s->n && s->range[j].begin <= r.end; j++) {
        r.begin = MIN(r.begin, s->range[j].begin);
        r.end   = MAX(r.end, s->range[j].end);
    }
    if (i == j && s->n == s->cap) {
        s->cap   = s->cap ? 2 * s->cap : 4;
        s->range = realloc(s->range, sizeof *s->range * (size_t)s->cap);
        CHECK(s->range, "out of host memory for a plan");
    }
    /* Ranges i..j-1 become one. */
    memmove(s->range + i + 1, s->range + j, sizeof *s->range * (size_t)(s->n - j));
    s->n += 1 - (j - i);
    s->range[i] = r;
}

/* ---- the tree over time -------------------------------------------------------------------------------- */

static void tree_init(TimeTree *t, int n_instant)
{
    t->n_leaf = 1;
    while (t->n_leaf < n_instant) t->n_leaf *= 2;
    t->node = calloc(2 * (size_t)t->n_leaf, sizeof *t->node);
    CHECK(t->node, "out of host memory for a plan of %d instants", n_instant);
}

static void tree_deinit(TimeTree *t)
{
    for (int k = 0; k < 2 * t->n_leaf; k++) {
        free(t->node[k].whole.range);
        free(t->node[k].any.range);
    }
    free(t->node);
}

/* at: the span of node k. */
static void tree_add(TimeTree *t, int k, Span at, Span life, Range r)
{
    set_add(&t->node[k].any, r);
    if (life.first <= at.first && at.last <= life.last) {
        set_add(&t->node[k].whole, r);
        return;
    }
    int mid = at.first + (at.last - at.first) / 2;
    if (life.first <= mid) tree_add(t, 2 * k, (Span){ at.first, mid }, life, r);
    if (life.last > mid) tree_add(t, 2 * k + 1, (Span){ mid + 1, at.last }, life, r);
}

/* Each level of the tree gives at most two spans and two nodes above them. */
enum { MOST_SETS = 4 * 32 };

typedef struct {
    const Range *next, *end; /* ranges of one set that were not passed yet */
} Cursor;

static int tree_collect(const TimeTree *t, int k, Span at, Span life, Cursor *out)
{
    int             is_inside = life.first <= at.first && at.last <= life.last, n = 0;
    const RangeSet *s = is_inside ? &t->node[k].any : &t->node[k].whole;
    if (s->n > 0) out[n++] = (Cursor){ s->range, s->range + s->n };
    if (is_inside || t->node[k].any.n == 0) return n;
    int mid = at.first + (at.last - at.first) / 2;
    if (life.first <= mid) n += tree_collect(t, 2 * k, (Span){ at.first, mid }, life, out + n);
    if (life.last > mid) n += tree_collect(t, 2 * k + 1, (Span){ mid + 1, at.last }, life, out + n);
    return n;
}

/* The lowest offset at which size_bytes are free in all sets: walks up until no set has a range in the
 * way. */
static size_t lowest_gap(Cursor *set, int n, size_t size_bytes)
{
    size_t off = 0;
    for (int i = 0, quiet = 0; quiet < n; i = (i + 1) % n) {
        size_t before = off;
        for (; set[i].next < set[i].end && set[i].next->begin < off + size_bytes; set[i].next++)
            off = MAX(off, set[i].next->end);
        quiet = off == before ? quiet + 1 : 1;
    }
    return off;
}

size_t plan_place(PlanItem *item, int n)
{
    if (n == 0) return 0;
    int        end   = 0;
    PlanItem **order = malloc(sizeof *order * (size_t)n);
    TimeTree   tree;
    CHECK(order, "out of host memory for a plan of %d items", n);
    for (int i = 0; i < n; i++) {
        order[i] = &item[i];
        end      = MAX(end, item[i].last);
    }
    qsort(order, (size_t)n, sizeof *order, by_size);
    tree_init(&tree, end + 1);

    size_t total = 0;
    Span   all   = { 0, tree.n_leaf - 1 };
    for (int i = 0; i < n; i++) {
        PlanItem *it   = order[i];
        Span      life = { it->first, it->last };
        Cursor    set[MOST_SETS];
        it->offset = lowest_gap(set, tree_collect(&tree, 1, all, life, set), it->size_bytes);
        total      = MAX(total, it->offset + it->size_bytes);
        if (it->size_bytes > 0)
            tree_add(&tree, 1, all, life, (Range){ it->offset, it->offset + it->size_bytes });
    }
    tree_deinit(&tree);
    free(order);
    return total;
}

size_t plan_lower_bound(const PlanItem *item, int n)
{
    int end = 0;
    for (int i = 0; i < n; i++) end = MAX(end, item[i].last);
    /* Wraps around below zero and back: unsigned sums are exact. */
    size_t *delta = calloc((size_t)end + 2, sizeof *delta);
    CHECK(delta, "out of host memory");
    for (int i = 0; i < n; i++) {
        delta[item[i].first] += item[i].size_bytes;
        delta[item[i].last + 1] -= item[i].size_bytes;
    }
    size_t live = 0, most = 0;
    for (int t = 0; t <= end; t++) {
        live += delta[t];
        most = MAX(most, live);
    }
    free(delta);
    return most;
}
