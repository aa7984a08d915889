/* Task latent on the CPU against PyTorch (tests/golden/latent.safetensors, tools/golden_latent.py), and
 * against itself: what may be chosen must not change the mathematics, and neighbours must not change a
 * sample.
 *
 * Tolerances. PyTorch's numbers come from float64 and from every sample alone, so all the distance is our
 * f32 rounding. Sums are at most a few hundred terms long; tests/test_golden.c finds 2.3e-6 for nets of this
 * size, and gets four times that. Here two nets stand behind each other, so gradients get twice as much
 * again. Users are promised 1e-4.
 *
 * LATENT_DEVICE=cuda runs the same on a GPU, in f32. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "data/pairs_impl.h"
#include "golden/golden.h"
#include "golden/rig.h"
#include "task/latent.h"

#include <math.h>

#define TOL_GRAD 2e-5
#define TOL_LOSS 2e-6

typedef struct {
    Golden       g;
    Dev         *dev;
    Job         *j;
    const float *said; /* by the teacher about the samples, [SAMPLES,K,stored classes]; NULL: not cached */
} Fix;

typedef struct {
    int64_t        micro_batch, head_rows;
    RecomputeLevel level;
    double         room;
    unsigned       parts;
    int            cached; /* teacher: all that it says, as if from a file */
    int            many;   /* passes */
    int            stored; /* attention's weights */
} Setup1;

static void fix_open(Fix *f, const Setup1 *s)
{
    const char *why;
    f->said = NULL;
    golden_open(&f->g, "latent");
    Recipe r          = f->g.recipe;
    r.latent.room     = s->room > 0 ? s->room : 1;
    r.latent.one_pass = !s->many;
    if (s->cached) {
        r.latent.pairs       = PAIRS_RANDOM; /* no file is asked for */
        r.latent.teacher     = TEACHER_CACHED;
        r.latent.teacher_top = r.model.vocab;
    }
    r.opt.flash      = !s->stored;
    JobChoice choice = {
        .micro_batch = s->micro_batch, .level = s->level, .head_rows = s->head_rows, .compute = DT_F32
    };
    DevOptions  opt    = { .deterministic = 1, .threads = 1 };
    const char *device = getenv("LATENT_DEVICE");
    f->dev             = dev_open(device ? device : "cpu", &opt, &why);
    CHECK(f->dev, "%s", err_get());
    RIG_TRY(build_create(&f->j, &task_latent, &r, &choice, s->parts ? s->parts : JOB_TRAIN, f->dev->vt));
    RIG_TRY(build_verify(f->j));
    RIG_TRY(build_bind(f->j, f->dev));
    RIG_TRY(build_init(f->j));
    int n = 0;
    for (int k = 0; k < f->j->n_table; k++) {
        const ParamTable *t = f->j->table[k];
        for (int i = 0; i < t->n_param; i++, n++) {
            const Param *p = &t->param[i];
            RIG_TRY(
                job_write_param(f->j, p, COL_WEIGHT, golden_f32(&f->g, "w0.", p->name, p->rows * p->cols)));
        }
    }
    CHECK(n == golden_n_weight(&f->g), "PyTorch has %d weights, Brim %d", golden_n_weight(&f->g), n);
    RIG_TRY(job_refresh_copies(f->j));
}

static void fix_close(Fix *f)
{
    build_destroy(f->j);
    dev_close(f->dev);
    golden_close(&f->g);
}

static const int32_t *ints(const Golden *g, const char *name, int64_t n)
{
    return golden_tensor(g, "", name, "I32", n);
}

enum { SAMPLES = 4 };

/* Every logit of sample k, by its id. */
static void fill_said(const Fix *f, int k, void *const *field)
{
    const PairShape *s     = &latent_of(f->j)->s;
    int              at    = pairs_cached(s);
    int32_t         *id    = field[at + PAIR_CACHED_ID];
    float           *logit = field[at + PAIR_CACHED_LOGIT];
    int64_t          V     = net_vocab_stored(&latent_of(f->j)->model);
    for (int64_t i = 0; i < s->K * s->top; i++) {
        id[i]    = (int32_t)(i % s->top);
        logit[i] = f->said[(k * s->K + i / s->top) * V + i % s->top];
    }
}

