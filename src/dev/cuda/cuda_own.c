/* The choice between the own kernel and its parts.
 *
 * 1. For fused products the own kernel is taken wherever it can run (Hopper, bf16, rows aligned to 16 bytes),
 *    unless timing found the parts faster for that shape. For plain products it is taken only if timing found
 *    it faster. So a run that may not time (`deterministic`, `opt.tune` off, no free memory) is the same each
 *    time.
 * 2. Timing runs the op itself, on scratch tensors of the real sizes, both ways in turn: in bursts, then at a
 *    steady clock if the bursts are close (cuda_steady.c).
 * 3. A choice is kept by shape: in a table, and in the tune cache under a key that ends with the kernel's
 *    revision. */
#include "dev/cuda/cuda_own.h"

#include "dev/cuda/cuda_check.h"
#include "dev/cuda/cuda_gemm.h"
#include "dev/cuda/cuda_linear.h"
#include "dev/cuda/cuda_move.h"
#include "dev/cuda/cuda_steady.h"
#include "dev/cuda/cuda_tune.h"
#include "dev/glu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 5, SPIN_US = 300, OWN_REVISION = 12, KEY_BYTES = 192 };

static const float CLOSE = 1.15f; /* bursts near enough for energy to turn the order */

typedef struct {
    char key[KEY_BYTES];
    int  own; /* 1: the own kernel */
} OwnChoice;

struct CudaOwn {
    OwnChoice *choice;
    int        n, cap;
};

void cuda_own_open(CudaDev *d)
{
    d->own = calloc(1, sizeof *d->own);
    CHECK(d->own, "out of host memory");
}

void cuda_own_close(CudaDev *d)
{
    if (!d->own) return;
    free(d->own->choice);
    free(d->own);
    d->own = NULL;
}

/* ---- the op as a product ------------------------------------------------------------------------------- */

static void *offset(const Tensor *t, int64_t columns)
{
    return (char *)t->data + (size_t)columns * dtype_bytes(t->dtype);
}

static OwnGemm fwd(const LinearFwd *a)
{
    return (OwnGemm){ .kind   = OWN_FWD,
                      .rows   = tensor_rows(a->x),
                      .cols   = tensor_cols(a->y),
                      .k      = tensor_cols(a->x),
                      .a      = a->x->data,
                      .b      = a->w->data,
                      .bias   = a->bias ? a->bias->data : NULL,
                      .out    = { a->y->data },
                      .lda    = tensor_ld(a->x),
                      .ldb    = tensor_ld(a->w),
                      .ld_out = { tensor_ld(a->y) } };
}

static OwnGemm act_fwd(const LinearActFwd *a)
{
    OwnGemm g   = fwd(&(LinearFwd){ .y = a->pre, .x = a->x, .w = a->w, .bias = a->bias });
    g.kind      = a->slope ? OWN_BOTH : OWN_ACT;
    g.act       = a->act;
    g.out[1]    = a->y->data;
    g.ld_out[1] = tensor_ld(a->y);
    return g;
}

static OwnGemm dx(const LinearDx *a)
{
    return (OwnGemm){ .kind   = OWN_DX,
                      .rows   = tensor_rows(a->dy),
                      .cols   = tensor_cols(a->w),
                      .k      = tensor_cols(a->dy),
                      .a      = a->dy->data,
                      .b      = a->w->data,
                      .out    = { a->dx->data },
                      .lda    = tensor_ld(a->dy),
                      .ldb    = tensor_ld(a->w),
                      .ld_out = { tensor_ld(a->dx) } };
}

static OwnGemm dw(const LinearDw *a)
{
    return (OwnGemm){ .kind   = OWN_DW,
                      .rows   = tensor_cols(a->dy),
                      .cols   = tensor_cols(a->x),
                      .k      = tensor_rows(a->dy),
                      .a      = a->dy->data,
                      .b      = a->x->data,
                      .out    = { a->dw->data },
                      .db     = a->db ? a->db->data : NULL,
                      .lda    = tensor_ld(a->dy),
                      .ldb    = tensor_ld(a->x),
                      .ld_out = { tensor_ld(a->dw) } };
}

