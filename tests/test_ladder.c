/* Ladders as planned for a CPU and for a GPU, and what is printed of them. Measuring is
 * tests/test_ladder.sh's. */
#include "base/err.h"
#include "base/fault.h"
#include "base/file.h"
#include "bench/ladder.h"
#include "bench/limit.h"
#include "conf/schema.h"
#include "prog/record.h"
#include "task/lm.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

static Recipe recipe_of(const char *text)
{
    Recipe r;
    if (recipe_parse(&r, "tests/ladder.yaml", text, strlen(text), 0, NULL) < 0) fail_msg("%s", err_get());
    return r;
}

static const char base_text[] = "step_tokens: 65536\nmodel: {context: 1024}\ndata: {kind: random}\n";

static void plan(Ladder *l, LadderOptions opt, const Recipe *r, const DevVt *vt)
{
    opt.task = &task_lm;
    if (ladder_plan(l, &opt, r, vt) < 0) fail_msg("%s", err_get());
}

static int has_key(const Rung *r, const char *pair)
{
    for (int i = 0; i < r->n_key; i++) {
        if (strcmp(r->key[i], pair) == 0) return 1;
    }
    return 0;
}

static const Rung *find(const Ladder *l, const char *name)
{
    for (int i = 0; i < l->n_rung; i++) {
        if (strcmp(l->rung[i].name, name) == 0) return &l->rung[i];
    }
    fail_msg("no rung %s", name);
    return NULL;
}

/* Keys of a rung in front of the recipe are accepted by the parser. */
static void check_accepted(const Rung *rung)
{
    char  *pair[LADDER_KEYS];
    Recipe r;
    for (int i = 0; i < rung->n_key; i++) pair[i] = (char *)rung->key[i];
    if (recipe_parse(&r, "tests/ladder.yaml", base_text, strlen(base_text), rung->n_key, pair) < 0)
        fail_msg("%s", err_get());
}

/* The step takes every opt.linear_* key away: all are on the rung below, none on its own. */
static void check_fuses_products(const Ladder *l, const char *below, const char *step)
{
    int n = 0;
    for (int i = 0; i < schema_count; i++) {
        char pair[64];
        if (strncmp(schema_table[i].name, "opt.linear_", 11) != 0) continue;
        snprintf(pair, sizeof pair, "%s=false", schema_table[i].name);
        if (!has_key(find(l, below), pair)) fail_msg("%s is on before %s", schema_table[i].name, step);
        if (has_key(find(l, step), pair)) fail_msg("%s is off after %s", schema_table[i].name, step);
        n++;
    }
    assert_int_equal(n, 5); /* forward, its gradient, gate, its gradient, bias */
}

static void test_from_fp32(void **state)
{
    (void)state;
    static Ladder l;
    Recipe        r = recipe_of(base_text);
    plan(&l, (LadderOptions){ .start = LADDER_FP32 }, &r, dev_cuda_plan());
    static const char *const name[] = {
        "fp32, stored attention", "TF32",   "bf16",     "larger batch", "flash attention", "fused",
        "tuned products",         "graphs", "prefetch", "deterministic"
    };
    assert_int_equal(l.n_rung, ARRAY_LEN(name));
    for (int i = 0; i < l.n_rung; i++) {
        assert_string_equal(l.rung[i].name, name[i]);
        assert_string_equal(l.rung[i].refused, "");
        check_accepted(&l.rung[i]);
        /* Each rung has fewer keys than the one below; a precision only changes its value. */
        if (i > 0 && i < 9) assert_true(l.rung[i].n_key < l.rung[i - 1].n_key + (i <= 2));
    }
    assert_int_equal(l.rung[8].n_key, 0); /* the top is the recipe */
    assert_true(l.rung[9].is_cost && has_key(&l.rung[9], "deterministic=true"));
    /* Every switch there is is off at the bottom, and so will be those that are added. */
    for (int i = 0; i < schema_count; i++) {
        char pair[64];
        if (strncmp(schema_table[i].name, "opt.", 4) != 0) continue;
        snprintf(pair, sizeof pair, "%s=false", schema_table[i].name);
        if (!has_key(&l.rung[0], pair)) fail_msg("%s stays on at the bottom", schema_table[i].name);
    }
    check_fuses_products(&l, "flash attention", "fused");
    assert_true(has_key(&l.rung[0], "precision=fp32") && has_key(&l.rung[0], "micro_batch=8"));
    assert_true(has_key(&l.rung[1], "precision=tf32") && has_key(&l.rung[2], "precision=bf16"));
    assert_true(!has_key(&l.rung[3], "precision=bf16") && !has_key(&l.rung[3], "micro_batch=8"));
}

