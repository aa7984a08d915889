#include "run/build.h"

#include "base/err.h"
#include "base/mem.h"
#include "base/str.h"
#include "optim/optim.h"
#include "prog/buckets.h"

#include <stdlib.h>
#include <string.h>

/* cuBLASLt's GELU epilogue works on the unrounded product, and a slope that is kept is rounded, so on CUDA these two fusions change
 * bits: a deterministic run, whose recomputation levels must agree bit for bit, does without them. */
LowerOptions build_lower_options(const Recipe *r, const DevVt *vt)
{
    int may_round = !(r->deterministic && vt->kind == DEV_CUDA), linear_act = r->opt.linear_act && may_round;
    return (LowerOptions){ .add_norm       = r->opt.add_norm,
                           .norm_bwd       = r->opt.norm_bwd,
                           .xent           = r->opt.xent,
                           .act_bias       = r->opt.act_bias,
                           .linear_act     = linear_act,
                           .linear_act_bwd = r->opt.linear_act_bwd,
                           .act_slope      = r->opt.act_slope && may_round,
                           .linear_glu_fwd = r->opt.linear_glu_fwd,
                           .linear_glu_bwd = r->opt.linear_glu_bwd,
                           .linear_dw_bias = r->opt.linear_dw_bias,
                           .attn_rope      = r->opt.attn_rope };
}

static void build_declare(Build *b, unsigned parts)
{
    const Recipe *r  = &b->recipe;
    int64_t       sz = sizeof(StepState);
    store_init(&b->store);
    b->state = store_tensor(&b->store, SLAB_STATE, "step state", DT_U8, 1, &sz);
    if (b->choice.world > 1) {
        int64_t n   = LOSS_SLOTS;
        size_t  at  = offsetof(StepState, out.sum);
        b->loss_sum = store_view_as(&b->store, b->state, "loss", at, DT_F64, 1, &n);
    }
    ParamOptions opt = { .compute = b->choice.compute,
                         .trains  = (parts & BUILD_TRAIN) != 0,
                         .decay   = (float)r->optim.weight_decay };
    net_declare(&b->net, &b->store, &r->model, &opt, &(NetPlace){ 0 });
    b->net.deterministic = r->deterministic;
    b->net.stored_attn   = !r->opt.flash;
    if (parts & (BUILD_TRAIN | BUILD_EVAL))
        net_declare_batch(&b->net, &b->store, b->choice.micro_batch, &b->batch);
    if (parts & BUILD_DECODE) net_declare_decode(&b->net, &b->store, &b->decode);
    store_seal(&b->store);
}

static void add_reductions(Build *b, Prog *p)
{
    for (int r = 0; r < REGION_TRAINED; r++) {
        Tensor *grad = b->net.table.flat[COL_GRAD][r];
        if (grad) prog_add_reductions(p, grad, BUCKET_BYTES);
    }
    prog_add_reductions(p, b->loss_sum, BUCKET_BYTES);
}

static void finish(Build *b, Prog *p, const LowerOptions *opt, const DevVt *vt)
{
    prog_lower(p, opt, vt);
    if (p == b->micro_last) add_reductions(b, p);
    prog_plan(p);
    store_fit_act(&b->store, prog_stats(p).act_bytes);
    if (vt->scratch_bytes && prog_n_op(p) > 0)
        store_fit_scratch(&b->store, vt->scratch_bytes(prog_op(p, 0), prog_n_op(p), (int)b->recipe.threads));
}

static Prog *record_micro(Build *b, const char *name)
{
    int             n     = (int)b->recipe.model.layers;
    RecomputeLevel *level = ARENA_ARRAY(&b->store.arena, RecomputeLevel, n);
    for (int i = 0; i < n; i++) level[i] = b->choice.level;
    Prog *p = prog_begin(name, &b->store);
    net_record(&b->net, p, &b->batch, b->state, NET_TRAIN, b->choice.head_rows);
    prog_differentiate(p, level, n, b->state);
    prog_hoist_chunks(p);
    return p;
}

