/* The transformer, recorded. Read top to bottom: stem, block, head; decoding at the end.
 *
 * Shapes: x [B,T,C] residual stream; qkv [B,T,(H+2K)*D] packed [q heads | k heads | v heads]. */
#include "net/net.h"

#include "base/err.h"
#include "prog/record.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct {
    const Net       *net;
    Prog            *p;
    const NetBatch  *batch;  /* NULL while decoding */
    const NetDecode *decode; /* NULL while training */
    Tensor          *state;
    NetMode          mode;
    int64_t          B, T;
    int              block;
} Rec;

static void at(const Rec *r, int chunk, const char *what)
{
    char        label[64];
    const char *net = r->net->table.prefix, *space = net[0] ? " " : "";
    int         n = MAX((int)strlen(net) - 1, 0); /* without the dot */
    if (r->block >= 0) {
        snprintf(label, sizeof label, "block %d %.*s%s%s", r->block, n, net, space, what);
    } else {
        snprintf(label, sizeof label, "%.*s%s%s", n, net, space, what);
    }
    prog_at(r->p, r->block >= 0 ? r->net->block0 + r->block : -1, chunk, label);
}

/* The weight "NAME.weight" / "NAME.bias" of this block (or outside blocks); NULL when the model has none. */
static Tensor *weight(const Rec *r, const char *name)
{
    char full[PARAM_NAME];
    if (r->block >= 0) {
        param_name(full, "block.%d.%s", r->block, name);
    } else {
        param_name(full, "%s", name);
    }
    Param *p = param_find(&r->net->table, full);
    return p ? p->w : NULL;
}

static Tensor *act(const Rec *r, const char *name, int64_t width)
{
    int64_t dim[3] = { r->B, r->T, width };
    return prog_tensor(r->p, name, r->net->compute, 3, dim);
}

static Tensor *rec_norm(const Rec *r, const char *name, Tensor *x)
{
    char    full[PARAM_NAME];
    int64_t N = r->B * r->T;
    Tensor *y = act(r, name, tensor_cols(x)), *rstd = prog_tensor(r->p, "rstd", DT_F32, 1, &N);
    Tensor *mean = r->net->model.norm == NORM_LAYER ? prog_tensor(r->p, "mean", DT_F32, 1, &N) : NULL;
    at(r, -1, name);
    param_name(full, "%s.weight", name);
    Tensor *gamma = weight(r, full);
    param_name(full, "%s.bias", name);
    rec_norm_fwd(r->p, (NormFwd){ .y     = y,
                                  .mean  = mean,
                                  .rstd  = rstd,
                                  .x     = x,
                                  .gamma = gamma,
                                  .beta  = weight(r, full),
                                  .eps   = (float)r->net->model.norm_eps });
    return y;
}

static Tensor *rec_linear(const Rec *r, const char *name, Tensor *x)
{
    char full[PARAM_NAME];
    param_name(full, "%s.bias", name);
    Tensor *bias = weight(r, full);
    param_name(full, "%s.weight", name);
    Tensor *w = weight(r, full), *y = act(r, name, tensor_rows(w));
    at(r, -1, name);
    rec_linear_fwd(r->p, (LinearFwd){ .y = y, .x = x, .w = w, .bias = bias });
    return y;
}

static Tensor *rec_drop(const Rec *r, int part, Tensor *x)
{
    if (r->net->model.dropout <= 0 || r->mode != NET_TRAIN || r->decode) return x;
    Tensor *y = prog_like(r->p, "dropout", x);
    at(r, -1, "dropout");
    /* Sites are fixed by place in the model, not by recording order, so recomputation and lowering cannot
     * shift them. */
    rec_dropout(r->p, (Dropout){ .y               = y,
                                 .x               = x,
                                 .state           = r->state,
                                 .sample0         = r->batch->sample0,
                                 .p               = (float)r->net->model.dropout,
                                 .site            = r->net->site0 + 1000 + 8 * (r->block + 1) + part,
                                 .rows_per_sample = r->T });
    return y;
}

