/* conf/: every recipe loads, a written recipe reads back to the same struct, and every mistake is one line
 * that blames the right key at the right place. */
#include "base/clock.h"
#include "base/err.h"
#include "base/file.h"
#include "base/str.h"
#include "conf/recipe.h"
#include "conf/schema.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define RANDOM "data: {kind: random}\n"

static int clean(void **state)
{
    err_clear();
    return 0;
}

static int parse(Recipe *r, const char *text, const char *override)
{
    char *list[1] = { (char *)(uintptr_t) override };
    err_clear();
    return recipe_parse(r, "t.yaml", text, strlen(text), override ? 1 : 0, list);
}

static void assert_parses(Recipe *r, const char *text, const char *override)
{
    if (parse(r, text, override) < 0) fail_msg("%s", err_get());
}

/* ---- Good recipes -------------------------------------------------------------------------------------- */

static void table_is_sound(void **state)
{
    Recipe r;
    recipe_defaults(&r); /* CHECKs that every default obeys its row */
    for (int i = 0; i < schema_count; i++) {
        const SchemaRow *row = &schema_table[i];
        assert_int_equal(schema_find(NULL, row->name), i); /* no name twice */
        assert_true(row->help && row->help[0]);
        if (row->type == KEY_INT || row->type == KEY_FLOAT) assert_true(row->min < row->max);
        if (row->type == KEY_ENUM) assert_non_null(row->names);
        for (int j = i + 1; j < schema_count; j++) {
            assert_int_not_equal(row->offset, schema_table[j].offset);
            /* What other programs call it leads to one key only, but a batch is a step or a part of one. */
            const char *aka = row->aka ? row->aka : "";
            char        word[64];
            while (str_list_next(&aka, word, sizeof word) > 0) {
                int is_batch = strstr(word, "batch_size") && str_starts_with(row->name, "step_");
                assert_false(!is_batch && schema_table[j].aka && str_list_has(schema_table[j].aka, word));
            }
        }
    }
    assert_true(r.optim.lr == 6e-4);
    assert_int_equal(r.opt.flash, 1);
    assert_string_equal(r.device, "auto");
}

static void assert_same_recipe(const Recipe *a, const Recipe *b)
{
    Recipe x = *a, y = *b;
    memset(x.file, 0, sizeof x.file); /* where it was read from differs by nature */
    memset(y.file, 0, sizeof y.file);
    memset(x.origin, 0, sizeof x.origin);
    memset(y.origin, 0, sizeof y.origin);
    for (int i = 0; i < schema_count; i++) {
        char u[2 * RECIPE_STR + 8], v[2 * RECIPE_STR + 8];
        schema_get(&schema_table[i], &x, u, sizeof u);
        schema_get(&schema_table[i], &y, v, sizeof v);
        if (strcmp(u, v) != 0) fail_msg("%s: %s became %s", schema_table[i].name, u, v);
    }
    assert_memory_equal(&x, &y, sizeof x);
}

static void round_trip(const Recipe *r)
{
    Recipe again;
    char  *text = NULL;
    size_t n;
    FILE  *f = open_memstream(&text, &n);
    assert_non_null(f);
    recipe_write(r, f);
    fclose(f);
    if (recipe_parse(&again, "runs/x/recipe.yaml", text, n, 0, NULL) < 0) fail_msg("%s\n%s", err_get(), text);
    assert_same_recipe(r, &again);
    free(text);
}

static void every_recipe_loads(void **state)
{
    Arena  a;
    char **names, path[300];
    arena_init(&a);
    int n = file_list(&a, "recipes", ".yaml", &names);
    assert_true(n >= 12);
    for (int i = 0; i < n; i++) {
        Recipe by_path, by_name;
        snprintf(path, sizeof path, "recipes/%s", names[i]);
        if (recipe_load(&by_path, path, 0, NULL) < 0) fail_msg("%s", err_get());
        names[i][strlen(names[i]) - strlen(".yaml")] = '\0';
        assert_string_equal(by_path.run, names[i]);
        if (recipe_load(&by_name, names[i], 0, NULL) < 0) fail_msg("%s", err_get());
        assert_memory_equal(&by_path, &by_name, sizeof by_path);
        round_trip(&by_path);
    }
    arena_deinit(&a);
}

/* Every key set to something that is not its default. */
static void unusual_recipe_round_trips(void **state)
{
    static const char text[] =
        "run: \"a \\\"quoted\\\" \\\\ name \\u00e4 # no: comment\"\n"
        "steps: 77\nstep_tokens: 3072\nmicro_batch: 3\nrecompute: block\nprecision: tf32\n"
        "device: cuda:3\nthreads: 5\nseed: 9007199254740991\nmemory_limit: 80%\n"
        "deterministic: yes\ngive_way: [moments, weights]\nrequire: [flash, tf32, graphs, flash]\n"
        "freeze: [embed, block.0-1]\nbudget_s: 0.1\nwatchdog_s: 7\ntrace: 2\ntrace_skip: 9\ntrace_warmup: "
        "3\nlog_every: 3\nmax_skips: 4\nspike_factor: "
        "1e-3\n"
        "model: {layers: 3, width: 99, heads: 6, kv_heads: 3, head_dim: 34, ffn: 333, vocab: 300,\n"
        "  context: 512, norm: rmsnorm, norm_eps: 1.1e-6, pos: rope, rope_theta: 123456.789,\n"
        "  act: relu2, bias: true, qkv_bias: true, tied: false, qk_norm: on, dropout: 0.1,\n"
        "  mask: document, init_std: 0.017, rope_scaling: llama3, rope_factor: 2.5,\n"
        "  rope_low: 0.5, rope_high: 3, rope_original: 100}\n"
        "optim: {kind: muon, momentum: 0.9, nesterov: false, muon_lr: 0.1, loss_scale: 8, lr: "
        "0.3333333333333333, min_lr: "
        "1e-7, warmup: 7, schedule: trapezoid,\n"
        "  cooldown: 0.3, beta1: 0.8, beta2: 0.99, eps: 1e-9, weight_decay: 0.01, clip: 0}\n"
        "data: {kind: text, train: recipes/quickstart.yaml, field: body, split: ';', val: LICENSE, "
        "val_fraction: 0.05, tokenizer: "
        "LICENSE, pack: best_fit,\n"
        "  threads: 2, depth: 9, document_token: 10, prefix_token: 11, verify: false}\n"
        "eval: {every: 5, sequences: 6, target: 1.5, patience: 8}\n"
        "checkpoint: {every: 9, keep: 3, keep_every: 18, best: false}\n"
        "watch: {sample: false, tensorboard: true, report: false, web: true, port: 99, bind: 0.0.0.0, "
        "samples: 2, prompt: Hm}\n"
        "fp8: {scaling: dynamic, fast: none, head: false, wide: [block.0, head]}\n"
        "sample: {eos: [3, 4]}\n"
        "opt: {quant: false, add_norm: false, norm_bwd: false, xent: false, act_bias: off, linear_act: "
        "false,\n"
        "  linear_act_bwd: false, act_slope: false, linear_glu_fwd: off, linear_glu_bwd: no, linear_dw_bias: "
        "false,\n"
        "  attn_rope: false, chunk_head: no, tune: False, prefetch: false}\n";
    Recipe r, plain;
    assert_parses(&r, text, NULL);
    assert_string_equal(r.run, "a \"quoted\" \\ name \xc3\xa4 # no: comment");
    assert_string_equal(r.require, "flash,tf32,graphs");
    assert_int_equal(r.model.mask, MASKING_DOCUMENT);
    assert_true(r.optim.lr == 0.3333333333333333);
    round_trip(&r);
    recipe_defaults(&plain);
    for (int i = 0; i < schema_count; i++) {
        char        u[2 * RECIPE_STR + 8], v[2 * RECIPE_STR + 8];
        const char *name = schema_table[i].name;
        schema_get(&schema_table[i], &r, u, sizeof u);
        schema_get(&schema_table[i], &plain, v, sizeof v);
        int required = strcmp(name, "opt.flash") == 0 || strcmp(name, "opt.graphs") == 0;
        if (!schema_applies(&r, &schema_table[i])) continue;
        /* A folder of weights, and what the mask excludes. */
        if (strcmp(name, "init") == 0 || strcmp(name, "model.window") == 0) continue;
        if (strcmp(u, v) == 0 && !required && strcmp(name, "data.kind") != 0 && strcmp(name, "task") != 0 &&
            !schema_table[i].secret)
            fail_msg("%s still has its default", name);
    }
}

