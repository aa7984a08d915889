/* Whole models on the CPU against PyTorch (tests/golden, tools/golden.py, tools/golden_vit.py), and against
 * themselves: what may be chosen (micro-batch, recomputation, head rows, lowering) must not change the
 * mathematics. The vision transformers have drop path, layer scale, label smoothing, mixing, a class token,
 * and positions that are resampled.
 *
 * Tolerances. PyTorch's numbers come from float64, so all the distance is our f32 rounding. PyTorch itself in
 * f32 is up to 2.5e-6 away from them in a gradient and 4e-6 in a weight after ten steps (tools/golden.py in
 * float32, torch 1.13); our builds for x86-64-v2, -v3 and native up to 2.3e-6 and 5.4e-6. Gradients get four
 * times that. Weights get 5e-5, because AdamW divides a gradient by its own size. So the rounding of a tiny
 * gradient goes into the weight in full: tools/golden.py bounds that by 2e-5 for rounding errors five times
 * as large as f32's. Users are promised 1e-4. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "golden/rig.h"

#include <stdio.h>

#define TOL_GRAD   1e-5
#define TOL_WEIGHT 5e-5
#define TOL_LOSS   2e-6

/* A f32 sum of n terms is within n u sum|t| of the truth in any order, u = 2^-24; n is at most B*T = 96, and
 * 162 for the vision transformers. */
static double tol_order(const Golden *g) { return (strcmp(g->recipe.task, "lm") == 0 ? 96 : 162) * 0x1p-24; }

static void assert_near(const char *what, RigDistance d, double tol)
{
    if (d.norm <= tol && d.max <= tol) return;
    fail_msg("%s: distance %.3g of the norm, %.3g of the maximum; %.3g allowed", what, d.norm, d.max, tol);
}

static void assert_close(const char *what, double a, double b, double tol)
{
    if (fabs(a - b) <= tol * fabs(b)) return;
    fail_msg("%s: %.9g is not %.9g within %.3g", what, a, b, tol);
}

/* ---- against PyTorch ----------------------------------------------------------------------------------- */

static void test_gradients(void **state)
{
    Golden g;
    Rig    r;
    golden_open(&g, *state);
    rig_open(&r, &g, &(RigSetup){ 0 });
    assert_close("loss", rig_step(&r, r.micro, 0), golden_f64(&g, "loss", g.steps)[0], TOL_LOSS);
    const ParamTable *t     = r.j->table[0];
    RigDistance       worst = { 0, 0 };
    for (int i = 0; i < t->n_param; i++) {
        const Param *p = &t->param[i];
        float       *x = rig_read(&r, p, COL_GRAD);
        RigDistance  d = rig_distance(x, golden_f32(&g, "g.", p->name, p->rows * p->cols), p->rows * p->cols);
        free(x);
        assert_near(p->name, d, TOL_GRAD);
        worst = (RigDistance){ fmax(worst.norm, d.norm), fmax(worst.max, d.max) };
    }
    printf("%s: %d gradients, farthest %.2g of the norm, %.2g of the maximum\n", (const char *)*state,
           t->n_param, worst.norm, worst.max);
    rig_close(&r);
    golden_close(&g);
}

/* A constant added to every key changes no softmax, so without rotation the key's bias has gradient 0: what
 * AdamW divides by its own root mean square there is rounding noise, here and in PyTorch. Those rows are held
 * to the largest steps AdamW can make instead. */
static RigDistance weight_distance(const Golden *g, const Param *p, const float *x)
{
    const RecipeModel *m    = &g->recipe.model;
    const float       *want = golden_f32(g, "w.", p->name, p->rows * p->cols);
    if (m->pos == POS_ROPE || !strstr(p->name, "qkv.bias")) return rig_distance(x, want, p->rows * p->cols);
    const float *start = golden_f32(g, "w0.", p->name, p->cols);
    int64_t      k0 = m->heads * m->head_dim, k1 = k0 + m->kv_heads * m->head_dim;
    for (int64_t i = k0; i < k1; i++) {
        double moved = fabs((double)x[i] - (double)start[i]);
        assert_true(moved <= 1.1 * (double)g->steps * g->recipe.optim.lr);
    }
    RigDistance q = rig_distance(x, want, k0), v = rig_distance(x + k1, want + k1, p->cols - k1);
    return (RigDistance){ fmax(q.norm, v.norm), fmax(q.max, v.max) };
}

