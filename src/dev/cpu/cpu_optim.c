/* Gradient norm, clipping and AdamW over flat ranges.
 *
 * Per element AdamW moves 32 bytes (w, m, v, g, each read and written) and computes about 40 operations: it
 * runs at the speed of memory. Pieces of PIECE elements follow from the length alone. */
#include "dev/cpu/cpu_optim.h"

#include "base/err.h"
#include "dev/cpu/cpu.h"
#include "dev/cpu/cpu_vec.h"
#include "dev/op_math.h"
#include "tensor/number.h"

#include <math.h>

enum { PIECE = 16384 };

static int64_t n_piece(int64_t n) { return (n + PIECE - 1) / PIECE; }

size_t cpu_sumsq_scratch(int64_t n) { return (size_t)n_piece(n) * sizeof(double); }

/* In double, VL sums side by side. */
static double piece_sumsq(const float *x, int64_t n)
{
    double lane[VL] = { 0 };
    for (int64_t i = 0; i + VL <= n; i += VL) {
        vec_ahead(x + i);
#pragma omp simd
        for (int l = 0; l < VL; l++) lane[l] += (double)x[i + l] * (double)x[i + l];
    }
    for (int64_t i = n / VL * VL; i < n; i++) lane[i % VL] += (double)x[i] * (double)x[i];
    double sum = 0;
    for (int l = 0; l < VL; l++) sum += lane[l];
    return sum;
}

int cpu_sumsq(Dev *dev, const Sumsq *a)
{
    StepState *state = a->state->data;
    Mat        x     = cpu_mat(a->x);
    int64_t    n = tensor_numel(a->x), pieces = n_piece(n);
    CHECK(tensor_is_contiguous(a->x), "sum of squares of the view %s", a->x->name);
    double *part = cpu_scratch(dev, cpu_sumsq_scratch(n));
    if (!part) return -1;
#pragma omp parallel for num_threads(cpu_threads(dev)) schedule(static) if (pieces > 1)
    for (int64_t i = 0; i < pieces; i++) part[i] = piece_sumsq(x.p + i * PIECE, MIN(PIECE, n - i * PIECE));
    double sum = 0;
    for (int64_t i = 0; i < pieces; i++) sum += part[i];
    state->out.grad_sumsq += sum;
    return 0;
}

/* Updates before a spike can be told from the fall of the first steps, and the weight of one loss in the
 * running mean. */
enum { SPIKE_AFTER = 20 };
#define EMA_WEIGHT 0.05

int cpu_clip(Dev *dev, const Clip *a)
{
    const StepIn *in    = &((const StepState *)a->state->data)->in;
    StepOut      *out   = &((StepState *)a->state->data)->out;
    double        scale = (double)step_loss_scale(a->state->data);
    double        loss = 0, norm = sqrt(out->grad_sumsq) / scale;
    for (int k = 0; k < LOSS_SLOTS; k++) {
        double part = out->sum[k] * (double)in->inv[k];
        if (!(in->measures >> k & 1)) loss += part;
        out->report[k] += part;
        out->sum[k] = 0;
    }
    out->n_report += 1;
    out->loss       = (float)loss;
    out->grad_norm  = (float)norm;
    out->grad_sumsq = 0;
    out->skip       = SKIP_NONE;
    if (out->stop) {
        out->skip = SKIP_HALTED;
        out->clip = 0;
        return 0;
    }
    if (isfinite(loss) && step_overflow(out, isfinite(norm), a->scale_every)) return 0;
    if (a->spike_factor > 0 && out->n_update >= SPIKE_AFTER && loss > (double)a->spike_factor * out->loss_ema)
        out->skip = SKIP_SPIKE;
    if (!isfinite(norm) || !isfinite(loss)) out->skip = SKIP_NOT_FINITE;
    if (out->skip) {
        out->n_skipped += 1;
        out->n_skip_row += 1;
        out->clip = 0;
        return 0;
    }
    out->n_skip_row = 0;
    out->n_update += 1;
    double factor = a->max_norm > 0 ? MIN(1.0, (double)a->max_norm / (norm + 1e-6)) : 1.0;
    out->clip     = (float)(factor / scale);
    out->bias1    = (float)(1.0 / (1.0 - pow((double)a->beta1, out->n_update)));
    out->bias2    = (float)(1.0 / (1.0 - pow((double)a->beta2, out->n_update)));
    out->loss_ema = out->n_update == 1 ? loss : (1.0 - EMA_WEIGHT) * out->loss_ema + EMA_WEIGHT * loss;
    step_grow_scale(out, a->scale_every);
    return 0;
}

int cpu_halt(Dev *dev, const Halt *a)
{
    StepState *s = a->state->data;
    if (s->out.sum[a->slot] * (double)s->in.inv[a->slot] > (double)a->limit) s->out.stop = 1;
    return 0;
}

/* ---- AdamW --------------------------------------------------------------------------------------------- */

typedef struct {
    float         *w, *m, *v, *g;
    uint16_t      *copy;
    const Segment *seg;
    int64_t        n_seg;
    float          beta1, beta2, eps, bias1, bias2, clip, lr;
    int            skip;
    int            is_half; /* the copy is f16, not bf16 */
    /* Those that are bf16; w, m and v are NULL then. */
    uint16_t *w16, *m16, *v16;
    uint64_t  seed;
    uint32_t  site;
    int32_t   n_update;
} Adam;

