/* Constants of a vision transformer: positions as sines and cosines, resampling of a table of positions, and
 * the rows of class tokens and registers. */
#include "net/vit.h"

#include "base/err.h"

#include <math.h>
#include <string.h>

/* n numbers for place p: n/2 sines, then n/2 cosines, of wavelengths from 2 pi to 20,000 pi. */
static void sincos_of(double p, int64_t n, float *out)
{
    for (int64_t i = 0; i < n / 2; i++) {
        double angle   = p * pow(10000, -(double)i / (double)(n / 2));
        out[i]         = (float)sin(angle);
        out[n / 2 + i] = (float)cos(angle);
    }
}

/* Halves for row and column; of a clip a third each for frame, row and column. Places are those of pos_grid,
 * so another size sees a finer or coarser grid of the same picture. */
void vit_fill_grid(const Vit *v, int64_t C, float *out)
{
    const ImageGrid *g = &v->grid, *q = &v->pos_grid;
    int64_t          parts = v->image.frames > 0 ? 3 : 2, n = C / parts / 2 * 2, all = g->t * g->y * g->x;
    memset(out, 0, sizeof *out * (size_t)(all * C));
    for (int64_t i = 0; i < all; i++) {
        float  *row = out + i * C;
        int64_t t = i / (g->y * g->x), y = i / g->x % g->y, x = i % g->x;
        double  place[3] = { ((double)t + 0.5) * (double)q->t / (double)g->t - 0.5,
                             ((double)y + 0.5) * (double)q->y / (double)g->y - 0.5,
                             ((double)x + 0.5) * (double)q->x / (double)g->x - 0.5 };
        for (int64_t k = 0; k < parts; k++) sincos_of(place[3 - parts + k], n, row + k * n);
    }
}

void vit_fill_sincos(const Vit *v, float *out)
{
    int64_t C = v->net.model.width, first = v->image.pool == POOL_CLASS;
    memset(out, 0, sizeof *out * (size_t)(first * C));
    vit_fill_grid(v, C, out + first * C);
}

/* Place i of n new ones among m old ones: the two neighbours and the weight of the second. */
static void between(int64_t i, int64_t n, int64_t m, int64_t at[2], double share[2])
{
    double place = ((double)i + 0.5) * (double)m / (double)n - 0.5;
    place        = MIN(MAX(place, 0), (double)(m - 1));
    at[0]        = (int64_t)place;
    at[1]        = MIN(at[0] + 1, m - 1);
    share[1]     = place - (double)at[0];
    share[0]     = 1 - share[1];
}

/* Linear in each direction. The class token keeps its own row. */
void vit_fill_resample(const Vit *v, float *out)
{
    const ImageGrid *g = &v->grid, *q = &v->pos_grid;
    int64_t          first = v->image.pool == POOL_CLASS, cols = first + q->t * q->y * q->x;
    memset(out, 0, sizeof *out * (size_t)(v->T * cols));
    if (first) out[0] = 1;
    for (int64_t i = 0; i < v->T - first; i++) {
        int64_t t[2], y[2], x[2];
        double  st[2], sy[2], sx[2];
        between(i / (g->y * g->x), g->t, q->t, t, st);
        between(i / g->x % g->y, g->y, q->y, y, sy);
        between(i % g->x, g->x, q->x, x, sx);
        for (int k = 0; k < 8; k++) {
            int     a = k / 4, b = k / 2 % 2, c = k % 2;
            int64_t from = first + (t[a] * q->y + y[b]) * q->x + x[c];
            out[(first + i) * cols + from] += (float)(st[a] * sy[b] * sx[c]);
        }
    }
}

void vit_fill_rows(const Vit *v, int64_t B, int32_t *spread, int32_t *put, int32_t *pick)
{
    int64_t n = v->some - 1;
    for (int64_t i = 0; i < B * v->some; i++) {
        int64_t b = i / v->some, t = i % v->some;
        spread[i] = t == 0 ? -1 : (int32_t)(b * n + t - 1);
        put[i]    = t == 0 ? 0 : -1;
        if (t == 0) pick[b] = (int32_t)(b * v->read);
    }
}

void vit_fill_registers(const Vit *v, int64_t B, int32_t *before, int32_t *extra, int32_t *len)
{
    for (int64_t i = 0; i < B * v->read; i++) {
        int64_t b = i / v->read, t = i % v->read;
        before[i] = t < v->some ? (int32_t)(b * v->some + t) : -1;
        extra[i]  = t < v->some ? -1 : (int32_t)(t - v->some);
        len[b]    = (int32_t)v->some;
    }
}
