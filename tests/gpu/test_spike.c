/* The contract, end to end on a GPU: one transformer block forward and backward, one op with a quantised, a
 * transposed and an amax output, and one op on the comm lane. The list is recorded once and captured as one
 * CUDA graph. The CPU runs the same list, and the results must be equal. All is f32: bound 1e-4 of each
 * tensor's norm as in test_gpu_model.c; quantised values are exact (both sides round the same f32 numbers to
 * nearest even). */
#include "check.h"

#include "base/err.h"
#include "base/rng.h"
#include "net/net.h"
#include "prog/record.h"

#include <string.h>

typedef struct {
    Store    store;
    Net      net;
    NetBatch batch;
    Tensor  *state, *q, *qt, *site, *sum;
    Prog    *p;
    Dev     *dev;
} Side;

static RecipeModel model(void)
{
    return (RecipeModel){ .layers     = 1,
                          .width      = 192,
                          .heads      = 6,
                          .kv_heads   = 2,
                          .head_dim   = 32,
                          .ffn        = 256,
                          .vocab      = 200,
                          .context    = 96,
                          .norm       = NORM_RMS,
                          .norm_eps   = 1e-5,
                          .pos        = POS_ROPE,
                          .rope_theta = 1e4,
                          .act        = FFN_SWIGLU,
                          .init_std   = 0.05 };
}

static void declare(Side *s)
{
    RecipeModel m  = model();
    int64_t     sz = sizeof(StepState), one = 1, site = FP8_SITE;
    store_init(&s->store);
    s->state = store_tensor(&s->store, SLAB_STATE, "state", DT_U8, 1, &sz);
    net_declare(&s->net, &s->store, &m, &(ParamOptions){ .compute = DT_F32, .trains = 1, .decay = 0.1f },
                &(NetPlace){ 0 });
    int64_t tok[2] = { 3, m.context }, target[2] = { 3 * m.context, 1 };
    s->batch = (NetBatch){ .B       = 3,
                           .T       = m.context,
                           .sample0 = store_tensor(&s->store, SLAB_IO, "sample0", DT_I64, 1, &one),
                           .tok     = store_tensor(&s->store, SLAB_IO, "tok", DT_I32, 2, tok),
                           .target  = store_tensor(&s->store, SLAB_IO, "target", DT_I32, 2, target) };

    const Tensor *w      = param_find(&s->net.table, "block.0.up.weight")->col[COL_WEIGHT];
    int64_t       dim[2] = { tensor_rows(w), tensor_cols(w) }, tdim[2] = { dim[1], dim[0] };
    s->q       = store_tensor(&s->store, SLAB_COPY, "q", DT_E4M3, 2, dim);
    s->qt      = store_tensor(&s->store, SLAB_COPY, "qt", DT_E4M3, 2, tdim);
    s->site    = store_tensor(&s->store, SLAB_STATE, "site", DT_F32, 1, &site);
    int64_t *n = &s->net.table.region_elems[REGION_COPY];
    s->sum     = store_tensor(&s->store, SLAB_COMM, "reduced", DT_F32, 1, n);
    store_seal(&s->store);
}

static int record(Side *s, const DevVt *vt)
{
    RecomputeLevel level = LEVEL_BLOCK;
    RecipeOpt      opt   = { .add_norm       = 1,
                             .norm_bwd       = 1,
                             .xent           = 1,
                             .act_bias       = 1,
                             .linear_act_bwd = 1,
                             .linear_glu_fwd = 1,
                             .linear_glu_bwd = 1,
                             .linear_dw_bias = 1 };

    s->p = prog_begin("spike", &s->store);
    net_record(&s->net, s->p, &s->batch, s->state, NET_TRAIN, 100);
    prog_differentiate(s->p, &level, 1, s->state);
    prog_hoist_chunks(s->p);
    prog_at(s->p, -1, -1, "reduce");
    prog_lane(s->p, LANE_COMM);
    rec_all_reduce(s->p, (AllReduce){ .y = s->sum, .x = s->net.table.flat[COL_GRAD][REGION_COPY] });
    prog_lane(s->p, LANE_COMPUTE);
    prog_at(s->p, -1, -1, "quantise");
    rec_quant(s->p, (Quant){ .q       = s->q,
                             .qt      = s->qt,
                             .site    = s->site,
                             .x       = param_find(&s->net.table, "block.0.up.weight")->col[COL_WEIGHT],
                             .q_dtype = DT_E4M3 });
    prog_lower(s->p, &opt, vt);
    prog_plan(s->p);
    TRY(prog_verify(s->p));
    store_fit_act(&s->store, prog_stats(s->p).act_bytes);
    TRY(store_alloc_slabs(&s->store, s->dev));
    return prog_bind(s->p, s->dev);
}

