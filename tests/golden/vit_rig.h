/* Rig of a golden vision transformer, built as a run builds it, on any device. Knows no test framework. */
#ifndef TESTS_GOLDEN_VIT_RIG_H
#define TESTS_GOLDEN_VIT_RIG_H

#include "data/image_source.h"
#include "dev/dev.h"
#include "golden/golden.h"
#include "jobs.h"
#include "run/build.h"
#include "task/image.h"

#include <math.h>

typedef struct {
    const char    *device; /* NULL: cpu */
    int            threads;
    int64_t        micro_batch; /* 0: all of the step */
    RecomputeLevel level;
    DType          compute;
} VitSetup;

typedef struct {
    const Golden  *g;
    Dev           *dev;
    Job           *j;
    unsigned char *block;
} VitRig;

#define VIT_TRY(call) CHECK((call) >= 0, "%s", err_get())

static inline void vit_rig_open(VitRig *r, const Golden *g, const VitSetup *s)
{
    Recipe      recipe = g->recipe;
    const char *why;
    recipe.deterministic = 1;
    JobChoice  choice    = { .micro_batch = s->micro_batch ? s->micro_batch : g->B,
                             .level       = s->level,
                             .compute     = s->compute };
    DevOptions opt       = { .deterministic = 1, .capture = 1, .threads = s->threads ? s->threads : 1 };
    *r                   = (VitRig){ .g = g };
    r->dev               = dev_open(s->device ? s->device : "cpu", &opt, &why);
    CHECK(r->dev, "%s", err_get());
    VIT_TRY(build_create(&r->j, &task_image, &recipe, &choice, JOB_TRAIN, r->dev->vt));
    VIT_TRY(build_bind(r->j, r->dev));
    VIT_TRY(build_init(r->j));
    const ParamTable *t = r->j->table[0];
    CHECK(golden_n_weight(g) == t->n_param, "PyTorch has %d weights, Brim %d", golden_n_weight(g),
          t->n_param);
    for (int i = 0; i < t->n_param; i++) {
        const Param *p = &t->param[i];
        VIT_TRY(job_write_param(r->j, p, COL_WEIGHT, golden_f32(g, "w0.", p->name, p->rows * p->cols)));
    }
    VIT_TRY(job_refresh_copies(r->j));
    r->block = calloc(1, r->j->fields.block_bytes);
    CHECK(r->block, "out of host memory");
}

static inline void vit_rig_close(VitRig *r)
{
    build_destroy(r->j);
    dev_close(r->dev);
    free(r->block);
}

static inline void vit_rig_run(VitRig *r, const char *name)
{
    VIT_TRY(prog_run(job_prog(r->j, name), r->dev));
    VIT_TRY(r->dev->vt->sync(r->dev));
}

static inline void vit_rig_update(VitRig *r) { vit_rig_run(r, "update"); }

static inline int64_t vit_rig_targets(const VitRig *r, int64_t step)
{
    const int32_t *label = golden_tensor(r->g, "", "label", "I32", r->g->steps * r->g->B);
    int64_t        n     = 0;
    for (int64_t b = 0; b < r->g->B; b++) n += label[step * r->g->B + b] >= 0;
    return n;
}

/* Field i of the micro-batch that begins at sample b0, from the golden tensor of that name. */
static inline void vit_rig_field(VitRig *r, int i, const char *name, const char *dtype, int64_t at)
{
    const Fields *f = &r->j->fields;
    size_t        n = f->sample_bytes[i], size = strcmp(dtype, "U8") == 0 ? 1 : 4;
    const char   *x = golden_tensor(r->g, "", name, dtype, r->g->steps * r->g->B * (int64_t)(n / size));
    memcpy(fields_at(f, r->block, i, 0), x + (size_t)at * n, (size_t)f->B * n);
}

/* The whole batch of a step through the micro program; returns the mean loss. */
static inline double vit_rig_step(VitRig *r, int64_t step)
{
    StepState s = { .in = { .step       = step,
                            .seed       = 12345,
                            .lr         = (float)r->g->recipe.optim.lr,
                            .inv[0]     = 1.0f / (float)vit_rig_targets(r, step),
                            .loss_scale = 1 } };
    VIT_TRY(job_upload(r->j, r->j->state, &s, STEP_UPLOAD_BYTES));
    for (int64_t b0 = 0; b0 < r->g->B; b0 += r->j->fields.B) {
        int64_t at = step * r->g->B + b0;
        fields_set_sample0(r->block, at);
        vit_rig_field(r, IMAGE_PIXELS, "pixels", "U8", at);
        vit_rig_field(r, IMAGE_LABEL, "label", "I32", at);
        vit_rig_field(r, IMAGE_LABEL2, "label2", "I32", at);
        vit_rig_field(r, IMAGE_SHARE, "share", "F32", at);
        vit_rig_field(r, IMAGE_PARTNER, "partner", "I32", at);
        vit_rig_field(r, IMAGE_BLEND, "blend", "F32", at);
        vit_rig_field(r, IMAGE_BOX, "box", "I32", at);
        VIT_TRY(job_upload(r->j, r->j->block, r->block, r->j->fields.block_bytes));
        vit_rig_run(r, "micro-step");
    }
    VIT_TRY(job_read_state(r->j, &s));
    return s.out.sum[0] / (double)vit_rig_targets(r, step);
}

static inline float *vit_rig_read(VitRig *r, const Param *p, Column which)
{
    float *x = malloc(sizeof *x * (size_t)(p->rows * p->cols));
    CHECK(x, "out of host memory");
    VIT_TRY(job_read_param(r->j, p, which, x));
    return x;
}

/* ||a - b|| / ||b|| and max |a - b| / max |b|. */
typedef struct {
    double norm, max;
} VitDistance;

static inline VitDistance vit_distance(const float *a, const float *b, int64_t n)
{
    double dd = 0, bb = 0, dmax = 0, bmax = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = (double)a[i] - (double)b[i];
        dd += d * d;
        bb += (double)b[i] * (double)b[i];
        dmax = fmax(dmax, fabs(d));
        bmax = fmax(bmax, fabs((double)b[i]));
        if (!isfinite(a[i])) return (VitDistance){ INFINITY, INFINITY };
    }
    CHECK(bb > 0, "the reference is all zero: nothing would be compared");
    return (VitDistance){ sqrt(dd / bb), dmax / bmax };
}

#endif
