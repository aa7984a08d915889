/* The doctor: the waterfall of traced runs, one made-up run for each bottleneck, the changed recipe, samples
 * and the summary of a trace. No device is needed: plans are made for an H200 that is not here. */
#include "base/err.h"
#include "base/file.h"
#include "base/mem.h"
#include "task/latent.h"
#include "task/lm.h"
#include "task/ppo.h"
#include "watch/doctor.h"
#include "watch/runs.h"
#include "watch/sampleview.h"
#include "watch/samples.h"
#include "watch/tracesum.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char base[64];

static int make_base(void **state)
{
    snprintf(base, sizeof base, "/tmp/brim-test-doctor-XXXXXX");
    return mkdtemp(base) ? 0 : -1;
}

static int remove_base(void **state)
{
    char cmd[128];
    snprintf(cmd, sizeof cmd, "rm -r %s", base);
    return system(cmd);
}

static void path_of(char *buf, size_t n, const char *run, const char *file)
{
    snprintf(buf, n, "%s/%s/%s", base, run, file);
}

/* ---- made-up runs -------------------------------------------------------------------------------------- */

/* A run on an H200 whose steps take step_s; what a case changes. */
typedef struct {
    double step_s, wait_s, fill_s, util, sm, own_cpu, cpu, processes, memory_gib, mhz, eval_s, save_s,
        power_w;
    const char *reasons;
    const char *recipe; /* NULL: recipe_text */
    const Task *task;   /* NULL: the language model */
    RunFacts    f;
} Made;

static const char recipe_text[] = "steps: 1000\nstep_tokens: 65536\nmodel:\n  layers: 4\n  width: 768\n"
                                  "  heads: 12\n  vocab: 8192\n  context: 1024\ndata:\n  kind: random\n";

static Made healthy_gpu(void)
{
    Made m = { .step_s     = 0.03,
               .power_w    = 650,
               .util       = 1,
               .sm         = 0.97,
               .own_cpu    = 1.2,
               .cpu        = 0.1,
               .processes  = 1,
               .mhz        = 1755,
               .memory_gib = 12,
               .fill_s     = 0.002,
               .reasons    = "none" };
    facts_init(&m.f);
    strcpy(m.f.unit, "token");
    strcpy(m.f.units, "tokens");
    strcpy(m.f.device, "NVIDIA H200");
    m.f.steps          = 1000;
    m.f.units_per_step = 65536;
    m.f.plan           = (FactsPlan){ .micro_batch    = 64,
                                      .micro_per_step = 1,
                                      .world          = 1,
                                      .planned_bytes  = 10e9,
                                      .room_bytes     = 145e9,
                                      .total_bytes    = 150e9,
                                      .model_flops    = 1.5e13,
                                      .repeat_flops   = 0,
                                      .predicted_s    = 0.03,
                                      .repeat_s       = 0,
                                      .n_op           = 300,
                                      .peak_flops     = 989.4e12,
                                      .peak_mhz       = 1830,
                                      .capability     = 90,
                                      .threads        = NAN };
    strcpy(m.f.plan.precision, "bf16");
    strcpy(m.f.plan.recompute, "none");
    strcpy(m.f.plan.machine, "h200");
    m.f.host  = (FactsHost){ .cpus = 16, .allowed = 16, .quota = NAN, .loader_threads = 4 };
    m.f.card  = (FactsCard){ 1980, 700, 700, 5, 5, 16, 16 };
    m.f.trace = (FactsTrace){ .steps     = 3,
                              .step_s    = 0.03,
                              .busy_s    = 0.0297,
                              .tensor_s  = 0.024,
                              .other_s   = 0.0057,
                              .repeat_s  = 0,
                              .comm_s    = 0,
                              .unnamed_s = 0,
                              .spans     = 900,
                              .lost      = 0 };
    return m;
}

static Made healthy_cpu(void)
{
    Made m = healthy_gpu();
    strcpy(m.f.device, "a CPU");
    strcpy(m.f.plan.precision, "fp32");
    strcpy(m.f.plan.machine, "cpu");
    m.f.plan.peak_flops = m.f.plan.peak_mhz = NAN;
    m.f.plan.capability                     = 0;
    m.f.plan.threads                        = 8;
    m.f.host = (FactsHost){ .cpus = 8, .allowed = 8, .quota = NAN, .loader_threads = 1 };
    m.util = m.processes = NAN;
    m.own_cpu            = 7.8;
    m.cpu                = 0.98;
    return m;
}

