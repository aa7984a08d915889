/* References of losses over rows. */
#ifndef TESTS_OP_REF_LOSS_H
#define TESTS_OP_REF_LOSS_H

#include "op_ref_base.h"

static inline double ref_scale(const Tensor *state, int slot)
{
    const StepState *s = state->data;
    return (double)s->in.inv[slot] * (double)s->in.loss_scale;
}

/* ---- Cross-entropy ------------------------------------------------------------------------------------- */

/* What a row is compared with. */
typedef struct {
    const Tensor *target, *target2, *lambda;
    int64_t       n_class;
    double        smooth;
} XentTarget;

static inline double ref_xent_q(const XentTarget *t, int64_t row, int64_t k)
{
    double lambda = t->lambda ? *case_at(t->lambda, row) : 1;
    double hard   = lambda * (k == *case_int(t->target, row));
    if (t->target2) hard += (1 - lambda) * (k == *case_int(t->target2, row));
    return (1 - t->smooth) * hard + t->smooth / (double)t->n_class;
}

/* lse and loss of row i into arguments 0 and `lse` (-1: none). */
static inline double ref_xent_row(OpRef *r, const Tensor *logits, const XentTarget *t, int64_t i, int lse)
{
    int64_t V = tensor_cols(logits);
    double *x = dbl_new(t->n_class), top = 0, hard = 0;
    for (int64_t k = 0; k < t->n_class; k++) {
        x[k] = *case_at(logits, i * V + k);
        top  = fmax(top, fabs(x[k]));
        hard += ref_xent_q(t, i, k) * x[k];
    }
    double l = math_lse(x, t->n_class);
    if (lse >= 0) ref_put(r, lse, i, l, fabs(l) + 1);
    ref_put(r, 0, i, *case_int(t->target, i) < 0 ? 0 : l - hard, fabs(l) + top + 1);
    free(x);
    return l;
}

static inline void ref_xent_grad(OpRef *r, int out, const Tensor *logits, const XentTarget *t,
                                 const Tensor *state, int slot, const double *lse)
{
    int64_t V = tensor_cols(logits);
    double  f = ref_scale(state, slot);
    for (int64_t i = 0; i < tensor_numel(logits); i++) {
        int    live = i % V < t->n_class && *case_int(t->target, i / V) >= 0;
        double p    = live ? exp(*case_at(logits, i) - lse[i / V]) : 0,
               q    = live ? ref_xent_q(t, i / V, i % V) : 0;
        /* exp of a difference of numbers below 30: 30 U of p; the hit subtracts from 1 */
        ref_put(r, out, i, (p - q) * f, (p * 32 + q) * f);
    }
    r->terms[out] = 4;
}

static inline int64_t ref_rank(const Tensor *logits, int64_t row, int64_t target, int64_t n_class)
{
    int64_t V = tensor_cols(logits), n = 0;
    double  x = *case_at(logits, row * V + target);
    for (int64_t k = 0; k < n_class; k++) {
        double y = *case_at(logits, row * V + k);
        n += y > x || (y == x && k < target);
    }
    return n;
}

static inline void ref_xent_fwd(const OpCase *c, OpRef *r)
{
    const XentFwd *a       = &c->args.xent_fwd;
    XentTarget     t       = { a->target, a->target2, a->lambda, a->n_class, (double)a->smooth };
    double         hits[2] = { 0, 0 };
    for (int64_t i = 0; i < tensor_rows(a->logits); i++) {
        int32_t target = *case_int(a->target, i);
        ref_xent_row(r, a->logits, &t, i, 1);
        hits[0] += target >= 0 && ref_rank(a->logits, i, target, a->n_class) < 1;
        hits[1] += target >= 0 && ref_rank(a->logits, i, target, a->n_class) < 5;
    }
    for (int64_t k = 0; k < 2 && a->hits; k++)
        ref_put(r, 2, k, *case_at(a->hits, k) + hits[k], 0); /* exact */
    r->terms[0] = r->terms[1] = (double)a->n_class;
}

