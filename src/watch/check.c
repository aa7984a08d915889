#include "watch/check.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/hostmem.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "bench/limit.h"
#include "run/setup.h"
#include "run/step.h"
#include "watch/host.h"
#include "watch/nvml.h"

#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Rates below this part of what such a card has are called slow. */
static const double ENOUGH = 0.85;

__attribute__((format(printf, 4, 5))) static void say(Check *c, CheckState state, const char *what,
                                                      const char *fmt, ...)
{
    va_list ap;
    if (c->n == CHECK_ROWS) return;
    CheckRow *r = &c->row[c->n++];
    r->state    = state;
    str_copy(r->what, sizeof r->what, what);
    va_start(ap, fmt);
    vsnprintf(r->text, sizeof r->text, fmt, ap);
    va_end(ap);
    c->n_bad += state == CHECK_BAD;
    c->n_slow += state == CHECK_SLOW;
}

/* ---- host ---------------------------------------------------------------------------------------------- */

static void check_host(Check *c)
{
    char name[160], a[32];
    int  cpus = host_cpus(), allowed = hostmem_cpus(), quota = hostmem_quota(), cores, ours;
    host_cpu_name(name, sizeof name);
    host_count_cores(&cores, &ours);
    if (cores > 0) snprintf(a, sizeof a, ", %d core%s", cores, str_plural(cores));
    say(c, CHECK_OK, "CPU", "%s, %d CPUs%s", name, cpus, cores > 0 ? a : "");
    if (allowed < cpus)
        say(c, CHECK_SLOW, "CPU quota", "this process may use %d of %d CPUs (%s)", allowed, cpus,
            quota <= allowed ? "a container's quota" : "affinity");
    say(c, CHECK_OK, "host memory", "%s may be used", str_bytes(a, sizeof a, (double)hostmem_available()));
}

static void check_environment(Check *c)
{
    static const struct {
        const char *name, *bad; /* bad NULL: any but an empty one */
        const char *why;
    } harmful[] = {
        { "CUDA_LAUNCH_BLOCKING", "1", "every launch waits for its kernel" },
        { "CUDA_VISIBLE_DEVICES", "", "hides every GPU" },
        { "CUDA_VISIBLE_DEVICES", "-1", "hides every GPU" },
        { "NVIDIA_TF32_OVERRIDE", "0", "switches TF32 off in every library" },
        { "CUBLAS_WORKSPACE_CONFIG", NULL, "limits the workspaces of products" },
        { "CUDA_CACHE_DISABLE", "1", "kernels are compiled anew at each start" },
        { "CUDA_DEVICE_WAITS_ON_EXCEPTION", NULL, "for debuggers" },
        { "CUDA_INJECTION64_PATH", NULL, "another profiler is loaded: traces may be refused" },
        { "NCCL_P2P_DISABLE", "1", "GPUs do not talk to each other directly" },
        { "NCCL_SHM_DISABLE", "1", "ranks of one machine talk over the network" },
        { "NCCL_IB_DISABLE", "1", "InfiniBand is not used" },
        { "NCCL_DEBUG", "TRACE", "NCCL logs every call" },
        { "OMP_NUM_THREADS", "1", "one CPU thread computes" },
        { "OMP_WAIT_POLICY", "PASSIVE", "CPU threads sleep between ops" },
        { "OMP_PROC_BIND", NULL, "binds threads: several runs may get the same CPUs" },
        { "LD_PRELOAD", NULL, "another library stands before Brim's" },
        { "MALLOC_CHECK_", NULL, "slows every allocation" },
        { "BRIM_FAULT", NULL, "makes calls fail, for tests" },
        { "BRIM_SLOW", NULL, "slows the loader, for tests" },
    };
    int n = 0;
    for (int i = 0; i < ARRAY_LEN(harmful); i++) {
        const char *v = getenv(harmful[i].name);
        if (!v || (harmful[i].bad ? strcasecmp(v, harmful[i].bad) != 0 : !v[0])) continue;
        say(c, CHECK_SLOW, "environment", "%s=%.60s: %s", harmful[i].name, v, harmful[i].why);
        n++;
    }
    if (n == 0) say(c, CHECK_OK, "environment", "no variable that is known to do harm");
}

