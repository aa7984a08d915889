/* Shape and dtype rules of every op, one place for recording, tests and the null backend. */
#include "dev/op.h"

#include "base/err.h"

#include <stdio.h>

typedef struct {
    OpKind      kind;
    const char *bad; /* first broken rule */
} V;

static void need(V *v, int ok, const char *rule)
{
    if (!ok && !v->bad) v->bad = rule;
}

static int is_vec(const Tensor *t, int64_t n)
{
    return !t || (tensor_numel(t) == n && tensor_is_contiguous(t));
}

static void check_linear(V *v, const Tensor *y, const Tensor *x, const Tensor *w, const Tensor *bias)
{
    need(v, tensor_rows(y) == tensor_rows(x), "y and x need the same rows");
    need(v, tensor_cols(x) == tensor_cols(w), "x and w need the same columns");
    need(v, tensor_cols(y) == tensor_rows(w), "y needs as many columns as w has rows");
    need(v, is_vec(bias, tensor_cols(y)), "bias needs one number per column of y");
}

static void need_one_dtype(V *v, const Tensor *a, const Tensor *b, const Tensor *c)
{
    need(v, a->dtype == b->dtype && b->dtype == c->dtype, "its activations need one dtype");
}

/* ACT_SLOPE is for gradients. */
static void need_act(V *v, Act act) { need(v, act < ACT_COUNT, "act is no activation"); }
static void need_act_or_slope(V *v, Act act) { need(v, act <= ACT_SLOPE, "act is no activation"); }

static void check_linear_act_fwd(V *v, const LinearActFwd *f)
{
    check_linear(v, f->pre, f->x, f->w, f->bias);
    need(v, tensor_same_shape(f->y, f->pre), "y and pre differ");
    need_act(v, f->act);
    need_one_dtype(v, f->y, f->pre, f->x);
}

static void check_linear_act_bwd(V *v, const LinearActBwd *b)
{
    check_linear(v, b->dy, b->dpre, b->w, NULL);
    need(v, tensor_same_shape(b->dpre, b->pre), "dpre and pre differ");
    need(v, is_vec(b->db, tensor_cols(b->dpre)), "db needs one number per column");
    need_act_or_slope(v, b->act);
    need_one_dtype(v, b->dpre, b->dy, b->pre);
}

static void check_linear_glu_fwd(V *v, const LinearGluFwd *f)
{
    check_linear(v, f->pre, f->x, f->w, NULL);
    need(v, tensor_rows(f->y) == tensor_rows(f->pre), "y and pre need the same rows");
    need(v, 2 * tensor_cols(f->y) == tensor_cols(f->pre), "pre must be twice as wide as y");
    need_act(v, f->act);
    need_one_dtype(v, f->y, f->pre, f->x);
}

static void check_linear_glu_bwd(V *v, const LinearGluBwd *b)
{
    need(v, tensor_same_shape(b->dpre, b->pre), "dpre and pre differ");
    need(v, tensor_rows(b->dy) == tensor_rows(b->pre), "dy and pre need the same rows");
    need(v, tensor_cols(b->dy) == tensor_rows(b->w), "dy needs as many columns as w has rows");
    need(v, 2 * tensor_cols(b->w) == tensor_cols(b->pre), "pre must be twice as wide as w");
    need_act_or_slope(v, b->act);
    need_one_dtype(v, b->dpre, b->dy, b->pre);
}

static void check_linears(V *v, const OpArgs *a)
{
    switch (v->kind) {
    case OP_LINEAR_FWD:
        check_linear(v, a->linear_fwd.y, a->linear_fwd.x, a->linear_fwd.w, a->linear_fwd.bias);
        break;
    case OP_LINEAR_DX: check_linear(v, a->linear_dx.dy, a->linear_dx.dx, a->linear_dx.w, NULL); break;
    case OP_LINEAR_DW:
        check_linear(v, a->linear_dw.dy, a->linear_dw.x, a->linear_dw.dw, a->linear_dw.db);
        break;
    case OP_LINEAR_ACT_FWD: check_linear_act_fwd(v, &a->linear_act_fwd); break;
    case OP_LINEAR_ACT_BWD: check_linear_act_bwd(v, &a->linear_act_bwd); break;
    case OP_LINEAR_GLU_FWD: check_linear_glu_fwd(v, &a->linear_glu_fwd); break;
    default: /* OP_LINEAR_GLU_BWD */ check_linear_glu_bwd(v, &a->linear_glu_bwd); break;
    }
}

