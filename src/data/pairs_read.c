/* Reading pairs: JSONL, SQuAD's JSON, and texts cut into context and continuation.
 *
 * 1. A line that is no object, or lacks a field, is skipped, counted, and named in a warning. A file without
 *    any pair is refused.
 * 2. A prompt longer than encoder.bytes loses its beginning: the question stands last. A context of SQuAD is
 *    cut around the answer instead.
 * 3. Nothing is read outside the bytes at hand: jansson parses, and lines are found by memchr(). */
#include "data/pairs_impl.h"

#include "base/err.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/str.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { MOST_BYTES = 1 << 30, NAMED = 3 /* broken lines that are named */ };

/* ---- text and tokens ----------------------------------------------------------------------------------- */

int pair_text_open(PairText *t, const Recipe *r)
{
    memset(t, 0, sizeof *t);
    t->end = r->latent.pairs == PAIRS_TEXT || r->latent.pairs == PAIRS_RANDOM ? -1 : '\n';
    if (!r->latent.tokenizer[0]) return 0;
    if (tokenizer_open(&t->tokenizer, r->latent.tokenizer) < 0)
        return recipe_blame_pending(r, "latent.tokenizer");
    if (t->end >= 0) t->end = tokenizer_eos(t->tokenizer);
    t->scratch = tokenizer_scratch_create(t->tokenizer);
    if (t->scratch) return 0;
    pair_text_close(t);
    return -1;
}

void pair_text_close(PairText *t)
{
    tokenizer_scratch_destroy(t->scratch);
    tokenizer_close(t->tokenizer);
    t->scratch   = NULL;
    t->tokenizer = NULL;
}

int64_t pair_text_encode(PairText *t, const char *text, size_t n, int frame, const int32_t **ids)
{
    int flags = TOKENIZER_LITERAL | (frame ? TOKENIZER_FRAME : TOKENIZER_PLAIN);
    CHECK(t->tokenizer, "bytes are tokens already");
    if (frame && tokenizer_facts(t->tokenizer).n_frame_after > 0) flags = TOKENIZER_LITERAL;
    return tokenizer_encode(t->tokenizer, t->scratch, text, n, flags, ids);
}

int pair_text_decode(PairText *t, const int32_t *ids, int64_t n, char *buf, size_t cap)
{
    int64_t     m    = 0;
    const char *text = NULL;
    while (m < n && ids[m] >= 0 && ids[m] != t->end) m++;
    int64_t len = m;
    if (t->tokenizer) len = tokenizer_decode(t->tokenizer, t->scratch, ids, m, TOKENIZER_SKIP, &text);
    if (len < 0) return -1;
    len = MIN(len, (int64_t)cap - 1);
    for (int64_t i = 0; i < len; i++) buf[i] = text ? text[i] : (char)ids[i];
    buf[len] = '\0';
    return 0;
}

/* ---- the list ------------------------------------------------------------------------------------------ */

void pair_list_free(PairList *l)
{
    free(l->pair);
    free(l->bytes);
    free(l->tokens);
    memset(l, 0, sizeof *l);
}

/* Room for `more` items of `size` behind *n of them. */
static int grow(void **items, int64_t *cap, int64_t n, int64_t more, size_t size)
{
    if (n + more <= *cap) return 0;
    int64_t want  = MAX(2 * *cap, n + more + 1024);
    void   *grown = realloc(*items, (size_t)want * size);
    if (!grown) return err_sys("memory for prompts and answers");
    *items = grown;
    *cap   = want;
    return 0;
}

static int add_tokens(PairList *l, PairText *t, const char *text, int64_t n, int frame, int64_t most,
                      int last)
{
    const int32_t *ids   = NULL;
    int64_t        count = n;
    if (t->tokenizer) count = pair_text_encode(t, text, (size_t)n, frame, &ids);
    if (count < 0) return -1;
    int64_t from = last ? MAX(count - most, 0) : 0, kept = MIN(count, most);
    TRY(grow((void **)&l->tokens, &l->cap_token, l->n_token, kept + 1, sizeof *l->tokens));
    for (int64_t i = 0; i < kept; i++)
        l->tokens[l->n_token++] = ids ? ids[from + i] : (unsigned char)text[from + i];
    return (int)kept;
}

typedef struct {
    const char *prompt, *anchor, *answer;
    int64_t     n_prompt, n_anchor, n_answer;
    int         ends; /* 1: the answer has an end token, where there is room */
} Texts;

