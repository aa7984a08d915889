/* base/: text, files, faults, threads, JSON, log. The bar on a terminal is in test_progress.c. */
#include "base/clock.h"
#include "base/err.h"
#include "base/fault.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/str.h"
#include "base/thread.h"

#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static char scratch[64]; /* a folder of this process */

static const char *in_scratch(const char *name)
{
    static char path[4][256];
    static int  next;
    char       *p = path[next++ % 4];
    snprintf(p, sizeof path[0], "%s/%s", scratch, name);
    return p;
}

static void write_plain(const char *path, const char *text, size_t n)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static int setup(void **state)
{
    snprintf(scratch, sizeof scratch, "/tmp/test_base_XXXXXX");
    return mkdtemp(scratch) ? 0 : -1;
}

static int teardown(void **state)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", scratch);
    return system(command);
}

static int clean(void **state)
{
    fault_disarm();
    err_clear();
    return 0;
}

/* ---- str ----------------------------------------------------------------------------------------------- */

static void str_bounds(void **state)
{
    char buf[6];
    assert_int_equal(str_copy(buf, sizeof buf, "hello"), 0);
    assert_string_equal(buf, "hello");
    assert_int_equal(str_copy(buf, sizeof buf, "hello!"), -1);
    assert_string_equal(buf, "hello");
    str_copy(buf, sizeof buf, "ab");
    assert_int_equal(str_append(buf, sizeof buf, "%d", 123), 0);
    assert_int_equal(str_append(buf, sizeof buf, "%d", 4), -1);
    assert_string_equal(buf, "ab123");
    assert_true(str_ends_with("a.yaml", ".yaml") && !str_ends_with("l", ".yaml"));
}

static void str_numbers(void **state)
{
    static const char *const bad_int[]   = { "",     "-",   "1.0",
                                             "1e3",  " 1",  "1 ",
                                             "0x10", "5_0", "99999999999999999999" };
    static const char *const bad_float[] = { "",      ".",     "e5", "nan", "inf", ".inf",
                                             "0x1p3", "1e999", " 1", "1,5", "1e" };
    int64_t                  i;
    double                   d;
    int                      b;
    for (int k = 0; k < ARRAY_LEN(bad_int); k++) assert_int_equal(str_parse_int(bad_int[k], &i), -1);
    for (int k = 0; k < ARRAY_LEN(bad_float); k++) assert_int_equal(str_parse_double(bad_float[k], &d), -1);
    assert_int_equal(str_parse_int("-524288", &i), 0);
    assert_int_equal(i, -524288);
    assert_int_equal(str_parse_double("6e-4", &d), 0);
    assert_true(d == 6e-4);
    assert_int_equal(str_parse_double(".5", &d), 0);
    assert_int_equal(str_parse_double("1.", &d), 0);
    assert_int_equal(str_parse_bool("Off", &b), 0);
    assert_int_equal(b, 0);
    assert_int_equal(str_parse_bool("yes", &b), 0);
    assert_int_equal(b, 1);
    assert_int_equal(str_parse_bool("1", &b), -1);
}

static void str_sizes(void **state)
{
    static const struct {
        const char *text;
        double      bytes;
    } good[] = { { "1024", 1024 }, { "60G", 60 * 0x1p30 }, { "60GiB", 60 * 0x1p30 }, { "1.5T", 1.5 * 0x1p40 },
                 { "80GB", 80e9 }, { "2k", 2048 },         { "512 M", 0x1p29 },      { "7B", 7 } };
    static const char *const bad[] = { "", "G", "60X", "60GG", "-1G", "60G ", "1e300G", "60 %", "60GiBs" };
    size_t                   n;
    for (int i = 0; i < ARRAY_LEN(good); i++) {
        assert_int_equal(str_parse_size(good[i].text, &n), 0);
        assert_true((double)n == good[i].bytes);
    }
    for (int i = 0; i < ARRAY_LEN(bad); i++) assert_int_equal(str_parse_size(bad[i], &n), -1);
}

