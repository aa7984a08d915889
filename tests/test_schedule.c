/* Schedules: which rows run, in which order and how often. A tiny task on the CPU whose programs only
 * leave their letter in a trace; letters of rows that are fed have the number of their sample behind them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "ranks.h"

#include "base/err.h"
#include "prog/prog_impl.h"
#include "prog/record.h"
#include "run/build.h"
#include "run/step.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- a task whose programs are letters ------------------------------------------------------------- */

enum { A, B, C, D, N_LETTER }; /* programs */

typedef struct {
    Tensor *from, *to;
    int     prog0; /* number of program A */
} Letters;

/* What the test wants of the next job, and what happened: cmocka's tests run one after the other. */
static struct {
    const ScheduleRow *step, *eval;
    int                n_step, n_eval;
    int64_t            bad_sample; /* the source fails at this one; 0: never */
    int64_t            stop_at;    /* the stop flag is set by this call of set_stop; -1: never */
    int64_t            n_host;
    int                reads; /* 1: the step itself reads its batches, which is noted */
    char               trace[512];
    const Job         *job;
} now;

static void note(const char *fmt, ...)
{
    va_list ap;
    size_t  n = strlen(now.trace);
    va_start(ap, fmt);
    vsnprintf(now.trace + n, sizeof now.trace - n, fmt, ap);
    va_end(ap);
}

static int64_t *own_count(Job *j) { return j->own_state; }

static int count_call(Job *j, int64_t turn)
{
    *own_count(j) += 1;
    return 0;
}

static int note_turn(Job *j, int64_t turn)
{
    note("h%lld ", (long long)turn);
    return 0;
}

/* On the CPU the state lies in the host's memory. */
static int set_stop(Job *j, int64_t turn)
{
    if (now.n_host++ == now.stop_at) ((StepState *)j->state->data)->out.stop = 1;
    return 0;
}

static int letters_declare(Job *j)
{
    int64_t  one = 1;
    FieldRow row = { "number", DT_I32, 0, { 0 } };
    Letters *own = j->own = arena_alloc(&j->store.arena, sizeof(Letters));
    job_declare_fields(j, &row, 1);
    own->from = job_declare_state(j, "from", DT_F32, 1, &one, 0);
    own->to   = job_declare_state(j, "to", DT_F32, 1, &one, 0);
    return 0;
}

static int letters_record(Job *j)
{
    static const char *const name[N_LETTER] = { "A", "B", "C", "D" };
    Letters                 *own            = j->own;
    own->prog0                              = j->n_prog;
    for (int i = 0; i < N_LETTER; i++) {
        Prog *p = job_begin(j, name[i]);
        prog_at(p, -1, -1, "letter");
        rec_copy(p, (Copy){ .y = own->to, .x = own->from });
        job_end(j, p, 0);
    }
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < (k ? now.n_eval : now.n_step); i++) {
            ScheduleRow row = k ? now.eval[i] : now.step[i];
            if (row.prog >= 0) row.prog += own->prog0;
            schedule_add(k ? &j->eval : &j->step, row);
        }
    }
    return 0;
}

static int64_t one_of(const Recipe *r) { return 1; }

static const TaskLoss   losses[]  = { { .name = "loss" } };
static const TaskMetric metrics[] = { { .name = "loss" } };
static const Task       letters   = { .name            = "letters",
                                      .unit            = "letters",
                                      .loss            = losses,
                                      .n_loss          = 1,
                                      .metric          = metrics,
                                      .n_metric        = 1,
                                      .units           = one_of,
                                      .rows            = one_of,
                                      .declare         = letters_declare,
                                      .record          = letters_record,
                                      .own_state_bytes = sizeof(int64_t) };

/* ---- its samples: sample g is the number g --------------------------------------------------------- */

static int number_fill(const Source *s, int64_t g, void *const *field, void *scratch)
{
    *(int32_t *)field[0] = (int32_t)g;
    if (now.reads) note("read%d ", (int)g);
    return now.bad_sample > 0 && g == now.bad_sample ? err_set("sample %d", (int)g) : 0;
}

static void number_close(Source *s) {}

static const SourceVt numbers_vt = { .fill = number_fill, .close = number_close };
static const Source   numbers    = {
         .vt = &numbers_vt, .name = "numbers", .n_sample = INT64_MAX, .targets_each = { 1 }
};

