/* What `brim plan --gpu h200` predicts, against what was measured, and what it says when nothing fits. Run
 * from the root of the repository: reads recipes/. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/err.h"
#include "run/choose.h"
#include "task/image.h"
#include "task/latent.h"
#include "task/lm.h"
#include "task/ppo.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct {
    const char *recipe, *keys; /* keys: separated by blanks */
    double      per_s;         /* tokens or samples */
    const Task *task;
} Measured;

/* brim bench on the fastest of the H200s that docs/performance.md speaks of, 2026-11-15; it lists slower
 * ones, too. */
static const Measured measured[] = {
    { "recipes/gpt2-124m.yaml", "", 679065, &task_lm },
    { "recipes/gpt2-350m.yaml", "", 242000, &task_lm },
    { "recipes/gpt2-774m.yaml", "", 117102, &task_lm },
    { "recipes/gpt2-1558m.yaml", "", 59310, &task_lm },
    { "recipes/qwen2.5-0.5b.yaml", "", 182129, &task_lm },
    { "recipes/qwen2.5-1.5b.yaml", "", 64399, &task_lm },
    { "recipes/llama-1b.yaml", "", 71410, &task_lm },
};

/* The same in fp8 and with other keys, and other tasks, with the keys of the measurement; 2026-11-16 and
 * 2026-11-18, several cards. */
static const Measured measured_more[] = {
    { "recipes/gpt2-124m.yaml", "precision=fp8 micro_batch=128", 830539, &task_lm },
    { "recipes/qwen2.5-0.5b.yaml", "precision=fp8 micro_batch=64", 237825, &task_lm },
    { "recipes/qwen2.5-1.5b.yaml", "precision=fp8 micro_batch=32", 91364, &task_lm },
    { "recipes/llama-3b.yaml", "precision=fp8 micro_batch=4 step_tokens=32768", 39774, &task_lm },
    { "recipes/llama-3b.yaml", "micro_batch=4 step_tokens=32768", 27096, &task_lm },
    { "recipes/llama-8b.yaml", "precision=fp8 give_way=moments,weights", 19339, &task_lm },
    { "recipes/llama-8b.yaml", "give_way=moments,weights", 12766, &task_lm },
    { "recipes/vit-b16.yaml", "step_samples=1024", 4892, &task_image },
    { "recipes/vit-l16.yaml", "step_samples=512", 1527, &task_image },
    { "recipes/vit-1b.yaml", "step_samples=256", 455.5, &task_image },
    { "recipes/video-l16.yaml", "step_samples=32", 57.8, &task_image },
    { "recipes/latent-qwen.yaml", "latent.baselines=false", 740, &task_latent },
    { "recipes/latent-llama-8b.yaml", "latent.baselines=false", 163, &task_latent },
    { "recipes/latent-llama-8b.yaml", "latent.baselines=false latent.teacher=none", 310, &task_latent },
    { "recipes/latent-llama-8b.yaml", "latent.baselines=false precision=fp8 fp8.wide=encoder", 277,
      &task_latent },
};

/* PPO, where few rows at a time make products that do not fill the card; 2026-11-18. */
static const Measured measured_ppo[] = {
    { "recipes/ppo-massive.yaml", "", 449000, &task_ppo },
    { "recipes/ppo-massive.yaml", "ppo.rollout=8192", 438000, &task_ppo },
    { "recipes/ppo-massive.yaml", "ppo.envs=4096 ppo.rollout=64", 761000, &task_ppo },
    { "recipes/ppo-massive.yaml", "ppo.envs=4096 ppo.rollout=64 ppo.epochs=4", 244000, &task_ppo },
    { "recipes/mlp-massive.yaml", "ppo.place=device", 59.4e6, &task_ppo },
};

