/* The null backend, choosing a backend, and the random numbers that all of them share. */
#include "dev/null/null.h"
#include "op_harness.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static Dev *open_as(const char *spec)
{
    const char *why = NULL;
    Dev        *dev = dev_open(spec, NULL, &why);
    if (!dev) fail_msg("%s: %s", spec, err_get());
    assert_non_null(why);
    return dev;
}

/* ---- Null ---------------------------------------------------------------------------------------------- */

/* Every case is right and counted; taking any needed argument away is noticed. */
static void test_null_accepts(void **state)
{
    (void)state;
    Dev   *dev = open_as("null");
    OpCase c;
    double flops = 0, bytes = 0;
    int    n = 0;
    for (int kind = 0; kind < OP_COUNT; kind++) {
        assert_true(dev_has(dev->vt, (OpKind)kind));
        for (int i = 0; op_case_create(&c, (OpKind)kind, i); i++, n++) {
            if (op_case_run(dev, &c) < 0) fail_msg("%s %s: %s", op_table[kind].name, c.name, err_get());
            flops += op_flops((OpKind)kind, &c.args);
            bytes += op_bytes((OpKind)kind, &c.args);
            op_case_destroy(&c);
        }
        assert_true(op_case_create(&c, (OpKind)kind, 0));
        for (int k = 0; k < op_table[kind].n_tensor; k++) {
            if (op_table[kind].arg[k].access & ARG_OPTIONAL) continue;
            Tensor *t   = c.args.t[k];
            c.args.t[k] = NULL;
            assert_int_equal(op_case_run(dev, &c), -1);
            assert_non_null(strstr(err_get(), "is missing"));
            err_clear();
            c.args.t[k] = t;
        }
        op_case_destroy(&c);
    }
    NullStats s = null_stats(dev);
    assert_int_equal(s.n_op, n);
    assert_true(flops > 0 && s.flops == flops && s.bytes == bytes);
    null_reset(dev);
    assert_true(null_stats(dev).flops == 0 && null_stats(dev).n_op == 0);
    dev_close(dev);
}

static int allowed(const OpRow *row, int i, int j)
{
    for (int p = 0; p < ARRAY_LEN(row->alias) && row->alias[p][0] != row->alias[p][1]; p++) {
        int a = row->alias[p][0], b = row->alias[p][1];
        if ((a == i && b == j) || (a == j && b == i)) return 1;
    }
    return 0;
}

/* Sharing by address and, before binding, by root and offset. Two inputs may be one tensor; an output may
 * not, unless the row says so. */
static void test_null_sharing(void **state)
{
    (void)state;
    OpCase c;
    char   buf[256];
    int    n_bad = 0, n_good = 0;
    for (int kind = 0; kind < OP_COUNT; kind++) {
        const OpRow *row = &op_table[kind];
        assert_true(op_case_create(&c, (OpKind)kind, 2));
        for (int i = 0; i < row->n_tensor * row->n_tensor; i++) {
            int     a = i / row->n_tensor, b = i % row->n_tensor;
            Tensor *x = c.args.t[a], *y = c.args.t[b];
            if (a == b || !x || !y || !tensor_same_shape(x, y) || tensor_ld(x) != tensor_ld(y) ||
                x->dtype != y->dtype)
                continue;
            int    fine = !((row->arg[a].access | row->arg[b].access) & ARG_WRITE) || allowed(row, a, b);
            Tensor keep = *x;
            void  *addr[OP_MAX_TENSOR];
            x->data = y->data;
            assert_int_equal(null_check((OpKind)kind, &c.args, buf, sizeof buf) == NULL, fine);
            *x = keep;
            for (int k = 0; k < row->n_tensor; k++) {
                addr[k]          = c.tensor[k].data;
                c.tensor[k].data = NULL;
            }
            x->root = y->root;
            assert_int_equal(null_check((OpKind)kind, &c.args, buf, sizeof buf) == NULL, fine);
            x->offset_bytes = 4; /* by one element: never */
            int apart = tensor_numel(x) == 1 || !((row->arg[a].access | row->arg[b].access) & ARG_WRITE);
            assert_int_equal(null_check((OpKind)kind, &c.args, buf, sizeof buf) == NULL, apart);
            for (int k = 0; k < row->n_tensor; k++) c.tensor[k].data = addr[k];
            *x = keep;
            *(fine ? &n_good : &n_bad) += 1;
        }
        op_case_destroy(&c);
    }
    assert_true(n_bad > 20 && n_good > 10);
}

