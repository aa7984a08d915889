#include "data/image_source.h"

#include "base/log.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/str.h"
#include "base/thread.h"
#include "conf/relate_image.h"
#include "data/order.h"

#include <pthread.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NOISE_BYTES = 8 << 20, NOISE_VAL = 256, NOISE_SITE = 0x494d4e00 };

/* What threads share and change. */
typedef struct {
    ImageSkips      skips;
    ImageCounters   count; /* of threads that have ended, and of the others up to their last sample */
    pthread_mutex_t lock;
} Shared;

typedef struct {
    Source       base;
    ImageSet    *set; /* NULL: noise */
    uint8_t     *noise;
    int64_t     *pick; /* samples of the set that belong to this source; NULL: all */
    int64_t      n;    /* how many */
    ImageOptions opt;
    Order        order;
    int          training, mixes;
    int          classes;
    double       skip_limit;
    Shared      *shared;
    char         name[RECIPE_STR + 32];
} ImageSource;

/* Which set, for messages. */
typedef struct {
    const char *key, *path;
} SetPlace;

/* One thread's. */
typedef struct {
    ImageScratch  image;
    ImageCounters told; /* what of image.count is in the sum */
    int           ready;
} Scratch;

/* ---- options ------------------------------------------------------------------------------------------ */

ImageOptions image_source_options(const Recipe *r, int training)
{
    ImageOptions      o = image_options_eval((int)r->image.seen_size);
    const RecipeData *d = &r->data;
    float             mean[3];
    o.seed          = (uint64_t)r->seed;
    o.frames        = (int)r->image.seen_frames;
    o.stride        = (int)r->image.stride;
    o.crop          = r->image.fit == FIT_SQUEEZE ? IMAGE_CROP_WHOLE : IMAGE_CROP_CENTER;
    o.filter        = r->image.filter == FILTER_BICUBIC ? RESIZE_BICUBIC : RESIZE_BILINEAR;
    o.full_decode   = d->full_decode;
    o.crop_fraction = d->crop_fraction;
    o.crop_scale[0] = d->crop_min;
    if (relate_floats(r->image.mean, 3, mean) == 0) {
        for (int c = 0; c < 3; c++)
            o.erase_fill[c] = (uint8_t)(MIN(MAX(mean[c], 0.0f), 1.0f) * 255.0f + 0.5f);
    }
    if (!training) return o;
    int rc = image_options_list(&o, d->augment, d, "data.augment");
    CHECK(rc == 0, "data.augment was verified on load");
    o.mix_group = (int)d->mix_group;
    o.any_frame = 1;
    return o;
}

int image_source_fields(const Recipe *r, FieldRow *row)
{
    int64_t size = r->image.seen_size, frames = MAX(r->image.seen_frames, 1);
    row[IMAGE_PIXELS] = (FieldRow){ "pixels", DT_U8, 3, { frames * size, size, 3 } };
    row[IMAGE_LABEL]  = (FieldRow){ "label", DT_I32, 0, { 0 } };
    if (!relate_mixes(r)) return IMAGE_LABEL + 1;
    row[IMAGE_LABEL2]  = (FieldRow){ "partner's label", DT_I32, 0, { 0 } };
    row[IMAGE_SHARE]   = (FieldRow){ "share", DT_F32, 0, { 0 } };
    row[IMAGE_PARTNER] = (FieldRow){ "partner", DT_I32, 0, { 0 } };
    row[IMAGE_BLEND]   = (FieldRow){ "blend", DT_F32, 0, { 0 } };
    row[IMAGE_BOX]     = (FieldRow){ "box", DT_I32, 1, { 4 } };
    return IMAGE_FIELDS;
}

int image_source_is_noise(const Recipe *r) { return r->data.train[0] == '\0'; }

int image_source_has_val(const Recipe *r)
{
    return image_source_is_noise(r) || r->data.val[0] || r->data.val_fraction > 0;
}

/* ---- one sample --------------------------------------------------------------------------------------- */

