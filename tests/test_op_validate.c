/* op_validate notices every wrong argument: each tensor of each case of each op kind gets a wrong size, a gap
 * where a vector belongs, or a wrong dtype. Deleting a rule, or adding a kind without one, fails here. */
#include "op_harness.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

/* What an argument may be whatever the others are. */
enum {
    ROWS_FREE  = 1, /* any number of rows or elements */
    LONGER     = 2, /* more rows than needed */
    COLS_FREE  = 4,
    DTYPE_FREE = 8
};

typedef struct {
    OpKind      kind;
    const char *arg;
    unsigned    free;
} Exception;

static const Exception exceptions[] = {
    { OP_EMBED_FWD, "wte", ROWS_FREE },
    { OP_EMBED_FWD, "wpe", LONGER },
    { OP_EMBED_DW, "dwte", ROWS_FREE },
    { OP_POS_DW, "dwpe", LONGER },
    { OP_POS_DW, "dy", ROWS_FREE }, /* sequences */
    { OP_BIAS_DW, "dy", ROWS_FREE },
    { OP_ROPE, "table", LONGER },
    { OP_ATTN_BWD, "table", LONGER },
    { OP_XENT_FWD, "logits", COLS_FREE },  /* padding */
    { OP_REDUCE_SCATTER, "x", ROWS_FREE }, /* multiples */
    { OP_ALL_GATHER, "y", ROWS_FREE },
    { OP_LOSS_ADD, "loss", ROWS_FREE | COLS_FREE },
    { OP_FILL, "y", ROWS_FREE | COLS_FREE | DTYPE_FREE },
    { OP_SUMSQ, "x", ROWS_FREE | COLS_FREE },
};

static unsigned freedom(OpKind kind, const char *arg)
{
    for (int i = 0; i < ARRAY_LEN(exceptions); i++) {
        if (exceptions[i].kind == kind && strcmp(exceptions[i].arg, arg) == 0) return exceptions[i].free;
    }
    return 0;
}

static int refused(const OpCase *c)
{
    char        buf[256];
    const char *bad = op_validate(c->kind, &c->args, buf, sizeof buf);
    if (bad) assert_true(strncmp(bad, op_table[c->kind].name, strlen(op_table[c->kind].name)) == 0);
    return bad != NULL;
}

static void must_refuse(const OpCase *c, int i, const char *what)
{
    if (!refused(c))
        fail_msg("%s %s: %s %s passes", op_table[c->kind].name, c->name, op_table[c->kind].arg[i].name, what);
}

/* The tensor of the same strides with another first or last dimension. */
static void resize(OpCase *c, int i, int dim, int64_t by)
{
    Tensor *t = c->args.t[i];
    tensor_init(t, t->name, t->dtype, t->ndim,
                (int64_t[]){ t->dim[0] + (dim == 0 ? by : 0), t->dim[1] + (dim == 1 ? by : 0),
                             t->dim[2] + (dim == 2 ? by : 0), t->dim[3] + (dim == 3 ? by : 0) });
}

static void spoil(OpCase *c, int i)
{
    unsigned free = freedom(c->kind, op_table[c->kind].arg[i].name);
    Tensor  *t = c->args.t[i], good = *t;
    int      last = t->ndim - 1;

    if (!(free & (ROWS_FREE | LONGER)) && last > 0) {
        resize(c, i, 0, +1);
        must_refuse(c, i, "with one row more");
        *t = good;
    }
    if (!(free & ROWS_FREE) && last > 0 && t->dim[0] > 16) {
        resize(c, i, 0, -16);
        must_refuse(c, i, "with fewer rows");
        *t = good;
    }
    if (!(free & COLS_FREE)) {
        resize(c, i, last, +1);
        must_refuse(c, i, "with one column more");
        *t = good;
    }
    if (!(free & COLS_FREE) && t->dim[last] > 1) {
        resize(c, i, last, -1);
        must_refuse(c, i, "with one column less");
        *t = good;
    }
    t->dtype = t->dtype == DT_U8 ? DT_I32 : DT_U8;
    if (!(free & DTYPE_FREE)) must_refuse(c, i, "of another dtype");
    *t = good;
}

