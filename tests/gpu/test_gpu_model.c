/* Whole models on CUDA against the CPU definition: losses and every gradient of one step, then ten optimizer
 * steps, for odd shapes and for every kind of block. Same weights, same batches.
 *
 * Bounds. fp32: both sides round each operation to 2^-24. A gradient is a chain of about 20 products over
 * sums of up to some thousand terms. Their errors add like a random walk, so 1e-4 of a tensor's norm leaves a
 * factor of ten. bf16: the CPU runs the same list a second time with weights and every tensor between ops
 * rounded to bf16. The difference is the error of bf16 itself. CUDA may be off by at most twice this error,
 * tensor by tensor (plus 2^-9, one rounding, for small tensors whose error happens to be near zero). */
#include "check.h"

#include "base/err.h"
#include "base/rng.h"
#include "jobs.h"
#include "run/build.h"

#include <string.h>
#include <unistd.h>

typedef struct {
    const char *name;
    int64_t     layers, width, heads, kv, head_dim, ffn, vocab, context, batch;
    int         llama; /* rms, rope, swiglu, no bias */
    int         qkv_bias, qk_norm, tied;
    double      dropout;
    Masking     mask;
    int         stored; /* attention stores its weights */
} Shape;

static const Shape shapes[] = {
    { "gpt2", 2, 256, 4, 4, 64, 1024, 512, 128, 4, 0, 0, 0, 1, 0, MASKING_CAUSAL, 0 },
    { "llama gqa", 2, 256, 8, 2, 32, 512, 300, 96, 3, 1, 0, 0, 0, 0, MASKING_CAUSAL, 0 },
    { "qwen", 2, 448, 7, 1, 64, 640, 777, 128, 2, 1, 1, 0, 1, 0, MASKING_CAUSAL, 0 },
    { "qk norm", 1, 256, 4, 2, 64, 512, 256, 64, 2, 1, 0, 1, 1, 0, MASKING_CAUSAL, 0 },
    { "dropout", 2, 128, 2, 2, 64, 512, 256, 128, 2, 0, 0, 0, 1, 0.1, MASKING_CAUSAL, 0 },
    { "full mask", 1, 256, 4, 4, 64, 512, 256, 128, 2, 0, 0, 0, 1, 0, MASKING_FULL, 0 },
    { "documents", 1, 256, 4, 2, 64, 512, 256, 128, 2, 1, 0, 0, 1, 0, MASKING_DOCUMENT, 0 },
    { "T=1000 V=50257 width 832/13 batch 3", 1, 832, 13, 13, 64, 3328, 50257, 1000, 3, 0, 0, 0, 1, 0,
      MASKING_CAUSAL, 0 },
    { "GQA 14/2", 1, 896, 14, 2, 64, 2432, 1000, 256, 2, 1, 1, 0, 1, 0, MASKING_CAUSAL, 0 },
    { "head size 80", 1, 640, 8, 8, 80, 2560, 513, 200, 2, 0, 0, 0, 1, 0, MASKING_CAUSAL, 0 },
    { "stored attention", 2, 256, 8, 2, 32, 512, 300, 128, 3, 1, 0, 0, 0, 0, MASKING_CAUSAL, 1 },
    { "stored attention, documents, T=100", 1, 240, 3, 3, 80, 512, 300, 100, 3, 0, 0, 0, 1, 0,
      MASKING_DOCUMENT, 1 },
    { "T=1", 1, 128, 2, 2, 64, 512, 256, 1, 5, 0, 0, 0, 1, 0, MASKING_CAUSAL, 0 },
};

static Recipe make_recipe(const Shape *s)
{
    Recipe r;
    recipe_defaults(&r);
    snprintf(r.file, sizeof r.file, "%s", s->name);
    r.seed         = 7;
    r.step_tokens  = s->batch * s->context;
    r.step_samples = s->batch;
    r.model        = (RecipeModel){ .layers     = s->layers,
                                    .width      = s->width,
                                    .heads      = s->heads,
                                    .kv_heads   = s->kv,
                                    .head_dim   = s->head_dim,
                                    .ffn        = s->ffn,
                                    .vocab      = s->vocab,
                                    .context    = s->context,
                                    .norm       = s->llama ? NORM_RMS : NORM_LAYER,
                                    .norm_eps   = 1e-5,
                                    .pos        = s->llama ? POS_ROPE : POS_LEARNED,
                                    .rope_theta = 1e4,
                                    .act        = s->llama ? FFN_SWIGLU : FFN_GELU,
                                    .bias       = !s->llama,
                                    .qkv_bias   = s->qkv_bias,
                                    .tied       = s->tied,
                                    .qk_norm    = s->qk_norm,
                                    .dropout    = s->dropout,
                                    .mask       = s->mask,
                                    .init_std   = 0.05 };
    r.opt.flash    = !s->stored;
    r.optim        = (RecipeOptim){
               .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .clip = 1.0
    };
    return r;
}

