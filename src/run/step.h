/* Step: one walk of the step schedule, from batches on the host to a result read back one step late.
 *
 * 1. step_begin() queues StepIn, walks the rows of the schedule, and queues a small copy of StepOut into a
 *    ring of pinned memory. The host waits there only where a row makes it wait: for room in the feed, in a
 *    host call, or for `until`. step_result() waits for the copy of a given step. At most STEP_RING steps are
 *    in flight.
 * 2. Each step has an end mark of its own. The host notes the time when it first sees that mark passed, not
 *    when it reads the step's result.
 * 3. Several ranks (Job.comm) take the micro-batches of a step in turn; rows with sums add up over ranks.
 *    Samples, random draws and divisors are those of the whole step. So the ranks together make the update
 *    that one rank alone would make, to the order of summation.
 * 4. A step that fails leaves the task's own state as it was. Where an update or another program that feeds
 *    nothing ran before, the device's state belongs to no step any more (is_mixed).
 * 5. If one rank cannot read its data, all ranks fail together with its message, before any of them waits for
 *    a sum. So the steps begun before can still be finished and saved. */
#ifndef RUN_STEP_H
#define RUN_STEP_H

#include "run/feed.h"

enum { STEP_RING = 4 };

typedef struct {
    Job               *job;
    Feed               feed;
    const Source      *src;
    int64_t            sample_per_step; /* of all ranks */
    int64_t            next_sample;     /* used samples before the next step */
    const SampleRange *skip;            /* as given to stepper_attach() */
    int                n_skip;
    void              *scratch;          /* the source's, for targets that must be counted */
    int                data_failed;      /* 1: all ranks know that one of them had no batch */
    int                is_mixed;         /* 1: a step failed in its middle: the device must not be saved */
    void              *own_before;       /* Job.own_state at the begin of the step */
    unsigned           adds[JOB_PROGS];  /* slots of the losses that a program adds up, as bits */
    int                clips[JOB_PROGS]; /* 1: a program is an update */
    int                n_report[STEP_RING][LOSS_SLOTS];
    void              *in;                /* pinned, STEP_RING entries of StepIn and cleared sums */
    StepOut           *out;               /* pinned, STEP_RING */
    int32_t           *flag;              /* pinned, for rows with until */
    double             done_s[STEP_RING]; /* clock_now_s() when the step had ended; 0: not seen yet */
} Stepper;

/* Allocates pinned buffers. */
int  stepper_init(Stepper *s, Job *j, int depth);
void stepper_deinit(Stepper *s);

/* Starts (or restarts) reading at a sample. src and skip are borrowed; skip may be NULL. */
int stepper_attach(Stepper *s, const Source *src, int64_t first_sample, const SampleRange *skip, int n_skip);

/* 1: given up because of a signal (Job.may_leave). Weights and moments may be those of the middle of the
 * step: no step can follow, and nothing can be saved. */
int step_begin(Stepper *s, int64_t step, double lr);
int step_result(Stepper *s, int64_t step, StepOut *out);
/* Updates of that step that had a loss in `slot`: what StepOut.report[slot] is the sum over. */
int step_reports(const Stepper *s, int64_t step, int slot);
/* clock_now_s() at the end of a step whose result was read. */
double step_done_s(const Stepper *s, int64_t step);

/* Walks the eval schedule over the samples of val, of which each rank takes its share; waits. The feed must
 * be at the first sample. 1: a signal came to one of the ranks; all of them stop, and there is no result. */
int step_evaluate(Stepper *s, Feed *val, const Source *src, TaskEval *out);

/* Who uses which of the device's marks. */
enum {
    MARK_TRAIN  = 0,                          /* slots of the training feed */
    MARK_VAL    = MARK_TRAIN + FEED_SLOTS,    /* slots of the validation feed */
    MARK_STEP   = MARK_VAL + FEED_SLOTS,      /* ends of steps, STEP_RING */
    MARK_UNTIL  = MARK_STEP + STEP_RING,      /* flags that end loops, UNTIL_LAG + 1 */
    MARK_UNPACK = MARK_UNTIL + UNTIL_LAG + 1, /* the last unpack */
    MARK_USED
};
_Static_assert((int)MARK_USED <= (int)TASK_MARK0, "more marks than a device has");

#endif
