/* Images as bytes to rows of patches: window, mirror, mix of two samples, mean and standard deviation. */
#include "base/err.h"
#include "dev/cpu/cpu.h"

/* The window of one sample. */
typedef struct {
    const uint8_t *img;
    int            top, left, mirror;
} Window;

static Window window_of(const Patches *a, int64_t b)
{
    int64_t        image = (int64_t)a->frames * a->src_height * a->src_width * 3;
    Window         w     = { (const uint8_t *)a->img->data + b * image, 0, 0, 0 };
    const int32_t *crop  = a->crop ? (const int32_t *)a->crop->data + 3 * b : NULL;
    if (!crop) return w;
    w.top    = crop[0];
    w.left   = crop[1];
    w.mirror = crop[2];
    CHECK(w.top >= 0 && w.top + a->height <= a->src_height && w.left >= 0 &&
              w.left + a->width <= a->src_width,
          "window at %d, %d", w.top, w.left);
    return w;
}

static float pixel(const Patches *a, const Window *w, int frame, int row, int col, int channel)
{
    int64_t y = w->top + row, x = w->left + (w->mirror ? a->width - 1 - col : col);
    return w->img[((frame * (int64_t)a->src_height + y) * a->src_width + x) * 3 + channel];
}

/* How sample b is mixed. */
typedef struct {
    Window own, partner;
    int    mixed;
    float  lambda;
    int    box[4];
} Mix;

static Mix mix_of(const Patches *a, int64_t b)
{
    Mix m = { .own = window_of(a, b), .lambda = 1 };
    if (!a->partner) return m;
    int64_t other = b + ((const int32_t *)a->partner->data)[b];
    CHECK(other >= 0 && other < tensor_numel(a->partner), "sample %lld has partner %lld", (long long)b,
          (long long)other);
    m.mixed   = 1;
    m.partner = window_of(a, other);
    if (a->lambda) m.lambda = cpu_f32(a->lambda)[b];
    for (int k = 0; k < 4 && a->box; k++) m.box[k] = ((const int32_t *)a->box->data)[4 * b + k];
    return m;
}

static float mixed_pixel(const Patches *a, const Mix *m, int frame, int row, int col, int channel)
{
    float v = pixel(a, &m->own, frame, row, col, channel);
    if (!m->mixed) return v;
    float u      = pixel(a, &m->partner, frame, row, col, channel);
    int   inside = row >= m->box[0] && row < m->box[1] && col >= m->box[2] && col < m->box[3];
    return inside ? u : m->lambda * v + (1.0f - m->lambda) * u;
}

int cpu_patches(Dev *dev, const Patches *a)
{
    Mat     y  = cpu_mat(a->y);
    int     P  = a->patch;
    int64_t nx = a->width / P, ny = a->height / P, nt = a->frames / a->tubelet;
#pragma omp parallel for num_threads(cpu_threads(dev))                                                       \
    schedule(static) if (y.rows * y.cols >= CPU_PARALLEL_MIN)
    for (int64_t r = 0; r < y.rows; r++) {
        Mix m  = mix_of(a, r / (nt * ny * nx));
        int t0 = (int)(r / (ny * nx) % nt) * a->tubelet, y0 = (int)(r / nx % ny) * P, x0 = (int)(r % nx) * P;
        float *out = mat_row(y, r);
        for (int64_t k = 0; k < y.cols; k++) {
            int c = (int)(k % 3), dx = (int)(k / 3 % P), dy = (int)(k / 3 / P % P), dt = (int)(k / 3 / P / P);
            float v = mixed_pixel(a, &m, t0 + dt, y0 + dy, x0 + dx, c);
            out[k]  = (v / 255.0f - a->mean[c]) / a->std[c];
        }
    }
    return 0;
}
