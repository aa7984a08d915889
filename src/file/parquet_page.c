#include "base/err.h"
#include "base/file.h"
#include "base/mem.h"
#include "file/parquet_impl.h"
#include "file/snappy.h"

#include <stdlib.h>
#include <string.h>

enum { READ_BYTES = 1 << 18, HEADER_BYTES = 1 << 13, MOST_HEADER = 1 << 24 };

/* A page of such a size is unpacked whatever its packed size is; a larger one must have some packed bytes. */
enum { MOST_PAGE = 1 << 30, FREE_PAGE = 1 << 26, MOST_RATIO = 1024 };

typedef struct {
    int64_t kind, size_bytes, packed_bytes, crc, n_value, encoding, level_kind;
    int64_t n_null, level_bytes, repeat_bytes; /* of version 2 */
    int     has_crc, has_fields, is_packed;
} PageHeader;

/* ---- bytes of the file --------------------------------------------------------------------------------- */

/* Makes sure that n bytes of the file from p->at on are in p->in. They lie in the chunk. */
static int hold(Parquet *p, const ParquetChunk *c, size_t n)
{
    int64_t left = c->at + c->size_bytes - p->at, skip = p->at - p->in_at;
    CHECK((int64_t)n <= left, "bytes behind the chunk");
    if (skip < 0 || skip > (int64_t)p->in.n) skip = (int64_t)p->in.n;
    size_t have = p->in.n - (size_t)skip;
    if (have >= n) return 0;
    if (have > 0) memmove(p->in.p, p->in.p + skip, have);
    p->in_at    = p->at;
    p->in.n     = have;
    size_t want = MAX(n, (size_t)MIN(left, (int64_t)READ_BYTES));
    TRY(parquet_reserve(p, &p->in, want, have));
    TRY(file_read_at(p->fd, p->path, p->in.p + have, want - have, p->at + (int64_t)have));
    p->in.n = want;
    return 0;
}

static const uint8_t *held(const Parquet *p) { return p->in.p + (p->at - p->in_at); }

/* ---- headers ------------------------------------------------------------------------------------------- */

static void read_data_header(Thrift *t, PageHeader *h)
{
    ThriftType type;
    for (int id = 0; (type = thrift_field(t, &id)) != THRIFT_STOP;) {
        if (id == 1) {
            h->n_value = thrift_int(t, type);
        } else if (id == 2) {
            h->encoding = thrift_int(t, type);
        } else if (id == 3 && h->kind == PARQUET_DATA) {
            h->level_kind = thrift_int(t, type);
        } else {
            thrift_skip(t, type);
        }
    }
    h->has_fields = 1;
}

static void read_data_header_2(Thrift *t, PageHeader *h)
{
    ThriftType type;
    for (int id = 0; (type = thrift_field(t, &id)) != THRIFT_STOP;) {
        int64_t *field[] = { NULL,         &h->n_value,     &h->n_null,      NULL,
                             &h->encoding, &h->level_bytes, &h->repeat_bytes };
        if (id < ARRAY_LEN(field) && field[id]) {
            *field[id] = thrift_int(t, type);
        } else if (id == 7) {
            h->is_packed = type != THRIFT_FALSE;
        } else {
            thrift_skip(t, type);
        }
    }
    h->has_fields = 1;
}

static void parse_header(Thrift *t, PageHeader *h)
{
    ThriftType type;
    *h = (PageHeader){ .kind = -1, .n_null = -1, .level_kind = PARQUET_RLE, .is_packed = 1 };
    for (int id = 0; (type = thrift_field(t, &id)) != THRIFT_STOP;) {
        int64_t *field[] = { NULL, &h->kind, &h->size_bytes, &h->packed_bytes, &h->crc };
        if (id < ARRAY_LEN(field)) {
            *field[id] = thrift_int(t, type);
            if (id == 4) h->has_crc = 1;
        } else if ((id == 5 && h->kind == PARQUET_DATA) || (id == 7 && h->kind == PARQUET_DICTIONARY)) {
            thrift_want(t, type, THRIFT_STRUCT);
            read_data_header(t, h);
        } else if (id == 8 && h->kind == PARQUET_DATA_2) {
            thrift_want(t, type, THRIFT_STRUCT);
            read_data_header_2(t, h);
        } else {
            thrift_skip(t, type);
        }
    }
}

/* A header may hold a smallest and a largest text, so its size is not known before it was read. */
static int read_header(Parquet *p, const ParquetChunk *c, PageHeader *h)
{
    p->page_at   = p->at;
    int64_t left = c->at + c->size_bytes - p->at;
    for (int64_t n = HEADER_BYTES;; n *= 8) {
        n = MIN(n, left);
        TRY(hold(p, c, (size_t)n));
        Thrift t = { held(p), held(p) + n, 0 };
        parse_header(&t, h);
        if (!t.bad) {
            p->at += t.p - held(p);
            return 0;
        }
        if (n == left || n >= MOST_HEADER) return parquet_bad(p, "not a header of a page");
    }
}

