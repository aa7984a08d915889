#include "base/err.h"
#include "base/file.h"
#include "base/folder.h"
#include "base/str.h"
#include "bin/cmd.h"
#include "bin/run_target.h"
#include "bin/tasks.h"
#include "run/rundir.h"
#include "run/train.h"
#include "watch/doctor.h"
#include "watch/foreign.h"
#include "watch/runwatch.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    int         apply, json;
    const char *out, *seconds, *pid;
} Flags;

/* ---- a look at a recipe -------------------------------------------------------------------------------- */

/* Runs go to a folder of their own for a while; timings of kernels stay where they are kept. */
static int begin_look(char folder[64])
{
    char cache[1024];
    str_copy(folder, 64, "/tmp/brim-doctor-XXXXXX");
    if (!getenv("BRIM_TUNE_CACHE")) setenv("BRIM_TUNE_CACHE", rundir_tune_cache(cache, sizeof cache), 1);
    if (!mkdtemp(folder)) return err_sys("%s", folder);
    setenv("BRIM_RUNS", folder, 1);
    return 0;
}

/* Steps for some seconds, a few of them traced; nothing is evaluated, nothing saved. */
static int look(const CmdArgs *a, const CmdTarget *t, double seconds)
{
    static char steps[] = "steps=1000000", trace[] = "trace=3", report[] = "watch.report=false",
                skip[] = "trace_skip=2", web[] = "watch.web=false", sample[] = "watch.sample=true",
                every[] = "log_every=1";
    char        *own[]  = { steps, trace, skip, report, web, sample, every };
    char        *all[RECIPE_KEYS + ARRAY_LEN(own)];
    TrainOptions opt = {
        .begin_s = a->begin_s, .is_look = 1, .command = "brim doctor", .version = a->version
    };
    Recipe r;
    if (t->n_override > RECIPE_KEYS) return err_user("command line: too many keys");
    for (int i = 0; i < t->n_override; i++) all[i] = t->override[i];
    for (int i = 0; i < ARRAY_LEN(own); i++) all[t->n_override + i] = own[i];
    TRY(recipe_load(&r, t->target, t->n_override + ARRAY_LEN(own), all));
    TRY(task_complete(&r, DATA_OPENED_NEXT));
    RunWatch *watch   = runwatch_create(&r, getenv("BRIM_NVML"));
    Watcher   watcher = runwatch_watcher(watch);
    runwatch_look(watch, seconds);
    opt.watcher = &watcher;
    int rc      = train_run(task_of(&r), &r, &opt);
    runwatch_destroy(watch);
    return rc;
}

/* ---- the command --------------------------------------------------------------------------------------- */

/* target: "dir/name.yaml", or a run's folder; "dir/name.doctor.yaml" is written beside it. */
static int show(const Doctor *d, const RecipeFrom *from, const Flags *f, const char *target)
{
    char path[RUNDIR_PATH + RUN_NAME + 64];
    int  len = (int)strlen(target) - (str_ends_with(target, ".yaml") ? (int)strlen(".yaml") : 0), n = 0;
    snprintf(path, sizeof path, "%.*s.doctor.yaml", len, target);
    if (f->out) str_copy(path, sizeof path, f->out);
    if (f->json) {
        TRY(doctor_print_json(d, stdout));
    } else {
        doctor_print(d, stdout);
    }
    if (!f->apply) return 0;
    n = doctor_apply(d, from, path);
    if (n < 0) return -1;
    if (n == 0) fprintf(f->json ? stderr : stdout, "\nnothing to change\n");
    if (n > 0)
        fprintf(f->json ? stderr : stdout, "\n%s: the recipe with %d key%s changed\n", path, n,
                str_plural(n));
    return 0;
}

