#define _GNU_SOURCE           /* memmem, CLOCK_THREAD_CPUTIME_ID */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/regex.h"

#include "base/err.h"
#include "base/mem.h"
#include "base/str.h"
#include "text/unicode.h"

#include <pcre2.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PATTERN_MOST = 16384, JIT_STACK_MOST = 8 << 20, CLOCK_EVERY = 64, NEST_MOST = 50 };

/* Of one search, in PCRE2's unit (roughly a step back). A class that repeats over a whole text costs one step
 * for each character, so the limit follows the length of the text. */
enum { STEPS_BASE = 10000000, STEPS_PER_BYTE = 4 };

/* CPU time of one text: real patterns do ten to a hundred times better. */
static const double time_base_s = 2, time_per_byte_s = 1e-6;

struct Regex {
    pcre2_code *plain, *patched; /* patched NULL: the same */
};

struct RegexScratch {
    pcre2_match_data    *data;
    pcre2_match_context *context;
    pcre2_jit_stack     *stack;
    double               end_s;
    int                  n_call;
};

/* ---- translation ---- */

#define WHITE_SPACE                                                                                          \
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{" \
    "3000}"

typedef struct {
    const char *p;
    size_t      n, at;
    char       *out;
    size_t      cap, len;
    int         patched, in_class;
} Rewrite;

__attribute__((format(printf, 2, 3))) static int emit(Rewrite *w, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(w->out + w->len, w->cap - w->len, fmt, ap);
    va_end(ap);
    if (n < 0 || (size_t)n >= w->cap - w->len) return -1;
    w->len += (size_t)n;
    return 0;
}

/* A class as such or, outside brackets, in brackets of its own. */
static int put_class(Rewrite *w, const char *members, const char *more, int negated)
{
    if (w->in_class) return emit(w, "%s%s", members, more);
    return emit(w, "[%s%s%s]", negated ? "^" : "", members, more);
}

/* \p{Name}, \P{Name}, \p{^Name} at w->at. Scripts mean the script itself, not its extensions. */
static int rewrite_property(Rewrite *w)
{
    char        name[48], members[64], more[4096];
    const char *p = w->p + w->at, *close = memchr(p, '}', w->n - w->at);
    int         negated = p[1] == 'P';
    if (w->n - w->at < 5 || p[2] != '{' || !close || close - p - 3 >= (long)sizeof name) return -1;
    size_t len = (size_t)(close - p - 3);
    memcpy(name, p + 3, len);
    name[len]        = '\0';
    const char *bare = name[0] == '^' ? name + 1 : name;
    negated ^= name[0] == '^';
    w->at += len + 4;
    snprintf(members, sizeof members, "\\%c{%s%s}", negated && w->in_class ? 'P' : 'p',
             strlen(bare) > 2 && !strchr(bare, ':') ? "sc:" : "", bare);
    more[0] = '\0';
    if (w->patched && strlen(bare) <= 2 && unicode_class(bare, more, sizeof more) < 0) return -1;
    if (negated && w->in_class) more[0] = '\0';
    if (!w->patched && !w->in_class) return emit(w, "\\%c%s", negated ? 'P' : 'p', members + 2);
    return put_class(w, members, more, negated);
}

static int rewrite_escape(Rewrite *w)
{
    char c = w->at + 1 < w->n ? w->p[w->at + 1] : '\0', two[3] = { '\\', c, '\0' }, more[2048];
    if (c == '\0') return -1;
    if (c == 'p' || c == 'P') return rewrite_property(w);
    w->at += 2;
    if (c == 'h' || c == 'H') return put_class(w, "0-9a-fA-F", "", c == 'H');
    if (!w->patched || (w->in_class && (c == 'S' || c == 'D'))) return emit(w, "%s", two);
    if (c == 's' || c == 'S') return put_class(w, WHITE_SPACE, "", c == 'S');
    if (c == 'd' || c == 'D') {
        if (unicode_class("Nd", more, sizeof more) < 0) return -1;
        return put_class(w, "\\p{Nd}", more, c == 'D');
    }
    return emit(w, "%s", two);
}

static int rewrite_one(Rewrite *w)
{
    const char *p    = w->p + w->at;
    size_t      left = w->n - w->at;
    if (*p == '\\') return rewrite_escape(w);
    if (w->in_class && *p == '[' && !(left > 1 && p[1] == ':')) return -1; /* a class within a class */
    if (w->in_class && left > 1 && p[0] == '&' && p[1] == '&') return -1;
    if (w->in_class && left > 1 && p[0] == '[' && p[1] == ':') {
        const char *close = memmem(p, left, ":]", 2);
        if (!close) return -1;
        size_t len = (size_t)(close + 2 - p);
        w->at += len;
        return emit(w, "%.*s", (int)len, p);
    }
    if (!w->in_class && *p == '[') {
        /* A bracket right behind the opening one is a member. */
        size_t len = 1 + (left > 1 && p[1] == '^');
        len += left > len && p[len] == ']';
        w->in_class = 1;
        w->at += len;
        return emit(w, "%.*s", (int)len, p);
    }
    if (w->in_class && *p == ']') w->in_class = 0;
    w->at++;
    return emit(w, "%c", *p);
}

/* malloc'ed; NULL: something in it is not known here. */
static char *rewrite(const char *pattern, size_t n, int patched)
{
    Rewrite w = { .p = pattern, .n = n, .cap = 1 << 18, .patched = patched };
    w.out     = mem_zeroed(1, w.cap);
    while (w.out && w.at < n) {
        if (rewrite_one(&w) < 0) {
            free(w.out);
            return NULL;
        }
    }
    return w.out;
}

