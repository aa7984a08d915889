#define _GNU_SOURCE /* memfd_create */
/* Parquet (file/parquet.h) against a writer of its own (tests/parquet_writer.h): every encoding and codec
 * that is read, damaged files, and Parquet as documents. tests/test_parquet.sh reads what other programs
 * wrote. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/err.h"
#include "case_folder.h"
#include "data/documents.h"
#include "dice.h"
#include "file/parquet.h"
#include "file/snappy.h"
#include "parquet_writer.h"

#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *save(void **state, const char *name, const void *bytes, size_t n)
{
    const char *path = in(state, name);
    write_file(path, bytes, n);
    return path;
}

static void expect(const char *what)
{
    if (!strstr(err_get(), what) || err_kind() != ERR_USER || strchr(err_get(), '\n'))
        fail_msg("'%s' lacks '%s'", err_get(), what);
    err_clear();
}

/* ---- values -------------------------------------------------------------------------------------------- */

enum { N = 300 };

/* Empty, short, long, with the beginning of the one before, several times the same, UTF-8; nulls as asked. */
static Value *make_values(int nulls, int64_t n)
{
    static const char *const piece[] = {
        "", "a", "Grüße, 世界 🌍", "the quick brown fox ", "\n\n", "aaaaaaaaaaaaaaaa"
    };
    Dice   dice = { 7, 0 };
    Value *v    = calloc((size_t)n + 1, sizeof *v);
    for (int64_t i = 0; i < n; i++) {
        Bytes b = { 0 };
        if (nulls && dice_roll(&dice, 3) == 0) continue;
        if (i > 0 && v[i - 1].p && dice_roll(&dice, 2)) put(&b, v[i - 1].p, v[i - 1].n / 2);
        int times = i == 17 ? 4000 : i % 16 == 0 ? 60 : dice_roll(&dice, 4);
        while (times-- > 0) {
            const char *s = piece[dice_roll(&dice, ARRAY_LEN(piece))];
            put(&b, s, strlen(s));
        }
        put(&b, "", 1); /* never NULL */
        v[i] = (Value){ (char *)b.p, b.n - 1 };
    }
    return v;
}

static void free_values(Value *v, int64_t n)
{
    for (int64_t i = 0; i < n; i++) free((char *)v[i].p);
    free(v);
}

/* Reads a file. 1: its values are those of v; 0: others; -1: refused. */
static int read_back(const char *path, const Value *v, int64_t n)
{
    Parquet    *p;
    const char *text;
    size_t      len;
    int64_t     i = 0, n_null = 0;
    int         rc, same      = 1;
    if (parquet_open(&p, path, "text", "--field ") < 0) return -1;
    while ((rc = parquet_next(p, &text, &len)) > 0) {
        for (; i < n && !v[i].p; i++) n_null++;
        same = same && i < n && v[i].n == len && memcmp(v[i].p, text, len) == 0;
        i++;
    }
    for (; i < n && !v[i].p; i++) n_null++;
    if (rc == 0) same = same && i == n && parquet_nulls(p) == n_null;
    parquet_close(p);
    return rc < 0 ? -1 : same;
}

static const int encodings[] = { W_PLAIN, W_PLAIN_DICT, W_DELTA_LENGTH, W_DELTA_BYTES, W_DICT },
                 codecs[]    = { 0, 1, 2, 6 };

