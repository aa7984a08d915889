/* Shard headers, and reading their payload.
 *
 * 1. Payloads are read by pread(), not through a mapping. So a disk error, or a file that is cut short during
 *    a run, gives an error with the file's name instead of a SIGBUS. A window of 1025 two-byte tokens from
 *    the page cache costs about a microsecond, a thousandth of what the step needs. */
#include "file/shard.h"

#include "base/err.h"
#include "base/fault.h"
#include "base/file.h"
#include "file/words.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "payloads are widened without swapping bytes");

static const char shard_magic[8] = { 'B', 'R', 'I', 'M', 'T', 'O', 'K', '1' };

enum { LLMC_HEADER_BYTES = 1024 };

/* llm.c's two kinds: GPT-2's ids have 2 bytes, those of Llama 3 have 4. */
typedef struct {
    uint32_t magic;
    int32_t  version;
    int      token_bytes;
} LlmcKind;
static const LlmcKind llmc_kinds[] = { { 20240520, 1, 2 }, { 20240801, 7, 4 } };

static const unsigned char npy_magic[6] = { 0x93, 'N', 'U', 'M', 'P', 'Y' };

/* Where each field of our header is. What is reserved is zero: bytes 36 to 55 of version 1, 44 to 47 of
 * version 2. Tokens are stored plus 1; 0 means none. */
enum {
    AT_VERSION     = 8,
    AT_TOKEN_BYTES = 12,
    AT_COUNT       = 16,
    AT_HASH        = 24,
    AT_VOCAB       = 32,
    AT_END_TOKEN   = 36,
    AT_BEGIN_TOKEN = 40,
    AT_RESERVED    = 44,
    AT_N_DOC       = 48,
    AT_CHECK       = 56
};

/* Behind the ends of the documents: bytes of text, and xxhash64 of everything between ids and checksum. */
enum { INDEX_TAIL_BYTES = 16 };

static int is_brim(const unsigned char *p, size_t n)
{
    return n >= sizeof shard_magic && memcmp(p, shard_magic, sizeof shard_magic) == 0;
}

static const LlmcKind *find_llmc(const unsigned char *p, size_t n)
{
    for (int i = 0; n >= 4 && i < ARRAY_LEN(llmc_kinds); i++) {
        if (get_u32(p) == llmc_kinds[i].magic) return &llmc_kinds[i];
    }
    return NULL;
}

static int is_npy(const unsigned char *p, size_t n)
{
    return n >= sizeof npy_magic && memcmp(p, npy_magic, sizeof npy_magic) == 0;
}

int shard_is_magic(const void *bytes, size_t n) { return is_brim(bytes, n) || find_llmc(bytes, n); }

/* Ids that a number of so many bytes can hold; Brim's own ids are below 2^31. */
static int64_t most_ids(int token_bytes) { return token_bytes == 2 ? INT64_C(1) << 16 : INT64_C(1) << 31; }

/* The count of a header against the bytes that the file has for ids, without overflow for any count. */
static int check_size(const char *name, uint64_t count, int token_bytes, int64_t payload_bytes)
{
    uint64_t payload = (uint64_t)payload_bytes, unit = (uint64_t)token_bytes;
    if (payload / unit == count && payload % unit == 0) return 0;
    const char *what = payload / unit < count ? "truncated" : "has bytes after its last token";
    return err_user("%s: %s: its header promises %llu tokens of %d bytes, the file holds %llu bytes of them",
                    name, what, (unsigned long long)count, token_bytes, (unsigned long long)payload);
}

/* The fields of version 2 that have to do with documents. *index_bytes: of the whole index. */
static int parse_documents(ShardHeader *h, const char *name, const unsigned char *p, int64_t file_bytes,
                           int64_t *index_bytes)
{
    uint64_t n_doc = get_u64(p + AT_N_DOC), room = (uint64_t)(file_bytes - SHARD_HEADER_BYTES);
    h->end_token   = (int64_t)get_u32(p + AT_END_TOKEN) - 1;
    h->begin_token = (int64_t)get_u32(p + AT_BEGIN_TOKEN) - 1;
    if (h->end_token >= h->vocab || h->begin_token >= h->vocab) {
        return err_user("%s: documents end with token %lld and begin with %lld, its vocabulary ends at %lld",
                        name, (long long)h->end_token, (long long)h->begin_token, (long long)h->vocab);
    }
    if (n_doc < 1 || n_doc > (uint64_t)h->n_token) {
        return err_user("%s: an index of %llu documents for %lld tokens", name, (unsigned long long)n_doc,
                        (long long)h->n_token);
    }
    if (room < INDEX_TAIL_BYTES || (room - INDEX_TAIL_BYTES) / 8 < n_doc) {
        return err_user("%s: truncated: its header promises an index of %llu documents, the file has %lld "
                        "bytes",
                        name, (unsigned long long)n_doc, (long long)file_bytes);
    }
    h->n_doc     = (int64_t)n_doc;
    *index_bytes = h->n_doc * 8 + INDEX_TAIL_BYTES;
    return 0;
}

