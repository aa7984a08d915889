/* Weights that are not trained: what the recipe's `freeze` names, what freezing saves, and that frozen
 * weights stay unchanged. Also what distinguishes the weights of two nets. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/file.h"
#include "base/folder.h"
#include "ckpt/ckpt.h"
#include "job_rig.h"
#include "jobs.h"
#include "run/build.h"
#include "task/image.h"

#include <math.h>
#include <stdio.h>
#include <unistd.h>

static const char model_text[] = "model: {layers: 3, width: 32, heads: 4, vocab: 300, context: 16, bias: "
                                 "true, tied: false, qk_norm: true}\n"
                                 "step_tokens: 64\ndevice: cpu\ndata: {kind: random}\n";

static const char freeze_some[] = "freeze=embed,block.0-1";

/* NULL after a refusal. */
static Job *try_job(Rig *rig, const char *freeze)
{
    Recipe    r;
    Job      *j;
    JobChoice c          = { .micro_batch = 4, .head_rows = 64, .compute = DT_F32 };
    char     *override[] = { (char *)freeze };
    if (recipe_parse(&r, "t.yaml", model_text, strlen(model_text), freeze ? 1 : 0, override) < 0) return NULL;
    if (build_create(&j, &task_lm, &r, &c, JOB_TRAIN, rig->dev->vt) < 0) return NULL;
    if (build_bind(j, rig->dev) < 0 || build_init(j) < 0) fail_msg("%s", err_get());
    return j;
}

static Job *open_job(Rig *rig, const char *freeze)
{
    Job *j = try_job(rig, freeze);
    if (!j) fail_msg("%s", err_get());
    return j;
}

static float *read_weight(Job *j, const Param *p)
{
    float *x = malloc(sizeof *x * (size_t)(p->rows * p->cols));
    assert_non_null(x);
    assert_int_equal(job_read_param(j, p, COL_WEIGHT, x), 0);
    return x;
}

static int is_named(const Param *p)
{
    return strncmp(p->name, "embed.", 6) == 0 || strncmp(p->name, "block.0.", 8) == 0 ||
           strncmp(p->name, "block.1.", 8) == 0;
}

/* ---- what is frozen -------------------------------------------------------------------------------- */

/* Five steps leave the frozen weights bit for bit as they were, and change all others. */
static void test_frozen_weights_stay(void **state)
{
    Job              *j = open_job(*state, freeze_some);
    const ParamTable *t = j->table[0];
    float            *before[256];
    int               n_frozen = 0;
    assert_true(t->n_param <= ARRAY_LEN(before));
    for (int i = 0; i < t->n_param; i++) before[i] = read_weight(j, &t->param[i]);
    for (int k = 0; k < 5; k++) job_train_step(j, k);
    for (int i = 0; i < t->n_param; i++) {
        const Param *p    = &t->param[i];
        float       *now  = read_weight(j, p);
        int          same = memcmp(now, before[i], sizeof *now * (size_t)(p->rows * p->cols)) == 0;
        if (same != is_named(p)) fail_msg("%s: %s", p->name, same ? "did not change" : "changed");
        assert_int_equal(p->frozen, is_named(p));
        n_frozen += p->frozen;
        free(now);
        free(before[i]);
    }
    assert_true(n_frozen > 20 && n_frozen < t->n_param);
    build_destroy(j);
}

/* No gradient, no moments, and so many bytes less; nothing for the activations of the frozen blocks. */
static void test_frozen_weights_save_memory(void **state)
{
    Job              *j = open_job(*state, freeze_some), *all = open_job(*state, NULL);
    const ParamTable *t      = j->table[0];
    size_t            frozen = 0;
    for (int i = 0; i < t->n_param; i++) {
        const Param *p = &t->param[i];
        assert_non_null(p->col[COL_WEIGHT]);
        for (int c = COL_GRAD; c <= COL_V; c++) assert_int_equal(p->col[c] == NULL, is_named(p));
        if (is_named(p)) frozen += sizeof(float) * (size_t)(p->rows * p->cols);
    }
    const size_t *some = j->store.slab_bytes, *full = all->store.slab_bytes;
    assert_true(full[SLAB_GRAD] - some[SLAB_GRAD] >= frozen);
    assert_true(full[SLAB_OPTIM] - some[SLAB_OPTIM] >= 2 * frozen);
    assert_true(some[SLAB_ACT] < full[SLAB_ACT]);
    assert_true(store_total_bytes(&j->store) + 3 * frozen < store_total_bytes(&all->store));
    build_destroy(j);
    build_destroy(all);
}

