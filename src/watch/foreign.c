#include "watch/foreign.h"

#include "base/clock.h"
#include "base/err.h"
#include "watch/host.h"
#include "watch/nvml.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

enum { PROCESSES = 64 };

static const double GIB = 1073741824.0;

typedef struct {
    int          index, n_process;
    double       own_bytes;
    NvmlActivity activity; /* over the whole time */
    NvmlReading  last;
    double       util, power_w, sm_mhz; /* means, NAN: n/a */
    uint64_t     reasons;
    NvmlCard     card;
} Seen;

/* The GPU that the driver lists the program on; NULL: none. */
static NvmlDevice *find_gpu(const Nvml *n, int pid, Seen *s)
{
    NvmlProcess p[PROCESSES];
    for (int i = 0; i < nvml_device_count(n); i++) {
        NvmlDevice *d = nvml_device(n, i);
        int         k = nvml_processes(n, d, p, PROCESSES);
        for (int j = 0; j < k && j < PROCESSES; j++) {
            if (p[j].pid != pid) continue;
            s->index     = i;
            s->n_process = k;
            s->own_bytes = p[j].used_bytes;
            return d;
        }
    }
    return NULL;
}

static void watch(const Nvml *n, NvmlDevice *d, double seconds, Seen *s)
{
    enum { PERIOD_US = 100000 };
    NvmlGpm *g   = nvml_gpm_create(n, d);
    double   end = clock_now_s() + seconds, util = 0, power = 0, mhz = 0;
    int      k = 0;
    do {
        usleep(PERIOD_US);
        nvml_read(n, d, &s->last);
        util += s->last.gpu_util / 100;
        power += s->last.power_w;
        mhz += s->last.sm_mhz;
        s->reasons |= s->last.reasons;
        k++;
    } while (clock_now_s() < end);
    nvml_gpm_next(g, &s->activity);
    nvml_gpm_destroy(g);
    nvml_read_card(n, d, &s->card);
    s->util    = util / k;
    s->power_w = power / k;
    s->sm_mhz  = mhz / k;
}

static void print_parts(const Seen *s, FILE *out)
{
    double sm = s->activity.sm_active / 100, tensor = s->activity.tensor_active / 100;
    fprintf(out, "\nwhere the time goes, by the driver's counters alone\n");
    if (isnan(sm)) {
        fprintf(out, "  nothing runs               %5.1f %%\n  some kernel runs           %5.1f %%\n",
                100 * (1 - s->util), 100 * s->util);
        fprintf(out, "not measured: SM, tensor and memory activity\n");
        return;
    }
    fprintf(out, "  SMs idle                   %5.1f %%\n  SMs busy, no products      %5.1f %%\n",
            100 * (1 - sm), 100 * (sm - MIN(sm, tensor)));
    fprintf(out, "  tensor cores at work       %5.1f %%\n", 100 * MIN(sm, tensor));
    fprintf(out, "memory bandwidth %.0f %%, PCIe %.2f GB/s in, %.2f GB/s out\n", s->activity.dram_active,
            s->activity.pcie_rx_bytes_s * 1e-9, s->activity.pcie_tx_bytes_s * 1e-9);
    fprintf(out, "not measured: what the program computes, and what it waits for\n");
}

/* What the counters alone allow to say. */
static void print_findings(const Seen *s, FILE *out)
{
    double sm = s->activity.sm_active / 100, tensor = s->activity.tensor_active / 100;
    double used = s->last.memory_used_bytes / s->last.memory_total_bytes;
    char   text[160];
    int    n = 0;
    fprintf(out, "\n");
    if (s->n_process > 1)
        fprintf(out, "%d. another process: %d programs share this GPU\n", ++n, s->n_process);
    if (sm < 0.8 || s->util < 0.8)
        fprintf(out,
                "%d. the GPU waits: %.0f %% of the SMs' time is idle. Data, launch gaps or small batches: "
                "more loader workers, CUDA graphs, a larger batch\n",
                ++n, 100 * (1 - MIN(isnan(sm) ? 1 : sm, s->util)));
    if (sm > 0.6 && tensor < 0.3)
        fprintf(out,
                "%d. precision or attention: SMs are busy, tensor cores are not. fp32, attention that is "
                "stored, or unfused passes\n",
                ++n);
    if (s->activity.dram_active > 70)
        fprintf(out, "%d. memory-bound: %.0f %% of the bandwidth. Fused kernels would help\n", ++n,
                s->activity.dram_active);
    if (used < 0.5)
        fprintf(out, "%d. memory unused: %.0f of %.0f GiB. A larger batch, or less recomputation\n", ++n,
                s->last.memory_used_bytes / GIB, s->last.memory_total_bytes / GIB);
    nvml_reasons_text(text, sizeof text, s->reasons);
    if (strstr(text, "power"))
        fprintf(out, "%d. power limit: %.0f of %.0f W, %.0f MHz. In bf16 that is the end; fp8 needs less\n",
                ++n, s->power_w, s->last.power_limit_w, s->sm_mhz);
    if (strstr(text, "therm")) fprintf(out, "%d. thermal limit: %.0f C\n", ++n, s->last.temperature_c);
    if (strstr(text, "application clocks") && s->sm_mhz < 0.85 * s->card.max_sm_mhz)
        fprintf(out, "%d. clocks locked: %.0f of %.0f MHz\n", ++n, s->sm_mhz, s->card.max_sm_mhz);
    if (n == 0) fprintf(out, "nothing that these counters could blame\n");
}

int foreign_judge(const ForeignOptions *opt, FILE *out)
{
    char        name[96], program[64];
    Seen        s = { 0 };
    Nvml       *n = nvml_open(opt->nvml_path);
    NvmlDevice *d = find_gpu(n, opt->pid, &s);
    if (!d) {
        int rc = err_user("command line: --pid: %s", n ? "the driver lists no such program on any GPU (in a "
                                                         "container it may use other numbers; brim top "
                                                         "shows them)"
                                                       : "no NVIDIA driver answers");
        nvml_close(n);
        return rc;
    }
    watch(n, d, opt->seconds, &s);
    nvml_name(n, d, name, sizeof name);
    host_process_name(opt->pid, program, sizeof program);
    fprintf(out, "pid %d (%s) on GPU %d, %s, for %.1f s, judged from NVML and GPM alone\n", opt->pid, program,
            s.index, name, opt->seconds);
    fprintf(out, "utilisation %.0f %%, %.1f of %.1f GiB in use (%.1f by this program), %.0f W, %.0f MHz\n",
            100 * s.util, s.last.memory_used_bytes / GIB, s.last.memory_total_bytes / GIB, s.own_bytes / GIB,
            s.power_w, s.sm_mhz);
    print_parts(&s, out);
    print_findings(&s, out);
    nvml_close(n);
    return 0;
}
