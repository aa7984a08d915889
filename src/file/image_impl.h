/* What image.c shares with the decoders of each format. */
#ifndef FILE_IMAGE_IMPL_H
#define FILE_IMAGE_IMPL_H

#include "file/image.h"

#include <setjmp.h>

typedef struct ImageJpeg ImageJpeg;

struct ImageDecoder {
    int64_t    max_pixels;
    ImageBytes bytes;
    ImageInfo  info;
    int        begun;
    ImageJpeg *jpeg;
    Resize     resize;
    ImageBuf   rows; /* a few decoded rows, or a whole interlaced PNG */
    ImageTimes times;
    char       why[IMAGE_WHY_BYTES];
};

/* Records why an image cannot be used. Always returns 1. */
int image_bad(ImageDecoder *d, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* 1 after image_bad() when w x h is nothing to decode: empty, or more than the limit. */
int image_check_size(ImageDecoder *d, int64_t w, int64_t h);

int  image_jpeg_create(ImageJpeg **out);
void image_jpeg_destroy(ImageJpeg *j);
int  image_jpeg_begin(ImageDecoder *d);
int  image_jpeg_decode(ImageDecoder *d, const ResizeBox *box, const ImageDecodeOptions *opt, int out_w,
                       int out_h, uint8_t *out);

int image_png_begin(ImageDecoder *d);
/* d->resize is begun. */
int image_png_decode(ImageDecoder *d);

#endif