static int parse_fields(ShardHeader *h, const char *name, const unsigned char *p, uint32_t version,
                        int64_t file_bytes)
{
    uint32_t token_bytes = get_u32(p + AT_TOKEN_BYTES), vocab = get_u32(p + AT_VOCAB);
    if (token_bytes != 2 && token_bytes != 4) {
        return err_user("%s: %u bytes per token, must be 2 or 4", name, token_bytes);
    }
    if (vocab < 1 || vocab > most_ids((int)token_bytes)) {
        return err_user("%s: a vocabulary of %u does not go with %u bytes per token", name, vocab,
                        token_bytes);
    }
    int first = version == 1 ? AT_END_TOKEN : AT_RESERVED, last = version == 1 ? AT_CHECK : AT_N_DOC;
    for (int i = first; i < last; i++) {
        if (p[i] != 0) return err_user("%s: reserved byte %d of the header is not zero", name, i);
    }
    uint64_t count       = get_u64(p + AT_COUNT);
    int64_t  index_bytes = 0;
    h->token_bytes       = (int)token_bytes;
    h->n_token           = (int64_t)MIN(count, INT64_MAX / 4); /* more is refused below */
    h->vocab             = vocab;
    h->hash              = get_u64(p + AT_HASH);
    if (version > 1) TRY(parse_documents(h, name, p, file_bytes, &index_bytes));
    TRY(check_size(name, count, h->token_bytes, file_bytes - SHARD_HEADER_BYTES - index_bytes));
    h->index_offset = file_bytes - index_bytes;
    return 0;
}

static int parse_brim(ShardHeader *out, const char *name, const unsigned char *p, size_t n,
                      int64_t file_bytes)
{
    if (n < SHARD_HEADER_BYTES) {
        return err_user("%s: truncated: %lld bytes, a shard's header alone has %d", name,
                        (long long)file_bytes, SHARD_HEADER_BYTES);
    }
    uint32_t version = get_u32(p + AT_VERSION);
    if (version < 1 || version > SHARD_VERSION) {
        return err_user("%s: shard version %u, this program reads versions 1 to %d", name, version,
                        SHARD_VERSION);
    }
    if (get_u64(p + AT_CHECK) != XXH64(p, AT_CHECK, 0)) {
        return err_user("%s: damaged header: its checksum does not match", name);
    }
    ShardHeader h = { .kind           = SHARD_BRIM,
                      .payload_offset = SHARD_HEADER_BYTES,
                      .file_bytes     = file_bytes,
                      .end_token      = -1,
                      .begin_token    = -1 };
    TRY(parse_fields(&h, name, p, version, file_bytes));
    *out = h;
    return 0;
}

static int parse_llmc(ShardHeader *out, const char *name, const unsigned char *p, size_t n,
                      int64_t file_bytes)
{
    if (n < LLMC_HEADER_BYTES) {
        return err_user("%s: truncated: %lld bytes, the header of an llm.c shard alone has %d", name,
                        (long long)file_bytes, LLMC_HEADER_BYTES);
    }
    const LlmcKind *kind    = find_llmc(p, n);
    int32_t         version = (int32_t)get_u32(p + 4), count = (int32_t)get_u32(p + 8);
    if (version != kind->version) {
        return err_user("%s: llm.c shard version %d, this program reads version %d", name, version,
                        kind->version);
    }
    if (count < 0) return err_user("%s: its header promises %d tokens", name, count);
    TRY(check_size(name, (uint64_t)count, kind->token_bytes, file_bytes - LLMC_HEADER_BYTES));
    *out = (ShardHeader){ .kind           = SHARD_LLMC,
                          .token_bytes    = kind->token_bytes,
                          .n_token        = count,
                          .vocab          = most_ids(kind->token_bytes),
                          .payload_offset = LLMC_HEADER_BYTES,
                          .file_bytes     = file_bytes,
                          .end_token      = -1,
                          .begin_token    = -1 };
    return 0;
}

