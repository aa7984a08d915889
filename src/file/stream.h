/* Stream: the bytes of a file, a pipe or standard input, unpacked on the way if they are gzip or zstd.
 *
 * 1. The first bytes say what a stream is; its name does not matter. Several packed parts behind each other
 *    are one stream.
 * 2. Memory is bounded, whatever the packed data claim: a window of at most 128 MiB for zstd, 32 KiB for
 *    gzip.
 * 3. A stream that ends in the middle of packed data is an error, never a short text. */
#ifndef FILE_STREAM_H
#define FILE_STREAM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct Stream Stream;

/* "-": standard input. A folder is refused. Negative after err_user()/err_set(). */
int  stream_open(Stream **out, const char *path);
void stream_close(Stream *s); /* NULL is allowed */

/* At most n bytes into buf; 0 at the end. Negative after err_user() (damaged data) or err_set(). */
int64_t stream_read(Stream *s, void *buf, size_t n);

int64_t stream_taken(const Stream *s); /* bytes of the file that were read so far, packed */

/* The same over bytes in memory, which stay the caller's: for tests. */
int stream_open_memory(Stream **out, const char *name, const void *bytes, size_t n);

#ifdef __cplusplus
}
#endif
#endif
