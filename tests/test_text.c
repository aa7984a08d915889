#define _GNU_SOURCE /* asprintf, memmem */
/* Tokenizers on small files written here: every stage of encoding, decoding, saving, training, and what is
 * refused. tests/test_tokenizer.sh compares with the reference implementation on real files. */
#include "base/err.h"
#include "base/thread.h"
#include "text/merges.h"
#include "text/scan.h"
#include "text/tokenizer_impl.h"
#include "text/train.h"
#include "text/utf8.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define VOCAB      "{\"a\":0,\"b\":1,\"c\":2,\"ab\":3,\"bc\":4,\"abc\":5,\"\\u0120\":6,\"\\u0120a\":7}"
#define MERGES     "[\"a b\",[\"b\",\"c\"],\"\\u0120 a\",\"ab c\"]"
#define BYTE_LEVEL "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true}"
#define SPM_VOCAB                                                                                            \
    "{\"<unk>\":0,\"<s>\":1,\"<0xC3>\":2,\"<0xA9>\":3,\"<0xFF>\":4,\"\xe2\x96\x81\":5,\"a\":6,\"b\":7,"      \
    "\"\xe2\x96\x81"                                                                                         \
    "a\":8,\"ab\":9}"

/* Of this process: others on the machine do not count. */
static double cpu_s(void) { return (double)clock() / CLOCKS_PER_SEC; }

/* A tokenizer.json of parts; malloc'ed. */
static char *file_of(const char *added, const char *normalizer, const char *split, const char *decoder,
                     const char *model)
{
    char *text;
    int   n = asprintf(&text,
                       "{\"version\":\"1.0\",\"added_tokens\":%s,\"normalizer\":%s,\"pre_tokenizer\":%s,"
                         "\"decoder\":%s,\"model\":{\"type\":\"BPE\",%s}}",
                       added, normalizer, split, decoder, model);
    assert_true(n > 0);
    return text;
}

static Tokenizer *open_text(char *text)
{
    Tokenizer *t = NULL;
    err_clear();
    if (read_json_tokenizer(&t, "test.json", text, strlen(text)) < 0) fail_msg("%s", err_get());
    free(text);
    return t;
}

/* Ids as text, "3 2 6". */
static const char *ids_of(const Tokenizer *t, const char *text, size_t n, int flags)
{
    static char       out[1024];
    TokenizerScratch *s = tokenizer_scratch_create(t);
    const int32_t    *id;
    int64_t           n_id = tokenizer_encode(t, s, text, n, flags, &id);
    size_t            len  = 0;
    if (n_id < 0) fail_msg("%s", err_get());
    out[0] = '\0';
    for (int64_t i = 0; i < n_id; i++)
        len += (size_t)snprintf(out + len, sizeof out - len, "%s%d", i ? " " : "", id[i]);
    tokenizer_scratch_destroy(s);
    return out;
}

#define EXPECT_IDS(t, text, ids) assert_string_equal(ids_of(t, text, sizeof(text) - 1, 0), ids)

static void expect_round(const Tokenizer *t, const char *text, size_t n)
{
    TokenizerScratch *s = tokenizer_scratch_create(t);
    const int32_t    *id;
    const char       *back;
    int64_t           n_id = tokenizer_encode(t, s, text, n, TOKENIZER_FRAME, &id);
    assert_int_equal(tokenizer_decode(t, s, id, n_id, TOKENIZER_FRAME, &back), n);
    assert_memory_equal(back, text, n);
    tokenizer_scratch_destroy(s);
}

