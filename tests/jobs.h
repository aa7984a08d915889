/* Jobs: programs of a Job by name. */
#ifndef TESTS_JOBS_H
#define TESTS_JOBS_H

#include "task/lm.h"

#include <string.h>

/* The program of that name; NULL: the job has none. */
static inline Prog *job_prog(const Job *j, const char *name)
{
    for (int i = 0; i < j->n_prog; i++) {
        if (strcmp(prog_name(j->prog[i]), name) == 0) return j->prog[i];
    }
    return NULL;
}

#endif
