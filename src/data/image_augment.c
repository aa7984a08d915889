#include "data/image_augment.h"

#include "base/err.h"
#include "base/rng.h"
#include "base/str.h"
#include "data/image_ops.h"

#include <math.h>
#include <string.h>

/* Sites of the recorded list count from 0; these lie far behind. */
enum {
    SITE_CROP = 0x494d4700,
    SITE_FLIP,
    SITE_JITTER,
    SITE_RAND,
    SITE_ERASE,
    SITE_NOISE,
    SITE_FRAME,
    SITE_MIX,
    SITE_PARTNER
};

enum { TRIES = 10 };

/* ---- Draws ----------------------------------------------------------------------------------------- */

typedef struct {
    uint64_t seed;
    uint32_t site;
    int64_t  epoch, sample, next;
} Draws;

static Draws draws(const ImageOptions *o, uint32_t site, int64_t epoch, int64_t sample)
{
    return (Draws){ o->seed, site, epoch, sample, 0 };
}

static uint32_t draw_word(Draws *d) { return rng_draw(d->seed, d->site, d->epoch, d->sample, d->next++); }

static double draw_unit(Draws *d) { return (draw_word(d) + 0.5) * (1.0 / 4294967296.0); } /* in (0, 1) */

static double draw_range(Draws *d, double lo, double hi) { return lo + (hi - lo) * draw_unit(d); }

static int draw_below(Draws *d, int n) { return (int)(((uint64_t)draw_word(d) * (uint64_t)n) >> 32); }

static double draw_normal(Draws *d)
{
    double u = draw_unit(d), v = draw_unit(d);
    return sqrt(-2 * log(u)) * cos(2 * M_PI * v);
}

/* Marsaglia and Tsang; below 1 through alpha + 1. */
static double draw_gamma(Draws *d, double alpha)
{
    double boost = 1;
    if (alpha < 1) {
        boost = pow(draw_unit(d), 1 / alpha);
        alpha += 1;
    }
    double a = alpha - 1.0 / 3, c = 1 / sqrt(9 * a);
    for (;;) {
        double x = draw_normal(d), v = 1 + c * x;
        v = v * v * v;
        if (v > 0 && log(draw_unit(d)) < 0.5 * x * x + a - a * v + a * log(v)) return a * v * boost;
    }
}

static double draw_beta(Draws *d, double alpha)
{
    double x = draw_gamma(d, alpha), y = draw_gamma(d, alpha);
    return x + y > 0 ? x / (x + y) : 0.5;
}

/* ---- Options --------------------------------------------------------------------------------------- */

ImageOptions image_options_eval(int size)
{
    return (ImageOptions){ .size          = size,
                           .channels      = 3,
                           .stride        = 1,
                           .crop          = IMAGE_CROP_CENTER,
                           .crop_fraction = 0.875,
                           .crop_scale    = { 0.08, 1 },
                           .crop_ratio    = { 3.0 / 4, 4.0 / 3 },
                           .erase_scale   = { 0.02, 0.33 },
                           .erase_ratio   = { 0.3, 3.3 },
                           .erase_fill    = { 124, 116, 104 },
                           .mix_group     = 2 };
}

ImageOptions image_options_train(int size)
{
    ImageOptions o = image_options_eval(size);
    o.crop         = IMAGE_CROP_RANDOM;
    o.flip         = 0.5;
    o.any_frame    = 1;
    return o;
}

enum {
    SWITCH_NONE,
    SWITCH_CROP,
    SWITCH_FLIP,
    SWITCH_JITTER,
    SWITCH_RAND,
    SWITCH_ERASE,
    SWITCH_MIXUP,
    SWITCH_CUTMIX
};

static const char *const switches[] = {
    [SWITCH_NONE] = "none", [SWITCH_CROP] = "crop",   [SWITCH_FLIP] = "flip",   [SWITCH_JITTER] = "jitter",
    [SWITCH_RAND] = "rand", [SWITCH_ERASE] = "erase", [SWITCH_MIXUP] = "mixup", [SWITCH_CUTMIX] = "cutmix"
};

/* torchvision's usual proportion: hue a quarter of the others. */
static void set_jitter(ImageOptions *o, double strength)
{
    o->jitter_brightness = o->jitter_contrast = o->jitter_saturation = strength;
    o->jitter_hue                                                    = strength / 4;
}

