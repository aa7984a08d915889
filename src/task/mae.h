/* Task mae: masked autoencoding of images and clips, which needs no labels.
 *
 * 1. A sample is bytes of pixels and the patches that are hidden (data/image_mask.h).
 * 2. Slot 0 is the mean squared difference of hidden patches, which are normalised one by one (net/mae.h).
 *    The evaluation's masks are the same each time.
 * 3. Task image goes on with the weights of the trunk: its key `init` names the run (task/weights.h). */
#ifndef TASK_MAE_H
#define TASK_MAE_H

#include "net/mae.h"
#include "task/job.h"

extern const Task task_mae;

/* Job.own. */
typedef struct {
    Mae      mae;
    MaeBatch batch;
    Tensor  *guesses; /* f32[B*hidden, numbers]: what a sample reads; NULL: not among the parts */
    int      guess;   /* number of the program; -1: none */
} MaeJob;

static inline MaeJob *mae_of(const Job *j) { return (MaeJob *)j->own; }

/* ---- mae_sample.c ---- */

/* A validation sample, by the seed: the loss of its patches. The picture has the sample, what the net sees of
 * it, and the same with the net's guesses. */
int mae_sample(Job *j, const TaskSample *opt, FILE *out);

#endif
