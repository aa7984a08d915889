/* The loader: pure filling, and a ThreadRing between the threads that fill and the consumer. See loader.h.
 *
 * 1. A slot is filled in `parts` parts of about equally many rows; a ticket of the ring is a part. A part
 *    belongs to the thread that drew its ticket until the part is published, then to the consumer until the
 *    slot is released. The ring's lock orders the two. Nothing else that the threads read changes while they
 *    run.
 * 2. A batch that failed is published like any other, with its message. So the consumer meets the first
 *    failure in the order of batches, whichever thread failed first in time. */
#include "data/loader.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/fault.h"
#include "base/hostmem.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/thread.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_AUTO_THREADS = 4, LOOK_BATCHES = 16, MOST_PARTS = 64 };
static const double look_every_s = 0.25, wait_share = 0.05;

typedef struct {
    int64_t n_target[SOURCE_SLOTS];
    double  fill_s;
    int     n_unusable; /* rows */
    int     failed;     /* with err_text */
    char    err_text[1024];
} LoaderPart;

struct Loader {
    LoaderConfig      cfg; /* slots and skip are NULL here: the copies are below */
    const Source     *src;
    SampleRange      *skip; /* sorted */
    void            **slot;
    LoaderPart       *part; /* of every slot */
    int               parts;
    Thread           *thread;
    int               n_thread; /* 0: inline */
    int               most_thread;
    atomic_int        n_running; /* threads that have begun */
    char             *scratch;   /* the source's, for each thread, or for inline filling */
    ThreadRing        ring;
    int64_t           n_taken, n_released; /* batches */
    const LoaderPart *failed;              /* the part whose error ended the supply */
    LoaderStats       stats;
    double            start_s;               /* of the first loader_next(); 0 before */
    double            steady_start_s;        /* when as many batches as there are slots had been taken */
    double            rest_s;                /* of the consumer, since the last loader_next() */
    double            look_s, look_waited_s; /* when the consumer's wait was last looked at */
    int64_t           look_taken;
};

/* ---- Filling ------------------------------------------------------------------------------------------- */

static int64_t batch_sample0(const Loader *l, int64_t batch)
{
    const LoaderConfig *c = &l->cfg;
    return c->first_sample + (batch * c->world + c->rank) * c->fields.B;
}

static int fill_row(const Loader *l, LoaderPart *part, int64_t batch, int64_t b, void *scratch)
{
    const Fields *f = &l->cfg.fields;
    void         *field[FIELDS_MAX];
    int64_t       n[SOURCE_SLOTS], used = batch_sample0(l, batch) + b;
    int64_t       g = used < l->src->n_sample ? order_skip(l->skip, l->cfg.n_skip, used) : -1;
    fault_slow();
    for (int i = 0; i < f->n; i++) field[i] = fields_at(f, l->slot[batch % l->cfg.n_slot], i, b);
    for (int k = 0; k < SOURCE_SLOTS; k++) {
        n[k] = source_targets(l->src, g, k, scratch);
        if (n[k] < 0) return -1;
    }
    int rc = source_fill(l->src, g, field, scratch);
    for (int k = 0; k < SOURCE_SLOTS && rc == 0; k++) part->n_target[k] += n[k];
    part->n_unusable += rc > 0;
    if (rc >= 0) source_place(l->src, b, field);
    return MIN(rc, 0);
}

static LoaderPart *part_of(const Loader *l, int64_t ticket)
{
    return &l->part[ticket % ((int64_t)l->cfg.n_slot * l->parts)];
}

static int fill_part(const Loader *l, int64_t ticket, void *scratch)
{
    int64_t     batch = ticket / l->parts, k = ticket % l->parts, B = l->cfg.fields.B;
    LoaderPart *part = part_of(l, ticket);
    memset(part->n_target, 0, sizeof part->n_target);
    part->n_unusable = 0;
    if (k == 0) fields_set_sample0(l->slot[batch % l->cfg.n_slot], batch_sample0(l, batch));
    for (int64_t b = k * B / l->parts; b < (k + 1) * B / l->parts; b++)
        TRY(fill_row(l, part, batch, b, scratch));
    return 0;
}