static void test_utf8(void **state)
{
    static const char *const bad[] = { "\x80", "\xc0\x80", "\xe0\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80",
                                       "\xf8", "\xc3",     "\xe2\x96" };
    uint32_t                 code;
    int                      unusual;
    for (int i = 0; i < ARRAY_LEN(bad); i++)
        assert_int_equal(utf8_next((const unsigned char *)bad[i], strlen(bad[i]), &code), 0);
    for (uint32_t c = 0; c < 0x110000; c += c < 0x3000 ? 1 : 97) {
        unsigned char b[4];
        if (c >= 0xd800 && c < 0xe000) continue;
        int n = utf8_put(b, c);
        assert_int_equal(utf8_next(b, (size_t)n, &code), n);
        assert_int_equal(code, c);
        for (int k = 1; k < n; k++) assert_int_equal(utf8_pending(b, (size_t)k), k);
        assert_int_equal(utf8_pending(b, (size_t)n), 0);
    }
    for (int b = 0; b < 256; b++) assert_int_equal(utf8_char_byte(utf8_byte_char((unsigned char)b)), b);
    assert_int_equal(utf8_valid((const unsigned char *)"abcdefghij\xff", 11, &unusual), 10);
    assert_int_equal(unusual, 0);
    utf8_valid((const unsigned char *)"\xf0\x90\xb5\x80", 4,
               &unusual); /* U+10D40, a digit since Unicode 16 */
    assert_int_equal(unusual, 1);
}

static void test_merges_by_rank(void **state)
{
    Tokenizer *t =
        open_text(file_of("[]", "null", BYTE_LEVEL, "null", "\"vocab\":" VOCAB ",\"merges\":" MERGES));
    EXPECT_IDS(t, "abc", "5");
    EXPECT_IDS(t, "bcab", "4 3");
    EXPECT_IDS(t, "ababc", "3 5");
    EXPECT_IDS(t, " a abc", "7 6 5"); /* "a b" has a lower rank than "G a" */
    EXPECT_IDS(t, "", "");
    assert_int_equal(tokenizer_size(t), 8);
    assert_int_equal(tokenizer_find(t, "bc"), 4);
    tokenizer_close(t);
}

/* One merge after the other, as the definition says: the lowest rank, then the leftmost. */
static int merge_slowly(int32_t *id, int n)
{
    static const int32_t merge[][3] = { { 0, 1, 3 }, { 1, 2, 4 }, { 6, 0, 7 }, { 3, 2, 5 } }; /* MERGES */
    for (int rank = 0; rank < ARRAY_LEN(merge);) {
        int at = 0;
        while (at + 1 < n && (id[at] != merge[rank][0] || id[at + 1] != merge[rank][1])) at++;
        if (at + 1 >= n) {
            rank++;
            continue;
        }
        id[at] = merge[rank][2];
        memmove(id + at + 1, id + at + 2, (size_t)(--n - at - 1) * sizeof *id);
        rank = 0;
    }
    return n;
}

/* A long piece goes through the heap. */
static void test_long_piece(void **state)
{
    enum { N = 3000 };
    Tokenizer *t =
        open_text(file_of("[]", "null", BYTE_LEVEL, "null", "\"vocab\":" VOCAB ",\"merges\":" MERGES));
    char     text[N];
    int32_t  want[N];
    uint32_t seed = 7;
    for (int i = 0; i < N; i++) {
        seed    = seed * 1664525 + 1013904223;
        want[i] = (int32_t)((seed >> 20) % 3);
        text[i] = "abc"[want[i]];
    }
    int               n_want = merge_slowly(want, N);
    TokenizerScratch *s      = tokenizer_scratch_create(t);
    const int32_t    *id;
    assert_int_equal(tokenizer_encode(t, s, text, N, 0, &id), n_want);
    assert_memory_equal(id, want, (size_t)n_want * sizeof *id);
    tokenizer_scratch_destroy(s);
    tokenizer_close(t);
}

