/* conf/: every recipe loads, and a written recipe reads back to the same struct. Mistakes are in
 * test_conf_bad.c. */
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

#include "conf_rig.h"

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
        "device: cuda:3\ngpus: 7\nthreads: 5\nseed: 9007199254740991\nmemory_limit: 80%\n"
        "deterministic: yes\ngive_way: [moments, weights]\nrequire: [flash, tf32, graphs, flash]\n"
        "freeze: [embed, block.0-1]\nbudget_s: 0.1\nwatchdog_s: 7\ntrace: 2\ntrace_skip: 9\ntrace_warmup: "
        "3\nlog_every: 3\nmax_skips: 4\nspike_factor: "
        "1e-3\n"
        "model: {layers: 3, width: 99, heads: 6, kv_heads: 3, head_dim: 34, ffn: 333, vocab: 300,\n"
        "  context: 512, norm: rmsnorm, norm_eps: 1.1e-6, pos: rope, rope_theta: 123456.789,\n"
        "  act: relu2, bias: true, qkv_bias: true, tied: false, qk_norm: on, dropout: 0.1,\n"
        "  mask: document, init_std: 0.017, rope_scaling: longrope, rope_factor: 2.5,\n"
        "  rope_low: 0.5, rope_high: 3, rope_original: 600, rope_fast: 30, rope_slow: 0.5,\n"
        "  rope_truncate: false, rope_attention: 1.5,\n"
        "  rope_short: [1, 1, 1.5, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2],\n"
        "  rope_long: [1, 1, 1.5, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0.3333333333333333]}\n"
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

static int count_agents(Recipe *r, int64_t agents, const char *key)
{
    char  text[] = "task: ppo\nenv: cartpole\ntotal_steps: 1000\nppo: {envs: 4, rollout: 8, minibatch: 16}\n";
    char *list[] = { (char *)key };
    err_clear();
    if (recipe_parse(r, "t.yaml", text, strlen(text), key != NULL, list) < 0) fail_msg("%s", err_get());
    r->ppo.seen.n_agent = (int)agents;
    return recipe_count_agents(r);
}

/* A step of the run has a sample for each agent, so total_steps are fewer steps of the run. */
static void agents_are_counted(void **state)
{
    Recipe r;
    assert_int_equal(count_agents(&r, 1, NULL), 0);
    assert_true(r.step_samples == 32 && r.steps == 31 && r.ppo.minibatch == 16);
    assert_int_equal(count_agents(&r, 3, NULL), 0);
    assert_true(r.step_samples == 96 && r.steps == 10 && r.ppo.minibatch == 16);
    assert_int_equal(count_agents(&r, 3, "ppo.minibatch=0"), 0);
    assert_true(r.ppo.minibatch == 96);
    assert_int_equal(count_agents(&r, 3, "ppo.minibatch=48"), 0); /* more than one agent's share */
    assert_int_equal(count_agents(&r, 1, "ppo.minibatch=48"), -1);
    assert_string_equal(err_get(),
                        "command line: ppo.minibatch: ppo.minibatch (48) must divide ppo.envs x ppo.rollout "
                        "(32): 32 would do");
    assert_int_equal(count_agents(&r, 1, "ppo.minibatch=12"), -1);
    assert_non_null(strstr(err_get(), ": 8 or 16 would do"));
    assert_int_equal(count_agents(&r, 3, "ppo.minibatch=9"), -1);
    assert_string_equal(err_get(),
                        "command line: ppo.minibatch: ppo.minibatch (9) must divide ppo.envs x ppo.rollout x "
                        "3 agents (96): 8 or 12 would do");
    assert_int_equal(count_agents(&r, 40, NULL), -1);
    assert_string_equal(err_get(),
                        "t.yaml:3: total_steps: total_steps (1000) is less than one rollout of ppo.envs x "
                        "ppo.rollout x agents (1280)");
    assert_int_equal(count_agents(&r, 2, "parity=cleanrl"), -1);
    assert_string_equal(err_get(), "command line: parity: CleanRL's ppo.py has one agent in an environment, "
                                   "cartpole has 2");
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
    assert_int_equal(recipe_help("keys", f), 0);
    fflush(f);
    for (int i = 0; i < schema_count; i++) assert_non_null(strstr(text, schema_table[i].name));
    assert_int_equal(recipe_help("model.widht", f), -1);
    assert_string_equal(err_get(), "command line: model.widht: unknown key (did you mean model.width?)");
    fclose(f);
    free(text);
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
        CASE(agents_are_counted),
        CASE(overrides_win),
        CASE(accepted_forms),
        CASE(data_is_found_beside_the_recipe),
        CASE(integers_may_have_an_exponent),
        CASE(data_may_be_elsewhere_for_a_plan),
        CASE(memory_limits),
        CASE(help_is_printed),
        CASE(task_brings_keys),
        CASE(keys_of_another_task),
        CASE(files_beside_the_recipe),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