static void test_ten_steps(void **state)
{
    Golden g;
    Rig    r;
    golden_open(&g, *state);
    rig_open(&r, &g, &(RigSetup){ .micro_batch = 2 });
    const double *loss = golden_f64(&g, "loss", g.steps), *norm = golden_f64(&g, "norm", g.steps);
    for (int64_t step = 0; step < g.steps; step++) {
        StepState s;
        rig_step(&r, r.micro, step);
        rig_run(&r, r.update);
        RIG_TRY(job_read_state(r.j, &s));
        assert_close("loss", s.out.loss, loss[step], TOL_WEIGHT);
        assert_close("gradient norm", s.out.grad_norm, norm[step], TOL_WEIGHT);
        assert_int_equal(s.out.skip, 0);
        assert_int_equal(s.out.n_update, step + 1);
    }
    const ParamTable *t     = r.j->table[0];
    RigDistance       worst = { 0, 0 };
    for (int i = 0; i < t->n_param; i++) {
        const Param *p = &t->param[i];
        float       *x = rig_read(&r, p, COL_WEIGHT);
        RigDistance  d = weight_distance(&g, p, x);
        free(x);
        assert_near(p->name, d, TOL_WEIGHT);
        worst = (RigDistance){ fmax(worst.norm, d.norm), fmax(worst.max, d.max) };
    }
    printf("%s: weights after %lld steps, farthest %.2g of the norm, %.2g of the maximum\n",
           (const char *)*state, (long long)g.steps, worst.norm, worst.max);
    rig_close(&r);
    golden_close(&g);
}

/* ---- against itself ------------------------------------------------------------------------------------ */

typedef struct {
    float  *grad;
    int64_t n;
    double  loss, tol; /* tol: of another order of sums */
} Result;

/* Gradients and loss of batch 3 (not 0: its step and samples must matter to dropout and drop path). */
static Result run_once(const Golden *g, const RigSetup *s)
{
    Rig    r;
    Result x;
    rig_open(&r, g, s);
    x.loss = rig_step(&r, r.micro, 3);
    x.grad = rig_gradients(&r, &x.n);
    x.tol  = tol_order(g);
    rig_close(&r);
    return x;
}

/* Compares with base and frees x. */
static void assert_result(const char *what, Result x, const Result *base, int same_bits)
{
    assert_int_equal(x.n, base->n);
    RigDistance d = rig_distance(x.grad, base->grad, base->n);
    if (same_bits) {
        if (memcmp(x.grad, base->grad, sizeof *x.grad * (size_t)x.n) != 0 || x.loss != base->loss)
            fail_msg("%s: not the same bits: loss %.17g and %.17g, gradients %.3g apart", what, x.loss,
                     base->loss, d.norm);
    } else {
        assert_near(what, d, x.tol);
        assert_close(what, x.loss, base->loss, x.tol);
    }
    free(x.grad);
}

static void compare(const char *what, const Golden *g, const RigSetup *s, const Result *base, int same_bits)
{
    assert_result(what, run_once(g, s), base, same_bits);
}

static void test_micro_batch(void **state)
{
    Golden g;
    golden_open(&g, *state);
    Result base = run_once(&g, &(RigSetup){ .dropout = 0.1 });
    compare("micro-batch 2", &g, &(RigSetup){ .dropout = 0.1, .micro_batch = 2 }, &base, 0);
    compare("micro-batch 1", &g, &(RigSetup){ .dropout = 0.1, .micro_batch = 1 }, &base, 0);
    free(base.grad);
    golden_close(&g);
}

