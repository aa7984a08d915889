/* Train: the loop. A run directory, a device, steps, evaluations, checkpoints, and a clean end whatever
 * happens.
 *
 * 1. The loop queues step s+1 before it looks at the result of step s; decisions that must not be late
 *    (skips) are made on the device (op.h, CLIP).
 * 2. Everything a later run needs to continue bit for bit is in a checkpoint: weights, moments, step state,
 *    sample cursor.
 * 3. A failed save never stops training; it is tried again after 1, 2, 4 ... steps, and at the end for ten
 *    minutes, unless another run has taken the directory. Nor does a disk that takes no metrics, or a
 *    directory that somebody removed. A failed step ends the run, after what was done before it was saved,
 *    unless the device itself failed.
 * 4. After max_skips bad steps in a row the run goes back to the last checkpoint, which was taken after a
 *    good step, and passes over the samples of the bad steps. If the run diverges again before it passes the
 *    bad steps, Brim goes back one checkpoint further. A damaged checkpoint is skipped in the same way. After
 *    the oldest one, and at least three attempts, the run fails.
 * 5. SIGINT, SIGTERM, SIGHUP and SIGUSR1 end the run after the step in hand and a save: 0, as for a run that
 *    is complete. While there is nothing to save, one rank alone leaves at its next micro-batch.
 * 6. A start that finds nothing to do (the steps, the time, the target are reached) changes no file; it only
 *    removes what a killed one left.
 * 7. What the log says on the terminal is also in log.txt of the run directory, over all starts; a start that
 *    ends with a wrong input leaves no trace there.
 * 8. Under a launcher (comm/place.h) this is one rank of several. Rank 0 alone writes files and speaks; every
 *    rank reads the checkpoint. What the ranks decide they decide alike: from results that are the same bits
 *    everywhere, or from what they ask each other after every step. */
#ifndef RUN_TRAIN_H
#define RUN_TRAIN_H

#include "run/watcher.h"
#include "task/task.h"

typedef struct {
    int            fresh;             /* do not resume: an existing run is moved aside */
    int            change_data;       /* a run that goes on may do so on other data */
    int            is_look;           /* steps alone: nothing is evaluated, and nothing saved */
    double         begin_s;           /* clock_now_s() at program start */
    const char    *command, *version; /* what was typed, and of the program: for the log. NULL: unknown */
    const Watcher *watcher;           /* NULL: nobody looks on */
} TrainOptions;

int train_run(const Task *task, const Recipe *r, const TrainOptions *opt);

#endif
