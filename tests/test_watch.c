/* NVML and the sampler, without a GPU: with no library, with a stand-in for it (fake_nvml.c), and with one
 * that lacks most of its functions. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/err.h"
#include "base/fault.h"
#include "base/file.h"
#include "base/json.h"
#include "watch/gpus.h"
#include "watch/host.h"
#include "watch/meter.h"
#include "watch/nvml.h"
#include "watch/runwatch.h"
#include "watch/sampler.h"

#include <dlfcn.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    char  dir[64], full[96], sparse[96], cuda[96];
    void *lib; /* of `full`, for its counters */
} Rig;

static int system_format(const char *format, const char *a, const char *b)
{
    char cmd[600];
    snprintf(cmd, sizeof cmd, format, a, b);
    return system(cmd);
}

static void build(const char *out, const char *flags)
{
    char        folder[256], cmd[1024];
    const char *cc = getenv("CC");
    assert_int_equal(file_folder_of(__FILE__, folder, sizeof folder), 0);
    snprintf(cmd, sizeof cmd, "%s -shared -fPIC %s -o %s %s/fake_nvml.c", cc ? cc : "gcc", flags, out,
             folder);
    if (system(cmd) != 0) fail_msg("%s", cmd);
}

static int rig_setup(void **state)
{
    Rig *r = calloc(1, sizeof *r);
    *state = r;
    if (!r) return -1;
    strcpy(r->dir, "/tmp/brim_watch_XXXXXX");
    if (!mkdtemp(r->dir)) return -1;
    snprintf(r->full, sizeof r->full, "%s/libnvidia-ml.so.1", r->dir);
    snprintf(r->sparse, sizeof r->sparse, "%s/sparse.so", r->dir);
    snprintf(r->cuda, sizeof r->cuda, "%s/libcuda.so.1", r->dir);
    build(r->full, "");
    build(r->sparse, "-DSPARSE");
    build(r->cuda, "-DCUDA -Wl,-soname,libcuda.so.1");
    r->lib = dlopen(r->full, RTLD_NOW | RTLD_LOCAL);
    unsetenv("CUDA_VISIBLE_DEVICES");
    return r->lib ? 0 : -1;
}

static int rig_teardown(void **state)
{
    Rig *r = *state;
    if (r->lib) dlclose(r->lib);
    unlink(r->full);
    unlink(r->sparse);
    unlink(r->cuda);
    rmdir(r->dir);
    free(r);
    return 0;
}

static int *fake_int(const Rig *r, const char *name)
{
    int *p = dlsym(r->lib, name);
    assert_non_null(p);
    return p;
}

/* After each case: everything opened was closed, and telemetry left no error behind. */
static int settled(void **state)
{
    Rig *r = *state;
    fault_disarm();
    unsetenv("CUDA_VISIBLE_DEVICES");
    int rc = *fake_int(r, "fake_live_init") != 0 || *fake_int(r, "fake_live_samples") != 0 ||
             err_kind() != ERR_NONE;
    *fake_int(r, "fake_init_rc") = *fake_int(r, "fake_gpm_rc") = *fake_int(r, "fake_cc_processes") = 0;
    if (rc) {
        fprintf(stderr, "not settled: init %d, samples %d, error '%s'\n", *fake_int(r, "fake_live_init"),
                *fake_int(r, "fake_live_samples"), err_get());
    }
    *fake_int(r, "fake_live_init") = *fake_int(r, "fake_live_samples") =
        0; /* one failure, not all after it */
    err_clear();
    return rc;
}

static void expect_near(double got, double want, double tolerance)
{
    if (!(fabs(got - want) <= tolerance)) fail_msg("%.12g, not %.12g", got, want);
}

static void expect_is(double got, double want) { expect_near(got, want, 1e-9 * fabs(want)); }

static void expect_all_na(const double *x, int n)
{
    for (int i = 0; i < n; i++) {
        if (!isnan(x[i])) fail_msg("number %d is %g, not n/a", i, x[i]);
    }
}

