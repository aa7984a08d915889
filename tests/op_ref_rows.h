/* References of rows by number, means over rows, position tables, and of elementwise ops that need no other
 * tensors. */
#ifndef TESTS_OP_REF_ROWS_H
#define TESTS_OP_REF_ROWS_H

#include "op_ref_base.h"

static inline void ref_add(const OpCase *c, OpRef *r)
{
    for (int64_t i = 0; i < tensor_numel(c->args.add.y); i++) {
        double a = *case_at(c->args.add.a, i), b = *case_at(c->args.add.b, i);
        ref_put(r, 0, i, a + b, fabs(a) + fabs(b));
    }
}

static inline void ref_mul(const OpCase *c, OpRef *r)
{
    for (int64_t i = 0; i < tensor_numel(c->args.mul.y); i++) {
        double y = (double)*case_at(c->args.mul.a, i) * *case_at(c->args.mul.b, i);
        ref_put(r, 0, i, y, fabs(y));
    }
}

static inline void ref_ema(const OpCase *c, OpRef *r)
{
    const Ema     *a = &c->args.ema;
    const StepOut *s = &((const StepState *)a->state->data)->out;
    double         n = s->n_update, d = a->decay;
    if (a->warmup) d = fmin(d, (1 + n) / (10 + n));
    if (s->skip) d = 1;
    for (int64_t i = 0; i < tensor_numel(a->e); i++) {
        double e = *case_at(a->e, i), w = *case_at(a->w, i);
        ref_put(r, 0, i, d * e + (1 - d) * w, s->skip ? 0 : fabs(e) + fabs(w));
    }
}

static inline void ref_rows_fwd(const OpCase *c, OpRef *r)
{
    const RowsFwd *a = &c->args.rows_fwd;
    int64_t        C = tensor_cols(a->y), first = a->at ? *case_int(a->at, 0) * tensor_rows(a->y) : 0;
    size_t         size = dtype_bytes(a->y->dtype);
    for (int64_t i = 0; i < tensor_numel(a->y); i++) {
        int64_t m = *case_int(a->index, first + i / C);
        if (r->want[0]) ref_put(r, 0, i, m < 0 ? 0 : *case_at(a->x, m * C + i % C), 0);
        if (r->bytes[0] && m >= 0) memcpy(r->bytes[0] + (size_t)i * size, case_at(a->x, m * C + i % C), size);
    }
}

static inline void ref_rows_dx(const OpCase *c, OpRef *r)
{
    const RowsDx *a = &c->args.rows_dx;
    int64_t       C = tensor_cols(a->dy);
    for (int64_t i = 0; i < tensor_numel(a->dy); i++) {
        int64_t m = *case_int(a->index, i / C);
        if (m < 0) continue;
        r->want[0][m * C + i % C] += *case_at(a->dy, i);
        r->mag[0][m * C + i % C] += fabsf(*case_at(a->dy, i));
    }
    r->terms[0] = (double)tensor_rows(a->dy);
}

static inline void ref_mean_rows_fwd(const OpCase *c, OpRef *r)
{
    const MeanRowsFwd *a = &c->args.mean_rows_fwd;
    int64_t            C = tensor_cols(a->x), T = a->x->dim[1];
    for (int64_t i = 0; i < tensor_numel(a->x); i++) {
        int64_t b = i / (C * T), t = i / C % T, n = a->len ? *case_int(a->len, b) : T;
        if (t >= n) continue;
        r->want[0][b * C + i % C] += *case_at(a->x, i) / (double)n;
        r->mag[0][b * C + i % C] += fabs(*case_at(a->x, i) / (double)n);
    }
    r->terms[0] = (double)T;
}

static inline void ref_mean_rows_dx(const OpCase *c, OpRef *r)
{
    const MeanRowsDx *a = &c->args.mean_rows_dx;
    int64_t           C = tensor_cols(a->dx), T = a->dx->dim[1];
    for (int64_t i = 0; i < tensor_numel(a->dx); i++) {
        int64_t b = i / (C * T), t = i / C % T, n = a->len ? *case_int(a->len, b) : T;
        double  d = t < n ? *case_at(a->dy, b * C + i % C) / (double)n : 0;
        ref_put(r, 0, i, d, fabs(d));
    }
}

static inline void ref_add_pos(const OpCase *c, OpRef *r)
{
    const AddPos *a = &c->args.add_pos;
    int64_t       C = tensor_cols(a->x), T = a->x->dim[1];
    for (int64_t i = 0; i < tensor_numel(a->x); i++) {
        double x = *case_at(a->x, i), p = *case_at(a->pos, i / C % T * C + i % C);
        ref_put(r, 0, i, x + p, fabs(x) + fabs(p));
    }
}

#endif
