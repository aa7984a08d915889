#include "text/merges.h"

#include "base/err.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

enum { NOTE_EVERY = 256 };

typedef struct {
    int32_t *word;
    int32_t  n, cap;
} List; /* words that hold a pair, each once */

typedef struct {
    uint64_t key; /* left << 32 | right */
    int64_t  count;
    int32_t  fresh; /* the list of this round's new places, -1: none */
} Pair;

/* A pair may be queued twice, each time with the words in which it was new. */
typedef struct {
    int64_t  count;
    uint64_t key;
    int32_t  pair, list;
} Queued;

typedef struct {
    Merges             *out;
    const MergesConfig *c;
    StrMap              names;

    int32_t *symbol; /* of all words, one after the other */
    int64_t *at;     /* where each word begins */
    int32_t *len;
    int64_t *count;
    int64_t  n_word;

    Pair    *pair;
    int32_t  n_pair, pair_cap;
    int32_t *index; /* of pairs, by hash; -1: empty */
    uint64_t mask;

    List    *list;
    int32_t  n_list, list_cap, *spare, n_spare;
    int32_t *touched; /* pairs with a fresh list */
    int32_t  n_touched, touched_cap;

    Queued *queue;
    int64_t n_queue, queue_cap;
} Trainer;

#define GROW(array, n, cap) ((n) < (cap) ? 0 : grow_array((void **)&(array), sizeof *(array), &(cap)))

static int grow_array(void **array, size_t item, int32_t *cap)
{
    if (*cap > INT32_MAX / 2 - 64) return err_set("the text has too many different words to train on");
    int32_t more  = *cap * 2 + 64;
    void   *grown = realloc(*array, (size_t)more * item);
    if (!grown) return err_sys("memory for training");
    *array = grown;
    *cap   = more;
    return 0;
}

/* ---- pairs ---- */

static uint64_t hash_key(uint64_t key) { return (key * 0x9e3779b97f4a7c15u) >> 20; }

static int grow_index(Trainer *t)
{
    uint64_t n = t->index ? 2 * (t->mask + 1) : 1 << 16;
    free(t->index);
    t->index = mem_alloc(n * sizeof *t->index);
    if (!t->index) return err_sys("memory for training");
    memset(t->index, 0xff, n * sizeof *t->index);
    t->mask = n - 1;
    for (int32_t i = 0; i < t->n_pair; i++) {
        uint64_t k = hash_key(t->pair[i].key) & t->mask;
        while (t->index[k] >= 0) k = (k + 1) & t->mask;
        t->index[k] = i;
    }
    return 0;
}

/* The pair's place, made when it is new; negative after err_set(). */
static int32_t pair_of(Trainer *t, int32_t left, int32_t right)
{
    uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    if ((uint64_t)t->n_pair * 2 >= t->mask && grow_index(t) < 0) return -1;
    uint64_t k = hash_key(key) & t->mask;
    for (; t->index[k] >= 0; k = (k + 1) & t->mask) {
        if (t->pair[t->index[k]].key == key) return t->index[k];
    }
    if (GROW(t->pair, t->n_pair, t->pair_cap) < 0) return -1;
    t->pair[t->n_pair] = (Pair){ key, 0, -1 };
    t->index[k]        = t->n_pair;
    return t->n_pair++;
}

static int32_t new_list(Trainer *t)
{
    if (t->n_spare > 0) {
        int32_t i    = t->spare[--t->n_spare];
        t->list[i].n = 0;
        return i;
    }
    int32_t cap = t->list_cap;
    if (GROW(t->list, t->n_list, t->list_cap) < 0) return -1;
    if (t->list_cap != cap) {
        int32_t *more = realloc(t->spare, (size_t)t->list_cap * sizeof *more);
        if (!more) return err_sys("memory for training");
        t->spare = more;
    }
    t->list[t->n_list] = (List){ 0 };
    return t->n_list++;
}

static int note_place(Trainer *t, int32_t pair, int32_t word)
{
    Pair *p = &t->pair[pair];
    if (p->fresh < 0) {
        p->fresh = new_list(t);
        if (p->fresh < 0 || GROW(t->touched, t->n_touched, t->touched_cap) < 0) return -1;
        t->touched[t->n_touched++] = pair;
    }
    List *l = &t->list[p->fresh];
    if (l->n > 0 && l->word[l->n - 1] == word) return 0;
    TRY(GROW(l->word, l->n, l->cap));
    l->word[l->n++] = word;
    return 0;
}

static int change(Trainer *t, int32_t left, int32_t right, int64_t by, int32_t word)
{
    int32_t p = pair_of(t, left, right);
    if (p < 0) return -1;
    t->pair[p].count += by;
    return by > 0 ? note_place(t, p, word) : 0;
}

