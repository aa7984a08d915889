#include "data/image_convert.h"

#include "base/arena.h"
#include "base/err.h"
#include "base/file.h"
#include "base/log.h"
#include "base/str.h"
#include "data/convert_out.h"
#include "file/image.h"
#include "file/image_write.h"
#include "file/video.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH_MOST = 16 };

/* ---- Which videos ---------------------------------------------------------------------------------- */

typedef struct {
    Arena  arena;
    char **path;
    int    n, cap;
    char **class_name; /* sorted, each once */
    int    n_class;
} Videos;

static void add_video(Videos *v, const char *path)
{
    if (v->n == v->cap) {
        char **more = ARENA_ARRAY(&v->arena, char *, v->cap = v->cap * 2 + 64);
        if (v->n > 0) memcpy(more, v->path, (size_t)v->n * sizeof *more);
        v->path = more;
    }
    v->path[v->n++] = arena_strdup(&v->arena, path);
}

static int find_videos(Videos *v, const char *path, int depth)
{
    char **names;
    if (depth > DEPTH_MOST) return err_user("%s: folders in folders deeper than 16", path);
    switch (file_kind(path)) {
    case FILE_REGULAR: add_video(v, path); return 0;
    case FILE_FOLDER: break;
    default: return err_user("%s: no such file or folder", path);
    }
    int n = file_list(&v->arena, path, "", &names);
    for (int i = 0; i < n; i++) {
        if (names[i][0] == '.') continue;
        TRY(find_videos(v, arena_printf(&v->arena, "%s/%s", path, names[i]), depth + 1));
    }
    return n < 0 ? -1 : 0;
}

static const char *class_of(const char *path, char buf[PATH_MAX])
{
    char folder[PATH_MAX], full[PATH_MAX];
    if (file_folder_of(path, folder, sizeof folder) < 0 || !realpath(folder, full)) return "";
    str_copy(buf, PATH_MAX, file_name_of(full));
    return buf;
}

static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static void find_classes(Videos *v)
{
    char buf[PATH_MAX];
    v->class_name = ARENA_ARRAY(&v->arena, char *, v->n + 1);
    for (int i = 0; i < v->n; i++) v->class_name[i] = arena_strdup(&v->arena, class_of(v->path[i], buf));
    qsort(v->class_name, (size_t)v->n, sizeof *v->class_name, by_name);
    for (int i = 0; i < v->n; i++) {
        if (v->n_class == 0 || strcmp(v->class_name[i], v->class_name[v->n_class - 1]) != 0)
            v->class_name[v->n_class++] = v->class_name[i];
    }
}

static int label_of(const Videos *v, const char *path)
{
    char        buf[PATH_MAX];
    const char *name = class_of(path, buf);
    for (int c = 0; c < v->n_class; c++) {
        if (strcmp(v->class_name[c], name) == 0) return c;
    }
    return -1;
}

/* ---- Cutting --------------------------------------------------------------------------------------- */

/* The clip under way: frames of w x h, raw or JPEG. */
typedef struct {
    const ConvertOptions *o;
    ConvertOut           *out;
    const char           *path;
    int                   label, w, h, n_frame, n_clip;
    int64_t               first; /* frame of the video that the clip begins with */
    uint8_t             **frame;
    size_t               *frame_bytes;
    ImageDecoder         *decoder;
} Cutter;

static void drop_frames(Cutter *c)
{
    for (int i = 0; i < c->n_frame; i++) free(c->frame[i]);
    c->n_frame = 0;
}

static int write_clip(Cutter *c)
{
    char   name[PATH_MAX];
    size_t table = c->o->raw ? 0 : 4 * (size_t)c->n_frame, total = table, at = table;
    for (int i = 0; i < c->n_frame; i++) total += c->frame_bytes[i];
    if ((int64_t)total > ALBUM_RECORD_MOST)
        return err_user("%s: a clip of over 4 GiB: fewer --frames", c->path);
    uint8_t *record = malloc(total + 1);
    if (!record) return err_sys("%s: a clip of %zu bytes", c->path, total);
    for (int i = 0; i < c->n_frame; i++) {
        uint32_t n = (uint32_t)c->frame_bytes[i];
        if (table > 0) memcpy(record + 4 * (size_t)i, &n, sizeof n);
        memcpy(record + at, c->frame[i], c->frame_bytes[i]);
        at += c->frame_bytes[i];
    }
    snprintf(name, sizeof name, "%s: frame %lld", c->path, (long long)c->first);
    AlbumEntry e  = { .size_bytes = (int64_t)total,
                      .label      = c->label,
                      .frames     = c->n_frame,
                      .w          = c->w,
                      .h          = c->h,
                      .codec      = c->o->raw ? ALBUM_RGB : ALBUM_FILE,
                      .name       = name };
    int        rc = convert_out_add(c->out, &e, record);
    free(record);
    drop_frames(c);
    c->n_clip++;
    return rc;
}