static void test_from_torch(void **state)
{
    (void)state;
    static Ladder l;
    Recipe        r = recipe_of(base_text);
    plan(&l, (LadderOptions){ .start = LADDER_TORCH }, &r, dev_cuda_plan());
    const Rung *bottom = &l.rung[0];
    assert_true(has_key(bottom, "micro_batch=32") && has_key(bottom, "opt.graphs=false") &&
                has_key(bottom, "opt.tune=false"));
    assert_true(!has_key(bottom, "opt.flash=false") && !has_key(bottom, "opt.add_norm=false"));
    check_fuses_products(&l, "head in place", "fused into products");
    assert_int_equal(find(&l, "prefetch")->n_key, 0);
    plan(&l, (LadderOptions){ .start = LADDER_TORCH, .batch = 64 }, &r, dev_cuda_plan());
    assert_true(has_key(&l.rung[0], "micro_batch=64"));
}

/* A recipe that is the bottom itself: the top has all that the recipe holds back. */
static void test_from_recipe(void **state)
{
    (void)state;
    static Ladder l;
    Recipe        r = recipe_of("step_tokens: 16384\nmodel: {context: 1024}\ndata: {kind: random}\n"
                                       "precision: fp32\nmicro_batch: 4\n"
                                       "opt: {flash: false, tune: false, xent: false}\n");
    plan(&l, (LadderOptions){ .start = LADDER_RECIPE }, &r, dev_cuda_plan());
    const Rung *bottom = &l.rung[0], *top = find(&l, "prefetch");
    assert_true(has_key(bottom, "precision=fp32") && has_key(bottom, "micro_batch=4"));
    assert_true(has_key(bottom, "opt.flash=false") && has_key(bottom, "opt.add_norm=false"));
    assert_true(has_key(top, "precision=auto") && has_key(top, "micro_batch=0"));
    assert_true(has_key(top, "opt.flash=true") && has_key(top, "opt.tune=true") &&
                has_key(top, "opt.xent=true"));
    assert_int_equal(top->n_key, 5);
    assert_true(bottom->is_slow && !top->is_slow);
    assert_string_equal(find(&l, "flash attention")->refused, "");
    assert_true(has_key(find(&l, "flash attention"), "opt.flash=true"));
    assert_true(has_key(find(&l, "larger batch"), "opt.flash=false"));
    plan(&l, (LadderOptions){ .start = LADDER_FP32 }, &r, dev_cuda_plan());
    assert_string_equal(find(&l, "flash attention")->refused, "off in the recipe");
}

/* A batch that is given is taken as it is or refused; the usual one is made to fit. */
static void test_batch(void **state)
{
    (void)state;
    static Ladder l;
    Recipe        r = recipe_of("step_tokens: 12288\nmodel: {context: 1024}\ndata: {kind: random}\n");
    plan(&l, (LadderOptions){ .start = LADDER_FP32 }, &r, dev_cuda_plan());
    assert_true(has_key(&l.rung[0], "micro_batch=4"));
    plan(&l, (LadderOptions){ .start = LADDER_FP32, .batch = 6 }, &r, dev_cuda_plan());
    assert_true(has_key(&l.rung[0], "micro_batch=6"));
    assert_int_equal(ladder_plan(&l, &(LadderOptions){ .task = &task_lm, .start = LADDER_FP32, .batch = 8 },
                                 &r, dev_cuda_plan()),
                     -1);
    assert_int_equal(err_kind(), ERR_USER);
    assert_non_null(strstr(err_get(), "--batch: 8 does not divide the step's 12 samples"));
    err_clear();
}

/* What the recipe leaves out is no step, and the top is still the recipe. */
static void test_recipe_decides(void **state)
{
    (void)state;
    static Ladder l;
    Recipe        r = recipe_of("step_tokens: 6144\nmicro_batch: 2\nprecision: tf32\nmodel: {context: 1024}\n"
                                       "data: {kind: random}\n"
                                       "opt: {flash: false, prefetch: false}\nrequire: [tune]\n"
                                       "deterministic: true\n");
    plan(&l, (LadderOptions){ .start = LADDER_FP32 }, &r, dev_cuda_plan());
    assert_string_equal(find(&l, "bf16")->refused, "the recipe asks for tf32");
    assert_string_equal(find(&l, "larger batch")->refused, "the recipe fixes micro_batch at 2");
    assert_string_equal(find(&l, "flash attention")->refused, "off in the recipe");
    assert_string_equal(find(&l, "TF32")->refused, "");
    assert_true(has_key(&l.rung[0], "precision=fp32") && has_key(&l.rung[0], "require="));
    assert_int_equal(find(&l, "graphs")->n_key, 0);
    assert_int_equal(l.n_rung, 9); /* it is deterministic already */
    plan(&l, (LadderOptions){ .start = LADDER_FP32 }, &r, dev_cpu());
    assert_string_equal(find(&l, "graphs")->refused, "not on the cpu backend");
}

