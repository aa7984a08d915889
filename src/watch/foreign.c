#include "watch/foreign.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "watch/host.h"
#include "watch/nvml.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PROCESSES = 64, GPUS = 16, FINDINGS = 8 };

static const double GIB = 1073741824.0;

typedef struct {
    const char *cause;
    char        text[200];
} Finding;

/* What was seen of one GPU. Shares from 0 to 1; NAN: n/a. */
typedef struct {
    int         index, n_process;
    char        name[96], reasons_text[160];
    double      own_bytes;
    NvmlDevice *device;
    NvmlGpm    *gpm;
    double      sm, tensor, dram; /* over the whole time */
    double      pcie_rx_bytes_s, pcie_tx_bytes_s;
    NvmlReading last;
    double      util, power_w, sm_mhz; /* means */
    uint64_t    reasons;
    NvmlCard    card;
    Finding     finding[FINDINGS];
    int         n_finding;
} Seen;

/* The GPUs that the driver lists the program on. Returns how many. */
static int find_gpus(const Nvml *n, int pid, Seen *s)
{
    NvmlProcess p[PROCESSES];
    int         found = 0;
    for (int i = 0; i < nvml_device_count(n) && found < GPUS; i++) {
        NvmlDevice *d = nvml_device(n, i);
        int         k = nvml_processes(n, d, p, PROCESSES);
        for (int j = 0; j < k && j < PROCESSES; j++) {
            if (p[j].pid != pid) continue;
            s[found++] = (Seen){ .index = i, .n_process = k, .own_bytes = p[j].used_bytes, .device = d };
            break;
        }
    }
    return found;
}

/* ---- watching ------------------------------------------------------------------------------------------ */

static void begin_gpu(const Nvml *n, Seen *s)
{
    s->gpm = nvml_gpm_create(n, s->device);
    nvml_name(n, s->device, s->name, sizeof s->name);
}

static void poll_gpu(const Nvml *n, Seen *s)
{
    nvml_read(n, s->device, &s->last);
    s->util += s->last.gpu_util / 100;
    s->power_w += s->last.power_w;
    s->sm_mhz += s->last.sm_mhz;
    s->reasons |= s->last.reasons;
}

static void end_gpu(const Nvml *n, Seen *s, int n_poll)
{
    NvmlActivity a;
    nvml_gpm_next(s->gpm, &a);
    nvml_gpm_destroy(s->gpm);
    nvml_read_card(n, s->device, &s->card);
    nvml_reasons_text(s->reasons_text, sizeof s->reasons_text, s->reasons);
    s->sm              = a.sm_active / 100;
    s->tensor          = a.tensor_active / 100;
    s->dram            = a.dram_active / 100;
    s->pcie_rx_bytes_s = a.pcie_rx_bytes_s;
    s->pcie_tx_bytes_s = a.pcie_tx_bytes_s;
    s->util /= n_poll;
    s->power_w /= n_poll;
    s->sm_mhz /= n_poll;
}

/* All GPUs over the same seconds. */
static void watch(const Nvml *n, Seen *s, int n_gpu, double seconds)
{
    enum { PERIOD_US = 100000 };
    int n_poll = 0;
    for (int i = 0; i < n_gpu; i++) begin_gpu(n, &s[i]);
    double end = clock_now_s() + seconds;
    do {
        usleep(PERIOD_US);
        for (int i = 0; i < n_gpu; i++) poll_gpu(n, &s[i]);
        n_poll++;
    } while (clock_now_s() < end);
    for (int i = 0; i < n_gpu; i++) end_gpu(n, &s[i], n_poll);
}

/* ---- judging ------------------------------------------------------------------------------------------- */

__attribute__((format(printf, 3, 4))) static void add(Seen *s, const char *cause, const char *fmt, ...)
{
    va_list ap;
    CHECK(s->n_finding < FINDINGS, "too many findings");
    Finding *x = &s->finding[s->n_finding++];
    x->cause   = cause;
    va_start(ap, fmt);
    vsnprintf(x->text, sizeof x->text, fmt, ap);
    va_end(ap);
}

