/* Every op of the CPU backend, on every case of op_cases.h: against the double reference, with any number of
 * threads, and in place where its row allows it. */
#include "dev/cpu/cpu_vec.h"
#include "dev/cpu/cpu_wait.h"
#include "op_harness.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

typedef struct {
    OpKind kind;
} Row;

static Dev *open_cpu(int threads)
{
    DevOptions opt = { .threads = threads };
    Dev       *dev = dev_open("cpu", &opt, NULL);
    assert_non_null(dev);
    return dev;
}

/* The case after i. make test takes every third one of a long list; OPS_LONG=1 (make test-long) takes all. */
static int next_case(int i) { return i + (i < 24 || getenv("OPS_LONG") ? 1 : 3); }

static void test_reference(void **state)
{
    OpKind kind = ((Row *)*state)->kind;
    Dev   *dev  = open_cpu(2);
    OpCase c;
    char   buf[WHY];
    int    i = 0;
    assert_non_null(op_case_table[kind]);
    assert_non_null(op_ref_table[kind]);
    for (; op_case_create(&c, kind, i); i = next_case(i)) {
        const char *bad = op_check_case(dev, &c, buf);
        if (bad) fail_msg("%s: %s", op_table[kind].name, bad);
        op_case_destroy(&c);
    }
    assert_true(i > 0);
    dev_close(dev);
}

/* The same bits from 1, 2 and 3 threads, and from a second run. */
static void test_threads(void **state)
{
    OpKind kind  = ((Row *)*state)->kind;
    Dev   *dev[] = { open_cpu(1), open_cpu(2), open_cpu(3), open_cpu(3) };
    OpCase c;
    char   buf[WHY];
    for (int i = 0; op_case_create(&c, kind, i); i = next_case(i)) {
        OpImage before, first;
        op_image_take(&before, &c);
        assert_int_equal(op_case_run(dev[0], &c), 0);
        op_image_take(&first, &c);
        for (int d = 1; d < ARRAY_LEN(dev); d++) {
            op_image_restore(&before, &c);
            assert_int_equal(op_case_run(dev[d], &c), 0);
            const char *bad = op_check_same(&c, &first, "with other threads", buf);
            if (bad) fail_msg("%s: %s", op_table[kind].name, bad);
        }
        op_image_free(&before);
        op_image_free(&first);
        op_case_destroy(&c);
    }
    for (int d = 0; d < ARRAY_LEN(dev); d++) dev_close(dev[d]);
}

/* Output o in the storage of input in gives the bits it gives elsewhere. Skipped where shapes or strides
 * differ: such a pair cannot share storage. */
static void check_alias(Dev *dev, OpCase *c, int o, int in)
{
    Tensor *out = c->args.t[o], *from = c->args.t[in];
    if (!out || !from || !tensor_same_shape(out, from) || tensor_ld(out) != tensor_ld(from)) return;
    OpImage before;
    op_image_take(&before, c);
    assert_int_equal(op_case_run(dev, c), 0);
    OpImage apart;
    op_image_take(&apart, c);
    op_image_restore(&before, c);
    void *own = out->data;
    out->data = from->data;
    assert_int_equal(op_case_run(dev, c), 0);
    out->data = own;
    /* Move the result to where it belongs, then everything must be as before. */
    for (int64_t e = 0; e < tensor_numel(out); e++)
        memcpy(case_at(out, e), case_at(from, e), dtype_bytes(out->dtype));
    memcpy(c->block[in], before.block[in], c->block_bytes[in]);
    char        buf[WHY];
    const char *bad = op_check_same(c, &apart, "in place", buf);
    if (bad) fail_msg("%s: %s (%s in %s)", op_table[c->kind].name, bad, out->name, from->name);
    op_image_restore(&before, c);
    op_image_free(&before);
    op_image_free(&apart);
}

static void test_alias(void **state)
{
    (void)state;
    Dev   *dev = open_cpu(2);
    OpCase c;
    int    n_pair = 0;
    for (int kind = 0; kind < OP_COUNT; kind++) {
        const OpRow *row = &op_table[kind];
        for (int i = 0; op_case_create(&c, (OpKind)kind, i); i = next_case(i)) {
            for (int p = 0; p < ARRAY_LEN(row->alias) && row->alias[p][0] != row->alias[p][1]; p++) {
                check_alias(dev, &c, row->alias[p][0], row->alias[p][1]);
                n_pair++;
            }
            op_case_destroy(&c);
        }
    }
    assert_true(n_pair > 100);
    dev_close(dev);
}

/* A replayed list gives what single calls give, and times every op. */
static void test_exec(void **state)
{
    (void)state;
    Dev   *dev = open_cpu(2);
    OpCase c;
    char   buf[WHY];
    assert_true(op_case_create(&c, OP_LINEAR_FWD, 7));
    OpImage before, single;
    op_image_take(&before, &c);
    assert_int_equal(op_case_run(dev, &c), 0);
    op_image_take(&single, &c);
    op_image_restore(&before, &c);
    Op       op[2] = { { .kind = c.kind, .label = "one", .args = c.args },
                       { .kind = c.kind, .label = "two", .args = c.args } };
    DevExec *exec  = dev->vt->exec_create(dev, op, 2);
    if (!exec) fail_msg("%s", err_get());
    dev_seal(dev); /* a replay asks for no memory */
    assert_int_equal(dev->vt->exec_run(dev, exec), 0);
    assert_null(op_check_same(&c, &single, "in a list", buf));
    DevOpTime time[2];
    assert_int_equal(dev->vt->exec_time(dev, exec, time), 0);
    assert_string_equal(time[1].label, "two");
    assert_true(time[0].time_us > 0);
    dev->vt->exec_destroy(dev, exec);
    Op bad                = op[0];
    bad.args.linear_fwd.w = NULL;
    assert_null(dev->vt->exec_create(dev, &bad, 1));
    assert_non_null(strstr(err_get(), "w is missing"));
    err_clear();
    op_image_free(&before);
    op_image_free(&single);
    op_case_destroy(&c);
    dev_close(dev);
}