static Job *open_job(const Recipe *r, int64_t batch, const DevVt *vt, Dev *dev, DType compute,
                     RecomputeLevel level)
{
    Job      *b = NULL;
    JobChoice c = { .micro_batch = batch,
                    .level       = level,
                    .head_rows   = MIN(batch * r->model.context, 1024),
                    .compute     = compute };
    if (build_create(&b, &task_lm, r, &c, JOB_TRAIN, vt) < 0) return NULL;
    if (build_bind(b, dev) < 0 || build_init(b) < 0) {
        build_destroy(b);
        return NULL;
    }
    return b;
}

/* Step state and batch number k on the device. */
static int upload_batch(Job *b, int k)
{
    const NetBatch *nb = &lm_of(b)->batch;
    int64_t         T = nb->T, N = nb->B * T;
    size_t          bytes = tensor_bytes(b->block);
    char           *host  = b->dev->vt->host_alloc(b->dev, bytes);
    int32_t        *tok   = (int32_t *)(host + nb->tok->offset_bytes),
            *target       = (int32_t *)(host + nb->target->offset_bytes),
            *doc          = nb->doc ? (int32_t *)(host + nb->doc->offset_bytes) : NULL;
    StepState s;
    if (!host) return -1;
    memset(host, 0, bytes);
    fields_set_sample0(host, k * nb->B);
    int64_t valid = 0;
    for (int64_t i = 0; i < N; i++) {
        uint32_t r[4];
        rng_philox(r, 99, (uint32_t)k, 0, (uint64_t)i);
        tok[i]    = (int32_t)(r[0] % (uint32_t)b->recipe.model.vocab);
        target[i] = r[1] % 11 == 0 ? -1 : (int32_t)(r[2] % (uint32_t)b->recipe.model.vocab);
        valid += target[i] >= 0;
        if (doc) doc[i] = (int32_t)((i % T) / 50 * 50);
    }
    int   rc     = job_read_state(b, &s);
    float inv    = 1.0f / (float)MAX(valid, 1);
    s.in         = (StepIn){ .step = k, .seed = 7, .lr = 1e-3f, .inv[0] = inv, .loss_scale = 1 };
    s.out.sum[0] = 0;
    if (rc == 0) rc = job_write_state(b, &s);
    if (rc == 0) rc = b->dev->vt->upload(b->dev, LANE_COMPUTE, b->block->data, host, bytes);
    if (rc == 0) rc = b->dev->vt->sync(b->dev);
    b->dev->vt->host_free(b->dev, host);
    return rc;
}

/* Runs one micro-step on batch number k. */
static int run_step(Job *b, int k, StepState *out)
{
    TRY(upload_batch(b, k));
    TRY(prog_run(job_prog(b, "micro-step"), b->dev));
    return job_read_state(b, out);
}

static float *read_param(Job *b, const Param *p, Column which)
{
    float *x = malloc(sizeof *x * (size_t)(p->rows * p->cols));
    if (job_read_param(b, p, which, x) < 0) x[0] = NAN;
    return x;
}

/* The key part of a qkv bias shifts all scores of a query alike: its gradient is exactly zero and what comes
 * out is rounding noise, which AdamW turns into full-size steps. Those elements are left out. */
static void blank_key_bias(const Job *b, const Param *p, float *x)
{
    const RecipeModel *m = &b->recipe.model;
    if (!strstr(p->name, "qkv.bias") || m->pos == POS_ROPE) return;
    memset(x + m->heads * m->head_dim, 0, sizeof *x * (size_t)(m->kv_heads * m->head_dim));
}

static double worst_param(Job *a, Job *b, int grads, const char **which)
{
    double worst = 0;
    for (int i = 0; i < a->table[0]->n_param; i++) {
        Param *pa = &a->table[0]->param[i], *pb = &b->table[0]->param[i];
        float *x = read_param(a, pa, grads ? COL_GRAD : COL_WEIGHT);
        float *y = read_param(b, pb, grads ? COL_GRAD : COL_WEIGHT);
        blank_key_bias(a, pa, x);
        blank_key_bias(b, pb, y);
        double e = rel_error(x, y, (size_t)(pa->rows * pa->cols));
        if (!(e <= worst)) {
            worst  = e;
            *which = pa->name;
        }
        free(x);
        free(y);
    }
    return worst;
}

