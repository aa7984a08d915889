/* Makes a Tokenizer of what a reader found: names, merges, added tokens, parts. */
#include "base/err.h"
#include "base/mem.h"
#include "base/str.h"
#include "text/tokenizer_impl.h"
#include "text/utf8.h"

#include <stdlib.h>
#include <string.h>

Tokenizer *tokenizer_new(const char *path, const char *kind)
{
    Tokenizer *t = mem_zeroed(1, sizeof *t);
    if (!t) {
        err_sys("%s: a tokenizer", path);
        return NULL;
    }
    arena_init(&t->arena);
    t->path    = arena_strdup(&t->arena, path);
    t->kind    = kind;
    t->unknown = t->bos = t->eos = -1;
    for (int i = 0; i < PART_COUNT; i++) t->part[i] = "null";
    return t;
}

void tokenizer_close(Tokenizer *t)
{
    if (!t) return;
    for (int i = 0; i < t->n_regex; i++) regex_destroy(t->regex[i]);
    added_deinit(&t->raw_set);
    added_deinit(&t->normal_set);
    bpe_deinit(&t->bpe);
    strmap_deinit(&t->pieces);
    strmap_deinit(&t->added_names);
    strmap_deinit(&t->names);
    free(t->merge);
    free(t->flag);
    free(t->bytes);
    free(t->name);
    free(t->byte_pool);
    free(t->pool);
    arena_deinit(&t->arena);
    free(t);
}

static const char *quote_name(const Tokenizer *t, char *buf, size_t n, StrSpan s)
{
    return str_quote(buf, n, t->pool + s.at, s.len);
}

int tokenizer_make_ids(Tokenizer *t, int64_t n)
{
    if (n > TOKENIZER_MAX_VOCAB) {
        return err_user("%s: token id %lld is too large (at most %d)", t->path, (long long)n - 1,
                        TOKENIZER_MAX_VOCAB - 1);
    }
    t->n_id  = (int32_t)n;
    t->name  = mem_zeroed((size_t)n, sizeof *t->name);
    t->bytes = mem_zeroed((size_t)n, sizeof *t->bytes);
    t->flag  = mem_zeroed((size_t)n, 1);
    if (!t->name || !t->bytes || !t->flag)
        return err_sys("%s: a vocabulary of %lld tokens", t->path, (long long)n);
    TRY(strmap_init(&t->names, n, t->pool, t->name));
    return strmap_init(&t->added_names, t->n_added, t->pool, t->name);
}

int tokenizer_add_name(Tokenizer *t, int64_t id, StrSpan span)
{
    char a[48], b[48];
    if (t->name[id].len > 0) {
        return err_user("%s: id %lld belongs to '%s' and to '%s'", t->path, (long long)id,
                        quote_name(t, a, sizeof a, t->name[id]), quote_name(t, b, sizeof b, span));
    }
    if (span.len == 0) return 0; /* no text becomes this token */
    t->name[id] = span;
    t->flag[id] |= TOKEN_MODEL;
    t->n_token++;
    int32_t had = strmap_add(&t->names, (int32_t)id);
    if (had == id) return 0;
    return err_user("%s: token '%s' has two ids, %d and %lld", t->path, quote_name(t, a, sizeof a, span), had,
                    (long long)id);
}

int tokenizer_add_added(Tokenizer *t, int64_t i, StrSpan span, AddedToken token)
{
    char    a[48], b[48];
    int32_t had = strmap_find(&t->names, t->pool + span.at, span.len);
    if (had >= 0) token.id = had;
    StrSpan *name = &t->name[token.id];
    if (name->len == 0) {
        *name = span;
        t->n_token++;
    } else if (name->len != span.len || memcmp(t->pool + name->at, t->pool + span.at, span.len) != 0) {
        return err_user("%s: id %d belongs to '%s' and to the added token '%s'", t->path, token.id,
                        quote_name(t, a, sizeof a, *name), quote_name(t, b, sizeof b, span));
    }
    token.content = t->pool + span.at;
    token.len     = span.len;
    t->added[i]   = token;
    t->flag[token.id] |= (uint8_t)(TOKEN_ADDED | (token.special ? TOKEN_SPECIAL : 0));
    strmap_add(&t->added_names, token.id);
    return 0;
}

