/* The passes over random programs: what the planner shares is safe, what lowering fuses and recomputation
 * repeats gives the same numbers, and the planned bytes are the allocated bytes.
 *
 * The plan is proved three ways: by prog_verify() (lifetimes), by simulate() below (which op wrote each
 * granule last; it does not use lifetimes), and by running the list in planned memory full of NaN against the
 * same list without sharing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "dev/glu.h"
#include "dev/null/null.h"
#include "jobs.h"
#include "prog/prog_impl.h"
#include "random_prog.h"
#include "run/setup.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    N_PROG  = 10000,
    N_RUN   = 2000,
    GRANULE = 4 /* bytes: no smaller unit can be shared between f32 tensors */
};

/* ---- the second proof: a memory whose granules know their last writer ---------------------------------- */

typedef struct {
    size_t begin, end; /* granules */
} Range;

static Range range_of(const Tensor *t)
{
    size_t at = t->root->slab_offset + t->offset_bytes;
    return (Range){ at / GRANULE, (at + tensor_bytes(t) + GRANULE - 1) / GRANULE };
}

static int pair_listed(const OpRow *row, int out, int in)
{
    for (int k = 0; k < 4 && (row->alias[k][0] || row->alias[k][1]); k++) {
        if (row->alias[k][0] == out && row->alias[k][1] == in) return 1;
    }
    return 0;
}

/* No written argument may share bytes with another argument of the same op, unless its row lists the pair. */
static int op_aliases_wrongly(const Op *op)
{
    const OpRow *row = &op_table[op->kind];
    for (int o = 0; o < row->n_tensor; o++) {
        const Tensor *out = op->args.t[o];
        if (!out || out->slab != SLAB_ACT || !(row->arg[o].access & ARG_WRITE)) continue;
        for (int i = 0; i < row->n_tensor; i++) {
            const Tensor *in = op->args.t[i];
            if (i == o || !in || in->slab != SLAB_ACT || pair_listed(row, o, i)) continue;
            Range a = range_of(out), b = range_of(in);
            if (a.begin < b.end && b.begin < a.end) return 1;
        }
    }
    return 0;
}

/* Plays the list; -1 when an op reads a granule that its tensor did not write last, aliases wrongly, or has
 * an argument that lies outside the slab or does not begin on a boundary. */
static int simulate(const Prog *p)
{
    size_t n     = prog_stats(p).act_bytes / GRANULE;
    int   *owner = malloc(sizeof *owner * (n + 1));
    int    rc    = 0;
    assert_non_null(owner);
    for (size_t i = 0; i <= n; i++) owner[i] = -1;
    for (int i = 0; i < prog_n_op(p) && rc == 0; i++) {
        const Op    *op  = prog_op(p, i);
        const OpRow *row = &op_table[op->kind];
        if (op_aliases_wrongly(op)) rc = -1;
        for (int pass = ARG_READ; pass <= ARG_WRITE && rc == 0; pass++) {
            for (int a = 0; a < row->n_tensor; a++) {
                const Tensor *t = op->args.t[a];
                if (!t || t->slab != SLAB_ACT || !(row->arg[a].access & (unsigned)pass)) continue;
                Range r = range_of(t);
                if (r.end > n || t->root->slab_offset % TENSOR_ALIGN) rc = -1;
                for (size_t k = r.begin; k < r.end && rc == 0; k++) {
                    if (pass == ARG_WRITE) owner[k] = t->root->id;
                    if (owner[k] != t->root->id) rc = -1;
                }
            }
        }
    }
    free(owner);
    return rc;
}

/* ---- plans of random programs -------------------------------------------------------------------------- */

static void finish(Case *c, const Script *s, const RecipeOpt *lower, const DevVt *vt)
{
    if (s->hoist) prog_hoist_chunks(c->p);
    prog_lower(c->p, lower, vt);
    prog_plan(c->p);
    store_fit_act(&c->store, prog_stats(c->p).act_bytes);
}

