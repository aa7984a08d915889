/* Attention in blocks, of one sequence with itself or with another one: what forward and backward share.
 *
 * Tiles are kept transposed, one lane per query: S[key][query]. Maxima, sums and factors of the softmax are
 * then plain vectors over queries, and each product takes keys and values straight from the packed rows.
 *
 * Every mask is an interval of keys per query: causal [0, t], full [0, S), prefix [0, max(t+1, prefix)),
 * document [doc[t], t], range [first[t], last[t]]. A block of keys outside every interval is skipped, one
 * inside every interval needs no masking. A query that sees nothing has the interval [S, 0). */
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
    int64_t        B, T, S, H, K, D; /* T queries, S keys */
    int64_t        ld_q, ld_k;       /* floats between consecutive rows of q, and of k and v */
    const float   *q, *k, *v;        /* head 0 of sequence 0 */
    float          scale;
    Mask           mask;
    const int32_t *doc, *prefix, *first, *last, *len;
    const int32_t
           *start; /* query 0 of sequence b stands at key start[b] (one_start: start[0]); NULL: at key 0 */
    int     one_start;
    int64_t window; /* causal: a query sees so many of the newest keys; 0: all */
} Attn;

/* Below every score, yet finite: exp(NO_MAX - NO_MAX) is 1 where exp(-inf + inf) would be NaN. */
#define NO_MAX -1e30f

/* Keys that each query of a block sees, and the bounds over the block. */
typedef struct {
    int32_t lo[ATTN_Q], hi[ATTN_Q];
    int64_t min_lo, max_lo, min_hi, max_hi;
} Span;

/* What a forward or backward op asks for. */
Attn attn_of_fwd(const AttnFwd *f);
Attn attn_of_bwd(const AttnBwd *b);
Attn attn_of_cross_bwd(const CrossAttnBwd *b);

/* Rows of head h of sequence b: element (t, d) is at p[t * ld + d], with ld_q, or ld_k for keys and values.
 * */
static inline const float *attn_q(const Attn *a, int64_t b, int64_t h)
{
    return a->q + b * a->T * a->ld_q + h * a->D;
}
static inline const float *attn_k(const Attn *a, int64_t b, int64_t g)
{
    return a->k + b * a->S * a->ld_k + g * a->D;
}
static inline const float *attn_v(const Attn *a, int64_t b, int64_t g)
{
    return a->v + b * a->S * a->ld_k + g * a->D;
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

/* Copies n rows x of D floats, ld apart, to n_row rows of attn_pad(D) floats, times scale. The rest of the
 * rows is 0. Rows of qkv are far apart: read in place, they miss L1 on every key (measured: 144 against 171
 * GFLOP/s). */
typedef struct {
    const float *x;
    int64_t      ld, n, n_row, D;
    float        scale;
} AttnRows;
void attn_copy(float *out, const AttnRows *r);

/* out[d][lane] = scale * x[lane][d] for n rows x of D floats, ld apart; lanes from n on are 0. */
void attn_transpose(float *out, const float *x, int64_t ld, int64_t n, int64_t D, float scale);

/* Brings rows that the thread's next item will read or write into L2, a few lines at a time, while this item
 * computes. A head's part of a row is too short for the hardware's prefetcher: waiting for such rows took a
 * third of the time. */
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

/* Rows of the query heads of key/value head g of sequence b, in a tensor [B,T,H*D]; rows of head g, in one
 * [B,S,K*D]. */
void ahead_add_heads(AttnAhead *a, const Attn *t, const float *q, int64_t ld, int64_t b, int64_t g);
void ahead_add_keys(AttnAhead *a, const Attn *t, const float *k, int64_t ld, int64_t b, int64_t g);

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

/* Forward attention that computes its weights block by block. lse may be NULL. */
int    attn_flash_fwd(Dev *dev, const Attn *a, const Tensor *o, const Tensor *lse);
size_t attn_flash_fwd_scratch(int64_t S, int64_t D, int threads);

/* The forms that store their weights (cpu_attn_stored.c): args->p is there. */
int    cpu_attn_stored_fwd(Dev *dev, const AttnFwd *args);
int    cpu_attn_stored_bwd(Dev *dev, const AttnBwd *args);
size_t cpu_attn_stored_fwd_scratch(const AttnFwd *args);
size_t cpu_attn_stored_bwd_scratch(const AttnBwd *args);

size_t cpu_attn_fwd_scratch(const AttnFwd *a, int threads);
size_t cpu_attn_bwd_scratch(const AttnBwd *a, int threads);
size_t cpu_attn_decode_scratch(const AttnDecode *a, int threads);
size_t cpu_cross_attn_fwd_scratch(const CrossAttnFwd *a, int threads);
size_t cpu_cross_attn_bwd_scratch(const CrossAttnBwd *a, int threads);

#endif
