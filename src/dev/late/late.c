/* Late: the CPU's ops behind queues, as late as the contract of dev.h allows. It finds on any computer what
 * would otherwise need a GPU and luck: a host that does not wait.
 *
 * 1. Nothing runs when it is asked for. A lane's work runs when the host waits for it, or when another lane
 *    that must run waits for it. With a seed other than 0, work also runs at random moments between: then
 *    lanes overtake each other as far as marks and waits let them.
 * 2. Device memory cannot be touched while nothing runs: a host that reads or writes it dies at once.
 * 3. What a download will write is filled with 0xFF bytes (NaN) until its lane has come to it. An upload
 *    reads the host's memory only then. Memory that is not of host_alloc() is copied at once, as CUDA does.
 * 4. The bits are those of the CPU. There is one rank: sums of late ranks would have to pass those of their
 *    hosts on the way. */
#include "base/err.h"
#include "base/mem.h"
#include "dev/dev.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { LATE_RANGES = 512 };

typedef enum { WORK_RUN, WORK_UP, WORK_DOWN, WORK_WAIT } WorkKind;

typedef struct {
    WorkKind    kind;
    DevExec    *exec; /* WORK_RUN */
    void       *to;   /* copies */
    const void *from;
    size_t      n_byte;
    void       *staged; /* owned; NULL: the host's memory is read late */
    Lane        on;     /* WORK_WAIT: until this lane has done so much */
    int64_t     until;
} Work;

typedef struct {
    Work   *work; /* work[i] is number done + i of the lane */
    int64_t n, cap;
    int64_t done;
} Queue;

typedef struct {
    char  *p;
    size_t size_bytes;
    int    is_host;
} Range;

typedef struct {
    Dev      base;
    Dev     *cpu;
    Queue    lane[LANE_COUNT];
    Lane     mark_lane[DEV_MARKS];
    int64_t  mark_at[DEV_MARKS]; /* work of that lane up to the mark; 0: never set */
    Range    range[LATE_RANGES];
    int      n_range;
    uint64_t seed; /* 0: as late as possible */
    int      failed;
    char     why[512];
} LateDev;

/* ---- memory ------------------------------------------------------------------------------------------- */

static void protect(LateDev *d, int prot)
{
    for (int i = 0; i < d->n_range; i++) {
        const Range *r = &d->range[i];
        if (!r->is_host) CHECK(mprotect(r->p, r->size_bytes, prot) == 0, "mprotect of %zu", r->size_bytes);
    }
}

static void *range_add(LateDev *d, size_t size_bytes, int is_host)
{
    CHECK(d->n_range < LATE_RANGES, "more than %d ranges of memory", LATE_RANGES);
    size_t n = MAX(size_bytes, 1);
    void *p = mmap(NULL, n, is_host ? PROT_READ | PROT_WRITE : PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        err_sys("cannot allocate %zu bytes", size_bytes);
        return NULL;
    }
    d->range[d->n_range++] = (Range){ p, n, is_host };
    return p;
}

static void range_remove(LateDev *d, void *p)
{
    for (int i = 0; i < d->n_range; i++) {
        if (d->range[i].p != p) continue;
        munmap(p, d->range[i].size_bytes);
        d->range[i] = d->range[--d->n_range];
        return;
    }
    CHECK(0, "memory is freed that is not of this device");
}

static int is_pinned(const LateDev *d, const void *p)
{
    for (int i = 0; i < d->n_range; i++) {
        const Range *r = &d->range[i];
        if (r->is_host && (const char *)p >= r->p && (const char *)p < r->p + r->size_bytes) return 1;
    }
    return 0;
}

static void *late_alloc(Dev *dev, size_t size_bytes) { return range_add((LateDev *)dev, size_bytes, 0); }
static void *late_host_alloc(Dev *dev, size_t size_bytes) { return range_add((LateDev *)dev, size_bytes, 1); }
static void  late_free(Dev *dev, void *p) { range_remove((LateDev *)dev, p); }

/* ---- queues ------------------------------------------------------------------------------------------- */

static int64_t queued(const Queue *q) { return q->done + q->n; }

static int do_work(LateDev *d, const Work *w)
{
    if (w->kind == WORK_WAIT) return 0;
    int rc = 0;
    protect(d, PROT_READ | PROT_WRITE);
    if (w->kind == WORK_RUN) {
        rc = d->cpu->vt->exec_run(d->cpu, w->exec);
    } else {
        memcpy(w->to, w->staged ? w->staged : w->from, w->n_byte);
    }
    protect(d, PROT_NONE);
    return rc;
}