static void write_run(const char *run, const Made *m, const char *keys)
{
    char path[200];
    snprintf(path, sizeof path, "%s/%s", base, run);
    assert_int_equal(file_make_folders(path), 0);
    path_of(path, sizeof path, run, "watch.json");
    assert_int_equal(facts_write(&m->f, path), 0);
    path_of(path, sizeof path, run, "recipe.yaml");
    FILE *f = fopen(path, "w");
    fprintf(f, "run: %s\n%s%s", run, keys, m->recipe ? m->recipe : recipe_text);
    fclose(f);
    path_of(path, sizeof path, run, "metrics.jsonl");
    f = fopen(path, "w");
    for (int i = 1; i <= 40; i++) {
        fprintf(
            f,
            "{\"step\":%d,\"loss\":3,\"per_s\":1e6,\"time_s\":%.6f,\"data_wait_s\":%.6f,\"data_fill_s\":%.6f,"
            "\"eval_s\":%.6f,\"save_s\":%.6f,\"own_cpu\":%g,\"cpu\":%g",
            i, 5 + i * (m->step_s + m->eval_s + m->save_s), i * m->wait_s, i * m->fill_s, i * m->eval_s,
            i * m->save_s, m->own_cpu, m->cpu);
        if (m->f.plan.capability > 0)
            fprintf(f,
                    ",\"mfu\":%.4f,\"gpu_util\":%g,\"sm_active\":%g,\"tensor_active\":0.55,\"sm_mhz\":%g,"
                    "\"power_limit_w\":700,\"gpu_processes\":%g,\"gpu_mem_bytes\":%.0f,"
                    "\"clock_reasons\":\"%s\"",
                    m->f.plan.model_flops / m->f.plan.peak_flops / m->step_s, m->util, m->sm, m->mhz,
                    m->processes, m->memory_gib * 1073741824.0, m->reasons);
        if (m->f.plan.capability > 0 && !isnan(m->power_w)) fprintf(f, ",\"power_w\":%g", m->power_w);
        fprintf(f, "}\n");
    }
    fclose(f);
}

typedef struct {
    Doctor     d;
    RecipeFrom from;
    char       path[200];
} Visit;

static Visit *visit(const char *run, const Made *m, const char *keys)
{
    Visit *v = calloc(1, sizeof *v);
    write_run(run, m, keys);
    path_of(v->path, sizeof v->path, run, "recipe.yaml");
    v->from = (RecipeFrom){ .task = m->task ? m->task : &task_lm, .path = v->path };
    int rc  = doctor_open(&v->d, &v->from, base, run);
    if (rc < 0) fail_msg("%s: %s", run, err_get());
    double sum = 0;
    for (int i = 0; i < v->d.n_part; i++) {
        assert_true(v->d.part[i].share >= 0 && v->d.part[i].share <= 1);
        sum += v->d.part[i].share;
    }
    if (fabs(sum - 1) > 0.01) fail_msg("%s: the parts add up to %g", run, sum);
    return v;
}

static void leave(Visit *v)
{
    doctor_close(&v->d);
    free(v);
}

static const Finding *found(const Visit *v, const char *cause)
{
    for (int i = 0; i < v->d.n_finding; i++)
        if (strcmp(v->d.finding[i].cause, cause) == 0) return &v->d.finding[i];
    return NULL;
}

/* The first finding is `cause`, and saves about so much. */
static void expect_first(const char *cause, double least, double most, const char *change, const Made *m,
                         const char *keys)
{
    Visit *v = visit("case", m, keys);
    if (v->d.n_finding == 0) fail_msg("%s: nothing was found", cause);
    const Finding *x = &v->d.finding[0];
    if (strcmp(x->cause, cause) != 0) fail_msg("%s instead of %s (gain %g)", x->cause, cause, x->gain);
    if (!(x->gain >= least && x->gain <= most)) fail_msg("%s: gain %g", cause, x->gain);
    assert_int_equal(doctor_is_healthy(&v->d), x->gain < DOCTOR_GAIN);
    assert_true(x->evidence[0] && x->verdict[0] && (x->n_change > 0 || x->advice[0]));
    if (change && (x->n_change == 0 || strcmp(x->change[0], change) != 0))
        fail_msg("%s: %s", cause, x->n_change ? x->change[0] : "no change");
    leave(v);
}

static void healthy_runs_are_called_healthy(void **state)
{
    Made   gpu = healthy_gpu(), cpu = healthy_cpu();
    Visit *v = visit("gpu", &gpu, "");
    assert_true(doctor_is_healthy(&v->d));
    leave(v);
    /* The clock fell after the trace: the step is longer, and the GPU is no more idle than before. */
    gpu.step_s        = 0.0315;
    gpu.f.trace.gap_s = 0.0001;
    v                 = visit("slower", &gpu, "");
    assert_true(doctor_is_healthy(&v->d) && v->d.gap_share < 0.005);
    leave(v);
    v = visit("cpu", &cpu, "");
    if (!doctor_is_healthy(&v->d)) fail_msg("%s", v->d.finding[0].cause);
    leave(v);
}

