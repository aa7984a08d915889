/* op_validate notices every wrong argument: each tensor of each case of each op kind gets a wrong size or a
 * wrong dtype; companions go missing, scalars and slots are wrong. Deleting a rule, or adding a kind without
 * one, fails here. */
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
    DTYPE_FREE = 8,
    OR_ONE     = 16, /* one number for all sequences will do, too */
    PARTS      = 32  /* all of this only where the case has a number that picks a part */
};

typedef struct {
    OpKind      kind;
    const char *arg;
    unsigned    free;
} Exception;

static const Exception exceptions[] = {
    { OP_EMBED_FWD, "wte", ROWS_FREE },
    { OP_EMBED_FWD, "wpe", LONGER },
    { OP_EMBED_FWD, "pos0", OR_ONE },
    { OP_EMBED_DW, "dwte", ROWS_FREE },
    { OP_POS_DW, "dwpe", LONGER },
    { OP_POS_DW, "dy", ROWS_FREE }, /* sequences */
    { OP_BIAS_DW, "dy", ROWS_FREE },
    { OP_ROWS_FWD, "y", ROWS_FREE | PARTS },
    { OP_ROWS_FWD, "x", ROWS_FREE },
    { OP_ROWS_FWD, "index", ROWS_FREE | COLS_FREE | PARTS }, /* multiples */
    { OP_ROWS_DX, "dx", ROWS_FREE },
    { OP_ADD_POS, "pos", LONGER },
    { OP_ROPE, "table", LONGER },
    { OP_ROPE, "pos0", OR_ONE },
    { OP_ATTN_BWD, "table", LONGER },
    { OP_ATTN_DECODE, "len", OR_ONE },
    { OP_XENT_FWD, "logits", COLS_FREE }, /* padding */
    { OP_KL_FWD, "logits", COLS_FREE },
    { OP_KL_FWD, "teacher", COLS_FREE },
    { OP_KL_DX, "teacher", COLS_FREE },
    { OP_SAMPLE_CAT, "logits", COLS_FREE }, /* behind the last segment */
    { OP_PPO_CAT_FWD, "logits", COLS_FREE },
    { OP_PPO_CAT_FWD, "norm", COLS_FREE }, /* two or more */
    { OP_PPO_CAT_DX, "norm", COLS_FREE },
    { OP_PPO_GAUSS_FWD, "norm", COLS_FREE },
    { OP_PPO_GAUSS_DX, "norm", COLS_FREE },
    { OP_STATS, "x", COLS_FREE },
    { OP_OBS_STATS, "x", ROWS_FREE },
    { OP_PERM, "index", COLS_FREE },
    { OP_PACK_ROWS, "len", COLS_FREE | ROWS_FREE }, /* sequences, where nothing is asked of each */
    { OP_FP8_SCALE, "sites", ROWS_FREE },
    { OP_REDUCE_SCATTER, "x", ROWS_FREE }, /* multiples */
    { OP_ALL_GATHER, "y", ROWS_FREE },
    { OP_LOSS_ADD, "loss", ROWS_FREE | COLS_FREE },
    { OP_FILL, "y", ROWS_FREE | COLS_FREE | DTYPE_FREE },
    { OP_SUMSQ, "x", ROWS_FREE | COLS_FREE },
    { OP_MOMENTUM, "x", ROWS_FREE | COLS_FREE }, /* the segments say how large a matrix is */
    { OP_MUON, "master", COLS_FREE },            /* without a copy nothing else has its size */
    { OP_MUON, "y", ROWS_FREE | COLS_FREE },
};

