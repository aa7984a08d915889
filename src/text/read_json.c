/* Reads tokenizer.json. Vocabulary and merges, up to half a million entries, are scanned; the small parts go
 * through jansson. */
#include "base/err.h"
#include "base/mem.h"
#include "base/str.h"
#include "text/scan.h"
#include "text/tokenizer_impl.h"

#include <stdlib.h>
#include <string.h>

enum { PART_BYTES_MAX = 1 << 20, ADDED_BYTES_MAX = 32 << 20 };

typedef struct {
    Tokenizer  *t;
    const char *path, *data;
    size_t      size_bytes;
    ScanSlice   part[PART_COUNT], added, model;
    ScanSlice   vocab, merges, unknown, type;
    json_t     *added_json;
} Reader;

typedef struct {
    int32_t id;
    StrSpan span;
} Entry;

static Scan scan_at(const Reader *r, ScanSlice s)
{
    Scan scan;
    scan_init(&scan, r->path, r->data, s.at + s.size_bytes);
    scan.at = s.at;
    return scan;
}

/* The value as a jansson object; NULL after err_user(). */
static json_t *load(const Reader *r, ScanSlice s, size_t most, const char *what)
{
    json_error_t why;
    char         shown[128];
    if (s.size_bytes == 0) return json_null();
    if (s.size_bytes > most) {
        err_user("%s: '%s' has %zu bytes (at most %zu)", r->path, what, s.size_bytes, most);
        return NULL;
    }
    json_t *j = json_loadb(r->data + s.at, s.size_bytes, JSON_DECODE_ANY | JSON_ALLOW_NUL, &why);
    if (!j) err_user("%s: %s: %s", r->path, what, str_quote(shown, sizeof shown, why.text, strlen(why.text)));
    return j;
}

static ScanSlice *top_slice(Reader *r, const char *key)
{
    for (int i = 0; i < PART_COUNT; i++) {
        if (strcmp(key, tokenizer_part_name[i]) == 0) return &r->part[i];
    }
    if (strcmp(key, "added_tokens") == 0) return &r->added;
    return strcmp(key, "model") == 0 ? &r->model : NULL;
}

static int find_parts(Reader *r)
{
    Scan s;
    int  more;
    scan_init(&s, r->path, r->data, r->size_bytes);
    TRY(scan_open(&s, '{', &more));
    while (more) {
        char      key[32];
        ScanSlice slice, *to;
        TRY(scan_key_short(&s, key, sizeof key));
        TRY(scan_skip(&s, &slice));
        if ((to = top_slice(r, key))) *to = slice;
        TRY(scan_more(&s, '}', &more));
    }
    TRY(scan_end(&s));
    return r->model.size_bytes > 0 ? 0 : err_user("%s: it has no 'model'", r->path);
}

/* ---- model ---- */

static int is_word(const Reader *r, ScanSlice s, const char *word)
{
    return s.size_bytes == strlen(word) && memcmp(r->data + s.at, word, s.size_bytes) == 0;
}

static int take_flag(const Reader *r, ScanSlice s, const char *key, int *out)
{
    if (!is_word(r, s, "true") && !is_word(r, s, "false") && !is_word(r, s, "null")) {
        return err_user("%s: model: '%s' must be true or false", r->path, key);
    }
    *out = is_word(r, s, "true");
    return 0;
}

static int take_model_key(Reader *r, const char *key, ScanSlice s)
{
    Tokenizer *t = r->t;
    if (strcmp(key, "type") == 0) r->type = s;
    if (strcmp(key, "vocab") == 0) r->vocab = s;
    if (strcmp(key, "merges") == 0) r->merges = s;
    if (strcmp(key, "unk_token") == 0) r->unknown = s;
    if (strcmp(key, "byte_fallback") == 0) return take_flag(r, s, key, &t->byte_fallback);
    if (strcmp(key, "fuse_unk") == 0) return take_flag(r, s, key, &t->fuse_unknown);
    if (strcmp(key, "ignore_merges") == 0) return take_flag(r, s, key, &t->whole);
    int affix = strcmp(key, "continuing_subword_prefix") == 0 || strcmp(key, "end_of_word_suffix") == 0;
    if (affix && !is_word(r, s, "null") && !is_word(r, s, "\"\"")) {
        return err_user("%s: model: '%s' is not supported", r->path, key);
    }
    if (strcmp(key, "dropout") == 0 && !is_word(r, s, "null") && !is_word(r, s, "0.0") &&
        !is_word(r, s, "0")) {
        return err_user("%s: model: 'dropout' makes ids random and is not supported", r->path);
    }
    return 0;
}