/* Fills the part of a ticket that was acquired, and publishes it. */
static void fill_ticket(Loader *l, int64_t ticket, void *scratch)
{
    LoaderPart *part    = part_of(l, ticket);
    double      begin_s = clock_now_s();
    part->failed        = fill_part(l, ticket, scratch) < 0;
    if (part->failed) {
        snprintf(part->err_text, sizeof part->err_text, "%s", err_get());
        err_clear();
    }
    part->fill_s = clock_now_s() - begin_s;
    thread_ring_publish(&l->ring, ticket);
}

static void thread_body(void *arg)
{
    Loader *l       = arg;
    int     turn    = atomic_fetch_add(&l->n_running, 1);
    void   *scratch = l->scratch + (size_t)turn * l->src->scratch_bytes;
    for (;;) {
        int64_t ticket = thread_ring_acquire(&l->ring);
        if (ticket < 0) break;
        fill_ticket(l, ticket, scratch);
    }
}

/* ---- The consumer -------------------------------------------------------------------------------------- */

static int report_failure(const LoaderPart *part) { return err_set("%s", part->err_text); }

/* 1: it is time to look at the consumer's wait. The first batches are no measure: they are waited for by any
 * number of threads. Batches that are work are few and slow: each one counts. */
static int is_due(const Loader *l, double since_s)
{
    if (l->src->is_work) return l->n_taken > l->look_taken;
    return l->n_taken - l->look_taken >= LOOK_BATCHES && since_s >= look_every_s;
}

/* One more thread; where samples are work, half as many more. A thread that cannot start is no failure. */
static void start_more(Loader *l)
{
    int more = l->src->is_work ? MAX(l->n_thread / 2, 1) : 1;
    for (; more > 0 && l->n_thread < l->most_thread; more--) {
        if (thread_start(&l->thread[l->n_thread], "loader", thread_body, l) < 0) {
            err_clear();
            l->most_thread = l->n_thread;
            return;
        }
        l->n_thread++;
    }
}

/* Starts threads if the consumer waited too long since the last look. */
static void follow_wait(Loader *l)
{
    double now_s = clock_now_s(), since_s = now_s - l->look_s;
    if (l->n_thread == 0 || l->n_thread >= l->most_thread || !is_due(l, since_s)) return;
    double share     = (l->stats.waited_s - l->look_waited_s) / since_s;
    int    is_first  = l->look_taken == 0 && !l->src->is_work;
    l->look_s        = now_s;
    l->look_waited_s = l->stats.waited_s;
    l->look_taken    = l->n_taken;
    if (is_first || share < wait_share) return;
    start_more(l);
    if (l->src->is_work) return; /* said once, at the end of the run */
    log_info("loader: %d threads now: %.0f %% of the time was spent waiting for data", l->n_thread,
             100 * share);
}

/* All parts of the next batch, in order. The first failure is kept: a slot that is not released is not
 * filled again. */
static void take_parts(Loader *l, LoaderBatch *out)
{
    int n_unusable = 0;
    for (int k = 0; k < l->parts; k++) {
        if (l->n_thread == 0) fill_ticket(l, thread_ring_acquire(&l->ring), l->scratch);
        int64_t ticket = thread_ring_take(&l->ring);
        CHECK(ticket == l->n_taken * l->parts + k, "part %lld of batch %lld", (long long)ticket,
              (long long)l->n_taken);
        const LoaderPart *part = part_of(l, ticket);
        if (part->failed && !l->failed) l->failed = part;
        l->stats.fill_s += part->fill_s;
        if (l->steady_start_s > 0) l->stats.steady_fill_s += part->fill_s;
        for (int i = 0; i < SOURCE_SLOTS; i++) out->n_target[i] += part->n_target[i];
        n_unusable += part->n_unusable;
    }
    if (n_unusable > 0 && l->src->vt->settle) l->src->vt->settle(l->src, &l->cfg.fields, out->host);
}

/* Time in which the consumer did something else moves all beginnings. */
static void pass_over_rest(Loader *l)
{
    l->start_s += l->rest_s;
    if (l->steady_start_s > 0) l->steady_start_s += l->rest_s;
    l->rest_s = 0;
}