/* The bytes of all activations if nothing were shared, for the printed gain. */
static size_t unshared_bytes(const Prog *p)
{
    unsigned char *seen = calloc((size_t)prog_id_count(p), 1);
    size_t         sum  = 0;
    assert_non_null(seen);
    for (int i = 0; i < prog_n_op(p); i++) {
        const Op *op = prog_op(p, i);
        for (int a = 0; a < op_table[op->kind].n_tensor; a++) {
            const Tensor *t = op->args.t[a];
            if (!t || t->slab != SLAB_ACT || seen[t->root->id]) continue;
            seen[t->root->id] = 1;
            sum += tensor_root_bytes(t);
        }
    }
    free(seen);
    return sum;
}

/* How often a fused op was made: by kind; OP_LINEAR_DW: with a bias gradient, OP_BIAS_DW: LINEAR_ACT_BWD with
 * one, OP_ROPE: ATTN_BWD with one. */
static void count_fused(const Prog *p, int n[OP_COUNT])
{
    for (int i = 0; i < prog_n_op(p); i++) {
        const Op *op = prog_op(p, i);
        n[op->kind] += op->kind != OP_BIAS_DW && op->kind != OP_ROPE &&
                       (op->kind != OP_LINEAR_DW || op->args.linear_dw.db);
        n[OP_BIAS_DW] += op->kind == OP_LINEAR_ACT_BWD && op->args.linear_act_bwd.db;
        n[OP_ROPE] += op->kind == OP_ATTN_BWD && op->args.attn_bwd.table;
    }
}

static void test_random_plans(void **state)
{
    int         fused[OP_COUNT] = { 0 };
    const char *why;
    Dev        *dev   = dev_open("null", &(DevOptions){ 0 }, &why);
    double      ratio = 0, share = 0, n_op = 0;
    assert_non_null(dev);
    for (int i = 0; i < N_PROG; i++) {
        Script s;
        Case   c;
        script_draw(&s, (uint64_t)i, 1);
        case_record(&c, &s, s.level);
        finish(&c, &s, &s.lower, dev->vt);
        ProgStats st = prog_stats(c.p);
        size_t    live[512], most = 0;
        assert_true(st.n_op <= ARRAY_LEN(live));
        prog_live_bytes(c.p, live);
        for (int k = 0; k < st.n_op; k++) most = MAX(most, live[k]);
        assert_int_equal(most, st.act_lower_bound);
        if (prog_verify(c.p) < 0) fail_msg("script %d: %s", i, err_get());
        if (simulate(c.p) < 0) fail_msg("script %d: prog_verify is content, but a value is lost", i);
        assert_true(st.act_bytes >= st.act_lower_bound);
        count_fused(c.p, fused);
        size_t before = dev->allocated_bytes;
        if (store_alloc_slabs(&c.store, dev) < 0 || prog_bind(c.p, dev) < 0 || prog_run(c.p, dev) < 0) {
            fail_msg("script %d: %s", i, err_get());
        }
        assert_int_equal(dev->allocated_bytes - before, store_total_bytes(&c.store));
        NullStats ran = null_stats(dev);
        assert_true(ran.n_op == st.n_op && ran.flops == st.flops + st.flops_repeated &&
                    ran.bytes == st.bytes);
        null_reset(dev);
        ratio += (double)st.act_bytes / (double)st.act_lower_bound;
        share += (double)st.act_bytes / (double)unshared_bytes(c.p);
        n_op += st.n_op;
        case_free(&c, dev);
    }
    printf("%d random programs of %.0f ops: %.4f of the lower bound, %.2f of the bytes without sharing\n",
           N_PROG, n_op / N_PROG, ratio / N_PROG, share / N_PROG);
    static const OpKind kind[] = { OP_LINEAR_ACT_BWD, OP_LINEAR_GLU_FWD, OP_LINEAR_GLU_BWD,
                                   OP_LINEAR_DW,      OP_BIAS_DW,        OP_ROPE };
    for (int i = 0; i < ARRAY_LEN(kind); i++) {
        printf("%d %s\n", fused[kind[i]], op_table[kind[i]].name);
        assert_true(fused[kind[i]] > 20);
    }
    dev_close(dev);
}

