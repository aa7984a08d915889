/* Rig: one golden model, built as a run builds it (run/build.h), on any device: a language model or a vision
 * transformer, as its recipe's task says. Knows no test framework: the world's failures are CHECKed,
 * comparisons are the caller's. */
#ifndef TESTS_GOLDEN_RIG_H
#define TESTS_GOLDEN_RIG_H

#include "data/image_source.h"
#include "dev/dev.h"
#include "golden/golden.h"
#include "jobs.h"
#include "run/build.h"
#include "task/image.h"

#include <math.h>

typedef struct {
    const char    *device;                 /* NULL: cpu */
    int            threads;                /* 0: one; more only slow down a model this small */
    int64_t        micro_batch, head_rows; /* 0: all of the step */
    RecomputeLevel level;
    DType          compute;
    double         dropout;
    RecipeOpt      off;    /* 1: not used */
    int            stored; /* attention that stores its weights */
    unsigned       parts;  /* 0: JOB_TRAIN */
} RigSetup;

typedef struct {
    const Golden  *g;
    Dev           *dev;
    Job           *j;
    Prog          *micro, *update, *eval, *decode; /* NULL: not among the parts */
    unsigned char *block;                          /* host copy of the batch block */
} Rig;

#define RIG_TRY(call) CHECK((call) >= 0, "%s", err_get())

static inline void rig_load_weights(Rig *r)
{
    const ParamTable *t = r->j->table[0];
    CHECK(golden_n_weight(r->g) == t->n_param, "PyTorch has %d weights, Brim %d", golden_n_weight(r->g),
          t->n_param);
    for (int i = 0; i < t->n_param; i++) {
        const Param *p = &t->param[i];
        RIG_TRY(job_write_param(r->j, p, COL_WEIGHT, golden_f32(r->g, "w0.", p->name, p->rows * p->cols)));
    }
    RIG_TRY(job_refresh_copies(r->j));
}

static inline void rig_open(Rig *r, const Golden *g, const RigSetup *s)
{
    Recipe recipe        = g->recipe;
    recipe.model.dropout = s->dropout;
    recipe.deterministic = 1;
#define X(name, what) recipe.opt.name = !s->off.name;
    OPT_LIST(X)
#undef X
    recipe.opt.flash   = !s->stored;
    int64_t     mb     = s->micro_batch ? s->micro_batch : g->B;
    JobChoice   choice = { .micro_batch = mb,
                           .level       = s->level,
                           .head_rows   = s->head_rows ? s->head_rows : mb * g->T,
                           .compute     = s->compute };
    const char *why;
    *r             = (Rig){ .g = g };
    DevOptions opt = { .deterministic = 1, .capture = 1, .threads = s->threads ? s->threads : 1 };
    r->dev         = dev_open(s->device ? s->device : "cpu", &opt, &why);
    CHECK(r->dev, "%s", err_get());
    const Task *task = strcmp(recipe.task, "image") == 0 ? &task_image : &task_lm;
    RIG_TRY(build_create(&r->j, task, &recipe, &choice, s->parts ? s->parts : JOB_TRAIN, r->dev->vt));
    RIG_TRY(build_bind(r->j, r->dev));
    RIG_TRY(build_init(r->j));
    r->micro  = job_prog(r->j, "micro-step");
    r->update = job_prog(r->j, "update");
    r->eval   = job_prog(r->j, "eval");
    r->decode = job_prog(r->j, "decode");
    rig_load_weights(r);
    r->block = calloc(1, r->j->block ? tensor_bytes(r->j->block) : 1);
    CHECK(r->block, "out of host memory");
}

static inline void rig_close(Rig *r)
{
    build_destroy(r->j);
    dev_close(r->dev);
    free(r->block);
}

static inline void rig_upload(Rig *r, const Tensor *t, const void *src, size_t size_bytes)
{
    RIG_TRY(r->dev->vt->upload(r->dev, LANE_COMPUTE, t->data, src, size_bytes));
    RIG_TRY(r->dev->vt->sync(r->dev));
}

static inline void rig_run(Rig *r, Prog *p)
{
    RIG_TRY(prog_run(p, r->dev));
    RIG_TRY(r->dev->vt->sync(r->dev));
}

static inline int64_t rig_n_target(const Rig *r, int64_t step)
{
    const char    *name   = r->j->task == &task_image ? "label" : "target";
    const int32_t *target = golden_rows(r->g, name, step, 0);
    int64_t        n      = 0;
    for (int64_t i = 0; i < r->g->B * r->g->T; i++) n += target[i] >= 0;
    return n;
}

