#include "data/image_convert.h"

#include "base/err.h"
#include "base/mem.h"
#include "base/progress.h"
#include "data/convert_out.h"
#include "data/image_set.h"
#include "file/image_write.h"

#include <limits.h>
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 256, CHECK_SIDE = 8 };

/* One sample between its thread and the writer. */
typedef struct {
    int        rc; /* 0, 1 skipped, negative */
    AlbumEntry entry;
    uint8_t   *data;
    char       why[IMAGE_WHY_BYTES];
} Job;

static int job_copy(Job *j, const void *data, size_t n)
{
    j->data = mem_alloc(n + 1);
    if (!j->data) return err_sys("%zu bytes of an image", n);
    memcpy(j->data, data, n);
    j->entry.size_bytes = (int64_t)n;
    return 0;
}

static int job_bad(Job *j, const char *why)
{
    snprintf(j->why, sizeof j->why, "%s", why);
    return 1;
}

/* The bytes stay as they are once the whole image was decoded, as small as that goes. */
static int keep(Job *j, ImageScratch *s, const ImageBytes *b, const ImageInfo *info)
{
    uint8_t            out[CHECK_SIDE * CHECK_SIDE * 3];
    ImageDecodeOptions opt = { RESIZE_BILINEAR, 0 };
    int                rc  = image_decode(s->decoder, NULL, &opt, CHECK_SIDE, CHECK_SIDE, out);
    if (rc != 0) return rc < 0 ? -1 : job_bad(j, image_why(s->decoder));
    if (b->raw_c > 0) {
        j->entry.codec = (AlbumCodec)b->raw_c;
        j->entry.w     = info->w;
        j->entry.h     = info->h;
    }
    return job_copy(j, b->data, b->size_bytes);
}

static int anew(Job *j, ImageScratch *s, const ImageInfo *info, const ConvertOptions *o)
{
    int    lesser = MIN(info->w, info->h), w = info->w, h = info->h;
    size_t n;
    if (o->size > 0 && lesser > o->size) {
        w = (int)MAX(lrint((double)info->w * o->size / lesser), 1);
        h = (int)MAX(lrint((double)info->h * o->size / lesser), 1);
    }
    if (!o->raw && MAX(w, h) > IMAGE_JPEG_SIDE_MOST) return job_bad(j, "a side is too long for a JPEG");
    ImageDecodeOptions opt = { RESIZE_BILINEAR, 1 };
    TRY(image_buf_need(&s->pixels, (size_t)w * (size_t)h * 3));
    int rc = image_decode(s->decoder, NULL, &opt, w, h, s->pixels.data);
    if (rc != 0) return rc < 0 ? -1 : job_bad(j, image_why(s->decoder));
    if (!o->raw) {
        TRY(image_encode_jpeg(s->pixels.data, w, h, o->quality, &j->data, &n));
        j->entry.size_bytes = (int64_t)n;
        return 0;
    }
    j->entry.codec = ALBUM_RGB;
    j->entry.w     = w;
    j->entry.h     = h;
    return job_copy(j, s->pixels.data, (size_t)w * (size_t)h * 3);
}

static int work(Job *j, const ImageSet *set, int64_t i, ImageScratch *s, const ConvertOptions *o)
{
    ImageRecord r;
    ImageInfo   info;
    memset(j, 0, sizeof *j);
    int rc = image_set_read(set, i, s, &r);
    if (rc != 0) return rc < 0 ? -1 : job_bad(j, s->why);
    if (r.frames > 0) return job_bad(j, "a clip, not an image");
    j->entry.label = image_set_label(set, i);
    rc             = image_begin(s->decoder, &r.image, &info);
    if (rc != 0) return rc < 0 ? -1 : job_bad(j, image_why(s->decoder));
    int shrink = o->size > 0 && MIN(info.w, info.h) > o->size;
    if (shrink || o->reencode || (o->raw && r.image.raw_c == 0)) return anew(j, s, &info, o);
    return keep(j, s, &r.image, &info);
}

/* A conversion under way. */
typedef struct {
    const ImageSet       *set;
    const ConvertOptions *o;
    ConvertOut           *out;
    ImageScratch         *scratch; /* one a thread */
    Job                   job[BATCH];
} Convert;

/* Threads do a batch, then the batch is written in order: the albums do not depend on the threads. */
static int convert_batch(Convert *c, int64_t first, int n)
{
    char name[PATH_MAX], failure[256] = "";
    int  rc = 0;
#pragma omp parallel for num_threads(c->o->threads) schedule(dynamic, 1)
    for (int k = 0; k < n; k++) {
        c->job[k].rc = work(&c->job[k], c->set, first + k, &c->scratch[omp_get_thread_num()], c->o);
        if (c->job[k].rc >= 0) continue;
#pragma omp critical(convert_failure)
        snprintf(failure, sizeof failure, "%s", err_get());
        err_clear();
    }
    if (failure[0]) rc = err_set("%s", failure);
    for (int k = 0; k < n; k++) {
        Job *j        = &c->job[k];
        j->entry.name = image_set_name(c->set, first + k, name, sizeof name);
        if (rc == 0 && j->rc == 1) rc = convert_out_skip(c->out, name, j->why);
        if (rc == 0 && j->rc == 0) rc = convert_out_add(c->out, &j->entry, j->data);
        free(j->data);
        j->data = NULL;
    }
    return rc;
}

static int convert_all(Convert *c)
{
    Progress p;
    int      rc    = 0;
    int64_t  total = image_set_len(c->set);
    progress_begin(&p, "images", "images/s", 0, total);
    for (int64_t i = 0; i < total && rc == 0; i += BATCH) {
        int n = (int)MIN(BATCH, total - i);
        rc    = convert_batch(c, i, n);
        progress_update(&p, i + n, NAN, NAN, NAN);
    }
    progress_end(&p);
    return rc;
}

static int convert_set(const ImageSet *set, const char *out, const ConvertOptions *o, ConvertResult *result)
{
    int          n_class = image_set_classes(set), rc = 0, n_scratch = 0;
    const char **names = mem_zeroed((size_t)n_class + 1, sizeof *names);
    Convert     *c     = mem_zeroed(1, sizeof *c);
    ConvertOut   to    = { .folder = out, .class_name = names, .n_class = n_class, .result = result };
    to.album_bytes     = o->album_bytes;
    if (!names || !c) rc = err_sys("a conversion of %d classes", n_class);
    if (rc == 0) {
        *c         = (Convert){ .set = set, .o = o, .out = &to };
        c->scratch = mem_zeroed((size_t)o->threads, sizeof *c->scratch);
        if (!c->scratch) rc = err_sys("%d threads", o->threads);
    }
    for (int k = 0; k < n_class && rc == 0; k++) names[k] = image_set_class_name(set, k);
    for (; n_scratch < o->threads && rc == 0; n_scratch++) rc = image_scratch_init(&c->scratch[n_scratch], 0);
    if (rc == 0) rc = convert_out_begin(&to);
    if (rc == 0) rc = convert_out_end(&to, convert_all(c));
    for (int k = 0; k < n_scratch; k++) image_scratch_deinit(&c->scratch[k]);
    if (c) free(c->scratch);
    free(c);
    free(names);
    return rc;
}

int convert_images(const char *in, const char *out, const ConvertOptions *o, ConvertResult *result)
{
    ImageSet *set;
    TRY(image_set_open(&set, in));
    int rc = convert_set(set, out, o, result);
    image_set_close(set);
    return rc;
}