/* Two different activations that op reads whole, or 0: no row allows them to share. */
static int find_inputs(const Op *op, Tensor **a, Tensor **b)
{
    const OpRow *row = &op_table[op->kind];
    *a               = NULL;
    for (int k = 0; k < row->n_tensor; k++) {
        Tensor *t = op->args.t[k];
        if (!t || t->slab != SLAB_ACT || t->root != t || (row->arg[k].access & ARG_WRITE)) continue;
        if (*a && t != *a) {
            *b = t;
            return 1;
        }
        *a = t;
    }
    return 0;
}

/* Both proofs must be able to fail: one tensor is moved onto another alive with it, or out of the slab. */
static void test_corrupt_plans_are_found(void **state)
{
    for (int i = 0; i < 1000; i++) {
        Script  s;
        Case    c;
        Tensor *a, *b;
        Dice    d = { .seed = (uint64_t)i };
        script_draw(&s, (uint64_t)i, 1);
        case_record(&c, &s, s.level);
        finish(&c, &s, &s.lower, dev_null());
        int at = dice_roll(&d, prog_n_op(c.p));
        while (!find_inputs(prog_op(c.p, at), &a, &b)) at = (at + 1) % prog_n_op(c.p);
        if (i % 2) {
            a->slab_offset = prog_stats(c.p).act_bytes;
        } else if (tensor_bytes(a) >= tensor_bytes(b)) {
            b->slab_offset = a->slab_offset; /* the smaller onto the larger: it stays within the slab */
        } else {
            a->slab_offset = b->slab_offset;
        }
        assert_int_equal(prog_verify(c.p), -1);
        assert_non_null(strstr(err_get(), i % 2 ? "outside" : "overlap"));
        err_clear();
        assert_int_equal(simulate(c.p), -1);
        case_free(&c, NULL);
    }
}

/* ---- running random programs on the CPU ---------------------------------------------------------------- */

static void fill_inputs(Case *c, Dev *dev, uint64_t seed)
{
    Dice      d     = { .seed = seed };
    float     inv   = 1.0f / (float)(c->B * c->T);
    StepState state = { .in = { .step = 3, .seed = seed, .inv[0] = inv, .loss_scale = 1 } };
    for (int i = 0; i < c->store.n_tensor; i++) {
        Tensor *t = c->store.tensor[i];
        if (t->slab == SLAB_GRAD || t == c->state || t == c->sample0) continue;
        int64_t n   = tensor_numel(t);
        float   std = t->ndim == 2 ? 1.7f / sqrtf((float)tensor_cols(t)) : 0.5f;
        for (int64_t k = 0; k < n; k++) { /* CPU slabs are host memory */
            if (t->dtype == DT_I32) {
                int ignore              = t == c->target && dice_roll(&d, 8) == 0;
                ((int32_t *)t->data)[k] = ignore ? -1 : dice_roll(&d, SCRIPT_VOCAB);
            } else {
                ((float *)t->data)[k] = std * dice_uniform(&d);
            }
        }
    }
    memcpy(c->state->data, &state, sizeof state);
    *(int64_t *)c->sample0->data = 5;
    /* NaN everywhere: whoever reads before writing shows. */
    memset(c->store.base[SLAB_ACT], 0xff, c->store.slab_bytes[SLAB_ACT]);
}

/* The activations of the planless run: every root its own bytes, far from all others. */
static void spread(Case *c)
{
    size_t at = 0;
    for (int i = 0; i < prog_n_op(c->p); i++) {
        const Op *op = prog_op(c->p, i);
        for (int a = 0; a < op_table[op->kind].n_tensor; a++) {
            Tensor *t = op->args.t[a];
            if (t && t->slab == SLAB_ACT) t->root->slab_offset = SIZE_MAX;
        }
    }
    for (int i = 0; i < prog_n_op(c->p); i++) {
        const Op *op = prog_op(c->p, i);
        for (int a = 0; a < op_table[op->kind].n_tensor; a++) {
            Tensor *t = op->args.t[a];
            if (!t || t->slab != SLAB_ACT || t->root->slab_offset != SIZE_MAX) continue;
            t->root->slab_offset = at;
            at += tensor_root_bytes(t);
        }
    }
    CHECK(at <= c->store.slab_bytes[SLAB_ACT], "the slab was made too small");
}

/* Records, runs once, and returns the gradients (malloc'ed) and the loss. plain: nothing fused, repeated or
 * shared. */