static void test_threads(void **state)
{
    Golden g;
    golden_open(&g, *state);
    Result base = run_once(&g, &(RigSetup){ .dropout = 0.1 });
    compare("2 threads", &g, &(RigSetup){ .dropout = 0.1, .threads = 2 }, &base, 1);
    free(base.grad);
    golden_close(&g);
}

static void test_head_rows(void **state)
{
    Golden g;
    golden_open(&g, *state);
    Result base = run_once(&g, &(RigSetup){ 0 });
    compare("7 rows of the head", &g, &(RigSetup){ .head_rows = 7 }, &base, 0);
    compare("1 row of the head", &g, &(RigSetup){ .head_rows = 1 }, &base, 0);
    free(base.grad);
    golden_close(&g);
}

static void test_recompute(void **state)
{
    Golden g;
    golden_open(&g, *state);
    Result base = run_once(&g, &(RigSetup){ .dropout = 0.1 });
    Result dry  = run_once(&g, &(RigSetup){ 0 });
    assert_true(rig_distance(base.grad, dry.grad, dry.n).norm > 1e-2); /* dropout does something */
    compare("recompute cheap", &g, &(RigSetup){ .dropout = 0.1, .level = LEVEL_CHEAP }, &base, 1);
    compare("recompute block", &g, &(RigSetup){ .dropout = 0.1, .level = LEVEL_BLOCK }, &base, 1);
    free(base.grad);
    free(dry.grad);
    golden_close(&g);
}

/* Samples of an image batch are mixed in pairs, so a micro-batch has at least two. */
static void test_images(void **state)
{
    Golden g;
    golden_open(&g, *state);
    Result base = run_once(&g, &(RigSetup){ 0 });
    compare("micro-batch 2", &g, &(RigSetup){ .micro_batch = 2 }, &base, 0);
    compare("2 threads", &g, &(RigSetup){ .threads = 2 }, &base, 1);
    compare("recompute cheap", &g, &(RigSetup){ .level = LEVEL_CHEAP }, &base, 1);
    compare("recompute block", &g, &(RigSetup){ .level = LEVEL_BLOCK }, &base, 1);
    free(base.grad);
    golden_close(&g);
}

/* Stored weights are another order of the same sums; repeated in the backward half they have the same
 * bits. */
static void test_stored_attention(void **state)
{
    Golden g;
    golden_open(&g, *state);
    Result base = run_once(&g, &(RigSetup){ .dropout = 0.1 });
    compare("stored attention", &g, &(RigSetup){ .dropout = 0.1, .stored = 1 }, &base, 0);
    Result stored = run_once(&g, &(RigSetup){ .dropout = 0.1, .stored = 1 });
    /* Another path ran. */
    assert_true(memcmp(stored.grad, base.grad, sizeof *base.grad * (size_t)base.n) != 0);
    RigSetup again = { .dropout = 0.1, .stored = 1, .level = LEVEL_BLOCK, .threads = 2 };
    compare("stored attention, recompute block", &g, &again, &stored, 1);
    free(stored.grad);
    free(base.grad);
    golden_close(&g);
}

static void test_lowering(void **state)
{
    static const struct {
        const char *name;
        RecipeOpt   off;
    } row[] = {
        { "add_norm", { .add_norm = 1 } },
        { "norm_bwd", { .norm_bwd = 1 } },
        { "xent", { .xent = 1 } },
        { "act_bias", { .act_bias = 1 } },
        { "linear_act", { .linear_act = 1 } },
        { "linear_act_bwd", { .linear_act_bwd = 1 } },
        { "act_bias, linear_act_bwd on", { .act_bias = 1, .linear_dw_bias = 1 } },
        { "act_slope", { .act_slope = 1 } },
        { "linear_glu_fwd", { .linear_glu_fwd = 1 } },
        { "linear_glu_bwd", { .linear_glu_bwd = 1 } },
        { "linear_dw_bias", { .linear_dw_bias = 1 } },
        { "attn_rope", { .attn_rope = 1 } },
        { "all",
          { .add_norm       = 1,
            .norm_bwd       = 1,
            .xent           = 1,
            .act_bias       = 1,
            .linear_act     = 1,
            .linear_act_bwd = 1,
            .act_slope      = 1,
            .linear_glu_fwd = 1,
            .linear_glu_bwd = 1,
            .linear_dw_bias = 1,
            .attn_rope      = 1 } },
    };
    Golden g;
    golden_open(&g, *state);
    Result base = run_once(&g, &(RigSetup){ .dropout = 0.1 });
    for (int i = 0; i < ARRAY_LEN(row); i++) {
        compare(row[i].name, &g, &(RigSetup){ .dropout = 0.1, .off = row[i].off }, &base, 1);
        RigSetup again = { .dropout = 0.1, .off = row[i].off, .level = LEVEL_BLOCK };
        compare(row[i].name, &g, &again, &base, 1);
    }
    free(base.grad);
    golden_close(&g);
}

