#include "bench/bench.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "base/log.h"
#include "base/str.h"
#include "bench/bench_ops.h"
#include "bench/limit.h"
#include "run/step.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

/* MAX_STEPS: minutes of the smallest steps; pages of times that are not used cost no memory. */
enum { BENCH_MAX_STEPS = 1 << 22, BENCH_WARM = 2, BENCH_MIN_STEPS = 5 };
static const double BENCH_MIN_S = 3.0;

static void call_phase(const BenchHooks *h, int begin)
{
    if (h && h->phase) h->phase(h->ctx, begin);
}

/* Device memory in use, or this process's peak on the CPU. */
static size_t used_bytes(Dev *dev)
{
    DevInfo now;
    if (dev->vt->hints->is_late && dev->vt->info(dev, &now) == 0) return now.total_bytes - now.free_bytes;
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (size_t)u.ru_maxrss * 1024;
}

/* A word every few seconds, on standard error: a large model on a CPU takes minutes. */
static void show_step(int64_t done, double step_s, double *said_s)
{
    enum { SAY_S = 5 };
    double now = clock_now_s();
    char   t[32];
    if (now - *said_s < SAY_S) return;
    *said_s = now;
    log_info("%lld of at least %d steps done, %s each", (long long)done, BENCH_WARM + BENCH_MIN_STEPS,
             str_duration(t, sizeof t, step_s));
}

/* The status line of a terminal, once a second; now and then only, so that steps take what they take. */
static void show_status(int64_t done, double *shown_s)
{
    char   line[64];
    double now = clock_now_s();
    if (now - *shown_s < 1) return;
    *shown_s = now;
    snprintf(line, sizeof line, "measuring: %lld step%s done", (long long)done, str_plural(done));
    log_status(line);
}

/* Steps until warm-up, step count and time are all satisfied; times[] gets the steps after warm-up. Steps are
 * queued one ahead, so a step's time is the distance between two completions. */
static int run_steps(Stepper *s, double *times, BenchResult *out, const BenchOptions *opt)
{
    double  said_s = clock_now_s(), least_s = opt->least_s > 0 ? opt->least_s : BENCH_MIN_S;
    double  last = 0, total = 0, shown_s = 0;
    int     n = 0;
    StepOut result;
    show_status(0, &shown_s);
    TRY(step_begin(s, 0, 1e-4));
    for (int64_t step = 0;; step++) {
        int more = step + 1 < BENCH_WARM + BENCH_MIN_STEPS || total < least_s;
        if (opt->most_s > 0 && total >= opt->most_s) more = 0;
        if (step + 1 >= BENCH_MAX_STEPS) more = 0;
        if (more) TRY(step_begin(s, step + 1, 1e-4));
        TRY(step_result(s, step, &result));
        double now = clock_now_s();
        if (step == 0) out->startup_s = now - opt->begin_s;
        if (step >= BENCH_WARM) {
            times[n++] = now - last;
            total += now - last;
        }
        show_step(step + 1, now - (step > 0 ? last : said_s), &said_s);
        show_status(step + 1, &shown_s);
        last = now;
        if (step + 1 == BENCH_WARM) {
            out->drift_bytes = -(int64_t)used_bytes(s->job->dev);
            call_phase(opt->hooks, 1);
        }
        if (!more) break;
    }
    call_phase(opt->hooks, 0);
    out->drift_bytes += (int64_t)used_bytes(s->job->dev);
    out->loss   = result.loss;
    out->n_step = n;
    out->step_s = clock_median(times, n);
    return 0;
}

/* The gaps between kernels in three more steps, where the device can record them. */
static int measure_gaps(Stepper *s, int64_t step, BenchResult *out)
{
    enum { RECORDED = 3 };
    Dev     *dev = s->job->dev;
    DevTrace seen;
    StepOut  result;
    if (!dev->vt->trace_begin || !dev->vt->hints->is_late) return 0;
    if (dev->vt->trace_begin(dev) < 0) {
        log_note("gaps between kernels are not measured: %s", err_get());
        err_clear();
        return 0;
    }
    int rc = step_begin(s, step, 1e-4);
    for (int i = 1; i <= RECORDED && rc == 0; i++) {
        if (i < RECORDED) rc = step_begin(s, step + i, 1e-4);
        if (rc == 0) rc = step_result(s, step + i - 1, &result);
    }
    if (dev->vt->trace_end(dev, &seen) < 0) return -1;
    free(seen.span);
    if (rc == 0 && seen.span_s > 0) out->gap_share = 1 - seen.busy_s / seen.span_s;
    return rc;
}

