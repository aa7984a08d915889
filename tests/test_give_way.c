/* Concessions (give_way): made only by a run that does not fit, what they save, and that training goes on
 * about as well. How a number is rounded is in the cases of adamw (test_op_cpu). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/file.h"
#include "base/folder.h"
#include "ckpt/ckpt.h"
#include "jobs.h"
#include "run/build.h"
#include "run/choose.h"

#include <math.h>
#include <stdio.h>
#include <unistd.h>

static const char model_text[] =
    "model: {layers: 2, width: 64, heads: 4, vocab: 300, context: 16, bias: true, tied: false}\n"
    "step_tokens: 64\ndevice: cpu\ndata: {kind: random}\n";

static void load(Recipe *r, const char *override)
{
    char *more[] = { (char *) override };
    if (recipe_parse(r, "t.yaml", model_text, strlen(model_text), override ? 1 : 0, more) < 0)
        fail_msg("%s", err_get());
}

/* ---- the plan ------------------------------------------------------------------------------------------ */

static Job *plan_job(const DevVt *vt, DType compute, unsigned gives)
{
    Recipe    r;
    Job      *j;
    JobChoice c = { .micro_batch = 4, .head_rows = 64, .compute = compute, .gives = gives };
    load(&r, NULL);
    if (build_create(&j, &task_lm, &r, &c, JOB_TRAIN, vt) < 0 || build_verify(j) < 0)
        fail_msg("%s", err_get());
    return j;
}

/* Bytes of all rows in a region, at so many bytes an element. */
static size_t region_bytes(const Job *j, Region r, int64_t each)
{
    return tensor_align_up((size_t)(j->table[0]->region_elems[r] * each));
}

/* Moments: half of the optimizer's bytes. Weights: no copies, and the weights that products read in bf16. */
static void test_bytes(void **state)
{
    Job *all = plan_job(dev_cuda_plan(), DT_BF16, 0), *m = plan_job(dev_cuda_plan(), DT_BF16, GIVE_MOMENTS),
        *both       = plan_job(dev_cuda_plan(), DT_BF16, GIVE_MOMENTS | GIVE_WEIGHTS);
    const size_t *a = all->store.slab_bytes, *b = m->store.slab_bytes, *c = both->store.slab_bytes;
    assert_int_equal(a[SLAB_OPTIM],
                     2 * region_bytes(all, REGION_COPY, 4) + 2 * region_bytes(all, REGION_MASTER, 4));
    assert_int_equal(b[SLAB_OPTIM],
                     2 * region_bytes(all, REGION_COPY, 2) + 2 * region_bytes(all, REGION_MASTER, 2));
    assert_int_equal(b[SLAB_MASTER], a[SLAB_MASTER]);
    assert_int_equal(c[SLAB_COPY], 0);
    assert_int_equal(c[SLAB_MASTER], region_bytes(all, REGION_COPY, 2) + region_bytes(all, REGION_MASTER, 4));
    assert_int_equal(c[SLAB_GRAD], a[SLAB_GRAD]);
    build_destroy(all);
    build_destroy(m);
    build_destroy(both);
    /* In f32 there is no narrow weight to keep alone. */
    Job *f = plan_job(dev_cuda_plan(), DT_F32, GIVE_WEIGHTS);
    assert_int_equal(f->table[0]->flat[COL_WEIGHT][REGION_COPY]->dtype, DT_F32);
    build_destroy(f);
}

/* Nothing gives way while the run fits; all that may gives way where nothing else does; what the recipe does
 * not name stays, and so do weights that products read in another type than bf16. */
