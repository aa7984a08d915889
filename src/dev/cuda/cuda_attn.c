/* Attention: three ways, one chosen for each shape.
 *   tiles    k_attn_tile_*.cu: Hopper, bf16, heads of up to 128
 *   cuDNN    cuda_attn_graph.c: 16-bit, causal (lengths are multiples of 128) or full, in several engines
 *   simple   k_attn.cu: everything
 *
 * 1. All three write and read the same lse, log sum exp of the scaled, masked scores, f32[B,H,T]. So forward
 *    and backward may use different ways.
 * 2. The choice is made once per shape and kept in the tune cache: the fastest of tiles and cuDNN's engines
 *    on this card. (cuDNN's own first guess is not always the fastest.) Between the best engine and tiles a
 *    steady clock decides (cuda_steady.c). Without timing, tiles are chosen, because they sum in one order;
 *    else the first cuDNN engine that runs.
 * 3. If only the simple kernel can run a shape, the log says so once, with the reason. */
#include "dev/cuda/cuda_attn.h"

#include "tensor/number.h"
#include "dev/cuda/cuda_attn_impl.h"
#include "dev/cuda/cuda_attn_stored.h"
#include "dev/cuda/cuda_check.h"
#include "dev/cuda/cuda_move.h"
#include "dev/cuda/cuda_steady.h"
#include "dev/cuda/cuda_tune.h"
#include "dev/cuda/k_attn_tile.h"
#include "dev/cuda/kernels.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TILE_REVISION = 8 }; /* of the kernels and the contest: older choices do not count */

/* ---- running ------------------------------------------------------------------------------------------- */

/* Heads from number i on of packed rows. */
static char *heads_from(char *rows, const AttnKey *k, int64_t i) { return rows ? rows + i * k->D * 2 : NULL; }

static TileAttn tiles_of(const AttnKey *k, const AttnData *x)
{
    return (TileAttn){ .q       = x->qkv,
                       .k       = heads_from(x->qkv, k, k->H),
                       .v       = heads_from(x->qkv, k, k->H + k->K),
                       .o       = x->o,
                       .lse     = x->lse,
                       .dout    = x->dout,
                       .dq      = x->dqkv,
                       .dk      = heads_from(x->dqkv, k, k->H),
                       .dv      = heads_from(x->dqkv, k, k->H + k->K),
                       .ws      = x->ws,
                       .B       = k->B,
                       .T       = k->T,
                       .S       = k->T,
                       .ld_q    = k->ld_qkv,
                       .ld_k    = k->ld_qkv,
                       .ld_o    = k->ld_o,
                       .ld_dout = k->ld_dout,
                       .ld_dq   = k->ld_dqkv,
                       .ld_dk   = k->ld_dqkv,
                       .table   = x->table,
                       .doc     = x->doc,
                       .prefix  = x->prefix,
                       .first   = x->first,
                       .last    = x->last,
                       .shape   = { .heads    = (int)k->H,
                                    .kv_heads = (int)k->K,
                                    .head_dim = (int)k->D,
                                    .mask     = (Mask)k->mask,
                                    .scale    = x->scale } };
}

/* NULL, or why tiles cannot do it. */
static const char *tiles_refuse(const CudaDev *d, const AttnKey *k)
{
    TileAttn t = tiles_of(k, &(AttnData){ 0 });
    if (!d->encode) return "the card or its driver cannot";
    if (k->own < 0) return "own kernels are off";
    if (k->dtype != DT_BF16) return "it is not bf16";
    if (k->ws_bytes < (k->bwd ? tile_attn_bwd_ws(&t) : tile_attn_fwd_ws(&t)))
        return "the workspace is too small";
    return tile_attn_refuses(&t);
}

static const char *tiles_run(CudaDev *d, AttnPlan *p, const AttnData *x)
{
    TileAttn     t  = tiles_of(&p->key, x);
    cudaStream_t st = cuda_stream(&d->base);
    int          rc =
        p->key.bwd ? tile_attn_bwd(&t, d->encode, d->n_sm, st) : tile_attn_fwd(&t, d->encode, d->n_sm, st);
    if (rc == 0) return NULL;
    snprintf(p->graph.error, sizeof p->graph.error, "%s", err_get());
    err_clear();
    return p->graph.error;
}

/* NULL, or why it did not run. */
static const char *run_plan(CudaDev *d, AttnPlan *p, const AttnData *x)
{
    return p->way == ATTN_TILES ? tiles_run(d, p, x) : attn_graph_run(d, p, x);
}