static void each_bottleneck_comes_first(void **state)
{
    Made m           = healthy_gpu();
    m.step_s         = 0.3;
    m.f.trace.busy_s = m.f.trace.step_s = 0.299;
    m.f.trace.tensor_s                  = 0.29;
    strcpy(m.f.plan.precision, "fp32");
    expect_first("precision", 0.8, 0.99, "precision=auto", &m, "precision: fp32\n");

    m        = healthy_gpu();
    m.step_s = m.f.trace.step_s = 0.12;
    m.f.trace.busy_s            = 0.1;
    m.f.plan.micro_batch        = 1;
    m.f.plan.micro_per_step     = 64;
    expect_first("batch too small", 0.5, 0.95, "micro_batch=0", &m, "micro_batch: 1\n");

    m        = healthy_gpu();
    m.step_s = m.f.trace.step_s = m.f.trace.busy_s = 0.09;
    expect_first("attention", 0.4, 0.95, "opt.flash=true", &m, "opt:\n  flash: false\n");

    m        = healthy_gpu();
    m.step_s = m.f.trace.step_s = 0.039;
    m.f.trace.busy_s            = 0.0387;
    m.f.trace.repeat_s          = 0.009;
    strcpy(m.f.plan.recompute, "block");
    expect_first("recomputation", 0.2, 0.26, "recompute=auto", &m, "recompute: block\n");
    m.f.plan.room_bytes = 6.5e9; /* not enough for a plan without any */
    Visit         *v    = visit("again", &m, "recompute: block\nmicro_batch: 64\n");
    const Finding *x    = found(v, "recomputation");
    assert_non_null(x);
    if (!strstr(x->evidence, "; recompute cheap needs 5.6 GiB, and there is room for 6.1"))
        fail_msg("%s", x->evidence);
    leave(v);

    m                = healthy_gpu();
    m.step_s         = 0.06;
    m.sm             = 0.45;
    m.f.trace.step_s = 0.06;
    m.f.trace.gap_s  = 0.0297;
    expect_first("launch gaps", 0.4, 0.5, "opt.graphs=true", &m, "opt:\n  graphs: false\n");

    m                       = healthy_gpu();
    m.step_s                = 0.12;
    m.wait_s                = 0.09;
    m.sm                    = 0.24;
    m.fill_s                = 0.12;
    m.f.host.loader_threads = 1;
    expect_first("data", 0.7, 0.8, "data.threads=6", &m, "");

    m                = healthy_gpu();
    m.step_s         = 0.12;
    m.wait_s         = 0.09;
    m.sm             = 0.24;
    m.fill_s         = 0.48; /* four threads take turns on one CPU */
    m.f.host.allowed = 1;
    m.own_cpu        = 1;
    expect_first("CPU quota", 0.7, 0.8, NULL, &m, "");

    m        = healthy_gpu();
    m.step_s = m.f.trace.step_s = m.f.trace.busy_s = 0.06;
    m.processes                                    = 2;
    m.memory_gib                                   = 60;
    expect_first("another process", 0.2, 0.8, NULL, &m, "");

    m        = healthy_gpu();
    m.eval_s = 0.03;
    expect_first("evaluation", 0.37, 0.38, "eval.every=1000", &m, ""); /* no rarer than the run is long */

    m                = healthy_gpu();
    m.f.plan.world   = 2;
    m.f.trace.comm_s = 0.006;
    expect_first("communication", 0.15, 0.25, NULL, &m, "");
}

static void limits_of_the_card_are_said(void **state)
{
    Made m           = healthy_gpu();
    m.reasons        = "power cap";
    m.mhz            = 1500;
    Visit         *v = visit("power", &m, "");
    const Finding *x = found(v, "power limit");
    assert_true(x && isnan(x->gain) && strstr(x->advice, "fp8") && doctor_is_healthy(&v->d));
    leave(v);
    m.power_w = NAN; /* not measured: no reason to blame it */
    v         = visit("unknown", &m, "");
    assert_null(found(v, "power limit"));
    leave(v);
    m.power_w              = 650;
    m.f.card.power_limit_w = 400; /* somebody lowered it */
    Made low               = m;
    low.f.card             = (FactsCard){ 1980, 400, 700, 5, 5, 16, 16 };
    write_run("low", &low, "");
    v = visit("low", &low, "");
    assert_non_null(found(v, "power limit"));
    leave(v);

    m         = healthy_gpu();
    m.reasons = "thermal";
    m.mhz     = 1200;
    v         = visit("heat", &m, "");
    assert_true((x = found(v, "thermal limit")) && x->gain > 0.05);
    leave(v);

    m         = healthy_gpu();
    m.reasons = "application clocks";
    m.mhz     = 1000;
    v         = visit("locked", &m, "");
    /* Products are 80 % of the step, and take 1000/1830 of their time at the data sheet's clock: 36 %. */
    assert_true((x = found(v, "clocks locked")) && strstr(x->advice, "-rgc"));
    assert_true(x->gain > 0.35 && x->gain < 0.37);
    leave(v);
    m.eval_s = 0.03; /* half of the wall time: of a step the clock holds as much */
    v        = visit("locked", &m, "");
    assert_true((x = found(v, "clocks locked")) && x->gain > 0.35 && x->gain < 0.37);
    leave(v);

    m                        = healthy_gpu();
    m.f.card.link_generation = 1;
    v                        = visit("link", &m, "");
    assert_true((x = found(v, "slow PCIe link")) && isnan(x->gain));
    leave(v);
}