static void str_for_people(void **state)
{
    char b[32];
    assert_string_equal(str_bytes(b, sizeof b, 0), "0 B");
    assert_string_equal(str_bytes(b, sizeof b, 1023), "1023 B");
    assert_string_equal(str_bytes(b, sizeof b, 1.42 * 0x1p30), "1.42 GiB");
    assert_string_equal(str_bytes(b, sizeof b, 139.8 * 0x1p30), "140 GiB");
    assert_string_equal(str_bytes(b, sizeof b, 1048575), "1.00 MiB"); /* not 1024 KiB */
    assert_string_equal(str_count(b, sizeof b, 553000), "553k");
    assert_string_equal(str_count(b, sizeof b, 1310000), "1.31M");
    assert_string_equal(str_count(b, sizeof b, 999999), "1.00M");
    assert_string_equal(str_count(b, sizeof b, 12), "12");
    assert_string_equal(str_duration(b, sizeof b, 42.4), "0:42");
    assert_string_equal(str_duration(b, sizeof b, 3723), "1:02:03");
    assert_string_equal(str_duration(b, sizeof b, 48 * 3600 - 1), "47:59:59");
    assert_string_equal(str_duration(b, sizeof b, 48 * 3600), "2d 0h");
    assert_string_equal(str_duration(b, sizeof b, 283 * 3600 + 1325), "11d 19h");
    assert_string_equal(str_duration(b, sizeof b, NAN), "-:--");
    assert_string_equal(str_double(b, sizeof b, 0.1), "0.1");
    assert_true(strtod(str_double(b, sizeof b, 1.0 / 3), NULL) == 1.0 / 3);
}

static void str_quotes_untrusted_text(void **state)
{
    char b[12];
    assert_string_equal(str_quote(b, sizeof b, "plain", 5), "plain");
    assert_string_equal(str_quote(b, sizeof b, "a\nb\0c\xff", 6), "a?b?c?");
    assert_string_equal(str_quote(b, sizeof b, "elevenbytes", 11), "elevenbytes");
    assert_string_equal(str_quote(b, sizeof b, "twelve bytes", 12), "twelve b...");
    /* A character of several bytes is never cut. */
    assert_string_equal(str_quote(b, sizeof b, "\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4", 12),
                        "\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4...");
    assert_true(str_is_printable("gr\xc3\xbc\xc3\x9f"
                                 "e \xf0\x9f\x98\x80"));
    assert_false(str_is_printable("a\tb"));
    assert_false(str_is_printable("\xc0\xaf"));         /* overlong */
    assert_false(str_is_printable("\xed\xa0\x80"));     /* surrogate */
    assert_false(str_is_printable("\xe2\x80\xa8"));     /* line separator */
    assert_false(str_is_printable("\xf4\x90\x80\x80")); /* beyond Unicode */
    assert_false(str_is_printable("cut \xe2\x80"));
}

/* A column of a table holds characters, not bytes. */
static void str_columns_are_characters(void **state)
{
    char  *text = NULL;
    size_t n;
    FILE  *out = open_memstream(&text, &n);
    assert_int_equal(str_columns(""), 0);
    assert_int_equal(str_columns("gr\xc3\xb6\xc3\x9f"
                                 "e"),
                     5);
    str_print_padded(out,
                     "gr\xc3\xb6\xc3\x9f"
                     "e",
                     7);
    str_print_padded(out,
                     "gr\xc3\xb6\xc3\x9f"
                     "e",
                     3);
    str_print_padded(out, "ab", 1);
    fclose(out);
    assert_string_equal(text, "gr\xc3\xb6\xc3\x9f"
                              "e  gr\xc3\xb6"
                              "a");
    free(text);
}

static void str_lists(void **state)
{
    const char *list = " flash, fp8 ,,graphs ";
    char        item[8];
    assert_int_equal(str_list_next(&list, item, sizeof item), 1);
    assert_string_equal(item, "flash");
    assert_int_equal(str_list_next(&list, item, sizeof item), 1);
    assert_string_equal(item, "fp8");
    assert_int_equal(str_list_next(&list, item, sizeof item), 1);
    assert_string_equal(item, "graphs");
    assert_int_equal(str_list_next(&list, item, sizeof item), 0);
    list = "much too long,b";
    assert_int_equal(str_list_next(&list, item, sizeof item), -1);
    assert_int_equal(str_list_next(&list, item, sizeof item), 1);
    assert_true(str_list_has("a,b", "b") && !str_list_has("a,bc", "b") && !str_list_has("", "a"));
}

