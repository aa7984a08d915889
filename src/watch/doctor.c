#include "watch/doctor.h"

#include "base/err.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "watch/runs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- evidence ------------------------------------------------------------------------------------------ */

static double share_of(const Doctor *d, FallPart part)
{
    for (int i = 0; i < d->n_part; i++)
        if (d->part[i].part == part) return d->part[i].share;
    return NAN;
}

static double share_or_0(const Doctor *d, FallPart part)
{
    double share = share_of(d, part);
    return isnan(share) ? 0 : share;
}

double doctor_step_share(const Doctor *d, FallPart part)
{
    return share_of(d, part) / (1 - share_or_0(d, FALL_EVAL) - share_or_0(d, FALL_SAVE));
}

static int read_run(Doctor *d, Runs *runs, const char *base, const char *name)
{
    TRY(runs_init_one(runs, base, name));
    runs_refresh(runs);
    RunView *v = runs_need(runs, name);
    Series  *s = v ? runs_series(runs, v) : NULL;
    if (!s) return -1;
    d->facts = v->facts;
    str_copy(d->name, sizeof d->name, v->name);
    waterfall_window(s, &d->facts, &d->window);
    return 0;
}

int doctor_open(Doctor *d, const RecipeFrom *from, const char *base, const char *name)
{
    memset(d, 0, sizeof *d);
    Runs *runs = mem_zeroed(1, sizeof *runs);
    if (!runs) return err_sys("memory for runs");
    int rc = read_run(d, runs, base, name);
    runs_deinit(runs);
    free(runs);
    return rc < 0 ? -1 : doctor_judge(d, from);
}

int doctor_judge(Doctor *d, const RecipeFrom *from)
{
    d->n_part = waterfall_from(&d->window, &d->facts, d->part);
    if (d->n_part == 0) return err_user("%s: too few steps to judge (20 or more are good)", d->name);
    double input = doctor_step_share(d, FALL_INPUT), gaps = doctor_step_share(d, FALL_GAPS);
    d->input_share = isnan(input) ? 0 : input;
    d->gap_share   = isnan(gaps) ? 0 : gaps;
    d->recipe      = whatif_recipe(from, NULL, 0);
    if (!d->recipe) return -1;
    doctor_find(d, from);
    return 0;
}

void doctor_close(Doctor *d)
{
    free(d->recipe);
    d->recipe = NULL;
}

int doctor_is_healthy(const Doctor *d)
{
    for (int i = 0; i < d->n_finding; i++)
        if (d->finding[i].gain >= DOCTOR_GAIN && !d->finding[i].is_other) return 0;
    return 1;
}

const char *doctor_why_healthy(const Doctor *d, char *buf, size_t n)
{
    int unknown = 0;
    for (int i = 0; i < d->n_finding; i++) unknown += isnan(d->finding[i].gain) != 0;
    snprintf(buf, n, "no change of the recipe promises %.0f %% or more", 100 * DOCTOR_GAIN);
    if (unknown) str_append(buf, n, "; %d gain%s cannot be predicted", unknown, str_plural(unknown));
    return buf;
}

/* ---- for people ---------------------------------------------------------------------------------------- */

static void print_finding(const Doctor *d, const Finding *x, int number, FILE *out)
{
    double now = 1e3 * d->window.step_s;
    fprintf(out, "%d. %s: %s\n", number, x->cause, x->verdict);
    if (isnan(x->gain)) {
        fprintf(out, "   gain     cannot be predicted\n");
    } else if (x->is_wall) {
        fprintf(out, "   gain     %.0f %% of the run's time\n", 100 * x->gain);
    } else {
        fprintf(out, "   gain     %.0f %%: %.4g -> %.4g ms a step\n", 100 * x->gain, now, 1e3 * x->step_s);
    }
    fprintf(out, "   why      %s\n", x->evidence);
    for (int i = 0; i < x->n_change; i++)
        fprintf(out, "   %s   %s\n", i == 0 ? "change" : "      ", x->change[i]);
    if (x->is_other) fprintf(out, "            trains something else: --apply leaves it alone\n");
    if (x->advice[0]) fprintf(out, "   advice   %s\n", x->advice);
}

