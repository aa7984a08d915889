/* Gpus: the present state of every GPU of this machine and of the machine itself, whichever program uses
 * them.
 *
 * 1. Rates and activity are measured since the refresh before. The first refresh has none.
 * 2. Nothing fails, as in nvml.h: without a driver there are no GPUs, and `why` says so. */
#ifndef WATCH_GPUS_H
#define WATCH_GPUS_H

#include "watch/host.h"
#include "watch/nvml.h"

enum { GPUS_MOST = 16, GPUS_PROCESSES = 8 };

typedef struct {
    int    pid;
    double used_bytes;
    char   name[32];
} GpuProcess;

typedef struct {
    char         name[96];
    NvmlDevice  *device;
    NvmlGpm     *gpm;
    NvmlReading  now;
    NvmlActivity activity; /* percent */
    double       energy_j, ecc_errors, link_generation, link_lanes;
    int          n_process; /* negative: not known; may be more than are listed */
    GpuProcess   process[GPUS_PROCESSES];
} GpuView;

typedef struct {
    Nvml       *nvml;
    int         n_gpu;
    GpuView     gpu[GPUS_MOST];
    char        why[96]; /* why there is no GPU; "" when there is one */
    int         n_cpu;
    char        cpu_name[96], host_name[64];
    HostReading host;
    HostRates   rates;
    double      refreshed_s; /* clock_now_s() */
} Gpus;

void gpus_init(Gpus *g, const char *nvml_path);
void gpus_deinit(Gpus *g);
void gpus_refresh(Gpus *g); /* nothing within 0.1 s of the last one */

#endif
