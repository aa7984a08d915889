#include "data/pack.h"

#include "base/err.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

/* Any two windows hold more than T targets together, or their pieces would share one. A block has at most
 * PACK_ROWS + 1 windows' worth of targets. */
enum { ROWS_MOST = 2 * (PACK_ROWS + 1) + 1 };

/* Where a block begins: document, piece of it, and the block's first window. */
typedef struct {
    int64_t doc, part, row0;
} Block;

struct Pack {
    const Tokens *tokens;
    int64_t       T, n_doc, n_row, n_target, n_cut;
    int64_t       skip; /* tokens of a document that are no targets: 1 where it has a begin token */
    int32_t       lead;
    Block        *block; /* and one behind the last */
    int64_t       n_block, cap_block;
};

typedef struct {
    int64_t   block1; /* of the block that is packed, plus 1; 0: none */
    int       n_piece, n_row, n_cut;
    int       is_full; /* more documents would not change the block */
    int64_t   bound[PACK_PIECES + 1];
    PackPiece piece[PACK_PIECES];  /* in the order of the documents, then packed */
    PackPiece sorted[PACK_PIECES]; /* room for sorting, then the pieces of the window asked for */
    int32_t   space[ROWS_MOST], row[ROWS_MOST]; /* windows that are not full, by space */
} Scratch;

size_t pack_scratch_bytes(void) { return sizeof(Scratch); }

/* ---- one block ----------------------------------------------------------------------------------------- */

/* Longest first; equal ones stay in their order. */
static void sort_pieces(Scratch *s, int64_t T)
{
    enum { BITS = 8, N = 1 << BITS };
    PackPiece *from = s->piece, *to = s->sorted;
    int        turns = 0;
    for (int shift = 0; T >> shift > 0; shift += BITS, turns++) {
        int at[N + 1] = { 0 };
        for (int i = 0; i < s->n_piece; i++) at[N - (from[i].n >> shift & (N - 1))]++;
        for (int k = 0; k < N; k++) at[k + 1] += at[k];
        for (int i = 0; i < s->n_piece; i++) to[at[N - 1 - (from[i].n >> shift & (N - 1))]++] = from[i];
        PackPiece *swap = from;
        from            = to;
        to              = swap;
    }
    if (turns % 2 != 0) memcpy(s->piece, s->sorted, sizeof *s->piece * (size_t)s->n_piece);
}

/* The first of n windows, by space, that has room for a piece; n: none. */
static int find_room(const Scratch *s, int n, int32_t len)
{
    int lo = 0, hi = n;
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (s->space[mid] >= len) {
            hi = mid;
        } else {
            lo = mid + 1;
        }
    }
    return lo;
}

static void open_row(Scratch *s, int *n_open, int32_t space, int32_t row)
{
    int at = find_room(s, *n_open, space);
    memmove(s->space + at + 1, s->space + at, sizeof *s->space * (size_t)(*n_open - at));
    memmove(s->row + at + 1, s->row + at, sizeof *s->row * (size_t)(*n_open - at));
    s->space[at] = space;
    s->row[at]   = row;
    (*n_open)++;
}

static void close_row(Scratch *s, int *n_open, int at)
{
    (*n_open)--;
    memmove(s->space + at, s->space + at + 1, sizeof *s->space * (size_t)(*n_open - at));
    memmove(s->row + at, s->row + at + 1, sizeof *s->row * (size_t)(*n_open - at));
}

static void pack_pieces(Scratch *s, int64_t T)
{
    int n_open = 0;
    s->n_row   = 0;
    sort_pieces(s, T);
    for (int i = 0; i < s->n_piece; i++) {
        PackPiece *piece = &s->piece[i];
        int        at    = find_room(s, n_open, piece->n);
        int32_t    space = (int32_t)T;
        if (at < n_open) {
            space      = s->space[at];
            piece->row = s->row[at];
            close_row(s, &n_open, at);
        } else {
            CHECK(s->n_row < ROWS_MOST, "a block of more than %d windows", ROWS_MOST);
            piece->row = s->n_row++;
        }
        if (space > piece->n) open_row(s, &n_open, space - piece->n, piece->row);
    }
}

/* Puts pieces of a document from `part` on into the block. Returns the pieces that were put in; fewer than
 * there are if the block is full. */
static int64_t add_pieces(const Pack *p, Scratch *s, int64_t begin, int64_t end, int64_t part, int64_t *room)
{
    int64_t first = begin + p->skip, n = end - first, put = 0;
    for (int64_t at = part * p->T; at<n && * room> 0 && s->n_piece < PACK_PIECES; at += p->T, put++) {
        int32_t len = (int32_t)MIN(p->T, n - at);
        s->piece[s->n_piece++] =
            (PackPiece){ .target0 = first + at, .n = len, .begins = at == 0 && p->skip == 0 };
        *room -= len;
    }
    return put;
}

/* Collects and packs the pieces of a block that begins at *at; *next is where the next block begins. n_doc:
 * documents that it may take. */