static void print_tensor(const Doctor *d, FILE *out)
{
    double executed = waterfall_tensor(&d->window, &d->facts);
    if (isnan(executed)) return;
    fprintf(out, "tensor cores: executed FLOPs are %.1f %% of the peak at %.0f MHz", 100 * executed,
            d->window.sm_mhz);
    if (!isnan(d->window.tensor_active))
        fprintf(out, "; the card's counters say %.1f %%", 100 * d->window.tensor_active);
    fprintf(out, "\n");
}

/* What costs nothing here, because nothing of the kind came in these steps, is no gap in the measuring. */
static void print_none(const Doctor *d, FILE *out)
{
    int eval = d->window.eval_share == 0, save = d->window.save_share == 0;
    if (eval || save)
        fprintf(out, "none in these steps: %s%s%s\n", eval ? "evaluation" : "", eval && save ? ", " : "",
                save ? "checkpoints" : "");
}

static void print_missing(const Doctor *d, FILE *out)
{
    const RunFacts *f         = &d->facts;
    int             many      = 0;
    char            list[400] = "";
    const struct {
        int         is;
        const char *what;
    } row[] = { { !(f->trace.spans > 0), "time by op (trace: 3 measures it)" },
                { f->plan.capability > 0 && isnan(d->window.tensor_active), "SM and tensor activity" },
                { isnan(d->window.eval_share), "evaluation" },
                { isnan(d->window.save_share), "checkpoints" },
                { isnan(f->plan.peak_flops), "the share of a peak (this device's is not known)" },
                { isnan(d->window.power_w), "power" } };
    for (int i = 0; i < ARRAY_LEN(row); i++)
        if (row[i].is) str_append(list, sizeof list, "%s%s", many++ ? ", " : "", row[i].what);
    if (many) str_print_wrapped(out, list, fprintf(out, "not measured: "), 14);
}

void doctor_print(const Doctor *d, FILE *out)
{
    const FallWindow *w = &d->window;
    char              rate[32], why[128];
    double            sum = 0;
    fprintf(out, "%s on %s: %.4g ms a step, %s %s/s", d->name, d->facts.device, 1e3 * w->step_s,
            str_count(rate, sizeof rate, d->facts.units_per_step / w->step_s), d->facts.units);
    if (!isnan(w->mfu)) fprintf(out, ", MFU %.1f %%", 100 * w->mfu);
    fprintf(out, " (the %d steps looked at)\n\nwhere the time goes, by %s\n", w->n_step,
            waterfall_source(w, &d->facts));
    for (int i = 0; i < d->n_part; i++) {
        fprintf(out, "  %-26s %5.1f %%   %s\n", d->part[i].name, 100 * d->part[i].share, d->part[i].note);
        sum += d->part[i].share;
    }
    fprintf(out, "  %-26s %5.1f %%\n", "together", 100 * sum);
    print_tensor(d, out);
    print_none(d, out);
    print_missing(d, out);
    if (doctor_is_healthy(d)) {
        fprintf(out, "\nverdict: healthy; %s\n", doctor_why_healthy(d, why, sizeof why));
    } else {
        fprintf(out, "\nverdict: %s: %s\n", d->finding[0].cause, d->finding[0].verdict);
    }
    for (int i = 0; i < d->n_finding; i++) print_finding(d, &d->finding[i], i + 1, out);
}

/* ---- for programs -------------------------------------------------------------------------------------- */

static void put_finding(JsonOut *o, const Finding *x)
{
    json_out_object(o, NULL);
    json_out_str(o, "cause", x->cause);
    json_out_str(o, "verdict", x->verdict);
    json_out_str(o, "evidence", x->evidence);
    if (x->advice[0]) json_out_str(o, "advice", x->advice);
    json_out_array(o, "change");
    for (int i = 0; i < x->n_change; i++) json_out_str(o, NULL, x->change[i]);
    json_out_close(o);
    json_out_num(o, "gain", x->gain);
    json_out_num(o, "step_ms", 1e3 * x->step_s);
    json_out_bool(o, "of_wall_time", x->is_wall);
    json_out_bool(o, "trains_something_else", x->is_other);
    json_out_close(o);
}

