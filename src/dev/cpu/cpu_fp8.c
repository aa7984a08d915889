/* fp8: quantisation, its scales, and products of fp8 numbers.
 *
 * 1. Products decode both sides to f32 and add up in f32, in increasing k. Both factors of a product are then
 *    multiplied by what restores them, once, at the end.
 * 2. A quantised activation or gate comes from the row functions that the op alone uses, so the fused form
 *    has the bits of its parts. */
#include "tensor/number.h"

#include "base/err.h"
#include "dev/cpu/cpu.h"
#include "dev/cpu/cpu_row.h"
#include "dev/op_math.h"

#include <math.h>
#include <string.h>

/* Columns that a thread holds on its stack. */
enum { SPAN = 512 };

/* ---- quantisation -------------------------------------------------------------------------------------- */

typedef struct {
    Mat       x, dy;
    int64_t   cols; /* of the result */
    QuantFrom from;
    Act       act;
    /* QUANT_XENT_DX */
    const float   *lse;
    const int32_t *target;
    float          factor;
    int64_t        n_class;
} Source;

static Source source_of(const Quant *a)
{
    Source s = {
        .x = cpu_mat(a->x), .dy = cpu_mat(a->dy), .cols = tensor_cols(a->x), .from = a->from, .act = a->act
    };
    if (a->from == QUANT_GLU) s.cols /= 2;
    if (a->from == QUANT_XENT_DX) {
        s.lse     = cpu_f32(a->lse);
        s.target  = a->target->data;
        s.factor  = step_scale(a->state->data, a->slot);
        s.n_class = a->n_class;
    }
    return s;
}

/* Numbers of a pass over a row: those of a gate's gradient come in two halves, `half` apart. */
static int64_t source_width(const Source *s) { return s->from == QUANT_GLU_DX ? s->cols / 2 : s->cols; }

/* n columns of row r from column c on; a gate's gradient fills buf[0..n) and buf[SPAN..SPAN + n). */
static void source_read(const Source *s, int64_t r, int64_t c, int64_t n, float *buf)
{
    const float *x = mat_row(s->x, r) + c;
    switch (s->from) {
    case QUANT_ACT: row_act_fwd(buf, x, n, s->act); return;
    case QUANT_GLU: row_glu_fwd(buf, x, s->cols, n, s->act); return;
    case QUANT_ACT_DX: row_act_dx(buf, mat_row(s->dy, r) + c, x, n, s->act); return;
    case QUANT_GLU_DX: {
        float pair[2 * SPAN];
        memcpy(pair, x, sizeof *x * (size_t)n);
        memcpy(pair + SPAN, x + s->cols / 2, sizeof *x * (size_t)n);
        row_glu_dx(buf, mat_row(s->dy, r) + c, pair, SPAN, n, s->act);
        return;
    }
    case QUANT_XENT_DX: {
        int64_t classes = MAX((int64_t)0, MIN(n, s->n_class - c));
        memset(buf, 0, sizeof *buf * (size_t)n);
        if (s->target[r] >= 0) row_xent_dx(buf, x, s->lse[r], s->target[r] - c, s->factor, classes);
        return;
    }
    default: memcpy(buf, x, sizeof *x * (size_t)n);
    }
}

static float row_top(const Source *s, int64_t r)
{
    float   buf[2 * SPAN], top = 0;
    int64_t width = source_width(s);
    for (int64_t c = 0; c < width; c += SPAN) {
        int64_t n = MIN((int64_t)SPAN, width - c);
        source_read(s, r, c, n, buf);
        for (int64_t i = 0; i < n; i++) top = fabsf(buf[i]) > top ? fabsf(buf[i]) : top;
        for (int64_t i = SPAN; s->from == QUANT_GLU_DX && i < SPAN + n; i++)
            top = fabsf(buf[i]) > top ? fabsf(buf[i]) : top;
    }
    return top;
}

