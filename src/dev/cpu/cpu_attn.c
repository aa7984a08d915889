/* Attention forward: one pass over the keys per block of queries, T x S is never stored.
 *
 * One item of work is a sequence, a key/value head and a range of query blocks. The item copies the keys and
 * values it reads, then takes every query head of the group. Q^T (scaled) is made once for a block of
 * queries. Then for each block of keys:
 *   S   = K Q^T                     [keys][queries]
 *   m'  = max(m, max over keys S),  P = exp(S - m')
 *   l   = l exp(m - m') + sum P,    O^T = O^T exp(m - m') + V^T P
 * and at the end o = O / l, lse = m + log l. Blocks of queries are independent, so the bits do not depend on
 * how blocks are dealt into items. */
#include "dev/cpu/cpu_attn.h"

#include "base/err.h"
#include "dev/cpu/cpu_gemm.h"

#include <math.h>
#include <omp.h>
#include <string.h>

static const int32_t *ints(const Tensor *t) { return t ? t->data : NULL; }

static Attn attn_init(const AttnShape *s, const Tensor *q, int64_t S)
{
    Attn a  = { .B = q->dim[0], .T = q->dim[1], .S = S, .H = s->heads, .K = s->kv_heads, .D = s->head_dim };
    a.q     = cpu_f32(q);
    a.ld_q  = tensor_ld(q);
    a.scale = s->scale;
    a.mask  = s->mask;
    return a;
}

static Attn attn_packed(const AttnShape *s, const Tensor *qkv)
{
    Attn a = attn_init(s, qkv, qkv->dim[1]);
    a.k    = a.q + a.H * a.D;
    a.v    = a.k + a.K * a.D;
    a.ld_k = a.ld_q;
    return a;
}

Attn attn_of_fwd(const AttnFwd *f)
{
    Attn a   = attn_packed(&f->shape, f->qkv);
    a.doc    = ints(f->doc);
    a.prefix = ints(f->prefix);
    a.first  = ints(f->first);
    a.last   = ints(f->last);
    return a;
}

Attn attn_of_bwd(const AttnBwd *b)
{
    Attn a   = attn_packed(&b->shape, b->qkv);
    a.doc    = ints(b->doc);
    a.prefix = ints(b->prefix);
    a.first  = ints(b->first);
    a.last   = ints(b->last);
    return a;
}

static Attn attn_cross(const AttnShape *s, const Tensor *q, const Tensor *kv)
{
    Attn a = attn_init(s, q, kv->dim[1]);
    a.k    = cpu_f32(kv);
    a.v    = a.k + a.K * a.D;
    a.ld_k = tensor_ld(kv);
    return a;
}

static Attn attn_of_cross_fwd(const CrossAttnFwd *f)
{
    Attn a  = attn_cross(&f->shape, f->q, f->kv);
    a.first = ints(f->first);
    a.last  = ints(f->last);
    a.len   = ints(f->len);
    return a;
}

Attn attn_of_cross_bwd(const CrossAttnBwd *b)
{
    Attn a  = attn_cross(&b->shape, b->q, b->kv);
    a.first = ints(b->first);
    a.last  = ints(b->last);
    a.len   = ints(b->len);
    return a;
}

/* Keys [*lo, *hi) that query t of sequence b sees; none: [S, 0). */
static void query_span(const Attn *a, int64_t b, int64_t t, int64_t *lo, int64_t *hi)
{
    *lo = 0;
    *hi = t + 1;
    if (a->start) *hi += a->start[a->one_start ? 0 : b];
    if (a->window > 0) *lo = MAX(*hi - a->window, 0);
    if (a->mask == MASK_FULL) *hi = a->S;
    if (a->mask == MASK_PREFIX) *hi = MIN(MAX(*hi, (int64_t)a->prefix[b]), a->T);
    if (a->mask == MASK_DOCUMENT) *lo = a->doc[b * a->T + t];
    if (a->mask == MASK_RANGE) {
        *lo = MAX((int64_t)a->first[b * a->T + t], 0);
        *hi = MIN((int64_t)a->last[b * a->T + t] + 1, a->S);
    }
    if (a->len) *hi = MIN(*hi, (int64_t)a->len[b]);
    if (*hi > *lo) return;
    *lo = a->S;
    *hi = 0;
}