/* The text behind 'key': in the header of a .npy file, or NULL. */
static const char *npy_value(const char *header, const char *key)
{
    const char *at = strstr(header, key);
    at             = at ? strchr(at, ':') : NULL;
    return at ? at + 1 + strspn(at + 1, " ") : NULL;
}

/* NumPy's file of one array: magic, version, length of the header, the header as text of Python. */
static int parse_npy(ShardHeader *out, const char *name, const unsigned char *p, size_t n, int64_t file_bytes)
{
    static const struct {
        const char *descr;
        int         token_bytes;
    } types[]                           = { { "'<u2'", 2 }, { "'<u4'", 4 }, { "'<i4'", 4 } };
    char   text[SHARD_PREFIX_BYTES + 1] = "";
    size_t begin = n > 6 && p[6] > 1 ? 12 : 10, len = n < 12        ? 0
                                                      : begin == 12 ? get_u32(p + 8)
                                                                    : p[8] + 256u * p[9];
    if (n < begin + len || len == 0)
        return err_user("%s: truncated: its header of %zu bytes is not there", name, len);
    memcpy(text, p + begin, len);
    const char *descr = npy_value(text, "'descr'"), *order = npy_value(text, "'fortran_order'");
    const char *shape = npy_value(text, "'shape'");
    int         k     = 0;
    while (k < ARRAY_LEN(types) && (!descr || strncmp(descr, types[k].descr, strlen(types[k].descr)) != 0))
        k++;
    if (!descr || !order || !shape || k == ARRAY_LEN(types))
        return err_user("%s: not an array of token ids: its numbers are %.8s, uint16 or uint32 would do",
                        name, descr ? descr : "not named");
    unsigned long long count = 0;
    int                used  = 0;
    if (sscanf(shape, "(%llu,)%n", &count, &used) != 1 || used == 0)
        return err_user("%s: an array of several dimensions: ravel() makes one of it", name);
    TRY(check_size(name, count, types[k].token_bytes, file_bytes - (int64_t)(begin + len)));
    *out = (ShardHeader){ .kind           = SHARD_NPY,
                          .token_bytes    = types[k].token_bytes,
                          .n_token        = (int64_t)count,
                          .vocab          = most_ids(types[k].token_bytes),
                          .payload_offset = (int64_t)(begin + len),
                          .file_bytes     = file_bytes,
                          .end_token      = -1,
                          .begin_token    = -1 };
    return 0;
}

static int parse_plain(ShardHeader *out, const char *name, const unsigned char *p, size_t n,
                       int64_t file_bytes)
{
    if (is_npy(p, n)) return parse_npy(out, name, p, n, file_bytes);
    if (shard_is_magic(p, n))
        return err_user("%s: has the header of a token shard: data.kind=tokens reads it", name);
    if (file_bytes % 2 != 0)
        return err_user("%s: %lld bytes are no whole number of 2-byte ids", name, (long long)file_bytes);
    *out = (ShardHeader){ .kind        = SHARD_PLAIN,
                          .token_bytes = 2,
                          .n_token     = file_bytes / 2,
                          .file_bytes  = file_bytes,
                          .vocab       = 1 << 16,
                          .end_token   = -1,
                          .begin_token = -1 };
    return 0;
}

int shard_parse(ShardHeader *out, const char *name, const void *bytes, size_t n, int64_t file_bytes)
{
    const unsigned char *p = bytes;
    CHECK(file_bytes >= 0 && (int64_t)n <= file_bytes, "%zu bytes of a file of %lld", n,
          (long long)file_bytes);
    CHECK((int64_t)n >= MIN(file_bytes, SHARD_PREFIX_BYTES), "only %zu bytes of the header were read", n);
    if (is_brim(p, n)) return parse_brim(out, name, p, n, file_bytes);
    if (find_llmc(p, n)) return parse_llmc(out, name, p, n, file_bytes);
    if (is_npy(p, n)) return parse_npy(out, name, p, n, file_bytes);
    if (n < sizeof shard_magic) return err_user("%s: truncated: %zu bytes are no token shard", name, n);
    return err_user("%s: not a token shard: it begins neither with \"BRIMTOK1\" nor with llm.c's number %d "
                    "(data.kind=uint16 reads ids without a header)",
                    name, (int)llmc_kinds[0].magic);
}

