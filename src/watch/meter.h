/* Meter: measures GPU and host step by step while a run trains.
 *
 * 1. A thread of its own asks the driver ten times a second. A step never waits for that thread: meter_mark()
 *    only says that a step has ended, and meter_read() gives the newest complete stretch.
 * 2. A stretch goes from mark to mark and takes at least MIN_STRETCH_S, the shortest time that GPM can
 *    measure: one long step, or several short ones. The stretch says which steps it covers. Activity is one
 *    difference of counters over the whole stretch.
 * 3. A number that cannot be read is NAN, never 0. Without a GPU the host's numbers remain; power and energy
 *    are then those of the CPU, if the CPU has counters. */
#ifndef WATCH_METER_H
#define WATCH_METER_H

#include "watch/host.h"
#include "watch/nvml.h"

#include <stdint.h>

typedef struct Meter Meter;

typedef struct {
    int64_t first_step, last_step; /* what the stretch covers; 0, 0: nothing yet */
    double  time_s;
    int     n_sample; /* readings of the GPU in it */
    /* GPU; shares from 0 to 1. Means over the stretch, but for the last four. */
    double   gpu_util, sm_active, tensor_active, dram_active, pcie_tx_bytes_s, pcie_rx_bytes_s;
    double   gpu_power_w, sm_mhz, memory_mhz;
    double   gpu_memory_bytes, gpu_memory_total_bytes, power_limit_w, temperature_c;
    double   ecc_errors; /* uncorrected, since the driver was loaded */
    double   processes;  /* that compute on the GPU, this one included */
    int      has_reasons;
    uint64_t reasons; /* all that were seen */
    /* Energy of the GPU, or without one of the CPU packages. */
    double    energy_j;       /* of the stretch */
    double    total_energy_j; /* since meter_start() */
    HostRates host;
    double    memory_used_bytes, memory_total_bytes, rss_bytes; /* the host's */
} MeterStretch;

/* cuda_index below 0: no GPU. nvml_path as in nvml_open(), borrowed. NULL when there is no memory or no
 * thread: the others take that as a meter that has seen nothing. */
Meter *meter_start(int cuda_index, const char *nvml_path);
void   meter_stop(Meter *m);

void meter_mark(Meter *m, int64_t step); /* step has just ended */
/* The newest complete stretch; all n/a before the first one. */
void meter_read(Meter *m, MeterStretch *out);

/* Which activity there is: "gpm", or why not: "utilisation only: this GPU has no GPM (Hopper and later
 * have it)"; "none: no GPU". NULL until the thread knows. */
const char *meter_activity(Meter *m);
/* The card as it was while the first stretch was measured; all n/a before. */
void meter_card(Meter *m, NvmlCard *out);

/* What the thread has cost up to the last stretch. */
typedef struct {
    double cpu_s;  /* CPU seconds, all */
    double open_s; /* of these, before the first reading: the driver's library is opened once */
    double wall_s; /* seconds of watching after that */
} MeterCost;
MeterCost meter_cost(Meter *m); /* NAN: no meter, or no stretch yet */

#endif
