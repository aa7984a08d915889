/* Fuzz target: any bytes as tiktoken ranks or, when they begin with '{', as a vocabulary and, behind a zero,
 * its merges. Built with libFuzzer; the corpus is beside it.
 *
 * sources: src/text/[a-l]*.c src/text/n*.c src/text/p*.c src/text/r*.c src/text/s*.c src/text/to*.c
 * src/text/u*.c src/text/write.c src/base/[a-z]*.c */
#include "base/err.h"
#include "text/tokenizer_impl.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    Tokenizer  *t    = NULL;
    const char *p    = (const char *)data;
    const char *zero = n > 0 ? memchr(p, 0, n) : NULL;
    err_clear();
    int rc;
    if (n > 0 && p[0] == '{' && zero) {
        ReadFile vocab  = { "fuzz", p, (size_t)(zero - p) };
        ReadFile merges = { "fuzz", zero + 1, n - vocab.size_bytes - 1 };
        rc              = read_vocab_merges(&t, &vocab, &merges);
    } else {
        rc = read_ranks(&t, "fuzz", p, n);
    }
    CHECK(rc == 0 || (err_kind() == ERR_USER && strstr(err_get(), "fuzz")), "a refusal without a reason: %s",
          err_get());
    if (rc == 0) {
        TokenizerScratch *s = tokenizer_scratch_create(t);
        const int32_t    *ids;
        CHECK(s && tokenizer_encode(t, s, data, n, TOKENIZER_FRAME, &ids) >= 0, "%s", err_get());
        tokenizer_scratch_destroy(s);
    }
    tokenizer_close(t);
    return 0;
}