/* Drop path: whole samples pass over a branch, more often in later blocks. */
static Tensor *rec_drop_path(const Rec *r, int part, Tensor *x)
{
    const RecipeModel *m = &r->net->model;
    double             p = m->layers > 1 ? m->drop_path * r->block / (double)(m->layers - 1) : m->drop_path;
    if (p <= 0 || r->mode != NET_TRAIN || r->decode) return x;
    Tensor *y = prog_like(r->p, "drop path", x);
    at(r, -1, "drop path");
    rec_dropout(r->p, (Dropout){ .y               = y,
                                 .x               = x,
                                 .state           = r->state,
                                 .sample0         = r->batch->sample0,
                                 .p               = (float)p,
                                 .site            = r->net->site0 + 1000 + 8 * (r->block + 1) + 3 + part,
                                 .rows_per_sample = r->T,
                                 .per_sample      = 1 });
    return y;
}

/* What happens to a branch before its residual add. */
static Tensor *rec_branch(const Rec *r, int part, Tensor *h)
{
    h = rec_drop(r, part, h);
    if (r->net->model.layer_scale > 0) {
        Tensor *y = prog_like(r->p, "layer scale", h);
        at(r, -1, "layer scale");
        rec_scale(r->p,
                  (Scale){ .y = y, .x = h, .gamma = weight(r, part ? "scale2.weight" : "scale1.weight") });
        h = y;
    }
    return rec_drop_path(r, part, h);
}

static Tensor *rec_residual(const Rec *r, const char *name, Tensor *x, Tensor *branch)
{
    Tensor *y = prog_like(r->p, name, x);
    at(r, -1, name);
    rec_add(r->p, (Add){ .y = y, .a = x, .b = branch });
    return y;
}

static Tensor *rec_positions(const Rec *r, Tensor *qkv)
{
    const RecipeModel *m = &r->net->model;
    if (m->qk_norm) {
        int64_t dim[2] = { r->B * r->T, m->heads + m->kv_heads };
        Tensor *y = prog_like(r->p, "qk norm", qkv), *rstd = prog_tensor(r->p, "qk rstd", DT_F32, 2, dim);
        at(r, -1, "qk norm");
        rec_qknorm_fwd(r->p, (QkNormFwd){ .y        = y,
                                          .rstd     = rstd,
                                          .x        = qkv,
                                          .gq       = weight(r, "q_norm.weight"),
                                          .gk       = weight(r, "k_norm.weight"),
                                          .heads    = (int)m->heads,
                                          .kv_heads = (int)m->kv_heads,
                                          .head_dim = (int)m->head_dim,
                                          .eps      = (float)m->norm_eps });
        qkv = y;
    }
    if (m->pos == POS_ROPE) {
        Tensor *y = prog_like(r->p, "rope", qkv);
        at(r, -1, "rope");
        rec_rope(r->p, (Rope){ .y        = y,
                               .x        = qkv,
                               .table    = r->net->rope_table,
                               .pos0     = r->decode ? r->decode->pos : NULL,
                               .n_head   = (int)(m->heads + m->kv_heads),
                               .head_dim = (int)m->head_dim });
        qkv = y;
    }
    return qkv;
}

static Tensor *rec_attention(const Rec *r, Tensor *qkv)
{
    static const Mask  mask_of[] = { [MASKING_CAUSAL]   = MASK_CAUSAL,
                                     [MASKING_FULL]     = MASK_FULL,
                                     [MASKING_PREFIX]   = MASK_PREFIX,
                                     [MASKING_DOCUMENT] = MASK_DOCUMENT };
    const RecipeModel *m         = &r->net->model;
    Tensor            *o         = act(r, "attention", m->heads * m->head_dim);
    AttnShape          shape     = { .heads         = (int)m->heads,
                                     .kv_heads      = (int)m->kv_heads,
                                     .head_dim      = (int)m->head_dim,
                                     .mask          = mask_of[m->mask],
                                     .scale         = 1.0f / sqrtf((float)m->head_dim),
                                     .deterministic = r->net->deterministic,
                                     .window        = (int)m->window };
    at(r, -1, "attention");
    if (r->decode) {
        /* Decoding is causal whatever the mask: the code that feeds the tokens empties the cache where a
         * document begins (task/lm_sample.c). */
        rec_attn_decode(r->p, (AttnDecode){ .o      = o,
                                            .kcache = r->decode->kcache[r->block],
                                            .vcache = r->decode->vcache[r->block],
                                            .qkv    = qkv,
                                            .len    = r->decode->pos,
                                            .shape  = shape });
        return o;
    }
    if (r->batch->first) {
        shape.mask      = MASK_RANGE;
        shape.mean_keys = r->batch->mean_keys;
        if (!shape.mean_keys) shape.mean_keys = (int)(m->window - m->window * (m->window - 1) / (2 * r->T));
    }
    int64_t dim[4] = { r->B, m->heads, r->T, r->T };
    Tensor *lse    = prog_tensor(r->p, "lse", DT_F32, 3, dim);
    Tensor *p      = r->net->stored_attn ? prog_tensor(r->p, "weights", r->net->compute, 4, dim) : NULL;
    rec_attn_fwd(r->p, (AttnFwd){ .o      = o,
                                  .lse    = lse,
                                  .p      = p,
                                  .qkv    = qkv,
                                  .doc    = r->batch->doc,
                                  .prefix = r->batch->prefix,
                                  .first  = r->batch->first,
                                  .last   = r->batch->last,
                                  .shape  = shape });
    return o;
}