static float *run_script(const Script *s, Dev *dev, int plain, size_t *size_bytes, double *loss)
{
    static const RecomputeLevel none[SCRIPT_BLOCKS];
    static const RecipeOpt      off;
    Case                        c;
    case_record(&c, s, plain ? none : s->level);
    finish(&c, s, plain ? &off : &s->lower, dev->vt);
    if (plain) store_fit_act(&c.store, unshared_bytes(c.p));
    CHECK(store_alloc_slabs(&c.store, dev) == 0, "%s", err_get());
    if (plain) spread(&c);
    fill_inputs(&c, dev, 99);
    CHECK(prog_bind(c.p, dev) == 0 && prog_run(c.p, dev) == 0 && dev->vt->sync(dev) == 0, "%s", err_get());
    *size_bytes = c.store.slab_bytes[SLAB_GRAD];
    float *g    = malloc(*size_bytes);
    CHECK(g, "out of host memory");
    memcpy(g, c.store.base[SLAB_GRAD], *size_bytes);
    *loss = ((StepState *)c.state->data)->out.sum[0];
    case_free(&c, dev);
    return g;
}

/* A rectifier may leave nothing of a small program, and then there is no gradient either. */
static int has_rectifier(const Script *s)
{
    for (int i = 0; i < s->n_line; i++) {
        const Line *l = &s->line[i];
        if ((l->what == DO_ACT || l->what == DO_GLU) && (l->act == ACT_RELU || l->act == ACT_RELU2)) return 1;
    }
    return 0;
}

static void test_random_runs_match(void **state)
{
    const char *why;
    Dev        *dev      = dev_open("cpu", &(DevOptions){ .deterministic = 1, .threads = 1 }, &why);
    int         n_finite = 0;
    assert_non_null(dev);
    for (int i = 0; i < N_RUN; i++) {
        Script s;
        size_t n, n_plain;
        double loss, loss_plain;
        script_draw(&s, (uint64_t)i, 0);
        float *g = run_script(&s, dev, 0, &n, &loss), *plain = run_script(&s, dev, 1, &n_plain, &loss_plain);
        assert_int_equal(n, n_plain);
        double sum = 0;
        for (size_t k = 0; k < n / sizeof *g; k++) sum += fabs((double)plain[k]);
        n_finite += isfinite(sum) && isfinite(loss_plain);
        if (sum == 0 && !has_rectifier(&s)) fail_msg("script %d: no gradient", i);
        if (memcmp(g, plain, n) != 0 || memcmp(&loss, &loss_plain, sizeof loss) != 0) {
            fail_msg("script %d: fused, repeated and shared does not give the bits of the plain list", i);
        }
        free(g);
        free(plain);
    }
    printf("%d random programs give the same bits fused, repeated and shared; %d are finite\n", N_RUN,
           n_finite);
    assert_true(n_finite > N_RUN * 9 / 10);
    dev_close(dev);
}

/* ---- bytes of real models ------------------------------------------------------------------------------ */

typedef struct {
    const char *name, *device;
    JobChoice   choice;
    unsigned    parts;
    const char *key[16];
} Plan;

