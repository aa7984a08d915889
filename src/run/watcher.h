/* Watcher: who looks on while a run trains. src/watch has one; the program hands it to train_run().
 *
 * 1. Rank 0 alone calls it, from the thread that trains. None of it can fail the run. Only rest() may
 *    use the device and wait for it.
 * 2. A function may be NULL. */
#ifndef RUN_WATCHER_H
#define RUN_WATCHER_H

#include "base/json.h"
#include "run/setup.h"

#include <stdint.h>

typedef struct {
    const char  *name, *dir;     /* of the run: "mine", "runs/mine" */
    const char  *device;         /* the device's name, for people */
    int          cuda_index;     /* below 0: the CPU computes */
    int          world;          /* ranks */
    int64_t      first_step;     /* steps done before */
    int64_t      steps;          /* that the recipe asks for */
    const char  *unit;           /* what is counted, in the singular: "image" */
    double       units_per_step; /* over all ranks */
    int          loader_threads; /* that fill batches now; 0: they are filled in line */
    const Setup *setup;          /* device, plan and programs; NULL: not known */
} WatcherRun;

typedef struct {
    int64_t step;
    double  done_s;         /* clock_now_s() at its end */
    double  data_fill_s;    /* of this start: what the loader's threads worked for the batches taken */
    double  eval_s, save_s; /* of this start: evaluating, and the device at rest for checkpoints */
    int     loader_threads; /* that fill batches by now */
} WatcherStep;

typedef struct {
    void *self;
    void (*begin)(void *self, const WatcherRun *run); /* its files are open; what run points to stays */
    /* A line of metrics.jsonl, still open: fields may be added. A step's line has "loss", an evaluation's
     * has not. */
    void (*line)(void *self, JsonOut *o, int64_t step, int is_step);
    void (*step)(void *self, const WatcherStep *s); /* a step has ended, and its result is known */
    /* The device rests after a step: at an evaluation, a save, an edge of the trace. is_eval: the measures of
     * this step are new. The job may be used, not changed. */
    void (*rest)(void *self, Job *job, int64_t step, int is_eval);
    int (*enough)(void *self);                /* 1: the run may end now; asked after every step */
    void (*rewind)(void *self, int64_t step); /* the run goes back: steps after this one will be done again */
    void (*end)(void *self);                  /* also after a failure; before the run's files are closed */
} Watcher;

#endif
