#include "net/encoder.h"

#include "prog/record.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- weights ------------------------------------------------------------------------------------------- */

static void declare_matrix(ParamTable *t, const char *name, int64_t rows, int64_t cols, double std)
{
    Param p = { .ndim   = 2,
                .rows   = rows,
                .cols   = cols,
                .init   = INIT_NORMAL,
                .std    = (float)std,
                .decay  = 1,
                .region = REGION_COPY };
    param_name(p.name, "%s.weight", name);
    param_declare(t, &p);
}

/* gain: how much larger than the input the output begins. */
static void declare_gain(ParamTable *t, const char *name, int64_t rows, int64_t cols, double gain)
{
    Param p = { .ndim = 1, .rows = 1, .cols = rows, .init = INIT_ZERO, .region = REGION_COPY };
    declare_matrix(t, name, rows, cols, gain / sqrt((double)cols));
    param_name(p.name, "%s.bias", name);
    param_declare(t, &p);
}

static void declare_linear(ParamTable *t, const char *name, int64_t rows, int64_t cols)
{
    declare_gain(t, name, rows, cols, 1);
}

static void declare_norm(ParamTable *t, const char *name, int64_t width, int beta, float lr_mul)
{
    Param p = {
        .ndim = 1, .rows = 1, .cols = width, .init = INIT_ONE, .region = REGION_MASTER, .lr_mul = lr_mul
    };
    param_name(p.name, "%s.weight", name);
    param_declare(t, &p);
    if (!beta) return;
    p.init = INIT_ZERO;
    param_name(p.name, "%s.bias", name);
    param_declare(t, &p);
}

/* The last norm's weight is as small as an embedding, about 0.02: a step of the usual size would double it
 * within twenty. */
static const float OUT_LR = 0.02f;

/* A query that begins as a place's position and keys by the same matrix: a head's score of that place is
 * about gain^2 sqrt(head) / sqrt(2), of others noise of gain^2. With 1.2 and heads of 32 two thirds of the
 * attention begin at the place itself, of 64 bytes. */
static const double QUERY_GAIN = 1.2;

static void declare_pool(ParamTable *t, const RecipeEncoder *s, int64_t out)
{
    int64_t d = s->width, a = s->heads * s->head_dim;
    declare_matrix(t, "query", s->latents, d, 0.02);
    declare_norm(t, "norm_q", d, 1, 1);
    declare_gain(t, "q", a, d, QUERY_GAIN);
    declare_linear(t, "kv", 2 * a, d);
    declare_linear(t, "proj", d, a);
    declare_linear(t, "gate", d, d);
    declare_norm(t, "norm", d, 1, 1);
    declare_linear(t, "up", 2 * d, d);
    declare_linear(t, "down", d, 2 * d);
    declare_norm(t, "adapt_norm", d, 1, 1);
    declare_linear(t, "adapt_up", 2 * d, d);
    declare_linear(t, "adapt_down", out, 2 * d);
    declare_norm(t, "out", out, 0, OUT_LR);
}

void encoder_declare(ByteEncoder *e, Store *store, const RecipeEncoder *s, int64_t out,
                     const ParamOptions *opt, int index, int block0)
{
    RecipeModel m = { .layers   = s->layers,
                      .width    = s->width,
                      .heads    = s->heads,
                      .kv_heads = s->heads,
                      .head_dim = s->head_dim,
                      .ffn      = 4 * s->width,
                      .vocab    = 256,
                      .context  = s->bytes,
                      .norm     = NORM_LAYER,
                      .norm_eps = 1e-5,
                      .pos      = POS_LEARNED,
                      .act      = FFN_GELU,
                      .bias     = 1,
                      .tied     = 1,
                      .mask     = MASKING_FULL,
                      .init_std = 0.02 };
    e->shape      = *s;
    e->out        = out;
    net_declare(&e->trunk, store, &m, opt,
                &(NetPlace){ .prefix = "encoder.", .index = index, .block0 = block0 });
    /* Bytes and positions as large as what blocks read. As small as usual (0.02) a few updates of biases
     * would be larger, and every prompt would look the same: a cosine of 0.9999 after 40 steps of
     * latent-tiny. */
    param_find(&e->trunk.table, "embed.weight")->std = 1;
    param_find(&e->trunk.table, "pos.weight")->std   = 1;
    param_table_init(&e->pool, "pool.", (index + 1) * NET_SITES);
    declare_pool(&e->pool, s, out);
    param_layout(&e->pool, store, opt);
}

