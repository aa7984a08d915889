#include "file/stream.h"

#include "base/err.h"
#include "base/fault.h"
#include "base/file.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

enum { IN_BYTES = 1 << 17, MAGIC_BYTES = 4 };

typedef enum { STREAM_PLAIN, STREAM_GZIP, STREAM_ZSTD } StreamKind;

struct Stream {
    char                *name;
    int                  fd; /* -1: memory */
    const unsigned char *memory;
    size_t               memory_left;
    StreamKind           kind;
    int64_t              taken;
    unsigned char       *in;
    size_t               in_at, in_len;
    int                  ended;  /* of the packed bytes */
    int                  inside; /* of a packed part: the stream must not end here */
    z_stream             gzip;
    int                  gzip_ready;
    ZSTD_DStream        *zstd;
};

/* At most n bytes as they are in the file; 0 at the end. */
static int64_t read_raw(Stream *s, void *buf, size_t n)
{
    if (s->fd < 0) {
        n = MIN(n, s->memory_left);
        memcpy(buf, s->memory, n);
        s->memory += n;
        s->memory_left -= n;
        s->taken += (int64_t)n;
        return (int64_t)n;
    }
    for (;;) {
        ssize_t got = fault_hit(FAULT_READ) ? -1 : read(s->fd, buf, n);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return err_sys("%s: reading at byte %lld", s->name, (long long)s->taken);
        s->taken += got;
        return got;
    }
}

/* Makes sure that there is input, unless the file ended. */
static int refill(Stream *s)
{
    if (s->in_at < s->in_len || s->ended) return 0;
    int64_t n = read_raw(s, s->in, IN_BYTES);
    if (n < 0) return -1;
    s->in_at  = 0;
    s->in_len = (size_t)n;
    s->ended  = n == 0;
    return 0;
}

static int begin_gzip(Stream *s)
{
    enum { GZIP_ONLY = 15 + 16 };
    if (inflateInit2(&s->gzip, GZIP_ONLY) != Z_OK) return err_set("%s: memory for unpacking", s->name);
    s->gzip_ready = 1;
    return 0;
}

/* Reads the first bytes and says what they are. */
static int look(Stream *s)
{
    while (s->in_len < MAGIC_BYTES && !s->ended) {
        int64_t n = read_raw(s, s->in + s->in_len, IN_BYTES - s->in_len);
        if (n < 0) return -1;
        s->in_len += (size_t)n;
        s->ended = n == 0;
    }
    const unsigned char *p = s->in;
    s->kind                = STREAM_PLAIN;
    if (s->in_len >= 2 && p[0] == 0x1f && p[1] == 0x8b) s->kind = STREAM_GZIP;
    if (s->in_len >= 4 && p[0] == 0x28 && p[1] == 0xb5 && p[2] == 0x2f && p[3] == 0xfd) s->kind = STREAM_ZSTD;
    if (s->kind == STREAM_GZIP) return begin_gzip(s);
    if (s->kind != STREAM_ZSTD) return 0;
    s->zstd = ZSTD_createDStream();
    return s->zstd ? 0 : err_set("%s: memory for unpacking", s->name);
}

static int make(Stream **out, const char *name)
{
    Stream *s = mem_zeroed(1, sizeof *s);
    if (!s) return err_sys("%s: memory for reading it", name);
    s->fd   = -1;
    s->name = strdup(name);
    s->in   = mem_alloc(IN_BYTES);
    *out    = s;
    return s->name && s->in ? 0 : err_sys("%s: memory for reading it", name);
}

static int open_file(Stream *s, const char *path)
{
    struct stat st;
    int         std = strcmp(path, "-") == 0;
    s->fd           = fault_hit(FAULT_OPEN) ? -1 : std ? dup(STDIN_FILENO) : open(path, O_RDONLY | O_CLOEXEC);
    if (s->fd < 0) return file_refuse_open(s->name);
    if (fstat(s->fd, &st) != 0) return err_sys("%s: stat", s->name);
    if (S_ISDIR(st.st_mode)) return err_user("%s: is a folder", s->name);
    return look(s);
}