/* The sample of the set that position g stands for, and its epoch. */
static int64_t sample_of(const ImageSource *s, int64_t g, int64_t *epoch)
{
    *epoch    = s->training ? g / s->n : 0;
    int64_t i = s->training ? order_permute(&s->order, *epoch, g % s->n)
                            : order_eval_pick(g, s->base.n_sample, s->base.n_all);
    return s->pick ? s->pick[i] : i;
}

static int label_of(const ImageSource *s, int64_t g)
{
    int64_t epoch;
    if (g < 0) return -1;
    if (s->classes == 0) return 0;
    if (s->set) return image_set_label(s->set, sample_of(s, g, &epoch));
    return (int)(rng_draw(s->opt.seed, NOISE_SITE, s->training, g, 0) % (uint32_t)s->classes);
}

int image_source_label(const Source *s, int64_t g) { return label_of((const ImageSource *)s, g); }

static void fill_mix(const ImageSource *s, int64_t g, void *const *field)
{
    ImageMix m = { .partner = g, .lambda = 1 };
    if (s->training && g >= 0) m = image_mix_params(&s->opt, 0, g);
    int     other                    = m.partner == g ? -1 : label_of(s, m.partner);
    int32_t box[4]                   = { m.y, m.y + m.h, m.x, m.x + m.w };
    *(int32_t *)field[IMAGE_LABEL2]  = MAX(other, 0);
    *(float *)field[IMAGE_SHARE]     = other < 0 ? 1.0f : m.lambda;
    *(int32_t *)field[IMAGE_PARTNER] = (int32_t)(m.partner - g);
    *(float *)field[IMAGE_BLEND]     = m.w > 0 ? 1.0f : m.lambda;
    memcpy(field[IMAGE_BOX], box, sizeof box);
}

static void tell_counters(const ImageSource *s, Scratch *k)
{
    ImageCounters now = k->image.count, more = now, *told = &k->told;
    more.read_s -= told->read_s;
    more.decode_s -= told->decode_s;
    more.resize_s -= told->resize_s;
    more.augment_s -= told->augment_s;
    more.n_sample -= told->n_sample;
    more.n_skipped -= told->n_skipped;
    more.n_image -= told->n_image;
    more.read_bytes -= told->read_bytes;
    thread_lock(&s->shared->lock);
    image_counters_add(&s->shared->count, &more);
    thread_unlock(&s->shared->lock);
    *told = now;
}

/* What all threads of a source counted so far. */
static void read_counters(const Source *src, ImageCounters *out)
{
    const ImageSource *s = (const ImageSource *)src;
    thread_lock(&s->shared->lock);
    *out = s->shared->count;
    thread_unlock(&s->shared->lock);
}

static int ready_scratch(const ImageSource *s, Scratch *k)
{
    if (k->ready) return 0;
    TRY(image_scratch_init(&k->image, 0));
    k->ready = 1;
    return image_scratch_plan(&k->image, s->set, &s->opt);
}

static int fill_pixels(const ImageSource *s, int64_t g, void *const *field, Scratch *k)
{
    char    name[1024];
    int64_t epoch, i = sample_of(s, g, &epoch);
    TRY(ready_scratch(s, k));
    int rc = image_sample_fill(s->set, i, epoch, &s->opt, &k->image, field[IMAGE_PIXELS], field[IMAGE_LABEL]);
    TRY(rc);
    if (rc == 0 && s->classes == 0) *(int32_t *)field[IMAGE_LABEL] = 0;
    tell_counters(s, k);
    image_skips_note(&s->shared->skips, rc ? image_set_name(s->set, i, name, sizeof name) : NULL,
                     rc ? k->image.why : NULL);
    TRY(image_skips_check(&s->shared->skips, s->skip_limit));
    return rc;
}

static void fill_noise(const ImageSource *s, int64_t g, void *const *field)
{
    size_t n = (size_t)image_sample_bytes(&s->opt), done = 0;
    size_t at = rng_draw(s->opt.seed, NOISE_SITE, 2, g, 0) % NOISE_BYTES;
    for (size_t part; done < n; done += part, at = 0) {
        part = MIN(n - done, NOISE_BYTES - at);
        memcpy((uint8_t *)field[IMAGE_PIXELS] + done, s->noise + at, part);
    }
    *(int32_t *)field[IMAGE_LABEL] = label_of(s, g);
}

