/* Convert: images and videos to albums in a folder. */
#ifndef DATA_IMAGE_CONVERT_H
#define DATA_IMAGE_CONVERT_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    int     size;        /* > 0: the short side becomes this long where it is longer */
    int     raw;         /* 1: raw uint8 pixels instead of JPEG */
    int     quality;     /* of JPEGs that are encoded anew */
    int     reencode;    /* 1: encode images anew even where they keep their size */
    int64_t album_bytes; /* an album is ended when it is larger */
    int     threads;
    int     frames, stride; /* of clips */
    double  part[2]; /* clips: frames of a video between these shares of its length; both 0: all of them */
} ConvertOptions;

typedef struct {
    int64_t n_sample, n_skipped, size_bytes;
    int     n_class, n_album;
} ConvertResult;

/* Writes every image of the set at `in` (image_set.h) to albums in the folder `out`, which has none yet.
 * Images that cannot be decoded are left out and listed in out/skipped.txt. Negative after
 * err_user()/err_set(). */
int convert_images(const char *in, const char *out, const ConvertOptions *o, ConvertResult *result);

/* Cuts videos into clips of o->frames frames, every o->stride-th of them. A class is the name of the folder a
 * video is in. A folder among the paths stands for the files in it and in its folders. */
int convert_clips(char *const *path, int n_path, const char *out, const ConvertOptions *o,
                  ConvertResult *result);

#ifdef __cplusplus
}
#endif
#endif
