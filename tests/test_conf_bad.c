/* conf/: every mistake in a recipe is one line that blames the right key at the right place. */
#include "base/clock.h"
#include "base/err.h"
#include "conf/recipe.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "conf_rig.h"

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

#define LONGROPE "model: {pos: rope, head_dim: 8, context: 1024, rope_scaling: longrope, "

static void bad_relations(void **state)
{
    static const Bad bad[] = {
        { RANDOM "model: {rope_scaling: yarn}\n", NULL,
          "t.yaml:2: model.rope_scaling: model.rope_scaling needs model.pos rope" },
        { RANDOM "model: {pos: rope, rope_factor: 4}\n", NULL,
          "t.yaml:2: model.rope_factor: model.rope_factor (4) needs model.rope_scaling linear, llama3, yarn "
          "or "
          "longrope" },
        { RANDOM "model: {pos: rope, rope_scaling: yarn, rope_fast: 2}\n", "model.rope_slow=3",
          "command line: model.rope_slow: model.rope_fast (2) must not be below model.rope_slow (3)" },
        { RANDOM "model: {pos: rope, rope_scaling: yarn, rope_theta: 1}\n", NULL,
          "t.yaml:2: model.rope_theta: model.rope_theta must be above 1 for yarn" },
        { RANDOM "model: {pos: rope, rope_scaling: llama3, rope_attention: 2}\n", NULL,
          "t.yaml:2: model.rope_attention: model.rope_attention needs model.rope_scaling yarn or longrope" },
        { RANDOM "model: {pos: rope, rope_short: [1]}\n", NULL,
          "t.yaml:2: model.rope_short: model.rope_short needs model.rope_scaling longrope" },
        { RANDOM "model: {pos: rope, rope_long: [1]}\n", NULL,
          "t.yaml:2: model.rope_long: model.rope_long needs model.rope_scaling longrope" },
        { RANDOM LONGROPE "rope_original: 1}\n", NULL,
          "t.yaml:2: model.rope_original: model.rope_original must be above 1 for longrope" },
        { RANDOM LONGROPE "rope_original: 512}\n", NULL,
          "t.yaml:2: model.context: model.context (1024) is above model.rope_original (512): there the "
          "stretch would depend on a sequence's length (model.context=512 would do)" },
        { RANDOM LONGROPE "rope_short: [1, 2, 3]}\n", NULL,
          "t.yaml:2: model.rope_short: needs 4 numbers, one for each pair of a head's channels" },
        { RANDOM LONGROPE "rope_short: [1, 2, 3, x]}\n", NULL,
          "t.yaml:2: model.rope_short: needs 4 numbers, one for each pair of a head's channels" },
        { RANDOM LONGROPE "rope_short: [1, 2, 3, 0]}\n", NULL,
          "t.yaml:2: model.rope_short: 0 is not above 0" },
        { RANDOM LONGROPE "rope_short: [1, 2, 3, 4], rope_long: [1]}\n", NULL,
          "t.yaml:2: model.rope_long: needs 4 numbers, one for each pair of a head's channels" },
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

#define CASE(f) cmocka_unit_test_teardown(f, clean)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(bad_keys),      CASE(bad_values),       CASE(bad_relations), CASE(bad_yaml),
        CASE(bad_overrides), CASE(hostile_patterns), CASE(too_large),     CASE(bad_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
