/* Draw: rectangles, circles and thick lines into RGB bytes, for pictures of environments.
 *
 * 1. Coordinates are pixels from the upper left corner, as double; a pixel is coloured when its centre is
 *    inside.
 * 2. Whatever lies outside the picture is cut off. */
#ifndef ENV_DRAW_H
#define ENV_DRAW_H

#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    uint8_t *rgb; /* borrowed, [height][width][3] */
    int      width, height;
} Draw;

typedef struct {
    uint8_t r, g, b;
} DrawColor;

void draw_fill(const Draw *d, DrawColor c);
void draw_rect(const Draw *d, double x0, double y0, double x1, double y1, DrawColor c);
void draw_disc(const Draw *d, double x, double y, double radius, DrawColor c);
void draw_line(const Draw *d, double x0, double y0, double x1, double y1, double width, DrawColor c);

/* The picture as half-block characters with 24-bit colours, at most `columns` wide and `rows` high. */
void draw_terminal(const Draw *d, int columns, int rows, FILE *out);

#ifdef __cplusplus
}
#endif
#endif
