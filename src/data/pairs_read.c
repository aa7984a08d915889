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

enum {
    MOST_BYTES  = 1 << 30,
    NAMED       = 3, /* broken lines that are named */
    TOKEN_BYTES = 8  /* of one token, generously */
};

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

typedef enum { TOKENS_FIRST, TOKENS_LAST, TOKENS_LAST_FRAMED } Keep;

/* Adds at most `most` tokens of n bytes of text. What begins a text (BOS) is kept if anything is. Returns how
 * many were added; *n_cut counts texts that had more. */
static int add_tokens(PairReading *p, const char *text, int64_t n, int64_t most, Keep keep, int64_t *n_cut)
{
    PairList      *l     = p->list;
    PairText      *t     = &p->text;
    const int32_t *ids   = NULL;
    int64_t        count = n, frame = 0;
    if (t->tokenizer) count = pair_text_encode(t, text, (size_t)n, keep == TOKENS_LAST_FRAMED, &ids);
    if (count < 0) return -1;
    if (t->tokenizer && keep == TOKENS_LAST_FRAMED) frame = MIN(pair_text_frame(t), most);
    int64_t kept = MIN(count, most), skip = keep == TOKENS_FIRST ? 0 : count - kept;
    TRY(grow((void **)&l->tokens, &l->cap_token, l->n_token, kept + 1, sizeof *l->tokens));
    for (int64_t i = 0; i < kept; i++) {
        int64_t from            = i < frame ? i : skip + i;
        l->tokens[l->n_token++] = ids ? ids[from] : (unsigned char)text[from];
    }
    *n_cut += count > most;
    return (int)kept;
}

typedef struct {
    const char *prompt, *anchor, *answer;
    int64_t     n_prompt, n_anchor, n_answer;
    int         ends; /* 1: the answer has an end token, where there is room */
} Texts;

/* 1: the prompt, the anchor or the answer is too short. */
static int add_pair(PairReading *p, const Texts *x)
{
    PairList        *l      = p->list;
    const PairShape *s      = p->shape;
    int64_t          cut    = str_char_begin(x->prompt, MAX(x->n_prompt - s->S, 0), x->n_prompt);
    int64_t          n_byte = x->n_prompt - cut, ignored = 0;
    if (n_byte == 0) return 1;
    TRY(grow((void **)&l->pair, &l->cap, l->n, 1, sizeof *l->pair));
    Pair pair = { .bytes_at = l->n_byte, .tokens_at = l->n_token, .n_byte = (int32_t)n_byte };
    TRY(grow((void **)&l->bytes, &l->cap_byte, l->n_byte, n_byte, 1));
    memcpy(l->bytes + l->n_byte, x->prompt + cut, (size_t)n_byte);
    int n = add_tokens(p, x->prompt + cut, n_byte, s->P, TOKENS_LAST_FRAMED, &l->n_cut_prompt);
    if (n < 0) return -1;
    pair.n_prompt = n;
    TRY(n = add_tokens(p, x->anchor, x->n_anchor, s->A, TOKENS_LAST, &ignored));
    if (n < s->A) {
        l->n_token = pair.tokens_at;
        return 1;
    }
    TRY(n = add_tokens(p, x->answer, x->n_answer, s->L, TOKENS_FIRST, &l->n_cut_answer));
    if (x->ends && p->text.end >= 0 && n < s->L) {
        l->tokens[l->n_token++] = p->text.end;
        n++;
    }
    pair.n_answer = n;
    if (n == 0 && x->answer) {
        l->n_token = pair.tokens_at;
        return 1;
    }
    l->n_cut_bytes += cut > 0;
    l->n_byte += n_byte;
    l->pair[l->n++] = pair;
    return 0;
}

/* A prompt, the recipe's anchor, and the answer; answer NULL: there is none. */
static Texts asked(const Recipe *r, const char *prompt, int64_t n_prompt, const json_t *answer)
{
    return (Texts){ .prompt   = prompt,
                    .n_prompt = n_prompt,
                    .anchor   = r->latent.anchor,
                    .n_anchor = (int64_t)strlen(r->latent.anchor),
                    .answer   = json_string_value(answer),
                    .n_answer = (int64_t)json_string_length(answer),
                    .ends     = answer != NULL };
}

