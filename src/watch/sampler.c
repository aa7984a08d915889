#include "watch/sampler.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/thread.h"
#include "watch/nvml.h"

#include <math.h>
#include <stdlib.h>

static const double SAMPLER_PERIOD_S = 0.1;
static const double SAMPLER_FULL = 98; /* percent: the driver rarely says 100 between two graph launches */

typedef struct {
    double sum, max;
    int    n;
} Tally;

struct Sampler {
    int         cuda_index;
    double      period_s;
    const char *nvml_path;

    Thread          thread;
    pthread_mutex_t lock;
    pthread_cond_t  wake;
    int             begun, stop; /* stop: under the lock */

    /* The thread's alone while it runs. */
    int         opened;
    Nvml       *nvml;
    NvmlDevice *device;
    int         n_sample, n_full, has_reasons;
    uint64_t    reasons;
    double      time_s, energy_j, power_limit_w;
    Tally       utilisation, power_w, sm_mhz, temperature_c, sm_active, tensor_active, dram_active;
};

Sampler *sampler_create(int cuda_index, double period_s, const char *nvml_path)
{
    Sampler *s = (Sampler *)calloc(1, sizeof *s);
    if (!s) return NULL;
    s->cuda_index = cuda_index;
    s->period_s   = period_s > 0 ? period_s : SAMPLER_PERIOD_S;
    s->nvml_path  = nvml_path;
    pthread_mutex_init(&s->lock, NULL);
    thread_cond_init(&s->wake);
    return s;
}

void sampler_destroy(Sampler *s)
{
    if (!s) return;
    SamplerResult unused;
    sampler_end(s, &unused);
    nvml_close(s->nvml);
    pthread_cond_destroy(&s->wake);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

/* ---- The thread ---------------------------------------------------------------------------------------- */

static void tally(Tally *t, double x)
{
    if (isnan(x)) return;
    t->max = t->n == 0 ? x : MAX(t->max, x);
    t->sum += x;
    t->n++;
}

static void poll_once(Sampler *s, NvmlGpm *gpm)
{
    NvmlReading  r;
    NvmlActivity a;
    nvml_gpm_next(gpm, &a);
    nvml_read(s->nvml, s->device, &r);
    tally(&s->utilisation, r.gpu_util);
    tally(&s->power_w, r.power_w);
    tally(&s->sm_mhz, r.sm_mhz);
    tally(&s->temperature_c, r.temperature_c);
    tally(&s->sm_active, a.sm_active);
    tally(&s->tensor_active, a.tensor_active);
    tally(&s->dram_active, a.dram_active);
    s->n_full += r.gpu_util >= SAMPLER_FULL;
    s->power_limit_w = r.power_limit_w;
    s->has_reasons |= r.has_reasons;
    s->reasons |= r.reasons;
    s->n_sample++;
}

/* Sleeps for a period; 1 when told to stop. */
static int wait_stop(Sampler *s)
{
    struct timespec until = thread_deadline(s->period_s);
    thread_lock(&s->lock);
    while (!s->stop && pthread_cond_timedwait(&s->wake, &s->lock, &until) == 0) continue;
    int stop = s->stop;
    thread_unlock(&s->lock);
    return stop;
}

static void sampler_body(void *arg)
{
    Sampler *s = (Sampler *)arg;
    if (!s->opened) {
        s->opened = 1;
        s->nvml   = nvml_open(s->nvml_path);
        s->device = nvml_device_of_cuda(s->nvml, s->cuda_index);
    }
    if (!s->device) return;
    NvmlGpm *gpm      = nvml_gpm_create(s->nvml, s->device);
    double   energy_j = nvml_energy_j(s->nvml, s->device), begin_s = clock_now_s();
    /* A last reading a moment after the one before would show GPM too short a time, so it is taken only if
     * it is the first. */
    for (int stop = 0; !stop;) {
        stop = wait_stop(s);
        if (!stop || s->n_sample == 0) poll_once(s, gpm);
    }
    s->energy_j = nvml_energy_j(s->nvml, s->device) - energy_j;
    s->time_s   = clock_now_s() - begin_s;
    nvml_gpm_destroy(gpm);
}

/* ---- The caller ---------------------------------------------------------------------------------------- */

void sampler_begin(Sampler *s)
{
    if (!s) return;
    CHECK(!s->begun, "a stretch begins inside another");
    s->begun         = 1;
    s->stop          = 0;
    s->n_sample      = 0;
    s->n_full        = 0;
    s->has_reasons   = 0;
    s->reasons       = 0;
    s->time_s        = 0;
    s->energy_j      = NAN;
    s->power_limit_w = NAN;
    s->utilisation = s->power_w = s->sm_mhz = s->temperature_c = (Tally){ 0 };
    s->sm_active = s->tensor_active = s->dram_active = (Tally){ 0 };
    if (thread_start(&s->thread, "brim-sampler", sampler_body, s) < 0) err_clear(); /* n/a, by rule 2 */
}

static SamplerStat stat_of(const Tally *t)
{
    return t->n > 0 ? (SamplerStat){ t->sum / t->n, t->max } : (SamplerStat){ NAN, NAN };
}

void sampler_end(Sampler *s, SamplerResult *out)
{
    Sampler none = { .energy_j = NAN, .power_limit_w = NAN };
    if (s && s->begun) {
        thread_lock(&s->lock);
        s->stop = 1;
        pthread_cond_signal(&s->wake);
        thread_unlock(&s->lock);
        thread_join(&s->thread);
        s->begun = 0;
    } else {
        s = &none;
    }
    *out = (SamplerResult){ .n_sample      = s->n_sample,
                            .time_s        = s->time_s,
                            .utilisation   = stat_of(&s->utilisation),
                            .power_w       = stat_of(&s->power_w),
                            .sm_mhz        = stat_of(&s->sm_mhz),
                            .temperature_c = stat_of(&s->temperature_c),
                            .sm_active     = stat_of(&s->sm_active),
                            .tensor_active = stat_of(&s->tensor_active),
                            .dram_active   = stat_of(&s->dram_active),
                            .full_share = s->utilisation.n > 0 ? (double)s->n_full / s->utilisation.n : NAN,
                            .power_limit_w = s->power_limit_w,
                            .energy_j      = s->energy_j,
                            .has_reasons   = s->has_reasons,
                            .reasons       = s->reasons };
}

double sampler_power_w(const SamplerResult *r)
{
    /* A counter that stands still is one this card does not keep. */
    return r->energy_j > 0 && r->time_s > 0 ? r->energy_j / r->time_s : r->power_w.mean;
}