/* Names that mean something else in YAML, and a list as long as a key may hold. */
static void lists_round_trip(void **state)
{
    static const char *const lists[] = {
        "a: b,c",
        "#first,second",
        "null",
        "~,true",
        "*a,&b,!c",
        "{x},y",
        "a]b,[c",
        "\"q\",it's,'s'",
        "- x,-1,-",
        "? a,?",
        "a #b",
        "%x,@y,`z",
        "a:,b",
        ":a",
        "|,>",
        "back\\slash",
        "\xc3\xa9t\xc3\xa9",
    };
    Recipe r;
    char   text[RECIPE_STR] = "image.names=";
    for (int i = 0; i < ARRAY_LEN(lists); i++) {
        char override[80];
        snprintf(override, sizeof override, "image.names=%s", lists[i]);
        assert_parses(&r, "task: image\n", override);
        assert_string_equal(r.image.names, lists[i]);
        round_trip(&r);
    }
    for (int i = 0; str_append(text, sizeof text, "%sname %d", i ? "," : "", i) == 0; i++) continue;
    text[sizeof text - 20] = '\0';
    assert_parses(&r, "task: image\n", text);
    assert_true(strlen(r.image.names) > 4000);
    round_trip(&r);
}

/* A token is used and never written down. */
static void secrets_stay(void **state)
{
    Recipe r;
    char  *text = NULL;
    size_t n;
    assert_parses(&r, RANDOM "watch: {token: sixteen-letters-x}\n", NULL);
    assert_string_equal(r.watch.token, "sixteen-letters-x");
    FILE *f = open_memstream(&text, &n);
    recipe_write(&r, f);
    fclose(f);
    assert_null(strstr(text, "sixteen"));
    assert_non_null(strstr(text, "token: \"\""));
    free(text);
}

static void values_are_derived(void **state)
{
    Recipe r;
    assert_parses(&r, RANDOM "model: {width: 1536, heads: 12}\n", NULL);
    assert_int_equal(r.model.kv_heads, 12);
    assert_int_equal(r.model.head_dim, 128);
    assert_int_equal(r.model.ffn, 6144);
    assert_string_equal(r.run, "t");
    assert_parses(&r, RANDOM "model: {act: swiglu}\n", NULL);
    assert_int_equal(r.model.ffn, 2048); /* 8/3 x 768 */
    assert_parses(&r, RANDOM "model: {act: swiglu, width: 896, heads: 14}\n", NULL);
    assert_int_equal(r.model.ffn, 2432); /* 2389.3 rounded up */
    assert_parses(&r, RANDOM "model: {width: 100, heads: 7, head_dim: 64}\n", NULL);
    assert_int_equal(r.model.head_dim, 64);
}

/* 0 of a key that has nothing to derive is a value like any other: it must agree with the folder of init. */
static void zero_is_a_value(void **state)
{
    Recipe r;
    char   folder[] = "/tmp/test_conf_init_XXXXXX", path[64], text[128];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/config.json", folder);
    FILE *f = fopen(path, "w");
    fputs("{\"model_type\": \"mistral\", \"hidden_size\": 32, \"num_attention_heads\": 2,"
          " \"num_key_value_heads\": 1, \"sliding_window\": 8}",
          f);
    fclose(f);
    snprintf(text, sizeof text, RANDOM "init: %s\n", folder);
    assert_parses(&r, text, "model.kv_heads=0");
    assert_true(r.model.window == 8 && r.model.kv_heads == 1);
    assert_int_equal(parse(&r, text, "model.window=0"), -1);
    assert_non_null(strstr(err_get(), "command line: model.window: is 0, but "));
    unlink(path);
    rmdir(folder);
}

/* Samples of an update, where the recipe leaves them to Brim. */
static void minibatch_is_chosen(void **state)
{
    Recipe r;
    char   text[] = "task: ppo\nenv: cartpole\nppo: {minibatch: 0}\n";
    char  *some[] = { "ppo.envs=100", "ppo.rollout=1000" }, *prime[] = { "ppo.envs=65537", "ppo.rollout=3" };
    if (recipe_parse(&r, "t.yaml", text, strlen(text), 2, some) < 0) fail_msg("%s", err_get());
    assert_int_equal(r.ppo.minibatch, 50000);
    assert_int_equal(recipe_parse(&r, "t.yaml", text, strlen(text), 2, prime), -1);
    assert_string_equal(err_get(),
                        "command line: ppo.envs: ppo.envs x ppo.rollout (196611) has no equal parts of 4096 "
                        "to 65536 samples: ppo.envs 65536 would do");
    err_clear();
    some[0] = "ppo.envs=1";
    some[1] = "ppo.rollout=65537";
    assert_int_equal(recipe_parse(&r, "t.yaml", text, strlen(text), 2, some), -1);
    assert_non_null(strstr(err_get(), "command line: ppo.rollout: "));
    assert_non_null(strstr(err_get(), ": ppo.rollout 65536 would do"));
}

