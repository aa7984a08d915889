#include "task/lm_prompt.h"

#include "base/err.h"
#include "base/file.h"
#include "base/log.h"
#include "base/str.h"

#include <stdlib.h>
#include <string.h>

enum { PROMPT_FILE_BYTES = 64 << 20, MOST_PROMPTS = 1 << 16 };

/* ---- Which language ------------------------------------------------------------------------------------ */

static int open_tokenizer(Prompts *p, const Recipe *r)
{
    char path[VOCAB_PATH];
    p->speech = SPEAKS_IDS;
    if (r->data.kind == DATA_TEXT || (r->data.kind == DATA_RANDOM && r->model.vocab == 256))
        p->speech = SPEAKS_BYTES;
    if (!vocab_path(r, path)) return 0;
    if (tokenizer_open(&p->tokenizer, path) < 0) return recipe_blame_pending(r, "data.tokenizer");
    p->speech  = SPEAKS_TOKENS;
    p->scratch = tokenizer_scratch_create(p->tokenizer);
    return p->scratch ? 0 : -1;
}

static int read_ends(Prompts *p, const Recipe *r)
{
    p->n_eos = vocab_ends(r, p->tokenizer, p->eos);
    return p->n_eos < 0 ? -1 : 0;
}

int prompts_is_end(const Prompts *p, int32_t id)
{
    for (int i = 0; i < p->n_eos; i++) {
        if (p->eos[i] == id) return 1;
    }
    return 0;
}

static int read_stops(Prompts *p, const char *list)
{
    while (list && *list) {
        size_t n    = strcspn(list, "|");
        char  *text = arena_printf(&p->arena, "%.*s", (int)n, list);
        if (p->n_stop == ARRAY_LEN(p->stop)) return err_user("command line: --stop: more than 16 texts");
        if (str_unescape(text, n + 1, text) < 0)
            return err_user("command line: --stop: '%.64s' has an escape other than \\n \\t \\r \\\\", text);
        if (n > 0) p->stop[p->n_stop++] = text;
        list += n + (list[n] == '|');
    }
    if (p->n_stop > 0 && p->speech == SPEAKS_IDS)
        return err_user("command line: --stop: this model has no tokenizer, so it writes no text");
    return 0;
}

/* ---- Prompts ------------------------------------------------------------------------------------------- */

static int add(Prompts *p, const int32_t *id, int64_t n)
{
    if (p->n_prompt == MOST_PROMPTS) return err_user("command line: more than %d prompts", MOST_PROMPTS);
    int k    = p->n_prompt++;
    p->n[k]  = n;
    p->id[k] = ARENA_ARRAY(&p->arena, int32_t, n + 1);
    memcpy(p->id[k], id, sizeof *id * (size_t)n);
    p->longest = MAX(p->longest, n);
    return 0;
}

/* Ids in text. A prompt has spaces between them, --prompt-ids may have commas. */
static int add_ids(Prompts *p, const char *flag, const char *text, int64_t vocab)
{
    int         typed = strcmp(flag, "--prompt-ids") == 0;
    int32_t    *id    = malloc(sizeof *id * (strlen(text) / 2 + 1));
    const char *bad = "", *between = typed ? " ,\t\r\n" : " ";
    char        shown[64];
    if (!id) return err_sys("memory for a prompt");
    int64_t n  = str_parse_ids(text, strlen(text), between, vocab, id, &bad);
    int     rc = n > 0 ? add(p, id, n) : -1;
    free(id);
    if (n == 0) return err_user("command line: %s: needs at least one token id", flag);
    if (n > 0) return rc;
    str_quote(shown, sizeof shown, bad, strcspn(bad, between));
    if (typed)
        return err_user("command line: %s: '%s' is not a token id from 0 to %lld", flag, shown,
                        (long long)vocab - 1);
    return err_user("command line: %s: '%s' is not a token id: this model was not trained on text, its "
                    "prompt is numbers from 0 to %lld, separated by spaces",
                    flag, shown, (long long)vocab - 1);
}