/* ---- a device that notes what runs ----------------------------------------------------------------- */

typedef struct {
    Dev    *dev;
    DevVt   spy;
    Job    *j;
    Stepper s;
    Comm   *comm; /* NULL: one rank */
} Bench;

static int spy_run(Dev *dev, DevExec *exec)
{
    const Job *j = now.job;
    for (int i = 0; j && i < j->n_prog; i++) {
        if (j->prog[i]->exec != exec) continue;
        note("%s", prog_name(j->prog[i]));
        if (prog_name(j->prog[i])[0] == 'A') note("%d", *(int32_t *)j->field[0]->data);
        note(" ");
    }
    return dev_cpu()->exec_run(dev, exec);
}

static int spy_sync(Dev *dev)
{
    if (now.reads) note("| ");
    return dev_cpu()->sync(dev);
}

static void bench_open_rank(Bench *b, int64_t samples, Comm *comm)
{
    const char *why;
    Recipe      r;
    JobChoice   choice = { .micro_batch = 1, .compute = DT_F32, .world = comm_world(comm) };
    recipe_defaults(&r);
    r.step_samples = samples;
    r.opt.prefetch = !now.reads;
    now.job        = NULL;
    now.trace[0]   = '\0';
    now.n_host     = 0;
    b->dev         = dev_open("cpu", &(DevOptions){ .threads = 1 }, &why);
    assert_non_null(b->dev);
    b->spy          = *dev_cpu();
    b->spy.exec_run = spy_run;
    b->spy.sync     = spy_sync;
    b->dev->vt      = &b->spy;
    b->comm         = comm;
    if (comm_attach(comm, b->dev) < 0 ||
        build_create(&b->j, &letters, &r, &choice, JOB_TRAIN, b->dev->vt) < 0)
        fail_msg("%s", err_get());
    b->j->comm = comm;
    if (build_bind(b->j, b->dev) < 0 || build_init(b->j) < 0 || stepper_init(&b->s, b->j, 2) < 0 ||
        stepper_attach(&b->s, &numbers, 0, NULL, 0) < 0)
        fail_msg("%s", err_get());
    now.job = b->j;
}

static void bench_open(Bench *b, int64_t samples) { bench_open_rank(b, samples, NULL); }

static void bench_close(Bench *b)
{
    stepper_deinit(&b->s);
    build_destroy(b->j);
    dev_close(b->dev);
    memset(&now, 0, sizeof now);
}

/* One walk of the step schedule leaves this trace. */
static void expect_step(Bench *b, int64_t step, const char *want)
{
    StepOut out;
    now.trace[0] = '\0';
    if (step_begin(&b->s, step, 0) != 0 || step_result(&b->s, step, &out) < 0) fail_msg("%s", err_get());
    assert_string_equal(now.trace, want);
}

#define STEP(...)                                                                                            \
    static const ScheduleRow step_rows[] = { __VA_ARGS__ };                                                  \
    now.step                             = step_rows;                                                        \
    now.n_step                           = ARRAY_LEN(step_rows)

/* ---- order and times ------------------------------------------------------------------------------- */

static void test_nested(void **state)
{
    STEP({ "outer", .times = 2, .prog = -1 }, { "turn", 1, .times = 2, .prog = -1, .host = note_turn },
         { "inner", 1, .times = 2, .prog = -1 }, { "a", 2, .times = 2, .prog = A, .feeds = 1 },
         { "b", 2, .times = 1, .prog = B }, { "c", 1, .times = 1, .prog = C },
         { "none", .times = 0, .prog = B }, { "d", .times = 2, .prog = D });
    Bench b;
    bench_open(&b, 8);
    expect_step(&b, 0, "h0 h1 A0 A1 B A2 A3 B C h0 h1 A4 A5 B A6 A7 B C D D ");
    expect_step(&b, 1, "h0 h1 A8 A9 B A10 A11 B C h0 h1 A12 A13 B A14 A15 B C D D ");
    assert_int_equal(b.s.next_sample, 16);
    bench_close(&b);
}

/* Without prefetching a batch is read while the device rests, also where the host could be ahead. */
static void test_reads_within_the_step(void **state)
{
    STEP({ "a", .times = 2, .prog = A, .feeds = 1 }, { "b", .times = 1, .prog = B });
    Bench b;
    now.reads = 1;
    bench_open(&b, 2);
    expect_step(&b, 0, "| read0 A0 | read1 A1 B ");
    expect_step(&b, 1, "| read2 A2 | read3 A3 B ");
    bench_close(&b);
}

