/* Checkpoints on the CPU backend: exact round trips, damage of every file, failures at every call, kills,
 * keeping. */
#define _GNU_SOURCE /* memmem */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/err.h"
#include "base/fault.h"
#include "base/file.h"
#include "base/folder.h"
#include "base/log.h"
#include "base/str.h"
#include "base/thread.h"
#include "ckpt/ckpt.h"
#include "file/safetensors.h"
#include "jobs.h"
#include "run/build.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- A small model ------------------------------------------------------------------------------------- */

typedef struct {
    char dir[64]; /* checkpoints */
    Dev *dev;
    Job *b;
} Rig;

static const char small_model[] =
    "model: {layers: 2, width: 32, heads: 4, vocab: 300, context: 16, bias: true}\n"
    "step_tokens: 64\n"
    "device: cpu\n"
    "data: {kind: random}\n"
    "checkpoint: {keep: 3}\n";

static Job *make_job(Dev *dev, int64_t micro_batch, int n_override, char *const *override)
{
    Recipe    r;
    Job      *b;
    JobChoice c = {
        .micro_batch = micro_batch, .level = LEVEL_NONE, .head_rows = micro_batch * 16, .compute = DT_F32
    };
    if (recipe_parse(&r, "test", small_model, strlen(small_model), n_override, override) < 0 ||
        build_create(&b, &task_lm, &r, &c, JOB_TRAIN, dev->vt) < 0 || build_bind(b, dev) < 0 ||
        build_init(b) < 0) {
        fail_msg("%s", err_get());
    }
    return b;
}