static void str_distance(void **state)
{
    static const struct {
        const char *a, *b;
        int         d;
    } row[] = { { "", "", 0 },           { "abc", "", 3 },        { "kitten", "sitting", 3 },
                { "width", "widht", 1 }, { "Steps", "steps", 0 }, { "model.lyers", "model.layers", 1 },
                { "ab", "ba", 1 } };
    for (int i = 0; i < ARRAY_LEN(row); i++) {
        assert_int_equal(str_edit_distance(row[i].a, row[i].b), row[i].d);
        assert_int_equal(str_edit_distance(row[i].b, row[i].a), row[i].d);
    }
    char long_a[300], long_b[300];
    memset(long_a, 'a', sizeof long_a);
    memset(long_b, 'b', sizeof long_b);
    long_a[299] = long_b[299] = '\0';
    assert_int_equal(str_edit_distance(long_a, long_b), 63);
    StrNearest near = str_nearest_begin("quickstrat");
    str_nearest_offer(&near, "leaderboard");
    assert_null(near.best);
    char hint[64];
    assert_string_equal(str_nearest_hint(&near, "see list", hint, sizeof hint), " (see list)");
    assert_string_equal(str_nearest_hint(&near, NULL, hint, sizeof hint), "");
    str_nearest_offer(&near, "quickstart");
    assert_string_equal(near.best, "quickstart");
    assert_string_equal(str_nearest_hint(&near, "see list", hint, sizeof hint),
                        " (did you mean quickstart?)");
}

/* ---- file ---------------------------------------------------------------------------------------------- */

static int count_in_scratch(void)
{
    Arena  a;
    char **names;
    arena_init(&a);
    int n = file_list(&a, scratch, "", &names);
    arena_deinit(&a);
    return n;
}

static void assert_content(const char *path, const char *text)
{
    char  *data;
    size_t n;
    assert_int_equal(file_read_all(path, 1000, &data, &n), 0);
    assert_int_equal(n, strlen(text));
    assert_string_equal(data, text);
    free(data);
}

static void file_publishes(void **state)
{
    const char *path = in_scratch("published");
    FILE       *f    = file_create_tmp(path);
    assert_non_null(f);
    assert_int_equal(file_write(f, "one", 3), 0);
    assert_int_equal(file_kind(path), FILE_NONE);
    assert_int_equal(file_publish(&f, path), 0);
    assert_null(f);
    assert_content(path, "one");
    f = file_create_tmp(path);
    assert_int_equal(file_write(f, "two", 3), 0);
    assert_content(path, "one");
    file_discard(&f);
    assert_null(f);
    file_discard(&f);
    assert_content(path, "one");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(count_in_scratch(), 0);
}

static void file_publish_in_current_folder(void **state)
{
    char cwd[4096];
    assert_non_null(getcwd(cwd, sizeof cwd));
    assert_int_equal(chdir(scratch), 0);
    FILE *f = file_create_tmp("bare"), *g = file_create_tmp("bare"); /* two writers do not meet */
    assert_non_null(f);
    assert_non_null(g);
    assert_int_equal(file_publish(&g, "bare"), 0);
    file_discard(&f);
    assert_int_equal(unlink("bare"), 0);
    assert_int_equal(chdir(cwd), 0);
    assert_int_equal(count_in_scratch(), 0);
}

