#include "watch/runwatch.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "conf/bind.h"
#include "file/events.h"
#include "run/metrics.h"
#include "run/rundir.h"
#include "watch/facts.h"
#include "watch/http.h"
#include "watch/meter.h"
#include "watch/planfacts.h"
#include "watch/report.h"
#include "watch/samples.h"
#include "watch/series.h"
#include "watch/tracer.h"
#include "watch/waterfall.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const double JOULES_PER_KWH = 3.6e6;

struct RunWatch {
    const Recipe *r;
    const char   *nvml_path;
    WatcherRun    run;
    RunFacts      facts;
    Tracer       *tracer;
    Samples       samples;
    char          dir[1024], name[RECIPE_STR];
    Meter        *meter;
    EventWriter  *events;
    HttpServer   *http;
    double        energy_0_j; /* of earlier starts */
    int           has_activity, events_failing;
    double        look_s, begin_s; /* runwatch_look(), and when the first step ended */
    WatcherStep   last;
    int64_t       n_step;
    dev_t         folder_device; /* with folder_inode: which folder it was at the beginning */
    ino_t         folder_inode;
};

int runwatch_check(const Recipe *r)
{
    if (!r->watch.web || r->watch.token[0] || bind_is_local(r->watch.bind)) return 0;
    return recipe_blame(r, "watch.bind", "%s can be reached from other machines: watch.token is missing",
                        r->watch.bind);
}

RunWatch *runwatch_create(const Recipe *r, const char *nvml_path)
{
    RunWatch *w = (RunWatch *)mem_zeroed(1, sizeof *w);
    if (!w) return NULL;
    w->r         = r;
    w->nvml_path = nvml_path;
    return w;
}

void runwatch_destroy(RunWatch *w) { free(w); }

void runwatch_look(RunWatch *w, double seconds)
{
    if (w) w->look_s = seconds;
}

/* What did not work, once. The run is none the worse. */
static void complain(const char *what)
{
    log_warn("%s: %s (the run itself is not affected)", what, err_get());
    err_clear();
}

/* 1 while the run's folder is the one it began with: another run may have taken its name. */
static int is_ours(const RunWatch *w)
{
    struct stat st;
    return w->dir[0] && stat(w->dir, &st) == 0 && st.st_dev == w->folder_device &&
           st.st_ino == w->folder_inode;
}

/* ---- watch.json ---------------------------------------------------------------------------------------- */

static int write_facts(RunWatch *w, const char *activity)
{
    char     path[1100];
    NvmlCard c;
    if (activity) str_copy(w->facts.activity, sizeof w->facts.activity, activity);
    meter_card(w->meter, &c);
    w->facts.card = (FactsCard){ c.max_sm_mhz,          c.power_limit_w, c.power_default_w, c.link_generation,
                                 c.link_generation_max, c.link_lanes,    c.link_lanes_max };
    MeterCost cost          = meter_cost(w->meter);
    w->facts.sampler_cpu_s  = cost.cpu_s;
    w->facts.sampler_open_s = cost.open_s;
    w->facts.sampler_s      = cost.wall_s;
    snprintf(path, sizeof path, "%s/watch.json", w->dir);
    return facts_write(&w->facts, path);
}

/* Joules that earlier starts of the run have used. watch.json counts steps that will be done again, too.
 * After a kill only the lines of metrics.jsonl that are left tell. */
static double energy_before(const RunWatch *w)
{
    RunFacts before;
    Series   s;
    char     path[1100], *text = NULL;
    size_t   n;
    double   line_j = NAN;
    snprintf(path, sizeof path, "%s/watch.json", w->dir);
    if (file_read_all(path, 1 << 16, &text, &n) < 0) err_clear();
    facts_read(&before, text);
    free(text);
    snprintf(path, sizeof path, "%s/metrics.jsonl", w->dir);
    if (series_init(&s, path, 16, 1 << 16) == 0 && series_follow(&s) >= 0)
        line_j = series_last(&s, "energy_j");
    err_clear();
    series_deinit(&s);
    return fmax(isnan(line_j) ? 0 : line_j, isnan(before.energy_j) ? 0 : before.energy_j);
}

/* ---- Beginning ----------------------------------------------------------------------------------------- */

