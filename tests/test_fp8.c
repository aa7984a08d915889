/* Products in fp8 on the CPU: what the pass writes into the list, that fusing and recomputation change no
 * bits, that training goes as in f32, and that scales follow the numbers and belong to their weights. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/folder.h"
#include "ckpt/ckpt.h"
#include "jobs.h"
#include "run/build.h"
#include "tensor/number.h"

#include <math.h>
#include <stdio.h>
#include <unistd.h>

static const char gated[]  = "model: {layers: 2, width: 32, heads: 4, vocab: 300, context: 16, act: swiglu, "
                             "norm: rmsnorm, pos: rope}\n"
                             "step_tokens: 64\ndevice: cpu\ndata: {kind: random}\n";
static const char biased[] = "model: {layers: 2, width: 32, heads: 4, vocab: 300, context: 16, bias: true}\n"
                             "step_tokens: 64\ndevice: cpu\ndata: {kind: random}\n";

static Dev *dev;

static int open_dev(void **state)
{
    (void)state;
    dev = dev_open("cpu", &(DevOptions){ .threads = 1 }, NULL);
    return dev ? 0 : -1;
}

static int close_dev(void **state)
{
    (void)state;
    dev_close(dev);
    return 0;
}

typedef struct {
    const char    *text, *override;
    RecomputeLevel level;
    int            wide; /* 1: no fp8 */
} Want;

static Job *open_job(Want w)
{
    Recipe    r;
    Job      *j;
    JobChoice c = { .micro_batch = 4, .head_rows = 32, .compute = DT_F32, .fp8 = !w.wide, .level = w.level };
    char     *override[] = { (char *)w.override };
    if (recipe_parse(&r, "t.yaml", w.text, strlen(w.text), w.override ? 1 : 0, override) < 0)
        fail_msg("%s", err_get());
    if (build_create(&j, &task_lm, &r, &c, JOB_TRAIN, dev->vt) < 0) fail_msg("%s", err_get());
    if (build_verify(j) < 0 || build_bind(j, dev) < 0 || build_init(j) < 0) fail_msg("%s", err_get());
    return j;
}

static int count(const Job *j, OpKind kind)
{
    const Prog *p = job_prog(j, "micro-step");
    int         n = 0;
    for (int i = 0; i < prog_n_op(p); i++) n += prog_op(p, i)->kind == kind;
    return n;
}

static double loss_of(Job *j)
{
    StepState s;
    assert_int_equal(job_read_state(j, &s), 0);
    assert_int_equal(s.out.skip, 0);
    return s.out.loss;
}

static void same_weights(Job *a, Job *b, const char *what)
{
    for (int i = 0; i < a->table[0]->n_param; i++) {
        const Param *p = &a->table[0]->param[i], *q = &b->table[0]->param[i];
        if (memcmp(p->col[COL_WEIGHT]->data, q->col[COL_WEIGHT]->data, tensor_bytes(p->col[COL_WEIGHT])) != 0)
            fail_msg("%s: %s differs", what, p->name);
    }
}

/* Four layers a block and two chunks of the head, three products each, all in fp8. Each product's weight is
 * quantised in the update. */
static void test_lists(void **state)
{
    (void)state;
    Job *j = open_job((Want){ .text = gated });
    assert_int_equal(count(j, OP_LINEAR_FWD) + count(j, OP_LINEAR_DX) + count(j, OP_LINEAR_DW), 0);
    assert_int_equal(count(j, OP_FP8_LINEAR), 2 * (2 * 4 + 2));
    assert_int_equal(count(j, OP_FP8_LINEAR_DW), 2 * 4 + 2);
    assert_int_equal(count(j, OP_QUANT), 2 * (2 * 4 + 2)); /* x and dy of each */
    assert_int_equal(count(j, OP_GLU_FWD) + count(j, OP_GLU_DX), 0);
    int n = 0;
    for (int i = 0; i < prog_n_op(job_prog(j, "update")); i++)
        n += prog_op(job_prog(j, "update"), i)->kind == OP_QUANT;
    assert_int_equal(n, 2 * 4 + 1);
    build_destroy(j);
    j = open_job((Want){ .text = gated, .override = "fp8.head=false" });
    assert_int_equal(count(j, OP_LINEAR_FWD), 2);
    build_destroy(j);
    j = open_job((Want){ .text = gated, .override = "fp8.wide=block.0,block.1.up" });
    assert_int_equal(count(j, OP_FP8_LINEAR_DW), 3 + 2);
    assert_int_equal(count(j, OP_LINEAR_FWD) + count(j, OP_LINEAR_GLU_FWD), 5);
    build_destroy(j);
}

