#include "text/split.h"

#include "base/err.h"
#include "text/utf8.h"

#include <string.h>

typedef struct {
    const Split  *m;
    SplitScratch *s;
    SplitSink     sink;
    int           unusual;
} Job;

/* A piece that a later one may still join. */
typedef struct {
    size_t begin, end;
    int    is_match, is_set;
} Pending;

static int run_stage(const Job *j, int k, const unsigned char *p, size_t n, int at_start);

void split_scratch_deinit(SplitScratch *s)
{
    for (int i = 0; i < SPLIT_MAX; i++) buffer_deinit(&s->copy[i]);
}

static int flush(const Job *j, int k, const unsigned char *p, const Pending *w, int at_start)
{
    if (!w->is_set || w->begin == w->end) return 0;
    if (w->is_match && j->m->stage[k].behavior == SPLIT_REMOVED) return 0;
    return run_stage(j, k + 1, p + w->begin, w->end - w->begin, at_start && w->begin == 0);
}

static int joins(SplitBehavior behavior, const Pending *w, int is_match)
{
    if (!w->is_set) return 0;
    if (behavior == SPLIT_CONTIGUOUS) return w->is_match == is_match;
    if (behavior == SPLIT_PREVIOUS) return is_match && !w->is_match;
    return behavior == SPLIT_NEXT && w->is_match && !is_match;
}

/* The next stretch of the text: a match, or what lies between two. */
static int offer(const Job *j, int k, const unsigned char *p, Pending *w, Pending next, int at_start)
{
    if (next.begin == next.end) return 0;
    next.is_match ^= j->m->stage[k].invert;
    next.is_set = 1;
    if (joins(j->m->stage[k].behavior, w, next.is_match)) {
        w->end      = next.end;
        w->is_match = next.is_match;
        return 0;
    }
    TRY(flush(j, k, p, w, at_start));
    *w = next;
    return 0;
}

static int run_pattern(const Job *j, int k, const unsigned char *p, size_t n, int at_start)
{
    RegexText  text = { p, n, j->unusual };
    RegexMatch m;
    Pending    w  = { 0 };
    size_t     at = 0;
    int        rc;
    while ((rc = regex_next(j->m->stage[k].regex, j->s->regex, &text, at, &m)) > 0) {
        TRY(offer(j, k, p, &w, (Pending){ at, m.begin, 0, 1 }, at_start));
        TRY(offer(j, k, p, &w, (Pending){ m.begin, m.end, 1, 1 }, at_start));
        at = m.end;
    }
    if (rc < 0) return -1;
    TRY(offer(j, k, p, &w, (Pending){ at, n, 0, 1 }, at_start));
    return flush(j, k, p, &w, at_start);
}

static int run_prefix(const Job *j, int k, const unsigned char *p, size_t n, int at_start)
{
    Buffer *b = &j->s->copy[k];
    if (n == 0 || p[0] == ' ') return run_stage(j, k + 1, p, n, at_start);
    b->len = 0;
    TRY(buffer_add(b, " ", 1));
    TRY(buffer_add(b, p, n));
    return run_stage(j, k + 1, b->data, b->len, at_start);
}

static int starts_with(const unsigned char *p, size_t n, const SplitStage *st)
{
    return n >= st->block_len && memcmp(p, st->block, st->block_len) == 0;
}

static int run_metaspace(const Job *j, int k, const unsigned char *p, size_t n, int at_start)
{
    const SplitStage *st = &j->m->stage[k];
    Buffer           *b  = &j->s->copy[k];
    b->len               = 0;
    int wanted           = st->scheme == SPLIT_ALWAYS || (st->scheme == SPLIT_FIRST && at_start);
    if (wanted && n > 0 && p[0] != ' ' && !starts_with(p, n, st))
        TRY(buffer_add(b, st->block, st->block_len));
    for (size_t i = 0; i < n;) {
        const unsigned char *space = memchr(p + i, ' ', n - i);
        size_t               run   = space ? (size_t)(space - p) - i : n - i;
        TRY(buffer_add(b, p + i, run));
        if (space) TRY(buffer_add(b, st->block, st->block_len));
        i += run + (space != NULL);
    }
    if (!st->cut) return run_stage(j, k + 1, b->data, b->len, at_start);
    size_t begin = 0;
    for (size_t i = 1; i < b->len; i++) {
        if (!starts_with(b->data + i, b->len - i, st)) continue;
        TRY(run_stage(j, k + 1, b->data + begin, i - begin, at_start && begin == 0));
        begin = i;
    }
    return run_stage(j, k + 1, b->data + begin, b->len - begin, at_start && begin == 0);
}

static int run_stage(const Job *j, int k, const unsigned char *p, size_t n, int at_start)
{
    if (n == 0) return 0;
    if (k == j->m->n) return j->sink.take(j->sink.arg, p, n);
    switch (j->m->stage[k].kind) {
    case SPLIT_PATTERN: return run_pattern(j, k, p, n, at_start);
    case SPLIT_PREFIX_SPACE: return run_prefix(j, k, p, n, at_start);
    case SPLIT_METASPACE: return run_metaspace(j, k, p, n, at_start);
    }
    return 0;
}

int split_run(const Split *m, SplitScratch *s, const unsigned char *p, size_t n, int at_start, SplitSink sink)
{
    Job j = { m, s, sink, 0 };
    if (m->n == 0) return n > 0 ? sink.take(sink.arg, p, n) : 0;
    for (size_t i = 0; i < n;) {
        size_t valid = utf8_valid(p + i, n - i, &j.unusual);
        TRY(run_stage(&j, 0, p + i, valid, at_start && i == 0));
        i += valid;
        size_t   bad = i;
        uint32_t code;
        while (i < n && utf8_next(p + i, n - i, &code) == 0) i++;
        if (i > bad) TRY(sink.take(sink.arg, p + bad, i - bad));
    }
    return 0;
}
