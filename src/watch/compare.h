/* Compare: several runs as one table: where they are, how fast, what they cost, and which recipe keys
 * differ. */
#ifndef WATCH_COMPARE_H
#define WATCH_COMPARE_H

#include <stdio.h>

/* names: of runs in folder base. as_json: an object a line instead of a table. Negative after err_user()
 * or err_set(). */
int compare_print(const char *base, char *const *names, int n, int as_json, FILE *out);

#endif
