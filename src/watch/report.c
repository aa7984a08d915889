#include "watch/report.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/file.h"
#include "base/str.h"
#include "watch/assets.h"
#include "watch/doctor.h"
#include "watch/runs.h"
#include "watch/sampleview.h"
#include "watch/svg.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT_BYTES = 1 << 16 };
#define PER_GIB (1.0 / 1073741824)

/* ---- Figures ------------------------------------------------------------------------------------------- */

static void put_tile(FILE *f, const char *name, const char *value)
{
    fputs("<div class='tile'><b>", f);
    svg_text(f, value);
    fputs("</b>", f);
    svg_text(f, name);
    fputs("</div>", f);
}

/* A run that ended in its first step has no loss, and no rate. */
static void put_tiles(FILE *f, const RunView *v, const Series *s)
{
    char   text[64], a[64], steps[48];
    double at   = NAN, x;
    double best = series_extreme(s, facts_best(&v->facts), facts_best_larger(&v->facts), &at);
    fputs("<div class='tiles'>", f);
    snprintf(text, sizeof text, "%.0f", series_step(s));
    put_tile(f, strcmp(v->units, "steps") == 0 ? "updates" : "steps", text);
    if (!isnan(x = series_last(s, "loss"))) {
        snprintf(text, sizeof text, "%.4f", x);
        put_tile(f, "loss", text);
    }
    if (!isnan(best)) {
        snprintf(text, sizeof text, "%.4f", best);
        facts_measure_name(facts_best(&v->facts), a, sizeof a);
        char title[80];
        snprintf(title, sizeof title, "best validation %s", a);
        put_tile(f, title, text);
    }
    runs_recent_steps(v, steps, sizeof steps);
    if (!isnan(x = runs_recent(v, "per_s"))) {
        snprintf(a, sizeof a, "%.32s/s, steps %.20s", v->units, steps);
        put_tile(f, a, str_count(text, sizeof text, x));
    }
    put_tile(f, "training time", str_duration(text, sizeof text, series_last(s, "time_s")));
    if (!isnan(x = runs_recent(v, "mfu"))) {
        snprintf(text, sizeof text, "%.1f %%", 100 * x);
        snprintf(a, sizeof a, "MFU, steps %.40s", steps);
        put_tile(f, a, text);
    }
    if (!isnan(x = series_last(s, "kwh"))) {
        snprintf(text, sizeof text, "%.4g kWh", x);
        put_tile(f, "energy", text);
    }
    if (!isnan(x = runs_recent(v, "j_per_unit"))) {
        snprintf(text, sizeof text, "%.3g J", x);
        snprintf(a, sizeof a, "per %s", v->unit);
        put_tile(f, a, text);
    }
    fputs("</div>\n", f);
}

typedef struct {
    const char *title;
    double      scale;
    const char *key[SVG_LINES], *name[SVG_LINES];
} PlotRow;

static const PlotRow plots[] = {
    { "Loss", 1, { "loss" }, { "" } },
    { "Rate", 1, { "per_s" }, { "" } }, /* its title names the task's unit */
    { "MFU, %", 100, { "mfu" }, { "" } },
    { "GPU activity, %",
      100,
      { "sm_active", "tensor_active", "dram_active", "gpu_util" },
      { "SM", "tensor", "DRAM", "utilisation" } },
    { "Power, W", 1, { "power_w", "power_limit_w" }, { "power", "limit" } },
    { "GPU memory", PER_GIB, { "gpu_mem_bytes" }, { "" } },
    { "Host memory", PER_GIB, { "rss_bytes" }, { "" } },
    { "CPU cores busy", 1, { "own_cpu" }, { "" } },
    { "Gradient norm", 1, { "grad_norm" }, { "" } },
    { "Learning rate", 1, { "lr" }, { "" } },
};

static int is_own(const char *key)
{
    if (series_is_plain(key)) return 0;
    for (int i = 0; i < ARRAY_LEN(plots); i++)
        for (int k = 0; k < SVG_LINES && plots[i].key[k]; k++)
            if (strcmp(key, plots[i].key[k]) == 0) return 0;
    return 1;
}

static void put_own(FILE *f, const RunView *v, const Series *s, int c)
{
    char    title[SERIES_NAME + 48];
    SvgPlot p = { .title = title, .scale = 1 };
    str_copy(title, sizeof title, str_starts_with(s->key[c], "val_") ? "Validation " : "");
    facts_measure_name(s->key[c], title + strlen(title), sizeof title - strlen(title));
    for (int i = 0; i < v->facts.n_metric; i++)
        if (v->facts.metric[i].larger && strcmp(v->facts.metric[i].name, s->key[c]) == 0)
            str_append(title, sizeof title, ", larger is better");
    p.line[p.n_line++] = (SvgLine){ "", s->column[0], s->column[c], s->n_row };
    svg_plot(f, &p);
}

