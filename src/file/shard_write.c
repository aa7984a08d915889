#include "file/shard_write.h"

#include "base/err.h"
#include "base/fault.h"
#include "base/file.h"
#include "file/shard.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

struct ShardWriter {
    FILE          *file;
    char          *path;
    ShardHeader    h;
    XXH64_state_t *hash;
    int64_t       *end; /* of documents */
    int64_t        cap_end, text_bytes;
};

static int write_bytes(ShardWriter *w, const void *bytes, size_t n)
{
    if (fault_hit(FAULT_WRITE) || fwrite(bytes, 1, n, w->file) != n) return err_sys("%s: write", w->path);
    return 0;
}

ShardWriter *shard_write_begin(const char *path, int64_t vocab)
{
    const unsigned char blank[SHARD_HEADER_BYTES] = { 0 };
    CHECK(vocab >= 1 && vocab <= INT64_C(1) << 31, "vocabulary of %lld", (long long)vocab);
    FILE *f = file_create_tmp(path);
    if (!f) return NULL;
    ShardWriter *w = calloc(1, sizeof *w);
    CHECK(w, "out of memory");
    w->file = f;
    w->path = strdup(path);
    w->hash = XXH64_createState();
    w->h    = (ShardHeader){
           .vocab = vocab, .token_bytes = vocab <= 65536 ? 2 : 4, .end_token = -1, .begin_token = -1
    };
    CHECK(w->path && w->hash, "out of memory");
    XXH64_reset(w->hash, 0);
    /* The header comes last, when count and checksum are known; until then its place is kept. */
    if (write_bytes(w, blank, sizeof blank) < 0) shard_write_discard(&w);
    return w;
}

int shard_write_add(ShardWriter *w, const int32_t *tok, int64_t n)
{
    enum { CHUNK = 8192 };
    unsigned char raw[CHUNK * 4];
    for (int64_t at = 0; at < n; at += CHUNK) {
        int64_t m = MIN(n - at, CHUNK);
        for (int64_t i = 0; i < m; i++) {
            int32_t v = tok[at + i];
            if (v < 0 || v >= w->h.vocab) {
                return err_user("%s: token %lld is %d, the vocabulary ends at %lld", w->path,
                                (long long)(w->h.n_token + i), v, (long long)w->h.vocab);
            }
            memcpy(raw + i * w->h.token_bytes, &v,
                   (size_t)w->h.token_bytes); /* little-endian: the low bytes */
        }
        size_t bytes = (size_t)(m * w->h.token_bytes);
        XXH64_update(w->hash, raw, bytes);
        TRY(write_bytes(w, raw, bytes));
        w->h.n_token += m;
    }
    return 0;
}

void shard_write_marks(ShardWriter *w, int64_t begin_token, int64_t end_token)
{
    CHECK(w->h.n_doc == 0 && begin_token < w->h.vocab && end_token < w->h.vocab, "tokens %lld and %lld",
          (long long)begin_token, (long long)end_token);
    w->h.begin_token = begin_token;
    w->h.end_token   = end_token;
}

int shard_write_end_document(ShardWriter *w, int64_t text_bytes)
{
    int64_t before = w->h.n_doc > 0 ? w->end[w->h.n_doc - 1] : 0;
    CHECK(w->h.n_token > before && text_bytes >= 0, "a document without tokens");
    if (w->h.n_doc == w->cap_end) {
        int64_t  cap  = w->cap_end * 2 + 1024;
        int64_t *more = realloc(w->end, sizeof *more * (size_t)cap);
        if (!more) return err_sys("%s: memory for an index of %lld documents", w->path, (long long)cap);
        w->end     = more;
        w->cap_end = cap;
    }
    w->end[w->h.n_doc++] = w->h.n_token;
    w->text_bytes += text_bytes;
    return 0;
}

int64_t shard_write_len(const ShardWriter *w) { return w->h.n_token; }

static int write_index(ShardWriter *w)
{
    size_t bytes = sizeof *w->end * (size_t)w->h.n_doc;
    if (w->h.n_doc == 0) return 0;
    CHECK(w->end[w->h.n_doc - 1] == w->h.n_token, "tokens behind the last document");
    XXH64_reset(w->hash, 0);
    XXH64_update(w->hash, w->end, bytes);
    XXH64_update(w->hash, &w->text_bytes, sizeof w->text_bytes);
    uint64_t check = XXH64_digest(w->hash);
    TRY(write_bytes(w, w->end, bytes));
    TRY(write_bytes(w, &w->text_bytes, sizeof w->text_bytes));
    return write_bytes(w, &check, sizeof check);
}

static void free_writer(ShardWriter **w)
{
    free((*w)->end);
    XXH64_freeState((*w)->hash);
    free((*w)->path);
    free(*w);
    *w = NULL;
}

int shard_write_publish(ShardWriter **pw)
{
    ShardWriter  *w = *pw;
    unsigned char header[SHARD_HEADER_BYTES];
    w->h.hash = XXH64_digest(w->hash);
    shard_format(&w->h, header);
    int rc = write_index(w);
    if (rc == 0 && fseek(w->file, 0, SEEK_SET) != 0) rc = err_sys("%s: seek", w->path);
    if (rc == 0) rc = write_bytes(w, header, sizeof header);
    if (rc == 0) rc = file_publish(&w->file, w->path);
    shard_write_discard(pw);
    return rc;
}

void shard_write_discard(ShardWriter **w)
{
    if (!*w) return;
    file_discard(&(*w)->file);
    free_writer(w);
}
