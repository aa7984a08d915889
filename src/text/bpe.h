/* Bpe: the merges of byte-pair encoding, applied to one piece of text.
 *
 * 1. The pair with the lowest rank is merged first; among equal ranks the leftmost. Ids do not depend on the
 *    cache.
 * 2. Bpe is constant once built, so threads share it. Each thread has a BpeScratch with its own cache.
 * 3. Byte-level: the first symbols are bytes. Character-level: they are characters; one that is no token
 *    becomes byte tokens <0x00> to <0xFF>, or the unknown token, or nothing.
 * 4. Character-level text comes in long pieces. A piece is cut wherever no token has both neighbours inside;
 *    no merge can cross such a place.
 * 5. Time is O(n log n) in the length of the piece, whatever it holds. */
#ifndef TEXT_BPE_H
#define TEXT_BPE_H

#include "text/strmap.h"

typedef struct {
    uint64_t key; /* left << 32 | right; all ones: empty */
    uint32_t rank;
    int32_t  id; /* what the pair becomes */
} BpePair;

enum { BPE_ASCII = 128, BPE_JOIN = 129 }; /* the last one is U+2581 */

typedef struct {
    BpePair      *pair;
    uint64_t      mask;
    int           shift;
    int           char_level, whole, byte_fallback, fuse_unknown, may_cut;
    int32_t       unknown;                   /* -1: none */
    int32_t       byte_id[256];              /* byte-level: of each byte; else of <0x00> ..; -1: none */
    int32_t       ascii_id[BPE_ASCII];       /* character-level */
    const StrMap *chars;                     /* character-level: the vocabulary */
    const StrMap *pieces;                    /* `whole`: a piece that is a token is not merged */
    uint8_t       joins[BPE_JOIN][BPE_JOIN]; /* some token has these neighbours */
    uint64_t     *others;                    /* a bit per hashed pair of other neighbours */
} Bpe;

/* Room for n_pair merges. Negative after err_set(). */
int  bpe_init(Bpe *b, int64_t n_pair);
void bpe_deinit(Bpe *b);
/* A later rank for the same pair replaces the earlier one. */
void bpe_add_pair(Bpe *b, int32_t left, int32_t right, uint32_t rank, int32_t id);
/* Notes the neighbours within a token that a merge makes. Negative after err_set(). */
int bpe_note_token(Bpe *b, const char *bytes, size_t len);

typedef struct BpeCached BpeCached;

typedef struct {
    int32_t *id; /* the result, appended to */
    int64_t  n, cap;
    /* private */
    BpeCached *cache;
    int32_t   *sym;
    uint32_t  *rank;
    int32_t   *next, *prev;
    uint64_t  *heap;
    int64_t    sym_cap, heap_cap;
} BpeScratch;

int  bpe_scratch_init(BpeScratch *s); /* negative after err_set() */
void bpe_scratch_deinit(BpeScratch *s);
int  bpe_push(BpeScratch *s, int32_t id); /* appends one id */

/* Appends the ids of a piece of at most INT32_MAX / 4 bytes. Negative after err_set(). */
int bpe_encode(const Bpe *b, BpeScratch *s, const unsigned char *p, size_t n);

#endif
