/* Fuzz target: pairs of prompt and answer from JSON lines and SQuAD's layout, and profiles of countries. The
 * first byte says which. Built with libFuzzer; the corpus is beside it. What is kept must lie inside the
 * list.
 *
 * sources: src/data/pairs_read.c src/data/pairs_text.c src/data/factbook.c src/conf/[a-z]*.c
 * src/text/[a-z]*.c src/base/[a-z]*.c */
#include "base/err.h"
#include "data/factbook.h"
#include "data/pairs_impl.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static void check_list(const PairList *l, const PairShape *s)
{
    for (int64_t i = 0; i < l->n; i++) {
        const Pair *p = &l->pair[i];
        CHECK(p->n_byte > 0 && p->n_byte <= s->S && p->bytes_at + p->n_byte <= l->n_byte, "bytes");
        CHECK(p->n_prompt <= s->P && p->n_answer > 0 && p->n_answer <= s->L, "tokens");
        CHECK(p->tokens_at + p->n_prompt + s->A + p->n_answer <= l->n_token, "tokens outside");
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    static Recipe r;
    PairShape     s    = { .S = 40, .P = 24, .A = 2, .L = 6, .K = 2, .M = 4 };
    PairList      l    = { 0 };
    PairReading   p    = { .list = &l, .recipe = &r, .shape = &s, .name = "input", .text.end = '\n' };
    const char   *text = (const char *)bytes + 1;
    if (n < 1) return 0;
    strcpy(r.latent.prompt_field, "p");
    strcpy(r.latent.answer_field, "a");
    strcpy(r.latent.anchor, "A:");
    r.latent.pairs = bytes[0] % 3 == 1 ? PAIRS_SQUAD : PAIRS_JSONL;
    if (bytes[0] % 3 == 2) {
        FactbookResult found = { 0 };
        FILE          *f     = fopen("/dev/null", "w");
        CHECK(f && factbook_parse(f, text, n - 1, 64, &found) == 0, "%s", err_get());
        fclose(f);
        return 0;
    }
    if (pair_list_parse(&p, text, n - 1) < 0) {
        CHECK(err_kind() == ERR_USER && strstr(err_get(), "input"), "a refusal names the file");
        err_clear();
    }
    check_list(&l, &s);
    pair_list_free(&l);
    return 0;
}
