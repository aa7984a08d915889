/* Gradients of the CPU backend against central differences of the forward mathematics in double.
 *
 * The scalar is L = sum of dy * forward(inputs), or a loss, so dL/d(input) is what a backward op must give.
 * The five-point quotient with step h is wrong by h^4 L^(5)/30 and by rounding, 2^-53 |L|/h: for h = 1e-3
 * both are below 1e-11 (1 + |L|). What remains is the op's own f32 error, for which the tolerance of
 * op_ref_base.h is used: it knows the sizes that were added up. */
#ifndef TESTS_OP_GRADIENT_H
#define TESTS_OP_GRADIENT_H

#include "op_harness.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum { MAX_PROBE = 12 };

/* A backward case as numbers: inputs that may be varied, the weights dy, and what the op made of them. */
typedef struct Problem Problem;
struct Problem {
    const OpCase *c;
    double       *in[3]; /* doubles of the inputs that are differentiated */
    int64_t       n[3];
    double (*loss)(const Problem *p);
    double *dy; /* constant */
    int64_t rows, cols;
    double  flops; /* of one evaluation, to choose the number of probes */
};

static inline double weighted(const double *y, const double *dy, int64_t n)
{
    double s = 0;
    for (int64_t i = 0; i < n; i++) s += y[i] * dy[i];
    return s;
}

/* ---- Probing ------------------------------------------------------------------------------------------- */

/* dL/dx from L at x -2h, -h, +h, +2h; *size is about |L|. */
static double quotient(const Problem *p, double *x, double *size)
{
    double h = 1e-3, at = *x, l[4];
    for (int i = 0; i < 4; i++) {
        *x   = at + h * (double)(i < 2 ? i - 2 : i - 1);
        l[i] = p->loss(p);
    }
    *x    = at;
    *size = fabs(l[0]);
    return (8 * (l[2] - l[1]) - (l[3] - l[0])) / (12 * h);
}

/* Input k of the problem against argument `out` of the case, less what the op added it to (start, or NULL).
 */
static void probe(const Problem *p, const OpRef *r, int k, int out, const double *start)
{
    const Tensor *t     = p->c->args.t[out];
    int64_t       n     = p->n[k];
    int           count = (int)fmin(MAX_PROBE, fmax(2, 3e7 / p->flops));
    uint32_t      word[4];
    for (int i = 0; i < count && i < n; i++) {
        rng_philox(word, 99, (uint32_t)p->c->kind, 0, (uint64_t)i);
        int64_t e = n <= count ? i : (int64_t)(word[0] % (uint64_t)n);
        double  size, slope = quotient(p, &p->in[k][e], &size), got = *case_at(t, e) - (start ? start[e] : 0);
        double  tol = op_ref_tolerance(r, out, e) + 1e-11 * (1 + size);
        if (fabs(got - slope) <= tol) continue;
        fail_msg("%s %s: d%s[%lld] is %.9g, the difference quotient %.9g (allowed %.3g)",
                 op_table[p->c->kind].name, p->c->name, t->name, (long long)e, got, slope, tol);
    }
}

typedef struct {
    Problem p;
    int     out[3]; /* argument that holds the gradient of in[k], -1: none */
    int     n_in;
} Setup;

static void input(Setup *s, const Tensor *t, int out)
{
    s->p.in[s->n_in] = case_doubles(t);
    s->p.n[s->n_in]  = t ? tensor_numel(t) : 0;
    s->out[s->n_in]  = out;
    s->n_in++;
}

static double *ones(int64_t n)
{
    double *v = dbl_new(n);
    for (int64_t i = 0; i < n; i++) v[i] = 1;
    return v;
}

/* A weight the op does not get, because its gradient does not depend on it. */
static void constant(Setup *s, double *v, int64_t n, int out)
{
    s->p.in[s->n_in] = v;
    s->p.n[s->n_in]  = n;
    s->out[s->n_in]  = out;
    s->n_in++;
}

typedef struct {
    OpKind kind;
    int (*setup)(Setup *s, const OpCase *c);
    int dy; /* argument whose rows and columns the forward output has */
} Row;

static void check_case(Dev *dev, const Row *row, OpCase *c)
{
    Setup s = { .out = { -1, -1, -1 } };
    if (!row->setup(&s, c)) return;
    const Tensor *dy = c->args.t[row->dy];
    s.p.c            = c;
    s.p.rows         = tensor_rows(dy);
    s.p.cols         = tensor_cols(dy);
    OpRef r;
    op_ref_create(&r, c);
    double *start[3] = { 0 };
    for (int k = 0; k < s.n_in; k++) {
        int out = s.out[k];
        if (out >= 0 && (op_table[c->kind].arg[out].access & ARG_READ))
            start[k] = case_doubles(c->args.t[out]);
        /* dx = dres + gradient */
        if (c->kind == OP_NORM_BWD && out == 0) start[k] = case_doubles(c->args.norm_bwd.dres);
    }
    assert_int_equal(op_case_run(dev, c), 0);
    for (int k = 0; k < s.n_in; k++) {
        if (s.out[k] >= 0) probe(&s.p, &r, k, s.out[k], start[k]);
        free(start[k]);
    }
    for (int k = 0; k < s.n_in; k++) free(s.p.in[k]);
    free(s.p.dy);
    op_ref_destroy(&r);
}

static void test_gradient(void **state)
{
    const Row *row = *state;
    DevOptions opt = { .threads = 2 };
    Dev       *dev = dev_open("cpu", &opt, NULL);
    OpCase     c;
    assert_non_null(dev);
    for (int i = 0; op_case_create(&c, row->kind, i); i++) {
        check_case(dev, row, &c);
        op_case_destroy(&c);
    }
    dev_close(dev);
}

#endif
