/* Rig: one golden model, built as a run builds it (run/build.h), on any device. Knows no test framework: the
 * world's failures are CHECKed, comparisons are the caller's. */
#ifndef TESTS_GOLDEN_RIG_H
#define TESTS_GOLDEN_RIG_H

#include "dev/dev.h"
#include "golden/golden.h"
#include "run/build.h"

#include <math.h>

typedef struct {
    const char    *device;                 /* NULL: cpu */
    int            threads;                /* 0: one; more only slow down a model this small */
    int64_t        micro_batch, head_rows; /* 0: all of the step */
    RecomputeLevel level;
    DType          compute;
    double         dropout;
    RecipeOpt   off;    /* 1: not used */
    int            stored; /* attention that stores its weights */
    unsigned       parts;  /* 0: BUILD_TRAIN */
} RigSetup;

typedef struct {
    const Golden  *g;
    Dev           *dev;
    Build         *b;
    unsigned char *block; /* host copy of the batch block */
} Rig;

#define RIG_TRY(call) CHECK((call) >= 0, "%s", err_get())

static inline void rig_load_weights(Rig *r)
{
    const ParamTable *t = &r->b->net.table;
    CHECK(golden_n_weight(r->g) == t->n_param, "PyTorch has %d weights, Brim %d", golden_n_weight(r->g),
          t->n_param);
    for (int i = 0; i < t->n_param; i++) {
        const Param *p = &t->param[i];
        RIG_TRY(build_write_param(r->b, p, p->col[COL_WEIGHT],
                                  golden_f32(r->g, "w0.", p->name, p->rows * p->cols)));
    }
    RIG_TRY(build_refresh_copies(r->b));
}

static inline void rig_open(Rig *r, const Golden *g, const RigSetup *s)
{
    Recipe recipe             = g->recipe;
    recipe.model.dropout      = s->dropout;
    recipe.deterministic      = 1;
    recipe.opt.add_norm       = !s->off.add_norm;
    recipe.opt.norm_bwd       = !s->off.norm_bwd;
    recipe.opt.xent           = !s->off.xent;
    recipe.opt.act_bias       = !s->off.act_bias;
    recipe.opt.linear_act     = !s->off.linear_act;
    recipe.opt.linear_act_bwd = !s->off.linear_act_bwd;
    recipe.opt.act_slope      = !s->off.act_slope;
    recipe.opt.linear_glu_fwd = !s->off.linear_glu_fwd;
    recipe.opt.linear_glu_bwd = !s->off.linear_glu_bwd;
    recipe.opt.linear_dw_bias = !s->off.linear_dw_bias;
    recipe.opt.attn_rope      = !s->off.attn_rope;
    recipe.opt.flash          = !s->stored;
    int64_t     mb            = s->micro_batch ? s->micro_batch : g->B;
    BuildChoice choice        = { .micro_batch = mb,
                                  .level       = s->level,
                                  .head_rows   = s->head_rows ? s->head_rows : mb * g->T,
                                  .compute     = s->compute };
    const char *why;
    *r             = (Rig){ .g = g };
    DevOptions opt = { .deterministic = 1, .capture = 1, .threads = s->threads ? s->threads : 1 };
    r->dev         = dev_open(s->device ? s->device : "cpu", &opt, &why);
    CHECK(r->dev, "%s", err_get());
    RIG_TRY(build_create(&r->b, &recipe, &choice, s->parts ? s->parts : BUILD_TRAIN, r->dev->vt));
    RIG_TRY(build_bind(r->b, r->dev));
    RIG_TRY(build_init(r->b));
    rig_load_weights(r);
    r->block = calloc(1, r->b->batch.block ? tensor_bytes(r->b->batch.block) : 1);
    CHECK(r->block, "out of host memory");
}

static inline void rig_close(Rig *r)
{
    build_destroy(r->b);
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
    const int32_t *target = golden_rows(r->g, "target", step, 0);
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
    rig_upload(r, r->b->state, &s, STEP_UPLOAD_BYTES);
}

/* Runs p (micro or eval) over sequences b0 .. b0 + micro_batch - 1 of a step. */
static inline void rig_micro(Rig *r, Prog *p, int64_t step, int64_t b0)
{
    const NetBatch *nb      = &r->b->batch;
    int64_t         sample0 = step * r->g->B + b0;
    size_t          bytes   = sizeof(int32_t) * (size_t)(nb->B * nb->T);
    memcpy(r->block + nb->sample0->offset_bytes, &sample0, sizeof sample0);
    memcpy(r->block + nb->tok->offset_bytes, golden_rows(r->g, "tok", step, b0), bytes);
    memcpy(r->block + nb->target->offset_bytes, golden_rows(r->g, "target", step, b0), bytes);
    rig_upload(r, nb->block, r->block, tensor_bytes(nb->block));
    rig_run(r, p);
}

/* The whole batch of a step through p; returns the mean loss. */
static inline double rig_step(Rig *r, Prog *p, int64_t step)
{
    StepState s;
    rig_begin_step(r, step);
    for (int64_t b0 = 0; b0 < r->g->B; b0 += r->b->batch.B) rig_micro(r, p, step, b0);
    RIG_TRY(build_read_state(r->b, &s));
    return s.out.sum[0] / (double)rig_n_target(r, step);
}

static inline float *rig_read(Rig *r, const Param *p, const Tensor *which)
{
    float *x = malloc(sizeof *x * (size_t)(p->rows * p->cols));
    CHECK(x, "out of host memory");
    RIG_TRY(build_read_param(r->b, p, which, x));
    return x;
}

/* Every gradient, one behind the other; the caller frees it. */
static inline float *rig_gradients(Rig *r, int64_t *n_elem)
{
    const ParamTable *t = &r->b->net.table;
    float            *x = malloc(sizeof *x * (size_t)param_count(t));
    CHECK(x, "out of host memory");
    int64_t n = 0;
    for (int i = 0; i < t->n_param; i++) {
        RIG_TRY(build_read_param(r->b, &t->param[i], t->param[i].col[COL_GRAD], x + n));
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
