#include "data/image_mask.h"

#include "base/mem.h"
#include "base/rng.h"
#include "conf/relate_image.h"

#include <stdlib.h>

enum { MASK_SITE = 0x494d4d00 };

typedef struct {
    Source    base;
    Source   *image;
    ImageMask mask;
    uint64_t  seed;
} MaskSource;

ImageMask image_mask_of(const Recipe *r)
{
    const RecipeImage *m    = &r->image;
    ImageGrid          g    = relate_grid(m, m->seen_size, m->seen_frames);
    ImageMask          mask = { .times = g.t, .places = g.y * g.x, .seen = m->seen_patches };
    mask.hidden             = mask.times * mask.places - mask.seen;
    mask.first              = m->pool == POOL_CLASS;
    mask.read               = mask.first + mask.seen + m->registers;
    return mask;
}

int image_mask_fields(const Recipe *r, FieldRow *row)
{
    ImageMask m   = image_mask_of(r);
    int64_t   all = m.seen + m.hidden;
    int       n   = image_source_fields(r, row);
    CHECK(n == MASK_SEEN, "samples are mixed, and masked");
    row[MASK_SEEN]   = (FieldRow){ "seen patches", DT_I32, 1, { m.seen } };
    row[MASK_PLACE]  = (FieldRow){ "places", DT_I32, 1, { m.first + m.seen } };
    row[MASK_HIDDEN] = (FieldRow){ "hidden patches", DT_I32, 1, { m.hidden } };
    row[MASK_SLOT]   = (FieldRow){ "slots", DT_I32, 1, { all } };
    row[MASK_HOLE]   = (FieldRow){ "holes", DT_I32, 1, { all } };
    return MASK_FIELDS;
}

/* ---- one sample --------------------------------------------------------------------------------------- */

/* Knuth's algorithm S: place i is seen with the probability seen places still wanted / places left. */
void image_mask_fill(const ImageMask *m, uint64_t seed, int64_t g, void *const *field)
{
    int32_t *seen = field[MASK_SEEN], *hidden = field[MASK_HIDDEN], *slot = field[MASK_SLOT];
    int32_t *hole = field[MASK_HOLE], *place = field[MASK_PLACE];
    int64_t  wanted = m->seen / m->times, n_seen = 0, n_hidden = 0;
    for (int64_t i = 0; i < m->places; i++) {
        uint64_t draw = rng_draw(seed, MASK_SITE, 0, g, i);
        int      show = (int64_t)(draw * (uint64_t)(m->places - i) >> 32) < wanted;
        hole[i]       = show ? -1 : 0;
        wanted -= show;
    }
    for (int64_t i = 0; i < m->times * m->places; i++) {
        hole[i] = hole[i % m->places];
        slot[i] = hole[i] < 0 ? (int32_t)(m->first + n_seen) : -1;
        if (hole[i] < 0) {
            place[m->first + n_seen] = (int32_t)(m->first + i);
            seen[n_seen++]           = (int32_t)i;
        } else {
            hidden[n_hidden++] = (int32_t)i;
        }
    }
    for (int64_t i = 0; i < m->first; i++) place[i] = (int32_t)i;
}

static int mask_fill(const Source *src, int64_t g, void *const *field, void *scratch)
{
    const MaskSource *s  = (const MaskSource *)src;
    int               rc = source_fill(s->image, g, field, scratch);
    if (rc < 0) return -1;
    image_mask_fill(&s->mask, s->seed, g, field);
    if (*(const int32_t *)field[IMAGE_LABEL] >= 0) return rc;
    int32_t *hidden = field[MASK_HIDDEN];
    for (int64_t i = 0; i < s->mask.hidden; i++) hidden[i] = -1;
    return rc;
}

/* -1 stands for no row. */
static void add_rows(int32_t *x, int64_t n, int64_t rows)
{
    for (int64_t i = 0; i < n; i++) {
        if (x[i] >= 0) x[i] += (int32_t)rows;
    }
}

static void mask_place(const Source *src, int64_t b, void *const *field)
{
    const ImageMask *m   = &((const MaskSource *)src)->mask;
    int64_t          all = m->seen + m->hidden;
    add_rows(field[MASK_SEEN], m->seen, b * all);
    add_rows(field[MASK_HIDDEN], m->hidden, b * all);
    add_rows(field[MASK_SLOT], all, b * m->read);
}

static void end_scratch(const Source *src, void *scratch)
{
    source_end_scratch(((const MaskSource *)src)->image, scratch);
}

static void describe(const Source *src, char *buf, size_t n)
{
    source_describe(((const MaskSource *)src)->image, buf, n);
}

static void mask_close(Source *src)
{
    source_close(((MaskSource *)src)->image);
    free(src);
}

static const SourceVt mask_vt = { .fill        = mask_fill,
                                  .place       = mask_place,
                                  .close       = mask_close,
                                  .end_scratch = end_scratch,
                                  .describe    = describe };

/* ---- opening ------------------------------------------------------------------------------------------ */

/* Takes image, also on failure. */
static int wrap(Source **out, const Recipe *r, Source *image)
{
    MaskSource *s = mem_zeroed(1, sizeof *s);
    if (!s) {
        source_close(image);
        return err_sys("memory for reading data");
    }
    s->base    = *image;
    s->base.vt = &mask_vt;
    s->image   = image;
    s->mask    = image_mask_of(r);
    s->seed    = (uint64_t)r->seed;
    for (int k = 0; k < SOURCE_SLOTS; k++) s->base.targets_each[k] = k == 0 ? s->mask.hidden : 0;
    *out = &s->base;
    return 0;
}

int image_mask_open_train(Source **out, const Recipe *r)
{
    Source *image;
    TRY(image_source_open_train(&image, r));
    return wrap(out, r, image);
}

int image_mask_open_val(Source **out, const Recipe *r, int64_t most, const Source *train)
{
    Source *image;
    TRY(image_source_open_val(&image, r, most, train ? ((const MaskSource *)train)->image : NULL));
    return wrap(out, r, image);
}
