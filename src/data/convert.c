/* Both conversions open the input as a source, read it in chunks and write it. So a file converts exactly if
 * the trainer accepts it. */
#include "data/convert.h"

#include "base/err.h"
#include "file/shard_write.h"
#include "data/tokens.h"

static int copy_tokens(const Tokens *src, ShardWriter *w)
{
    int32_t tok[8192];
    int64_t len = tokens_len(src);
    for (int64_t i = 0; i < len; i += ARRAY_LEN(tok)) {
        int64_t n = MIN(ARRAY_LEN(tok), len - i);
        TRY(tokens_read(src, i, n, tok));
        TRY(shard_write_add(w, tok, n));
    }
    return 0;
}

static int convert(DataKind kind, const char *in, const char *out, int64_t vocab, int64_t *n_token)
{
    Tokens      *src = NULL;
    ShardWriter *w   = NULL;
    int          rc  = tokens_open_path(&src, kind, in, vocab);
    if (rc == 0 && !(w = shard_write_begin(out, vocab))) rc = -1;
    if (rc == 0) rc = copy_tokens(src, w);
    if (rc == 0) rc = shard_write_publish(&w);
    if (rc == 0 && n_token) *n_token = tokens_len(src);
    shard_write_discard(&w);
    tokens_close(src);
    return rc;
}

int data_convert_text(const char *in, const char *out, int64_t *n_token)
{
    return convert(DATA_TEXT, in, out, 256, n_token);
}

int data_convert_shard(const char *in, const char *out, int64_t vocab, int64_t *n_token)
{
    return convert(DATA_TOKENS, in, out, vocab, n_token);
}
