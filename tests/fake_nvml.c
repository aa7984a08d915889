/* A stand-in for libnvidia-ml.so.1, built by test_watch into a temporary folder.
 *
 * 1. Written from NVIDIA's documentation, apart from src/watch/nvml.c, so that a wrong offset or version
 *    there shows.
 * 2. It refuses what the real library refuses: a wrong version word, a call before init, an unknown handle.
 * 3. SPARSE leaves out everything a library of ten years ago does not have. */
#include <string.h>

enum {
    SUCCESS,
    UNINITIALIZED,
    INVALID_ARGUMENT,
    NOT_SUPPORTED,
    INSUFFICIENT_SIZE = 7,
    VERSION_MISMATCH  = 25
};

/* The test's side: dlopen() of the same file gives these. */
int      fake_init_rc, fake_live_init, fake_live_samples, fake_gpm_rc, fake_cc_processes;
unsigned fake_util_calls, fake_util_sum, fake_util_full;
unsigned fake_power_calls, fake_power_sum_mw;
unsigned fake_energy_mj_per_call = 2000;

static char device[2];

static int check(void *d)
{
    if (fake_live_init <= 0) return UNINITIALIZED;
    return d == &device[0] || d == &device[1] ? SUCCESS : INVALID_ARGUMENT;
}

int nvmlInit_v2(void)
{
    if (fake_init_rc == SUCCESS) fake_live_init++;
    return fake_init_rc;
}

int nvmlShutdown(void)
{
    fake_live_init--;
    return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned *n)
{
    *n = 2;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **d)
{
    if (i > 1) return INVALID_ARGUMENT;
    *d = &device[i];
    return SUCCESS;
}

int nvmlDeviceGetPowerUsage(void *d, unsigned *mw)
{
    int rc = check(d);
    if (rc) return rc;
    *mw = d == &device[0] ? 100000 : 600000 + 1000 * (fake_power_calls % 50);
    fake_power_calls++;
    fake_power_sum_mw += *mw;
    return SUCCESS;
}

#ifdef SPARSE
int nvmlDeviceGetMemoryInfo(void *d, unsigned long long *total_free_used)
{
    memcpy(total_free_used, (unsigned long long[]){ 100, 70, 30 }, 24);
    return check(d);
}

