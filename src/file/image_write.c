#include "file/image_write.h"

#include "base/err.h"
#include "base/file.h"
#include "base/mem.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <jpeglib.h>
#include <png.h>

typedef struct {
    struct jpeg_compress_struct cinfo;
    struct jpeg_error_mgr       err;
    jmp_buf                     jump;
    unsigned char              *data;
    unsigned long               n;
} Encoder;

static void on_error(j_common_ptr c)
{
    char     text[JMSG_LENGTH_MAX];
    Encoder *e = c->client_data;
    c->err->format_message(c, text);
    err_set("JPEG: %s", text);
    longjmp(e->jump, 1);
}

static int encode(Encoder *e, const uint8_t *rgb, int w, int h, int quality)
{
    struct jpeg_compress_struct *c = &e->cinfo;
    if (setjmp(e->jump)) return -1;
    jpeg_create_compress(c);
    jpeg_mem_dest(c, &e->data, &e->n);
    c->image_width      = (JDIMENSION)w;
    c->image_height     = (JDIMENSION)h;
    c->input_components = 3;
    c->in_color_space   = JCS_RGB;
    jpeg_set_defaults(c);
    jpeg_set_quality(c, quality, TRUE);
    jpeg_start_compress(c, TRUE);
    while (c->next_scanline < c->image_height) {
        JSAMPROW row = (JSAMPROW)(rgb + (size_t)c->next_scanline * (size_t)w * 3);
        jpeg_write_scanlines(c, &row, 1);
    }
    jpeg_finish_compress(c);
    return 0;
}

/* libjpeg frees a buffer that has become too small, and says where the last one is only when it is done. So
 * the first one is not libjpeg's: after a failure nothing else could be freed. */
int image_encode_jpeg(const uint8_t *rgb, int w, int h, int quality, uint8_t **data, size_t *size_bytes)
{
    enum { FIRST_BYTES = 4096 };
    uint8_t *first = mem_alloc(FIRST_BYTES);
    Encoder  e     = { .data = first, .n = FIRST_BYTES };
    *data          = NULL;
    *size_bytes    = 0;
    if (!first) return err_sys("JPEG");
    e.cinfo.err         = jpeg_std_error(&e.err);
    e.err.error_exit    = on_error;
    e.cinfo.client_data = &e;
    int rc              = encode(&e, rgb, w, h, quality);
    jpeg_destroy_compress(&e.cinfo);
    if (rc < 0 || e.data != first) free(first);
    if (rc < 0) return rc;
    *data       = e.data;
    *size_bytes = e.n;
    return 0;
}

int image_write_png(const char *path, const uint8_t *rgb, int w, int h)
{
    png_image image = {
        .version = PNG_IMAGE_VERSION, .width = (unsigned)w, .height = (unsigned)h, .format = PNG_FORMAT_RGB
    };
    png_alloc_size_t n  = 0;
    int              rc = -1;
    if (!png_image_write_get_memory_size(image, n, 0, rgb, 0, NULL))
        return err_set("%s: PNG: %s", path, image.message);
    void *data = malloc(n);
    FILE *f    = NULL;
    if (!data) return err_sys("%s: %zu bytes", path, (size_t)n);
    if (!png_image_write_to_memory(&image, data, &n, 0, rgb, 0, NULL)) {
        err_set("%s: PNG: %s", path, image.message);
        goto out;
    }
    f = file_create_tmp(path);
    if (!f || file_write(f, data, n) < 0) goto out;
    rc = file_publish(&f, path);
out:
    file_discard(&f);
    free(data);
    return rc;
}
