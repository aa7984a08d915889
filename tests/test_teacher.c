/* The file of a cached teacher (file/teacher.h) and what training pairs make of it (data/pairs.h): damage is
 * found, a file of something else is refused by what differs, and each sample gets its own record. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/file.h"
#include "base/rng.h"
#include "data/pairs_impl.h"
#include "file/teacher.h"
#include "task/pick.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char dir[] = "/tmp/test_teacher-XXXXXX", data[64], path[64];

static const TeacherHeader small = {
    .n_sample = 5, .n_row = 3, .top = 7, .vocab = 50, .prompt = 9, .model = 1
};

/* Ids rise; logits say which sample and row they belong to. */
static void make_record(const TeacherHeader *h, int64_t sample, void *bytes)
{
    TeacherRecord r = teacher_record(h, bytes);
    memset(bytes, 0x5A, teacher_record_bytes(h)); /* what is not written */
    for (int64_t i = 0; i < h->n_row * h->top; i++) {
        r.id[i]    = (int32_t)(i % h->top * 2 + i / h->top);
        r.logit[i] = (float)(1000 * sample + i / h->top);
    }
    for (int64_t i = 0; i < h->n_row; i++) {
        float rest[TEACHER_REST] = { -1, -0.2f, -0.4f, -0.5f, -0.6f };
        memcpy(r.rest + i * TEACHER_REST, rest, sizeof rest);
    }
}

static void write_teacher(const TeacherHeader *h)
{
    TeacherWriter *w     = teacher_write_begin(path, h);
    void          *bytes = malloc(teacher_record_bytes(h));
    assert_non_null(w);
    for (int64_t i = h->n_sample - 1; i >= 0; i--) {
        make_record(h, i, bytes);
        assert_int_equal(teacher_write_put(w, i, bytes), 0);
    }
    assert_int_equal(teacher_write_publish(&w), 0);
    free(bytes);
}

/* ---- the file ----------------------------------------------------------------------------------------- */

static int open_and_verify(void)
{
    TeacherHeader h;
    int           fd = teacher_open(&h, path);
    if (fd < 0) return -1;
    int rc = teacher_verify(fd, path, &h);
    close(fd);
    return rc;
}

static void put_file(const char *bytes, size_t n)
{
    FILE *f = fopen(path, "w");
    assert_true(f && fwrite(bytes, 1, n, f) == n);
    fclose(f);
}

static void must_refuse(const char *what, size_t at)
{
    if (open_and_verify() == 0) fail_msg("%s at byte %zu passes", what, at);
    if (err_kind() != ERR_USER || !strstr(err_get(), path)) fail_msg("%s at %zu: %s", what, at, err_get());
    err_clear();
}

static void test_round(void **state)
{
    TeacherHeader h;
    write_teacher(&small);
    assert_int_equal(open_and_verify(), 0);
    int fd = teacher_open(&h, path);
    assert_memory_equal(&h, &small, sizeof h);
    char *bytes = malloc(teacher_record_bytes(&h)), *want = malloc(teacher_record_bytes(&h));
    for (int64_t i = 0; i < h.n_sample; i++) {
        make_record(&h, i, want);
        assert_int_equal(teacher_read(fd, path, &h, i, bytes), 0);
        size_t used = sizeof(int32_t) * 2 * 21 + sizeof(float) * 15;
        assert_memory_equal(bytes, want, used);
    }
    close(fd);
    free(bytes);
    free(want);
}

/* Every byte, every length. */
static void test_damage(void **state)
{
    char  *bytes;
    size_t n, each = teacher_record_bytes(&small);
    write_teacher(&small);
    assert_int_equal(file_read_all(path, 1 << 20, &bytes, &n), 0);
    assert_int_equal(n, TEACHER_HEADER_BYTES + 5 * each);
    for (size_t i = 0; i < n; i++) {
        bytes[i] ^= 0x10;
        put_file(bytes, n);
        must_refuse("a flipped bit", i);
        bytes[i] ^= 0x10;
        put_file(bytes, i);
        must_refuse("an end", i);
    }
    char *more = malloc(n + each);
    memcpy(more, bytes, n);
    memcpy(more + n, bytes + n - each, each);
    put_file(more, n + each);
    must_refuse("a record too many", n);
    memcpy(more + TEACHER_HEADER_BYTES, bytes + TEACHER_HEADER_BYTES + each, each);
    put_file(more, n);
    must_refuse("a record in the place of another", 0);
    free(more);
    free(bytes);
}

