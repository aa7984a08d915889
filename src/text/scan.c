#include "text/scan.h"

#include "base/err.h"
#include "text/utf8.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void scan_init(Scan *s, const char *name, const char *data, size_t size_bytes)
{
    *s = (Scan){ name, data, 0, size_bytes };
}

int scan_blame(const Scan *s, const char *fmt, ...)
{
    char    text[256];
    int     line = 1;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    for (size_t i = 0; i < s->at && i < s->size_bytes; i++) line += s->data[i] == '\n';
    return err_user("%s:%d: %s (byte %zu)", s->name, line, text, s->at);
}

static void skip_space(Scan *s)
{
    while (s->at < s->size_bytes) {
        char c = s->data[s->at];
        if (c != ' ' && c != '\n' && c != '\t' && c != '\r') return;
        s->at++;
    }
}

int scan_peek(Scan *s)
{
    skip_space(s);
    return s->at < s->size_bytes ? (unsigned char)s->data[s->at] : scan_blame(s, "the file ends too early");
}

static int expect(Scan *s, char c)
{
    int got = scan_peek(s);
    if (got < 0) return -1;
    if (got != (unsigned char)c) return scan_blame(s, "expected '%c'", c);
    s->at++;
    return 0;
}

int scan_open(Scan *s, char open, int *more)
{
    char close = open == '{' ? '}' : ']';
    TRY(expect(s, open));
    int c = scan_peek(s);
    if (c < 0) return -1;
    *more = c != close;
    if (!*more) s->at++;
    return 0;
}

int scan_more(Scan *s, char close, int *more)
{
    int c = scan_peek(s);
    if (c < 0) return -1;
    if (c != ',' && c != close) return scan_blame(s, "expected ',' or '%c'", close);
    s->at++;
    *more = c == ',';
    return 0;
}

static int hex4(const Scan *s, size_t at, uint32_t *out)
{
    uint32_t v = 0;
    if (at + 4 > s->size_bytes) return -1;
    for (size_t i = 0; i < 4; i++) {
        char c = s->data[at + i];
        int  d = c >= '0' && c <= '9'   ? c - '0'
                 : c >= 'a' && c <= 'f' ? c - 'a' + 10
                 : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                        : -1;
        if (d < 0) return -1;
        v = v << 4 | (uint32_t)d;
    }
    *out = v;
    return 0;
}

/* s->at is behind the backslash. Returns the bytes written, at most as many as the escape has. */
static int unescape(Scan *s, char *out)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    if (s->at >= s->size_bytes) return scan_blame(s, "the file ends within a string");
    char        c  = s->data[s->at++];
    const char *at = c ? strchr(from, c) : NULL;
    if (at) {
        out[0] = to[at - from];
        return 1;
    }
    uint32_t code, low;
    if (c != 'u' || hex4(s, s->at, &code) < 0) return scan_blame(s, "a bad escape in a string");
    s->at += 4;
    if (code >= 0xd800 && code < 0xe000) {
        int pair = code < 0xdc00 && s->at + 6 <= s->size_bytes && s->data[s->at] == '\\' &&
                   s->data[s->at + 1] == 'u' && hex4(s, s->at + 2, &low) == 0 && low >= 0xdc00 &&
                   low < 0xe000;
        if (!pair) return scan_blame(s, "half of a surrogate pair in a string");
        s->at += 6;
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    return utf8_put((unsigned char *)out, code);
}

int64_t scan_string(Scan *s, char *out)
{
    TRY(expect(s, '"'));
    size_t len = 0;
    for (;;) {
        const char *p = s->data + s->at, *end = s->data + s->size_bytes, *q = p;
        while (q < end && *q != '"' && *q != '\\' && (signed char)*q >= 0x20) q++;
        memcpy(out + len, p, (size_t)(q - p));
        len += (size_t)(q - p);
        s->at += (size_t)(q - p);
        if (q == end) return scan_blame(s, "the file ends within a string");
        if (*q == '"') break;
        if (*q == '\\') {
            s->at++;
            int n = unescape(s, out + len);
            if (n < 0) return -1;
            len += (size_t)n;
            continue;
        }
        uint32_t code;
        int      n = utf8_next((const unsigned char *)q, (size_t)(end - q), &code);
        if (n < 1 || code < 0x20)
            return scan_blame(s, n < 1 ? "not UTF-8" : "a control character in a string");
        memcpy(out + len, q, (size_t)n);
        len += (size_t)n;
        s->at += (size_t)n;
    }
    s->at++;
    return (int64_t)len;
}