static int is_activation(const char *arg)
{
    static const char *const name[] = { "x", "y", "pre", "dy", "dpre" };
    for (int i = 0; i < ARRAY_LEN(name); i++) {
        if (strcmp(arg, name[i]) == 0) return 1;
    }
    return 0;
}

/* A product fused with an activation or a gate rounds between its parts, to the one dtype of its
 * activations. */
static void test_null_dtypes(void **state)
{
    (void)state;
    static const OpKind kind[] = { OP_LINEAR_ACT_FWD, OP_LINEAR_ACT_BWD, OP_LINEAR_GLU_FWD,
                                   OP_LINEAR_GLU_BWD };
    for (int i = 0; i < ARRAY_LEN(kind); i++) {
        const OpRow *row = &op_table[kind[i]];
        OpCase       c;
        char         buf[256];
        int          n = 0;
        assert_true(op_case_create(&c, kind[i], 2));
        for (int k = 0; k < row->n_tensor; k++) {
            if (!c.args.t[k]) continue;
            int act            = is_activation(row->arg[k].name);
            c.args.t[k]->dtype = DT_BF16;
            const char *bad    = null_check(kind[i], &c.args, buf, sizeof buf);
            assert_int_equal(bad != NULL, act);
            if (bad) assert_non_null(strstr(bad, "one dtype"));
            c.args.t[k]->dtype = DT_F32;
            n += act;
        }
        assert_int_equal(n, 3);
        for (int k = 0; k < row->n_tensor; k++) {
            if (c.args.t[k] && is_activation(row->arg[k].name)) c.args.t[k]->dtype = DT_BF16;
        }
        assert_null(null_check(kind[i], &c.args, buf, sizeof buf));
        op_case_destroy(&c);
    }
}

/* Column slices of one packed row do not overlap though their address ranges do; one column more does. */
static void test_null_slices(void **state)
{
    (void)state;
    float   data[10 * 24];
    Tensor  whole, a, b, y;
    int64_t dim[2] = { 10, 24 }, part[2] = { 10, 8 };
    tensor_init(&whole, "whole", DT_F32, 2, dim);
    Tensor *v[] = { &a, &b, &y };
    for (int i = 0; i < 3; i++) {
        tensor_init(v[i], "part", DT_F32, 2, part);
        v[i]->stride[0] = 24;
        v[i]->root      = &whole;
        v[i]->data      = data + 8 * i;
    }
    OpArgs args = { .add = { .y = &y, .a = &a, .b = &b } };
    char   buf[256];
    assert_null(null_check(OP_ADD, &args, buf, sizeof buf));
    y.data = data + 15;
    assert_non_null(strstr(null_check(OP_ADD, &args, buf, sizeof buf), "overlap in part"));
    y.data = data + 17; /* wraps into the first column of the next row of a */
    assert_non_null(strstr(null_check(OP_ADD, &args, buf, sizeof buf), "overlap in part"));
    y.data = data + 8; /* exactly b: allowed */
    assert_null(null_check(OP_ADD, &args, buf, sizeof buf));
}

static void test_null_memory(void **state)
{
    (void)state;
    Dev   *dev  = open_as("null");
    size_t huge = (size_t)100 << 30;
    char  *a = dev_slab_alloc(dev, huge), *b = dev_slab_alloc(dev, 1), *c = dev_slab_alloc(dev, 300);
    assert_true(a && b >= a + huge && c > b);
    assert_true((uintptr_t)a % TENSOR_ALIGN == 0 && (uintptr_t)b % TENSOR_ALIGN == 0 &&
                (uintptr_t)c % TENSOR_ALIGN == 0);
    assert_true(null_stats(dev).allocated_bytes == huge + 301);
    assert_true(dev->allocated_bytes == huge + 301);
    int32_t host = 7;
    assert_int_equal(dev->vt->upload(dev, LANE_H2D, b, &host, 4), 0);
    assert_int_equal(dev->vt->download(dev, LANE_D2H, &host, b, 4), 0);
    assert_int_equal(host, 0);
    dev_close(dev);
}

/* ---- Choosing a backend -------------------------------------------------------------------------------- */

