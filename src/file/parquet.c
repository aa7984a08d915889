#include "file/parquet.h"

#include "base/err.h"
#include "base/fault.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "file/parquet_impl.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAGIC_BYTES = 4, TAIL_BYTES = 8, MOST_FOOTER = 1 << 28, MOST_DEPTH = 64, MOST_SHOWN = 12 };

int parquet_reserve(const Parquet *p, ParquetBytes *b, size_t n, size_t keep)
{
    if (n <= b->cap && b->p) return 0;
    size_t   cap  = MAX(n, MIN(b->cap * 2, (size_t)1 << 30));
    uint8_t *more = mem_alloc(MAX(cap, 64));
    if (!more) return err_sys("%s: memory for %zu bytes of it", p->path, n);
    if (keep > 0) memcpy(more, b->p, keep);
    free(b->p);
    b->p   = more;
    b->cap = MAX(cap, 64);
    return 0;
}

int parquet_bad(const Parquet *p, const char *what)
{
    return err_user("%s: row group %lld, page at byte %lld: %s", p->path, (long long)p->at_chunk + 1,
                    (long long)p->page_at, what);
}

int parquet_is(const char *path)
{
    char        p[MAGIC_BYTES], q[MAGIC_BYTES];
    struct stat st;
    if (file_kind(path) != FILE_REGULAR) return 0;
    if (str_ends_with(path, ".parquet")) return 1;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), is = 0;
    if (fd >= 0 && fstat(fd, &st) == 0 && pread(fd, p, sizeof p, 0) == MAGIC_BYTES) {
        is = memcmp(p, "PAR1", MAGIC_BYTES) == 0;
        /* PARE may begin any text; an encrypted file ends with it, too. */
        if (memcmp(p, "PARE", MAGIC_BYTES) == 0 &&
            pread(fd, q, sizeof q, st.st_size - MAGIC_BYTES) == MAGIC_BYTES)
            is = st.st_size > TAIL_BYTES && memcmp(q, "PARE", MAGIC_BYTES) == 0;
    }
    if (fd >= 0) close(fd);
    return is;
}

/* ---- the schema ---------------------------------------------------------------------------------------- */

typedef struct {
    const char *name;
    size_t      n;
    int64_t     type, repeat, n_child, converted, logical; /* -1: none */
    int         depth, leaf;                               /* leaf: how many columns lie before this one */
} Element;

static int64_t read_logical(Thrift *t, ThriftType type)
{
    int id = 0, first = -1;
    thrift_want(t, type, THRIFT_STRUCT);
    while ((type = thrift_field(t, &id)) != THRIFT_STOP) {
        if (first < 0) first = id;
        thrift_skip(t, type);
    }
    return first;
}

static void read_element(Thrift *t, Element *e)
{
    ThriftType type;
    *e = (Element){ .name = "", .type = -1, .converted = -1, .logical = -1 };
    for (int id = 0; (type = thrift_field(t, &id)) != THRIFT_STOP;) {
        int64_t *field[] = { NULL, &e->type, NULL, &e->repeat, NULL, &e->n_child, &e->converted };
        if (id == 4) {
            e->name = (const char *)thrift_binary(t, type, &e->n);
        } else if (id == 10) {
            e->logical = read_logical(t, type);
        } else if (id < ARRAY_LEN(field) && field[id]) {
            *field[id] = thrift_int(t, type);
        } else {
            thrift_skip(t, type);
        }
    }
}

/* Why an element at the top level is no column of text; NULL: it is one. */
static const char *why_not(const Element *e)
{
    enum { UTF8 = 0, ENUM = 4, JSON = 19, LOGICAL_STRING = 1, LOGICAL_ENUM = 4, LOGICAL_JSON = 12 };
    if (e->n_child > 0 || e->type < 0) return "is nested";
    if (e->repeat == PARQUET_REPEATED) return "is repeated";
    if (e->type != PARQUET_BYTE_ARRAY) return "holds no text";
    int64_t c = e->converted, l = e->logical;
    int     is = (c < 0 || c == UTF8 || c == ENUM || c == JSON) &&
             (l < 0 || l == LOGICAL_STRING || l == LOGICAL_ENUM || l == LOGICAL_JSON);
    return is ? NULL : "holds no text";
}

typedef void (*OnElement)(void *arg, const Element *e);

