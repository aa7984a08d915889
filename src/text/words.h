/* Words: how often each piece of a text occurs. One thread owns a table; tables are added up afterwards. */
#ifndef TEXT_WORDS_H
#define TEXT_WORDS_H

#include "text/buffer.h"

#include <stdint.h>

typedef struct {
    uint64_t hash;
    uint64_t at; /* in pool */
    uint32_t len;
    int64_t  count; /* 0: empty */
} Word;

typedef struct {
    Word    *slot;
    uint64_t mask;
    int64_t  n;
    Buffer   pool;
} Words;

int  words_init(Words *w); /* negative after err_set() */
void words_deinit(Words *w);
int  words_add(Words *w, const unsigned char *p, size_t n, int64_t count);
int  words_add_all(Words *to, const Words *from);

#endif