static void expect_device_na(const Nvml *n, NvmlDevice *d)
{
    NvmlReading  r = { 0 };
    NvmlActivity a = { 0 };
    nvml_read(n, d, &r);
    expect_all_na(&r.gpu_util, (int)(offsetof(NvmlReading, has_reasons) / sizeof(double)));
    assert_int_equal(r.has_reasons, 0);
    assert_true(isnan(nvml_energy_j(n, d)));
    NvmlGpm *g = nvml_gpm_create(n, d);
    assert_null(g);
    nvml_gpm_next(g, &a);
    expect_all_na(&a.sm_active, (int)(sizeof a / sizeof(double)));
    nvml_gpm_destroy(g);
    assert_true(nvml_processes(n, d, NULL, 0) < 0);
}

static void expect_result_na(const SamplerResult *r)
{
    expect_all_na(&r->utilisation.mean, 14);
    expect_all_na(&r->full_share, 3);
    assert_int_equal(r->n_sample, 0);
    assert_int_equal(r->has_reasons, 0);
    assert_true(isnan(sampler_power_w(r)));
}

static void sample_for(Sampler *s, int time_us, SamplerResult *out)
{
    memset(out, 0, sizeof *out);
    sampler_begin(s);
    usleep((useconds_t)time_us);
    sampler_end(s, out);
}

/* ---- n/a ----------------------------------------------------------------------------------------------- */

static void test_no_library(void **state)
{
    Nvml *n = nvml_open("/nowhere/libnvidia-ml.so.1");
    assert_null(n);
    assert_int_equal(nvml_device_count(n), 0);
    assert_null(nvml_device(n, 0));
    assert_null(nvml_device_of_cuda(n, 0));
    expect_device_na(n, NULL);
    nvml_close(n);
    nvml_close(nvml_open(NULL)); /* whatever this machine has */

    SamplerResult r;
    Sampler      *s = sampler_create(0, 0.001, "/nowhere/libnvidia-ml.so.1");
    sampler_end(s, &r);
    expect_result_na(&r);
    sample_for(s, 2000, &r);
    expect_result_na(&r);
    sampler_destroy(s);
    sample_for(NULL, 0, &r);
    expect_result_na(&r);
    sampler_destroy(NULL);
}

static void test_no_driver(void **state)
{
    Rig *r                       = *state;
    *fake_int(r, "fake_init_rc") = 9;
    assert_null(nvml_open(r->full));
}

static void test_no_thread(void **state)
{
    Rig          *r = *state;
    SamplerResult out;
    Sampler      *s = sampler_create(1, 0.001, r->full);
    fault_arm(FAULT_THREAD, 1, 0);
    sample_for(s, 1000, &out);
    expect_result_na(&out);
    sample_for(s, 1000, &out);
    assert_true(out.n_sample > 0);
    sampler_destroy(s);
}

static void test_sparse(void **state)
{
    Rig        *r = *state;
    Nvml       *n = nvml_open(r->sparse);
    NvmlDevice *d = nvml_device(n, 1);
    NvmlReading x;
    assert_non_null(d);
    nvml_read(n, d, &x);
    expect_is(x.power_w, 600);
    expect_is(x.memory_used_bytes, 30);
    expect_is(x.memory_total_bytes, 100);
    assert_int_equal(x.has_reasons, 1);
    assert_int_equal(x.reasons, 0x20);
    expect_all_na(
        (double[]){ x.gpu_util, x.memory_util, x.power_limit_w, x.sm_mhz, x.memory_mhz, x.temperature_c }, 6);
    assert_null(nvml_gpm_create(n, d));
    assert_true(nvml_processes(n, d, NULL, 0) < 0);
    nvml_close(n);

    SamplerResult out;
    Sampler      *s = sampler_create(0, 0.001, r->sparse);
    sample_for(s, 5000, &out);
    assert_true(out.n_sample > 0);
    expect_is(out.power_w.mean, 100);
    expect_is(sampler_power_w(&out), 100); /* without an energy counter */
    expect_all_na((double[]){ out.utilisation.mean, out.full_share, out.energy_j, out.tensor_active.max }, 4);
    sampler_destroy(s);
}

/* ---- values -------------------------------------------------------------------------------------------- */

