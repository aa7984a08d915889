/* 1. CUPTI's callbacks get no pointer from Brim, so the one trace of a process is a static here. One thread
 *    begins and ends the trace. Buffers may come from a thread of CUPTI, one at a time.
 * 2. Kernels inside graphs are recorded one by one. Recording costs some time between kernels, so the
 *    recorded gaps are at least as large as those of a run without a trace.
 * 3. All records of a graph launch have one correlation id, and these ids grow from launch to launch. So the
 *    k-th id belongs to the k-th graph that was launched. Its records, in the order of its nodes, are the
 *    work that was captured. If their number differs, the spans keep their kernels' names and have no op.
 * 4. Lists that run without a graph push each op's number as an external id. */
#include "dev/cuda/cuda_trace.h"

#include "base/clock.h"
#include "base/err.h"
#include "dev/cuda/cuda_dev.h"

/* The header declares functions without prototypes. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wstrict-prototypes"
#include <cupti.h>
#pragma GCC diagnostic pop

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    uint64_t    begin_ns, end_ns, node; /* node: of a graph, 0 outside */
    const char *name;                   /* CUPTI's own, stays */
    uint32_t    id;                     /* correlation */
    int         lane;
} Record;

typedef struct {
    uint32_t id;
    uint64_t op; /* number in trace.op, from 1 */
} Outer;

/* A list that grows; without memory its entries are counted as lost. */
typedef struct {
    char   *p;
    size_t  each;
    int64_t n, cap;
} List;

typedef struct {
    void *so;
    CUptiResult (*register_callbacks)(CUpti_BuffersCallbackRequestFunc, CUpti_BuffersCallbackCompleteFunc);
    CUptiResult (*enable)(CUpti_ActivityKind);
    CUptiResult (*disable)(CUpti_ActivityKind);
    CUptiResult (*flush)(uint32_t);
    CUptiResult (*next)(uint8_t *, size_t, CUpti_Activity **);
    CUptiResult (*timestamp)(uint64_t *);
    CUptiResult (*push)(CUpti_ExternalCorrelationKind, uint64_t);
    CUptiResult (*pop)(CUpti_ExternalCorrelationKind, uint64_t *);
} Cupti;

static struct {
    Cupti           lib;
    pthread_mutex_t lock;
    int             on, eager;
    int64_t         lost;
    double          shift_s; /* clock_now_s() minus CUPTI's clock */
    List            record, outer, graph, op;
} trace = { .lock   = PTHREAD_MUTEX_INITIALIZER,
            .record = { .each = sizeof(Record) },
            .outer  = { .each = sizeof(Outer) },
            .graph  = { .each = sizeof(CudaWork *) },
            .op     = { .each = sizeof(Op *) } };

static const CUpti_ActivityKind traced[] = { CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                                             CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET };
/* Without these there are no records of external ids. */
static const CUpti_ActivityKind traced_eager[] = { CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION,
                                                   CUPTI_ACTIVITY_KIND_RUNTIME, CUPTI_ACTIVITY_KIND_DRIVER };

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
                 { "cuptiActivityGetNextRecord", &c->next },
                 { "cuptiGetTimestamp", &c->timestamp },
                 { "cuptiActivityPushExternalCorrelationId", &c->push },
                 { "cuptiActivityPopExternalCorrelationId", &c->pop } };
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

static void list_add(List *l, const void *item)
{
    if (l->n == l->cap) {
        int64_t cap = l->cap ? 2 * l->cap : 1024;
        char   *p   = l->cap < DEV_SPANS ? realloc(l->p, (size_t)cap * l->each) : NULL;
        if (!p) {
            trace.lost++;
            return;
        }
        l->p   = p;
        l->cap = cap;
    }
    memcpy(l->p + (size_t)l->n++ * l->each, item, l->each);
}

static void list_clear(List *l)
{
    free(l->p);
    l->p = NULL;
    l->n = l->cap = 0;
}

/* Copies to and from the host have lanes of their own. */
static int lane_of_copy(int kind)
{
    return kind == CUPTI_ACTIVITY_MEMCPY_KIND_HTOD   ? LANE_H2D
           : kind == CUPTI_ACTIVITY_MEMCPY_KIND_DTOH ? LANE_D2H
                                                     : LANE_COMPUTE;
}

static void take_record(const CUpti_Activity *r)
{
    if (r->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL || r->kind == CUPTI_ACTIVITY_KIND_KERNEL) {
        const CUpti_ActivityKernel10 *k = (const void *)r;
        list_add(&trace.record, &(Record){ k->start, k->end, k->graphNodeId, k->name, k->correlationId, 0 });
    } else if (r->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
        const CUpti_ActivityMemcpy6 *m = (const void *)r;
        list_add(&trace.record, &(Record){ m->start, m->end, m->graphNodeId, "copy", m->correlationId,
                                           lane_of_copy(m->copyKind) });
    } else if (r->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
        const CUpti_ActivityMemset4 *m = (const void *)r;
        list_add(&trace.record, &(Record){ m->start, m->end, m->graphNodeId, "fill", m->correlationId, 0 });
    } else if (r->kind == CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION) {
        const CUpti_ActivityExternalCorrelation *e = (const void *)r;
        list_add(&trace.outer, &(Outer){ e->correlationId, e->externalId });
    }
}

static void CUPTIAPI buffer_filled(CUcontext context, uint32_t stream, uint8_t *buffer, size_t size,
                                   size_t used)
{
    CUpti_Activity *r = NULL;
    pthread_mutex_lock(&trace.lock);
    while (used > 0 && trace.lib.next(buffer, used, &r) == CUPTI_SUCCESS) take_record(r);
    pthread_mutex_unlock(&trace.lock);
    free(buffer);
}

