#include "bin/run_target.h"

#include "base/err.h"
#include "base/file.h"
#include "base/str.h"
#include "bin/tasks.h"
#include "ckpt/ckpt.h"
#include "run/rundir.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void offer_runs(StrNearest *near, Arena *a)
{
    char **names, recipe[2 * RUNDIR_PATH];
    int    n = file_list(a, rundir_base(), "", &names);
    err_clear(); /* a folder that cannot be listed only costs the hint */
    for (int i = 0; i < n; i++) {
        snprintf(recipe, sizeof recipe, "%s/%s/recipe.yaml", rundir_base(), names[i]);
        if (access(recipe, R_OK) == 0) str_nearest_offer(near, names[i]);
    }
}

/* 1: the run that is called most alike is in name[RUN_NAME]; or_recipe: the run or the recipe. */
static int find_nearest(const char *target, int or_recipe, char *name)
{
    Arena arena;
    arena_init(&arena);
    StrNearest near = str_nearest_begin(file_name_of(target));
    offer_runs(&near, &arena);
    if (or_recipe) recipe_offer_names(&near, &arena, target);
    if (near.best) str_copy(name, RUN_NAME, near.best);
    arena_deinit(&arena);
    return near.best != NULL;
}

static int refuse_missing(const char *target)
{
    char near[RUN_NAME];
    int  may_be_recipe = str_ends_with(target, ".yaml") || file_kind(target) == FILE_NONE;
    if (find_nearest(target, 0, near))
        return err_user("command line: %s: no such run (did you mean %s?)", target, near);
    if (may_be_recipe && recipe_exists(target))
        return err_user("command line: %s: a recipe, but no run (brim train %s makes one)", target, target);
    if (target[0] == '/')
        return err_user("command line: %s: no such run (there is no recipe.yaml in it)", target);
    return err_user("command line: %s: no such run (there is no recipe.yaml in it, nor in %s/%s)", target,
                    rundir_base(), target);
}

/* The run's folder from what the user typed: the folder itself, or a name under the runs folder. 0: there is
 * none. */
static int has_run(const char *target, char *path, size_t n)
{
    char recipe[RUNDIR_PATH];
    str_copy(path, n, target);
    for (int i = 0; i < 2; i++) {
        if (snprintf(recipe, sizeof recipe, "%s/recipe.yaml", path) < (int)sizeof recipe &&
            access(recipe, R_OK) == 0) {
            return 1;
        }
        if (target[0] == '/' || snprintf(path, n, "%s/%s", rundir_base(), target) >= (int)n) break;
    }
    return 0;
}

static int find_run(const char *target, char *path, size_t n)
{
    return has_run(target, path, n) ? 0 : refuse_missing(target);
}

int run_target_exists(const char *target)
{
    char path[RUNDIR_PATH];
    return has_run(target, path, sizeof path);
}

int run_target_or_recipe(const char *target)
{
    char near[RUN_NAME];
    int  is_gone = access(target, F_OK) != 0 && errno == ENOENT;
    if (!is_gone || str_ends_with(target, ".yaml") || recipe_exists(target) || run_target_exists(target))
        return 0;
    if (find_nearest(target, 1, near))
        return err_user("command line: %s: neither a run nor a recipe (did you mean %s?)", target, near);
    return err_user("command line: %s: neither a run (in %s) nor a recipe", target, rundir_base());
}

int run_target_refuse(const char *target, const char *command)
{
    char path[RUNDIR_PATH];
    if (!target || recipe_exists(target) || !has_run(target, path, sizeof path)) return 0;
    return err_user("command line: %s: a run, and %s takes a recipe (%s/recipe.yaml is that run's)", target,
                    command, path);
}

int run_target_split(const char *target, char *base, char *name)
{
    char path[RUNDIR_PATH], *whole = NULL;
    TRY(find_run(target, path, sizeof path));
    for (size_t n = strlen(path); n > 1 && path[n - 1] == '/'; n--) path[n - 1] = '\0';
    const char *last = file_name_of(path);
    if (strcmp(last, ".") == 0 || strcmp(last, "..") == 0) whole = realpath(path, NULL);
    const char *used = whole ? whole : path;
    int         rc   = file_folder_of(used, base, RUNDIR_PATH);
    if (rc == 0) rc = str_copy(name, RUN_NAME, file_name_of(used));
    free(whole);
    return rc == 0 ? 0 : err_user("command line: %s: the path is too long", target);
}

/* Negative after err_user() if the target's task has nothing of what is asked for. */
static int check_parts(const char *target, const Task *task, const Recipe *r, unsigned parts)
{
    const char *lack = NULL;
    if ((parts & JOB_SAMPLE) && !task->sample) lack = "nothing to sample";
    if ((parts & JOB_PREDICT) && !task->predict) lack = "nothing to predict";
    if ((parts & JOB_PLAY) && !task->play) lack = "no episodes to play";
    if (lack) return err_user("command line: %s: a run of task %s has %s", target, task->name, lack);
    if (!(parts & JOB_EVAL)) return 0;
    /* Noise has no end, and nothing worth knowing. */
    if (task->is_noise && task->is_noise(r))
        return recipe_blame(r, "data.train", "noise has nothing to evaluate (name the data that were kept)");
    return 0;
}

static int blame_step(const char *dir, int64_t step)
{
    enum { SHOWN = 12 };
    int64_t kept[SHOWN + 1];
    char    list[256] = "";
    int     n         = ckpt_list(dir, kept, SHOWN + 1);
    for (int i = MIN(n, SHOWN) - 1; i >= 0; i--)
        str_append(list, sizeof list, "%s%lld", *list ? ", " : "", (long long)kept[i]);
    return err_user("command line: --step: there is no checkpoint of step %lld (kept: %s%s)", (long long)step,
                    n > SHOWN ? "..., " : "", list);
}

