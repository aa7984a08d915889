#include "base/err.h"
#include "base/mem.h"
#include "file/parquet_impl.h"
#include "file/words.h"

#include <stdlib.h>
#include <string.h>

enum { LENGTH_BYTES = 4, MOST_BITS = 32, MOST_BLOCK = 1 << 20 };

/* `width` bits from bit number `bit` of p on; zeros stand behind the end. */
static uint32_t bits_at(const uint8_t *p, const uint8_t *end, uint64_t bit, int width)
{
    uint64_t v  = 0;
    size_t   at = (size_t)(bit / 8), n = (size_t)(end - p);
    if (at < n) memcpy(&v, p + at, MIN(n - at, sizeof v));
    return (uint32_t)(v >> (bit & 7) & ((UINT64_C(1) << width) - 1));
}

/* ---- runs ---------------------------------------------------------------------------------------------- */

static void runs_begin(ParquetRuns *r, const uint8_t *p, size_t n, int width)
{
    *r = (ParquetRuns){ .p = p, .end = p + n, .width = width, .is_run = 1 };
}

/* Goes on to the next run or group. Negative: there is none. */
static int runs_more(ParquetRuns *r)
{
    if (!r->is_run) r->p += MIN((r->bit + 7) / 8, (uint64_t)(r->end - r->p));
    Thrift   t    = { r->p, r->end, 0 };
    uint64_t head = thrift_varint(&t);
    if (t.bad) return -1;
    r->p      = t.p;
    r->is_run = !(head & 1);
    r->left   = head >> 1;
    r->bit    = 0;
    if (r->is_run) {
        size_t n = (size_t)(r->width + 7) / 8;
        if ((size_t)(r->end - r->p) < n) return -1;
        r->value = 0;
        memcpy(&r->value, r->p, n);
        r->p += n;
        return 0;
    }
    if (r->left > (uint64_t)(r->end - r->p)) return -1; /* a group takes a byte at least */
    r->left *= 8;
    return 0;
}

/* The next number; negative: there is none. */
static int64_t runs_next(ParquetRuns *r)
{
    if (r->width == 0) return 0;
    while (r->left == 0) TRY(runs_more(r));
    r->left--;
    if (r->is_run) return r->value;
    uint64_t bit = r->bit;
    r->bit += (uint64_t)r->width;
    if (r->bit > (uint64_t)(r->end - r->p) * 8) return -1;
    return bits_at(r->p, r->end, bit, r->width);
}

/* ---- differences --------------------------------------------------------------------------------------- */

static int deltas_begin(ParquetDeltas *d, const uint8_t *p, const uint8_t *end)
{
    *d               = (ParquetDeltas){ .in = { p, end, 0 }, .is_first = 1 };
    uint64_t n_block = thrift_varint(&d->in);
    d->n_mini        = thrift_varint(&d->in);
    d->left          = thrift_varint(&d->in);
    d->value         = thrift_zigzag(&d->in);
    if (d->in.bad || n_block == 0 || n_block > MOST_BLOCK || d->n_mini == 0 || n_block % d->n_mini != 0)
        return -1;
    d->per_mini = n_block / d->n_mini;
    d->mini     = d->n_mini;
    return d->per_mini % 8 == 0 && d->left <= INT32_MAX ? 0 : -1;
}

/* Enters the next miniblock, and the next block before it if that is due. */
static int deltas_more(ParquetDeltas *d)
{
    if (d->mini + 1 >= d->n_mini) {
        d->least = thrift_zigzag(&d->in);
        d->width = d->in.p;
        d->mini  = 0;
        if (d->in.bad || (uint64_t)(d->in.end - d->in.p) < d->n_mini) return -1;
        d->in.p += d->n_mini;
    } else {
        d->mini++;
    }
    uint64_t n = d->per_mini / 8 * d->width[d->mini];
    if (d->width[d->mini] > MOST_BITS || n > (uint64_t)(d->in.end - d->in.p)) return -1;
    d->packed = d->in.p;
    d->in.p += n;
    d->bit       = 0;
    d->mini_left = d->per_mini;
    return 0;
}

/* The next number, from 0 to INT32_MAX; negative: there is none, or another. */
static int64_t deltas_next(ParquetDeltas *d)
{
    if (d->left == 0) return -1;
    d->left--;
    if (d->is_first) {
        d->is_first = 0;
    } else {
        if (d->mini_left == 0) TRY(deltas_more(d));
        int width = d->width[d->mini];
        d->value =
            (int64_t)((uint64_t)d->value + (uint64_t)d->least + bits_at(d->packed, d->in.end, d->bit, width));
        d->bit += (uint64_t)width;
        d->mini_left--;
    }
    return d->value >= 0 && d->value <= INT32_MAX ? d->value : -1;
}

/* What lies behind all numbers; they are passed over without being read. NULL: they do not fit. */
static const uint8_t *deltas_end(const ParquetDeltas *d)
{
    ParquetDeltas e    = *d;
    uint64_t      left = e.left > 0 ? e.left - 1 : 0;
    while (left > 0) {
        if (deltas_more(&e) < 0) return NULL;
        left -= MIN(left, e.per_mini);
    }
    /* The miniblocks that the last block does not need have widths, but no numbers. */
    return e.in.p;
}

/* ---- pages --------------------------------------------------------------------------------------------- */

