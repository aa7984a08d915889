#include "file/video.h"

#include "base/err.h"
#include "base/mem.h"
#include "file/image.h"

#include <dlfcn.h>
#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libswscale/swscale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a file's header says about showing frames: FFmpeg 6.1 and later hand it on to every frame. Before, the
 * stream alone has it. */
#define IS_IN_FRAMES (LIBAVCODEC_VERSION_INT >= AV_VERSION_INT(60, 31, 0))
#if IS_IN_FRAMES
#define DISPLAY_CALL(X) X(avutil, av_frame_get_side_data)
#else
#define DISPLAY_CALL(X) X(avformat, av_stream_get_side_data)
#endif

/* What is called of the libraries, by the types of their own headers. */
#define VIDEO_CALLS(X)                                                                                       \
    X(avutil, av_log_set_level)                                                                              \
    X(avutil, av_frame_alloc)                                                                                \
    X(avutil, av_frame_free)                                                                                 \
    X(avutil, av_strerror)                                                                                   \
    X(avcodec, av_packet_alloc)                                                                              \
    X(avcodec, av_packet_free)                                                                               \
    X(avcodec, av_packet_unref)                                                                              \
    X(avcodec, avcodec_alloc_context3)                                                                       \
    X(avcodec, avcodec_free_context)                                                                         \
    X(avcodec, avcodec_parameters_to_context)                                                                \
    X(avcodec, avcodec_open2)                                                                                \
    X(avcodec, avcodec_send_packet)                                                                          \
    X(avcodec, avcodec_receive_frame)                                                                        \
    X(avformat, avformat_open_input)                                                                         \
    X(avformat, avformat_find_stream_info)                                                                   \
    X(avformat, avformat_close_input)                                                                        \
    X(avformat, av_find_best_stream)                                                                         \
    X(avformat, av_read_frame)                                                                               \
    X(swscale, sws_getCachedContext)                                                                         \
    X(swscale, sws_scale)                                                                                    \
    X(swscale, sws_freeContext)                                                                              \
    DISPLAY_CALL(X)

#define DECLARE(lib, name) __typeof__(name) *name;

typedef struct {
    VIDEO_CALLS(DECLARE)
    void *avutil, *avcodec, *avformat, *swscale;
} Calls;

/* From a frame as it is coded to the frame as it is shown. */
typedef struct {
    int on_side;    /* rows become columns */
    int from_right; /* a coded row is read backwards */
    int from_below; /* coded rows are taken from the last one upwards */
} Turn;

struct Video {
    Calls              c;
    const char        *path;
    AVFormatContext   *format;
    AVCodecContext    *codec;
    AVPacket          *packet;
    AVFrame           *frame;
    struct SwsContext *sws;
    int                stream, w, h, drained; /* w, h: as coded */
    Turn               turn;
    int64_t            damaged;
    ImageBuf           rgb, shown;
};

/* ---- Libraries ------------------------------------------------------------------------------------- */

static void *open_library(const char *name, int major)
{
    char file[64];
    snprintf(file, sizeof file, "lib%s.so.%d", name, major);
    /* They stay loaded: libraries that FFmpeg brings along do not give everything back when they leave. */
    void *lib = dlopen(file, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!lib) err_set("video needs FFmpeg: %s", dlerror());
    return lib;
}

static int find(void *lib, const char *name, void *slot)
{
    void *f = dlsym(lib, name);
    if (!f) return err_set("video needs FFmpeg: %s", dlerror());
    *(void **)slot = f;
    return 0;
}

static int open_calls(Calls *c)
{
    c->avutil   = open_library("avutil", LIBAVUTIL_VERSION_MAJOR);
    c->avcodec  = c->avutil ? open_library("avcodec", LIBAVCODEC_VERSION_MAJOR) : NULL;
    c->avformat = c->avcodec ? open_library("avformat", LIBAVFORMAT_VERSION_MAJOR) : NULL;
    c->swscale  = c->avformat ? open_library("swscale", LIBSWSCALE_VERSION_MAJOR) : NULL;
    if (!c->swscale) return -1;
#define FIND(lib, name) TRY(find(c->lib, #name, &c->name));
    VIDEO_CALLS(FIND)
#undef FIND
    c->av_log_set_level(AV_LOG_QUIET);
    return 0;
}

