/* Sampler: what one GPU did during a stretch of work.
 *
 * 1. A separate thread makes all calls, from opening NVML to the last reading. So neither start-up nor a
 *    training step waits for the driver.
 * 2. Nothing fails, as in nvml.h: a number that cannot be read is n/a (NAN). Without a driver all numbers are
 *    n/a. */
#ifndef WATCH_SAMPLER_H
#define WATCH_SAMPLER_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct Sampler Sampler;

typedef struct {
    double mean, max;
} SamplerStat;

typedef struct {
    int         n_sample;
    double      time_s;      /* between the two energy readings */
    SamplerStat utilisation; /* percent, as all shares here */
    SamplerStat power_w, sm_mhz, temperature_c;
    SamplerStat sm_active, tensor_active, dram_active;
    double      full_share;    /* fraction of the samples with a utilisation of 98 % or more */
    double      power_limit_w; /* enforced, at the last sample */
    double      energy_j;      /* used in time_s */
    int         has_reasons;
    uint64_t    reasons; /* every reason for a low clock that was seen; nvml_reasons_text() */
} SamplerResult;

/* cuda_index: the GPU as CUDA counts. period_s: 0 for 0.1 s, the least GPM is made for. nvml_path: see
 * nvml_open(); borrowed. NULL when out of memory; the other functions take that as a GPU that answers
 * nothing. */
Sampler *sampler_create(int cuda_index, double period_s, const char *nvml_path);
void     sampler_destroy(Sampler *s); /* also between begin and end */

void sampler_begin(Sampler *s);
/* Waits for the reading in progress. At least one is taken, however short the stretch. Without begin: all
 * n/a. */
void sampler_end(Sampler *s, SamplerResult *out);

/* Watts over the whole stretch: from the energy counter, which has no memory, else the mean of the power
 * readings, which reach back a second each. */
double sampler_power_w(const SamplerResult *r);

#ifdef __cplusplus
}
#endif
#endif
