/* Text to token ids: added tokens, normalizer, pre-tokenizer, merges, frame; in this order. */
#include "base/err.h"
#include "base/mem.h"
#include "text/tokenizer_impl.h"

#include <stdlib.h>

TokenizerScratch *tokenizer_scratch_create(const Tokenizer *t)
{
    TokenizerScratch *s = mem_zeroed(1, sizeof *s);
    if (!s) {
        err_sys("memory for encoding");
        return NULL;
    }
    s->of          = t;
    s->regex       = regex_scratch_create();
    s->split.regex = s->normal.regex = s->regex;
    if (!s->regex || bpe_scratch_init(&s->bpe) < 0) {
        tokenizer_scratch_destroy(s);
        return NULL;
    }
    return s;
}

void tokenizer_scratch_destroy(TokenizerScratch *s)
{
    if (!s) return;
    split_scratch_deinit(&s->split);
    regex_scratch_destroy(s->regex);
    bpe_scratch_deinit(&s->bpe);
    normal_scratch_deinit(&s->normal);
    buffer_deinit(&s->text);
    free(s);
}

typedef struct {
    const Tokenizer  *t;
    TokenizerScratch *s;
    int               literal;
} Encoding;

static int take_piece(void *arg, const unsigned char *p, size_t n)
{
    const Encoding *e = arg;
    return bpe_encode(&e->t->bpe, &e->s->bpe, p, n);
}

static int encode_plain(Encoding *e, const unsigned char *p, size_t n, int at_start)
{
    return n == 0 ? 0 : split_run(&e->t->split, &e->s->split, p, n, at_start, (SplitSink){ take_piece, e });
}

typedef int (*EncodeRest)(Encoding *e, const unsigned char *p, size_t n, int at_start);

/* Takes the tokens of a set out of the text; what lies between goes to `rest`. */
static int encode_around(Encoding *e, const AddedSet *set, const unsigned char *p, size_t n, int at_start,
                         EncodeRest rest)
{
    size_t     at = 0;
    AddedMatch m;
    while (added_next(set, p, n, at, e->literal, &m)) {
        TRY(rest(e, p + at, m.begin - at, at_start && at == 0));
        TRY(bpe_push(&e->s->bpe, e->t->added[m.token].id));
        at = m.end;
    }
    return rest(e, p + at, n - at, at_start && at == 0);
}

static int encode_raw(Encoding *e, const unsigned char *p, size_t n, int at_start)
{
    TokenizerScratch *s = e->s;
    if (n == 0) return 0;
    TRY(normal_run(&e->t->normal, &s->normal, TOKENIZER_MAX_BYTES, &p, &n));
    return encode_around(e, &e->t->normal_set, p, n, at_start, encode_plain);
}

static int push_frame(TokenizerScratch *s, const int32_t *id, int n)
{
    for (int i = 0; i < n; i++) TRY(bpe_push(&s->bpe, id[i]));
    return 0;
}

int64_t tokenizer_encode(const Tokenizer *t, TokenizerScratch *s, const void *text, size_t size_bytes,
                         int flags, const int32_t **ids)
{
    if (size_bytes > TOKENIZER_MAX_BYTES) {
        return err_user("a text of %zu bytes: at most %d MiB can be encoded at once", size_bytes,
                        TOKENIZER_MAX_BYTES >> 20);
    }
    CHECK(s->of == t, "a scratch of another tokenizer");
    Encoding e = { t, s, (flags & TOKENIZER_LITERAL) != 0 };
    s->bpe.n   = 0;
    regex_begin(s->regex, size_bytes);
    if (flags & TOKENIZER_FRAME) TRY(push_frame(s, t->before, t->n_before));
    TRY(encode_around(&e, &t->raw_set, text, size_bytes, 1, encode_raw));
    if (flags & TOKENIZER_FRAME) TRY(push_frame(s, t->after, t->n_after));
    *ids = s->bpe.id;
    return s->bpe.n;
}
