#include "data/image_sheet.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "base/thread.h"
#include "file/image_write.h"

#include <limits.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* An image of fewer than LEAST / 2 pixels a side is hard to see: it is magnified to at most LEAST. */
enum { GAP = 2, COLUMNS = 8, LEAST = 112 };

/* ---- Sheet ----------------------------------------------------------------------------------------- */

typedef struct {
    int      zoom, cell, w, h; /* cell: pixels a side, magnified */
    uint8_t *rgb;
} Sheet;

static int sheet_begin(Sheet *t, int size, int columns, int rows)
{
    int zoom = MAX(LEAST / size, 1), cell = size * zoom;
    *t           = (Sheet){ .zoom = zoom, .cell = cell };
    t->w         = columns * (cell + GAP) + GAP;
    t->h         = rows * (cell + GAP) + GAP;
    size_t bytes = (size_t)t->w * (size_t)t->h * 3;
    t->rgb       = mem_alloc(bytes);
    if (!t->rgb) return err_sys("a sheet of %d x %d pixels", t->w, t->h);
    memset(t->rgb, 255, bytes);
    return 0;
}

static void sheet_put(Sheet *t, int column, int row, const uint8_t *pixels, int channels)
{
    int64_t left = column * (t->cell + GAP) + GAP, top = row * (t->cell + GAP) + GAP;
    int64_t wide = t->cell / t->zoom;
    for (int64_t y = 0; y < t->cell; y++) {
        uint8_t *to = t->rgb + ((top + y) * t->w + left) * 3;
        for (int64_t x = 0; x < t->cell; x++) {
            const uint8_t *from = pixels + (y / t->zoom * wide + x / t->zoom) * channels;
            for (int c = 0; c < 3; c++) *to++ = from[channels == 3 ? c : 0];
        }
    }
}

/* As the device does: the whole of both, or a box of the partner. */
static void mix(uint8_t *own, const uint8_t *other, const ImageOptions *o, const ImageMix *m)
{
    int64_t row = (int64_t)o->size * o->channels, n = image_sample_bytes(o);
    for (int64_t i = 0; i < n && m->w == 0; i++)
        own[i] = (uint8_t)lrintf((float)own[i] * m->lambda + (float)other[i] * (1 - m->lambda));
    for (int64_t first = 0; first < n && m->w > 0; first += row * o->size) {
        for (int y = m->y; y < m->y + m->h; y++) {
            int64_t at = first + y * row + (int64_t)m->x * o->channels;
            memcpy(own + at, other + at, (size_t)m->w * (size_t)o->channels);
        }
    }
}

typedef struct {
    const ImageSet     *set;
    const ImageOptions *o;
    const ImageSheet   *sheet;
    ImageScratch        scratch;
    uint8_t            *pixels; /* of all samples, before they are mixed */
    int32_t            *label;
} Show;

static int64_t sample_of(const Show *s, int i) { return (int64_t)i * image_set_len(s->set) / s->sheet->n; }

static int show_fill(Show *s)
{
    char    name[PATH_MAX];
    int64_t n = image_sample_bytes(s->o);
    for (int i = 0; i < s->sheet->n; i++) {
        int64_t sample = sample_of(s, i);
        int     rc = image_sample_fill(s->set, sample, s->sheet->epoch, s->o, &s->scratch, s->pixels + i * n,
                                       &s->label[i]);
        TRY(rc);
        if (rc == 1)
            log_warn("%s: skipped: %s", image_set_name(s->set, sample, name, sizeof name), s->scratch.why);
    }
    return 0;
}

static const char *class_name(const Show *s, int label, char *buf, size_t n)
{
    const ClassNames *list = s->sheet->names;
    if (label < 0) return "no label";
    const char *name = list && label < list->n ? list->name[label] : image_set_class_name(s->set, label);
    return str_quote(buf, n, name, strlen(name));
}

static void show_list(const Show *s, int columns, FILE *list)
{
    char name[PATH_MAX], class[256];
    for (int i = 0; i < s->sheet->n; i++)
        fprintf(list, "row %d column %d: %s, %s\n", i / columns + 1, i % columns + 1,
                class_name(s, s->label[i], class, sizeof class),
                image_set_name(s->set, sample_of(s, i), name, sizeof name));
}