static int64_t align_up(int64_t n) { return (int64_t)tensor_align_up((size_t)n); }

/* Scratch tensors of the key's sizes: random, with zeros where only the result's size matters, for one
 * document without a prefix, and for ranges of one key. 1 when there is no room. */
static int rehearsal(CudaDev *d, const AttnKey *k, AttnData *x)
{
    enum { N = 7 };
    int64_t row     = k->B * k->T;
    int64_t part[N] = { row * k->ld_qkv * 2,
                        row * k->ld_o * 2,
                        k->B * k->H * k->T * 4,
                        row * k->ld_dout * 2,
                        row * k->ld_dqkv * 2,
                        k->ws_bytes,
                        row * 4 };
    char   *at[N];
    int64_t total = 0;
    for (int i = 0; i < N; i++) total += align_up(part[i]);
    char *base = cuda_scratch(d, (size_t)total);
    if (!base) return 1;
    CUDA_TRY(cudaMemsetAsync(base, 0, (size_t)total, cuda_stream(&d->base)));
    for (int i = 0; i < N; i++) {
        at[i] = base;
        base += align_up(part[i]);
    }
    *x = (AttnData){ .qkv    = at[0],
                     .o      = at[1],
                     .lse    = at[2],
                     .dout   = at[3],
                     .dqkv   = at[4],
                     .ws     = at[5],
                     .scale  = 0.125f,
                     .doc    = (const int *)at[6],
                     .prefix = (const int *)at[6],
                     .first  = (const int *)at[6],
                     .last   = (const int *)at[6] };
    if (k->dtype != DT_BF16) return 0;
    TRY(cuda_fill_random(&d->base, x->qkv, DT_BF16, row * k->ld_qkv, 1));
    return k->bwd ? cuda_fill_random(&d->base, x->dout, DT_BF16, row * k->ld_dout, 2) : 0;
}

/* NULL, or why the way did not run. Whatever the library does at first use has happened then. */
static const char *run_once(CudaDev *d, AttnPlan *p, const AttnData *x)
{
    const char *why = run_plan(d, p, x);
    if (why) return why;
    cudaError_t e = cudaStreamSynchronize(cuda_stream(&d->base));
    return e == cudaSuccess ? NULL : cudaGetErrorString(e);
}

/* The best of several rounds, in microseconds; -1 when it does not run. */
static float time_plan(CudaDev *d, AttnPlan *p, const AttnData *x)
{
    enum { ROUNDS = 5, RUNS = 3, SPIN_US = 300 };
    float best = -1;
    if (run_once(d, p, x)) return -1;
    for (int round = 0; round < ROUNDS; round++) {
        float us;
        if (cuda_time_begin(d, SPIN_US) < 0) return -1;
        for (int i = 0; i < RUNS; i++) {
            if (run_plan(d, p, x)) return -1;
        }
        if (cuda_time_end(d, &us) < 0) return -1;
        if (best < 0 || us / RUNS < best) best = us / RUNS;
    }
    return best;
}

/* ---- choosing ------------------------------------------------------------------------------------------ */

static void key_text(const CudaDev *d, const AttnKey *k, char *buf, size_t n)
{
    snprintf(buf, n,
             "attention %s %lld %lld heads %lld %lld %lld ld %lld %lld %lld %lld mask %d dtype %d ws %lld "
             "cuDNN %zu tiles %d%s",
             k->bwd ? "bwd" : "fwd", (long long)k->B, (long long)k->T, (long long)k->H, (long long)k->K,
             (long long)k->D, (long long)k->ld_qkv, (long long)k->ld_o, (long long)k->ld_dout,
             (long long)k->ld_dqkv, (int)k->mask, (int)k->dtype, (long long)k->ws_bytes, d->attn->version,
             TILE_REVISION,
             k->own > 0   ? " own"
             : k->own < 0 ? " library"
                          : "");
}

/* A way that was taken, and its time. */
typedef struct {
    AttnWay   way;
    CudnnDesc plan;
    int64_t   ws;
    float     us; /* below 0: none yet */
    int       i;  /* of cuDNN's engines */
} TimedWay;

static TimedWay way_now(const AttnPlan *p, int i, float us)
{
    return (TimedWay){ p->way, p->plan, p->plan_ws, us, i };
}

static void way_set(AttnPlan *p, const TimedWay *t)
{
    p->way     = t->way;
    p->plan    = t->plan;
    p->plan_ws = t->ws;
}

