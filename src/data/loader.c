/* The loader's ring and threads. See loader.h for the contract.
 *
 * 1. One mutex guards everything that changes in a Loader. A slot's buffer belongs to the thread that is filling it, then
 *    to the consumer, then to nobody; the states below say whose it is.
 * 2. Tickets are claimed in order and n_taken <= next_fill <= n_taken + depth, so a slot's state is that of exactly one
 *    ticket at any time.
 * 3. Threads sleep on `work`, the consumer on `ready`; nobody holds the mutex while filling. */
#include "data/loader.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/thread.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEADER_BYTES = 64, MAX_AUTO_THREADS = 4 };

typedef enum { SLOT_FREE, SLOT_FILLING, SLOT_READY, SLOT_HELD } SlotState;

typedef struct {
    SlotState state;
    void     *host;
    int64_t   sample0, n_valid;
} LoaderSlot;

struct Loader {
    LoaderConfig  cfg; /* slots and skip are NULL here: the copies are below */
    LoaderLayout  layout;
    const Source *src;
    Order         order;
    int64_t       n_eval; /* windows of an evaluation */
    SampleRange  *skip;
    LoaderSlot   *slot;
    pthread_t    *thread;
    int           n_thread;
    int32_t      *scratch; /* inline filling: T+1 ids */

    pthread_mutex_t mutex;
    pthread_cond_t  work, ready;
    int64_t         next_fill, n_taken; /* tickets */
    int             n_filling;
    int             stop, paused;
    int64_t         err_ticket; /* -1: none */
    ErrKind         err_kind;
    char            err_text[1024];
    LoaderStats     stats;
    double          start_s;
};

LoaderLayout loader_layout(int64_t B, int64_t T, int documents)
{
    size_t       plane = (size_t)(B * T) * sizeof(int32_t);
    LoaderLayout y     = { .sample0 = 0, .tok = HEADER_BYTES, .target = HEADER_BYTES + plane };
    y.doc              = documents ? y.target + plane : 0;
    y.total_bytes      = (y.target + (documents ? 2 : 1) * plane + 63) / 64 * 64;
    return y;
}

size_t loader_batch_bytes(int64_t B, int64_t T, int documents) { return loader_layout(B, T, documents).total_bytes; }

/* ---- Filling: pure functions of the configuration and the ticket -------------------------------------------------- */

/* Where row `used` begins, and how many of its T targets exist. */
static int64_t row_window(const Loader *l, int64_t used, int64_t *start)
{
    int64_t T = l->cfg.T;
    if (!l->cfg.eval) {
        *start = order_start(&l->order, order_skip(l->skip, l->cfg.n_skip, used));
        return T;
    }
    *start = used * T;
    return used < l->n_eval ? MIN(T, source_len(l->src) - 1 - *start) : 0;
}

static void row_documents(const Loader *l, const int32_t *tok, int32_t *doc)
{
    int32_t first = 0;
    for (int64_t t = 0; t < l->cfg.T; t++) {
        doc[t] = first;
        if (tok[t] == l->cfg.document_token) first = (int32_t)(t + 1);
    }
}

/* Fills the slot with its ticket's batch; scratch holds T+1 ids. */
static int fill_slot(const Loader *l, LoaderSlot *slot, int64_t ticket, int32_t *scratch)
{
    const LoaderConfig *c    = &l->cfg;
    char               *base = slot->host;
    int32_t            *tok = (int32_t *)(base + l->layout.tok), *target = (int32_t *)(base + l->layout.target);
    int32_t            *doc = (int32_t *)(base + l->layout.doc);
    slot->sample0           = c->first_sample + (ticket * c->world + c->rank) * c->B;
    slot->n_valid           = 0;
    memset(base, 0, HEADER_BYTES);
    memcpy(base + l->layout.sample0, &slot->sample0, sizeof slot->sample0);
    for (int64_t b = 0; b < c->B; b++, tok += c->T, target += c->T, doc += c->T) {
        int64_t start, n = row_window(l, slot->sample0 + b, &start);
        if (n > 0) TRY(source_read(l->src, start, n + 1, scratch));
        memcpy(tok, scratch, sizeof *tok * (size_t)n);
        memcpy(target, scratch + 1, sizeof *target * (size_t)n);
        for (int64_t t = n; t < c->T; t++) {
            tok[t]    = 0;
            target[t] = -1;
        }
        if (c->documents) row_documents(l, tok, doc);
        slot->n_valid += n;
    }
    return 0;
}

/* ---- The ring ------------------------------------------------------------------------------------------------------ */

static LoaderSlot *slot_of(const Loader *l, int64_t ticket) { return &l->slot[ticket % l->cfg.n_slot]; }

static int can_fill(const Loader *l)
{
    return !l->paused && l->err_ticket < 0 && l->next_fill < l->n_taken + l->cfg.depth &&
           slot_of(l, l->next_fill)->state == SLOT_FREE;
}

/* Keeps the message of the earliest batch that failed: with several threads the later one may come first. */
static void keep_error(Loader *l, int64_t ticket)
{
    if (l->err_ticket >= 0 && l->err_ticket < ticket) return;
    l->err_ticket = ticket;
    l->err_kind   = err_kind();
    snprintf(l->err_text, sizeof l->err_text, "%s", err_get());
}

