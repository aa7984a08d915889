/* Fuzz target: the image decoders, from memory. The first 4 bytes of an input choose output size, box and
 * filter; the rest is the image.
 *
 * Whatever the bytes are, the decoder fills the output or says why not. Images above 256 Ki pixels are
 * refused, so that an input costs milliseconds.
 *
 * sources: src/file/image.c src/file/image_jpeg.c src/file/image_png.c src/file/resize.c src/base/[a-z]*.c */
#include "base/err.h"
#include "file/image.h"

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

enum { PIXELS_MOST = 1 << 18 };

/* A box inside the image, from two bytes: each side keeps at least one pixel. */
static ResizeBox box_of(const ImageInfo *info, uint8_t a, uint8_t b)
{
    int x = info->w * (a >> 4) / 16, y = info->h * (a & 15) / 16;
    int w = info->w * ((b >> 4) + 1) / 16, h = info->h * ((b & 15) + 1) / 16;
    w = MAX(MIN(w, info->w - x), 1);
    h = MAX(MIN(h, info->h - y), 1);
    return resize_crop(x, y, w, h);
}

static void decode(ImageDecoder *d, const uint8_t *how, const uint8_t *bytes, size_t n)
{
    ImageInfo          info;
    ImageBytes         in  = { bytes, n, 0, 0, 0 };
    ImageDecodeOptions opt = { how[0] & 1 ? RESIZE_BICUBIC : RESIZE_BILINEAR, how[0] >> 1 & 1 };
    int                w = (how[0] >> 2) + 1, h = (how[1] >> 2) + 1;
    int                rc = image_begin(d, &in, &info);
    CHECK(rc >= 0, "%s", err_get());
    if (rc == 1) {
        CHECK(image_why(d)[0], "refused without a reason");
        return;
    }
    CHECK(info.w > 0 && info.h > 0 && (int64_t)info.w * info.h <= PIXELS_MOST, "%d x %d", info.w, info.h);
    ResizeBox box = box_of(&info, how[2], how[3]);
    uint8_t  *out = malloc((size_t)w * (size_t)h * 3);
    CHECK(out, "out of memory");
    rc = image_decode(d, &box, &opt, w, h, out);
    CHECK(rc >= 0, "%s", err_get());
    CHECK(rc == 0 || image_why(d)[0], "refused without a reason");
    free(out);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    ImageDecoder *d;
    if (n < 4) return 0;
    CHECK(image_decoder_create(&d, PIXELS_MOST) == 0, "%s", err_get());
    /* Twice: a decoder is used again after a damaged image. */
    for (int i = 0; i < 2; i++) decode(d, bytes, bytes + 4, n - 4);
    image_decoder_destroy(d);
    return 0;
}
