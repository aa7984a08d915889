/* Times every op of a byte language model's step on the CPU: 6 layers, width 384, context 256, batch 16, f32.
 *
 * usage: bench_cpu_ops [threads]. Not a test. GFLOP/s for products and attention, GB/s (op_bytes) for the rest, and the
 * share of a whole step that each takes; OpenBLAS's own SGEMM on 2048 x 2048 for comparison, with the core it detected
 * (OPENBLAS_CORETYPE=SkylakeX where it detects wrongly). The last line is the whole step, then its linear layers alone. */
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
    row[n_row++] = (Row){ { .kind = kind, .label = label, .args = args }, times };
}

static void add_linear(const char *const label[3], int64_t k, int64_t m, int times, int act)
{
    Tensor *x = mat(N, k), *w = mat(m, k), *y = mat(N, m), *bias = vec(m);
    if (act) {
        OpArgs a = { .linear_act_fwd = {
                         .y = mat(N, m), .pre = y, .x = x, .w = w, .bias = bias, .act = ACT_GELU } };
        add(times, OP_LINEAR_ACT_FWD, label[0], a);
    } else {
        add(times, OP_LINEAR_FWD, label[0],
            (OpArgs){ .linear_fwd = { .y = y, .x = x, .w = w, .bias = bias } });
    }
    add(times, OP_LINEAR_DX, label[1], (OpArgs){ .linear_dx = { .dx = mat(N, k), .dy = y, .w = w } });
    add(times, OP_LINEAR_DW, label[2], (OpArgs){ .linear_dw = { .dw = mat(m, k), .dy = y, .x = x } });
}

static void add_linears(void)
{
    static const char *const name[][3] = { { "qkv fwd", "qkv dx", "qkv dw" },
                                           { "proj fwd", "proj dx", "proj dw" },
                                           { "fc fwd + gelu", "fc dx", "fc dw" },
                                           { "fc2 fwd", "fc2 dx", "fc2 dw" },
                                           { "head fwd", "head dx", "head dw" } };
    add_linear(name[0], C, 3 * C, LAYERS, 0);
    add_linear(name[1], C, C, LAYERS, 0);
    add_linear(name[2], C, F, LAYERS, 1);
    add_linear(name[3], F, C, LAYERS, 0);
    add_linear(name[4], C, V, 1, 0);
}

static void add_attention(void)
{
    Tensor *qkv = tensor(DT_F32, B, T, 3 * C), *o = tensor(DT_F32, B, T, C), *lse = tensor(DT_F32, B, H, T);
    AttnFwd f = { .o = o, .lse = lse, .qkv = qkv, .heads = H, .kv_heads = H, .head_dim = D, .scale = 0.125f };
    AttnBwd b = { .dqkv     = tensor(DT_F32, B, T, 3 * C),
                  .dout     = tensor(DT_F32, B, T, C),
                  .o        = o,
                  .lse      = lse,
                  .qkv      = qkv,
                  .heads    = H,
                  .kv_heads = H,
                  .head_dim = D,
                  .scale    = 0.125f };
    add(LAYERS, OP_ATTN_FWD, "attention fwd", (OpArgs){ .attn_fwd = f });
    add(LAYERS, OP_ATTN_BWD, "attention bwd", (OpArgs){ .attn_bwd = b });
    /* Not in place: repeated by a table that is no rotation, the numbers would sink to denormals, which are slow. */
    Rope r = {
        .y = tensor(DT_F32, B, T, 3 * C), .x = qkv, .table = mat(T, D), .n_head = 2 * H, .head_dim = D
    };
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
    NormBwd b = { .dx     = mat(N, C),
                  .dgamma = vec(C),
                  .dbeta  = vec(C),
                  .dy     = dy,
                  .x      = x,
                  .gamma  = gamma,
                  .mean   = mean,
                  .rstd   = rstd,
                  .dres   = mat(N, C) };
    add(2 * LAYERS + 1, OP_NORM_BWD, "norm bwd + add", (OpArgs){ .norm_bwd = b });
    add(0, OP_ADD, "add", (OpArgs){ .add = { .y = y, .a = x, .b = dy } });
    add(0, OP_COPY, "copy", (OpArgs){ .copy = { .y = y, .x = x } });
}

