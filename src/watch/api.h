/* Api: what the page, Prometheus and scripts are told, as text. docs/watching.md lists the fields. */
#ifndef WATCH_API_H
#define WATCH_API_H

#include "watch/gpus.h"
#include "watch/runs.h"

#include <stdio.h>

/* {"host", "gpus", "runs"}: /api/runs and the events. */
int api_runs(const Runs *r, const Gpus *g, FILE *out);
/* One run: {"name", "epoch", "columns", "waterfall", "samples", "texts", "log"}; rows of step `from` on,
 * texts only from 0, the log from byte `log` on; log negative: without. Negative after err_set(). */
int api_run(Runs *r, RunView *v, double from, int64_t log, FILE *out);
/* Prometheus' text format. */
void api_prometheus(const Runs *r, const Gpus *g, FILE *out);

#endif
