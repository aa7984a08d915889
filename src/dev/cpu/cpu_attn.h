/* Attention in blocks: what forward and backward share.
 *
 * Tiles are kept transposed, one lane per query: S[key][query]. Maxima, sums and factors of the softmax are then plain
 * vectors over queries, and each product takes keys and values straight from the packed rows.
 *
 * Every mask is an interval of keys per query: causal [0, t], full [0, T), prefix [0, max(t+1, prefix)), document
 * [doc[t], t]. A block of keys outside every interval is skipped, one inside every interval needs no masking. */
#ifndef DEV_CPU_ATTN_H
#define DEV_CPU_ATTN_H

#include "dev/cpu/cpu.h"
#include "dev/cpu/cpu_vec.h"

enum {
    ATTN_Q  = 32,          /* queries per block: one panel of the widest tiles, few wasted at the diagonal */
    ATTN_K  = 128,         /* keys per block */
    ATTN_QV = ATTN_Q / VL, /* vectors per row of a tile */
};

typedef struct {
    int64_t        B, T, H, K, D, ld; /* ld: floats between consecutive rows of qkv */
    const float   *qkv;
    float          scale;
    Mask           mask;
    const int32_t *doc, *prefix;
} Attn;

/* Keys that each query of a block sees, and the bounds over the block. */
typedef struct {
    int32_t lo[ATTN_Q], hi[ATTN_Q];
    int64_t min_lo, max_lo, min_hi, max_hi;
} Span;

Attn attn_init(const Tensor *qkv, const Tensor *doc, const Tensor *prefix, int heads, int kv_heads,
               int head_dim);

/* Rows of head h of sequence b: element (t, d) is at p[t * ld + d]. */
static inline const float *attn_q(const Attn *a, int64_t b, int64_t h)
{
    return a->qkv + b * a->T * a->ld + h * a->D;
}
static inline const float *attn_k(const Attn *a, int64_t b, int64_t g)
{
    return a->qkv + b * a->T * a->ld + (a->H + g) * a->D;
}
static inline const float *attn_v(const Attn *a, int64_t b, int64_t g)
{
    return a->qkv + b * a->T * a->ld + (a->H + a->K + g) * a->D;
}

/* Intervals of queries [q0, q0+n) of sequence b; lanes past n repeat the last query. */
void attn_span(Span *s, const Attn *a, int64_t b, int64_t q0, int64_t n);

static inline int span_whole(const Span *s, int64_t k0, int64_t k1)
{
    return k0 >= s->max_lo && k1 <= s->min_hi;
}

/* Lanes of vector v of a tile row that see key k. */
VEC_INLINE vi span_sees(const Span *s, int v, int64_t k)
{
    vi key = vi_set((int32_t)k);
    return (key >= vi_load(s->lo + v * VL)) & (key < vi_load(s->hi + v * VL));
}

/* D rounded up to whole vectors: the length of a copied row. */
static inline int64_t attn_pad(int64_t D) { return (D + VL - 1) / VL * VL; }

/* n rows x of D floats, ld apart, as n_row rows of attn_pad(D) floats, times scale; what x does not fill is 0. Rows of qkv
 * are far apart: read in place they miss L1 on every key (measured: 144 against 171 GFLOP/s). */
typedef struct {
    const float *x;
    int64_t      ld, n, n_row, D;
    float        scale;
} AttnRows;
void attn_copy(float *out, const AttnRows *r);

/* out[d][lane] = scale * x[lane][d] for n rows x of D floats, ld apart; lanes from n on are 0. */
void attn_transpose(float *out, const float *x, int64_t ld, int64_t n, int64_t D, float scale);

/* Rows that the thread's next item will read or write, brought into L2 a few lines at a time while this one computes. A
 * head's part of a row is too short for the hardware's prefetcher: waiting for it took a third of the time. */
enum { AHEAD_STREAMS = 8, AHEAD_LINE = 16 /* floats */ };
typedef struct {
    const float *base[AHEAD_STREAMS];
    int64_t      ld[AHEAD_STREAMS], width[AHEAD_STREAMS]; /* floats */
    int          n_stream, stream;
    int64_t      row, n_row;
} AttnAhead;

static inline void ahead_add(AttnAhead *a, const float *base, int64_t ld, int64_t width)
{
    a->base[a->n_stream]    = base;
    a->ld[a->n_stream]      = ld;
    a->width[a->n_stream++] = width;
}

/* Streams of the key/value head g of sequence b, and of its query heads, in qkv and in a tensor packed like o. */
void ahead_add_qkv(AttnAhead *a, const Attn *t, const float *qkv, int64_t ld, int64_t b, int64_t g);
void ahead_add_heads(AttnAhead *a, const Attn *t, const float *o, int64_t ld, int64_t b, int64_t g);

/* One stream's part of one row. */
VEC_INLINE void ahead_step(AttnAhead *a)
{
    if (a->row >= a->n_row) return;
    const float *p = a->base[a->stream] + a->row * a->ld[a->stream];
    for (int64_t i = 0; i < a->width[a->stream]; i += AHEAD_LINE) __builtin_prefetch(p + i, 0, 2);
    if (++a->stream == a->n_stream) {
        a->stream = 0;
        a->row++;
    }
}

/* The forms that store their weights (cpu_attn_stored.c): args->p is there. */
int    cpu_attn_stored_fwd(Dev *dev, const AttnFwd *args);
int    cpu_attn_stored_bwd(Dev *dev, const AttnBwd *args);
size_t cpu_attn_stored_fwd_scratch(const AttnFwd *args);
size_t cpu_attn_stored_bwd_scratch(const AttnBwd *args);

size_t cpu_attn_fwd_scratch(const AttnFwd *a, int threads);
size_t cpu_attn_bwd_scratch(const AttnBwd *a, int threads);
size_t cpu_attn_decode_scratch(const AttnDecode *a, int threads);

#endif
