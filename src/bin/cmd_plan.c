#include "base/err.h"
#include "base/file.h"
#include "base/str.h"
#include "bin/cmd.h"
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

/* A backend that does nothing, with the ops, workspaces and fused products of CUDA: the plan of a GPU on any computer. */
static int plan_for(const Recipe *r, const char *gpu, int list)
{
    const Machine *m = machine_find(gpu);
    if (!m) return err_user("command line: --gpu: '%s' is not known (known: %s)", gpu, machine_keys());
    DevVt  vt = *dev_null();
    Choice c;
    Build *b;
    vt.kind         = DEV_CUDA;
    vt.name         = "cuda";
    vt.fuses        = FUSE_CUDA;
    ChooseRoom room = { machine_room(m), recipe_memory_limit(r, m->mem_bytes) };
    TRY(choose_plan(&c, r, &vt, m, m->capability, room, BUILD_TRAIN));
    TRY(build_create(&b, r, &c.row[c.best].choice, BUILD_TRAIN, &vt));
    print_card(m);
    build_print_plan(b, stdout);
    printf("\n");
    choose_print(&c, r, stdout);
    printf("\n");
    choose_print_cost(b, m, stdout);
    printf("\noptimisations\n");
    switches_print(b, &vt, stdout);
    if (list) prog_print(b->micro, 1);
    build_destroy(b);
    return 0;
}

static int plan_here(const Recipe *r, int list)
{
    Setup s;
    int   rc = setup_plan(&s, r, BUILD_TRAIN);
    if (rc == 0) {
        setup_print_machine(&s, stdout);
        build_print_plan(s.build, stdout);
        printf("\n");
        choose_print(&s.choice, r, stdout);
        printf("\n");
        choose_print_cost(s.build, &s.machine, stdout);
        printf("\noptimisations\n");
        switches_print(s.build, s.dev->vt, stdout);
        if (list) prog_print(s.build->micro, 1);
    }
    setup_close(&s);
    return rc;
}

int cmd_plan(const CmdArgs *a)
{
    const char *gpu    = NULL;
    int         list   = 0;
    CmdFlag     flag[] = { { "--gpu", &gpu, NULL, "plan for a card that is not here" },
                           { "--list", NULL, &list, "print every op and tensor" } };
    Recipe      r;
    CmdTarget   t;
    TRY(cmd_parse(a, flag, ARRAY_LEN(flag), &t));
    TRY(cmd_need_recipe(&t));
    TRY(recipe_load_without_data(&r, t.target, t.n_override, t.override));
    /* Planning needs none: the machine that will train may be another one. */
    if (r.data.kind != DATA_RANDOM && file_kind(r.data.train) == FILE_NONE)
        printf("data        %s is not here\n", r.data.train);
    return gpu ? plan_for(&r, gpu, list) : plan_here(&r, list);
}
