#define _GNU_SOURCE /* open_memstream */
#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "bin/cmd.h"
#include "bin/inherit.h"
#include "bin/tasks.h"
#include "comm/launch.h"
#include "run/train.h"
#include "watch/nvml.h"
#include "watch/runs.h"
#include "watch/runwatch.h"

#include <stdlib.h>
#include <string.h>

/* "brim train a.yaml steps=5"; what does not fit is cut off. */
static const char *describe(const CmdArgs *a, char *buf, size_t n)
{
    char shown[1024];
    str_copy(buf, n, "brim train");
    for (int i = 0; i < a->argc; i++)
        str_append(buf, n, " %s", str_quote(shown, sizeof shown, a->argv[i], strlen(a->argv[i])));
    runs_blot(buf); /* a token on the command line must not get into the log */
    return buf;
}

/* GPUs that a process of this one would see: the driver's, or those that CUDA_VISIBLE_DEVICES lists. */
static int visible_gpus(void)
{
    Nvml       *nvml = nvml_open(getenv("BRIM_NVML"));
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    int         have = nvml_device_count(nvml), listed = 1;
    nvml_close(nvml);
    if (!list || have == 0) return have;
    for (const char *s = list; *s; s++) listed += *s == ',';
    return MIN(have, *list ? listed : 0);
}

/* 1: this process starts the run's processes, and is none of them. Negative after err_user(). */
static int wants_launch(const Recipe *r, Launch *l)
{
    Place p;
    if (r->gpus < 2) return 0;
    TRY(place_find(&p));
    if (p.launcher[0]) return 0; /* this process is one of them */
    if (str_starts_with(r->device, "cuda:"))
        return recipe_blame(r, "gpus", "%lld, but device %s names a single GPU", (long long)r->gpus,
                            r->device);
    int have = strcmp(r->device, "cpu") == 0 ? 0 : visible_gpus();
    if (have > 0 && have < r->gpus)
        return recipe_blame(r, "gpus", "%lld, but there %s %d here", (long long)r->gpus,
                            have == 1 ? "is" : "are", have);
    l->n      = (int)r->gpus;
    l->divide = have == 0;
    return 1;
}

/* The program's name and arguments, as they were typed: parsing sorts them. */
static char **copy_arguments(const CmdArgs *a)
{
    enum { BEFORE = 2 /* the program's name and the command's */ };
    char **copy = mem_zeroed((size_t)a->argc + BEFORE + 1, sizeof *copy);
    if (copy) memcpy(copy, a->argv - BEFORE, sizeof *copy * (size_t)(a->argc + BEFORE));
    return copy;
}

static int train_here(const Recipe *r, TrainOptions *opt)
{
    RunWatch *watch   = runwatch_create(r, getenv("BRIM_NVML"));
    Watcher   watcher = runwatch_watcher(watch);
    opt->watcher      = &watcher;
    int rc            = train_run(task_of(r), r, opt);
    runwatch_destroy(watch);
    return rc;
}

/* What the command line says, and the recipe. */
typedef struct {
    TrainOptions opt;
    Recipe       r;
    char         command[1500], version[128];
} Asked;

static int load(const CmdArgs *a, Asked *k)
{
    CmdFlag   flag[] = { { "--fresh", NULL, &k->opt.fresh, "start anew; an existing run is moved aside" },
                         { "--change-data", NULL, &k->opt.change_data, "go on with other data" } };
    CmdTarget t;
    k->opt.begin_s = a->begin_s;
    k->opt.command = describe(a, k->command, sizeof k->command); /* first: parsing sorts the arguments */
    snprintf(k->version, sizeof k->version, "%s (%s)", a->version, a->commit);
    k->opt.version = k->version;
    TRY(cmd_parse(a, flag, ARRAY_LEN(flag), &t));
    TRY(inherit_load(&t, k->opt.fresh, &k->r));
    TRY(task_complete(&k->r, DATA_OPENED_NEXT));
    return runwatch_check(&k->r);
}

/* What loading says is kept until it is known whose it is: rank 0 loads the recipe once more. */
int cmd_train(const CmdArgs *a)
{
    Asked  k    = { 0 };
    Launch l    = { .argv = copy_arguments(a) };
    char  *said = NULL;
    size_t n_said;
    FILE  *held = open_memstream(&said, &n_said);
    log_open(held);
    int rc = l.argv ? load(a, &k) : err_sys("memory for arguments");
    log_close();
    if (held) fclose(held);
    int starts = rc < 0 ? rc : wants_launch(&k.r, &l);
    if (starts <= 0 && said) fputs(said, stderr);
    if (starts >= 0) rc = starts ? launch_ranks(&l) : train_here(&k.r, &k.opt);
    free(said);
    free((void *)l.argv);
    return starts < 0 ? -1 : rc;
}
