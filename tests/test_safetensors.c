/* safetensors: bytes by hand, round trips, and refusal of every wrong number. state.json: bit-exact round
 * trips. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/err.h"
#include "base/fault.h"
#include "base/str.h"
#include "case_folder.h"
#include "ckpt/ckpt_state.h"
#include "file/safetensors.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static size_t slurp(const char *path, char *buf, size_t max)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    size_t n = fread(buf, 1, max, f);
    fclose(f);
    return n;
}

static void expect(const char *part)
{
    if (!strstr(err_get(), part)) fail_msg("message '%s' lacks '%s'", err_get(), part);
    err_clear();
}

/* A file in memory with this header (padded to a multiple of 8) and n_data zero bytes. */
static size_t make_file(char *buf, const char *header, size_t n_data)
{
    uint64_t n = (strlen(header) + 7) / 8 * 8;
    memset(buf, ' ', 8 + n);
    memcpy(buf, &n, 8);
    memcpy(buf + 8, header, strlen(header));
    memset(buf + 8 + n, 0, n_data);
    return 8 + n + n_data;
}

/* ---- Writing ------------------------------------------------------------------------------------------- */

/* The format's description, byte for byte: u64 length, JSON padded with spaces to 8, buffer. */
static void bytes_are_fixed(void **state)
{
    static const char header[] =
        "{\"__metadata__\": {\"format\": \"pt\"}, "
        "\"a\": {\"dtype\": \"F32\", \"shape\": [2, 1], \"data_offsets\": [0, 8]}, "
        "\"b.\\\"c\": {\"dtype\": \"U8\", \"shape\": [3], \"data_offsets\": [8, 11]}, "
        "\"s\": {\"dtype\": \"BF16\", \"shape\": [], \"data_offsets\": [11, 13]}}";
    const SafeTensor spec[] = { { .name = "a", .dtype = DT_F32, .ndim = 2, .dim = { 2, 1 } },
                                { .name = "b.\"c", .dtype = DT_U8, .ndim = 1, .dim = { 3 } },
                                { .name = "s", .dtype = DT_BF16, .ndim = 0 } };
    const SafeMeta   meta   = { "format", "pt" };
    const float      a[2]   = { 1.0f, -2.0f };
    const char       b[]    = { 7, 8, 9, 0x34, 0x12 };
    char             want[512], got[512];
    SafeSums         sums;
    size_t           n = make_file(want, header, 13);
    memcpy(want + n - 13, a, 8);
    memcpy(want + n - 5, b, 5);
    const char *path = in(state, "x.safetensors");
    SafeWriter *w    = safetensors_write_begin(path, spec, 3, &meta, 1);
    assert_non_null(w);
    assert_int_equal(access(path, F_OK), -1); /* not before it is complete */
    assert_int_equal(safetensors_write_data(w, a, 8), 0);
    assert_int_equal(safetensors_write_data(w, b, 2), 0);
    assert_int_equal(safetensors_write_data(w, b + 2, 3), 0);
    assert_int_equal(safetensors_write_publish(&w, &sums), 0);
    assert_null(w);
    assert_int_equal(slurp(path, got, sizeof got), n);
    assert_memory_equal(got, want, n);
    assert_int_equal(sums.file_bytes, n);
    assert_int_equal((n - 13) % 8, 0);

    SafeFile f;
    assert_int_equal(safetensors_open(&f, path), 0);
    assert_int_equal(f.n_tensor, 3);
    assert_int_equal(f.header_hash, sums.header_hash);
    assert_string_equal(f.meta[0].text, "pt");
    const SafeTensor *t = safetensors_find(&f, "a");
    float             back[2];
    assert_int_equal(t->n_elem, 2);
    assert_int_equal(safetensors_read_f32(&f, t, 0, 2, back), 0);
    assert_memory_equal(back, a, 8);
    assert_int_equal(safetensors_find(&f, "s")->n_elem, 1);
    assert_int_equal(safetensors_find(&f, "b.\"c")->dtype, DT_U8);
    assert_null(safetensors_find(&f, "c"));
    assert_int_equal(safetensors_read_f32(&f, safetensors_find(&f, "b.\"c"), 0, 3, (float[3]){ 0 }), -1);
    expect("cannot be read as f32");
    safetensors_close(&f);
}