static int find_model_parts(Reader *r)
{
    Scan s = scan_at(r, r->model);
    int  more;
    char quoted[40];
    TRY(scan_open(&s, '{', &more));
    while (more) {
        char      key[32];
        ScanSlice slice;
        TRY(scan_key_short(&s, key, sizeof key));
        TRY(scan_skip(&s, &slice));
        TRY(take_model_key(r, key, slice));
        TRY(scan_more(&s, '}', &more));
    }
    if (r->type.size_bytes > 0 && !is_word(r, r->type, "\"BPE\"")) {
        return err_user("%s: model type %s is not supported (BPE is)", r->path,
                        str_quote(quoted, sizeof quoted, r->data + r->type.at, r->type.size_bytes));
    }
    if (r->vocab.size_bytes == 0) return err_user("%s: model: it has no 'vocab'", r->path);
    return 0;
}

/* ---- vocabulary ---- */

static int scan_vocab(Scan *s, Tokenizer *t, size_t *pool_len, Entry **entry, int64_t *n_entry)
{
    int64_t cap = 0;
    int     more;
    TRY(scan_open(s, '{', &more));
    while (more) {
        int64_t len = scan_key(s, t->pool + *pool_len), id;
        if (len < 0) return -1;
        TRY(scan_int(s, &id));
        if (id >= TOKENIZER_MAX_VOCAB)
            return scan_blame(s, "token id %lld is too large (at most %d)", (long long)id,
                              TOKENIZER_MAX_VOCAB - 1);
        if (*n_entry == cap) {
            cap          = cap * 2 + 65536;
            Entry *grown = realloc(*entry, (size_t)cap * sizeof *grown);
            if (!grown) return err_sys("%s: a vocabulary of %lld tokens", t->path, (long long)cap);
            *entry = grown;
        }
        (*entry)[(*n_entry)++] = (Entry){ (int32_t)id, { (uint32_t)*pool_len, (uint32_t)len } };
        *pool_len += (size_t)len;
        TRY(scan_more(s, '}', &more));
    }
    return 0;
}

static int64_t highest_id(const Entry *e, int64_t n)
{
    int64_t most = -1;
    for (int64_t i = 0; i < n; i++) most = MAX(most, (int64_t)e[i].id);
    return most;
}

static int enter_vocab(Tokenizer *t, const Entry *e, int64_t n, int64_t most)
{
    if (n == 0) return err_user("%s: the vocabulary is empty", t->path);
    TRY(tokenizer_make_ids(t, MAX(most, highest_id(e, n)) + 1));
    for (int64_t i = 0; i < n; i++) TRY(tokenizer_add_name(t, e[i].id, e[i].span));
    return t->n_token > 0 ? 0 : err_user("%s: the vocabulary is empty", t->path);
}

int read_json_vocab(Tokenizer *t, const char *data, size_t n)
{
    Entry  *e   = NULL;
    int64_t n_e = 0;
    size_t  len = 0;
    Scan    s;
    scan_init(&s, t->path, data, n);
    t->pool = mem_alloc(n + 1);
    int rc  = t->pool ? scan_vocab(&s, t, &len, &e, &n_e) : err_sys("%s: a vocabulary", t->path);
    if (rc == 0) rc = scan_end(&s);
    if (rc == 0) rc = enter_vocab(t, e, n_e, -1);
    free(e);
    return rc;
}

/* ---- added tokens ---- */

static int64_t added_id(const json_t *j)
{
    return json_is_integer(json_object_get(j, "id")) ? json_integer_value(json_object_get(j, "id")) : -1;
}