static int rig_setup(void **state)
{
    const char *why;
    Rig        *rig = (Rig *)calloc(1, sizeof *rig);
    /* In memory where that exists: thousands of fsyncs are slow on a disk. */
    snprintf(rig->dir, sizeof rig->dir, "%s/brim_ckpt_XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    if (!mkdtemp(rig->dir)) return -1;
    /* One thread: a forked child of a process with an OpenMP pool could not compute. */
    rig->dev = dev_open("cpu", &(DevOptions){ .threads = 1 }, &why);
    rig->b   = make_job(rig->dev, 4, 0, NULL);
    *state   = rig;
    return 0;
}

static int rig_teardown(void **state)
{
    Rig *rig = (Rig *)*state;
    fault_disarm();
    err_clear();
    build_destroy(rig->b);
    dev_close(rig->dev);
    folder_remove(rig->dir);
    free(rig);
    return 0;
}

/* Everything that a checkpoint must bring back, in one block: caller frees. */
static float *dump(Job *b, size_t *n_bytes)
{
    const ParamTable *t = b->table[0];
    size_t            n = sizeof(StepState) / sizeof(float);
    for (int i = 0; i < t->n_param; i++) n += 3 * (size_t)(t->param[i].rows * t->param[i].cols);
    float *all = (float *)calloc(n, sizeof *all), *at = all;
    for (int i = 0; i < t->n_param; i++) {
        const Param        *p        = &t->param[i];
        static const Column which[3] = { COL_WEIGHT, COL_M, COL_V };
        for (int k = 0; k < 3; k++, at += p->rows * p->cols)
            assert_int_equal(job_read_param(b, p, which[k], at), 0);
    }
    StepState s;
    assert_int_equal(job_read_state(b, &s), 0);
    memcpy(at, &s, sizeof s);
    *n_bytes = n * sizeof *all;
    return all;
}

static void expect_same(Job *a, Job *b)
{
    size_t n, m;
    float *x = dump(a, &n), *y = dump(b, &m);
    assert_int_equal(n, m);
    if (memcmp(x, y, n) != 0) fail_msg("states differ");
    free(x);
    free(y);
}

static CkptWriter *make_writer(Rig *rig)
{
    CkptWriter *w;
    if (ckpt_writer_create(&w, rig->b, rig->dir) < 0) fail_msg("%s", err_get());
    return w;
}

static CkptState state_at(int64_t step)
{
    CkptState s;
    memset(&s, 0, sizeof s);
    s.step        = step;
    s.next_sample = step * 64;
    s.seed        = 1;
    s.micro_batch = 4;
    s.head_rows   = 64;
    s.best_val    = 3.25 + 1.0 / 3;
    s.bad_evals   = 2;
    s.elapsed_s   = 12.125;
    s.skip[0]     = (SampleRange){ 640, 64 };
    s.n_skip      = 1;
    return s;
}

static int save_state(CkptWriter *w, Job *b, const CkptState *s)
{
    char msg[512] = "";
    assert_int_equal(ckpt_begin(w, b, s), 0);
    int rc = ckpt_wait(w, msg, sizeof msg);
    assert_int_not_equal(rc, 0);
    assert_int_equal(err_kind(), ERR_NONE);
    assert_non_null(strstr(msg, "checkpoint of step"));
    assert_int_equal(ckpt_poll(w, msg, sizeof msg), 0); /* reported once */
    return rc;
}

static int save(CkptWriter *w, Job *b, int64_t step)
{
    CkptState s = state_at(step);
    return save_state(w, b, &s);
}

static void expect_steps(const Rig *rig, int n, const int64_t *want)
{
    int64_t step[32];
    assert_int_equal(ckpt_list(rig->dir, step, 32), n);
    for (int i = 0; i < n; i++) assert_int_equal(step[i], want[i]);
}

/* Names in the folder of checkpoints, "." and ".." not counted. */
static int count_entries(const Rig *rig)
{
    Arena  a;
    char **names;
    arena_init(&a);
    int n = file_list(&a, rig->dir, "", &names);
    arena_deinit(&a);
    return n;
}

static const char *path_of(const Rig *rig, int64_t step, const char *file)
{
    static char path[512];
    assert_int_equal(ckpt_path(rig->dir, step, path, sizeof path), 0);
    if (file) snprintf(path + strlen(path), sizeof path - strlen(path), "/%s", file);
    return path;
}

static void expect(ErrKind kind, const char *part)
{
    if (!strstr(err_get(), part)) fail_msg("message '%s' lacks '%s'", err_get(), part);
    assert_int_equal(err_kind(), kind);
    err_clear();
}

static void weight_that_is_not_finite_is_not_saved(void **state)
{
    Rig         *rig = (Rig *)*state;
    const Param *p   = &rig->b->table[0]->param[0];
    CkptWriter  *w   = make_writer(rig);
    float       *x   = (float *)calloc((size_t)(p->rows * p->cols), sizeof *x);
    assert_int_equal(save(w, rig->b, 3), 1);
    x[p->rows * p->cols - 1] = NAN;
    assert_int_equal(job_write_param(rig->b, p, COL_WEIGHT, x), 0);
    assert_int_equal(save(w, rig->b, 4), CKPT_NOT_FINITE);
    expect_steps(rig, 1, (int64_t[]){ 3 });
    x[p->rows * p->cols - 1] = 1;
    assert_int_equal(job_write_param(rig->b, p, COL_WEIGHT, x), 0);
    assert_int_equal(save(w, rig->b, 5), 1); /* the next one is looked at anew */
    free(x);
    ckpt_writer_destroy(w);
}

/* ---- Round trips --------------------------------------------------------------------------------------- */

static void resumed_run_is_identical(void **state)
{
    Rig        *rig = (Rig *)*state;
    CkptWriter *w   = make_writer(rig);
    CkptState   s;
    char        note[256];
    for (int i = 0; i < 3; i++) job_train_step(rig->b, i);
    CkptState at = state_at(3);
    assert_int_equal(ckpt_begin(w, rig->b, &at), 0);
    for (int i = 3; i < 6; i++) job_train_step(rig->b, i); /* goes on while the thread writes */
    assert_int_equal(ckpt_wait(w, note, sizeof note), 1);

    Job *other = make_job(rig->dev, 4, 0, NULL);
    job_train_step(other, 77); /* loading must not depend on fresh memory */
    if (ckpt_resume(other, rig->dir, INT64_MAX, &s, note, sizeof note) != 1) fail_msg("%s", err_get());
    assert_string_equal(note, "");
    StepState dev = s.device;
    assert_int_equal(dev.in.step, 2);
    assert_int_equal(dev.out.n_update, 3);
    s.device = at.device;
    assert_memory_equal(&s, &at, sizeof s);
    for (int i = 3; i < 6; i++) job_train_step(other, i);
    expect_same(rig->b, other);
    build_destroy(other);
    ckpt_writer_destroy(w);
}

static void no_checkpoint_is_no_error(void **state)
{
    Rig      *rig = (Rig *)*state;
    CkptState s;
    char      note[64], none[128];
    assert_int_equal(ckpt_resume(rig->b, rig->dir, INT64_MAX, &s, note, sizeof note), 0);
    snprintf(none, sizeof none, "%s/none", rig->dir);
    assert_int_equal(ckpt_resume(rig->b, none, INT64_MAX, &s, note, sizeof note), 0);
    assert_int_equal(err_kind(), ERR_NONE);
}

static size_t slurp(const char *path, char **data)
{
    size_t n;
    if (file_read_all(path, 1 << 26, data, &n) < 0) fail_msg("%s", err_get());
    return n;
}

static void probe(void *arg) { (void)arg; }

/* Without memory for a snapshot, and without a thread, the files are the same. */
static void short_of_memory_or_threads(void **state)
{
    Rig  *rig = (Rig *)*state;
    char *a, *b;
    job_train_step(rig->b, 0);
    CkptWriter *w = make_writer(rig);
    assert_int_equal(save(w, rig->b, 1), 1);
    size_t n = slurp(path_of(rig, 1, "optim.safetensors"), &a);
    fault_arm(FAULT_THREAD, 1, 1);
    assert_int_equal(save(w, rig->b, 2), 1);
    fault_disarm();
    ckpt_writer_destroy(w);
    fault_arm(FAULT_MALLOC, 3, 0); /* after the writer itself and its small buffer */
    w = make_writer(rig);
    assert_int_equal(save(w, rig->b, 3), 1);
    fault_disarm();
    fault_arm(FAULT_THREAD, 1, 0);
    assert_int_equal(save(w, rig->b, 4), 1);
    Thread t; /* no thread was tried before this one */
    assert_int_equal(thread_start(&t, "probe", probe, NULL), -1);
    err_clear();
    for (int64_t step = 2; step <= 4; step++) {
        assert_int_equal(slurp(path_of(rig, step, "optim.safetensors"), &b), n);
        assert_memory_equal(a, b, n);
        assert_int_equal(ckpt_verify(path_of(rig, step, NULL)), 0);
        free(b);
    }
    free(a);
    ckpt_writer_destroy(w);
}

static void same_step_is_replaced(void **state)
{
    Rig        *rig = (Rig *)*state;
    CkptWriter *w   = make_writer(rig);
    CkptState   s;
    char        note[64];
    assert_int_equal(save(w, rig->b, 5), 1);
    job_train_step(rig->b, 0);
    assert_int_equal(save(w, rig->b, 5), 1);
    assert_int_equal(count_entries(rig), 1);
    Job *other = make_job(rig->dev, 4, 0, NULL);
    assert_int_equal(ckpt_resume(other, rig->dir, INT64_MAX, &s, note, sizeof note), 1);
    expect_same(rig->b, other);
    build_destroy(other);
    ckpt_writer_destroy(w);
}

static void keeps_newest_and_multiples(void **state)
{
    Rig *rig                             = (Rig *)*state;
    rig->b->recipe.checkpoint.keep       = 2;
    rig->b->recipe.checkpoint.keep_every = 30;
    CkptWriter *w                        = make_writer(rig);
    for (int64_t step = 10; step <= 70; step += 10) assert_int_equal(save(w, rig->b, step), 1);
    expect_steps(rig, 3, (int64_t[]){ 70, 60, 30 });
    /* After falling back from 70, which is damaged, what is later does not push out what is good. */
    assert_int_equal(save(w, rig->b, 65), 1);
    expect_steps(rig, 4, (int64_t[]){ 70, 65, 60, 30 });
    assert_int_equal(save(w, rig->b, 100000000), 1); /* nine digits still sort */
    expect_steps(rig, 4, (int64_t[]){ 100000000, 70, 60, 30 });
    assert_int_equal(count_entries(rig), 4);
    ckpt_writer_destroy(w);
}

/* A damaged one is no reason to remove a good one, whether this process passed it over or it rots
 * meanwhile. */
static void damaged_ones_do_not_count(void **state)
{
    Rig *rig                       = (Rig *)*state;
    rig->b->recipe.checkpoint.keep = 2;
    CkptWriter *w                  = make_writer(rig);
    assert_int_equal(save(w, rig->b, 10), 1);
    assert_int_equal(save(w, rig->b, 20), 1);
    ckpt_writer_destroy(w);
    FILE *f = fopen(path_of(rig, 20, "model.safetensors"), "r+");
    assert_non_null(f);
    assert_int_equal(fseek(f, -4, SEEK_END), 0);
    assert_int_equal(fputc(0x5a, f), 0x5a);
    assert_int_equal(fclose(f), 0);
    w = make_writer(rig); /* goes on from 10 */
    assert_int_equal(save(w, rig->b, 25), 1);
    expect_steps(rig, 3, (int64_t[]){ 25, 20, 10 });
    assert_int_equal(save(w, rig->b, 30), 1);
    expect_steps(rig, 2, (int64_t[]){ 30, 25 });
    ckpt_writer_destroy(w);
}

/* What somebody else put into a checkpoint's folder is not removed with it. */
static void foreign_files_stay(void **state)
{
    Rig *rig = (Rig *)*state;
    char path[256];
    rig->b->recipe.checkpoint.keep = 1;
    CkptWriter *w                  = make_writer(rig);
    assert_int_equal(save(w, rig->b, 10), 1);
    FILE *f = fopen(path_of(rig, 10, "notes.txt"), "w");
    assert_non_null(f);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(save(w, rig->b, 20), 1);
    expect_steps(rig, 1, (int64_t[]){ 20 });
    snprintf(path, sizeof path, "%s/left-00000010/notes.txt", rig->dir);
    assert_int_equal(file_kind(path), FILE_REGULAR);
    snprintf(path, sizeof path, "%s/left-00000010/model.safetensors", rig->dir);
    assert_int_equal(file_kind(path), FILE_NONE);
    ckpt_writer_destroy(w);
}

static void leftovers_are_removed(void **state)
{
    Rig *rig = (Rig *)*state;
    char path[256];
    snprintf(path, sizeof path, "%s/.tmp-step-00000100-1/deep", rig->dir);
    assert_int_equal(file_make_folders(path), 0);
    snprintf(path, sizeof path, "%s/step-x", rig->dir); /* not ours: neither listed nor touched */
    assert_int_equal(file_make_folders(path), 0);
    ckpt_writer_destroy(make_writer(rig));
    assert_int_equal(count_entries(rig), 1);
    expect_steps(rig, 0, NULL);
}

/* ---- Damage -------------------------------------------------------------------------------------------- */

static const char *const all_files[] = { "model.safetensors", "optim.safetensors", "state.json", "DONE" };

static void put_file(const char *path, const char *data, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

/* The newest is damaged in `file`: it is refused by name with the device untouched, and the one before is
 * used. */
static void expect_fallback(Rig *rig, Job *b, const char *file)
{
    CkptState s;
    char      note[256];
    size_t    n, m;
    float    *before = dump(b, &n);
    assert_int_equal(ckpt_verify(path_of(rig, 20, NULL)), -1);
    expect(ERR_RUN, file);
    assert_int_equal(ckpt_load(b, path_of(rig, 20, NULL), &s, note, sizeof note), -1);
    expect(ERR_RUN, file);
    float *after = dump(b, &m);
    assert_memory_equal(before, after, n);
    free(before);
    free(after);
    assert_int_equal(ckpt_resume(b, rig->dir, INT64_MAX, &s, note, sizeof note), 1);
    assert_int_equal(s.step, 10);
    assert_int_equal(err_kind(), ERR_NONE);
}

static void damage_falls_back(void **state)
{
    Rig        *rig = (Rig *)*state;
    CkptWriter *w   = make_writer(rig);
    assert_int_equal(save(w, rig->b, 10), 1);
    job_train_step(rig->b, 0);
    assert_int_equal(save(w, rig->b, 20), 1);
    srand(7);
    for (int k = 0; k < ARRAY_LEN(all_files); k++) {
        char  *data, path[512];
        size_t n = slurp(path_of(rig, 20, all_files[k]), &data);
        strcpy(path, path_of(rig, 20, all_files[k]));
        for (int i = 0; i < 50; i++) {
            size_t cut = (size_t)rand() % n, at = (size_t)rand() % n, bit = (size_t)rand() % 8;
            put_file(path, data, i == 0 ? 0 : i == 1 ? n - 1 : cut);
            expect_fallback(rig, rig->b, all_files[k]);
            if (i == 2) at = n - 1;
            data[at] ^= (char)(1 << bit);
            put_file(path, data, n);
            expect_fallback(rig, rig->b, all_files[k]);
            data[at] ^= (char)(1 << bit);
        }
        unlink(path);
        expect_fallback(rig, rig->b, all_files[k]);
        put_file(path, data, n);
        free(data);
        assert_int_equal(ckpt_verify(path_of(rig, 20, NULL)), 0);
    }
    ckpt_writer_destroy(w);
}

static void damage_names_the_tensor(void **state)
{
    Rig        *rig = (Rig *)*state;
    CkptWriter *w   = make_writer(rig);
    SafeFile    f;
    char        path[512];
    assert_int_equal(save(w, rig->b, 20), 1);
    strcpy(path, path_of(rig, 20, "optim.safetensors"));
    assert_int_equal(safetensors_open(&f, path), 0);
    for (int i = 0; i < f.n_tensor; i++) {
        char  *data, want[128];
        size_t n = slurp(path, &data);
        data[f.tensor[i].offset + (int64_t)f.tensor[i].size_bytes - 1] ^= 1;
        put_file(path, data, n);
        assert_int_equal(ckpt_verify(path_of(rig, 20, NULL)), -1);
        snprintf(want, sizeof want, "tensor %s is damaged", f.tensor[i].name);
        expect(ERR_RUN, want);
        data[f.tensor[i].offset + (int64_t)f.tensor[i].size_bytes - 1] ^= 1;
        put_file(path, data, n);
        free(data);
    }
    safetensors_close(&f);
    /* With the only one broken there is nothing to fall back to, and silence would restart at step 0. */
    CkptState s;
    char      note[64];
    assert_int_equal(truncate(path, 100), 0);
    assert_int_equal(ckpt_resume(rig->b, rig->dir, INT64_MAX, &s, note, sizeof note), -1);
    expect(ERR_RUN, "none of its 1 checkpoints");
    ckpt_writer_destroy(w);
}

/* A header that is damaged but well-formed must not be taken for another model. */
static void damaged_header_is_not_another_model(void **state)
{
    Rig        *rig = (Rig *)*state;
    CkptWriter *w   = make_writer(rig);
    CkptState   s;
    char        note[64], path[512], *data;
    assert_int_equal(save(w, rig->b, 20), 1);
    strcpy(path, path_of(rig, 20, "model.safetensors"));
    size_t n  = slurp(path, &data);
    char  *at = (char *)memmem(data, n, "[96, 32]", 8);
    assert_non_null(at);
    memcpy(at, "[32, 96]", 8);
    put_file(path, data, n);
    free(data);
    assert_int_equal(ckpt_load(rig->b, path_of(rig, 20, NULL), &s, note, sizeof note), -1);
    expect(ERR_RUN, "header");
    ckpt_writer_destroy(w);
}

/* A device whose first upload damages the file that is being read. */
static struct {
    const DevVt *real;
    char         path[512];
    int          n;
} saboteur;

static int sabotage(Dev *dev, Lane lane, void *dst, const void *src, size_t n)
{
    if (saboteur.n++ == 0) {
        FILE *f = fopen(saboteur.path, "r+b");
        assert_non_null(f);
        fseek(f, -1, SEEK_END);
        fputc(0x55, f);
        fclose(f);
    }
    return saboteur.real->upload(dev, lane, dst, src, n);
}

static void change_after_verifying_is_seen(void **state)
{
    Rig        *rig = (Rig *)*state;
    CkptWriter *w   = make_writer(rig);
    CkptState   s;
    char        note[64];
    assert_int_equal(save(w, rig->b, 10), 1);
    assert_int_equal(save(w, rig->b, 20), 1);
    DevVt vt      = *rig->dev->vt;
    saboteur.real = rig->dev->vt;
    saboteur.n    = 0;
    vt.upload     = sabotage;
    strcpy(saboteur.path, path_of(rig, 20, "optim.safetensors"));
    rig->dev->vt = &vt;
    int rc       = ckpt_resume(rig->b, rig->dir, INT64_MAX, &s, note, sizeof note);
    rig->dev->vt = saboteur.real;
    assert_int_equal(rc, 1);
    assert_int_equal(s.step, 10);
    ckpt_writer_destroy(w);
}

static void wrong_name_of_a_good_folder(void **state)
{
    Rig        *rig = (Rig *)*state;
    CkptWriter *w   = make_writer(rig);
    CkptState   s;
    char        from[512], note[64];
    assert_int_equal(save(w, rig->b, 20), 1);
    strcpy(from, path_of(rig, 20, NULL));
    assert_int_equal(rename(from, path_of(rig, 30, NULL)), 0);
    assert_int_equal(save(w, rig->b, 10), 1);
    assert_int_equal(ckpt_resume(rig->b, rig->dir, INT64_MAX, &s, note, sizeof note), 1);
    assert_int_equal(s.step, 10);
    ckpt_writer_destroy(w);
}

/* ---- Another model ------------------------------------------------------------------------------------- */

static void another_model_is_refused(void **state)
{
    static const struct {
        char       *override[2];
        const char *why;
    } row[] = {
        { { "model.width=64", NULL }, "tensor embed.weight is 300 x 32 there, 300 x 64" },
        { { "model.vocab=301", NULL }, "tensor embed.weight is 300 x 32 there, 301 x 32" },
        { { "model.layers=3", NULL }, "it has no tensor block.2.norm1.weight" },
        { { "model.layers=1", NULL }, "no tensor block.1." },
        { { "model.context=32", NULL }, "tensor pos.weight is 16 x 32 there, 32 x 32" },
        { { "model.tied=false", NULL }, "it has no tensor head.weight" },
        { { "model.ffn=64", NULL }, "up.weight" },
        { { "model.heads=2", NULL }, "model.heads is 4 there, 2 in the recipe" },
        { { "model.act=relu2", NULL }, "model.act is gelu there, relu2 in the recipe" },
        { { "model.norm_eps=1e-6", NULL }, "model.norm_eps" },
    };
    Rig        *rig = (Rig *)*state;
    CkptWriter *w   = make_writer(rig);
    assert_int_equal(save(w, rig->b, 20), 1);
    for (int i = 0; i < ARRAY_LEN(row); i++) {
        CkptState s;
        char      note[64], path[512];
        size_t    n, m;
        Job      *other  = make_job(rig->dev, 2, 1, row[i].override);
        float    *before = dump(other, &n);
        assert_int_equal(ckpt_resume(other, rig->dir, INT64_MAX, &s, note, sizeof note), -1);
        expect(ERR_USER, row[i].why);
        strcpy(path, path_of(rig, 20, NULL));
        assert_int_equal(ckpt_load_weights(other, path), -1);
        expect(ERR_USER, row[i].why);
        float *after = dump(other, &m);
        assert_memory_equal(before, after, n);
        free(before);
        free(after);
        build_destroy(other);
    }
    ckpt_writer_destroy(w);
}

/* Another size of the task's own state is noticed before anything goes to the device. */
static void another_own_state_is_refused(void **state)
{
    Rig        *rig  = (Rig *)*state;
    CkptWriter *w    = make_writer(rig);
    Job        *j    = make_job(rig->dev, 4, 0, NULL);
    Task        more = *j->task;
    CkptState   s;
    char        note[64];
    size_t      n, m;
    assert_int_equal(save(w, rig->b, 20), 1);
    more.own_state_bytes = 8;
    j->task              = &more;
    assert_int_equal(job_write_param(j, &j->table[0]->param[0], COL_M, (float[300 * 32]){ 1 }), 0);
    float *before = dump(j, &n);
    assert_int_equal(ckpt_resume(j, rig->dir, INT64_MAX, &s, note, sizeof note), -1);
    expect(ERR_USER, "has 0 bytes of the task's own state, 8 are expected");
    float *after = dump(j, &m);
    assert_memory_equal(before, after, n);
    free(before);
    free(after);
    build_destroy(j);
    ckpt_writer_destroy(w);
}

static void other_plan_is_noted(void **state)
{
    Rig        *rig         = (Rig *)*state;
    CkptWriter *w           = make_writer(rig);
    char       *override[3] = { "optim.lr=0.001", "threads=2", "model.dropout=0.1" };
    CkptState   s;
    char        note[512];
    assert_int_equal(save(w, rig->b, 20), 1);
    Job *other = make_job(rig->dev, 2, 3, override);
    if (ckpt_resume(other, rig->dir, INT64_MAX, &s, note, sizeof note) != 1) fail_msg("%s", err_get());
    assert_non_null(
        strstr(note, "planned micro-batch 4 -> 2, planned head rows 64 -> 32 (sums in another order)"));
    assert_non_null(strstr(note, "threads 0 -> 2"));
    assert_non_null(strstr(note, "optim.lr"));
    assert_non_null(strstr(note, "model.dropout 0 -> 0.1"));
    expect_same(rig->b, other);
    build_destroy(other);
    ckpt_writer_destroy(w);
}

/* Less free memory may change nothing but the rows of logits at a time. A checkpoint of an older program does
 * not know them. */
static void other_head_rows_are_noted(void **state)
{
    Rig        *rig = (Rig *)*state;
    CkptWriter *w   = make_writer(rig);
    CkptState   s   = state_at(20);
    char        note[512];
    s.head_rows = 32;
    assert_int_equal(save_state(w, rig->b, &s), 1);
    if (ckpt_resume(rig->b, rig->dir, INT64_MAX, &s, note, sizeof note) != 1) fail_msg("%s", err_get());
    assert_string_equal(note, "planned head rows 32 -> 64 (sums in another order)");
    s           = state_at(30);
    s.head_rows = 0;
    assert_int_equal(save_state(w, rig->b, &s), 1);
    if (ckpt_resume(rig->b, rig->dir, INT64_MAX, &s, note, sizeof note) != 1) fail_msg("%s", err_get());
    assert_string_equal(note, "");
    ckpt_writer_destroy(w);
}

/* Older checkpoints have the path of their data as it was given; it must lead to the same file to be no
 * change. */
static void same_data_by_another_path_is_no_change(void **state)
{
    Rig        *rig = (Rig *)*state;
    CkptWriter *w   = make_writer(rig);
    CkptState   s;
    char        note[512], round[256], *now = rig->b->recipe.data.train;
    snprintf(round, sizeof round, "%s/../%s", rig->dir, file_name_of(rig->dir));
    const struct {
        const char *was, *now, *note;
    } test[] = {
        { "my.txt", "/somewhere/my.txt", "" },
        { "sub/my.txt", "/somewhere/sub/my.txt", "" },
        { round, rig->dir, "" },
        { "../../../../../../../../../../../../tmp", "/tmp", "" },
        { "y.txt", "/somewhere/my.txt", "data.train \"y.txt\" -> \"/somewhere/my.txt\"" },
        { "/a/my.txt", "/b/my.txt", "data.train \"/a/my.txt\" -> \"/b/my.txt\"" },
        { "", "/b/my.txt", "data.train \"\" -> \"/b/my.txt\"" },
    };
    for (int i = 0; i < ARRAY_LEN(test); i++) {
        note[0] = '\0';
        str_copy(now, RECIPE_STR, test[i].was);
        assert_int_equal(save(w, rig->b, 20 + i), 1);
        str_copy(now, RECIPE_STR, test[i].now);
        if (ckpt_resume(rig->b, rig->dir, INT64_MAX, &s, note, sizeof note) != 1) fail_msg("%s", err_get());
        assert_string_equal(note, test[i].note);
    }
    ckpt_writer_destroy(w);
}

/* ---- Weights alone ------------------------------------------------------------------------------------- */

static void weights_load_without_optimizer(void **state)
{
    Rig        *rig = (Rig *)*state;
    CkptWriter *w   = make_writer(rig);
    JobChoice   c   = { .micro_batch = 2, .head_rows = 32, .compute = DT_F32 };
    Job        *eval;
    char        path[512];
    assert_int_equal(build_create(&eval, &task_lm, &rig->b->recipe, &c, JOB_EVAL, rig->dev->vt), 0);
    assert_int_equal(build_bind(eval, rig->dev), 0);
    job_train_step(rig->b, 0);
    assert_int_equal(save(w, rig->b, 1), 1);
    unlink(path_of(rig, 1, "optim.safetensors")); /* not needed */
    strcpy(path, path_of(rig, 1, NULL));
    for (int k = 0; k < 2; k++) {
        if (ckpt_load_weights(eval, path) < 0) fail_msg("%s", err_get());
        for (int i = 0; i < eval->table[0]->n_param; i++) {
            const Param *p = &rig->b->table[0]->param[i], *q = &eval->table[0]->param[i];
            assert_memory_equal(p->col[COL_WEIGHT]->data, q->col[COL_WEIGHT]->data,
                                sizeof(float) * (size_t)(p->rows * p->cols));
        }
        memset(eval->table[0]->param[0].col[COL_WEIGHT]->data, 1, 100);
        strcpy(path, path_of(rig, 1, "model.safetensors"));
    }
    assert_int_equal(ckpt_load_weights(eval, "/tmp/no such file"), -1);
    expect(ERR_USER, "no such");
    build_destroy(eval);
    ckpt_writer_destroy(w);
}

/* Another checkpoint will have the step of the best one: it must not have its name. */
static void abandoned_best_has_no_name(void **state)
{
    Rig        *rig = (Rig *)*state;
    CkptWriter *w   = make_writer(rig);
    for (int64_t step = 4; step <= 8; step += 4) {
        ckpt_mark_best(w);
        assert_int_equal(save(w, rig->b, step), 1);
        assert_int_equal(ckpt_best(rig->dir), step);
    }
    assert_int_equal(ckpt_abandon(rig->dir, 8), 0);
    assert_int_equal(ckpt_best(rig->dir), 8);
    assert_int_equal(ckpt_abandon(rig->dir, 4), 1);
    assert_int_equal(ckpt_best(rig->dir), -1);
    ckpt_mark_best(w);
    assert_int_equal(save(w, rig->b, 6), 1);
    assert_int_equal(ckpt_best(rig->dir), 6);
    ckpt_writer_destroy(w);
}

/* ---- Failures ------------------------------------------------------------------------------------------ */

/* Every checkpoint that is there is whole, and nothing else is there. */
static void expect_all_whole(const Rig *rig)
{
    int64_t step[32];
    int     n = ckpt_list(rig->dir, step, 32);
    assert_true(n >= 1);
    assert_int_equal(n, count_entries(rig));
    for (int i = 0; i < n; i++) {
        if (ckpt_verify(path_of(rig, step[i], NULL)) < 0) fail_msg("%s", err_get());
    }
}

static void save_fails_cleanly(void **state)
{
    static const FaultOp op[] = { FAULT_WRITE, FAULT_FSYNC, FAULT_RENAME, FAULT_OPEN, FAULT_MALLOC };
    Rig                 *rig  = (Rig *)*state;
    CkptWriter          *w    = make_writer(rig);
    assert_int_equal(save(w, rig->b, 1), 1);
    for (int k = 0; k < ARRAY_LEN(op); k++) {
        for (int onward = 0; onward < 2; onward++) {
            int failed = 0, passed = 0, published = 0;
            for (int n = 1; passed < 4; n++) { /* a fault in tidying up does not fail the save */
                int64_t step = 1000 * (k + 1) + n;
                fault_arm(op[k], n, onward);
                int rc = save(w, rig->b, step);
                fault_disarm();
                failed += rc < 0;
                published += rc < 0 && file_kind(path_of(rig, step, NULL)) == FILE_FOLDER;
                passed = rc < 0 ? 0 : passed + 1;
                expect_all_whole(rig);
                if (rc > 0) assert_int_equal(ckpt_verify(path_of(rig, step, NULL)), 0);
                assert_true(n < 1000);
            }
            assert_true(failed > 0);
            /* Syncing the parent (opening it is part of that) comes last: when it fails the folder is
             * there, and whole. */
            assert_int_equal(published, op[k] == FAULT_FSYNC || op[k] == FAULT_OPEN);
        }
    }
    assert_int_equal(save(w, rig->b, 1000000), 1); /* and the writer still works */
    expect_all_whole(rig);
    ckpt_writer_destroy(w);
}

static void load_fails_cleanly(void **state)
{
    static const FaultOp op[] = { FAULT_OPEN, FAULT_READ, FAULT_MALLOC };
    Rig                 *rig  = (Rig *)*state;
    CkptWriter          *w    = make_writer(rig);
    CkptState            s;
    char                 note[64];
    assert_int_equal(save(w, rig->b, 1), 1);
    assert_int_equal(save(w, rig->b, 2), 1);
    for (int k = 0; k < ARRAY_LEN(op); k++) {
        int failed = 0;
        for (int n = 1;; n++) {
            fault_arm(op[k], n, 0);
            int rc = ckpt_load(rig->b, path_of(rig, 2, NULL), &s, note, sizeof note);
            fault_disarm();
            if (rc == 0) break;
            failed++;
            assert_int_equal(err_kind(), ERR_RUN);
            err_clear();
            fault_arm(op[k], n, 0);
            rc = ckpt_resume(rig->b, rig->dir, INT64_MAX, &s, note, sizeof note);
            fault_disarm();
            assert_true(rc == 1 || (rc == -1 && n == 1 && op[k] == FAULT_OPEN)); /* the folder itself */
            err_clear();
        }
        assert_true(failed > 1);
    }
    ckpt_writer_destroy(w);
}

static void killed_writers_leave_whole_ones(void **state)
{
    Rig *rig                       = (Rig *)*state;
    rig->b->recipe.checkpoint.keep = 2;
    CkptWriter *first              = make_writer(rig);
    assert_int_equal(save(first, rig->b, 1), 1);
    ckpt_writer_destroy(first);
    for (int i = 0; i < 40; i++) {
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
            CkptWriter *w = make_writer(rig);
            for (int64_t step = 100 * i + 1;; step = step % 7 == 0 ? step - 6 : step + 1)
                save(w, rig->b, step + 1);
        }
        usleep((useconds_t)(2000 + 1700 * i));
        assert_int_equal(kill(pid, SIGKILL), 0);
        assert_int_equal(waitpid(pid, NULL, 0), pid);
        int64_t step[32];
        int     n = ckpt_list(rig->dir, step, 32);
        assert_true(n >= 1);
        for (int k = 0; k < n; k++) {
            if (ckpt_verify(path_of(rig, step[k], NULL)) < 0) fail_msg("%s", err_get());
        }
    }
    ckpt_writer_destroy(make_writer(rig)); /* sweeps */
    expect_all_whole(rig);
}

int main(void)
{
    FILE *quiet = fopen("/dev/null", "w");
    log_open(quiet);
#define CASE(f) cmocka_unit_test_setup_teardown(f, rig_setup, rig_teardown)
    const struct CMUnitTest tests[] = {
        CASE(weight_that_is_not_finite_is_not_saved),
        CASE(resumed_run_is_identical),
        CASE(no_checkpoint_is_no_error),
        CASE(short_of_memory_or_threads),
        CASE(same_step_is_replaced),
        CASE(keeps_newest_and_multiples),
        CASE(damaged_ones_do_not_count),
        CASE(foreign_files_stay),
        CASE(abandoned_best_has_no_name),
        CASE(leftovers_are_removed),
        CASE(damage_falls_back),
        CASE(damage_names_the_tensor),
        CASE(damaged_header_is_not_another_model),
        CASE(change_after_verifying_is_seen),
        CASE(wrong_name_of_a_good_folder),
        CASE(another_model_is_refused),
        CASE(another_own_state_is_refused),
        CASE(other_plan_is_noted),
        CASE(other_head_rows_are_noted),
        CASE(same_data_by_another_path_is_no_change),
        CASE(weights_load_without_optimizer),
        CASE(save_fails_cleanly),
        CASE(load_fails_cleanly),
        CASE(killed_writers_leave_whole_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