/* Runs lane's first n works, and of other lanes what they wait for. */
static void run_until(LateDev *d, Lane lane, int64_t n)
{
    Queue *q = &d->lane[lane];
    while (q->done < n) {
        CHECK(q->n > 0, "lane %d waits for work that nobody queued", lane);
        Work w = q->work[0];
        if (w.kind == WORK_WAIT) run_until(d, w.on, w.until);
        memmove(q->work, q->work + 1, (size_t)--q->n * sizeof *q->work);
        q->done++;
        if (!d->failed && do_work(d, &w) < 0) {
            d->failed = 1;
            snprintf(d->why, sizeof d->why, "%s", err_get());
            err_clear();
        }
        free(w.staged);
    }
}

/* An error comes back late, too: from the next call that waits. */
static int report(LateDev *d) { return d->failed ? err_set("%s", d->why) : 0; }

/* Work that happens to run now. */
static void wander(LateDev *d)
{
    if (d->seed == 0) return;
    d->seed ^= d->seed << 13;
    d->seed ^= d->seed >> 7;
    d->seed ^= d->seed << 17;
    Lane lane = (Lane)(d->seed >> 8 & 3);
    if (d->lane[lane].n > 0 && d->seed >> 16 & 1) run_until(d, lane, d->lane[lane].done + 1);
}

static int push(LateDev *d, Lane lane, Work w)
{
    Queue *q = &d->lane[lane];
    if (q->n == q->cap) {
        int64_t cap  = MAX(2 * q->cap, 64);
        Work   *more = realloc(q->work, (size_t)cap * sizeof *more);
        if (!more) return err_sys("memory for a queue");
        q->work = more;
        q->cap  = cap;
    }
    q->work[q->n++] = w;
    wander(d);
    return report(d);
}

static int late_upload(Dev *dev, Lane lane, void *dst_dev, const void *src_host, size_t size_bytes)
{
    LateDev *d = (LateDev *)dev;
    Work     w = { .kind = WORK_UP, .to = dst_dev, .from = src_host, .n_byte = size_bytes };
    if (!is_pinned(d, src_host) && size_bytes > 0) {
        w.staged = mem_alloc(size_bytes);
        if (!w.staged) return err_sys("memory for a copy");
        memcpy(w.staged, src_host, size_bytes);
    }
    return push(d, lane, w);
}

static int late_download(Dev *dev, Lane lane, void *dst_host, const void *src_dev, size_t size_bytes)
{
    LateDev *d = (LateDev *)dev;
    memset(dst_host, 0xFF, size_bytes);
    TRY(push(d, lane, (Work){ .kind = WORK_DOWN, .to = dst_host, .from = src_dev, .n_byte = size_bytes }));
    if (!is_pinned(d, dst_host)) run_until(d, lane, queued(&d->lane[lane]));
    return report(d);
}

static int late_lane_wait(Dev *dev, Lane waiter, Lane on)
{
    LateDev *d = (LateDev *)dev;
    return push(d, waiter, (Work){ .kind = WORK_WAIT, .on = on, .until = queued(&d->lane[on]) });
}

static int late_sync(Dev *dev)
{
    LateDev *d = (LateDev *)dev;
    for (int lane = LANE_COUNT - 1; lane >= 0; lane--) run_until(d, (Lane)lane, queued(&d->lane[lane]));
    return report(d);
}

static int late_mark(Dev *dev, Lane lane, int slot)
{
    LateDev *d         = (LateDev *)dev;
    d->mark_lane[slot] = lane;
    d->mark_at[slot]   = queued(&d->lane[lane]);
    return report(d);
}

static int late_mark_wait(Dev *dev, int slot)
{
    LateDev *d = (LateDev *)dev;
    run_until(d, d->mark_lane[slot], d->mark_at[slot]);
    return report(d);
}

/* Each look is a moment in which one work may end, so that a host that looks again and again gets on. */
static int late_mark_passed(Dev *dev, int slot)
{
    LateDev *d = (LateDev *)dev;
    Queue   *q = &d->lane[d->mark_lane[slot]];
    if (q->done >= d->mark_at[slot]) return 1;
    run_until(d, d->mark_lane[slot], q->done + 1);
    return 0;
}

static int late_lane_wait_mark(Dev *dev, Lane waiter, int slot)
{
    LateDev *d = (LateDev *)dev;
    return push(d, waiter, (Work){ .kind = WORK_WAIT, .on = d->mark_lane[slot], .until = d->mark_at[slot] });
}

/* ---- lists -------------------------------------------------------------------------------------------- */