static int check_header(const Parquet *p, const ParquetChunk *c, const PageHeader *h)
{
    int64_t left = c->at + c->size_bytes - p->at;
    if (h->kind < 0 || h->size_bytes < 0 || h->packed_bytes < 0)
        return parquet_bad(p, "not a header of a page");
    if (h->packed_bytes > left) return parquet_bad(p, "a page that is longer than its column");
    if (h->kind > PARQUET_DATA_2) return parquet_bad(p, "a kind of page that is not known");
    if (h->kind == PARQUET_INDEX) return 0;
    if (h->level_bytes < 0 || h->level_bytes > MIN(h->packed_bytes, h->size_bytes) || h->repeat_bytes != 0)
        return parquet_bad(p, "levels that do not fit");
    int64_t most = (int64_t)FREE_PAGE + h->packed_bytes * MOST_RATIO;
    if (c->codec == PARQUET_SNAPPY) most = h->packed_bytes * SNAPPY_RATIO + h->level_bytes;
    if (c->codec == PARQUET_PLAIN_PACK || !h->is_packed) most = h->packed_bytes;
    if (h->size_bytes > MIN(most, MOST_PAGE))
        return parquet_bad(p, "a page that claims more bytes than it can hold");
    if (c->codec == PARQUET_PLAIN_PACK && h->size_bytes != h->packed_bytes)
        return parquet_bad(p, "a page with two sizes");
    if (!h->has_fields || h->n_value < 0) return parquet_bad(p, "not a header of a page");
    return 0;
}

static int check_crc(const Parquet *p, const PageHeader *h)
{
    if (!h->has_crc) return 0;
    uint32_t is = (uint32_t)crc32_z(0, held(p), (size_t)h->packed_bytes);
    return is == (uint32_t)h->crc ? 0 : parquet_bad(p, "the page does not match its checksum");
}

/* ---- codecs -------------------------------------------------------------------------------------------- */

static const char *unpack_gzip(Parquet *p, const uint8_t *in, size_t n, uint8_t *out, size_t n_out)
{
    enum { ZLIB_OR_GZIP = 15 + 32 };
    z_stream *z  = &p->gzip;
    int       rc = p->gzip_ready ? inflateReset(z) : inflateInit2(z, ZLIB_OR_GZIP);
    if (rc != Z_OK) return "no memory for unpacking";
    p->gzip_ready = 1;
    z->next_in    = (Bytef *)in;
    z->avail_in   = (uInt)n;
    z->next_out   = out;
    z->avail_out  = (uInt)n_out;
    for (;;) { /* several parts may lie behind each other */
        rc = inflate(z, Z_FINISH);
        if (rc != Z_STREAM_END || z->avail_in == 0) break;
        if (inflateReset(z) != Z_OK) return "cannot go on";
    }
    if (rc != Z_STREAM_END) return z->msg ? z->msg : "its length is not that of its page";
    return z->avail_out == 0 ? NULL : "it ends too early";
}

static const char *unpack_zstd(Parquet *p, const uint8_t *in, size_t n, uint8_t *out, size_t n_out)
{
    if (!p->zstd) p->zstd = ZSTD_createDCtx();
    if (!p->zstd) return "no memory for unpacking";
    size_t got = ZSTD_decompressDCtx(p->zstd, out, n_out, in, n);
    if (ZSTD_isError(got)) return ZSTD_getErrorName(got);
    return got == n_out ? NULL : "it ends too early";
}

/* Unpacks n bytes into out, which becomes n_out bytes long. */
static int unpack(Parquet *p, int codec, const uint8_t *in, size_t n, ParquetBytes *out, size_t n_out)
{
    const char *why = NULL;
    char        what[160];
    TRY(parquet_reserve(p, out, n_out, 0));
    out->n = n_out;
    if (n_out == 0) return 0;
    switch (codec) {
    case PARQUET_SNAPPY: why = snappy_unpack(in, n, out->p, n_out); break;
    case PARQUET_GZIP: why = unpack_gzip(p, in, n, out->p, n_out); break;
    case PARQUET_ZSTD: why = unpack_zstd(p, in, n, out->p, n_out); break;
    default: CHECK(n == n_out, "%zu bytes of %zu", n, n_out); memcpy(out->p, in, n);
    }
    if (!why) return 0;
    static const char *const name[] = { "", "snappy", "gzip", "", "", "", "zstd" };
    snprintf(what, sizeof what, "damaged %s data: %.100s", name[codec], why);
    return parquet_bad(p, what);
}

/* ---- pages --------------------------------------------------------------------------------------------- */

