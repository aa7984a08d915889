#define XXH_INLINE_ALL
#include "text/words.h"

#include "base/err.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

static int make_slots(Words *w, uint64_t n)
{
    w->slot = mem_zeroed(n, sizeof *w->slot);
    w->mask = n - 1;
    return w->slot ? 0 : err_sys("a table of %llu words", (unsigned long long)n);
}

int words_init(Words *w)
{
    memset(w, 0, sizeof *w);
    return make_slots(w, 1 << 16);
}

void words_deinit(Words *w)
{
    free(w->slot);
    buffer_deinit(&w->pool);
    memset(w, 0, sizeof *w);
}

static Word *find_slot(const Words *w, uint64_t hash, const unsigned char *p, size_t n)
{
    for (uint64_t i = hash & w->mask;; i = (i + 1) & w->mask) {
        Word *s = &w->slot[i];
        if (s->count == 0) return s;
        if (s->hash == hash && s->len == n && memcmp(w->pool.data + s->at, p, n) == 0) return s;
    }
}

static int grow(Words *w)
{
    Word    *old = w->slot;
    uint64_t n   = w->mask + 1;
    if (make_slots(w, 2 * n) < 0) {
        w->slot = old;
        w->mask = n - 1;
        return -1;
    }
    for (uint64_t i = 0; i < n; i++) {
        if (old[i].count == 0) continue;
        uint64_t k = old[i].hash & w->mask;
        while (w->slot[k].count != 0) k = (k + 1) & w->mask;
        w->slot[k] = old[i];
    }
    free(old);
    return 0;
}

static int add_hashed(Words *w, uint64_t hash, const unsigned char *p, size_t n, int64_t count)
{
    Word *s = find_slot(w, hash, p, n);
    if (s->count > 0) {
        s->count += count;
        return 0;
    }
    *s = (Word){ hash, w->pool.len, (uint32_t)n, count };
    TRY(buffer_add(&w->pool, p, n));
    return ++w->n * 2 > (int64_t)w->mask ? grow(w) : 0;
}

int words_add(Words *w, const unsigned char *p, size_t n, int64_t count)
{
    return add_hashed(w, XXH3_64bits(p, n), p, n, count);
}

int words_add_all(Words *to, const Words *from)
{
    for (uint64_t i = 0; i <= from->mask; i++) {
        const Word *s = &from->slot[i];
        if (s->count > 0) TRY(add_hashed(to, s->hash, from->pool.data + s->at, s->len, s->count));
    }
    return 0;
}
