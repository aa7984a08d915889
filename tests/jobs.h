/* Jobs: programs of a Job by name, and a language model's step without loader and schedule. */
#ifndef TESTS_JOBS_H
#define TESTS_JOBS_H

#include "base/err.h"
#include "data/windows.h"
#include "task/lm.h"

#include <stdlib.h>
#include <string.h>

/* The program of that name; NULL: the job has none. */
static inline Prog *job_prog(const Job *j, const char *name)
{
    for (int i = 0; i < j->n_prog; i++) {
        if (strcmp(prog_name(j->prog[i]), name) == 0) return j->prog[i];
    }
    return NULL;
}

/* Gradients of ids below 300 that depend on the step's number; they add up. add: the losses, too. */
static inline void job_micro_step(Job *j, int64_t step, int add)
{
    char    *raw    = calloc(1, tensor_bytes(j->block));
    int32_t *tok    = (int32_t *)(raw + j->fields.offset[WINDOW_TOK]);
    int32_t *target = (int32_t *)(raw + j->fields.offset[WINDOW_TARGET]);
    int64_t  n      = j->fields.B * j->recipe.model.context;
    for (int64_t i = 0; i < n; i++) {
        tok[i]    = (int32_t)((i * 31 + step * 17) % 300);
        target[i] = (int32_t)((i * 31 + step * 17 + 31) % 300);
    }
    StepState s;
    CHECK(job_read_state(j, &s) == 0, "%s", err_get());
    s.in = (StepIn){ .step = step, .seed = 1, .lr = 1e-2f, .inv[0] = 1.0f / (float)n, .loss_scale = 1 };
    if (!add) s.out.sum[0] = 0;
    CHECK(job_write_state(j, &s) == 0 && job_upload(j, j->block, raw, tensor_bytes(j->block)) == 0 &&
              prog_run(job_prog(j, "micro-step"), j->dev) == 0 && j->dev->vt->sync(j->dev) == 0,
          "%s", err_get());
    free(raw);
}

/* One optimizer step on them. */
static inline void job_train_step(Job *j, int64_t step)
{
    job_micro_step(j, step, 0);
    CHECK(prog_run(job_prog(j, "update"), j->dev) == 0 && j->dev->vt->sync(j->dev) == 0, "%s", err_get());
}

#endif
