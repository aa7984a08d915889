/* Report: one self-contained HTML file about one run: plots, verdict, the doctor's findings, waterfall, plan,
 * machine, recipe. It needs no script and asks no other file. */
#ifndef WATCH_REPORT_H
#define WATCH_REPORT_H

#include "watch/whatif.h"

/* Writes the report of run `name` in folder base to out, or, when out is NULL, to the run's report.html.
 * from: the run's recipe, for what the doctor says; NULL: without that. Negative after err_user() (no such
 * run) or err_set(). */
int report_write_run(const char *base, const char *name, const RecipeFrom *from, const char *out);

#endif