static void test_every_argument(void **state)
{
    (void)state;
    OpCase c;
    int    n = 0;
    for (int kind = 0; kind < OP_COUNT; kind++) {
        const OpRow *row                 = &op_table[kind];
        int          seen[OP_MAX_TENSOR] = { 0 };
        /* Attention's cases take long to make; every seventh has all masks and arguments. */
        int stride = kind == OP_ATTN_FWD || kind == OP_ATTN_BWD ? 7 : 1;
        if (!op_has_rule((OpKind)kind)) fail_msg("%s has no rule", row->name);
        for (int i = 0; op_case_create(&c, (OpKind)kind, i); i += stride) {
            assert_false(refused(&c));
            for (int k = 0; k < row->n_tensor; k++) {
                /* All dimensions of 1 say nothing: one more is a multiple, a new vocabulary. */
                if (!c.args.t[k] || tensor_numel(c.args.t[k]) == 1) {
                    seen[k] |= c.args.t[k] && i == 0 ? 0 : c.args.t[k] != NULL;
                    continue;
                }
                seen[k] = 1;
                spoil(&c, k);
                n++;
            }
            op_case_destroy(&c);
        }
        for (int k = 0; k < row->n_tensor; k++) {
            if (!seen[k] && !(row->arg[k].access & ARG_WS))
                fail_msg("%s: no case has %s", row->name, row->arg[k].name);
        }
    }
    printf("op_validate: %d arguments spoiled in up to five ways, each refused\n", n);
}

/* One number where one number belongs: two of them, or another dtype. */
static void test_single_numbers(void **state)
{
    (void)state;
    static const struct {
        OpKind kind;
        int    i, arg;
    } one[] = { { OP_EMBED_FWD, 3, 4 }, { OP_ROPE, 3, 3 },  { OP_ATTN_DECODE, 1, 4 },
                { OP_DROPOUT, 1, 3 },   { OP_QUANT, 2, 2 }, { OP_QUANT, 2, 4 } };
    for (int i = 0; i < ARRAY_LEN(one); i++) {
        OpCase c;
        assert_true(op_case_create(&c, one[i].kind, one[i].i));
        Tensor *t = c.args.t[one[i].arg];
        assert_true(t && tensor_numel(t) == 1);
        t->dim[0] = 2;
        must_refuse(&c, one[i].arg, "of two numbers");
        t->dim[0] = 1;
        t->dtype  = t->dtype == DT_F32 ? DT_I32 : DT_F32;
        must_refuse(&c, one[i].arg, "of another dtype");
        op_case_destroy(&c);
    }
}

/* Scalars that no shape can carry. */
static void test_scalars(void **state)
{
    (void)state;
    OpCase c;
    assert_true(op_case_create(&c, OP_ROPE, 1));
    c.args.rope.n_head += 2;
    must_refuse(&c, 1, "narrower than the heads");
    op_case_destroy(&c);
    assert_true(op_case_create(&c, OP_XENT, 1));
    c.args.xent.n_class = 9;
    must_refuse(&c, 2, "with fewer columns than classes");
    op_case_destroy(&c);
    assert_true(op_case_create(&c, OP_DROPOUT, 1));
    c.args.dropout.rows_per_sample = 4;
    must_refuse(&c, 1, "with a part of a sample");
    op_case_destroy(&c);
    assert_true(op_case_create(&c, OP_ATTN_FWD, 4 + MASK_DOCUMENT));
    c.args.attn_fwd.doc = NULL;
    must_refuse(&c, 5, "missing");
    op_case_destroy(&c);
    assert_true(op_case_create(&c, OP_ACT_FWD, 4));
    c.args.act_fwd.act = ACT_SLOPE;
    must_refuse(&c, 0, "of a slope");
    op_case_destroy(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_argument),
        cmocka_unit_test(test_single_numbers),
        cmocka_unit_test(test_scalars),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
