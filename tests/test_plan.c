/* plan_place on random lifetimes: never an overlap, never below the lower bound, and how far above it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/err.h"
#include "dice.h"
#include "plan/machine.h"
#include "plan/place.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { N_SET = 10000, MAX_ITEM = 96, ALIGN = 256 };
/* 0.05 s when written, 0.8 s with one comparison per pair of items. Sanitizers make both slower. */
#ifdef __SANITIZE_ADDRESS__
#define SECONDS_A_DEEP_LIST 3.0
#else
#define SECONDS_A_DEEP_LIST 0.4
#endif

/* Three kinds of sets: anything; short lives; pairs of a training step (written in the forward half, read in
 * the backward half, in reverse order) with short-lived scratch in between. Sizes span four orders of
 * magnitude or are few. */
static int random_set(Dice *d, PlanItem *item)
{
    int n = 1 + dice_roll(d, MAX_ITEM), kind = dice_roll(d, 3), end = 2 * n, few = dice_roll(d, 2);
    for (int i = 0; i < n; i++) {
        int first = dice_roll(d, end), last = first + dice_roll(d, end - first);
        if (kind == 1) last = first + dice_roll(d, MIN(6, end - first));
        if (kind == 2 && dice_roll(d, 2)) {
            first = dice_roll(d, n);
            last  = end - 1 - first;
        }
        size_t units = few ? (size_t)(1 << dice_roll(d, 4)) : (size_t)dice_roll(d, 1 << dice_roll(d, 14));
        item[i]      = (PlanItem){ units * ALIGN, first, last, 12345 };
    }
    return n;
}

static int meet_in_time(const PlanItem *a, const PlanItem *b)
{
    return a->first <= b->last && b->first <= a->last;
}

static int meet_in_space(const PlanItem *a, const PlanItem *b)
{
    return a->offset < b->offset + b->size_bytes && b->offset < a->offset + a->size_bytes;
}

static size_t slow_lower_bound(const PlanItem *item, int n)
{
    size_t most = 0;
    for (int t = 0; t < 2 * MAX_ITEM; t++) {
        size_t live = 0;
        for (int i = 0; i < n; i++) live += item[i].first <= t && t <= item[i].last ? item[i].size_bytes : 0;
        most = MAX(most, live);
    }
    return most;
}

static void test_random_sets(void **state)
{
    Dice   d   = { .seed = 7 };
    double sum = 0, worst = 0;
    for (int s = 0; s < N_SET; s++) {
        PlanItem item[MAX_ITEM], again[MAX_ITEM];
        int      n = random_set(&d, item);
        memcpy(again, item, sizeof item);
        size_t total = plan_place(item, n), low = plan_lower_bound(item, n), top = 0;
        for (int i = 0; i < n; i++) {
            assert_true(item[i].offset % ALIGN == 0);
            top = MAX(top, item[i].offset + item[i].size_bytes);
            for (int j = 0; j < i; j++) {
                assert_false(meet_in_time(&item[i], &item[j]) && meet_in_space(&item[i], &item[j]));
            }
        }
        assert_true(total == top);
        assert_true(low == slow_lower_bound(item, n));
        assert_true(total >= low);
        assert_true(plan_place(again, n) == total && memcmp(again, item, sizeof *item * (size_t)n) == 0);
        double ratio = low ? (double)total / (double)low : 1.0;
        sum += ratio;
        worst = MAX(worst, ratio);
    }
    printf("plan_place: %d random sets, %.4f of the lower bound on average, %.3f at worst\n", N_SET,
           sum / N_SET, worst);
    assert_true(sum / N_SET < 1.02); /* 1.0063 when written: a worse placement would show here */
}

/* Items of one size are intervals to be coloured: first fit by start needs exactly as many colours as
 * overlap. */
static void test_equal_sizes_are_optimal(void **state)
{
    Dice d = { .seed = 8 };
    for (int s = 0; s < 1000; s++) {
        PlanItem item[MAX_ITEM];
        int      n = random_set(&d, item);
        for (int i = 0; i < n; i++) item[i].size_bytes = 3 * ALIGN;
        assert_true(plan_place(item, n) == plan_lower_bound(item, n));
    }
}

