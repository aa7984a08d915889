/* Metrics: one JSON object a line in metrics.jsonl; other programs read it while the run goes on.
 *
 * 1. A disk that takes nothing never fails the run: its lines are kept, as many as fit into METRICS_KEPT
 *    bytes, and written once it does. Both are said in the log.
 * 2. A line is in the file whole or not at all. */
#ifndef RUN_METRICS_H
#define RUN_METRICS_H

#include "run/watcher.h"
#include "task/task.h"

#include <stddef.h>
#include <stdint.h>

enum { METRICS_KEPT = 1 << 20, METRICS_LINE = 4096 };

typedef struct {
    const char *path; /* borrowed */
    int         fd;
    int         is_open;
    char       *kept; /* lines that are not in the file yet */
    size_t      n_kept;
    int64_t     n_lost; /* lines that did not even fit into kept */
    int         failing;
    Watcher     watcher; /* sees every line before it is written; zeroed: nobody */
} Metrics;

typedef struct {
    int64_t    step; /* updates done */
    double     lr, per_s;
    double     mfu;                       /* NAN: the peak of the device is not known */
    double     time_s;                    /* training seconds of the run at the end of the step */
    double     data_wait_s;               /* of these, waiting for the loader; of this start alone */
    int        n_report[LOSS_SLOTS];      /* updates of the step that had each loss */
    int        is_bad;                    /* 1: an update of the step was skipped */
    int        overflowed;                /* 1: for an overflow alone, which is no failure */
    TaskNumber number[TASK_STEP_NUMBERS]; /* the task's own */
    int        n_number;
} MetricsStep;

/* Opens for appending; path must outlive it. Negative after err_set(). */
int  metrics_open(Metrics *m, const char *path);
void metrics_close(Metrics *m); /* tries to write what was kept; nothing for a zeroed or closed one */
/* Goes on with the file that has the path now; when that cannot be, with the old one, and says so. */
void metrics_reopen(Metrics *m);

/* {"step","loss","lr","grad_norm","per_s","mfu","time_s","data_wait_s"}, and behind them
 *   what the watcher adds
 *   "loss_scale"  if gradients are scaled
 *   "skipped"     why, if the update was skipped
 *   each loss by name, if the task has several: its mean over the updates of the step that have it, with its
 *                 weight */
void metrics_step(Metrics *m, const Task *t, const MetricsStep *s, const StepOut *out);
/* {"step","val_NAME" for each measure of the task and each number that follows from them,"time_s"} */
void metrics_eval(Metrics *m, const Task *t, const Recipe *r, int64_t step, const TaskEval *e, double time_s);

/* Why a step counts as skipped: StepOut.skip of its last update in words. */
const char *metrics_skip_name(int skip);

#endif