static int plan_as(Choice *c, const Task *task, const char *path, const char *gpu, int n_override,
                   char *const *override)
{
    Recipe r;
    TRY(recipe_load(&r, path, n_override, override));
    if (task->complete) TRY(task->complete(&r, 0));
    const Machine *m    = machine_find(gpu);
    ChooseFor      what = {
             .task = task, .recipe = &r, .vt = dev_cuda_plan(), .capability = 90, .parts = JOB_TRAIN
    };
    ChooseRoom room = { machine_room(m), recipe_memory_limit(&r, m->mem_bytes) };
    TRY(choose_plan(c, &what, m, room));
    /* seconds per token or sample, for the caller */
    c->row[c->best].step_s /= (double)(task == &task_lm ? r.step_tokens : r.step_samples);
    return 0;
}

static int plan(Choice *c, const char *path, const char *gpu, int n_override, char *const *override)
{
    return plan_as(c, &task_lm, path, gpu, n_override, override);
}

/* 6 %: one rate for all products leaves 5 %, and two cards of a kind differ by some percent. */
static void assert_predicted(const Measured *m)
{
    char   keys[160], *override[8], *rest = keys;
    int    n = 0;
    Choice c;
    snprintf(keys, sizeof keys, "%s%s", m->task == &task_lm ? "data.kind=random " : "", m->keys);
    for (char *key; (key = strsep(&rest, " ")) != NULL;)
        if (*key) override[n++] = key;
    assert_int_equal(plan_as(&c, m->task, m->recipe, "h200", n, override), 0);
    double per_s = 1 / c.row[c.best].step_s, off = per_s / m->per_s - 1;
    printf("%-26s micro-batch %3lld: predicted %8.1f, measured %8.1f a second, %+.1f %%  %s\n", m->recipe,
           (long long)c.row[c.best].choice.micro_batch, per_s, m->per_s, 100 * off, m->keys);
    assert_true(fabs(off) < 0.06);
    /* A GPU wants thousands of tokens at a time, and nobody wants to recompute where there is room. */
    assert_int_equal(c.row[c.best].choice.level, LEVEL_NONE);
}

static void test_predictions(void **state)
{
    for (int i = 0; i < ARRAY_LEN(measured); i++) assert_predicted(&measured[i]);
}

static void test_more_predictions(void **state)
{
    for (int i = 0; i < ARRAY_LEN(measured_more); i++) assert_predicted(&measured_more[i]);
}

static void test_ppo_predictions(void **state)
{
    for (int i = 0; i < ARRAY_LEN(measured_ppo); i++) assert_predicted(&measured_ppo[i]);
}

/* The ladder of docs/performance.md: TF32 has 3.3 times the rate of fp32, bf16 1.87 times that of TF32.
 * Stored attention is slower than predicted where products are fast. */
static void test_tf32(void **state)
{
    static const char *const precision[] = { "precision=fp32", "precision=tf32", "precision=bf16" };
    double                   step_s[3];
    for (int i = 0; i < 3; i++) {
        Choice c;
        char  *override[] = { "data.kind=random", "micro_batch=8", "opt.flash=false", (char *)precision[i] };
        assert_int_equal(plan(&c, measured[0].recipe, "h200", ARRAY_LEN(override), override), 0);
        step_s[i] = c.row[c.best].step_s;
    }
    printf("TF32: %.2f times fp32, bf16 %.2f times TF32\n", step_s[0] / step_s[1], step_s[1] / step_s[2]);
    assert_true(step_s[0] / step_s[1] > 2.5 && step_s[1] / step_s[2] > 1.5 && step_s[1] / step_s[2] < 2.5);
}

/* gpt2-124m in micro-batches of 64, which need 21.3 GiB with small chunks, on an H200 of which it may use
 * that many. */
static Candidate plan_within(int gib)
{
    Choice c;
    char   limit[32], *override[] = { "data.kind=random", "micro_batch=64", limit };
    snprintf(limit, sizeof limit, "memory_limit=%dG", gib);
    assert_int_equal(plan(&c, measured[0].recipe, "h200", ARRAY_LEN(override), override), 0);
    assert_true(c.budget_bytes == (size_t)gib << 30 && c.row[c.best].total_bytes <= c.budget_bytes);
    assert_int_equal(c.row[c.best].choice.micro_batch, 64);
    return c.row[c.best];
}

