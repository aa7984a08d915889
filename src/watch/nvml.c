/* NVML without its header: the handful of functions and structures Brim reads.
 *
 * 1. The structures below are NVIDIA's binary interface: order, width and version words must not change. A
 *    versioned structure carries its own size and version (NVML_VERSION), except GPM's, whose version is a
 *    plain 1.
 * 2. Every function may be missing. A missing function answers like a function that fails. */
#include "watch/nvml.h"

#include "base/err.h"
#include "base/str.h"

#include <dlfcn.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    NVML_OK                = 0,
    NVML_INSUFFICIENT_SIZE = 7,
    NVML_SENSOR_GPU        = 0,
    NVML_CLOCK_SM          = 1,
    NVML_CLOCK_MEMORY      = 2,
    NVML_ECC_UNCORRECTED   = 1,
    NVML_ECC_VOLATILE      = 0,
    NVML_GPM_VERSION       = 1,
};

#define NVML_VERSION(Type, v) ((unsigned)sizeof(Type) | ((unsigned)(v) << 24))

typedef struct {
    unsigned gpu, memory;
} NvmlUtilization;

typedef struct {
    unsigned long long total, free, used;
} NvmlMemory;

typedef struct {
    unsigned           version;
    unsigned long long total, reserved, free, used; /* used as nvidia-smi shows it: without reserved */
} NvmlMemoryV2;

typedef struct {
    unsigned version, sensor;
    int      temperature;
} NvmlTemperature;

typedef struct {
    unsigned           pid;
    unsigned long long used_bytes; /* all ones: not known */
    unsigned           gpu_instance, compute_instance;
} NvmlProcessInfo;

/* Some drivers of the 53x series wrote entries of 32 bytes (the same, then 8 more); the buffer has room for
 * those. Spare entries are for processes that start between asking how many there are and asking for them. */
enum { NVML_PROCESS_WIDE = 32, NVML_PROCESS_SPARE = 8 };

typedef struct {
    unsigned version, supported;
} NvmlGpmSupport;

typedef struct {
    unsigned id;
    int      result;
    double   value;
    struct {
        char *short_name, *long_name, *unit;
    } info;
} NvmlGpmMetric;

/* The header's array grows with the releases; the library looks at the first n_metric. 512 is what ran on an
 * H200. */
enum { NVML_GPM_ROOM = 512 };

typedef struct {
    unsigned      version, n_metric;
    void         *sample1, *sample2;
    NvmlGpmMetric metric[NVML_GPM_ROOM];
} NvmlGpmGet;

_Static_assert(sizeof(NvmlUtilization) == 8, "nvmlUtilization_t");
_Static_assert(sizeof(NvmlMemory) == 24, "nvmlMemory_t");
_Static_assert(sizeof(NvmlMemoryV2) == 40 && offsetof(NvmlMemoryV2, used) == 32, "nvmlMemory_v2_t");
_Static_assert(sizeof(NvmlTemperature) == 12, "nvmlTemperature_v1_t");
_Static_assert(sizeof(NvmlProcessInfo) == 24 && offsetof(NvmlProcessInfo, used_bytes) == 8,
               "nvmlProcessInfo_v2_t");
_Static_assert(sizeof(NvmlGpmMetric) == 40 && offsetof(NvmlGpmMetric, value) == 8, "nvmlGpmMetric_t");
_Static_assert(offsetof(NvmlGpmGet, sample1) == 8 && offsetof(NvmlGpmGet, metric) == 24,
               "nvmlGpmMetricsGet_t");