void shard_format(const ShardHeader *h, unsigned char out[SHARD_HEADER_BYTES])
{
    uint32_t version = h->n_doc > 0 ? 2 : 1, token_bytes = (uint32_t)h->token_bytes;
    uint32_t vocab = (uint32_t)h->vocab, end = (uint32_t)(h->end_token + 1);
    uint32_t begin = (uint32_t)(h->begin_token + 1);
    uint64_t count = (uint64_t)h->n_token, n_doc = (uint64_t)h->n_doc;
    memset(out, 0, SHARD_HEADER_BYTES);
    memcpy(out, shard_magic, sizeof shard_magic);
    memcpy(out + AT_VERSION, &version, sizeof version);
    memcpy(out + AT_TOKEN_BYTES, &token_bytes, sizeof token_bytes);
    memcpy(out + AT_COUNT, &count, sizeof count);
    memcpy(out + AT_HASH, &h->hash, sizeof h->hash);
    memcpy(out + AT_VOCAB, &vocab, sizeof vocab);
    if (version > 1) {
        memcpy(out + AT_END_TOKEN, &end, sizeof end);
        memcpy(out + AT_BEGIN_TOKEN, &begin, sizeof begin);
        memcpy(out + AT_N_DOC, &n_doc, sizeof n_doc);
    }
    uint64_t check = XXH64(out, AT_CHECK, 0);
    memcpy(out + AT_CHECK, &check, sizeof check);
}

typedef int (*ParseHeader)(ShardHeader *out, const char *name, const unsigned char *p, size_t n,
                           int64_t file_bytes);

static int open_with(ShardHeader *out, const char *path, ParseHeader parse)
{
    unsigned char prefix[SHARD_PREFIX_BYTES];
    struct stat   st;
    int           fd = fault_hit(FAULT_OPEN) ? -1 : open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return file_refuse_open(path);
    if (fstat(fd, &st) != 0) {
        err_sys("%s: stat", path);
    } else if (!S_ISREG(st.st_mode)) {
        err_user("%s: not a regular file", path);
    } else {
        size_t n = (size_t)MIN((int64_t)st.st_size, SHARD_PREFIX_BYTES);
        if (file_read_at(fd, path, prefix, n, 0) == 0 && parse(out, path, prefix, n, st.st_size) == 0)
            return fd;
    }
    close(fd);
    return -1;
}

static int parse_any(ShardHeader *out, const char *name, const unsigned char *p, size_t n, int64_t file_bytes)
{
    return shard_parse(out, name, p, n, file_bytes);
}

int shard_open(ShardHeader *out, const char *path) { return open_with(out, path, parse_any); }

int shard_open_plain(ShardHeader *out, const char *path) { return open_with(out, path, parse_plain); }

int shard_read_index(int fd, const char *path, const ShardHeader *h, int64_t first, int64_t n, int64_t *end)
{
    CHECK(first >= 0 && n >= 0 && first <= h->n_doc - n, "%s: documents [%lld, +%lld) of %lld", path,
          (long long)first, (long long)n, (long long)h->n_doc);
    TRY(file_read_at(fd, path, end, sizeof *end * (size_t)n, h->index_offset + first * 8));
    int64_t before = first; /* each document before has a token at least */
    for (int64_t i = 0; i < n; i++) {
        int is_last = first + i == h->n_doc - 1;
        if (end[i] <= before || end[i] > h->n_token || (is_last && end[i] != h->n_token)) {
            return err_user("%s: damaged index: document %lld ends at token %lld of %lld", path,
                            (long long)(first + i), (long long)end[i], (long long)h->n_token);
        }
        before = end[i];
    }
    return 0;
}

int64_t shard_text_bytes(int fd, const char *path, const ShardHeader *h)
{
    int64_t bytes = 0;
    if (h->n_doc == 0) return 0;
    TRY(file_read_at(fd, path, &bytes, sizeof bytes, h->index_offset + h->n_doc * 8));
    return MAX(bytes, 0);
}

int64_t shard_decode(int32_t *out, const unsigned char *raw, int64_t n, int token_bytes, int64_t limit)
{
    uint32_t top = 0; /* a maximum instead of a test per id: the loops vectorise */
    CHECK(token_bytes == 1 || token_bytes == 2 || token_bytes == 4, "%d bytes per token", token_bytes);
    if (token_bytes == 1) {
        for (int64_t i = 0; i < n; i++) {
            out[i] = raw[i];
            top    = MAX(top, (uint32_t)raw[i]);
        }
    } else if (token_bytes == 2) {
        for (int64_t i = 0; i < n; i++) {
            uint16_t v;
            memcpy(&v, raw + 2 * i, sizeof v);
            out[i] = v;
            top    = MAX(top, (uint32_t)v);
        }
    } else {
        for (int64_t i = 0; i < n; i++) {
            uint32_t v = get_u32(raw + 4 * i);
            out[i]     = (int32_t)v;
            top        = MAX(top, v);
        }
    }
    if (n == 0 || (int64_t)top < limit) return -1;
    int64_t bad = 0;
    while ((int64_t)(uint32_t)out[bad] < limit) bad++;
    return bad;
}

