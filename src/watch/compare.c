#include "watch/compare.h"

#include "base/err.h"
#include "base/file.h"
#include "base/json.h"
#include "base/str.h"
#include "watch/runs.h"
#include "watch/svg.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CELL = 48, VALUE = 1024, LABEL = 26, KEYS = 512 };

typedef struct {
    Runs    *runs; /* this one alone */
    RunView *view;
    Series  *series; /* all of it */
    char    *recipe;
    char     title[CELL];
} Compared;

/* ---- Figures ------------------------------------------------------------------------------------------- */

static void cell_state(const Compared *c, char *buf) { str_copy(buf, CELL, runs_state_name(c->view->state)); }
static void cell_device(const Compared *c, char *buf) { str_copy(buf, CELL, c->view->device); }

static void cell_step(const Compared *c, char *buf)
{
    double step = series_step(c->series);
    if (c->view->steps > 0) {
        snprintf(buf, CELL, "%.0f / %lld", step, (long long)c->view->steps);
    } else {
        snprintf(buf, CELL, "%.0f", step);
    }
}

static void number(char *buf, const char *format, double x)
{
    if (isnan(x)) {
        str_copy(buf, CELL, "n/a");
    } else {
        snprintf(buf, CELL, format, x);
    }
}

static void cell_loss(const Compared *c, char *buf) { number(buf, "%.4f", runs_recent(c->view, "loss")); }
static void cell_val(const Compared *c, char *buf)
{
    number(buf, "%.4f", series_last(c->series, facts_best(&c->view->facts)));
}
/* key NULL: the measure that counts. */
static void measure_of(const Compared *c, const char *key, char *buf)
{
    char name[SERIES_NAME];
    snprintf(buf, CELL, "%s, %s is better",
             facts_measure_name(key ? key : facts_best(&c->view->facts), name, sizeof name),
             facts_best_larger(&c->view->facts) ? "larger" : "smaller");
}
static void cell_measure(const Compared *c, char *buf) { measure_of(c, NULL, buf); }
static void cell_best(const Compared *c, char *buf)
{
    const RunFacts *f  = &c->view->facts;
    double          at = NAN, best = series_extreme(c->series, facts_best(f), facts_best_larger(f), &at);
    number(buf, "%.4f", best);
    if (!isnan(best)) str_append(buf, CELL, " at %.0f", at);
}
static void cell_recent(const Compared *c, char *buf)
{
    runs_recent_steps(c->view, buf, CELL);
    if (!buf[0]) str_copy(buf, CELL, "n/a");
}
static void cell_rate(const Compared *c, char *buf)
{
    char   t[32];
    double x = runs_recent(c->view, "per_s");
    snprintf(buf, CELL, "%s %s/s", isnan(x) ? "n/a" : str_count(t, sizeof t, x), c->view->units);
}
static void cell_mfu(const Compared *c, char *buf)
{
    number(buf, "%.1f %%", 100 * runs_recent(c->view, "mfu"));
}
static void cell_tensor(const Compared *c, char *buf)
{
    number(buf, "%.1f %%", 100 * runs_recent(c->view, "tensor_active"));
}
static void cell_time(const Compared *c, char *buf)
{
    str_duration(buf, CELL, series_last(c->series, "time_s"));
}
static void cell_power(const Compared *c, char *buf)
{
    number(buf, "%.0f W", runs_recent(c->view, "power_w"));
}
static void cell_joules(const Compared *c, char *buf)
{
    double x = runs_recent(c->view, "j_per_unit");
    number(buf, "%.3g J", x);
    if (!isnan(x)) str_append(buf, CELL, "/%s", c->view->unit);
}
static void cell_kwh(const Compared *c, char *buf) { number(buf, "%.4g kWh", series_last(c->series, "kwh")); }

static const struct {
    const char *label;
    void (*cell)(const Compared *c, char *buf);
} rows[] = {
    { "state", cell_state },
    { "device", cell_device },
    { "step", cell_step },
    { "loss (last 20)", cell_loss },
    { "measure", cell_measure },
    { "validation", cell_val },
    { "best validation", cell_best },
    { "rate", cell_rate },
    { "MFU", cell_mfu },
    { "rate and MFU of steps", cell_recent },
    { "tensor active", cell_tensor },
    { "training time", cell_time },
    { "power", cell_power },
    { "energy per unit", cell_joules },
    { "energy", cell_kwh },
};

