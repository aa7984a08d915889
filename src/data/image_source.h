/* Image source: labelled images or clips as the samples of a run.
 *
 * 1. Sample g of training is position g of an endless order: every epoch is a permutation of its own. What
 *    is done to the pixels depends on (seed, epoch, sample) alone.
 * 2. Partners of mixed samples are neighbours: position g mixes within the aligned group of data.mix_group
 *    positions that g belongs to. Field IMAGE_PARTNER is the distance to the partner.
 * 3. A damaged sample has black pixels and the label -1. A share of them above data.skip_limit ends the run.
 * 4. Without data.train the pixels are noise, and labels are drawn.
 * 5. With image.classes 0 a task asks for no labels, and the data need none: the label of every sample that
 *    is not damaged is 0. */
#ifndef DATA_IMAGE_SOURCE_H
#define DATA_IMAGE_SOURCE_H

#include "conf/recipe.h"
#include "data/fields.h"
#include "data/image_fill.h"
#include "data/source.h"

/* Fields of a sample; those behind IMAGE_LABEL only where samples are mixed. */
enum {
    IMAGE_PIXELS,  /* u8[frames, size, size, 3], as u8[frames * size, size, 3] */
    IMAGE_LABEL,   /* i32 */
    IMAGE_LABEL2,  /* i32, of the partner */
    IMAGE_SHARE,   /* f32, weight of the own label */
    IMAGE_PARTNER, /* i32 */
    IMAGE_BLEND,   /* f32, weight of the own pixels outside the box */
    IMAGE_BOX,     /* i32[4], first and end row, first and end column */
    IMAGE_FIELDS
};

/* Writes the rows of the fields, at most IMAGE_FIELDS; returns how many. */
int image_source_fields(const Recipe *r, FieldRow *row);

int image_source_open_train(Source **out, const Recipe *r);
int image_source_open_val(Source **out, const Recipe *r, int64_t most, const Source *train);
int image_source_has_val(const Recipe *r);
int image_source_is_noise(const Recipe *r);

/* Adds the names of the classes: the recipe's, else those of the training data. train: their source, if it is
 * open. None where both are unknown. Negative after recipe_blame(). */
int image_source_names(const Source *train, const Recipe *r, ClassNames *out);

/* What is done to a sample: of training, or of validation and prediction. */
ImageOptions image_source_options(const Recipe *r, int training);

/* The label of sample g; -1: it has none. For tests. */
int image_source_label(const Source *s, int64_t g);

#endif
