/* Shape and dtype rules of every op, one place for recording, tests and the null backend.
 *
 * 1. Each kind has a row in op_rules: one ArgRule per argument, in the order of its row in op_table.c. A new
 *    kind gets its row there; tests/test_op_validate.c fails without one, and when a wrong shape of any
 *    argument passes.
 * 2. A dimension is a letter. The first argument that has it says how large it is, all others must agree. The
 *    rule's `dims` may set letters from scalars beforehand. Shapes are rows x cols, as ops see them.
 * 3. What letters cannot say is in the rule's `more`. */
#include "dev/op.h"

#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>

typedef struct {
    OpKind  kind;
    int64_t dim['z' + 1]; /* by letter; 0: not known yet */
    DType   act;          /* of the activations; DT_COUNT: not known yet */
    char   *buf;
    size_t  n;
    int     bad;
} V;

/* What the elements of an argument may be. */
typedef enum {
    ACTS,   /* a float type, the same for all such arguments of the op */
    FLOATS, /* any float type */
    F32,
    I32,
    I64,
    STATE, /* u8, one StepState */
    BYTES, /* u8 */
    ANY
} Elem;

/* rows: a letter, VEC (a contiguous vector of cols numbers), COUNT (cols numbers in any shape) or ANY_DIM. A
 * letter in lower case stands for at least so many. 0 as cols: any. */
enum { VEC = '#', COUNT = '%', ANY_DIM = '*' };

typedef struct {
    Elem elem;
    char rows, cols;
} ArgRule;

typedef struct {
    ArgRule arg[OP_MAX_TENSOR];
    void (*dims)(V *v, const OpArgs *a); /* NULL: letters come from the arguments alone */
    void (*more)(V *v, const OpArgs *a);
} OpRule;

