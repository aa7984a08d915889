#include "bench/limit.h"

#include "base/clock.h"
#include "base/err.h"
#include "prog/record.h"

#include <stdlib.h>

double limit_op_time(const Op *op, const double rate[UNIT_COUNT])
{
    double flops = op_flops(op->kind, &op->args), bytes = op_bytes(op->kind, &op->args) / rate[UNIT_MEMORY];
    double units = rate[op_table[op->kind].unit];
    return flops > 0 && units > 0 ? MAX(bytes, flops / units) : bytes;
}

typedef struct {
    const Job    *job;
    const double *rate;
    double        time_s;
    double        times; /* of the program at hand */
    LimitShapes   shapes;
} LimitWalk;

static void add_time(void *ctx, const ScheduleRow *row, double times)
{
    LimitWalk  *w   = ctx;
    const Prog *p   = w->job->prog[row->prog];
    double      sum = 0;
    for (int i = 0; i < prog_n_op(p); i++) {
        if (!prog_op(p, i)->recompute) sum += limit_op_time(prog_op(p, i), w->rate);
    }
    w->time_s += times * sum;
}

double limit_step_time(const Job *j, const double rate[UNIT_COUNT])
{
    LimitWalk w = { .job = j, .rate = rate };
    schedule_each(&j->step, add_time, &w);
    return w.time_s;
}

/* Masks that depend on the data are measured as what they are on average nearest to: causal, of
 * cross-attention full. kv NULL: q is packed. */
static void offer_attn(LimitWalk *w, const Op *op, const Tensor *q, const Tensor *kv, AttnShape shape)
{
    int        backward = op_table[op->kind].unit == UNIT_ATTN_BWD;
    LimitAttn *most     = backward ? &w->shapes.bwd : &w->shapes.fwd;
    double     flops    = w->times * op_flops(op->kind, &op->args);
    if (flops <= most->flops) return;
    shape.mask = shape.mask == MASK_FULL || kv ? MASK_FULL : MASK_CAUSAL;
    *most      = (LimitAttn){ q->dtype, q->dim[0], q->dim[1], kv ? kv->dim[1] : 0, shape, flops };
}

static void find_attn(void *ctx, const ScheduleRow *row, double times)
{
    LimitWalk  *w = ctx;
    const Prog *p = w->job->prog[row->prog];
    w->times      = times;
    for (int i = 0; i < prog_n_op(p); i++) {
        const Op     *op = prog_op(p, i);
        const OpArgs *a  = &op->args;
        switch (op->kind) {
        case OP_ATTN_FWD: offer_attn(w, op, a->attn_fwd.qkv, NULL, a->attn_fwd.shape); break;
        case OP_ATTN_BWD: offer_attn(w, op, a->attn_bwd.qkv, NULL, a->attn_bwd.shape); break;
        case OP_CROSS_ATTN_FWD:
            offer_attn(w, op, a->cross_attn_fwd.q, a->cross_attn_fwd.kv, a->cross_attn_fwd.shape);
            break;
        case OP_CROSS_ATTN_BWD:
            offer_attn(w, op, a->cross_attn_bwd.q, a->cross_attn_bwd.kv, a->cross_attn_bwd.shape);
            break;
        default: break;
        }
    }
}

LimitShapes limit_shapes(const Job *j)
{
    LimitWalk w = { .job = j, .shapes = { .compute = j->choice.compute, .fp8 = j->choice.fp8 } };
    schedule_each(&j->step, find_attn, &w);
    return w.shapes;
}

/* ---- measuring ---------------------------------------------------------------------------------------- */

/* Sign and mantissa random, exponent near 1: a finite number in bf16 and, as a high half, in f32. Of fp8
 * each byte is such a number, with one of four exponents in E4M3. */
static uint16_t random_half(uint32_t x, DType t)
{
    if (t != DT_E4M3 && t != DT_E5M2) return (uint16_t)((x >> 16) & 0x80FF) | 0x3F00;
    return (uint16_t)(((x >> 16) & 0xBFBF) | 0x2020);
}

/* Random contents: zeros draw less power and would flatter a GPU. */
static int fill_random(Dev *dev, const Tensor *t)
{
    size_t    n   = tensor_bytes(t);
    uint16_t *buf = malloc(n + 4);
    uint32_t  x   = 12345;
    if (!buf) return err_set("out of host memory");
    for (size_t i = 0; i < n / 2; i++) {
        x      = x * 1664525u + 1013904223u;
        buf[i] = random_half(x, t->dtype);
    }
    int rc = dev->vt->upload(dev, LANE_COMPUTE, t->data, buf, n);
    if (rc == 0) rc = dev->vt->sync(dev);
    free(buf);
    return rc;
}

