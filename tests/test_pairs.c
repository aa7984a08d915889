/* Pairs of prompt and answer (data/pairs.h): what is read, in which order, and that packed rows always
 * suffice. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/log.h"
#include "data/pairs_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char dir[] = "/tmp/test_pairs-XXXXXX", file[64];

static void write_file(const char *text)
{
    snprintf(file, sizeof file, "%s/data", dir);
    FILE *f = fopen(file, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

/* Overrides end with NULL. */
static void load(Recipe *r, const char *a, const char *b)
{
    char train[128],
        *all[16] = { "task=latent",       "model.vocab=256",   "model.context=4096", "model.pos=rope",
                     "model.heads=12",    "encoder.bytes=300", "latent.prompt=300",  "latent.answer=8",
                     "encoder.latents=4", "step_samples=64",   "latent.anchor=A:",   train };
    int n        = 12;
    snprintf(train, sizeof train, "data.train=%s", file);
    if (a) all[n++] = (char *)a;
    if (b) all[n++] = (char *)b;
    if (recipe_parse(r, "t.yaml", "seed: 3\n", 8, n, all) < 0) fail_msg("%s", err_get());
}

typedef struct {
    PairShape s;
    int32_t  *at[PAIR_FIELDS];
    void     *field[FIELDS_MAX];
} Sample;

static void sample_open(Sample *x, const Recipe *r)
{
    FieldRow row[FIELDS_MAX];
    assert_int_equal(pairs_shape(&x->s, r), 0);
    int n = pairs_fields(&x->s, row);
    for (int i = 0; i < n; i++) {
        int64_t count = row[i].ndim > 0 ? row[i].dim[0] : 1;
        x->field[i] = x->at[i] = calloc((size_t)count, sizeof(int32_t));
    }
}

static void sample_close(Sample *x)
{
    for (int i = 0; i < PAIR_FIELDS; i++) free(x->at[i]);
}

static void write_numbered(int n, int longest)
{
    char *text = calloc(1, (size_t)(n * (longest + 100))), *at = text;
    for (int i = 0; i < n; i++) {
        at += sprintf(at, "{\"prompt\": \"%04d", i);
        for (int k = 0; k < (i * 37) % longest; k++) *at++ = (char)('a' + k % 26);
        at += sprintf(at, "\", \"answer\": \"%d\"}\n", i % 10);
    }
    write_file(text);
    free(text);
}

/* Fields of one sample: everything in its place, -1 elsewhere. */
static void test_fields(void **state)
{
    Recipe  r;
    Sample  x;
    Source *src;
    write_file(
        "{\"prompt\": \"question\", \"answer\": \"xyz\"}\n{\"prompt\": \"q\", \"answer\": \"other\"}\n");
    load(&r, "latent.pairs=jsonl", "data.val_fraction=0.5");
    sample_open(&x, &r);
    assert_int_equal(pairs_open_train(&src, &r), 0);
    assert_int_equal(source_fill(src, 0, x.field, NULL), 0);
    assert_int_equal(*x.at[PAIR_N_BYTES], 8);
    assert_int_equal(x.at[PAIR_BYTES][0], 'n'); /* the last one first */
    assert_int_equal(x.at[PAIR_BYTES][7], 'q');
    static const int32_t rest[] = { 'A', ':', 'x', 'y', 'z', '\n', -1, -1, -1 };
    assert_int_equal(x.at[PAIR_TEXT][0], 'q');
    assert_memory_equal(x.at[PAIR_TEXT] + 8, rest, sizeof rest);
    assert_memory_equal(x.at[PAIR_NONE], rest, sizeof rest);
    assert_memory_equal(x.at[PAIR_BUDGET] + 4, rest, sizeof rest);
    assert_int_equal(x.at[PAIR_BUDGET][3], 's');
    for (int i = 0; i < 4; i++) assert_int_equal(x.at[PAIR_TOK][i], -1);
    assert_memory_equal(x.at[PAIR_TOK] + 4, rest, sizeof rest);
    assert_memory_equal(x.at[PAIR_TARGET], rest + 2, sizeof *rest * 7);
    assert_int_equal(x.at[PAIR_FIRST][0], 'x');
    assert_int_equal(x.at[PAIR_FIRST][1], -1);
    assert_int_equal(*x.at[PAIR_N_TEACHER], 8 + 2 + 4 - 1);
    assert_int_equal(*x.at[PAIR_N_FULL], 8 + 2 + 8 - 1);
    assert_int_equal(source_targets(src, 0, PAIR_LOSS, NULL), 4);
    assert_int_equal(source_targets(src, 0, PAIR_FIRST_TOKEN, NULL), 1);
    assert_int_equal(source_fill(src, -1, x.field, NULL), 0);
    assert_int_equal(*x.at[PAIR_N_BYTES], 0);
    assert_int_equal(x.at[PAIR_TARGET][0], -1);
    source_close(src);
    sample_close(&x);
}

