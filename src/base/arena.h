/* Arena: host memory that is freed all at once.
 *
 * 1. Blocks are zeroed and aligned to 64 bytes.
 * 2. Nothing is freed before arena_deinit(), so a pointer into an arena never dangles while the arena lives.
 * 3. Under AddressSanitizer every block is followed by bytes that may not be touched.
 * 4. Running out of host memory is CHECKed: the structures kept here are small (lists, tables, names). */
#ifndef BASE_ARENA_H
#define BASE_ARENA_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ArenaBlock ArenaBlock;

typedef struct Arena {
    ArenaBlock *head;
    size_t      total_bytes; /* handed out so far */
} Arena;

void  arena_init(Arena *a);
void  arena_deinit(Arena *a);                   /* frees everything; the arena may be used again */
void *arena_alloc(Arena *a, size_t size_bytes); /* zeroed */
char *arena_strdup(Arena *a, const char *s);
char *arena_printf(Arena *a, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#define ARENA_NEW(a, Type)      ((Type *)arena_alloc((a), sizeof(Type)))
#define ARENA_ARRAY(a, Type, n) ((Type *)arena_alloc((a), sizeof(Type) * (size_t)(n)))

#ifdef __cplusplus
}
#endif
#endif
