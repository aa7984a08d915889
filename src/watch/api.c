#include "watch/api.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "watch/sampleview.h"
#include "watch/waterfall.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT_BYTES = 1 << 16 };

/* What the newest line of a run is asked for. */
static const char *const run_fields[] = {
    "step",
    "loss",
    "lr",
    "grad_norm",
    "per_s",
    "mfu",
    "time_s",
    "data_wait_s",
    "sm_active",
    "tensor_active",
    "dram_active",
    "gpu_util",
    "gpu_mem_bytes",
    "power_w",
    "power_limit_w",
    "energy_j",
    "j_per_unit",
    "kwh",
    "temp_c",
    "sm_mhz",
    "cpu",
    "own_cpu",
    "rss_bytes",
    "ram_bytes",
    "ram_total_bytes",
};

/* Another one when the file was replaced: then all of it must be read again. */
static void put_epoch(JsonOut *o, const Series *s)
{
    char text[48];
    snprintf(text, sizeof text, "%llu.%d", (unsigned long long)s->inode, s->epoch);
    json_out_str(o, "epoch", text);
}

static void put_run(JsonOut *o, const RunView *v)
{
    json_out_object(o, NULL);
    json_out_str(o, "name", v->name);
    json_out_str(o, "state", runs_state_name(v->state));
    json_out_int(o, "steps", v->steps);
    json_out_str(o, "unit", v->unit);
    json_out_str(o, "device", v->device);
    json_out_str(o, "activity", v->activity);
    put_epoch(o, &v->tail);
    json_out_str(o, "facts", v->facts_mark); /* another one when they changed */
    json_out_int(o, "log_bytes", v->log_bytes);
    json_out_num(o, "age_s", MAX(0, clock_wall_s() - v->changed_s));
    for (int i = 0; i < ARRAY_LEN(run_fields); i++) {
        double x = series_last(&v->tail, run_fields[i]);
        if (!isnan(x)) json_out_num(o, run_fields[i], x);
    }
    for (int i = 0; i < v->tail.n_key; i++) {
        double x = series_last(&v->tail, v->tail.key[i]);
        if (str_starts_with(v->tail.key[i], "val_") && !isnan(x)) json_out_num(o, v->tail.key[i], x);
    }
    json_out_str(o, "units", v->units);
    json_out_str(o, "measure", facts_best(&v->facts));
    json_out_bool(o, "larger_is_better", facts_best_larger(&v->facts));
    json_out_array(o, "larger");
    for (int i = 0; i < v->facts.n_metric; i++)
        if (v->facts.metric[i].larger) json_out_str(o, NULL, v->facts.metric[i].name);
    json_out_close(o);
    const char *reasons = series_text(&v->tail, "clock_reasons");
    if (*reasons) json_out_str(o, "clock_reasons", reasons);
    json_out_close(o);
}

static void put_gpu(JsonOut *o, const GpuView *g)
{
    char text[160];
    json_out_object(o, NULL);
    json_out_str(o, "name", g->name);
    json_out_num(o, "util", g->now.gpu_util / 100);
    json_out_num(o, "sm_active", g->activity.sm_active / 100);
    json_out_num(o, "tensor_active", g->activity.tensor_active / 100);
    json_out_num(o, "dram_active", g->activity.dram_active / 100);
    json_out_num(o, "mem_bytes", g->now.memory_used_bytes);
    json_out_num(o, "mem_total_bytes", g->now.memory_total_bytes);
    json_out_num(o, "power_w", g->now.power_w);
    json_out_num(o, "power_limit_w", g->now.power_limit_w);
    json_out_num(o, "sm_mhz", g->now.sm_mhz);
    json_out_num(o, "temp_c", g->now.temperature_c);
    json_out_num(o, "ecc_errors", g->ecc_errors);
    if (g->now.has_reasons)
        json_out_str(o, "clock_reasons", nvml_reasons_text(text, sizeof text, g->now.reasons));
    json_out_array(o, "processes");
    for (int i = 0; i < MIN(g->n_process, GPUS_PROCESSES); i++) {
        json_out_object(o, NULL);
        json_out_int(o, "pid", g->process[i].pid);
        json_out_str(o, "name", g->process[i].name);
        json_out_num(o, "bytes", g->process[i].used_bytes);
        json_out_close(o);
    }
    json_out_close(o);
    json_out_close(o);
}