/* Candidate i: tiles for -1, else cuDNN's engine i. 0 when it is taken, 1 when it cannot be. */
static int way_take(CudaDev *d, AttnPlan *p, int i)
{
    if (i < 0) {
        p->way = ATTN_TILES;
        return tiles_refuse(d, &p->key) != NULL;
    }
    p->way = ATTN_CUDNN;
    return attn_graph_take(d->attn, p, i);
}

/* Forgets why a candidate did not run; the next may. */
static void forget_failure(AttnPlan *p)
{
    p->graph.error[0] = 0;
    cudaGetLastError();
    err_clear();
}

enum { SEEN = 32768 }; /* elements of an output that are compared */

/* The last elements of what the op writes, once t has run. */
static int output_of(CudaDev *d, AttnPlan *p, const TimedWay *t, const AttnData *x, uint16_t got[SEEN],
                     size_t *n)
{
    const AttnKey *k   = &p->key;
    char          *out = k->bwd ? x->dqkv : x->o;
    size_t         all = (size_t)(k->B * k->T * (k->bwd ? k->ld_dqkv : k->ld_o));
    *n                 = MIN(all, (size_t)SEEN);
    way_set(p, t);
    /* A way that writes nothing leaves NaN. */
    if (cudaMemsetAsync(out, 0xff, all * 2, cuda_stream(&d->base)) != cudaSuccess || run_once(d, p, x))
        return -1;
    return cudaMemcpy(got, out + (all - *n) * 2, *n * 2, cudaMemcpyDeviceToHost) == cudaSuccess ? 0 : -1;
}

/* 1 if the last rows of the outputs of two ways agree up to rounding, so that a wrong kernel is noticed. The
 * bound is an ulp of the value (2^-7, twice for two roundings of sums) plus an ulp of the largest value,
 * because sums may cancel. */
static int same_output(CudaDev *d, AttnPlan *p, const TimedWay *a, const TimedWay *b, const AttnData *x)
{
    static uint16_t got[2][SEEN];
    size_t          n;
    float           high = 0;
    if (p->key.dtype != DT_BF16 || (a->way == b->way && a->i == b->i)) return 1;
    if (output_of(d, p, a, x, got[0], &n) < 0 || output_of(d, p, b, x, got[1], &n) < 0) return 0;
    for (size_t i = 0; i < n; i++) high = fmaxf(high, fabsf(f32_from_bf16(got[0][i])));
    for (size_t i = 0; i < n; i++) {
        float u = f32_from_bf16(got[0][i]), v = f32_from_bf16(got[1][i]);
        if (!(fabsf(u - v) <= 0x1p-6f * fabsf(u) + 0x1p-7f * high)) return 0;
    }
    return 1;
}

/* Times every candidate in bursts, tiles first. best: the fastest of cuDNN's engines, and tiles; each only
 * with the first's results. */
static void ways_time(CudaDev *d, AttnPlan *p, int n, const AttnData *x, TimedWay best[2])
{
    TimedWay first = { .us = -1 };
    for (int c = 0; c <= n; c++) {
        int i = c - 1;
        if (way_take(d, p, i)) continue;
        TimedWay t = way_now(p, i, time_plan(d, p, x)), *b = &best[t.way == ATTN_TILES];
        if (t.us < 0) forget_failure(p);
        if (t.us < 0) continue;
        if (first.us < 0) first = t;
        if (b->us >= 0 && t.us >= b->us) continue;
        if (same_output(d, p, &first, &t, x)) {
            *b = t;
        } else {
            forget_failure(p);
            cuda_note("attention: %s is left out: its results differ",
                      t.way == ATTN_TILES ? "the own kernel" : "an engine of cuDNN");
        }
    }
}

typedef struct {
    AttnPlan       *plan;
    const TimedWay *way;
    const AttnData *x;
} Contest;

static int run_way(CudaDev *d, void *what, int way, int runs)
{
    const Contest *c = what;
    way_set(c->plan, &c->way[way]);
    for (int i = 0; i < runs; i++) {
        const char *why = run_plan(d, c->plan, c->x);
        if (why) return err_set("attention: %s", why);
    }
    return 0;
}

/* The faster of cuDNN's best engine and tiles, at a steady clock unless bursts are far apart; NULL if none
 * ran. These bursts are not taken in turn, so a clock that still rises counts against tiles: tiles that take
 * 1,289 us lost against an engine that takes 1,525. */
