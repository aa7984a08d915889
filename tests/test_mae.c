/* Task mae on the CPU against a reference in double (mae_ref.h): an image net with class token, learned
 * positions and layer scale, and a clip net with tubes, sines and registers. Task image with registers
 * likewise. Against itself: what may be chosen must not change the mathematics. And the masks: how many,
 * tubes, the same whatever the threads and the place.
 *
 * Tolerances. As in test_golden.c: f32 is up to 2.3e-6 of a weight's largest gradient away from double, and
 * gets four times that. Differences of the reference over 2e-4 add less than 1e-7. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/rng.h"
#include "data/image_mask.h"
#include "data/loader.h"
#include "jobs.h"
#include "mae_ref.h"
#include "run/build.h"
#include "task/image.h"
#include "task/mae.h"

#define TOL_GRAD 1e-5
#define TOL_LOSS 2e-6
/* Sums of another order, of at most 4 samples x 9 rows: as in test_golden.c. */
#define TOL_ORDER (162 * 0x1p-24)

enum { SAMPLES = 3, EMPTY = 1 }; /* rows of the step: samples, then an empty one */

static const char *const images = "task: mae\nstep_samples: 4\n"
                                  "model: {layers: 2, width: 12, heads: 3, ffn: 20, bias: true, init_std: "
                                  "0.3, layer_scale: 0.3}\n"
                                  "image: {size: 12, patch: 4, pool: class}\n"
                                  "mae: {layers: 1, width: 8, heads: 2}\n";
static const char *const clips =
    "task: mae\nstep_samples: 4\n"
    "model: {layers: 1, width: 12, heads: 2, bias: true, init_std: 0.3}\n"
    "image: {size: 12, patch: 4, frames: 4, tubelet: 2, pos: sincos, registers: 2}\n"
    "mae: {ratio: 0.6, layers: 2, width: 12, heads: 3}\n";

/* The head reads the mean of the tokens, or the class token, and no register. */
static const char *const mean  = "task: image\nstep_samples: 4\n"
                                 "model: {layers: 1, width: 12, heads: 2, bias: true, init_std: 0.3}\n"
                                 "image: {size: 12, patch: 4, registers: 3, classes: 5}\n";
static const char *const class = "task: image\nstep_samples: 4\n"
                                 "model: {layers: 2, width: 12, heads: 2, bias: true, init_std: 0.3}\n"
                                 "image: {size: 12, patch: 4, registers: 1, classes: 5, pool: class}\n";

static void must(int rc)
{
    if (rc < 0) fail_msg("%s", err_get());
}

static Recipe parse(const char *text)
{
    Recipe r;
    must(recipe_parse(&r, "t.yaml", text, strlen(text), 0, NULL));
    return r;
}

/* ---- a bound job --------------------------------------------------------------------------------------- */

typedef struct {
    Dev *dev;
    Job *j;
} Fix;

typedef struct {
    const char    *text;
    int64_t        micro_batch; /* 0: the whole step */
    RecomputeLevel level;
    int            threads;
} Setup;

/* Initial weights are moved, so that nothing is 0 or 1. */
static void move_weights(Job *j)
{
    for (int k = 0; k < j->n_table; k++) {
        for (int i = 0; i < j->table[k]->n_param; i++) {
            const Param *p = &j->table[k]->param[i];
            float       *x = malloc(sizeof *x * (size_t)(p->rows * p->cols));
            must(job_read_param(j, p, COL_WEIGHT, x));
            for (int64_t e = 0; e < p->rows * p->cols; e++)
                x[e] += 0.2f * rng_uniform(rng_draw(5, (uint32_t)(100 * k + i), 0, 0, e)) - 0.1f;
            must(job_write_param(j, p, COL_WEIGHT, x));
            free(x);
        }
    }
    must(job_refresh_copies(j));
}

static void fix_open(Fix *f, const Setup *s)
{
    const char *why;
    Recipe      r      = parse(s->text);
    JobChoice   choice = { .micro_batch = s->micro_batch ? s->micro_batch : SAMPLES + EMPTY,
                           .level       = s->level,
                           .compute     = DT_F32 };
    f->dev             = dev_open("cpu", &(DevOptions){ .threads = s->threads ? s->threads : 1 }, &why);
    assert_non_null(f->dev);
    must(build_create(&f->j, strcmp(r.task, "mae") == 0 ? &task_mae : &task_image, &r, &choice, JOB_TRAIN,
                      f->dev->vt));
    must(build_verify(f->j));
    must(build_bind(f->j, f->dev));
    must(build_init(f->j));
    move_weights(f->j);
}