/* ---- the whole ---------------------------------------------------------------------------------------- */

static int bench_steps(BenchResult *out, Setup *s, const Recipe *r, const BenchOptions *opt)
{
    Stepper stepper;
    Source *src   = NULL;
    double *times = calloc(BENCH_MAX_STEPS, sizeof *times);
    int     rc = times ? stepper_init(&stepper, s->job, (int)r->data.depth) : err_set("out of host memory");
    if (rc == 0) rc = s->job->task->open_train(&src, r);
    if (rc == 0) rc = stepper_attach(&stepper, src, 0, NULL, 0);
    if (rc == 0) rc = run_steps(&stepper, times, out, opt);
    log_status("");
    if (rc == 0) {
        loader_stats(stepper.feed.loader, &out->data);
        source_describe(src, out->data_words, sizeof out->data_words);
    }
    if (rc == 0 && opt->measure_limit) rc = measure_gaps(&stepper, BENCH_WARM + out->n_step, out);
    if (times) stepper_deinit(&stepper);
    source_close(src);
    free(times);
    return rc;
}

static void describe(BenchResult *out, const Setup *s)
{
    JobChoice choice   = s->job->choice;
    out->hints         = s->dev->vt->hints;
    out->precision     = job_precision(s->job);
    out->unit          = s->job->task->unit;
    out->one           = s->job->task->one;
    out->step_units    = job_units_per_step(s->job);
    out->micro_batch   = choice.micro_batch;
    out->recompute     = recompute_level_name(choice.level);
    out->per_s         = (double)out->step_units / out->step_s;
    out->slab_bytes    = store_total_bytes(&s->job->store);
    out->planned_bytes = out->slab_bytes;
    if (out->hints->is_late) out->planned_bytes += s->info.total_bytes - s->info.free_bytes;
    out->setup_s    = s->took;
    out->peak_bytes = used_bytes(s->dev);
    str_copy(out->device, sizeof out->device, s->info.name);
    if (s->machine.peak_flops > 0) out->mfu = choose_step_flops(s->job) / out->step_s / s->machine.peak_flops;
}

/* The rates need memory of their own: the model's is given back first and taken again for --ops. */
static int measure_limit(BenchResult *out, Setup *s, const Recipe *r, const BenchOptions *opt)
{
    const Task *task   = s->job->task;
    LimitShapes shapes = limit_shapes(s->job);
    setup_close(s);
    log_status("measuring what products, attention and copies can reach");
    int rc = limit_measure(out->rate, r, &shapes);
    log_status("");
    TRY(rc);
    TRY(setup_open(s, task, r, JOB_TRAIN));
    out->limit_share = limit_step_time(s->job, out->rate) / out->step_s;
    return opt->print_ops ? bench_ops_print(s, r, out, opt->report) : 0;
}

static void print_setup(const BenchResult *out, const Setup *s, const Recipe *r, FILE *report)
{
    char a[32], b[32], c[32];
    fprintf(report, "%s on %s: micro-batch %lld, recompute %s, %s\n", r->run, s->info.name,
            (long long)out->micro_batch, out->recompute, s->choice.why);
    str_bytes(a, sizeof a, (double)out->slab_bytes);
    str_bytes(b, sizeof b, (double)out->planned_bytes);
    str_bytes(c, sizeof c, (double)out->peak_bytes);
    if (out->hints->is_late) {
        fprintf(report, "slabs %s; in use on the device, by others too, %s planned, %s at the end\n", a, b,
                c);
    } else {
        fprintf(report, "slabs %s, as planned; the process %s, with the program and its libraries\n", a, c);
    }
}

/* Silence would look like a program that hangs. */
static void announce(const Setup *s)
{
    enum { LONG_STEP_S = 2 };
    char   t[32];
    double step_s = s->choice.row[s->choice.best].step_s;
    if (step_s <= LONG_STEP_S) return;
    log_info("a step will take about %s here, and %d are measured at least",
             str_duration(t, sizeof t, step_s), BENCH_WARM + BENCH_MIN_STEPS);
}