static int add_pair(PairList *l, const PairShape *s, PairText *t, const Texts *x)
{
    TRY(grow((void **)&l->pair, &l->cap, l->n, 1, sizeof *l->pair));
    int64_t cut = MAX(x->n_prompt - s->S, 0), n_byte = x->n_prompt - cut;
    Pair    pair = { .bytes_at = l->n_byte, .tokens_at = l->n_token, .n_byte = (int32_t)n_byte };
    TRY(grow((void **)&l->bytes, &l->cap_byte, l->n_byte, n_byte, 1));
    memcpy(l->bytes + l->n_byte, x->prompt + cut, (size_t)n_byte);
    int n = add_tokens(l, t, x->prompt + cut, n_byte, 1, s->P, 1);
    if (n < 0) return -1;
    pair.n_prompt = n;
    TRY(n = add_tokens(l, t, x->anchor, x->n_anchor, 0, s->A, 1));
    if (n < s->A) {
        l->n_token = pair.tokens_at;
        return 1; /* too short an anchor */
    }
    TRY(n = add_tokens(l, t, x->answer, x->n_answer, 0, s->L, 0));
    if (x->ends && t->end >= 0 && n < s->L) {
        l->tokens[l->n_token++] = t->end;
        n++;
    }
    pair.n_answer = n;
    if ((n == 0 && x->answer) || n_byte == 0) {
        l->n_token = pair.tokens_at;
        return 1;
    }
    l->n_byte += n_byte;
    l->pair[l->n++] = pair;
    return 0;
}

/* Where a text is continued, its last token is the anchor. */
int pair_list_prompt(PairList *l, const Recipe *r, const PairShape *s, const char *prompt)
{
    PairText t;
    int64_t  n = (int64_t)strlen(prompt), is_text = r->latent.pairs == PAIRS_TEXT;
    TRY(pair_text_open(&t, r));
    Texts x    = { .prompt = prompt, .n_prompt = n, .anchor = r->latent.anchor };
    x.n_anchor = (int64_t)strlen(r->latent.anchor);
    if (is_text) {
        x.n_prompt = MAX(n - s->A, 0);
        x.anchor   = prompt + x.n_prompt;
        x.n_anchor = n - x.n_prompt;
    }
    int rc = add_pair(l, s, &t, &x);
    pair_text_close(&t);
    return rc > 0 ? err_user("command line: --prompt: is too short") : rc;
}

/* ---- JSON ---------------------------------------------------------------------------------------------- */

static void name_broken(PairList *l, const char *name, int64_t line, const char *why)
{
    if (l->n_skipped++ < NAMED) log_warn("%s:%lld: skipped: %s", name, (long long)line, why);
}

static int add_line(PairList *l, const Recipe *r, const PairShape *s, PairText *t, const char *name,
                    int64_t line, const char *text, size_t n)
{
    json_error_t err;
    json_t      *o = json_loadb(text, n, 0, &err);
    char         why[300], shown[160];
    int          rc     = 0;
    json_t      *prompt = json_object_get(o, r->latent.prompt_field);
    json_t      *answer = json_object_get(o, r->latent.answer_field);
    if (!o) {
        snprintf(why, sizeof why, "%s (column %d)",
                 str_quote(shown, sizeof shown, err.text, strlen(err.text)), err.column);
        name_broken(l, name, line, why);
    } else if (!json_is_string(prompt) || !json_is_string(answer)) {
        snprintf(why, sizeof why, "no text named %.100s",
                 json_is_string(prompt) ? r->latent.answer_field : r->latent.prompt_field);
        name_broken(l, name, line, why);
    } else {
        Texts x = { .prompt   = json_string_value(prompt),
                    .n_prompt = (int64_t)json_string_length(prompt),
                    .anchor   = r->latent.anchor,
                    .n_anchor = (int64_t)strlen(r->latent.anchor),
                    .answer   = json_string_value(answer),
                    .n_answer = (int64_t)json_string_length(answer),
                    .ends     = 1 };
        rc      = add_pair(l, s, t, &x);
        if (rc > 0) name_broken(l, name, line, "prompt or answer is empty");
    }
    json_decref(o);
    return rc < 0 ? -1 : 0;
}

static int parse_jsonl(PairList *l, const Recipe *r, const PairShape *s, PairText *t, const char *name,
                       const char *text, size_t n)
{
    int64_t line = 1;
    for (size_t at = 0; at < n; line++) {
        const char *end = memchr(text + at, '\n', n - at);
        size_t      len = end ? (size_t)(end - text) - at : n - at;
        while (len > 0 && (text[at + len - 1] == '\r' || text[at + len - 1] == ' ')) len--;
        if (len > 0) TRY(add_line(l, r, s, t, name, line, text + at, len));
        at = end ? (size_t)(end - text) + 1 : n;
    }
    return 0;
}