/* The more memory there is, the larger the chunks of the head: a twelfth of all, and half of what small ones
 * leave. */
static void test_head_chunks_grow(void **state)
{
    Candidate small = plan_within(22), before = small;
    int64_t   all = 64 * 1024, row_bytes = 50304 * 2;
    assert_in_range(small.choice.head_rows, 128, all / 4);
    for (int gib = 23; gib <= 128; gib += gib < 40 ? 1 : 8) {
        Candidate now  = plan_within(gib);
        int64_t   rows = now.choice.head_rows, budget = (int64_t)gib << 30;
        assert_true(rows >= before.choice.head_rows && (rows == all || rows % 128 == 0));
        if (rows > small.choice.head_rows) {
            assert_true(rows * row_bytes <= budget / 12);
            assert_true(rows * row_bytes <= (budget - (int64_t)small.total_bytes) / 2);
        }
        if (gib == 30) assert_in_range(rows, small.choice.head_rows + 1, all - 1);
        before = now;
    }
    assert_int_equal(before.choice.head_rows, all);
}

static int same_but_chunks(const JobChoice *a, const JobChoice *b)
{
    return a->micro_batch == b->micro_batch && a->level == b->level;
}

/* The rows that choose_plan() would not rather have than this one, which has small chunks as they have. */
static int n_not_better(const Choice *c, int n, const Candidate *k)
{
    double fastest = INFINITY;
    int    count   = 0;
    for (int i = 0; i < n; i++) fastest = c->row[i].fits ? fmin(fastest, c->row[i].step_s) : fastest;
    assert_true(k->step_s <= CHOOSE_TIE * fastest);
    for (int i = 0; i < n; i++) {
        const Candidate *o = &c->row[i];
        count += !o->fits || o->step_s > CHOOSE_TIE * fastest || o->choice.level > k->choice.level ||
                 (o->choice.level == k->choice.level && o->total_bytes >= k->total_bytes);
    }
    return count;
}

/* Larger chunks are one more row, the last, and change nothing else about the candidate that was picked
 * without them. */
static void test_head_chunks_are_chosen_last(void **state)
{
    char *random = "data.kind=random";
    for (int i = 0; i < ARRAY_LEN(measured); i++) {
        Choice c;
        int    small = 0;
        assert_int_equal(plan(&c, measured[i].recipe, "h200", 1, &random), 0);
        const JobChoice *best = &c.row[c.best].choice;
        assert_int_equal(c.best, c.n - 1);
        while (!same_but_chunks(&c.row[small].choice, best)) small++;
        assert_true(small < c.best && c.row[small].choice.head_rows < best->head_rows);
        assert_int_equal(n_not_better(&c, c.best, &c.row[small]), c.best);
    }
}

/* A head that is not to be cut is not cut, and not tried twice. */
static void test_head_in_one_piece(void **state)
{
    Choice c;
    char  *override[] = { "data.kind=random", "opt.chunk_head=false" };
    assert_int_equal(plan(&c, measured[0].recipe, "h200", ARRAY_LEN(override), override), 0);
    for (int i = 0; i < c.n; i++) {
        assert_int_equal(c.row[i].choice.head_rows, 1024 * c.row[i].choice.micro_batch);
        assert_true(i == c.best || !same_but_chunks(&c.row[i].choice, &c.row[c.best].choice));
    }
}

static void refused_without(const char *gpu, int n_override, char *const *override, const char *has,
                            const char *lacks)
{
    Choice c;
    assert_true(plan(&c, "recipes/llama-8b.yaml", gpu, n_override, override) < 0);
    assert_int_equal(err_kind(), ERR_USER);
    if (strlen(err_get()) > 180) fail_msg("%zu characters: %s", strlen(err_get()), err_get());
    char text[2048];
    snprintf(text, sizeof text, "%s\n%s", err_get(), c.refusal);
    if (!strstr(text, has) || strstr(text, lacks)) fail_msg("%s", text);
    err_clear();
}

