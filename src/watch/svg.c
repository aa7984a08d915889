#include "watch/svg.h"

#include "base/err.h"

#include <math.h>

/* RIGHT: half of a label that stands at the end of the axis. */
enum { WIDTH = 520, HEIGHT = 200, LEFT = 62, RIGHT = 24, TOP = 10, BOTTOM = 26, MOST_POINTS = 600 };

typedef struct {
    double x0, x1, y0, y1;
} Frame;

void svg_text(FILE *out, const char *s)
{
    for (; *s; s++) {
        switch (*s) {
        case '<': fputs("&lt;", out); break;
        case '>': fputs("&gt;", out); break;
        case '&': fputs("&amp;", out); break;
        case '"': fputs("&quot;", out); break;
        default: fputc((unsigned char)*s < 32 && *s != '\n' && *s != '\t' ? ' ' : *s, out);
        }
    }
}

static int is_point(const SvgLine *l, int i) { return isfinite(l->x[i]) && isfinite(l->y[i]); }

/* Returns how many points there are. */
static int frame_of(const SvgPlot *p, Frame *f)
{
    int n = 0;
    *f    = (Frame){ INFINITY, -INFINITY, INFINITY, -INFINITY };
    for (int k = 0; k < p->n_line; k++) {
        for (int i = 0; i < p->line[k].n; i++) {
            const SvgLine *l = &p->line[k];
            if (!is_point(l, i)) continue;
            f->x0 = MIN(f->x0, l->x[i]);
            f->x1 = MAX(f->x1, l->x[i]);
            f->y0 = MIN(f->y0, l->y[i] * p->scale);
            f->y1 = MAX(f->y1, l->y[i] * p->scale);
            n++;
        }
    }
    double most = MAX(fabs(f->y0), fabs(f->y1));
    int    wide = f->y1 - f->y0 > 1e-9 * most; /* the mean of a constant has other last digits */
    double pad  = wide ? 0.05 * (f->y1 - f->y0) : most > 0 ? 0.1 * most : 1;
    int    low  = f->y0 >= 0; /* what is never negative gets no negative axis */
    f->y0 -= pad;
    f->y1 += pad;
    if (low) f->y0 = MAX(0, f->y0);
    if (f->x1 <= f->x0) f->x1 = f->x0 + 1;
    return n;
}

static double px(const Frame *f, double x)
{
    return LEFT + (x - f->x0) / (f->x1 - f->x0) * (WIDTH - LEFT - RIGHT);
}
static double py(const Frame *f, double y)
{
    return TOP + (f->y1 - y) / (f->y1 - f->y0) * (HEIGHT - TOP - BOTTOM);
}

/* Places of labels on an axis: 1, 2 or 5 times a power of ten apart. */
typedef struct {
    double first, step;
    int    n;
} Ticks;

/* At least two in the range, and at most six. */
static Ticks ticks_of(double lo, double hi)
{
    enum { PARTS = 5 };
    double raw = (hi - lo) / PARTS, base = pow(10, floor(log10(raw))), m = raw / base;
    double step = base * (m <= 1 ? 1 : m <= 2 ? 2 : m <= 5 ? 5 : 10), first = ceil(lo / step) * step;
    double n = floor((hi - first) / step) + 1;
    return (Ticks){ first, step, n >= 1 ? (int)MIN(n, PARTS + 1) : 0 };
}

/* The label of tick i, with as many digits as tell it from its neighbours. Returns buf. */
static const char *tick_text(char *buf, size_t n, const Ticks *t, int i)
{
    static const char *const unit[] = { "", "k", "M", "G", "T" };
    double                   x = t->first + i * t->step, step = t->step;
    int                      u = 0;
    for (; fabs(x) >= 1000 && u < ARRAY_LEN(unit) - 1; u++) {
        x /= 1000;
        step /= 1000;
    }
    double apart = fabs(x) / step;
    if (apart < 1e-6) x = 0;
    snprintf(buf, n, "%.*g%s", apart > 1 ? (int)MAX(4, ceil(log10(apart)) + 1) : 4, x, unit[u]);
    return buf;
}

static void put_axes(FILE *out, const Frame *f)
{
    char  text[32];
    Ticks ty = ticks_of(f->y0, f->y1), tx = ticks_of(f->x0, f->x1);
    for (int i = 0; i < ty.n; i++) {
        double y = py(f, ty.first + i * ty.step);
        fprintf(out, "<line class='grid' x1='%d' x2='%d' y1='%.1f' y2='%.1f'/>", LEFT, WIDTH - RIGHT, y, y);
        fprintf(out, "<text class='axis' text-anchor='end' x='%d' y='%.1f'>%s</text>", LEFT - 6, y + 4,
                tick_text(text, sizeof text, &ty, i));
    }
    for (int i = 0; i < tx.n; i++) {
        fprintf(out, "<text class='axis' text-anchor='middle' x='%.1f' y='%d'>%s</text>",
                px(f, tx.first + i * tx.step), HEIGHT - 8, tick_text(text, sizeof text, &tx, i));
    }
}

