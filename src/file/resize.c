#include "file/resize.h"

#include "base/err.h"
#include "base/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { POINT = 22, HALF = 1 << (POINT - 1) }; /* 8 bits of pixel, 2 bits for cubic overshoot */

typedef int32_t v8i __attribute__((vector_size(32), aligned(4)));
typedef uint8_t v8b __attribute__((vector_size(8), aligned(1)));

ResizeBox resize_crop(int x, int y, int w, int h)
{
    return (ResizeBox){ x, y, (double)x + w, (double)y + h, x, y, x + w, y + h };
}

/* ---- Weights ------------------------------------------------------------------------------------------- */

static double triangle(double x)
{
    x = fabs(x);
    return x < 1.0 ? 1.0 - x : 0.0;
}

static double cubic(double x)
{
    const double a = -0.5;
    x              = fabs(x);
    if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
    if (x < 2.0) return (((x - 5) * x + 8) * x - 4) * a;
    return 0.0;
}

static int32_t fixed(double w) { return (int32_t)(w * (1 << POINT) + (w < 0 ? -0.5 : 0.5)); }

/* Weights of the output whose middle is at `center`, over inputs of [a->lo, a->hi). shrink: inputs per unit of f. */
static void weigh(ResizeAxis *a, int out, double center, double support, double shrink, double (*f)(double))
{
    double   sum  = 0;
    int32_t *w    = a->w + (int64_t)out * a->taps;
    int      from = MAX((int)(center - support + 0.5), a->lo), to = MIN((int)(center + support + 0.5), a->hi);
    from = MIN(from, a->hi - 1);
    to   = MAX(to, from + 1);
    for (int i = from; i < to; i++) sum += f((i - center + 0.5) * shrink);
    for (int i = from; i < to; i++) {
        w[i - from] = fixed(sum != 0.0 ? f((i - center + 0.5) * shrink) / sum : 1.0 / (to - from));
    }
    for (int i = to - from; i < a->taps; i++) w[i] = 0;
    a->first[out] = from;
    a->count[out] = to - from;
}

/* taps is even, so that the horizontal pass may take two at a time. */
static int axis_plan(ResizeAxis *a, double in0, double in1, int lo, int hi, int n_out, ResizeFilter filter)
{
    double scale = (in1 - in0) / n_out, width = scale < 1.0 ? 1.0 : scale;
    double support = (filter == RESIZE_BICUBIC ? 2.0 : 1.0) * width;
    int    taps    = ((int)ceil(support) * 2 + 2) & ~1;
    size_t need    = ((size_t)taps + 2) * (size_t)n_out * sizeof(int32_t);
    if (need > a->cap_bytes) {
        free(a->first);
        a->cap_bytes = 0;
        a->first     = mem_alloc(need);
        if (!a->first) return err_sys("the weights of a resize of %d to %d pixels", hi - lo, n_out);
        a->cap_bytes = need;
    }
    a->count = a->first + n_out;
    a->w     = a->count + n_out;
    a->n_out = n_out;
    a->taps  = taps;
    a->lo    = lo;
    a->hi    = hi;
    for (int i = 0; i < n_out; i++) {
        weigh(a, i, in0 + (i + 0.5) * scale, support, 1.0 / width,
              filter == RESIZE_BICUBIC ? cubic : triangle);
    }
    /* first and first + count never fall from one output to the next. */
    a->lo = a->first[0];
    a->hi = a->first[n_out - 1] + a->count[n_out - 1];
    return 0;
}

