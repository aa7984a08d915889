/* Shards and sources: round trips, refusals by name, splits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/err.h"
#include "base/fault.h"
#include "base/file.h"
#include "data/check.h"
#include "file/shard.h"
#include "file/shard_write.h"
#include "data/tokens.h"
#include "case_folder.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- Files --------------------------------------------------------------------------------------------- */

static size_t read_file(const char *path, unsigned char *buf, size_t max)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    size_t n = fread(buf, 1, max, f);
    fclose(f);
    return n;
}

static void write_shard(const char *path, int64_t vocab, const int32_t *tok, int64_t n)
{
    ShardWriter *w = shard_write_begin(path, vocab);
    assert_non_null(w);
    int64_t cut = n / 3;
    assert_int_equal(shard_write_add(w, tok, cut), 0);
    assert_int_equal(shard_write_add(w, tok + cut, n - cut), 0);
    assert_int_equal(shard_write_publish(&w), 0);
    assert_null(w);
}

/* llm.c's format, made here by its description. */
static void write_llmc(const char *path, int32_t magic, int32_t version, int32_t count, const uint16_t *tok,
                       size_t n)
{
    unsigned char bytes[4096];
    int32_t       header[256] = { magic, version, count };
    assert_true(sizeof header + 2 * n <= sizeof bytes);
    memcpy(bytes, header, sizeof header);
    memcpy(bytes + sizeof header, tok, 2 * n);
    write_file(path, bytes, sizeof header + 2 * n);
}

static void ramp(int32_t *tok, int64_t n, int64_t vocab)
{
    for (int64_t i = 0; i < n; i++) tok[i] = (int32_t)((i * 7919 + i / 13) % vocab);
}

/* The pending message has both texts and is the user's fault; clears it. */
static void expect_user(const char *a, const char *b)
{
    if (!strstr(err_get(), a) || !strstr(err_get(), b))
        fail_msg("message '%s' lacks '%s' or '%s'", err_get(), a, b);
    assert_int_equal(err_kind(), ERR_USER);
    err_clear();
}

static Recipe recipe_of(DataKind kind, const char *train, int64_t vocab)
{
    Recipe r;
    memset(&r, 0, sizeof r);
    r.seed              = 42;
    r.model.vocab       = vocab;
    r.data.kind         = kind;
    r.data.val_fraction = 0.1;
    snprintf(r.data.train, sizeof r.data.train, "%s", train);
    return r;
}

static Tokens *open_source(const Recipe *r, int validation)
{
    Tokens *s = NULL;
    if (tokens_open(&s, r, validation) < 0) fail_msg("%s", err_get());
    return s;
}

static void refuse_source(const Recipe *r, int validation, const char *a, const char *b)
{
    Tokens *s = NULL;
    assert_int_equal(tokens_open(&s, r, validation), -1);
    assert_null(s);
    expect_user(a, b);
}

/* ---- Shards -------------------------------------------------------------------------------------------- */

static void shard_round_trip(void **state)
{
    enum { N = 40000 };
    static int32_t tok[N], back[N];
    const int64_t  vocab[] = { 2, 256, 65536, 65537, 151936, INT64_C(1) << 31 };
    for (int k = 0; k < ARRAY_LEN(vocab); k++) {
        const char *path = in(state, "a.bin");
        ramp(tok, N, vocab[k]);
        tok[N - 1] = (int32_t)(vocab[k] - 1);
        write_shard(path, vocab[k], tok, N);
        ShardHeader h;
        int         fd = shard_open(&h, path);
        assert_true(fd >= 0);
        close(fd);
        assert_int_equal(h.kind, SHARD_BRIM);
        assert_int_equal(h.n_token, N);
        assert_int_equal(h.vocab, vocab[k]);
        assert_int_equal(h.token_bytes, vocab[k] <= 65536 ? 2 : 4);
        assert_int_equal(shard_verify(path, INT64_C(1) << 31), 0);

        Recipe r            = recipe_of(DATA_TOKENS, path, vocab[k]);
        r.data.val_fraction = 0;
        Tokens *s           = open_source(&r, 0);
        assert_int_equal(tokens_len(s), N);
        assert_int_equal(tokens_read(s, 0, N, back), 0);
        assert_memory_equal(tok, back, sizeof tok);
        assert_int_equal(tokens_read(s, N - 3, 3, back), 0);
        assert_memory_equal(tok + N - 3, back, 12);
        assert_int_equal(tokens_verify(s), 0);
        tokens_close(s);
    }
}