static void test_added_tokens(void **state)
{
    static const char added[] = "[{\"id\":8,\"content\":\"<s>\",\"special\":true},{\"id\":9,\"content\":\"<s>"
                                "<s>\",\"special\":false},"
                                "{\"id\":10,\"content\":\"<m>\",\"lstrip\":true,\"rstrip\":true},{\"id\":11,"
                                "\"content\":\"cab\",\"single_word\":true}]";
    Tokenizer        *t =
        open_text(file_of(added, "null", BYTE_LEVEL, "null", "\"vocab\":" VOCAB ",\"merges\":" MERGES));
    EXPECT_IDS(t, "a<s>b", "0 8 1");
    EXPECT_IDS(t, "<s><s><s>", "9 8"); /* the longest of the leftmost */
    EXPECT_IDS(t, "a \n<m>  b", "0 10 1");
    EXPECT_IDS(t, "cab", "11");
    EXPECT_IDS(t, "cabc", "2 5"); /* within a word it is no token */
    assert_string_equal(ids_of(t, "a<s>b", 5, TOKENIZER_LITERAL), "0 1");
    assert_true(tokenizer_is_special(t, 8) && !tokenizer_is_special(t, 9));
    tokenizer_close(t);
}

#define SPM_NORMALIZER                                                                                       \
    "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":\"\xe2\x96\x81\"},"           \
    "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\xe2\x96\x81\"}]}"
#define SPM_DECODER                                                                                          \
    "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":\"\xe2\x96\x81\"},"  \
    "\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},"                                    \
    "{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}]}"
#define SPM_POST                                                                                             \
    "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\"}},"                      \
    "{\"Sequence\":{\"id\":\"A\"}}],\"special_tokens\":{\"<s>\":{\"id\":\"<s>\",\"ids\":[1]}}}"

static char *spm_file(void)
{
    return file_of("[{\"id\":1,\"content\":\"<s>\",\"special\":true}]", SPM_NORMALIZER, "null",
                   SPM_DECODER ",\"post_processor\":" SPM_POST,
                   "\"unk_token\":\"<unk>\",\"fuse_unk\":true,\"byte_fallback\":true,\"vocab\":" SPM_VOCAB
                   ",\"merges\":[\"\xe2\x96\x81 a\",\"a b\"]");
}

static void test_byte_fallback(void **state)
{
    Tokenizer *t = open_text(spm_file());
    EXPECT_IDS(t, "a ab", "8 8 7"); /* "_ a" before "a b" */
    EXPECT_IDS(t, "b\xc3\xa9", "5 7 2 3");
    EXPECT_IDS(t, "\xff", "5 4");
    EXPECT_IDS(t, "xyz", "5 0"); /* unknown characters in a row are one token */
    assert_string_equal(ids_of(t, "a", 1, TOKENIZER_FRAME), "1 8");
    expect_round(t, "ab a\xff b\xc3\xa9", 9);
    assert_int_equal(tokenizer_bos(t), 1);
    tokenizer_close(t);
}

/* Qwen's vocabulary has an ordinary "<s>", which begins no text. */
static void test_no_begin(void **state)
{
    static const char model[] = "\"vocab\":{\"<\":0,\"s\":1,\">\":2,\"<s\":3,\"<s>\":4,\"end\":5},"
                                "\"merges\":[\"< s\",\"<s >\"]";
    Tokenizer *t = open_text(file_of("[{\"id\":6,\"content\":\"<|endoftext|>\",\"special\":true}]", "null",
                                     BYTE_LEVEL, BYTE_LEVEL, model));
    assert_int_equal(tokenizer_find(t, "<s>"), 4);
    assert_int_equal(tokenizer_bos(t), -1);
    assert_int_equal(tokenizer_eos(t), 6);
    tokenizer_close(t);
}

/* A terminal never sees half a character. */
static void test_stream(void **state)
{
    Tokenizer      *t  = open_text(spm_file());
    TokenizerStream st = { .n_held = 0 };
    char            buf[64];
    assert_int_equal(tokenizer_stream_next(t, &st, 8, buf), 1); /* its space is dropped */
    assert_int_equal(buf[0], 'a');
    assert_int_equal(tokenizer_stream_next(t, &st, 2, buf), 0);
    assert_int_equal(tokenizer_stream_next(t, &st, 3, buf), 2);
    assert_memory_equal(buf, "\xc3\xa9", 2);
    assert_int_equal(tokenizer_stream_next(t, &st, 2, buf), 0);
    assert_int_equal(tokenizer_stream_end(&st, buf), 1);
    assert_int_equal(tokenizer_stream_next(t, &st, 8, buf), 2);
    assert_true(tokenizer_stream_next(t, &st, 99, buf) < 0);
    tokenizer_close(t);
}

