/* Pairs of prompt and answer (data/pairs.h): what is read, in which order, and that packed rows always
 * suffice. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/log.h"
#include "data/pairs_impl.h"
#include "text/train.h"

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
    *x = (Sample){ 0 };
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
                assert_true(rows <= pairs_rows(&x.s, (PairReader)reader, B, pairs_share(r)));
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
    /* Without the key the data say it, to a thousandth; without the data there is room for all. */
    load(&r, "latent.pairs=jsonl", "data.val_fraction=0");
    assert_int_equal(pairs_complete(&r, 0), 0);
    assert_true(pairs_share(&r) == 1);
    assert_int_equal(pairs_complete(&r, 1), 0);
    assert_true(pairs_share(&r) > room - 0.002 && pairs_share(&r) < room + 0.002);
    assert_int_equal(pairs_open_train(&src, &r), 0);
    check_room(&r, src, 4096);
    source_close(src);
}

/* Rows that are needed are there, whatever a share loses by rounding. */
static void test_share_of_rows(void **state)
{
    const PairShape s = { .S = 300, .P = 300, .A = 2, .L = 8, .K = 4 };
    for (int64_t B = 1; B < 64; B++) {
        for (int64_t x = 0; x + s.P <= B * s.P; x++) {
            int64_t rows = B * (s.A - 1 + s.L) + x + s.P;
            if (pairs_rows(&s, READ_FULL, B, (double)x / (double)(B * s.P)) < rows)
                fail_msg("%lld rows of %lld samples are not there", (long long)rows, (long long)B);
        }
    }
}

/* The longest prompt is among those for validation: the room is for all. */
static void test_room_for_validation(void **state)
{
    Recipe  r;
    Source *train, *val;
    write_numbered(64, 10);
    FILE *f = fopen(file, "a");
    for (int i = 0; i < 64; i++) fprintf(f, "{\"prompt\": \"%0*d\", \"answer\": \"a\"}\n", 290, i);
    fclose(f);
    load(&r, "latent.pairs=jsonl", "data.val_fraction=0.5");
    assert_int_equal(pairs_complete(&r, 1), 0);
    assert_int_equal(pairs_open_train(&train, &r), 0);
    assert_int_equal(pairs_open_val(&val, &r, 0, train), 0);
    check_room(&r, train, 64);
    check_room(&r, val, 32);
    source_close(val);
    source_close(train);
}