struct Nvml {
    void *lib;
    int (*init)(void);
    int (*shutdown)(void);
    int (*count)(unsigned *n);
    int (*by_index)(unsigned index, NvmlDevice **d);
    int (*by_bus)(const char *bus_id, NvmlDevice **d);
    int (*utilization)(NvmlDevice *d, NvmlUtilization *u);
    int (*memory)(NvmlDevice *d, NvmlMemory *m);
    int (*memory_v2)(NvmlDevice *d, NvmlMemoryV2 *m);
    int (*power)(NvmlDevice *d, unsigned *milliwatt);
    int (*power_limit)(NvmlDevice *d, unsigned *milliwatt);
    int (*clock)(NvmlDevice *d, unsigned kind, unsigned *mhz);
    int (*temperature)(NvmlDevice *d, unsigned sensor, unsigned *celsius);
    int (*temperature_v)(NvmlDevice *d, NvmlTemperature *t);
    int (*energy)(NvmlDevice *d, unsigned long long *millijoule);
    int (*reasons)(NvmlDevice *d, unsigned long long *bits);
    int (*processes)(NvmlDevice *d, unsigned *n, void *info);
    int (*name)(NvmlDevice *d, char *buf, unsigned n);
    int (*ecc)(NvmlDevice *d, unsigned kind, unsigned since, unsigned long long *n);
    int (*pcie_gen)(NvmlDevice *d, unsigned *gen);
    int (*pcie_width)(NvmlDevice *d, unsigned *lanes);
    int (*pcie_gen_max)(NvmlDevice *d, unsigned *gen);
    int (*pcie_width_max)(NvmlDevice *d, unsigned *lanes);
    int (*max_clock)(NvmlDevice *d, unsigned kind, unsigned *mhz);
    int (*power_default)(NvmlDevice *d, unsigned *milliwatt);
    int (*gpm_support)(NvmlDevice *d, NvmlGpmSupport *s);
    int (*gpm_alloc)(void **sample);
    int (*gpm_free)(void *sample);
    int (*gpm_sample)(NvmlDevice *d, void *sample);
    int (*gpm_get)(NvmlGpmGet *get);
};

/* A field with two rows takes the first name the library has. */
static const struct {
    const char *name;
    size_t      field;
} nvml_symbols[] = {
    { "nvmlInit_v2", offsetof(Nvml, init) },
    { "nvmlShutdown", offsetof(Nvml, shutdown) },
    { "nvmlDeviceGetCount_v2", offsetof(Nvml, count) },
    { "nvmlDeviceGetHandleByIndex_v2", offsetof(Nvml, by_index) },
    { "nvmlDeviceGetHandleByPciBusId_v2", offsetof(Nvml, by_bus) },
    { "nvmlDeviceGetUtilizationRates", offsetof(Nvml, utilization) },
    { "nvmlDeviceGetMemoryInfo", offsetof(Nvml, memory) },
    { "nvmlDeviceGetMemoryInfo_v2", offsetof(Nvml, memory_v2) },
    { "nvmlDeviceGetPowerUsage", offsetof(Nvml, power) },
    { "nvmlDeviceGetEnforcedPowerLimit", offsetof(Nvml, power_limit) },
    { "nvmlDeviceGetClockInfo", offsetof(Nvml, clock) },
    { "nvmlDeviceGetTemperature", offsetof(Nvml, temperature) },
    { "nvmlDeviceGetTemperatureV", offsetof(Nvml, temperature_v) },
    { "nvmlDeviceGetTotalEnergyConsumption", offsetof(Nvml, energy) },
    { "nvmlDeviceGetCurrentClocksEventReasons", offsetof(Nvml, reasons) },
    { "nvmlDeviceGetCurrentClocksThrottleReasons", offsetof(Nvml, reasons) }, /* its name before driver 535 */
    { "nvmlDeviceGetComputeRunningProcesses_v3", offsetof(Nvml, processes) },
    { "nvmlDeviceGetName", offsetof(Nvml, name) },
    { "nvmlDeviceGetTotalEccErrors", offsetof(Nvml, ecc) },
    { "nvmlDeviceGetCurrPcieLinkGeneration", offsetof(Nvml, pcie_gen) },
    { "nvmlDeviceGetCurrPcieLinkWidth", offsetof(Nvml, pcie_width) },
    { "nvmlDeviceGetMaxPcieLinkGeneration", offsetof(Nvml, pcie_gen_max) },
    { "nvmlDeviceGetMaxPcieLinkWidth", offsetof(Nvml, pcie_width_max) },
    { "nvmlDeviceGetMaxClockInfo", offsetof(Nvml, max_clock) },
    { "nvmlDeviceGetPowerManagementDefaultLimit", offsetof(Nvml, power_default) },
    { "nvmlGpmQueryDeviceSupport", offsetof(Nvml, gpm_support) },
    { "nvmlGpmSampleAlloc", offsetof(Nvml, gpm_alloc) },
    { "nvmlGpmSampleFree", offsetof(Nvml, gpm_free) },
    { "nvmlGpmSampleGet", offsetof(Nvml, gpm_sample) },
    { "nvmlGpmMetricsGet", offsetof(Nvml, gpm_get) },
};