static OwnGemm act_bwd(const LinearActBwd *a)
{
    OwnGemm g  = dx(&(LinearDx){ .dx = a->dpre, .dy = a->dy, .w = a->w });
    g.kind     = OWN_DACT;
    g.act      = a->act;
    g.in[0]    = a->pre->data;
    g.ld_in[0] = tensor_ld(a->pre);
    if (!a->db) return g;
    g.db   = a->db->data;
    g.sums = a->ws ? a->ws->data : NULL;
    return g;
}

static OwnGemm glu_fwd(const LinearGluFwd *a)
{
    int64_t F = tensor_cols(a->y), ld = tensor_ld(a->pre);
    OwnGemm g = { .kind   = a->slope == GLU_SLOPE ? OWN_GLU_BOTH : OWN_GLU,
                  .act    = a->act,
                  .rows   = tensor_rows(a->x),
                  .cols   = F,
                  .k      = tensor_cols(a->x),
                  .a      = a->x->data,
                  .b      = a->w->data,
                  .b2     = offset(a->w, F * tensor_ld(a->w)),
                  .out    = { a->pre->data, offset(a->pre, F), a->y->data },
                  .lda    = tensor_ld(a->x),
                  .ldb    = tensor_ld(a->w),
                  .ld_out = { ld, ld, tensor_ld(a->y) } };
    if (a->slope != GLU_UNREAD) return g;
    g.kind   = OWN_GLU_ONLY;
    g.out[0] = a->y->data;
    g.out[1] = g.out[2] = NULL;
    g.ld_out[0]         = tensor_ld(a->y);
    g.ld_out[1] = g.ld_out[2] = 0;
    return g;
}

static OwnGemm glu_bwd(const LinearGluBwd *a)
{
    int64_t F = tensor_cols(a->w), ld_out = tensor_ld(a->dpre), ld_in = tensor_ld(a->pre);
    return (OwnGemm){ .kind   = OWN_DGLU,
                      .act    = a->act,
                      .rows   = tensor_rows(a->dy),
                      .cols   = F,
                      .k      = tensor_cols(a->dy),
                      .a      = a->dy->data,
                      .b      = a->w->data,
                      .out    = { a->dpre->data, offset(a->dpre, F) },
                      .in     = { a->pre->data, offset(a->pre, F) },
                      .lda    = tensor_ld(a->dy),
                      .ldb    = tensor_ld(a->w),
                      .ld_out = { ld_out, ld_out },
                      .ld_in  = { ld_in, ld_in } };
}

int cuda_own_describe(OpKind kind, const OpArgs *args, OwnGemm *out)
{
    switch (kind) {
    case OP_LINEAR_FWD: *out = fwd(&args->linear_fwd); return 1;
    case OP_LINEAR_DX: *out = dx(&args->linear_dx); return 1;
    case OP_LINEAR_DW: *out = dw(&args->linear_dw); return 1;
    case OP_LINEAR_ACT_FWD: *out = act_fwd(&args->linear_act_fwd); return 1;
    case OP_LINEAR_ACT_BWD: *out = act_bwd(&args->linear_act_bwd); return 1;
    case OP_LINEAR_GLU_FWD: *out = glu_fwd(&args->linear_glu_fwd); return 1;
    case OP_LINEAR_GLU_BWD: *out = glu_bwd(&args->linear_glu_bwd); return 1;
    default: return 0;
    }
}

/* ---- choosing ------------------------------------------------------------------------------------------ */

static int is_plain(OwnKind k) { return k == OWN_FWD || k == OWN_DX || k == OWN_DW; }

