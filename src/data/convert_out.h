/* Where converters put their samples: albums part-00000.brimg ... of a folder, and skipped.txt. All of it
 * moves into the folder together, at the end: half of the albums would be read as a set. A failure leaves no
 * album, and no folder that was not there. */
#ifndef DATA_CONVERT_OUT_H
#define DATA_CONVERT_OUT_H

#include "data/image_convert.h"
#include "file/album.h"

#include <limits.h>
#include <stdio.h>

typedef struct {
    const char        *folder;
    char               tmp[PATH_MAX]; /* in it: everything until the end */
    int                is_new;        /* the folder was made for this */
    const char *const *class_name;
    int                n_class;
    int64_t            album_bytes;
    AlbumWriter       *writer;
    FILE              *skipped;
    ConvertResult     *result;
} ConvertOut;

/* Refuses a folder that has albums already: two conversions would be read as one set. */
int convert_out_begin(ConvertOut *c);
int convert_out_add(ConvertOut *c, const AlbumEntry *e, const void *record);
int convert_out_skip(ConvertOut *c, const char *name, const char *why);
/* rc: of what came before; negative discards everything. Returns rc, or negative after err_set(). */
int convert_out_end(ConvertOut *c, int rc);

#endif