static const Plan plans[] = {
    { "tiny gpt2",
      "cpu",
      { .micro_batch = 2, .level = LEVEL_NONE, .head_rows = 64, .compute = DT_F32 },
      JOB_TRAIN | JOB_SAMPLE,
      { "model.layers=2", "model.width=64", "model.heads=4", "model.vocab=300", "model.context=32" } },
    { "tiny llama",
      "cpu",
      { .micro_batch = 3, .level = LEVEL_BLOCK, .head_rows = 17, .compute = DT_F32 },
      JOB_TRAIN,
      { "model.layers=3", "model.width=96", "model.heads=6", "model.kv_heads=2", "model.vocab=257",
        "model.context=40", "model.norm=rmsnorm", "model.pos=rope", "model.act=swiglu", "model.tied=false",
        "threads=5" } },
    { "tiny qwen3, document mask",
      "cpu",
      { .micro_batch = 1, .level = LEVEL_CHEAP, .head_rows = 1000, .compute = DT_F32 },
      JOB_TRAIN,
      { "model.layers=1", "model.width=48", "model.heads=4", "model.head_dim=16", "model.vocab=513",
        "model.context=24", "model.norm=rmsnorm", "model.pos=rope", "model.act=swiglu", "model.qk_norm=true",
        "model.mask=document", "model.dropout=0.1", "data.document_token=0" } },
    { "frozen, decoding only",
      "cpu",
      { .micro_batch = 1, .level = LEVEL_NONE, .head_rows = 1, .compute = DT_F32 },
      JOB_SAMPLE,
      { "model.layers=2", "model.width=64", "model.heads=4", "model.vocab=300", "model.context=32" } },
    { "gpt2-1558m",
      "null",
      { .micro_batch = 16, .level = LEVEL_NONE, .head_rows = 4096, .compute = DT_BF16 },
      JOB_TRAIN | JOB_SAMPLE,
      { "model.layers=48", "model.width=1600", "model.heads=25", "model.vocab=50257", "model.context=1024",
        "model.bias=true" } },
    { "llama-8b",
      "null",
      { .micro_batch = 2, .level = LEVEL_BLOCK, .head_rows = 2048, .compute = DT_BF16 },
      JOB_TRAIN,
      { "model.layers=32", "model.width=4096", "model.heads=32", "model.kv_heads=8", "model.ffn=14336",
        "model.vocab=128256", "model.context=4096", "model.norm=rmsnorm", "model.pos=rope",
        "model.rope_theta=500000", "model.act=swiglu", "model.tied=false" } },
};

static void check_programs(const Job *j, const char *name)
{
    size_t most = 0;
    for (int i = 0; i < j->n_prog; i++) {
        ProgStats st = prog_stats(j->prog[i]);
        if (prog_verify(j->prog[i]) < 0) fail_msg("%s: %s", name, err_get());
        most = MAX(most, st.act_bytes);
        if (st.act_lower_bound) assert_true((double)st.act_bytes <= 1.05 * (double)st.act_lower_bound);
    }
    assert_int_equal(j->store.slab_bytes[SLAB_ACT], most);
}

/* Bytes that follow from the parameter table alone. */
static void check_slabs(const Job *j, unsigned parts)
{
    const ParamTable *t = j->table[0];
    size_t all      = (size_t)(t->region_elems[REGION_COPY] + t->region_elems[REGION_MASTER]) * sizeof(float);
    const size_t *s = j->store.slab_bytes;
    size_t        copy = (size_t)t->region_elems[REGION_COPY] * dtype_bytes(j->choice.compute);
    assert_true(all >= (size_t)param_count(t) * sizeof(float));
    assert_true(s[SLAB_MASTER] >= all && s[SLAB_MASTER] < all + 2 * TENSOR_ALIGN);
    assert_int_equal(s[SLAB_GRAD], parts & JOB_TRAIN ? s[SLAB_MASTER] : 0);
    assert_int_equal(s[SLAB_OPTIM], parts & JOB_TRAIN ? 2 * s[SLAB_MASTER] : 0);
    if (j->choice.compute == DT_F32) copy = 0;
    assert_true(s[SLAB_COPY] >= copy && s[SLAB_COPY] < copy + TENSOR_ALIGN);
}

/* Roots stand on boundaries, one behind the other; views lie within their root. */
static void check_store(const Store *s)
{
    size_t end[SLAB_COUNT] = { 0 };
    for (int i = 0; i < s->n_tensor; i++) {
        const Tensor *t = s->tensor[i];
        assert_true(t->offset_bytes + tensor_bytes(t) <= tensor_bytes(t->root));
        if (t->root != t) continue;
        assert_true(t->slab_offset % TENSOR_ALIGN == 0 && t->slab_offset >= end[t->slab]);
        end[t->slab] = t->slab_offset + tensor_bytes(t);
        assert_true(end[t->slab] <= s->slab_bytes[t->slab]);
    }
}

/* A replay asks for no more: a sealed device aborts when it does. */
static void run_sealed(const Job *j, Dev *dev)
{
    dev_seal(dev);
    for (int i = 0; i < j->n_prog; i++) {
        if (prog_run(j->prog[i], dev) < 0) fail_msg("%s", err_get());
    }
}