static double timed_file(const char *path, int is_write, char *buf, size_t n, int times)
{
    int    fd = open(path, is_write ? O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC : O_RDONLY | O_CLOEXEC, 0600);
    double begin = clock_now_s();
    int    ok    = fd >= 0;
    if (ok && !is_write) posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED); /* else memory would answer */
    for (int i = 0; ok && i < times; i++)
        ok = (is_write ? write(fd, buf, n) : read(fd, buf, n)) == (ssize_t)n;
    if (ok && is_write) ok = fsync(fd) == 0;
    double took = clock_now_s() - begin;
    if (fd >= 0) close(fd);
    return ok ? (double)n * times / took : NAN;
}

static void check_disk(Check *c, const char *folder)
{
    enum { PIECE = 4 << 20, PIECES = 32 };
    char  path[1100];
    char *buf = mem_zeroed(1, PIECE);
    snprintf(path, sizeof path, "%s/.brim-check-%d", folder, (int)getpid());
    double put = buf ? timed_file(path, 1, buf, PIECE, PIECES) : NAN;
    double get = buf ? timed_file(path, 0, buf, PIECE, PIECES) : NAN;
    unlink(path);
    free(buf);
    if (isnan(put) || isnan(get)) {
        say(c, CHECK_NOTE, "disk", "%s cannot be written", folder);
    } else {
        say(c, put < 100e6 ? CHECK_SLOW : CHECK_OK, "disk",
            "%s: %.0f MB/s written and synced, %.0f MB/s read", folder, put * 1e-6, get * 1e-6);
    }
}

/* ---- card ---------------------------------------------------------------------------------------------- */

static void check_link(Check *c, const NvmlCard *k)
{
    int slow = k->link_generation < k->link_generation_max || k->link_lanes < k->link_lanes_max;
    say(c, slow ? CHECK_NOTE : CHECK_OK, "PCIe link", "generation %.0f x%.0f of %.0f x%.0f%s",
        k->link_generation, k->link_lanes, k->link_generation_max, k->link_lanes_max,
        slow ? " (a card at rest may show less)" : "");
}

static void check_power(Check *c, const NvmlCard *k)
{
    char limit[16], usual[16];
    say(c, k->power_limit_w < 0.98 * k->power_default_w ? CHECK_SLOW : CHECK_OK, "power limit",
        "%s W; the card's own is %s W", nvml_number(limit, sizeof limit, k->power_limit_w, 0),
        nvml_number(usual, sizeof usual, k->power_default_w, 0));
}

static void check_clocks(Check *c, const NvmlCard *k, const NvmlReading *r)
{
    char most[16], now[16], text[160];
    say(c, CHECK_OK, "clocks", "%s MHz at most; now %s (%s)",
        nvml_number(most, sizeof most, k->max_sm_mhz, 0), nvml_number(now, sizeof now, r->sm_mhz, 0),
        r->has_reasons ? nvml_reasons_text(text, sizeof text, r->reasons) : "no reason given");
}

