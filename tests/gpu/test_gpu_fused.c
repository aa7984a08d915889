/* Fused ops on the device give the bits of the ops they replace: at the widths of real models, in f32 and
 * bf16, in place and not, with whole and ragged rows. So lowering changes speed and nothing else
 * (src/dev/cuda/kernels.h). Vectors that are summed over rows are checked, too: all ops must take such a sum
 * in the same order. */
#include "check.h"

#include "dev/dev.h"
#include "dev/glu.h"

#include <string.h>

enum { MAX_TENSOR = 24 };

typedef struct {
    Dev     *dev;
    DType    dtype; /* of activations */
    Tensor   t[MAX_TENSOR];
    int      n;
    uint64_t seed;
    char     why[128]; /* first difference */
} Bench;

static float draw(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005ull + 1442695040888963407ull;
    return (float)((double)(*seed >> 40) * (2.0 / 16777216.0) - 1.0);
}

static size_t span_bytes(const Tensor *t)
{
    return (size_t)(tensor_rows(t) * tensor_ld(t)) * dtype_bytes(t->dtype);
}

static void row_draw(char *row, DType dtype, int64_t n, int positive, uint64_t seed)
{
    for (int64_t i = 0; i < n; i++) {
        float    f = positive ? fabsf(draw(&seed)) + 0.5f : draw(&seed);
        uint32_t u;
        memcpy(&u, &f, 4);
        if (dtype == DT_F32) memcpy(row + 4 * i, &f, 4);
        if (dtype == DT_BF16) memcpy(row + 2 * i, (char *)&u + 2, 2);
    }
}

/* rows x cols, rows `pad` elements longer in memory, uniform in [-1, 1) (or in [0.5, 1.5) when positive). */
static Tensor *fresh(Bench *b, DType dtype, int64_t rows, int64_t cols, int64_t pad, int positive)
{
    CHECK(b->n < MAX_TENSOR, "too many tensors");
    Tensor *t = &b->t[b->n++];
    tensor_init(t, "t", dtype, 2, (int64_t[]){ rows, cols });
    t->stride[0] = cols + pad;
    char *host   = malloc(span_bytes(t));
    t->data      = b->dev->vt->alloc(b->dev, span_bytes(t));
    CHECK(host && t->data, "out of memory");
    b->seed++;
#pragma omp parallel for
    for (int64_t r = 0; r < rows; r++)
        row_draw(host + (size_t)(r * (cols + pad)) * dtype_bytes(dtype), dtype, cols + pad, positive,
                 (b->seed << 32 | (uint64_t)r) * 0x9e3779b97f4a7c15ull);
    CHECK(b->dev->vt->upload(b->dev, LANE_COMPUTE, t->data, host, span_bytes(t)) == 0, "upload: %s",
          err_get());
    CHECK(b->dev->vt->sync(b->dev) == 0, "sync: %s", err_get());
    free(host);
    return t;
}

static char *contents(Bench *b, const Tensor *t)
{
    char *host = malloc(span_bytes(t));
    CHECK(host, "out of memory");
    CHECK(b->dev->vt->download(b->dev, LANE_COMPUTE, host, t->data, span_bytes(t)) == 0, "download: %s",
          err_get());
    CHECK(b->dev->vt->sync(b->dev) == 0, "sync: %s", err_get());
    return host;
}

static void clear(Bench *b)
{
    for (int i = 0; i < b->n; i++) b->dev->vt->free(b->dev, b->t[i].data);
    b->n = 0;
}

static void run(Bench *b, OpKind kind, OpArgs args)
{
    Tensor ws = { 0 };
    for (int i = 0; i < op_table[kind].n_tensor; i++) {
        int64_t n = op_table[kind].arg[i].access & ARG_WS ? (int64_t)op_workspace_bytes(kind, &args) : 0;
        if (n == 0) continue;
        tensor_init(&ws, "ws", DT_U8, 1, &n);
        ws.data   = b->dev->vt->alloc(b->dev, (size_t)n);
        args.t[i] = &ws;
    }
    Op op = { .kind = kind, .label = "part", .block = -1, .chunk = -1, .args = args };
    if ((dev_run_op(b->dev, &op) < 0 || b->dev->vt->sync(b->dev) < 0) && !b->why[0]) {
        snprintf(b->why, sizeof b->why, "%s: %s", op_table[kind].name, err_get());
        err_clear();
    }
    if (ws.data) b->dev->vt->free(b->dev, ws.data);
}

