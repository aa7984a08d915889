/* Loader: threads that keep micro-batches ready in the caller's host buffers.
 *
 * 1. Micro-batch k of a loader holds the used samples first_sample + (k*world + rank)*B and the B-1 after it.
 *    The loader fills it into slot k mod n_slot and hands batches out in the order of k. Contents depend on
 *    the configuration alone, never on the number of threads or on timing.
 * 2. The cursor of a run is the number of samples it has used, over all ranks. A loader created with the
 *    cursor as first_sample continues exactly there, also with another B or world.
 * 3. One batch is one contiguous piece of host memory (data/fields.h), so one copy brings it to the device.
 *    The slots belong to the caller, who keeps them until loader_destroy().
 * 4. A failure inside a thread ends the supply. Batches before the failed one are still handed out; then
 *    loader_next() returns the thread's message, now and on every later call until loader_restart(). Such a
 *    failure is reported with err_set(), also for wrong data: a run that is under way has failed (exit code
 *    1), no start was refused (exit code 2).
 * 5. Behind the last sample of a validation source come empty rows.
 * 6. Without a number of threads the loader looks now and then how long the consumer waited. If that is more
 *    than a twentieth of the time, one more thread starts, up to one a core and one a slot. Where samples are
 *    work (Source.is_work), several threads share a slot, and threads come faster.
 * 7. Everything but the filling happens on one thread, the consumer's. */
#ifndef DATA_LOADER_H
#define DATA_LOADER_H

#include "data/fields.h"
#include "data/order.h"
#include "data/source.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct Loader Loader;

typedef struct {
    Fields             fields;  /* the layout of a slot; fields.B samples in a micro-batch */
    int                threads; /* 0: 1 to 4, by the machine's cores, and more while the consumer waits (6) */
    int                inline_fill;  /* 1: no threads, loader_next() fills (opt.prefetch off) */
    int                rank, world;  /* world 0 is taken as 1 */
    int64_t            first_sample; /* used samples before this loader's first one */
    const SampleRange *skip;         /* raw samples to pass over, in any order; copied */
    int                n_skip;
    void *const       *slots; /* n_slot buffers of fields.block_bytes, 64-byte aligned; the array is copied */
    int                n_slot; /* batches kept ready, plus those the consumer holds at a time */
} LoaderConfig;

typedef struct {
    int     slot;                   /* for loader_release() */
    void   *host;                   /* the slot's buffer */
    int64_t sample0;                /* used number of the first row's sample; row b holds sample0 + b */
    int64_t n_target[SOURCE_SLOTS]; /* rows of each loss that have a target, and could be used */
} LoaderBatch;

typedef struct {
    double  waited_s;  /* the consumer, in loader_next() */
    double  fill_s;    /* the threads, for the batches taken */
    double  elapsed_s; /* since the first loader_next(), without loader_rest() */
    int64_t batches;   /* taken */
    /* The same up to the last loader_next(), without the first batches, as many as there are slots; 0: not so
     * many yet. What the consumer does after it took its last batch is none of the loader's business. */
    double steady_fill_s, steady_s;
    int    n_thread; /* 0: inline */
} LoaderStats;

/* Starts the threads. Borrows src until loader_destroy(). Negative after err_set(). */
int loader_create(Loader **out, const LoaderConfig *cfg, const Source *src);

/* Joins the threads, whatever they are doing, and frees the loader; NULL is allowed. */
void loader_destroy(Loader *l);

/* Waits for the next batch in order and hands it out until loader_release(). Holding every slot at this
 * point is a bug. Negative after err_set(). */
int loader_next(Loader *l, LoaderBatch *out);

/* Gives a slot back to be filled again; in the order in which they were handed out. */
void loader_release(Loader *l, int slot);

/* Begins anew at another cursor with the same configuration, for example for the next evaluation. No slot may
 * be held. Negative after err_set(): then only loader_destroy() may follow. */
int loader_restart(Loader *l, int64_t first_sample);

void loader_stats(Loader *l, LoaderStats *out); /* since creation or restart */

/* The consumer did something else for so long, for example it evaluated: no time in which it took batches. */
void loader_rest(Loader *l, double seconds);

/* How many times faster the threads fill than the consumer takes; 0 while nothing was taken. Below 1 the
 * loader is the bottleneck. The number assumes that each thread has a core. The first batches do not count as
 * soon as others were taken: they wait for the start, or were ready before it. */
double loader_headroom(const LoaderStats *s);

#ifdef __cplusplus
}
#endif
#endif
