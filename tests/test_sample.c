/* Samples of the golden models, always the most likely token: what a mask lets a sample see, and how long a
 * prompt may be. Equal means equal ids: the same ops run on the same numbers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "golden/rig.h"

enum { MAX_IDS = 128, N_ADD = 60 }; /* two and a half contexts: windows slide too */

typedef struct {
    int32_t id[MAX_IDS];
    int64_t n;
} Ids;

static const Ids three = { { 11, 42, 7 }, 3 };

static Ids part(const Ids *x, int64_t first, int64_t end)
{
    Ids y = { .n = end - first };
    memcpy(y.id, x->id + first, sizeof *y.id * (size_t)y.n);
    return y;
}

static int64_t find(const Ids *x, int32_t id)
{
    int64_t i = 0;
    while (i < x->n && x->id[i] != id) i++;
    return i;
}

static void assert_same(const Ids *a, const Ids *b)
{
    assert_int_equal(a->n, b->n);
    assert_memory_equal(a->id, b->id, sizeof *a->id * (size_t)a->n);
}

/* What lm_sample() returns; the prompt and n_add tokens more arrive in out. */
static int sample_from(const Golden *g, const Ids *prompt, int64_t n_add, Ids *out)
{
    char  text[8 * MAX_IDS] = "";
    FILE *f                 = tmpfile();
    Rig   r;
    assert_non_null(f);
    for (int64_t i = 0; i < prompt->n; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%d ", prompt->id[i]);
    rig_open(&r, g, &(RigSetup){ .parts = JOB_SAMPLE });
    int rc = lm_sample(r.j, &(TaskSample){ .prompt = text, .n_unit = n_add }, f);
    rig_close(&r);
    rewind(f);
    for (out->n = 0; out->n < MAX_IDS && fscanf(f, "%d", &out->id[out->n]) == 1;) out->n++;
    fclose(f);
    return rc;
}

static Ids sample_ids(const Golden *g, const Ids *prompt)
{
    Ids x;
    assert_int_equal(sample_from(g, prompt, N_ADD, &x), 0);
    assert_int_equal(x.n, prompt->n + N_ADD);
    return x;
}

/* ---- documents ----------------------------------------------------------------------------------------- */

static void use_documents(Golden *g, int32_t end)
{
    g->recipe.model.mask          = MASKING_DOCUMENT;
    g->recipe.data.document_token = end;
}

static void test_document_in_prompt(void **state)
{
    Golden g;
    golden_open(&g, *state);
    Ids long_prompt = { { 5, 66, 80, 23, 80, 11, 42, 7 }, 8 };
    Ids causal = sample_ids(&g, &three), causal_long = sample_ids(&g, &long_prompt);
    /* Without the mask it does have an influence: the test could fail. */
    assert_true(memcmp(causal.id + 3, causal_long.id + 8, sizeof *causal.id * N_ADD) != 0);
    use_documents(&g, 80);
    Ids x = sample_ids(&g, &three), y = sample_ids(&g, &long_prompt), rest = part(&y, 5, y.n);
    assert_same(&x, &rest);
    golden_close(&g);
}

/* Any token the model writes may be called the end of a document. It sees its own document, as in training:
 * up to it and to the token it predicts nothing changes. What follows is what a prompt that begins behind it
 * brings. Returns whether that is not what the causal model writes. */
static int document_written_matters(Golden *g, const Ids *start)
{
    g->recipe.model.mask = MASKING_CAUSAL;
    Ids     causal       = sample_ids(g, start);
    int64_t end          = start->n + 1;
    use_documents(g, causal.id[end]);
    end   = find(&causal, causal.id[end]);
    Ids x = sample_ids(g, start), begin = part(&x, 0, end + 2), causal_begin = part(&causal, 0, end + 2);
    assert_same(&begin, &causal_begin);
    Ids prompt = part(&x, end + 1, end + 2), y = sample_ids(g, &prompt);
    Ids rest = part(&x, end + 1, x.n), want = part(&y, 0, rest.n);
    assert_same(&rest, &want);
    return memcmp(x.id, causal.id, sizeof *x.id * (size_t)x.n) != 0;
}

static void test_document_written(void **state)
{
    Golden g;
    int    n_other = 0;
    golden_open(&g, *state);
    for (int32_t i = 0; i < 10; i++) n_other += document_written_matters(&g, &(Ids){ { i, 42, 7 }, 3 });
    assert_true(n_other > 0); /* some of the untrained models repeat one token for ever, whatever they see */
    golden_close(&g);
}

/* Without a document token a row is one document. */
static void test_no_document_token(void **state)
{
    Golden g;
    golden_open(&g, *state);
    Ids x = sample_ids(&g, &three);
    use_documents(&g, -1);
    Ids y = sample_ids(&g, &three);
    assert_same(&x, &y);
    golden_close(&g);
}

static void test_full(void **state)
{
    Golden g;
    Ids    x;
    golden_open(&g, *state);
    g.recipe.model.mask = MASKING_FULL;
    assert_true(sample_from(&g, &three, 1, &x) < 0);
    assert_int_equal(err_kind(), ERR_USER);
    assert_non_null(strstr(err_get(), "model.mask"));
    assert_int_equal(x.n, 0);
    err_clear();
    golden_close(&g);
}

/* ---- the length of a prompt ---------------------------------------------------------------------------- */

/* Wherever a text is cut, also where it fills the context, what follows is the same. */
static void test_prompt_fills_context(void **state)
{
    Golden g;
    golden_open(&g, *state);
    Ids all = sample_ids(&g, &three);
    for (int64_t n = g.T - 1; n <= g.T; n++) {
        Ids prompt = part(&all, 0, n), x = sample_ids(&g, &prompt), same = part(&x, 0, all.n);
        assert_same(&same, &all);
    }
    /* Of a longer one the last part alone counts, as if it were the prompt. */
    Ids longer = part(&all, 0, g.T + 5), last = part(&all, 5, g.T + 5);
    Ids x = sample_ids(&g, &longer), y = sample_ids(&g, &last), rest = part(&x, 5, x.n);
    assert_same(&rest, &y);
    golden_close(&g);
}

/* clang-format off */
#define EACH_POSITION(f) \
    { #f " gpt2", f, NULL, NULL, (void *)"gpt2" }, { #f " llama", f, NULL, NULL, (void *)"llama" }
/* clang-format on */

int main(void)
{
    const struct CMUnitTest tests[] = {
        EACH_POSITION(test_document_in_prompt),   EACH_POSITION(test_document_written),
        EACH_POSITION(test_no_document_token),    EACH_POSITION(test_full),
        EACH_POSITION(test_prompt_fills_context),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