static int put(Side *s, const Tensor *t, const void *src, size_t n)
{
    TRY(s->dev->vt->upload(s->dev, LANE_COMPUTE, t->data, src, n));
    return s->dev->vt->sync(s->dev);
}

static int get(Side *s, const Tensor *t, void *dst)
{
    TRY(s->dev->vt->download(s->dev, LANE_COMPUTE, dst, t->data, tensor_bytes(t)));
    return s->dev->vt->sync(s->dev);
}

static int fill(Side *s)
{
    StepState st = { .in = { .seed = 5, .inv[0] = 1.0f / 288, .loss_scale = 1 } };
    TRY(put(s, s->state, &st, sizeof st));
    float *buf = malloc(1 << 22);
    for (int i = 0; i < s->net.table.n_param; i++) {
        const Param *p = &s->net.table.param[i];
        param_init_values(p, 11, buf);
        TRY(put(s, p->col[COL_WEIGHT], buf, sizeof(float) * (size_t)(p->rows * p->cols)));
    }
    net_fill_rope(&s->net, buf);
    TRY(put(s, s->net.rope_table, buf, tensor_bytes(s->net.rope_table)));
    int32_t tok[288], target[288];
    for (int i = 0; i < 288; i++) {
        uint32_t r[4];
        rng_philox(r, 3, 1, 0, (uint64_t)i);
        tok[i]    = (int32_t)(r[0] % 200);
        target[i] = (int32_t)(r[1] % 200);
    }
    TRY(put(s, s->batch.tok, tok, sizeof tok));
    free(buf);
    return put(s, s->batch.target, target, sizeof target);
}

static int open_side(Side *s, const char *spec)
{
    const char *why;
    DevOptions  opt = { .capture = 1 };
    memset(s, 0, sizeof *s);
    s->dev = dev_open(spec, &opt, &why);
    if (!s->dev) return -1;
    declare(s);
    TRY(record(s, s->dev->vt));
    TRY(fill(s));
    for (int i = 0; i < 2; i++) TRY(prog_run(s->p, s->dev)); /* twice: a replay, and accumulation */
    return s->dev->vt->sync(s->dev);
}

static int quant_equal(Side *cpu, Side *gpu, const Tensor *tc, const Tensor *tg)
{
    size_t   n = (size_t)tensor_numel(tc);
    uint8_t *a = malloc(n), *b = malloc(n);
    int      ok = get(cpu, tc, a) == 0 && get(gpu, tg, b) == 0 && memcmp(a, b, n) == 0;
    free(a);
    free(b);
    return ok;
}

static double error_of(Side *cpu, Side *gpu, const Tensor *tc, const Tensor *tg)
{
    size_t n = (size_t)tensor_numel(tc);
    float *a = malloc(n * 4), *b = malloc(n * 4);
    double e = get(cpu, tc, a) == 0 && get(gpu, tg, b) == 0 ? rel_error(b, a, n) : NAN;
    free(a);
    free(b);
    return e;
}

int main(void)
{
    Tally t = { 0, 0 };
    Side  cpu, gpu;
    int   ok = open_side(&cpu, "cpu") == 0;
    tally(&t, ok, "spike on the cpu");
    int ok2 = ok && open_side(&gpu, "cuda") == 0;
    tally(&t, ok2, "spike captured and replayed on the gpu");
    if (!ok2) return tally_end(&t);
    for (int i = 0; i < cpu.net.table.n_param; i++) {
        double e =
            error_of(&cpu, &gpu, cpu.net.table.param[i].col[COL_GRAD], gpu.net.table.param[i].col[COL_GRAD]);
        tally(&t, e <= 1e-4, "gradient of %s: %.2e", cpu.net.table.param[i].name, e);
    }
    double e = error_of(&cpu, &gpu, cpu.sum, gpu.sum);
    tally(&t, e <= 1e-4, "comm lane saw the finished gradients: %.2e", e);
    tally(&t, quant_equal(&cpu, &gpu, cpu.q, gpu.q), "quantised");
    tally(&t, quant_equal(&cpu, &gpu, cpu.qt, gpu.qt), "quantised and transposed");
    tally(&t, error_of(&cpu, &gpu, cpu.site, gpu.site) == 0, "site");
    return tally_end(&t);
}