/* Every f16 and bf16 number against arithmetic on its fields. */
static void widening_is_exact(void **state)
{
    enum { N = 65536 };
    static uint16_t raw[N];
    static float    out[N];
    for (int i = 0; i < N; i++) raw[i] = (uint16_t)i;
    const SafeTensor spec[] = { { .name = "h", .dtype = DT_F16, .ndim = 1, .dim = { N } },
                                { .name = "b", .dtype = DT_BF16, .ndim = 1, .dim = { N } } };
    SafeWriter      *w      = safetensors_write_begin(in(state, "w.safetensors"), spec, 2, NULL, 0);
    assert_int_equal(safetensors_write_data(w, raw, sizeof raw), 0);
    assert_int_equal(safetensors_write_data(w, raw, sizeof raw), 0);
    assert_int_equal(safetensors_write_publish(&w, NULL), 0);
    SafeFile f;
    assert_int_equal(safetensors_open(&f, in(state, "w.safetensors")), 0);
    for (int k = 0; k < 2; k++) {
        int bits = k ? 7 : 10, bias = k ? 127 : 15, top = k ? 255 : 31;
        assert_int_equal(safetensors_read_f32(&f, &f.tensor[k], 0, N, out), 0);
        for (int i = 0; i < N; i++) {
            int    e = i >> bits & top, frac = i & ((1 << bits) - 1);
            double x = e == 0 ? ldexp(frac, 1 - bias - bits) : ldexp(frac + (1 << bits), e - bias - bits);
            if (e == top && frac) {
                assert_true(isnan(out[i]));
            } else {
                assert_true(out[i] ==
                            (float)(i >> 15 ? -(e == top ? INFINITY : x) : (e == top ? INFINITY : x)));
                assert_int_equal(signbit(out[i]) != 0, i >> 15);
            }
        }
    }
    assert_int_equal(safetensors_read_f32(&f, &f.tensor[0], 0x3c00, 1, out), 0);
    assert_true(out[0] == 1.0f);
    safetensors_close(&f);
}

/* In a folder with such a name a checkpoint is written. */
static void failed_writes_leave_nothing(void **state)
{
    const SafeTensor spec = { .name = "a", .dtype = DT_F32, .ndim = 1, .dim = { 4 } };
    const FaultOp    op[] = { FAULT_MALLOC, FAULT_OPEN, FAULT_WRITE, FAULT_FSYNC, FAULT_RENAME };
    float            a[4] = { 0 };
    char             folder[256], path[300];
    snprintf(folder, sizeof folder, "%s", in(state, ".tmp-step-00000001-12"));
    snprintf(path, sizeof path, "%s/f.safetensors", folder);
    assert_int_equal(mkdir(folder, 0700), 0);
    for (int k = 0; k < ARRAY_LEN(op); k++) {
        int failures = 0;
        for (int n = 1; n < 10; n++) {
            fault_arm(op[k], n, 0);
            SafeWriter *w  = safetensors_write_begin(path, &spec, 1, NULL, 0);
            int         rc = w ? safetensors_write_data(w, a, sizeof a) : -1;
            if (rc == 0) rc = safetensors_write_publish(&w, NULL);
            safetensors_write_discard(&w);
            fault_disarm();
            if (rc == 0) break;
            failures++;
            int renamed = (op[k] == FAULT_FSYNC || op[k] == FAULT_OPEN) && n == 2; /* the folder's sync */
            assert_true(op[k] == FAULT_MALLOC || str_starts_with(err_get(), renamed ? folder : path));
            if (op[k] == FAULT_WRITE) assert_true(str_starts_with(err_get() + strlen(path), ": write: "));
            assert_int_equal(access(path, F_OK), renamed ? 0 : -1);
            unlink(path);
            err_clear();
        }
        assert_true(failures > 0 && failures < 9);
        unlink(path);
        assert_int_equal(rmdir(folder), 0); /* no temporary file is left */
        assert_int_equal(mkdir(folder, 0700), 0);
    }
}

/* ---- Refusals ------------------------------------------------------------------------------------------ */