/* Seconds a run of the bound program takes when it goes on and on: rounds of some milliseconds, the median of
 * the second half. No step can hold the rate of a burst: after three seconds of rest the own kernel had 704
 * TFLOP/s in a product of 8192 cubed at 0.2 s, 681 at 0.4, 672 at 0.8 and 635 to 674 by turns from 1.5 s on
 * (H200, 700 W). */
static int time_sustained(Prog *p, Dev *dev, double *seconds)
{
    enum { MOST_ROUNDS = 128, MOST_REPS = 4096 };
    double round_s = 0.03, while_s = dev->vt->hints->held_s, t[MOST_ROUNDS];
    int    reps = 1, n = 0;
    TRY(prog_run(p, dev)); /* touches memory, loads kernels */
    TRY(dev->vt->sync(dev));
    for (double total = 0; n < MOST_ROUNDS && (n < 4 || total < while_s); n++) {
        double begin = clock_now_s();
        for (int i = 0; i < reps; i++) TRY(prog_run(p, dev));
        TRY(dev->vt->sync(dev));
        double took = clock_now_s() - begin;
        total += took;
        t[n] = took / reps;
        reps = MAX(1, MIN(MOST_REPS, (int)(round_s / t[n])));
    }
    *seconds = clock_median(t + n / 2, n - n / 2);
    return 0;
}

/* Plans, binds and times a one-op program, and frees it with its store. */
static int time_program(Prog *p, Store *s, Dev *dev, double *seconds)
{
    RecipeOpt none = { 0 };
    prog_lower(p, &none, dev->vt);
    prog_plan(p);
    store_fit_act(s, prog_stats(p).act_bytes);
    int rc = store_alloc_slabs(s, dev);
    if (rc == 0) rc = prog_bind(p, dev);
    for (int i = 0; rc == 0 && i < s->n_tensor; i++) rc = fill_random(dev, s->tensor[i]);
    if (rc == 0) rc = time_sustained(p, dev, seconds);
    prog_destroy(p, dev);
    store_free_slabs(s, dev);
    store_deinit(s);
    return rc;
}

static int measure_gemm(Dev *dev, DType dtype, double *rate)
{
    Store   s;
    int64_t n = dev->vt->hints->gemm_side, dim[2] = { n, n };
    double  t;
    store_init(&s);
    Tensor *x = store_tensor(&s, SLAB_IO, "x", dtype, 2, dim);
    Tensor *w = store_tensor(&s, SLAB_IO, "w", dtype, 2, dim);
    Tensor *y = store_tensor(&s, SLAB_IO, "y", dtype, 2, dim);
    store_seal(&s);
    Prog *p = prog_begin("gemm", &s);
    rec_linear_fwd(p, (LinearFwd){ .y = y, .x = x, .w = w });
    TRY(time_program(p, &s, dev, &t));
    *rate = 2.0 * (double)n * (double)n * (double)n / t;
    return 0;
}

static int measure_fp8(Dev *dev, DType dtype, double *rate)
{
    Store   s;
    int64_t n = dev->vt->hints->gemm_side, dim[2] = { n, n }, site = FP8_SITE;
    double  t;
    store_init(&s);
    Tensor *a  = store_tensor(&s, SLAB_IO, "a", DT_E4M3, 2, dim);
    Tensor *b  = store_tensor(&s, SLAB_IO, "b", DT_E4M3, 2, dim);
    Tensor *y  = store_tensor(&s, SLAB_IO, "y", dtype, 2, dim);
    Tensor *at = store_tensor(&s, SLAB_IO, "site", DT_F32, 1, &site);
    store_seal(&s);
    Prog *p = prog_begin("fp8", &s);
    rec_fp8_linear(p, (Fp8Linear){ .y = y, .a = a, .b = b, .a_site = at, .b_site = at, .fast = 1 });
    TRY(time_program(p, &s, dev, &t));
    *rate = 2.0 * (double)n * (double)n * (double)n / t;
    return 0;
}

static int measure_copy(Dev *dev, double *rate)
{
    Store   s;
    int64_t n = dev->vt->hints->copy_bytes;
    double  t;
    store_init(&s);
    Tensor *x = store_tensor(&s, SLAB_IO, "x", DT_U8, 1, &n);
    Tensor *y = store_tensor(&s, SLAB_IO, "y", DT_U8, 1, &n);
    store_seal(&s);
    Prog *p = prog_begin("copy", &s);
    rec_copy(p, (Copy){ .y = y, .x = x });
    TRY(time_program(p, &s, dev, &t));
    *rate = 2.0 * (double)n / t;
    return 0;
}

typedef struct {
    Tensor *q, *kv, *o, *lse; /* kv NULL: q is packed */
    Tensor *dq, *dkv, *dout;  /* of a backward op */
} AttnTensors;