/* What the judgment rests on, beside the facts. */
static void put_window(JsonOut *o, const FallWindow *w)
{
    const struct {
        const char *name;
        double      x;
    } row[] = { { "wall_s", w->wall_s },
                { "step_s", w->step_s },
                { "wait_s", w->wait_s },
                { "fill_s", w->fill_s },
                { "eval_share", w->eval_share },
                { "save_share", w->save_share },
                { "gpu_util", w->gpu_util },
                { "sm_active", w->sm_active },
                { "tensor_active", w->tensor_active },
                { "dram_active", w->dram_active },
                { "power_w", w->power_w },
                { "power_limit_w", w->power_limit_w },
                { "sm_mhz", w->sm_mhz },
                { "temp_c", w->temp_c },
                { "gpu_processes", w->processes },
                { "gpu_mem_bytes", w->memory_bytes },
                { "cpu", w->cpu },
                { "own_cpu", w->own_cpu } };
    json_out_object(o, "window");
    json_out_int(o, "steps", w->n_step);
    for (int i = 0; i < ARRAY_LEN(row); i++)
        if (isfinite(row[i].x)) json_out_num(o, row[i].name, row[i].x);
    if (w->reasons[0]) json_out_str(o, "clock_reasons", w->reasons);
    json_out_close(o);
}

int doctor_print_json(const Doctor *d, FILE *out)
{
    JsonOut o;
    json_out_init_file(&o, out);
    json_out_object(&o, NULL);
    json_out_str(&o, "run", d->name);
    json_out_str(&o, "device", d->facts.device);
    json_out_num(&o, "step_ms", 1e3 * d->window.step_s);
    json_out_num(&o, "mfu", d->window.mfu);
    json_out_str(&o, "source", waterfall_source(&d->window, &d->facts));
    json_out_array(&o, "waterfall");
    for (int i = 0; i < d->n_part; i++) {
        json_out_object(&o, NULL);
        json_out_str(&o, "name", d->part[i].name);
        json_out_num(&o, "share", d->part[i].share);
        json_out_close(&o);
    }
    json_out_close(&o);
    json_out_num(&o, "tensor_executed", waterfall_tensor(&d->window, &d->facts));
    json_out_num(&o, "tensor_active", d->window.tensor_active);
    json_out_bool(&o, "healthy", doctor_is_healthy(d));
    json_out_str(&o, "verdict", doctor_is_healthy(d) ? "healthy" : d->finding[0].cause);
    json_out_array(&o, "findings");
    for (int i = 0; i < d->n_finding; i++) put_finding(&o, &d->finding[i]);
    json_out_close(&o);
    put_window(&o, &d->window);
    json_out_object(&o, "facts");
    facts_put(&d->facts, &o);
    json_out_close(&o);
    return json_out_end(&o);
}

/* ---- the changed recipe -------------------------------------------------------------------------------- */

int doctor_apply(const Doctor *d, const RecipeFrom *from, const char *path)
{
    char key[WHATIF_KEYS][WHATIF_KEY];
    int  n = 0;
    for (int i = 0; i < d->n_finding; i++) {
        const Finding *x = &d->finding[i];
        if (x->is_other || !(x->gain >= DOCTOR_LEAST)) continue;
        for (int k = 0; k < x->n_change && n < WHATIF_KEYS - 1; k++)
            str_copy(key[n++], WHATIF_KEY, x->change[k]);
    }
    if (n == 0) return 0;
    snprintf(key[n], WHATIF_KEY, "run=%.80s-doctor", d->recipe->run);
    Recipe *r = whatif_recipe(from, key, n + 1);
    if (!r) return -1;
    FILE *f  = file_create_tmp(path);
    int   rc = f ? 0 : -1;
    if (f) recipe_write(r, f);
    if (rc == 0) rc = ferror(f) ? err_sys("%s", path) : file_publish(&f, path);
    file_discard(&f);
    free(r);
    return rc < 0 ? -1 : n;
}