static int make_block(const Pack *p, const Block *at, int64_t n_doc, Scratch *s, Block *next)
{
    int64_t room = PACK_ROWS * p->T;
    n_doc        = MIN(n_doc, PACK_PIECES);
    s->n_piece   = 0;
    s->n_cut     = 0;
    s->block1    = 0;
    *next        = *at;
    TRY(tokens_read_bounds(p->tokens, at->doc, n_doc, s->bound));
    for (int64_t i = 0; i < n_doc && room > 0 && s->n_piece < PACK_PIECES; i++) {
        int64_t n   = MAX(s->bound[i + 1] - s->bound[i] - p->skip, 0);
        int64_t all = (n + p->T - 1) / p->T;
        s->n_cut += next->part == 0 && all > 1;
        next->part += add_pieces(p, s, s->bound[i], s->bound[i + 1], next->part, &room);
        if (next->part < all) break;
        next->doc++;
        next->part = 0;
    }
    s->is_full = room <= 0 || s->n_piece == PACK_PIECES;
    pack_pieces(s, p->T);
    next->row0 = at->row0 + s->n_row;
    return 0;
}

/* ---- the whole ----------------------------------------------------------------------------------------- */

static int add_block(Pack *p, const Block *b)
{
    if (p->n_block == p->cap_block) {
        p->cap_block = p->cap_block * 2 + 256;
        Block *more  = realloc(p->block, sizeof *more * (size_t)p->cap_block);
        if (!more) return err_sys("memory for packing documents");
        p->block = more;
    }
    p->block[p->n_block++] = *b;
    return 0;
}

/* Documents to read for the next block: as many as the last one took, and some more. */
static int64_t guess_documents(const Block *was, const Block *at)
{
    return MIN(MAX(2 * (at->doc - was->doc), 64), PACK_PIECES);
}

static int scan(Pack *p, Scratch *s)
{
    Block   at   = { 0 }, next;
    int64_t want = PACK_PIECES;
    TRY(add_block(p, &at));
    while (at.doc < p->n_doc) {
        TRY(make_block(p, &at, MIN(want, p->n_doc - at.doc), s, &next));
        if (!s->is_full && want < PACK_PIECES && at.doc + want < p->n_doc) {
            want = PACK_PIECES; /* a block must not depend on how many documents were looked at */
            continue;
        }
        for (int i = 0; i < s->n_piece; i++) p->n_target += s->piece[i].n;
        p->n_cut += s->n_cut;
        want = guess_documents(&at, &next);
        at   = next;
        TRY(add_block(p, &at));
    }
    p->n_block--; /* the last one only ends the block before */
    p->n_row = at.row0;
    return 0;
}

int pack_open(Pack **out, const Tokens *t, int64_t T)
{
    Pack    *p  = mem_zeroed(1, sizeof *p);
    Scratch *s  = mem_zeroed(1, sizeof *s);
    int      rc = p && s ? 0 : err_sys("memory for packing documents");
    if (rc == 0) {
        int64_t begin = tokens_begin_token(t);
        p->tokens     = t;
        p->T          = T;
        p->n_doc      = tokens_documents(t);
        p->skip       = begin >= 0;
        p->lead       = (int32_t)tokens_end_token(t);
        if (p->n_doc == 0) {
            rc = err_user("%s: has no index of documents, which data.pack best_fit needs: brim data tokens "
                          "writes one",
                          tokens_name(t));
        } else if (begin < 0 && p->lead < 0) {
            rc =
                err_user("%s: its documents have no token that begins or ends them: data.pack best_fit needs "
                         "one",
                         tokens_name(t));
        }
    }
    if (rc == 0) rc = scan(p, s);
    if (rc == 0 && p->n_row == 0) rc = err_user("%s: its documents are empty", tokens_name(t));
    free(s);
    if (rc < 0) {
        pack_close(p);
        return -1;
    }
    *out = p;
    return 0;
}

void pack_close(Pack *p)
{
    if (!p) return;
    free(p->block);
    free(p);
}

int64_t pack_rows(const Pack *p) { return p->n_row; }

int64_t pack_targets(const Pack *p) { return p->n_target; }

int64_t pack_cut(const Pack *p) { return p->n_cut; }

int32_t pack_lead(const Pack *p) { return p->lead; }

/* The block that holds a window. */
static int64_t find_block(const Pack *p, int64_t row)
{
    int64_t lo = 0, hi = p->n_block - 1;
    while (lo < hi) {
        int64_t mid = lo + (hi - lo + 1) / 2;
        if (p->block[mid].row0 <= row) {
            lo = mid;
        } else {
            hi = mid - 1;
        }
    }
    return lo;
}

int pack_row(const Pack *p, int64_t row, void *scratch, const PackPiece **piece)
{
    Scratch *s = scratch;
    CHECK(row >= 0 && row < p->n_row, "window %lld of %lld", (long long)row, (long long)p->n_row);
    int64_t      b  = find_block(p, row);
    const Block *at = &p->block[b], *end = at + 1;
    if (s->block1 != b + 1) {
        Block   next;
        int64_t n_doc = end->doc - at->doc + (end->part > 0);
        TRY(make_block(p, at, n_doc, s, &next));
        if (next.doc != end->doc || next.part != end->part || next.row0 != end->row0)
            return err_set("%s: its index changed while it was in use", tokens_name(p->tokens));
        s->block1 = b + 1;
    }
    int n = 0;
    for (int i = 0; i < s->n_piece; i++) {
        if (s->piece[i].row == row - at->row0) s->sorted[n++] = s->piece[i];
    }
    *piece = s->sorted;
    return n;
}
