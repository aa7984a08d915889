/* A few steps of the toy tenant on some ranks of some device. test_toy (CPU) and gpu/test_gpu_toy (CUDA)
 * compare them with the reference (toy_ref.h).
 *
 * Tolerances, for one f32 computation against the reference in double. u = 2^-24 is the unit of rounding.
 * 1. A gradient is a sum of at most 64 rows, each through products of 48, 16 and 8 terms: about 150
 *    roundings. Their errors add up like a random walk: 12 u. Five times that, 60 u = 3.6e-6, bounds the
 *    error of a gradient. All gradients are below 1.
 * 2. One update divides by sqrt(v) + eps >= eps = 0.1, and m and v take part. An error of e in the gradient
 *    moves a weight by at most 2 lr e/eps = 0.04 e at lr 2e-3. Storing the weight (below 1) adds u/2.
 * 3. A weight that is off by e moves the gradient by about e again: each update makes the error grow by
 *    2 lr/eps = 4 %. In at most 42 updates (6 steps of 7) that is a factor below 1.04^42 = 5.2.
 * 4. Together 42 * 5.2 * (0.04 * 3.6e-6 + 3e-8) = 3.8e-5 for a weight: TOY_TOL_WEIGHT.
 * 5. A loss is a mean of squares. Its slope is below 1 in each of the 56 weights that meet in one output,
 *    whose errors are independent: sqrt(56) * TOY_TOL_WEIGHT = 2.8e-4, TOY_TOL_LOSS. The losses of the
 *    table's rows are weighted with 0.02 and added up over at most 6 updates: the same bound holds.
 * 6. Two computations in f32 that sum in another order differ by at most twice as much. */
#ifndef TESTS_TOY_TOY_RUN_H
#define TESTS_TOY_TOY_RUN_H

#include "ranks.h"
#include "toy_ref.h"

#include "run/build.h"
#include "run/step.h"

#include <math.h>

#define TOY_TOL_WEIGHT 3.8e-5
#define TOY_TOL_LOSS   2.8e-4

enum { TOY_STEPS = 6, TOY_MOST = 1024 };

/* Lies in memory that ranks share. */
typedef struct {
    float    first[TOY_MOST], w[TOY_MOST], mean[TOY_MOST], teacher[TOY_MOST], teacher_after[TOY_MOST];
    double   report[TOY_STEPS][2], loss[TOY_STEPS], eval[2];
    int      n_had[TOY_STEPS][2]; /* updates that had each loss */
    int64_t  n, turns, n_target;
    int32_t  n_update, n_report, epoch, cursor, n_skipped;
    uint64_t hash;
} ToyResult;

typedef struct {
    Recipe         recipe;
    const char    *device;
    int64_t        micro;
    RecomputeLevel level;
    DType          compute;
    int            threads;
    ToyResult     *out; /* by rank */
} ToyCase;

#define TOY_LR 2e-3

/* The recipe that the tolerances are derived for. */
static inline int toy_case_recipe(Recipe *r, const char *folder)
{
    char path[512], yaml[512], text[2048];
    snprintf(path, sizeof path, "%s/teacher.safetensors", folder);
    snprintf(yaml, sizeof yaml, "%s/toy.yaml", folder);
    snprintf(text, sizeof text,
             "task: toy\nsteps: %d\nstep_samples: 16\nseed: 3\ndeterministic: true\nprecision: fp32\n"
             "optim: {lr: 2e-3, warmup: 0, eps: 0.1, weight_decay: 0.1, clip: 1}\ntoy: {teacher: %s, halt: "
             "-0.065}\n",
             TOY_STEPS, path);
    FILE *f = fopen(yaml, "w");
    if (!f || fputs(text, f) < 0 || fclose(f) != 0) return err_sys("%s", yaml);
    TRY(recipe_load_task(r, &recipe_toy, yaml, 0, NULL));
    return toy_write_teacher(path, toy_keys(r)->width, toy_keys(r)->out, 5);
}

static inline int toy_read_table(Job *j, const ParamTable *t, float *to)
{
    CHECK(param_count(t) <= TOY_MOST, "raise TOY_MOST");
    for (int i = 0; i < t->n_param; i++) {
        TRY(job_read_param(j, &t->param[i], COL_WEIGHT, to));
        to += t->param[i].rows * t->param[i].cols;
    }
    return 0;
}

/* The running mean in the order of the weights. */
static inline int toy_read_mean(Job *j, float *to)
{
    const Toy *t    = toy_of(j);
    float     *flat = malloc(tensor_bytes(t->mean));
    int rc = flat ? job_download(j, t->mean, flat, tensor_bytes(t->mean)) : err_set("out of host memory");
    for (int i = 0; i < t->student.n_param && rc == 0; i++) {
        const Param *p = &t->student.param[i];
        memcpy(to, flat + p->offset, sizeof *to * (size_t)(p->rows * p->cols));
        to += p->rows * p->cols;
    }
    free(flat);
    return rc;
}

