#include "watch/tracesum.h"

#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "dev/op.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static TraceRow *find_row(TraceSum *t, const char *kind, const char *name, int again)
{
    char k[TRACESUM_NAME], what[TRACESUM_NAME - 8];
    str_quote(k, sizeof k, kind, strlen(kind));
    name = op_label_part(name);
    str_quote(what, sizeof what, name, strlen(name));
    for (int i = 0; i < t->n_row; i++) {
        TraceRow *r = &t->row[i];
        size_t    n = strlen(what);
        if (strcmp(r->kind, k) == 0 && strncmp(r->what, what, n) == 0 &&
            strcmp(r->what + n, again ? " again" : "") == 0)
            return r;
    }
    if (t->n_row == TRACESUM_ROWS) return NULL;
    TraceRow *r = &t->row[t->n_row++];
    *r          = (TraceRow){ 0 };
    str_copy(r->kind, sizeof r->kind, k);
    snprintf(r->what, sizeof r->what, "%s%s", what, again ? " again" : "");
    return r;
}

static double number_of(json_t *o, const char *key)
{
    json_t *x = json_object_get(o, key);
    double  v = json_is_number(x) ? json_number_value(x) : NAN;
    return isfinite(v) && fabs(v) < 1e18 ? v : NAN; /* microseconds: more than any clock shows */
}

static const char *text_of(json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "";
}

typedef struct {
    double begin, end;
} Span;

static int by_begin(const void *a, const void *b)
{
    double x = ((const Span *)a)->begin, y = ((const Span *)b)->begin;
    return x < y ? -1 : x > y;
}

/* 1: a complete event, which has a beginning and a duration. */
static int is_span(json_t *e)
{
    return strcmp(text_of(e, "ph"), "X") == 0 && !isnan(number_of(e, "ts")) && number_of(e, "dur") >= 0;
}

/* Clocks of other tools begin anywhere. */
static double first_ts(json_t *all)
{
    size_t  i;
    json_t *e;
    double  first = INFINITY;
    json_array_foreach(all, i, e)
    {
        if (is_span(e)) first = MIN(first, number_of(e, "ts"));
    }
    return first;
}

static void take_event(TraceSum *t, json_t *e, double zero, Span *span, size_t *n)
{
    double      ts = number_of(e, "ts") - zero, dur = number_of(e, "dur");
    const char *cat = text_of(e, "cat");
    if (!is_span(e)) return;
    if (strcmp(cat, "step") == 0) {
        t->n_step++;
        t->steps_us = MAX(t->steps_us, ts + dur);
        return;
    }
    json_t   *args  = json_object_get(e, "args");
    double    flops = number_of(args, "flops");
    TraceRow *r     = find_row(t, cat, text_of(e, "name"), json_is_true(json_object_get(args, "again")));
    span[(*n)++]    = (Span){ ts, ts + dur };
    if (!r) {
        t->more_us += dur;
        return;
    }
    r->time_us += dur;
    if (number_of(args, "part") > 0) return; /* another kernel of the same call */
    r->n++;
    r->flops += isnan(flops) ? 0 : flops;
}

static int by_time(const void *a, const void *b)
{
    double x = ((const TraceRow *)a)->time_us, y = ((const TraceRow *)b)->time_us;
    return x < y ? 1 : x > y ? -1 : 0;
}

static double share_of(double us, const TraceSum *t) { return t->steps_us > 0 ? us / t->steps_us : 0; }

static void sum_up(TraceSum *t, Span *span, size_t n)
{
    double end = 0;
    if (n > 0) qsort(span, n, sizeof *span, by_begin);
    for (size_t i = 0; i < n; i++) {
        t->busy_us += MAX(0, span[i].end - MAX(end, span[i].begin));
        end = MAX(end, span[i].end);
    }
    t->steps_us = MAX(t->steps_us, end);
    t->idle_us  = MAX(0, t->steps_us - t->busy_us);
    qsort(t->row, (size_t)t->n_row, sizeof t->row[0], by_time);
}