/* Binding a list reserves all that its replay will ask for: a sealed device aborts on any more. A fresh
 * device each time, or an earlier op's scratch would hide a shortage. */
static void test_sealed(void **state)
{
    (void)state;
    OpCase c;
    for (int kind = 0; kind < OP_COUNT; kind++) {
        for (int i = 0; op_case_create(&c, (OpKind)kind, i); i += i < 6 ? 1 : 7) { /* a device each */
            Dev     *dev  = open_cpu(2);
            Op       op   = { .kind = (OpKind)kind, .label = c.name, .args = c.args };
            DevExec *exec = dev->vt->exec_create(dev, &op, 1);
            if (!exec) fail_msg("%s", err_get());
            dev_seal(dev);
            assert_int_equal(dev->vt->exec_run(dev, exec), 0);
            dev->vt->exec_destroy(dev, exec);
            dev_close(dev);
            op_case_destroy(&c);
        }
    }
}

/* e^x over all floats in steps: 1 unit in the last place, 0 below, infinity above, NaN stays NaN. */
static void test_exp(void **state)
{
    (void)state;
    for (uint32_t u = 0; u < 0xFF900000u; u += 4001) {
        float x, lane[VL];
        memcpy(&x, &u, 4);
        vf_store(lane, vf_exp(vf_set(x)));
        double want = exp((double)x), unit = fmax(ldexp(1, ilogb(want) - 23), 0x1p-149);
        if (isnan(x)) {
            assert_true(isnan(lane[VL - 1]));
        } else if (x < -87.33654f) {
            assert_true(lane[0] == 0);
        } else if (x > 88.38f) {
            assert_true(lane[0] > 2.4e38f);
        } else if (!(fabs(lane[0] - want) <= unit)) {
            fail_msg("exp(%.9g) is %.9g, not %.9g", x, lane[0], want);
        }
    }
}

static void test_transpose(void **state)
{
    (void)state;
    vf    v[VL];
    float lane[VL];
    for (int i = 0; i < VL; i++) {
        for (int j = 0; j < VL; j++) lane[j] = (float)(i * VL + j);
        v[i] = vf_load(lane);
    }
    vf_transpose(v);
    for (int i = 0; i < VL; i++) {
        vf_store(lane, v[i]);
        for (int j = 0; j < VL; j++) assert_true(lane[j] == (float)(j * VL + i));
    }
}

/* Waits begin brief where others need the CPUs, are brief at once where a thread was kept from running, long
 * again after a quiet second. */
static void test_waits(void **state)
{
    (void)state;
    CpuWait w = { .brief = 1 };
    assert_true(cpu_wait_begin(0, 2, 16));
    assert_false(cpu_wait_begin(1, 16, 16));
    assert_true(cpu_wait_begin(2, 16, 16));
    assert_false(cpu_wait_begin(15, 2, 16));
    for (int i = 0; i < 3; i++) assert_true(cpu_wait_look(&w, 0.005));
    assert_false(cpu_wait_look(&w, 0.005));
    assert_false(cpu_wait_look(&w, 0.09));
    assert_true(cpu_wait_look(&w, 0.4));
    for (int i = 0; i < 3; i++) assert_true(cpu_wait_look(&w, 0));
    assert_true(cpu_wait_look(&w, 0.2));
    for (int i = 0; i < 3; i++) assert_true(cpu_wait_look(&w, 0));
    assert_false(cpu_wait_look(&w, 0));
}

int main(void)
{
    static Row        row[OP_COUNT];
    static char       name[2 * OP_COUNT][48];
    struct CMUnitTest test[2 * OP_COUNT + 6];
    int               n = 0;
    for (int k = 0; k < OP_COUNT; k++) {
        row[k].kind = (OpKind)k;
        snprintf(name[2 * k], sizeof name[0], "reference %s", op_table[k].name);
        snprintf(name[2 * k + 1], sizeof name[0], "threads %s", op_table[k].name);
        test[n++] = (struct CMUnitTest){ name[2 * k], test_reference, NULL, NULL, &row[k] };
        test[n++] = (struct CMUnitTest){ name[2 * k + 1], test_threads, NULL, NULL, &row[k] };
    }
    test[n++] = (struct CMUnitTest)cmocka_unit_test(test_alias);
    test[n++] = (struct CMUnitTest)cmocka_unit_test(test_exec);
    test[n++] = (struct CMUnitTest)cmocka_unit_test(test_sealed);
    test[n++] = (struct CMUnitTest)cmocka_unit_test(test_exp);
    test[n++] = (struct CMUnitTest)cmocka_unit_test(test_transpose);
    test[n++] = (struct CMUnitTest)cmocka_unit_test(test_waits);
    return _cmocka_run_group_tests("op_cpu", test, (size_t)n, NULL, NULL);
}
