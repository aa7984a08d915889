/* Gradient rules of rows, means, products of activations and of all losses: a small program, differentiated,
 * against difference quotients of its own losses. With and without recomputation, which must give the same
 * bits.
 *
 * The quotient has step h = 0.01: it is wrong by h^2 L'''/6 and by rounding, 2^-24 L/h; both are below 1e-3
 * of 1 + |slope|. */
#include "base/err.h"
#include "base/rng.h"
#include "prog/prog.h"
#include "prog/record.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { B = 4, T = 3, C = 8, V = 6, ROWS = 10, MAX_WEIGHT = 16 };

typedef struct {
    Store   store;
    Prog   *p;
    Tensor *state;
    Tensor *weight[MAX_WEIGHT];
    int     n_weight;
    /* inputs */
    Tensor *index, *again, *len, *target, *target2, *lambda, *teacher, *wanted, *old, *clip;
    Tensor *action, *taken, *old_logp, *adv, *coef;
} Model;

static Tensor *input(Model *m, const char *name, DType dtype, int64_t rows, int64_t cols)
{
    return store_tensor(&m->store, SLAB_IO, name, dtype, 2, (int64_t[]){ rows, cols });
}

static Tensor *weight(Model *m, const char *name, int64_t rows, int64_t cols)
{
    int64_t dim[2] = { rows, cols };
    Tensor *w      = store_tensor(&m->store, SLAB_MASTER, name, DT_F32, 2, dim);
    store_set_grad(&m->store, w, store_tensor(&m->store, SLAB_GRAD, name, DT_F32, 2, dim));
    m->weight[m->n_weight++] = w;
    return w;
}

static Tensor *act2(Model *m, const char *name, int64_t rows, int64_t cols)
{
    return prog_tensor(m->p, name, DT_F32, 2, (int64_t[]){ rows, cols });
}

static void sum_up(Model *m, Tensor *loss)
{
    rec_loss_add(m->p, (LossAdd){ .state = m->state, .loss = loss });
}

static Tensor *losses(Model *m) { return prog_tensor(m->p, "loss", DT_F32, 1, (int64_t[]){ B }); }

static void declare(Model *m)
{
    memset(m, 0, sizeof *m);
    store_init(&m->store);
    m->state    = store_tensor(&m->store, SLAB_STATE, "state", DT_U8, 1, (int64_t[]){ sizeof(StepState) });
    m->index    = input(m, "index", DT_I32, 1, B * T);
    m->again    = input(m, "again", DT_I32, 1, B * T);
    m->len      = input(m, "len", DT_I32, 1, B);
    m->target   = input(m, "target", DT_I32, 1, B);
    m->target2  = input(m, "target2", DT_I32, 1, B);
    m->lambda   = input(m, "lambda", DT_F32, 1, B);
    m->teacher  = input(m, "teacher", DT_F32, B, V);
    m->wanted   = input(m, "wanted", DT_F32, B, 1);
    m->old      = input(m, "old", DT_F32, B, 1);
    m->clip     = input(m, "clip", DT_F32, 1, 1);
    m->action   = input(m, "action", DT_I32, B, 1);
    m->taken    = input(m, "taken", DT_F32, B, V);
    m->old_logp = input(m, "old_logp", DT_F32, 1, B);
    m->adv      = input(m, "adv", DT_F32, 1, B);
    m->coef     = input(m, "coef", DT_F32, 1, 4);
    weight(m, "table", ROWS, C);
    weight(m, "pos", T, C);
    weight(m, "gate", C, C);
    weight(m, "head", V, C);
    weight(m, "value", 1, C);
    weight(m, "log_std", 1, V);
    weight(m, "spread", V, C);
    weight(m, "factors", 1, C);
}

/* table rows + positions, gated, taken again in another order, averaged */
static Tensor *record_trunk(Model *m)
{
    int64_t dim[3] = { B, T, C };
    Tensor *x[7];
    for (int i = 0; i < 7; i++) x[i] = prog_tensor(m->p, "x", DT_F32, 3, dim);
    Tensor *mean = act2(m, "mean", B, C);
    prog_at(m->p, 0, -1, "trunk");
    rec_rows_fwd(m->p, (RowsFwd){ .y = x[0], .x = m->weight[0], .index = m->index });
    rec_add_pos(m->p, (AddPos){ .y = x[1], .x = x[0], .pos = m->weight[1] });
    rec_linear_fwd(m->p, (LinearFwd){ .y = x[2], .x = x[1], .w = m->weight[2] });
    rec_act_fwd(m->p, (ActFwd){ .y = x[3], .x = x[2], .act = ACT_TANH });
    rec_mul(m->p, (Mul){ .y = x[6], .a = x[1], .b = x[3] });
    rec_scale(m->p, (Scale){ .y = x[4], .x = x[6], .gamma = m->weight[7] });
    rec_rows_fwd(m->p, (RowsFwd){ .y = x[5], .x = x[4], .index = m->again });
    rec_mean_rows_fwd(m->p, (MeanRowsFwd){ .y = mean, .x = x[5], .len = m->len });
    prog_at(m->p, -1, -1, "heads");
    return mean;
}