/* Calls on() for each element at the top level. Returns the number of columns; bad bytes set t->bad. */
static int walk_schema(Thrift *t, int64_t n, OnElement on, void *arg)
{
    int64_t left[MOST_DEPTH] = { 0 }; /* children to come, of the elements that this one lies in */
    int     depth = 0, n_leaf = 0;
    Element e;
    if (n == 0) return -1;
    read_element(t, &e);
    left[0] = e.n_child;
    for (int64_t i = 1; i < n && !t->bad; i++) {
        while (depth > 0 && left[depth] == 0) depth--;
        if (left[depth] <= 0) return -1;
        left[depth]--;
        read_element(t, &e);
        e.leaf = n_leaf;
        if (depth == 0) on(arg, &e);
        if (e.n_child < 0 || (e.n_child > 0 && depth + 1 == MOST_DEPTH)) return -1;
        if (e.n_child > 0) {
            left[++depth] = e.n_child;
        } else {
            n_leaf++;
        }
    }
    while (depth > 0 && left[depth] == 0) depth--;
    return t->bad || left[depth] != 0 ? -1 : n_leaf;
}

/* Looks for the column by its name. */
typedef struct {
    const char *field;
    Element     found;
    int         is_found;
} Search;

static void search(void *arg, const Element *e)
{
    Search *s = arg;
    if (s->is_found || e->n != strlen(s->field) || memcmp(e->name, s->field, e->n) != 0) return;
    s->found    = *e;
    s->is_found = 1;
}

/* Lists the columns that would do. */
typedef struct {
    char text[600];
    int  n;
} Names;

static void list_name(void *arg, const Element *e)
{
    Names *l = arg;
    char   shown[48];
    if (why_not(e) || l->n > MOST_SHOWN) return;
    if (l->n == MOST_SHOWN) {
        str_append(l->text, sizeof l->text, ", ...");
    } else {
        str_append(l->text, sizeof l->text, "%s%s", l->n ? ", " : "",
                   str_quote(shown, sizeof shown, e->name, e->n));
    }
    l->n++;
}

static int refuse_column(const Parquet *p, Thrift schema, int64_t n, const Search *s)
{
    Names l = { "", 0 };
    walk_schema(&schema, n, list_name, &l);
    if (l.n == 0) str_copy(l.text, sizeof l.text, "no column of this file");
    if (!s->is_found)
        return err_user("%s: there is no column \"%.64s\" (%s%s would do)", p->path, p->field,
                        l.n ? p->key : "", l.text);
    return err_user("%s: the column \"%.64s\" %s (%s%s would do)", p->path, p->field, why_not(&s->found),
                    l.n ? p->key : "", l.text);
}

static int damaged_footer(const Parquet *p)
{
    return err_user("%s: damaged: its footer at byte %lld cannot be read", p->path, (long long)p->footer_at);
}

static int read_schema(Parquet *p, Thrift *t, ThriftType type)
{
    int64_t n      = thrift_list(t, type, THRIFT_STRUCT);
    Thrift  schema = *t;
    Search  s      = { .field = p->field };
    p->n_leaf      = walk_schema(t, n, search, &s);
    if (t->bad || p->n_leaf < 0) return damaged_footer(p);
    if (!s.is_found || why_not(&s.found)) return refuse_column(p, schema, n, &s);
    p->leaf        = s.found.leaf;
    p->is_optional = s.found.repeat == PARQUET_OPTIONAL;
    return 0;
}

/* ---- row groups ---------------------------------------------------------------------------------------- */

typedef struct {
    ParquetChunk chunk;
    int64_t      type, dictionary_at;
    int          is_elsewhere, is_encrypted, has_meta;
} Column;

static void read_meta(Thrift *t, Column *c)
{
    ThriftType type;
    int64_t    codec = -1;
    for (int id = 0; (type = thrift_field(t, &id)) != THRIFT_STOP;) {
        int64_t *field[] = { NULL,   &c->type,          NULL, NULL,
                             &codec, &c->chunk.n_value, NULL, &c->chunk.size_bytes,
                             NULL,   &c->chunk.at,      NULL, &c->dictionary_at };
        if (id < ARRAY_LEN(field) && field[id]) {
            *field[id] = thrift_int(t, type);
        } else {
            thrift_skip(t, type);
        }
    }
    c->has_meta    = 1;
    c->chunk.codec = (int)codec;
}

