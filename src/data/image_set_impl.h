/* What the kinds of image set share. */
#ifndef DATA_IMAGE_SET_IMPL_H
#define DATA_IMAGE_SET_IMPL_H

#include "base/arena.h"
#include "data/image_set.h"
#include "file/album.h"
#include "file/idx.h"

typedef enum { SET_FOLDER, SET_FLAT, SET_IDX, SET_TAR, SET_ALBUM } SetKind;

/* One sample. part: the tar file or album it is in; offset: bytes into that file, or number in the album. */
typedef struct {
    int64_t offset, size_bytes;
    int64_t name; /* offset into text */
    int32_t label, part;
} SetItem;

typedef struct {
    char  *path;
    int    fd; /* tar files; -1 otherwise */
    Album *album;
} SetPart;

struct ImageSet {
    SetKind  kind;
    Arena    arena; /* path, parts, class names */
    char    *path;
    SetItem *item;
    int64_t  n_item, cap_item;
    int      quiet;      /* 1: no warning of what is left out */
    int64_t  n_left_out; /* images in tar files that are not used */
    char    *text;       /* names, each ended by a zero */
    int64_t  n_text, cap_text;
    SetPart *part;
    int      n_part;
    char   **class_name;
    int      n_class;
    Idx      images, labels;
};

/* Appends a sample; name is copied. Negative after err_sys(). */
int set_add(ImageSet *s, const SetItem *item, const char *name);

int set_scan_folder(ImageSet *s); /* image_set_folder.c */
/* 1: a folder in the path has an image in it. Negative after err_sys(). */
int set_has_classes(ImageSet *s);
/* A set of the one image that the path names: 1; 0 when the path has no ending of an image. */
int set_scan_image(ImageSet *s);
int set_is_video(const char *path); /* 1: by its ending */
int set_scan_tar(ImageSet *s, int part);

#endif
