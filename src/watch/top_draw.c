#include "watch/top_draw.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/str.h"
#include "watch/waterfall.h"

#include <math.h>
#include <string.h>

enum { POINTS = 4096, VALUE = 16 };

int top_selected(const Runs *r, const TopState *t)
{
    for (int i = 0; i < r->n_run; i++) {
        if (strcmp(r->run[i]->name, t->selected) == 0) return i;
    }
    return r->n_run > 0 ? 0 : -1;
}

void top_move(const Runs *r, TopState *t, int by)
{
    int i = top_selected(r, t);
    if (i < 0) return;
    str_copy(t->selected, sizeof t->selected, r->run[MIN(r->n_run - 1, MAX(0, i + by))]->name);
}

/* ---- Machine ------------------------------------------------------------------------------------------- */

static const char *percent(char *buf, size_t n, double share)
{
    if (isnan(share)) {
        str_copy(buf, n, "n/a");
    } else {
        snprintf(buf, n, "%.0f%%", 100 * share);
    }
    return buf;
}

static Style heat(double share)
{
    return isnan(share) ? STYLE_DIM : share >= 0.7 ? STYLE_GOOD : share >= 0.3 ? STYLE_WARN : STYLE_BAD;
}

static int draw_host(Screen *s, const Gpus *g, int row)
{
    char a[32], b[32], p[16];
    int  c = screen_printf(s, row, 0, STYLE_PLAIN, "cpu  ");
    screen_bar(s, row, c, 10, g->rates.cpu);
    screen_printf(s, row, c + 11, STYLE_PLAIN, "%4s of %d CPUs   memory %s of %s",
                  percent(p, sizeof p, g->rates.cpu), g->n_cpu,
                  str_bytes(a, sizeof a, g->host.memory_used_bytes),
                  str_bytes(b, sizeof b, g->host.memory_total_bytes));
    return row + 1;
}

/* One line a GPU; on a narrow screen what counts least is cut off at the right. */
static int draw_gpu(Screen *s, const GpuView *v, int index, int row)
{
    char   p[16], w[16], l[16], t[16];
    double used = v->now.memory_used_bytes / v->now.memory_total_bytes;
    int    c    = screen_printf(s, row, 0, STYLE_PLAIN, "gpu%-2d", index);
    screen_bar(s, row, c, 10, v->now.gpu_util / 100);
    c = screen_printf(s, row, c + 11, STYLE_PLAIN, "%4s", percent(p, sizeof p, v->now.gpu_util / 100));
    c = screen_printf(s, row, c, STYLE_PLAIN, "  tensor ");
    c = screen_printf(s, row, c, heat(v->activity.tensor_active / 100), "%4s",
                      percent(p, sizeof p, v->activity.tensor_active / 100));
    c = screen_printf(s, row, c, STYLE_PLAIN, "  mem %4s", percent(p, sizeof p, used));
    c = screen_printf(s, row, c, STYLE_PLAIN, "  %s/%s W", nvml_number(w, sizeof w, v->now.power_w, 0),
                      nvml_number(l, sizeof l, v->now.power_limit_w, 0));
    c = screen_printf(s, row, c, STYLE_PLAIN, "  %s C", nvml_number(t, sizeof t, v->now.temperature_c, 0));
    c = screen_printf(s, row, c, STYLE_PLAIN, "  %s", v->name);
    c = screen_printf(s, row, c, STYLE_PLAIN, "  SM %s", percent(p, sizeof p, v->activity.sm_active / 100));
    c = screen_printf(s, row, c, STYLE_PLAIN, "  DRAM %s",
                      percent(p, sizeof p, v->activity.dram_active / 100));
    screen_printf(s, row, c, STYLE_PLAIN, "  %s MHz", nvml_number(w, sizeof w, v->now.sm_mhz, 0));
    return row + 1;
}

/* Eight GPUs stand on 24 rows; of more than half a screen the rest is counted. */
static int draw_machine(Screen *s, const Gpus *g, int row)
{
    int room = s->rows / 2 - row, shown = g->n_gpu <= room ? g->n_gpu : MAX(0, room - 1);
    for (int i = 0; i < shown; i++) row = draw_gpu(s, &g->gpu[i], i, row);
    if (shown < g->n_gpu)
        screen_printf(s, row++, 0, STYLE_DIM, "%d more GPUs: 3 shows them", g->n_gpu - shown);
    if (g->n_gpu == 0) screen_printf(s, row++, 0, STYLE_DIM, "no GPU: %s", g->why);
    return draw_host(s, g, row);
}