/* Each epoch has each pair at most once, and almost all; two epochs differ. */
static void test_epochs(void **state)
{
    enum { N = 1000 };
    Recipe  r;
    Sample  x;
    Source *src;
    int     seen[N] = { 0 }, other = 0, first[N];
    write_numbered(N, 200);
    load(&r, "latent.pairs=jsonl", "data.val_fraction=0");
    sample_open(&x, &r);
    assert_int_equal(pairs_open_train(&src, &r), 0);
    int64_t per = N / 64 * 64;
    for (int64_t g = 0; g < 2 * per; g++) {
        source_fill(src, g, x.field, NULL);
        int number = 0;
        for (int i = 0; i < 4; i++) number = 10 * number + x.at[PAIR_TEXT][i] - '0';
        seen[number] += g < per ? 1 : 100;
        if (g < per) first[g] = number;
        if (g >= per) other += first[g - per] != number;
    }
    for (int i = 0; i < N; i++) assert_true(seen[i] % 100 <= 1 && seen[i] / 100 <= 1);
    assert_true(other > per / 2);
    source_close(src);
    sample_close(&x);
}

/* Whatever the micro-batch: B samples in a row fit into pairs_rows(), for all who read prompts. */
static void check_room(const Recipe *r, Source *src, int64_t n)
{
    Sample x;
    sample_open(&x, r);
    int32_t *len = malloc(sizeof *len * (size_t)(3 * n));
    for (int64_t g = 0; g < n; g++) {
        source_fill(src, g, x.field, NULL);
        len[3 * g]     = (int32_t)round_up(*x.at[PAIR_N_BYTES], PAIRS_ALIGN);
        len[3 * g + 1] = *x.at[PAIR_N_TEACHER];
        len[3 * g + 2] = *x.at[PAIR_N_FULL];
    }
    for (int64_t B = 1; B <= 256; B++) {
        for (int64_t at = 0; at + B <= n; at += B) {
            for (int reader = READ_BYTES; reader <= READ_FULL; reader++) {
                int64_t rows = 0;
                for (int64_t i = at; i < at + B; i++) rows += len[3 * i + reader];
                assert_true(rows <= pairs_rows(&x.s, (PairReader)reader, B, r->latent.room));
            }
        }
    }
    free(len);
    sample_close(&x);
}

static void test_room(void **state)
{
    Recipe  r;
    Source *src;
    double  room;
    write_numbered(1500, 290);
    load(&r, "latent.pairs=jsonl", "latent.room=0.05");
    assert_int_equal(pairs_open_train(&src, &r), -1);
    const char *would = strstr(err_get(), "prompts: ");
    assert_non_null(would);
    assert_int_equal(sscanf(would, "prompts: %lf would do", &room), 1);
    err_clear();
    assert_true(room > 0.4 && room < 0.75);
    char key[64];
    snprintf(key, sizeof key, "latent.room=%g", room);
    load(&r, "latent.pairs=jsonl", key);
    assert_int_equal(pairs_open_train(&src, &r), 0);
    check_room(&r, src, 4096);
    source_close(src);
}

/* Validation: all pairs of its part, each once. */
static void test_validation(void **state)
{
    Recipe  r;
    Sample  x;
    Source *src;
    int     seen[500] = { 0 };
    write_numbered(500, 100);
    load(&r, "latent.pairs=jsonl", "data.val_fraction=0.3");
    sample_open(&x, &r);
    assert_int_equal(pairs_open_val(&src, &r, 0, NULL), 0);
    assert_int_equal(src->n_sample, 150);
    for (int64_t g = 0; g < src->n_sample; g++) {
        source_fill(src, g, x.field, NULL);
        int number = 0;
        for (int i = 0; i < 4; i++) number = 10 * number + x.at[PAIR_TEXT][i] - '0';
        seen[number]++;
    }
    for (int i = 0; i < 500; i++) assert_int_equal(seen[i], i >= 350);
    source_close(src);
    sample_close(&x);
}

static void test_squad(void **state)
{
    Recipe  r;
    Sample  x;
    Source *src;
    write_file(
        "{\"data\": [{\"paragraphs\": [{\"context\": \"Paris is the capital.\", \"qas\": [{\"question\": "
        "\"Which?\", \"answers\": [{\"text\": \"Paris\", \"answer_start\": 0}]}, {\"question\": \"None?\", "
        "\"answers\": []}]}]}]}");
    load(&r, "latent.pairs=squad", "data.val_fraction=0");
    sample_open(&x, &r);
    if (pairs_open_train(&src, &r) < 0) fail_msg("%s", err_get());
    source_fill(src, 0, x.field, NULL);
    char text[64] = { 0 };
    for (int i = 0; i < *x.at[PAIR_N_BYTES]; i++) text[i] = (char)x.at[PAIR_TEXT][i];
    assert_string_equal(text, "Paris is the capital.\nWhich?\n");
    assert_int_equal(x.at[PAIR_TARGET][0], 'P');
    assert_int_equal(src->size, 1);
    source_close(src);
    write_file("{\"data\": [");
    assert_int_equal(pairs_open_train(&src, &r), -1);
    assert_int_equal(err_kind(), ERR_USER);
    err_clear();
    sample_close(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_fields), cmocka_unit_test(test_epochs),
                                        cmocka_unit_test(test_room), cmocka_unit_test(test_validation),
                                        cmocka_unit_test(test_squad) };
    if (!mkdtemp(dir)) return 1;
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(file);
    rmdir(dir);
    return rc;
}
