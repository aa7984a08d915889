/* Attention that stores its weights: whole products per head, T x T in memory. opt.flash=false runs this
 * form, for comparison.
 *
 *   forward   S = Q K^T,  P = softmax(scale S) over the keys a query sees, 0 elsewhere,  O = P V
 *   backward  dP = dO V^T,  dS = scale P (dP - sum over keys of P dP),  dV = P^T dO,  dQ = dS K,  dK = dS^T Q
 *
 * 1. Heads run one after the other; a product or a pass over rows takes all threads. The query heads of a
 *    group add up in order, so threads do not change the bits.
 * 2. Backward keeps one head's dS at the end of the scratch range; the products use its beginning. The
 *    range is asked for whole before the first product, so it does not move. */
#include "dev/cpu/cpu_attn.h"

#include "base/err.h"
#include "dev/cpu/cpu_gemm.h"

#include <math.h>
#include <string.h>

/* One head of one sequence: rows of q, k, v and of what is packed like o. */
typedef struct {
    const Attn *a;
    int64_t     b, h, g; /* sequence, query head, its key/value head */
    float      *p;       /* [T][T] */
} Head;

static Head head_init(const Attn *a, float *p, int64_t i)
{
    int64_t b = i / a->H, h = i % a->H;
    return (Head){ a, b, h, h / (a->H / a->K), p + i * a->T * a->T };
}

/* T rows of D floats, ld apart: of one head of qkv, or of what is packed like o. */
typedef struct {
    const float *p;
    int64_t      ld;
} Rows;

/* c[T,T] = x y^T: rows of x against rows of y. */
static Gemm rows_by_rows(float *c, Rows x, Rows y, const Attn *a)
{
    return (Gemm){ .m     = a->T,
                   .n     = a->T,
                   .k     = a->D,
                   .a     = x.p,
                   .a_row = x.ld,
                   .a_col = 1,
                   .b     = y.p,
                   .b_row = 1,
                   .b_col = y.ld,
                   .c     = c,
                   .c_row = a->T };
}

/* c[T,D] = w[T,T] y[T,D], or w^T y. */
static Gemm weights_by_rows(float *c, int64_t ld_c, const float *w, int transposed, Rows y, const Attn *a)
{
    return (Gemm){ .m     = a->T,
                   .n     = a->D,
                   .k     = a->T,
                   .a     = w,
                   .a_row = transposed ? 1 : a->T,
                   .a_col = transposed ? a->T : 1,
                   .b     = y.p,
                   .b_row = y.ld,
                   .b_col = 1,
                   .c     = c,
                   .c_row = ld_c };
}

/* The most that any product packs: S, dP, O or dQ, dK, dV. ld_out is the row stride of dout (forward: of o).
 * A product packs rows that are far apart and reads near rows in place; rows of dout may be near where rows
 * of qkv are far apart. */
static size_t product_bytes(const Attn *a, int64_t ld_out)
{
    Rows   in = { NULL, a->ld_q }, out = { NULL, ld_out };
    Gemm   g[]  = { rows_by_rows(NULL, in, in, a), rows_by_rows(NULL, out, in, a),
                    weights_by_rows(NULL, a->ld_q, NULL, 0, in, a),
                    weights_by_rows(NULL, a->ld_q, NULL, 1, in, a),
                    weights_by_rows(NULL, a->ld_q, NULL, 1, out, a) };
    size_t most = 0;
    for (int i = 0; i < ARRAY_LEN(g); i++) most = MAX(most, cpu_gemm_scratch(&g[i]));
    return tensor_align_up(most);
}

size_t cpu_attn_stored_fwd_scratch(const AttnFwd *args)
{
    Attn a = attn_of_fwd(args);
    return product_bytes(&a, tensor_ld(args->o));
}

size_t cpu_attn_stored_bwd_scratch(const AttnBwd *args)
{
    Attn a = attn_of_bwd(args);
    return product_bytes(&a, tensor_ld(args->dout)) + (size_t)(a.T * a.T) * sizeof(float);
}

/* ---- Forward --------------------------------------------------------------------------------------- */

/* Scores s[T] become weights over [lo, hi) and 0 elsewhere; returns the log of the sum of exponentials, 0 of
 * none. */
static float softmax_row(float *s, int64_t T, int64_t lo, int64_t hi, float scale)
{
    vf      high = vf_set(-INFINITY), sum = { 0 };
    int64_t i = lo;
    if (lo >= hi) {
        memset(s, 0, (size_t)T * sizeof *s);
        return 0;
    }
    for (; i + VL <= hi; i += VL) high = vf_max(high, vf_load(s + i));
    float top = vf_top(high);
    for (; i < hi; i++) top = MAX(top, s[i]);
    for (i = lo; i < hi; i += VL) {
        vf e = vf_keep(vf_exp((vf_get(s + i, hi - i) - top) * scale), hi - i);
        vf_put(s + i, hi - i, e);
        sum += e;
    }
    float total = vf_sum(sum), inv = 1.0f / total;
    for (i = lo; i < hi; i += VL) vf_put(s + i, hi - i, vf_get(s + i, hi - i) * inv);
    memset(s, 0, (size_t)lo * sizeof *s);
    memset(s + hi, 0, (size_t)(T - hi) * sizeof *s);
    return top * scale + logf(total);
}

