#define _GNU_SOURCE /* memmem, memrchr */
#include "data/documents.h"

#include "base/err.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "data/inputs.h"
#include "file/parquet.h"
#include "file/stream.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { READ_BYTES = 1 << 18 };

struct Documents {
    DocumentsConfig cfg;
    Inputs          in;
    int             at;    /* the input that is open, or next */
    int64_t         taken; /* bytes of inputs before `at` */

    Stream *stream;
    int     json;
    int64_t line;
    char   *held; /* bytes [held_at, held_len) are read and in no batch yet */
    size_t  held_at, held_len, held_cap;
    size_t  searched; /* no separator ends before this */
    int     ended;    /* the stream has no more */
    int     within;   /* a part of the document was handed out */

    Parquet    *parquet; /* instead of the stream */
    const char *value;   /* of the column, what of it is in no batch yet */
    size_t      value_n;
    int64_t     n_null; /* of inputs before `at` */
};

/* ---- opening and closing ------------------------------------------------------------------------------- */

int documents_open(Documents **out, const DocumentsConfig *cfg)
{
    Documents *d = mem_zeroed(1, sizeof *d);
    if (!d) return err_sys("memory for reading text");
    arena_init(&d->in.arena);
    d->cfg = *cfg;
    if (inputs_list(&d->in, cfg) < 0) {
        documents_close(d);
        return -1;
    }
    *out = d;
    return 0;
}

void documents_close(Documents *d)
{
    if (!d) return;
    stream_close(d->stream);
    parquet_close(d->parquet);
    free(d->held);
    inputs_deinit(&d->in);
    free(d);
}

int documents_files(const Documents *d) { return d->in.n; }

int64_t documents_bytes(const Documents *d) { return d->in.unknown ? 0 : d->in.size_bytes; }

int64_t documents_taken(const Documents *d)
{
    if (d->parquet) return d->taken + parquet_taken(d->parquet);
    return d->taken + (d->stream ? stream_taken(d->stream) : 0);
}

int64_t documents_nulls(const Documents *d)
{
    return d->n_null + (d->parquet ? parquet_nulls(d->parquet) : 0);
}

uint64_t documents_fingerprint(const Documents *d) { return d->in.fingerprint; }

/* ---- batches ------------------------------------------------------------------------------------------- */

static int is_json_name(const char *path)
{
    const char *name = file_name_of(path);
    return strstr(name, ".jsonl") || strstr(name, ".ndjson");
}

static int is_json(const Documents *d, const char *path)
{
    return d->cfg.format == DOCUMENTS_AUTO ? is_json_name(path) : d->cfg.format == DOCUMENTS_JSON;
}

static int add_document(Documents *d, DocumentBatch *b, const char *from, size_t len, int last)
{
    if (b->len + len > b->cap) {
        size_t cap  = MAX(b->cap * 2, b->len + len);
        char  *more = realloc(b->text, cap);
        if (!more) return err_sys("memory for a document of %zu bytes", len);
        b->text = more;
        b->cap  = cap;
    }
    if (b->n == b->cap_doc) {
        b->cap_doc         = b->cap_doc * 2 + 256;
        DocumentSpan *more = realloc(b->doc, sizeof *more * (size_t)b->cap_doc);
        if (!more) return err_sys("memory for a list of documents");
        b->doc = more;
    }
    if (len > 0) memcpy(b->text + b->len, from, len);
    b->doc[b->n++] = (DocumentSpan){ .at    = b->len,
                                     .len   = len,
                                     .file  = d->in.item[d->at].path,
                                     .line  = d->json ? d->line : 0,
                                     .first = !d->within,
                                     .last  = last };
    b->len += len;
    d->within = !last;
    return 0;
}

/* Reads more of the stream behind what is held. */
static int hold_more(Documents *d)
{
    if (d->held_at > 0) {
        memmove(d->held, d->held + d->held_at, d->held_len - d->held_at);
        d->held_len -= d->held_at;
        d->searched -= d->held_at;
        d->held_at = 0;
    }
    if (d->held_cap - d->held_len < READ_BYTES) {
        size_t cap  = MAX(d->held_cap * 2, (size_t)READ_BYTES * 2);
        char  *more = realloc(d->held, cap);
        if (!more) return err_sys("memory for a document");
        d->held     = more;
        d->held_cap = cap;
    }
    int     is_first = d->cfg.format == DOCUMENTS_AUTO && d->held_len == 0 && d->line == 1 && !d->within;
    int64_t n        = stream_read(d->stream, d->held + d->held_len, READ_BYTES);
    if (n < 0) return -1;
    if (is_first && n >= 4 && memcmp(d->held, "PAR1", 4) == 0)
        return err_user("%s: a Parquet file in a pipe, or packed once more: name the file itself",
                        d->in.item[d->at].path);
    d->held_len += (size_t)n;
    d->ended = n == 0;
    return 0;
}