/* A copy of its own, with what lies between the rows. */
static Tensor *twin(Bench *b, const Tensor *t)
{
    if (!t) return NULL;
    CHECK(b->n < MAX_TENSOR, "too many tensors");
    Tensor *y = &b->t[b->n++], from, to;
    int64_t n = (int64_t)span_bytes(t);
    *y        = *t;
    y->root   = y;
    y->data   = b->dev->vt->alloc(b->dev, span_bytes(t));
    CHECK(y->data, "out of memory");
    tensor_init(&from, "from", DT_U8, 1, &n);
    tensor_init(&to, "to", DT_U8, 1, &n);
    from.data = t->data;
    to.data   = y->data;
    run(b, OP_COPY, (OpArgs){ .copy = { &to, &from } });
    return y;
}

static void same(Bench *b, const char *what, const Tensor *fused, const Tensor *parts)
{
    if (!fused || b->why[0]) return;
    char  *x = contents(b, fused), *y = contents(b, parts);
    size_t size = dtype_bytes(fused->dtype), row = (size_t)tensor_cols(fused) * size;
    for (int64_t r = 0; r < tensor_rows(fused) && !b->why[0]; r++) {
        if (memcmp(x + (size_t)(r * tensor_ld(fused)) * size, y + (size_t)(r * tensor_ld(parts)) * size,
                   row) == 0)
            continue;
        snprintf(b->why, sizeof b->why, "%s differs in row %lld", what, (long long)r);
    }
    free(x);
    free(y);
}

static float element(const Tensor *t, const char *x, int64_t i)
{
    float    f  = 0;
    uint32_t u  = 0;
    int64_t  at = i / tensor_cols(t) * tensor_ld(t) + i % tensor_cols(t);
    if (t->dtype == DT_F32) memcpy(&f, x + 4 * at, 4);
    if (t->dtype == DT_BF16) memcpy((char *)&u + 2, x + 2 * at, 2);
    if (t->dtype == DT_BF16) memcpy(&f, &u, 4);
    return f;
}

/* Products whose sums are taken in another order: rounded to bf16 they differ by at most an ulp (2^-7), and a
 * square and a second rounding make of that at most 2^-5; where an activation has nearly vanished, the bound
 * is of the largest value. In f32 the parts run, and the bits are the same. */
static void near_to(Bench *b, const char *what, const Tensor *fused, const Tensor *parts)
{
    if (b->dtype == DT_F32) {
        same(b, what, fused, parts);
        return;
    }
    if (!fused || b->why[0]) return;
    char   *x = contents(b, fused), *y = contents(b, parts);
    int64_t n = tensor_numel(fused), first = n;
    float   high = 0;
#pragma omp parallel for reduction(max : high)
    for (int64_t i = 0; i < n; i++) high = fmaxf(high, fabsf(element(parts, y, i)));
#pragma omp parallel for reduction(min : first)
    for (int64_t i = 0; i < n; i++) {
        float p = element(fused, x, i), q = element(parts, y, i);
        if (!(fabsf(p - q) <= 0x1p-5f * fabsf(q) + 0x1p-8f * high)) first = MIN(first, i);
    }
    if (first < n)
        snprintf(b->why, sizeof b->why, "%s: %g instead of %g at row %lld column %lld", what,
                 (double)element(fused, x, first), (double)element(parts, y, first),
                 (long long)(first / tensor_cols(fused)), (long long)(first % tensor_cols(fused)));
    free(x);
    free(y);
}