static const TimedWay *ways_decide(CudaDev *d, AttnPlan *p, const AttnData *x, TimedWay best[2])
{
    float   us[2] = { best[0].us, best[1].us };
    Contest c     = { p, best, x };
    if (us[0] < 0 && us[1] < 0) return NULL;
    if (us[0] < 0 || us[1] < 0) return &best[us[1] >= 0];
    if (cuda_steady_is_close(us, 1.5f) && cuda_steady_time(d, run_way, &c, us) < 0) forget_failure(p);
    best[0].us = us[0];
    best[1].us = us[1];
    return &best[us[1] <= us[0]];
}

/* The candidate that the cache names: 1 when it runs. */
static int way_known(CudaDev *d, AttnPlan *p, int n, const char *key, const AttnData *x)
{
    const char *known = cuda_tune_find(d->tune, key);
    int         i     = known ? atoi(known) : n;
    if (i < -1 || i >= n) return 0;
    if (way_take(d, p, i) == 0 && !run_once(d, p, x)) return 1;
    forget_failure(p);
    return 0;
}

static int way_fastest(CudaDev *d, AttnPlan *p, int n, const AttnData *x)
{
    TimedWay best[2] = { { .us = -1 }, { .us = -1 } }; /* cuDNN's, tiles */
    char     key[256], value[16], note[96];
    key_text(d, &p->key, key, sizeof key);
    if (way_known(d, p, n, key, x)) return 1;
    ways_time(d, p, n, x, best);
    const TimedWay *w = ways_decide(d, p, x, best);
    if (!w) return 0;
    way_set(p, w);
    snprintf(value, sizeof value, "%d", w->i);
    snprintf(note, sizeof note, "%s; tiles %.1f us, cuDNN's engine %d of %d %.1f us (-1: none)",
             w->way == ATTN_TILES ? "tiles" : "cuDNN", (double)best[1].us, best[0].i, n, (double)best[0].us);
    cuda_tune_put(d->tune, key, value, note);
    return 1;
}

/* Without timing; with room at least tried. */
static int way_first(CudaDev *d, AttnPlan *p, int n, const AttnData *x)
{
    for (int i = -1; i < n; i++) {
        if (way_take(d, p, i)) continue;
        if (!x || !run_once(d, p, x)) return 1;
        forget_failure(p);
    }
    return 0;
}

/* How many engines cuDNN has for it; why: the reason for none. */
static int engines(CudaDev *d, AttnPlan *p, const char **why)
{
    *why = d->attn->handle ? attn_graph_refuses(&p->key) : "there is no cuDNN";
    if (p->key.own > 0) *why = "own kernels were asked for";
    int n = *why ? 0 : attn_graph_build(d->attn, p);
    if (n < 0) *why = p->graph.error;
    if (n == 0 && !*why) *why = "cuDNN has no engine for it";
    return MAX(n, 0);
}

/* NULL, or why neither tiles nor cuDNN can. */
static const char *plan_choose(CudaDev *d, AttnPlan *p)
{
    AttnData    x;
    const char *why;
    int         n = engines(d, p, &why);
    if (n == 0 && tiles_refuse(d, &p->key)) return why;
    int room = rehearsal(d, &p->key, &x) == 0;
    if (!room) forget_failure(p);
    if (room && d->base.opt.tune && !d->base.opt.deterministic && !p->key.deterministic) {
        if (way_fastest(d, p, n, &x)) return NULL;
    } else if (way_first(d, p, n, room ? &x : NULL)) {
        return NULL;
    }
    return n > 0 ? "cuDNN has no engine for it that runs in the planned workspace"
                 : "it did not run in tiles";
}

static AttnPlan *plan_get(CudaDev *d, const AttnKey *key)
{
    CudaAttn *c = d->attn;
    for (int i = 0; i < c->n_plan; i++) {
        if (memcmp(&c->plan[i]->key, key, sizeof *key) == 0) return c->plan[i];
    }
    AttnPlan *p = calloc(1, sizeof *p);
    CHECK(p, "out of host memory");
    p->key = *key;
    cudnn_graph_init(&p->graph, &c->lib);
    const char *why = plan_choose(d, p);
    if (why) {
        cuda_note("attention %s B%lld T%lld H%lld/%lld D%lld: simple kernel, because %s",
                  key->bwd ? "backward" : "forward", (long long)key->B, (long long)key->T, (long long)key->H,
                  (long long)key->K, (long long)key->D, why);
        p->way = ATTN_SIMPLE;
    }
    if (!d->building) cuda_scratch_drop(d);
    if (c->n_plan == c->cap) {
        c->cap  = c->cap ? 2 * c->cap : 16;
        c->plan = realloc(c->plan, (size_t)c->cap * sizeof *c->plan);
        CHECK(c->plan, "out of host memory");
    }
    c->plan[c->n_plan++] = p;
    return p;
}