/* Claims the next ticket and fills it. Called and returns with the mutex held. */
static void fill_next(Loader *l, int32_t *scratch)
{
    int64_t     ticket = l->next_fill++;
    LoaderSlot *slot   = slot_of(l, ticket);
    slot->state        = SLOT_FILLING;
    l->n_filling++;
    pthread_mutex_unlock(&l->mutex);

    double begin_s = clock_s();
    int    rc      = fill_slot(l, slot, ticket, scratch);
    double took_s  = clock_s() - begin_s;

    pthread_mutex_lock(&l->mutex);
    l->n_filling--;
    slot->state = SLOT_READY;
    l->stats.fill_s += took_s;
    l->stats.n_filled++;
    if (rc < 0) {
        slot->state = SLOT_FREE;
        keep_error(l, ticket);
        err_clear();
    }
    pthread_cond_signal(&l->ready);
}

static void *loader_thread(void *arg)
{
    Loader  *l       = arg;
    int32_t *scratch = malloc(sizeof *scratch * (size_t)(l->cfg.T + 1));
    CHECK(scratch, "out of memory");
    pthread_mutex_lock(&l->mutex);
    while (!l->stop) {
        if (can_fill(l)) {
            fill_next(l, scratch);
        } else {
            pthread_cond_wait(&l->work, &l->mutex);
        }
    }
    pthread_mutex_unlock(&l->mutex);
    free(scratch);
    return NULL;
}

int loader_next(Loader *l, LoaderBatch *out)
{
    double begin_s = clock_s();
    pthread_mutex_lock(&l->mutex);
    int64_t     ticket = l->n_taken;
    LoaderSlot *slot   = slot_of(l, ticket);
    CHECK(slot->state != SLOT_HELD, "batch %lld needs slot %d, which was not released", (long long)ticket,
          (int)(slot - l->slot));
    if (l->n_thread == 0 && l->err_ticket < 0) fill_next(l, l->scratch);
    while (l->err_ticket != ticket && slot->state != SLOT_READY) pthread_cond_wait(&l->ready, &l->mutex);
    l->stats.waited_s += clock_s() - begin_s;
    if (l->err_ticket == ticket) {
        int rc = l->err_kind == ERR_USER ? err_user("%s", l->err_text) : err_set("%s", l->err_text);
        pthread_mutex_unlock(&l->mutex);
        return rc;
    }
    slot->state = SLOT_HELD;
    l->n_taken++;
    l->stats.n_taken++;
    pthread_cond_signal(&l->work); /* depth counts from n_taken */
    pthread_mutex_unlock(&l->mutex);

    char *base = slot->host;
    *out       = (LoaderBatch){ .slot    = (int)(slot - l->slot),
                                .host    = base,
                                .sample0 = slot->sample0,
                                .n_valid = slot->n_valid,
                                .tok     = (int32_t *)(base + l->layout.tok),
                                .target  = (int32_t *)(base + l->layout.target),
                                .doc     = l->cfg.documents ? (int32_t *)(base + l->layout.doc) : NULL };
    return 0;
}

void loader_release(Loader *l, int slot)
{
    CHECK(slot >= 0 && slot < l->cfg.n_slot, "slot %d of %d", slot, l->cfg.n_slot);
    pthread_mutex_lock(&l->mutex);
    CHECK(l->slot[slot].state == SLOT_HELD, "slot %d is not held", slot);
    l->slot[slot].state = SLOT_FREE;
    pthread_cond_signal(&l->work);
    pthread_mutex_unlock(&l->mutex);
}

void loader_restart(Loader *l, int64_t first_sample)
{
    CHECK(first_sample >= 0, "first sample %lld", (long long)first_sample);
    pthread_mutex_lock(&l->mutex);
    l->paused = 1;
    while (l->n_filling > 0) pthread_cond_wait(&l->ready, &l->mutex);
    for (int i = 0; i < l->cfg.n_slot; i++) {
        CHECK(l->slot[i].state != SLOT_HELD, "slot %d is held across a restart", i);
        l->slot[i].state = SLOT_FREE;
    }
    l->cfg.first_sample = first_sample;
    l->next_fill = l->n_taken = 0;
    l->err_ticket             = -1;
    l->stats                  = (LoaderStats){ .n_thread = l->n_thread };
    l->start_s                = clock_s();
    l->paused                 = 0;
    pthread_cond_broadcast(&l->work);
    pthread_mutex_unlock(&l->mutex);
}

/* ---- Creation ------------------------------------------------------------------------------------------------------ */

static int compare_ranges(const void *a, const void *b)
{
    int64_t x = ((const SampleRange *)a)->first, y = ((const SampleRange *)b)->first;
    return (x > y) - (x < y);
}

