#define _GNU_SOURCE /* memmem, memrchr */
#include "data/documents.h"

#include "base/arena.h"
#include "base/err.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "file/parquet.h"
#include "file/stream.h"

#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

enum { READ_BYTES = 1 << 18, MOST_DEPTH = 64, SNIFF_BYTES = 4096 };

typedef struct {
    const char *path;
    int64_t     size_bytes;
} Input;

struct Documents {
    Arena           arena;
    DocumentsConfig cfg;
    Input          *input;
    int             n_input, cap_input, at; /* at: the input that is open, or next */
    int64_t         size_bytes, taken;      /* taken: of inputs before `at` */
    int             unknown;                /* there is an input whose size is not known */
    XXH64_state_t   hash;

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

/* ---- the list of inputs -------------------------------------------------------------------------------- */

static int add_input(Documents *d, const char *path, const struct stat *st)
{
    if (d->n_input == d->cap_input) {
        d->cap_input = d->cap_input * 2 + 64;
        Input *more  = realloc(d->input, sizeof *more * (size_t)d->cap_input);
        if (!more) return err_sys("memory for a list of files");
        d->input = more;
    }
    int64_t size           = st && S_ISREG(st->st_mode) ? (int64_t)st->st_size : -1;
    d->input[d->n_input++] = (Input){ arena_strdup(&d->arena, path), size };
    if (size < 0) d->unknown = 1;
    d->size_bytes += MAX(size, 0);
    if (d->cfg.format == DOCUMENTS_AUTO && !d->cfg.quiet && str_ends_with(path, ".json"))
        log_warn("%s: is read as plain text: JSON lines have the name *.jsonl", path);
    struct stat none = { 0 };
    if (!st) st = &none;
    int64_t     fact[5] = { size, (int64_t)st->st_dev, (int64_t)st->st_ino, (int64_t)st->st_mtim.tv_sec,
                            (int64_t)st->st_mtim.tv_nsec };
    const char *name    = file_name_of(path); /* it may say what the file is */
    XXH64_update(&d->hash, name, strlen(name) + 1);
    XXH64_update(&d->hash, fact, sizeof fact);
    return 0;
}

static int is_packed(const unsigned char *p, ssize_t n)
{
    static const unsigned char gzip[] = { 0x1f, 0x8b }, zstd[] = { 0x28, 0xb5, 0x2f, 0xfd };
    return (n >= 2 && memcmp(p, gzip, 2) == 0) || (n >= 4 && memcmp(p, zstd, 4) == 0);
}

/* 1: a file that is taken for no text. */
static int looks_binary(const char *path)
{
    unsigned char p[SNIFF_BYTES];
    int           fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    ssize_t       n  = fd < 0 ? 0 : read(fd, p, sizeof p);
    if (fd >= 0) close(fd);
    return n > 0 && !is_packed(p, n) && memchr(p, 0, (size_t)n);
}

/* A format that is named is what a file is. */
static int is_parquet(const Documents *d, const char *path)
{
    return d->cfg.format == DOCUMENTS_AUTO && parquet_is(path);
}

/* A folder that is being read, and those it lies in. */
typedef struct Folder Folder;
struct Folder {
    const Folder *above; /* NULL: the outermost */
    const char   *path;
    dev_t         dev;
    ino_t         ino;
    int           depth;
};

/* 1: a link back to f or to a folder that f lies in. Two such links would make 2^40 paths. */
static int is_loop(const Folder *f, const struct stat *st)
{
    for (; f; f = f->above) {
        if (f->dev == st->st_dev && f->ino == st->st_ino) return 1;
    }
    return 0;
}

static int add_folder(Documents *d, const Folder *f);

/* st: of path, which lies in f. */
static int add_entry(Documents *d, const Folder *f, const char *path, const struct stat *st)
{
    const char *why = NULL;
    char        zero[80];
    if (S_ISDIR(st->st_mode)) {
        if (!is_loop(f, st)) return add_folder(d, &(Folder){ f, path, st->st_dev, st->st_ino, f->depth + 1 });
        why = "a link to a folder that it lies in";
    } else if (!S_ISREG(st->st_mode)) {
        return 0;
    } else if (is_parquet(d, path)) {
        if (file_name_of(path)[0] != '_') return add_input(d, path, st);
        why = "a name with _ in front says that it describes other Parquet files";
    } else if (looks_binary(path)) {
        snprintf(zero, sizeof zero, "not text, it has a zero byte in its first %d bytes", SNIFF_BYTES);
        why = zero;
    } else {
        return add_input(d, path, st);
    }
    if (!d->cfg.quiet) log_warn("%s: left out: %s", path, why);
    return 0;
}

static int add_folder(Documents *d, const Folder *f)
{
    char      **name;
    struct stat st;
    if (f->depth > MOST_DEPTH) return err_user("%s: folders are nested deeper than %d", f->path, MOST_DEPTH);
    int n = file_list(&d->arena, f->path, "", &name);
    if (n < 0) return -1;
    for (int i = 0; i < n; i++) {
        if (name[i][0] == '.') continue;
        const char *path = arena_printf(&d->arena, "%s/%s", f->path, name[i]);
        if (stat(path, &st) == 0) TRY(add_entry(d, f, path, &st)); /* else a link that leads nowhere */
    }
    return 0;
}

static int add_path(Documents *d, const char *path)
{
    struct stat st;
    if (strcmp(path, "-") == 0) return add_input(d, path, NULL);
    if (stat(path, &st) != 0) return err_user("%s: no such file or folder", path);
    if (S_ISREG(st.st_mode) && d->cfg.format == DOCUMENTS_AUTO && !is_parquet(d, path) && looks_binary(path))
        return err_user("%s: not text: it has a zero byte in its first %d bytes", path, SNIFF_BYTES);
    if (!S_ISDIR(st.st_mode)) return add_input(d, path, &st);
    int before = d->n_input;
    TRY(add_folder(d, &(Folder){ NULL, path, st.st_dev, st.st_ino, 0 }));
    return d->n_input > before ? 0 : err_user("%s: there is no text in this folder", path);
}

int documents_open(Documents **out, const DocumentsConfig *cfg)
{
    Documents *d  = mem_zeroed(1, sizeof *d);
    int        rc = 0;
    if (!d) return err_sys("memory for reading text");
    arena_init(&d->arena);
    XXH64_reset(&d->hash, 0);
    d->cfg = *cfg;
    for (int i = 0; rc == 0 && i < cfg->n_path; i++) rc = add_path(d, cfg->path[i]);
    if (rc < 0) {
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
    free(d->input);
    arena_deinit(&d->arena);
    free(d);
}

int documents_files(const Documents *d) { return d->n_input; }

int64_t documents_bytes(const Documents *d) { return d->unknown ? 0 : d->size_bytes; }

int64_t documents_taken(const Documents *d)
{
    if (d->parquet) return d->taken + parquet_taken(d->parquet);
    return d->taken + (d->stream ? stream_taken(d->stream) : 0);
}

int64_t documents_nulls(const Documents *d)
{
    return d->n_null + (d->parquet ? parquet_nulls(d->parquet) : 0);
}

uint64_t documents_fingerprint(const Documents *d) { return XXH64_digest(&d->hash); }

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
                                     .file  = d->input[d->at].path,
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
                        d->input[d->at].path);
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
        return err_user("%s:%lld: a line of more than %d MiB", d->input[d->at].path, (long long)d->line,
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
    const char *path = d->input[d->at].path;
    d->ended = d->within = d->json = 0;
    if (is_parquet(d, path))
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
    d->taken += d->parquet ? d->input[d->at].size_bytes : stream_taken(d->stream);
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
    while (d->at < d->n_input && b->len < DOCUMENT_BATCH) {
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
    unsigned char p[4];
    if (file_kind(path) != FILE_REGULAR || is_json_name(path)) return file_kind(path) != FILE_NONE;
    if (parquet_is(path)) return 1;
    int     fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    ssize_t n  = fd < 0 ? 0 : read(fd, p, sizeof p);
    if (fd >= 0) close(fd);
    return is_packed(p, n);
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
