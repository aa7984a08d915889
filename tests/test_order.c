/* The order of samples: bijections, tilings, and samples passed over. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/err.h"
#include "data/order.h"

#include <stdlib.h>
#include <string.h>

static void order_is_a_permutation(void **state)
{
    const int64_t size[] = { 1, 2, 3, 4, 5, 15, 16, 17, 63, 64, 65, 257, 1000, 4097 };
    static char   seen[4097];
    for (int k = 0; k < ARRAY_LEN(size); k++) {
        Order o;
        order_init(&o, (size[k] + 1) * 8, 8, 7);
        assert_int_equal(o.n_window, size[k]);
        for (int64_t epoch = 0; epoch < 5; epoch++) {
            memset(seen, 0, sizeof seen);
            for (int64_t i = 0; i < size[k]; i++) {
                int64_t j = order_permute(&o, epoch, i);
                assert_true(j >= 0 && j < size[k]);
                assert_false(seen[j]);
                seen[j] = 1;
            }
        }
    }
    (void)state;
}

/* Within an epoch windows tile: no target is seen twice, and all but fewer than 2T tokens are seen. */
static void order_tiles_every_length(void **state)
{
    enum { T = 8 };
    char seen[400];
    for (int64_t n = 0; n < 300; n++) {
        Order o;
        order_init(&o, n, T, 99);
        assert_int_equal(o.n_window > 0, n >= T + 1);
        int64_t phases = 0;
        for (int64_t epoch = 0; epoch < 40 && o.n_window > 0; epoch++) {
            memset(seen, 0, sizeof seen);
            int64_t total = 0, phase = order_start(&o, epoch * o.n_window) % T;
            phases |= INT64_C(1) << phase;
            for (int64_t i = 0; i < o.n_window; i++) {
                int64_t start = order_start(&o, epoch * o.n_window + i);
                assert_true(start >= 0 && start + T + 1 <= n);
                assert_int_equal(start % T, phase);
                for (int64_t t = 1; t <= T; t++) {
                    assert_false(seen[start + t]);
                    seen[start + t] = 1;
                    total++;
                }
            }
            assert_true(total >= T && total > n - 2 * T - 1);
        }
        if (n >= 2 * T)
            assert_true(__builtin_popcountll((unsigned long long)phases) >= 6); /* 40 draws out of 8 */
    }
    (void)state;
}

static void order_differs_by_epoch_and_seed(void **state)
{
    Order a, b;
    int   same_epoch = 0, same_seed = 0, neighbours = 0, fixed = 0;
    order_init(&a, 1001 * 8, 8, 1);
    order_init(&b, 1001 * 8, 8, 2);
    for (int64_t i = 0; i < 1000; i++) {
        same_epoch += order_permute(&a, 0, i) == order_permute(&a, 1, i);
        same_seed += order_permute(&a, 0, i) == order_permute(&b, 0, i);
        fixed += order_permute(&a, 0, i) == i;
        if (i > 0) neighbours += llabs(order_permute(&a, 0, i) - order_permute(&a, 0, i - 1)) == 1;
    }
    /* Random permutations agree in one place on average (Poisson); neighbours stay neighbours twice. */
    assert_true(same_epoch < 12 && same_seed < 12 && fixed < 12 && neighbours < 15);
    for (int64_t epoch = 1; epoch < 100; epoch++) { /* big numbers are no trouble */
        assert_true(order_start(&a, (INT64_C(1) << 61) + epoch) < 1001 * 8);
    }
    (void)state;
}

/* Each of the 6 orders of 3 windows comes about equally often over epochs. */
static void order_of_three_reaches_all(void **state)
{
    int   count[27] = { 0 }, kinds = 0;
    Order o;
    order_init(&o, 4 * 8, 8, 5);
    for (int64_t e = 0; e < 6000; e++) {
        count[order_permute(&o, e, 0) * 9 + order_permute(&o, e, 1) * 3 + order_permute(&o, e, 2)]++;
    }
    for (int i = 0; i < 27; i++) {
        kinds += count[i] > 0;
        assert_true(count[i] == 0 || (count[i] > 600 && count[i] < 1400));
    }
    assert_int_equal(kinds, 6);
    (void)state;
}

/* Where sample i goes says nothing about where i + lag goes: pairs fall evenly into 8 x 8 cells. A network
 * with too few rounds keeps lags that are powers of two together. */