static void every_form_is_read(void **state)
{
    Value *some = make_values(1, N), *all = make_values(0, N);
    for (int form = 0; form < ARRAY_LEN(encodings) * ARRAY_LEN(codecs) * 32; form++) {
        int          bits = form % 32, k = form / 32;
        Form         f = { .version   = bits & 1 ? 2 : 1,
                           .optional  = bits >> 1 & 1,
                           .crc       = bits >> 2 & 1,
                           .groups    = bits >> 3 & 1,
                           .per_page  = bits & 16 ? 37 : N,
                           .per_group = bits & 16 ? 131 : N,
                           .encoding  = encodings[k % ARRAY_LEN(encodings)],
                           .codec     = codecs[k / ARRAY_LEN(encodings)] };
        const Value *v = f.optional ? some : all;
        Bytes        b = parquet_of(&f, v, N);
        if (read_back(save(state, "a.parquet", b.p, b.n), v, N) != 1)
            fail_msg("encoding %d, codec %d, bits %d: %s", f.encoding, f.codec, bits, err_get());
        free(b.p);
    }
    free_values(some, N);
    free_values(all, N);
}

static void odd_files_are_read(void **state)
{
    Value *none = calloc(N, sizeof *none), *same = calloc(N, sizeof *same);
    for (int i = 0; i < N; i++) same[i] = (Value){ "the same", 8 };
    for (int k = 0; k < ARRAY_LEN(encodings) * 2; k++) {
        Form  f = { .version   = k & 1 ? 2 : 1,
                    .optional  = 1,
                    .per_page  = 100,
                    .per_group = 150,
                    .encoding  = encodings[k / 2] };
        Bytes b = parquet_of(&f, none, N);
        assert_int_equal(read_back(save(state, "none.parquet", b.p, b.n), none, N), 1);
        free(b.p);
        b = parquet_of(&f, same, N); /* words of 0 bits */
        assert_int_equal(read_back(save(state, "same.parquet", b.p, b.n), same, N), 1);
        free(b.p);
        b = parquet_of(&f, none, 0); /* no row group */
        assert_int_equal(read_back(save(state, "empty.parquet", b.p, b.n), none, 0), 1);
        free(b.p);
    }
    free(none);
    free(same);
}

static void snappy_pieces_unpack(void **state)
{
    uint8_t out[40];
    /* A literal, a copy with 11 bits, one of 16, one of 32, each over what it makes. */
    static const uint8_t good[] = { 33,           2 << 2, 'a', 'b', 'c', 4 << 2 | 1, 3, (9 << 2) | 2, 2,  0,
                                    (9 << 2) | 3, 5,      0,   0,   0,   60 << 2,    1, 'x',          'y' };
    assert_null(snappy_unpack(good, sizeof good, out, 33));
    assert_memory_equal(out, "abcabcabcabbcbcbcbcbcbcbcbcbcbcxy", 5);
    assert_memory_equal(out + 31, "xy", 2);
    for (size_t n = 0; n < sizeof good; n++) assert_non_null(snappy_unpack(good, n, out, 33));
    assert_non_null(snappy_unpack(good, sizeof good, out, 34));
    static const uint8_t behind[] = { 5, 0, 'a', 0 << 2 | 1, 2 }; /* copies from before the beginning */
    assert_non_null(snappy_unpack(behind, sizeof behind, out, 5));
    static const uint8_t zero[] = { 5, 0, 'a', 0 << 2 | 1, 0 }; /* copies from itself */
    assert_non_null(snappy_unpack(zero, sizeof zero, out, 5));
}

/* ---- what is refused ----------------------------------------------------------------------------------- */

static void refuse(void **state, const Form *form, const char *field, const char *what)
{
    Value    v[] = { { "one", 3 }, { "two", 3 }, { "one", 3 } };
    Form     f   = *form;
    Parquet *p;
    f.per_page = f.per_group = 3;
    Bytes       b            = parquet_of(&f, v, 3);
    const char *path         = save(state, "bad.parquet", b.p, b.n), *text;
    size_t      n;
    int         rc = parquet_open(&p, path, field, "data.field=");
    if (rc == 0) {
        while ((rc = parquet_next(p, &text, &n)) > 0) {
        }
        parquet_close(p);
    }
    assert_int_equal(rc, -1);
    expect(what);
    free(b.p);
}