static int add_text(Prompts *p, const char *flag, const char *text, size_t len, int64_t vocab)
{
    if (p->speech == SPEAKS_IDS) return add_ids(p, flag, text, vocab);
    if (len == 0) return err_user("command line: %s: needs at least one character", flag);
    if (p->speech == SPEAKS_BYTES) {
        int32_t *id = malloc(sizeof *id * len);
        if (!id) return err_sys("memory for a prompt");
        for (size_t i = 0; i < len; i++) id[i] = (unsigned char)text[i];
        int rc = add(p, id, (int64_t)len);
        free(id);
        return rc;
    }
    const int32_t *id;
    int64_t        n = tokenizer_encode(p->tokenizer, p->scratch, text, len, TOKENIZER_FRAME, &id);
    if (n < 0) return -1;
    for (int64_t i = 0; i < n; i++) {
        if (id[i] >= vocab)
            return err_user("command line: %s: token %d is outside model.vocab, %lld", flag, id[i],
                            (long long)vocab);
    }
    if (n == 0) return err_user("command line: %s: has no token", flag);
    return add(p, id, n);
}

/* One prompt a line, whichever way the lines end. A command reads the file twice. The first time, while
 * r->ask is empty, it only learns the number of prompts. */
static int add_file(Prompts *p, const char *path, const Recipe *r)
{
    char    *text;
    size_t   n, at = 0;
    int      rc = 0, n_empty = 0;
    FileKind kind = file_kind(path);
    if (kind == FILE_NONE) return err_user("command line: --prompt-file: %s: no such file", path);
    if (kind != FILE_REGULAR) return err_user("command line: --prompt-file: %s: is not a regular file", path);
    TRY(file_read_all(path, PROMPT_FILE_BYTES, &text, &n));
    while (at < n && rc == 0) {
        char  *end     = memchr(text + at, '\n', n - at);
        size_t line    = end ? (size_t)(end - text) - at : n - at;
        size_t len     = line > 0 && text[at + line - 1] == '\r' ? line - 1 : line;
        text[at + len] = '\0'; /* the text ends with a zero of its own */
        if (len > 0) rc = add_text(p, "--prompt-file", text + at, len, r->model.vocab);
        n_empty += len == 0;
        at += line + 1;
    }
    free(text);
    if (rc == 0 && p->n_prompt == 0) rc = err_user("command line: --prompt-file: %s has no prompt", path);
    if (rc == 0 && n_empty > 0 && r->ask.batch == 0)
        log_warn("--prompt-file: %s: %d empty line%s left out", path, n_empty,
                 n_empty == 1 ? " is" : "s are");
    return rc;
}

/* The task's own prompt: a line break, the token that begins a text, or one that ends the text before. */
static int add_own(Prompts *p, const Recipe *r)
{
    int32_t id = p->tokenizer ? tokenizer_bos(p->tokenizer) : -1;
    if (p->speech == SPEAKS_BYTES) return add_text(p, "--prompt", "\n", 1, r->model.vocab);
    if (id < 0) id = (int32_t)r->data.document_token;
    if (id < 0) id = p->n_eos > 0 ? p->eos[0] : 0;
    return add(p, &id, 1);
}

static int read_prompts(Prompts *p, const Recipe *r, const TaskSample *opt)
{
    int64_t V = r->model.vocab;
    if (!!opt->prompt + !!opt->prompt_file + !!opt->prompt_ids > 1)
        return err_user("command line: --prompt, --prompt-ids and --prompt-file exclude each other");
    p->n  = ARENA_ARRAY(&p->arena, int64_t, MOST_PROMPTS);
    p->id = ARENA_ARRAY(&p->arena, int32_t *, MOST_PROMPTS);
    if (opt->prompt_ids) return add_ids(p, "--prompt-ids", opt->prompt_ids, V);
    if (opt->prompt_file) return add_file(p, opt->prompt_file, r);
    if (opt->prompt) return add_text(p, "--prompt", opt->prompt, strlen(opt->prompt), V);
    return add_own(p, r);
}