static DevExec *late_exec_create(Dev *dev, const Op *ops, int n_op)
{
    Dev *cpu = ((LateDev *)dev)->cpu;
    return cpu->vt->exec_create(cpu, ops, n_op);
}

static void late_exec_destroy(Dev *dev, DevExec *exec)
{
    LateDev *d = (LateDev *)dev;
    (void)late_sync(dev);
    d->cpu->vt->exec_destroy(d->cpu, exec);
}

static int late_exec_run(Dev *dev, DevExec *exec)
{
    return push((LateDev *)dev, LANE_COMPUTE, (Work){ .kind = WORK_RUN, .exec = exec });
}

static int late_exec_time(Dev *dev, DevExec *exec, DevOpTime *out)
{
    LateDev *d = (LateDev *)dev;
    TRY(late_sync(dev));
    protect(d, PROT_READ | PROT_WRITE);
    int rc = d->cpu->vt->exec_time(d->cpu, exec, out);
    protect(d, PROT_NONE);
    return rc;
}

/* An op alone, outside of a list. */
#define X(KIND, field, Type)                                                                                 \
    static int late_##field(Dev *dev, const Type *a)                                                         \
    {                                                                                                        \
        LateDev *d = (LateDev *)dev;                                                                         \
        TRY(late_sync(dev));                                                                                 \
        protect(d, PROT_READ | PROT_WRITE);                                                                  \
        int rc = d->cpu->vt->ops.field(d->cpu, a);                                                           \
        protect(d, PROT_NONE);                                                                               \
        return rc;                                                                                           \
    }
OP_LIST(X)
#undef X

static int late_trace_begin(Dev *dev)
{
    TRY(late_sync(dev));
    Dev *cpu = ((LateDev *)dev)->cpu;
    return cpu->vt->trace_begin(cpu);
}

static int late_trace_end(Dev *dev, DevTrace *out)
{
    TRY(late_sync(dev));
    Dev *cpu = ((LateDev *)dev)->cpu;
    return cpu->vt->trace_end(cpu, out);
}

/* ---- open and close ----------------------------------------------------------------------------------- */

static Dev *late_open(int index, const DevOptions *opt)
{
    LateDev *d   = mem_zeroed(1, sizeof *d);
    Dev     *cpu = d ? dev_open("cpu", opt, NULL) : NULL;
    if (!cpu) {
        free(d);
        err_set("cannot open the CPU");
        return NULL;
    }
    d->cpu  = cpu;
    d->seed = (uint64_t)index * 0x9E3779B97F4A7C15u;
    return &d->base;
}

static void late_close(Dev *dev)
{
    LateDev *d = (LateDev *)dev;
    (void)late_sync(dev);
    dev_close(d->cpu);
    for (int lane = 0; lane < LANE_COUNT; lane++) free(d->lane[lane].work);
    while (d->n_range > 0) range_remove(d, d->range[0].p);
    free(d);
}

static int late_info(Dev *dev, DevInfo *info)
{
    Dev *cpu = ((LateDev *)dev)->cpu;
    return cpu->vt->info(cpu, info);
}

static size_t late_scratch_bytes(const Op *ops, int n_op, int threads)
{
    return dev_cpu()->scratch_bytes(ops, n_op, threads);
}

static void late_use_scratch(Dev *dev, void *p, size_t size_bytes)
{
    Dev *cpu = ((LateDev *)dev)->cpu;
    cpu->vt->use_scratch(cpu, p, size_bytes);
}

const DevVt *dev_late(void)
{
    static const DevVt vt = {
        .name = "late",
        .kind = DEV_CPU,
        .hints = &dev_hints_late,
        .ops =
            {
#define X(KIND, field, Type) .field = late_##field,
                OP_LIST(X)
#undef X
            },
        .fuses          = FUSE_ALL,
        .open           = late_open,
        .close          = late_close,
        .info           = late_info,
        .alloc          = late_alloc,
        .free           = late_free,
        .host_alloc     = late_host_alloc,
        .host_free      = late_free,
        .upload         = late_upload,
        .download       = late_download,
        .lane_wait      = late_lane_wait,
        .sync           = late_sync,
        .mark           = late_mark,
        .mark_wait      = late_mark_wait,
        .mark_passed    = late_mark_passed,
        .lane_wait_mark = late_lane_wait_mark,
        .scratch_bytes  = late_scratch_bytes,
        .use_scratch    = late_use_scratch,
        .exec_create    = late_exec_create,
        .exec_destroy   = late_exec_destroy,
        .exec_run       = late_exec_run,
        .exec_time      = late_exec_time,
        .trace_begin    = late_trace_begin,
        .trace_end      = late_trace_end,
    };
    return &vt;
}
