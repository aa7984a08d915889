#include "watch/meter.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/str.h"
#include "base/thread.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* Memory, limits and temperature are read once in SLOW_S: every question costs the driver's time. */
static const double PERIOD_S = 0.1, SLOW_S = 1;
/* The activity counters cost more than all the rest, and are read where a stretch ends. A stretch is at least
 * so long that its end costs END_SHARE of a core: what the last end cost says how long that is. */
static const double MIN_STRETCH_S = 0.1, MAX_STRETCH_S = 2, END_SHARE = 0.004;
/* The driver's energy counter costs five milliseconds of a core, ten times what all the rest does. */
static const double COUNTER_S = 5;

typedef struct {
    double sum;
    int    n;
} Mean;

struct Meter {
    int             cuda_index;
    const char     *nvml_path;
    Thread          thread;
    pthread_mutex_t lock;
    pthread_cond_t  wake;
    /* Under the lock. */
    int          stop;
    int64_t      marked;  /* newest step that has ended */
    int64_t      covered; /* last step of the stretch before */
    double       due_s;   /* this stretch does not end before */
    MeterStretch done;
    char         activity[160];
    MeterCost    cost;
    NvmlCard     card;
    int          has_card;
    /* The thread's alone. */
    Nvml       *nvml;
    NvmlDevice *device;
    NvmlGpm    *gpm;
    double      open_s, watch_s;      /* CPU seconds of questions asked once; when watching began */
    double      begin_s, energy_0_j;  /* the counter's, at the start */
    double      counter_j, counter_s; /* by the counter since the start; when it was read */
    double      since_j;              /* power times time since then; all of it where no counter moves */
    HostReading host;
    NvmlReading last;
    double      slow_s, ecc_errors; /* when `last` was read whole, and of then */
    double      processes;
    int         n_slow;
    Mean        util, power, sm_mhz, memory_mhz;
    int         n_sample, has_reasons;
    uint64_t    reasons;
};

static void stretch_na(MeterStretch *s)
{
    *s          = (MeterStretch){ 0 };
    s->gpu_util = s->sm_active = s->tensor_active = s->dram_active = NAN;
    s->pcie_tx_bytes_s = s->pcie_rx_bytes_s = s->gpu_power_w = s->sm_mhz = s->memory_mhz = NAN;
    s->gpu_memory_bytes = s->gpu_memory_total_bytes = s->power_limit_w = s->temperature_c = NAN;
    s->ecc_errors = s->energy_j = s->total_energy_j = s->processes = NAN;
    s->host              = (HostRates){ NAN, NAN, NAN, NAN, NAN, NAN };
    s->memory_used_bytes = s->memory_total_bytes = s->rss_bytes = NAN;
}

/* ---- The thread ---------------------------------------------------------------------------------------- */

static void add(Mean *m, double x)
{
    if (isnan(x)) return;
    m->sum += x;
    m->n++;
}

static double mean_of(const Mean *m) { return m->n > 0 ? m->sum / m->n : NAN; }

static void poll_gpu(Meter *m)
{
    if (!m->device) return;
    double now_s = clock_now_s();
    if (m->n_slow == 0 || now_s - m->slow_s >= SLOW_S) {
        nvml_read(m->nvml, m->device, &m->last);
        m->ecc_errors = nvml_ecc_errors(m->nvml, m->device);
        int n         = nvml_processes(m->nvml, m->device, NULL, 0);
        m->processes  = n < 0 ? NAN : n;
        m->slow_s     = now_s;
        m->n_slow++;
    } else {
        nvml_read_fast(m->nvml, m->device, &m->last);
    }
    add(&m->util, m->last.gpu_util / 100);
    add(&m->power, m->last.power_w);
    add(&m->sm_mhz, m->last.sm_mhz);
    add(&m->memory_mhz, m->last.memory_mhz);
    m->has_reasons |= m->last.has_reasons;
    m->reasons |= m->last.reasons;
    m->n_sample++;
}

static void begin_stretch(Meter *m, double now_s)
{
    m->begin_s = now_s;
    m->util = m->power = m->sm_mhz = m->memory_mhz = (Mean){ 0 };
    m->n_sample = m->has_reasons = 0;
    m->reasons                   = 0;
}

/* A stretch goes by power, the run by the counter and what came since. A counter that stands still is one
 * that this card does not keep: then power is all there is. */
