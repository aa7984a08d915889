/* Pack: windows made of whole documents (data.pack best_fit).
 *
 * 1. A document is cut into pieces of at most T targets; a document of up to T targets is one piece. Every
 *    token of a document is a target once, but for a begin token. The first target is predicted from the
 *    begin token or, if there is none, from the end token, which stands for it.
 * 2. Pieces are packed in blocks: about PACK_ROWS windows' worth of neighbouring pieces. Within a block the
 *    longest piece comes first and goes where it leaves the least room (best fit, decreasing). What stays
 *    free at the end of a window has no targets.
 * 3. Which pieces a window holds depends on the documents and T alone. A block is packed again for each
 *    window asked for, so memory is a few bytes a block and any window can be had at any time. */
#ifndef DATA_PACK_H
#define DATA_PACK_H

#include "data/tokens.h"

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { PACK_ROWS = 128, PACK_PIECES = 4096 };

typedef struct Pack Pack;

typedef struct {
    int64_t target0; /* token that is the first target */
    int32_t n;       /* targets */
    int32_t row;     /* of the block */
    int     begins;  /* 1: the first target is the document's first token, and no token of it precedes */
} PackPiece;

/* Reads the index of documents once. Borrows the tokens. Negative after err_user()/err_set(). */
int  pack_open(Pack **out, const Tokens *t, int64_t T);
void pack_close(Pack *p); /* NULL is allowed */

int64_t pack_rows(const Pack *p);    /* windows */
int64_t pack_targets(const Pack *p); /* in all of them */
int64_t pack_cut(const Pack *p);     /* documents that are longer than a window */
int32_t pack_lead(const Pack *p);    /* what stands before the first target of a piece that begins */

size_t pack_scratch_bytes(void);

/* The pieces of a window, in their order; *piece points into scratch, which was zeroed when it was new.
 * Returns how many. Negative after err_user()/err_set(). */
int pack_row(const Pack *p, int64_t row, void *scratch, const PackPiece **piece);

#ifdef __cplusplus
}
#endif
#endif