static void overrides_win(void **state)
{
    Recipe r;
    char  *list[] = {
         "steps=5",      "model.width=1536", "steps=6",   "optim.lr=1e-3",   "require=[flash, graphs]",
         "opt.xent=off", "memory_limit=60G", "run=other", "data.kind=random"
    };
    int n = (int)(sizeof list / sizeof list[0]);
    err_clear();
    if (recipe_load(&r, "quickstart", n, list) < 0) fail_msg("%s", err_get());
    assert_int_equal(r.optim.warmup, 0); /* the quickstart warms up for 40 steps: cut */
    list[2] = "steps=60";
    if (recipe_load(&r, "quickstart", n, list) < 0) fail_msg("%s", err_get());
    assert_int_equal(r.steps, 60);
    assert_int_equal(r.model.width, 1536);
    assert_int_equal(r.model.head_dim, 384);
    assert_string_equal(r.require, "flash,graphs");
    assert_int_equal(r.opt.xent, 0);
    assert_string_equal(r.run, "other");
    assert_int_equal(r.data.kind, DATA_RANDOM);
}

static void accepted_forms(void **state)
{
    static const char *const good[] = {
        "---\ndata.kind: random\n",
        "\xef\xbb\xbf" RANDOM, /* byte order mark */
        "\xef\xbb\xbf" RANDOM "steps: 5\n",
        RANDOM "model.width: 768\nmodel: {heads: 12}\n",
        RANDOM "give_way: moments, weights\n",
        RANDOM "give_way:\n  - moments\n  - weights\n",
        RANDOM "require: []\n",
        RANDOM "steps: +10\noptim: {lr: 1.e-3, clip: .5}\n",
        "data:\r\n  kind: random\r\nsteps: 5\r\n",
        "data:\n  kind: 'random'\n...\n",
        RANDOM "device: \"cpu\"\nrun: 5\n",
    };
    Recipe r;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) assert_parses(&r, good[i], NULL);
}

static void data_is_found_beside_the_recipe(void **state)
{
    Recipe r;
    char   cwd[4096];
    assert_int_equal(recipe_load(&r, "recipes/quickstart.yaml", 0, NULL), 0);
    assert_string_equal(r.data.train, "recipes/data/tinyshakespeare.txt");
    assert_non_null(getcwd(cwd, sizeof cwd));
    assert_int_equal(chdir("recipes"), 0);
    int rc = recipe_load(&r, "quickstart.yaml", 0, NULL);
    assert_int_equal(chdir(cwd), 0);
    assert_int_equal(rc, 0);
    assert_string_equal(r.data.train, "data/tinyshakespeare.txt");
}

static void integers_may_have_an_exponent(void **state)
{
    Recipe r;
    char   why[600];
    assert_parses(&r, RANDOM "steps: 1e4\nseed: 2.5E3\n", NULL);
    assert_int_equal(r.steps, 10000);
    assert_int_equal(r.seed, 2500);
    const SchemaRow *row     = &schema_table[schema_find(NULL, "steps")];
    const char      *wrong[] = { "1e-3", "1.5e0", "1e", "e3", "1e400", "1e30", "10.0" };
    for (int i = 0; i < ARRAY_LEN(wrong); i++)
        assert_true(schema_set(row, &r, wrong[i], 0, why, sizeof why) < 0);
    assert_int_equal(r.steps, 10000);
}

static void data_may_be_elsewhere_for_a_plan(void **state)
{
    Recipe r;
    char  *none = "data.train=/none/train.bin";
    assert_int_equal(recipe_load_without_data(&r, "recipes/quickstart.yaml", 1, &none), 0);
    assert_string_equal(r.data.train, "/none/train.bin");
    assert_int_equal(recipe_load_without_data(&r, "recipes/quickstart.yaml", 0, NULL), 0);
    assert_string_equal(r.data.train, "recipes/data/tinyshakespeare.txt");
    assert_true(recipe_load(&r, "recipes/quickstart.yaml", 1, &none) < 0);
    err_clear();
}

static void memory_limits(void **state)
{
    Recipe r;
    assert_parses(&r, RANDOM, NULL);
    assert_int_equal(recipe_memory_limit(&r, 1000), 1000);
    assert_parses(&r, RANDOM "memory_limit: 80%\n", NULL);
    assert_int_equal(recipe_memory_limit(&r, 1000), 800);
    assert_parses(&r, RANDOM "memory_limit: 1K\n", NULL);
    assert_int_equal(recipe_memory_limit(&r, 4096), 1024);
    assert_int_equal(recipe_memory_limit(&r, 512), 512);
}

static void help_is_printed(void **state)
{
    char  *text = NULL;
    size_t n;
    FILE  *f = open_memstream(&text, &n);
    assert_int_equal(recipe_help("model.norm", f), 0);
    fflush(f);
    assert_non_null(strstr(text, "one of layernorm, rmsnorm; default layernorm"));
    assert_int_equal(recipe_help("optim", f), 0);
    assert_int_equal(recipe_help(NULL, f), 0);
    fflush(f);
    for (int i = 0; i < schema_count; i++) assert_non_null(strstr(text, schema_table[i].name));
    assert_int_equal(recipe_help("model.widht", f), -1);
    assert_string_equal(err_get(), "command line: model.widht: unknown key (did you mean model.width?)");
    fclose(f);
    free(text);
}

/* ---- Bad recipes --------------------------------------------------------------------------------------- */

typedef struct {
    const char *text, *override; /* override NULL: none */
    const char *message;         /* whole, or its beginning when it ends in '*' */
} Bad;

static void assert_bad(const Bad *b)
{
    Recipe r;
    int    rc = parse(&r, b->text, b->override);
    size_t n = strlen(b->message), is_prefix = b->message[n - 1] == '*';
    int    same = is_prefix ? strncmp(err_get(), b->message, n - 1) == 0 : strcmp(err_get(), b->message) == 0;
    if (rc == 0 || !same)
        fail_msg("%s%s\n  gave     %s\n  expected %s", b->text, b->override ? b->override : "", err_get(),
                 b->message);
    assert_int_equal(err_kind(), ERR_USER);
    assert_null(strchr(err_get(), '\n'));
}

