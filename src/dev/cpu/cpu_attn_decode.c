/* Attention of new tokens to the key/value caches. The new tokens are appended to the caches first.
 *
 * One token a sequence: scores, softmax and sum of one query head in one pass each. Several (a prompt): the
 * blocks of forward attention, with queries that stand at key len[b] on. */
#include "dev/cpu/cpu_attn.h"

#include "base/err.h"

#include <omp.h>
#include <string.h>

size_t cpu_attn_decode_scratch(const AttnDecode *a, int threads)
{
    int64_t T_max = a->kcache->dim[1];
    if (tensor_rows(a->qkv) != a->kcache->dim[0]) {
        return attn_flash_fwd_scratch(T_max, a->shape.head_dim, threads);
    }
    return (size_t)threads * (size_t)(T_max + VL) * sizeof(float);
}

static float dot(const float *x, const float *y, int64_t n)
{
    vf s = { 0 };
    for (int64_t i = 0; i < n; i += VL) s += vf_get(x + i, n - i) * vf_get(y + i, n - i);
    return vf_sum(s);
}

/* The sizes, the caches and the lengths. */
typedef struct {
    int64_t        B, T, H, K, D, T_max, row; /* row: floats of a cached position */
    float         *k, *v;
    const int32_t *len;
    int            one_len;
    float          scale;
} Decode;

static Decode decode_init(const AttnDecode *a)
{
    const AttnShape *s = &a->shape;
    Decode           d = { .B = a->kcache->dim[0], .T_max = a->kcache->dim[1] };
    d.H                = s->heads;
    d.K                = s->kv_heads;
    d.D                = s->head_dim;
    d.T                = tensor_rows(a->qkv) / d.B;
    d.row              = d.K * d.D;
    d.k                = cpu_f32(a->kcache);
    d.v                = cpu_f32(a->vcache);
    d.len              = a->len->data;
    d.one_len          = tensor_numel(a->len) == 1;
    d.scale            = s->scale;
    return d;
}

static int64_t decode_len(const Decode *d, int64_t b) { return d->len[d->one_len ? 0 : b]; }

/* Keys and values of the new tokens go to the caches. Returns the greatest length. */
static int64_t append(const Decode *d, Mat qkv)
{
    int64_t most = 0;
    for (int64_t r = 0; r < d->B * d->T; r++) {
        int64_t b = r / d->T, n = decode_len(d, b) + r % d->T;
        CHECK(n >= 0 && n < d->T_max, "cache row %lld of %lld", (long long)n, (long long)d->T_max);
        const float *k = mat_row(qkv, r) + d->H * d->D;
        memcpy(d->k + (b * d->T_max + n) * d->row, k, (size_t)d->row * sizeof(float));
        memcpy(d->v + (b * d->T_max + n) * d->row, k + d->row, (size_t)d->row * sizeof(float));
        most = MAX(most, n);
    }
    return most;
}

/* Several tokens a sequence: causal attention, whose keys and values are the caches. */
static int decode_many(Dev *dev, const Decode *d, const AttnDecode *a, Mat qkv)
{
    Attn f  = { .B = d->B, .T = d->T, .S = d->T_max, .H = d->H, .K = d->K, .D = d->D, .mask = MASK_CAUSAL };
    f.q     = qkv.p;
    f.ld_q  = qkv.ld;
    f.k     = d->k;
    f.v     = d->v;
    f.ld_k  = d->row;
    f.scale = d->scale;
    f.start = d->len;
    f.one_start = d->one_len;
    f.window    = a->shape.window;
    return attn_flash_fwd(dev, &f, a->o, NULL);
}

/* The n cached positions that a query head sees, Decode.row floats apart. */
typedef struct {
    const float *k, *v;
    int64_t      n;
} Cached;

/* One query head: o from q. w: room for n weights. */
static void decode_head(const Decode *dec, const Cached *c, const float *q, float *w, float *o)
{
    float   top = NO_MAX, sum = 0;
    int64_t n = c->n, D = dec->D, row = dec->row;
    for (int64_t t = 0; t < n; t++) {
        w[t] = dot(q, c->k + t * row, D) * dec->scale;
        top  = MAX(top, w[t]);
    }
    for (int64_t t = 0; t < n; t += VL) vf_put(w + t, n - t, vf_exp(vf_get(w + t, n - t) - top));
    for (int64_t t = 0; t < n; t++) sum += w[t];
    for (int64_t d = 0; d < D; d += VL) {
        vf acc = { 0 };
        for (int64_t t = 0; t < n; t++) acc += vf_get(c->v + t * row + d, D - d) * w[t];
        vf_put(o + d, D - d, acc / sum);
    }
}

int cpu_attn_decode(Dev *dev, const AttnDecode *a)
{
    Decode  d   = decode_init(a);
    Mat     qkv = cpu_mat(a->qkv), o = cpu_mat(a->o);
    int     threads = cpu_threads(dev);
    int64_t most    = append(&d, qkv);
    if (d.T > 1) return decode_many(dev, &d, a, qkv);
    float *scratch = cpu_scratch(dev, cpu_attn_decode_scratch(a, threads));
    if (!scratch) return -1;
#pragma omp parallel for num_threads(threads) schedule(static) if (d.B * d.H * d.D * most >= CPU_PARALLEL_MIN)
    for (int64_t i = 0; i < d.B * d.H; i++) {
        int64_t b = i / d.H, h = i % d.H, at = b * d.T_max * d.row + h / (d.H / d.K) * d.D;
        float  *w = scratch + omp_get_thread_num() * (d.T_max + VL);
        int64_t n = decode_len(&d, b) + 1, lo = a->shape.window > 0 ? MAX(n - a->shape.window, 0) : 0;
        at += lo * d.row;
        Cached c = { d.k + at, d.v + at, n - lo };
        decode_head(&d, &c, mat_row(qkv, b) + h * d.D, w, mat_row(o, b) + h * d.D);
    }
    return 0;
}