/* A run reads its data once: no look before they are opened, and one list for both parts. */
static void test_read_once(void **state)
{
    Recipe  r, looked;
    Source *train, *val;
    write_numbered(128, 200);
    load(&r, "latent.pairs=jsonl", "data.val_fraction=0.5");
    looked = r;
    assert_int_equal(pairs_complete(&looked, DATA_HERE), 0);
    assert_int_equal(pairs_complete(&r, DATA_OPENED_NEXT), 0);
    assert_true(r.latent.share == 0);
    assert_int_equal(pairs_open_train(&train, &r), 0);
    assert_int_equal(unlink(file), 0);
    if (pairs_open_val(&val, &r, 0, train) < 0) fail_msg("%s", err_get());
    pairs_fit(&r, train, val);
    assert_true(r.latent.share > 0 && r.latent.share == looked.latent.share);
    source_close(train);
    check_room(&r, val, 64);
    source_close(val);
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

/* answer_start counts characters; the context is cut between characters; all answers are there, each once. */
static void test_squad_characters(void **state)
{
    Recipe  r;
    Sample  x;
    Source *src;
    char    text[4096] = "", *at = text;
    at += sprintf(at, "{\"data\": [{\"paragraphs\": [{\"context\": \"");
    for (int i = 0; i < 400; i++) at += sprintf(at, "\u0416");
    at += sprintf(at, "here it is");
    for (int i = 0; i < 400; i++) at += sprintf(at, "x");
    sprintf(
        at,
        "\", \"qas\": [{\"question\": \"Where?\", \"answers\": [{\"text\": \"here\", \"answer_start\": 400},"
        "{\"text\": \"it\"}, {\"text\": \"here\"}, {\"text\": \"it is\"}]}]}]}]}");
    write_file(text);
    load(&r, "latent.pairs=squad", "data.val_fraction=0");
    sample_open(&x, &r);
    if (pairs_open_train(&src, &r) < 0) fail_msg("%s", err_get());
    source_fill(src, 0, x.field, NULL);
    char prompt[512] = { 0 };
    int  n           = *x.at[PAIR_N_BYTES];
    for (int i = 0; i < n; i++) prompt[i] = (char)x.at[PAIR_BYTES][n - 1 - i];
    assert_non_null(strstr(prompt, "here it is"));
    assert_memory_equal(prompt, "\u0416", 2);
    static const int32_t other[] = { 'i', 't', -1, 'i', 't', ' ', 'i', 's', -1, -1 };
    assert_memory_equal(x.at[PAIR_OTHER], other, sizeof other);
    source_close(src);
    sample_close(&x);
}

/* ---- with a tokenizer ---------------------------------------------------------------------------------- */

/* Text of words, some with letters of two bytes, and a tokenizer made from it that begins a text with <s>. */
static char *make_tokenizer(char *key, size_t n_key)
{
    static const char *const word[] = { "the ",          "caf\u00e9 ", "walks ", "walking ",
                                        "\u0416\u0416 ", "on, ",       "and\n" };
    char                    *text = calloc(1, 40000), *at = text, out[64];
    Tokenizer               *t;
    for (uint32_t i = 0, k = 1; i < 4000; i++, k = k * 1664525 + 1013904223)
        at += sprintf(at, "%s", word[(k >> 16) % ARRAY_LEN(word)]);
    write_file(text);
    const char *path[] = { file };
    TrainConfig c      = {
             .path = path, .n_path = 1, .vocab = 290, .pattern = "gpt2", .special = "<s>", .threads = 1
    };
    if (train_tokenizer(&t, &c) < 0) fail_msg("%s", err_get());
    snprintf(out, sizeof out, "%s/tok", dir);
    assert_int_equal(tokenizer_save(t, out), 0);
    tokenizer_close(t);
    snprintf(key, n_key, "latent.tokenizer=%s", out);
    return text;
}

/* Prompt, anchor and answer follow each other without a hole, and answers tile the text. A prompt that is
 * typed becomes what was trained on. */
static void test_text_tokens(void **state)
{
    Recipe   r;
    Sample   x, y;
    Source  *src;
    PairText t;
    char     key[96], *text = make_tokenizer(key, sizeof key), whole[1024], answer[256];
    char    *covered = calloc(1, strlen(text) + 1);
    load(&r, "latent.pairs=text", key);
    assert_int_equal(pairs_complete(&r, 1), 0);
    sample_open(&x, &r);
    sample_open(&y, &r);
    assert_int_equal(pair_text_open(&t, &r), 0);
    if (pairs_open_train(&src, &r) < 0) fail_msg("%s", err_get());
    int64_t n_all = src->size;
    for (int64_t g = 0; g < n_all; g++) {
        source_fill(src, g, x.field, NULL);
        int n = *x.at[PAIR_N_BYTES];
        for (int i = 0; i < n; i++) whole[i] = (char)x.at[PAIR_BYTES][n - 1 - i];
        whole[n] = '\0';
        assert_true(((unsigned char)whole[0] & 0xC0) != 0x80);
        assert_int_equal(pair_text_decode(&t, x.at[PAIR_TOK] + x.s.M, x.s.A, whole + n, 64), 0);
        assert_int_equal(pairs_fill_prompt(&r, whole, y.field), 0); /* context and anchor */
        assert_memory_equal(x.at[PAIR_BYTES], y.at[PAIR_BYTES], sizeof(int32_t) * (size_t)n);
        assert_int_equal(x.at[PAIR_TOK][x.s.M], y.at[PAIR_TOK][y.s.M]);
        size_t before = strlen(whole);
        assert_int_equal(pair_text_decode(&t, x.at[PAIR_TARGET], x.s.L, answer, sizeof answer), 0);
        strcat(whole, answer);
        const char *at = strstr(text, whole);
        if (!at) fail_msg("a hole: %s", whole);
        for (; at; at = strstr(at + 1, whole))
            memset(covered + (at - text) + before, 1, strlen(whole) - before);
    }
    int64_t n_covered = 0, n_text = (int64_t)strlen(text);
    for (int64_t i = 0; i < n_text; i++) n_covered += covered[i];
    assert_true(n_all > 100 &&
                n_covered > 8 * n_text / 10); /* an epoch leaves out some, validation a tenth */
    source_close(src);
    pair_text_close(&t);
    sample_close(&x);
    sample_close(&y);
    free(covered);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_fields),
                                        cmocka_unit_test(test_epochs),
                                        cmocka_unit_test(test_room),
                                        cmocka_unit_test(test_share_of_rows),
                                        cmocka_unit_test(test_room_for_validation),
                                        cmocka_unit_test(test_read_once),
                                        cmocka_unit_test(test_validation),
                                        cmocka_unit_test(test_squad),
                                        cmocka_unit_test(test_squad_characters),
                                        cmocka_unit_test(test_text_tokens) };
    if (!mkdtemp(dir)) return 1;
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    snprintf(file, sizeof file, "rm -r %s", dir);
    if (system(file) != 0) return 1;
    return rc;
}
