/* A few steps of a small model on some ranks: what test_comm (CPU) and gpu/test_two_ranks (CUDA) compare. */
#ifndef TESTS_RANKS_TRAIN_H
#define TESTS_RANKS_TRAIN_H

#include "ranks.h"

#include "run/step.h"

#include <math.h>

enum { TRAIN_STEPS = 5 };

typedef struct {
    Recipe      recipe;
    const char *device;
    DType       compute;
    int64_t     micro_batch;
    int         eager;      /* 1: no graphs */
    int         leave_step; /* > 0: rank 1 is gone before this step */
    /* results, in shared memory: loss and norm by rank and step, validation loss by rank, weights by rank */
    double *loss, *norm, *val;
    float  *weights;
    int64_t n_weight; /* of one rank */
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
    r->optim         = (RecipeOptim){
                .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .clip = 1.0
    };
    r->step_tokens = 8 * r->model.context;
    r->data.kind   = DATA_RANDOM;
}

/* Counts the weights and makes room for results. */
static inline int train_case_open(TrainCase *t)
{
    Build      *b;
    BuildChoice c = { .micro_batch = t->micro_batch, .head_rows = 64, .compute = DT_F32 };
    TRY(build_create(&b, &t->recipe, &c, BUILD_TRAIN, dev_null()));
    t->n_weight = param_count(&b->net.table);
    build_destroy(b);
    t->loss    = ranks_shared(sizeof *t->loss * RANKS_MAX * TRAIN_STEPS);
    t->norm    = ranks_shared(sizeof *t->norm * RANKS_MAX * TRAIN_STEPS);
    t->val     = ranks_shared(sizeof *t->val * RANKS_MAX);
    t->weights = ranks_shared(sizeof *t->weights * RANKS_MAX * (size_t)t->n_weight);
    return 0;
}

static inline void train_case_close(TrainCase *t)
{
    munmap(t->loss, sizeof *t->loss * RANKS_MAX * TRAIN_STEPS);
    munmap(t->norm, sizeof *t->norm * RANKS_MAX * TRAIN_STEPS);
    munmap(t->val, sizeof *t->val * RANKS_MAX);
    munmap(t->weights, sizeof *t->weights * RANKS_MAX * (size_t)t->n_weight);
}

static inline int train_evaluate(Stepper *s, const Tokens *src, double *val)
{
    enum { SLOTS = 2 };
    Dev    *dev = s->build->dev;
    void   *slot[SLOTS];
    Loader *l;
    for (int i = 0; i < SLOTS; i++) {
        slot[i] = dev->vt->host_alloc(dev, loader_batch_bytes(s->build->batch.B, s->build->batch.T, 0));
        if (!slot[i]) return -1;
    }
    LoaderConfig cfg = stepper_loader_config(s, slot, SLOTS);
    cfg.eval         = 1;
    cfg.inline_fill  = 1;
    TRY(loader_create(&l, &cfg, src));
    int rc = step_evaluate(s, l, 5, val);
    loader_destroy(l);
    for (int i = 0; i < SLOTS; i++) dev->vt->host_free(dev, slot[i]);
    return rc;
}

static inline int train_steps(TrainCase *t, Build *b, int rank)
{
    Stepper s;
    Tokens *src;
    StepOut out;
    TRY(tokens_open(&src, &t->recipe, 0));
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
    TRY(train_evaluate(&s, src, &t->val[rank]));
    float *to = t->weights + rank * t->n_weight;
    for (int i = 0; i < b->net.table.n_param; i++) {
        const Param *p = &b->net.table.param[i];
        TRY(build_read_param(b, p, p->col[COL_WEIGHT], to));
        to += p->rows * p->cols;
    }
    stepper_deinit(&s);
    tokens_close(src);
    return 0;
}

/* The body of one rank: as setup_open_ranks() does it, but with a given choice. */
static inline int train_rank(int rank, int world, int port, void *arg)
{
    TrainCase  *t = arg;
    Comm       *comm;
    Build      *b;
    const char *why;
    Place       place = ranks_place(rank, world, port);
    DevOptions  opt   = { .deterministic = 1, .capture = !t->eager, .threads = 1 };
    BuildChoice c = { .micro_batch = t->micro_batch, .head_rows = 64, .compute = t->compute, .world = world };
    TRY(comm_meet(&comm, &place, &(CommWaits){ 60, 60, 5 }));
    Dev *dev = dev_open(t->device, &opt, &why);
    if (!dev) return -1;
    TRY(comm_attach(comm, dev));
    TRY(build_create(&b, &t->recipe, &c, BUILD_TRAIN, dev->vt));
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