int bench_run(BenchResult *out, const Task *task, const Recipe *r, const BenchOptions *opt)
{
    Setup s;
    memset(out, 0, sizeof *out);
    out->gap_share = NAN;
    out->gpu       = (BenchGpu){ NAN, NAN, NAN, NAN, NAN, NAN, NAN, "" };
    int rc         = setup_open(&s, task, r, JOB_TRAIN);
    if (rc == 0) announce(&s);
    if (rc == 0) rc = bench_steps(out, &s, r, opt);
    if (rc == 0) describe(out, &s);
    if (rc == 0 && opt->measure_limit) rc = measure_limit(out, &s, r, opt);
    if (rc == 0 && opt->report) print_setup(out, &s, r, opt->report);
    setup_close(&s);
    return rc;
}

static double known(double x) { return x > 0 ? x : NAN; } /* json_out_num() writes NAN as null */

void bench_print_json(const BenchResult *b, const Recipe *r, FILE *out)
{
    JsonOut o;
    char    key[48];
    json_out_init_file(&o, out);
    json_out_object(&o, NULL);
    json_out_str(&o, "recipe", r->run);
    json_out_str(&o, "device", b->device);
    json_out_str(&o, "precision", b->precision);
    json_out_str(&o, "unit", b->unit);
    snprintf(key, sizeof key, "step_%s", b->unit);
    json_out_int(&o, key, b->step_units);
    json_out_int(&o, "micro_batch", b->micro_batch);
    json_out_str(&o, "recompute", b->recompute);
    json_out_num(&o, "per_s", b->per_s);
    json_out_num(&o, "step_ms", b->step_s * 1e3);
    json_out_num(&o, "mfu", known(b->mfu));
    json_out_num(&o, "limit_share", known(b->limit_share));
    json_out_int(&o, "planned_bytes", (int64_t)b->planned_bytes);
    json_out_int(&o, "peak_bytes", (int64_t)b->peak_bytes);
    json_out_int(&o, "slab_bytes", (int64_t)b->slab_bytes);
    json_out_int(&o, "drift_bytes", b->drift_bytes);
    json_out_num(&o, "startup_s", b->startup_s);
    json_out_num(&o, "startup_device_s", b->setup_s.device);
    json_out_num(&o, "startup_plan_s", b->setup_s.plan);
    json_out_num(&o, "startup_memory_s", b->setup_s.memory);
    json_out_num(&o, "startup_weights_s", b->setup_s.weights);
    json_out_num(&o, "gap_share", b->gap_share);
    json_out_num(&o, "gemm_tflops", known(b->rate[UNIT_GEMM] * 1e-12));
    if (b->rate[UNIT_FP8] > 0) json_out_num(&o, "fp8_tflops", b->rate[UNIT_FP8] * 1e-12);
    json_out_num(&o, "attn_fwd_tflops", known(b->rate[UNIT_ATTN_FWD] * 1e-12));
    json_out_num(&o, "attn_bwd_tflops", known(b->rate[UNIT_ATTN_BWD] * 1e-12));
    json_out_num(&o, "copy_gbps", known(b->rate[UNIT_MEMORY] * 1e-9));
    json_out_num(&o, "data_wait_share", b->data.elapsed_s > 0 ? b->data.waited_s / b->data.elapsed_s : NAN);
    json_out_num(&o, "loader_headroom", known(loader_headroom(&b->data)));
    json_out_int(&o, "loader_threads", b->data.n_thread);
    json_out_num(&o, "loss", b->loss);
    json_out_num(&o, "utilisation", b->gpu.utilisation);
    json_out_num(&o, "power_w", b->gpu.power_w);
    json_out_num(&o, "sm_mhz", b->gpu.sm_mhz);
    json_out_num(&o, "sm_active", b->gpu.sm_active);
    json_out_num(&o, "tensor_active", b->gpu.tensor_active);
    json_out_num(&o, "dram_active", b->gpu.dram_active);
    snprintf(key, sizeof key, "joules_per_%s", b->one);
    json_out_num(&o, key, b->gpu.joules_per_unit);
    json_out_str(&o, "clock_reasons", b->gpu.clock_reasons[0] ? b->gpu.clock_reasons : NULL);
    json_out_end(&o);
}