static void test_unknown_items_are_refused(void **state)
{
    static const struct {
        const char *freeze, *message;
    } row[] = {
        { "freeze=embed,blocks.0", "command line: freeze: no weight is named blocks.0" },
        { "freeze=block.3", "command line: freeze: no weight is named block.3" },
        { "freeze=block.2-", "command line: freeze: no weight is named block.2-" },
        { "freeze=block.0-", "command line: freeze: no weight is named block.0-" },
        { "freeze=embed,pos,block,norm,head", "command line: freeze: every weight is frozen" },
    };
    for (int i = 0; i < ARRAY_LEN(row); i++) {
        assert_null(try_job(*state, row[i].freeze));
        assert_int_equal(err_kind(), ERR_USER);
        assert_int_equal(strncmp(err_get(), row[i].message, strlen(row[i].message)), 0);
        assert_null(strchr(err_get(), '\n'));
        err_clear();
    }
}

/* One op gives the gradients of both halves of a norm, and of both norms of queries and keys. If one half is
 * frozen, the other half has the gradient of a run without frozen weights. */
static void test_half_of_a_norm(void **state)
{
    static const char *freeze[] = { "freeze=block.0.norm1.weight", "freeze=block.0.norm1.bias",
                                    "freeze=block.1.q_norm", "freeze=block.1.k_norm" };
    Job               *all      = open_job(*state, NULL);
    job_micro_step(all, 0, 0);
    for (int i = 0; i < ARRAY_LEN(freeze); i++) {
        Job              *j = open_job(*state, freeze[i]);
        const ParamTable *t = j->table[0];
        job_micro_step(j, 0, 0);
        for (int k = 0; k < t->n_param; k++) {
            const Param *p = &t->param[k], *q = &all->table[0]->param[k];
            int64_t      n = p->rows * p->cols;
            if (p->frozen) continue;
            const float *x = p->col[COL_GRAD]->data, *want = q->col[COL_GRAD]->data;
            /* Sums over 64 rows in another order: 64 roundings of 2^-24, of a sum of terms below 0.1. */
            for (int64_t e = 0; e < n; e++)
                if (!(fabsf(x[e] - want[e]) <= 4e-7f))
                    fail_msg("%s: %s[%d] is %g, not %g", freeze[i], p->name, (int)e, (double)x[e],
                             (double)want[e]);
        }
        build_destroy(j);
    }
    build_destroy(all);
}

/* ---- checkpoints ----------------------------------------------------------------------------------- */

static int file_has(const char *dir, const char *file, const char *text)
{
    char   path[256], *data;
    size_t n;
    snprintf(path, sizeof path, "%s/step-00000003/%s", dir, file);
    if (file_read_all(path, 1 << 26, &data, &n) < 0) fail_msg("%s", err_get());
    char want[64];
    snprintf(want, sizeof want, "\"%s\"", text);
    size_t len = strlen(want), i = 0;
    while (i + len <= n && memcmp(data + i, want, len) != 0) i++;
    free(data);
    return i + len <= n;
}

static void expect_same(Job *a, Job *b)
{
    for (int i = 0; i < a->table[0]->n_param; i++) {
        const Param *p = &a->table[0]->param[i];
        float       *x = read_weight(a, p), *y = read_weight(b, &b->table[0]->param[i]);
        if (memcmp(x, y, sizeof *x * (size_t)(p->rows * p->cols)) != 0) fail_msg("%s differs", p->name);
        free(x);
        free(y);
    }
}

/* The checkpoint holds the frozen weights and no moments of them. A run that goes on from it is the run
 * that never stopped. */
static void test_resume(void **state)
{
    Rig        *rig = *state;
    Job        *j   = open_job(rig, freeze_some);
    CkptState   s   = { .step = 3, .micro_batch = 4, .head_rows = 64, .seed = 1 };
    CkptWriter *w;
    char        note[512];
    for (int k = 0; k < 3; k++) job_train_step(j, k);
    assert_int_equal(ckpt_writer_create(&w, j, rig->dir), 0);
    assert_int_equal(ckpt_begin(w, j, &s), 0);
    assert_int_equal(ckpt_wait(w, note, sizeof note), 1);
    assert_true(file_has(rig->dir, "model.safetensors", "embed.weight"));
    assert_true(file_has(rig->dir, "model.safetensors", "block.2.up.weight"));
    assert_true(file_has(rig->dir, "optim.safetensors", "block.2.up.weight.m"));
    assert_false(file_has(rig->dir, "optim.safetensors", "embed.weight.m"));
    assert_false(file_has(rig->dir, "optim.safetensors", "block.1.up.weight.v"));
    Job *other = open_job(rig, freeze_some);
    /* What was frozen must come from the checkpoint, too. */
    const Param *embed = param_find(other->table[0], "embed.weight");
    memset(embed->col[COL_WEIGHT]->data, 1, 64);
    if (ckpt_resume(other, rig->dir, INT64_MAX, &s, note, sizeof note) != 1) fail_msg("%s", err_get());
    assert_int_equal(s.step, 3);
    for (int k = 3; k < 6; k++) {
        job_train_step(j, k);
        job_train_step(other, k);
    }
    expect_same(j, other);
    ckpt_writer_destroy(w);
    build_destroy(j);
    build_destroy(other);
}

