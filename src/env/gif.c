#include "env/gif.h"

#include "base/err.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"

#include <stdlib.h>
#include <string.h>

enum { COLORS = 256, TABLE = 8192 /* slots for colours: a power of two well above 256 */ };

static int put16(FILE *f, int x)
{
    uint8_t b[2] = { (uint8_t)x, (uint8_t)(x >> 8) };
    return file_write(f, b, sizeof b);
}

int gif_open(Gif *g, const char *path, int width, int height, int fps)
{
    *g = (Gif){ .width = width, .height = height, .delay_cs = MAX(2, (100 + fps / 2) / MAX(fps, 1)) };
    CHECK(width > 0 && height > 0 && width <= 65535 && height <= 65535, "%d x %d", width, height);
    if (str_copy(g->path, sizeof g->path, path) < 0) return err_user("%s: the path is too long", path);
    g->index = mem_alloc((size_t)width * (size_t)height);
    if (!g->index) return err_sys("memory for a picture");
    g->file = file_create_tmp(path);
    if (!g->file) {
        gif_discard(g);
        return -1;
    }
    static const uint8_t forever[] = { 0x70, 0,   0,   0x21, 0xff, 11,  'N', 'E', 'T', 'S', 'C',
                                       'A',  'P', 'E', '2',  '.',  '0', 3,   1,   0,   0,   0 };
    if (file_write(g->file, "GIF89a", 6) < 0 || put16(g->file, width) < 0 || put16(g->file, height) < 0)
        return -1;
    return file_write(g->file, forever, sizeof forever);
}

/* ---- colours ------------------------------------------------------------------------------------------- */

/* Fills index and palette with the frame's own colours; 0 when there are more than 256. */
static int exact_palette(Gif *g, const uint8_t *rgb, uint8_t *palette)
{
    int32_t key[TABLE];
    uint8_t value[TABLE];
    int     n = 0;
    for (int i = 0; i < TABLE; i++) key[i] = -1;
    for (int64_t p = 0; p < (int64_t)g->width * g->height; p++) {
        int32_t  c = rgb[3 * p] << 16 | rgb[3 * p + 1] << 8 | rgb[3 * p + 2];
        uint32_t h = (uint32_t)c * 2654435761u >> 19;
        while (key[h] >= 0 && key[h] != c) h = (h + 1) % TABLE;
        if (key[h] < 0) {
            if (n == COLORS) return 0;
            key[h]   = c;
            value[h] = (uint8_t)n;
            memcpy(palette + 3 * n++, rgb + 3 * p, 3);
        }
        g->index[p] = value[h];
    }
    return 1;
}

static void cube_palette(Gif *g, const uint8_t *rgb, uint8_t *palette)
{
    for (int i = 0; i < 6 * 7 * 6; i++) {
        palette[3 * i]     = (uint8_t)(i / 42 * 255 / 5);
        palette[3 * i + 1] = (uint8_t)(i / 6 % 7 * 255 / 6);
        palette[3 * i + 2] = (uint8_t)(i % 6 * 255 / 5);
    }
    for (int64_t p = 0; p < (int64_t)g->width * g->height; p++) {
        const uint8_t *c = rgb + 3 * p;
        g->index[p] =
            (uint8_t)((c[0] * 5 + 127) / 255 * 42 + (c[1] * 6 + 127) / 255 * 6 + (c[2] * 5 + 127) / 255);
    }
}

/* ---- LZW: codes of 9 to 12 bits, least significant bit first, in blocks of at most 255 bytes ----------- */

enum { LZW_CLEAR = 256, LZW_END = 257, LZW_FIRST = 258, LZW_MOST = 4096 };

typedef struct {
    FILE    *file;
    uint8_t  block[255];
    int      n;
    uint32_t bits;
    int      n_bit, failed;
} Packer;

static void flush_block(Packer *k)
{
    uint8_t n = (uint8_t)k->n;
    if (k->n == 0) return;
    if (file_write(k->file, &n, 1) < 0 || file_write(k->file, k->block, n) < 0) k->failed = 1;
    k->n = 0;
}

static void put_code(Packer *k, int code, int width)
{
    k->bits |= (uint32_t)code << k->n_bit;
    for (k->n_bit += width; k->n_bit >= 8; k->n_bit -= 8, k->bits >>= 8) {
        k->block[k->n++] = (uint8_t)k->bits;
        if (k->n == (int)sizeof k->block) flush_block(k);
    }
}

/* The dictionary maps (code, next byte) to a code; 8192 slots hold at most 4096 - 258 of them. */
static int write_lzw(Gif *g)
{
    Packer   k = { .file = g->file };
    uint32_t key[TABLE];
    uint16_t value[TABLE];
    int      next = LZW_FIRST, width = 9, code = g->index[0];
    memset(key, 0xff, sizeof key);
    put_code(&k, LZW_CLEAR, width);
    for (int64_t p = 1; p < (int64_t)g->width * g->height; p++) {
        uint32_t pair = (uint32_t)code << 8 | g->index[p], h = pair * 2654435761u >> 19;
        while (key[h] != UINT32_MAX && key[h] != pair) h = (h + 1) % TABLE;
        if (key[h] == pair) {
            code = value[h];
            continue;
        }
        put_code(&k, code, width);
        code = g->index[p];
        if (next < LZW_MOST) {
            key[h]   = pair;
            value[h] = (uint16_t)next;
            if (next == 1 << width) width++;
            next++;
        } else {
            put_code(&k, LZW_CLEAR, width);
            memset(key, 0xff, sizeof key);
            next  = LZW_FIRST;
            width = 9;
        }
    }
    put_code(&k, code, width);
    /* The decoder adds an entry after that code as well. */
    if (next == 1 << width && width < 12) width++;
    put_code(&k, LZW_END, width);
    if (k.n_bit > 0) put_code(&k, 0, 8 - k.n_bit);
    flush_block(&k);
    return k.failed ? -1 : file_write(g->file, "", 1);
}

int gif_frame(Gif *g, const uint8_t *rgb)
{
    uint8_t palette[3 * COLORS] = { 0 };
    if (!exact_palette(g, rgb, palette)) cube_palette(g, rgb, palette);
    uint8_t control[8] = { 0x21, 0xf9, 4, 4, (uint8_t)g->delay_cs, (uint8_t)(g->delay_cs >> 8), 0, 0 };
    TRY(file_write(g->file, control, sizeof control));
    TRY(file_write(g->file, "\x2c\0\0\0\0", 5));
    TRY(put16(g->file, g->width));
    TRY(put16(g->file, g->height));
    TRY(file_write(g->file, "\x87", 1)); /* a palette of 2^8 colours follows */
    TRY(file_write(g->file, palette, sizeof palette));
    TRY(file_write(g->file, "\x08", 1)); /* codes begin with 8 bits + 1 */
    return write_lzw(g);
}

int gif_finish(Gif *g)
{
    int rc = file_write(g->file, "\x3b", 1);
    if (rc == 0) rc = file_publish(&g->file, g->path);
    gif_discard(g);
    return rc;
}

void gif_discard(Gif *g)
{
    file_discard(&g->file);
    free(g->index);
    g->index = NULL;
}
