/* PNG by libpng.
 *
 * 1. libpng leaves through longjmp() when a file is damaged. Then the two structs of libpng are destroyed,
 *    too.
 * 2. Every checksum counts, as in Pillow: a chunk whose CRC is wrong makes the image unusable.
 * 3. Rows stream through a buffer of one row. Only an interlaced file is held whole, and is refused above
 *    64 Mi pixels. */
#include "file/image_impl.h"

#include "base/clock.h"
#include "base/err.h"

#include <png.h>
#include <string.h>

enum { CHUNK_MOST = 16 << 20, CHUNKS_MOST = 1000 };
#define INTERLACED_MOST (INT64_C(64) << 20)

typedef struct {
    ImageDecoder  *d;
    const uint8_t *at, *end;
    jmp_buf        jump;
} PngRead;

static void on_error(png_structp png, png_const_charp text)
{
    PngRead *r = png_get_error_ptr(png);
    image_bad(r->d, "PNG: %s", text);
    longjmp(r->jump, 1);
}

static void on_warning(png_structp png, png_const_charp text) {}

static void on_read(png_structp png, png_bytep to, size_t n)
{
    PngRead *r = png_get_io_ptr(png);
    if (n > (size_t)(r->end - r->at)) png_error(png, "the file ends early");
    memcpy(to, r->at, n);
    r->at += n;
}

/* The first chunk is 13 bytes of IHDR behind signature, length and type. libpng reads it again and checks
 * all of it. */
int image_png_begin(ImageDecoder *d)
{
    const uint8_t *p = d->bytes.data;
    if (d->bytes.size_bytes < 33) return image_bad(d, "PNG: the file ends early");
    if (memcmp(p + 12, "IHDR", 4) != 0) return image_bad(d, "PNG: the first chunk is not IHDR");
    int64_t w = (int64_t)p[16] << 24 | p[17] << 16 | p[18] << 8 | p[19];
    int64_t h = (int64_t)p[20] << 24 | p[21] << 16 | p[22] << 8 | p[23];
    if (image_check_size(d, w, h)) return 1;
    d->info = (ImageInfo){ IMAGE_PNG, (int)w, (int)h };
    return 0;
}

/* Asks for 8-bit RGB and a filler byte, whatever is in the file. */
static void ask_rgbx(png_structp png, png_infop info)
{
    int type = png_get_color_type(png, info);
    if (type == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(png);
    if (type == PNG_COLOR_TYPE_GRAY && png_get_bit_depth(png, info) < 8) png_set_expand_gray_1_2_4_to_8(png);
    if (png_get_bit_depth(png, info) == 16) png_set_strip_16(png);
    if (type & PNG_COLOR_MASK_ALPHA) png_set_strip_alpha(png);
    if (!(type & PNG_COLOR_MASK_COLOR)) png_set_gray_to_rgb(png);
    png_set_filler(png, 255, PNG_FILLER_AFTER);
}

static void rows_streamed(ImageDecoder *d, png_structp png)
{
    Resize *r = &d->resize;
    for (int y = 0; y < r->y.hi; y++) {
        double t0 = clock_now_s();
        png_read_row(png, d->rows.data, NULL);
        double t1 = clock_now_s();
        resize_row(r, y, d->rows.data + 4 * (size_t)r->x.lo, r->x.lo);
        d->times.decode_s += t1 - t0;
        d->times.resize_s += clock_now_s() - t1;
    }
}

static void rows_interlaced(ImageDecoder *d, png_structp png, int passes, size_t stride)
{
    Resize *r  = &d->resize;
    double  t0 = clock_now_s();
    for (int pass = 0; pass < passes; pass++) {
        for (int y = 0; y < d->info.h; y++) png_read_row(png, d->rows.data + (size_t)y * stride, NULL);
    }
    double t1 = clock_now_s();
    for (int y = r->y.lo; y < r->y.hi; y++)
        resize_row(r, y, d->rows.data + (size_t)y * stride + 4 * (size_t)r->x.lo, r->x.lo);
    d->times.decode_s += t1 - t0;
    d->times.resize_s += clock_now_s() - t1;
}

static int read_png(ImageDecoder *d, png_structp png, png_infop info)
{
    PngRead *r = png_get_io_ptr(png);
    if (setjmp(r->jump)) return 1;
    png_set_user_limits(png, IMAGE_SIDE_MOST, IMAGE_SIDE_MOST);
    png_set_chunk_malloc_max(png, CHUNK_MOST);
    png_set_chunk_cache_max(png, CHUNKS_MOST);
    png_set_crc_action(png, PNG_CRC_ERROR_QUIT, PNG_CRC_ERROR_QUIT);
    png_set_keep_unknown_chunks(png, PNG_HANDLE_CHUNK_NEVER, NULL, -1);
    png_read_info(png, info);
    if ((int)png_get_image_width(png, info) != d->info.w || (int)png_get_image_height(png, info) != d->info.h)
        return image_bad(d, "PNG: two headers that differ");
    ask_rgbx(png, info);
    int passes = png_set_interlace_handling(png);
    if (passes > 1 && (int64_t)d->info.w * d->info.h > INTERLACED_MOST)
        return image_bad(d, "PNG: interlaced and %d x %d pixels", d->info.w, d->info.h);
    png_read_update_info(png, info);
    size_t stride = (size_t)d->info.w * 4;
    if (png_get_rowbytes(png, info) != stride) return image_bad(d, "PNG: rows of another length");
    size_t n_row = passes > 1 ? (size_t)d->info.h : 1;
    TRY(image_buf_need(&d->rows, stride * n_row + RESIZE_PAD));
    memset(d->rows.data, 0, stride * n_row + RESIZE_PAD);
    if (passes > 1) {
        rows_interlaced(d, png, passes, stride);
    } else {
        rows_streamed(d, png);
    }
    CHECK(resize_is_done(&d->resize), "a PNG gave too few rows");
    return 0;
}

/* libpng reports a failed start through the jump, too. */
static png_structp start_png(PngRead *r)
{
    if (setjmp(r->jump)) return NULL;
    return png_create_read_struct(PNG_LIBPNG_VER_STRING, r, on_error, on_warning);
}

int image_png_decode(ImageDecoder *d)
{
    PngRead     r   = { .d = d, .at = d->bytes.data, .end = d->bytes.data + d->bytes.size_bytes };
    png_structp png = start_png(&r);
    if (!png) return err_set("libpng could not be started");
    int       rc   = -1;
    png_infop info = png_create_info_struct(png);
    if (info) {
        png_set_read_fn(png, &r, on_read);
        rc = read_png(d, png, info);
    } else {
        err_set("libpng could not be started");
    }
    png_destroy_read_struct(&png, &info, NULL);
    return rc;
}