/* Everything bf16 but weight and bias gradients, and room for the column sums. */
static int can_run(const CudaDev *d, OpKind kind, const OpArgs *args, const OwnGemm *g)
{
    const OpRow *row = &op_table[kind];
    if (!d->encode || own_gemm_refuses(g)) return 0;
    if (g->act >= ACT_FUSED && g->act != ACT_SLOPE) return 0;
    for (int i = 0; i < row->n_tensor; i++) {
        const Tensor *t = args->t[i];
        if (!t || row->arg[i].access & ARG_WS) continue;
        int sum = t->data == g->db || (kind == OP_LINEAR_DW && i < 2); /* dw, db */
        if (t->dtype != (sum ? DT_F32 : DT_BF16)) return 0;
    }
    if (g->kind != OWN_DACT || !g->db) return 1;
    const Tensor *ws = args->linear_act_bwd.ws;
    return ws && tensor_bytes(ws) >= (size_t)(own_gemm_sum_rows(g->rows) * g->cols) * sizeof(float);
}

static void choice_key(OpKind kind, const OwnGemm *g, char *buf, size_t n)
{
    int slope = g->kind == OWN_BOTH || g->kind == OWN_GLU_BOTH, only = g->kind == OWN_GLU_ONLY;
    snprintf(buf, n,
             "own %s%s act %d %lld %lld %lld ld %lld %lld %lld %lld %lld %lld bias %d sums %d revision %d",
             op_table[kind].name,
             slope  ? " slope"
             : only ? " only"
                    : "",
             (int)g->act, (long long)g->rows, (long long)g->cols, (long long)g->k, (long long)g->lda,
             (long long)g->ldb, (long long)g->ld_out[0], (long long)g->ld_out[1], (long long)g->ld_out[2],
             (long long)g->ld_in[0], g->bias != NULL, g->db != NULL, OWN_REVISION);
}

static const OwnChoice *choice_find(const CudaOwn *o, const char *key)
{
    for (int i = 0; i < o->n; i++) {
        if (strcmp(o->choice[i].key, key) == 0) return &o->choice[i];
    }
    return NULL;
}

static void choice_add(CudaOwn *o, const char *key, int own)
{
    if (o->n == o->cap) {
        o->cap    = o->cap ? 2 * o->cap : 16;
        o->choice = realloc(o->choice, (size_t)o->cap * sizeof *o->choice);
        CHECK(o->choice, "out of host memory");
    }
    OwnChoice *c = &o->choice[o->n++];
    snprintf(c->key, sizeof c->key, "%s", key);
    c->own = own;
}

int cuda_own_takes(CudaDev *d, OpKind kind, const OpArgs *args, OwnGemm *out)
{
    char key[KEY_BYTES];
    if (!cuda_own_describe(kind, args, out) || !can_run(d, kind, args, out)) return 0;
    choice_key(kind, out, key, sizeof key);
    out->fixed         = d->base.opt.deterministic;
    const OwnChoice *c = choice_find(d->own, key);
    if (d->base.opt.own) return d->base.opt.own > 0;
    return c ? c->own : !is_plain(out->kind);
}

int cuda_own_run(CudaDev *d, const OwnGemm *g)
{
    return own_gemm_launch(g, d->encode, d->n_sm, cuda_stream(&d->base));
}

/* ---- timing -------------------------------------------------------------------------------------------- */

/* The op on scratch tensors of its own. */
typedef struct {
    Op     op;
    Tensor t[OP_MAX_TENSOR];
} Rehearsal;

static size_t span_bytes(const Tensor *t)
{
    size_t n = (size_t)(tensor_rows(t) * tensor_ld(t)) * dtype_bytes(t->dtype);
    return tensor_align_up(MAX(n, tensor_bytes(t)));
}

