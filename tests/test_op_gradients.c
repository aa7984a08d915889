/* Gradients of products, norms, activations, attention and embeddings by difference quotients: op_gradient.h
 * says how. */
#include "op_gradient.h"

/* ---- Forward functions of each backward op ------------------------------------------------------------- */

static int is_centered(const OpCase *c)
{
    return c->kind == OP_NORM_DX   ? c->args.norm_dx.mean != NULL
           : c->kind == OP_NORM_DW ? c->args.norm_dw.mean != NULL
                                   : c->args.norm_bwd.mean != NULL;
}

/* in: x, gamma, beta */
static double loss_norm(const Problem *p)
{
    double *y = dbl_new(p->cols), s = 0;
    for (int64_t r = 0; r < p->rows; r++) {
        math_norm(y, p->in[0] + r * p->cols, p->in[1], p->in[2], p->cols, is_centered(p->c), 1e-5);
        s += weighted(y, p->dy + r * p->cols, p->cols);
    }
    free(y);
    return s;
}

/* in: x [N,K], w [M,K], and for linear_dw with db a bias added to each row */
static double loss_linear(const Problem *p)
{
    int64_t N = p->rows, K = p->n[0] / N, M = p->cols;
    double *y = dbl_new(N * M), s;
    math_product(y, (Strided){ p->in[0], K, 1 }, (Strided){ p->in[1], 1, K }, N, M, K);
    for (int64_t i = 0; p->in[2] && i < N * M; i++) y[i] += p->in[2][i % M];
    s = weighted(y, p->dy, N * M);
    free(y);
    return s;
}

static Act act_of(const OpCase *c)
{
    return c->kind == OP_ACT_DX   ? c->args.act_dx.act
           : c->kind == OP_GLU_DX ? c->args.glu_dx.act
                                  : c->args.act_bias_bwd.act;
}

/* in: x, and for act_bias_bwd a bias added to each row */
static double loss_act(const Problem *p)
{
    double s = 0;
    for (int64_t i = 0; i < p->n[0]; i++) {
        s += p->dy[i] * math_act(p->in[0][i] + (p->in[1] ? p->in[1][i % p->cols] : 0), act_of(p->c));
    }
    return s;
}

static double loss_glu(const Problem *p)
{
    double  s = 0;
    int64_t F = p->cols;
    for (int64_t i = 0; i < p->rows * F; i++) {
        int64_t at = i / F * 2 * F + i % F;
        s += p->dy[i] * math_glu(p->in[0][at], p->in[0][at + F], act_of(p->c));
    }
    return s;
}

/* in: pre [N,F] or, gated, [N,2F]; w [M,F]; a bias added to each row of pre, or nothing */
static double loss_before_linear(const Problem *p)
{
    int     gated = p->c->kind == OP_LINEAR_GLU_BWD;
    Act     act   = gated ? p->c->args.linear_glu_bwd.act : p->c->args.linear_act_bwd.act;
    int64_t N = p->rows, M = p->cols, F = p->n[1] / M;
    double *h = dbl_new(N * F), *y = dbl_new(N * M), s;
    for (int64_t i = 0; i < N * F; i++) {
        int64_t at = gated ? i / F * 2 * F + i % F : i;
        h[i]       = gated ? math_glu(p->in[0][at], p->in[0][at + F], act)
                           : math_act(p->in[0][at] + (p->in[2] ? p->in[2][i % F] : 0), act);
    }
    math_product(y, (Strided){ h, F, 1 }, (Strided){ p->in[1], 1, F }, N, M, F);
    s = weighted(y, p->dy, N * M);
    free(h);
    free(y);
    return s;
}

/* in: x, gq, gk */
static double loss_qknorm(const Problem *p)
{
    int     dx = p->c->kind == OP_QKNORM_DX;
    int64_t H  = dx ? p->c->args.qknorm_dx.heads : p->c->args.qknorm_dw.heads;
    int64_t K  = dx ? p->c->args.qknorm_dx.kv_heads : p->c->args.qknorm_dw.kv_heads;
    int64_t D = dx ? p->c->args.qknorm_dx.head_dim : p->c->args.qknorm_dw.head_dim, W = (H + 2 * K) * D;
    double *y = dbl_new(D), s = 0;
    for (int64_t i = 0; i < p->rows * (H + 2 * K); i++) {
        int64_t h = i % (H + 2 * K), at = i / (H + 2 * K) * W + h * D;
        if (h >= H + K) {
            s += weighted(p->in[0] + at, p->dy + at, D);
            continue;
        }
        math_norm(y, p->in[0] + at, h < H ? p->in[1] : p->in[2], NULL, D, 0, 1e-5);
        s += weighted(y, p->dy + at, D);
    }
    free(y);
    return s;
}