/* What every behaviour makes of "a1 22b" cut at digits: pieces are seen by what merges across. */
static void test_split_behaviors(void **state)
{
    static const struct {
        const char *behavior, *ids;
        int         invert;
    } want[] = { { "Isolated", "0 3 3 1", 0 },     { "Removed", "0 1", 0 },
                 { "Removed", "3 3", 1 },          { "MergedWithPrevious", "2 3 1", 0 },
                 { "MergedWithNext", "0 3 4", 0 }, { "Contiguous", "0 5 1", 0 } };
    for (int i = 0; i < ARRAY_LEN(want); i++) {
        char split[256];
        snprintf(split, sizeof split,
                 "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[0-9]\"},\"behavior\":\"%s\",\"invert\":%s}",
                 want[i].behavior, want[i].invert ? "true" : "false");
        Tokenizer *t = open_text(file_of("[]", "null", split, "null",
                                         "\"vocab\":{\"a\":0,\"b\":1,\"a1\":2,\"1\":3,\"1b\":4,\"11\":5},"
                                         "\"merges\":[\"a 1\",\"1 b\",\"1 1\"]"));
        assert_string_equal(ids_of(t, "a11b", 4, 0), want[i].ids);
        tokenizer_close(t);
    }
}

static void test_normal_forms(void **state)
{
    Tokenizer *t = open_text(file_of("[]", "{\"type\":\"NFC\"}", "null", "null",
                                     "\"vocab\":{\"\xc3\xa9\":0,\"e\":1,\"\xcc\x81\":2,\"\xea\xb0\x81\":3,"
                                     "\"\xcc\x95\":4,\"\xe0\xa2\x98\":5},\"merges\":[]"));
    EXPECT_IDS(t, "e\xcc\x81", "0");
    EXPECT_IDS(t,
               "\xff"
               "e\xcc\x81",
               "0"); /* a malformed byte beside it changes nothing */
    EXPECT_IDS(t, "\xe1\x84\x80\xe1\x85\xa1\xe1\x86\xa8", "3"); /* Hangul */
    /* U+0898 came after Unicode 9: it keeps them apart, and stays behind U+0315. */
    EXPECT_IDS(t, "e\xe0\xa2\x98\xcc\x81", "1 5 2");
    EXPECT_IDS(t, "e\xcc\x95\xe0\xa2\x98", "1 4 5");
    tokenizer_close(t);
}

/* A long run of marks: the order of a short one, in a time that is not quadratic. */
static void test_many_marks(void **state)
{
    enum { PAIRS = 500000 };
    Tokenizer *t =
        open_text(file_of("[]", "{\"type\":\"NFC\"}", "null", "null",
                          "\"vocab\":{\"\xe1\xba\xb9\":0,\"\xcc\x81\":1,\"\xcc\xa3\":2},\"merges\":[]"));
    char *text = malloc(1 + 4 * PAIRS);
    text[0]    = 'e';
    for (int i = 0; i < PAIRS; i++) memcpy(text + 1 + 4 * i, "\xcc\x81\xcc\xa3", 4);
    assert_string_equal(ids_of(t, text, 1 + 4 * 3, 0), "0 2 2 1 1 1");
    TokenizerScratch *s = tokenizer_scratch_create(t);
    const int32_t    *id;
    double            begin_s = cpu_s();
    assert_int_equal(tokenizer_encode(t, s, text, 1 + 4 * PAIRS, 0, &id), 2 * PAIRS);
    assert_true(id[0] == 0 && id[PAIRS - 1] == 2 && id[PAIRS] == 1 && id[2 * PAIRS - 1] == 1);
    assert_true(cpu_s() - begin_s < 20);
    free(text);
    tokenizer_scratch_destroy(s);
    tokenizer_close(t);
}