/* Bytes of the last A tokens of a text: the anchor, where a text is continued. All n: there are no more. */
static int64_t anchor_bytes(PairReading *p, const char *text, int64_t n)
{
    enum { BEFORE = 32 /* bytes that the tokens before the anchor may have */ };
    PairText      *t = &p->text;
    const int32_t *ids;
    const char    *said;
    int64_t        A = p->shape->A;
    if (!t->tokenizer) return MIN(A, n);
    int64_t from  = str_char_begin(text, MAX(n - A * TOKEN_BYTES - BEFORE, 0), n);
    int64_t count = pair_text_encode(t, text + from, (size_t)(n - from), 0, &ids);
    if (count < 0) return -1;
    if (count <= A) return n - from;
    int64_t len = tokenizer_decode(t->tokenizer, t->scratch, ids + count - A, A, 0, &said);
    return MIN(len, n);
}

/* As cut_text() does: what is said of a prompt is what was trained on. */
int pair_list_prompt(PairList *l, const Recipe *r, const PairShape *s, const char *prompt)
{
    PairReading p = { .list = l, .recipe = r, .shape = s };
    int64_t     n = (int64_t)strlen(prompt);
    TRY(pair_text_open(&p.text, r));
    Texts x = asked(r, prompt, n, NULL);
    if (r->latent.pairs == PAIRS_TEXT) {
        x.n_anchor = anchor_bytes(&p, prompt, n);
        x.n_prompt = n - x.n_anchor;
        x.anchor   = prompt + x.n_prompt;
    }
    int rc = x.n_anchor < 0 ? -1 : add_pair(&p, &x);
    pair_text_close(&p.text);
    return rc > 0 ? err_user("command line: --prompt: is too short") : rc;
}

/* ---- JSON ---------------------------------------------------------------------------------------------- */

static void name_broken(PairReading *p, int64_t line, const char *why)
{
    if (p->list->n_skipped++ < NAMED && !p->quiet)
        log_warn("%s:%lld: skipped: %s", p->name, (long long)line, why);
}

static int add_line(PairReading *p, int64_t line, const char *text, size_t n)
{
    const RecipeLatent *latent = &p->recipe->latent;
    json_error_t        err;
    json_t             *o = json_loadb(text, n, 0, &err);
    char                why[300], shown[160];
    int                 rc     = 0;
    json_t             *prompt = json_object_get(o, latent->prompt_field);
    json_t             *answer = json_object_get(o, latent->answer_field);
    if (!o) {
        snprintf(why, sizeof why, "%s (column %d)",
                 str_quote(shown, sizeof shown, err.text, strlen(err.text)), err.column);
        name_broken(p, line, why);
    } else if (!json_is_string(prompt) || !json_is_string(answer)) {
        snprintf(why, sizeof why, "no text named %.100s",
                 json_is_string(prompt) ? latent->answer_field : latent->prompt_field);
        name_broken(p, line, why);
    } else {
        Texts x = asked(p->recipe, json_string_value(prompt), (int64_t)json_string_length(prompt), answer);
        rc      = add_pair(p, &x);
        if (rc > 0) name_broken(p, line, "prompt or answer is empty");
    }
    json_decref(o);
    return rc < 0 ? -1 : 0;
}

static int parse_jsonl(PairReading *p, const char *text, size_t n)
{
    int64_t line = 1;
    for (size_t at = 0; at < n; line++) {
        const char *end = memchr(text + at, '\n', n - at);
        size_t      len = end ? (size_t)(end - text) - at : n - at;
        while (len > 0 && (text[at + len - 1] == '\r' || text[at + len - 1] == ' ')) len--;
        if (len > 0) TRY(add_line(p, line, text + at, len));
        at = end ? (size_t)(end - text) + 1 : n;
    }
    return 0;
}

/* Where character number k of n bytes begins; k counts from 0. */
static int64_t char_at(const char *text, int64_t n, int64_t k)
{
    int64_t at = 0;
    for (; k > 0 && at < n; k--) at = str_char_begin(text, at + 1, n);
    return at;
}

/* Adds the answers beside the first, each once, to the last pair. */
static int add_others(PairReading *p, json_t *answers)
{
    PairList *l    = p->list;
    Pair     *pair = &l->pair[l->n - 1];
    int64_t   n_token, ignored = 0;
    for (size_t i = 1; i < json_array_size(answers); i++) {
        json_t *text = json_object_get(json_array_get(answers, i), "text");
        size_t  k    = 0;
        while (k < i && !json_equal(text, json_object_get(json_array_get(answers, k), "text"))) k++;
        if (k < i || !json_is_string(text) || pair->n_other + p->shape->L + 1 > p->shape->G) continue;
        TRY(n_token = add_tokens(p, json_string_value(text), (int64_t)json_string_length(text), p->shape->L,
                                 TOKENS_FIRST, &ignored));
        l->tokens[l->n_token++] = -1;
        pair->n_other += (int32_t)n_token + 1;
    }
    return 0;
}

