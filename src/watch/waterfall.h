/* Waterfall: from wall time to useful work, as shares that add up to 1, over the newest rows of a run's
 * metrics.
 *
 * 1. What was not measured is no zero: it is missing, and its time is in the part that says so.
 * 2. Sources, the best first: a trace of this run (watch/tracer.h), the GPU's own counters, utilisation.
 *    `source` names the one that was used.
 * 3. Waiting for data that a GPU did not notice, because it still had work, is not counted. */
#ifndef WATCH_WATERFALL_H
#define WATCH_WATERFALL_H

#include "watch/facts.h"
#include "watch/series.h"

typedef enum {
    FALL_INPUT,
    FALL_GAPS,
    FALL_COMM,
    FALL_EVAL,
    FALL_SAVE,
    FALL_REPEAT,
    FALL_OTHER,    /* kernels without products */
    FALL_THROTTLE, /* products at a clock that power or heat holds down */
    FALL_BELOW,    /* products below their rate */
    FALL_UNSPLIT,  /* busy, and not divided further */
    FALL_REST,
    FALL_USEFUL,
    WATERFALL_PARTS
} FallPart;

/* Steps after a trace that are enough to leave it out of the window. */
enum { WATERFALL_ENOUGH = 6 };

typedef struct {
    FallPart    part;
    const char *name, *note; /* note: what makes the part large */
    const char *color;       /* "#e03131", on page and report */
    double      share;
} WaterfallPart;

/* What the rows of the newest start say, from after its first steps to the last one. Steps of a trace and
 * before it are left out if enough follow: where the recorder begins and ends, the device rests. */
typedef struct {
    int    n_step;         /* 0: too little is known, and the rest is not set */
    double wall_s;         /* of the window */
    double step_s;         /* mean, without evaluations and checkpoints */
    double wait_s, fill_s; /* a step waited for the loader; threads of the loader worked for it */
    double eval_share, save_share;
    double mfu, gpu_util, sm_active, tensor_active, dram_active;
    double power_w, power_limit_w, sm_mhz, temp_c, processes, memory_bytes;
    double cpu, own_cpu;
    char   reasons[160]; /* newest, "" */
} FallWindow;

void waterfall_window(const Series *s, const RunFacts *f, FallWindow *out);
/* Returns how many parts there are, 0 when too little is known. facts: may have nothing known. */
int waterfall_of(const Series *s, const RunFacts *f, WaterfallPart out[WATERFALL_PARTS]);
int waterfall_from(const FallWindow *w, const RunFacts *f, WaterfallPart out[WATERFALL_PARTS]);
/* "a trace", "GPU counters", "utilisation", "clocks". */
const char *waterfall_source(const FallWindow *w, const RunFacts *f);
/* Share of the executed FLOPs of the peak at the clock that was measured: what tensor activity should be.
 * NAN: not known. */
double waterfall_tensor(const FallWindow *w, const RunFacts *f);

#endif
