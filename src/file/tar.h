/* Tar: walks the members of a tar file. WebDataset shards are tar files. ustar, GNU long names and sizes, pax
 * paths and sizes.
 *
 * 1. Only headers are read; a member's bytes are at [offset, offset + size_bytes) of the file, which lie
 *    inside it.
 * 2. Nothing in the file is trusted: a bad checksum, size or name is refused with the byte where it
 *    stands. */
#ifndef FILE_TAR_H
#define FILE_TAR_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { TAR_NAME_MOST = 4096 };

typedef struct {
    const char *path; /* of the tar file, for messages; borrowed */
    int         fd;   /* borrowed */
    int64_t     file_bytes, at;
    char        name[TAR_NAME_MOST]; /* of the member found last */
    int64_t     offset, size_bytes;
    int64_t     next_size; /* from a pax header, for the next member; -1: none */
    int         has_name;  /* name came from a long-name header */
    int         is_link;   /* the member found last is a link to another file, and has no bytes of its own */
} Tar;

void tar_begin(Tar *t, const char *path, int fd, int64_t file_bytes);

/* Finds the next regular file or link: 1, 0 at the end, negative after err_user()/err_sys(). */
int tar_next(Tar *t);

#ifdef __cplusplus
}
#endif
#endif