static void test_eval(void **state)
{
    Golden g;
    Rig    r;
    golden_open(&g, *state);
    rig_open(&r, &g, &(RigSetup){ .micro_batch = 2 });
    for (int64_t step = 0; step < 3; step++) {
        double train = rig_step(&r, r.micro, step);
        assert_true(rig_step(&r, r.eval, step) == train); /* the same ops on the same numbers */
    }
    rig_close(&r);
    rig_open(&r, &g, &(RigSetup){ .dropout = 0.3, .parts = JOB_EVAL });
    double want = golden_f64(&g, "loss", g.steps)[0];
    assert_close("evaluation has no dropout", rig_step(&r, r.eval, 0), want, TOL_LOSS);
    rig_close(&r);
    golden_close(&g);
}

/* ---- the prefix mask ----------------------------------------------------------------------------------- */

enum { MAX_TOKENS = 96, MAX_ROWS = 8 };

/* A batch of one's own: what the loader will write once data say where a prefix ends. */
typedef struct {
    int32_t tok[MAX_TOKENS], target[MAX_TOKENS], prefix[MAX_ROWS];
} Rows;

/* Batch 3; the prefix of row b is first + step * b. */
static Rows rows_with(const Golden *g, int32_t first, int32_t step)
{
    Rows   x     = { 0 };
    size_t bytes = sizeof *x.tok * (size_t)(g->B * g->T);
    assert_true(bytes <= sizeof x.tok && g->B <= MAX_ROWS);
    memcpy(x.tok, golden_rows(g, "tok", 3, 0), bytes);
    memcpy(x.target, golden_rows(g, "target", 3, 0), bytes);
    for (int b = 0; b < g->B; b++) x.prefix[b] = first + step * b;
    assert_true(x.prefix[g->B - 1] <= g->T);
    return x;
}

/* The same rows, the last one first. */
static Rows rows_turned(const Golden *g, const Rows *x)
{
    Rows   y     = { 0 };
    size_t bytes = sizeof *x->tok * (size_t)g->T;
    for (int64_t b = 0; b < g->B; b++) {
        int64_t from = g->B - 1 - b;
        memcpy(y.tok + b * g->T, x->tok + from * g->T, bytes);
        memcpy(y.target + b * g->T, x->target + from * g->T, bytes);
        y.prefix[b] = x->prefix[from];
    }
    return y;
}

/* Sum of the losses of these rows and their gradients under a mask. */
static Result run_rows(const Golden *g, Masking mask, const RigSetup *setup, const Rows *x)
{
    Golden masked            = *g;
    masked.recipe.model.mask = mask;
    Rig       r;
    StepState s;
    rig_open(&r, &masked, setup);
    rig_begin_step(&r, 3);
    const NetBatch *nb    = &lm_of(r.j)->batch;
    size_t          bytes = sizeof *x->tok * (size_t)(nb->B * nb->T);
    assert_int_equal(nb->prefix != NULL, mask == MASKING_PREFIX);
    for (int64_t b = 0; b < g->B; b += nb->B) {
        memcpy(r.block + nb->tok->offset_bytes, x->tok + b * g->T, bytes);
        memcpy(r.block + nb->target->offset_bytes, x->target + b * g->T, bytes);
        if (nb->prefix) memcpy(r.block + nb->prefix->offset_bytes, x->prefix + b, tensor_bytes(nb->prefix));
        rig_upload(&r, r.j->block, r.block, tensor_bytes(r.j->block));
        rig_run(&r, r.micro);
    }
    RIG_TRY(job_read_state(r.j, &s));
    Result y = { .loss = s.out.sum[0], .tol = tol_order(g) };
    y.grad   = rig_gradients(&r, &y.n);
    rig_close(&r);
    return y;
}