/* Numbers that a right checksum does not make right. */
static void test_bad_numbers(void **state)
{
    static const struct {
        int64_t at;
        int32_t id;
    } bad[]     = { { 0, -1 }, { 0, -2 }, { 3, 4 }, { 6, 50 }, { 14, 4 }, { 20, INT32_MAX } };
    void *bytes = malloc(teacher_record_bytes(&small));
    for (int k = 0; k < ARRAY_LEN(bad) + 2; k++) {
        TeacherWriter *w = teacher_write_begin(path, &small);
        for (int64_t i = 0; i < small.n_sample; i++) {
            make_record(&small, i, bytes);
            TeacherRecord r = teacher_record(&small, bytes);
            if (i == 2 && k < ARRAY_LEN(bad)) r.id[bad[k].at] = bad[k].id;
            if (i == 2 && k == ARRAY_LEN(bad)) r.logit[4] = NAN;
            if (i == 2 && k == ARRAY_LEN(bad) + 1) r.rest[14] = -INFINITY;
            assert_int_equal(teacher_write_put(w, i, bytes), 0);
        }
        assert_int_equal(teacher_write_publish(&w), 0);
        must_refuse("a wrong number", (size_t)k);
    }
    free(bytes);
}

static void test_writer(void **state)
{
    void *bytes = malloc(teacher_record_bytes(&small));
    unlink(path);
    TeacherWriter *w = teacher_write_begin(path, &small);
    make_record(&small, 0, bytes);
    assert_int_equal(teacher_write_put(w, 0, bytes), 0);
    assert_int_equal(file_kind(path), FILE_NONE);
    teacher_write_discard(&w);
    assert_null(w);
    assert_int_equal(file_kind(path), FILE_NONE);
    free(bytes);
}

/* ---- numbers ------------------------------------------------------------------------------------------ */

/* Of the sum of exp(x/tau) over n logits, from what a file keeps of them. */
static double error_at(const float *x, int64_t n, double tau)
{
    double sum[TEACHER_REST] = { 0 }, want = 0, N = (double)n;
    float  rest[TEACHER_REST];
    for (int64_t i = 0; i < n; i++) {
        sum[0] += (double)x[i] / N;
        for (int k = 1; k < TEACHER_REST; k++) sum[k] += exp((double)x[i] * k / 4) / N;
        want += exp((double)x[i] / tau) / N;
    }
    rest[0] = (float)sum[0];
    for (int k = 1; k < TEACHER_REST; k++) rest[k] = (float)log(sum[k]);
    TeacherHeader h = { .vocab = n + 1, .top = 1 };
    return exp((double)teacher_rest(&h, rest, tau) - log(N)) / want - 1;
}

static int descending(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return x > y ? -1 : x < y;
}

/* Tails as language models have them, with the 64 largest logits taken off: all alike, a triangle, normal,
 * and one in which few classes have almost all of the mass (1.1 % off at tau 3). f32 numbers of up to 14
 * give the 1e-5. */
static void test_rest(void **state)
{
    enum { N = 20000, TOP = 64, SHAPES = 4 };
    static const struct {
        double tau, most[SHAPES];
    } row[]  = { { 1, { 1e-5, 1e-5, 1e-5, 1e-5 } },   { 4.0 / 3, { 1e-5, 1e-5, 1e-5, 1e-5 } },
                 { 2, { 1e-5, 1e-5, 1e-5, 1e-5 } },   { 4, { 1e-5, 1e-5, 1e-5, 1e-5 } },
                 { 1.5, { 1e-5, 1e-3, 1e-3, 2e-2 } }, { 3, { 1e-5, 1e-3, 1e-3, 2e-2 } },
                 { 10, { 1e-5, 1e-3, 1e-3, 2e-2 } },  { 100, { 1e-5, 1e-3, 1e-3, 2e-2 } } };
    float *x = malloc(sizeof *x * N);
    for (int shape = 0; shape < SHAPES; shape++) {
        for (int64_t i = 0; i < N; i++) {
            float u = rng_uniform(rng_draw(5, 6, shape, i, 0)), v = rng_uniform(rng_draw(5, 6, shape, i, 1));
            x[i] = shape == 0   ? -7
                   : shape == 1 ? 4 * (u + v) - 12
                   : shape == 2 ? 2 * sqrtf(-2 * logf(1 - u)) * cosf(6.2831853f * v) - 12
                                : -14 - 3 * logf(1 - u * 0.999f);
        }
        qsort(x, N, sizeof *x, descending);
        for (int k = 0; k < ARRAY_LEN(row); k++) {
            double e = error_at(x + TOP, N - TOP, row[k].tau);
            if (!(fabs(e) <= row[k].most[shape]))
                fail_msg("shape %d, tau %g: mass off by %g", shape, row[k].tau, e);
        }
    }
    free(x);
}

