/* Linear layers as matrix products.
 *
 *   y[N,M]  = x[N,K] w[M,K]^T + bias      b(k,m) = w[m,k]: w's rows are b's columns
 *   dx[N,K] = dy[N,M] w[M,K]
 *   dw[M,K] += dy[N,M]^T x[N,K]           a(m,n) = dy[n,m]: dy's rows are a's columns
 *
 * A few rows (decoding) are computed as dot products: packing w would cost more than using w.
 *
 * Gradients fused with an activation may write where they read pre, so dx cannot be made in place. Each block
 * of dx is made in scratch and turned into dpre while it is in cache. */
#include "dev/cpu/cpu_linear.h"

#include "base/err.h"
#include "dev/cpu/cpu.h"
#include "dev/cpu/cpu_gemm.h"
#include "dev/cpu/cpu_row.h"
#include "dev/glu.h"

enum { FEW_ROWS = 4, ROWS_AHEAD = 2, LINE_FLOATS = 16 };

static float dot(const float *a, const float *b, int64_t n)
{
    vf      s[4] = { 0 };
    int64_t i    = 0;
    for (; i + 4 * VL <= n; i += 4 * VL) {
        for (int u = 0; u < 4; u++) s[u] += vf_load(a + i + u * VL) * vf_load(b + i + u * VL);
    }
    for (; i < n; i += VL) s[0] += vf_get(a + i, n - i) * vf_get(b + i, n - i);
    return vf_sum((s[0] + s[1]) + (s[2] + s[3]));
}

static void few_rows(Dev *dev, Mat y, Mat x, Mat w, const float *bias)
{
#pragma omp parallel for num_threads(cpu_threads(dev))                                                       \
    schedule(static) if (w.rows * w.cols >= CPU_PARALLEL_MIN)
    for (int64_t m = 0; m < w.rows; m++) {
        for (int64_t r = 0; r < x.rows; r++) {
            float v          = dot(mat_row(x, r), mat_row(w, m), x.cols);
            mat_row(y, r)[m] = bias ? bias[m] + v : v;
        }
    }
}

static Gemm fwd_gemm(Mat y, Mat x, Mat w)
{
    return (Gemm){ .m     = y.rows,
                   .n     = y.cols,
                   .k     = x.cols,
                   .a     = x.p,
                   .a_row = x.ld,
                   .a_col = 1,
                   .b     = w.p,
                   .b_row = 1,
                   .b_col = w.ld,
                   .c     = y.p,
                   .c_row = y.ld };
}

static Gemm dx_gemm(Mat dx, Mat dy, Mat w)
{
    return (Gemm){ .m     = dx.rows,
                   .n     = dx.cols,
                   .k     = dy.cols,
                   .a     = dy.p,
                   .a_row = dy.ld,
                   .a_col = 1,
                   .b     = w.p,
                   .b_row = w.ld,
                   .b_col = 1,
                   .c     = dx.p,
                   .c_row = dx.ld };
}

static Gemm dw_gemm(Mat dw, Mat dy, Mat x)
{
    return (Gemm){ .m          = dw.rows,
                   .n          = dw.cols,
                   .k          = dy.rows,
                   .a          = dy.p,
                   .a_row      = 1,
                   .a_col      = dy.ld,
                   .b          = x.p,
                   .b_row      = x.ld,
                   .b_col      = 1,
                   .c          = dw.p,
                   .c_row      = dw.ld,
                   .accumulate = 1 };
}

/* Without an address: lists are planned before they are bound. */
static Mat shape(const Tensor *t)
{
    return (Mat){ .rows = tensor_rows(t), .cols = tensor_cols(t), .ld = tensor_ld(t) };
}

size_t cpu_linear_fwd_scratch(const Tensor *y, const Tensor *x, const Tensor *w)
{
    Gemm g = fwd_gemm(shape(y), shape(x), shape(w));
    return cpu_gemm_scratch(&g);
}

size_t cpu_linear_dx_scratch(const Tensor *dx, const Tensor *dy, const Tensor *w)
{
    Gemm g = dx_gemm(shape(dx), shape(dy), shape(w));
    return cpu_gemm_scratch(&g);
}

size_t cpu_linear_dw_scratch(const Tensor *dw, const Tensor *dy, const Tensor *x)
{
    Gemm g = dw_gemm(shape(dw), shape(dy), shape(x));
    return cpu_gemm_scratch(&g);
}

int cpu_linear_fwd(Dev *dev, const LinearFwd *a)
{
    Mat          y = cpu_mat(a->y), x = cpu_mat(a->x), w = cpu_mat(a->w);
    const float *bias = cpu_f32(a->bias);
    if (x.rows <= FEW_ROWS) {
        few_rows(dev, y, x, w, bias);
        return 0;
    }
    Gemm g = fwd_gemm(y, x, w);
    g.bias = bias;
    return cpu_gemm(dev, &g);
}

/* Row i of a block, `right` columns to the right of its place in c, in a matrix that is not in cache. The row
 * is too short for the hardware's prefetcher. */
static void fetch_row(Mat m, const GemmBlock *b, int64_t i, int64_t right)
{
    if (i >= b->n_row) return;
    const float *row = mat_row(m, b->row0 + i) + b->col0 + right;
    for (int64_t j = 0; j < b->n_col; j += LINE_FLOATS) __builtin_prefetch(row + j, 1);
}

typedef struct {
    Mat y, pre;
    Act act;
    int slope;
} Activate;

