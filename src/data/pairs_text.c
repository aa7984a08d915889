/* Texts as tokens of a frozen language model. Without a tokenizer tokens are bytes. Prompts and answers are
 * text: special tokens in them are text like any other. */
#include "data/pairs_impl.h"

#include "base/err.h"
#include "base/mem.h"
#include "base/str.h"

#include <stdlib.h>
#include <string.h>

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
    if (frame && pair_text_frame(t) == 0) flags = TOKENIZER_LITERAL; /* nothing may end a prompt */
    return tokenizer_encode(t->tokenizer, t->scratch, text, n, flags, ids);
}

int64_t pair_text_frame(const PairText *t)
{
    TokenizerFacts f = tokenizer_facts(t->tokenizer);
    return f.n_frame_after > 0 ? 0 : f.n_frame_before;
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