/* ---- Other measures ------------------------------------------------------------------------------------ */

enum { OTHERS = 12 };

/* Measures of evaluations beside the one that counts, of any of the runs; returns how many. */
static int list_others(const Compared *c, int n, const char *out[OTHERS])
{
    int n_out = 0;
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < c[i].series->n_key; k++) {
            const char *key = c[i].series->key[k];
            int has = !str_starts_with(key, "val_") || strcmp(key, facts_best(&c[i].view->facts)) == 0;
            for (int o = 0; o < n_out && !has; o++) has = strcmp(out[o], key) == 0;
            if (!has && n_out < OTHERS) out[n_out++] = key;
        }
    }
    return n_out;
}

/* The newest value. What compares runs of any targets also has its best one, as the measure that counts. */
static void cell_other(const Compared *c, const char *key, char *buf)
{
    const RunFacts *f  = &c->view->facts;
    double          at = NAN, x = series_last(c->series, key);
    number(buf, "%.4f", x);
    if (isnan(x) || strcmp(f->fair, key) != 0) return;
    double best = series_extreme(c->series, key, facts_best_larger(f), &at);
    str_append(buf, CELL, ", best %.4f at %.0f", best, at);
}

/* The size of a target, but for a constant factor; NAN: not known. */
static double target_size(const Compared *c)
{
    const RunFacts *f = &c->view->facts;
    double          x = f->fair[0] ? series_last(c->series, f->fair) : NAN;
    return x > 0 ? series_last(c->series, facts_best(f)) / x : NAN;
}

/* 1: all runs have the same measures, and their targets differ in size. */
static int targets_differ(const Compared *c, int n)
{
    const double same   = 1e-3; /* both measures come from a file */
    double       first  = target_size(&c[0]);
    int          differ = 0;
    for (int i = 1; i < n; i++) {
        double size = target_size(&c[i]);
        if (!(first > 0) || !(size > 0) || strcmp(c[i].view->facts.fair, c[0].view->facts.fair) != 0)
            return 0;
        differ |= fabs(size / first - 1) > same;
    }
    return differ;
}

static void put_targets(FILE *out, const Compared *c, int n)
{
    char            fair[SERIES_NAME], best[SERIES_NAME];
    const RunFacts *f = &c[0].view->facts;
    if (!targets_differ(c, n)) return;
    fprintf(out, "\nthe targets of these runs differ in size (1");
    for (int i = 1; i < n; i++) fprintf(out, " : %.3f", target_size(&c[i]) / target_size(&c[0]));
    fprintf(out, "): compare %s, not %s\n", facts_measure_name(f->fair, fair, sizeof fair),
            facts_measure_name(facts_best(f), best, sizeof best));
}

/* ---- Recipes ------------------------------------------------------------------------------------------- */

/* Walks "key: value" lines of a resolved recipe, two levels deep. 1: the next one is in key and value. */
static int next_key(const char **at, char *section, char *key, char *value)
{
    while (**at) {
        size_t      len   = strcspn(*at, "\n"), name;
        const char *line  = *at;
        int         inner = line[0] == ' ';
        *at += len + (line[len] == '\n');
        line += strspn(line, " ");
        name = strcspn(line, ":\n");
        if (line[name] != ':' || line[0] == '#' || name == 0 || name >= 40) continue;
        const char *text = line + name + 1 + strspn(line + name + 1, " ");
        size_t      n    = strcspn(text, "\n");
        if (!inner) section[0] = '\0';
        if (n == 0) {
            snprintf(section, 48, "%.*s.", (int)name, line);
            continue;
        }
        snprintf(key, 96, "%s%.*s", section, (int)name, line);
        snprintf(value, VALUE, "%.*s", (int)MIN(n, VALUE - 1), text);
        return 1;
    }
    return 0;
}

/* 0: this recipe has no such key, and buf is "-". */
static int value_of(const char *recipe, const char *want, char *buf)
{
    char section[48] = "", key[96], value[VALUE];
    int  has         = 0;
    str_copy(buf, VALUE, "-");
    while (recipe && next_key(&recipe, section, key, value)) {
        if (strcmp(key, want) != 0) continue;
        str_copy(buf, VALUE, value);
        has = 1;
    }
    return has;
}

