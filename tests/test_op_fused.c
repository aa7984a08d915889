/* A fused op gives the bits of the ops it replaces, on every case of op_cases.h, so that lowering and
 * recomputation change nothing. Each check runs the fused op on a case, then its parts on copies of the same
 * inputs. */
#include "op_harness.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static Dev *dev; /* opened once for all tests by the group's setup */

static int open_dev(void **state)
{
    (void)state;
    DevOptions opt = { .threads = 2 };
    dev            = dev_open("cpu", &opt, NULL);
    return dev ? 0 : -1;
}

static int close_dev(void **state)
{
    (void)state;
    dev_close(dev);
    return 0;
}

/* A tensor of the same shape and contents, elsewhere; never freed before the process ends, like everything a
 * test forgets. */
typedef struct {
    Tensor t[16];
    int    n;
} Copies;

static Tensor *copy_of(Copies *s, const Tensor *t)
{
    if (!t) return NULL;
    Tensor *y = &s->t[s->n++];
    size_t  n = (size_t)(tensor_rows(t) * tensor_ld(t)) * dtype_bytes(t->dtype);
    *y        = *t;
    y->root   = y;
    y->data   = aligned_alloc(256, (n + 255) / 256 * 256);
    CHECK(y->data, "out of memory");
    for (int64_t i = 0; i < tensor_numel(t); i++) memcpy(case_at(y, i), case_at(t, i), dtype_bytes(t->dtype));
    return y;
}

static void copies_free(Copies *s)
{
    for (int i = 0; i < s->n; i++) free(s->t[i].data);
    s->n = 0;
}

static void run(OpKind kind, OpArgs args)
{
    Op op = { .kind = kind, .label = "part", .args = args };
    assert_int_equal(dev_run_op(dev, &op), 0);
}

static void same(const OpCase *c, const Tensor *fused, const Tensor *parts)
{
    if (!fused) return;
    for (int64_t i = 0; i < tensor_numel(fused); i++) {
        if (memcmp(case_at(fused, i), case_at(parts, i), dtype_bytes(fused->dtype)) == 0) continue;
        fail_msg("%s %s: %s element %lld is %.9g fused, %.9g in parts", op_table[c->kind].name, c->name,
                 fused->name, (long long)i, *case_at(fused, i), *case_at(parts, i));
    }
}

static void test_add_norm_fwd(void **state)
{
    (void)state;
    OpCase c;
    Copies k = { .n = 0 };
    for (int i = 0; op_case_create(&c, OP_ADD_NORM_FWD, i); i++) {
        AddNormFwd a   = c.args.add_norm_fwd;
        Tensor    *sum = copy_of(&k, a.sum), *y = copy_of(&k, a.y), *mean = copy_of(&k, a.mean),
               *rstd = copy_of(&k, a.rstd);
        assert_int_equal(op_case_run(dev, &c), 0);
        run(OP_ADD, (OpArgs){ .add = { sum, a.a, a.b } });
        run(OP_NORM_FWD, (OpArgs){ .norm_fwd = { y, mean, rstd, sum, a.gamma, a.beta, a.eps } });
        same(&c, a.sum, sum);
        same(&c, a.y, y);
        same(&c, a.mean, mean);
        same(&c, a.rstd, rstd);
        copies_free(&k);
        op_case_destroy(&c);
    }
}

static void test_norm_bwd(void **state)
{
    (void)state;
    OpCase c;
    Copies k = { .n = 0 };
    for (int i = 0; op_case_create(&c, OP_NORM_BWD, i); i++) {
        NormBwd a  = c.args.norm_bwd;
        Tensor *dx = copy_of(&k, a.dx), *dgamma = copy_of(&k, a.dgamma), *dbeta = copy_of(&k, a.dbeta);
        Tensor *dbias = copy_of(&k, a.dbias);
        assert_int_equal(op_case_run(dev, &c), 0);
        run(OP_NORM_DX, (OpArgs){ .norm_dx = { dx, a.dy, a.x, a.gamma, a.mean, a.rstd } });
        if (dgamma)
            run(OP_NORM_DW, (OpArgs){ .norm_dw = { dgamma, dbeta, NULL, a.dy, a.x, a.mean, a.rstd } });
        if (a.dres) run(OP_ADD, (OpArgs){ .add = { dx, a.dres, dx } });
        if (a.dbias) run(OP_BIAS_DW, (OpArgs){ .bias_dw = { dbias, NULL, dx } });
        same(&c, a.dx, dx);
        same(&c, a.dgamma, dgamma);
        same(&c, a.dbeta, dbeta);
        same(&c, a.dbias, dbias);
        copies_free(&k);
        op_case_destroy(&c);
    }
}