static void fix_close(Fix *f)
{
    build_destroy(f->j);
    dev_close(f->dev);
}

/* Samples b0, b0 + 1, ... as the loader would put them into a block. */
static void fill_block(const Source *src, const Fields *f, int64_t b0, char *block)
{
    char *scratch = calloc(1, src->scratch_bytes + 1);
    fields_set_sample0(block, b0);
    for (int64_t b = 0; b < f->B; b++) {
        void *field[FIELDS_MAX];
        for (int i = 0; i < f->n; i++) field[i] = fields_at(f, block, i, b);
        must(source_fill(src, b0 + b < SAMPLES ? b0 + b : -1, field, scratch));
        source_place(src, b, field);
    }
    source_end_scratch(src, scratch);
    free(scratch);
}

/* Gradients of the step; returns its loss. */
static double run_step(Fix *f, const char *prog)
{
    Job      *j     = f->j;
    char     *block = calloc(1, j->fields.block_bytes);
    StepState s     = { .in = { .seed = 1, .loss_scale = 1 } };
    Source   *src;
    must(j->task->open_train(&src, &j->recipe));
    s.in.inv[0] = 1.0f / (float)(SAMPLES * src->targets_each[0]);
    must(job_upload(j, j->state, &s, STEP_UPLOAD_BYTES));
    for (int64_t b0 = 0; b0 < SAMPLES + EMPTY; b0 += j->fields.B) {
        fill_block(src, &j->fields, b0, block);
        must(job_upload(j, j->block, block, j->fields.block_bytes));
        must(prog_run(job_prog(j, prog), f->dev));
        must(f->dev->vt->sync(f->dev));
    }
    must(job_read_state(j, &s));
    double loss = s.out.sum[0] / (double)(SAMPLES * src->targets_each[0]);
    source_close(src);
    free(block);
    return loss;
}

/* ---- against the reference ----------------------------------------------------------------------------- */

typedef struct {
    MaeRef   m;
    uint8_t *pixels[SAMPLES];
    int      hidden[SAMPLES][REF_ROWS], label[SAMPLES];
    int      n_target;
} Known;

/* Bytes, masks and weights of the job's step. */
static void know(Known *k, Fix *f)
{
    Job    *j     = f->j;
    char   *block = calloc(1, j->fields.block_bytes);
    Source *src;
    must(j->task->open_train(&src, &j->recipe));
    fill_block(src, &j->fields, 0, block);
    *k = (Known){ .m.r = &j->recipe };
    for (int b = 0; b < SAMPLES; b++) {
        size_t n     = j->fields.sample_bytes[IMAGE_PIXELS];
        k->pixels[b] = memcpy(malloc(n), fields_at(&j->fields, block, IMAGE_PIXELS, b), n);
        k->label[b]  = *(const int32_t *)fields_at(&j->fields, block, IMAGE_LABEL, b);
        k->n_target += (int)src->targets_each[0];
        const int32_t *hole = j->task == &task_mae ? fields_at(&j->fields, block, MASK_HOLE, b) : NULL;
        for (int i = 0; hole && i < mae_of(j)->mae.n; i++) k->hidden[b][i] = hole[i] == 0;
    }
    for (int t = 0; t < j->n_table; t++) {
        for (int i = 0; i < j->table[t]->n_param; i++) {
            const Param *p = &j->table[t]->param[i];
            int64_t      n = p->rows * p->cols;
            float       *x = malloc(sizeof *x * (size_t)n);
            RefParam    *q = &k->m.param[k->m.n_param++];
            must(job_read_param(j, p, COL_WEIGHT, x));
            snprintf(q->name, sizeof q->name, "%s", p->name);
            q->x = malloc(sizeof *q->x * (size_t)n);
            q->n = n;
            for (int64_t e = 0; e < n; e++) q->x[e] = (double)x[e];
            free(x);
        }
    }
    source_close(src);
    free(block);
}

static void forget(Known *k)
{
    for (int b = 0; b < SAMPLES; b++) free(k->pixels[b]);
    for (int i = 0; i < k->m.n_param; i++) free(k->m.param[i].x);
}

static double known_loss(const Known *k)
{
    double sum    = 0;
    int    is_mae = strcmp(k->m.r->task, "mae") == 0;
    for (int b = 0; b < SAMPLES; b++)
        sum += is_mae ? ref_loss(&k->m, k->pixels[b], k->hidden[b])
                      : ref_class_loss(&k->m, k->pixels[b], k->label[b]);
    return sum / k->n_target;
}

