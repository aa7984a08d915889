/* Image set: labelled images or clips under one path, by number.
 *
 * 1. What the path may be:
 *        a folder of class folders (ImageFolder); nested folders count to their class
 *        a folder of images without classes, or one image; these have no labels
 *        an idx file of images, with its labels beside it
 *        a WebDataset tar file, or a folder of them
 *        an album, or a folder of them
 * 2. Classes of folders are numbered in the order of their names (bytes compared). Samples are in the
 *    order of class and path. So a number means the same image on every machine.
 * 3. An open set does not change, but for image_set_match(); any number of threads may read it.
 * 4. A label of -1 means: none. */
#ifndef DATA_IMAGE_SET_H
#define DATA_IMAGE_SET_H

#include "conf/class_names.h"
#include "data/image_scratch.h"
#include "file/album.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ImageSet ImageSet;

/* Warns of what is left out. Negative after err_user()/err_sys(). quiet: the same without warnings, for a set
 * that is opened again. */
int  image_set_open(ImageSet **out, const char *path);
int  image_set_open_quiet(ImageSet **out, const char *path);
void image_set_close(ImageSet *s); /* NULL is allowed */

int64_t     image_set_len(const ImageSet *s);
int         image_set_classes(const ImageSet *s); /* 0: no labels at all */
const char *image_set_class_name(const ImageSet *s, int c);
const char *image_set_kind(const ImageSet *s); /* "class folders", "idx", "tar", "albums" */
int         image_set_label(const ImageSet *s, int64_t i);

typedef enum {
    MATCH_ALL,     /* every class of the set is in the list */
    MATCH_KEPT,    /* the list is empty, or the set's names are only numbers */
    MATCH_NUMBERS, /* not every one, but the set has as many classes */
    MATCH_SOME,    /* not every one, and the set has fewer or more */
} SetMatch;

/* Compares the names of the classes with a list. *stranger: the first that is not in it, or NULL. */
SetMatch image_set_compare(const ImageSet *s, ClassNames *list, const char **stranger);

/* The same; then numbers the classes as the list does, so that a set which lacks some means the same by a
 * number. Where MATCH_KEPT or MATCH_NUMBERS is the answer, nothing changes. Where MATCH_SOME is, samples of
 * other classes lose their label. Before threads read the set. */
SetMatch image_set_match(ImageSet *s, ClassNames *list, const char **stranger);

/* Adds the names of the classes to a list. */
void image_set_names(const ImageSet *s, ClassNames *out);

/* Where sample i is, for messages, into buf; returns buf. */
const char *image_set_name(const ImageSet *s, int64_t i, char *buf, size_t n);

int64_t image_set_clips(const ImageSet *s, int least); /* samples that are clips of so many frames or more */

/* Bytes of the largest sample; 0 for folders, whose files are looked at only when they are read. */
int64_t image_set_largest(const ImageSet *s);

/* What image_set_read() found: an image, or a clip of equal frames. */
typedef struct {
    ImageBytes image;  /* of an image */
    int        frames; /* 0: an image */
    int        w, h;   /* of a clip's frames */
    AlbumEntry entry;  /* of a clip */
} ImageRecord;

/* Reads the bytes of sample i into the scratch (or points into memory the set holds). 0; 1 when the sample
 * cannot be read, with s->why; negative after err_sys(). */
int image_set_read(const ImageSet *set, int64_t i, ImageScratch *s, ImageRecord *out);

/* The bytes of frame f of the clip that was read last. Returns as above. */
int image_set_frame(const ImageRecord *r, ImageScratch *s, int f, ImageBytes *out);

#ifdef __cplusplus
}
#endif
#endif