static void test_linear_act_fwd(void **state)
{
    (void)state;
    OpCase c;
    Copies k = { .n = 0 };
    for (int i = 0; op_case_create(&c, OP_LINEAR_ACT_FWD, i); i++) {
        LinearActFwd a = c.args.linear_act_fwd;
        for (int act = 0; act < ACT_COUNT; act++) {
            c.args.linear_act_fwd.act = (Act)act;
            Tensor *y = copy_of(&k, a.y), *pre = copy_of(&k, a.pre), *one = copy_of(&k, a.pre);
            for (int64_t e = 0; e < tensor_numel(one); e++) *case_at(one, e) = 1;
            assert_int_equal(op_case_run(dev, &c), 0);
            run(OP_LINEAR_FWD, (OpArgs){ .linear_fwd = { pre, NULL, a.x, a.w, a.bias } });
            run(OP_ACT_FWD, (OpArgs){ .act_fwd = { y, pre, (Act)act } });
            if (a.slope) run(OP_ACT_DX, (OpArgs){ .act_dx = { pre, one, pre, (Act)act } });
            same(&c, a.pre, pre);
            same(&c, a.y, y);
            copies_free(&k);
        }
        op_case_destroy(&c);
    }
}

static void test_linear_act_bwd(void **state)
{
    (void)state;
    OpCase c;
    Copies k = { .n = 0 };
    for (int i = 0; op_case_create(&c, OP_LINEAR_ACT_BWD, i); i++) {
        for (int act = 0; act <= ACT_SLOPE; act++) {
            c.args.linear_act_bwd.act = (Act)act;
            LinearActBwd a            = c.args.linear_act_bwd;
            Tensor      *d = copy_of(&k, a.dpre), *dpre = copy_of(&k, a.dpre), *db = copy_of(&k, a.db);
            assert_int_equal(op_case_run(dev, &c), 0);
            run(OP_LINEAR_DX, (OpArgs){ .linear_dx = { d, NULL, a.dy, a.w } });
            run(OP_ACT_DX, (OpArgs){ .act_dx = { dpre, d, a.pre, a.act } });
            if (a.db) run(OP_BIAS_DW, (OpArgs){ .bias_dw = { db, NULL, dpre } });
            same(&c, a.dpre, dpre);
            same(&c, a.db, db);
            copies_free(&k);
        }
        op_case_destroy(&c);
    }
}

static void test_linear_glu_fwd(void **state)
{
    (void)state;
    OpCase c;
    Copies k = { .n = 0 };
    for (int i = 0; op_case_create(&c, OP_LINEAR_GLU_FWD, i); i++) {
        for (int act = 0; act < ACT_COUNT; act++) {
            c.args.linear_glu_fwd.act = (Act)act;
            LinearGluFwd a            = c.args.linear_glu_fwd;
            Tensor      *y = copy_of(&k, a.y), *pre = copy_of(&k, a.pre), *one = copy_of(&k, a.y);
            for (int64_t e = 0; e < tensor_numel(one); e++) *case_at(one, e) = 1;
            assert_int_equal(op_case_run(dev, &c), 0);
            run(OP_LINEAR_FWD, (OpArgs){ .linear_fwd = { pre, NULL, a.x, a.w, NULL } });
            run(OP_GLU_FWD, (OpArgs){ .glu_fwd = { y, pre, a.act } });
            if (a.slope) run(OP_GLU_DX, (OpArgs){ .glu_dx = { pre, one, pre, a.act } });
            same(&c, a.pre, pre);
            same(&c, a.y, y);
            copies_free(&k);
        }
        op_case_destroy(&c);
    }
}

static void test_linear_glu_bwd(void **state)
{
    (void)state;
    OpCase c;
    Copies k = { .n = 0 };
    for (int i = 0; op_case_create(&c, OP_LINEAR_GLU_BWD, i); i++) {
        for (int act = 0; act <= ACT_SLOPE; act++) {
            c.args.linear_glu_bwd.act = (Act)act;
            LinearGluBwd a            = c.args.linear_glu_bwd;
            Tensor      *d = copy_of(&k, a.dpre), *dpre = copy_of(&k, a.dpre), half = *d;
            half.dim[1] = tensor_cols(a.w);
            assert_int_equal(op_case_run(dev, &c), 0);
            run(OP_LINEAR_DX, (OpArgs){ .linear_dx = { &half, NULL, a.dy, a.w } });
            run(OP_GLU_DX, (OpArgs){ .glu_dx = { dpre, &half, a.pre, a.act } });
            same(&c, a.dpre, dpre);
            copies_free(&k);
        }
        op_case_destroy(&c);
    }
}

/* A gate's slopes that are kept, times a gradient, are what the gradient makes of the gate: lowering to
 * slopes changes no bits. */