int loader_next(Loader *l, LoaderBatch *out)
{
    if (l->failed) return report_failure(l->failed);
    CHECK(l->n_taken - l->n_released < l->cfg.n_slot, "all %d slots are held", l->cfg.n_slot);
    double begin_s = clock_now_s();
    if (l->start_s == 0) l->start_s = begin_s;
    pass_over_rest(l);
    int slot = (int)(l->n_taken % l->cfg.n_slot);
    *out     = (LoaderBatch){ .slot = slot, .host = l->slot[slot], .sample0 = batch_sample0(l, l->n_taken) };
    take_parts(l, out);
    l->n_taken++;
    double now_s = clock_now_s();
    if (l->n_taken == l->cfg.n_slot) l->steady_start_s = now_s;
    if (l->n_taken > l->cfg.n_slot) l->stats.steady_s = now_s - l->steady_start_s;
    l->stats.waited_s += now_s - begin_s;
    follow_wait(l);
    if (l->failed) return report_failure(l->failed);
    l->stats.batches++;
    return 0;
}

void loader_release(Loader *l, int slot)
{
    CHECK(l->n_released < l->n_taken && slot == l->n_released % l->cfg.n_slot,
          "slot %d is not the next to release", slot);
    CHECK(!l->failed || (l->failed - l->part) / l->parts != slot, "slot %d was not handed out", slot);
    for (int k = 0; k < l->parts; k++) thread_ring_release(&l->ring, l->n_released * l->parts + k);
    l->n_released++;
}

void loader_stats(Loader *l, LoaderStats *out)
{
    *out           = l->stats;
    out->n_thread  = l->n_thread;
    double now_s   = clock_now_s();
    out->elapsed_s = l->start_s == 0 ? 0 : now_s - l->start_s - l->rest_s;
}

void loader_rest(Loader *l, double seconds)
{
    if (l->start_s > 0) l->rest_s += seconds;
}

double loader_headroom(const LoaderStats *s)
{
    if (s->batches == 0 || s->fill_s <= 0) return 0;
    if (s->steady_fill_s > 0) return MAX(s->n_thread, 1) * s->steady_s / s->steady_fill_s;
    return MAX(s->n_thread, 1) * s->elapsed_s / s->fill_s;
}

/* ---- Creation ------------------------------------------------------------------------------------------ */

static int start(Loader *l)
{
    l->n_taken = l->n_released = 0;
    l->failed                  = NULL;
    l->stats                   = (LoaderStats){ 0 };
    l->start_s                 = 0;
    l->steady_start_s          = 0;
    l->rest_s                  = 0;
    l->look_s                  = clock_now_s();
    l->look_waited_s           = 0;
    l->look_taken              = 0;
    atomic_store(&l->n_running, 0);
    TRY(thread_ring_init(&l->ring, l->cfg.n_slot * l->parts));
    for (int i = 0; i < l->n_thread; i++) TRY(thread_start(&l->thread[i], "loader", thread_body, l));
    return 0;
}

static void stop(Loader *l)
{
    if (!l->ring.ready) return; /* it never started */
    thread_ring_close(&l->ring, NULL);
    for (int i = 0; i < l->n_thread; i++) thread_join(&l->thread[i]);
    thread_ring_deinit(&l->ring);
}

static int compare_ranges(const void *a, const void *b)
{
    int64_t x = ((const SampleRange *)a)->first, y = ((const SampleRange *)b)->first;
    return (x > y) - (x < y);
}

static void check_config(const LoaderConfig *c)
{
    CHECK(c->fields.B > 0, "batch of %lld samples", (long long)c->fields.B);
    CHECK(c->n_slot > 0 && c->slots && c->threads >= 0 && c->n_skip >= 0, "%d slots, %d threads, %d ranges",
          c->n_slot, c->threads, c->n_skip);
    CHECK(c->world >= 0 && c->rank >= 0 && c->rank < MAX(c->world, 1), "rank %d of %d", c->rank, c->world);
    for (int i = 0; i < c->n_slot; i++) {
        CHECK(c->slots[i] && (uintptr_t)c->slots[i] % 64 == 0, "slot %d is not aligned", i);
    }
    for (int i = 0; i < c->n_skip; i++) {
        CHECK(c->skip[i].first >= 0 && c->skip[i].count >= 0 && c->skip[i].first <= ORDER_MOST &&
                  c->skip[i].count <= ORDER_MOST,
              "skip range %d", i);
    }
}