void encoder_deinit(ByteEncoder *e)
{
    net_deinit(&e->trunk);
    param_table_deinit(&e->pool);
}

void encoder_fill_query_rows(const ByteEncoder *e, int64_t B, int32_t *out)
{
    int64_t M = e->shape.latents;
    for (int64_t i = 0; i < B * M; i++) out[i] = e->shape.tie_queries ? 0 : (int32_t)(i % M);
}

/* ---- recording ----------------------------------------------------------------------------------------- */

typedef struct {
    const ByteEncoder *e;
    Prog              *p;
    DType              type;
} Rec;

static Tensor *weight(const Rec *r, const char *name, const char *part)
{
    char full[PARAM_NAME];
    param_name(full, "%s.%s", name, part);
    Param *p = param_find(&r->e->pool, full);
    return p ? p->w : NULL;
}

static void at(const Rec *r, const char *what)
{
    char label[64];
    snprintf(label, sizeof label, "pool %s", what);
    prog_at(r->p, -1, -1, label);
}

/* Rows of x, width numbers each; the shape of x but for that. */
static Tensor *like(const Rec *r, const char *name, const Tensor *x, int64_t width)
{
    int64_t dim[TENSOR_MAX_DIM];
    memcpy(dim, x->dim, sizeof dim);
    dim[x->ndim - 1] = width;
    return prog_tensor(r->p, name, r->type, x->ndim, dim);
}

static Tensor *linear(const Rec *r, const char *name, Tensor *x)
{
    Tensor *w = weight(r, name, "weight"), *y = like(r, name, x, tensor_rows(w));
    at(r, name);
    rec_linear_fwd(r->p, (LinearFwd){ .y = y, .x = x, .w = w, .bias = weight(r, name, "bias") });
    return y;
}

static Tensor *norm(const Rec *r, const char *name, Tensor *x)
{
    int64_t N    = tensor_rows(x);
    Tensor *beta = weight(r, name, "bias"), *y = like(r, name, x, tensor_cols(x));
    at(r, name);
    rec_norm_fwd(r->p, (NormFwd){ .y     = y,
                                  .mean  = beta ? prog_tensor(r->p, "mean", DT_F32, 1, &N) : NULL,
                                  .rstd  = prog_tensor(r->p, "rstd", DT_F32, 1, &N),
                                  .x     = x,
                                  .gamma = weight(r, name, "weight"),
                                  .beta  = beta,
                                  .eps   = 1e-5f });
    return y;
}

static Tensor *act(const Rec *r, const char *name, Tensor *x, Act kind)
{
    Tensor *y = prog_like(r->p, name, x);
    at(r, name);
    rec_act_fwd(r->p, (ActFwd){ .y = y, .x = x, .act = kind });
    return y;
}

static Tensor *add(const Rec *r, const char *name, Tensor *a, Tensor *b)
{
    Tensor *y = prog_like(r->p, name, a);
    at(r, name);
    rec_add(r->p, (Add){ .y = y, .a = a, .b = b });
    return y;
}

