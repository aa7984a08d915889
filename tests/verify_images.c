/* Decodes and changes images for a script that compares them with Pillow's (tests/image_peer.py).
 *
 * Standard input, one order a line:
 *   decode FULL FILTER OUT_W OUT_H X0 Y0 X1 Y1 LEFT TOP RIGHT BOTTOM PATH
 *   op NAME VALUE PATH
 * X1 0 means the whole image, OUT_W 0 the size of the box. An op gets the whole image.
 * Standard output: "ok W H OUT_W OUT_H\n" and OUT_W*OUT_H*3 bytes, or "bad WHY\n". */
#include "base/err.h"
#include "base/file.h"
#include "base/str.h"
#include "data/image_ops.h"
#include "file/image.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    ImageDecodeOptions opt;
    int                out_w, out_h;
    ResizeBox          box;
    char               op[32];
    float              value;
    const char        *path;
} Task;

static int parse(char *line, Task *t)
{
    int    at = 0, full = 0, filter = 0;
    double b[8];
    memset(t, 0, sizeof *t);
    line[strcspn(line, "\n")] = '\0';
    if (sscanf(line, "op %31s %f %n", t->op, &t->value, &at) == 2) {
        t->opt.full = 1;
        t->path     = line + at;
        return 0;
    }
    if (sscanf(line, "decode %d %d %d %d %lf %lf %lf %lf %lf %lf %lf %lf %n", &full, &filter, &t->out_w,
               &t->out_h, &b[0], &b[1], &b[2], &b[3], &b[4], &b[5], &b[6], &b[7], &at) < 12)
        return -1;
    t->opt  = (ImageDecodeOptions){ (ResizeFilter)filter, full };
    t->box  = (ResizeBox){ b[0], b[1], b[2], b[3], (int)b[4], (int)b[5], (int)b[6], (int)b[7] };
    t->path = line + at;
    return 0;
}

static void change(const Task *t, uint8_t *rgb, int w, int h)
{
    double   m[6] = { 1, 0, 0, 0, 1, 0 };
    uint8_t *tmp  = malloc((size_t)w * (size_t)h * 3);
    CHECK(tmp, "out of memory");
    const char *op = t->op;
    if (strcmp(op, "flip") == 0) image_op_flip(rgb, w, h);
    if (strcmp(op, "brightness") == 0) image_op_brightness(rgb, w, h, t->value);
    if (strcmp(op, "contrast") == 0) image_op_contrast(rgb, w, h, t->value);
    if (strcmp(op, "saturation") == 0) image_op_saturation(rgb, w, h, t->value);
    if (strcmp(op, "sharpness") == 0) image_op_sharpen(rgb, w, h, t->value, tmp);
    if (strcmp(op, "hue") == 0) image_op_hue(rgb, w, h, t->value);
    if (strcmp(op, "posterize") == 0) image_op_posterize(rgb, w, h, (int)t->value);
    if (strcmp(op, "solarize") == 0) image_op_solarize(rgb, w, h, t->value);
    if (strcmp(op, "autocontrast") == 0) image_op_autocontrast(rgb, w, h);
    if (strcmp(op, "equalize") == 0) image_op_equalize(rgb, w, h);
    if (strcmp(op, "rotate") == 0) image_op_rotation(m, w, h, t->value);
    if (strcmp(op, "shear") == 0) m[1] = t->value;
    if (strcmp(op, "rotate") == 0 || strcmp(op, "shear") == 0) image_op_affine(rgb, w, h, m, tmp);
    free(tmp);
}

static void decode(ImageDecoder *d, const Task *t, ImageBytes *bytes)
{
    ImageInfo info;
    int       rc = image_begin(d, bytes, &info);
    if (rc == 0) {
        ResizeBox all = resize_crop(0, 0, info.w, info.h);
        ResizeBox box = t->box.x1 > 0 ? t->box : all;
        int       w   = t->out_w ? t->out_w : box.right - box.left;
        int       h   = t->out_h ? t->out_h : box.bottom - box.top;
        uint8_t  *out = malloc((size_t)w * (size_t)h * 3);
        CHECK(out, "out of memory");
        rc = image_decode(d, &box, &t->opt, w, h, out);
        if (rc == 0) {
            if (t->op[0]) change(t, out, w, h);
            printf("ok %d %d %d %d\n", info.w, info.h, w, h);
            fwrite(out, 1, (size_t)w * (size_t)h * 3, stdout);
        }
        free(out);
    }
    CHECK(rc >= 0, "%s", err_get());
    if (rc == 1) printf("bad %s\n", image_why(d));
    fflush(stdout);
}

int main(void)
{
    char          line[4096];
    Task          t;
    ImageDecoder *d;
    CHECK(image_decoder_create(&d, 0) == 0, "%s", err_get());
    while (fgets(line, sizeof line, stdin)) {
        char  *data;
        size_t n;
        CHECK(parse(line, &t) == 0, "cannot read: %s", line);
        CHECK(file_read_all(t.path, (size_t)1 << 30, &data, &n) == 0, "%s", err_get());
        decode(d, &t, &(ImageBytes){ (uint8_t *)data, n, 0, 0, 0 });
        free(data);
    }
    image_decoder_destroy(d);
    return 0;
}