/* Measures of the task, the one that counts first; with is_val 0 whatever else the task reports. */
static void put_own_plots(FILE *f, const RunView *v, const Series *s, int is_val)
{
    int best = series_find(s, facts_best(&v->facts));
    if (is_val && best >= 0) put_own(f, v, s, best);
    for (int c = 0; c < s->n_key; c++)
        if (c != best && str_starts_with(s->key[c], "val_") == is_val && is_own(s->key[c]))
            put_own(f, v, s, c);
}

/* Its title names a unit in which the figures are neither long nor tiny. */
static void put_plot(FILE *f, const RunView *v, const Series *s, const PlotRow *row)
{
    char    title[64];
    double  at;
    SvgPlot p = { .title = title, .scale = row->scale };
    for (int k = 0; k < SVG_LINES && row->key[k]; k++) {
        int c = series_find(s, row->key[k]);
        if (c >= 0) p.line[p.n_line++] = (SvgLine){ row->name[k], s->column[0], s->column[c], s->n_row };
    }
    str_copy(title, sizeof title, row->title);
    if (strcmp(row->key[0], "per_s") == 0) snprintf(title, sizeof title, "Rate, %.40s/s", v->units);
    if (row->scale == PER_GIB) {
        int small = series_extreme(s, row->key[0], 1, &at) * PER_GIB < 1;
        str_append(title, sizeof title, small ? ", MiB" : ", GiB");
        if (small) p.scale = PER_GIB * 1024;
    }
    svg_plot(f, &p);
}

static void put_plots(FILE *f, const RunView *v, const Series *s)
{
    if (s->n_row < 2) return;
    fputs("<h2>Plots over steps</h2>\n<div class='plots'>\n", f);
    for (int i = 0; i < ARRAY_LEN(plots); i++) {
        put_plot(f, v, s, &plots[i]);
        if (i == 0) put_own_plots(f, v, s, 1);
    }
    put_own_plots(f, v, s, 0);
    fputs("</div>\n", f);
}

/* ---- Verdict ------------------------------------------------------------------------------------------- */

static void say_end(FILE *f, const RunView *v, const Series *s)
{
    char   t[32];
    double step = series_step(s), time_s = series_last(s, "time_s");
    str_duration(t, sizeof t, isnan(time_s) ? 0 : time_s);
    if (v->steps > 0 && step >= (double)v->steps) {
        fprintf(f, "<p>The run did its %lld steps in %s.</p>", (long long)v->steps, t);
        return;
    }
    fprintf(f,
            runs_has_target(v) ? "<p>The run reached its target at step %.0f" : "<p>The run is at step %.0f",
            step);
    if (v->steps > 0) fprintf(f, " of %lld", (long long)v->steps);
    fprintf(f, " after %s.</p>", t);
}

static void say_loss(FILE *f, const RunView *v, const Series *s)
{
    const char *key    = facts_best(&v->facts);
    int         larger = facts_best_larger(&v->facts);
    double      at = NAN, best = series_extreme(s, key, larger, &at), now = series_last(s, key);
    double      first = series_first(s, "loss"), last = runs_recent(v, "loss"), begin = series_first(s, key);
    int         better = larger ? best > begin : best < begin;
    char        name[64];
    double      recent[RUNS_LOSS_STEPS];
    int         n = series_tail(&v->tail, "loss", recent, RUNS_LOSS_STEPS);
    /* A loss need not fall where the measure that counts gets better: a policy's does not. */
    if (!isnan(first) && !isnan(last)) {
        fprintf(f, "<p>The training loss went from %.4f to %.4f (mean of the last %d step%s)%s.</p>", first,
                last, n, str_plural(n), last < first || better ? "" : ": it did not fall");
    }
    if (isnan(best)) return;
    facts_measure_name(key, name, sizeof name);
    fprintf(f, "<p>The best validation %s is %.4f, at step %.0f", name, best, at);
    if (s->n_row > 0 && at > 0 && !isnan(begin)) fprintf(f, "; it began at %.4f", begin);
    if (larger) fputs(". Larger is better", f);
    fputs(".", f);
    if (fabs(now - best) > 0.02 * fabs(best)) fprintf(f, " It is %.4f now, which is worse.", now);
    fputs("</p>", f);
}