/* Samples pick[0..n) of the file, then empty rows. */
static void fix_upload(Fix *f, const int *pick, int n)
{
    const PairShape *s     = &latent_of(f->j)->s;
    char            *block = calloc(1, f->j->fields.block_bytes), bytes[256];
    int32_t          tok[256];
    for (int64_t b = 0; b < f->j->fields.B; b++) {
        void *field[FIELDS_MAX];
        for (int i = 0; i < f->j->fields.n; i++) field[i] = fields_at(&f->j->fields, block, i, b);
        pair_fill_none(s, field);
        if (b >= n) continue;
        int      k    = pick[b];
        Pair     pair = { .n_byte   = ints(&f->g, "n_bytes", SAMPLES)[k],
                          .n_prompt = ints(&f->g, "n_text", SAMPLES)[k],
                          .n_answer = ints(&f->g, "n_answer", SAMPLES)[k] };
        PairList l    = { .bytes = bytes, .tokens = tok };
        int32_t *at   = tok;
        for (int64_t i = 0; i < pair.n_byte; i++)
            bytes[pair.n_byte - 1 - i] = (char)ints(&f->g, "bytes", SAMPLES * s->S)[k * s->S + i];
        for (int64_t i = 0; i < pair.n_prompt; i++) *at++ = ints(&f->g, "text", SAMPLES * s->P)[k * s->P + i];
        for (int64_t i = 0; i < s->A; i++) *at++ = ints(&f->g, "anchor", SAMPLES * s->A)[k * s->A + i];
        for (int64_t i = 0; i < pair.n_answer; i++)
            *at++ = ints(&f->g, "answer", SAMPLES * s->L)[k * s->L + i];
        pair_fill(s, &l, &pair, field);
        if (f->said) fill_said(f, k, field);
    }
    RIG_TRY(job_upload(f->j, f->j->block, block, f->j->fields.block_bytes));
    free(block);
}

static void fix_run(Fix *f, const char *name)
{
    RIG_TRY(prog_run(job_prog(f->j, name), f->dev));
    RIG_TRY(f->dev->vt->sync(f->dev));
}

/* All samples, a micro-batch at a time; the four losses. */
static void fix_step(Fix *f, double *loss)
{
    const PairShape *s              = &latent_of(f->j)->s;
    StepState        st             = { .in = { .loss_scale = 1 } };
    double           n[PAIR_LOSSES] = { 0 };
    for (int i = 0; i < SAMPLES; i++) {
        int64_t answer = ints(&f->g, "n_answer", SAMPLES)[i];
        n[PAIR_LOSS] += (double)answer;
        n[PAIR_FIRST_TOKEN] += 1;
        n[PAIR_FIRST_K] += (double)MIN(answer, s->K);
    }
    n[PAIR_KL] = n[PAIR_FIRST_K];
    for (int k = 0; k < PAIR_LOSSES; k++) {
        double weight = task_latent.loss[k].weight ? task_latent.loss[k].weight(&f->j->recipe) : 1;
        st.in.inv[k]  = (float)(weight / n[k]);
    }
    RIG_TRY(job_upload(f->j, f->j->state, &st, STEP_UPLOAD_BYTES));
    for (int i = 0; i < SAMPLES; i += (int)f->j->fields.B) {
        int pick[SAMPLES] = { i, i + 1, i + 2, i + 3 };
        fix_upload(f, pick, MIN((int)f->j->fields.B, SAMPLES - i));
        fix_run(f, "micro-step");
    }
    RIG_TRY(job_read_state(f->j, &st));
    for (int k = 0; k < PAIR_LOSSES; k++) loss[k] = st.out.sum[k] / n[k];
}

/* What `brim data teacher` would read off its program. The caller frees it. */
static float *ask_teacher(void)
{
    Fix f;
    fix_open(&f, &(Setup1){ .micro_batch = SAMPLES, .head_rows = 100, .parts = JOB_TEACH });
    const Tensor *t    = latent_of(f.j)->teacher;
    float        *said = malloc(tensor_bytes(t));
    fix_upload(&f, (int[]){ 0, 1, 2, 3 }, SAMPLES);
    fix_run(&f, "teacher");
    RIG_TRY(job_download(f.j, t, said, tensor_bytes(t)));
    fix_close(&f);
    return said;
}