/* ---- the mean of weights ---------------------------------------------------------------------------- */

static const char image_text[] = "task: image\nstep_samples: 4\nsteps: 100\ndevice: cpu\n"
                                 "model: {layers: 2, width: 32, heads: 2, bias: true}\n"
                                 "image: {size: 16, patch: 8, classes: 10, pool: class, ema: 0.9}\n";

static Job *create_image_job(int n_more, char **more, const JobChoice *c, const DevVt *vt)
{
    Recipe r;
    Job   *j;
    if (recipe_parse(&r, "t.yaml", image_text, strlen(image_text), n_more, more) < 0 ||
        build_create(&j, &task_image, &r, c, JOB_TRAIN, vt) < 0)
        fail_msg("%s", err_get());
    return j;
}

/* A step on black pictures of class 0. */
static void image_step(Job *j)
{
    StepState s;
    void     *black = calloc(1, tensor_bytes(j->block));
    assert_int_equal(job_read_state(j, &s), 0);
    s.in         = (StepIn){ .lr = 1e-2f, .inv[0] = 0.25f, .loss_scale = 1 };
    s.out.sum[0] = 0;
    if (job_write_state(j, &s) < 0 || job_upload(j, j->block, black, tensor_bytes(j->block)) < 0 ||
        prog_run(job_prog(j, "micro-step"), j->dev) < 0 || prog_run(job_prog(j, "update"), j->dev) < 0 ||
        j->dev->vt->sync(j->dev) < 0)
        fail_msg("%s", err_get());
    free(black);
}

/* want becomes the mean that follows from the weights after update n. */
static void follow(Job *j, float **want, int n)
{
    const ParamTable *t = &image_of(j)->vit.net.table;
    float             d = fminf(0.9f, (1.0f + (float)n) / (10.0f + (float)n));
    for (int i = 0; i < t->n_param; i++) {
        float *w = read_weight(j, &t->param[i]);
        for (int64_t k = 0; k < t->param[i].rows * t->param[i].cols; k++)
            want[i][k] = d * want[i][k] + (1 - d) * w[k];
        free(w);
    }
}

/* Each weight's mean is that of this weight, whatever the optimizer, and whichever weights are frozen. */
static void test_mean_of_weights(void **state)
{
    static char *layout[][2] = { { "optim.kind=adamw", "freeze=" },
                                 { "optim.kind=muon", "freeze=" },
                                 { "optim.kind=adamw", "freeze=block.0,patch" },
                                 { "optim.kind=muon", "freeze=block.1.up,block.0.norm1" } };
    Rig         *rig         = *state;
    JobChoice    c           = { .micro_batch = 4, .compute = DT_F32 };
    for (int l = 0; l < ARRAY_LEN(layout); l++) {
        Job              *j = create_image_job(2, layout[l], &c, rig->dev->vt);
        const ParamTable *t = &image_of(j)->vit.net.table, *mean = &image_of(j)->ema.net.table;
        float            *want[64];
        assert_true(t->n_param <= ARRAY_LEN(want) && t->n_param == mean->n_param);
        if (build_bind(j, rig->dev) < 0 || build_init(j) < 0) fail_msg("%s", err_get());
        for (int i = 0; i < t->n_param; i++) want[i] = read_weight(j, &t->param[i]);
        for (int n = 1; n <= 3; n++) {
            image_step(j);
            follow(j, want, n);
        }
        for (int i = 0; i < t->n_param; i++) {
            float *x = read_weight(j, &mean->param[i]);
            /* Each of three updates rounds a few times, a 2^-24 of a weight below 2 each. */
            for (int64_t k = 0; k < t->param[i].rows * t->param[i].cols; k++)
                if (!(fabsf(x[k] - want[i][k]) <= 2e-6f))
                    fail_msg("%s, %s: %s[%d] is %g, not %g", layout[l][0], layout[l][1], mean->param[i].name,
                             (int)k, (double)x[k], (double)want[i][k]);
            free(x);
            free(want[i]);
        }
        build_destroy(j);
    }
}