int nvmlDeviceGetCurrentClocksThrottleReasons(void *d, unsigned long long *bits)
{
    *bits = 0x20;
    return check(d);
}
#else
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **d)
{
    if (strcmp(bus, "0000:AB:00.0") != 0) return 6;
    *d = &device[1];
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(void *d, unsigned *gpu_memory)
{
    int rc = check(d);
    if (rc) return rc;
    gpu_memory[0] = 90 + fake_util_calls % 3 * 5; /* 90, 95, 100 */
    gpu_memory[1] = 40;
    fake_util_calls++;
    fake_util_sum += gpu_memory[0];
    fake_util_full += gpu_memory[0] >= 98;
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo_v2(void *d, unsigned char *m)
{
    unsigned version;
    memcpy(&version, m, 4);
    if (version != 0x02000028) return VERSION_MISMATCH;
    memcpy(m + 8, (unsigned long long[]){ 150754820096, 600000000, 10754820096, 140000000000 }, 32);
    return check(d);
}

int nvmlDeviceGetEnforcedPowerLimit(void *d, unsigned *mw)
{
    *mw = 700000;
    return check(d);
}

int nvmlDeviceGetClockInfo(void *d, int kind, unsigned *mhz)
{
    if (kind != 1 && kind != 2) return INVALID_ARGUMENT;
    *mhz = kind == 1 ? 1545 : 3201;
    return check(d);
}

int nvmlDeviceGetTemperature(void *d, int sensor, unsigned *c)
{
    *c = 61;
    return sensor == 0 ? check(d) : INVALID_ARGUMENT;
}

int nvmlDeviceGetTemperatureV(void *d, unsigned *t)
{
    if (t[0] != 0x0100000c || t[1] != 0) return VERSION_MISMATCH;
    t[2] = 62;
    return check(d);
}

int nvmlDeviceGetTotalEnergyConsumption(void *d, unsigned long long *mj)
{
    static unsigned long long total = 5000000000ull;
    *mj                             = total += fake_energy_mj_per_call;
    return check(d);
}

int nvmlDeviceGetCurrentClocksEventReasons(void *d, unsigned long long *bits)
{
    static unsigned calls;
    *bits = calls++ % 2 ? 0x4 : 0x40; /* never both at once */
    return check(d);
}

/* Entries of 24 bytes, or of 32 as some drivers had by mistake. */
int nvmlDeviceGetComputeRunningProcesses_v3(void *d, unsigned *n, unsigned char *out)
{
    const unsigned           pid[3]   = { 77, 4242, 91 };
    const unsigned long long bytes[3] = { 1000, 5000000000ull, ~0ull };
    size_t                   step     = fake_cc_processes ? 32 : 24;
    if (check(d)) return check(d);
    if (*n < 3 || !out) {
        *n = 3;
        return INSUFFICIENT_SIZE;
    }
    *n = 3;
    memset(out, 0xff, 3 * step);
    for (int i = 0; i < 3; i++) {
        memcpy(out + i * step, &pid[i], 4);
        memcpy(out + i * step + 8, &bytes[i], 8);
    }
    return SUCCESS;
}

int nvmlDeviceGetName(void *d, char *buf, unsigned n)
{
    const char *name = d == &device[0] ? "NVIDIA A100-SXM4-80GB" : "NVIDIA H200";
    if (check(d)) return check(d);
    if (n <= strlen(name)) return INSUFFICIENT_SIZE;
    strcpy(buf, name);
    return SUCCESS;
}

int nvmlDeviceGetTotalEccErrors(void *d, int kind, int since, unsigned long long *count)
{
    if (kind < 0 || kind > 1 || since < 0 || since > 1) return INVALID_ARGUMENT;
    *count = kind == 0 ? 7 : since == 0 ? 2 : 9;
    return check(d);
}

int nvmlDeviceGetCurrPcieLinkGeneration(void *d, unsigned *gen)
{
    *gen = 5;
    return check(d);
}

int nvmlDeviceGetCurrPcieLinkWidth(void *d, unsigned *lanes)
{
    *lanes = 16;
    return check(d);
}

static char sample_room[2];
static int  sample_order; /* counts samples; the newer of two has the higher number */
static int  sample_taken[2];

int nvmlGpmQueryDeviceSupport(void *d, unsigned *s)
{
    if (s[0] != 1) return VERSION_MISMATCH;
    s[1] = d == &device[1];
    return check(d);
}

int nvmlGpmSampleAlloc(void **s)
{
    if (fake_live_samples > 1) return 20;
    *s = &sample_room[fake_live_samples++];
    return SUCCESS;
}

int nvmlGpmSampleFree(void *s)
{
    if (s != &sample_room[0] && s != &sample_room[1]) return INVALID_ARGUMENT;
    fake_live_samples--;
    return SUCCESS;
}

int nvmlGpmSampleGet(void *d, void *s)
{
    sample_taken[(char *)s - sample_room] = ++sample_order;
    return fake_gpm_rc ? fake_gpm_rc : check(d);
}

int nvmlGpmMetricsGet(unsigned char *g)
{
    unsigned head[2];
    char    *s[2];
    memcpy(head, g, 8);
    memcpy(s, g + 8, 16);
    if (head[0] != 1) return VERSION_MISMATCH;
    if (sample_taken[s[1] - sample_room] != sample_taken[s[0] - sample_room] + 1) return INVALID_ARGUMENT;
    for (unsigned i = 0; i < head[1]; i++) {
        unsigned char *m = g + 24 + 40 * i;
        unsigned       id;
        memcpy(&id, m, 4);
        int    rc    = id == 3 ? NOT_SUPPORTED : SUCCESS; /* one metric this card lacks */
        double value = id == 2    ? 95.5
                       : id == 5  ? 71.25
                       : id == 10 ? 34.5
                       : id == 20 ? 2.0
                       : id == 21 ? 3.0
                                  : -1.0;
        memcpy(m + 4, &rc, 4);
        memcpy(m + 8, &value, 8);
    }
    return SUCCESS;
}
#endif

/* ---- The CUDA driver's half, under the name libcuda.so.1. */
#ifdef CUDA
int cuDeviceGet(int *device_out, int ordinal)
{
    *device_out = ordinal + 40;
    return ordinal == 0 ? 0 : 101;
}

int cuDeviceGetPCIBusId(char *buf, int n, int dev)
{
    if (n < 13 || dev != 40) return 1;
    strcpy(buf, "0000:AB:00.0");
    return 0;
}
#endif