/* The largest part that is known and not the model's own work. */
static void say_bottleneck(FILE *f, const RunView *v, const Series *s)
{
    WaterfallPart part[WATERFALL_PARTS];
    int           n = waterfall_of(s, &v->facts, part), most = -1;
    double        known = 1; /* share of the time that is divided */
    for (int i = 0; i < n; i++) {
        if (part[i].part == FALL_UNSPLIT || part[i].part == FALL_REST) known -= part[i].share;
        if (part[i].part == FALL_USEFUL || part[i].part == FALL_UNSPLIT || part[i].part == FALL_REST)
            continue;
        if (most < 0 || part[i].share > part[most].share) most = i;
    }
    if (most >= 0 && part[most].share >= 0.01) {
        fprintf(f,
                "<p>Of the time that is not spent on the model itself, most is: <b>%s</b>, %.1f %% (%s).</p>",
                part[most].name, 100 * part[most].share, part[most].note);
    } else if (n > 0 && known > 0.5) {
        fputs("<p>Nothing but the model's own work takes 1 % of the time or more.</p>", f);
    }
    if (n > 0 && known < 0.99)
        fprintf(f, "<p class='soft'>%.0f %% of the time is not divided further; trace: 3 measures it.</p>",
                100 * (1 - known));
    const char *reasons = series_text(s, "clock_reasons");
    if (*reasons && strcmp(reasons, "none") != 0) {
        fputs("<p>The GPU's clock was held down by: ", f);
        svg_text(f, reasons);
        fputs(".</p>", f);
    }
}

/* ---- What the doctor says ------------------------------------------------------------------------------ */

static void put_finding(FILE *f, const Doctor *d, const Finding *x)
{
    fprintf(f, "<div class='finding'><h3>%s: ", x->cause);
    svg_text(f, x->verdict);
    fputs("</h3><p>", f);
    if (isnan(x->gain)) {
        fputs("What it costs cannot be predicted.", f);
    } else if (x->is_wall) {
        fprintf(f, "<span class='gain'>%.0f %%</span> of the run's time", 100 * x->gain);
    } else {
        fprintf(f, "<span class='gain'>%.0f %%</span>: %.4g &rarr; %.4g ms a step", 100 * x->gain,
                1e3 * d->window.step_s, 1e3 * x->step_s);
    }
    fputs("</p><p class='soft'>", f);
    svg_text(f, x->evidence);
    fputs("</p>", f);
    if (x->n_change > 0) fputs("<p>Change: ", f);
    for (int i = 0; i < x->n_change; i++) {
        fputs(i > 0 ? " <code>" : "<code>", f);
        svg_text(f, x->change[i]);
        fputs("</code>", f);
    }
    if (x->n_change > 0) fprintf(f, "%s</p>", x->is_other ? " (trains something else)" : "");
    if (x->advice[0]) {
        fputs("<p>Advice: ", f);
        svg_text(f, x->advice);
        fputs("</p>", f);
    }
    fputs("</div>", f);
}

/* Nothing where too few steps are known, or the recipe cannot be read any more. */
static void put_findings(FILE *f, const RunView *v, const Series *s, const RecipeFrom *from)
{
    Doctor d = { .facts = v->facts };
    char   why[128];
    if (!from) return;
    str_copy(d.name, sizeof d.name, v->name);
    waterfall_window(s, &d.facts, &d.window);
    if (doctor_judge(&d, from) < 0) {
        err_clear();
        return;
    }
    if (doctor_is_healthy(&d))
        fprintf(f, "<p>The doctor calls it <b>healthy</b>: %s.</p>", doctor_why_healthy(&d, why, sizeof why));
    for (int i = 0; i < d.n_finding; i++) put_finding(f, &d, &d.finding[i]);
    doctor_close(&d);
}

static void put_waterfall(FILE *f, const RunView *v, const Series *s)
{
    WaterfallPart part[WATERFALL_PARTS];
    int           n = waterfall_of(s, &v->facts, part);
    if (n == 0) return;
    fputs("<h2>Where the time goes</h2><div class='card'><div class='bar'>", f);
    for (int i = 0; i < n; i++)
        fprintf(f, "<i style='width:%.2f%%;background:%s'></i>", 100 * part[i].share, part[i].color);
    fputs("</div><table>", f);
    for (int i = 0; i < n; i++) {
        fprintf(f,
                "<tr><td><span class='dot' style='background:%s'></span>%s</td><td class='n'>%.1f %%</td><td "
                "class='soft'>%s</td></tr>",
                part[i].color, part[i].name, 100 * part[i].share, part[i].note);
    }
    fputs("</table></div>\n", f);
}

/* ---- The page ------------------------------------------------------------------------------------------ */

static void put_file(FILE *f, const Runs *r, const RunView *v, const char *file, const char *title)
{
    char *text = runs_text(r, v, file, TEXT_BYTES);
    if (!text) return;
    fprintf(f, "<details class='card'><summary>%s</summary><pre>", title);
    svg_text(f, text);
    fputs("</pre></details>\n", f);
    free(text);
}

