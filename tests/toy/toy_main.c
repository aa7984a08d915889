/* The toy tenant's own program: train, plan, bench and eval of brim, by the same functions. */
#include "toy.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/hostmem.h"
#include "base/log.h"
#include "base/str.h"
#include "bench/bench.h"
#include "bench/ladder.h"
#include "ckpt/ckpt.h"
#include "run/rundir.h"
#include "run/setup.h"
#include "run/step.h"
#include "run/switches.h"
#include "run/train.h"
#include "watch/doctor.h"
#include "watch/runwatch.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *target, *gpu, *step;
    int         json, ops, list, fresh, ladder, no_limit, watch;
    char       *override[64];
    int         n_override;
    double      begin_s;
} Args;

static int parse_args(Args *a, int argc, char **argv)
{
    struct {
        const char  *name;
        int         *on;
        const char **value;
    } flag[] = { { "--json", &a->json, NULL },     { "--ops", &a->ops, NULL },
                 { "--list", &a->list, NULL },     { "--fresh", &a->fresh, NULL },
                 { "--ladder", &a->ladder, NULL }, { "--no-limit", &a->no_limit, NULL },
                 { "--watch", &a->watch, NULL },   { "--gpu", NULL, &a->gpu },
                 { "--step", NULL, &a->step } };
    for (int i = 0; i < argc; i++) {
        int k = 0;
        while (k < ARRAY_LEN(flag) && strcmp(flag[k].name, argv[i]) != 0) k++;
        if (k < ARRAY_LEN(flag) && flag[k].on) {
            *flag[k].on = 1;
        } else if (k < ARRAY_LEN(flag)) {
            if (i + 1 == argc) return err_user("command line: %s: needs a value", argv[i]);
            *flag[k].value = argv[++i];
        } else if (strchr(argv[i], '=') && a->n_override < ARRAY_LEN(a->override)) {
            a->override[a->n_override++] = argv[i];
        } else if (!a->target && argv[i][0] != '-') {
            a->target = argv[i];
        } else {
            return err_user("command line: %s: not understood", argv[i]);
        }
    }
    return a->target ? 0 : err_user("command line: a recipe or run is missing");
}

static int load_recipe(Recipe *r, const char *path, const Args *a)
{
    TRY(recipe_load_task(r, &recipe_toy, path, a->n_override, (char *const *)a->override));
    if (strcmp(r->task, task_toy.name) == 0) return 0;
    return recipe_blame(r, "task", "is %s; this program has only %s", r->task, task_toy.name);
}

/* ---- plan --------------------------------------------------------------------------------------------- */

static void print_plan(const Choice *c, const Job *j, const Machine *m, int list)
{
    build_print_plan(j, stdout);
    choose_print(c, j, stdout);
    choose_print_cost(j, m, stdout);
    switches_print(j, j->vt, stdout);
    if (list) build_print_lists(j);
}

static int plan_gpu(const Args *a, const Recipe *r)
{
    const Machine *m = machine_asked(a->gpu);
    if (!m) return -1;
    ChooseFor  what = { &task_toy, r, dev_cuda_plan(), m->capability, JOB_TRAIN };
    ChooseRoom room = { machine_room(m), recipe_memory_limit(r, m->mem_bytes) };
    Choice     c;
    Job       *j;
    TRY(choose_plan(&c, &what, m, room));
    TRY(build_create(&j, &task_toy, r, &c.row[c.best].choice, JOB_TRAIN, what.vt));
    int rc = build_verify(j);
    if (rc == 0) print_plan(&c, j, m, a->list);
    build_destroy(j);
    return rc;
}

static int plan(const Args *a, const Recipe *r)
{
    Setup s;
    if (a->gpu) return plan_gpu(a, r);
    int rc = setup_plan(&s, &task_toy, r, JOB_TRAIN, NULL);
    if (rc == 0) print_plan(&s.choice, s.job, &s.machine, a->list);
    setup_close(&s);
    return rc;
}

/* ---- bench -------------------------------------------------------------------------------------------- */

static int ladder(const Args *a, const Recipe *r)
{
    LadderOptions opt = { .task       = &task_toy,
                          .extra      = &recipe_toy,
                          .path       = a->target,
                          .override   = (char *const *)a->override,
                          .n_override = a->n_override,
                          .least_s    = 1 };
    Ladder       *l   = calloc(1, sizeof *l);
    int           rc  = l ? ladder_run(l, &opt) : err_set("out of host memory");
    if (rc == 0) ladder_print(l, stdout);
    if (rc == 0 && a->json) ladder_print_json(l, stdout);
    free(l);
    return rc;
}

static int bench(const Args *a, const Recipe *r)
{
    BenchResult  b;
    BenchOptions opt = { .begin_s       = a->begin_s,
                         .measure_limit = !a->no_limit,
                         .print_ops     = a->ops,
                         .report        = stdout,
                         .least_s       = 1 };
    if (a->ladder) return ladder(a, r);
    TRY(bench_run(&b, &task_toy, r, &opt));
    printf("%.0f %s/s, %.3f ms a step\n", b.per_s, b.unit, b.step_s * 1e3);
    if (a->json) bench_print_json(&b, r, stdout);
    return 0;
}