int64_t scan_key(Scan *s, char *out)
{
    int64_t n = scan_string(s, out);
    return n < 0 || expect(s, ':') < 0 ? -1 : n;
}

static int skip_string(Scan *s)
{
    for (s->at++; s->at < s->size_bytes; s->at++) {
        char c = s->data[s->at];
        if (c == '\\') {
            s->at++;
        } else if (c == '"') {
            s->at++;
            return 0;
        }
    }
    s->at = s->size_bytes;
    return scan_blame(s, "the file ends within a string");
}

int scan_key_short(Scan *s, char *buf, size_t n)
{
    int c = scan_peek(s);
    if (c < 0) return -1;
    if (c != '"') return scan_blame(s, "expected a key");
    size_t begin = s->at + 1;
    TRY(skip_string(s));
    size_t len = MIN(s->at - 1 - begin, n - 1);
    memcpy(buf, s->data + begin, len);
    buf[len] = '\0';
    return expect(s, ':');
}

int scan_int(Scan *s, int64_t *out)
{
    int c = scan_peek(s);
    if (c < 0) return -1;
    if (c < '0' || c > '9') return scan_blame(s, "expected a whole number that is not negative");
    int64_t v = 0;
    for (; s->at < s->size_bytes && s->data[s->at] >= '0' && s->data[s->at] <= '9'; s->at++) {
        v = v * 10 + (s->data[s->at] - '0');
        if (v > INT32_MAX) return scan_blame(s, "a number that is too large");
    }
    char next = s->at < s->size_bytes ? s->data[s->at] : ' ';
    if (next == '.' || next == 'e' || next == 'E') return scan_blame(s, "expected a whole number");
    *out = v;
    return 0;
}

/* A number, true, false, null. What they are is not looked at: jansson judges the parts that are used. */
static int skip_word(Scan *s)
{
    size_t begin = s->at;
    while (s->at < s->size_bytes) {
        char c = s->data[s->at], low = (char)(c | 32);
        if (!(c == '+' || c == '-' || c == '.' || (c >= '0' && c <= '9') || (low >= 'a' && low <= 'z')))
            break;
        s->at++;
    }
    return s->at > begin ? 0 : scan_blame(s, "not a JSON value");
}

int scan_skip(Scan *s, ScanSlice *slice)
{
    char close[SCAN_MAX_DEPTH];
    int  depth = 0, c = scan_peek(s), more = 1;
    slice->at = s->at;
    do {
        if (depth > 0 && close[depth - 1] == '}') {
            char key[2];
            TRY(scan_key_short(s, key, sizeof key));
        }
        c = scan_peek(s);
        if (c < 0) return -1;
        if (c == '{' || c == '[') {
            if (depth == SCAN_MAX_DEPTH) return scan_blame(s, "nested deeper than %d", SCAN_MAX_DEPTH);
            TRY(scan_open(s, (char)c, &more));
            if (more) {
                close[depth++] = c == '{' ? '}' : ']';
                continue;
            }
        } else {
            TRY(c == '"' ? skip_string(s) : skip_word(s));
        }
        for (more = 0; depth > 0 && !more;) {
            TRY(scan_more(s, close[depth - 1], &more));
            if (!more) depth--;
        }
    } while (depth > 0);
    slice->size_bytes = s->at - slice->at;
    return 0;
}

int scan_end(Scan *s)
{
    skip_space(s);
    return s->at == s->size_bytes ? 0 : scan_blame(s, "something follows the end of the JSON text");
}
