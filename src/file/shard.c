/* Shard headers, and reading their payload.
 *
 * 1. Payloads are read by pread(), not through a mapping. So a disk error, or a file that is cut short during
 *    a run, gives an error with the file's name instead of a SIGBUS. A window of 1025 two-byte tokens from
 *    the page cache costs about a microsecond, a thousandth of what the step needs. */
#include "file/shard.h"

#include "base/err.h"
#include "base/fault.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "payloads are widened without swapping bytes");

static const char shard_magic[8] = { 'B', 'R', 'I', 'M', 'T', 'O', 'K', '1' };

enum { LLMC_MAGIC = 20240520, LLMC_VERSION = 1, LLMC_HEADER_BYTES = 1024 };

/* Where each field of our header is. Bytes 40 to 55 are reserved and zero. */
enum {
    AT_VERSION     = 8,
    AT_TOKEN_BYTES = 12,
    AT_COUNT       = 16,
    AT_HASH        = 24,
    AT_VOCAB       = 32,
    AT_RESERVED    = 36,
    AT_CHECK       = 56
};

static uint32_t get_u32(const unsigned char *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static uint64_t get_u64(const unsigned char *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* The count of a header against the size of its file, without overflow for any count. */
static int check_size(const char *name, uint64_t count, int token_bytes, int64_t header_bytes,
                      int64_t file_bytes)
{
    uint64_t payload = (uint64_t)(file_bytes - header_bytes), unit = (uint64_t)token_bytes;
    if (payload / unit == count && payload % unit == 0) return 0;
    const char *what = payload / unit < count ? "truncated" : "has bytes after its last token";
    return err_user("%s: %s: its header promises %llu tokens of %d bytes, the file holds %llu bytes of them",
                    name, what, (unsigned long long)count, token_bytes, (unsigned long long)payload);
}

static int parse_brim(ShardHeader *out, const char *name, const unsigned char *p, size_t n,
                      int64_t file_bytes)
{
    if (n < SHARD_HEADER_BYTES) {
        return err_user("%s: truncated: %lld bytes, a shard's header alone has %d", name,
                        (long long)file_bytes, SHARD_HEADER_BYTES);
    }
    uint32_t version = get_u32(p + AT_VERSION);
    if (version != SHARD_VERSION) {
        return err_user("%s: shard version %u, this program reads version %d", name, version, SHARD_VERSION);
    }
    if (get_u64(p + AT_CHECK) != XXH64(p, AT_CHECK, 0)) {
        return err_user("%s: damaged header: its checksum does not match", name);
    }
    uint32_t token_bytes = get_u32(p + AT_TOKEN_BYTES), vocab = get_u32(p + AT_VOCAB);
    if (token_bytes != 2 && token_bytes != 4) {
        return err_user("%s: %u bytes per token, must be 2 or 4", name, token_bytes);
    }
    uint64_t vocab_max = token_bytes == 2 ? UINT64_C(1) << 16 : UINT64_C(1) << 31;
    if (vocab < 1 || vocab > vocab_max) {
        return err_user("%s: a vocabulary of %u does not go with %u bytes per token", name, vocab,
                        token_bytes);
    }
    for (int i = AT_RESERVED; i < AT_CHECK; i++) {
        if (p[i] != 0) return err_user("%s: reserved byte %d of the header is not zero", name, i);
    }
    uint64_t count = get_u64(p + AT_COUNT);
    TRY(check_size(name, count, (int)token_bytes, SHARD_HEADER_BYTES, file_bytes));
    *out = (ShardHeader){ .kind           = SHARD_BRIM,
                          .token_bytes    = (int)token_bytes,
                          .n_token        = (int64_t)count,
                          .vocab          = vocab,
                          .hash           = get_u64(p + AT_HASH),
                          .payload_offset = SHARD_HEADER_BYTES };
    return 0;
}

static int parse_llmc(ShardHeader *out, const char *name, const unsigned char *p, size_t n,
                      int64_t file_bytes)
{
    if (n < LLMC_HEADER_BYTES) {
        return err_user("%s: truncated: %lld bytes, the header of an llm.c shard alone has %d", name,
                        (long long)file_bytes, LLMC_HEADER_BYTES);
    }
    int32_t version = (int32_t)get_u32(p + 4), count = (int32_t)get_u32(p + 8);
    if (version != LLMC_VERSION) {
        return err_user("%s: llm.c shard version %d, this program reads version %d", name, version,
                        LLMC_VERSION);
    }
    if (count < 0) return err_user("%s: its header promises %d tokens", name, count);
    TRY(check_size(name, (uint64_t)count, 2, LLMC_HEADER_BYTES, file_bytes));
    *out = (ShardHeader){ .kind           = SHARD_LLMC,
                          .token_bytes    = 2,
                          .n_token        = count,
                          .vocab          = 1 << 16,
                          .payload_offset = LLMC_HEADER_BYTES };
    return 0;
}

static int is_brim(const unsigned char *p, size_t n)
{
    return n >= sizeof shard_magic && memcmp(p, shard_magic, sizeof shard_magic) == 0;
}

static int is_llmc(const unsigned char *p, size_t n) { return n >= 4 && get_u32(p) == LLMC_MAGIC; }

int shard_is_magic(const void *bytes, size_t n) { return is_brim(bytes, n) || is_llmc(bytes, n); }

int shard_parse(ShardHeader *out, const char *name, const void *bytes, size_t n, int64_t file_bytes)
{
    const unsigned char *p = bytes;
    CHECK(file_bytes >= 0 && (int64_t)n <= file_bytes, "%zu bytes of a file of %lld", n,
          (long long)file_bytes);
    CHECK((int64_t)n >= MIN(file_bytes, SHARD_PREFIX_BYTES), "only %zu bytes of the header were read", n);
    if (is_brim(p, n)) return parse_brim(out, name, p, n, file_bytes);
    if (is_llmc(p, n)) return parse_llmc(out, name, p, n, file_bytes);
    if (n < sizeof shard_magic) return err_user("%s: truncated: %zu bytes are no token shard", name, n);
    return err_user("%s: not a token shard: it begins neither with \"BRIMTOK1\" nor with llm.c's number %d",
                    name, LLMC_MAGIC);
}

void shard_format(const ShardHeader *h, unsigned char out[SHARD_HEADER_BYTES])
{
    uint32_t version = SHARD_VERSION, token_bytes = (uint32_t)h->token_bytes, vocab = (uint32_t)h->vocab;
    uint64_t count = (uint64_t)h->n_token;
    memset(out, 0, SHARD_HEADER_BYTES);
    memcpy(out, shard_magic, sizeof shard_magic);
    memcpy(out + AT_VERSION, &version, sizeof version);
    memcpy(out + AT_TOKEN_BYTES, &token_bytes, sizeof token_bytes);
    memcpy(out + AT_COUNT, &count, sizeof count);
    memcpy(out + AT_HASH, &h->hash, sizeof h->hash);
    memcpy(out + AT_VOCAB, &vocab, sizeof vocab);
    uint64_t check = XXH64(out, AT_CHECK, 0);
    memcpy(out + AT_CHECK, &check, sizeof check);
}

int shard_read(int fd, const char *path, void *buf, size_t size_bytes, int64_t offset)
{
    size_t done = 0;
    while (done < size_bytes) {
        ssize_t n = fault_hit(FAULT_READ)
                        ? -1
                        : pread(fd, (char *)buf + done, size_bytes - done, (off_t)(offset + (int64_t)done));
        if (n < 0 && errno == EINTR) continue;
        int64_t at = offset + (int64_t)done;
        if (n < 0) return err_sys("%s: reading at byte %lld", path, (long long)at);
        if (n == 0) {
            struct stat st; /* reading may have begun behind the end */
            if (fstat(fd, &st) == 0) at = MIN(at, (int64_t)st.st_size);
            return err_set("%s: ends at byte %lld: the file became shorter while it was in use", path,
                           (long long)at);
        }
        done += (size_t)n;
    }
    return 0;
}

int shard_open(ShardHeader *out, const char *path)
{
    unsigned char prefix[SHARD_PREFIX_BYTES];
    struct stat   st;
    int           fd = fault_hit(FAULT_OPEN) ? -1 : open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return err_user("%s: cannot be opened: %s", path, strerror(errno));
    if (fstat(fd, &st) != 0) {
        err_sys("%s: stat", path);
    } else if (!S_ISREG(st.st_mode)) {
        err_user("%s: not a regular file", path);
    } else {
        size_t n = (size_t)MIN((int64_t)st.st_size, SHARD_PREFIX_BYTES);
        if (shard_read(fd, path, prefix, n, 0) == 0 && shard_parse(out, path, prefix, n, st.st_size) == 0)
            return fd;
    }
    close(fd);
    return -1;
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
        TRY(shard_read(fd, path, raw, bytes, h->payload_offset + at * h->token_bytes));
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

int shard_verify(const char *path, int64_t vocab)
{
    ShardHeader h;
    int         fd = shard_open(&h, path);
    if (fd < 0) return -1;
    XXH64_state_t *hash = XXH64_createState();
    CHECK(hash, "out of memory");
    XXH64_reset(hash, 0);
    int rc = verify_payload(fd, &h, path, MIN(h.vocab, vocab), hash);
    XXH64_freeState(hash);
    close(fd);
    return rc;
}