static void record_losses(Model *m, Tensor *h)
{
    Tensor *logits = act2(m, "logits", B, V), *value = act2(m, "value", B, 1), *loss[3];
    for (int i = 0; i < 3; i++) loss[i] = losses(m);
    rec_linear_fwd(m->p, (LinearFwd){ .y = logits, .x = h, .w = m->weight[3] });
    rec_linear_fwd(m->p, (LinearFwd){ .y = value, .x = h, .w = m->weight[4] });
    rec_xent_fwd(m->p, (XentFwd){ .loss    = loss[0],
                                  .lse     = losses(m),
                                  .logits  = logits,
                                  .target  = m->target,
                                  .target2 = m->target2,
                                  .lambda  = m->lambda,
                                  .n_class = V - 1,
                                  .smooth  = 0.1f });
    rec_kl_fwd(m->p, (KlFwd){ .loss    = loss[1],
                              .lse     = losses(m),
                              .tlse    = losses(m),
                              .logits  = logits,
                              .teacher = m->teacher,
                              .target  = m->target,
                              .n_class = V - 1,
                              .tau     = 1.5f });
    rec_mse_fwd(m->p,
                (MseFwd){ .loss = loss[2], .x = value, .target = m->wanted, .old = m->old, .clip = m->clip });
    for (int i = 0; i < 3; i++) sum_up(m, loss[i]);
}

/* PPO: logits with a value, means with a log_std for all rows, and means with one of each row. */
static void record_ppo(Model *m, Tensor *h)
{
    Tensor *logits = act2(m, "logits", B, V), *value = act2(m, "value", B, 1),
           *spread = act2(m, "spread", B, V), *loss[3];
    for (int i = 0; i < 3; i++) loss[i] = losses(m);
    rec_linear_fwd(m->p, (LinearFwd){ .y = logits, .x = h, .w = m->weight[3] });
    rec_linear_fwd(m->p, (LinearFwd){ .y = value, .x = h, .w = m->weight[4] });
    rec_linear_fwd(m->p, (LinearFwd){ .y = spread, .x = h, .w = m->weight[6] });
    rec_ppo_cat_fwd(m->p, (PpoCatFwd){ .loss      = loss[0],
                                       .logits    = logits,
                                       .value     = value,
                                       .action    = m->action,
                                       .old_logp  = m->old_logp,
                                       .adv       = m->adv,
                                       .ret       = m->wanted,
                                       .old_value = m->old,
                                       .coef      = m->coef });
    for (int i = 1; i < 3; i++) {
        rec_ppo_gauss_fwd(m->p, (PpoGaussFwd){ .loss     = loss[i],
                                               .mean     = logits,
                                               .log_std  = i == 1 ? m->weight[5] : spread,
                                               .action   = m->taken,
                                               .old_logp = m->old_logp,
                                               .adv      = m->adv,
                                               .coef     = m->coef });
    }
    for (int i = 0; i < 3; i++) sum_up(m, loss[i]);
}

static void fill_floats(const Tensor *t, uint64_t seed, float bound)
{
    for (int64_t i = 0; i < tensor_numel(t); i++) {
        uint32_t w[4];
        rng_philox(w, seed, (uint32_t)t->id, 0, (uint64_t)i);
        ((float *)t->data)[i] = (2 * rng_uniform(w[0]) - 1) * bound;
    }
}

static void fill_ints(const Tensor *t, const int32_t *v) { memcpy(t->data, v, tensor_bytes(t)); }

static void fill(Model *m)
{
    StepState *s = m->state->data;
    s->in        = (StepIn){ .inv = { 0.25f }, .loss_scale = 2 };
    fill_ints(m->index, (int32_t[]){ 1, 4, -1, 4, 9, 0, 4, 2, 2, -1, 7, 8 });
    fill_ints(m->again, (int32_t[]){ 3, 3, 0, -1, 11, 5, 6, 7, 8, 2, 3, 10 });
    fill_ints(m->len, (int32_t[]){ 3, 2, 1, 3 });
    fill_ints(m->target, (int32_t[]){ 1, -1, 0, 4 });
    fill_ints(m->target2, (int32_t[]){ 2, 3, 0, 1 });
    memcpy(m->lambda->data, (float[]){ 0.3f, 0.5f, 1, 0.8f }, sizeof(float) * B);
    memcpy(m->clip->data, (float[]){ 0.2f }, sizeof(float));
    fill_floats(m->teacher, 1, 2);
    fill_floats(m->wanted, 2, 2);
    fill_floats(m->old, 3, 0.5f);
    fill_ints(m->action, (int32_t[]){ 3, 0, 5, 2 });
    memcpy(m->coef->data, (float[]){ 0.2f, 0.3f, 0.1f, 0.5f }, 4 * sizeof(float));
    memcpy(m->old_logp->data, (float[]){ -1, -2, -9, -8 }, B * sizeof(float));
    memcpy(m->adv->data, (float[]){ 0.7f, -0.4f, 0.3f, -0.02f }, B * sizeof(float));
    fill_floats(m->taken, 5, 1);
    for (int i = 0; i < m->n_weight; i++) fill_floats(m->weight[i], 4, 0.8f);
}

