/* A small writer of Parquet files for tests, written from the format's description and apart from the reader:
 * a file in memory with the columns id, TEXT (the only one with pages), tags (a list) and title. */
#ifndef TESTS_PARQUET_WRITER_H
#define TESTS_PARQUET_WRITER_H

#include "base/err.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>
#include <zstd.h>

typedef struct {
    uint8_t *p;
    size_t   n, cap;
} Bytes;

typedef struct {
    const char *p; /* NULL: null */
    size_t      n;
} Value;

enum { W_PLAIN = 0, W_PLAIN_DICT = 2, W_DELTA_LENGTH = 6, W_DELTA_BYTES = 7, W_DICT = 8 };

typedef struct {
    int         version, encoding, codec, optional, crc; /* of data pages: 1 or 2; codec as in the file */
    int         groups;                                  /* 1: levels and words in packed groups, not runs */
    int64_t     per_page, per_group;
    const char *name;
    /* What a damaged file says instead. */
    int64_t say_size, say_values;
    int     say_encoding, say_codec, encrypted;
} Form;

static void put(Bytes *b, const void *p, size_t n)
{
    if (b->n + n > b->cap) {
        b->cap = (b->n + n) * 2 + 64;
        b->p   = realloc(b->p, b->cap);
        CHECK(b->p, "memory");
    }
    if (n > 0) memcpy(b->p + b->n, p, n);
    b->n += n;
}

static void put_byte(Bytes *b, int v) { put(b, &(uint8_t){ (uint8_t)v }, 1); }
static void put_u32(Bytes *b, size_t v) { put(b, &(uint32_t){ (uint32_t)v }, 4); }

static void put_varint(Bytes *b, uint64_t v)
{
    for (; v >= 128; v >>= 7) put_byte(b, (int)(v & 127) | 128);
    put_byte(b, (int)v);
}

static void put_zigzag(Bytes *b, int64_t v) { put_varint(b, (uint64_t)v << 1 ^ (uint64_t)(v >> 63)); }

/* ---- Thrift: each field says how far its number is from the one before --------------------------------- */

enum { T_TRUE = 1, T_FALSE = 2, T_I32 = 5, T_I64 = 6, T_BIN = 8, T_LIST = 9, T_STRUCT = 12 };

static void put_field(Bytes *b, int *last, int id, int type)
{
    put_byte(b, (id - *last) << 4 | type);
    *last = id;
}

static void put_int(Bytes *b, int *last, int id, int64_t v)
{
    put_field(b, last, id, v > INT32_MAX ? T_I64 : T_I32);
    put_zigzag(b, v);
}

static void put_text(Bytes *b, int *last, int id, const char *s)
{
    put_field(b, last, id, T_BIN);
    put_varint(b, strlen(s));
    put(b, s, strlen(s));
}

static void put_list(Bytes *b, int *last, int id, size_t n, int of)
{
    put_field(b, last, id, T_LIST);
    put_byte(b, (int)(n < 15 ? n : 15) << 4 | of);
    if (n >= 15) put_varint(b, n);
}

/* ---- encodings ----------------------------------------------------------------------------------------- */

static int bits_for(uint64_t v)
{
    int n = 0;
    for (; v; v >>= 1) n++;
    return n;
}

static void put_bits(Bytes *b, const uint64_t *v, int64_t n, int width)
{
    uint64_t held = 0;
    int      have = 0;
    for (int64_t i = 0; i < n; i++) {
        for (int k = 0; k < width; k++) {
            held |= (v[i] >> k & 1) << have;
            if (++have < 8) continue;
            put_byte(b, (int)held);
            held = 0;
            have = 0;
        }
    }
    if (have > 0) put_byte(b, (int)held);
}

static void put_runs(Bytes *b, const uint64_t *v, int64_t n, int width, int groups)
{
    if (groups) {
        uint64_t *padded = calloc((size_t)n + 8, sizeof *padded);
        for (int64_t i = 0; i < n; i++) padded[i] = v[i];
        put_varint(b, (uint64_t)((n + 7) / 8) << 1 | 1);
        put_bits(b, padded, (n + 7) / 8 * 8, width);
        free(padded);
        return;
    }
    for (int64_t i = 0, k; i < n; i = k) {
        for (k = i; k < n && v[k] == v[i]; k++) {
        }
        put_varint(b, (uint64_t)(k - i) << 1);
        put(b, &v[i], (size_t)(width + 7) / 8);
    }
}