/* The separator behind held_at, or NULL if none is held. */
static const char *find_end(Documents *d, const char *separator, size_t len)
{
    size_t back = MAX(d->searched, d->held_at);
    /* It may have begun in what was searched. */
    back        = back - MIN(back - d->held_at, len - 1);
    d->searched = d->held_len;
    return d->held_len > back ? memmem(d->held + back, d->held_len - back, separator, len) : NULL;
}

/* Bytes of the next part of a document of more than DOCUMENT_PART bytes: up to behind a line or, if there is
 * no line, to a place where no character of UTF-8 is cut. */
static size_t part_bytes(const char *from)
{
    const char *line = memrchr(from, '\n', DOCUMENT_PART);
    if (line) return (size_t)(line + 1 - from);
    for (size_t n = DOCUMENT_PART; n > DOCUMENT_PART - 4; n--) {
        if (((unsigned char)from[n] & 0xC0) != 0x80) return n;
    }
    return DOCUMENT_PART;
}

/* Cuts a part off a document that is too long to be held whole. */
static int cut_part(Documents *d, DocumentBatch *b)
{
    if (d->json) {
        return err_user("%s:%lld: a line of more than %d MiB", d->in.item[d->at].path, (long long)d->line,
                        DOCUMENT_LINE >> 20);
    }
    size_t len = part_bytes(d->held + d->held_at);
    TRY(add_document(d, b, d->held + d->held_at, len, 0));
    d->held_at += len;
    return 0;
}

/* Moves the next document of the open stream to the batch. 0: the stream has no more. */
static int take_document(Documents *d, DocumentBatch *b)
{
    const char *separator = d->json ? "\n" : d->cfg.separator;
    size_t      len = separator ? strlen(separator) : 0, most = d->json ? DOCUMENT_LINE : DOCUMENT_PART;
    for (;;) {
        const char *end = len > 0 ? find_end(d, separator, len) : NULL;
        size_t      n   = end ? (size_t)(end - d->held) - d->held_at : d->held_len - d->held_at;
        /* A separator that begins in the part is held whole before the part is cut off. */
        if (n > most && (end || d->ended || n >= most + len)) {
            TRY(cut_part(d, b));
            d->searched = d->held_at;
            return 1;
        }
        if (!end && !d->ended) {
            TRY(hold_more(d));
            continue;
        }
        if (n > 0 || d->within) TRY(add_document(d, b, d->held + d->held_at, n, 1));
        d->held_at += n + (end ? len : 0);
        d->searched = d->held_at;
        d->line++;
        return end != NULL;
    }
}

/* The same of a Parquet file: the next value, or the next part of a long one. */
static int take_value(Documents *d, DocumentBatch *b)
{
    if (!d->within) {
        int rc = parquet_next(d->parquet, &d->value, &d->value_n);
        if (rc <= 0) return rc;
    }
    int    last = d->value_n <= DOCUMENT_PART;
    size_t len  = last ? d->value_n : part_bytes(d->value);
    if (len > 0) TRY(add_document(d, b, d->value, len, last));
    d->value += len;
    d->value_n -= len;
    return 1;
}

static int open_next(Documents *d)
{
    const char *path = d->in.item[d->at].path;
    d->ended = d->within = d->json = 0;
    if (inputs_is_parquet(&d->cfg, path))
        return parquet_open(&d->parquet, path, d->cfg.field,
                            d->cfg.field_key ? d->cfg.field_key : "--field ");
    TRY(stream_open(&d->stream, path));
    d->json    = is_json(d, path);
    d->line    = 1;
    d->held_at = d->held_len = d->searched = 0;
    return 0;
}

static void close_input(Documents *d)
{
    d->taken += d->parquet ? d->in.item[d->at].size_bytes : stream_taken(d->stream);
    d->n_null = documents_nulls(d);
    parquet_close(d->parquet);
    stream_close(d->stream);
    d->parquet = NULL;
    d->stream  = NULL;
    d->at++;
}

int documents_next(Documents *d, DocumentBatch *b)
{
    b->len = 0;
    b->n   = 0;
    while (d->at < d->in.n && b->len < DOCUMENT_BATCH) {
        if (!d->stream && !d->parquet) TRY(open_next(d));
        int rc = d->parquet ? take_value(d, b) : take_document(d, b);
        if (rc < 0) return -1;
        if (rc == 0) close_input(d);
    }
    return b->n > 0;
}

void documents_batch_deinit(DocumentBatch *b)
{
    free(b->text);
    free(b->doc);
    memset(b, 0, sizeof *b);
}