static int load_dictionary(Parquet *p, const ParquetChunk *c, const PageHeader *h)
{
    if (p->has_dictionary) return parquet_bad(p, "a second dictionary");
    if (h->encoding != PARQUET_PLAIN && h->encoding != PARQUET_PLAIN_DICTIONARY)
        return parquet_bad(p, "a dictionary in an encoding that is not known");
    TRY(unpack(p, c->codec, held(p), (size_t)h->packed_bytes, &p->dictionary, (size_t)h->size_bytes));
    p->has_dictionary = 1;
    return parquet_values_dictionary(p, h->n_value);
}

static int refuse_encoding(const Parquet *p, int64_t encoding)
{
    static const char *const name[] = {
        "", "", "", "RLE", "BIT_PACKED", "DELTA_BINARY_PACKED", "", "", "", "BYTE_STREAM_SPLIT"
    };
    char        what[160], number[32];
    const char *is = encoding >= 0 && encoding < ARRAY_LEN(name) ? name[encoding] : "";
    snprintf(number, sizeof number, "number %lld", (long long)encoding);
    snprintf(what, sizeof what,
             "the encoding %s is not read (PLAIN, RLE_DICTIONARY, DELTA_LENGTH_BYTE_ARRAY and "
             "DELTA_BYTE_ARRAY are)",
             is[0] ? is : number);
    return parquet_bad(p, what);
}

/* Finds levels and values in an unpacked page of version 1. */
static int begin_page(Parquet *p, const PageHeader *h, const uint8_t *at, size_t n)
{
    const uint8_t *levels   = NULL;
    uint32_t       n_levels = 0;
    if (p->is_optional) {
        if (h->level_kind != PARQUET_RLE)
            return parquet_bad(p, "levels in the old encoding BIT_PACKED are not read");
        if (n < sizeof n_levels) return parquet_bad(p, "levels that do not fit");
        memcpy(&n_levels, at, sizeof n_levels);
        at += sizeof n_levels;
        n -= sizeof n_levels;
        if (n_levels > n) return parquet_bad(p, "levels that do not fit");
        levels = at;
    }
    p->page.p   = at + n_levels;
    p->page.end = at + n;
    return parquet_values_begin(p, levels, n_levels);
}

/* Levels lie before the packed values. */
static int load_page_2(Parquet *p, const ParquetChunk *c, const PageHeader *h)
{
    int64_t        n_levels = h->level_bytes;
    const uint8_t *at       = held(p);
    size_t         packed = (size_t)(h->packed_bytes - n_levels), n = (size_t)(h->size_bytes - n_levels);
    int            codec = h->is_packed ? c->codec : PARQUET_PLAIN_PACK;
    p->page.p            = at + n_levels;
    if (codec != PARQUET_PLAIN_PACK) {
        TRY(unpack(p, codec, at + n_levels, packed, &p->out, n));
        p->page.p = p->out.p;
    } else if (packed != n) {
        return parquet_bad(p, "a page with two sizes");
    }
    p->page.end = p->page.p + n;
    return parquet_values_begin(p, p->is_optional ? at : NULL, (size_t)n_levels);
}

static int load_page(Parquet *p, const ParquetChunk *c, const PageHeader *h)
{
    switch (h->encoding) {
    case PARQUET_PLAIN:
    case PARQUET_PLAIN_DICTIONARY:
    case PARQUET_RLE_DICTIONARY:
    case PARQUET_DELTA_LENGTH:
    case PARQUET_DELTA_BYTES: break;
    default: return refuse_encoding(p, h->encoding);
    }
    if (h->n_value > p->left) return parquet_bad(p, "more texts than the column has");
    p->left -= h->n_value;
    p->page = (ParquetPage){ .left = h->n_value, .encoding = (int)h->encoding, .want_null = -1 };
    if (h->kind == PARQUET_DATA_2) {
        p->page.want_null = h->n_null;
        return load_page_2(p, c, h);
    }
    if (c->codec == PARQUET_PLAIN_PACK) return begin_page(p, h, held(p), (size_t)h->packed_bytes);
    TRY(unpack(p, c->codec, held(p), (size_t)h->packed_bytes, &p->out, (size_t)h->size_bytes));
    return begin_page(p, h, p->out.p, p->out.n);
}

int parquet_page_next(Parquet *p)
{
    const ParquetChunk *c    = &p->chunk[p->at_chunk];
    int                 done = 0;
    while (!done) {
        PageHeader h;
        if (p->at >= c->at + c->size_bytes) return parquet_bad(p, "fewer pages than the column has");
        TRY(read_header(p, c, &h));
        TRY(check_header(p, c, &h));
        if (h.kind != PARQUET_INDEX) {
            TRY(hold(p, c, (size_t)h.packed_bytes));
            TRY(check_crc(p, &h));
            done = h.kind != PARQUET_DICTIONARY;
            TRY(done ? load_page(p, c, &h) : load_dictionary(p, c, &h));
        }
        p->at += h.packed_bytes;
    }
    return 0;
}