/* form: 1 RMSNorm, 2 residual gradient, 4 dx in place of dy */
static void check_norm(Bench *b, int64_t N, int64_t C, int64_t pad, int form)
{
    DType   t   = b->dtype;
    int     rms = form & 1;
    Tensor *dy = fresh(b, t, N, C, pad, 0), *x = fresh(b, t, N, C, pad, 0), *g = fresh(b, DT_F32, 1, C, 0, 0);
    Tensor *dres = form & 2 ? fresh(b, t, N, C, pad, 0) : NULL,
           *mean = rms ? NULL : fresh(b, DT_F32, 1, N, 0, 0);
    Tensor *rstd = fresh(b, DT_F32, 1, N, 0, 1), *dg = fresh(b, DT_F32, 1, C, 0, 0),
           *dbias = fresh(b, DT_F32, 1, C, 0, 0);
    Tensor *db = rms ? NULL : fresh(b, DT_F32, 1, C, 0, 0), *dx = fresh(b, t, N, C, pad, 0);
    Tensor *dx2 = twin(b, dx), *dg2 = twin(b, dg), *db2 = twin(b, db), *dbias2 = twin(b, dbias);
    Tensor *dx3 = twin(b, dx), *dg3 = twin(b, dg), *db3 = twin(b, db), *dx4 = twin(b, dx);
    run(b, OP_NORM_DX, (OpArgs){ .norm_dx = { dx2, dy, x, g, mean, rstd } });
    run(b, OP_NORM_DW, (OpArgs){ .norm_dw = { dg2, db2, NULL, dy, x, mean, rstd } });
    if (dres) run(b, OP_ADD, (OpArgs){ .add = { dx2, dres, dx2 } });
    run(b, OP_BIAS_DW, (OpArgs){ .bias_dw = { dbias2, NULL, dx2 } });
    run(b, OP_NORM_BWD, (OpArgs){ .norm_bwd = { dx3, dg3, db3, NULL, NULL, dy, x, g, mean, rstd, dres } });
    run(b, OP_NORM_BWD, (OpArgs){ .norm_bwd = { dx4, NULL, NULL, NULL, NULL, dy, x, g, mean, rstd, dres } });
    same(b, "dx of a frozen norm", dx4, dx2);
    if (form & 4) dx = dy;
    run(b, OP_NORM_BWD, (OpArgs){ .norm_bwd = { dx, dg, db, dbias, NULL, dy, x, g, mean, rstd, dres } });
    same(b, "dx", dx, dx2);
    same(b, "dgamma", dg, dg2);
    same(b, "dbeta", db, db2);
    same(b, "dbias", dbias, dbias2);
    same(b, "dx without dbias", dx3, dx2);
    same(b, "dgamma without dbias", dg3, dg2);
    same(b, "dbeta without dbias", db3, db2);
    clear(b);
}

static void check_act(Bench *b, int64_t N, int64_t C, int64_t pad, int form)
{
    Tensor *dy = fresh(b, b->dtype, N, C, pad, 0), *x = fresh(b, b->dtype, N, C, pad, 0),
           *db = fresh(b, DT_F32, 1, C, 0, 0);
    Tensor *dx = fresh(b, b->dtype, N, C, pad, 0), *db2 = twin(b, db), *dx2 = twin(b, dx);
    Act     act = (Act)(form % (ACT_COUNT + 1)); /* the last: ACT_SLOPE */
    run(b, OP_ACT_DX, (OpArgs){ .act_dx = { dx2, dy, x, act } });
    run(b, OP_BIAS_DW, (OpArgs){ .bias_dw = { db2, NULL, dx2 } });
    if (form & 4) dx = x;
    run(b, OP_ACT_BIAS_BWD, (OpArgs){ .act_bias_bwd = { dx, db, NULL, dy, x, act } });
    same(b, "dx", dx, dx2);
    same(b, "db", db, db2);
    clear(b);
}

/* form: activation, 4 dpre in place of pre. N rows, C columns, F of the layer between. */
static void check_linear_act(Bench *b, int64_t N, int64_t C, int64_t F, int form)
{
    DType   t   = b->dtype;
    Act     act = (Act)(form % (ACT_COUNT + 1));
    Tensor *dy = fresh(b, t, N, C, 0, 0), *w = fresh(b, t, C, F, 0, 0), *pre = fresh(b, t, N, F, 0, 0);
    Tensor *d = fresh(b, t, N, F, 0, 0), *dpre = twin(b, d), *dpre2 = twin(b, d), *dpre3 = twin(b, d);
    Tensor *db = fresh(b, DT_F32, 1, F, 0, 0), *db2 = twin(b, db);
    run(b, OP_LINEAR_DX, (OpArgs){ .linear_dx = { d, NULL, dy, w } });
    run(b, OP_ACT_DX, (OpArgs){ .act_dx = { dpre2, d, pre, act } });
    run(b, OP_BIAS_DW, (OpArgs){ .bias_dw = { db2, NULL, dpre2 } });
    run(b, OP_LINEAR_ACT_BWD, (OpArgs){ .linear_act_bwd = { dpre3, NULL, NULL, dy, w, pre, act } });
    if (form & 4) dpre = pre;
    run(b, OP_LINEAR_ACT_BWD, (OpArgs){ .linear_act_bwd = { dpre, db, NULL, dy, w, pre, act } });
    near_to(b, "dpre", dpre, dpre2);
    near_to(b, "db", db, db2);
    near_to(b, "dpre without db", dpre3, dpre2);
    clear(b);
}

