/* The order of samples: a keyed permutation, evaluated one point at a time.
 *
 * 1. The permutation is a balanced Feistel network on 2 * half_bits bits with Philox as its round function,
 *    walked until it lands inside 0..n_window-1. A Feistel network is a bijection for any round function.
 *    Cycle walking restricts a bijection to a subset. So no window is lost or doubled.
 * 2. The domain is less than 4 times n_window, so a walk takes less than 4 turns on average. */
#include "data/order.h"

#include "base/err.h"
#include "base/rng.h"

/* Philox sites; recorded ops count theirs from 0. */
enum { SITE_PERMUTE = 0x7f000010, SITE_PHASE = 0x7f000011 };

/* Four rounds suffice against an adversary with random functions; tiny domains need some more to reach
 * most of their permutations. */
enum { N_ROUND = 8 };

void order_init(Order *o, int64_t n_token, int64_t T, uint64_t seed)
{
    CHECK(n_token >= 0 && T > 0, "%lld tokens in windows of %lld", (long long)n_token, (long long)T);
    *o = (Order){ .seed = seed, .T = T };
    if (n_token < T + 1) return;
    /* The last target of the last window must exist at the largest phase T-1: T-1 + n_window*T + 1 <=
     * n_token. */
    o->n_window = MAX(n_token / T - 1, 1);
    o->n_phase  = MIN(T, n_token - o->n_window * T);
    while (o->half_bits < 31 && (INT64_C(1) << (2 * o->half_bits)) < o->n_window) o->half_bits++;
}

int64_t order_permute(const Order *o, int64_t epoch, int64_t i)
{
    CHECK(i >= 0 && i < o->n_window, "window %lld of %lld", (long long)i, (long long)o->n_window);
    uint32_t mask = (uint32_t)((UINT64_C(1) << o->half_bits) - 1);
    uint64_t x    = (uint64_t)i;
    do {
        uint32_t left = (uint32_t)(x >> o->half_bits), right = (uint32_t)x & mask;
        for (uint32_t round = 0; round < N_ROUND; round++) {
            uint32_t word[4];
            rng_philox(word, o->seed, SITE_PERMUTE, (uint64_t)epoch, (uint64_t)right << 32 | round);
            uint32_t next = left ^ (word[0] & mask);
            left          = right;
            right         = next;
        }
        x = (uint64_t)left << o->half_bits | right;
    } while (x >= (uint64_t)o->n_window);
    return (int64_t)x;
}

static int64_t phase_of(const Order *o, int64_t epoch)
{
    uint32_t word[4];
    rng_philox(word, o->seed, SITE_PHASE, (uint64_t)epoch, 0);
    return (int64_t)(((uint64_t)word[0] << 32 | word[1]) % (uint64_t)o->n_phase);
}

int64_t order_start(const Order *o, int64_t g)
{
    CHECK(g >= 0 && o->n_window > 0, "sample %lld of %lld windows", (long long)g, (long long)o->n_window);
    int64_t epoch = g / o->n_window;
    return phase_of(o, epoch) + order_permute(o, epoch, g % o->n_window) * o->T;
}

int64_t order_eval_windows(int64_t n_token, int64_t T) { return n_token < 2 ? 0 : (n_token - 2) / T + 1; }

int64_t order_eval_pick(int64_t i, int64_t n_some, int64_t n_window)
{
    CHECK(i >= 0 && n_some > 0, "window %lld of %lld", (long long)i, (long long)n_some);
    if (n_some >= n_window) return i;
    /* In two parts: i * n_window may not fit. */
    return i * (n_window / n_some) + i * (n_window % n_some) / n_some;
}

int64_t order_skip(const SampleRange *skip, int n_skip, int64_t used)
{
    int64_t raw = used, done = 0; /* raw samples below done are dealt with */
    for (int i = 0; i < n_skip; i++) {
        int64_t begin = MAX(skip[i].first, done), end = skip[i].first + skip[i].count;
        if (begin >= end) continue;
        if (raw < begin) break;
        raw += end - begin;
        done = end;
    }
    return raw;
}

int order_skip_add(SampleRange *skip, int n_skip, int64_t used, int64_t count)
{
    CHECK(used >= 0 && count >= 0, "samples [%lld, +%lld)", (long long)used, (long long)count);
    if (count == 0) return n_skip;
    /* From the first to the last of them; what lies between was skipped already. */
    int64_t first = order_skip(skip, n_skip, used), last = order_skip(skip, n_skip, used + count - 1);
    int     i = n_skip;
    for (; i > 0 && skip[i - 1].first > first; i--) skip[i] = skip[i - 1];
    skip[i] = (SampleRange){ first, last + 1 - first };
    return n_skip + 1;
}
