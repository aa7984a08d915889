#include "task/pick.h"

#include "base/err.h"
#include "base/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Whole numbers in the order of the floats: vectors compare these without a rule for NaN. */
static inline int32_t key_of(float x)
{
    int32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits ^ ((bits >> 31) & 0x7fffffff);
}

int32_t pick_best(const float *logits, int64_t V)
{
    enum { BLOCK = 1024, INF = 0x7f800000 };
    int32_t most = INT32_MIN, least = INT32_MAX;
    int64_t block = 0;
    for (int64_t v0 = 0; v0 < V; v0 += BLOCK) {
        int32_t hi = INT32_MIN, lo = INT32_MAX;
        int     n = (int)MIN((int64_t)BLOCK, V - v0);
#pragma omp simd reduction(max : hi) reduction(min : lo)
        for (int i = 0; i < n; i++) {
            int32_t k = key_of(logits[v0 + i]);
            hi        = k > hi ? k : hi;
            lo        = k < lo ? k : lo;
        }
        if (hi > most) block = v0;
        most  = MAX(most, hi);
        least = MIN(least, lo);
    }
    if (most >= INF || least <= ~INF) return -1;
    while (key_of(logits[block]) != most) block++;
    return (int32_t)block;
}

static double uniform(uint64_t seed, int64_t row, int64_t i)
{
    uint32_t ctr[4] = { (uint32_t)i, (uint32_t)(i >> 32), (uint32_t)row, 0x5A5A };
    uint32_t key[2] = { (uint32_t)seed, (uint32_t)(seed >> 32) }, r[4];
    philox4x32(r, ctr, key);
    return (r[0] + 0.5) * 0x1p-32;
}

/* The more likely first, then the smaller id. */
static int before(const PickItem *a, const PickItem *b)
{
    return a->p > b->p || (a->p == b->p && a->id < b->id);
}

static int compare(const void *a, const void *b)
{
    return before((const PickItem *)a, (const PickItem *)b) ? -1 : 1;
}

/* Moves the k first items in order to the front (quickselect), in no order among themselves. */
static void select_first(PickItem *x, int64_t n, int64_t k)
{
    int64_t lo = 0, hi = n - 1;
    while (lo < hi) {
        PickItem pivot = x[lo + (hi - lo) / 2];
        int64_t  i = lo, j = hi;
        while (i <= j) {
            while (before(&x[i], &pivot)) i++;
            while (before(&pivot, &x[j])) j--;
            if (i <= j) {
                PickItem t = x[i];
                x[i++]     = x[j];
                x[j--]     = t;
            }
        }
        if (k <= j + 1) {
            hi = j;
        } else if (k > i) {
            lo = i;
        } else {
            return;
        }
    }
}

static int64_t keep_top_k(PickItem *x, int64_t n, int64_t k)
{
    if (k <= 0 || k >= n) return n;
    select_first(x, n, k);
    float   least = x[0].p;
    int64_t kept  = k;
    for (int64_t i = 1; i < k; i++) least = MIN(least, x[i].p);
    for (int64_t i = k; i < n; i++) {
        if (x[i].p >= least) x[kept++] = x[i];
    }
    return kept;
}

/* The items that top_k leaves, with logits for p. The k-th largest of the blocks' maxima is a bound from
 * below: few items pass it, and only those are sorted out one by one (50257 ids, 50 kept: a tenth of the
 * time). */
static int64_t collect(PickItem *x, const float *logits, int64_t V, int64_t k)
{
    enum { BLOCK = 64 };
    int64_t n = 0, n_block = (V + BLOCK - 1) / BLOCK;
    float   bound = -INFINITY;
    if (k > 0 && 2 * k < n_block) {
        for (int64_t b = 0; b < n_block; b++) {
            int64_t end  = MIN((b + 1) * BLOCK, V);
            float   most = logits[b * BLOCK];
            for (int64_t v = b * BLOCK + 1; v < end; v++) most = logits[v] > most ? logits[v] : most;
            x[b] = (PickItem){ (int32_t)b, most };
        }
        select_first(x, n_block, k);
        bound = x[0].p;
        for (int64_t i = 1; i < k; i++) bound = MIN(bound, x[i].p);
    }
    for (int64_t v = 0; v < V; v++) {
        if (logits[v] >= bound) x[n++] = (PickItem){ (int32_t)v, logits[v] };
    }
    return keep_top_k(x, n, k);
}

/* Sorts only as many as it takes to reach the share. */
static int64_t keep_top_p(PickItem *x, int64_t n, double top_p)
{
    double sum = 0;
    if (top_p <= 0 || top_p >= 1) return n;
    for (int64_t i = 0; i < n; i++) sum += x[i].p;
    for (int64_t some = MIN(n, (int64_t)256);; some = MIN(n, 4 * some)) {
        double so_far = 0;
        if (some < n) select_first(x, n, some);
        qsort(x, (size_t)some, sizeof *x, compare);
        for (int64_t i = 0; i < some; i++) {
            so_far += x[i].p;
            if (so_far >= top_p * sum) return i + 1;
        }
        if (some == n) return n;
    }
}

static int compare_id(const void *a, const void *b)
{
    return ((const PickItem *)a)->id < ((const PickItem *)b)->id ? -1 : 1;
}

int pick_top(PickItem *x, const float *logits, int64_t V, int64_t k)
{
    if (pick_best(logits, V) < 0) return -1;
    collect(x, logits, V, k); /* those as likely as the last of them stand behind the k first */
    qsort(x, (size_t)k, sizeof *x, compare_id);
    return 0;
}

int32_t pick_token(float *logits, const TaskSample *opt, const PickRow *row)
{
    if (opt->repetition > 0 && opt->repetition != 1) {
        for (int64_t v = 0; v < row->V; v++) {
            if (row->seen[v])
                logits[v] =
                    (float)(logits[v] > 0 ? logits[v] / opt->repetition : logits[v] * opt->repetition);
        }
    }
    int32_t best = pick_best(logits, row->V);
    if (best < 0 || opt->temperature <= 0) return best;
    PickItem *x   = row->scratch;
    double    sum = 0;
    float     max = logits[best], sharp = (float)(1 / opt->temperature);
    int64_t   n = collect(x, logits, row->V, opt->top_k);
    for (int64_t i = 0; i < n; i++) x[i].p = expf((x[i].p - max) * sharp);
    n = keep_top_p(x, n, opt->top_p);
    if (n < row->V) qsort(x, (size_t)n, sizeof *x, compare_id); /* the draw goes by ids */
    for (int64_t i = 0; i < n; i++) sum += x[i].p;
    double u = uniform(opt->seed, row->row, row->i) * sum;
    for (int64_t i = 0; i < n; i++) {
        u -= x[i].p;
        if (u < 0) return x[i].id;
    }
    return best;
}
