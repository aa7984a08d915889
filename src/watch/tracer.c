#include "watch/tracer.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"

#include <math.h>
#include <stdlib.h>

struct Tracer {
    int64_t  from, kept, end; /* steps done at the three points */
    int      is_on;
    double   kept_s; /* clock_now_s() at `kept` */
    double   done_s[TRACER_STEPS];
    int      n_done;
    DevTrace seen;
};

Tracer *tracer_create(const Recipe *r, int64_t first_step)
{
    Tracer *t = r->trace > 0 ? mem_zeroed(1, sizeof *t) : NULL;
    if (!t) return NULL;
    t->from = first_step + r->trace_skip;
    t->kept = t->from + r->trace_warmup;
    t->end  = t->kept + r->trace;
    if (t->end > r->steps) {
        int fits = t->end - r->trace_skip <= r->steps;
        log_warn("no trace: it would end with step %lld, and the run with step %lld (a smaller %s)",
                 (long long)t->end, (long long)r->steps, fits ? "trace_skip" : "trace");
        t->end = -1;
    }
    return t;
}

void tracer_destroy(Tracer *t)
{
    if (!t) return;
    free(t->seen.span);
    free(t);
}

void tracer_step(Tracer *t, int64_t step, double done_s)
{
    if (t && t->is_on && step > t->kept && step <= t->end && t->n_done < TRACER_STEPS)
        t->done_s[t->n_done++] = done_s;
}

/* ---- sums ---------------------------------------------------------------------------------------------- */

typedef enum {
    CLASS_TENSOR,
    CLASS_OTHER,
    CLASS_REPEAT,
    CLASS_UNNAMED,
    CLASS_COMM,
    CLASS_COPY,
    CLASSES
} Class;

static Class class_of(const DevSpan *s)
{
    if (s->lane == LANE_H2D || s->lane == LANE_D2H) return CLASS_COPY;
    if (s->lane == LANE_COMM) return CLASS_COMM;
    if (!s->op) return CLASS_UNNAMED;
    if (s->op->kind == OP_ALL_REDUCE || s->op->kind == OP_REDUCE_SCATTER || s->op->kind == OP_ALL_GATHER)
        return CLASS_COMM;
    if (s->op->recompute) return CLASS_REPEAT;
    int tensor = op_table[s->op->kind].unit != UNIT_MEMORY && op_flops(s->op->kind, &s->op->args) > 0;
    return tensor ? CLASS_TENSOR : CLASS_OTHER;
}

/* Seconds covered by spans that are sorted by beginning; with_comm 0: without communication. gap_s, or NULL:
 * adds up the short pauses between them. */
static double covered(const DevSpan *span, int64_t n, int with_comm, double *gap_s)
{
    double sum = 0, end = -INFINITY;
    for (int64_t i = 0; i < n; i++) {
        Class c = class_of(&span[i]);
        if (c == CLASS_COPY || (c == CLASS_COMM && !with_comm)) continue;
        double gap = span[i].begin_s - end;
        if (gap_s && gap > 0 && gap < TRACER_GAP_S) *gap_s += gap;
        sum += MAX(0, span[i].end_s - MAX(end, span[i].begin_s));
        end = MAX(end, span[i].end_s);
    }
    return sum;
}

