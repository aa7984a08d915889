/* Vision transformers on the CPU against PyTorch (tests/golden/{vit,video}.safetensors, tools/golden_vit.py),
 * with drop path, layer scale, label smoothing, mixing, a class token, and positions that are resampled; and
 * against themselves: micro-batch, threads and recomputation do not change the mathematics.
 *
 * Tolerances as in test_golden.c: PyTorch's numbers come from float64, so the distance is f32 rounding. Users
 * are promised 1e-4. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "data/image_source.h"
#include "golden/golden.h"
#include "golden/vit_rig.h"

#include <stdio.h>

#define TOL_GRAD   1e-5
#define TOL_WEIGHT 5e-5
#define TOL_LOSS   2e-6
/* A f32 sum of n terms is within n u sum|t| of the truth in any order, u = 2^-24; rows: B*T = 162 at most. */
#define TOL_ORDER (162 * 0x1p-24)

static void assert_near(const char *what, VitDistance d, double tol)
{
    if (d.norm <= tol && d.max <= tol) return;
    fail_msg("%s: distance %.3g of the norm, %.3g of the maximum; %.3g allowed", what, d.norm, d.max, tol);
}

static void assert_close(const char *what, double a, double b, double tol)
{
    if (fabs(a - b) <= tol * fabs(b)) return;
    fail_msg("%s: %.9g is not %.9g within %.3g", what, a, b, tol);
}

static void test_gradients(void **state)
{
    Golden g;
    VitRig r;
    golden_open(&g, *state);
    vit_rig_open(&r, &g, &(VitSetup){ 0 });
    assert_close("loss", vit_rig_step(&r, 0), golden_f64(&g, "loss", g.steps)[0], TOL_LOSS);
    const ParamTable *t     = r.j->table[0];
    VitDistance       worst = { 0, 0 };
    for (int i = 0; i < t->n_param; i++) {
        const Param *p = &t->param[i];
        int64_t      n = p->rows * p->cols;
        float       *x = vit_rig_read(&r, p, COL_GRAD);
        VitDistance  d = vit_distance(x, golden_f32(&g, "g.", p->name, n), n);
        free(x);
        assert_near(p->name, d, TOL_GRAD);
        worst = (VitDistance){ fmax(worst.norm, d.norm), fmax(worst.max, d.max) };
    }
    printf("%s: %d gradients, farthest %.2g of the norm, %.2g of the maximum\n", (const char *)*state,
           t->n_param, worst.norm, worst.max);
    vit_rig_close(&r);
    golden_close(&g);
}

/* The bias of keys has gradient 0, so AdamW steps by rounding noise there (test_golden.c). */
static VitDistance weight_distance(const Golden *g, const Param *p, const float *x)
{
    int64_t      n = p->rows * p->cols, C = g->recipe.model.width;
    const float *want = golden_f32(g, "w.", p->name, n), *start = golden_f32(g, "w0.", p->name, n);
    if (!strstr(p->name, "qkv.bias")) return vit_distance(x, want, n);
    for (int64_t i = C; i < 2 * C; i++) {
        double moved = fabs((double)x[i] - (double)start[i]);
        assert_true(moved <= 1.1 * (double)g->steps * g->recipe.optim.lr);
    }
    VitDistance q = vit_distance(x, want, C), v = vit_distance(x + 2 * C, want + 2 * C, C);
    return (VitDistance){ fmax(q.norm, v.norm), fmax(q.max, v.max) };
}

static void test_ten_steps(void **state)
{
    Golden g;
    VitRig r;
    golden_open(&g, *state);
    vit_rig_open(&r, &g, &(VitSetup){ .micro_batch = 2 });
    const double *loss = golden_f64(&g, "loss", g.steps), *norm = golden_f64(&g, "norm", g.steps);
    for (int64_t step = 0; step < g.steps; step++) {
        StepState s;
        vit_rig_step(&r, step);
        vit_rig_update(&r);
        VIT_TRY(job_read_state(r.j, &s));
        assert_close("loss", s.out.loss, loss[step], TOL_WEIGHT);
        assert_close("gradient norm", s.out.grad_norm, norm[step], TOL_WEIGHT);
        assert_int_equal(s.out.skip, 0);
    }
    const ParamTable *t     = r.j->table[0];
    VitDistance       worst = { 0, 0 };
    for (int i = 0; i < t->n_param; i++) {
        const Param *p = &t->param[i];
        float       *x = vit_rig_read(&r, p, COL_WEIGHT);
        VitDistance  d = weight_distance(&g, p, x);
        free(x);
        assert_near(p->name, d, TOL_WEIGHT);
        worst = (VitDistance){ fmax(worst.norm, d.norm), fmax(worst.max, d.max) };
    }
    printf("%s: weights after %lld steps, farthest %.2g of the norm, %.2g of the maximum\n",
           (const char *)*state, (long long)g.steps, worst.norm, worst.max);
    vit_rig_close(&r);
    golden_close(&g);
}

/* ---- against itself ------------------------------------------------------------------------------------ */

static float *gradients_of(const Golden *g, const VitSetup *setup, int64_t *n)
{
    VitRig r;
    vit_rig_open(&r, g, setup);
    vit_rig_step(&r, 3); /* not 0: step and samples matter to drop path */
    const ParamTable *t = r.j->table[0];
    float            *x = malloc(sizeof *x * (size_t)param_count(t));
    assert_non_null(x);
    *n = 0;
    for (int i = 0; i < t->n_param; i++) {
        VIT_TRY(job_read_param(r.j, &t->param[i], COL_GRAD, x + *n));
        *n += t->param[i].rows * t->param[i].cols;
    }
    vit_rig_close(&r);
    return x;
}

static void test_choices(void **state)
{
    static const struct {
        const char *what;
        VitSetup    setup;
        int         same_bits;
    } row[] = { { "micro-batch 2", { .micro_batch = 2 }, 0 },
                { "2 threads", { .threads = 2 }, 1 },
                { "recompute cheap", { .level = LEVEL_CHEAP }, 1 },
                { "recompute block", { .level = LEVEL_BLOCK }, 1 } };
    Golden  g;
    int64_t n, m;
    golden_open(&g, *state);
    float *base = gradients_of(&g, &(VitSetup){ 0 }, &n);
    for (int i = 0; i < ARRAY_LEN(row); i++) {
        float *x = gradients_of(&g, &row[i].setup, &m);
        assert_int_equal(n, m);
        if (row[i].same_bits && memcmp(x, base, sizeof *x * (size_t)n) != 0)
            fail_msg("%s: not the same bits", row[i].what);
        assert_near(row[i].what, vit_distance(x, base, n), TOL_ORDER);
        free(x);
    }
    free(base);
    golden_close(&g);
}

int main(void)
{
    static const char *const model[] = { "vit", "video" };
    struct CMUnitTest        test[3 * ARRAY_LEN(model)];
    int                      n = 0;
    for (int i = 0; i < ARRAY_LEN(model); i++) {
        test[n++] = (struct CMUnitTest){ "gradients", test_gradients, NULL, NULL, (void *)model[i] };
        test[n++] = (struct CMUnitTest){ "ten steps", test_ten_steps, NULL, NULL, (void *)model[i] };
        test[n++] = (struct CMUnitTest){ "choices", test_choices, NULL, NULL, (void *)model[i] };
    }
    return _cmocka_run_group_tests("golden_vit", test, (size_t)n, NULL, NULL);
}
