#include "net/net.h"

#include "base/err.h"
#include "net/rope.h"
#include "prog/record.h"

#include <math.h>
#include <string.h>

int64_t net_vocab_stored(const RecipeModel *m) { return round_up(m->vocab, VOCAB_ALIGN); }

/* ---- the parameter table ------------------------------------------------------------------------------- */

static void declare_matrix(Net *net, const char *name, int64_t rows, int64_t cols, double std)
{
    Param p = { .ndim   = 2,
                .rows   = rows,
                .cols   = cols,
                .init   = INIT_NORMAL,
                .std    = (float)std,
                .decay  = 1,
                .narrow = strcmp(name, "pos") != 0,
                .region = REGION_COPY };
    param_name(p.name, "%s.weight", name);
    param_declare(&net->table, &p);
}

/* The matrix NAME is a hidden one, of a, b and c rows stacked (0: none). */
static void set_stack(Net *net, const char *name, int64_t a, int64_t b, int64_t c)
{
    char full[PARAM_NAME];
    param_name(full, "%s.weight", name);
    Param *p    = param_find(&net->table, full);
    p->stack[0] = a;
    p->stack[1] = b;
    p->stack[2] = c;
}

void net_declare_linear(Net *net, const char *name, int64_t rows, int64_t cols, double std, int bias)
{
    declare_matrix(net, name, rows, cols, std);
    if (!bias) return;
    Param p = { .ndim = 1, .rows = 1, .cols = rows, .init = INIT_ZERO, .region = REGION_COPY };
    param_name(p.name, "%s.bias", name);
    param_declare(&net->table, &p);
}

void net_declare_norm(Net *net, const char *name, int64_t width, int beta)
{
    Param p = { .ndim = 1, .rows = 1, .cols = width, .init = INIT_ONE, .region = REGION_MASTER };
    param_name(p.name, "%s.weight", name);
    param_declare(&net->table, &p);
    if (!beta) return;
    p.init = INIT_ZERO;
    param_name(p.name, "%s.bias", name);
    param_declare(&net->table, &p);
}

static void declare_vocab(Net *net, const char *name, double std, int narrow)
{
    const RecipeModel *m = &net->model;
    Param              p = { .ndim        = 2,
                             .rows        = m->vocab,
                             .cols        = m->width,
                             .rows_stored = net_vocab_stored(m),
                             .init        = INIT_NORMAL,
                             .std         = (float)std,
                             .decay       = 1,
                             .narrow      = narrow,
                             .region      = REGION_COPY };
    param_name(p.name, "%s.weight", name);
    param_declare(&net->table, &p);
}

/* Factors of a branch's channels, one for all rows. */
static void declare_scale(Net *net, const char *name)
{
    const RecipeModel *m = &net->model;
    if (m->layer_scale <= 0) return;
    Param p = { .ndim   = 1,
                .rows   = 1,
                .cols   = m->width,
                .init   = INIT_CONSTANT,
                .std    = (float)m->layer_scale,
                .region = REGION_MASTER };
    param_name(p.name, "%s.weight", name);
    param_declare(&net->table, &p);
}

static void declare_block(Net *net, int l)
{
    const RecipeModel *m = &net->model;
    char               name[PARAM_NAME];
    double             std = m->init_std, std_res = m->init_std / sqrt(2.0 * (double)m->layers);
    int64_t            q = m->heads * m->head_dim, kv = m->kv_heads * m->head_dim;
    int                beta = m->norm == NORM_LAYER;
#define NAME(part) (param_name(name, "block.%d.%s", l, part), name)
    net_declare_norm(net, NAME("norm1"), m->width, beta);
    net_declare_linear(net, NAME("qkv"), q + 2 * kv, m->width, std, m->bias || m->qkv_bias);
    set_stack(net, NAME("qkv"), q, kv, kv);
    if (m->qk_norm) {
        net_declare_norm(net, NAME("q_norm"), m->head_dim, 0);
        net_declare_norm(net, NAME("k_norm"), m->head_dim, 0);
    }
    net_declare_linear(net, NAME("proj"), m->width, q, std_res, m->bias);
    set_stack(net, NAME("proj"), m->width, 0, 0);
    declare_scale(net, NAME("scale1"));
    net_declare_norm(net, NAME("norm2"), m->width, beta);
    net_declare_linear(net, NAME("up"), m->act == FFN_SWIGLU ? 2 * m->ffn : m->ffn, m->width, std, m->bias);
    set_stack(net, NAME("up"), m->ffn, m->act == FFN_SWIGLU ? m->ffn : 0, 0);
    net_declare_linear(net, NAME("down"), m->width, m->ffn, std_res, m->bias);
    set_stack(net, NAME("down"), m->width, 0, 0);
    declare_scale(net, NAME("scale2"));
#undef NAME
}

void net_declare_blocks(Net *net)
{
    for (int l = 0; l < net->model.layers; l++) declare_block(net, l);
}

