/* Image sheet: one picture that shows people what a net sees after augmentation; and how fast the images are
 * made. */
#ifndef DATA_IMAGE_SHEET_H
#define DATA_IMAGE_SHEET_H

#include "data/image_fill.h"

#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    const char       *path;  /* of the PNG file */
    FILE             *list;  /* for one line a sample: row, column, label, file; NULL: none */
    const ClassNames *names; /* of the classes; NULL or none: those of the set */
    int64_t           epoch;
    int               n; /* samples, spread evenly over the set */
} ImageSheet;

/* Draws samples as a PNG file. Images stand in rows of about 8; a clip is a row of its frames. Small images
 * are magnified, pixel by pixel. Mixing, which the device does in a run, is done here. Negative after
 * err_set()/err_user(). */
int image_sheet_write(const ImageSet *set, const ImageOptions *o, const ImageSheet *sheet);

/* Fills samples with so many threads for so many seconds; *count gets what all of them counted, *per_s
 * samples a second. Negative after err_set(). */
int image_sheet_measure(const ImageSet *set, const ImageOptions *o, int threads, double seconds,
                        ImageCounters *count, double *per_s);

#ifdef __cplusplus
}
#endif
#endif