int image_options_list(ImageOptions *o, const char *list, const RecipeData *d, const char *key)
{
    char item[32], hint[96];
    int  rc;
    while ((rc = str_list_next(&list, item, sizeof item)) > 0) {
        int        k    = 0;
        StrNearest near = str_nearest_begin(item);
        while (k < ARRAY_LEN(switches) && strcmp(item, switches[k]) != 0)
            str_nearest_offer(&near, switches[k++]);
        switch (k) {
        case SWITCH_NONE: break;
        case SWITCH_CROP: o->crop = IMAGE_CROP_RANDOM; break;
        case SWITCH_FLIP: o->flip = 0.5; break;
        case SWITCH_JITTER: set_jitter(o, d->jitter); break;
        case SWITCH_RAND: o->rand_ops = (int)d->rand_ops, o->rand_level = (int)d->rand_level; break;
        case SWITCH_ERASE: o->erase = d->erase, o->erase_noise = d->erase_noise; break;
        case SWITCH_MIXUP: o->mixup = d->mixup; break;
        case SWITCH_CUTMIX: o->cutmix = d->cutmix; break;
        default:
            return err_user(
                "%s: %s: no such augmentation%s", key, item,
                str_nearest_hint(&near, "crop, flip, jitter, rand, erase, mixup, cutmix", hint, sizeof hint));
        }
    }
    return rc < 0 ? err_user("%s: too long a name of an augmentation", key) : 0;
}

/* ---- Crops ----------------------------------------------------------------------------------------- */

static ResizeBox center_box(const ImageOptions *o, int w, int h)
{
    /* Resize(side) and CenterCrop(size), in one step: the crop of the resized image, in source pixels. */
    int64_t side = MAX((int64_t)(o->size / o->crop_fraction), o->size), lesser = MIN(w, h);
    int64_t rw = w <= h ? side : side * w / lesser, rh = w <= h ? side * h / lesser : side;
    int64_t x = lrint((double)(rw - o->size) / 2), y = lrint((double)(rh - o->size) / 2);
    double  sx = (double)w / (double)rw, sy = (double)h / (double)rh;
    double  x0 = (double)x, y0 = (double)y;
    return (ResizeBox){ x0 * sx, y0 * sy, (x0 + o->size) * sx, (y0 + o->size) * sy, 0, 0, w, h };
}

/* torchvision's last resort: the middle, within the ratio. */
static ResizeBox fallback_box(const ImageOptions *o, int w, int h)
{
    double ratio = (double)w / h;
    int    cw = w, ch = h;
    if (ratio < o->crop_ratio[0]) ch = (int)lrint(w / o->crop_ratio[0]);
    if (ratio > o->crop_ratio[1]) cw = (int)lrint(h * o->crop_ratio[1]);
    cw = MIN(MAX(cw, 1), w);
    ch = MIN(MAX(ch, 1), h);
    return resize_crop((w - cw) / 2, (h - ch) / 2, cw, ch);
}

static ResizeBox random_box(const ImageOptions *o, Draws *d, int w, int h)
{
    double area = (double)w * h, lo = log(o->crop_ratio[0]), hi = log(o->crop_ratio[1]);
    for (int i = 0; i < TRIES; i++) {
        double target = area * draw_range(d, o->crop_scale[0], o->crop_scale[1]);
        double aspect = exp(draw_range(d, lo, hi));
        int    cw = (int)lrint(sqrt(target * aspect)), ch = (int)lrint(sqrt(target / aspect));
        if (cw < 1 || ch < 1 || cw > w || ch > h) continue;
        int y = draw_below(d, h - ch + 1), x = draw_below(d, w - cw + 1);
        return resize_crop(x, y, cw, ch);
    }
    return fallback_box(o, w, h);
}

/* ---- Parameters ------------------------------------------------------------------------------------ */

static void draw_jitter(const ImageOptions *o, Draws *d, ImageParams *p)
{
    double span[3] = { o->jitter_brightness, o->jitter_contrast, o->jitter_saturation };
    for (int i = 0; i < 4; i++) p->jitter_order[i] = i;
    for (int i = 3; i > 0; i--) {
        int k = draw_below(d, i + 1), t = p->jitter_order[i];
        p->jitter_order[i] = p->jitter_order[k];
        p->jitter_order[k] = t;
    }
    for (int i = 0; i < 3; i++) p->jitter[i] = (float)draw_range(d, MAX(1 - span[i], 0), 1 + span[i]);
    p->jitter[3] = (float)draw_range(d, -o->jitter_hue, o->jitter_hue);
}