static void build(Model *m, Dev *dev, RecomputeLevel level)
{
    declare(m);
    store_seal(&m->store);
    m->p      = prog_begin("rules", &m->store);
    Tensor *h = record_trunk(m);
    record_losses(m, h);
    record_ppo(m, h);
    prog_differentiate(m->p, &level, 1, m->state);
    prog_lower(m->p, &(RecipeOpt){ .xent = 1, .act_bias = 1 }, dev->vt);
    prog_plan(m->p);
    assert_int_equal(prog_verify(m->p), 0);
    store_fit_act(&m->store, prog_stats(m->p).act_bytes);
    if (store_alloc_slabs(&m->store, dev) < 0 || prog_bind(m->p, dev) < 0) fail_msg("%s", err_get());
    fill(m);
}

/* The scaled sum of all losses; gradients are as the program leaves them. */
static double run(Model *m, Dev *dev)
{
    StepState *s  = m->state->data;
    s->out.sum[0] = 0;
    for (int i = 0; i < m->n_weight; i++) {
        Tensor *g = m->store.grad[m->weight[i]->id];
        memset(g->data, 0, tensor_bytes(g));
    }
    assert_int_equal(prog_run(m->p, dev), 0);
    return s->out.sum[0] * (double)s->in.inv[0] * (double)s->in.loss_scale;
}

static void close_model(Model *m, Dev *dev)
{
    prog_destroy(m->p, dev);
    store_free_slabs(&m->store, dev);
    store_deinit(&m->store);
}

static void check_weight(Model *m, Dev *dev, int k)
{
    enum { MOST = ROWS * C };
    const double h = 0.01;
    Tensor      *w = m->weight[k], *g = m->store.grad[w->id];
    float       *x = w->data, got[MOST];
    int64_t      n = tensor_numel(w);
    assert_true(n <= MOST);
    run(m, dev);
    memcpy(got, g->data, tensor_bytes(g));
    for (int64_t i = 0; i < n; i++) {
        float at    = x[i];
        x[i]        = (float)(at + h);
        double up   = run(m, dev);
        x[i]        = (float)(at - h);
        double down = run(m, dev), slope = (up - down) / (2 * h);
        x[i] = at;
        if (fabs(slope - got[i]) <= 1e-3 * (1 + fabs(slope))) continue;
        fail_msg("%s[%lld]: gradient %.6g, difference quotient %.6g", w->name, (long long)i, got[i], slope);
    }
}

static void test_rules(void **state)
{
    (void)state;
    Dev *dev = dev_open("cpu", &(DevOptions){ .threads = 2 }, NULL);
    assert_non_null(dev);
    Model m;
    build(&m, dev, LEVEL_NONE);
    for (int k = 0; k < m.n_weight; k++) check_weight(&m, dev, k);
    close_model(&m, dev);
    dev_close(dev);
}

static void test_recompute(void **state)
{
    (void)state;
    static const RecomputeLevel level[] = { LEVEL_CHEAP, LEVEL_BLOCK };
    Dev                        *dev     = dev_open("cpu", &(DevOptions){ .threads = 2 }, NULL);
    Model                       a;
    build(&a, dev, LEVEL_NONE);
    double want = run(&a, dev);
    for (int l = 0; l < ARRAY_LEN(level); l++) {
        Model b;
        build(&b, dev, level[l]);
        assert_true(run(&b, dev) == want);
        for (int k = 0; k < a.n_weight; k++) {
            Tensor *ga = a.store.grad[a.weight[k]->id], *gb = b.store.grad[b.weight[k]->id];
            assert_memory_equal(ga->data, gb->data, tensor_bytes(ga));
        }
        close_model(&b, dev);
    }
    close_model(&a, dev);
    dev_close(dev);
}

int main(void)
{
    const struct CMUnitTest test[] = { cmocka_unit_test(test_rules), cmocka_unit_test(test_recompute) };
    return cmocka_run_group_tests(test, NULL, NULL);
}