static void test_readings(void **state)
{
    Rig        *r = *state;
    Nvml       *n = nvml_open(r->full);
    NvmlDevice *d = nvml_device(n, 1);
    NvmlReading x;
    assert_int_equal(nvml_device_count(n), 2);
    assert_null(nvml_device(n, 2));
    assert_null(nvml_device(n, -1));
    nvml_read(n, d, &x);
    assert_true(x.gpu_util >= 90 && x.gpu_util <= 100);
    expect_is(x.memory_util, 40);
    expect_is(x.memory_used_bytes, 140000000000.0);
    expect_is(x.memory_total_bytes, 150754820096.0);
    expect_is(x.power_limit_w, 700);
    expect_is(x.sm_mhz, 1545);
    expect_is(x.memory_mhz, 3201);
    expect_is(x.temperature_c, 62);
    assert_true(x.power_w >= 600 && x.power_w < 650);
    assert_int_equal(x.has_reasons, 1);
    double before_j = nvml_energy_j(n, d);
    expect_near(nvml_energy_j(n, d) - before_j, 2, 1e-6);
    nvml_read(n, nvml_device(n, 0), &x);
    expect_is(x.power_w, 100);
    nvml_close(n);
}

static void test_processes(void **state)
{
    Rig        *r = *state;
    Nvml       *n = nvml_open(r->full);
    NvmlDevice *d = nvml_device(n, 0);
    for (int wide = 0; wide < 2; wide++) { /* 32-byte entries too */
        NvmlProcess p[3]                  = { 0 };
        *fake_int(r, "fake_cc_processes") = wide;
        assert_int_equal(nvml_processes(n, d, p, 2), 3);
        assert_int_equal(p[0].pid, 77);
        expect_is(p[0].used_bytes, 1000);
        assert_int_equal(p[1].pid, 4242);
        expect_is(p[1].used_bytes, 5e9);
        assert_int_equal(p[2].pid, 0);
        assert_int_equal(nvml_processes(n, d, p, 3), 3);
        assert_int_equal(p[2].pid, 91);
        assert_true(isnan(p[2].used_bytes));
    }
    nvml_close(n);
}

static void test_gpm(void **state)
{
    Rig         *r = *state;
    Nvml        *n = nvml_open(r->full);
    NvmlActivity a;
    assert_null(nvml_gpm_create(n, nvml_device(n, 0))); /* that card says it has none */
    NvmlGpm *g = nvml_gpm_create(n, nvml_device(n, 1));
    assert_non_null(g);
    for (int i = 0; i < 3; i++) { /* the stand-in refuses samples in the wrong order */
        nvml_gpm_next(g, &a);
        expect_is(a.sm_active, 95.5);
        expect_is(a.tensor_active, 71.25);
        expect_is(a.dram_active, 34.5);
        expect_is(a.pcie_tx_bytes_s, 2 * 1048576.0);
        expect_is(a.pcie_rx_bytes_s, 3 * 1048576.0);
        assert_true(isnan(a.sm_occupancy));
    }
    *fake_int(r, "fake_gpm_rc") = 4;
    nvml_gpm_next(g, &a);
    expect_all_na(&a.sm_active, (int)(sizeof a / sizeof(double)));
    nvml_gpm_destroy(g);
    assert_null(nvml_gpm_create(n, nvml_device(n, 1))); /* no permission */
    nvml_close(n);
}

static void test_text(void **state)
{
    char t[128];
    assert_string_equal(nvml_reasons_text(t, sizeof t, 0), "none");
    assert_string_equal(nvml_reasons_text(t, sizeof t, 0x4), "power cap");
    assert_string_equal(nvml_reasons_text(t, sizeof t, 0x4 | 0x20 | 0x8000), "power cap, thermal, other");
    assert_string_equal(nvml_reasons_text(t, 8, ~0ull), "idle, a");
    assert_string_equal(nvml_number(t, sizeof t, NAN, 0), "n/a");
    assert_string_equal(nvml_number(t, sizeof t, 687.6, 0), "688");
    assert_string_equal(nvml_number(t, sizeof t, 0.934, 2), "0.93");
}

/* ---- which GPU ----------------------------------------------------------------------------------------- */