#define ASSERT_ALL_BAD(table)                                                                                \
    for (size_t i_ = 0; i_ < sizeof(table) / sizeof((table)[0]); i_++) assert_bad(&(table)[i_])

static void bad_keys(void **state)
{
    static const Bad bad[] = {
        { "stepz: 5\n", NULL, "t.yaml:1: stepz: unknown key (did you mean steps?)" },
        { "\nmodel:\n  widht: 5\n", NULL, "t.yaml:3: model.widht: unknown key (did you mean model.width?)" },
        { "modle:\n  width: 5\n", NULL, "t.yaml:1: modle: unknown key (did you mean model?)" },
        { "optimizer:\n  lr: 5\n", NULL, "t.yaml:1: optimizer: unknown key (did you mean optim?)" },
        { "width: 5\n", NULL, "t.yaml:1: width: unknown key (did you mean model.width?)" },
        { "learning_rate: 5\n", NULL, "t.yaml:1: learning_rate: unknown key (did you mean optim.lr?)" },
        { "model: {n_embd: 5}\n", NULL, "t.yaml:1: model.n_embd: unknown key (did you mean model.width?)" },
        { "batch_size: 5\n", NULL,
          "t.yaml:1: batch_size: unknown key (did you mean step_tokens or micro_batch?)" },
        { "task: ppo\nbatch_size: 5\n", NULL,
          "t.yaml:2: batch_size: unknown key (did you mean micro_batch?)" },
        { "n_epochs: 5\n", NULL,
          "t.yaml:1: n_epochs: there is no such key: a run is as long as steps says*" },
        { "task: ppo\nepochs: 5\n", NULL, "t.yaml:2: epochs: unknown key (did you mean ppo.epochs?)" },
        { "label_smoothing: 0\n", NULL,
          "t.yaml:1: label_smoothing: unknown key (image.smooth is a key of task image)" },
        { "hflip: 1\n", NULL, "t.yaml:1: hflip: unknown key (data.augment is a key of tasks image,mae)" },
        { "step_sample: 1\n", NULL,
          "t.yaml:1: step_sample: unknown key (step_samples is no key of task lm)" },
        { "half: true\n", NULL, "t.yaml:1: half: unknown key (did you mean precision?)" },
        { "qkv: true\n", NULL, "t.yaml:1: qkv: unknown key" },
        { "model: {name: a}\n", NULL, "t.yaml:1: model.name: unknown key (did you mean init?)" },
        { "name: a\n", NULL, "t.yaml:1: name: unknown key (did you mean run?)" },
        { "fsdp: true\n", NULL,
          "t.yaml:1: fsdp: there is no such key: each GPU holds the whole model: Brim*" },
        { "fsdp:\n  a: 1\n", NULL, "t.yaml:1: fsdp: there is no such key: each GPU holds the whole model*" },
        { "data: {pin_memory: true}\n", NULL,
          "t.yaml:1: data.pin_memory: there is no such key: batches are always pinned, and copied beside the "
          "step" },
        { "gradient_accumulation_steps: 4\n", NULL,
          "t.yaml:1: gradient_accumulation_steps: there is no such key: it follows from step_tokens or "
          "step_samples, and micro_batch" },
        { "checkpont.every: 5\n", NULL,
          "t.yaml:1: checkpont.every: unknown key (did you mean checkpoint.every?)" },
        { "keep: 5\n", NULL, "t.yaml:1: keep: unknown key (did you mean checkpoint.keep?)" },
        { "zzzzzzzz: 5\n", NULL, "t.yaml:1: zzzzzzzz: unknown key" },
        { "<<: {a: 1}\n", NULL, "t.yaml:1: <<: unknown key" },
        { "'': 5\n", NULL, "t.yaml:1: '': not a usable key" },
        { "\"a\\nb\": 5\n", NULL, "t.yaml:1: a?b: not a usable key" },
        { "\"steps\\0\": 5\n", NULL, "t.yaml:1: yaml: contains a zero byte" },
        { "steps: 5\nseed: 1\nsteps: 6\n", NULL, "t.yaml:3: steps: given twice, first on line 1" },
        { "model.width: 8\nmodel: {width: 8}\n", NULL,
          "t.yaml:2: model.width: given twice, first on line 1" },
        { "model: {width: 8}\nmodel: {heads: 8}\n", NULL, "t.yaml:2: model: given twice, first on line 1" },
        { "model: 5\n", NULL, "t.yaml:1: model: is a section: expected \"key: value\" below it, got '5'" },
        { "model:\nsteps: 5\n", NULL, "t.yaml:1: model: is a section without keys: indent them below it" },
        { "modle:\nsteps: 5\n", NULL, "t.yaml:1: modle: unknown key (did you mean model?)" },
        { "steps: {a: 5}\n", NULL,
          "t.yaml:1: steps: expected a value (integer, 1 .. 1000000000), got a mapping" },
        { "steps.a: 5\n", NULL, "t.yaml:1: steps: has a value, not keys of its own (steps.a)" },
        { "model: {width: {a: {b: {c: {d: {e: {f: {g: {h: 1}}}}}}}}}\n", NULL,
          "t.yaml:1: model.width: expected a value*" },
    };
    ASSERT_ALL_BAD(bad);
}

