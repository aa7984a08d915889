/* Resize: pixels to another size with antialiasing, row by row, as Pillow does for 8-bit images.
 *
 * 1. The weights are Pillow's: a triangle (or cubic) that is as wide as the scale, 22 bits after the point.
 *    The horizontal pass comes first and rounds to 8 bits. So the result is Pillow's, bit for bit.
 * 2. Rows come in from top to bottom, 4 bytes a pixel (the fourth is ignored). Rows go out as packed RGB.
 *    Only as many rows are kept as one output row needs.
 * 3. Memory grows to the largest need and is kept: no allocation for an image like the last one.
 * 4. A row that is passed in has RESIZE_PAD readable bytes behind its last pixel. */
#ifndef FILE_RESIZE_H
#define FILE_RESIZE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { RESIZE_PAD = 8 };

typedef enum { RESIZE_BILINEAR, RESIZE_BICUBIC } ResizeFilter;

/* The box [x0,x1) x [y0,y1) becomes the output. The filter reads pixels of [left,right) x [top,bottom)
 * only. */
typedef struct {
    double x0, y0, x1, y1;
    int    left, top, right, bottom;
} ResizeBox;

/* One axis: output i is the sum of count[i] inputs from first[i] on, with the weights at w +
 * i*taps*copies. The horizontal one has each weight 4 times, once for each channel. */
typedef struct {
    int      n_out, taps, copies;
    int32_t *first, *count, *w;
    int      lo, hi; /* inputs [lo, hi) are used at all */
    size_t   cap_bytes;
} ResizeAxis;

typedef struct {
    ResizeAxis x, y;
    uint8_t   *ring; /* y.taps rows after the horizontal pass */
    size_t     ring_bytes, row_bytes;
    uint8_t   *out;
    int        next_out;
} Resize;

/* A box around the whole integer rectangle that reads nothing outside it: crop, then resize. */
ResizeBox resize_crop(int x, int y, int w, int h);

/* Plans one image. out: out_h rows of out_w*3 bytes, borrowed until the last row. The box is not empty and
 * lies inside its limits. Negative after err_sys(): no memory. */
int resize_begin(Resize *r, const ResizeBox *box, ResizeFilter filter, int out_w, int out_h, uint8_t *out);

/* Takes input row number `row`, of which rgbx is the pixel of column col0. Every row of [y.lo, y.hi) is
 * due once, in order, with the columns [x.lo, x.hi). */
void resize_row(Resize *r, int row, const uint8_t *rgbx, int col0);

/* 1: every output row is there. */
int resize_is_done(const Resize *r);

void resize_deinit(Resize *r); /* frees; a zeroed one is left alone */

#ifdef __cplusplus
}
#endif
#endif