static void activate(const void *ctx, const GemmBlock *b)
{
    const Activate *c = ctx;
    for (int64_t i = 0; i < b->n_row; i++) {
        float *y = mat_row(c->y, b->row0 + i) + b->col0, *pre = b->c + i * b->c_row;
        fetch_row(c->y, b, i + ROWS_AHEAD, 0);
        if (c->slope) {
            row_act_both(y, pre, pre, b->n_col, c->act);
        } else {
            row_act_fwd(y, pre, b->n_col, c->act);
        }
    }
}

int cpu_linear_act_fwd(Dev *dev, const LinearActFwd *a)
{
    Activate     c = { cpu_mat(a->y), cpu_mat(a->pre), a->act, a->slope };
    Mat          x = cpu_mat(a->x), w = cpu_mat(a->w);
    const float *bias = cpu_f32(a->bias);
    if (x.rows <= FEW_ROWS) {
        few_rows(dev, c.pre, x, w, bias);
        activate(&c, &(GemmBlock){ 0, x.rows, 0, c.y.cols, c.pre.p, c.pre.ld });
        return 0;
    }
    Gemm g   = fwd_gemm(c.pre, x, w);
    g.bias   = bias;
    g.finish = activate;
    g.ctx    = &c;
    return cpu_gemm(dev, &g);
}

int cpu_linear_dx(Dev *dev, const LinearDx *a)
{
    Gemm g = dx_gemm(cpu_mat(a->dx), cpu_mat(a->dy), cpu_mat(a->w));
    return cpu_gemm(dev, &g);
}

int cpu_linear_dw(Dev *dev, const LinearDw *a)
{
    Gemm g = dw_gemm(cpu_mat(a->dw), cpu_mat(a->dy), cpu_mat(a->x));
    TRY(cpu_gemm(dev, &g));
    return a->db ? cpu_bias_dw(dev, &(BiasDw){ .db = a->db, .dy = a->dy }) : 0;
}

/* ---- Fused with what follows --------------------------------------------------------------------------- */

int cpu_linear_glu_fwd(Dev *dev, const LinearGluFwd *a)
{
    Mat y = cpu_mat(a->y), pre = cpu_mat(a->pre);
    TRY(cpu_linear_fwd(dev, &(LinearFwd){ .y = a->pre, .x = a->x, .w = a->w }));
    if (a->slope != GLU_SLOPE) return cpu_glu_fwd(dev, &(GluFwd){ .y = a->y, .x = a->pre, .act = a->act });
#pragma omp parallel for num_threads(cpu_threads(dev))                                                       \
    schedule(static) if (pre.rows * pre.cols >= CPU_PARALLEL_MIN)
    for (int64_t r = 0; r < y.rows; r++) row_glu_both(mat_row(y, r), mat_row(pre, r), y.cols, y.cols, a->act);
    return 0;
}

typedef struct {
    Mat     dpre, pre;
    int64_t up; /* from a gate to its value */
    int     gated;
    Act     act;
} Grad;

static void grad_finish(const void *ctx, const GemmBlock *b)
{
    const Grad *g = ctx;
    for (int64_t i = 0; i < b->n_row; i++) {
        float       *dpre = mat_row(g->dpre, b->row0 + i) + b->col0;
        const float *d = b->c + i * b->c_row, *pre = mat_row(g->pre, b->row0 + i) + b->col0;
        fetch_row(g->pre, b, i + ROWS_AHEAD, 0);
        fetch_row(g->dpre, b, i + ROWS_AHEAD, 0);
        if (g->gated) {
            fetch_row(g->pre, b, i + ROWS_AHEAD, g->up);
            fetch_row(g->dpre, b, i + ROWS_AHEAD, g->up);
            row_glu_dx(dpre, d, pre, g->up, b->n_col, g->act);
        } else {
            row_act_dx(dpre, d, pre, b->n_col, g->act);
        }
    }
}

static Gemm grad_gemm(Mat dy, Mat w, int threads)
{
    Gemm g           = dx_gemm((Mat){ .rows = dy.rows, .cols = w.cols }, dy, w);
    g.finish         = grad_finish;
    g.private_blocks = threads;
    return g;
}

size_t cpu_linear_grad_scratch(const Tensor *dy, const Tensor *w, int threads)
{
    Gemm g = grad_gemm(shape(dy), shape(w), threads);
    return cpu_gemm_scratch(&g);
}

static int grad_run(Dev *dev, const Grad *c, const Tensor *dy, const Tensor *w)
{
    Gemm g = grad_gemm(cpu_mat(dy), cpu_mat(w), cpu_threads(dev));
    g.ctx  = c;
    return cpu_gemm(dev, &g);
}

int cpu_linear_act_bwd(Dev *dev, const LinearActBwd *a)
{
    Grad c = { .dpre = cpu_mat(a->dpre), .pre = cpu_mat(a->pre), .act = a->act };
    TRY(grad_run(dev, &c, a->dy, a->w));
    return a->db ? cpu_bias_dw(dev, &(BiasDw){ .db = a->db, .dy = a->dpre }) : 0;
}

int cpu_linear_glu_bwd(Dev *dev, const LinearGluBwd *a)
{
    Grad c = { .dpre = cpu_mat(a->dpre), .pre = cpu_mat(a->pre), .gated = 1, .act = a->act };
    c.up   = tensor_cols(a->w);
    return grad_run(dev, &c, a->dy, a->w);
}