/* Whatever fails on the way, the old file stays whole and nothing is left beside it. */
static void file_publish_survives_faults(void **state)
{
    static const FaultOp op[] = { FAULT_OPEN, FAULT_WRITE, FAULT_FSYNC, FAULT_RENAME };
    const char          *path = in_scratch("kept");
    write_plain(path, "old", 3);
    for (int i = 0; i < ARRAY_LEN(op); i++) {
        for (int64_t n = 1;; n++) {
            err_clear();
            fault_arm(op[i], n, 0);
            FILE *f  = file_create_tmp(path);
            int   rc = f && file_write(f, "new", 3) == 0 ? file_publish(&f, path) : -1;
            file_discard(&f);
            fault_disarm();
            if (rc == 0) break; /* no n-th call any more: the whole path worked */
            assert_true(n < 10);
            assert_int_equal(err_kind(), ERR_RUN);
            assert_int_equal(count_in_scratch(), 1);
            /* Once renamed the new file stands, even if the folder could not be synced. */
            int renamed = (op[i] == FAULT_FSYNC || op[i] == FAULT_OPEN) && n == 2;
            assert_true(str_starts_with(err_get(), renamed ? scratch : path));
            assert_content(path, renamed ? "new" : "old");
            write_plain(path, "old", 3);
        }
        assert_content(path, "new");
        write_plain(path, "old", 3);
    }
    assert_int_equal(unlink(path), 0);
}

static void file_write_reports_full_disk(void **state)
{
    FILE *full = fopen("/dev/full", "w");
    if (!full) skip();
    setvbuf(full, NULL, _IONBF, 0);
    assert_int_equal(file_write(full, "x", 1), -1);
    assert_non_null(strstr(err_get(), "No space left"));
    fclose(full);
}

static void file_sweeps(void **state)
{
    static const char *const mine[] = { "state", "a.tmp-old", "b.tmp-1.txt", "c.tmp-12-0.txt", "d.tmp-12-" };
    write_plain(in_scratch("state.tmp-123-0"), "x", 1);
    write_plain(in_scratch("b.tmp-1.txt.tmp-123-45"), "x", 1);
    for (int i = 0; i < ARRAY_LEN(mine); i++) write_plain(in_scratch(mine[i]), "x", 1);
    assert_int_equal(mkdir(in_scratch("plots.tmp-1-2"), 0777), 0);
    assert_int_equal(file_sweep_tmp(scratch), 0);
    assert_int_equal(count_in_scratch(), ARRAY_LEN(mine) + 1);
    assert_int_equal(rmdir(in_scratch("plots.tmp-1-2")), 0);
    for (int i = 0; i < ARRAY_LEN(mine); i++) assert_int_equal(unlink(in_scratch(mine[i])), 0);
    assert_int_equal(file_sweep_tmp(in_scratch("nowhere")), -1);
}

static void assert_refused(const char *path, size_t max_bytes, const char *what)
{
    char  *data = NULL;
    size_t n;
    err_clear();
    assert_int_equal(file_read_all(path, max_bytes, &data, &n), -1);
    assert_null(data);
    assert_non_null(strstr(err_get(), what));
}

static void file_reads(void **state)
{
    const char *path = in_scratch("read"), *pipe = in_scratch("pipe");
    char       *data;
    size_t      n;
    write_plain(path, "12345", 5);
    assert_int_equal(file_read_all(path, 5, &data, &n), 0);
    assert_string_equal(data, "12345");
    free(data);
    assert_int_equal(file_size(path), 5);
    assert_refused(path, 4, "larger than 4 bytes");
    assert_refused(in_scratch("missing"), 10, "No such file");
    assert_refused(scratch, 10, "is a directory");
    assert_refused("/dev/zero", 10, "not a regular file");
    assert_int_equal(mkfifo(pipe, 0600), 0);
    assert_refused(pipe, 10, "not a regular file");
    for (int op = 0; op < FAULT_COUNT; op++) {
        if (op != FAULT_OPEN && op != FAULT_READ && op != FAULT_MALLOC) continue;
        fault_arm((FaultOp)op, 1, 0);
        assert_refused(path, 10, "read");
    }
    fault_disarm();
    err_clear();
    assert_int_equal(file_read_all("/proc/self/status", 1 << 16, &data, &n), 0); /* its size reads as 0 */
    assert_true(n > 100);
    free(data);
    assert_int_equal(unlink(path) | unlink(pipe), 0);
}