static void shard_bytes_are_fixed(void **state)
{
    /* docs/formats.md, byte for byte: another program must be able to write and read these. */
    const unsigned char want[] = { 'B', 'R', 'I', 'M', 'T', 'O', 'K', '1', 1, 0, 0, 0,
                                   2,   0,   0,   0,   3,   0,   0,   0,   0, 0, 0, 0 };
    const int32_t       tok[]  = { 1, 515, 50256 };
    unsigned char       got[128];
    const char         *path = in(state, "a.bin");
    write_shard(path, 50257, tok, 3);
    assert_int_equal(read_file(path, got, sizeof got), SHARD_HEADER_BYTES + 6);
    assert_memory_equal(got, want, sizeof want);
    const unsigned char vocab[] = { 0x51, 0xc4, 0, 0 }, payload[] = { 1, 0, 3, 2, 0x50, 0xc4 };
    assert_memory_equal(got + 32, vocab, 4);
    assert_memory_equal(got + 64, payload, 6);
    for (int i = 36; i < 56; i++) assert_int_equal(got[i], 0);
    /* xxhash64 of the six payload bytes and of the first 56, computed by a second implementation from the
     * description of xxhash. */
    const unsigned char hash[]  = { 0x12, 0x23, 0xcc, 0xc0, 0x8f, 0x5f, 0xb1, 0x57 },
                        check[] = { 0x2c, 0x53, 0xc8, 0xab, 0x15, 0xd5, 0xc5, 0x01 };
    assert_memory_equal(got + 24, hash, 8);
    assert_memory_equal(got + 56, check, 8);
}

static void shard_refuses_truncation(void **state)
{
    int32_t       tok[300];
    unsigned char bytes[SHARD_HEADER_BYTES + 600];
    const char   *whole = in(state, "whole.bin"), *path = in(state, "cut.bin");
    ramp(tok, 300, 1000);
    write_shard(whole, 1000, tok, 300);
    assert_int_equal(read_file(whole, bytes, sizeof bytes), sizeof bytes);
    for (size_t n = 0; n < sizeof bytes; n++) {
        write_file(path, bytes, n);
        ShardHeader h;
        assert_int_equal(shard_open(&h, path), -1);
        expect_user("cut.bin", "truncated");
    }
    unsigned char more[sizeof bytes + 2] = { 0 };
    memcpy(more, bytes, sizeof bytes);
    for (size_t extra = 1; extra <= 2; extra++) {
        ShardHeader h;
        write_file(path, more, sizeof bytes + extra);
        assert_int_equal(shard_open(&h, path), -1);
        expect_user("cut.bin", "bytes");
    }
}

static void shard_refuses_every_flip(void **state)
{
    enum { N = 50 };
    int32_t       tok[N];
    unsigned char bytes[SHARD_HEADER_BYTES + 2 * N];
    const char   *whole = in(state, "whole.bin"), *path = in(state, "flip.bin");
    ramp(tok, N, 1000);
    write_shard(whole, 1000, tok, N);
    assert_int_equal(read_file(whole, bytes, sizeof bytes), sizeof bytes);
    for (size_t i = 0; i < sizeof bytes; i++) {
        for (int bit = 0; bit < 8; bit++) {
            ShardHeader h;
            bytes[i] ^= (unsigned char)(1 << bit);
            write_file(path, bytes, sizeof bytes);
            bytes[i] ^= (unsigned char)(1 << bit);
            int fd = shard_open(&h, path);
            assert_int_equal(fd >= 0, i >= SHARD_HEADER_BYTES); /* a damaged header is seen on opening */
            if (fd >= 0) close(fd);
            err_clear();
            assert_int_equal(shard_verify(path, INT64_C(1) << 31), -1); /* and every damage on verifying */
            expect_user("flip.bin", i < 8 ? "not a token shard" : i < 12 ? "version" : "");
        }
    }
}

