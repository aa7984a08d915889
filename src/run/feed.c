#include "run/feed.h"

#include "base/err.h"
#include "run/step.h"

#include <string.h>

int feed_init(Feed *f, Job *j, int depth, int mark0)
{
    memset(f, 0, sizeof *f);
    f->job    = j;
    f->mark0  = mark0;
    f->n_slot = MIN(MAX(depth, 1) + FEED_HELD, FEED_SLOTS);
    for (int i = 0; i < f->n_slot; i++) {
        f->slot[i] = j->dev->vt->host_alloc(j->dev, j->fields.block_bytes);
        if (!f->slot[i]) return -1;
    }
    return 0;
}

void feed_deinit(Feed *f)
{
    if (!f->job) return;
    Dev *dev = f->job->dev;
    loader_destroy(f->loader);
    for (int i = 0; i < f->n_slot; i++) {
        if (f->slot[i]) dev->vt->host_free(dev, f->slot[i]);
    }
    memset(f, 0, sizeof *f);
}

int feed_attach(Feed *f, const Source *src, const FeedStart *from)
{
    const Job    *j = f->job;
    const Recipe *r = &j->recipe;
    loader_destroy(f->loader);
    f->loader        = NULL;
    f->n_held        = 0;
    LoaderConfig cfg = { .fields       = j->fields,
                         .threads      = (int)r->data.threads,
                         .inline_fill  = !r->opt.prefetch,
                         .rank         = comm_rank(j->comm),
                         .world        = comm_world(j->comm),
                         .first_sample = from->first_sample,
                         .skip         = from->skip,
                         .n_skip       = from->n_skip,
                         .slots        = f->slot,
                         .n_slot       = f->n_slot };
    return loader_create(&f->loader, &cfg, src);
}

static int release_oldest(Feed *f)
{
    Dev *dev = f->job->dev;
    TRY(dev->vt->mark_wait(dev, f->mark0 + f->held[0]));
    loader_release(f->loader, f->held[0]);
    memmove(f->held, f->held + 1, sizeof *f->held * (size_t)--f->n_held);
    return 0;
}

/* A host that is ahead of the device would read beside its work all the same. */
static int rest_device(Feed *f)
{
    Dev *dev = f->job->dev;
    TRY(dev->vt->sync(dev));
    TRY(feed_drain(f));
    return 1;
}

int feed_make_room(Feed *f)
{
    if (!f->job->recipe.opt.prefetch) return rest_device(f);
    if (f->n_held < FEED_HELD) return 0;
    TRY(release_oldest(f));
    return 1;
}

int feed_drain(Feed *f)
{
    while (f->n_held > 0) TRY(release_oldest(f));
    return 0;
}

int feed_take(Feed *f, LoaderBatch *out) { return loader_next(f->loader, out); }

int feed_upload(Feed *f, const LoaderBatch *batch)
{
    Job          *j    = f->job;
    Dev          *dev  = j->dev;
    size_t        n    = j->fields.block_bytes;
    int           mark = f->mark0 + batch->slot;
    const Tensor *to   = j->landing ? j->landing : j->block;
    Lane          lane = j->landing ? LANE_H2D : LANE_COMPUTE;
    if (j->landing) TRY(dev->vt->lane_wait_mark(dev, lane, MARK_UNPACK)); /* of the batch before */
    TRY(dev->vt->upload(dev, lane, to->data, batch->host, n));
    TRY(dev->vt->mark(dev, lane, mark));
    f->held[f->n_held++] = batch->slot;
    if (!j->landing) return 0;
    TRY(dev->vt->lane_wait_mark(dev, LANE_COMPUTE, mark));
    TRY(prog_run(j->prog[j->unpack], dev));
    return dev->vt->mark(dev, LANE_COMPUTE, MARK_UNPACK);
}