static void read_column(Thrift *t, Column *c)
{
    ThriftType type;
    *c = (Column){ .type = -1 };
    for (int id = 0; (type = thrift_field(t, &id)) != THRIFT_STOP;) {
        if (id == 3) {
            thrift_want(t, type, THRIFT_STRUCT);
            read_meta(t, c);
            continue;
        }
        if (id == 1) c->is_elsewhere = 1;
        if (id == 8 || id == 9) c->is_encrypted = 1;
        thrift_skip(t, type);
    }
}

static int refuse_codec(const Parquet *p, int codec)
{
    static const char *const name[] = { "", "", "", "LZO", "BROTLI", "LZ4", "", "LZ4_RAW" };
    char                     number[24];
    const char              *is = codec >= 0 && codec < ARRAY_LEN(name) ? name[codec] : "";
    snprintf(number, sizeof number, "number %d", codec);
    return err_user("%s: the column \"%.64s\" is packed by %s, which is not read (uncompressed, snappy, gzip "
                    "and zstd are)",
                    p->path, p->field, is[0] ? is : number);
}

/* Checks the column's part of a row group against the file, and keeps it. */
static int add_chunk(Parquet *p, const Column *c, int64_t n_row)
{
    ParquetChunk k = c->chunk;
    if (c->is_encrypted) return err_user("%s: is encrypted", p->path);
    if (c->is_elsewhere) return err_user("%s: its columns lie in another file: name that one", p->path);
    if (!c->has_meta || c->type != PARQUET_BYTE_ARRAY || k.n_value != n_row) return damaged_footer(p);
    if (c->dictionary_at > 0 && c->dictionary_at < k.at) k.at = c->dictionary_at;
    if (n_row == 0) return 0;
    if (k.at < MAGIC_BYTES || k.at > p->footer_at || k.size_bytes < 1 || k.size_bytes > p->footer_at - k.at)
        return damaged_footer(p);
    if (k.codec != PARQUET_PLAIN_PACK && k.codec != PARQUET_SNAPPY && k.codec != PARQUET_GZIP &&
        k.codec != PARQUET_ZSTD)
        return refuse_codec(p, k.codec);
    if (p->n_chunk == p->cap_chunk) {
        p->cap_chunk       = p->cap_chunk * 2 + 16;
        ParquetChunk *more = realloc(p->chunk, sizeof *more * (size_t)p->cap_chunk);
        if (!more) return err_sys("%s: memory for its row groups", p->path);
        p->chunk = more;
    }
    p->chunk[p->n_chunk++] = k;
    return 0;
}

static int read_group(Parquet *p, Thrift *t)
{
    ThriftType type;
    Column     own   = { .type = -1 };
    int64_t    n_row = -1;
    for (int id = 0; (type = thrift_field(t, &id)) != THRIFT_STOP;) {
        if (id == 1) {
            int64_t n = thrift_list(t, type, THRIFT_STRUCT);
            if (n != p->n_leaf) return damaged_footer(p);
            for (int64_t i = 0; i < n && !t->bad; i++) {
                Column c;
                read_column(t, &c);
                if (i == p->leaf) own = c;
            }
        } else if (id == 3) {
            n_row = thrift_int(t, type);
        } else {
            thrift_skip(t, type);
        }
    }
    if (t->bad || n_row < 0 || n_row > p->n_row) return damaged_footer(p);
    p->n_row -= n_row;
    return add_chunk(p, &own, n_row);
}

static int read_footer(Parquet *p, Thrift *t)
{
    enum { EVERY_FIELD = 0x1e }; /* version, schema, rows, row groups */
    ThriftType type;
    int        seen = 0; /* fields that every file has, as bits */
    p->n_leaf       = -1;
    for (int id = 0; (type = thrift_field(t, &id)) != THRIFT_STOP;) {
        if (id <= 4) seen |= 1 << id;
        if (id == 2 && p->n_leaf < 0) {
            TRY(read_schema(p, t, type));
        } else if (id == 3) {
            p->n_row = thrift_int(t, type);
        } else if (id == 4 && p->n_leaf >= 0) {
            int64_t n = thrift_list(t, type, THRIFT_STRUCT);
            for (int64_t i = 0; i < n && !t->bad; i++) TRY(read_group(p, t));
        } else if (id == 8) {
            return err_user("%s: is encrypted", p->path);
        } else {
            thrift_skip(t, type);
        }
    }
    /* All row groups together have the rows of the file. */
    return t->bad || seen != EVERY_FIELD || p->n_row != 0 ? damaged_footer(p) : 0;
}

/* ---- opening ------------------------------------------------------------------------------------------- */

