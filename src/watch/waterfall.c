#include "watch/waterfall.h"

#include "base/err.h"
#include "base/str.h"

#include <math.h>
#include <string.h>

enum { WINDOW = 200 /* rows */ };

static const struct {
    const char *name, *note, *color;
} words[WATERFALL_PARTS] = {
    [FALL_INPUT]  = { "waiting for data", "slow storage, too few loader threads, costly samples", "#e03131" },
    [FALL_GAPS]   = { "idle between kernels", "launch gaps, host work, a step that is too small", "#f08c00" },
    [FALL_COMM]   = { "communication", "sums over GPUs that nothing else hides", "#ae3ec9" },
    [FALL_EVAL]   = { "evaluation", "eval.every, eval.samples", "#d6336c" },
    [FALL_SAVE]   = { "checkpoints", "checkpoint.every", "#f783ac" },
    [FALL_REPEAT] = { "computing again", "recomputation of activations", "#74b816" },
    [FALL_OTHER]  = { "other kernels", "norms, activations, optimizer: bound by memory", "#868e96" },
    [FALL_THROTTLE] = { "clock held down", "power or heat limits the clock", "#e8590c" },
    [FALL_BELOW] = { "products below their rate", "small shapes, tile edges, memory beside them", "#1c7ed6" },
    [FALL_UNSPLIT] = { "busy, not divided", "what the kernels do was not measured", "#adb5bd" },
    [FALL_REST]    = { "the rest", "measured in no part", "#ced4da" },
    [FALL_USEFUL]  = { "useful work", "FLOPs that the model itself asks for", "#2f9e44" },
};

/* ---- the window ---------------------------------------------------------------------------------------- */

static double at(const Series *s, const char *key, int row) { return series_at(s, series_find(s, key), row); }

/* Counters begin anew with each start. */
static int is_of_earlier_start(const Series *s, int row, int later)
{
    static const char *const counter[] = { "data_wait_s", "data_fill_s", "eval_s", "save_s" };
    for (int i = 0; i < ARRAY_LEN(counter); i++)
        if (at(s, counter[i], row) > at(s, counter[i], later)) return 1;
    return 0;
}

/* The step that the newest start began behind; NAN: not known, or it has no step yet. */
static double start_of(const Series *s, const RunFacts *f)
{
    return series_last(s, "step") > f->first_step ? f->first_step : NAN;
}

/* Rows [*first, *last] of the newest start, without its first steps: those warm up. 0: too few. */
static int find_rows(const Series *s, const RunFacts *f, int *first, int *last)
{
    int    wait = series_find(s, "data_wait_s"), n = 0, begin = -1;
    double start = start_of(s, f);
    *last        = -1;
    for (int r = s->n_row - 1; wait >= 0 && r >= 0 && n < WINDOW; r--) {
        if (s->column[0][r] <= start) break;
        if (isnan(s->column[wait][r])) continue;
        if (*last < 0) *last = r;
        if (begin >= 0 && is_of_earlier_start(s, r, begin)) break;
        begin = r;
        n++;
    }
    *first = begin;
    for (int skip = MIN(10, n / 4); skip > 0 && *first < *last;) {
        (*first)++;
        if (!isnan(s->column[wait][*first])) skip--;
    }
    int after = *first;
    /* The recorder ends between this step and the next one. */
    while (begin >= 0 && after < *last && s->column[0][after] <= f->trace.last_step) after++;
    if (begin >= 0 && s->column[0][*last] - s->column[0][after] >= WATERFALL_ENOUGH) *first = after;
    return begin >= 0 && *first < *last;
}

static double mean_of(const Series *s, const char *key, int first, int last)
{
    int    c = series_find(s, key), n = 0;
    double sum = 0;
    for (int r = first + 1; c >= 0 && r <= last; r++) {
        if (isnan(s->column[c][r])) continue;
        sum += s->column[c][r];
        n++;
    }
    return n > 0 ? sum / n : NAN;
}

/* The same of what the meter says. A line has the newest stretch, which may be older than the line: only
 * stretches that lie within the rows count, if there are any, and each once. */
static double meter_mean(const Series *s, const char *key, int first, int last)
{
    int c = series_find(s, key), from = series_find(s, "watch_first"), to = series_find(s, "watch_last"),
        n      = 0;
    double sum = 0, before = NAN;
    for (int r = first + 1; c >= 0 && from >= 0 && to >= 0 && r <= last; r++) {
        double x = s->column[c][r], end = s->column[to][r];
        if (isnan(x) || !(s->column[from][r] > s->column[0][first]) || end == before) continue;
        before = end;
        sum += x;
        n++;
    }
    return n > 0 ? sum / n : mean_of(s, key, first, last);
}

static double grown(const Series *s, const char *key, int first, int last)
{
    double a = at(s, key, first), b = at(s, key, last);
    return b >= a ? b - a : NAN;
}

