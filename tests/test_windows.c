/* Windows of a token sequence as samples, with each mask, and the layout of their fields. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/err.h"
#include "data/order.h"
#include "data/windows.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { N_TEXT = 3000, T = 12, PREFIX_END = 7, N_VAL = 600 };

static unsigned char text[N_TEXT];
static char          path[64];

/* Prefix ends come at distances of 5 to 30: windows have none, one or several, also at their first and
 * last place. */
static int text_setup(void **state)
{
    int next = 3;
    strcpy(path, "/tmp/brim_windows_XXXXXX");
    int fd = mkstemp(path);
    for (int i = 0; i < N_TEXT; i++) {
        text[i] = (unsigned char)(10 + i * 31 % 200);
        if (i == next) {
            text[i] = PREFIX_END;
            next += 5 + i * 7 % 26;
        }
    }
    int ok = fd >= 0 && write(fd, text, N_TEXT) == N_TEXT;
    if (fd >= 0) close(fd);
    return ok ? 0 : -1;
}

static int text_teardown(void **state)
{
    unlink(path);
    err_clear();
    return 0;
}

static Recipe recipe_of(Masking mask)
{
    Recipe r;
    recipe_defaults(&r);
    r.seed                = 5;
    r.step_tokens         = T;
    r.model.vocab         = 256;
    r.model.context       = T;
    r.model.mask          = mask;
    r.data.kind           = DATA_TEXT;
    r.data.document_token = mask == MASKING_DOCUMENT ? PREFIX_END : -1;
    r.data.prefix_token   = mask == MASKING_PREFIX ? PREFIX_END : -1;
    r.data.val_fraction   = (double)N_VAL / N_TEXT;
    snprintf(r.data.train, sizeof r.data.train, "%s", path);
    return r;
}

/* One sample, between guards that must stay. */
typedef struct {
    int32_t tok[T], guard1, target[T], guard2, extra[T], guard3;
} Sample;

static void fill(const Source *s, int64_t g, Sample *x)
{
    void *field[3] = { x->tok, x->target, x->extra };
    char  scratch[1024];
    assert_true(s->scratch_bytes <= sizeof scratch);
    memset(x, 0x55, sizeof *x);
    if (source_fill(s, g, field, scratch) < 0) fail_msg("%s", err_get());
    assert_true(x->guard1 == 0x55555555 && x->guard2 == 0x55555555 && x->guard3 == 0x55555555);
}

static int64_t targets(const Source *s, int64_t g)
{
    char    scratch[1024];
    int64_t n = source_targets(s, g, 0, scratch);
    assert_int_equal(source_targets(s, g, 1, scratch), 0);
    return n;
}

/* ---- samples --------------------------------------------------------------------------------------- */

/* The sample whose n tokens and their successors begin at `at`, with mask prefix. Returns the length of
 * its prefix. */
static int check_prefix(const Source *s, int64_t g, const unsigned char *at, int64_t n)
{
    Sample  x;
    int     prefix = 0;
    int64_t count  = 0;
    for (int t = 0; t < n && !prefix; t++) prefix = at[t] == PREFIX_END ? t + 1 : 0;
    fill(s, g, &x);
    assert_int_equal(x.extra[0], prefix);
    assert_int_equal(x.extra[1], 0x55555555); /* one number a sample */
    for (int t = 0; t < T; t++) {
        int has_target = t < n && t + 1 >= prefix; /* the target of t is token t + 1 */
        assert_int_equal(x.tok[t], t < n ? at[t] : 0);
        assert_int_equal(x.target[t], has_target ? at[t + 1] : -1);
        count += has_target;
    }
    assert_int_equal(targets(s, g), count);
    return prefix;
}

static void test_prefix_training(void **state)
{
    Recipe  r = recipe_of(MASKING_PREFIX);
    Source *s;
    Order   o;
    int     n_of[T + 1] = { 0 };
    if (windows_open_train(&s, &r) < 0) fail_msg("%s", err_get());
    order_init(&o, N_TEXT - N_VAL, T, (uint64_t)r.seed);
    for (int64_t g = 0; g < 1000; g++) n_of[check_prefix(s, g, text + order_start(&o, g), T)]++;
    assert_true(n_of[0] > 0 && n_of[1] > 0 && n_of[T] > 0); /* none; the first token; the whole window */
    source_close(s);
}

/* Also where the last window is cut short, and for the empty row behind it. */
static void test_prefix_validation(void **state)
{
    Recipe  r = recipe_of(MASKING_PREFIX);
    Source *s;
    Sample  x;
    if (windows_open_val(&s, &r, 0, NULL) < 0) fail_msg("%s", err_get());
    assert_int_equal(s->n_sample, 50); /* 599 targets */
    for (int64_t g = 0; g < s->n_sample; g++)
        check_prefix(s, g, text + N_TEXT - N_VAL + g * T, g < 49 ? T : N_VAL - 1 - 49 * T);
    fill(s, -1, &x);
    for (int t = 0; t < T; t++) assert_true(x.tok[t] == 0 && x.target[t] == -1);
    assert_int_equal(x.extra[0], 0);
    assert_int_equal(targets(s, -1), 0);
    source_close(s);
}

