/* Switches: every optimisation that a recipe can turn on or off (opt.NAME), and what became of it.
 *
 * 1. "on" means used: the lowered list of a training step has it. What a recipe permits and the list lacks is
 *    "not used". The reason is read off the list before and after lowering.
 * 2. A fused product that is on may still run as its parts: a GPU takes whichever it measured to be faster,
 *    per shape. */
#ifndef RUN_SWITCHES_H
#define RUN_SWITCHES_H

#include "task/job.h"

/* One line per optimisation: on (in how many ops), off, not used or refused, and why. vt: what j was built
 * for. */
void switches_print(const Job *j, const DevVt *vt, FILE *out);

/* Is what the recipe requires so: the precision in force, and optimisations that a training step uses?
 * Without a training step (eval, sample) not being used is no failure. Also warns where `precision: fp8`
 * leaves most products as they were. why: what decided the precision. Negative after err_user(). */
int switches_check(const Job *j, const DevVt *vt, const char *why);

/* 1 with the reason in buf if the backend cannot do what opt.NAME says, else 0 and "". */
int switches_refused(const DevVt *vt, const char *name, char *buf, size_t n);

/* 1 if algorithms are timed: what was measured faster today would give other bits tomorrow. */
int switches_times(const Recipe *r);

#endif
