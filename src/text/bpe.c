#include "text/bpe.h"

#include "base/err.h"
#include "base/mem.h"
#include "text/utf8.h"

#include <stdlib.h>
#include <string.h>

#define NO_PAIR UINT64_MAX
#define NO_RANK UINT32_MAX

enum { CACHE_BITS = 15, CACHE_KEY = 31, CACHE_IDS = 7, SHORT = 48, OTHERS_BITS = 22, BLOCK = 0x2581 };

/* One line of the processor's cache: the piece, its length in the last byte (0: empty), and its ids. */
struct BpeCached {
    uint64_t key[4];
    int32_t  n;
    int32_t  id[CACHE_IDS];
};

static uint64_t mix(uint64_t x) { return x * 0x9e3779b97f4a7c15u; }

int bpe_init(Bpe *b, int64_t n_pair)
{
    uint64_t n    = 64;
    int      bits = 6;
    for (; n < 2 * (uint64_t)n_pair; n *= 2) bits++;
    memset(b, 0, sizeof *b);
    memset(b->byte_id, 0xff, sizeof b->byte_id);
    memset(b->ascii_id, 0xff, sizeof b->ascii_id);
    b->unknown = -1;
    b->mask    = n - 1;
    b->shift   = 64 - bits;
    b->pair    = mem_alloc(n * sizeof(BpePair));
    if (!b->pair) return err_sys("a table of %llu merges", (unsigned long long)n);
    for (uint64_t i = 0; i < n; i++) b->pair[i].key = NO_PAIR;
    return 0;
}

void bpe_deinit(Bpe *b)
{
    free(b->pair);
    free(b->others);
    b->pair   = NULL;
    b->others = NULL;
}

static uint64_t pair_key(int32_t left, int32_t right) { return (uint64_t)left << 32 | (uint32_t)right; }

static const BpePair *find_pair(const Bpe *b, int32_t left, int32_t right)
{
    uint64_t key = pair_key(left, right);
    for (uint64_t i = mix(key) >> b->shift;; i = (i + 1) & b->mask) {
        const BpePair *p = &b->pair[i];
        if (p->key == key) return p;
        if (p->key == NO_PAIR) return NULL;
    }
}

void bpe_add_pair(Bpe *b, int32_t left, int32_t right, uint32_t rank, int32_t id)
{
    uint64_t key = pair_key(left, right), i = mix(key) >> b->shift;
    while (b->pair[i].key != NO_PAIR && b->pair[i].key != key) i = (i + 1) & b->mask;
    b->pair[i] = (BpePair){ key, rank, id };
}

/* ---- places that no merge crosses ---- */

static int join_index(uint32_t code) { return code < BPE_ASCII ? (int)code : code == BLOCK ? BPE_ASCII : -1; }

static uint64_t join_hash(uint32_t left, uint32_t right)
{
    return mix((uint64_t)left << 32 | right) >> (64 - OTHERS_BITS);
}

int bpe_note_token(Bpe *b, const char *bytes, size_t len)
{
    const unsigned char *p    = (const unsigned char *)bytes;
    uint32_t             left = 0, code;
    if (!b->others) b->others = mem_zeroed((1u << OTHERS_BITS) / 64, sizeof *b->others);
    if (!b->others) return err_sys("a table of neighbours");
    for (size_t i = 0; i < len;) {
        int step = utf8_next(p + i, len - i, &code);
        if (step == 0) return 0; /* vocabularies are UTF-8; others hold bytes and are not cut */
        int l = join_index(left), r = join_index(code);
        if (i > 0 && l >= 0 && r >= 0) {
            b->joins[l][r] = 1;
        } else if (i > 0) {
            uint64_t h = join_hash(left, code);
            b->others[h >> 6] |= 1ull << (h & 63);
        }
        left = code;
        i += (size_t)step;
    }
    return 0;
}

static int may_join(const Bpe *b, uint32_t left, uint32_t right)
{
    int l = join_index(left), r = join_index(right);
    if (l >= 0 && r >= 0) return b->joins[l][r];
    uint64_t h = join_hash(left, right);
    return b->others[h >> 6] >> (h & 63) & 1;
}

/* ---- scratch ---- */

int bpe_scratch_init(BpeScratch *s)
{
    memset(s, 0, sizeof *s);
    s->cache = mem_zeroed(1u << CACHE_BITS, sizeof *s->cache);
    return s->cache ? 0 : err_sys("a cache of pieces");
}

void bpe_scratch_deinit(BpeScratch *s)
{
    free(s->id);
    free(s->cache);
    free(s->sym);
    free(s->rank);
    free(s->next);
    free(s->prev);
    free(s->heap);
    memset(s, 0, sizeof *s);
}

static int reserve_ids(BpeScratch *s, int64_t n)
{
    if (s->n + n <= s->cap) return 0;
    int64_t  cap  = (s->n + n) * 3 / 2 + 1024;
    int32_t *more = realloc(s->id, (size_t)cap * sizeof *more);
    if (!more) return err_sys("%lld token ids", (long long)cap);
    s->id  = more;
    s->cap = cap;
    return 0;
}