static inline int toy_case_eval(Stepper *s, ToyResult *out)
{
    Job     *j = s->job;
    Source  *src;
    Feed     feed = { 0 };
    TaskEval e    = { 0 };
    TRY(toy_open_val(&src, &j->recipe, 30, NULL));
    int rc = feed_init(&feed, j, 2, MARK_VAL);
    if (rc == 0) rc = feed_attach(&feed, src, &(FeedStart){ 0 });
    if (rc == 0) rc = step_evaluate(s, &feed, src, &e);
    out->eval[0]  = e.value[0];
    out->eval[1]  = e.value[1];
    out->n_target = e.n_target;
    feed_deinit(&feed);
    source_close(src);
    return rc;
}

static inline int toy_case_steps(Job *j, ToyResult *out)
{
    Stepper s;
    Source *src;
    StepOut got;
    TRY(toy_open_train(&src, &j->recipe));
    TRY(stepper_init(&s, j, 2));
    TRY(stepper_attach(&s, src, 0, NULL, 0));
    for (int64_t k = 0; k < TOY_STEPS; k++) {
        TRY(step_begin(&s, k, TOY_LR));
        TRY(step_result(&s, k, &got));
        memcpy(out->report[k], got.report, sizeof out->report[k]);
        for (int slot = 0; slot < 2; slot++) out->n_had[k][slot] = step_reports(&s, k, slot);
        out->loss[k] = got.loss;
        out->n_report += got.n_report;
    }
    out->n_update  = got.n_update;
    out->n_skipped = got.n_skipped;
    TRY(toy_case_eval(&s, out));
    stepper_deinit(&s);
    source_close(src);
    return 0;
}

static inline int toy_case_on(ToyCase *c, Dev *dev, Comm *comm, int rank)
{
    ToyResult *out    = &c->out[rank];
    JobChoice  choice = {
         .micro_batch = c->micro, .level = c->level, .compute = c->compute, .world = comm_world(comm)
    };
    Job *j;
    memset(out, 0, sizeof *out);
    TRY(comm_attach(comm, dev));
    TRY(build_create(&j, &task_toy, &c->recipe, &choice, JOB_TRAIN, dev->vt));
    j->comm = comm;
    TRY(build_verify(j));
    TRY(build_bind(j, dev));
    dev_seal(dev);
    TRY(build_init(j));
    const Toy *t = toy_of(j);
    out->n       = param_count(&t->student);
    out->hash    = t->teacher.origin_hash;
    TRY(toy_read_table(j, &t->student, out->first));
    TRY(toy_read_table(j, &t->teacher, out->teacher));
    TRY(toy_case_steps(j, out));
    TRY(toy_read_table(j, &t->student, out->w));
    TRY(toy_read_table(j, &t->teacher, out->teacher_after));
    TRY(toy_read_mean(j, out->mean));
    TRY(job_download(j, t->epoch, &out->epoch, sizeof out->epoch));
    TRY(job_download(j, t->cursor, &out->cursor, sizeof out->cursor));
    out->turns = ((const ToyState *)j->own_state)->turns;
    TRY(comm_barrier(comm));
    build_destroy(j);
    return 0;
}

/* One rank; with world 1 no other. Negative after err_set(). */
static inline int toy_case_rank(int rank, int world, int port, void *arg)
{
    ToyCase    *c    = arg;
    Comm       *comm = NULL;
    const char *why;
    Place       place = ranks_place(rank, world, port);
    DevOptions  opt   = { .deterministic = 1, .capture = 1, .threads = c->threads };
    if (world > 1) TRY(comm_meet(&comm, &place, &(CommWaits){ 60, 60, 5 }));
    Dev *dev = dev_open(c->device, &opt, &why);
    if (!dev) return -1;
    int rc = toy_case_on(c, dev, comm, rank);
    dev_close(dev);
    if (comm) comm_close(comm, rc == 0);
    return rc;
}

/* The largest distance between a result and the reference, in units of its tolerance. */
static inline double toy_case_worst(const ToyResult *a, const double report[TOY_STEPS][2],
                                    const double eval[2], const ToyRef *ref)
{
    double worst = 0;
    for (int64_t i = 0; i < a->n; i++) {
        worst = fmax(worst, fabs((double)a->w[i] - ref->w[i]) / TOY_TOL_WEIGHT);
        worst = fmax(worst, fabs((double)a->mean[i] - ref->mean[i]) / TOY_TOL_WEIGHT);
        if (!isfinite(a->w[i])) return INFINITY;
    }
    for (int k = 0; k < TOY_STEPS; k++) {
        for (int slot = 0; slot < 2; slot++)
            worst = fmax(worst, fabs(a->report[k][slot] - report[k][slot]) / TOY_TOL_LOSS);
    }
    for (int i = 0; i < 2; i++) worst = fmax(worst, fabs(a->eval[i] - eval[i]) / TOY_TOL_LOSS);
    return worst;
}

/* The reference's own run, from the first weights of a result. */
static inline int toy_case_ref(const Recipe *r, const ToyResult *a, ToyRef *ref, double report[TOY_STEPS][2],
                               double eval[2])
{
    Source *src, *val;
    TRY(toy_open_train(&src, r));
    TRY(toy_open_val(&val, r, 30, NULL));
    toy_ref_init(ref, r, a->first, a->teacher);
    for (int k = 0; k < TOY_STEPS; k++) {
        toy_ref_step(ref, src, k, TOY_LR);
        memcpy(report[k], ref->report, sizeof ref->report);
    }
    toy_ref_eval(ref, val, eval);
    source_close(src);
    source_close(val);
    return 0;
}

#endif