/* amax takes in max |v|; a site without a scale gets one. Returns the scale to use. */
static float site_begin(Dev *dev, const Quant *a, const Source *s)
{
    float *site = cpu_f32(a->site), top = a->dynamic ? 0 : site[FP8_SITE_AMAX];
#pragma omp parallel for num_threads(cpu_threads(dev)) schedule(static)                                      \
    reduction(max                                                                                            \
              : top) if (s->x.rows * s->x.cols >= CPU_PARALLEL_MIN)
    for (int64_t r = 0; r < s->x.rows; r++) {
        float t = row_top(s, r);
        top     = t > top ? t : top;
    }
    site[FP8_SITE_AMAX] = top;
    if (site[FP8_SITE_SCALE] != 0 && !a->dynamic) return site[FP8_SITE_SCALE];
    float scale          = fp8_scale_for(top, a->q_dtype);
    site[FP8_SITE_SCALE] = scale;
    site[FP8_SITE_INV]   = scale != 0 ? fp8_inv(scale) : 1.0f;
    return scale != 0 ? scale : 1.0f;
}

typedef struct {
    uint8_t *q, *qt; /* NULL: not wanted */
    int64_t  ld_q, ld_qt;
    float    scale;
    DType    dtype;
} Codes;

static void codes_write(const Codes *k, int64_t r, int64_t c, const float *v, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float   y = v[i] * k->scale;
        uint8_t b = k->dtype == DT_E4M3 ? e4m3_from_f32(y) : e5m2_from_f32(y);
        if (k->q) k->q[r * k->ld_q + c + i] = b;
        if (k->qt) k->qt[(c + i) * k->ld_qt + r] = b;
    }
}

static void codes_row(const Codes *k, const Source *s, int64_t r)
{
    float   buf[2 * SPAN];
    int64_t width = source_width(s);
    for (int64_t c = 0; c < width; c += SPAN) {
        int64_t n = MIN((int64_t)SPAN, width - c);
        source_read(s, r, c, n, buf);
        codes_write(k, r, c, buf, n);
        if (s->from == QUANT_GLU_DX) codes_write(k, r, width + c, buf + SPAN, n);
    }
}

static void sum_chunk(const void *ctx, int64_t r0, int64_t r1, float *sum, float *tmp)
{
    const Source *s = ctx;
    float         buf[2 * SPAN];
    int64_t       width = source_width(s);
    for (int64_t r = r0; r < r1; r++) {
        for (int64_t c = 0; c < width; c += SPAN) {
            int64_t n = MIN((int64_t)SPAN, width - c);
            source_read(s, r, c, n, buf);
            row_sum_into(sum + c, buf, n);
            if (s->from == QUANT_GLU_DX) row_sum_into(sum + width + c, buf + SPAN, n);
        }
    }
}

int cpu_quant(Dev *dev, const Quant *a)
{
    CHECK(a->q_dtype == DT_E4M3 || a->q_dtype == DT_E5M2, "quantisation to %s", dtype_name(a->q_dtype));
    Source s = source_of(a);
    Codes  k = { .q = a->q ? a->q->data : NULL, .qt = a->qt ? a->qt->data : NULL, .dtype = a->q_dtype };
    if (a->q) k.ld_q = tensor_ld(a->q);
    if (a->qt) k.ld_qt = tensor_ld(a->qt);
    k.scale = site_begin(dev, a, &s);
#pragma omp parallel for num_threads(cpu_threads(dev))                                                       \
    schedule(static) if (s.x.rows * s.x.cols >= CPU_PARALLEL_MIN)
    for (int64_t r = 0; r < s.x.rows; r++) codes_row(&k, &s, r);
    if (!a->db) return 0;
    Colsum sum = { .rows = s.x.rows, .cols = s.cols, .n_out = 1, .chunk = sum_chunk, .ctx = &s };
    sum.out[0] = cpu_f32(a->db);
    return colsum_run(dev, &sum);
}

int cpu_fp8_scale(Dev *dev, const Fp8Scale *a)
{
    Mat m = cpu_mat(a->sites), all = cpu_mat(a->all ? a->all : a->sites);
    for (int64_t r = 0; r < m.rows; r++) {
        float amax = fp8_site_amax(mat_row(all, r), m.rows * all.ld, all.rows / m.rows);
        fp8_site_update(mat_row(m, r), amax, a->q_dtype);
    }
    return 0;
}

