#include "bin/inherit.h"

#include "base/err.h"
#include "base/file.h"
#include "base/log.h"
#include "base/str.h"
#include "bin/run_target.h"
#include "ckpt/ckpt.h"
#include "conf/schema.h"
#include "run/rundir.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* 1: `key` is among the words of a line, which ends at a line break. */
static int has_word(const char *line, const char *key)
{
    size_t n = strlen(key), end = strcspn(line, "\n");
    for (size_t i = 0; i < end; i += 1 + strcspn(line + i, " \n")) {
        if (strncmp(line + i, key, n) == 0 && strchr(" \n", line[i + n])) return 1;
    }
    return 0;
}

/* What the run's recipe says of a key, as "key=value" in the arena. */
static char *spell(Arena *a, const SchemaRow *row, const Recipe *old)
{
    char text[2 * RECIPE_STR];
    schema_get(row, old, text, sizeof text);
    const char *raw = (const char *)old + row->offset;
    return arena_printf(a, "%s=%s", row->name, row->type == KEY_TEXT ? raw : text);
}

/* What a run only begins with is not asked for again: the folder may be gone. */
static int is_inherited(const SchemaRow *row) { return row->fixed != FIXED_NOT && row->fixed != FIXED_BEGIN; }

/* Texts "key=value" in an arena. */
typedef struct {
    char *all[RECIPE_KEYS], *other[RECIPE_KEYS]; /* other: those that change this recipe */
    int   n, n_other;
} Inherited;

/* The keys of an earlier command line that this one does not give. */
static void collect(Arena *a, const char *typed, const Recipe *old, const Recipe *r, Inherited *in)
{
    for (int i = 0; i < schema_rows(r); i++) {
        const SchemaRow *row = schema_row(r, i);
        if (!is_inherited(row) || r->origin[i] == ORIGIN_COMMAND_LINE || !has_word(typed, row->name))
            continue;
        char *text       = spell(a, row, old);
        in->all[in->n++] = text;
        if (strcmp(text, spell(a, row, r)) != 0) in->other[in->n_other++] = text;
    }
}

/* r names the run. in stays empty for a run that has nothing to go on from. Negative after err_user() if the
 * run is of another task. */
static int find_inherited(Arena *a, const Recipe *r, Inherited *in)
{
    RunDir  d;
    Recipe *old  = ARENA_NEW(a, Recipe);
    char   *text = NULL;
    size_t  size;
    int64_t step;
    /* A recipe that cannot be read only costs what it would give. */
    if (rundir_paths(&d, r->run) < 0 || file_kind(d.recipe) != FILE_REGULAR ||
        ckpt_list(d.checkpoints, &step, 1) <= 0 || recipe_glance(old, d.recipe, 0, NULL) < 0) {
        err_clear();
        return 0;
    }
    if (strcmp(old->task, r->task) != 0)
        return recipe_blame(r, "run",
                            "%s is a run of task %s, this recipe is of task %s (run=NAME makes another run, "
                            "--fresh begins this one anew)",
                            d.path, old->task, r->task);
    const char *typed =
        file_read_all(d.recipe, 1 << 20, &text, &size) == 0 ? strstr(text, recipe_typed) : NULL;
    if (typed) collect(a, typed + strlen(recipe_typed), old, r, in);
    err_clear();
    free(text);
    return 0;
}

/* The run that a target names. */
typedef struct {
    char base[RUNDIR_PATH];                       /* the folder above the run; "": the one for runs */
    char recipe[RUNDIR_PATH], typed[RUNDIR_PATH]; /* typed: "run=NAME" */
} Found;

/* The name of a run that lies in the folder for runs: "mine", "runs/mine". 0: none does. */
static int find_here(const char *target, char *name, size_t n)
{
    RunDir      d;
    char        folder[PATH_MAX], base[PATH_MAX];
    const char *last = target;
    if (strchr(target, '/') && realpath(target, folder) && realpath(rundir_base(), base) &&
        str_starts_with(folder, base) && folder[strlen(base)] == '/') {
        last = folder + strlen(base) + 1;
    }
    int found = rundir_paths(&d, last) == 0 && file_kind(d.recipe) == FILE_REGULAR;
    err_clear();
    return found && str_copy(name, n, last) == 0;
}

/* Likewise of a run that lies elsewhere. A folder with only a recipe of the user's own is no run. */
static int find_elsewhere(const char *target, char *base, char *name)
{
    char checkpoints[RUNDIR_PATH + RUN_NAME + 16];
    if (!run_target_exists(target) || run_target_split(target, base, name) < 0) {
        err_clear();
        return 0;
    }
    snprintf(checkpoints, sizeof checkpoints, "%s/%s/checkpoints", base, name);
    return file_kind(checkpoints) == FILE_FOLDER;
}

static int find_run(const char *target, Found *f)
{
    char name[RUN_NAME];
    memset(f, 0, sizeof *f);
    if (recipe_exists(target)) return 0;
    int         is_here = find_here(target, name, sizeof name);
    const char *base    = is_here ? rundir_base() : f->base;
    if (!is_here && !find_elsewhere(target, f->base, name)) return 0;
    snprintf(f->typed, sizeof f->typed, "run=%s", name);
    return snprintf(f->recipe, sizeof f->recipe, "%s/%s/recipe.yaml", base, name) < (int)sizeof f->recipe;
}

/* What a recipe file is loaded with. */
typedef struct {
    const char *path;
    char      **override;
    int         n;
} Sources;

/* A first look says which run it is. What that look finds wrong may be what is inherited; if not, loading
 * says so. */
static int load_inheriting(const Sources *src, Recipe *r)
{
    char *all[2 * RECIPE_KEYS];
    Arena a;
    if (src->n + RECIPE_KEYS > ARRAY_LEN(all)) return recipe_load(r, src->path, src->n, src->override);
    arena_init(&a);
    Inherited *in = ARENA_NEW(&a, Inherited);
    int        rc = 0;
    if (recipe_glance(r, src->path, src->n, src->override) == 0)
        rc = find_inherited(&a, r, in);
    else
        err_clear();
    if (rc == 0) {
        for (int i = 0; i < in->n; i++) all[i] = in->all[i];
        for (int i = 0; i < src->n; i++) all[in->n + i] = src->override[i];
        rc = recipe_load(r, src->path, in->n + src->n, all);
    }
    for (int i = 0; i < in->n_other && rc == 0; i++) log_info("%s, as in the run so far", in->other[i]);
    arena_deinit(&a);
    return rc;
}

/* Another run that begins with this one's recipe lies in the folder for runs. */
static int names_run(const CmdTarget *t)
{
    for (int i = 0; i < t->n_override; i++) {
        if (str_starts_with(t->override[i], "run=")) return 1;
    }
    return 0;
}

int inherit_load(const CmdTarget *t, int fresh, Recipe *r)
{
    Found f;
    char *none[1], *own[RECIPE_KEYS + 1] = { f.typed };
    TRY(cmd_need_recipe(t));
    TRY(run_target_or_recipe(t->target));
    Sources src = { t->target, t->n_override ? t->override : none, t->n_override };
    if (t->n_override < RECIPE_KEYS && find_run(t->target, &f)) {
        for (int i = 0; i < t->n_override; i++) own[i + 1] = t->override[i];
        src = (Sources){ f.recipe, own, t->n_override + 1 };
        if (f.base[0] && !names_run(t)) setenv("BRIM_RUNS", f.base, 1); /* the run goes on where it is */
    }
    return fresh ? recipe_load(r, src.path, src.n, src.override) : load_inheriting(&src, r);
}
