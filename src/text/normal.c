#include "text/normal.h"

#include "base/err.h"
#include "base/mem.h"
#include "text/unicode.h"
#include "text/utf8.h"

#include <stdlib.h>
#include <utf8proc.h>

enum { LONG_FORM = 256 }; /* bytes */

/* ---- normal forms ---- */

/* 1: the character does not change, move, or join the one before it. */
static int is_inert(uint32_t code, utf8proc_option_t form)
{
    int nfc = form == UTF8PROC_COMPOSE;
    if (code < (nfc ? 0x300 : 0x80)) return 1;
    if (code >= 0x1100 && code <= 0x11ff) return 0;   /* Hangul letters join */
    if (code >= 0xac00 && code <= 0xd7a3) return nfc; /* Hangul syllables come apart */
    const utf8proc_property_t *p = utf8proc_get_property((utf8proc_int32_t)code);
    return p->combining_class == 0 && p->decomp_seqindex == UINT16_MAX &&
           (p->comb_index == UINT16_MAX || p->comb_index < 0x8000);
}

/* Marks in the order of their classes, equal ones as they stand. utf8proc swaps neighbours, which takes
 * quadratic time; hostile text may have marks by the megabyte. */
static void sort_marks(const int32_t *from, int32_t *to, int64_t n)
{
    int64_t at[257] = { 0 };
    for (int64_t i = 0; i < n; i++) at[utf8proc_get_property(from[i])->combining_class + 1]++;
    for (int k = 0; k < 256; k++) at[k + 1] += at[k];
    for (int64_t i = 0; i < n; i++) to[at[utf8proc_get_property(from[i])->combining_class]++] = from[i];
}

static void sort_runs(const int32_t *from, int32_t *to, int64_t n)
{
    for (int64_t i = 0; i < n;) {
        int64_t end = i;
        while (end < n && utf8proc_get_property(from[end])->combining_class != 0) end++;
        if (end == i) {
            to[i] = from[i];
            i++;
            continue;
        }
        sort_marks(from + i, to + i, end - i);
        i = end;
    }
}

static int add_long_form(Buffer *out, const unsigned char *p, size_t n, utf8proc_option_t form)
{
    utf8proc_ssize_t most = utf8proc_decompose(p, (utf8proc_ssize_t)n, NULL, 0, form), k = 0;
    if (most < 0) return err_set("utf8proc: %s", utf8proc_errmsg(most));
    int32_t *apart = mem_alloc(2 * ((size_t)most + 1) * sizeof *apart), *sorted = apart + most;
    int      bound = UTF8PROC_BOUNDCLASS_START, rc = apart ? 0 : err_sys("a text to be normalized");
    uint32_t code = 0;
    for (size_t i = 0; rc == 0 && i < n; i += (size_t)utf8_next(p + i, n - i, &code)) {
        utf8_next(p + i, n - i, &code);
        k += utf8proc_decompose_char((utf8proc_int32_t)code, apart + k, most - k, form, &bound);
        CHECK(k <= most, "decomposed to %lld of %lld", (long long)k, (long long)most);
    }
    if (rc == 0) sort_runs(apart, sorted, k);
    if (rc == 0 && (form & UTF8PROC_COMPOSE)) k = utf8proc_normalize_utf32(sorted, k, form);
    if (rc == 0) rc = buffer_reserve(out, 4 * (size_t)k);
    for (int64_t i = 0; rc == 0 && i < k; i++) {
        out->len += (size_t)utf8_put(out->data + out->len, (uint32_t)sorted[i]);
    }
    free(apart);
    return rc;
}

/* p is well-formed. */
static int add_form(Buffer *out, const unsigned char *p, size_t n, utf8proc_option_t form)
{
    utf8proc_uint8_t *text = NULL;
    if (n > LONG_FORM) return add_long_form(out, p, n, form | UTF8PROC_STABLE);
    utf8proc_ssize_t len = utf8proc_map(p, (utf8proc_ssize_t)n, &text, form | UTF8PROC_STABLE);
    if (len < 0) return err_set("utf8proc: %s", utf8proc_errmsg(len));
    int rc = buffer_add(out, text, (size_t)len);
    free(text);
    return rc;
}

/* Only stretches that may change go through utf8proc: from the character before the first one that is not
 * inert to the next inert one. A late mark ends a stretch and stands by itself. */