/* ---- queue: the largest count first, then the smallest pair ---- */

static int is_before(const Queued *a, const Queued *b)
{
    return a->count != b->count ? a->count > b->count : a->key < b->key;
}

static int push(Trainer *t, Queued q)
{
    if (t->n_queue == t->queue_cap) {
        int64_t cap  = t->queue_cap * 2 + 1024;
        Queued *more = realloc(t->queue, (size_t)cap * sizeof *more);
        if (!more) return err_sys("memory for training");
        t->queue     = more;
        t->queue_cap = cap;
    }
    int64_t i = t->n_queue++;
    for (; i > 0 && is_before(&q, &t->queue[(i - 1) / 2]); i = (i - 1) / 2)
        t->queue[i] = t->queue[(i - 1) / 2];
    t->queue[i] = q;
    return 0;
}

static Queued pop(Trainer *t)
{
    Queued  top = t->queue[0], x = t->queue[--t->n_queue];
    int64_t i = 0;
    for (;;) {
        int64_t c = 2 * i + 1;
        if (c >= t->n_queue) break;
        if (c + 1 < t->n_queue && is_before(&t->queue[c + 1], &t->queue[c])) c++;
        if (!is_before(&t->queue[c], &x)) break;
        t->queue[i] = t->queue[c];
        i           = c;
    }
    t->queue[i] = x;
    return top;
}

static int queue_touched(Trainer *t)
{
    for (int32_t i = 0; i < t->n_touched; i++) {
        Pair *p = &t->pair[t->touched[i]];
        if (p->count > 0) {
            TRY(push(t, (Queued){ p->count, p->key, t->touched[i], p->fresh }));
        } else {
            t->spare[t->n_spare++] = p->fresh;
        }
        p->fresh = -1;
    }
    t->n_touched = 0;
    return 0;
}

/* ---- words ---- */

static int load_words(Trainer *t)
{
    const Words *w = t->c->words;
    t->symbol      = mem_alloc((w->pool.len + 1) * sizeof *t->symbol);
    t->at          = mem_alloc((size_t)(w->n + 1) * sizeof *t->at);
    t->len         = mem_alloc((size_t)(w->n + 1) * sizeof *t->len);
    t->count       = mem_alloc((size_t)(w->n + 1) * sizeof *t->count);
    if (!t->symbol || !t->at || !t->len || !t->count)
        return err_sys("memory for %lld words", (long long)w->n);
    if (w->n > INT32_MAX / 2)
        return err_user("%lld different words are too many to train on", (long long)w->n);
    for (uint64_t i = 0; i <= w->mask; i++) {
        const Word *s = &w->slot[i];
        if (s->count == 0) continue;
        int64_t k   = t->n_word++;
        t->at[k]    = (int64_t)s->at;
        t->len[k]   = (int32_t)s->len;
        t->count[k] = s->count;
        for (uint32_t b = 0; b < s->len; b++)
            t->symbol[s->at + b] = t->c->byte_symbol[w->pool.data[s->at + b]];
    }
    return 0;
}

static int count_pairs(Trainer *t)
{
    for (int64_t k = 0; k < t->n_word; k++) {
        const int32_t *s = t->symbol + t->at[k];
        for (int32_t i = 0; i + 1 < t->len[k]; i++) TRY(change(t, s[i], s[i + 1], t->count[k], (int32_t)k));
    }
    return queue_touched(t);
}

/* Joins the pair wherever word k has it, from left to right, and counts what that changes. */
static int join_in_word(Trainer *t, int32_t k, Merge m)
{
    int32_t *s = t->symbol + t->at[k], n = t->len[k], o = 0;
    int64_t  count = t->count[k];
    for (int32_t i = 0; i < n; i++) {
        if (s[i] != m.left || i + 1 >= n || s[i + 1] != m.right) {
            s[o++] = s[i];
            continue;
        }
        if (o > 0) {
            TRY(change(t, s[o - 1], m.left, -count, k));
            TRY(change(t, s[o - 1], m.id, count, k));
        }
        if (i + 2 < n) {
            TRY(change(t, m.right, s[i + 2], -count, k));
            TRY(change(t, m.id, s[i + 2], count, k));
        }
        s[o++] = m.id;
        i++;
    }
    t->len[k] = o;
    return 0;
}

/* ---- symbols ---- */

static int add_symbol(Trainer *t, const void *bytes, size_t n)
{
    Merges *out = t->out;
    TRY(buffer_add(&out->pool, bytes, n));
    if (out->pool.len > UINT32_MAX) return err_set("the tokens have more than 4 GiB of text");
    out->token[out->n_token] = (StrSpan){ (uint32_t)(out->pool.len - n), (uint32_t)n };
    t->names.pool            = (const char *)out->pool.data;
    return strmap_add(&t->names, out->n_token++);
}

