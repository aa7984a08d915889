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
    w->h    = (ShardHeader){ .vocab = vocab, .token_bytes = vocab <= 65536 ? 2 : 4 };
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

static void free_writer(ShardWriter **w)
{
    XXH64_freeState((*w)->hash);
    free((*w)->path);
    free(*w);
    *w = NULL;
}

int shard_write_publish(ShardWriter **pw)
{
    ShardWriter  *w = *pw;
    unsigned char header[SHARD_HEADER_BYTES];
    int           rc = -1;
    w->h.hash        = XXH64_digest(w->hash);
    shard_format(&w->h, header);
    if (fseek(w->file, 0, SEEK_SET) != 0) {
        err_sys("%s: seek", w->path);
    } else if (write_bytes(w, header, sizeof header) == 0) {
        rc = file_publish(&w->file, w->path);
    }
    shard_write_discard(pw);
    return rc;
}

void shard_write_discard(ShardWriter **w)
{
    if (!*w) return;
    file_discard(&(*w)->file);
    free_writer(w);
}