/* What the counters alone allow to say. */
static void judge(Seen *s)
{
    double used = s->last.memory_used_bytes / s->last.memory_total_bytes;
    double busy = isnan(s->sm) ? s->util : isnan(s->util) ? s->sm : MIN(s->sm, s->util);
    if (s->n_process > 1) add(s, "another process", "%d programs share this GPU", s->n_process);
    if (busy < 0.8)
        add(s, "the GPU waits",
            "%.0f %% of the SMs' time is idle. Data, launch gaps or small batches: more loader workers, CUDA "
            "graphs, a larger batch",
            100 * (1 - busy));
    if (s->sm > 0.6 && s->tensor < 0.3)
        add(s, "precision or attention",
            "SMs are busy, tensor cores are not. fp32, attention that is stored, or unfused passes");
    if (s->dram > 0.7)
        add(s, "memory-bound", "%.0f %% of the bandwidth. Fused kernels would help", 100 * s->dram);
    if (used < 0.5)
        add(s, "memory unused", "%.0f of %.0f GiB. A larger batch, or less recomputation",
            s->last.memory_used_bytes / GIB, s->last.memory_total_bytes / GIB);
    if (strstr(s->reasons_text, "power") && nvml_is_at_limit(s->power_w, s->last.power_limit_w))
        add(s, "power limit", "%.0f of %.0f W, %.0f MHz. In bf16 that is the end; fp8 needs less", s->power_w,
            s->last.power_limit_w, s->sm_mhz);
    if (strstr(s->reasons_text, "therm"))
        add(s, "thermal limit", "heat holds the clock down, at %.0f C", s->last.temperature_c);
    if (strstr(s->reasons_text, "application clocks") && s->sm_mhz < 0.85 * s->card.max_sm_mhz)
        add(s, "clocks locked", "%.0f of %.0f MHz", s->sm_mhz, s->card.max_sm_mhz);
}

/* ---- for people ---------------------------------------------------------------------------------------- */

static void print_parts(const Seen *s, FILE *out)
{
    fprintf(out, "\nwhere the time goes, by the driver's counters alone\n");
    if (isnan(s->sm)) {
        if (!isnan(s->util))
            fprintf(out, "  nothing runs               %5.1f %%\n  some kernel runs           %5.1f %%\n",
                    100 * (1 - s->util), 100 * s->util);
        fprintf(out, "not measured: SM, tensor and memory activity%s\n",
                isnan(s->util) ? ", utilisation" : "");
        return;
    }
    double tensor = isnan(s->tensor) ? 0 : MIN(s->sm, s->tensor);
    fprintf(out, "  SMs idle                   %5.1f %%\n  SMs busy, no products      %5.1f %%\n",
            100 * (1 - s->sm), 100 * (s->sm - tensor));
    fprintf(out, "  tensor cores at work       %5.1f %%\n", 100 * tensor);
    fprintf(out, "memory bandwidth %.0f %%, PCIe %.2f GB/s in, %.2f GB/s out\n", 100 * s->dram,
            s->pcie_rx_bytes_s * 1e-9, s->pcie_tx_bytes_s * 1e-9);
    fprintf(out, "not measured: what the program computes, and what it waits for\n");
}

static void print_gpu(const Seen *s, FILE *out)
{
    char util[16], used[16], all[16], own[16], power[16], mhz[16];
    fprintf(out, "GPU %d, %s: utilisation %s %%, %s of %s GiB in use (%s by this program), %s W, %s MHz\n",
            s->index, s->name, nvml_number(util, sizeof util, 100 * s->util, 0),
            nvml_number(used, sizeof used, s->last.memory_used_bytes / GIB, 1),
            nvml_number(all, sizeof all, s->last.memory_total_bytes / GIB, 1),
            nvml_number(own, sizeof own, s->own_bytes / GIB, 1),
            nvml_number(power, sizeof power, s->power_w, 0), nvml_number(mhz, sizeof mhz, s->sm_mhz, 0));
    print_parts(s, out);
    fprintf(out, "\n");
    for (int i = 0; i < s->n_finding; i++)
        fprintf(out, "%d. %s: %s\n", i + 1, s->finding[i].cause, s->finding[i].text);
    if (s->n_finding == 0) fprintf(out, "nothing that these counters could blame\n");
}