static void a_busy_host_is_said(void **state)
{
    Made m           = healthy_gpu();
    m.step_s         = 0.06;
    m.util           = 0.5;
    m.sm             = 0.45;
    m.f.trace.gap_s  = 0.0001;
    Visit         *v = visit("host", &m, "");
    const Finding *x = found(v, "host work");
    assert_true(x && isnan(x->gain) && strstr(x->evidence, "idle for 5"));
    leave(v);
}

/* Samples that are work come no faster than the CPUs allow, and threads that rest are not too few. */
static void more_threads_are_no_more_cpus(void **state)
{
    Made m           = healthy_cpu();
    m.step_s         = 0.39;
    m.wait_s         = 0.37;
    m.fill_s         = 0.39;
    m.f.trace        = (FactsTrace){ NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN };
    m.f.host         = (FactsHost){ .cpus = 2, .allowed = 2, .quota = NAN, .loader_threads = 1 };
    m.f.plan.threads = 1;
    m.own_cpu        = 1.05;
    m.cpu            = 0.525;
    const Finding *x = NULL;
    Visit         *v = visit("work", &m, "");
    assert_true((x = found(v, "data")) && x->n_change > 0 && strstr(x->evidence, "the loader has 1"));
    if (!(x->step_s > 0.19 && x->step_s < 0.22)) fail_msg("%g s predicted", x->step_s);
    leave(v);
    m.cpu = 1; /* others have the second CPU */
    v     = visit("crowded", &m, "");
    assert_true((x = found(v, "data")) && x->n_change == 0 && x->gain > 0.9 && strstr(x->advice, "no CPU"));
    leave(v);
    m.step_s = 0.0055;
    m.wait_s = 0.0004;
    m.fill_s = 0.00002;
    v        = visit("late", &m, "");
    assert_true((x = found(v, "data")) && x->n_change == 0 && isnan(x->gain));
    leave(v);
    m.wait_s = 0.0002;
    v        = visit("little", &m, "");
    assert_null(found(v, "data"));
    leave(v);
}

/* A run whose evaluations decide when it ends would end elsewhere. */
static void evaluations_that_end_a_run_are_left_alone(void **state)
{
    static const char *const keys[] = { "eval:\n  every: 10\n  target: 2\n",
                                        "eval:\n  every: 10\n  patience: 3\n" };
    char                     path[200];
    Made                     m = healthy_gpu();
    m.eval_s                   = 0.03;
    for (int i = 0; i < ARRAY_LEN(keys); i++) {
        Visit         *v = visit("ends", &m, keys[i]);
        const Finding *x = found(v, "evaluation");
        assert_true(x && x->is_other && doctor_is_healthy(&v->d));
        path_of(path, sizeof path, "ends", "out.yaml");
        assert_int_equal(doctor_apply(&v->d, &v->from, path), 0);
        leave(v);
    }
    Visit *v = visit("once", &m, "eval:\n  every: 1000\n"); /* it is evaluated at its end alone */
    assert_null(found(v, "evaluation"));
    leave(v);
}

static void saving_the_best_is_said(void **state)
{
    Made m           = healthy_gpu();
    m.save_s         = 0.01;
    Visit         *v = visit("best", &m, "eval:\n  every: 10\ncheckpoint:\n  every: 0\n");
    const Finding *x = found(v, "checkpoints");
    assert_true(x && x->gain > 0.2 && x->n_change == 0 && strstr(x->advice, "checkpoint.best"));
    leave(v);
    v = visit("often", &m, "checkpoint:\n  every: 5\n  best: false\n");
    assert_true((x = found(v, "checkpoints")) && strcmp(x->change[0], "checkpoint.every=85") == 0);
    leave(v);
}

static void cpu_runs_have_their_own(void **state)
{
    Made m           = healthy_cpu();
    m.f.plan.threads = 2;
    m.own_cpu        = 2;
    m.cpu            = 0.25;
    expect_first("CPU threads", 0.6, 0.8, "threads=0", &m, "threads: 2\n");
    m         = healthy_cpu();
    m.own_cpu = 4;
    expect_first("other programs", 0.4, 0.6, NULL, &m, "");
    m.f.plan.world = 2; /* the rest is the other rank's */
    Visit *v       = visit("ranks", &m, "");
    assert_null(found(v, "other programs"));
    leave(v);
    m                = healthy_cpu();
    m.f.host.allowed = 2;
    m.f.plan.threads = 2;
    m.own_cpu        = 2;
    m.cpu            = 0.25;
    expect_first("CPU quota", 0.6, 0.8, NULL, &m, "");
}

#define SMALL_LM(tokens, width, heads)                                                                       \
    "step_tokens: " tokens "\nmodel:\n  layers: 4\n  width: " width "\n  heads: " heads                      \
    "\n  vocab: 256\n  context: 128\n  norm: rmsnorm\n  pos: rope\n  act: swiglu\ndata:\n  kind: random\n"

static const char cartpole[] = "task: ppo\nenv: cartpole\ndevice: cpu\ntotal_steps: 500000\nppo:\n  envs: 8\n"
                               "  rollout: 32\n  minibatch: 256\n  epochs: 20\n";