static const struct {
    const char *header;
    size_t      n_data;
    const char *why;
} wrong[] = {
    { "[]", 0, "not a JSON map" },
    { "{\"a\":1", 0, "damaged" },
    { "{} x", 0, "damaged" },
    { "{\"a\":1}", 0, "no dtype" },
    { "{\"a\":{\"dtype\":\"F33\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "F33" },
    { "{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "no shape" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4, "bad dimension" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1.0],\"data_offsets\":[0,4]}}", 4, "bad dimension" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}", 4, "9 dimensions" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,4]}}", 4,
      "too large" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904],\"data_offsets\":[0,0]}}", 0,
      "do not hold" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "no data_offsets" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]}}", 4, "no data_offsets" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,8]}}", 4, "outside" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[-4,0]}}", 4, "outside" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", 4, "outside" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,9223372036854775808]}}", 4, "damaged" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4, "do not hold" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 5, "follow the last" },
    { "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},\"a\":{\"dtype\":\"U8\",\"shape\":[2],"
      "\"data_offsets\":[0,2]}}",
      2, "damaged" },
    { "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},\"b\":{\"dtype\":\"U8\",\"shape\":[2],"
      "\"data_offsets\":[1,3]}}",
      3, "overlaps" },
    { "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},\"b\":{\"dtype\":\"U8\",\"shape\":[2],"
      "\"data_offsets\":[3,5]}}",
      5, "hole" },
    { "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[1,3]}}", 3, "hole" },
    { "{\"a\\n\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", 2, "not printable" },
    { "{\"a\\u0000\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", 2, "damaged" },
    { "{\"__metadata__\":[]}", 0, "__metadata__" },
    { "{\"__metadata__\":{\"a\":1}}", 0, "__metadata__" },
};

static void wrong_headers_are_refused(void **state)
{
    char     buf[1024];
    SafeFile f;
    for (int i = 0; i < ARRAY_LEN(wrong); i++) {
        size_t n = make_file(buf, wrong[i].header, wrong[i].n_data);
        if (safetensors_parse(&f, "x.safetensors", buf, n) == 0) fail_msg("accepted: %s", wrong[i].header);
        assert_non_null(strstr(err_get(), "x.safetensors"));
        expect(wrong[i].why);
    }
    /* Right ones at the edge: nothing at all; an empty tensor; tensors not in the order of their bytes. */
    const char *right[] = { "{}", "{\"e\":{\"dtype\":\"F32\",\"shape\":[0,7],\"data_offsets\":[0,0]}}" };
    for (int i = 0; i < ARRAY_LEN(right); i++) {
        assert_int_equal(safetensors_parse(&f, "x", buf, make_file(buf, right[i], 0)), 0);
        safetensors_close(&f);
    }
    size_t n =
        make_file(buf,
                  "{\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[2,4]},\"a\":{\"dtype\":\"F16\","
                  "\"shape\":[1],\"data_offsets\":[0,2]}}",
                  4);
    assert_int_equal(safetensors_parse(&f, "x", buf, n), 0);
    assert_string_equal(f.tensor[0].name, "a");
    safetensors_close(&f);
    for (size_t cut = 0; cut < n; cut++) { /* every truncation */
        assert_int_equal(safetensors_parse(&f, "x", buf, cut), -1);
        err_clear();
    }
    memset(buf, 0xff, 8);
    assert_int_equal(safetensors_parse(&f, "x", buf, n), -1);
    expect("not a safetensors file");
    assert_int_equal(safetensors_open(&f, "/tmp"), -1);
    expect("not a regular file");
    assert_int_equal(safetensors_open(&f, in(state, "none")), -1);
    expect("none");
}

/* A header may have millions of empty tensors. Reading takes about 4 us for each of them, whatever their
 * number. One comparison of each with each alone would take longer than the bound. */