static unsigned freedom(const OpCase *c, const char *arg)
{
    int whole = c->kind == OP_ROWS_FWD && !c->args.rows_fwd.at;
    if (c->kind == OP_PUT && arg[0] == 'y') return ROWS_FREE;          /* steps */
    if (c->kind == OP_CALL) return ROWS_FREE | COLS_FREE | DTYPE_FREE; /* the function knows */
    for (int i = 0; i < ARRAY_LEN(exceptions); i++) {
        const Exception *e = &exceptions[i];
        if (e->kind == c->kind && strcmp(e->arg, arg) == 0) return whole && (e->free & PARTS) ? 0 : e->free;
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
    unsigned free = freedom(c, op_table[c->kind].arg[i].name);
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
    if (!(free & COLS_FREE) && t->dim[last] > (free & OR_ONE ? 2 : 1)) {
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

/* One number where one number belongs: three of them, or another dtype. Two may be one for each sequence. */
static void test_single_numbers(void **state)
{
    (void)state;
    static const struct {
        OpKind kind;
        int    i, arg;
    } one[] = { { OP_EMBED_FWD, 3, 4 },    { OP_ROPE, 3, 3 },         { OP_ATTN_DECODE, 1, 5 },
                { OP_DROPOUT, 1, 3 },      { OP_ROWS_FWD, 8, 3 },     { OP_MSE_FWD, 3, 4 },
                { OP_MSE_DX, 3, 4 },       { OP_SAMPLE_CAT, 5, 7 },   { OP_SAMPLE_CAT, 5, 8 },
                { OP_SAMPLE_GAUSS, 5, 6 }, { OP_SAMPLE_GAUSS, 5, 7 }, { OP_PUT, 3, 2 * PUT_PAIRS },
                { OP_TICK, 1, 0 },         { OP_PERM, 5, 2 } };
    for (int i = 0; i < ARRAY_LEN(one); i++) {
        OpCase c;
        assert_true(op_case_create(&c, one[i].kind, one[i].i));
        Tensor *t = c.args.t[one[i].arg];
        if (!t || tensor_numel(t) != 1)
            fail_msg("%s %s: argument %d is no number", op_table[c.kind].name, c.name, one[i].arg);
        t->dim[0] = 3;
        must_refuse(&c, one[i].arg, "of three numbers");
        t->dim[0] = 1;
        t->dtype  = t->dtype == DT_F32 ? DT_I32 : DT_F32;
        must_refuse(&c, one[i].arg, "of another dtype");
        op_case_destroy(&c);
    }
}

/* Arguments that come together, or that a mask needs: one of them alone is refused. */
static void test_companions(void **state)
{
    (void)state;
    static const struct {
        OpKind kind;
        int    i, arg;
    } lost[] = { { OP_ATTN_FWD, MASK_COUNT + MASK_DOCUMENT, 5 },
                 { OP_ATTN_FWD, MASK_COUNT + MASK_PREFIX, 6 },
                 { OP_ATTN_FWD, MASK_COUNT + MASK_RANGE, 7 },
                 { OP_ATTN_FWD, MASK_COUNT + MASK_RANGE, 8 },
                 { OP_ATTN_BWD, MASK_DOCUMENT, 6 },
                 { OP_ATTN_BWD, MASK_PREFIX, 7 },
                 { OP_ATTN_BWD, MASK_RANGE, 8 },
                 { OP_ATTN_BWD, MASK_RANGE, 9 },
                 { OP_CROSS_ATTN_FWD, 2, 5 },
                 { OP_CROSS_ATTN_FWD, 2, 6 },
                 { OP_CROSS_ATTN_BWD, 2, 8 },
                 { OP_CROSS_ATTN_BWD, 2, 9 },
                 { OP_PATCHES, 9, 3 },
                 { OP_PUT, 12, 1 },
                 { OP_PUT, 12, PUT_PAIRS + 1 },
                 { OP_XENT_FWD, 6, 5 },
                 { OP_XENT_FWD, 6, 6 },
                 { OP_XENT_DX, 6, 4 },
                 { OP_XENT_DX, 6, 5 },
                 { OP_MSE_FWD, 3, 3 },
                 { OP_MSE_FWD, 3, 4 },
                 { OP_MSE_DX, 3, 3 },
                 { OP_MSE_DX, 3, 4 },
                 { OP_PPO_CAT_FWD, 5, 3 },
                 { OP_PPO_CAT_FWD, 5, 7 },
                 { OP_PPO_CAT_FWD, 5, 8 },
                 { OP_PPO_CAT_DX, 5, 3 },
                 { OP_PPO_CAT_DX, 5, 7 },
                 { OP_PPO_CAT_DX, 5, 8 },
                 { OP_PPO_GAUSS_FWD, 5, 4 },
                 { OP_PPO_GAUSS_FWD, 5, 8 },
                 { OP_PPO_GAUSS_FWD, 5, 9 },
                 { OP_PPO_GAUSS_DX, 5, 5 },
                 { OP_PPO_GAUSS_DX, 5, 9 },
                 { OP_PPO_GAUSS_DX, 5, 10 },
                 { OP_ROWS_FWD, 8, 3 } };
    for (int i = 0; i < ARRAY_LEN(lost); i++) {
        OpCase c;
        assert_true(op_case_create(&c, lost[i].kind, lost[i].i));
        if (!c.args.t[lost[i].arg])
            fail_msg("%s %s: argument %d is not there", op_table[c.kind].name, c.name, lost[i].arg);
        c.args.t[lost[i].arg] = NULL;
        must_refuse(&c, lost[i].arg, "missing beside its companions");
        op_case_destroy(&c);
    }
}

/* A gradient of a value that is not there. */
static void test_value_gradient(void **state)
{
    (void)state;
    OpCase c;
    assert_true(op_case_create(&c, OP_PPO_CAT_DX, 5));
    c.args.ppo_cat_dx.value = c.args.ppo_cat_dx.ret = c.args.ppo_cat_dx.old_value = NULL;
    must_refuse(&c, 1, "without a value");
    op_case_destroy(&c);
    assert_true(op_case_create(&c, OP_PPO_GAUSS_DX, 5));
    c.args.ppo_gauss_dx.value = c.args.ppo_gauss_dx.ret = c.args.ppo_gauss_dx.old_value = NULL;
    must_refuse(&c, 2, "without a value");
    op_case_destroy(&c);
}

/* Two arguments that agree with each other, and both are wrong. */
static void test_both_wrong(void **state)
{
    (void)state;
    static const OpKind collective[] = { OP_ALL_REDUCE, OP_REDUCE_SCATTER, OP_ALL_GATHER };
    OpCase              c;
    for (int dim = 0; dim < 4; dim += 3) { /* sequences, head size */
        assert_true(op_case_create(&c, OP_ATTN_DECODE, 3));
        resize(&c, 1, dim, +1);
        resize(&c, 2, dim, +1);
        must_refuse(&c, 1, "wrong in both caches");
        op_case_destroy(&c);
    }
    for (int i = 0; i < ARRAY_LEN(collective); i++) {
        assert_true(op_case_create(&c, collective[i], 2));
        c.args.t[0]->dtype = c.args.t[1]->dtype = DT_I32;
        if (collective[i] == OP_ALL_GATHER) {
            assert_false(refused(&c));
        } else {
            must_refuse(&c, 0, "of integers");
        }
        c.args.t[0]->dtype = DT_F32;
        c.args.t[1]->dtype = DT_BF16;
        must_refuse(&c, 0, "of another float type");
        c.args.t[0]->dtype = DT_BF16;
        if (collective[i] == OP_ALL_GATHER) {
            assert_false(refused(&c));
        } else {
            must_refuse(&c, 0, "of bf16");
        }
        op_case_destroy(&c);
    }
}

/* What kernels read as one vector has no gaps between its rows. */
static void test_gaps(void **state)
{
    (void)state;
    static const struct {
        OpKind kind;
        int    i, arg;
    } whole[] = { { OP_EMBED_FWD, 2, 1 },   { OP_PATCHES, 9, 2 },    { OP_PATCHES, 9, 5 },
                  { OP_GAE, 3, 2 },         { OP_GAE, 3, 5 },        { OP_PUT, 3, 0 },
                  { OP_PUT, 3, PUT_PAIRS }, { OP_SAMPLE_CAT, 5, 0 }, { OP_SAMPLE_CAT, 5, 4 },
                  { OP_PPO_CAT_FWD, 5, 1 }, { OP_PPO_CAT_DX, 5, 4 }, { OP_ATTN_FWD, 16 * MASK_COUNT, 2 },
                  { OP_ALL_REDUCE, 2, 0 },  { OP_ATTN_DECODE, 3, 1 } };
    for (int i = 0; i < ARRAY_LEN(whole); i++) {
        OpCase c;
        assert_true(op_case_create(&c, whole[i].kind, whole[i].i));
        Tensor *t = c.args.t[whole[i].arg];
        if (!t || tensor_rows(t) < 2)
            fail_msg("%s %s: argument %d has no rows", op_table[c.kind].name, c.name, whole[i].arg);
        for (int k = 0; k + 1 < t->ndim; k++)
            t->stride[k] = t->stride[k] / tensor_cols(t) * (tensor_cols(t) + 4);
        must_refuse(&c, whole[i].arg, "with gaps");
        op_case_destroy(&c);
    }
}

/* Two numbers or more. */
static void test_norm_of_advantages(void **state)
{
    (void)state;
    for (int kind = OP_PPO_CAT_FWD; kind <= OP_PPO_GAUSS_DX; kind++) {
        OpCase c;
        assert_true(op_case_create(&c, (OpKind)kind, 5));
        int norm = ppo_slots(c.kind).norm;
        resize(&c, norm, 0, -1);
        assert_false(refused(&c));
        resize(&c, norm, 0, -1);
        must_refuse(&c, norm, "of one number");
        op_case_destroy(&c);
    }
}

/* One scalar that no shape can carry: case i of a kind with it set to a wrong value is refused. */
#define SPOIL(KIND, i, field, value)                                                                         \
    do {                                                                                                     \
        OpCase c;                                                                                            \
        assert_true(op_case_create(&c, KIND, i));                                                            \
        assert_false(refused(&c));                                                                           \
        c.args.field = (value);                                                                              \
        if (!refused(&c)) fail_msg("%s %s: " #field " = " #value " passes", op_table[KIND].name, c.name);    \
        op_case_destroy(&c);                                                                                 \
    } while (0)

static void test_scalars(void **state)
{
    (void)state;
    SPOIL(OP_MOMENTUM, 4, momentum.momentum, 1.0f);
    SPOIL(OP_ROPE, 1, rope.n_head, 5);
    SPOIL(OP_ROPE, 1, rope.head_dim, 5);
    SPOIL(OP_XENT, 1, xent.n_class, 9);
    SPOIL(OP_XENT_FWD, 4, xent_fwd.n_class, 9);
    SPOIL(OP_XENT_DX, 4, xent_dx.n_class, 0);
    SPOIL(OP_XENT_FWD, 5, xent_fwd.smooth, 1.0f);
    SPOIL(OP_XENT_DX, 5, xent_dx.smooth, -0.1f);
    SPOIL(OP_KL_FWD, 2, kl_fwd.n_class, 9);
    SPOIL(OP_KL_DX, 2, kl_dx.n_class, 9);
    SPOIL(OP_KL_FWD, 2, kl_fwd.tau, 0.0f);
    SPOIL(OP_KL_DX, 2, kl_dx.tau, 0.0f);
    SPOIL(OP_KL_TEACHER, 1, kl_teacher.n_class, 128);
    SPOIL(OP_KL_TEACHER, 1, kl_teacher.n_class, 2);
    SPOIL(OP_KL_TEACHER, 1, kl_teacher.tau, 0.0f);
    SPOIL(OP_DROPOUT, 1, dropout.rows_per_sample, 4);
    SPOIL(OP_ACT_FWD, ACT_COUNT, act_fwd.act, ACT_SLOPE);
    SPOIL(OP_GLU_FWD, ACT_COUNT, glu_fwd.act, ACT_SLOPE);
    SPOIL(OP_LINEAR_ACT_FWD, 1, linear_act_fwd.act, ACT_SLOPE);
    SPOIL(OP_LINEAR_GLU_FWD, 1, linear_glu_fwd.act, ACT_SLOPE);
    SPOIL(OP_LINEAR_ACT_BWD, 1, linear_act_bwd.act, ACT_SLOPE + 1);
    SPOIL(OP_LINEAR_GLU_BWD, 1, linear_glu_bwd.act, ACT_SLOPE + 1);
    SPOIL(OP_ACT_DX, 1, act_dx.act, ACT_SLOPE + 1);
    SPOIL(OP_ACT_BIAS_BWD, 1, act_bias_bwd.act, ACT_SLOPE + 1);
    SPOIL(OP_GLU_DX, 1, glu_dx.act, ACT_SLOPE + 1);
    SPOIL(OP_ATTN_FWD, MASK_COUNT, attn_fwd.shape.mask, MASK_COUNT);
    SPOIL(OP_ATTN_BWD, MASK_COUNT, attn_bwd.shape.heads, 3);
    SPOIL(OP_ATTN_DECODE, 3, attn_decode.shape.kv_heads, 3);
    SPOIL(OP_ATTN_DECODE, 3, attn_decode.shape.head_dim, 0);
    SPOIL(OP_ATTN_DECODE, 3, attn_decode.shape.window, -1);
    SPOIL(OP_CROSS_ATTN_FWD, 8, cross_attn_fwd.shape.mask, MASK_CAUSAL);
    SPOIL(OP_CROSS_ATTN_BWD, 8, cross_attn_bwd.shape.mask, MASK_PREFIX);
    SPOIL(OP_PATCHES, 5, patches.patch, 0);
    SPOIL(OP_PATCHES, 5, patches.patch, 4);
    SPOIL(OP_PATCHES, 10, patches.tubelet, 3);
    SPOIL(OP_PATCHES, 10, patches.height, 16);
    SPOIL(OP_PATCHES, 10, patches.frames, 0);
    SPOIL(OP_TICK, 1, tick.modulo, 0);
    SPOIL(OP_PACK_ROWS, 2, pack_rows.n_tail, 0);
    SPOIL(OP_PACK_ROWS, 2, pack_rows.n_each, 1);
    SPOIL(OP_PACK_ROWS, 2, pack_rows.align, 0);
}

/* The first case of a kind that has an argument. */
static void case_with(OpCase *c, OpKind kind, int arg)
{
    for (int i = 0; op_case_create(c, kind, i); i++) {
        if (c->args.t[arg]) return;
        op_case_destroy(c);
    }
    fail_msg("%s: no case has %s", op_table[kind].name, op_table[kind].arg[arg].name);
}

/* Float types that no kernel of the op has. */
static void test_float_types(void **state)
{
    (void)state;
    static const struct {
        OpKind kind;
        int    arg;
        DType  dtype;
    } none[] = { { OP_FILL, 0, DT_F64 }, { OP_FILL, 0, DT_E4M3 },  { OP_FILL, 0, DT_E5M2 },
                 { OP_CAST, 0, DT_F64 }, { OP_CAST, 0, DT_E5M2 },  { OP_CAST, 1, DT_E4M3 },
                 { OP_MUON, 1, DT_F32 }, { OP_ADAMW, 4, DT_E4M3 }, { OP_ADAMW, 4, DT_F32 } };
    OpCase c;
    for (int i = 0; i < ARRAY_LEN(none); i++) {
        case_with(&c, none[i].kind, none[i].arg);
        c.args.t[none[i].arg]->dtype = none[i].dtype;
        must_refuse(&c, none[i].arg, "of a type that nothing computes");
        op_case_destroy(&c);
    }
    for (DType t = 0; t < DT_COUNT; t++) {
        if (t == DT_F32 || t == DT_BF16 || t == DT_F16) continue;
        case_with(&c, OP_ADD, 0);
        for (int k = 0; k < 3; k++) c.args.t[k]->dtype = t;
        must_refuse(&c, 0, "of a type that nothing computes");
        op_case_destroy(&c);
    }
}

/* What rows with gaps cannot be: of another shape. Actions stand in rows beside their means. */
static void test_shapes(void **state)
{
    (void)state;
    static const OpKind moves[] = { OP_COPY, OP_CAST }, gauss[] = { OP_SAMPLE_GAUSS, OP_PPO_GAUSS_FWD };
    OpCase              c;
    for (int i = 0; i < ARRAY_LEN(moves); i++) {
        for (int k = 0; k < 2; k++) {
            assert_true(op_case_create(&c, moves[i], i == 0 ? 3 : 27));
            assert_true(tensor_rows(c.args.t[0]) > 1 && tensor_cols(c.args.t[0]) > 1);
            Tensor *y = c.args.t[k], *x = c.args.t[!k];
            tensor_init(y, y->name, y->dtype, 2, (int64_t[]){ tensor_cols(x), tensor_rows(x) });
            tensor_init(x, x->name, x->dtype, 2, (int64_t[]){ tensor_rows(x), tensor_cols(x) });
            assert_false(refused(&c));
            x->stride[0] += 4;
            must_refuse(&c, !k, "with gaps, of another shape");
            op_case_destroy(&c);
        }
    }
    for (int i = 0; i < ARRAY_LEN(gauss); i++) {
        int action = i == 0 ? 0 : 5;
        assert_true(op_case_create(&c, gauss[i], 5));
        Tensor *t = c.args.t[action];
        assert_true(tensor_rows(t) > 1);
        tensor_init(t, t->name, t->dtype, 1, (int64_t[]){ tensor_numel(t) });
        must_refuse(&c, action, "in one row");
        op_case_destroy(&c);
    }
}

/* The kernels sum dbeta beside dgamma. */
static void test_beta_alone(void **state)
{
    (void)state;
    OpCase c;
    case_with(&c, OP_NORM_BWD, 2);
    assert_false(refused(&c));
    c.args.norm_bwd.dgamma = NULL;
    must_refuse(&c, 2, "without dgamma");
    op_case_destroy(&c);
}

/* Each loss knows one of LOSS_SLOTS slots. */
static void test_slots(void **state)
{
    (void)state;
#define SLOTS(KIND, field)                                                                                   \
    SPOIL(KIND, 0, field.slot, -1);                                                                          \
    SPOIL(KIND, 0, field.slot, LOSS_SLOTS)
    SLOTS(OP_XENT_FWD, xent_fwd);
    SLOTS(OP_XENT_DX, xent_dx);
    SLOTS(OP_XENT, xent);
    SLOTS(OP_MSE_FWD, mse_fwd);
    SLOTS(OP_MSE_DX, mse_dx);
    SLOTS(OP_KL_FWD, kl_fwd);
    SLOTS(OP_KL_DX, kl_dx);
    SLOTS(OP_PPO_CAT_FWD, ppo_cat_fwd);
    SLOTS(OP_PPO_CAT_DX, ppo_cat_dx);
    SLOTS(OP_PPO_GAUSS_FWD, ppo_gauss_fwd);
    SLOTS(OP_PPO_GAUSS_DX, ppo_gauss_dx);
    SLOTS(OP_LOSS_ADD, loss_add);
    SLOTS(OP_HALT, halt);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_argument), cmocka_unit_test(test_single_numbers),
        cmocka_unit_test(test_companions),     cmocka_unit_test(test_value_gradient),
        cmocka_unit_test(test_scalars),        cmocka_unit_test(test_slots),
        cmocka_unit_test(test_both_wrong),     cmocka_unit_test(test_norm_of_advantages),
        cmocka_unit_test(test_gaps),           cmocka_unit_test(test_float_types),
        cmocka_unit_test(test_shapes),         cmocka_unit_test(test_beta_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