static void compare(const Setup1 *s)
{
    Fix    f;
    double loss[PAIR_LOSSES];
    float *said = s->cached ? ask_teacher() : NULL;
    fix_open(&f, s);
    f.said = said;
    fix_step(&f, loss);
    const double *want = golden_f64(&f.g, "losses", PAIR_LOSSES),
                 *many = golden_f64(&f.g, "losses11", PAIR_LOSSES);
    for (int k = 0; k < PAIR_LOSSES; k++) {
        if (fabs(loss[k] - want[k]) > TOL_LOSS * fabs(want[k]) ||
            fabs(loss[k] - many[k]) > 1e-5 * fabs(many[k]))
            fail_msg("%s: %.9g, PyTorch %.9g, in eleven passes %.9g", task_latent.loss[k].name, loss[k],
                     want[k], many[k]);
    }
    RigDistance worst = { 0, 0 };
    for (int t = 0; t < f.j->n_table; t++) {
        for (int i = 0; i < f.j->table[t]->n_param; i++) {
            const Param *p = &f.j->table[t]->param[i];
            int64_t      n = p->rows * p->cols;
            if (p->frozen) {
                assert_null(p->col[COL_GRAD]);
                continue;
            }
            float *x = malloc(sizeof *x * (size_t)n);
            RIG_TRY(job_read_param(f.j, p, COL_GRAD, x));
            RigDistance d = rig_distance(x, golden_f32(&f.g, "g.", p->name, n), n);
            free(x);
            if (d.norm > TOL_GRAD || d.max > TOL_GRAD)
                fail_msg("%s: distance %.3g of the norm, %.3g of the maximum", p->name, d.norm, d.max);
            worst = (RigDistance){ fmax(worst.norm, d.norm), fmax(worst.max, d.max) };
        }
    }
    printf("micro-batch %d: gradients within %.2g of the norm, %.2g of the maximum\n", (int)s->micro_batch,
           worst.norm, worst.max);
    fix_close(&f);
    free(said);
}

static void test_golden(void **state) { compare(&(Setup1){ .micro_batch = 4, .head_rows = 100 }); }
static void test_chunks(void **state) { compare(&(Setup1){ .micro_batch = 4, .head_rows = 3 }); }
static void test_micro(void **state) { compare(&(Setup1){ .micro_batch = 1, .head_rows = 100 }); }
/* As published: a pass a token. The same losses and gradients. */
static void test_eleven(void **state) { compare(&(Setup1){ .micro_batch = 4, .head_rows = 100, .many = 1 }); }
/* With all of its logits a cached teacher is PyTorch's, too. */
static void test_cached(void **state)
{
    compare(&(Setup1){ .micro_batch = 4, .head_rows = 100, .cached = 1 });
    compare(&(Setup1){ .micro_batch = 2, .head_rows = 3, .cached = 1 });
    compare(&(Setup1){ .micro_batch = 4, .head_rows = 100, .cached = 1, .many = 1 });
}
/* Attention that stores its weights: no other numbers, and the student's list has it. */
static void test_stored(void **state)
{
    Setup1 s = { .micro_batch = 4, .head_rows = 100, .stored = 1 };
    Fix    f;
    compare(&s);
    fix_open(&f, &s);
    const Prog *p        = job_prog(f.j, "micro-step");
    int         n_stored = 0;
    for (int i = 0; i < prog_n_op(p); i++)
        n_stored += prog_op(p, i)->kind == OP_ATTN_FWD && prog_op(p, i)->args.attn_fwd.p;
    assert_int_equal(n_stored, latent_of(f.j)->model.layers);
    fix_close(&f);
}
static void test_recompute(void **state)
{
    compare(&(Setup1){ .micro_batch = 2, .head_rows = 4, .level = LEVEL_BLOCK });
}

/* Packed into fewer rows: the longest would need 4 x 128 and 4 x 12, here are 64 + 12 of the latter. */
static void test_room(void **state) { compare(&(Setup1){ .micro_batch = 4, .head_rows = 100, .room = 0.7 }); }

