#include "net/answer.h"

#include "base/err.h"
#include "base/mem.h"
#include "dev/cpu/cpu_vec.h"
#include "tensor/number.h"

#include <stdlib.h>
#include <string.h>

enum { PAD = 16 /* floats: rows begin on a line of the cache */ };

typedef struct {
    int64_t      in, out, width; /* width: out, padded */
    const Param *w, *b;
    float       *rows, *bias; /* in the block: in rows of width numbers */
    uint32_t    *pairs;       /* instead of rows, in bf16: inputs 2k and 2k+1 of one output are one word */
    int          is_head;
    int          is_first; /* reads the observation */
    Act          act;
} Layer;

struct Answer {
    Layer  *layer;
    int     n_layer;
    int     is_bf16;
    int64_t widest;
    float  *block;
};

/* Words of the block that a layer takes. */
static int64_t layer_words(const Answer *a, const Layer *l)
{
    return (1 + (a->is_bf16 ? (l->in + 1) / 2 : l->in)) * l->width;
}

static const Param *find(const ParamTable *t, const char *name, const char *part)
{
    char full[PARAM_NAME];
    param_name(full, "%s.%s", name, part);
    const Param *p = param_find(t, full);
    CHECK(p, "no weight %s", full);
    return p;
}

static void add_layer(Answer *a, const ParamTable *t, const char *name, Layer like)
{
    Layer *l  = &a->layer[a->n_layer++];
    *l        = like;
    l->w      = find(t, name, "weight");
    l->b      = find(t, name, "bias");
    l->in     = l->w->cols;
    l->out    = l->w->rows;
    l->width  = round_up(l->out, PAD);
    a->widest = MAX(a->widest, MAX(l->width, round_up(l->in, PAD)));
}

static void add_layers(Answer *a, const ParamTable *t, const AnswerNet *net, int n_net)
{
    for (int k = 0; k < n_net; k++) {
        for (int l = 0; l < net[k].body.layers; l++) {
            char name[PARAM_NAME];
            param_name(name, "%s.%d", net[k].body.name, l);
            add_layer(a, t, name, (Layer){ .is_first = l == 0, .act = net[k].body.act });
        }
        for (int h = 0; h < net[k].n_head; h++) add_layer(a, t, net[k].head[h], (Layer){ .is_head = 1 });
    }
}

/* The block, and where each layer lies in it. */
static int take_block(Answer *a)
{
    int64_t n = 0;
    for (int i = 0; i < a->n_layer; i++) n += layer_words(a, &a->layer[i]);
    a->block = aligned_alloc(64, (size_t)n * sizeof(float));
    if (!a->block) return -1;
    memset(a->block, 0, (size_t)n * sizeof(float));
    float *at = a->block;
    for (int i = 0; i < a->n_layer; i++) {
        a->layer[i].bias  = at;
        a->layer[i].rows  = at + a->layer[i].width;
        a->layer[i].pairs = (uint32_t *)a->layer[i].rows;
        at += layer_words(a, &a->layer[i]);
    }
    return 0;
}

Answer *answer_create(const ParamTable *t, const AnswerNet *net, int n_net, int is_bf16)
{
    Answer *a = mem_zeroed(1, sizeof *a);
    int     n = 0;
    for (int k = 0; k < n_net; k++) n += net[k].body.layers + net[k].n_head;
    if (a) a->layer = mem_zeroed((size_t)n, sizeof *a->layer);
    if (a && a->layer) {
        a->is_bf16 = is_bf16;
        add_layers(a, t, net, n_net);
        if (take_block(a) == 0) return a;
    }
    err_sys("memory for a policy");
    answer_destroy(a);
    return NULL;
}

void answer_destroy(Answer *a)
{
    if (!a) return;
    free(a->block);
    free(a->layer);
    free(a);
}

static uint32_t pair_of(const float *w, int64_t k, int64_t n)
{
    uint32_t low = bf16_from_f32(w[k]), high = k + 1 < n ? bf16_from_f32(w[k + 1]) : 0;
    return low | high << 16;
}