static void file_maps(void **state)
{
    const char *path = in_scratch("map");
    FileMap     m;
    write_plain(path, "abc", 3);
    assert_int_equal(file_map(&m, path), 0);
    assert_int_equal(m.size_bytes, 3);
    assert_memory_equal(m.data, "abc", 3);
    file_unmap(&m);
    assert_null(m.data);
    file_unmap(&m);
    write_plain(path, "", 0);
    assert_int_equal(file_map(&m, path), 0);
    assert_int_equal(m.size_bytes, 0);
    assert_non_null(m.data);
    file_unmap(&m);
    assert_int_equal(file_map(&m, scratch), -1);
    file_unmap(&m);
    err_clear();
    write_plain(path, "abc", 3);
    fault_arm(FAULT_MMAP, 1, 0);
    assert_int_equal(file_map(&m, path), -1);
    file_unmap(&m);
    assert_int_equal(unlink(path), 0);
}

static void file_folders(void **state)
{
    Arena  a;
    char **names, buf[64];
    arena_init(&a);
    assert_int_equal(file_make_folders(in_scratch("x/y//z/")), 0);
    assert_int_equal(file_make_folders(in_scratch("x/y")), 0);
    assert_int_equal(file_kind(in_scratch("x/y/z")), FILE_FOLDER);
    write_plain(in_scratch("x/file"), "", 0);
    assert_int_equal(file_make_folders(in_scratch("x/file/sub")), -1);
    err_clear();
    for (int i = 99; i >= 0; i--) { /* more than the first room of the list */
        snprintf(buf, sizeof buf, "x/y/n%02d.bin", i);
        write_plain(in_scratch(buf), "", 0);
    }
    assert_int_equal(file_list(&a, in_scratch("x/y"), ".bin", &names), 100);
    assert_string_equal(names[0], "n00.bin");
    assert_string_equal(names[99], "n99.bin");
    assert_int_equal(file_list(&a, in_scratch("x/y"), "", &names), 101);
    assert_int_equal(file_list(&a, in_scratch("nowhere"), "", &names), -1);
    arena_deinit(&a);
    assert_int_equal(file_folder_of("a/b/c", buf, sizeof buf), 0);
    assert_string_equal(buf, "a/b");
    assert_int_equal(file_folder_of("/c", buf, sizeof buf), 0);
    assert_string_equal(buf, "/");
    assert_int_equal(file_folder_of("c", buf, sizeof buf), 0);
    assert_string_equal(buf, ".");
    assert_string_equal(file_name_of("a/b/c"), "c");
}

/* ---- fault --------------------------------------------------------------------------------------------- */

static void fault_counts(void **state)
{
    fault_arm(FAULT_READ, 2, 0);
    assert_int_equal(fault_hit(FAULT_WRITE), 0);
    assert_int_equal(fault_hit(FAULT_READ), 0);
    assert_int_equal(fault_hit(FAULT_READ), 1);
    assert_int_equal(fault_hit(FAULT_READ), 0);
    fault_arm(FAULT_WRITE, 2, 1);
    assert_int_equal(fault_hit(FAULT_WRITE), 0);
    assert_int_equal(fault_hit(FAULT_WRITE), 1);
    assert_int_equal(fault_hit(FAULT_WRITE), 1);
    fault_disarm();
    assert_int_equal(fault_hit(FAULT_WRITE), 0);
}

/* ---- thread -------------------------------------------------------------------------------------------- */

enum { RING_SLOTS = 3, RING_ITEMS = 2000, RING_PRODUCERS = 3 };

typedef struct {
    ThreadRing ring;
    int64_t    slot[RING_SLOTS];
} Shared;

static void produce(void *arg)
{
    Shared *s = (Shared *)arg;
    for (int64_t t; (t = thread_ring_acquire(&s->ring)) >= 0;) {
        s->slot[t % RING_SLOTS] = t * t;
        thread_ring_publish(&s->ring, t);
    }
}

static void ring_keeps_order(void **state)
{
    Shared s;
    Thread producer[RING_PRODUCERS];
    assert_int_equal(thread_ring_init(&s.ring, RING_SLOTS), 0);
    for (int i = 0; i < RING_PRODUCERS; i++)
        assert_int_equal(thread_start(&producer[i], "producer", produce, &s), 0);
    int64_t held = -1; /* the consumer works on one while it waits for the next */
    for (int64_t i = 0; i < RING_ITEMS; i++) {
        int64_t t = thread_ring_take(&s.ring);
        assert_int_equal(t, i);
        assert_int_equal(s.slot[t % RING_SLOTS], t * t);
        if (held >= 0) {
            assert_int_equal(s.slot[held % RING_SLOTS], held * held);
            thread_ring_release(&s.ring, held);
        }
        held = t;
    }
    thread_ring_close(&s.ring, NULL);
    for (int i = 0; i < RING_PRODUCERS; i++) thread_join(&producer[i]);
    thread_join(&producer[0]); /* nothing left to join */
    thread_ring_deinit(&s.ring);
}