static void bad_values(void **state)
{
    static const Bad bad[] = {
        { "steps: many\n", NULL, "t.yaml:1: steps: expected an integer, got 'many'" },
        { "steps: 5.5\n", NULL, "t.yaml:1: steps: expected an integer, got '5.5'" },
        { "steps: 1e-3\n", NULL, "t.yaml:1: steps: expected an integer, got '1e-3'" },
        { "steps: 524_288\n", NULL, "t.yaml:1: steps: expected an integer, got '524_288'" },
        { "steps: \"5\"\n", NULL, "t.yaml:1: steps: expected an integer without quotes, got '5'" },
        { "steps: true\n", NULL, "t.yaml:1: steps: expected an integer, got 'true'" },
        { "steps: [5]\n", NULL, "t.yaml:1: steps: expected integer, 1 .. 1000000000, got a list" },
        { "steps:\n", NULL, "t.yaml:1: steps: has no value" },
        { "steps: ~\n", NULL, "t.yaml:1: steps: has no value" },
        { "steps: |\n  5\n", NULL, "t.yaml:1: steps: expected an integer without quotes, got '5?'" },
        { "steps: 0\n", NULL, "t.yaml:1: steps: 0 is out of bounds (1 .. 1000000000)" },
        { "steps: -3\n", NULL, "t.yaml:1: steps: -3 is out of bounds (1 .. 1000000000)" },
        { "steps: 99999999999999999999999\n", NULL,
          "t.yaml:1: steps: 99999999999999999999999 is out of bounds (1 .. 1000000000)" },
        { "optim: {lr: fast}\n", NULL, "t.yaml:1: optim.lr: expected a number, got 'fast'" },
        { "optim: {lr: .nan}\n", NULL, "t.yaml:1: optim.lr: expected a number, got '.nan'" },
        { "optim: {lr: .inf}\n", NULL, "t.yaml:1: optim.lr: expected a number, got '.inf'" },
        { "optim: {lr: 1e999}\n", NULL, "t.yaml:1: optim.lr: expected a number, got '1e999'" },
        { "optim: {lr: 0}\n", NULL, "t.yaml:1: optim.lr: 0 is out of bounds (1e-12 .. 100)" },
        { "optim: {lr: -1e-3}\n", NULL, "t.yaml:1: optim.lr: -1e-3 is out of bounds*" },
        { "optim: {beta2: 1}\n", NULL, "t.yaml:1: optim.beta2: 1 is out of bounds (0 .. 0.999999)" },
        { "model: {dropout: 1}\n", NULL, "t.yaml:1: model.dropout: 1 is out of bounds (0 .. 0.99)" },
        { "model: {bias: maybe}\n", NULL, "t.yaml:1: model.bias: expected true or false, got 'maybe'" },
        { "model: {bias: 1}\n", NULL, "t.yaml:1: model.bias: expected true or false, got '1'" },
        { "precision: bf16-mixed\n", NULL,
          "t.yaml:1: precision: 'bf16-mixed' is none of auto, fp32, tf32, bf16, fp16, fp8 (did you mean "
          "bf16?)" },
        { "precision: 32\n", NULL,
          "t.yaml:1: precision: '32' is none of auto, fp32, tf32, bf16, fp16, fp8 (did you mean fp32?)" },
        { "model: {act: silu}\n", NULL,
          "t.yaml:1: model.act: 'silu' is none of gelu, swiglu, relu2, gelu_erf (did you mean swiglu?)" },
        { "model: {norm: rmsnrm}\n", NULL,
          "t.yaml:1: model.norm: 'rmsnrm' is none of layernorm, rmsnorm (did you mean rmsnorm?)" },
        { "precision: int4\n", NULL,
          "t.yaml:1: precision: 'int4' is none of auto, fp32, tf32, bf16, fp16, fp8" },
        { "device: cdua\n" RANDOM, NULL,
          "t.yaml:1: device: 'cdua' is none of auto, cpu, cuda, cuda:N (did you mean cuda?)" },
        { "device: gpu\n" RANDOM, NULL,
          "t.yaml:1: device: 'gpu' is none of auto, cpu, cuda, cuda:N (did you mean cuda?)" },
        { "device: cuda:x\n" RANDOM, NULL, "t.yaml:1: device: 'cuda:x' is none of*" },
        { "device: \"\"\n" RANDOM, NULL, "t.yaml:1: device: '' is none of*" },
        { "memory_limit: lots\n", NULL,
          "t.yaml:1: memory_limit: expected bytes (60G) or a share (80%), got 'lots'" },
        { "memory_limit: 101%\n", NULL, "t.yaml:1: memory_limit: expected bytes*" },
        { "memory_limit: 0\n", NULL, "t.yaml:1: memory_limit: expected bytes*" },
        { "require: [flsh]\n", NULL, "t.yaml:1: require: 'flsh' is none of *" },
        { "give_way: width\n", NULL, "t.yaml:1: give_way: 'width' is none of moments, weights" },
        { "give_way: [[moments]]\n", NULL,
          "t.yaml:1: give_way: a list may hold plain values only, not another list" },
        { "give_way: [{a: 1}]\n", NULL,
          "t.yaml:1: give_way: a list may hold plain values only, not a mapping" },
        { "give_way: [~]\n", NULL, "t.yaml:1: give_way: has no value" },
        { "give_way: ['a,b']\n", NULL, "t.yaml:1: give_way: an item of a list contains a comma" },
        { "run: a/b\n" RANDOM, NULL,
          "t.yaml:1: run: 'a/b' cannot name a folder (no '/', no leading '.' or '-')" },
        { "run: ..\n" RANDOM, NULL, "t.yaml:1: run: '..' cannot name a folder*" },
        { "run: \"a\\nb\"\n" RANDOM, NULL,
          "t.yaml:1: run: contains characters that are not printable UTF-8" },
    };
    ASSERT_ALL_BAD(bad);
}