void answer_load(Answer *a, const float *const flat[REGION_COUNT])
{
    for (int i = 0; i < a->n_layer; i++) {
        Layer       *l = &a->layer[i];
        const float *w = flat[l->w->region] + l->w->offset, *b = flat[l->b->region] + l->b->offset;
        for (int64_t o = 0; o < l->out; o++) {
            l->bias[o] = b[o];
            for (int64_t k = 0; k < l->in && a->is_bf16; k += 2)
                l->pairs[k / 2 * l->width + o] = pair_of(w + o * l->in, k, l->in);
            for (int64_t k = 0; k < l->in && !a->is_bf16; k++) l->rows[k * l->width + o] = w[o * l->in + k];
        }
    }
}

size_t answer_scratch_bytes(const Answer *a) { return 2 * (size_t)a->widest * sizeof(float) + 64; }

/* y = bias + sum over k of x[k] * row k. Four inputs at a time: y is read and written a quarter as often. */
static void layer_product(const Layer *l, const float *x, float *y)
{
    int64_t n = l->width, k = 0;
    memcpy(y, l->bias, (size_t)n * sizeof *y);
    for (; k + 4 <= l->in; k += 4) {
        const float *r  = l->rows + k * n;
        vf           x0 = vf_set(x[k]), x1 = vf_set(x[k + 1]), x2 = vf_set(x[k + 2]), x3 = vf_set(x[k + 3]);
        for (int64_t o = 0; o < n; o += VL) {
            vf s = vf_load(y + o);
            s += x0 * vf_load(r + o);
            s += x1 * vf_load(r + n + o);
            s += x2 * vf_load(r + 2 * n + o);
            s += x3 * vf_load(r + 3 * n + o);
            vf_store(y + o, s);
        }
    }
    for (; k < l->in; k++) {
        vf x0 = vf_set(x[k]);
        for (int64_t o = 0; o < n; o += VL)
            vf_store(y + o, vf_load(y + o) + x0 * vf_load(l->rows + k * n + o));
    }
}

/* The same from pairs: a word's lower half is moved up, its upper half is a float already. */
static void layer_product_bf16(const Layer *l, const float *x, float *y)
{
    int64_t n = l->width;
    memcpy(y, l->bias, (size_t)n * sizeof *y);
    for (int64_t k = 0; k < l->in; k += 4) {
        const uint32_t *r = l->pairs + k / 2 * n, *q = k + 2 < l->in ? r + n : r;
        vf              in[4];
        for (int i = 0; i < 4; i++) in[i] = vf_set(k + i < l->in ? x[k + i] : 0);
        for (int64_t o = 0; o < n; o += VL) {
            vu a = (vu)vi_load((const int32_t *)r + o), b = (vu)vi_load((const int32_t *)q + o);
            vf s = vf_load(y + o);
            s += in[0] * (vf)(a << 16);
            s += in[1] * (vf)(a & 0xffff0000u);
            s += in[2] * (vf)(b << 16);
            s += in[3] * (vf)(b & 0xffff0000u);
            vf_store(y + o, s);
        }
    }
}

static void layer_act(const Layer *l, float *y)
{
    for (int64_t o = 0; o < l->width; o += VL) {
        vf x = vf_load(y + o);
        switch (l->act) {
        case ACT_TANH: x = vf_tanh(x); break;
        case ACT_RELU: x = vf_max(x, vf_set(0)); break;
        case ACT_SILU: x = x * vf_sigmoid(x); break;
        default: {
            vf u = x * (vf_set(0.7978845608f) + vf_set(0.0356774081f) * x * x);
            x    = x * vf_sigmoid(u + u);
        }
        }
        vf_store(y + o, x);
    }
}

void answer_one(const Answer *a, const float *obs, float *const *out, void *scratch)
{
    float       *own[2] = { (float *)(((uintptr_t)scratch + 63) & ~(uintptr_t)63) };
    const float *h      = obs; /* of the body so far */
    int          at = 0, head = 0;
    own[1] = own[0] + a->widest;
    for (int i = 0; i < a->n_layer; i++) {
        const Layer *l = &a->layer[i];
        if (l->is_first) h = obs;
        float *y = own[at];
        if (a->is_bf16)
            layer_product_bf16(l, h, y);
        else
            layer_product(l, h, y);
        if (l->is_head) {
            memcpy(out[head++], y, (size_t)l->out * sizeof *y);
            continue;
        }
        layer_act(l, y);
        h  = y;
        at = 1 - at;
    }
}