static int draw_gpu_details(Screen *s, const GpuView *v, int row)
{
    char a[32], b[32], reasons[160], x[16], y[16];
    screen_printf(s, row++, 0, STYLE_PLAIN, "     memory %s of %s   SM %s MHz   memory %s MHz",
                  str_bytes(a, sizeof a, v->now.memory_used_bytes),
                  str_bytes(b, sizeof b, v->now.memory_total_bytes),
                  nvml_number(x, sizeof x, v->now.sm_mhz, 0), nvml_number(y, sizeof y, v->now.memory_mhz, 0));
    screen_printf(s, row++, 0, STYLE_PLAIN, "     clock held by: %s   PCIe %s x%s   ECC errors %s",
                  v->now.has_reasons ? nvml_reasons_text(reasons, sizeof reasons, v->now.reasons) : "n/a",
                  nvml_number(x, sizeof x, v->link_generation, 0), nvml_number(y, sizeof y, v->link_lanes, 0),
                  nvml_number(a, sizeof a, v->ecc_errors, 0));
    return row;
}

/* Where not all of it fits, each GPU has a line of its own, and its programs. */
static void draw_gpus(Screen *s, const Gpus *g, int row)
{
    enum { LINES = 5 /* of a GPU with one program */ };
    char a[32];
    int  is_short = g->n_gpu * LINES > s->rows - 4;
    for (int i = 0; i < g->n_gpu && row < s->rows; i++) {
        const GpuView *v = &g->gpu[i];
        if (!is_short) screen_rule(s, row++, v->name);
        row = draw_gpu(s, v, i, row);
        if (!is_short) row = draw_gpu_details(s, v, row);
        for (int p = 0; p < MIN(v->n_process, GPUS_PROCESSES); p++) {
            const GpuProcess *q = &v->process[p];
            screen_printf(s, row++, 0, STYLE_PLAIN, "     pid %-8d %-20s %s", q->pid, q->name,
                          isnan(q->used_bytes) ? "n/a" : str_bytes(a, sizeof a, q->used_bytes));
        }
    }
    if (g->n_gpu == 0) screen_printf(s, row++, 0, STYLE_DIM, "no GPU: %s", g->why);
    screen_printf(s, row++, 0, STYLE_PLAIN, "%s, %d CPUs", g->cpu_name, g->n_cpu);
    draw_host(s, g, row);
}

/* ---- Runs ---------------------------------------------------------------------------------------------- */

/* What the column val has of each run stands at the right of a screen that has room. */
static int measure_width(const Screen *s) { return s->columns >= 100 ? (int)sizeof "bits per byte" + 1 : 0; }
/* Of the column of names. */
static int name_width(const Screen *s) { return MIN(40, MAX(14, s->columns - 66 - measure_width(s))); }

enum { FIGURE = 7 /* columns */ };

/* Larger numbers have fewer decimals. */
static const char *figure(char *buf, size_t n, double x)
{
    int decimals = fabs(x) < 100 ? 3 : fabs(x) < 10000 ? 1 : 0;
    while (strlen(nvml_number(buf, n, x, decimals)) > FIGURE && decimals > 0) decimals--;
    if (strlen(buf) > FIGURE) snprintf(buf, n, "%.0e", x);
    return buf;
}

static void draw_run(Screen *s, const RunView *v, int row, int selected)
{
    char   rate[32], mfu[16], steps[32], t[32];
    Style  style = selected ? STYLE_SELECTED : STYLE_PLAIN;
    double per_s = series_last(&v->tail, "per_s"), step = series_step(&v->tail);
    int    name = name_width(s);
    screen_put(s, row, 0, 2, style, selected ? (s->ascii ? "> " : "\xe2\x96\xb8 ") : "  ");
    screen_put(s, row, 2, name, style, v->name);
    if (v->steps > 0) {
        snprintf(steps, sizeof steps, "%.0f/%lld", step, (long long)v->steps);
    } else {
        snprintf(steps, sizeof steps, "%.0f", step);
    }
    screen_printf(s, row, 3 + name, style, "%-9s%14s", runs_state_name(v->state), steps);
    screen_printf(s, row, 27 + name, style, " %*s %*s", FIGURE,
                  figure(t, sizeof t, series_last(&v->tail, "loss")), FIGURE,
                  figure(rate, sizeof rate, series_last(&v->tail, facts_best(&v->facts))));
    screen_printf(s, row, 43 + name, style, "%8s%6s",
                  isnan(per_s) ? "n/a" : str_count(rate, sizeof rate, per_s),
                  percent(mfu, sizeof mfu, series_last(&v->tail, "mfu")));
    screen_printf(s, row, 57 + name, style, "%8s",
                  str_duration(t, sizeof t, series_last(&v->tail, "time_s")));
    if (measure_width(s) > 0)
        screen_printf(s, row, 65 + name, style, "  %.*s", measure_width(s) - 2,
                      facts_measure_name(facts_best(&v->facts), t, sizeof t));
    if (selected) screen_style(s, row, style);
}

