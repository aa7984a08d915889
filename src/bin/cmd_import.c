/* brim import DIR run=NAME: a Hugging Face folder becomes a run like any other, in the folder's own types and
 * without optimizer state. Weights go from file to file: no device is needed, and little memory. */
#include "base/err.h"
#include "base/file.h"
#include "base/folder.h"
#include "base/log.h"
#include "base/str.h"
#include "bin/cmd.h"
#include "bin/tasks.h"
#include "ckpt/ckpt.h"
#include "run/build.h"
#include "run/rundir.h"
#include "task/hf_export.h"
#include "task/weights.h"
#include "text/tokenizer.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What a run keeps of the folder, so that an export has it again. */
static const char *const kept_files[] = {
    "config.json",       "generation_config.json",   "tokenizer.json",     "tokenizer_config.json",
    "tokenizer.model",   "special_tokens_map.json",  "vocab.json",         "merges.txt",
    "added_tokens.json", "preprocessor_config.json", "chat_template.jinja"
};

/* ---- The recipe ---------------------------------------------------------------------------------------- */

/* What a recipe says beside the model's keys. A step of pretraining (524288 tokens) would see a text of a
 * megabyte more than once, and take a minute on a CPU even of a small model. */
enum { FINE_TUNING_STEP = 65536 /* tokens */ };

static void begin_recipe(const HfConfig *c, char *text, size_t n)
{
    char    eos[256] = "", crop[32];
    int64_t T = c->model.context, step = MAX(FINE_TUNING_STEP / T, 1) * T;
    if (c->family == HF_VIT) {
        snprintf(text, n,
                 "task: image\nstep_samples: 256\ndata:\n  crop_fraction: %s\n  full_decode: true\n"
                 "optim:\n  lr: 1e-5\n",
                 str_double(crop, sizeof crop, c->crop_fraction));
        return;
    }
    for (int i = 0; i < c->n_eos; i++)
        str_append(eos, sizeof eos, "%s%lld", i ? ", " : "", (long long)c->eos[i]);
    snprintf(text, n, "step_tokens: %lld\nsample:\n  eos: [%s]\ndata:\n  kind: random\noptim:\n  lr: 1e-5\n",
             (long long)step, eos);
}

/* The model's keys come from config.json by `init`; the command line comes last. */
static int make_recipe(Recipe *r, const char *dir, const HfConfig *c, const CmdTarget *t)
{
    char        text[2 * RECIPE_STR], init[2 * RECIPE_STR];
    char       *all[RECIPE_KEYS + 1];
    const char *name = file_name_of(dir);
    if (t->n_override >= RECIPE_KEYS) return err_user("command line: too many keys");
    snprintf(init, sizeof init, "init=%s", dir);
    all[0] = init;
    for (int i = 0; i < t->n_override; i++) all[i + 1] = t->override[i];
    begin_recipe(c, text, sizeof text);
    TRY(recipe_parse(r, name, text, strlen(text), t->n_override + 1, all));
    r->init[0] = '\0'; /* the run has the weights */
    return 0;
}

/* ---- Files --------------------------------------------------------------------------------------------- */

static int keep_files(const char *dir, const char *hf)
{
    char from[PATH_MAX], to[PATH_MAX];
    TRY(file_make_folders(hf));
    for (int i = 0; i < ARRAY_LEN(kept_files); i++) {
        if (snprintf(from, sizeof from, "%s/%s", dir, kept_files[i]) >= (int)sizeof from ||
            snprintf(to, sizeof to, "%s/%s", hf, kept_files[i]) >= (int)sizeof to)
            return err_user("%s: path too long", dir);
        if (file_kind(from) == FILE_REGULAR) TRY(file_copy(from, to));
    }
    return 0;
}

/* A tokenizer that Brim cannot read costs only text: prompts are ids then. */
static void use_tokenizer(Recipe *r, const char *hf)
{
    Tokenizer *t = NULL;
    char       full[PATH_MAX];
    if (tokenizer_open(&t, hf) < 0) {
        log_warn("no tokenizer that Brim reads: prompts and samples are token ids");
        log_warn("%s", err_get());
        err_clear();
        return;
    }
    if (realpath(hf, full) && strlen(full) < RECIPE_STR)
        str_copy(r->data.tokenizer, sizeof r->data.tokenizer, full);
    tokenizer_close(t);
}

static int write_recipe(const Recipe *r, const char *path)
{
    FILE *f = file_create_tmp(path);
    if (!f) return -1;
    recipe_write(r, f);
    return file_publish(&f, path);
}

/* ---- Weights ------------------------------------------------------------------------------------------- */

static int source_dtype(void *ctx, const char *name)
{
    HfWeight w;
    TRY(hf_find((const HfFolder *)ctx, name, &w));
    return (int)w.dtype;
}