int parquet_values_dictionary(Parquet *p, int64_t n_word)
{
    const uint8_t *at = p->dictionary.p, *end = at + p->dictionary.n;
    if (n_word > (int64_t)(p->dictionary.n / LENGTH_BYTES))
        return parquet_bad(p, "a dictionary with more words than it has room for");
    if (n_word > p->cap_word) {
        free(p->word);
        p->cap_word = 0;
        p->word     = mem_alloc((size_t)n_word * sizeof *p->word);
        if (!p->word) return err_sys("%s: memory for a dictionary", p->path);
        p->cap_word = n_word;
    }
    for (int64_t i = 0; i < n_word; i++) {
        if (end - at < LENGTH_BYTES) return parquet_bad(p, "a dictionary that ends too early");
        uint32_t n = get_u32(at);
        at += LENGTH_BYTES;
        if (n > (size_t)(end - at)) return parquet_bad(p, "a word that is longer than its dictionary");
        p->word[i] = (ParquetWord){ (uint32_t)(at - p->dictionary.p), n };
        at += n;
    }
    p->n_word = n_word;
    return 0;
}

static int begin_deltas(Parquet *p)
{
    ParquetPage *g        = &p->page;
    int          is_bytes = g->encoding == PARQUET_DELTA_BYTES;
    p->made.n             = 0;
    if (is_bytes) {
        if (deltas_begin(&g->prefix, g->p, g->end) < 0 || !(g->p = deltas_end(&g->prefix)))
            return parquet_bad(p, "lengths of prefixes that do not fit");
    }
    if (deltas_begin(&g->length, g->p, g->end) < 0 || !(g->p = deltas_end(&g->length)))
        return parquet_bad(p, "lengths that do not fit");
    if (is_bytes && g->prefix.left != g->length.left)
        return parquet_bad(p, "not as many prefixes as there are texts");
    return 0;
}

int parquet_values_begin(Parquet *p, const uint8_t *levels, size_t n_levels)
{
    ParquetPage *g = &p->page;
    g->has_levels  = levels != NULL;
    if (levels) runs_begin(&g->levels, levels, n_levels, 1);
    if (g->left == 0) return 0;
    switch (g->encoding) {
    case PARQUET_PLAIN: return 0;
    case PARQUET_DELTA_LENGTH:
    case PARQUET_DELTA_BYTES: return g->p < g->end ? begin_deltas(p) : 0;
    case PARQUET_PLAIN_DICTIONARY:
    case PARQUET_RLE_DICTIONARY:
        if (!p->has_dictionary) return parquet_bad(p, "a page that needs a dictionary, and there is none");
        if (g->p == g->end) return 0; /* nulls alone */
        if (*g->p > MOST_BITS) return parquet_bad(p, "numbers of words with more than 32 bits");
        runs_begin(&g->index, g->p + 1, (size_t)(g->end - g->p) - 1, *g->p);
        return 0;
    default: CHECK(0, "encoding %d", g->encoding);
    }
}

static int next_plain(Parquet *p, const char **text, size_t *n)
{
    ParquetPage *g = &p->page;
    if (g->end - g->p < LENGTH_BYTES) return parquet_bad(p, "fewer texts than it says");
    *n = get_u32(g->p);
    g->p += LENGTH_BYTES;
    if (*n > (size_t)(g->end - g->p)) return parquet_bad(p, "a text that is longer than its page");
    *text = (const char *)g->p;
    g->p += *n;
    return 1;
}

static int next_word(Parquet *p, const char **text, size_t *n)
{
    int64_t i = p->page.p < p->page.end ? runs_next(&p->page.index) : -1;
    if (i < 0) return parquet_bad(p, "fewer texts than it says");
    if (i >= p->n_word) return parquet_bad(p, "a word that is not in the dictionary");
    *text = (const char *)p->dictionary.p + p->word[i].at;
    *n    = p->word[i].n;
    return 1;
}

static int next_delta(Parquet *p, const char **text, size_t *n)
{
    ParquetPage *g     = &p->page;
    int64_t      n_new = deltas_next(&g->length);
    if (n_new < 0) return parquet_bad(p, "fewer texts than it says");
    if (n_new > g->end - g->p) return parquet_bad(p, "a text that is longer than its page");
    const uint8_t *from = g->p;
    g->p += n_new;
    *text = (const char *)from;
    *n    = (size_t)n_new;
    if (g->encoding == PARQUET_DELTA_LENGTH) return 1;
    int64_t n_old = deltas_next(&g->prefix);
    if (n_old < 0 || n_old > (int64_t)p->made.n)
        return parquet_bad(p, "a prefix that is longer than the text before");
    size_t all = (size_t)(n_old + n_new);
    TRY(parquet_reserve(p, &p->made, all, (size_t)n_old));
    if (n_new > 0) memcpy(p->made.p + n_old, from, (size_t)n_new);
    p->made.n = all;
    if (all > 0) *text = (const char *)p->made.p;
    *n = all;
    return 1;
}

int parquet_values_next(Parquet *p, const char **text, size_t *n)
{
    ParquetPage *g = &p->page;
    CHECK(g->left > 0, "no value left");
    g->left--;
    if (g->has_levels) {
        int64_t level = runs_next(&g->levels);
        if (level < 0 || level > 1) return parquet_bad(p, "levels that do not fit");
        if (level == 0) {
            g->n_null++;
            return 0;
        }
    }
    if (g->encoding == PARQUET_PLAIN) return next_plain(p, text, n);
    if (g->encoding == PARQUET_PLAIN_DICTIONARY || g->encoding == PARQUET_RLE_DICTIONARY)
        return next_word(p, text, n);
    return next_delta(p, text, n);
}

int parquet_values_end(const Parquet *p)
{
    const ParquetPage *g = &p->page;
    if (g->want_null >= 0 && g->n_null != g->want_null)
        return parquet_bad(p, "another number of nulls than it says");
    int is_words = g->encoding == PARQUET_PLAIN_DICTIONARY || g->encoding == PARQUET_RLE_DICTIONARY;
    return is_words || g->p == g->end ? 0 : parquet_bad(p, "bytes behind its last text");
}
