/* Bench of ops: the table of `brim bench --ops`. It sets the time of each op alone beside the time that the
 * measured rates allow. */
#ifndef BENCH_BENCH_OPS_H
#define BENCH_BENCH_OPS_H

#include "bench/bench.h"

/* Times the ops of a bound Job and prints a row for each kind and place, the slowest first. b has the rates
 * and the time of a whole step. The Job trains meanwhile: real steps make the numbers real ones. Negative
 * after err_set(). */
int bench_ops_print(Setup *s, const Recipe *r, const BenchResult *b, FILE *out);

#endif