/* What the model wrote, saw or played last. */
static void put_samples(FILE *f, const Runs *r, const RunView *v)
{
    SampleView s[SAMPLEVIEW_MOST];
    int        n = sampleview_read(r, v, s);
    if (n > 0) fputs("<h2>Samples</h2>\n<div class='samples'>\n", f);
    for (int i = 0; i < n; i++) {
        fprintf(f, "<div class='card'><p class='soft'>step %.0f</p>", s[i].step);
        if (s[i].image) fprintf(f, "<img alt='sample' src='%s'>", s[i].image);
        fputs("<pre><b>", f);
        svg_text(f, s[i].prompt ? s[i].prompt : "");
        fputs("</b>", f);
        svg_text(f, s[i].text ? s[i].text : "");
        fputs("</pre></div>\n", f);
    }
    if (n > 0) fputs("</div>\n", f);
    sampleview_free(s, n);
}

/* The picture that `brim bench --ladder` left beside the run's folder. */
static void put_ladder(FILE *f, const Runs *r, const RunView *v)
{
    enum { MOST = 1 << 20 };
    char           path[1400];
    int            n     = snprintf(path, sizeof path, "%s/%s.ladder.svg", r->base, v->name);
    FILE          *in    = n > 0 && (size_t)n < sizeof path ? fopen(path, "re") : NULL;
    unsigned char *bytes = in ? malloc(MOST) : NULL;
    size_t         size  = bytes ? fread(bytes, 1, MOST, in) : 0;
    char          *image = size > 0 && size < MOST ? sampleview_address("image/svg+xml", bytes, size) : NULL;
    if (image)
        fprintf(f,
                "<h2>What each optimisation is worth</h2><div class='card'><img alt='ladder' src='%s'>"
                "</div>\n",
                image);
    free(image);
    free(bytes);
    if (in) fclose(in);
}

static void put_style(FILE *f)
{
    Asset a;
    int   found = asset_find("/report.css", &a);
    CHECK(found, "no report.css");
    fwrite(a.bytes, 1, a.n, f);
}

static void put_page(FILE *f, const Runs *r, const RunView *v, const Series *s, const RecipeFrom *from)
{
    char when[64];
    fputs("<!doctype html><html lang='en'><head><meta charset='utf-8'><meta name='viewport' "
          "content='width=device-width,initial-scale=1'><meta http-equiv='Content-Security-Policy' "
          "content=\"default-src "
          "'none'; img-src data:; style-src 'unsafe-inline'\"><title>",
          f);
    svg_text(f, v->name);
    fputs(" - Brim</title><style>", f);
    put_style(f);
    fputs("</style></head><body><main><h1>", f);
    svg_text(f, v->name);
    fputs("</h1><p class='soft'>", f);
    svg_text(f, v->device);
    fprintf(f, "%swritten %s</p>\n", v->device[0] ? " &middot; " : "",
            clock_date(when, sizeof when, "%Y-%m-%d %H:%M"));
    put_tiles(f, v, s);
    fputs("<h2>Verdict</h2><div class='card'>", f);
    say_end(f, v, s);
    say_loss(f, v, s);
    say_bottleneck(f, v, s);
    put_findings(f, v, s, from);
    fputs("</div>\n", f);
    put_plots(f, v, s);
    put_waterfall(f, v, s);
    put_ladder(f, r, v);
    put_samples(f, r, v);
    fputs("<h2>Plan, machine, recipe</h2>\n", f);
    put_file(f, r, v, "plan.txt", "Plan");
    put_file(f, r, v, "machine.txt", "Machine");
    put_file(f, r, v, "recipe.yaml", "Recipe");
    fputs("</main></body></html>\n", f);
}

static int write_page(Runs *r, RunView *v, const RecipeFrom *from, const char *out)
{
    char path[1400];
    if (runs_path(r, v, "report.html", path, sizeof path) < 0) return err_set("%s: path too long", v->name);
    Series *s = runs_series(r, v);
    FILE   *f = s ? file_create_tmp(out ? out : path) : NULL;
    if (!f) return -1;
    put_page(f, r, v, s, from);
    int rc = ferror(f) ? err_sys("%s", out ? out : path) : file_publish(&f, out ? out : path);
    file_discard(&f);
    return rc;
}

int report_write_run(const char *base, const char *name, const RecipeFrom *from, const char *out)
{
    Runs *r = (Runs *)calloc(1, sizeof *r);
    if (!r) return err_sys("memory for the report");
    int rc = runs_init_one(r, base, name);
    if (rc == 0) {
        runs_refresh(r);
        RunView *v = runs_need(r, name);
        rc         = v ? write_page(r, v, from, out) : -1;
    }
    runs_deinit(r);
    free(r);
    return rc;
}
