/* Runwatch: watches a run while it trains. It adds GPU, host and energy to every line of metrics.jsonl,
 * writes watch.json and TensorBoard's files, serves the page, and writes report.html at the end. The recipe's
 * section `watch` switches each of these.
 *
 * 1. Nothing here ends a run: a failure is reported once in the log.
 * 2. Energy is that of rank 0's GPU. Units are divided by the number of ranks, so joules per unit hold if
 *    the ranks are alike; kwh is for all ranks under the same assumption. */
#ifndef WATCH_RUNWATCH_H
#define WATCH_RUNWATCH_H

#include "conf/recipe.h"
#include "run/watcher.h"

typedef struct RunWatch RunWatch;

/* Refuses a page that others could reach without a token: negative after err_user(). Not part of reading a
 * recipe, because the recipe that a run leaves behind has no token any more and must still be readable. */
int runwatch_check(const Recipe *r);

/* Borrows the recipe. nvml_path as in nvml_open(). NULL when there is no memory. */
RunWatch *runwatch_create(const Recipe *r, const char *nvml_path);
void      runwatch_destroy(RunWatch *w);

/* The run ends by itself after so many seconds of steps, once its trace is done: a look, not a training. */
void runwatch_look(RunWatch *w, double seconds);

/* What train_run() takes; valid until runwatch_destroy(). With NULL nothing is watched. */
Watcher runwatch_watcher(RunWatch *w);

#endif