static double loss_attn(const Problem *p)
{
    MathAttn shape = case_attn_shape(p->c);
    double  *o     = dbl_new(p->rows * p->cols), s;
    math_attn(o, NULL, &shape, p->in[0], p->in[0]);
    s = weighted(o, p->dy, p->rows * p->cols);
    free(o);
    return s;
}

static double loss_cross(const Problem *p)
{
    MathAttn shape = case_cross_shape(p->c);
    double  *o     = dbl_new(p->rows * p->cols), s;
    math_attn(o, NULL, &shape, p->in[0], p->in[1]);
    s = weighted(o, p->dy, p->rows * p->cols);
    free(o);
    return s;
}

static double loss_xent(const Problem *p)
{
    int           fused = p->c->kind == OP_XENT;
    const XentDx *a     = &p->c->args.xent_dx;
    const Xent   *f     = &p->c->args.xent;
    XentTarget    t     = { a->target, a->target2, a->lambda, a->n_class, (double)a->smooth };
    if (fused) t = (XentTarget){ f->target, NULL, NULL, f->n_class, 0 };
    double s = 0;
    for (int64_t r = 0; r < p->rows; r++) {
        const double *x = p->in[0] + r * p->cols;
        if (*case_int(t.target, r) < 0) continue;
        s += math_lse(x, t.n_class);
        for (int64_t k = 0; k < t.n_class; k++) s -= ref_xent_q(&t, r, k) * x[k];
    }
    return s * ref_scale(fused ? f->state : a->state, fused ? f->slot : a->slot);
}

/* in: the vectors that were looked up, wte and wpe */
static double loss_embed(const Problem *p)
{
    double s   = 0;
    int    pos = p->c->kind == OP_POS_DW;
    for (int64_t i = 0; i < p->rows * p->cols; i++) {
        int64_t row = pos ? i / p->cols % p->c->args.pos_dw.dy->dim[1]
                          : *case_int(p->c->args.embed_dw.tok, i / p->cols);
        if (row >= 0) s += p->dy[i] * p->in[0][row * p->cols + i % p->cols];
    }
    return s;
}

/* in: gamma [C] */
static double loss_scale(const Problem *p)
{
    double s = 0;
    for (int64_t i = 0; i < p->rows * p->cols; i++)
        s += p->dy[i] * *case_at(p->c->args.scale_dw.x, i) * p->in[0][i % p->cols];
    return s;
}

/* ---- One setup per family ------------------------------------------------------------------------------ */

static int setup_norm(Setup *s, const OpCase *c)
{
    int64_t C;
    if (c->kind == OP_NORM_DX) {
        const NormDx *a = &c->args.norm_dx;
        input(s, a->x, 0);
        input(s, a->gamma, -1);
        s->p.dy = case_doubles(a->dy);
    } else if (c->kind == OP_NORM_DW) {
        const NormDw *a = &c->args.norm_dw;
        C               = tensor_cols(a->x);
        input(s, a->x, -1);
        constant(s, ones(C), C, 0);
        if (a->dbeta) constant(s, ones(C), C, 1);
        s->p.dy = case_doubles(a->dy);
    } else {
        const NormBwd *a = &c->args.norm_bwd;
        C                = tensor_cols(a->x);
        input(s, a->x, 0);
        input(s, a->gamma, a->dgamma ? 1 : -1);
        if (a->dbeta) constant(s, ones(C), C, 2);
        s->p.dy = case_doubles(a->dy);
    }
    s->p.loss  = loss_norm;
    s->p.flops = 12 * (double)s->p.n[0];
    return 1;
}

static int setup_linear(Setup *s, const OpCase *c)
{
    if (c->kind == OP_BIAS_DW) return 0; /* its forward is an addition: the reference says it all */
    const Tensor *dy = c->kind == OP_LINEAR_DX ? c->args.linear_dx.dy : c->args.linear_dw.dy;
    if (c->kind == OP_LINEAR_DX) {
        constant(s, ones(tensor_numel(c->args.linear_dx.dx)), tensor_numel(c->args.linear_dx.dx), 0);
        input(s, c->args.linear_dx.w, -1);
    } else {
        input(s, c->args.linear_dw.x, -1);
        constant(s, ones(tensor_numel(c->args.linear_dw.dw)), tensor_numel(c->args.linear_dw.dw), 0);
        if (c->args.linear_dw.db) constant(s, dbl_new(tensor_cols(dy)), tensor_cols(dy), 1);
    }
    s->p.dy    = case_doubles(dy);
    s->p.loss  = loss_linear;
    s->p.flops = 2 * (double)s->p.n[0] * (double)tensor_cols(dy);
    return 1;
}