/* ---- eval --------------------------------------------------------------------------------------------- */

static int load_step(Job *j, const char *dir, const char *which, int64_t *step)
{
    char path[RUNDIR_PATH + 64];
    if (!which) return ckpt_load_newest(j, dir, step);
    *step = ckpt_best(dir);
    if (strcmp(which, "best") != 0) TRY(str_parse_int(which, step));
    if (*step < 0) return err_user("%s: there is no best checkpoint", dir);
    TRY(ckpt_path(dir, *step, path, sizeof path));
    return ckpt_load_weights(j, path);
}

static int evaluate(Setup *s, const Recipe *r, TaskEval *out)
{
    Stepper stepper;
    Feed    feed = { 0 };
    Source *val  = NULL;
    int     rc   = stepper_init(&stepper, s->job, 1);
    if (rc == 0) rc = toy_open_val(&val, r, 0, NULL);
    if (rc == 0) rc = feed_init(&feed, s->job, 2, MARK_VAL);
    if (rc == 0) rc = feed_attach(&feed, val, &(FeedStart){ 0 });
    if (rc == 0) rc = step_evaluate(&stepper, &feed, val, out);
    stepper_deinit(&stepper);
    feed_deinit(&feed);
    source_close(val);
    return rc;
}

/* The target is a run's folder. */
static int eval(const Args *a)
{
    char     path[RUNDIR_PATH];
    int64_t  step = 0;
    Recipe   r;
    Setup    s;
    TaskEval e = { 0 };
    snprintf(path, sizeof path, "%s/recipe.yaml", a->target);
    TRY(load_recipe(&r, path, a));
    int rc = setup_open(&s, &task_toy, &r, JOB_EVAL);
    snprintf(path, sizeof path, "%s/checkpoints", a->target);
    if (rc == 0) rc = load_step(s.job, path, a->step, &step);
    if (rc == 0) rc = evaluate(&s, &r, &e);
    if (rc == 0) {
        printf("step %lld: ", (long long)step);
        task_toy.print_eval(&e, &r, stdout);
    }
    setup_close(&s);
    return rc;
}

/* ---- watching ----------------------------------------------------------------------------------------- */

static int train(const Args *a, const Recipe *r)
{
    TrainOptions opt     = { .fresh = a->fresh, .begin_s = a->begin_s };
    RunWatch    *watch   = a->watch ? runwatch_create(r, NULL) : NULL;
    Watcher      watcher = runwatch_watcher(watch);
    if (watch) opt.watcher = &watcher;
    int rc = train_run(&task_toy, r, &opt);
    runwatch_destroy(watch);
    return rc;
}

/* The target is a run's name. */
static int doctor(const Args *a)
{
    char       path[RUNDIR_PATH];
    Doctor     d    = { 0 };
    RecipeFrom from = { .task = &task_toy, .extra = &recipe_toy, .path = path };
    snprintf(path, sizeof path, "%s/%s/recipe.yaml", rundir_base(), a->target);
    int rc = doctor_open(&d, &from, rundir_base(), a->target);
    if (rc == 0 && a->json) rc = doctor_print_json(&d, stdout);
    if (rc == 0 && !a->json) doctor_print(&d, stdout);
    doctor_close(&d);
    return rc;
}

/* ---- the program -------------------------------------------------------------------------------------- */

static int run(const char *command, const Args *a)
{
    Recipe r;
    if (strcmp(command, "eval") == 0) return eval(a);
    if (strcmp(command, "doctor") == 0) return doctor(a);
    TRY(load_recipe(&r, a->target, a));
    if (strcmp(command, "teacher") == 0)
        return toy_write_teacher(toy_keys(&r)->teacher, toy_keys(&r)->width, toy_keys(&r)->out,
                                 (uint64_t)r.seed);
    if (strcmp(command, "plan") == 0) return plan(a, &r);
    if (strcmp(command, "bench") == 0) return bench(a, &r);
    if (strcmp(command, "train") == 0) return train(a, &r);
    return err_user("command line: %s: not one of train, plan, bench, eval, doctor, teacher", command);
}

int main(int argc, char **argv)
{
    Args a = { .begin_s = clock_now_s() };
    hostmem_begin();
    int rc = argc < 2 ? err_user("usage: toy train|plan|bench|eval|doctor|teacher TARGET [key=value ...]")
                      : parse_args(&a, argc - 2, argv + 2);
    if (rc == 0) rc = run(argv[1], &a);
    log_close();
    if (rc == 0) return 0;
    fprintf(stderr, "%s%s\n", err_kind() == ERR_USER ? "" : "toy: ", err_get());
    return err_kind() == ERR_USER ? 2 : 1;
}