/* As above, with AdamW's moments in full. */
static void refused(const char *gpu, int n_override, char *const *override, const char *has,
                    const char *lacks)
{
    refused_without(gpu, n_override, override, "59.8 GiB", "\t");
    refused_without(gpu, n_override, override, has, lacks);
}

/* Only what would help is advised, in a short line; the rest is for `brim plan`. */
static void test_advice(void **state)
{
    char *limit = "memory_limit=100G", *small = "memory_limit=50G",
         *both[]   = { "recompute=none", "model.context=32768" },
         *longer[] = { "optim.kind=muon", "model.context=98304", "step_tokens=98304" };
    refused("h100", 0, NULL, "fits: h200\n", "context");
    refused("h100", 1, &small, "model.layers or model.width", "fits: ");
    refused("h200", 1, &limit, "a larger memory_limit would help", "fits: ");
    refused("h200", 2, both, "recompute: auto", "memory_limit");
    refused_without("h200", ARRAY_LEN(longer), longer, "a smaller model.context would help", "memory_limit");
}

/* Concessions that the recipe does not allow come before a smaller model, where this optimizer has them and
 * they are enough; but after what leaves the mathematics alone. */
static void test_advice_to_give_way(void **state)
{
    static const char want[]  = "available; give_way: [moments, weights] fits in 78.0 GiB, 9.16k tokens/s (";
    char             *moments = "give_way=moments", *muon = "optim.kind=muon", *limit = "memory_limit=78G",
         *fp8 = "precision=fp8", *fixed = "recompute=cheap";
    refused("h100", 0, NULL, want, "smaller");
    refused_without("h100", 1, &moments, want, "smaller");
    refused_without("h100", 1, &muon, "a smaller model.layers or model.width would help", "give_way");
    refused("h100", 1, &fp8, "a smaller model.layers or model.width would help", "give_way");
    refused("h100", 1, &fixed, "a smaller model.layers or model.width would help", "give_way");
    refused("h100", 1, &limit, "give_way: [moments, weights] fits in 78.0 GiB (", "smaller");
}

/* A plan that fits only with recomputation says what would do without; one that could not, or that has it
 * already, says nothing. */
static void test_what_would_be_faster(void **state)
{
    Choice c;
    char  *random = "data.kind=random", *all[] = { random, "give_way=moments,weights" },
         *muon[] = { random, "optim.kind=muon" };
    assert_int_equal(plan(&c, "recipes/llama-8b.yaml", "h200", 1, &random), 0);
    assert_true(c.could.fits && c.could.choice.gives == (GIVE_MOMENTS | GIVE_WEIGHTS));
    assert_int_equal(c.could.choice.level, LEVEL_NONE);
    assert_int_equal(c.row[c.best].choice.gives, 0);
    assert_int_equal(plan(&c, "recipes/llama-8b.yaml", "h200", ARRAY_LEN(all), all), 0);
    assert_false(c.could.fits);
    assert_int_equal(plan(&c, "recipes/llama-8b.yaml", "h200", ARRAY_LEN(muon), muon), 0);
    assert_false(c.could.fits);
    assert_int_equal(plan(&c, "recipes/gpt2-124m.yaml", "h200", 1, &random), 0);
    assert_false(c.could.fits);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_predictions),        cmocka_unit_test(test_more_predictions),
        cmocka_unit_test(test_ppo_predictions),    cmocka_unit_test(test_tf32),
        cmocka_unit_test(test_head_chunks_grow),   cmocka_unit_test(test_head_chunks_are_chosen_last),
        cmocka_unit_test(test_head_in_one_piece),  cmocka_unit_test(test_advice),
        cmocka_unit_test(test_advice_to_give_way), cmocka_unit_test(test_what_would_be_faster)
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