/* At most n columns: of a longer value the end, where paths differ. */
static void shorten(char *cell, const char *value, int n)
{
    const char *cut = "...", *end = value;
    if (str_columns(value) <= n && strlen(value) < CELL) {
        str_copy(cell, CELL, value);
        return;
    }
    int most = n - (int)strlen(cut);
    while (*end && (str_columns(end) > most || strlen(end) + strlen(cut) >= CELL)) end++;
    while (((unsigned char)*end & 0xc0) == 0x80) end++; /* not into a character */
    snprintf(cell, CELL, "%s%s", cut, end);
}

/* ---- The table ----------------------------------------------------------------------------------------- */

static void put_row(FILE *out, const char *label, char cell[][CELL], const int *width, int n)
{
    fprintf(out, "%-*s ", LABEL, label);
    for (int i = 0; i < n; i++) {
        if (i > 0) fputs("  ", out);
        str_print_padded(out, cell[i], i == n - 1 ? str_columns(cell[i]) : width[i]);
    }
    fputc('\n', out);
}

static int is_different(const Compared *c, int n, const char *key)
{
    char value[VALUE], first[VALUE];
    int  differ = 0;
    value_of(c[0].recipe, key, first);
    for (int i = 1; i < n; i++) {
        value_of(c[i].recipe, key, value);
        differ |= strcmp(value, first) != 0;
    }
    return differ;
}

static void put_key(FILE *out, const Compared *c, const int *width, int n, const char *key)
{
    char value[VALUE], cell[COMPARE_RUNS][CELL];
    for (int i = 0; i < n; i++) {
        value_of(c[i].recipe, key, value);
        shorten(cell[i], value, i == n - 1 ? CELL : width[i]);
    }
    put_row(out, key, cell, width, n);
}

/* 1: the seed is the only key that differs. */
static int put_differences(FILE *out, const Compared *c, const int *width, int n)
{
    char key[96], value[VALUE], seen[VALUE];
    int  n_shown = 0, is_seed = 1;
    for (int r = 0; r < n; r++) {
        const char *at          = c[r].recipe;
        char        section[48] = "";
        for (int k = 0; at && k < KEYS && next_key(&at, section, key, value); k++) {
            int skip = strcmp(key, "run") == 0;
            for (int i = 0; i < r && !skip; i++) skip = value_of(c[i].recipe, key, seen); /* was looked at */
            if (skip || !is_different(c, n, key)) continue;
            if (n_shown++ == 0) fprintf(out, "\nkeys that differ\n");
            put_key(out, c, width, n, key);
            is_seed &= strcmp(key, "seed") == 0;
        }
    }
    if (n_shown == 0 && n > 1) fprintf(out, "\nno key of the recipes differs\n");
    return n_shown > 0 && is_seed;
}

static double best_of(const Compared *c)
{
    const RunFacts *f = &c->view->facts;
    double          at;
    return series_extreme(c->series, facts_best(f), facts_best_larger(f), &at);
}

static double newest_of(const Compared *c) { return series_last(c->series, facts_best(&c->view->facts)); }

/* "240.65 +- 111.85": mean and sample deviation. */
static void put_mean(FILE *out, const char *what, const Compared *c, int n,
                     double (*value)(const Compared *c))
{
    double sum = 0, squares = 0;
    for (int i = 0; i < n; i++) sum += value(&c[i]);
    for (int i = 0; i < n; i++) squares += (value(&c[i]) - sum / n) * (value(&c[i]) - sum / n);
    fprintf(out, "%s %.4f +- %.4f", what, sum / n, sqrt(squares / (n - 1)));
}

/* Runs that differ in the seed alone are draws of one experiment. */
static void put_seeds(FILE *out, const Compared *c, int n)
{
    char name[SERIES_NAME];
    for (int i = 0; i < n; i++) {
        if (isnan(newest_of(&c[i])) || series_step(c[i].series) != series_step(c[0].series)) return;
    }
    fprintf(out, "\n%s of %d seeds, mean +- deviation: ",
            facts_measure_name(facts_best(&c->view->facts), name, sizeof name), n);
    put_mean(out, "last", c, n, newest_of);
    put_mean(out, ", best", c, n, best_of);
    fputc('\n', out);
}

