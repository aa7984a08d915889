/* Tracesum: where the steps of a trace (trace.json, watch/tracer.h) spent their time. Reads any Chrome trace;
 * events that are not complete, or have no time, are passed over. */
#ifndef WATCH_TRACESUM_H
#define WATCH_TRACESUM_H

#include <stddef.h>
#include <stdio.h>

enum { TRACESUM_ROWS = 256, TRACESUM_NAME = 48 };

typedef struct {
    char kind[TRACESUM_NAME],
        what[TRACESUM_NAME]; /* "linear_fwd", "qkv": the same op of all blocks is one row */
    double n, time_us, flops;
} TraceRow;

typedef struct {
    int      n_step;
    double   steps_us; /* from the beginning of the first step to the end of the last */
    double   busy_us;  /* of these, with something at work */
    double   idle_us;
    double   left_out; /* events that the file has no room for */
    TraceRow row[TRACESUM_ROWS];
    int      n_row; /* sorted by time; what finds no row is in `more_us` */
    double   more_us;
} TraceSum;

/* name: for messages. Negative after err_user(). */
int  tracesum_read(TraceSum *t, const char *name, const char *text, size_t n);
void tracesum_print(const TraceSum *t, FILE *out);
int  tracesum_print_json(const TraceSum *t, FILE *out); /* negative after err_set() */

#endif