static void check_heads(V *v, const AttnShape *s)
{
    need(v, s->heads >= 1 && s->kv_heads >= 1 && s->head_dim >= 1,
         "heads, kv_heads and head_dim must be positive");
    need(v, s->kv_heads < 1 || s->heads % s->kv_heads == 0, "heads must be a multiple of kv_heads");
}

/* i32[n]; absent is right, too. */
static int is_ints(const Tensor *t, int64_t n) { return !t || (t->dtype == DT_I32 && is_vec(t, n)); }

/* Where a sequence begins: one integer for all, or one each. */
static int is_start(const Tensor *t, int64_t B) { return is_ints(t, 1) || is_ints(t, B); }

/* One row of bounds for each query. */
static void check_range(V *v, const AttnShape *s, const Tensor *first, const Tensor *last, int64_t n_query)
{
    need(v, s->mask != MASK_RANGE || (first && last), "a range mask needs first and last");
    need(v, is_ints(first, n_query) && is_ints(last, n_query), "first and last need i32[B,T]");
}

static void check_attn(V *v, const AttnShape *s, const Tensor *qkv, const Tensor *o)
{
    int64_t H = s->heads, K = s->kv_heads, D = s->head_dim;
    check_heads(v, s);
    need(v, qkv->ndim == 3, "qkv needs [B,T,W]");
    need(v, tensor_cols(qkv) == (H + 2 * K) * D, "qkv width must be (H+2K)*D");
    need(v, tensor_cols(o) == H * D && tensor_rows(o) == tensor_rows(qkv), "o must be [B,T,H*D]");
    need(v, s->mask < MASK_COUNT, "mask is no mask");
}

static void check_decode(V *v, const AttnDecode *a)
{
    const AttnShape *s = &a->shape;
    int64_t          H = s->heads, K = s->kv_heads, D = s->head_dim, B = a->kcache->dim[0];
    check_heads(v, s);
    need(v, a->kcache->ndim == 4 && a->kcache->dim[2] == K && a->kcache->dim[3] == D,
         "kcache needs [B,Tmax,K,D]");
    need(v, tensor_same_shape(a->kcache, a->vcache), "kcache and vcache differ");
    need(v, tensor_is_contiguous(a->kcache) && tensor_is_contiguous(a->vcache), "caches must be contiguous");
    need(v, B >= 1 && tensor_rows(a->qkv) % B == 0, "qkv needs the same number of rows for each sequence");
    need(v, tensor_cols(a->qkv) == (H + 2 * K) * D, "qkv width must be (H+2K)*D");
    need(v, tensor_cols(a->o) == H * D && tensor_rows(a->o) == tensor_rows(a->qkv), "o must be [B,T,H*D]");
    need(v, is_start(a->len, B), "len needs i32[1] or i32[B]");
}

static void check_cross(V *v, const AttnShape *s, const Tensor *q, const Tensor *kv, const Tensor *o)
{
    int64_t H = s->heads, K = s->kv_heads, D = s->head_dim;
    check_heads(v, s);
    need(v, q->ndim == 3 && kv->ndim == 3 && q->dim[0] == kv->dim[0], "q needs [B,T,H*D] and kv [B,S,2*K*D]");
    need(v, tensor_cols(q) == H * D, "q width must be H*D");
    need(v, tensor_cols(kv) == 2 * K * D, "kv width must be 2*K*D");
    need(v, tensor_cols(o) == H * D && tensor_rows(o) == tensor_rows(q), "o must be [B,T,H*D]");
    need(v, s->mask == MASK_FULL || s->mask == MASK_RANGE, "cross-attention has a full or a range mask");
}

static void check_cross_fwd(V *v, const CrossAttnFwd *a)
{
    check_cross(v, &a->shape, a->q, a->kv, a->o);
    check_range(v, &a->shape, a->first, a->last, tensor_rows(a->q));
    need(v, is_ints(a->len, a->q->dim[0]), "len needs i32[B]");
}

static void check_cross_bwd(V *v, const CrossAttnBwd *a)
{
    check_cross(v, &a->shape, a->q, a->kv, a->o);
    check_range(v, &a->shape, a->first, a->last, tensor_rows(a->q));
    need(v, is_ints(a->len, a->q->dim[0]), "len needs i32[B]");
    need(v, tensor_same_shape(a->dq, a->q) && tensor_same_shape(a->dkv, a->kv),
         "dq and q, or dkv and kv differ");
    need(v, tensor_same_shape(a->dout, a->o), "dout and o differ");
}