int stream_open(Stream **out, const char *path)
{
    Stream *s  = NULL;
    int     rc = make(&s, strcmp(path, "-") == 0 ? "standard input" : path);
    if (rc == 0) rc = open_file(s, path);
    if (rc < 0) {
        stream_close(s);
        return -1;
    }
    *out = s;
    return 0;
}

int stream_open_memory(Stream **out, const char *name, const void *bytes, size_t n)
{
    Stream *s  = NULL;
    int     rc = make(&s, name);
    if (rc == 0) {
        s->memory      = bytes;
        s->memory_left = n;
        rc             = look(s);
    }
    if (rc < 0) {
        stream_close(s);
        return -1;
    }
    *out = s;
    return 0;
}

void stream_close(Stream *s)
{
    if (!s) return;
    if (s->gzip_ready) inflateEnd(&s->gzip);
    ZSTD_freeDStream(s->zstd);
    if (s->fd >= 0) close(s->fd);
    free(s->in);
    free(s->name);
    free(s);
}

static int64_t read_plain(Stream *s, void *buf, size_t n)
{
    if (s->in_at >= s->in_len) return s->ended ? 0 : read_raw(s, buf, n);
    n = MIN(n, s->in_len - s->in_at);
    memcpy(buf, s->in + s->in_at, n);
    s->in_at += n;
    return (int64_t)n;
}

static int damaged(const Stream *s, const char *why)
{
    static const char *const kind[] = { "plain", "gzip", "zstd" };
    return err_user("%s: damaged %s data before byte %lld: %s", s->name, kind[s->kind],
                    (long long)(s->taken - (int64_t)(s->in_len - s->in_at)), why);
}

/* One call of zlib over what input there is. Returns the bytes of output. */
static int64_t step_gzip(Stream *s, void *buf, size_t n)
{
    z_stream *z  = &s->gzip;
    size_t    in = s->in_len - s->in_at;
    z->next_in   = s->in + s->in_at;
    z->avail_in  = (uInt)in;
    z->next_out  = buf;
    z->avail_out = (uInt)n;
    int rc       = inflate(z, Z_NO_FLUSH);
    s->in_at += in - z->avail_in;
    if (rc == Z_STREAM_END) {
        s->inside = 0;
        if (inflateReset(z) != Z_OK) return damaged(s, "cannot go on");
    } else if (rc != Z_OK && rc != Z_BUF_ERROR) {
        return damaged(s, z->msg ? z->msg : "not readable");
    } else {
        s->inside = 1;
    }
    return (int64_t)(n - z->avail_out);
}

static int64_t step_zstd(Stream *s, void *buf, size_t n)
{
    ZSTD_inBuffer  in   = { s->in + s->in_at, s->in_len - s->in_at, 0 };
    ZSTD_outBuffer out  = { buf, n, 0 };
    size_t         left = ZSTD_decompressStream(s->zstd, &out, &in);
    if (ZSTD_isError(left)) return damaged(s, ZSTD_getErrorName(left));
    s->in_at += in.pos;
    s->inside = left != 0;
    return (int64_t)out.pos;
}

int64_t stream_read(Stream *s, void *buf, size_t n)
{
    enum { MOST = 1 << 30 }; /* what zlib counts in */
    n = MIN(n, (size_t)MOST);
    if (s->kind == STREAM_PLAIN) return read_plain(s, buf, n);
    while (n > 0) {
        TRY(refill(s));
        int     no_input = s->in_at >= s->in_len;
        int64_t got      = 0;
        /* Zeros behind the last part are padding, as gzip itself takes them. */
        if (!no_input && !s->inside && s->kind == STREAM_GZIP && s->in[s->in_at] == 0) {
            s->in_at++;
            continue;
        }
        if (!no_input || s->inside)
            got = s->kind == STREAM_GZIP ? step_gzip(s, buf, n) : step_zstd(s, buf, n);
        if (got != 0) return got;
        if (!no_input) continue;
        return s->inside ? damaged(s, "it ends too early") : 0;
    }
    return 0;
}

int64_t stream_taken(const Stream *s) { return s->taken; }