/* The step that --step names; -1: the newest. */
static int find_step(const char *dir, const char *which, int64_t *step)
{
    char    path[RUNDIR_PATH + 64];
    int64_t newest;
    *step = -1;
    int n = ckpt_list(dir, &newest, 1);
    if (n < 0) return -1;
    if (n == 0) return err_user("%s: there is no checkpoint yet", dir);
    if (!which || strcmp(which, "last") == 0) return 0;
    if (strcmp(which, "best") == 0) {
        *step = ckpt_best(dir);
        if (*step >= 0) return 0;
        return err_user("command line: --step: %s has no best checkpoint (checkpoint.best keeps one)", dir);
    }
    if (str_parse_int(which, step) < 0 || *step < 0)
        return err_user("command line: --step: '%.32s' is none of best, last or the number of a step", which);
    TRY(ckpt_path(dir, *step, path, sizeof path));
    if (file_kind(path) == FILE_FOLDER) return 0;
    return blame_step(dir, *step);
}

static int load_weights(Job *j, const char *dir, int64_t *step)
{
    char path[RUNDIR_PATH + 64];
    if (*step < 0) return ckpt_load_newest(j, dir, step);
    TRY(ckpt_path(dir, *step, path, sizeof path));
    return ckpt_load_weights(j, path);
}

/* The step whose stage a checkpoint belongs to: the last one that was trained. */
static int64_t stage_step(const char *dir, int64_t step)
{
    if (step < 0 && ckpt_list(dir, &step, 1) <= 0) step = 0;
    return MAX(step - 1, 0);
}

/* What is asked of a run. */
typedef struct {
    const char       *which; /* --step */
    unsigned          parts;
    const TaskSample *sample; /* NULL: none */
    const TaskScore  *score;  /* likewise */
    RunEval          *eval;   /* likewise */
} Wanted;

/* Builds the job and loads the weights of a step; -1: the newest. */
static int open_job(const Task *task, const Recipe *r, unsigned parts, const char *dir, int64_t *step,
                    Setup *s)
{
    TRY(setup_open(s, task, r, parts | JOB_LOADED));
    if (load_weights(s->job, dir, step) == 0) return 0;
    setup_close(s);
    return -1;
}

static int open_run(const CmdTarget *t, const Wanted *want, Recipe *r, Setup *s)
{
    char    path[RUNDIR_PATH], recipe[RUNDIR_PATH + 32], dir[RUNDIR_PATH + 32];
    int64_t step;
    if (!t->target) return err_user("command line: a run is missing (for example runs/quickstart)");
    TRY(find_run(t->target, path, sizeof path));
    snprintf(recipe, sizeof recipe, "%s/recipe.yaml", path);
    snprintf(dir, sizeof dir, "%s/checkpoints", path);
    /* What it was trained on need not be here: the run may have been copied from another computer. */
    TRY(recipe_load_without_data(r, recipe, t->n_override, t->override));
    TRY(task_complete(r, DATA_ELSEWHERE));
    const Task *task = task_of(r);
    TRY(check_parts(t->target, task, r, want->parts));
    TRY(find_step(dir, want->which, &step));
    if (want->sample && task->ask) TRY(task->ask(r, want->sample));
    if (want->score && !task->score)
        return err_user("command line: --ids: a run of task %s has no logits to show", task->name);
    if (want->score && task->ask_score) TRY(task->ask_score(r, want->score));
    if (task->stage) task->stage(r, stage_step(dir, step), r);
    /* An evaluation without its data is refused before the model is read. */
    RunEval *e = want->eval;
    if (e) TRY(task->open_val(&e->val, r, e->some ? r->eval.samples : 0, NULL));
    int rc = open_job(task, r, want->parts, dir, &step, s);
    if (rc < 0 && e) source_close(e->val);
    if (rc == 0 && e) e->step = step;
    return rc;
}

int run_target_open(const CmdTarget *t, const char *which, unsigned parts, Recipe *r, Setup *s)
{
    return open_run(t, &(Wanted){ .which = which, .parts = parts }, r, s);
}

int run_target_eval(const CmdTarget *t, const char *which, RunEval *e, Recipe *r, Setup *s)
{
    return open_run(t, &(Wanted){ .which = which, .parts = JOB_EVAL, .eval = e }, r, s);
}

int run_target_sample(const CmdTarget *t, const char *which, const TaskSample *opt, Recipe *r, Setup *s)
{
    return open_run(t, &(Wanted){ .which = which, .parts = JOB_SAMPLE, .sample = opt }, r, s);
}

int run_target_score(const CmdTarget *t, const char *which, const TaskScore *opt, Recipe *r, Setup *s)
{
    return open_run(t, &(Wanted){ .which = which, .parts = JOB_SAMPLE, .score = opt }, r, s);
}

int run_target_find(const CmdTarget *t, const char *which, Recipe *r, char *run, char *checkpoint,
                    int64_t *step)
{
    char path[RUNDIR_PATH + 32], dir[RUNDIR_PATH + 32];
    if (!t->target) return err_user("command line: a run is missing (for example runs/quickstart)");
    TRY(find_run(t->target, run, RUNDIR_PATH));
    snprintf(path, sizeof path, "%s/recipe.yaml", run);
    snprintf(dir, sizeof dir, "%s/checkpoints", run);
    TRY(recipe_load_without_data(r, path, t->n_override, t->override));
    TRY(task_complete(r, DATA_ELSEWHERE));
    TRY(find_step(dir, which, step));
    if (*step < 0 && ckpt_list(dir, step, 1) < 1) return err_user("%s: there is no checkpoint yet", dir);
    return ckpt_path(dir, *step, checkpoint, RUN_CHECKPOINT_PATH);
}