static void put_line(FILE *out, const SvgPlot *p, const Frame *f, int k)
{
    const SvgLine *l    = &p->line[k];
    int            skip = MAX(1, l->n / MOST_POINTS), open = 0, n = 0;
    for (int i = 0; i < l->n; i++) n += is_point(l, i);
    if (n < MOST_POINTS) skip = 1;
    fprintf(out, "<path class='line line%d' d='", k);
    for (int i = 0; i < l->n; i++) {
        if (!is_point(l, i) || (i % skip != 0 && i != l->n - 1)) continue;
        fprintf(out, "%c%.1f %.1f", open ? 'L' : 'M', px(f, l->x[i]), py(f, l->y[i] * p->scale));
        open = 1;
    }
    fputs("'/>", out);
}

static void put_inside(FILE *out, const SvgPlot *p, const Frame *f)
{
    put_axes(out, f);
    for (int k = 0; k < p->n_line; k++) put_line(out, p, f, k);
}

int svg_plot(FILE *out, const SvgPlot *p)
{
    Frame f;
    if (frame_of(p, &f) < 2) return 0;
    fputs("<figure><figcaption>", out);
    svg_text(out, p->title);
    for (int k = 0; p->n_line > 1 && k < p->n_line; k++) {
        fprintf(out, " <span class='key key%d'>", k);
        svg_text(out, p->line[k].name);
        fputs("</span>", out);
    }
    fprintf(out, "</figcaption><svg viewBox='0 0 %d %d' role='img' aria-label='", WIDTH, HEIGHT);
    svg_text(out, p->title);
    fputs("'>", out);
    put_inside(out, p, &f);
    fputs("</svg></figure>\n", out);
    return 1;
}

/* ---- A picture ----------------------------------------------------------------------------------------- */

/* The colours of the page. From the ninth line on they come again, dashed. */
static void put_picture_style(FILE *out)
{
    static const char *const light[] = { "#0b7285", "#d9480f", "#5f3dc4", "#2b8a3e",
                                         "#c2255c", "#1864ab", "#846358", "#5c940d" };
    static const char *const dark[]  = { "#3bc9db", "#ff922b", "#b197fc", "#69db7c",
                                         "#f783ac", "#74c0fc", "#e0b69f", "#c0eb75" };
    fputs("<style>text{font:12px system-ui,sans-serif;fill:#1c2227}.title{font-weight:600;font-size:14px}"
          ".axis{font-size:11px;fill:#5d6973}.grid{stroke:#e3e0d8}.back{fill:#fff}"
          ".line{fill:none;stroke-width:1.8;stroke-linejoin:round}",
          out);
    for (int k = 0; k < SVG_LINES; k++)
        fprintf(out, ".line%d{stroke:%s%s}", k, light[k % ARRAY_LEN(light)],
                k < ARRAY_LEN(light) ? "" : ";stroke-dasharray:6 4");
    fputs("@media(prefers-color-scheme:dark){text{fill:#e6e9eb}.axis{fill:#93a1ac}.grid{stroke:#2b343c}"
          ".back{fill:#1a2026}",
          out);
    for (int k = 0; k < SVG_LINES; k++) fprintf(out, ".line%d{stroke:%s}", k, dark[k % ARRAY_LEN(dark)]);
    fputs("}</style>", out);
}

/* The names of the lines beneath one another; all plots have the same. */
static void put_legend(FILE *out, const SvgPlot *p)
{
    enum { ROW = 18, DASH = 22 };
    for (int k = 0; k < p->n_line; k++) {
        int y = TOP + ROW / 2 + k * ROW;
        fprintf(out, "<path class='line line%d' d='M%d %dh%d'/><text x='%d' y='%d'>", k, LEFT, y, DASH,
                LEFT + DASH + 8, y + 4);
        svg_text(out, p->line[k].name);
        fputs("</text>", out);
    }
}

int svg_picture(FILE *out, const SvgPlot *plot, int n)
{
    enum { TITLE = 26, ROW = 18, GAP = 12 };
    Frame f;
    int   drawn = 0, top = 2 * TOP + (n > 0 ? plot[0].n_line : 0) * ROW;
    for (int i = 0; i < n; i++) drawn += frame_of(&plot[i], &f) >= 2;
    if (drawn == 0) return 0;
    int height = top + drawn * (TITLE + HEIGHT + GAP);
    fprintf(out, "<svg xmlns='http://www.w3.org/2000/svg' width='%d' height='%d' viewBox='0 0 %d %d'>",
            2 * WIDTH, 2 * height, WIDTH, height);
    put_picture_style(out);
    fputs("<rect class='back' width='100%' height='100%'/>", out);
    put_legend(out, &plot[0]);
    for (int i = 0, y = top; i < n; i++) {
        if (frame_of(&plot[i], &f) < 2) continue;
        fprintf(out, "<text class='title' x='%d' y='%d'>", LEFT, y + TITLE / 2);
        svg_text(out, plot[i].title);
        fprintf(out, "</text><svg y='%d' width='%d' height='%d'>", y + TITLE, WIDTH, HEIGHT);
        put_inside(out, &plot[i], &f);
        fputs("</svg>", out);
        y += TITLE + HEIGHT + GAP;
    }
    fputs("</svg>\n", out);
    return 1;
}
