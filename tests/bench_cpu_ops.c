/* Times every op of a byte language model's step on the CPU: 6 layers, width 384, context 256, batch 16, f32;
 * layer norm, learned positions, GELU, biases, tied head.
 *
 * The list is the lowered step with every optimisation on, except chunks of the head (`brim plan --list`
 * shows it). Bias gradients are part of the gradient of a norm, an activation or a weight. The update has one
 * range. Ops of other models or other choices of fusion come last and count 0 times.
 *
 * Usage: bench_cpu_ops [threads [sgemm]]. Not a test. Prints GFLOP/s for products and attention, GB/s
 * (op_bytes) for the other ops, and each op's share of a whole step. For comparison it prints OpenBLAS's
 * SGEMM on 2048 x 2048 and the core that OpenBLAS detected (OPENBLAS_CORETYPE=SkylakeX corrects a wrong one).
 * The last line is the whole step, then its linear layers alone. With sgemm only OpenBLAS's product runs,
 * without end, and prints a line each time (tools/cpu_turns.py). */
#include "base/clock.h"
#include "base/err.h"
#include "dev/dev.h"

#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The three functions of OpenBLAS that are used here; its header is not where the compiler looks. */
void  cblas_sgemm(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a, int lda,
                  const float *b, int ldb, float beta, float *c, int ldc);
void  openblas_set_num_threads(int n);
char *openblas_get_corename(void);

enum { B = 16, T = 256, N = B * T, C = 384, F = 1536, H = 6, D = 64, V = 256, LAYERS = 6, MAX_OP = 64 };

typedef struct {
    Op  op;
    int times; /* per step */
} Row;

static Dev   *dev;
static Row    row[MAX_OP];
static int    n_row;
static float *blob; /* random floats that every tensor starts from */

static Tensor *tensor(DType dtype, int64_t d0, int64_t d1, int64_t d2)
{
    Tensor *t    = calloc(1, sizeof *t);
    int64_t d[3] = { d0, d1, d2 };
    tensor_init(t, "t", dtype, d2 ? 3 : d1 ? 2 : 1, d);
    t->data = dev->vt->alloc(dev, tensor_bytes(t));
    CHECK(t->data, "%s", err_get());
    for (int64_t i = 0; i < tensor_numel(t); i++) {
        if (dtype == DT_F32) ((float *)t->data)[i] = blob[i % 65536];
        if (dtype == DT_I32) ((int32_t *)t->data)[i] = (int32_t)(i * 7919 % V);
    }
    return t;
}

static Tensor *mat(int64_t rows, int64_t cols) { return tensor(DT_F32, rows, cols, 0); }
static Tensor *vec(int64_t n) { return tensor(DT_F32, n, 0, 0); }

static void add(int times, OpKind kind, const char *label, OpArgs args)
{
    CHECK(n_row < MAX_OP, "more than %d ops", MAX_OP);
    row[n_row++] = (Row){ { .kind = kind, .label = label, .args = args }, times };
}

/* Forward, gradient of the input, gradient of the weight. */
typedef struct {
    const char *label[3];
    int64_t     k, m;
    int         times, bias, act; /* act: an activation follows */
    int after_act; /* an activation precedes: its gradient and its bias gradient are in dx's product */
    int db;        /* the bias gradient is in dw's product */
} Linear;

static void add_linear(const Linear *l)
{
    Tensor *x = mat(N, l->k), *w = mat(l->m, l->k), *y = mat(N, l->m), *bias = l->bias ? vec(l->m) : NULL;
    if (l->act) {
        LinearActFwd a = { .y = mat(N, l->m), .pre = y, .x = x, .w = w, .bias = bias, .act = ACT_GELU };
        add(l->times, OP_LINEAR_ACT_FWD, l->label[0], (OpArgs){ .linear_act_fwd = a });
    } else {
        LinearFwd f = { .y = y, .x = x, .w = w, .bias = bias };
        add(l->times, OP_LINEAR_FWD, l->label[0], (OpArgs){ .linear_fwd = f });
    }
    if (l->after_act) {
        LinearActBwd b = {
            .dpre = mat(N, l->k), .db = vec(l->k), .dy = y, .w = w, .pre = mat(N, l->k), .act = ACT_GELU
        };
        add(l->times, OP_LINEAR_ACT_BWD, l->label[1], (OpArgs){ .linear_act_bwd = b });
    } else {
        add(l->times, OP_LINEAR_DX, l->label[1],
            (OpArgs){ .linear_dx = { .dx = mat(N, l->k), .dy = y, .w = w } });
    }
    LinearDw d = { .dw = mat(l->m, l->k), .db = l->db ? vec(l->m) : NULL, .dy = y, .x = x };
    add(l->times, OP_LINEAR_DW, l->label[2], (OpArgs){ .linear_dw = d });
}