static int setup_before_linear(Setup *s, const OpCase *c)
{
    int           gated = c->kind == OP_LINEAR_GLU_BWD;
    const Tensor *pre   = gated ? c->args.linear_glu_bwd.pre : c->args.linear_act_bwd.pre;
    const Tensor *w     = gated ? c->args.linear_glu_bwd.w : c->args.linear_act_bwd.w;
    input(s, pre, 0);
    input(s, w, -1);
    if (!gated && c->args.linear_act_bwd.db) constant(s, dbl_new(tensor_cols(w)), tensor_cols(w), 1);
    s->p.dy    = case_doubles(gated ? c->args.linear_glu_bwd.dy : c->args.linear_act_bwd.dy);
    s->p.loss  = loss_before_linear;
    s->p.flops = 2 * (double)tensor_rows(pre) * (double)tensor_numel(w) + 20 * (double)tensor_numel(pre);
    return 1;
}

static int setup_rows(Setup *s, const OpCase *c)
{
    const Tensor *dy = NULL;
    switch (c->kind) {
    case OP_ACT_DX:
        input(s, c->args.act_dx.x, 0);
        dy        = c->args.act_dx.dy;
        s->p.loss = loss_act;
        break;
    case OP_ACT_BIAS_BWD:
        input(s, c->args.act_bias_bwd.x, 0);
        constant(s, dbl_new(tensor_cols(c->args.act_bias_bwd.x)), tensor_cols(c->args.act_bias_bwd.x), 1);
        dy        = c->args.act_bias_bwd.dy;
        s->p.loss = loss_act;
        break;
    case OP_GLU_DX:
        input(s, c->args.glu_dx.x, 0);
        dy        = c->args.glu_dx.dy;
        s->p.loss = loss_glu;
        break;
    case OP_QKNORM_DX:
        input(s, c->args.qknorm_dx.x, 0);
        input(s, c->args.qknorm_dx.gq, -1);
        input(s, c->args.qknorm_dx.gk, -1);
        dy        = c->args.qknorm_dx.dy;
        s->p.loss = loss_qknorm;
        break;
    default: /* OP_QKNORM_DW */
        input(s, c->args.qknorm_dw.x, -1);
        constant(s, ones(c->args.qknorm_dw.head_dim), c->args.qknorm_dw.head_dim, 0);
        constant(s, ones(c->args.qknorm_dw.head_dim), c->args.qknorm_dw.head_dim, 1);
        dy        = c->args.qknorm_dw.dy;
        s->p.loss = loss_qknorm;
        break;
    }
    s->p.dy    = case_doubles(dy);
    s->p.flops = 40 * (double)s->p.n[0];
    return 1;
}

static int setup_rest(Setup *s, const OpCase *c)
{
    int64_t n;
    switch (c->kind) {
    case OP_ATTN_BWD: {
        MathAttn a = case_attn_shape(c);
        if (c->args.attn_bwd.table)
            return 0; /* of another function, and compared with its parts in test_op_fused */
        input(s, c->args.attn_bwd.qkv, 0);
        s->p.dy    = case_doubles(c->args.attn_bwd.dout);
        s->p.loss  = loss_attn;
        s->p.flops = 8.0 * (double)(a.B * a.H * a.T * a.T) * (double)a.D; /* twice: plain code is slow */
        return 1;
    }
    case OP_CROSS_ATTN_BWD: {
        MathAttn a = case_cross_shape(c);
        input(s, c->args.cross_attn_bwd.q, 0);
        input(s, c->args.cross_attn_bwd.kv, 1);
        s->p.dy    = case_doubles(c->args.cross_attn_bwd.dout);
        s->p.loss  = loss_cross;
        s->p.flops = 8.0 * (double)(a.B * a.H * a.T * a.S) * (double)a.D;
        return 1;
    }
    case OP_SCALE_DW:
        n = tensor_cols(c->args.scale_dw.x);
        constant(s, ones(n), n, 0);
        s->p.dy    = case_doubles(c->args.scale_dw.dy);
        s->p.loss  = loss_scale;
        s->p.flops = 3 * (double)tensor_numel(c->args.scale_dw.x);
        return 1;
    case OP_XENT_DX: input(s, c->args.xent_dx.logits, 0); break;
    case OP_XENT: input(s, c->args.xent.logits, 1); break;
    default:
        n = tensor_numel(c->kind == OP_EMBED_DW ? c->args.embed_dw.dwte : c->args.pos_dw.dwpe);
        constant(s, ones(n), n, 0);
        s->p.dy   = case_doubles(c->kind == OP_EMBED_DW ? c->args.embed_dw.dy : c->args.pos_dw.dy);
        s->p.loss = loss_embed;
        s->p.flops =
            8 * (double)tensor_numel(c->kind == OP_EMBED_DW ? c->args.embed_dw.dy : c->args.pos_dw.dy);
        return 1;
    }
    s->p.loss  = loss_xent;
    s->p.flops = 40 * (double)s->p.n[0];
    return 1;
}