int prompts_open(Prompts *p, const Recipe *r, const TaskSample *opt)
{
    memset(p, 0, sizeof *p);
    arena_init(&p->arena);
    int rc = open_tokenizer(p, r);
    if (rc == 0) rc = read_ends(p, r);
    if (rc == 0) rc = read_stops(p, opt->stop);
    if (rc == 0) rc = read_prompts(p, r, opt);
    if (rc < 0) prompts_close(p);
    return rc;
}

void prompts_close(Prompts *p)
{
    tokenizer_scratch_destroy(p->scratch);
    tokenizer_close(p->tokenizer);
    arena_deinit(&p->arena);
    memset(p, 0, sizeof *p);
}

/* ---- Writing ------------------------------------------------------------------------------------------- */

void speaker_init(Speaker *s, const Prompts *p, FILE *out)
{
    memset(s, 0, sizeof *s);
    s->p   = p;
    s->out = out;
}

/* Bytes at the end of what is held that may begin a stop text. */
static size_t suspicious(const Speaker *s)
{
    size_t most = 0;
    for (int i = 0; i < s->p->n_stop; i++) {
        size_t n = MIN(strlen(s->p->stop[i]) - 1, s->n_held);
        while (n > most && memcmp(s->held + s->n_held - n, s->p->stop[i], n) != 0) n--;
        most = MAX(most, n);
    }
    return most;
}

static int64_t find_text(const char *in, size_t n, const char *text)
{
    size_t len = strlen(text);
    for (size_t i = 0; i + len <= n; i++) {
        if (memcmp(in + i, text, len) == 0) return (int64_t)i;
    }
    return -1;
}

/* Where the first stop text begins; -1: there is none. */
static int64_t find_stop(const Speaker *s)
{
    int64_t at = -1;
    for (int i = 0; i < s->p->n_stop; i++) {
        int64_t hit = find_text(s->held, s->n_held, s->p->stop[i]);
        if (hit >= 0 && (at < 0 || hit < at)) at = hit;
    }
    return at;
}

static int put_text(Speaker *s, const char *text, size_t n, int is_new)
{
    if (!is_new || s->p->n_stop == 0) {
        fwrite(text, 1, n, s->out);
        return 0;
    }
    if (s->n_held + n > s->cap) {
        size_t cap  = 2 * (s->n_held + n) + 64;
        char  *more = realloc(s->held, cap);
        if (!more) return err_sys("memory for text");
        s->held = more;
        s->cap  = cap;
    }
    memcpy(s->held + s->n_held, text, n);
    s->n_held += n;
    int64_t at   = find_stop(s);
    size_t  show = at >= 0 ? (size_t)at : s->n_held - suspicious(s);
    fwrite(s->held, 1, show, s->out);
    memmove(s->held, s->held + show, s->n_held - show);
    s->n_held -= show;
    if (at >= 0) {
        s->stopped = 1;
        s->n_held  = 0;
    }
    return 0;
}

int speaker_put(Speaker *s, int32_t id, int is_new)
{
    const Tokenizer *t   = s->p->tokenizer;
    char             one = (char)id;
    if (s->p->speech == SPEAKS_IDS) return fprintf(s->out, "%d ", id) < 0 ? err_sys("writing") : 0;
    if (s->p->speech == SPEAKS_BYTES) return put_text(s, &one, 1, is_new);
    if (id >= tokenizer_size(t) || tokenizer_is_special(t, id)) return 0;
    char *buf = malloc((size_t)tokenizer_longest(t) + 16);
    if (!buf) return err_sys("memory for text");
    int64_t n  = tokenizer_stream_next(t, &s->stream, id, buf);
    int     rc = n < 0 ? -1 : put_text(s, buf, (size_t)n, is_new);
    free(buf);
    return rc;
}

int speaker_end(Speaker *s)
{
    char buf[16];
    if (s->p->speech == SPEAKS_TOKENS && !s->stopped) {
        int64_t n = tokenizer_stream_end(&s->stream, buf);
        if (n > 0) TRY(put_text(s, buf, (size_t)n, 1));
    }
    if (s->n_held > 0) fwrite(s->held, 1, s->n_held, s->out); /* nothing held: no buffer */
    fputc('\n', s->out);
    free(s->held);
    s->held   = NULL;
    s->n_held = 0;
    return 0;
}