static void bad_relations(void **state)
{
    static const Bad bad[] = {
        { "task: ppo\nenv: cartpole\nppo: {envs: 4, rollout: 8}\n", "ppo.minibatch=100",
          "command line: ppo.minibatch: ppo.minibatch (100) must divide ppo.envs x ppo.rollout (32): 32 "
          "would "
          "do" },
        { "task: ppo\nenv: cartpole\nppo: {envs: 4, rollout: 8}\n", "ppo.minibatch=12",
          "command line: ppo.minibatch: ppo.minibatch (12) must divide ppo.envs x ppo.rollout (32): 8 or 16 "
          "would do" },
        { RANDOM "model:\n  heads: 7\n", NULL,
          "t.yaml:3: model.heads: model.heads (7) must divide model.width (768), or give model.head_dim" },
        { RANDOM "model:\n  width: 100\n", NULL,
          "t.yaml:3: model.width: model.heads (12) must divide model.width (100)*" },
        { RANDOM "model: {width: 512, heads: 1}\n"
                 "step_tokens: 1024\n",
          "model.width=520", "command line: model.width: model.head_dim of 520 is out of bounds (0 .. 512)" },
        { RANDOM "model: {kv_heads: 5}\n", NULL,
          "t.yaml:2: model.kv_heads: model.kv_heads (5) must divide model.heads (12)" },
        { RANDOM "model: {kv_heads: 24}\n", NULL,
          "t.yaml:2: model.kv_heads: model.kv_heads (24) must divide*" },
        { RANDOM "model: {pos: rope, head_dim: 33}\n", NULL,
          "t.yaml:2: model.head_dim: rope needs an even head size, not 33*" },
        { RANDOM "model: {pos: rope, width: 12}\n", NULL,
          "t.yaml:2: model.width: rope needs an even head size, not 1*" },
        { RANDOM "model: {mask: document}\n", NULL,
          "t.yaml:2: model.mask: mask document needs data.document_token*" },
        { "data: {kind: random, document_token: 60000}\n", NULL,
          "t.yaml:1: data.document_token: data.document_token (60000) must be below*" },
        { RANDOM "step_tokens: 1000\n", NULL,
          "t.yaml:2: step_tokens: step_tokens (1000) must be a multiple of model.context (1024): 1024 would "
          "do" },
        { RANDOM "model: {context: 1000}\n", NULL,
          "t.yaml:2: model.context: step_tokens (524288) must be a multiple*" },
        { RANDOM "step_tokens: 1025\n", NULL,
          "t.yaml:2: step_tokens: step_tokens (1025) must be a multiple of model.context (1024): 1024 or "
          "2048 would do" },
        { RANDOM "micro_batch: 3\n", NULL,
          "t.yaml:2: micro_batch: micro_batch (3) must divide the step's 512 sequences (step_tokens / "
          "model.context): 2 or 4 would do" },
        { RANDOM "micro_batch: 1024\n", NULL,
          "t.yaml:2: micro_batch: micro_batch (1024) must divide the step's 512 sequences (step_tokens / "
          "model.context): 512 would do" },
        { RANDOM "optim: {warmup: 1001}\n", NULL,
          "t.yaml:2: optim.warmup: optim.warmup (1001) must not exceed steps (1000): optim.warmup=100 would "
          "do" },
        { RANDOM "steps: 99\n", "optim.warmup=100",
          "command line: optim.warmup: optim.warmup (100) must not exceed steps (99): optim.warmup=9 would "
          "do" },
        { RANDOM "optim: {min_lr: 1e-3}\n", NULL,
          "t.yaml:2: optim.min_lr: optim.min_lr (0.001) must not exceed optim.lr (0.0006)" },
        { RANDOM "optim: {schedule: trapezoid, warmup: 900}\n", NULL,
          "t.yaml:2: optim.warmup: warm-up (900 steps) and cooldown*" },
        { RANDOM "eval: {every: 0, target: 3}\n", NULL,
          "t.yaml:2: eval.target: eval.target needs eval.every above 0" },
        { RANDOM "eval: {every: 0, patience: 3}\n", NULL, "t.yaml:2: eval.patience: eval.patience needs*" },
        { "data: {train: LICENSE, val_fraction: 0}\neval: {target: 3}\n", NULL,
          "t.yaml:2: eval.target: needs validation data*" },
        { RANDOM "require: [flash]\nopt: {flash: off}\n", NULL,
          "t.yaml:2: require: require lists flash, but opt.flash is false" },
        { RANDOM "require: [flash]\n", "opt.flash=off",
          "command line: opt.flash: require lists flash, but opt.flash is false" },
        { RANDOM "require: [fp8]\nprecision: bf16\n", NULL,
          "t.yaml:2: require: require lists fp8, but precision is bf16" },
        { "steps: 5\n", NULL,
          "t.yaml: data.train: is missing: name the file to train on, or set data.kind: random" },
        { "steps: 5\ndata: {kind: tokens}\n", NULL, "t.yaml:2: data.kind: is missing*" },
        { "data: {train: recipes/quickstrat.yaml}\n", NULL,
          "t.yaml:1: data.train: recipes/quickstrat.yaml: no such file (did you mean quickstart.yaml?)" },
        { "data: {train: LICENSE, val: /nonexistent/x}\n", NULL,
          "t.yaml:1: data.val: /nonexistent/x: no such file" },
        { "data: {train: recipes}\n", NULL,
          "t.yaml:1: data.train: recipes is a folder; data.kind text needs a file, or a data.tokenizer" },
        { "data: {train: /dev/null}\n", NULL,
          "t.yaml:1: data.train: /dev/null is neither a file nor a folder" },
        { "data: {train: LICENSE}\nmodel: {vocab: 255}\n", NULL,
          "t.yaml:2: model.vocab: text without data.tokenizer needs 256 tokens, one a byte, and "
          "model.vocab*" },
    };
    ASSERT_ALL_BAD(bad);
}

static void bad_yaml(void **state)
{
    static const Bad bad[] = {
        { "", NULL, "t.yaml: the recipe is empty" },
        { "\n\n", NULL, "t.yaml: the recipe is empty" },
        { "# only a comment\n", NULL, "t.yaml: the recipe is empty" },
        { "{}\n", NULL, "t.yaml: the recipe is empty" },
        { "hello\n", NULL, "t.yaml:1: yaml: a recipe is a mapping of keys to values, like \"steps: 1000\"" },
        { "- steps\n", NULL, "t.yaml:1: yaml: a recipe is a mapping of keys to values, not a list" },
        { "model:\n\twidth: 5\n", NULL, "t.yaml:2: yaml: tab in the indentation; use spaces" },
        { "steps: 5\n  seed: 1\n", NULL, "t.yaml:2: yaml: wrong indentation: the line above*" },
        { "require:\n  - bf16\n    seed: 1\n", NULL, "t.yaml:3: yaml: wrong indentation: the line above*" },
        { "steps 5\nseed: 1\n", NULL, "t.yaml:1: yaml: this line has no \": \" between key and value" },
        { "model:\n  layers 2\n\n  width: 8\n", NULL,
          "t.yaml:2: yaml: this line has no \": \" between key and value" },
        { "model:\n  layers:2\n  width: 8\n", NULL,
          "t.yaml:2: yaml: this line has no \": \" between key and value" },
        { "model:\n  layers 2\n", NULL,
          "t.yaml:1: model: is a section: expected \"key: value\" below it, got 'layers 2'" },
        { "steps: 5\n  seed 1\n", NULL,
          "t.yaml:1: steps: expected an integer, got '5 seed 1' (the line below line 1 has no \": \", so "
          "it*" },
        { "model: {width: 8}\n  seed: 1\n", NULL, "t.yaml:2: yaml: *" },
        { "steps: [1, 2\n", NULL, "t.yaml:2: *" },
        { "steps: 'open\n", NULL, "t.yaml:*" },
        { "steps: }\n", NULL, "t.yaml:1: yaml: *" },
        { "steps: @\n", NULL, "t.yaml:1: yaml: *" },
        { "a: &x [*x]\n", NULL, "t.yaml:1: a: anchors (&name) are not used in recipes" },
        { "&a a: *a\n", NULL, "t.yaml:1: yaml: anchors (&name) are not used in recipes" },
        { "steps: *x\n", NULL, "t.yaml:1: steps: aliases (*name) are not used in recipes" },
        { "steps: !!int 5\n", NULL, "t.yaml:1: steps: tags (!name) are not used in recipes" },
        { "? [a, b]\n: 5\n", NULL, "t.yaml:1: yaml: a list cannot be a key" },
        { "? {a: b}\n: 5\n", NULL, "t.yaml:1: yaml: a mapping cannot be a key" },
        { RANDOM "---\nsteps: 5\n", NULL,
          "t.yaml:2: yaml: a recipe is one document; a second one begins here" },
        { "%YAML 9.9\n---\nsteps: 5\n", NULL, "t.yaml:1: yaml: *" },
        { "\x7f"
          "ELF\x02\x01\x01",
          NULL, "t.yaml:1: yaml: not a text file: *" },
        { "\xff\xfe\x42\x30", NULL, "t.yaml:1: yaml: not a text file: *" }, /* UTF-16 without a zero byte */
        { "steps: 5\n\xff\xfe\xfd\n", NULL, "t.yaml:2: yaml: not a text file: *" },
    };
    ASSERT_ALL_BAD(bad);
    Recipe r;
    err_clear();
    assert_int_equal(recipe_parse(&r, "t.yaml", "steps: 5\n\0x", 11, 0, NULL), -1);
    assert_string_equal(err_get(), "t.yaml:2: yaml: not a text file: zero byte");
}

