#include "base/err.h"
#include "base/str.h"
#include "bin/cmd.h"
#include "bin/inherit.h"
#include "bin/tasks.h"
#include "run/train.h"
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

int cmd_train(const CmdArgs *a)
{
    TrainOptions opt    = { .begin_s = a->begin_s };
    CmdFlag      flag[] = { { "--fresh", NULL, &opt.fresh, "start anew; an existing run is moved aside" },
                            { "--change-data", NULL, &opt.change_data, "go on with other data" } };
    CmdTarget    t;
    Recipe       r;
    char         command[1500], version[128];
    opt.command = describe(a, command, sizeof command); /* first: parsing sorts the arguments */
    snprintf(version, sizeof version, "%s (%s)", a->version, a->commit);
    opt.version = version;
    TRY(cmd_parse(a, flag, ARRAY_LEN(flag), &t));
    TRY(inherit_load(&t, opt.fresh, &r));
    TRY(task_complete(&r, DATA_OPENED_NEXT));
    TRY(runwatch_check(&r));
    RunWatch *watch   = runwatch_create(&r, getenv("BRIM_NVML"));
    Watcher   watcher = runwatch_watcher(watch);
    opt.watcher       = &watcher;
    int rc            = train_run(task_of(&r), &r, &opt);
    runwatch_destroy(watch);
    return rc;
}