static void add_linears(void)
{
    static const Linear l[] = {
        { { "qkv fwd", "qkv dx", "qkv dw + db" }, C, 3 * C, LAYERS, .bias = 1, .db = 1 },
        { { "proj fwd", "proj dx", "proj dw" }, C, C, LAYERS, .bias = 1 },
        { { "up fwd + gelu", "up dx", "up dw" }, C, F, LAYERS, .bias = 1, .act = 1 },
        { { "down fwd", "down dx + gelu", "down dw" }, F, C, LAYERS, .bias = 1, .after_act = 1 },
        { { "head fwd", "head dx", "head dw" }, C, V, .times = 1 },
    };
    for (int i = 0; i < ARRAY_LEN(l); i++) add_linear(&l[i]);
}

static void add_attention(void)
{
    Tensor   *qkv = tensor(DT_F32, B, T, 3 * C), *o = tensor(DT_F32, B, T, C), *lse = tensor(DT_F32, B, H, T);
    AttnShape s = { .heads = H, .kv_heads = H, .head_dim = D, .scale = 0.125f };
    AttnFwd   f = { .o = o, .lse = lse, .qkv = qkv, .shape = s };
    AttnBwd   b = { .dqkv  = tensor(DT_F32, B, T, 3 * C),
                    .dout  = tensor(DT_F32, B, T, C),
                    .o     = o,
                    .lse   = lse,
                    .qkv   = qkv,
                    .shape = s };
    add(LAYERS, OP_ATTN_FWD, "attention fwd", (OpArgs){ .attn_fwd = f });
    add(LAYERS, OP_ATTN_BWD, "attention bwd", (OpArgs){ .attn_bwd = b });
}

static void add_norms(void)
{
    Tensor *x = mat(N, C), *y = mat(N, C), *dy = mat(N, C), *mean = vec(N), *rstd = vec(N), *gamma = vec(C),
           *beta = vec(C);
    NormFwd f    = { .y = y, .mean = mean, .rstd = rstd, .x = x, .gamma = gamma, .beta = beta, .eps = 1e-5f };
    add(1, OP_NORM_FWD, "norm fwd", (OpArgs){ .norm_fwd = f });
    AddNormFwd an = { .y     = y,
                      .sum   = mat(N, C),
                      .mean  = mean,
                      .rstd  = rstd,
                      .a     = x,
                      .b     = dy,
                      .gamma = gamma,
                      .beta  = beta,
                      .eps   = 1e-5f };
    add(2 * LAYERS, OP_ADD_NORM_FWD, "add + norm fwd", (OpArgs){ .add_norm_fwd = an });
    /* With the bias gradient of the layer before the residual: all but the first block's first norm. */
    NormBwd last  = { .dx     = mat(N, C),
                      .dgamma = vec(C),
                      .dbeta  = vec(C),
                      .dbias  = vec(C),
                      .dy     = dy,
                      .x      = x,
                      .gamma  = gamma,
                      .mean   = mean,
                      .rstd   = rstd };
    NormBwd inner = last, first = last;
    inner.dres = first.dres = mat(N, C);
    first.dbias             = NULL;
    add(1, OP_NORM_BWD, "norm bwd + db", (OpArgs){ .norm_bwd = last });
    add(2 * LAYERS - 1, OP_NORM_BWD, "norm bwd+add+db", (OpArgs){ .norm_bwd = inner });
    add(1, OP_NORM_BWD, "norm bwd + add", (OpArgs){ .norm_bwd = first });
}

static StepState *state_of(Tensor *t) { return t->data; }