/* Context, cut around the answer, and question. */
static int add_question(PairList *l, const Recipe *r, const PairShape *s, PairText *t, json_t *context,
                        json_t *qa)
{
    json_t     *question = json_object_get(qa, "question");
    json_t     *answer   = json_array_get(json_object_get(qa, "answers"), 0);
    json_t     *text = json_object_get(answer, "text"), *start = json_object_get(answer, "answer_start");
    const char *body = json_string_value(context), *q = json_string_value(question);
    if (!body || !q || !json_is_string(text)) {
        l->n_skipped++; /* SQuAD 2.0 has questions without answers */
        return 0;
    }
    int64_t n = (int64_t)json_string_length(context), room = s->S - (int64_t)json_string_length(question) - 2;
    int64_t at    = MIN(MAX((int64_t)json_integer_value(start), 0), n); /* 0 if it is no number */
    int64_t from  = n <= room ? 0 : MIN(MAX(at - room / 2, 0), n - MAX(room, 0));
    char   *joint = mem_alloc((size_t)(n + (int64_t)json_string_length(question) + 3));
    if (!joint) return err_sys("memory for a question");
    int64_t m = MAX(MIN(n - from, room), 0);
    memcpy(joint, body + from, (size_t)m);
    int64_t len = m + sprintf(joint + m, "\n%s\n", q);
    Texts   x   = { .prompt   = joint,
                    .n_prompt = len,
                    .anchor   = r->latent.anchor,
                    .n_anchor = (int64_t)strlen(r->latent.anchor),
                    .answer   = json_string_value(text),
                    .n_answer = (int64_t)json_string_length(text),
                    .ends     = 1 };
    int     rc  = add_pair(l, s, t, &x);
    free(joint);
    l->n_skipped += rc > 0;
    return rc < 0 ? -1 : 0;
}

static int parse_squad(PairList *l, const Recipe *r, const PairShape *s, PairText *t, const char *name,
                       const char *text, size_t n)
{
    json_error_t err;
    size_t       i, k, m;
    char         shown[160];
    json_t      *o  = json_loadb(text, n, 0, &err), *part, *paragraph, *qa;
    int          rc = 0;
    if (!o)
        return err_user("%s:%d: not JSON: %s", name, err.line,
                        str_quote(shown, sizeof shown, err.text, strlen(err.text)));
    json_array_foreach(json_object_get(o, "data"), i, part)
    {
        json_array_foreach(json_object_get(part, "paragraphs"), k, paragraph)
        {
            json_t *context = json_object_get(paragraph, "context");
            json_array_foreach(json_object_get(paragraph, "qas"), m, qa)
            {
                if (rc == 0) rc = add_question(l, r, s, t, context, qa);
            }
        }
    }
    json_decref(o);
    return rc;
}

int pair_list_parse(PairList *l, const Recipe *r, const PairShape *s, PairText *t, const char *name,
                    const char *text, size_t n)
{
    if (r->latent.pairs == PAIRS_SQUAD) return parse_squad(l, r, s, t, name, text, n);
    return parse_jsonl(l, r, s, t, name, text, n);
}

/* ---- texts --------------------------------------------------------------------------------------------- */

/* Continuations tile the text. A context has latent.least_bytes to encoder.bytes bytes, drawn by its
 * place. */
static int cut_text(PairList *l, const Recipe *r, const PairShape *s, PairText *t, const char *text,
                    int64_t n)
{
    enum { SITE_CONTEXT = 0x7f000020, TOKEN_BYTES = 8 /* of one token, generously */ };
    int64_t per = t->tokenizer ? TOKEN_BYTES : 1, step = t->tokenizer ? 3 * s->L : s->L;
    int64_t least = r->latent.least_bytes, span = s->S - least + 1;
    for (int64_t at = s->S + s->A * per; at + s->L * per <= n; at += step) {
        int64_t n_context = least + (int64_t)(rng_draw((uint64_t)r->seed, SITE_CONTEXT, 0, at, 0) % span);
        int64_t n_anchor  = s->A * per;
        Texts   x         = { .prompt   = text + at - n_anchor - n_context,
                              .n_prompt = n_context,
                              .anchor   = text + at - n_anchor,
                              .n_anchor = n_anchor,
                              .answer   = text + at,
                              .n_answer = s->L * per };
        TRY(add_pair(l, s, t, &x));
    }
    return 0;
}

