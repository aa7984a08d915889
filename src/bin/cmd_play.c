#include "base/err.h"
#include "bin/run_target.h"

#include <unistd.h>

int cmd_play(const CmdArgs *a)
{
    const char *episodes = "1", *out = NULL, *which = NULL, *seed = "1";
    CmdFlag     flag[] = {
            { "--episodes", &episodes, NULL, "how many (default 1)" },
            { "--out", &out, NULL, "write FILE.gif instead of drawing in the terminal" },
            { "--step", &which, NULL, "best, last or the step of a checkpoint (default last)" },
            { "--seed", &seed, NULL, "of the episodes (default 1)" },
    };
    TaskPlay  opt = { 0 };
    CmdTarget t;
    Recipe    r;
    Setup     s;
    int64_t   seed_value;
    TRY(cmd_parse(a, flag, ARRAY_LEN(flag), &t));
    TRY(cmd_int("--episodes", episodes, 1, 1000000, &opt.n_episode));
    TRY(cmd_int("--seed", seed, 0, INT64_MAX, &seed_value));
    TRY(cmd_gif(out));
    opt.seed        = (uint64_t)seed_value;
    opt.out         = out;
    opt.in_terminal = !out && isatty(STDOUT_FILENO);
    TRY(run_target_open(&t, which, JOB_PLAY, &r, &s));
    int rc = s.job->task->play(s.job, &opt);
    setup_close(&s);
    return rc;
}