/* The number comes from a checkpoint, which may be damaged or forged. */
static int check_first(int64_t first_sample)
{
    CHECK(first_sample >= 0, "first sample %lld", (long long)first_sample);
    if (first_sample <= ORDER_MOST) return 0;
    return err_set("the number of sample %lld is too large", (long long)first_sample);
}

/* A quarter of the cores this process may use. One thread is fast enough for any GPU while the tokens come
 * from the page cache (tests/test_loader.c prints the rate). More threads hide the latency of disks. */
static int choose_threads(const LoaderConfig *c, int parts, int cpus)
{
    if (c->inline_fill) return 0;
    int n = c->threads > 0 ? c->threads : MIN(MAX(cpus / 4, 1), MAX_AUTO_THREADS);
    return MIN(n, c->n_slot * parts);
}

static int most_threads(const LoaderConfig *c, int n, int parts, int cpus)
{
    return n > 0 && c->threads == 0 ? MAX(n, MIN(cpus, c->n_slot * parts)) : n;
}

static int take_memory(Loader *l, const LoaderConfig *cfg)
{
    l->thread  = mem_zeroed((size_t)l->most_thread, sizeof *l->thread);
    l->scratch = mem_zeroed((size_t)MAX(l->most_thread, 1), MAX(l->src->scratch_bytes, 1));
    l->skip    = mem_zeroed((size_t)cfg->n_skip, sizeof *l->skip);
    l->slot    = mem_zeroed((size_t)cfg->n_slot, sizeof *l->slot);
    l->part    = mem_zeroed((size_t)cfg->n_slot * (size_t)l->parts, sizeof *l->part);
    return l->thread && l->scratch && l->skip && l->slot && l->part ? 0 : err_sys("memory for the loader");
}

int loader_create(Loader **out, const LoaderConfig *cfg, const Source *src)
{
    check_config(cfg);
    TRY(check_first(cfg->first_sample));
    Loader *l    = mem_zeroed(1, sizeof *l);
    int     cpus = hostmem_cpus();
    if (!l) return err_sys("memory for the loader");
    l->cfg         = *cfg;
    l->cfg.world   = MAX(cfg->world, 1);
    l->cfg.slots   = NULL;
    l->cfg.skip    = NULL;
    l->src         = src;
    l->parts       = src->is_work && !cfg->inline_fill ? (int)MIN(cfg->fields.B, MOST_PARTS) : 1;
    l->n_thread    = choose_threads(cfg, l->parts, cpus);
    l->most_thread = most_threads(cfg, l->n_thread, l->parts, cpus);
    if (take_memory(l, cfg) < 0) {
        loader_destroy(l);
        return -1;
    }
    for (int i = 0; i < cfg->n_skip; i++) l->skip[i] = cfg->skip[i];
    for (int i = 0; i < cfg->n_slot; i++) l->slot[i] = cfg->slots[i];
    qsort(l->skip, (size_t)cfg->n_skip, sizeof *l->skip, compare_ranges);
    if (start(l) < 0) {
        loader_destroy(l);
        return -1;
    }
    *out = l;
    return 0;
}

int loader_restart(Loader *l, int64_t first_sample)
{
    TRY(check_first(first_sample));
    CHECK(l->n_taken - l->n_released == (l->failed ? 1 : 0), "a slot is held across a restart");
    stop(l);
    l->cfg.first_sample = first_sample;
    return start(l);
}

void loader_destroy(Loader *l)
{
    if (!l) return;
    stop(l);
    for (int i = 0; l->scratch && i < MAX(l->most_thread, 1); i++)
        source_end_scratch(l->src, l->scratch + (size_t)i * l->src->scratch_bytes);
    free(l->part);
    free(l->slot);
    free(l->skip);
    free(l->scratch);
    free(l->thread);
    free(l);
}
