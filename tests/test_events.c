/* TensorBoard's event files: the bytes of a record against what the formats demand, and a folder after
 * resumes and kills. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/err.h"
#include "base/fault.h"
#include "base/file.h"
#include "base/str.h"
#include "file/events.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    char dir[64];
} Rig;

static int setup(void **state)
{
    Rig *r = calloc(1, sizeof *r);
    *state = r;
    strcpy(r->dir, "/tmp/brim_events_XXXXXX");
    return r && mkdtemp(r->dir) ? 0 : -1;
}

static int teardown(void **state)
{
    Rig *r = *state;
    char cmd[128];
    fault_disarm();
    err_clear();
    snprintf(cmd, sizeof cmd, "rm -rf %s", r->dir);
    int rc = system(cmd);
    free(r);
    return rc;
}

/* Values from RFC 3720, B.4. */
static void test_crc(void **state)
{
    unsigned char b[32];
    memset(b, 0, 32);
    assert_int_equal(event_crc32c(b, 32), 0x8a9136aa);
    memset(b, 0xff, 32);
    assert_int_equal(event_crc32c(b, 32), 0x62a8ab43);
    for (int i = 0; i < 32; i++) b[i] = (unsigned char)i;
    assert_int_equal(event_crc32c(b, 32), 0x46dd794e);
    assert_int_equal(event_crc32c("123456789", 9), 0xe3069283);
}

/* The first file of the folder, whole. */
static size_t read_first(const Rig *r, unsigned char *out, size_t cap)
{
    Arena  arena;
    char **names, path[256], *data;
    size_t n;
    arena_init(&arena);
    assert_true(file_list(&arena, r->dir, "", &names) >= 1);
    snprintf(path, sizeof path, "%s/%s", r->dir, names[0]);
    assert_int_equal(file_read_all(path, cap, &data, &n), 0);
    memcpy(out, data, n);
    free(data);
    arena_deinit(&arena);
    return n;
}

/* Byte for byte, as TensorFlow's own writer lays a scalar out. */
static void test_bytes(void **state)
{
    Rig          *r = *state;
    EventWriter  *w = event_writer_open(r->dir, 1);
    unsigned char file[1024], want[] = { 0x09, 0,    0,    0,    0,   0, 0, 0xf8, 0x3f, /* wall_time 1.5 */
                                         0x10, 0xac, 0x02,                              /* step 300 */
                                         0x2a, 0x0c, 0x0a, 0x0a,         /* summary { value { */
                                         0x0a, 0x03, 'a',  '/',  'b',    /* tag */
                                         0x15, 0,    0,    0x20, 0x40 }; /* simple_value 2.5 */
    assert_non_null(w);
    event_begin(w, 1.5, 300);
    event_scalar(w, "a/b", 2.5);
    assert_int_equal(event_end(w), 0);
    assert_int_equal(event_writer_close(w), 0);
    size_t n = read_first(r, file, sizeof file);
    assert_memory_equal(file + n - 4 - sizeof want, want, sizeof want);
    uint64_t len;
    memcpy(&len, file + n - 4 - sizeof want - 12, 8);
    assert_int_equal(len, sizeof want);
    /* The head: wall_time, then the version that makes readers look at restarts. */
    assert_memory_equal(file + 12 + 9,
                        "\x1a\x0d"
                        "brain.Event:2",
                        15);
}

/* Reads every record of every file; counts how often each step below 64 has a summary. */
static void count_steps(const Rig *r, int *seen)
{
    Arena  arena;
    char **names, path[256];
    arena_init(&arena);
    memset(seen, 0, 64 * sizeof *seen);
    int n_file = file_list(&arena, r->dir, "", &names);
    for (int i = 0; i < n_file; i++) {
        FileMap map;
        snprintf(path, sizeof path, "%s/%s", r->dir, names[i]);
        assert_int_equal(file_map(&map, path), 0);
        for (size_t at = 0; at < map.size_bytes;) {
            EventRecord e;
            int64_t     n = event_parse((const unsigned char *)map.data + at, map.size_bytes - at, &e);
            assert_true(n > 0);
            if (e.summary && e.step < 64) seen[e.step]++;
            at += (size_t)n;
        }
        file_unmap(&map);
    }
    arena_deinit(&arena);
}

static void write_steps(const Rig *r, int from, int to)
{
    EventWriter *w = event_writer_open(r->dir, from);
    assert_non_null(w);
    for (int s = from; s <= to; s++) {
        event_begin(w, s, s);
        event_scalar(w, "train/loss", s);
        assert_int_equal(event_end(w), 0);
    }
    assert_int_equal(event_writer_close(w), 0);
}

static void test_resume(void **state)
{
    Rig *r = *state;
    int  seen[64];
    write_steps(r, 1, 20);
    write_steps(r, 11, 30); /* went on from a checkpoint of step 10 */
    write_steps(r, 9, 40);  /* and once more from an older one */
    count_steps(r, seen);
    for (int s = 1; s <= 40; s++) assert_int_equal(seen[s], 1);
}