/* Headers whose checksum is right and whose contents are not. */
static void shard_refuses_lies(void **state)
{
    const struct {
        ShardHeader h;
        const char *what;
    } lie[] = {
        { { .token_bytes = 3, .n_token = 4, .vocab = 10 }, "3 bytes per token" },
        { { .token_bytes = 0, .n_token = 4, .vocab = 10 }, "0 bytes per token" },
        { { .token_bytes = 2, .n_token = 4, .vocab = 0 }, "vocabulary of 0" },
        { { .token_bytes = 2, .n_token = 4, .vocab = 65537 }, "vocabulary of 65537" },
        { { .token_bytes = 4, .n_token = 4, .vocab = 0x80000001 }, "vocabulary of 2147483649" },
        { { .token_bytes = 2, .n_token = -1, .vocab = 10 }, "truncated" },
        { { .token_bytes = 2, .n_token = INT64_MIN, .vocab = 10 }, "truncated" },
        { { .token_bytes = 2, .n_token = INT64_MAX, .vocab = 10 }, "truncated" },
        { { .token_bytes = 4, .n_token = INT64_C(1) << 62, .vocab = 10 },
          "truncated" }, /* 4 * 2^62 wraps to 0 */
        { { .token_bytes = 2, .n_token = 5, .vocab = 10 }, "truncated" },
        { { .token_bytes = 2, .n_token = 3, .vocab = 10 }, "after its last token" },
    };
    for (int i = 0; i < ARRAY_LEN(lie); i++) {
        unsigned char bytes[SHARD_HEADER_BYTES + 8] = { 0 };
        ShardHeader   h;
        shard_format(&lie[i].h, bytes);
        assert_int_equal(shard_parse(&h, "lie", bytes, sizeof bytes, sizeof bytes), -1);
        expect_user("lie", lie[i].what);
    }
    (void)state;
}

static void shard_reads_llmc(void **state)
{
    const uint16_t tok[] = { 50256, 1, 2, 3, 65535 };
    int32_t        back[5];
    const char    *path = in(state, "llmc.bin");
    write_llmc(path, 20240520, 1, 5, tok, 5);
    Recipe r            = recipe_of(DATA_TOKENS, path, 65536);
    r.data.val_fraction = 0;
    Tokens *s           = open_source(&r, 0);
    assert_int_equal(tokens_len(s), 5);
    assert_int_equal(tokens_read(s, 0, 5, back), 0);
    for (int i = 0; i < 5; i++) assert_int_equal(back[i], tok[i]);
    tokens_close(s);

    /* The same file for a smaller vocabulary opens, and fails where the bad token is. */
    r.model.vocab = 65535;
    s             = open_source(&r, 0);
    assert_int_equal(tokens_read(s, 0, 5, back), -1);
    expect_user("token 4 is 65535", "model.vocab is 65535: 65536 or more would do");
    tokens_close(s);
    r.model.vocab = 50257;
    s             = open_source(&r, 0);
    assert_int_equal(tokens_read(s, 0, 4, back), 0);
    assert_int_equal(tokens_read(s, 3, 2, back), -1);
    expect_user("llmc.bin: token 4 is 65535", "50257");
    assert_int_equal(tokens_verify(s), -1);
    expect_user("token 4 is 65535", "");
    tokens_close(s);

    write_llmc(path, 20240520, 2, 5, tok, 5);
    refuse_source(&r, 0, "llmc.bin", "version 2");
    write_llmc(path, 20240520, 1, -5, tok, 5);
    refuse_source(&r, 0, "llmc.bin", "-5 tokens");
    write_llmc(path, 20240520, 1, 6, tok, 5);
    refuse_source(&r, 0, "llmc.bin", "truncated");
    write_llmc(path, 20240520, 1, 4, tok, 5);
    refuse_source(&r, 0, "llmc.bin", "after its last token");
    write_llmc(path, 20240521, 1, 5, tok, 5);
    refuse_source(&r, 0, "llmc.bin", "not a token shard");
    assert_int_equal(truncate(path, 0), 0);
    refuse_source(&r, 0, "llmc.bin", "truncated");
}

static void writer_leaves_nothing_behind(void **state)
{
    int32_t      tok[] = { 1, 2, 3 }, bad[] = { 4, 10 };
    const char  *path = in(state, "w.bin");
    ShardWriter *w    = shard_write_begin(path, 10);
    assert_int_equal(shard_write_add(w, tok, 3), 0);
    assert_int_equal(shard_write_add(w, bad, 2), -1);
    expect_user("token 4 is 10", "w.bin");
    shard_write_discard(&w);
    shard_write_discard(&w);
    bad[1] = -1;
    w      = shard_write_begin(path, 10);
    assert_int_equal(shard_write_add(w, bad, 2), -1);
    expect_user("token 1 is -1", "w.bin");
    shard_write_discard(&w);
    assert_int_equal(rmdir((const char *)*state), 0); /* neither the shard nor a temporary file */
    assert_int_equal(mkdir((const char *)*state, 0700), 0);
    assert_null(shard_write_begin(in(state, "no/such/folder.bin"), 10));
    assert_non_null(strstr(err_get(), "no/such"));
}