/* ---- noise --------------------------------------------------------------------------------------------- */

/* Prompts of P tokens have S bytes; shorter ones in proportion. */
static int add_noise(PairList *l, const Recipe *r, const PairShape *s, int validation)
{
    enum { SITE_NOISE = 0x7f000021, PAIRS = 4096, WORDS = 4 };
    uint64_t seed  = (uint64_t)r->seed + (validation ? 1 : 0);
    int64_t  least = r->latent.least_bytes, span = s->S - least + 1;
    TRY(grow((void **)&l->pair, &l->cap, 0, PAIRS, sizeof *l->pair));
    TRY(grow((void **)&l->bytes, &l->cap_byte, 0, s->S + PAIRS, 1));
    TRY(grow((void **)&l->tokens, &l->cap_token, 0, s->P + s->A + s->L + PAIRS, sizeof *l->tokens));
    for (int64_t i = 0; i < s->S + PAIRS; i++)
        l->bytes[i] = (char)rng_draw(seed, SITE_NOISE, 1, i / WORDS, i % WORDS);
    for (int64_t i = 0; i < s->P + s->A + s->L + PAIRS; i++)
        l->tokens[i] =
            (int32_t)(rng_draw(seed, SITE_NOISE, 2, i / WORDS, i % WORDS) % (uint32_t)r->model.vocab);
    for (int64_t i = 0; i < PAIRS; i++) {
        int64_t n        = least + (int64_t)(rng_draw(seed, SITE_NOISE, 0, i, 0) % (uint64_t)span);
        int64_t n_prompt = MIN(MAX(n * s->P / s->S, 1), s->P);
        l->pair[l->n++]  = (Pair){ .bytes_at  = i,
                                   .tokens_at = i,
                                   .n_byte    = (int32_t)n,
                                   .n_prompt  = (int32_t)n_prompt,
                                   .n_answer  = (int32_t)s->L };
    }
    return 0;
}

/* ---- files --------------------------------------------------------------------------------------------- */

/* The first or the last part of n, at the border that val_fraction makes. */
static void take_part(int64_t n, double fraction, int validation, int64_t *from, int64_t *count)
{
    int64_t border = n - (int64_t)((double)n * fraction);
    *from          = validation ? border : 0;
    *count         = validation ? n - border : border;
}

static int read_text(PairList *l, const Recipe *r, const PairShape *s, int validation, int own,
                     const char *text, int64_t n)
{
    PairText t;
    int64_t  from = 0, count = n;
    int      rc;
    TRY(pair_text_open(&t, r));
    const char *name = own ? r->data.val : r->data.train;
    if (!own && r->data.val[0] == '\0') take_part(n, r->data.val_fraction, validation, &from, &count);
    if (r->latent.pairs == PAIRS_TEXT) {
        rc = cut_text(l, r, s, &t, text + from, count);
    } else {
        rc = pair_list_parse(l, r, s, &t, name, text, (size_t)n);
        if (!own && r->data.val[0] == '\0') {
            take_part(l->n, r->data.val_fraction, validation, &from, &count);
            if (count > 0) memmove(l->pair, l->pair + from, sizeof *l->pair * (size_t)count);
            l->n = count;
        }
    }
    pair_text_close(&t);
    if (rc < 0) return recipe_blame_pending(r, own ? "data.val" : "data.train");
    if (l->n_skipped > 0 && !validation)
        log_warn("%s: %lld line%s or question%s skipped", name, (long long)l->n_skipped,
                 str_plural(l->n_skipped), str_plural(l->n_skipped));
    if (l->n == 0)
        return recipe_blame(r, own ? "data.val" : "data.train", "%s has no %s of prompt and answer", name,
                            validation ? "validation pair" : "pair");
    return 0;
}

int pair_list_read(PairList *l, const Recipe *r, const PairShape *s, int validation)
{
    int    own = validation && r->data.val[0] != '\0';
    char  *text;
    size_t n;
    memset(l, 0, sizeof *l);
    if (r->latent.pairs == PAIRS_RANDOM) return add_noise(l, r, s, validation);
    if (file_read_all(own ? r->data.val : r->data.train, MOST_BYTES, &text, &n) < 0)
        return recipe_blame_pending(r, own ? "data.val" : "data.train");
    l->hash = XXH64(text, n, 0);
    int rc  = read_text(l, r, s, validation, own, text, (int64_t)n);
    free(text);
    if (rc < 0) pair_list_free(l);
    return rc;
}
