/* Bench: a recipe's step, measured: 2 warm-up steps, then at least 5 steps and 3 seconds, median. Loader and optimizer are
 * included, evaluation and checkpoints are not. */
#ifndef RUN_BENCH_H
#define RUN_BENCH_H

#include "run/setup.h"

typedef struct {
    double  per_s; /* tokens per second */
    double  step_s;
    double  mfu; /* fraction of the data-sheet bf16 peak; 0 when the peak is unknown */
    double  limit_share;
    double  rate[UNIT_COUNT]; /* measured in this run */
    size_t  planned_bytes, peak_bytes;
    double  startup_s; /* program start to first finished step */
    double  loss;
    int     n_step;
} BenchResult;

/* begin_s: clock_now_s() at program start. measure_limit 0 leaves limit_share 0. */
int bench_run(BenchResult *out, const Recipe *r, double begin_s, int measure_limit, int print_ops, FILE *report);

/* FLOPs of one optimizer step as MFU counts them. */
double bench_step_flops(const Build *b);

void bench_print_json(const BenchResult *b, const Recipe *r, const char *device, const char *precision, FILE *out);

#endif
