/* Svg: line plots as text. Colours come from the page's style sheet: .line0, .line1 ..., .axis, .grid. */
#ifndef WATCH_SVG_H
#define WATCH_SVG_H

#include <stdio.h>

enum { SVG_LINES = 4 };

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
/* Text for HTML and SVG: <, >, &, quotation marks are escaped, control characters become spaces. */
void svg_text(FILE *out, const char *s);

#endif
