/* Feed: batches from a loader to the device.
 *
 * 1. Pinned slots belong to the feed; the loader's threads fill them. A slot goes back to the loader once its
 *    upload has passed. At most FEED_HELD uploads are in flight.
 * 2. On a GPU the copy lane writes a batch into one landing buffer, and the unpack program moves it to where
 *    programs read it. The next copy waits for that unpack and runs beside the micro-step. There is one
 *    landing buffer because captured lists have one address. */
#ifndef RUN_FEED_H
#define RUN_FEED_H

#include "data/loader.h"
#include "task/job.h"

enum { FEED_HELD = 4, FEED_SLOTS = RECIPE_MOST_DEPTH + FEED_HELD };

typedef struct {
    Job    *job;
    Loader *loader;
    void   *slot[FEED_SLOTS];
    int     n_slot;
    int     mark0;           /* its marks: one per slot from here on */
    int     held[FEED_HELD]; /* slots whose upload may still be in flight, oldest first */
    int     n_held;
} Feed;

typedef struct {
    int64_t            first_sample;
    const SampleRange *skip; /* NULL: none */
    int                n_skip;
} FeedStart;

/* Allocates depth slots beside those in flight. mark0: FEED_SLOTS marks are the feed's. Negative after
 * err_set(). */
int  feed_init(Feed *f, Job *j, int depth, int mark0);
void feed_deinit(Feed *f); /* the device must be at rest */

/* Starts (or restarts) reading. The source is borrowed. */
int feed_attach(Feed *f, const Source *src, const FeedStart *from);

/* Gives back the oldest slot if FEED_HELD uploads are in flight; waits for it. With opt.prefetch off waits
 * for all that was queued: nothing is read beside the device's work. 1: the host waited. */
int feed_make_room(Feed *f);
/* Takes the next batch from the loader. Negative after err_set() when there is none. */
int feed_take(Feed *f, LoaderBatch *out);
/* Queues its upload; programs queued afterwards read it. */
int feed_upload(Feed *f, const LoaderBatch *batch);
/* Waits for all uploads and gives their slots back. */
int feed_drain(Feed *f);

#endif
