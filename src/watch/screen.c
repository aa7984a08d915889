#include "watch/screen.h"

#include "base/err.h"
#include "base/mem.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

int screen_init(Screen *s, int columns, int rows, int ascii)
{
    *s      = (Screen){ columns, rows, ascii, NULL };
    s->cell = (ScreenCell *)mem_zeroed((size_t)columns * (size_t)rows, sizeof *s->cell);
    return s->cell ? 0 : err_sys("memory for the screen");
}

void screen_deinit(Screen *s)
{
    free(s->cell);
    s->cell = NULL;
}

void screen_clear(Screen *s) { memset(s->cell, 0, (size_t)s->columns * (size_t)s->rows * sizeof *s->cell); }

/* Bytes of the character at s, which ends with a zero: 1 for what is not UTF-8. */
static int char_bytes(const char *s)
{
    unsigned char c = (unsigned char)s[0];
    int           n = c < 0x80                ? 1
                      : c >= 0xc2 && c < 0xe0 ? 2
                      : c >= 0xe0 && c < 0xf0 ? 3
                      : c >= 0xf0 && c < 0xf5 ? 4
                                              : 1;
    for (int i = 1; i < n; i++) {
        if (((unsigned char)s[i] & 0xc0) != 0x80) return 1;
    }
    return n;
}

int screen_put(Screen *s, int row, int column, int width, Style style, const char *text)
{
    int end = width > 0 ? MIN(s->columns, column + width) : s->columns;
    for (; *text && column < end; column++) {
        int n = char_bytes(text), plain = n > 1 || ((unsigned char)*text >= 32 && (unsigned char)*text < 127);
        if (row >= 0 && row < s->rows && column >= 0) {
            ScreenCell *c = &s->cell[(size_t)row * (size_t)s->columns + (size_t)column];
            memset(c->text, 0, sizeof c->text);
            memcpy(c->text, plain && !(s->ascii && n > 1) ? text : "?",
                   plain && !(s->ascii && n > 1) ? (size_t)n : 1);
            c->style = (unsigned char)style;
        }
        text += n;
    }
    return column;
}

int screen_printf(Screen *s, int row, int column, Style style, const char *fmt, ...)
{
    char    text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return screen_put(s, row, column, 0, style, text);
}

void screen_rule(Screen *s, int row, const char *title)
{
    for (int c = 0; c < s->columns; c++)
        screen_put(s, row, c, 1, STYLE_LINE, s->ascii ? "-" : "\xe2\x94\x80");
    if (!*title) return;
    screen_put(s, row, 2, 1, STYLE_PLAIN, " ");
    int end = screen_put(s, row, 3, s->columns - 6, STYLE_BOLD, title);
    screen_put(s, row, end, 1, STYLE_PLAIN, " ");
}

void screen_style(Screen *s, int row, Style style)
{
    for (int c = 0; row >= 0 && row < s->rows && c < s->columns; c++)
        s->cell[(size_t)row * (size_t)s->columns + (size_t)c].style = (unsigned char)style;
}

void screen_spark(Screen *s, int row, int column, int width, Style style, const double *value, int n)
{
    static const char *const fine[]  = { "\xe2\x96\x81", "\xe2\x96\x82", "\xe2\x96\x83", "\xe2\x96\x84",
                                         "\xe2\x96\x85", "\xe2\x96\x86", "\xe2\x96\x87", "\xe2\x96\x88" };
    static const char *const rough[] = { "_", ".", "-", "~", "=", "+", "*", "#" };
    double                   lo = INFINITY, hi = -INFINITY;
    for (int i = 0; i < n; i++) {
        lo = MIN(lo, value[i]);
        hi = MAX(hi, value[i]);
    }
    int used = MIN(n, width);
    for (int c = 0; c < used; c++) {
        int    from = (int)((int64_t)c * n / used), to = MAX(from + 1, (int)((int64_t)(c + 1) * n / used));
        double sum = 0;
        for (int i = from; i < to; i++) sum += value[i];
        double x     = sum / (to - from);
        int    level = hi > lo ? (int)((x - lo) / (hi - lo) * 7.999) : 3;
        screen_put(s, row, column + c, 1, style, (s->ascii ? rough : fine)[MIN(7, MAX(0, level))]);
    }
}

void screen_bar(Screen *s, int row, int column, int width, double share)
{
    if (isnan(share)) {
        screen_put(s, row, column, width, STYLE_DIM, "n/a");
        return;
    }
    int full = (int)lround(MIN(1, MAX(0, share)) * width);
    for (int c = 0; c < width; c++) {
        const char *on = s->ascii ? "#" : "\xe2\x96\x88", *off = s->ascii ? "." : "\xe2\x96\x91";
        screen_put(s, row, column + c, 1, c < full ? STYLE_GOOD : STYLE_DIM, c < full ? on : off);
    }
}

void screen_write(const Screen *s, FILE *out)
{
    for (int r = 0; r < s->rows; r++) {
        const ScreenCell *line = &s->cell[(size_t)r * (size_t)s->columns];
        int               n    = s->columns;
        while (n > 0 && (!line[n - 1].text[0] || strcmp(line[n - 1].text, " ") == 0)) n--;
        for (int c = 0; c < n; c++) fputs(line[c].text[0] ? line[c].text : " ", out);
        fputc('\n', out);
    }
}