/* Slopes that the product before a gate leaves, and a gradient by them, against those that the parts'
 * gradient makes of ones. Not RELU's, which jump where another order of sums has another sign. */
static void check_linear_glu_slope(Bench *b, int64_t N, int64_t C, int64_t F, int form)
{
    DType   t   = b->dtype;
    Act     act = (Act)(form % ACT_RELU);
    Tensor *x = fresh(b, t, N, C, 0, 0), *up = fresh(b, t, 2 * F, C, 0, 0), *down = fresh(b, t, C, F, 0, 0);
    Tensor *pre = fresh(b, t, N, 2 * F, 0, 0), *pre2 = twin(b, pre), *dpre = twin(b, pre),
           *dpre2 = twin(b, pre);
    Tensor *y = fresh(b, t, N, F, 0, 0), *y2 = twin(b, y), *d = twin(b, y), *dy = fresh(b, t, N, C, 0, 0),
           *one = twin(b, y);
    run(b, OP_LINEAR_FWD, (OpArgs){ .linear_fwd = { pre2, NULL, x, up, NULL } });
    run(b, OP_GLU_FWD, (OpArgs){ .glu_fwd = { y2, pre2, act } });
    run(b, OP_FILL, (OpArgs){ .fill = { one, 1.0f } });
    run(b, OP_GLU_DX, (OpArgs){ .glu_dx = { pre2, one, pre2, act } });
    run(b, OP_LINEAR_GLU_FWD, (OpArgs){ .linear_glu_fwd = { y, pre, NULL, x, up, act, 1 } });
    near_to(b, "slopes", pre, pre2);
    near_to(b, "y beside slopes", y, y2);
    run(b, OP_LINEAR_DX, (OpArgs){ .linear_dx = { d, NULL, dy, down } });
    run(b, OP_GLU_DX, (OpArgs){ .glu_dx = { dpre2, d, pre2, ACT_SLOPE } });
    if (form & 4) dpre = pre2;
    run(b, OP_LINEAR_GLU_BWD, (OpArgs){ .linear_glu_bwd = { dpre, NULL, dy, down, pre2, ACT_SLOPE } });
    near_to(b, "dpre by slopes", dpre, dpre2);
    clear(b);
}

static void check_linear_glu(Bench *b, int64_t N, int64_t C, int64_t F, int form)
{
    DType   t   = b->dtype;
    Act     act = (Act)(form % ACT_COUNT);
    Tensor *x = fresh(b, t, N, C, 0, 0), *up = fresh(b, t, 2 * F, C, 0, 0), *down = fresh(b, t, C, F, 0, 0);
    Tensor *pre = fresh(b, t, N, 2 * F, 0, 0), *pre2 = twin(b, pre), *dpre = twin(b, pre),
           *dpre2 = twin(b, pre);
    Tensor *y = fresh(b, t, N, F, 0, 0), *y2 = twin(b, y), *d = twin(b, y), *dy = fresh(b, t, N, C, 0, 0);
    run(b, OP_LINEAR_FWD, (OpArgs){ .linear_fwd = { pre2, NULL, x, up, NULL } });
    run(b, OP_GLU_FWD, (OpArgs){ .glu_fwd = { y2, pre2, act } });
    run(b, OP_LINEAR_GLU_FWD, (OpArgs){ .linear_glu_fwd = { y, pre, NULL, x, up, act } });
    near_to(b, "pre", pre, pre2);
    near_to(b, "y", y, y2);
    run(b, OP_FILL, (OpArgs){ .fill = { d, 0.0f } });
    run(b, OP_LINEAR_GLU_FWD, (OpArgs){ .linear_glu_fwd = { d, pre, NULL, x, up, act, GLU_UNREAD } });
    same(b, "y alone", d, y);
    run(b, OP_LINEAR_DX, (OpArgs){ .linear_dx = { d, NULL, dy, down } });
    run(b, OP_GLU_DX, (OpArgs){ .glu_dx = { dpre2, d, pre2, act } });
    if (form & 4) dpre = pre2;
    run(b, OP_LINEAR_GLU_BWD, (OpArgs){ .linear_glu_bwd = { dpre, NULL, dy, down, pre2, act } });
    near_to(b, "dpre", dpre, dpre2);
    clear(b);
}