static void many_tensors_are_read_in_time(void **state)
{
    enum { N = 100000, BOUND_S = 10, ENTRY_BYTES = 80 };
    char *buf = malloc(8 + (size_t)N * ENTRY_BYTES);
    assert_non_null(buf);
    size_t at = 8;
    for (int i = 0; i < N; i++) {
        at += (size_t)sprintf(buf + at, "%c\"t%d\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}",
                              i ? ',' : '{', i);
    }
    buf[at++]  = '}';
    uint64_t n = at - 8;
    memcpy(buf, &n, sizeof n);
    SafeFile f;
    clock_t  begin = clock();
    assert_int_equal(safetensors_parse(&f, "x", buf, at), 0);
    assert_non_null(safetensors_find(&f, "t99999"));
    assert_int_equal(f.n_tensor, N);
    safetensors_close(&f);
    double took_s = (double)(clock() - begin) / CLOCKS_PER_SEC;
    if (took_s > BOUND_S) fail_msg("%d tensors took %.1f s of one core, the bound is %d", N, took_s, BOUND_S);
    free(buf);
}

/* ---- state.json ---------------------------------------------------------------------------------------- */

static void random_state(CkptState *s)
{
    unsigned char *p = (unsigned char *)&s->device;
    for (size_t i = 0; i < sizeof s->device; i++)
        p[i] = (unsigned char)(rand() >> 7);           /* NaNs of every kind too */
    s->device.in.reserved = s->device.in.measures = 0; /* not stored: the host writes them before each step */
    s->step                                       = rand();
    s->next_sample                                = ORDER_MOST - rand();
    s->seed                                       = UINT64_MAX - (uint64_t)rand();
    s->micro_batch                                = rand() % 100;
    s->best_val                                   = rand() % 3 ? rand() / 7.0 : INFINITY;
    s->bad_evals                                  = rand() % 9;
    s->elapsed_s                                  = rand() / 3.0;
    s->step_s                                     = rand() / 3.0;
    s->head_rows                                  = rand();
    s->train_size                                 = rand();
    s->val_size                                   = rand();
    s->stopped                                    = rand() % CKPT_STOPS;
    s->n_skip                                     = rand() % 5;
    for (int i = 0; i < s->n_skip; i++) s->skip[i] = (SampleRange){ rand(), 1 + rand() };
}

static void state_round_trips(void **state)
{
    static char         text[65536];
    static CkptManifest m, back;
    CkptKey             key    = { "model.width", "32" };
    CkptTensor          sums[] = { { "a", 1 }, { "b", UINT64_MAX } };
    for (int i = 0; i < 2000; i++) {
        JsonOut o;
        memset(&m, 0, sizeof m);
        random_state(&m.state);
        m.key              = &key;
        m.n_key            = 1;
        m.file[CKPT_OPTIM] = (CkptFile){ 123, 0xabc, sums, 2 };
        json_out_init_buf(&o, text, sizeof text);
        ckpt_state_write(&o, &m);
        assert_int_equal(json_out_end(&o), 0);
        if (ckpt_state_parse(&back, "state.json", text, o.len) < 0) fail_msg("%s", err_get());
        assert_memory_equal(&back.state, &m.state, sizeof m.state);
        assert_int_equal(back.n_key, 1);
        assert_string_equal(back.key[0].text, "32");
        assert_int_equal(back.file[CKPT_OPTIM].size_bytes, 123);
        assert_int_equal(back.file[CKPT_OPTIM].tensor[1].hash, UINT64_MAX);
        ckpt_state_deinit(&back);
        if (i > 20) continue; /* every prefix is refused */
        for (size_t cut = 0; cut < o.len; cut++) {
            assert_int_equal(ckpt_state_parse(&back, "state.json", text, cut), -1);
            err_clear();
        }
    }
}

static void replace(char *text, const char *from, const char *to)
{
    char *at = strstr(text, from);
    assert_non_null(at);
    memmove(at + strlen(to), at + strlen(from), strlen(at + strlen(from)) + 1);
    memcpy(at, to, strlen(to));
}

