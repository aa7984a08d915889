/* Parquet: reads the text of one column of an Apache Parquet file, value by value.
 *
 * 1. The column lies at the top level, is required or optional, and holds strings or bytes. Nested, repeated
 *    and numeric columns are refused, with the names of those that would do.
 * 2. Data pages of both versions; PLAIN, PLAIN_DICTIONARY, RLE_DICTIONARY, DELTA_LENGTH_BYTE_ARRAY and
 *    DELTA_BYTE_ARRAY; unpacked, SNAPPY, GZIP and ZSTD. Anything else is refused by its name.
 * 3. One page and one dictionary are in memory at a time, and the footer's list of row groups.
 * 4. Nothing in the file is trusted. A length is checked against the bytes it speaks of before memory is
 *    taken. A page is refused if it claims more than 1 GiB, or more than 64 MiB and 1024 times its packed
 *    size. Where a page has a checksum, the checksum is compared. */
#ifndef FILE_PARQUET_H
#define FILE_PARQUET_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct Parquet Parquet;

/* 1: a file that begins as a Parquet file does, or has the name *.parquet. What else is wrong with the file,
 * parquet_open() says. */
int parquet_is(const char *path);

/* field: the column; key: how messages name that choice, such as "--field ". Both are borrowed, as path is.
 * Negative after err_user()/err_set(). */
int  parquet_open(Parquet **out, const char *path, const char *field, const char *key);
void parquet_close(Parquet *p); /* NULL is allowed */

/* The next value, borrowed until the next call. Nulls are passed over. 1: there is one; 0: the end. Negative
 * after err_user()/err_set(). */
int parquet_next(Parquet *p, const char **text, size_t *n);

int64_t parquet_nulls(const Parquet *p); /* passed over so far */
int64_t parquet_taken(const Parquet *p); /* bytes of the file up to the page that is read */

#ifdef __cplusplus
}
#endif
#endif