static void compare_f32(Tally *t, const Shape *s, Dev *cpu, Dev *gpu)
{
    Recipe      r     = make_recipe(s);
    Job        *a     = open_job(&r, s->batch, gpu->vt, gpu, DT_F32, LEVEL_NONE);
    Job        *b     = open_job(&r, s->batch, cpu->vt, cpu, DT_F32, LEVEL_NONE);
    const char *which = "";
    StepState   sa, sb;
    int         ok    = a && b && run_step(a, 3, &sa) == 0 && run_step(b, 3, &sb) == 0;
    double      worst = ok ? worst_param(a, b, 1, &which) : NAN;
    double      loss  = ok ? fabs(sa.out.sum[0] - sb.out.sum[0]) / fabs(sb.out.sum[0]) : NAN;
    tally(t, ok && worst <= 1e-4 && loss <= 1e-4, "gradients f32 %s: worst %.2e (%s), loss %.2e", s->name,
          worst, which, loss);
    build_destroy(a);
    build_destroy(b);
}

/* ---- bf16 ---------------------------------------------------------------------------------------------- */

static void round_bf16(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, &x[i], 4);
        u = (u + 0x7FFF + ((u >> 16) & 1)) & 0xFFFF0000u;
        memcpy(&x[i], &u, 4);
    }
}

/* Runs the CPU's list op by op, rounding what the same op of the GPU's list writes in bf16. */
static int run_rounded(Job *b, const Job *gpu)
{
    const ParamTable *t = b->table[0];
    round_bf16(t->flat[COL_WEIGHT][REGION_COPY]->data, t->region_elems[REGION_COPY]);
    const Prog *list = job_prog(b, "micro-step"), *model = job_prog(gpu, "micro-step");
    if (prog_n_op(list) != prog_n_op(model)) return err_set("the two lists differ");
    for (int i = 0; i < prog_n_op(list); i++) {
        const Op *op = prog_op(list, i), *like = prog_op(model, i);
        TRY(dev_run_op(b->dev, op));
        for (int k = 0; k < op_table[op->kind].n_tensor; k++) {
            const Tensor *x = op->args.t[k];
            if (!x || x->slab != SLAB_ACT || !(op_table[op->kind].arg[k].access & ARG_WRITE)) continue;
            if (like->args.t[k]->dtype == DT_BF16) round_bf16(x->data, tensor_numel(x)); /* all contiguous */
        }
    }
    return 0;
}

static void compare_bf16(Tally *t, const Shape *s, Dev *cpu, Dev *gpu)
{
    Recipe r         = make_recipe(s);
    r.opt.linear_act = 0; /* rounds in another place, see job.c */
    Job *a           = open_job(&r, s->batch, gpu->vt, gpu, DT_BF16, LEVEL_NONE);
    Job *b           = open_job(&r, s->batch, cpu->vt, cpu, DT_F32, LEVEL_NONE);
    /* What rounding alone costs shows in the lists whose products are not fused: a fused one rounds inside,
     * too. */
    r.opt.linear_act_bwd = r.opt.linear_glu_fwd = r.opt.linear_glu_bwd = r.opt.linear_dw_bias = 0;
    Job      *like = open_job(&r, s->batch, gpu->vt, gpu, DT_BF16, LEVEL_NONE);
    Job      *c    = open_job(&r, s->batch, cpu->vt, cpu, DT_F32, LEVEL_NONE);
    StepState st;
    int       ok = a && b && c && like && run_step(a, 3, &st) == 0 && run_step(b, 3, &st) == 0 &&
             upload_batch(c, 3) == 0 && run_rounded(c, like) == 0;
    double worst     = 0;
    char   text[160] = "";
    for (int i = 0; ok && i < a->table[0]->n_param; i++) {
        Param *p    = &a->table[0]->param[i];
        size_t n    = (size_t)(p->rows * p->cols);
        float *x    = read_param(a, p, COL_GRAD);
        float *y    = read_param(b, &b->table[0]->param[i], COL_GRAD);
        float *z    = read_param(c, &c->table[0]->param[i], COL_GRAD);
        double mine = rel_error(x, y, n), price = rel_error(z, y, n), ratio = mine / (2 * price + 0x1p-9);
        if (!(ratio <= worst)) {
            worst = ratio;
            snprintf(text, sizeof text, "%s: %.2e, rounding alone %.2e", p->name, mine, price);
        }
        free(x);
        free(y);
        free(z);
    }
    tally(t, ok && worst <= 1, "gradients bf16 %s: worst %s", s->name, text);
    build_destroy(a);
    build_destroy(like);
    build_destroy(b);
    build_destroy(c);
}

/* Ten steps in fp32 on both. AdamW divides by sqrt(v): where a gradient is only rounding noise the two sides
 * may step in opposite directions by lr each, so weights are compared to 10 steps * lr of noise on 1e-3 of
 * the elements at most, i.e. losses to 1e-4 and weights to 1e-3 of their norm. */
