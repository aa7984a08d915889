/* Fuzz target: the older files of a tokenizer. A first byte 'r': ranks as tiktoken has them. Else a
 * vocabulary in JSON up to a zero byte, then merges in text. Built with libFuzzer; the corpus is beside it.
 *
 * What is refused is refused for a reason that names the file. What is accepted encodes and decodes any text.
 *
 * sources: src/base/err.c src/base/arena.c src/base/mem.c src/base/fault.c src/base/log.c src/base/clock.c
 * src/base/file.c src/base/str.c src/text/[a-l]*.c src/text/n*.c src/text/p*.c src/text/r*.c src/text/s*.c
 * src/text/to*.c src/text/u*.c src/text/write.c */
#include "base/err.h"
#include "text/tokenizer_impl.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static int read_any(Tokenizer **t, const char *p, size_t n)
{
    if (p[0] == 'r') return read_ranks(t, "fuzz", p + 1, n - 1);
    const char *end    = memchr(p, '\0', n);
    size_t      cut    = end ? (size_t)(end - p) : n;
    ReadFile    vocab  = { .path = "fuzz vocab", .data = p, .size_bytes = cut };
    ReadFile    merges = { .path = "fuzz merges", .data = p + cut, .size_bytes = n - cut };
    if (end) merges.data++, merges.size_bytes--;
    return read_vocab_merges(t, &vocab, &merges);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const char sample[] = "Hello  the caf\xc3\xa9 aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab\xff<|endoftext|>";
    Tokenizer        *t        = NULL;
    const int32_t    *ids;
    const char       *text;
    if (n == 0) return 0;
    err_clear();
    if (read_any(&t, (const char *)data, n) < 0) {
        CHECK(err_kind() == ERR_USER && strstr(err_get(), "fuzz"), "a refusal without a reason: %s",
              err_get());
        return 0;
    }
    TokenizerScratch *s = tokenizer_scratch_create(t);
    CHECK(s, "%s", err_get());
    int64_t len = tokenizer_encode(t, s, sample, sizeof sample - 1, TOKENIZER_FRAME, &ids);
    for (int64_t i = 0; i < len; i++) CHECK(ids[i] >= 0 && ids[i] < tokenizer_size(t), "id %d", ids[i]);
    if (len >= 0) CHECK(tokenizer_decode(t, s, ids, len, TOKENIZER_FRAME, &text) >= 0, "%s", err_get());
    tokenizer_scratch_destroy(s);
    tokenizer_close(t);
    return 0;
}
