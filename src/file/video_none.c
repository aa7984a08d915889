/* Built where FFmpeg's headers are missing (the Makefile chooses between this file and video_ffmpeg.c). */
#include "file/video.h"

#include "base/err.h"

#include <stddef.h>

int video_open(Video **out, const char *path)
{
    *out = NULL;
    return err_set("%s: this brim was built without FFmpeg (install libavformat-dev, libavcodec-dev and "
                   "libswscale-dev, then build again)",
                   path);
}

void    video_close(Video *v) {}
int     video_next(Video *v, VideoFrame *out) { return err_set("no video is open"); }
int64_t video_damaged(const Video *v) { return 0; }
