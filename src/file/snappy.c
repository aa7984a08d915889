#include "file/snappy.h"

#include <string.h>

enum { LITERAL, COPY_1, COPY_2, COPY_4 };

typedef struct {
    const uint8_t *p, *end;
    uint8_t       *begin, *out, *out_end;
} Block;

static size_t little(const uint8_t *p, int n)
{
    size_t v = 0;
    for (int i = 0; i < n; i++) v |= (size_t)p[i] << 8 * i;
    return v;
}

/* 0: the lengths do not fit. */
static int put_literal(Block *b, uint8_t tag)
{
    size_t n = (size_t)(tag >> 2);
    if (n >= 60) {
        int extra = (int)n - 59;
        if (b->end - b->p < extra) return 0;
        n = little(b->p, extra);
        b->p += extra;
    }
    n++;
    size_t in = (size_t)(b->end - b->p), room = (size_t)(b->out_end - b->out);
    if (n > in || n > room) return 0;
    /* Most are short: 16 bytes at once where there is room for them. */
    if (n <= 16 && in >= 16 && room >= 16) {
        memcpy(b->out, b->p, 16);
    } else {
        memcpy(b->out, b->p, n);
    }
    b->p += n;
    b->out += n;
    return 1;
}

/* A copy from behind may overlap what it makes: then its first bytes repeat. */
static void repeat(uint8_t *out, size_t offset, size_t n, size_t room)
{
    const uint8_t *from = out - offset;
    if (offset >= 16 && room >= n + 16) {
        for (size_t i = 0; i < n; i += 16) memcpy(out + i, from + i, 16);
        return;
    }
    if (offset >= 8 && room >= n + 8) {
        for (size_t i = 0; i < n; i += 8) memcpy(out + i, from + i, 8);
        return;
    }
    for (size_t i = 0; i < n; i++) out[i] = from[i];
}

static int put_copy(Block *b, uint8_t tag)
{
    int    kind = tag & 3, extra = kind == COPY_4 ? 4 : kind;
    size_t n = (size_t)(tag >> 2) + 1, offset = 0, room = (size_t)(b->out_end - b->out);
    if (b->end - b->p < extra) return 0;
    if (kind == COPY_1) {
        n      = (size_t)(tag >> 2 & 7) + 4;
        offset = (size_t)(tag >> 5) << 8 | b->p[0];
    } else if (kind == COPY_2) {
        offset = (size_t)b->p[1] << 8 | b->p[0];
    } else {
        offset = little(b->p, 4);
    }
    b->p += extra;
    if (offset == 0 || offset > (size_t)(b->out - b->begin) || n > room) return 0;
    repeat(b->out, offset, n, room);
    b->out += n;
    return 1;
}

const char *snappy_unpack(const uint8_t *p, size_t n, uint8_t *out, size_t n_out)
{
    Block    b   = { p, p + n, out, out, out + n_out };
    uint64_t len = 0;
    for (int shift = 0;; shift += 7) {
        if (b.p == b.end || shift > 28) return "it has no length";
        len |= (uint64_t)(*b.p & 0x7f) << shift;
        if (!(*b.p++ & 0x80)) break;
    }
    if (len != n_out) return "its length is not that of its page";
    while (b.p < b.end) {
        uint8_t tag = *b.p++;
        if (!((tag & 3) == LITERAL ? put_literal(&b, tag) : put_copy(&b, tag))) return "a piece does not fit";
    }
    return b.out == b.out_end ? NULL : "it ends too early";
}