/* Context, cut around the answer, and question. answer_start counts characters. */
static int add_question(PairReading *p, json_t *context, json_t *qa)
{
    json_t     *question = json_object_get(qa, "question"), *answers = json_object_get(qa, "answers");
    json_t     *answer = json_array_get(answers, 0);
    json_t     *text = json_object_get(answer, "text"), *start = json_object_get(answer, "answer_start");
    const char *body = json_string_value(context), *q = json_string_value(question);
    if (!body || !q || !json_is_string(text)) {
        p->list->n_skipped++; /* SQuAD 2.0 has questions without answers */
        return 0;
    }
    int64_t n     = (int64_t)json_string_length(context);
    int64_t room  = p->shape->S - (int64_t)json_string_length(question) - 2;
    int64_t at    = char_at(body, n, json_integer_value(start)); /* 0 if it is no number */
    int64_t from  = n <= room ? 0 : MIN(MAX(at - room / 2, 0), n - MAX(room, 0));
    char   *joint = mem_alloc((size_t)(n + (int64_t)json_string_length(question) + 3));
    if (!joint) return err_sys("memory for a question");
    from      = str_char_begin(body, from, n);
    int64_t m = MAX(MIN(n - from, room), 0);
    m         = str_char_begin(body, from + m, n) - from; /* what is too much goes at the beginning */
    memcpy(joint, body + from, (size_t)m);
    int64_t len = m + sprintf(joint + m, "\n%s\n", q);
    Texts   x   = asked(p->recipe, joint, len, text);
    int     rc  = add_pair(p, &x);
    free(joint);
    if (rc == 0) rc = add_others(p, answers);
    p->list->n_skipped += rc > 0;
    return rc < 0 ? -1 : 0;
}

static int parse_squad(PairReading *p, const char *text, size_t n)
{
    json_error_t err;
    size_t       i, k, m;
    char         shown[160];
    json_t      *o  = json_loadb(text, n, 0, &err), *part, *paragraph, *qa;
    int          rc = 0;
    if (!o)
        return err_user("%s:%d: not JSON: %s", p->name, err.line,
                        str_quote(shown, sizeof shown, err.text, strlen(err.text)));
    json_array_foreach(json_object_get(o, "data"), i, part)
    {
        json_array_foreach(json_object_get(part, "paragraphs"), k, paragraph)
        {
            json_t *context = json_object_get(paragraph, "context");
            json_array_foreach(json_object_get(paragraph, "qas"), m, qa)
            {
                if (rc == 0) rc = add_question(p, context, qa);
            }
        }
    }
    json_decref(o);
    return rc;
}

int pair_list_parse(PairReading *p, const char *text, size_t n)
{
    if (p->recipe->latent.pairs == PAIRS_SQUAD) return parse_squad(p, text, n);
    return parse_jsonl(p, text, n);
}

/* ---- texts --------------------------------------------------------------------------------------------- */

/* Bytes of the last pair's answer in a text that goes on for n bytes. */
static int64_t answer_bytes(PairReading *p, int64_t n)
{
    const PairList *l    = p->list;
    const Pair     *pair = &l->pair[l->n - 1];
    const char     *said;
    if (!p->text.tokenizer) return pair->n_answer;
    int64_t len = tokenizer_decode(p->text.tokenizer, p->text.scratch,
                                   l->tokens + l->n_token - pair->n_answer, pair->n_answer, 0, &said);
    return len < 0 ? -1 : MIN(MAX(len, 1), n);
}

/* Continuations tile the text. A context has latent.least_bytes to encoder.bytes bytes, drawn by its place.
 * The anchor stands between, so a pair has no hole. */