static void order_has_no_pattern(void **state)
{
    enum { N = 4096 };
    Order o;
    order_init(&o, (N + 1) * 8, 8, 11);
    for (int lag = 1; lag < N; lag *= 2) {
        int    cell[8][8] = { 0 };
        double chi2       = 0;
        for (int i = 0; i < N; i++) {
            cell[order_permute(&o, 0, i) / (N / 8)][order_permute(&o, 0, (i + lag) % N) / (N / 8)]++;
        }
        for (int i = 0; i < 64; i++) {
            double d = cell[i / 8][i % 8] - N / 64.0;
            chi2 += d * d / (N / 64.0);
        }
        /* About 49 degrees of freedom (rows and columns sum to N/8), standard deviation 10: six of them. */
        if (chi2 > 49 + 60) fail_msg("lag %d: chi square %g", lag, chi2);
    }
    (void)state;
}

/* A resumed run must find the order it left, also after a new build: these numbers come from a second
 * implementation and never change. */
static void order_is_fixed(void **state)
{
    const int64_t want[][2] = {
        { 0, 481677 },    { 1, 808333 },       { 2, 1040013 },           { 4355, 1075853 },
        { 4356, 192415 }, { 1000000, 793769 }, { 1000000000000, 492147 }
    };
    Order o;
    order_init(&o, 1115394, 256, 1337);
    assert_int_equal(o.n_window, 4356);
    for (int i = 0; i < ARRAY_LEN(want); i++) assert_int_equal(order_start(&o, want[i][0]), want[i][1]);
    (void)state;
}

static void order_skips(void **state)
{
    const SampleRange skip[] = { { 3, 2 }, { 4, 3 }, { 4, 0 }, { 5, 1 }, { 9, 1 }, { 10, 2 }, { 100, 5 } };
    int64_t           used   = 0;
    for (int64_t raw = 0; raw < 200; raw++) {
        int out = 0;
        for (int i = 0; i < ARRAY_LEN(skip); i++)
            out |= raw >= skip[i].first && raw < skip[i].first + skip[i].count;
        if (out) continue;
        assert_int_equal(order_skip(skip, ARRAY_LEN(skip), used), raw);
        used++;
    }
    assert_int_equal(order_skip(NULL, 0, 17), 17);
    const SampleRange all[] = { { 0, 4 } };
    assert_int_equal(order_skip(all, 1, 0), 4);
    (void)state;
}

/* Rollback after rollback: each takes used samples out of what is left, wherever the ones before lie. */
static void order_skips_add_up(void **state)
{
    const int64_t add[][2] = { { 50, 10 }, { 45, 10 }, { 20, 5 }, { 0, 1 }, { 60, 3 }, { 10, 0 }, { 5, 50 } };
    SampleRange   skip[8];
    int64_t       left[300];
    int           n_skip = 0, n_left = 300;
    for (int i = 0; i < 300; i++) left[i] = i;
    for (int k = 0; k < ARRAY_LEN(add); k++) {
        n_skip = order_skip_add(skip, n_skip, add[k][0], add[k][1]);
        n_left -= (int)add[k][1];
        memmove(left + add[k][0], left + add[k][0] + add[k][1], sizeof *left * (size_t)(n_left - add[k][0]));
        for (int i = 0; i < n_left; i++) assert_int_equal(order_skip(skip, n_skip, i), left[i]);
    }
    assert_int_equal(n_skip, ARRAY_LEN(add) - 1); /* the empty one took no place */
    (void)state;
}

static void order_eval_covers(void **state)
{
    for (int64_t T = 1; T < 6; T++) {
        for (int64_t n = 0; n < 40; n++) {
            int64_t w = order_eval_windows(n, T), targets = n > 0 ? n - 1 : 0;
            assert_true(w * T >= targets && (w == 0 || (w - 1) * T < targets));
        }
    }
    (void)state;
}

static void order_eval_spreads(void **state)
{
    for (int64_t n = 1; n < 40; n++) {
        for (int64_t some = 1; some < 45; some++) {
            for (int64_t i = 0; i < MIN(some, n); i++) {
                int64_t w = order_eval_pick(i, some, n);
                assert_int_equal(w, some >= n ? i : i * n / some);
                assert_true(w < n && (i == 0 || w > order_eval_pick(i - 1, some, n)));
            }
        }
    }
    /* 999,999,999 * 2^40 / 10^9 is not computed as a product of 64 bits. */
    assert_int_equal(order_eval_pick(999999999, 1000000000, INT64_C(1) << 40), 1099511626676);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(order_is_a_permutation),
        cmocka_unit_test(order_tiles_every_length),
        cmocka_unit_test(order_differs_by_epoch_and_seed),
        cmocka_unit_test(order_of_three_reaches_all),
        cmocka_unit_test(order_has_no_pattern),
        cmocka_unit_test(order_is_fixed),
        cmocka_unit_test(order_skips),
        cmocka_unit_test(order_skips_add_up),
        cmocka_unit_test(order_eval_covers),
        cmocka_unit_test(order_eval_spreads),
    };
    return cmocka_run_group_tests_name("order", tests, NULL, NULL);
}