static void close_calls(Calls *c)
{
    void *lib[] = { c->swscale, c->avformat, c->avcodec, c->avutil };
    for (int i = 0; i < ARRAY_LEN(lib); i++) {
        if (lib[i]) dlclose(lib[i]);
    }
}

/* ---- Opening --------------------------------------------------------------------------------------- */

static int refuse(const Video *v, const char *what, int code)
{
    char text[128];
    if (v->c.av_strerror(code, text, sizeof text) < 0) snprintf(text, sizeof text, "error %d", code);
    return err_user("%s: %s: %s", v->path, what, text);
}

/* FFmpeg takes a picture for a video of one frame, and a text for a drawing of a terminal. */
static int is_video(const char *format)
{
    size_t n = strlen(format);
    return strcmp(format, "image2") != 0 && strcmp(format, "tty") != 0 &&
           (n < 5 || strcmp(format + n - 5, "_pipe") != 0);
}

static int open_video(Video *v)
{
    const Calls   *c       = &v->c;
    const AVCodec *decoder = NULL;
    int            rc      = c->avformat_open_input(&v->format, v->path, NULL, NULL);
    if (rc < 0) return refuse(v, "cannot be opened as a video", rc);
    if (!is_video(v->format->iformat->name)) return err_user("%s: a picture or a text, not a video", v->path);
    rc = c->avformat_find_stream_info(v->format, NULL);
    if (rc < 0) return refuse(v, "no stream can be read", rc);
    rc = v->stream = c->av_find_best_stream(v->format, AVMEDIA_TYPE_VIDEO, -1, -1, &decoder, 0);
    if (rc < 0) return refuse(v, "no video stream in it", rc);
    v->codec  = c->avcodec_alloc_context3(decoder);
    v->packet = c->av_packet_alloc();
    v->frame  = c->av_frame_alloc();
    if (!v->codec || !v->packet || !v->frame) return err_set("%s: no memory for a decoder", v->path);
    rc = c->avcodec_parameters_to_context(v->codec, v->format->streams[v->stream]->codecpar);
    v->codec->thread_count = 0; /* as many as there are cores */
    v->codec->max_pixels   = IMAGE_PIXELS_MOST;
    if (rc >= 0) rc = c->avcodec_open2(v->codec, decoder, NULL);
    return rc < 0 ? refuse(v, "cannot be decoded", rc) : 0;
}

int video_open(Video **out, const char *path)
{
    *out     = NULL;
    Video *v = mem_zeroed(1, sizeof *v);
    if (!v) return err_sys("%s", path);
    v->path = path;
    if (open_calls(&v->c) < 0 || open_video(v) < 0) {
        video_close(v);
        return -1;
    }
    *out = v;
    return 0;
}

void video_close(Video *v)
{
    if (!v) return;
    if (v->sws) v->c.sws_freeContext(v->sws);
    if (v->frame) v->c.av_frame_free(&v->frame);
    if (v->packet) v->c.av_packet_free(&v->packet);
    if (v->codec) v->c.avcodec_free_context(&v->codec);
    if (v->format) v->c.avformat_close_input(&v->format);
    close_calls(&v->c);
    free(v->rgb.data);
    free(v->shown.data);
    free(v);
}

int64_t video_damaged(const Video *v) { return v->damaged; }

/* ---- Frames ---------------------------------------------------------------------------------------- */

/* The matrix of the frame in hand: nine numbers, or NULL. */
#if IS_IN_FRAMES
static const void *display_matrix(const Video *v)
{
    const AVFrameSideData *d = v->c.av_frame_get_side_data(v->frame, AV_FRAME_DATA_DISPLAYMATRIX);
    return d ? d->data : NULL;
}
#else
static const void *display_matrix(const Video *v)
{
    return v->c.av_stream_get_side_data(v->format->streams[v->stream], AV_PKT_DATA_DISPLAYMATRIX, NULL);
}
#endif

/* A pixel (x, y) is shown at (ax + cy, bx + dy) by the matrix {a, b, 0, c, d, 0, ...}. Cameras only turn by
 * quarters and mirror, so signs and the larger pair say everything. */