int bpe_push(BpeScratch *s, int32_t id)
{
    TRY(reserve_ids(s, 1));
    s->id[s->n++] = id;
    return 0;
}

static int grow(void *array, size_t size_bytes)
{
    void *more = realloc(*(void **)array, size_bytes);
    if (!more) return err_sys("%zu bytes for a long piece of text", size_bytes);
    *(void **)array = more;
    return 0;
}

static int reserve_symbols(BpeScratch *s, int64_t n)
{
    if (n <= s->sym_cap) return 0;
    int64_t cap = n * 3 / 2 + 256;
    s->sym_cap  = 0;
    TRY(grow(&s->sym, (size_t)cap * sizeof *s->sym));
    TRY(grow(&s->rank, (size_t)cap * sizeof *s->rank));
    TRY(grow(&s->next, (size_t)cap * sizeof *s->next));
    TRY(grow(&s->prev, (size_t)cap * sizeof *s->prev));
    s->sym_cap = cap;
    return 0;
}

/* ---- merging ---- */

static uint32_t pair_rank(const Bpe *b, int32_t left, int32_t right)
{
    const BpePair *p = find_pair(b, left, right);
    return p ? p->rank : NO_RANK;
}

/* Looks at every pair for each merge: the fastest way for words. */
static int64_t merge_short(const Bpe *b, int32_t *sym, int64_t n)
{
    uint32_t rank[SHORT];
    for (int64_t i = 0; i + 1 < n; i++) rank[i] = pair_rank(b, sym[i], sym[i + 1]);
    while (n > 1) {
        int64_t  best = 0;
        uint32_t low  = rank[0];
        for (int64_t i = 1; i + 1 < n; i++) {
            if (rank[i] < low) {
                low  = rank[i];
                best = i;
            }
        }
        if (low == NO_RANK) break;
        sym[best] = find_pair(b, sym[best], sym[best + 1])->id;
        memmove(sym + best + 1, sym + best + 2, (size_t)(n - best - 2) * sizeof *sym);
        memmove(rank + best, rank + best + 1, (size_t)(n - best - 2) * sizeof *rank);
        n--;
        if (best > 0) rank[best - 1] = pair_rank(b, sym[best - 1], sym[best]);
        if (best + 1 < n) rank[best] = pair_rank(b, sym[best], sym[best + 1]);
    }
    return n;
}

static int heap_push(BpeScratch *s, int64_t *n, uint64_t x)
{
    if (*n == s->heap_cap) {
        int64_t cap = s->heap_cap * 2 + 1024;
        TRY(grow(&s->heap, (size_t)cap * sizeof *s->heap));
        s->heap_cap = cap;
    }
    int64_t i = (*n)++;
    for (; i > 0 && s->heap[(i - 1) / 2] > x; i = (i - 1) / 2) s->heap[i] = s->heap[(i - 1) / 2];
    s->heap[i] = x;
    return 0;
}

static uint64_t heap_pop(BpeScratch *s, int64_t *n)
{
    uint64_t top = s->heap[0], x = s->heap[--*n];
    int64_t  i = 0;
    for (;;) {
        int64_t c = 2 * i + 1;
        if (c >= *n) break;
        if (c + 1 < *n && s->heap[c + 1] < s->heap[c]) c++;
        if (s->heap[c] >= x) break;
        s->heap[i] = s->heap[c];
        i          = c;
    }
    s->heap[i] = x;
    return top;
}

/* Sets the rank of the pair that begins at symbol i, and queues the pair. */
static int queue_pair(const Bpe *b, BpeScratch *s, int32_t i, int64_t *n_heap)
{
    s->rank[i] = s->next[i] < 0 ? NO_RANK : pair_rank(b, s->sym[i], s->sym[s->next[i]]);
    return s->rank[i] == NO_RANK ? 0 : heap_push(s, n_heap, (uint64_t)s->rank[i] << 32 | (uint32_t)i);
}

/* A linked list of symbols and a heap of (rank, place). An entry whose rank is no longer that of its place is
 * old. */
static int64_t merge_long(const Bpe *b, BpeScratch *s, int64_t n)
{
    int64_t n_heap = 0;
    for (int32_t i = 0; i < n; i++) {
        s->prev[i] = i - 1;
        s->next[i] = i + 1 < n ? i + 1 : -1;
    }
    for (int32_t i = 0; i < n; i++) TRY(queue_pair(b, s, i, &n_heap));
    while (n_heap > 0) {
        uint64_t top = heap_pop(s, &n_heap);
        int32_t  i   = (int32_t)(uint32_t)top;
        if (s->rank[i] != (uint32_t)(top >> 32)) continue;
        int32_t j  = s->next[i];
        s->sym[i]  = find_pair(b, s->sym[i], s->sym[j])->id;
        s->rank[j] = NO_RANK;
        s->next[i] = s->next[j];
        if (s->next[j] >= 0) s->prev[s->next[j]] = i;
        TRY(queue_pair(b, s, i, &n_heap));
        if (s->prev[i] >= 0) TRY(queue_pair(b, s, s->prev[i], &n_heap));
    }
    int64_t m = 0;
    for (int32_t i = 0; i >= 0; i = s->next[i]) s->sym[m++] = s->sym[i];
    return m;
}