int resize_begin(Resize *r, const ResizeBox *box, ResizeFilter filter, int out_w, int out_h, uint8_t *out)
{
    CHECK(out_w > 0 && out_h > 0, "a resize to %d x %d", out_w, out_h);
    CHECK(box->x1 > box->x0 && box->y1 > box->y0 && box->left >= 0 && box->top >= 0 &&
              box->right > box->left && box->bottom > box->top,
          "a resize of an empty box");
    TRY(axis_plan(&r->x, box->x0, box->x1, box->left, box->right, out_w, filter));
    TRY(axis_plan(&r->y, box->y0, box->y1, box->top, box->bottom, out_h, filter));
    r->row_bytes = ((size_t)out_w * 3 + 63) / 64 * 64;
    size_t need  = r->row_bytes * (size_t)r->y.taps;
    if (need > r->ring_bytes) {
        free(r->ring);
        r->ring_bytes = 0;
        r->ring       = mem_alloc(need);
        if (!r->ring) return err_sys("the rows of a resize to %d x %d", out_w, out_h);
        r->ring_bytes = need;
    }
    r->out      = out;
    r->next_out = 0;
    return 0;
}

void resize_deinit(Resize *r)
{
    free(r->x.first);
    free(r->y.first);
    free(r->ring);
    memset(r, 0, sizeof *r);
}

/* ---- Passes -------------------------------------------------------------------------------------------- */

static inline uint8_t round8(int32_t sum)
{
    sum >>= POINT;
    return (uint8_t)(sum < 0 ? 0 : sum > 255 ? 255 : sum);
}

/* Two pixels of four channels fill a vector of eight sums; the two halves are added at the end. */
static void pass_x(const ResizeAxis *a, const uint8_t *rgbx, int col0, uint8_t *out)
{
    for (int i = 0; i < a->n_out; i++) {
        const uint8_t *p   = rgbx + 4 * (int64_t)(a->first[i] - col0);
        const int32_t *w   = a->w + (int64_t)i * a->taps;
        v8i            sum = { HALF, HALF, HALF, HALF, 0, 0, 0, 0 };
        for (int k = 0; k < a->count[i]; k += 2) {
            v8b two;
            memcpy(&two, p + 4 * k, sizeof two);
            v8i weight = { w[k], w[k], w[k], w[k], w[k + 1], w[k + 1], w[k + 1], w[k + 1] };
            sum += __builtin_convertvector(two, v8i) * weight;
        }
        out[3 * i]     = round8(sum[0] + sum[4]);
        out[3 * i + 1] = round8(sum[1] + sum[5]);
        out[3 * i + 2] = round8(sum[2] + sum[6]);
    }
}

enum { STRIPE = 64 };

/* One stripe of an output row. The sums stay in registers while the taps go by. */
static inline void pass_y_stripe(const Resize *r, int y, size_t at, int n, uint8_t *out)
{
    const int32_t *w = r->y.w + (int64_t)y * r->y.taps;
    int32_t        sum[STRIPE];
    for (int i = 0; i < STRIPE; i++) sum[i] = HALF;
    for (int k = 0; k < r->y.count[y]; k++) {
        const uint8_t *row = r->ring + (size_t)((r->y.first[y] + k) % r->y.taps) * r->row_bytes + at;
        for (int i = 0; i < STRIPE; i++) sum[i] += w[k] * row[i];
    }
    for (int i = 0; i < n; i++) out[i] = round8(sum[i]);
}

static void pass_y(const Resize *r, int y)
{
    size_t   n   = (size_t)r->x.n_out * 3;
    uint8_t *out = r->out + (size_t)y * n;
    size_t   at  = 0;
    for (; at + STRIPE <= n; at += STRIPE) pass_y_stripe(r, y, at, STRIPE, out + at);
    if (at < n) pass_y_stripe(r, y, at, (int)(n - at), out + at);
}

void resize_row(Resize *r, int row, const uint8_t *rgbx, int col0)
{
    if (row < r->y.lo || row >= r->y.hi) return;
    pass_x(&r->x, rgbx, col0, r->ring + (size_t)(row % r->y.taps) * r->row_bytes);
    while (r->next_out < r->y.n_out && r->y.first[r->next_out] + r->y.count[r->next_out] - 1 <= row)
        pass_y(r, r->next_out++);
}

int resize_is_done(const Resize *r) { return r->next_out == r->y.n_out; }