static void fill_energy(Meter *m, MeterStretch *s)
{
    s->energy_j = m->device ? s->gpu_power_w * s->time_s : s->host.energy_j;
    m->since_j += isnan(s->energy_j) ? 0 : s->energy_j;
    double now_s = clock_now_s();
    if (m->device && now_s - m->counter_s >= COUNTER_S) {
        double now_j = nvml_energy_j(m->nvml, m->device);
        if (now_j > m->energy_0_j) {
            m->counter_j = now_j - m->energy_0_j;
            m->since_j   = 0;
        }
        m->counter_s = now_s;
    }
    s->total_energy_j = isnan(s->energy_j) && m->counter_j == 0 ? NAN : m->counter_j + m->since_j;
}

static void fill_gpu(Meter *m, MeterStretch *s)
{
    NvmlActivity a;
    nvml_gpm_next(m->gpm, &a);
    poll_gpu(m);
    s->n_sample               = m->n_sample;
    s->gpu_util               = mean_of(&m->util);
    s->sm_active              = a.sm_active / 100;
    s->tensor_active          = a.tensor_active / 100;
    s->dram_active            = a.dram_active / 100;
    s->pcie_tx_bytes_s        = a.pcie_tx_bytes_s;
    s->pcie_rx_bytes_s        = a.pcie_rx_bytes_s;
    s->gpu_power_w            = mean_of(&m->power);
    s->sm_mhz                 = mean_of(&m->sm_mhz);
    s->memory_mhz             = mean_of(&m->memory_mhz);
    s->gpu_memory_bytes       = m->last.memory_used_bytes;
    s->gpu_memory_total_bytes = m->last.memory_total_bytes;
    s->power_limit_w          = m->last.power_limit_w;
    s->temperature_c          = m->last.temperature_c;
    s->ecc_errors             = m->ecc_errors;
    s->processes              = m->processes;
    s->has_reasons            = m->has_reasons;
    s->reasons                = m->reasons;
}

static double thread_cpu_s(void)
{
    struct timespec t;
    return clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t) == 0 ? (double)t.tv_sec + 1e-9 * (double)t.tv_nsec
                                                           : NAN;
}

static void end_stretch(Meter *m, int64_t first, int64_t last)
{
    MeterStretch s;
    HostReading  host;
    NvmlCard     card;
    stretch_na(&s);
    double cpu_0_s = thread_cpu_s();
    if (!m->has_card) { /* now: a card at rest has a slow link */
        nvml_read_card(m->nvml, m->device, &card);
        m->open_s += thread_cpu_s() - cpu_0_s;
        cpu_0_s = thread_cpu_s();
    }
    s.first_step = first;
    s.last_step  = last;
    s.time_s     = clock_now_s() - m->begin_s;
    if (m->device) fill_gpu(m, &s);
    host_read(&host);
    host_between(&m->host, &host, &s.host);
    s.memory_used_bytes  = host.memory_used_bytes;
    s.memory_total_bytes = host.memory_total_bytes;
    s.rss_bytes          = host.rss_bytes;
    m->host              = host;
    fill_energy(m, &s);
    begin_stretch(m, clock_now_s());
    double least_s = MAX(MIN_STRETCH_S, MIN((thread_cpu_s() - cpu_0_s) / END_SHARE, MAX_STRETCH_S));
    thread_lock(&m->lock);
    m->due_s = m->begin_s + least_s;
    if (m->marked >= last) m->covered = last; /* else the run went back meanwhile */
    m->done = s;
    m->cost = (MeterCost){ thread_cpu_s(), m->open_s, clock_now_s() - m->watch_s };
    if (!m->has_card) m->card = card;
    m->has_card = 1;
    thread_unlock(&m->lock);
}

static int is_due(const Meter *m) { return m->marked > m->covered && clock_now_s() >= m->due_s; }

/* Sleeps for a period, or until a mark ends a stretch that is long enough: then *last is its last step,
 * else 0. 1 when told to stop. */
static int wait_mark(Meter *m, int64_t *first, int64_t *last)
{
    struct timespec until = thread_deadline(PERIOD_S);
    thread_lock(&m->lock);
    int rc = 0;
    while (!m->stop && rc == 0 && !is_due(m)) rc = pthread_cond_timedwait(&m->wake, &m->lock, &until);
    *last    = is_due(m) ? m->marked : 0;
    *first   = m->covered + 1;
    int stop = m->stop;
    thread_unlock(&m->lock);
    return stop;
}