static void test_glu_slopes(void **state)
{
    (void)state;
    OpCase c;
    Copies k = { .n = 0 };
    for (int i = 0; op_case_create(&c, OP_GLU_DX, i); i++) {
        GluDx a = c.args.glu_dx;
        if (a.act != ACT_SLOPE) {
            Tensor *one = copy_of(&k, a.dy), *slope = copy_of(&k, a.x), *dx = copy_of(&k, a.dx);
            for (int64_t e = 0; e < tensor_numel(one); e++) *case_at(one, e) = 1;
            assert_int_equal(op_case_run(dev, &c), 0);
            run(OP_GLU_DX, (OpArgs){ .glu_dx = { slope, one, slope, a.act } });
            run(OP_GLU_DX, (OpArgs){ .glu_dx = { dx, a.dy, slope, ACT_SLOPE } });
            same(&c, a.dx, dx);
        }
        copies_free(&k);
        op_case_destroy(&c);
    }
}

static void test_linear_dw(void **state)
{
    (void)state;
    OpCase c;
    Copies k = { .n = 0 };
    for (int i = 0; op_case_create(&c, OP_LINEAR_DW, i); i++) {
        LinearDw a  = c.args.linear_dw;
        Tensor  *dw = copy_of(&k, a.dw), *db = copy_of(&k, a.db);
        assert_int_equal(op_case_run(dev, &c), 0);
        run(OP_LINEAR_DW, (OpArgs){ .linear_dw = { dw, NULL, NULL, a.dy, a.x } });
        if (a.db) run(OP_BIAS_DW, (OpArgs){ .bias_dw = { db, NULL, a.dy } });
        same(&c, a.dw, dw);
        same(&c, a.db, db);
        copies_free(&k);
        op_case_destroy(&c);
    }
}

static void test_act_bias_bwd(void **state)
{
    (void)state;
    OpCase c;
    Copies k = { .n = 0 };
    for (int i = 0; op_case_create(&c, OP_ACT_BIAS_BWD, i); i++) {
        ActBiasBwd a  = c.args.act_bias_bwd;
        Tensor    *dx = copy_of(&k, a.dx), *db = copy_of(&k, a.db);
        assert_int_equal(op_case_run(dev, &c), 0);
        run(OP_ACT_DX, (OpArgs){ .act_dx = { dx, a.dy, a.x, a.act } });
        run(OP_BIAS_DW, (OpArgs){ .bias_dw = { db, NULL, dx } });
        same(&c, a.dx, dx);
        same(&c, a.db, db);
        copies_free(&k);
        op_case_destroy(&c);
    }
}

static void test_xent(void **state)
{
    (void)state;
    OpCase c;
    Copies k = { .n = 0 };
    for (int i = 0; op_case_create(&c, OP_XENT, i); i++) {
        Xent    a    = c.args.xent;
        Tensor *loss = copy_of(&k, a.loss), *lse = copy_of(&k, a.loss), *dlogits = copy_of(&k, a.dlogits);
        assert_int_equal(op_case_run(dev, &c), 0);
        run(OP_XENT_FWD, (OpArgs){ .xent_fwd = { .loss    = loss,
                                                 .lse     = lse,
                                                 .logits  = a.logits,
                                                 .target  = a.target,
                                                 .n_class = a.n_class } });
        run(OP_XENT_DX, (OpArgs){ .xent_dx = { .dlogits = dlogits,
                                               .logits  = a.logits,
                                               .lse     = lse,
                                               .target  = a.target,
                                               .state   = a.state,
                                               .n_class = a.n_class,
                                               .slot    = a.slot } });
        same(&c, a.loss, loss);
        same(&c, a.dlogits, dlogits);
        copies_free(&k);
        op_case_destroy(&c);
    }
}

/* The same rows at another place in memory, or among other rows, give the same bits: what a micro-batch or a
 * chunk of the head cuts out must not depend on where the cut is. */
static void test_rows_stand_alone(void **state)
{
    (void)state;
    OpCase c;
    Copies k = { .n = 0 };
    assert_true(op_case_create(&c, OP_LINEAR_FWD, 9)); /* 257 rows */
    LinearFwd a     = c.args.linear_fwd;
    Tensor   *whole = copy_of(&k, a.y);
    run(OP_LINEAR_FWD, (OpArgs){ .linear_fwd = { whole, NULL, a.x, a.w, a.bias } });
    Tensor x, y;
    for (int64_t row0 = 0; row0 < 240; row0 += 37) {
        tensor_init_rows(&x, a.x, row0, 17);
        tensor_init_rows(&y, a.y, row0, 17);
        run(OP_LINEAR_FWD, (OpArgs){ .linear_fwd = { &y, NULL, &x, a.w, a.bias } });
        for (int64_t i = 0; i < tensor_numel(&y); i++) {
            int64_t at = row0 * tensor_cols(&y) + i;
            assert_memory_equal(case_at(&y, i), case_at(whole, at), 4);
        }
    }
    copies_free(&k);
    op_case_destroy(&c);
}