static void compare_training(Tally *t, const Shape *s, Dev *cpu, Dev *gpu)
{
    Recipe      r     = make_recipe(s);
    Job        *a     = open_job(&r, s->batch, gpu->vt, gpu, DT_F32, LEVEL_NONE);
    Job        *b     = open_job(&r, s->batch, cpu->vt, cpu, DT_F32, LEVEL_NONE);
    const char *which = "";
    double      loss  = 0;
    int         ok    = a && b;
    for (int k = 0; ok && k < 10; k++) {
        StepState sa, sb;
        ok = run_step(a, k, &sa) == 0 && run_step(b, k, &sb) == 0 &&
             prog_run(job_prog(a, "update"), gpu) == 0 && prog_run(job_prog(b, "update"), cpu) == 0 &&
             job_read_state(a, &sa) == 0 && job_read_state(b, &sb) == 0;
        loss = MAX(loss, fabs((double)sa.out.loss - sb.out.loss) / fabs((double)sb.out.loss));
        loss = MAX(loss,
                   fabs((double)sa.out.grad_norm - sb.out.grad_norm) / fabs((double)sb.out.grad_norm) * 0.1);
        ok &= sa.out.skip == 0 && sb.out.skip == 0;
    }
    double worst = ok ? worst_param(a, b, 0, &which) : NAN;
    tally(t, ok && loss <= 1e-4 && worst <= 1e-3, "10 steps f32 %s: loss %.2e, weights %.2e (%s)", s->name,
          loss, worst, which);
    build_destroy(a);
    build_destroy(b);
}

/* The three recomputation levels must give the same bits on the same device. Attention's dQ is summed by
 * atomics in the fast variant, so this runs deterministic. */
static void compare_levels(Tally *t, const Shape *s, Dev *gpu, DType compute)
{
    Recipe r        = make_recipe(s);
    r.deterministic = 1;
    Job *a          = open_job(&r, s->batch, gpu->vt, gpu, compute, LEVEL_NONE);
    for (int level = LEVEL_CHEAP; level <= LEVEL_BLOCK; level++) {
        Job        *b     = open_job(&r, s->batch, gpu->vt, gpu, compute, (RecomputeLevel)level);
        const char *which = "";
        StepState   sa, sb;
        int    ok = a && b && (level > LEVEL_CHEAP || run_step(a, 1, &sa) == 0) && run_step(b, 1, &sb) == 0;
        double worst = ok ? worst_param(b, a, 1, &which) : NAN;
        tally(t, ok && worst == 0, "recompute level %d %s %s: difference %.2e (%s)", level,
              dtype_name(compute), s->name, worst, which);
        build_destroy(b);
    }
    build_destroy(a);
}

/* With algorithms and kernels chosen by timing, and once more as the cache remembers them. */
static void compare_tuned(Tally *t, Dev *cpu)
{
    char        cache[] = "/tmp/brim-tune-XXXXXX";
    const char *why     = "";
    int         fd      = mkstemp(cache);
    DevOptions  opt     = { .capture = 1, .tune = 1, .tune_cache = cache };
    if (fd >= 0) close(fd);
    for (int warm = 0; warm < 2; warm++) {
        Dev *gpu = dev_open("cuda", &opt, &why);
        tally(t, gpu != NULL, "tuned device opens, %s cache", warm ? "warm" : "cold");
        for (int i = 0; gpu && i < 3; i++) compare_bf16(t, &shapes[i], cpu, gpu);
        if (gpu) dev_close(gpu);
    }
    unlink(cache);
}

int main(void)
{
    Tally       t   = { 0, 0 };
    const char *why = "";
    DevOptions  opt = { .capture = 1, .tune = 0 };
    DevOptions  det = { .capture = 1, .tune = 0, .deterministic = 1 };
    Dev        *cpu = dev_open("cpu", &opt, &why);
    Dev        *gpu = dev_open("cuda", &opt, &why);
    tally(&t, cpu && gpu, "devices open");
    if (!cpu || !gpu) return tally_end(&t);
    for (int i = 0; i < ARRAY_LEN(shapes); i++) {
        compare_f32(&t, &shapes[i], cpu, gpu);
        compare_bf16(&t, &shapes[i], cpu, gpu);
    }
    for (int i = 0; i < 5; i++) compare_training(&t, &shapes[i], cpu, gpu);
    dev_close(gpu);
    gpu = dev_open("cuda", &det, &why);
    tally(&t, gpu != NULL, "deterministic device opens");
    for (int i = 0; gpu && i < 5; i++) compare_levels(&t, &shapes[i], gpu, DT_BF16);
    if (gpu) dev_close(gpu);
    compare_tuned(&t, cpu);
    dev_close(cpu);
    return tally_end(&t);
}