static int aligned(const Tensor *t) { return (uintptr_t)t->data % 16 == 0; }

static int is_half(const Tensor *t) { return t->dtype == DT_BF16 || t->dtype == DT_F16; }

/* What a mask reads is there, and in one piece. */
static int is_plain(const Tensor *t) { return t && tensor_is_contiguous(t) && (uintptr_t)t->data % 16 == 0; }

static int mask_is_plain(Mask mask, const Tensor *doc, const Tensor *prefix, const Tensor *first,
                         const Tensor *last)
{
    if (mask == MASK_DOCUMENT) return is_plain(doc);
    if (mask == MASK_RANGE) return is_plain(first) && is_plain(last);
    return mask != MASK_PREFIX || prefix;
}

static const int *ints(const Tensor *t) { return t ? t->data : NULL; }

/* What was chosen for a forward op, or NULL for the simple kernel. */
static AttnPlan *fwd_plan(CudaDev *d, const AttnFwd *a)
{
    if (!is_half(a->qkv) || a->o->dtype != a->qkv->dtype) return NULL;
    if (!aligned(a->qkv) || !aligned(a->o)) return NULL;
    if (!mask_is_plain(a->shape.mask, a->doc, a->prefix, a->first, a->last)) return NULL;
    AttnKey k;
    memset(&k, 0, sizeof k);
    k.B         = a->qkv->dim[0];
    k.T         = a->qkv->dim[1];
    k.H         = a->shape.heads;
    k.K         = a->shape.kv_heads;
    k.D         = a->shape.head_dim;
    k.ld_qkv    = tensor_ld(a->qkv);
    k.ld_o      = tensor_ld(a->o);
    k.ws_bytes  = a->ws ? (int64_t)tensor_bytes(a->ws) : 0;
    k.dtype     = (int32_t)a->qkv->dtype;
    k.mask      = (int32_t)a->shape.mask;
    k.own       = d->base.opt.own;
    AttnPlan *p = plan_get(d, &k);
    return p->way == ATTN_SIMPLE ? NULL : p;
}

static AttnPlan *bwd_plan(CudaDev *d, const AttnBwd *a)
{
    if (!is_half(a->qkv) || a->o->dtype != a->qkv->dtype) return NULL;
    if (a->dout->dtype != a->qkv->dtype || a->dqkv->dtype != a->qkv->dtype) return NULL;
    if (!aligned(a->qkv) || !aligned(a->o) || !aligned(a->dout) || !aligned(a->dqkv)) return NULL;
    if (!mask_is_plain(a->shape.mask, a->doc, a->prefix, a->first, a->last)) return NULL;
    AttnKey k;
    memset(&k, 0, sizeof k);
    k.B             = a->qkv->dim[0];
    k.T             = a->qkv->dim[1];
    k.H             = a->shape.heads;
    k.K             = a->shape.kv_heads;
    k.D             = a->shape.head_dim;
    k.ld_qkv        = tensor_ld(a->qkv);
    k.ld_o          = tensor_ld(a->o);
    k.ld_dout       = tensor_ld(a->dout);
    k.ld_dqkv       = tensor_ld(a->dqkv);
    k.ws_bytes      = a->ws ? (int64_t)tensor_bytes(a->ws) : 0;
    k.bwd           = 1;
    k.dtype         = (int32_t)a->qkv->dtype;
    k.mask          = (int32_t)a->shape.mask;
    k.own           = d->base.opt.own;
    k.deterministic = a->shape.deterministic || d->base.opt.deterministic;
    AttnPlan *p     = plan_get(d, &k);
    return p->way == ATTN_SIMPLE ? NULL : p;
}

/* ---- interface ----------------------------------------------------------------------------------------- */

