#include "bench/bench_ops.h"

#include "base/clock.h"
#include "base/err.h"
#include "bench/limit.h"
#include "run/step.h"

#include <stdlib.h>
#include <string.h>

enum { OPS_ROWS = 160 };

typedef struct {
    const char *kind;
    char        what[40];
    double      time_s, flops, bytes, limit_s;
    int         n;
} OpRowTime;

static int by_time(const void *a, const void *b)
{
    double x = ((const OpRowTime *)a)->time_s, y = ((const OpRowTime *)b)->time_s;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* Before a GPU has settled, the ops at the list's beginning would look faster than those at its end. One
 * process only: ranks would not agree on how often. */
static int settle_clock(Prog *p, Dev *dev)
{
    double start = clock_now_s();
    do {
        TRY(prog_run(p, dev));
        TRY(dev->vt->sync(dev));
    } while (clock_now_s() - start < dev->vt->hints->settle_s);
    return 0;
}

/* One time per op, the mean of several where that is cheap. */
static int time_ops(Prog *p, Dev *dev, DevOpTime *mean, DevOpTime *once)
{
    int passes = dev->vt->hints->op_passes;
    for (int pass = 0; pass < passes; pass++) {
        TRY(prog_time(p, dev, once));
        for (int i = 0; i < prog_n_op(p); i++) mean[i].time_us += once[i].time_us / passes;
    }
    return 0;
}

/* The table as it grows over the rows of the step schedule. */
typedef struct {
    Setup        *setup;
    const Recipe *recipe;
    const double *rate;
    OpRowTime     row[OPS_ROWS];
    int           n, rc;
    double        more_s; /* of ops that found no row */
} OpsTable;

/* The same op of all blocks is one row. NULL: the table is full. */
static OpRowTime *find_row(OpsTable *t, const Op *op)
{
    char what[40];
    snprintf(what, sizeof what, "%s%s", op_label_part(op->label), op->recompute ? " again" : "");
    for (int k = 0; k < t->n; k++) {
        if (strcmp(t->row[k].what, what) == 0 && t->row[k].kind == op_table[op->kind].name) return &t->row[k];
    }
    if (t->n == OPS_ROWS) return NULL;
    OpRowTime *row = &t->row[t->n++];
    *row           = (OpRowTime){ .kind = op_table[op->kind].name };
    memcpy(row->what, what, sizeof what);
    return row;
}

static int collect(OpsTable *t, Prog *p, double times)
{
    int        n    = prog_n_op(p);
    DevOpTime *mean = calloc(2 * (size_t)n + 1, sizeof *mean);
    if (!mean) return err_set("out of host memory");
    int rc = time_ops(p, t->setup->dev, mean, mean + n);
    for (int i = 0; rc == 0 && i < n; i++) {
        const Op  *op  = prog_op(p, i);
        OpRowTime *row = find_row(t, op);
        if (!row) t->more_s += times * mean[i].time_us * 1e-6;
        if (!row) continue;
        row->time_s += times * mean[i].time_us * 1e-6;
        row->flops += times * op_flops(op->kind, &op->args);
        row->bytes += times * op_bytes(op->kind, &op->args);
        row->limit_s += times * limit_op_time(op, t->rate);
        row->n += (int)times;
    }
    free(mean);
    return rc;
}

/* One real step, so that ops timed afterwards meet real numbers and an update that is not skipped. */
static int bench_one_step(Setup *s, const Recipe *r)
{
    Stepper stepper;
    Source *src = NULL;
    StepOut result;
    int     rc = stepper_init(&stepper, s->job, 1);
    if (rc == 0) rc = s->job->task->open_train(&src, r);
    if (rc == 0) rc = stepper_attach(&stepper, src, 0, NULL, 0);
    if (rc == 0) rc = step_begin(&stepper, 0, 1e-4);
    if (rc == 0) rc = step_result(&stepper, 0, &result);
    stepper_deinit(&stepper);
    source_close(src);
    return rc;
}

static void print_rows(const BenchResult *b, const OpRowTime *row, int n, double sum, double limit, FILE *out)
{
    fprintf(out, "%-15s %-20s %6s %10s %6s %9s %8s %7s\n", "op", "where", "calls", "ms/step", "share",
            b->hints->flops_name, "GB/s", "limit");
    int cached = 0;
    for (int i = 0; i < n; i++) {
        const OpRowTime *o     = &row[i];
        int              above = o->limit_s > o->time_s;
        cached |= above;
        fprintf(out, "%-15s %-20s %6d %10.3f %5.1f%% %9.1f %8.0f %6.0f%%%s\n", o->kind, o->what, o->n,
                o->time_s * 1e3, 100 * o->time_s / sum, o->flops / o->time_s / b->hints->flops_unit,
                o->bytes / o->time_s * 1e-9, 100 * MIN(o->limit_s / o->time_s, 1), above ? " *" : "");
    }
    fprintf(out, "%-36s %6s %10.3f %6s %9s %8s %6.0f%%   (step as a whole: %.3f ms)\n", "sum, each op alone",
            "", sum * 1e3, "", "", "", 100 * limit / sum, b->step_s * 1e3);
    if (cached)
        fprintf(
            out,
            "* faster than the measured rates: alone, the op finds its data in a cache; counted as 100 %%\n");
}

/* Ops of one program are timed alone, again and again; a real step before each makes the numbers real
 * ones. */
static void time_row(void *ctx, const ScheduleRow *row, double times)
{
    OpsTable *t   = ctx;
    Dev      *dev = t->setup->dev;
    Prog     *p   = t->setup->job->prog[row->prog];
    if (t->rc < 0 || times < 1) return;
    if (t->n == 0 || dev->vt->hints->settle_s > 0) t->rc = bench_one_step(t->setup, t->recipe);
    if (t->rc == 0 && t->n == 0 && dev->vt->hints->settle_s > 0) t->rc = settle_clock(p, dev);
    if (t->rc == 0) t->rc = collect(t, p, times);
}

int bench_ops_print(Setup *s, const Recipe *r, const BenchResult *b, FILE *out)
{
    OpsTable *t   = calloc(1, sizeof *t);
    double    sum = 0, limit = 0;
    if (!t) return err_set("out of host memory");
    t->setup  = s;
    t->recipe = r;
    t->rate   = b->rate;
    schedule_each(&s->job->step, time_row, t);
    int        rc = t->rc, n = t->n;
    OpRowTime *row = t->row;
    qsort(row, (size_t)n, sizeof *row, by_time);
    for (int i = 0; i < n; i++) {
        sum += row[i].time_s;
        limit += MIN(row[i].limit_s, row[i].time_s);
    }
    if (rc == 0) print_rows(b, row, n, sum, limit, out);
    if (rc == 0 && t->more_s > 0)
        fprintf(out, "%.3f ms more, of ops that have no room in this table\n", t->more_s * 1e3);
    free(t);
    return rc;
}