static Tensor *rec_activation(const Rec *r, Tensor *u)
{
    const RecipeModel *m = &r->net->model;
    Tensor            *a = act(r, "activation", m->ffn);
    at(r, -1, "activation");
    if (m->act == FFN_SWIGLU) {
        rec_glu_fwd(r->p, (GluFwd){ .y = a, .x = u, .act = ACT_SILU });
    } else {
        Act act_of = m->act == FFN_GELU ? ACT_GELU : m->act == FFN_GELU_ERF ? ACT_GELU_ERF : ACT_RELU2;
        rec_act_fwd(r->p, (ActFwd){ .y = a, .x = u, .act = act_of });
    }
    return a;
}

/* One key a query: attention is the value. */
static Tensor *rec_value(const Rec *r, Tensor *x)
{
    Tensor *w = r->net->value_w[r->block], *y = act(r, "value", tensor_rows(w));
    at(r, -1, "value");
    rec_linear_fwd(r->p, (LinearFwd){ .y = y, .x = x, .w = w });
    return y;
}

static Tensor *rec_read(const Rec *r, const char *name, Tensor *x)
{
    Tensor *y = act(r, name, tensor_cols(x));
    at(r, -1, name);
    rec_rows_fwd(r->p, (RowsFwd){ .y = y, .x = x, .index = r->batch->read });
    return y;
}

/* Behind the last attention a row is on its own: those that nobody reads end here. */
static void rec_leave(Rec *r, Tensor **x, Tensor **h)
{
    CHECK(r->mode == NET_EVAL && !r->decode, "rows are left out of a net that trains or decodes");
    r->B = 1;
    r->T = r->batch->read->dim[0];
    *x   = rec_read(r, "read rows", *x);
    *h   = rec_read(r, "read attention", *h);
}

static Tensor *rec_block(Rec *r, int l, Tensor *x)
{
    r->block  = l;
    Tensor *h = rec_norm(r, "norm1", x);
    h = r->net->value_w ? rec_value(r, h) : rec_attention(r, rec_positions(r, rec_linear(r, "qkv", h)));
    if (l == r->net->model.layers - 1 && r->batch && r->batch->read) rec_leave(r, &x, &h);
    h        = rec_linear(r, "proj", h);
    x        = rec_residual(r, "residual 1", x, rec_branch(r, 0, h));
    h        = rec_norm(r, "norm2", x);
    h        = rec_activation(r, rec_linear(r, "up", h));
    h        = rec_linear(r, "down", h);
    x        = rec_residual(r, "residual 2", x, rec_branch(r, 1, h));
    r->block = -1;
    return x;
}

static Tensor *rec_trunk(Rec *r, Tensor *x)
{
    for (int l = 0; l < r->net->model.layers; l++) x = rec_block(r, l, x);
    return rec_norm(r, "norm", x);
}

static Tensor *rec_stem(const Rec *r)
{
    Tensor *x = act(r, "embedding", r->net->model.width);
    at(r, -1, "embedding");
    rec_embed_fwd(r->p, (EmbedFwd){ .y    = x,
                                    .tok  = r->decode ? r->decode->tok : r->batch->tok,
                                    .wte  = weight(r, "embed.weight"),
                                    .wpe  = weight(r, "pos.weight"),
                                    .pos0 = r->decode ? r->decode->pos : NULL });
    return rec_drop(r, 2, x);
}