static Made on_one_of_two_cpus(const char *recipe, const Task *task, double step_s, double busy_s)
{
    Made m           = healthy_cpu();
    m.recipe         = recipe;
    m.task           = task;
    m.step_s         = step_s;
    m.fill_s         = 1e-6;
    m.f.plan.threads = 1;
    m.f.host         = (FactsHost){ .cpus = 2, .allowed = 2, .quota = NAN, .loader_threads = 1 };
    m.own_cpu        = 1;
    m.cpu            = 0.5;
    m.f.trace.step_s = step_s;
    m.f.trace.busy_s = busy_s;
    return m;
}

/* Steps and gains that two cores of an EPYC (Zen 5) reached on 2026-11-18, with no other
 * program. A gain may be off by the five per cent that the doctor leaves alone. */
static void a_second_thread_gains_what_the_ops_allow(void **state)
{
    static const struct {
        const char *name, *recipe;
        const Task *task;
        double      step_s, busy_s, gain;
    } row[] = {
        { "quickstart", SMALL_LM("4096", "128", "4"), &task_lm, 0.1338, 0.1305, 0.496 },
        { "width 32, 4096", SMALL_LM("4096", "32", "2"), &task_lm, 0.02238, 0.02175, 0.493 },
        { "width 32, 1024", SMALL_LM("1024", "32", "2"), &task_lm, 0.0051, 0.005, 0.48 },
        { "width 32, 256", SMALL_LM("256", "32", "2"), &task_lm, 0.001245, 0.001219, 0.219 },
        { "width 256", SMALL_LM("4096", "256", "4"), &task_lm, 0.441, 0.44, 0.477 },
    };
    for (int i = 0; i < ARRAY_LEN(row); i++) {
        Made           m = on_one_of_two_cpus(row[i].recipe, row[i].task, row[i].step_s, row[i].busy_s);
        Visit         *v = visit("two", &m, "threads: 1\n");
        const Finding *x = found(v, "CPU threads");
        if (!x || !(fabs(x->gain - row[i].gain) < 0.05))
            fail_msg("%s: %g predicted, %g measured", row[i].name, x ? x->gain : 0, row[i].gain);
        leave(v);
    }
}

/* Two CPUs of one core share its arithmetic units: the second one multiplies no faster. */
static void threads_beyond_the_cores_gain_nothing(void **state)
{
    Made           m = on_one_of_two_cpus(SMALL_LM("4096", "128", "4"), &task_lm, 0.1338, 0.1305);
    const Finding *x = NULL;
    m.f.host.cores = m.f.host.allowed_cores = 1;
    Visit *v                                = visit("siblings", &m, "threads: 1\n");
    assert_null(found(v, "CPU threads"));
    leave(v);
    m.f.host.cpus = m.f.host.allowed = 4;
    m.f.host.cores = m.f.host.allowed_cores = 2;
    m.cpu                                   = 0.25;
    v                                       = visit("more", &m, "threads: 1\n");
    x                                       = found(v, "CPU threads");
    assert_true(x && fabs(x->gain - 0.496) < 0.05 && strstr(x->verdict, "1 of 4 CPUs (2 cores) computes"));
    assert_non_null(strstr(x->evidence, "4 threads on 2 cores save"));
    leave(v);
    /* Pinned to one CPU of each core: nothing is lost. Pinned to both of one core: the other core is. */
    m.f.host.allowed = 2;
    m.f.plan.threads = 2;
    m.own_cpu        = 2;
    m.cpu            = 0.5;
    v                = visit("pinned", &m, "");
    assert_null(found(v, "CPU quota"));
    leave(v);
    m.f.host.allowed_cores = 1;
    v                      = visit("crowded", &m, "");
    assert_true((x = found(v, "CPU quota")) && x->gain > 0.4);
    assert_non_null(strstr(x->verdict, "2 of 4 CPUs (1 of 2 cores)"));
    leave(v);
}

static void a_gain_of_threads_that_is_not_known_is_not_predicted(void **state)
{
    static const char tiny[] = "step_tokens: 16\nmodel:\n  layers: 2\n  width: 16\n  heads: 2\n  vocab: 256\n"
                               "  context: 16\ndata:\n  kind: random\n";
    const Finding    *x      = NULL;
    /* Nothing is large enough to be divided. */
    Made   m = on_one_of_two_cpus(tiny, &task_lm, 0.0002, 0.00018);
    Visit *v = NULL;
    v        = visit("nothing", &m, "threads: 1\n");
    assert_null(found(v, "CPU threads"));
    leave(v);
    /* Ops at the size from which threads share them: 16 % were measured. */
    m = on_one_of_two_cpus(cartpole, &task_ppo, 0.004048, 0.004003);
    v = visit("least", &m, "threads: 1\n");
    assert_true((x = found(v, "CPU threads")) && isnan(x->gain) && strstr(x->evidence, "save 0 to 23 %"));
    assert_true(doctor_is_healthy(&v->d));
    char  *text = NULL;
    size_t n    = 0;
    FILE  *f    = open_memstream(&text, &n);
    doctor_print(&v->d, f);
    fclose(f);
    assert_non_null(strstr(text, "promises 5 % or more; 1 gain cannot be predicted\n"));
    free(text);
    leave(v);
    /* The host works between the ops, and no trace says how long. */
    m.f.trace = (FactsTrace){ NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN };
    v         = visit("untraced", &m, "threads: 1\n");
    assert_true((x = found(v, "CPU threads")) && isnan(x->gain) && strstr(x->evidence, "not measured"));
    leave(v);
    /* Another program has the second CPU: two of two steps took as long as with one thread. */
    m     = on_one_of_two_cpus(SMALL_LM("4096", "128", "4"), &task_lm, 0.134, 0.133);
    m.cpu = 1;
    v     = visit("taken", &m, "threads: 1\n");
    assert_true((x = found(v, "CPU threads")) && isnan(x->gain) && strstr(x->evidence, "other programs"));
    leave(v);
}