static void add_rows(void)
{
    Tensor    *x = mat(N, F), *dy = mat(N, F), *qkv = mat(N, 3 * C), *db = vec(F);
    ActBiasBwd b = { .dx = mat(N, F), .db = db, .dy = dy, .x = x, .act = ACT_GELU };
    add(LAYERS, OP_ACT_BIAS_BWD, "gelu + bias bwd", (OpArgs){ .act_bias_bwd = b });
    add(0, OP_ACT_FWD, "gelu fwd", (OpArgs){ .act_fwd = { .y = mat(N, F), .x = x, .act = ACT_GELU } });
    add(LAYERS, OP_BIAS_DW, "qkv bias dw", (OpArgs){ .bias_dw = { .db = vec(3 * C), .dy = qkv } });
    add(2 * LAYERS, OP_BIAS_DW, "proj bias dw", (OpArgs){ .bias_dw = { .db = vec(C), .dy = mat(N, C) } });
}

static StepState *state_of(Tensor *t) { return t->data; }

static void add_ends(void)
{
    Tensor *tok = tensor(DT_I32, B, T, 0), *state = tensor(DT_U8, sizeof(StepState), 0, 0), *loss = vec(N);
    state_of(state)->in = (StepIn){ .lr = 0.0f, .inv_targets = 1.0f / N, .loss_scale = 1 };
    EmbedFwd e          = { .y = mat(N, C), .tok = tok, .wte = mat(V, C), .wpe = mat(T, C) };
    add(1, OP_EMBED_FWD, "embed fwd", (OpArgs){ .embed_fwd = e });
    add(1, OP_EMBED_DW, "embed dw",
        (OpArgs){ .embed_dw = { .dwte = mat(V, C), .dy = mat(N, C), .tok = tok } });
    add(1, OP_POS_DW, "pos dw", (OpArgs){ .pos_dw = { .dwpe = mat(T, C), .dy = mat(N, C) } });
    Tensor *logits = mat(N, V);
    Xent    x      = {
                .loss = loss, .dlogits = mat(N, V), .logits = logits, .target = tok, .state = state, .n_class = V
    };
    add(1, OP_XENT, "xent", (OpArgs){ .xent = x });
    add(1, OP_LOSS_ADD, "loss add", (OpArgs){ .loss_add = { .state = state, .loss = loss } });
    Tensor *sample0 = tensor(DT_I64, 1, 0, 0);
    Dropout d       = { .y               = mat(N, C),
                        .x               = mat(N, C),
                        .state           = state,
                        .sample0         = sample0,
                        .p               = 0.1f,
                        .site            = 1,
                        .rows_per_sample = T };
    add(0, OP_DROPOUT, "dropout", (OpArgs){ .dropout = d });
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
    add(1, OP_ADAMW, "adamw", (OpArgs){ .adamw = a });
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

static double blas_gflops(int threads)
{
    enum { S = 2048, ROW_MAJOR = 101, NO_TRANS = 111, TRANS = 112 };
    float *a = mat(S, S)->data, *b = mat(S, S)->data, *c = mat(S, S)->data;
    double best = 1e9;
    openblas_set_num_threads(threads);
    for (int i = 0; i < 5; i++) {
        double start = clock_now_s();
        cblas_sgemm(ROW_MAJOR, NO_TRANS, TRANS, S, S, S, 1, a, S, b, S, 0, c, S);
        double s = clock_now_s() - start;
        if (s < best) best = s;
    }
    return 2.0 * S * S * S / best * 1e-9;
}

/* Time and work of a step's ops: all of them, or the linear layers alone (with what is fused into them). */
typedef struct {
    double s, flop;
} Total;

static int is_linear(OpKind kind)
{
    return kind == OP_LINEAR_FWD || kind == OP_LINEAR_ACT_FWD || kind == OP_LINEAR_DX || kind == OP_LINEAR_DW;
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
    add_linears();
    add_attention();
    add_norms();
    add_rows();
    add_ends();
    double blas = 0, time_s[MAX_OP];
    for (int i = 0; i < n_row * ROUNDS; i++) {
        double s = best_s(&row[i % n_row].op);
        if (i < n_row || s < time_s[i % n_row]) time_s[i % n_row] = s;
        if (i % n_row == 0) blas = MAX(blas, blas_gflops(info.n_sm));
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