/* Sorted by id. No logit that was left is larger than one that was taken, or as large with a smaller id. */
static void check_top(const float *x, int64_t V, const PickItem *item, int64_t k)
{
    int64_t least = item[0].id, at = 0;
    for (int64_t i = 0; i < k; i++) {
        assert_true(item[i].p == x[item[i].id] && (i == 0 || item[i].id > item[i - 1].id));
        if (item[i].p <= x[least]) least = item[i].id;
    }
    for (int64_t v = 0; v < V; v++) {
        int taken = at < k && item[at].id == v;
        at += taken;
        assert_true(taken || x[v] < x[least] || (x[v] == x[least] && v > least));
    }
}

static void test_pick_top(void **state)
{
    enum { V = 20000 };
    float    *x    = malloc(sizeof *x * V);
    PickItem *item = malloc(sizeof *item * V);
    for (int64_t i = 0; i < V; i++) x[i] = (float)(rng_draw(3, 4, 0, i, 0) % 997); /* many are equal */
    for (int64_t k = 1; k <= V; k = k == 64 ? V : 4 * k) {
        assert_int_equal(pick_top(item, x, V, k), 0);
        check_top(x, V, item, k);
    }
    x[V - 1] = INFINITY;
    assert_int_equal(pick_top(item, x, V, 4), -1);
    free(x);
    free(item);
}

/* ---- pairs -------------------------------------------------------------------------------------------- */

static void write_data(int n, int answer)
{
    FILE *f = fopen(data, "w");
    for (int i = 0; i < n; i++)
        fprintf(f, "{\"prompt\": \"%0*d\", \"answer\": \"%d\"}\n", 4 + i * 7 % 23, i, i % 10 + answer);
    fclose(f);
}

/* Overrides end with NULL. */
static void load(Recipe *r, const char *a, const char *b)
{
    char  train[128], file[128];
    char *all[20] = { "task=latent",
                      "model.vocab=256",
                      "model.context=4096",
                      "model.pos=rope",
                      "model.heads=12",
                      "encoder.bytes=300",
                      "latent.prompt=300",
                      "latent.answer=8",
                      "encoder.latents=4",
                      "step_samples=64",
                      "latent.anchor=A:",
                      "latent.teacher=cached",
                      "latent.first=3",
                      "latent.teacher_top=7",
                      "latent.pairs=jsonl",
                      "data.val_fraction=0.2",
                      train,
                      file };
    int   n       = 18;
    snprintf(train, sizeof train, "data.train=%s", data);
    snprintf(file, sizeof file, "latent.teacher_file=%s", path);
    if (a) all[n++] = (char *)a;
    if (b) all[n++] = (char *)b;
    if (recipe_parse(r, "t.yaml", "seed: 3\n", 8, n, all) < 0) fail_msg("%s", err_get());
}

/* A file for the pairs of this recipe; returns how many there are. */
static int64_t make_file(const Recipe *r)
{
    Recipe        own = *r;
    TeacherHeader h;
    Source       *each;
    if (pairs_open_each(&each, &own) < 0) fail_msg("%s", err_get());
    pairs_teacher_header(each, &own, &h);
    h.vocab    = 256;
    char *seen = calloc(1, (size_t)h.n_sample);
    assert_int_equal(each->n_sample, h.n_sample);
    for (int64_t g = 0; g < h.n_sample; g++) {
        int64_t number = pairs_number(each, g);
        assert_true(number >= 0 && number < h.n_sample && !seen[number]);
        seen[number] = 1;
    }
    source_close(each);
    write_teacher(&h);
    free(seen);
    return h.n_sample;
}

typedef struct {
    void     *field[FIELDS_MAX];
    PairShape s;
    int       n;
} Sample;

static void sample_open(Sample *x, const Recipe *r)
{
    FieldRow row[FIELDS_MAX];
    assert_int_equal(pairs_shape(&x->s, r), 0);
    x->n = pairs_fields(&x->s, row);
    for (int i = 0; i < x->n; i++) {
        int64_t count = 1;
        for (int k = 0; k < row[i].ndim; k++) count *= row[i].dim[k];
        x->field[i] = calloc((size_t)count, sizeof(int32_t));
    }
}

static void sample_close(Sample *x)
{
    for (int i = 0; i < x->n; i++) free(x->field[i]);
}

