#include "file/thrift.h"

enum { MOST_DEPTH = 32 };

static int fail(Thrift *t)
{
    t->bad = 1;
    t->p   = t->end;
    return 0;
}

static uint8_t byte(Thrift *t) { return t->p < t->end ? *t->p++ : (uint8_t)fail(t); }

static void step(Thrift *t, uint64_t n)
{
    if (n > (uint64_t)(t->end - t->p)) {
        fail(t);
    } else {
        t->p += n;
    }
}

uint64_t thrift_varint(Thrift *t)
{
    uint64_t v = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        uint8_t b = byte(t);
        if (shift == 63 && b > 1) break;
        v |= (uint64_t)(b & 0x7f) << shift;
        if (!(b & 0x80)) return v;
    }
    return (uint64_t)fail(t);
}

int64_t thrift_zigzag(Thrift *t)
{
    uint64_t v = thrift_varint(t);
    return (int64_t)(v >> 1) ^ -(int64_t)(v & 1);
}

ThriftType thrift_field(Thrift *t, int *id)
{
    uint8_t b    = byte(t);
    int     type = b & 15, delta = b >> 4;
    if (t->bad || type == THRIFT_STOP) return THRIFT_STOP;
    int64_t next = delta ? *id + delta : thrift_zigzag(t);
    if (type > THRIFT_UUID || next < 1 || next > INT16_MAX) return (ThriftType)fail(t);
    *id = (int)next;
    return (ThriftType)type;
}

void thrift_want(Thrift *t, ThriftType type, ThriftType want)
{
    if (type != want) fail(t);
}

int64_t thrift_int(Thrift *t, ThriftType type)
{
    if (type == THRIFT_BYTE) return (int8_t)byte(t);
    if (type < THRIFT_I16 || type > THRIFT_I64) return fail(t);
    int64_t v = thrift_zigzag(t);
    if (type == THRIFT_I16 && v != (int16_t)v) return fail(t);
    if (type == THRIFT_I32 && v != (int32_t)v) return fail(t);
    return v;
}

const uint8_t *thrift_binary(Thrift *t, ThriftType type, size_t *n)
{
    thrift_want(t, type, THRIFT_BINARY);
    uint64_t len = thrift_varint(t);
    if (len > (uint64_t)(t->end - t->p)) len = (uint64_t)fail(t);
    const uint8_t *p = t->p;
    t->p += len;
    *n = (size_t)len;
    return p;
}

/* The head of a list or set. Every element takes a byte at least. */
static int64_t list_head(Thrift *t, int *of)
{
    uint8_t  b = byte(t);
    uint64_t n = b >> 4 == 15 ? thrift_varint(t) : b >> 4;
    *of        = b & 15;
    return n > (uint64_t)(t->end - t->p) ? fail(t) : (int64_t)n;
}

int64_t thrift_list(Thrift *t, ThriftType type, ThriftType of)
{
    int     got;
    int64_t n = 0;
    thrift_want(t, type, THRIFT_LIST);
    n = list_head(t, &got);
    if (n > 0 && got != (int)of) return fail(t);
    return n;
}

static void skip(Thrift *t, int type, int in_list, int depth);

static void skip_struct(Thrift *t, int depth)
{
    int        id = 0;
    ThriftType type;
    while ((type = thrift_field(t, &id)) != THRIFT_STOP) skip(t, (int)type, 0, depth);
}

static void skip_list(Thrift *t, int depth)
{
    int     of;
    int64_t n = list_head(t, &of);
    for (; n > 0 && !t->bad; n--) skip(t, of, 1, depth);
}

static void skip_map(Thrift *t, int depth)
{
    uint64_t n = thrift_varint(t);
    if (n == 0) return;
    uint8_t of = byte(t);
    if (n > (uint64_t)(t->end - t->p) / 2) fail(t);
    for (; n > 0 && !t->bad; n--) {
        skip(t, of >> 4, 1, depth);
        skip(t, of & 15, 1, depth);
    }
}

static void skip(Thrift *t, int type, int in_list, int depth)
{
    if (depth >= MOST_DEPTH) fail(t);
    switch (type) {
    case THRIFT_TRUE:
    case THRIFT_FALSE: step(t, in_list ? 1 : 0); break; /* a field's type is its value */
    case THRIFT_BYTE: step(t, 1); break;
    case THRIFT_I16:
    case THRIFT_I32:
    case THRIFT_I64: thrift_varint(t); break;
    case THRIFT_DOUBLE: step(t, 8); break;
    case THRIFT_BINARY: step(t, thrift_varint(t)); break;
    case THRIFT_LIST:
    case THRIFT_SET: skip_list(t, depth + 1); break;
    case THRIFT_MAP: skip_map(t, depth + 1); break;
    case THRIFT_STRUCT: skip_struct(t, depth + 1); break;
    case THRIFT_UUID: step(t, 16); break;
    default: fail(t);
    }
}

void thrift_skip(Thrift *t, ThriftType type) { skip(t, (int)type, 0, 0); }