/* Kernels of one lane may overlap a little: their times are scaled to what they cover together. */
static void sum_up(const Tracer *t, const DevSpan *span, int64_t n, FactsTrace *out)
{
    double each[CLASSES] = { 0 }, steps = (double)(t->end - t->kept), end = t->kept_s;
    for (int64_t i = 0; i < n; i++) {
        Class c = class_of(&span[i]);
        each[c] += span[i].end_s - span[i].begin_s;
        if (c != CLASS_COPY) end = MAX(end, span[i].end_s);
    }
    double gap = 0, busy = covered(span, n, 1, &gap), computes = covered(span, n, 0, NULL);
    double sum   = each[CLASS_TENSOR] + each[CLASS_OTHER] + each[CLASS_REPEAT] + each[CLASS_UNNAMED];
    double scale = sum > 0 ? computes / sum / steps : 0;
    *out         = (FactsTrace){ .last_step = (double)t->end,
                                 .steps     = steps,
                                 .step_s    = (end - t->kept_s) / steps,
                                 .busy_s    = busy / steps,
                                 .gap_s     = gap / steps,
                                 .tensor_s  = each[CLASS_TENSOR] * scale,
                                 .other_s   = each[CLASS_OTHER] * scale,
                                 .repeat_s  = each[CLASS_REPEAT] * scale,
                                 .unnamed_s = each[CLASS_UNNAMED] * scale,
                                 .comm_s    = (busy - computes) / steps,
                                 .spans     = (double)n,
                                 .lost      = (double)t->seen.n_lost };
}

/* ---- the file ------------------------------------------------------------------------------------------ */

enum { TID_STEPS = 0, TID_LANES = 1 };

static double micros(double s) { return round(s * 1e9) / 1e3; }

static void put_event(JsonOut *o, const char *name, const char *cat, int tid, double begin_s, double end_s)
{
    json_out_object(o, NULL);
    json_out_str(o, "name", name);
    json_out_str(o, "cat", cat);
    json_out_str(o, "ph", "X");
    json_out_num(o, "ts", micros(begin_s));
    json_out_num(o, "dur", micros(end_s) - micros(begin_s));
    json_out_int(o, "pid", 1);
    json_out_int(o, "tid", tid);
}

/* Chrome's names of rows. They have ts and dur as well: other readers want them of every event. */
static void put_name(JsonOut *o, const char *what, int tid, const char *name)
{
    json_out_object(o, NULL);
    json_out_str(o, "name", what);
    json_out_str(o, "ph", "M");
    json_out_int(o, "ts", 0);
    json_out_int(o, "dur", 0);
    json_out_int(o, "pid", 1);
    json_out_int(o, "tid", tid);
    json_out_object(o, "args");
    json_out_str(o, "name", name);
    json_out_close(o);
    json_out_close(o);
}

/* "y bf16[8192,768], x bf16[8192,768], w bf16[768,768]". */
static const char *shapes_of(const Op *op, char *buf, size_t n)
{
    const OpRow *row = &op_table[op->kind];
    buf[0]           = '\0';
    for (int i = 0; i < row->n_tensor; i++) {
        const Tensor *x = op->args.t[i];
        if (!x || (row->arg[i].access & ARG_WS)) continue;
        str_append(buf, n, "%s%s %s[", buf[0] ? ", " : "", row->arg[i].name, dtype_name(x->dtype));
        for (int d = 0; d < x->ndim; d++) str_append(buf, n, "%s%lld", d ? "," : "", (long long)x->dim[d]);
        str_append(buf, n, "]");
    }
    return buf;
}

/* What is known of a lane's newest event. */
typedef struct {
    const Op *op;
    int       part; /* 0 for the first kernel of an op, then 1, 2, ... */
    double    end_s;
} LaneAt;

/* The op's FLOPs stand at its first kernel. Kernels of a lane may overlap a little, events of a row may not:
 * the overlap is taken off the later one. */
static void put_span(JsonOut *o, const DevSpan *s, double zero_s, LaneAt *at)
{
    char   shapes[512];
    Class  c    = class_of(s);
    double work = s->op ? op_flops(s->op->kind, &s->op->args) : 0;
    double over = MIN(MAX(0, at->end_s - s->begin_s), s->end_s - s->begin_s);
    *at         = (LaneAt){ s->op, s->op && s->op == at->op ? at->part + 1 : 0, MAX(at->end_s, s->end_s) };
    put_event(o, s->op ? s->op->label : s->name, s->op ? op_table[s->op->kind].name : "kernel",
              TID_LANES + (int)s->lane, s->begin_s + over - zero_s, s->end_s - zero_s);
    json_out_object(o, "args");
    if (s->op) json_out_str(o, "op", op_table[s->op->kind].name);
    if (s->op) json_out_str(o, "tensors", shapes_of(s->op, shapes, sizeof shapes));
    if (work > 0 && at->part == 0) json_out_num(o, "flops", work);
    if (at->part > 0) json_out_int(o, "part", at->part);
    if (over > 0) json_out_num(o, "overlap_us", micros(over));
    if (c == CLASS_REPEAT) json_out_bool(o, "again", 1);
    if (s->name[0]) json_out_str(o, "kernel", s->name);
    json_out_close(o);
    json_out_close(o);
}