int cuda_attn_open(CudaDev *d)
{
    char why[256] = "";
    d->attn       = calloc(1, sizeof *d->attn);
    CHECK(d->attn, "out of host memory");
    CudaAttn *c = d->attn;
    if (cudnn_lib_open(&c->lib, why, sizeof why) == 0) {
        c->version = c->lib.version();
        /* Before 9.6 the dQ accumulator had to be cleared first; 9.10.0 and 9.10.1 computed wrong attention.
         */
        if (c->version < 90600 || c->version == 91000 || c->version == 91001) {
            snprintf(why, sizeof why, "version %zu is not usable", c->version);
        } else {
            cudnnStatus_t s = c->lib.create(&c->handle);
            if (s) snprintf(why, sizeof why, "%s", c->lib.error_string(s));
            if (s) c->handle = NULL;
        }
    }
    if (!c->handle) cuda_note("no cuDNN (%s): attention runs on own kernels", why);
    return 0;
}

void cuda_attn_close(CudaDev *d)
{
    CudaAttn *c = d->attn;
    if (!c) return;
    for (int i = 0; i < c->n_plan; i++) {
        cudnn_graph_deinit(&c->plan[i]->graph);
        free(c->plan[i]);
    }
    /* The library stays loaded: it has threads and exit handlers of its own. */
    if (c->handle) c->lib.destroy(c->handle);
    free(c->plan);
    free(c);
    d->attn = NULL;
}

const char *cuda_attn_version(const CudaDev *d, char *buf, size_t n)
{
    size_t v = d->attn->version;
    if (!d->attn->handle) {
        snprintf(buf, n, "no cuDNN");
    } else {
        snprintf(buf, n, "cuDNN %zu.%zu.%zu", v / 10000, v / 100 % 100, v % 100);
    }
    return buf;
}

int cuda_attn_prepare(CudaDev *d, const Op *op)
{
    if ((op->kind == OP_ATTN_FWD && op->args.attn_fwd.p) ||
        (op->kind == OP_ATTN_BWD && op->args.attn_bwd.p)) {
        return cuda_stored_prepare(d, op);
    }
    if (op->kind == OP_ATTN_FWD) fwd_plan(d, &op->args.attn_fwd);
    if (op->kind == OP_ATTN_BWD) bwd_plan(d, &op->args.attn_bwd);
    return 0;
}

int cuda_attn_fwd(Dev *dev, const AttnFwd *a)
{
    if (a->p) return cuda_stored_fwd(dev, a);
    CudaDev  *d = (CudaDev *)dev;
    AttnPlan *p = fwd_plan(d, a);
    if (!p) return cuda_flash_fwd(dev, a);
    AttnData x = { .qkv    = a->qkv->data,
                   .o      = a->o->data,
                   .lse    = a->lse->data,
                   .scale  = a->shape.scale,
                   .doc    = ints(a->doc),
                   .prefix = ints(a->prefix),
                   .first  = ints(a->first),
                   .last   = ints(a->last) };
    if (a->ws) x.ws = a->ws->data;
    const char *why = run_plan(d, p, &x);
    return why ? err_set("attn_fwd: %s", why) : 0;
}

/* Without the rotation; *turned: done all the same. */
static int run_bwd(CudaDev *d, const AttnBwd *a, int *turned)
{
    if (a->p) return cuda_stored_bwd(&d->base, a);
    AttnPlan *p = bwd_plan(d, a);
    if (!p) return cuda_flash_bwd(&d->base, a);
    AttnData x     = { .qkv    = a->qkv->data,
                       .o      = a->o->data,
                       .lse    = a->lse->data,
                       .dout   = a->dout->data,
                       .dqkv   = a->dqkv->data,
                       .ws     = a->ws->data,
                       .scale  = a->shape.scale,
                       .doc    = ints(a->doc),
                       .prefix = ints(a->prefix),
                       .first  = ints(a->first),
                       .last   = ints(a->last) };
    int      whole = a->shape.head_dim == 64 || a->shape.head_dim == 128;
    if (a->table && p->way == ATTN_TILES && whole && tensor_ld(a->table) == a->shape.head_dim) {
        x.table = a->table->data;
        *turned = 1;
    }
    const char *why = run_plan(d, p, &x);
    return why ? err_set("attn_bwd: %s", why) : 0;
}

int cuda_attn_bwd(Dev *dev, const AttnBwd *a)
{
    int turned = 0;
    TRY(run_bwd((CudaDev *)dev, a, &turned));
    if (!a->table || turned) return 0;
    return cuda_rope(dev, &(Rope){ .y        = a->dqkv,
                                   .x        = a->dqkv,
                                   .table    = a->table,
                                   .n_head   = a->shape.heads + a->shape.kv_heads,
                                   .head_dim = a->shape.head_dim,
                                   .inverse  = 1 });
}
