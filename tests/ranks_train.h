/* A few steps of a small model on some ranks: what test_comm (CPU) and gpu/test_two_ranks (CUDA) compare. */
#ifndef TESTS_RANKS_TRAIN_H
#define TESTS_RANKS_TRAIN_H

#include "ranks.h"

#include "run/build.h"
#include "run/step.h"
#include "task/lm.h"

#include <math.h>

enum { TRAIN_STEPS = 5, TRAIN_SITES = 64 };

typedef struct {
    Recipe      recipe;
    const char *device;
    DType       compute;
    int64_t     micro_batch;
    int         eager;      /* 1: no graphs */
    int         fp8;        /* 1: products in fp8 */
    int         leave_step; /* > 0: rank 1 is gone before this step */
    /* results, in shared memory: loss and norm by rank and step, validation loss by rank, weights by rank */
    double *loss, *norm, *val;
    float  *weights;
    int64_t n_weight; /* of one rank */
    float  *sites;    /* of fp8, by rank; TRAIN_SITES rows each */
} TrainCase;

static inline void train_case_recipe(Recipe *r)
{
    recipe_defaults(r);
    snprintf(r->file, sizeof r->file, "test");
    snprintf(r->run, sizeof r->run, "test");
    r->seed          = 11;
    r->threads       = 1;
    r->deterministic = 1;
    r->steps         = TRAIN_STEPS;
    r->model         = (RecipeModel){ .layers     = 2,
                                      .width      = 64,
                                      .heads      = 4,
                                      .kv_heads   = 2,
                                      .head_dim   = 16,
                                      .ffn        = 128,
                                      .vocab      = 200,
                                      .context    = 32,
                                      .norm       = NORM_RMS,
                                      .norm_eps   = 1e-5,
                                      .pos        = POS_ROPE,
                                      .rope_theta = 1e4,
                                      .act        = FFN_SWIGLU,
                                      .tied       = 1,
                                      .dropout    = 0.1,
                                      .mask       = MASKING_CAUSAL,
                                      .init_std   = 0.05 };
    r->optim         = (RecipeOptim){ .lr           = 1e-3,
                                      .beta1        = 0.9,
                                      .beta2        = 0.95,
                                      .eps          = 1e-8,
                                      .weight_decay = 0.1,
                                      .clip         = 1.0,
                                      .momentum     = 0.95,
                                      .nesterov     = 1 };
    r->step_tokens   = 8 * r->model.context;
    r->step_samples  = 8;
    r->data.kind     = DATA_RANDOM;
}

/* Counts the weights and makes room for results. */
static inline int train_case_open(TrainCase *t)
{
    Job      *b;
    JobChoice c = { .micro_batch = t->micro_batch, .head_rows = 64, .compute = DT_F32 };
    TRY(build_create(&b, &task_lm, &t->recipe, &c, JOB_TRAIN, dev_null()));
    t->n_weight = job_param_count(b);
    build_destroy(b);
    t->loss    = ranks_shared(sizeof *t->loss * RANKS_MAX * TRAIN_STEPS);
    t->norm    = ranks_shared(sizeof *t->norm * RANKS_MAX * TRAIN_STEPS);
    t->val     = ranks_shared(sizeof *t->val * RANKS_MAX);
    t->weights = ranks_shared(sizeof *t->weights * RANKS_MAX * (size_t)t->n_weight);
    t->sites   = ranks_shared(sizeof *t->sites * RANKS_MAX * TRAIN_SITES * FP8_SITE);
    return 0;
}

static inline void train_case_close(TrainCase *t)
{
    munmap(t->loss, sizeof *t->loss * RANKS_MAX * TRAIN_STEPS);
    munmap(t->norm, sizeof *t->norm * RANKS_MAX * TRAIN_STEPS);
    munmap(t->val, sizeof *t->val * RANKS_MAX);
    munmap(t->weights, sizeof *t->weights * RANKS_MAX * (size_t)t->n_weight);
    munmap(t->sites, sizeof *t->sites * RANKS_MAX * TRAIN_SITES * FP8_SITE);
}

