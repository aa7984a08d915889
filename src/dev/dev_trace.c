/* What backends share when they record: a bounded list of spans, and its sums. */
#include "dev/dev.h"

#include "base/err.h"

#include <stdlib.h>

void dev_trace_add(DevTrace *t, int64_t *cap, const DevSpan *span)
{
    if (t->n_span == *cap && *cap < DEV_SPANS) {
        int64_t  more = *cap ? 2 * *cap : 4096;
        DevSpan *p    = realloc(t->span, (size_t)more * sizeof *p);
        if (p) {
            t->span = p;
            *cap    = more;
        }
    }
    if (t->n_span == *cap) {
        t->n_lost++;
        return;
    }
    t->span[t->n_span++] = *span;
}

static int by_begin(const void *a, const void *b)
{
    double x = ((const DevSpan *)a)->begin_s, y = ((const DevSpan *)b)->begin_s;
    return x < y ? -1 : x > y;
}

void dev_trace_finish(DevTrace *t)
{
    t->n_kernel = t->n_span + t->n_lost;
    t->span_s = t->busy_s = 0;
    if (t->n_span == 0) return;
    qsort(t->span, (size_t)t->n_span, sizeof *t->span, by_begin);
    double begin = t->span[0].begin_s, from = begin, end = t->span[0].end_s;
    for (int64_t i = 1; i < t->n_span; i++) {
        if (t->span[i].begin_s > end) {
            t->busy_s += end - from;
            from = t->span[i].begin_s;
        }
        end = MAX(end, t->span[i].end_s);
    }
    t->busy_s += end - from;
    t->span_s = end - begin;
}
