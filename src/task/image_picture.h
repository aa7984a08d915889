/* Image picture: samples and a net's answers as one SVG file, for people. */
#ifndef TASK_IMAGE_PICTURE_H
#define TASK_IMAGE_PICTURE_H

#include <stddef.h>
#include <stdint.h>

enum { IMAGE_ANSWERS = 3 };

/* One sample: pixels, what it is (NULL: not known), and the most likely classes with their probabilities. */
typedef struct {
    const uint8_t *rgb; /* size x size, packed */
    int            size, right;
    const char    *label, *name[IMAGE_ANSWERS];
    double         share[IMAGE_ANSWERS];
} ImageAnswer;

/* The SVG's body as it grows; all zero: empty. */
typedef struct {
    char  *text;
    size_t n, cap;
    int    n_cell;
} ImagePicture;

int  image_picture_add(ImagePicture *p, const ImageAnswer *a); /* negative after err_sys() */
int  image_picture_write(const ImagePicture *p, const char *path);
void image_picture_deinit(ImagePicture *p);

#endif