static void check_config(const LoaderConfig *c)
{
    CHECK(c->B > 0 && c->T > 0, "batch of %lld x %lld", (long long)c->B, (long long)c->T);
    CHECK(c->n_slot > 0 && c->slots, "no slots");
    CHECK(c->threads >= 0 && c->depth >= 0 && c->n_skip >= 0, "negative counts");
    CHECK(c->world >= 0 && c->rank >= 0 && c->rank < MAX(c->world, 1), "rank %d of %d", c->rank, c->world);
    CHECK(c->first_sample >= 0, "first sample %lld", (long long)c->first_sample);
    for (int i = 0; i < c->n_slot; i++) {
        CHECK((uintptr_t)c->slots[i] % 64 == 0 && c->slots[i], "slot %d is not aligned", i);
    }
    for (int i = 0; i < c->n_skip; i++) {
        CHECK(c->skip[i].first >= 0 && c->skip[i].count >= 0, "skip range %d is negative", i);
    }
}

/* A quarter of the cores: one thread fills some hundred million tokens a second, so more only hide slow disks. */
static int choose_threads(const LoaderConfig *c)
{
    if (c->inline_fill) return 0;
    int n = c->threads > 0 ? c->threads : MIN(MAX(thread_cores() / 4, 1), MAX_AUTO_THREADS);
    return MIN(n, c->n_slot);
}

static void *zeroed(size_t n, size_t size)
{
    void *p = calloc(MAX(n, 1), size);
    CHECK(p, "out of memory");
    return p;
}

static Loader *make_loader(const LoaderConfig *cfg, const Source *src)
{
    Loader *l       = zeroed(1, sizeof *l);
    l->cfg          = *cfg;
    l->cfg.world    = MAX(cfg->world, 1);
    l->cfg.depth    = cfg->depth > 0 ? MIN(cfg->depth, cfg->n_slot) : cfg->n_slot;
    l->cfg.slots    = NULL;
    l->cfg.skip     = NULL;
    l->src          = src;
    l->layout       = loader_layout(cfg->B, cfg->T, cfg->documents);
    l->n_eval       = order_eval_windows(source_len(src), cfg->T);
    l->skip         = zeroed((size_t)cfg->n_skip, sizeof *l->skip);
    l->slot         = zeroed((size_t)cfg->n_slot, sizeof *l->slot);
    l->scratch      = zeroed((size_t)cfg->T + 1, sizeof *l->scratch);
    l->err_ticket   = -1;
    l->start_s      = clock_s();
    order_init(&l->order, source_len(src), cfg->T, cfg->seed);
    if (cfg->n_skip > 0) memcpy(l->skip, cfg->skip, sizeof *l->skip * (size_t)cfg->n_skip);
    qsort(l->skip, (size_t)cfg->n_skip, sizeof *l->skip, compare_ranges);
    for (int i = 0; i < cfg->n_slot; i++) l->slot[i].host = cfg->slots[i];
    pthread_mutex_init(&l->mutex, NULL);
    pthread_cond_init(&l->work, NULL);
    pthread_cond_init(&l->ready, NULL);
    return l;
}

int loader_create(Loader **out, const LoaderConfig *cfg, const Source *src)
{
    check_config(cfg);
    int64_t need = cfg->eval ? 2 : cfg->T + 1;
    if (source_len(src) < need) {
        return err_user("%s: %lld tokens are too few: a sample of context %lld needs %lld", source_name(src),
                        (long long)source_len(src), (long long)cfg->T, (long long)need);
    }
    Loader *l      = make_loader(cfg, src);
    int     wanted = choose_threads(cfg);
    l->thread      = zeroed((size_t)wanted, sizeof *l->thread);
    for (; l->n_thread < wanted; l->n_thread++) {
        int rc = pthread_create(&l->thread[l->n_thread], NULL, loader_thread, l);
        if (rc != 0) {
            err_set("loader thread %d of %d: %s", l->n_thread + 1, wanted, strerror(rc));
            loader_destroy(l);
            return -1;
        }
    }
    l->stats.n_thread = wanted;
    *out              = l;
    return 0;
}

void loader_destroy(Loader *l)
{
    if (!l) return;
    pthread_mutex_lock(&l->mutex);
    l->stop = 1;
    pthread_cond_broadcast(&l->work);
    pthread_mutex_unlock(&l->mutex);
    for (int i = 0; i < l->n_thread; i++) pthread_join(l->thread[i], NULL);
    pthread_cond_destroy(&l->ready);
    pthread_cond_destroy(&l->work);
    pthread_mutex_destroy(&l->mutex);
    free(l->thread);
    free(l->scratch);
    free(l->slot);
    free(l->skip);
    free(l);
}

void loader_stats(Loader *l, LoaderStats *out)
{
    pthread_mutex_lock(&l->mutex);
    *out           = l->stats;
    out->elapsed_s = clock_s() - l->start_s;
    pthread_mutex_unlock(&l->mutex);
}

double loader_headroom(const LoaderStats *s)
{
    if (s->n_taken == 0 || s->n_filled == 0 || s->fill_s <= 0 || s->elapsed_s <= 0) return 0;
    double can_per_s  = MAX(s->n_thread, 1) * (double)s->n_filled / s->fill_s;
    double took_per_s = (double)s->n_taken / s->elapsed_s;
    return can_per_s / took_per_s;
}