static void fail(V *v, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void fail(V *v, const char *fmt, ...)
{
    if (v->bad) return; /* the first broken rule is told */
    va_list ap;
    int     at = snprintf(v->buf, v->n, "%s: ", op_table[v->kind].name);
    va_start(ap, fmt);
    if (at > 0 && (size_t)at < v->n) vsnprintf(v->buf + at, v->n - (size_t)at, fmt, ap);
    va_end(ap);
    v->bad = 1;
}

static void need(V *v, int ok, const char *rule)
{
    if (!ok) fail(v, "%s", rule);
}

/* ---- letters from scalars, and what letters cannot say ------------------------------------------------- */

static void dims_embed(V *v, const OpArgs *a) { v->dim['T'] = tensor_cols(a->embed_fwd.tok); }

static void need_time(V *v, const Tensor *x)
{
    need(v, x->ndim == 3, "needs [B,T,W]");
    v->dim['T'] = x->ndim == 3 ? x->dim[1] : 0;
    v->dim['B'] = x->ndim == 3 ? x->dim[0] : 0;
}

static void dims_pos_dw(V *v, const OpArgs *a) { need_time(v, a->pos_dw.dy); }

/* G is twice F, the width of a gate and what it gates. */
static void set_gate(V *v, const Tensor *half)
{
    v->dim['F'] = tensor_cols(half);
    v->dim['G'] = 2 * v->dim['F'];
}

static void dims_glu_fwd(V *v, const OpArgs *a) { set_gate(v, a->glu_fwd.y); }
static void dims_glu_dx(V *v, const OpArgs *a) { set_gate(v, a->glu_dx.dy); }
static void dims_linear_glu_fwd(V *v, const OpArgs *a) { set_gate(v, a->linear_glu_fwd.y); }
static void dims_linear_glu_bwd(V *v, const OpArgs *a) { set_gate(v, a->linear_glu_bwd.w); }

/* D head size, W packed row of queries, keys and values, O row of queries, R heads that have a norm. */
static void set_heads(V *v, int heads, int kv_heads, int head_dim)
{
    int64_t H = heads, K = kv_heads, D = head_dim;
    need(v, K >= 1 && H >= 1 && D >= 1 && H % K == 0, "heads must be a multiple of kv_heads");
    v->dim['H'] = H;
    v->dim['D'] = D;
    v->dim['W'] = (H + 2 * K) * D;
    v->dim['O'] = H * D;
    v->dim['R'] = H + K;
}

static void dims_qknorm_fwd(V *v, const OpArgs *a)
{
    set_heads(v, a->qknorm_fwd.heads, a->qknorm_fwd.kv_heads, a->qknorm_fwd.head_dim);
}
static void dims_qknorm_dx(V *v, const OpArgs *a)
{
    set_heads(v, a->qknorm_dx.heads, a->qknorm_dx.kv_heads, a->qknorm_dx.head_dim);
}
static void dims_qknorm_dw(V *v, const OpArgs *a)
{
    set_heads(v, a->qknorm_dw.heads, a->qknorm_dw.kv_heads, a->qknorm_dw.head_dim);
}

static void dims_rope(V *v, const OpArgs *a)
{
    need_time(v, a->rope.x);
    v->dim['D'] = a->rope.head_dim;
    v->dim['P'] = (int64_t)a->rope.n_head * a->rope.head_dim;
    need(v, a->rope.head_dim >= 2 && a->rope.head_dim % 2 == 0, "head size must be even");
    need(v, a->rope.n_head >= 1 && tensor_cols(a->rope.x) >= v->dim['P'], "row is narrower than the heads");
}

static void set_attn(V *v, const Tensor *qkv, int heads, int kv_heads, int head_dim)
{
    set_heads(v, heads, kv_heads, head_dim);
    need_time(v, qkv);
    v->dim['S'] = v->dim['B'] * v->dim['H'] * v->dim['T'];
    v->dim['P'] = v->dim['S'] * v->dim['T'];
}

static void dims_attn_fwd(V *v, const OpArgs *a)
{
    set_attn(v, a->attn_fwd.qkv, a->attn_fwd.heads, a->attn_fwd.kv_heads, a->attn_fwd.head_dim);
}
static void dims_attn_bwd(V *v, const OpArgs *a)
{
    set_attn(v, a->attn_bwd.qkv, a->attn_bwd.heads, a->attn_bwd.kv_heads, a->attn_bwd.head_dim);
}

static void need_mask(V *v, Mask mask, const Tensor *doc, const Tensor *prefix)
{
    need(v, mask < MASK_COUNT, "mask is none");
    need(v, mask != MASK_DOCUMENT || doc, "the document mask needs doc");
    need(v, mask != MASK_PREFIX || prefix, "the prefix mask needs prefix");
}

static void need_weights(V *v, const Tensor *p)
{
    if (!p) return;
    need(v,
         p->ndim == 4 && p->dim[0] == v->dim['B'] && p->dim[1] == v->dim['H'] && p->dim[2] == v->dim['T'] &&
             p->dim[3] == v->dim['T'],
         "p must be [B,H,T,T]");
}

static void more_attn_fwd(V *v, const OpArgs *a)
{
    need_mask(v, a->attn_fwd.mask, a->attn_fwd.doc, a->attn_fwd.prefix);
    need_weights(v, a->attn_fwd.p);
}

static void more_attn_bwd(V *v, const OpArgs *a)
{
    need_mask(v, a->attn_bwd.mask, a->attn_bwd.doc, a->attn_bwd.prefix);
    need_weights(v, a->attn_bwd.p);
    need(v, !a->attn_bwd.table || a->attn_bwd.head_dim % 2 == 0, "head size must be even");
}

static void dims_attn_decode(V *v, const OpArgs *a)
{
    const AttnDecode *d = &a->attn_decode;
    set_heads(v, d->heads, d->kv_heads, d->head_dim);
    v->dim['B'] = tensor_rows(d->qkv);
    for (int i = 0; i < 2; i++) {
        const Tensor *t = i ? d->vcache : d->kcache;
        need(v, t->ndim == 4 && t->dim[0] == v->dim['B'] && t->dim[2] == d->kv_heads,
             "caches need [B,Tmax,K,D]");
        v->dim['C'] = tensor_rows(t);
        need(v, tensor_same_shape(t, d->kcache) && tensor_is_contiguous(t), "caches differ");
    }
}

/* ACT_SLOPE is for gradients. */
static void need_act(V *v, Act act) { need(v, act < ACT_COUNT, "act is no activation"); }
static void need_act_or_slope(V *v, Act act) { need(v, act <= ACT_SLOPE, "act is no activation"); }

static void more_linear_act_fwd(V *v, const OpArgs *a) { need_act(v, a->linear_act_fwd.act); }
static void more_linear_act_bwd(V *v, const OpArgs *a) { need_act_or_slope(v, a->linear_act_bwd.act); }
static void more_linear_glu_fwd(V *v, const OpArgs *a) { need_act(v, a->linear_glu_fwd.act); }
static void more_linear_glu_bwd(V *v, const OpArgs *a) { need_act_or_slope(v, a->linear_glu_bwd.act); }
static void more_act_fwd(V *v, const OpArgs *a) { need_act(v, a->act_fwd.act); }
static void more_act_dx(V *v, const OpArgs *a) { need_act_or_slope(v, a->act_dx.act); }
static void more_act_bias_bwd(V *v, const OpArgs *a) { need_act_or_slope(v, a->act_bias_bwd.act); }
static void more_glu_fwd(V *v, const OpArgs *a) { need_act(v, a->glu_fwd.act); }
static void more_glu_dx(V *v, const OpArgs *a) { need_act_or_slope(v, a->glu_dx.act); }

static void more_dropout(V *v, const OpArgs *a)
{
    int64_t rows = a->dropout.rows_per_sample;
    need(v, a->dropout.p >= 0 && a->dropout.p < 1, "p must be in [0, 1)");
    need(v, rows >= 1 && tensor_rows(a->dropout.x) % rows == 0, "rows must be whole samples");
}

static void need_classes(V *v, int64_t n_class)
{
    need(v, n_class >= 1 && n_class <= v->dim['V'], "more classes than logits");
}
static void more_xent_fwd(V *v, const OpArgs *a) { need_classes(v, a->xent_fwd.n_class); }
static void more_xent_dx(V *v, const OpArgs *a) { need_classes(v, a->xent_dx.n_class); }
static void more_xent(V *v, const OpArgs *a) { need_classes(v, a->xent.n_class); }

static void need_same_dtype(V *v, const OpArgs *a)
{
    need(v, a->t[0]->dtype == a->t[1]->dtype, "y and x need one dtype");
}

/* One of them has the parts of all ranks. */
static void need_parts(V *v, const OpArgs *a)
{
    int64_t y = tensor_numel(a->t[0]), x = tensor_numel(a->t[1]);
    need_same_dtype(v, a);
    need(v, v->kind == OP_ALL_GATHER ? y % x == 0 : x % y == 0, "one must be a multiple of the other");
}

static void more_adamw(V *v, const OpArgs *a)
{
    size_t n = tensor_bytes(a->adamw.seg);
    need(v, n > 0 && n % sizeof(Segment) == 0, "seg must be whole segments");
}

/* ---- the table ----------------------------------------------------------------------------------------- */

/* clang-format off */
/* Activations, weights of any float type, f32; then vectors. */
#define A(r, c)      { ACTS, #r[0], #c[0] }
#define P(r, c)      { FLOATS, #r[0], #c[0] }
#define F(r, c)      { F32, #r[0], #c[0] }
#define VECTOR(e, n) { e, VEC, #n[0] }
#define N_C          A(N, C)
#define F_N          VECTOR(F32, N)
#define F_C          VECTOR(F32, C)
#define ONE(e)       VECTOR(e, 1)
#define WS           { BYTES, VEC, 0 }
#define STEP         { STATE, VEC, 0 }
static const OpRule op_rules[OP_COUNT] = {
    [OP_EMBED_FWD]    = { { N_C, VECTOR(I32, N), P(V, C), P(t, C), ONE(I32) }, .dims = dims_embed },
    [OP_EMBED_DW]     = { { F(V, C), WS, N_C, VECTOR(I32, N) } },
    [OP_POS_DW]       = { { F(t, C), N_C }, .dims = dims_pos_dw },
    [OP_NORM_FWD]     = { { N_C, F_N, F_N, N_C, F_C, F_C } },
    [OP_NORM_DX]      = { { N_C, N_C, N_C, F_C, F_N, F_N } },
    [OP_NORM_DW]      = { { F_C, F_C, WS, N_C, N_C, F_N, F_N } },
    [OP_ADD_NORM_FWD] = { { N_C, N_C, F_N, F_N, N_C, N_C, F_C, F_C } },
    [OP_NORM_BWD]     = { { N_C, F_C, F_C, F_C, WS, N_C, N_C, F_C, F_N, F_N, N_C } },
    [OP_LINEAR_FWD]   = { { A(N, M), WS, A(N, K), P(M, K), VECTOR(FLOATS, M) } },
    [OP_LINEAR_DX]    = { { A(N, K), WS, A(N, M), P(M, K) } },
    [OP_LINEAR_DW]    = { { F(M, K), VECTOR(F32, M), WS, A(N, M), A(N, K) } },
    [OP_BIAS_DW]      = { { F_C, WS, N_C } },
    [OP_LINEAR_ACT_FWD] = { { A(N, M), A(N, M), WS, A(N, K), P(M, K), VECTOR(FLOATS, M) },
                            .more = more_linear_act_fwd },
    [OP_LINEAR_ACT_BWD] = { { A(N, F), VECTOR(F32, F), WS, A(N, M), P(M, F), A(N, F) },
                            .more = more_linear_act_bwd },
    [OP_LINEAR_GLU_FWD] = { { A(N, F), A(N, G), WS, A(N, K), P(G, K) },
                            .dims = dims_linear_glu_fwd, .more = more_linear_glu_fwd },
    [OP_LINEAR_GLU_BWD] = { { A(N, G), WS, A(N, M), P(M, F), A(N, G) },
                            .dims = dims_linear_glu_bwd, .more = more_linear_glu_bwd },
    [OP_ACT_FWD]      = { { N_C, N_C }, .more = more_act_fwd },
    [OP_ACT_DX]       = { { N_C, N_C, N_C }, .more = more_act_dx },
    [OP_ACT_BIAS_BWD] = { { N_C, F_C, WS, N_C, N_C }, .more = more_act_bias_bwd },
    [OP_GLU_FWD]      = { { A(N, F), A(N, G) }, .dims = dims_glu_fwd, .more = more_glu_fwd },
    [OP_GLU_DX]       = { { A(N, G), A(N, F), A(N, G) }, .dims = dims_glu_dx, .more = more_glu_dx },
    [OP_ADD]          = { { N_C, N_C, N_C } },
    [OP_ROPE]         = { { N_C, N_C, F(t, D), ONE(I32) }, .dims = dims_rope },
    [OP_QKNORM_FWD]   = { { A(N, W), F(N, R), A(N, W), VECTOR(F32, D), VECTOR(F32, D) },
                          .dims = dims_qknorm_fwd },
    [OP_QKNORM_DX]    = { { A(N, W), A(N, W), A(N, W), VECTOR(F32, D), VECTOR(F32, D), F(N, R) },
                          .dims = dims_qknorm_dx },
    [OP_QKNORM_DW]    = { { VECTOR(F32, D), VECTOR(F32, D), WS, A(N, W), A(N, W), F(N, R) },
                          .dims = dims_qknorm_dw },
    [OP_ATTN_FWD]     = { { A(N, O), VECTOR(F32, S), VECTOR(ACTS, P), WS, A(N, W), VECTOR(I32, N),
                            VECTOR(I32, B) },
                          .dims = dims_attn_fwd, .more = more_attn_fwd },
    [OP_ATTN_BWD]     = { { A(N, W), WS, A(N, O), A(N, O), VECTOR(F32, S), A(N, W), VECTOR(I32, N),
                            VECTOR(I32, B), VECTOR(ACTS, P), F(t, D) },
                          .dims = dims_attn_bwd, .more = more_attn_bwd },
    [OP_ATTN_DECODE]  = { { A(B, O), A(C, D), A(C, D), A(B, W), ONE(I32) }, .dims = dims_attn_decode },
    [OP_DROPOUT]      = { { N_C, N_C, STEP, ONE(I64) }, .more = more_dropout },
    [OP_XENT_FWD]     = { { F_N, F_N, A(N, V), VECTOR(I32, N) }, .more = more_xent_fwd },
    [OP_XENT_DX]      = { { A(N, V), A(N, V), F_N, VECTOR(I32, N), STEP }, .more = more_xent_dx },
    [OP_XENT]         = { { F_N, A(N, V), A(N, V), VECTOR(I32, N), STEP }, .more = more_xent },
    [OP_LOSS_ADD]     = { { STEP, F_N } },
    [OP_FILL]         = { { { ANY, ANY_DIM, 0 } } },
    [OP_COPY]         = { { { ANY, COUNT, 'N' }, { ANY, COUNT, 'N' } }, .more = need_same_dtype },
    [OP_CAST]         = { { { FLOATS, COUNT, 'N' }, { FLOATS, COUNT, 'N' } } },
    [OP_QUANT]        = { { P(N, C), P(C, N), ONE(F32), N_C, ONE(F32) } },
    [OP_SUMSQ]        = { { STEP, WS, { FLOATS, VEC, 0 } } },
    [OP_CLIP]         = { { STEP } },
    [OP_ADAMW]        = { { F_N, F_N, F_N, F_N, VECTOR(FLOATS, N), STEP, WS }, .more = more_adamw },
    [OP_ALL_REDUCE]   = { { VECTOR(FLOATS, N), VECTOR(FLOATS, N) }, .more = need_same_dtype },
    [OP_REDUCE_SCATTER] = { { { FLOATS, VEC, 0 }, { FLOATS, VEC, 0 } }, .more = need_parts },
    [OP_ALL_GATHER]   = { { { FLOATS, VEC, 0 }, { FLOATS, VEC, 0 } }, .more = need_parts },
};
/* clang-format on */

/* ---- the checker --------------------------------------------------------------------------------------- */

static int is_float(DType t)
{
    return t == DT_F32 || t == DT_F64 || t == DT_BF16 || t == DT_F16 || t == DT_E4M3 || t == DT_E5M2;
}

static int is_elem(V *v, Elem elem, DType t)
{
    static const DType one[] = {
        [F32] = DT_F32, [I32] = DT_I32, [I64] = DT_I64, [STATE] = DT_U8, [BYTES] = DT_U8
    };
    switch (elem) {
    case ANY: return 1;
    case FLOATS: return is_float(t);
    case ACTS:
        if (v->act == DT_COUNT) v->act = t;
        return is_float(t) && t == v->act;
    default: return t == one[elem];
    }
}

/* n rows, columns or elements (`what`) of an argument against a letter. */
static void check_dim(V *v, const char *arg, const char *what, char letter, int64_t n)
{
    int at_least = letter >= 'a' && letter <= 'z';
    if (letter == 0 || letter == ANY_DIM) return;
    int64_t *dim = &v->dim[at_least ? letter - 'a' + 'A' : (unsigned char)letter];
    if (*dim == 0) *dim = n;
    if (at_least ? n >= *dim : n == *dim) return;
    fail(v, "%s has %lld %s, not %s%lld", arg, (long long)n, what, at_least ? "at least " : "",
         (long long)*dim);
}

static void check_arg(V *v, const char *name, const ArgRule *r, const Tensor *t)
{
    if (!is_elem(v, r->elem, t->dtype)) {
        if (r->elem == ACTS && is_float(t->dtype)) {
            fail(v, "%s is %s: its activations need one dtype, %s", name, dtype_name(t->dtype),
                 dtype_name(v->act));
        } else {
            fail(v, "%s cannot be %s", name, dtype_name(t->dtype));
        }
    }
    if (r->elem == STATE && tensor_numel(t) != (int64_t)sizeof(StepState))
        fail(v, "%s is no StepState", name);
    if (r->rows == VEC || r->rows == COUNT) {
        if (r->rows == VEC && !tensor_is_contiguous(t)) fail(v, "%s has gaps", name);
        check_dim(v, name, "elements", r->cols, tensor_numel(t));
        return;
    }
    check_dim(v, name, "rows", r->rows, tensor_rows(t));
    check_dim(v, name, "columns", r->cols, tensor_cols(t));
}

int op_has_rule(OpKind kind)
{
    const OpRule *r = &op_rules[kind];
    for (int i = 0; i < op_table[kind].n_tensor; i++) {
        if (r->arg[i].rows == 0) return 0;
    }
    return 1;
}

const char *op_validate(OpKind kind, const OpArgs *args, char *buf, size_t n)
{
    const OpRow  *row  = &op_table[kind];
    const OpRule *rule = &op_rules[kind];
    V             v    = { .kind = kind, .act = DT_COUNT, .buf = buf, .n = n };
    for (int i = 0; i < row->n_tensor; i++) {
        if (!args->t[i] && !(row->arg[i].access & ARG_OPTIONAL))
            fail(&v, "argument %s is missing", row->arg[i].name);
    }
    if (v.bad) return buf;
    v.dim['1'] = 1;
    if (rule->dims) rule->dims(&v, args);
    for (int i = 0; i < row->n_tensor && !v.bad; i++) {
        if (args->t[i]) check_arg(&v, row->arg[i].name, &rule->arg[i], args->t[i]);
    }
    if (rule->more && !v.bad) rule->more(&v, args);
    return v.bad ? buf : NULL;
}