int shard_refuse_id(const char *path, int64_t at, uint32_t id, int64_t limit, int stated, uint32_t top)
{
    if (stated) {
        return err_user("%s: damaged: token %lld is %u, its own vocabulary ends at %lld", path, (long long)at,
                        id, (long long)limit);
    }
    return err_user("%s: token %lld is %u, but model.vocab is %lld: %lld or more would do", path,
                    (long long)at, id, (long long)limit, (long long)top + 1);
}

static uint32_t largest(const int32_t *tok, int64_t n)
{
    uint32_t top = 0;
    for (int64_t i = 0; i < n; i++) top = MAX(top, (uint32_t)tok[i]);
    return top;
}

static int verify_payload(int fd, const ShardHeader *h, const char *path, int64_t limit, XXH64_state_t *hash)
{
    int      stated = h->kind == SHARD_BRIM && limit == h->vocab;
    int64_t  bad_at = -1; /* the first; the rest is read to know the largest */
    uint32_t bad_id = 0, top = 0;
    enum { CHUNK = 16384 /* tokens */ };
    unsigned char raw[CHUNK * 4];
    int32_t       tok[CHUNK];
    for (int64_t at = 0; at < h->n_token; at += CHUNK) {
        int64_t n     = MIN(h->n_token - at, CHUNK);
        size_t  bytes = (size_t)(n * h->token_bytes);
        TRY(file_read_at(fd, path, raw, bytes, h->payload_offset + at * h->token_bytes));
        XXH64_update(hash, raw, bytes);
        int64_t bad = shard_decode(tok, raw, n, h->token_bytes, limit);
        if (bad >= 0 && bad_at < 0) {
            bad_at = at + bad;
            bad_id = (uint32_t)tok[bad];
        }
        if (bad >= 0) top = MAX(top, largest(tok, n));
    }
    if (bad_at >= 0) return shard_refuse_id(path, bad_at, bad_id, limit, stated, top);
    if (h->kind == SHARD_BRIM && XXH64_digest(hash) != h->hash) {
        return err_user("%s: damaged: the checksum of its tokens does not match", path);
    }
    return 0;
}

static int verify_index(int fd, const ShardHeader *h, const char *path, XXH64_state_t *hash)
{
    enum { CHUNK = 4096 /* documents */ };
    int64_t end[CHUNK], before = 0, tail[2];
    XXH64_reset(hash, 0);
    for (int64_t at = 0; at < h->n_doc; at += CHUNK) {
        int64_t n = MIN(h->n_doc - at, CHUNK);
        TRY(shard_read_index(fd, path, h, at, n, end));
        if (end[0] <= before) {
            return err_user("%s: damaged index: document %lld ends at token %lld, the one before at %lld",
                            path, (long long)at, (long long)end[0], (long long)before);
        }
        before = end[n - 1];
        XXH64_update(hash, end, sizeof *end * (size_t)n);
    }
    TRY(file_read_at(fd, path, tail, sizeof tail, h->index_offset + h->n_doc * 8));
    XXH64_update(hash, &tail[0], sizeof tail[0]);
    if (XXH64_digest(hash) != (uint64_t)tail[1])
        return err_user("%s: damaged: the checksum of its index does not match", path);
    return 0;
}

int shard_verify_open(int fd, const char *path, const ShardHeader *h, int64_t vocab)
{
    XXH64_state_t *hash = XXH64_createState();
    CHECK(hash, "out of memory");
    XXH64_reset(hash, 0);
    int rc = verify_payload(fd, h, path, MIN(h->vocab, vocab), hash);
    if (rc == 0 && h->n_doc > 0) rc = verify_index(fd, h, path, hash);
    XXH64_freeState(hash);
    return rc;
}

int shard_verify(const char *path, int64_t vocab)
{
    ShardHeader h;
    int         fd = shard_open(&h, path);
    if (fd < 0) return -1;
    int rc = shard_verify_open(fd, path, &h, vocab);
    close(fd);
    return rc;
}