int tokenizer_add_merge(Tokenizer *t, int64_t *cap, int32_t left, int32_t right)
{
    if (t->n_merge == TOKENIZER_MAX_MERGES)
        return err_user("%s: more than %d merges", t->path, TOKENIZER_MAX_MERGES);
    if (t->n_merge == *cap) {
        *cap                 = *cap * 2 + 65536;
        TokenizerMerge *more = realloc(t->merge, (size_t)*cap * sizeof *more);
        if (!more) return err_sys("%s: %lld merges", t->path, (long long)*cap);
        t->merge = more;
    }
    t->merge[t->n_merge++] = (TokenizerMerge){ left, right };
    return 0;
}

/* ---- search tables ---- */

static int add_merges(Tokenizer *t)
{
    char *text = mem_alloc(2 * (size_t)t->longest + 1), quoted[64];
    int   rc   = text ? 0 : err_sys("%s: merges", t->path);
    for (int64_t i = 0; rc == 0 && i < t->n_merge; i++) {
        TokenizerMerge m = t->merge[i];
        StrSpan        l = t->name[m.left], r = t->name[m.right];
        memcpy(text, t->pool + l.at, l.len);
        memcpy(text + l.len, t->pool + r.at, r.len);
        int32_t id = strmap_find(&t->names, text, l.len + r.len);
        if (id < 0) {
            rc = err_user("%s: merge %lld makes '%s', which is no token", t->path, (long long)i,
                          str_quote(quoted, sizeof quoted, text, l.len + r.len));
            break;
        }
        bpe_add_pair(&t->bpe, m.left, m.right, (uint32_t)(t->rank_is_id ? id : i), id);
        if (!t->byte_level && !(t->flag[id] & TOKEN_NOTED)) rc = bpe_note_token(&t->bpe, text, l.len + r.len);
        t->flag[id] |= TOKEN_NOTED;
    }
    free(text);
    return rc;
}

/* Byte tokens that merge, or characters that become "unknown", could join across any place. */
static int may_cut(const Tokenizer *t)
{
    const Bpe *b = &t->bpe;
    if (!b->others) return 0;
    for (int i = 0; i < 256; i++) {
        int has = b->byte_id[i] >= 0 || (i < BPE_ASCII && b->ascii_id[i] >= 0);
        if (!b->byte_fallback || !has) return 0;
    }
    for (int64_t i = 0; i < t->n_merge; i++) {
        for (int k = 0; k < 2; k++) {
            StrSpan s = t->name[k == 0 ? t->merge[i].left : t->merge[i].right];
            if (s.len == 6 && memcmp(t->pool + s.at, "<0x", 3) == 0) return 0;
        }
    }
    return !b->whole;
}

static int build_bpe(Tokenizer *t)
{
    Bpe *b = &t->bpe;
    TRY(bpe_init(b, t->n_merge));
    b->char_level    = !t->byte_level;
    b->whole         = t->whole;
    b->byte_fallback = t->byte_fallback;
    b->fuse_unknown  = t->fuse_unknown;
    b->unknown       = t->unknown;
    b->chars         = &t->names;
    b->pieces        = t->byte_level ? &t->pieces : &t->names;
    for (int i = 0; i < 256; i++) {
        char name[8];
        int  len      = t->byte_level ? utf8_put((unsigned char *)name, utf8_byte_char((unsigned char)i))
                                      : snprintf(name, sizeof name, "<0x%02X>", i);
        b->byte_id[i] = strmap_find(&t->names, name, (size_t)len);
    }
    for (int i = 0; i < BPE_ASCII; i++) b->ascii_id[i] = strmap_find(&t->names, (char[]){ (char)i }, 1);
    TRY(add_merges(t));
    b->may_cut = !t->byte_level && may_cut(t);
    return 0;
}

static int build_pieces(Tokenizer *t)
{
    if (!t->byte_level || !t->whole) return 0;
    TRY(strmap_init(&t->pieces, t->n_token, t->byte_pool, t->bytes));
    for (int32_t i = 0; i < t->n_id; i++) {
        if ((t->flag[i] & TOKEN_MODEL) && !(t->flag[i] & TOKEN_NO_BYTES)) strmap_add(&t->pieces, i);
    }
    return 0;
}

