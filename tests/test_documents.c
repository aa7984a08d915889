#define _GNU_SOURCE /* memmem */
/* Text in: streams (file/stream.h), documents (data/documents.h), text to shards (data/tokenize.h). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/err.h"
#include "base/file.h"
#include "base/folder.h"
#include "data/documents.h"
#include "data/tokenize.h"
#include "data/tokens.h"
#include "file/stream.h"
#include "text/train.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

static char dir[64];

static int setup(void **state)
{
    snprintf(dir, sizeof dir, "/tmp/brim_docs_XXXXXX");
    (void)state;
    return mkdtemp(dir) ? 0 : -1;
}

static int teardown(void **state)
{
    folder_remove(dir);
    err_clear();
    (void)state;
    return 0;
}

static const char *in(const char *name)
{
    static char path[8][256];
    static int  turn;
    turn = (turn + 1) % 8;
    snprintf(path[turn], sizeof path[turn], "%s/%s", dir, name);
    return path[turn];
}

static void put(const char *name, const void *bytes, size_t n)
{
    FILE *f = fopen(in(name), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static void put_text(const char *name, const char *text) { put(name, text, strlen(text)); }

static void expect(const char *what)
{
    if (!strstr(err_get(), what) || err_kind() != ERR_USER) fail_msg("'%s' lacks '%s'", err_get(), what);
    err_clear();
}

static size_t gzip_of(const void *bytes, size_t n, unsigned char *out, size_t room)
{
    z_stream z = { 0 };
    assert_int_equal(deflateInit2(&z, 6, Z_DEFLATED, 31, 8, Z_DEFAULT_STRATEGY), Z_OK);
    z.next_in   = (Bytef *)bytes;
    z.avail_in  = (uInt)n;
    z.next_out  = out;
    z.avail_out = (uInt)room;
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    deflateEnd(&z);
    return room - z.avail_out;
}

static size_t zstd_of(const void *bytes, size_t n, unsigned char *out, size_t room)
{
    size_t got = ZSTD_compress(out, room, bytes, n, 3);
    assert_false(ZSTD_isError(got));
    return got;
}

/* ---- streams ------------------------------------------------------------------------------------------- */

enum { TEXT = 700000 };

static char *make_text(void)
{
    char *p = malloc(TEXT);
    for (int64_t i = 0; i < TEXT; i++) p[i] = (char)("etaoin \nshrdlu"[(i * 7919 + i / 97) % 14]);
    return p;
}

/* Reads all, in pieces of `step`. -1: refused. */
static int64_t drain(const void *bytes, size_t n, size_t step, char *out)
{
    Stream *s;
    int64_t len = 0, got;
    if (stream_open_memory(&s, "input", bytes, n) < 0) return -1;
    while ((got = stream_read(s, out + len, MIN(step, (size_t)(4 * TEXT - len)))) > 0) len += got;
    stream_close(s);
    return got < 0 ? -1 : len;
}

static void packed_streams_unpack(void **state)
{
    char          *text = make_text(), *back = malloc(4 * TEXT);
    unsigned char *packed = malloc(2 * TEXT);
    for (int zstd = 0; zstd < 2; zstd++) {
        size_t (*pack)(const void *, size_t, unsigned char *, size_t) = zstd ? zstd_of : gzip_of;
        size_t a                                                      = pack(text, TEXT / 3, packed, TEXT);
        size_t n = a + pack(text + TEXT / 3, TEXT - TEXT / 3, packed + a, TEXT); /* two parts */
        for (size_t step = 1000; step < 1 << 22; step *= 60) {
            assert_int_equal(drain(packed, n, step, back), TEXT);
            assert_memory_equal(text, back, TEXT);
        }
        assert_int_equal(drain(packed, a, 1 << 16, back), TEXT / 3);
        const size_t cut[] = { 5, a / 2, a - 1, a + 5, n - 1 };
        for (int i = 0; i < 5; i++) {
            assert_int_equal(drain(packed, cut[i], 1 << 16, back), -1);
            expect("it ends too early");
        }
        packed[a / 2] ^= 0x55;
        if (drain(packed, n, 1 << 16, back) >= 0) assert_memory_not_equal(text, back, TEXT);
        err_clear();
    }
    assert_int_equal(drain(text, TEXT, 12345, back), TEXT);
    assert_memory_equal(text, back, TEXT);
    assert_int_equal(drain("", 0, 10, back), 0);
    free(text);
    free(back);
    free(packed);
    (void)state;
}

