/* Strmap: finds the id of a token by its bytes.
 *
 * 1. Keys are spans of a pool that the caller owns and keeps in place; the map stores ids and hashes only.
 * 2. The map is sized once. Of equal keys the first one stays. */
#ifndef TEXT_STRMAP_H
#define TEXT_STRMAP_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    uint32_t at, len; /* bytes pool[at, at + len) */
} StrSpan;

typedef struct {
    uint32_t tag; /* upper half of the hash */
    int32_t  id;  /* -1: empty */
} StrMapSlot;

typedef struct {
    StrMapSlot    *slot;
    uint64_t       mask;
    const char    *pool;
    const StrSpan *span; /* by id */
} StrMap;

int  strmap_init(StrMap *m, int64_t n_most, const char *pool,
                 const StrSpan *span); /* negative after err_set() */
void strmap_deinit(StrMap *m);
/* Adds span[id]. Returns id, or the id that has this key already. */
int32_t strmap_add(StrMap *m, int32_t id);
/* The id of a key, or -1. */
int32_t strmap_find(const StrMap *m, const void *key, size_t len);

#endif
