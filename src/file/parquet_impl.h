/* What the files of the Parquet reader share: parquet.c (footer, schema, row groups), parquet_page.c (pages,
 * codecs, checksums), parquet_values.c (encodings). */
#ifndef FILE_PARQUET_IMPL_H
#define FILE_PARQUET_IMPL_H

#include "file/parquet.h"
#include "file/thrift.h"

#include <zlib.h>
#include <zstd.h>

/* The numbers of the format. */
enum { PARQUET_BYTE_ARRAY = 6, PARQUET_REQUIRED = 0, PARQUET_OPTIONAL = 1, PARQUET_REPEATED = 2 };
enum { PARQUET_PLAIN_PACK = 0, PARQUET_SNAPPY = 1, PARQUET_GZIP = 2, PARQUET_ZSTD = 6 };
enum { PARQUET_DATA = 0, PARQUET_INDEX = 1, PARQUET_DICTIONARY = 2, PARQUET_DATA_2 = 3 };
enum {
    PARQUET_PLAIN            = 0,
    PARQUET_PLAIN_DICTIONARY = 2,
    PARQUET_RLE              = 3,
    PARQUET_DELTA_LENGTH     = 6,
    PARQUET_DELTA_BYTES      = 7,
    PARQUET_RLE_DICTIONARY   = 8
};

/* Bytes that grow. */
typedef struct {
    uint8_t *p;
    size_t   n, cap;
} ParquetBytes;

/* The column's part of a row group: pages behind each other. */
typedef struct {
    int64_t at, size_bytes, n_value;
    int     codec;
} ParquetChunk;

/* Small numbers in runs and packed groups of 8, of `width` bits each. */
typedef struct {
    const uint8_t *p, *end;
    int            width, is_run;
    uint64_t       left, bit; /* numbers of this run or group; bit: the next of the group, from p */
    uint32_t       value;     /* of the run */
} ParquetRuns;

/* DELTA_BINARY_PACKED: whole numbers as differences, in blocks of miniblocks. */
typedef struct {
    Thrift         in;
    uint64_t       left, per_mini, mini_left;
    uint64_t       n_mini, mini; /* of a block; the one under way, n_mini: none */
    int            is_first;
    int64_t        value, least;
    const uint8_t *width; /* of each miniblock of the block, in bits */
    const uint8_t *packed;
    uint64_t       bit;
} ParquetDeltas;

/* The data page that is read. */
typedef struct {
    int64_t        left, n_null, want_null; /* values, nulls among them; want_null -1: not said */
    int            encoding, has_levels;
    const uint8_t *p, *end; /* values */
    ParquetRuns    levels, index;
    ParquetDeltas  prefix, length;
} ParquetPage;

typedef struct {
    uint32_t at, n;
} ParquetWord;

struct Parquet {
    const char   *path, *field, *key;
    int           fd, leaf, n_leaf, is_optional;
    int64_t       size_bytes, footer_at, n_row;
    ParquetChunk *chunk;
    int64_t       n_chunk, cap_chunk, at_chunk; /* at_chunk: the one that is read */
    int64_t       at, page_at;                  /* of the file: the next page, and this one */
    int64_t       left;                         /* values of the chunk in pages that were not read yet */
    ParquetBytes  in;                           /* of the file, from in_at */
    int64_t       in_at;
    ParquetBytes  out, dictionary, made; /* an unpacked page; made: the value under way */
    ParquetWord  *word;
    int64_t       n_word, cap_word;
    int           has_dictionary;
    ParquetPage   page;
    int64_t       n_null;
    ZSTD_DCtx    *zstd;
    z_stream      gzip;
    int           gzip_ready;
};

/* Makes room for n bytes; the first keep bytes stay. Negative after err_sys(). */
int parquet_reserve(const Parquet *p, ParquetBytes *b, size_t n, size_t keep);
/* "PATH: row group 1, byte 4: WHAT". Always negative. */
int parquet_bad(const Parquet *p, const char *what);

/* Reads the next data page of the chunk. Negative after err_user()/err_set(). */
int parquet_page_next(Parquet *p);

/* Begins reading the values of a page; begin and end of levels (NULL: none) and of values. */
int parquet_values_begin(Parquet *p, const uint8_t *levels, size_t n_levels);
int parquet_values_dictionary(Parquet *p, int64_t n_word); /* finds the words of p->dictionary */
/* The next value: 1, 0 for a null. Negative after err_user()/err_set(). */
int parquet_values_next(Parquet *p, const char **text, size_t *n);
int parquet_values_end(const Parquet *p); /* negative: the page holds something else than was said */

#endif
