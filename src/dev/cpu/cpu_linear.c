/* Linear layers as matrix products.
 *
 *   y[N,M]  = x[N,K] w[M,K]^T + bias      b(k,m) = w[m,k]: w's rows are b's columns
 *   dx[N,K] = dy[N,M] w[M,K]
 *   dw[M,K] += dy[N,M]^T x[N,K]           a(m,n) = dy[n,m]: dy's rows are a's columns
 *
 * A few rows (decoding) are dot products instead: packing w would cost more than using it.
 *
 * Gradients fused with an activation may write where they read pre, so dx cannot be made in place: GRAD_ROWS rows of it at a
 * time are made in scratch, and turned into dpre while they are in cache. */
#include "dev/cpu/cpu_linear.h"

#include "base/err.h"
#include "dev/cpu/cpu.h"
#include "dev/cpu/cpu_gemm.h"
#include "dev/cpu/cpu_row.h"

/* 1024 rows use each packed weight often enough: packing is some per cent of the time. */
enum { FEW_ROWS = 4, GRAD_ROWS = 1024 };

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

typedef struct {
    Mat y, pre;
    Act act;
    int slope;
} Activate;

static void activate(const void *ctx, int64_t row0, int64_t n_row, int64_t col0, int64_t n_col)
{
    const Activate *c = ctx;
    for (int64_t r = row0; r < row0 + n_row; r++) {
        float *y = mat_row(c->y, r) + col0, *pre = mat_row(c->pre, r) + col0;
        if (c->slope) {
            row_act_both(y, pre, pre, n_col, c->act);
        } else {
            row_act_fwd(y, pre, n_col, c->act);
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
        activate(&c, 0, x.rows, 0, c.y.cols);
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

/* ---- Fused with what follows ------------------------------------------------------------------------------------------ */

int cpu_linear_glu_fwd(Dev *dev, const LinearGluFwd *a)
{
    Mat y = cpu_mat(a->y), pre = cpu_mat(a->pre);
    TRY(cpu_linear_fwd(dev, &(LinearFwd){ .y = a->pre, .x = a->x, .w = a->w }));
    if (!a->slope) return cpu_glu_fwd(dev, &(GluFwd){ .y = a->y, .x = a->pre, .act = a->act });
#pragma omp parallel for num_threads(cpu_threads(dev))                                                       \
    schedule(static) if (pre.rows * pre.cols >= CPU_PARALLEL_MIN)
    for (int64_t r = 0; r < y.rows; r++) row_glu_both(mat_row(y, r), mat_row(pre, r), y.cols, y.cols, a->act);
    return 0;
}

/* dpre from rows [row0, ...) of d, which is all there is of it at a time. */
typedef struct {
    Mat     d, dpre, pre;
    int64_t row0;
    int     gated;
    Act     act;
} Grad;

static void grad_finish(const void *ctx, int64_t row0, int64_t n_row, int64_t col0, int64_t n_col)
{
    const Grad *c = ctx;
    for (int64_t r = row0; r < row0 + n_row; r++) {
        float       *dpre = mat_row(c->dpre, c->row0 + r) + col0;
        const float *d = mat_row(c->d, r) + col0, *pre = mat_row(c->pre, c->row0 + r) + col0;
        if (c->gated) {
            row_glu_dx(dpre, d, pre, c->d.cols, n_col, c->act);
        } else {
            row_act_dx(dpre, d, pre, n_col, c->act);
        }
    }
}

/* The first and largest piece of d, without an address. */
static Mat grad_piece(const Tensor *dy, const Tensor *w)
{
    return (Mat){ .rows = MIN(tensor_rows(dy), GRAD_ROWS), .cols = tensor_cols(w), .ld = tensor_cols(w) };
}

static size_t grad_pack_bytes(Mat d, Mat dy, Mat w)
{
    Gemm g = dx_gemm(d, dy, w);
    return tensor_align_up(cpu_gemm_scratch(&g));
}

size_t cpu_linear_grad_scratch(const Tensor *dy, const Tensor *w)
{
    Mat d = grad_piece(dy, w);
    return grad_pack_bytes(d, shape(dy), shape(w)) + (size_t)(d.rows * d.cols) * sizeof(float);
}

static int grad_run(Dev *dev, Grad *c, const Tensor *dy_tensor, const Tensor *w_tensor)
{
    Mat   dy = cpu_mat(dy_tensor), w = cpu_mat(w_tensor);
    char *scratch = cpu_scratch(dev, cpu_linear_grad_scratch(dy_tensor, w_tensor));
    if (!scratch) return -1;
    c->d   = grad_piece(dy_tensor, w_tensor);
    c->d.p = (float *)(scratch + grad_pack_bytes(c->d, dy, w));
    for (c->row0 = 0; c->row0 < dy.rows; c->row0 += GRAD_ROWS) {
        Mat part  = dy;
        part.p    = mat_row(dy, c->row0);
        part.rows = c->d.rows = MIN(GRAD_ROWS, dy.rows - c->row0);
        Gemm g                = dx_gemm(c->d, part, w);
        g.pack                = (float *)scratch;
        g.finish              = grad_finish;
        g.ctx                 = c;
        TRY(cpu_gemm(dev, &g));
    }
    return 0;
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
    return grad_run(dev, &c, a->dy, a->w);
}