/* What level 0 to 30 means, and whether a coin decides about the sign. */
static double rand_magnitude(RandOp op, int level, int size, int *is_signed)
{
    double part = level / (IMAGE_RAND_LEVELS - 1.0);
    *is_signed  = op >= RAND_SHEAR_X && op <= RAND_SHARPNESS;
    switch (op) {
    case RAND_SHEAR_X:
    case RAND_SHEAR_Y: return 0.3 * part;
    case RAND_TRANSLATE_X:
    case RAND_TRANSLATE_Y: return 150.0 / 331 * size * part;
    case RAND_ROTATE: return 30 * part;
    case RAND_BRIGHTNESS:
    case RAND_COLOR:
    case RAND_CONTRAST:
    case RAND_SHARPNESS: return 0.9 * part;
    case RAND_POSTERIZE: return 8 - (int)lrint(level / ((IMAGE_RAND_LEVELS - 1) / 4.0));
    case RAND_SOLARIZE: return 255 * (1 - part);
    default: return 0;
    }
}

static void draw_rand(const ImageOptions *o, Draws *d, ImageParams *p)
{
    CHECK(o->rand_ops >= 0 && o->rand_ops <= IMAGE_RAND_MOST && o->rand_level >= 0 &&
              o->rand_level < IMAGE_RAND_LEVELS,
          "RandAugment with %d ops of level %d", o->rand_ops, o->rand_level);
    p->n_rand = o->rand_ops;
    for (int i = 0; i < p->n_rand; i++) {
        int    is_signed, coin;
        RandOp op            = (RandOp)draw_below(d, RAND_COUNT);
        double m             = rand_magnitude(op, o->rand_level, o->size, &is_signed);
        coin                 = draw_below(d, 2);
        p->rand[i].op        = op;
        p->rand[i].magnitude = is_signed && coin ? -m : m;
    }
}

static void draw_erase(const ImageOptions *o, Draws *d, ImageParams *p)
{
    double area = (double)o->size * o->size, lo = log(o->erase_ratio[0]), hi = log(o->erase_ratio[1]);
    if (draw_unit(d) >= o->erase) return;
    for (int i = 0; i < TRIES; i++) {
        double target = area * draw_range(d, o->erase_scale[0], o->erase_scale[1]);
        double aspect = exp(draw_range(d, lo, hi));
        int    h = (int)lrint(sqrt(target * aspect)), w = (int)lrint(sqrt(target / aspect));
        if (w < 1 || h < 1 || w >= o->size || h >= o->size) continue;
        p->erase_y = draw_below(d, o->size - h + 1);
        p->erase_x = draw_below(d, o->size - w + 1);
        p->erase_w = w;
        p->erase_h = h;
        return;
    }
}

static int64_t draw_frame(const ImageOptions *o, Draws *d, int n_frame)
{
    int spare = n_frame - ((o->frames - 1) * o->stride + 1);
    if (n_frame == 0 || o->frames == 0 || spare <= 0) return 0;
    return o->any_frame ? draw_below(d, spare + 1) : spare / 2;
}

ImageParams image_augment_params(const ImageOptions *o, int64_t epoch, int64_t sample, int w, int h,
                                 int n_frame)
{
    ImageParams p = { .flip = 0 };
    Draws       d = draws(o, SITE_CROP, epoch, sample);
    switch (o->crop) {
    case IMAGE_CROP_RANDOM: p.box = random_box(o, &d, w, h); break;
    case IMAGE_CROP_CENTER: p.box = center_box(o, w, h); break;
    case IMAGE_CROP_WHOLE: p.box = resize_crop(0, 0, w, h); break;
    }
    d      = draws(o, SITE_FLIP, epoch, sample);
    p.flip = draw_unit(&d) < o->flip;
    d      = draws(o, SITE_JITTER, epoch, sample);
    draw_jitter(o, &d, &p);
    d = draws(o, SITE_RAND, epoch, sample);
    draw_rand(o, &d, &p);
    d = draws(o, SITE_ERASE, epoch, sample);
    draw_erase(o, &d, &p);
    d             = draws(o, SITE_FRAME, epoch, sample);
    p.first_frame = draw_frame(o, &d, n_frame);
    return p;
}

/* ---- Mixing ---------------------------------------------------------------------------------------- */

static void cut_box(const ImageOptions *o, Draws *d, ImageMix *m)
{
    int    s = o->size, cx = draw_below(d, s), cy = draw_below(d, s);
    double half = 0.5 * sqrt(1 - m->lambda) * s;
    int    x0 = MAX((int)(cx - half), 0), y0 = MAX((int)(cy - half), 0);
    int    x1 = MIN((int)(cx + half), s), y1 = MIN((int)(cy + half), s);
    m->x      = x0;
    m->y      = y0;
    m->w      = x1 - x0;
    m->h      = y1 - y0;
    m->lambda = (float)(1 - (double)m->w * m->h / ((double)s * s));
    if (m->w == 0 || m->h == 0) m->w = m->h = 0, m->lambda = 1;
}

