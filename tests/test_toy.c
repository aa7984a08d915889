/* The toy tenant (tests/toy/toy.h) in one process, against its reference: recomputation levels,
 * micro-batches, ranks, threads. */
#include "toy/toy_run.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static ToyCase   base; /* micro-batch 4, one thread, nothing recomputed */
static ToyResult alone;
static ToyRef    ref;
static double    ref_report[TOY_STEPS][2], ref_eval[2];

/* The same with another micro-batch, level or number of threads. */
static void run_case(ToyResult *out, int64_t micro, RecomputeLevel level, int threads)
{
    ToyCase c = base;
    c.micro   = micro;
    c.level   = level;
    c.threads = threads;
    c.out     = out;
    if (toy_case_rank(0, 1, 0, &c) < 0) fail_msg("%s", err_get());
}

static void assert_near(const ToyResult *a)
{
    double worst = toy_case_worst(a, ref_report, ref_eval, &ref);
    print_message("worst error: %.3g of its tolerance\n", worst);
    assert_true(worst <= 1);
    assert_int_equal(a->n_update, ref.n_update);
    assert_int_equal(a->epoch, ref.epoch);
    assert_int_equal(a->cursor, ref.cursor);
    assert_int_equal(a->turns, ref.turns);
    assert_int_equal(a->n_report, ref.turns + TOY_STEPS);
    assert_int_equal(a->n_skipped, 0);
}

/* First of all: ranks are forked before any thread of OpenMP lives. */
static void two_ranks(void **state)
{
    ToyCase c = base;
    c.out     = ranks_shared(RANKS_MAX * sizeof *c.out);
    assert_true(ranks_run(2, 60, toy_case_rank, &c, NULL));
    ToyResult *a = &c.out[0], *b = &c.out[1];
    assert_memory_equal(a->w, b->w, sizeof a->w);
    assert_memory_equal(a->mean, b->mean, sizeof a->mean);
    assert_memory_equal(a->report, b->report, sizeof a->report);
    assert_memory_equal(a->eval, b->eval, sizeof a->eval);
    assert_int_equal(toy_case_ref(&base.recipe, a, &ref, ref_report, ref_eval), 0);
    assert_near(a);
    munmap(c.out, RANKS_MAX * sizeof *c.out);
}

static void reference_exercises_all(void **state)
{
    int64_t most = TOY_STEPS * (1 + toy_keys(&base.recipe)->rounds);
    print_message("%lld updates in %lld turns, nearest halt %.3g\n", (long long)ref.n_update,
                  (long long)ref.turns, ref.margin);
    assert_true(ref.n_update > TOY_STEPS && ref.n_update < most); /* some steps halt, and some go on */
    assert_true(ref.margin > TOY_TOL_LOSS);                       /* rounding cannot decide about a halt */
    double moved = 0;
    for (int64_t i = 0; i < ref.n_all; i++) moved = fmax(moved, fabs(ref.w[i] - (double)alone.first[i]));
    assert_true(moved > 50 * TOY_TOL_WEIGHT);
    for (int k = 0; k < TOY_STEPS; k++) assert_true(ref_report[k][TOY_REPEL] < 0);
}

static void reference(void **state)
{
    run_case(&alone, 4, LEVEL_NONE, 1);
    assert_near(&alone);
}

/* Ops that a level repeats in the programs of a step. */
static int n_repeated(RecomputeLevel level)
{
    JobChoice c = { .micro_batch = 4, .level = level, .compute = DT_F32 };
    Job      *j;
    int       n = 0;
    assert_int_equal(build_create(&j, &task_toy, &base.recipe, &c, JOB_TRAIN, dev_cpu()), 0);
    for (int i = 0; i < j->n_prog; i++) {
        for (int k = 0; k < prog_n_op(j->prog[i]); k++) n += prog_op(j->prog[i], k)->recompute != 0;
    }
    build_destroy(j);
    return n;
}

static void levels_agree_exactly(void **state)
{
    assert_int_equal(n_repeated(LEVEL_NONE), 0);
    assert_true(n_repeated(LEVEL_CHEAP) > 0 && n_repeated(LEVEL_BLOCK) >= n_repeated(LEVEL_CHEAP));
    for (int level = LEVEL_CHEAP; level <= LEVEL_BLOCK; level++) {
        ToyResult a;
        run_case(&a, 4, (RecomputeLevel)level, 1);
        assert_memory_equal(&a, &alone, sizeof a);
    }
}

static void micro_batches(void **state)
{
    static const int64_t micro[] = { 1, 2, 8, 16 };
    for (int i = 0; i < ARRAY_LEN(micro); i++) {
        ToyResult a;
        run_case(&a, micro[i], LEVEL_NONE, 1);
        assert_near(&a);
        assert_int_equal(a.n_target, alone.n_target);
    }
}

static void threads(void **state)
{
    ToyResult a;
    run_case(&a, 4, LEVEL_NONE, 2);
    assert_near(&a);
}

static void teacher_stays(void **state)
{
    assert_memory_equal(alone.teacher, alone.teacher_after, sizeof alone.teacher);
    assert_true(alone.hash != 0);
    double sum = 0;
    for (int64_t i = 0; i < alone.n; i++) sum += fabs((double)alone.teacher[i]);
    assert_true(sum > 1); /* of the file, not zeros */
}

/* A mean over a step's updates is over those that have the loss. */
static void updates_by_loss(void **state)
{
    int64_t turns = 0;
    for (int k = 0; k < TOY_STEPS; k++) {
        assert_int_equal(alone.n_had[k][TOY_DISTANCE], 1);
        turns += alone.n_had[k][TOY_REPEL];
    }
    assert_int_equal(turns, ref.turns);
}

/* Ragged: some samples have no patch, so they are no targets. */
static void counts(void **state)
{
    Source *val;
    int64_t n = 0;
    assert_int_equal(toy_open_val(&val, &base.recipe, 30, NULL), 0);
    for (int64_t g = 0; g < val->n_sample; g++) n += source_targets(val, g, TOY_DISTANCE, NULL);
    assert_true(n > 0 && n < 30);
    assert_int_equal(alone.n_target, n);
    source_close(val);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_ranks),
        cmocka_unit_test(reference),
        cmocka_unit_test(reference_exercises_all),
        cmocka_unit_test(levels_agree_exactly),
        cmocka_unit_test(micro_batches),
        cmocka_unit_test(threads),
        cmocka_unit_test(teacher_stays),
        cmocka_unit_test(updates_by_loss),
        cmocka_unit_test(counts),
    };
    char folder[] = "/tmp/test_toy.XXXXXX", line[64];
    base          = (ToyCase){ .device = "cpu", .micro = 4, .compute = DT_F32, .threads = 1 };
    if (!mkdtemp(folder) || toy_case_recipe(&base.recipe, folder) < 0) {
        fprintf(stderr, "%s\n", err_get());
        return 1;
    }
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    toy_ref_deinit(&ref);
    snprintf(line, sizeof line, "rm -rf %s", folder);
    return system(line) != 0 ? 1 : rc;
}