static void test_open(void **state)
{
    (void)state;
    const char *why;
    Dev        *dev = open_as("cpu");
    DevInfo     info;
    assert_int_equal(dev->vt->info(dev, &info), 0);
    assert_true(info.n_sm >= 1 && info.total_bytes > 0 && info.free_bytes <= info.total_bytes &&
                info.name[0]);
    unsigned char *p = dev_slab_alloc(dev, 5000000), back[16];
    assert_non_null(p);
    assert_int_equal((uintptr_t)p % TENSOR_ALIGN, 0);
    for (size_t i = 0; i < 5000000; i++) assert_int_equal(p[i], 0);
    assert_int_equal(dev->vt->upload(dev, LANE_H2D, p + 100, "0123456789abcde", 16), 0);
    assert_int_equal(dev->vt->download(dev, LANE_D2H, back, p + 100, 16), 0);
    assert_string_equal((char *)back, "0123456789abcde");
    dev_slab_free(dev, p);
    dev_close(dev);

    assert_null(dev_open("gpu", NULL, &why));
    assert_int_equal(err_kind(), ERR_USER);
    err_clear();
    assert_null(dev_open("cuda:x", NULL, &why));
    assert_int_equal(err_kind(), ERR_USER);
    err_clear();

    dev = dev_open("auto", NULL, &why);
    assert_non_null(dev);
    assert_int_equal(err_kind(), ERR_NONE); /* a failed try at CUDA leaves no error behind */
    if (dev->vt->kind == DEV_CPU) {
        assert_true(strncmp(why, "cpu: ", 5) == 0 && strlen(why) > 5);
        assert_null(dev_open("cuda", NULL, &why));
        assert_int_equal(err_kind(), ERR_USER);
        assert_non_null(strstr(err_get(), "device: cuda is not usable: "));
        err_clear();
    }
    dev_close(dev);
}

/* An empty slot is named with op and backend. */
static void test_empty_slot(void **state)
{
    (void)state;
    Dev  *dev  = open_as("cpu");
    DevVt vt   = *dev->vt;
    vt.ops.add = NULL;
    dev->vt    = &vt;
    Op op      = { .kind = OP_ADD, .label = "block 3 residual" };
    assert_false(dev_has(&vt, OP_ADD));
    assert_int_equal(dev_run_op(dev, &op), -1);
    assert_string_equal(err_get(), "block 3 residual: cpu cannot run add");
    err_clear();
    dev->vt = dev_cpu();
    dev_close(dev);
}

/* ---- Random numbers ------------------------------------------------------------------------------------ */

/* Known answers of Philox4x32-10 that its authors publish. */
static void test_philox(void **state)
{
    (void)state;
    static const uint32_t in[3][6]   = { { 0, 0, 0, 0, 0, 0 },
                                         { ~0u, ~0u, ~0u, ~0u, ~0u, ~0u },
                                         { 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822,
                                           0x299f31d0 } };
    static const uint32_t want[3][4] = { { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 },
                                         { 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd },
                                         { 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1 } };
    for (int i = 0; i < 3; i++) {
        uint32_t out[4];
        philox4x32(out, in[i], in[i] + 4);
        assert_memory_equal(out, want[i], sizeof out);
    }
    uint32_t four[4];
    rng_draw4(four, 11, 3, 5, 9, 41);
    for (int e = 40; e < 44; e++) assert_int_equal(rng_draw(11, 3, 5, 9, e), four[e - 40]);
    assert_true(rng_draw(11, 3, 5, 9, 0) != rng_draw(11, 3, 5, 10, 0) &&
                rng_draw(11, 3, 5, 9, 0) != rng_draw(11, 4, 5, 9, 0));
    assert_true(rng_uniform(0) == 0 && rng_uniform(~0u) < 1);
    assert_true(rng_threshold(0) == 0 && rng_threshold(0.5f) == 1u << 31 && rng_threshold(1) == ~0u);
}

/* p of the elements are dropped: 4 standard deviations around it. */
static void test_dropout_rate(void **state)
{
    (void)state;
    Dev   *dev = open_as("cpu");
    OpCase c;
    assert_true(op_case_create(&c, OP_DROPOUT, 3)); /* 64 rows of 384, p = 0.1 */
    assert_int_equal(op_case_run(dev, &c), 0);
    int64_t n = tensor_numel(c.args.dropout.y), zero = 0;
    for (int64_t i = 0; i < n; i++) zero += *case_at(c.args.dropout.y, i) == 0;
    assert_true(fabs((double)zero - 0.1 * (double)n) < 4 * sqrt(0.09 * (double)n));
    op_case_destroy(&c);
    dev_close(dev);
}

int main(void)
{
    const struct CMUnitTest test[] = {
        cmocka_unit_test(test_null_accepts), cmocka_unit_test(test_null_sharing),
        cmocka_unit_test(test_null_dtypes),  cmocka_unit_test(test_null_slices),
        cmocka_unit_test(test_null_memory),  cmocka_unit_test(test_open),
        cmocka_unit_test(test_empty_slot),   cmocka_unit_test(test_philox),
        cmocka_unit_test(test_dropout_rate),
    };
    return cmocka_run_group_tests(test, NULL, NULL);
}