static int show_draw(Show *s)
{
    Sheet    t;
    int64_t  n = image_sample_bytes(s->o), frame = n / MAX(s->o->frames, 1);
    int      columns = s->o->frames > 0 ? s->o->frames : MIN(COLUMNS, s->sheet->n);
    int      rows    = s->o->frames > 0 ? s->sheet->n : (s->sheet->n + columns - 1) / columns;
    uint8_t *mixed   = mem_alloc((size_t)n);
    if (!mixed) return err_sys("a sample of %lld bytes", (long long)n);
    int rc = sheet_begin(&t, s->o->size, columns, rows);
    for (int i = 0; i < s->sheet->n && rc == 0; i++) {
        ImageMix m = image_mix_params(s->o, s->sheet->epoch, i);
        memcpy(mixed, s->pixels + i * n, (size_t)n);
        if (m.partner != i && m.partner < s->sheet->n) mix(mixed, s->pixels + m.partner * n, s->o, &m);
        for (int f = 0; f < MAX(s->o->frames, 1); f++) {
            int cell = s->o->frames > 0 ? i * columns + f : i;
            sheet_put(&t, cell % columns, cell / columns, mixed + f * frame, s->o->channels);
        }
    }
    if (rc == 0) rc = image_write_png(s->sheet->path, t.rgb, t.w, t.h);
    if (rc == 0 && s->sheet->list) show_list(s, s->o->frames > 0 ? 1 : columns, s->sheet->list);
    free(t.rgb);
    free(mixed);
    return rc;
}

int image_sheet_write(const ImageSet *set, const ImageOptions *o, const ImageSheet *sheet)
{
    size_t n = (size_t)sheet->n;
    Show   s = { .set = set, .o = o, .sheet = sheet };
    s.pixels = mem_alloc((size_t)image_sample_bytes(o) * n);
    s.label  = mem_zeroed(n, sizeof *s.label);
    int rc   = s.pixels && s.label ? image_scratch_init(&s.scratch, 0) : err_sys("%zu samples", n);
    if (rc == 0) rc = show_fill(&s);
    if (rc == 0) rc = show_draw(&s);
    image_scratch_deinit(&s.scratch);
    free(s.pixels);
    free(s.label);
    return rc;
}

/* ---- Speed ----------------------------------------------------------------------------------------- */

typedef struct {
    const ImageSet     *set;
    const ImageOptions *o;
    double              end_s;
    _Atomic int64_t    *next;
    Thread              thread;
    ImageScratch        scratch;
    uint8_t            *out;
    char                why[256]; /* "": no failure */
} Worker;

static void work(void *arg)
{
    Worker *w = arg;
    int32_t label;
    while (clock_now_s() < w->end_s) {
        int64_t ticket = atomic_fetch_add(w->next, 1), n = image_set_len(w->set);
        if (image_sample_fill(w->set, ticket % n, ticket / n, w->o, &w->scratch, w->out, &label) >= 0)
            continue;
        snprintf(w->why, sizeof w->why, "%s", err_get());
        return;
    }
}

static int worker_start(Worker *w)
{
    w->out = mem_alloc((size_t)image_sample_bytes(w->o));
    if (!w->out) return err_sys("a sample");
    TRY(image_scratch_init(&w->scratch, 0));
    return thread_start(&w->thread, "brim-images", work, w);
}

int image_sheet_measure(const ImageSet *set, const ImageOptions *o, int threads, double seconds,
                        ImageCounters *count, double *per_s)
{
    _Atomic int64_t next = 0;
    int             rc   = 0;
    double          t0   = clock_now_s();
    Worker         *w    = mem_zeroed((size_t)threads, sizeof *w);
    if (!w) return err_sys("%d threads", threads);
    memset(count, 0, sizeof *count);
    for (int i = 0; i < threads && rc == 0; i++) {
        w[i] = (Worker){ .set = set, .o = o, .end_s = t0 + seconds, .next = &next };
        rc   = worker_start(&w[i]);
    }
    for (int i = 0; i < threads; i++) {
        thread_join(&w[i].thread);
        image_counters_add(count, &w[i].scratch.count);
        if (w[i].why[0] && rc == 0) rc = err_set("%s", w[i].why);
        if (w[i].o) image_scratch_deinit(&w[i].scratch);
        free(w[i].out);
    }
    *per_s = (double)count->n_sample / (clock_now_s() - t0);
    free(w);
    return rc;
}