static void build_record(Build *b, unsigned parts, const DevVt *vt)
{
    LowerOptions opt = build_lower_options(&b->recipe, vt);
    b->copies        = prog_begin("copies", &b->store);
    optim_record_copies(&b->net.table, b->copies);
    finish(b, b->copies, &opt, vt);
    if (parts & BUILD_TRAIN) {
        b->micro = record_micro(b, "micro-step");
        finish(b, b->micro, &opt, vt);
        if (b->choice.world > 1) {
            b->micro_last = record_micro(b, "last micro");
            finish(b, b->micro_last, &opt, vt);
        }
        b->update = prog_begin("update", &b->store);
        optim_record(&b->net.table, b->update, b->state, &b->recipe);
        finish(b, b->update, &opt, vt);
    }
    if (parts & (BUILD_TRAIN | BUILD_EVAL)) {
        b->eval = prog_begin("eval", &b->store);
        net_record(&b->net, b->eval, &b->batch, b->state, NET_EVAL, b->choice.head_rows);
        finish(b, b->eval, &opt, vt);
    }
    if (parts & BUILD_DECODE) {
        b->step1 = prog_begin("decode", &b->store);
        net_record_decode(&b->net, b->step1, &b->decode);
        finish(b, b->step1, &opt, vt);
    }
}

int build_create(Build **out, const Recipe *r, const BuildChoice *c, unsigned parts, const DevVt *vt)
{
    if (vt->kind == DEV_CPU && c->compute != DT_F32)
        return err_set("the CPU backend computes in f32, not in %s", dtype_name(c->compute));
    Build *b = mem_zeroed(1, sizeof *b);
    if (!b) return err_sys("memory for the programs");
    b->recipe = *r;
    b->choice = *c;
    build_declare(b, parts);
    build_record(b, parts, vt);
    *out        = b;
    Prog *all[] = { b->micro, b->micro_last, b->update, b->eval, b->step1, b->copies };
    for (int i = 0; i < ARRAY_LEN(all); i++) {
        if (all[i] && prog_check_backend(all[i], vt) < 0) {
            build_destroy(b);
            *out = NULL;
            return -1;
        }
    }
    return 0;
}

void build_destroy(Build *b)
{
    if (!b) return;
    Prog *all[] = { b->micro, b->micro_last, b->update, b->eval, b->step1, b->copies };
    for (int i = 0; i < ARRAY_LEN(all); i++) prog_destroy(all[i], b->dev);
    if (b->dev) store_free_slabs(&b->store, b->dev);
    net_deinit(&b->net);
    store_deinit(&b->store);
    free(b);
}

int64_t build_micro_per_step(const Build *b, int world)
{
    int64_t per_rank = b->recipe.step_tokens / world;
    return MAX(1, per_rank / (b->choice.micro_batch * b->recipe.model.context));
}

int build_bind(Build *b, Dev *dev)
{
    TRY(store_alloc_slabs(&b->store, dev));
    b->dev      = dev;
    Prog *all[] = { b->copies, b->micro, b->micro_last, b->update, b->eval, b->step1 };
    for (int i = 0; i < ARRAY_LEN(all); i++) {
        if (all[i]) TRY(prog_bind(all[i], dev));
    }
    return 0;
}

/* ---- host access ------------------------------------------------------------------------------------------- */

static int upload(Build *b, const Tensor *t, const void *src, size_t n)
{
    Dev *dev = b->dev;
    TRY(dev->vt->upload(dev, LANE_COMPUTE, t->data, src, n));
    return dev->vt->sync(dev);
}

static int download(Build *b, const Tensor *t, void *dst, size_t n)
{
    Dev *dev = b->dev;
    TRY(dev->vt->download(dev, LANE_COMPUTE, dst, t->data, n));
    return dev->vt->sync(dev);
}

int build_write_param(Build *b, const Param *p, const Tensor *which, const float *in)
{
    return upload(b, which, in, sizeof *in * (size_t)(p->rows * p->cols));
}

int build_read_param(Build *b, const Param *p, const Tensor *which, float *out)
{
    return download(b, which, out, sizeof *out * (size_t)(p->rows * p->cols));
}