void attn_span(Span *s, const Attn *a, int64_t b, int64_t q0, int64_t n)
{
    CHECK(a->mask != MASK_DOCUMENT || a->doc, "a document mask without document starts");
    CHECK(a->mask != MASK_PREFIX || a->prefix, "a prefix mask without prefixes");
    CHECK(a->mask != MASK_RANGE || (a->first && a->last), "a range mask without ranges");
    *s = (Span){ .min_lo = a->S, .max_lo = 0, .min_hi = a->S, .max_hi = 0 };
    for (int64_t i = 0; i < ATTN_Q; i++) {
        int64_t lo, hi;
        query_span(a, b, q0 + MIN(i, n - 1), &lo, &hi);
        s->lo[i]  = (int32_t)lo;
        s->hi[i]  = (int32_t)hi;
        s->min_lo = MIN(s->min_lo, lo);
        s->max_lo = MAX(s->max_lo, lo);
        s->min_hi = MIN(s->min_hi, hi);
        s->max_hi = MAX(s->max_hi, hi);
    }
}

void attn_transpose(float *out, const float *x, int64_t ld, int64_t n, int64_t D, float scale)
{
    for (int64_t q = 0; q < ATTN_Q; q += VL) {
        for (int64_t d = 0; d < D; d += VL) {
            Turn t = {
                .out = out + d * ATTN_Q + q, .out_row = ATTN_Q, .width = VL, .x = x + q * ld + d, .x_row = ld
            };
            t.n_row  = MAX(0, MIN(VL, n - q));
            t.n_col  = MIN(VL, D - d);
            t.factor = vf_set(scale);
            cpu_turn(&t);
        }
    }
}

void attn_copy(float *out, const AttnRows *r)
{
    int64_t pad = attn_pad(r->D);
    for (int64_t i = 0; i < r->n_row; i++) {
        for (int64_t d = 0; d < pad; d += VL) {
            vf_store(out + i * pad + d,
                     i < r->n ? vf_get(r->x + i * r->ld + d, r->D - d) * r->scale : (vf){ 0 });
        }
    }
}

void ahead_add_heads(AttnAhead *a, const Attn *t, const float *q, int64_t ld, int64_t b, int64_t g)
{
    int64_t width = t->H / t->K * t->D;
    ahead_add(a, q + b * t->T * ld + g * width, ld, width);
}

void ahead_add_keys(AttnAhead *a, const Attn *t, const float *k, int64_t ld, int64_t b, int64_t g)
{
    ahead_add(a, k + b * t->S * ld + g * t->D, ld, t->D);
}

/* y[lane][d] = x[d][lane] * factor[lane] for n rows y of D floats. */
static void write_rows(float *y, int64_t ld, const float *x, const float *factor, int64_t n, int64_t D)
{
    for (int64_t q = 0; q < n; q += VL) {
        for (int64_t d = 0; d < D; d += VL) {
            Turn t  = { .out = y + q * ld + d, .out_row = ld, .x = x + d * ATTN_Q + q, .x_row = ATTN_Q };
            t.n_row = t.width = MIN(VL, D - d);
            t.n_col           = MIN(VL, n - q);
            t.factor          = vf_load(factor + q);
            cpu_turn(&t);
        }
    }
}

/* ---- Forward ------------------------------------------------------------------------------------------- */

typedef struct {
    float    *k, *v; /* [T][pad]: rows of one key/value head */
    float    *qt;    /* [D][ATTN_Q] */
    float    *s;     /* [ATTN_K][ATTN_Q] */
    float    *ot;    /* [D][ATTN_Q] */
    float     max[ATTN_Q], sum[ATTN_Q];
    AttnAhead ahead;
} FwdTile;

static size_t fwd_floats(int64_t S, int64_t D)
{
    return (size_t)(2 * S * attn_pad(D) + (2 * D + ATTN_K) * ATTN_Q);
}

size_t attn_flash_fwd_scratch(int64_t S, int64_t D, int threads)
{
    return (size_t)threads * fwd_floats(S, D) * sizeof(float);
}

size_t cpu_attn_fwd_scratch(const AttnFwd *a, int threads)
{
    if (a->p) return cpu_attn_stored_fwd_scratch(a);
    return attn_flash_fwd_scratch(a->qkv->dim[1], a->shape.head_dim, threads);
}

size_t cpu_cross_attn_fwd_scratch(const CrossAttnFwd *a, int threads)
{
    return attn_flash_fwd_scratch(a->kv->dim[1], a->shape.head_dim, threads);
}

