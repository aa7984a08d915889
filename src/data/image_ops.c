#include "data/image_ops.h"

#include "base/err.h"

#include <math.h>
#include <string.h>

static inline uint8_t clip8(float v) { return (uint8_t)(v <= 0 ? 0 : v >= 255 ? 255 : v); }

/* ITU-R 601-2 luma with 16 bits after the point. */
static inline uint8_t luma(const uint8_t *p)
{
    return (uint8_t)((p[0] * 19595u + p[1] * 38470u + p[2] * 7471u + 0x8000u) >> 16);
}

void image_op_grey(uint8_t *out, const uint8_t *rgb, int64_t n_pixel)
{
    for (int64_t i = 0; i < n_pixel; i++) out[i] = luma(rgb + 3 * i);
}

void image_op_flip(uint8_t *rgb, int w, int h)
{
    for (int y = 0; y < h; y++) {
        uint8_t *a = rgb + (int64_t)y * w * 3, *b = a + (w - 1) * 3;
        for (; a < b; a += 3, b -= 3) {
            uint8_t t[3] = { a[0], a[1], a[2] };
            memcpy(a, b, 3);
            memcpy(b, t, 3);
        }
    }
}

static void lookup(uint8_t *p, int64_t n, const uint8_t table[256])
{
    for (int64_t i = 0; i < n; i++) p[i] = table[p[i]];
}

/* ---- Blends with a degenerate picture -------------------------------------------------------------- */

static inline uint8_t blend(int from, int to, float a) { return clip8((float)from + a * (float)(to - from)); }

static void blend_constant(uint8_t *rgb, int64_t n, int value, float factor)
{
    uint8_t table[256];
    for (int v = 0; v < 256; v++) table[v] = blend(value, v, factor);
    lookup(rgb, n, table);
}

void image_op_brightness(uint8_t *rgb, int w, int h, float factor)
{
    blend_constant(rgb, (int64_t)w * h * 3, 0, factor);
}

void image_op_contrast(uint8_t *rgb, int w, int h, float factor)
{
    int64_t n = (int64_t)w * h, sum = 0;
    for (int64_t i = 0; i < n; i++) sum += luma(rgb + 3 * i);
    blend_constant(rgb, n * 3, (int)((double)sum / (double)n + 0.5), factor);
}

void image_op_saturation(uint8_t *rgb, int w, int h, float factor)
{
    for (int64_t i = 0; i < (int64_t)w * h; i++) {
        uint8_t *p = rgb + 3 * i;
        int      l = luma(p);
        for (int c = 0; c < 3; c++) p[c] = blend(l, p[c], factor);
    }
}

/* Pillow's SMOOTH: weights 1 around 5, over 13. The edge stays as it is. */
void image_op_sharpen(uint8_t *rgb, int w, int h, float factor, uint8_t *tmp)
{
    int64_t row = (int64_t)w * 3;
    memcpy(tmp, rgb, (size_t)(row * h));
    for (int y = 1; y < h - 1; y++) {
        const uint8_t *a = tmp + (y - 1) * row, *b = a + row, *c = b + row;
        for (int64_t i = 3; i < row - 3; i++) {
            int sum =
                a[i - 3] + a[i] + a[i + 3] + b[i - 3] + 5 * b[i] + b[i + 3] + c[i - 3] + c[i] + c[i + 3];
            rgb[y * row + i] = blend((2 * sum + 13) / 26, b[i], factor);
        }
    }
}

/* ---- Tables ---------------------------------------------------------------------------------------- */

void image_op_posterize(uint8_t *rgb, int w, int h, int bits)
{
    int mask = 0xff << (8 - bits);
    for (int64_t i = 0; i < (int64_t)w * h * 3; i++) rgb[i] &= (uint8_t)mask;
}

void image_op_solarize(uint8_t *rgb, int w, int h, float threshold)
{
    uint8_t table[256];
    for (int v = 0; v < 256; v++) table[v] = (uint8_t)((float)v < threshold ? v : 255 - v);
    lookup(rgb, (int64_t)w * h * 3, table);
}

static void histogram(int32_t count[3][256], const uint8_t *rgb, int64_t n_pixel)
{
    memset(count, 0, 3 * 256 * sizeof(int32_t));
    for (int64_t i = 0; i < n_pixel; i++) {
        for (int c = 0; c < 3; c++) count[c][rgb[3 * i + c]]++;
    }
}

static void lookup3(uint8_t *rgb, int64_t n_pixel, uint8_t table[3][256])
{
    for (int64_t i = 0; i < n_pixel; i++) {
        for (int c = 0; c < 3; c++) rgb[3 * i + c] = table[c][rgb[3 * i + c]];
    }
}

void image_op_autocontrast(uint8_t *rgb, int w, int h)
{
    int32_t count[3][256];
    uint8_t table[3][256];
    histogram(count, rgb, (int64_t)w * h);
    for (int c = 0; c < 3; c++) {
        int lo = 0, hi = 255;
        while (lo < 255 && count[c][lo] == 0) lo++;
        while (hi > 0 && count[c][hi] == 0) hi--;
        double scale = hi > lo ? 255.0 / (hi - lo) : 1, offset = hi > lo ? -lo * scale : 0;
        for (int v = 0; v < 256; v++) {
            int t       = (int)(v * scale + offset);
            table[c][v] = (uint8_t)(t < 0 ? 0 : t > 255 ? 255 : t);
        }
    }
    lookup3(rgb, (int64_t)w * h, table);
}

