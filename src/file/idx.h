/* Idx: the array files of MNIST and its kin: unsigned bytes, one to three dimensions, gzip or not. Held in
 * memory.
 *
 * 1. The sizes in the header agree with the bytes that follow, or the file is refused. */
#ifndef FILE_IDX_H
#define FILE_IDX_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define IDX_BYTES_MOST (INT64_C(1) << 34)

typedef struct {
    int      n_dim;
    int64_t  dim[3]; /* unused ones are 1 */
    uint8_t *data;   /* dim[0] * dim[1] * dim[2] bytes */
} Idx;

int  idx_load(Idx *out, const char *path); /* negative after err_user()/err_sys() */
void idx_deinit(Idx *x);                   /* a zeroed one is left alone */
int  idx_is_magic(const char *path);       /* 1: a file that begins like an idx file, perhaps inside gzip */

#ifdef __cplusplus
}
#endif
#endif
