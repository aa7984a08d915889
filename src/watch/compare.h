/* Compare: several runs as one table: where they are, how fast, what they cost, and which recipe keys
 * differ. */
#ifndef WATCH_COMPARE_H
#define WATCH_COMPARE_H

#include <stdio.h>

enum { COMPARE_RUNS = 16 };

typedef struct {
    const char *base, *name; /* the folder above the run, and the run */
} CompareRun;

/* as_json: an object a line instead of a table. Negative after err_user() or err_set(). */
int compare_print(const CompareRun *run, int n, int as_json, FILE *out);
/* Loss, the measure that counts and the rate of all runs over their steps, as an SVG file. Negative after
 * err_user() or err_set(). */
int compare_picture(const CompareRun *run, int n, const char *path);

#endif