/* 1: there is nothing in the row. */
static int is_empty(char cell[][CELL], int n)
{
    int n_empty = 0;
    for (int i = 0; i < n; i++) n_empty += strcmp(cell[i], "n/a") == 0;
    return n_empty == n;
}

/* Runs of several folders are told apart by their folders. */
static void title_of(const Compared *c, int n, int i, char *cell)
{
    char path[RUNS_NAME + 1032];
    int  many = 0;
    for (int k = 1; k < n; k++) many |= strcmp(c[k].runs->base, c[0].runs->base) != 0;
    snprintf(path, sizeof path, "%s/%s", c[i].runs->base, c[i].view->name);
    shorten(cell, many ? path : c[i].view->name, CELL - 1);
}

static void put_others(FILE *out, const Compared *c, const int *width, int n)
{
    const char *key[OTHERS];
    char        cell[COMPARE_RUNS][CELL], label[SERIES_NAME + 16], name[SERIES_NAME];
    int         n_key = list_others(c, n, key);
    for (int k = 0; k < n_key; k++) {
        for (int i = 0; i < n; i++) cell_other(&c[i], key[k], cell[i]);
        snprintf(label, sizeof label, "validation %s", facts_measure_name(key[k], name, sizeof name));
        put_row(out, label, cell, width, n);
    }
}

static void put_table(FILE *out, const Compared *c, int n)
{
    char        cell[COMPARE_RUNS][CELL];
    int         width[COMPARE_RUNS] = { 0 };
    const char *other[OTHERS];
    int         n_other = list_others(c, n, other);
    for (int i = 0; i < n; i++) {
        for (int r = 0; r < ARRAY_LEN(rows); r++) {
            rows[r].cell(&c[i], cell[i]);
            width[i] = MAX(width[i], str_columns(cell[i]));
        }
        for (int o = 0; o < n_other; o++) {
            cell_other(&c[i], other[o], cell[i]);
            width[i] = MAX(width[i], str_columns(cell[i]));
        }
        title_of(c, n, i, cell[i]);
        width[i] = MAX(width[i], str_columns(cell[i]));
    }
    put_row(out, "", cell, width, n);
    for (int r = 0; r < ARRAY_LEN(rows); r++) {
        for (int i = 0; i < n; i++) rows[r].cell(&c[i], cell[i]);
        if (!is_empty(cell, n)) put_row(out, rows[r].label, cell, width, n);
        if (rows[r].cell == cell_best) put_others(out, c, width, n);
    }
    put_targets(out, c, n);
    if (put_differences(out, c, width, n)) put_seeds(out, c, n);
}

static int put_json(FILE *out, const Compared *c, int n)
{
    static const char *const key[]  = { "step", "time_s", "energy_j", "kwh" };
    static const char *const mean[] = { "loss", "per_s", "mfu", "tensor_active", "power_w", "j_per_unit" };
    for (int i = 0; i < n; i++) {
        JsonOut o;
        double  at = NAN;
        char    steps[CELL];
        json_out_init_file(&o, out);
        json_out_object(&o, NULL);
        json_out_str(&o, "run", c[i].view->name);
        json_out_str(&o, "state", runs_state_name(c[i].view->state));
        json_out_str(&o, "device", c[i].view->device);
        json_out_str(&o, "unit", c[i].view->unit);
        json_out_int(&o, "steps", c[i].view->steps);
        for (int k = 0; k < ARRAY_LEN(key); k++) json_out_num(&o, key[k], series_last(c[i].series, key[k]));
        json_out_str(&o, "rate_steps", runs_recent_steps(c[i].view, steps, sizeof steps));
        for (int k = 0; k < ARRAY_LEN(mean); k++) json_out_num(&o, mean[k], runs_recent(c[i].view, mean[k]));
        for (int k = 0; k < c[i].series->n_key; k++) {
            const char *name = c[i].series->key[k];
            if (str_starts_with(name, "val_")) json_out_num(&o, name, series_last(c[i].series, name));
        }
        const RunFacts *f = &c[i].view->facts;
        char            best[SERIES_NAME + 8];
        snprintf(best, sizeof best, "best_%s", facts_best(f));
        json_out_str(&o, "measure", facts_best(f));
        json_out_num(&o, best, series_extreme(c[i].series, facts_best(f), facts_best_larger(f), &at));
        json_out_num(&o, "best_step", at);
        if (f->fair[0]) json_out_str(&o, "fair", f->fair);
        TRY(json_out_end(&o));
    }
    return 0;
}