static void test_cuda_order(void **state)
{
    Rig  *r = *state;
    Nvml *n = nvml_open(r->full);
    assert_ptr_equal(nvml_device_of_cuda(n, 1), nvml_device(n, 1));
    setenv("CUDA_VISIBLE_DEVICES", "1, 0", 1);
    assert_ptr_equal(nvml_device_of_cuda(n, 0), nvml_device(n, 1));
    assert_ptr_equal(nvml_device_of_cuda(n, 1), nvml_device(n, 0));
    assert_null(nvml_device_of_cuda(n, 2));
    setenv("CUDA_VISIBLE_DEVICES", "GPU-8932f937", 1);
    assert_null(nvml_device_of_cuda(n, 0));
    /* With CUDA in the process its own answer wins. */
    void *cuda = dlopen(r->cuda, RTLD_NOW | RTLD_LOCAL);
    assert_non_null(cuda);
    setenv("CUDA_VISIBLE_DEVICES", "0", 1);
    assert_ptr_equal(nvml_device_of_cuda(n, 0), nvml_device(n, 1));
    assert_null(nvml_device_of_cuda(n, 1));
    dlclose(cuda);
    nvml_close(n);
}

/* ---- the sampler --------------------------------------------------------------------------------------- */

static void test_sampler(void **state)
{
    Rig     *r = *state;
    Sampler *s = sampler_create(1, 0.002, r->full);
    for (int stretch = 0; stretch < 2; stretch++) { /* the second starts from nothing */
        SamplerResult out;
        for (int tries = 0; tries < 50; tries++) { /* a loaded machine may give the thread no time */
            *fake_int(r, "fake_util_calls") = *fake_int(r, "fake_util_sum") = *fake_int(r, "fake_util_full") =
                0;
            *fake_int(r, "fake_power_calls") = *fake_int(r, "fake_power_sum_mw") = 0;
            sample_for(s, 60000, &out);
            if (out.n_sample >= 3) break;
        }
        int n = *fake_int(r, "fake_util_calls");
        assert_true(n >= 3);
        assert_int_equal(out.n_sample, n);
        expect_is(out.utilisation.mean, (double)*fake_int(r, "fake_util_sum") / n);
        expect_is(out.utilisation.max, 100);
        expect_is(out.full_share, (double)*fake_int(r, "fake_util_full") / n);
        expect_is(out.power_w.mean,
                  1e-3 * *fake_int(r, "fake_power_sum_mw") / *fake_int(r, "fake_power_calls"));
        expect_is(out.power_w.max, 600 + MIN(n, 50) - 1);
        expect_is(out.sm_mhz.mean, 1545);
        expect_is(out.temperature_c.max, 62);
        expect_is(out.tensor_active.mean, 71.25);
        expect_is(out.dram_active.max, 34.5);
        expect_is(out.sm_active.mean, 95.5);
        expect_is(out.power_limit_w, 700);
        assert_int_equal(out.reasons, 0x44);
        expect_near(out.energy_j, 2, 1e-6); /* one reading at the start, one at the end */
        assert_true(out.time_s > 0.004);
        expect_is(sampler_power_w(&out), out.energy_j / out.time_s);
    }
    sampler_destroy(s);
}

static void test_sampler_short(void **state)
{
    Rig          *r = *state;
    SamplerResult out;
    Sampler      *s = sampler_create(1, 100, r->full);
    sample_for(s, 0, &out); /* no wait for the period */
    assert_int_equal(out.n_sample, 1);
    expect_is(out.tensor_active.mean, 71.25);
    sampler_end(s, &out);
    expect_result_na(&out);
    sampler_begin(s);
    sampler_destroy(s); /* a run that failed midway */
}

/* ---- the meter ----------------------------------------------------------------------------------------- */

/* Marks steps until a stretch that covers one of them is complete. */
static void meter_until(Meter *m, int64_t *step, int64_t want, MeterStretch *out)
{
    for (int tries = 0; tries < 400; tries++) {
        meter_mark(m, ++*step);
        usleep(20000);
        meter_read(m, out);
        if (out->last_step >= want) return;
    }
    fail_msg("no stretch up to step %lld", (long long)want);
}