/* dlsym gives an object pointer; copying its bits is the one portable way to a function pointer. */
static void fill_symbols(Nvml *n)
{
    for (int i = 0; i < ARRAY_LEN(nvml_symbols); i++) {
        char *field = (char *)n + nvml_symbols[i].field;
        void *have, *found = dlsym(n->lib, nvml_symbols[i].name);
        memcpy(&have, field, sizeof have);
        if (!have) memcpy(field, &found, sizeof found);
    }
}

Nvml *nvml_open(const char *path)
{
    Nvml *n = (Nvml *)calloc(1, sizeof *n);
    if (!n) return NULL;
    n->lib = dlopen(path ? path : "libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!n->lib) goto out;
    fill_symbols(n);
    if (!n->init || n->init() != NVML_OK) goto out;
    return n;
out:
    if (n->lib) dlclose(n->lib);
    free(n);
    return NULL;
}

void nvml_close(Nvml *n)
{
    if (!n) return;
    if (n->shutdown) n->shutdown();
    dlclose(n->lib);
    free(n);
}

/* ---- Which GPU ----------------------------------------------------------------------------------------- */

int nvml_device_count(const Nvml *n)
{
    unsigned count = 0;
    if (!n || !n->count || n->count(&count) != NVML_OK || count > INT_MAX) return 0;
    return (int)count;
}

NvmlDevice *nvml_device(const Nvml *n, int index)
{
    NvmlDevice *d = NULL;
    if (!n || !n->by_index || index < 0 || n->by_index((unsigned)index, &d) != NVML_OK) return NULL;
    return d;
}

/* Asks the CUDA driver of this process, if it is loaded: loading it here would start CUDA in programs that
 * only watch. */
static int cuda_bus_id(int cuda_index, char *buf, int n)
{
    void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    int   rc  = -1, device;
    if (!lib) return -1;
    void *sym_get = dlsym(lib, "cuDeviceGet"), *sym_bus = dlsym(lib, "cuDeviceGetPCIBusId");
    int (*get)(int *, int);
    int (*bus)(char *, int, int);
    memcpy(&get, &sym_get, sizeof get);
    memcpy(&bus, &sym_bus, sizeof bus);
    if (get && bus && get(&device, cuda_index) == 0 && bus(buf, n, device) == 0) rc = 0;
    dlclose(lib);
    return rc;
}

NvmlDevice *nvml_device_of_cuda(const Nvml *n, int cuda_index)
{
    char        item[64];
    NvmlDevice *d = NULL;
    if (!n || cuda_index < 0) return NULL;
    if (n->by_bus && cuda_bus_id(cuda_index, item, sizeof item) == 0 && n->by_bus(item, &d) == NVML_OK)
        return d;
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    if (!list) return nvml_device(n, cuda_index);
    for (int i = 0; i <= cuda_index; i++) {
        if (str_list_next(&list, item, sizeof item) <= 0) return NULL;
    }
    int64_t index;
    /* "GPU-..." or "MIG-...": the numbers of another card would be worse than none. */
    if (str_parse_int(item, &index) < 0 || index < 0 || index > INT_MAX) return NULL;
    return nvml_device(n, (int)index);
}

/* ---- Readings ------------------------------------------------------------------------------------------ */

static double scaled(int rc, double value, double unit) { return rc == NVML_OK ? value * unit : NAN; }

double nvml_energy_j(const Nvml *n, NvmlDevice *d)
{
    unsigned long long mj = 0;
    if (!n || !d || !n->energy) return NAN;
    int rc = n->energy(d, &mj);
    return scaled(rc, (double)mj, 1e-3);
}

static void read_memory(const Nvml *n, NvmlDevice *d, NvmlReading *out)
{
    NvmlMemoryV2 v2 = { .version = NVML_VERSION(NvmlMemoryV2, 2) };
    NvmlMemory   v1 = { 0 };
    if (n->memory_v2 && n->memory_v2(d, &v2) == NVML_OK) {
        out->memory_used_bytes  = (double)v2.used;
        out->memory_total_bytes = (double)v2.total;
    } else if (n->memory && n->memory(d, &v1) == NVML_OK) {
        out->memory_used_bytes  = (double)v1.used;
        out->memory_total_bytes = (double)v1.total;
    }
}

static void read_temperature(const Nvml *n, NvmlDevice *d, NvmlReading *out)
{
    unsigned        celsius = 0;
    NvmlTemperature t       = { .version = NVML_VERSION(NvmlTemperature, 1), .sensor = NVML_SENSOR_GPU };
    if (n->temperature_v && n->temperature_v(d, &t) == NVML_OK) {
        out->temperature_c = t.temperature;
    } else if (n->temperature && n->temperature(d, NVML_SENSOR_GPU, &celsius) == NVML_OK) {
        out->temperature_c = celsius;
    }
}

/* One unsigned in, one double out; get NULL: n/a. */
static double read_unsigned(int (*get)(NvmlDevice *, unsigned *), NvmlDevice *d, double unit)
{
    unsigned x = 0;
    if (!get) return NAN;
    int rc = get(d, &x);
    return scaled(rc, x, unit);
}

static double read_kind(int (*get)(NvmlDevice *, unsigned, unsigned *), NvmlDevice *d, unsigned kind,
                        double unit)
{
    unsigned x = 0;
    if (!get) return NAN;
    int rc = get(d, kind, &x);
    return scaled(rc, x, unit);
}

void nvml_read_fast(const Nvml *n, NvmlDevice *d, NvmlReading *out)
{
    NvmlUtilization    u    = { 0 };
    unsigned long long bits = 0;
    if (!n || !d) return;
    out->gpu_util = out->memory_util = NAN;
    out->has_reasons                 = 0;
    out->reasons                     = 0;
    if (n->utilization && n->utilization(d, &u) == NVML_OK) {
        out->gpu_util    = u.gpu;
        out->memory_util = u.memory;
    }
    out->power_w = read_unsigned(n->power, d, 1e-3);
    out->sm_mhz  = read_kind(n->clock, d, NVML_CLOCK_SM, 1);
    if (n->reasons && n->reasons(d, &bits) == NVML_OK) {
        out->has_reasons = 1;
        out->reasons     = bits;
    }
}

void nvml_read(const Nvml *n, NvmlDevice *d, NvmlReading *out)
{
    *out = (NvmlReading){ NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, 0, 0 };
    if (!n || !d) return;
    nvml_read_fast(n, d, out);
    read_memory(n, d, out);
    read_temperature(n, d, out);
    out->power_limit_w = read_unsigned(n->power_limit, d, 1e-3);
    out->memory_mhz    = read_kind(n->clock, d, NVML_CLOCK_MEMORY, 1);
}

double nvml_ecc_errors(const Nvml *n, NvmlDevice *d)
{
    unsigned long long count = 0;
    if (!n || !d || !n->ecc) return NAN;
    int rc = n->ecc(d, NVML_ECC_UNCORRECTED, NVML_ECC_VOLATILE, &count);
    return scaled(rc, (double)count, 1);
}

void nvml_read_link(const Nvml *n, NvmlDevice *d, double *generation, double *lanes)
{
    int ok      = n && d;
    *generation = ok ? read_unsigned(n->pcie_gen, d, 1) : NAN;
    *lanes      = ok ? read_unsigned(n->pcie_width, d, 1) : NAN;
}

void nvml_read_card(const Nvml *n, NvmlDevice *d, NvmlCard *out)
{
    *out = (NvmlCard){ NAN, NAN, NAN, NAN, NAN, NAN, NAN };
    if (!n || !d) return;
    out->max_sm_mhz          = read_kind(n->max_clock, d, NVML_CLOCK_SM, 1);
    out->power_limit_w       = read_unsigned(n->power_limit, d, 1e-3);
    out->power_default_w     = read_unsigned(n->power_default, d, 1e-3);
    out->link_generation_max = read_unsigned(n->pcie_gen_max, d, 1);
    out->link_lanes_max      = read_unsigned(n->pcie_width_max, d, 1);
    nvml_read_link(n, d, &out->link_generation, &out->link_lanes);
}

const char *nvml_name(const Nvml *n, NvmlDevice *d, char *buf, size_t size)
{
    char text[96] = "";
    if (!n || !d || !n->name || n->name(d, text, sizeof text) != NVML_OK) str_copy(text, sizeof text, "GPU");
    text[sizeof text - 1] = '\0';
    return str_quote(buf, size, text, strlen(text));
}

const char *nvml_reasons_text(char *buf, size_t n, uint64_t reasons)
{
    static const struct {
        uint64_t    bit;
        const char *word;
    } row[] = {
        { 0x001, "idle" },         { 0x002, "application clocks" }, { 0x004, "power cap" },
        { 0x008, "slowdown" },     { 0x010, "sync boost" },         { 0x020, "thermal" },
        { 0x040, "hard thermal" }, { 0x080, "power brake" },        { 0x100, "display clocks" },
    };
    str_copy(buf, n, "");
    for (int i = 0; i < ARRAY_LEN(row); i++) {
        if (reasons & row[i].bit) str_append(buf, n, "%s%s", buf[0] ? ", " : "", row[i].word);
        reasons &= ~row[i].bit;
    }
    if (reasons) str_append(buf, n, "%sother", buf[0] ? ", " : "");
    if (!buf[0]) str_copy(buf, n, "none");
    return buf;
}

int nvml_is_at_limit(double power_w, double limit_w) { return power_w >= 0.85 * limit_w; }

const char *nvml_number(char *buf, size_t n, double x, int decimals)
{
    if (isnan(x)) {
        str_copy(buf, n, "n/a");
    } else {
        snprintf(buf, n, "%.*f", decimals, x);
    }
    return buf;
}

/* ---- GPM ----------------------------------------------------------------------------------------------- */

struct NvmlGpm {
    const Nvml *nvml;
    NvmlDevice *device;
    void       *before, *after; /* samples; each next() swaps them */
    NvmlGpmGet  get;
};

static const struct {
    unsigned id;
    double   unit;
    size_t   field;
} gpm_metrics[] = {
    { 2, 1.0, offsetof(NvmlActivity, sm_active) },
    { 3, 1.0, offsetof(NvmlActivity, sm_occupancy) },
    { 5, 1.0, offsetof(NvmlActivity, tensor_active) }, /* any tensor pipe: fp16, bf16, tf32, fp8, integer */
    { 10, 1.0, offsetof(NvmlActivity, dram_active) },
    { 20, 1048576.0, offsetof(NvmlActivity, pcie_tx_bytes_s) },
    { 21, 1048576.0, offsetof(NvmlActivity, pcie_rx_bytes_s) },
};

NvmlGpm *nvml_gpm_create(const Nvml *n, NvmlDevice *d)
{
    if (!n || !d || !n->gpm_support || !n->gpm_alloc || !n->gpm_free || !n->gpm_sample || !n->gpm_get)
        return NULL;
    NvmlGpmSupport support = { .version = NVML_GPM_VERSION };
    if (n->gpm_support(d, &support) != NVML_OK || !support.supported) return NULL;
    NvmlGpm *g = (NvmlGpm *)calloc(1, sizeof *g);
    if (!g) return NULL;
    g->nvml   = n;
    g->device = d;
    if (n->gpm_alloc(&g->before) != NVML_OK) goto out;
    if (n->gpm_alloc(&g->after) != NVML_OK) goto out;
    if (n->gpm_sample(d, g->before) != NVML_OK) goto out; /* where a missing permission shows */
    return g;
out:
    nvml_gpm_destroy(g);
    return NULL;
}

const char *nvml_gpm_refusal(const Nvml *n, NvmlDevice *d)
{
    NvmlGpmSupport support = { .version = NVML_GPM_VERSION };
    if (!n || !d) return "no GPU";
    if (!n->gpm_support || !n->gpm_alloc || !n->gpm_free || !n->gpm_sample || !n->gpm_get)
        return "the driver has no GPM functions";
    if (n->gpm_support(d, &support) != NVML_OK || !support.supported)
        return "this GPU has no GPM (Hopper and later have it)";
    return "the driver refuses GPM to this user";
}

void nvml_gpm_next(NvmlGpm *g, NvmlActivity *out)
{
    *out = (NvmlActivity){ NAN, NAN, NAN, NAN, NAN, NAN };
    if (!g || g->nvml->gpm_sample(g->device, g->after) != NVML_OK) return;
    memset(&g->get, 0, sizeof g->get);
    g->get.version  = NVML_GPM_VERSION;
    g->get.n_metric = ARRAY_LEN(gpm_metrics);
    g->get.sample1  = g->before;
    g->get.sample2  = g->after;
    for (int i = 0; i < ARRAY_LEN(gpm_metrics); i++) g->get.metric[i].id = gpm_metrics[i].id;
    if (g->nvml->gpm_get(&g->get) == NVML_OK) {
        for (int i = 0; i < ARRAY_LEN(gpm_metrics); i++) {
            const NvmlGpmMetric *m = &g->get.metric[i];
            double               x = scaled(m->result, m->value, gpm_metrics[i].unit);
            if (isfinite(x)) memcpy((char *)out + gpm_metrics[i].field, &x, sizeof x);
        }
    }
    void *swap = g->before;
    g->before  = g->after;
    g->after   = swap;
}

void nvml_gpm_destroy(NvmlGpm *g)
{
    if (!g) return;
    if (g->after) g->nvml->gpm_free(g->after);
    if (g->before) g->nvml->gpm_free(g->before);
    free(g);
}

/* ---- Processes ----------------------------------------------------------------------------------------- */

/* Moves 32-byte entries, if that is what the driver wrote into the zeroed room, to where 24-byte ones
 * belong. */
static void close_gaps(NvmlProcessInfo *all, unsigned count)
{
    char  *bytes = (char *)all;
    size_t wide  = 0;
    for (size_t i = count * sizeof *all; i < (size_t)count * NVML_PROCESS_WIDE; i++) wide |= bytes[i] != 0;
    for (unsigned i = 1; wide && i < count; i++)
        memmove(&all[i], bytes + (size_t)i * NVML_PROCESS_WIDE, sizeof *all);
}

/* Every compute process; the caller frees *all. */
static int list_processes(const Nvml *n, NvmlDevice *d, NvmlProcessInfo **all)
{
    unsigned count = 0;
    *all           = NULL;
    if (!n || !d || !n->processes) return -1;
    int rc = n->processes(d, &count, NULL);
    if (rc == NVML_OK) return 0; /* it would have complained about the size */
    if (rc != NVML_INSUFFICIENT_SIZE || count > 65536) return -1;
    count += NVML_PROCESS_SPARE;
    *all = (NvmlProcessInfo *)calloc(count, NVML_PROCESS_WIDE);
    if (!*all) return -1;
    if (n->processes(d, &count, *all) == NVML_OK) {
        close_gaps(*all, count);
        return (int)count;
    }
    free(*all);
    *all = NULL;
    return -1;
}

static double known_bytes(unsigned long long x) { return x == ULLONG_MAX ? NAN : (double)x; }

int nvml_processes(const Nvml *n, NvmlDevice *d, NvmlProcess *out, int cap)
{
    NvmlProcessInfo *all;
    int              count = list_processes(n, d, &all);
    for (int i = 0; i < count && i < cap; i++) {
        out[i] = (NvmlProcess){ (int)all[i].pid, known_bytes(all[i].used_bytes) };
    }
    free(all);
    return count;
}