static void mask_tile(float *s, const Span *span, int64_t k0, int64_t k1)
{
    vf hidden = vf_set(-INFINITY);
    for (int64_t k = k0; k < k1; k++) {
        for (int v = 0; v < ATTN_QV; v++) {
            float *p = s + (k - k0) * ATTN_Q + v * VL;
            vf_store(p, vf_where(span_sees(span, v, k), vf_load(p), hidden));
        }
    }
}

/* Turns n_key rows of scores into weights and brings max, sum and (but for the first keys) O^T up to date. */
static void softmax_tile(FwdTile *f, int64_t n_key, int64_t D, int first)
{
    for (int v = 0; v < ATTN_QV; v++) {
        float *s   = f->s + v * VL;
        vf     old = first ? vf_set(NO_MAX) : vf_load(f->max + v * VL), top = old, sum = { 0 };
        for (int64_t k = 0; k < n_key; k++) top = vf_max(top, vf_load(s + k * ATTN_Q));
        for (int64_t k = 0; k < n_key; k++) {
            vf p = vf_exp(vf_load(s + k * ATTN_Q) - top);
            vf_store(s + k * ATTN_Q, p);
            sum += p;
            if (v == 0) ahead_step(&f->ahead);
        }
        vf_store(f->max + v * VL, top);
        if (first) {
            vf_store(f->sum + v * VL, sum);
            continue;
        }
        vf factor = vf_exp(old - top);
        vf_store(f->sum + v * VL, vf_load(f->sum + v * VL) * factor + sum);
        float *ot = f->ot + v * VL;
        for (int64_t d = 0; d < D; d++) vf_store(ot + d * ATTN_Q, vf_load(ot + d * ATTN_Q) * factor);
    }
}

typedef struct {
    Attn   a;
    Mat    o;
    float *lse; /* NULL: not wanted */
} Fwd;

static void fwd_block(const Fwd *w, FwdTile *f, int64_t b, int64_t h, int64_t q0)
{
    const Attn *a = &w->a;
    int64_t     D = a->D, n = MIN(ATTN_Q, a->T - q0), pad = attn_pad(D);
    Span        span;
    attn_span(&span, a, b, q0, n);
    attn_transpose(f->qt, attn_q(a, b, h) + q0 * a->ld_q, a->ld_q, n, D, a->scale);
    int64_t first = span.min_lo / ATTN_K * ATTN_K;
    for (int64_t k0 = first; k0 < span.max_hi; k0 += ATTN_K) {
        int64_t k1 = MIN(k0 + ATTN_K, span.max_hi);
        Tile    st = { .k = D, .a = f->k + k0 * pad, .a_row = pad, .a_col = 1, .b = f->qt, .c = f->s };
        st.b_row = st.c_row = ATTN_Q;
        cpu_block(&st, k1 - k0, ATTN_Q);
        if (!span_whole(&span, k0, k1)) mask_tile(f->s, &span, k0, k1);
        softmax_tile(f, k1 - k0, D, k0 == first);
        Tile ot  = { .k = k1 - k0, .a = f->v + k0 * pad, .a_row = 1, .a_col = pad, .b = f->s, .c = f->ot };
        ot.b_row = ot.c_row = ot.plus_row = ATTN_Q;
        ot.plus                           = k0 == first ? NULL : f->ot;
        cpu_block(&ot, D, ATTN_Q);
    }
    if (span.max_hi == 0) { /* no query of the block sees anything */
        memset(f->sum, 0, sizeof f->sum);
        memset(f->ot, 0, (size_t)(D * ATTN_Q) * sizeof(float));
    }
    float inv[ATTN_Q];
    for (int i = 0; i < ATTN_Q; i++) inv[i] = f->sum[i] > 0 ? 1.0f / f->sum[i] : 0.0f;
    for (int64_t i = 0; i < n && w->lse; i++) {
        w->lse[(b * a->H + h) * a->T + q0 + i] = f->sum[i] > 0 ? f->max[i] + logf(f->sum[i]) : 0.0f;
    }
    write_rows(mat_row(w->o, b * a->T + q0) + h * D, w->o.ld, f->ot, inv, n, D);
}