static int image_fill(const Source *src, int64_t g, void *const *field, void *scratch)
{
    const ImageSource *s = (const ImageSource *)src;
    if (s->mixes) fill_mix(s, g, field);
    if (g < 0) {
        memset(field[IMAGE_PIXELS], 0, (size_t)image_sample_bytes(&s->opt));
        *(int32_t *)field[IMAGE_LABEL] = -1;
        return 0;
    }
    if (s->set) return fill_pixels(s, g, field, scratch);
    fill_noise(s, g, field);
    return 0;
}

/* A sample whose partner could not be used stays as it is. */
static void unmix(const Source *src, const Fields *f, void *block)
{
    for (int64_t b = 0; ((const ImageSource *)src)->mixes && b < f->B; b++) {
        int32_t *partner = fields_at(f, block, IMAGE_PARTNER, b);
        if (*partner == 0 || *(int32_t *)fields_at(f, block, IMAGE_LABEL, b + *partner) >= 0) continue;
        *partner                                      = 0;
        *(float *)fields_at(f, block, IMAGE_SHARE, b) = 1;
        *(float *)fields_at(f, block, IMAGE_BLEND, b) = 1;
        memset(fields_at(f, block, IMAGE_BOX, b), 0, f->sample_bytes[IMAGE_BOX]);
    }
}

/* A sample without a label is no target. Whether one is damaged is not known before it is filled. */
static int64_t image_targets(const Source *src, int64_t g, int slot, void *scratch)
{
    return slot <= 2 && label_of((const ImageSource *)src, g) >= 0;
}

static void end_scratch(const Source *src, void *scratch)
{
    Scratch *k = scratch;
    if (k->ready) image_scratch_deinit(&k->image);
    memset(k, 0, sizeof *k);
}

static void image_close(Source *src)
{
    ImageSource *s = (ImageSource *)src;
    image_set_close(s->set);
    if (s->shared) {
        image_skips_deinit(&s->shared->skips);
        pthread_mutex_destroy(&s->shared->lock);
    }
    free(s->shared);
    free(s->noise);
    free(s->pick);
    free(s);
}

static void describe(const Source *src, char *buf, size_t n)
{
    ImageCounters c;
    read_counters(src, &c);
    if (c.n_sample == 0) return;
    double per = 1e3 / (double)c.n_sample;
    snprintf(buf, n,
             "a sample: read %.2f ms, decode %.2f ms, resize %.2f ms, augment %.2f ms; %lld of %lld skipped",
             c.read_s * per, c.decode_s * per, c.resize_s * per, c.augment_s * per, (long long)c.n_skipped,
             (long long)c.n_sample);
}

static const SourceVt whole_vt = { .fill        = image_fill,
                                   .settle      = unmix,
                                   .close       = image_close,
                                   .end_scratch = end_scratch,
                                   .describe    = describe };
static const SourceVt part_vt  = { .fill        = image_fill,
                                   .targets     = image_targets,
                                   .settle      = unmix,
                                   .close       = image_close,
                                   .end_scratch = end_scratch,
                                   .describe    = describe };

/* 1: every sample of the set has a label, or none needs one. */
static int all_labelled(const ImageSource *s)
{
    for (int64_t i = 0; s->set && s->classes > 0 && i < image_set_len(s->set); i++) {
        if (image_set_label(s->set, i) < 0) return 0;
    }
    return 1;
}

/* ---- opening ------------------------------------------------------------------------------------------ */

static int make_noise(ImageSource *s)
{
    s->noise = mem_alloc(NOISE_BYTES);
    if (!s->noise) return err_sys("memory for noise");
    uint32_t *word = (uint32_t *)(void *)s->noise;
    for (int64_t i = 0; i < NOISE_BYTES / 4; i++) word[i] = rng_draw(s->opt.seed, NOISE_SITE, 3, 0, i);
    s->n = s->training ? INT32_MAX : NOISE_VAL;
    snprintf(s->name, sizeof s->name, "noise");
    return 0;
}

