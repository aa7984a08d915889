#include "file/image_impl.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Memory and messages --------------------------------------------------------------------------- */

int image_buf_need(ImageBuf *b, size_t size_bytes)
{
    if (size_bytes <= b->cap_bytes) return 0;
    free(b->data);
    b->cap_bytes = 0;
    b->data      = mem_alloc(size_bytes);
    if (!b->data) return err_sys("%zu bytes to decode an image", size_bytes);
    b->cap_bytes = size_bytes;
    return 0;
}

int image_bad(ImageDecoder *d, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(d->why, sizeof d->why, fmt, ap);
    va_end(ap);
    d->begun = 0;
    return 1;
}

int image_check_size(ImageDecoder *d, int64_t w, int64_t h)
{
    if (w < 1 || h < 1) return image_bad(d, "the image is %lld x %lld pixels", (long long)w, (long long)h);
    if (w > IMAGE_SIDE_MOST || h > IMAGE_SIDE_MOST || w * h > d->max_pixels) {
        return image_bad(d, "the image claims %lld x %lld pixels; the limit is %lld pixels", (long long)w,
                         (long long)h, (long long)d->max_pixels);
    }
    return 0;
}

int image_decoder_create(ImageDecoder **out, int64_t max_pixels)
{
    *out            = NULL;
    ImageDecoder *d = mem_zeroed(1, sizeof *d);
    if (!d) return err_sys("an image decoder");
    d->max_pixels = max_pixels > 0 ? max_pixels : IMAGE_PIXELS_MOST;
    if (image_jpeg_create(&d->jpeg) < 0) {
        image_decoder_destroy(d);
        return -1;
    }
    *out = d;
    return 0;
}

void image_decoder_destroy(ImageDecoder *d)
{
    if (!d) return;
    image_jpeg_destroy(d->jpeg);
    resize_deinit(&d->resize);
    free(d->rows.data);
    free(d);
}

const char *image_why(const ImageDecoder *d) { return d->why; }
ImageTimes  image_times(const ImageDecoder *d) { return d->times; }

/* ---- Kinds ----------------------------------------------------------------------------------------- */

/* Formats that people have and that Brim does not read: named, so that users do not look for damage. */
static const struct {
    const char *magic;
    size_t      n, at; /* bytes of it, and where they stand */
    const char *name;
} known[] = {
    { "GIF8", 4, 0, "GIF" },   { "WEBP", 4, 8, "WebP" }, { "BM", 2, 0, "BMP" },   { "II*", 3, 0, "TIFF" },
    { "MM\0*", 4, 0, "TIFF" }, { "ftyp", 4, 4, "HEIF" }, { "%PDF", 4, 0, "PDF" }, { "<svg", 4, 0, "SVG" },
};

/* By the first bytes. */
static ImageKind kind_of(const uint8_t *data, size_t n)
{
    static const uint8_t png[8] = { 0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n' };
    if (n >= 3 && data[0] == 0xff && data[1] == 0xd8 && data[2] == 0xff) return IMAGE_JPEG;
    if (n >= sizeof png && memcmp(data, png, sizeof png) == 0) return IMAGE_PNG;
    return IMAGE_UNKNOWN;
}

static int bad_kind(ImageDecoder *d)
{
    const ImageBytes *b = &d->bytes;
    if (b->size_bytes == 0) return image_bad(d, "the file is empty");
    for (int i = 0; i < ARRAY_LEN(known); i++) {
        size_t n = known[i].n, at = known[i].at;
        if (b->size_bytes >= at + n && memcmp(b->data + at, known[i].magic, n) == 0)
            return image_bad(d, "%s is not read; JPEG and PNG are", known[i].name);
    }
    return image_bad(d, "neither a JPEG nor a PNG file");
}

static int begin_raw(ImageDecoder *d)
{
    const ImageBytes *b = &d->bytes;
    if (b->raw_c != 1 && b->raw_c != 3) return image_bad(d, "raw pixels of %d channels", b->raw_c);
    if (image_check_size(d, b->raw_w, b->raw_h)) return 1;
    int64_t need = (int64_t)b->raw_w * b->raw_h * b->raw_c;
    if ((int64_t)b->size_bytes != need) {
        return image_bad(d, "%zu bytes of raw pixels, and %d x %d x %d are %lld", b->size_bytes, b->raw_w,
                         b->raw_h, b->raw_c, (long long)need);
    }
    d->info = (ImageInfo){ IMAGE_RAW, b->raw_w, b->raw_h };
    return 0;
}

int image_begin(ImageDecoder *d, const ImageBytes *bytes, ImageInfo *info)
{
    d->bytes  = *bytes;
    d->begun  = 0;
    d->why[0] = '\0';
    double t0 = clock_now_s();
    int    rc;
    if (bytes->raw_c != 0) {
        rc = begin_raw(d);
    } else {
        switch (kind_of(bytes->data, bytes->size_bytes)) {
        case IMAGE_JPEG: rc = image_jpeg_begin(d); break;
        case IMAGE_PNG: rc = image_png_begin(d); break;
        default: rc = bad_kind(d);
        }
    }
    d->times.decode_s += clock_now_s() - t0;
    if (rc != 0) return rc;
    d->begun = 1;
    *info    = d->info;
    return 0;
}

/* ---- Decoding -------------------------------------------------------------------------------------- */

static void widen(uint8_t *rgbx, const uint8_t *in, int n, int channels)
{
    if (channels == 1) {
        for (int i = 0; i < n; i++) {
            uint32_t v = in[i] * UINT32_C(0x01010101);
            memcpy(rgbx + 4 * i, &v, sizeof v);
        }
        return;
    }
    for (int i = 0; i < n; i++) {
        rgbx[4 * i]     = in[3 * i];
        rgbx[4 * i + 1] = in[3 * i + 1];
        rgbx[4 * i + 2] = in[3 * i + 2];
        rgbx[4 * i + 3] = 255;
    }
}

static int decode_raw(ImageDecoder *d)
{
    const ImageBytes *b = &d->bytes;
    Resize           *r = &d->resize;
    size_t            n = (size_t)(r->x.hi - r->x.lo);
    TRY(image_buf_need(&d->rows, n * 4 + RESIZE_PAD));
    memset(d->rows.data + n * 4, 0, RESIZE_PAD);
    double t0 = clock_now_s();
    for (int y = r->y.lo; y < r->y.hi; y++) {
        const uint8_t *in = b->data + ((int64_t)y * b->raw_w + r->x.lo) * b->raw_c;
        widen(d->rows.data, in, (int)n, b->raw_c);
        resize_row(r, y, d->rows.data, r->x.lo);
    }
    d->times.resize_s += clock_now_s() - t0;
    return 0;
}

int image_decode(ImageDecoder *d, const ResizeBox *box, const ImageDecodeOptions *opt, int out_w, int out_h,
                 uint8_t *out)
{
    CHECK(d->begun, "image_decode() without image_begin()");
    ResizeBox all = resize_crop(0, 0, d->info.w, d->info.h);
    if (!box) box = &all;
    CHECK(box->left >= 0 && box->top >= 0 && box->right <= d->info.w && box->bottom <= d->info.h,
          "a box of %d..%d x %d..%d in an image of %d x %d", box->left, box->right, box->top, box->bottom,
          d->info.w, d->info.h);
    d->begun = 0;
    if (d->info.kind == IMAGE_JPEG) return image_jpeg_decode(d, box, opt, out_w, out_h, out);
    TRY(resize_begin(&d->resize, box, opt->filter, out_w, out_h, out));
    return d->info.kind == IMAGE_PNG ? image_png_decode(d) : decode_raw(d);
}
