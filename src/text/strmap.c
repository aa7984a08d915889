#define XXH_INLINE_ALL
#include "text/strmap.h"

#include "base/err.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

int strmap_init(StrMap *m, int64_t n_most, const char *pool, const StrSpan *span)
{
    uint64_t n = 64;
    while (n < 2 * (uint64_t)n_most) n *= 2;
    *m = (StrMap){ mem_alloc(n * sizeof(StrMapSlot)), n - 1, pool, span };
    if (!m->slot) return err_sys("a table of %llu tokens", (unsigned long long)n);
    memset(m->slot, 0xff, n * sizeof(StrMapSlot)); /* every id -1 */
    return 0;
}

void strmap_deinit(StrMap *m)
{
    free(m->slot);
    m->slot = NULL;
}

static int same_key(const StrMap *m, int32_t id, const void *key, size_t len)
{
    StrSpan s = m->span[id];
    return s.len == len && memcmp(m->pool + s.at, key, len) == 0;
}

int32_t strmap_add(StrMap *m, int32_t id)
{
    StrSpan     s   = m->span[id];
    const char *key = m->pool + s.at;
    uint64_t    h   = XXH3_64bits(key, s.len);
    for (uint64_t i = h & m->mask;; i = (i + 1) & m->mask) {
        StrMapSlot *slot = &m->slot[i];
        if (slot->id < 0) {
            *slot = (StrMapSlot){ (uint32_t)(h >> 32), id };
            return id;
        }
        if (slot->tag == (uint32_t)(h >> 32) && same_key(m, slot->id, key, s.len)) return slot->id;
    }
}

int32_t strmap_find(const StrMap *m, const void *key, size_t len)
{
    uint64_t h = XXH3_64bits(key, len);
    for (uint64_t i = h & m->mask;; i = (i + 1) & m->mask) {
        const StrMapSlot *slot = &m->slot[i];
        if (slot->id < 0) return -1;
        if (slot->tag == (uint32_t)(h >> 32) && same_key(m, slot->id, key, len)) return slot->id;
    }
}
