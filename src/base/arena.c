#include "base/arena.h"

#include "base/err.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ARENA_ALIGN = 64, ARENA_BLOCK_BYTES = 64 * 1024 };

/* Bytes between two blocks and behind the last one: a read there is a bug that AddressSanitizer names. */
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
enum { ARENA_GAP = ARENA_ALIGN };
static void gap_close(void *p, size_t n) { __asan_poison_memory_region(p, n); }
static void gap_open(void *p, size_t n) { __asan_unpoison_memory_region(p, n); }
#else
enum { ARENA_GAP = 0 };
static void gap_close(void *p, size_t n) {}
static void gap_open(void *p, size_t n) {}
#endif

struct ArenaBlock {
    ArenaBlock *next;
    size_t      used_bytes;
    size_t      size_bytes;
};

static char *block_data(ArenaBlock *b)
{
    uintptr_t p = (uintptr_t)(b + 1);
    return (char *)((p + ARENA_ALIGN - 1) & ~(uintptr_t)(ARENA_ALIGN - 1));
}

void arena_init(Arena *a)
{
    a->head        = NULL;
    a->total_bytes = 0;
}

void arena_deinit(Arena *a)
{
    for (ArenaBlock *b = a->head; b;) {
        ArenaBlock *next = b->next;
        gap_open(block_data(b), b->size_bytes);
        free(b);
        b = next;
    }
    arena_init(a);
}

void *arena_alloc(Arena *a, size_t size_bytes)
{
    size_t need = ((size_bytes + ARENA_ALIGN - 1) & ~(size_t)(ARENA_ALIGN - 1)) + ARENA_GAP;
    if (!a->head || a->head->size_bytes - a->head->used_bytes < need) {
        size_t      room = MAX(need, (size_t)ARENA_BLOCK_BYTES);
        ArenaBlock *b    = (ArenaBlock *)malloc(sizeof *b + ARENA_ALIGN + room);
        CHECK(b != NULL, "out of host memory for %zu bytes", room);
        b->next       = a->head;
        b->used_bytes = 0;
        b->size_bytes = room;
        a->head       = b;
        gap_close(block_data(b), room);
    }
    char *p = block_data(a->head) + a->head->used_bytes;
    a->head->used_bytes += need;
    a->total_bytes += size_bytes;
    gap_open(p, size_bytes);
    memset(p, 0, size_bytes);
    return p;
}

char *arena_strdup(Arena *a, const char *s)
{
    size_t n = strlen(s) + 1;
    char  *p = (char *)arena_alloc(a, n);
    memcpy(p, s, n);
    return p;
}

char *arena_printf(Arena *a, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    CHECK(n >= 0, "bad format");
    char *p = (char *)arena_alloc(a, (size_t)n + 1);
    vsnprintf(p, (size_t)n + 1, fmt, again);
    va_end(again);
    return p;
}