/* The language model, with one activation of the micro-step moved onto another that is alive with it. */
static int record_overlap(Job *j)
{
    Tensor *a, *b;
    TRY(task_lm.record(j));
    const Prog *p = job_prog(j, "micro-step");
    for (int i = 0; i < prog_n_op(p); i++) {
        if (!find_inputs(prog_op(p, i), &a, &b)) continue;
        b->slab_offset = a->slab_offset;
        break;
    }
    return 0;
}

static void test_start_proves_the_plan(void **state)
{
    static const char text[] = "data: {kind: random}\nstep_tokens: 64\ndevice: cpu\nthreads: 1\n"
                               "model: {layers: 1, width: 16, heads: 2, vocab: 64, context: 16}\n";
    Task              broken = task_lm;
    Recipe            r;
    Setup             s;
    (void)state;
    broken.record = record_overlap;
    assert_int_equal(recipe_parse(&r, "test", text, sizeof text - 1, 0, NULL), 0);
    assert_int_equal(setup_open(&s, &task_lm, &r, JOB_TRAIN), 0);
    setup_close(&s);
    assert_int_equal(setup_open(&s, &broken, &r, JOB_TRAIN), -1);
    assert_non_null(strstr(err_get(), "overlap"));
    err_clear();
    setup_close(&s);
}

static void test_planned_is_allocated(void **state)
{
    static const char text[] = "step_tokens: 245760\ndata:\n  kind: random\n";
    const Plan       *plan   = *state;
    const char       *why;
    Recipe            r;
    Job              *j;
    int               n_key = 0;
    while (n_key < ARRAY_LEN(plan->key) && plan->key[n_key]) n_key++;
    int rc = recipe_parse(&r, plan->name, text, sizeof text - 1, n_key, (char *const *)plan->key);
    if (rc < 0) fail_msg("%s", err_get());
    Dev *dev = dev_open(plan->device, &(DevOptions){ .threads = (int)r.threads }, &why);
    assert_non_null(dev);
    if (build_create(&j, &task_lm, &r, &plan->choice, plan->parts, dev->vt) < 0) fail_msg("%s", err_get());
    size_t planned = store_total_bytes(&j->store), sum = 0;
    for (int i = 0; i < SLAB_COUNT; i++) sum += j->store.slab_bytes[i];
    assert_int_equal(planned, sum);
    assert_int_equal(dev->allocated_bytes, 0);
    check_programs(j, plan->name);
    check_slabs(j, plan->parts);
    check_store(&j->store);
    if (build_bind(j, dev) < 0) fail_msg("%s", err_get());
    if (strcmp(plan->device, "cpu") == 0) run_sealed(j, dev);
    assert_int_equal(dev->allocated_bytes, planned);
    assert_int_equal(store_total_bytes(&j->store), planned);
    const Prog *micro = job_prog(j, "micro-step");
    ProgStats   st    = prog_stats(micro ? micro : job_prog(j, "decode"));
    printf("%s: %zu bytes planned and allocated, activations %.4f of the lower bound, %d ops\n", plan->name,
           planned, (double)st.act_bytes / (double)st.act_lower_bound, st.n_op);
    build_destroy(j);
    dev_close(dev);
}

/* ---- arithmetic of recomputation ----------------------------------------------------------------------- */

static ProgStats stats_at(const Recipe *r, RecomputeLevel level)
{
    Job      *j;
    JobChoice c = { .micro_batch = 8, .level = level, .head_rows = 2048, .compute = DT_BF16 };
    if (build_create(&j, &task_lm, r, &c, JOB_TRAIN, dev_null()) < 0) fail_msg("%s", err_get());
    ProgStats s = prog_stats(job_prog(j, "micro-step"));
    build_destroy(j);
    return s;
}