static void test_save(void **state)
{
    char       dir[] = "/tmp/brim-text-XXXXXX", path[64];
    Tokenizer *t = open_text(spm_file()), *again = NULL;
    assert_non_null(mkdtemp(dir));
    assert_int_equal(tokenizer_save(t, dir), 0);
    if (tokenizer_open(&again, dir) < 0) fail_msg("%s", err_get());
    assert_true(tokenizer_hash(t) == tokenizer_hash(again));
    assert_string_equal(ids_of(again, "a ab", 4, TOKENIZER_FRAME), "1 8 8 7");
    again->merge[0] = again->merge[1];
    assert_true(tokenizer_hash(t) != tokenizer_hash(again));
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    unlink(path);
    rmdir(dir);
    tokenizer_close(again);
    tokenizer_close(t);
}

/* ---- what is refused ---- */

static void refuses(const char *text, const char *why)
{
    Tokenizer *t = NULL;
    err_clear();
    assert_true(read_json_tokenizer(&t, "bad.json", text, strlen(text)) < 0);
    assert_int_equal(err_kind(), ERR_USER);
    if (strncmp(err_get(), "bad.json", 8) != 0 || !strstr(err_get(), why))
        fail_msg("'%s' instead of '%s'", err_get(), why);
    err_clear();
}

static void test_refused(void **state)
{
    refuses("{", "bad.json:1: the file ends too early");
    refuses("{\"model\":{\"vocab\":{\"a\":0}}} x", "something follows");
    refuses("{\"model\":\n{\"vocab\":{\"a\":-1}}}", "bad.json:2: expected a whole number");
    refuses("{\"model\":{\"vocab\":{\"a\":2000000000}}}", "too large");
    refuses("{\"model\":{\"vocab\":{}}}", "vocabulary is empty");
    refuses("{\"model\":{\"vocab\":{\"\":1}}}", "vocabulary is empty");
    refuses("{\"model\":{\"vocab\":{\"a\":0,\"b\":0}}}", "id 0 belongs to 'a' and to 'b'");
    refuses("{\"model\":{\"vocab\":{\"a\":0,\"a\":1}}}", "token 'a' has two ids");
    refuses("{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a a\"]}}", "makes 'aa', which is no token");
    refuses("{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a x\"]}}", "a part that is no token");
    refuses("{\"model\":{\"vocab\":{\"a\":0,\"\":1},\"merges\":[\" a\"]}}",
            "a part that is no token"); /* a merge that makes itself */
    refuses("{\"model\":{\"type\":\"Unigram\",\"vocab\":[]}}", "model type \"Unigram\" is not supported");
    refuses("{\"model\":{\"vocab\":{\"a\":0},\"dropout\":0.1}}", "dropout");
    refuses("{\"model\":{\"vocab\":{\"\\ud800\":0}}}", "surrogate");
    refuses("{\"model\":{\"vocab\":{\"\xff\":0}}}", "not UTF-8");
    refuses("{\"normalizer\":{\"type\":\"Nmt\"},\"model\":{\"vocab\":{\"a\":0}}}",
            "normalizer: type 'Nmt' is not supported");
    refuses("{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(\"},\"behavior\":\"Removed\"},"
            "\"model\":{\"vocab\":{\"a\":0}}}",
            "missing closing parenthesis");
    refuses("{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[a[b]]\"},\"behavior\":"
            "\"Removed\"},\"model\":{\"vocab\":{\"a\":0}}}",
            "classes within classes");
    refuses("{\"added_tokens\":[{\"id\":0,\"content\":\"b\"}],\"model\":{\"vocab\":{\"a\":0}}}",
            "id 0 belongs to 'a' and to the added token 'b'");
}

static void test_bombs(void **state)
{
    enum { N = 1 << 20 };
    char *text = malloc(N + 1);
    memset(text, '[', N);
    text[N] = '\0';
    memcpy(text, "{\"model\":", 9);
    refuses(text, "nested deeper than 64");
    memset(text, '{', N);
    refuses(text, "expected a key");
    free(text);
}

