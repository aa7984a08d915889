/* Words: numbers in bytes of a file, in this machine's order, which is little-endian wherever Brim builds, at
 * any address. */
#ifndef FILE_WORDS_H
#define FILE_WORDS_H

#include <stdint.h>
#include <string.h>

static inline uint32_t get_u32(const unsigned char *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline uint64_t get_u64(const unsigned char *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline void put_u32(unsigned char *p, uint32_t v) { memcpy(p, &v, sizeof v); }
static inline void put_u64(unsigned char *p, uint64_t v) { memcpy(p, &v, sizeof v); }

#endif