static double loss_of_rows(const Golden *g, const Rows *x)
{
    Result y = run_rows(g, MASKING_PREFIX, &(RigSetup){ 0 }, x);
    free(y.grad);
    return y.loss;
}

/* The op's definition: nothing or the first token alone is what causal attention sees anyway; all of them are
 * the full mask. */
static void test_prefix_ends(void **state)
{
    Golden g;
    golden_open(&g, *state);
    for (int stored = 0; stored < 2; stored++) {
        RigSetup s    = { .stored = stored };
        Rows     none = rows_with(&g, 0, 0), one = rows_with(&g, 1, 0), all = rows_with(&g, (int32_t)g.T, 0);
        Result   causal = run_rows(&g, MASKING_CAUSAL, &s, &none);
        Result   full   = run_rows(&g, MASKING_FULL, &s, &none);
        assert_true(rig_distance(full.grad, causal.grad, causal.n).norm > 1e-2);
        assert_result("prefix 0", run_rows(&g, MASKING_PREFIX, &s, &none), &causal, 1);
        assert_result("prefix 1", run_rows(&g, MASKING_PREFIX, &s, &one), &causal, 1);
        assert_result("prefix T", run_rows(&g, MASKING_PREFIX, &s, &all), &full, 1);
        free(causal.grad);
        free(full.grad);
    }
    golden_close(&g);
}

/* Each row has a prefix of its own, which goes where the row goes: into another place, into a micro-batch. */
static void test_prefix_rows(void **state)
{
    Golden g;
    golden_open(&g, *state);
    Rows   rows = rows_with(&g, 2, 4), turned = rows_turned(&g, &rows), mixed = rows;
    Result base = run_rows(&g, MASKING_PREFIX, &(RigSetup){ 0 }, &rows);
    memcpy(mixed.prefix, turned.prefix, sizeof mixed.prefix);
    Result other[] = { run_rows(&g, MASKING_CAUSAL, &(RigSetup){ 0 }, &rows),
                       run_rows(&g, MASKING_FULL, &(RigSetup){ 0 }, &rows),
                       run_rows(&g, MASKING_PREFIX, &(RigSetup){ 0 }, &mixed) };
    for (int i = 0; i < ARRAY_LEN(other); i++) {
        assert_true(rig_distance(other[i].grad, base.grad, base.n).norm > 1e-2);
        free(other[i].grad);
    }
    assert_result("the last row first", run_rows(&g, MASKING_PREFIX, &(RigSetup){ 0 }, &turned), &base, 0);
    for (int64_t micro = 1; micro <= 2; micro++) {
        RigSetup s = { .micro_batch = micro };
        assert_result("micro-batch", run_rows(&g, MASKING_PREFIX, &s, &rows), &base, 0);
    }
    RigSetup stored = { .stored = 1 }, again = { .level = LEVEL_BLOCK, .threads = 2 };
    assert_result("stored attention", run_rows(&g, MASKING_PREFIX, &stored, &rows), &base, 0);
    assert_result("recompute block", run_rows(&g, MASKING_PREFIX, &again, &rows), &base, 1);
    free(base.grad);
    golden_close(&g);
}

/* The last token of a prefix is seen by those before it, the first behind it is not: with targets only before
 * both, another token there changes the loss or not a bit of it. */