/* A few kilobytes of replacements that replace each other's results would make 128 MiB of one letter. */
static void test_growing(void **state)
{
    enum { TIMES = 512 };
    static const char added[] = "[{\"id\":1,\"content\":\"a\",\"normalized\":true}]";
    char              many[TIMES + 1], *step, *steps[2];
    memset(many, 'a', TIMES);
    many[TIMES] = '\0';
    assert_true(asprintf(&step, "{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"%s\"}",
                         many) > 0);
    for (int i = 0; i < 2; i++)
        assert_true(asprintf(&steps[i], "{\"type\":\"Sequence\",\"%s\":[%s,%s,%s]}",
                             i == 0 ? "normalizers" : "decoders", step, step, step) > 0);
    char *a = file_of(added, steps[0], "null", "null", "\"vocab\":{\"b\":0}");
    char *b = file_of("[]", "null", "null", steps[1], "\"vocab\":{\"a\":0}");
    refuses(a, "added token 'a': the normalizer makes a text of more than 1048576 bytes");
    refuses(b, "the decoder makes tokens too long");
    free(a);
    free(b);
    free(step);
    for (int i = 0; i < 2; i++) free(steps[i]);
}

/* A pattern that goes back again and again fails in bounded time. */
static void test_slow_pattern(void **state)
{
    static const char *const pattern[] = { "(a+)+$", "(?:a|aa)+b", "a(?=a*b)|a" };
    static char              text[200001];
    memset(text, 'a', sizeof text);
    for (int i = 0; i < ARRAY_LEN(pattern); i++) {
        char split[128];
        snprintf(split, sizeof split,
                 "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"%s\"},\"behavior\":\"Isolated\"}", pattern[i]);
        Tokenizer *t = open_text(file_of("[]", "null", split, "null", "\"vocab\":{\"a\":0},\"merges\":[]"));
        TokenizerScratch *s = tokenizer_scratch_create(t);
        const int32_t    *id;
        text[sizeof text - 1] = 'c';
        double  begin_s       = cpu_s();
        int64_t n             = tokenizer_encode(t, s, text, sizeof text, 0, &id);
        assert_true(n >= 0 || strstr(err_get(), "takes too long"));
        assert_true(cpu_s() - begin_s < 20);
        err_clear();
        tokenizer_scratch_destroy(s);
        tokenizer_close(t);
    }
}

/* ---- training ---- */

static void test_merge_order(void **state)
{
    /* hug 10, pug 5, pun 12, bun 4, hugs 5: the usual example; ug 20, un 16, hug 15, then ties by lower ids.
     * */
    static const struct {
        const char *word;
        int64_t     count;
    } words[] = { { "hug", 10 }, { "pug", 5 }, { "pun", 12 }, { "bun", 4 }, { "hugs", 5 } };
    static const char *const want[] = { "ug", "un", "hug", "pun", "pug", "hugs", "bun" };
    Words                    w;
    Merges                   m;
    MergesConfig             c = { .words = &w, .most = 256 + ARRAY_LEN(want) };
    assert_int_equal(words_init(&w), 0);
    for (int i = 0; i < ARRAY_LEN(words); i++)
        words_add(&w, (const unsigned char *)words[i].word, strlen(words[i].word), words[i].count);
    for (int i = 0; i < 256; i++) c.byte_symbol[i] = i;
    assert_int_equal(merges_find(&m, &c), 0);
    assert_int_equal(m.n_merge, ARRAY_LEN(want));
    for (int i = 0; i < ARRAY_LEN(want); i++) {
        StrSpan s = m.token[m.merge[i].id];
        assert_int_equal(s.len, strlen(want[i]));
        assert_memory_equal(m.pool.data + s.at, want[i], s.len);
    }
    merges_deinit(&m);
    words_deinit(&w);
}

