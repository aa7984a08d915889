/* Fuzz target: any bytes as a tokenizer.json. Built with libFuzzer; the corpus is beside it.
 *
 * What is accepted encodes and decodes any text without harm, and is the same after being written and read
 * again.
 *
 * sources: src/text/[a-l]*.c src/text/n*.c src/text/p*.c src/text/r*.c src/text/s*.c src/text/to*.c
 * src/text/u*.c src/text/write.c src/base/[a-z]*.c */
#include "base/err.h"
#include "text/tokenizer_impl.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static const char sample[] = "Hello  the caf\xc3\xa9 e\xcc\x81 'S 12345\r\n\n "
                             "\xff\xe2\x96\x81<s>aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab";

static void use(const Tokenizer *t)
{
    TokenizerScratch *s = tokenizer_scratch_create(t);
    const int32_t    *ids;
    const char       *text;
    TokenizerStream   st  = { .n_held = 0 };
    char             *buf = malloc((size_t)tokenizer_longest(t) + 16);
    CHECK(s && buf, "%s", err_get());
    int64_t len = tokenizer_encode(t, s, sample, sizeof sample - 1, TOKENIZER_FRAME, &ids);
    for (int64_t i = 0; i < len; i++) {
        CHECK(ids[i] >= 0 && ids[i] < tokenizer_size(t), "id %d", ids[i]);
        CHECK(tokenizer_stream_next(t, &st, ids[i], buf) >= 0, "%s", err_get());
    }
    if (len >= 0) CHECK(tokenizer_decode(t, s, ids, len, TOKENIZER_FRAME, &text) >= 0, "%s", err_get());
    free(buf);
    tokenizer_scratch_destroy(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    Tokenizer *t = NULL, *again = NULL;
    err_clear();
    if (read_json_tokenizer(&t, "fuzz", (const char *)data, n) < 0) {
        CHECK(err_kind() == ERR_USER && strstr(err_get(), "fuzz"), "a refusal without a reason: %s",
              err_get());
        return 0;
    }
    use(t);
    err_clear();
    char dir[] = "/tmp/brim-fuzz-XXXXXX", path[64];
    CHECK(mkdtemp(dir), "no folder");
    CHECK(tokenizer_save(t, dir) == 0, "%s", err_get());
    CHECK(tokenizer_open(&again, dir) == 0, "%s", err_get());
    CHECK(tokenizer_hash(t) == tokenizer_hash(again), "the tokenizer changed");
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    unlink(path);
    rmdir(dir);
    tokenizer_close(again);
    tokenizer_close(t);
    return 0;
}
