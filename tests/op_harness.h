/* Runs a case and judges it. Every function returns NULL when all is well, else one line kept in `buf`. */
#ifndef TESTS_OP_HARNESS_H
#define TESTS_OP_HARNESS_H

#include "dev/dev.h"
#include "op_ref.h"

#include <stdio.h>

enum { WHY = 512 };

/* Bytes of all blocks of a case: what was there, or what came out. */
typedef struct {
    char *block[OP_MAX_TENSOR];
} OpImage;

static inline void op_image_take(OpImage *m, const OpCase *c)
{
    memset(m, 0, sizeof *m);
    for (int i = 0; i < OP_MAX_TENSOR; i++) {
        if (!c->block[i]) continue;
        m->block[i] = malloc(c->block_bytes[i]);
        CHECK(m->block[i], "out of memory");
        memcpy(m->block[i], c->block[i], c->block_bytes[i]);
    }
}

static inline void op_image_restore(const OpImage *m, const OpCase *c)
{
    for (int i = 0; i < OP_MAX_TENSOR; i++) {
        if (c->block[i]) memcpy(c->block[i], m->block[i], c->block_bytes[i]);
    }
}

static inline void op_image_free(OpImage *m)
{
    for (int i = 0; i < OP_MAX_TENSOR; i++) free(m->block[i]);
}

static inline int op_writes(OpKind kind, int i) { return (op_table[kind].arg[i].access & ARG_WRITE) != 0; }

static inline int op_case_run(Dev *dev, const OpCase *c)
{
    Op op = { .kind = c->kind, .label = c->name, .block = -1, .chunk = -1, .args = c->args };
    return dev_run_op(dev, &op);
}

/* What an op may not write is as it was. */
static inline const char *op_check_inputs(const OpCase *c, const OpImage *before, char *buf)
{
    const char *hurt = op_case_damage(c);
    if (hurt) {
        snprintf(buf, WHY, "%s: wrote outside %s", c->name, hurt);
        return buf;
    }
    for (int i = 0; i < op_table[c->kind].n_tensor; i++) {
        if (!c->block[i] || op_writes(c->kind, i) ||
            memcmp(c->block[i], before->block[i], c->block_bytes[i]) == 0)
            continue;
        snprintf(buf, WHY, "%s: changed its input %s", c->name, op_table[c->kind].arg[i].name);
        return buf;
    }
    return NULL;
}

static inline int close_double(double a, double b)
{
    return (isnan(a) && isnan(b)) || a == b ||
           fabs(a - b) <= 1e-6 * fabs(b); /* f32 fields: a few U; doubles: far better */
}

static inline const char *op_check_state(const OpCase *c, const OpRef *r, const StepState *got, char *buf)
{
    const StepOut *g = &got->out, *w = &r->state.out;
    double         pair[][2] = { { g->sum[0], w->sum[0] },
                                 { g->sum[2], w->sum[2] },
                                 { g->report[0], w->report[0] },
                                 { g->report[2], w->report[2] },
                                 { g->n_report, w->n_report },
                                 { g->stop, w->stop },
                                 { g->grad_sumsq, w->grad_sumsq },
                                 { g->loss_ema, w->loss_ema },
                                 { g->loss, w->loss },
                                 { g->grad_norm, w->grad_norm },
                                 { g->clip, w->clip },
                                 { g->bias1, w->bias1 },
                                 { g->bias2, w->bias2 },
                                 { g->skip, w->skip },
                                 { g->n_update, w->n_update },
                                 { g->n_skipped, w->n_skipped },
                                 { g->n_skip_row, w->n_skip_row },
                                 { g->scale_exp, w->scale_exp },
                                 { g->n_scaled, w->n_scaled },
                                 { g->n_overflow, w->n_overflow } };
    for (int i = 0; i < ARRAY_LEN(pair); i++) {
        if (close_double(pair[i][0], pair[i][1])) continue;
        snprintf(buf, WHY, "%s: state field %d is %.9g, not %.9g", c->name, i, pair[i][0], pair[i][1]);
        return buf;
    }
    return memcmp(&got->in, &r->state.in, sizeof got->in) == 0 ? NULL : "an op changed StepIn";
}

static inline const char *op_check_floats(const OpCase *c, const OpRef *r, int i, char *buf)
{
    const Tensor *t = c->args.t[i];
    for (int64_t e = 0; e < tensor_numel(t); e++) {
        double got = case_value(t, e), want = r->want[i][e], tol = op_ref_tolerance(r, i, e);
        if (fabs(got - want) <= tol) continue; /* false for NaN */
        snprintf(buf, WHY, "%s: %s[%lld,%lld] is %.9g, not %.9g (error %.3g, allowed %.3g)", c->name, t->name,
                 (long long)(e / tensor_cols(t)), (long long)(e % tensor_cols(t)), got, want, got - want,
                 tol);
        return buf;
    }
    return NULL;
}

static inline const char *op_check_bytes(const OpCase *c, const OpRef *r, int i, char *buf)
{
    const Tensor *t    = c->args.t[i];
    size_t        size = dtype_bytes(t->dtype);
    for (int64_t e = 0; e < tensor_numel(t); e++) {
        if (memcmp(case_at(t, e), r->bytes[i] + (size_t)e * size, size) == 0) continue;
        snprintf(buf, WHY, "%s: %s element %lld differs", c->name, t->name, (long long)e);
        return buf;
    }
    return NULL;
}