int api_runs(const Runs *r, const Gpus *g, FILE *out)
{
    JsonOut o;
    json_out_init_file(&o, out);
    json_out_object(&o, NULL);
    json_out_object(&o, "host");
    json_out_str(&o, "name", g->host_name);
    json_out_str(&o, "cpu_name", g->cpu_name);
    json_out_int(&o, "cpus", g->n_cpu);
    json_out_num(&o, "cpu", g->rates.cpu);
    json_out_num(&o, "ram_bytes", g->host.memory_used_bytes);
    json_out_num(&o, "ram_total_bytes", g->host.memory_total_bytes);
    json_out_str(&o, "no_gpu", g->n_gpu == 0 ? g->why : NULL);
    json_out_close(&o);
    json_out_array(&o, "gpus");
    for (int i = 0; i < g->n_gpu; i++) put_gpu(&o, &g->gpu[i]);
    json_out_close(&o);
    json_out_array(&o, "runs");
    for (int i = 0; i < r->n_run; i++) put_run(&o, r->run[i]);
    return json_out_end(&o);
}

/* ---- One run ------------------------------------------------------------------------------------------- */

/* Seven digits are more than a plot shows; the text is a third as long. */
static double rounded(double x)
{
    if (!isfinite(x) || x == 0) return x;
    double m = pow(10, 6 - floor(log10(fabs(x))));
    return isfinite(m) && m > 0 && fabs(x) < 1e15 ? round(x * m) / m : x;
}

static void put_columns(JsonOut *o, const Series *s, double from)
{
    json_out_object(o, "columns");
    for (int c = 0; c < s->n_key; c++) {
        json_out_array(o, s->key[c]);
        for (int r = 0; r < s->n_row; r++) {
            if (s->column[0][r] < from) continue;
            json_out_num(o, NULL, c == 0 ? s->column[0][r] : rounded(s->column[c][r]));
        }
        json_out_close(o);
    }
    json_out_close(o);
}

static void put_plain(JsonOut *o, const Series *s)
{
    json_out_array(o, "plain");
    for (int c = 0; c < s->n_key; c++)
        if (series_is_plain(s->key[c])) json_out_str(o, NULL, s->key[c]);
    json_out_close(o);
}

static void put_waterfall(JsonOut *o, const Series *s, const RunFacts *f)
{
    WaterfallPart part[WATERFALL_PARTS];
    int           n = waterfall_of(s, f, part);
    json_out_array(o, "waterfall");
    for (int i = 0; i < n; i++) {
        json_out_object(o, NULL);
        json_out_str(o, "name", part[i].name);
        json_out_str(o, "note", part[i].note);
        json_out_str(o, "color", part[i].color);
        json_out_num(o, "share", part[i].share);
        json_out_close(o);
    }
    json_out_close(o);
}

static void put_texts(JsonOut *o, const Runs *r, const RunView *v)
{
    static const char *const file[] = { "plan.txt", "machine.txt", "recipe.yaml", "log.txt" };
    json_out_object(o, "texts");
    for (int i = 0; i < ARRAY_LEN(file); i++) {
        char *text = runs_text(r, v, file[i], TEXT_BYTES);
        if (text) json_out_str(o, file[i], text);
        free(text);
    }
    json_out_close(o);
}

/* {"from", "to", "text"}: bytes of the log. A page asks for what is behind `to` next. */
static void put_log(JsonOut *o, const Runs *r, const RunView *v, int64_t from)
{
    int64_t to;
    char   *text = from >= 0 ? runs_log(r, v, &from, &to, TEXT_BYTES) : NULL;
    if (!text) return;
    json_out_object(o, "log");
    json_out_int(o, "from", from);
    json_out_int(o, "to", to);
    json_out_str(o, "text", text);
    json_out_close(o);
    free(text);
}

