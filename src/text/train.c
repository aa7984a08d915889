#include "text/train.h"

#include "base/err.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "base/thread.h"
#include "text/known.h"
#include "text/merges.h"
#include "text/tokenizer_impl.h"
#include "text/utf8.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK_BYTES = 1 << 20, TELL_CHUNKS = 32, SPECIAL_MAX = 64, SPECIAL_BYTES = 64, THREADS_MAX = 256 };

typedef struct {
    char name[SPECIAL_MAX][SPECIAL_BYTES];
    int  n;
} Specials;

/* ---- a tokenizer of tokens and merges ---- */

static int list_specials(const char *list, Specials *s)
{
    s->n = 0;
    for (int rc; list && (rc = str_list_next(&list, s->name[s->n], SPECIAL_BYTES)) != 0; s->n++) {
        if (rc < 0) return err_user("a special token is longer than %d bytes", SPECIAL_BYTES - 1);
        if (s->n == SPECIAL_MAX - 1) return err_user("more than %d special tokens", SPECIAL_MAX - 1);
    }
    return 0;
}

static int enter_specials(Tokenizer *t, const Specials *s, size_t *pool_len)
{
    t->n_added = s->n;
    t->added   = ARENA_ARRAY(&t->arena, AddedToken, s->n + 1);
    TRY(tokenizer_make_ids(t, t->n_id));
    for (int i = 0; i < s->n; i++) {
        StrSpan span = { (uint32_t)*pool_len, (uint32_t)strlen(s->name[i]) };
        memcpy(t->pool + *pool_len, s->name[i], span.len);
        *pool_len += span.len;
        TRY(tokenizer_add_name(t, i, span));
        TRY(tokenizer_add_added(t, i, span, (AddedToken){ .id = i, .special = 1 }));
    }
    return 0;
}

static int fill(Tokenizer *t, const Specials *s, const Merges *m, const char *pattern)
{
    size_t  len = 0;
    int64_t cap = 0;
    t->pool     = mem_alloc(2 * m->pool.len + sizeof *s);
    t->n_id     = m->n_token + s->n;
    if (!t->pool) return err_sys("memory for a vocabulary");
    TRY(enter_specials(t, s, &len));
    for (int32_t i = 0; i < m->n_token; i++) {
        StrSpan b    = m->token[i];
        size_t  n    = utf8_to_alphabet(m->pool.data + b.at, b.len, (unsigned char *)t->pool + len);
        StrSpan span = { (uint32_t)len, (uint32_t)n };
        len += n;
        TRY(tokenizer_add_name(t, i + s->n, span));
    }
    for (int64_t i = 0; i < m->n_merge; i++) {
        TRY(tokenizer_add_merge(t, &cap, m->merge[i].left + s->n, m->merge[i].right + s->n));
    }
    t->part[PART_PRE_TOKENIZER] = known_pre_tokenizer(pattern);
    t->part[PART_DECODER]       = known_decoder;
    return tokenizer_finish(t);
}

static int assemble(Tokenizer **t, const Specials *s, const Merges *m, const char *pattern)
{
    *t = tokenizer_new("the tokenizer being trained", "trained");
    if (*t && fill(*t, s, m, pattern) == 0) return 0;
    tokenizer_close(*t);
    *t = NULL;
    return -1;
}

/* ---- counting words ---- */

typedef struct {
    const unsigned char *p;
    size_t               n;
} Chunk;

typedef struct {
    const TrainConfig *c;
    const Tokenizer   *t; /* no merges yet: its pattern and special tokens */
    FileMap           *file;
    Chunk             *chunk;
    int64_t            n_chunk;
    _Atomic int64_t    next;
    _Atomic int        failed;
} Count;

typedef struct {
    Count        *count;
    Thread        thread;
    Words         words;
    RegexScratch *regex;
    SplitScratch  split;
    char          why[512];
    ErrKind       kind;
    int           tells; /* 1: it calls note */
} Counter;

static int take_word(void *arg, const unsigned char *p, size_t n)
{
    Counter *w = arg;
    return words_add(&w->words, p, n, 1);
}

/* A text without special tokens: they stand between texts. */
static int count_text(Counter *w, const unsigned char *p, size_t n)
{
    const Tokenizer *t  = w->count->t;
    size_t           at = 0;
    AddedMatch       m;
    regex_begin(w->regex, n);
    while (added_next(&t->raw_set, p, n, at, 0, &m)) {
        TRY(split_run(&t->split, &w->split, p + at, m.begin - at, 1, (SplitSink){ take_word, w }));
        at = m.end;
    }
    return split_run(&t->split, &w->split, p + at, n - at, 1, (SplitSink){ take_word, w });
}

static int count_chunk(Counter *w, const Chunk *c)
{
    if (w->count->c->whole) return count_text(w, c->p, c->n);
    for (size_t i = 0; i < c->n;) {
        const unsigned char *nl  = memchr(c->p + i, '\n', c->n - i);
        size_t               len = nl ? (size_t)(nl + 1 - c->p) - i : c->n - i;
        TRY(count_text(w, c->p + i, len));
        i += len;
    }
    return 0;
}

static void count_body(void *arg)
{
    Counter *w = arg;
    Count   *c = w->count;
    for (int64_t i; !c->failed && (i = atomic_fetch_add(&c->next, 1)) < c->n_chunk;) {
        if (w->tells) c->c->note(c->c->note_arg, "words, MiB", i, c->n_chunk);
        if (count_chunk(w, &c->chunk[i]) < 0) {
            str_copy(w->why, sizeof w->why, err_get());
            w->kind   = err_kind();
            c->failed = 1;
        }
    }
}

