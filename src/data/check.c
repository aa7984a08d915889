#include "data/check.h"

#include "base/err.h"
#include "base/log.h"
#include "base/str.h"

#include <sys/stat.h>

/* key: what names the source, for messages. */
static int check_tokens(const Recipe *r, const Tokens *s, const char *key)
{
    char    size[32], most[32];
    int64_t bytes = tokens_bytes(s);
    str_bytes(size, sizeof size, (double)bytes);
    if (r->data.verify == VERIFY_FALSE) {
        log_info("%s: %s of tokens are not checked: data.verify is false", tokens_name(s), size);
        return 0;
    }
    if (bytes > DATA_CHECK_BYTES && r->data.verify == VERIFY_AUTO) {
        log_info("%s: %s of tokens are not checked before the run, only up to %s are (data.verify=true "
                 "checks all)",
                 tokens_name(s), size, str_bytes(most, sizeof most, (double)DATA_CHECK_BYTES));
        return 0;
    }
    if (bytes > DATA_CHECK_BYTES) log_info("%s: checking %s of tokens", tokens_name(s), size);
    if (tokens_verify(s) < 0) return recipe_blame_pending(r, key);
    log_info("%s: %s of tokens checked: ids, and checksums where there are some", tokens_name(s), size);
    return 0;
}

/* Allowed, to see a model learn by heart, but such a validation says nothing about other data. */
static void warn_same(const Recipe *r)
{
    struct stat a, b;
    if (!r->data.val[0] || stat(r->data.train, &a) != 0 || stat(r->data.val, &b) != 0) return;
    if (a.st_dev != b.st_dev || a.st_ino != b.st_ino) return;
    log_warn("data.val: %s is also data.train: validation losses are measured on training data", r->data.val);
}

/* Allowed, since a model of any bytes may be wanted, but a picture given as text is a slip. */
static int warn_binary(const Tokens *s)
{
    enum { SNIFF_BYTES = 4096 };
    int32_t byte[SNIFF_BYTES];
    int64_t n = MIN(tokens_len(s), SNIFF_BYTES);
    TRY(tokens_read(s, 0, n, byte));
    for (int64_t i = 0; i < n; i++) {
        if (byte[i] != 0) continue;
        log_warn("%s: is no text, it has a zero byte in its first %d: a model of its bytes", tokens_name(s),
                 SNIFF_BYTES);
        break;
    }
    return 0;
}

int data_check(const Recipe *r, const Tokens *train, const Tokens *val)
{
    if (train) warn_same(r);
    if (r->data.kind == DATA_RANDOM) return 0;
    /* Both may be parts of the same files. */
    if (val && train && !tokens_is_separate(val)) val = NULL;
    if (r->data.kind == DATA_TEXT && !r->data.tokenizer[0]) {
        if (train) TRY(warn_binary(train));
        return val && tokens_is_separate(val) ? warn_binary(val) : 0;
    }
    if (train) TRY(check_tokens(r, train, "data.train"));
    if (val) TRY(check_tokens(r, val, r->data.val[0] ? "data.val" : "data.train"));
    return 0;
}