static int cut_text(PairReading *p, const char *text, int64_t n)
{
    enum { SITE_CONTEXT = 0x7f000020 };
    const Recipe    *r     = p->recipe;
    const PairShape *s     = p->shape;
    int64_t          per   = p->text.tokenizer ? TOKEN_BYTES : 1, step;
    int64_t          least = r->latent.least_bytes, span = s->S - least + 1;
    for (int64_t at = s->S + s->A * per; at + s->L * per <= n; at += step) {
        int64_t n_context = least + (int64_t)(rng_draw((uint64_t)r->seed, SITE_CONTEXT, 0, at, 0) % span);
        at                = str_char_begin(text, at, n);
        int64_t n_anchor  = anchor_bytes(p, text, at);
        if (n_anchor < 0) return -1;
        int64_t begin = str_char_begin(text, MAX(at - n_anchor - n_context, 0), at - n_anchor);
        Texts   x     = { .prompt   = text + begin,
                          .n_prompt = at - n_anchor - begin,
                          .anchor   = text + at - n_anchor,
                          .n_anchor = n_anchor,
                          .answer   = text + at,
                          .n_answer = MIN(s->L * per, n - at) };
        int     rc    = add_pair(p, &x);
        step          = rc == 0 ? answer_bytes(p, n - at) : per; /* an anchor that is cut otherwise alone */
        if (rc < 0 || step < 0) return -1;
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

/* What was read and not used. A text is always cut. */
static void say_losses(const PairReading *p)
{
    const PairList  *l = p->list;
    const PairShape *s = p->shape;
    if (l->n_skipped > 0)
        log_warn("%s: %lld line%s or question%s skipped", p->name, (long long)l->n_skipped,
                 str_plural(l->n_skipped), str_plural(l->n_skipped));
    if (p->recipe->latent.pairs == PAIRS_TEXT) return;
    if (l->n_cut_bytes > 0 && p->recipe->latent.pairs == PAIRS_JSONL)
        log_info("%s: %lld of %lld prompts cut to encoder.bytes (%lld)", p->name, (long long)l->n_cut_bytes,
                 (long long)l->n, (long long)s->S);
    if (l->n_cut_prompt > 0)
        log_info("%s: %lld of %lld prompts cut to latent.prompt (%lld tokens) for the language model",
                 p->name, (long long)l->n_cut_prompt, (long long)l->n, (long long)s->P);
    if (l->n_cut_answer > 0)
        log_info("%s: %lld of %lld answers cut to latent.answer (%lld tokens)", p->name,
                 (long long)l->n_cut_answer, (long long)l->n, (long long)s->L);
}

/* 1: the file is data.val, all of which is validation data. */
static int is_own(const Recipe *r, int validation) { return validation && r->data.val[0] != '\0'; }

int pair_list_has_both(const Recipe *r)
{
    return r->data.val[0] == '\0' && (r->latent.pairs == PAIRS_JSONL || r->latent.pairs == PAIRS_SQUAD);
}

int pair_list_part(const PairList *l, const Recipe *r, int validation, int64_t *from, int64_t *count)
{
    int own = is_own(r, validation);
    *from   = 0;
    *count  = l->n;
    if (pair_list_has_both(r)) take_part(l->n, r->data.val_fraction, validation, from, count);
    if (*count > 0) return 0;
    return recipe_blame(r, own ? "data.val" : "data.train", "%s has no %s of prompt and answer",
                        own ? r->data.val : r->data.train, validation ? "validation pair" : "pair");
}

static int read_text(PairReading *p, int validation, const char *text, int64_t n)
{
    const Recipe *r    = p->recipe;
    int64_t       from = 0, count = n;
    int           own = is_own(r, validation), rc;
    TRY(pair_text_open(&p->text, r));
    p->list->tokenizer = p->text.tokenizer ? tokenizer_hash(p->text.tokenizer) : 0;
    if (r->latent.pairs == PAIRS_TEXT) {
        if (r->data.val[0] == '\0') take_part(n, r->data.val_fraction, validation, &from, &count);
        rc = cut_text(p, text + from, count);
    } else {
        rc = pair_list_parse(p, text, (size_t)n);
        if (rc == 0 && !p->quiet) say_losses(p);
    }
    pair_text_close(&p->text);
    return rc < 0 ? recipe_blame_pending(r, own ? "data.val" : "data.train") : 0;
}

int pair_list_read(PairList *l, const Recipe *r, const PairShape *s, int validation, int quiet)
{
    int         own = is_own(r, validation);
    PairReading p   = { .list = l, .recipe = r, .shape = s, .name = own ? r->data.val : r->data.train };
    /* The training part is read first, from the same file. */
    p.quiet = quiet || (validation && !own);
    char  *text;
    size_t n;
    memset(l, 0, sizeof *l);
    if (r->latent.pairs == PAIRS_RANDOM) return add_noise(l, r, s, validation);
    const char *key = own ? "data.val" : "data.train";
    if (file_kind(p.name) == FILE_NONE) return recipe_blame(r, key, "%s: no such file", p.name);
    if (file_read_all(p.name, MOST_BYTES, &text, &n) < 0) return recipe_blame_pending(r, key);
    l->hash = XXH64(text, n, 0);
    int rc  = read_text(&p, validation, text, (int64_t)n);
    free(text);
    if (rc < 0) pair_list_free(l);
    return rc;
}