/* ---- documents ----------------------------------------------------------------------------------------- */

/* All documents behind each other, each as "text|". Parts of one are joined. */
static char *read_all(const DocumentsConfig *cfg, int64_t *n_bad)
{
    Documents    *d;
    DocumentBatch b   = { 0 };
    size_t        len = 0, cap = 1 << 16;
    char         *out = malloc(cap);
    int           rc;
    *n_bad = 0;
    if (documents_open(&d, cfg) < 0) {
        free(out);
        return NULL;
    }
    while ((rc = documents_next(d, &b)) > 0) {
        for (int64_t i = 0; i < b.n && rc > 0; i++) {
            DocumentText t;
            int          is = documents_text(cfg, &b, i, &t);
            *n_bad += t.bad;
            if (is < 0) rc = -1;
            while (len + t.n + 2 > cap) out = realloc(out, cap *= 2);
            if (is > 0) memcpy(out + len, t.text, t.n);
            if (is > 0) len += t.n;
            if (is > 0 && b.doc[i].last) out[len++] = '|';
            documents_text_free(&t);
        }
        if (rc < 0) break;
    }
    out[len] = '\0';
    documents_batch_deinit(&b);
    documents_close(d);
    if (rc == 0) return out;
    free(out);
    return NULL;
}

static void gives(DocumentsConfig cfg, const char *want)
{
    int64_t n_bad;
    char   *got = read_all(&cfg, &n_bad);
    if (!got) fail_msg("%s", err_get());
    assert_string_equal(got, want);
    free(got);
}

static void refuses(DocumentsConfig cfg, const char *what)
{
    int64_t n_bad;
    char   *got = read_all(&cfg, &n_bad);
    if (got) fail_msg("gave %.100s", got);
    expect(what);
}

static void folders_files_and_separators(void **state)
{
    unsigned char gz[256];
    mkdir(in("t"), 0777);
    mkdir(in("t/b"), 0777);
    put_text("t/a.txt", "one<E>two<E><E>three");
    put_text("t/b/x", "x");
    put_text("t/b/empty", "");
    put_text("t/c.jsonl", "{\"text\": \"j1\"}\n\n{\"text\": \"j\\u00e9\", \"n\": 2}");
    put_text("t/.hidden", "no");
    put("t/binary", "a\0b", 3);
    put("t/z", gz, gzip_of("zip<E>zap", 9, gz, sizeof gz));
    const char     *path[] = { in("t") };
    DocumentsConfig cfg    = { .path = path, .n_path = 1, .field = "text", .separator = "<E>" };
    gives(cfg, "one|two|three|x|j1|j\xc3\xa9|zip|zap|");
    cfg.separator = NULL;
    gives(cfg, "one<E>two<E><E>three|x|j1|j\xc3\xa9|zip<E>zap|");
    path[0]    = in("t/c.jsonl");
    cfg.format = DOCUMENTS_TEXT;
    gives(cfg, "{\"text\": \"j1\"}\n\n{\"text\": \"j\\u00e9\", \"n\": 2}|");
    path[0] = in("none");
    refuses(cfg, "no such file or folder");
    mkdir(in("e"), 0777);
    path[0] = in("e");
    refuses(cfg, "there is no text in this folder");
    (void)state;
}