/* ---- compiling ---- */

static pcre2_code *compile(const char *where, const char *pattern, size_t n, int literal)
{
    int                    code = 0;
    size_t                 at   = 0;
    pcre2_compile_context *c    = pcre2_compile_context_create(NULL);
    if (!c) {
        err_sys("%s: a regular expression", where);
        return NULL;
    }
    pcre2_set_newline(c, PCRE2_NEWLINE_LF);
    pcre2_set_parens_nest_limit(c, NEST_MOST);
    uint32_t    flags = literal ? PCRE2_LITERAL | PCRE2_UTF
                                : PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
    pcre2_code *re    = pcre2_compile((PCRE2_SPTR)pattern, n, flags, &code, &at, c);
    pcre2_compile_context_free(c);
    if (!re) {
        char why[160], quoted[64];
        pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
        err_user("%s: pattern '%s': %s", where, str_quote(quoted, sizeof quoted, pattern, n), why);
        return NULL;
    }
    pcre2_jit_compile(re, PCRE2_JIT_COMPLETE); /* where it is refused, matching is slower and the same */
    return re;
}

static pcre2_code *compile_rewritten(const char *where, const char *pattern, size_t n, int patched)
{
    char       *text = rewrite(pattern, n, patched);
    char        quoted[64];
    pcre2_code *re = text ? compile(where, text, strlen(text), 0) : NULL;
    if (!text) {
        err_user("%s: pattern '%s' has classes within classes, or more than Brim reads", where,
                 str_quote(quoted, sizeof quoted, pattern, n));
    }
    free(text);
    return re;
}

Regex *regex_compile(const char *where, const char *pattern, size_t n, int literal)
{
    if (n == 0 || n > PATTERN_MOST || memchr(pattern, '\0', n)) {
        err_user("%s: a pattern of %zu bytes (1 to %d, without zeros)", where, n, PATTERN_MOST);
        return NULL;
    }
    Regex *r = mem_zeroed(1, sizeof *r);
    if (!r) {
        err_sys("%s: a regular expression", where);
        return NULL;
    }
    r->plain = literal ? compile(where, pattern, n, 1) : compile_rewritten(where, pattern, n, 0);
    if (r->plain && !literal) r->patched = compile_rewritten(where, pattern, n, 1);
    if (!r->plain || (!literal && !r->patched)) {
        regex_destroy(r);
        return NULL;
    }
    return r;
}

void regex_destroy(Regex *r)
{
    if (!r) return;
    pcre2_code_free(r->plain);
    pcre2_code_free(r->patched);
    free(r);
}

/* ---- matching ---- */

RegexScratch *regex_scratch_create(void)
{
    RegexScratch *s = mem_zeroed(1, sizeof *s);
    if (s) {
        s->data    = pcre2_match_data_create(1, NULL);
        s->context = pcre2_match_context_create(NULL);
        s->stack   = pcre2_jit_stack_create(64 << 10, JIT_STACK_MOST, NULL);
    }
    if (!s || !s->data || !s->context) {
        err_sys("memory for matching");
        regex_scratch_destroy(s);
        return NULL;
    }
    if (s->stack) pcre2_jit_stack_assign(s->context, NULL, s->stack);
    return s;
}

void regex_scratch_destroy(RegexScratch *s)
{
    if (!s) return;
    pcre2_match_data_free(s->data);
    pcre2_match_context_free(s->context);
    pcre2_jit_stack_free(s->stack);
    free(s);
}

/* Of this thread: a busy machine changes no result. */
static double cpu_now_s(void)
{
    struct timespec now;
    int             rc = clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    CHECK(rc == 0, "no CPU clock");
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void regex_begin(RegexScratch *s, size_t size_bytes)
{
    s->end_s  = cpu_now_s() + time_base_s + time_per_byte_s * (double)size_bytes;
    s->n_call = 0;
    pcre2_set_match_limit(s->context,
                          STEPS_BASE + STEPS_PER_BYTE * (uint32_t)MIN(size_bytes, (size_t)1 << 28));
}

static int too_much(size_t at)
{
    return err_user("the tokenizer's pattern takes too long on this text (from byte %zu of a piece)", at);
}

int regex_next(const Regex *r, RegexScratch *s, const RegexText *text, size_t from, RegexMatch *m)
{
    const pcre2_code *re = text->unusual && r->patched ? r->patched : r->plain;
    while (from < text->n) {
        if (++s->n_call % CLOCK_EVERY == 0 && cpu_now_s() > s->end_s) return too_much(from);
        int rc = pcre2_match(re, text->p, text->n, from, PCRE2_NO_UTF_CHECK, s->data, s->context);
        if (rc == PCRE2_ERROR_NOMATCH) return 0;
        if (rc == PCRE2_ERROR_MATCHLIMIT || rc == PCRE2_ERROR_JIT_STACKLIMIT || rc == PCRE2_ERROR_HEAPLIMIT ||
            rc == PCRE2_ERROR_DEPTHLIMIT) {
            return too_much(from);
        }
        if (rc < 0) return err_set("PCRE2 failed with code %d", rc);
        const size_t *at = pcre2_get_ovector_pointer(s->data);
        *m               = (RegexMatch){ at[0], at[1] };
        if (m->end > m->begin && m->begin >= from) return 1;
        /* An empty match, or one that \K moved: go on from the next character. */
        for (from = MAX(from, m->end) + 1; from < text->n && (text->p[from] & 0xc0) == 0x80;) from++;
    }
    return 0;
}
