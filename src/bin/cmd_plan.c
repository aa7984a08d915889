#include "base/err.h"
#include "base/file.h"
#include "base/str.h"
#include "bin/run_target.h"
#include "bin/tasks.h"
#include "run/setup.h"
#include "run/switches.h"

static void print_card(const Machine *m)
{
    int c = m->capability;
    printf("device      %s, %.1f GiB, data-sheet peak %.1f TFLOP/s bf16\n", m->name,
           (double)m->mem_bytes / 1073741824.0, m->peak_flops * 1e-12);
    if (c < MACHINE_BUILT_FOR) {
        printf("build       has no kernels for compute capability %d.%d: a plan only, this card is not "
               "supported\n",
               c / 10, c % 10);
    }
}

static void print_all(const Choice *c, const Job *j, const Machine *m, int list)
{
    build_print_plan(j, stdout);
    printf("\n");
    choose_print(c, j, stdout);
    printf("\n");
    choose_print_cost(j, m, stdout);
    printf("\noptimisations\n");
    switches_print(j, j->vt, stdout);
    if (list) build_print_lists(j);
}

typedef struct {
    const char *gpu, *grow;
    int         list, json;
} Flags;

/* Why nothing fits; the line of the error comes behind it. A recipe that was refused before is no plan. */
static int print_refusal(const Choice *c, const Recipe *r, const char *machine, const Flags *f)
{
    if (!f->json) printf("%s", c->refusal);
    if (f->json && c->refusal[0]) choose_print_json_refusal(c, r, machine, stdout);
    return -1;
}

static int plan_for(const Recipe *r, const Flags *f)
{
    const Machine *m = machine_asked(f->gpu);
    if (!m) return -1;
    const Task *task  = task_of(r);
    int         world = MAX((int)r->gpus, 1);
    Recipe      share;
    TRY(setup_share(&share, r, world));
    ChooseFor  what = { task, &share, dev_cuda_plan(), m->capability, JOB_TRAIN };
    ChooseRoom room = { machine_room(m), recipe_memory_limit(r, m->mem_bytes) };
    Choice     c;
    Job       *j;
    if (choose_plan(&c, &what, m, room) < 0) return print_refusal(&c, r, m->name, f);
    JobChoice best = c.row[c.best].choice;
    best.world     = world;
    TRY(build_create(&j, task, r, &best, JOB_TRAIN, what.vt));
    int rc = switches_check(j, what.vt, c.why);
    if (rc == 0 && f->json) {
        choose_print_json(&c, j, m, m->name, stdout);
    } else if (rc == 0) {
        print_card(m);
        print_all(&c, j, m, f->list);
    }
    build_destroy(j);
    return rc;
}

static int plan_here(const Recipe *r, const Flags *f)
{
    Setup s;
    int   rc = setup_plan(&s, task_of(r), r, JOB_TRAIN, NULL);
    if (rc == 0 && f->json) {
        choose_print_json(&s.choice, s.job, &s.machine, s.info.name, stdout);
    } else if (rc == 0) {
        setup_print_machine(&s, stdout);
        print_all(&s.choice, s.job, &s.machine, f->list);
    } else if (!s.job) {
        print_refusal(&s.choice, r, s.info.name, f);
    }
    setup_close(&s);
    return rc;
}

/* Every stage has a plan of its own. */
static int plan_stages(const Recipe *r, const Flags *f)
{
    const Task *task  = task_of(r);
    TaskStage   range = { 0, r->steps };
    Recipe      stage = *r;
    for (int64_t step = 0; step < r->steps; step = range.until) {
        if (task->stage) range = task->stage(r, step, &stage);
        int several = range.from > 0 || range.until < r->steps;
        if (several && !f->json)
            printf("%sstage       steps %lld to %lld\n", step > 0 ? "\n" : "", (long long)range.from,
                   (long long)range.until);
        TRY(f->gpu ? plan_for(&stage, f) : plan_here(&stage, f));
    }
    return 0;
}

/* ---- --grow ------------------------------------------------------------------------------------------- */

/* 1 when the recipe fits, with its choice; 0 when it does not, and the error that is pending says why. */
static int try_plan(const Recipe *r, const Flags *f, Choice *c)
{
    const Machine *m  = f->gpu ? machine_asked(f->gpu) : NULL;
    int            rc = 0;
    if (f->gpu && !m) return -1;
    if (m) {
        ChooseFor what = { task_of(r), r, dev_cuda_plan(), m->capability, JOB_TRAIN };
        rc = choose_plan(c, &what, m, (ChooseRoom){ machine_room(m), recipe_memory_limit(r, m->mem_bytes) });
    } else {
        Setup s;
        rc = setup_plan(&s, task_of(r), r, JOB_TRAIN, NULL);
        *c = s.choice;
        setup_close(&s);
    }
    if (rc < 0 && err_kind() != ERR_USER) return -1;
    return rc == 0;
}

