/* Album: Brim's file of images or clips, with an index for random access and a checksum for each record.
 *
 * 1. A header of 64 bytes, the records, the index, the texts (docs/formats.md). Header, index and each
 *    record have a checksum; the first two are checked when an album is opened, a record whenever it is
 *    read.
 * 2. An album that was opened is consistent: every record lies between header and index, every label is -1
 *    or below n_class, every name ends inside the texts.
 * 3. An open album does not change; any number of threads may read it.
 * 4. A record is an encoded image as it was found (ALBUM_FILE), raw uint8 HWC pixels, or a clip: `frames`
 *    equal frames, raw one after another, or JPEGs behind a table of u32 sizes. */
#ifndef FILE_ALBUM_H
#define FILE_ALBUM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    ALBUM_HEADER_BYTES = 64,
    ALBUM_ENTRY_BYTES  = 48,
    ALBUM_FRAMES_MOST  = 1 << 16,
    ALBUM_CLASSES_MOST = 1 << 20, /* as many as image.classes may be */
};

#define ALBUM_RECORD_MOST (INT64_C(1) << 32)
#define ALBUM_SUFFIX      ".brimg"

typedef enum { ALBUM_FILE = 0, ALBUM_GREY = 1, ALBUM_RGB = 3 } AlbumCodec;

typedef struct {
    int64_t     offset, size_bytes;
    uint64_t    hash;
    int         label;  /* -1: none */
    int         frames; /* 0: an image; else a clip */
    AlbumCodec  codec;
    int         w, h; /* of raw pixels and of a clip's frames; 0 x 0 for an image kept as it is */
    const char *name; /* where it came from; borrowed from the album */
} AlbumEntry;

typedef struct Album Album;

int  album_open(Album **out, const char *path); /* negative after err_user()/err_sys() */
void album_close(Album *a);                     /* NULL is allowed */

int64_t     album_len(const Album *a);
int         album_classes(const Album *a);
const char *album_class_name(const Album *a, int i);
AlbumEntry  album_entry(const Album *a, int64_t i);

/* Reads record i into buf, which has room for its size_bytes. 0; 1 when the bytes are not those that were
 * written, with why (n bytes) saying so. */
int album_read(const Album *a, int64_t i, void *buf, char *why, size_t n);

/* Frame f of a clip's record: where it begins and how long it is. Negative: the table is damaged. */
int album_frame(const AlbumEntry *e, const uint8_t *record, int f, size_t *offset, size_t *size_bytes);

/* ---- Writing: one complete album, or nothing. ------------------------------------------------------ */

typedef struct AlbumWriter AlbumWriter;

AlbumWriter *album_write_begin(const char *path); /* NULL after err_sys() */
/* Appends a record; offset and hash are filled in here. Negative after err_sys(). */
int     album_write_add(AlbumWriter *w, const AlbumEntry *e, const void *record);
int64_t album_write_bytes(const AlbumWriter *w); /* so far */
/* Gives the file its name. Frees *w, also on failure. Every label is below n_class. */
int  album_write_publish(AlbumWriter **w, const char *const *class_name, int n_class);
void album_write_discard(AlbumWriter **w); /* nothing when *w is NULL */

#ifdef __cplusplus
}
#endif
#endif