/* A gate or activation that writes fp8 itself, and activations that are computed again, change no bits. */
static void test_same_bits(void **state)
{
    (void)state;
    const char *text[] = { gated, biased };
    for (int k = 0; k < 2; k++) {
        Job *plain = open_job((Want){ .text = text[k], .override = "opt.quant=false" });
        Job *fused = open_job((Want){ .text = text[k] });
        Job *again = open_job((Want){ .text = text[k], .level = LEVEL_BLOCK });
        Job *cheap = open_job((Want){ .text = text[k], .level = LEVEL_CHEAP });
        Job *all[] = { plain, fused, again, cheap };
        assert_true(count(fused, OP_QUANT) == count(plain, OP_QUANT));
        assert_true(prog_n_op(job_prog(fused, "micro-step")) < prog_n_op(job_prog(plain, "micro-step")));
        for (int i = 0; i < 4; i++) {
            for (int s = 0; s < 4; s++) job_train_step(all[i], s);
        }
        same_weights(plain, fused, "fused");
        same_weights(plain, again, "block computed again");
        same_weights(plain, cheap, "cheap ops computed again");
        for (int i = 0; i < 4; i++) build_destroy(all[i]);
    }
}

/* Twenty steps end within 2 % of f32, with either way of scaling. All jobs see the same batches. Later the
 * runs part: the ids are learned by heart, and the loss falls by a per cent a step. */
static void test_learns(void **state)
{
    (void)state;
    Job   *job[] = { open_job((Want){ .text = gated, .wide = 1 }), open_job((Want){ .text = gated }),
                     open_job((Want){ .text = gated, .override = "fp8.scaling=dynamic" }) };
    double loss[3];
    for (int k = 0; k < 3; k++) {
        job_train_step(job[k], 0);
        double first = loss_of(job[k]);
        for (int s = 1; s < 20; s++) job_train_step(job[k], s);
        loss[k] = loss_of(job[k]);
        assert_true(loss[k] < 0.9 * first);
        build_destroy(job[k]);
    }
    printf("loss after 20 steps: f32 %.4f, fp8 %.4f, dynamic %.4f\n", loss[0], loss[1], loss[2]);
    assert_true(fabs(loss[1] / loss[0] - 1) < 0.02);
    assert_true(fabs(loss[2] / loss[0] - 1) < 0.02);
}

static float scale_of(const Tensor *site) { return ((const float *)site->data)[FP8_SITE_SCALE]; }

/* A step with one gain a thousand times too large: the activation behind it is an outlier. */
static void outlier_step(Job *j, int64_t step)
{
    float *g = param_find(j->table[0], "block.0.norm2.weight")->col[COL_WEIGHT]->data, was = g[3];
    g[3] *= 1000;
    float much = g[3];
    job_train_step(j, step);
    g[3] = was + (g[3] - much); /* what the step itself changed stays */
}

/* The scale falls for as long as the history remembers the outlier, then it is back. The loss goes as that of
 * a run in f32 with the same outlier. */
static void test_outlier(void **state)
{
    (void)state;
    Job    *j = open_job((Want){ .text = gated }), *f32 = open_job((Want){ .text = gated, .wide = 1 });
    Tensor *site = param_find(j->table[0], "block.0.up.weight")->fp8->x_site;
    int     back = 0;
    for (int s = 0; s < 10; s++) {
        job_train_step(j, s);
        job_train_step(f32, s);
    }
    float before = scale_of(site);
    outlier_step(j, 10);
    outlier_step(f32, 10);
    assert_true(scale_of(site) <= before / 256);
    for (int s = 11; s < 31; s++) {
        job_train_step(j, s);
        job_train_step(f32, s);
        if (!back && scale_of(site) >= before / 2) back = s - 10;
    }
    printf("scale %g, %d steps after the outlier it is back; loss %.4f, in f32 %.4f\n", (double)before, back,
           loss_of(j), loss_of(f32));
    assert_true(back > 0 && back <= 20);
    assert_true(loss_of(j) / loss_of(f32) < 1.03); /* saturation may even help */
    build_destroy(j);
    build_destroy(f32);
}