/* Keeps every k-th sample of one set for validation: samples are sorted by class, so each class has its
 * share. */
static int split(ImageSource *s, double fraction)
{
    int64_t all = image_set_len(s->set), n_val = (int64_t)((double)all * fraction), next = 0, k = 0;
    s->n    = s->training ? all - n_val : n_val;
    s->pick = mem_alloc(sizeof *s->pick * (size_t)MAX(s->n, 1));
    if (!s->pick) return err_sys("memory for the split of samples");
    for (int64_t i = 0, v = 0; i < all; i++) {
        next       = v < n_val ? order_eval_pick(v, n_val, all) : all;
        int is_val = i == next;
        v += is_val;
        if (is_val != s->training) s->pick[k++] = i;
    }
    CHECK(k == s->n, "%lld of %lld samples", (long long)k, (long long)s->n);
    return 0;
}

int image_source_names(const Source *train, const Recipe *r, ClassNames *out)
{
    ImageSet *set;
    if (class_names_load(out, &r->image) < 0) return recipe_blame_pending(r, "image.names_file");
    if (out->n > 0 || image_source_is_noise(r)) return 0;
    if (train) {
        image_set_names(((const ImageSource *)train)->set, out);
        return 0;
    }
    if (image_set_open_quiet(&set, r->data.train) < 0) {
        err_clear(); /* the data are on another machine: classes have only numbers */
        return 0;
    }
    image_set_names(set, out);
    image_set_close(set);
    return 0;
}

/* "a,b,c" or, if there are many, "a,b,c ..." */
static const char *list_names(const ClassNames *c, char *buf, size_t n)
{
    enum { SHOWN = 10 };
    char name[64];
    buf[0] = '\0';
    for (int i = 0; i < MIN(c->n, SHOWN); i++)
        str_append(buf, n, "%s%s", i ? "," : "",
                   str_quote(name, sizeof name, c->name[i], strlen(c->name[i])));
    if (c->n > SHOWN) str_append(buf, n, " ... (%d)", c->n);
    return buf;
}

/* Classes of a set are the run's by name. */
static int match_names(ImageSource *s, const Recipe *r, const SetPlace *at, ClassNames *names)
{
    const char *stranger;
    char        list[720], name[80] = "";
    SetMatch    match = image_set_match(s->set, names, &stranger);
    if (stranger) str_quote(name, sizeof name, stranger, strlen(stranger));
    if (match == MATCH_SOME)
        return recipe_blame(r, at->key, "%s has a class %s, which is none of %s", at->path, name,
                            list_names(names, list, sizeof list));
    if (match == MATCH_NUMBERS)
        log_warn("%s: the run has no class %s: classes are taken by number, not by name", at->path, name);
    return 0;
}

/* Clips are for nets that see frames, images for the others. */
static int check_kind(const ImageSource *s, const Recipe *r, const SetPlace *at)
{
    int64_t n = image_set_clips(s->set, 1);
    if (s->opt.frames > 0 && n == 0)
        return recipe_blame(r, at->key, "%s has images, but image.frames is %d (brim data clips makes clips)",
                            at->path, s->opt.frames);
    if (s->opt.frames == 0 && n == image_set_len(s->set))
        return recipe_blame(r, at->key, "%s has clips, but image.frames is 0 (images)", at->path);
    int     span    = (s->opt.frames - 1) * s->opt.stride + 1;
    int64_t n_short = s->opt.frames > 0 ? n - image_set_clips(s->set, span) : 0;
    if (n_short > 0)
        log_warn(
            "%s: %lld of %lld clips have fewer than the %d frames that a sample takes: the last is repeated",
            at->path, (long long)n_short, (long long)n, span);
    return 0;
}

