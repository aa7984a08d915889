/* Muon as a whole: which weights it trains and at what cost in bytes, one update of a small model against
 * plain code in double, going on from a checkpoint. The ops alone are in test_op_cpu, ranks in test_comm. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/file.h"
#include "base/folder.h"
#include "ckpt/ckpt.h"
#include "job_rig.h"
#include "jobs.h"
#include "op_ref_muon.h"
#include "run/build.h"

#include <stdio.h>
#include <unistd.h>

static const char model_text[] =
    "model: {layers: 2, width: 32, heads: 4, kv_heads: 2, ffn: 48, vocab: 300, context: 16, bias: true,\n"
    "        act: swiglu, norm: rmsnorm, pos: rope, tied: false}\n"
    "optim: {kind: muon, weight_decay: 0.1, clip: 1, lr: 1e-2, muon_lr: 5e-3}\n"
    "step_tokens: 64\ndevice: cpu\ndata: {kind: random}\n";

static Job *open_job(Rig *rig, const char *override)
{
    Recipe    r;
    Job      *j;
    JobChoice c      = { .micro_batch = 4, .head_rows = 64, .compute = DT_F32 };
    char     *more[] = { (char *) override };
    if (recipe_parse(&r, "t.yaml", model_text, strlen(model_text), override ? 1 : 0, more) < 0 ||
        build_create(&j, &task_lm, &r, &c, JOB_TRAIN, rig->dev->vt) < 0 || build_verify(j) < 0 ||
        build_bind(j, rig->dev) < 0 || build_init(j) < 0)
        fail_msg("%s", err_get());
    return j;
}

static int ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0;
}

static int is_hidden(const Param *p)
{
    return strncmp(p->name, "block.", 6) == 0 && p->ndim == 2 && ends_with(p->name, ".weight");
}

static float *read_column(Job *j, const Param *p, Column c)
{
    float *x = malloc(sizeof *x * (size_t)(p->rows * p->cols));
    assert_non_null(x);
    if (job_read_param(j, p, c, x) < 0) fail_msg("%s", err_get());
    return x;
}

/* ---- rows ---------------------------------------------------------------------------------------------- */

/* Hidden matrices have a momentum and no moments, all else the opposite; the optimizer's bytes are exactly
 * these. */
static void test_columns(void **state)
{
    Job              *j = open_job(*state, NULL);
    const ParamTable *t = j->table[0];
    int64_t           n = 0, most[REGION_TRAINED] = { 0 };
    for (int i = 0; i < t->n_param; i++) {
        const Param *p = &t->param[i];
        assert_int_equal(p->col[COL_MOMENTUM] != NULL, is_hidden(p));
        assert_int_equal(p->col[COL_M] == NULL, is_hidden(p));
        assert_int_equal(p->col[COL_V] == NULL, is_hidden(p));
        n += is_hidden(p);
        most[p->region] += round_up(p->rows_stored * p->cols, PARAM_ALIGN);
    }
    assert_int_equal(n, 2 * 4);
    size_t want = tensor_align_up((size_t)most[REGION_MUON] * 4) +
                  2 * tensor_align_up((size_t)most[REGION_COPY] * 4) +
                  2 * tensor_align_up((size_t)most[REGION_MASTER] * 4);
    assert_int_equal(j->store.slab_bytes[SLAB_OPTIM], want);
    /* q and proj; k and v; gate and up; down */
    static const int64_t group[][3] = { { 32, 32, 4 }, { 16, 32, 4 }, { 48, 32, 4 }, { 32, 48, 2 } };
    assert_int_equal(t->n_muon, ARRAY_LEN(group));
    for (int i = 0; i < ARRAY_LEN(group); i++) {
        int found = 0;
        for (int k = 0; k < t->n_muon; k++)
            found |= t->muon[k].rows == group[i][0] && t->muon[k].cols == group[i][1] &&
                     t->muon[k].n == group[i][2];
        if (!found) fail_msg("no %d matrices of %dx%d", (int)group[i][2], (int)group[i][0], (int)group[i][1]);
    }
    build_destroy(j);
}