/* 32 micro-batches of 128 rows took 22.3 ms, and one of 4096 rows 24.5 ms (EPYC, 2026-11-18). What an op
 * costs a CPU beside its work is not known well enough to promise a gain. */
static void micro_batches_of_a_cpu_are_not_predicted(void **state)
{
    const Finding *x     = NULL;
    Made           m     = on_one_of_two_cpus(SMALL_LM("4096", "32", "2"), &task_lm, 0.0283, 0.028);
    m.f.plan.micro_batch = 1;
    Visit *v             = visit("micro", &m, "micro_batch: 1\n");
    assert_true((x = found(v, "batch too small")) && isnan(x->gain) && doctor_is_healthy(&v->d));
    assert_null(strstr(x->evidence, "faster"));
    leave(v);
    m = on_one_of_two_cpus(SMALL_LM("4096", "128", "4"), &task_lm, 0.1803, 0.18);
    strcpy(m.f.plan.recompute, "block");
    m.f.trace.repeat_s = NAN;
    v = visit("again", &m, "recompute: block\n"); /* all of it is work: 19 to 30 % were measured */
    assert_true((x = found(v, "recomputation")) && x->gain > 0.15 && x->gain < 0.3);
    leave(v);
}

/* Other programs need memory, too, where the device shares it with them. */
static void a_cpu_is_not_offered_all_memory(void **state)
{
    const Finding *x    = NULL;
    Made           m    = on_one_of_two_cpus(SMALL_LM("4096", "128", "4"), &task_lm, 0.1803, 0.18);
    m.f.plan.room_bytes = 30e6;
    Visit *v            = visit("limit", &m, "memory_limit: 30MB\n");
    assert_non_null(x = found(v, "memory unused"));
    assert_string_equal(x->change[0], "memory_limit=80%");
    leave(v);
    m                   = healthy_gpu();
    m.f.plan.room_bytes = 4e9;
    m.step_s = m.f.trace.step_s = m.f.trace.busy_s = 0.04;
    v                                              = visit("limit", &m, "memory_limit: 4GB\n");
    assert_non_null(x = found(v, "memory unused"));
    assert_string_equal(x->change[0], "memory_limit=97%");
    leave(v);
}

/* A slow step is no reason to leave fp8 or fp16 for bf16. */
static void precisions_with_tensor_cores_are_left_alone(void **state)
{
    static const char *const keys[] = { "precision: fp8\n", "precision: fp16\n" };
    static const char *const name[] = { "fp8", "fp16" };
    for (int i = 0; i < ARRAY_LEN(keys); i++) {
        Made m   = healthy_gpu();
        m.step_s = m.f.trace.step_s = m.f.trace.busy_s = 0.3;
        strcpy(m.f.plan.precision, name[i]);
        Visit *v = visit("fast", &m, keys[i]);
        assert_null(found(v, "precision"));
        leave(v);
    }
}

static void what_is_not_measured_is_no_zero(void **state)
{
    char  *text = NULL;
    size_t n    = 0;
    Made   m    = healthy_cpu();
    m.f.trace   = (FactsTrace){ NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN };
    Visit *v    = visit("bare", &m, "");
    FILE  *f    = open_memstream(&text, &n);
    doctor_print(&v->d, f);
    fclose(f);
    assert_non_null(strstr(text, "busy, not divided"));
    assert_non_null(strstr(text, "not measured: time by op"));
    assert_null(strstr(text, "useful work"));
    assert_null(strstr(text, "nan"));
    free(text);
    leave(v);
}

/* A latent recipe is planned with the rows that its data needed, not with those of padded prompts. */
static void data_are_not_read_again(void **state)
{
    char     path[200];
    WhatIf   run, padded;
    RunFacts f;
    path_of(path, sizeof path, ".", "latent.yaml");
    FILE *out = fopen(path, "w");
    assert_non_null(out);
    fputs("task: latent\nstep_samples: 64\nmicro_batch: 64\nmodel.vocab: 256\nmodel.context: 4096\n"
          "model.pos: rope\nencoder.bytes: 2048\nlatent.llm: gone\n"
          "latent.pairs: jsonl\nlatent.prompt: 1024\n"
          "data.train: gone.jsonl\n",
          out);
    fclose(out);
    const RecipeFrom from = { .task = &task_latent, .path = path };
    facts_init(&f);
    f.plan.threads    = 1;
    f.plan.room_bytes = f.plan.total_bytes = 64e9;
    if (whatif_plan(&padded, &from, &f, NULL, 0, 0) < 0) fail_msg("%s", err_get());
    f.plan.data_share = 0.25;
    if (whatif_plan(&run, &from, &f, NULL, 0, 0) < 0) fail_msg("%s", err_get());
    assert_true(run.total_bytes < 0.8 * padded.total_bytes && run.step_s < 0.8 * padded.step_s);
}