static int source_read(void *ctx, const char *name, int64_t first, int64_t n, void *out)
{
    HfWeight w;
    TRY(hf_find((const HfFolder *)ctx, name, &w));
    return hf_read((HfFolder *)ctx, &w, first, n, out);
}

static int write_weights(const Job *j, HfFolder *h, const char *checkpoints)
{
    CkptSource src = { h, source_dtype, source_read };
    CkptState *s   = calloc(1, sizeof *s);
    if (!s) return err_sys("memory for a checkpoint's state");
    s->seed        = (uint64_t)j->recipe.seed;
    s->micro_batch = 1;
    s->best_val    = HUGE_VAL;
    int rc         = ckpt_write_weights(j, checkpoints, s, &src);
    free(s);
    return rc;
}

/* config.json may name another type than the files have, or none. An export after training goes by it. */
static int keep_type(const Job *j, HfFolder *h, const char *hf)
{
    char path[RUNDIR_PATH + 32];
    int  dtype = source_dtype(h, j->table[0]->param[0].name);
    if (dtype < 0) return -1;
    snprintf(path, sizeof path, "%s/config.json", hf);
    return hf_export_retype(path, path, (DType)dtype);
}

/* An import that failed leaves no run. What others put into the folder stays. */
static void remove_run(const RunDir *d, const char *hf)
{
    folder_remove(hf); /* an error that is pending stays */
    rmdir(d->checkpoints);
    rmdir(d->path);
}

static int write_run(Job *j, HfFolder *h, Recipe *r, const char *dir, int fresh)
{
    RunDir  d;
    int64_t step;
    char    hf[RUNDIR_PATH + 8];
    TRY(rundir_open(&d, r->run));
    snprintf(hf, sizeof hf, "%s/hf", d.path);
    int rc = 0, begun = 0;
    if (!fresh && ckpt_list(d.checkpoints, &step, 1) > 0)
        rc = err_user("%s has checkpoints already (run=NAME makes another run, --fresh moves it aside)",
                      d.path);
    if (rc == 0) rc = rundir_begin(&d, fresh);
    begun = rc == 0;
    if (rc == 0) rc = keep_files(dir, hf);
    if (rc == 0) rc = keep_type(j, h, hf);
    if (rc == 0 && strcmp(r->task, "lm") == 0 && !r->data.tokenizer[0]) use_tokenizer(r, hf);
    j->recipe = *r;
    if (rc == 0) rc = write_weights(j, h, d.checkpoints);
    if (rc == 0 && j->task->keep) rc = j->task->keep(j, NULL, d.path);
    /* Last: without it there is no run to go on with. */
    if (rc == 0) rc = write_recipe(&j->recipe, d.recipe);
    rundir_close(&d);
    if (rc < 0 && begun) remove_run(&d, hf);
    return rc;
}

static int import(const char *dir, const HfConfig *c, Recipe *r, int fresh)
{
    HfFolder  h;
    Job      *j      = NULL;
    JobChoice choice = { .micro_batch = 1, .head_rows = r->model.context, .compute = DT_F32 };
    TRY(hf_open(&h, dir, hf_map_of(c->family)));
    int rc = build_create(&j, task_of(r), r, &choice, JOB_EVAL, dev_cpu());
    if (rc == 0) rc = weights_match_hf(j->table[0], &h);
    if (rc == 0) rc = write_run(j, &h, r, dir, fresh);
    if (rc == 0) {
        char n[32];
        printf("%s/%s: %s, %s parameters in %d file%s\n", rundir_base(), r->run,
               hfconf_family_name[c->family], str_count(n, sizeof n, (double)job_param_count(j)), h.n_file,
               str_plural(h.n_file));
    }
    build_destroy(j);
    hf_close(&h);
    return rc;
}

int cmd_import(const CmdArgs *a)
{
    int       fresh  = 0;
    CmdFlag   flag[] = { { "--fresh", NULL, &fresh, "moves a run of that name aside" } };
    CmdTarget t;
    HfConfig  c;
    Recipe    r;
    char      dir[RECIPE_STR];
    TRY(cmd_parse(a, flag, ARRAY_LEN(flag), &t));
    if (!t.target) return err_user("command line: a Hugging Face folder is missing");
    if (str_copy(dir, sizeof dir, t.target) < 0) return err_user("command line: %s: path too long", t.target);
    while (strlen(dir) > 1 && dir[strlen(dir) - 1] == '/') dir[strlen(dir) - 1] = '\0';
    TRY(hfconf_read(&c, dir));
    TRY(make_recipe(&r, dir, &c, &t));
    return import(dir, &c, &r, fresh);
}