static void what_is_not_read_is_named(void **state)
{
    refuse(state, &(Form){ 0 }, "body",
           "bad.parquet: there is no column \"body\" (data.field=text, title would do)");
    refuse(state, &(Form){ 0 }, "id",
           "bad.parquet: the column \"id\" holds no text (data.field=text, title would do)");
    refuse(state, &(Form){ 0 }, "tags", "the column \"tags\" is nested (data.field=text, title would do)");
    refuse(state, &(Form){ 0 }, "element", "there is no column \"element\"");
    refuse(state, &(Form){ .optional = 2 }, "text",
           "the column \"text\" is repeated (data.field=title would do)");
    refuse(state, &(Form){ .name = "t\x1b[2J" }, "text", "(data.field=t?[2J, title would do)");
    refuse(state, &(Form){ .say_codec = 4 }, "text",
           "the column \"text\" is packed by BROTLI, which is not read");
    refuse(state, &(Form){ .say_codec = 7 }, "text", "by LZ4_RAW,");
    refuse(state, &(Form){ .say_codec = 99 }, "text", "by number 99,");
    refuse(state, &(Form){ .say_encoding = 9 }, "text",
           "row group 1, page at byte 4: the encoding BYTE_STREAM_SPLIT is not read");
    refuse(state, &(Form){ .say_encoding = 77 }, "text", "the encoding number 77 is not read");
    refuse(state, &(Form){ .say_encoding = 8 }, "text", "a page that needs a dictionary, and there is none");
    refuse(state, &(Form){ .encrypted = 1 }, "text", "bad.parquet: is encrypted");
    refuse(state, &(Form){ .say_values = 2 }, "text", "bytes behind its last text");
    refuse(state, &(Form){ .say_values = 4 }, "text", "more texts than the column has");
    /* Claims of bytes are refused before memory is taken. */
    refuse(state, &(Form){ .say_size = INT32_MAX }, "text", "a page that claims more bytes than it can hold");
    refuse(state, &(Form){ .codec = 1, .say_size = 1000 }, "text",
           "a page that claims more bytes than it can hold");
    refuse(state, &(Form){ .codec = 6, .say_size = 100 << 20 }, "text",
           "a page that claims more bytes than it can hold");
    refuse(state, &(Form){ .codec = 6, .say_size = 1000 }, "text", "damaged zstd data: it ends too early");
    refuse(state, &(Form){ .codec = 2, .say_size = 1000 }, "text", "damaged gzip data: it ends too early");
    refuse(state, &(Form){ .codec = 1, .say_size = 30 }, "text",
           "damaged snappy data: its length is not that of its page");
}

static void other_files_are_refused(void **state)
{
    static const struct {
        const char *bytes, *what;
    } bad[] = { { "", "does not begin with PAR1" },
                { "some text that is long enough", "does not begin with PAR1" },
                { "PAR1", "does not end with PAR1" },
                { "PAR1PAR1", "does not end with PAR1" },
                { "PAR1\x7f\x7f\x7f\x7fPAR1",
                  "damaged: its footer claims 2139062143 bytes, and the file has 12" },
                { "PARE\x01\x01\x01\x01PARE", "is encrypted" },
                { "version https://git-lfs.github.com/spec/v1\n", "fetch it with git lfs pull" } };
    Parquet *p;
    for (int i = 0; i < ARRAY_LEN(bad); i++) {
        assert_int_equal(
            parquet_open(&p, save(state, "x.parquet", bad[i].bytes, strlen(bad[i].bytes)), "text", ""), -1);
        expect(bad[i].what);
    }
    assert_int_equal(parquet_open(&p, in(state, "none.parquet "), "text", ""), -1);
    expect("no such file");
    assert_int_equal(parquet_open(&p, *state, "text", ""), -1);
    expect("must be a file");
}

/* ---- damaged files ------------------------------------------------------------------------------------- */

