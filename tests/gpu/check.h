/* A few lines of test harness for the GPU machine, where no test library is installed. Prints "ok NAME" /
 * "not ok NAME". */
#ifndef TESTS_GPU_CHECK_H
#define TESTS_GPU_CHECK_H

#include "base/err.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct {
    int passed, failed;
} Tally;

static inline void tally(Tally *t, int ok, const char *fmt, ...)
{
    va_list ap;
    printf("%s ", ok ? "ok" : "not ok");
    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
    if (!ok && err_kind() != ERR_NONE) printf(": %s", err_get());
    printf("\n");
    fflush(stdout);
    err_clear();
    *(ok ? &t->passed : &t->failed) += 1;
}

static inline int tally_end(const Tally *t)
{
    printf("%d passed, %d failed\n", t->passed, t->failed);
    return t->failed != 0;
}

/* ||a - b|| / ||b||; NaN anywhere gives NaN, which no bound accepts. */
static inline double rel_error(const float *a, const float *b, size_t n)
{
    double num = 0, den = 0;
    for (size_t i = 0; i < n; i++) {
        double d = (double)a[i] - (double)b[i];
        num += d * d;
        den += (double)b[i] * (double)b[i];
    }
    return den > 0 ? sqrt(num / den) : sqrt(num);
}

#endif