/* A backend that gains by no fused product has a step left only if the recipe asks for another one. */
static void test_backend_decides(void **state)
{
    (void)state;
    static Ladder l;
    Recipe        r   = recipe_of(base_text);
    DevVt         gpu = *dev_cuda_plan();
    gpu.fuses         = 0;
    plan(&l, (LadderOptions){ .start = LADDER_TORCH }, &r, &gpu);
    assert_string_equal(find(&l, "fused into products")->refused, "");
    r.opt.linear_act = 0;
    plan(&l, (LadderOptions){ .start = LADDER_TORCH }, &r, &gpu);
    assert_string_equal(find(&l, "fused into products")->refused, "the cuda backend gains nothing by it");
    assert_true(!has_key(&l.rung[0], "opt.linear_dw_bias=false"));
    gpu.fuses = FUSE_LINEAR_DW_BIAS;
    plan(&l, (LadderOptions){ .start = LADDER_TORCH }, &r, &gpu);
    assert_string_equal(find(&l, "fused into products")->refused, "");
}

/* ---- what is printed ----------------------------------------------------------------------------------- */

/* A ladder with figures, a refusal and characters that XML and JSON must escape. */
static void fill(Ladder *l)
{
    Recipe r = recipe_of(base_text);
    plan(l, (LadderOptions){ .start = LADDER_FP32 }, &r, dev_cuda_plan());
    snprintf(l->device, sizeof l->device, "a <card> & \"more\"");
    for (int i = 0; i < l->n_rung; i++) {
        l->rung[i].per_s       = 1000.0 * (i + 1);
        l->rung[i].step_s      = 1.0 / (i + 1);
        l->rung[i].over_before = i ? (i + 1.0) / i : 1;
        l->rung[i].over_bottom = i + 1;
    }
    snprintf(l->rung[1].refused, sizeof l->rung[1].refused, "no <TF32> here & now");
}

static char *printed(void (*print)(const Ladder *, FILE *), const Ladder *l)
{
    char  *text = NULL;
    size_t n    = 0;
    FILE  *f    = open_memstream(&text, &n);
    print(l, f);
    fclose(f);
    return text;
}

static void test_json(void **state)
{
    (void)state;
    static Ladder l;
    fill(&l);
    static const char *const number[] = { "per_s",       "step_ms",     "over_before",
                                          "over_bottom", "micro_batch", "planned_bytes" };
    char                    *text     = printed(ladder_print_json, &l);
    int                      n        = 0;
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"), n++) {
        json_t *o = json_loads(line, 0, NULL);
        assert_non_null(o);
        assert_string_equal(json_string_value(json_object_get(o, "rung")), l.rung[n].name);
        assert_int_equal(json_array_size(json_object_get(o, "keys")), l.rung[n].n_key);
        for (int i = 0; i < ARRAY_LEN(number); i++) {
            json_t *x = json_object_get(o, number[i]);
            assert_true(n == 1 ? json_is_null(x) : json_is_number(x)); /* the refused one has none */
        }
        json_decref(o);
    }
    assert_int_equal(n, l.n_rung);
    free(text);
}

static void test_table(void **state)
{
    (void)state;
    static Ladder l;
    fill(&l);
    char *text = printed(ladder_print, &l);
    int   rows = 0;
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        int bars = 0;
        for (char *c = line; *c; c++) bars += *c == '|';
        if (line[0] == '|') {
            assert_int_equal(bars, 9);
            rows++;
        } else if (strstr(line, "deterministic: ")) {
            assert_non_null(strstr(line, "+11.1 %"));
        }
    }
    assert_int_equal(rows, 2 + 9);
    free(text);
}