static int draw_runs(Screen *s, const Runs *r, const TopState *t, int row, int room)
{
    int at = top_selected(r, t), name = name_width(s), most = room - 1;
    int shown = r->n_run <= most ? r->n_run : most - 1, first = MAX(0, at - (shown - 1));
    screen_printf(s, row, 2, STYLE_BOLD, "%-*.*s %-9s%14s %8s%8s%8s%6s%8s%s", name, name, "run", "state",
                  "step", "loss", "val", "units/s", "MFU", "time", measure_width(s) > 0 ? "  measure" : "");
    row++;
    if (r->n_run == 0) screen_printf(s, row++, 2, STYLE_DIM, "no runs in %s", r->base);
    for (int i = first; i < first + shown; i++) draw_run(s, r->run[i], row++, i == at);
    if (shown < r->n_run)
        screen_printf(s, row++, 2, STYLE_DIM, "%d more run%s: arrows scroll to them", r->n_run - shown,
                      str_plural(r->n_run - shown));
    return row;
}

/* ---- Curves -------------------------------------------------------------------------------------------- */

typedef enum { SHOW_PLAIN, SHOW_COUNT, SHOW_SHARE, SHOW_BYTES, SHOW_WATTS } Show;

static const struct {
    const char *key, *label;
    Show        show;
} curves[] = {
    { "loss", "loss", SHOW_PLAIN },
    { "per_s", "units/s", SHOW_COUNT },
    { "mfu", "MFU", SHOW_SHARE },
    { "tensor_active", "tensor", SHOW_SHARE },
    { "power_w", "power", SHOW_WATTS },
    { "gpu_mem_bytes", "gpu memory", SHOW_BYTES },
    { "own_cpu", "cpu cores", SHOW_PLAIN },
    { "rss_bytes", "host memory", SHOW_BYTES },
    { "sm_active", "SM", SHOW_SHARE },
    { "dram_active", "DRAM", SHOW_SHARE },
    { "grad_norm", "grad norm", SHOW_PLAIN },
    { "j_per_unit", "J/unit", SHOW_PLAIN },
};

/* What the run counts, per second. */
static const char *rate_label(const RunView *v, char buf[SERIES_NAME])
{
    snprintf(buf, SERIES_NAME, "%s/s", v->units);
    return buf;
}

static void show(char *buf, size_t n, Show how, double x)
{
    switch (how) {
    case SHOW_PLAIN: snprintf(buf, n, "%.4g", x); return;
    case SHOW_COUNT: str_count(buf, n, x); return;
    case SHOW_SHARE: snprintf(buf, n, "%.1f%%", 100 * x); return;
    case SHOW_BYTES: str_bytes(buf, n, x); return;
    case SHOW_WATTS: snprintf(buf, n, "%.0f W", x); return;
    }
}

/* Columns of a label: tasks have long names for their measures. */
static int label_width(const Screen *s) { return s->columns < 100 ? 17 : 25; }

/* 1: it was drawn. */
static int draw_curve(Screen *s, const Series *series, int row, const char *key, const char *label, Show how)
{
    double value[POINTS];
    char   text[32];
    int    n = series_tail(series, key, value, POINTS);
    if (n == 0) return 0;
    int wide = label_width(s);
    screen_put(s, row, 0, wide - 1, STYLE_BOLD, label);
    screen_spark(s, row, wide, s->columns - wide - VALUE, STYLE_GOOD, value, n);
    show(text, sizeof text, how, series_last(series, key));
    screen_printf(s, row, s->columns - VALUE + 1, STYLE_PLAIN, "%*s", VALUE - 2, text);
    return 1;
}

/* The measure that counts stands behind the loss, by its own name; the task's other measures come last. */
static int draw_curves(Screen *s, const RunView *v, const Series *series, int row, int end)
{
    char label[SERIES_NAME];
    for (int i = 0; i < ARRAY_LEN(curves) && row < end; i++) {
        row +=
            draw_curve(s, series, row, curves[i].key,
                       curves[i].show == SHOW_COUNT ? rate_label(v, label) : curves[i].label, curves[i].show);
        if (i == 0 && row < end)
            row += draw_curve(s, series, row, facts_best(&v->facts), facts_best(&v->facts), SHOW_PLAIN);
    }
    for (int k = 0; k < v->facts.n_metric && row < end; k++) {
        const char *name = v->facts.metric[k].name;
        if (strcmp(name, facts_best(&v->facts)) != 0)
            row += draw_curve(s, series, row, name, name, SHOW_PLAIN);
    }
    return row;
}

