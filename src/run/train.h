/* Train: the loop. A run directory, a device, steps, evaluations, checkpoints, and a clean end whatever happens.
 *
 * 1. The loop queues step s+1 before it looks at the result of step s; decisions that must not be late (skips) are made on
 *    the device (op.h, CLIP).
 * 2. Everything a later run needs to continue bit for bit is in a checkpoint: weights, moments, step state, sample cursor.
 * 3. A failed save never stops training; a failed step does, after the last good checkpoint was left in place.
 * 4. Under a launcher (comm/place.h) this is one rank of several. Rank 0 alone writes files and speaks; every rank reads
 *    the checkpoint. What the ranks decide they decide alike: from results that are the same bits everywhere, or from what
 *    they ask each other after every step. */
#ifndef RUN_TRAIN_H
#define RUN_TRAIN_H

#include "conf/recipe.h"

typedef struct {
    int    fresh;   /* do not resume: an existing run is moved aside */
    double begin_s; /* clock_now_s() at program start */
} TrainOptions;

int train_run(const Recipe *r, const TrainOptions *opt);

#endif
