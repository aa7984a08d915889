/* Fuzz target: Parquet files of text. Built with libFuzzer; the corpus is beside it.
 *
 * A refusal must be the user's and begin with the path. Values are read to their last byte, and a second
 * reading must give the same.
 *
 * sources: src/file/parquet.c src/file/parquet_page.c src/file/parquet_values.c src/file/snappy.c
 * src/file/thrift.c src/base/[a-z]*.c */
#define _GNU_SOURCE /* memfd_create */
#include "base/err.h"
#include "file/parquet.h"
#include "file/snappy.h"

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

/* A sum over all bytes of the values, and how they were refused. */
static uint64_t read_all(const char *path)
{
    enum { MOST_VALUES = 1 << 16, MOST_BYTES = 1 << 22 };
    Parquet    *p;
    const char *text;
    size_t      n, n_byte = 0;
    uint64_t    sum = 0;
    int         rc  = parquet_open(&p, path, "text", "--field ");
    if (rc == 0) {
        for (int i = 0; i < MOST_VALUES && n_byte < MOST_BYTES && (rc = parquet_next(p, &text, &n)) > 0;
             i++) {
            for (size_t k = 0; k < n; k++) sum = sum * 31 + (unsigned char)text[k] + 1;
            sum = sum * 31 + n;
            n_byte += n;
        }
        sum += (uint64_t)parquet_nulls(p);
        parquet_close(p);
    }
    if (rc >= 0) return sum;
    CHECK(err_kind() == ERR_USER && strncmp(err_get(), path, strlen(path)) == 0, "%s", err_get());
    for (const char *c = err_get(); *c; c++) sum = sum * 31 + (unsigned char)*c;
    err_clear();
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    char    name[64];
    uint8_t out[512];
    int     fd = memfd_create("parquet", 0);
    CHECK(fd >= 0 && write(fd, bytes, n) == (ssize_t)n, "a file in memory");
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    uint64_t first = read_all(name);
    CHECK(read_all(name) == first, "a second reading differs");
    close(fd);
    if (n > 0 && bytes[0] < 128) snappy_unpack(bytes, n, out, bytes[0]); /* a short block */
    return 0;
}