static void put_deltas(Bytes *b, const int64_t *v, int64_t n)
{
    enum { BLOCK = 128, MINI = 4, EACH = BLOCK / MINI };
    put_varint(b, BLOCK);
    put_varint(b, MINI);
    put_varint(b, (uint64_t)n);
    put_zigzag(b, n > 0 ? v[0] : 0);
    for (int64_t i = 1; i < n; i += BLOCK) {
        int64_t  least    = INT64_MAX;
        uint64_t d[BLOCK] = { 0 }, most[MINI] = { 0 };
        int64_t  m = MIN(BLOCK, n - i);
        for (int64_t k = 0; k < m; k++) least = MIN(least, v[i + k] - v[i + k - 1]);
        for (int64_t k = 0; k < m; k++) {
            d[k]           = (uint64_t)(v[i + k] - v[i + k - 1] - least);
            most[k / EACH] = MAX(most[k / EACH], d[k]);
        }
        put_zigzag(b, least);
        /* What stands for miniblocks without numbers does not matter. */
        for (int k = 0; k < MINI; k++) put_byte(b, k * EACH < m ? bits_for(most[k]) : 77);
        for (int k = 0; k < MINI && k * EACH < m; k++) put_bits(b, d + k * EACH, EACH, bits_for(most[k]));
    }
}

static size_t shared(const Value *a, const Value *b)
{
    size_t n = 0;
    while (a && n < a->n && n < b->n && a->p[n] == b->p[n]) n++;
    return n;
}

static void put_value(Bytes *b, const Value *v)
{
    put_u32(b, v->n);
    put(b, v->p, v->n);
}

static int64_t find_word(const Value *word, int64_t n, const Value *v)
{
    for (int64_t i = 0; i < n; i++) {
        if (word[i].n == v->n && memcmp(word[i].p, v->p, v->n) == 0) return i;
    }
    return -1;
}

/* The values of a page that are not null. */
static void put_values(Bytes *b, const Form *f, const Value *v, int64_t n, const Value *word, int64_t n_word)
{
    int64_t  *a = calloc((size_t)n + 1, sizeof *a), *c = calloc((size_t)n + 1, sizeof *c);
    uint64_t *w = calloc((size_t)n + 1, sizeof *w);
    for (int64_t i = 0; i < n; i++) {
        size_t same = f->encoding == W_DELTA_BYTES ? shared(i ? &v[i - 1] : NULL, &v[i]) : 0;
        a[i]        = (int64_t)same;
        c[i]        = (int64_t)(v[i].n - same);
        if (word) w[i] = (uint64_t)find_word(word, n_word, &v[i]);
    }
    if (f->encoding == W_PLAIN) {
        for (int64_t i = 0; i < n; i++) put_value(b, &v[i]);
    } else if (word) {
        int width = n_word > 1 ? bits_for((uint64_t)n_word - 1) : 0;
        put_byte(b, width);
        put_runs(b, w, n, width, f->groups);
    } else {
        if (f->encoding == W_DELTA_BYTES) put_deltas(b, a, n);
        put_deltas(b, c, n);
        for (int64_t i = 0; i < n; i++) put(b, v[i].p + a[i], (size_t)c[i]);
    }
    free(a);
    free(c);
    free(w);
}

/* ---- pages --------------------------------------------------------------------------------------------- */

/* Snappy without a search: literals, and what repeats the byte before it. */
static void put_snappy(Bytes *b, const uint8_t *p, size_t n)
{
    put_varint(b, n);
    for (size_t i = 0; i < n;) {
        size_t run = 0, len = 0;
        while (i > 0 && run < 64 && i + run < n && p[i + run] == p[i - 1]) run++;
        if (run >= 4) {
            put_byte(b, (int)(run - 1) << 2 | 2);
            put(b, "\x01\x00", 2);
            i += run;
            continue;
        }
        for (len = 1;
             i + len < n && len < 70000 && (i + len < 4 || memcmp(p + i + len - 4, p + i + len - 3, 4));
             len++) {
        }
        if (len <= 60) {
            put_byte(b, (int)(len - 1) << 2);
        } else {
            put_byte(b, len <= 65536 ? 61 << 2 : 62 << 2);
            put(b, &(uint32_t){ (uint32_t)(len - 1) }, len <= 65536 ? 2 : 3);
        }
        put(b, p + i, len);
        i += len;
    }
}

