#include "base/json.h"

#include "base/err.h"
#include "base/fault.h"
#include "base/str.h"

#include <math.h>
#include <string.h>

void json_out_init_file(JsonOut *o, FILE *file)
{
    memset(o, 0, sizeof *o);
    o->file = file;
}

void json_out_init_buf(JsonOut *o, char *buf, size_t cap)
{
    memset(o, 0, sizeof *o);
    CHECK(cap > 0, "no room");
    o->buf = buf;
    o->cap = cap;
    buf[0] = '\0';
}

static void put(JsonOut *o, const char *s, size_t n)
{
    if (o->file) {
        if (fwrite(s, 1, n, o->file) != n) o->failed = 1;
        return;
    }
    if (o->len + n >= o->cap) {
        o->failed = 1;
        return;
    }
    memcpy(o->buf + o->len, s, n);
    o->len += n;
    o->buf[o->len] = '\0';
}

static void put_text(JsonOut *o, const char *s) { put(o, s, strlen(s)); }

/* Length of the well-formed UTF-8 character at s, 0 when it is malformed. s is terminated, and a terminator
 * is never a continuation byte, so this does not read past it. */
static size_t utf8_length(const unsigned char *s)
{
    size_t n = s[0] < 0x80 ? 1 : s[0] < 0xc2 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : s[0] < 0xf5 ? 4 : 0;
    for (size_t i = 1; i < n; i++) {
        if ((s[i] & 0xc0) != 0x80) return 0;
    }
    int overlong  = (s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xf0 && s[1] < 0x90);
    int surrogate = s[0] == 0xed && s[1] > 0x9f, beyond = s[0] == 0xf4 && s[1] > 0x8f;
    return overlong || surrogate || beyond ? 0 : n;
}

static void put_string(JsonOut *o, const char *s)
{
    put(o, "\"", 1);
    for (const unsigned char *p = (const unsigned char *)s; *p;) {
        size_t n = utf8_length(p);
        char   escape[8];
        if (*p == '"' || *p == '\\') {
            put(o, (char[]){ '\\', (char)*p }, 2);
        } else if (*p == '\n') {
            put_text(o, "\\n");
        } else if (*p == '\t') {
            put_text(o, "\\t");
        } else if (*p < 0x20) {
            snprintf(escape, sizeof escape, "\\u%04x", *p);
            put_text(o, escape);
        } else if (n == 0) {
            put_text(o, "\\ufffd");
        } else {
            put(o, (const char *)p, n);
        }
        p += MAX(n, (size_t)1);
    }
    put(o, "\"", 1);
}

static void begin_item(JsonOut *o, const char *key)
{
    if (o->depth > 0) {
        int *has = &o->has_item[o->depth - 1];
        CHECK((key != NULL) == (o->close[o->depth - 1] == '}'),
              "a key belongs into an object, and only there");
        if (*has) put_text(o, ", ");
        *has = 1;
    }
    if (key) {
        put_string(o, key);
        put_text(o, ": ");
    }
}

static void open_group(JsonOut *o, const char *key, char open, char close)
{
    begin_item(o, key);
    CHECK(o->depth < JSON_MAX_DEPTH, "nested deeper than %d", JSON_MAX_DEPTH);
    put(o, &open, 1);
    o->close[o->depth]    = close;
    o->has_item[o->depth] = 0;
    o->depth++;
}

void json_out_object(JsonOut *o, const char *key) { open_group(o, key, '{', '}'); }

void json_out_array(JsonOut *o, const char *key) { open_group(o, key, '[', ']'); }

void json_out_close(JsonOut *o)
{
    CHECK(o->depth > 0, "nothing is open");
    o->depth--;
    put(o, &o->close[o->depth], 1);
}

void json_out_num(JsonOut *o, const char *key, double x)
{
    char text[32] = "null";
    begin_item(o, key);
    if (isfinite(x)) str_double(text, sizeof text, x);
    put_text(o, text);
}

void json_out_int(JsonOut *o, const char *key, int64_t x)
{
    char text[32];
    begin_item(o, key);
    snprintf(text, sizeof text, "%lld", (long long)x);
    put_text(o, text);
}

void json_out_str(JsonOut *o, const char *key, const char *s)
{
    begin_item(o, key);
    if (s) {
        put_string(o, s);
    } else {
        put_text(o, "null");
    }
}

void json_out_bool(JsonOut *o, const char *key, int x)
{
    begin_item(o, key);
    put_text(o, x ? "true" : "false");
}

int json_out_end(JsonOut *o)
{
    while (o->depth > 0) json_out_close(o);
    if (!o->file) return o->failed ? err_set("JSON text does not fit into %zu bytes", o->cap) : 0;
    put(o, "\n", 1);
    if (fault_hit(FAULT_WRITE) || fflush(o->file) != 0 || o->failed) return err_sys("writing JSON");
    return 0;
}