int tracesum_read(TraceSum *t, const char *name, const char *text, size_t n)
{
    json_error_t why;
    char         shown[128];
    size_t       i, used = 0;
    json_t      *e;
    memset(t, 0, sizeof *t);
    json_t *root = json_loadb(text, n, 0, &why);
    if (!root)
        return err_user("%s:%d: not JSON: %s", name, why.line,
                        str_quote(shown, sizeof shown, why.text, strlen(why.text)));
    json_t *all  = json_is_array(root) ? root : json_object_get(root, "traceEvents");
    Span   *span = mem_zeroed(json_array_size(all) + 1, sizeof *span);
    int     rc   = span ? 0 : err_sys("%s: memory for its events", name);
    if (rc == 0 && !json_is_array(all)) rc = err_user("%s: no trace: it has no traceEvents", name);
    double zero = first_ts(all);
    json_array_foreach(all, i, e)
    {
        if (rc == 0) take_event(t, e, zero, span, &used);
    }
    double left = number_of(json_object_get(root, "otherData"), "left_out");
    t->left_out = isnan(left) ? 0 : left;
    if (rc == 0) sum_up(t, span, used);
    if (rc == 0 && used == 0)
        rc = err_user("%s: no trace: nothing in it has a beginning and a duration", name);
    free(span);
    json_decref(root);
    return rc;
}

void tracesum_print(const TraceSum *t, FILE *out)
{
    double steps = MAX(t->n_step, 1), sum = t->more_us, most = 0; /* FLOPs a microsecond */
    for (int i = 0; i < t->n_row; i++) most = MAX(most, t->row[i].flops / MAX(t->row[i].time_us, 1e-9));
    int is_tera = most >= 1e6;
    fprintf(out, "%-16s %-24s %8s %10s %6s %9s\n", "op", "where", "calls", t->n_step > 0 ? "ms/step" : "ms",
            "share", is_tera ? "TFLOP/s" : "GFLOP/s");
    for (int i = 0; i < t->n_row; i++) {
        const TraceRow *r = &t->row[i];
        sum += r->time_us;
        fprintf(out, "%-16s %-24s %8.4g %10.3f %5.1f%%", r->kind, r->what, r->n / steps,
                1e-3 * r->time_us / steps, 100 * share_of(r->time_us, t));
        if (r->flops > 0) fprintf(out, " %9.4g", r->flops / r->time_us * (is_tera ? 1e-6 : 1e-3));
        fprintf(out, "\n");
    }
    if (t->more_us > 0) fprintf(out, "%-50s %10.3f\n", "more", 1e-3 * t->more_us / steps);
    fprintf(out, "\n");
    if (t->n_step > 0) {
        fprintf(out, "%d step%s of", t->n_step, str_plural(t->n_step));
    } else {
        fprintf(out, "no steps are marked, all of it is");
    }
    fprintf(out, " %.3f ms: %.3f ms busy (%.1f %%), %.3f ms idle; spans add up to %.3f ms\n",
            1e-3 * t->steps_us / steps, 1e-3 * t->busy_us / steps, 100 * share_of(t->busy_us, t),
            1e-3 * t->idle_us / steps, 1e-3 * sum / steps);
    if (t->left_out > 0)
        fprintf(out, "%.0f events had no room in the file: the sums are too small\n", t->left_out);
}

int tracesum_print_json(const TraceSum *t, FILE *out)
{
    JsonOut o;
    double  steps = MAX(t->n_step, 1);
    json_out_init_file(&o, out);
    json_out_object(&o, NULL);
    json_out_int(&o, "steps", t->n_step);
    json_out_num(&o, "step_ms", 1e-3 * t->steps_us / steps);
    json_out_num(&o, "busy_ms", 1e-3 * t->busy_us / steps);
    json_out_num(&o, "idle_ms", 1e-3 * t->idle_us / steps);
    json_out_num(&o, "left_out", t->left_out);
    json_out_array(&o, "ops");
    for (int i = 0; i < t->n_row; i++) {
        json_out_object(&o, NULL);
        json_out_str(&o, "op", t->row[i].kind);
        json_out_str(&o, "where", t->row[i].what);
        json_out_num(&o, "calls", t->row[i].n / steps);
        json_out_num(&o, "ms", 1e-3 * t->row[i].time_us / steps);
        json_out_num(&o, "tflops", t->row[i].flops > 0 ? t->row[i].flops / t->row[i].time_us * 1e-6 : NAN);
        json_out_close(&o);
    }
    return json_out_end(&o);
}
