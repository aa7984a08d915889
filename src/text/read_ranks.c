/* Reads tiktoken ranks (a token in base64, its rank, a line each) and the older pair of files: a vocabulary
 * in JSON and merges in text. */
#include "base/err.h"
#include "base/mem.h"
#include "base/str.h"
#include "text/known.h"
#include "text/tokenizer_impl.h"
#include "text/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANK_TOKEN_MAX = 1024, SPECIAL_MAX = 512 };

typedef struct {
    const char *path, *at, *end;
    int         line;
} Lines;

/* The next line without its end; 0: none. */
static int next_line(Lines *l, const char **begin, size_t *len)
{
    if (l->at >= l->end) return 0;
    const char *nl = memchr(l->at, '\n', (size_t)(l->end - l->at)), *stop = nl ? nl : l->end;
    *begin = l->at;
    *len   = (size_t)(stop - l->at);
    if (*len > 0 && stop[-1] == '\r') --*len;
    l->at = nl ? nl + 1 : l->end;
    l->line++;
    return 1;
}

/* ---- ranks ---- */

static int base64_digit(char c)
{
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* Returns the number of bytes, -1: malformed. */
static int64_t base64(const char *p, size_t n, unsigned char *out)
{
    size_t   len = 0;
    uint32_t v   = 0;
    if (n == 0 || n % 4 != 0) return -1;
    size_t pad = (size_t)(p[n - 1] == '=') + (p[n - 2] == '=' && p[n - 1] == '=');
    for (size_t i = 0; i < n; i++) {
        int d = i + pad >= n ? 0 : base64_digit(p[i]);
        if (d < 0) return -1;
        v = v << 6 | (uint32_t)d;
        if (i % 4 != 3) continue;
        out[len++] = (unsigned char)(v >> 16);
        out[len++] = (unsigned char)(v >> 8);
        out[len++] = (unsigned char)v;
        v          = 0;
    }
    return (int64_t)(len - pad);
}

typedef struct {
    int64_t id;
    StrSpan span;
} Rank;

/* One line into t->pool (in the byte alphabet) and *out. */
static int read_rank(Tokenizer *t, const Lines *l, const char *p, size_t n, size_t *pool_len, Rank *out)
{
    unsigned char bytes[RANK_TOKEN_MAX];
    char          number[16];
    const char   *space = memchr(p, ' ', n);
    size_t        token = space ? (size_t)(space - p) : 0, digits = space ? n - token - 1 : 0;
    if (!space || digits == 0 || digits >= sizeof number) {
        return err_user("%s:%d: expected a token in base64, a space and its rank", l->path, l->line);
    }
    int64_t len = token <= RANK_TOKEN_MAX ? base64(p, token, bytes) : -1;
    if (len < 1)
        return err_user("%s:%d: the token is not base64 of 1 to %d bytes", l->path, l->line,
                        RANK_TOKEN_MAX * 3 / 4);
    memcpy(number, space + 1, digits);
    number[digits] = '\0';
    if (str_parse_int(number, &out->id) < 0 || out->id < 0 || out->id >= TOKENIZER_MAX_VOCAB) {
        return err_user("%s:%d: the rank is not a number from 0 to %d", l->path, l->line,
                        TOKENIZER_MAX_VOCAB - 1);
    }
    size_t wrote = utf8_to_alphabet(bytes, (size_t)len, (unsigned char *)t->pool + *pool_len);
    out->span    = (StrSpan){ (uint32_t)*pool_len, (uint32_t)wrote };
    *pool_len += wrote;
    return 0;
}

/* Every pair of tokens whose bytes together are a token may merge; the rank is that of the result. */
static int pairs_of_ranks(Tokenizer *t)
{
    int64_t cap = 0;
    for (int32_t id = 0; id < t->n_id; id++) {
        const unsigned char *p = (const unsigned char *)t->pool + t->name[id].at;
        size_t               n = (t->flag[id] & TOKEN_MODEL) ? t->name[id].len : 0;
        for (size_t cut = 1; cut < n; cut++) {
            if ((p[cut] & 0xc0) == 0x80) continue;
            int32_t left  = strmap_find(&t->names, p, cut);
            int32_t right = left < 0 ? -1 : strmap_find(&t->names, p + cut, n - cut);
            if (right >= 0) TRY(tokenizer_add_merge(t, &cap, left, right));
        }
    }
    return 0;
}

typedef struct {
    char    name[48];
    int32_t id;
} Special;

/* The special tokens of a known rank file; returns how many. */
static int list_special(const KnownRanks *k, Special *out)
{
    char        word[48];
    int32_t     id = k->first;
    int         n = 0, n_reserved = 0;
    const char *p = k->special;
    for (int used; sscanf(p, "%47s%n", word, &used) == 1; p += used) {
        int many = word[0] == '*' ? atoi(word + 1) : 1;
        for (int i = 0; i < many; i++, id++) {
            if (word[0] == '-') continue;
            CHECK(n < SPECIAL_MAX, "too many special tokens");
            if (word[0] == '*') {
                snprintf(out[n].name, sizeof out[n].name, "<|reserved_special_token_%d|>", n_reserved++);
            } else {
                str_copy(out[n].name, sizeof out[n].name, word);
            }
            out[n++].id = id;
        }
    }
    return n;
}

static int enter_special(Tokenizer *t, const Special *special, int n, size_t pool_len)
{
    for (int i = 0; i < n; i++) {
        StrSpan span = { (uint32_t)pool_len, (uint32_t)strlen(special[i].name) };
        memcpy(t->pool + pool_len, special[i].name, span.len);
        pool_len += span.len;
        TRY(tokenizer_add_added(t, i, span, (AddedToken){ .id = special[i].id, .special = 1 }));
    }
    return 0;
}

static int enter_ranks(Tokenizer *t, const Rank *rank, int64_t n, size_t pool_len)
{
    Special           special[SPECIAL_MAX];
    const KnownRanks *k    = known_ranks(n);
    int64_t           most = 0;
    if (!k) {
        return err_user(
            "%s: %lld ranks belong to no tokenizer that Brim knows, so it cannot tell the pattern (%s)",
            t->path, (long long)n, known_ranks_list());
    }
    int n_special = list_special(k, special);
    t->n_added    = n_special;
    t->added      = ARENA_ARRAY(&t->arena, AddedToken, n_special);
    for (int64_t i = 0; i < n; i++) most = MAX(most, rank[i].id);
    TRY(tokenizer_make_ids(t, MAX(most, (int64_t)special[n_special - 1].id) + 1));
    for (int64_t i = 0; i < n; i++) TRY(tokenizer_add_name(t, rank[i].id, rank[i].span));
    TRY(enter_special(t, special, n_special, pool_len));
    TRY(pairs_of_ranks(t));
    t->whole = t->rank_is_id    = 1;
    t->part[PART_PRE_TOKENIZER] = known_pre_tokenizer(k->pattern);
    t->part[PART_DECODER]       = known_decoder;
    return tokenizer_finish(t);
}

static int read_rank_lines(Tokenizer *t, Lines *l, size_t n)
{
    /* A line has at least 6 bytes; a token grows from 3 of 4 digits to twice 3 bytes. */
    int64_t     most = (int64_t)(n / 6) + 1, n_rank = 0;
    size_t      pool_len = 0, len;
    const char *line;
    Rank       *rank = mem_zeroed((size_t)most, sizeof *rank);
    t->pool          = mem_alloc(2 * n + SPECIAL_MAX * sizeof(Special));
    int rc           = rank && t->pool ? 0 : err_sys("%s: ranks", t->path);
    while (rc == 0 && next_line(l, &line, &len)) {
        if (len == 0) continue;
        rc = read_rank(t, l, line, len, &pool_len, &rank[n_rank]);
        n_rank += rc == 0;
    }
    if (rc == 0) rc = enter_ranks(t, rank, n_rank, pool_len);
    free(rank);
    return rc;
}

int read_ranks(Tokenizer **t, const char *path, const char *data, size_t n)
{
    Lines      l     = { path, data, data + n, 0 };
    Tokenizer *fresh = tokenizer_new(path, "tiktoken ranks");
    if (!fresh || read_rank_lines(fresh, &l, n) < 0) {
        tokenizer_close(fresh);
        return -1;
    }
    *t = fresh;
    return 0;
}

/* ---- vocabulary and merges ---- */

static int read_merge_lines(Tokenizer *t, Lines *l)
{
    const char *p;
    size_t      n;
    int64_t     cap = 0;
    char        quoted[64];
    while (next_line(l, &p, &n)) {
        if (n == 0 || (l->line == 1 && p[0] == '#')) continue;
        const char *space = memchr(p, ' ', n);
        size_t      cut   = space ? (size_t)(space - p) : 0;
        int32_t     left  = strmap_find(&t->names, p, cut),
                right     = space ? strmap_find(&t->names, p + cut + 1, n - cut - 1) : -1;
        if (left < 0 || right < 0) {
            return err_user("%s:%d: merge '%s' is not two tokens with a space between", l->path, l->line,
                            str_quote(quoted, sizeof quoted, p, n));
        }
        TRY(tokenizer_add_merge(t, &cap, left, right));
    }
    return 0;
}

static int add_end_of_text(Tokenizer *t)
{
    static const char name[] = "<|endoftext|>";
    int32_t           id     = strmap_find(&t->names, name, sizeof name - 1);
    if (id < 0) return 0;
    t->added   = ARENA_ARRAY(&t->arena, AddedToken, 1);
    t->n_added = 1;
    return tokenizer_add_added(t, 0, t->name[id], (AddedToken){ .id = id, .special = 1 });
}

int read_vocab_merges(Tokenizer **t, const ReadFile *vocab, const ReadFile *merges)
{
    Lines      l     = { merges->path, merges->data, merges->data + merges->size_bytes, 0 };
    Tokenizer *fresh = tokenizer_new(vocab->path, "vocabulary and merges");
    int        rc    = fresh ? read_json_vocab(fresh, vocab->data, vocab->size_bytes) : -1;
    if (rc == 0) rc = read_merge_lines(fresh, &l);
    if (rc == 0) rc = add_end_of_text(fresh);
    if (rc == 0) {
        fresh->part[PART_PRE_TOKENIZER] = known_pre_tokenizer("gpt2");
        fresh->part[PART_DECODER]       = known_decoder;
        rc                              = tokenizer_finish(fresh);
    }
    if (rc < 0) {
        tokenizer_close(fresh);
        return -1;
    }
    *t = fresh;
    return 0;
}