static void open_gpu(Meter *m)
{
    char text[160];
    if (m->cuda_index >= 0) {
        m->nvml   = nvml_open(m->nvml_path);
        m->device = nvml_device_of_cuda(m->nvml, m->cuda_index);
        m->gpm    = nvml_gpm_create(m->nvml, m->device);
    }
    if (m->gpm) {
        str_copy(text, sizeof text, "gpm");
    } else if (m->device) {
        snprintf(text, sizeof text, "utilisation only: %s", nvml_gpm_refusal(m->nvml, m->device));
    } else {
        snprintf(text, sizeof text, "none: %s", m->cuda_index >= 0 ? "the driver does not answer" : "no GPU");
    }
    m->energy_0_j = nvml_energy_j(m->nvml, m->device);
    m->counter_s  = clock_now_s();
    thread_lock(&m->lock);
    str_copy(m->activity, sizeof m->activity, text);
    thread_unlock(&m->lock);
}

static void meter_body(void *arg)
{
    Meter  *m = (Meter *)arg;
    int64_t first, last;
    open_gpu(m);
    host_read(&m->host);
    m->open_s  = thread_cpu_s();
    m->watch_s = clock_now_s();
    begin_stretch(m, clock_now_s());
    thread_lock(&m->lock);
    m->due_s = m->begin_s + MIN_STRETCH_S;
    thread_unlock(&m->lock);
    while (!wait_mark(m, &first, &last)) {
        if (last > 0) {
            end_stretch(m, first, last);
        } else {
            poll_gpu(m);
        }
    }
    nvml_gpm_destroy(m->gpm);
    nvml_close(m->nvml);
}

/* ---- The caller ---------------------------------------------------------------------------------------- */

Meter *meter_start(int cuda_index, const char *nvml_path)
{
    Meter *m = (Meter *)calloc(1, sizeof *m);
    if (!m) return NULL;
    m->cuda_index = cuda_index;
    m->nvml_path  = nvml_path;
    m->cost       = (MeterCost){ NAN, NAN, NAN };
    stretch_na(&m->done);
    pthread_mutex_init(&m->lock, NULL);
    thread_cond_init(&m->wake);
    if (thread_start(&m->thread, "brim-meter", meter_body, m) == 0) return m;
    err_clear(); /* a run is not worth less without its figures */
    meter_stop(m);
    return NULL;
}

void meter_stop(Meter *m)
{
    if (!m) return;
    thread_lock(&m->lock);
    m->stop = 1;
    pthread_cond_signal(&m->wake);
    thread_unlock(&m->lock);
    thread_join(&m->thread);
    pthread_cond_destroy(&m->wake);
    pthread_mutex_destroy(&m->lock);
    free(m);
}

void meter_mark(Meter *m, int64_t step)
{
    if (!m) return;
    thread_lock(&m->lock);
    if (m->marked == 0 || step < m->marked) m->covered = step - 1; /* the first, or after going back */
    m->marked = step;
    if (is_due(m)) pthread_cond_signal(&m->wake);
    thread_unlock(&m->lock);
}

void meter_read(Meter *m, MeterStretch *out)
{
    stretch_na(out);
    if (!m) return;
    thread_lock(&m->lock);
    *out = m->done;
    thread_unlock(&m->lock);
}

const char *meter_activity(Meter *m)
{
    if (!m) return "none: off";
    thread_lock(&m->lock);
    int known = m->activity[0] != '\0';
    thread_unlock(&m->lock);
    return known ? m->activity : NULL; /* does not change any more */
}

void meter_card(Meter *m, NvmlCard *out)
{
    *out = (NvmlCard){ NAN, NAN, NAN, NAN, NAN, NAN, NAN };
    if (!m) return;
    thread_lock(&m->lock);
    if (m->has_card) *out = m->card;
    thread_unlock(&m->lock);
}

MeterCost meter_cost(Meter *m)
{
    if (!m) return (MeterCost){ NAN, NAN, NAN };
    thread_lock(&m->lock);
    MeterCost c = m->cost;
    thread_unlock(&m->lock);
    return c;
}