static void check_linear_dw(Bench *b, int64_t N, int64_t C, int64_t F)
{
    Tensor *dy = fresh(b, b->dtype, N, F, 0, 0), *x = fresh(b, b->dtype, N, C, 0, 0);
    Tensor *dw = fresh(b, DT_F32, F, C, 0, 0), *db = fresh(b, DT_F32, 1, F, 0, 0), *dw2 = twin(b, dw),
           *db2 = twin(b, db);
    run(b, OP_LINEAR_DW, (OpArgs){ .linear_dw = { dw2, NULL, NULL, dy, x } });
    run(b, OP_BIAS_DW, (OpArgs){ .bias_dw = { db2, NULL, dy } });
    run(b, OP_LINEAR_DW, (OpArgs){ .linear_dw = { dw, db, NULL, dy, x } });
    same(b, "dw", dw, dw2);
    same(b, "db", db, db2);
    clear(b);
}

/* Plain products and the one with an activation, on the own kernel wherever it can run, against the
 * library's. */
static void check_own(Bench *b, int64_t N, int64_t C, int64_t F, int form)
{
    DType   t = b->dtype;
    Tensor *x = fresh(b, t, N, C, 0, 0), *w = fresh(b, t, F, C, 0, 0), *dy = fresh(b, t, N, F, 0, 0);
    Tensor *bias = form & 1 ? fresh(b, t, 1, F, 0, 0) : NULL, *dw[2] = { fresh(b, DT_F32, F, C, 0, 0) },
           *db[2] = { fresh(b, DT_F32, 1, F, 0, 0) };
    Tensor *y[2] = { fresh(b, t, N, F, 0, 0) }, *pre[2], *act[2], *dx[2] = { fresh(b, t, N, C, 0, 0) };
    pre[0] = twin(b, y[0]);
    act[0] = twin(b, y[0]);
    dw[1]  = twin(b, dw[0]);
    db[1]  = twin(b, db[0]);
    y[1]   = twin(b, y[0]);
    pre[1] = twin(b, y[0]);
    act[1] = twin(b, y[0]);
    dx[1]  = twin(b, dx[0]);
    for (int own = 0; own < 2; own++) {
        b->dev->opt.own = own ? 1 : -1;
        run(b, OP_LINEAR_FWD, (OpArgs){ .linear_fwd = { y[own], NULL, x, w, bias } });
        run(b, OP_LINEAR_ACT_FWD,
            (OpArgs){ .linear_act_fwd = { act[own], pre[own], NULL, x, w, bias, (Act)(form % ACT_COUNT) } });
        run(b, OP_LINEAR_DX, (OpArgs){ .linear_dx = { dx[own], NULL, dy, w } });
        run(b, OP_LINEAR_DW, (OpArgs){ .linear_dw = { dw[own], db[own], NULL, dy, x } });
    }
    b->dev->opt.own = 0;
    near_to(b, "y", y[1], y[0]);
    near_to(b, "pre", pre[1], pre[0]);
    near_to(b, "act", act[1], act[0]);
    near_to(b, "dx", dx[1], dx[0]);
    near_to(b, "dw", dw[1], dw[0]);
    near_to(b, "db", db[1], db[0]);
    clear(b);
}

/* What QUANT makes of x on the way against the op alone and QUANT of its result: codes, their transpose and
 * the site. form: activation, 4 the site has no scale yet. C columns of the layer's activation. */