/* An old shard survives a failed write of its successor. */
static void writer_fails_safely(void **state)
{
    int32_t       tok[] = { 1, 2, 3 }, other[] = { 4, 5, 6 };
    const FaultOp op[] = { FAULT_WRITE, FAULT_FSYNC, FAULT_RENAME };
    const char   *path = in(state, "w.bin");
    write_shard(path, 10, tok, 3);
    for (int i = 0; i < ARRAY_LEN(op); i++) {
        ShardWriter *w = shard_write_begin(path, 10);
        assert_non_null(w);
        fault_arm(op[i], 1, 1);
        int rc = shard_write_add(w, other, 3);
        if (rc == 0) rc = shard_write_publish(&w);
        fault_disarm();
        assert_int_equal(rc, -1);
        assert_non_null(strstr(err_get(), "w.bin"));
        err_clear();
        shard_write_discard(&w);
        assert_int_equal(shard_verify(path, INT64_C(1) << 31), 0);
        int32_t back[3];
        Recipe  r           = recipe_of(DATA_TOKENS, path, 10);
        r.data.val_fraction = 0;
        Tokens *s           = open_source(&r, 0);
        assert_int_equal(tokens_read(s, 0, 3, back), 0);
        assert_memory_equal(back, tok, sizeof tok);
        tokens_close(s);
    }
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir((const char *)*state), 0);
    assert_int_equal(mkdir((const char *)*state, 0700), 0);
}

/* ---- Sources ------------------------------------------------------------------------------------------- */

static void source_joins_a_folder(void **state)
{
    enum { N = 5000 };
    int32_t       tok[N], back[N];
    const int64_t cut[] = { 0, 1, 1, 700, 2500, 2501, N }; /* shards of 1, 0, 699, 1800, 1 and 2499 tokens */
    ramp(tok, N, 60000);
    for (int i = ARRAY_LEN(cut) - 2; i >= 0; i--) { /* written last first: the order is that of the names */
        char name[32];
        snprintf(name, sizeof name, "s_%02d.bin", i);
        write_shard(in(state, name), i % 2 ? 60000 : 70000, tok + cut[i], cut[i + 1] - cut[i]);
    }
    write_file(in(state, "readme.txt"), "x", 1);
    write_file(in(state, ".hidden.bin"), "x", 1);
    Recipe  r = recipe_of(DATA_TOKENS, *state, 70000);
    Tokens *s = open_source(&r, 0), *v = open_source(&r, 1);
    assert_int_equal(tokens_len(s), 4500);
    assert_int_equal(tokens_len(v), 500);
    assert_int_equal(tokens_read(s, 0, 4500, back), 0);
    assert_int_equal(tokens_read(v, 0, 500, back + 4500), 0);
    assert_memory_equal(tok, back, sizeof tok);
    for (int64_t at = 0; at + 60 <= 4500; at += 7) {
        assert_int_equal(tokens_read(s, at, 60, back), 0);
        assert_memory_equal(tok + at, back, 60 * sizeof *tok);
    }
    tokens_close(s);
    tokens_close(v);
    r.model.vocab = 69999;
    refuse_source(&r, 0, "s_00.bin", "70000");
    snprintf(r.data.train, sizeof r.data.train, "%s/none", (const char *)*state);
    refuse_source(&r, 0, "data.train", "No such file");
    assert_int_equal(mkdir(r.data.train, 0700), 0);
    refuse_source(&r, 0, "data.train", "no *.bin files");
}

static void write_bytes(const char *path, const void *head, size_t n_head, const void *body, size_t n_body)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(head, 1, n_head, f), n_head);
    assert_int_equal(fwrite(body, 1, n_body, f), n_body);
    assert_int_equal(fclose(f), 0);
}