void waterfall_window(const Series *s, const RunFacts *f, FallWindow *w)
{
    int first, last;
    memset(w, 0, sizeof *w);
    if (!find_rows(s, f, &first, &last)) return;
    double steps = at(s, "step", last) - at(s, "step", first);
    w->wall_s    = grown(s, "time_s", first, last);
    if (!(steps >= 1) || !(w->wall_s > 0)) return;
    double eval = grown(s, "eval_s", first, last), save = grown(s, "save_s", first, last);
    w->n_step        = (int)steps;
    w->eval_share    = eval / w->wall_s;
    w->save_share    = save / w->wall_s;
    w->step_s        = (w->wall_s - (isnan(eval) ? 0 : eval) - (isnan(save) ? 0 : save)) / steps;
    w->wait_s        = grown(s, "data_wait_s", first, last) / steps;
    w->fill_s        = grown(s, "data_fill_s", first, last) / steps;
    w->mfu           = mean_of(s, "mfu", first, last);
    w->gpu_util      = meter_mean(s, "gpu_util", first, last);
    w->sm_active     = meter_mean(s, "sm_active", first, last);
    w->tensor_active = meter_mean(s, "tensor_active", first, last);
    w->dram_active   = meter_mean(s, "dram_active", first, last);
    w->power_w       = meter_mean(s, "power_w", first, last);
    w->power_limit_w = meter_mean(s, "power_limit_w", first, last);
    w->sm_mhz        = meter_mean(s, "sm_mhz", first, last);
    w->temp_c        = meter_mean(s, "temp_c", first, last);
    w->processes     = meter_mean(s, "gpu_processes", first, last);
    w->memory_bytes  = series_last(s, "gpu_mem_bytes");
    w->cpu           = meter_mean(s, "cpu", first, last);
    w->own_cpu       = meter_mean(s, "own_cpu", first, last);
    str_copy(w->reasons, sizeof w->reasons, series_text(s, "clock_reasons"));
}

/* ---- parts --------------------------------------------------------------------------------------------- */

/* The parts as they are taken off what is left of the wall time. */
typedef struct {
    WaterfallPart *out;
    int            n;
    double         left;
} Fall;

/* At most what is left; NAN: not measured, so no part. */
static double take(Fall *f, FallPart part, double share)
{
    if (isnan(share)) return 0;
    share = MIN(f->left, MAX(0, share));
    f->left -= share;
    f->out[f->n++] = (WaterfallPart){ part, words[part].name, words[part].note, words[part].color, share };
    return share;
}

static int is_traced(const RunFacts *f) { return f->trace.step_s > 0 && f->trace.spans > 0; }

static int is_gpu(const RunFacts *f) { return f->plan.capability > 0; }

/* FLOPs of a step at the data sheet's peak, in seconds; NAN: no peak is known. */
static double ideal_s(const RunFacts *f) { return f->plan.model_flops / f->plan.peak_flops; }

/* The share of a step in which a GPU has nothing to do. A GPU works as long on each step, however long it
 * waits in between, unless its clock falls: the traced steps follow a rest, and are faster by some per cent.
 * So the counters bound what the trace says. SMs that are active are not idle. Pauses are waiting for data,
 * long ones, which utilisation sees, or short ones, which the trace sees. */
static double idle_share(const FallWindow *w, const RunFacts *f)
{
    const FactsTrace *t    = &f->trace;
    double            idle = 1 - t->busy_s / w->step_s;
    double            seen = w->wait_s / w->step_s + 1 - w->gpu_util + t->gap_s / t->busy_s;
    if (!isnan(w->sm_active)) idle = MIN(idle, 1 - w->sm_active);
    if (!isnan(seen)) idle = MIN(idle, seen);
    return MAX(0, idle);
}

/* Seconds of the trace, times this, are seconds of the window's steps. A busy CPU takes longer for
 * everything. */
static double trace_scale(const FallWindow *w, const RunFacts *f)
{
    const FactsTrace *t = &f->trace;
    if (is_gpu(f)) return (1 - idle_share(w, f)) * w->step_s / t->busy_s;
    return MAX(0, w->step_s - w->wait_s) / MAX(t->busy_s, t->step_s - w->wait_s);
}

static int is_held(const FallWindow *w) { return strstr(w->reasons, "power") || strstr(w->reasons, "therm"); }

/* Divides the time of products that is not useful work: what the clock takes, what else. */
static void take_products(Fall *fall, const FallWindow *w, const RunFacts *f, double products, double useful)
{
    double peak = f->plan.peak_mhz, more = MAX(0, products - useful);
    double slow = is_held(w) && w->sm_mhz < peak ? MIN(more, useful * (peak / w->sm_mhz - 1)) : NAN;
    take(fall, FALL_THROTTLE, slow);
    take(fall, FALL_BELOW, more - (isnan(slow) ? 0 : slow));
}