static AttnTensors attn_tensors(Store *s, const LimitAttn *m, int backward)
{
    int64_t     H = m->shape.heads, K = m->shape.kv_heads, D = m->shape.head_dim;
    int64_t     q[3]  = { m->B, m->T, (m->S ? H : H + 2 * K) * D };
    int64_t     kv[3] = { m->B, m->S, 2 * K * D }, o[3] = { m->B, m->T, H * D }, lse[3] = { m->B, H, m->T };
    AttnTensors t = { .q   = store_tensor(s, SLAB_IO, "q", m->dtype, 3, q),
                      .o   = store_tensor(s, SLAB_IO, "o", m->dtype, 3, o),
                      .lse = store_tensor(s, SLAB_IO, "lse", DT_F32, 3, lse) };
    if (m->S) t.kv = store_tensor(s, SLAB_IO, "kv", m->dtype, 3, kv);
    if (!backward) return t;
    t.dq   = store_tensor(s, SLAB_IO, "dq", m->dtype, 3, q);
    t.dout = store_tensor(s, SLAB_IO, "dout", m->dtype, 3, o);
    if (m->S) t.dkv = store_tensor(s, SLAB_IO, "dkv", m->dtype, 3, kv);
    return t;
}

static void record_attn(Prog *p, const AttnTensors *t, AttnShape shape)
{
    if (t->kv && t->dout)
        rec_cross_attn_bwd(p, (CrossAttnBwd){ .dq    = t->dq,
                                              .dkv   = t->dkv,
                                              .dout  = t->dout,
                                              .o     = t->o,
                                              .lse   = t->lse,
                                              .q     = t->q,
                                              .kv    = t->kv,
                                              .shape = shape });
    else if (t->kv)
        rec_cross_attn_fwd(
            p, (CrossAttnFwd){ .o = t->o, .lse = t->lse, .q = t->q, .kv = t->kv, .shape = shape });
    else if (t->dout)
        rec_attn_bwd(
            p, (AttnBwd){
                   .dqkv = t->dq, .dout = t->dout, .o = t->o, .lse = t->lse, .qkv = t->q, .shape = shape });
    else
        rec_attn_fwd(p, (AttnFwd){ .o = t->o, .lse = t->lse, .qkv = t->q, .shape = shape });
}

static int measure_attention(Dev *dev, const LimitAttn *m, int backward, double *rate)
{
    Store  s;
    double t;
    if (m->T == 0) return 0;
    store_init(&s);
    AttnTensors tensors = attn_tensors(&s, m, backward);
    store_seal(&s);
    Prog *p = prog_begin("attention", &s);
    record_attn(p, &tensors, m->shape);
    double flops = op_flops(prog_op(p, 0)->kind, &prog_op(p, 0)->args);
    TRY(time_program(p, &s, dev, &t));
    *rate = flops / t;
    return 0;
}

/* A pick is timed for milliseconds, and the fastest then is not always the fastest at the power limit. So the
 * product's limit is the better of two: what was picked, which is *rate already, and what the library
 * proposes. */
static int measure_proposed(const Recipe *r, DevOptions opt, DType compute,
                            int (*measure)(Dev *, DType, double *), double *rate)
{
    const char *why;
    double      proposed;
    opt.tune = 0;
    Dev *dev = dev_open(r->device, &opt, &why);
    if (!dev) return -1;
    int rc = measure(dev, compute, &proposed);
    dev_close(dev);
    if (rc == 0) *rate = MAX(*rate, proposed);
    return rc;
}

int limit_measure(double rate[UNIT_COUNT], const Recipe *r, const LimitShapes *shapes)
{
    const char *why;
    int         tf32 = r->precision == PRECISION_TF32;
    DevOptions  opt  = { .capture = 1, .tune = 1, .tf32 = tf32, .threads = (int)r->threads };
    Dev        *dev  = dev_open(r->device, &opt, &why);
    if (!dev) return -1;
    DType compute = shapes->compute;
    int   picks   = dev->vt->hints->times;
    int   rc      = measure_copy(dev, &rate[UNIT_MEMORY]);
    if (rc == 0) rc = measure_gemm(dev, compute, &rate[UNIT_GEMM]);
    if (rc == 0) rc = measure_attention(dev, &shapes->fwd, 0, &rate[UNIT_ATTN_FWD]);
    if (rc == 0) rc = measure_attention(dev, &shapes->bwd, 1, &rate[UNIT_ATTN_BWD]);
    if (rc == 0 && shapes->fp8) rc = measure_fp8(dev, compute, &rate[UNIT_FP8]);
    dev_close(dev);
    if (rc == 0 && picks) rc = measure_proposed(r, opt, compute, measure_gemm, &rate[UNIT_GEMM]);
    if (rc == 0 && picks && shapes->fp8) rc = measure_proposed(r, opt, compute, measure_fp8, &rate[UNIT_FP8]);
    return rc;
}