/* What the host writes before the first micro-step. */
static inline void rig_begin_step(Rig *r, int64_t step)
{
    StepState s = { .in = { .step       = step,
                            .seed       = 12345,
                            .lr         = (float)r->g->recipe.optim.lr,
                            .inv[0]     = 1.0f / (float)rig_n_target(r, step),
                            .loss_scale = 1 } };
    rig_upload(r, r->j->state, &s, STEP_UPLOAD_BYTES);
}

static inline void rig_fill_tokens(Rig *r, int64_t step, int64_t b0)
{
    const NetBatch *nb    = &lm_of(r->j)->batch;
    size_t          bytes = sizeof(int32_t) * (size_t)(nb->B * nb->T);
    memcpy(r->block + nb->tok->offset_bytes, golden_rows(r->g, "tok", step, b0), bytes);
    memcpy(r->block + nb->target->offset_bytes, golden_rows(r->g, "target", step, b0), bytes);
}

/* Every field from the golden tensor of its name. */
static inline void rig_fill_images(Rig *r, int64_t sample0)
{
    static const struct {
        int         field;
        const char *name, *dtype;
    } row[]         = { { IMAGE_PIXELS, "pixels", "U8" },    { IMAGE_LABEL, "label", "I32" },
                        { IMAGE_LABEL2, "label2", "I32" },   { IMAGE_SHARE, "share", "F32" },
                        { IMAGE_PARTNER, "partner", "I32" }, { IMAGE_BLEND, "blend", "F32" },
                        { IMAGE_BOX, "box", "I32" } };
    const Fields *f = &r->j->fields;
    for (int i = 0; i < ARRAY_LEN(row); i++) {
        size_t  n = f->sample_bytes[row[i].field], size = strcmp(row[i].dtype, "U8") == 0 ? 1 : 4;
        int64_t n_elem = r->g->steps * r->g->B * (int64_t)(n / size);
        memcpy(fields_at(f, r->block, row[i].field, 0),
               (const char *)golden_tensor(r->g, "", row[i].name, row[i].dtype, n_elem) + (size_t)sample0 * n,
               (size_t)f->B * n);
    }
}

/* Runs p (micro or eval) over samples b0 .. b0 + micro_batch - 1 of a step. */
static inline void rig_micro(Rig *r, Prog *p, int64_t step, int64_t b0)
{
    int64_t sample0 = step * r->g->B + b0;
    fields_set_sample0(r->block, sample0);
    if (r->j->task == &task_image) {
        rig_fill_images(r, sample0);
    } else {
        rig_fill_tokens(r, step, b0);
    }
    rig_upload(r, r->j->block, r->block, tensor_bytes(r->j->block));
    rig_run(r, p);
}

/* The whole batch of a step through p; returns the mean loss. */
static inline double rig_step(Rig *r, Prog *p, int64_t step)
{
    StepState s;
    rig_begin_step(r, step);
    for (int64_t b0 = 0; b0 < r->g->B; b0 += r->j->fields.B) rig_micro(r, p, step, b0);
    RIG_TRY(job_read_state(r->j, &s));
    return s.out.sum[0] / (double)rig_n_target(r, step);
}

static inline float *rig_read(Rig *r, const Param *p, Column which)
{
    float *x = malloc(sizeof *x * (size_t)(p->rows * p->cols));
    CHECK(x, "out of host memory");
    RIG_TRY(job_read_param(r->j, p, which, x));
    return x;
}

/* Every gradient, one behind the other; the caller frees it. */
static inline float *rig_gradients(Rig *r, int64_t *n_elem)
{
    const ParamTable *t = r->j->table[0];
    float            *x = malloc(sizeof *x * (size_t)param_count(t));
    CHECK(x, "out of host memory");
    int64_t n = 0;
    for (int i = 0; i < t->n_param; i++) {
        RIG_TRY(job_read_param(r->j, &t->param[i], COL_GRAD, x + n));
        n += t->param[i].rows * t->param[i].cols;
    }
    *n_elem = n;
    return x;
}

/* ||a - b|| / ||b|| and max |a - b| / max |b|. */
typedef struct {
    double norm, max;
} RigDistance;

static inline RigDistance rig_distance(const float *a, const float *b, int64_t n)
{
    double dd = 0, bb = 0, dmax = 0, bmax = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = (double)a[i] - (double)b[i];
        dd += d * d;
        bb += (double)b[i] * (double)b[i];
        dmax = fmax(dmax, fabs(d));
        bmax = fmax(bmax, fabs((double)b[i]));
        if (!isfinite(a[i])) return (RigDistance){ INFINITY, INFINITY }; /* fmax would swallow a NaN */
    }
    CHECK(bb > 0, "the reference is all zero: nothing would be compared");
    return (RigDistance){ sqrt(dd / bb), dmax / bmax };
}

#endif