int build_refresh_copies(Build *b)
{
    TRY(prog_run(b->copies, b->dev));
    return b->dev->vt->sync(b->dev);
}

int build_write_state(Build *b, const StepState *s) { return upload(b, b->state, s, sizeof *s); }

int build_read_state(Build *b, StepState *s) { return download(b, b->state, s, sizeof *s); }

static int init_weights(Build *b)
{
    const ParamTable *t    = &b->net.table;
    int64_t           most = 0;
    for (int i = 0; i < t->n_param; i++) most = MAX(most, t->param[i].rows_stored * t->param[i].cols);
    float *buf = mem_alloc(sizeof *buf * (size_t)most);
    if (!buf) return err_sys("memory for initial weights");
    int rc = 0;
    for (int i = 0; i < t->n_param && rc == 0; i++) {
        param_init_values(&t->param[i], (uint64_t)b->recipe.seed, buf);
        rc = build_write_param(b, &t->param[i], t->param[i].col[COL_WEIGHT], buf);
    }
    free(buf);
    return rc;
}

static int init_constants(Build *b)
{
    const ParamTable *t = &b->net.table;
    for (int r = 0; r < REGION_TRAINED; r++) {
        if (t->seg[r]) TRY(upload(b, t->seg[r], t->segments[r], sizeof(Segment) * (size_t)t->n_segment[r]));
    }
    if (!b->net.rope_table) return 0;
    size_t n    = tensor_bytes(b->net.rope_table);
    float *rope = mem_alloc(n);
    if (!rope) return err_sys("memory for the rope table");
    net_fill_rope(&b->net, rope);
    int rc = upload(b, b->net.rope_table, rope, n);
    free(rope);
    return rc;
}

int build_init(Build *b)
{
    TRY(init_constants(b)); /* slabs come zeroed: gradients, moments and padding need no more */
    TRY(init_weights(b));
    return build_refresh_copies(b);
}

/* ---- plan.txt ---------------------------------------------------------------------------------------------- */

static void print_prog(const Prog *p, FILE *out)
{
    if (!p) return;
    ProgStats s = prog_stats(p);
    char      a[32], low[32];
    fprintf(out,
            "  %-11s %5d ops  %9.3f TFLOP  %8.3f again  %9.2f GB moved  "
            "activations %s (lower bound %s)\n",
            prog_name(p), s.n_op, s.flops * 1e-12, s.flops_repeated * 1e-12, s.bytes * 1e-9,
            str_bytes(a, sizeof a, (double)s.act_bytes),
            str_bytes(low, sizeof low, (double)s.act_lower_bound));
}

void build_print_plan(const Build *b, FILE *out)
{
    char    buf[32];
    int64_t n_micro = build_micro_per_step(b, 1);
    fprintf(out, "model       %lld parameters in %d tensors\n", (long long)param_count(&b->net.table),
            b->net.table.n_param);
    fprintf(out, "step        %lld tokens = %lld micro-batch%s of %lld x %lld\n",
            (long long)b->recipe.step_tokens, (long long)n_micro, n_micro == 1 ? "" : "es",
            (long long)b->choice.micro_batch, (long long)b->recipe.model.context);
    if (b->choice.world > 1) fprintf(out, "ranks       %d, the micro-batches in turn\n", b->choice.world);
    fprintf(out, "\nslabs\n");
    for (int i = 0; i < SLAB_COUNT; i++) {
        if (b->store.slab_bytes[i] == 0) continue;
        fprintf(out, "  %-16s %16zu  %s\n", slab_name((Slab)i), b->store.slab_bytes[i],
                str_bytes(buf, sizeof buf, (double)b->store.slab_bytes[i]));
    }
    fprintf(out, "  %-16s %16zu  %s\n", "total", store_total_bytes(&b->store),
            str_bytes(buf, sizeof buf, (double)store_total_bytes(&b->store)));
    fprintf(out, "\nprograms\n");
    const Prog *all[] = { b->micro, b->micro_last, b->update, b->eval, b->step1 };
    for (int i = 0; i < ARRAY_LEN(all); i++) print_prog(all[i], out);
}
