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

/* The keys of an earlier command line that this one does not give. */
static int collect(Arena *a, const char *typed, const Recipe *old, const Recipe *r, char **out)
{
    int n = 0;
    for (int i = 0; i < schema_rows(r); i++) {
        const SchemaRow *row = schema_row(r, i);
        if (!is_inherited(row) || r->origin[i] == ORIGIN_COMMAND_LINE || !has_word(typed, row->name))
            continue;
        out[n] = spell(a, row, old);
        if (strcmp(out[n], spell(a, row, r)) != 0) log_info("%s, as in the run so far", out[n]);
        n++;
    }
    return n;
}

/* r names the run; *out gets what it inherits. Returns how many; 0 also for a run that has nothing to go on
 * from. */
static int find_inherited(Arena *a, const Recipe *r, char **out)
{
    RunDir  d;
    Recipe *old  = ARENA_NEW(a, Recipe);
    char   *text = NULL;
    size_t  size;
    int64_t step;
    int     n = 0;
    TRY(rundir_paths(&d, r->run));
    if (file_kind(d.recipe) != FILE_REGULAR || ckpt_list(d.checkpoints, &step, 1) <= 0) {
        err_clear();
        return 0;
    }
    if (file_read_all(d.recipe, 1 << 20, &text, &size) == 0 &&
        recipe_load_without_data(old, d.recipe, 0, NULL) == 0) {
        const char *typed = strstr(text, recipe_typed);
        if (typed) n = collect(a, typed + strlen(recipe_typed), old, r, out);
    }
    err_clear(); /* a recipe that cannot be read only costs this */
    free(text);
    return n;
}

/* The recipe of a run that the target names ("mine", "runs/mine") and "run=NAME"; 0 when it names none. */
static int find_run(const char *target, char *recipe, size_t n, char *name, size_t n_name)
{
    RunDir      d;
    char        folder[PATH_MAX], base[PATH_MAX];
    const char *last = target;
    if (strchr(target, '/') && realpath(target, folder) && realpath(rundir_base(), base) &&
        str_starts_with(folder, base) && folder[strlen(base)] == '/') {
        last = folder + strlen(base) + 1;
    }
    if (recipe_exists(target) || rundir_paths(&d, last) < 0 || file_kind(d.recipe) != FILE_REGULAR) {
        err_clear();
        return 0;
    }
    snprintf(name, n_name, "run=%s", last);
    return str_copy(recipe, n, d.recipe) == 0;
}

/* What a recipe file is loaded with. */
typedef struct {
    const char *path;
    char      **override;
    int         n;
} Sources;

static int load_inheriting(const Sources *src, Recipe *r)
{
    char *all[2 * RECIPE_KEYS], why[1024];
    Arena a;
    int   n = 0, rc = recipe_load(r, src->path, src->n, src->override);
    if (err_kind() == ERR_RUN || src->n + RECIPE_KEYS > ARRAY_LEN(all)) return rc;
    str_copy(why, sizeof why, err_get());
    err_clear(); /* what is missing may be what is inherited */
    arena_init(&a);
    if (rc == 0 || recipe_load_without_data(r, src->path, src->n, src->override) == 0)
        n = find_inherited(&a, r, all);
    err_clear();
    if (n > 0) {
        for (int i = 0; i < src->n; i++) all[n + i] = src->override[i];
        rc = recipe_load(r, src->path, n + src->n, all);
    } else if (rc < 0) {
        err_user("%s", why);
    }
    arena_deinit(&a);
    return rc;
}

int inherit_load(const CmdTarget *t, int fresh, Recipe *r)
{
    char  recipe[RUNDIR_PATH], name[RUNDIR_PATH], *own[RECIPE_KEYS + 1] = { name };
    char *none[1];
    TRY(cmd_need_recipe(t));
    TRY(run_target_or_recipe(t->target));
    Sources src = { t->target, t->n_override ? t->override : none, t->n_override };
    if (t->n_override < RECIPE_KEYS && find_run(t->target, recipe, sizeof recipe, name, sizeof name)) {
        for (int i = 0; i < t->n_override; i++) own[i + 1] = t->override[i];
        src = (Sources){ recipe, own, t->n_override + 1 };
    }
    return fresh ? recipe_load(r, src.path, src.n, src.override) : load_inheriting(&src, r);
}