/* 1: the original's values; 0: others; -1: refused with one line that begins with the path. */
static int read_damaged(int fd, const Bytes *b, size_t n, const Value *v, int64_t n_value)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    assert_int_equal(pwrite(fd, b->p, n, 0), n);
    assert_int_equal(ftruncate(fd, (off_t)n), 0);
    int rc = read_back(path, v, n_value);
    if (rc < 0) expect(path);
    return rc;
}

static void damaged_files_end_with_one_line(void **state)
{
    enum { FEW = 40, FLIPS = 2000 };
    Value *v         = make_values(1, FEW);
    int    fd        = memfd_create("damaged", 0);
    Dice   dice      = { 11, 0 };
    int    n_refused = 0, n_other = 0, n_flip = 0;
    for (int k = 0; k < ARRAY_LEN(encodings) * 4; k++) {
        Form  f = { .version   = k & 1 ? 2 : 1,
                    .optional  = 1,
                    .crc       = k >> 1 & 1,
                    .per_page  = 16,
                    .per_group = 30,
                    .encoding  = encodings[k / 4],
                    .codec     = codecs[k % 4] };
        Bytes b = parquet_of(&f, v, FEW);
        for (size_t n = 0; n < b.n; n += 1 + (n > 2000 && n + 2000 < b.n) * 97)
            assert_int_equal(read_damaged(fd, &b, n, v, FEW), -1);
        for (int i = 0; i < FLIPS; i++) {
            /* Half of them where they hurt: in the footer and in the heads of pages. */
            size_t  at  = i & 1 ? b.n - 1 - (size_t)dice_roll(&dice, (int)MIN(b.n, 400))
                                : (size_t)dice_roll(&dice, (int)b.n);
            uint8_t was = b.p[at];
            b.p[at] ^= (uint8_t)(i & 2 ? 1 << dice_roll(&dice, 8) : 1 + dice_roll(&dice, 255));
            int rc  = read_damaged(fd, &b, b.n, v, FEW);
            b.p[at] = was;
            n_flip++;
            n_refused += rc < 0;
            n_other += rc == 0;
            /* With checksums nothing but the original is read. */
            if (rc == 0 && f.crc) fail_msg("form %d: a flip at byte %zu of %zu changed the text", k, at, b.n);
        }
        assert_int_equal(read_damaged(fd, &b, b.n, v, FEW), 1);
        free(b.p);
    }
    print_message("%d flips: %d refused, %d changed text that has no checksum\n", n_flip, n_refused, n_other);
    assert_true(n_refused > n_flip / 4);
    close(fd);
    free_values(v, FEW);
}

/* ---- as documents -------------------------------------------------------------------------------------- */

/* All documents behind each other, each as "text|". Parts of one are joined. NULL: refused. */
static char *documents_of(const char *const *path, int n_path, int64_t *n_null)
{
    DocumentsConfig cfg = {
        .path = path, .n_path = n_path, .field = "text", .separator = "\n\n", .quiet = 1
    };
    Documents    *d   = NULL;
    DocumentBatch b   = { 0 };
    Bytes         out = { 0 };
    int           rc  = documents_open(&d, &cfg);
    while (rc >= 0 && (rc = documents_next(d, &b)) > 0) {
        for (int64_t i = 0; i < b.n && rc > 0; i++) {
            DocumentText t;
            assert_true(b.doc[i].len <= DOCUMENT_PART);
            rc = documents_text(&cfg, &b, i, &t);
            if (rc > 0) put(&out, t.text, t.n);
            if (rc > 0 && b.doc[i].last) put(&out, "|", 1);
            if (rc == 0) rc = 1;
            documents_text_free(&t);
        }
    }
    if (rc == 0) assert_int_equal(documents_taken(d), documents_bytes(d));
    *n_null = rc == 0 ? documents_nulls(d) : -1;
    documents_batch_deinit(&b);
    documents_close(d);
    put(&out, "", 1);
    if (rc == 0) return (char *)out.p;
    free(out.p);
    return NULL;
}