/* ---- memory by plan ------------------------------------------------------------------------------------ */

/* Bytes of activations that are alive during each op of a program. */
typedef struct {
    const Prog *p;
    size_t     *live;
} ProgLive;

/* The op's place in its program; -1: it is of another one. */
static int place_of(const ProgLive *l, const Op *op)
{
    int n = prog_n_op(l->p);
    return n > 0 && op >= prog_op(l->p, 0) && op <= prog_op(l->p, n - 1) ? (int)(op - prog_op(l->p, 0)) : -1;
}

/* Chrome's counters: a row of stacked areas. Slabs keep their size; activations come and go. */
static void put_counter(JsonOut *o, const Job *job, double at_s, size_t live_bytes)
{
    const double mib = 1048576;
    json_out_object(o, NULL);
    json_out_str(o, "name", "planned memory, MiB");
    json_out_str(o, "ph", "C");
    json_out_num(o, "ts", micros(at_s));
    json_out_int(o, "dur", 0);
    json_out_int(o, "pid", 1);
    json_out_int(o, "tid", 0);
    json_out_object(o, "args");
    for (int s = 0; s < SLAB_COUNT; s++) {
        size_t bytes = s == SLAB_ACT ? live_bytes : job->store.slab_bytes[s];
        if (job->store.slab_bytes[s] > 0)
            json_out_num(o, slab_name((Slab)s), round(1e3 * (double)bytes / mib) / 1e3);
    }
    json_out_close(o);
    json_out_close(o);
}

static ProgLive *list_live(const Job *job)
{
    ProgLive *l = mem_zeroed((size_t)job->n_prog, sizeof *l);
    for (int i = 0; l && i < job->n_prog; i++) {
        l[i] = (ProgLive){ job->prog[i], mem_zeroed((size_t)prog_n_op(job->prog[i]) + 1, sizeof *l->live) };
        if (l[i].live) prog_live_bytes(l[i].p, l[i].live);
    }
    return l;
}

/* The first kept step alone: the plan is the same for all. */
static void put_memory(JsonOut *o, const Tracer *t, const Job *job, const DevSpan *span, int64_t n)
{
    ProgLive *l      = list_live(job);
    size_t    before = (size_t)-1;
    for (int64_t i = 0; l && i < n && t->n_done > 0 && span[i].begin_s < t->done_s[0]; i++) {
        for (int k = 0; span[i].op && span[i].lane == LANE_COMPUTE && k < job->n_prog; k++) {
            int at = l[k].live ? place_of(&l[k], span[i].op) : -1;
            if (at < 0 || l[k].live[at] == before) continue;
            before = l[k].live[at];
            put_counter(o, job, span[i].begin_s - t->kept_s, before);
        }
    }
    for (int k = 0; l && k < job->n_prog; k++) free(l[k].live);
    free(l);
}

static void put_events(JsonOut *o, const Tracer *t, const DevSpan *span, int64_t n)
{
    static const char *const lanes[] = { "compute", "communication", "to the device", "to the host" };
    char                     name[48];
    double                   before = t->kept_s;
    put_name(o, "process_name", 0, "brim");
    put_name(o, "thread_name", TID_STEPS, "steps");
    for (int i = 0; i < ARRAY_LEN(lanes); i++) put_name(o, "thread_name", TID_LANES + i, lanes[i]);
    for (int i = 0; i < t->n_done; i++) {
        snprintf(name, sizeof name, "step %lld", (long long)(t->kept + 1 + i));
        put_event(o, name, "step", TID_STEPS, before - t->kept_s, t->done_s[i] - t->kept_s);
        json_out_close(o);
        before = t->done_s[i];
    }
    LaneAt at[LANE_COUNT] = { { NULL, 0, 0 } };
    for (int64_t i = 0; i < MIN(n, TRACER_EVENTS); i++) put_span(o, &span[i], t->kept_s, &at[span[i].lane]);
}