/* Frozen matrices are nobody's; a job that only evaluates has no optimizer. */
static void test_frozen(void **state)
{
    Job              *j = open_job(*state, "freeze=block.0");
    const ParamTable *t = j->table[0];
    for (int i = 0; i < t->n_param; i++) {
        const Param *p = &t->param[i];
        if (p->frozen) assert_true(!p->col[COL_MOMENTUM] && !p->col[COL_GRAD] && p->region != REGION_MUON);
    }
    assert_int_equal(t->muon[0].n + t->muon[1].n + t->muon[2].n + t->muon[3].n, 7);
    job_train_step(j, 0);
    build_destroy(j);
}

/* ---- one update ---------------------------------------------------------------------------------------- */

/* What the update of one matrix must be, and how far f32 may be from it (op_ref_muon.h). */
typedef struct {
    double *want, *off;
} Expected;

static void ortho_double(const double *x, int64_t R, int64_t C, double noise, double *out)
{
    int64_t dim[3] = { 1, R, C };
    OpCase  c      = { .kind = OP_ORTHO };
    float  *f      = malloc(sizeof *f * (size_t)(R * C));
    for (int64_t i = 0; i < R * C; i++) f[i] = (float)x[i];
    tensor_init(&c.tensor[2], "x", DT_F32, 3, dim);
    c.tensor[2].data = f;
    c.args.ortho.x   = &c.tensor[2];
    ref_ortho_all(&c, noise, 1, out);
    free(f);
}

/* A row before the update: weight, gradient, momentum or moments. */
typedef struct {
    float *w, *g, *m, *v;
} Before;

static void check_matrix(Job *j, const Param *p, const Before *b, const float *now, int64_t row0, int64_t R,
                         const StepState *s)
{
    int64_t C = p->cols, n = R * C, at = row0 * C;
    double *u = dbl_new(n), *o = dbl_new(n), *bad = dbl_new(n), most = 0;
    double  mu = 0.95, lr = (double)s->in.lr / 2; /* muon_lr is half of lr */
    for (int64_t i = 0; i < n; i++) {
        double g = (double)b->g[at + i] * (double)s->out.clip;
        u[i]     = mu * (mu * (double)b->m[at + i] + (1 - mu) * g) + (1 - mu) * g;
    }
    ortho_double(u, R, C, 0, o);
    ortho_double(u, R, C, 2 * sqrt((double)MAX(R, C)) * 0x1p-24, bad);
    for (int64_t i = 0; i < n; i++) most = MAX(most, fabs(bad[i] - o[i]));
    for (int64_t i = 0; i < n; i++) {
        double w = (double)b->w[at + i], scale = 0.2 * sqrt((double)MAX(R, C));
        double want = w - lr * (scale * o[i] + 0.1 * w);
        double tol  = 4 * lr * scale * most + 8 * 0x1p-24 * (fabs(w) + lr * scale);
        if (!(fabs((double)now[at + i] - want) <= tol))
            fail_msg("%s row %d: element %d is %.9g, not %.9g (was %.9g, allowed %.2g)", p->name, (int)row0,
                     (int)i, (double)now[at + i], want, w, tol);
    }
    (void)j;
    free(u);
    free(o);
    free(bad);
}

static void check_adam(const Param *p, const Before *b, const float *now, const StepState *s)
{
    for (int64_t i = 0; i < p->rows * p->cols; i++) {
        double g = (double)b->g[i] * (double)s->out.clip, w = (double)b->w[i];
        double m = 0.9 * (double)b->m[i] + 0.1 * g, v = 0.95 * (double)b->v[i] + 0.05 * g * g;
        double step = m * (double)s->out.bias1 / (sqrt(v * (double)s->out.bias2) + 1e-8);
        double lr   = (double)s->in.lr;
        double want = w - lr * (step + (p->decay ? 0.1 * w : 0));
        if (!(fabs((double)now[i] - want) <= 1e-5 * lr + 8 * 0x1p-24 * fabs(w)))
            fail_msg("%s: element %d is %.9g, not %.9g", p->name, (int)i, (double)now[i], want);
    }
}

/* Micro-steps whose gradients add up, the update, and every weight against plain code; three times, so that
 * momentum counts. */