static void read_latents(Fix *f, const int *pick, int n, float *latents, float *logits)
{
    const Latent *t  = latent_of(f->j);
    StepState     st = { .in = { .loss_scale = 1 } };
    RIG_TRY(job_upload(f->j, f->j->state, &st, STEP_UPLOAD_BYTES));
    fix_upload(f, pick, n);
    fix_run(f, "prefill");
    RIG_TRY(job_download(f->j, t->latents, latents, tensor_bytes(t->latents)));
    RIG_TRY(job_download(f->j, t->decode.logits, logits, tensor_bytes(t->decode.logits)));
}

/* Alone, in another place and beside other neighbours: the same bits. And PyTorch's numbers. */
static void test_neighbours(void **state)
{
    Fix   f;
    float whole[SAMPLES * 3 * 48], other[SAMPLES * 3 * 48], a[SAMPLES * 128], b[SAMPLES * 128];
    fix_open(&f, &(Setup1){ .micro_batch = SAMPLES, .head_rows = 100, .parts = JOB_SAMPLE });
    const PairShape *s = &latent_of(f.j)->s;
    int64_t          n = s->M * latent_of(f.j)->model.width, V = net_vocab_stored(&latent_of(f.j)->model);
    assert_true(SAMPLES * n == ARRAY_LEN(whole) && SAMPLES * V == ARRAY_LEN(a));
    read_latents(&f, (int[]){ 0, 1, 2, 3 }, 4, whole, a);
    RigDistance d = rig_distance(whole, golden_f32(&f.g, "", "latents", SAMPLES * n), SAMPLES * n);
    if (d.norm > TOL_GRAD || d.max > TOL_GRAD) fail_msg("latents: distance %.3g, %.3g", d.norm, d.max);
    for (int k = 0; k < SAMPLES; k++) {
        read_latents(&f, (int[]){ k }, 1, other, b);
        assert_memory_equal(other, whole + k * n, sizeof *other * (size_t)n);
        assert_memory_equal(b, a + k * V, sizeof *b * (size_t)V);
    }
    read_latents(&f, (int[]){ 3, 0, 2 }, 3, other, b);
    assert_memory_equal(other + n, whole, sizeof *other * (size_t)n);
    assert_memory_equal(other + 2 * n, whole + 2 * n, sizeof *other * (size_t)n);
    fix_close(&f);
}

/* A latent sees its own prompt, not the whole pack: with more samples in a pack the work of each is the same.
 */
static double pool_flops(int64_t micro_batch, double room, OpKind kind)
{
    Fix f;
    fix_open(&f, &(Setup1){ .micro_batch = micro_batch, .head_rows = 100, .room = room });
    const Prog *p   = job_prog(f.j, "micro-step");
    double      sum = 0;
    for (int i = 0; i < prog_n_op(p); i++) {
        if (prog_op(p, i)->kind == kind) sum += op_flops(kind, &prog_op(p, i)->args);
    }
    fix_close(&f);
    return sum / (double)micro_batch;
}

static void test_pool_flops(void **state)
{
    Fix f;
    fix_open(&f, &(Setup1){ .micro_batch = 1, .head_rows = 100 });
    const RecipeEncoder *e    = &f.j->recipe.encoder;
    double               want = 4.0 * (double)(e->latents * e->bytes * e->heads * e->head_dim);
    fix_close(&f);
    assert_true(pool_flops(1, 1, OP_CROSS_ATTN_FWD) == want);
    assert_true(pool_flops(4, 1, OP_CROSS_ATTN_FWD) == want);
    assert_true(pool_flops(4, 1, OP_CROSS_ATTN_BWD) == 2 * want);
    assert_true(pool_flops(4, 0.5, OP_CROSS_ATTN_FWD) == want / 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),    cmocka_unit_test(test_chunks), cmocka_unit_test(test_micro),
        cmocka_unit_test(test_recompute), cmocka_unit_test(test_room),   cmocka_unit_test(test_eleven),
        cmocka_unit_test(test_stored),    cmocka_unit_test(test_cached), cmocka_unit_test(test_neighbours),
        cmocka_unit_test(test_pool_flops)
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
