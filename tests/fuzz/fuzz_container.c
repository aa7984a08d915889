/* Fuzz target: files that hold images. The first byte of an input chooses tar, idx or album; the rest is the
 * file.
 *
 * What is accepted must lie inside the file. An album is tried once more with its checksums put right, since
 * no fuzzer finds one.
 *
 * sources: src/file/tar.c src/file/idx.c src/file/album.c src/base/[a-z]*.c */
#define _GNU_SOURCE
#include "base/err.h"
#include "file/album.h"
#include "file/idx.h"
#include "file/tar.h"

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static void refused(const char *path)
{
    CHECK(err_kind() == ERR_USER && strstr(err_get(), path),
          "a refusal must be the user's and name the file: %s", err_get());
    err_clear();
}

static void try_tar(const char *path, int fd, int64_t n)
{
    Tar t;
    int rc;
    tar_begin(&t, path, fd, n);
    while ((rc = tar_next(&t)) > 0) {
        CHECK(t.size_bytes >= 0 && t.offset >= 512 && t.offset + t.size_bytes <= n,
              "a member outside the file");
        CHECK(memchr(t.name, 0, sizeof t.name), "a name without an end");
    }
    if (rc < 0) refused(path);
}

static void try_idx(const char *path)
{
    Idx x;
    if (idx_load(&x, path) < 0) {
        refused(path);
        return;
    }
    uint8_t sum = 0;
    for (int64_t i = 0; i < x.dim[0] * x.dim[1] * x.dim[2]; i++) sum ^= x.data[i];
    CHECK(x.n_dim >= 1 && sum <= 255, "never");
    idx_deinit(&x);
}

static void try_album(const char *path)
{
    Album *a;
    char   why[200];
    if (album_open(&a, path) < 0) {
        refused(path);
        return;
    }
    for (int c = 0; c < album_classes(a); c++)
        CHECK(strlen(album_class_name(a, c)) < (1 << 24), "a long name");
    for (int64_t i = 0; i < album_len(a); i++) {
        AlbumEntry e   = album_entry(a, i);
        uint8_t   *buf = malloc((size_t)e.size_bytes + 1);
        size_t     at, size;
        CHECK(buf && strlen(e.name) < (1 << 24) && e.label < album_classes(a), "an entry");
        album_read(a, i, buf, why, sizeof why);
        for (int f = 0; f < MIN(e.frames, 300); f++) {
            if (album_frame(&e, buf, f, &at, &size) < 0) break;
            CHECK(at + size <= (size_t)e.size_bytes, "a frame outside its record");
        }
        free(buf);
    }
    album_close(a);
}

/* Makes header and index agree with their checksums, and the index end the file. */
static void mend_album(uint8_t *p, size_t n)
{
    uint64_t offset, v;
    if (n < ALBUM_HEADER_BYTES) return;
    memcpy(p, "BRIMALB1\1\0\0\0", 12);
    memcpy(&offset, p + 24, 8);
    offset = ALBUM_HEADER_BYTES + offset % (n - ALBUM_HEADER_BYTES + 1);
    memcpy(p + 24, &offset, 8);
    v = n - offset;
    memcpy(p + 32, &v, 8);
    v = XXH64(p + offset, n - offset, 0);
    memcpy(p + 40, &v, 8);
    v = XXH64(p, ALBUM_HEADER_BYTES - 8, 0);
    memcpy(p + 56, &v, 8);
}

static void try_file(int what, const uint8_t *bytes, size_t n)
{
    char path[64];
    int  fd = memfd_create("input", 0);
    CHECK(fd >= 0 && write(fd, bytes, n) == (ssize_t)n, "memfd");
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    switch (what) {
    case 0: try_tar(path, fd, (int64_t)n); break;
    case 1: try_idx(path); break;
    default: try_album(path);
    }
    close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    if (n < 1) return 0;
    int what = bytes[0] % 3;
    try_file(what, bytes + 1, n - 1);
    if (what != 2) return 0;
    uint8_t *copy = malloc(n);
    CHECK(copy, "out of memory");
    memcpy(copy, bytes + 1, n - 1);
    mend_album(copy, n - 1);
    try_file(2, copy, n - 1);
    free(copy);
    return 0;
}