/* The farthest of some gradients of a weight, as a share of the largest. */
static double gradient_distance(Known *k, int i, const float *grad)
{
    enum { MOST = 10 };
    const double STEP  = 1e-4;
    RefParam    *p     = &k->m.param[i];
    int64_t      by    = MAX(p->n / MOST, 1);
    double       worst = 0, largest = 0;
    for (int64_t e = 0; e < p->n; e++) largest = fmax(largest, fabs((double)grad[e]));
    for (int64_t e = i % by; e < p->n; e += by) {
        double was = p->x[e];
        p->x[e]    = was + STEP;
        double up  = known_loss(k);
        p->x[e]    = was - STEP;
        double d   = (up - known_loss(k)) / (2 * STEP);
        p->x[e]    = was;
        worst      = fmax(worst, fabs(d - (double)grad[e]));
    }
    return worst / largest;
}

static void test_reference(void **state)
{
    Fix    f;
    Known  k;
    double worst = 0;
    fix_open(&f, &(Setup){ .text = *state });
    know(&k, &f);
    double loss = run_step(&f, "micro-step"), want = known_loss(&k);
    if (fabs(loss - want) > TOL_LOSS * want) fail_msg("loss %.9g is not %.9g", loss, want);
    int n = 0;
    for (int t = 0; t < f.j->n_table; t++) {
        for (int i = 0; i < f.j->table[t]->n_param; i++, n++) {
            const Param *p = &f.j->table[t]->param[i];
            float       *x = malloc(sizeof *x * (size_t)(p->rows * p->cols));
            must(job_read_param(f.j, p, COL_GRAD, x));
            double d = gradient_distance(&k, n, x);
            if (!(d <= TOL_GRAD)) fail_msg("%s: a gradient is %.3g of the largest away", p->name, d);
            worst = fmax(worst, d);
            free(x);
        }
    }
    printf("loss %.6f, gradients of %d weights, farthest %.2g\n", loss, n, worst);
    assert_true(run_step(&f, "eval") == loss); /* the same ops on the same numbers */
    forget(&k);
    fix_close(&f);
}

/* ---- against itself ------------------------------------------------------------------------------------ */

static float *gradients(const Setup *s, int64_t *n, double *loss)
{
    Fix f;
    fix_open(&f, s);
    *loss    = run_step(&f, "micro-step");
    *n       = 0;
    float *x = malloc(sizeof *x * (size_t)job_param_count(f.j));
    for (int t = 0; t < f.j->n_table; t++) {
        for (int i = 0; i < f.j->table[t]->n_param; i++) {
            const Param *p = &f.j->table[t]->param[i];
            must(job_read_param(f.j, p, COL_GRAD, x + *n));
            *n += p->rows * p->cols;
        }
    }
    fix_close(&f);
    return x;
}

static void compare(const Setup *s, int same_bits)
{
    int64_t n, n2;
    double  loss, loss2, dd = 0, bb = 0;
    float  *base = gradients(&(Setup){ .text = s->text }, &n, &loss), *x = gradients(s, &n2, &loss2);
    assert_int_equal(n, n2);
    if (same_bits) assert_memory_equal(base, x, sizeof *x * (size_t)n);
    for (int64_t i = 0; i < n; i++) {
        dd += ((double)x[i] - (double)base[i]) * ((double)x[i] - (double)base[i]);
        bb += (double)base[i] * (double)base[i];
    }
    assert_true(sqrt(dd / bb) <= TOL_ORDER && fabs(loss2 - loss) <= TOL_ORDER * loss);
    free(base);
    free(x);
}

static void test_choices(void **state)
{
    compare(&(Setup){ .text = *state, .micro_batch = 1 }, 0);
    compare(&(Setup){ .text = *state, .micro_batch = 2 }, 0);
    compare(&(Setup){ .text = *state, .threads = 2 }, 1);
    compare(&(Setup){ .text = *state, .level = LEVEL_CHEAP }, 1);
    compare(&(Setup){ .text = *state, .level = LEVEL_BLOCK }, 1);
}

/* ---- masks --------------------------------------------------------------------------------------------- */

enum { MASKS = 400, B = 4, SLOTS = 3 };