static void test_update(void **state)
{
    Job              *j = open_job(*state, NULL);
    const ParamTable *t = j->table[0];
    for (int64_t step = 0; step < 3; step++) {
        Before    b[64];
        StepState s;
        assert_true(t->n_param <= ARRAY_LEN(b));
        /* The first of the two micro-steps is a whole step without its update. */
        job_micro_step(j, 2 * step, 0);
        job_micro_step(j, 2 * step + 1, 1);
        for (int i = 0; i < t->n_param; i++) {
            const Param *p = &t->param[i];
            b[i].w         = read_column(j, p, COL_WEIGHT);
            b[i].g         = read_column(j, p, COL_GRAD);
            b[i].m         = read_column(j, p, is_hidden(p) ? COL_MOMENTUM : COL_M);
            b[i].v         = is_hidden(p) ? NULL : read_column(j, p, COL_V);
        }
        assert_int_equal(prog_run(job_prog(j, "update"), j->dev), 0);
        assert_int_equal(job_read_state(j, &s), 0);
        for (int i = 0; i < t->n_param; i++) {
            const Param *p   = &t->param[i];
            float       *now = read_column(j, p, COL_WEIGHT), *g = read_column(j, p, COL_GRAD);
            int64_t      row = 0;
            for (int64_t e = 0; e < p->rows * p->cols; e++) assert_true(g[e] == 0);
            if (!is_hidden(p)) check_adam(p, &b[i], now, &s);
            for (int k = 0; k < PARAM_STACK && is_hidden(p) && p->stack[k]; k++) {
                check_matrix(j, p, &b[i], now, row, p->stack[k], &s);
                row += p->stack[k];
            }
            assert_true(!is_hidden(p) || row == p->rows);
            free(now);
            free(g);
            free(b[i].w);
            free(b[i].g);
            free(b[i].m);
            free(b[i].v);
        }
    }
    build_destroy(j);
}

/* ---- checkpoints --------------------------------------------------------------------------------------- */

static void expect_same(Job *a, Job *b)
{
    for (int i = 0; i < a->table[0]->n_param; i++) {
        const Param *p = &a->table[0]->param[i], *q = &b->table[0]->param[i];
        for (int c = 0; c < COL_COUNT; c++) {
            if (!p->col[c] || !column_table[c].is_kept) continue;
            float *x = read_column(a, p, (Column)c), *y = read_column(b, q, (Column)c);
            if (memcmp(x, y, sizeof *x * (size_t)(p->rows * p->cols)) != 0)
                fail_msg("%s%s differs", p->name, column_table[c].suffix);
            free(x);
            free(y);
        }
    }
}

static void test_resume(void **state)
{
    Rig        *rig = *state;
    Job        *a = open_job(rig, NULL), *b = open_job(rig, NULL), *adam = open_job(rig, "optim.kind=adamw");
    CkptWriter *w;
    CkptState   s = { .step = 3, .seed = 1, .micro_batch = 4, .head_rows = 64 }, back;
    char        msg[512], note[512] = "", path[128];
    for (int k = 0; k < 3; k++) job_train_step(a, k);
    assert_int_equal(ckpt_writer_create(&w, a, rig->dir), 0);
    assert_int_equal(ckpt_begin(w, a, &s), 0);
    assert_int_equal(ckpt_wait(w, msg, sizeof msg), 1);
    ckpt_writer_destroy(w);
    for (int k = 3; k < 6; k++) job_train_step(a, k);
    assert_int_equal(ckpt_path(rig->dir, 3, path, sizeof path), 0);
    if (ckpt_load(b, path, &back, note, sizeof note) < 0) fail_msg("%s", err_get());
    for (int k = 3; k < 6; k++) job_train_step(b, k);
    expect_same(a, b);
    /* AdamW has other columns: one clear line. */
    assert_true(ckpt_load(adam, path, &back, note, sizeof note) < 0);
    assert_int_equal(err_kind(), ERR_USER);
    if (!strstr(err_get(), "optim.kind")) fail_msg("%s", err_get());
    err_clear();
    build_destroy(a);
    build_destroy(b);
    build_destroy(adam);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_columns),
        cmocka_unit_test(test_frozen),
        cmocka_unit_test(test_update),
        cmocka_unit_test(test_resume),
    };
    return cmocka_run_group_tests(tests, rig_setup, rig_teardown);
}