static void produce_one_then_fail(void *arg)
{
    ThreadRing *r = (ThreadRing *)arg;
    thread_ring_publish(r, thread_ring_acquire(r));
    err_set("shard 3: truncated");
    thread_ring_close(r, err_get());
}

static void ring_carries_failure(void **state)
{
    ThreadRing r;
    Thread     t;
    assert_int_equal(thread_ring_init(&r, 2), 0);
    assert_int_equal(thread_start(&t, "a name longer than 15 bytes", produce_one_then_fail, &r), 0);
    assert_int_equal(thread_ring_take(&r), 0); /* what was published before the failure is still delivered */
    assert_int_equal(thread_ring_take(&r), -1);
    assert_string_equal(err_get(), "shard 3: truncated");
    assert_int_equal(thread_ring_acquire(&r), -1);
    thread_join(&t);
    thread_ring_deinit(&r);
    thread_ring_deinit(&r);
}

static void thread_start_can_fail(void **state)
{
    Thread t;
    fault_arm(FAULT_THREAD, 1, 0);
    assert_int_equal(thread_start(&t, "loader", produce, NULL), -1);
    assert_non_null(strstr(err_get(), "starting thread loader"));
    thread_join(&t);
}

/* ---- json ---------------------------------------------------------------------------------------------- */

static void json_writes(void **state)
{
    char    buf[512];
    JsonOut o;
    json_out_init_buf(&o, buf, sizeof buf);
    json_out_object(&o, NULL);
    json_out_int(&o, "step", 12);
    json_out_num(&o, "loss", 2.5);
    json_out_num(&o, "lr", 6e-4);
    json_out_num(&o, "bad", NAN);
    json_out_num(&o, "worse", -INFINITY);
    json_out_bool(&o, "ok", 1);
    json_out_str(&o, "s", "a\"b\\c\n\t\x01\xff\xc3\xa4");
    json_out_str(&o, "none", NULL);
    json_out_array(&o, "list");
    json_out_int(&o, NULL, 1);
    json_out_object(&o, NULL);
    json_out_close(&o);
    assert_int_equal(json_out_end(&o), 0);
    assert_string_equal(
        buf, "{\"step\": 12, \"loss\": 2.5, \"lr\": 0.0006, \"bad\": null, \"worse\": null, \"ok\": true, "
             "\"s\": \"a\\\"b\\\\c\\n\\t\\u0001\\ufffd\xc3\xa4\", \"none\": null, \"list\": [1, {}]}");
}

static void json_reports_failure(void **state)
{
    char    small[8];
    JsonOut o;
    json_out_init_buf(&o, small, sizeof small);
    json_out_object(&o, NULL);
    json_out_str(&o, "key", "too long for the buffer");
    assert_int_equal(json_out_end(&o), -1);
    assert_true(strlen(small) < sizeof small);
    err_clear();
    FILE *full = fopen("/dev/full", "w");
    if (!full) skip();
    json_out_init_file(&o, full);
    json_out_object(&o, NULL);
    assert_int_equal(json_out_end(&o), -1);
    fclose(full);
}

/* ---- log and progress ---------------------------------------------------------------------------------- */

static int count_lines(const char *s)
{
    int n = 0;
    for (; *s; s++) n += *s == '\n';
    return n;
}