static void open_events(RunWatch *w, int64_t first_step)
{
    if (!w->r->watch.tensorboard) return;
    w->events = event_writer_open(w->dir, first_step);
    if (!w->events) complain("no files for TensorBoard");
}

static void open_page(RunWatch *w)
{
    const RecipeWatch *r = &w->r->watch;
    HttpOptions        o = { .base      = rundir_base(),
                             .bind      = r->bind,
                             .port      = (int)r->port,
                             .token     = r->token,
                             .nvml_path = w->nvml_path,
                             .keys      = { "watch.bind", "watch.port", "watch.token" } };
    char               url[96];
    if (!r->web) return;
    w->http = http_start(&o);
    if (!w->http) {
        complain("the page is not served");
        return;
    }
    log_info("the page is at %s", http_url(w->http, url, sizeof url));
}

static void watch_begin(void *self, const WatcherRun *run)
{
    RunWatch   *w = (RunWatch *)self;
    struct stat st;
    RunFacts   *f = &w->facts;
    /* A run with stages begins with each of them. */
    w->run          = *run;
    w->has_activity = w->events_failing = 0;
    facts_init(f);
    str_copy(w->dir, sizeof w->dir, run->dir);
    str_copy(w->name, sizeof w->name, run->name);
    str_copy(f->run, sizeof f->run, run->name);
    str_copy(f->device, sizeof f->device, run->device);
    f->steps          = run->steps;
    f->units_per_step = run->units_per_step;
    f->ranks          = run->world;
    f->started_s      = clock_wall_s();
    f->first_step     = (double)run->first_step;
    if (w->r->eval.target != 0) f->target = w->r->eval.target;
    str_copy(f->unit, sizeof f->unit, run->unit);
    if (run->setup) planfacts_fill(f, run->setup);
    f->host.loader_threads = run->loader_threads;
    w->tracer              = tracer_create(w->r, run->first_step);
    if (stat(w->dir, &st) == 0) {
        w->folder_device = st.st_dev;
        w->folder_inode  = st.st_ino;
    }
    w->energy_0_j = energy_before(w);
    if (w->energy_0_j > 0) f->energy_j = w->energy_0_j;
    if (write_facts(w, NULL) < 0) complain("watch.json");
    if (w->r->watch.sample) w->meter = meter_start(run->cuda_index, w->nvml_path);
    open_events(w, run->first_step + 1);
    samples_begin(&w->samples, w->dir, w->r);
    samples_rewind(&w->samples, run->first_step > 0 ? run->first_step + 1 : 0);
    open_page(w);
}

/* ---- Lines --------------------------------------------------------------------------------------------- */

/* Only what is known is written: a machine without a GPU has no GPU fields. */
static void put(JsonOut *o, const char *key, double x)
{
    if (isfinite(x)) json_out_num(o, key, x);
}

static void put_gpu(JsonOut *o, const MeterStretch *s)
{
    char text[160];
    put(o, "gpu_util", s->gpu_util);
    put(o, "sm_active", s->sm_active);
    put(o, "tensor_active", s->tensor_active);
    put(o, "dram_active", s->dram_active);
    put(o, "gpu_mem_bytes", s->gpu_memory_bytes);
    put(o, "gpu_mem_total_bytes", s->gpu_memory_total_bytes);
    put(o, "power_limit_w", s->power_limit_w);
    put(o, "sm_mhz", s->sm_mhz);
    put(o, "mem_mhz", s->memory_mhz);
    put(o, "temp_c", s->temperature_c);
    put(o, "pcie_tx_bytes_s", s->pcie_tx_bytes_s);
    put(o, "pcie_rx_bytes_s", s->pcie_rx_bytes_s);
    put(o, "ecc_errors", s->ecc_errors);
    put(o, "gpu_processes", s->processes);
    if (s->has_reasons) json_out_str(o, "clock_reasons", nvml_reasons_text(text, sizeof text, s->reasons));
}

static void put_energy(RunWatch *w, JsonOut *o, const MeterStretch *s)
{
    int64_t n     = s->last_step - s->first_step + 1;
    double  units = w->run.units_per_step / MAX(1, w->run.world) * (double)n;
    double  total = w->energy_0_j + s->total_energy_j;
    if (!isnan(total)) w->facts.energy_j = total;
    put(o, "power_w", s->energy_j / s->time_s);
    put(o, "energy_j", total);
    put(o, "j_per_unit", units > 0 ? s->energy_j / units : NAN);
    put(o, "kwh", total * MAX(1, w->run.world) / JOULES_PER_KWH);
}