/* The definition of the placement, one comparison with every item placed before. */
static void slow_place(PlanItem *item, int n)
{
    PlanItem *order[MAX_ITEM], *placed[MAX_ITEM];
    for (int i = 0; i < n; i++) {
        int k = i;
        for (; k > 0; k--) {
            const PlanItem *a = order[k - 1], *b = &item[i];
            if (a->size_bytes > b->size_bytes || (a->size_bytes == b->size_bytes && a->first <= b->first))
                break;
            order[k] = order[k - 1];
        }
        order[k] = &item[i];
    }
    for (int i = 0; i < n; i++) {
        size_t off = 0;
        for (int moved = 1; moved;) {
            moved            = 0;
            order[i]->offset = off;
            for (int j = 0; j < i && !moved; j++) {
                if (!meet_in_time(order[i], placed[j]) || !meet_in_space(order[i], placed[j])) continue;
                off   = placed[j]->offset + placed[j]->size_bytes;
                moved = 1;
            }
        }
        placed[i] = order[i];
    }
}

static void test_same_as_the_definition(void **state)
{
    Dice d = { .seed = 9 };
    for (int s = 0; s < 3000; s++) {
        PlanItem item[MAX_ITEM], slow[MAX_ITEM];
        int      n = random_set(&d, item);
        for (int i = 0; i < n; i++) item[i].size_bytes += ALIGN;
        memcpy(slow, item, sizeof item);
        plan_place(item, n);
        slow_place(slow, n);
        for (int i = 0; i < n; i++) assert_true(item[i].offset == slow[i].offset);
    }
}

/* A list of 1,024 layers: 12 tensors a layer kept for the backward half, as many short-lived ones in each
 * half. */
static void test_a_thousand_layers(void **state)
{
    enum { LAYERS = 1024, EACH = 12, OPS = 2 * LAYERS * EACH, ITEMS = 3 * LAYERS * EACH };
    PlanItem *item = malloc(sizeof *item * ITEMS);
    int       n    = 0;
    assert_non_null(item);
    for (int i = 0; i < LAYERS * EACH; i++) {
        size_t size = (size_t)(1 + i % 5) * 1024 * ALIGN;
        item[n++]   = (PlanItem){ size, i, OPS - 1 - i, 0 };
        item[n++]   = (PlanItem){ size / 2, i, i + 1, 0 };
        item[n++]   = (PlanItem){ size / 4, OPS - 2 - i, OPS - 1 - i, 0 };
    }
    double begin = (double)clock();
    size_t total = plan_place(item, n);
    double s     = ((double)clock() - begin) / CLOCKS_PER_SEC;
    printf("plan_place: %d items of a deep list in %.3f s\n", n, s);
    assert_true(total >= plan_lower_bound(item, n));
    assert_true(s < SECONDS_A_DEEP_LIST);
    free(item);
}

static void test_edges(void **state)
{
    assert_true(plan_place(NULL, 0) == 0 && plan_lower_bound(NULL, 0) == 0);
    PlanItem none = { 0, 3, 3, 99 };
    assert_true(plan_place(&none, 1) == 0 && none.offset == 0);
    /* They share instant 5, the end of one and the beginning of the other: no byte in common. */
    PlanItem two[2] = { { ALIGN, 0, 5, 0 }, { ALIGN, 5, 9, 0 } };
    assert_true(plan_place(two, 2) == 2 * ALIGN);
    two[1].first = 6;
    assert_true(plan_place(two, 2) == ALIGN);
    /* Sizes beyond 32 bits. */
    PlanItem big[2] = { { (size_t)90 << 30, 0, 1, 0 }, { (size_t)70 << 30, 1, 2, 0 } };
    assert_true(plan_place(big, 2) == (size_t)160 << 30 && plan_lower_bound(big, 2) == (size_t)160 << 30);
}

/* A card that nobody measured: every op takes a finite time, and fp8 is faster than bf16 if the card has
 * it. */
static void test_unmeasured_cards(void **state)
{
    static const struct {
        int capability, has_fp8;
    } row[] = { { 80, 0 }, { 86, 0 }, { 89, 1 }, { 90, 1 }, { 100, 1 } };
    for (int i = 0; i < ARRAY_LEN(row); i++) {
        Machine m = machine_unmeasured("some card", row[i].capability, (size_t)1 << 34);
        assert_int_equal(m.rate[UNIT_FP8] > m.rate[UNIT_GEMM], row[i].has_fp8);
        for (int u = UNIT_MEMORY; u < UNIT_FP8 + row[i].has_fp8; u++) {
            MachineWork w = { .unit = (MachineUnit)u, .flops = 1e12, .bytes = 1e9 };
            assert_true(machine_op_time(&m, &w) < 1);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_sets),
        cmocka_unit_test(test_equal_sizes_are_optimal),
        cmocka_unit_test(test_same_as_the_definition),
        cmocka_unit_test(test_a_thousand_layers),
        cmocka_unit_test(test_edges),
        cmocka_unit_test(test_unmeasured_cards),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
