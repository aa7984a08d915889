/* Initial values: normal_fill() against its definition, bit for bit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/err.h"
#include "base/rng.h"
#include "net/normal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 1 << 20 };
static const uint64_t SEED = 0x123456789ABCDull;

static void plain(float *out, int64_t n, uint32_t site, double std)
{
    uint32_t key[2] = { (uint32_t)SEED, (uint32_t)(SEED >> 32) };
    for (int64_t i = 0; i < n; i += 2) {
        uint32_t ctr[4] = { (uint32_t)(i / 4), 0, site, 0x1717 }, r[4];
        float    two[2];
        philox4x32(r, ctr, key);
        normal_plain(two, r[i % 4], r[i % 4 + 1], std);
        memcpy(out + i, two, sizeof *out * (size_t)MIN(2, n - i));
    }
}

static void same_bits(void **state)
{
    static const int64_t n[] = { 1, 2, 3, 5, 255, 256, 257, 65535, 65536 + 7, MOST - 1 };
    float               *got = malloc(sizeof *got * (MOST + 8)), *want = malloc(sizeof *want * (MOST + 8));
    assert_non_null(got);
    assert_non_null(want);
    for (int i = 0; i < ARRAY_LEN(n); i++) {
        for (int64_t k = n[i]; k < n[i] + 8; k++) got[k] = want[k] = -77; /* not written */
        normal_fill(got, n[i], SEED, 3 + (uint32_t)i, 0.02);
        plain(want, n[i], 3 + (uint32_t)i, 0.02);
        assert_memory_equal(got, want, sizeof *got * (size_t)(n[i] + 8));
    }
    free(got);
    free(want);
    (void)state;
}

/* Mean and variance within five standard errors. */
static void is_normal(void **state)
{
    float *x   = malloc(sizeof *x * MOST);
    double sum = 0, squares = 0;
    assert_non_null(x);
    normal_fill(x, MOST, SEED, 1, 2.0);
    for (int i = 0; i < MOST; i++) {
        sum += x[i];
        squares += (double)x[i] * x[i];
    }
    assert_true(fabs(sum / MOST) < 5 * 2 / sqrt(MOST));
    assert_true(fabs(squares / MOST / 4 - 1) < 5 * sqrt(2.0 / MOST));
    free(x);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(same_bits), cmocka_unit_test(is_normal) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