/* A separator that lies across two reads, and one that only looks like one. */
static void separators_at_any_place(void **state)
{
    enum { N = 600000 };
    char *text = malloc(N + 1), *want = malloc(2 * N);
    for (int at = (1 << 18) - 4; at < (1 << 18) + 3; at++) {
        memset(text, 'x', N);
        text[N] = '\0';
        memcpy(text + at, "<E>", 3);
        memcpy(text + 100, "<E<E>", 5);
        put("big", text, N);
        int n = sprintf(want, "%.*s|", 102, text);
        n += sprintf(want + n, "%.*s|", at - 105, text + 105);
        sprintf(want + n, "%s|", text + at + 3);
        const char *path[] = { in("big") };
        gives((DocumentsConfig){ .path = path, .n_path = 1, .separator = "<E>" }, want);
    }
    free(text);
    free(want);
    (void)state;
}

static void bad_lines(void **state)
{
    const char     *path[] = { in("l.jsonl") };
    DocumentsConfig cfg    = { .path = path, .n_path = 1, .field = "text" };
    put_text("l.jsonl", "{\"text\": \"a\"}\n{\"text\": 1, \"txt\": \"b\"}\n");
    refuses(cfg, "l.jsonl:2: there is no text in the field \"text\" (--field txt would do)");
    put_text("l.jsonl", "{\"text\": \"a\"}\n\n{\"text\": \"b\"\n");
    refuses(cfg, "l.jsonl:3: not a line of JSON");
    put_text("l.jsonl", "[1]\n");
    refuses(cfg, "l.jsonl:1: not a JSON object");
    put_text("l.jsonl", "{\"text\": \"\xff\"}\n");
    refuses(cfg, "l.jsonl:1: not a line of JSON");
    char *bomb = malloc(100001);
    memset(bomb, '[', 100000);
    bomb[100000] = '\0';
    put_text("l.jsonl", bomb);
    refuses(cfg, "l.jsonl:1: not a line of JSON: maximum parsing depth reached");
    free(bomb);
    put_text("l.jsonl", "{\"text\": \"a\"}\nnonsense\n{}\n{\"text\": \"b\"}\n");
    cfg.keep_going = 1;
    int64_t n_bad;
    char   *got = read_all(&cfg, &n_bad);
    assert_string_equal(got, "a|b|");
    assert_int_equal(n_bad, 2);
    free(got);
    (void)state;
}

/* A document that is too long to be held is cut behind a line; the parts together are the document. */
static void long_documents_come_in_parts(void **state)
{
    size_t n    = DOCUMENT_PART + 3000000;
    char  *text = malloc(n + 2);
    memset(text, 'y', n);
    for (size_t i = 1000; i < n; i += 1000) text[i] = '\n';
    text[n]     = '|';
    text[n + 1] = '\0';
    put("long", text, n);
    const char *path[] = { in("long") };
    gives((DocumentsConfig){ .path = path, .n_path = 1, .separator = "<E>" }, text);
    free(text);
    (void)state;
}

/* The first read takes 128 KiB and each one behind it 256 KiB. One of them ends 7 bytes into the separator,
 * when more than a part is held. */
static void parts_cut_no_separator(void **state)
{
    static const char separator[] = "0123456789";
    enum { LEN = sizeof separator - 1, FIRST = (1 << 17) - LEN - 4, SECOND = DOCUMENT_PART - 3 };
    size_t n    = FIRST + LEN + SECOND + LEN + 3;
    char  *text = malloc(n + 1), *want = malloc(n + 1);
    snprintf(text, n + 1, "%*s%s%*s%send", FIRST, "a", separator, SECOND, "b", separator);
    snprintf(want, n + 1, "%*s|%*s|end|", FIRST, "a", SECOND, "b");
    put("cut", text, n);
    const char *path[] = { in("cut") };
    gives((DocumentsConfig){ .path = path, .n_path = 1, .separator = separator }, want);
    free(text);
    free(want);
    (void)state;
}

