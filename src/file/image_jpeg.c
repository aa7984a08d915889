/* JPEG by libjpeg-turbo.
 *
 * 1. libjpeg leaves through longjmp() when a file is damaged. Across such a call Brim holds nothing but the
 *    decoder.
 * 2. Faults that libjpeg only warns about (bad Huffman codes, restart markers out of step) are decoded as
 *    they are, as in Pillow. A file that ends early is refused, as Pillow does.
 * 3. Coefficients of progressive files and the number of their scans are bounded: a few bytes must not
 *    cost minutes. */
#include "file/image_impl.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <jpeglib.h>
#include <jerror.h>

enum {
    CHUNK     = 16,      /* rows decoded before they are resized: both stay in the cache */
    SCANS     = 100,     /* a sane progressive file has about 10 */
    EDGE      = 4,       /* columns more on each side, so that smooth upsampling sees its neighbours */
    COEFF_MIB = 1 << 10, /* memory that libjpeg may take */
};

struct ImageJpeg {
    struct jpeg_decompress_struct cinfo;
    struct jpeg_error_mgr         err;
    struct jpeg_source_mgr        src;
    struct jpeg_progress_mgr      progress;
    jmp_buf                       jump;
    ImageDecoder                 *d;    /* who is decoding */
    int                           tail; /* every row is there: a missing end is no damage */
};

static ImageJpeg *jpeg_of(j_common_ptr c) { return c->client_data; }

static void on_error(j_common_ptr c)
{
    char       text[JMSG_LENGTH_MAX];
    ImageJpeg *j = jpeg_of(c);
    c->err->format_message(c, text);
    if (j->d) image_bad(j->d, "JPEG: %s", text);
    longjmp(j->jump, 1);
}

static void on_warning(j_common_ptr c, int level)
{
    if (level < 0) c->err->num_warnings++;
}
static void no_output(j_common_ptr c) {}

static void refuse(j_decompress_ptr c, const char *why)
{
    ImageJpeg *j = c->client_data;
    if (j->d) image_bad(j->d, "JPEG: %s", why);
    longjmp(j->jump, 1);
}

static void    source_init(j_decompress_ptr c) {}
static void    source_term(j_decompress_ptr c) {}
static boolean source_fill(j_decompress_ptr c)
{
    static const JOCTET end[2] = { 0xff, JPEG_EOI };
    if (!((ImageJpeg *)c->client_data)->tail) refuse(c, "the file ends early");
    c->src->next_input_byte = end;
    c->src->bytes_in_buffer = sizeof end;
    return TRUE;
}
static void source_skip(j_decompress_ptr c, long n)
{
    if (n <= 0) return;
    if ((size_t)n > c->src->bytes_in_buffer) {
        source_fill(c);
        return;
    }
    c->src->next_input_byte += n;
    c->src->bytes_in_buffer -= (size_t)n;
}

static void on_progress(j_common_ptr c)
{
    if (((j_decompress_ptr)c)->input_scan_number > SCANS) refuse((j_decompress_ptr)c, "more than 100 scans");
}

/* A libjpeg object for each image: one that is used again keeps the tables of the last image, and a file
 * whose tables are missing would be decoded with those. It costs about a microsecond. */
static void renew(ImageJpeg *j)
{
    jpeg_destroy_decompress(&j->cinfo);
    memset(&j->cinfo, 0, sizeof j->cinfo);
    j->cinfo.err         = &j->err;
    j->cinfo.client_data = j;
    jpeg_create_decompress(&j->cinfo);
    j->cinfo.src                    = &j->src;
    j->cinfo.progress               = &j->progress;
    j->cinfo.mem->max_memory_to_use = (long)COEFF_MIB << 20;
}

int image_jpeg_create(ImageJpeg **out)
{
    ImageJpeg *j = *out = mem_zeroed(1, sizeof *j);
    if (!j) return err_sys("a JPEG decoder");
    jpeg_std_error(&j->err);
    j->err.error_exit            = on_error;
    j->err.emit_message          = on_warning;
    j->err.output_message        = no_output;
    j->src                       = (struct jpeg_source_mgr){ .init_source       = source_init,
                                                             .fill_input_buffer = source_fill,
                                                             .skip_input_data   = source_skip,
                                                             .resync_to_restart = jpeg_resync_to_restart,
                                                             .term_source       = source_term };
    j->progress.progress_monitor = on_progress;
    return 0;
}

void image_jpeg_destroy(ImageJpeg *j)
{
    if (!j) return;
    jpeg_destroy_decompress(&j->cinfo);
    free(j);
}

int image_jpeg_begin(ImageDecoder *d)
{
    ImageJpeg                     *j = d->jpeg;
    struct jpeg_decompress_struct *c = &j->cinfo;
    j->d                             = d;
    j->tail                          = 0;
    j->src.next_input_byte           = d->bytes.data;
    j->src.bytes_in_buffer           = d->bytes.size_bytes;
    if (setjmp(j->jump)) return 1;
    renew(j);
    jpeg_read_header(c, TRUE);
    if (image_check_size(d, c->image_width, c->image_height)) return 1;
    if (c->num_components != 1 && c->num_components != 3 && c->num_components != 4)
        return image_bad(d, "JPEG: %d components", c->num_components);
    d->info = (ImageInfo){ IMAGE_JPEG, (int)c->image_width, (int)c->image_height };
    return 0;
}

/* ---- Decoding -------------------------------------------------------------------------------------- */

/* How much larger than the output a shrunk box stays. With 1 sharp pictures (drawings, text) differ from a
 * full decode by up to 3.5 of 255 on average, with 1.5 by up to 1.9 (opencv-doc, November 2026). */