/* GPT-2 124M, 8 x 1024 tokens: the MFU count from the model's shape, and what each level costs and saves. */
static void test_recompute_arithmetic(void **state)
{
    static const char text[] = "step_tokens: 8192\ndata:\n  kind: random\nmodel:\n  bias: true\n";
    const double      C = 768, L = 12, T = 1024, N = 8 * T, V = 50304;
    Recipe            r;
    if (recipe_parse(&r, "gpt2-124m", text, sizeof text - 1, 0, NULL) < 0) fail_msg("%s", err_get());
    ProgStats none      = stats_at(&r, LEVEL_NONE);
    ProgStats cheap     = stats_at(&r, LEVEL_CHEAP);
    ProgStats block     = stats_at(&r, LEVEL_BLOCK);
    double    matrices  = 12 * C * C * L + V * C;
    double    attention = 4 * N * T * C * L / 2; /* forward; causal counted half */
    assert_true(none.flops == 6 * N * matrices + 3 * attention);
    assert_true(cheap.flops == none.flops && block.flops == none.flops);
    assert_true(none.flops_repeated == 0 && cheap.flops_repeated == 0);
    /* A block repeats all but its last product, whose result nobody reads again. */
    assert_true(block.flops_repeated == 2 * N * (12 - 4) * C * C * L + attention);
    printf("gpt2-124m activations: none %zu, cheap %zu, block %zu bytes\n", none.act_bytes, cheap.act_bytes,
           block.act_bytes);
    /* Per block and token, in units of C bf16 numbers: none keeps norm1 1, qkv 3, attention 1, residual 1,
     * norm2 1, up 4, activation 4, residual 1 = 16; cheap drops norm1, norm2 and activation = 10; block
     * keeps 1. */
    assert_true((double)cheap.act_bytes < 0.75 * (double)none.act_bytes);
    assert_true((double)block.act_bytes < 0.35 * (double)none.act_bytes);
}

typedef struct {
    int act, act_bwd, glu, glu_bwd; /* products that leave a slope, and that take one */
} Slopes;

/* Of a training step of three layers, for `text` at the end of its model. */
static Slopes slopes_of(const char *text, RecomputeLevel level, DType compute, const DevVt *vt)
{
    char      buf[512];
    int       n = snprintf(buf, sizeof buf,
                           "step_tokens: 64\ndata:\n  kind: random\nmodel:\n  layers: 3\n  width: 64\n"
                                 "  heads: 4\n  vocab: 300\n  context: 32\n%s",
                           text);
    JobChoice c = { .micro_batch = 2, .level = level, .head_rows = 64, .compute = compute };
    Slopes    s = { 0 };
    Recipe    r;
    Job      *j;
    if (recipe_parse(&r, "slopes", buf, (size_t)n, 0, NULL) < 0) fail_msg("%s", err_get());
    if (build_create(&j, &task_lm, &r, &c, JOB_TRAIN, vt) < 0) fail_msg("%s", err_get());
    const Prog *micro = job_prog(j, "micro-step");
    for (int i = 0; i < prog_n_op(micro); i++) {
        const Op *op = prog_op(micro, i);
        s.act += op->kind == OP_LINEAR_ACT_FWD && op->args.linear_act_fwd.slope;
        s.act_bwd += op->kind == OP_LINEAR_ACT_BWD && op->args.linear_act_bwd.act == ACT_SLOPE;
        s.glu += op->kind == OP_LINEAR_GLU_FWD && op->args.linear_glu_fwd.slope == GLU_SLOPE;
        s.glu_bwd += op->kind == OP_LINEAR_GLU_BWD && op->args.linear_glu_bwd.act == ACT_SLOPE;
    }
    build_destroy(j);
    return s;
}

#define GATED "  act: swiglu\n  bias: false\n"

/* Has every fused product, and these round as their parts do. */
static DevVt plain_backend(void)
{
    DevVt plain = *dev_null();
    plain.hints = &dev_hints_cpu;
    return plain;
}

/* Where the activation is computed again for the gradient, its input is what is kept. */
static void test_slopes(void **state)
{
    (void)state;
    DevVt plain = plain_backend();
    for (int level = LEVEL_NONE; level <= LEVEL_BLOCK; level++) {
        int    want = level == LEVEL_CHEAP ? 0 : 3;
        Slopes s    = slopes_of("", (RecomputeLevel)level, DT_F32, &plain);
        assert_int_equal(s.act, want);
        assert_int_equal(s.act_bwd, want);
        assert_int_equal(s.glu + s.glu_bwd, 0);
        s = slopes_of(GATED, (RecomputeLevel)level, DT_F32, &plain);
        assert_int_equal(s.glu, want);
        assert_int_equal(s.glu_bwd, want);
        assert_int_equal(s.act + s.act_bwd, 0);
    }
}