/* Random 16-bit inputs, zeros else. 1 when there is no memory. */
static int copy_make(CudaDev *d, const Op *op, Rehearsal *c)
{
    int    n     = op_table[op->kind].n_tensor;
    size_t total = 0;
    for (int i = 0; i < n; i++) total += op->args.t[i] ? span_bytes(op->args.t[i]) : 0;
    char *at = cuda_scratch(d, total);
    if (!at) return 1;
    c->op = *op;
    CUDA_TRY(cudaMemsetAsync(at, 0, total, cuda_stream(&d->base)));
    for (int i = 0; i < n; i++) {
        const Tensor *t = op->args.t[i];
        if (!t) continue;
        c->t[i]         = *t;
        c->t[i].root    = &c->t[i];
        c->t[i].data    = at;
        c->op.args.t[i] = &c->t[i];
        if (t->dtype == DT_BF16)
            TRY(cuda_fill_random(&d->base, at, DT_BF16, tensor_rows(t) * tensor_ld(t), (uint32_t)i + 1));
        at += span_bytes(t);
    }
    return 0;
}

typedef struct {
    const Op      *op;
    const OwnGemm *own;
} Both;

static int run_way(CudaDev *d, void *what, int own, int runs)
{
    const Both *b = what;
    for (int r = 0; r < runs; r++) {
        TRY(own ? cuda_own_run(d, b->own) : cuda_linear_parts(&d->base, b->op->kind, &b->op->args));
    }
    return 0;
}

/* Best of several rounds, both ways in turn, microseconds; of long ops one round tells. */
static int time_burst(CudaDev *d, Both *b, float best[2])
{
    enum { RUNS = 3 };
    best[0] = best[1] = 1e30f;
    for (int round = 0; round <= ROUNDS; round++) { /* the first only loads kernels */
        for (int own = 0; own < 2; own++) {
            float us;
            TRY(cuda_time_begin(d, SPIN_US));
            TRY(run_way(d, b, own, RUNS));
            TRY(cuda_time_end(d, &us));
            if (round > 0) best[own] = MIN(best[own], us / RUNS);
        }
        if (round > 0 && MIN(best[0], best[1]) > CUDA_LONG_US) break;
    }
    return 0;
}

/* 1 when there was no memory to time in. */
static int measure(CudaDev *d, const Op *op, const char *key, int *own)
{
    Rehearsal c;
    OwnGemm   g;
    float     us[2];
    char      note[64];
    int       rc = copy_make(d, op, &c);
    if (rc != 0) return rc;
    TRY(cuda_gemm_prepare(d, &c.op)); /* may time a plan of its own, in the same scratch */
    rc = copy_make(d, op, &c);
    if (rc != 0) return rc;
    cuda_own_describe(op->kind, &c.op.args, &g);
    Both both = { &c.op, &g };
    TRY(time_burst(d, &both, us));
    if (cuda_steady_is_close(us, CLOSE)) TRY(cuda_steady_time(d, run_way, &both, us));
    *own = us[1] <= us[0];
    snprintf(note, sizeof note, "%.1f us, parts %.1f us", (double)us[1], (double)us[0]);
    cuda_tune_put(d->tune, key, *own ? "own" : "parts", note);
    return 0;
}

int cuda_own_prepare(CudaDev *d, const Op *op)
{
    OwnGemm g;
    char    key[KEY_BYTES];
    if (!cuda_own_describe(op->kind, &op->args, &g) || !can_run(d, op->kind, &op->args, &g)) return 0;
    choice_key(op->kind, &g, key, sizeof key);
    if (!d->base.opt.tune || d->base.opt.deterministic || d->base.opt.own || choice_find(d->own, key))
        return 0;
    const char *known = cuda_tune_find(d->tune, key);
    int         own   = known && strcmp(known, "own") == 0;
    if (!known) {
        int rc = measure(d, op, key, &own);
        if (rc < 0) return -1;
        if (rc > 0) own = !is_plain(g.kind); /* no memory to time in: as without timing */
    }
    choice_add(d->own, key, own);
    return 0;
}