static const double spare = 1.5;

/* The largest of 8, 4, 2, 1 that leaves the box large enough. Its IDCTs are the vectorised ones. */
static int pick_denom(const ResizeBox *box, int out_w, int out_h, int full)
{
    int    denom = full ? 1 : 8;
    double w = (box->x1 - box->x0) / spare, h = (box->y1 - box->y0) / spare;
    while (denom > 1 && (w < (double)denom * out_w || h < (double)denom * out_h)) denom /= 2;
    return denom;
}

static ResizeBox shrink_box(const ResizeBox *b, int denom, int w, int h)
{
    double    s = 1.0 / denom;
    ResizeBox o = { b->x0 * s, b->y0 * s, b->x1 * s, b->y1 * s, b->left / denom, b->top / denom, 0, 0 };
    o.right     = MIN((b->right + denom - 1) / denom, w);
    o.bottom    = MIN((b->bottom + denom - 1) / denom, h);
    return o;
}

/* Adobe's inverted CMYK to RGB, as Pillow does it. In place: both are 4 bytes a pixel. */
static void cmyk_to_rgbx(uint8_t *p, int64_t n)
{
    for (int64_t i = 0; i < n; i++, p += 4) {
        int k = p[3]; /* 255 minus black */
        for (int c = 0; c < 3; c++) {
            int t = (255 - p[c]) * k + 128;
            int v = k - (((t >> 8) + t) >> 8);
            p[c]  = (uint8_t)(v < 0 ? 0 : v);
        }
        p[3] = 255;
    }
}

/* Reads the rows [first, first + n) into rows, then resizes them. */
static void take_chunk(ImageDecoder *d, int first, int n, size_t stride, int col0)
{
    struct jpeg_decompress_struct *c = &d->jpeg->cinfo;
    JSAMPROW                       row[CHUNK];
    double                         t0 = clock_now_s();
    for (int i = 0; i < n; i++) row[i] = d->rows.data + (size_t)i * stride;
    for (int got = 0; got < n;) got += (int)jpeg_read_scanlines(c, row + got, (JDIMENSION)(n - got));
    double t1 = clock_now_s();
    for (int i = 0; i < n; i++) {
        if (c->out_color_space == JCS_CMYK) cmyk_to_rgbx(row[i], c->output_width);
        resize_row(&d->resize, first + i, row[i], col0);
    }
    d->times.decode_s += t1 - t0;
    d->times.resize_s += clock_now_s() - t1;
}

/* Lets libjpeg leave out columns and rows that the caller does not need. Returns the column of the first one
 * that comes. */
static int cut_columns(ImageDecoder *d)
{
    struct jpeg_decompress_struct *c  = &d->jpeg->cinfo;
    JDIMENSION                     x0 = (JDIMENSION)MAX(d->resize.x.lo - EDGE, 0);
    JDIMENSION                     w  = MIN((JDIMENSION)(d->resize.x.hi + EDGE), c->output_width) - x0;
    if (w >= c->output_width) return 0;
    jpeg_crop_scanline(c, &x0, &w);
    return (int)x0;
}

static void start(ImageDecoder *d, int denom)
{
    struct jpeg_decompress_struct *c = &d->jpeg->cinfo;
    c->scale_num                     = 1;
    c->scale_denom                   = (unsigned)denom;
    c->out_color_space               = c->num_components == 4 ? JCS_CMYK : JCS_EXT_RGBX;
    double t0                        = clock_now_s();
    jpeg_start_decompress(c);
    d->times.decode_s += clock_now_s() - t0;
}

/* The part that libjpeg may leave by a jump. */
static __attribute__((noinline)) int decode_box(ImageDecoder *d, const ResizeBox *box,
                                                const ImageDecodeOptions *opt, int out_w, int out_h,
                                                uint8_t *out)
{
    struct jpeg_decompress_struct *c     = &d->jpeg->cinfo;
    int                            denom = pick_denom(box, out_w, out_h, opt->full);
    start(d, denom);
    ResizeBox small = shrink_box(box, denom, (int)c->output_width, (int)c->output_height);
    TRY(resize_begin(&d->resize, &small, opt->filter, out_w, out_h, out));
    int    col0   = cut_columns(d);
    size_t stride = ((size_t)c->output_width * 4 + RESIZE_PAD + 63) / 64 * 64;
    if (stride * CHUNK > d->rows.cap_bytes) {
        TRY(image_buf_need(&d->rows, stride * CHUNK));
        memset(d->rows.data, 0, stride * CHUNK);
    }
    double t0 = clock_now_s();
    if (d->resize.y.lo > 0) jpeg_skip_scanlines(c, (JDIMENSION)d->resize.y.lo);
    d->times.decode_s += clock_now_s() - t0;
    for (int y = d->resize.y.lo; y < d->resize.y.hi; y += CHUNK)
        take_chunk(d, y, MIN(CHUNK, d->resize.y.hi - y), stride, col0);
    CHECK(resize_is_done(&d->resize), "a JPEG gave too few rows");
    /* Pillow refuses garbage behind the rows, too. */
    d->jpeg->tail = 1;
    if (c->output_scanline == c->output_height) jpeg_finish_decompress(c);
    return 0;
}

int image_jpeg_decode(ImageDecoder *d, const ResizeBox *box, const ImageDecodeOptions *opt, int out_w,
                      int out_h, uint8_t *out)
{
    int rc;
    if (setjmp(d->jpeg->jump) == 0) {
        rc = decode_box(d, box, opt, out_w, out_h, out);
    } else {
        rc = 1;
    }
    jpeg_abort_decompress(&d->jpeg->cinfo);
    return rc;
}