/* A row with a program and rows of its own runs the program first, each time. */
static void test_program_with_rows(void **state)
{
    STEP({ "b", .times = 2, .prog = B }, { "c", 1, .times = 2, .prog = C },
         { "d", 2, .times = 1, .prog = D });
    Bench b;
    bench_open(&b, 1);
    expect_step(&b, 0, "B C D C D B C D C D ");
    bench_close(&b);
}

static int host_fails(Job *j, int64_t turn) { return turn == 1 ? err_set("turn %d", (int)turn) : 0; }

static void test_host_failure_ends_the_step(void **state)
{
    STEP({ "fails", .times = 3, .prog = -1, .host = host_fails }, { "c", .times = 1, .prog = C });
    Bench b;
    bench_open(&b, 1);
    assert_int_equal(step_begin(&b.s, 0, 0), -1);
    assert_string_equal(err_get(), "turn 1");
    assert_string_equal(now.trace, "");
    err_clear();
    bench_close(&b);
}

/* Rank 1 has no second batch. Its message comes from both ranks, before the row that sums would wait for
 * it. */
static int lose_batch(int rank, int world, int port, void *arg)
{
    STEP({ "a", .times = 2, .prog = A, .feeds = 1 }, { "b", .times = 1, .prog = B, .sums = 1 },
         { "c", .times = 1, .prog = C });
    Comm *comm;
    Bench b;
    Place place = ranks_place(rank, world, port);
    TRY(comm_meet(&comm, &place, &(CommWaits){ 20, 20, 5 }));
    now.bad_sample = 3; /* samples 0 and 2 are rank 0's, 1 and 3 rank 1's */
    bench_open_rank(&b, 4, comm);
    int failed = step_begin(&b.s, 0, 0) < 0 && strcmp(err_get(), "rank 1: sample 3") == 0;
    int early  = !strchr(now.trace, 'B');
    err_clear();
    comm_barrier(comm);
    bench_close(&b);
    comm_close(comm, 1);
    return failed && early ? 0 : 1;
}

static void test_ranks_agree_before_sums(void **state)
{
    assert_true(ranks_run(2, 40, lose_batch, NULL, NULL));
}

/* A step that fails leaves the task's own state alone. Whether the device's can be saved depends on
 * what ran. */
static void test_failed_step(void **state)
{
    STEP({ "count", .times = 1, .prog = -1, .host = count_call }, { "a", .times = 2, .prog = A, .feeds = 1 },
         { "b", .times = 1, .prog = B }, { "more", .times = 1, .prog = A, .feeds = 1 });
    static const struct {
        int64_t     bad;
        const char *trace;
        int         mixed;
    } cases[] = { { 4, "A3 ", 0 }, { 5, "A3 A4 B ", 1 } };
    for (int i = 0; i < ARRAY_LEN(cases); i++) {
        Bench b;
        now.step       = step_rows;
        now.n_step     = ARRAY_LEN(step_rows);
        now.bad_sample = cases[i].bad;
        bench_open(&b, 3);
        expect_step(&b, 0, "A0 A1 B A2 ");
        assert_int_equal(*own_count(b.j), 1);
        now.trace[0] = '\0';
        assert_int_equal(step_begin(&b.s, 1, 0), -1);
        assert_string_equal(now.trace, cases[i].trace);
        assert_int_equal(*own_count(b.j), 1);
        assert_int_equal(b.s.is_mixed, cases[i].mixed);
        err_clear();
        bench_close(&b);
    }
}

typedef struct {
    int    prog0, n;
    double times[N_LETTER];
} Times;

static void add_times(void *ctx, const ScheduleRow *row, double times)
{
    Times *t = ctx;
    t->times[row->prog - t->prog0] += times;
    t->n++;
}