static void the_changed_recipe_has_the_changes(void **state)
{
    char    path[200];
    Recipe *r = calloc(1, sizeof *r);
    Made    m = healthy_gpu();
    m.step_s = m.f.trace.step_s = m.f.trace.busy_s = 3;
    strcpy(m.f.plan.precision, "fp32");
    Visit *v = visit("slow", &m, "precision: fp32\nmicro_batch: 1\n");
    path_of(path, sizeof path, "slow", "out.yaml");
    assert_true(doctor_apply(&v->d, &v->from, path) >= 2);
    assert_int_equal(recipe_load_without_data(r, path, 0, NULL), 0);
    assert_true(r->precision == PRECISION_AUTO && r->micro_batch == 0 && strcmp(r->run, "slow-doctor") == 0);
    assert_true(r->step_tokens == 65536); /* a larger step would train something else */
    leave(v);
    m = healthy_gpu();
    v = visit("fine", &m, "");
    path_of(path, sizeof path, "fine", "out.yaml");
    assert_int_equal(doctor_apply(&v->d, &v->from, path), 0);
    assert_int_equal(file_kind(path), FILE_NONE);
    leave(v);
    free(r);
}

/* ---- samples ------------------------------------------------------------------------------------------- */

/* A picture of one pixel. */
static const unsigned char pixel[] = { 0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n', 0,    0,    0,
                                       13,   'I', 'H', 'D', 'R',  0,    0,    0,    1,    0,    0,
                                       0,    1,   8,   0,   0,    0,    0,    0x3a, 0x7e, 0x9b, 0x55,
                                       0,    0,   0,   10,  'I',  'D',  'A',  'T',  0x78, 0x9c, 0x63,
                                       0,    0,   0,   2,   0,    1,    0x48, 0xaf, 0xa4, 0x71, 0,
                                       0,    0,   0,   'I', 'E',  'N',  'D',  0xae, 0x42, 0x60, 0x82 };

static int draw(Job *j, const TaskSample *opt, FILE *out)
{
    fprintf(out, "seed %d", (int)opt->seed);
    if (opt->picture) fwrite(pixel, 1, sizeof pixel, opt->picture);
    return 0;
}

static int fail_to_draw(Job *j, const TaskSample *opt, FILE *out) { return err_set("cannot"); }

static void samples_are_kept_and_shown(void **state)
{
    Task       task = { .sample = draw };
    Job       *j    = calloc(1, sizeof *j);
    Samples    s;
    SampleView view[SAMPLEVIEW_MOST];
    char       dir[200];
    Made       m = healthy_gpu();
    write_run("drawn", &m, "");
    snprintf(dir, sizeof dir, "%s/drawn", base);
    j->task                 = &task;
    j->parts                = JOB_TRAIN | JOB_SAMPLE;
    j->recipe.seed          = 5;
    j->recipe.watch.samples = 2;
    samples_begin(&s, dir, &j->recipe);
    EventWriter *e = event_writer_open(dir, 1);
    samples_take(&s, j, 10, e);
    samples_take(&s, j, 20, e);
    assert_int_equal(event_writer_close(e), 0);
    Runs *r = calloc(1, sizeof *r);
    assert_int_equal(runs_init(r, base), 0);
    runs_refresh(r);
    int n = sampleview_read(r, runs_find(r, "drawn"), view);
    assert_int_equal(n, 4);
    assert_true(view[0].step == 20 && strcmp(view[0].text, "seed 6") == 0);
    assert_true(view[3].step == 10 && strcmp(view[3].text, "seed 5") == 0);
    assert_non_null(strstr(view[0].image, "data:image/png;base64,iVBORw0KGgo"));
    sampleview_free(view, n);
    runs_deinit(r);
    free(r);
    task.sample = fail_to_draw;
    samples_take(&s, j, 30, NULL);
    assert_true(s.is_off && err_kind() == ERR_NONE);
    free(j);
}

static void names_of_pictures_are_checked(void **state)
{
    assert_true(sampleview_name_ok("samples/00000010-0.png") && sampleview_name_ok("samples/1-2.gif"));
    assert_false(sampleview_name_ok("samples/../../etc/passwd") || sampleview_name_ok("/etc/passwd") ||
                 sampleview_name_ok("samples/.png") || sampleview_name_ok("samples/1.png/x") ||
                 sampleview_name_ok("samples/1.svg") || sampleview_name_ok(""));
}

/* ---- traces -------------------------------------------------------------------------------------------- */

