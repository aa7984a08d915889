/* Token ids to bytes. */
#include "base/err.h"
#include "text/tokenizer_impl.h"
#include "text/utf8.h"

#include <string.h>

/* ---- the bytes of each token ---- */

static int hex(char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1; }

/* The byte of "<0xE2>", -1: another token. */
static int fallback_byte(const char *p, size_t n)
{
    if (n != 6 || memcmp(p, "<0x", 3) != 0 || p[5] != '>' || hex(p[3]) < 0 || hex(p[4]) < 0) return -1;
    return hex(p[3]) * 16 + hex(p[4]);
}

static int too_long(const Tokenizer *t) { return err_user("%s: the decoder makes tokens too long", t->path); }

static int replaced(const Tokenizer *t, Buffer *a, Buffer *b, const char *p, size_t n)
{
    const Decode *d = &t->decode;
    a->len          = 0;
    TRY(buffer_add(a, p, n));
    for (int i = 0; i < d->n_replace; i++) {
        const DecodeReplace *r = &d->replace[i];
        b->len                 = 0;
        for (size_t k = 0; k < a->len;) {
            if (a->len - k >= r->from_len && memcmp(a->data + k, r->from, r->from_len) == 0) {
                TRY(buffer_add(b, r->to, r->to_len));
                k += r->from_len;
                if (b->len > TOKENIZER_MAX_TOKEN) return too_long(t);
            } else {
                TRY(buffer_add(b, a->data + k++, 1));
            }
        }
        Buffer swap = *a;
        *a          = *b;
        *b          = swap;
    }
    return 0;
}

/* Leaves the bytes of token id in a. */
static int token_bytes(Tokenizer *t, int32_t id, Buffer *a, Buffer *b)
{
    const char *p = t->pool + t->name[id].at;
    size_t      n = t->name[id].len;
    a->len        = 0;
    if (t->decode.byte_level) {
        TRY(buffer_reserve(a, n));
        int64_t len = utf8_from_alphabet((const unsigned char *)p, n, a->data);
        if (len < 0) t->flag[id] |= TOKEN_NO_BYTES;
        if (len < 0 || ((t->flag[id] & TOKEN_ADDED) && !(t->flag[id] & TOKEN_MODEL)))
            return buffer_add(a, p, n);
        a->len = (size_t)len;
        return 0;
    }
    int byte = t->decode.byte_fallback ? fallback_byte(p, n) : -1;
    if (byte >= 0) return buffer_add(a, (char[]){ (char)byte }, 1);
    return replaced(t, a, b, p, n);
}

int decode_build(Tokenizer *t)
{
    Buffer all = { 0 }, a = { 0 }, b = { 0 };
    int    rc = buffer_reserve(&all, 1);
    if (t->byte_level && t->decode.join) t->decode = (Decode){ .byte_level = 1 };
    if (t->byte_level && !t->decode.byte_level) {
        rc = err_user("%s: decoder: a ByteLevel pre-tokenizer needs a ByteLevel decoder", t->path);
    }
    for (int32_t i = 0; rc == 0 && i < t->n_id; i++) {
        if (t->name[i].len == 0) continue;
        rc = token_bytes(t, i, &a, &b);
        if (rc < 0) break;
        t->bytes[i] = (StrSpan){ (uint32_t)all.len, (uint32_t)a.len };
        t->longest  = MAX(t->longest, (int64_t)a.len);
        rc          = all.len + a.len > TOKENIZER_MAX_BYTES ? too_long(t) : buffer_add(&all, a.data, a.len);
    }
    buffer_deinit(&a);
    buffer_deinit(&b);
    t->byte_pool = (char *)all.data;
    return rc;
}

/* ---- decoding ---- */

static int check_id(const Tokenizer *t, int32_t id)
{
    if (id >= 0 && id < t->n_id && t->name[id].len > 0) return 0;
    return err_user("%s: there is no token %d (0 to %d)", t->path, id, t->n_id - 1);
}

static int frame_starts(const int32_t *frame, int n_frame, const int32_t *ids, int64_t n)
{
    return n >= n_frame && (n_frame == 0 || memcmp(frame, ids, (size_t)n_frame * sizeof *ids) == 0);
}

/* Bytes that the decoder drops at the beginning of the text. */
static size_t leading(const Decode *d, const unsigned char *p, size_t n)
{
    size_t k = 0;
    while (k < n && (int)k < d->strip_left && p[k] == (unsigned char)d->strip) k++;
    return k;
}

static int add_bare(Buffer *out, const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (p[i] != ' ') TRY(buffer_add(out, p + i, 1));
    }
    return 0;
}

int64_t tokenizer_decode(const Tokenizer *t, TokenizerScratch *s, const int32_t *ids, int64_t n, int flags,
                         const char **text)
{
    Buffer *out   = &s->text;
    int64_t begin = 0, end = n;
    int     first = 1;
    out->len      = 0;
    if ((flags & TOKENIZER_FRAME) && n > 0) {
        if (frame_starts(t->before, t->n_before, ids, n)) begin = t->n_before;
        if (frame_starts(t->after, t->n_after, ids + MAX(n - t->n_after, begin),
                         MIN(n - begin, (int64_t)t->n_after))) {
            end = n - t->n_after;
        }
    }
    for (int64_t i = begin; i < end; i++) {
        TRY(check_id(t, ids[i]));
        if ((flags & TOKENIZER_SKIP) && (t->flag[ids[i]] & TOKEN_SPECIAL)) continue;
        StrSpan b = t->bytes[ids[i]];
        if (t->decode.join && !first) TRY(buffer_add(out, " ", 1));
        TRY(first && t->decode.bare_first ? add_bare(out, t->byte_pool + b.at, b.len)
                                          : buffer_add(out, t->byte_pool + b.at, b.len));
        first = 0;
    }
    TRY(buffer_reserve(out, 1));
    size_t drop = leading(&t->decode, out->data, out->len);
    *text       = (const char *)out->data + drop;
    return (int64_t)(out->len - drop);
}

int64_t tokenizer_stream_next(const Tokenizer *t, TokenizerStream *st, int32_t id, char *buf)
{
    TRY(check_id(t, id));
    StrSpan     b    = t->bytes[id];
    const char *p    = t->byte_pool + b.at;
    size_t      drop = st->begun ? 0 : leading(&t->decode, (const unsigned char *)p, b.len);
    size_t      n    = (size_t)st->n_held;
    memcpy(buf, st->held, n);
    for (size_t i = drop; i < b.len; i++) {
        if (st->begun || !t->decode.bare_first || p[i] != ' ') buf[n++] = p[i];
    }
    st->begun   = 1;
    size_t keep = utf8_pending((const unsigned char *)buf, n);
    memcpy(st->held, buf + n - keep, keep);
    st->n_held = (int)keep;
    return (int64_t)(n - keep);
}

int64_t tokenizer_stream_end(TokenizerStream *st, char *buf)
{
    int n = st->n_held;
    memcpy(buf, st->held, (size_t)n);
    st->n_held = 0;
    return n;
}