/* Query blocks [i0, i1) of all heads that read key/value head g of sequence b. */
static void fwd_item(const Fwd *w, FwdTile *f, int64_t b, int64_t g, int64_t i0, int64_t i1)
{
    const Attn *a     = &w->a;
    int64_t     group = a->H / a->K, lo = a->S, hi = 0, pad = attn_pad(a->D);
    for (int64_t i = i0; i < i1; i++) {
        Span span;
        attn_span(&span, a, b, i * ATTN_Q, MIN(ATTN_Q, a->T - i * ATTN_Q));
        lo = MIN(lo, span.min_lo / ATTN_K * ATTN_K);
        hi = MAX(hi, span.max_hi);
    }
    attn_copy(f->k + lo * pad,
              &(AttnRows){ attn_k(a, b, g) + lo * a->ld_k, a->ld_k, hi - lo, hi - lo, a->D, 1.0f });
    attn_copy(f->v + lo * pad,
              &(AttnRows){ attn_v(a, b, g) + lo * a->ld_k, a->ld_k, hi - lo, hi - lo, a->D, 1.0f });
    for (int64_t h = g * group; h < (g + 1) * group; h++) {
        for (int64_t i = i0; i < i1; i++) fwd_block(w, f, b, h, i * ATTN_Q);
    }
}

/* Item i of n_cut ranges of queries for every key/value head. Later queries see more keys under a causal
 * mask: they go first, and the short ones fill the end. */
static void fwd_take(const Fwd *w, float *scratch, int64_t n_cut, int64_t i)
{
    const Attn *a    = &w->a;
    float      *mine = scratch + (size_t)omp_get_thread_num() * fwd_floats(a->S, a->D);
    int64_t     tall = a->S * attn_pad(a->D), n_head = a->B * a->K, head = i % n_head,
            part = n_cut - 1 - i / n_head;
    FwdTile f    = { .k = mine, .v = mine + tall, .qt = mine + 2 * tall };
    f.s          = f.qt + a->D * ATTN_Q;
    f.ot         = f.s + ATTN_K * ATTN_Q;
    if (n_cut == 1 && head + 1 < n_head) {
        int64_t b = (head + 1) / a->K, g = (head + 1) % a->K;
        f.ahead.n_row = MIN(a->T, a->S);
        ahead_add_heads(&f.ahead, a, a->q, a->ld_q, b, g);
        ahead_add_keys(&f.ahead, a, a->k, a->ld_k, b, g);
        ahead_add_keys(&f.ahead, a, a->v, a->ld_k, b, g);
        ahead_add_heads(&f.ahead, a, w->o.p, w->o.ld, b, g);
    }
    int64_t n_block = (a->T + ATTN_Q - 1) / ATTN_Q;
    fwd_item(w, &f, head / a->K, head % a->K, n_block * part / n_cut, n_block * (part + 1) / n_cut);
}

int attn_flash_fwd(Dev *dev, const Attn *attn, const Tensor *o, const Tensor *lse)
{
    Fwd         w       = { .a = *attn, .o = cpu_mat(o), .lse = lse ? cpu_f32(lse) : NULL };
    const Attn *a       = &w.a;
    int         threads = a->B * a->H * a->T * a->D < CPU_PARALLEL_MIN ? 1 : cpu_threads(dev);
    float      *scratch = cpu_scratch(dev, attn_flash_fwd_scratch(a->S, a->D, cpu_threads(dev)));
    if (!scratch) return -1;
    int64_t n_head = a->B * a->K, n_cut = 1;
    if (n_head >= 4 * threads) {
        /* Whole heads cost the same; a thread takes neighbours, so that it knows what comes next. */
#pragma omp parallel for num_threads(threads) schedule(static)
        for (int64_t i = 0; i < n_head; i++) fwd_take(&w, scratch, n_cut, i);
        return 0;
    }
    /* Few heads: their queries are cut, so that every thread gets work. */
    n_cut = MIN((a->T + ATTN_Q - 1) / ATTN_Q, (4 * threads + n_head - 1) / n_head);
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
    for (int64_t i = 0; i < n_cut * n_head; i++) fwd_take(&w, scratch, n_cut, i);
    return 0;
}

int cpu_attn_fwd(Dev *dev, const AttnFwd *args)
{
    if (args->p) return cpu_attn_stored_fwd(dev, args);
    Attn a = attn_of_fwd(args);
    return attn_flash_fwd(dev, &a, args->o, args->lse);
}

int cpu_cross_attn_fwd(Dev *dev, const CrossAttnFwd *args)
{
    Attn a = attn_of_cross_fwd(args);
    return attn_flash_fwd(dev, &a, args->o, args->lse);
}