/* The narrow copy of AdamW or Muon: the new master rounded inside segments, untouched elsewhere. */
static inline const char *op_check_copy(const OpCase *c, char *buf)
{
    int              adam   = c->kind == OP_ADAMW;
    const Tensor    *master = adam ? c->args.adamw.master : c->args.muon.master;
    const Tensor    *copy   = adam ? c->args.adamw.copy : c->args.muon.copy;
    const Tensor    *table  = adam ? c->args.adamw.seg : c->args.muon.seg;
    const StepState *state  = adam ? c->args.adamw.state->data : c->args.muon.state->data;
    const Segment   *seg    = table->data;
    int64_t          n_seg  = (int64_t)(tensor_bytes(table) / sizeof(Segment));
    for (int64_t i = 0; i < tensor_numel(copy); i++) {
        uint16_t want = 0xA5A5, got;
        float    w    = (float)ref_round(*case_at(master, i), 7, -126);
        _Float16 h    = (_Float16)ref_round(*case_at(master, i), 10, -14);
        for (int64_t s = 0; s < n_seg; s++) {
            int inside = i >= seg[s].begin && i < seg[s].end && !state->out.skip;
            if (inside) memcpy(&want, copy->dtype == DT_F16 ? (char *)&h : (char *)&w + 2, 2);
        }
        memcpy(&got, case_at(copy, i), 2);
        if (got == want) continue;
        snprintf(buf, WHY, "%s: copy[%lld] is %04x, not %04x", c->name, (long long)i, got, want);
        return buf;
    }
    return NULL;
}

/* AdamW's state in bf16: the reference rounded with the element's draw, give or take what f32 may be off. The
 * draws are written out here as op_math.h defines them. */
static inline const char *op_check_drawn(const OpCase *c, const OpRef *r, int i, char *buf)
{
    const AdamW     *a = &c->args.adamw;
    const StepState *s = a->state->data;
    const Tensor    *t = c->args.t[i];
    for (int64_t e = 0; e < tensor_numel(t); e++) {
        uint32_t word[4];
        rng_philox(word, s->in.seed, (uint32_t)a->site, (uint64_t)s->out.n_update, (uint64_t)e / 2);
        uint32_t first = word[2 * (e % 2)], second = word[2 * (e % 2) + 1];
        uint32_t draw = i == 0 ? first & 0xFFFF : i == 1 ? first >> 16 : second & 0xFFFF;
        double   tol = 2 * op_ref_tolerance(r, i, e), got = ref_state(t, e), edge[2];
        for (int k = 0; k < 2; k++) {
            float    x = (float)(r->want[i][e] + (k ? tol : -tol));
            uint32_t u;
            memcpy(&u, &x, 4);
            u = (u + draw) & 0xFFFF0000u;
            memcpy(&x, &u, 4);
            edge[k] = (double)x;
        }
        if (got >= fmin(edge[0], edge[1]) && got <= fmax(edge[0], edge[1])) continue;
        snprintf(buf, WHY, "%s: %s[%lld] is %.9g, not %.9g to %.9g", c->name, t->name, (long long)e, got,
                 edge[0], edge[1]);
        return buf;
    }
    return NULL;
}

static inline int op_is_drawn(const OpCase *c, int i)
{
    return c->kind == OP_ADAMW && i < 3 && c->args.t[i]->dtype == DT_BF16;
}

static inline const char *op_check_outputs(const OpCase *c, const OpRef *r, char *buf)
{
    const char *bad = NULL;
    for (int i = 0; i < op_table[c->kind].n_tensor && !bad; i++) {
        if (!c->args.t[i] || !op_writes(c->kind, i)) continue;
        if (op_is_drawn(c, i)) {
            bad = op_check_drawn(c, r, i, buf);
        } else if (r->want[i]) {
            bad = op_check_floats(c, r, i, buf);
        } else if (r->bytes[i] && c->kind == OP_QUANT) {
            bad = ref_check_codes(c, r, i, buf, WHY);
        } else if (r->bytes[i]) {
            bad = op_check_bytes(c, r, i, buf);
        } else if (r->has_state) {
            bad = op_check_state(c, r, c->args.t[i]->data, buf);
        } else {
            bad = op_check_copy(c, buf);
        }
    }
    return bad;
}

/* The whole of it: reference, run, guards, inputs, outputs. */
static inline const char *op_check_case(Dev *dev, const OpCase *c, char *buf)
{
    OpRef   r;
    OpImage before;
    op_ref_create(&r, c);
    op_image_take(&before, c);
    const char *bad = NULL;
    if (op_case_run(dev, c) < 0) {
        snprintf(buf, WHY, "%s: %s", c->name, err_get());
        bad = buf;
        err_clear();
    }
    if (!bad) bad = op_check_inputs(c, &before, buf);
    if (!bad) bad = op_check_outputs(c, &r, buf);
    op_image_free(&before);
    op_ref_destroy(&r);
    return bad;
}

/* The outputs of the case now against those in an image, bit for bit. */
static inline const char *op_check_same(const OpCase *c, const OpImage *m, const char *what, char *buf)
{
    for (int i = 0; i < op_table[c->kind].n_tensor; i++) {
        if (!c->block[i] || memcmp(c->block[i], m->block[i], c->block_bytes[i]) == 0) continue;
        snprintf(buf, WHY, "%s: %s differs %s", c->name, op_table[c->kind].arg[i].name, what);
        return buf;
    }
    return NULL;
}

#endif