static void test_meter(void **state)
{
    Rig         *r    = *state;
    int64_t      step = 100;
    MeterStretch a, b;
    Meter       *m = meter_start(1, r->full);
    meter_read(m, &a);
    assert_int_equal(a.last_step, 0);
    assert_true(isnan(a.gpu_util) && isnan(a.energy_j) && isnan(a.host.cpu));
    meter_until(m, &step, 101, &a);
    assert_int_equal(a.first_step, 101); /* not the hundred before it */
    meter_until(m, &step, a.last_step + 1, &b);
    assert_int_equal(b.first_step, a.last_step + 1); /* every step is in one stretch */
    assert_true(b.time_s >= 0.1 && b.n_sample >= 1);
    expect_is(b.sm_active, 0.955); /* shares, not percent */
    expect_is(b.tensor_active, 0.7125);
    expect_is(b.dram_active, 0.345);
    expect_is(b.pcie_rx_bytes_s, 3 * 1048576.0);
    expect_is(b.gpu_memory_bytes, 140000000000.0);
    expect_is(b.power_limit_w, 700);
    expect_is(b.ecc_errors, 2); /* uncorrected, since the driver was loaded */
    assert_true(b.gpu_util >= 0.9 && b.gpu_util <= 1 && b.has_reasons);
    /* A stretch goes by power; so does a run that the counter was not yet asked about. */
    assert_true(b.energy_j > 0 && b.total_energy_j > 0);
    expect_near(b.energy_j, b.gpu_power_w * b.time_s, 1e-6);
    assert_true(b.host.cpu >= 0 && b.host.cpu <= 1 && b.rss_bytes > 1e6 &&
                b.memory_total_bytes > b.rss_bytes);
    assert_string_equal(meter_activity(m), "gpm");
    step = 50; /* the run went back */
    for (int tries = 0; tries < 400 && a.last_step > 99; tries++) meter_until(m, &step, 51, &a);
    assert_true(a.last_step < 100 && a.first_step >= 51);
    meter_stop(m);
}

static void test_meter_without(void **state)
{
    Rig         *r    = *state;
    int64_t      step = 0;
    MeterStretch s;
    Meter       *m = meter_start(0, r->full); /* a GPU without GPM: labelled, and no figure is invented */
    meter_until(m, &step, 1, &s);
    assert_string_equal(meter_activity(m),
                        "utilisation only: this GPU has no GPM (Hopper and later have it)");
    assert_true(isnan(s.tensor_active) && isnan(s.sm_active) && !isnan(s.gpu_util));
    meter_stop(m);
    *fake_int(r, "fake_gpm_rc") = 4;
    m                           = meter_start(1, r->full);
    step                        = 0;
    meter_until(m, &step, 1, &s);
    assert_string_equal(meter_activity(m), "utilisation only: the driver refuses GPM to this user");
    meter_stop(m);
    m    = meter_start(-1, NULL); /* the CPU computes */
    step = 0;
    meter_until(m, &step, 1, &s);
    assert_string_equal(meter_activity(m), "none: no GPU");
    assert_true(isnan(s.gpu_util) && isnan(s.gpu_power_w) && !isnan(s.host.cpu) && s.n_sample == 0);
    meter_stop(m);
    meter_mark(NULL, 1);
    meter_read(NULL, &s);
    assert_true(isnan(s.rss_bytes));
    meter_stop(NULL);
    fault_arm(FAULT_THREAD, 1, 0);
    assert_null(meter_start(1, r->full));
}

/* Ten readings a second cost less than one hundredth of a core. The bar is on the thread's own CPU time,
 * so other load does not matter. */
static void test_meter_cost(void **state)
{
    Rig         *r    = *state;
    int64_t      step = 0;
    MeterStretch s;
    Meter       *m = meter_start(1, r->full);
    meter_until(m, &step, 1, &s);
    double cpu_s = meter_cost(m).cpu_s, wall_s = 0;
    for (int i = 0; i < 10; i++) {
        meter_until(m, &step, s.last_step + 1, &s);
        wall_s += s.time_s;
    }
    double share = (meter_cost(m).cpu_s - cpu_s) / wall_s;
    printf("the meter's thread takes %.2f %% of a core\n", 100 * share);
    assert_true(share < 0.01);
    meter_stop(m);
}