static void parts_cut_no_character(void **state)
{
    size_t n    = DOCUMENT_PART + 1;
    char  *text = malloc(n);
    for (size_t i = 0; i < n; i++) text[i] = i == 0 ? 'x' : i % 2 ? '\xc3' : '\xa9';
    put("accents", text, n);
    const char   *path[] = { in("accents") };
    Documents    *d;
    DocumentBatch b = { 0 };
    assert_int_equal(documents_open(&d, &(DocumentsConfig){ .path = path, .n_path = 1 }), 0);
    assert_int_equal(documents_next(d, &b), 1);
    assert_true(b.n == 1 && b.doc[0].len == DOCUMENT_PART - 1 && !b.doc[0].last);
    assert_int_equal(documents_next(d, &b), 1);
    assert_true(b.n == 1 && b.doc[0].len == 2 && b.doc[0].last);
    documents_batch_deinit(&b);
    documents_close(d);
    free(text);
    (void)state;
}

/* ---- text to shards ------------------------------------------------------------------------------------ */

static Tokenizer *small_tokenizer(void)
{
    char       *text   = make_text();
    Tokenizer  *t      = NULL;
    const char *path[] = { in("train.txt") };
    put("train.txt", text, 100000);
    TrainConfig c = {
        .path = path, .n_path = 1, .vocab = 400, .pattern = "gpt2", .special = "<|endoftext|>", .threads = 1
    };
    if (train_tokenizer(&t, &c) < 0) fail_msg("%s", err_get());
    free(text);
    return t;
}

static int same_file(const char *a, const char *b)
{
    char  *x, *y;
    size_t n, m;
    assert_int_equal(file_read_all(a, 1 << 26, &x, &n), 0);
    assert_int_equal(file_read_all(b, 1 << 26, &y, &m), 0);
    int same = n == m && memcmp(x, y, n) == 0;
    free(x);
    free(y);
    return same;
}

/* Any bytes go in and come out; threads do not matter; equal documents are in one part. */
static void shards_hold_the_text(void **state)
{
    Tokenizer     *t    = small_tokenizer();
    char          *text = make_text();
    TokenizeResult r[2], again;
    const char    *path[] = { in("in.txt") }, *out[] = { in("one"), in("four") };
    for (int i = 0; i < TEXT; i += 50) text[i] = (char)(i * 31 / 7);
    for (int i = 0; i < TEXT - 2000; i += 700) memcpy(text + i, "<|endoftext|>", 13);
    memcpy(text + 700 * 5 + 13, text + 700 * 9 + 13, 687); /* a document twice */
    put("in.txt", text, TEXT);
    for (int k = 0; k < 2; k++) {
        TokenizeConfig c = { .text         = { .path      = path,
                                               .n_path    = 1,
                                               .format    = DOCUMENTS_TEXT, /* it has zero bytes */
                                               .separator = "<|endoftext|>" },
                             .out          = out[k],
                             .end_token    = tokenizer_eos(t),
                             .val          = 0.3,
                             .shard_tokens = 20000,
                             .threads      = k ? 4 : 1 };
        if (tokenize(t, &c, &r[k]) < 0) fail_msg("%s", err_get());
        assert_int_equal(r[k].part[0].n_doc + r[k].part[1].n_doc, (TEXT - 2000 + 699) / 700);
        assert_true(r[k].part[0].n_shard > 3 && r[k].part[1].n_doc > 100);
        assert_int_equal(tokenize(t, &c, &again), -1);
        expect("is there already");
    }
    assert_true(same_file(in("one/train/00001.bin"), in("four/train/00001.bin")));
    assert_true(same_file(in("one/val/00000.bin"), in("four/val/00000.bin")));
    assert_true(same_file(in("one/tokens.json"), in("four/tokens.json")));

    /* Decoded, both parts together hold every document of the text. */
    TokenizerScratch *s     = tokenizer_scratch_create(t);
    int64_t           bytes = 0;
    for (int part = 0; part < 2; part++) {
        Tokens  *tok;
        int64_t  bound[2];
        int32_t *id = malloc(sizeof *id * TEXT);
        assert_int_equal(tokens_open_path(&tok, DATA_TOKENS, part ? in("one/val") : in("one/train"), 400), 0);
        for (int64_t d = 0; d < tokens_documents(tok); d++) {
            const char *back;
            assert_int_equal(tokens_read_bounds(tok, d, 1, bound), 0);
            int64_t n = bound[1] - bound[0];
            assert_int_equal(tokens_read(tok, bound[0], n, id), 0);
            assert_int_equal(id[n - 1], tokenizer_eos(t));
            int64_t len = tokenizer_decode(t, s, id, n - 1, TOKENIZER_PLAIN, &back);
            bytes += len;
            assert_true(len > 0 && memmem(text, TEXT, back, (size_t)len));
        }
        tokens_close(tok);
        free(id);
    }
    assert_int_equal(bytes, r[0].part[0].text_bytes + r[0].part[1].text_bytes);
    tokenizer_scratch_destroy(s);
    tokenizer_close(t);
    free(text);
    (void)state;
}