/* The symbol for both parts together: an earlier one with the same bytes, or a new one. */
static int32_t joined_symbol(Trainer *t, int32_t left, int32_t right)
{
    Merges *out = t->out;
    StrSpan l = out->token[left], r = out->token[right];
    Buffer  both = { 0 };
    int32_t id   = -1;
    if (buffer_add(&both, out->pool.data + l.at, l.len) == 0 &&
        buffer_add(&both, out->pool.data + r.at, r.len) == 0) {
        id = strmap_find(&t->names, both.data, both.len);
        if (id < 0) id = add_symbol(t, both.data, both.len);
    }
    buffer_deinit(&both);
    return id;
}

static int make_symbols(Trainer *t)
{
    Merges *out = t->out;
    out->token  = mem_zeroed((size_t)t->c->most + 1, sizeof *out->token);
    if (!out->token) return err_sys("memory for %d tokens", t->c->most);
    TRY(strmap_init(&t->names, t->c->most, NULL, out->token));
    unsigned char byte_of[256];
    for (int b = 0; b < 256; b++) byte_of[t->c->byte_symbol[b]] = (unsigned char)b;
    for (int i = 0; i < 256; i++) TRY(add_symbol(t, &byte_of[i], 1));
    return 0;
}

/* ---- training ---- */

static int join_pair(Trainer *t, const Queued *top, int64_t *cap)
{
    Merges *out = t->out;
    Merge   m   = { (int32_t)(top->key >> 32), (int32_t)(uint32_t)top->key, -1 };
    m.id        = joined_symbol(t, m.left, m.right);
    if (m.id < 0) return -1;
    if (out->n_merge == *cap) {
        *cap        = *cap * 2 + 1024;
        Merge *more = realloc(out->merge, (size_t)*cap * sizeof *more);
        if (!more) return err_sys("memory for merges");
        out->merge = more;
    }
    out->merge[out->n_merge++] = m;
    /* Lists move when new ones are made. */
    for (int32_t i = 0; i < t->list[top->list].n; i++) TRY(join_in_word(t, t->list[top->list].word[i], m));
    t->spare[t->n_spare++] = top->list;
    return queue_touched(t);
}

static int run(Trainer *t)
{
    int64_t cap = 0;
    while (t->out->n_token < t->c->most && t->n_queue > 0) {
        Queued  top   = pop(t);
        int64_t count = t->pair[top.pair].count;
        if (top.count != count) {
            top.count = count;
            TRY(push(t, top));
            continue;
        }
        if (count < 1 || count < t->c->min_count) break;
        TRY(join_pair(t, &top, &cap));
        if (t->c->note && t->out->n_merge % NOTE_EVERY == 0) {
            t->c->note(t->c->note_arg, "vocabulary", t->out->n_token, t->c->most);
        }
    }
    return 0;
}

/* Of a pair that was joined twice the later place counts. */
static int drop_repeats(Trainer *t)
{
    Merges  *m    = t->out;
    int64_t *last = mem_alloc(((size_t)t->n_pair + 1) * sizeof *last), n = 0;
    if (!last) return err_sys("memory for merges");
    for (int64_t i = 0; i < m->n_merge; i++) last[pair_of(t, m->merge[i].left, m->merge[i].right)] = i;
    for (int64_t i = 0; i < m->n_merge; i++) {
        if (last[pair_of(t, m->merge[i].left, m->merge[i].right)] == i) m->merge[n++] = m->merge[i];
    }
    m->n_merge = n;
    free(last);
    return 0;
}

int merges_find(Merges *m, const MergesConfig *c)
{
    Trainer t = { .out = m, .c = c };
    memset(m, 0, sizeof *m);
    int rc = grow_index(&t);
    if (rc == 0) rc = make_symbols(&t);
    if (rc == 0) rc = load_words(&t);
    if (rc == 0) rc = count_pairs(&t);
    if (rc == 0) rc = run(&t);
    if (rc == 0) rc = drop_repeats(&t);
    for (int32_t i = 0; i < t.n_list; i++) free(t.list[i].word);
    free(t.queue);
    free(t.touched);
    free(t.spare);
    free(t.list);
    free(t.index);
    free(t.pair);
    free(t.count);
    free(t.len);
    free(t.at);
    free(t.symbol);
    strmap_deinit(&t.names);
    if (rc < 0) merges_deinit(m);
    return rc < 0 ? -1 : 0;
}

void merges_deinit(Merges *m)
{
    free(m->merge);
    free(m->token);
    buffer_deinit(&m->pool);
    memset(m, 0, sizeof *m);
}
