/* The doctor's judgment on what was measured on an H200: nine runs of tests/gpu/doctor_suite.sh, 2026-11-16,
 * driver 580, CUDA 13. tests/doctor/NAME.json has window and facts of each (brim doctor --json), and
 * the table has the step that the changed recipe then took. The cause must come first, the prediction must
 * be within a quarter of that step. */
#include "base/err.h"
#include "base/file.h"
#include "task/lm.h"
#include "watch/doctor.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct {
    const char *name, *cause;
    double      fixed_ms; /* measured after the change; 0: healthy */
    const char *recipe, *step, *key;
} Row;

static const Row rows[] = {
    { "loader", "data", 199.8, "recipes/gpt2-124m.yaml", "131072", "data.threads=1" },
    { "batch", "batch too small", 51.8, "recipes/gpt2-124m.yaml", "32768", "micro_batch=1" },
    { "fp32", "precision", 27.2, "recipes/gpt2-124m.yaml", "16384", "precision=fp32" },
    { "attention", "attention", 199.7, "recipes/gpt2-124m.yaml", "131072", "opt.flash=false" },
    { "shared", "another process", 202.1, "recipes/gpt2-124m.yaml", "131072", "memory_limit=40%" },
    { "recompute", "recomputation", 199.3, "recipes/gpt2-124m.yaml", "131072", "recompute=block" },
    { "affinity", "CPU quota", 200.9, "recipes/gpt2-124m.yaml", "131072", "data.threads=4" },
    { "healthy1", "healthy", 0, "recipes/gpt2-124m.yaml", "131072", "" },
    { "healthy2", "healthy", 0, "recipes/gpt2-350m.yaml", "65536", "" },
};

static json_t *read_case(const char *name)
{
    char path[128];
    snprintf(path, sizeof path, "tests/doctor/%s.json", name);
    json_t *root = json_load_file(path, 0, NULL);
    if (!root) fail_msg("%s cannot be read (tests run in the project's folder)", path);
    return root;
}

static void read_window(json_t *from, FallWindow *w)
{
    const struct {
        const char *key;
        double     *x;
    } field[] = { { "wall_s", &w->wall_s },
                  { "step_s", &w->step_s },
                  { "wait_s", &w->wait_s },
                  { "fill_s", &w->fill_s },
                  { "eval_share", &w->eval_share },
                  { "save_share", &w->save_share },
                  { "gpu_util", &w->gpu_util },
                  { "sm_active", &w->sm_active },
                  { "tensor_active", &w->tensor_active },
                  { "dram_active", &w->dram_active },
                  { "power_w", &w->power_w },
                  { "power_limit_w", &w->power_limit_w },
                  { "sm_mhz", &w->sm_mhz },
                  { "temp_c", &w->temp_c },
                  { "gpu_processes", &w->processes },
                  { "gpu_mem_bytes", &w->memory_bytes },
                  { "cpu", &w->cpu },
                  { "own_cpu", &w->own_cpu } };
    w->n_step = (int)json_integer_value(json_object_get(from, "steps"));
    for (int i = 0; i < ARRAY_LEN(field); i++) {
        json_t *x   = json_object_get(from, field[i].key);
        *field[i].x = json_is_number(x) ? json_number_value(x) : NAN;
    }
    const char *reasons = json_string_value(json_object_get(from, "clock_reasons"));
    snprintf(w->reasons, sizeof w->reasons, "%s", reasons ? reasons : "");
}

static void judge(const Row *row, Doctor *d)
{
    char    tune[] = "opt.tune=false", step[64], key[64], *override[] = { tune, step, key };
    json_t *root = read_case(row->name);
    char   *text = json_dumps(json_object_get(root, "facts"), 0);
    memset(d, 0, sizeof *d);
    snprintf(step, sizeof step, "step_tokens=%s", row->step);
    snprintf(key, sizeof key, "%s", row->key);
    assert_int_equal(facts_read(&d->facts, text), 1);
    read_window(json_object_get(root, "window"), &d->window);
    d->window.mfu   = d->facts.plan.model_flops / d->facts.plan.peak_flops / d->window.step_s;
    RecipeFrom from = {
        .task = &task_lm, .path = row->recipe, .override = override, .n_override = row->key[0] ? 3 : 2
    };
    if (doctor_judge(d, &from) < 0) fail_msg("%s: %s", row->name, err_get());
    free(text);
    json_decref(root);
}

static void the_cause_comes_first_and_the_step_is_predicted(void **state)
{
    for (int i = 0; i < ARRAY_LEN(rows); i++) {
        const Row *row = &rows[i];
        Doctor     d;
        judge(row, &d);
        const Finding *x = d.n_finding > 0 ? &d.finding[0] : NULL;
        if (row->fixed_ms == 0) {
            if (!doctor_is_healthy(&d)) fail_msg("%s: says %s (%g)", row->name, x->cause, x->gain);
        } else {
            if (!x || strcmp(x->cause, row->cause) != 0)
                fail_msg("%s: says %s", row->name, x ? x->cause : "nothing");
            double off = 1e3 * x->step_s / row->fixed_ms - 1;
            printf("%-10s %.1f ms predicted, %.1f measured (%+.0f %%)\n", row->name, 1e3 * x->step_s,
                   row->fixed_ms, 100 * off);
            if (!(fabs(off) < 0.25)) fail_msg("%s: off by %+.0f %%", row->name, 100 * off);
        }
        doctor_close(&d);
    }
}

/* Products in fp32 use no tensor cores, and a card's counters count all programs. */
static void the_waterfall_agrees_with_the_counters(void **state)
{
    for (int i = 0; i < ARRAY_LEN(rows); i++) {
        Doctor d;
        double sum = 0, gaps = 0;
        judge(&rows[i], &d);
        for (int k = 0; k < d.n_part; k++) {
            sum += d.part[k].share;
            if (d.part[k].part == FALL_GAPS) gaps = d.part[k].share;
        }
        assert_true(fabs(sum - 1) < 0.01);
        if (gaps > 0.04)
            fail_msg("%s: idle for %.1f %%: graphs leave no such gaps", rows[i].name, 100 * gaps);
        double executed = waterfall_tensor(&d.window, &d.facts), counted = d.window.tensor_active;
        int alone = strcmp(rows[i].cause, "precision") != 0 && strcmp(rows[i].cause, "another process") != 0;
        if (alone && !(fabs(executed - counted) < 0.12))
            fail_msg("%s: %.1f executed, %.1f counted", rows[i].name, 100 * executed, 100 * counted);
        doctor_close(&d);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_cause_comes_first_and_the_step_is_predicted),
        cmocka_unit_test(the_waterfall_agrees_with_the_counters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
