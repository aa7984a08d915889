/* File: reading with limits, atomic publishing, mapping, folders.
 *
 * 1. Reading and mapping accept regular files only and never block on a pipe or a device.
 * 2. A published file is complete or absent under its name: written beside it under a temporary name,
 *    flushed, synced, renamed, and the folder synced. A killed writer leaves only "NAME.tmp-PID-N", which
 *    file_sweep_tmp() removes.
 * 3. A file that is written in place is opened by file_open_own(), so that no link leads the writer
 *    elsewhere.
 * 4. Failures return negative (or NULL) after err_set(); the message begins with the path. */
#ifndef BASE_FILE_H
#define BASE_FILE_H

#include "base/arena.h"

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum { FILE_NONE, FILE_REGULAR, FILE_FOLDER, FILE_OTHER } FileKind;

FileKind file_kind(const char *path); /* FILE_NONE also when it cannot be looked at */

int64_t file_size(const char *path); /* in bytes, of a regular file; negative after err_set() */

/* Reads a whole file of at most max_bytes into *data (malloc'ed and terminated by a zero that is not counted;
 * the caller frees it). */
int file_read_all(const char *path, size_t max_bytes, char **data, size_t *size_bytes);

/* Reads size_bytes at offset of an open file into buf: exactly that many, or negative after err_set(), naming
 * path. A file that became shorter since it was opened is such an error. */
int file_read_at(int fd, const char *path, void *buf, size_t size_bytes, int64_t offset);

/* Opens a file that this program writes in place, O_RDONLY, O_WRONLY or O_RDWR with O_CREAT and O_APPEND as
 * wanted. It refuses symbolic links, pipes, devices, folders, and files that have a second name elsewhere:
 * through these, files outside would change. Returns a descriptor; or negative with one line in why, errno
 * set, and no error pending. */
int file_open_own(const char *path, int flags, char *why, size_t n);
/* If the path cannot be such a file (or, with folder, such a folder), writes the reason into why and returns
 * why. Else NULL, also if nothing exists there yet. */
const char *file_foreign(const char *path, int folder, char *why, size_t n);

/* A writable stream on a temporary file beside path; NULL after err_set(). */
FILE *file_create_tmp(const char *path);
/* Writes size_bytes or fails, with errno set; for use between create and publish. */
int file_write(FILE *f, const void *data, size_t size_bytes);
/* Makes the temporary file the one under path. Takes *f: it is NULL afterwards, and the temporary file is
 * gone when this fails. */
int file_publish(FILE **f, const char *path);
/* Closes and removes the temporary file; nothing when *f is NULL. */
void file_discard(FILE **f);
/* A file of at most 256 MiB under another name, published whole. Negative after err_set(). */
int file_copy(const char *from, const char *to);
/* 1 for a name that a temporary file has: NAME.tmp-PID-N. */
int file_is_tmp(const char *name);
/* Removes the temporary files that killed writers left in folder. The caller must be its only writer. */
int file_sweep_tmp(const char *folder);

int file_make_folders(const char *path); /* mkdir -p */

typedef struct {
    const void *data; /* never NULL once mapped */
    size_t      size_bytes;
} FileMap;

/* Why open() failed, by errno: negative after err_user(). A file the user named that is not there reads alike
 * everywhere: "NAME: no such file". */
int file_refuse_open(const char *name);

int  file_map(FileMap *m, const char *path); /* read-only; an empty file maps to 0 bytes */
void file_unmap(FileMap *m);                 /* nothing for a zeroed or unmapped one */

/* Names in folder that end in suffix ("": all), sorted bytewise, without "." and "..". Returns how many. */
int file_list(Arena *a, const char *folder, const char *suffix, char ***names);

/* The folder part of path ("." when it has none) into buf; negative when it does not fit. */
int file_folder_of(const char *path, char *buf, size_t n);
/* path without its folders; points into path. */
const char *file_name_of(const char *path);

#ifdef __cplusplus
}
#endif
#endif
