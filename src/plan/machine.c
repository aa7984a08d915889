#include "plan/machine.h"

#include "base/err.h"

#include <string.h>
#include <strings.h>

#define GIB(n) ((size_t)(1024.0 * 1024.0 * 1024.0 * (n)))

static const Machine machines[] = {
    { "h200", "NVIDIA H200", GIB(139.8), 989.4e12, { 4.2e12, 760e12, 330e12, 250e12 }, 0.065, 2e-6 },
    { "h100", "NVIDIA H100 80GB HBM3", GIB(79.1), 989.4e12, { 2.9e12, 680e12, 290e12, 230e12 }, 0.065, 2e-6 },
    { "h100-pcie", "NVIDIA H100 PCIe", GIB(79.1), 756e12, { 1.8e12, 480e12, 220e12, 170e12 }, 0.065, 2e-6 },
    { "a100", "NVIDIA A100-SXM4-80GB", GIB(79.1), 312e12, { 1.7e12, 250e12, 160e12, 120e12 }, 0.07, 3e-6 },
};

const Machine *machine_find(const char *s)
{
    for (int i = 0; i < ARRAY_LEN(machines); i++) {
        if (strcasecmp(s, machines[i].key) == 0) return &machines[i];
    }
    for (int i = 0; i < ARRAY_LEN(machines); i++) {
        if (strncmp(s, machines[i].name, strlen(machines[i].name)) == 0) return &machines[i];
    }
    return NULL;
}

const char *machine_keys(void) { return "h200, h100, h100-pcie, a100"; }

Machine machine_cpu(int threads, size_t mem_bytes)
{
    /* Orders of magnitude of one AVX-512 core; they only rank micro-batches. */
    double n = threads;
    return (Machine){ "cpu", "CPU", mem_bytes, 0, { 8e9 * n, 80e9 * n, 40e9 * n, 40e9 * n }, 1.0, 20e-6 };
}

double machine_op_time(const Machine *m, MachineUnit unit, int f32, double flops, double bytes)
{
    double memory = bytes / m->rate[UNIT_MEMORY], arithmetic = 0;
    if (unit != UNIT_MEMORY) arithmetic = flops / (m->rate[unit] * (f32 ? m->f32_share : 1.0));
    return MAX(memory, arithmetic) + m->op_s;
}