static Turn find_turn(const Video *v)
{
    const void *matrix = display_matrix(v);
    int32_t     m[9]   = { 0 };
    if (matrix) memcpy(m, matrix, sizeof m);
    int64_t upright = llabs(m[0]) + llabs(m[4]), on_side = llabs(m[1]) + llabs(m[3]);
    if (on_side > upright) return (Turn){ 1, m[1] < 0, m[3] < 0 };
    return (Turn){ 0, m[0] < 0, m[4] < 0 };
}

static int as_coded(const Turn *t) { return !t->on_side && !t->from_right && !t->from_below; }

/* Writes a coded frame of w x h pixels as the turn shows it. */
static void show(uint8_t *out, const uint8_t *rgb, int w, int h, const Turn *t)
{
    int     shown_w = t->on_side ? h : w, shown_h = t->on_side ? w : h;
    int64_t along = t->from_right ? -3 : 3, down = (int64_t)w * (t->from_below ? -3 : 3);
    int64_t dx = t->on_side ? down : along, dy = t->on_side ? along : down;
    rgb += (t->from_right ? w - 1 : 0) * 3 + (int64_t)(t->from_below ? h - 1 : 0) * w * 3;
    for (int y = 0; y < shown_h; y++) {
        const uint8_t *at = rgb + y * dy;
        for (int x = 0; x < shown_w; x++, at += dx, out += 3) memcpy(out, at, 3);
    }
}

/* Converts to v->rgb. A stream whose pictures change size is scaled to the first one's. */
static int convert(Video *v)
{
    const AVFrame *f = v->frame;
    if (v->w == 0) {
        v->w    = f->width;
        v->h    = f->height;
        v->turn = find_turn(v);
    }
    if (v->w < 1 || v->h < 1 || v->w > IMAGE_SIDE_MOST || v->h > IMAGE_SIDE_MOST)
        return err_user("%s: frames of %d x %d pixels", v->path, v->w, v->h);
    v->sws = v->c.sws_getCachedContext(v->sws, f->width, f->height, (enum AVPixelFormat)f->format, v->w, v->h,
                                       AV_PIX_FMT_RGB24, SWS_BICUBIC | SWS_ACCURATE_RND, NULL, NULL, NULL);
    if (!v->sws) return err_user("%s: its pixel format %d cannot be converted to RGB", v->path, f->format);
    /* swscale may write some bytes behind a row. */
    TRY(image_buf_need(&v->rgb, (size_t)v->w * (size_t)v->h * 3 + 64));
    uint8_t *plane[4]  = { v->rgb.data, NULL, NULL, NULL };
    int      stride[4] = { v->w * 3, 0, 0, 0 };
    v->c.sws_scale(v->sws, (const uint8_t *const *)f->data, f->linesize, 0, f->height, plane, stride);
    return 0;
}

static int give(Video *v, VideoFrame *out)
{
    TRY(convert(v));
    *out = (VideoFrame){ v->rgb.data, v->w, v->h };
    if (as_coded(&v->turn)) return 1;
    TRY(image_buf_need(&v->shown, (size_t)v->w * (size_t)v->h * 3));
    show(v->shown.data, v->rgb.data, v->w, v->h, &v->turn);
    *out = v->turn.on_side ? (VideoFrame){ v->shown.data, v->h, v->w }
                           : (VideoFrame){ v->shown.data, v->w, v->h };
    return 1;
}

/* Gives the decoder the next packet of the stream, or tells it that there is none. */
static int feed(Video *v)
{
    int rc = v->c.av_read_frame(v->format, v->packet);
    if (rc < 0) {
        v->drained = 1;
        v->c.avcodec_send_packet(v->codec, NULL);
        return 0;
    }
    if (v->packet->stream_index == v->stream && v->c.avcodec_send_packet(v->codec, v->packet) < 0)
        v->damaged++;
    v->c.av_packet_unref(v->packet);
    return 0;
}

int video_next(Video *v, VideoFrame *out)
{
    for (;;) {
        int rc = v->c.avcodec_receive_frame(v->codec, v->frame);
        if (rc == 0) return give(v, out);
        if (rc == AVERROR_EOF || (v->drained && rc == AVERROR(EAGAIN))) return 0;
        if (rc != AVERROR(EAGAIN)) {
            v->damaged++;
            if (v->drained) return 0;
        }
        TRY(feed(v));
    }
}