static void expect_ids(const Recipe *r, const int32_t *want, int64_t n)
{
    Tokens *s;
    int32_t got[8];
    if (tokens_open(&s, r, 0) < 0) fail_msg("%s", err_get());
    assert_int_equal(tokens_len(s), n);
    assert_int_equal(tokens_read(s, 0, n, got), 0);
    assert_memory_equal(got, want, sizeof *got * (size_t)n);
    tokens_close(s);
}

/* llm.c's shards of Llama 3 have another number and ids of 4 bytes. */
static void shard_reads_llama3(void **state)
{
    int32_t       head[256] = { 20240801, 7, 5 };
    const int32_t tok[]     = { 128000, 1, 2, 70000, 128255 };
    const char   *path      = in(state, "llama3.bin");
    Recipe        r         = recipe_of(DATA_TOKENS, path, 128256);
    r.data.val_fraction     = 0;
    write_bytes(path, head, sizeof head, tok, sizeof tok);
    expect_ids(&r, tok, 5);
    head[1] = 1;
    write_bytes(path, head, sizeof head, tok, sizeof tok);
    refuse_source(&r, 0, "llama3.bin", "version 1, this program reads version 7");
}

static void write_npy(const char *path, const char *text, const void *body, size_t n_body)
{
    char head[128];
    memset(head, ' ', sizeof head);
    memcpy(head, "\x93NUMPY\1\0\x76", 9);
    head[9] = 0;
    memcpy(head + 10, text, strlen(text));
    head[127] = '\n';
    write_bytes(path, head, sizeof head, body, n_body);
}

/* A header of NumPy is no token: arrays are read by both kinds, others are refused. */
static void shard_reads_npy(void **state)
{
    const uint16_t narrow[] = { 1, 2, 3, 500, 65535 };
    const int32_t  wide[]   = { 1, 2, 3, 500, 65535 };
    const char    *path     = in(state, "x.npy");
    DataKind       kind[]   = { DATA_TOKENS, DATA_UINT16 };
    for (int k = 0; k < 2; k++) {
        Recipe r            = recipe_of(kind[k], path, 65536);
        r.data.val_fraction = 0;
        write_npy(path, "{'descr': '<u2', 'fortran_order': False, 'shape': (5,), }", narrow, sizeof narrow);
        expect_ids(&r, wide, 5);
        write_npy(path, "{'descr': '<i4', 'fortran_order': False, 'shape': (5,), }", wide, sizeof wide);
        expect_ids(&r, wide, 5);
        write_npy(path, "{'descr': '<u2', 'fortran_order': False, 'shape': (6,), }", narrow, sizeof narrow);
        refuse_source(&r, 0, "x.npy", "truncated");
        write_npy(path, "{'descr': '<i8', 'fortran_order': False, 'shape': (5,), }", narrow, sizeof narrow);
        refuse_source(&r, 0, "x.npy", "'<i8'");
        write_npy(path, "{'descr': '<u2', 'fortran_order': False, 'shape': (5, 1), }", narrow, sizeof narrow);
        refuse_source(&r, 0, "x.npy", "several dimensions");
        write_npy(path, "{}", narrow, sizeof narrow);
        refuse_source(&r, 0, "x.npy", "not an array of token ids");
        write_bytes(path, "\x93NUMPY\1\0\xff\xff", 10, narrow, sizeof narrow);
        refuse_source(&r, 0, "x.npy", "truncated");
    }
}

/* A bit of the payload that leaves its id in the vocabulary: only the checksum tells, and only where it is
 * looked at. */
static void check_finds_damage(void **state)
{
    static int32_t tok[5000];
    const char    *good = in(state, "good.bin");
    char           bad[RECIPE_STR];
    ramp(tok, 5000, 1000);
    write_shard(good, 1024, tok, 5000);
    snprintf(bad, sizeof bad, "%s", in(state, "bad.bin"));
    tok[4000] ^= 1;
    write_shard(bad, 1024, tok, 5000);
    tok[4000] ^= 1;
    FILE *f = fopen(bad, "r+b");
    assert_non_null(f);
    uint16_t id = (uint16_t)tok[4000];
    assert_int_equal(fseek(f, SHARD_HEADER_BYTES + 4000 * 2, SEEK_SET), 0);
    assert_int_equal(fwrite(&id, sizeof id, 1, f), 1);
    fclose(f);

    Recipe r        = recipe_of(DATA_TOKENS, in(state, "good.bin"), 1024);
    r.model.context = 8;
    r.step_tokens   = 64;
    snprintf(r.data.val, sizeof r.data.val, "%s", bad);
    Tokens *s = open_source(&r, 0), *v = open_source(&r, 1);
    assert_int_equal(tokens_bytes(v), 10000);
    assert_int_equal(data_check(&r, s, NULL), 0);
    assert_int_equal(data_check(&r, s, v), -1);
    expect_user("bad.bin", "checksum");
    r.data.verify = VERIFY_FALSE;
    assert_int_equal(data_check(&r, s, v), 0);
    tokens_close(s);
    tokens_close(v);
}

