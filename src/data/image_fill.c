#include "data/image_fill.h"

#include "base/clock.h"
#include "base/err.h"
#include "data/image_ops.h"

#include <stdio.h>
#include <string.h>

int64_t image_sample_bytes(const ImageOptions *o)
{
    return (int64_t)MAX(o->frames, 1) * o->size * o->size * o->channels;
}

/* One sample on its way. */
typedef struct {
    const ImageOptions *o;
    ImageScratch       *s;
    int64_t             epoch, sample;
    ImageParams         params;
    uint8_t            *tmp, *rgb; /* for ops; pixels before they become grey */
} Fill;

static size_t frame_bytes(const ImageOptions *o) { return (size_t)o->size * (size_t)o->size * 3; }

int image_scratch_plan(ImageScratch *s, const ImageSet *set, const ImageOptions *o)
{
    TRY(image_buf_need(&s->bytes, (size_t)image_set_largest(set) + 1));
    return image_buf_need(&s->pixels, 2 * frame_bytes(o));
}

static int take_pixels(Fill *f)
{
    TRY(image_buf_need(&f->s->pixels, 2 * frame_bytes(f->o)));
    f->tmp = f->s->pixels.data;
    f->rgb = f->tmp + frame_bytes(f->o);
    return 0;
}

/* The image begun in the decoder, to out. */
static int finish_image(Fill *f, uint8_t *out)
{
    const ImageOptions *o   = f->o;
    ImageDecodeOptions  opt = { o->filter, o->full_decode };
    uint8_t            *rgb = o->channels == 3 ? out : f->rgb;
    int                 rc  = image_decode(f->s->decoder, &f->params.box, &opt, o->size, o->size, rgb);
    if (rc == 1) snprintf(f->s->why, sizeof f->s->why, "%s", image_why(f->s->decoder));
    if (rc != 0) return rc;
    double t0 = clock_now_s();
    image_augment_apply(o, &f->params, f->epoch, f->sample, rgb, f->tmp);
    if (o->channels == 1) image_op_grey(out, rgb, (int64_t)o->size * o->size);
    f->s->count.augment_s += clock_now_s() - t0;
    f->s->count.n_image++;
    return 0;
}

static int begin_image(Fill *f, const ImageBytes *bytes, ImageInfo *info)
{
    int rc = image_begin(f->s->decoder, bytes, info);
    if (rc == 1) snprintf(f->s->why, sizeof f->s->why, "%s", image_why(f->s->decoder));
    return rc;
}

static int fill_image(Fill *f, const ImageRecord *r, uint8_t *out)
{
    ImageInfo info;
    int       rc = begin_image(f, &r->image, &info);
    if (rc != 0) return rc;
    f->params = image_augment_params(f->o, f->epoch, f->sample, info.w, info.h, 0);
    return finish_image(f, out);
}

/* A clip that is too short repeats its last frame. */
static int fill_clip(Fill *f, const ImageRecord *r, uint8_t *out)
{
    int64_t n = image_sample_bytes(f->o) / f->o->frames;
    f->params = image_augment_params(f->o, f->epoch, f->sample, r->w, r->h, r->frames);
    for (int i = 0; i < f->o->frames; i++) {
        ImageBytes bytes;
        ImageInfo  info;
        int64_t    at = MIN(f->params.first_frame + (int64_t)i * f->o->stride, r->frames - 1);
        int        rc = image_set_frame(r, f->s, (int)at, &bytes);
        if (rc == 0) rc = begin_image(f, &bytes, &info);
        if (rc != 0) return rc;
        if (info.w != r->w || info.h != r->h) {
            snprintf(f->s->why, sizeof f->s->why, "frame %d is %d x %d pixels, the clip %d x %d", (int)at,
                     info.w, info.h, r->w, r->h);
            return 1;
        }
        rc = finish_image(f, out + i * n);
        if (rc != 0) return rc;
    }
    return 0;
}

static int wrong_kind(ImageScratch *s, int frames)
{
    snprintf(s->why, sizeof s->why,
             frames > 0 ? "an image where a clip is expected" : "a clip where an image is expected");
    return 1;
}

int image_sample_fill(const ImageSet *set, int64_t sample, int64_t epoch, const ImageOptions *o,
                      ImageScratch *s, uint8_t *out, int32_t *label)
{
    Fill        f = { .o = o, .s = s, .epoch = epoch, .sample = sample };
    ImageRecord r;
    CHECK(o->size > 0 && (o->channels == 1 || o->channels == 3) && o->stride > 0, "bad image options");
    TRY(take_pixels(&f));
    int rc = image_set_read(set, sample, s, &r);
    TRY(rc);
    if (rc == 0 && (r.frames > 0) != (o->frames > 0)) rc = wrong_kind(s, o->frames);
    if (rc == 0) rc = r.frames > 0 ? fill_clip(&f, &r, out) : fill_image(&f, &r, out);
    TRY(rc);
    ImageTimes t      = image_times(s->decoder);
    s->count.decode_s = t.decode_s;
    s->count.resize_s = t.resize_s;
    s->count.n_sample++;
    s->count.n_skipped += rc;
    *label = rc == 0 ? image_set_label(set, sample) : -1;
    if (rc == 1) memset(out, 0, (size_t)image_sample_bytes(o));
    return rc;
}