/* Weights that are bf16 alone have a mean in f32, too. */
static void test_mean_of_narrow_weights(void **state)
{
    static char *kind[] = { "optim.kind=adamw", "optim.kind=muon" };
    JobChoice    c      = { .micro_batch = 4, .compute = DT_BF16, .gives = GIVE_WEIGHTS };
    for (int i = 0; i < ARRAY_LEN(kind); i++) {
        Job *j = create_image_job(1, &kind[i], &c, dev_cuda_plan());
        if (build_verify(j) < 0) fail_msg("%s", err_get());
        assert_int_equal(image_of(j)->vit.net.table.flat[COL_WEIGHT][REGION_COPY]->dtype, DT_BF16);
        build_destroy(j);
    }
}

/* ---- names ----------------------------------------------------------------------------------------- */

static void test_matches(void **state)
{
    static const struct {
        const char *name, *pattern;
        int         want;
    } row[] = {
        { "embed.weight", "embed", 1 },
        { "embed.weight", "embed.weight", 1 },
        { "embed.weight", "embed.weight.m", 0 },
        { "embed.weight", "emb", 0 },
        { "embed.weight", "weight", 0 },
        { "block.3.qkv.weight", "block", 1 },
        { "block.3.qkv.weight", "block.3", 1 },
        { "block.3.qkv.weight", "block.3.qkv", 1 },
        { "block.3.qkv.weight", "block.3.qkv.bias", 0 },
        { "block.13.qkv.weight", "block.1", 0 },
        { "block.3.qkv.weight", "block.0-3", 1 },
        { "block.4.qkv.weight", "block.0-3", 0 },
        { "block.10.qkv.weight", "block.2-11", 1 },
        { "block.3.qkv.weight", "block.0-3.qkv", 1 },
        { "block.3.up.weight", "block.0-3.qkv", 0 },
        { "block.3.qkv.weight", "block.3-0", 0 },
        { "block.0.qkv.weight", "block.0-", 0 },
        { "block.3.qkv.weight", "block.-3", 0 },
        { "block.3.qkv.weight", "block.0-3x", 0 },
        { "block.3.qkv.weight", "block..qkv", 0 },
        { "teacher.block.3.up.weight", "teacher.block.3", 1 },
        { "teacher.block.3.up.weight", "block.3", 0 },
    };
    for (int i = 0; i < ARRAY_LEN(row); i++) {
        if (param_matches(row[i].name, row[i].pattern) != row[i].want)
            fail_msg("%s against %s", row[i].name, row[i].pattern);
    }
}

/* Two nets of one run: other names, other random sites, so other first numbers. */
static void test_two_nets_differ(void **state)
{
    RecipeModel  m   = { .layers     = 1,
                         .width      = 32,
                         .heads      = 2,
                         .kv_heads   = 2,
                         .head_dim   = 16,
                         .ffn        = 64,
                         .vocab      = 50,
                         .context    = 8,
                         .norm       = NORM_RMS,
                         .norm_eps   = 1e-5,
                         .pos        = POS_ROPE,
                         .rope_theta = 1e4,
                         .act        = FFN_SWIGLU,
                         .init_std   = 0.02 };
    ParamOptions opt = { .compute = DT_F32, .trains = 1 };
    Store        store;
    Net          one, two;
    int          n_random = 0;
    store_init(&store);
    net_declare(&one, &store, &m, &opt, &(NetPlace){ 0 });
    net_declare(&two, &store, &m, &opt, &(NetPlace){ .prefix = "teacher.", .index = 1, .block0 = 1 });
    assert_int_equal(one.table.n_param, two.table.n_param);
    for (int i = 0; i < one.table.n_param; i++) {
        const Param *p = &one.table.param[i], *q = &two.table.param[i];
        int64_t      n = p->rows_stored * p->cols;
        float       *x = malloc(sizeof *x * (size_t)n), *y = malloc(sizeof *y * (size_t)n);
        assert_int_equal(strncmp(q->name, "teacher.", 8), 0);
        assert_string_equal(q->name + 8, p->name);
        assert_ptr_equal(param_find(&two.table, p->name), q);
        assert_true(p->site != q->site);
        param_init_values(p, 7, x);
        param_init_values(q, 7, y);
        int same = memcmp(x, y, sizeof *x * (size_t)n) == 0;
        assert_int_equal(same, p->init != INIT_NORMAL);
        n_random += !same;
        free(x);
        free(y);
    }
    assert_true(n_random >= 5);
    net_deinit(&one);
    net_deinit(&two);
    store_deinit(&store);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, rig_setup, rig_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(test_frozen_weights_stay),
        CASE(test_frozen_weights_save_memory),
        CASE(test_unknown_items_are_refused),
        CASE(test_resume),
        CASE(test_half_of_a_norm),
        CASE(test_mean_of_weights),
        cmocka_unit_test(test_mean_of_narrow_weights),
        cmocka_unit_test(test_matches),
        cmocka_unit_test(test_two_nets_differ),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