/* More shards than descriptors are kept open for. */
static void source_joins_many_shards(void **state)
{
    enum { N = 600 };
    int32_t tok[2 * N], back[2 * N];
    ramp(tok, 2 * N, 1000);
    for (int i = 0; i < N; i++) {
        char name[32];
        snprintf(name, sizeof name, "%04d.bin", i);
        write_shard(in(state, name), 1000, tok + 2 * i, 2);
    }
    Recipe r            = recipe_of(DATA_TOKENS, *state, 1000);
    r.data.val_fraction = 0;
    Tokens *s           = open_source(&r, 0);
    assert_int_equal(tokens_read(s, 0, 2 * N, back), 0);
    assert_memory_equal(tok, back, sizeof tok);
    assert_int_equal(truncate(in(state, "0599.bin"), 66), 0);
    assert_int_equal(tokens_read(s, 2 * N - 4, 2, back), 0);
    assert_int_equal(tokens_read(s, 2 * N - 4, 4, back), -1);
    assert_non_null(strstr(err_get(), "0599.bin"));
    err_clear();
    write_shard(in(state, "0599.bin"), 1000, tok, 9); /* replaced by another one */
    assert_int_equal(tokens_read(s, 2 * N - 4, 4, back), -1);
    assert_non_null(strstr(err_get(), "0599.bin"));
    err_clear();
    assert_int_equal(unlink(in(state, "0599.bin")), 0);
    assert_int_equal(tokens_read(s, 2 * N - 4, 4, back), -1);
    assert_non_null(strstr(err_get(), "0599.bin"));
    tokens_close(s);
}

static void source_splits_exactly(void **state)
{
    unsigned char text[1000];
    const double  fraction[] = { 0, 0.002, 0.1, 0.5, 0.999 };
    int32_t       back[1000];
    const char   *path = in(state, "t.txt");
    for (int i = 0; i < 1000; i++) text[i] = (unsigned char)i;
    write_file(path, text, sizeof text);
    Recipe r = recipe_of(DATA_TEXT, path, 300);
    for (int i = 0; i < ARRAY_LEN(fraction); i++) {
        r.data.val_fraction = fraction[i];
        Tokens *s           = open_source(&r, 0);
        int64_t n           = tokens_len(s);
        assert_int_equal(n, 1000 - (int64_t)(1000 * fraction[i]));
        assert_int_equal(tokens_read(s, 0, n, back), 0);
        tokens_close(s);
        if (n == 1000) {
            refuse_source(&r, 1, "data.val_fraction", "validation");
        } else {
            s = open_source(&r, 1);
            assert_int_equal(tokens_len(s), 1000 - n);
            assert_int_equal(tokens_read(s, 0, 1000 - n, back + n), 0);
            tokens_close(s);
        }
        for (int k = 0; k < 1000; k++) assert_int_equal(back[k], text[k]);
    }
    r.data.val_fraction = 1;
    refuse_source(&r, 0, "data.val_fraction", "training");
    /* A validation file of its own: the training file is used whole. */
    write_file(in(state, "v.txt"), "validation", 10);
    snprintf(r.data.val, sizeof r.data.val, "%s", in(state, "v.txt"));
    Tokens *s = open_source(&r, 0), *v = open_source(&r, 1);
    assert_int_equal(tokens_len(s), 1000);
    assert_int_equal(tokens_len(v), 10);
    assert_non_null(strstr(tokens_name(v), "data.val: "));
    tokens_close(s);
    tokens_close(v);
    write_file(in(state, "v.txt"), "", 0);
    refuse_source(&r, 1, "data.val", "empty");
    unlink(in(state, "v.txt"));
    refuse_source(&r, 1, "data.val", "No such file");
    r.model.vocab = 255;
    refuse_source(&r, 0, "model.vocab", "256");
    r.model.vocab = 256;
    snprintf(r.data.train, sizeof r.data.train, "%s", (const char *)*state);
    refuse_source(&r, 0, "data.train", "not a regular file");
    r.data.train[0] = '\0';
    refuse_source(&r, 0, "data.train", "no file");
}