static void put_packed(Bytes *b, int codec, const uint8_t *p, size_t n)
{
    size_t room = ZSTD_compressBound(n) + n / 100 + 1000;
    char  *out  = malloc(room);
    if (codec == 1) put_snappy(b, p, n);
    if (codec == 2) {
        z_stream z = {
            .next_in = (Bytef *)p, .avail_in = (uInt)n, .next_out = (Bytef *)out, .avail_out = (uInt)room
        };
        CHECK(deflateInit2(&z, 6, Z_DEFLATED, 31, 8, Z_DEFAULT_STRATEGY) == Z_OK, "zlib");
        CHECK(deflate(&z, Z_FINISH) == Z_STREAM_END, "zlib");
        put(b, out, room - z.avail_out);
        deflateEnd(&z);
    }
    if (codec == 6) put(b, out, ZSTD_compress(out, room, p, n, 3));
    if (codec == 0) put(b, p, n);
    free(out);
}

static void put_page(Bytes *b, const Form *f, int kind, const Bytes *levels, const Bytes *values, int64_t n,
                     int64_t n_null)
{
    Bytes body = { 0 }, whole = { 0 };
    int   last = 0, in = 0;
    if (kind == 3) {
        put(&body, levels->p, levels->n);
        put_packed(&body, f->codec, values->p, values->n);
    } else {
        if (levels) put_u32(&whole, levels->n);
        if (levels) put(&whole, levels->p, levels->n);
        put(&whole, values->p, values->n);
        put_packed(&body, f->codec, whole.p, whole.n);
    }
    size_t size = kind == 3 ? levels->n + values->n : whole.n;
    put_int(b, &last, 1, kind);
    put_int(b, &last, 2, f->say_size ? f->say_size : (int64_t)size);
    put_int(b, &last, 3, (int64_t)body.n);
    if (f->crc) put_int(b, &last, 4, (int32_t)crc32(0, body.p, (uInt)body.n));
    put_field(b, &last, kind == 0 ? 5 : kind == 2 ? 7 : 8, T_STRUCT);
    int encoding = kind == 2 ? W_PLAIN : f->say_encoding ? f->say_encoding : f->encoding;
    put_int(b, &in, 1, kind != 2 && f->say_values ? f->say_values : n);
    if (kind == 3) {
        put_int(b, &in, 2, n_null);
        put_int(b, &in, 3, n);
        put_int(b, &in, 4, encoding);
        put_int(b, &in, 5, (int64_t)levels->n);
        put_int(b, &in, 6, 0);
    } else {
        put_int(b, &in, 2, encoding);
        if (kind == 0) put_int(b, &in, 3, 3);
        if (kind == 0) put_int(b, &in, 4, 3);
    }
    put_byte(b, 0);
    put_byte(b, 0);
    put(b, body.p, body.n);
    free(body.p);
    free(whole.p);
}

static void put_data_page(Bytes *b, const Form *f, const Value *v, int64_t n, const Value *word,
                          int64_t n_word)
{
    Bytes     levels = { 0 }, values = { 0 };
    uint64_t *level = calloc((size_t)n + 1, sizeof *level);
    Value    *some  = calloc((size_t)n + 1, sizeof *some);
    int64_t   m     = 0;
    for (int64_t i = 0; i < n; i++) {
        level[i] = v[i].p != NULL;
        if (v[i].p) some[m++] = v[i];
    }
    if (f->optional) put_runs(&levels, level, n, 1, f->groups);
    put_values(&values, f, some, m, word, n_word);
    put_page(b, f, f->version == 2 ? 3 : 0, f->optional || f->version == 2 ? &levels : NULL, &values, n,
             n - m);
    free(levels.p);
    free(values.p);
    free(level);
    free(some);
}

/* ---- files --------------------------------------------------------------------------------------------- */

typedef struct {
    int64_t dictionary_at, data_at, end, n;
} Group;