static int write_file(const Tracer *t, const Job *job, const DevSpan *span, int64_t n, const FactsTrace *sums,
                      const char *path)
{
    JsonOut o;
    FILE   *f = file_create_tmp(path);
    if (!f) return -1;
    json_out_init_file(&o, f);
    json_out_object(&o, NULL);
    json_out_str(&o, "displayTimeUnit", "ms");
    json_out_object(&o, "otherData");
    json_out_str(&o, "run", job->recipe.run);
    json_out_num(&o, "steps", sums->steps);
    json_out_num(&o, "step_us", sums->step_s * 1e6);
    json_out_num(&o, "busy_us", sums->busy_s * 1e6);
    json_out_int(&o, "left_out", MAX(0, n - TRACER_EVENTS) + t->seen.n_lost);
    json_out_close(&o);
    json_out_array(&o, "traceEvents");
    put_events(&o, t, span, n);
    put_memory(&o, t, job, span, n);
    int rc = json_out_end(&o);
    if (rc == 0) rc = file_publish(&f, path);
    file_discard(&f);
    return rc;
}

/* ---- the three points ---------------------------------------------------------------------------------- */

static void give_up(Tracer *t, const char *what)
{
    log_warn("no trace: %s%s (the run itself is not affected)", what, err_get());
    err_clear();
    t->is_on = 0;
    t->end   = -1;
}

static void begin(Tracer *t, Dev *dev)
{
    if (!dev->vt->trace_begin) {
        give_up(t, "this device records nothing");
    } else if (dev->vt->trace_begin(dev) < 0) {
        give_up(t, "");
    } else {
        t->is_on = 1;
    }
}

static int finish(Tracer *t, Job *job, const char *path, FactsTrace *sums)
{
    Dev *dev = job->dev;
    t->is_on = 0;
    if (dev->vt->trace_end(dev, &t->seen) < 0) {
        give_up(t, "");
        return 0;
    }
    const DevSpan *span = t->seen.span;
    int64_t        n    = t->seen.n_span;
    while (n > 0 && span->begin_s < t->kept_s) {
        span++;
        n--;
    }
    sum_up(t, span, n, sums);
    if (write_file(t, job, span, n, sums, path) < 0) {
        give_up(t, "");
        return 0;
    }
    free(t->seen.span);
    t->seen.span = NULL;
    t->end       = -1; /* a run that goes back is not traced again */
    return 1;
}

/* Nothing of the recorder is left at work. */
static void stop(Tracer *t, Dev *dev)
{
    if (t->is_on && dev->vt->trace_end(dev, &t->seen) < 0) err_clear();
    free(t->seen.span);
    t->seen   = (DevTrace){ 0 };
    t->is_on  = 0;
    t->n_done = 0;
}

void tracer_rewind(Tracer *t, Dev *dev, int64_t step)
{
    if (!t || !t->is_on) return;
    stop(t, dev);
    if (step >= t->from) give_up(t, "the run went back to a step within it");
}

void tracer_end(Tracer *t, Dev *dev, int64_t step)
{
    if (!t || t->end < 0 || step >= t->end) return;
    log_warn("no trace: it would have ended with step %lld, and the run ended with step %lld",
             (long long)t->end, (long long)step);
    stop(t, dev);
}

int tracer_rest(Tracer *t, Job *job, int64_t step, const char *path, FactsTrace *sums)
{
    if (!t) return 0;
    if (step == t->from && t->end > 0) begin(t, job->dev);
    if (step == t->kept && t->is_on) t->kept_s = clock_now_s();
    return step == t->end && t->is_on ? finish(t, job, path, sums) : 0;
}
