/* Planfacts: what a plan and this host say about a run, as facts (watch/facts.h). */
#ifndef WATCH_PLANFACTS_H
#define WATCH_PLANFACTS_H

#include "run/setup.h"
#include "watch/facts.h"

/* Fills measures, plan and host, but for the loader, which starts more threads when they are needed. */
void planfacts_fill(RunFacts *f, const Setup *s);
/* Seconds of a step that are spent on computing again, at the machine's rates. */
double planfacts_repeat_s(const Job *j, const Machine *m);

#endif
