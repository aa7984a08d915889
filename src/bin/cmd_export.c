/* brim export RUN DIR: a run's weights for other programs, as its task writes them. */
#include "base/err.h"
#include "base/str.h"
#include "bin/run_target.h"
#include "bin/tasks.h"
#include "ckpt/ckpt.h"

int cmd_export(const CmdArgs *a)
{
    const char *which = NULL, *dtype = NULL, *part = NULL;
    size_t      part_bytes = 0;
    int64_t     step;
    CmdFlag     flag[] = {
            { "--step", &which, NULL, "best, last or the step of a checkpoint (default last)" },
            { "--dtype", &dtype, NULL,
              "float32, bfloat16 or float16, or fp32, bf16, fp16 (default: as imported, else float32)" },
            { "--shard", &part, NULL, "most bytes of weights in one file (default 5GB)" }
    };
    CmdTarget t = { 0 };
    Recipe    r;
    char      run[RUNDIR_PATH], checkpoint[RUN_CHECKPOINT_PATH];
    int       n = cmd_parse_words(a, flag, ARRAY_LEN(flag));
    if (n < 0) return -1;
    if (n != 2) return err_user("command line: export takes a run and a folder to write");
    if (part && (str_parse_size(part, &part_bytes) < 0 || part_bytes < 1 || part_bytes > INT64_MAX / 2))
        return err_user("command line: --shard: '%s' is not a size such as 2GB", part);
    t.target = a->argv[0];
    TRY(run_target_find(&t, which, &r, run, checkpoint, &step));
    const Task *task = task_of(&r);
    if (!task->export_to)
        return err_user("command line: %s: a run of task %s has no export", t.target, task->name);
    TRY(ckpt_verify(checkpoint));
    return task->export_to(&r,
                           &(TaskExport){ run, checkpoint, a->argv[1], dtype, (int64_t)part_bytes, step });
}