static void wrong_states_are_refused(void **state)
{
    static const char *const change[][3] = {
        { "\"step\": 5", "\"step\": -5", "field step" },
        { "\"step\": 5", "\"step\": 5.0", "field step" },
        { "\"step\": 5,", "", "no field step" },
        { "\"skip\": 7", "\"skip\": 4294967296", "field skip" },
        { "0x000000000000002a", "0x2a", "field seed" },
        { "0x000000000000002a", "42", "field seed" },
        { "\"0x1p-1\"", "\"0.5\"", "field lr" },
        { "\"0x1p-1\"", "\"0x1.00000001p-1\"", "field lr" },
        { "\"0x1p-1\"", "0.5", "field lr" },
        { "\"bits:7ff0000000000000\"", "\"inf\"", "field best_val" },
        { "\"0x1.8p+0\"", "\"1.5\"", "field step_s" },
        { "\"head_rows\": 640", "\"head_rows\": -640", "field head_rows" },
        { "\"head_rows\": 640", "\"head_rows\": \"640\"", "field head_rows" },
        { "\"patience\"", "\"boredom\"", "field stopped" },
        { "\"patience\"", "7", "field stopped" },
        { "[[3, 4]]", "[[3,0]]", "skip range" },
        { "[[3, 4]]", "[[9223372036854775807,4]]", "skip range" },
        { "[[3, 4]]", "[[3,9223372036854775807]]", "skip range" },
        { "\"next_sample\": 0", "\"next_sample\": 9223372036854775807", "field next_sample" },
        { "[[3, 4]]", "{}", "skip" },
        { "brim-checkpoint", "brim", "not the state" },
        { "\"version\": 1", "\"version\": 2", "version 2" },
        { "optim.safetensors", "optim", "optim.safetensors" },
        { "\"0x0000000000000abc\"", "\"abc\"", "optim.safetensors" },
    };
    static char         text[65536], bad[65536];
    static CkptManifest m, back;
    JsonOut             o;
    memset(&m, 0, sizeof m);
    m.state.step            = 5;
    m.state.seed            = 42;
    m.state.best_val        = INFINITY;
    m.state.step_s          = 1.5;
    m.state.head_rows       = 640;
    m.state.train_size      = 900;
    m.state.val_size        = 100;
    m.state.stopped         = CKPT_STOP_PATIENCE;
    m.state.device.in.lr    = 0.5f;
    m.state.device.out.skip = 7;
    m.state.skip[0]         = (SampleRange){ 3, 4 };
    m.state.n_skip          = 1;
    m.file[CKPT_OPTIM]      = (CkptFile){ 123, 0xabc, NULL, 0 };
    json_out_init_buf(&o, text, sizeof text);
    ckpt_state_write(&o, &m);
    assert_int_equal(json_out_end(&o), 0);
    for (int i = 0; i < ARRAY_LEN(change); i++) {
        strcpy(bad, text);
        replace(bad, change[i][0], change[i][1]);
        if (ckpt_state_parse(&back, "state.json", bad, strlen(bad)) == 0)
            fail_msg("accepted %s", change[i][1]);
        assert_int_equal(err_kind(), strstr(change[i][1], "\"version\"") ? ERR_USER : ERR_RUN);
        expect(change[i][2]);
    }
    /* What older programs wrote: without the sizes of the data, without head_rows, then without any field
     * that came later. */
    strcpy(bad, text);
    replace(bad, "\"train_hash\": \"0x0000000000000000\", \"val_hash\": \"0x0000000000000000\", ", "");
    replace(bad, "\"train_size\": 900, \"val_size\": 100, ", "");
    if (ckpt_state_parse(&back, "state.json", bad, strlen(bad)) < 0) fail_msg("%s", err_get());
    assert_true(back.state.train_size == 0 && back.state.val_size == 0 && back.state.head_rows == 640);
    ckpt_state_deinit(&back);
    replace(bad, "\"head_rows\": 640, ", "");
    if (ckpt_state_parse(&back, "state.json", bad, strlen(bad)) < 0) fail_msg("%s", err_get());
    assert_true(back.state.head_rows == 0 && back.state.step_s == 1.5);
    ckpt_state_deinit(&back);
    replace(bad, "\"step_s\": \"0x1.8p+0\", \"stopped\": \"patience\", ", "");
    if (ckpt_state_parse(&back, "state.json", bad, strlen(bad)) < 0) fail_msg("%s", err_get());
    assert_true(back.state.step_s == 0 && back.state.stopped == CKPT_STOP_NONE);
    ckpt_state_deinit(&back);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(bytes_are_fixed, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(widening_is_exact, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(failed_writes_leave_nothing, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(wrong_headers_are_refused, folder_setup, folder_teardown),
        cmocka_unit_test(many_tensors_are_read_in_time),
        cmocka_unit_test(state_round_trips),
        cmocka_unit_test(wrong_states_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