static void put_host(JsonOut *o, const MeterStretch *s)
{
    put(o, "cpu", s->host.cpu);
    put(o, "own_cpu", s->host.own_cpu);
    put(o, "ram_bytes", s->memory_used_bytes);
    put(o, "ram_total_bytes", s->memory_total_bytes);
    put(o, "rss_bytes", s->rss_bytes);
    put(o, "disk_read_bytes_s", s->host.read_bytes_s);
    put(o, "disk_write_bytes_s", s->host.write_bytes_s);
}

static void add_fields(RunWatch *w, JsonOut *o, int64_t step)
{
    MeterStretch s;
    meter_read(w->meter, &s);
    meter_mark(w->meter, step);
    put(o, "data_fill_s", w->last.data_fill_s);
    put(o, "eval_s", w->last.eval_s);
    put(o, "save_s", w->last.save_s);
    if (s.last_step == 0) return;
    json_out_int(o, "watch_first", s.first_step);
    json_out_int(o, "watch_last", s.last_step);
    put_gpu(o, &s);
    put_energy(w, o, &s);
    put_host(o, &s);
    const char *activity = meter_activity(w->meter);
    if (!w->has_activity && activity) {
        w->has_activity = 1;
        if (is_ours(w) && write_facts(w, activity) < 0) complain("watch.json");
        if (w->run.cuda_index >= 0 && strcmp(activity, "gpm") != 0)
            log_info("activity of SMs, tensor cores and DRAM: %s", activity);
    }
}

/* ---- TensorBoard --------------------------------------------------------------------------------------- */

/* "train/loss", "eval/val_loss", "gpu/power_w", "host/cpu". Power and energy are the host's without a GPU. */
static void tag_of(const char *key, int has_gpu, char *buf, size_t n)
{
    static const char *const gpu[]  = { "gpu_", "sm_", "tensor_", "dram_", "mem_", "temp_", "pcie_", "ecc_" };
    static const char *const host[] = { "cpu", "own_cpu", "ram_", "rss_", "disk_", "data_" };
    static const char *const power[] = { "power_", "energy_", "j_per_", "kwh" };
    const char              *group   = str_starts_with(key, "val_") ? "eval" : "train";
    for (int i = 0; i < ARRAY_LEN(gpu); i++) group = str_starts_with(key, gpu[i]) ? "gpu" : group;
    for (int i = 0; i < ARRAY_LEN(host); i++) group = str_starts_with(key, host[i]) ? "host" : group;
    for (int i = 0; i < ARRAY_LEN(power); i++)
        if (str_starts_with(key, power[i])) group = has_gpu ? "gpu" : "host";
    snprintf(buf, n, "%s/%s", group, key);
}

/* The line as it will be: every number in it becomes a scalar, whatever the task calls its metrics. The time
 * of an evaluation does not, because its step has one already. */
static void copy_line(RunWatch *w, const JsonOut *o, int64_t step, int is_step)
{
    char        text[METRICS_LINE + 2], tag[128]; /* a line, and what closes it */
    const char *key;
    json_t     *value;
    int         n    = snprintf(text, sizeof text, "%.*s}", (int)o->len, o->buf);
    json_t     *root = n > 0 && n < (int)sizeof text ? json_loadb(text, (size_t)n, 0, NULL) : NULL;
    event_begin(w->events, clock_wall_s(), step);
    json_object_foreach(root, key, value)
    {
        if (!json_is_number(value) || strcmp(key, "step") == 0 || str_starts_with(key, "watch_")) continue;
        if (!is_step && strcmp(key, "time_s") == 0) continue;
        tag_of(key, w->run.cuda_index >= 0, tag, sizeof tag);
        event_scalar(w->events, tag, json_number_value(value));
    }
    json_decref(root);
    if (event_end(w->events) < 0) {
        if (!w->events_failing) complain("a record for TensorBoard is missing");
        w->events_failing = 1;
        err_clear();
    } else {
        w->events_failing = 0;
    }
}