/* A writer that was killed within a record: the rest of it goes, and what follows can be read. */
static void test_torn(void **state)
{
    Rig   *r = *state;
    int    seen[64];
    Arena  arena;
    char **names, path[256];
    write_steps(r, 1, 5);
    arena_init(&arena);
    assert_int_equal(file_list(&arena, r->dir, "", &names), 1);
    snprintf(path, sizeof path, "%s/%s", r->dir, names[0]);
    assert_int_equal(truncate(path, file_size(path) - 7), 0);
    write_steps(r, 6, 8);
    count_steps(r, seen);
    for (int s = 1; s <= 8; s++) assert_int_equal(seen[s], s == 5 ? 0 : 1);
    arena_deinit(&arena);
}

static void test_kinds(void **state)
{
    Rig          *r = *state;
    EventWriter  *w = event_writer_open(r->dir, 1);
    unsigned char png[300], file[4096];
    EventRecord   e = { 0 };
    EventValue    v;
    memset(png, 7, sizeof png);
    event_begin(w, 2, 3);
    event_scalar(w, "x", -1.25);
    event_text(w, "said", "hello");
    event_image(w, "seen", png, sizeof png, 17, 9);
    assert_int_equal(event_end(w), 0);
    event_writer_close(w);
    size_t n = read_first(r, file, sizeof file), at = 0, next = 0;
    while (at < n && !e.summary) at += (size_t)event_parse(file + at, n - at, &e);
    assert_int_equal(e.step, 3);
    assert_int_equal(event_next_value(&e, &next, &v), 1);
    assert_true(v.has_scalar && v.scalar == -1.25f && v.n_tag == 1 && v.tag[0] == 'x');
    assert_int_equal(event_next_value(&e, &next, &v), 1);
    assert_true(!v.has_scalar && v.n_text == 5 && memcmp(v.tag, "said", 4) == 0);
    assert_int_equal(event_next_value(&e, &next, &v), 1);
    assert_true(v.n_image == 300 && memcmp(v.tag, "seen", 4) == 0);
    assert_int_equal(event_next_value(&e, &next, &v), 0);
    /* A flipped bit anywhere in a record is seen. */
    for (size_t i = at - 40; i < at; i++) {
        EventRecord bad;
        file[i] ^= 4;
        for (size_t k = 0; k < at;) {
            int64_t len = event_parse(file + k, n - k, &bad);
            if (len <= 0) break;
            k += (size_t)len;
            assert_true(k < at);
        }
        file[i] ^= 4;
    }
}

/* A disk that takes nothing costs records, never the run, and leaves no half record. */
static void test_full_disk(void **state)
{
    Rig         *r = *state;
    int          seen[64];
    EventWriter *w = event_writer_open(r->dir, 1);
    for (int s = 1; s <= 6; s++) {
        if (s == 3) fault_arm(FAULT_WRITE, 1, 0);
        event_begin(w, s, s);
        event_scalar(w, "x", s);
        int rc = event_end(w);
        assert_int_equal(rc < 0, s == 3);
        err_clear();
        fault_disarm();
    }
    event_writer_close(w);
    count_steps(r, seen);
    for (int s = 1; s <= 6; s++) assert_int_equal(seen[s], s != 3);
    fault_arm(FAULT_OPEN, 1, 0);
    assert_null(event_writer_open(r->dir, 7));
    assert_int_equal(err_kind(), ERR_RUN);
}

/* Whoever filled the folder: no file outside changes, and neither does a copy that cp -l made. */
static void test_links(void **state)
{
    static const char text[] = "no record of events";
    Rig              *r      = *state;
    char              outside[256], soft[256], hard[256], *data;
    size_t            n;
    snprintf(outside, sizeof outside, "%s/outside", r->dir);
    snprintf(soft, sizeof soft, "%s/events.out.tfevents.0000000001.00.a", r->dir);
    snprintf(hard, sizeof hard, "%s/events.out.tfevents.0000000001.00.b", r->dir);
    for (int i = 0; i < 2; i++) {
        FILE *f = fopen(outside, "w");
        assert_non_null(f);
        assert_true(fputs(text, f) >= 0 && fclose(f) == 0);
        assert_int_equal(i == 0 ? symlink(outside, soft) : link(outside, hard), 0);
        EventWriter *w = event_writer_open(r->dir, 1);
        assert_non_null(w);
        assert_int_equal(event_writer_close(w), 0);
        assert_int_equal(file_read_all(outside, 1 << 10, &data, &n), 0);
        assert_string_equal(data, text);
        free(data);
        assert_int_equal(unlink(i == 0 ? soft : hard), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_crc),
        cmocka_unit_test_setup_teardown(test_bytes, setup, teardown),
        cmocka_unit_test_setup_teardown(test_resume, setup, teardown),
        cmocka_unit_test_setup_teardown(test_torn, setup, teardown),
        cmocka_unit_test_setup_teardown(test_kinds, setup, teardown),
        cmocka_unit_test_setup_teardown(test_full_disk, setup, teardown),
        cmocka_unit_test_setup_teardown(test_links, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