/* A gate's slopes are kept only if both of its products have it, and on CUDA only in bf16 and where bits may
 * change. */
static void test_gated_slopes(void **state)
{
    static const struct {
        const char *text;
        DType       compute;
        int         cuda, want; /* cuda 0: plain_backend() */
    } row[] = {
        { GATED, DT_BF16, 1, 3 },
        { GATED, DT_F32, 1, 0 },
        { GATED "deterministic: true\n", DT_BF16, 1, 0 },
        { GATED "deterministic: true\n", DT_F32, 0, 3 },
        { GATED "opt:\n  act_slope: false\n", DT_F32, 0, 0 },
        { GATED "opt:\n  linear_glu_fwd: false\n", DT_F32, 0, 0 },
        { GATED "opt:\n  linear_glu_bwd: false\n", DT_F32, 0, 0 },
        { "  act: swiglu\n  bias: true\n", DT_F32, 0, 0 },
    };
    (void)state;
    DevVt plain = plain_backend();
    for (int i = 0; i < ARRAY_LEN(row); i++) {
        Slopes s = slopes_of(row[i].text, LEVEL_NONE, row[i].compute, row[i].cuda ? dev_cuda_plan() : &plain);
        assert_int_equal(s.glu, row[i].want);
        assert_int_equal(s.glu_bwd, row[i].want);
    }
}

/* clang-format off */
#define PLAN(i) { "test_planned_is_allocated " #i, test_planned_is_allocated, NULL, NULL, (void *)&plans[i] }
/* clang-format on */

/* Views that a program makes of the store's batches have ids beyond the store's table of gradients. With
 * nothing to train no gradient is recorded, whatever lies behind that table. */
static void test_views_of_batches_need_no_gradient(void **state)
{
    enum { STORED = 256, VIEWS = 200, ROWS = 4, CLASSES = 8 };
    Store   store;
    int64_t all[2] = { VIEWS * ROWS, CLASSES }, one = 1, rows = VIEWS * ROWS, size = sizeof(StepState);
    store_init(&store);
    Tensor *x      = store_tensor(&store, SLAB_IO, "x", DT_F32, 2, all);
    Tensor *target = store_tensor(&store, SLAB_IO, "target", DT_I32, 1, &rows);
    Tensor *step   = store_tensor(&store, SLAB_STATE, "state", DT_U8, 1, &size);
    while (store.n_tensor < STORED) store_tensor(&store, SLAB_STATE, "more", DT_F32, 1, &one);
    assert_int_equal(store.n_tensor, store.cap);
    store_seal(&store);
    Prog   *p      = prog_begin("views", &store);
    Tensor *logits = prog_tensor(p, "logits", DT_F32, 2, all);
    Tensor *loss = prog_tensor(p, "loss", DT_F32, 1, &rows), *lse = prog_like(p, "lse", loss);
    for (int i = 0; i < VIEWS; i++) {
        Tensor *from = prog_rows(p, x, i * ROWS, ROWS), *to = prog_rows(p, logits, i * ROWS, ROWS);
        rec_cast(p, (Cast){ .y = to, .x = from });
    }
    rec_xent_fwd(
        p, (XentFwd){ .loss = loss, .lse = lse, .logits = logits, .target = target, .n_class = CLASSES });
    int n = prog_n_op(p);
    prog_differentiate(p, NULL, 0, step);
    assert_int_equal(prog_n_op(p), n);
    prog_destroy(p, NULL);
    store_deinit(&store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_plans),
        cmocka_unit_test(test_corrupt_plans_are_found),
        cmocka_unit_test(test_random_runs_match),
        cmocka_unit_test(test_start_proves_the_plan),
        cmocka_unit_test(test_views_of_batches_need_no_gradient),
        cmocka_unit_test(test_recompute_arithmetic),
        cmocka_unit_test(test_slopes),
        cmocka_unit_test(test_gated_slopes),
        PLAN(0),
        PLAN(1),
        PLAN(2),
        PLAN(3),
        PLAN(4),
        PLAN(5),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
