#include "plan/machine.h"

#include "base/err.h"
#include "base/str.h"

#include <string.h>
#include <strings.h>

/* Short sequences pay for the beginning and end of a block of queries without the keys that would hide them.
 * From steps of ViT-L/16 with 196 and 3,136 keys and of llama-1b with 2,048. */
#define ATTN_FIXED 0.34

/* A product of few rows leaves most of the card idle, and more idle multiprocessors make it no faster: its
 * pipeline fills, runs and empties. With 5.0 to 5.4 us steps of PPO come out as measured, of a transformer of
 * width 1024 with 256 environments and of an MLP of width 64 (H200, 2026-11-18). Waves of tiles explain less:
 * 2,048 rows of width 1024 are half a wave and are as fast as the rate says. Other cards: not measured. */
#define PRODUCT_LEAST 5.2e-6

#define GIB(n) ((size_t)(1024.0 * 1024.0 * 1024.0 * (n)))

/* Rates that a whole step reaches at the power limit, not the rates of the best op alone (766 TFLOP/s, 4.2
 * TB/s). H200, the fastest of docs/performance.md's cards, 2026-11-15: the products of a GPT-2 124M step are
 * 389 TFLOP in 565 ms, one op at a time, and the step takes 2.5 % more than its ops, so 670; its passes run
 * at 3.4 to 3.9 TB/s, so 3.5. Attention: 322 forward / 237 backward at T 1024 with heads of 64, so 330 / 235
 * at ATTN_KEYS. Micro-batch 64 instead of 32 saves 2096 ops and 7 ms a step there, so an op costs about 3 us
 * beside its work; 2.5 here. 27 measurements of four tasks come out within 6 % (tests/test_predict.c).
 * Products in fp8 hold 1,267 TFLOP/s one op at a time in a step of Qwen2.5 1.5B (2026-11-16), so 1,240. The
 * other cards were not measured: their rates are burst rates, times the share of the burst rate that an H200
 * holds. Those of V100 and T4 are guesses from data sheets: 0.69 of memory and products, of the T4 0.38 of
 * products. TF32 has half of the 16-bit rate on data sheets. */
static const Machine machines[] = {
    { "h200",
      "NVIDIA H200",
      90,
      GIB(139.8),
      989.4e12,
      { 3.5e12, 670e12, 330e12, 235e12, 1240e12 },
      0.065,
      0.5,
      2.5e-6,
      PRODUCT_LEAST,
      ATTN_FIXED,
      1830 },
    { "h100",
      "NVIDIA H100 80GB HBM3",
      90,
      GIB(79.1),
      989.4e12,
      { 2.5e12, 600e12, 290e12, 210e12, 1110e12 },
      0.065,
      0.5,
      2.5e-6,
      PRODUCT_LEAST,
      ATTN_FIXED,
      1830 },
    { "h100-pcie",
      "NVIDIA H100 PCIe",
      90,
      GIB(79.1),
      756e12,
      { 1.55e12, 425e12, 220e12, 155e12, 785e12 },
      0.065,
      0.5,
      2.5e-6,
      PRODUCT_LEAST,
      ATTN_FIXED,
      1620 },
    { "v100",
      "Tesla V100-SXM2-32GB",
      70,
      GIB(31.7),
      125e12,
      { 0.62e12, 86e12, 43e12, 30e12, 0 },
      0.12,
      0,
      4e-6,
      PRODUCT_LEAST,
      ATTN_FIXED,
      1530 },
    { "t4",
      "Tesla T4",
      75,
      GIB(14.7),
      65e12,
      { 0.22e12, 25e12, 12e12, 8e12, 0 },
      0.12,
      0,
      4e-6,
      PRODUCT_LEAST,
      ATTN_FIXED,
      1590 },
    { "a100",
      "NVIDIA A100-SXM4-80GB",
      80,
      GIB(79.1),
      312e12,
      { 1.4e12, 215e12, 145e12, 100e12, 0 },
      0.07,
      0.5,
      3.5e-6,
      PRODUCT_LEAST,
      ATTN_FIXED,
      1410 },
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

const Machine *machine_asked(const char *key)
{
    char           known[160], hint[200];
    const Machine *m = machine_find(key);
    if (m) return m;
    StrNearest near = str_nearest_begin(key);
    for (int i = 0; i < ARRAY_LEN(machines); i++) str_nearest_offer(&near, machines[i].key);
    machine_list_fitting(known, sizeof known, 0);
    err_user("command line: --gpu: %s: no such GPU%s", key,
             str_nearest_hint(&near, known, hint, sizeof hint));
    return NULL;
}

/* With the rates of the last card of the table, an A100. Cards from capability 8.9 on have fp8: an H200
 * multiplies in fp8 1.85 times as fast as in bf16. */
Machine machine_unmeasured(const char *name, int capability, size_t mem_bytes)
{
    Machine m    = machines[ARRAY_LEN(machines) - 1];
    m.name       = name;
    m.capability = capability;
    m.mem_bytes  = mem_bytes;
    m.peak_flops = 0;
    if (m.rate[UNIT_FP8] == 0 && capability >= 89) m.rate[UNIT_FP8] = 1.85 * m.rate[UNIT_GEMM];
    return m;
}

size_t machine_room(const Machine *m)
{
    size_t margin = (size_t)1 << 30; /* context, library handles, modules */
    return m->mem_bytes - margin;
}

int machine_list_fitting(char *buf, size_t n, size_t size_bytes)
{
    int count = 0;
    buf[0]    = '\0';
    for (int i = 0; i < ARRAY_LEN(machines); i++) {
        if (machine_room(&machines[i]) < size_bytes) continue;
        str_append(buf, n, "%s%s", count++ ? ", " : "", machines[i].key);
    }
    return count;
}

Machine machine_cpu(int threads, size_t mem_bytes)
{
    /* Orders of magnitude of one AVX-512 core; these rates only rank micro-batches. The fixed cost of an op
     * comes from how much longer a step takes in small parts (4,096 tokens in 16 parts instead of one, width
     * 384: 8 %; in two: 0 to 2.5 %). */
    double n = threads;
    return (Machine){ "cpu", "CPU", 0,     mem_bytes, 0, { 8e9 * n, 80e9 * n, 40e9 * n, 40e9 * n, 5e9 * n },
                      1.0,   0,     50e-6, 0,         0, 0 };
}

double machine_flops_time(const Machine *m, const MachineWork *w)
{
    double share = 1.0, longer = 1.0;
    if (w->unit != UNIT_FP8 && w->arith != MACHINE_HALF)
        share = w->arith == MACHINE_TF32 && m->tf32_share > 0 ? m->tf32_share : m->f32_share;
    if (w->unit == UNIT_MEMORY) return 0;
    if (w->keys > 0) longer += m->attn_fixed * (ATTN_KEYS / w->keys - 1);
    return w->flops / (m->rate[w->unit] * share) * longer;
}

double machine_bytes_time(const Machine *m, const MachineWork *w) { return w->bytes / m->rate[UNIT_MEMORY]; }

double machine_op_time(const Machine *m, const MachineWork *w)
{
    double least = w->unit == UNIT_GEMM || w->unit == UNIT_FP8 ? m->product_s : 0;
    return MAX(MAX(machine_bytes_time(m, w), machine_flops_time(m, w)), least) + m->op_s;
}