/* Files in pieces of about a megabyte that end in a line feed; whole files where a file is one text. */
static int cut_chunks(Count *c, const unsigned char *p, size_t n, int64_t *cap)
{
    for (size_t i = 0; i < n;) {
        size_t               end = c->c->whole || n - i <= CHUNK_BYTES ? n : i + CHUNK_BYTES;
        const unsigned char *nl  = end < n ? memchr(p + end, '\n', n - end) : NULL;
        if (end < n) end = nl ? (size_t)(nl + 1 - p) : n;
        if (c->n_chunk == *cap) {
            *cap        = *cap * 2 + 256;
            Chunk *more = realloc(c->chunk, (size_t)*cap * sizeof *more);
            if (!more) return err_sys("memory for training");
            c->chunk = more;
        }
        c->chunk[c->n_chunk++] = (Chunk){ p + i, end - i };
        i                      = end;
    }
    return 0;
}

static int map_files(Count *c)
{
    int64_t cap = 0;
    c->file     = mem_zeroed((size_t)c->c->n_path, sizeof *c->file);
    if (!c->file) return err_sys("memory for training");
    for (int i = 0; i < c->c->n_path; i++) {
        if (file_kind(c->c->path[i]) != FILE_REGULAR) return err_user("%s: no such file", c->c->path[i]);
        TRY(file_map(&c->file[i], c->c->path[i]));
        if (c->c->whole && c->file[i].size_bytes > TOKENIZER_MAX_BYTES) {
            return err_user("%s: a text of more than %d MiB", c->c->path[i], TOKENIZER_MAX_BYTES >> 20);
        }
        TRY(cut_chunks(c, c->file[i].data, c->file[i].size_bytes, &cap));
    }
    return c->n_chunk > 0 ? 0 : err_user("there is no text to train on");
}

static int run_counters(Count *c, Counter *w, int n, Words *words)
{
    int rc = 0;
    for (int i = 0; rc == 0 && i < n; i++) {
        w[i].count       = c;
        w[i].tells       = i == 0 && c->c->note && c->n_chunk >= TELL_CHUNKS;
        w[i].regex       = regex_scratch_create();
        w[i].split.regex = w[i].regex;
        rc               = w[i].regex ? words_init(&w[i].words) : -1;
        if (rc == 0) rc = thread_start(&w[i].thread, "words", count_body, &w[i]);
        if (rc < 0) c->failed = 1;
    }
    for (int i = 0; i < n; i++) thread_join(&w[i].thread);
    for (int i = 0; rc == 0 && i < n; i++) {
        if (w[i].why[0]) rc = w[i].kind == ERR_USER ? err_user("%s", w[i].why) : err_set("%s", w[i].why);
        if (rc == 0) rc = words_add_all(words, &w[i].words);
    }
    for (int i = 0; i < n; i++) {
        words_deinit(&w[i].words);
        split_scratch_deinit(&w[i].split);
        regex_scratch_destroy(w[i].regex);
    }
    return rc;
}

static int count_words(const TrainConfig *c, const Tokenizer *t, Words *words)
{
    Count    count = { .c = c, .t = t };
    int      n     = MAX(1, MIN(c->threads, THREADS_MAX));
    Counter *w     = mem_zeroed((size_t)n, sizeof *w);
    int      rc    = w ? map_files(&count) : err_sys("memory for training");
    if (rc == 0) rc = run_counters(&count, w, n, words);
    for (int i = 0; count.file && i < c->n_path; i++) file_unmap(&count.file[i]);
    free(count.file);
    free(count.chunk);
    free(w);
    return rc;
}

/* ---- all ---- */

/* Bytes have the order of their characters in the alphabet, as in vocabularies of the Hugging Face trainer.
 * */
static void order_bytes(int32_t *symbol)
{
    int32_t n = 0;
    for (uint32_t c = 0; c <= 0x143; c++) {
        int b = utf8_char_byte(c);
        if (b >= 0) symbol[b] = n++;
    }
}

static int train_with(Tokenizer **t, const TrainConfig *c, const Specials *s, MergesConfig *mc)
{
    Merges     none, m;
    Words      words   = { 0 };
    Tokenizer *bare    = NULL;
    mc->words          = &words;
    MergesConfig first = *mc;
    first.most         = 256;
    int rc             = words_init(&words);
    if (rc == 0) rc = merges_find(&none, &first);
    if (rc == 0) {
        rc = assemble(&bare, s, &none, c->pattern);
        merges_deinit(&none);
    }
    if (rc == 0) rc = count_words(c, bare, &words);
    if (rc == 0) rc = merges_find(&m, mc);
    if (rc == 0) {
        rc = assemble(t, s, &m, c->pattern);
        merges_deinit(&m);
    }
    tokenizer_close(bare);
    words_deinit(&words);
    return rc;
}

int train_tokenizer(Tokenizer **t, const TrainConfig *c)
{
    Specials     s;
    MergesConfig mc = { .min_count = c->min_count, .note = c->note, .note_arg = c->note_arg };
    if (!known_pre_tokenizer(c->pattern)) {
        return err_user("'%s' is no pattern (%s)", c->pattern, known_pre_tokenizer_list());
    }
    TRY(list_specials(c->special, &s));
    if (c->vocab < 256 + s.n || c->vocab > TOKENIZER_MAX_VOCAB) {
        return err_user("a vocabulary of %lld (%d to %d: 256 bytes and %d special token%s come first)",
                        (long long)c->vocab, 256 + s.n, TOKENIZER_MAX_VOCAB, s.n, str_plural(s.n));
    }
    mc.most = (int32_t)c->vocab - s.n;
    order_bytes(mc.byte_symbol);
    return train_with(t, c, &s, &mc);
}