static void test_gpus(void **state)
{
    Rig  *r = *state;
    Gpus *g = calloc(1, sizeof *g);
    gpus_init(g, r->full);
    gpus_refresh(g);
    assert_int_equal(g->n_gpu, 2);
    assert_string_equal(g->gpu[1].name, "NVIDIA H200");
    expect_is(g->gpu[1].activity.tensor_active, 71.25);
    assert_true(isnan(g->gpu[0].activity.tensor_active));
    assert_int_equal(g->gpu[0].n_process, 3); /* other programs' too */
    assert_int_equal(g->gpu[0].process[1].pid, 4242);
    expect_is(g->gpu[1].link_lanes, 16);
    gpus_deinit(g);
    gpus_init(g, "/nowhere.so");
    gpus_refresh(g);
    assert_int_equal(g->n_gpu, 0);
    assert_string_equal(g->why, "no NVIDIA driver answers");
    assert_true(g->host.memory_total_bytes > 0);
    gpus_deinit(g);
    free(g);
}

/* ---- a run that is watched ----------------------------------------------------------------------------- */

/* One line as the run would write it; the parsed object is the caller's. */
static json_t *watched_line(const Watcher *w, const char *metrics, int64_t step)
{
    JsonOut o;
    char    line[4096];
    json_out_init_buf(&o, line, sizeof line);
    json_out_object(&o, NULL);
    json_out_int(&o, "step", step);
    json_out_num(&o, "loss", 5.0 / (double)step);
    json_out_num(&o, "time_s", 0.03 * (double)step);
    json_out_num(&o, "data_wait_s", 0);
    w->line(w->self, &o, step, 1);
    assert_int_equal(json_out_end(&o), 0);
    FILE *f = fopen(metrics, "a");
    assert_true(f && fprintf(f, "%s\n", line) > 0 && fclose(f) == 0);
    json_t *root = json_loads(line, 0, NULL);
    assert_non_null(root);
    return root;
}

static double number_of(json_t *root, const char *key)
{
    json_t *x = json_object_get(root, key);
    if (!json_is_number(x)) fail_msg("no %s", key);
    return json_number_value(x);
}

/* Steps of 30 ms until a line has what the GPU did; returns that line. */
static json_t *watched_until(const Watcher *w, const char *metrics, int64_t *step)
{
    for (int tries = 0; tries < 300; tries++) {
        json_t *root = watched_line(w, metrics, ++*step);
        if (json_object_get(root, "tensor_active")) return root;
        json_decref(root);
        usleep(30000);
    }
    fail_msg("no line has the GPU's activity");
    return NULL;
}