static void log_and_plain_progress(void **state)
{
    char     folder[] = "/tmp/brim_log_XXXXXX", path[64];
    char    *out_text = NULL, *copied = NULL;
    size_t   out_n, n;
    FILE    *out = open_memstream(&out_text, &out_n);
    Progress p;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/log.txt", folder);
    log_open(out);
    assert_false(log_is_terminal());
    log_info("plan %d", 7); /* before there is a file: it is copied all the same */
    log_copy(path);
    log_warn("careful");
    log_status("never seen without a terminal");
    progress_begin(&p, "train", "tokens/s", 0, 500);
    for (int step = 1; step <= 500; step++) progress_update(&p, step, step < 3 ? NAN : 2.34567, 553000, 0.1);
    progress_end(&p);
    log_close();
    fclose(out);
    assert_non_null(strstr(out_text, "] plan 7\n"));
    assert_non_null(strstr(out_text, "] warning: careful\n"));
    assert_non_null(strstr(out_text, "train 1/500  553k tokens/s  0:50 left\n"));
    assert_non_null(strstr(out_text, "train 500/500  loss 2.3457  553k tokens/s  in 0:00\n"));
    assert_int_equal(count_lines(out_text), 4); /* a fast run prints its first and its last step */
    assert_null(strchr(out_text, '\r'));
    assert_int_equal(file_read_all(path, 1 << 20, &copied, &n), 0);
    assert_string_equal(out_text, copied);
    free(out_text);
    free(copied);
    unlink(path);
    rmdir(folder);
}

/* Lines that cannot be written come later, in order; those that cannot be kept are counted; one warning, no
 * failure. */
static void log_copy_of_a_full_disk(void **state)
{
    enum { MANY = 3000 };
    char   path[] = "/tmp/brim_log_XXXXXX", *out_text = NULL, *copied = NULL;
    size_t out_n, n;
    int    fd  = mkstemp(path);
    FILE  *out = open_memstream(&out_text, &out_n);
    assert_true(fd >= 0);
    close(fd);
    log_open(out);
    log_copy(path);
    fault_arm(FAULT_WRITE, 1, 1);
    log_info("first");
    log_note("for the copy alone");
    for (int i = 0; i < MANY; i++) log_info("one of very many lines, number %d", i);
    fault_disarm();
    log_info("last");
    fault_arm(FAULT_OPEN, 1, 1);
    log_copy("/nowhere");
    fault_disarm();
    log_info("after all");
    log_close();
    log_note("nobody listens");
    fclose(out);
    assert_int_equal(file_read_all(path, 1 << 20, &copied, &n), 0);
    assert_true(n > LOG_KEPT - 100 && n < LOG_KEPT + 400);
    assert_non_null(strstr(copied, "] first\n"));
    assert_non_null(strstr(copied, "] for the copy alone\n"));
    assert_null(strstr(out_text, "for the copy alone"));
    const char *warned = strstr(out_text, "warning: /tmp/brim_log_");
    assert_non_null(warned);
    assert_null(strstr(warned + 1, "warning: /tmp/brim_log_"));
    assert_non_null(strstr(copied, "lines are missing here\n"));
    assert_non_null(strstr(copied, "warning: /nowhere: "));
    assert_non_null(strstr(copied, "] after all\n"));
    assert_null(strstr(copied, "nobody listens"));
    assert_int_equal(count_lines(out_text), MANY + 5); /* "first", "last", "after all" and two warnings */
    free(out_text);
    free(copied);
    unlink(path);
}

static void log_copy_is_bounded(void **state)
{
    char   path[] = "/tmp/brim_log_XXXXXX", text[2000], *copied = NULL;
    size_t n;
    int    fd  = mkstemp(path);
    FILE  *out = fopen("/dev/null", "w");
    assert_true(fd >= 0 && out);
    close(fd);
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    log_open(out);
    log_copy(path);
    for (int i = 0; i < LOG_MOST / 1500; i++) log_info("%s", text);
    log_close();
    fclose(out);
    assert_int_equal(file_read_all(path, 1 << 26, &copied, &n), 0);
    assert_true(n >= LOG_MOST && n < LOG_MOST + 4096);
    assert_non_null(strstr(copied + n - 100, "no more lines are written here\n"));
    free(copied);
    unlink(path);
}

/* BRIM_FAULT works in a fresh process, and a malformed one cannot be overlooked. */
static int run_with_fault(const char *value)
{
    char command[256];
    snprintf(command, sizeof command, "BRIM_FAULT=%s /proc/%ld/exe --write >/dev/null 2>&1", value,
             (long)getpid());
    return system(command);
}