static int examine_run(const CmdTarget *t, const Flags *f)
{
    char   base[RUNDIR_PATH], name[RUN_NAME], folder[RUNDIR_PATH + RUN_NAME], path[sizeof folder + 32];
    Recipe r;
    Doctor d;
    if (t->n_override > 0)
        return err_user("command line: %s: a run is judged as it was; keys belong to a recipe",
                        t->override[0]);
    if (f->seconds)
        return err_user("command line: --seconds: a run is judged by its files; only a recipe is watched");
    TRY(run_target_split(t->target, base, name));
    snprintf(folder, sizeof folder, "%s/%s", base, name);
    snprintf(path, sizeof path, "%s/recipe.yaml", folder);
    TRY(recipe_load_without_data(&r, path, 0, NULL));
    RecipeFrom from = { .task = task_of(&r), .path = path };
    int        rc   = doctor_open(&d, &from, base, name);
    if (rc == 0) rc = show(&d, &from, f, folder);
    doctor_close(&d);
    return rc;
}

static int examine_recipe(const CmdArgs *a, const CmdTarget *t, const Flags *f)
{
    char   folder[64], before[1024];
    double seconds = 3;
    Recipe r;
    Doctor d = { 0 };
    if (f->seconds) TRY(cmd_double("--seconds", f->seconds, 0.5, 600, &seconds));
    TRY(cmd_load_target(t, &r));
    str_copy(before, sizeof before, rundir_base());
    TRY(begin_look(folder));
    RecipeFrom from = {
        .task = task_of(&r), .path = t->target, .override = t->override, .n_override = t->n_override
    };
    int rc = look(a, t, seconds);
    if (rc == 0) rc = doctor_open(&d, &from, folder, r.run);
    if (folder_remove(folder) < 0 && rc == 0) err_clear(); /* the judgment stands */
    setenv("BRIM_RUNS", before, 1);
    if (rc == 0) rc = show(&d, &from, f, t->target);
    doctor_close(&d);
    return rc;
}

static int judge_pid(const CmdTarget *t, const Flags *f)
{
    int64_t        pid;
    ForeignOptions opt = { .seconds = 3, .nvml_path = getenv("BRIM_NVML") };
    if (t->target || f->apply || t->n_override > 0)
        return err_user("command line: --pid: only together with --seconds and --json");
    TRY(cmd_int("--pid", f->pid, 1, 1 << 30, &pid));
    if (f->seconds) TRY(cmd_double("--seconds", f->seconds, 0.5, 600, &opt.seconds));
    opt.pid     = (int)pid;
    opt.as_json = f->json;
    return foreign_judge(&opt, stdout);
}

int cmd_doctor(const CmdArgs *a)
{
    Flags     f      = { 0 };
    CmdFlag   flag[] = { { "--apply", NULL, &f.apply, "write the changed recipe" },
                         { "--out", &f.out, NULL, "where --apply writes (default: NAME.doctor.yaml)" },
                         { "--seconds", &f.seconds, NULL, "that a recipe is watched for (default 3)" },
                         { "--pid", &f.pid, NULL, "judge any program on a GPU, by the driver alone" },
                         { "--json", NULL, &f.json, "one JSON object instead" } };
    CmdTarget t;
    TRY(cmd_parse(a, flag, ARRAY_LEN(flag), &t));
    if (f.out && !f.apply) return err_user("command line: --out: only together with --apply");
    TRY(cmd_out_file("--out", f.out));
    if (f.pid) return judge_pid(&t, &f);
    if (!t.target) return err_user("command line: a run or a recipe is missing (brim doctor runs/mine)");
    /* A bare name means the run, if there is one. "NAME.yaml", or keys beside the name, mean the recipe. */
    int has_recipe = recipe_exists(t.target);
    int is_recipe  = has_recipe && (str_ends_with(t.target, ".yaml") || t.n_override > 0);
    if (!is_recipe && run_target_exists(t.target)) return examine_run(&t, &f);
    TRY(run_target_or_recipe(t.target));
    return examine_recipe(a, &t, &f);
}