static void add_ends(void)
{
    Tensor *tok = tensor(DT_I32, B, T, 0), *state = tensor(DT_U8, sizeof(StepState), 0, 0), *loss = vec(N);
    state_of(state)->in = (StepIn){ .lr = 0.0f, .inv[0] = 1.0f / N, .loss_scale = 1 };
    EmbedFwd e          = { .y = mat(N, C), .tok = tok, .wte = mat(V, C), .wpe = mat(T, C) };
    add(1, OP_EMBED_FWD, "embed fwd", (OpArgs){ .embed_fwd = e });
    add(1, OP_EMBED_DW, "embed dw",
        (OpArgs){ .embed_dw = { .dwte = mat(V, C), .dy = mat(N, C), .tok = tok } });
    add(1, OP_POS_DW, "pos dw", (OpArgs){ .pos_dw = { .dwpe = mat(T, C), .dy = tensor(DT_F32, B, T, C) } });
    Tensor *logits = mat(N, V);
    Xent    x      = {
                .loss    = loss,
                .dlogits = mat(N, V),
                .logits  = logits,
                .target  = tok,
                .state   = state,
                .n_class = V,
    };
    add(1, OP_XENT, "xent", (OpArgs){ .xent = x });
    add(1, OP_LOSS_ADD, "loss add", (OpArgs){ .loss_add = { .state = state, .loss = loss } });
    int64_t n   = (int64_t)LAYERS * 12 * C * C + 2 * V * C;
    Tensor *seg = tensor(DT_U8, sizeof(Segment), 0, 0), *grad = vec(n);
    *(Segment *)seg->data = (Segment){ 0, n, 0.1f, 1.0f };
    AdamW a               = { .master = vec(n),
                              .m      = vec(n),
                              .v      = vec(n),
                              .grad   = grad,
                              .state  = state,
                              .seg    = seg,
                              .beta1  = 0.9f,
                              .beta2  = 0.95f,
                              .eps    = 1e-8f };
    add(1, OP_SUMSQ, "sumsq", (OpArgs){ .sumsq = { .state = state, .x = grad } });
    Tensor *own       = tensor(DT_U8, sizeof(StepState), 0, 0); /* adamw's stays as it is */
    state_of(own)->in = state_of(state)->in;
    Clip c            = { .state = own, .max_norm = 1, .beta1 = a.beta1, .beta2 = a.beta2 };
    add(1, OP_CLIP, "clip", (OpArgs){ .clip = c });
    add(1, OP_ADAMW, "adamw", (OpArgs){ .adamw = a });
}

/* ---- Not in this step ---------------------------------------------------------------------------------- */

static void add_gated(void)
{
    Tensor      *x = mat(N, C), *pre = mat(N, 2 * F), *w = mat(2 * F, C);
    LinearGluFwd f = { .y = mat(N, F), .pre = pre, .x = x, .w = w, .act = ACT_SILU };
    LinearGluBwd b = { .dpre = mat(N, 2 * F), .dy = mat(N, C), .w = mat(C, F), .pre = pre, .act = ACT_SILU };
    add(0, OP_LINEAR_GLU_FWD, "up fwd + gate", (OpArgs){ .linear_glu_fwd = f });
    add(0, OP_LINEAR_GLU_BWD, "down dx + gate", (OpArgs){ .linear_glu_bwd = b });
}

static void add_parts(void)
{
    Tensor    *x = mat(N, C), *wide = mat(N, F), *dy = mat(N, F);
    ActBiasBwd b = { .dx = mat(N, F), .db = vec(F), .dy = dy, .x = wide, .act = ACT_GELU };
    add(0, OP_ACT_BIAS_BWD, "gelu + bias bwd", (OpArgs){ .act_bias_bwd = b });
    add(0, OP_ACT_FWD, "gelu fwd", (OpArgs){ .act_fwd = { .y = mat(N, F), .x = wide, .act = ACT_GELU } });
    add(0, OP_BIAS_DW, "qkv bias dw", (OpArgs){ .bias_dw = { .db = vec(3 * C), .dy = mat(N, 3 * C) } });
    add(0, OP_ADD, "add", (OpArgs){ .add = { .y = mat(N, C), .a = x, .b = mat(N, C) } });
    add(0, OP_COPY, "copy", (OpArgs){ .copy = { .y = mat(N, C), .x = x } });
}

static void add_heads(void)
{
    /* Not in place: repeated by a table that is no rotation, the numbers would sink to denormals, which are
     * slow. */
    Rope r = { .y        = tensor(DT_F32, B, T, 3 * C),
               .x        = tensor(DT_F32, B, T, 3 * C),
               .table    = mat(T, D),
               .n_head   = 2 * H,
               .head_dim = D };
    add(0, OP_ROPE, "rope", (OpArgs){ .rope = r });
    QkNormFwd q = { .y        = mat(N, 3 * C),
                    .rstd     = mat(N, 2 * H),
                    .x        = mat(N, 3 * C),
                    .gq       = vec(D),
                    .gk       = vec(D),
                    .heads    = H,
                    .kv_heads = H,
                    .head_dim = D,
                    .eps      = 1e-5f };
    add(0, OP_QKNORM_FWD, "qknorm fwd", (OpArgs){ .qknorm_fwd = q });
}

static void add_dropout(void)
{
    Tensor *state = tensor(DT_U8, sizeof(StepState), 0, 0);
    Dropout d     = { .y               = mat(N, C),
                      .x               = mat(N, C),
                      .state           = state,
                      .sample0         = tensor(DT_I64, 1, 0, 0),
                      .p               = 0.1f,
                      .site            = 1,
                      .rows_per_sample = T };
    add(0, OP_DROPOUT, "dropout", (OpArgs){ .dropout = d });
}

