/* Image mask: images or clips of which a net sees some patches: the samples of masked autoencoding.
 *
 * 1. The patches that sample g hides are drawn from Philox by (seed, g) alone. A clip hides the same places
 *    in every frame (tubes).
 * 2. Every sample shows as many patches as the others (image.seen_patches), so all shapes are fixed.
 * 3. A sample is that of image_source.h without labels, and the fields below. Patches are counted as the rows
 *    of PATCHES are: by time, row and column. In a batch (SourceVt.place) MASK_SEEN and MASK_HIDDEN count
 *    rows of all patches, MASK_SLOT rows of the trunk.
 * 4. A damaged sample and an empty row have no targets: their MASK_HIDDEN is -1. */
#ifndef DATA_IMAGE_MASK_H
#define DATA_IMAGE_MASK_H

#include "data/image_source.h"

enum {
    MASK_SEEN = IMAGE_LABEL + 1, /* i32[seen]: patches that the net sees, in order */
    MASK_PLACE,                  /* i32[first + seen]: rows of their positions, and those of tokens before */
    MASK_HIDDEN,                 /* i32[hidden]: the other patches, in order */
    MASK_SLOT,                   /* i32[all]: row of the trunk that has read a patch; -1: hidden */
    MASK_HOLE,                   /* i32[all]: 0 for a hidden patch, else -1 */
    MASK_FIELDS
};

/* Patches of a sample. */
typedef struct {
    int64_t times, places; /* tokens along time; patches of each */
    int64_t seen, hidden;
    int64_t first; /* tokens of the trunk before the patches */
    int64_t read;  /* all tokens of the trunk, registers included */
} ImageMask;

ImageMask image_mask_of(const Recipe *r);

/* Writes the rows of the fields, MASK_FIELDS of them; returns how many. */
int image_mask_fields(const Recipe *r, FieldRow *row);

/* The fields of the mask of sample g; field[] as SourceVt.fill has it. */
void image_mask_fill(const ImageMask *m, uint64_t seed, int64_t g, void *const *field);

int image_mask_open_train(Source **out, const Recipe *r);
int image_mask_open_val(Source **out, const Recipe *r, int64_t most, const Source *train);

#endif