/* has_gpu 0: CUDA has no device, and what the driver says about its first one may tell why. */
static void check_driver(Check *c, const char *nvml_path, int has_gpu)
{
    Nvml       *n = nvml_open(nvml_path);
    NvmlDevice *d = has_gpu ? nvml_device_of_cuda(n, 0) : nvml_device(n, 0);
    NvmlCard    k;
    NvmlReading r;
    char        name[96];
    if (!d) {
        say(c, CHECK_MISSING, "NVML", "%s",
            n ? "the driver knows no GPU"
              : "the driver's library does not answer: no power, clocks, activity");
        nvml_close(n);
        return;
    }
    nvml_read_card(n, d, &k);
    nvml_read(n, d, &r);
    if (!has_gpu)
        say(c, CHECK_NOTE, "driver", "it has %s, which CUDA does not offer to this program",
            nvml_name(n, d, name, sizeof name));
    check_power(c, &k);
    check_clocks(c, &k, &r);
    double ecc = nvml_ecc_errors(n, d);
    if (isnan(ecc)) {
        say(c, CHECK_NOTE, "memory errors", "not known: ECC is off, or this card has none");
    } else {
        say(c, ecc > 0 ? CHECK_BAD : CHECK_OK, "memory errors",
            "%.0f uncorrected since the driver was loaded", ecc);
    }
    NvmlGpm *g = nvml_gpm_create(n, d);
    say(c, g ? CHECK_OK : CHECK_MISSING, "activity counters", "%s",
        g ? "GPM answers" : nvml_gpm_refusal(n, d));
    nvml_gpm_destroy(g);
    int others = nvml_processes(n, d, NULL, 0);
    if (others > has_gpu) say(c, CHECK_SLOW, "other programs", "%d programs compute on this GPU", others);
    nvml_close(n);
}

/* Pinned memory to the device and back. */
static int copy_rates(Dev *dev, double *up, double *down)
{
    enum { BYTES = 256 << 20, TIMES = 4 };
    void *host = dev->vt->host_alloc(dev, BYTES), *there = dev_slab_alloc(dev, BYTES);
    int   rc = host && there ? 0 : -1;
    for (int way = 0; rc == 0 && way < 2; way++) {
        double best = INFINITY;
        for (int i = 0; rc == 0 && i < TIMES; i++) {
            double begin = clock_now_s();
            rc           = way == 0 ? dev->vt->upload(dev, LANE_COMPUTE, there, host, BYTES)
                                    : dev->vt->download(dev, LANE_COMPUTE, host, there, BYTES);
            if (rc == 0) rc = dev->vt->sync(dev);
            best = MIN(best, clock_now_s() - begin);
        }
        *(way == 0 ? up : down) = BYTES / best;
    }
    if (there) dev_slab_free(dev, there);
    if (host) dev->vt->host_free(dev, host);
    return rc;
}

static void check_tracing(Check *c, Dev *dev)
{
    DevTrace t = { 0 };
    if (!dev->vt->trace_begin || dev->vt->trace_begin(dev) < 0) {
        say(c, CHECK_MISSING, "traces", "%s", err_get());
        err_clear();
        return;
    }
    dev->vt->trace_end(dev, &t);
    free(t.span);
    say(c, CHECK_OK, "traces", "CUPTI records kernels");
}

/* 1: there is a GPU. */
static int check_card(Check *c, const CheckOptions *opt, DevInfo *info)
{
    const char *why = "";
    char        a[32], b[32];
    double      up = 0, down = 0;
    Dev        *dev = dev_open("cuda", &(DevOptions){ .capture = 1, .tune = 1 }, &why);
    if (!dev || dev->vt->info(dev, info) < 0) {
        say(c, CHECK_MISSING, "GPU", "%s; training runs on the CPU", err_get());
        err_clear();
        if (dev) dev_close(dev);
        check_driver(c, opt->nvml_path, 0);
        return 0;
    }
    say(c, CHECK_OK, "GPU", "%s, %s free of %s", info->name, str_bytes(a, sizeof a, (double)info->free_bytes),
        str_bytes(b, sizeof b, (double)info->total_bytes));
    say(c, CHECK_OK, "versions", "%s", info->versions);
    if (info->free_bytes < info->total_bytes / 10 * 9)
        say(c, CHECK_SLOW, "memory in use", "%s belong to other programs",
            str_bytes(a, sizeof a, (double)(info->total_bytes - info->free_bytes)));
    if (copy_rates(dev, &up, &down) == 0) {
        say(c, MIN(up, down) < 20e9 ? CHECK_SLOW : CHECK_OK, "copies",
            "%.1f GB/s to the device, %.1f GB/s back", up * 1e-9, down * 1e-9);
        Nvml    *n = nvml_open(opt->nvml_path);
        NvmlCard k;
        nvml_read_card(n, nvml_device_of_cuda(n, 0), &k); /* the link is awake now */
        if (!isnan(k.link_generation)) check_link(c, &k);
        nvml_close(n);
    } else {
        say(c, CHECK_BAD, "copies", "%s", err_get());
        err_clear();
    }
    check_tracing(c, dev);
    dev_close(dev);
    check_driver(c, opt->nvml_path, 1);
    return 1;
}