static Tokenizer *train_on(const char *path, int threads)
{
    Tokenizer  *t = NULL;
    TrainConfig c = { .path    = &path,
                      .n_path  = 1,
                      .vocab   = 700,
                      .pattern = "llama3",
                      .special = "<|endoftext|>,<pad>",
                      .threads = threads };
    if (train_tokenizer(&t, &c) < 0) fail_msg("%s", err_get());
    return t;
}

static void test_train(void **state)
{
    char     path[] = "/tmp/brim-text-XXXXXX";
    int      fd     = mkstemp(path);
    FILE    *f      = fdopen(fd, "wb");
    uint32_t seed   = 3;
    for (int i = 0; i < 400000; i++) {
        seed = seed * 1664525 + 1013904223;
        fputs(i % 60 == 59     ? "\n"
              : seed >> 27 < 6 ? " "
                               : (const char *[]){ "th", "e", "in", "g", "\xc3\xa9", "x", "on",
                                                   "<|endoftext|>" }[(seed >> 20) % 8],
              f);
    }
    fclose(f);
    Tokenizer *one = train_on(path, 1), *four = train_on(path, 4);
    assert_true(tokenizer_hash(one) == tokenizer_hash(four));
    assert_int_equal(tokenizer_size(one), 700);
    assert_int_equal(tokenizer_find(one, "<pad>"), 1);
    assert_int_equal(tokenizer_eos(one), 0);
    for (int32_t i = 2; i < 700; i++) {
        size_t      len;
        const char *p = tokenizer_token(one, i, &len);
        assert_null(memmem(p, len, "<|end", 5)); /* special tokens are no text */
    }
    char all[512];
    for (int i = 0; i < 512; i++) all[i] = (char)(i * 37);
    expect_round(one, all, sizeof all);
    expect_round(one, "thing<|endoftext|>on\xc3", 21);
    tokenizer_close(one);
    tokenizer_close(four);
    unlink(path);
}

/* ---- threads ---- */

typedef struct {
    const Tokenizer *t;
    Thread           thread;
    char             ids[1024];
} Reader;

static void read_body(void *arg)
{
    Reader           *r = arg;
    TokenizerScratch *s = tokenizer_scratch_create(r->t);
    const int32_t    *id;
    for (int k = 0; k < 2000; k++) {
        int64_t n   = tokenizer_encode(r->t, s, "abc ab bcab a", 13, 0, &id);
        size_t  len = 0;
        for (int64_t i = 0; i < n; i++)
            len += (size_t)snprintf(r->ids + len, sizeof r->ids - len, "%d ", id[i]);
    }
    tokenizer_scratch_destroy(s);
}

static void test_threads(void **state)
{
    Reader     r[4] = { 0 };
    Tokenizer *t =
        open_text(file_of("[]", "null", BYTE_LEVEL, "null", "\"vocab\":" VOCAB ",\"merges\":" MERGES));
    for (int i = 0; i < 4; i++) {
        r[i].t = t;
        assert_int_equal(thread_start(&r[i].thread, "reader", read_body, &r[i]), 0);
    }
    for (int i = 0; i < 4; i++) thread_join(&r[i].thread);
    for (int i = 0; i < 4; i++) assert_string_equal(r[i].ids, "5 6 3 6 4 3 7 ");
    tokenizer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_utf8),          cmocka_unit_test(test_merges_by_rank),
        cmocka_unit_test(test_long_piece),    cmocka_unit_test(test_added_tokens),
        cmocka_unit_test(test_byte_fallback), cmocka_unit_test(test_no_begin),
        cmocka_unit_test(test_stream),        cmocka_unit_test(test_split_behaviors),
        cmocka_unit_test(test_normal_forms),  cmocka_unit_test(test_many_marks),
        cmocka_unit_test(test_save),          cmocka_unit_test(test_refused),
        cmocka_unit_test(test_bombs),         cmocka_unit_test(test_growing),
        cmocka_unit_test(test_slow_pattern),  cmocka_unit_test(test_merge_order),
        cmocka_unit_test(test_train),         cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
