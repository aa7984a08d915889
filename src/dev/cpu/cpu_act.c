/* Activations: y = act(x), dx = dy act'(x), alone, with the bias gradient, and gated.
 *
 *   GELU (tanh form)  x s(2u),  u = sqrt(2/pi) (x + 0.044715 x^3),  s the logistic function:
 *                     (1 + tanh u) / 2 = s(2u)
 *   RELU2             max(x, 0)^2
 *   SILU              x s(x)
 *   RELU              max(x, 0)
 *   TANH, SIGMOID     from e^-|x|, so that slopes keep their relative precision far from 0
 *   GELU_ERF          x Phi(x), Phi the normal distribution function
 *
 * The activation is chosen once per row, so the loop over the row has no branch. */
#include "dev/cpu/cpu.h"
#include "dev/cpu/cpu_row.h"
#include "dev/cpu/cpu_vec.h"

#define GELU_A 1.59576912f /* 2 sqrt(2/pi) */
#define GELU_B (1.59576912f * 0.044715f)

VEC_INLINE vf relu(vf x) { return vf_max(vf_set(0), x); }

VEC_INLINE vf act_value(vf x, const Act act)
{
    vf r;
    switch (act) {
    case ACT_GELU: return x * vf_sigmoid(x * (GELU_A + GELU_B * (x * x)));
    case ACT_SILU: return x * vf_sigmoid(x);
    case ACT_RELU2: r = relu(x); return r * r;
    case ACT_TANH: return vf_tanh(x);
    case ACT_SIGMOID: return vf_sigmoid(x);
    case ACT_GELU_ERF: return x * vf_normal(x);
    default: return relu(x);
    }
}

VEC_INLINE vf act_slope(vf x, const Act act)
{
    vf s, e, xx, one = vf_set(1);
    switch (act) {
    case ACT_GELU:
        xx = x * x;
        s  = vf_sigmoid(x * (GELU_A + GELU_B * xx));
        return s + x * (s * (1.0f - s)) * (GELU_A + 3.0f * GELU_B * xx);
    case ACT_SILU: s = vf_sigmoid(x); return s + x * (s * (1.0f - s));
    case ACT_RELU2: return 2.0f * relu(x);
    case ACT_TANH: e = vf_exp(-2.0f * vf_abs(x)); return 4.0f * e / ((1.0f + e) * (1.0f + e));
    case ACT_SIGMOID: e = vf_exp(-vf_abs(x)); return e / ((1.0f + e) * (1.0f + e));
    case ACT_GELU_ERF: return vf_normal(x) + x * (0.398942280f * vf_exp(-0.5f * (x * x)));
    case ACT_SLOPE: return x;
    default: return (vf)((vi)one & (x > vf_set(0)));
    }
}

VEC_INLINE void fwd_as(float *y, const float *x, int64_t n, const Act act)
{
    for (int64_t i = 0; i < n; i += VL) vf_put(y + i, n - i, act_value(vf_get(x + i, n - i), act));
}

/* Both from one logistic; slope may be x. */
VEC_INLINE void both_as(float *y, float *slope, const float *x, int64_t n, const Act act)
{
    for (int64_t i = 0; i < n; i += VL) {
        vf v = vf_get(x + i, n - i);
        vf_put(y + i, n - i, act_value(v, act));
        vf_put(slope + i, n - i, act_slope(v, act));
    }
}

VEC_INLINE void dx_as(float *dx, const float *dy, const float *x, int64_t n, const Act act)
{
    for (int64_t i = 0; i < n; i += VL) {
        vec_ahead(dy + i);
        vec_ahead(x + i);
        vf_put(dx + i, n - i, vf_get(dy + i, n - i) * act_slope(vf_get(x + i, n - i), act));
    }
}

VEC_INLINE void glu_fwd_as(float *y, const float *x, int64_t up, int64_t n, const Act act)
{
    for (int64_t i = 0; i < n; i += VL) {
        vf_put(y + i, n - i, act_value(vf_get(x + i, n - i), act) * vf_get(x + up + i, n - i));
    }
}

/* What glu_dx_as() would multiply by, in the order in which it does: slopes that are kept give the same
 * bits. */
VEC_INLINE void glu_both_as(float *y, float *x, int64_t up, int64_t n, const Act act)
{
    for (int64_t i = 0; i < n; i += VL) {
        vf gate = vf_get(x + i, n - i), value = vf_get(x + up + i, n - i), a = act_value(gate, act);
        vf_put(y + i, n - i, a * value);
        vf_put(x + i, n - i, value * act_slope(gate, act));
        vf_put(x + up + i, n - i, a);
    }
}

/* dx may be x: gate and up of a vector are read before either gradient is written. */
VEC_INLINE void glu_dx_as(float *dx, const float *dy, const float *x, int64_t up, int64_t n, const Act act)
{
    for (int64_t i = 0; i < n; i += VL) {
        vf gate = vf_get(x + i, n - i), value = vf_get(x + up + i, n - i), d = vf_get(dy + i, n - i);
        vf_put(dx + i, n - i, d * (act == ACT_SLOPE ? gate : value * act_slope(gate, act)));
        vf_put(dx + up + i, n - i, d * (act == ACT_SLOPE ? value : act_value(gate, act)));
    }
}