static int check_added(const Reader *r, size_t i, int64_t *most)
{
    const json_t *j = json_array_get(r->added_json, i), *content = json_object_get(j, "content");
    int64_t       id = added_id(j);
    if (!json_is_string(content) || json_string_length(content) == 0 ||
        json_string_length(content) > ADDED_LENGTH_MAX) {
        return err_user("%s: added_tokens: token %zu needs a 'content' of 1 to %d bytes", r->path, i,
                        ADDED_LENGTH_MAX);
    }
    if (id < 0 || id >= TOKENIZER_MAX_VOCAB) {
        return err_user("%s: added_tokens: token %zu needs an 'id' from 0 to %d", r->path, i,
                        TOKENIZER_MAX_VOCAB - 1);
    }
    *most = MAX(*most, id);
    return 0;
}

/* Sizes what the vocabulary's tables must hold besides. */
static int load_added(Reader *r, int64_t *most, size_t *size_bytes)
{
    r->added_json = load(r, r->added, ADDED_BYTES_MAX, "added_tokens");
    if (!r->added_json) return -1;
    if (json_is_null(r->added_json)) return 0;
    if (!json_is_array(r->added_json)) return err_user("%s: 'added_tokens' must be a list", r->path);
    size_t n = json_array_size(r->added_json);
    if (n > TOKENIZER_MAX_ADDED)
        return err_user("%s: %zu added tokens (at most %d)", r->path, n, TOKENIZER_MAX_ADDED);
    for (size_t i = 0; i < n; i++) {
        TRY(check_added(r, i, most));
        *size_bytes += json_string_length(json_object_get(json_array_get(r->added_json, i), "content"));
    }
    r->t->n_added = (int64_t)n;
    r->t->added   = ARENA_ARRAY(&r->t->arena, AddedToken, n + 1);
    return 0;
}

static int flag(const json_t *j, const char *key) { return json_is_true(json_object_get(j, key)); }

static int enter_added(Reader *r, size_t pool_len)
{
    for (int64_t i = 0; i < r->t->n_added; i++) {
        const json_t *j = json_array_get(r->added_json, (size_t)i), *content = json_object_get(j, "content");
        StrSpan       span = { (uint32_t)pool_len, (uint32_t)json_string_length(content) };
        memcpy(r->t->pool + pool_len, json_string_value(content), span.len);
        pool_len += span.len;
        AddedToken token = { .id          = (int32_t)added_id(j),
                             .special     = (uint8_t)flag(j, "special"),
                             .normalized  = (uint8_t)flag(j, "normalized"),
                             .left_strip  = (uint8_t)flag(j, "lstrip"),
                             .right_strip = (uint8_t)flag(j, "rstrip"),
                             .single_word = (uint8_t)flag(j, "single_word") };
        TRY(tokenizer_add_added(r->t, i, span, token));
    }
    return 0;
}

static int read_names(Reader *r)
{
    Scan    s   = scan_at(r, r->vocab);
    Entry  *e   = NULL;
    int64_t n_e = 0, most = -1;
    size_t  len = 0, extra = 0;
    TRY(load_added(r, &most, &extra));
    r->t->pool = mem_alloc(r->vocab.size_bytes + extra + 1);
    int rc     = r->t->pool ? scan_vocab(&s, r->t, &len, &e, &n_e) : err_sys("%s: a vocabulary", r->path);
    if (rc == 0) rc = enter_vocab(r->t, e, n_e, most);
    if (rc == 0) rc = enter_added(r, len);
    free(e);
    return rc;
}

/* ---- merges ---- */

