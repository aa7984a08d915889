/* Video: the frames of a file in order, as packed RGB, by the FFmpeg libraries.
 *
 * 1. The libraries are opened at run time, in the version whose headers the program was built with. If the
 *    libraries are missing (or were missing at build time), video_open() says so; clips then come from
 *    albums.
 * 2. Frames come in the order they are shown. Packets that cannot be decoded are passed over and counted.
 * 3. Frames stand as players show them: quarter turns and mirrors that a camera noted in the file are
 *    applied, those of the first frame to all. */
#ifndef FILE_VIDEO_H
#define FILE_VIDEO_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct Video Video;

typedef struct {
    const uint8_t *rgb; /* w*h*3 bytes, until the next call */
    int            w, h;
} VideoFrame;

int  video_open(Video **out, const char *path); /* negative after err_user()/err_set() */
void video_close(Video *v);                     /* NULL is allowed */

/* 1 and a frame, 0 at the end, negative after err_user()/err_set(). Every frame has the first one's size. */
int video_next(Video *v, VideoFrame *out);

int64_t video_damaged(const Video *v); /* packets passed over so far */

#ifdef __cplusplus
}
#endif
#endif