/* Replaces the text of an added token by its normal form. */
static int normalize_added(const Tokenizer *t, NormalScratch *s, const unsigned char **text, size_t *len)
{
    char quoted[64], why[256];
    str_quote(quoted, sizeof quoted, (const char *)*text, *len);
    regex_begin(s->regex, *len);
    if (normal_run(&t->normal, s, TOKENIZER_MAX_TOKEN, text, len) == 0) return 0;
    if (err_kind() != ERR_USER) return -1;
    str_copy(why, sizeof why, err_get());
    err_clear();
    return err_user("%s: added token '%s': %s", t->path, quoted, why);
}

/* Twice what the file may give them: a node of the search takes 16 bytes, and there may be one for each. */
enum { ADDED_BYTES_MAX = 2 * TOKENIZER_MAX_ADDED * ADDED_LENGTH_MAX };

/* Normalized tokens are found in their own normal form. */
static int build_added(Tokenizer *t)
{
    NormalScratch s    = { .regex = regex_scratch_create() };
    int           rc   = s.regex ? 0 : -1;
    size_t        size = 0;
    added_init(&t->raw_set, t->added);
    added_init(&t->normal_set, t->added);
    /* Special ones first: of two with the same text the first is found. */
    for (int64_t k = 0; rc == 0 && k < 2 * t->n_added; k++) {
        int64_t              i     = k % t->n_added;
        const AddedToken    *token = &t->added[i];
        const unsigned char *text  = (const unsigned char *)token->content;
        size_t               len   = token->len;
        if ((k < t->n_added) != token->special) continue;
        if (token->normalized) rc = normalize_added(t, &s, &text, &len);
        size += len;
        if (rc == 0 && size > ADDED_BYTES_MAX)
            rc = err_user("%s: the normalizer makes the added tokens too long", t->path);
        AddedSet *set = token->normalized ? &t->normal_set : &t->raw_set;
        if (rc == 0) rc = added_insert(set, (int32_t)i, (const char *)text, len);
    }
    normal_scratch_deinit(&s);
    regex_scratch_destroy(s.regex);
    return rc;
}

static int read_parts(Tokenizer *t)
{
    for (int i = 0; i < PART_COUNT; i++) {
        json_error_t why;
        char         shown[128];
        json_t      *j = json_loads(t->part[i], JSON_DECODE_ANY | JSON_ALLOW_NUL, &why);
        if (!j)
            return err_user("%s: %s: %s", t->path, tokenizer_part_name[i],
                            str_quote(shown, sizeof shown, why.text, strlen(why.text)));
        int rc = parts_read(t, (TokenizerPart)i, j);
        json_decref(j);
        TRY(rc);
    }
    return 0;
}

/* The first added token that exists, among those that well-known models use. A token of the vocabulary alone
 * may be made of merges: Qwen 3 has "<s>" among those, which begins no text. */
static int32_t guess(const Tokenizer *t, const char *const *name, int n)
{
    for (int k = 0; k < n; k++) {
        int32_t id = strmap_find(&t->added_names, name[k], strlen(name[k]));
        if (id >= 0) return id;
    }
    return -1;
}

static void guess_ends(Tokenizer *t)
{
    static const char *const bos[] = { "<|begin_of_text|>", "<s>", "<bos>", "<｜begin▁of▁sentence｜>" };
    static const char *const eos[] = { "<|end_of_text|>", "</s>", "<eos>", "<｜end▁of▁sentence｜>",
                                       "<|endoftext|>" };
    if (t->bos < 0) t->bos = t->n_before > 0 ? t->before[0] : guess(t, bos, ARRAY_LEN(bos));
    if (t->eos < 0) t->eos = t->n_after > 0 ? t->after[t->n_after - 1] : guess(t, eos, ARRAY_LEN(eos));
}

int tokenizer_finish(Tokenizer *t)
{
    for (int32_t i = 0; i < t->n_id; i++) t->longest = MAX(t->longest, (int64_t)t->name[i].len);
    TRY(read_parts(t));
    TRY(decode_build(t));
    TRY(build_pieces(t));
    TRY(build_bpe(t));
    TRY(build_added(t));
    guess_ends(t);
    return 0;
}
