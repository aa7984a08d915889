/* Documents: text as a user has it, one document after the other.
 *
 * 1. Inputs are files, folders and "-", standard input. gzip and zstd are unpacked. Of a folder every file
 *    below it is read, in the order of names compared by bytes. Hidden names and files with a zero byte in
 *    their first 4 KiB are left out. An input that is itself a file with such a byte is refused, unless the
 *    format is named.
 * 2. In plain text a document ends at the end of a file and at each separator, which belongs to no document.
 *    In JSON lines each line is an object, and one field of it is a document. In a Parquet file each value
 *    of a column is a document; the first bytes tell such a file. Nulls are left out and counted.
 * 3. Empty documents are left out. Any bytes are text. A document of more than DOCUMENT_PART bytes comes in
 *    parts, cut behind a line where there is one, and never within a character of UTF-8.
 * 4. Batches come in order, from one thread at a time. What a batch holds does not change by who reads it. */
#ifndef DATA_DOCUMENTS_H
#define DATA_DOCUMENTS_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { DOCUMENT_PART = 1 << 26, DOCUMENT_BATCH = 1 << 19, DOCUMENT_LINE = 1 << 29 };

typedef enum { DOCUMENTS_AUTO, DOCUMENTS_TEXT, DOCUMENTS_JSON } DocumentsFormat;

typedef struct {
    const char *const *path;
    int                n_path;
    DocumentsFormat    format;     /* auto: Parquet, or JSON lines by .jsonl or .ndjson in the name */
    const char        *field;      /* of JSON lines; the column of Parquet */
    const char        *field_key;  /* what names it, for messages: "data.field="; NULL: "--field " */
    const char        *separator;  /* of plain text; NULL: none */
    int                keep_going; /* 1: lines that are no such object are counted and left out */
    int                quiet;      /* 1: no warning about files that are left out */
} DocumentsConfig;

typedef struct Documents Documents;

/* Called now and then with bytes of input read, and all (0: not known); NULL: nobody asks. */
typedef void (*DocumentsNote)(void *arg, int64_t done, int64_t all);

typedef struct {
    size_t      at, len; /* in DocumentBatch.text */
    const char *file;
    int64_t     line; /* of the file, from 1; 0: plain text */
    int         first, last;
} DocumentSpan;

/* About DOCUMENT_BATCH bytes, or one large document. Zero it to begin; kept for the next batch. */
typedef struct {
    char         *text;
    size_t        len, cap;
    DocumentSpan *doc;
    int64_t       n, cap_doc;
} DocumentBatch;

/* Lists the inputs. The strings of cfg are borrowed. Negative after err_user()/err_set(). */
int  documents_open(Documents **out, const DocumentsConfig *cfg);
void documents_close(Documents *d); /* NULL is allowed */

/* Reads the next batch. 1: there is one; 0: the end. Negative after err_user()/err_set(). */
int  documents_next(Documents *d, DocumentBatch *b);
void documents_batch_deinit(DocumentBatch *b);

typedef struct {
    const char *text; /* borrowed from the batch, or from own */
    size_t      n;
    int         bad; /* 1: a line that is left out */
    void       *own; /* what a line of JSON was unpacked into */
} DocumentText;

/* The text of document i of a batch; for JSON lines the field. 1: there is text; 0: an empty line, or a line
 * that is left out. Any thread. Negative after err_user(). The caller calls documents_text_free() in all
 * cases. */
int  documents_text(const DocumentsConfig *cfg, const DocumentBatch *b, int64_t i, DocumentText *out);
void documents_text_free(DocumentText *t);

/* 1: a path is not just a file of plain text: a folder, standard input, packed, Parquet, or JSON lines. */
int documents_is_more(const char *path);
/* Writes the text of every document, each with a line break behind it. Negative after
 * err_user()/err_set(). */
int documents_spool(const DocumentsConfig *cfg, FILE *out, DocumentsNote note, void *arg);

int     documents_files(const Documents *d);
int64_t documents_bytes(const Documents *d); /* of all files, packed; 0: not known (a pipe) */
int64_t documents_taken(const Documents *d); /* of these, read so far */
int64_t documents_nulls(const Documents *d); /* values of Parquet that were null, so far */
/* A hash of the list: names, inodes, sizes and times of change, not folders. Two equal ones have the same
 * text. */
uint64_t documents_fingerprint(const Documents *d);

#ifdef __cplusplus
}
#endif
#endif
