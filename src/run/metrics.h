/* Metrics: one JSON object a line in metrics.jsonl; other programs read it while the run goes on. */
#ifndef RUN_METRICS_H
#define RUN_METRICS_H

#include "dev/op.h"

#include <stdio.h>

typedef struct {
    int64_t step; /* updates done */
    double  lr, per_s, mfu, time_s;
} MetricsStep;

/* {"step","loss","lr","grad_norm","per_s","mfu","time_s"} plus "skipped": why, when the update was skipped. */
int metrics_step(FILE *f, const MetricsStep *m, const StepOut *out);
/* {"step","val_loss","time_s"} */
int metrics_eval(FILE *f, int64_t step, double val_loss, double time_s);

/* Why an update was skipped: StepOut.skip in words. */
const char *metrics_skip_name(int skip);

#endif