static inline void ref_xent_dx(const OpCase *c, OpRef *r)
{
    const XentDx *a   = &c->args.xent_dx;
    XentTarget    t   = { a->target, a->target2, a->lambda, a->n_class, (double)a->smooth };
    double       *lse = case_doubles(a->lse);
    ref_xent_grad(r, 0, a->logits, &t, a->state, a->slot, lse);
    free(lse);
}

static inline void ref_xent(const OpCase *c, OpRef *r)
{
    const Xent *a   = &c->args.xent;
    XentTarget  t   = { a->target, NULL, NULL, a->n_class, 0 };
    double     *lse = dbl_new(tensor_rows(a->logits));
    for (int64_t i = 0; i < tensor_rows(a->logits); i++) lse[i] = ref_xent_row(r, a->logits, &t, i, -1);
    ref_xent_grad(r, 1, a->logits, &t, a->state, a->slot, lse);
    r->terms[0] = (double)a->n_class;
    free(lse);
}

/* ---- Mean squared error -------------------------------------------------------------------------------- */

/* Loss of one number and its derivative; old NULL: no clipping. */
static inline double math_mse(double x, double target, const double *old, double clip, double *slope)
{
    double e = x - target;
    *slope   = e;
    if (!old) return e * e / 2;
    double move = fmin(fmax(x - *old, -clip), clip), f = *old + move - target;
    if (f * f <= e * e) return e * e / 2;
    *slope = fabs(x - *old) <= clip ? f : 0;
    return f * f / 2;
}

static inline double ref_mse_term(const Tensor *x, const Tensor *target, const Tensor *old,
                                  const Tensor *clip, int64_t i, double *slope, double *size)
{
    double o = old ? *case_at(old, i) : 0;
    *size    = fabsf(*case_at(x, i)) + fabsf(*case_at(target, i)) + 2 * fabs(o);
    return math_mse(*case_at(x, i), *case_at(target, i), old ? &o : NULL, clip ? *case_at(clip, 0) : 0,
                    slope);
}

/* An error of `size` last bits in e shows as e * size of them in e^2/2. */
static inline void ref_mse_fwd(const OpCase *c, OpRef *r)
{
    const MseFwd *a = &c->args.mse_fwd;
    int64_t       C = tensor_cols(a->x);
    for (int64_t i = 0; i < tensor_numel(a->x); i++) {
        double slope, size, l = ref_mse_term(a->x, a->target, a->old, a->clip, i, &slope, &size);
        r->want[0][i / C] += l;
        r->mag[0][i / C] += l + sqrt(2 * l) * size;
    }
    r->terms[0] = (double)C;
}

static inline void ref_mse_dx(const OpCase *c, OpRef *r)
{
    const MseDx *a = &c->args.mse_dx;
    for (int64_t i = 0; i < tensor_numel(a->x); i++) {
        double slope, size, f = ref_scale(a->state, a->slot);
        ref_mse_term(a->x, a->target, a->old, a->clip, i, &slope, &size);
        ref_put(r, 0, i, slope * f, (fabs(slope) + size) * f);
    }
}

/* ---- Kullback-Leibler divergence ----------------------------------------------------------------------- */

static inline int ref_has_target(const Tensor *target, int64_t row)
{
    return !target || *case_int(target, row) >= 0;
}

/* Logits over tau of one row. */
static inline double *ref_over_tau(const Tensor *t, int64_t row, int64_t n, double tau)
{
    double *v = dbl_new(n);
    for (int64_t k = 0; k < n; k++) v[k] = *case_at(t, row * tensor_cols(t) + k) / tau;
    return v;
}