static void source_random_is_uniform_and_fixed(void **state)
{
    enum { N = 100000, V = 10 };
    static int32_t a[N], b[N];
    Recipe         r = recipe_of(DATA_RANDOM, "", V);
    Tokens        *s = open_source(&r, 0), *v = open_source(&r, 1);
    int64_t        count[V] = { 0 };
    assert_int_equal(tokens_read(s, 5, N, a), 0);
    for (int i = 0; i < N; i++) {
        assert_true(a[i] >= 0 && a[i] < V);
        count[a[i]]++;
    }
    /* 100000 draws of probability 1/10: standard deviation 95; six of them. */
    for (int i = 0; i < V; i++) assert_true(llabs(count[i] - N / V) < 570);
    for (int64_t at = 0; at < 1000; at++) { /* any window sees the same sequence */
        assert_int_equal(tokens_read(s, 5 + at, at % 9, b), 0);
        assert_memory_equal(a + at, b, sizeof *a * (size_t)(at % 9));
    }
    assert_int_equal(tokens_read(v, 5, N, b), 0);
    assert_memory_not_equal(a, b, sizeof a);
    assert_int_equal(tokens_read(s, tokens_len(s) - 4, 4, b), 0);
    tokens_close(v);
    r.seed = 43;
    v      = open_source(&r, 0);
    assert_int_equal(tokens_read(v, 5, N, b), 0);
    assert_memory_not_equal(a, b, sizeof a);
    tokens_close(v);
    tokens_close(s);
    (void)state;
}

static void source_reports_io_errors(void **state)
{
    int32_t     back[100];
    const char *path = in(state, "t.txt");
    write_file(path, "0123456789", 10);
    Recipe  r = recipe_of(DATA_TEXT, path, 256);
    Tokens *s = NULL;
    fault_arm(FAULT_OPEN, 1, 0);
    assert_int_equal(tokens_open(&s, &r, 0), -1);
    assert_non_null(strstr(err_get(), "t.txt"));
    err_clear();
    fault_disarm();
    s = open_source(&r, 0);
    fault_arm(FAULT_READ, 2, 0);
    assert_int_equal(tokens_read(s, 0, 5, back), 0);
    assert_int_equal(tokens_read(s, 0, 5, back), -1);
    assert_non_null(strstr(err_get(), "t.txt"));
    assert_int_equal(err_kind(), ERR_RUN);
    err_clear();
    fault_disarm();
    assert_int_equal(truncate(path, 5), 0);
    assert_int_equal(tokens_read(s, 0, 5, back), 0);
    assert_int_equal(tokens_read(s, 4, 5, back), -1);
    assert_non_null(strstr(err_get(), "shorter"));
    tokens_close(s);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, folder_setup, folder_teardown)

/* A file that became shorter ends where it ends, wherever reading began. */
static void short_file_says_where_it_ends(void **state)
{
    char path[] = "/tmp/brim_short_XXXXXX", buf[64];
    int  fd     = mkstemp(path);
    (void)state;
    assert_true(fd >= 0 && write(fd, "0123456789", 10) == 10);
    for (int at = 0; at < 300; at += 99) {
        assert_int_equal(file_read_at(fd, "short", buf, sizeof buf, at), -1);
        assert_string_equal(err_get(), "short: ends at byte 10: the file became shorter while it was in use");
        err_clear();
    }
    close(fd);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(shard_round_trip),
        CASE(shard_bytes_are_fixed),
        CASE(shard_refuses_truncation),
        CASE(shard_refuses_every_flip),
        CASE(shard_refuses_lies),
        CASE(shard_reads_llmc),
        CASE(shard_reads_llama3),
        CASE(shard_reads_npy),
        CASE(writer_leaves_nothing_behind),
        CASE(writer_fails_safely),
        CASE(source_joins_a_folder),
        CASE(check_finds_damage),
        CASE(source_joins_many_shards),
        CASE(source_splits_exactly),
        CASE(source_random_is_uniform_and_fixed),
        CASE(source_reports_io_errors),
        cmocka_unit_test(short_file_says_where_it_ends),
    };
    return cmocka_run_group_tests_name("data", tests, NULL, NULL);
}