static void test_runwatch(void **state)
{
    Rig       *r = *state;
    Recipe     recipe;
    char       dir[160], metrics[200], report[200], watch_json[200];
    int64_t    step   = 0;
    double     used_j = 0;
    WatcherRun run    = { "mine", dir, "NVIDIA H200", 1, 2, 0, 1000, "image", 512, 1, NULL };
    recipe_defaults(&recipe);
    recipe.watch.tensorboard = 1;
    snprintf(dir, sizeof dir, "%s/runs/mine", r->dir);
    snprintf(metrics, sizeof metrics, "%s/metrics.jsonl", dir);
    snprintf(report, sizeof report, "%s/report.html", dir);
    snprintf(watch_json, sizeof watch_json, "%s/watch.json", dir);
    assert_int_equal(file_make_folders(dir), 0);
    char base[128];
    snprintf(base, sizeof base, "%s/runs", r->dir);
    setenv("BRIM_RUNS", base, 1);
    for (int start = 0; start < 2; start++) { /* the second one goes on */
        RunWatch *rw   = runwatch_create(&recipe, r->full);
        Watcher   w    = runwatch_watcher(rw);
        run.first_step = step;
        w.begin(w.self, &run);
        json_t *facts = json_load_file(watch_json, 0, NULL);
        expect_is(number_of(facts, "first_step"), (double)step);
        json_decref(facts);
        json_t *line  = watched_until(&w, metrics, &step);
        double  n     = number_of(line, "watch_last") - number_of(line, "watch_first") + 1;
        double  total = number_of(line, "energy_j");
        assert_true(n >= 1 && number_of(line, "watch_last") < (double)step);
        expect_is(number_of(line, "tensor_active"), 0.7125);
        /* A stretch lasts 0.1 s or more, and 256 images a step are this rank's. */
        assert_true(number_of(line, "j_per_unit") * 256 * n >= 0.099 * number_of(line, "power_w"));
        assert_true(number_of(line, "power_w") > 500 && number_of(line, "power_w") < 700);
        expect_near(number_of(line, "kwh"), 2 * total / 3.6e6, 1e-9);
        assert_true(total > used_j); /* what the start before has used counts */
        assert_string_equal(json_string_value(json_object_get(line, "clock_reasons")) ? "has" : "none",
                            "has");
        json_decref(line);
        used_j = total;
        w.rewind(w.self, step - 1);
        step--;
        err_set("the device failed");
        w.end(w.self);
        assert_string_equal(err_get(), "the device failed"); /* not covered up by what came after it */
        err_clear();
        runwatch_destroy(rw);
        assert_int_equal(file_kind(report), FILE_REGULAR);
        unlink(report);
        if (start == 0)
            unlink(metrics); /* its steps will be done again; their joules were used all the same */
    }
    /* Another run has the name now: nothing is written into its folder. */
    RunWatch *rw = runwatch_create(&recipe, r->full);
    Watcher   w  = runwatch_watcher(rw);
    char      moved[200];
    run.first_step = step;
    w.begin(w.self, &run);
    snprintf(moved, sizeof moved, "%s/runs/old", r->dir);
    assert_int_equal(rename(dir, moved), 0);
    assert_int_equal(file_make_folders(dir), 0);
    assert_int_equal(system_format("cp %s/metrics.jsonl %s/", moved, dir), 0);
    w.end(w.self);
    runwatch_destroy(rw);
    assert_int_equal(file_kind(report), FILE_NONE);
    unsetenv("BRIM_RUNS");
    assert_int_equal(system_format("rm -r %s/%s", r->dir, "runs"), 0);
}

/* A run with stages begins and ends with each: watch.json of the second one has what was measured, too. */
static void test_runwatch_stages(void **state)
{
    Rig       *r = *state;
    Recipe     recipe;
    char       dir[160], metrics[200], watch_json[200];
    int64_t    step = 0;
    WatcherRun run  = { "mine", dir, "NVIDIA H200", 1, 1, 0, 1000, "image", 512, 1, NULL };
    recipe_defaults(&recipe);
    recipe.watch.report = 0;
    snprintf(dir, sizeof dir, "%s/runs/mine", r->dir);
    snprintf(metrics, sizeof metrics, "%s/metrics.jsonl", dir);
    snprintf(watch_json, sizeof watch_json, "%s/watch.json", dir);
    assert_int_equal(file_make_folders(dir), 0);
    RunWatch *rw = runwatch_create(&recipe, r->full);
    Watcher   w  = runwatch_watcher(rw);
    for (int stage = 0; stage < 2; stage++) {
        run.first_step = step;
        w.begin(w.self, &run);
        json_decref(watched_until(&w, metrics, &step));
        json_t *facts = json_load_file(watch_json, 0, NULL);
        assert_non_null(json_object_get(facts, "activity"));
        assert_string_equal(json_string_value(json_object_get(facts, "activity")), "gpm");
        expect_is(number_of(json_object_get(facts, "card"), "power_limit_w"), 700);
        json_decref(facts);
        w.end(w.self);
    }
    runwatch_destroy(rw);
    assert_int_equal(system_format("rm -r %s/%s", r->dir, "runs"), 0);
}

/* Two packages, and the whole machine, which has them in it. */
static void test_host_energy(void **state)
{
    static const char *const name[] = { "package-0", "psys", "package-1" };
    Rig                     *r      = *state;
    HostReading              h      = { .energy_j = NAN };
    for (int i = 0; i < ARRAY_LEN(name); i++) {
        char path[200], text[32];
        snprintf(path, sizeof path, "%s/powercap/intel-rapl:%d", r->dir, i);
        assert_int_equal(file_make_folders(path), 0);
        snprintf(text, sizeof text, "%d", (i + 1) * 1000000);
        assert_int_equal(system_format("echo %s >%s/name", name[i], path), 0);
        assert_int_equal(system_format("echo %s >%s/energy_uj", text, path), 0);
    }
    char folder[160];
    snprintf(folder, sizeof folder, "%s/powercap", r->dir);
    host_read_energy(&h, folder);
    expect_is(h.energy_j, 4);
    assert_int_equal(system_format("rm -r %s/%s", r->dir, "powercap"), 0);
}