#define FOR_ACT(act, CALL)                                                                                   \
    switch (act) {                                                                                           \
    case ACT_GELU: CALL(ACT_GELU); break;                                                                    \
    case ACT_RELU2: CALL(ACT_RELU2); break;                                                                  \
    case ACT_SILU: CALL(ACT_SILU); break;                                                                    \
    case ACT_TANH: CALL(ACT_TANH); break;                                                                    \
    case ACT_SIGMOID: CALL(ACT_SIGMOID); break;                                                              \
    case ACT_GELU_ERF: CALL(ACT_GELU_ERF); break;                                                            \
    case ACT_SLOPE: CALL(ACT_SLOPE); break;                                                                  \
    default: CALL(ACT_RELU); break;                                                                          \
    }

CPU_ONCE void row_act_fwd(float *y, const float *x, int64_t n, Act act)
{
#define CALL(A) fwd_as(y, x, n, A)
    FOR_ACT(act, CALL);
#undef CALL
}

CPU_ONCE void row_act_both(float *y, float *slope, const float *x, int64_t n, Act act)
{
#define CALL(A) both_as(y, slope, x, n, A)
    FOR_ACT(act, CALL);
#undef CALL
}

CPU_ONCE void row_act_dx(float *dx, const float *dy, const float *x, int64_t n, Act act)
{
#define CALL(A) dx_as(dx, dy, x, n, A)
    FOR_ACT(act, CALL);
#undef CALL
}

CPU_ONCE void row_glu_fwd(float *y, const float *x, int64_t up, int64_t n, Act act)
{
#define CALL(A) glu_fwd_as(y, x, up, n, A)
    FOR_ACT(act, CALL);
#undef CALL
}

CPU_ONCE void row_glu_both(float *y, float *x, int64_t up, int64_t n, Act act)
{
#define CALL(A) glu_both_as(y, x, up, n, A)
    FOR_ACT(act, CALL);
#undef CALL
}

CPU_ONCE void row_glu_dx(float *dx, const float *dy, const float *x, int64_t up, int64_t n, Act act)
{
#define CALL(A) glu_dx_as(dx, dy, x, up, n, A)
    FOR_ACT(act, CALL);
#undef CALL
}

int cpu_act_fwd(Dev *dev, const ActFwd *a)
{
    Mat y = cpu_mat(a->y), x = cpu_mat(a->x);
#pragma omp parallel for num_threads(cpu_threads(dev))                                                       \
    schedule(static) if (x.rows * x.cols >= CPU_PARALLEL_MIN)
    for (int64_t r = 0; r < x.rows; r++) row_act_fwd(mat_row(y, r), mat_row(x, r), x.cols, a->act);
    return 0;
}

int cpu_act_dx(Dev *dev, const ActDx *a)
{
    Mat dx = cpu_mat(a->dx), dy = cpu_mat(a->dy), x = cpu_mat(a->x);
#pragma omp parallel for num_threads(cpu_threads(dev))                                                       \
    schedule(static) if (x.rows * x.cols >= CPU_PARALLEL_MIN)
    for (int64_t r = 0; r < x.rows; r++)
        row_act_dx(mat_row(dx, r), mat_row(dy, r), mat_row(x, r), x.cols, a->act);
    return 0;
}

typedef struct {
    Mat dx, dy, x;
    Act act;
} ActChunk;

static void act_chunk(const void *ctx, int64_t r0, int64_t r1, float *sum, float *tmp)
{
    const ActChunk *c = ctx;
    for (int64_t r = r0; r < r1; r++) {
        row_act_dx(mat_row(c->dx, r), mat_row(c->dy, r), mat_row(c->x, r), c->x.cols, c->act);
        row_sum_into(sum, mat_row(c->dx, r), c->x.cols);
    }
}

int cpu_act_bias_bwd(Dev *dev, const ActBiasBwd *a)
{
    ActChunk c = { cpu_mat(a->dx), cpu_mat(a->dy), cpu_mat(a->x), a->act };
    Colsum   s = { .rows = c.x.rows, .cols = c.x.cols, .n_out = 1, .chunk = act_chunk, .ctx = &c };
    s.out[0]   = cpu_f32(a->db);
    return colsum_run(dev, &s);
}

static void bias_chunk(const void *ctx, int64_t r0, int64_t r1, float *sum, float *tmp)
{
    const Mat *dy = ctx;
    for (int64_t r = r0; r < r1; r++) row_sum_into(sum, mat_row(*dy, r), dy->cols);
}

int cpu_bias_dw(Dev *dev, const BiasDw *a)
{
    Mat    dy = cpu_mat(a->dy);
    Colsum s  = { .rows = dy.rows, .cols = dy.cols, .n_out = 1, .chunk = bias_chunk, .ctx = &dy };
    s.out[0]  = cpu_f32(a->db);
    return colsum_run(dev, &s);
}

int cpu_glu_fwd(Dev *dev, const GluFwd *a)
{
    Mat y = cpu_mat(a->y), x = cpu_mat(a->x);
#pragma omp parallel for num_threads(cpu_threads(dev))                                                       \
    schedule(static) if (x.rows * x.cols >= CPU_PARALLEL_MIN)
    for (int64_t r = 0; r < x.rows; r++) row_glu_fwd(mat_row(y, r), mat_row(x, r), y.cols, y.cols, a->act);
    return 0;
}

int cpu_glu_dx(Dev *dev, const GluDx *a)
{
    Mat dx = cpu_mat(a->dx), dy = cpu_mat(a->dy), x = cpu_mat(a->x);
#pragma omp parallel for num_threads(cpu_threads(dev))                                                       \
    schedule(static) if (x.rows * x.cols >= CPU_PARALLEL_MIN)
    for (int64_t r = 0; r < x.rows; r++)
        row_glu_dx(mat_row(dx, r), mat_row(dy, r), mat_row(x, r), dy.cols, dy.cols, a->act);
    return 0;
}
