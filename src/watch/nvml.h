/* Nvml: what the driver says about its GPUs, read through libnvidia-ml.so.1, opened at run time.
 *
 * 1. Telemetry is never a reason to fail. Without library, driver or metric the answer is "n/a": NAN for a
 *    number, a negative count for a list. Nothing here calls err_set().
 * 2. Every function takes a NULL Nvml, NvmlDevice or NvmlGpm and answers n/a.
 * 3. An Nvml does not change after nvml_open() and may be read from several threads. An NvmlGpm belongs to
 *    one thread.
 * 4. Shares are in percent, as the driver gives them. */
#ifndef WATCH_NVML_H
#define WATCH_NVML_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct Nvml       Nvml;
typedef struct NvmlDevice NvmlDevice; /* the driver's handle, the library's own; valid until nvml_close() */
typedef struct NvmlGpm    NvmlGpm;

/* path: the library; NULL: the system's libnvidia-ml.so.1. NULL when there is none or no driver answers. */
Nvml *nvml_open(const char *path);
void  nvml_close(Nvml *n);

int         nvml_device_count(const Nvml *n);      /* 0 without a driver */
NvmlDevice *nvml_device(const Nvml *n, int index); /* in NVML's order, which is that of the PCI bus */
/* The GPU that CUDA calls cuda_index in this process: by PCI bus id once CUDA is running here, else by its
 * place in CUDA_VISIBLE_DEVICES, else the same index. NULL when that list names it in a way that is no
 * index. */
NvmlDevice *nvml_device_of_cuda(const Nvml *n, int cuda_index);

typedef struct {
    double   gpu_util; /* percent of the driver's last sample period (1/6 to 1 s) with any kernel running */
    double   memory_util; /* the same, with device memory being read or written */
    double   memory_used_bytes, memory_total_bytes;
    double   power_w; /* the driver's mean over the last second on recent cards */
    double   power_limit_w;
    double   sm_mhz, memory_mhz;
    double   temperature_c;
    int      has_reasons;
    uint64_t reasons; /* clocks event reasons, see nvml_reasons_text() */
} NvmlReading;

void nvml_read(const Nvml *n, NvmlDevice *d, NvmlReading *out);
/* Only what changes within a second: utilisation, power, SM clock, reasons. The rest of *out stays. */
void nvml_read_fast(const Nvml *n, NvmlDevice *d, NvmlReading *out);

/* Since the driver was loaded. On an H200 the question costs 4.7 ms of a core, the others 0.5 ms together. */
double nvml_energy_j(const Nvml *n, NvmlDevice *d);

/* Uncorrected memory errors since the driver was loaded. */
double nvml_ecc_errors(const Nvml *n, NvmlDevice *d);
/* The PCIe link as it is now: a GPU at rest may show a lower generation. */
void nvml_read_link(const Nvml *n, NvmlDevice *d, double *generation, double *lanes);
/* What the card could do, and what it was told to. */
typedef struct {
    double max_sm_mhz, power_limit_w, power_default_w;
    double link_generation, link_generation_max, link_lanes, link_lanes_max;
} NvmlCard;

void nvml_read_card(const Nvml *n, NvmlDevice *d, NvmlCard *out);

/* "NVIDIA H200"; "GPU" when it does not say. Returns buf. */
const char *nvml_name(const Nvml *n, NvmlDevice *d, char *buf, size_t size);

/* Why clocks are below their maximum, in words: "power cap, thermal"; "none". Returns buf. */
const char *nvml_reasons_text(char *buf, size_t n, uint64_t reasons);

/* 1: the mean power is near its limit. A card that waits most of the time reaches its limit only now and
 * then, which costs little. 0 also when a number is not known. */
int nvml_is_at_limit(double power_w, double limit_w);

/* ---- What the chip's units did between two samples (GPM: Hopper and later). ---------------------------- */

typedef struct {
    double sm_active;     /* percent of SM cycles with a warp resident */
    double sm_occupancy;  /* percent of the warps that could be resident */
    double tensor_active; /* percent of cycles with a tensor pipe busy */
    double dram_active;   /* percent of the memory's peak bandwidth */
    double pcie_tx_bytes_s, pcie_rx_bytes_s;
} NvmlActivity;

/* Takes the first sample. NULL: n/a on this card or for this user. */
NvmlGpm *nvml_gpm_create(const Nvml *n, NvmlDevice *d);
/* Why nvml_gpm_create() gives NULL, in words. */
const char *nvml_gpm_refusal(const Nvml *n, NvmlDevice *d);
/* Takes a sample; *out is what happened since the one before. The driver wants about 100 ms between two. */
void nvml_gpm_next(NvmlGpm *g, NvmlActivity *out);
void nvml_gpm_destroy(NvmlGpm *g); /* before nvml_close() */

/* ---- Programs on the GPU. ------------------------------------------------------------------------------ */

typedef struct {
    int    pid; /* as the driver sees it: not this container's number, if this is one */
    double used_bytes;
} NvmlProcess;

/* Compute processes: how many there are, of which the first `cap` are in out; negative: n/a. */
int nvml_processes(const Nvml *n, NvmlDevice *d, NvmlProcess *out, int cap);

/* "688", "0.93", or "n/a". Returns buf. */
const char *nvml_number(char *buf, size_t n, double x, int decimals);

#ifdef __cplusplus
}
#endif
#endif
