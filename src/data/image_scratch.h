/* Image scratch: the buffers that one loader thread needs to turn samples into pixels, and the thread's
 * counters.
 *
 * 1. A scratch belongs to one thread. Its buffers grow to the largest need and are kept.
 * 2. Read, decode, resize and augment are timed apart. A loader copies the counters of its threads
 *    between samples and adds them up.
 * 3. Skips are shared by all threads of a source: seen and skipped samples, and the first reasons in the
 *    log. */
#ifndef DATA_IMAGE_SCRATCH_H
#define DATA_IMAGE_SCRATCH_H

#include "file/image.h"

#include <pthread.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    double  read_s, decode_s, resize_s, augment_s;
    int64_t n_sample, n_skipped; /* samples asked for, and those of them that could not be used */
    int64_t n_image, read_bytes; /* a clip is several images */
} ImageCounters;

typedef struct {
    ImageDecoder *decoder;
    ImageBuf      bytes;  /* the encoded sample */
    ImageBuf      pixels; /* a copy for what cannot be done in place */
    ImageCounters count;
    char          why[IMAGE_WHY_BYTES]; /* why the last sample was skipped */
} ImageScratch;

/* max_pixels: as image_decoder_create(). Negative after err_sys(). */
int  image_scratch_init(ImageScratch *s, int64_t max_pixels);
void image_scratch_deinit(ImageScratch *s); /* a zeroed one is left alone */

void image_counters_add(ImageCounters *sum, const ImageCounters *more);

/* ---- Skips ----------------------------------------------------------------------------------------- */

enum { IMAGE_SKIP_FIRST = 64, IMAGE_SKIP_AFTER = 1000, IMAGE_SKIP_LOGGED = 10 };

typedef struct {
    pthread_mutex_t lock;
    int64_t         seen, skipped;
    int64_t         first; /* of so many samples one must be good; IMAGE_SKIP_FIRST unless there are fewer */
    uint64_t        said[IMAGE_SKIP_LOGGED]; /* hashes of the names that were logged */
    int             n_said;
    const char     *name, *of; /* of the set and which part it is, for messages; "": not said */
} ImageSkips;

int  image_skips_init(ImageSkips *k); /* negative after err_sys() */
void image_skips_deinit(ImageSkips *k);

/* Counts one sample. why NULL: the sample was good. The first IMAGE_SKIP_LOGGED names are logged, each
 * once. */
void image_skips_note(ImageSkips *k, const char *name, const char *why);

/* Negative after err_set() when more than `limit` of the samples were skipped, once IMAGE_SKIP_AFTER were
 * seen; or all of the first ones. */
int image_skips_check(ImageSkips *k, double limit);

#ifdef __cplusplus
}
#endif
#endif
