/* Divide: how much of a step the threads of a CPU share.
 *
 * 1. The CPU backend divides an op among its threads only if the op is large enough (dev/cpu/cpu.h). The
 *    other ops take as long with any number of threads. So a tiny net gains little from a second thread.
 * 2. Waking the threads takes time, too. It takes at most what they save of the smallest op that is divided:
 *    else the backend would divide larger ops alone. So a step is known between two bounds.
 * 3. Seconds are those of the plan, by the rates of one thread. Only their ratios mean something. */
#ifndef WATCH_DIVIDE_H
#define WATCH_DIVIDE_H

#include "task/job.h"

typedef struct {
    double n_op, n_shared;    /* ops of a step; those of them that threads share */
    double alone_s, shared_s; /* one thread computes the ops that are not shared, and those that are */
    double wake_s;            /* one thread computes the smallest op that is shared */
    int    has_host;          /* 1: the host works between the ops of a step */
} Divide;

void divide_of(Divide *d, const Job *j);
/* Seconds of the ops of a step with so many threads. wake 0: waking them takes no time; 1: the most that it
 * can take. */
double divide_step_s(const Divide *d, double threads, double wake);

#endif