static void adam_range(const Adam *p, const Segment *seg, int64_t begin, int64_t end)
{
    float lr = p->lr * seg->lr_mul, decay = seg->decay;
    for (int64_t i = begin; i < end; i += VL) {
        int64_t left = end - i;
        vec_ahead(p->g + i);
        vec_ahead(p->m + i);
        vec_ahead(p->v + i);
        vec_ahead(p->w + i);
        vf g = vf_get(p->g + i, left) * p->clip;
        vf m = p->beta1 * vf_get(p->m + i, left) + (1.0f - p->beta1) * g;
        vf v = p->beta2 * vf_get(p->v + i, left) + (1.0f - p->beta2) * (g * g);
        vf w = vf_get(p->w + i, left);
        w    = w - lr * (m * p->bias1 / (vf_sqrt(v * p->bias2) + p->eps) + decay * w);
        vf_put(p->m + i, left, m);
        vf_put(p->v + i, left, v);
        vf_put(p->w + i, left, w);
        vf_put(p->g + i, left, (vf){ 0 });
    }
    for (int64_t i = begin; p->copy && i < end; i++)
        p->copy[i] = p->is_half ? f16_from_f32(p->w[i]) : bf16_from_f32(p->w[i]);
}

/* The same, one by one, where something is bf16. */
static void adam_range_narrow(const Adam *p, const Segment *seg, int64_t begin, int64_t end)
{
    float lr = p->lr * seg->lr_mul, decay = seg->decay;
    for (int64_t i = begin; i < end; i++) {
        AdamDraw d = adam_draw(p->seed, p->site, p->n_update, i);
        float    g = p->g[i] * p->clip, w = p->w16 ? f32_from_bf16(p->w16[i]) : p->w[i];
        float    m = p->beta1 * (p->m16 ? f32_from_bf16(p->m16[i]) : p->m[i]) + (1.0f - p->beta1) * g;
        float    v = p->beta2 * (p->v16 ? f32_from_bf16(p->v16[i]) : p->v[i]) + (1.0f - p->beta2) * (g * g);
        w          = w - lr * (m * p->bias1 / (sqrtf(v * p->bias2) + p->eps) + decay * w);
        if (p->w16) p->w16[i] = adam_round(w, d.w);
        if (p->w) p->w[i] = w;
        if (p->m16) p->m16[i] = adam_round(m, d.m);
        if (p->m) p->m[i] = m;
        if (p->v16) p->v16[i] = adam_round(v, d.v);
        if (p->v) p->v[i] = v;
        if (p->copy) p->copy[i] = p->is_half ? f16_from_f32(w) : bf16_from_f32(w);
        p->g[i] = 0.0f;
    }
}

/* The first segment that ends after element i. */
static int64_t find_segment(const Adam *p, int64_t i)
{
    int64_t lo = 0, hi = p->n_seg;
    while (lo < hi) {
        int64_t mid = (lo + hi) / 2;
        if (p->seg[mid].end > i) {
            hi = mid;
        } else {
            lo = mid + 1;
        }
    }
    return lo;
}

static void adam_piece(const Adam *p, int64_t begin, int64_t end)
{
    for (int64_t s = find_segment(p, begin); s < p->n_seg && p->seg[s].begin < end; s++) {
        int64_t b = MAX(begin, p->seg[s].begin), e = MIN(end, p->seg[s].end);
        if (p->skip) {
            for (int64_t i = b; i < e; i++) p->g[i] = 0.0f;
        } else {
            (p->w16 || p->m16 ? adam_range_narrow : adam_range)(p, &p->seg[s], b, e);
        }
    }
}

int cpu_adamw(Dev *dev, const AdamW *a)
{
    const StepState *s   = a->state->data;
    int              w16 = a->master->dtype == DT_BF16, m16 = a->m->dtype == DT_BF16;
    Adam             p = { .g        = cpu_f32(a->grad),
                           .w        = w16 ? NULL : cpu_f32(a->master),
                           .m        = m16 ? NULL : cpu_f32(a->m),
                           .v        = m16 ? NULL : cpu_f32(a->v),
                           .w16      = w16 ? a->master->data : NULL,
                           .m16      = m16 ? a->m->data : NULL,
                           .v16      = m16 ? a->v->data : NULL,
                           .seed     = s->in.seed,
                           .site     = (uint32_t)a->site,
                           .n_update = s->out.n_update,
                           .seg      = a->seg->data,
                           .n_seg    = (int64_t)(tensor_bytes(a->seg) / sizeof(Segment)),
                           .beta1    = a->beta1,
                           .beta2    = a->beta2,
                           .eps      = a->eps,
                           .bias1    = s->out.bias1,
                           .bias2    = s->out.bias2,
                           .clip     = s->out.clip,
                           .lr       = s->in.lr,
                           .skip     = s->out.skip };
    int64_t          n = tensor_numel(a->master), pieces = n_piece(n);
    if (a->copy) {
        p.is_half = a->copy->dtype == DT_F16;
        CHECK(p.is_half || a->copy->dtype == DT_BF16, "%s is %s, a copy is bf16 or f16", a->copy->name,
              dtype_name(a->copy->dtype));
        p.copy = a->copy->data;
    }
#pragma omp parallel for num_threads(cpu_threads(dev)) schedule(static) if (pieces > 1)
    for (int64_t i = 0; i < pieces; i++) adam_piece(&p, i * PIECE, MIN((i + 1) * PIECE, n));
    return 0;
}

int cpu_ema(Dev *dev, const Ema *a)
{
    const StepState *s = a->state->data;
    float           *e = cpu_f32(a->e), d = a->decay;
    const float     *w = cpu_f32(a->w);
    int64_t          n = tensor_numel(a->e);
    if (s->out.skip) return 0;
    if (a->warmup) d = fminf(d, (1.0f + (float)s->out.n_update) / (10.0f + (float)s->out.n_update));
#pragma omp parallel for num_threads(cpu_threads(dev)) schedule(static) if (n >= CPU_PARALLEL_MIN)
    for (int64_t i = 0; i < n; i++) e[i] = d * e[i] + (1.0f - d) * w[i];
    return 0;
}
