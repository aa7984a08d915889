/* Screen: a grid of characters that a view is drawn into, before it goes to a terminal or a file.
 *
 * 1. Drawing outside the grid is cut off, never an error: views are drawn for any size.
 * 2. One character is one cell. Text is UTF-8; a character that is not printable becomes '?'. */
#ifndef WATCH_SCREEN_H
#define WATCH_SCREEN_H

#include <stdio.h>

typedef enum {
    STYLE_PLAIN,
    STYLE_BOLD,
    STYLE_DIM,
    STYLE_GOOD,
    STYLE_WARN,
    STYLE_BAD,
    STYLE_LINE,
    STYLE_SELECTED
} Style;

typedef struct {
    char          text[5]; /* one character, terminated; "" is a space */
    unsigned char style;
} ScreenCell;

typedef struct {
    int         columns, rows;
    int         ascii; /* 1: only ASCII is drawn */
    ScreenCell *cell;  /* rows x columns */
} Screen;

int  screen_init(Screen *s, int columns, int rows, int ascii); /* negative after err_set() */
void screen_deinit(Screen *s);
void screen_clear(Screen *s);

/* Writes text at (row, column), at most `width` cells (0: to the edge). Returns the column behind it. */
int screen_put(Screen *s, int row, int column, int width, Style style, const char *text);
int screen_printf(Screen *s, int row, int column, Style style, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
void screen_rule(Screen *s, int row, const char *title); /* a line across, with a title in it */
void screen_style(Screen *s, int row, Style style);      /* of a whole row */

/* n values, oldest first, as a curve `width` cells wide; several values that share a cell are averaged. */
void screen_spark(Screen *s, int row, int column, int width, Style style, const double *value, int n);
/* A bar for a share from 0 to 1; NAN: "n/a". */
void screen_bar(Screen *s, int row, int column, int width, double share);

void screen_write(const Screen *s, FILE *out); /* plain text, without spaces at line ends */

#endif