/* Two cores of two CPUs, and one that does not say. */
static void test_cores(void **state)
{
    static const char *const list[] = { "0,2", "1,3", "0,2", "1,3" };
    static const int         all[] = { 0, 1, 2, 3 }, one[] = { 1, 3 }, each[] = { 2, 3 }, more[] = { 0, 4 };
    Rig                     *r = *state;
    char                     folder[160], path[200];
    snprintf(folder, sizeof folder, "%s/cpu", r->dir);
    for (int i = 0; i < ARRAY_LEN(list); i++) {
        snprintf(path, sizeof path, "%s/cpu%d/topology", folder, i);
        assert_int_equal(file_make_folders(path), 0);
        assert_int_equal(system_format("echo %s >%s/thread_siblings_list", list[i], path), 0);
    }
    assert_int_equal(host_cores(folder, all, 4), 2);
    assert_int_equal(host_cores(folder, one, 2), 1);
    assert_int_equal(host_cores(folder, each, 2), 2);
    assert_int_equal(host_cores(folder, more, 2), 0);
    assert_int_equal(host_cores("/nowhere", all, 4), 0);
    assert_int_equal(system_format("rm -r %s/%s", r->dir, "cpu"), 0);
    int cores, allowed;
    host_count_cores(&cores, &allowed);
    assert_true(0 <= allowed && allowed <= cores && cores <= host_cpus());
}

static void test_host(void **state)
{
    HostReading a, b;
    HostRates   d;
    char        name[32];
    host_read(&a);
    b = a;
    for (double until = a.time_s + 0.2; b.time_s < until;) host_read(&b);
    host_between(&a, &b, &d);
    assert_true(d.own_cpu > 0.05 && d.own_cpu < 2); /* this loop itself */
    a = (HostReading){
        .time_s = 1, .busy_s = 2, .total_s = 10, .energy_j = 990, .energy_wrap_j = 1000, .own_s = NAN
    };
    b = (HostReading){
        .time_s = 3, .busy_s = 5, .total_s = 14, .energy_j = 15, .energy_wrap_j = 1000, .own_s = NAN
    };
    host_between(&a, &b, &d);
    expect_is(d.cpu, 0.75);
    expect_is(d.energy_j, 25); /* the counter wrapped */
    assert_true(isnan(d.own_cpu));
    assert_string_equal(host_process_name(-1, name, sizeof name), "?");
    assert_string_not_equal(host_process_name(getpid(), name, sizeof name), "?");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_no_library, settled),
        cmocka_unit_test_teardown(test_no_driver, settled),
        cmocka_unit_test_teardown(test_no_thread, settled),
        cmocka_unit_test_teardown(test_sparse, settled),
        cmocka_unit_test_teardown(test_readings, settled),
        cmocka_unit_test_teardown(test_processes, settled),
        cmocka_unit_test_teardown(test_gpm, settled),
        cmocka_unit_test_teardown(test_text, settled),
        cmocka_unit_test_teardown(test_cuda_order, settled),
        cmocka_unit_test_teardown(test_sampler, settled),
        cmocka_unit_test_teardown(test_sampler_short, settled),
        cmocka_unit_test_teardown(test_meter, settled),
        cmocka_unit_test_teardown(test_meter_without, settled),
        cmocka_unit_test_teardown(test_meter_cost, settled),
        cmocka_unit_test_teardown(test_gpus, settled),
        cmocka_unit_test_teardown(test_runwatch, settled),
        cmocka_unit_test_teardown(test_runwatch_stages, settled),
        cmocka_unit_test_teardown(test_host, settled),
        cmocka_unit_test_teardown(test_cores, settled),
        cmocka_unit_test_teardown(test_host_energy, settled),
    };
    return cmocka_run_group_tests(tests, rig_setup, rig_teardown);
}