static void a_trace_is_summed_up(void **state)
{
    static const char text[] =
        "{\"otherData\":{\"left_out\":0},\"traceEvents\":["
        "{\"ph\":\"M\",\"name\":\"x\",\"ts\":0,\"dur\":0,\"pid\":1,\"tid\":0},"
        "{\"ph\":\"X\",\"cat\":\"step\",\"name\":\"step 1\",\"ts\":0,\"dur\":100,\"pid\":1,\"tid\":0},"
        "{\"ph\":\"X\",\"cat\":\"linear_fwd\",\"name\":\"block 0 "
        "qkv\",\"ts\":10,\"dur\":30,\"args\":{\"flops\":3e7}},"
        "{\"ph\":\"X\",\"cat\":\"linear_fwd\",\"name\":\"block 1 "
        "qkv\",\"ts\":50,\"dur\":20,\"args\":{\"flops\":3e7}},"
        "{\"ph\":\"X\",\"cat\":\"linear_fwd\",\"name\":\"block 1 "
        "qkv\",\"ts\":70,\"dur\":10,\"args\":{\"part\":1}},"
        "{\"ph\":\"X\",\"cat\":\"norm_fwd\",\"name\":\"block 1 "
        "norm\",\"ts\":80,\"dur\":10,\"args\":{\"again\":true}},"
        "{\"ph\":\"X\",\"name\":\"no time\"},7,null]}";
    TraceSum *t = calloc(1, sizeof *t);
    assert_int_equal(tracesum_read(t, "t", text, strlen(text)), 0);
    assert_true(t->n_step == 1 && t->steps_us == 100 && t->busy_us == 70 && t->idle_us == 30 &&
                t->n_row == 2);
    /* An op of two kernels is one call. */
    assert_true(t->row[0].n == 2 && t->row[0].time_us == 60 && t->row[0].flops == 6e7 &&
                strcmp(t->row[0].what, "qkv") == 0);
    assert_string_equal(t->row[1].what, "norm again");
    assert_int_equal(tracesum_read(t, "t", "{", 1), -1);
    assert_int_equal(err_kind(), ERR_USER);
    err_clear();
    assert_int_equal(tracesum_read(t, "t", "[]", 2), -1);
    err_clear();
    free(t);
}

/* Other tools count from anywhere, and write events that take no time. */
static void traces_of_other_tools_are_summed_up(void **state)
{
    static const double zero[] = { 0, 5e9, 1.7e15, -3e6 };
    TraceSum           *t      = calloc(1, sizeof *t);
    char                text[400];
    for (int i = 0; i < ARRAY_LEN(zero); i++) {
        snprintf(text, sizeof text,
                 "[{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"a\",\"ts\":%.0f,\"dur\":40},"
                 "{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"b\",\"ts\":%.0f,\"dur\":50}]",
                 zero[i], zero[i] + 50);
        assert_int_equal(tracesum_read(t, "t", text, strlen(text)), 0);
        if (!(t->busy_us == 90 && t->idle_us == 10)) fail_msg("%g: %g idle", zero[i], t->idle_us);
    }
    static const char still[] = "[{\"ph\":\"X\",\"cat\":\"k\",\"name\":\"a\",\"ts\":7,\"dur\":0}]";
    char             *shown   = NULL;
    size_t            n       = 0;
    assert_int_equal(tracesum_read(t, "t", still, strlen(still)), 0);
    FILE *f = open_memstream(&shown, &n);
    tracesum_print(t, f);
    fclose(f);
    assert_null(strstr(shown, "nan"));
    free(shown);
    free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(healthy_runs_are_called_healthy),
        cmocka_unit_test(each_bottleneck_comes_first),
        cmocka_unit_test(limits_of_the_card_are_said),
        cmocka_unit_test(a_busy_host_is_said),
        cmocka_unit_test(more_threads_are_no_more_cpus),
        cmocka_unit_test(evaluations_that_end_a_run_are_left_alone),
        cmocka_unit_test(saving_the_best_is_said),
        cmocka_unit_test(cpu_runs_have_their_own),
        cmocka_unit_test(a_second_thread_gains_what_the_ops_allow),
        cmocka_unit_test(threads_beyond_the_cores_gain_nothing),
        cmocka_unit_test(a_gain_of_threads_that_is_not_known_is_not_predicted),
        cmocka_unit_test(micro_batches_of_a_cpu_are_not_predicted),
        cmocka_unit_test(a_cpu_is_not_offered_all_memory),
        cmocka_unit_test(precisions_with_tensor_cores_are_left_alone),
        cmocka_unit_test(what_is_not_measured_is_no_zero),
        cmocka_unit_test(data_are_not_read_again),
        cmocka_unit_test(the_changed_recipe_has_the_changes),
        cmocka_unit_test(samples_are_kept_and_shown),
        cmocka_unit_test(names_of_pictures_are_checked),
        cmocka_unit_test(a_trace_is_summed_up),
        cmocka_unit_test(traces_of_other_tools_are_summed_up),
    };
    return cmocka_run_group_tests(tests, make_base, remove_base);
}