/* In every epoch a sample has the record of its own line. Validation and empty rows have none. */
static void test_samples(void **state)
{
    Recipe  r;
    Sample  x;
    Source *src, *val;
    write_data(300, 0);
    load(&r, NULL, NULL);
    assert_int_equal(make_file(&r), 240);
    if (pairs_open_train(&src, &r) < 0) fail_msg("%s", err_get());
    sample_open(&x, &r);
    int      at = pairs_cached(&x.s);
    int32_t *id = x.field[at + PAIR_CACHED_ID], *tok = x.field[PAIR_TEXT];
    float   *logit = x.field[at + PAIR_CACHED_LOGIT], *rest = x.field[at + PAIR_CACHED_REST];
    void    *scratch = malloc(src->scratch_bytes);
    float    want    = teacher_rest(&(TeacherHeader){ .vocab = 256, .top = 7 },
                                    (float[]){ -1, -0.2f, -0.4f, -0.5f, -0.6f }, r.latent.tau);
    assert_int_equal(x.n, at + 3);
    for (int64_t g = 0; g < 1000; g++) {
        int number = 0;
        assert_int_equal(source_fill(src, g, x.field, scratch), 0);
        for (int i = 0; tok[i] != 'A'; i++) number = 10 * number + tok[i] - '0';
        for (int64_t i = 0; i < 3 * 7; i++) {
            assert_int_equal(id[i], i % 7 * 2 + i / 7);
            assert_true(logit[i] == (float)(1000 * number + i / 7));
        }
        assert_true(rest[2] == want);
    }
    assert_int_equal(source_fill(src, -1, x.field, scratch), 0);
    assert_true(id[0] == -1 && id[20] == -1 && rest[0] == 0);
    assert_int_equal(pairs_open_val(&val, &r, 0, src), 0);
    assert_int_equal(source_fill(val, 0, x.field, NULL), 0);
    assert_true(id[0] == -1 && id[20] == -1);
    source_close(val);
    source_close(src);
    sample_close(&x);
    free(scratch);
}

static void refuse_train(const Recipe *r, const char *what)
{
    Source *src;
    if (pairs_open_train(&src, r) == 0) fail_msg("accepted: %s", what);
    if (err_kind() != ERR_USER || !strstr(err_get(), what) || strchr(err_get(), '\n'))
        fail_msg("not \"%s\": %s", what, err_get());
    err_clear();
}

static void test_others(void **state)
{
    Recipe  r;
    Source *src;
    write_data(300, 0);
    load(&r, NULL, NULL);
    make_file(&r);
    assert_int_equal(pairs_open_train(&src, &r), 0);
    source_close(src);
    load(&r, "seed=8", "latent.answer=9"); /* the teacher reads the same */
    assert_int_equal(pairs_open_train(&src, &r), 0);
    source_close(src);
    load(&r, "latent.first=4", NULL);
    refuse_train(&r, "latent.first: is 4, ");
    load(&r, "latent.teacher_top=8", NULL);
    refuse_train(&r, "latent.teacher_top: is 8, ");
    load(&r, "latent.prompt=12", NULL);
    refuse_train(&r, "latent.prompt: is 12, ");
    load(&r, "latent.anchor=B:", NULL);
    refuse_train(&r, "was made from 240 other samples");
    load(&r, "data.val_fraction=0.1", NULL);
    refuse_train(&r, "240 other samples, here are 270");
    write_data(300, 1);
    load(&r, NULL, NULL);
    refuse_train(&r, "data.train: ");
    unlink(path);
    refuse_train(&r, "is not there: brim data teacher t.yaml makes it (with the same keys as here)");
    load(&r, "latent.kl_weight=0", NULL); /* nothing is compared */
    assert_int_equal(pairs_open_train(&src, &r), 0);
    source_close(src);
    load(&r, "latent.pairs=text", "latent.least_bytes=4");
    make_file(&r);
    load(&r, "latent.pairs=text", "latent.least_bytes=4");
    r.seed = 4;
    refuse_train(&r, "seed: is 4, and texts are cut by it");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round),   cmocka_unit_test(test_damage), cmocka_unit_test(test_bad_numbers),
        cmocka_unit_test(test_writer),  cmocka_unit_test(test_rest),   cmocka_unit_test(test_pick_top),
        cmocka_unit_test(test_samples), cmocka_unit_test(test_others),
    };
    CHECK(mkdtemp(dir), "no folder");
    snprintf(data, sizeof data, "%s/data", dir);
    snprintf(path, sizeof path, "%s/t.teacher", dir);
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(data);
    unlink(path);
    rmdir(dir);
    return rc;
}
