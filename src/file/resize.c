#include "file/resize.h"

#include "base/err.h"
#include "base/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { POINT = 22, HALF = 1 << (POINT - 1) }; /* 8 bits of pixel, 2 bits for cubic overshoot */

typedef int32_t  v4i __attribute__((vector_size(16)));
typedef int32_t  v8i __attribute__((vector_size(32)));
typedef int32_t  v16i __attribute__((vector_size(64)));
typedef uint8_t  v4b __attribute__((vector_size(4)));
typedef uint8_t  v8b __attribute__((vector_size(8)));
typedef uint8_t  v16b __attribute__((vector_size(16)));
typedef uint16_t v8h __attribute__((vector_size(16)));
typedef uint16_t v16h __attribute__((vector_size(32)));

ResizeBox resize_crop(int x, int y, int w, int h)
{
    return (ResizeBox){ x, y, (double)x + w, (double)y + h, x, y, x + w, y + h };
}

/* ---- Weights --------------------------------------------------------------------------------------- */

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

/* Weights of the output whose middle is at `center`, over inputs of [a->lo, a->hi). shrink: inputs per
 * unit of f. */
static void weigh(ResizeAxis *a, int out, double center, double support, double shrink, double (*f)(double))
{
    double   sum  = 0;
    int32_t *w    = a->w + (int64_t)out * a->taps * a->copies;
    int      from = MAX((int)(center - support + 0.5), a->lo), to = MIN((int)(center + support + 0.5), a->hi);
    from = MIN(from, a->hi - 1);
    to   = MAX(to, from + 1);
    for (int i = from; i < to; i++) sum += f((i - center + 0.5) * shrink);
    for (int i = from; i < from + a->taps; i++) {
        int32_t v = 0;
        if (i < to) v = fixed(sum != 0.0 ? f((i - center + 0.5) * shrink) / sum : 1.0 / (to - from));
        for (int c = 0; c < a->copies; c++) *w++ = v;
    }
    a->first[out] = from;
    a->count[out] = to - from;
}

/* Inputs from in0 to in1 become the outputs; pixels from lo to hi may be read. */
typedef struct {
    double in0, in1;
    int    lo, hi;
} AxisSpan;

