#include "file/npy.h"

#include "base/err.h"
#include "base/file.h"

#include <string.h>

enum { HEADER = 128 }; /* a multiple of 64, as the format asks */

FILE *npy_begin(const char *path, int64_t rows, int64_t cols)
{
    unsigned char head[HEADER] = { 0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, HEADER - 10, 0 };
    char          text[HEADER];
    int n = snprintf(text, sizeof text, "{'descr': '<f4', 'fortran_order': False, 'shape': (%lld, %lld), }",
                     (long long)rows, (long long)cols);
    CHECK(n > 0 && n < HEADER - 11, "a header of %d bytes", n);
    memset(head + 10, ' ', HEADER - 10);
    memcpy(head + 10, text, (size_t)n);
    head[HEADER - 1] = '\n';
    FILE *f          = file_create_tmp(path);
    if (f && file_write(f, head, sizeof head) < 0) file_discard(&f);
    return f;
}

int npy_write(FILE *f, const float *x, int64_t n) { return file_write(f, x, sizeof *x * (size_t)n); }

int npy_publish(FILE **f, const char *path) { return file_publish(f, path); }