static int add_frame(Cutter *c, const VideoFrame *f)
{
    ImageDecodeOptions opt = { RESIZE_BILINEAR, 1 };
    ImageInfo          info;
    int                lesser = MIN(f->w, f->h);
    double             scale  = c->o->size > 0 && lesser > c->o->size ? (double)c->o->size / lesser : 1;
    c->w                      = (int)MAX(lrint(f->w * scale), 1);
    c->h                      = (int)MAX(lrint(f->h * scale), 1);
    size_t     n              = (size_t)c->w * (size_t)c->h * 3;
    ImageBytes bytes          = { f->rgb, (size_t)f->w * (size_t)f->h * 3, f->w, f->h, 3 };
    uint8_t   *rgb            = malloc(n);
    if (!rgb) return err_sys("%s: a frame", c->path);
    int rc = image_begin(c->decoder, &bytes, &info);
    if (rc == 0) rc = image_decode(c->decoder, NULL, &opt, c->w, c->h, rgb);
    if (rc == 1) rc = err_user("%s: %s", c->path, image_why(c->decoder));
    int k             = c->n_frame;
    c->frame[k]       = rgb;
    c->frame_bytes[k] = n;
    if (rc == 0 && !c->o->raw) {
        rc = image_encode_jpeg(rgb, c->w, c->h, c->o->quality, &c->frame[k], &c->frame_bytes[k]);
        free(rgb);
        rgb = c->frame[k];
    }
    if (rc < 0) {
        free(rgb);
        return -1;
    }
    c->n_frame++;
    return 0;
}

/* Frames [*begin, *end) of the video that are wanted. Only reading a video to its end says how many there
 * are. */
static int find_part(const ConvertOptions *o, const char *path, int64_t *begin, int64_t *end)
{
    Video     *v;
    VideoFrame f;
    int64_t    n = 0;
    int        rc;
    *begin = 0;
    *end   = INT64_MAX;
    if (o->part[1] <= 0) return 0;
    TRY(video_open(&v, path));
    while ((rc = video_next(v, &f)) > 0) n++;
    video_close(v);
    *begin = (int64_t)(o->part[0] * (double)n);
    *end   = (int64_t)(o->part[1] * (double)n);
    return rc;
}

/* A rest of at least half a clip is kept, and whatever a short video has. */
static int cut(Cutter *c, Video *v)
{
    VideoFrame f;
    int64_t    begin, end;
    int        rc;
    TRY(find_part(c->o, c->path, &begin, &end));
    for (int64_t i = 0; (rc = video_next(v, &f)) > 0; i++) {
        if (i < begin || i >= end || (i - begin) % c->o->stride != 0) continue;
        if (c->n_frame == 0) c->first = i;
        TRY(add_frame(c, &f));
        if (c->n_frame == c->o->frames) TRY(write_clip(c));
    }
    TRY(rc);
    if (c->n_frame > 0 && (c->n_clip == 0 || c->n_frame * 2 >= c->o->frames)) TRY(write_clip(c));
    if (video_damaged(v) > 0)
        log_warn("%s: %lld damaged packets passed over", c->path, (long long)video_damaged(v));
    return c->n_clip > 0 ? 0 : convert_out_skip(c->out, c->path, "no frame could be decoded");
}

/* A file that is no video is skipped; missing libraries end the conversion. */
static int cut_video(Cutter *c, const char *path, int label)
{
    Video *v;
    c->path   = path;
    c->label  = label;
    c->n_clip = 0;
    int rc    = video_open(&v, path);
    if (rc == 0) rc = cut(c, v);
    video_close(v);
    drop_frames(c);
    if (rc == 0 || err_kind() != ERR_USER) return rc;
    char why[256];
    snprintf(why, sizeof why, "%s", err_get());
    err_clear();
    const char *at = str_starts_with(why, path) && why[strlen(path)] == ':' ? why + strlen(path) + 2 : why;
    return convert_out_skip(c->out, path, at);
}

static int cut_all(const Videos *v, ConvertOut *out, const ConvertOptions *o)
{
    Arena  a;
    Cutter c  = { .o = o, .out = out };
    int    rc = image_decoder_create(&c.decoder, 0);
    arena_init(&a);
    c.frame       = ARENA_ARRAY(&a, uint8_t *, o->frames);
    c.frame_bytes = ARENA_ARRAY(&a, size_t, o->frames);
    for (int i = 0; i < v->n && rc == 0; i++) rc = cut_video(&c, v->path[i], label_of(v, v->path[i]));
    image_decoder_destroy(c.decoder);
    arena_deinit(&a);
    return rc;
}

int convert_clips(char *const *path, int n_path, const char *out, const ConvertOptions *o,
                  ConvertResult *result)
{
    Videos v  = { .n = 0 };
    int    rc = 0;
    arena_init(&v.arena);
    for (int i = 0; i < n_path && rc == 0; i++) rc = find_videos(&v, path[i], 0);
    if (rc == 0 && v.n == 0) rc = err_user("%s: no video in it", n_path > 0 ? path[0] : "command line");
    if (rc == 0) {
        find_classes(&v);
        ConvertOut c = { .folder      = out,
                         .class_name  = (const char *const *)v.class_name,
                         .n_class     = v.n_class,
                         .album_bytes = o->album_bytes,
                         .result      = result };
        rc           = convert_out_begin(&c);
        if (rc == 0) rc = convert_out_end(&c, cut_all(&v, &c, o));
    }
    arena_deinit(&v.arena);
    return rc;
}