/* As many of a note's words as fit, up to a comma or a colon: half a word says nothing. */
static void draw_note(Screen *s, int row, int column, const char *note)
{
    int room = s->columns - column, n = (int)strlen(note);
    while (n > room || (note[n] && !strchr(",:", note[n])))
        if (n-- == 0) return;
    if (n > 0) screen_put(s, row, column, n, STYLE_PLAIN, note);
}

static int draw_waterfall(Screen *s, const RunView *v, const Series *series, int row, int end)
{
    WaterfallPart part[WATERFALL_PARTS];
    int           n = waterfall_of(series, &v->facts, part);
    if (n == 0 || row >= end - n) return row;
    screen_rule(s, row++, "where the time goes");
    for (int i = 0; i < n; i++, row++) {
        screen_put(s, row, 0, 25, STYLE_PLAIN, part[i].name);
        screen_bar(s, row, 26, MAX(10, s->columns / 4), part[i].share);
        int c = screen_printf(s, row, 27 + MAX(10, s->columns / 4), STYLE_PLAIN, "%5.1f%%  ",
                              100 * part[i].share);
        draw_note(s, row, c, part[i].note);
    }
    return row;
}

static void draw_one(Screen *s, const RunView *v, const Series *series, int row, int end)
{
    char title[RUNS_NAME + 200];
    snprintf(title, sizeof title, "%s: %s", v->name, v->device);
    screen_rule(s, row++, title);
    row = draw_curves(s, v, series, row, MAX(row + 5, end - WATERFALL_PARTS - 2));
    row = draw_waterfall(s, v, series, row, end);
    if (row < end && v->activity[0]) screen_printf(s, row++, 0, STYLE_DIM, "activity: %s", v->activity);
    const char *reasons = series_text(series, "clock_reasons");
    if (row < end && *reasons) screen_printf(s, row, 0, STYLE_DIM, "clock held by: %s", reasons);
}

/* ---- All ----------------------------------------------------------------------------------------------- */

static void draw_help(Screen *s, int row)
{
    static const char *const line[] = {
        "up, down, j, k    another run",
        "Enter, Tab        another view",
        "1, 2, 3           overview; one run; GPUs and their programs",
        "h, ?              this page",
        "q                 end",
        "",
        "brim top --web    the same in a browser, with plots",
        "",
        "Utilisation is time with any kernel running, however small.",
        "Tensor activity is what counts: cycles in which tensor cores work.",
        "MFU is the model's own arithmetic over the data sheet's peak.",
    };
    for (int i = 0; i < ARRAY_LEN(line); i++) screen_put(s, row + i, 2, 0, STYLE_PLAIN, line[i]);
}

static void draw_head(Screen *s, const Runs *r, const Gpus *g)
{
    char when[32];
    int  n_training = 0;
    for (int i = 0; i < r->n_run; i++) n_training += r->run[i]->state == RUN_TRAINING;
    int c = screen_printf(s, 0, 0, STYLE_BOLD, "brim top");
    screen_printf(s, 0, c, STYLE_PLAIN, "   %s   %d run%s, %d training", g->host_name, r->n_run,
                  str_plural(r->n_run), n_training);
    clock_date(when, sizeof when, "%H:%M:%S");
    screen_put(s, 0, s->columns - 8, 0, STYLE_DIM, when);
}

void top_draw(Screen *s, const Runs *r, const Gpus *g, const TopState *t, const Series *series)
{
    int at = top_selected(r, t), end = s->rows - 1, row = 1;
    screen_clear(s);
    draw_head(s, r, g);
    if (t->view == TOP_HELP) {
        draw_help(s, 2);
    } else if (t->view == TOP_GPUS) {
        draw_gpus(s, g, row);
    } else if (t->view == TOP_RUN && at >= 0) {
        draw_one(s, r->run[at], series ? series : &r->run[at]->tail, row, end);
    } else {
        row = draw_machine(s, g, row);
        screen_rule(s, row++, "runs");
        int room = MAX(3, (end - row) / 2 - 1);
        row      = draw_runs(s, r, t, row, MIN(room, r->n_run + 1 + (r->n_run == 0)));
        if (at >= 0 && row < end - 1) {
            screen_rule(s, row++, r->run[at]->name);
            const Series *shown = series ? series : &r->run[at]->tail;
            row                 = draw_curves(s, r->run[at], shown, row, end);
            draw_waterfall(s, r->run[at], shown, row, end);
        }
    }
    for (int c = 0; c < s->columns; c++) screen_put(s, end, c, 1, STYLE_PLAIN, " ");
    screen_put(s, end, 0, 0, STYLE_DIM,
               "arrows run   Tab view   1 overview  2 run  3 GPUs   h help   q quit");
}
