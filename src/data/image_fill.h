/* Image fill: sample number to pixels and label, in one call.
 *
 * 1. The result depends on set, sample, epoch and options alone. All frames of a clip share one set of
 *    parameters.
 * 2. A sample that cannot be used has black pixels and the label -1, which counts as no target; the call
 *    returns 1, and the scratch says why. */
#ifndef DATA_IMAGE_FILL_H
#define DATA_IMAGE_FILL_H

#include "data/image_augment.h"
#include "data/image_set.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes of one sample: frames (1 for an image) x size x size x channels, uint8. */
int64_t image_sample_bytes(const ImageOptions *o);

/* Gives a scratch the memory it will need, as far as the set knows: bytes of the largest sample, and
 * pixels for the ops. Where this is not called, or for folders, memory grows with the first samples.
 * Negative after err_sys(). */
int image_scratch_plan(ImageScratch *s, const ImageSet *set, const ImageOptions *o);

/* Reads, decodes, crops and augments. 0, 1 when the sample was skipped, negative after err_sys(). out needs
 * image_sample_bytes(); images may be filled from sets of images only, clips from sets of clips only. */
int image_sample_fill(const ImageSet *set, int64_t sample, int64_t epoch, const ImageOptions *o,
                      ImageScratch *s, uint8_t *out, int32_t *label);

#ifdef __cplusplus
}
#endif
#endif
