/* Npy: NumPy's file format, version 1.0, for one matrix of f32 that is written row by row.
 *
 * A written file appears under its name only when it is complete. */
#ifndef FILE_NPY_H
#define FILE_NPY_H

#include <stdint.h>
#include <stdio.h>

/* Begins path with rows x cols numbers. NULL after err_set(). */
FILE *npy_begin(const char *path, int64_t rows, int64_t cols);
/* Writes the next n numbers. Negative after err_set(). */
int npy_write(FILE *f, const float *x, int64_t n);
/* Completes the file; takes *f. file_discard() throws an unfinished one away. */
int npy_publish(FILE **f, const char *path);

#endif