/* ---- products ------------------------------------------------------------------------------------------ */

enum { BLOCK_ROWS = 32, BLOCK_COLS = 64, BLOCK_K = 128 };

/* A block of c[N,M] (+)= a[N,K] b[M,K]^T * factor + bias. */
typedef struct {
    const Tensor *a, *b;
    Mat           c;
    const float  *bias;
    float         factor;
    int           accumulate;
    float         of_a[256], of_b[256]; /* by code */
} Product;

static void codes_table(float *out, DType t)
{
    for (int i = 0; i < 256; i++)
        out[i] = t == DT_E4M3 ? f32_from_e4m3((uint8_t)i) : f32_from_e5m2((uint8_t)i);
}

static const uint8_t *code_row(const Tensor *t, int64_t r)
{
    return (const uint8_t *)t->data + r * tensor_ld(t);
}

static void product_block(const Product *p, int64_t r0, int64_t c0)
{
    float   sum[BLOCK_ROWS][BLOCK_COLS], wide[BLOCK_K][BLOCK_COLS];
    int64_t K = tensor_cols(p->a), n = MIN((int64_t)BLOCK_ROWS, p->c.rows - r0),
            m = MIN((int64_t)BLOCK_COLS, p->c.cols - c0);
    memset(sum, 0, sizeof sum);
    memset(wide, 0, sizeof wide);
    for (int64_t k0 = 0; k0 < K; k0 += BLOCK_K) {
        int64_t nk = MIN((int64_t)BLOCK_K, K - k0);
        for (int64_t j = 0; j < m; j++) {
            const uint8_t *b = code_row(p->b, c0 + j) + k0;
            for (int64_t k = 0; k < nk; k++) wide[k][j] = p->of_b[b[k]];
        }
        for (int64_t i = 0; i < n; i++) {
            const uint8_t *a = code_row(p->a, r0 + i) + k0;
            for (int64_t k = 0; k < nk; k++) {
                float v = p->of_a[a[k]];
                for (int j = 0; j < BLOCK_COLS; j++) sum[i][j] += v * wide[k][j];
            }
        }
    }
    for (int64_t i = 0; i < n; i++) {
        float *c = mat_row(p->c, r0 + i) + c0;
        for (int64_t j = 0; j < m; j++) {
            float y = sum[i][j] * p->factor;
            if (p->bias) y += p->bias[c0 + j];
            c[j] = p->accumulate ? c[j] + y : y;
        }
    }
}

static int product_run(Dev *dev, Product *p, const Tensor *a_site, const Tensor *b_site)
{
    p->factor = cpu_f32(a_site)[FP8_SITE_INV] * cpu_f32(b_site)[FP8_SITE_INV];
    codes_table(p->of_a, p->a->dtype);
    codes_table(p->of_b, p->b->dtype);
    int64_t across = row_div_up(p->c.cols, BLOCK_COLS), n = across * row_div_up(p->c.rows, BLOCK_ROWS);
#pragma omp parallel for num_threads(cpu_threads(dev))                                                       \
    schedule(static) if (tensor_numel(p->a) >= CPU_PARALLEL_MIN)
    for (int64_t i = 0; i < n; i++) product_block(p, i / across * BLOCK_ROWS, i % across * BLOCK_COLS);
    return 0;
}

int cpu_fp8_linear(Dev *dev, const Fp8Linear *a)
{
    Product p = { .a = a->a, .b = a->b, .c = cpu_mat(a->y), .bias = cpu_f32(a->bias) };
    return product_run(dev, &p, a->a_site, a->b_site);
}

int cpu_fp8_linear_dw(Dev *dev, const Fp8LinearDw *a)
{
    Product p = { .a = a->a, .b = a->b, .c = cpu_mat(a->dw), .accumulate = 1 };
    return product_run(dev, &p, a->a_site, a->b_site);
}