int api_run(Runs *r, RunView *v, double from, int64_t log, FILE *out)
{
    JsonOut o;
    Series *s = runs_series(r, v);
    if (!s) return -1;
    json_out_init_file(&o, out);
    json_out_object(&o, NULL);
    json_out_str(&o, "name", v->name);
    put_epoch(&o, s);
    json_out_int(&o, "stride", s->stride);
    put_columns(&o, s, from);
    put_plain(&o, s);
    put_waterfall(&o, s, &v->facts);
    sampleview_put(&o, r, v, from);
    if (from <= 0) put_texts(&o, r, v);
    put_log(&o, r, v, log);
    return json_out_end(&o);
}

/* ---- Prometheus ---------------------------------------------------------------------------------------- */

/* A label's value: backslash, quotation mark and line break are escaped. */
static void put_label(FILE *out, const char *name, const char *value)
{
    fprintf(out, "%s=\"", name);
    for (; *value; value++) {
        if (*value == '\\' || *value == '"') fputc('\\', out);
        if (*value != '\n') fputc(*value, out);
    }
    fputc('"', out);
}

static void put_head(FILE *out, const char *name, const char *type, const char *help)
{
    fprintf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static const struct {
    const char *key, *name, *type, *help;
} run_metrics[] = {
    { "step", "brim_run_step", "gauge", "Updates done." },
    { "loss", "brim_run_loss", "gauge", "Training loss of the newest step." },
    { "grad_norm", "brim_run_gradient_norm", "gauge", "Norm of the whole gradient." },
    { "lr", "brim_run_learning_rate", "gauge", "Learning rate." },
    { "per_s", "brim_run_units_per_second", "gauge", "Units (label unit) a second, smoothed." },
    { "mfu", "brim_run_mfu_ratio", "gauge", "Model FLOPs as a share of the device's peak." },
    { "sm_active", "brim_run_sm_active_ratio", "gauge", "SM cycles with a warp resident." },
    { "tensor_active", "brim_run_tensor_active_ratio", "gauge", "Cycles with a tensor pipe busy." },
    { "dram_active", "brim_run_dram_active_ratio", "gauge", "Share of the memory's peak bandwidth." },
    { "time_s", "brim_run_training_seconds_total", "counter", "Seconds of training over all starts." },
    { "energy_j", "brim_run_energy_joules_total", "counter", "Energy of the run on its first device." },
    { "j_per_unit", "brim_run_joules_per_unit", "gauge", "Energy of one unit." },
    { "power_w", "brim_run_power_watts", "gauge", "Power of the device." },
    { "rss_bytes", "brim_run_resident_memory_bytes", "gauge", "Host memory of the process." },
};

static void prometheus_runs(const Runs *r, FILE *out)
{
    for (int m = 0; m < ARRAY_LEN(run_metrics); m++) {
        put_head(out, run_metrics[m].name, run_metrics[m].type, run_metrics[m].help);
        for (int i = 0; i < r->n_run; i++) {
            double x = series_last(&r->run[i]->tail, run_metrics[m].key);
            if (isnan(x)) continue;
            fprintf(out, "%s{", run_metrics[m].name);
            put_label(out, "run", r->run[i]->name);
            fputc(',', out);
            put_label(out, "unit", r->run[i]->unit);
            fprintf(out, "} %.10g\n", x);
        }
    }
    put_head(out, "brim_run_validation", "gauge", "Newest evaluation, by measure.");
    for (int i = 0; i < r->n_run; i++) {
        const Series *s = &r->run[i]->tail;
        for (int k = 0; k < s->n_key; k++) {
            double x = series_last(s, s->key[k]);
            if (!str_starts_with(s->key[k], "val_") || isnan(x)) continue;
            fputs("brim_run_validation{", out);
            put_label(out, "run", r->run[i]->name);
            fputc(',', out);
            put_label(out, "measure", s->key[k] + strlen("val_"));
            fprintf(out, "} %.10g\n", x);
        }
    }
    put_head(out, "brim_run_training", "gauge", "1 while a process trains the run.");
    for (int i = 0; i < r->n_run; i++) {
        fputs("brim_run_training{", out);
        put_label(out, "run", r->run[i]->name);
        fprintf(out, "} %d\n", r->run[i]->state == RUN_TRAINING);
    }
}

static const struct {
    const char *name, *type, *help;
    size_t      field;
    double      unit;
} gpu_metrics[] = {
    { "brim_gpu_utilization_ratio", "gauge", "Time with any kernel running.", offsetof(GpuView, now.gpu_util),
      0.01 },
    { "brim_gpu_sm_active_ratio", "gauge", "SM cycles with a warp resident.",
      offsetof(GpuView, activity.sm_active), 0.01 },
    { "brim_gpu_tensor_active_ratio", "gauge", "Cycles with a tensor pipe busy.",
      offsetof(GpuView, activity.tensor_active), 0.01 },
    { "brim_gpu_dram_active_ratio", "gauge", "Share of the memory's peak bandwidth.",
      offsetof(GpuView, activity.dram_active), 0.01 },
    { "brim_gpu_memory_used_bytes", "gauge", "Device memory in use.",
      offsetof(GpuView, now.memory_used_bytes), 1 },
    { "brim_gpu_memory_size_bytes", "gauge", "Device memory there is.",
      offsetof(GpuView, now.memory_total_bytes), 1 },
    { "brim_gpu_power_watts", "gauge", "Power.", offsetof(GpuView, now.power_w), 1 },
    { "brim_gpu_power_limit_watts", "gauge", "Enforced power limit.", offsetof(GpuView, now.power_limit_w),
      1 },
    { "brim_gpu_energy_joules_total", "counter", "Energy since the driver was loaded.",
      offsetof(GpuView, energy_j), 1 },
    { "brim_gpu_sm_clock_hertz", "gauge", "SM clock.", offsetof(GpuView, now.sm_mhz), 1e6 },
    { "brim_gpu_temperature_celsius", "gauge", "Temperature.", offsetof(GpuView, now.temperature_c), 1 },
    { "brim_gpu_ecc_errors_total", "counter", "Uncorrected memory errors since the driver was loaded.",
      offsetof(GpuView, ecc_errors), 1 },
};

static void prometheus_gpus(const Gpus *g, FILE *out)
{
    for (int m = 0; m < ARRAY_LEN(gpu_metrics) && g->n_gpu > 0; m++) {
        put_head(out, gpu_metrics[m].name, gpu_metrics[m].type, gpu_metrics[m].help);
        for (int i = 0; i < g->n_gpu; i++) {
            double x;
            memcpy(&x, (const char *)&g->gpu[i] + gpu_metrics[m].field, sizeof x);
            if (isnan(x)) continue;
            fprintf(out, "%s{gpu=\"%d\",", gpu_metrics[m].name, i);
            put_label(out, "name", g->gpu[i].name);
            fprintf(out, "} %.10g\n", x * gpu_metrics[m].unit);
        }
    }
}

void api_prometheus(const Runs *r, const Gpus *g, FILE *out)
{
    prometheus_runs(r, out);
    prometheus_gpus(g, out);
    put_head(out, "brim_host_cpu_ratio", "gauge", "Share of all CPUs that is busy.");
    if (!isnan(g->rates.cpu)) fprintf(out, "brim_host_cpu_ratio %.10g\n", g->rates.cpu);
    put_head(out, "brim_host_memory_used_bytes", "gauge", "Host memory in use.");
    fprintf(out, "brim_host_memory_used_bytes %.10g\n", g->host.memory_used_bytes);
    put_head(out, "brim_host_memory_size_bytes", "gauge", "Host memory there is.");
    fprintf(out, "brim_host_memory_size_bytes %.10g\n", g->host.memory_total_bytes);
}
