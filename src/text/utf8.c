#include "text/utf8.h"

#include "text/unicode.h"

#include <string.h>

int utf8_next(const unsigned char *p, size_t n, uint32_t *code)
{
    if (n == 0) return 0;
    uint32_t c = p[0];
    if (c < 0x80) {
        *code = c;
        return 1;
    }
    if (c < 0xc2 || c > 0xf4) return 0;
    if (n < 2 || (p[1] & 0xc0) != 0x80) return 0;
    if (c < 0xe0) {
        *code = (c & 0x1f) << 6 | (p[1] & 0x3fu);
        return 2;
    }
    if (n < 3 || (p[2] & 0xc0) != 0x80) return 0;
    if (c < 0xf0) {
        uint32_t v = (c & 0x0f) << 12 | (p[1] & 0x3fu) << 6 | (p[2] & 0x3fu);
        if (v < 0x800 || (v >= 0xd800 && v < 0xe000)) return 0;
        *code = v;
        return 3;
    }
    if (n < 4 || (p[3] & 0xc0) != 0x80) return 0;
    uint32_t v = (c & 0x07) << 18 | (p[1] & 0x3fu) << 12 | (p[2] & 0x3fu) << 6 | (p[3] & 0x3fu);
    if (v < 0x10000 || v > 0x10ffff) return 0;
    *code = v;
    return 4;
}

size_t utf8_valid(const unsigned char *p, size_t n, int *unusual)
{
    size_t i = 0;
    int    u = 0;
    while (i < n) {
        uint64_t eight;
        while (i + 8 <= n && (memcpy(&eight, p + i, 8), (eight & 0x8080808080808080u) == 0)) i += 8;
        if (i == n) break;
        uint32_t code;
        int      len = utf8_next(p + i, n - i, &code);
        if (len == 0) break;
        if (len >= 3) u |= unicode_is_unusual(code);
        i += (size_t)len;
    }
    *unusual = u;
    return i;
}

int utf8_put(unsigned char *out, uint32_t c)
{
    if (c < 0x80) {
        out[0] = (unsigned char)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (unsigned char)(0xc0 | c >> 6);
        out[1] = (unsigned char)(0x80 | (c & 0x3f));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (unsigned char)(0xe0 | c >> 12);
        out[1] = (unsigned char)(0x80 | (c >> 6 & 0x3f));
        out[2] = (unsigned char)(0x80 | (c & 0x3f));
        return 3;
    }
    out[0] = (unsigned char)(0xf0 | c >> 18);
    out[1] = (unsigned char)(0x80 | (c >> 12 & 0x3f));
    out[2] = (unsigned char)(0x80 | (c >> 6 & 0x3f));
    out[3] = (unsigned char)(0x80 | (c & 0x3f));
    return 4;
}

size_t utf8_pending(const unsigned char *p, size_t n)
{
    for (size_t back = 1; back <= 3 && back <= n; back++) {
        unsigned char c = p[n - back];
        if ((c & 0xc0) == 0x80) continue;
        size_t need = c >= 0xf0 && c <= 0xf4 ? 4 : c >= 0xe0 && c < 0xf0 ? 3 : c >= 0xc2 && c < 0xe0 ? 2 : 1;
        return need > back ? back : 0;
    }
    return 0;
}

int utf8_is_space(uint32_t c)
{
    if (c < 0x80) return (c >= 9 && c <= 13) || c == ' ';
    return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 ||
           c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

/* ---- byte alphabet ---- */

static int stands_for_itself(uint32_t b)
{
    return (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || (b >= 0xae && b <= 0xff);
}

/* The others in order: 0x00 to 0x20, 0x7f to 0xa0, 0xad. */
uint32_t utf8_byte_char(unsigned char b)
{
    if (stands_for_itself(b)) return b;
    if (b <= 0x20) return 0x100u + b;
    return b == 0xad ? 0x143u : 0x121u + (b - 0x7fu);
}

int utf8_char_byte(uint32_t c)
{
    if (c < 0x100) return stands_for_itself(c) ? (int)c : -1;
    if (c <= 0x120) return (int)(c - 0x100);
    if (c <= 0x142) return (int)(c - 0x121 + 0x7f);
    return c == 0x143 ? 0xad : -1;
}

int64_t utf8_from_alphabet(const unsigned char *p, size_t n, unsigned char *out)
{
    size_t len = 0;
    for (size_t i = 0; i < n;) {
        uint32_t code;
        int      step = utf8_next(p + i, n - i, &code);
        int      byte = step > 0 ? utf8_char_byte(code) : -1;
        if (byte < 0) return -1;
        out[len++] = (unsigned char)byte;
        i += (size_t)step;
    }
    return (int64_t)len;
}

size_t utf8_to_alphabet(const unsigned char *p, size_t n, unsigned char *out)
{
    size_t len = 0;
    for (size_t i = 0; i < n; i++) len += (size_t)utf8_put(out + len, utf8_byte_char(p[i]));
    return len;
}