/* What plans and predictions count is what a walk runs. */
static void test_each_times(void **state)
{
    STEP({ "b", .times = 1, .prog = B }, { "outer", .times = 2, .prog = -1 },
         { "a", 1, .times = 3, .prog = A, .feeds = 1 }, { "inner", 1, .times = 5, .prog = -1 },
         { "b", 2, .times = 7, .prog = B }, { "c", 3, .times = 2, .prog = C },
         { "d", .times = 4, .prog = D });
    Bench b;
    bench_open(&b, 6);
    Times t = { .prog0 = ((Letters *)b.j->own)->prog0 };
    schedule_each(&b.j->step, add_times, &t);
    assert_int_equal(t.n, 5);
    assert_true(t.times[A] == 6 && t.times[B] == 1 + 70 && t.times[C] == 140 && t.times[D] == 4);
    bench_close(&b);
}

/* ---- until ----------------------------------------------------------------------------------------- */

/* The flag that turn 3 sets is read UNTIL_LAG turns later. What follows the loop runs. The next step
 * begins anew. */
static void test_until(void **state)
{
    STEP({ "loop", .times = 10, .prog = -1 }, { "stop", 1, .times = 1, .prog = -1, .host = set_stop },
         { "b", 1, .times = 1, .prog = B, .until = 1 }, { "c", 1, .times = 1, .prog = C },
         { "d", .times = 1, .prog = D });
    Bench b;
    assert_int_equal(UNTIL_LAG, 2);
    now.stop_at = 3;
    bench_open(&b, 1);
    expect_step(&b, 0, "B C B C B C B C B C B D ");
    now.stop_at = -1;
    expect_step(&b, 1, "B C B C B C B C B C B C B C B C B C B C D ");
    now.n_host  = 0;
    now.stop_at = 8; /* too late to save anything */
    expect_step(&b, 2, "B C B C B C B C B C B C B C B C B C B C D ");
    bench_close(&b);
}

/* Only the loop around it ends; the next one learns of the flag at its first turn. */
static void test_until_ends_one_loop(void **state)
{
    STEP({ "outer", .times = 2, .prog = -1 }, { "inner", 1, .times = 9, .prog = -1 },
         { "stop", 2, .times = 1, .prog = -1, .host = set_stop },
         { "b", 2, .times = 1, .prog = B, .until = 1 }, { "c", 1, .times = 1, .prog = C });
    Bench b;
    now.stop_at = 1;
    bench_open(&b, 1);
    expect_step(&b, 0, "B B B B C B C ");
    bench_close(&b);
}

/* A loop that says until itself is asked after each of its turns. */
static void test_until_of_a_loop(void **state)
{
    STEP({ "loop", .times = 9, .prog = -1, .until = 1 },
         { "stop", 1, .times = 1, .prog = -1, .host = set_stop }, { "b", 1, .times = 1, .prog = B },
         { "c", .times = 1, .prog = C });
    Bench b;
    now.stop_at = 0;
    bench_open(&b, 1);
    expect_step(&b, 0, "B B B C ");
    bench_close(&b);
}

/* ---- evaluation ------------------------------------------------------------------------------------ */

static void test_eval(void **state)
{
    static const ScheduleRow eval_rows[] = { { "a", .times = 1, .prog = A, .feeds = 1 },
                                             { "b", .times = 2, .prog = B } };
    STEP({ "c", .times = 1, .prog = C });
    now.eval   = eval_rows;
    now.n_eval = ARRAY_LEN(eval_rows);
    Bench    b;
    Feed     val;
    TaskEval found;
    Source   three = numbers;
    three.n_sample = three.n_all = 3;
    bench_open(&b, 1);
    assert_int_equal(feed_init(&val, b.j, 2, MARK_VAL), 0);
    assert_int_equal(feed_attach(&val, &three, &(FeedStart){ 0 }), 0);
    if (step_evaluate(&b.s, &val, &three, &found) < 0) fail_msg("%s", err_get());
    assert_string_equal(now.trace, "A0 B B A1 B B A2 B B ");
    assert_true(found.n_target == 3 && found.n_sample == 3 && found.n_all == 3);
    feed_deinit(&val);
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks_agree_before_sums), /* forks, so before threads */
        cmocka_unit_test(test_nested),
        cmocka_unit_test(test_reads_within_the_step),
        cmocka_unit_test(test_program_with_rows),
        cmocka_unit_test(test_host_failure_ends_the_step),
        cmocka_unit_test(test_failed_step),
        cmocka_unit_test(test_each_times),
        cmocka_unit_test(test_until),
        cmocka_unit_test(test_until_ends_one_loop),
        cmocka_unit_test(test_until_of_a_loop),
        cmocka_unit_test(test_eval),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
