/* Bench: a recipe's step, measured: 2 warm-up steps, then at least 5 steps and 3 seconds, median. Loader and
 * optimizer are included, evaluation and checkpoints are not. */
#ifndef BENCH_BENCH_H
#define BENCH_BENCH_H

#include "data/loader.h"
#include "run/setup.h"

/* What the GPU did meanwhile, filled by whoever watched it; NAN: n/a. Shares are fractions. */
typedef struct {
    double utilisation, power_w, sm_mhz, sm_active, tensor_active, dram_active, joules_per_unit;
    char   clock_reasons[128]; /* "": n/a */
} BenchGpu;

typedef struct {
    const char *unit, *one; /* what per_s counts: the task's; in the singular */
    int64_t     step_units;
    double      per_s;
    double      step_s;
    double      mfu; /* fraction of the data-sheet bf16 peak; 0 when the peak is unknown */
    double      limit_share;
    double      rate[UNIT_COUNT]; /* measured in this run */
    size_t      slab_bytes;       /* of the plan; allocated exactly */
    /* Slabs plus what context, libraries and other processes held before them (a GPU), known before step
     * 0. */
    size_t planned_bytes;
    size_t peak_bytes; /* device total in use at the end */
    /* Free device memory after step 2 minus at the end: 0 when nothing was allocated meanwhile. */
    int64_t         drift_bytes;
    double          startup_s;       /* program start to first finished step */
    SetupTimes      setup_s;         /* part of startup_s */
    LoaderStats     data;            /* of all steps, the warm-up included */
    char            data_words[256]; /* where the time of a sample went; "": nothing to say */
    double          loss;
    int             n_step;
    int64_t         micro_batch; /* chosen, samples */
    const char     *recompute;   /* chosen: "none", "cheap" or "block" */
    const DevHints *hints;       /* of the device it ran on */
    char            device[128]; /* its name, DevInfo */
    const char     *precision;   /* used: "fp32", "tf32", "bf16", "fp16" or "fp8" */
    double          gap_share;   /* of three more steps, recorded: part with nothing at work; NAN: n/a */
    BenchGpu        gpu;         /* all n/a from bench_run() */
} BenchResult;

/* For watching from a higher layer: phase(ctx, 1) is called right before the first timed step and phase(ctx,
 * 0) right after the last; not the latter when a step fails. */
typedef struct {
    void (*phase)(void *ctx, int begin);
    void *ctx;
} BenchHooks;

typedef struct {
    double            begin_s;       /* clock_now_s() at program start */
    int               measure_limit; /* 0 leaves limit_share 0 and gap_share n/a */
    int               print_ops;
    FILE             *report;  /* NULL: none */
    const BenchHooks *hooks;   /* NULL: none */
    double            least_s; /* timed seconds at least; 0: 3 */
    double            most_s;  /* after so many timed seconds two steps are enough; 0: the rule above */
} BenchOptions;

int bench_run(BenchResult *out, const Task *task, const Recipe *r, const BenchOptions *opt);

/* One line, docs/formats.md. Numbers that are not known are null. */
void bench_print_json(const BenchResult *b, const Recipe *r, FILE *out);

#endif
