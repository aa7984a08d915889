/* Image writing: packed RGB pixels to JPEG bytes, or to a PNG file. */
#ifndef FILE_IMAGE_WRITE_H
#define FILE_IMAGE_WRITE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { IMAGE_JPEG_SIDE_MOST = 65500 }; /* of what is written; a little more can be read */

/* Encodes w x h pixels at quality 1..100 into *data (the caller frees it). Negative after err_set(). */
int image_encode_jpeg(const uint8_t *rgb, int w, int h, int quality, uint8_t **data, size_t *size_bytes);

/* Publishes a PNG file. Negative after err_set(). */
int image_write_png(const char *path, const uint8_t *rgb, int w, int h);

#ifdef __cplusplus
}
#endif
#endif