static void bad_overrides(void **state)
{
    static const Bad bad[] = {
        { RANDOM, "model.width", "command line: model.width: expected key=value" },
        { "task: latent\nlatent: {pairs: random}\n", "data.train=x",
          "command line: data.train: has no effect while latent.pairs is random*" },
        { RANDOM, "", "command line: '': expected key=value" },
        { RANDOM, "=5", "command line: '': expected key=value" },
        { RANDOM, "--steps=5", "command line: --steps: unknown key (did you mean steps?)" },
        { RANDOM, "model.widht=5", "command line: model.widht: unknown key (did you mean model.width?)" },
        { RANDOM, "model=5", "command line: model: is a section: name one of its keys" },
        { RANDOM, "steps=", "command line: steps: expected an integer, got ''" },
        { RANDOM, "steps=five", "command line: steps: expected an integer, got 'five'" },
        { RANDOM, "steps=5 ", "command line: steps: expected an integer, got '5 '" },
        { RANDOM, "steps=0", "command line: steps: 0 is out of bounds (1 .. 1000000000)" },
        { RANDOM, "model.heads=7",
          "command line: model.heads: model.heads (7) must divide model.width (768)*" },
        { RANDOM, "data.kind=text", "command line: data.kind: is missing: name the file to train on*" },
        { RANDOM, "run=\xff", "command line: run: contains characters that are not printable UTF-8" },
        { RANDOM, "a\nb=5", "command line: a?b: unknown key" },
        { RANDOM, "require=flash,nonsense", "command line: require: 'nonsense' is none of*" },
        { "steps: x\n", "steps=5",
          "t.yaml:1: steps: expected an integer, got 'x'" }, /* the file must be right by itself */
    };
    ASSERT_ALL_BAD(bad);
}

/* ---- Hostile sizes ------------------------------------------------------------------------------------- */

static void assert_refused_fast(const char *text, size_t n)
{
    Recipe r;
    double begin_s = clock_now_s();
    err_clear();
    assert_int_equal(recipe_parse(&r, "t.yaml", text, n, 0, NULL), -1);
    assert_int_equal(err_kind(), ERR_USER);
    assert_null(strchr(err_get(), '\n'));
    assert_true(clock_now_s() - begin_s < 1.0);
}

/* Patterns that are known to drive YAML readers into deep recursion or quadratic time, up to the size
 * limit. */
static void hostile_patterns(void **state)
{
    static const char *const unit[] = { "[",   "{",     "{a: ",    "- ",   "? ",       "[? ",   "!",
                                        "&a ", "a: [",  "\"",      "'",    "#",        "\n",    " ",
                                        "a",   "a:\n",  "- - - -", "|\n ", "model: {", ", ",    "*a ",
                                        "%",   "---\n", "...\n",   ": ",   "\xc3\xa4", "a: b\n" };
    size_t                   n      = 1 << 20;
    char                    *text   = malloc(n);
    static const char *const head[] = { "", "steps: ", "model: {width: ", "run: \"", "require: [" };
    for (size_t h = 0; h < sizeof head / sizeof head[0]; h++) {
        for (size_t i = 0; i < sizeof unit / sizeof unit[0]; i++) {
            size_t len = strlen(unit[i]), first = strlen(head[h]);
            memcpy(text, head[h], first);
            for (size_t k = 0; first + k < n; k++) text[first + k] = unit[i][k % len];
            assert_refused_fast(text, n);
        }
    }
    free(text);
}

static void too_large(void **state)
{
    Recipe r;
    size_t n    = (1 << 20) + 1;
    char  *text = malloc(n);
    memset(text, ' ', n);
    assert_int_equal(recipe_parse(&r, "t.yaml", text, n, 0, NULL), -1);
    assert_string_equal(err_get(), "t.yaml: a recipe is at most 1 MiB");
    free(text);
}

/* ---- Files that are no recipes ------------------------------------------------------------------------- */

static void assert_unloadable(const char *path, const char *message)
{
    Recipe r;
    err_clear();
    assert_int_equal(recipe_load(&r, path, 0, NULL), -1);
    assert_string_equal(err_get(), message);
    assert_int_equal(err_kind(), ERR_USER);
}

static void bad_files(void **state)
{
    assert_unloadable("quickstrat", "quickstrat: no such recipe (did you mean quickstart?)");
    assert_unloadable("recipes/quickstrat.yaml",
                      "recipes/quickstrat.yaml: no such recipe (did you mean quickstart.yaml?)");
    assert_unloadable("/nonexistent/nothing-like-it", "/nonexistent/nothing-like-it: no such recipe");
    assert_unloadable("recipes", "recipes: is a directory, not a recipe");
    assert_unloadable("/dev/zero", "/dev/zero: is a device or a pipe, not a recipe");
    assert_unloadable("", ": no such recipe");
    char path[] = "/tmp/test_conf_XXXXXX";
    int  fd     = mkstemp(path);
    char message[128];
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, 100 * 1000 * 1000), 0);
    snprintf(message, sizeof message, "%s: a recipe is at most 1 MiB", path);
    assert_unloadable(path, message);
    assert_int_equal(ftruncate(fd, 0), 0);
    snprintf(message, sizeof message, "%s: the recipe is empty", path);
    assert_unloadable(path, message);
    close(fd);
    unlink(path);
}

/* ---- Tasks --------------------------------------------------------------------------------------------- */