/* "a b" or ["a", "b"]: both decoded into text, the second at *cut. */
static int64_t scan_merge(Scan *s, char *text, int64_t *cut)
{
    int more;
    if (scan_peek(s) != '[') {
        int64_t     n     = scan_string(s, text);
        const char *space = n > 0 ? memchr(text, ' ', (size_t)n) : NULL;
        if (n < 0) return -1;
        if (!space || memchr(space + 1, ' ', (size_t)(text + n - space - 1)))
            return scan_blame(s, "a merge must be two tokens with a space between");
        *cut = space - text + 1;
        return n;
    }
    TRY(scan_open(s, '[', &more));
    int64_t a = more ? scan_string(s, text) : scan_blame(s, "an empty merge"), b;
    if (a < 0 || scan_more(s, ']', &more) < 0) return -1;
    text[a] = ' ';
    *cut    = a + 1;
    b       = more ? scan_string(s, text + a + 1) : scan_blame(s, "a merge of one token");
    if (b < 0 || scan_more(s, ']', &more) < 0) return -1;
    return more ? scan_blame(s, "a merge of more than two tokens") : a + 1 + b;
}

static int read_merges(Reader *r)
{
    Scan    s = scan_at(r, r->merges);
    int     more, rc = 0;
    int64_t cap = 0, cut = 0;
    char    quoted[64];
    if (r->merges.size_bytes == 0) return 0;
    TRY(scan_open(&s, '[', &more));
    char *text = mem_alloc(r->merges.size_bytes + 2);
    if (!text) return err_sys("%s: merges", r->path);
    while (rc == 0 && more) {
        int64_t n = scan_merge(&s, text, &cut);
        if (n < 0) {
            rc = -1;
            break;
        }
        int32_t left  = strmap_find(&r->t->names, text, (size_t)cut - 1),
                right = strmap_find(&r->t->names, text + cut, (size_t)(n - cut));
        if (left < 0 || right < 0) {
            rc = scan_blame(&s, "merge '%s' has a part that is no token",
                            str_quote(quoted, sizeof quoted, text, (size_t)n));
            break;
        }
        rc = tokenizer_add_merge(r->t, &cap, left, right);
        if (rc == 0) rc = scan_more(&s, ']', &more);
    }
    free(text);
    return rc;
}

/* ---- all ---- */

static int read_unknown(Reader *r)
{
    char quoted[48];
    if (r->unknown.size_bytes == 0 || is_word(r, r->unknown, "null")) return 0;
    Scan  s    = scan_at(r, r->unknown);
    char *text = mem_alloc(r->unknown.size_bytes + 1);
    if (!text) return err_sys("%s: unk_token", r->path);
    int64_t n = scan_string(&s, text);
    if (n >= 0) r->t->unknown = strmap_find(&r->t->names, text, (size_t)n);
    if (n >= 0 && r->t->unknown < 0) {
        n = err_user("%s: model: unk_token '%s' is no token", r->path,
                     str_quote(quoted, sizeof quoted, text, (size_t)n));
    }
    free(text);
    return n < 0 ? -1 : 0;
}

/* Parts are kept as text in one form, so that equal files have equal hashes. */
static int keep_parts(Reader *r)
{
    for (int i = 0; i < PART_COUNT; i++) {
        json_t *j = load(r, r->part[i], PART_BYTES_MAX, tokenizer_part_name[i]);
        if (!j) return -1;
        char *text = json_dumps(j, JSON_COMPACT | JSON_ENCODE_ANY);
        json_decref(j);
        if (!text) return err_set("%s: %s", r->path, tokenizer_part_name[i]);
        r->t->part[i] = arena_strdup(&r->t->arena, text);
        free(text);
    }
    return 0;
}

int read_json_tokenizer(Tokenizer **t, const char *path, const char *data, size_t n)
{
    Reader r  = { .t = tokenizer_new(path, "tokenizer.json"), .path = path, .data = data, .size_bytes = n };
    int    rc = r.t ? find_parts(&r) : -1;
    if (rc == 0) rc = find_model_parts(&r);
    if (rc == 0) rc = read_names(&r);
    if (rc == 0) rc = read_merges(&r);
    if (rc == 0) rc = read_unknown(&r);
    if (rc == 0) rc = keep_parts(&r);
    if (rc == 0) rc = tokenizer_finish(r.t);
    json_decref(r.added_json);
    if (rc < 0) {
        tokenizer_close(r.t);
        return -1;
    }
    *t = r.t;
    return 0;
}