static void print_grown(const Recipe *r, const char *what, int64_t value, const Choice *c)
{
    const Candidate *k     = &c->row[c->best];
    double           per_s = (double)(r->step_samples * task_of(r)->units(r)) / k->step_s;
    char             bytes[32], rate[32];
    if (per_s < 0.1) {
        snprintf(rate, sizeof rate, "%.2g", per_s);
    } else {
        str_count(rate, sizeof rate, per_s);
    }
    printf("%8lld %-8s %11lld  %-9s %11s  %9s/s\n", (long long)value, what, (long long)k->choice.micro_batch,
           recompute_level_name(k->choice.level), str_bytes(bytes, sizeof bytes, (double)k->total_bytes),
           rate);
}

/* The smallest micro-batch, so that only size decides; the value, 0 when it does not fit. */
static int64_t try_grown(const Recipe *r, const Flags *f, int64_t n, Choice *c)
{
    const Task *task  = task_of(r);
    Recipe      grown = *r;
    int64_t     value = task->grow(&grown, f->grow, n);
    if (r->micro_batch == 0) grown.micro_batch = task->together ? task->together(r) : 1;
    if (value <= 0) return value;
    int fits = try_plan(&grown, f, c);
    return fits > 0 ? value : fits;
}

/* Doubles until nothing fits any more, then halves the gap. */
static int plan_grow(const Recipe *r, const Flags *f)
{
    Choice  c;
    int64_t good = 0, bad = 1, largest = 0, shown = 0;
    if (!task_of(r)->grow) return err_user("command line: --grow: nothing grows in task %s", r->task);
    for (;; bad *= 2) {
        int64_t value = try_grown(r, f, bad, &c);
        if (value < 0) return -1;
        if (value == 0) break;
        if (good == 0)
            printf("%8s %-8s %11s  %-9s %11s  %11s\n", "", "", "micro-batch", "recompute", "bytes",
                   "predicted");
        print_grown(r, f->grow, value, &c);
        good    = bad;
        largest = shown = value;
    }
    if (good == 0 && err_kind() != ERR_NONE) return -1;
    if (good == 0) return err_user("%s: not even the smallest fits", r->file);
    err_clear(); /* of what does not fit any more */
    while (bad - good > 1) {
        int64_t middle = (good + bad) / 2, value = try_grown(r, f, middle, &c);
        if (value < 0) return -1;
        err_clear();
        if (value == 0) {
            bad = middle;
            continue;
        }
        good    = middle;
        largest = value;
    }
    if (largest != shown && try_grown(r, f, good, &c) > 0) print_grown(r, f->grow, largest, &c);
    Recipe next = *r; /* one more: 0 where the recipe's key ends, not the memory */
    printf("largest that fits: %lld %s%s\n", (long long)largest, f->grow,
           task_of(r)->grow(&next, f->grow, good + 1) == 0 ? ", the most that a recipe may say" : "");
    return 0;
}

int cmd_plan(const CmdArgs *a)
{
    Flags     f      = { 0 };
    CmdFlag   flag[] = { { "--gpu", &f.gpu, NULL, "plan for a card that is not here" },
                         { "--grow", &f.grow, NULL, "pixels or frames: the largest that fits" },
                         { "--list", NULL, &f.list, "print every op and tensor" },
                         { "--json", NULL, &f.json,
                           "one JSON object instead, one for each stage; fits says whether it does" } };
    Recipe    r;
    CmdTarget t;
    TRY(cmd_parse(a, flag, ARRAY_LEN(flag), &t));
    TRY(cmd_need_recipe(&t));
    TRY(run_target_refuse(t.target, "plan"));
    TRY(recipe_load_without_data(&r, t.target, t.n_override, t.override));
    TRY(task_complete(&r, DATA_ELSEWHERE));
    /* Planning needs none: the machine that will train may be another one. */
    if (f.json && (f.list || f.grow))
        return err_user("command line: %s: not together with --json", f.list ? "--list" : "--grow");
    if (!f.json && r.data.train[0] && file_kind(r.data.train) == FILE_NONE)
        printf("data        %s is not here\n", r.data.train);
    if (f.grow) return plan_grow(&r, &f);
    return plan_stages(&r, &f);
}