/* ---- first symbols ---- */

static int64_t symbols_of_bytes(const Bpe *b, int32_t *sym, const unsigned char *p, size_t n)
{
    int64_t m = 0;
    for (size_t i = 0; i < n; i++) {
        int32_t id = b->byte_id[p[i]];
        if (id >= 0) {
            sym[m++] = id;
        } else if (b->unknown >= 0 && !(b->fuse_unknown && m > 0 && sym[m - 1] == b->unknown)) {
            sym[m++] = b->unknown;
        }
    }
    return m;
}

/* The token of the character of len bytes at p, -1: none. len 0: a malformed byte. */
static int32_t char_id(const Bpe *b, const unsigned char *p, int len)
{
    if (len == 1) return b->ascii_id[p[0]];
    return len > 1 ? strmap_find(b->chars, p, (size_t)len) : -1;
}

static int has_bytes(const Bpe *b, const unsigned char *p, int n)
{
    for (int i = 0; i < n; i++) {
        if (b->byte_id[p[i]] < 0) return 0;
    }
    return b->byte_fallback;
}

static int64_t symbols_of_chars(const Bpe *b, int32_t *sym, const unsigned char *p, size_t n)
{
    int64_t m           = 0;
    int     was_unknown = 0;
    for (size_t i = 0; i < n;) {
        uint32_t code;
        int      len = utf8_next(p + i, n - i, &code), step = MAX(len, 1);
        int32_t  id   = char_id(b, p + i, len);
        int      lost = 0;
        if (id >= 0) {
            sym[m++] = id;
        } else if (has_bytes(b, p + i, step)) {
            for (int k = 0; k < step; k++) sym[m++] = b->byte_id[p[i + (size_t)k]];
        } else if (b->unknown >= 0) {
            if (!(b->fuse_unknown && was_unknown)) sym[m++] = b->unknown;
            lost = 1;
        }
        was_unknown = lost;
        i += (size_t)step;
    }
    return m;
}

/* ---- pieces ---- */

static int encode_fresh(const Bpe *b, BpeScratch *s, const unsigned char *p, size_t n)
{
    if (b->whole) {
        int32_t id = strmap_find(b->pieces, p, n);
        if (id >= 0) return bpe_push(s, id);
    }
    TRY(reserve_symbols(s, (int64_t)n));
    int64_t m = b->char_level ? symbols_of_chars(b, s->sym, p, n) : symbols_of_bytes(b, s->sym, p, n);
    m         = m <= SHORT ? merge_short(b, s->sym, m) : merge_long(b, s, m);
    if (m < 0) return -1;
    if (m == 0) return 0; /* nothing of the piece is a token */
    TRY(reserve_ids(s, m));
    memcpy(s->id + s->n, s->sym, (size_t)m * sizeof *s->id);
    s->n += m;
    return 0;
}

static int encode_piece(const Bpe *b, BpeScratch *s, const unsigned char *p, size_t n)
{
    if (n > CACHE_KEY) return encode_fresh(b, s, p, n);
    uint64_t key[4] = { 0 };
    memcpy(key, p, n);
    ((unsigned char *)key)[CACHE_KEY] = (unsigned char)n;
    uint64_t   h                      = mix(key[0] ^ mix(key[1] ^ mix(key[2] ^ mix(key[3]) >> 29) >> 31));
    BpeCached *c                      = &s->cache[h >> (64 - CACHE_BITS)];
    if (memcmp(c->key, key, sizeof key) == 0) {
        TRY(reserve_ids(s, CACHE_IDS));
        memcpy(s->id + s->n, c->id, sizeof c->id);
        s->n += c->n;
        return 0;
    }
    int64_t before = s->n;
    TRY(encode_fresh(b, s, p, n));
    int64_t m = s->n - before;
    if (m > CACHE_IDS) return 0;
    memcpy(c->key, key, sizeof key);
    if (m > 0) memcpy(c->id, s->id + before, (size_t)m * sizeof *c->id);
    c->n = (int32_t)m;
    return 0;
}

int bpe_encode(const Bpe *b, BpeScratch *s, const unsigned char *p, size_t n)
{
    if (n == 0) return 0;
    CHECK(n <= INT32_MAX / 4, "a piece of %zu bytes", n);
    if (!b->char_level || !b->may_cut) return encode_piece(b, s, p, n);
    size_t   begin = 0;
    uint32_t left  = 0, code;
    for (size_t i = 0; i < n;) {
        int len = utf8_next(p + i, n - i, &code);
        if (len == 0) code = UINT32_MAX; /* no token has a malformed byte inside */
        if (i > begin && (code == UINT32_MAX || left == UINT32_MAX || !may_join(b, left, code))) {
            TRY(encode_piece(b, s, p + begin, i - begin));
            begin = i;
        }
        left = code;
        i += (size_t)MAX(len, 1);
    }
    return encode_piece(b, s, p + begin, n - begin);
}