/* ---- Opening ------------------------------------------------------------------------------------------- */

static int open_run(const CompareRun *run, Compared *c)
{
    c->runs = (Runs *)calloc(1, sizeof *c->runs);
    if (!c->runs) return err_sys("memory for %s", run->name);
    TRY(runs_init_one(c->runs, run->base, run->name));
    runs_refresh(c->runs);
    c->view   = runs_need(c->runs, run->name);
    c->series = c->view ? runs_series(c->runs, c->view) : NULL;
    if (!c->series) return -1;
    c->recipe = runs_text(c->runs, c->view, "recipe.yaml", 1 << 16);
    return 0;
}

static void close_run(Compared *c)
{
    if (c->runs) runs_deinit(c->runs);
    free(c->runs);
    free(c->recipe);
}

/* ---- The picture --------------------------------------------------------------------------------------- */

static void add_plot(SvgPlot *p, const char *title, const Compared *c, int n, const char *key)
{
    *p = (SvgPlot){ .title = title, .scale = 1 };
    for (int i = 0; i < n; i++) {
        const char   *own = key ? key : facts_best(&c[i].view->facts);
        const Series *s   = c[i].series;
        int           col = series_find(s, own);
        p->line[p->n_line++] =
            (SvgLine){ c[i].title, s->column[0], col < 0 ? NULL : s->column[col], col < 0 ? 0 : s->n_row };
    }
}

static int write_picture(Compared *c, int n, const char *path)
{
    SvgPlot plot[3];
    char    measure[CELL + 32], cell[CELL], rate[64];
    int     alike = 1, same = 1;
    for (int i = 0; i < n; i++) {
        title_of(c, n, i, c[i].title);
        alike &= strcmp(c[i].view->units, c[0].view->units) == 0;
        same &= strcmp(facts_best(&c[i].view->facts), facts_best(&c[0].view->facts)) == 0;
    }
    const char *fair = targets_differ(c, n) ? c[0].view->facts.fair : NULL;
    measure_of(&c[0], fair, cell);
    snprintf(measure, sizeof measure, "Validation%s%s", same ? " " : ", own measures", same ? cell : "");
    snprintf(rate, sizeof rate, "Rate, %s/s", alike ? c[0].view->units : "own units");
    add_plot(&plot[0], "Loss", c, n, "loss");
    add_plot(&plot[1], measure, c, n, fair);
    add_plot(&plot[2], rate, c, n, "per_s");
    FILE *f = file_create_tmp(path);
    if (!f) return -1;
    int rc = svg_picture(f, plot, ARRAY_LEN(plot)) ? 0 : err_user("%s: these runs have too few steps", path);
    if (rc == 0) rc = ferror(f) ? err_sys("%s", path) : file_publish(&f, path);
    file_discard(&f);
    return rc;
}

/* ---- All ----------------------------------------------------------------------------------------------- */

static int open_runs(const CompareRun *run, int n, Compared *c)
{
    CHECK(n <= COMPARE_RUNS, "%d runs", n);
    for (int i = 0; i < n; i++) TRY(open_run(&run[i], &c[i]));
    return 0;
}

int compare_print(const CompareRun *run, int n, int as_json, FILE *out)
{
    Compared c[COMPARE_RUNS] = { 0 };
    int      rc              = open_runs(run, n, c);
    if (rc == 0 && as_json) rc = put_json(out, c, n);
    if (rc == 0 && !as_json) put_table(out, c, n);
    for (int i = 0; i < n; i++) close_run(&c[i]);
    return rc;
}

int compare_picture(const CompareRun *run, int n, const char *path)
{
    Compared c[COMPARE_RUNS] = { 0 };
    int      rc              = open_runs(run, n, c);
    if (rc == 0) rc = write_picture(c, n, path);
    for (int i = 0; i < n; i++) close_run(&c[i]);
    return rc;
}