/* What a latent takes from its prompt: attention, let through by a gate. sees: keys on average. */
static Tensor *attend(const Rec *r, Tensor *query, Tensor *kv, Tensor *low, Tensor *high, int sees)
{
    const RecipeEncoder *s      = &r->e->shape;
    int64_t              lse[3] = { 1, s->heads, query->dim[1] };
    AttnShape            shape  = { .heads         = (int)s->heads,
                                    .kv_heads      = (int)s->heads,
                                    .head_dim      = (int)s->head_dim,
                                    .mask          = MASK_RANGE,
                                    .scale         = 1.0f / sqrtf((float)s->head_dim),
                                    .deterministic = r->e->trunk.deterministic,
                                    .mean_keys     = sees };
    Tensor              *q = linear(r, "q", norm(r, "norm_q", query)), *o = prog_like(r->p, "attention", q);
    at(r, "attention");
    rec_cross_attn_fwd(r->p, (CrossAttnFwd){ .o     = o,
                                             .lse   = prog_tensor(r->p, "lse", DT_F32, 3, lse),
                                             .q     = q,
                                             .kv    = kv,
                                             .first = low,
                                             .last  = high,
                                             .shape = shape });
    o         = linear(r, "proj", o);
    Tensor *g = act(r, "sigmoid", linear(r, "gate", o), ACT_SIGMOID), *y = prog_like(r->p, "gated", o);
    at(r, "gated");
    rec_mul(r->p, (Mul){ .y = y, .a = o, .b = g });
    return y;
}

static EncoderOut record_pool(const Rec *r, Tensor *h, const EncoderBatch *b, Tensor *low, Tensor *high)
{
    int64_t dim[3] = { 1, b->B * r->e->shape.latents, r->e->shape.width };
    Tensor *query  = prog_tensor(r->p, "queries", r->type, 3, dim);
    at(r, "queries");
    rec_rows_fwd(r->p, (RowsFwd){ .y = query, .x = weight(r, "query", "weight"), .index = b->query_row });
    Tensor *kv = linear(r, "kv", h);
    Tensor *x  = add(r, "latents", query, attend(r, query, kv, low, high, b->mean_len));
    Tensor *f  = act(r, "gelu", linear(r, "up", norm(r, "norm", x)), ACT_GELU);
    x          = add(r, "pooled", x, linear(r, "down", f));
    f          = act(r, "adapter gelu", linear(r, "adapt_up", norm(r, "adapt_norm", x)), ACT_GELU);
    return (EncoderOut){ .pooled = x, .latents = norm(r, "out", linear(r, "adapt_down", f)) };
}

EncoderOut encoder_record(const ByteEncoder *e, Prog *p, const EncoderBatch *b)
{
    const Net *net = &e->trunk;
    Rec        r   = { .e = e, .p = p, .type = net->compute };
    int64_t    S = e->shape.bytes, R = b->R, M = e->shape.latents, d = e->shape.width, one_r[2] = { 1, R },
            each[2] = { 1, b->B * M }, padded[3] = { b->B, S, d }, packed[3] = { 1, R, d };
    Tensor *index = prog_tensor(p, "index", DT_I32, 1, &R);
    Tensor *first = prog_tensor(p, "first", DT_I32, 2, one_r),
           *last  = prog_tensor(p, "last", DT_I32, 2, one_r);
    Tensor *low = prog_tensor(p, "low", DT_I32, 2, each), *high = prog_tensor(p, "high", DT_I32, 2, each);
    prog_at(p, -1, -1, "encoder pack");
    rec_pack_rows(p, (PackRows){ .index  = index,
                                 .first  = first,
                                 .last   = last,
                                 .low    = low,
                                 .high   = high,
                                 .len    = b->len,
                                 .stride = S,
                                 .align  = b->align,
                                 .n_each = (int)M });
    Tensor *x = prog_tensor(p, "embedding", r.type, 3, padded),
           *y = prog_tensor(p, "rows", r.type, 3, packed);
    prog_at(p, -1, -1, "encoder embedding");
    rec_embed_fwd(p, (EmbedFwd){ .y   = x,
                                 .tok = b->bytes,
                                 .wte = param_find(&net->table, "embed.weight")->w,
                                 .wpe = param_find(&net->table, "pos.weight")->w });
    prog_at(p, -1, -1, "encoder rows");
    rec_rows_fwd(p, (RowsFwd){ .y = y, .x = x, .index = index });
    NetBatch batch = { .B = 1, .T = R, .first = first, .last = last, .mean_keys = b->mean_len };
    NetRun   run   = { .p = p, .batch = &batch, .mode = NET_EVAL };
    return record_pool(&r, net_record_trunk(net, &run, y), b, low, high);
}