static Group put_group(Bytes *b, const Form *f, const Value *v, int64_t n)
{
    Group   g      = { .n = n };
    Value  *word   = NULL;
    int64_t n_word = 0;
    if (f->encoding == W_DICT || f->encoding == W_PLAIN_DICT) {
        Bytes values = { 0 };
        word         = calloc((size_t)n + 1, sizeof *word);
        for (int64_t i = 0; i < n; i++) {
            if (v[i].p && find_word(word, n_word, &v[i]) < 0) word[n_word++] = v[i];
        }
        for (int64_t i = 0; i < n_word; i++) put_value(&values, &word[i]);
        g.dictionary_at = (int64_t)b->n;
        put_page(b, f, 2, NULL, &values, n_word, 0);
        free(values.p);
    }
    g.data_at = (int64_t)b->n;
    for (int64_t i = 0; i < n; i += f->per_page)
        put_data_page(b, f, v + i, MIN(f->per_page, n - i), word, n_word);
    g.end = (int64_t)b->n;
    free(word);
    return g;
}

static void put_element(Bytes *b, const char *name, int type, int repeat, int n_child, int converted)
{
    int last = 0;
    if (type >= 0) put_int(b, &last, 1, type);
    if (repeat >= 0) put_int(b, &last, 3, repeat);
    put_text(b, &last, 4, name);
    if (n_child > 0) put_int(b, &last, 5, n_child);
    if (converted >= 0) put_int(b, &last, 6, converted);
    put_byte(b, 0);
}

static void put_column(Bytes *b, const Form *f, int type, const char *name, const Group *g)
{
    int last = 0, in = 0;
    put_int(b, &last, 2, g->data_at);
    put_field(b, &last, 3, T_STRUCT);
    put_int(b, &in, 1, type);
    put_list(b, &in, 2, 1, T_I32);
    put_zigzag(b, f->encoding);
    put_list(b, &in, 3, 1, T_BIN);
    put_varint(b, strlen(name));
    put(b, name, strlen(name));
    put_int(b, &in, 4, f->say_codec ? f->say_codec : f->codec);
    put_int(b, &in, 5, g->n);
    put_int(b, &in, 6, g->end - g->data_at);
    put_int(b, &in, 7, g->end - (g->dictionary_at ? g->dictionary_at : g->data_at));
    put_int(b, &in, 9, g->data_at);
    if (g->dictionary_at) put_int(b, &in, 11, g->dictionary_at);
    put_byte(b, 0);
    put_byte(b, 0);
}

static void put_footer(Bytes *b, const Form *f, const Group *group, size_t n_group, int64_t n)
{
    int    last = 0;
    size_t at   = b->n;
    put_int(b, &last, 1, 1);
    put_list(b, &last, 2, 7, T_STRUCT);
    put_element(b, "schema", -1, -1, 4, -1);
    put_element(b, "id", 1, 0, 0, -1);
    put_element(b, f->name ? f->name : "text", 6, f->optional, 0, 0);
    put_element(b, "tags", -1, 1, 1, 3);
    put_element(b, "list", -1, 2, 1, -1);
    put_element(b, "element", 6, 1, 0, 0);
    put_element(b, "title", 6, 1, 0, 0);
    put_int(b, &last, 3, n);
    put_list(b, &last, 4, n_group, T_STRUCT);
    for (size_t i = 0; i < n_group; i++) {
        int in = 0;
        put_list(b, &in, 1, 4, T_STRUCT);
        put_column(b, f, 1, "id", &group[i]);
        put_column(b, f, 6, f->name ? f->name : "text", &group[i]);
        put_column(b, f, 6, "tags", &group[i]);
        put_column(b, f, 6, "title", &group[i]);
        put_int(b, &in, 2, group[i].end - group[i].data_at);
        put_int(b, &in, 3, group[i].n);
        put_byte(b, 0);
    }
    put_text(b, &last, 6, "a test");
    if (f->encrypted) {
        put_field(b, &last, 8, T_STRUCT);
        put_byte(b, 0);
    }
    put_byte(b, 0);
    put_u32(b, b->n - at);
    put(b, "PAR1", 4);
}

/* The whole file; the caller frees .p. */
static Bytes parquet_of(const Form *f, const Value *v, int64_t n)
{
    Bytes  b       = { 0 };
    Group *group   = calloc((size_t)(n / f->per_group) + 1, sizeof *group);
    size_t n_group = 0;
    put(&b, "PAR1", 4);
    for (int64_t i = 0; i < n; i += f->per_group)
        group[n_group++] = put_group(&b, f, v + i, MIN(f->per_group, n - i));
    put_footer(&b, f, group, n_group, n);
    free(group);
    return b;
}

#endif
