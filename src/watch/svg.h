/* Svg: line plots as text. In a page colours come from its style sheet: .line0, .line1 ..., .axis, .grid. A
 * picture has its own. */
#ifndef WATCH_SVG_H
#define WATCH_SVG_H

#include <stdio.h>

enum { SVG_LINES = 16 };

typedef struct {
    const char   *name;
    const double *x, *y; /* pairs with a NAN are left out */
    int           n;
} SvgLine;

typedef struct {
    const char *title; /* with its unit */
    double      scale; /* numbers are multiplied by it: 100 for shares */
    SvgLine     line[SVG_LINES];
    int         n_line;
} SvgPlot;

/* 0 when there is nothing to draw: fewer than two points. */
int svg_plot(FILE *out, const SvgPlot *p);
/* A file of its own: n plots beneath one another, and a legend. 0: none of them has two points. */
int svg_picture(FILE *out, const SvgPlot *plot, int n);
/* Text for HTML and SVG: <, >, &, quotation marks are escaped, control characters become spaces. */
void svg_text(FILE *out, const char *s);

#endif