static void check_quant(Bench *b, int64_t N, int64_t C, int64_t pad, int form, QuantFrom from)
{
    DType   t     = b->dtype;
    int     gated = from == QUANT_GLU || from == QUANT_GLU_DX, dx = from >= QUANT_ACT_DX;
    Act     act = (Act)(form % ACT_FUSED);
    int64_t W   = from == QUANT_GLU_DX ? 2 * C : C;
    Tensor *x = fresh(b, t, N, gated ? 2 * C : C, pad, 0), *dy = dx ? fresh(b, t, N, C, pad, 0) : NULL;
    Tensor *v = fresh(b, t, N, W, pad, 0), *site = fresh(b, DT_F32, 1, FP8_SITE, 0, 1);
    Tensor *q = fresh(b, DT_U8, N, W, pad ? 1 : 0, 0), *qt = fresh(b, DT_U8, W, N, 0, 0);
    if (form & 4) run(b, OP_FILL, (OpArgs){ .fill = { site, 0 } });
    Tensor *q2 = twin(b, q), *qt2 = twin(b, qt), *site2 = twin(b, site);
    DType   e = dx ? DT_E5M2 : DT_E4M3;
    q->dtype = qt->dtype = q2->dtype = qt2->dtype = e;
    if (from == QUANT_ACT) run(b, OP_ACT_FWD, (OpArgs){ .act_fwd = { v, x, act } });
    if (from == QUANT_GLU) run(b, OP_GLU_FWD, (OpArgs){ .glu_fwd = { v, x, act } });
    if (from == QUANT_ACT_DX) run(b, OP_ACT_DX, (OpArgs){ .act_dx = { v, dy, x, act } });
    if (from == QUANT_GLU_DX) run(b, OP_GLU_DX, (OpArgs){ .glu_dx = { v, dy, x, act } });
    run(b, OP_QUANT, (OpArgs){ .quant = { .q = q2, .qt = qt2, .site = site2, .x = v, .q_dtype = e } });
    run(b, OP_QUANT,
        (OpArgs){
            .quant = {
                .q = q, .qt = qt, .site = site, .x = x, .dy = dy, .q_dtype = e, .from = from, .act = act } });
    same(b, "codes", q, q2);
    same(b, "codes transposed", qt, qt2);
    same(b, "site", site, site2);
    clear(b);
}

/* Rows without a target come at random and in runs, the first ones too; with bare > 1 all are. `cut` classes
 * at the end are padding. */
static void check_xent(Bench *b, int64_t N, int64_t V, int64_t cut, int in_place, double bare)
{
    Tensor *logits = fresh(b, b->dtype, N, V, 0, 0), *dlogits = fresh(b, b->dtype, N, V, 0, 0),
           *dlogits2 = twin(b, dlogits);
    Tensor *loss = fresh(b, DT_F32, 1, N, 0, 0), *loss2 = twin(b, loss), *lse = twin(b, loss),
           *target  = fresh(b, DT_I32, 1, N, 0, 0);
    Tensor   *state = fresh(b, DT_U8, 1, sizeof(StepState), 0, 0);
    StepState s;
    memset(&s, 0, sizeof s);
    s.in.inv[0]     = 0.125f;
    s.in.loss_scale = 1;
    int32_t *tok    = malloc((size_t)N * sizeof *tok);
    for (int64_t i = 0; i < N; i++) {
        int none =
            (i < 5 && N > 5) || (i > 100 && i < 100 + N / 8) || (double)(draw(&b->seed) + 1) / 2 < bare;
        tok[i] = none ? -1 : (int32_t)((double)(draw(&b->seed) + 1) / 2 * (double)(V - cut - 1));
    }
    if (bare < 1) tok[N - 1] = (int32_t)(V - cut - 1);
    CHECK(b->dev->vt->upload(b->dev, LANE_COMPUTE, target->data, tok, (size_t)N * sizeof *tok) == 0,
          "upload");
    CHECK(b->dev->vt->upload(b->dev, LANE_COMPUTE, state->data, &s, sizeof s) == 0 &&
              b->dev->vt->sync(b->dev) == 0,
          "upload");
    free(tok);
    run(b, OP_XENT_FWD,
        (OpArgs){ .xent_fwd = {
                      .loss = loss2, .lse = lse, .logits = logits, .target = target, .n_class = V - cut } });
    run(b, OP_XENT_DX,
        (OpArgs){ .xent_dx = { .dlogits = dlogits2,
                               .logits  = logits,
                               .lse     = lse,
                               .target  = target,
                               .state   = state,
                               .n_class = V - cut } });
    if (in_place) dlogits = logits;
    run(b, OP_XENT, (OpArgs){ .xent = { loss, dlogits, logits, target, state, V - cut } });
    same(b, "loss", loss, loss2);
    same(b, "dlogits", dlogits, dlogits2);
    clear(b);
}

