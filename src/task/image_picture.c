#include "task/image_picture.h"

#include "base/err.h"
#include "base/file.h"
#include "base/str.h"
#include "file/image_write.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CELL_W = 150, CELL_H = 212, SIDE = 128, COLUMNS = 6, GAP = 11, QUALITY = 90 };

static int need(ImagePicture *p, size_t more)
{
    if (p->n + more <= p->cap) return 0;
    size_t cap  = MAX(2 * p->cap, p->n + more);
    char  *text = realloc(p->text, cap);
    if (!text) return err_sys("memory for a picture");
    p->text = text;
    p->cap  = cap;
    return 0;
}

__attribute__((format(printf, 2, 3))) static int put(ImagePicture *p, const char *fmt, ...)
{
    va_list ap;
    TRY(need(p, 2048));
    va_start(ap, fmt);
    int n = vsnprintf(p->text + p->n, 2048, fmt, ap);
    va_end(ap);
    p->n += (size_t)MIN(MAX(n, 0), 2047);
    return 0;
}

/* Names come from folders: what XML reads as its own, or does not know, is replaced. */
static const char *plain(const char *text, char *buf, size_t n)
{
    size_t k = 0;
    for (; text[k] && k + 1 < n; k++)
        buf[k] = (unsigned char)text[k] < ' ' || strchr("<>&\"'", text[k]) ? '_' : text[k];
    buf[k] = '\0';
    return buf;
}

static int put_base64(ImagePicture *p, const uint8_t *x, size_t n)
{
    TRY(need(p, (n + 2) / 3 * 4 + 1));
    p->n += str_base64(p->text + p->n, x, n);
    return 0;
}

static int put_image(ImagePicture *p, const ImageAnswer *a, int x, int y)
{
    uint8_t *jpeg;
    size_t   n;
    TRY(image_encode_jpeg(a->rgb, a->size, a->size, QUALITY, &jpeg, &n));
    int rc =
        put(p, "<image x='%d' y='%d' width='%d' height='%d' href='data:image/jpeg;base64,", x, y, SIDE, SIDE);
    if (rc == 0) rc = put_base64(p, jpeg, n);
    if (rc == 0) rc = put(p, "'/>\n");
    free(jpeg);
    return rc;
}

int image_picture_add(ImagePicture *p, const ImageAnswer *a)
{
    int         x = GAP + p->n_cell % COLUMNS * CELL_W, y = GAP + p->n_cell / COLUMNS * CELL_H;
    const char *colour = !a->label ? "#555" : a->right ? "#17803d" : "#c02626";
    char        buf[64];
    TRY(put_image(p, a, x, y));
    if (a->label)
        TRY(put(p, "<text x='%d' y='%d' font-weight='bold' fill='%s'>%s</text>\n", x, y + SIDE + 16, colour,
                plain(a->label, buf, sizeof buf)));
    for (int k = 0; k < IMAGE_ANSWERS && a->name[k]; k++) {
        int at = y + SIDE + 22 + 17 * k;
        TRY(put(p, "<rect x='%d' y='%d' width='%.1f' height='14' fill='%s' fill-opacity='0.25'/>\n", x, at,
                MAX(1.0, SIDE * a->share[k]), k == 0 ? colour : "#555"));
        TRY(put(p, "<text x='%d' y='%d' fill='#222'>%s %.0f %%</text>\n", x + 3, at + 11,
                plain(a->name[k], buf, sizeof buf), 100 * a->share[k]));
    }
    p->n_cell++;
    return 0;
}

int image_picture_write(const ImagePicture *p, const char *path)
{
    int   columns = MIN(p->n_cell, COLUMNS), rows = (p->n_cell + COLUMNS - 1) / COLUMNS;
    int   w = columns * CELL_W + GAP, h = rows * CELL_H + GAP;
    FILE *f = file_create_tmp(path);
    if (!f) return -1;
    fprintf(f,
            "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 %d %d' width='%d' height='%d' "
            "font-family='sans-serif' font-size='11'>\n<rect width='%d' height='%d' fill='#fff'/>\n",
            w, h, w, h, w, h);
    int rc = file_write(f, p->text, p->n);
    if (rc == 0) rc = file_write(f, "</svg>\n", strlen("</svg>\n"));
    if (rc == 0) rc = file_publish(&f, path);
    file_discard(&f);
    return rc;
}

void image_picture_deinit(ImagePicture *p)
{
    free(p->text);
    memset(p, 0, sizeof *p);
}