static void fault_from_environment(void **state)
{
    assert_int_equal(run_with_fault(""), 0);
    assert_int_equal(WEXITSTATUS(run_with_fault("write:1")), 1);
    assert_int_equal(run_with_fault("write:9"), 0);
    assert_int_equal(WEXITSTATUS(run_with_fault("rename:1+")), 1);
    assert_int_equal(WEXITSTATUS(run_with_fault("write:2-3")), 1);
    assert_int_equal(run_with_fault("write:3-9"), 0);
    assert_int_equal(WEXITSTATUS(run_with_fault("write:3-2")), 128 + SIGABRT);
    assert_int_equal(WEXITSTATUS(run_with_fault("rite:1")), 128 + SIGABRT);
    assert_int_equal(WEXITSTATUS(run_with_fault("write:0")), 128 + SIGABRT);
    assert_int_equal(WEXITSTATUS(run_with_fault("write:1x")), 128 + SIGABRT);
}

/* What fault_from_environment() starts: publishes a file, exit code 1 when that fails. */
static int publish_once(void)
{
    char path[64];
    snprintf(path, sizeof path, "/tmp/test_base_%ld", (long)getpid());
    FILE *f  = file_create_tmp(path);
    int   rc = f && file_write(f, "x", 1) == 0 ? file_publish(&f, path) : -1;
    file_discard(&f);
    unlink(path);
    return rc < 0;
}

static void clock_moves_forward(void **state)
{
    double a = clock_now_s();
    usleep(2000);
    double b = clock_now_s();
    assert_true(b - a >= 0.002 && b - a < 5);
    assert_true(clock_wall_s() > 1.6e9);
}

static void median_is_the_middle(void **state)
{
    double five[] = { 5, 1, 4, 2, 3 }, four[] = { 9, 1, 8, 2 }, one[] = { 7 };
    assert_true(clock_median(five, 5) == 3 && clock_median(four, 4) == 8 && clock_median(one, 1) == 7);
}

/* Behind a block of an arena is nothing that may be read: AddressSanitizer says so, everything else sees
 * zeros. */
#ifdef __SANITIZE_ADDRESS__
int __asan_address_is_poisoned(void const volatile *p);
#else
static int __asan_address_is_poisoned(void const volatile *p) { return p != NULL; }
#endif

static void arena_guards_its_gaps(void **state)
{
    Arena a;
    arena_init(&a);
    for (int n = 1; n < 200000; n = 2 * n + 3) {
        char *p = arena_alloc(&a, (size_t)n), *q = arena_alloc(&a, 64);
        for (int i = 0; i < n; i++) assert_int_equal(p[i], 0);
        assert_true((uintptr_t)p % 64 == 0 && (uintptr_t)q % 64 == 0);
        assert_true(__asan_address_is_poisoned(p + n));
        assert_true(__asan_address_is_poisoned(q + 64));
    }
    arena_deinit(&a);
}

#define CASE(f) cmocka_unit_test_teardown(f, clean)

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "--write") == 0) return publish_once();
    const struct CMUnitTest tests[] = {
        CASE(str_bounds),
        CASE(str_numbers),
        CASE(str_sizes),
        CASE(str_for_people),
        CASE(str_quotes_untrusted_text),
        CASE(str_columns_are_characters),
        CASE(str_lists),
        CASE(str_distance),
        CASE(file_publishes),
        CASE(file_publish_in_current_folder),
        CASE(file_publish_survives_faults),
        CASE(file_write_reports_full_disk),
        CASE(file_sweeps),
        CASE(file_reads),
        CASE(file_maps),
        CASE(file_folders),
        CASE(arena_guards_its_gaps),
        CASE(fault_counts),
        CASE(ring_keeps_order),
        CASE(ring_carries_failure),
        CASE(thread_start_can_fail),
        CASE(json_writes),
        CASE(json_reports_failure),
        CASE(log_and_plain_progress),
        CASE(log_copy_of_a_full_disk),
        CASE(log_copy_is_bounded),
        CASE(fault_from_environment),
        CASE(clock_moves_forward),
        CASE(median_is_the_middle),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
