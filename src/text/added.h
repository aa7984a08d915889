/* Added: tokens that are found in the text before anything else happens to it.
 *
 * 1. The leftmost match wins, and of those the longest. A match may swallow the white space beside it.
 * 2. Contents are limited in length, so that searching takes bounded time for each byte.
 * 3. Constant once built. */
#ifndef TEXT_ADDED_H
#define TEXT_ADDED_H

#include <stddef.h>
#include <stdint.h>

enum { ADDED_LENGTH_MAX = 512 };

typedef struct {
    int32_t     id;
    const char *content; /* borrowed */
    uint32_t    len;
    uint8_t     special, normalized, left_strip, right_strip, single_word;
} AddedToken;

typedef struct {
    int32_t child, sibling; /* nodes, 0: none */
    int32_t token;          /* that ends here, -1: none */
    uint8_t byte;
} AddedNode;

typedef struct {
    const AddedToken *token; /* borrowed */
    AddedNode        *node;
    int32_t           n_node, cap;
    int32_t           root[256];    /* node for each first byte, 0: none */
    int               n_root, only; /* `only`: the first byte of all, when n_root is 1 */
} AddedSet;

int  added_init(AddedSet *s, const AddedToken *token); /* negative after err_set() */
void added_deinit(AddedSet *s);
/* Makes token[i] be found as `text`. Of equal ones the first stays. Negative after err_set(). */
int added_insert(AddedSet *s, int32_t i, const char *text, size_t len);

typedef struct {
    int32_t token;      /* an index */
    size_t  begin, end; /* what it swallows */
} AddedMatch;

/* The next match at or after `from`. literal: special tokens are text like any other. 0: none. */
int added_next(const AddedSet *s, const unsigned char *p, size_t n, size_t from, int literal, AddedMatch *m);

#endif