/* exp(t - tlse) is wrong by as many last bits as t and tlse are large. */
static inline void ref_kl_fwd(const OpCase *c, OpRef *r)
{
    const KlFwd *a   = &c->args.kl_fwd;
    double       tau = (double)a->tau;
    for (int64_t i = 0; i < tensor_rows(a->logits); i++) {
        double *s = ref_over_tau(a->logits, i, a->n_class, tau),
               *t = ref_over_tau(a->teacher, i, a->n_class, tau);
        double ls = math_lse(s, a->n_class), lt = math_lse(t, a->n_class), sum = 0,
               size = fabs(ls) + fabs(lt) + 1;
        for (int64_t k = 0; k < a->n_class; k++) {
            double p = exp(t[k] - lt);
            sum += p * (t[k] - lt - s[k] + ls);
            size += p * (fabs(t[k]) + fabs(s[k])) * (2 + fabs(t[k]) + fabs(lt));
        }
        ref_put(r, 0, i, ref_has_target(a->target, i) ? tau * tau * sum : 0, tau * tau * size);
        ref_put(r, 1, i, ls, fabs(ls) + 4);
        ref_put(r, 2, i, lt, fabs(lt) + 4);
        free(s);
        free(t);
    }
    r->terms[0] = r->terms[1] = r->terms[2] = (double)a->n_class;
}

static inline void ref_kl_dx(const OpCase *c, OpRef *r)
{
    const KlDx *a   = &c->args.kl_dx;
    double      tau = (double)a->tau, f = tau * ref_scale(a->state, a->slot);
    int64_t     V = tensor_cols(a->logits);
    for (int64_t i = 0; i < tensor_numel(a->logits); i++) {
        int    live = i % V < a->n_class && ref_has_target(a->target, i / V);
        double s = *case_at(a->logits, i) / tau, t = *case_at(a->teacher, i) / tau;
        double ls = *case_at(a->lse, i / V), lt = *case_at(a->tlse, i / V);
        double q = live ? exp(s - ls) : 0, p = live ? exp(t - lt) : 0;
        ref_put(r, 0, i, (q - p) * f, f * (q * (2 + fabs(s) + fabs(ls)) + p * (2 + fabs(t) + fabs(lt))));
    }
    r->terms[0] = 4;
}

/* The log of a sum is wrong by as many last bits as its parts are large. */
static inline void ref_kl_teacher(const OpCase *c, OpRef *r)
{
    const KlTeacher *a = &c->args.kl_teacher;
    int64_t          V = tensor_cols(a->y), K = tensor_cols(a->x), n = a->n_class;
    double           tau = (double)a->tau, *v = dbl_new(n);
    int64_t         *at = calloc((size_t)n, sizeof *at); /* of the class in x, plus 1 */
    CHECK(at, "out of memory");
    for (int64_t i = 0; i < tensor_rows(a->y); i++) {
        int64_t n_rest = 0;
        memset(at, 0, sizeof *at * (size_t)n);
        for (int64_t k = 0; k < K; k++) {
            if (*case_int(a->id, i * K + k) >= 0) at[*case_int(a->id, i * K + k)] = k + 1;
        }
        for (int64_t k = 0; k < n; k++) {
            if (!at[k]) v[n_rest++] = *case_at(a->logits, i * V + k) / tau;
        }
        double lse = n_rest ? math_lse(v, n_rest) : 0, rest = *case_at(a->rest, i);
        for (int64_t k = 0; k < V; k++) {
            double s = *case_at(a->logits, i * V + k), y = s + tau * (rest - lse);
            if (k >= n) {
                ref_put(r, 0, i * V + k, 0, 0);
            } else if (at[k]) {
                ref_put(r, 0, i * V + k, *case_at(a->x, i * K + at[k] - 1), 0);
            } else {
                ref_put(r, 0, i * V + k, y, fabs(s) + tau * (fabs(rest) + fabs(lse) + 4));
            }
        }
    }
    r->terms[0] = (double)n;
    free(at);
    free(v);
}

#endif
