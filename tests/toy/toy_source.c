/* Samples of the toy tenant: pure functions of (seed, stream, sample). */
#include "toy.h"

#include "base/mem.h"
#include "base/rng.h"
#include "data/order.h"

#include <stdlib.h>
#include <string.h>

enum { STREAM_TRAIN = 7001, STREAM_VAL = 7002 };

typedef struct {
    Source   base;
    uint64_t seed;
    uint32_t stream;
    int64_t  out;
} ToySource;

static int64_t count_of(const ToySource *s, int64_t g)
{
    return g < 0 ? 0 : rng_draw(s->seed, s->stream, 0, g, 0) % (TOY_PARTS + 1);
}

static int64_t number_of(const ToySource *s, int64_t g)
{
    return g < 0 || s->base.n_all == 0 ? g : order_eval_pick(g, s->base.n_sample, s->base.n_all);
}

static int toy_fill(const Source *src, int64_t row, void *const *field, void *scratch)
{
    const ToySource *s = (const ToySource *)src;
    int64_t          g = number_of(s, row), n = count_of(s, g);
    uint8_t         *pixels = field[TOY_PIXELS];
    float           *anchor = field[TOY_ANCHOR];
    memset(pixels, 0, TOY_SIDE * TOY_SIDE * 3);
    memset(anchor, 0, sizeof *anchor * (size_t)s->out);
    *(int32_t *)field[TOY_COUNT] = (int32_t)n;
    if (n == 0) return 0;
    for (int64_t e = 0; e < TOY_SIDE * TOY_SIDE * 3; e++)
        pixels[e] = (uint8_t)(rng_draw(s->seed, s->stream, 1, g, e) >> 24);
    for (int64_t e = 0; e < s->out; e++)
        anchor[e] = 0.2f * rng_uniform(rng_draw(s->seed, s->stream, 2, g, e)) - 0.1f;
    return 0;
}

static int64_t toy_targets(const Source *src, int64_t row, int slot, void *scratch)
{
    const ToySource *s   = (const ToySource *)src;
    int              has = count_of(s, number_of(s, row)) > 0;
    if (slot == TOY_DISTANCE) return has;
    return slot == TOY_AGREEMENT ? has * s->out : 0;
}

static void toy_close(Source *s) { free(s); }

static const SourceVt toy_vt = { .fill = toy_fill, .targets = toy_targets, .close = toy_close };

static int open_stream(Source **out, const Recipe *r, uint32_t stream)
{
    ToySource *s = mem_zeroed(1, sizeof *s);
    if (!s) return err_sys("memory for reading data");
    s->base   = (Source){ .vt = &toy_vt, .name = "toy", .n_sample = INT64_MAX, .size = 1 };
    s->seed   = (uint64_t)r->seed;
    s->stream = stream;
    s->out    = toy_keys(r)->out;
    *out      = &s->base;
    return 0;
}

int toy_open_train(Source **out, const Recipe *r) { return open_stream(out, r, STREAM_TRAIN); }

int toy_open_val(Source **out, const Recipe *r, int64_t most, const Source *train)
{
    TRY(open_stream(out, r, STREAM_VAL));
    (*out)->n_all    = TOY_VAL;
    (*out)->n_sample = most > 0 ? MIN(most, TOY_VAL) : TOY_VAL;
    return 0;
}