static inline int train_evaluate(Stepper *s, double *val)
{
    enum { BATCHES = 5 };
    Job     *j = s->job;
    Source  *src;
    Feed     feed;
    TaskEval found;
    int64_t  most = BATCHES * j->fields.B;
    TRY(task_lm.open_val(&src, &j->recipe, most, NULL));
    TRY(feed_init(&feed, j, 2, MARK_VAL));
    TRY(feed_attach(&feed, src, &(FeedStart){ 0 }));
    TRY(step_evaluate(s, &feed, src, &found));
    *val = found.value[0];
    feed_deinit(&feed);
    source_close(src);
    return 0;
}

static inline int train_read_sites(TrainCase *t, Job *b, int rank)
{
    const Tensor *part[] = { b->table[0]->sites, b->table[0]->grad_sites };
    float        *to     = t->sites + (int64_t)rank * TRAIN_SITES * FP8_SITE;
    CHECK(tensor_rows(part[0]) + tensor_rows(part[1]) <= TRAIN_SITES, "raise TRAIN_SITES");
    for (int i = 0; i < 2; i++) {
        TRY(job_download(b, part[i], to, tensor_bytes(part[i])));
        to += tensor_numel(part[i]);
    }
    return 0;
}

static inline int train_steps(TrainCase *t, Job *b, int rank)
{
    Stepper s;
    Source *src;
    StepOut out;
    TRY(task_lm.open_train(&src, &t->recipe));
    TRY(stepper_init(&s, b, 2));
    TRY(stepper_attach(&s, src, 0, NULL, 0));
    for (int64_t k = 0; k < TRAIN_STEPS; k++) {
        if (t->leave_step > 0 && k == t->leave_step && rank == 1) _exit(0);
        TRY(step_begin(&s, k, 1e-3));
        TRY(step_result(&s, k, &out));
        if (out.skip) return err_set("step %lld was skipped", (long long)k);
        t->loss[rank * TRAIN_STEPS + k] = out.loss;
        t->norm[rank * TRAIN_STEPS + k] = out.grad_norm;
    }
    TRY(train_evaluate(&s, &t->val[rank]));
    float *to = t->weights + rank * t->n_weight;
    for (int i = 0; i < b->table[0]->n_param; i++) {
        const Param *p = &b->table[0]->param[i];
        TRY(job_read_param(b, p, COL_WEIGHT, to));
        to += p->rows * p->cols;
    }
    if (t->fp8) TRY(train_read_sites(t, b, rank));
    stepper_deinit(&s);
    source_close(src);
    return 0;
}

/* The body of one rank: as setup_open_ranks() does it, but with a given choice. */
static inline int train_rank(int rank, int world, int port, void *arg)
{
    TrainCase  *t = arg;
    Comm       *comm;
    Job        *b;
    const char *why;
    Place       place = ranks_place(rank, world, port);
    DevOptions  opt   = { .deterministic = 1, .capture = !t->eager, .threads = 1 };
    JobChoice   c     = {
              .micro_batch = t->micro_batch,
              .head_rows   = 64,
              .compute     = t->compute,
              .fp8         = t->fp8,
              .world       = world,
              .rank        = rank,
    };
    TRY(comm_meet(&comm, &place, &(CommWaits){ 60, 60, 5 }));
    Dev *dev = dev_open(t->device, &opt, &why);
    if (!dev) return -1;
    TRY(comm_attach(comm, dev));
    TRY(build_create(&b, &task_lm, &t->recipe, &c, JOB_TRAIN, dev->vt));
    b->comm = comm;
    TRY(build_bind(b, dev));
    dev_seal(dev);
    TRY(build_init(b));
    TRY(train_steps(t, b, rank));
    TRY(comm_barrier(comm));
    build_destroy(b);
    dev_close(dev);
    comm_close(comm, 1);
    return 0;
}

/* ||a - b|| / ||b|| of two arrays; NaN gives NaN, which no bound accepts. */
static inline double train_distance(const float *a, const float *b, int64_t n)
{
    double num = 0, den = 0;
    for (int64_t i = 0; i < n; i++) {
        num += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        den += (double)b[i] * b[i];
    }
    return sqrt(num / den);
}

static inline double train_worst(const double *a, const double *b, int n)
{
    double worst = 0;
    for (int i = 0; i < n; i++) {
        double e = fabs(a[i] - b[i]) / fabs(b[i]);
        if (!(e <= worst)) worst = e;
    }
    return worst;
}

#endif