static void print_all(const ForeignOptions *opt, const char *program, const Seen *s, int n, FILE *out)
{
    fprintf(out, "pid %d (%s) on %d GPU%s for %.1f s, judged from NVML and GPM alone\n", opt->pid, program, n,
            str_plural(n), opt->seconds);
    for (int i = 0; i < n; i++) {
        if (i > 0) fprintf(out, "\n");
        print_gpu(&s[i], out);
    }
}

/* ---- for programs -------------------------------------------------------------------------------------- */

static void put_gpu(JsonOut *o, const Seen *s)
{
    const struct {
        const char *name;
        double      x;
    } row[] = { { "utilisation", s->util },
                { "sm_active", s->sm },
                { "tensor_active", s->tensor },
                { "dram_active", s->dram },
                { "mem_bytes", s->last.memory_used_bytes },
                { "mem_total_bytes", s->last.memory_total_bytes },
                { "own_bytes", s->own_bytes },
                { "power_w", s->power_w },
                { "power_limit_w", s->last.power_limit_w },
                { "sm_mhz", s->sm_mhz },
                { "temp_c", s->last.temperature_c } };
    json_out_object(o, NULL);
    json_out_int(o, "gpu", s->index);
    json_out_str(o, "name", s->name);
    json_out_int(o, "programs", s->n_process);
    for (int i = 0; i < ARRAY_LEN(row); i++)
        if (isfinite(row[i].x)) json_out_num(o, row[i].name, row[i].x);
    json_out_str(o, "clock_reasons", s->reasons_text);
    json_out_array(o, "findings");
    for (int i = 0; i < s->n_finding; i++) {
        json_out_object(o, NULL);
        json_out_str(o, "cause", s->finding[i].cause);
        json_out_str(o, "verdict", s->finding[i].text);
        json_out_close(o);
    }
    json_out_close(o);
    json_out_close(o);
}

static int print_json(const ForeignOptions *opt, const char *program, const Seen *s, int n, FILE *out)
{
    JsonOut o;
    json_out_init_file(&o, out);
    json_out_object(&o, NULL);
    json_out_int(&o, "pid", opt->pid);
    json_out_str(&o, "program", program);
    json_out_num(&o, "seconds", opt->seconds);
    json_out_str(&o, "source", "NVML and GPM alone");
    json_out_array(&o, "gpus");
    for (int i = 0; i < n; i++) put_gpu(&o, &s[i]);
    json_out_close(&o);
    return json_out_end(&o);
}

/* ---- all ----------------------------------------------------------------------------------------------- */

static int refuse(int has_driver)
{
    return err_user("command line: --pid: %s",
                    has_driver ? "the driver lists no such program on any GPU (in a "
                                 "container it may use other numbers; brim top shows them)"
                               : "no NVIDIA driver answers");
}

int foreign_judge(const ForeignOptions *opt, FILE *out)
{
    char  program[64];
    Seen *s = mem_zeroed(GPUS, sizeof *s);
    if (!s) return err_sys("memory for GPUs");
    Nvml *n     = nvml_open(opt->nvml_path);
    int   n_gpu = find_gpus(n, opt->pid, s), rc = n_gpu > 0 ? 0 : refuse(n != NULL);
    if (rc == 0) {
        watch(n, s, n_gpu, opt->seconds);
        for (int i = 0; i < n_gpu; i++) judge(&s[i]);
        host_process_name(opt->pid, program, sizeof program);
        if (opt->as_json) rc = print_json(opt, program, s, n_gpu, out);
        if (!opt->as_json) print_all(opt, program, s, n_gpu, out);
    }
    nvml_close(n);
    free(s);
    return rc;
}