static void folders_may_mix(void **state)
{
    Value       v[] = { { "one", 3 }, { NULL, 0 }, { "", 0 }, { "a\n\nb", 4 }, { "two", 3 } };
    Form        f   = { .version = 1, .optional = 1, .per_page = 2, .per_group = 3, .codec = 1 };
    Bytes       b   = parquet_of(&f, v, 5);
    const char *path[2];
    int64_t     n_null;
    assert_int_equal(mkdir(in(state, "mixed"), 0700), 0);
    save(state, "mixed/a.jsonl", "{\"text\": \"first\"}\n", 18);
    save(state, "mixed/b", b.p, b.n); /* its bytes say what it is */
    save(state, "mixed/_metadata", b.p, b.n);
    save(state, "mixed/c.txt", "last", 4);
    path[0]   = in(state, "mixed");
    path[1]   = in(state, "mixed/b");
    char *got = documents_of(path, 2, &n_null);
    assert_non_null(got);
    assert_string_equal(got, "first|one|a\n\nb|two|last|one|a\n\nb|two|");
    assert_int_equal(n_null, 2);
    free(got);
    assert_int_equal(documents_is_more(in(state, "mixed/b")), 1);
    save(state, "mixed/d.parquet", "junk", 4); /* half a download is not passed over */
    assert_null(documents_of(path, 1, &n_null));
    expect("mixed/d.parquet: no Parquet file: it does not begin with PAR1");
    gzFile z = gzopen(in(state, "twice.gz"), "wb");
    gzwrite(z, b.p, (unsigned)b.n);
    gzclose(z);
    path[0] = in(state, "twice.gz");
    assert_null(documents_of(path, 1, &n_null));
    expect("twice.gz: a Parquet file in a pipe, or packed once more");
    free(b.p);
}

/* Only the beginning of a stream tells. Here a piece that is read begins like a Parquet file. */
static void text_may_say_par1(void **state)
{
    enum { PIECE = 1 << 17 }; /* of a stream */
    char       *text   = malloc(PIECE + 16);
    const char *path[] = { in(state, "a.txt") };
    int64_t     n_null;
    memset(text, 'a', PIECE - 2);
    strcpy(text + PIECE - 2, "\n\nPAR1 is text");
    save(state, "a.txt", text, strlen(text));
    char *got = documents_of(path, 1, &n_null);
    if (!got) fail_msg("%s", err_get());
    assert_string_equal(got + PIECE - 2, "|PAR1 is text|");
    free(got);
    free(text);
}

/* A value of more than DOCUMENT_PART bytes comes in parts and is one document. */
static void long_values_are_one_document(void **state)
{
    size_t      n      = DOCUMENT_PART + 5000000;
    char       *text   = malloc(n);
    const char *path[] = { in(state, "long.parquet") };
    int64_t     n_null;
    for (size_t i = 0; i < n; i++) text[i] = "etaoin \nshrdlu"[(i * 7919 + i / 97) % 14];
    Value v[] = { { "before", 6 }, { text, n }, { "after", 5 } };
    Form  f   = { .version = 1, .per_page = 3, .per_group = 3, .codec = 6 };
    Bytes b   = parquet_of(&f, v, 3);
    save(state, "long.parquet", b.p, b.n);
    char *got = documents_of(path, 1, &n_null);
    assert_non_null(got);
    assert_int_equal(strlen(got), n + 6 + 5 + 3);
    assert_memory_equal(got, "before|", 7);
    assert_memory_equal(got + 7, text, n);
    assert_string_equal(got + 7 + n, "|after|");
    free(got);
    free(text);
    free(b.p);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, folder_setup, folder_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(every_form_is_read),        CASE(odd_files_are_read),      CASE(snappy_pieces_unpack),
        CASE(what_is_not_read_is_named), CASE(other_files_are_refused), CASE(damaged_files_end_with_one_line),
        CASE(folders_may_mix),           CASE(text_may_say_par1),       CASE(long_values_are_one_document),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