static void test_prefix_bounds(void **state)
{
    Golden g;
    golden_open(&g, *state);
    Rows rows = rows_with(&g, 2, 4);
    for (int64_t i = 0; i < g.B * g.T; i++) {
        int before     = i % g.T < rows.prefix[i / g.T] - 1;
        rows.target[i] = before ? rows.tok[i] : -1; /* any will do, but the golden ones have holes */
    }
    double loss = loss_of_rows(&g, &rows);
    for (int64_t b = 0; b < g.B; b++) {
        for (int64_t behind = 0; behind < 2; behind++) {
            Rows     x   = rows;
            int32_t *tok = &x.tok[b * g.T + rows.prefix[b] - 1 + behind];
            *tok         = (*tok + 1) % (int32_t)g.recipe.model.vocab;
            if ((loss_of_rows(&g, &x) == loss) != behind) {
                fail_msg("row %lld: another token %lld %s the loss", (long long)b,
                         (long long)(rows.prefix[b] - 1 + behind), behind ? "changes" : "does not change");
            }
        }
    }
    golden_close(&g);
}

/* ---- decoding ------------------------------------------------------------------------------------------ */

/* Feeds tok one token at a time and returns the sum of the losses of the targets that are not ignored. */
static double decode_loss(Rig *r, const int32_t *tok, const int32_t *target)
{
    const NetDecode *d      = &lm_of(r->j)->decode;
    int64_t          V      = r->g->recipe.model.vocab;
    float           *logits = malloc(tensor_bytes(d->logits));
    double           sum    = 0;
    assert_non_null(logits);
    for (int32_t t = 0; t < r->g->T; t++) {
        rig_upload(r, d->tok, &tok[t], sizeof tok[t]);
        rig_upload(r, d->pos, &t, sizeof t);
        rig_run(r, r->decode);
        if (target[t] < 0) continue;
        RIG_TRY(r->dev->vt->download(r->dev, LANE_COMPUTE, logits, d->logits->data, tensor_bytes(d->logits)));
        RIG_TRY(r->dev->vt->sync(r->dev));
        double z = 0;
        for (int64_t v = 0; v < V; v++) z += exp((double)logits[v]);
        sum += log(z) - (double)logits[target[t]];
    }
    free(logits);
    return sum;
}

static void test_decode(void **state)
{
    Golden g;
    Rig    r;
    golden_open(&g, *state);
    rig_open(&r, &g, &(RigSetup){ .micro_batch = 1, .parts = JOB_EVAL | JOB_SAMPLE });
    for (int64_t b = 0; b < g.B; b++) {
        StepState s;
        rig_begin_step(&r, 0);
        rig_micro(&r, r.eval, 0, b);
        RIG_TRY(job_read_state(r.j, &s));
        double loss = decode_loss(&r, golden_rows(&g, "tok", 0, b), golden_rows(&g, "target", 0, b));
        assert_close("decoded sequence", loss, s.out.sum[0], TOL_LOSS);
    }
    rig_close(&r);
    golden_close(&g);
}

/* clang-format off */
#define EACH_MODEL(f)                                                                                        \
    { #f " gpt2", f, NULL, NULL, (void *)"gpt2" },   { #f " llama", f, NULL, NULL, (void *)"llama" },        \
    { #f " qwen2", f, NULL, NULL, (void *)"qwen2" }, { #f " qwen3", f, NULL, NULL, (void *)"qwen3" }
#define EACH_VIT(f)                                                                                          \
    { #f " vit", f, NULL, NULL, (void *)"vit" },     { #f " video", f, NULL, NULL, (void *)"video" }
/* clang-format on */

int main(void)
{
    const struct CMUnitTest tests[] = {
        EACH_MODEL(test_gradients),     EACH_MODEL(test_ten_steps),
        EACH_MODEL(test_micro_batch),   EACH_MODEL(test_head_rows),
        EACH_MODEL(test_recompute),     EACH_MODEL(test_lowering),
        EACH_MODEL(test_eval),          EACH_MODEL(test_decode),
        EACH_MODEL(test_threads),       EACH_MODEL(test_stored_attention),
        EACH_MODEL(test_prefix_ends),   EACH_MODEL(test_prefix_rows),
        EACH_MODEL(test_prefix_bounds), EACH_VIT(test_gradients),
        EACH_VIT(test_ten_steps),       EACH_VIT(test_images),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