/* ---- whose work it was --------------------------------------------------------------------------------- */

static int by_id_and_node(const void *a, const void *b)
{
    const Record *x = a, *y = b;
    if (x->id != y->id) return x->id < y->id ? -1 : 1;
    if (x->node != y->node) return x->node < y->node ? -1 : 1;
    return x->begin_ns < y->begin_ns ? -1 : x->begin_ns > y->begin_ns;
}

static int by_id_and_begin(const void *a, const void *b)
{
    const Record *x = a, *y = b;
    if (x->id != y->id) return x->id < y->id ? -1 : 1;
    return x->begin_ns < y->begin_ns ? -1 : x->begin_ns > y->begin_ns;
}

static int by_outer_id(const void *a, const void *b)
{
    const Outer *x = a, *y = b;
    return x->id < y->id ? -1 : x->id > y->id;
}

static const Op *op_outside(uint32_t id)
{
    const Outer *o = trace.outer.n > 0 ? bsearch(&(Outer){ .id = id }, trace.outer.p, (size_t)trace.outer.n,
                                                 sizeof *o, by_outer_id)
                                       : NULL;
    if (!o || o->op < 1 || o->op > (uint64_t)trace.op.n) return NULL;
    return ((const Op *const *)trace.op.p)[o->op - 1];
}

static void put_span(const Record *r, const Op *op, DevTrace *out, int64_t *cap)
{
    DevSpan s = { .begin_s = trace.shift_s + 1e-9 * (double)r->begin_ns,
                  .end_s   = trace.shift_s + 1e-9 * (double)r->end_ns,
                  .op      = op,
                  .lane    = op ? op->lane : (Lane)r->lane };
    snprintf(s.name, sizeof s.name, "%s", r->name ? r->name : "?");
    dev_trace_add(out, cap, &s);
}

/* The records of one graph launch. w NULL: it is not known which. */
static void put_launch(Record *r, int64_t n, const CudaWork *w, DevTrace *out, int64_t *cap)
{
    int fits = w && w->n_work == n;
    if (fits && w->one_lane) qsort(r, (size_t)n, sizeof *r, by_id_and_begin);
    for (int64_t i = 0; i < n; i++) put_span(&r[i], fits ? &w->ops[w->work[i]] : NULL, out, cap);
}

static void put_all(DevTrace *out)
{
    Record *r   = (Record *)trace.record.p;
    int64_t cap = 0, n_graph = 0;
    *out = (DevTrace){ .n_lost = trace.lost };
    if (trace.record.n == 0) return;
    qsort(r, (size_t)trace.record.n, sizeof *r, by_id_and_node);
    if (trace.outer.n > 0) qsort(trace.outer.p, (size_t)trace.outer.n, trace.outer.each, by_outer_id);
    for (int64_t i = 0, n; i < trace.record.n; i += n) {
        for (n = 1; i + n < trace.record.n && r[i + n].id == r[i].id; n++) continue;
        if (r[i].node == 0) {
            for (int64_t k = i; k < i + n; k++) put_span(&r[k], op_outside(r[k].id), out, &cap);
            continue;
        }
        const CudaWork *const *graph = (const CudaWork *const *)trace.graph.p;
        put_launch(r + i, n, n_graph < trace.graph.n ? graph[n_graph] : NULL, out, &cap);
        n_graph++;
    }
}

/* ---- begin and end ------------------------------------------------------------------------------------- */

static void disable_all(void)
{
    for (int i = 0; i < ARRAY_LEN(traced); i++) trace.lib.disable(traced[i]);
    for (int i = 0; trace.eager && i < ARRAY_LEN(traced_eager); i++) trace.lib.disable(traced_eager[i]);
}

int cuda_trace_begin(Dev *dev)
{
    Cupti   *c   = &trace.lib;
    uint64_t now = 0;
    TRY(cupti_open(c));
    TRY(dev->vt->sync(dev));
    trace.lost    = 0;
    trace.eager   = !dev->opt.capture;
    CUptiResult r = c->register_callbacks(buffer_wanted, buffer_filled);
    for (int i = 0; i < ARRAY_LEN(traced) && r == CUPTI_SUCCESS; i++) r = c->enable(traced[i]);
    for (int i = 0; trace.eager && i < ARRAY_LEN(traced_eager) && r == CUPTI_SUCCESS; i++)
        r = c->enable(traced_eager[i]);
    if (r == CUPTI_SUCCESS) r = c->timestamp(&now);
    trace.shift_s = clock_now_s() - 1e-9 * (double)now;
    trace.on      = r == CUPTI_SUCCESS;
    if (r == CUPTI_SUCCESS) return 0;
    disable_all();
    return err_set("CUPTI refuses to record kernels: error %d", (int)r);
}

int cuda_trace_end(Dev *dev, DevTrace *out)
{
    int rc = dev->vt->sync(dev);
    trace.lib.flush(1);
    disable_all();
    trace.on = 0;
    pthread_mutex_lock(&trace.lock);
    put_all(out);
    dev_trace_finish(out);
    list_clear(&trace.record);
    list_clear(&trace.outer);
    list_clear(&trace.graph);
    list_clear(&trace.op);
    pthread_mutex_unlock(&trace.lock);
    return rc;
}

/* ---- for lists ----------------------------------------------------------------------------------------- */

int cuda_trace_is_on(void) { return trace.on; }

void cuda_trace_graph(const CudaWork *w) { list_add(&trace.graph, &w); }

void cuda_trace_op_begin(const Op *op)
{
    list_add(&trace.op, &op);
    trace.lib.push(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, (uint64_t)trace.op.n);
}

void cuda_trace_op_end(void)
{
    uint64_t last;
    trace.lib.pop(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, &last);
}