/* A frozen weight has fp8 copies, too; products with it have no gradient of the weight. */
static void test_frozen(void **state)
{
    (void)state;
    Job         *j = open_job((Want){ .text = gated, .override = "freeze=block.0" });
    const Param *p = param_find(j->table[0], "block.0.up.weight");
    assert_true(p->frozen && p->fp8);
    assert_int_equal(count(j, OP_FP8_LINEAR_DW), 4 + 2);
    uint8_t first = ((const uint8_t *)p->fp8->q->data)[5], *now = p->fp8->q->data;
    assert_true(scale_of(p->fp8->w_site) > 0);
    for (int s = 0; s < 3; s++) job_train_step(j, s);
    assert_int_equal(now[5], first);
    build_destroy(j);
}

/* Scales in a checkpoint have no names: where other weights are in fp8, they are not those of this run. */
static void test_other_weights(void **state)
{
    (void)state;
    static const char *const wide[] = { "fp8.wide=block.0", "fp8.wide=block.1", "fp8.wide=block.0" };
    Job                     *j[3], *first;
    CkptWriter              *w;
    CkptState                s     = { .step = 3, .seed = 1, .micro_batch = 4, .head_rows = 32 }, back;
    char                     dir[] = "/tmp/brim-fp8-XXXXXX", msg[512], note[512] = "", path[128];
    for (int i = 0; i < 3; i++) j[i] = open_job((Want){ .text = gated, .override = wide[i] });
    first = j[0];
    assert_non_null(mkdtemp(dir));
    for (int k = 0; k < 3; k++) job_train_step(first, k);
    assert_int_equal(ckpt_writer_create(&w, first, dir), 0);
    assert_int_equal(ckpt_begin(w, first, &s), 0);
    assert_int_equal(ckpt_wait(w, msg, sizeof msg), 1);
    ckpt_writer_destroy(w);
    assert_int_equal(ckpt_path(dir, 3, path, sizeof path), 0);
    for (int i = 1; i < 3; i++) {
        if (ckpt_load(j[i], path, &back, note, sizeof note) < 0) fail_msg("%s", err_get());
        const ParamTable *t = j[i]->table[0], *u = first->table[0];
        const StoreFp8   *f = param_find(t, i == 1 ? "block.0.up.weight" : "block.1.up.weight")->fp8;
        if (i == 1)
            assert_true(scale_of(f->x_site) == 0 && scale_of(f->dy_site) == 0 && scale_of(f->w_site) > 0);
        if (i == 2) assert_memory_equal(t->sites->data, u->sites->data, tensor_bytes(t->sites));
        if (i == 2)
            assert_memory_equal(t->grad_sites->data, u->grad_sites->data, tensor_bytes(u->grad_sites));
        build_destroy(j[i]);
    }
    build_destroy(first);
    folder_remove(dir);
}

/* Every code goes to its number and back; numbers between two codes go to the nearer one, ties to even. */
static void test_codes(void **state)
{
    (void)state;
    for (int b = 0; b < 256; b++) {
        float e4 = f32_from_e4m3((uint8_t)b), e5 = f32_from_e5m2((uint8_t)b);
        if ((b & 0x7F) != 0x7F) assert_int_equal(e4m3_from_f32(e4), b);
        if ((b & 0x7F) < 0x7C) assert_int_equal(e5m2_from_f32(e5), b);
        if ((b & 0x7F) < 0x7E) {
            float next = f32_from_e4m3((uint8_t)(b + 1)), mid = (e4 + next) / 2;
            assert_int_equal(e4m3_from_f32(mid), b % 2 ? b + 1 : b);
            assert_int_equal(e4m3_from_f32(nextafterf(mid, e4)), b);
            assert_int_equal(e4m3_from_f32(nextafterf(mid, next)), b + 1);
        }
    }
    assert_int_equal(e4m3_from_f32(1e9f), 0x7E);
    assert_int_equal(e5m2_from_f32(-INFINITY), 0xFB);
    assert_int_equal(e4m3_from_f32(NAN), 0x7F);
    assert_true(f32_from_e4m3(0x7E) == 448.0f && f32_from_e5m2(0x7B) == 57344.0f);
    assert_true(f32_from_e4m3(1) == 0x1p-9f && f32_from_e5m2(1) == 0x1p-16f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_codes),         cmocka_unit_test(test_lists),
        cmocka_unit_test(test_same_bits),     cmocka_unit_test(test_learns),
        cmocka_unit_test(test_outlier),       cmocka_unit_test(test_frozen),
        cmocka_unit_test(test_other_weights),
    };
    return cmocka_run_group_tests(tests, open_dev, close_dev);
}