/* The head in chunks of rows: the logits of one chunk at a time (prog_hoist_chunks). */
static void rec_head(const Rec *r, Tensor *h, int64_t head_rows)
{
    const RecipeModel *m = &r->net->model;
    Tensor            *w = weight(r, m->tied ? "embed.weight" : "head.weight");
    int64_t            N = r->B * r->T, n_chunk = (N + head_rows - 1) / head_rows;
    int64_t            n1[2] = { N, 1 };
    Tensor            *loss  = prog_tensor(r->p, "loss", DT_F32, 2, n1);
    for (int64_t c = 0; c < n_chunk; c++) {
        int64_t row0 = c * head_rows, n = MIN(head_rows, N - row0), dim[2] = { n, tensor_rows(w) };
        Tensor *logits = prog_tensor(r->p, "logits", r->net->compute, 2, dim);
        Tensor *lse    = prog_tensor(r->p, "lse", DT_F32, 1, &n);
        at(r, (int)c, "head");
        rec_linear_fwd(r->p, (LinearFwd){ .y = logits, .x = prog_rows(r->p, h, row0, n), .w = w });
        at(r, (int)c, "loss");
        rec_xent_fwd(r->p, (XentFwd){ .loss    = prog_rows(r->p, loss, row0, n),
                                      .lse     = lse,
                                      .logits  = logits,
                                      .target  = prog_rows(r->p, r->batch->target, row0, n),
                                      .n_class = m->vocab });
    }
    at(r, -1, "loss sum");
    rec_loss_add(r->p, (LossAdd){ .state = r->state, .loss = loss });
}

void net_record(const Net *net, Prog *p, const NetBatch *batch, Tensor *state, NetMode mode,
                int64_t head_rows)
{
    Rec r = { .net   = net,
              .p     = p,
              .batch = batch,
              .state = state,
              .mode  = mode,
              .B     = batch->B,
              .T     = batch->T,
              .block = -1 };
    rec_head(&r, rec_trunk(&r, rec_stem(&r)), head_rows);
}

Tensor *net_head_weight(const Net *net)
{
    return weight(&(Rec){ .net = net, .block = -1 }, net->model.tied ? "embed.weight" : "head.weight");
}

static Rec rec_of(const Net *net, const NetRun *run)
{
    return (Rec){ .net    = net,
                  .p      = run->p,
                  .batch  = run->batch,
                  .decode = run->decode,
                  .state  = run->state,
                  .mode   = run->mode,
                  .B      = run->batch->B,
                  .T      = run->batch->T,
                  .block  = -1 };
}

Tensor *net_record_blocks(const Net *net, const NetRun *run, Tensor *x)
{
    Rec r = rec_of(net, run);
    for (int l = 0; l < net->model.layers; l++) x = rec_block(&r, l, x);
    return x;
}

Tensor *net_record_norm(const Net *net, const NetRun *run, const char *name, Tensor *x)
{
    Rec r = rec_of(net, run);
    r.T   = tensor_rows(x) / r.B;
    return rec_norm(&r, name, x);
}

Tensor *net_record_trunk(const Net *net, const NetRun *run, Tensor *x)
{
    Rec r = rec_of(net, run);
    return rec_trunk(&r, x);
}

void net_record_decode(const Net *net, Prog *p, const NetDecode *d)
{
    Rec     r = { .net = net, .p = p, .decode = d, .mode = NET_EVAL, .B = d->B, .T = d->T, .block = -1 };
    Tensor *x = rec_stem(&r);
    for (int l = 0; l < net->model.layers; l++) x = rec_block(&r, l, x);
    if (d->last) {
        int64_t dim[2] = { d->B, net->model.width };
        Tensor *few    = prog_tensor(p, "last rows", net->compute, 2, dim);
        at(&r, -1, "last rows");
        rec_rows_fwd(p, (RowsFwd){ .y = few, .x = x, .index = d->last });
        x   = few;
        r.T = 1;
    }
    x         = rec_norm(&r, "norm", x);
    Tensor *w = net_head_weight(net);
    Tensor *y = act(&r, "logits", tensor_rows(w));
    at(&r, -1, "head");
    rec_linear_fwd(p, (LinearFwd){ .y = y, .x = x, .w = w });
    rec_cast(p, (Cast){ .y = d->logits, .x = y });
}