/* taps is even, so that the horizontal pass may take two at a time. */
static int axis_plan(ResizeAxis *a, AxisSpan s, int n_out, ResizeFilter filter)
{
    double scale = (s.in1 - s.in0) / n_out, width = scale < 1.0 ? 1.0 : scale;
    double support = (filter == RESIZE_BICUBIC ? 2.0 : 1.0) * width;
    int    taps    = ((int)ceil(support) * 2 + 2) & ~1;
    size_t need    = ((size_t)taps * (size_t)a->copies + 2) * (size_t)n_out * sizeof(int32_t);
    if (need > a->cap_bytes) {
        free(a->first);
        a->cap_bytes = 0;
        a->first     = mem_alloc(need);
        if (!a->first) return err_sys("the weights of a resize of %d to %d pixels", s.hi - s.lo, n_out);
        a->cap_bytes = need;
    }
    a->count = a->first + n_out;
    a->w     = a->count + n_out;
    a->n_out = n_out;
    a->taps  = taps;
    a->lo    = s.lo;
    a->hi    = s.hi;
    for (int i = 0; i < n_out; i++) {
        weigh(a, i, s.in0 + (i + 0.5) * scale, support, 1.0 / width,
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
    r->x.copies = 4;
    r->y.copies = 1;
    TRY(axis_plan(&r->x, (AxisSpan){ box->x0, box->x1, box->left, box->right }, out_w, filter));
    TRY(axis_plan(&r->y, (AxisSpan){ box->y0, box->y1, box->top, box->bottom }, out_h, filter));
    r->row_bytes = ((size_t)out_w * 3 + 1 + 63) / 64 * 64; /* pass_x() writes one byte more */
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

/* ---- Passes ---------------------------------------------------------------------------------------- */

/* Sums to pixels, in vectors: the point is dropped, and what is below 0 or above 255 is cut. */
#define ROUND8(sum, Int)                                                                                     \
    do {                                                                                                     \
        (sum) >>= POINT;                                                                                     \
        (sum) &= ~((sum) >> 31);                                                                             \
        Int over_ = (sum) > 255;                                                                             \
        (sum)     = ((sum) & ~over_) | (255 & over_);                                                        \
    } while (0)

/* Two pixels of four channels fill a vector of eight sums; the two halves are added at the end. Four bytes
 * are stored: the fourth is overwritten by the next pixel, or lies in the row's padding. */
static void pass_x(const ResizeAxis *a, const uint8_t *rgbx, int col0, uint8_t *out)
{
    for (int i = 0; i < a->n_out; i++) {
        const uint8_t *p   = rgbx + 4 * (int64_t)(a->first[i] - col0);
        const int32_t *w   = a->w + (int64_t)i * a->taps * 4;
        v8i            sum = { HALF, HALF, HALF, HALF, 0, 0, 0, 0 };
        for (int k = 0; k < a->count[i]; k += 2) {
            v8b two;
            v8i weight;
            memcpy(&two, p + 4 * k, sizeof two);
            memcpy(&weight, w + 4 * k, sizeof weight);
            /* In two steps: GCC 12 takes the one step byte by byte. */
            sum += __builtin_convertvector(__builtin_convertvector(two, v8h), v8i) * weight;
        }
        v4i half[2];
        memcpy(half, &sum, sizeof half);
        v4i all = half[0] + half[1];
        ROUND8(all, v4i);
        v4b px = __builtin_convertvector(all, v4b);
        memcpy(out + 3 * i, &px, sizeof px);
    }
}

enum { LANES = 16, STRIPE = 4 * LANES };

/* One stripe of an output row, whose first input is in `slot` of the ring. The sums stay in registers
 * while the taps go by. */
static inline void pass_y_stripe(const Resize *r, int y, int slot, size_t at, uint8_t out[STRIPE])
{
    const int32_t *w = r->y.w + (int64_t)y * r->y.taps;
    v16i           sum[4];
    for (int i = 0; i < 4; i++) sum[i] = (v16i){ 0 } + HALF;
    for (int k = 0; k < r->y.count[y]; k++, slot = slot + 1 == r->y.taps ? 0 : slot + 1) {
        v16b b[4];
        memcpy(b, r->ring + (size_t)slot * r->row_bytes + at, sizeof b);
        for (int i = 0; i < 4; i++)
            sum[i] += __builtin_convertvector(__builtin_convertvector(b[i], v16h), v16i) * w[k];
    }
    for (int i = 0; i < 4; i++) {
        ROUND8(sum[i], v16i);
        v16b px = __builtin_convertvector(sum[i], v16b);
        memcpy(out + i * LANES, &px, sizeof px);
    }
}

static void pass_y(const Resize *r, int y)
{
    size_t   n    = (size_t)r->x.n_out * 3;
    uint8_t *out  = r->out + (size_t)y * n;
    size_t   at   = 0;
    int      slot = r->y.first[y] % r->y.taps;
    uint8_t  rest[STRIPE];
    for (; at + STRIPE <= n; at += STRIPE) pass_y_stripe(r, y, slot, at, out + at);
    if (at == n) return;
    pass_y_stripe(r, y, slot, at, rest);
    memcpy(out + at, rest, n - at);
}

void resize_row(Resize *r, int row, const uint8_t *rgbx, int col0)
{
    if (row < r->y.lo || row >= r->y.hi) return;
    pass_x(&r->x, rgbx, col0, r->ring + (size_t)(row % r->y.taps) * r->row_bytes);
    while (r->next_out < r->y.n_out && r->y.first[r->next_out] + r->y.count[r->next_out] - 1 <= row)
        pass_y(r, r->next_out++);
}

int resize_is_done(const Resize *r) { return r->next_out == r->y.n_out; }