/* The loss's gradient in fp8 against XENT_DX and QUANT. */
static void check_quant_xent(Bench *b, int64_t N, int64_t V, int64_t cut)
{
    Tensor *x = fresh(b, b->dtype, N, V, 0, 0), *d = fresh(b, b->dtype, N, V, 0, 0);
    Tensor *loss = fresh(b, DT_F32, 1, N, 0, 0), *lse = twin(b, loss), *target = fresh(b, DT_I32, 1, N, 0, 0);
    Tensor *site = fresh(b, DT_F32, 1, FP8_SITE, 0, 1), *site2 = twin(b, site);
    Tensor *q = fresh(b, DT_U8, N, V, 0, 0), *qt = fresh(b, DT_U8, V, N, 0, 0), *q2 = twin(b, q),
           *qt2     = twin(b, qt);
    Tensor   *state = fresh(b, DT_U8, 1, sizeof(StepState), 0, 0);
    StepState s     = { .in = { .inv = { 0.125f }, .loss_scale = 1 } };
    int32_t  *tok   = malloc((size_t)N * sizeof *tok);
    for (int64_t i = 0; i < N; i++) tok[i] = i % 7 == 3 ? -1 : (int32_t)(i * 7919 % (V - cut));
    CHECK(b->dev->vt->upload(b->dev, LANE_COMPUTE, target->data, tok, (size_t)N * sizeof *tok) == 0 &&
              b->dev->vt->upload(b->dev, LANE_COMPUTE, state->data, &s, sizeof s) == 0 &&
              b->dev->vt->sync(b->dev) == 0,
          "upload");
    free(tok);
    q->dtype = qt->dtype = q2->dtype = qt2->dtype = DT_E5M2;
    run(b, OP_FILL, (OpArgs){ .fill = { site, 0 } });
    run(b, OP_FILL, (OpArgs){ .fill = { site2, 0 } });
    XentFwd f = { .loss = loss, .lse = lse, .logits = x, .target = target, .n_class = V - cut };
    XentDx  g = {
         .dlogits = d, .logits = x, .lse = lse, .target = target, .state = state, .n_class = V - cut
    };
    run(b, OP_XENT_FWD, (OpArgs){ .xent_fwd = f });
    run(b, OP_XENT_DX, (OpArgs){ .xent_dx = g });
    Quant part = { .q = q2, .qt = qt2, .site = site2, .x = d, .q_dtype = DT_E5M2 };
    Quant all  = { .q       = q,
                   .qt      = qt,
                   .site    = site,
                   .x       = x,
                   .lse     = lse,
                   .target  = target,
                   .state   = state,
                   .q_dtype = DT_E5M2,
                   .from    = QUANT_XENT_DX,
                   .n_class = V - cut };
    run(b, OP_QUANT, (OpArgs){ .quant = part });
    run(b, OP_QUANT, (OpArgs){ .quant = all });
    same(b, "codes", q, q2);
    same(b, "codes transposed", qt, qt2);
    same(b, "site", site, site2);
    clear(b);
}

static void verdict(Bench *b, Tally *t, const char *what, int64_t rows, int64_t cols, int form)
{
    char name[64];
    snprintf(name, sizeof name, "%s %s %lldx%lld form %d", what, dtype_name(b->dtype), (long long)rows,
             (long long)cols, form);
    if (b->why[0]) err_set("%s", b->why);
    tally(t, !b->why[0], "%s", name);
    b->why[0] = '\0';
}

static void check_quants(Bench *b, Tally *t, int64_t N, int64_t C, int form)
{
    if (C >= 264) {
        check_quant_xent(b, N, C, form == 3 ? 3 : 0);
        verdict(b, t, "quant of a loss", N, C, form);
    }
    for (int from = QUANT_ACT; from <= QUANT_GLU_DX; from++) {
        check_quant(b, N, C, form == 3 ? 3 : 0, form, (QuantFrom)from);
        verdict(b, t, "quant", N, C, 10 * from + form);
    }
}

