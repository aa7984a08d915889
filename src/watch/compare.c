#include "watch/compare.h"

#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "watch/runs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { COMPARED = 16, CELL = 48, VALUE = 1024, LABEL = 26, KEYS = 512, LAST = 20 };

typedef struct {
    RunView *view;
    Series  *series;
    char    *recipe;
} Compared;

/* ---- Figures ------------------------------------------------------------------------------------------- */

static void cell_state(const Compared *c, char *buf) { str_copy(buf, CELL, runs_state_name(c->view->state)); }
static void cell_device(const Compared *c, char *buf) { str_copy(buf, CELL, c->view->device); }

static void cell_step(const Compared *c, char *buf)
{
    double step = series_last(c->series, "step");
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

static void cell_loss(const Compared *c, char *buf)
{
    number(buf, "%.4f", series_mean(&c->view->tail, "loss", LAST));
}
static void cell_val(const Compared *c, char *buf)
{
    number(buf, "%.4f", series_last(c->series, facts_best(&c->view->facts)));
}
static void cell_measure(const Compared *c, char *buf)
{
    const char *key = facts_best(&c->view->facts);
    snprintf(buf, CELL, "%s, %s is better", str_starts_with(key, "val_") ? key + strlen("val_") : key,
             facts_best_larger(&c->view->facts) ? "larger" : "smaller");
}
static void cell_best(const Compared *c, char *buf)
{
    const RunFacts *f  = &c->view->facts;
    double          at = NAN, best = series_extreme(c->series, facts_best(f), facts_best_larger(f), &at);
    number(buf, "%.4f", best);
    if (!isnan(best)) str_append(buf, CELL, " at %.0f", at);
}
static void cell_rate(const Compared *c, char *buf)
{
    char   t[32];
    double x = series_mean(&c->view->tail, "per_s", LAST);
    snprintf(buf, CELL, "%s %s/s", isnan(x) ? "n/a" : str_count(t, sizeof t, x), c->view->units);
}
static void cell_mfu(const Compared *c, char *buf)
{
    number(buf, "%.1f %%", 100 * series_mean(&c->view->tail, "mfu", LAST));
}
static void cell_tensor(const Compared *c, char *buf)
{
    number(buf, "%.1f %%", 100 * series_mean(&c->view->tail, "tensor_active", LAST));
}
static void cell_time(const Compared *c, char *buf)
{
    str_duration(buf, CELL, series_last(c->series, "time_s"));
}
static void cell_power(const Compared *c, char *buf)
{
    number(buf, "%.0f W", series_mean(&c->view->tail, "power_w", LAST));
}
static void cell_joules(const Compared *c, char *buf)
{
    double x = series_mean(&c->view->tail, "j_per_unit", LAST);
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
    { "tensor active", cell_tensor },
    { "training time", cell_time },
    { "power", cell_power },
    { "energy per unit", cell_joules },
    { "energy", cell_kwh },
};

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

static void value_of(const char *recipe, const char *want, char *buf)
{
    char section[48] = "", key[96], value[VALUE];
    str_copy(buf, VALUE, "-");
    while (recipe && next_key(&recipe, section, key, value)) {
        if (strcmp(key, want) == 0) str_copy(buf, VALUE, value);
    }
}

/* At most n bytes: of a longer value the end, where paths differ. */
static void shorten(char *cell, const char *value, int n)
{
    const char *end = value + strlen(value);
    n               = MIN(n, CELL - 1);
    if (end - value <= n) {
        str_copy(cell, CELL, value);
        return;
    }
    end -= n - (int)strlen("...");
    while (((unsigned char)*end & 0xc0) == 0x80) end++; /* not into a character */
    snprintf(cell, CELL, "...%s", end);
}

/* ---- The table ----------------------------------------------------------------------------------------- */

static void put_row(FILE *out, const char *label, char cell[][CELL], const int *width, int n)
{
    fprintf(out, "%-*s ", LABEL, label);
    for (int i = 0; i < n; i++) fprintf(out, "%s%-*s", i ? "  " : "", i == n - 1 ? 0 : width[i], cell[i]);
    fputc('\n', out);
}

static void put_differences(FILE *out, const Compared *c, const int *width, int n)
{
    const char *at          = c[0].recipe;
    char        section[48] = "", key[96], value[VALUE], first[VALUE], cell[COMPARED][CELL];
    int         n_shown     = 0;
    for (int k = 0; at && k < KEYS && next_key(&at, section, key, value); k++) {
        int differ = 0;
        if (strcmp(key, "run") == 0) continue;
        str_copy(first, sizeof first, value);
        for (int i = 0; i < n; i++) {
            value_of(c[i].recipe, key, value);
            differ |= strcmp(value, first) != 0;
            shorten(cell[i], value, i == n - 1 ? CELL : width[i]);
        }
        if (!differ) continue;
        if (n_shown++ == 0) fprintf(out, "\nkeys that differ\n");
        put_row(out, key, cell, width, n);
    }
    if (n_shown == 0 && n > 1) fprintf(out, "\nno key of the recipes differs\n");
}

static void put_table(FILE *out, const Compared *c, int n)
{
    char cell[COMPARED][CELL];
    int  width[COMPARED] = { 0 };
    for (int i = 0; i < n; i++) {
        width[i] = (int)MIN(strlen(c[i].view->name), CELL - 1);
        for (int r = 0; r < ARRAY_LEN(rows); r++) {
            rows[r].cell(&c[i], cell[i]);
            width[i] = MAX(width[i], (int)strlen(cell[i]));
        }
        snprintf(cell[i], CELL, "%.*s", CELL - 1, c[i].view->name);
    }
    put_row(out, "", cell, width, n);
    for (int r = 0; r < ARRAY_LEN(rows); r++) {
        for (int i = 0; i < n; i++) rows[r].cell(&c[i], cell[i]);
        put_row(out, rows[r].label, cell, width, n);
    }
    put_differences(out, c, width, n);
}

static int put_json(FILE *out, const Compared *c, int n)
{
    static const char *const key[]  = { "step", "time_s", "energy_j", "kwh" };
    static const char *const mean[] = { "loss", "per_s", "mfu", "tensor_active", "power_w", "j_per_unit" };
    for (int i = 0; i < n; i++) {
        JsonOut o;
        double  at = NAN;
        json_out_init_file(&o, out);
        json_out_object(&o, NULL);
        json_out_str(&o, "run", c[i].view->name);
        json_out_str(&o, "state", runs_state_name(c[i].view->state));
        json_out_str(&o, "device", c[i].view->device);
        json_out_str(&o, "unit", c[i].view->unit);
        json_out_int(&o, "steps", c[i].view->steps);
        for (int k = 0; k < ARRAY_LEN(key); k++) json_out_num(&o, key[k], series_last(c[i].series, key[k]));
        for (int k = 0; k < ARRAY_LEN(mean); k++)
            json_out_num(&o, mean[k], series_mean(&c[i].view->tail, mean[k], LAST));
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
        TRY(json_out_end(&o));
    }
    return 0;
}

/* ---- Opening ------------------------------------------------------------------------------------------- */

/* Each run has its own series, so that more can be compared than Runs keeps open. */
static int open_run(Runs *r, const char *name, Compared *c)
{
    c->view = runs_need(r, name);
    if (!c->view) return -1;
    c->series = (Series *)calloc(1, sizeof *c->series);
    if (!c->series) return err_sys("memory for %s", name);
    TRY(series_init(c->series, c->view->tail.path, SERIES_ROWS, -1));
    TRY(series_follow(c->series));
    c->recipe = runs_text(r, c->view, "recipe.yaml", 1 << 16);
    return 0;
}

int compare_print(const char *base, char *const *names, int n, int as_json, FILE *out)
{
    Compared c[COMPARED] = { 0 };
    Runs    *r           = (Runs *)calloc(1, sizeof *r);
    if (!r) return err_sys("memory to compare");
    CHECK(n <= COMPARED, "%d runs", n);
    int rc = runs_init(r, base);
    if (rc == 0) runs_refresh(r);
    for (int i = 0; i < n && rc == 0; i++) rc = open_run(r, names[i], &c[i]);
    if (rc == 0 && as_json) rc = put_json(out, c, n);
    if (rc == 0 && !as_json) put_table(out, c, n);
    for (int i = 0; i < n; i++) {
        if (c[i].series) series_deinit(c[i].series);
        free(c[i].series);
        free(c[i].recipe);
    }
    runs_deinit(r);
    free(r);
    return rc;
}