static void watch_line(void *self, JsonOut *o, int64_t step, int is_step)
{
    RunWatch *w = (RunWatch *)self;
    if (is_step) add_fields(w, o, step);
    if (w->events) copy_line(w, o, step, is_step);
}

static void watch_step(void *self, const WatcherStep *s)
{
    RunWatch *w = (RunWatch *)self;
    if (w->n_step++ == 0) w->begin_s = s->done_s;
    w->last                      = *s;
    w->facts.host.loader_threads = s->loader_threads;
    tracer_step(w->tracer, s->step, s->done_s);
}

/* Slow steps are given more time, up to a point. */
static int watch_enough(void *self)
{
    enum { FEW = WATERFALL_ENOUGH + 1, MANY = 40, PATIENCE = 3 };
    const RunWatch *w       = (const RunWatch *)self;
    const Recipe   *r       = w->r;
    int64_t         traced  = r->trace > 0 ? r->trace_skip + r->trace_warmup + r->trace : 0;
    double          lasting = w->last.done_s - w->begin_s;
    if (w->look_s <= 0 || w->n_step < traced + FEW) return 0;
    return lasting >= w->look_s && (w->n_step >= MANY || lasting >= PATIENCE * w->look_s);
}

/* The trace of a look goes with its folder: nobody is sent there. */
static void rest_tracer(RunWatch *w, Job *job, int64_t step)
{
    char        path[1100];
    FactsTrace *sums = &w->facts.trace;
    snprintf(path, sizeof path, "%s/trace.json", w->dir);
    if (!tracer_rest(w->tracer, job, step, path, sums)) return;
    if (w->look_s <= 0)
        log_info("trace of %.0f step%s: %s", sums->steps, str_plural((int64_t)sums->steps), path);
    if (write_facts(w, NULL) < 0) complain("watch.json");
}

static void watch_rest(void *self, Job *job, int64_t step, int is_eval)
{
    RunWatch *w = (RunWatch *)self;
    if (!is_ours(w)) return;
    if (is_eval) {
        samples_take(&w->samples, job, step, w->events);
    } else {
        rest_tracer(w, job, step);
    }
}

static void watch_rewind(void *self, int64_t step)
{
    RunWatch *w = (RunWatch *)self;
    if (is_ours(w)) samples_rewind(&w->samples, step + 1);
    if (w->run.setup) tracer_rewind(w->tracer, w->run.setup->job->dev, step);
    if (!w->events) return;
    if (event_writer_close(w->events) < 0) err_clear();
    w->events = NULL;
    open_events(w, step + 1);
}

static int write_report(const RunWatch *w)
{
    char       path[1100];
    RecipeFrom from = { .task = w->run.setup ? w->run.setup->job->task : NULL, .path = path };
    snprintf(path, sizeof path, "%s/recipe.yaml", w->dir);
    return report_write_run(rundir_base(), w->name, from.task ? &from : NULL, NULL);
}

/* A failure that is pending stays so: the program reports it after this. */
static void watch_end(void *self)
{
    RunWatch *w = (RunWatch *)self;
    char      why[1024];
    ErrKind   kind = err_kind();
    str_copy(why, sizeof why, err_get());
    err_clear();
    http_stop(w->http);
    if (is_ours(w) && write_facts(w, meter_activity(w->meter)) < 0) complain("watch.json");
    meter_stop(w->meter);
    /* After a failure the device may not answer any more. */
    if (w->run.setup && kind == ERR_NONE) tracer_end(w->tracer, w->run.setup->job->dev, w->last.step);
    tracer_destroy(w->tracer);
    w->tracer = NULL;
    if (event_writer_close(w->events) < 0) complain("TensorBoard's file");
    w->http   = NULL;
    w->meter  = NULL;
    w->events = NULL;
    if (w->r->watch.report && is_ours(w) && write_report(w) < 0) complain("report.html");
    if (kind == ERR_USER) err_user("%s", why);
    if (kind == ERR_RUN) err_set("%s", why);
}

Watcher runwatch_watcher(RunWatch *w)
{
    if (!w) return (Watcher){ 0 };
    return (Watcher){ .self   = w,
                      .begin  = watch_begin,
                      .line   = watch_line,
                      .step   = watch_step,
                      .rest   = watch_rest,
                      .enough = watch_enough,
                      .rewind = watch_rewind,
                      .end    = watch_end };
}