static void test_only_if_needed(void **state)
{
    const Machine *h200 = machine_find("h200");
    static const struct {
        const char *give_way, *precision;
        unsigned    gives;
    } row[] = { { "give_way=moments,weights", "precision=auto", GIVE_MOMENTS | GIVE_WEIGHTS },
                { "give_way=moments", "precision=auto", GIVE_MOMENTS },
                { "give_way=weights", "precision=auto", GIVE_WEIGHTS },
                { "give_way=moments,weights", "precision=fp8", GIVE_MOMENTS | GIVE_WEIGHTS },
                { "give_way=moments,weights", "precision=fp16", GIVE_MOMENTS },
                { "give_way=moments,weights", "precision=fp32", GIVE_MOMENTS } };
    for (int i = 0; i < ARRAY_LEN(row); i++) {
        Recipe r;
        Choice c;
        char  *both[] = { (char *)row[i].give_way, (char *)row[i].precision };
        if (recipe_parse(&r, "t.yaml", model_text, strlen(model_text), 2, both) < 0)
            fail_msg("%s", err_get());
        ChooseFor what = {
            .task = &task_lm, .recipe = &r, .vt = dev_cuda_plan(), .capability = 90, .parts = JOB_TRAIN
        };
        size_t much = (size_t)8 << 30;
        assert_int_equal(choose_plan(&c, &what, h200, (ChooseRoom){ much, much }), 0);
        assert_int_equal(c.row[c.best].choice.gives, 0);
        size_t least = c.row[0].total_bytes; /* the smallest of all that give nothing */
        for (int k = 0; k < c.n; k++) least = MIN(least, c.row[k].total_bytes);
        if (choose_plan(&c, &what, h200, (ChooseRoom){ least - 1, least - 1 }) < 0) fail_msg("%s", err_get());
        assert_int_equal(c.row[c.best].choice.gives, row[i].gives);
    }
}

/* ---- training ------------------------------------------------------------------------------------------ */

static Job *open_job(Dev *dev, unsigned gives)
{
    Job *j = plan_job(dev->vt, DT_F32, gives);
    if (build_bind(j, dev) < 0 || build_init(j) < 0) fail_msg("%s", err_get());
    return j;
}

static double loss_of(Job *j)
{
    StepState s;
    assert_int_equal(job_read_state(j, &s), 0);
    assert_int_equal(s.out.skip, 0);
    return (double)s.out.loss;
}

/* One batch, over and over: with either moments the loss falls to a small part of what it was. */
static void test_moments_train(void **state)
{
    const char *why;
    Dev        *dev = dev_open("cpu", &(DevOptions){ .threads = 1 }, &why);
    Job        *a = open_job(dev, 0), *b = open_job(dev, GIVE_MOMENTS);
    double      first = 0;
    assert_int_equal(b->table[0]->param[0].col[COL_M]->dtype, DT_BF16);
    for (int k = 0; k < 60; k++) {
        job_train_step(a, 0);
        job_train_step(b, 0);
        if (k == 0) first = loss_of(a);
    }
    double x = loss_of(a), y = loss_of(b);
    if (!(x < 0.1 * first && y < 0.1 * first)) fail_msg("loss %.3f -> %.3f, with bf16 %.3f", first, x, y);
    build_destroy(a);
    build_destroy(b);
    dev_close(dev);
}

/* Draws follow from the number of updates, which a checkpoint holds. */
static void test_resume(void **state)
{
    char        dir[] = "/tmp/brim_give_XXXXXX", path[128], msg[512], note[512];
    const char *why;
    Dev        *dev = dev_open("cpu", &(DevOptions){ .threads = 1 }, &why);
    Job        *a = open_job(dev, GIVE_MOMENTS), *b = open_job(dev, GIVE_MOMENTS);
    CkptWriter *w;
    CkptState   s = { .step = 3, .seed = 1, .micro_batch = 4, .head_rows = 64 }, back;
    assert_non_null(mkdtemp(dir));
    for (int k = 0; k < 3; k++) job_train_step(a, k);
    assert_int_equal(ckpt_writer_create(&w, a, dir), 0);
    assert_int_equal(ckpt_begin(w, a, &s), 0);
    assert_int_equal(ckpt_wait(w, msg, sizeof msg), 1);
    ckpt_writer_destroy(w);
    assert_int_equal(ckpt_path(dir, 3, path, sizeof path), 0);
    if (ckpt_load(b, path, &back, note, sizeof note) < 0) fail_msg("%s", err_get());
    for (int k = 3; k < 6; k++) {
        job_train_step(a, k);
        job_train_step(b, k);
    }
    for (int r = 0; r < REGION_MUON; r++) {
        for (int c = COL_WEIGHT; c <= COL_V; c++) {
            const Tensor *x = a->table[0]->flat[c][r], *y = b->table[0]->flat[c][r];
            if (x && column_table[c].is_kept) assert_memory_equal(x->data, y->data, tensor_bytes(x));
        }
    }
    build_destroy(a);
    build_destroy(b);
    dev_close(dev);
    folder_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_only_if_needed),
        cmocka_unit_test(test_moments_train),
        cmocka_unit_test(test_resume),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