static int check_set(ImageSource *s, const Recipe *r, const SetPlace *at, const Source *train)
{
    ClassNames names;
    int        n = image_set_classes(s->set);
    if (image_set_len(s->set) > 0 && s->n == 0)
        return recipe_blame(r, "data.val_fraction",
                            "%g of the %lld samples of %s is none: %.2g or more would do, or data.val=DIR",
                            r->data.val_fraction, (long long)image_set_len(s->set), at->path,
                            ceil(100.0 / (double)image_set_len(s->set)) / 100);
    TRY(check_kind(s, r, at));
    if (s->classes == 0) return 0;
    if (n == 0)
        return recipe_blame(r, at->key, "%s has no labels (folders of classes, idx labels, .cls of tars)",
                            at->path);
    class_names_init(&names);
    int is_train = strcmp(at->key, "data.train") == 0;
    int rc       = is_train ? class_names_load(&names, &r->image) : image_source_names(train, r, &names);
    if (rc == 0) rc = match_names(s, r, at, &names);
    class_names_deinit(&names);
    TRY(rc);
    n = image_set_classes(s->set);
    if (n > s->classes)
        return recipe_blame(r, at->key, "%s has %d classes, image.classes is %d", at->path, n, s->classes);
    return 0;
}

static int open_set(ImageSource *s, const Recipe *r, const Source *train)
{
    int      own = !s->training && r->data.val[0];
    SetPlace at  = { own ? "data.val" : "data.train", own ? r->data.val : r->data.train };
    /* A part of the training data: what is left out of them was said when these were opened. */
    int rc = train && !own ? image_set_open_quiet(&s->set, at.path) : image_set_open(&s->set, at.path);
    if (rc < 0) return recipe_blame_pending(r, at.key);
    s->n = image_set_len(s->set);
    if (!r->data.val[0] && r->data.val_fraction > 0) TRY(split(s, r->data.val_fraction));
    TRY(check_set(s, r, &at, train));
    snprintf(s->name, sizeof s->name, "%s: %s", at.key, at.path);
    return 0;
}

static int init_shared(ImageSource *s)
{
    s->shared = mem_zeroed(1, sizeof *s->shared);
    if (!s->shared) return err_sys("memory for reading data");
    pthread_mutex_init(&s->shared->lock, NULL);
    return image_skips_init(&s->shared->skips);
}

static void set_up(ImageSource *s, int64_t most)
{
    Source *b        = &s->base;
    b->vt            = all_labelled(s) ? &whole_vt : &part_vt;
    b->name          = s->name;
    b->n_sample      = INT64_MAX;
    b->size          = s->set ? s->n : 1;
    b->is_work       = s->set != NULL;
    b->scratch_bytes = round_up(sizeof(Scratch), 64);
    for (int k = 0; k < 3; k++) b->targets_each[k] = 1;
    b->n_all = s->n;
    if (!s->training) {
        b->n_sample            = most > 0 ? MIN(most, s->n) : s->n;
        s->shared->skips.first = MIN(b->n_sample, IMAGE_SKIP_FIRST);
    }
    s->shared->skips.name = s->name;
    s->shared->skips.of   = s->training ? " training" : " validation";
    order_init(&s->order, s->n + 1, 1, s->opt.seed);
}

/* train: the open source that a source of validation belongs to, or NULL. */
static int open_part(Source **out, const Recipe *r, int training, int64_t most, const Source *train)
{
    ImageSource *s = mem_zeroed(1, sizeof *s);
    if (!s) return err_sys("memory for reading data");
    s->base.vt    = &part_vt;
    s->opt        = image_source_options(r, training);
    s->training   = training;
    s->mixes      = relate_mixes(r);
    s->classes    = (int)r->image.classes;
    s->skip_limit = r->data.skip_limit;
    int rc        = init_shared(s);
    if (rc == 0) rc = image_source_is_noise(r) ? make_noise(s) : open_set(s, r, train);
    if (rc < 0) {
        image_close(&s->base);
        return -1;
    }
    set_up(s, most);
    *out = &s->base;
    return 0;
}

int image_source_open_train(Source **out, const Recipe *r) { return open_part(out, r, 1, 0, NULL); }

int image_source_open_val(Source **out, const Recipe *r, int64_t most, const Source *train)
{
    return open_part(out, r, 0, most, train);
}