/* Best of several runs, in rounds over all ops: this measures the code, not the machine's other guests. */
enum { ROUNDS = 4 };

static double best_s(const Op *op)
{
    double best = 1e9, spent = 0;
    for (int i = 0; i < 100 && (spent < 0.05 || i < 3); i++) {
        double start = clock_now_s();
        CHECK(dev_run_op(dev, op) == 0, "%s", err_get());
        double s = clock_now_s() - start;
        spent += s;
        if (s < best) best = s;
    }
    return best;
}

/* Best of n products of OpenBLAS's, or with n = 0 one after another and a line for each. */
static double blas_gflops(int threads, int n)
{
    enum { S = 2048, ROW_MAJOR = 101, NO_TRANS = 111, TRANS = 112 };
    float *a = mat(S, S)->data, *b = mat(S, S)->data, *c = mat(S, S)->data;
    double best = 1e9;
    openblas_set_num_threads(threads);
    for (int i = 0; n == 0 || i < n; i++) {
        double start = clock_now_s();
        cblas_sgemm(ROW_MAJOR, NO_TRANS, TRANS, S, S, S, 1, a, S, b, S, 0, c, S);
        double s = clock_now_s() - start;
        if (s < best) best = s;
        if (n == 0) {
            printf("%.1f GFLOP/s\n", 2.0 * S * S * S / s * 1e-9);
            fflush(stdout);
        }
    }
    return 2.0 * S * S * S / best * 1e-9;
}

/* Time and work of a step's ops: all of them, or the linear layers alone (with what is fused into them). */
typedef struct {
    double s, flop;
} Total;

static int is_linear(OpKind kind)
{
    switch (kind) {
    case OP_LINEAR_FWD:
    case OP_LINEAR_DX:
    case OP_LINEAR_DW:
    case OP_LINEAR_ACT_FWD:
    case OP_LINEAR_ACT_BWD:
    case OP_LINEAR_GLU_FWD:
    case OP_LINEAR_GLU_BWD: return 1;
    default: return 0;
    }
}

static Total total_of(const double *time_s, int linear_only)
{
    Total t = { 0 };
    for (int i = 0; i < n_row; i++) {
        if (linear_only && !is_linear(row[i].op.kind)) continue;
        t.s += time_s[i] * row[i].times;
        t.flop += op_flops(row[i].op.kind, &row[i].op.args) * row[i].times;
    }
    return t;
}

static void print_total(const char *what, Total t, double blas)
{
    double gflops = t.flop / t.s * 1e-9;
    printf("%s %.1f ms, %.1f GFLOP/s, %.0f %% of OpenBLAS", what, t.s * 1e3, gflops, 100 * gflops / blas);
}

int main(int argc, char **argv)
{
    DevOptions opt = { .threads = argc > 1 ? atoi(argv[1]) : 0 };
    dev            = dev_open("cpu", &opt, NULL);
    CHECK(dev, "%s", err_get());
    DevInfo info;
    dev->vt->info(dev, &info);
    blob = malloc(65536 * sizeof(float));
    for (int i = 0; i < 65536; i++) blob[i] = (float)rand() / (float)RAND_MAX - 0.5f;
    if (argc > 2 && strcmp(argv[2], "sgemm") == 0) return blas_gflops(info.n_sm, 0) < 0;
    add_linears();
    add_attention();
    add_norms();
    add_ends();
    add_gated();
    add_parts();
    add_heads();
    add_dropout();
    double blas = 0, time_s[MAX_OP];
    for (int i = 0; i < n_row * ROUNDS; i++) {
        double s = best_s(&row[i % n_row].op);
        if (i < n_row || s < time_s[i % n_row]) time_s[i % n_row] = s;
        if (i % n_row == 0) blas = MAX(blas, blas_gflops(info.n_sm, 5));
    }
    printf("%s (%s); OpenBLAS %s %.1f GFLOP/s\n", info.name, info.versions, openblas_get_corename(), blas);
    Total step = total_of(time_s, 0);
    for (int i = 0; i < n_row; i++) {
        double flops = op_flops(row[i].op.kind, &row[i].op.args),
               bytes = op_bytes(row[i].op.kind, &row[i].op.args);
        printf("%-16s %9.1f us %8.1f %s  %5.1f %%\n", row[i].op.label, time_s[i] * 1e6,
               (flops > 0 ? flops : bytes) / time_s[i] * 1e-9, flops > 0 ? "GFLOP/s" : "GB/s   ",
               100 * time_s[i] * row[i].times / step.s);
    }
    print_total("step", step, blas);
    print_total("; its products", total_of(time_s, 1), blas);
    printf("\n");
    return 0;
}