static void softmax_head(Dev *dev, const Head *w, float *lse)
{
    const Attn *a = w->a;
#pragma omp parallel for num_threads(cpu_threads(dev)) schedule(static) if (a->T * a->T >= CPU_PARALLEL_MIN)
    for (int64_t q0 = 0; q0 < a->T; q0 += ATTN_Q) {
        Span    span;
        int64_t n = MIN(ATTN_Q, a->T - q0);
        attn_span(&span, a, w->b, q0, n);
        for (int64_t i = 0; i < n; i++) {
            lse[q0 + i] = softmax_row(w->p + (q0 + i) * a->T, a->T, span.lo[i], span.hi[i], a->scale);
        }
    }
}

int cpu_attn_stored_fwd(Dev *dev, const AttnFwd *args)
{
    Attn a = attn_of_fwd(args);
    Mat  o = cpu_mat(args->o);
    if (!cpu_scratch(dev, cpu_attn_stored_fwd_scratch(args))) return -1;
    for (int64_t i = 0; i < a.B * a.H; i++) {
        Head w = head_init(&a, cpu_f32(args->p), i);
        Rows q = { attn_q(&a, w.b, w.h), a.ld_q }, k = { attn_k(&a, w.b, w.g), a.ld_q },
             v = { attn_v(&a, w.b, w.g), a.ld_q };
        Gemm s = rows_by_rows(w.p, q, k, &a);
        TRY(cpu_gemm(dev, &s));
        softmax_head(dev, &w, cpu_f32(args->lse) + i * a.T);
        float *out = mat_row(o, w.b * a.T) + w.h * a.D;
        Gemm   pv  = weights_by_rows(out, o.ld, w.p, 0, v, &a);
        TRY(cpu_gemm(dev, &pv));
    }
    return 0;
}

/* ---- Backward -------------------------------------------------------------------------------------- */

/* ds, which holds dP, becomes the gradient of the unscaled scores. */
static void softmax_grad(Dev *dev, const Head *w, float *ds)
{
    int64_t T = w->a->T;
#pragma omp parallel for num_threads(cpu_threads(dev)) schedule(static) if (T * T >= CPU_PARALLEL_MIN)
    for (int64_t q = 0; q < T; q++) {
        const float *p   = w->p + q * T;
        float       *d   = ds + q * T;
        vf           sum = { 0 };
        for (int64_t i = 0; i < T; i += VL) sum += vf_get(p + i, T - i) * vf_get(d + i, T - i);
        float mean = vf_sum(sum);
        for (int64_t i = 0; i < T; i += VL) {
            vf_put(d + i, T - i, vf_get(p + i, T - i) * (vf_get(d + i, T - i) - mean) * w->a->scale);
        }
    }
}

int cpu_attn_stored_bwd(Dev *dev, const AttnBwd *args)
{
    Attn   a    = attn_of_bwd(args);
    Mat    dqkv = cpu_mat(args->dqkv), dout = cpu_mat(args->dout);
    size_t front = product_bytes(&a, dout.ld);
    char  *base  = cpu_scratch(dev, cpu_attn_stored_bwd_scratch(args));
    if (!base) return -1;
    float *ds = (float *)(base + front);
    for (int64_t i = 0; i < a.B * a.H; i++) {
        Head   w     = head_init(&a, cpu_f32(args->p), i);
        float *row   = mat_row(dqkv, w.b * a.T);
        int    later = w.h % (a.H / a.K) != 0; /* not the first query head of its group */
        Rows   q = { attn_q(&a, w.b, w.h), a.ld_q }, k = { attn_k(&a, w.b, w.g), a.ld_q },
             v = { attn_v(&a, w.b, w.g), a.ld_q }, g = { mat_row(dout, w.b * a.T) + w.h * a.D, dout.ld };
        Gemm dp = rows_by_rows(ds, g, v, &a);
        TRY(cpu_gemm(dev, &dp));
        softmax_grad(dev, &w, ds);
        Gemm dq       = weights_by_rows(row + w.h * a.D, dqkv.ld, ds, 0, k, &a);
        Gemm dk       = weights_by_rows(row + (a.H + w.g) * a.D, dqkv.ld, ds, 1, q, &a);
        Gemm dv       = weights_by_rows(row + (a.H + a.K + w.g) * a.D, dqkv.ld, w.p, 1, g, &a);
        dk.accumulate = dv.accumulate = later;
        TRY(cpu_gemm(dev, &dq));
        TRY(cpu_gemm(dev, &dk));
        TRY(cpu_gemm(dev, &dv));
    }
    return 0;
}
