/* What `brim plan --gpu h200` predicts, against what was measured, and what it says when nothing fits. Run from the root of the
 * repository: reads recipes/. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/err.h"
#include "run/choose.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* brim bench on an H200, 2026-11-15: docs/performance.md, "All recipes, one run". */
static const struct {
    const char *recipe;
    double      per_s;
} measured[] = {
    { "recipes/gpt2-124m.yaml", 622224 },    { "recipes/gpt2-350m.yaml", 227915 },
    { "recipes/gpt2-774m.yaml", 107510 },    { "recipes/gpt2-1558m.yaml", 55630 },
    { "recipes/qwen2.5-0.5b.yaml", 171302 }, { "recipes/qwen2.5-1.5b.yaml", 60153 },
    { "recipes/llama-1b.yaml", 69129 },
};

static int plan(Choice *c, const char *path, const char *gpu, int n_override, char *const *override)
{
    Recipe r;
    DevVt  vt = *dev_null();
    vt.kind   = DEV_CUDA;
    vt.name   = "cuda";
    vt.fuses  = FUSE_CUDA;
    TRY(recipe_load(&r, path, n_override, override));
    const Machine *m    = machine_find(gpu);
    ChooseRoom     room = { machine_room(m), recipe_memory_limit(&r, m->mem_bytes) };
    TRY(choose_plan(c, &r, &vt, m, 90, room, BUILD_TRAIN));
    c->row[c->best].step_s /= (double)r.step_tokens; /* seconds per token, for the caller */
    return 0;
}

/* 12 %: one rate for all products and all attention leaves 7 % (llama-1b, whose long sequences suit attention better), and
 * two cards of a kind differ by some percent. */
static void test_predictions(void **state)
{
    char *random = "data.kind=random";
    for (int i = 0; i < ARRAY_LEN(measured); i++) {
        Choice c;
        assert_int_equal(plan(&c, measured[i].recipe, "h200", 1, &random), 0);
        double per_s = 1 / c.row[c.best].step_s, off = per_s / measured[i].per_s - 1;
        printf("%-26s micro-batch %3lld: predicted %6.0f, measured %6.0f tokens/s, %+.1f %%\n",
               measured[i].recipe, (long long)c.row[c.best].choice.micro_batch, per_s, measured[i].per_s,
               100 * off);
        assert_true(fabs(off) < 0.12);
        /* A GPU wants thousands of tokens at a time, and nobody wants to recompute where there is room. */
        assert_int_equal(c.row[c.best].choice.level, LEVEL_NONE);
    }
}

static void refused(const char *gpu, int n_override, char *const *override, const char *has,
                    const char *lacks)
{
    Choice c;
    assert_true(plan(&c, "recipes/llama-8b.yaml", gpu, n_override, override) < 0);
    assert_int_equal(err_kind(), ERR_USER);
    if (!strstr(err_get(), has) || strstr(err_get(), lacks)) fail_msg("%s", err_get());
    assert_non_null(strstr(err_get(), "optimizer 59.8 GiB"));
    err_clear();
}

/* Only what would help is advised. */
static void test_advice(void **state)
{
    char *limit = "memory_limit=100G", *small = "memory_limit=50G",
         *both[] = { "recompute=none", "model.context=32768" };
    refused("h100", 0, NULL, "a smaller model.layers or model.width would help", "memory_limit");
    refused("h100", 0, NULL, "fits: h200)", "context");
    refused("h100", 1, &small, "model.layers or model.width", "fits: ");
    refused("h200", 1, &limit, "a larger memory_limit would help", "fits: ");
    refused("h200", 2, both, "recompute: auto", "memory_limit");
    refused("h200", 1, both + 1, "a smaller model.context would help", "memory_limit");
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_predictions), cmocka_unit_test(test_advice) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
