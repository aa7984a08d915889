/* Task image: vision transformers that name the class of an image or a clip.
 *
 * 1. A sample is bytes of pixels and a label (data/image_source.h). Normalisation and mixing happen on the
 *    device.
 * 2. Slot 0 is the cross-entropy. An evaluation counts hits in slots 1 and 2: the target was first, or among
 *    the first five.
 * 3. With image.ema a second net, "ema.", holds a running mean of the weights. Every update brings that net
 *    up to date from means in f32; evaluation and prediction read it. */
#ifndef TASK_IMAGE_H
#define TASK_IMAGE_H

#include "net/vit.h"
#include "task/job.h"

extern const Task task_image;

/* Ranges of the mean of weights: of what products read, and of what norms read. */
enum { IMAGE_MEANS = REGION_COUNT - REGION_FROZEN_COPY };

/* Job.own. */
typedef struct {
    Vit      vit, ema; /* ema: only with image.ema */
    VitBatch batch;
    Tensor  *mean[IMAGE_MEANS]; /* f32, laid out as the weights of ema; NULL: empty, or nothing trains */
    Tensor  *logits;            /* f32[B, classes]: what `predict` reads; NULL: not among the parts */
    int      predict;           /* number of the program; -1: none */
} Image;

static inline Image *image_of(const Job *j) { return (Image *)j->own; }

/* Host floats to a constant in the constant's dtype, into which they are converted in place. */
int image_upload_floats(Job *j, const Tensor *t, float *values);
/* The constants of a net: positions, and the rows of class tokens and registers. */
int image_upload_constants(Job *j, const Vit *v);

/* ---- image_predict.c ---- */

int image_predict(Job *j, const TaskPredict *opt, FILE *out);
/* Names a validation image, by the seed, with its classes; the picture is the image. */
int image_sample(Job *j, const TaskSample *opt, FILE *out);

/* ---- image_export.c: ViT models of the Hugging Face library ---- */

int image_export(const Recipe *r, const TaskExport *opt);

#endif