/* ---- rates --------------------------------------------------------------------------------------------- */

static void check_rate(Check *c, const char *what, double have, double should, const DevHints *h,
                       int is_bytes)
{
    double      unit = is_bytes ? 1e9 : h->flops_unit;
    const char *name = is_bytes ? "GB/s" : h->flops_name;
    if (!(have > 0)) return;
    if (should > 0) {
        say(c, have < ENOUGH * should ? CHECK_SLOW : CHECK_OK, what, "%.0f %s; such a card reaches %.0f",
            have / unit, name, should / unit);
    } else {
        say(c, CHECK_OK, what, "%.4g %s", have / unit, name);
    }
}

static void check_rates(Check *c, const CheckOptions *opt, const char *device, const char *name)
{
    const DevHints *h                = strcmp(device, "cpu") == 0 ? &dev_hints_cpu : &dev_hints_cuda;
    const Machine  *m                = machine_find(name);
    DType           dtype            = h->is_late ? DT_BF16 : DT_F32;
    double          rate[UNIT_COUNT] = { 0 };
    AttnShape   shape = { .heads = 16, .kv_heads = 16, .head_dim = 64, .scale = 0.125f, .mask = MASK_CAUSAL };
    LimitAttn   attn  = { .dtype = dtype, .B = h->is_late ? 32 : 1, .T = 1024, .shape = shape };
    LimitShapes s     = { .compute = dtype, .fwd = attn, .bwd = attn };
    Recipe     *r     = mem_alloc(sizeof *r);
    if (!r) return;
    *r = *opt->recipe;
    str_copy(r->device, sizeof r->device, device);
    if (limit_measure(rate, r, &s) < 0) {
        say(c, CHECK_BAD, "rates", "%s", err_get());
        err_clear();
    }
    free(r);
    check_rate(c, "products", rate[UNIT_GEMM], m ? m->rate[UNIT_GEMM] : 0, h, 0);
    check_rate(c, "attention forward", rate[UNIT_ATTN_FWD], m ? m->rate[UNIT_ATTN_FWD] : 0, h, 0);
    check_rate(c, "attention backward", rate[UNIT_ATTN_BWD], m ? m->rate[UNIT_ATTN_BWD] : 0, h, 0);
    check_rate(c, "memory", rate[UNIT_MEMORY], m ? m->rate[UNIT_MEMORY] : 0, h, 1);
}

/* ---- a step -------------------------------------------------------------------------------------------- */

enum { STEPS = 3 };

typedef struct {
    double loss[STEPS], norm[STEPS], fill_per_s;
} Steps;

static int walk_steps(const CheckOptions *opt, const char *device, Steps *out)
{
    Setup       s;
    Stepper     stepper = { 0 };
    Source     *src     = NULL;
    StepOut     result;
    LoaderStats stats;
    Recipe     *r = mem_alloc(sizeof *r);
    if (!r) return err_sys("memory for a recipe");
    *r = *opt->recipe;
    str_copy(r->device, sizeof r->device, device);
    int rc = setup_open(&s, opt->task, r, JOB_TRAIN);
    if (rc == 0) rc = opt->task->open_train(&src, r);
    if (rc == 0) rc = stepper_init(&stepper, s.job, (int)r->data.depth);
    if (rc == 0) rc = stepper_attach(&stepper, src, 0, NULL, 0);
    for (int i = 0; rc == 0 && i < STEPS; i++) {
        rc = step_begin(&stepper, i, 1e-3);
        if (rc == 0) rc = step_result(&stepper, i, &result);
        out->loss[i] = result.loss;
        out->norm[i] = result.grad_norm;
    }
    if (rc == 0) {
        loader_stats(stepper.feed.loader, &stats);
        out->fill_per_s = (double)stats.batches * (double)s.job->fields.B / MAX(stats.fill_s, 1e-9);
    }
    stepper_deinit(&stepper);
    source_close(src);
    setup_close(&s);
    free(r);
    return rc;
}