/* What a file is that does not begin or end as it should. */
static int check_ends(const Parquet *p, const char head[MAGIC_BYTES], const uint8_t tail[TAIL_BYTES])
{
    if (memcmp(head, "PARE", MAGIC_BYTES) == 0) return err_user("%s: is encrypted", p->path);
    if (memcmp(head, "vers", MAGIC_BYTES) == 0)
        return err_user("%s: no Parquet file, but what git keeps instead of it: fetch it with git lfs pull",
                        p->path);
    if (memcmp(head, "PAR1", MAGIC_BYTES) != 0)
        return err_user("%s: no Parquet file: it does not begin with PAR1", p->path);
    if (memcmp(tail + 4, "PAR1", MAGIC_BYTES) != 0)
        return err_user("%s: no whole Parquet file: it does not end with PAR1", p->path);
    return 0;
}

static int open_file(Parquet *p)
{
    char        head[MAGIC_BYTES] = "";
    uint8_t     tail[TAIL_BYTES]  = { 0 };
    uint32_t    n;
    struct stat st;
    p->fd = fault_hit(FAULT_OPEN) ? -1 : open(p->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (p->fd < 0) return file_refuse_open(p->path);
    if (fstat(p->fd, &st) != 0) return err_sys("%s: stat", p->path);
    if (!S_ISREG(st.st_mode))
        return err_user("%s: a Parquet file must be a file, not a pipe or a folder", p->path);
    p->size_bytes = st.st_size;
    if (p->size_bytes >= MAGIC_BYTES) TRY(file_read_at(p->fd, p->path, head, MAGIC_BYTES, 0));
    if (p->size_bytes >= MAGIC_BYTES + TAIL_BYTES)
        TRY(file_read_at(p->fd, p->path, tail, TAIL_BYTES, p->size_bytes - TAIL_BYTES));
    TRY(check_ends(p, head, tail));
    memcpy(&n, tail, sizeof n);
    p->footer_at = p->size_bytes - TAIL_BYTES - (int64_t)n;
    if (p->footer_at < MAGIC_BYTES || n > MOST_FOOTER)
        return err_user("%s: damaged: its footer claims %lld bytes, and the file has %lld", p->path,
                        (long long)n, (long long)p->size_bytes);
    TRY(parquet_reserve(p, &p->in, n, 0));
    TRY(file_read_at(p->fd, p->path, p->in.p, n, p->footer_at));
    Thrift t = { p->in.p, p->in.p + n, 0 };
    return read_footer(p, &t);
}

static void enter_chunk(Parquet *p)
{
    const ParquetChunk *c = &p->chunk[p->at_chunk];
    p->at = p->page_at = c->at;
    p->left            = c->n_value;
    p->has_dictionary  = 0;
    p->page            = (ParquetPage){ .want_null = -1 };
}

int parquet_open(Parquet **out, const char *path, const char *field, const char *key)
{
    Parquet *p = mem_zeroed(1, sizeof *p);
    if (!p) return err_sys("%s: memory for reading it", path);
    p->path  = path;
    p->field = field;
    p->key   = key;
    p->fd    = -1;
    if (open_file(p) < 0) {
        parquet_close(p);
        return -1;
    }
    p->in.n = 0; /* of the footer */
    if (p->n_chunk > 0) enter_chunk(p);
    *out = p;
    return 0;
}

void parquet_close(Parquet *p)
{
    if (!p) return;
    if (p->gzip_ready) inflateEnd(&p->gzip);
    ZSTD_freeDCtx(p->zstd);
    if (p->fd >= 0) close(p->fd);
    free(p->in.p);
    free(p->out.p);
    free(p->dictionary.p);
    free(p->made.p);
    free(p->word);
    free(p->chunk);
    free(p);
}

int parquet_next(Parquet *p, const char **text, size_t *n)
{
    for (;;) {
        while (p->page.left > 0) {
            int rc = parquet_values_next(p, text, n);
            if (rc != 0) return rc;
            p->n_null++;
        }
        if (p->at_chunk == p->n_chunk) return 0;
        TRY(parquet_values_end(p));
        if (p->left > 0) {
            TRY(parquet_page_next(p));
        } else if (++p->at_chunk < p->n_chunk) {
            enter_chunk(p);
        }
    }
}

int64_t parquet_nulls(const Parquet *p) { return p->n_null; }

int64_t parquet_taken(const Parquet *p) { return p->at; }