/* Views of the last rows of each qkv, with their gradients. */
static void declare_values(Net *net, Store *store)
{
    const RecipeModel *m  = &net->model;
    int64_t            kv = m->kv_heads * m->head_dim, dim[2] = { kv, m->width };
    net->value_w = ARENA_ARRAY(&store->arena, Tensor *, m->layers);
    for (int l = 0; l < m->layers; l++) {
        char name[PARAM_NAME];
        param_name(name, "block.%d.qkv.weight", l);
        const Param *p  = param_find(&net->table, name);
        int64_t      at = p->offset + (p->rows - kv) * p->cols;
        net->value_w[l] = store_view(store, p->w->root, "values", at, 2, dim);
        if (p->col[COL_GRAD])
            store_set_grad(store, net->value_w[l],
                           store_view(store, p->col[COL_GRAD]->root, "values.grad", at, 2, dim));
    }
}

void net_begin(Net *net, const RecipeModel *m, const ParamOptions *opt, const NetPlace *place)
{
    memset(net, 0, sizeof *net);
    net->model   = *m;
    net->compute = opt->compute;
    net->block0  = place->block0;
    net->site0   = place->index * NET_SITES;
    param_table_init(&net->table, place->prefix ? place->prefix : "", net->site0);
    net->is_bare = place->bare;
}

void net_declare(Net *net, Store *store, const RecipeModel *m, const ParamOptions *opt, const NetPlace *place)
{
    net_begin(net, m, opt, place);
    if (!place->bare) declare_vocab(net, "embed", m->init_std, m->tied && opt->fp8_head);
    if (m->pos == POS_LEARNED) declare_matrix(net, "pos", m->context, m->width, m->init_std);
    net_declare_blocks(net);
    net_declare_norm(net, "norm", m->width, m->norm == NORM_LAYER);
    if (!m->tied && !place->bare) declare_vocab(net, "head", m->init_std, opt->fp8_head);
    param_layout(&net->table, store, opt);
    if (place->bare && m->context == 1) declare_values(net, store);
    if (m->pos == POS_ROPE) {
        int64_t dim[2]  = { MAX(place->positions, m->context), m->head_dim };
        net->rope_table = store_tensor(store, SLAB_STATE, "rope table", DT_F32, 2, dim);
    }
}

void net_deinit(Net *net) { param_table_deinit(&net->table); }

void net_fill_rope(const Net *net, float *out) { rope_table(&net->model, net->rope_table->dim[0], out); }

void net_declare_caches(const Net *net, Store *store, NetDecode *d, int64_t B, int64_t rows)
{
    const RecipeModel *m     = &net->model;
    int64_t            kv[4] = { B, rows, m->kv_heads, m->head_dim };
    d->kcache                = ARENA_ARRAY(&store->arena, Tensor *, m->layers);
    d->vcache                = ARENA_ARRAY(&store->arena, Tensor *, m->layers);
    for (int l = 0; l < m->layers; l++) {
        d->kcache[l] = store_tensor(store, SLAB_KV, "k cache", net->compute, 4, kv);
        d->vcache[l] = store_tensor(store, SLAB_KV, "v cache", net->compute, 4, kv);
    }
}

void net_declare_window(const Net *net, Store *store, NetBatch *batch)
{
    int64_t dim[2] = { batch->B, batch->T };
    if (net->model.window == 0 || net->model.window >= batch->T) return;
    batch->first = store_tensor(store, SLAB_STATE, "first key", DT_I32, 2, dim);
    batch->last  = store_tensor(store, SLAB_STATE, "last key", DT_I32, 2, dim);
}

void net_fill_window(const Net *net, const NetBatch *batch, int32_t *first, int32_t *last)
{
    for (int64_t i = 0; i < batch->B * batch->T; i++) {
        int64_t t = i % batch->T;
        first[i]  = (int32_t)MAX(t + 1 - net->model.window, 0);
        last[i]   = (int32_t)t;
    }
}

void net_declare_decode(const Net *net, Store *store, NetDecode *d, int64_t B, int64_t S)
{
    const RecipeModel *m      = &net->model;
    int64_t            tok[2] = { B, 1 }, logits[2] = { B, net_vocab_stored(m) };

    d->B      = B;
    d->T      = 1;
    d->tok    = store_tensor(store, SLAB_IO, "decode token", DT_I32, 2, tok);
    d->pos    = store_tensor(store, SLAB_IO, "decode position", DT_I32, 1, &B);
    d->last   = NULL;
    d->logits = store_tensor(store, SLAB_IO, "decode logits", DT_F32, 2, logits);
    net_declare_caches(net, store, d, B, S);
}

void net_declare_prefill(const Net *net, Store *store, const NetDecode *d, NetDecode *out, int64_t T, int all)
{
    int64_t tok[2] = { d->B, T }, logits[2] = { d->B * T, net_vocab_stored(&net->model) };
    *out      = *d;
    out->T    = T;
    out->tok  = store_tensor(store, SLAB_IO, "prompt tokens", DT_I32, 2, tok);
    out->pos  = store_tensor(store, SLAB_IO, "prompt positions", DT_I32, 1, &d->B);
    out->last = all ? NULL : store_tensor(store, SLAB_IO, "last rows", DT_I32, 1, &d->B);
    if (all) out->logits = store_tensor(store, SLAB_IO, "all logits", DT_F32, 2, logits);
}