ImageMix image_mix_params(const ImageOptions *o, int64_t epoch, int64_t position)
{
    int64_t  group = MAX(o->mix_group, 2), first = position - position % group;
    ImageMix m = { .partner = position, .lambda = 1 };
    Draws    d = draws(o, SITE_PARTNER, epoch, first);
    if (o->mixup <= 0 && o->cutmix <= 0) return m;
    int shift = 1 + draw_below(&d, (int)group - 1);
    int cut   = o->mixup <= 0 || (o->cutmix > 0 && draw_below(&d, 2));
    m.partner = first + (position - first + shift) % group;
    d         = draws(o, SITE_MIX, epoch, position);
    m.lambda  = (float)draw_beta(&d, cut ? o->cutmix : o->mixup);
    if (cut) cut_box(o, &d, &m);
    return m;
}

/* ---- Doing it -------------------------------------------------------------------------------------- */

static void apply_jitter(const ImageOptions *o, const ImageParams *p, uint8_t *rgb)
{
    int s = o->size;
    for (int i = 0; i < 4; i++) {
        float f = p->jitter[p->jitter_order[i]];
        switch (p->jitter_order[i]) {
        case 0:
            if (o->jitter_brightness > 0) image_op_brightness(rgb, s, s, f);
            break;
        case 1:
            if (o->jitter_contrast > 0) image_op_contrast(rgb, s, s, f);
            break;
        case 2:
            if (o->jitter_saturation > 0) image_op_saturation(rgb, s, s, f);
            break;
        default:
            if (o->jitter_hue > 0) image_op_hue(rgb, s, s, f);
        }
    }
}

static void apply_geometry(RandOp op, double v, int s, uint8_t *rgb, uint8_t *tmp)
{
    double m[6] = { 1, 0, 0, 0, 1, 0 };
    switch (op) {
    case RAND_SHEAR_X: m[1] = v; break;
    case RAND_SHEAR_Y: m[3] = v; break;
    case RAND_TRANSLATE_X: m[2] = -(int)v; break;
    case RAND_TRANSLATE_Y: m[5] = -(int)v; break;
    default: image_op_rotation(m, s, s, v);
    }
    image_op_affine(rgb, s, s, m, tmp);
}

static void apply_rand(RandOp op, double v, int s, uint8_t *rgb, uint8_t *tmp)
{
    switch (op) {
    case RAND_IDENTITY:
    case RAND_COUNT: break;
    case RAND_SHEAR_X:
    case RAND_SHEAR_Y:
    case RAND_TRANSLATE_X:
    case RAND_TRANSLATE_Y:
    case RAND_ROTATE: apply_geometry(op, v, s, rgb, tmp); break;
    case RAND_BRIGHTNESS: image_op_brightness(rgb, s, s, (float)(1 + v)); break;
    case RAND_COLOR: image_op_saturation(rgb, s, s, (float)(1 + v)); break;
    case RAND_CONTRAST: image_op_contrast(rgb, s, s, (float)(1 + v)); break;
    case RAND_SHARPNESS: image_op_sharpen(rgb, s, s, (float)(1 + v), tmp); break;
    case RAND_POSTERIZE: image_op_posterize(rgb, s, s, (int)v); break;
    case RAND_SOLARIZE: image_op_solarize(rgb, s, s, (float)v); break;
    case RAND_AUTOCONTRAST: image_op_autocontrast(rgb, s, s); break;
    case RAND_EQUALIZE: image_op_equalize(rgb, s, s); break;
    }
}

static void apply_erase(const ImageOptions *o, const ImageParams *p, int64_t epoch, int64_t sample,
                        uint8_t *rgb)
{
    for (int y = p->erase_y; y < p->erase_y + p->erase_h; y++) {
        int64_t at = ((int64_t)y * o->size + p->erase_x) * 3;
        for (int64_t i = 0; i < (int64_t)p->erase_w * 3; i++) {
            rgb[at + i] = o->erase_noise ? (uint8_t)rng_draw(o->seed, SITE_NOISE, epoch, sample, at + i)
                                         : o->erase_fill[i % 3];
        }
    }
}

void image_augment_apply(const ImageOptions *o, const ImageParams *p, int64_t epoch, int64_t sample,
                         uint8_t *rgb, uint8_t *tmp)
{
    if (p->flip) image_op_flip(rgb, o->size, o->size);
    apply_jitter(o, p, rgb);
    for (int i = 0; i < p->n_rand; i++) apply_rand(p->rand[i].op, p->rand[i].magnitude, o->size, rgb, tmp);
    if (p->erase_w > 0) apply_erase(o, p, epoch, sample, rgb);
}