static int form_step(utf8proc_option_t form, Buffer *out, const unsigned char *p, size_t n)
{
    size_t done = 0, last = 0; /* copied so far; where the character before i begins */
    for (size_t i = 0; i < n;) {
        uint32_t code;
        int      len = utf8_next(p + i, n - i, &code);
        if (len == 0 || is_inert(code, form) || unicode_is_late_mark(code)) {
            last = len == 0 || unicode_is_late_mark(code) ? i + (size_t)MAX(len, 1) : i;
            i += (size_t)MAX(len, 1);
            continue;
        }
        size_t begin = MAX(last, done), end = i;
        while (end < n && (len = utf8_next(p + end, n - end, &code)) > 0 && !is_inert(code, form) &&
               !unicode_is_late_mark(code)) {
            end += (size_t)len;
        }
        TRY(buffer_add(out, p + done, begin - done));
        TRY(add_form(out, p + begin, end - begin, form));
        done = i = last = end;
    }
    return buffer_add(out, p + done, n - done);
}

/* ---- the others ---- */

static int check_length(const Buffer *out, size_t most)
{
    return out->len <= most ? 0 : err_user("the normalizer makes a text of more than %zu bytes", most);
}

static int replace_step(const NormalStep *s, RegexScratch *rs, size_t most, Buffer *out,
                        const unsigned char *p, size_t n)
{
    for (size_t i = 0; i < n;) {
        RegexText  text = { .p = p + i };
        RegexMatch m;
        size_t     from = 0;
        int        rc;
        text.n = utf8_valid(p + i, n - i, &text.unusual);
        while ((rc = regex_next(s->regex, rs, &text, from, &m)) > 0) {
            TRY(buffer_add(out, text.p + from, m.begin - from));
            TRY(buffer_add(out, s->content, s->content_len));
            TRY(check_length(out, most)); /* before the whole text is replaced */
            from = m.end;
        }
        if (rc < 0) return -1;
        TRY(buffer_add(out, text.p + from, text.n - from));
        i += text.n;
        if (i < n) TRY(buffer_add(out, p + i++, 1)); /* a malformed byte */
    }
    return 0;
}

static int strip_step(const NormalStep *s, Buffer *out, const unsigned char *p, size_t n)
{
    size_t   begin = 0;
    uint32_t code;
    while (s->left && begin < n) {
        int len = utf8_next(p + begin, n - begin, &code);
        if (len == 0 || !utf8_is_space(code)) break;
        begin += (size_t)len;
    }
    while (s->right && n > begin) {
        size_t last = n - 1;
        while (last > begin && n - last < 4 && (p[last] & 0xc0) == 0x80) last--;
        if (utf8_next(p + last, n - last, &code) != (int)(n - last) || !utf8_is_space(code)) break;
        n = last;
    }
    return buffer_add(out, p + begin, n - begin);
}

static int run_step(const NormalStep *s, RegexScratch *rs, size_t most, Buffer *out, const unsigned char *p,
                    size_t n)
{
    switch (s->kind) {
    case NORMAL_NFC: return form_step(UTF8PROC_COMPOSE, out, p, n);
    case NORMAL_NFD: return form_step(UTF8PROC_DECOMPOSE, out, p, n);
    case NORMAL_NFKC: return form_step(UTF8PROC_COMPOSE | UTF8PROC_COMPAT, out, p, n);
    case NORMAL_NFKD: return form_step(UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT, out, p, n);
    case NORMAL_REPLACE: return replace_step(s, rs, most, out, p, n);
    case NORMAL_STRIP: return strip_step(s, out, p, n);
    case NORMAL_PREPEND:
        if (n > 0) TRY(buffer_add(out, s->content, s->content_len));
        return buffer_add(out, p, n);
    }
    return 0;
}

void normal_scratch_deinit(NormalScratch *s)
{
    buffer_deinit(&s->a);
    buffer_deinit(&s->b);
}

int normal_run(const Normal *m, NormalScratch *s, size_t most, const unsigned char **p, size_t *n)
{
    for (int i = 0; i < m->n; i++) {
        Buffer *to = i % 2 == 0 ? &s->a : &s->b;
        to->len    = 0;
        TRY(buffer_reserve(to, *n + 16));
        TRY(run_step(&m->step[i], s->regex, most, to, *p, *n));
        TRY(check_length(to, most));
        *p = to->data;
        *n = to->len;
    }
    return 0;
}
