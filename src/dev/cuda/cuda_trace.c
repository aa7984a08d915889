/* 1. CUPTI's callbacks get no pointer from Brim, so the one trace of a process is a static here. One thread
 *    begins and ends the trace. Buffers may come from a thread of CUPTI, one at a time.
 * 2. Kernels inside graphs are recorded one by one. Recording costs some time between kernels, so the
 *    recorded gaps are at least as large as those of a run without a trace. */
#include "dev/cuda/cuda_trace.h"

#include "base/err.h"
#include "dev/cuda/cuda_dev.h"

/* The header declares functions without prototypes. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wstrict-prototypes"
#include <cupti.h>
#pragma GCC diagnostic pop

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    uint64_t begin_ns, end_ns;
} Span;

typedef struct {
    void *so;
    CUptiResult (*register_callbacks)(CUpti_BuffersCallbackRequestFunc, CUpti_BuffersCallbackCompleteFunc);
    CUptiResult (*enable)(CUpti_ActivityKind);
    CUptiResult (*disable)(CUpti_ActivityKind);
    CUptiResult (*flush)(uint32_t);
    CUptiResult (*next)(uint8_t *, size_t, CUpti_Activity **);
} Cupti;

static struct {
    Cupti           lib;
    pthread_mutex_t lock;
    Span           *span;
    int64_t         n, cap;
    int             lost; /* out of host memory: spans are missing */
} trace = { .lock = PTHREAD_MUTEX_INITIALIZER };

static const CUpti_ActivityKind traced[] = { CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                                             CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET };

/* ---- the library --------------------------------------------------------------------------------------- */

static int cupti_open(Cupti *c)
{
    static const char *const file[] = { "libcupti.so.13", "libcupti.so.12", "libcupti.so" };
    const struct {
        const char *name;
        void       *slot;
    } want[] = { { "cuptiActivityRegisterCallbacks", &c->register_callbacks },
                 { "cuptiActivityEnable", &c->enable },
                 { "cuptiActivityDisable", &c->disable },
                 { "cuptiActivityFlushAll", &c->flush },
                 { "cuptiActivityGetNextRecord", &c->next } };
    if (c->so) return 0;
    for (int i = 0; i < ARRAY_LEN(file) && !c->so; i++) c->so = dlopen(file[i], RTLD_NOW | RTLD_LOCAL);
    if (!c->so) return err_set("CUPTI: %s", dlerror());
    for (int i = 0; i < ARRAY_LEN(want); i++) {
        void *p = dlsym(c->so, want[i].name);
        if (p) {
            memcpy(want[i].slot, &p, sizeof p);
            continue;
        }
        dlclose(c->so);
        c->so = NULL;
        return err_set("CUPTI has no %s", want[i].name);
    }
    return 0;
}

/* ---- records ------------------------------------------------------------------------------------------- */

static void CUPTIAPI buffer_wanted(uint8_t **buffer, size_t *size, size_t *max_records)
{
    enum { BUFFER_BYTES = 4 << 20 };
    *buffer      = aligned_alloc(64, BUFFER_BYTES);
    *size        = *buffer ? BUFFER_BYTES : 0;
    *max_records = 0;
}

static void span_add(uint64_t begin_ns, uint64_t end_ns)
{
    if (trace.n == trace.cap) {
        int64_t cap  = trace.cap ? 2 * trace.cap : 4096;
        Span   *span = realloc(trace.span, (size_t)cap * sizeof *span);
        if (!span) trace.lost = 1;
        if (!span) return;
        trace.span = span;
        trace.cap  = cap;
    }
    trace.span[trace.n++] = (Span){ begin_ns, end_ns };
}

static void CUPTIAPI buffer_filled(CUcontext context, uint32_t stream, uint8_t *buffer, size_t size,
                                   size_t used)
{
    CUpti_Activity *r = NULL;
    pthread_mutex_lock(&trace.lock);
    while (used > 0 && trace.lib.next(buffer, used, &r) == CUPTI_SUCCESS) {
        if (r->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL || r->kind == CUPTI_ACTIVITY_KIND_KERNEL) {
            const CUpti_ActivityKernel10 *k = (const void *)r;
            span_add(k->start, k->end);
        } else if (r->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
            const CUpti_ActivityMemcpy6 *m = (const void *)r;
            span_add(m->start, m->end);
        } else if (r->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
            const CUpti_ActivityMemset4 *m = (const void *)r;
            span_add(m->start, m->end);
        }
    }
    pthread_mutex_unlock(&trace.lock);
    free(buffer);
}

static int by_begin(const void *a, const void *b)
{
    uint64_t x = ((const Span *)a)->begin_ns, y = ((const Span *)b)->begin_ns;
    return x < y ? -1 : x > y;
}

/* Time covered by at least one span. */
static void summarise(Span *span, int64_t n, DevTrace *out)
{
    *out = (DevTrace){ .n_kernel = n };
    if (n == 0) return;
    qsort(span, (size_t)n, sizeof *span, by_begin);
    uint64_t begin = span[0].begin_ns, end = span[0].end_ns, busy = 0, from = begin;
    for (int64_t i = 1; i < n; i++) {
        if (span[i].begin_ns > end) {
            busy += end - from;
            from = span[i].begin_ns;
        }
        end = MAX(end, span[i].end_ns);
    }
    busy += end - from;
    out->span_s = 1e-9 * (double)(end - begin);
    out->busy_s = 1e-9 * (double)busy;
}

/* ---- begin and end ------------------------------------------------------------------------------------- */

int cuda_trace_begin(Dev *dev)
{
    Cupti *c = &trace.lib;
    TRY(cupti_open(c));
    TRY(dev->vt->sync(dev));
    trace.n       = 0;
    trace.lost    = 0;
    CUptiResult r = c->register_callbacks(buffer_wanted, buffer_filled);
    for (int i = 0; i < ARRAY_LEN(traced) && r == CUPTI_SUCCESS; i++) r = c->enable(traced[i]);
    if (r == CUPTI_SUCCESS) return 0;
    for (int i = 0; i < ARRAY_LEN(traced); i++) c->disable(traced[i]);
    return err_set("CUPTI refuses to record kernels: error %d", (int)r);
}

int cuda_trace_end(Dev *dev, DevTrace *out)
{
    Cupti *c  = &trace.lib;
    int    rc = dev->vt->sync(dev);
    c->flush(1);
    for (int i = 0; i < ARRAY_LEN(traced); i++) c->disable(traced[i]);
    pthread_mutex_lock(&trace.lock);
    summarise(trace.span, trace.n, out);
    if (rc == 0 && trace.lost) rc = err_set("out of host memory");
    free(trace.span);
    trace.span = NULL;
    trace.n = trace.cap = 0;
    pthread_mutex_unlock(&trace.lock);
    return rc;
}