/* Well-formed enough: tags nest, attributes are quoted, & and < only as markup. */
static void check_xml(const char *s)
{
    int depth = 0;
    for (; *s; s++) {
        if (*s == '&')
            assert_true(strncmp(s, "&amp;", 5) == 0 || strncmp(s, "&lt;", 4) == 0 ||
                        strncmp(s, "&gt;", 4) == 0);
        if (*s != '<') continue;
        const char *end = strchr(s, '>');
        assert_non_null(end);
        int quotes = 0;
        for (const char *c = s + 1; c < end; c++) {
            assert_true(*c != '<');
            quotes += *c == '"';
        }
        assert_int_equal(quotes % 2, 0);
        depth += s[1] == '/' ? -1 : end[-1] == '/' ? 0 : 1;
        assert_true(depth >= 0);
        s = end;
    }
    assert_int_equal(depth, 0);
}

static void test_picture(void **state)
{
    (void)state;
    static Ladder l;
    char          dir[] = "/tmp/brim-ladder-XXXXXX", path[64], *text = NULL;
    size_t        n = 0;
    fill(&l);
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/ladder.svg", dir);
    assert_int_equal(ladder_draw(&l, path), 0);
    assert_int_equal(file_read_all(path, 1 << 20, &text, &n), 0);
    check_xml(text);
    assert_non_null(strstr(text, "a &lt;card&gt; &amp; \"more\""));
    assert_non_null(strstr(text, "9.00x"));
    free(text);
    unlink(path);
    /* A disk that fills up is named with its own error, and nothing is left behind. */
    fault_arm(FAULT_WRITE, 1, 0);
    assert_int_equal(ladder_draw(&l, path), -1);
    fault_disarm();
    assert_non_null(strstr(err_get(), "ladder.svg: write: "));
    err_clear();
    assert_int_equal(rmdir(dir), 0);
}

/* A step whose attention has keys of another sequence: its rates are measured, too. */
static void test_limit_of_cross_attention(void **state)
{
    Recipe    r     = recipe_of("device: cpu\nthreads: 1\ndata: {kind: random}\n");
    Job      *j     = calloc(1, sizeof *j);
    AttnShape shape = { .heads = 2, .kv_heads = 2, .head_dim = 16, .scale = 0.25f, .mask = MASK_FULL };
    int64_t   q[3] = { 2, 8, 32 }, kv[3] = { 2, 24, 64 }, lse[3] = { 2, 2, 8 };
    double    rate[UNIT_COUNT] = { 0 };
    store_init(&j->store);
    Tensor *t_q = store_tensor(&j->store, SLAB_IO, "q", DT_F32, 3, q);
    Tensor *t_o = store_tensor(&j->store, SLAB_IO, "o", DT_F32, 3, q);
    Tensor *t_k = store_tensor(&j->store, SLAB_IO, "kv", DT_F32, 3, kv);
    Tensor *t_l = store_tensor(&j->store, SLAB_IO, "lse", DT_F32, 3, lse);
    store_seal(&j->store);
    Prog *p = j->prog[0] = prog_begin("step", &j->store);
    rec_cross_attn_fwd(p, (CrossAttnFwd){ .o = t_o, .lse = t_l, .q = t_q, .kv = t_k, .shape = shape });
    rec_cross_attn_bwd(p, (CrossAttnBwd){ .dq    = prog_like(p, "dq", t_q),
                                          .dkv   = prog_like(p, "dkv", t_k),
                                          .dout  = t_o,
                                          .o     = t_o,
                                          .lse   = t_l,
                                          .q     = t_q,
                                          .kv    = t_k,
                                          .shape = shape });
    schedule_add(&j->step, (ScheduleRow){ .name = "step", .times = 1, .prog = 0 });
    j->choice.compute  = DT_F32;
    LimitShapes shapes = limit_shapes(j);
    assert_int_equal(shapes.fwd.T, 8);
    assert_int_equal(shapes.bwd.S, 24);
    if (limit_measure(rate, &r, &shapes) < 0) fail_msg("%s", err_get());
    assert_true(rate[UNIT_ATTN_FWD] > 0 && rate[UNIT_ATTN_BWD] > 0);
    prog_destroy(p, NULL);
    store_deinit(&j->store);
    free(j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_from_fp32),      cmocka_unit_test(test_from_torch),
        cmocka_unit_test(test_from_recipe),    cmocka_unit_test(test_batch),
        cmocka_unit_test(test_recipe_decides), cmocka_unit_test(test_backend_decides),
        cmocka_unit_test(test_json),           cmocka_unit_test(test_table),
        cmocka_unit_test(test_picture),        cmocka_unit_test(test_limit_of_cross_attention),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
