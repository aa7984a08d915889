/* Picking tokens: the set that may be drawn, and how often each is drawn. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "dice.h"
#include "task/pick.h"

#include <math.h>
#include <string.h>

enum { V = 8, DRAWS = 20000 };

static const float row[V] = { 1.0f, 3.0f, -2.0f, 2.5f, 2.5f, 0.0f, -9.0f, 1.5f };

static void draw(const TaskSample *opt, const unsigned char *seen, double share[V])
{
    PickItem scratch[V];
    memset(share, 0, V * sizeof *share);
    for (int i = 0; i < DRAWS; i++) {
        float x[V];
        memcpy(x, row, sizeof x);
        int32_t id = pick_token(x, opt, &(PickRow){ V, 3, i, seen, scratch });
        assert_in_range(id, 0, V - 1);
        share[id] += 1.0 / DRAWS;
    }
}

/* Shares of the ids in keep, at a temperature. Five standard deviations of a share are allowed. */
static void assert_shares(const double share[V], const char *keep, double temperature)
{
    double p[V], sum = 0;
    for (int v = 0; v < V; v++) sum += p[v] = strchr(keep, '0' + v) ? exp(row[v] / temperature) : 0;
    for (int v = 0; v < V; v++) {
        double want = p[v] / sum, room = 5 * sqrt(want * (1 - want) / DRAWS) + 1e-9;
        if (fabs(share[v] - want) > room) fail_msg("id %d: %g, not %g", v, share[v], want);
    }
}

static void test_temperature(void **state)
{
    double share[V];
    draw(&(TaskSample){ .temperature = 1, .seed = 7 }, NULL, share);
    assert_shares(share, "01234567", 1);
    draw(&(TaskSample){ .temperature = 0.5, .seed = 8 }, NULL, share);
    assert_shares(share, "01234567", 0.5);
}

static void test_top_k(void **state)
{
    double share[V];
    draw(&(TaskSample){ .temperature = 1, .top_k = 1, .seed = 7 }, NULL, share);
    assert_shares(share, "1", 1);
    /* 3 and 4 are as likely as each other: both stay. */
    draw(&(TaskSample){ .temperature = 1, .top_k = 2, .seed = 7 }, NULL, share);
    assert_shares(share, "134", 1);
    draw(&(TaskSample){ .temperature = 1, .top_k = 100, .seed = 7 }, NULL, share);
    assert_shares(share, "01234567", 1);
}

static void test_top_p(void **state)
{
    double share[V];
    /* Shares at temperature 1: id 1 has 0.38, 3 and 4 have 0.23 each, 7 has 0.08. */
    draw(&(TaskSample){ .temperature = 1, .top_p = 0.3, .seed = 7 }, NULL, share);
    assert_shares(share, "1", 1);
    draw(&(TaskSample){ .temperature = 1, .top_p = 0.5, .seed = 7 }, NULL, share);
    assert_shares(share, "13", 1);
    draw(&(TaskSample){ .temperature = 1, .top_p = 0.85, .seed = 7 }, NULL, share);
    assert_shares(share, "1347", 1);
}

static void test_repetition(void **state)
{
    unsigned char seen[V] = { 0, 1, 1, 0, 0, 0, 0, 0 };
    float         x[V];
    TaskSample    opt = { .temperature = 0, .repetition = 2 };
    memcpy(x, row, sizeof x);
    assert_int_equal(pick_token(x, &opt, &(PickRow){ V, 0, 0, seen, NULL }), 3); /* 3.0 / 2 is below 2.5 */
    assert_true(x[1] == 1.5f && x[2] == -4.0f && x[0] == 1.0f);
}

static void test_best(void **state)
{
    enum { N = 5000 };
    float x[N];
    Dice  d = { .seed = 11 };
    for (int trial = 0; trial < 200; trial++) {
        int n = 1 + trial * 20, best = 0;
        for (int i = 0; i < n; i++) x[i] = dice_uniform(&d) * 8 - 6; /* most are negative */
        for (int i = 1; i < n; i++) best = x[i] > x[best] ? i : best;
        assert_int_equal(pick_best(x, n), best);
        float was = x[n / 2];
        x[n / 2]  = trial % 3 == 0 ? NAN : trial % 3 == 1 ? INFINITY : -INFINITY;
        assert_int_equal(pick_best(x, n), -1);
        x[n / 2] = was;
    }
    memset(x, 0, sizeof x);
    assert_int_equal(pick_best(x, N), 0); /* the first of equals */
}

/* Many ids: whatever way the k most likely are found, the same ones may be drawn. */
static void test_top_k_of_many(void **state)
{
    enum { N = 40000, K = 20 };
    static float    x[N];
    static PickItem scratch[N];
    Dice            d = { .seed = 3 };
    for (int i = 0; i < N; i++) x[i] = 4 * dice_uniform(&d) * dice_uniform(&d);
    x[777] = x[31234] = 9; /* equal ones count as one place more */
    for (int i = 0; i < 2000; i++) {
        TaskSample opt   = { .temperature = 30, .top_k = K, .seed = 5 };
        int32_t    id    = pick_token(x, &opt, &(PickRow){ N, 0, i, NULL, scratch });
        int        above = 0;
        for (int v = 0; v < N; v++) above += x[v] > x[id];
        assert_in_range(above, 0, K - 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_temperature), cmocka_unit_test(test_top_k),
        cmocka_unit_test(test_top_p),       cmocka_unit_test(test_repetition),
        cmocka_unit_test(test_best),        cmocka_unit_test(test_top_k_of_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