/* A table of rotations, if there is one. */
static void check_table(V *v, const Tensor *table, int64_t T, int head_dim)
{
    if (!table) return;
    need(v, head_dim % 2 == 0, "head size must be even");
    need(v, tensor_cols(table) == head_dim && tensor_rows(table) >= T, "table needs [T,D]");
}

static void check_weights(V *v, const Tensor *p, const Tensor *qkv, int H)
{
    if (!p) return;
    int64_t B = qkv->dim[0], T = qkv->dim[1];
    need(v, p->ndim == 4 && p->dim[0] == B && p->dim[1] == H && p->dim[2] == T && p->dim[3] == T,
         "p must be [B,H,T,T]");
    need(v, tensor_is_contiguous(p) && p->dtype == qkv->dtype, "p must be contiguous, in the dtype of qkv");
}

static void check_attns(V *v, const OpArgs *a)
{
    const AttnFwd *f = &a->attn_fwd;
    const AttnBwd *b = &a->attn_bwd;
    switch (v->kind) {
    case OP_ATTN_FWD:
        check_attn(v, &f->shape, f->qkv, f->o);
        check_range(v, &f->shape, f->first, f->last, tensor_rows(f->qkv));
        check_weights(v, f->p, f->qkv, f->shape.heads);
        break;
    case OP_ATTN_BWD:
        check_attn(v, &b->shape, b->qkv, b->o);
        check_range(v, &b->shape, b->first, b->last, tensor_rows(b->qkv));
        check_weights(v, b->p, b->qkv, b->shape.heads);
        check_table(v, b->table, b->qkv->dim[1], b->shape.head_dim);
        break;
    case OP_ATTN_DECODE: check_decode(v, &a->attn_decode); break;
    case OP_CROSS_ATTN_FWD: check_cross_fwd(v, &a->cross_attn_fwd); break;
    default: /* OP_CROSS_ATTN_BWD */ check_cross_bwd(v, &a->cross_attn_bwd); break;
    }
}

static void check_norm(V *v, const Tensor *x, const Tensor *gamma, const Tensor *mean, const Tensor *rstd)
{
    if (gamma) need(v, is_vec(gamma, tensor_cols(x)), "gamma needs one number per column");
    need(v, is_vec(mean, tensor_rows(x)) && is_vec(rstd, tensor_rows(x)),
         "statistics need one number per row");
}

static void check_norms(V *v, const OpArgs *a)
{
    switch (v->kind) {
    case OP_NORM_FWD:
        need(v, tensor_same_shape(a->norm_fwd.y, a->norm_fwd.x), "y and x differ");
        check_norm(v, a->norm_fwd.x, a->norm_fwd.gamma, a->norm_fwd.mean, a->norm_fwd.rstd);
        break;
    case OP_ADD_NORM_FWD:
        need(v, tensor_same_shape(a->add_norm_fwd.a, a->add_norm_fwd.b), "a and b differ");
        need(v, tensor_same_shape(a->add_norm_fwd.a, a->add_norm_fwd.y), "y and a differ");
        check_norm(v, a->add_norm_fwd.a, a->add_norm_fwd.gamma, a->add_norm_fwd.mean, a->add_norm_fwd.rstd);
        break;
    case OP_NORM_DX:
        need(v, tensor_same_shape(a->norm_dx.dx, a->norm_dx.x), "dx and x differ");
        check_norm(v, a->norm_dx.x, a->norm_dx.gamma, a->norm_dx.mean, a->norm_dx.rstd);
        break;
    case OP_NORM_DW:
        need(v, tensor_same_shape(a->norm_dw.dy, a->norm_dw.x), "dy and x differ");
        check_norm(v, a->norm_dw.x, a->norm_dw.dgamma, a->norm_dw.mean, a->norm_dw.rstd);
        break;
    default: /* OP_NORM_BWD */
        need(v, tensor_same_shape(a->norm_bwd.dx, a->norm_bwd.x), "dx and x differ");
        check_norm(v, a->norm_bwd.x, a->norm_bwd.gamma, a->norm_bwd.mean, a->norm_bwd.rstd);
        need(v, is_vec(a->norm_bwd.dbias, tensor_cols(a->norm_bwd.x)), "dbias needs one number per column");
        break;
    }
}