static const Row table[] = {
    { OP_EMBED_DW, setup_rest, 2 },
    { OP_POS_DW, setup_rest, 1 },
    { OP_NORM_DX, setup_norm, 1 },
    { OP_NORM_DW, setup_norm, 3 },
    { OP_NORM_BWD, setup_norm, 5 },
    { OP_SCALE_DW, setup_rest, 3 },
    { OP_LINEAR_DX, setup_linear, 2 },
    { OP_LINEAR_ACT_BWD, setup_before_linear, 3 },
    { OP_LINEAR_GLU_BWD, setup_before_linear, 2 },
    { OP_LINEAR_DW, setup_linear, 3 },
    { OP_ACT_DX, setup_rows, 1 },
    { OP_ACT_BIAS_BWD, setup_rows, 3 },
    { OP_GLU_DX, setup_rows, 1 },
    { OP_QKNORM_DX, setup_rows, 1 },
    { OP_QKNORM_DW, setup_rows, 3 },
    { OP_ATTN_BWD, setup_rest, 2 },
    { OP_CROSS_ATTN_BWD, setup_rest, 3 },
    { OP_XENT_DX, setup_rest, 0 },
    { OP_XENT, setup_rest, 1 },
};

/* Rope and dropout are linear: the op with `inverse` (or the same draw) must be the transpose of the forward
 * one, that is <dy, f(x)> = <f'(dy), x>. */
static void check_transpose(Dev *dev, OpKind kind, int i, int inverse_shift)
{
    OpCase f, g;
    assert_true(op_case_create(&f, kind, i));
    assert_true(op_case_create(&g, kind, i + inverse_shift));
    if (kind == OP_DROPOUT) memcpy(g.args.dropout.state->data, f.args.dropout.state->data, sizeof(StepState));
    case_randomize(&g, g.args.t[1], 0.9f);
    double *x = case_doubles(f.args.t[1]), *dy = case_doubles(g.args.t[1]);
    assert_int_equal(op_case_run(dev, &f), 0);
    assert_int_equal(op_case_run(dev, &g), 0);
    double *y = case_doubles(f.args.t[0]), *dx = case_doubles(g.args.t[0]);
    int64_t n = tensor_numel(f.args.t[0]);
    double  a = weighted(y, dy, n), b = weighted(dx, x, n);
    /* n terms of size below 2, each with two roundings */
    assert_true(fabs(a - b) <= 0x1p-24 * 8 * (4 + sqrt((double)n)) * 2);
    free(x);
    free(dy);
    free(y);
    free(dx);
    op_case_destroy(&f);
    op_case_destroy(&g);
}

static void test_transpose(void **state)
{
    (void)state;
    DevOptions opt = { .threads = 2 };
    Dev       *dev = dev_open("cpu", &opt, NULL);
    assert_non_null(dev);
    for (int i = 0; i < 5; i++)
        check_transpose(dev, OP_ROPE, i, 6); /* not the last: its positions are random */
    for (int i = 0; i < 4; i++) check_transpose(dev, OP_DROPOUT, i, 0);
    dev_close(dev);
}

int main(void)
{
    struct CMUnitTest test[ARRAY_LEN(table) + 1];
    int               n = 0;
    for (; n < ARRAY_LEN(table); n++) {
        test[n] =
            (struct CMUnitTest){ op_table[table[n].kind].name, test_gradient, NULL, NULL, (void *)&table[n] };
    }
    test[n++] = (struct CMUnitTest)cmocka_unit_test(test_transpose);
    return _cmocka_run_group_tests("op_gradients", test, (size_t)n, NULL, NULL);
}