static void test_attn_rope(void **state)
{
    (void)state;
    OpCase c;
    Copies k = { .n = 0 };
    int    n = 0;
    for (int i = 0; op_case_create(&c, OP_ATTN_BWD, i); i++) {
        AttnBwd a = c.args.attn_bwd;
        if (a.table) {
            AttnBwd plain = a;
            Rope    rope  = { .table    = a.table,
                              .n_head   = a.shape.heads + a.shape.kv_heads,
                              .head_dim = a.shape.head_dim,
                              .inverse  = 1 };
            plain.dqkv = rope.y = rope.x = copy_of(&k, a.dqkv);
            plain.table                  = NULL;
            assert_int_equal(op_case_run(dev, &c), 0);
            run(OP_ATTN_BWD, (OpArgs){ .attn_bwd = plain });
            run(OP_ROPE, (OpArgs){ .rope = rope });
            same(&c, a.dqkv, plain.dqkv);
            n++;
        }
        copies_free(&k);
        op_case_destroy(&c);
    }
    assert_true(n > 0);
}

/* What QUANT makes of x on the way: the op alone, then QUANT of its result. */
static void test_quant(void **state)
{
    (void)state;
    OpCase c;
    Copies k = { .n = 0 };
    int    n = 0;
    for (int i = 0; op_case_create(&c, OP_QUANT, i); i++) {
        Quant   a = c.args.quant, plain = a;
        int64_t dim[2] = { tensor_rows(a.x), tensor_cols(a.x) / (a.from == QUANT_GLU ? 2 : 1) };
        Tensor  v;
        tensor_init(&v, "v", DT_F32, 2, dim);
        v.data     = calloc((size_t)tensor_numel(&v), sizeof(float));
        plain.from = QUANT_PLAIN;
        plain.x    = &v;
        plain.dy = plain.lse = plain.target = plain.state = NULL;
        plain.q                                           = copy_of(&k, a.q);
        plain.qt                                          = copy_of(&k, a.qt);
        plain.site                                        = copy_of(&k, a.site);
        plain.db                                          = copy_of(&k, a.db);
        assert_int_equal(op_case_run(dev, &c), 0);
        if (a.from == QUANT_ACT) run(OP_ACT_FWD, (OpArgs){ .act_fwd = { &v, a.x, a.act } });
        if (a.from == QUANT_GLU) run(OP_GLU_FWD, (OpArgs){ .glu_fwd = { &v, a.x, a.act } });
        if (a.from == QUANT_ACT_DX) run(OP_ACT_DX, (OpArgs){ .act_dx = { &v, a.dy, a.x, a.act } });
        if (a.from == QUANT_GLU_DX) run(OP_GLU_DX, (OpArgs){ .glu_dx = { &v, a.dy, a.x, a.act } });
        if (a.from == QUANT_XENT_DX)
            run(OP_XENT_DX, (OpArgs){ .xent_dx = { .dlogits = &v,
                                                   .logits  = a.x,
                                                   .lse     = a.lse,
                                                   .target  = a.target,
                                                   .state   = a.state,
                                                   .n_class = a.n_class,
                                                   .slot    = a.slot } });
        if (a.from != QUANT_PLAIN) {
            Tensor *db = plain.db;
            plain.db   = NULL;
            run(OP_QUANT, (OpArgs){ .quant = plain });
            if (db) run(OP_BIAS_DW, (OpArgs){ .bias_dw = { db, NULL, &v } });
            same(&c, a.q, plain.q);
            same(&c, a.qt, plain.qt);
            same(&c, a.site, plain.site);
            same(&c, a.db, db);
            n++;
        }
        free(v.data);
        copies_free(&k);
        op_case_destroy(&c);
    }
    assert_true(n > 100);
}

int main(void)
{
    const struct CMUnitTest test[] = {
        cmocka_unit_test(test_add_norm_fwd),
        cmocka_unit_test(test_norm_bwd),
        cmocka_unit_test(test_linear_act_fwd),
        cmocka_unit_test(test_act_bias_bwd),
        cmocka_unit_test(test_linear_act_bwd),
        cmocka_unit_test(test_linear_glu_fwd),
        cmocka_unit_test(test_linear_glu_bwd),
        cmocka_unit_test(test_linear_dw),
        cmocka_unit_test(test_attn_rope),
        cmocka_unit_test(test_xent),
        cmocka_unit_test(test_rows_stand_alone),
        cmocka_unit_test(test_glu_slopes),
        cmocka_unit_test(test_quant),
    };
    return cmocka_run_group_tests(test, open_dev, close_dev);
}
