/* Tracer: records `trace` steps of a run op by op, and writes them as trace.json for Chrome's tracing page or
 * Perfetto.
 *
 * 1. The device rests at three points (train_is_trace_edge): where the recorder is switched on, where the
 *    warm-up ends, and where the trace ends. After that nothing of the recorder is left at work.
 * 2. Each event is complete: ph X, ts and dur in microseconds from the beginning of the first kept step, pid,
 *    tid, name. args has the op's kind, its tensors with shapes, FLOPs and the kernel.
 * 3. The file has at most TRACER_EVENTS ops and kernels; otherData.left_out says how many more there were.
 *    Beside them the first step has the planned memory as counters (ph C).
 * 4. Nothing here fails a run. */
#ifndef WATCH_TRACER_H
#define WATCH_TRACER_H

#include "task/job.h"
#include "watch/facts.h"

/* Shorter pauses of the device are launch gaps; longer ones are waiting. */
#define TRACER_GAP_S 1e-3

enum { TRACER_EVENTS = 100000, TRACER_STEPS = 1000 };

typedef struct Tracer Tracer;

/* first_step: steps that were done before this start. NULL: the recipe asks for no trace, or no memory. */
Tracer *tracer_create(const Recipe *r, int64_t first_step);
void    tracer_destroy(Tracer *t);

/* The run goes back to this step. A trace under way is thrown away, and begins anew where it began. One that
 * is done stays. */
void tracer_rewind(Tracer *t, Dev *dev, int64_t step);
/* The run has ended after this step: says so if that was before the trace's end. */
void tracer_end(Tracer *t, Dev *dev, int64_t step);

void tracer_step(Tracer *t, int64_t step, double done_s);
/* The device rests after so many steps. 1: the trace has just ended, and its sums are in *sums; the file is
 * at path. */
int tracer_rest(Tracer *t, Job *job, int64_t step, const char *path, FactsTrace *sums);

#endif
