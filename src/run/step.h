/* Step: one optimizer step, from batches on the host to a result read back one step late.
 *
 * step_begin() queues StepIn, then for every micro-batch its upload and the micro program, then the update and a small copy
 * of StepOut into a ring of pinned memory; it does not wait. step_result() waits for the copy of a given step. At most
 * STEP_RING steps are in flight. When a step ended is noted as soon as the host learns of it, not when its result is read: a
 * device that works while step_begin() runs, or a next step of many micro-batches, would make that one step late.
 *
 * Several ranks (Build.comm) take the micro-batches of a step in turn; the last one of each rank sums over ranks. Samples,
 * random draws and the divisor of the loss are those of the whole step, so every rank makes the same update as one rank
 * alone would, to the order of summation. When one has no batch because its data cannot be read, all fail together with its
 * message, before any of them waits for a sum: the steps begun before can still be finished and saved. */
#ifndef RUN_STEP_H
#define RUN_STEP_H

#include "data/loader.h"
#include "run/build.h"

enum { STEP_RING = 4 };

typedef struct {
    Build   *build;
    Loader  *loader;
    int64_t  n_micro;         /* of this rank */
    int64_t  sample_per_step; /* of all ranks */
    void   **slots;           /* pinned batch buffers, n_slot of them */
    int      n_slot;
    int      held[8]; /* loader slots whose upload may still be in flight, oldest first */
    int      n_held;
    int      data_failed;       /* 1: all ranks know that one of them had no batch */
    int      may_leave;         /* 1: step_begin() gives up when a signal asks to stop */
    StepIn  *in;                /* pinned, STEP_RING entries of StepIn and cleared sums */
    StepOut *out;               /* pinned, STEP_RING */
    double   done_s[STEP_RING]; /* clock_now_s() when the step had ended; 0: not seen yet */
} Stepper;

/* Allocates pinned buffers. The loader is created by stepper_attach(). */
int  stepper_init(Stepper *s, Build *b, int depth);
void stepper_deinit(Stepper *s);

/* Starts (or restarts) reading at a sample. skip may be NULL. */
int stepper_attach(Stepper *s, const Source *src, int64_t first_sample, const SampleRange *skip, int n_skip);

/* 1: given up between two micro-batches because of a signal (may_leave). Such a step has changed neither weights nor moments,
 * and no other can follow it. */
int step_begin(Stepper *s, int64_t step, double lr);
int step_result(Stepper *s, int64_t step, StepOut *out);
/* clock_now_s() at the end of a step whose result was read. */
double step_done_s(const Stepper *s, int64_t step);

/* Mean loss over n_batch validation batches, of which each rank takes its share; waits. */
int step_evaluate(Stepper *s, Loader *val, int64_t n_batch, double *loss);

/* Settings for a loader over this build's batches. */
LoaderConfig stepper_loader_config(const Stepper *s, void *const *slots, int n_slot);

#endif