/* The larger one, or the one that is no number: a NAN must not pass for a small difference. */
static double worse(double a, double b) { return isnan(a) || a > b ? a : b; }

/* In fp32 both follow the same recipe; sums have another order. Some thousand terms of 2^-24 each, and three
 * steps, stay far below 1e-3 of the loss; a wrong kernel does not. */
static void check_step(Check *c, const CheckOptions *opt, int has_gpu)
{
    const double tolerance = 1e-3;
    Steps        cpu, gpu;
    double       worst = 0, norm = 0;
    char         rate[32];
    if (walk_steps(opt, "cpu", &cpu) < 0) {
        say(c, CHECK_BAD, "a step on the CPU", "%s", err_get());
        err_clear();
        return;
    }
    say(c, CHECK_OK, "loader", "%s samples/s a thread, of data in memory",
        str_count(rate, sizeof rate, cpu.fill_per_s));
    say(c, CHECK_OK, "a step on the CPU", "loss %.5f -> %.5f in %d steps", cpu.loss[0], cpu.loss[STEPS - 1],
        STEPS);
    if (!has_gpu) return;
    if (walk_steps(opt, "cuda", &gpu) < 0) {
        say(c, CHECK_BAD, "a step on the GPU", "%s", err_get());
        err_clear();
        return;
    }
    for (int i = 0; i < STEPS; i++) {
        worst = worse(worst, fabs(gpu.loss[i] / cpu.loss[i] - 1));
        norm  = worse(norm, fabs(gpu.norm[i] / cpu.norm[i] - 1));
    }
    say(c, worse(worst, norm) <= tolerance ? CHECK_OK : CHECK_BAD, "CPU against GPU",
        "%d steps in fp32 differ by %.1e of the loss, %.1e of the gradient's norm (%.0e is allowed)", STEPS,
        worst, norm, tolerance);
}

/* ---- all ----------------------------------------------------------------------------------------------- */

int check_machine(Check *c, const CheckOptions *opt)
{
    double  begin = clock_now_s();
    DevInfo info  = { 0 };
    memset(c, 0, sizeof *c);
    check_host(c);
    check_environment(c);
    int has_gpu = check_card(c, opt, &info);
    check_disk(c, opt->folder);
    check_step(c, opt, has_gpu);
    if (!opt->is_quick) check_rates(c, opt, has_gpu ? "cuda" : "cpu", info.name);
    c->took_s = clock_now_s() - begin;
    return 0;
}

static const char *const state_name[] = { "ok", "note", "slow", "missing", "BAD" };

void check_print(const Check *c, FILE *out)
{
    for (int i = 0; i < c->n; i++)
        fprintf(out, "%-8s %-20s %s\n", state_name[c->row[i].state], c->row[i].what, c->row[i].text);
    fprintf(out, "%d looked at in %.1f s: %d bad, %d slow\n", c->n, c->took_s, c->n_bad, c->n_slow);
}

int check_print_json(const Check *c, FILE *out)
{
    JsonOut o;
    json_out_init_file(&o, out);
    json_out_object(&o, NULL);
    json_out_num(&o, "seconds", c->took_s);
    json_out_int(&o, "bad", c->n_bad);
    json_out_int(&o, "slow", c->n_slow);
    json_out_array(&o, "rows");
    for (int i = 0; i < c->n; i++) {
        json_out_object(&o, NULL);
        json_out_str(&o, "state", state_name[c->row[i].state]);
        json_out_str(&o, "what", c->row[i].what);
        json_out_str(&o, "text", c->row[i].text);
        json_out_close(&o);
    }
    return json_out_end(&o);
}