void image_op_equalize(uint8_t *rgb, int w, int h)
{
    int32_t count[3][256];
    uint8_t table[3][256];
    histogram(count, rgb, (int64_t)w * h);
    for (int c = 0; c < 3; c++) {
        int last = 255, n = 0;
        while (last > 0 && count[c][last] == 0) last--;
        int step = (int)(((int64_t)w * h - count[c][last]) / 255);
        n        = step / 2;
        for (int v = 0; v < 256; v++) {
            table[c][v] = (uint8_t)(step == 0 ? v : MIN(n / step, 255));
            n += count[c][v];
        }
    }
    lookup3(rgb, (int64_t)w * h, table);
}

/* ---- Hue ------------------------------------------------------------------------------------------- */

static inline void rgb_to_hsv(const uint8_t *p, uint8_t out[3])
{
    int r = p[0], g = p[1], b = p[2], hi = MAX(r, MAX(g, b)), lo = MIN(r, MIN(g, b));
    out[0] = out[1] = 0;
    out[2]          = (uint8_t)hi;
    if (hi == lo) return;
    float  cr = (float)(hi - lo), s = cr / (float)hi;
    float  rc = (float)(hi - r) / cr, gc = (float)(hi - g) / cr, bc = (float)(hi - b) / cr;
    float  h    = r == hi ? bc - gc : g == hi ? (float)(2.0 + rc - bc) : (float)(4.0 + gc - rc);
    double turn = h / 6.0 + 1.0;
    h           = (float)(turn - (int)turn);
    out[0]      = (uint8_t)(h * 255.0);
    out[1]      = (uint8_t)(s * 255.0);
}

static inline void hsv_to_rgb(const uint8_t *hsv, uint8_t *out)
{
    int v = hsv[2];
    if (hsv[1] == 0) {
        out[0] = out[1] = out[2] = (uint8_t)v;
        return;
    }
    double        h6 = hsv[0] * 6.0 / 255.0, fs = hsv[1] / 255.0;
    int           i = (int)h6;
    double        f = (float)(h6 - i);
    uint8_t       p = (uint8_t)(v * (1.0 - fs) + 0.5), q = (uint8_t)(v * (1.0 - fs * f) + 0.5);
    uint8_t       t = (uint8_t)(v * (1.0 - fs * (1.0 - f)) + 0.5), u = (uint8_t)v;
    const uint8_t by_sector[6][3] = { { u, t, p }, { q, u, p }, { p, u, t },
                                      { p, q, u }, { t, p, u }, { u, p, q } };
    memcpy(out, by_sector[i % 6], 3);
}

void image_op_hue(uint8_t *rgb, int w, int h, float shift)
{
    uint8_t add = (uint8_t)(int)(shift * 255.0f); /* wraps around the circle */
    for (int64_t i = 0; i < (int64_t)w * h; i++) {
        uint8_t hsv[3];
        rgb_to_hsv(rgb + 3 * i, hsv);
        hsv[0] = (uint8_t)(hsv[0] + add);
        hsv_to_rgb(hsv, rgb + 3 * i);
    }
}

/* ---- Geometry -------------------------------------------------------------------------------------- */

static int32_t fix16(double v) { return (int32_t)floor(v * 65536.0 + 0.5); }

/* 16 bits after the point, as Pillow; sides are below 32768 (CHECKed), so the sums fit 64 bits easily. */
void image_op_affine(uint8_t *rgb, int w, int h, const double m[6], uint8_t *tmp)
{
    CHECK(w < 32768 && h < 32768, "an affine map of %d x %d pixels", w, h);
    int64_t ax = fix16(m[0]), bx = fix16(m[1]), cx = fix16(m[2] + m[0] * 0.5 + m[1] * 0.5);
    int64_t ay = fix16(m[3]), by = fix16(m[4]), cy = fix16(m[5] + m[3] * 0.5 + m[4] * 0.5);
    memcpy(tmp, rgb, (size_t)w * (size_t)h * 3);
    for (int y = 0; y < h; y++, cx += bx, cy += by) {
        int64_t  fx = cx, fy = cy;
        uint8_t *to = rgb + (int64_t)y * w * 3;
        for (int x = 0; x < w; x++, fx += ax, fy += ay, to += 3) {
            int64_t sx = fx >> 16, sy = fy >> 16;
            if (sx >= 0 && sx < w && sy >= 0 && sy < h) {
                memcpy(to, tmp + (sy * w + sx) * 3, 3);
            } else {
                memset(to, 0, 3);
            }
        }
    }
}

void image_op_rotation(double m[6], int w, int h, double degrees)
{
    double a = -degrees * M_PI / 180, c = cos(a), s = sin(a), x = w / 2.0, y = h / 2.0;
    m[0] = c;
    m[1] = s;
    m[2] = c * -x + s * -y + x;
    m[3] = -s;
    m[4] = c;
    m[5] = -s * -x + c * -y + y;
}
