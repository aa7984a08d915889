/* Image: decodes images into pixels, only those pixels that the caller's box needs.
 *
 * 1. JPEG (libjpeg-turbo), PNG (libpng) and raw uint8. The result is 8-bit RGB as Pillow's convert("RGB")
 *    gives: alpha is dropped, palettes are looked up, CMYK is taken as Adobe's, EXIF orientation is left
 *    alone, of an animation the first frame counts. One difference: 16-bit grey keeps its high byte, where
 *    Pillow cuts at 255.
 * 2. Sizes are checked before anything is decoded: a file that claims more pixels than the limit is
 *    refused.
 * 3. A damaged image is not an error of the program: functions return 1, and image_why() says what is wrong.
 * 4. A decoder belongs to one thread. Its memory grows to the largest need and is kept; libjpeg and libpng
 *    take and return some of their own for each image.
 * 5. Pixels outside the box are not decoded, as far as the format allows. So damage outside the box is not
 *    seen. */
#ifndef FILE_IMAGE_H
#define FILE_IMAGE_H

#include "file/resize.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum { IMAGE_UNKNOWN, IMAGE_JPEG, IMAGE_PNG, IMAGE_RAW } ImageKind;

enum { IMAGE_SIDE_MOST = 65535, IMAGE_WHY_BYTES = 200 };

#define IMAGE_PIXELS_MOST INT64_C(178956970) /* where Pillow refuses an image as a decompression bomb */

/* Memory that only grows; data is freed by its owner. */
typedef struct {
    uint8_t *data;
    size_t   cap_bytes;
} ImageBuf;

int image_buf_need(ImageBuf *b, size_t size_bytes); /* negative after err_sys(); contents are lost */

/* Encoded bytes, or raw pixels of w*h*c bytes when raw_c is 1 or 3. Borrowed. */
typedef struct {
    const uint8_t *data;
    size_t         size_bytes;
    int            raw_w, raw_h, raw_c;
} ImageBytes;

typedef struct {
    ImageKind kind;
    int       w, h;
} ImageInfo;

typedef struct {
    ResizeFilter filter;
    int full; /* 1: decode JPEG at its full size even where a half, a quarter or an eighth would do */
} ImageDecodeOptions;

typedef struct {
    double decode_s, resize_s;
} ImageTimes;

typedef struct ImageDecoder ImageDecoder;

/* max_pixels 0: IMAGE_PIXELS_MOST. Negative after err_sys(). */
int  image_decoder_create(ImageDecoder **out, int64_t max_pixels);
void image_decoder_destroy(ImageDecoder *d); /* NULL is allowed */

/* Reads the header. 0, 1 for an image that cannot be used, negative after err_sys(). The bytes are
 * borrowed until image_decode() or the next image_begin(). */
int image_begin(ImageDecoder *d, const ImageBytes *bytes, ImageInfo *info);

/* Decodes the image begun last: box (NULL: all of it) to out_w x out_h packed RGB at out. Returns as
 * image_begin(). */
int image_decode(ImageDecoder *d, const ResizeBox *box, const ImageDecodeOptions *opt, int out_w, int out_h,
                 uint8_t *out);

const char *image_why(const ImageDecoder *d); /* why the last call returned 1 */

ImageTimes image_times(const ImageDecoder *d); /* seconds spent so far */

#ifdef __cplusplus
}
#endif
#endif