static void note_slowly(void *arg, int64_t done, int64_t all)
{
    assert_true(done > 0 && done <= all);
    if (++*(int *)arg <= 2) usleep(1000000); /* meanwhile all slots are filled */
}

/* Threads wait for a writer that is slower than they are, and the writer never waits for them. */
static void a_slow_writer_is_waited_for(void **state)
{
    Tokenizer     *t      = small_tokenizer();
    char          *text   = make_text();
    FILE          *f      = fopen(in("much.txt"), "wb");
    const char    *path[] = { in("much.txt") };
    int            n_note = 0;
    TokenizeResult r;
    TokenizeConfig c = { .text         = { .path = path, .n_path = 1, .separator = "<|endoftext|>" },
                         .out          = in("much"),
                         .end_token    = 0,
                         .shard_tokens = 1000000,
                         .threads      = 3,
                         .note         = note_slowly,
                         .note_arg     = &n_note };
    memcpy(text + TEXT - 13, "<|endoftext|>", 13);
    for (int i = 0; i < 20; i++) assert_int_equal(fwrite(text, 1, TEXT, f), TEXT);
    assert_int_equal(fclose(f), 0);
    alarm(120); /* a test that hangs has failed */
    if (tokenize(t, &c, &r) < 0) fail_msg("%s", err_get());
    alarm(0);
    assert_true(n_note >= 20);
    tokenizer_close(t);
    free(text);
    (void)state;
}

/* A failure leaves nothing. */
static void failures_leave_nothing(void **state)
{
    Tokenizer     *t      = small_tokenizer();
    const char    *path[] = { in("a.txt"), in("l.jsonl") };
    TokenizeResult r;
    TokenizeConfig c = { .text         = { .path = path, .n_path = 2, .field = "text" },
                         .out          = in("out"),
                         .end_token    = 0,
                         .shard_tokens = 10,
                         .threads      = 2 };
    put_text("a.txt", "some text that makes several shards of ten tokens each, and then it fails");
    put_text("l.jsonl", "{\"text\": \"fine\"}\nnot fine\n");
    assert_int_equal(tokenize(t, &c, &r), -1);
    expect("l.jsonl:2: not a line of JSON");
    assert_int_equal(file_kind(in("out")), FILE_NONE);
    put_text("a.txt", "");
    c.text.n_path = 1;
    assert_int_equal(tokenize(t, &c, &r), -1);
    expect("there is no text");
    tokenizer_close(t);
    (void)state;
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(packed_streams_unpack),        CASE(folders_files_and_separators),
        CASE(separators_at_any_place),      CASE(bad_lines),
        CASE(long_documents_come_in_parts), CASE(parts_cut_no_separator),
        CASE(parts_cut_no_character),       CASE(shards_hold_the_text),
        CASE(a_slow_writer_is_waited_for),  CASE(failures_leave_nothing),
    };
    return cmocka_run_group_tests_name("documents", tests, NULL, NULL);
}
