/* Largest first, each at the lowest offset where it fits among the items already placed that live at the same time. On the
 * lists of this program the result is within a few percent of the lower bound (tests/test_plan.c prints it). */
#include "plan/place.h"

#include "base/err.h"

#include <stdlib.h>

static int by_size(const void *pa, const void *pb)
{
    const PlanItem *a = *(PlanItem *const *)pa, *b = *(PlanItem *const *)pb;
    if (a->size_bytes != b->size_bytes) return a->size_bytes < b->size_bytes ? 1 : -1;
    if (a->first != b->first) return a->first < b->first ? -1 : 1;
    return a < b ? -1 : a > b; /* the caller's order: qsort itself is not stable */
}

static int lives_with(const PlanItem *a, const PlanItem *b)
{
    return a->first <= b->last && b->first <= a->last;
}

size_t plan_place(PlanItem *item, int n)
{
    if (n == 0) return 0;
    PlanItem **order  = malloc(sizeof *order * (size_t)n);
    PlanItem **placed = malloc(sizeof *placed * (size_t)n); /* sorted by offset */
    CHECK(order && placed, "out of host memory for a plan of %d items", n);
    for (int i = 0; i < n; i++) order[i] = &item[i];
    qsort(order, (size_t)n, sizeof *order, by_size);

    size_t total    = 0;
    int    n_placed = 0;
    for (int i = 0; i < n; i++) {
        PlanItem *it  = order[i];
        size_t    off = 0; /* end of what is taken so far, walking up */
        for (int j = 0; j < n_placed; j++) {
            const PlanItem *p = placed[j];
            if (!lives_with(it, p)) continue;
            if (p->offset >= off + it->size_bytes) break; /* the gap below p is wide enough */
            off = MAX(off, p->offset + p->size_bytes);
        }
        it->offset = off;
        total      = MAX(total, off + it->size_bytes);
        int j      = n_placed++;
        for (; j > 0 && placed[j - 1]->offset > off; j--) placed[j] = placed[j - 1];
        placed[j] = it;
    }
    free(order);
    free(placed);
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
