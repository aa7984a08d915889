/* Decodes images for a script that compares them with Pillow's (tests/image_peer.py).
 *
 * Standard input: lines "decode FULL FILTER OUT_W OUT_H X0 Y0 X1 Y1 LEFT TOP RIGHT BOTTOM PATH". X1 0: the whole image; OUT_W 0:
 * the size of the box. Standard output, per line: "ok W H OUT_W OUT_H\n" and OUT_W*OUT_H*3 bytes, or "bad WHY\n". */
#include "base/err.h"
#include "base/file.h"
#include "file/image.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    ImageDecodeOptions opt;
    int                out_w, out_h;
    ResizeBox          box;
    const char        *path;
} Order;

static int parse(char *line, Order *o)
{
    int    at = 0, full = 0, filter = 0;
    double b[8];
    line[strcspn(line, "\n")] = '\0';
    if (sscanf(line, "decode %d %d %d %d %lf %lf %lf %lf %lf %lf %lf %lf %n", &full, &filter, &o->out_w,
               &o->out_h, &b[0], &b[1], &b[2], &b[3], &b[4], &b[5], &b[6], &b[7], &at) < 12)
        return -1;
    o->opt  = (ImageDecodeOptions){ (ResizeFilter)filter, full };
    o->box  = (ResizeBox){ b[0], b[1], b[2], b[3], (int)b[4], (int)b[5], (int)b[6], (int)b[7] };
    o->path = line + at;
    return 0;
}

static int decode(ImageDecoder *d, const Order *o, ImageBytes *bytes)
{
    ImageInfo info;
    int       rc = image_begin(d, bytes, &info);
    if (rc == 0) {
        ResizeBox all = resize_crop(0, 0, info.w, info.h);
        ResizeBox box = o->box.x1 > 0 ? o->box : all;
        int w = o->out_w ? o->out_w : box.right - box.left, h = o->out_h ? o->out_h : box.bottom - box.top;
        uint8_t *out = malloc((size_t)w * (size_t)h * 3);
        CHECK(out, "out of memory");
        rc = image_decode(d, &box, &o->opt, w, h, out);
        if (rc == 0) {
            printf("ok %d %d %d %d\n", info.w, info.h, w, h);
            fwrite(out, 1, (size_t)w * (size_t)h * 3, stdout);
        }
        free(out);
    }
    CHECK(rc >= 0, "%s", err_get());
    if (rc == 1) printf("bad %s\n", image_why(d));
    fflush(stdout);
    return 0;
}

int main(void)
{
    char          line[4096];
    Order         o;
    ImageDecoder *d;
    CHECK(image_decoder_create(&d, 0) == 0, "%s", err_get());
    while (fgets(line, sizeof line, stdin)) {
        char  *data;
        size_t n;
        CHECK(parse(line, &o) == 0, "cannot read: %s", line);
        CHECK(file_read_all(o.path, (size_t)1 << 30, &data, &n) == 0, "%s", err_get());
        decode(d, &o, &(ImageBytes){ (uint8_t *)data, n, 0, 0, 0 });
        free(data);
    }
    ImageTimes t = image_times(d);
    fprintf(stderr, "decode %.3f s, resize %.3f s\n", t.decode_s, t.resize_s);
    image_decoder_destroy(d);
    return 0;
}
