/* Gradients of losses and of ops on rows by difference quotients: op_gradient.h says how. */
#include "op_gradient.h"

/* in: x, whose rows are looked up */
static double loss_rows(const Problem *p)
{
    double s = 0;
    for (int64_t i = 0; i < p->rows * p->cols; i++) {
        int64_t m = *case_int(p->c->args.rows_dx.index, i / p->cols);
        if (m >= 0) s += p->dy[i] * p->in[0][m * p->cols + i % p->cols];
    }
    return s;
}

static double loss_mean_rows(const Problem *p)
{
    const MeanRowsDx *a = &p->c->args.mean_rows_dx;
    int64_t           T = a->dx->dim[1];
    double            s = 0;
    for (int64_t i = 0; i < p->n[0]; i++) {
        int64_t b = i / (T * p->cols), n = a->len ? *case_int(a->len, b) : T;
        if (i / p->cols % T < n) s += p->dy[b * p->cols + i % p->cols] * p->in[0][i] / (double)n;
    }
    return s;
}

static double loss_mse(const Problem *p)
{
    const MseDx *a = &p->c->args.mse_dx;
    double       s = 0, slope;
    for (int64_t i = 0; i < p->n[0]; i++) {
        double old = a->old ? *case_at(a->old, i) : 0;
        s += math_mse(p->in[0][i], *case_at(a->target, i), a->old ? &old : NULL,
                      a->clip ? *case_at(a->clip, 0) : 0, &slope);
    }
    return s * ref_scale(a->state, a->slot);
}

static double loss_kl(const Problem *p)
{
    const KlDx *a   = &p->c->args.kl_dx;
    double      tau = (double)a->tau, sum = 0;
    for (int64_t r = 0; r < p->rows; r++) {
        if (!ref_has_target(a->target, r)) continue;
        double *t = ref_over_tau(a->teacher, r, a->n_class, tau), *s = dbl_new(a->n_class);
        for (int64_t k = 0; k < a->n_class; k++) s[k] = p->in[0][r * p->cols + k] / tau;
        double ls = math_lse(s, a->n_class), lt = math_lse(t, a->n_class);
        for (int64_t k = 0; k < a->n_class; k++) sum += exp(t[k] - lt) * (t[k] - lt - s[k] + ls);
        free(s);
        free(t);
    }
    return sum * tau * tau * ref_scale(a->state, a->slot);
}

/* in: logits, value */
static double loss_ppo(const Problem *p)
{
    int        gauss = p->c->kind == OP_PPO_GAUSS_DX;
    int        slot  = gauss ? p->c->args.ppo_gauss_dx.slot : p->c->args.ppo_cat_dx.slot;
    PpoNumbers v     = { p->in[0], gauss ? p->in[1] : NULL, p->in[1 + gauss] };
    double     s     = 0;
    for (int64_t n = 0; n < p->rows; n++) s += ref_ppo_row(p->c, &v, n).loss;
    return s * ref_scale(ppo_arg(p->c, ppo_slots(p->c->kind).state), slot);
}

/* A log_std that all rows share has one gradient a row, which only the reference tells apart. */
static int setup_ppo(Setup *s, const OpCase *c)
{
    int           gauss   = c->kind == OP_PPO_GAUSS_DX;
    PpoSlots      slot    = ppo_slots(c->kind);
    const Tensor *log_std = ppo_arg(c, slot.log_std), *value = ppo_arg(c, slot.value);
    input(s, ppo_arg(c, slot.policy), 0);
    if (gauss) input(s, log_std, tensor_rows(log_std) == s->p.n[0] / tensor_cols(log_std) ? 1 : -1);
    if (value) input(s, value, 1 + gauss);
    s->p.loss  = loss_ppo;
    s->p.flops = 100 * (double)s->p.n[0];
    return 1;
}

static int setup(Setup *s, const OpCase *c)
{
    int64_t n;
    switch (c->kind) {
    case OP_ROWS_DX:
        n = tensor_numel(c->args.rows_dx.dx);
        constant(s, ones(n), n, 0);
        s->p.dy   = case_doubles(c->args.rows_dx.dy);
        s->p.loss = loss_rows;
        break;
    case OP_MEAN_ROWS_DX:
        n = tensor_numel(c->args.mean_rows_dx.dx);
        constant(s, ones(n), n, 0);
        s->p.dy   = case_doubles(c->args.mean_rows_dx.dy);
        s->p.loss = loss_mean_rows;
        break;
    case OP_MSE_DX:
        input(s, c->args.mse_dx.x, 0);
        s->p.loss = loss_mse;
        break;
    default: /* OP_KL_DX */
        input(s, c->args.kl_dx.logits, 0);
        s->p.loss = loss_kl;
        break;
    }
    s->p.flops = 40 * (double)s->p.n[0];
    return 1;
}

static const Row table[] = {
    { OP_ROWS_DX, setup, 2 }, { OP_MEAN_ROWS_DX, setup, 1 },   { OP_MSE_DX, setup, 1 },
    { OP_KL_DX, setup, 1 },   { OP_PPO_CAT_DX, setup_ppo, 2 }, { OP_PPO_GAUSS_DX, setup_ppo, 3 },
};

int main(void)
{
    struct CMUnitTest test[ARRAY_LEN(table)];
    for (int n = 0; n < ARRAY_LEN(table); n++) {
        test[n] =
            (struct CMUnitTest){ op_table[table[n].kind].name, test_gradient, NULL, NULL, (void *)&table[n] };
    }
    return _cmocka_run_group_tests("op_gradients_loss", test, ARRAY_LEN(table), NULL, NULL);
}
