#include "watch/gpus.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/str.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

static const double LEAST_S = 0.1; /* between two samples of GPM */

void gpus_init(Gpus *g, const char *nvml_path)
{
    memset(g, 0, sizeof *g);
    g->nvml  = nvml_open(nvml_path);
    g->n_gpu = MIN(nvml_device_count(g->nvml), GPUS_MOST);
    if (g->n_gpu == 0)
        str_copy(g->why, sizeof g->why, g->nvml ? "the driver finds no GPU" : "no NVIDIA driver answers");
    for (int i = 0; i < g->n_gpu; i++) {
        GpuView *v = &g->gpu[i];
        v->device  = nvml_device(g->nvml, i);
        v->gpm     = nvml_gpm_create(g->nvml, v->device);
        nvml_name(g->nvml, v->device, v->name, sizeof v->name);
        v->activity = (NvmlActivity){ NAN, NAN, NAN, NAN, NAN, NAN };
    }
    g->n_cpu = host_cpus();
    host_cpu_name(g->cpu_name, sizeof g->cpu_name);
    if (gethostname(g->host_name, sizeof g->host_name) != 0) str_copy(g->host_name, sizeof g->host_name, "?");
    g->host_name[sizeof g->host_name - 1] = '\0';
    g->rates                              = (HostRates){ NAN, NAN, NAN, NAN, NAN, NAN };
    host_read(&g->host);
}

void gpus_deinit(Gpus *g)
{
    for (int i = 0; i < g->n_gpu; i++) nvml_gpm_destroy(g->gpu[i].gpm);
    nvml_close(g->nvml);
    memset(g, 0, sizeof *g);
}

static void refresh_gpu(const Gpus *g, GpuView *v)
{
    NvmlProcess p[GPUS_PROCESSES];
    nvml_gpm_next(v->gpm, &v->activity);
    nvml_read(g->nvml, v->device, &v->now);
    v->energy_j   = nvml_energy_j(g->nvml, v->device);
    v->ecc_errors = nvml_ecc_errors(g->nvml, v->device);
    nvml_read_link(g->nvml, v->device, &v->link_generation, &v->link_lanes);
    v->n_process = nvml_processes(g->nvml, v->device, p, GPUS_PROCESSES);
    for (int i = 0; i < MIN(v->n_process, GPUS_PROCESSES); i++) {
        v->process[i].pid        = p[i].pid;
        v->process[i].used_bytes = p[i].used_bytes;
        host_process_name(p[i].pid, v->process[i].name, sizeof v->process[i].name);
    }
}

void gpus_refresh(Gpus *g)
{
    HostReading now;
    if (clock_now_s() - g->refreshed_s < LEAST_S) return;
    for (int i = 0; i < g->n_gpu; i++) refresh_gpu(g, &g->gpu[i]);
    host_read(&now);
    host_between(&g->host, &now, &g->rates);
    g->host        = now;
    g->refreshed_s = clock_now_s();
}