/* Keys of a task that is not shipped: their fields lie in Recipe.own. */
typedef struct {
    int64_t rounds;
    double  share;
    char    world[RECIPE_STR], file[RECIPE_STR];
} Toy;

_Static_assert(sizeof(Toy) <= RECIPE_OWN, "raise RECIPE_OWN");

static Toy *toy_of(Recipe *r) { return (Toy *)r->own; }

static int toy_resolve(Recipe *r)
{
    if (toy_of(r)->rounds % 2 == 0) return 0;
    return recipe_blame(r, "toy.rounds", "%lld is odd", (long long)toy_of(r)->rounds);
}

#define TOY(field) offsetof(Recipe, own) + offsetof(Toy, field)

static const SchemaRow toy_rows[] = {
    { .name   = "toy.rounds",
      .type   = KEY_INT,
      .offset = TOY(rounds),
      .def    = "4",
      .min    = 1,
      .max    = 99,
      .help   = "rounds" },
    { .name   = "toy.share",
      .type   = KEY_FLOAT,
      .offset = TOY(share),
      .def    = "0.5",
      .min    = 0,
      .max    = 1,
      .help   = "share" },
    { .name = "toy.world", .type = KEY_TEXT, .offset = TOY(world), .def = "flat", .help = "world" },
    { .name   = "toy.file",
      .type   = KEY_TEXT,
      .offset = TOY(file),
      .def    = "",
      .path   = PATH_WHOLE,
      .help   = "file" },
};
static const RecipeTask toy = { "toy", toy_rows, ARRAY_LEN(toy_rows), toy_resolve };

static int load_toy(Recipe *r, const char *text, const char *override)
{
    char  path[] = "/tmp/test_conf_XXXXXX", *list[1] = { (char *)(uintptr_t) override };
    FILE *f = fdopen(mkstemp(path), "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
    err_clear();
    int rc = recipe_load_task(r, &toy, path, override ? 1 : 0, list);
    unlink(path);
    return rc;
}

static void task_brings_keys(void **state)
{
    Recipe r, again;
    char  *text = NULL;
    size_t n    = 0;
    if (load_toy(&r, "task: toy\nstep_samples: 12\ntoy: {rounds: 8, world: round}\n", "toy.share=0.25") < 0)
        fail_msg("%s", err_get());
    assert_true(toy_of(&r)->rounds == 8 && toy_of(&r)->share == 0.25 && r.step_samples == 12);
    assert_string_equal(toy_of(&r)->world, "round");
    FILE *f = open_memstream(&text, &n);
    recipe_write(&r, f);
    assert_int_equal(fclose(f), 0);
    assert_null(strstr(text, "step_tokens")); /* not a key of this task */
    if (load_toy(&again, text, NULL) < 0) fail_msg("%s", err_get());
    assert_same_recipe(&r, &again);
    assert_memory_equal(r.own, again.own, sizeof r.own);
    free(text);
    assert_int_equal(load_toy(&r, "task: toy\n", "toy.rounds=3"), -1);
    assert_string_equal(err_get(), "command line: toy.rounds: 3 is odd");
    assert_int_equal(load_toy(&r, "task: toy\n", "toy.rounds=100"), -1);
    assert_non_null(strstr(err_get(), "command line: toy.rounds: "));
    assert_int_equal(load_toy(&r, "task: toy\n", "toy.round=8"), -1);
    assert_non_null(strstr(err_get(), "did you mean toy.rounds?"));
}

/* A key that the task does not have would be ignored in silence. */
/* A file that a task's own key names is looked for beside the recipe, too. */
static void files_beside_the_recipe(void **state)
{
    Recipe r;
    char   path[] = "/tmp/test_conf_own_XXXXXX", text[64], line[64];
    close(mkstemp(path));
    snprintf(text, sizeof text, "task: toy\ntoy: {file: %s}\n", path + strlen("/tmp/"));
    snprintf(line, sizeof line, "/tmp/%s", path + strlen("/tmp/"));
    if (load_toy(&r, text, NULL) < 0) fail_msg("%s", err_get());
    assert_string_equal(toy_of(&r)->file, line);
    if (load_toy(&r, text, "toy.file=nowhere") < 0) fail_msg("%s", err_get());
    assert_string_equal(toy_of(&r)->file, "nowhere");
    unlink(path);
}

static void keys_of_another_task(void **state)
{
    Recipe r;
    assert_int_equal(parse(&r, RANDOM "step_samples: 8\n", NULL), -1);
    assert_string_equal(err_get(), "t.yaml:2: step_samples: task lm has no such key");
    assert_int_equal(err_kind(), ERR_USER);
    assert_int_equal(parse(&r, RANDOM, "step_samples=8"), -1);
    assert_string_equal(err_get(), "command line: step_samples: task lm has no such key");
    assert_int_equal(load_toy(&r, "task: toy\n", "step_tokens=8192"), -1);
    assert_string_equal(err_get(), "command line: step_tokens: task toy has no such key");
    assert_int_equal(load_toy(&r, "task: toy\n", "model.width=64"), -1);
    assert_string_equal(err_get(), "command line: model.width: task toy has no such key");
    assert_int_equal(parse(&r, RANDOM "task: ln\n", NULL), -1);
    assert_string_equal(err_get(),
                        "t.yaml:2: task: 'ln' is none of lm, ppo, image, mae, latent (did you mean lm?)");
    assert_int_equal(load_toy(&r, "task: toy\n", "task=tyo"), -1);
    assert_string_equal(err_get(),
                        "command line: task: 'tyo' is none of lm, ppo, image, mae, latent, toy (did you "
                        "mean toy?)");
}

#define CASE(f) cmocka_unit_test_teardown(f, clean)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(table_is_sound),
        CASE(every_recipe_loads),
        CASE(unusual_recipe_round_trips),
        CASE(lists_round_trip),
        CASE(secrets_stay),
        CASE(values_are_derived),
        CASE(zero_is_a_value),
        CASE(minibatch_is_chosen),
        CASE(overrides_win),
        CASE(accepted_forms),
        CASE(data_is_found_beside_the_recipe),
        CASE(integers_may_have_an_exponent),
        CASE(data_may_be_elsewhere_for_a_plan),
        CASE(memory_limits),
        CASE(help_is_printed),
        CASE(bad_keys),
        CASE(bad_values),
        CASE(bad_relations),
        CASE(bad_yaml),
        CASE(bad_overrides),
        CASE(hostile_patterns),
        CASE(too_large),
        CASE(bad_files),
        CASE(task_brings_keys),
        CASE(keys_of_another_task),
        CASE(files_beside_the_recipe),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