/* All blocks of the first MASKS samples through the loader. */
static char *load_masks(const Recipe *r, int threads, Fields *f)
{
    FieldRow row[FIELDS_MAX];
    Source  *src;
    Loader  *l;
    void    *slot[SLOTS];
    fields_init(f, row, image_mask_fields(r, row), B);
    must(image_mask_open_train(&src, r));
    for (int i = 0; i < SLOTS; i++) slot[i] = memset(aligned_alloc(64, f->block_bytes), 0, f->block_bytes);
    LoaderConfig cfg = { .fields = *f, .threads = threads, .slots = slot, .n_slot = SLOTS, .world = 1 };
    must(loader_create(&l, &cfg, src));
    char *out = malloc(MASKS / B * f->block_bytes);
    for (int i = 0; i < MASKS / B; i++) {
        LoaderBatch batch;
        must(loader_next(l, &batch));
        memcpy(out + (size_t)i * f->block_bytes, batch.host, f->block_bytes);
        loader_release(l, batch.slot);
    }
    loader_destroy(l);
    source_close(src);
    for (int i = 0; i < SLOTS; i++) free(slot[i]);
    return out;
}

/* The fields of a row agree with each other; counts[i] grows for each hidden patch. */
static void check_mask(const ImageMask *m, const Fields *f, char *block, int64_t b, int *counts)
{
    const int32_t *seen = fields_at(f, block, MASK_SEEN, b), *place = fields_at(f, block, MASK_PLACE, b);
    const int32_t *hidden = fields_at(f, block, MASK_HIDDEN, b), *slot = fields_at(f, block, MASK_SLOT, b);
    const int32_t *hole = fields_at(f, block, MASK_HOLE, b);
    int64_t        all = m->times * m->places, n_seen = 0, n_hidden = 0;
    for (int64_t i = 0; i < all; i++) {
        assert_int_equal(hole[i], hole[i % m->places]); /* a tube */
        if (hole[i] < 0) {
            assert_int_equal(seen[n_seen], b * all + i);
            assert_int_equal(place[m->first + n_seen], m->first + i);
            assert_int_equal(slot[i], b * m->read + m->first + n_seen);
            n_seen++;
        } else {
            assert_int_equal(hole[i], 0);
            assert_int_equal(slot[i], -1);
            assert_int_equal(hidden[n_hidden++], b * all + i);
            counts[i]++;
        }
    }
    for (int64_t i = 0; i < m->first; i++) assert_int_equal(place[i], i);
    assert_int_equal(n_seen, m->seen);
    assert_int_equal(n_hidden, m->hidden);
}

static void test_masks(void **state)
{
    Recipe    r = parse(*state);
    ImageMask m = image_mask_of(&r);
    Fields    f;
    int       counts[REF_ROWS] = { 0 };
    char     *one = load_masks(&r, 1, &f), *three = load_masks(&r, 3, &f);
    assert_memory_equal(one, three, MASKS / B * f.block_bytes);
    for (int64_t g = 0; g < MASKS; g++)
        check_mask(&m, &f, one + (size_t)(g / B) * f.block_bytes, g % B, counts);
    /* A patch is hidden with the same probability p as the others: five deviations of a binomial. */
    double p = (double)m.hidden / (double)(m.hidden + m.seen);
    for (int64_t i = 0; i < m.hidden + m.seen; i++)
        assert_true(fabs(counts[i] - MASKS * p) < 5 * sqrt(MASKS * p * (1 - p)));
    free(one);
    free(three);
}

/* 147 of 196 patches, as in the paper; clips 176 of 196 places in each of 8 times. */
static void test_counts(void **state)
{
    Recipe    r = parse("task: mae\nimage: {size: 224, patch: 16}\n");
    ImageMask m = image_mask_of(&r);
    assert_int_equal(m.seen, 49);
    assert_int_equal(m.hidden, 147);
    r = parse("task: mae\nimage: {size: 224, patch: 16, frames: 16, tubelet: 2}\n");
    m = image_mask_of(&r);
    assert_int_equal(m.seen, 160);
    assert_int_equal(m.hidden, 8 * 176);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        { "reference, images", test_reference, NULL, NULL, (void *)images },
        { "reference, clips", test_reference, NULL, NULL, (void *)clips },
        { "reference, registers and mean", test_reference, NULL, NULL, (void *)mean },
        { "reference, registers and class token", test_reference, NULL, NULL, (void *)class },
        { "choices, images", test_choices, NULL, NULL, (void *)images },
        { "choices, clips", test_choices, NULL, NULL, (void *)clips },
        { "masks, images", test_masks, NULL, NULL, (void *)images },
        { "masks, clips", test_masks, NULL, NULL, (void *)clips },
        cmocka_unit_test(test_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
