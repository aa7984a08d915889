#include "file/tar.h"

#include "base/err.h"
#include "base/file.h"
#include "base/str.h"

#include <stdio.h>
#include <string.h>

enum {
    BLOCK     = 512,
    META_MOST = 1 << 16,
    AT_SIZE   = 124,
    AT_CHECK  = 148,
    AT_TYPE   = 156,
    AT_MAGIC  = 257,
    AT_PREFIX = 345
};

void tar_begin(Tar *t, const char *path, int fd, int64_t file_bytes)
{
    *t = (Tar){ .path = path, .fd = fd, .file_bytes = file_bytes, .next_size = -1 };
}

static int bad(const Tar *t, const char *what)
{
    return err_user("%s: byte %lld: %s", t->path, (long long)t->at, what);
}

/* Octal digits, or GNU's big-endian binary behind a set first bit. Negative: neither. */
static int64_t number(const uint8_t *p, int n)
{
    int64_t v = 0;
    if (p[0] & 0x80) {
        if (p[0] != 0x80) return -1;
        for (int i = 1; i < n; i++) {
            if (v >> 54) return -1;
            v = v << 8 | p[i];
        }
        return v;
    }
    int i = 0;
    while (i < n && p[i] == ' ') i++;
    for (; i < n && p[i] >= '0' && p[i] <= '7'; i++) v = v << 3 | (p[i] - '0');
    return i == n || p[i] == ' ' || p[i] == '\0' ? v : -1;
}

static int check_block(const Tar *t, const uint8_t *b)
{
    int64_t want = number(b + AT_CHECK, 8), sum = 0;
    for (int i = 0; i < BLOCK; i++) sum += i >= AT_CHECK && i < AT_CHECK + 8 ? ' ' : b[i];
    return want == sum ? 0 : bad(t, "not a header of a tar file");
}

static void header_name(Tar *t, const uint8_t *b)
{
    char prefix[156] = "", name[101] = "";
    memcpy(name, b, 100);
    if (memcmp(b + AT_MAGIC, "ustar\0", 6) == 0) memcpy(prefix, b + AT_PREFIX, 155);
    snprintf(t->name, sizeof t->name, "%s%s%s", prefix, prefix[0] ? "/" : "", name);
}

/* Lines "LENGTH key=value\n" of a pax header. */
static int read_pax(Tar *t, char *text, size_t n)
{
    size_t at = 0;
    while (at < n) {
        size_t  len = 0, i = at;
        int64_t size;
        for (; i < n && text[i] >= '0' && text[i] <= '9' && len < META_MOST; i++)
            len = len * 10 + (size_t)(text[i] - '0');
        if (i >= n || text[i] != ' ' || len < i - at + 3 || len > n - at || text[at + len - 1] != '\n')
            return bad(t, "a pax header that cannot be read");
        char *key          = text + i + 1;
        text[at + len - 1] = '\0';
        if (str_starts_with(key, "path=")) {
            if (str_copy(t->name, sizeof t->name, key + 5) < 0) return bad(t, "a name of over 4095 bytes");
            t->has_name = 1;
        } else if (str_starts_with(key, "size=")) {
            if (str_parse_int(key + 5, &size) < 0 || size < 0) return bad(t, "a pax size that is no number");
            t->next_size = size;
        }
        at += len;
    }
    return 0;
}

/* A header about the next member: 'L' its name, 'x' its pax attributes. */
static int read_meta(Tar *t, char type, int64_t at, int64_t size)
{
    char text[META_MOST + 1];
    if (size > META_MOST) return bad(t, "a long name or pax header of over 64 KiB");
    TRY(file_read_at(t->fd, t->path, text, (size_t)size, at));
    text[size] = '\0';
    if (type == 'x') return read_pax(t, text, (size_t)size);
    if (str_copy(t->name, sizeof t->name, text) < 0) return bad(t, "a name of over 4095 bytes");
    t->has_name = 1;
    return 0;
}

/* One header: 1 for a regular file or a link to one, 0 for anything else. */
static int take_header(Tar *t, const uint8_t *b)
{
    TRY(check_block(t, b));
    char    type = (char)b[AT_TYPE];
    int     meta = type == 'L' || type == 'x';
    int64_t size = number(b + AT_SIZE, 12), data = t->at + BLOCK;
    if (!meta && t->next_size >= 0) size = t->next_size;
    if (size < 0) return bad(t, "a size that is no number");
    if (size > t->file_bytes - data) return bad(t, "a member that is longer than the file: truncated");
    if (meta) TRY(read_meta(t, type, data, size));
    if (!meta && !t->has_name) header_name(t, b);
    t->offset     = data;
    t->size_bytes = size;
    t->at         = data + (size + BLOCK - 1) / BLOCK * BLOCK;
    if (meta) return 0;
    t->has_name  = 0;
    t->next_size = -1;
    t->is_link   = type == '1' || type == '2';
    return t->is_link || type == '0' || type == '\0' || type == '7';
}

int tar_next(Tar *t)
{
    static const uint8_t zero[BLOCK];
    uint8_t              b[BLOCK];
    while (t->at + BLOCK <= t->file_bytes) {
        TRY(file_read_at(t->fd, t->path, b, BLOCK, t->at));
        if (memcmp(b, zero, BLOCK) == 0) return 0;
        int rc = take_header(t, b);
        if (rc != 0) return rc;
    }
    return t->at >= t->file_bytes ? 0 : bad(t, "half a header: truncated");
}