/* ---- JSON lines ---------------------------------------------------------------------------------------- */

/* What is wrong with a line: reported, or counted. */
static int refuse_line(const DocumentsConfig *cfg, const DocumentSpan *s, int *bad, const char *what)
{
    if (cfg->keep_going) {
        *bad = 1;
        return 0;
    }
    return err_user("%s:%lld: %s", s->file, (long long)s->line, what);
}

static int refuse_field(const DocumentsConfig *cfg, const DocumentSpan *s, const json_t *j, int *bad)
{
    char        what[256];
    const char *key;
    json_t     *value;
    StrNearest  near = str_nearest_begin(cfg->field);
    const char *text = NULL; /* any field that would do */
    json_object_foreach((json_t *)j, key, value)
    {
        if (!json_is_string(value)) continue;
        str_nearest_offer(&near, key);
        if (!text) text = key;
    }
    char shown[64] = "";
    if (near.best) text = near.best;
    if (text) str_quote(shown, sizeof shown, text, strlen(text));
    snprintf(what, sizeof what, "there is no text in the field \"%.64s\"%s%s%s%s", cfg->field,
             text ? " (" : "", text ? (cfg->field_key ? cfg->field_key : "--field ") : "", shown,
             text ? " would do)" : "");
    return refuse_line(cfg, s, bad, what);
}

/* Replaces the line in out by its field. */
static int field_text(const DocumentsConfig *cfg, const DocumentSpan *s, DocumentText *out)
{
    static const char mark[] = "\xef\xbb\xbf"; /* U+FEFF: how some programs begin a file */
    size_t            at = s->line == 1 && s->len >= 3 && memcmp(out->text, mark, 3) == 0 ? 3 : 0, blank = 0;
    const char       *p = out->text + at;
    size_t            n = s->len - at;
    char              what[256];
    json_error_t      e;
    while (blank < n && strchr(" \t\r", p[blank]) && p[blank]) blank++;
    if (blank == n) return 0;
    json_t *j = json_loadb(p, n, JSON_ALLOW_NUL, &e);
    if (!j) {
        char shown[160];
        str_quote(shown, sizeof shown, e.text, strlen(e.text));
        snprintf(what, sizeof what, "not a line of JSON: %s (column %d)", shown, e.column);
        return refuse_line(cfg, s, &out->bad, what);
    }
    const json_t *field = json_is_object(j) ? json_object_get(j, cfg->field) : NULL;
    if (!json_is_string(field)) {
        int rc = json_is_object(j) ? refuse_field(cfg, s, j, &out->bad)
                                   : refuse_line(cfg, s, &out->bad, "not a JSON object");
        json_decref(j);
        return rc;
    }
    out->own  = j;
    out->text = json_string_value(field);
    out->n    = json_string_length(field);
    return 1;
}

int documents_text(const DocumentsConfig *cfg, const DocumentBatch *b, int64_t i, DocumentText *out)
{
    const DocumentSpan *s = &b->doc[i];
    *out                  = (DocumentText){ .text = b->text + s->at, .n = s->len };
    if (s->line > 0) {
        int rc = field_text(cfg, s, out);
        if (rc <= 0) return rc;
    }
    return out->n > 0 || !s->first;
}

void documents_text_free(DocumentText *t) { json_decref(t->own); }

/* ---- all at once --------------------------------------------------------------------------------------- */

int documents_is_more(const char *path)
{
    if (file_kind(path) != FILE_REGULAR || is_json_name(path)) return file_kind(path) != FILE_NONE;
    return parquet_is(path) || inputs_is_packed(path);
}

static int spool_batch(const DocumentsConfig *cfg, const DocumentBatch *b, FILE *out)
{
    for (int64_t i = 0; i < b->n; i++) {
        DocumentText t;
        int          rc = documents_text(cfg, b, i, &t);
        if (rc > 0) rc = file_write(out, t.text, t.n);
        if (rc == 0 && b->doc[i].last) rc = file_write(out, "\n", 1);
        documents_text_free(&t);
        TRY(rc);
    }
    return 0;
}

int documents_spool(const DocumentsConfig *cfg, FILE *out, DocumentsNote note, void *arg)
{
    Documents    *d = NULL;
    DocumentBatch b = { 0 };
    TRY(documents_open(&d, cfg));
    int more = 1, rc = 0;
    while (rc == 0 && (more = documents_next(d, &b)) > 0) {
        rc = spool_batch(cfg, &b, out);
        if (note) note(arg, documents_taken(d), documents_bytes(d));
    }
    documents_batch_deinit(&b);
    documents_close(d);
    return rc < 0 || more < 0 ? -1 : 0;
}