static void check_shapes(V *v, const OpArgs *a)
{
    switch (v->kind) {
    case OP_EMBED_FWD:
        need(v, tensor_numel(a->embed_fwd.tok) == tensor_rows(a->embed_fwd.y), "one token per row of y");
        need(v, tensor_cols(a->embed_fwd.wte) == tensor_cols(a->embed_fwd.y), "wte and y differ in width");
        need(v, is_start(a->embed_fwd.pos0, tensor_rows(a->embed_fwd.tok)), "pos0 needs i32[1] or i32[B]");
        break;
    case OP_EMBED_DW:
        need(v, tensor_numel(a->embed_dw.tok) == tensor_rows(a->embed_dw.dy), "one token per row of dy");
        need(v, tensor_cols(a->embed_dw.dwte) == tensor_cols(a->embed_dw.dy), "dwte and dy differ in width");
        break;
    case OP_NORM_FWD:
    case OP_NORM_DX:
    case OP_NORM_DW:
    case OP_ADD_NORM_FWD:
    case OP_NORM_BWD: check_norms(v, a); break;
    case OP_LINEAR_FWD:
    case OP_LINEAR_DX:
    case OP_LINEAR_DW:
    case OP_LINEAR_ACT_FWD:
    case OP_LINEAR_ACT_BWD:
    case OP_LINEAR_GLU_FWD:
    case OP_LINEAR_GLU_BWD: check_linears(v, a); break;
    case OP_BIAS_DW:
        need(v, is_vec(a->bias_dw.db, tensor_cols(a->bias_dw.dy)), "db needs one number per column");
        break;
    case OP_ADD:
        need(v, tensor_same_shape(a->add.a, a->add.b) && tensor_same_shape(a->add.y, a->add.a),
             "a, b and y differ");
        break;
    case OP_ACT_FWD:
        need(v, tensor_same_shape(a->act_fwd.y, a->act_fwd.x), "y and x differ");
        need_act(v, a->act_fwd.act);
        break;
    case OP_ACT_DX:
        need(v, tensor_same_shape(a->act_dx.dx, a->act_dx.x), "dx and x differ");
        need_act_or_slope(v, a->act_dx.act);
        break;
    case OP_GLU_FWD:
        need(v, 2 * tensor_cols(a->glu_fwd.y) == tensor_cols(a->glu_fwd.x), "x must be twice as wide as y");
        need_act(v, a->glu_fwd.act);
        break;
    case OP_GLU_DX:
        need(v, 2 * tensor_cols(a->glu_dx.dy) == tensor_cols(a->glu_dx.x), "x must be twice as wide as dy");
        need_act_or_slope(v, a->glu_dx.act);
        break;
    case OP_ROPE:
        need(v, tensor_cols(a->rope.x) >= (int64_t)a->rope.n_head * a->rope.head_dim,
             "row is narrower than the heads");
        need(v, a->rope.head_dim % 2 == 0, "head size must be even");
        need(v, a->rope.x->ndim == 3, "x needs [B,T,W]");
        need(v, is_start(a->rope.pos0, a->rope.x->dim[0]), "pos0 needs i32[1] or i32[B]");
        break;
    case OP_ATTN_FWD:
    case OP_ATTN_BWD:
    case OP_ATTN_DECODE:
    case OP_CROSS_ATTN_FWD:
    case OP_CROSS_ATTN_BWD: check_attns(v, a); break;
    case OP_XENT_FWD:
        need(v, a->xent_fwd.n_class <= tensor_cols(a->xent_fwd.logits), "more classes than logits");
        need(v, tensor_numel(a->xent_fwd.target) == tensor_rows(a->xent_fwd.logits), "one target per row");
        break;
    case OP_XENT:
        need(v, a->xent.n_class <= tensor_cols(a->xent.logits), "more classes than logits");
        need(v, tensor_numel(a->xent.target) == tensor_rows(a->xent.logits), "one target per row");
        break;
    case OP_COPY: need(v, tensor_bytes(a->copy.y) == tensor_bytes(a->copy.x), "sizes differ"); break;
    case OP_CAST: need(v, tensor_numel(a->cast.y) == tensor_numel(a->cast.x), "sizes differ"); break;
    default: break;
    }
}

const char *op_validate(OpKind kind, const OpArgs *args, char *buf, size_t n)
{
    const OpRow *row = &op_table[kind];
    for (int i = 0; i < row->n_tensor; i++) {
        if (!args->t[i] && !(row->arg[i].access & ARG_OPTIONAL)) {
            snprintf(buf, n, "%s: argument %s is missing", row->name, row->arg[i].name);
            return buf;
        }
    }
    V v = { kind, NULL };
    check_shapes(&v, args);
    if (!v.bad) return NULL;
    snprintf(buf, n, "%s: %s", row->name, v.bad);
    return buf;
}
