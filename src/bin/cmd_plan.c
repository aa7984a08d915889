#include "base/err.h"
#include "base/file.h"
#include "base/str.h"
#include "bin/cmd.h"
#include "bin/tasks.h"
#include "run/setup.h"
#include "run/switches.h"

#include <stdlib.h>

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
    const char *gpu;
    int         list, json;
} Flags;

static int plan_for(const Recipe *r, const Flags *f)
{
    const Machine *m = machine_find(f->gpu);
    if (!m) return err_user("command line: --gpu: '%s' is not known (known: %s)", f->gpu, machine_keys());
    const Task *task = task_of(r);
    ChooseFor   what = { task, r, dev_cuda_plan(), m->capability, JOB_TRAIN };
    ChooseRoom  room = { machine_room(m), recipe_memory_limit(r, m->mem_bytes) };
    Choice      c;
    Job        *j;
    TRY(choose_plan(&c, &what, m, room));
    TRY(build_create(&j, task, r, &c.row[c.best].choice, JOB_TRAIN, what.vt));
    if (f->json) {
        choose_print_json(&c, j, m, m->name, stdout);
    } else {
        print_card(m);
        print_all(&c, j, m, f->list);
    }
    build_destroy(j);
    return 0;
}

static int plan_here(const Recipe *r, const Flags *f)
{
    Setup s;
    int   rc = setup_plan(&s, task_of(r), r, JOB_TRAIN);
    if (rc == 0 && f->json) {
        choose_print_json(&s.choice, s.job, &s.machine, s.info.name, stdout);
    } else if (rc == 0) {
        setup_print_machine(&s, stdout);
        print_all(&s.choice, s.job, &s.machine, f->list);
    }
    setup_close(&s);
    return rc;
}

int cmd_plan(const CmdArgs *a)
{
    Flags     f      = { 0 };
    CmdFlag   flag[] = { { "--gpu", &f.gpu, NULL, "plan for a card that is not here" },
                         { "--list", NULL, &f.list, "print every op and tensor" },
                         { "--json", NULL, &f.json, "one JSON object instead" } };
    Recipe    r;
    CmdTarget t;
    TRY(cmd_parse(a, flag, ARRAY_LEN(flag), &t));
    TRY(cmd_need_recipe(&t));
    TRY(recipe_load_without_data(&r, t.target, t.n_override, t.override));
    TRY(task_complete(&r, 0));
    /* Planning needs none: the machine that will train may be another one. */
    if (f.json && f.list) return err_user("command line: --list: not together with --json");
    if (!f.json && r.data.train[0] && file_kind(r.data.train) == FILE_NONE)
        printf("data        %s is not here\n", r.data.train);
    return f.gpu ? plan_for(&r, &f) : plan_here(&r, &f);
}