int main(int argc, char **argv)
{
    int                  fp8_only   = argc > 1 && strcmp(argv[1], "quant") == 0;
    static const int64_t width[]    = { 8,    264,  768,  896,  1024, 1280, 1536,
                                        1600, 2048, 2304, 3072, 4096, 4104, 6400 };
    static const int64_t rows[]     = { 1, 67, 1030, 4099 };
    static const int64_t layer[][2] = {
        { 8, 24 }, { 264, 1032 }, { 768, 3072 }, { 1600, 6400 }, { 1024, 2816 }, { 4096, 1000 }, { 33, 130 }
    }; /* the last: no aligned rows */
    static const int64_t vocab[] = { 1000, 50304, 102400, 151936, 256000, 50257 };
    Tally                t       = { 0, 0 };
    const char          *why     = "";
    DevOptions           opt     = { .capture = 0, .tune = 0 };
    Bench                b       = { .dev = dev_open("cuda", &opt, &why), .seed = 1 };
    tally(&t, b.dev != NULL, "device opens");
    if (!b.dev) return tally_end(&t);
    for (int half = 0; half < 2; half++) {
        b.dtype = half ? DT_BF16 : DT_F32;
        for (int i = 0; i < ARRAY_LEN(width) * ARRAY_LEN(rows); i++) {
            int64_t C = width[i / ARRAY_LEN(rows)], N = rows[i % ARRAY_LEN(rows)];
            int     form = (i + i / ARRAY_LEN(rows)) % 8; /* every form meets every number of rows */
            check_quants(&b, &t, N, C, form);
            if (fp8_only) continue;
            check_norm(&b, N, C, form == 3 ? 3 : 0, form); /* odd padding: rows that are not aligned */
            verdict(&b, &t, "norm", N, C, form);
            check_act(&b, N, C, form == 3 ? 3 : 0, form);
            verdict(&b, &t, "act", N, C, form);
        }
        if (fp8_only) continue;
        for (int i = 0; i < ARRAY_LEN(layer) * ARRAY_LEN(rows); i++) {
            int64_t N = rows[i % ARRAY_LEN(rows)], C = layer[i / ARRAY_LEN(rows)][0],
                    F = layer[i / ARRAY_LEN(rows)][1];
            check_linear_act(&b, N, C, F, i % 8);
            verdict(&b, &t, "linear + act", N, F, i % 8);
            check_linear_glu(&b, N, C, F, i % 8);
            verdict(&b, &t, "linear + glu", N, F, i % 8);
            check_linear_glu_slope(&b, N, C, F, i % 8);
            verdict(&b, &t, "linear + glu slope", N, F, i % 8);
            check_linear_dw(&b, N, C, F);
            verdict(&b, &t, "linear dw + bias", N, F, 0);
            check_own(&b, N, C, F, i % 8);
            verdict(&b, &t, "own products", N, F, i % 8);
        }
        /* Short sums and many tiles a block: tiles are finished slower than they are summed. */
        for (int64_t C = 64; half && C <= 128; C *= 2) {
            check_linear_act(&b, 8192, C, 2048, 0);
            verdict(&b, &t, "linear + act, short", C, 2048, 0);
            check_linear_glu(&b, 8192, C, 2048, 2);
            verdict(&b, &t, "linear + glu, short", C, 2048, 2);
            check_linear_glu_slope(&b, 8192, C, 2048, 2);
            verdict(&b, &t, "linear + glu slope, short", C, 2048, 2);
        }
        for (int i = 0; i < 2 * ARRAY_LEN(vocab); i++) {
            check_xent(&b, 257, vocab[i / 2], i % 2 ? 13 : 0, i % 2, 0.3);
            verdict(&b, &t, "xent", 257, vocab[i / 2], i % 2);
        }
        /* Many rows a block, whole segments and parts of padding, no row, no target. */
        for (int i = 0; half && i < 6; i++) {
            static const int64_t shape[6][3] = { { 1100, 50304, 0 },     { 1100, 50304, 20000 },
                                                 { 500, 151936, 76000 }, { 400, 151936, 13 },
                                                 { 1, 151936, 0 },       { 300, 50304, 0 } };
            check_xent(&b, shape[i][0], shape[i][1], shape[i][2], i % 2, i == 5 ? 2 : 0.3);
            verdict(&b, &t, "xent, many rows", shape[i][0], shape[i][1], i);
        }
    }
    dev_close(b.dev);
    return tally_end(&t);
}