static void test_other_masks(void **state)
{
    static const Masking mask[] = { MASKING_CAUSAL, MASKING_FULL, MASKING_DOCUMENT };
    for (int i = 0; i < ARRAY_LEN(mask); i++) {
        Recipe  r = recipe_of(mask[i]);
        Source *s;
        Sample  x;
        Order   o;
        if (windows_open_train(&s, &r) < 0) fail_msg("%s", err_get());
        order_init(&o, N_TEXT - N_VAL, T, (uint64_t)r.seed);
        for (int64_t g = 0; g < 300; g++) {
            const unsigned char *at    = text + order_start(&o, g);
            int                  first = 0;
            fill(s, g, &x);
            for (int t = 0; t < T; t++) {
                assert_true(x.tok[t] == at[t] && x.target[t] == at[t + 1]);
                if (t > 0 && at[t - 1] == PREFIX_END) first = t;
                assert_int_equal(x.extra[t], mask[i] == MASKING_DOCUMENT ? first : 0x55555555);
            }
            assert_int_equal(targets(s, g), T);
        }
        source_close(s);
    }
}

/* ---- layout ---------------------------------------------------------------------------------------- */

static void test_window_fields(void **state)
{
    FieldRow row[3];
    Recipe   r = recipe_of(MASKING_CAUSAL);
    assert_int_equal(windows_fields(&r, row), 2);
    assert_true(row[WINDOW_TOK].ndim == 1 && row[WINDOW_TOK].dim[0] == T && row[WINDOW_TOK].dtype == DT_I32);
    assert_true(row[WINDOW_TARGET].ndim == 2 && row[WINDOW_TARGET].dim[0] == T);
    r = recipe_of(MASKING_DOCUMENT);
    assert_int_equal(windows_fields(&r, row), 3);
    assert_true(row[WINDOW_EXTRA].ndim == 1 && row[WINDOW_EXTRA].dim[0] == T);
    r = recipe_of(MASKING_PREFIX);
    assert_int_equal(windows_fields(&r, row), 3);
    assert_true(row[WINDOW_EXTRA].ndim == 0 && row[WINDOW_EXTRA].dtype == DT_I32);
}

/* A head, then each field behind the other on a boundary of its own; samples of a field are neighbours. */
static void test_layout(void **state)
{
    static const FieldRow row[] = { { "image", DT_U8, 3, { 3, 5, 7 } },
                                    { "label", DT_I32, 0, { 0 } },
                                    { "box", DT_F32, 2, { 2, 2 } },
                                    { "soft", DT_BF16, 1, { 9 } } };
    static const size_t   one[] = { 105, 4, 16, 18 };
    for (int64_t B = 1; B <= 33; B += 4) {
        Fields f;
        size_t at = FIELDS_HEAD;
        fields_init(&f, row, ARRAY_LEN(row), B);
        assert_true(f.n == ARRAY_LEN(row) && f.B == B);
        unsigned char *block = malloc(f.block_bytes);
        assert_non_null(block);
        for (int i = 0; i < f.n; i++) {
            assert_int_equal(f.sample_bytes[i], one[i]);
            assert_int_equal(f.offset[i], at);
            assert_ptr_equal(fields_at(&f, block, i, B - 1), block + at + (size_t)(B - 1) * one[i]);
            at = (at + (size_t)B * one[i] + FIELDS_ALIGN - 1) / FIELDS_ALIGN * FIELDS_ALIGN;
        }
        assert_int_equal(f.block_bytes, at);
        fields_set_sample0(block, INT64_C(1) << 40);
        assert_true(fields_sample0(block) == INT64_C(1) << 40);
        free(block);
    }
    Fields none;
    fields_init(&none, NULL, 0, 1);
    assert_int_equal(none.block_bytes, FIELDS_HEAD);
}

/* The last window of validation is short; with the full mask nothing in it is padding. */
static void test_full_mask_validation(void **state)
{
    Recipe  r = recipe_of(MASKING_FULL);
    Source *s;
    Sample  x;
    assert_int_equal(windows_open_val(&s, &r, 0, NULL), 0);
    int64_t last = s->n_sample - 1, n = targets(s, last);
    assert_true(n > 0 && n < T);
    fill(s, last, &x);
    for (int t = 0; t < T; t++) {
        const unsigned char *at = text + N_TEXT - T - 1 + t;
        assert_int_equal(x.tok[t], at[0]);
        assert_int_equal(x.target[t], t < T - n ? -1 : at[1]);
    }
    fill(s, 0, &x);
    for (int t = 0; t < T; t++) assert_int_equal(x.target[t], text[N_TEXT - N_VAL + t + 1]);
    fill(s, -1, &x);
    for (int t = 0; t < T; t++) assert_int_equal(x.target[t], -1);
    source_close(s);
    r.data.val_fraction = (T + 0.5) / N_TEXT; /* no whole window */
    assert_int_equal(windows_open_val(&s, &r, 0, NULL), -1);
    assert_int_equal(err_kind(), ERR_USER);
    (void)state;
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, text_setup, text_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(test_prefix_training),      CASE(test_prefix_validation), CASE(test_other_masks),
        CASE(test_full_mask_validation), CASE(test_window_fields),     cmocka_unit_test(test_layout),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