static void fall_traced(Fall *fall, const FallWindow *w, const RunFacts *f, double steps, double useful)
{
    const FactsTrace *t     = &f->trace;
    double            scale = trace_scale(w, f) / w->step_s, idle = 1 - t->busy_s * scale;
    double            input = is_gpu(f) ? MIN(w->wait_s / w->step_s, idle) : w->wait_s / w->step_s;
    take(fall, FALL_INPUT, steps * input);
    take(fall, FALL_GAPS, steps * MAX(0, idle - input));
    if (f->plan.world > 1) take(fall, FALL_COMM, steps * t->comm_s * scale);
    if (t->repeat_s > 0) take(fall, FALL_REPEAT, steps * t->repeat_s * scale);
    take(fall, FALL_OTHER, steps * t->other_s * scale);
    if (t->unnamed_s > 0.001 * t->busy_s) take(fall, FALL_UNSPLIT, steps * t->unnamed_s * scale);
    if (!isnan(ideal_s(f))) take_products(fall, w, f, steps * t->tensor_s * scale, useful);
}

static void fall_counted(Fall *fall, const FallWindow *w, const RunFacts *f, double steps, double useful)
{
    double idle  = isnan(w->gpu_util) ? 1 - w->sm_active : 1 - MAX(w->gpu_util, w->sm_active);
    double input = MIN(w->wait_s / w->step_s, idle);
    take(fall, FALL_INPUT, steps * input);
    take(fall, FALL_GAPS, steps * (idle - input));
    double again = f->plan.repeat_flops / f->plan.model_flops * w->mfu;
    if (again > 0) take(fall, FALL_REPEAT, steps * again);
    double products = steps * w->tensor_active;
    take(fall, FALL_OTHER, fall->left - MAX(0, products - useful));
    take_products(fall, w, f, products, useful);
}

/* What of the wall time is useful work; NAN: not known. Without a peak: the time of products, by a trace. */
static double useful_share(const FallWindow *w, const RunFacts *f, double steps)
{
    if (!isnan(ideal_s(f))) return MIN(steps, steps * ideal_s(f) / w->step_s);
    if (is_traced(f)) return MIN(steps, steps * f->trace.tensor_s * trace_scale(w, f) / w->step_s);
    return isnan(w->mfu) ? NAN : MIN(steps, steps * MAX(0, w->mfu));
}

int waterfall_from(const FallWindow *w, const RunFacts *f, WaterfallPart out[WATERFALL_PARTS])
{
    Fall fall = { .out = out, .left = 1 };
    if (w->n_step < 1 || isnan(w->wait_s)) return 0;
    /* Evaluations that never came in the window cost nothing there. */
    if (w->eval_share > 0) take(&fall, FALL_EVAL, w->eval_share);
    if (w->save_share > 0) take(&fall, FALL_SAVE, w->save_share);
    double steps  = fall.left; /* share of the wall time that is steps */
    double useful = useful_share(w, f, steps);
    fall.left -= isnan(useful) ? 0 : useful;
    if (is_traced(f)) {
        fall_traced(&fall, w, f, steps, useful);
    } else if (!isnan(w->tensor_active) && !isnan(useful)) {
        fall_counted(&fall, w, f, steps, useful);
    } else {
        double idle = isnan(w->gpu_util) ? 1 : 1 - w->gpu_util, input = MIN(w->wait_s / w->step_s, idle);
        take(&fall, FALL_INPUT, steps * input);
        if (!isnan(w->gpu_util)) take(&fall, FALL_GAPS, steps * (idle - input));
        take(&fall, FALL_UNSPLIT, fall.left);
    }
    if (fall.left > 1e-3) take(&fall, FALL_REST, fall.left);
    for (int i = 0; i < fall.n && !is_gpu(f); i++)
        if (out[i].part == FALL_GAPS) out[i].note = "host work between ops: environments, bookkeeping";
    if (!isnan(useful)) {
        fall.left += useful;
        take(&fall, FALL_USEFUL, fall.left);
        if (isnan(ideal_s(f)) && is_traced(f)) out[fall.n - 1].note = "products and attention";
    }
    return fall.n;
}

int waterfall_of(const Series *s, const RunFacts *f, WaterfallPart out[WATERFALL_PARTS])
{
    FallWindow w;
    waterfall_window(s, f, &w);
    return waterfall_from(&w, f, out);
}

const char *waterfall_source(const FallWindow *w, const RunFacts *f)
{
    if (is_traced(f)) return is_gpu(f) ? "a trace of this run" : "a trace of this run, by clocks";
    if (!isnan(w->tensor_active)) return "the GPU's own counters";
    if (!isnan(w->gpu_util)) return "utilisation alone";
    return "clocks alone";
}

double waterfall_tensor(const FallWindow *w, const RunFacts *f)
{
    double inner = f->plan.inner_flops; /* runs of older versions do not say */
    double flops = f->plan.model_flops + f->plan.repeat_flops + (isnan(inner) ? 0 : inner);
    return flops / f->plan.peak_flops / w->step_s * (f->plan.peak_mhz / w->sm_mhz);
}
